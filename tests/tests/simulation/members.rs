//! Planners that change members wrongly → each is caught by the rule that it breaks.

use jiff::Timestamp;
use raftsman_core::action::{Action, EtcdAction, MachineAction, MemberAction};
use raftsman_core::desired::Stack;
use raftsman_core::observed::{Agent, Data, Fact, ListedMember, Observed, View};
use raftsman_core::plan::{Plan, Reason, Step, Waiting, plan};
use raftsman_core::spec::Name;
use raftsman_tests::sim::{Cast, Planner, Violation, lives};

fn caught(planner: Planner, rule: &str) {
    let cast = Cast::new();
    match lives(0..6_000, &cast, planner) {
        Err(Violation { rule: broken, .. }) if broken == rule => {}
        Err(other) => panic!("caught, but for another rule: {other}"),
        Ok(stats) => panic!("a broken planner went unnoticed: {stats:?}"),
    }
}

/// A step like the first of the plan, with another action.
fn instead(plan: &Plan, action: Action) -> Plan {
    let like = plan.steps.first().cloned().unwrap_or_else(|| {
        let tolerance = raftsman_core::observed::Tolerance::NoQuorum;
        let pause = raftsman_core::plan::Pause::None;
        Step {
            action: action.clone(),
            reason: Reason::Missing,
            before: tolerance,
            during: tolerance,
            after: tolerance,
            pause,
            copies: None,
        }
    });
    Plan { steps: vec![Step { action, ..like }], waiting: plan.waiting.clone() }
}

/// Voters that the file does not have and that are healthy.
fn surplus(desired: &Stack, observed: &Observed) -> Vec<(Name, ListedMember)> {
    let view = View::of(observed);
    let listed = view.listed.unwrap_or_default().iter().filter(|m| !m.learner);
    let named = listed.filter_map(|m| Some((observed.ledger.etcd.name_of(m)?, m.clone())));
    named.filter(|(name, _)| desired.etcd.member(name).is_none() && view.healthy.contains(name)).collect()
}

fn removal((name, member): &(Name, ListedMember)) -> Action {
    Action::Member(MemberAction::RemoveMember { name: name.to_string(), member: member.id })
}

/// Gives up members that do not answer, without an operator's request.
fn gives_up(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut marked = observed.clone();
    let view = View::of(observed);
    let listed = view.listed.unwrap_or_default().iter().filter(|m| !m.learner);
    let lost = listed.filter_map(|m| Some((observed.ledger.etcd.name_of(m)?, m.id)));
    marked.ledger.etcd.replace.extend(lost.filter(|(name, _)| !view.healthy.contains(name)));
    plan(desired, &marked, now)
}

/// Takes the old member away before the new one is there.
fn removes_first(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    let leader = View::of(observed).leader.cloned();
    let old = surplus(desired, observed).into_iter().find(|(name, _)| Some(name) != leader.as_ref());
    match (plan.steps.first().map(|s| &s.action), old) {
        (Some(Action::Member(MemberAction::AddLearner { .. })), Some(old)) => instead(&plan, removal(&old)),
        _ => plan,
    }
}

/// Removes the leader without a transfer of leadership.
fn removes_leader(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    let Some(Reason::LeaderGoes { from }) = plan.steps.first().map(|s| s.reason.clone()) else { return plan };
    let view = View::of(observed);
    let entry = view.listed.unwrap_or_default().iter().find(|m| m.name == from.as_str()).cloned();
    entry.map_or(plan.clone(), |entry| instead(&plan, removal(&(from, entry))))
}

/// Takes in two learners at once.
fn two_learners(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    let view = View::of(observed);
    let list = view.listed.unwrap_or_default();
    if !plan.steps.is_empty() && !list.iter().any(|m| m.learner) || list.is_empty() {
        return plan;
    }
    let ready = |name: &Name| observed.report(name).is_some();
    let missing =
        desired.etcd.members.iter().find(|m| {
            ready(&m.name) && !list.iter().any(|l| observed.ledger.etcd.name_of(l).as_ref() == Some(&m.name))
        });
    let add =
        missing.map(|m| Action::Member(MemberAction::AddLearner { machine: m.name.clone(), peer_url: m.peer_url() }));
    add.map_or(plan.clone(), |add| instead(&plan, add))
}

