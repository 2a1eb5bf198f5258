//! Operation × fault × step on real members under client load → a table of what came of each, and whether all is well.
//!
//! `death [--cells N] [--operation NAME] [--fault NAME] [--seed S] [--table FILE]`: without `--cells`, all of them. A
//! cell is carried out like this: the operation is begun; at the beginning of its k-th wave something dies; whoever
//! operates the cluster runs the same command again until it is done. Green means: it converges, no acknowledged write
//! is lost, what clients saw is linearizable.

#![allow(clippy::print_stdout, reason = "a table is printed")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::BufRead as _;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use raftsman_tests::dice::Dice;
use raftsman_tests::lab::{Lab, kill};
use raftsman_tests::load::{Load, LoadSettings};
use raftsman_tests::operations::{Operation, Shape, lab};
use rustix::process::Signal;
use serde_json::Value;

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
}

impl Fault {
    const ALL: [Self; 6] = [Self::Command, Self::Agent, Self::Member, Self::Pause, Self::Disk, Self::Machine];

    fn name(self) -> &'static str {
        match self {
            Self::Command => "command killed",
            Self::Agent => "agent killed",
            Self::Member => "etcd killed",
            Self::Pause => "etcd stopped, woken late",
            Self::Disk => "disk wiped",
            Self::Machine => "machine gone",
        }
    }

    /// Whether a member is lost for good, so that somebody has to give it up.
    fn loses(self) -> bool {
        matches!(self, Self::Disk | Self::Machine)
    }
}

/// As many waves of each operation are tried.
const STEPS: usize = 12;
/// A member that hangs wakes up after this long: later than any election.
const NAP: Duration = Duration::from_secs(3);

struct Wishes {
    cells: usize,
    operation: Option<Operation>,
    fault: Option<Fault>,
    seed: u64,
    table: Option<String>,
}

fn wishes() -> Wishes {
    let mut wishes = Wishes { cells: usize::MAX, operation: None, fault: None, seed: 1, table: None };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    for pair in arguments.chunks(2) {
        let [key, value] = pair else { panic!("{} needs a value", pair[0]) };
        match key.as_str() {
            "--cells" => wishes.cells = value.parse().expect("a number"),
            "--seed" => wishes.seed = value.parse().expect("a number"),
            "--operation" => wishes.operation = Some(Operation::named(value).expect("an operation")),
            "--fault" => {
                wishes.fault = Some(Fault::ALL.into_iter().find(|f| f.name() == value).expect("a fault"));
            }
            "--table" => wishes.table = Some(value.clone()),
            other => panic!("what is {other}?"),
        }
    }
    wishes
}

