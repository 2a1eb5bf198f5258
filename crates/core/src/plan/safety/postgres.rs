//! A step on a node of a PostgreSQL cluster → what it costs, or why it must not be done.

#![warn(clippy::wildcard_enum_match_arm)]

mod catalog;

use std::collections::BTreeMap;

use super::{Case, Cost, Refusal, otherwise};
use crate::action::{PgStart, PostgresAction};
use crate::desired::{Node, PARAMETERS, Postgres};
use crate::ledger::Mode;
use crate::observed::{
    NodeFacts, NodeRole, PgData, PostgresOnMachine, PostgresView, ServiceState, SystemId, TrustDomain,
};
use crate::plan::situation::is_open;
use crate::plan::situation::postgres::{
    RESTART_PAUSE_MS, SWITCHOVER_PAUSE_MS, accepted_everywhere, furthest, has_user, is_certified, is_fronted,
    is_rolled_back, knows_the_settings, login, lowered_before_primary, machines, node, ordered_parameter, patroni_name,
    seen, stands, system,
};
use crate::plan::{CopiesLeft, Pause, PostgresWaiting};
use crate::spec::{Name, SyncMode};

pub(super) fn judge(case: &Case<'_>, action: &PostgresAction) -> Result<Cost, Refusal> {
    match action {
        PostgresAction::MakePostgresCa { cluster } => {
            let cluster = named(case, cluster)?;
            match case.observed.ledger.of_postgres(&cluster.name).trust {
                Some(_) => Err(otherwise("the cluster has a CA already")),
                None => Ok(case.unharmed),
            }
        }
        PostgresAction::IssueNodeCertificate { machine, .. } => {
            let (cluster, _) = of_file(case, machine)?;
            on(case, machine)?;
            match &case.observed.ledger.of_postgres(&cluster.name).trust {
                Some(trust) if trust.current.not_after > case.observed.at() => Ok(case.unharmed),
                Some(_) => Err(otherwise("the cluster's CA has expired")),
                None => Err(otherwise("the cluster has no CA yet")),
            }
        }
        PostgresAction::InstallPatroni { machine, .. } => {
            of_file(case, machine)?;
            on(case, machine).map(|_| case.unharmed)
        }
        PostgresAction::ConfigurePatroni { machine, user, hosts, trust, .. } => {
            let (cluster, _) = of_file(case, machine)?;
            on(case, machine)?;
            if !has_user(case.view, cluster, *user) {
                return Err(otherwise("etcd has no such user yet"));
            }
            let ledger = &case.observed.ledger;
            if *hosts != case.desired.etcd_hosts(ledger) {
                return Err(otherwise("it would not name the members of etcd"));
            }
            match ledger.etcd.trust(TrustDomain::Clients) {
                Some(wanted) if wanted.digest() == *trust => Ok(case.unharmed),
                Some(_) | None => Err(otherwise("the CAs that it would trust are not those of etcd")),
            }
        }
        PostgresAction::StartPatroni { machine, data } => start(case, machine, *data),
        PostgresAction::ReloadPatroni { machine } => {
            let (cluster, node) = of_file(case, machine)?;
            if on(case, machine)?.written.is_none() {
                return Err(Refusal::NotSeen("Patroni's file"));
            }
            login(case.desired, cluster, case.observed, case.view, machine, None, None)?;
            // A standby that receives nothing takes nothing away, and what is written may be what it lacks.
            let name = node.patroni_name.as_str();
            let idle = |facts: &NodeFacts| facts.role == NodeRole::Replica && !facts.streaming;
            let idle = seen(cluster, case.observed)?.node(name).is_some_and(idle);
            settled(case, cluster, Some(name).filter(|_| idle))?;
            Ok(case.unharmed)
        }
        PostgresAction::RestartPatroni { machine, .. } => {
            let (cluster, node) = of_file(case, machine)?;
            on(case, machine)?;
            let seen = settled(case, cluster, None)?;
            if seen.primary() == Some(node.patroni_name.as_str()) {
                return Err(otherwise("it is the primary: a standby takes its place first"));
            }
            login(case.desired, cluster, case.observed, case.view, machine, None, None)?;
            Ok(away(case, &seen, &node.patroni_name, Pause::None))
        }
        PostgresAction::RestartPostgres { machine, role } => restart(case, machine, *role),
        PostgresAction::ReinitializeNode { machine, system } => {
            let (cluster, node) = of_file(case, machine)?;
            let seen = settled(case, cluster, Some(&node.patroni_name))?;
            if seen.primary() == Some(node.patroni_name.as_str()) {
                return Err(otherwise("it is the primary"));
            }
            if self::system(cluster, case.observed) != Some(*system) {
                return Err(otherwise("the cluster's data is another"));
            }
            Ok(away(case, &seen, &node.patroni_name, Pause::None))
        }
        PostgresAction::StopPatroni { machine } => stop(case, machine),
        PostgresAction::Switchover { cluster, from, to } => switchover(case, cluster, from, to),
        PostgresAction::SetPatroni { cluster, set } => set_patroni(case, cluster, set),
        PostgresAction::SetPostgresRole { .. }
        | PostgresAction::DropPostgresRole { .. }
        | PostgresAction::SetNodePassword { .. }
        | PostgresAction::SetDatabase { .. } => catalog::judge(case, action),
    }
}

