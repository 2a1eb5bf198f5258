//! Seeded lives of clusters with passwords or a clients' CA that is brought → no member accepts a client before auth is
//! on, and two broken planners are caught.

use jiff::Timestamp;
use raftsman_core::desired::Stack;
use raftsman_core::observed::Observed;
use raftsman_core::plan::{Plan, plan};
use raftsman_core::spec::AuthMode;
use raftsman_tests::sim::{Cast, Planner, Violation, lives};

const RULE: &str = "no client is accepted before auth is on";

#[test]
fn no_plan_of_ours_accepts_a_client_too_early() {
    let stats = lives(0..1_000, &Cast::with_access(), plan).unwrap_or_else(|violation| panic!("{violation}"));
    // A simulation in which nothing happens proves nothing.
    assert!(stats.converged > 300, "{stats:?}");
    assert!(stats.faults > 1_000, "{stats:?}");
}

#[track_caller]
fn caught(planner: Planner) {
    match lives(0..3_000, &Cast::with_access(), planner) {
        Err(Violation { rule, .. }) if rule == RULE => {}
        Err(other) => panic!("caught, but for another rule: {other}"),
        Ok(stats) => panic!("a broken planner went unnoticed: {stats:?}"),
    }
}

/// Bootstraps with the configuration that the cluster is to have in the end, as if auth were not wanted yet.
fn open_from_the_start(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let formed = observed.ledger.etcd.cluster.is_some();
    let mut first = desired.clone();
    first.etcd.auth = AuthMode::None;
    plan(if formed { desired } else { &first }, observed, now)
}

#[test]
fn a_planner_that_bootstraps_an_open_cluster_is_caught() {
    caught(open_from_the_start);
}

/// Takes auth for on as soon as the cluster has formed.
fn opens_too_early(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut observed = observed.clone();
    observed.ledger.etcd.secured = observed.ledger.etcd.cluster;
    plan(desired, &observed, now)
}

#[test]
fn a_planner_that_opens_a_cluster_before_auth_is_on_is_caught() {
    caught(opens_too_early);
}
