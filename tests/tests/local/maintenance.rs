//! Real etcd that is full, large or corrupt → room again after one apply, no error for clients, the right member named.

use raftsman_tests::bulk::Bulk;
use raftsman_tests::lab::{Lab, eventually, kill};
use raftsman_tests::load::{Load, LoadSettings};
use rustix::process::Signal;
use serde_json::Value;

/// Small, and only raftsman compacts.
const SMALL: [&str; 2] = ["quota: 16MiB", "auto_compaction: { mode: periodic, retention: 12h }"];
const KEPT: [&str; 1] = ["auto_compaction: { mode: periodic, retention: 12h }"];

/// Writes until etcd takes no more.
#[track_caller]
fn fill_up(bulk: &Bulk, prefix: &str, keys: usize, bytes: usize) {
    let refused = bulk.fill(prefix, keys, (50 << 20) / bytes, bytes).expect_err("the quota is 16 MiB, and this is 50");
    assert!(refused.to_string().contains("space exceeded"), "{refused}");
    assert!(bulk.put("one more", "key").is_err());
}

/// The verbs of the steps that an apply carried out, in order.
fn done(lines: &[Value]) -> Vec<String> {
    let done = lines.iter().filter(|l| l["event"] == "done");
    done.map(|l| l["action"]["do"].as_str().expect("an action").to_owned()).collect()
}

fn count(verbs: &[String], verb: &str) -> usize {
    verbs.iter().filter(|v| *v == verb).count()
}

#[track_caller]
fn settled(lab: &Lab) -> Value {
    let status = lab.cluster_status();
    assert_eq!(status["settled"], true, "{status}");
    assert_eq!(status["alarms"].as_array().map(Vec::len), Some(0), "{status}");
    status
}

/// The largest database of a cluster.
fn largest(status: &Value) -> i64 {
    let sizes = status["members"].as_array().expect("members").iter().filter_map(|m| m["db_size"].as_i64());
    sizes.max().expect("sizes")
}

fn full_and_writable_again(version: &str) {
    let lab = Lab::cluster(3, version, &SMALL);
    lab.apply();
    let bulk = Bulk::of(&lab);
    bulk.put("config/kept", "by compaction").expect("a write");
    fill_up(&bulk, "logs/", 5, 128 << 10);

    let status = lab.cluster_status();
    assert_eq!(status["alarms"][0], "nospace", "{status}");
    let filled = &status["filling"]["prefixes"][0];
    assert_eq!((&filled["prefix"], &filled["keys"]), (&"logs/".into(), &5.into()), "{status}");
    let history = filled["history"].as_u64().expect("bytes");
    assert!((8 << 20..24 << 20).contains(&history), "about 15 MiB of old values: {history}");
    let output = lab.run(&["plan"]).ok().stdout;
    assert!(output.contains("the quota is used up, most by `logs/` (5 keys"), "{output}");

    let lines = lab.run(&["apply", "--yes", "--json", "--timeout", "60s"]).ok().json_lines();
    let verbs = done(&lines);
    assert_eq!((count(&verbs, "compact"), count(&verbs, "defragment"), count(&verbs, "disarm_alarm")), (1, 3, 1));
    assert_eq!(verbs.first().map(String::as_str), Some("compact"), "{verbs:?}");
    assert_eq!(verbs.last().map(String::as_str), Some("disarm_alarm"), "{verbs:?}");

    bulk.put("one more", "key").expect("it takes writes again");
    assert_eq!(bulk.get("config/kept").as_deref(), Some("by compaction"));
    let status = settled(&lab);
    assert!(largest(&status) < 4 << 20, "{status}");
    lab.nothing_to_do();
    lab.run(&["verify"]).ok();
    lab.destroy();
}

#[test]
fn a_full_cluster_takes_writes_again_after_one_apply_3_4() {
    full_and_writable_again("3.4.45");
}

#[test]
fn a_full_cluster_takes_writes_again_after_one_apply_3_5() {
    full_and_writable_again("3.5.34");
}

