//! A file for Patroni → the first line of it that raftsman does not write.

use std::net::SocketAddr;

use super::{HBA_WORDS, IDENT, INITDB, PROGRAMS, REPLICATOR, REWIND, SLOT_WAL, SUPERUSER, WAL_SENDER, fixed};
use crate::desired::PARAMETERS;
use crate::render::yaml::quoted;
use crate::spec::{FlagValue, PostgresVersion, Subnet, parameter_allowed};

/// The number of the first line that is none of [`config`]'s. Patroni's file names programs to run at every turn, and
/// PostgreSQL's parameters do so, too: an agent takes only what raftsman writes, whichever client sends it.
///
/// [`config`]: super::config
pub fn foreign_line(text: &str) -> Option<usize> {
    let mut open: Vec<String> = Vec::new();
    // Not by `lines`, which would take the end of a line in two ways.
    text.split('\n').position(|line| is_ours(line, &mut open).is_none()).map(|index| index + 1)
}

/// Whether a setting of the whole cluster, by its path and in JSON, is one that raftsman makes.
pub fn setting_allowed(path: &str, json: &str) -> bool {
    serde_json::from_str(json).is_ok_and(|value| is_setting(path, &value))
}

fn is_setting(path: &str, value: &FlagValue) -> bool {
    match path {
        "ttl"
        | "loop_wait"
        | "retry_timeout"
        | "primary_start_timeout"
        | "primary_stop_timeout"
        | "maximum_lag_on_failover"
        | "synchronous_node_count" => matches!(value, FlagValue::Integer(0..)),
        "failsafe_mode"
        | "synchronous_mode_strict"
        | "check_timeline"
        | "postgresql.use_pg_rewind"
        | "postgresql.use_slots" => matches!(value, FlagValue::Bool(_)),
        "synchronous_mode" => match value {
            FlagValue::Bool(_) => true,
            FlagValue::Text(text) => text == "quorum",
            FlagValue::Integer(_) => false,
        },
        _ => path.strip_prefix(PARAMETERS).is_some_and(|parameter| parameter_allowed(parameter, value)),
    }
}

/// Nothing where it is not ours. `open` is the sections that the line is in.
fn is_ours(line: &str, open: &mut Vec<String>) -> Option<()> {
    // Readers of YAML take more characters than one for the end of a line.
    if !line.bytes().all(|b| (b' '..=b'~').contains(&b)) {
        return None;
    }
    let rest = line.trim_start_matches(' ');
    if rest.is_empty() || rest.starts_with('#') {
        return Some(());
    }
    let indent = line.len() - rest.len();
    if !indent.is_multiple_of(2) || indent / 2 > open.len() {
        return None;
    }
    open.truncate(indent / 2);
    let section = open.join("/");
    if let Some(item) = rest.strip_prefix("- ") {
        return is_item(&section, item).then_some(());
    }
    let (key, rest) = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split_once("\":")?,
        None => rest.split_once(':')?,
    };
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.".contains(&b);
    if key.is_empty() || !key.bytes().all(plain) {
        return None;
    }
    match rest.strip_prefix(' ') {
        Some(value) => is_value(&section, key, value).then_some(()),
        None if rest.is_empty() => {
            open.push(key.to_owned());
            is_section(&open.join("/")).then_some(())
        }
        None => None,
    }
}

fn is_section(section: &str) -> bool {
    matches!(
        section,
        "log"
            | "restapi"
            | "restapi/authentication"
            | "ctl"
            | "etcd3"
            | "etcd3/hosts"
            | "bootstrap"
            | "bootstrap/dcs"
            | "bootstrap/dcs/postgresql"
            | "bootstrap/dcs/postgresql/parameters"
            | "bootstrap/initdb"
            | "postgresql"
            | "postgresql/authentication"
            | "postgresql/authentication/superuser"
            | "postgresql/authentication/replication"
            | "postgresql/authentication/rewind"
            | "postgresql/parameters"
            | "postgresql/pg_hba"
            | "postgresql/pg_ident"
            | "watchdog"
            | "tags"
    )
}

fn is_value(section: &str, key: &str, yaml: &str) -> bool {
    if let Some(value) = fixed(section, key) {
        return value == yaml;
    }
    // What is the file's own has no `{` in it, which begins what the agent fills in.
    if yaml.contains('{') && (section, key) != ("postgresql", "bin_dir") {
        return false;
    }
    let Some(value) = read(yaml) else { return false };
    let text = match &value {
        FlagValue::Text(text) => text.as_str(),
        FlagValue::Bool(_) | FlagValue::Integer(_) => "",
    };
    match (section, key) {
        ("", "scope" | "namespace" | "name") | ("etcd3", "username") => {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b))
        }
        ("restapi" | "postgresql", "listen" | "connect_address") => text.parse::<SocketAddr>().is_ok(),
        ("bootstrap/dcs", _) => is_setting(key, &value),
        ("bootstrap/dcs/postgresql", _) => is_setting(&format!("postgresql.{key}"), &value),
        ("bootstrap/dcs/postgresql/parameters", _) => parameter_allowed(key, &value),
        ("postgresql", "bin_dir") => is_program_directory(text),
        ("postgresql/parameters", WAL_SENDER) => is_quantity(text, &["ms", "s", "min"]),
        ("postgresql/parameters", SLOT_WAL) => is_quantity(text, &["MB", "GB"]),
        ("watchdog", "mode") => matches!(text, "automatic" | "required" | "off"),
        ("watchdog", "device") => {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_/".contains(&b);
            text.starts_with("/dev/") && !text.contains("//") && text.bytes().all(plain)
        }
        ("watchdog", "safety_margin") => matches!(value, FlagValue::Integer(-1..)),
        ("tags", "nofailover" | "noloadbalance" | "nosync" | "clonefrom") => matches!(value, FlagValue::Bool(_)),
        ("tags", "failover_priority") => matches!(value, FlagValue::Integer(0..)),
        _ => false,
    }
}

