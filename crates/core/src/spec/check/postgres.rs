//! PostgreSQL clusters → an etcd that Patroni cannot use, unsafe timers and parameters, colliding machines and prefixes.

mod access;
mod beneath;
mod nodes;
mod parameters;

use indexmap::IndexMap;

pub(crate) use parameters::parameter_allowed;

use super::super::diagnostic::Path;
use super::super::incus::IncusKind;
use super::super::machines::Provider;
use super::super::postgres::{
    BundleChecksums, DcsOf, PatroniSource, PatroniVersion, PostgresCluster, PostgresSource, WatchdogMode,
};
use super::super::timing::{self, Timing, Unsafe, Unwise};
use super::super::types::{Archive, Authority, EtcdCluster, Spec};
use super::super::units::{Duration, Name, quoted};
use super::{Finding, Findings, pki, source};
use crate::versions::patroni;

/// The code of the refusal of what is checked and not carried out yet.
pub(in super::super) const LATER: &str = "postgres-later";

fn at(cluster: &Name, keys: &[&str]) -> Path {
    keys.iter().fold(Path::of(&["postgres", cluster.as_str()]), |path, key| path.key(key))
}

pub(super) fn check(findings: &mut Findings<'_>) {
    let spec = findings.spec;
    if spec.postgres.is_empty() {
        return;
    }
    let mut taken = nodes::of_others(spec);
    beneath::prefixes(findings);
    for (name, cluster) in &spec.postgres {
        named(findings, name);
        beneath::check(findings, name, cluster);
        nodes::check(findings, &mut taken, name, cluster);
        copies(findings, name, cluster);
        timers(findings, name, cluster);
        watchdog(findings, name, cluster);
        versions(findings, name, cluster);
        sources(findings, name, cluster);
        parameters::check(findings, name, cluster);
        access::check(findings, name, cluster);
        let here = |keys: &[&str]| at(name, keys);
        pki::certificates(findings, &here, &cluster.certificates, cluster.ca == Authority::Made, "PostgreSQL");
        pki::brought(findings, &|key| here(&["ca", "brought", key]), &cluster.ca);
        backups(findings, name, cluster);
    }
}

/// Refuses what this version reads and does not carry out. It comes last and rests on nothing, so that no such file passes.
pub(super) fn later(findings: &mut Findings<'_>) {
    let spec = findings.spec;
    for (name, cluster) in &spec.postgres {
        for (keys, given, what, help) in not_carried_out(spec, cluster) {
            if given {
                findings.found.push(
                    Finding::error(LATER, at(name, keys), format!("{what} not carried out in this version"))
                        .on_key()
                        .why("`plan` and `apply` refuse the whole file rather than do a part of it")
                        .help(help),
                );
            }
        }
    }
}

/// Keys of a cluster, whether the file has them, what they are, and what to do instead.
fn not_carried_out<'s>(spec: &Spec, cluster: &'s PostgresCluster) -> Vec<(&'s [&'s str], bool, &'s str, &'s str)> {
    let package = matches!(cluster.source, None | Some(PostgresSource::Package(_)));
    let provider = spec.machines.provider;
    let carried_out = matches!(provider, Provider::Local | Provider::Hosts | Provider::Incus);
    let external = matches!(cluster.etcd, DcsOf::External(_));
    vec![
        (&["etcd"], external, "an etcd that raftsman does not run is", "name an etcd cluster of this file"),
        (
            &["nodes"],
            !carried_out,
            "PostgreSQL on machines of this provider is",
            "use `provider: hosts`, `incus` or `local`",
        ),
        (&["source"], !package, "a source of PostgreSQL other than a Debian package is", "`source: { package: … }`"),
        (
            &["version"],
            package && cluster.version.minor.is_some(),
            "a minor version of a Debian package is",
            "write the major version: the minor one is the package's",
        ),
        (
            &["superuser"],
            cluster.superuser.password.is_some(),
            "a password of the superuser is",
            "leave it out: `postgres` logs in on its own machine only, without a password",
        ),
        (
            &["backups"],
            cluster.backups.is_some(),
            "backups of PostgreSQL are",
            "leave it out, and back up by other means",
        ),
        (&["restore_from"], cluster.restore_from.is_some(), "restoring PostgreSQL is", "leave it out"),
    ]
}

