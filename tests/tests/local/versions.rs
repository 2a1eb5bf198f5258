//! Versions of real etcd go up, down, half way and back, with TLS and auth, while clients are at work → nothing is lost.

#![allow(clippy::print_stdout, reason = "a test says what its clients saw")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::Command;
use std::time::Duration;

use raftsman_tests::dice::Dice;
use raftsman_tests::lab::{Lab, etcdctl, eventually, forecast_equals_fact, kill, soak};
use raftsman_tests::load::{Load, LoadSettings};
use rustix::process::Signal;
use serde_json::Value;

const NO_AUTH: &str = "auth: { mode: none }";
const PASSWORDS: &str = "auth: { mode: password }";
/// Several hops in one run, on a machine that may be busy.
const APPLY: &[&str] = &["apply", "--yes", "--json", "--timeout", "180s"];

/// Writes another version into the file.
fn write_version(lab: &Lab, version: &str) {
    let file = lab.file();
    let lines = file.lines().map(|line| match line.trim_start().starts_with("version: ") {
        true => format!("    version: {version}\n"),
        false => format!("{line}\n"),
    });
    lab.write_file(&lines.collect::<String>());
}

/// The versions that the members say they run; `None` while one does not say, or not all is as the file says.
fn running(status: &Value) -> Option<BTreeSet<String>> {
    let members = status["members"].as_array()?;
    let versions = members.iter().map(|m| m["version"].as_str().map(str::to_owned)).collect::<Option<_>>();
    versions.filter(|_| status["settled"] == true && members.len() == 3)
}

/// Every member serves this version, and all is as the file says.
#[track_caller]
fn all_run(lab: &Lab, version: &str) {
    // A busy machine may miss a look; a wrong version does not become right by waiting.
    let versions = eventually("all members answer and all is settled", || running(&lab.cluster_status()));
    assert_eq!(versions, BTreeSet::from([version.to_owned()]));
}

/// How many machines start this version of etcd, whether or not it answers yet.
fn changed_to(lab: &Lab, version: &str) -> usize {
    let current = |name: &String| std::fs::read_link(lab.machine(name).join("etcd/current")).ok();
    let this = |name: &String| current(name).is_some_and(|link| link.ends_with(version));
    lab.listing("machines").iter().filter(|name| this(name)).count()
}

/// Applies, and holds what was done against the forecast. The answer is what was done.
#[track_caller]
fn apply(lab: &Lab) -> Vec<Value> {
    let lines = lab.run(APPLY).ok().json_lines();
    forecast_equals_fact(&lines);
    lines
}

/// The hops of an apply: each begins with a snapshot, brings every member over one by one, and the leader last.
#[track_caller]
fn hops(lines: &[Value], members: usize) -> Vec<String> {
    let steps: Vec<&Value> =
        lines.iter().filter(|l| l["event"] == "wave").filter_map(|l| l["steps"].as_array()).flatten().collect();
    let restart = |step: &&Value| step["action"]["do"] == "restart_etcd";
    let mut hops: Vec<String> = Vec::new();
    let mut left = 0;
    for step in steps {
        let version = step["action"]["version"].as_str().unwrap_or_default();
        if step["action"]["do"] == "take_snapshot" {
            assert_eq!(left, 0, "one hop after another: {lines:?}");
            hops.push(version.to_owned());
            left = members;
        } else if restart(&step) {
            assert_eq!(hops.last().map(String::as_str), Some(version), "no restart without a snapshot: {lines:?}");
            left -= 1;
            assert!(!step["pause"]["hand_over"].is_number(), "another took over before: {step}");
        } else if step["action"]["do"] == "move_leader" {
            // Another election on the way may leave no leadership to transfer at the end.
            assert_eq!(left, 1, "the leader goes last: {lines:?}");
        }
    }
    assert_eq!(left, 0, "every member came over: {lines:?}");
    hops
}

