//! The etcd beneath a PostgreSQL cluster → one that Patroni cannot use, and keys that it would share with others.

use std::collections::{HashMap, HashSet};

use super::super::super::diagnostic::Path;
use super::super::super::fault::nearest;
use super::super::super::postgres::{DcsOf, ExternalEtcd, PostgresCluster};
use super::super::super::types::AuthMode;
use super::super::super::units::{Name, quoted};
use super::super::super::users::{Keys, Level};
use super::super::machines::endpoint;
use super::super::{Finding, Findings};
use super::{at, etcd_of};
use crate::versions::patroni::{self, Verdict};

/// The etcd that Patroni keeps its keys in.
pub(super) fn check(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster) {
    let spec = findings.spec;
    let here = || at(name, &["etcd"]);
    let DcsOf::Cluster(wanted) = &cluster.etcd else {
        if let DcsOf::External(etcd) = &cluster.etcd {
            external(findings, name, etcd);
        }
        return;
    };
    let Some(etcd) = spec.etcd.get(wanted) else {
        let known: Vec<&str> = spec.etcd.keys().map(Name::as_str).collect();
        let help = match (nearest(wanted.as_str(), &known), known.is_empty()) {
            (Some(meant), _) => format!("did you mean `{meant}`?"),
            (None, false) => format!("the clusters are `{}`", known.join("`, `")),
            (None, true) => "add it under `etcd`, or name an etcd that raftsman does not run: \
                `etcd: { endpoints: […], ca_cert: …, username: …, password: … }`"
                .to_owned(),
        };
        let message = format!("the file has no etcd cluster `{wanted}`");
        findings.add(Finding::error("postgres-etcd-unknown", here(), message).uses(Path::of(&["etcd"])).help(help));
        return;
    };
    let of_etcd = |keys: &[&str]| keys.iter().fold(Path::of(&["etcd", wanted.as_str()]), |path, key| path.key(key));
    if etcd.gateway == Some(false) {
        findings.add(
            Finding::error("postgres-needs-gateway", here(), format!("the etcd cluster `{wanted}` has no gateway"))
                .also(of_etcd(&["gateway"]), "off here")
                .why("Patroni speaks to etcd only through the JSON gateway")
                .help(format!("remove `gateway: false` from `{wanted}`")),
        );
    }
    if etcd.auth.mode != AuthMode::Password {
        let (mode, why) = match etcd.auth.mode {
            AuthMode::None => ("none", "without users, every client could change which node is the primary"),
            AuthMode::Certificate | AuthMode::Password => {
                ("certificate", "the gateway ignores certificates: Patroni logs in with a user and a password")
            }
        };
        findings.add(
            Finding::error(
                "postgres-needs-password",
                here(),
                format!("the etcd cluster `{wanted}` has the auth mode `{mode}`"),
            )
            .also(of_etcd(&["auth", "mode"]), "the mode")
            .why(why)
            .help(format!("set `auth: {{ mode: password }}` in `{wanted}`")),
        );
    }
    if !patroni::is_known(cluster.patroni.version) {
        // That version is refused with any etcd.
        return;
    }
    match patroni::on_etcd(cluster.patroni.version, etcd.version) {
        Verdict::Tested | Verdict::Expected => {}
        Verdict::Refused(why) => findings.add(
            Finding::error(
                "postgres-etcd-version",
                here(),
                format!("Patroni {} does not run on etcd {}", cluster.patroni.version, etcd.version),
            )
            .also(of_etcd(&["version"]), "etcd's version")
            .uses(at(name, &["patroni", "version"]))
            .why(why)
            .help("use etcd 3.5.28, 3.6.9, 3.7.0 or a later version of these lines"),
        ),
    }
}

fn external(findings: &mut Findings<'_>, name: &Name, etcd: &ExternalEtcd) {
    let here = |key: &str| at(name, &["etcd", key]);
    if etcd.endpoints.is_empty() {
        findings.add(
            Finding::error("endpoints-none", here("endpoints"), "no endpoint is named")
                .on_key()
                .help("`address:port` of each member, such as `10.0.0.5:2379`"),
        );
    }
    let mut seen = HashSet::new();
    for (index, text) in etcd.endpoints.iter().enumerate() {
        let path = || here("endpoints").index(index);
        if let Err(reason) = endpoint(text) {
            findings.add(
                Finding::error("endpoint-invalid", path(), format!("{} is not an endpoint: {reason}", quoted(text)))
                    .help("`address:port`, such as `10.0.0.5:2379` or `[fd00::5]:2379`"),
            );
        } else if !seen.insert(text) {
            findings.add(
                Finding::warning("endpoint-twice", path(), format!("`{text}` is listed twice"))
                    .help("list every member once: Patroni tries them in turn"),
            );
        }
    }
    findings.file(|| here("ca_cert"), &etcd.ca_cert);
    if etcd.username.trim().is_empty() || etcd.username.contains(|c: char| c.is_control()) {
        findings.add(
            Finding::error("postgres-etcd-user", here("username"), "this cannot be the name of a user of etcd")
                .help("the user whose role has read and write on Patroni's prefix, such as `patroni`"),
        );
    } else if etcd.username == "root" {
        findings.add(
            Finding::warning("postgres-etcd-root", here("username"), "Patroni would log in to etcd as its superuser")
                .why("whatever reads Patroni's file on a node could then change every key and every user")
                .help("make a user whose role has read and write on Patroni's prefix and nothing else"),
        );
    }
    findings.secret(|| here("password"), &etcd.password);
}

