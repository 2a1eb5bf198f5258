//! Files that have machines made otherwise, in faulted lives → no rule is broken, and planners that break one are caught.

use jiff::Timestamp;
use raftsman_core::action::{Action, MachineAction, MemberAction};
use raftsman_core::desired::Stack;
use raftsman_core::observed::{Observed, Tolerance};
use raftsman_core::plan::{Pause, Plan, Reason, Step, Waiting, plan};
use raftsman_core::spec::Name;
use raftsman_tests::sim::{Cast, Planner, Violation, lives};

#[test]
fn no_machine_is_made_anew_unsafely() {
    let stats = lives(0..2_000, &Cast::with_shapes(), plan).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(stats.restarts > 400 && stats.converged > 1_000, "{stats:?}");
}

fn caught(planner: Planner, rule: &str) {
    match lives(0..4_000, &Cast::with_shapes(), planner) {
        Err(Violation { rule: broken, .. }) if broken == rule => {}
        Err(other) => panic!("caught, but for another rule: {other}"),
        Ok(stats) => panic!("a broken planner went unnoticed: {stats:?}"),
    }
}

/// Rebuilds all machines at once.
fn all_at_once(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let Some(first @ Step { action: Action::Machine(MachineAction::RebuildMachine { .. }), .. }) =
        plan.steps.first().cloned()
    else {
        return plan;
    };
    for waiting in &plan.waiting {
        if let Waiting::Turn { machine, .. } = waiting {
            let action = Action::Machine(MachineAction::RebuildMachine { machine: machine.clone() });
            plan.steps.push(Step { action, ..first.clone() });
        }
    }
    plan
}

/// Rebuilds around a data disk that is not there.
fn forgets_the_data(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let reason = plan.steps.first().map(|step| step.reason.to_string()).unwrap_or_default();
    if let Some(Step { action, .. }) = plan.steps.first_mut()
        && let Action::Member(MemberAction::RemoveMember { name, .. }) = &*action
        && reason.contains('→')
        && let Ok(machine) = Name::parse(name)
        && observed.report(&machine).is_some()
    {
        *action = Action::Machine(MachineAction::RebuildMachine { machine });
    }
    plan
}

/// Takes members that do not answer for healthy.
fn careless(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    if !plan.waiting.iter().any(|w| matches!(w, Waiting::HealFirst { change, .. } if change.contains("rebuilding"))) {
        return plan;
    }
    let old = |name: &Name| {
        let found = observed.report(name).and_then(|_| observed.machine(name)?.shape.clone());
        let wanted = desired.machine(name).and_then(|machine| machine.shape.clone());
        found.zip(wanted).is_some_and(|(found, wanted)| {
            found.keeps_data() && wanted.keeps_data() && found.change_to(&wanted).is_some()
        })
    };
    let machine = desired.etcd.members.iter().map(|member| member.name.clone()).find(old);
    let step = |machine| Step {
        action: Action::Machine(MachineAction::RebuildMachine { machine }),
        reason: Reason::Changed,
        before: Tolerance::NoQuorum,
        during: Tolerance::NoQuorum,
        after: Tolerance::NoQuorum,
        pause: Pause::None,
        copies: None,
    };
    Plan { steps: machine.map(step).into_iter().collect(), waiting: plan.waiting }
}

#[test]
fn a_planner_that_rebuilds_all_at_once_is_caught() {
    caught(all_at_once, "a step that changes the cluster is alone");
}

#[test]
fn a_planner_that_forgets_the_data_is_caught() {
    caught(forgets_the_data, "data outlives its machine");
}

#[test]
fn a_planner_that_rebuilds_beside_a_silent_member_is_caught() {
    caught(careless, "machines are made anew among healthy members");
}
