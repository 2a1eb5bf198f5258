//! Any process killed at any moment → one more apply, and the same cluster is complete, without a second one.

#![allow(clippy::print_stdout, reason = "a test says its seed and what it met")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use raftsman_tests::dice::Dice;
use raftsman_tests::lab::{Lab, Output, eventually, kill, soak};
use rustix::process::Signal;
use serde_json::Value;

/// So many labs at once: bringing a cluster up is mostly waiting for its election.
const AT_ONCE: usize = 3;

const APPLY: [&str; 4] = ["apply", "--yes", "--timeout", "30s"];

/// Does it for all of them, several at a time; a panic in one is a panic of the test, with all its messages.
fn for_all<T: Sync + std::fmt::Debug>(items: &[T], test: impl Fn(usize, &T) + Sync) {
    let next = AtomicUsize::new(0);
    let broken = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(i) else { return };
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(i, item)));
                    if let Err(panic) = outcome {
                        let text = panic.downcast_ref::<String>().cloned();
                        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_owned()));
                        broken
                            .lock()
                            .expect("no poison")
                            .push(format!("case {i}, {item:?}: {}", text.unwrap_or_default()));
                    }
                }
            });
        }
    });
    let broken = broken.into_inner().expect("no poison");
    assert!(broken.is_empty(), "{} of {} cases:\n{}", broken.len(), items.len(), broken.join("\n---\n"));
}

fn seed() -> u64 {
    let seed = std::env::var("RAFTSMAN_SEED").ok().and_then(|n| n.parse().ok());
    let seed =
        seed.unwrap_or_else(|| if soak() { u64::from(std::process::id()) } else { Dice::of_this_run("killed").bits() });
    println!("again with: RAFTSMAN_SEED={seed}");
    seed
}

fn start(lab: &Lab, arguments: &[&str]) -> Child {
    lab.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("raftsman starts")
}

fn end(mut child: Child) {
    kill(child.id(), Signal::KILL);
    child.wait().expect("it was ours");
}

/// What must hold of a lab after every fault: one of everything, nothing else, unauthenticated clients rejected.
#[track_caller]
fn whole(lab: &Lab, members: usize) -> Value {
    let names: Vec<String> = (1..=members).map(|i| format!("main-{i}")).collect();
    let status = lab.settled();
    let cluster = status["clusters"][0].clone();
    assert_eq!(cluster["settled"], true, "{cluster}");
    assert_eq!(cluster["auth"], true, "{cluster}");
    assert_eq!(status["unnamed_machines"], serde_json::json!([]));
    let running = |found: Vec<(String, u32)>| found.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(running(lab.agents()), names, "one agent a machine");
    assert_eq!(running(lab.etcds()), names, "one etcd a machine");
    assert_eq!(lab.processes().len(), 2 * members, "no other process: {:?}", lab.processes());
    assert_eq!(lab.listing("machines"), names, "one directory a machine");
    let secrets = ["fleet.age", "main-clients.age", "main-peers.age"];
    assert_eq!(lab.listing("secrets"), secrets, "join tokens are gone");
    assert_eq!(lab.unfinished_files(), Vec::<PathBuf>::new(), "unfinished files");
    let list = lab.etcdctl(&["member", "list", "-w", "json"]).ok().json();
    let mut listed: Vec<&str> =
        list["members"].as_array().expect("members").iter().filter_map(|m| m["name"].as_str()).collect();
    listed.sort_unstable();
    assert_eq!(listed, names, "every member once");
    lab.nothing_to_do();
    cluster
}

/// Writes acknowledged by etcd, to be looked for afterwards.
#[derive(Default)]
struct Acknowledged(BTreeMap<String, String>);

impl Acknowledged {
    /// Tries a write; a cluster that is not up yet does not acknowledge it, and nothing is written down.
    fn try_put(&mut self, lab: &Lab, value: &str, kind: &str) -> bool {
        if lab.run(&["env", "main"]).code != 0 {
            return false;
        }
        let key = format!("ledger/{}", self.0.len());
        let put = lab.etcdctl(&["put", &key, value, "--dial-timeout=1s", kind]);
        let acknowledged = put.code == 0;
        if acknowledged {
            self.0.insert(key, value.to_owned());
        }
        acknowledged
    }