#[test]
fn a_full_cluster_takes_writes_again_after_one_apply_3_6() {
    full_and_writable_again("3.6.15");
}

#[test]
fn a_full_cluster_takes_writes_again_after_one_apply_3_7() {
    full_and_writable_again("3.7.2");
}

#[test]
fn data_that_fills_the_quota_is_named_and_left_alone() {
    let lab = Lab::cluster(3, "3.6.15", &SMALL);
    lab.apply();
    let bulk = Bulk::of(&lab);
    fill_up(&bulk, "archive/2026/", usize::MAX, 16 << 10);
    let refused = lab.run(&["apply", "--yes", "--timeout", "30s"]).failed().all();
    assert!(refused.contains("the data itself fills the quota"), "{refused}");
    assert!(refused.contains("`archive/2026/`"), "{refused}");
    assert!(refused.contains("raise `quota:` in the file"), "{refused}");
    assert!(bulk.put("still", "full").is_err());
    // Again: nothing more is done to it.
    let again = lab.run(&["apply", "--yes", "--json", "--timeout", "30s"]).failed().json_lines();
    assert_eq!(done(&again), Vec::<String>::new());

    // Deleting goes through, and room is made of it.
    bulk.delete("archive/");
    let lines = lab.run(&["apply", "--yes", "--json", "--timeout", "60s"]).ok().json_lines();
    assert_eq!(count(&done(&lines), "disarm_alarm"), 1);
    bulk.put("room", "again").expect("it takes writes again");

    // And a greater quota is carried through a full cluster.
    fill_up(&bulk, "archive/2027/", usize::MAX, 16 << 10);
    lab.write_file(&lab.file().replace("quota: 16MiB", "quota: 64MiB"));
    let lines = lab.run(&["apply", "--yes", "--json", "--timeout", "60s"]).ok().json_lines();
    let verbs = done(&lines);
    assert_eq!((count(&verbs, "restart_etcd"), count(&verbs, "compact"), count(&verbs, "disarm_alarm")), (3, 0, 1));
    bulk.fill("archive/2028/", 100, 100, 128 * 1024).expect("there is room for as much again");
    settled(&lab);
    lab.destroy();
}

#[test]
fn databases_are_rewritten_under_load_without_an_error() {
    let lab = Lab::cluster(3, "3.6.15", &KEPT);
    lab.apply();
    let bulk = Bulk::of(&lab);
    bulk.fill("bulk/", 20, 300, 128 * 1024).expect("written");
    lab.run(&["compact", "--yes"]).ok();
    let before = largest(&lab.cluster_status());
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(200);
    load.mark("defrag");
    let lines = lab.run(&["defrag", "--json"]).ok().json_lines();
    let verbs = done(&lines);
    assert_eq!((count(&verbs, "defragment"), count(&verbs, "move_leader")), (3, 1), "{lines:?}");
    load.mark("done");
    load.await_writes(200);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_clean();
    let after = largest(&lab.cluster_status());
    assert!(after * 2 < before, "{before} → {after}");
    assert!(lab.run(&["defrag"]).ok().stdout.contains("Nothing to do"), "there is nothing to be won any more");
    lab.run(&["verify"]).ok();
    lab.destroy();
}

