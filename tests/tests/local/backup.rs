//! Real etcd under load, a real Ceph, TLS and auth → backups of a follower that are read back, and restored without raftsman.

#![allow(clippy::print_stdout, reason = "a test says what its clients saw")]

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use age::secrecy::ExposeSecret as _;
use jiff::Timestamp;
use raftsman_backup::Place;
use raftsman_backup::full::{self, TransferProgress};
use raftsman_backup::{Keys, Repository, Store, Trust};
use raftsman_core::backup::{Layout, Manifest};
use raftsman_core::spec::Name;
use raftsman_tests::ceph::{Ceph, SECRET};
use raftsman_tests::files::below;
use raftsman_tests::hosts::Hosts;
use raftsman_tests::lab::{Lab, etcd_dir, eventually, kill};
use raftsman_tests::load::{Load, LoadSettings};
use raftsman_tests::proxy::{Fault, Proxy};
use rustix::process::Signal;
use serde_json::Value;

const VERSION: &str = "3.6.15";

/// The file with a store.
fn with_store(lab: &Lab, file: &str, store: &str, further: &str) {
    lab.write_file(&format!("{file}backups:\n  store: {store}\n{further}"));
}

/// The last line of a verb's output.
#[track_caller]
fn backed_up(lab: &Lab) -> Value {
    let lines = lab.run(&["backup", "now", "--json"]).ok().json_lines();
    let last = lines.last().expect("a line");
    assert_eq!(last["event"], "backed_up", "{last}");
    last["backup"].clone()
}

/// How many backups are valid, and how many are not.
fn counted(lab: &Lab) -> (usize, usize) {
    let listing = lab.run(&["backup", "list", "--json"]).ok().json();
    let backups = listing["backups"].as_array().expect("a list");
    let count = backups.iter().filter(|backup| backup["manifest"].is_object()).count();
    (count, backups.len() - count)
}

fn verdicts(lab: &Lab, arguments: &[&str]) -> Vec<String> {
    let lines = lab.run(&[&["backup", "verify", "--json"], arguments].concat()).ok().json_lines();
    let backups = lines.last().expect("a line")["backups"].as_array().expect("a list").clone();
    backups.iter().map(|backup| backup["verdict"].as_str().expect("a verdict").to_owned()).collect()
}

/// Where these bytes are.
fn holds(dir: &Path, secret: &str) -> Vec<std::path::PathBuf> {
    let has = |path: &std::path::PathBuf| {
        let bytes = std::fs::read(path).unwrap_or_default();
        memchr::memmem::find(&bytes, secret.as_bytes()).is_some()
    };
    below(dir).into_iter().filter(has).collect()
}

