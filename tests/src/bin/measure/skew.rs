//! Programs of the version before → a table of what works between versions of raftsman, agents and state, and what not.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it prints its table, and how far it is")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use raftsman_tests::skew::{Before, Outcome, Situation, VERBS};

const MEMBERS: usize = 3;

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let [dir] = arguments else {
        eprintln!("usage: measure skew DIR: where raftsman and raftsman-agent of the version before are");
        return ExitCode::from(2);
    };
    let dir = match PathBuf::from(dir).canonicalize() {
        Ok(dir) => dir,
        Err(error) => {
            eprintln!("{dir}: {error}");
            return ExitCode::from(2);
        }
    };
    let before = Before { dir };
    let begun = Instant::now();
    let situations = Situation::all();
    let columns: Vec<Vec<Outcome>> = situations.iter().map(|situation| column(*situation, &before)).collect();
    let mut notes = Notes::default();
    // Situations in which everything comes out the same are one column.
    let mut merged: Vec<(String, &Vec<Outcome>)> = Vec::new();
    for (situation, column) in situations.iter().zip(&columns) {
        match merged.iter_mut().find(|(_, known)| *known == column) {
            Some((heading, _)) => *heading = format!("{heading}<br>{situation}"),
            None => merged.push((situation.to_string(), column)),
        }
    }
    println!("| raftsman, agent, state | {} |", join(merged.iter().map(|(heading, _)| heading.clone())));
    println!("|---|{}", "---|".repeat(merged.len()));
    for (row, verb) in VERBS.iter().enumerate() {
        let cells =
            merged.iter().map(|(_, column)| column.get(row).map_or_else(String::new, |outcome| notes.cell(outcome)));
        println!("| `{}` | {} |", verb.name, join(cells));
    }
    println!();
    for (number, note) in notes.0.iter().enumerate() {
        println!("{}. {note}", number + 1);
    }
    eprintln!("{} verbs in {} situations, {:.0?}", VERBS.len(), situations.len(), begun.elapsed());
    // Everything of one version works.
    let own = columns.first().into_iter().flatten();
    let wrong: Vec<&str> = own
        .zip(VERBS)
        .filter(|(outcome, _)| !matches!(outcome, Outcome::Works(_)))
        .map(|(_, verb)| verb.name)
        .collect();
    if wrong.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("with one version of everything these do not work: {}", wrong.join(", "));
    ExitCode::FAILURE
}

fn column(situation: Situation, before: &Before) -> Vec<Outcome> {
    eprintln!("{situation}");
    let lab = situation.make(MEMBERS, Some(before));
    let outcome = |verb| {
        let outcome = situation.outcome(&lab, verb);
        eprintln!("  {}: {outcome:?}", verb.name);
        outcome
    };
    VERBS.iter().map(outcome).collect()
}

fn join(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(" | ")
}

/// What was said, each once.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn cell(&mut self, outcome: &Outcome) -> String {
        match outcome {
            Outcome::Works(None) => "yes".to_owned(),
            Outcome::Works(Some(said)) => format!("yes ({})", self.number(said)),
            Outcome::Refused(said) => format!("no ({})", self.number(said)),
            Outcome::Unknown => "–".to_owned(),
        }
    }

    fn number(&mut self, said: &str) -> usize {
        let known = self.0.iter().position(|note| note == said);
        known.unwrap_or_else(|| {
            self.0.push(said.to_owned());
            self.0.len() - 1
        }) + 1
    }
}
