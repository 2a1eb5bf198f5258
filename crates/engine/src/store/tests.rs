//! A directory, killed and concurrent processes, canaries → an intact state, or an error that says what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use std::time::Instant;

use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::directory::{CERTIFICATES, CLUSTERS, FILES, FLEET, GENERATION, JOURNAL, LOCK, RECIPIENT, SECRETS, SHELVES};
use super::*;

const CANARY: &str = "canary-3f1c9a-do-not-leak";

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

fn fresh() -> (TempDir, PathBuf) {
    let scratch = TempDir::new().unwrap();
    let dir = scratch.path().join("deep/.raftsman");
    (scratch, dir)
}

async fn create(dir: &Path) -> Result<Store, StoreError> {
    Store::create(dir, "lab", Some("127.0.42.0/24"), Protection::IdentityFile, now()).await
}

fn info(verb: &str) -> LockInfo {
    LockInfo { verb: verb.into(), user: "alice".into(), host: "desk".into(), pid: 4711, since: now() }
}

fn entry(number: u64, cluster: Option<&str>) -> Entry {
    Entry {
        at: now(),
        who: "alice@desk".into(),
        generation: number,
        run: "r1".into(),
        cluster: cluster.map(str::to_owned),
        kind: "started".into(),
        event: json!({"step": format!("step {number}")}),
    }
}

fn secret(text: &str) -> SecretString {
    SecretString::from(text)
}

fn every_file(dir: &Path) -> BTreeMap<PathBuf, fs::Metadata> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::metadata(&path).unwrap();
        if metadata.is_dir() {
            found.extend(every_file(&path));
        }
        found.insert(path, metadata);
    }
    found
}

async fn filled(dir: &Path) -> Store {
    let store = create(dir).await.unwrap();
    let lock = store.lock(info("apply")).await.unwrap();
    let secrets = store.unlock(IdentitySource::State(None)).await.unwrap();
    secrets.put(&lock, "main-peers-ca", &secret(CANARY)).await.unwrap();
    store.put_certificate(&lock, "main-peers", "-----BEGIN CERTIFICATE-----").await.unwrap();
    store.put_cluster(&lock, "main", &Version::none(), &json!({"members": 3})).await.unwrap();
    store.append(&lock, &[entry(1, Some("main"))]).await.unwrap();
    store
}

#[tokio::test]
async fn what_is_put_can_be_got_by_another_process() {
    let (_scratch, dir) = fresh();
    let made = filled(&dir).await;
    let store = Store::open(&dir, "lab").await.unwrap();
    assert_eq!(store.fleet(), made.fleet());
    assert_eq!(store.fleet().id.len(), 32);
    assert_eq!(store.fleet().network.as_deref(), Some("127.0.42.0/24"));
    assert_eq!(store.identity_place(), IdentityPlace::File);
    let secrets = store.unlock(IdentitySource::State(None)).await.unwrap();
    assert_eq!(secrets.get("main-peers-ca").await.unwrap().unwrap().expose_secret(), CANARY);
    assert_eq!(secrets.names().await.unwrap(), ["main-peers-ca"]);
    assert!(secrets.get("none").await.unwrap().is_none());
    assert_eq!(store.get_cluster::<Value>("main").await.unwrap().unwrap().value, json!({"members": 3}));
    assert_eq!(store.clusters().await.unwrap(), ["main"]);
    assert_eq!(store.get_certificate("main-peers").await.unwrap().unwrap(), "-----BEGIN CERTIFICATE-----");
    let lock = store.lock(info("apply")).await.unwrap();
    assert!(secrets.delete(&lock, "main-peers-ca").await.unwrap());
    assert!(!secrets.delete(&lock, "main-peers-ca").await.unwrap());
    assert!(store.delete_cluster(&lock, "main").await.unwrap());
    assert!(store.history("main").await.unwrap().is_empty());
    assert!(store.get_cluster::<Value>("main").await.unwrap().is_none());
}

#[tokio::test]
async fn only_the_owner_can_read_it() {
    let (_scratch, dir) = fresh();
    filled(&dir).await;
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    for (path, metadata) in every_file(&dir) {
        let public = path.parent().unwrap().ends_with("certificates");
        let wanted = if metadata.is_dir() {
            0o700
        } else if public {
            0o644
        } else {
            0o600
        };
        // A stricter umask may take more away.
        assert_eq!(metadata.permissions().mode() & 0o777 & !wanted, 0, "{}", path.display());
    }
}

