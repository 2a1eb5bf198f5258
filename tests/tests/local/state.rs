//! Readers beside writers, stopped processes, lost and damaged ledgers on a real cluster → nothing is undone.

use std::path::Path;
use std::thread;
use std::time::Duration;

use raftsman_tests::lab::engine::block_on;
use raftsman_tests::lab::{Lab, etcd_dir, eventually, kill};
use raftsman_tests::readers::{beside, one_chain};
use rustix::process::Signal;
use serde_json::Value;

fn ledger_bytes(lab: &Lab) -> Vec<u8> {
    std::fs::read(lab.path().join(".raftsman/clusters/main.json")).expect("a ledger")
}

#[test]
fn eight_loops_of_readers_beside_growth_rotation_and_shrinking_undo_nothing() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let ((), ran) = beside(&lab, || {
        lab.write_file(&lab.file().replace("members: 3", "members: 5"));
        lab.run(&["apply", "--yes", "--timeout", "120s"]).ok();
        let started = lab.ledger()["started"].as_object().expect("started").len();
        assert_eq!(started, 5, "{}", lab.ledger());
        assert!(one_chain(&lab).expect("one chain") > 1);
        lab.run(&["cert", "rotate", "peers", "--yes", "--timeout", "120s"]).ok();
        let ledger = lab.ledger();
        assert_eq!(ledger["peers"]["current"]["number"], 2, "{ledger}");
        lab.write_file(&lab.file().replace("members: 5", "members: 3"));
        lab.run(&["apply", "--yes", "--timeout", "120s"]).ok();
    });
    assert!(ran > 16, "readers ran {ran} times");
    assert!(one_chain(&lab).expect("one chain") > 1);
    assert_eq!(lab.ledger()["started"].as_object().map(serde_json::Map::len), Some(3));
    assert_eq!(lab.ledger()["peers"]["current"]["number"], 2);
    lab.settled();
    lab.nothing_to_do();
    lab.destroy();
}

#[test]
fn a_reader_that_was_stopped_takes_nothing_back() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    // With one etcd stopped an observation is slow: the reader has read the ledger and waits.
    let (_, slow) = lab.etcds().into_iter().next().expect("an etcd");
    kill(slow, Signal::STOP);
    let mut reader = lab.spawn(&["status", "--json"]);
    thread::sleep(Duration::from_millis(400));
    kill(reader.id(), Signal::STOP);
    kill(slow, Signal::CONT);
    eventually("all members", || (lab.status()["clusters"][0]["settled"] == true).then_some(()));
    lab.run(&["cert", "rotate", "peers", "--yes", "--timeout", "120s"]).ok();
    let before = ledger_bytes(&lab);
    kill(reader.id(), Signal::CONT);
    reader.wait().expect("it ends");
    assert_eq!(ledger_bytes(&lab), before);
    assert_eq!(lab.ledger()["peers"]["current"]["number"], 2);
    lab.nothing_to_do();
    lab.destroy();
}

/// Machines and members as they are: what a wrong step would change.
fn running(lab: &Lab) -> Vec<(String, u32)> {
    lab.etcds()
}

fn remove(path: &Path) {
    match path.is_dir() {
        true => std::fs::remove_dir_all(path).expect("removed"),
        false => std::fs::remove_file(path).expect("removed"),
    }
}

/// Takes the authorities and secrets of the cluster away as well, for a while: its machines show that it is not new.
fn only_machines_are_left(lab: &Lab) {
    let mut moved = Vec::new();
    for shelf in ["certificates", "secrets"] {
        for name in lab.listing(shelf).into_iter().filter(|name| name.starts_with("main-")) {
            let from = lab.path().join(".raftsman").join(shelf).join(&name);
            let to = lab.path().join(format!("{shelf}-{name}"));
            std::fs::rename(&from, &to).expect("moved");
            moved.push((from, to));
        }
    }
    assert!(moved.len() >= 4, "certificates and keys of both authorities: {moved:?}");
    for verb in [&["apply", "--yes"][..], &["plan"], &["status"]] {
        let refused = lab.run(verb).failed().all();
        assert!(refused.contains("is missing, though there is machine `main-1`"), "{verb:?}: {refused}");
    }
    let checked = lab.run(&["state", "check", "--json"]);
    let found = checked.json()["ledgers"][0].clone();
    assert_eq!((checked.code, &found["remedy"]), (1, &"world".into()), "{found}");
    assert_eq!(found["problem"], "it is missing, though there is machine `main-1`");
    // A ledger without them would have new ones made, which no member trusts.
    let refused = lab.run(&["state", "repair", "--yes"]).failed().all();
    assert!(refused.contains("the state keeps no peers CA"), "{refused}");
    for (from, to) in moved {
        std::fs::rename(to, from).expect("moved back");
    }
}

