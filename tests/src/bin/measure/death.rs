//! Operation × fault × step on real members under client load → a table of the results, and whether all are green.
//!
//! `death [--cells N] [--operation NAME] [--fault NAME] [--step K] [--shard I/N] [--seed S] [--auth MODE]
//! [--results FILE] [--readers yes]`: without `--cells`, all of them, or so many; those that were green before are in the results already.
//! `death --table FILE` makes the table of results that were written before, by several shards perhaps. In one half of
//! the cells clients have certificates, in the other passwords, and with the next seed the other way round; `--auth` gives
//! all cells to one mode. A cell is carried out like this: the operation is begun; at the beginning of its k-th wave
//! something dies; the operator runs the same command again until it is done. Green means: it converges,
//! no acknowledged write is lost, what clients saw is linearizable, and the versions of the ledger are one chain. With
//! `--readers yes`, every verb that only reads runs beside all of it in eight loops. The command is killed in every wave of each
//! operation, everything else dies in the first ones.

#![allow(clippy::print_stdout, reason = "a table is printed")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _};
use std::net::Ipv4Addr;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use raftsman_tests::dice::Dice;
use raftsman_tests::lab::{Lab, eventually, kill};
use raftsman_tests::load::{Load, LoadSettings};
use raftsman_tests::operations::{Auth, Operation, Shape};
use raftsman_tests::partition::{self, Cut, Groups, Ports};
use raftsman_tests::readers;
use rustix::process::Signal;
use serde_json::Value;

use crate::cells;

/// What dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The command that changes the cluster.
    Command,
    /// An agent.
    Agent,
    /// A member's process.
    Member,
    /// A member hangs, and wakes up late.
    Pause,
    /// A member's disk is wiped.
    Disk,
    /// A machine is gone with its disk.
    Machine,
    /// The leader and the others do not receive each other's messages for a while.
    Apart,
    /// The others do not receive the leader's messages.
    Mute,
    /// The leader does not receive the others' messages.
    Deaf,
}

impl Fault {
    const ALL: [Self; 9] = [
        Self::Command,
        Self::Agent,
        Self::Member,
        Self::Pause,
        Self::Disk,
        Self::Machine,
        Self::Apart,
        Self::Mute,
        Self::Deaf,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Command => "command killed",
            Self::Agent => "agent killed",
            Self::Member => "etcd killed",
            Self::Pause => "etcd stopped, woken late",
            Self::Disk => "disk wiped",
            Self::Machine => "machine gone",
            Self::Apart => "leader cut off",
            Self::Mute => "leader not heard",
            Self::Deaf => "leader receives nothing",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.name() == name)
    }

    /// Which packets are lost.
    fn cut(self) -> Option<Cut> {
        match self {
            Self::Apart => Some(Cut::Both),
            Self::Mute => Some(Cut::Sent),
            Self::Deaf => Some(Cut::Received),
            _ => None,
        }
    }

    /// As many waves of an operation are tried.
    fn steps(self) -> usize {
        if self == Self::Command { 24 } else { 3 }
    }

    /// Whether a member is lost for good, so that the operator has to give it up.
    fn loses(self) -> bool {
        matches!(self, Self::Disk | Self::Machine)
    }
}

/// A member that hangs wakes up after this long, and a network heals: later than any election.
const NAP: Duration = Duration::from_secs(3);

struct Options {
    cells: usize,
    operation: Option<Operation>,
    fault: Option<Fault>,
    step: Option<usize>,
    shard: (usize, usize),
    seed: u64,
    auth: Option<Auth>,
    readers: bool,
    results: Option<String>,
    table: Option<String>,
}

fn options(arguments: &[String]) -> Options {
    let mut options = Options {
        cells: usize::MAX,
        operation: None,
        fault: None,
        step: None,
        shard: (0, 1),
        seed: 1,
        auth: None,
        readers: false,
        results: None,
        table: None,
    };
    for pair in arguments.chunks(2) {
        let [key, value] = pair else { panic!("{} needs a value", pair[0]) };
        match key.as_str() {
            "--cells" => options.cells = value.parse().expect("a number"),
            "--seed" => options.seed = value.parse().expect("a number"),
            "--operation" => options.operation = Some(Operation::named(value).expect("an operation")),
            "--fault" => options.fault = Some(Fault::named(value).expect("a fault")),
            "--step" => options.step = Some(value.parse().expect("a number")),
            "--shard" => {
                let (index, of) = value.split_once('/').expect("such as 0/2");
                options.shard = (index.parse().expect("a number"), of.parse().expect("a number"));
            }
            "--auth" => options.auth = Some(Auth::named(value).expect("certificate or password")),
            "--readers" => options.readers = value == "yes",
            "--results" => options.results = Some(value.clone()),
            "--table" => options.table = Some(value.clone()),
            other => panic!("what is {other}?"),
        }
    }
    options
}

