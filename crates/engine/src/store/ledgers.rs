//! `clusters/` and `history/` → one ledger per cluster, each version the successor of the one before.
//!
//! A ledger is replaced by compare-and-swap: the writer names the version that it read, and a write against an older
//! version is rejected. Each version carries its number, its own digest and the digest of the one before, so that
//! damage is detected and the versions form a chain. The last versions are kept in `history/` as well.

use std::path::{Path, PathBuf};

use raftsman_api::hex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CLUSTERS, HISTORY, Lock, StoreError, files};

/// The number of versions in the history: more than an operation on a cluster of nine writes in a minute, a few MiB at
/// most.
const KEEP: usize = 64;
/// Version numbers in file names are padded to this width, so that names sort by number.
const DIGITS: usize = 12;

/// Which version of a ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Version {
    number: u64,
    digest: String,
}

impl Version {
    /// Before the first one.
    pub fn none() -> Self {
        Self::default()
    }

    /// The version of a ledger of an earlier format, which had none.
    fn unversioned() -> Self {
        Self { number: 0, digest: "unversioned".to_owned() }
    }

    /// The version of a ledger that was never written: no write can replace it.
    pub(crate) fn draft() -> Self {
        Self { number: 0, digest: "draft".to_owned() }
    }

    /// 0 before the first one.
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// A ledger as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept<T> {
    /// What it holds.
    pub value: T,
    /// Its version, which a writer has to name.
    pub version: Version,
}

#[derive(Debug, Serialize, Deserialize)]
struct Envelope {
    version: u64,
    /// The digest of the version before; empty for the first.
    previous: String,
    /// Over the version, the one before and the ledger.
    sha256: String,
    ledger: Value,
}

impl Envelope {
    fn seal(version: u64, previous: &str, ledger: Value) -> Self {
        let sha256 = digest(version, previous, &ledger);
        Self { version, previous: previous.to_owned(), sha256, ledger }
    }

    /// What is wrong with it; a version 0 was never written.
    fn fault(&self) -> Option<&'static str> {
        match () {
            () if self.version == 0 => Some("its version is 0"),
            () if digest(self.version, &self.previous, &self.ledger) != self.sha256 => {
                Some("its digest does not match its contents")
            }
            () => None,
        }
    }
}

fn digest(version: u64, previous: &str, ledger: &Value) -> String {
    hex::sha256(format!("{version}\n{previous}\n{ledger}").as_bytes())
}

pub(super) fn get<T: DeserializeOwned>(dir: &Path, format: u32, name: &str) -> Result<Option<Kept<T>>, StoreError> {
    let path = CLUSTERS.path(dir, name)?;
    let Some(bytes) = files::read(&path)? else { return Ok(None) };
    let damaged = |detail: String| StoreError::LedgerDamaged { cluster: name.to_owned(), file: path.clone(), detail };
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    let (ledger, version) = match serde_json::from_value::<Envelope>(value.clone()) {
        Ok(envelope) => {
            if let Some(fault) = envelope.fault() {
                return Err(damaged(fault.to_owned()));
            }
            (envelope.ledger, Version { number: envelope.version, digest: envelope.sha256 })
        }
        // An earlier format, until the first writer migrates it.
        Err(_) if format < 2 && value.is_object() => (value, Version::unversioned()),
        Err(error) => return Err(damaged(error.to_string())),
    };
    let value = serde_json::from_value(ledger).map_err(|error| damaged(error.to_string()))?;
    Ok(Some(Kept { value, version }))
}

pub(super) fn put<T: Serialize>(
    dir: &Path,
    lock: &Lock,
    name: &str,
    before: &Version,
    ledger: &T,
) -> Result<Version, StoreError> {
    compare(dir, lock, name, before)?;
    write(dir, name, before, ledger)
}

/// Whether this version is still the newest one, which it stays as long as the lock is held.
pub(super) fn compare(dir: &Path, lock: &Lock, name: &str, read: &Version) -> Result<(), StoreError> {
    lock.covers_stack(dir, name)?;
    // A ledger of an earlier format is migrated when the lock is taken.
    let newest = get::<Value>(dir, super::FORMAT, name)?.map(|kept| kept.version).unwrap_or_default();
    if newest == *read {
        return Ok(());
    }
    let (cluster, read, newest) = (name.to_owned(), read.number, newest.number);
    Err(StoreError::LedgerChanged { cluster, read, newest })
}

/// The history is written first: it is never behind the ledger, so a lost ledger can be repaired without a loss. It is
/// not synced: a power failure that loses it leaves the ledger.
fn write<T: Serialize>(dir: &Path, name: &str, before: &Version, ledger: &T) -> Result<Version, StoreError> {
    let path = CLUSTERS.path(dir, name)?;
    let encode = |source| StoreError::Encode { file: path.clone(), source };
    let value = serde_json::to_value(ledger).map_err(encode)?;
    let envelope = Envelope::seal(before.number + 1, &before.digest, value);
    let mut text = serde_json::to_vec_pretty(&envelope).map_err(encode)?;
    text.push(b'\n');
    let copy = history_path(dir, name, envelope.version)?;
    files::make_directory(&dir.join(HISTORY.directory))?;
    files::write_unsynced(&copy, &text, HISTORY.mode)?;
    files::write(&path, &text, CLUSTERS.mode)?;
    prune(dir, name)?;
    Ok(Version { number: envelope.version, digest: envelope.sha256 })
}

