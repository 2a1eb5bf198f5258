//! Real Ceph, an API that fails or answers wrongly, changed objects → nothing is taken for a backup that is none.

#![allow(clippy::print_stdout, reason = "a test says how many faults it tried")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use futures::stream::{self, Stream};
use jiff::Timestamp;
use raftsman_api::hex;
use raftsman_backup::full::{self, Depth, FullError, TransferProgress};
use raftsman_backup::{Keys, Repository, Seals, Signer, Store, StoreError, Trust};
use raftsman_core::backup::{About, FullName, Hashed, History, Layout, Manifest};
use raftsman_core::observed::ClusterId;
use raftsman_core::spec::{EtcdVersion, Name};
use raftsman_tests::ceph::Ceph;
use raftsman_tests::dice::Dice;
use raftsman_tests::lab::soak;
use raftsman_tests::proxy::{Fault, Proxy};
use tokio::runtime::Runtime;

const CLUSTER: &str = "main";

fn layout(place: &str) -> Layout {
    Layout::new(&format!("site/{place}"), &Name::fixed("shop"), &Name::fixed(CLUSTER))
}

/// Something with the hash behind it that etcd would send.
fn snapshot(pages: usize, seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    let mut bytes: Vec<u8> = (0..pages * 64).flat_map(|_| dice.bits().to_le_bytes()).collect();
    let hash = hex::sha256(&bytes);
    let hash = (0..64).step_by(2).map(|at| u8::from_str_radix(&hash[at..at + 2], 16).expect("digits"));
    bytes.extend(hash);
    bytes
}

fn pieces(bytes: Vec<u8>) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let all = Bytes::from(bytes);
    let starts: Vec<usize> = (0..all.len()).step_by(32 << 10).collect();
    stream::iter(starts.into_iter().map(move |at| Ok(all.slice(at..all.len().min(at + (32 << 10))))))
}

/// Backups have a second in their names: each of a test's has its own.
fn about(number: i64) -> About {
    let begun = Timestamp::from_second(1_800_000_000 + number).expect("a moment");
    About {
        name: FullName::new(begun, 100 + number),
        fleet: Name::fixed("shop"),
        fleet_id: "f".to_owned(),
        cluster: Name::fixed(CLUSTER),
        cluster_id: ClusterId(7),
        member: Name::fixed("main-1"),
        version: EtcdVersion::default(),
        begun,
        upto: None,
        histories: vec![History::first(ClusterId(7))],
        previous: None,
    }
}

fn signer() -> Signer {
    Signer::new(&[7; 32]).expect("a key")
}

fn repository(store: &Store, layout: &Layout, cluster: &'static str) -> Repository {
    let trust = Trust::in_key(signer().public());
    Repository { store: store.clone(), layout: layout.clone(), cluster: Name::fixed(cluster), trust }
}

async fn take(store: &Store, layout: &Layout, number: i64, bytes: Vec<u8>) -> Result<Manifest, FullError> {
    let hashed = async { Ok(Hashed { hash: 1, compacted: 2, keys: 3 }) };
    let seals = Seals { zstd: true, recipients: Vec::new() };
    let at = repository(store, layout, CLUSTER);
    full::take(&at, &signer(), about(number), &seals, pieces(bytes), hashed, &TransferProgress::default()).await
}

async fn good(store: &Store, layout: &Layout, name: FullName) -> bool {
    let look = async {
        let at = repository(store, layout, CLUSTER);
        let manifest = at.manifest(name).await?;
        full::verify(&at, &manifest, &Keys::default(), &TransferProgress::default()).await
    };
    matches!(look.await, Ok(Depth::Snapshot))
}

#[test]
fn nothing_counts_that_is_not_whole() {
    let ceph = Ceph::up(8 << 30);
    let runtime = Runtime::new().expect("a runtime");
    let store = Store::open(&ceph.place()).expect("the store");
    runtime.block_on(written_once(&store));
    runtime.block_on(an_api_that_fails(&ceph, &store));
    runtime.block_on(changed_objects(&store));
    runtime.block_on(authentication(&ceph));
}

