//! Where backups are kept → what cannot be reached, read or kept secret so.

use jiff::Timestamp;

use super::super::backups::{BackupStore, Prune, RestoreFrom, S3Store};
use super::super::diagnostic::Path;
use super::super::units::{Duration, Name, quoted};
use super::{Finding, Findings};
use crate::backup::FullName;

/// What a public key of age is made of, after `age1`.
const BECH32: &str = "qpzry9x8gf2tvdw0s3jn54khce6mua7l";

/// A full backup reads and sends all data: a shorter interval would load the cluster all the time.
const SHORTEST: Duration = Duration::from_millis(10_000);
/// All data is read, restored and served for a drill.
const SHORTEST_DRILL: Duration = Duration::from_millis(10_000);
/// Every batch is an object of its own.
const SHORTEST_CHANGES: Duration = Duration::from_millis(1000);

fn at(key: &str) -> Path {
    Path::of(&["backups", key])
}

pub(super) fn check(findings: &mut Findings<'_>) {
    let spec = findings.spec;
    for (name, cluster) in &spec.etcd {
        if let Some(from) = &cluster.restore_from {
            restore_from(findings, &Path::of(&["etcd", name.as_str(), "restore_from"]), from);
        }
    }
    let Some(backups) = &findings.spec.backups else { return };
    let store = |kind: &str| at("store").key(kind);
    match &backups.store {
        BackupStore::S3(s3) => s3_store(findings, s3, backups.encrypt_to.is_empty()),
        BackupStore::Gcs(gcs) => {
            filled(findings, store("gcs").key("bucket"), &gcs.bucket);
            if let Some(secret) = &gcs.credentials {
                findings.secret(|| store("gcs").key("credentials"), secret);
            }
        }
        BackupStore::Azure(azure) => {
            filled(findings, store("azure").key("account"), &azure.account);
            filled(findings, store("azure").key("container"), &azure.container);
            if let Some(secret) = &azure.credentials {
                findings.secret(|| store("azure").key("credentials"), secret);
            }
        }
        BackupStore::Directory(directory) => {
            findings.file(|| store("directory"), directory);
            if !directory.starts_with('/') {
                findings.add(
                    Finding::error("relative-directory", store("directory"), "this is not a whole path")
                        .why("machines write there, and this file is on none of them")
                        .help("begin it with `/`"),
                );
            }
        }
    }
    schedule(findings);
    if backups.encrypt_to.is_empty() {
        findings.add(
            Finding::warning("not-encrypted", at("store"), "backups are not encrypted")
                .uses(at("encrypt_to"))
                .why("read access to the store is read access to all data of the clusters")
                .help("make a key with `age-keygen -o backup.key`, and name its public key in `encrypt_to`"),
        );
    }
    for (index, key) in backups.trust.iter().enumerate() {
        let digits = key.strip_prefix("ed25519:").unwrap_or_default();
        if digits.len() != 64 || !digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            findings.add(
                Finding::error("bad-key", at("trust").index(index), format!("{} is no key of a fleet", quoted(key)))
                    .help("`raftsman backup key` prints it there: `ed25519:` and 64 digits"),
            );
        }
    }
    let parts = backups.prefix.trim_matches('/').split('/');
    let strange = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains(odd);
    if !backups.prefix.is_empty() && parts.clone().any(strange) {
        findings.add(
            Finding::error(
                "bad-prefix",
                at("prefix"),
                format!("{} names no place in a store", quoted(&backups.prefix)),
            )
            .help("names with letters, digits, `-`, `_` and `.`, with `/` between them"),
        );
    }
    for (index, recipient) in backups.encrypt_to.iter().enumerate() {
        let here = || at("encrypt_to").index(index);
        if recipient.trim().to_ascii_uppercase().starts_with("AGE-SECRET-KEY-") {
            findings
                .add(Finding::error("inline-secret", here(), "a secret key is written into the file").help(
                    "name its public key, which begins with `age1`; and make a new key, if this file was shared",
                ));
        } else if !is_recipient(recipient) {
            findings.add(
                Finding::error("bad-recipient", here(), format!("{} is no public key of age", quoted(recipient)))
                    .help("`age-keygen` prints it: it begins with `age1` and has 62 characters"),
            );
        }
    }
}

/// The backup that a cluster is bootstrapped from.
fn restore_from(findings: &mut Findings<'_>, section: &Path, from: &RestoreFrom) {
    let here = |key: &str| section.clone().key(key);
    if findings.spec.backups.is_none() {
        findings.add(
            Finding::error("no-store", section.clone(), "there is no store to restore it from")
                .help("add `backups:` with its `store`"),
        );
    }
    let wrong = |part: &str| Name::parse(part).is_err();
    if let Some(cluster) = &from.cluster
        && (cluster.split('/').count() > 2 || cluster.split('/').any(wrong))
    {
        let message = format!("{} names no cluster", quoted(cluster));
        findings.add(Finding::error("bad-name", here("cluster"), message).help("`CLUSTER`, or `FLEET/CLUSTER`"));
    }
    if let Some(backup) = &from.backup
        && let Err(error) = backup.parse::<FullName>()
    {
        findings.add(
            Finding::error("bad-name", here("backup"), error.to_string()).help("`raftsman backup list` shows them"),
        );
    }
    if let Some(at) = &from.at
        && at.parse::<Timestamp>().is_err()
    {
        let message = format!("{} is no moment", quoted(at));
        findings.add(Finding::error("bad-moment", here("at"), message).help("such as `2026-11-16T07:00:00Z`"));
    }
    let given = [("backup", from.backup.is_some()), ("revision", from.revision.is_some()), ("at", from.at.is_some())];
    let mut given = given.into_iter().filter(|(_, given)| *given).map(|(key, _)| key);
    if let (Some(first), Some(second)) = (given.next(), given.next()) {
        findings.add(
            Finding::error("two-points", here(second), format!("`{first}` says already what comes back"))
                .uses(here(first))
                .help("keep one of them"),
        );
    }
    if let Some(key) = &from.key {
        findings.secret(|| here("key"), key);
    }
}