fn is_item(section: &str, yaml: &str) -> bool {
    match section {
        "bootstrap/initdb" => return INITDB.contains(&yaml),
        "postgresql/pg_ident" => return IDENT.iter().any(|rule| quoted(rule) == yaml),
        _ => {}
    }
    let Some(FlagValue::Text(text)) = read(yaml).filter(|_| !yaml.contains('{')) else { return false };
    match section {
        "etcd3/hosts" => text.parse::<SocketAddr>().is_ok(),
        "postgresql/pg_hba" => is_access_rule(&text),
        _ => false,
    }
}

/// `/usr/lib/postgresql/17/bin`, or a version below the machine's root.
fn is_program_directory(text: &str) -> bool {
    let Some(directory) = text.strip_suffix("/bin") else { return false };
    let package = directory.strip_prefix("/usr/lib/postgresql/");
    let installed = directory.strip_prefix("{root}/").and_then(|below| below.strip_prefix(PROGRAMS)?.strip_prefix('/'));
    package.or(installed).is_some_and(|version| {
        let known = PostgresVersion::parse(version).ok().filter(|known| known.to_string() == version);
        known.is_some_and(|known| package.is_none() || known.minor.is_none())
    })
}

/// A number and one of these units.
fn is_quantity(text: &str, units: &[&str]) -> bool {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number = !digits.is_empty() && digits.len() < 16 && digits.bytes().all(|b| b.is_ascii_digit());
    number && units.contains(&&text[digits.len()..])
}

/// A rule of `pg_hba.conf`. None of them lets in a client of the network without TLS and a password.
fn is_access_rule(rule: &str) -> bool {
    let network = |text: &str| Subnet::parse(text).is_ok_and(|subnet| super::network(subnet) == text);
    let nodes_only = format!("{REPLICATOR},{REWIND}");
    match rule.split(' ').collect::<Vec<_>>().as_slice() {
        ["local", "all", SUPERUSER, "peer", "map=raftsman"]
        | ["local", "all", "all", "reject"]
        | ["host", "all", "all", "all", "reject"] => true,
        ["host", "all", users, "all", "reject"] => *users == nodes_only,
        ["hostssl", "replication", REPLICATOR, from, "scram-sha-256"] => network(from),
        ["hostssl", databases, users, from, "scram-sha-256"] => is_names(databases) && is_names(users) && network(from),
        _ => false,
    }
}

fn is_names(list: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b);
    list.split(',').all(|name| match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(word) => HBA_WORDS.contains(&word),
        None => !name.is_empty() && name.bytes().all(plain) && !HBA_WORDS.contains(&name),
    })
}

/// A scalar as it is written here. Readers of YAML take other forms of numbers and of yes and no: none of them is read.
fn read(yaml: &str) -> Option<FlagValue> {
    match yaml {
        "true" => return Some(FlagValue::Bool(true)),
        "false" => return Some(FlagValue::Bool(false)),
        _ => {}
    }
    if let Some(inner) = yaml.strip_prefix('"') {
        return unquoted(inner).map(FlagValue::Text);
    }
    yaml.parse().ok().filter(|number: &i64| number.to_string() == yaml).map(FlagValue::Integer)
}

/// The text of what follows the first quote of a line: up to the second, which ends the line. No control characters.
fn unquoted(inner: &str) -> Option<String> {
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner.chars();
    loop {
        match rest.next()? {
            '"' => return rest.next().is_none().then_some(out),
            '\\' => {
                let length = match rest.next()? {
                    c @ ('"' | '\\') => {
                        out.push(c);
                        continue;
                    }
                    'x' => 2,
                    'u' => 4,
                    'U' => 8,
                    _ => return None,
                };
                let digits: String = rest.by_ref().take(length).collect();
                let hexadecimal = digits.len() == length && digits.bytes().all(|b| b.is_ascii_hexdigit());
                let code = u32::from_str_radix(&digits, 16).ok().filter(|_| hexadecimal)?;
                out.push(char::from_u32(code).filter(|c| !c.is_control())?);
            }
            c => out.push(c),
        }
    }
}
