//! Real disks and sockets → timers that are measured once, kept, the same on every member, and never the noise of the day.

use std::collections::BTreeSet;

use raftsman_tests::lab::{Lab, kill};
use rustix::process::Signal;
use serde_json::Value;

const VERSION: &str = "3.6.15";

/// The verbs of the steps that an apply carried out, in order.
fn done(lines: &[Value]) -> Vec<String> {
    let done = lines.iter().filter(|l| l["event"] == "done");
    done.map(|l| l["action"]["do"].as_str().expect("an action").to_owned()).collect()
}

fn count(verbs: &[String], verb: &str) -> usize {
    verbs.iter().filter(|v| *v == verb).count()
}

/// A time of the file's, such as `1s` or `100ms`, in milliseconds.
fn millis(value: &Value) -> u64 {
    let text = value.as_str().expect("a time");
    raftsman_core::spec::Duration::parse(text).expect("a time").as_millis()
}

/// Heartbeat and election time-out as etcd reads them, which must be the same on all members.
#[track_caller]
fn configured(lab: &Lab) -> (u64, u64) {
    let of = |number: usize| {
        let path = lab.machine(&format!("main-{number}")).join("etcd/etcd.yaml");
        let text = std::fs::read_to_string(path).expect("a configuration");
        let value = |key: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_else(|| panic!("{key} in {text}"));
            line.trim().parse::<u64>().expect("milliseconds")
        };
        (value("heartbeat-interval:"), value("election-timeout:"))
    };
    let all: BTreeSet<(u64, u64)> = (1..=3).map(of).collect();
    assert_eq!(all.len(), 1, "members differ: {all:?}");
    *all.first().expect("one")
}

fn pids(lab: &Lab) -> BTreeSet<(String, u32)> {
    lab.etcds().into_iter().collect()
}

/// Exit code and verdicts must be what follows from the figures beside them.
#[track_caller]
fn judged(found: &Value, code: i32) {
    let micros = |value: &Value| value.as_u64().expect("microseconds");
    let members = found["members"].as_object().expect("members");
    let writes = members.values().map(|m| {
        let (half, most) = (micros(&m["fsync_p50_us"]), micros(&m["fsync_p99_us"]));
        assert!(0 < half && half <= most && m["samples"].as_u64() > Some(0), "{m}");
        most
    });
    let write = writes.max().expect("a write");
    let trips = members.values().flat_map(|m| m["round_trips"].as_object().expect("round trips").values()).map(micros);
    let trip = trips.max().expect("a round trip");
    assert_eq!(found["worst"]["write"][1].as_u64(), Some(write), "{found}");
    assert_eq!(found["worst"]["round_trip"][2].as_u64(), Some(trip), "{found}");
    let recommended = millis(&found["recommended"]["heartbeat"]);
    assert!(recommended == 5_000 || recommended * 1_000 >= write + trip, "{found}");
    assert_eq!(millis(&found["recommended"]["election"]), recommended * 10);
    let (heartbeat, election) = (millis(&found["timers"]["heartbeat"]), millis(&found["timers"]["election"]));
    let at_risk = heartbeat * 1_000 <= write || heartbeat * 2_000 < trip || election * 1_000 < trip * 10;
    let output = found["concerns"].as_array().expect("concerns").iter().any(|c| c["unsafe"] == true);
    assert_eq!((output, code), (at_risk, if at_risk { 2 } else { 0 }), "{found}");
}

