//! Clusters operated with different versions of raftsman → no agent is downgraded, and planners that do so are caught.

use jiff::Timestamp;
use raftsman_core::action::{Action, AgentAction};
use raftsman_core::desired::Stack;
use raftsman_core::observed::{Observed, Tolerance};
use raftsman_core::plan::{Pause, Plan, Reason, Step, plan};
use raftsman_tests::sim::{Cast, Violation, lives};

#[test]
fn no_agent_is_downgraded() {
    let stats = lives(0..1_000, &Cast::with_agents(), plan).unwrap_or_else(|violation| panic!("{violation}"));
    // A simulation in which nothing happens proves nothing.
    assert!(stats.converged > 300 && stats.reshaped > 300, "{stats:?}");
}

/// Looks at the digests only: an older raftsman puts its own agent over a newer one.
fn downgrades(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let ours = plan(desired, observed, now);
    let Some(shipped) = desired.agents.shipped.as_ref().filter(|_| ours.steps.is_empty()) else { return ours };
    let other = observed.reports().find(|(_, report)| {
        report.program.as_ref().is_some_and(|program| program.digest.as_ref() != Some(&shipped.digest))
    });
    let step = |machine| Step {
        action: Action::Agent(AgentAction::UpgradeAgent { machine, digest: shipped.digest.clone() }),
        reason: Reason::Changed,
        before: Tolerance::NoQuorum,
        during: Tolerance::NoQuorum,
        after: Tolerance::NoQuorum,
        pause: Pause::None,
        copies: None,
    };
    match other {
        Some((machine, _)) => Plan { steps: vec![step(machine.clone())], waiting: ours.waiting },
        None => ours,
    }
}

#[test]
fn a_planner_that_downgrades_an_agent_is_caught() {
    match lives(0..3_000, &Cast::with_agents(), downgrades) {
        Err(Violation { rule: "no agent is downgraded", .. }) => {}
        Err(other) => panic!("caught, but for another rule: {other}"),
        Ok(stats) => panic!("a broken planner went unnoticed: {stats:?}"),
    }
}
