//! What every place for the state must do → shown of the directory, and of one in memory that has no paths.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::directory::Directory;
use super::*;

/// A state in memory: revisions are numbers, and a lease is lost when the test says so.
#[derive(Debug, Clone, Default)]
struct Memory(Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
struct Contents {
    values: BTreeMap<Key, (u64, Vec<u8>)>,
    journal: Vec<Entry>,
    /// The holder of each lock, by its generation.
    held: BTreeMap<Option<String>, (u64, LockInfo)>,
    count: u64,
}

#[derive(Debug)]
struct MemoryLease {
    state: Memory,
    scope: LockScope,
    generation: u64,
}

impl Memory {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap()
    }

    fn lose_leases(&self) {
        self.contents().held.clear();
    }
}

fn locks(scope: &LockScope) -> Vec<Option<String>> {
    match scope {
        LockScope::Fleet => vec![None],
        LockScope::Stacks(stacks) => stacks.iter().cloned().map(Some).collect(),
    }
}

#[async_trait]
impl State for Memory {
    async fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        let stored = |(revision, value): &(u64, Vec<u8>)| Stored {
            value: value.clone(),
            revision: Revision(revision.to_string()),
        };
        Ok(self.contents().values.get(key).map(stored))
    }

    async fn list(&self, kind: &KeyKind) -> Result<Vec<Key>, StoreError> {
        let of_kind = |key: &&Key| match (key, kind) {
            (Key::Certificate(_), KeyKind::Certificates)
            | (Key::Secret(_), KeyKind::Secrets)
            | (Key::Ledger(_), KeyKind::Ledgers) => true,
            (Key::History(cluster, _), KeyKind::History(wanted)) => cluster == wanted,
            _ => false,
        };
        Ok(self.contents().values.keys().filter(of_kind).cloned().collect())
    }

    async fn journal(&self, _: &Filter) -> Result<Vec<Entry>, StoreError> {
        Ok(self.contents().journal.clone())
    }

    async fn lease(&self, scope: &LockScope, info: &LockInfo) -> Result<Box<dyn Lease>, StoreError> {
        let mut contents = self.contents();
        let excludes = |held: &Option<String>| match scope {
            LockScope::Fleet => true,
            LockScope::Stacks(_) => held.is_none() || locks(scope).contains(held),
        };
        if let Some((stack, (_, holder))) = contents.held.iter().find(|(held, _)| excludes(held)) {
            return Err(StoreError::Locked { stack: stack.clone(), holder: Some(Box::new(holder.clone())) });
        }
        contents.count += 1;
        let generation = contents.count;
        contents.held.extend(locks(scope).into_iter().map(|lock| (lock, (generation, info.clone()))));
        Ok(Box::new(MemoryLease { state: self.clone(), scope: scope.clone(), generation }))
    }

    async fn holder(&self, scope: &LockScope) -> Result<Option<Holder>, StoreError> {
        let held = |(stack, (_, info)): (&Option<String>, &(u64, LockInfo))| {
            let asked = *scope == LockScope::Fleet || stack.is_none() || locks(scope).contains(stack);
            asked.then(|| Holder { stack: stack.clone(), info: info.clone() })
        };
        Ok(self.contents().held.iter().find_map(held))
    }

    fn place(&self, key: &Key) -> Place {
        key.into()
    }
}

impl MemoryLease {
    fn contents(&self) -> Result<MutexGuard<'_, Contents>, StoreError> {
        let contents = self.state.contents();
        let holds = |lock| contents.held.get(&lock).is_some_and(|(generation, _)| *generation == self.generation);
        match locks(&self.scope).into_iter().all(holds) {
            true => Ok(contents),
            false => Err(StoreError::LockLost { path: PathBuf::from("memory") }),
        }
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        self.state.contents().held.retain(|_, (generation, _)| *generation != self.generation);
    }
}

#[async_trait]
impl Lease for MemoryLease {
    fn generation(&self) -> u64 {
        self.generation
    }