/// Writes a ledger in the place of one that is missing or damaged: its number exceeds all numbers in the history.
pub(super) fn replace<T: Serialize>(dir: &Path, lock: &Lock, name: &str, ledger: &T) -> Result<Version, StoreError> {
    lock.covers_stack(dir, name)?;
    let before = match get::<Value>(dir, super::FORMAT, name) {
        Ok(Some(kept)) => kept.version,
        Ok(None) | Err(StoreError::LedgerDamaged { .. }) => {
            newest::<Value>(dir, name)?.map(|kept| kept.version).unwrap_or_default()
        }
        Err(error) => return Err(error),
    };
    let last = numbers(dir, name)?.last().copied().unwrap_or(0);
    write(dir, name, &Version { number: before.number.max(last), ..before }, ledger)
}

pub(super) fn delete(dir: &Path, lock: &Lock, name: &str) -> Result<bool, StoreError> {
    lock.covers_stack(dir, name)?;
    for number in numbers(dir, name)? {
        files::remove_if_there(&history_path(dir, name, number)?)?;
    }
    files::remove_if_there(&CLUSTERS.path(dir, name)?)
}

/// Gives a ledger of an earlier format a version.
pub(super) fn migrate(dir: &Path, lock: &Lock, name: &str) -> Result<(), StoreError> {
    lock.covers_stack(dir, name)?;
    match get::<Value>(dir, 1, name)? {
        Some(kept) if kept.version == Version::unversioned() => {
            write(dir, name, &Version::none(), &kept.value).map(drop)
        }
        _ => Ok(()),
    }
}

/// The last version that was written. An older one is not returned: it would revert decisions that were recorded since.
pub(super) fn newest<T: DeserializeOwned>(dir: &Path, name: &str) -> Result<Option<Kept<T>>, StoreError> {
    let Some(number) = numbers(dir, name)?.pop() else { return Ok(None) };
    let Ok(envelope) = read_copy(dir, name, number)? else { return Ok(None) };
    let Ok(value) = serde_json::from_value(envelope.ledger) else { return Ok(None) };
    Ok(Some(Kept { value, version: Version { number, digest: envelope.sha256 } }))
}

pub(super) fn history(dir: &Path, name: &str) -> Result<Vec<(u64, Option<String>)>, StoreError> {
    numbers(dir, name)?.into_iter().map(|number| Ok((number, read_copy(dir, name, number)?.err()))).collect()
}

fn read_copy(dir: &Path, name: &str, number: u64) -> Result<Result<Envelope, String>, StoreError> {
    let Some(bytes) = files::read(&history_path(dir, name, number)?)? else { return Ok(Err("it is gone".to_owned())) };
    let envelope: Envelope = match serde_json::from_slice(&bytes) {
        Ok(envelope) => envelope,
        Err(error) => return Ok(Err(error.to_string())),
    };
    Ok(match envelope.fault() {
        Some(fault) => Err(fault.to_owned()),
        None if envelope.version != number => Err(format!("it holds version {}", envelope.version)),
        None => Ok(envelope),
    })
}

/// A name with a dot cannot be mistaken for another cluster's: clusters' names have none.
fn history_path(dir: &Path, name: &str, number: u64) -> Result<PathBuf, StoreError> {
    HISTORY.path(dir, &format!("{name}.{number:0DIGITS$}"))
}

