//! Operation on a stack with PostgreSQL × fault × step, under clients → a table of the results, and whether all are green.
//!
//! `death-pg [--cells N] [--operation NAME] [--fault NAME] [--seed S]`: without `--cells`, all of them. A cell is carried
//! out like this: the operation is begun; at the beginning of its k-th wave something dies; the operator applies the file
//! until that is done. Green means: nothing is left to do, no acknowledged commit is lost, no timeline that has one was
//! left behind, and no two nodes took writes at once. The command is killed in every wave, everything else dies in the
//! first ones.

#![allow(clippy::print_stdout, reason = "a table is printed")]

use std::io::{BufRead as _, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use raftsman_tests::dice::Dice;
use raftsman_tests::lab::{Lab, eventually, kill};
use raftsman_tests::partition::{self, Groups};
use raftsman_tests::postgres::operations::{Operation, cut_off};
use raftsman_tests::postgres::{APPLY, Clients, Ledger, Stack, Watch, file, forks, psql, write_password};
use rustix::process::Signal;
use serde_json::Value;

use crate::cells;

/// What raftsman carries out step by step.
const OPERATIONS: [Operation; 6] = [
    Operation::Parameter,
    Operation::EtcdRolled,
    Operation::EtcdUpgraded,
    Operation::MemberReplaced,
    Operation::EtcdCa,
    Operation::EtcdUser,
];

/// What dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The command that changes the stack.
    Command,
    /// An agent.
    Agent,
    /// Patroni and PostgreSQL of the primary.
    Primary,
    /// Patroni and PostgreSQL of a standby.
    Standby,
    /// A member of etcd.
    Member,
    /// The primary's machine reaches neither etcd nor the other nodes for a while.
    Apart,
}

impl Fault {
    const ALL: [Self; 6] = [Self::Command, Self::Agent, Self::Primary, Self::Standby, Self::Member, Self::Apart];

    fn name(self) -> &'static str {
        match self {
            Self::Command => "command killed",
            Self::Agent => "agent killed",
            Self::Primary => "primary killed",
            Self::Standby => "standby killed",
            Self::Member => "etcd killed",
            Self::Apart => "primary cut off",
        }
    }

    /// As many waves of an operation are tried.
    fn steps(self) -> usize {
        if self == Self::Command { 16 } else { 2 }
    }
}

/// A network heals after so long: about when Patroni's lease of 20 s ends, in some cells before and in some after.
const CUT_MS: usize = 30_000;

