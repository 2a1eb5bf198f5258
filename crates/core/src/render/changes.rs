//! Two texts of etcd's configuration file → which settings differ, in the words of raftsman's file, and a diff.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::spec::{ByteSize, Duration};

/// A setting that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The key, as raftsman's file calls it where it has one.
    pub key: String,
    /// What the machine has; nothing where it is not set there.
    pub from: Option<String>,
    /// What the file says; nothing where it is not set any more.
    pub to: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
        write!(f, "{} {} → {}", self.key, value(&self.from), value(&self.to))
    }
}

/// The settings that differ, in the order of the new text; those that are gone come last.
pub fn changes(from: &str, to: &str) -> Vec<Change> {
    let (old, new) = (settings(from), settings(to));
    let find = |list: &[(String, String)], key: &str| list.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
    let gone = old.iter().filter(|(key, _)| find(&new, key).is_none());
    let differing = new.iter().filter(|(key, value)| find(&old, key).as_ref() != Some(value));
    let keys = differing.chain(gone).map(|(key, _)| key);
    keys.map(|key| Change {
        key: name(key).to_owned(),
        from: find(&old, key).map(|value| shown(key, &value)),
        to: find(&new, key).map(|value| shown(key, &value)),
    })
    .collect()
}

/// Every key of the file with its value. A key below a section bears the section's name; feature gates are settings of
/// their own.
fn settings(text: &str) -> Vec<(String, String)> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim().trim_matches('"');
        match (key.strip_prefix("  "), value) {
            (None, "") => section = format!("{key}."),
            (None, gates) if key == "feature-gates" => {
                let gates = gates.split(',').filter_map(|gate| gate.split_once('='));
                found.extend(gates.map(|(gate, on)| (gate.to_owned(), on.to_owned())));
            }
            (None, value) => found.push((key.to_owned(), value.to_owned())),
            (Some(key), value) => found.push((format!("{section}{key}"), value.to_owned())),
        }
    }
    found
}

/// What raftsman's file calls it; flags and what the file does not say go by etcd's name.
fn name(key: &str) -> &str {
    match key {
        "quota-backend-bytes" => "quota",
        "heartbeat-interval" => "timers.heartbeat",
        "election-timeout" => "timers.election",
        "auto-compaction-mode" => "auto_compaction.mode",
        "auto-compaction-retention" => "auto_compaction.retention",
        "enable-grpc-gateway" => "gateway",
        "enable-v2" => "v2_api",
        "log-level" => "log_level",
        "InitialCorruptCheck" | "experimental-initial-corrupt-check" => "corruption_checks.initial",
        "CompactHashCheck" | "experimental-compact-hash-check-enabled" => "corruption_checks.compact_hash",
        "listen-client-urls" => "clients' address",
        "listen-peer-urls" => "peers' address",
        other => other,
    }
}

/// A value as raftsman's file writes it.
fn shown(key: &str, value: &str) -> String {
    let millis = |text: &str| Some(Duration::from_millis(text.parse().ok()?).to_string());
    let as_written = match key {
        "quota-backend-bytes" => value.parse().ok().map(|bytes| ByteSize::new(bytes).to_string()),
        "heartbeat-interval" | "election-timeout" => millis(value),
        "auto-compaction-retention" => value.strip_suffix("ms").and_then(millis),
        _ => None,
    };
    as_written.unwrap_or_else(|| value.to_owned())
}

/// Lines around a change that help to find it.
const CONTEXT: usize = 2;

/// A diff of two texts: lines that stay begin with a space, those that go with `-`, those that come with `+`; what lies
/// between two changes is `…`. Empty where nothing differs.
pub fn diff(from: &str, to: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (from.lines().collect(), to.lines().collect());
    let lines = aligned(&old, &new);
    let near = |at: usize| {
        let around = at.saturating_sub(CONTEXT)..(at + CONTEXT + 1).min(lines.len());
        lines[around].iter().any(|(mark, _)| *mark != ' ')
    };
    let mut out = String::new();
    let mut skipped = false;
    for (at, (mark, line)) in lines.iter().enumerate() {
        if !near(at) {
            skipped = true;
            continue;
        }
        if skipped && !out.is_empty() {
            out.push_str("…\n");
        }
        skipped = false;
        out.push_str(&format!("{mark}{line}\n"));
    }
    out
}

/// The longest common lines stay: configuration files are short.
fn aligned<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<(char, &'a str)> {
    let mut longest: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    let at = |longest: &BTreeMap<(usize, usize), usize>, i, j| longest.get(&(i, j)).copied().unwrap_or(0);
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            let length = match old[i] == new[j] {
                true => at(&longest, i + 1, j + 1) + 1,
                false => at(&longest, i + 1, j).max(at(&longest, i, j + 1)),
            };
            longest.insert((i, j), length);
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push((' ', old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && at(&longest, i + 1, j) >= at(&longest, i, j + 1)) {
            lines.push(('-', old[i]));
            i += 1;
        } else {
            lines.push(('+', new[j]));
            j += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "\
name: \"main-1\"
heartbeat-interval: 100
election-timeout: 1000
quota-backend-bytes: 8589934592
auto-compaction-retention: \"3600000ms\"
log-level: info
feature-gates: \"InitialCorruptCheck=true,CompactHashCheck=true\"
max-txn-ops: 128
client-transport-security:
  client-cert-auth: true
";

    fn words(to: &str) -> Vec<String> {
        changes(OLD, to).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn settings_are_named_as_in_the_file() {
        assert!(words(OLD).is_empty());
        assert_eq!(words(&OLD.replace("8589934592", "4294967296")), ["quota 8GiB → 4GiB"]);
        let new = OLD
            .replace("interval: 100", "interval: 250")
            .replace("3600000ms", "1800000ms")
            .replace("CompactHashCheck=true", "CompactHashCheck=false")
            .replace("max-txn-ops: 128\n", "max-request-bytes: 2048\n")
            .replace("  client-cert-auth: true\n", "");
        assert_eq!(
            words(&new),
            [
                "timers.heartbeat 100ms → 250ms",
                "auto_compaction.retention 1h → 30m",
                "corruption_checks.compact_hash true → false",
                "max-request-bytes not set → 2048",
                "max-txn-ops 128 → not set",
                "client-transport-security.client-cert-auth true → not set",
            ]
        );
    }

    #[test]
    fn a_diff_shows_what_differs_and_where() {
        assert_eq!(diff(OLD, OLD), "");
        let new = OLD.replace("\"main-1\"", "\"main-9\"").replace("128", "256");
        insta::assert_snapshot!(diff(OLD, &new), @r#"
        -name: "main-1"
        +name: "main-9"
         heartbeat-interval: 100
         election-timeout: 1000
        …
         log-level: info
         feature-gates: "InitialCorruptCheck=true,CompactHashCheck=true"
        -max-txn-ops: 128
        +max-txn-ops: 256
         client-transport-security:
           client-cert-auth: true
        "#);
        assert_eq!(diff("", "a: 1\n"), "+a: 1\n");
    }
}