#[test]
fn a_follower_is_backed_up_to_ceph() {
    let ceph = Ceph::up(4 << 30);
    let lab = Lab::cluster(3, VERSION, &[]);
    let file = lab.file();
    let ours = age::x25519::Identity::generate();
    let encrypted = format!("  encrypt_to: [{}]\n  prefix: site/a\n", ours.to_public());
    let key = |name: &str, identity: &age::x25519::Identity| {
        let path = lab.path().join(name);
        std::fs::write(&path, format!("# a key\n{}\n", identity.to_string().expose_secret())).expect("a key");
        path.display().to_string()
    };
    let (right, wrong) = (key("right.key", &ours), key("wrong.key", &age::x25519::Identity::generate()));
    let refused = lab.run(&["backup", "now"]).failed().all();
    assert!(refused.contains("raftsman apply"), "{refused}");
    lab.apply();
    for verb in ["now", "list", "show", "verify"] {
        let refused = lab.run(&["backup", verb]).failed().all();
        assert!(refused.contains("add `backups:`"), "{refused}");
    }
    with_store(&lab, &file, &ceph.store(&lab), &encrypted);
    assert!(lab.run(&["backup", "list"]).ok().stdout.contains("no backup yet"));

    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(200);
    let taken = backed_up(&lab);
    let leader = lab.cluster_status()["leader"].clone();
    assert_ne!(taken["member"], leader, "a follower has less to do");
    assert!(taken["keys"].as_u64() > Some(0) && taken["coding"]["age"] == true && taken["coding"]["zstd"] == true);
    assert_eq!(counted(&lab), (1, 0));
    assert_eq!(verdicts(&lab, &[]), ["object"]);
    assert_eq!(verdicts(&lab, &["--key", &wrong, "--key", &right]), ["snapshot"]);
    let refused = lab.run(&["backup", "verify", "--key", &wrong]).failed().all();
    assert!(!refused.contains("damaged") && refused.contains("No matching keys"), "{refused}");
    let refused = lab.run(&["backup", "verify", "20200101T000000Z-0000000000000000001"]).failed().all();
    assert!(!refused.contains("damaged") && refused.contains("there is no valid backup"), "{refused}");
    let shown = lab.run(&["backup", "show"]).ok().stdout;
    assert!(shown.contains("age --decrypt") && shown.contains("site/a/lab/main/full/"), "{shown}");

    // A slow store. The command that asked for a backup is killed: the agent makes it all the same.
    let slow = Proxy::tcp(&ceph.http(), |request| match request.path.contains("partNumber") {
        true => Fault::Stalled(Duration::from_secs(4)),
        false => Fault::None,
    });
    let busy = |proxy: &Proxy, times: usize| {
        let parts = || proxy.log().iter().filter(|(request, _)| request.path.contains("partNumber")).count();
        eventually("it is sent", || (parts() >= times).then_some(()));
    };
    with_store(&lab, &file, &ceph.store_at(&lab, slow.address()), &encrypted);
    let mut asking = lab.spawn(&["backup", "now"]);
    busy(&slow, 1);
    let refused = lab.run(&["backup", "now"]).all();
    asking.kill().expect("killed");
    let _ = asking.wait();
    assert!(refused.contains("making a backup already") || refused.contains("backed up"), "{refused}");
    let at_least_two = || (counted(&lab).0 >= 2).then_some(());
    eventually("it is made all the same", at_least_two);
    let before = counted(&lab).0;

    // The agent is killed: its half-made backup is invalid, and the next one is valid.
    let asked = slow.log().iter().filter(|(request, _)| request.path.contains("partNumber")).count();
    let mut asking = lab.spawn(&["backup", "now"]);
    busy(&slow, asked + 1);
    for (_, pid) in lab.agents() {
        kill(pid, Signal::KILL);
    }
    let ended = asking.wait().expect("it ends");
    assert!(!ended.success(), "nothing is a success that was not made");
    assert_eq!(counted(&lab), (before, 1));
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    with_store(&lab, &file, &ceph.store(&lab), &encrypted);
    backed_up(&lab);
    assert_eq!(counted(&lab), (before + 1, 1));
    let all = verdicts(&lab, &["--all", "--key", &right]);
    assert!(all.len() == before + 1 && all.iter().all(|verdict| verdict == "snapshot"), "{all:?}");

    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_consistent();
    // The state does not hold the store's secret key.
    let state = lab.path().join(".raftsman");
    assert_eq!(holds(&state, SECRET), [] as [std::path::PathBuf; 0]);
    lab.destroy();
}

