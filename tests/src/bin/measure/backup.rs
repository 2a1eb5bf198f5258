//! A database, a real Ceph → a full backup by raftsman, beside draining etcd's snapshot to nowhere, uploading a file, and
//! saving the file first. Alternating in one run; the machine's two cores have etcd, Ceph and both clients.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream;
use raftsman_backup::Store;
use raftsman_tests::bulk::Bulk;
use raftsman_tests::ceph::Ceph;
use raftsman_tests::figures::median;
use raftsman_tests::lab::{Lab, etcdctl};
use raftsman_tests::load::{Load, LoadSettings};
use tokio::runtime::Runtime;

const VERSION: &str = "3.6.15";
const VALUE: usize = 16 << 10;
/// What is read from a file at once.
const PIECE: usize = 256 << 10;
/// Clients at work while it is measured what they notice.
const RATE: u32 = 100;

/// Uploads a file with the same client library, in parts, as the agent does.
fn upload(runtime: &Runtime, store: &Store, file: &Path, to: &str) {
    use io::Read as _;
    let file = std::fs::File::open(file).expect("the file");
    let pieces = stream::unfold(file, |mut file| async move {
        let mut piece = vec![0; PIECE];
        match file.read(&mut piece) {
            Ok(0) => None,
            Ok(many) => {
                piece.truncate(many);
                Some((Ok(Bytes::from(piece)), file))
            }
            Err(error) => Some((Err(error), file)),
        }
    });
    runtime.block_on(store.upload(to, pieces, |_| {})).expect("uploaded");
}

/// Saves a snapshot with etcdctl, as operators do.
fn save(lab: &Lab, member: &str, to: &Path) {
    let env = lab.run(&["env"]).ok().stdout;
    let script = format!("{env}\nETCDCTL_ENDPOINTS={member} exec {:?} snapshot save {to:?}", etcdctl());
    let saved = Command::new("sh").args(["-c", &script]).output().expect("etcdctl");
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
}