#[test]
fn a_lost_ledger_is_refused_and_brought_back() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let pids = running(&lab);
    let (ledger, history) = (lab.path().join(".raftsman/clusters/main.json"), lab.path().join(".raftsman/history"));
    let true_one = lab.ledger();
    for (damage, says) in [(None, "missing"), (Some("{}"), "damaged"), (Some(""), "damaged")] {
        match damage {
            None => remove(&ledger),
            Some(text) => std::fs::write(&ledger, text).expect("written"),
        }
        for verb in [&["apply", "--yes"][..], &["plan"], &["status"], &["destroy", "--yes"], &["cert", "list"]] {
            let refused = lab.run(verb).failed().all();
            assert!(refused.contains(says) && refused.contains("raftsman state repair"), "{verb:?}: {refused}");
        }
        assert_eq!(lab.run(&["state", "check"]).code, 1);
        let repaired = lab.run(&["state", "repair", "--yes", "--json"]).ok().json();
        assert!(repaired["repaired"][0]["from"]["history"]["version"].is_number(), "{repaired}");
        assert!(repaired["repaired"][0]["lost"].as_array().is_some_and(Vec::is_empty), "{repaired}");
        assert_eq!(lab.ledger(), true_one);
        lab.nothing_to_do();
    }
    // Neither the ledger nor its history: rebuilt from the machines and members.
    remove(&ledger);
    remove(&history);
    only_machines_are_left(&lab);
    assert!(!ledger.exists() && running(&lab) == pids);
    let refused = lab.run(&["apply", "--yes"]).failed().all();
    assert!(refused.contains("though there is a peers CA"), "{refused}");
    let repaired = lab.run(&["state", "repair", "--yes", "--json"]).ok().json();
    assert_eq!(repaired["repaired"][0]["from"], "world");
    let lost: Vec<&str> =
        repaired["repaired"][0]["lost"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for what in ["marked to be replaced", "since when members are down", "measured timers", "drill", "revision"] {
        assert!(lost.iter().any(|words| words.contains(what)), "{what}: {lost:?}");
    }
    let rebuilt = lab.ledger();
    for key in ["cluster", "members", "started", "auth", "peers", "clients"] {
        assert_eq!(rebuilt[key], true_one[key], "{key}");
    }
    lab.nothing_to_do();
    assert_eq!(running(&lab), pids);
    lab.run(&["state", "check"]).ok();
    // What was lost with it shows: a member whose machine goes now is not made again, empty, under its old id.
    let (name, pid) = lab.etcds().into_iter().next_back().expect("an etcd");
    for (agent, pid) in lab.agents() {
        if agent == name {
            kill(pid, Signal::KILL);
        }
    }
    kill(pid, Signal::KILL);
    remove(&lab.machine(&name));
    let blocked = lab.run(&["apply", "--yes", "--timeout", "20s"]).failed().all();
    assert!(blocked.contains("raftsman replace"), "{blocked}");
    assert!(!lab.etcds().iter().any(|(other, _)| *other == name));
    lab.destroy();
}

#[test]
fn a_stale_copy_of_the_state_changes_nothing() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let before = lab.ledger();
    // A process that read the ledger, and got the lock after another process changed it.
    let dir = lab.path().join(".raftsman");
    let store = block_on(raftsman_engine::store::Store::open(&dir, "lab")).expect("a state");
    let stale = block_on(store.get_cluster::<Value>("main")).expect("sound").expect("a ledger");
    lab.change_ledger(|ledger| ledger["last_revision"] = 4711.into());
    let info = raftsman_engine::store::LockInfo::new("test", "test", "test");
    let lock = block_on(store.lock(info)).expect("the lock");
    let refused = block_on(store.put_cluster(&lock, "main", &stale.version, &before)).expect_err("refused").to_string();
    assert!(refused.contains("has changed since it was read"), "{refused}");
    drop(lock);
    assert_eq!(lab.ledger()["last_revision"], 4711);
    lab.destroy();
}

