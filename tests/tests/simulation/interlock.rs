//! Planners that are broken on purpose where etcd and PostgreSQL meet → each is caught by the rule that it breaks.

use jiff::Timestamp;
use raftsman_core::action::{Account, Action, BalancerAction, EtcdAction, PostgresAction, UserAction};
use raftsman_core::desired::{Node, Postgres, Stack};
use raftsman_core::observed::{Agent, Fact, NodeRole, NodeState, Observed, PostgresOnMachine, TrustDomain};
use raftsman_core::plan::{Pause, Plan, Reason, Step, plan};
use raftsman_core::spec::Name;
use raftsman_tests::sim::{Cast, Planner, Violation, lives};

#[track_caller]
fn caught_in(cast: &Cast, planner: Planner, rule: &str) {
    for seed in 0..3_000 {
        match lives(seed..seed + 1, cast, planner) {
            Err(Violation { rule: broken, .. }) if broken == rule => return,
            // A node that was away is locked out, and the life does not end: what the rule is there to prevent.
            Err(Violation { rule: "converges when faults cease", .. }) | Ok(_) => {}
            Err(other) => panic!("caught, but for another rule: {other}"),
        }
    }
    panic!("a broken planner went unnoticed");
}

#[track_caller]
fn caught(planner: Planner, rule: &str) {
    caught_in(&Cast::with_postgres(), planner, rule);
}

const SETTLED: &str = "etcd gives only to a settled PostgreSQL";
const LOGINS: &str = "every node can log in anew";
const USERS: &str = "a user in use is left alone";

/// The same observation with other reports of nodes.
fn with(observed: &Observed, change: impl Fn(&Name, &mut PostgresOnMachine)) -> Observed {
    let mut changed = observed.clone();
    for (name, machine) in &mut changed.machines {
        if let Fact::Seen { value: Agent::Claimed(report), .. } = &mut machine.agent
            && let Some(node) = &mut report.postgres
        {
            change(name, node);
        }
    }
    changed
}

/// As if every login had succeeded just now.
fn assume_logins(observed: &mut Observed, now: Timestamp) {
    let members: Vec<Name> = observed.etcd.members.keys().cloned().collect();
    let later = now.checked_add(jiff::SignedDuration::from_secs(1)).unwrap_or(now);
    let ledger = &observed.ledger;
    let standing = observed.postgres.iter_mut().filter(|(name, _)| ledger.of_postgres(name).system.is_some());
    for logins in standing.flat_map(|(_, seen)| seen.logins.values_mut()) {
        logins.at = later;
        logins.members = members.iter().map(|member| (member.clone(), Ok(()))).collect();
    }
}

/// Takes every standby for one that streams.
fn all_stream(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut assumed = with(observed, |_, node| {
        if let Ok(facts) = &mut node.node
            && facts.system.is_some()
        {
            facts.streaming = facts.role == NodeRole::Replica;
            facts.state = NodeState::Running;
        }
    });
    for (name, seen) in &mut assumed.postgres {
        let nodes = desired.postgres(name).map(|cluster| cluster.nodes.clone()).unwrap_or_default();
        if let Fact::Seen { value: keys, .. } = &mut seen.keys
            && let Some(leader) = keys.leader.clone()
        {
            let others = nodes.iter().map(|node| node.patroni_name.clone()).filter(|node| *node != leader);
            keys.sync.standbys.extend(others);
            keys.sync.leader = Some(leader);
        }
    }
    let assumed = plan(desired, &assumed, now);
    let restarts = |step: &Step| matches!(step.action, Action::Etcd(EtcdAction::RestartEtcd { .. }));
    if assumed.steps.iter().any(restarts) { assumed } else { plan(desired, observed, now) }
}

fn step(plan: &Plan, action: impl Into<Action>) -> Option<Step> {
    plan.steps.first().map(|first| Step { action: action.into(), ..first.clone() })
}

