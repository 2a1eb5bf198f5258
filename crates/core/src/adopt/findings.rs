//! What was seen of a cluster → what an operator should know before adopting it, the worst first.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use serde::Serialize;

use super::{Found, Member};
use crate::desired::{CLIENT_PORT, PEER_PORT};
use crate::observed::{Alarm, Purpose, ROOT};
use crate::spec::AuthMode;

/// Something to know about a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub weight: Weight,
    /// A stable code for it.
    pub code: &'static str,
    /// Which member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// What.
    pub message: String,
    /// What to do about it.
    pub next: String,
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// The cluster or its data is in danger.
    Problem,
    /// It should be changed.
    Warning,
    /// Good to know.
    Note,
}

impl Finding {
    pub(super) fn new(
        weight: Weight,
        code: &'static str,
        member: Option<&Member>,
        message: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        let member = member.map(|m| m.listed.name.clone());
        Self { weight, code, member, message: message.into(), next: next.into() }
    }
}

/// Certificates that end within this time should be renewed now.
const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);
/// From here on the quota is nearly used up, in percent.
const NEARLY_FULL: i64 = 80;
/// A file of which less than half is used is worth defragmenting, when it is at least this large.
const LARGE: i64 = 256 << 20;

/// Everything worth knowing.
pub fn findings(found: &Found) -> Vec<Finding> {
    let mut all = Vec::new();
    health(found, &mut all);
    probe(found, &mut all);
    for member in &found.members {
        certificates(found, member, &mut all);
        place(member, &mut all);
        flags(member, &mut all);
        disk(member, &mut all);
    }
    settings(found, &mut all);
    users(found, &mut all);
    all.sort_by_key(|finding| finding.weight);
    all
}

fn health(found: &Found, all: &mut Vec<Finding>) {
    for member in &found.members {
        match &member.status {
            Err(error) => all.push(Finding::new(
                Weight::Problem,
                "member-silent",
                Some(member),
                format!("it does not answer: {error}"),
                "bring it back before anything is changed: the cluster can lose one member less",
            )),
            Ok(status) if status.leader.is_none() => all.push(Finding::new(
                Weight::Problem,
                "no-leader",
                Some(member),
                "it has no leader",
                "look at its log and at the network between the members",
            )),
            Ok(_) => {}
        }
        if member.listed.learner {
            all.push(Finding::new(
                Weight::Warning,
                "learner",
                Some(member),
                "it is a learner, without a vote",
                "promote it or remove it: `etcdctl member promote`, `etcdctl member remove`",
            ));
        }
        let limit = member.status.as_ref().ok().map(|status| (status, member.settings()));
        if let Some((status, settings)) = limit {
            let quota = settings.get("quota").and_then(|quota| crate::spec::ByteSize::parse(quota).ok());
            let quota = quota.and_then(|quota| i64::try_from(quota.bytes()).ok()).filter(|quota| *quota > 0);
            if let Some(percent) = quota.map(|quota| status.db_size.saturating_mul(100) / quota)
                && percent >= NEARLY_FULL
            {
                all.push(Finding::new(
                    Weight::Problem,
                    "nearly-full",
                    Some(member),
                    format!("its database uses {percent} % of the quota"),
                    "compact and defragment, or raise the quota: at 100 % etcd takes no more writes",
                ));
            }
            if status.db_size >= LARGE && status.db_in_use < status.db_size / 2 {
                all.push(Finding::new(
                    Weight::Note,
                    "fragmented",
                    Some(member),
                    format!("of {} MiB of its database {} are in use", status.db_size >> 20, status.db_in_use >> 20),
                    "`etcdctl defrag`, one member at a time",
                ));
            }
        }
    }
    for (id, alarm) in &found.alarms {
        let member = found.members.iter().find(|m| m.listed.id == *id);
        let (message, next) = match alarm {
            Alarm::NoSpace => {
                ("the quota is used up: it takes no writes", "compact, defragment, then disarm the alarm")
            }
            Alarm::Corrupt => ("etcd reports that its data is corrupt", "restart nothing before the cause is known"),
        };
        all.push(Finding::new(Weight::Problem, "alarm", member, message, next));
    }
    let mut by_compaction: BTreeMap<i64, BTreeSet<u32>> = BTreeMap::new();
    for hash in found.hashes.members.values() {
        by_compaction.entry(hash.compacted).or_default().insert(hash.hash);
    }
    if by_compaction.values().any(|hashes| hashes.len() > 1) {
        let described = found.hashes.members.iter().map(|(name, hash)| format!("{name} {:08x}", hash.hash));
        all.push(Finding::new(
            Weight::Problem,
            "hash-differs",
            None,
            format!(
                "members hold different data at revision {}: {}",
                found.hashes.revision,
                described.collect::<Vec<_>>().join(", ")
            ),
            "take a snapshot of each member, and find the one that differs before anything is restarted",
        ));
    }
}