/// A file with two clusters.
fn two_clusters(further: &str) -> String {
    let cluster = |name: &str| {
        let source = etcd_dir();
        format!("  {name}:\n    members: 3\n    version: 3.6.15\n    source: {{ directory: {source:?} }}\n{further}")
    };
    format!("fleet: lab\netcd:\n{}{}", cluster("one"), cluster("two"))
}

#[test]
fn two_operators_change_two_clusters_at_once() {
    let lab = Lab::new(&two_clusters(""));
    lab.apply();
    let versions = lab.run(&["version", "--json"]).ok().json();
    let agents = versions["agents"].as_array().expect("agents").iter();
    let machines: Vec<&str> = agents.clone().filter_map(|agent| agent["machine"].as_str()).collect();
    assert_eq!(machines, ["one-1", "one-2", "one-3", "two-1", "two-2", "two-3"], "{versions}");
    assert!(agents.clone().all(|agent| agent["version"] == versions["version"]), "{versions}");

    // The first operator stands still in the middle of its work on one cluster.
    lab.write_file(&two_clusters("    log_level: warn\n"));
    let journal =
        || std::fs::read_to_string(lab.path().join(".raftsman/journal.jsonl")).expect("a journal").lines().count();
    let before = journal();
    let mut first = lab.spawn(&["apply", "one", "--yes", "--timeout", "60s"]);
    let lock = lab.path().join(".raftsman/locks/one.lock");
    eventually("the lock is taken", || std::fs::read_to_string(&lock).is_ok_and(|t| t.contains("apply")).then_some(()));
    eventually("it has begun", || (journal() > before).then_some(()));
    kill(first.id(), Signal::STOP);
    for refused in [&["apply", "one", "--yes"][..], &["apply", "--yes"], &["destroy", "--yes"], &["defrag", "one"]] {
        let said = lab.run(refused).failed().all();
        assert!(said.contains("is running `raftsman apply` on cluster `one`"), "{refused:?}: {said}");
    }
    lab.run(&["apply", "two", "--yes", "--timeout", "60s"]).ok();
    kill(first.id(), Signal::CONT);
    assert!(first.wait().expect("it ends").success(), "the first operator was not disturbed");
    lab.settled();
    lab.nothing_to_do();
    lab.destroy();
}

#[test]
fn a_provider_that_cannot_be_asked_hides_neither_agents_nor_etcd() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let tag = lab.machine("main-2").join("machine.json");
    let whole = std::fs::read(&tag).expect("the machine's tag");
    std::fs::write(&tag, "{").expect("damaged");
    let status = lab.status();
    assert_eq!(status["provider_unreachable"].as_array().map(Vec::len), Some(1), "{status}");
    let cluster = &status["clusters"][0];
    let states: Vec<&str> =
        cluster["members"].as_array().expect("members").iter().filter_map(|m| m["state"].as_str()).collect();
    assert!(states.iter().all(|state| ["leader", "follower"].contains(state)), "{status}");
    assert_eq!((&cluster["settled"], &cluster["tolerance"]["can_lose"]), (&false.into(), &1.into()), "{status}");
    assert!(lab.run(&["status"]).all().contains("provider: the provider cannot be asked for machines"));
    assert!(lab.run(&["plan"]).ok().all().contains("provider: the provider cannot be asked for machines"));
    let refused = lab.run(&["destroy", "--yes"]).failed().all();
    assert!(refused.contains("nothing was destroyed, because its machines would be left behind"), "{refused}");
    // What needs no machine is done.
    lab.write_file(&format!("{}    users: {{ app: {{ roles: [] }} }}\n", lab.file()));
    let applied = lab.run(&["apply", "--yes", "--timeout", "5s"]).failed().all();
    assert!(applied.contains("set user") && applied.contains("main-2: the provider does not answer"), "{applied}");
    std::fs::write(&tag, whole).expect("whole again");
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    lab.settled();
    lab.destroy();
}