/// By what the etcd beneath is known: an etcd that raftsman does not run is the same where one endpoint is.
fn etcds(cluster: &PostgresCluster) -> Vec<&str> {
    match &cluster.etcd {
        DcsOf::Cluster(name) => vec![name.as_str()],
        DcsOf::External(etcd) => etcd.endpoints.iter().map(String::as_str).collect(),
    }
}

/// Where Patroni's keys are: each cluster's apart from all others.
pub(super) fn prefixes(findings: &mut Findings<'_>) {
    let spec = findings.spec;
    let mut seen: HashMap<(&str, String), &Name> = HashMap::new();
    for (name, cluster) in &spec.postgres {
        let (scope, namespace) = (cluster.patroni.scope.as_deref(), cluster.patroni.namespace.as_str());
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        if scope.is_some_and(|scope| scope.is_empty() || scope.len() > 63 || !scope.bytes().all(plain)) {
            findings.add(
                Finding::error(
                    "postgres-scope-invalid",
                    at(name, &["patroni", "scope"]),
                    "a scope is 1 to 63 letters, digits, `-`, `_` and `.`",
                )
                .why("it is a part of keys in etcd, and of `cluster_name` in PostgreSQL")
                .help("leave it out: the cluster's name is the default"),
            );
        }
        if !namespace.starts_with('/')
            || !namespace.ends_with('/')
            || namespace.contains("//")
            || !namespace.bytes().all(|b| plain(b) || b == b'/')
        {
            findings.add(
                Finding::error(
                    "postgres-namespace-invalid",
                    at(name, &["patroni", "namespace"]),
                    format!("{} is not a prefix of keys", quoted(namespace)),
                )
                .why("the role of Patroni's user is for this prefix and nothing else")
                .help("begin and end it with `/`: `/service/` is the default"),
            );
            continue;
        }
        for etcd in etcds(cluster) {
            let first = seen.entry((etcd, cluster.prefix(name))).or_insert(name);
            if *first != name {
                same_prefix(findings, name, first, &cluster.prefix(name), true);
                break;
            }
        }
    }
    for (name, cluster) in &spec.postgres {
        let prefix = cluster.prefix(name);
        let above = prefix.match_indices('/').map(|(at, _)| &prefix[..=at]).filter(|above| above.len() < prefix.len());
        let above: Vec<&str> = above.collect();
        for etcd in etcds(cluster) {
            let outer = above.iter().find_map(|above| seen.get(&(etcd, (*above).to_owned())));
            if let Some(outer) = outer.filter(|outer| **outer != name) {
                same_prefix(findings, name, outer, &prefix, false);
                break;
            }
        }
        written_by_others(findings, name, cluster, &prefix);
    }
}

fn same_prefix(findings: &mut Findings<'_>, name: &Name, other: &Name, prefix: &str, same: bool) {
    let message = match same {
        true => format!("the keys of `{name}` and of `{other}` are both below `{prefix}`"),
        false => format!("the keys of `{name}`, below `{prefix}`, are among those of `{other}`"),
    };
    findings.add(
        Finding::error("postgres-same-prefix", at(name, &["patroni"]), message)
            .on_key()
            .uses(at(name, &["etcd"]))
            .uses(at(other, &["patroni"]))
            .uses(at(other, &["etcd"]))
            .why("nodes of one cluster would take the other's leader for theirs")
            .help("give each its own `patroni.scope`; by default it is the cluster's name"),
    );
}

/// Roles of the etcd beneath that can write Patroni's keys.
fn written_by_others(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster, prefix: &str) {
    let Some((etcd, settings)) = etcd_of(findings.spec, cluster) else { return };
    for (role, permissions) in settings.roles.iter().flatten() {
        let writes = permissions.iter().any(|permission| {
            let (level, keys) = permission.parts();
            level != Level::Read && overlaps(keys, prefix)
        });
        if writes {
            let path = Path::of(&["etcd", etcd.as_str(), "roles", role]);
            let message = format!("the role {} can write the keys of Patroni, below `{prefix}`", quoted(role));
            findings.add(
                Finding::warning("postgres-same-prefix", path, message)
                    .on_key()
                    .uses(at(name, &["patroni"]))
                    .uses(at(name, &["etcd"]))
                    .why("a changed key there can demote the primary, or promote a standby that lacks commits")
                    .help("raftsman makes the role and the user that Patroni needs: take this prefix out of the role"),
            );
        }
    }
}

fn overlaps(keys: &Keys, prefix: &str) -> bool {
    let span = keys.span();
    span.contains(prefix.as_bytes()) || span.key.starts_with(prefix.as_bytes())
}
