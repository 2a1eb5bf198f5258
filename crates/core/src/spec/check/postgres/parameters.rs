//! Parameters of PostgreSQL → those that raftsman sets, that run or load programs, or that lose data.

use super::super::super::diagnostic::Path;
use super::super::super::fault::nearest;
use super::super::super::postgres::PostgresCluster;
use super::super::super::types::FlagValue;
use super::super::super::units::{Name, quoted};
use super::super::{Finding, Findings};
use super::at;

/// What raftsman or Patroni sets; a name that ends in `*` stands for all that begin so.
const OWNED: [&str; 22] = [
    "archive_command",
    "archive_mode",
    "cluster_name",
    "config_file",
    "data_directory",
    "hba_file",
    "hot_standby",
    "ident_file",
    "listen_addresses",
    "password_encryption",
    "port",
    "primary_conninfo",
    "primary_slot_name",
    "recovery_target*",
    "restore_command",
    "ssl",
    "ssl_*",
    "synchronous_standby_names",
    "tcp_user_timeout",
    "unix_socket_*",
    "wal_log_hints",
    "wal_retrieve_retry_interval",
];

/// What runs or loads something, or reads and writes files of the file's choice. A `*` stands for anything.
const RUNS: [&str; 14] = [
    "*_command",
    "*_library",
    "*_libraries",
    "dynamic_library_path",
    "extension_control_path",
    "extension_destdir",
    "external_pid_file",
    "include",
    "include_*",
    "jit_provider",
    "krb_server_keyfile",
    "log_directory",
    "log_filename",
    "stats_temp_directory",
];

/// The libraries that may be loaded.
const LIBRARIES: [&str; 3] = ["auto_explain", "pg_stat_statements", "pgaudit"];
const PRELOADED: [&str; 3] = ["local_preload_libraries", "session_preload_libraries", "shared_preload_libraries"];

/// What must be on, and what must be off.
const ON: [&str; 2] = ["fsync", "full_page_writes"];
const OFF: [&str; 4] = ["data_sync_retry", "ignore_checksum_failure", "ignore_system_indexes", "zero_damaged_pages"];

pub(super) fn check(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster) {
    for (parameter, value) in &cluster.parameters {
        one(findings, at(name, &["parameters", parameter]), name, cluster, parameter, value);
    }
    for (role, settings) in cluster.roles.iter().flatten() {
        for (parameter, value) in &settings.settings {
            let here = at(name, &["roles", role, "settings", parameter]);
            one(findings, here, name, cluster, parameter, value);
        }
    }
}

fn one(
    findings: &mut Findings<'_>,
    here: Path,
    name: &Name,
    cluster: &PostgresCluster,
    parameter: &str,
    value: &FlagValue,
) {
    if !is_name(parameter) {
        findings.add(
            Finding::error(
                "postgres-parameter-name",
                here,
                format!("PostgreSQL has no parameter {}", quoted(parameter)),
            )
            .on_key()
            .help("lower-case letters, digits and `_`, as in `SHOW ALL`"),
        );
        return;
    }
    if matches!(value, FlagValue::Text(text) if text.contains(|c: char| c.is_control())) {
        findings.add(
            Finding::error("control-character", here, "a control character is in it")
                .help("write it on one line, without escapes"),
        );
        return;
    }
    if PRELOADED.contains(&parameter) {
        return libraries(findings, here, parameter, value);
    }
    if OWNED.iter().any(|pattern| fits(pattern, parameter)) {
        findings.add(
            Finding::error("postgres-parameter-owned", here, format!("`{parameter}` is set by raftsman"))
                .on_key()
                .why("it follows from the rest of the file, or is what safety rests on")
                .help("remove it"),
        );
    } else if RUNS.iter().any(|pattern| fits(pattern, parameter)) {
        findings.add(
            Finding::error(
                "postgres-parameter-runs",
                here,
                format!("`{parameter}` runs or loads a program, or chooses a file"),
            )
            .on_key()
            .why("what the file names would run, or be read and written, as PostgreSQL's user on every node")
            .help("remove it"),
        );
    } else if let Some((message, why)) = harm(cluster, parameter, value) {
        findings.add(
            Finding::error("postgres-parameter-unsafe", here, message)
                .uses(at(name, &["synchronous", "mode"]))
                .why(why)
                .help("remove it: the default is safe"),
        );
    }
}