/// Of many concurrent writers of one object one succeeds, and all others get an error.
async fn written_once(store: &Store) {
    let race = |number: usize| {
        let store = store.clone();
        async move { store.put_once("site/race", format!("I am {number}").into()).await }
    };
    let ended = join_all((0..16).map(race)).await;
    assert_eq!(ended.iter().filter(|it| it.is_ok()).count(), 1, "{ended:?}");
    assert!(
        ended.iter().flat_map(|it| it.as_ref().err()).all(|it| matches!(it, StoreError::Taken { .. })),
        "{ended:?}"
    );

    // The same name for two backups: the second is refused before it sends anything.
    let layout = layout("once");
    let first = take(store, &layout, 0, snapshot(2000, 1)).await.expect("a backup");
    let second = take(store, &layout, 0, snapshot(2000, 2)).await;
    assert!(matches!(second, Err(FullError::Store(StoreError::Taken { .. }))), "{second:?}");
    assert!(good(store, &layout, first.about.name).await);

    // An interrupted or damaged stream leaves no object at all.
    let mut other = snapshot(2000, 3);
    other[5] ^= 1;
    let refused = take(store, &layout, 1, other).await;
    assert!(matches!(refused, Err(FullError::Snapshot(_))), "{refused:?}");
    let half = snapshot(2000, 3)[..700_000].to_vec();
    let refused = take(store, &layout, 2, half).await;
    assert!(matches!(refused, Err(FullError::Snapshot(_))), "{refused:?}");
    let listed = full::list(store, &layout).await.expect("a list");
    assert_eq!(listed.iter().map(|(_, counts)| *counts).collect::<Vec<_>>(), [true, false, false]);
    let objects = store.list(layout.root()).await.expect("a list");
    assert_eq!(objects.iter().filter(|it| it.path.contains("snapshot.db")).count(), 1, "{objects:?}");
}

/// One fault of each kind at each request of a backup.
async fn an_api_that_fails(ceph: &Ceph, store: &Store) {
    let layout = layout("faults");
    let stall = Fault::Stalled(Duration::from_millis(200));
    let faults =
        [Fault::LostReply, Fault::Refused, stall, Fault::Lost, Fault::Truncated, Fault::Garbled, Fault::GarbledRequest];
    // Mark, begin, two parts, end, read back, manifest, read back; and what comes of trying again.
    let requests: Vec<usize> = (0..if soak() { 40 } else { 11 }).collect();
    let mut dice = Dice::of_this_run("faults of the API");
    let (mut made, mut failed, mut number) = (0, 0, 0);
    for fault in faults {
        for at in dice.some(&requests, if soak() { requests.len() } else { 5 }) {
            number += 1;
            let mut seen = 0;
            let proxy = Proxy::tcp(&ceph.http(), move |_| {
                seen += 1;
                if seen == at + 1 { fault } else { Fault::None }
            });
            let faulty = Store::open(&ceph.place_at(proxy.address())).expect("the store");
            // Two parts, and does not become smaller.
            let taken = take(&faulty, &layout, number, snapshot(20_000, number.unsigned_abs())).await;
            let name = about(number).name;
            let listed: BTreeMap<FullName, bool> =
                full::list(store, &layout).await.expect("a list").into_iter().collect();
            let counts = listed.get(&name).copied().unwrap_or(false);
            assert!(taken.is_err() || counts, "{fault:?} at {at}: told to be there, and is not: {taken:?}");
            assert!(
                !counts || good(store, &layout, name).await,
                "{fault:?} at {at}: counts, and is damaged: {taken:?}"
            );
            match taken {
                Ok(_) => made += 1,
                Err(_) => failed += 1,
            }
        }
    }
    println!("faults of the API: {number} backups, {made} made, {failed} failed and said so");
    assert!(made > number / 2, "most single faults are overcome");
}