/// The most memory that this process ever had, in MiB.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) >> 10
}

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let said = |n: usize| arguments.get(n - 1).and_then(|n| n.parse::<usize>().ok());
    let (mib, rounds, samples) = (said(1).unwrap_or(1024), said(2).unwrap_or(3), said(3).unwrap_or(5));
    // What is removed takes room until Ceph gets to it.
    let ceph = Ceph::up(((mib as u64) << 20) * ((2 * rounds + 3 * samples) as u64 + 2) + (8 << 30));
    let lab = Lab::cluster(3, VERSION, &["quota: 8GiB"]);
    lab.write_file(&format!("{}backups:\n  store: {}\n", lab.file(), ceph.store(&lab)));
    lab.run(&["apply", "--yes"]).ok();
    let bulk = Bulk::of(&lab);
    bulk.pour_noise("bulk/", mib << 20, VALUE).expect("written");
    let status = lab.cluster_status();
    let leader = status["leader"].as_str().expect("a leader").to_owned();
    let members = status["members"].as_array().expect("members").clone();
    let size = members[0]["db_size"].as_i64().unwrap_or(0) >> 20;
    let follower = members.iter().find(|member| member["name"] != leader.as_str()).expect("a follower");
    let endpoint = format!("https://{}:2379", follower["address"].as_str().expect("an address"));
    println!("etcd {VERSION}, three members, {size} MiB in each database; Ceph with one disk; {rounds} rounds");

    let runtime = Runtime::new().expect("a runtime");
    let store = Store::open(&ceph.place()).expect("the store");
    let file = lab.path().join("snapshot.db");
    let (mut drain, mut alone, mut both, mut ours) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        let begun = Instant::now();
        bulk.drain();
        drain.push(begun.elapsed().as_secs_f64());

        let begun = Instant::now();
        save(&lab, &endpoint, &file);
        let saved = begun.elapsed().as_secs_f64();
        let object = format!("bare/{round}");
        upload(&runtime, &store, &file, &object);
        both.push(begun.elapsed().as_secs_f64());
        alone.push(begun.elapsed().as_secs_f64() - saved);
        runtime.block_on(store.remove(&object)).expect("removed");
        std::fs::remove_file(&file).expect("removed");

        let begun = Instant::now();
        let lines = lab.run(&["backup", "now", "--json"]).ok().json_lines();
        ours.push(begun.elapsed().as_secs_f64());
        // Reported twice a second.
        let reading = lines.iter().filter(|line| line["progress"]["checked"].as_u64() > Some(0)).count() as f64 / 2.0;
        let last = |figures: &[f64]| figures.last().copied().unwrap_or_default();
        println!(
            "round {round}: drain {:.1} s, upload {:.1} s, save and upload {:.1} s, raftsman {:.1} s, of these about {reading:.1} to read it back",
            last(&drain),
            last(&alone),
            last(&both),
            last(&ours)
        );
    }
    let memory = lab.agents().into_iter().map(|(_, pid)| peak(pid)).max().unwrap_or(0);
    let shown = lab.run(&["backup", "show", "--json"]).ok().json();
    let stored = shown["object"]["bytes"].as_u64().unwrap_or(0) >> 20;

    // One sample says little: the machine's own noise is larger than what is looked for.
    let (mut quiet, mut draining, mut by_hand, mut busy) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // What the store does to members that share a machine with it: no client reads from etcd then.
    let (mut storing, mut drilling) = (Vec::new(), Vec::new());
    for round in 1..=samples {
        quiet.push(noticed(&lab, || std::thread::sleep(Duration::from_secs(10))));
        draining.push(noticed(&lab, || _ = bulk.drain()));
        let object = format!("bare/noticed-{round}");
        by_hand.push(noticed(&lab, || {
            save(&lab, &endpoint, &file);
            upload(&runtime, &store, &file, &object);
        }));
        runtime.block_on(store.remove(&object)).expect("removed");
        storing.push(noticed(&lab, || upload(&runtime, &store, &file, &object)));
        runtime.block_on(store.remove(&object)).expect("removed");
        std::fs::remove_file(&file).expect("removed");
        busy.push(noticed(&lab, || drop(lab.run(&["backup", "now"]).ok())));
        drilling.push(noticed(&lab, || drop(lab.run(&["drill"]).ok())));
    }
    if samples > 0 {
        println!(
            "99 of 100 writes, in ms: without {quiet:.0?}, while etcd is drained {draining:.0?}, while a file is uploaded {storing:.0?}, by hand {by_hand:.0?}, raftsman {busy:.0?}, a drill {drilling:.0?}"
        );
        let times = |busy: &[f64]| median(busy.to_vec()) / median(quiet.clone());
        println!(
            "of these {:.2} times the quiet ones by the store alone, {:.2} by etcd alone",
            times(&storing),
            times(&draining)
        );
    }
    let (quiet, busy) = (median(quiet), median(busy));

    let (drain, alone, both, ours) = (median(drain), median(alone), median(both), median(ours));
    println!("medians: drain {drain:.1} s, upload {alone:.1} s, save and upload {both:.1} s, raftsman {ours:.1} s");
    println!("the object has {stored} MiB");
    println!("agent's peak memory: {memory} MiB, goal 128");
    let mut goals = Vec::from_iter((samples > 0).then_some(("bench-backup-p99", busy / quiet, 1.2)));
    goals.extend([("bench-backup-slower", ours / drain.max(alone), 1.15), ("bench-backup", ours / both, 0.7)]);
    for (name, ratio, goal) in &goals {
        println!("{name} ratio={ratio:.2} goal={goal}");
    }
    match memory < 128 && goals.iter().all(|(_, ratio, goal)| ratio <= goal) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Within how many milliseconds 99 of 100 writes are acknowledged meanwhile.
fn noticed(lab: &Lab, work: impl FnOnce()) -> f64 {
    let load = Load::start(lab, LoadSettings { rate: RATE, ..LoadSettings::default() });
    load.await_writes(50);
    work();
    let verdict = load.finish();
    assert!(verdict.clean(), "{verdict}");
    verdict.figures.percentile_99.as_secs_f64() * 1000.0
}