/// How long writes of each cluster stop, where everything that decides it could be read and is safe.
pub(in super::super) fn timings(spec: &Spec, tainted: &[Path]) -> IndexMap<Name, Timing> {
    let readable = |path: &Path| !tainted.iter().any(|tainted| path.overlaps(tainted));
    let solved = |(name, cluster): (&Name, &PostgresCluster)| {
        let beneath = match &cluster.etcd {
            DcsOf::Cluster(etcd) => readable(&Path::of(&["etcd", etcd.as_str(), "timers"])),
            DcsOf::External(_) => true,
        };
        let timing = timing::solve(cluster, election(spec, cluster)).ok()?;
        (beneath && readable(&at(name, &[]))).then(|| (name.clone(), timing))
    };
    spec.postgres.iter().filter_map(solved).collect()
}

/// The election time-out of the etcd beneath, where the file says it.
fn election(spec: &Spec, cluster: &PostgresCluster) -> Option<Duration> {
    etcd_of(spec, cluster)?.1.timers.given().map(|timers| timers.election)
}

fn etcd_of<'s>(spec: &'s Spec, cluster: &'s PostgresCluster) -> Option<(&'s Name, &'s EtcdCluster)> {
    match &cluster.etcd {
        DcsOf::Cluster(name) => spec.etcd.get_key_value(name),
        DcsOf::External(_) => None,
    }
}

fn named(findings: &mut Findings<'_>, name: &Name) {
    let spec = findings.spec;
    for (section, what, there) in [
        ("etcd", "an etcd cluster", spec.etcd.contains_key(name)),
        ("balancers", "a balancer", spec.balancers.contains_key(name)),
    ] {
        if there {
            findings.add(
                Finding::error("postgres-name-taken", at(name, &[]), format!("{what} is called `{name}` too"))
                    .on_key()
                    .uses(Path::of(&[section, name.as_str()]))
                    .why("commands name clusters and balancers alike: `raftsman status main`")
                    .help(format!("rename the PostgreSQL cluster, `{name}-pg` for example")),
            );
        }
    }
}