    #[track_caller]
    fn put(&mut self, lab: &Lab, value: &str) {
        assert!(self.try_put(lab, value, "--command-timeout=30s"), "a healthy cluster takes a write");
    }

    #[track_caller]
    fn all_there(&self, lab: &Lab) {
        let found = lab.etcdctl(&["get", "ledger/", "--prefix"]).ok().stdout;
        let mut lines = found.lines();
        let mut there = BTreeMap::new();
        while let (Some(key), Some(value)) = (lines.next(), lines.next()) {
            there.insert(key.to_owned(), value.to_owned());
        }
        for (key, value) in &self.0 {
            assert_eq!(there.get(key), Some(value), "an acknowledged write is lost: {key}");
        }
    }
}

/// The cluster's id, as the state or etcd itself has it. Does not ask raftsman: that would record it.
fn id_before(lab: &Lab) -> Option<String> {
    let text = std::fs::read_to_string(lab.path().join(".raftsman/clusters/main.json")).ok()?;
    let kept: Value = serde_json::from_str(&text).ok()?;
    kept["ledger"]["cluster"].as_str().map(str::to_owned)
}

fn id_by_etcd(lab: &Lab) -> Option<String> {
    if lab.run(&["env", "main"]).code != 0 {
        return None;
    }
    let answer = lab.etcdctl(&["endpoint", "status", "-w", "json", "--dial-timeout=1s", "--command-timeout=1s"]);
    let endpoints: Value = serde_json::from_str(&answer.stdout).ok()?;
    let id = endpoints[0]["Status"]["header"]["cluster_id"].as_u64()?;
    Some(format!("{id:x}"))
}

/// One more apply after a kill: it must succeed, and the cluster must be the one that it was.
#[track_caller]
fn once_more(lab: &Lab, members: usize, seen: &[Option<String>], acknowledged: &Acknowledged) {
    lab.run(&APPLY).ok();
    let cluster = whole(lab, members);
    for id in seen.iter().flatten() {
        assert_eq!(cluster["id"], id.as_str(), "it became another cluster");
    }
    acknowledged.all_there(lab);
}