/// Every change to an object in the store is noticed.
async fn changed_objects(store: &Store) {
    let layout = layout("changed");
    let whole = take(store, &layout, 1, snapshot(300, 1)).await.expect("a backup");
    let other = take(store, &layout, 2, snapshot(300, 2)).await.expect("a backup");
    let at = |manifest: &Manifest| {
        (layout.snapshot(manifest.about.name, manifest.coding), layout.manifest(manifest.about.name))
    };
    let get = async |path: &str| store.get(path, 1 << 30).await.expect("an object");
    let (object_at, manifest_at) = at(&whole);
    let (object, manifest) = (get(&object_at).await, get(&manifest_at).await);
    let (foreign_object, foreign_manifest) = (get(&at(&other).0).await, get(&at(&other).1).await);
    let replace = async |path: &str, with: Option<&[u8]>| {
        store.remove(path).await.expect("it goes");
        if let Some(bytes) = with {
            store.put_once(path, Bytes::copy_from_slice(bytes)).await.expect("it comes");
        }
    };
    let mut tried = 0;
    for seed in 0..if soak() { 500 } else { 150 } {
        let mut dice = Dice::new(seed);
        let (path, before, foreign) = match dice.one_in(2) {
            true => (&object_at, &object, &foreign_object),
            false => (&manifest_at, &manifest, &foreign_manifest),
        };
        let mut changed = before.to_vec();
        let with = match dice.below(8) {
            0 => None,
            1 => Some(foreign.to_vec()),
            2 => Some(before[..dice.below(before.len())].to_vec()),
            3 => Some([before.as_ref(), b"}"].concat()),
            _ => {
                let bit = dice.below(changed.len() * 8);
                changed[bit / 8] ^= 1 << (bit % 8);
                Some(changed)
            }
        };
        replace(path, with.as_deref()).await;
        // White space between the words of a manifest means nothing.
        let same = path == &manifest_at
            && with.as_ref().is_some_and(|with| {
                let words = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).ok();
                words(with).is_some() && words(with) == words(before)
            });
        assert_eq!(good(store, &layout, whole.about.name).await, same, "seed {seed}: {with:?}");
        tried += 1;
        replace(path, Some(before)).await;
    }
    assert!(good(store, &layout, whole.about.name).await);
    println!("changes in the store: {tried}, all noticed");

    // Another cluster's backup in the place of ours.
    let theirs = Layout::new("site/changed", &Name::fixed("shop"), &Name::fixed("other"));
    store.put_once(&theirs.snapshot(whole.about.name, whole.coding), object.clone()).await.expect("it comes");
    store.put_once(&theirs.manifest(whole.about.name), manifest.clone()).await.expect("it comes");
    let refused = repository(store, &theirs, "other").manifest(whole.about.name).await;
    assert!(matches!(refused, Err(FullError::OtherCluster { .. })), "{refused:?}");
}

/// The error names a wrong access key, and a server certificate of another CA.
async fn authentication(ceph: &Ceph) {
    use raftsman_backup::Place;
    let with = |change: &dyn Fn(&mut raftsman_backup::place::S3)| {
        let Place::S3(mut s3) = ceph.place() else { panic!("not S3") };
        change(&mut s3);
        Store::open(&Place::S3(s3)).expect("a store")
    };
    let wrong = with(&|s3| s3.keys.as_mut().expect("keys").secret = "wrong".to_owned());
    let refused = wrong.list("site").await.expect_err("no way in").to_string();
    assert!(refused.contains("credentials"), "{refused}");
    let untrusted = with(&|s3| s3.ca_pem = Some(raftsman_tests::ceph::foreign_authority()));
    let refused = untrusted.get("site/race", 10).await.expect_err("not the server").to_string();
    assert!(refused.contains("certificate"), "{refused}");
    let nowhere = with(&|s3| s3.bucket = "nowhere".to_owned());
    let refused = nowhere.list("site").await.expect_err("no bucket").to_string();
    assert!(refused.contains("NoSuchBucket"), "{refused}");
}
