//! Five members from nothing, by hand and by raftsman, alternating in one run → medians side by side.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use raftsman_tests::bare::Bare;
use raftsman_tests::lab::{Lab, etcd_dir, etcdctl};

const MEMBERS: u8 = 5;
const GOAL: f64 = 1.25;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(9);
    let version = arguments.next().unwrap_or_else(|| "3.6.15".to_owned());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (mut hand, mut ours, mut slow, mut turns_by_hand) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    println!("{MEMBERS} members of etcd {version} with TLS and auth, from nothing; {rounds} rounds; seconds");
    println!("by hand: all members started at once, each polled by itself every 20 ms");
    println!("etcdctl: the same, polled with `etcdctl endpoint health` over all members");
    println!("in turn: by hand, each member started once the one before it serves, as raftsman does");
    println!("round  by hand  raftsman  etcdctl  in turn");
    for round in 0..rounds {
        // Turn and turn about, so that neither always comes first.
        let mut turns: [(&mut Vec<Duration>, &dyn Fn() -> Duration); 2] =
            [(&mut hand, &|| by_hand(&runtime, &version, 1, Bare::start)), (&mut ours, &|| by_raftsman(&version))];
        if round % 2 == 1 {
            turns.reverse();
        }
        for (times, bring_up) in turns {
            times.push(bring_up());
        }
        slow.push(by_etcdctl(&version));
        turns_by_hand.push(by_hand(&runtime, &version, 3, Bare::start_in_turn));
        let last = |times: &[Duration]| times.last().map_or(0.0, Duration::as_secs_f64);
        let [a, b, c, d] = [&hand, &ours, &slow, &turns_by_hand].map(|times| last(times));
        println!("{:>5}  {a:>7.3}  {b:>8.3}  {c:>7.3}  {d:>7.3}", round + 1);
    }
    let [hand, ours, slow, in_turn] = [hand, ours, slow, turns_by_hand].map(median);
    println!("median {hand:>7.3}  {ours:>8.3}  {slow:>7.3}  {in_turn:>7.3}");
    println!("against the hand that starts in turn: {:.2}", ours / in_turn);
    let ratio = ours / hand;
    println!("bench-up ratio={ratio:.2} goal={GOAL}");
    if ratio <= GOAL { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Certificates beforehand, all members started at once, each polled by itself, auth by `etcdctl`.
fn by_hand(runtime: &tokio::runtime::Runtime, version: &str, network: u8, start: fn(&mut Bare)) -> Duration {
    let mut bare = Bare::prepare(&etcd_dir().join(version).join("etcd"), MEMBERS, network);
    let begun = Instant::now();
    start(&mut bare);
    runtime.block_on(bare.healthy());
    bare.enable_auth(&etcdctl());
    begun.elapsed()
}

fn by_etcdctl(version: &str) -> Duration {
    let mut bare = Bare::prepare(&etcd_dir().join(version).join("etcd"), MEMBERS, 2);
    let begun = Instant::now();
    bare.start();
    bare.healthy_by_etcdctl(&etcdctl());
    bare.enable_auth(&etcdctl());
    begun.elapsed()
}

/// `raftsman apply` from a directory that holds the file and nothing else.
fn by_raftsman(version: &str) -> Duration {
    let lab = Lab::cluster(usize::from(MEMBERS), version, &[]);
    let begun = Instant::now();
    lab.run(&["apply", "--yes"]).ok();
    begun.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}