fn schedule(findings: &mut Findings<'_>) {
    let Some(backups) = &findings.spec.backups else { return };
    let (every, changes_every, drill_every) = (backups.every, backups.changes_every, backups.drill_every);
    for (key, length, shortest) in [
        ("every", every, SHORTEST),
        ("changes_every", changes_every, SHORTEST_CHANGES),
        ("drill_every", drill_every, SHORTEST_DRILL),
    ] {
        if length.is_some_and(|length| length < shortest) {
            findings
                .add(Finding::error("too-often", at(key), "this is too often").help(format!("`{shortest}` or more")));
        }
    }
    for (key, given, why) in [
        ("changes_every", changes_every.is_some(), "changes are those since a full backup"),
        ("drill_every", drill_every.is_some(), "the machine that makes backups runs the drills"),
        ("keep", backups.keep.is_some() && backups.prune == Prune::Machines, "old backups go when a new one was made"),
    ] {
        if given && every.is_none() {
            findings.add(
                Finding::error("no-schedule", at(key), "machines make no backups by themselves")
                    .why(why)
                    .help("say how often they make a full one, such as `every: 6h`"),
            );
        }
    }
    if drill_every.is_some() && !backups.encrypt_to.is_empty() {
        findings.add(
            Finding::error("no-key", at("drill_every"), "machines cannot open these backups")
                .uses(at("encrypt_to"))
                .why("they are encrypted to a key that no machine has")
                .help("leave it out, and run `raftsman drill --key FILE` where the key is, as often as you want"),
        );
    }
    if let (Some(every), Some(changes)) = (every, changes_every)
        && changes >= every
    {
        findings.add(
            Finding::error("no-changes", at("changes_every"), "a full backup is made as often")
                .uses(at("every"))
                .help("make it shorter than `every`, or leave it out"),
        );
    }
}

fn is_recipient(text: &str) -> bool {
    text.strip_prefix("age1").is_some_and(|rest| rest.len() == 58 && rest.chars().all(|c| BECH32.contains(c)))
}

fn odd(c: char) -> bool {
    !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

fn filled(findings: &mut Findings<'_>, path: Path, value: &str) {
    if value.is_empty() || value.contains(odd) {
        let message = match value {
            "" => "this name is empty".to_owned(),
            _ => format!("{} cannot be the name of this", quoted(value)),
        };
        findings.add(
            Finding::error("bad-name", path, message).help("letters, digits, `-`, `_` and `.`, as the store knows it"),
        );
    }
}

fn s3_store(findings: &mut Findings<'_>, s3: &S3Store, in_clear: bool) {
    let here = |key: &str| at("store").key("s3").key(key);
    filled(findings, here("bucket"), &s3.bucket);
    filled(findings, here("region"), &s3.region);
    if let Some(endpoint) = &s3.endpoint {
        let rest = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
        if rest.is_none_or(|host| host.trim_end_matches('/').is_empty() || host.contains(char::is_whitespace)) {
            findings.add(
                Finding::error("bad-endpoint", here("endpoint"), format!("{} is no server", quoted(endpoint)))
                    .help("such as `https://s3.example.com`, or with a port: `https://s3.example.com:7443`"),
            );
        } else if endpoint.starts_with("http://") && in_clear {
            findings.add(
                Finding::warning("in-the-clear", here("endpoint"), "all data of the clusters goes there unencrypted")
                    .uses(at("encrypt_to"))
                    .why("whatever applications keep in etcd, passwords among it, is in every backup")
                    .help("use `https://`, or encrypt backups with `encrypt_to`"),
            );
        } else if endpoint.starts_with("http://") && s3.ca_cert.is_some() {
            findings.add(
                Finding::warning("unused-ca", here("ca_cert"), "this certificate is not used")
                    .uses(here("endpoint"))
                    .help("begin `endpoint` with `https://`"),
            );
        }
    }
    if let Some(ca) = &s3.ca_cert {
        findings.file(|| here("ca_cert"), ca);
    }
    if let Some(credentials) = &s3.credentials {
        let here = |key: &'static str| move || at("store").key("s3").key("credentials").key(key);
        findings.secret(here("id"), &credentials.id);
        findings.secret(here("secret"), &credentials.secret);
        if let Some(session) = &credentials.session {
            findings.secret(here("session"), session);
        }
    }
}