/// How many synchronous standbys there can be.
fn copies(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster) {
    let (wanted, mode) = (u64::from(cluster.synchronous.nodes), cluster.synchronous.mode);
    let here = || at(name, &["synchronous", "nodes"]);
    if !mode.keeps_commits() {
        findings.add(
            Finding::warning(
                "postgres-can-lose",
                at(name, &["synchronous", "mode"]),
                "a failover can lose commits that were acknowledged",
            )
            .why("without a synchronous standby, a commit is on the primary only")
            .help("leave it out: `strict` is the default; or accept it: `accept_warnings: [postgres-can-lose]`"),
        );
        return;
    }
    let (number, candidates) = (cluster.nodes.number(), cluster.synchronous_candidates());
    let standbys = format!("{wanted} synchronous standby{}", plural(wanted));
    let whose = match candidates == number {
        true => format!("{number} node{}", plural(number)),
        false => format!("by their tags, {candidates} of {number} nodes may be synchronous standbys:"),
    };
    if wanted == 0 {
        findings.add(
            Finding::error("postgres-few-nodes", here(), "no synchronous standby is asked for")
                .uses(at(name, &["synchronous", "mode"]))
                .help("`nodes: 1`; `mode: off` is asynchronous replication"),
        );
    } else if number == 0 {
        // That is an error of its own.
    } else if candidates <= wanted {
        findings.add(
            Finding::error(
                "postgres-few-nodes",
                at(name, &["nodes"]),
                match (candidates == number, number) {
                    (true, 1) => format!("{whose} is too few for a primary and {standbys}"),
                    (true, _) => format!("{whose} are too few for a primary and {standbys}"),
                    (false, _) => format!("{whose} too few for a primary and {standbys}"),
                },
            )
            .also(here(), "the synchronous standbys")
            .why("Patroni would promise fewer copies, or acknowledge no write at all")
            .help(match candidates == number {
                true => format!("use `nodes: {}` or more: one to spare lets steps be done without a pause", wanted + 2),
                false => "add nodes, or take `nosync`, `nofailover` and `failover_priority: 0` from some".to_owned(),
            }),
        );
    } else if candidates == wanted + 1 {
        findings.add(
            Finding::warning(
                "postgres-few-nodes",
                at(name, &["nodes"]),
                match candidates == number {
                    true => format!("{whose} with {standbys} leave none to spare"),
                    false => format!("{whose} with {standbys} none is left to spare"),
                },
            )
            .also(here(), "the synchronous standbys")
            .why("while a standby is restarted or lost, the promised copies are not there, or writes stop")
            .help(match candidates == number {
                true => format!("use `nodes: {}` or more", wanted + 2),
                false => "add nodes, or take `nosync`, `nofailover` and `failover_priority: 0` from some".to_owned(),
            }),
        );
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn timers(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster) {
    const CODE: &str = "postgres-timing";
    let spec = findings.spec;
    let of_patroni = |key: &str| at(name, &["patroni", key]);
    let margin = || at(name, &["watchdog", "safety_margin"]);
    let patroni = &cluster.patroni;
    let election = election(spec, cluster);
    let refused = timing::solve(cluster, election).err().unwrap_or_default();
    let safe = refused.is_empty();
    for reason in refused {
        findings.add(match reason {
            Unsafe::BelowMinimum { key, given, least } => {
                Finding::error(CODE, of_patroni(key), format!("`{key}` is {given} s, the least is {least} s"))
                    .why("Patroni allows no less, and would take its own value instead")
                    .help(format!("`{key}: {least}` or more"))
            }
            Unsafe::TtlTooShort { least } => Finding::error(
                CODE,
                of_patroni("ttl"),
                format!(
                    "a `ttl` of {} s is shorter than `loop_wait` + 2 × `retry_timeout`, which is {least} s",
                    patroni.ttl
                ),
            )
            .also(of_patroni("loop_wait"), "loop_wait")
            .also(of_patroni("retry_timeout"), "retry_timeout")
            .why("the leader key could expire, and a standby be promoted, while the primary still repeats its request")
            .help(format!("`ttl: {least}` or more, or shorter times for the others")),
            Unsafe::MarginNegative => {
                Finding::error(CODE, margin(), "a safety margin is a number of seconds, or -1 for half of `ttl`")
                    .help("5 is the default")
            }
            Unsafe::WatchdogTooEarly { timeout } => Finding::error(
                CODE,
                margin(),
                format!(
                    "the watchdog would reset a healthy primary: after {} s, with a round every {} s",
                    timeout.max(0),
                    patroni.loop_wait
                ),
            )
            .on_key()
            .uses(of_patroni("ttl"))
            .uses(of_patroni("loop_wait"))
            .why("its time-out is `ttl` − `safety_margin`, or half of `ttl` with -1; Patroni renews it once a round")
            .help("a smaller `safety_margin`, a shorter `loop_wait` or a longer `ttl`"),
        });
    }
    let zones = spec.machines.zones.len() > 1;
    for reason in timing::unwise(cluster, election, zones).into_iter().filter(|_| safe) {
        findings.add(match reason {
            Unwise::FailsafeSlow => Finding::warning(
                CODE,
                of_patroni("retry_timeout"),
                format!("failsafe mode may not help with a `retry_timeout` of {} s", patroni.retry_timeout),
            )
            .uses(at(name, &["failsafe"]))
            .why("the question to a node that does not answer takes up to 4 s; the primary is demoted before")
            .help("`retry_timeout: 4` or more"),
            Unwise::FailsafeOff => {
                Finding::warning(CODE, at(name, &["failsafe"]), "while etcd has no majority, writes stop")
                    .why("without failsafe mode Patroni demotes a primary that cannot renew its leader key")
                    .help("leave it out: failsafe mode is on by default")
            }
            Unwise::ElectionSlow { election } => Finding::warning(
                CODE,
                of_patroni("retry_timeout"),
                format!(
                    "an election of etcd may take {election}, longer than a `retry_timeout` of {} s",
                    patroni.retry_timeout
                ),
            )
            .uses(at(name, &["etcd"]))
            .uses(Path::of(&["etcd"]))
            .why("a change of etcd's leader alone could demote the primary")
            .help("a longer `retry_timeout`, or a shorter election time-out of etcd"),
            Unwise::RetryShortForZones => Finding::warning(
                CODE,
                of_patroni("retry_timeout"),
                format!("a `retry_timeout` of {} s is short for nodes in several zones", patroni.retry_timeout),
            )
            .uses(Path::of(&["machines", "zones"]))
            .why("a short loss of packets between zones demotes the primary")
            .help("`retry_timeout: 5` or more"),
        });
    }
}

fn watchdog(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster) {
    let machines = &findings.spec.machines;
    let (mode, device) = (|| at(name, &["watchdog", "mode"]), &cluster.watchdog.device);
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/-_".contains(&b);
    if !device.starts_with("/dev/") || device.contains("//") || !device.bytes().all(plain) {
        findings.add(
            Finding::error(
                "postgres-watchdog",
                at(name, &["watchdog", "device"]),
                format!("{} is not a device", quoted(device)),
            )
            .help("`/dev/watchdog` is the default"),
        );
    }
    if cluster.watchdog.mode != WatchdogMode::Required {
        return;
    }
    let provider = || Path::of(&["machines", "provider"]);
    let merged = machines.with_cluster(cluster.machines.as_ref());
    let container = match machines.provider {
        Provider::Incus => merged.incus.as_ref().is_none_or(|incus| incus.kind == IncusKind::Container),
        Provider::Local | Provider::Hosts | Provider::Libvirt | Provider::Openstack | Provider::Aws => false,
    };
    if machines.provider == Provider::Local {
        findings.add(
            Finding::error("postgres-watchdog", mode(), "the local provider's machines have no watchdog")
                .uses(provider())
                .why("no node would ever become the primary; and this computer's own would be reset")
                .help("`mode: automatic`, or leave it out"),
        );
    } else if container {
        findings.add(
            Finding::warning("postgres-watchdog", mode(), "containers have no watchdog unless one is passed to them")
                .uses(provider())
                .uses(at(name, &["machines"]))
                .why("a node without a watchdog never becomes the primary; and the host's resets the whole host")
                .help("`mode: automatic`, or virtual machines: `machines: { incus: { type: virtual-machine } }`"),
        );
    }
}

fn versions(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster) {
    const CODE: &str = "postgres-version";
    if !patroni::runs(cluster.version) {
        let (least, most) = (patroni::POSTGRES.start(), patroni::POSTGRES.end());
        findings.add(
            Finding::error(
                CODE,
                at(name, &["version"]),
                format!("raftsman does not run PostgreSQL {}", cluster.version),
            )
            .why(format!("known are {least} to {most}"))
            .help("`version: 17` is the default"),
        );
    }
    let version = cluster.patroni.version;
    if !patroni::is_known(version) {
        findings.add(
            Finding::error(CODE, at(name, &["patroni", "version"]), format!("raftsman does not run Patroni {version}"))
                .why(match version < patroni::LEAST_PATRONI {
                    true => {
                        "earlier versions can demote a healthy primary when etcd's leader changes, or cannot log in"
                    }
                    false => "known is Patroni 4, from 4.1.4 on",
                })
                .help(format!("use `{}`, the default", PatroniVersion::default())),
        );
    }
}

fn sources(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster) {
    let here = |keys: &[&str]| keys.iter().fold(at(name, &["source"]), |path, key| path.key(key));
    match &cluster.source {
        None => {}
        Some(PostgresSource::Package(package)) => {
            source::package(findings, here(&["package"]), package, "postgresql-17");
        }
        Some(PostgresSource::Directory(directory)) => findings.file(|| here(&["directory"]), directory),
        Some(PostgresSource::Archive(archive)) => {
            let at = |key: &str| here(&["archive", key]);
            source::place(findings, &at, "PostgreSQL", archive.file.as_ref(), archive.url.as_ref());
            source::checksum(findings, at("sha256"), &archive.sha256);
        }
    }
    let exact = matches!(cluster.source, Some(PostgresSource::Directory(_) | PostgresSource::Archive(_)));
    if exact && cluster.version.minor.is_none() {
        findings.add(
            Finding::error(
                "postgres-minor-missing",
                at(name, &["version"]),
                format!("which minor version of PostgreSQL {}?", cluster.version),
            )
            .uses(here(&[]))
            .why("a directory or an archive has exact versions in it")
            .help(format!("write both numbers, such as `{}.1`", cluster.version.major)),
        );
    }
    let Some(PatroniSource::Bundle(bundle)) = &cluster.patroni.source else { return };
    let here = |key: &str| at(name, &["patroni", "source", "bundle", key]);
    let place = source::place(findings, &here, "Patroni", bundle.file.as_ref(), bundle.url.as_ref());
    let each = match &bundle.sha256 {
        BundleChecksums::One(sha256) => {
            source::checksum(findings, here("sha256"), sha256);
            0
        }
        BundleChecksums::Each(each) => {
            for (version, sha256) in each {
                source::checksum(findings, here("sha256").key(&version.to_string()), sha256);
            }
            each.len()
        }
    };
    let version = cluster.patroni.version;
    if bundle.sha256.of(version).is_none() {
        findings.add(
            Finding::error("sha256-missing", here("sha256"), format!("there is no SHA-256 for Patroni {version}"))
                .uses(at(name, &["patroni", "version"]))
                .help("add the one of its bundle"),
        );
    }
    if let Some((key, _)) = place.filter(|(_, place)| each > 1 && !place.contains(Archive::VERSION)) {
        findings.add(
            Finding::error("archive-one-place", here(key), "one bundle cannot have several SHA-256")
                .help("write `{version}` where the version stands in it"),
        );
    }
}

fn backups(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster) {
    let spec = findings.spec;
    let store = || Path::of(&["backups"]);
    for (key, given) in [("backups", cluster.backups.is_some()), ("restore_from", cluster.restore_from.is_some())] {
        if given && spec.backups.is_none() {
            findings.add(
                Finding::error("postgres-no-store", at(name, &[key]), "no backup store is configured")
                    .on_key()
                    .uses(store())
                    .help("add `backups: { store: … }` at the top level of the file"),
            );
        }
    }
    if let Some(backups) = &cluster.backups {
        let here = |key: &str| at(name, &["backups", key]);
        // A full backup of a small database takes some 10 s.
        let least = Duration::from_millis(60_000);
        for (key, every) in [
            ("full_every", Some(backups.full_every)),
            ("diff_every", backups.diff_every),
            ("drill_every", backups.drill_every),
        ] {
            if let Some(every) = every.filter(|every| *every < least) {
                findings.add(
                    Finding::error("postgres-backup-often", here(key), format!("an interval of {every} is too short"))
                        .help(format!("{least} or more; `1w` for full ones and `1d` in between are usual")),
                );
            }
        }
        if backups.diff_every.is_some_and(|diff| diff >= backups.full_every) {
            findings.add(
                Finding::error(
                    "postgres-backup-order",
                    here("diff_every"),
                    "a full backup is made more often than this",
                )
                .also(here("full_every"), "the full ones")
                .help("a shorter interval than `full_every`, or none"),
            );
        }
        if backups.keep_full == 0 {
            findings.add(
                Finding::error("postgres-keep-none", here("keep_full"), "no backup would be kept")
                    .help("`4` is the default"),
            );
        }
    }
    if let Some(from) = &cluster.restore_from {
        let here = |key: &str| at(name, &["restore_from", key]);
        if from.at.as_ref().is_some_and(|at| at.trim().is_empty() || at.contains(|c: char| c.is_control())) {
            findings.add(
                Finding::error("postgres-restore-at", here("at"), "this is not a moment")
                    .help("such as `2026-11-16T07:00:00Z`"),
            );
        }
        let label = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
        if from.backup.as_ref().is_some_and(|backup| backup.is_empty() || !backup.bytes().all(label)) {
            findings.add(
                Finding::error("postgres-restore-backup", here("backup"), "this is not the label of a backup")
                    .help("as pgBackRest shows it, such as `20261116-070000F`"),
            );
        }
    }
}