/// When it is killed.
#[derive(Debug, Clone)]
enum Moment {
    /// So long after the journal has so many lines. A time from the start would come early on a busy machine, where all
    /// takes longer than in the bring-up that was timed.
    Lines(usize, Duration),
    /// As soon as this is in the state.
    Appears(&'static str),
}

/// Where the journal of a lab is.
const JOURNAL: &str = ".raftsman/journal.jsonl";

/// Moments spread evenly over a bring-up that was timed: behind so many lines of the journal, and so long after.
fn spread(lines: &[Duration], total: Duration, moments: u32) -> Vec<Moment> {
    let moment = |i| {
        let at = total * i / moments;
        let before = lines.partition_point(|line| *line <= at);
        Moment::Lines(before, at.saturating_sub(before.checked_sub(1).map_or(Duration::ZERO, |last| lines[last])))
    };
    (0..moments).map(moment).collect()
}

/// How long after this moment each line of the journal was written.
fn journal_times(lab: &Lab, since: jiff::Timestamp) -> Vec<Duration> {
    let text = std::fs::read_to_string(lab.path().join(JOURNAL)).expect("a journal");
    let at = |line: &str| {
        let entry: Value = serde_json::from_str(line).expect("JSON");
        let at: jiff::Timestamp = entry["at"].as_str().expect("a time").parse().expect("a time");
        Duration::try_from(at.duration_since(since)).unwrap_or_default()
    };
    text.lines().map(at).collect()
}

impl Moment {
    /// False when it never comes: the apply was done before.
    fn wait(&self, lab: &Lab, apply: &mut Child) -> bool {
        let (path, after, pause) = match self {
            // The whole journal is read each time.
            Self::Lines(_, after) => (lab.path().join(JOURNAL), *after, Duration::from_millis(1)),
            Self::Appears(path) => (lab.path().join(path), Duration::ZERO, Duration::from_micros(100)),
        };
        let came = || match self {
            Self::Lines(lines, _) => {
                let written = std::fs::read(&path).map_or(0, |text| memchr::memchr_iter(b'\n', &text).count());
                written >= *lines
            }
            Self::Appears(_) => path.symlink_metadata().is_ok(),
        };
        while !came() {
            if apply.try_wait().expect("ours").is_some() {
                return false;
            }
            std::thread::sleep(pause);
        }
        std::thread::sleep(after);
        // What appears is never late: a bring-up may end with it.
        matches!(self, Self::Appears(_)) || apply.try_wait().expect("ours").is_none()
    }
}

/// Everything that a bring-up makes, about in the order in which it is made.
const APPEARANCES: [&str; 27] = [
    ".raftsman",
    ".raftsman/lock",
    ".raftsman/identity.txt",
    ".raftsman/fleet.json",
    ".raftsman/generation",
    ".raftsman/secrets/fleet.age",
    ".raftsman/locks/main.lock",
    ".raftsman/journal.jsonl",
    ".raftsman/secrets/main-peers.age",
    ".raftsman/secrets/main-clients.age",
    ".raftsman/clusters/main.json",
    ".raftsman/machines",
    ".raftsman/machines/main-1",
    ".raftsman/machines/main-1/machine.json",
    ".raftsman/machines/main-2/artifacts",
    ".raftsman/machines/main-1/agent",
    ".raftsman/machines/main-2/agent/boot.json",
    ".raftsman/machines/main-1/agent.lock",
    ".raftsman/machines/main-2/agent/incarnation",
    ".raftsman/machines/main-1/agent/tls/current",
    ".raftsman/machines/main-2/etcd/tls/peer/current",
    ".raftsman/machines/main-1/etcd/tls/server/current",
    ".raftsman/machines/main-2/etcd/versions/3.6.15",
    ".raftsman/machines/main-1/etcd/etcd.yaml",
    ".raftsman/machines/main-2/etcd/service.json",
    ".raftsman/machines/main-1/etcd/data",
    ".raftsman/machines/main-2/etcd/data/member",
];

#[test]
fn apply_killed_at_moments_spread_over_a_bring_up() {
    let moments: u32 = if soak() { 200 } else { 12 };
    let clean = Lab::cluster(5, "3.6.15", &[]);
    let (begun, since) = (Instant::now(), jiff::Timestamp::now());
    clean.run(&APPLY).ok();
    let duration = begun.elapsed();
    let moments = spread(&journal_times(&clean, since), duration, moments);
    whole(&clean, 5);
    drop(clean);
    println!("one clean bring-up takes {duration:?}");
    let (late, formed, wrote) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    for_all(&moments, |i, moment| {
        let lab = Lab::cluster(5, "3.6.15", &[]);
        let mut apply = start(&lab, &APPLY);
        late.fetch_add(usize::from(!moment.wait(&lab, &mut apply)), Ordering::Relaxed);
        end(apply);
        let mut acknowledged = Acknowledged::default();
        let recorded = id_before(&lab);
        // Every other time no check runs in between: the next apply comes at once.
        let output = (i % 2 == 1).then(|| id_by_etcd(&lab)).flatten();
        if i % 2 == 1 {
            wrote.fetch_add(
                usize::from(acknowledged.try_put(&lab, "before the kill", "--command-timeout=2s")),
                Ordering::Relaxed,
            );
        }
        formed.fetch_add(usize::from(recorded.is_some() || output.is_some()), Ordering::Relaxed);
        once_more(&lab, 5, &[recorded, output], &acknowledged);
        lab.destroy();
    });
    println!("{} kills; {formed:?} when it had formed; {wrote:?} with a write before; {late:?} late", moments.len());
    let (late, formed) = (late.into_inner(), formed.into_inner());
    assert!(late * 4 <= moments.len(), "{late} of {} came when apply had ended", moments.len());
    assert!(formed * 10 >= moments.len(), "{formed} of {} came when the cluster had formed", moments.len());
}

/// What the set-up of a balancer makes, in this order.
const OF_A_BALANCER: [&str; 5] = [
    ".raftsman/machines/front-1/machine.json",
    ".raftsman/machines/front-2/agent/tls/current",
    ".raftsman/machines/front-1/haproxy/haproxy.cfg",
    ".raftsman/machines/front-2/haproxy/service.json",
    ".raftsman/machines/front-1/haproxy/run/admin.sock",
];

/// Killed while a balancer is set up, and then in a rolling restart, between a drain and an admission: the next apply
/// finishes it, and no member stays drained.
#[test]
fn apply_killed_around_a_balancer() {
    for_all(&OF_A_BALANCER, |i, path| {
        let lab = Lab::cluster(3, "3.6.15", &[]);
        let front = "balancers:\n  front: { etcd: main, instances: 2, max_connections: 500 }\n";
        lab.write_file(&format!("{}{front}", lab.file()));
        let mut apply = start(&lab, &APPLY);
        assert!(Moment::Appears(path).wait(&lab, &mut apply), "{path} never appeared");
        end(apply);
        lab.run(&APPLY).ok();
        let serving = |lab: &Lab| {
            let status = lab.settled();
            let instances = status["clusters"][0]["balancers"][0]["instances"].as_array().expect("instances").clone();
            let members = instances.iter().flat_map(|instance| instance["members"].as_array().expect("members"));
            assert_eq!(members.filter(|member| member["state"] == "up").count(), 6, "{instances:?}");
            lab.nothing_to_do();
        };
        serving(&lab);
        lab.write_file(&lab.file().replace(front, &format!("    flags: {{ max-request-bytes: 2000000 }}\n{front}")));
        let apply = start(&lab, &APPLY);
        std::thread::sleep(Duration::from_millis(500 + 600 * u64::try_from(i).expect("few")));
        end(apply);
        lab.run(&APPLY).ok();
        serving(&lab);
        lab.destroy();
    });
}

#[test]
fn apply_killed_when_each_thing_appears() {
    let missed = AtomicUsize::new(0);
    for_all(&APPEARANCES, |_, path| {
        let lab = Lab::cluster(3, "3.6.15", &[]);
        let mut apply = start(&lab, &APPLY);
        let came = Moment::Appears(path).wait(&lab, &mut apply);
        end(apply);
        missed.fetch_add(usize::from(!came), Ordering::Relaxed);
        once_more(&lab, 3, &[id_before(&lab)], &Acknowledged::default());
        lab.destroy();
    });
    assert_eq!(missed.into_inner(), 0, "paths that never appeared");
}

#[test]
fn destroy_after_an_apply_that_was_killed_when_each_thing_appeared() {
    for_all(&APPEARANCES, |_, path| {
        let lab = Lab::cluster(3, "3.6.15", &[]);
        let mut apply = start(&lab, &APPLY);
        Moment::Appears(path).wait(&lab, &mut apply);
        end(apply);
        lab.destroy();
        // And once more, where nothing is.
        lab.destroy();
    });
}

#[test]
fn power_cut_when_each_thing_appears() {
    let every = if soak() { 1 } else { 3 };
    let paths: Vec<&str> = APPEARANCES.iter().rev().copied().step_by(every).collect();
    for_all(&paths, |_, path| {
        let lab = Lab::cluster(3, "3.6.15", &[]);
        let mut apply = start(&lab, &APPLY);
        Moment::Appears(path).wait(&lab, &mut apply);
        end(apply);
        power_cut(&lab);
        once_more(&lab, 3, &[id_before(&lab)], &Acknowledged::default());
        lab.destroy();
    });
}

/// Everything of the lab ends at once.
fn power_cut(lab: &Lab) {
    // Twice: an agent may have started its etcd just before it was killed. And a process that was just being started
    // was not yet seen as one of the lab.
    for _ in 0..2 {
        eventually("the dead are gone", || {
            let alive = lab.processes();
            alive.iter().for_each(|(pid, _)| kill(*pid, Signal::KILL));
            alive.is_empty().then_some(())
        });
    }
}

#[test]
fn agent_killed_during_a_bring_up() {
    let mut dice = Dice::new(seed());
    let cases: u32 = if soak() { 50 } else { 4 };
    let draws: Vec<(usize, u64)> = (0..cases).map(|_| (dice.below(5), dice.bits() % 4_000)).collect();
    for_all(&draws, |_, (machine, after)| {
        let lab = Lab::cluster(5, "3.6.15", &[]);
        let mut apply = start(&lab, &APPLY);
        // From the first agent on, so that there is a process to kill.
        let victim = format!("main-{}", machine + 1);
        Moment::Appears(".raftsman/machines/main-1/agent.lock").wait(&lab, &mut apply);
        std::thread::sleep(Duration::from_millis(*after));
        for (_, pid) in lab.agents().into_iter().filter(|(name, _)| *name == victim) {
            kill(pid, Signal::KILL);
        }
        let ran: Vec<(String, u32)> = lab.etcds();
        let code = apply.wait().expect("ours").code();
        println!("agent of {victim} killed after {after} ms with {} etcds up: apply ended with {code:?}", ran.len());
        once_more(&lab, 5, &[id_before(&lab)], &Acknowledged::default());
        let now: BTreeSet<(String, u32)> = lab.etcds().into_iter().collect();
        assert!(ran.iter().all(|etcd| now.contains(etcd)), "an etcd was restarted: {ran:?}, now {now:?}");
        lab.destroy();
    });
}

#[test]
fn agent_killed_on_a_running_cluster() {
    let mut dice = Dice::new(seed());
    let cases: usize = if soak() { 50 } else { 4 };
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let mut acknowledged = Acknowledged::default();
    let id = lab.cluster_status()["id"].as_str().map(str::to_owned);
    let before = lab.etcds();
    for case in 0..cases {
        // One, two or all three of them.
        let mut agents = lab.agents();
        dice.shuffle(&mut agents);
        for (_, pid) in agents.iter().take(1 + dice.below(3)) {
            kill(*pid, Signal::KILL);
        }
        acknowledged.put(&lab, &format!("without some agents, {case}"));
        once_more(&lab, 3, std::slice::from_ref(&id), &acknowledged);
        assert_eq!(lab.etcds(), before, "etcd went on as if nothing had happened");
    }
    lab.destroy();
}

#[test]
fn killed_etcd_is_started_again_by_its_agent() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let mut acknowledged = Acknowledged::default();
    acknowledged.put(&lab, "before");
    let before: BTreeMap<String, u32> = lab.etcds().into_iter().collect();
    for (name, pid) in &before {
        kill(*pid, Signal::KILL);
        let again = || lab.etcds().into_iter().find(|(n, p)| n == name && p != pid);
        eventually("the agent starts it again", again);
        eventually("settled again", || (lab.cluster_status()["settled"] == true).then_some(()));
    }
    acknowledged.all_there(&lab);
    let restarts = lab.cluster_status()["members"].clone();
    assert!(restarts.as_array().expect("members").iter().all(|m| m["restarts"] == 1), "{restarts}");
    whole(&lab, 3);
    lab.destroy();
}