/// What dies in which wave of which operation.
type Cell = (Operation, Fault, usize);

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let (mut wanted, mut seed, mut operation, mut fault) = (usize::MAX, 1, None, None);
    for pair in arguments.chunks(2) {
        let [key, value] = pair else { panic!("{} needs a value", pair[0]) };
        match key.as_str() {
            "--cells" => wanted = value.parse().expect("a number"),
            "--seed" => seed = value.parse().expect("a number"),
            "--operation" => {
                operation = Some(OPERATIONS.into_iter().find(|o| o.name() == value).expect("an operation"))
            }
            "--fault" => fault = Some(Fault::ALL.into_iter().find(|f| f.name() == value).expect("a fault")),
            other => panic!("what is {other}?"),
        }
    }
    partition::enter();
    let mut dice = Dice::new(seed);
    let mut cells: Vec<Cell> = Vec::new();
    for operation in OPERATIONS.into_iter().filter(|o| operation.is_none_or(|target| target == *o)) {
        for fault in Fault::ALL.into_iter().filter(|f| fault.is_none_or(|target| target == *f)) {
            cells.extend((1..=fault.steps()).map(|step| (operation, fault, step)));
        }
    }
    if wanted < cells.len() {
        // A slice is drawn from all of them, the early steps first: every operation has those.
        cells.retain(|(_, _, step)| *step <= 2);
        dice.shuffle(&mut cells);
    }
    let mut results: Vec<(&str, &str, bool)> = Vec::new();
    let (mut scene, mut ended): (Option<Scene>, Option<(Operation, Fault)>) = (None, None);
    println!("operation               fault            step  seconds  longest gap  outcome");
    for (operation, fault, step) in cells {
        // It had no such step before: it has no later one.
        if results.len() >= wanted || ended == Some((operation, fault)) {
            continue;
        }
        let (on, begun) = (scene.take().unwrap_or_else(Scene::new), Instant::now());
        // What the test's own parts expect of a stack ends a cell, and not all of them.
        let outcome = catch_unwind(AssertUnwindSafe(|| on.cell((operation, fault, step), &mut dice)));
        Groups::heal();
        let (gap, verdict) = match outcome {
            Ok(Ok(None)) => {
                (ended, scene) = (Some((operation, fault)), Some(on));
                continue;
            }
            Ok(Ok(Some(gap))) => (format!("{} ms", gap.as_millis()), Ok(())),
            Ok(Err(wrong)) => ("-".to_owned(), Err(wrong)),
            Err(_) => ("-".to_owned(), Err("see above".to_owned())),
        };
        let word = verdict.as_ref().map_or_else(|wrong| format!("FAILED: {wrong}"), |()| "green".to_owned());
        let took = begun.elapsed().as_secs_f64();
        println!("{:<22}  {:<15}  {step:>4}  {took:>7.1}  {gap:>11}  {word}", operation.name(), fault.name());
        // Whatever failed is not carried into the next cell.
        if verdict.is_ok() {
            scene = Some(on);
        }
        results.push((operation.name(), fault.name(), verdict.is_ok()));
    }
    if let Some(scene) = scene {
        scene.lab.destroy();
    }
    let (table, green) = cells::table(&OPERATIONS.map(Operation::name), &Fault::ALL.map(Fault::name), &results);
    println!("\n{table}");
    if green { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A stack whose machines' networks can be cut.
struct Scene {
    // Before the groups: they can only be removed once no process is in them.
    lab: Lab,
    groups: Groups,
    clients: Clients,
}

impl Scene {
    fn new() -> Self {
        let mut lab = Lab::new(&file("    quota: 2GiB\n"));
        let groups = Groups::of(&mut lab);
        write_password(&lab, "shop", None);
        lab.run(&APPLY).ok();
        let superuser = |_: &str, statement: &str| psql(&lab, statement);
        let clients = Stack { lab: &lab, superuser: &superuser }.clients("db");
        Self { lab, groups, clients }
    }

    /// A cell is carried out: the longest gap, nothing when the operation has fewer steps, or what went wrong.
    fn cell(&self, (operation, fault, step): Cell, dice: &mut Dice) -> Result<Option<Duration>, String> {
        let lab = &self.lab;
        let superuser = |_: &str, statement: &str| psql(lab, statement);
        let stack = Stack { lab, superuser: &superuser };
        let (watch, ledger) = (Watch::start(&self.clients), Ledger::start(&self.clients, 4));
        let mut words = operation.begin(&stack, dice).expect("a command");
        words.push("--json".to_owned());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let command = lab.command(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut command = command.expect("raftsman starts");
        let output = BufReader::new(command.stdout.take().expect("its output"));
        let (mut waves, mut heals) = (0, None);
        for line in output.lines().map_while(Result::ok) {
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            waves += usize::from(event["event"] == "wave");
            if event["event"] == "wave" && waves == step {
                heals = self.strike(&stack, fault, command.id(), dice);
            }
        }
        let _ = command.wait();
        if let Some(heals) = heals {
            heals.join().expect("the network heals");
        }
        self.apply_until_done()?;
        ledger.await_writes(20);
        let (accounts, seen) = (ledger.finish(), watch.finish());
        let left_behind = forks::left_behind(&accounts.highest, &stack.ask(forks::HISTORY));
        if !accounts.lost.is_empty() || !left_behind.is_empty() || !seen.two_primaries.is_empty() {
            return Err(format!("{left_behind:?} {accounts:?} {seen:?}"));
        }
        Ok((waves >= step).then_some(accounts.longest_gap))
    }

    /// The operator gives the same command again until it is done, and then there is nothing to do.
    fn apply_until_done(&self) -> Result<(), String> {
        let mut last = String::new();
        let done = (0..4).any(|_| {
            let output = self.lab.run(&APPLY);
            last = output.all();
            output.code == 0
        });
        if !done {
            return Err(last);
        }
        self.lab.nothing_to_do();
        Ok(())
    }

    /// Lets something die. The answer ends once a network that was cut is whole again.
    fn strike(
        &self,
        stack: &Stack<'_>,
        fault: Fault,
        command: u32,
        dice: &mut Dice,
    ) -> Option<std::thread::JoinHandle<()>> {
        let lab = &self.lab;
        let primary = || eventually("a primary", || stack.primary());
        match fault {
            Fault::Command => kill(command, Signal::KILL),
            Fault::Agent => {
                if let Some((_, pid)) = dice.pick(&lab.agents()) {
                    kill(*pid, Signal::KILL);
                }
            }
            Fault::Primary => stack.kill_node(&primary()),
            Fault::Standby => {
                let primary = primary();
                let standbys: Vec<String> = stack.nodes().into_iter().filter(|node| *node != primary).collect();
                stack.kill_node(dice.pick(&standbys).expect("a standby"));
            }
            Fault::Member => {
                if let Some((_, pid)) = dice.pick(&lab.etcds()) {
                    kill(*pid, Signal::KILL);
                }
            }
            Fault::Apart => {
                cut_off(stack, &self.groups, &primary());
                let lasts = Duration::from_millis(dice.below(CUT_MS) as u64);
                return Some(std::thread::spawn(move || {
                    std::thread::sleep(lasts);
                    Groups::heal();
                }));
            }
        }
        None
    }
}
