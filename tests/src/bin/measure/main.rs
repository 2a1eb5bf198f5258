//! The name of what is measured or tried, and its arguments → a table, and whether it is as good as it should be.
//!
//! One program for all of them: what they share is compiled and linked once.

mod access_matrix;
mod backup;
mod big;
mod cells;
mod death;
mod death_postgres;
mod incus;
mod pause;
mod postgres;
mod postgres_beneath;
mod postgres_up;
mod restore;
mod scale;
mod skew;
mod under_load;
mod up;

use std::process::ExitCode;

type Main = fn(&[String]) -> ExitCode;

/// Names as `just` has them.
const ALL: [(&str, Main); 17] = [
    ("access-matrix", access_matrix::main),
    ("bench-backup", backup::main),
    ("bench-incus", incus::main),
    ("bench-pause", pause::main),
    ("bench-pg-beneath", postgres_beneath::main),
    ("bench-pg-failover", postgres::failover),
    ("bench-pg-roll", postgres::roll),
    ("bench-pg-switchover", postgres::switchover),
    ("bench-pg-up", postgres_up::main),
    ("bench-restore", restore::main),
    ("bench-scale", scale::main),
    ("bench-up", up::main),
    ("big", big::main),
    ("death", death::main),
    ("death-pg", death_postgres::main),
    ("skew", skew::main),
    ("under-load", under_load::main),
];

#[allow(clippy::print_stderr, reason = "it says how it is used")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let chosen = arguments
        .split_first()
        .and_then(|(name, rest)| ALL.iter().find(|(known, _)| known == name).map(|(_, main)| main(rest)));
    chosen.unwrap_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        eprintln!("usage: measure NAME [ARGUMENT]...\nnames: {}", names.join(", "));
        ExitCode::from(2)
    })
}