/// The standbys that the keys do not name, and those that they do.
fn standbys<'a>(cluster: &'a Postgres, observed: &Observed) -> (Vec<&'a Name>, Vec<&'a Name>) {
    let Some(keys) = observed.postgres.get(&cluster.name).and_then(|seen| seen.keys.seen()) else {
        return (Vec::new(), Vec::new());
    };
    let nodes = cluster.nodes.iter().filter(|node| keys.leader.as_ref() != Some(&node.patroni_name));
    let (named, others): (Vec<_>, Vec<_>) = nodes.partition(|node| keys.sync.standbys.contains(&node.patroni_name));
    (others.into_iter().map(|node| &node.name).collect(), named.into_iter().map(|node| &node.name).collect())
}

/// Restarts a replica beside a member of etcd.
fn both_at_once(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let restarts = |step: &Step| matches!(step.action, Action::Etcd(EtcdAction::RestartEtcd { .. }));
    if plan.steps.iter().any(restarts) {
        let (others, named) = desired.postgres.first().map(|c| standbys(c, observed)).unwrap_or_default();
        if let Some(machine) = others.into_iter().chain(named).next().cloned() {
            let more = step(&plan, PostgresAction::RestartPostgres { machine, role: NodeRole::Replica });
            plan.steps.extend(more);
        }
    }
    plan
}

/// Gives the user of etcd another password.
fn another_password(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    for cluster in &desired.postgres {
        let known = observed.ledger.of_postgres(&cluster.name);
        if plan.steps.is_empty() && known.system.is_some() {
            let user = cluster.etcd_user(known.user);
            let (grant, revoke) = Default::default();
            let action = UserAction::SetUser { user, account: Account::Password, grant, revoke };
            let tolerance = raftsman_core::observed::View::of(observed).tolerance();
            plan.steps.push(Step {
                action: action.into(),
                reason: Reason::Changed,
                before: tolerance,
                during: tolerance,
                after: tolerance,
                pause: Pause::None,
                copies: None,
            });
        }
    }
    plan
}

/// Deletes the first user once the files name the second.
fn deletes_before_the_reload(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let reloads = |step: &Step| matches!(step.action, Action::Postgres(PostgresAction::ReloadPatroni { .. }));
    if plan.steps.iter().any(reloads) {
        for cluster in &desired.postgres {
            let other = observed.ledger.of_postgres(&cluster.name).user.other();
            let on = |node: &Node| observed.report(&node.name).and_then(|report| report.postgres.as_ref());
            let uses =
                |node: &Node| on(node).and_then(|on| on.taken_up.as_ref()).is_some_and(|file| file.user == other);
            if cluster.nodes.iter().any(uses) {
                let instead = step(&plan, UserAction::DeleteUser { user: cluster.etcd_user(other) });
                plan.steps = instead.into_iter().collect();
            }
        }
    }
    plan
}

/// Takes every node for one that has the CA certificates of today.
fn all_trust(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let digest = observed.ledger.etcd.trust(TrustDomain::Clients).map(|trust| trust.digest());
    let mut assumed = with(observed, |_, node| {
        if node.trust.is_some() {
            node.trust.clone_from(&digest);
        }
    });
    assume_logins(&mut assumed, now);
    plan(desired, &assumed, now)
}

/// Switches over to a standby that is not synchronous.
fn any_standby(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    for step in &mut plan.steps {
        if let Action::Postgres(PostgresAction::Switchover { cluster, to, .. }) = &mut step.action {
            let others = desired.postgres(cluster).map(|cluster| standbys(cluster, observed).0).unwrap_or_default();
            if let Some(other) = others.first() {
                *to = (*other).clone();
            }
        }
    }
    plan
}

/// Restarts a standby for a value that is lowered, before its primary.
fn lowers_standbys_first(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    for step in &mut plan.steps {
        if let Action::Postgres(PostgresAction::RestartPostgres { machine, role: role @ NodeRole::Primary }) =
            &mut step.action
            && let Some((cluster, _)) = desired.node(machine)
            && let (others, named) = standbys(cluster, observed)
            && let Some(other) = others.into_iter().chain(named).next()
        {
            *machine = other.clone();
            *role = NodeRole::Replica;
        }
    }
    plan
}

