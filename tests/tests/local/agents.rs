//! Another raftsman with another agent → every machine's agent upgraded by `apply`, and etcd notices nothing.
//!
//! `RAFTSMAN_UPGRADES` says how many upgrades of a cluster are killed at a random moment; all of them in a soak.

#![allow(clippy::print_stdout, reason = "a test says its seed and what it met")]

use std::process::Stdio;
use std::time::{Duration, Instant};

use raftsman_tests::dice::Dice;
use raftsman_tests::lab::agents::{another, pretender};
use raftsman_tests::lab::{Lab, eventually, kill, soak};
use raftsman_tests::load::{Load, LoadSettings};
use rustix::process::Signal;

const APPLY: [&str; 4] = ["apply", "--yes", "--timeout", "60s"];
const MEMBERS: usize = 3;

/// Whether every machine runs the shipped agent.
#[track_caller]
fn all_shipped(lab: &Lab) {
    let status = lab.cluster_status();
    let members = status["members"].as_array().expect("members");
    assert!(members.iter().all(|member| member["agent"]["shipped"] == true), "{status}");
    assert_eq!(members.len(), MEMBERS);
}

#[test]
fn agents_are_upgraded_under_load() {
    let mut lab = Lab::cluster(MEMBERS, "3.6.15", &[]);
    lab.apply();
    let (agents, etcds) = (lab.agents(), lab.etcds());
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(100);
    lab.ship("second", &another("second"));
    let plan = lab.run(&["plan"]).ok().stdout;
    assert_eq!(plan.matches("upgrade agent").count(), MEMBERS, "{plan}");
    load.mark("apply");
    let steps = lab.apply().iter().filter(|line| line["event"] == "done").count();
    load.mark("applied");
    load.await_writes(100);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_clean();
    assert_eq!(steps, MEMBERS);
    all_shipped(&lab);
    assert_eq!(lab.etcds(), etcds, "etcd's processes are the same");
    assert_eq!(lab.agents(), agents, "agents are upgraded in their processes");
    lab.settled();
    lab.nothing_to_do();
    lab.destroy();
}

#[test]
fn a_program_that_does_not_serve_is_reverted_and_named() {
    let mut lab = Lab::cluster(1, "3.6.15", &[]);
    lab.apply();
    let etcds = lab.etcds();
    // How long an upgrade takes on this machine, all of the command.
    lab.ship("first", &another("first"));
    let begun = Instant::now();
    lab.run(&APPLY).ok();
    let usual = begun.elapsed();
    lab.ship("broken", &pretender(&lab.version(), "echo 'error: broken' >&2\nexit 1"));
    let begun = Instant::now();
    let output = lab.run(&APPLY).failed().all();
    assert!(begun.elapsed() < usual + Duration::from_secs(30), "{:?}, {usual:?}: {output}", begun.elapsed());
    assert!(output.contains("reverted") && output.contains("error: broken"), "{output}");
    assert!(!lab.run(&["plan"]).stdout.contains("upgrade agent"), "it is not tried again");
    // It blocks nothing else.
    let file = lab.file();
    lab.write_file(&format!("{file}    log_level: warn\n"));
    assert!(lab.run(&["plan"]).stdout.contains("configure etcd"));
    lab.write_file(&file);
    assert_eq!(lab.etcds(), etcds);
    lab.ship("fixed", &another("fixed"));
    lab.run(&APPLY).ok();
    lab.settled();
    lab.destroy();
}

fn upgrades() -> usize {
    let said = std::env::var("RAFTSMAN_UPGRADES").ok().and_then(|n| n.parse().ok());
    said.unwrap_or(if soak() { 50 } else { 4 })
}

/// What is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Apply,
    Agent,
    Guardian,
}

impl Victim {
    /// What of it lives now.
    fn processes(self, lab: &Lab, apply: u32) -> Vec<u32> {
        let with = |part: &str| {
            let found = lab.processes().into_iter().filter(|(_, line)| line.contains(part));
            found.map(|(pid, _)| pid).collect::<Vec<_>>()
        };
        match self {
            Self::Apply => vec![apply],
            Self::Agent => lab.agents().into_iter().map(|(_, pid)| pid).collect(),
            Self::Guardian => with("raftsman-agent guard --root "),
        }
    }
}

#[test]
fn upgrades_killed_at_any_moment_are_finished_by_the_next_apply() {
    let seed = std::env::var("RAFTSMAN_SEED").ok().and_then(|n| n.parse().ok());
    let seed = seed.unwrap_or_else(|| Dice::of_this_run("upgrades").bits());
    println!("again with: RAFTSMAN_SEED={seed}");
    let mut dice = Dice::new(seed);
    let mut lab = Lab::cluster(MEMBERS, "3.6.15", &[]);
    lab.apply();
    let etcds = lab.etcds();
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(100);
    for run in 0..upgrades() {
        let mark = format!("run-{run}");
        lab.ship(&mark, &another(&mark));
        let victim = [Victim::Apply, Victim::Agent, Victim::Guardian][dice.below(3)];
        let after = Duration::from_millis(dice.below(2_500) as u64);
        load.mark(&format!("run {run}: {victim:?} after {after:?}"));
        let mut apply = lab.command(&APPLY);
        let mut apply = apply.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("raftsman starts");
        std::thread::sleep(after);
        // A guardian lives for a moment: it is waited for as long as the command runs.
        let victims = loop {
            let found = victim.processes(&lab, apply.id());
            if !found.is_empty() || apply.try_wait().expect("it is ours").is_some() {
                break found;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        if !victims.is_empty() {
            kill(victims[dice.below(victims.len())], Signal::KILL);
        }
        apply.wait().expect("it was ours");
        let begun = Instant::now();
        let output = lab.run(&APPLY);
        println!("run {run}: {victim:?} killed after {after:?}, next apply took {:?}", begun.elapsed());
        // One that was killed with a program on trial may meet the moment in which that is reverted.
        if output.code != 0 {
            lab.run(&APPLY).ok();
        }
        all_shipped(&lab);
        assert_eq!(lab.etcds(), etcds, "run {run}: etcd's processes are the same");
        eventually("nothing else runs", || (lab.processes().len() == 2 * MEMBERS).then_some(()));
    }
    load.mark("done");
    load.await_writes(100);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_clean();
    lab.settled();
    lab.destroy();
}
