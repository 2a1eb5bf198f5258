//! The keys of a cluster → its ledger, each version the successor of the one before.
//!
//! A ledger is replaced by compare-and-swap: the writer names the version that it read, and a write against an older
//! version is rejected. Each version carries its number, its own digest and the digest of the one before, so that
//! damage is detected and the versions form a chain. The last versions are kept in the history as well.

use std::path::Path;

use raftsman_api::hex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::state::{Before, Key, KeyKind, KeyName, Place, Revision, State};
use super::{FORMAT, Lock, Store, StoreError};

/// The number of versions in the history: more than an operation on a cluster of nine writes in a minute, a few MiB at
/// most.
const KEEP: usize = 64;

/// Which version of a ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Version {
    number: u64,
    digest: String,
    /// As which value it is stored; nothing where it is stored nowhere.
    stored: Option<Revision>,
}

impl Version {
    /// Before the first one.
    pub fn none() -> Self {
        Self::default()
    }

    /// The version of a ledger of an earlier format, which had none.
    fn unversioned() -> Self {
        Self { digest: "unversioned".to_owned(), ..Self::none() }
    }

    /// The version of a ledger that was never written: no write can replace it.
    pub(crate) fn draft() -> Self {
        Self { digest: "draft".to_owned(), ..Self::none() }
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

    fn text(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
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

pub(super) async fn get<T: DeserializeOwned>(
    state: &dyn State,
    format: u32,
    name: &str,
) -> Result<Option<Kept<T>>, StoreError> {
    let key = key(name)?;
    let Some(stored) = state.get(&key).await? else { return Ok(None) };
    let damaged = |detail: String| damaged(name, state.place(&key), detail);
    let (ledger, version) = match read(&stored.value).map_err(damaged)? {
        Text::Sealed(envelope) => {
            let version = Version { number: envelope.version, digest: envelope.sha256, stored: Some(stored.revision) };
            (envelope.ledger, version)
        }
        // An earlier format, until the first writer migrates it.
        Text::Unversioned(value, _) if format < 2 => (value, Version::unversioned()),
        Text::Unversioned(_, error) => return Err(damaged(error)),
    };
    let value = serde_json::from_value(ledger).map_err(|error| damaged(error.to_string()))?;
    Ok(Some(Kept { value, version }))
}

fn key(name: &str) -> Result<Key, StoreError> {
    Ok(Key::Ledger(KeyName::parse(name)?))
}

fn damaged(name: &str, place: Place, detail: String) -> StoreError {
    StoreError::LedgerDamaged { cluster: name.to_owned(), place, detail }
}

/// A ledger as it is stored.
enum Text {
    Sealed(Envelope),
    /// Without a version, and why it cannot be read as one with a version.
    Unversioned(Value, String),
}

fn read(bytes: &[u8]) -> Result<Text, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match serde_json::from_value::<Envelope>(value.clone()) {
        Ok(envelope) => match envelope.fault() {
            Some(fault) => Err(fault.to_owned()),
            None => Ok(Text::Sealed(envelope)),
        },
        Err(error) if value.is_object() => Ok(Text::Unversioned(value, error.to_string())),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) async fn put<T: Serialize>(
    store: &Store,
    lock: &Lock,
    name: &str,
    before: &Version,
    ledger: &T,
) -> Result<Version, StoreError> {
    // Before the history is written, which has no comparison of its own.
    compare(store, lock, name, before).await?;
    let stored = before.stored.clone().map_or(Before::Nothing, Before::Exactly);
    match write(store, lock, name, before, &stored, ledger).await {
        Err(StoreError::Changed { .. }) => Err(changed(store, name, before).await?),
        written => written,
    }
}

/// Whether this version is still the newest one, which it stays as long as the lock is held.
pub(super) async fn compare(store: &Store, lock: &Lock, name: &str, read: &Version) -> Result<(), StoreError> {
    let key = key(name)?;
    lock.covers_key(&store.dir, &key)?;
    // A draft and a ledger of an earlier format, which is migrated when the lock is taken, have been stored nowhere.
    let absent = *read == Version::none();
    match store.state.get(&key).await? {
        None if absent => Ok(()),
        Some(stored) if read.stored.as_ref() == Some(&stored.revision) => Ok(()),
        _ => Err(changed(store, name, read).await?),
    }
}

/// What is wrong with a ledger that is not the one that was read: it is another one, or damaged.
async fn changed(store: &Store, name: &str, read: &Version) -> Result<StoreError, StoreError> {
    let newest = get::<Value>(&*store.state, FORMAT, name).await?.map_or(0, |kept| kept.version.number);
    Ok(StoreError::LedgerChanged { cluster: name.to_owned(), read: read.number, newest })
}

/// The history is written first: it is never behind the ledger, so a lost ledger can be repaired without a loss.
async fn write<T: Serialize>(
    store: &Store,
    lock: &Lock,
    name: &str,
    version: &Version,
    before: &Before,
    ledger: &T,
) -> Result<Version, StoreError> {
    let (dir, key, cluster) = (&store.dir, key(name)?, KeyName::parse(name)?);
    let encode = |source| StoreError::Encode { place: store.state.place(&key), source };
    let value = serde_json::to_value(ledger).map_err(encode)?;
    let envelope = Envelope::seal(version.number + 1, &version.digest, value);
    let text = envelope.text().map_err(encode)?;
    lock.put(dir, &Key::History(cluster.clone(), envelope.version), &text, &Before::Any).await?;
    let stored = Some(lock.put(dir, &key, &text, before).await?);
    for number in numbers(&*store.state, name).await?.iter().rev().skip(KEEP) {
        lock.delete(dir, &Key::History(cluster.clone(), *number)).await?;
    }
    Ok(Version { number: envelope.version, digest: envelope.sha256, stored })
}

/// Writes a ledger in the place of one that is missing or damaged: its number exceeds all numbers in the history.
pub(super) async fn replace<T: Serialize>(
    store: &Store,
    lock: &Lock,
    name: &str,
    ledger: &T,
) -> Result<Version, StoreError> {
    lock.covers_key(&store.dir, &key(name)?)?;
    let state = &*store.state;
    let before = match get::<Value>(state, FORMAT, name).await {
        Ok(Some(kept)) => kept.version,
        Ok(None) | Err(StoreError::LedgerDamaged { .. }) => {
            newest::<Value>(state, name).await?.map(|kept| kept.version).unwrap_or_default()
        }
        Err(error) => return Err(error),
    };
    let last = numbers(state, name).await?.last().copied().unwrap_or(0);
    let before = Version { number: before.number.max(last), ..before };
    write(store, lock, name, &before, &Before::Any, ledger).await
}

pub(super) async fn delete(store: &Store, lock: &Lock, name: &str) -> Result<bool, StoreError> {
    let (key, cluster) = (key(name)?, KeyName::parse(name)?);
    for number in numbers(&*store.state, name).await? {
        lock.delete(&store.dir, &Key::History(cluster.clone(), number)).await?;
    }
    lock.delete(&store.dir, &key).await
}

/// A ledger of an earlier format with a version, its first: the number and the text. Nothing where it has one already.
pub(super) fn with_version(cluster: &KeyName, file: &Path, bytes: &[u8]) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
    match read(bytes).map_err(|detail| damaged(cluster.as_str(), file.into(), detail))? {
        Text::Sealed(_) => Ok(None),
        Text::Unversioned(value, _) => {
            let envelope = Envelope::seal(1, "", value);
            let encode = |source| StoreError::Encode { place: file.into(), source };
            Ok(Some((envelope.version, envelope.text().map_err(encode)?)))
        }
    }
}

/// The last version that was written. An older one is not returned: it would revert decisions that were recorded since.
pub(super) async fn newest<T: DeserializeOwned>(state: &dyn State, name: &str) -> Result<Option<Kept<T>>, StoreError> {
    let Some(number) = numbers(state, name).await?.pop() else { return Ok(None) };
    let Ok(envelope) = read_copy(state, name, number).await? else { return Ok(None) };
    let Ok(value) = serde_json::from_value(envelope.ledger) else { return Ok(None) };
    Ok(Some(Kept { value, version: Version { number, digest: envelope.sha256, stored: None } }))
}

pub(super) async fn history(state: &dyn State, name: &str) -> Result<Vec<(u64, Option<String>)>, StoreError> {
    let mut versions = Vec::new();
    for number in numbers(state, name).await? {
        versions.push((number, read_copy(state, name, number).await?.err()));
    }
    Ok(versions)
}

async fn read_copy(state: &dyn State, name: &str, number: u64) -> Result<Result<Envelope, String>, StoreError> {
    let Some(stored) = state.get(&Key::History(KeyName::parse(name)?, number)).await? else {
        return Ok(Err("it is gone".to_owned()));
    };
    let envelope: Envelope = match serde_json::from_slice(&stored.value) {
        Ok(envelope) => envelope,
        Err(error) => return Ok(Err(error.to_string())),
    };
    Ok(match envelope.fault() {
        Some(fault) => Err(fault.to_owned()),
        None if envelope.version != number => Err(format!("it holds version {}", envelope.version)),
        None => Ok(envelope),
    })
}

/// The numbers of the kept versions, in order.
pub(super) async fn numbers(state: &dyn State, name: &str) -> Result<Vec<u64>, StoreError> {
    let number = |key: Key| match key {
        Key::History(_, number) => Some(number),
        Key::Fleet | Key::Recipient | Key::Certificate(_) | Key::Secret(_) | Key::Ledger(_) => None,
    };
    let keys = state.list(&KeyKind::History(KeyName::parse(name)?)).await?;
    let mut numbers: Vec<u64> = keys.into_iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::{Protection, Store};
    use super::*;
    use crate::store::LockInfo;

    async fn fresh() -> (tempfile::TempDir, Store, Lock) {
        let scratch = tempfile::TempDir::new().unwrap();
        let (dir, now) = (scratch.path().join("state"), jiff::Timestamp::UNIX_EPOCH);
        let store = Store::create(&dir, "lab", None, Protection::IdentityFile, now).await.unwrap();
        let lock = store.lock(LockInfo::new("apply", "alice", "desk")).await.unwrap();
        (scratch, store, lock)
    }

    async fn write(store: &Store, lock: &Lock, count: usize) -> Version {
        let mut version = Version::none();
        for number in 0..count {
            version = store.put_cluster(lock, "main", &version, &json!({ "number": number })).await.unwrap();
        }
        version
    }

    #[tokio::test]
    async fn a_stale_copy_replaces_nothing() {
        let (_scratch, store, lock) = fresh().await;
        let first = store.put_cluster(&lock, "main", &Version::none(), &json!({"a": 1})).await.unwrap();
        let second = store.put_cluster(&lock, "main", &first, &json!({"a": 2})).await.unwrap();
        for stale in [Version::none(), first, Version { digest: "other".into(), stored: None, ..second.clone() }] {
            let error = store.put_cluster(&lock, "main", &stale, &json!({"a": 3})).await.unwrap_err();
            assert!(matches!(error, StoreError::LedgerChanged { newest: 2, .. }), "{error}");
        }
        let kept: Kept<Value> = store.get_cluster("main").await.unwrap().unwrap();
        assert_eq!(kept, Kept { value: json!({"a": 2}), version: second });
    }

    #[tokio::test]
    async fn the_lock_of_another_state_writes_nothing() {
        let ((_one, store, _lock), (_two, _, other)) = (fresh().await, fresh().await);
        let error = store.put_cluster(&other, "main", &Version::none(), &json!({})).await.unwrap_err();
        assert!(matches!(error, StoreError::OtherLock { .. }), "{error}");
    }

    #[tokio::test]
    async fn every_changed_byte_and_every_shorter_file_is_damage() {
        let (_scratch, store, lock) = fresh().await;
        store.put_cluster(&lock, "main", &Version::none(), &json!({"members": {"a": "b"}, "n": 7})).await.unwrap();
        let path = store.dir().join("clusters/main.json");
        let whole = fs::read(&path).unwrap();
        let refused = async |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            matches!(store.get_cluster::<Value>("main").await, Err(StoreError::LedgerDamaged { .. }))
        };
        for length in 0..whole.len() - 1 {
            assert!(refused(&whole[..length]).await, "{length}");
        }
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] = if other[at] == b'x' { b'y' } else { b'x' };
            assert!(whole[at].is_ascii_whitespace() || refused(&other).await, "{at}");
        }
        for text in ["{}", "null", "[]", r#"{"members": {}}"#, ""] {
            assert!(refused(text.as_bytes()).await, "{text}");
        }
    }

    #[tokio::test]
    async fn a_lost_or_damaged_ledger_comes_back_from_its_history() {
        let (_scratch, store, lock) = fresh().await;
        let last = write(&store, &lock, 100).await;
        let path = store.dir().join("clusters/main.json");
        assert_eq!(store.history("main").await.unwrap().len(), KEEP);
        for damage in [None, Some("{")] {
            match damage {
                None => fs::remove_file(&path).unwrap(),
                Some(text) => fs::write(&path, text).unwrap(),
            }
            let newest: Kept<Value> = store.newest_in_history("main").await.unwrap().unwrap();
            assert_eq!(newest.value, json!({"number": 99}));
            let version = store.replace_cluster(&lock, "main", &newest.value).await.unwrap();
            assert!(version.number() > last.number());
            assert_eq!(store.get_cluster::<Value>("main").await.unwrap().unwrap().value, newest.value);
        }
        // An older version does not replace the last one.
        let newest = store.history("main").await.unwrap().last().unwrap().0;
        fs::write(store.dir().join(format!("history/main.{newest:012}.json")), "{}").unwrap();
        assert!(store.newest_in_history::<Value>("main").await.unwrap().is_none());
        assert!(store.history("main").await.unwrap().last().unwrap().1.is_some());
    }

    #[tokio::test]
    async fn a_writer_that_was_killed_between_the_copies_is_followed_by_another() {
        let (_scratch, store, lock) = fresh().await;
        let version = write(&store, &lock, 3).await;
        let path = store.dir().join("clusters/main.json");
        let before = fs::read(&path).unwrap();
        store.put_cluster(&lock, "main", &version, &json!("lost")).await.unwrap();
        fs::write(&path, before).unwrap();
        let kept: Kept<Value> = store.get_cluster("main").await.unwrap().unwrap();
        assert_eq!(kept.version, version);
        let next = store.put_cluster(&lock, "main", &kept.version, &json!("kept")).await.unwrap();
        assert_eq!(
            (next.number(), store.newest_in_history::<Value>("main").await.unwrap().unwrap().value),
            (4, json!("kept"))
        );
    }

    #[tokio::test]
    async fn a_state_of_the_format_before_is_migrated_by_the_first_writer() {
        let (_scratch, store, lock) = fresh().await;
        let (dir, fleet) = (store.dir().to_owned(), store.dir().join("fleet.json"));
        drop(lock);
        let text = fs::read_to_string(&fleet).unwrap();
        fs::write(&fleet, text.replace("\"format\": 3", "\"format\": 1")).unwrap();
        fs::write(dir.join("clusters/main.json"), r#"{"members": {"a": "b"}}"#).unwrap();
        fs::remove_dir(dir.join("history")).unwrap();
        let read = async || {
            let store = Store::open(&dir, "lab").await.unwrap();
            store.get_cluster::<Value>("main").await.unwrap().unwrap()
        };
        assert_eq!(read().await.value, json!({"members": {"a": "b"}}));
        let store = Store::open(&dir, "lab").await.unwrap();
        let lock = store.lock(LockInfo::new("apply", "alice", "desk")).await.unwrap();
        assert_eq!((read().await.value, read().await.version.number()), (json!({"members": {"a": "b"}}), 1));
        assert!(fs::read_to_string(&fleet).unwrap().contains("\"format\": 3"));
        store.put_cluster(&lock, "main", &read().await.version, &json!({})).await.unwrap();
    }
}