/// Gives a machine back while its etcd is still a member.
fn deletes_members(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    match surplus(desired, observed).first() {
        Some((name, _))
            if plan.steps.is_empty()
                || matches!(plan.steps[0].action, Action::Member(MemberAction::RemoveMember { .. })) =>
        {
            instead(&plan, Action::Machine(MachineAction::DeleteMachine { machine: name.clone() }))
        }
        _ => plan,
    }
}

/// Clears the disk of a member that is merely down.
fn clears_members(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    let Some(Step { action: Action::Etcd(EtcdAction::StartEtcd { machine, .. }), .. }) = plan.steps.first() else {
        return plan;
    };
    let data = observed.report(machine).map(|r| r.etcd.data.clone());
    match data {
        Some(Data::Present { member, .. }) => {
            instead(&plan, Action::Etcd(EtcdAction::ClearData { machine: machine.clone(), member: Some(member) }))
        }
        _ => plan,
    }
}

/// Adds a learner in the same wave as everything else.
fn crowds(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let view = View::of(observed);
    let missing = desired.etcd.members.iter().find(|m| {
        view.listed.is_some_and(|list| !list.iter().any(|l| observed.ledger.etcd.name_of(l).as_ref() == Some(&m.name)))
    });
    if let (Some(member), Some(step)) = (missing, plan.steps.first().cloned()) {
        let action =
            Action::Member(MemberAction::AddLearner { machine: member.name.clone(), peer_url: member.peer_url() });
        plan.steps.push(Step { action, ..step });
    }
    plan
}

/// Starts a member whose disk was wiped again under its old id.
fn restarts_wiped(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut forgetful = observed.clone();
    forgetful.ledger.etcd.started.clear();
    for member in forgetful.machines.values_mut() {
        if let Fact::Seen { value: Agent::Claimed(report), .. } = &mut member.agent {
            report.etcd.had_data = false;
        }
    }
    plan(desired, &forgetful, now)
}

/// Shrinks although another member is down.
fn shrinks_unhealthy(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    let heals = plan.waiting.iter().any(|w| matches!(w, Waiting::HealFirst { .. }));
    let leader = View::of(observed).leader.cloned();
    let old = surplus(desired, observed).into_iter().find(|(name, _)| Some(name) != leader.as_ref());
    match old {
        Some(old) if heals => instead(&plan, removal(&old)),
        _ => plan,
    }
}

/// Takes everything at once that waits for its turn to be taken away.
fn several_losses(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let Some(step) = plan.steps.first().cloned() else { return plan };
    let turns = plan.waiting.iter().filter_map(|w| match w {
        Waiting::Turn { machine, verb } => Some((machine.clone(), verb.clone())),
        _ => None,
    });
    let more = turns.filter_map(|(machine, verb)| match verb.as_str() {
        "delete machine" => Some(Action::Machine(MachineAction::DeleteMachine { machine })),
        "stop etcd" => Some(Action::Etcd(EtcdAction::StopEtcd { machine })),
        _ => None,
    });
    let more: Vec<Step> = more.map(|action| Step { action, ..step.clone() }).collect();
    plan.steps.extend(more);
    plan
}

#[test]
fn a_planner_that_takes_two_machines_away_at_once_is_caught() {
    caught(several_losses, "one loss at a time");
}

#[test]
fn a_planner_that_gives_members_up_by_itself_is_caught() {
    caught(gives_up, "only unwanted members are removed");
}

#[test]
fn a_planner_that_removes_before_it_adds_is_caught() {
    caught(removes_first, "an addition comes first");
}

#[test]
fn a_planner_that_removes_the_leader_is_caught() {
    caught(removes_leader, "the leader is not removed");
}

#[test]
fn a_planner_that_takes_two_learners_in_is_caught() {
    caught(two_learners, "one change at a time");
}

#[test]
fn a_planner_that_deletes_a_members_machine_is_caught() {
    caught(deletes_members, "no member's machine is taken away");
}

#[test]
fn a_planner_that_clears_a_members_disk_is_caught() {
    caught(clears_members, "no member's machine is taken away");
}

#[test]
fn a_planner_that_changes_members_beside_other_steps_is_caught() {
    caught(crowds, "a step that changes the cluster is alone");
}

#[test]
fn a_planner_that_starts_a_wiped_member_again_is_caught() {
    caught(restarts_wiped, "a member is bootstrapped once");
}

#[test]
fn a_planner_that_shrinks_an_unhealthy_cluster_is_caught() {
    caught(shrinks_unhealthy, "no step of ours costs quorum");
}