#[test]
fn power_cut_on_a_running_cluster() {
    for auth in ["auth: { mode: certificate }", "auth: { mode: password }"] {
        let lab = Lab::cluster(3, "3.6.15", &[auth]);
        lab.apply();
        let mut acknowledged = Acknowledged::default();
        acknowledged.put(&lab, "before the power cut");
        let id = lab.cluster_status()["id"].clone();
        power_cut(&lab);
        lab.apply();
        let cluster = lab.cluster_status();
        assert_eq!((&cluster["settled"], &cluster["auth"]), (&Value::from(true), &Value::from(true)), "{cluster}");
        assert_eq!(cluster["id"], id);
        assert_eq!((lab.agents().len(), lab.etcds().len()), (3, 3));
        acknowledged.all_there(&lab);
        lab.destroy();
    }
}

#[test]
fn interrupted_apply_ends_and_the_next_one_goes_on() {
    for (signal, moment) in [
        (Signal::INT, Moment::Appears(".raftsman/machines/main-1/agent.lock")),
        (Signal::INT, Moment::Appears(".raftsman/machines/main-2/etcd/data/member")),
        (Signal::TERM, Moment::Appears(".raftsman/machines/main-1/etcd/etcd.yaml")),
    ] {
        let lab = Lab::cluster(3, "3.6.15", &[]);
        let mut apply = start(&lab, &APPLY);
        assert!(moment.wait(&lab, &mut apply));
        kill(apply.id(), signal);
        let ended = eventually("it ends", || apply.try_wait().expect("ours"));
        assert!(!ended.success(), "{ended:?}");
        once_more(&lab, 3, &[id_before(&lab)], &Acknowledged::default());
        lab.destroy();
    }
}

