//! Further settings of etcd → those that raftsman sets itself, that etcd does not have, or that lose data.

use super::super::diagnostic::Path;
use super::super::fault::nearest;
use super::super::types::{AuthMode, EtcdCluster, FlagValue};
use super::super::units::{Duration, EtcdVersion, Name, quoted};
use super::{Finding, Findings};

/// Settings that raftsman writes itself, and the key that governs them.
const OWNED: &[(&str, &str)] = &[
    ("name", "members"),
    ("log-level", "log_level"),
    ("debug", "log_level"),
    ("quota-backend-bytes", "quota"),
    ("auto-compaction-mode", "auto_compaction.mode"),
    ("auto-compaction-retention", "auto_compaction.retention"),
    ("heartbeat-interval", "timers.heartbeat"),
    ("election-timeout", "timers.election"),
    ("enable-grpc-gateway", "gateway"),
    ("enable-v2", "v2_api"),
    ("initial-cluster-token", "token"),
    ("experimental-initial-corrupt-check", "corruption_checks.initial"),
    ("experimental-compact-hash-check-enabled", "corruption_checks.compact_hash"),
    ("client-cert-auth", "auth.mode"),
    ("peer-client-cert-auth", "ca.peers"),
    ("trusted-ca-file", "ca.clients"),
    ("peer-trusted-ca-file", "ca.peers"),
    ("cert-file", "certificates"),
    ("key-file", "certificates"),
    ("peer-cert-file", "certificates"),
    ("peer-key-file", "certificates"),
    ("client-cert-file", "certificates"),
    ("client-key-file", "certificates"),
    ("peer-client-cert-file", "certificates"),
    ("peer-client-key-file", "certificates"),
    ("client-transport-security", "certificates"),
    ("peer-transport-security", "certificates"),
    ("self-signed-cert-validity", "certificates.validity"),
    ("feature-gates", "corruption_checks"),
];

/// Settings that raftsman writes itself, by what they start with; nothing governs them.
const OWNED_FAMILIES: &[(&str, &str)] = &[
    ("initial-", "raftsman forms the cluster and joins members by itself"),
    ("listen-", "raftsman chooses the addresses and ports from the members' addresses"),
    ("advertise-", "raftsman chooses the addresses and ports from the members' addresses"),
    ("discovery", "raftsman gives every member the addresses of the others"),
    ("proxy", "raftsman runs members, not proxies"),
    ("strict-reconfig-check", "it is always on: without it a membership change can lose quorum"),
    ("log", "raftsman reads the members' logs, and must know where they are"),
];

/// Settings that etcd takes on its command line only; tried with 3.4.45, 3.5.34, 3.6.15 and 3.7.2.
const COMMAND_LINE_ONLY: &[&str] = &[
    "client-cert-allowed-hostname",
    "client-crl-file",
    "peer-cert-allowed-cn",
    "peer-cert-allowed-hostname",
    "peer-crl-file",
    "raft-read-timeout",
    "raft-write-timeout",
    "socket-reuse-address",
    "socket-reuse-port",
];

/// Settings that undo what keeps the data safe, under their stable names: with `experimental-` before them they do the
/// same in the lines that know them so. etcd reads its file by the names of its fields, too, in any case.
const HARMFUL: &[(&str, Option<bool>, &str)] = &[
    ("force-new-cluster", Some(true), "it removes all other members from the cluster each time the member starts"),
    ("unsafe-no-fsync", Some(true), "a power cut then loses acknowledged writes, and can corrupt the member"),
    ("strict-reconfig-check", Some(false), "without it a membership change can lose quorum"),
    ("auto-tls", Some(true), "self-signed certificates do not prevent a man in the middle"),
    ("peer-auto-tls", Some(true), "with self-signed certificates every process can join as a peer"),
    ("peer-skip-client-san-verification", Some(true), "it lets a peer's certificate be used from any machine"),
    ("clientautotls", Some(true), "self-signed certificates do not prevent a man in the middle"),
    ("peerautotls", Some(true), "with self-signed certificates every process can join as a peer"),
];

