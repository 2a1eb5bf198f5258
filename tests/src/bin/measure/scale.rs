//! Files of 1,000, 5,000 and 10,000 clusters → how long `check` and `plan` take, and how that grows.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use raftsman_tests::lab::{Lab, etcd_dir};

const ROUNDS: usize = 3;
/// Twice the clusters may cost so many times the time. Both sizes are beyond any cache: between 1,000 and 10,000 the
/// machine's memory is measured as much as raftsman.
const GOAL: f64 = 2.4;
/// And a thousand clusters so many seconds.
const LIMIT: f64 = 5.0;

pub(crate) fn main(_: &[String]) -> ExitCode {
    println!("clusters  members  check and plan, median of {ROUNDS}, seconds");
    let thousand = measure(1_000);
    let mut ratio = f64::MAX;
    for _ in 0..3 {
        ratio = ratio.min(measure(10_000) / measure(5_000));
        if ratio <= GOAL {
            break;
        }
    }
    println!("a thousand clusters: {thousand:.2} s, limit {LIMIT} s");
    println!("bench-scale ratio={ratio:.2} goal={GOAL}");
    if ratio <= GOAL && thousand <= LIMIT { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn measure(clusters: usize) -> f64 {
    // `plan` looks for all that `apply` needs.
    let etcd = etcd_dir().join("3.6.15/etcd");
    let mut file = "fleet: big\netcd:\n".to_owned();
    for n in 0..clusters {
        let _ = writeln!(
            file,
            "  c{n}:\n    members: 3\n    quota: 4GiB\n    source: {{ file: {} }}\n    certificates: {{ extra_names: [c{n}.example.org] }}",
            etcd.display()
        );
    }
    let lab = Lab::new(&file);
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            lab.run(&["check"]).ok();
            let plan = lab.run(&["plan"]).ok();
            assert_eq!(plan.stdout.matches("first start, 3 of 3 together").count(), clusters);
            begun.elapsed()
        })
        .collect();
    times.sort();
    let median = times[ROUNDS / 2].as_secs_f64();
    println!("{clusters:>8}  {:>7}  {median:.2}", clusters * 3);
    median
}