fn of_file<'a>(case: &Case<'a>, machine: &Name) -> Result<(&'a Postgres, &'a Node), Refusal> {
    case.desired.node(machine).ok_or_else(|| otherwise("the file has no node of PostgreSQL there"))
}

fn named<'a>(case: &Case<'a>, cluster: &Name) -> Result<&'a Postgres, Refusal> {
    case.desired.postgres(cluster).ok_or_else(|| otherwise("the file has no such PostgreSQL cluster"))
}

fn on<'a>(case: &Case<'a>, machine: &Name) -> Result<&'a PostgresOnMachine, Refusal> {
    case.any_report(machine)?;
    node(case.observed, machine).ok_or(Refusal::NotSeen("the node"))
}

/// The cluster, where it is as it should be but for this node.
fn settled<'a>(case: &Case<'a>, cluster: &'a Postgres, beside: Option<&str>) -> Result<PostgresView<'a>, Refusal> {
    let seen = seen(cluster, case.observed)?;
    let wanted = if beside.is_some() { 0 } else { cluster.synchronous_standbys() };
    let unsettled = |why| PostgresWaiting::PostgresUnsettled { cluster: cluster.name.clone(), why };
    seen.settled_beside(wanted, beside).map_err(unsettled)?;
    Ok(seen)
}

/// What it costs to have this node away for a while.
fn away(case: &Case<'_>, seen: &PostgresView<'_>, node: &str, pause: Pause) -> Cost {
    let before = seen.copies();
    let copies = Some(CopiesLeft { before, during: seen.copies_without(Some(node)), after: before });
    Cost { pause, copies, ..case.unharmed }
}

/// A cluster is made once, by one node; afterwards a node starts with its data, or copies it.
fn start(case: &Case<'_>, machine: &Name, data: PgStart) -> Result<Cost, Refusal> {
    let (cluster, _) = of_file(case, machine)?;
    let there = on(case, machine)?;
    if there.service.state != ServiceState::Stopped {
        return Err(otherwise("Patroni runs already"));
    }
    if there.written.is_none() {
        return Err(otherwise("Patroni is not configured"));
    }
    if !is_certified(cluster, case.observed, there, case.observed.at()) {
        return Err(otherwise("it has no certificates that other nodes accept"));
    }
    if matches!(case.observed.ledger.etcd.mode, Mode::Recovering(_) | Mode::Restoring(_)) {
        return Err(otherwise("the etcd beneath is built anew"));
    }
    case.with_quorum()?;
    if !is_open(case.desired, case.observed) {
        return Err(otherwise("etcd does not accept clients yet"));
    }
    let seen = seen(cluster, case.observed)?;
    match (data, &there.data) {
        (PgStart::Bootstrap, PgData::Empty) => {
            bootstrap(case, cluster, machine, &seen)?;
            accepted_everywhere(cluster, case.observed, case.view, machine)?;
        }
        (PgStart::Beside, PgData::Empty) => {
            beside(case, cluster, machine)?;
            accepted_everywhere(cluster, case.observed, case.view, machine)?;
        }
        (PgStart::Join(wanted), PgData::Empty) => {
            the_same(wanted, system(cluster, case.observed))?;
            if seen.primary().is_none() {
                return Err(otherwise("there is no primary to copy from"));
            }
        }
        (PgStart::Own(wanted), PgData::Present { system: found, .. }) => {
            the_same(wanted, Some(*found))?;
            the_same(wanted, system(cluster, case.observed))?;
            first_after_a_rebuild(case, cluster, machine, &seen)?;
        }
        (
            PgStart::Bootstrap | PgStart::Beside | PgStart::Join(_),
            PgData::Present { .. } | PgData::Unreadable { .. },
        )
        | (PgStart::Own(_), PgData::Empty | PgData::Unreadable { .. }) => {
            return Err(otherwise("the data directory is not as expected"));
        }
    }
    Ok(case.unharmed)
}