/// Root can read and write every user's files, so the check goes by the owner.
#[tokio::test]
async fn a_state_of_another_user_is_refused() {
    const OTHER: u32 = 65534;
    if rustix::process::geteuid().as_raw() != 0 {
        return;
    }
    let give = |dir: &Path, user: u32| std::os::unix::fs::chown(dir, Some(user), None).unwrap();
    let refuses = |opened: Result<Store, StoreError>| match opened {
        Err(StoreError::OtherOwner { owner: OTHER, user: 0, .. }) => {}
        other => panic!("{other:?}"),
    };
    let (_scratch, dir) = fresh();
    filled(&dir).await;
    let before = every_file(&dir).len();
    give(&dir, OTHER);
    refuses(Store::open(&dir, "lab").await);
    refuses(create(&dir).await);
    assert_eq!(every_file(&dir).len(), before);
    give(&dir, 0);
    Store::open(&dir, "lab").await.unwrap();
    // Also a directory without a state: its owner could read the keys that are written there.
    let (_scratch, dir) = fresh();
    fs::create_dir_all(&dir).unwrap();
    give(&dir, OTHER);
    refuses(create(&dir).await);
    assert!(every_file(&dir).is_empty());
}

#[tokio::test]
async fn no_secret_is_in_any_file() {
    let (_scratch, dir) = fresh();
    let store = filled(&dir).await;
    let secrets = store.unlock(IdentitySource::State(None)).await.unwrap();
    assert!(!format!("{store:?} {secrets:?}").contains(CANARY));
    for (path, metadata) in every_file(&dir) {
        if metadata.is_file() {
            let bytes = fs::read(&path).unwrap();
            let found = bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
            assert!(!found, "{}", path.display());
        }
    }
}

#[tokio::test]
async fn a_kill_while_it_is_made_can_be_made_good() {
    let (_scratch, whole) = fresh();
    create(&whole).await.unwrap();
    // In the order in which they are written: a kill leaves some first ones of them.
    let order = [LOCK, SECRETS.directory, CERTIFICATES.directory, CLUSTERS.directory, IDENTITY, RECIPIENT, GENERATION];
    for count in 0..=order.len() {
        let (_scratch, dir) = fresh();
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
        for name in &order[..count] {
            if whole.join(name).is_dir() {
                fs::create_dir(dir.join(name)).unwrap();
            } else {
                fs::copy(whole.join(name), dir.join(name)).unwrap();
            }
        }
        fs::write(dir.join(".tmp-half"), "{\"form").unwrap();
        match Store::open(&dir, "lab").await.unwrap_err() {
            StoreError::Missing { .. } => assert_eq!(count, 0),
            StoreError::Unfinished { .. } => assert!(count > 0),
            other => panic!("{other}"),
        }
        let store = create(&dir).await.unwrap();
        let lock = store.lock(info("apply")).await.unwrap();
        store.unlock(IdentitySource::State(None)).await.unwrap().put(&lock, "a", &secret("b")).await.unwrap();
        assert!(!dir.join(".tmp-half").exists());
        drop(lock);
        assert!(matches!(create(&dir).await, Err(StoreError::Exists { .. })));
        Store::open(&dir, "lab").await.unwrap();
    }
}

#[tokio::test]
async fn a_kill_while_it_is_removed_can_be_made_good() {
    let (_scratch, whole) = fresh();
    filled(&whole).await;
    let all: Vec<_> = every_file(&whole).into_keys().filter(|path| path.is_file()).collect();
    let mut order: Vec<PathBuf> = Vec::new();
    for shelf in SHELVES {
        order.extend(all.iter().filter(|path| path.starts_with(whole.join(shelf.directory))).cloned());
    }
    assert!(order.len() > 2, "{order:?}");
    order.extend(FILES.iter().map(|name| whole.join(name)).filter(|path| path.exists()));
    for count in 0..order.len() {
        let (_scratch, dir) = fresh();
        filled(&dir).await;
        for path in &order[..count] {
            fs::remove_file(dir.join(path.strip_prefix(&whole).unwrap())).unwrap();
        }
        let removal = match Store::open(&dir, "lab").await {
            Ok(store) => {
                let lock = store.lock(info("destroy")).await.unwrap();
                // As every verb does before it does anything.
                let secrets = store.unlock(IdentitySource::State(None)).await.unwrap();
                for name in SHELVES[0].names(&dir).unwrap() {
                    let key = secrets.get(&format!("{name}-ca")).await.unwrap();
                    assert!(key.is_some(), "{count}: a certificate {name} without its key");
                }
                store.remove(lock).await.unwrap()
            }
            Err(StoreError::Unfinished { .. }) => Store::remove_unfinished(&dir).await.unwrap(),
            Err(other) => panic!("{count}: {other}"),
        };
        assert_eq!(removal, Removal::default());
        assert!(!dir.exists(), "{count}");
    }
}

