//! What was observed of a PostgreSQL cluster → answers that its passes and the judge ask for. Nothing is planned here.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::desired::{Behind, ClientAccess, Node, Postgres, Stack, UserSlot};
use crate::observed::{
    Access, EtcdLogins, NodeFacts, NodePurpose, Observed, Password, PgData, PostgresOnMachine, PostgresView,
    ServiceState, SystemId, Tolerance, Unsettled, View,
};
use crate::plan::PostgresWaiting;
use crate::plan::users::{lacking, looked, newest};
use crate::spec::Name;

/// What a switchover costs: measured, 4.3 to 5.4 s, nearly all of it Patroni's and PostgreSQL's own.
pub(in crate::plan) const SWITCHOVER_PAUSE_MS: u32 = 5_000;
/// What a restart of PostgreSQL costs where writes wait for it.
pub(in crate::plan) const RESTART_PAUSE_MS: u32 = 2_000;

/// Parameters of which a standby must have as much as its primary, or it stops; and what Patroni gives without a setting.
pub(in crate::plan) const ORDERED: [(&str, i64); 5] = [
    ("max_connections", 100),
    ("max_worker_processes", 8),
    ("max_wal_senders", 10),
    ("max_prepared_transactions", 0),
    ("max_locks_per_transaction", 64),
];

/// Whether the cluster was ever made: from then on there is something to protect.
pub(in crate::plan) fn stands(cluster: &Postgres, observed: &Observed) -> bool {
    let known = observed.ledger.postgres.get(&cluster.name);
    let keys = observed.postgres.get(&cluster.name).and_then(|seen| seen.keys.seen());
    let made = match keys {
        Some(keys) => keys.system.is_some(),
        // A node that was started may have made it since.
        None => known.is_some_and(|known| !known.started.is_empty()),
    };
    made || known.is_some_and(|known| known.system.is_some())
}

/// The machines of its nodes: those of the file, and those that Patroni was started on and that are still there.
pub(in crate::plan) fn machines<'a>(cluster: &'a Postgres, observed: &'a Observed) -> BTreeSet<&'a Name> {
    let started = observed.ledger.postgres.get(&cluster.name).into_iter().flat_map(|known| known.started.keys());
    cluster.nodes.iter().map(|node| &node.name).chain(started).collect()
}

/// What the agent of a node's machine reports of it; nothing where the provider could not be asked of the machine.
pub(in crate::plan) fn node<'a>(observed: &'a Observed, machine: &Name) -> Option<&'a PostgresOnMachine> {
    observed.machine(machine)?;
    observed.report(machine)?.postgres.as_ref()
}

/// Whether balancers in front of it would lead clients to this node if it became the primary: those that run have it.
pub(in crate::plan) fn is_fronted(desired: &Stack, cluster: &Postgres, observed: &Observed, node: &Name) -> bool {
    let before = desired.instances().filter(|(balancer, _)| balancer.behind == Behind::Nodes(cluster.name.clone()));
    let seen = before.filter_map(|(_, instance)| observed.report(&instance.name)?.balancer.as_ref());
    let mut running = seen.filter(|seen| seen.haproxy.runs() && seen.problem.is_none());
    running.all(|seen| seen.facts.servers.contains_key(node))
}

/// Whether no node of it runs, as seen on every machine that one was started on.
pub(in crate::plan) fn asleep(cluster: &Postgres, observed: &Observed) -> bool {
    let known = observed.ledger.postgres.get(&cluster.name);
    let started = known.into_iter().flat_map(|known| known.started.keys());
    let nodes = cluster.nodes.iter().map(|node| &node.name).filter(|name| node(observed, name).is_some());
    let mut all = started.chain(nodes);
    all.all(|machine| node(observed, machine).is_some_and(|node| node.service.state == ServiceState::Stopped))
}

