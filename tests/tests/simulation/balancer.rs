//! Balancers that come, go and fail, in faulted lives → members are drained in time, and no client is left with none.

use jiff::Timestamp;
use raftsman_core::action::{Action, BalancerAction};
use raftsman_core::desired::Stack;
use raftsman_core::observed::{Observed, ServerState};
use raftsman_core::plan::{Plan, Step, Waiting, plan};
use raftsman_core::spec::Name;
use raftsman_tests::sim::{Cast, Planner, Violation, lives};

#[test]
fn balancers_pass_connections_to_members_that_serve() {
    let stats = lives(0..1_500, &Cast::with_balancers(), plan).unwrap_or_else(|violation| panic!("{violation}"));
    // A simulation in which nothing happens proves nothing.
    assert!(stats.converged > 750 && stats.drained > 300, "{stats:?}");
}

fn caught(planner: Planner, rules: &[&str]) {
    match lives(0..3_000, &Cast::with_balancers(), planner) {
        Err(Violation { rule: broken, .. }) if rules.contains(&broken) => {}
        Err(other) => panic!("caught, but for another rule: {other}"),
        Ok(stats) => panic!("a broken planner went unnoticed: {stats:?}"),
    }
}

/// Where a member is drained, all others that are behind the same instance are drained, too.
fn drains_all(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let Some(first) = plan.steps.first().cloned() else { return plan };
    let Action::Balancer(BalancerAction::DrainMember { machine, member }) = &first.action else { return plan };
    let seen = observed.report(machine).and_then(|report| report.balancer.as_ref());
    let up =
        seen.into_iter().flat_map(|seen| &seen.facts.servers).filter(|(_, server)| server.state == ServerState::Up);
    let others: Vec<Name> = up.map(|(name, _)| name).filter(|name| *name != member).cloned().collect();
    plan.steps.extend(others.into_iter().map(|member| Step {
        action: BalancerAction::DrainMember { machine: machine.clone(), member }.into(),
        ..first.clone()
    }));
    plan
}

/// Members are restarted while they get new connections.
fn never_drains(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut blind = observed.clone();
    for seen in blind.machines.values_mut() {
        if let raftsman_core::observed::Fact::Seen { value: raftsman_core::observed::Agent::Claimed(report), .. } =
            &mut seen.agent
            && let Some(balancer) = &mut report.balancer
        {
            balancer.facts.servers.clear();
        }
    }
    plan(desired, &blind, now)
}

/// A member is restarted in the same wave that has the balancer drain it.
fn drains_and_restarts(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let drains = |step: &Step| matches!(step.action, Action::Balancer(BalancerAction::DrainMember { .. }));
    if plan.steps.iter().any(drains) {
        plan.steps.extend(never_drains(desired, observed, now).steps);
    }
    plan
}

/// A member that was drained gets no connections any more.
fn never_admits(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    plan.steps.retain(|step| !matches!(step.action, Action::Balancer(BalancerAction::AdmitMember { .. })));
    plan
}

/// It is done before an instance has the virtual address.
fn never_waits_for_the_address(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    plan.waiting.retain(|waiting| !matches!(waiting, Waiting::VirtualAddressUnheld { .. }));
    plan
}

#[test]
fn a_planner_that_drains_a_balancer_to_nothing_is_caught() {
    caught(drains_all, &["a balancer is not drained to nothing"]);
}

#[test]
fn a_planner_that_does_not_drain_is_caught() {
    caught(never_drains, &["a member is drained before it stops serving"]);
}

#[test]
fn a_planner_that_changes_two_services_at_once_is_caught() {
    caught(drains_and_restarts, &["one service at a time"]);
}

#[test]
fn a_planner_that_never_admits_is_caught() {
    // Where a restart waits for the admission, it never ends.
    caught(never_admits, &["done means done", "converges when faults cease"]);
}

#[test]
fn a_planner_that_does_not_wait_for_a_virtual_address_is_caught() {
    caught(never_waits_for_the_address, &["done means done"]);
}
