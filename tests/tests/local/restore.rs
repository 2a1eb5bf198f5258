//! Real etcd under load, backups that its machines make by themselves → any revision and any moment comes back, damage
//! is found before anything is touched, and a process that is killed in the middle loses nothing.

#![allow(clippy::print_stdout, reason = "a test says what it measured")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use age::secrecy::ExposeSecret as _;
use etcd_client::{EventType, GetOptions, WatchOptions};
use jiff::{SignedDuration, Timestamp};
use raftsman_tests::bulk::Bulk;
use raftsman_tests::ceph::Ceph;
use raftsman_tests::dice::Dice;
use raftsman_tests::files::{below, write_private};
use raftsman_tests::lab::{Lab, eventually, kill, soak};
use raftsman_tests::load::{Load, LoadSettings};
use raftsman_tests::proxy::{Fault, Proxy, Request};
use rustix::process::Signal;
use serde_json::Value;

const VERSION: &str = "3.6.15";
/// All that can go wrong on the way.
const LIES: [Fault; 7] = [
    Fault::LostReply,
    Fault::Refused,
    Fault::Stalled(Duration::from_millis(1500)),
    Fault::Lost,
    Fault::Truncated,
    Fault::Garbled,
    Fault::GarbledRequest,
];
/// A restore reports at least so many.
const STEPS: usize = 10;
/// The key exists while an agent makes backups.
const KEEPER: &[u8] = b"raftsman/backup-keeper";

/// A lab whose machines make backups into this directory by themselves.
fn lab(members: usize, store: &Path, schedule: &str) -> Lab {
    Lab::with_backups(members, VERSION, store, schedule)
}

fn seed() -> u64 {
    let seed = std::env::var("RAFTSMAN_SEED").ok().and_then(|seed| seed.parse().ok());
    seed.unwrap_or_else(|| Dice::of_this_run("restore").bits() >> 1)
}

/// What is known of a key: its value, when it was made and last changed, how often, and its lease.
type Known = (Vec<u8>, i64, i64, i64, i64);
type Contents = BTreeMap<Vec<u8>, Known>;

fn contents(bulk: &Bulk) -> Contents {
    let read =
        bulk.with(async |mut client| client.get("", Some(GetOptions::new().with_all_keys())).await.expect("keys"));
    let known = |kv: &etcd_client::KeyValue| {
        (kv.value().to_vec(), kv.create_revision(), kv.mod_revision(), kv.version(), kv.lease())
    };
    read.kvs().iter().filter(|kv| kv.key() != KEEPER).map(|kv| (kv.key().to_vec(), known(kv))).collect()
}

fn revision(bulk: &Bulk) -> i64 {
    bulk.with(async |mut client| client.get("x", None).await.expect("a word").header().expect("a header").revision())
}

/// The whole history, as etcd itself returns it.
struct History(Vec<(i64, Vec<u8>, Option<Known>)>);

impl History {
    fn of(bulk: &Bulk) -> Self {
        let last = revision(bulk);
        let events = bulk.with(async |client| {
            let options = WatchOptions::new().with_all_keys().with_start_revision(1);
            let mut watching = client.watch_client().max_decoding_message_size(1 << 30);
            let mut watch = watching.watch("", Some(options)).await.expect("a watch");
            let mut events: Vec<(i64, Vec<u8>, Option<Known>)> = Vec::new();
            while events.last().is_none_or(|(revision, ..)| *revision < last) {
                let message = watch.message().await.expect("a message").expect("more");
                assert!(!message.canceled(), "nothing was compacted yet: {message:?}");
                for event in message.events() {
                    let kv = event.kv().expect("a key");
                    let known =
                        (kv.value().to_vec(), kv.create_revision(), kv.mod_revision(), kv.version(), kv.lease());
                    let known = (event.event_type() == EventType::Put).then_some(known);
                    events.push((kv.mod_revision(), kv.key().to_vec(), known));
                }
            }
            events
        });
        Self(events)
    }

