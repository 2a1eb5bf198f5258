//! etcd's flags as they were given → the same in the file's words, so that both can be compared.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::desired::Stack;
use crate::spec::{ByteSize, CompactionMode, Duration, EtcdVersion, FlagValue, LogLevel, Retention};

/// A setting that is otherwise than the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The key in the file.
    pub key: String,
    /// What was found.
    pub found: String,
    /// What the file says.
    pub wanted: String,
}

/// Flags for a member's identity and addresses, or that raftsman sets itself: none is a setting of the cluster.
const OWN: [&str; 29] = [
    "name",
    "data-dir",
    "wal-dir",
    "config-file",
    "logger",
    "log-outputs",
    "log-package-levels",
    "strict-reconfig-check",
    "feature-gates",
    "enable-grpc-gateway",
    "enable-v2",
    "log-level",
    "debug",
    "quota-backend-bytes",
    "auto-compaction-mode",
    "auto-compaction-retention",
    "heartbeat-interval",
    "election-timeout",
    "experimental-initial-corrupt-check",
    "experimental-compact-hash-check-enabled",
    "cert-file",
    "key-file",
    "trusted-ca-file",
    "client-cert-auth",
    "auto-tls",
    "enable-log-rotation",
    "log-rotation-config-json",
    "client-cert-file",
    "client-key-file",
];
const OWN_FAMILIES: [&str; 8] = [
    "listen-",
    "advertise-",
    "initial-",
    "discovery",
    "peer-",
    "proxy",
    "client-transport-security",
    "peer-transport-security",
];

/// etcd's own default.
const DEFAULT_QUOTA: u64 = 2 << 30;

/// A running member's settings. Without its flags only the quota can be known.
pub fn seen(
    flags: Option<&BTreeMap<String, String>>,
    quota: Option<u64>,
    version: EtcdVersion,
) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    let given = |name: &str| flags.and_then(|flags| flags.get(name)).map(String::as_str);
    let number = |name: &str| given(name).and_then(|text| text.parse::<u64>().ok());
    let mut set = |key: &str, value: String| drop(settings.insert(key.to_owned(), value));
    let bytes = quota.or_else(|| flags.map(|_| number("quota-backend-bytes").unwrap_or(0)));
    if let Some(bytes) = bytes {
        set("quota", ByteSize::new(if bytes == 0 { DEFAULT_QUOTA } else { bytes }).to_string());
    }
    let Some(flags) = flags else { return settings };
    let millis = |name: &str, default: u64| Duration::from_millis(number(name).unwrap_or(default)).to_string();
    set("timers.heartbeat", millis("heartbeat-interval", 100));
    set("timers.election", millis("election-timeout", 1000));
    let (mode, retention) = (given("auto-compaction-mode"), given("auto-compaction-retention"));
    set("auto_compaction", compaction(mode.unwrap_or("periodic"), retention.unwrap_or("0")));
    set("gateway", given("enable-grpc-gateway").unwrap_or("true").to_owned());
    set("log_level", given("log-level").unwrap_or("info").to_owned());
    let line = version.minor_line();
    if line <= (3, 5) {
        set("v2_api", given("enable-v2").unwrap_or("false").to_owned());
    }
    let gate = |name: &str| {
        let gates = given("feature-gates").unwrap_or_default().split(',');
        let on = gates.filter_map(|gate| gate.split_once('=')).find(|(gate, _)| gate.trim() == name);
        on.is_some_and(|(_, on)| on.trim() == "true").to_string()
    };
    let initial = given("experimental-initial-corrupt-check").map(ToOwned::to_owned);
    set("corruption_checks.initial", initial.unwrap_or_else(|| gate("InitialCorruptCheck")));
    if line >= (3, 5) {
        let hash = given("experimental-compact-hash-check-enabled").map(ToOwned::to_owned);
        set("corruption_checks.compact_hash", hash.unwrap_or_else(|| gate("CompactHashCheck")));
    }
    let own = |name: &str| OWN.contains(&name) || OWN_FAMILIES.iter().any(|family| name.starts_with(family));
    for (name, value) in flags.iter().filter(|(name, _)| !own(name)) {
        set(&format!("flags.{name}"), flag(value));
    }
    settings
}

/// Times are nanoseconds in etcd's configuration file, and have units on its command line.
fn flag(value: &str) -> String {
    let with_unit = value.starts_with(|c: char| c.is_ascii_digit()) && value.ends_with(['s', 'm', 'h']);
    match Duration::parse(value).ok().filter(|_| with_unit) {
        Some(time) => (u128::from(time.as_millis()) * 1_000_000).to_string(),
        None => value.to_owned(),
    }
}

/// A bare number is revisions or hours, by mode.
fn compaction(mode: &str, retention: &str) -> String {
    match (mode, retention.parse::<u64>()) {
        (_, Ok(0)) => "off".to_owned(),
        ("periodic" | "1", Ok(hours)) => format!("periodic {}", Duration::from_hours(hours)),
        ("revision", Ok(count)) => format!("revision {count}"),
        (mode, _) => match Duration::parse(retention) {
            Ok(Duration::ZERO) => "off".to_owned(),
            Ok(age) => format!("{mode} {age}"),
            Err(_) => format!("{mode} {retention}"),
        },
    }
}

