//! One etcd cluster's settings → combinations that etcd refuses, or that are unwise.

use super::super::diagnostic::Path;
use super::super::types::{AuthMode, CompactionMode, EtcdCluster, RaftTimers, Retention};
use super::super::units::{ByteSize, Duration, EtcdVersion, Name};
use super::{Finding, Findings};

pub(super) fn check(findings: &mut Findings<'_>, name: &Name, cluster: &EtcdCluster) {
    let at = |keys: &[&str]| keys.iter().fold(Path::of(&["etcd", name.as_str()]), |path, key| path.key(key));
    version(findings, &at, cluster);
    auth(findings, &at, cluster);
    history(findings, &at, cluster);
    timers(findings, &at, cluster);
    for (key, on, what) in [
        ("initial", cluster.corruption_checks.initial, "a member that differs from the others starts to serve"),
        ("compact_hash", cluster.corruption_checks.compact_hash, "members that drift apart go unnoticed"),
    ] {
        if !on {
            findings.add(
                Finding::warning(
                    "corruption-check-off",
                    at(&["corruption_checks", key]),
                    format!("this corruption check is off: {what}"),
                )
                .why("silent divergence after a crash has happened in etcd (issues 13766 and 14139)")
                .help("leave both checks on"),
            );
        }
    }
}

/// From these on, the known ways around etcd's permissions are closed.
fn safe_with_auth(version: EtcdVersion) -> Option<EtcdVersion> {
    match version.minor_line() {
        (3, 5) => Some(EtcdVersion::new(3, 5, 33)),
        (3, 6) => Some(EtcdVersion::new(3, 6, 14)),
        (3, 7) => Some(EtcdVersion::new(3, 7, 1)),
        _ => None,
    }
}

fn version(findings: &mut Findings<'_>, at: &dyn Fn(&[&str]) -> Path, cluster: &EtcdCluster) {
    let version = cluster.version;
    let line = version.minor_line();
    if !((3, 4)..=(3, 7)).contains(&line) {
        findings.add(
            Finding::error("version-unknown", at(&["version"]), format!("raftsman does not know etcd {version}"))
                .why("how to upgrade and configure a line is different for each; known are 3.4 to 3.7")
                .help(format!("use a version of these lines, such as `{}`", EtcdVersion::default())),
        );
    } else if line == (3, 4) {
        findings.add(
            Finding::warning("version-end-of-life", at(&["version"]), "etcd 3.4 gets no more fixes")
                .help("plan the upgrade, one minor version at a time: 3.5, then 3.6"),
        );
    } else if line == (3, 5) && version.patch <= 2 {
        findings.add(
            Finding::warning(
                "version-corrupts",
                at(&["version"]),
                format!("etcd {version} can lose or corrupt data when a member crashes"),
            )
            .why("etcd issue 13766, fixed in 3.5.3")
            .help("use 3.5.33 or later"),
        );
    } else if let Some(safe) =
        safe_with_auth(version).filter(|safe| version < *safe && cluster.auth.mode != AuthMode::None)
    {
        findings.add(
            Finding::warning(
                "version-auth-bypass",
                at(&["version"]),
                format!("etcd {version} has known ways around its permissions"),
            )
            .why(format!("closed in {safe}, and raftsman turns authentication on"))
            .help(format!("use {safe} or later")),
        );
    }
    if cluster.v2_api {
        if line >= (3, 6) {
            findings.add(
                Finding::error("v2-api-gone", at(&["v2_api"]), format!("etcd {version} has no v2 API"))
                    .uses(at(&["version"]))
                    .why("etcd removed the v2 API and `enable-v2` in 3.6")
                    .help("move the clients to v3 and remove this key, or stay with 3.5"),
            );
        } else {
            findings.add(
                Finding::warning("v2-api-old", at(&["v2_api"]), "the v2 API is deprecated, and gone from 3.6 on")
                    .uses(at(&["version"]))
                    .why("it ignores v3's users and permissions")
                    .help("move the clients to v3: this cluster cannot be upgraded to 3.6 before"),
            );
        }
    }
}

fn auth(findings: &mut Findings<'_>, at: &dyn Fn(&[&str]) -> Path, cluster: &EtcdCluster) {
    match (cluster.auth.mode, cluster.gateway) {
        (AuthMode::Certificate, Some(true)) => findings.add(
            Finding::warning(
                "gateway-with-certificates",
                at(&["gateway"]),
                "the gateway cannot tell users apart by their certificate",
            )
            .uses(at(&["auth", "mode"]))
            .why("it ignores the certificate's common name, and etcd answers every request through it with HTTP 400")
            .help("for Patroni and other clients of the gateway set `auth: { mode: password }`; else remove this key"),
        ),
        (AuthMode::Password, Some(false)) => findings.add(
            Finding::warning(
                "password-without-gateway",
                at(&["gateway"]),
                "without the gateway Patroni cannot use this cluster",
            )
            .uses(at(&["auth", "mode"]))
            .why("Patroni speaks to etcd only through the gateway, and password mode is usually chosen for it")
            .help("remove this key if Patroni is among the clients"),
        ),
        _ => {}
    }
    if cluster.auth.mode == AuthMode::None {
        findings.add(
            Finding::warning("auth-off", at(&["auth", "mode"]), "every client with a certificate may do everything")
                .why("`none` is for the upgrade from 3.4 to 3.5, which etcd does not support while auth is on")
                .help("write `mode: certificate` again as soon as all members run 3.5"),
        );
    }
    if let Some(password) = &cluster.auth.root_password {
        if cluster.auth.mode != AuthMode::Password {
            findings.add(
                Finding::error(
                    "password-with-certificates",
                    at(&["auth", "root_password"]),
                    "`root_password` has no use without passwords",
                )
                .on_key()
                .uses(at(&["auth", "mode"]))
                .why("only with `mode: password` does root prove itself by one")
                .help("remove it, or set `mode: password`"),
            );
        }
        findings.secret(|| at(&["auth", "root_password"]), password);
    }
}