    async fn put(&self, key: &Key, value: &[u8], before: &Before) -> Result<Revision, StoreError> {
        let mut contents = self.contents()?;
        let there = contents.values.get(key).map(|(revision, _)| Revision(revision.to_string()));
        let expected = match before {
            Before::Any => true,
            Before::Nothing => there.is_none(),
            Before::Exactly(revision) => there.as_ref() == Some(revision),
        };
        if !expected {
            return Err(StoreError::Changed { key: key.to_string() });
        }
        contents.count += 1;
        let revision = contents.count;
        contents.values.insert(key.clone(), (revision, value.to_vec()));
        Ok(Revision(revision.to_string()))
    }

    async fn delete(&self, key: &Key) -> Result<bool, StoreError> {
        Ok(self.contents()?.values.remove(key).is_some())
    }

    async fn append(&self, entries: &[Entry]) -> Result<(), StoreError> {
        self.contents()?.journal.extend(entries.iter().cloned());
        Ok(())
    }

    async fn clear(&self) -> Result<Removal, StoreError> {
        let mut contents = self.contents()?;
        (contents.values, contents.journal) = (BTreeMap::new(), Vec::new());
        Ok(Removal::default())
    }
}

/// One implementation, and how its leases are lost there.
struct Implementation {
    store: Store,
    lose: Box<dyn Fn() + Send + Sync>,
    _scratch: TempDir,
}

/// Each place, with the state of a new fleet.
async fn implementations() -> Vec<Implementation> {
    let mut implementations = Vec::new();
    for in_memory in [false, true] {
        let scratch = TempDir::new().unwrap();
        let dir = scratch.path().join("state");
        let made = Store::create(&dir, "lab", None, Protection::IdentityFile, Timestamp::UNIX_EPOCH).await.unwrap();
        let (store, lose): (Store, Box<dyn Fn() + Send + Sync>) = match in_memory {
            false => {
                // The directory was removed, or put in the place of another one.
                let lock = dir.join("lock");
                (made, Box::new(move || std::fs::remove_file(&lock).unwrap()))
            }
            true => {
                let memory = Memory::default();
                for key in [Key::Fleet, Key::Recipient] {
                    let value = made.state.get(&key).await.unwrap().unwrap().value;
                    memory.contents().values.insert(key, (0, value));
                }
                let state: Arc<dyn State> = Arc::new(memory.clone());
                (Store { state, ..made }, Box::new(move || memory.lose_leases()))
            }
        };
        implementations.push(Implementation { store, lose, _scratch: scratch });
    }
    implementations
}

fn info(verb: &str) -> LockInfo {
    LockInfo::new(verb, "alice", "desk")
}

fn stack(name: &str) -> LockScope {
    LockScope::Stacks([name.to_owned()].into())
}

fn name(text: &str) -> KeyName {
    KeyName::parse(text).unwrap()
}

fn entry(kind: &str) -> Entry {
    let (at, kind, event) = (Timestamp::UNIX_EPOCH, kind.to_owned(), json!({}));
    Entry { at, who: "alice@desk".into(), generation: 1, run: "r".into(), cluster: None, kind, event }
}