#[tokio::test]
async fn what_raftsman_did_not_make_stays() {
    let (_scratch, dir) = fresh();
    let store = filled(&dir).await;
    fs::write(dir.join("notes"), "mine").unwrap();
    fs::write(dir.join("secrets/Mine.age"), "mine").unwrap();
    let lock = store.lock(info("destroy")).await.unwrap();
    let removal = store.remove(lock).await.unwrap();
    assert_eq!(removal.left, [dir.join("notes"), dir.join("secrets/Mine.age")]);
    assert_eq!(every_file(&dir).len(), 3);
    // The lock is released, and the place can be used again.
    create(&dir).await.unwrap();
}

#[tokio::test]
async fn unfinished_files_of_the_dead_are_swept() {
    let (_scratch, dir) = fresh();
    let store = filled(&dir).await;
    for place in [".tmp-1", "secrets/.tmp-2", "clusters/.tmp-3", "history/.tmp-5", "certificates/.tmp-4"] {
        fs::write(dir.join(place), "half").unwrap();
    }
    let secrets = store.unlock(IdentitySource::State(None)).await.unwrap();
    assert_eq!(secrets.names().await.unwrap(), ["main-peers-ca"]);
    let _lock = store.lock(info("apply")).await.unwrap();
    assert!(every_file(&dir).keys().all(|path| !path.display().to_string().contains(".tmp-")));
}