/// Every snapshot is one, of the version that it says, and holds the keys that were there.
#[track_caller]
fn snapshots_are_good(lab: &Lab, from: &[&str]) {
    let files = lab.listing("snapshots");
    let mut versions: Vec<&str> =
        files.iter().filter_map(|f| f.strip_suffix(".db")?.rsplit_once('-').map(|(_, v)| v)).collect();
    versions.sort();
    let mut wanted = from.to_vec();
    wanted.sort();
    assert_eq!(versions, wanted, "{files:?}");
    for file in files {
        let path = lab.path().join(".raftsman/snapshots").join(&file);
        let output = Command::new(etcdctl())
            .args(["snapshot", "status", "--write-out=json"])
            .arg(&path)
            .env("ETCDCTL_API", "3")
            .output()
            .expect("etcdctl runs");
        let status: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{file}: {e}: {}", String::from_utf8_lossy(&output.stderr)));
        let revision: i64 = file.split('-').nth(1).and_then(|r| r.parse().ok()).expect("a revision in its name");
        assert!(status["revision"].as_i64() >= Some(revision) && revision > 1, "{file}: {status}");
    }
}

/// Applies until so many members have been restarted, and is killed then.
fn apply_until_restarted(lab: &Lab, restarts: usize) {
    let mut child = lab.spawn(APPLY);
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut done = 0;
    for line in lines.map_while(Result::ok) {
        let line: Value = serde_json::from_str(&line).expect("JSON");
        done += usize::from(line["event"] == "done" && line["action"]["do"] == "restart_etcd");
        if done == restarts {
            break;
        }
    }
    kill(child.id(), Signal::KILL);
    child.wait().expect("it ends");
    assert_eq!(done, restarts, "it ended before");
}

/// Gives a change up after so many restarts; how many members have gone.
///
/// The next restart may be ordered before the command dies, and an agent finishes a request by itself. Where that
/// was the last one nothing is half way, so all go back for another try.
#[track_caller]
fn give_up_half_way(lab: &Lab, load: &Load, from: &str, to: &str, restarts: usize) -> usize {
    for _ in 0..5 {
        write_version(lab, to);
        load.mark("the way there");
        apply_until_restarted(lab, restarts);
        let seen = || (lab.etcds().len() == 3).then(|| changed_to(lab, to));
        let gone = eventually("what was begun is done", || {
            let gone = seen()?;
            // An order that has just arrived is not seen yet.
            std::thread::sleep(Duration::from_secs(2));
            seen().filter(|later| *later == gone)
        });
        assert!(gone >= restarts, "{gone} have gone, {restarts} were told of");
        if gone < 3 {
            return gone;
        }
        write_version(lab, from);
        apply(lab);
    }
    panic!("the command always died too late");
}

/// A cluster of three is brought from one version to another while clients are at work.
#[track_caller]
fn way(from: &str, to: &str, over: &[&str], further: &[&str]) -> Lab {
    let lab = Lab::cluster(3, from, further);
    lab.apply();
    let id = lab.cluster_status()["id"].clone();
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(200);
    write_version(&lab, to);
    let plan = lab.run(&["plan"]).stdout;
    assert!(plan.contains("take snapshot") && plan.contains(&format!("{from} → {}", over[0])), "{plan}");
    load.mark(&format!("{from} to {to}"));
    let lines = apply(&lab);
    load.mark("there");
    assert_eq!(hops(&lines, 3), over);
    all_run(&lab, to);
    load.await_writes(200);
    let verdict = load.finish();
    println!("{from} to {to}:\n{verdict}");
    verdict.assert_clean();
    assert_eq!(verdict.figures.output, (3, 3), "every member tells the same past:\n{verdict}");
    let wrote: Vec<&str> = [from].into_iter().chain(over[..over.len() - 1].iter().copied()).collect();
    snapshots_are_good(&lab, &wrote);
    assert_eq!(lab.cluster_status()["id"], id, "it is the same cluster");
    lab.nothing_to_do();
    lab
}

/// A change is given up half way, while clients are at work.
#[track_caller]
fn half_way(from: &str, to: &str, restarts: usize, further: &[&str]) {
    let lab = Lab::cluster(3, from, further);
    lab.apply();
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(100);
    let gone = give_up_half_way(&lab, &load, from, to, restarts);
    write_version(&lab, from);
    load.mark("the way back");
    let lines = apply(&lab);
    all_run(&lab, from);
    let back = lines.iter().filter(|l| l["event"] == "done" && l["action"]["do"] == "restart_etcd").count();
    assert_eq!(back, gone, "only those that had gone come back: {lines:?}");
    // And the whole way, once more.
    write_version(&lab, to);
    load.mark("once more");
    apply(&lab);
    all_run(&lab, to);
    load.await_writes(100);
    let verdict = load.finish();
    println!("{from} half way to {to}:\n{verdict}");
    verdict.assert_clean();
    lab.destroy();
}