fn the_same(wanted: SystemId, found: Option<SystemId>) -> Result<(), Refusal> {
    match found {
        Some(found) if found == wanted => Ok(()),
        Some(found) => Err(Refusal::Otherwise(format!("the data is another cluster's ({found}, not {wanted})"))),
        None => Err(Refusal::NotSeen("whose data the cluster has")),
    }
}

fn bootstrap(case: &Case<'_>, cluster: &Postgres, machine: &Name, seen: &PostgresView<'_>) -> Result<(), Refusal> {
    if stands(cluster, case.observed) || seen.keys().leader.is_some() {
        return Err(otherwise("the cluster exists already"));
    }
    let ledger = case.observed.ledger.of_postgres(&cluster.name);
    for other in machines(cluster, case.observed).into_iter().filter(|other| *other != machine) {
        let started = ledger.started.contains_key(other);
        match node(case.observed, other) {
            Some(node) if node.data != PgData::Empty || node.service.state != ServiceState::Stopped => {
                return Err(Refusal::Otherwise(format!("{other} may have made the cluster")));
            }
            None if started => return Err(Refusal::Otherwise(format!("{other} may have made the cluster"))),
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// While a node makes the cluster, others may start: Patroni lets one of them make it, by a key that is made once in etcd.
fn beside(case: &Case<'_>, cluster: &Postgres, machine: &Name) -> Result<(), Refusal> {
    if system(cluster, case.observed).is_some() {
        return Err(otherwise("the cluster exists already: its data is copied"));
    }
    let started = &case.observed.ledger.of_postgres(&cluster.name).started;
    let runs = |name: &&Name| {
        let node = node(case.observed, name);
        *name != machine && node.is_some_and(|node| node.service.state == ServiceState::Running)
    };
    match started.keys().any(|name| runs(&name)) {
        true => Ok(()),
        false => Err(otherwise("no node makes the cluster")),
    }
}

/// After the etcd beneath was built anew, the node with the most data starts first and alone, if etcd lets it lead.
fn first_after_a_rebuild(
    case: &Case<'_>,
    cluster: &Postgres,
    machine: &Name,
    seen: &PostgresView<'_>,
) -> Result<(), Refusal> {
    if !is_rolled_back(cluster, case.observed) || seen.primary().is_some() {
        return Ok(());
    }
    let sync = &seen.keys().sync;
    let named = sync.leader.clone().unwrap_or_default();
    let rolled = |ahead: Option<Name>| {
        Refusal::Held(PostgresWaiting::SyncRolledBack { cluster: cluster.name.clone(), named: named.clone(), ahead })
    };
    let first = furthest(cluster, case.observed).ok_or_else(|| rolled(None))?;
    let name = patroni_name(cluster, first);
    if sync.leader.is_some() && sync.leader.as_deref() != Some(name) && !sync.standbys.contains(name) {
        return Err(rolled(Some(first.clone())));
    }
    if first != machine {
        return Err(Refusal::Otherwise(format!("{first} has more data, and leads first")));
    }
    Ok(())
}

fn restart(case: &Case<'_>, machine: &Name, role: NodeRole) -> Result<Cost, Refusal> {
    let (cluster, node) = of_file(case, machine)?;
    on(case, machine)?;
    let name = node.patroni_name.as_str();
    let seen = seen(cluster, case.observed)?;
    let facts = seen.node(name).ok_or(Refusal::NotSeen("what the node is"))?;
    // A standby that receives nothing takes nothing away.
    let idle = facts.role == NodeRole::Replica && !facts.streaming;
    settled(case, cluster, Some(name).filter(|_| idle))?;
    knows_the_settings(cluster, case.observed, &seen)?;
    if facts.role != role {
        return Err(otherwise("the node is another than it was"));
    }
    let primary = seen.primary().and_then(|primary| seen.node(primary)).ok_or(Refusal::NotSeen("the primary"))?;
    if seen.primary() == Some(name) {
        let alone = cluster.nodes.len() == 1;
        // What is lowered is lowered on the primary first, in place.
        let lowered = facts.pending.iter().any(|(key, change)| ordered_parameter(key) && change.is_lowered());
        if !alone && !lowered {
            return Err(otherwise("a standby takes its place first"));
        }
        return Ok(away(case, &seen, name, Pause::Patroni(RESTART_PAUSE_MS)));
    }
    if lowered_before_primary(facts, primary) {
        return Err(otherwise("a setting is lowered on the primary first"));
    }
    // Where no other standby takes the place of the synchronous one, writes wait for it.
    let only = seen.synchronous().contains(name) && cluster.nodes.len() == 2;
    let pause = if only { Pause::Patroni(RESTART_PAUSE_MS) } else { Pause::None };
    Ok(away(case, &seen, name, pause))
}

fn stop(case: &Case<'_>, machine: &Name) -> Result<Cost, Refusal> {
    on(case, machine)?;
    if matches!(case.observed.ledger.etcd.mode, Mode::Recovering(_) | Mode::Restoring(_)) {
        return Ok(Cost { pause: Pause::NotServing, ..case.unharmed });
    }
    if case.desired.node(machine).is_some() {
        return Err(otherwise("the file has a node there"));
    }
    let started = |cluster: &&Postgres| case.observed.ledger.of_postgres(&cluster.name).started.contains_key(machine);
    let Some(cluster) = case.desired.postgres.iter().find(started) else {
        return Err(otherwise("it is a node of no PostgreSQL cluster of the file"));
    };
    let seen = settled(case, cluster, Some(machine.as_str()))?;
    if seen.primary().is_none_or(|primary| primary == machine.as_str()) {
        return Err(otherwise("it is the primary: a standby takes its place first"));
    }
    // Another one takes its place among the synchronous standbys.
    let others = cluster.nodes.iter().filter(|node| Some(node.patroni_name.as_str()) != seen.primary());
    let streaming = others.filter(|node| seen.node(&node.patroni_name).is_some_and(|facts| facts.streaming)).count();
    if streaming < cluster.synchronous_standbys() as usize {
        return Err(otherwise("too few standbys would be left"));
    }
    Ok(away(case, &seen, machine.as_str(), Pause::None))
}

fn switchover(case: &Case<'_>, cluster: &Name, from: &Name, to: &Name) -> Result<Cost, Refusal> {
    let cluster = named(case, cluster)?;
    let known = case.observed.ledger.of_postgres(&cluster.name);
    if let Some(record) = &known.switchover {
        let (from, to) = (record.from.clone(), record.to.clone());
        return Err(PostgresWaiting::SwitchoverUndetermined { cluster: cluster.name.clone(), from, to }.into());
    }
    let seen = settled(case, cluster, None)?;
    knows_the_settings(cluster, case.observed, &seen)?;
    if seen.primary() != Some(patroni_name(cluster, from)) {
        return Err(Refusal::Otherwise(format!("{from} is not the primary")));
    }
    let candidate = cluster.node(to).ok_or_else(|| otherwise("the file has no such node"))?;
    if !seen.candidates().contains(candidate.patroni_name.as_str()) {
        let is_not = match seen.keys().mode() {
            Some(SyncMode::Off) => "does not stream",
            Some(_) | None => "is not a synchronous standby",
        };
        return Err(Refusal::Otherwise(format!("{to} {is_not}")));
    }
    if candidate.tags.is_never_primary() {
        return Err(Refusal::Otherwise(format!("by its tags {to} is never the primary")));
    }
    if !is_fronted(case.desired, cluster, case.observed, to) {
        return Err(Refusal::Otherwise(format!("a balancer would not find {to}: it is configured with it first")));
    }
    Ok(away(case, &seen, patroni_name(cluster, from), Pause::Patroni(SWITCHOVER_PAUSE_MS)))
}

fn set_patroni(case: &Case<'_>, cluster: &Name, set: &BTreeMap<String, Option<String>>) -> Result<Cost, Refusal> {
    let cluster = named(case, cluster)?;
    let seen = settled(case, cluster, None)?;
    for (key, value) in set {
        let wanted = cluster.settings.get(key);
        if wanted.is_some() && value.as_ref() != wanted {
            return Err(Refusal::Otherwise(format!("{key} would not be what the file says")));
        }
        if wanted.is_none() && (value.is_some() || !key.starts_with(PARAMETERS)) {
            return Err(Refusal::Otherwise(format!("{key} is not in the file")));
        }
    }
    let ordered = set.keys().filter_map(|key| key.strip_prefix(PARAMETERS));
    if ordered.into_iter().any(ordered_parameter) && pending(cluster, &seen) {
        return Err(otherwise("a setting waits for a restart: it comes first"));
    }
    Ok(case.unharmed)
}

fn pending(cluster: &Postgres, seen: &PostgresView<'_>) -> bool {
    cluster.nodes.iter().any(|node| seen.node(&node.patroni_name).is_some_and(|facts| facts.pending_restart))
}