fn probe(found: &Found, all: &mut Vec<Finding>) {
    if found.auth == Some(false) {
        let (weight, who) = match found.certificates_needed {
            true => (Weight::Warning, "every client with a certificate of the clients CA"),
            false => (Weight::Problem, "every client that reaches a member"),
        };
        all.push(Finding::new(
            weight,
            "auth-off",
            None,
            format!("auth is off: {who} can read and write everything"),
            "make `root`, users and roles, then `etcdctl auth enable`",
        ));
    }
    if found.shared_authority == Some(true) {
        all.push(Finding::new(
            Weight::Warning,
            "authority-shared",
            None,
            "peers and clients have the same authority: every client can join as a member",
            "give peers an authority of their own",
        ));
    }
    let left = found.authority.not_after.duration_since(found.at);
    if left < SOON {
        all.push(Finding::new(
            Weight::Problem,
            "authority-ends",
            None,
            format!("the authority of the clients ends {}", when(left)),
            "rotate it: everything that it signed ends with it",
        ));
    }
    for member in &found.members {
        let plain = |urls: &[String]| urls.iter().any(|url| url.starts_with("http://"));
        if plain(&member.client_urls) || plain(&member.listed.peer_urls) {
            all.push(Finding::new(
                Weight::Problem,
                "plaintext",
                Some(member),
                "it is reached without TLS",
                "give it certificates and `https` URLs, one member at a time",
            ));
        }
    }
}

fn when(left: SignedDuration) -> String {
    match left.as_hours() {
        hours if hours < 0 => "in the past".to_owned(),
        hours if hours < 48 => format!("in {hours} h"),
        hours => format!("in {} days", hours / 24),
    }
}

fn certificates(found: &Found, member: &Member, all: &mut Vec<Finding>) {
    for (purpose, seen) in &member.certificates {
        let what = purpose.name();
        let mut push = |weight, code, message: String, next: &str| {
            all.push(Finding::new(weight, code, Some(member), message, next));
        };
        let certificate = match seen {
            Ok(certificate) => certificate,
            // A member that does not answer presents no certificate either.
            Err(_) if member.status.is_err() => continue,
            Err(error) => {
                let next = "the port may be closed to this computer: look from a machine of the cluster";
                push(
                    Weight::Note,
                    "certificate-not-seen",
                    format!("its {what} certificate was not seen: {error}"),
                    next,
                );
                continue;
            }
        };
        let left = certificate.not_after.duration_since(found.at);
        if left < SOON {
            let weight = if left < SignedDuration::from_hours(48) { Weight::Problem } else { Weight::Warning };
            push(weight, "certificate-ends", format!("its {what} certificate ends {}", when(left)), "renew it");
        }
        if *purpose == Purpose::Peer && !certificate.client_auth {
            push(
                Weight::Problem,
                "peer-not-client",
                "its peer certificate may not be used to connect (no clientAuth)".to_owned(),
                "sign one for serverAuth and clientAuth: members are both to each other",
            );
        }
        if !certificate.server_auth {
            let message = format!("its {what} certificate may not be used by a server (no serverAuth)");
            push(Weight::Problem, "not-server", message, "sign one for serverAuth");
        }
        let host = match purpose {
            Purpose::Peer => member.listed.peer_urls.first().and_then(|url| host(url)),
            Purpose::Server => host(&member.endpoint),
        };
        if let Some(host) = host.filter(|host| !certificate.names.iter().any(|name| name == host)) {
            let names = match certificate.names.is_empty() {
                true => "nothing".to_owned(),
                false => certificate.names.join(", "),
            };
            let message =
                format!("its {what} certificate is not valid for {host}, where it is reached, but for {names}");
            push(Weight::Warning, "name-missing", message, "sign one with all names and addresses of the member");
        }
    }
}

fn host(url: &str) -> Option<&str> {
    let place = url.split_once("://")?.1;
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    Some(host.trim_matches(['[', ']']))
}

fn port(url: &str) -> Option<u16> {
    url.rsplit_once(':').and_then(|(_, port)| port.trim_end_matches('/').parse().ok())
}

fn place(member: &Member, all: &mut Vec<Finding>) {
    let ports = [
        ("clients", port(&member.endpoint), CLIENT_PORT),
        ("peers", member.listed.peer_urls.first().and_then(|url| port(url)), PEER_PORT),
    ];
    for (who, found, ours) in ports {
        if let Some(found) = found.filter(|found| *found != ours) {
            all.push(Finding::new(
                Weight::Note,
                "other-port",
                Some(member),
                format!("{who} reach it at port {found}; the file cannot say any but {ours}"),
                "the state remembers it; the plan lists it as a difference",
            ));
        }
    }
    if member.listed.peer_urls.len() > 1 {
        all.push(Finding::new(
            Weight::Note,
            "several-peer-urls",
            Some(member),
            format!("it has several peer URLs: {}", member.listed.peer_urls.join(", ")),
            "the file can say one",
        ));
    }
}