/// Settings that are harmful where clients show no certificate.
const HARMFUL_WITH_PASSWORDS: &[(&str, &str)] = &[(
    "enable-pprof",
    "with `mode: password` etcd then lets every client that reaches its port profile it, without credentials",
)];

const ALL: u8 = 0b1111;
const FROM_3_5: u8 = 0b1110;
const FROM_3_6: u8 = 0b1100;

/// What etcd's `--help` lists beyond the settings above, and in which lines: bit 0 is 3.4, bit 3 is 3.7.
const KNOWN: &[(u8, &[&str])] = &[
    (
        ALL,
        &[
            "auth-token",
            "auth-token-ttl",
            "backend-batch-interval",
            "backend-batch-limit",
            "bcrypt-cost",
            "cipher-suites",
            "cors",
            "enable-pprof",
            "grpc-keepalive-interval",
            "grpc-keepalive-min-time",
            "grpc-keepalive-timeout",
            "host-whitelist",
            "max-concurrent-streams",
            "max-request-bytes",
            "max-snapshots",
            "max-txn-ops",
            "max-wals",
            "metrics",
            "pre-vote",
            "snapshot-count",
            "tls-max-version",
            "tls-min-version",
        ],
    ),
    (FROM_3_5, &["backend-bbolt-freelist-type", "enable-log-rotation", "log-rotation-config-json", "v2-deprecation"]),
    (
        FROM_3_6,
        &[
            "bootstrap-defrag-threshold-megabytes",
            "compact-hash-check-time",
            "compaction-batch-limit",
            "compaction-sleep-interval",
            "corrupt-check-time",
            "distributed-tracing-address",
            "distributed-tracing-instance-id",
            "distributed-tracing-sampling-rate",
            "distributed-tracing-service-name",
            "downgrade-check-time",
            "enable-distributed-tracing",
            "log-format",
            "max-learners",
            "memory-mlock",
            "peer-skip-client-san-verification",
            "snapshot-catchup-entries",
            "warning-apply-duration",
            "warning-unary-request-duration",
            "watch-progress-notify-interval",
        ],
    ),
    (0b0001, &["experimental-backend-bbolt-freelist-type", "log-package-levels", "next-cluster-version-compatible"]),
];

pub(super) fn check(findings: &mut Findings<'_>, name: &Name, cluster: &EtcdCluster) {
    for (flag, value) in &cluster.flags {
        let at = Path::of(&["etcd", name.as_str(), "flags"]).key(flag);
        one(findings, at, Path::of(&["etcd", name.as_str(), "version"]), cluster, flag, value);
    }
}

/// Why a setting with this value is harmful.
fn harm(cluster: &EtcdCluster, flag: &str, value: &FlagValue) -> Option<&'static str> {
    let stable = flag.strip_prefix("experimental-").unwrap_or(flag);
    let always =
        HARMFUL.iter().find(|(harmful, bad, _)| *harmful == stable && bad.is_none_or(|bad| truth(value) != Some(!bad)));
    let with_passwords = HARMFUL_WITH_PASSWORDS
        .iter()
        .filter(|_| cluster.auth.mode == AuthMode::Password)
        .find(|(harmful, _)| *harmful == stable && truth(value) != Some(false));
    always.map(|(_, _, harm)| *harm).or(with_passwords.map(|(_, harm)| *harm))
}

