//! Planned operations in mixed order under client load → nobody notices.
//!
//! One seed an operation. `RAFTSMAN_OPERATIONS` says how many; all of them in a soak.

use raftsman_tests::dice::Dice;
use raftsman_tests::lab::soak;
use raftsman_tests::load::{Load, LoadSettings};
use raftsman_tests::operations::{Operation, Shape, lab};

fn wanted() -> u64 {
    let said = std::env::var("RAFTSMAN_OPERATIONS").ok().and_then(|n| n.parse().ok());
    said.unwrap_or(if soak() { 100 } else { 12 })
}

fn first() -> u64 {
    std::env::var("RAFTSMAN_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

#[test]
fn nobody_notices() {
    let mut shape = Shape::new(5);
    let lab = lab(&shape);
    println!("seed  operation       members  seconds  acknowledged/s  longest gap  errors  violations");
    let mut failed = Vec::new();
    for seed in first()..first() + wanted() {
        let mut dice = Dice::new(seed);
        // In order at first, so that even a few operations are each another one; then in any.
        let turn = usize::try_from(seed).unwrap_or(0);
        let wish = if turn <= Operation::ALL.len() { turn - 1 } else { dice.below(Operation::ALL.len()) };
        let operation = match Operation::ALL[wish] {
            wish if shape.allows(wish) => wish,
            Operation::Grow => Operation::Shrink,
            _ => Operation::Grow,
        };
        let load = Load::start(&lab, LoadSettings { seed, ..LoadSettings::default() });
        load.await_writes(100);
        let begun = std::time::Instant::now();
        let commands = shape.change(operation, &mut dice);
        lab.write_file(&shape.file());
        for command in &commands {
            load.mark(&command.join(" "));
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let output = lab.run(&words);
            if output.code != 0 {
                failed.push(format!("seed {seed}: {command:?}: {}", output.all()));
            }
            load.refresh(&lab);
        }
        let took = begun.elapsed();
        load.mark("done");
        load.await_writes(100);
        let verdict = load.finish();
        let figures = &verdict.figures;
        println!(
            "{seed:>4}  {:<14}  {:>7}  {:>7.1}  {:>14.0}  {:>8.0} ms  {:>6}  {:>10}",
            operation.name(),
            shape.members.len(),
            took.as_secs_f64(),
            figures.throughput(),
            figures.longest_gap.length.as_secs_f64() * 1000.0,
            figures.errors,
            verdict.violations.len(),
        );
        if !verdict.clean() {
            failed.push(format!("seed {seed}, {}: {verdict}", operation.name()));
        }
        let status = lab.cluster_status();
        if status["settled"] != true {
            failed.push(format!("seed {seed}, {}: not settled: {status}", operation.name()));
        }
        if !failed.is_empty() && !soak() {
            break;
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    lab.destroy();
}
