//! Five members from nothing, by hand and by raftsman, alternating in one run → means and medians side by side.
//!
//! By hand the time has two modes, 0.4 s and over 4 s: which of them a median shows is chance. The average wait
//! is not, so the means are judged, and the medians stand beside them.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::process::ExitCode;
use std::time::Instant;

use raftsman_tests::bare::Bare;
use raftsman_tests::lab::{Lab, etcd_dir, etcdctl};

const MEMBERS: u8 = 5;
const GOAL: f64 = 1.25;

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let mut arguments = arguments.iter();
    let rounds: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(15);
    let version = arguments.next().map_or("3.6.15", String::as_str);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (mut hand, mut ours, mut ahead) = (Vec::new(), Vec::new(), Vec::new());
    println!("{MEMBERS} members of etcd {version} with TLS and auth, from nothing; {rounds} rounds; seconds");
    println!("by hand: all members started at once, each polled by itself every 20 ms");
    println!("ahead: by hand, one member started first, the others once it serves, as raftsman does");
    println!("round  by hand  raftsman    ahead");
    for round in 0..rounds {
        // Turn and turn about, so that neither always comes first.
        let mut turns: [(&mut Vec<f64>, &dyn Fn() -> f64); 2] =
            [(&mut hand, &|| by_hand(&runtime, version, 1, Bare::start)), (&mut ours, &|| by_raftsman(version))];
        if round % 2 == 1 {
            turns.reverse();
        }
        for (times, bring_up) in turns {
            times.push(bring_up());
        }
        ahead.push(by_hand(&runtime, version, 2, Bare::start_one_ahead));
        println!("{:>5}  {:>7.3}  {:>8.3}  {:>7.3}", round + 1, hand[round], ours[round], ahead[round]);
    }
    let row = |name, of: fn(&[f64]) -> f64| {
        let [hand, ours, ahead] = [&hand, &ours, &ahead].map(|times| of(times));
        println!("{name:<6} {hand:>7.3}  {ours:>8.3}  {ahead:>7.3}");
        (ours / hand, ours / ahead)
    };
    let (median_ratio, _) = row("median", median);
    let (ratio, against_ahead) = row("mean", mean);
    println!("in the median {median_ratio:.2}; against the hand that starts one ahead {against_ahead:.2}");
    println!("bench-up ratio={ratio:.2} goal={GOAL}");
    if ratio <= GOAL { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Certificates beforehand, all members started at once, each polled by itself, auth by `etcdctl`.
fn by_hand(runtime: &tokio::runtime::Runtime, version: &str, network: u8, start: fn(&mut Bare)) -> f64 {
    let mut bare = Bare::prepare(&etcd_dir().join(version).join("etcd"), MEMBERS, network);
    let begun = Instant::now();
    start(&mut bare);
    runtime.block_on(bare.healthy());
    bare.enable_auth(&etcdctl());
    begun.elapsed().as_secs_f64()
}

/// `raftsman apply` from a directory that holds the file and nothing else.
fn by_raftsman(version: &str) -> f64 {
    let lab = Lab::cluster(usize::from(MEMBERS), version, &[]);
    let begun = Instant::now();
    lab.run(&["apply", "--yes"]).ok();
    begun.elapsed().as_secs_f64()
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}
