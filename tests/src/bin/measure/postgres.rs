//! PostgreSQL on etcd under clients, by hand and by raftsman, alternating in one run → for how long writes stop.
//!
//! Both clusters run side by side all the time, on the same etcd, with the same timers, each behind HAProxy. Half of the
//! clients know every node, half know HAProxy only.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raftsman_tests::figures::median;
use raftsman_tests::lab::{Lab, eventually};
use raftsman_tests::postgres::bare::{ETCD_LINES, major};
use raftsman_tests::postgres::{
    APPLY, BarePostgres, Clients, Dcs, Ledger, Stack, Timers, Watch, balancer, psql, section,
};

const GOAL: f64 = 1.05;
const CLIENTS: usize = 4;
/// Clients alone, before and after.
const QUIET: Duration = Duration::from_secs(2);

/// What one way brought, round by round.
#[derive(Default)]
struct Way {
    gaps: Vec<f64>,
    took: Vec<f64>,
    wrong: Vec<String>,
}

impl Way {
    /// Does it under clients, and writes down what they noticed.
    fn round(&mut self, clients: &Clients, act: impl FnOnce()) {
        let (watch, ledger) = (Watch::start(clients), Ledger::start(clients, CLIENTS));
        std::thread::sleep(QUIET);
        let begun = Instant::now();
        act();
        self.took.push(begun.elapsed().as_secs_f64());
        ledger.await_writes(20);
        std::thread::sleep(QUIET);
        let (accounts, seen) = (ledger.finish(), watch.finish());
        self.gaps.push(accounts.longest_gap.as_secs_f64());
        if !accounts.lost.is_empty() || !seen.two_primaries.is_empty() {
            self.wrong.push(format!("{accounts:?} {seen:?}"));
        }
    }

    fn last(&self) -> String {
        let last = |values: &[f64]| values.last().copied().unwrap_or_default();
        format!("{:>7.2} {:>6.1}", last(&self.gaps), last(&self.took))
    }

    fn row(&self, name: &str) {
        let most = self.gaps.iter().copied().fold(0.0, f64::max);
        let (gap, took) = (median(self.gaps.clone()), median(self.took.clone()));
        println!("{name:<10} {gap:>7.2} {most:>7.2} {took:>6.1}");
    }
}

/// One cluster by raftsman, and one by hand on the same etcd.
fn both() -> (Lab, BarePostgres) {
    let section = section(&major(), "127.0.0.0/8", "    nodes: 3\n");
    let lab = Lab::cluster(3, "3.6.15", &ETCD_LINES);
    lab.write_file(&format!("{}{section}{}", lab.file(), balancer("instances: 1")));
    Dcs::prepare(&lab);
    lab.run(&APPLY).ok();
    let mut bare = BarePostgres::up(&Dcs::of(&lab), Timers::SHORTEST);
    bare.front();
    (lab, bare)
}

/// Rounds by hand and by raftsman in turn; then both rows, and the verdict.
fn compare(
    name: &str,
    arguments: &[String],
    by_hand: fn(&mut BarePostgres, &mut Way),
    by_raftsman: fn(&Stack<'_>, &Clients, &mut Way),
) -> ExitCode {
    let rounds: usize = arguments.first().and_then(|n| n.parse().ok()).unwrap_or(10);
    let (lab, mut bare) = both();
    let superuser = |_: &str, statement: &str| psql(&lab, statement);
    let stack = Stack { lab: &lab, superuser: &superuser };
    let clients = stack.clients("db");
    let (mut hand, mut ours) = (Way::default(), Way::default());
    println!(
        "{rounds} rounds; the longest time without an acknowledged write of one client, and how long it took, seconds"
    );
    println!("round  by hand         raftsman");
    for round in 0..rounds {
        for turn in 0..2 {
            match (round + turn) % 2 {
                0 => by_hand(&mut bare, &mut hand),
                _ => by_raftsman(&stack, &clients, &mut ours),
            }
        }
        println!("{:>5}  {}  {}", round + 1, hand.last(), ours.last());
    }
    println!("            median     max   took");
    hand.row("by hand");
    ours.row("raftsman");
    for wrong in hand.wrong.iter().map(|wrong| format!("by hand: {wrong}")).chain(ours.wrong.iter().cloned()) {
        println!("{wrong}");
    }
    let ratio = median(ours.gaps) / median(hand.gaps);
    println!("{name} ratio={ratio:.2} goal={GOAL}");
    if ratio <= GOAL && ours.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// `just bench-pg-switchover`.
pub(crate) fn switchover(arguments: &[String]) -> ExitCode {
    println!("by hand:  POST /switchover, until all nodes follow a new primary with a synchronous standby");
    println!("raftsman: `raftsman switchover`");
    compare("bench-pg-switchover", arguments, switch_by_hand, |stack, clients, way| {
        way.round(clients, || drop(stack.lab.run(&["switchover", "app", "--yes"]).ok()));
        settled(stack);
    })
}

/// `just bench-pg-failover`.
pub(crate) fn failover(arguments: &[String]) -> ExitCode {
    println!("the primary's machine loses its power; what is timed ends with a primary on another node");
    compare(
        "bench-pg-failover",
        arguments,
        |bare, way| {
            let clients = Arc::clone(bare.clients());
            let primary = bare.settled().primary;
            way.round(&clients, || {
                bare.kill(primary);
                eventually("another primary", || bare.leader().filter(|now| *now != primary));
            });
            bare.start(primary);
            bare.settled();
        },
        |stack, clients, way| {
            let primary = stack.primary().expect("a primary");
            way.round(clients, || {
                stack.lab.cut_power(&primary);
                eventually("another primary", || stack.primary().filter(|now| *now != primary));
            });
            stack.apply();
            settled(stack);
        },
    )
}

/// `just bench-pg-roll`.
pub(crate) fn roll(arguments: &[String]) -> ExitCode {
    println!("by hand:  one switchover, as in bench-pg-switchover");
    println!("raftsman: `max_connections` changed in the file, and `raftsman apply`: every node restarts");
    compare("bench-pg-roll", arguments, switch_by_hand, |stack, clients, way| {
        let file = stack.lab.file();
        let (from, to) = if file.contains("max_connections: 50") { ("50", "60") } else { ("60", "50") };
        way.round(clients, || {
            stack.change(&format!("max_connections: {from}"), &format!("max_connections: {to}"));
        });
        settled(stack);
    })
}

fn switch_by_hand(bare: &mut BarePostgres, way: &mut Way) {
    way.round(bare.clients(), || {
        bare.switchover();
    });
}

/// Waits until every node follows the primary.
fn settled(stack: &Stack<'_>) {
    eventually("the cluster is settled", || (stack.seen()["state"] == "settled").then_some(()));
}
