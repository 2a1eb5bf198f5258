//! Seeded lives with roles, users and drift → under our planner no user loses access, and six broken ones are caught.

use std::collections::BTreeSet;

use jiff::Timestamp;
use raftsman_core::action::{Account, Action, UserAction};
use raftsman_core::desired::Stack;
use raftsman_core::observed::{Access, Fact, Observed, Password, User, View};
use raftsman_core::plan::{Pause, Plan, Reason, Step, drift, plan};
use raftsman_tests::sim::{Cast, Planner, Violation, lives};

#[test]
fn no_plan_of_ours_takes_access_from_a_user() {
    let stats = lives(0..600, &Cast::with_users(), plan).unwrap_or_else(|violation| panic!("{violation}"));
    // A simulation in which nothing happens proves nothing.
    assert!(stats.converged > 300, "{stats:?}");
    assert!(stats.faults > 1_000, "{stats:?}");
}

#[track_caller]
fn caught(planner: Planner, rule: &str) {
    match lives(0..3_000, &Cast::with_users(), planner) {
        Err(Violation { rule: broken, .. }) if broken == rule => {}
        Err(other) => panic!("caught, but for another rule: {other}"),
        Ok(stats) => panic!("a broken planner went unnoticed: {stats:?}"),
    }
}

/// The same observation with other users and roles.
fn with(observed: &Observed, change: impl Fn(&mut Access)) -> Observed {
    let mut observed = observed.clone();
    for member in observed.etcd.members.values_mut() {
        if let Fact::Seen { value, .. } = &mut member.etcd
            && let Some(Ok(access)) = &mut value.access
        {
            change(access);
        }
    }
    observed
}

fn seen(observed: &Observed) -> Option<Access> {
    View::of(observed).answering.values().find_map(|e| e.access.clone()?.ok())
}

fn is_about_users(step: &Step) -> bool {
    matches!(
        step.action,
        Action::User(UserAction::SetRole { .. })
            | Action::User(UserAction::DeleteRole { .. })
            | Action::User(UserAction::SetUser { .. })
            | Action::User(UserAction::DeleteUser { .. })
    )
}

fn step(action: Action) -> Step {
    let tolerance = raftsman_core::observed::Tolerance::CanLose(1);
    Step {
        action,
        reason: Reason::Changed,
        before: tolerance,
        during: tolerance,
        after: tolerance,
        pause: Pause::None,
        copies: None,
    }
}

/// Takes away before it gives: as if every role and user had already all that it lacks.
fn takes_first(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plenty = with(observed, |access| {
        for (name, role) in desired.etcd.access.roles.iter().flatten() {
            let has = access.roles.entry(name.clone()).or_default();
            for (keys, level) in &role.permissions {
                let both = has.permissions.get(keys).map_or(*level, |has| has.with(*level));
                has.permissions.insert(keys.clone(), both);
            }
        }
        for (name, user) in desired.etcd.access.users.iter().flatten() {
            let password = if user.password.is_some() { Password::Right } else { Password::None };
            let has = User { roles: BTreeSet::new(), password };
            access.users.entry(name.clone()).or_insert(has).roles.extend(user.roles.iter().cloned());
        }
    });
    let first = plan(desired, &plenty, now);
    if first.steps.iter().any(is_about_users) { first } else { plan(desired, observed, now) }
}

/// Takes roles from users before it gives them others.
fn strips_first(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    for step in &mut plan.steps {
        if let Action::User(UserAction::SetUser { grant, revoke, account: Account::Keep, .. }) = &mut step.action
            && !revoke.is_empty()
        {
            grant.clear();
        }
    }
    plan
}

/// Takes the superuser for a user that the file does not list.
fn root_is_unlisted(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    if plan.steps.iter().any(|s| matches!(s.action, Action::User(UserAction::DeleteUser { .. }))) {
        plan.steps.push(step(Action::User(UserAction::DeleteUser { user: "root".to_owned() })));
    }
    plan
}

/// Believes that every password is the right one.
fn trusting(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let trusted = with(observed, |access| {
        for (name, user) in desired.etcd.access.users.iter().flatten() {
            if let Some(has) = access.users.get_mut(name) {
                has.password = if user.password.is_some() { Password::Right } else { Password::None };
            }
        }
    });
    plan(desired, &trusted, now)
}

/// Gives users roles that it never made.
fn without_roles(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let pretended = with(observed, |access| {
        let roles = desired.etcd.access.roles.iter().flatten();
        access.roles.extend(roles.map(|(name, role)| (name.clone(), role.clone())));
    });
    plan(desired, &pretended, now)
}

/// Changes users beside a restart.
fn in_passing(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let drifted = seen(observed).is_some_and(|seen| !drift(&desired.etcd.access, &seen).is_empty());
    if drifted && plan.steps.iter().any(|s| s.action.exclusive()) {
        plan.steps.push(step(Action::User(UserAction::DeleteUser { user: "mallory".to_owned() })));
    }
    plan
}

#[test]
fn a_planner_that_takes_before_it_gives_is_caught() {
    caught(takes_first, "no user loses access meanwhile");
}

#[test]
fn a_planner_that_strips_users_first_is_caught() {
    caught(strips_first, "no user loses access meanwhile");
}

#[test]
fn a_planner_that_removes_root_is_caught() {
    caught(root_is_unlisted, "root is left alone");
}

#[test]
fn a_planner_that_trusts_passwords_is_caught() {
    caught(trusting, "done means done");
}

#[test]
fn a_planner_that_makes_no_roles_is_caught() {
    caught(without_roles, "converges when faults cease");
}

#[test]
fn a_planner_that_changes_users_beside_a_restart_is_caught() {
    caught(in_passing, "a step that changes the cluster is alone");
}
