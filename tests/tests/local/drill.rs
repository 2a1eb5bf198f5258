//! Agents that drill their own backups → the result is in the store and in `status`, also when it is a failure; and
//! copies of a backup, which can be restored like it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use age::secrecy::ExposeSecret as _;
use jiff::Timestamp;
use raftsman_tests::files::{below, write_private};
use raftsman_tests::lab::{Lab, etcd_dir, etcdctl, eventually, kill};
use rustix::process::Signal;
use serde_json::Value;

const VERSION: &str = "3.6.15";

fn ending(dir: &Path, ends: &str) -> Vec<PathBuf> {
    below(dir).into_iter().filter(|path| path.to_string_lossy().ends_with(ends)).collect()
}

fn problems(lab: &Lab) -> Vec<Value> {
    lab.cluster_status()["backups"]["problems"].as_array().cloned().unwrap_or_default()
}

#[test]
fn machines_try_their_backups_by_themselves() {
    let shelf = tempfile::tempdir().expect("a directory");
    let schedule = "  every: 1h\n  changes_every: 1s\n  drill_every: 10s\n";
    let lab = Lab::with_backups(3, VERSION, shelf.path(), schedule);
    let drill = || Some(lab.cluster_status()["drill"].clone()).filter(Value::is_object);
    eventually("the first drill", drill);
    for number in 0..30 {
        lab.etcdctl(&["put", &format!("key-{number}"), "value"]).ok();
    }
    lab.covered(Timestamp::now());
    let good = eventually("one with all keys", || drill().filter(|drill| drill["keys"].as_u64() >= Some(30)));
    assert!(good["batches"].as_u64() > Some(0) && good["behind"].is_i64(), "{good}");
    let keeper = lab.cluster_status()["backups"]["scheduler"].as_str().expect("a scheduler").to_owned();
    assert_eq!(good["machine"], keeper.as_str());
    let history = lab.run(&["drill", "--history", "--json"]).ok().json();
    assert!(history["drills"].as_array().expect("a list").len() >= 2, "{history}");
    lab.settled();

    // The backup in the store is damaged: the drill shows it before a restore needs it.
    let object = ending(shelf.path(), "snapshot.db.zst").pop().expect("a backup");
    let bytes = std::fs::read(&object).expect("its bytes");
    let mut other = bytes.clone();
    let middle = other.len() / 2;
    other[middle] ^= 1;
    std::fs::write(&object, &other).expect("a lie");
    let said = eventually("it is said", || problems(&lab).into_iter().find(|it| it["problem"] == "drill_failed"));
    assert!(said["error"].as_str().is_some_and(|error| error.contains("the backup `")), "{said}");
    let status = lab.run(&["status"]);
    assert_eq!(status.code, 2, "{}", status.all());
    assert!(status.stdout.contains("cannot be restored on"), "{}", status.stdout);

    // The agent that drills dies, and the next one knows the last result.
    std::fs::write(&object, &bytes).expect("as it was");
    let pid = lab.agents().into_iter().find(|(name, _)| *name == keeper).expect("its agent").1;
    kill(pid, Signal::KILL);
    lab.apply();
    let before = Timestamp::now();
    eventually("it is retried", || {
        let at = drill()?["at"].as_str()?.parse::<Timestamp>().ok()?;
        (at > before && problems(&lab).is_empty()).then_some(())
    });
    lab.nothing_to_do();
    // Without `drill_every` no agent drills.
    lab.write_file(&lab.file().replace("  drill_every: 10s\n", ""));
    lab.apply();
    lab.settled();
    let left: Vec<_> =
        below(lab.path()).into_iter().filter(|path| path.to_string_lossy().contains("rehears")).collect();
    assert!(left.is_empty(), "throwaway etcds leave nothing: {left:?}");
    lab.destroy();
}

/// A backup may be from before auth was on: any client with a certificate could read and write all of it.
#[test]
fn no_client_gets_into_a_temporary_etcd() {
    let shelf = tempfile::tempdir().expect("a directory");
    let lab = Lab::with_backups(1, VERSION, shelf.path(), "");
    lab.run(&["backup", "now"]).ok();
    let env = lab.run(&["env"]).ok().stdout;
    let (_, agent) = lab.agents().pop().expect("an agent");
    let drilling = lab.spawn(&["drill"]);
    // Held while it serves: its agent would end it soon.
    let clients = "--listen-client-urls=";
    let url = loop {
        let throwaway = lab.processes().into_iter().find(|(_, line)| line.contains("rehearsal-of-"));
        let urls = throwaway.and_then(|(_, line)| Some(line.split_once(clients)?.1.split(' ').next()?.to_owned()));
        if let Some(url) = urls {
            kill(agent, Signal::STOP);
            break url;
        }
    };
    let address = url.strip_prefix("https://").expect("TLS").to_owned();
    eventually("it listens", || std::net::TcpStream::connect(&address).ok());
    let script = format!("{env}\nexport ETCDCTL_ENDPOINTS={url}\nexec \"$ETCDCTL\" get key --dial-timeout 3s");
    let tried = Command::new("sh").args(["-c", &script]).env("ETCDCTL", etcdctl()).output().expect("a shell");
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    kill(agent, Signal::CONT);
    // By the TLS handshake, not by a missing role.
    assert!(!tried.status.success() && said.contains("connection error"), "root of the cluster was let in: {said}");
    let output = drilling.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    lab.destroy();
}