fn flags(member: &Member, all: &mut Vec<Finding>) {
    let Some(process) = &member.process else { return };
    let is = |name: &str, value: &str| process.settings.get(name).is_some_and(|given| given == value);
    for (name, value, message) in [
        ("unsafe-no-fsync", "true", "a power cut loses acknowledged writes (`unsafe-no-fsync`)"),
        ("force-new-cluster", "true", "it removes all other members at its next start (`force-new-cluster`)"),
        ("strict-reconfig-check", "false", "a membership change can lose quorum (`strict-reconfig-check` is off)"),
        ("auto-tls", "true", "clients cannot verify its identity (`auto-tls`)"),
        ("peer-auto-tls", "true", "any process that reaches the peer port can join as a member (`peer-auto-tls`)"),
        (
            "peer-skip-client-san-verification",
            "true",
            "a member's certificate can be used from any machine (`peer-skip-client-san-verification`)",
        ),
        (
            "experimental-peer-skip-client-san-verification",
            "true",
            "a member's certificate can be used from any machine (`experimental-peer-skip-client-san-verification`)",
        ),
    ] {
        if is(name, value) {
            all.push(Finding::new(Weight::Problem, "flag-harmful", Some(member), message, "remove the flag"));
        }
    }
    if process.settings.contains_key("wal-dir") {
        all.push(Finding::new(
            Weight::Note,
            "wal-apart",
            Some(member),
            "its write-ahead log is in a directory of its own (`wal-dir`)",
            "raftsman keeps both in one directory: the log has to move before raftsman can manage the member",
        ));
    }
}

/// What etcd's own guide calls slow, in milliseconds.
const SLOW: [(&str, &str, f64); 2] =
    [("wal_fsync_p99_ms", "writes to its log", 10.0), ("backend_commit_p99_ms", "commits to its database", 25.0)];

fn disk(member: &Member, all: &mut Vec<Finding>) {
    for (metric, what, limit) in SLOW {
        if let Some(p99) = member.metrics.get(metric).filter(|p99| **p99 > limit) {
            all.push(Finding::new(
                Weight::Warning,
                "disk-slow",
                Some(member),
                format!("{what} take up to {p99:.0} ms (99 % of them), etcd wants less than {limit:.0}"),
                "give it a faster disk, or one of its own",
            ));
        }
    }
}

/// Whether members differ in what all should have alike.
fn settings(found: &Found, all: &mut Vec<Finding>) {
    let versions: BTreeSet<String> =
        found.members.iter().filter_map(|m| m.status.as_ref().ok()).map(|s| s.version.to_string()).collect();
    if versions.len() > 1 {
        let versions = versions.into_iter().collect::<Vec<_>>().join(", ");
        all.push(Finding::new(
            Weight::Warning,
            "versions-mixed",
            None,
            format!("members run different versions: {versions}"),
            "finish the upgrade: mixed versions are meant for the time of an upgrade only",
        ));
    }
    let settings: Vec<BTreeMap<String, String>> = found.members.iter().map(Member::settings).collect();
    let keys: BTreeSet<&String> = settings.iter().flat_map(BTreeMap::keys).collect();
    for key in keys.into_iter().filter(|key| !key.starts_with("flags.")) {
        let values: BTreeSet<&String> = settings.iter().filter_map(|settings| settings.get(key)).collect();
        if values.len() > 1 {
            let described = found.members.iter().zip(&settings).filter_map(|(member, settings)| {
                settings.get(key).map(|value| format!("{} {value}", member.listed.name))
            });
            all.push(Finding::new(
                Weight::Warning,
                "setting-differs",
                None,
                format!("`{key}` is not the same on every member: {}", described.collect::<Vec<_>>().join(", ")),
                "the file has one value for all: choose it, and set it on the others",
            ));
        }
    }
    let gateway = settings.iter().any(|settings| settings.get("gateway").is_some_and(|on| on == "true"));
    if gateway && found.mode == AuthMode::Certificate {
        all.push(Finding::new(
            Weight::Note,
            "gateway-on",
            None,
            "the JSON gateway is on, which cannot tell users apart by their certificates",
            "turn it off (`enable-grpc-gateway: false`), or log in by password",
        ));
    }
}

fn users(found: &Found, all: &mut Vec<Finding>) {
    let Ok(access) = &found.access else { return };
    let superusers: Vec<&str> = access
        .users
        .iter()
        .filter(|(name, user)| name.as_str() != ROOT && user.roles.contains(ROOT))
        .map(|(name, _)| name.as_str())
        .collect();
    if !superusers.is_empty() {
        all.push(Finding::new(
            Weight::Warning,
            "superusers",
            None,
            format!("users besides `root` that may do everything: {}", superusers.join(", ")),
            "give them roles of their own",
        ));
    }
}
