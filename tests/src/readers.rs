//! A cluster at which something is done → every verb that only reads runs beside it, in eight loops, and undoes nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::lab::Lab;

/// Every verb that only reads, and needs no store of backups. `MACHINE` stands for one of the lab. What takes the lock to
/// show something, as `recover --show` does, would keep others from theirs.
const VERBS: [&[&str]; 15] = [
    &["status", "--json"],
    &["plan", "--json"],
    &["cert", "list", "--json"],
    &["versions", "--json"],
    &["verify", "--json"],
    &["journal", "--json"],
    &["state", "check", "--json"],
    &["logs", "MACHINE"],
    &["status"],
    &["env"],
    &["check"],
    &["plan", "--diff"],
    &["versions", "main"],
    &["logs", "MACHINE", "--agent"],
    &["explain", "etcd.main"],
];
const LOOPS: usize = 8;
/// Without one, the loops keep two cores busy with handshakes, and etcd is silent for seconds.
const PAUSE: Duration = Duration::from_millis(500);

/// Does something beside eight loops over all of them, each of which begins with another one. How many commands they ran.
pub fn beside<T>(lab: &Lab, work: impl FnOnce() -> T) -> (T, u64) {
    let (stop, ran) = (AtomicBool::new(false), AtomicU64::new(0));
    let machine = lab.agents().first().map_or_else(String::new, |(name, _)| name.clone());
    let done = thread::scope(|scope| {
        for first in 0..LOOPS {
            let (stop, ran, machine) = (&stop, &ran, machine.as_str());
            scope.spawn(move || {
                for verb in VERBS.iter().cycle().skip(first) {
                    let words: Vec<&str> =
                        verb.iter().map(|word| if *word == "MACHINE" { machine } else { word }).collect();
                    lab.run(&words);
                    ran.fetch_add(1, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::sleep(PAUSE);
                }
            });
        }
        // Also where the work panics: the loops would go on for ever.
        let _ending = Stop(&stop);
        work()
    });
    (done, ran.into_inner())
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The versions of its ledger that the state keeps are each the successor of the one before, up to the one in force: how
/// many they are, or where the chain breaks.
pub fn one_chain(lab: &Lab) -> Result<usize, String> {
    let dir = lab.path().join(".raftsman/history");
    let mut paths: Vec<_> = std::fs::read_dir(dir).expect("a history").flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| serde_json::from_slice(&std::fs::read(path).ok()?).ok();
    let mut versions: Vec<Value> = paths.iter().filter_map(read).collect();
    let ledger = std::fs::read(lab.path().join(".raftsman/clusters/main.json")).expect("a ledger");
    let in_force: Value = serde_json::from_slice(&ledger).expect("JSON");
    if versions.last().map(|last| &last["version"]) != Some(&in_force["version"]) {
        versions.push(in_force);
    } else if versions.last() != Some(&in_force) {
        return Err(format!("two ledgers of version {}", in_force["version"]));
    }
    for pair in versions.windows(2) {
        let follows = pair[0]["version"].as_u64().map(|version| version + 1) == pair[1]["version"].as_u64();
        if !follows || pair[0]["sha256"] != pair[1]["previous"] {
            return Err(format!("version {} does not follow {}", pair[1]["version"], pair[0]["version"]));
        }
    }
    Ok(versions.len())
}