fn one(findings: &mut Findings<'_>, at: Path, version_at: Path, cluster: &EtcdCluster, flag: &str, value: &FlagValue) {
    let version = cluster.version;
    let plain = flag.trim_start_matches('-').replace('_', "-").to_ascii_lowercase();
    if plain != flag || plain.is_empty() || !plain.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        findings.add(
            Finding::error("flag-name", at, format!("{} is not how etcd writes the name of a setting", quoted(flag)))
                .on_key()
                .help(format!("without leading dashes, with hyphens between words: {}", quoted(&plain))),
        );
        return;
    }
    if let Some((_, key)) = OWNED.iter().find(|(owned, _)| *owned == flag) {
        findings.add(
            Finding::error("flag-owned", at, format!("raftsman sets `{flag}` itself"))
                .on_key()
                .why("two places for one setting would contradict each other sooner or later")
                .help(format!("use the key `{key}` of the cluster instead")),
        );
    } else if matches!(flag, "data-dir" | "wal-dir" | "config-file") {
        findings.add(
            Finding::error("flag-owned", at, format!("raftsman sets `{flag}` itself"))
                .on_key()
                .why("it must know where the data is, to back it up and never to start a member on the wrong data")
                .help("remove it"),
        );
    } else if let Some(harm) = harm(cluster, flag, value) {
        findings.add(
            Finding::error("flag-harmful", at, format!("`{flag}` endangers the data"))
                .on_key()
                .why(harm)
                .help("remove it"),
        );
    } else if let Some((_, why)) = OWNED_FAMILIES.iter().find(|(start, _)| flag.starts_with(start)) {
        findings.add(
            Finding::error("flag-owned", at, format!("raftsman sets `{flag}` itself"))
                .on_key()
                .why(*why)
                .help("remove it"),
        );
    } else if COMMAND_LINE_ONLY.contains(&flag) {
        findings.add(
            Finding::error("flag-no-effect", at, format!("`{flag}` would have no effect"))
                .on_key()
                .why("etcd takes it on its command line only, and raftsman writes a configuration file, where etcd ignores it without a word")
                .help("remove it"),
        );
    } else if let Some((message, help)) = misfit(flag, value) {
        findings.add(
            Finding::error("flag-type", at, message)
                .why("etcd does not start with a value of another kind in its configuration file")
                .help(help),
        );
    } else if let Some(stable) = flag.strip_prefix("experimental-") {
        experimental(findings, at, version_at, version, flag, stable);
    } else {
        known(findings, at, version_at, version, flag);
    }
}

/// What etcd's configuration file takes for a setting, tried with 3.4.45, 3.5.34, 3.6.15 and 3.7.2. Settings that
/// are not listed take any text.
const NUMBERS: &[&str] = &[
    "auth-token-ttl",
    "backend-batch-limit",
    "bcrypt-cost",
    "bootstrap-defrag-threshold-megabytes",
    "compaction-batch-limit",
    "max-concurrent-streams",
    "max-learners",
    "max-request-bytes",
    "max-snapshots",
    "max-txn-ops",
    "max-wals",
    "snapshot-catchup-entries",
    "snapshot-count",
];
const TIMES: &[&str] = &[
    "backend-batch-interval",
    "compact-hash-check-time",
    "compaction-sleep-interval",
    "corrupt-check-time",
    "downgrade-check-time",
    "grpc-keepalive-interval",
    "grpc-keepalive-min-time",
    "grpc-keepalive-timeout",
    "warning-apply-duration",
    "warning-unary-request-duration",
    "watch-progress-notify-interval",
];
const SWITCHES: &[&str] = &[
    "enable-distributed-tracing",
    "enable-log-rotation",
    "enable-pprof",
    "memory-mlock",
    "pre-vote",
    "strict-reconfig-check",
];
const LISTS: &[&str] = &["cipher-suites"];

