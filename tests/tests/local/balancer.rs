//! Clients that know only a balancer's address → what they notice when members are killed, and when they are restarted.

use std::net::IpAddr;
use std::time::Duration;

use raftsman_tests::balancer::{Balancer, Drain, behind};
use raftsman_tests::hand::Hand;
use raftsman_tests::load::{Load, LoadSettings, Target, Verdict};

/// One client for each member: a client has one connection.
const CLIENTS: u64 = 3;

fn clients(hand: &Hand, address: IpAddr) -> Vec<Load> {
    let target = Target { endpoints: vec![address], ..Target::of(&hand.lab, "main") };
    (1..=CLIENTS)
        .map(|seed| {
            let settings =
                LoadSettings { seed, rate: 60, workers: 8, follow_members: false, ..LoadSettings::default() };
            Load::against(target.clone(), settings)
        })
        .collect()
}

fn await_writes(clients: &[Load], more: u64) {
    clients.iter().for_each(|load| load.await_writes(more));
}

fn mark(clients: &[Load], text: &str) {
    clients.iter().for_each(|load| load.mark(text));
}

fn finish(clients: Vec<Load>) -> Vec<Verdict> {
    clients.into_iter().map(Load::finish).collect()
}

/// A restart by hand with leadership moved first, as the plan does it: the next member that is not restarted takes it.
fn restart(hand: &mut Hand, balancer: &Balancer, index: usize, how: Drain) {
    let leader = hand.leader();
    if leader == index {
        hand.move_leader(index, (index + 1) % hand.members());
    }
    let name = hand.name(index).to_owned();
    balancer.take_out(&name, how);
    if how == Drain::DrainAndCut {
        raftsman_tests::lab::eventually("its connections are gone", || {
            (balancer.connections(&name) == 0).then_some(())
        });
    }
    hand.restart(index);
    match how {
        Drain::Not => {}
        Drain::Drain | Drain::DrainAndCut => balancer.admit(&name),
    }
}

#[test]
fn clients_of_a_balancer_outlive_every_member() {
    let (mut hand, address) = behind("3.6.15");
    let balancer = Balancer::start(&hand, address);
    let clients = clients(&hand, address);
    await_writes(&clients, 50);
    for index in 0..hand.members() {
        mark(&clients, &format!("kill {}", hand.name(index)));
        hand.kill(index);
        await_writes(&clients, 100);
        hand.start(index);
        balancer.admit(hand.name(index));
        await_writes(&clients, 20);
    }
    for verdict in finish(clients) {
        println!("{verdict}");
        assert!(verdict.violations.is_empty(), "{verdict}\n{}", balancer.log());
        // A killed leader costs an election of one to two seconds, and what was under way.
        assert!(verdict.figures.longest_gap.length < Duration::from_secs(10), "{verdict}");
    }
    drop(balancer);
    hand.lab.destroy();
}

/// The same rolling restart in three ways, as a table. Nothing may be lost; errors are printed and not judged: leadership
/// is moved right before a stop, so that a call can meet both within its one retry, whichever way is taken.
#[test]
fn rolling_restarts_behind_a_balancer_lose_nothing() {
    let (mut hand, address) = behind("3.6.15");
    let balancer = Balancer::start(&hand, address);
    println!("before a restart  client  retried  errors  longest gap  gap after");
    for how in [Drain::Not, Drain::Drain, Drain::DrainAndCut] {
        let clients = clients(&hand, address);
        await_writes(&clients, 50);
        for index in 0..hand.members() {
            mark(&clients, &format!("restart {}", hand.name(index)));
            restart(&mut hand, &balancer, index, how);
            await_writes(&clients, 50);
        }
        for (client, verdict) in finish(clients).into_iter().enumerate() {
            let figures = &verdict.figures;
            println!(
                "{:<16}  {client:>6}  {:>7}  {:>6}  {:>8.0} ms  {}",
                how.name(),
                figures.retried,
                figures.errors,
                figures.longest_gap.length.as_secs_f64() * 1000.0,
                figures.gap_after.as_deref().unwrap_or_default(),
            );
            assert!(verdict.violations.is_empty(), "{verdict}\n{}", balancer.log());
        }
    }
    drop(balancer);
    hand.lab.destroy();
}