#[test]
fn second_apply_is_refused_and_names_the_holder_of_the_lock() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    let mut first = lab.spawn(&APPLY);
    let pid = first.id();
    Moment::Appears(".raftsman/machines/main-1/machine.json").wait(&lab, &mut first);
    // It holds the lock until the others have asked for it, however long they take.
    kill(pid, Signal::STOP);
    for verb in [&APPLY[..], &["destroy", "--yes"]] {
        let second: Output = lab.run(verb).failed();
        assert!(second.stderr.contains(&pid.to_string()) && second.stderr.contains("apply"), "{}", second.stderr);
    }
    kill(pid, Signal::CONT);
    let output = first.wait_with_output().expect("ours");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    whole(&lab, 3);
    lab.destroy();
}

/// An apply that waited for the lock reads the file and the world again.
#[test]
fn an_apply_that_waited_carries_out_the_file_of_now() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    let mut first = lab.spawn(&APPLY);
    Moment::Appears(".raftsman/machines/main-1/machine.json").wait(&lab, &mut first);
    let holder = first.id();
    kill(holder, Signal::STOP);
    let mut second = lab.spawn(&["apply", "--yes", "--lock-timeout", "120s"]);
    std::thread::sleep(Duration::from_secs(2));
    assert!(second.try_wait().expect("ours").is_none(), "it waits");
    lab.write_file(&lab.file().replace("members: 3\n", "members: 3\n    quota: 1GiB\n"));
    kill(holder, Signal::CONT);
    for child in [first, second] {
        let output = child.wait_with_output().expect("ours");
        assert!(output.status.success(), "{output:?}");
    }
    lab.nothing_to_do();
    lab.destroy();
}

#[test]
fn destroy_killed_and_done_again() {
    let moments: u32 = if soak() { 30 } else { 6 };
    let clean = Lab::cluster(3, "3.6.15", &[]);
    clean.run(&APPLY).ok();
    let begun = Instant::now();
    clean.destroy();
    let duration = begun.elapsed();
    println!("one clean destroy takes {duration:?}");
    let moments: Vec<Duration> = (0..moments).map(|i| duration * i / moments).collect();
    for_all(&moments, |_, moment| {
        let lab = Lab::cluster(3, "3.6.15", &[]);
        lab.run(&APPLY).ok();
        let (fleet, addresses) = (lab.fleet_id(), lab.addresses());
        let destroy = start(&lab, &["destroy", "--yes"]);
        std::thread::sleep(*moment);
        end(destroy);
        lab.run(&["destroy", "--yes"]).ok();
        lab.holds_nothing(fleet.as_deref(), &addresses);
    });
}
