//! Planned operations in mixed order under client load → clients notice nothing.
//!
//! One seed an operation. `RAFTSMAN_OPERATIONS` says how many; all of them in a soak. Half of the seeds are for clusters
//! whose clients have passwords, the other half for those with certificates; `RAFTSMAN_AUTH` gives all to one of them.
//! With `RAFTSMAN_READERS`, every verb that only reads runs beside them in eight loops: what clients notice of a machine
//! that has so much to do is not judged then, only what is lost or undone.

use raftsman_tests::dice::Dice;
use raftsman_tests::lab::soak;
use raftsman_tests::load::{Load, LoadSettings};
use raftsman_tests::operations::{Auth, Operation, Shape, lab};
use raftsman_tests::readers;

fn wanted(otherwise: u64) -> u64 {
    let said = std::env::var("RAFTSMAN_OPERATIONS").ok().and_then(|n| n.parse().ok());
    said.unwrap_or(if soak() { 100 } else { otherwise })
}

fn first() -> u64 {
    let said = std::env::var("RAFTSMAN_SEED").ok().and_then(|n| n.parse().ok());
    let rounds = if soak() { 1 } else { 1000 };
    said.unwrap_or_else(|| 1 + (Dice::of_this_run("notice").below(rounds) * Operation::ALL.len()) as u64)
}

fn auth(seed: u64) -> Auth {
    let said = std::env::var("RAFTSMAN_AUTH").ok();
    said.map_or_else(|| Auth::drawn(seed), |name| Auth::named(&name).expect("`certificate` or `password`"))
}

#[test]
fn clients_notice_nothing() {
    mixed(wanted(7), None);
}

/// The same with clients that know only the address of a balancer.
#[test]
fn clients_of_a_balancer_notice_nothing() {
    mixed(wanted(3), Some("front"));
}

#[allow(clippy::print_stdout, reason = "a table is printed")]
fn mixed(wanted: u64, via: Option<&'static str>) {
    let mut failed = Vec::new();
    println!("seed  operation       auth         members  seconds  acknowledged/s  longest gap  errors  violations");
    for mode in [Auth::Password, Auth::Certificate] {
        let seeds: Vec<u64> = (first()..first() + wanted).filter(|seed| auth(*seed) == mode).collect();
        if !seeds.is_empty() && (failed.is_empty() || soak()) {
            one_cluster(mode, seeds, via, &mut failed);
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// Every operation once in as many seeds as there are operations, each time in another order.
fn target(seed: u64) -> Operation {
    let turn = usize::try_from(seed.saturating_sub(1)).unwrap_or(0);
    let mut order = Operation::ALL;
    Dice::new((turn / order.len()) as u64).shuffle(&mut order);
    order[turn % order.len()]
}

#[allow(clippy::print_stdout, reason = "a table is printed")]
fn one_cluster(auth: Auth, seeds: Vec<u64>, via: Option<&'static str>, failed: &mut Vec<String>) {
    let mut shape = Shape::new(5, auth);
    shape.fronted = via.is_some();
    let lab = lab(&shape);
    let readers = std::env::var_os("RAFTSMAN_READERS").is_some();
    for seed in seeds {
        let mut dice = Dice::new(seed);
        let operation = match target(seed) {
            target if shape.allows(target) => target,
            Operation::Grow => Operation::Shrink,
            _ => Operation::Grow,
        };
        let load = Load::start(&lab, LoadSettings { seed, via, ..LoadSettings::default() });
        load.await_writes(100);
        let begun = std::time::Instant::now();
        let commands = shape.change(operation, &mut dice);
        lab.write_file(&shape.file());
        let mut operate = || {
            for command in &commands {
                load.mark(&command.join(" "));
                let words: Vec<&str> = command.iter().map(String::as_str).collect();
                let output = lab.run(&words);
                if output.code != 0 {
                    failed.push(format!("seed {seed}: {command:?}: {}", output.all()));
                }
                load.refresh(&lab);
            }
        };
        match readers {
            true => assert!(readers::beside(&lab, operate).1 > 8),
            false => operate(),
        }
        let took = begun.elapsed();
        load.mark("done");
        load.await_writes(100);
        let verdict = load.finish();
        let figures = &verdict.figures;
        println!(
            "{seed:>4}  {:<14}  {:<11}  {:>7}  {:>7.1}  {:>14.0}  {:>8.0} ms  {:>6}  {:>10}",
            operation.name(),
            auth.name(),
            shape.members.len(),
            took.as_secs_f64(),
            figures.throughput(),
            figures.longest_gap.length.as_secs_f64() * 1000.0,
            figures.errors,
            verdict.violations.len(),
        );
        if let Err(broken) = readers::one_chain(&lab) {
            failed.push(format!("seed {seed}, {}: {broken}", operation.name()));
        }
        if if readers { !verdict.violations.is_empty() } else { !verdict.clean() } {
            failed.push(format!("seed {seed}, {}: {verdict}", operation.name()));
        }
        let status = lab.cluster_status();
        if status["settled"] != true {
            failed.push(format!("seed {seed}, {}: not settled: {status}", operation.name()));
        }
        if !failed.is_empty() && !soak() {
            return;
        }
    }
    if failed.is_empty() {
        lab.destroy();
    }
}