    fn at(&self, revision: i64) -> Contents {
        let mut contents = Contents::new();
        for (_, key, known) in self.0.iter().take_while(|(at, ..)| *at <= revision) {
            match known {
                Some(known) => drop(contents.insert(key.clone(), known.clone())),
                None => drop(contents.remove(key)),
            }
        }
        contents.remove(KEEPER);
        contents
    }
}

/// The revision that was restored.
#[track_caller]
fn restored(lab: &Lab, arguments: &[&str]) -> i64 {
    let all = [&["restore", "--yes", "--json"], arguments].concat();
    let lines = lab.run(&all).ok().json_lines();
    let tried = lines.iter().find(|line| line["event"] == "tested").expect("it was tried first");
    tried["tested"]["revision"].as_i64().expect("a revision")
}

#[test]
fn any_revision_and_moment_comes_back() {
    let (seed, shelf) = (seed(), tempfile::tempdir().expect("a directory"));
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    let lab = lab(3, shelf.path(), "  every: 10s\n  changes_every: 1s\n");
    let bulk = Bulk::of(&lab);
    eventually("the first backup is made", || lab.cluster_status()["backups"]["full"].is_string().then_some(()));
    let first = revision(&bulk);
    let leased = bulk.with(async |mut client| {
        let lease = client.lease_grant(3600, None).await.expect("a lease").id();
        let options = etcd_client::PutOptions::new().with_lease(lease);
        client.put("leased", "for an hour", Some(options)).await.expect("a key");
        lease
    });
    let load = Load::start(&lab, LoadSettings::default());
    let mut moments: Vec<(Timestamp, i64, i64)> = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(22) {
        let before = revision(&bulk);
        std::thread::sleep(Duration::from_millis(700));
        let now = Timestamp::now();
        moments.push((now, before, revision(&bulk)));
    }
    load.finish().assert_consistent();
    lab.covered(Timestamp::now());
    let (history, last) = (History::of(&bulk), revision(&bulk));
    assert_eq!(history.at(last), contents(&bulk), "the test itself knows what was");
    let points = if soak() { 50 } else { 4 };
    for point in 0..points {
        let came = if point % 2 == 0 {
            let wanted =
                first + 1 + i64::try_from(dice.bits() % u64::try_from(last - first).expect("writes")).expect("small");
            let came = restored(&lab, &["--revision", &wanted.to_string()]);
            assert_eq!(came, wanted, "seed {seed}");
            came
        } else {
            let (moment, least, most) = dice.pick(&moments).copied().expect("a moment");
            let came = restored(&lab, &["--at", &moment.to_string()]);
            assert!((least..=most).contains(&came), "seed {seed}: {moment}: {came} is not in {least}..={most}");
            came
        };
        let (found, expected) = (contents(&bulk), history.at(came));
        assert!(found == expected, "seed {seed}: revision {came}: {} keys, {} expected", found.len(), expected.len());
        println!("revision {came} of {first}..{last}: {} keys, as they were", found.len());
        if let Some((.., lease)) = found.get(b"leased".as_slice()) {
            assert_eq!(*lease, leased);
        }
        // A watch from before the restore is cancelled, and not left waiting.
        let output = bulk.with(async |mut client| {
            let options = WatchOptions::new().with_start_revision(came);
            let mut watch = client.watch("leased", Some(options)).await.expect("a watch");
            loop {
                let message = watch.message().await.expect("a message").expect("a word");
                if !message.created() || message.canceled() {
                    return message.compact_revision();
                }
            }
        });
        assert!(output > came, "seed {seed}: it is told that what it wants is gone: {output}");
    }
    lab.nothing_to_do();
    let history = lab.run(&["journal", "--json"]).ok().stdout;
    assert!(history.contains("\"restore\""), "{history}");
    lab.destroy();
}

#[test]
fn damage_is_found_before_anything_is_touched() {
    // Machines read it themselves.
    lies(false);
}

#[test]
fn damage_in_encrypted_objects_is_found_as_well() {
    lies(true);
}