/// The agent as a hardened service of systemd, which may write nowhere and see little.
#[test]
fn a_host_under_systemd_is_backed_up() {
    let hosts = Hosts::up(1);
    let ceph = Ceph::beside(hosts.space(), Ipv4Addr::new(10, 77, 0, 1), 4 << 30);
    let before = hosts.manifest(0);
    let lab = Lab::new("");
    let file = format!(
        "fleet: lab\nmachines:\n  provider: hosts\n  ssh: {{ config: {:?} }}\netcd:\n  main:\n    version: {VERSION}\n    \
         source: {{ directory: {:?} }}\n    members: [{{ name: db1, address: {} }}]\n",
        hosts.ssh_config(),
        etcd_dir(),
        hosts.addresses()[0]
    );
    with_store(&lab, &file, &ceph.store(&lab), "");
    lab.apply();
    lab.etcdctl(&["put", "key", "value"]).ok();
    assert_eq!(backed_up(&lab)["keys"], 1);
    assert_eq!(verdicts(&lab, &[]), ["snapshot"]);
    // By itself as well: backups, changes, drills; and it comes back.
    let schedule = "  every: 1h\n  changes_every: 1s\n  drill_every: 10s\n";
    with_store(&lab, &file, &ceph.store(&lab), schedule);
    lab.apply();
    lab.etcdctl(&["put", "key", "another"]).ok();
    lab.covered(Timestamp::now());
    eventually("a drill", || lab.cluster_status()["drill"].is_object().then_some(()));
    lab.etcdctl(&["del", "key"]).ok();
    let at = lab.cluster_status()["drill"]["revision"].to_string();
    lab.run(&["restore", "--yes", "--revision", &at]).ok();
    assert!(!lab.etcdctl(&["get", "key"]).ok().stdout.is_empty());
    // The agent's log is in the journal, and holds no secret.
    let log = lab.run(&["logs", "db1", "--agent"]).ok().stdout;
    assert!(log.contains("backup made") && !log.contains(SECRET), "{log}");
    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(hosts.left(0, &before), Vec::<String>::new(), "nothing is left");
}