/// Whether Patroni's keys are older than those that were seen before: the etcd beneath was built anew.
pub(in crate::plan) fn is_rolled_back(cluster: &Postgres, observed: &Observed) -> bool {
    let Some(known) = observed.ledger.postgres.get(&cluster.name) else { return false };
    let Some(keys) = observed.postgres.get(&cluster.name).and_then(|seen| seen.keys.seen()) else { return false };
    known.is_rolled_back(observed.ledger.etcd.cluster, keys)
}

/// The node whose data is ahead of all others', where every node can be asked and none runs.
pub(in crate::plan) fn furthest<'a>(cluster: &'a Postgres, observed: &'a Observed) -> Option<&'a Name> {
    let mut best: Option<((u32, u64), &Name)> = None;
    for machine in machines(cluster, observed) {
        match &node(observed, machine)?.data {
            PgData::Present { timeline, position, .. } => {
                let end = (*timeline, *position);
                if best.is_none_or(|(known, _)| end > known) {
                    best = Some((end, machine));
                }
            }
            PgData::Empty => {}
            PgData::Unreadable { .. } => return None,
        }
    }
    best.map(|(_, machine)| machine)
}

/// Whether a machine may go with what is on it: every acknowledged commit is on nodes that stay, as many as should have it.
pub(in crate::plan) fn has_no_last_copy(
    desired: &Stack,
    observed: &Observed,
    machine: &Name,
) -> Result<(), PostgresWaiting> {
    let started = |cluster: &&Postgres| observed.ledger.of_postgres(&cluster.name).started.contains_key(machine);
    for cluster in desired.postgres.iter().filter(started).filter(|cluster| stands(cluster, observed)) {
        if node(observed, machine).is_some_and(|on| on.data == PgData::Empty) {
            continue;
        }
        let (seen, name) = (seen(cluster, observed)?, patroni_name(cluster, machine));
        let unsettled = |why| PostgresWaiting::PostgresUnsettled { cluster: cluster.name.clone(), why };
        if seen.primary().is_none_or(|primary| primary == name) {
            return Err(unsettled(Unsettled::NoPrimary));
        }
        let streaming = seen.synchronous().into_iter().filter(|standby| *standby != name).count();
        let (streaming, wanted) = (u32::try_from(streaming).unwrap_or(u32::MAX), cluster.synchronous_standbys());
        if streaming < wanted {
            return Err(unsettled(Unsettled::SynchronousMissing { streaming, wanted }));
        }
    }
    Ok(())
}

/// The cluster, as etcd and its nodes show it.
pub(in crate::plan) fn seen<'a>(
    cluster: &'a Postgres,
    observed: &'a Observed,
) -> Result<PostgresView<'a>, PostgresWaiting> {
    PostgresView::seen(cluster, observed).ok_or_else(|| {
        let error = observed.postgres.get(&cluster.name).and_then(|seen| seen.keys.error());
        let error = error.unwrap_or("they were not read").to_owned();
        PostgresWaiting::KeysUnknown { cluster: cluster.name.clone(), error }
    })
}

/// Whether every node has read Patroni's keys since this moment.
pub(in crate::plan) fn seen_since(
    cluster: &Postgres,
    seen: &PostgresView<'_>,
    since: Timestamp,
) -> Result<(), PostgresWaiting> {
    let Some(late) = seen.not_seen_since(since).into_iter().next() else { return Ok(()) };
    // A node that is not in the file has the name of its machine.
    let machine = cluster.node_in_patroni(late).map(|node| node.name.clone()).or_else(|| Name::parse(late).ok());
    let machine = machine.unwrap_or_else(|| cluster.name.clone());
    Err(PostgresWaiting::NotSeenSince { machine, since })
}

/// Whether every node has taken up Patroni's settings since raftsman last changed them: only then is it known what waits for
/// a restart. Patroni takes them up at the end of the round that reads them, so that another round has to have begun.
pub(in crate::plan) fn knows_the_settings(
    cluster: &Postgres,
    observed: &Observed,
    seen: &PostgresView<'_>,
) -> Result<(), PostgresWaiting> {
    let Some(set) = observed.ledger.of_postgres(&cluster.name).settings_set else { return Ok(()) };
    let round = SignedDuration::from_secs(i64::from(cluster.section.patroni.loop_wait));
    seen_since(cluster, seen, set.checked_add(round).unwrap_or(set))
}