fn lies(encrypted: bool) {
    let (seed, shelf) = (seed(), tempfile::tempdir().expect("a directory"));
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    let store = shelf.path().join("store");
    let ours = age::x25519::Identity::generate();
    let to = if encrypted { format!("  encrypt_to: [{}]\n", ours.to_public()) } else { String::new() };
    let lab = lab(1, &store, &format!("  every: 1h\n  changes_every: 1s\n{to}"));
    let key = |name: &str, identity: &age::x25519::Identity| {
        let path = lab.path().join(name);
        std::fs::write(&path, format!("{}\n", identity.to_string().expose_secret())).expect("a key");
        path.display().to_string()
    };
    let (right, wrong) = (key("right.key", &ours), key("wrong.key", &age::x25519::Identity::generate()));
    eventually("the first backup is made", || lab.cluster_status()["backups"]["full"].is_string().then_some(()));
    for number in 0..4 {
        lab.etcdctl(&["put", &format!("key-{number}"), "value"]).ok();
        lab.covered(Timestamp::now());
    }
    let good = shelf.path().join("good");
    copy(&store, &good);
    // From here on no agent writes there.
    lab.write_file(&lab.file().replace("  every: 1h\n  changes_every: 1s\n", ""));
    lab.apply();
    let etcd = lab.etcds();
    let files: Vec<PathBuf> = needed(&good);
    assert!(files.len() >= 8, "a full backup and batches: {files:?}");
    let caught = |what: &str, key: &str| {
        let refused = lab.run(&["restore", "--yes", "--key", key]);
        assert!(refused.code != 0, "seed {seed}: {what} was restored:\n{}", refused.all());
        assert_eq!(lab.etcds(), etcd, "seed {seed}: {what}: nothing was touched");
        refused.all()
    };
    if encrypted {
        caught("the wrong key", &wrong);
    }
    let lies = if soak() { 250 } else { 10 };
    for _ in 0..lies {
        let file = dice.pick(&files).expect("a file").clone();
        let path = store.join(&file);
        let bytes = std::fs::read(&path).expect("an object");
        let (what, lie) = match dice.below(4) {
            0 | 1 => {
                let mut other = bytes.clone();
                let at = dice.below(other.len());
                other[at] ^= 1 << dice.below(8);
                (format!("a bit at {at} of {}", file.display()), Some(other))
            }
            2 => {
                let at = dice.below(bytes.len());
                (format!("{} cut at {at}", file.display()), Some(bytes[..at].to_vec()))
            }
            _ => {
                let other = dice.pick(&files).expect("a file");
                let other = if *other == file { None } else { std::fs::read(store.join(other)).ok() };
                (format!("{} gone or another one", file.display()), other)
            }
        };
        match lie {
            Some(lie) => std::fs::write(&path, lie).expect("a lie"),
            None => std::fs::remove_file(&path).expect("gone"),
        }
        caught(&what, &right);
        std::fs::write(&path, bytes).expect("as it was");
    }
    // Another cluster's backups in the place of ours.
    let (here, there) = (store.join("lab/main"), store.join("lab/other"));
    copy(&here, &there);
    let refused = lab.run(&["restore", "--yes", "--from", "other", "--key", &right]).failed().all();
    assert!(refused.contains("is not the key of this cluster"), "{refused}");
    assert_eq!(lab.etcds(), etcd);
    // And the genuine backup is restored.
    lab.run(&["restore", "--yes", "--key", &right]).ok();
    assert_eq!(contents(&Bulk::of(&lab)).len(), 4);
    lab.destroy();
}

/// Objects without which the newest is not restored: all but the last batch's own, whose absence cannot be detected.
fn needed(store: &Path) -> Vec<PathBuf> {
    let mut files = below(store);
    files.retain(|file| !file.ends_with("begun.json") && !file.to_string_lossy().contains("/drills/"));
    let mut files: Vec<PathBuf> =
        files.iter().map(|file| file.strip_prefix(store).expect("below it").to_owned()).collect();
    files.sort();
    let is = |file: &PathBuf, kind: &str| file.to_string_lossy().contains(kind);
    let last = files.iter().filter(|file| is(file, "/changes/")).filter(|file| is(file, ".json")).max().cloned();
    let number = last.and_then(|file| Some(file.file_name()?.to_string_lossy()[..8].to_owned())).expect("a batch");
    // Without its manifest a full backup is invalid: an older one is taken, or none.
    files.retain(|file| !is(file, &format!("/{number}.")));
    files
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(copied.success());
}