#[test]
fn what_the_file_asks_for_is_done_by_apply() {
    let rule = "maintenance: { defragment: { free: 50%, at_least: 4MiB } }";
    let lab = Lab::cluster(3, "3.6.15", &[KEPT[0], rule]);
    lab.apply();
    let bulk = Bulk::of(&lab);
    bulk.fill("bulk/", 10, 100, 128 * 1024).expect("written");
    lab.nothing_to_do();
    lab.run(&["compact", "--yes", "--keep", "5"]).ok();
    let output = lab.run(&["plan"]).ok().stdout;
    assert!(output.contains("are free"), "{output}");
    let lines = lab.run(&["apply", "--yes", "--json"]).ok().json_lines();
    let mut verbs = done(&lines);
    // What compaction freed counts as free on a member after its next commits: a quiet one may have none for a while.
    eventually("all of them were rewritten", || {
        if count(&verbs, "defragment") >= 3 {
            return Some(());
        }
        lab.etcdctl(&["put", "tick", "tock"]).ok();
        std::thread::sleep(std::time::Duration::from_millis(300));
        verbs.extend(done(&lab.run(&["apply", "--yes", "--json"]).ok().json_lines()));
        None
    });
    assert_eq!(count(&verbs, "defragment"), 3, "{verbs:?}");
    assert!(count(&verbs, "move_leader") >= 1, "{verbs:?}");
    let status = settled(&lab);
    assert!(largest(&status) < 8 << 20, "{status}");
    assert_eq!(done(&lab.apply()), Vec::<String>::new(), "once is enough");
    // In a window that is never open nothing is done.
    bulk.fill("bulk/", 10, 100, 128 * 1024).expect("written");
    lab.run(&["compact", "--yes"]).ok();
    let hour = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).hour();
    let (from, to) = ((hour + 4) % 24, (hour + 5) % 24);
    let window = format!("at_least: 4MiB }}, window: {{ from: \"{from:02}:00\", to: \"{to:02}:00\" }} }}");
    lab.write_file(&lab.file().replace("at_least: 4MiB } }", &window));
    lab.nothing_to_do();
    lab.destroy();
}

/// Ends a machine's agent and etcd, in this order: the agent would start etcd again.
fn end(lab: &Lab, machine: &str) {
    for processes in [lab.agents(), lab.etcds()] {
        let pid = processes.into_iter().find(|(name, _)| name == machine).expect("it runs").1;
        kill(pid, Signal::KILL);
        eventually("it is gone", || (!lab.processes().iter().any(|(p, _)| *p == pid)).then_some(()));
    }
}

/// Damages a value in a member's database, on the disk.
fn damage(lab: &Lab, machine: &str, value: &str) {
    end(lab, machine);
    let path = lab.machine(machine).join("etcd/data/member/snap/db");
    let mut bytes = std::fs::read(&path).expect("a database");
    let places: Vec<usize> = memchr::memmem::find_iter(&bytes, value).collect();
    assert!(!places.is_empty(), "the value is in the database");
    for place in places {
        bytes[place] ^= 1;
    }
    std::fs::write(&path, bytes).expect("damaged");
}

/// A cluster with a value that is in every member's file, and so much after it that no log brings it back.
fn with_a_value(further: &[&str]) -> (Lab, Bulk) {
    let lab = Lab::cluster(3, "3.6.15", further);
    lab.apply();
    let bulk = Bulk::of(&lab);
    bulk.put("precious", "A-VALUE-THAT-IS-ON-THE-DISK").expect("written");
    bulk.fill("after/", 10, 50, 1024).expect("written");
    // A database is written when it is rewritten, if not before.
    lab.run(&["defrag", "--all"]).ok();
    (lab, bulk)
}

#[test]
fn a_member_that_refuses_to_start_for_its_data_is_named_and_replaced() {
    let (lab, bulk) = with_a_value(&[]);
    assert_eq!(lab.run(&["verify", "--json"]).ok().json()[0]["verdict"], "same");
    damage(&lab, "main-2", "A-VALUE-THAT-IS-ON-THE-DISK");
    let refused = lab.run(&["apply", "--yes", "--timeout", "60s"]).failed().all();
    assert!(
        refused.contains("main-2: etcd does not start: its data differs from that of the other members"),
        "{refused}"
    );
    assert!(refused.contains("raftsman replace main-2"), "{refused}");
    // The others go on meanwhile.
    bulk.put("meanwhile", "written").expect("written");
    assert_eq!(lab.run(&["verify"]).code, 2, "one does not answer");
    let lines = lab.run(&["replace", "main-2", "--yes", "--json", "--timeout", "60s"]).ok().json_lines();
    let verbs = done(&lines);
    for verb in ["remove_member", "clear_data", "add_learner", "promote_member"] {
        assert_eq!(count(&verbs, verb), 1, "{verbs:?}");
    }
    settled(&lab);
    let verified = lab.run(&["verify", "--json"]).ok().json();
    assert_eq!((&verified[0]["verdict"], verified[0]["members"].as_array().map(Vec::len)), (&"same".into(), Some(3)));
    assert_eq!(bulk.get("precious").as_deref(), Some("A-VALUE-THAT-IS-ON-THE-DISK"));
    assert_eq!(bulk.get("meanwhile").as_deref(), Some("written"));
    lab.destroy();
}