/// Whether a node has every certificate that it needs, and other nodes accept them.
pub(in crate::plan) fn is_certified(
    cluster: &Postgres,
    observed: &Observed,
    on: &PostgresOnMachine,
    now: Timestamp,
) -> bool {
    let trust = observed.ledger.of_postgres(&cluster.name).trust.as_ref();
    let accepted = |purpose: NodePurpose| {
        let there = on.certificates.get(&purpose);
        there.is_some_and(|there| trust.is_some_and(|trust| trust.accepts(there, now)))
    };
    NodePurpose::ALL.into_iter().all(accepted)
}

/// Whose data the cluster has.
pub(in crate::plan) fn system(cluster: &Postgres, observed: &Observed) -> Option<SystemId> {
    let known = observed.ledger.postgres.get(&cluster.name).and_then(|known| known.system);
    known.or_else(|| observed.postgres.get(&cluster.name)?.keys.seen()?.system)
}

/// Whether a node logged in to every voter anew with the file that is written on its machine, as this user where one is
/// named, since etcd was last touched. One member may be left out: the one that is restarted.
pub(in crate::plan) fn login(
    desired: &Stack,
    cluster: &Postgres,
    observed: &Observed,
    view: &View<'_>,
    machine: &Name,
    user: Option<UserSlot>,
    beside: Option<&Name>,
) -> Result<(), PostgresWaiting> {
    let failed = |member: &Name, error: &str| PostgresWaiting::LoginFailed {
        machine: machine.clone(),
        member: member.clone(),
        error: error.to_owned(),
    };
    let fresh = logins(cluster, observed, machine, user);
    let (mut open, mut closed): (bool, Option<(Name, &str)>) = (false, None);
    for member in view.listed.unwrap_or_default().iter().filter(|member| !member.learner) {
        let Some(name) = observed.ledger.etcd.name_of(member) else { continue };
        // One that is lost anyway cannot be logged in to, nor one that accepts no client but raftsman yet.
        if !view.healthy.contains(&name) || beside == Some(&name) {
            continue;
        }
        if is_closed(desired, observed, &name) {
            closed = Some((name, "it accepts no client yet"));
            continue;
        }
        let error = match fresh.and_then(|tried| tried.members.get(&name)) {
            Some(Ok(())) => {
                open = true;
                continue;
            }
            Some(Err(error)) => error.as_str(),
            None => PostgresWaiting::UNTRIED,
        };
        // The certificate of one that goes is not renewed: the others suffice.
        if desired.etcd.member(&name).is_some() {
            return Err(failed(&name, error));
        }
        closed = Some((name, error));
    }
    match closed.filter(|_| !open) {
        Some((name, error)) => Err(failed(&name, error)),
        None => Ok(()),
    }
}

/// The logins of a node with the file that is written on its machine, as this user where one is named, since etcd was last
/// touched.
fn logins<'a>(
    cluster: &Postgres,
    observed: &'a Observed,
    machine: &Name,
    user: Option<UserSlot>,
) -> Option<&'a EtcdLogins> {
    let written = node(observed, machine).and_then(|node| node.written.as_ref());
    let user = user.or_else(|| written.map(|file| file.user));
    let tried = observed.postgres.get(&cluster.name)?.logins.get(machine)?;
    let since = observed.ledger.etcd.last_step;
    Some(tried).filter(|tried| since.is_none_or(|since| tried.at > since) && Some(tried.user) == user)
}