/// What is wrong with a value, and what to write instead.
fn misfit(flag: &str, value: &FlagValue) -> Option<(String, String)> {
    let plain = flag.strip_prefix("experimental-").unwrap_or(flag);
    if LISTS.contains(&plain) {
        let message = format!("`{flag}` takes a list, which raftsman cannot pass on yet");
        return Some((message, "remove it".to_owned()));
    }
    match value {
        FlagValue::Integer(_) if SWITCHES.contains(&plain) => {
            Some((format!("`{flag}` takes `true` or `false`"), "write one of them, without quotes".to_owned()))
        }
        FlagValue::Text(_) if SWITCHES.contains(&plain) => {
            Some((format!("`{flag}` takes `true` or `false`"), "write one of them, without quotes".to_owned()))
        }
        FlagValue::Text(_) | FlagValue::Bool(_) if NUMBERS.contains(&plain) => {
            Some((format!("`{flag}` takes a whole number"), "write digits only, without quotes".to_owned()))
        }
        FlagValue::Text(text) if TIMES.contains(&plain) => {
            let help = match Duration::parse(text) {
                Ok(time) => format!("write {time} as `{}`", u128::from(time.as_millis()) * 1_000_000),
                Err(_) => "one second is `1000000000`".to_owned(),
            };
            Some((format!("`{flag}` takes a number of nanoseconds"), help))
        }
        FlagValue::Bool(_) if TIMES.contains(&plain) => {
            Some((format!("`{flag}` takes a number of nanoseconds"), "one second is `1000000000`".to_owned()))
        }
        _ => None,
    }
}

fn truth(value: &FlagValue) -> Option<bool> {
    match value {
        FlagValue::Bool(value) => Some(*value),
        FlagValue::Text(text) => text.parse().ok(),
        FlagValue::Integer(_) => None,
    }
}

fn experimental(
    findings: &mut Findings<'_>,
    at: Path,
    version_at: Path,
    version: EtcdVersion,
    flag: &str,
    stable: &str,
) {
    let successor = if lines(stable).is_some() {
        format!("use `{stable}`")
    } else {
        "remove it: what became a feature gate cannot be set through raftsman yet".to_owned()
    };
    if version.minor_line() >= (3, 7) {
        findings.add(
            Finding::error("flag-experimental-gone", at, format!("etcd {version} has no `{flag}`"))
                .on_key()
                .uses(version_at)
                .why("3.7 dropped all `experimental-` settings: fatal on its command line, and without any effect in its configuration file")
                .help(successor),
        );
    } else if version.minor_line() == (3, 6) {
        findings.add(
            Finding::warning("flag-experimental-old", at, format!("`{flag}` is deprecated in 3.6, and gone in 3.7"))
                .on_key()
                .uses(version_at)
                .help(successor),
        );
    }
}

/// Whether etcd of this version has no such setting, although other lines do: its configuration file may hold it, and
/// it has no effect.
pub(crate) fn ignored_by(flag: &str, version: EtcdVersion) -> bool {
    if flag.starts_with("experimental-") && version.minor_line() >= (3, 7) {
        return true;
    }
    lines(flag).is_some_and(|lines| bit(version).is_some_and(|bit| lines & bit == 0))
}

fn bit(version: EtcdVersion) -> Option<u8> {
    version.minor.checked_sub(4).and_then(|line| u8::try_from(line).ok()).and_then(|line| 1u8.checked_shl(line.into()))
}

/// The lines that know a setting.
fn lines(flag: &str) -> Option<u8> {
    KNOWN.iter().find(|(_, names)| names.contains(&flag)).map(|(lines, _)| *lines)
}

fn known(findings: &mut Findings<'_>, at: Path, version_at: Path, version: EtcdVersion, flag: &str) {
    match lines(flag) {
        Some(lines) if bit(version).is_none_or(|bit| lines & bit != 0) => {}
        Some(_) => {
            let older = "use its `experimental-` name, if this line has one, or a line that knows it";
            findings.add(
                Finding::warning("flag-unknown", at, format!("etcd {version} has no `{flag}`"))
                    .on_key()
                    .uses(version_at)
                    .why("etcd ignores unknown settings in its configuration file without a word")
                    .help(if version.minor_line() <= (3, 5) { older } else { "remove it" }),
            );
        }
        None => {
            let all: Vec<&str> = KNOWN.iter().flat_map(|(_, names)| names.iter().copied()).collect();
            let help = match nearest(flag, &all) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("look it up in `etcd --help` of {version}"),
            };
            findings.add(
                Finding::warning("flag-unknown", at, format!("etcd has no setting `{flag}` that raftsman knows of"))
                    .on_key()
                    .why("etcd ignores unknown settings in its configuration file without a word")
                    .help(help),
            );
        }
    }
}
