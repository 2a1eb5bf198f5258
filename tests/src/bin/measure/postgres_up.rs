//! PostgreSQL on etcd from nothing, by hand and by raftsman, alternating in one run → seconds until a client writes through HAProxy.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::process::ExitCode;
use std::time::Instant;

use raftsman_tests::bare::Bare;
use raftsman_tests::figures::median;
use raftsman_tests::lab::{Lab, etcd_dir, etcdctl};
use raftsman_tests::postgres::bare::major;
use raftsman_tests::postgres::ledger::written_through;
use raftsman_tests::postgres::{APPLY, BarePostgres, Stack, Timers, balancer, psql, section};

const GOAL: f64 = 1.1;
const VERSION: &str = "3.6.15";
/// A network of this computer for etcd by hand.
const NETWORK: u8 = 7;

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let rounds: usize = arguments.first().and_then(|n| n.parse().ok()).unwrap_or(10);
    println!(
        "three members of etcd {VERSION}, three nodes of PostgreSQL, HAProxy; from nothing; {rounds} rounds; seconds"
    );
    println!(
        "by hand:  keys, certificates and files beforehand; one member first, then the others; auth and Patroni's user"
    );
    println!(
        "          by etcdctl; all Patronis and HAProxy at once; until all nodes run and one standby is synchronous"
    );
    println!("raftsman: `raftsman apply` in a directory that holds the file and nothing else");
    println!("round  by hand  raftsman");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (mut hand, mut ours) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for turn in 0..2 {
            match (round + turn) % 2 {
                0 => hand.push(by_hand(&runtime)),
                _ => ours.push(by_raftsman()),
            }
        }
        println!("{:>5}  {:>7.1}  {:>8.1}", round + 1, hand[round], ours[round]);
    }
    let (hand, ours) = (median(hand), median(ours));
    println!("median {hand:>7.1}  {ours:>8.1}");
    let ratio = ours / hand;
    println!("bench-pg-up ratio={ratio:.2} goal={GOAL}");
    if ratio <= GOAL { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn by_hand(runtime: &tokio::runtime::Runtime) -> f64 {
    let mut etcd = Bare::prepare_for_passwords(&etcd_dir().join(VERSION).join("etcd"), 3, NETWORK);
    let mut postgres = BarePostgres::prepare(&etcd.dcs(), Timers::SHORTEST);
    let begun = Instant::now();
    etcd.start_one_ahead();
    runtime.block_on(etcd.healthy());
    etcd.enable_passwords(&etcdctl());
    postgres.start_all();
    postgres.front();
    postgres.settled();
    written_through(postgres.clients());
    begun.elapsed().as_secs_f64()
}

fn by_raftsman() -> f64 {
    let section = section(&major(), "127.0.0.0/8", "    nodes: 3\n");
    let lab = Lab::cluster(3, VERSION, &["auth: { mode: password }"]);
    lab.write_file(&format!("{}{section}{}", lab.file(), balancer("instances: 1")));
    let begun = Instant::now();
    lab.run(&APPLY).ok();
    let applied = begun.elapsed().as_secs_f64();
    // The role and the database that clients use are made by hand in both, and are not timed.
    let superuser = |_: &str, statement: &str| psql(&lab, statement);
    let clients = Stack { lab: &lab, superuser: &superuser }.clients("db");
    let begun = Instant::now();
    written_through(&clients);
    applied + begun.elapsed().as_secs_f64()
}