/// The process that is killed while a cluster is restored.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Command,
    Agents,
    Members,
}

/// Restores this backup, and strikes when the command has said this many times that it goes on. False when it was done
/// before.
fn struck(lab: &Lab, name: &str, victim: Victim, at: usize) -> bool {
    let mut restoring = lab.spawn(&["restore", "--yes", "--json", "--timeout", "30s", "--backup", name]);
    let said = BufReader::new(restoring.stdout.take().expect("its output"));
    let (mut steps, mut came) = (0, false);
    for line in said.lines().map_while(Result::ok) {
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        // How often it reports progress depends on the disk.
        steps += usize::from(event["event"] != "progress");
        if steps == at {
            match victim {
                Victim::Command => restoring.kill().expect("ours"),
                Victim::Agents => lab.agents().into_iter().for_each(|(_, agent)| kill(agent, Signal::KILL)),
                Victim::Members => lab.etcds().into_iter().for_each(|(_, etcd)| kill(etcd, Signal::KILL)),
            }
            came = true;
        }
    }
    let _ = restoring.wait();
    came
}

/// A command reports the begin and the end of every step: these are all of them.
#[test]
fn killed_at_every_step_it_goes_on() {
    let (seed, shelf) = (seed(), tempfile::tempdir().expect("a directory"));
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    let lab = lab(3, shelf.path(), "  every: 1h\n");
    let bulk = Bulk::of(&lab);
    for number in 0..20 {
        lab.etcdctl(&["put", &format!("key-{number}"), "before"]).ok();
    }
    let taken = lab.run(&["backup", "now", "--json"]).ok().json_lines();
    let name = taken.last().expect("a line")["backup"]["name"].as_str().expect("a name").to_owned();
    let wanted = contents(&bulk);
    let change = |what: &str| {
        lab.etcdctl(&["put", "key-0", &format!("after {what}")]).ok();
        lab.etcdctl(&["del", "key-1"]).ok();
    };
    let goes_on = |what: &str| {
        lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
        let found = contents(&bulk);
        let untouched = found.get(b"key-0".as_slice()).is_some_and(|known| known.0.starts_with(b"after"));
        println!("{what}: {}", if untouched { "no restore was approved yet" } else { "it was restored" });
        assert!(untouched || found == wanted, "seed {seed}, {what}: {} keys", found.len());
        lab.nothing_to_do();
    };
    let mut steps = 0;
    for victim in [Victim::Command, Victim::Agents, Victim::Members] {
        let one = 1 + usize::try_from(dice.bits()).unwrap_or(0) % STEPS;
        for at in if soak() { 1..=usize::MAX } else { one..=one } {
            let what = format!("{victim:?} killed at step {at}");
            change(&what);
            let came = struck(&lab, &name, victim, at);
            goes_on(&what);
            if !came {
                break;
            }
            steps += 1;
        }
    }
    println!("killed at {steps} steps");
    assert!(steps >= if soak() { 3 * STEPS } else { 3 }, "it was done before {steps} strikes came");
    // And in the middle of one.
    for round in 0..if soak() { 40 } else { 2 } {
        let what = format!("round {round}");
        change(&what);
        let mut killed = lab.spawn(&["restore", "--yes", "--backup", &name]);
        std::thread::sleep(Duration::from_millis(dice.bits() % 5000));
        // Agents too, now and then.
        for (_, agent) in lab.agents().into_iter().filter(|_| dice.one_in(4)) {
            kill(agent, Signal::KILL);
        }
        let _ = killed.kill();
        let _ = killed.wait();
        goes_on(&what);
    }
    restored(&lab, &["--backup", &name]);
    assert_eq!(contents(&bulk), wanted);
    let left: Vec<_> = lab.processes().into_iter().filter(|(_, line)| line.contains("rehearsal")).collect();
    assert!(left.is_empty(), "{left:?}");
    let drill = lab.run(&["drill", "--json"]).ok().json_lines().last().expect("a line")["drill"].clone();
    assert!(drill["keys"].as_u64() >= Some(20) && drill["took_ms"].is_u64(), "{drill}");
    assert!(lab.run(&["drill", "--history"]).ok().stdout.contains(drill["backup"].as_str().expect("a name")));
    assert!(lab.run(&["status"]).ok().stdout.contains("last drill"));
    lab.destroy();
}

