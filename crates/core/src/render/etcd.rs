//! One member and its cluster's settings → etcd's configuration file.

use std::fmt::Write as _;

use super::yaml::quoted;
use crate::spec::{
    AuthMode, CompactionMode, EtcdCluster, EtcdVersion, FlagValue, LogLevel, Name, RaftTimers, Retention,
};

/// Which client certificates a member's client listener accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAccess {
    /// Those of the peers' CA only: members have them, and raftsman signs one for itself. Until auth is on, every client
    /// that the listener accepts is a superuser.
    Closed,
    /// What the file says: certificates of the clients' CA, or passwords.
    Open,
}

/// What a member's configuration is made of.
pub struct Member<'a> {
    /// The member's name.
    pub name: &'a Name,
    /// Where clients reach it.
    pub client_url: String,
    /// Where it serves metrics and the like, apart from clients: at its client URL where there is none.
    pub http_url: Option<String>,
    /// Where balancers ask for its health, where there are any.
    pub health_url: Option<String>,
    /// Where other members reach it.
    pub peer_url: String,
    /// The version that reads it.
    pub version: EtcdVersion,
    /// Whether the JSON gateway is on.
    pub gateway: bool,
    /// Its heartbeat and election time-outs.
    pub timers: RaftTimers,
    /// Which clients it accepts.
    pub access: ClientAccess,
    /// The cluster's settings.
    pub cluster: &'a EtcdCluster,
}

/// What etcd reads at its bootstrap only, so that it is no part of its configuration: a cluster that grows must not
/// restart its members for it. `members` are all members as name and peer URL, the new one among them.
pub fn bootstrap<'a>(members: impl IntoIterator<Item = (&'a str, &'a str)>, token: &str, joins: bool) -> String {
    let list: Vec<String> = members.into_iter().map(|(name, url)| format!("{name}={url}")).collect();
    format!(
        "initial-cluster: {}\ninitial-cluster-token: {}\ninitial-cluster-state: {}\n",
        quoted(&list.join(",")),
        quoted(token),
        if joins { "existing" } else { "new" }
    )
}

/// etcd's configuration file. `{root}` stands for the machine's own directory, which only its agent knows.
pub fn config(member: &Member<'_>) -> String {
    let spec = member.cluster;
    let minor = member.version.minor_line();
    let mut out = String::with_capacity(1536);
    let mut set = |key: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(out, "{key}: {value}");
    };
    set("name", &quoted(member.name.as_ref()));
    set("data-dir", &quoted("{root}/etcd/data"));
    set("listen-client-urls", &quoted(&member.client_url));
    set("advertise-client-urls", &quoted(&member.client_url));
    if let Some(http_url) = &member.http_url {
        set("listen-client-http-urls", &quoted(http_url));
    }
    if let Some(health_url) = &member.health_url {
        set("listen-metrics-urls", &quoted(health_url));
    }
    set("listen-peer-urls", &quoted(&member.peer_url));
    set("initial-advertise-peer-urls", &quoted(&member.peer_url));
    set("strict-reconfig-check", &true);
    set("heartbeat-interval", &member.timers.heartbeat.as_millis());
    set("election-timeout", &member.timers.election.as_millis());
    set("quota-backend-bytes", &spec.quota.bytes());
    set("auto-compaction-mode", &quoted(compaction_mode(spec.auto_compaction.mode)));
    set("auto-compaction-retention", &quoted(&retention(spec.auto_compaction.retention)));
    set("enable-grpc-gateway", &member.gateway);
    if minor <= (3, 5) {
        // The flag is gone in 3.6. etcd ignores keys that it does not know, so that a leftover would only mislead.
        set("enable-v2", &spec.v2_api);
    }
    set("logger", &"zap");
    set("log-level", &log_level(spec.log_level));
    set("log-outputs", &"[stderr]");
    // The names of these checks moved twice: experimental flags up to 3.5, feature gates from 3.6 on.
    if minor >= (3, 6) {
        let gates = [
            ("InitialCorruptCheck", spec.corruption_checks.initial),
            ("CompactHashCheck", spec.corruption_checks.compact_hash),
        ];
        let list = gates.iter().map(|(gate, on)| format!("{gate}={on}")).collect::<Vec<_>>().join(",");
        set("feature-gates", &quoted(&list));
    } else {
        set("experimental-initial-corrupt-check", &spec.corruption_checks.initial);
        if minor == (3, 5) {
            set("experimental-compact-hash-check-enabled", &spec.corruption_checks.compact_hash);
        }
    }
    for (flag, value) in &spec.flags {
        match value {
            FlagValue::Bool(yes) => set(flag, yes),
            FlagValue::Integer(number) => set(flag, number),
            FlagValue::Text(text) => set(flag, &quoted(text)),
        }
    }
    out.push_str("client-transport-security:\n");
    out.push_str("  cert-file: \"{root}/etcd/tls/server/current/tls.crt\"\n");
    out.push_str("  key-file: \"{root}/etcd/tls/server/current/tls.key\"\n");
    let trusted = match (member.access, spec.auth.mode) {
        (ClientAccess::Closed, _) => Some("peer"),
        (ClientAccess::Open, AuthMode::Certificate | AuthMode::None) => Some("server"),
        (ClientAccess::Open, AuthMode::Password) => None,
    };
    if let Some(trusted) = trusted {
        out.push_str("  client-cert-auth: true\n");
        let _ = writeln!(out, "  trusted-ca-file: \"{{root}}/etcd/tls/{trusted}/current/ca.crt\"");
    }
    out.push_str("peer-transport-security:\n");
    out.push_str("  cert-file: \"{root}/etcd/tls/peer/current/tls.crt\"\n");
    out.push_str("  key-file: \"{root}/etcd/tls/peer/current/tls.key\"\n");
    out.push_str("  client-cert-auth: true\n");
    out.push_str("  trusted-ca-file: \"{root}/etcd/tls/peer/current/ca.crt\"\n");
    out
}

fn compaction_mode(mode: CompactionMode) -> &'static str {
    match mode {
        CompactionMode::Periodic => "periodic",
        CompactionMode::Revision => "revision",
    }
}

/// etcd reads a bare number as revisions or as hours, by mode; a Go duration only in periodic mode.
fn retention(retention: Retention) -> String {
    match retention {
        Retention::Revisions(count) => count.to_string(),
        Retention::Age(age) => format!("{}ms", age.as_millis()),
    }
}

fn log_level(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    }
}