#[tokio::test]
async fn generations_only_grow() {
    let (_scratch, dir) = fresh();
    let store = create(&dir).await.unwrap();
    for expected in 1..=100 {
        assert_eq!(store.lock(info("apply")).await.unwrap().generation(), expected);
    }
    assert_eq!(fs::read_to_string(dir.join(GENERATION)).unwrap(), "100\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_at_a_time_in_one_process() {
    let (_scratch, dir) = fresh();
    let store = create(&dir).await.unwrap();
    assert_eq!(store.lock_holder().await.unwrap(), None);
    let lock = store.lock(info("apply")).await.unwrap();
    assert_eq!(store.lock_holder().await.unwrap(), Some(Holder { stack: None, info: info("apply") }));
    let other = store.clone();
    let refused = tokio::spawn(async move { other.lock(info("plan")).await.unwrap_err() }).await.unwrap();
    assert!(matches!(refused, StoreError::Locked { stack: None, holder: Some(holder) } if *holder == info("apply")));
    // Readers need none.
    Store::open(&dir, "lab").await.unwrap().clusters().await.unwrap();
    drop(lock);
    assert_eq!(store.lock(info("plan")).await.unwrap().generation(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_the_holder_takes_no_lock() {
    let (_scratch, dir) = fresh();
    let store = create(&dir).await.unwrap();
    // As `lock_holder` does, only slower.
    let asking = fs::File::open(dir.join(LOCK)).unwrap();
    asking.lock_shared().unwrap();
    thread::spawn(move || {
        thread::sleep(std::time::Duration::from_millis(15));
        drop(asking);
    });
    store.lock(info("apply")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_gets_different_generations() {
    let (_scratch, dir) = fresh();
    let store = create(&dir).await.unwrap();
    let crowd: Vec<_> = (0..8)
        .map(|_| {
            let (store, runtime) = (store.clone(), Handle::current());
            thread::spawn(move || {
                let mut got = Vec::new();
                while got.len() < 10 {
                    match runtime.block_on(store.lock(info("apply"))) {
                        Ok(lock) => got.push(lock.generation()),
                        Err(StoreError::Locked { .. }) => thread::yield_now(),
                        Err(other) => panic!("{other}"),
                    }
                }
                got
            })
        })
        .collect();
    let mut all: Vec<_> = crowd.into_iter().flat_map(|one| one.join().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=80).collect::<Vec<_>>());
}

/// The other process of the test below: this very test binary, told by a variable where the state is.
#[tokio::test]
async fn lock_holder_process() {
    let Some(dir) = std::env::var_os("RAFTSMAN_TEST_HOLD_LOCK") else { return };
    let store = Store::open(Path::new(&dir), "lab").await.unwrap();
    let _lock = store.lock(info("apply")).await.unwrap();
    fs::write(Path::new(&dir).join("held"), "").unwrap();
    thread::sleep(std::time::Duration::from_secs(60));
}

#[tokio::test]
async fn a_killed_process_leaves_no_lock() {
    let (_scratch, dir) = fresh();
    let store = create(&dir).await.unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::lock_holder_process"])
        .env("RAFTSMAN_TEST_HOLD_LOCK", &dir)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while !dir.join("held").exists() {
        assert!(begin.elapsed().as_secs() < 30, "the other process did not start");
        thread::sleep(std::time::Duration::from_millis(5));
    }
    let refused = store.lock(info("destroy")).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Locked { stack: None, holder: Some(holder) } if holder.verb == "apply"),
        "{refused}"
    );
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(store.lock_holder().await.unwrap(), None);
    assert_eq!(store.lock(info("destroy")).await.unwrap().generation(), 2);
}

#[tokio::test]
async fn a_torn_line_is_passed_over_and_repaired() {
    let (_scratch, dir) = fresh();
    let store = create(&dir).await.unwrap();
    let lock = store.lock(info("apply")).await.unwrap();
    let path = dir.join(JOURNAL);
    assert!(store.journal(&Filter::default()).await.unwrap().is_empty());
    store.append(&lock, &[entry(1, Some("main"))]).await.unwrap();
    let first = fs::read(&path).unwrap();
    store.append(&lock, &[entry(2, Some("main"))]).await.unwrap();
    let whole = fs::read(&path).unwrap();
    for length in first.len()..=whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let complete = length + 1 >= whole.len();
        let read = store.journal(&Filter::default()).await.unwrap();
        assert_eq!(read.len(), if complete { 2 } else { 1 }, "{length}");
        store.append(&lock, &[entry(3, None)]).await.unwrap();
        let numbers: Vec<_> = store.journal(&Filter::default()).await.unwrap().iter().map(|e| e.generation).collect();
        assert_eq!(numbers, if complete { vec![1, 2, 3] } else { vec![1, 3] }, "{length}");
    }
    // Longer than the block in which the end is searched.
    fs::write(&path, [first.as_slice(), &[b'x'; 20_000]].concat()).unwrap();
    store.append(&lock, &[entry(4, None)]).await.unwrap();
    assert_eq!(store.journal(&Filter::default()).await.unwrap(), [entry(1, Some("main")), entry(4, None)]);
}

#[tokio::test]
async fn the_journal_is_filtered() {
    let (_scratch, dir) = fresh();
    let store = create(&dir).await.unwrap();
    let lock = store.lock(info("apply")).await.unwrap();
    for number in 0..20 {
        store.append(&lock, &[entry(number, [None, Some("a"), Some("b")][number as usize % 3])]).await.unwrap();
    }
    let filter = Filter { cluster: Some("a".into()), last: Some(2) };
    let numbers: Vec<_> = store.journal(&filter).await.unwrap().iter().map(|entry| entry.generation).collect();
    assert_eq!(numbers, [16, 19]);
    assert_eq!(store.journal(&Filter { cluster: None, last: Some(0) }).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_writes_whole_lines() {
    let (_scratch, dir) = fresh();
    let store = create(&dir).await.unwrap();
    let lock = store.lock(info("apply")).await.unwrap();
    thread::scope(|scope| {
        for number in 0..8 {
            let (store, lock, runtime) = (&store, &lock, Handle::current());
            scope.spawn(move || {
                for _ in 0..20 {
                    runtime.block_on(store.append(lock, &[entry(number, None)])).unwrap();
                }
            });
        }
    });
    assert_eq!(store.journal(&Filter::default()).await.unwrap().len(), 160);
}

#[tokio::test]
async fn a_passphrase_is_asked_once_and_never_a_secret() {
    let (_scratch, dir) = fresh();
    let protection = Protection::Passphrase(secret("correct horse"));
    let store = Store::create(&dir, "lab", None, protection, now()).await.unwrap();
    assert_eq!(store.identity_place(), IdentityPlace::EncryptedFile);
    let unlock = async |text: Option<&str>| store.unlock(IdentitySource::State(text.map(secret))).await;
    assert!(matches!(unlock(None).await, Err(StoreError::PassphraseNeeded { .. })));
    assert!(matches!(unlock(Some("wrong")).await, Err(StoreError::WrongPassphrase { .. })));
    let begin = Instant::now();
    let secrets = unlock(Some("correct horse")).await.unwrap();
    let once = begin.elapsed();
    let lock = store.lock(info("apply")).await.unwrap();
    let begin = Instant::now();
    for number in 0..20 {
        secrets.put(&lock, &format!("s{number}"), &secret(CANARY)).await.unwrap();
        assert_eq!(secrets.get(&format!("s{number}")).await.unwrap().unwrap().expose_secret(), CANARY);
    }
    assert!(begin.elapsed() < once * 20, "40 times {once:?} would be too long: {:?}", begin.elapsed());
    // The user moves it elsewhere.
    let elsewhere = dir.parent().unwrap().join("key");
    fs::rename(dir.join(IDENTITY_ENCRYPTED), &elsewhere).unwrap();
    assert_eq!(store.identity_place(), IdentityPlace::Elsewhere);
    assert!(matches!(unlock(None).await, Err(StoreError::NoIdentity { .. })));
    let secrets = store.unlock(IdentitySource::File(elsewhere, Some(secret("correct horse")))).await.unwrap();
    assert_eq!(secrets.get("s0").await.unwrap().unwrap().expose_secret(), CANARY);
}

#[tokio::test]
async fn names_cannot_lead_elsewhere() {
    let (_scratch, dir) = fresh();
    let store = create(&dir).await.unwrap();
    let lock = store.lock(info("apply")).await.unwrap();
    let long = "x".repeat(129);
    for name in ["", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "A", "a b", "a\0b", "ä", long.as_str()] {
        assert!(
            matches!(store.put_cluster(&lock, name, &Version::none(), &1).await, Err(StoreError::Name { .. })),
            "{name}"
        );
        assert!(matches!(store.put_certificate(&lock, name, "").await, Err(StoreError::Name { .. })), "{name}");
    }
    store.put_cluster(&lock, "a.b-c_1", &Version::none(), &1).await.unwrap();
}

#[tokio::test]
async fn messages() {
    let (_scratch, dir) = fresh();
    let mut text = String::new();
    let mut show = |case: &str, error: StoreError| text += &format!("{case}:\n  {error}\n");
    show("missing", Store::open(&dir, "lab").await.unwrap_err());
    fs::create_dir_all(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    show("directory open to all", create(&dir).await.unwrap_err());
    fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
    fs::write(dir.join(RECIPIENT), "").unwrap();
    show("unfinished", Store::open(&dir, "lab").await.unwrap_err());
    let store = create(&dir).await.unwrap();
    show("exists", create(&dir).await.unwrap_err());
    show("other fleet", Store::open(&dir, "prod").await.unwrap_err());
    let lock = store.lock(info("apply")).await.unwrap();
    show("locked", store.lock(info("apply")).await.unwrap_err());
    show("locked by an unknown process", StoreError::Locked { stack: None, holder: None });
    let holder = Some(Box::new(info("apply")));
    show("locked stack", StoreError::Locked { stack: Some("main".into()), holder });
    show("lock lost", StoreError::LockLost { path: dir.join(LOCK) });
    show("value changed", StoreError::Changed { key: Key::Fleet.to_string() });
    show("not locked", StoreError::NotLocked { what: "cluster `main`".into() });
    show("name", store.put_cluster(&lock, "../x", &Version::none(), &1).await.unwrap_err());
    let first = store.put_cluster(&lock, "main", &Version::none(), &1).await.unwrap();
    show("ledger changed", store.put_cluster(&lock, "main", &Version::none(), &2).await.unwrap_err());
    assert_eq!(first.number(), 1);
    show("ledger missing", StoreError::LedgerMissing { cluster: "main".into(), trace: "machine `main-1`".into() });
    let other_user = StoreError::OtherOwner { dir: dir.clone(), owner: 1000, user: 0 };
    show("another user's", other_user);
    let link = dir.parent().unwrap().join("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    assert!(matches!(Store::open(&link, "lab").await, Err(StoreError::Link { .. })));
    show("a link", StoreError::Link { dir: dir.clone() });

    let identity = dir.join(IDENTITY);
    fs::set_permissions(&identity, Permissions::from_mode(0o644)).unwrap();
    show("identity open to all", Store::open(&dir, "lab").await.unwrap_err());
    fs::set_permissions(&identity, Permissions::from_mode(0o600)).unwrap();
    let secrets = store.unlock(IdentitySource::State(None)).await.unwrap();
    secrets.put(&lock, "token", &secret(CANARY)).await.unwrap();
    let mut bytes = fs::read(dir.join("secrets/token.age")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(dir.join("secrets/token.age"), &bytes).unwrap();
    show("secret altered", secrets.get("token").await.unwrap_err());
    fs::write(dir.join("secrets/token.age"), "").unwrap();
    show("secret emptied", secrets.get("token").await.unwrap_err());
    fs::write(dir.join("clusters/main.json"), "{").unwrap();
    show("cluster damaged", store.get_cluster::<Value>("main").await.unwrap_err());
    fs::write(dir.join(JOURNAL), "{}\n").unwrap();
    show("journal damaged", store.journal(&Filter::default()).await.unwrap_err());
    drop(lock);
    fs::write(dir.join(GENERATION), "many\n").unwrap();
    show("generation damaged", store.lock(info("apply")).await.unwrap_err());

    let file = async |name: &str| store.unlock(IdentitySource::File(dir.join(name), None)).await.unwrap_err();
    show("identity file missing", file("none").await);
    fs::set_permissions(dir.join(RECIPIENT), Permissions::from_mode(0o600)).unwrap();
    show("no identity in the file", file(RECIPIENT).await);
    let (_other_scratch, other) = fresh();
    create(&other).await.unwrap();
    fs::copy(other.join(IDENTITY), dir.join("other")).unwrap();
    show("wrong identity", file("other").await);
    show("passphrase needed", StoreError::PassphraseNeeded { path: dir.join(IDENTITY_ENCRYPTED) });
    show("wrong passphrase", StoreError::WrongPassphrase { path: dir.join(IDENTITY_ENCRYPTED) });
    fs::rename(&identity, dir.join("moved")).unwrap();
    show("no identity", store.unlock(IdentitySource::State(None)).await.unwrap_err());
    fs::rename(dir.join("moved"), &identity).unwrap();
    fs::write(dir.join(RECIPIENT), "age1nonsense").unwrap();
    show("recipient damaged", store.unlock(IdentitySource::State(None)).await.unwrap_err());

    fs::write(dir.join(FLEET), r#"{"format": 4, "shape": "unknown"}"#).unwrap();
    show("newer format", Store::open(&dir, "lab").await.unwrap_err());
    fs::write(dir.join(FLEET), r#"{"format": 1, "name": "lab"}"#).unwrap();
    show("fleet damaged", Store::open(&dir, "lab").await.unwrap_err());
    fs::remove_file(dir.join(FLEET)).unwrap();
    show("fleet lost", create(&dir).await.unwrap_err());
    show("fleet lost, opened", Store::open(&dir, "lab").await.unwrap_err());
    show("fleet lost, removed", Store::remove_unfinished(&dir).await.unwrap_err());

    // As the kernel says them: full disks and foreign owners cannot be had in every test run.
    for (case, code) in [("disk full", 28), ("no permission", 13), ("read-only", 30), ("quota", 122), ("disk error", 5)]
    {
        show(case, StoreError::io("write", "/base/fleet.json")(std::io::Error::from_raw_os_error(code)));
    }
    let text = text.replace(dir.to_str().unwrap(), "/base");
    assert!(!text.contains(CANARY));
    insta::with_settings!({filters => vec![("age1[0-9a-z]{58}", "<recipient>")]}, {
        insta::assert_snapshot!(text);
    });
}

#[tokio::test]
async fn a_write_that_fails_leaves_nothing_behind() {
    let (_scratch, dir) = fresh();
    let store = filled(&dir).await;
    let lock = store.lock(info("apply")).await.unwrap();
    // A directory cannot be replaced by a file: the last of the steps fails.
    fs::create_dir(dir.join("clusters/other.json")).unwrap();
    let before = every_file(&dir).len();
    let error = store.put_cluster(&lock, "other", &Version::none(), &1).await.unwrap_err();
    assert!(error.to_string().contains("clusters/other.json"), "{error}");
    assert_eq!(every_file(&dir).len(), before);
}

fn stacks(names: &[&str]) -> LockScope {
    LockScope::Stacks(names.iter().map(|name| (*name).to_owned()).collect())
}

#[tokio::test]
async fn two_stacks_are_changed_at_once_and_one_stack_by_one_process() {
    let (_scratch, dir) = fresh();
    let store = create(&dir).await.unwrap();
    let one = store.lock_for(&stacks(&["one"]), info("apply")).await.unwrap();
    let two = store.lock_for(&stacks(&["two"]), info("backup")).await.unwrap();
    assert!(two.generation() > one.generation());
    store.put_cluster(&one, "one", &Version::none(), &json!({})).await.unwrap();
    store.put_cluster(&two, "two", &Version::none(), &json!({})).await.unwrap();
    for (lock, other) in [(&one, "two"), (&two, "one")] {
        let refused = store.put_cluster(lock, other, &Version::none(), &json!({})).await.unwrap_err();
        assert!(matches!(refused, StoreError::NotLocked { .. }), "{refused}");
    }
    let refused = store.clone().set_network(&one, None).await.unwrap_err();
    assert!(matches!(refused, StoreError::NotLocked { .. }), "{refused}");

    let refused = store.lock_for(&stacks(&["three", "two"]), info("apply")).await.unwrap_err();
    let StoreError::Locked { stack, holder } = refused else { panic!("{refused}") };
    assert_eq!((stack.as_deref(), holder.unwrap().verb.as_str()), (Some("two"), "backup"));
    // The locks that it had taken before the refusal are released.
    drop(store.lock_for(&stacks(&["three"]), info("apply")).await.unwrap());
    let refused = store.lock(info("destroy")).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Locked { stack: Some(_), holder: Some(_) }), "{refused}");
    assert_eq!(store.stack_holder("two").await.unwrap().map(|holder| holder.info.verb), Some("backup".to_owned()));
    assert_eq!(store.stack_holder("three").await.unwrap(), None);
    drop((one, two));

    let whole = store.lock(info("destroy")).await.unwrap();
    let refused = store.lock_for(&stacks(&["one"]), info("apply")).await.unwrap_err();
    let StoreError::Locked { stack, holder } = refused else { panic!("{refused}") };
    assert_eq!((stack, holder.unwrap().verb.as_str()), (None, "destroy"));
    let version = store.get_cluster::<Value>("one").await.unwrap().unwrap().version;
    store.put_cluster(&whole, "one", &version, &json!({"all": "covered"})).await.unwrap();
}

#[tokio::test]
async fn unfinished_files_of_another_live_writer_stay() {
    let (_scratch, dir) = fresh();
    let store = create(&dir).await.unwrap();
    let one = store.lock_for(&stacks(&["one"]), info("apply")).await.unwrap();
    fs::write(dir.join("secrets/.tmp-1"), "half").unwrap();
    let two = store.lock_for(&stacks(&["two"]), info("apply")).await.unwrap();
    assert!(dir.join("secrets/.tmp-1").exists());
    drop((one, two));
    drop(store.lock_for(&stacks(&["two"]), info("apply")).await.unwrap());
    assert!(!dir.join("secrets/.tmp-1").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_of_different_stacks_draw_different_generations_and_make_one_secret() {
    let (_scratch, dir) = fresh();
    let store = create(&dir).await.unwrap();
    let secrets = store.unlock(IdentitySource::State(None)).await.unwrap();
    let drawn: Vec<(u64, String)> = thread::scope(|scope| {
        let one = |number: usize| {
            let (store, secrets, runtime) = (&store, &secrets, Handle::current());
            let work = async move {
                let name = format!("stack-{number}");
                let lock = store.lock_for(&stacks(&[name.as_str()]), info("apply")).await.unwrap();
                let shared = secrets.get_or_put(&lock, "shared", secret(&name)).await.unwrap();
                (lock.generation(), shared.expose_secret().to_owned())
            };
            move || runtime.block_on(work)
        };
        let threads: Vec<_> = (0..8).map(|number| scope.spawn(one(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let generations: BTreeSet<u64> = drawn.iter().map(|(generation, _)| *generation).collect();
    let shared: BTreeSet<&String> = drawn.iter().map(|(_, shared)| shared).collect();
    assert_eq!((generations.len(), shared.len()), (8, 1), "{drawn:?}");
}