/// What dies in which wave of which operation.
type Cell = (Operation, Fault, usize);

/// The result of a cell.
type Outcome = (Operation, Fault, usize, Result<(), String>);

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let options = options(arguments);
    if let Some(path) = &options.table {
        let (table, green) = table(&read(path));
        println!("{table}");
        return if green { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    partition::enter();
    let results = run(&options);
    let (table, green) = table(&results);
    println!("\n{table}");
    if green { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cells(options: &Options, dice: &mut Dice) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    for operation in Operation::ALL.into_iter().filter(|o| options.operation.is_none_or(|target| target == *o)) {
        for fault in Fault::ALL.into_iter().filter(|f| options.fault.is_none_or(|target| target == *f)) {
            let steps = (1..=fault.steps()).filter(|step| options.step.is_none_or(|target| target == *step));
            cells.extend(steps.map(|step| (operation, fault, step)));
        }
    }
    if options.cells < cells.len() {
        // A slice is drawn from all of them, the early steps first: every operation has those.
        cells.retain(|(_, _, step)| *step <= 2);
        dice.shuffle(&mut cells);
    }
    let (index, of) = options.shard;
    cells.retain(|cell| row(cell) % of == index);
    if options.cells == usize::MAX {
        // One mode after the other, so that one cluster of each is enough.
        cells.sort_by_key(|cell| auth(options, 0, cell).name());
    }
    cells
}

/// By operation and fault, so that a row of steps is in one shard and ends where the operation does.
fn row((operation, fault, _): &Cell) -> usize {
    let position = Operation::ALL.iter().position(|o| o == operation).unwrap_or(0) * Fault::ALL.len();
    position + Fault::ALL.iter().position(|f| f == fault).unwrap_or(0)
}

/// How clients authenticate in a cell, after so many others.
fn auth(options: &Options, done: usize, cell: &Cell) -> Auth {
    let turn = if options.cells == usize::MAX { row(cell) } else { usize::from(done * 2 >= options.cells) };
    options.auth.unwrap_or_else(|| Auth::drawn(options.seed + turn as u64))
}

fn run(options: &Options) -> Vec<Outcome> {
    let mut dice = Dice::new(options.seed);
    let cells = cells(options, &mut dice);
    let mut results: Vec<Outcome> = Vec::new();
    let mut file = options
        .results
        .as_ref()
        .map(|path| std::fs::OpenOptions::new().create(true).append(true).open(path).expect("a file for the results"));
    let mut scene: Option<Scene> = None;
    let mut ended: Option<(Operation, Fault)> = None;
    println!("operation       fault                     auth         step  seconds  longest gap  outcome");
    let before = options.results.as_ref().filter(|path| std::path::Path::new(path).exists()).map(|path| read(path));
    for (operation, fault, step) in cells {
        if results.len() >= options.cells {
            break;
        }
        // What was green in a run before this one is not tried again.
        let same = |(o, f, s, result): &&Outcome| (*o, *f, *s) == (operation, fault, step) && result.is_ok();
        if let Some(green) = before.iter().flatten().find(same) {
            results.push(green.clone());
            continue;
        }
        // It had no such step before: it has no later one.
        if ended == Some((operation, fault)) {
            continue;
        }
        let auth = auth(options, results.len(), &(operation, fault, step));
        // The one before has to be gone: they have the same addresses.
        let kept = scene.take().filter(|scene| scene.shape.auth == auth);
        let mut scene_now = kept.unwrap_or_else(|| Scene::new(auth));
        let began = Instant::now();
        let outcome = scene_now.cell(options.readers, (operation, fault, step), &mut dice);
        Groups::heal();
        let (gap, verdict) = match outcome {
            // The operation has no such step: not a cell.
            Ok(None) => {
                ended = Some((operation, fault));
                scene = Some(scene_now);
                continue;
            }
            Ok(Some(gap)) => (format!("{} ms", gap.as_millis()), Ok(())),
            Err(error) => ("-".to_owned(), Err(error)),
        };
        let word = verdict.as_ref().map_or_else(|e| format!("FAILED: {e}"), |()| "green".to_owned());
        println!(
            "{:<14}  {:<24}  {:<11}  {step:>4}  {:>7.1}  {gap:>11}  {word}",
            operation.name(),
            fault.name(),
            auth.name(),
            began.elapsed().as_secs_f64(),
        );
        if let Some(file) = &mut file {
            let color = if verdict.is_ok() { "green" } else { "red" };
            writeln!(file, "{}\t{}\t{step}\t{color}", operation.name(), fault.name()).expect("a result is written");
        }
        // Whatever failed is not carried into the next cell.
        if verdict.is_ok() {
            scene = Some(scene_now);
        }
        results.push((operation, fault, step, verdict));
    }
    results
}

/// A cluster whose machines' networks can be cut.
struct Scene {
    // Before the groups: they can only be removed once no process is in them.
    lab: Lab,
    groups: Groups,
    shape: Shape,
}

impl Scene {
    fn new(auth: Auth) -> Self {
        let shape = Shape::new(3, auth);
        let mut lab = Lab::new(&shape.file());
        let groups = Groups::of(&mut lab);
        lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
        Self { lab, groups, shape }
    }

    /// One cell, with readers beside it perhaps, and whether the state came through.
    fn cell(&mut self, beside: bool, cell: Cell, dice: &mut Dice) -> Result<Option<Duration>, String> {
        let Self { lab, groups, shape } = self;
        let gap = match beside {
            true => readers::beside(lab, || struck(lab, groups, shape, cell, dice)).0?,
            false => struck(lab, groups, shape, cell, dice)?,
        };
        readers::one_chain(lab).map(|_| gap)
    }
}

fn read(path: &str) -> Vec<Outcome> {
    let text = std::fs::read_to_string(path).expect("results that were written before");
    let cell = |line: &str| {
        let mut columns = line.split('\t');
        let operation = Operation::named(columns.next()?)?;
        let fault = Fault::named(columns.next()?)?;
        let step = columns.next()?.parse().ok()?;
        Some((operation, fault, step, if columns.next()? == "green" { Ok(()) } else { Err(String::new()) }))
    };
    // A cell that was tried again counts as it ended last.
    let last: BTreeMap<(Operation, Fault, usize), Result<(), String>> =
        text.lines().filter_map(cell).map(|(o, f, s, result)| ((o, f, s), result)).collect();
    last.into_iter().map(|((o, f, s), result)| (o, f, s, result)).collect()
}

/// A cell is carried out: the longest gap, nothing when the operation has fewer steps, or what went wrong.
fn struck(
    lab: &Lab,
    groups: &mut Groups,
    shape: &mut Shape,
    (operation, fault, step): Cell,
    dice: &mut Dice,
) -> Result<Option<Duration>, String> {
    // A shrink needs something to shrink; and while one member is on its way, another may only be lost among five.
    while !shape.allows(operation) || fault.loses() && shape.members.len() < 5 {
        let first =
            if operation == Operation::Grow && !shape.allows(operation) { Operation::Shrink } else { Operation::Grow };
        let commands = shape.change(first, dice);
        again(lab, commands, shape)?;
    }
    let load = Load::start(lab, LoadSettings { rate: 100, ..LoadSettings::default() });
    load.await_writes(50);
    let commands = shape.change(operation, dice);
    lab.write_file(&shape.file());
    let words: Vec<&str> = commands[0].iter().map(String::as_str).collect();
    let mut child = lab.command(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("raftsman starts");
    let output = std::io::BufReader::new(child.stdout.take().expect("its output"));
    let addresses = shape.addresses();
    let (mut waves, mut victim) = (0, None);
    for line in output.lines().map_while(Result::ok) {
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        if event["event"] != "wave" {
            continue;
        }
        waves += 1;
        if waves == step {
            load.mark(fault.name());
            victim = strike(lab, fault, child.id(), dice);
            if let (Fault::Pause, Some((_, pid))) = (fault, victim.clone()) {
                std::thread::spawn(move || {
                    std::thread::sleep(NAP);
                    kill(pid, Signal::CONT);
                });
            }
            if let Some(cut) = fault.cut() {
                let (leader, others) = leader_and_others(lab, &addresses);
                groups.cut(cut, Ports::Peers, (&leader.0, leader.1), &others);
                std::thread::spawn(move || {
                    std::thread::sleep(NAP);
                    Groups::heal();
                });
            }
        }
    }
    let _ = child.wait();
    if waves < step {
        again(lab, commands, shape)?;
        drop(load.end());
        return Ok(None);
    }
    load.mark("again");
    if let (true, Some((name, _))) = (fault.loses(), &victim) {
        // It may have been about to go anyway.
        if shape.members.iter().any(|(n, _)| format!("m{n}") == *name) {
            give_up(lab, name)?;
            // Some commands need all members: replace the lost one first.
            again(lab, Vec::new(), shape)?;
        }
    }
    again(lab, commands, shape)?;
    load.refresh(lab);
    load.await_writes(50);
    let verdict = load.finish();
    if !verdict.violations.is_empty() {
        return Err(format!("{verdict}"));
    }
    Ok(Some(verdict.figures.longest_gap.length))
}

/// The leader, as etcd reports it, and the followers.
type Placed = (String, Ipv4Addr);
fn leader_and_others(lab: &Lab, addresses: &[Placed]) -> (Placed, Vec<Placed>) {
    let status = lab.etcdctl(&["endpoint", "status", "-w", "json"]).stdout;
    let status: Value = serde_json::from_str(&status).unwrap_or_default();
    let leads = |one: &&Value| one["Status"]["leader"] == one["Status"]["header"]["member_id"];
    let leader = status.as_array().and_then(|all| all.iter().find(leads)).and_then(|one| one["Endpoint"].as_str());
    let at = |address: &Ipv4Addr| leader.is_some_and(|url| url.contains(&format!("{address}:")));
    let leader = addresses.iter().find(|(_, address)| at(address)).unwrap_or(&addresses[0]).clone();
    let others = addresses.iter().filter(|other| **other != leader).cloned().collect();
    (leader, others)
}

/// The operator gives a member up, as soon as the cluster answers.
fn give_up(lab: &Lab, name: &str) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let output = lab.run(&["replace", name, "--yes", "--mark-only"]);
        // A member that never joined the cluster need not be given up.
        if output.code == 0 || output.all().contains("not a member") {
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(30) {
            return Err(format!("replace {name}: {}", output.all()));
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Runs the commands until each is done and the cluster is as it should be.
fn again(lab: &Lab, commands: Vec<Vec<String>>, shape: &Shape) -> Result<(), String> {
    lab.write_file(&shape.file());
    let apply = ["apply", "--yes", "--json", "--timeout", "30s"].map(str::to_owned).to_vec();
    for command in commands.into_iter().chain([apply]) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let mut last = String::new();
        let done = (0..4).any(|_| {
            let output = lab.run(&words);
            last = output.all();
            // A rotation that was interrupted may have come to where clients are waited for, or beyond.
            let beyond = ["rotate clients --finish`", "there is nothing to finish"];
            output.code == 0 || beyond.iter().any(|said| last.contains(said))
        });
        if !done {
            let output: String = last.chars().rev().take(1500).collect::<Vec<_>>().into_iter().rev().collect();
            return Err(format!("{}: {output}", words.join(" ")));
        }
    }
    let status = lab.cluster_status();
    if status["settled"] == true { Ok(()) } else { Err(format!("not settled: {status}")) }
}

/// Lets something die. The answer is the member that it was done to.
fn strike(lab: &Lab, fault: Fault, command: u32, dice: &mut Dice) -> Option<(String, u32)> {
    let etcds = lab.etcds();
    let victim = (!etcds.is_empty()).then(|| etcds[dice.below(etcds.len())].clone());
    let agent = |name: &str| lab.agents().into_iter().find(|(n, _)| n == name).map(|(_, pid)| pid);
    match fault {
        Fault::Command => kill(command, Signal::KILL),
        Fault::Agent => {
            let agents = lab.agents();
            kill(agents[dice.below(agents.len())].1, Signal::KILL);
        }
        Fault::Member => victim.iter().for_each(|(_, pid)| kill(*pid, Signal::KILL)),
        Fault::Pause => victim.iter().for_each(|(_, pid)| kill(*pid, Signal::STOP)),
        Fault::Disk => {
            let (name, pid) = victim.as_ref()?;
            let _ = std::fs::remove_dir_all(lab.machine(name).join("etcd/data"));
            kill(*pid, Signal::KILL);
        }
        Fault::Machine => {
            let (name, pid) = victim.as_ref()?;
            // A killed process may still be writing, and the command may start it again.
            eventually("the machine is gone", || {
                agent(name).into_iter().chain([*pid]).for_each(|pid| kill(pid, Signal::KILL));
                let _ = std::fs::remove_dir_all(lab.machine(name));
                (!lab.machine(name).exists() && agent(name).is_none()).then_some(())
            });
        }
        // Network faults are injected by the caller, which has the groups.
        Fault::Apart | Fault::Mute | Fault::Deaf => {}
    }
    victim
}

fn table(results: &[Outcome]) -> (String, bool) {
    let verdicts: Vec<(&str, &str, bool)> =
        results.iter().map(|(o, f, _, r)| (o.name(), f.name(), r.is_ok())).collect();
    cells::table(&Operation::ALL.map(Operation::name), &Fault::ALL.map(Fault::name), &verdicts)
}
