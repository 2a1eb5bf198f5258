//! A majority destroyed on real etcd → rebuilt around the survivor with the newest data, and the loss reported exactly.

#![allow(clippy::print_stdout, reason = "measurements of a run go to its log")]

use std::io::{BufRead as _, BufReader};

use raftsman_tests::lab::{Lab, eventually, forecast_equals_fact};
use raftsman_tests::load::{Load, LoadSettings};
use serde_json::Value;

/// Writes a key; the answer is its revision. While a leader is elected, it is tried again.
fn put(lab: &Lab, key: &str) -> i64 {
    eventually("a write is acknowledged", || {
        let written = lab.etcdctl(&["put", key, "written", "-w", "json"]);
        (written.code == 0).then(|| written.json()["header"]["revision"].as_i64().expect("a revision"))
    })
}

fn there(lab: &Lab, key: &str) -> bool {
    lab.etcdctl(&["get", key, "--print-value-only"]).ok().stdout.trim() == "written"
}

/// Every member has applied everything so far: a follower learns the commit index with the next heartbeat.
fn all_heard() {
    std::thread::sleep(std::time::Duration::from_secs(1));
}

/// Waits until it is clear what is left.
fn survey(lab: &Lab, survivor: &str) -> Value {
    eventually("it is clear what is left", || {
        let lines = lab.run(&["recover", "--show", "--json"]).json_lines();
        let survey = lines.iter().find(|l| l["event"] == "survey")?["survey"].clone();
        let proposal = &survey["outcome"]["Ok"];
        (proposal["survivor"] == survivor && proposal["revision"].is_i64()).then_some(survey)
    })
}

fn state<'a>(survey: &'a Value, name: &str) -> &'a Value {
    let members = survey["members"].as_array().expect("members");
    &members.iter().find(|m| m["name"] == name).expect("the member")["state"]
}

fn rebuild(lab: &Lab) -> i64 {
    let output = lab.run(&["recover", "--yes", "--json", "--timeout", "90s"]).ok();
    // The id of the new cluster is the one thing that the forecast cannot know.
    let id = |event: &str| {
        let lines = output.stdout.lines().filter(|line| line.contains(&format!("\"event\":\"{event}\"")));
        let ids: Vec<&str> = lines.flat_map(|line| line.split("\"joining\":\"").skip(1)).collect();
        ids.first().and_then(|rest| rest.split('"').next()).expect("a cluster that grows").to_owned()
    };
    let lines = output.stdout.replace(&id("plan"), &id("wave"));
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    forecast_equals_fact(&lines);
    assert_eq!(lab.cluster_status()["settled"], true);
    let again = lab.run(&["plan", "--json"]).ok().json();
    assert_eq!(again["clusters"][0]["waves"].as_array().map(Vec::len), Some(0), "{again}");
    put(lab, "later")
}

#[test]
fn two_of_three_are_destroyed() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    assert!(lab.run(&["recover", "--yes"]).failed().all().contains("nothing to recover"));
    let before: Vec<(String, i64)> =
        (0..10).map(|n| format!("before-{n}")).map(|k| (k.clone(), put(&lab, &k))).collect();
    all_heard();
    lab.cut_power("main-2");
    // Writes that only the two others received.
    let after: Vec<(String, i64)> = (0..5).map(|n| format!("after-{n}")).map(|k| (k.clone(), put(&lab, &k))).collect();
    all_heard();
    lab.demolish("main-1");
    all_heard();
    lab.demolish("main-3");
    // It does not guess: the member without power may have the newest data.
    let refused = lab.run(&["recover", "--yes"]).failed().all();
    assert!(refused.contains("whether main-2 still has its data") && refused.contains("--lost main-2"), "{refused}");
    let none = lab.run(&["recover", "--yes", "--lost", "main-2"]).failed().all();
    assert!(none.contains("no member has its data"), "{none}");
    lab.run(&["apply", "--yes", "--timeout", "2s"]).failed();
    let found = survey(&lab, "main-2");
    let kept = found["outcome"]["Ok"]["revision"].as_i64().expect("a revision");
    assert_eq!(state(&found, "main-1")["state"], "lost");
    println!("{}", lab.run(&["recover", "--show"]).ok().stdout);

    let revision = rebuild(&lab);
    for (key, written) in before.iter().chain(&after) {
        assert_eq!(there(&lab, key), *written <= kept, "{key} of revision {written}, where {kept} was to stay");
    }
    assert!(before.iter().all(|(_, written)| *written <= kept), "what it knew is lost: {before:?}, {kept}");
    assert!(after.iter().all(|(_, written)| *written > kept), "it never received {after:?}, {kept}");
    assert!(revision > kept + 1_000_000_000, "revisions went back: {revision}");
    // A watch from a lost revision gets an error, and does not wait for it for ever.
    let watched = lab.etcdctl(&["watch", "before-0", "--rev", &(kept + 2).to_string()]).failed().all();
    assert!(watched.contains("compacted"), "{watched}");
    // The old data is put aside.
    assert!(lab.machine("main-2").join("etcd/removed").is_dir());
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(200);
    load.finish().assert_clean();
    lab.destroy();
}

#[test]
fn three_of_five_are_destroyed_and_the_command_is_killed_on_the_way() {
    let lab = Lab::cluster(5, "3.6.15", &[]);
    lab.apply();
    put(&lab, "first");
    all_heard();
    lab.cut_power("main-4");
    let known = put(&lab, "second");
    all_heard();
    lab.cut_power("main-2");
    put(&lab, "third");
    for name in ["main-1", "main-3", "main-5"] {
        all_heard();
        lab.demolish(name);
    }
    lab.run(&["apply", "--yes", "--timeout", "2s"]).failed();
    let found = survey(&lab, "main-2");
    assert_eq!(found["outcome"]["Ok"]["revision"], known);
    let less = state(&found, "main-4")["revision"].as_i64().expect("a revision");
    assert!(less < known, "{found}");
    // Killed in the first wave, taken up, killed in the next, and so on.
    for _ in 0..5 {
        let mut child = lab.spawn(&["recover", "--yes", "--json"]);
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let wave = output.lines().map_while(Result::ok).any(|line| line.contains("\"event\":\"wave\""));
        let _ = child.kill();
        let _ = child.wait();
        assert!(wave, "it ended without a wave");
        // The agent may be at it still; then it goes on with the next.
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    lab.run(&["apply", "--yes", "--timeout", "90s"]).ok();
    assert_eq!(lab.cluster_status()["settled"], true);
    assert!(there(&lab, "first") && there(&lab, "second") && !there(&lab, "third"));
    assert!(put(&lab, "later") > known + 1_000_000_000);
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(200);
    load.finish().assert_clean();
    lab.destroy();
}