/// Restarts all standbys at once.
fn all_standbys_at_once(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let first = plan.steps.iter().find_map(|step| match &step.action {
        Action::Postgres(PostgresAction::RestartPostgres { machine, role: NodeRole::Replica }) => Some(machine.clone()),
        _ => None,
    });
    if let Some((cluster, node)) = first.as_ref().and_then(|machine| desired.node(machine)) {
        let (others, named) = standbys(cluster, observed);
        let others = others.into_iter().chain(named).filter(|other| **other != node.name);
        let more = others.map(|other| (other.clone(), NodeRole::Replica));
        let more = more.map(|(machine, role)| PostgresAction::RestartPostgres { machine, role });
        let more: Vec<Step> = more.filter_map(|action| step(&plan, action)).collect();
        plan.steps.extend(more);
    }
    plan
}

/// Takes every running Patroni for one that knows all members of today.
fn all_know_the_members(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let hosts = desired.etcd_hosts(&observed.ledger);
    let assumed = with(observed, |_, node| {
        if !node.started_with.is_empty() {
            node.started_with.extend(hosts.iter().copied());
        }
    });
    plan(desired, &assumed, now)
}

/// Hands over to a synchronous standby as long as a balancer does not have it.
fn hands_over_past_balancers(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let of_balancer = |step: &Step| {
        matches!(
            step.action,
            Action::Balancer(BalancerAction::ConfigureBalancer { .. } | BalancerAction::ReloadBalancer { .. })
        )
    };
    if !plan.steps.iter().any(of_balancer) {
        return plan;
    }
    let behind_all = |name: &Name| {
        let instances = observed.reports().filter_map(|(_, report)| report.balancer.as_ref());
        let mut running = instances.filter(|balancer| balancer.haproxy.runs() && balancer.problem.is_none());
        running.all(|balancer| balancer.facts.servers.contains_key(name))
    };
    let leads = |on: &PostgresOnMachine| on.node.as_ref().is_ok_and(|facts| facts.role == NodeRole::Primary);
    for cluster in &desired.postgres {
        let mut nodes = observed.reports().filter_map(|(name, report)| Some((name, report.postgres.as_ref()?)));
        let from = nodes.find(|(_, on)| leads(on)).map(|(name, _)| name);
        let to = standbys(cluster, observed).1.into_iter().find(|name| !behind_all(name));
        if let (Some(from), Some(to)) = (from, to) {
            let (cluster, from, to) = (cluster.name.clone(), from.clone(), to.clone());
            plan.steps = step(&plan, PostgresAction::Switchover { cluster, from, to }).into_iter().collect();
        }
    }
    plan
}

#[test]
fn a_planner_that_hands_over_to_a_node_that_balancers_do_not_have_is_caught() {
    caught(hands_over_past_balancers, "balancers lead to the next primary");
}

#[test]
fn a_planner_that_ignores_which_members_nodes_know_is_caught() {
    caught(all_know_the_members, LOGINS);
}

#[test]
fn a_planner_that_takes_every_standby_for_one_that_streams_is_caught() {
    caught(all_stream, SETTLED);
}

#[test]
fn a_planner_that_changes_both_services_at_once_is_caught() {
    caught(both_at_once, "one service at a time");
}

#[test]
fn a_planner_that_changes_the_password_in_use_is_caught() {
    caught(another_password, USERS);
}

#[test]
fn a_planner_that_deletes_the_user_before_the_reload_is_caught() {
    caught(deletes_before_the_reload, USERS);
}

#[test]
fn a_planner_that_changes_the_ca_before_nodes_have_it_is_caught() {
    caught_in(&Cast::with_postgres_and_rotations(), all_trust, LOGINS);
}

#[test]
fn a_planner_that_switches_over_to_any_standby_is_caught() {
    caught(any_standby, "a synchronous standby takes the primary's place");
}

#[test]
fn a_planner_that_lowers_standbys_first_is_caught() {
    caught(lowers_standbys_first, "standbys are never short of what their primary has");
}

#[test]
fn a_planner_that_restarts_all_standbys_at_once_is_caught() {
    caught(all_standbys_at_once, "a copy stays, or the step says otherwise");
}
