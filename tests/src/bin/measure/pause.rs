//! A rolling restart under load, by hand and by raftsman, alternating in one run → what clients notice, side by side.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use raftsman_tests::hand::Hand;
use raftsman_tests::lab::Lab;
use raftsman_tests::load::{Load, LoadSettings, Target};

const MEMBERS: usize = 3;
const GOAL: f64 = 1.1;
/// The load must get so many writes a second through, or the figures mean little.
const LEAST: f64 = 200.0;
/// Load before and after the operation.
const QUIET: Duration = Duration::from_secs(1);

/// What one way brought, round by round.
#[derive(Default)]
struct Way {
    gaps: Vec<f64>,
    took: Vec<f64>,
    errors: Vec<usize>,
    throughput: Vec<f64>,
    wrong: Vec<String>,
}

impl Way {
    /// Does it under load, and writes down what clients noticed.
    fn round(&mut self, target: Target, restart_all: impl FnOnce()) {
        let load = Load::against(target, LoadSettings::default());
        std::thread::sleep(QUIET);
        let begun = Instant::now();
        restart_all();
        self.took.push(begun.elapsed().as_secs_f64());
        std::thread::sleep(QUIET);
        let verdict = load.finish();
        self.gaps.push(verdict.figures.longest_gap.length.as_secs_f64() * 1000.0);
        self.errors.push(verdict.figures.errors);
        self.throughput.push(verdict.figures.throughput());
        if !verdict.clean() {
            self.wrong.push(verdict.to_string());
        }
    }

    fn last(&self) -> String {
        let last = |values: &[f64]| values.last().copied().unwrap_or(0.0);
        format!("{:>7.0} {:>2} {:>5.1}", last(&self.gaps), self.errors.last().unwrap_or(&0), last(&self.took))
    }

    fn row(&self, name: &str) {
        let errors: usize = self.errors.iter().sum();
        println!(
            "{name:<26} {:>6.0} {:>6.0} {:>7} {:>8.0} {:>6.1}",
            median(&self.gaps),
            max(&self.gaps),
            errors,
            median(&self.throughput),
            median(&self.took)
        );
    }
}

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let mut arguments = arguments.iter();
    let rounds: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(10);
    let version = arguments.next().map_or("3.6.15", String::as_str);
    println!(
        "{MEMBERS} members of etcd {version} with TLS and auth, all restarted one by one under load; {rounds} rounds"
    );
    println!("by hand: SIGTERM, start again, wait for a linearizable read; followers first, the leader last");
    println!("moved:   the same, with the leadership moved away before its member is restarted");
    println!("ours:    a changed log level in the file, and `raftsman apply`");
    println!("quiet:   nothing is restarted, for as long: what the machine itself does to the load");
    println!("each with its longest time without an acknowledged write in ms, errors after one retry, seconds taken");
    let bring_up = || {
        let lab = Lab::cluster(MEMBERS, version, &["log_level: info"]);
        lab.run(&["apply", "--yes"]).ok();
        lab
    };
    let (mut plain, mut moving, ours) = (Hand::take_over(bring_up()), Hand::take_over(bring_up()), bring_up());
    let [mut by_hand, mut moved, mut by_raftsman, mut quiet] = std::array::from_fn(|_| Way::default());
    println!("round  {:<16}  {:<16}  {:<16}  {:<16}", "by hand", "moved", "ours", "quiet");
    for round in 0..rounds {
        // Turn and turn about, so that none always comes first.
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => restart_by_hand(&mut plain, &mut by_hand, false),
                1 => restart_by_hand(&mut moving, &mut moved, true),
                _ => restart_by_raftsman(&ours, &mut by_raftsman),
            }
        }
        quiet.round(Target::of(&ours, "main"), || std::thread::sleep(Duration::from_secs(3)));
        println!("{:>5}  {}  {}  {}  {}", round + 1, by_hand.last(), moved.last(), by_raftsman.last(), quiet.last());
    }
    println!("                           median    max  errors  writes/s  seconds");
    by_hand.row("by hand");
    moved.row("by hand, leader moved");
    by_raftsman.row("raftsman");
    quiet.row("quiet");
    let mut sound = true;
    for way in [&by_hand, &moved, &by_raftsman, &quiet] {
        for wrong in &way.wrong {
            println!("{wrong}");
        }
        if median(&way.throughput) < LEAST {
            println!("fewer than {LEAST} writes a second went through: this machine is too slow for these figures");
            sound = false;
        }
    }
    let better = |of: fn(&[f64]) -> f64| of(&by_hand.gaps).min(of(&moved.gaps));
    let ratio = (median(&by_raftsman.gaps) / better(median)).max(max(&by_raftsman.gaps) / better(max));
    println!("bench-pause ratio={ratio:.2} goal={GOAL}");
    if ratio <= GOAL && by_raftsman.wrong.is_empty() && sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn restart_by_hand(hand: &mut Hand, way: &mut Way, move_leader: bool) {
    // The load borrows the lab, the restarts borrow all of `Hand`.
    let target = Target::of(&hand.lab, "main");
    way.round(target, || {
        let leader = hand.leader();
        for follower in (0..hand.members()).filter(|member| *member != leader) {
            hand.restart(follower);
        }
        if move_leader {
            hand.move_leader(leader, (leader + 1) % hand.members());
        }
        hand.restart(leader);
    });
}

fn restart_by_raftsman(lab: &Lab, way: &mut Way) {
    let file = lab.file();
    let (from, to) = if file.contains("log_level: info") { ("info", "warn") } else { ("warn", "info") };
    let target = Target::of(lab, "main");
    way.round(target, || {
        lab.write_file(&file.replace(&format!("log_level: {from}"), &format!("log_level: {to}")));
        lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    });
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

fn max(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