fn main() -> ExitCode {
    let wishes = wishes();
    let begun = Instant::now();
    let mut results: BTreeMap<(Operation, Fault), Vec<Result<(), String>>> = BTreeMap::new();
    let mut cells: Vec<(Operation, Fault, usize)> = Vec::new();
    for operation in Operation::ALL.into_iter().filter(|o| wishes.operation.is_none_or(|wish| wish == *o)) {
        for fault in Fault::ALL.into_iter().filter(|f| wishes.fault.is_none_or(|wish| wish == *f)) {
            cells.extend((1..=STEPS).map(|step| (operation, fault, step)));
        }
    }
    let mut dice = Dice::new(wishes.seed);
    if wishes.cells < cells.len() {
        // A slice is drawn from all of them, the early steps first: every operation has those.
        cells.retain(|(_, _, step)| *step <= 3);
        dice.shuffle(&mut cells);
    }
    let (mut scene, mut run) = (None, 0);
    println!("operation       fault                     step  seconds  longest gap  outcome");
    for (operation, fault, step) in cells {
        if run >= wishes.cells {
            break;
        }
        let (lab, shape) = match scene.take() {
            Some(scene) => scene,
            None => {
                let shape = Shape::new(3);
                (lab(&shape), shape)
            }
        };
        let began = Instant::now();
        let mut shape = shape;
        let outcome = cell(&lab, &mut shape, operation, fault, step, &mut dice);
        let (gap, verdict) = match outcome {
            // The operation has no such step: not a cell.
            Ok(None) => {
                scene = Some((lab, shape));
                continue;
            }
            Ok(Some(gap)) => (format!("{} ms", gap.as_millis()), Ok(())),
            Err(error) => ("-".to_owned(), Err(error)),
        };
        run += 1;
        let word = verdict.as_ref().map_or_else(|e| format!("FAILED: {e}"), |()| "green".to_owned());
        println!(
            "{:<14}  {:<24}  {step:>4}  {:>7.1}  {gap:>11}  {word}",
            operation.name(),
            fault.name(),
            began.elapsed().as_secs_f64(),
        );
        // Whatever failed is not carried into the next cell.
        if verdict.is_ok() && shape.members.len() <= 7 {
            scene = Some((lab, shape));
        }
        results.entry((operation, fault)).or_default().push(verdict);
    }
    let table = table(&results, begun.elapsed());
    println!("\n{table}");
    if let Some(path) = wishes.table {
        std::fs::write(path, &table).expect("the table is written");
    }
    if results.values().flatten().all(Result::is_ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One cell: the longest gap, nothing when the operation has fewer steps, or what went wrong.
fn cell(
    lab: &Lab,
    shape: &mut Shape,
    operation: Operation,
    fault: Fault,
    step: usize,
    dice: &mut Dice,
) -> Result<Option<Duration>, String> {
    // A shrink needs something to shrink; and while one member is on its way, another may only be lost among five.
    while !shape.allows(operation) || fault.loses() && shape.members.len() < 5 {
        let grow = shape.change(Operation::Grow, dice);
        again(lab, grow, shape)?;
    }
    let load = Load::start(lab, LoadSettings { rate: 200, ..LoadSettings::default() });
    load.await_writes(50);
    let commands = shape.change(operation, dice);
    lab.write_file(&shape.file());
    let words: Vec<&str> = commands[0].iter().map(String::as_str).collect();
    let mut child = lab.command(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("raftsman starts");
    let output = std::io::BufReader::new(child.stdout.take().expect("its output"));
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

/// Somebody gives a member up, as soon as the cluster can be asked.
fn give_up(lab: &Lab, name: &str) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let output = lab.run(&["replace", name, "--yes", "--mark-only"]);
        // One that never got into the cluster needs nobody to give it up.
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
            let told: String = last.chars().rev().take(1500).collect::<Vec<_>>().into_iter().rev().collect();
            return Err(format!("{}: {told}", words.join(" ")));
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
            agent(name).into_iter().for_each(|pid| kill(pid, Signal::KILL));
            kill(*pid, Signal::KILL);
            let _ = std::fs::remove_dir_all(lab.machine(name));
        }
    }
    victim
}

fn table(results: &BTreeMap<(Operation, Fault), Vec<Result<(), String>>>, took: Duration) -> String {
    let all = results.values().map(Vec::len).sum::<usize>();
    let green = results.values().flatten().filter(|r| r.is_ok()).count();
    let mut out = format!("{green} of {all} cells green, in {} s.\n\n| operation |", took.as_secs());
    for fault in Fault::ALL {
        let _ = write!(out, " {} |", fault.name());
    }
    out.push_str("\n|---|");
    out.push_str(&"---|".repeat(Fault::ALL.len()));
    out.push('\n');
    for operation in Operation::ALL {
        let _ = write!(out, "| {} |", operation.name());
        for fault in Fault::ALL {
            let cells = results.get(&(operation, fault)).map(Vec::as_slice).unwrap_or_default();
            let green = cells.iter().filter(|r| r.is_ok()).count();
            let _ = if cells.is_empty() { write!(out, " - |") } else { write!(out, " {green}/{} |", cells.len()) };
        }
        out.push('\n');
    }
    out
}
