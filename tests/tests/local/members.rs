//! Members that come, go, move and die on real etcd, under client load → nothing is lost.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use raftsman_tests::dice::Dice;
use raftsman_tests::lab::{Lab, kill, soak};
use raftsman_tests::load::{Load, LoadSettings};
use rustix::process::Signal;

/// Replaces `from` in the file by `to`, and applies.
fn change(lab: &Lab, from: &str, to: &str) -> Vec<serde_json::Value> {
    let file = lab.file();
    assert!(file.contains(from), "{file}");
    lab.write_file(&file.replace(from, to));
    lab.apply()
}

fn members(lab: &Lab) -> Vec<String> {
    let status = lab.cluster_status();
    assert_eq!(status["settled"], true, "{status}");
    let list = lab.etcdctl(&["member", "list"]).ok().stdout;
    let mut names: Vec<String> = list.lines().filter_map(|l| l.split(", ").nth(2).map(str::to_owned)).collect();
    assert!(list.lines().all(|l| l.ends_with("false")), "no member is a learner any more: {list}");
    names.sort();
    names
}

#[test]
fn a_cluster_grows_and_shrinks_under_load() {
    let lab = Lab::cluster(1, "3.6.15", &[]);
    lab.apply();
    let load = Load::start(&lab, LoadSettings::default());
    for (from, to) in [(1, 3), (3, 5), (5, 3)] {
        load.mark(&format!("{from} to {to}"));
        change(&lab, &format!("members: {from}"), &format!("members: {to}"));
        let wanted: Vec<String> = (1..=to).map(|n| format!("main-{n}")).collect();
        assert_eq!(members(&lab), wanted);
        assert_eq!(lab.listing("machines"), wanted, "machines of members that went are given back");
    }
    load.await_writes(100);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_clean();
    // Two, and then one: no member is left to take over, and nothing is lost.
    change(&lab, "members: 3", "members: 1");
    assert_eq!(members(&lab), ["main-1"]);
    lab.destroy();
}

#[test]
fn a_machine_that_is_gone_is_replaced_when_the_file_says_so() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(100);
    let gone = lab.cluster_status()["members"]
        .as_array()
        .expect("members")
        .iter()
        .find_map(|m| (m["state"] == "follower").then(|| m["name"].as_str().expect("a name").to_owned()));
    let gone = gone.expect("a follower");
    lab.demolish(&gone);
    // The operator has not given it up.
    let refused = lab.run(&["apply", "--yes", "--timeout", "3s"]).failed().all();
    assert!(refused.contains(&format!("raftsman replace {gone}")), "{refused}");
    lab.write_file(&format!("{}    replace_after: 1s\n", lab.file()));
    std::thread::sleep(std::time::Duration::from_secs(1));
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    assert_eq!(members(&lab), ["main-1", "main-2", "main-3"]);
    load.await_writes(100);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_consistent();
    lab.destroy();
}

#[test]
fn a_wiped_disk_is_replaced_on_request() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(100);
    let (name, pid) = lab.etcds().remove(0);
    std::fs::remove_dir_all(lab.machine(&name).join("etcd/data")).expect("etcd's data");
    kill(pid, Signal::KILL);
    let refused = lab.run(&["apply", "--yes", "--timeout", "5s"]).failed().all();
    assert!(refused.contains(&format!("raftsman replace {name}")), "{refused}");
    lab.run(&["replace", &name, "--yes", "--timeout", "60s"]).ok();
    assert_eq!(members(&lab), ["main-1", "main-2", "main-3"]);
    load.await_writes(100);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_consistent();
    lab.destroy();
}

#[test]
fn a_replacement_that_was_interrupted_goes_on_by_the_same_command() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let replace = ["replace", "main-2", "--yes", "--json", "--timeout", "60s"];
    let mut child = lab.command(&replace).stdout(Stdio::piped()).spawn().expect("raftsman starts");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    // In the third wave it is out of the cluster, and not in again.
    let third = lines.filter(|line| line.contains(r#""event":"wave""#)).nth(2);
    assert!(third.is_some(), "the replacement has at least three waves");
    child.kill().expect("raftsman is killed");
    child.wait().expect("raftsman ends");
    let list = lab.etcdctl(&["member", "list"]).ok().stdout;
    assert!(!list.contains("main-2"), "not in between any more: {list}");
    lab.run(&replace).ok();
    assert_eq!(members(&lab), ["main-1", "main-2", "main-3"]);
    lab.destroy();
}

/// A learner does not authenticate clients: its progress is read with the token of a voter.
#[test]
fn with_passwords_members_are_replaced_and_added() {
    let versions = ["3.4.45", "3.5.34", "3.6.15", "3.7.2"];
    let part = if soak() { versions.len() } else { 1 };
    for version in Dice::of_this_run("members with passwords").some(&versions, part) {
        let lab = Lab::cluster(3, version, &["auth: { mode: password }"]);
        lab.apply();
        lab.run(&["replace", "main-2", "--yes", "--timeout", "30s"]).ok();
        assert_eq!(members(&lab), ["main-1", "main-2", "main-3"], "{version}");
        change(&lab, "members: 3", "members: 4");
        assert_eq!(members(&lab), ["main-1", "main-2", "main-3", "main-4"], "{version}");
        lab.destroy();
    }
}

#[test]
fn a_member_gets_another_address_and_another_another_name() {
    let list = |b: &str, c: &str| {
        format!("members: [{{ name: a, address: 127.61.7.1 }}, {{ name: b, address: {b} }}, {{ name: {c} }}]")
    };
    let lab = Lab::cluster(3, "3.6.15", &[]);
    let file = lab.file().replace("members: 3", &list("127.61.7.2", "c"));
    lab.write_file(&file.replace("fleet: lab\n", "fleet: lab\nmachines: { network: 127.61.7.0/24 }\n"));
    lab.apply();
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(100);
    change(&lab, &list("127.61.7.2", "c"), &list("127.61.7.42", "c"));
    assert_eq!(members(&lab), ["a", "b", "c"]);
    let moved = lab.etcdctl(&["member", "list"]).ok().stdout;
    assert!(moved.contains("https://127.61.7.42:2380") && !moved.contains("127.61.7.2:"), "{moved}");
    change(&lab, &list("127.61.7.42", "c"), &list("127.61.7.42", "d"));
    assert_eq!(members(&lab), ["a", "b", "d"]);
    load.await_writes(100);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_clean();
    lab.destroy();
}

#[test]
fn a_quiet_cluster_with_a_long_past_grows() {
    // 16,000 entries take their time.
    if !soak() {
        return;
    }
    let lab = Lab::cluster(1, "3.6.15", &[]);
    lab.apply();
    // More entries than the leader keeps for slow followers: a new member is sent a snapshot.
    let load = Load::start(&lab, LoadSettings { rate: 4000, workers: 128, ..LoadSettings::default() });
    load.await_writes(16_000);
    load.finish().assert_consistent();
    // No client writes from here on.
    change(&lab, "members: 1", "members: 3");
    assert_eq!(members(&lab), ["main-1", "main-2", "main-3"]);
    lab.destroy();
}