fn numbers(dir: &Path, name: &str) -> Result<Vec<u64>, StoreError> {
    let number = |file: &String| file.strip_prefix(name)?.strip_prefix('.')?.parse().ok();
    let mut numbers: Vec<u64> = HISTORY.names(dir)?.iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn prune(dir: &Path, name: &str) -> Result<(), StoreError> {
    let numbers = numbers(dir, name)?;
    for number in numbers.iter().rev().skip(KEEP) {
        files::remove_unsynced(&history_path(dir, name, *number)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::{Protection, Store};
    use super::*;
    use crate::store::LockInfo;

    fn fresh() -> (tempfile::TempDir, Store, Lock) {
        let scratch = tempfile::TempDir::new().unwrap();
        let (dir, now) = (scratch.path().join("state"), jiff::Timestamp::UNIX_EPOCH);
        let store = Store::create(&dir, "lab", None, Protection::IdentityFile, now).unwrap();
        let lock = store.lock(LockInfo::new("apply", "alice", "desk")).unwrap();
        (scratch, store, lock)
    }

    fn write(store: &Store, lock: &Lock, count: usize) -> Version {
        let mut version = Version::none();
        for number in 0..count {
            version = store.put_cluster(lock, "main", &version, &json!({ "number": number })).unwrap();
        }
        version
    }

    #[test]
    fn a_stale_copy_replaces_nothing() {
        let (_scratch, store, lock) = fresh();
        let first = store.put_cluster(&lock, "main", &Version::none(), &json!({"a": 1})).unwrap();
        let second = store.put_cluster(&lock, "main", &first, &json!({"a": 2})).unwrap();
        for stale in [Version::none(), first, Version { number: 2, digest: "other".into() }] {
            let error = store.put_cluster(&lock, "main", &stale, &json!({"a": 3})).unwrap_err();
            assert!(matches!(error, StoreError::LedgerChanged { newest: 2, .. }), "{error}");
        }
        let kept: Kept<Value> = store.get_cluster("main").unwrap().unwrap();
        assert_eq!(kept, Kept { value: json!({"a": 2}), version: second });
    }

    #[test]
    fn the_lock_of_another_state_writes_nothing() {
        let ((_one, store, _lock), (_two, _, other)) = (fresh(), fresh());
        let error = store.put_cluster(&other, "main", &Version::none(), &json!({})).unwrap_err();
        assert!(matches!(error, StoreError::OtherLock { .. }), "{error}");
    }

    #[test]
    fn every_changed_byte_and_every_shorter_file_is_damage() {
        let (_scratch, store, lock) = fresh();
        store.put_cluster(&lock, "main", &Version::none(), &json!({"members": {"a": "b"}, "n": 7})).unwrap();
        let path = store.dir().join("clusters/main.json");
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            matches!(store.get_cluster::<Value>("main"), Err(StoreError::LedgerDamaged { .. }))
        };
        for length in 0..whole.len() - 1 {
            assert!(refused(&whole[..length]), "{length}");
        }
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] = if other[at] == b'x' { b'y' } else { b'x' };
            assert!(whole[at].is_ascii_whitespace() || refused(&other), "{at}");
        }
        for text in ["{}", "null", "[]", r#"{"members": {}}"#, ""] {
            assert!(refused(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn a_lost_or_damaged_ledger_comes_back_from_its_history() {
        let (_scratch, store, lock) = fresh();
        let last = write(&store, &lock, 100);
        let path = store.dir().join("clusters/main.json");
        assert_eq!(store.history("main").unwrap().len(), KEEP);
        for damage in [None, Some("{")] {
            match damage {
                None => fs::remove_file(&path).unwrap(),
                Some(text) => fs::write(&path, text).unwrap(),
            }
            let newest: Kept<Value> = store.newest_in_history("main").unwrap().unwrap();
            assert_eq!(newest.value, json!({"number": 99}));
            let version = store.replace_cluster(&lock, "main", &newest.value).unwrap();
            assert!(version.number() > last.number());
            assert_eq!(store.get_cluster::<Value>("main").unwrap().unwrap().value, newest.value);
        }
        // An older version does not replace the last one.
        let newest = store.history("main").unwrap().last().unwrap().0;
        fs::write(history_path(store.dir(), "main", newest).unwrap(), "{}").unwrap();
        assert!(store.newest_in_history::<Value>("main").unwrap().is_none());
        assert!(store.history("main").unwrap().last().unwrap().1.is_some());
    }

    #[test]
    fn a_writer_that_was_killed_between_the_copies_is_followed_by_another() {
        let (_scratch, store, lock) = fresh();
        let version = write(&store, &lock, 3);
        let path = store.dir().join("clusters/main.json");
        let before = fs::read(&path).unwrap();
        store.put_cluster(&lock, "main", &version, &json!("lost")).unwrap();
        fs::write(&path, before).unwrap();
        let kept: Kept<Value> = store.get_cluster("main").unwrap().unwrap();
        assert_eq!(kept.version, version);
        let next = store.put_cluster(&lock, "main", &kept.version, &json!("kept")).unwrap();
        assert_eq!(
            (next.number(), store.newest_in_history::<Value>("main").unwrap().unwrap().value),
            (4, json!("kept"))
        );
    }

    #[test]
    fn a_state_of_the_format_before_is_migrated_by_the_first_writer() {
        let (_scratch, store, lock) = fresh();
        let (dir, fleet) = (store.dir().to_owned(), store.dir().join("fleet.json"));
        drop(lock);
        let text = fs::read_to_string(&fleet).unwrap();
        fs::write(&fleet, text.replace("\"format\": 3", "\"format\": 1")).unwrap();
        fs::write(dir.join("clusters/main.json"), r#"{"members": {"a": "b"}}"#).unwrap();
        fs::remove_dir(dir.join("history")).unwrap();
        let read = || Store::open(&dir, "lab").unwrap().get_cluster::<Value>("main").unwrap().unwrap();
        assert_eq!(read().value, json!({"members": {"a": "b"}}));
        let store = Store::open(&dir, "lab").unwrap();
        let lock = store.lock(LockInfo::new("apply", "alice", "desk")).unwrap();
        assert_eq!((read().value, read().version.number()), (json!({"members": {"a": "b"}}), 1));
        assert!(fs::read_to_string(&fleet).unwrap().contains("\"format\": 3"));
        store.put_cluster(&lock, "main", &read().version, &json!({})).unwrap();
    }
}