/// The machines, their data, the state and its authorities are gone: what is in the store is enough.
#[test]
fn a_new_cluster_is_bootstrapped_from_a_backup() {
    let shelf = tempfile::tempdir().expect("a directory");
    let ours = age::x25519::Identity::generate();
    let old =
        lab(3, shelf.path(), &format!("  every: 1h\n  changes_every: 1s\n  encrypt_to: [{}]\n", ours.to_public()));
    eventually("the first backup is made", || old.cluster_status()["backups"]["full"].is_string().then_some(()));
    for number in 0..12 {
        old.etcdctl(&["put", &format!("key-{number}"), "value"]).ok();
    }
    old.covered(Timestamp::now());
    let wanted = contents(&Bulk::of(&old));
    assert_eq!(wanted.len(), 12);
    // All that has to be kept elsewhere: the decryption key, and the key that verifies the signatures.
    let keys = old.run(&["backup", "key", "--json"]).ok().json();
    let signed_with = keys["keys"][0]["key"].as_str().expect("a key").to_owned();
    old.destroy();

    let from = "restore_from: { cluster: lab/main, key: { file: backup.key } }";
    let new = Lab::cluster(3, VERSION, &[from]);
    new.write_file(&format!("{}backups:\n  store: {{ directory: {:?} }}\n", new.file(), shelf.path()));
    let refused = new.run(&["apply", "--yes", "--timeout", "20s"]).failed().all();
    assert!(refused.contains("backup.key"), "the key is named before a member is started: {refused}");
    assert!(new.etcds().is_empty());
    write_private(new.path().join("backup.key"), &format!("{}\n", ours.to_string().expose_secret()));
    let refused = new.run(&["apply", "--yes", "--timeout", "20s"]).failed().all();
    assert!(refused.contains("is not the key of this cluster"), "{refused}");
    assert!(new.etcds().is_empty());
    new.write_file(&format!("{}  trust: [\"{signed_with}\"]\n", new.file()));
    new.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    assert_eq!(contents(&Bulk::of(&new)), wanted);
    new.nothing_to_do();
    assert_eq!(new.settled()["clusters"][0]["auth"], true);
    new.destroy();
}

