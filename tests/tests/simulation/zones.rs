//! Files that name other zones for members, in faulted lives → a lost zone costs quorum only where the file allows no better.

use jiff::Timestamp;
use raftsman_core::desired::Stack;
use raftsman_core::observed::Observed;
use raftsman_core::plan::{Plan, plan};
use raftsman_tests::sim::{Cast, Planner, Violation, lives};

#[test]
fn members_end_in_the_zones_that_the_file_names() {
    let stats = lives(0..1_500, &Cast::with_zones(), plan).unwrap_or_else(|violation| panic!("{violation}"));
    // A simulation in which nothing happens proves nothing.
    assert!(stats.converged > 750 && stats.reshaped > 1_500, "{stats:?}");
}

fn caught(planner: Planner, rule: &str) {
    match lives(0..3_000, &Cast::with_zones(), planner) {
        Err(Violation { rule: broken, .. }) if broken == rule => {}
        Err(other) => panic!("caught, but for another rule: {other}"),
        Ok(stats) => panic!("a broken planner went unnoticed: {stats:?}"),
    }
}

/// A member stays in the zone that it is in, whichever the file names for it.
fn ignores_zones(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut desired = desired.clone();
    desired.machines.values_mut().for_each(|machine| machine.place.pinned = false);
    plan(&desired, observed, now)
}

#[test]
fn a_planner_that_ignores_zones_is_caught() {
    caught(ignores_zones, "the loss of a zone costs no quorum");
}