/// Names of the full backups of a directory that have a manifest.
fn finished(store: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(store.join("lab/main/full")).into_iter().flatten().flatten();
    let finished = entries.filter(|entry| entry.path().join("manifest.json").exists());
    finished.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// With `prune: never` agents make backups and remove none; with `prune: operator` only the operator's command does.
#[test]
fn an_agent_without_prune_removes_nothing() {
    let shelf = tempfile::tempdir().expect("a directory");
    let store = shelf.path().join("store");
    let schedule = "  every: 10s\n  keep: { last: 1, hourly: 0, daily: 0, weekly: 0 }\n  prune: never\n";
    let lab = Lab::with_backups(1, VERSION, &store, schedule);
    // After the second, a machine that may would have removed the first.
    for number in 1..=3 {
        eventually("a backup is made", || (finished(&store).len() >= number).then_some(()));
    }
    let made = finished(&store);
    for asked in [&["backup", "prune"][..], &["backup", "prune", "--show"]] {
        let refused = lab.run(asked).failed().all();
        assert!(refused.contains("the file says `prune: never`: nothing is removed from the store"), "{refused}");
    }
    assert!(finished(&store).is_superset(&made), "{made:?}");

    // Not applied: the agent still has the old setting, and its backups stay until an operator prunes.
    lab.write_file(&lab.file().replace("prune: never", "prune: operator"));
    let shown = lab.run(&["backup", "prune", "--show", "--json"]).ok().json();
    assert!(shown["fulls"].as_array().is_some_and(|fulls| fulls.len() >= 2), "{shown}");
    let mut old = finished(&store);
    assert!(old.is_superset(&made), "{made:?}");
    let pruned = lab.run(&["backup", "prune", "--json"]).ok().json();
    let gone = pruned["fulls"].as_array().expect("names").iter();
    let gone: BTreeSet<String> = gone.map(|name| name.as_str().expect("a name").to_owned()).collect();
    let left = finished(&store);
    assert!(!left.is_empty() && left.is_disjoint(&gone), "{left:?} {gone:?}");
    // The newest stays, unless another one was made meanwhile.
    old.pop_last();
    assert!(gone.is_superset(&old), "{gone:?} {old:?}");
    lab.destroy();
}

/// An etcd without TLS and auth.
struct Alone(Child);

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_backup_is_restored_without_raftsman() {
    let shelf = tempfile::tempdir().expect("a directory");
    for (auth, version) in [("certificate", "3.4.45"), ("password", "3.5.34"), ("none", VERSION)] {
        let lab = Lab::cluster(1, version, &[&format!("auth: {{ mode: {auth} }}")]);
        let store = format!("{{ directory: {:?} }}", shelf.path().join(auth));
        with_store(&lab, &lab.file(), &store, "");
        lab.apply();
        let refused = lab.run(&["backup", "now"]).failed().all();
        assert!(refused.contains(auth), "a directory that is not there is named: {refused}");
        std::fs::create_dir(shelf.path().join(auth)).expect("a directory");
        for number in 0..30 {
            lab.etcdctl(&["put", &format!("key-{number:02}"), "value"]).ok();
        }
        lab.etcdctl(&["del", "key-00"]).ok();
        let taken = backed_up(&lab);
        assert_eq!(taken["keys"], 29);
        assert_eq!(verdicts(&lab, &[]), ["snapshot"]);
        if auth == "none" {
            restored(shelf.path().join(auth), &taken);
        }
        // And with it: users that could log in before can after.
        lab.etcdctl(&["del", "key-01"]).ok();
        lab.run(&["restore", "--yes"]).ok();
        assert_eq!(lab.etcdctl(&["get", "key-01", "--print-value-only"]).ok().stdout.trim(), "value");
        assert_eq!(lab.settled()["clusters"][0]["auth"], auth != "none");
        lab.destroy();
    }
}

fn restored(shelf: std::path::PathBuf, taken: &Value) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let dir = tempfile::tempdir().expect("a directory");
    let db = dir.path().join("snapshot.db");
    let store = Store::open(&Place::Directory(shelf)).expect("the store");
    let layout = Layout::new("", &Name::fixed("lab"), &Name::fixed("main"));
    let manifest: Manifest = runtime.block_on(async {
        let (name, counts) = full::list(&store, &layout).await.expect("a list").pop().expect("a backup");
        assert!(counts);
        // The lab's signing key is not known here: the signature is not checked.
        let trust = Trust { unsigned: true, ..Trust::default() };
        let repository = Repository { store, layout, cluster: Name::fixed("main"), trust };
        let manifest = repository.manifest(name).await.expect("its manifest");
        let file = std::fs::File::create(&db).expect("a file");
        full::fetch(&repository, &manifest, &Keys::default(), &TransferProgress::default(), file)
            .await
            .expect("its snapshot");
        manifest
    });
    assert_eq!(manifest.about.name.to_string(), taken["name"]);
    let data = dir.path().join("data");
    let etcdutl = etcd_dir().join(VERSION).join("etcdutl");
    let mut restore = Command::new(etcdutl);
    restore.args(["snapshot", "restore"]).arg(&db).arg("--data-dir").arg(&data);
    let restored = restore.output().expect("etcdutl");
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    let (clients, peers) = ("http://127.67.1.1:2379", "http://127.67.1.1:2380");
    let mut etcd = Command::new(etcd_dir().join(VERSION).join("etcd"));
    etcd.arg("--data-dir").arg(&data).args(["--listen-client-urls", clients, "--advertise-client-urls", clients]);
    etcd.args(["--listen-peer-urls", peers]).stdout(Stdio::null()).stderr(Stdio::null());
    let _alone = Alone(etcd.spawn().expect("etcd"));
    runtime.block_on(async {
        let revision = manifest.about.name.revision();
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let look = async {
                let mut client = etcd_client::Client::connect([clients], None).await?;
                let all = etcd_client::GetOptions::new().with_all_keys().with_count_only().with_revision(revision);
                let count = client.get("", Some(all)).await?.count();
                Ok::<_, etcd_client::Error>((client.hash_kv(revision).await?, count))
            };
            match look.await {
                Ok((hash, count)) => {
                    assert_eq!(hash.hash(), manifest.hashed.hash, "what was restored is what was there");
                    assert_eq!(hash.compact_version(), manifest.hashed.compacted);
                    assert_eq!(u64::try_from(count).ok(), Some(manifest.hashed.keys));
                    return;
                }
                Err(error) => assert!(Instant::now() < until, "etcd does not serve: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}