#[test]
fn a_copy_is_as_good_as_the_backup() {
    let shelf = tempfile::tempdir().expect("a directory");
    let ours = age::x25519::Identity::generate();
    let to = format!("  every: 1h\n  changes_every: 1s\n  encrypt_to: [{}]\n", ours.to_public());
    let lab = Lab::with_backups(1, VERSION, &shelf.path().join("store"), &to);
    let key = lab.path().join("right.key");
    write_private(&key, &format!("{}\n", ours.to_string().expose_secret()));
    let key = key.display().to_string();
    eventually("the first backup is made", || lab.cluster_status()["backups"]["full"].is_string().then_some(()));
    for number in 0..5 {
        lab.etcdctl(&["put", &format!("key-{number}"), "value"]).ok();
    }
    lab.covered(Timestamp::now());

    // To a directory: all changes come along. Twice, and after something was lost on the way.
    let disk = shelf.path().join("disk/of/operator");
    let copy = |further: &[&str]| lab.run(&[&["backup", "copy", "--json"], further].concat());
    let to_disk = ["--to", disk.to_str().expect("text")];
    let copied = copy(&to_disk).ok().json_lines().pop().expect("a line");
    assert!(copied["event"] == "copied" && copied["copy"]["batches"].as_u64() > Some(0), "{copied}");
    assert!(lab.run(&["backup", "copy", to_disk[0], to_disk[1]]).ok().stdout.contains("copied:"));
    let (here, there) = (shelf.path().join("store/lab"), disk.join("lab"));
    let snapshot = ending(&there, "snapshot.db.zst.age").pop().expect("a copy");
    let relative = snapshot.strip_prefix(&there).expect("below it").to_owned();
    let same = || std::fs::read(&snapshot).ok() == std::fs::read(here.join(&relative)).ok();
    assert!(same());
    for lost in ending(&there, ".json") {
        std::fs::remove_file(lost).expect("gone");
    }
    copy(&to_disk).ok();
    assert!(same());
    // A damaged copy is noticed, and so is another backup under its name.
    let bytes = std::fs::read(&snapshot).expect("its bytes");
    std::fs::write(&snapshot, &bytes[1..]).expect("a lie");
    let refused = copy(&to_disk).failed().all();
    assert!(refused.contains("damaged"), "{refused}");
    std::fs::write(&snapshot, &bytes).expect("as it was");
    let manifest = ending(&there, "manifest.json").pop().expect("a manifest");
    let text = std::fs::read_to_string(&manifest).expect("a text");
    std::fs::write(&manifest, format!("{text} ")).expect("a lie");
    assert!(copy(&to_disk).failed().all().contains("never written twice"));
    std::fs::write(&manifest, text).expect("as it was");

    // To the store of another file; a new cluster is bootstrapped from it there.
    let restored = Lab::cluster(1, VERSION, &["restore_from: { cluster: lab/main, key: { file: right.key } }"]);
    let second = shelf.path().join("second");
    std::fs::create_dir(&second).expect("a directory");
    let file = restored.file().replace("fleet: lab", "fleet: spare");
    let keys = lab.run(&["backup", "key", "--json"]).ok().json();
    let trust = format!("  trust: [{}]\n", keys["keys"][0]["key"]);
    restored.write_file(&format!("{file}backups:\n  store: {{ directory: {second:?} }}\n  prefix: far\n{trust}"));
    let other = restored.path().join("raftsman.yaml").display().to_string();
    let copied = lab.run(&["backup", "copy", "--to-store-of", &other]).ok().stdout;
    assert!(copied.contains("far/lab/main/full/"), "{copied}");
    std::fs::copy(&key, restored.path().join("right.key")).expect("a key");
    restored.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    assert_eq!(restored.etcdctl(&["get", "key-4", "--print-value-only"]).ok().stdout.trim(), "value");
    // Its machine tries the backups of the other: that one has nothing to do with it.
    let none = restored.run(&["drill", "--key", "right.key"]).failed().all();
    assert!(none.contains("no valid backup"), "of its own it has none: {none}");
    let drilled = restored.run(&["drill", "--from", "lab/main", "--key", "right.key", "--json"]).ok().json_lines();
    let drilled = &drilled.last().expect("a line")["drill"];
    assert!(drilled["keys"].as_u64() >= Some(5) && drilled["behind"].is_null(), "{drilled}");
    let history = restored.run(&["drill", "--from", "lab/main", "--history", "--json"]).ok().json();
    assert_eq!(history["drills"][0], *drilled, "{history}");
    assert!(restored.cluster_status()["drill"].is_null(), "it was not its own");
    restored.destroy();

    // The snapshot alone.
    let plain = shelf.path().join("plain.db");
    let to_file = ["--snapshot", plain.to_str().expect("text")];
    let refused = copy(&to_file).failed().all();
    assert!(refused.contains("encrypted") && !plain.exists(), "{refused}");
    copy(&[&to_file[..], &["--key", &key]].concat()).ok();
    let mode = std::fs::metadata(&plain).expect("a file").permissions().mode();
    assert_eq!(mode & 0o077, 0, "it contains all data: only its owner may read it");
    let looked =
        Command::new(etcd_dir().join(VERSION).join("etcdutl")).args(["snapshot", "status"]).arg(&plain).status();
    assert!(looked.expect("etcdutl").success());
    let refused = copy(&[&to_file[..], &["--key", &key]].concat()).failed().all();
    assert!(refused.contains("is there already"), "{refused}");
    lab.destroy();
}