#[test]
fn measured_timers_are_set_once_and_stay() {
    let lab = Lab::cluster(3, VERSION, &["timers: measured"]);
    let early = lab.run(&["preflight"]);
    assert_eq!(early.code, 1);
    assert!(early.stderr.contains("run `raftsman apply` first"), "{}", early.all());
    assert!(lab.run(&["plan"]).ok().stdout.contains("measure"), "the plan says that it will be measured");

    let lines = lab.run(&["apply", "--yes", "--json", "--timeout", "60s"]).ok().json_lines();
    raftsman_tests::lab::forecast_equals_fact(&lines);
    let verbs = done(&lines);
    assert_eq!(count(&verbs, "measure"), 1, "{verbs:?}");
    let at = |verb: &str| verbs.iter().position(|v| v == verb);
    assert!(at("measure") < at("configure_etcd") && at("measure") > at("install_etcd"), "{verbs:?}");

    let kept = lab.ledger()["preflight"].clone();
    assert_eq!((&kept["rule"], kept["members"].as_object().map(|m| m.len())), (&1.into(), Some(3)), "{kept}");
    let timers = (millis(&kept["pace"]["heartbeat"]), millis(&kept["pace"]["election"]));
    assert_eq!(configured(&lab), timers);
    assert!(timers.0 >= 100 && timers.1 == timers.0 * 10, "{kept}");

    // Planning and applying again measure nothing and change nothing.
    let output = lab.run(&["plan", "--detailed-exitcode"]).ok().stdout;
    assert!(output.contains("by measurement; measured 2") && output.contains("fsync p99"), "{output}");
    let before = pids(&lab);
    assert_eq!(done(&lab.run(&["apply", "--yes", "--json"]).ok().json_lines()), Vec::<String>::new());
    assert_eq!(lab.ledger()["preflight"], kept);

    // Measured again and not kept: nothing is written down.
    let again = lab.run(&["preflight", "--json"]);
    judged(&again.json()[0], again.code);
    assert_eq!(lab.ledger()["preflight"], kept);
    let text = lab.run(&["preflight", "main"]);
    assert!(text.stdout.contains("FSYNC P99") && text.stdout.contains("TO main-3"), "{}", text.all());

    // Kept: whatever follows, all members have the same, and apply carries it through one at a time.
    let saved = lab.run(&["preflight", "--save", "--json"]);
    judged(&saved.json()[0], saved.code);
    let newer = lab.ledger()["preflight"].clone();
    assert_ne!(newer["at"], kept["at"]);
    let verbs = done(&lab.run(&["apply", "--yes", "--json", "--timeout", "60s"]).ok().json_lines());
    let changed = newer["pace"] != kept["pace"];
    assert_eq!(count(&verbs, "restart_etcd"), if changed { 3 } else { 0 }, "{verbs:?}");
    assert_eq!(changed, pids(&lab) != before);
    assert_eq!(configured(&lab).0, millis(&newer["pace"]["heartbeat"]));
    let journal = lab.run(&["journal", "--json"]).ok().stdout;
    assert!(journal.contains("\"measured\"") && journal.contains("fsync_p99_us"), "{journal}");
    lab.destroy();
}

#[test]
fn timers_of_the_file_are_held_against_a_measurement_and_left_alone() {
    let lab = Lab::cluster(3, VERSION, &["timers: { heartbeat: 1s, election: 10s }"]);
    lab.apply();
    assert!(!lab.run(&["plan"]).ok().stdout.contains("measured"), "nothing was measured");
    let found = lab.run(&["preflight", "--save", "--json"]);
    judged(&found.json()[0], found.code);
    assert_eq!(found.json()[0]["by_measurement"], false);
    let recommended = millis(&found.json()[0]["recommended"]["heartbeat"]);

    let before = pids(&lab);
    let plan = lab.run(&["plan", "--detailed-exitcode"]).ok().stdout;
    assert!(plan.contains("heartbeat 1s, election 10s, by the file; measured 2"), "{plan}");
    let status = lab.cluster_status();
    assert_eq!(status["settled"], true, "{status}");
    let noted = |kind: &str| {
        let waiting = status["waiting"].as_array().expect("a list");
        waiting.iter().any(|w| w["waiting"] == "timers_unfit" && w["concern"]["concern"] == kind)
    };
    assert_eq!(noted("too_long"), recommended * 4 <= 1_000, "{status}");
    assert_eq!(plan.contains("a lost leader is noticed after 10s"), noted("too_long"), "{plan}");
    assert_eq!(configured(&lab), (1_000, 10_000));

    // A machine that cannot be asked is named, and the others are measured all the same.
    let (_, agent) = lab.agents().into_iter().find(|(name, _)| name == "main-3").expect("an agent");
    kill(agent, Signal::STOP);
    let found = lab.run(&["preflight", "--json"]);
    kill(agent, Signal::CONT);
    let one = &found.json()[0];
    assert_eq!(one["members"].as_object().map(|m| m.len()), Some(2), "{one}");
    assert!(one["silent"]["main-3"].is_string(), "{one}");

    // From now on by measurement: one roll, and only if it makes a difference.
    lab.write_file(&lab.file().replace("timers: { heartbeat: 1s, election: 10s }", "timers: measured"));
    let verbs = done(&lab.run(&["apply", "--yes", "--json", "--timeout", "120s"]).ok().json_lines());
    assert_eq!(count(&verbs, "measure"), 0, "there is one already: {verbs:?}");
    let timers = millis(&lab.ledger()["preflight"]["pace"]["heartbeat"]);
    assert_eq!(configured(&lab).0, timers);
    assert_eq!(pids(&lab) != before, timers != 1_000);
    lab.destroy();
}