/// Whether every member of etcd accepts this node, so that PostgreSQL may begin to rely on them: one that is away might
/// come back as it was started before auth was on, and accept no client.
pub(in crate::plan) fn accepted_everywhere(
    cluster: &Postgres,
    observed: &Observed,
    view: &View<'_>,
    machine: &Name,
) -> Result<(), PostgresWaiting> {
    if view.healthy.len() < view.voters {
        let verb = "bootstrap postgresql".to_owned();
        return Err(PostgresWaiting::EtcdFirst { cluster: cluster.name.clone(), verb });
    }
    let fresh = logins(cluster, observed, machine, None);
    for member in &view.healthy {
        let error = match fresh.and_then(|tried| tried.members.get(*member)) {
            Some(Ok(())) => continue,
            Some(Err(error)) => error.clone(),
            None => PostgresWaiting::UNTRIED.to_owned(),
        };
        return Err(PostgresWaiting::LoginFailed { machine: machine.clone(), member: (*member).clone(), error });
    }
    Ok(())
}

/// Whether this member still runs as it was started before auth was on.
fn is_closed(desired: &Stack, observed: &Observed, name: &Name) -> bool {
    let Some(member) = desired.etcd.member(name) else { return false };
    let Some(etcd) = observed.report(name).map(|report| &report.etcd) else { return false };
    let (Some(version), Some(running)) = (etcd.running_version, &etcd.running_config) else { return false };
    let timers = desired.etcd.timers(&observed.ledger).unwrap_or_default();
    *running == desired.etcd.config(member, version, timers, ClientAccess::Closed).digest
}

/// Whether a standby must have as much of it as its primary.
pub(in crate::plan) fn ordered_parameter(key: &str) -> bool {
    ORDERED.iter().any(|(name, _)| *name == key)
}

/// Whether a standby that is restarted now gets less of a setting than its primary still has: it would not start.
pub(in crate::plan) fn lowered_before_primary(standby: &NodeFacts, primary: &NodeFacts) -> bool {
    let lowered = |facts: &NodeFacts, key: &str| facts.pending.get(key).is_some_and(|change| change.is_lowered());
    standby.pending.keys().any(|key| ordered_parameter(key) && lowered(standby, key) && lowered(primary, key))
}

/// Whether etcd can lose a member; one that has a single member never can.
pub(in crate::plan) fn strong(view: &View<'_>) -> bool {
    let learner = view.listed.is_some_and(|list| list.iter().any(|member| member.learner));
    let spare = match view.tolerance() {
        Tolerance::NoQuorum => false,
        Tolerance::CanLose(0) => view.voters == 1,
        Tolerance::CanLose(_) => true,
    };
    spare && !learner
}

/// The name that Patroni has for a node on this machine.
pub(in crate::plan) fn patroni_name<'a>(cluster: &'a Postgres, machine: &'a Name) -> &'a str {
    cluster.node(machine).map_or(machine.as_str(), |node: &Node| node.patroni_name.as_str())
}

/// Whether etcd has the user of this slot, with its password and its role.
pub(in crate::plan) fn has_user(view: &View<'_>, cluster: &Postgres, slot: UserSlot) -> bool {
    let auth = newest(view).and_then(|etcd| etcd.auth) == Some(true);
    let Some(Ok(seen)) = looked(view).filter(|_| auth) else { return false };
    has_role(seen, cluster) && is_right(seen, cluster, slot)
}

pub(in crate::plan) fn has_role(seen: &Access, cluster: &Postgres) -> bool {
    let (role, wanted) = cluster.etcd_role();
    seen.roles.get(&role).is_some_and(|has| lacking(&wanted, Some(has)).is_empty())
}

pub(in crate::plan) fn is_right(seen: &Access, cluster: &Postgres, slot: UserSlot) -> bool {
    let (role, _) = cluster.etcd_role();
    seen.users.get(&cluster.etcd_user(slot)).is_some_and(|user| {
        // One that was not tried is right until a node finds otherwise: it was made by raftsman.
        user.roles.contains(&role) && !matches!(user.password, Password::Other | Password::None)
    })
}