#[test]
fn a_member_that_serves_corrupt_data_is_found_by_its_hash_and_replaced_under_the_alarm() {
    let (lab, bulk) = with_a_value(&[
        KEPT[0],
        "corruption_checks: { initial: false }",
        "flags: { compact-hash-check-time: 1000000000 }",
    ]);
    damage(&lab, "main-3", "A-VALUE-THAT-IS-ON-THE-DISK");
    lab.apply();
    let verified = lab.run(&["verify", "--json"]);
    assert_eq!((verified.code, &verified.json()[0]["differing"]), (1, &serde_json::json!(["main-3"])));
    assert!(lab.run(&["verify"]).stdout.contains("main-3 differs from the majority"));

    // etcd itself notices when it compacts.
    lab.run(&["compact", "--yes"]).ok();
    eventually("the alarm", || (lab.cluster_status()["alarms"][0] == "corrupt").then_some(()));
    assert!(bulk.put("under", "the alarm").is_err());
    let refused = lab.run(&["apply", "--yes", "--timeout", "30s"]).failed().all();
    assert!(refused.contains("main-3: its data differs from that of the other members"), "{refused}");
    // The wrong one is not given up under the alarm.
    let wrong = lab.run(&["replace", "main-1", "--yes", "--timeout", "20s"]).failed().all();
    assert!(wrong.contains("main-3: its data differs"), "{wrong}");
    // The mark is taken back.
    lab.change_ledger(|ledger| {
        ledger.as_object_mut().and_then(|ledger| ledger.remove("replace"));
    });

    lab.run(&["replace", "main-3", "--yes", "--mark-only"]).ok();
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    settled(&lab);
    bulk.put("after", "the alarm").expect("written");
    assert_eq!(bulk.get("precious").as_deref(), Some("A-VALUE-THAT-IS-ON-THE-DISK"));
    lab.run(&["verify"]).ok();
    lab.destroy();
}

#[test]
fn nothing_is_done_to_a_cluster_that_lacks_a_member() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    // A follower stops: no election follows.
    lab.run(&["move-leader", "main-1"]).ok();
    end(&lab, "main-2");
    let refused = lab.run(&["defrag"]).failed().all();
    assert!(refused.contains("defragment would lose quorum: 2 of 3 members are healthy"), "{refused}");
    let refused = lab.run(&["move-leader", "main-2"]).failed().all();
    assert!(refused.contains("`main-2` is no member that answers"), "{refused}");
    assert_eq!(lab.run(&["verify"]).code, 2);
    end(&lab, "main-3");
    for verb in
        [&["defrag"] as &[&str], &["compact", "--yes"], &["move-leader", "main-1"], &["replace", "main-2", "--yes"]]
    {
        let refused = lab.run(verb).failed().all();
        assert!(refused.contains("has no quorum"), "{verb:?}: {refused}");
    }
    lab.apply();
    let leader = lab.cluster_status()["leader"].as_str().expect("a leader").to_owned();
    let transfer_target = if leader == "main-1" { "main-2" } else { "main-1" };
    lab.run(&["move-leader", transfer_target]).ok();
    assert_eq!(lab.cluster_status()["leader"], transfer_target);
    assert_eq!(
        lab.run(&["move-leader", transfer_target]).ok().stdout.trim(),
        format!("{transfer_target} leads"),
        "it does already"
    );
    lab.destroy();
}
