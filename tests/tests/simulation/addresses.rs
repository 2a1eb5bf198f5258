//! Addresses that a provider assigns, in faulted lives → none is used before it is known, no cluster founded in part.

use std::net::IpAddr;

use jiff::Timestamp;
use raftsman_core::desired::{Address, Stack};
use raftsman_core::observed::Observed;
use raftsman_core::plan::{Plan, plan};
use raftsman_core::spec::Name;
use raftsman_tests::sim::{Cast, Planner, Violation, lives};

#[test]
fn members_end_at_the_addresses_that_the_provider_assigned() {
    let stats = lives(0..1_500, &Cast::with_addresses(), plan).unwrap_or_else(|violation| panic!("{violation}"));
    // A simulation in which nothing happens proves nothing.
    assert!(stats.converged > 750 && stats.reshaped > 1_500, "{stats:?}");
}

fn caught(planner: Planner, rule: &str) {
    match lives(0..3_000, &Cast::with_addresses(), planner) {
        Err(Violation { rule: broken, .. }) if broken == rule => {}
        Err(other) => panic!("caught, but for another rule: {other}"),
        Ok(stats) => panic!("a broken planner went unnoticed: {stats:?}"),
    }
}

/// Assumes addresses before the provider has assigned them.
fn assumes_addresses(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let unknown: Vec<Name> = desired.unplaced_machines().map(|machine| machine.name.clone()).collect();
    let mut assumed = desired.clone();
    for (last, machine) in (1..).zip(&unknown) {
        assumed = assumed.place(machine, IpAddr::from([10, 200, 0, last])).expect("an address of its own");
    }
    plan(&assumed, observed, now)
}

/// Goes on with the machines whose addresses are known, as if the file had no others.
fn goes_on_without(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut known = desired.clone();
    if !known.etcd.members.is_empty() {
        known.machines.retain(|_, machine| machine.address != Address::Assigned);
        known.unplaced = None;
    }
    plan(&known, observed, now)
}

#[test]
fn a_planner_that_assumes_an_address_before_it_is_known_is_caught() {
    caught(assumes_addresses, "an address is known before it is used");
}

#[test]
fn a_planner_that_founds_a_cluster_with_the_known_members_is_caught() {
    caught(goes_on_without, "a cluster is founded with all its members");
}