fn history(findings: &mut Findings<'_>, at: &dyn Fn(&[&str]) -> Path, cluster: &EtcdCluster) {
    let quota = cluster.quota;
    if quota.bytes() == 0 {
        findings.add(
            Finding::error("quota-zero", at(&["quota"]), "the quota is 0")
                .why("etcd takes 0 for its own default, 2 GiB, which is surely not what this says")
                .help("write a size such as `8GiB`, or remove the key"),
        );
    } else if quota > ByteSize::gib(8) {
        findings.add(
            Finding::warning("quota-large", at(&["quota"]), format!("a quota of {quota} is more than etcd suggests"))
                .why("8 GiB is the suggested maximum: a member that starts or catches up must read and send the whole database")
                .help("keep the quota at `8GiB`, or spread the data over more clusters"),
        );
    } else if quota < ByteSize::mib(16) {
        findings.add(
            Finding::warning("quota-small", at(&["quota"]), format!("a quota of {quota} fills up within moments"))
                .why(
                    "when the quota is reached the cluster takes no more writes until it is compacted and defragmented",
                )
                .help("the default, `8GiB`, takes no space before it is used"),
        );
    }

    let (mode, retention) = (cluster.auto_compaction.mode, cluster.auto_compaction.retention);
    let retention_at = || at(&["auto_compaction", "retention"]);
    let mode_at = || at(&["auto_compaction", "mode"]);
    match (mode, retention) {
        (_, Retention::Revisions(0)) | (CompactionMode::Periodic, Retention::Age(Duration::ZERO)) => findings.add(
            Finding::warning(
                "compaction-off",
                retention_at(),
                "nothing is ever compacted: the database grows until it reaches the quota",
            )
            .uses(mode_at())
            .why("etcd keeps every revision of every key until it is compacted")
            .help("set a retention, unless your clients compact by themselves, as Kubernetes does"),
        ),
        (CompactionMode::Revision, Retention::Age(age)) => findings.add(
            Finding::error(
                "retention-mode",
                retention_at(),
                format!("`{age}` is a time, but compaction goes by number of revisions"),
            )
            .also(mode_at(), "by number of revisions")
            .help("set `mode: periodic`, or write a number of revisions such as `1000`"),
        ),
        (CompactionMode::Periodic, Retention::Revisions(count)) => findings.add(
            Finding::error(
                "retention-mode",
                retention_at(),
                format!("`{count}` is a number of revisions, but compaction goes by age"),
            )
            .also(mode_at(), "by age")
            .why("etcd would take a bare number for hours")
            .help(format!("write a time such as `{}h`, or set `mode: revision`", count.min(24))),
        ),
        (CompactionMode::Revision, Retention::Revisions(count)) if count < 100 => findings.add(
            Finding::warning("retention-short", retention_at(), format!("only {count} revisions are kept"))
                .uses(mode_at())
                .why("a watcher that falls further behind than that must start over")
                .help("1000 is the default"),
        ),
        (CompactionMode::Periodic, Retention::Age(age)) if age < Duration::from_millis(60_000) => findings.add(
            Finding::warning("retention-short", retention_at(), format!("only {age} of history is kept"))
                .uses(mode_at())
                .why("a watcher that loses its connection for longer must start over")
                .help("keep `5m` or more"),
        ),
        _ => {}
    }
}

fn timers(findings: &mut Findings<'_>, at: &dyn Fn(&[&str]) -> Path, cluster: &EtcdCluster) {
    let Some(RaftTimers { heartbeat, election }) = cluster.timers.given() else { return };
    let heartbeat_at = || at(&["timers", "heartbeat"]);
    let election_at = || at(&["timers", "election"]);
    let longest = Duration::from_millis(50_000);
    if heartbeat == Duration::ZERO {
        findings.add(
            Finding::error("heartbeat-zero", heartbeat_at(), "the heartbeat is 0")
                .help("about one round trip between members: `100ms` suits a data centre"),
        );
    } else if election.as_millis() < heartbeat.as_millis().saturating_mul(10) {
        let (path, other) = (election_at(), heartbeat_at());
        let least = Duration::from_millis(heartbeat.as_millis().saturating_mul(10));
        let mut finding = Finding::error(
            "election-short",
            path,
            format!("an election time-out of {election} is less than ten heartbeats of {heartbeat}"),
        )
        .also(other, "the heartbeat")
        .why("one late heartbeat or slow disk would start an election, and writes stop while it lasts");
        finding = if least <= longest {
            finding.help(format!("set `election: {least}` or more, or a shorter heartbeat"))
        } else {
            finding.help("shorten the heartbeat: about one round trip between members, such as `100ms`")
        };
        findings.add(finding);
    } else if heartbeat < Duration::from_millis(10) {
        findings.add(
            Finding::warning(
                "heartbeat-short",
                heartbeat_at(),
                format!("a heartbeat of {heartbeat} is shorter than a write to disk"),
            )
            .why("the leader sends heartbeats between writes; those that are late look like a lost leader")
            .help("`100ms` is etcd's default, 10ms the least that makes sense"),
        );
    }
    if election > longest {
        findings.add(
            Finding::error(
                "election-long",
                election_at(),
                format!("an election time-out of {election} is more than etcd allows"),
            )
            .why("etcd refuses to start with more than 50s")
            .help("`1s` is the default; `5s` serves members on different continents"),
        );
    }
}