/// The agent that makes backups dies: another takes over. Then everything dies at once, and little is missing.
#[test]
fn all_die_at_once_and_little_is_missing() {
    let shelf = tempfile::tempdir().expect("a directory");
    let store = shelf.path().join("store");
    let lab = lab(3, &store, "  every: 1h\n  changes_every: 2s\n");
    let keeper = || lab.cluster_status()["backups"]["scheduler"].as_str().map(str::to_owned);
    let first = eventually("an agent makes backups", keeper);
    lab.covered(Timestamp::now());
    let pid = lab.agents().into_iter().find(|(name, _)| *name == first).expect("its agent").1;
    kill(pid, Signal::KILL);
    let second = eventually("another one does", || keeper().filter(|name| *name != first));
    lab.covered(Timestamp::now());
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    println!("{first} died, {second} goes on");

    let load = Load::start(&lab, LoadSettings::default());
    let bulk = Bulk::of(&lab);
    // Newer than the one that machines write down changes since: those are restored all the same.
    lab.run(&["backup", "now"]).ok();
    let mut acknowledged: Vec<(i64, Timestamp)> = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(12) {
        let written = bulk.with(async |mut client| client.put("clock", Timestamp::now().to_string(), None).await);
        if let Ok(written) = written {
            acknowledged.push((written.header().expect("a header").revision(), Timestamp::now()));
        }
    }
    for (_, pid) in lab.agents().into_iter().chain(lab.etcds()) {
        kill(pid, Signal::KILL);
    }
    let died = Timestamp::now();
    drop(load.end());
    // What the machines have on their disks is not to be used.
    let kept = shelf.path().join("kept");
    std::fs::rename(&store, &kept).expect("a move");
    std::fs::create_dir(&store).expect("a directory");
    lab.write_file(
        &lab.file()
            .replace(&format!("{store:?}"), &format!("{kept:?}"))
            .replace("  every: 1h\n  changes_every: 2s\n", ""),
    );
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    let came = restored(&lab, &[]);
    let missing = acknowledged.iter().find(|(revision, _)| *revision > came).map_or(died, |(_, at)| *at);
    let lost: SignedDuration = died.duration_since(missing);
    println!("recovery point: {:.1} s before everything died", lost.as_secs_f64());
    assert!(lost < SignedDuration::from_secs(5), "{lost:?} of acknowledged writes are missing");
    let clock: Value = serde_json::from_str(&lab.etcdctl(&["get", "clock", "-w", "json"]).ok().stdout).expect("JSON");
    assert_eq!(clock["count"], 1);
    lab.destroy();
}

/// To write changes again takes longer than a lease in them lasts: nothing ends meanwhile that did not end then.
#[test]
fn a_lease_does_not_end_while_changes_are_replayed() {
    const CHANGES: usize = 8_000;
    let shelf = tempfile::tempdir().expect("a directory");
    let schedule = "  every: 1h\n  changes_every: 1s\n";
    let lab = lab(1, shelf.path(), schedule);
    lab.covered(Timestamp::now());
    let bulk = Bulk::of(&lab);
    // On a machine that stalls for two seconds the lease ends while the changes are made: then all of it is done again.
    let written = (0..5).find_map(|_| {
        let lease = bulk.with(async |mut client| client.lease_grant(2, None).await.expect("a lease").id());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let renewing = scope.spawn(|| {
                let bulk = Bulk::of(&lab);
                let renew = || bulk.with(async |mut client| client.lease_keep_alive(lease).await.is_ok());
                while !stop.load(Ordering::Relaxed) {
                    if !renew() {
                        return false;
                    }
                    std::thread::sleep(Duration::from_millis(300));
                }
                renew()
            });
            let options = etcd_client::PutOptions::new().with_lease(lease);
            let leased = bulk.with(async |mut client| client.put("leased", "", Some(options)).await.is_ok());
            let before = revision(&bulk);
            bulk.pour("many/", CHANGES * 64, 16).expect("much is written");
            let wanted = revision(&bulk);
            lab.covered(Timestamp::now());
            stop.store(true, Ordering::Relaxed);
            let kept = renewing.join().expect("it ends") && leased;
            kept.then_some((wanted, before + i64::try_from(CHANGES).expect("few")))
        })
    });
    let (wanted, at_least) = written.expect("a lease lasted while changes were made");
    assert!(wanted >= at_least, "each of them is a revision");
    lab.write_file(&lab.file().replace(schedule, ""));
    lab.apply();
    assert_eq!(restored(&lab, &["--revision", &wanted.to_string()]), wanted);
    lab.destroy();
}