fn libraries(findings: &mut Findings<'_>, here: Path, parameter: &str, value: &FlagValue) {
    let FlagValue::Text(text) = value else {
        findings.add(
            Finding::error(
                "postgres-parameter-runs",
                here,
                format!("`{parameter}` is a list of libraries in one text"),
            )
            .help("such as `pg_stat_statements,auto_explain`"),
        );
        return;
    };
    for library in listed(text) {
        if !LIBRARIES.contains(&library) {
            let known = LIBRARIES.map(|known| format!("`{known}`")).join(", ");
            let help = match nearest(library, &LIBRARIES) {
                Some(meant) => format!("did you mean `{meant}`? Allowed are {known}"),
                None => format!("allowed are {known}"),
            };
            let message = format!("the library {} is not one that may be loaded", quoted(library));
            findings.add(
                Finding::error("postgres-parameter-runs", here.clone(), message)
                    .why("its code runs inside PostgreSQL on every node")
                    .help(help),
            );
        }
    }
}

/// Whether a file may set this parameter to this value, as far as that does not depend on the rest of the file. An agent
/// asks for it, too: whichever client sends a parameter, it runs and loads nothing.
pub(crate) fn parameter_allowed(parameter: &str, value: &FlagValue) -> bool {
    let text = match value {
        FlagValue::Text(text) => text.as_str(),
        FlagValue::Bool(_) | FlagValue::Integer(_) => "",
    };
    let ours = || OWNED.iter().chain(&RUNS).any(|pattern| fits(pattern, parameter));
    is_name(parameter)
        && !text.contains(|c: char| c.is_control())
        && match PRELOADED.contains(&parameter) {
            true => matches!(value, FlagValue::Text(_)) && listed(text).all(|library| LIBRARIES.contains(&library)),
            false => !ours(),
        }
}

/// PostgreSQL takes any case: one spelling, so that no rule is passed by another.
fn is_name(parameter: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.');
    !parameter.is_empty() && parameter.len() <= 63 && parameter.chars().all(plain)
}

/// The libraries of a list in one text.
fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(|library| library.trim().trim_matches('"')).filter(|library| !library.is_empty())
}

/// What is wrong with this value, and why.
fn harm(cluster: &PostgresCluster, parameter: &str, value: &FlagValue) -> Option<(String, &'static str)> {
    if ON.contains(&parameter) && truth(value) != Some(true) {
        return Some((
            format!("without `{parameter}` a crash can corrupt the data"),
            "what was acknowledged must be on disk",
        ));
    }
    if OFF.contains(&parameter) && truth(value) != Some(false) {
        return Some((
            format!("`{parameter}` goes on with damaged data"),
            "a standby that is whole should take over instead",
        ));
    }
    let applied = matches!(value, FlagValue::Text(text) if text.eq_ignore_ascii_case("remote_apply"));
    let waits = applied || truth(value) == Some(true);
    (parameter == "synchronous_commit" && cluster.synchronous.mode.keeps_commits() && !waits).then(|| {
        let message = "commits would be acknowledged before a synchronous standby has them on disk".to_owned();
        (message, "with the modes `strict` and `quorum`, a failover loses no acknowledged commit; with this it does")
    })
}

/// What PostgreSQL reads as yes or no, spelt out; it takes shorter forms as well.
fn truth(value: &FlagValue) -> Option<bool> {
    match value {
        FlagValue::Bool(on) => Some(*on),
        FlagValue::Integer(1) => Some(true),
        FlagValue::Integer(0) => Some(false),
        FlagValue::Integer(_) => None,
        FlagValue::Text(text) => match text.to_ascii_lowercase().as_str() {
            "on" | "true" | "yes" | "1" => Some(true),
            "off" | "false" | "no" | "0" => Some(false),
            _ => None,
        },
    }
}

fn fits(pattern: &str, parameter: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => parameter.ends_with(end),
        (None, Some(start)) => parameter.starts_with(start),
        (None, None) => parameter == pattern,
    }
}
