//! What raftsman does to the etcd beneath PostgreSQL, under clients → demotions, and for how long writes stop.
//!
//! Beside it the same clients while nothing happens, for as long; and two of three members killed at once.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use raftsman_tests::figures::median;
use raftsman_tests::lab::{Lab, kill};
use raftsman_tests::postgres::bare::major;
use raftsman_tests::postgres::{Clients, Ledger, Stack, Watch, psql, section};
use rustix::process::Signal;

const GOAL: f64 = 2.0;
const CLIENTS: usize = 4;

/// One kind of operation, and what clients noticed of it each time.
struct Kind {
    name: &'static str,
    times: usize,
    act: fn(&Stack<'_>, usize),
    gaps: Vec<f64>,
    took: Vec<f64>,
    demotions: usize,
    wrong: Vec<String>,
}

impl Kind {
    fn new(name: &'static str, times: usize, act: fn(&Stack<'_>, usize)) -> Self {
        Self { name, times, act, gaps: Vec::new(), took: Vec::new(), demotions: 0, wrong: Vec::new() }
    }

    fn round(&mut self, stack: &Stack<'_>, clients: &Clients) {
        let (before, act) = (stack.demotions(), self.act);
        self.under(clients, |round| act(stack, round));
        self.demotions += stack.demotions() - before;
    }

    fn under(&mut self, clients: &Clients, act: impl FnOnce(usize)) {
        let (watch, ledger) = (Watch::start(clients), Ledger::start(clients, CLIENTS));
        let begun = Instant::now();
        act(self.gaps.len());
        self.took.push(begun.elapsed().as_secs_f64());
        ledger.await_writes(20);
        let (accounts, seen) = (ledger.finish(), watch.finish());
        self.gaps.push(accounts.longest_gap.as_secs_f64() * 1000.0);
        if !accounts.lost.is_empty() || !seen.two_primaries.is_empty() || seen.primaries.len() > 1 {
            self.wrong.push(format!("{accounts:?} {seen:?}"));
        }
    }

    fn longest(&self) -> f64 {
        self.gaps.iter().copied().fold(0.0, f64::max)
    }

    fn row(&self) {
        let (gap, took) = (median(self.gaps.clone()), median(self.took.clone()));
        let (times, longest) = (self.gaps.len(), self.longest());
        println!("{:<22} {times:>5} {took:>8.1} {gap:>7.0} {longest:>8.0} {:>10}", self.name, self.demotions);
    }
}

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    // One part of so many: 1 for all of it.
    let part: usize = arguments.first().and_then(|n| n.parse().ok()).unwrap_or(1);
    let lab = Lab::cluster(3, "3.6.15", &["auth: { mode: password }", "quota: 2GiB"]);
    lab.write_file(&format!("{}{}", lab.file(), section(&major(), "127.0.0.0/8", "    nodes: 3\n")));
    let superuser = |_: &str, statement: &str| psql(&lab, statement);
    let stack = Stack { lab: &lab, superuser: &superuser };
    stack.apply();
    let clients = stack.clients_of_nodes();
    let mut kinds = [
        Kind::new("rolling restart", 50 / part, |stack, _| exchange(stack, ["quota: 2GiB", "quota: 3GiB"])),
        Kind::new("another version", 10 / part, |stack, _| exchange(stack, ["version: 3.6.15", "version: 3.6.14"])),
        Kind::new("a member replaced", 10 / part, |stack, round| {
            stack.lab.run(&["replace", &format!("main-{}", round % 3 + 1), "--yes"]).ok();
            stack.lab.nothing_to_do();
        }),
        Kind::new("the clients' CA", 10 / part, |stack, _| {
            stack.lab.run(&["cert", "rotate", "clients", "--yes"]).ok();
            stack.apply();
            stack.lab.nothing_to_do();
        }),
        Kind::new("Patroni's user", 10 / part, |stack, _| {
            stack.lab.run(&["rotate-user", "--yes"]).ok();
            stack.lab.nothing_to_do();
        }),
    ];
    let mut nothing = Kind::new("nothing", 0, |_, _| ());
    println!(
        "three members of etcd, three nodes of PostgreSQL, {CLIENTS} clients; ttl 20, loop_wait 1, retry_timeout 3"
    );
    for kind in &mut kinds {
        for _ in 0..kind.times.max(1) {
            kind.round(&stack, &clients);
            println!("{}: {:.0} ms", kind.name, kind.gaps.last().copied().unwrap_or_default());
        }
        // As often and for as long, next to it: the machine's own hiccups grow with time.
        for took in kind.took.clone() {
            nothing.under(&clients, |_| std::thread::sleep(Duration::from_secs_f64(took)));
        }
    }
    let mut both = Kind::new("two members killed", 0, |stack, _| {
        stack.lab.etcds().iter().take(2).for_each(|(_, pid)| kill(*pid, Signal::KILL));
        stack.apply();
        stack.lab.nothing_to_do();
    });
    for _ in 0..(10 / part).max(1) {
        both.round(&stack, &clients);
    }
    println!("                       times  seconds  gap ms  longest  demotions");
    kinds.iter().chain([&nothing, &both]).for_each(Kind::row);
    let longest = kinds.iter().map(Kind::longest).fold(0.0, f64::max);
    let demotions: usize = kinds.iter().map(|kind| kind.demotions).sum();
    let wrong: Vec<&String> = kinds.iter().flat_map(|kind| &kind.wrong).collect();
    wrong.iter().for_each(|wrong| println!("{wrong}"));
    let ratio = longest / nothing.longest();
    println!("{demotions} demotions");
    println!("bench-pg-beneath ratio={ratio:.2} goal={GOAL}");
    if ratio <= GOAL && demotions == 0 && wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The file has the one, then the other.
fn exchange(stack: &Stack<'_>, texts: [&str; 2]) {
    stack.exchange(texts);
    stack.apply();
    stack.lab.nothing_to_do();
}