#[test]
fn two_lines_up() {
    way("3.5.34", "3.7.2", &["3.6.15", "3.7.2"], &[]).destroy();
}

#[test]
fn two_lines_down() {
    way("3.7.2", "3.5.34", &["3.6.15", "3.5.34"], &[]).destroy();
}

/// From where to where, after how many restarts it is given up, and what else the file says.
type HalfWay = (&'static str, &'static str, usize, &'static [&'static str]);

const HALF_WAYS: [HalfWay; 11] = [
    ("3.4.45", "3.5.34", 1, &[NO_AUTH]),
    ("3.4.45", "3.5.34", 2, &[NO_AUTH]),
    ("3.5.34", "3.6.15", 1, &[]),
    ("3.5.34", "3.6.15", 2, &[]),
    ("3.6.14", "3.6.15", 2, &[]),
    ("3.6.15", "3.7.2", 1, &[PASSWORDS]),
    ("3.6.15", "3.7.2", 2, &[]),
    // Half way down, etcd has a downgrade enabled: it is cancelled before the members come up again.
    ("3.7.2", "3.6.15", 1, &[]),
    ("3.7.2", "3.6.15", 2, &[PASSWORDS]),
    ("3.6.15", "3.5.34", 1, &[]),
    ("3.6.15", "3.5.34", 2, &[]),
];

#[test]
fn half_way_and_back() {
    let part = if soak() { HALF_WAYS.len() } else { 2 };
    for (from, to, restarts, further) in Dice::of_this_run("half way").some(&HALF_WAYS, part) {
        half_way(from, to, restarts, further);
    }
}

/// etcd does not go this way while auth is on: it is refused, and gone without.
#[test]
fn from_3_4_to_3_5() {
    let lab = Lab::cluster(3, "3.4.45", &[]);
    lab.apply();
    write_version(&lab, "3.5.34");
    let refused = lab.run(&["apply", "--yes", "--timeout", "30s"]).failed().all();
    assert!(refused.contains("are not compatible while auth is on"), "{refused}");
    assert!(refused.contains(NO_AUTH), "{refused}");
    assert_eq!(changed_to(&lab, "3.4.45"), 3, "no member has changed");

    lab.etcdctl(&["user", "add", "alice", "--no-password"]).ok();
    let with_auth = lab.file();
    lab.write_file(&format!("{with_auth}    {NO_AUTH}\n"));
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(200);
    let lines = apply(&lab);
    assert_eq!(hops(&lines, 3), ["3.5.34"]);
    all_run(&lab, "3.5.34");
    assert_eq!(lab.cluster_status()["auth"], false);

    lab.write_file(&with_auth);
    apply(&lab);
    all_run(&lab, "3.5.34");
    assert_eq!(lab.cluster_status()["auth"], true);
    assert!(lab.etcdctl(&["user", "list"]).ok().stdout.contains("alice"), "users are as they were");
    load.await_writes(200);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_clean();
    lab.destroy();
}

#[test]
fn a_patch_up_and_down() {
    if !soak() {
        return;
    }
    let lab = way("3.6.14", "3.6.15", &["3.6.15"], &[]);
    write_version(&lab, "3.6.14");
    let lines = apply(&lab);
    assert_eq!(hops(&lines, 3), ["3.6.14"]);
    all_run(&lab, "3.6.14");
    lab.destroy();
}

#[test]
fn with_passwords() {
    if soak() {
        way("3.5.34", "3.7.2", &["3.6.15", "3.7.2"], &[PASSWORDS]).destroy();
        way("3.7.2", "3.6.15", &["3.6.15"], &[PASSWORDS]).destroy();
    }
}

#[test]
fn the_whole_way_without_auth() {
    if soak() {
        way("3.4.45", "3.7.2", &["3.5.34", "3.6.15", "3.7.2"], &[NO_AUTH]).destroy();
    }
}
