//! Seeded lives of databases that fill up and are damaged → our planner makes room safely, and seven others are caught.

use jiff::Timestamp;
use raftsman_core::action::{Action, MaintenanceAction, MemberAction};
use raftsman_core::desired::Stack;
use raftsman_core::observed::{Alarm, Observed, Tolerance, View};
use raftsman_core::plan::{Pause, Plan, Reason, Step, Waiting, plan};
use raftsman_core::spec::Name;
use raftsman_tests::sim::{Cast, Planner, Violation, lives};

#[test]
fn no_plan_of_ours_makes_room_unsafely() {
    let stats = lives(0..600, &Cast::with_maintenance(), plan).unwrap_or_else(|violation| panic!("{violation}"));
    // A simulation in which nothing happens proves nothing.
    assert!(stats.converged > 300, "{stats:?}");
    assert!(stats.faults > 1_000, "{stats:?}");
    assert!(stats.maintained > 300, "{stats:?}");
}

#[track_caller]
fn caught(planner: Planner, rule: &str) {
    match lives(0..3_000, &Cast::with_maintenance(), planner) {
        Err(Violation { rule: broken, .. }) if broken == rule => {}
        Err(other) => panic!("caught, but for another rule: {other}"),
        Ok(stats) => panic!("a broken planner went unnoticed: {stats:?}"),
    }
}

fn only(action: Action, waiting: Vec<Waiting>) -> Plan {
    let tolerance = Tolerance::CanLose(1);
    let (before, during, after, pause) = (tolerance, tolerance, tolerance, Pause::None);
    Plan { steps: vec![Step { action, reason: Reason::Asked, before, during, after, pause, copies: None }], waiting }
}

fn waits_to_be_rewritten(plan: &Plan) -> Vec<Name> {
    let waits = |w: &Waiting| match w {
        Waiting::Turn { machine, verb } if verb == "defragment" => Some(machine.clone()),
        _ => None,
    };
    plan.waiting.iter().filter_map(waits).collect()
}

/// Whether the quota is used up, and a majority is there to do something about it.
fn full(observed: &Observed) -> bool {
    let view = View::of(observed);
    view.has_quorum() && view.alarmed(Alarm::NoSpace) && !view.corrupt()
}

/// Rewrites two members at the same time.
fn two_at_once(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    if let [step] = plan.steps.as_slice()
        && matches!(step.action, Action::Maintenance(MaintenanceAction::Defragment { .. }))
        && let Some(machine) = waits_to_be_rewritten(&plan).into_iter().next()
    {
        let second = Step { action: Action::Maintenance(MaintenanceAction::Defragment { machine }), ..step.clone() };
        plan.steps.push(second);
    }
    plan
}

/// Defragments the leader without a transfer of leadership.
fn leader_too(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    let leader = View::of(observed).leader.cloned();
    let hands_over = plan.steps.iter().any(|s| matches!(s.action, Action::Member(MemberAction::MoveLeader { .. })));
    match waits_to_be_rewritten(&plan).into_iter().find(|m| Some(m) == leader.as_ref()) {
        Some(machine) if hands_over => {
            only(Action::Maintenance(MaintenanceAction::Defragment { machine }), plan.waiting)
        }
        _ => plan,
    }
}

/// Takes the alarm back at once.
fn disarms_first(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    if full(observed)
        && plan.steps.iter().any(|s| matches!(s.action, Action::Maintenance(MaintenanceAction::Compact { .. })))
    {
        return only(Action::Maintenance(MaintenanceAction::DisarmAlarm { alarm: Alarm::NoSpace }), plan.waiting);
    }
    plan
}

/// Takes the alarm back once history is gone, and leaves the files as they are.
fn never_rewrites(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    if full(observed)
        && plan.steps.iter().any(|s| matches!(s.action, Action::Maintenance(MaintenanceAction::Defragment { .. })))
    {
        return only(Action::Maintenance(MaintenanceAction::DisarmAlarm { alarm: Alarm::NoSpace }), plan.waiting);
    }
    plan
}

/// Compacts again and again.
fn compacts_for_ever(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    let revision = View::of(observed).answering.values().map(|e| e.revision).max();
    match revision.filter(|_| full(observed) && plan.steps.iter().any(|s| s.action.exclusive())) {
        Some(revision) => only(Action::Maintenance(MaintenanceAction::Compact { revision }), plan.waiting),
        None => plan,
    }
}

/// Defragments the members that answer, although one does not.
fn does_not_wait(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    let waits = |w: &Waiting| matches!(w, Waiting::HealFirst { change, .. } if change.starts_with("freeing space"));
    let view = View::of(observed);
    match view.healthy.iter().find(|name| view.leader != Some(**name)) {
        Some(name) if plan.steps.is_empty() && plan.waiting.iter().any(waits) => {
            only(Action::Maintenance(MaintenanceAction::Defragment { machine: (*name).clone() }), plan.waiting)
        }
        _ => plan,
    }
}

/// Ignores an alarm.
fn ignores_damage(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    let view = View::of(observed);
    if view.has_quorum() && view.corrupt() && plan.steps.is_empty() {
        return only(Action::Maintenance(MaintenanceAction::DisarmAlarm { alarm: Alarm::Corrupt }), plan.waiting);
    }
    plan
}

/// Drops history whenever there is nothing else to do.
fn tidies_up(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    let revision = View::of(observed).answering.values().map(|e| e.revision).max();
    match revision.filter(|revision| plan.is_done() && *revision > 1_000) {
        Some(revision) => only(Action::Maintenance(MaintenanceAction::Compact { revision }), plan.waiting),
        None => plan,
    }
}

#[test]
fn a_planner_that_rewrites_two_at_once_is_caught() {
    caught(two_at_once, "a step that changes the cluster is alone");
}

#[test]
fn a_planner_that_rewrites_the_leader_is_caught() {
    caught(leader_too, "the leader is not rewritten");
}

#[test]
fn a_planner_that_disarms_before_it_made_room_is_caught() {
    caught(disarms_first, "an alarm is taken back once its cause is gone");
    caught(never_rewrites, "an alarm is taken back once its cause is gone");
}

#[test]
fn a_planner_that_compacts_for_ever_is_caught() {
    caught(compacts_for_ever, "history is dropped once");
}

#[test]
fn a_planner_that_rewrites_while_a_member_is_down_is_caught() {
    caught(does_not_wait, "nothing is rewritten while a member is down");
}

#[test]
fn a_planner_that_ignores_damage_is_caught() {
    caught(ignores_damage, "an alarm is taken back once its cause is gone");
}

#[test]
fn a_planner_that_drops_history_without_need_is_caught() {
    caught(tidies_up, "history is dropped for need only");
}
