//! Backups → the text of `raftsman backup`.

use jiff::Timestamp;
use raftsman_core::backup::FullName;
use raftsman_core::backup::{About, Coding, Manifest};
use raftsman_engine::ops::backup::{Copied, Listing, NewBackup, Pruned, Verified, VerifyingKey};

use super::{Paint, Table, bytes, span};

/// The last message of `raftsman backup now`.
pub(crate) fn taken(taken: &NewBackup, paint: Paint) -> String {
    let NewBackup { manifest, place, path } = taken;
    let seconds = (manifest.finished.as_second() - manifest.about.begun.as_second()).max(0);
    format!(
        "{} {} of {}, read back: {} in {} after {}\n    {path} in {place}\n",
        paint.green("backed up:"),
        paint.bold(&manifest.about.name.to_string()),
        manifest.about.member,
        size(manifest.object.bytes),
        how(manifest.coding),
        span(seconds),
    )
}

/// The text of `raftsman backup list`.
pub(crate) fn listing(listing: &Listing, now: Timestamp, paint: Paint) -> String {
    let mut out = format!("{}   {}\n", paint.bold(&format!("etcd {}", listing.cluster)), listing.place);
    if listing.backups.is_empty() {
        out.push_str("  no backup yet\n    → make one: `raftsman backup now`\n");
        return out;
    }
    let mut table = Table::indented(2);
    table.row(["BACKUP", "AGE", "KEYS", "SNAPSHOT", "STORED", "FROM", ""].map(|h| paint.dim(h)));
    for backup in &listing.backups {
        let age = span(now.as_second() - backup.name.taken().as_second());
        let name = backup.name.to_string();
        match (&backup.manifest, &backup.problem) {
            (Some(manifest), problem) => table.row([
                name,
                age,
                manifest.hashed.keys.to_string(),
                size(manifest.snapshot.bytes),
                size(manifest.object.bytes),
                format!("{} ({})", manifest.about.member, manifest.about.version),
                match problem {
                    Some(problem) => paint.yellow(problem),
                    None => how(manifest.coding).to_owned(),
                },
            ]),
            (None, problem) => {
                let problem = paint.yellow(&format!("invalid: {}", problem.as_deref().unwrap_or_default()));
                table.row([name, age, "-".to_owned(), "-".to_owned(), "-".to_owned(), "-".to_owned(), problem]);
            }
        }
    }
    out.push_str(&table.render());
    out
}

/// The text of `raftsman backup show`.
pub(crate) fn shown(shown: &NewBackup, paint: Paint) -> String {
    let NewBackup { manifest, place, path } = shown;
    let Manifest { about, finished, hashed, .. } = manifest;
    let About { fleet, cluster, cluster_id, member, version, begun, .. } = about;
    let moment = |at: &Timestamp| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    let history = match hashed.compacted {
        ..=0 => String::new(),
        compacted => format!("; what was before {compacted} is compacted"),
    };
    let mut table = Table::indented(2);
    for (what, value) in [
        ("cluster", format!("{cluster} of {fleet}, {cluster_id}")),
        ("from", format!("{member}, etcd {version}")),
        ("begun", moment(begun)),
        ("read back", moment(finished)),
        ("revision", format!("{} at least{history}", about.name.revision())),
        ("keys", format!("{}, hash {:08x}", hashed.keys, hashed.hash)),
        ("snapshot", format!("{}, SHA-256 {}", size(manifest.snapshot.bytes), manifest.snapshot.sha256)),
        ("object", format!("{}, SHA-256 {}", size(manifest.object.bytes), manifest.object.sha256)),
        ("made", how(manifest.coding).to_owned()),
        ("where", format!("{path} in {place}")),
    ] {
        table.row([paint.dim(what), value]);
    }
    format!("{}\n{}\n{}", paint.bold(&about.name.to_string()), table.render(), by_hand(manifest, path))
}

/// The commands to read the object without raftsman.
fn by_hand(manifest: &Manifest, path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let unpack = match (manifest.coding.age, manifest.coding.zstd) {
        (true, true) => format!("age --decrypt -i KEY {file} | zstd -d -o snapshot.db"),
        (true, false) => format!("age --decrypt -i KEY -o snapshot.db {file}"),
        (false, true) => format!("zstd -d {file} -o snapshot.db"),
        (false, false) => format!("ls -l {file}"),
    };
    format!("Without raftsman:\n  {unpack}\n  etcdutl snapshot status snapshot.db\n")
}

/// The last message of `raftsman backup copy`.
pub(crate) fn copied(copied: &Copied, paint: Paint) -> String {
    let Copied { backup, batches, place, path } = copied;
    let changes = match batches {
        0 => String::new(),
        1 => " with a batch of changes".to_owned(),
        many => format!(" with {many} batches of changes"),
    };
    format!(
        "{} {}{changes}, read back\n    {path} in {place}\n",
        paint.green("copied:"),
        paint.bold(&backup.to_string())
    )
}

/// The text of `raftsman backup verify`.
pub(crate) fn verified(verified: &[Verified], paint: Paint) -> String {
    if verified.is_empty() {
        return "There is no backup.\n".to_owned();
    }
    let mut out = String::new();
    for one in verified {
        let verdict = match one.verdict {
            "snapshot" => paint.green("valid: all of it was read, and it is what etcd sent"),
            "object" => format!(
                "{}; it is encrypted, and its contents were not checked: give the key with `--key`",
                paint.green("valid: all of it was read, and it is what was written")
            ),
            _ => paint.red(&format!("damaged: {}", one.problem.as_deref().unwrap_or_default())),
        };
        out.push_str(&format!("{}  {verdict}\n", one.name));
    }
    out
}

/// The text of `raftsman backup prune`.
pub(crate) fn pruned(pruned: &Pruned, paint: Paint) -> String {
    let Pruned { cluster, place, shown, fulls, changes, locked, ignored } = pruned;
    let mut out = format!("{}   {place}\n", paint.bold(&format!("etcd {cluster}")));
    let mut part = |what: &str, names: &[FullName]| {
        for name in names {
            out.push_str(&format!("  {name}  {what}\n"));
        }
    };
    part(if *shown { "would be removed" } else { "removed" }, fulls);
    part(if *shown { "its changes would be removed" } else { "its changes were removed" }, changes);
    part("not removed: the store has locked it", locked);
    part("ignored: it cannot be verified, or is from the future; see `raftsman backup list`", ignored);
    if fulls.is_empty() && changes.is_empty() {
        out.push_str("  nothing to remove\n");
    }
    out
}

/// The text of `raftsman backup key`.
pub(crate) fn keys(keys: &[VerifyingKey]) -> String {
    let mut table = Table::indented(0);
    for key in keys {
        table.row([format!("{}/{}", key.fleet, key.cluster), key.key.clone()]);
    }
    table.render()
}

fn size(many: u64) -> String {
    bytes(i64::try_from(many).unwrap_or(i64::MAX))
}

fn how(coding: Coding) -> &'static str {
    match (coding.zstd, coding.age) {
        (false, false) => "plain",
        (true, false) => "zstd",
        (false, true) => "age",
        (true, true) => "zstd, age",
    }
}