/// The settings that the file asks for.
pub fn wanted(cluster: &Stack) -> BTreeMap<String, String> {
    let spec = &cluster.etcd.settings;
    let mut settings = BTreeMap::new();
    let mut set = |key: &str, value: String| drop(settings.insert(key.to_owned(), value));
    set("quota", spec.quota.to_string());
    // No agent is there to measure: the timers that the members run with are taken as they are.
    if let Some(timers) = spec.timers.given() {
        set("timers.heartbeat", timers.heartbeat.to_string());
        set("timers.election", timers.election.to_string());
    }
    let mode = match spec.auto_compaction.mode {
        CompactionMode::Periodic => "periodic",
        CompactionMode::Revision => "revision",
    };
    set(
        "auto_compaction",
        match spec.auto_compaction.retention {
            Retention::Revisions(count) => compaction(mode, &count.to_string()),
            Retention::Age(age) => compaction(mode, &age.to_string()),
        },
    );
    set("gateway", spec.serves_gateway().to_string());
    let level = match spec.log_level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    };
    set("log_level", level.to_owned());
    if cluster.etcd.version.minor_line() <= (3, 5) {
        set("v2_api", spec.v2_api.to_string());
    }
    set("corruption_checks.initial", spec.corruption_checks.initial.to_string());
    if cluster.etcd.version.minor_line() >= (3, 5) {
        set("corruption_checks.compact_hash", spec.corruption_checks.compact_hash.to_string());
    }
    for (name, value) in &spec.flags {
        let value = match value {
            FlagValue::Bool(yes) => yes.to_string(),
            FlagValue::Integer(number) => number.to_string(),
            FlagValue::Text(text) => text.clone(),
        };
        set(&format!("flags.{name}"), value);
    }
    settings
}

/// What differs, of what is known on both sides.
pub fn differences(wanted: &BTreeMap<String, String>, seen: &BTreeMap<String, String>) -> Vec<Difference> {
    // A member whose flags were not seen may have other ones.
    let all_seen = seen.contains_key("timers.heartbeat");
    let difference = |key: &String, found: Option<&String>, wanted: Option<&String>| {
        let said = |value: Option<&String>| value.map_or("its default", |value| value).to_owned();
        (found != wanted).then(|| Difference { key: key.clone(), found: said(found), wanted: said(wanted) })
    };
    let mut found: Vec<Difference> = Vec::new();
    for (key, value) in wanted {
        match seen.get(key) {
            None if !(all_seen && key.starts_with("flags.")) => {}
            value_seen => found.extend(difference(key, value_seen, Some(value))),
        }
    }
    for (key, value) in seen.iter().filter(|(key, _)| key.starts_with("flags.") && !wanted.contains_key(*key)) {
        found.extend(difference(key, Some(value), None));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn flags_in_the_files_words() {
        let given = flags(&[
            ("name", "a"),
            ("heartbeat-interval", "200"),
            ("auto-compaction-retention", "5"),
            ("feature-gates", "InitialCorruptCheck=true"),
            ("grpc-keepalive-min-time", "5s"),
            ("max-request-bytes", "10485760"),
        ]);
        let seen = seen(Some(&given), None, EtcdVersion::new(3, 6, 15));
        let lines: Vec<String> = seen.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        insta::assert_snapshot!(lines.join("\n"), @"
        auto_compaction: periodic 5h
        corruption_checks.compact_hash: false
        corruption_checks.initial: true
        flags.grpc-keepalive-min-time: 5000000000
        flags.max-request-bytes: 10485760
        gateway: true
        log_level: info
        quota: 2GiB
        timers.election: 1s
        timers.heartbeat: 200ms
        ");
    }

    #[test]
    fn without_flags_only_the_quota_is_known() {
        let seen = seen(None, Some(8 << 30), EtcdVersion::new(3, 5, 34));
        assert_eq!(seen, flags(&[("quota", "8GiB")]));
        let wanted = flags(&[("quota", "4GiB"), ("gateway", "true"), ("flags.max-txn-ops", "10")]);
        let found = differences(&wanted, &seen);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].key.as_str(), found[0].found.as_str()), ("quota", "8GiB"));
    }

    #[test]
    fn compaction_is_told_in_many_ways() {
        for (mode, retention, described) in [
            ("periodic", "0", "off"),
            ("periodic", "1", "periodic 1h"),
            ("periodic", "90m", "periodic 1h30m"),
            ("periodic", "1h0m0s", "periodic 1h"),
            ("revision", "1000", "revision 1000"),
            ("revision", "0", "off"),
        ] {
            assert_eq!(compaction(mode, retention), described, "{mode} {retention}");
        }
    }
}