#[test]
fn keys_are_the_names_that_etcd_would_have() {
    let keys = [
        Key::Fleet,
        Key::Recipient,
        Key::Certificate(name("fleet")),
        Key::Secret(name("main-peers")),
        Key::Ledger(name("main")),
        Key::History(name("main"), 7),
    ];
    let text: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let expected = ["fleet", "recipient", "certificates/fleet", "secrets/main-peers", "clusters/main/ledger"];
    assert_eq!(text[..5], expected);
    assert_eq!(text[5], "history/main/000000000007");
    for bad in ["", ".", "..", "a/b", "../x", "A", "a b"] {
        assert!(KeyName::parse(bad).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_value_is_replaced_only_by_a_writer_that_knows_it() {
    for Implementation { store, .. } in implementations().await {
        let (lock, key) = (store.lock(info("apply")).await.unwrap(), Key::Certificate(name("a")));
        let put = async |value: &str, before: &Before| lock.put(&store.dir, &key, value.as_bytes(), before).await;
        let refused = |outcome: Result<Revision, StoreError>| match outcome {
            Err(StoreError::Changed { key }) => assert_eq!(key, "certificates/a"),
            other => panic!("{other:?}"),
        };
        let first = put("1", &Before::Nothing).await.unwrap();
        refused(put("2", &Before::Nothing).await);
        let second = put("2", &Before::Exactly(first.clone())).await.unwrap();
        refused(put("3", &Before::Exactly(first)).await);
        assert_eq!(
            store.state.get(&key).await.unwrap(),
            Some(Stored { value: b"2".to_vec(), revision: second.clone() })
        );
        assert!(lock.delete(&store.dir, &key).await.unwrap());
        assert!(!lock.delete(&store.dir, &key).await.unwrap());
        refused(put("3", &Before::Exactly(second)).await);
        put("3", &Before::Any).await.unwrap();
        assert_eq!(store.certificates().await.unwrap(), ["a"]);
    }
}

#[tokio::test]
async fn a_stack_has_one_writer_and_the_fleet_excludes_all() {
    for Implementation { store, .. } in implementations().await {
        let one = store.lock_for(&stack("one"), info("apply")).await.unwrap();
        let two = store.lock_for(&stack("two"), info("backup")).await.unwrap();
        assert!(two.generation() > one.generation());
        for scope in [stack("one"), LockScope::Fleet] {
            let refused = store.lock_for(&scope, info("apply")).await.unwrap_err();
            assert!(matches!(&refused, StoreError::Locked { stack: Some(stack), .. } if stack == "one"), "{refused}");
        }
        assert_eq!(store.stack_holder("two").await.unwrap().map(|holder| holder.info.verb), Some("backup".to_owned()));
        let refused = store.put_cluster(&one, "two", &Version::none(), &json!({})).await.unwrap_err();
        assert!(matches!(refused, StoreError::NotLocked { .. }), "{refused}");
        drop((one, two));
        assert_eq!(store.lock_holder().await.unwrap(), None);
        let fleet = store.lock(info("destroy")).await.unwrap();
        let refused = store.lock_for(&stack("one"), info("apply")).await.unwrap_err();
        assert!(matches!(refused, StoreError::Locked { stack: None, .. }), "{refused}");
        fleet.clear(&store.dir).await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_that_was_lost_writes_nothing() {
    for Implementation { store, lose, .. } in implementations().await {
        let lock = store.lock(info("apply")).await.unwrap();
        let version = store.put_cluster(&lock, "main", &Version::none(), &json!({"n": 1})).await.unwrap();
        store.put_certificate(&lock, "a", "1").await.unwrap();
        store.append(&lock, &[entry("first")]).await.unwrap();
        lose();
        // Another process holds it now, and writes.
        let other = store.lock_for(&stack("main"), info("apply")).await.unwrap();
        assert!(other.generation() > lock.generation());
        let lost = |outcome: Result<(), StoreError>| match outcome {
            Err(StoreError::LockLost { .. }) => {}
            other => panic!("{other:?}"),
        };
        lost(store.put_cluster(&lock, "main", &version, &json!({"n": 2})).await.map(drop));
        lost(store.replace_cluster(&lock, "main", &json!({"n": 2})).await.map(drop));
        lost(store.delete_cluster(&lock, "main").await.map(drop));
        lost(store.put_certificate(&lock, "a", "2").await);
        lost(store.append(&lock, &[entry("second")]).await);
        lost(lock.clear(&store.dir).await.map(drop));
        assert_eq!(store.history("main").await.unwrap(), [(1, None)]);
        assert_eq!(store.get_certificate("a").await.unwrap().as_deref(), Some("1"));
        assert_eq!(store.journal(&Filter::default()).await.unwrap(), [entry("first")]);
        let newer = store.put_cluster(&other, "main", &version, &json!({"n": 3})).await.unwrap();
        lost(store.put_cluster(&lock, "main", &newer, &json!({"n": 4})).await.map(drop));
        assert_eq!(store.get_cluster::<Value>("main").await.unwrap().unwrap().value, json!({"n": 3}));
    }
}

#[tokio::test]
async fn ledgers_are_compared_and_their_history_is_bounded() {
    for Implementation { store, .. } in implementations().await {
        let lock = store.lock_for(&stack("main"), info("apply")).await.unwrap();
        let mut version = Version::none();
        for number in 0..70 {
            let stale = version.clone();
            version = store.put_cluster(&lock, "main", &stale, &json!({ "number": number })).await.unwrap();
            let refused = store.put_cluster(&lock, "main", &stale, &json!({})).await.unwrap_err();
            assert!(matches!(refused, StoreError::LedgerChanged { newest, .. } if newest == number + 1), "{refused}");
        }
        assert_eq!(store.history("main").await.unwrap().len(), 64);
        let newest = store.newest_in_history::<Value>("main").await.unwrap().unwrap();
        assert_eq!((newest.version.number(), newest.value), (70, json!({ "number": 69 })));
        assert_eq!(store.clusters().await.unwrap(), ["main"]);
        assert!(store.delete_cluster(&lock, "main").await.unwrap());
        assert!(store.history("main").await.unwrap().is_empty() && store.clusters().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn secrets_are_sealed_before_they_are_stored() {
    for Implementation { store, .. } in implementations().await {
        let lock = store.lock_for(&stack("main"), info("apply")).await.unwrap();
        let secrets = store.unlock(IdentitySource::State(None)).await.unwrap();
        secrets.put(&lock, "token", &SecretString::from("plain text")).await.unwrap();
        let sealed = store.state.get(&Key::Secret(name("token"))).await.unwrap().unwrap().value;
        assert!(sealed.starts_with(b"age-encryption.org/"));
        assert!(!sealed.windows(10).any(|window| window == b"plain text"));
        // The first one stays.
        let kept = secrets.get_or_put(&lock, "token", SecretString::from("other")).await.unwrap();
        assert_eq!(kept.expose_secret(), "plain text");
        assert_eq!(secrets.names().await.unwrap(), ["token"]);
    }
}

/// A reader needs no lock, and never sees half of what a writer writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_beside_a_writer_sees_whole_ledgers_in_their_order() {
    const WRITES: u64 = 200;
    for Implementation { store, .. } in implementations().await {
        let (reader, runtime) = (store.clone(), Handle::current());
        let reading = std::thread::spawn(move || {
            let (mut last, mut seen) = (0, 0);
            while last < WRITES {
                let kept = runtime.block_on(reader.get_cluster::<Value>("main")).unwrap();
                let Some(Kept { value, version }) = kept else { continue };
                assert_eq!(value["number"], json!(version.number()));
                assert!(version.number() >= last);
                seen += u64::from(version.number() > last);
                last = version.number();
            }
            seen
        });
        let lock = store.lock_for(&stack("main"), info("apply")).await.unwrap();
        let mut version = Version::none();
        for number in 1..=WRITES {
            let ledger = json!({ "number": number, "filling": "x".repeat(10_000) });
            version = store.put_cluster(&lock, "main", &version, &ledger).await.unwrap();
        }
        assert!(reading.join().unwrap() > 0);
    }
}

#[tokio::test]
async fn what_is_not_there_is_nothing() {
    let scratch = TempDir::new().unwrap();
    let states: [Arc<dyn State>; 2] = [Arc::new(Directory::at(scratch.path())), Arc::new(Memory::default())];
    for state in states {
        assert_eq!(state.get(&Key::Ledger(name("main"))).await.unwrap(), None);
        for kind in [KeyKind::Certificates, KeyKind::Secrets, KeyKind::Ledgers, KeyKind::History(name("main"))] {
            assert!(state.list(&kind).await.unwrap().is_empty());
        }
        assert!(state.journal(&Filter::default()).await.unwrap().is_empty());
        assert_eq!(state.holder(&LockScope::Fleet).await.unwrap(), None);
    }
}