/// An operator makes a newer full backup and removes the one that changes are written since, or a rule of the store does:
/// changes go on since the newer one, and nothing is missing.
#[test]
fn changes_go_on_when_their_full_backup_is_removed() {
    let shelf = tempfile::tempdir().expect("a directory");
    let store = shelf.path().join("store");
    let lab = lab(1, &store, "  every: 1h\n  changes_every: 1s\n");
    let bulk = Bulk::of(&lab);
    let put = |value: &str| bulk.with(async |mut client| client.put("kept", value, None).await.expect("a write"));
    put("before");
    lab.covered(Timestamp::now());
    let fulls = || below(&store).into_iter().filter(|path| path.ends_with("manifest.json"));
    let followed: Vec<PathBuf> = fulls().collect();
    put("between");
    lab.run(&["backup", "now"]).ok();
    for manifest in &followed {
        std::fs::remove_dir_all(manifest.parent().expect("its directory")).expect("removed");
    }
    put("after");
    lab.covered(Timestamp::now());
    assert_eq!((followed.len(), fulls().count()), (1, 1), "that of the operator is followed, no third one was made");
    lab.write_file(&lab.file().replace("  every: 1h\n  changes_every: 1s\n", ""));
    lab.apply();
    put("too late");
    restored(&lab, &[]);
    let kept = bulk.with(async |mut client| client.get("kept", None).await.expect("an answer"));
    assert_eq!(kept.kvs()[0].value(), b"after");
    lab.destroy();
}

/// Ceph behind a proxy that breaks off, stalls and garbles: backups go on, and what is restored is correct.
#[test]
fn a_store_behind_a_faulty_proxy() {
    let ceph = Ceph::up(4 << 30);
    let seed = seed();
    println!("seed {seed}");
    let proxy = Proxy::tcp(&ceph.http(), |_| Fault::None);
    let lying = |dice: u64, one_in: usize| {
        let mut dice = Dice::new(dice);
        move |_: &Request| match dice.one_in(one_in) {
            true => *dice.pick(&LIES).expect("a lie"),
            false => Fault::None,
        }
    };
    let lab = Lab::cluster(3, VERSION, &[]);
    let schedule = "  every: 10s\n  changes_every: 1s\n  keep: { hourly: 1, daily: 1, weekly: 1, changes: 1s }\n";
    lab.write_file(&format!("{}backups:\n  store: {}\n{schedule}", lab.file(), ceph.store_at(&lab, proxy.address())));
    lab.apply();
    let bulk = Bulk::of(&lab);
    eventually("the first backup is made", || lab.cluster_status()["backups"]["full"].is_string().then_some(()));
    let load = Load::start(&lab, LoadSettings::default());
    proxy.plan(lying(seed, 4));
    std::thread::sleep(Duration::from_secs(if soak() { 60 } else { 18 }));
    proxy.plan(|_| Fault::None);
    load.finish().assert_consistent();
    // By the agent that met the faults before.
    let removed = || proxy.log().iter().any(|(request, _)| request.path.contains("delete"));
    eventually("what is old is removed", || removed().then_some(()));
    lab.covered(Timestamp::now());
    let (history, last) = (History::of(&bulk), revision(&bulk));

    // No agent writes there any more. The restore meets the faults.
    lab.write_file(&lab.file().replace(schedule, ""));
    lab.apply();
    let (mut came_back, mut refused) = (0, 0);
    for round in 0..if soak() { 60 } else { 4 } {
        let before = lab.etcds();
        proxy.plan(lying(seed + 1 + round, if round % 2 == 0 { 3 } else { 12 }));
        let tried = lab.run(&["restore", "--yes", "--json"]);
        proxy.plan(|_| Fault::None);
        if tried.code != 0 {
            refused += 1;
            assert_eq!(lab.etcds(), before, "seed {seed}, round {round}: nothing was touched:\n{}", tried.all());
            continue;
        }
        came_back += 1;
        let lines = tried.json_lines();
        let came =
            lines.iter().find(|line| line["event"] == "tested").and_then(|line| line["tested"]["revision"].as_i64());
        let came = came.expect("it was tried first");
        assert!(came <= last, "seed {seed}");
        assert!(contents(&bulk) == history.at(came), "seed {seed}, round {round}: revision {came} is as it was");
    }
    let lies = proxy.log().iter().filter(|(_, fault)| *fault != Fault::None).count();
    println!("{lies} of {} requests went wrong; {came_back} restored, {refused} refused", proxy.log().len());
    assert_eq!(restored(&lab, &[]), last, "seed {seed}");
    lab.destroy();
}
