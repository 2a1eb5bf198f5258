//! PostgreSQL clusters of the file, their nodes and what Patroni keeps in etcd → nodes to equip, make, start and change.
//!
//! Patroni runs PostgreSQL, elects the primary and copies data. raftsman gives it what it needs of etcd, starts it, and
//! changes nodes in an order in which every acknowledged commit stays on as many of them as the file says.

mod catalog;
mod certificates;
mod logins;
mod roll;
mod users;

use super::etcd::CRASHES;
use super::report::{Because, Report};
use super::safety::{Case, Refusal, interlock};
use super::situation::postgres::{
    accepted_everywhere, furthest, has_no_last_copy, has_user, is_certified, is_rolled_back, knows_the_settings,
    machines as machines_of, node, stands, strong, system,
};
use super::{Draft, PostgresWaiting, Reason, Step, Waiting, agents, machines, members};
use crate::action::{Company, PgStart, PostgresAction};
use crate::desired::{Node, Postgres};
use crate::observed::{
    NodeRole, Observed, PgData, PostgresOnMachine, PostgresView, Service, ServiceState, TrustDomain,
};
use crate::spec::Name;

pub(super) use catalog::{change_node_passwords, manage as manage_catalog};
pub use logins::logins_to_try;
pub(super) use roll::{roll, set, switched_over};
pub(super) use users::{discard_users, make_users};

/// Brings the machines of nodes to where Patroni can run. What is waited for there is returned: a node that does not come
/// up delays no repair of etcd.
pub(super) fn prepare(draft: &mut Draft<'_>) -> Vec<Waiting> {
    let desired = draft.desired;
    certificates::authorities(draft);
    let mut waiting = Vec::new();
    for cluster in &desired.postgres {
        match other_major(cluster, draft.observed) {
            // Its nodes go on as they are: programs of another major version cannot read their data.
            Some(runs) => {
                let (cluster, wanted) = (cluster.name.clone(), cluster.version.major);
                waiting.push(PostgresWaiting::MajorVersion { cluster, runs, wanted }.into());
            }
            None => waiting.extend(cluster.nodes.iter().filter_map(|node| prepare_one(draft, cluster, node))),
        }
    }
    waiting
}

/// The major version that a cluster with data has, where the file has another.
fn other_major(cluster: &Postgres, observed: &Observed) -> Option<u32> {
    system(cluster, observed)?;
    let majors = cluster.nodes.iter().filter_map(|node| self::node(observed, &node.name)?.installed);
    majors.map(|version| version.major).find(|major| *major != cluster.version.major)
}

fn prepare_one(draft: &mut Draft<'_>, cluster: &Postgres, node: &Node) -> Option<Waiting> {
    let name = &node.name;
    // Its certificates, and what other nodes know of it, have its address.
    let report = match machines::equipped(draft, name, node.address, false) {
        Ok(report) => report,
        Err(waiting) => return waiting,
    };
    if agents::comes_first(draft, report) {
        return None;
    }
    let Some(seen) = &report.postgres else {
        return Some(PostgresWaiting::NodeUnknown { machine: name.clone() }.into());
    };
    if !seen.patroni.contains_key(&cluster.patroni) {
        let action = PostgresAction::InstallPatroni { machine: name.clone(), version: cluster.patroni };
        draft.steps.push(Step::new(action, Reason::Missing));
    }
    certificates::leaves(draft, cluster, node, seen);
    configure(draft, cluster, node, seen);
    // Where its programs are is said in Patroni's file.
    if seen.written.is_some() && seen.installed.is_none() {
        let package = cluster.package()?;
        return Some(Waiting::PackageMissing { machine: name.clone(), package });
    }
    None
}

/// Has Patroni's file written: which user it logs in to etcd as, the members of etcd, the CAs that it checks them by.
fn configure(draft: &mut Draft<'_>, cluster: &Postgres, node: &Node, seen: &PostgresOnMachine) {
    let ledger = &draft.observed.ledger;
    let user = ledger.of_postgres(&cluster.name).user;
    // Patroni that starts by itself takes the file up: what is in it works already.
    if !has_user(&draft.view, cluster, user) {
        return;
    }
    let Some(trust) = ledger.etcd.trust(TrustDomain::Clients).map(|trust| trust.digest()) else { return };
    let hosts = draft.desired.etcd_hosts(ledger);
    let digest = cluster.patroni_file(node, &hosts, user).digest;
    let written = seen.written.as_ref().is_some_and(|file| file.digest == digest);
    if written && seen.trust.as_ref() == Some(&trust) && seen.secrets.is_current() {
        return;
    }
    let reason = if seen.written.is_none() { Reason::Missing } else { Reason::Changed };
    let action = PostgresAction::ConfigurePatroni { machine: node.name.clone(), user, hosts, digest, trust };
    draft.steps.push(Step::new(action, reason));
}

/// Starts nodes: at first one that makes the cluster, then those that copy its data; later each that does not run.
pub(super) fn run(draft: &mut Draft<'_>) -> Report {
    let desired = draft.desired;
    for cluster in &desired.postgres {
        let Some(seen) = PostgresView::seen(cluster, draft.observed) else {
            let error = draft.observed.postgres.get(&cluster.name).and_then(|seen| seen.keys.error());
            let error = error.unwrap_or("they were not read").to_owned();
            draft.wait(PostgresWaiting::KeysUnknown { cluster: cluster.name.clone(), error }.into());
            continue;
        };
        let ready: Vec<(&Node, &PostgresOnMachine)> = cluster
            .nodes
            .iter()
            .filter_map(|node| Some((node, self::node(draft.observed, &node.name)?)))
            .filter(|(node, on)| {
                let equipped =
                    on.written.is_some() && on.installed.is_some() && on.patroni.contains_key(&cluster.patroni);
                let certified = is_certified(cluster, draft.observed, on, draft.now);
                equipped && certified && !draft.has_step_for(&node.name)
            })
            .collect();
        let mut stopped = Vec::new();
        for (node, on) in ready {
            match on.service.state {
                ServiceState::Stopped => stopped.push((node, on)),
                ServiceState::Backoff => draft.wait(crashing(&node.name, &on.service).into()),
                ServiceState::Running => {
                    if let Err(error) = &on.node {
                        let (machine, error) = (node.name.clone(), error.clone());
                        draft.wait(PostgresWaiting::PatroniStarting { machine, error }.into());
                    }
                }
            }
        }
        if !foreign(draft, cluster, &stopped) {
            start(draft, cluster, &seen, stopped);
        }
    }
    Report::Looked
}

fn crashing(machine: &Name, service: &Service) -> PostgresWaiting {
    let last_exit = service.last_exit.clone().unwrap_or_else(|| "for an unknown reason".to_owned());
    let (machine, restarts) = (machine.clone(), service.restarts);
    match restarts >= CRASHES {
        true => PostgresWaiting::PatroniCrashes { machine, restarts, last_exit },
        false => PostgresWaiting::PatroniStarting { machine, error: last_exit },
    }
}

/// Whether a node has data that is not this cluster's: nothing of the cluster is started then.
fn foreign(draft: &mut Draft<'_>, cluster: &Postgres, stopped: &[(&Node, &PostgresOnMachine)]) -> bool {
    let expected = system(cluster, draft.observed);
    let mut found_any = false;
    for (node, on) in stopped {
        let machine = node.name.clone();
        let waiting = match &on.data {
            PgData::Empty => continue,
            PgData::Present { system, .. } if Some(*system) == expected => continue,
            // Made by this node, and not in etcd yet when it was stopped.
            PgData::Present { .. } if expected.is_none() && was_started(draft, cluster, &node.name) => continue,
            PgData::Present { system, .. } => PostgresWaiting::ForeignPgData { machine, found: *system, expected },
            PgData::Unreadable { problem } => PostgresWaiting::PgDataUnreadable { machine, problem: problem.clone() },
        };
        draft.wait(waiting.into());
        found_any = true;
    }
    found_any
}

fn was_started(draft: &Draft<'_>, cluster: &Postgres, machine: &Name) -> bool {
    draft.observed.ledger.of_postgres(&cluster.name).started.contains_key(machine)
}

fn start(
    draft: &mut Draft<'_>,
    cluster: &Postgres,
    seen: &PostgresView<'_>,
    stopped: Vec<(&Node, &PostgresOnMachine)>,
) {
    let observed = draft.observed;
    let Some(system) = system(cluster, observed) else {
        return bootstrap(draft, cluster, seen, &stopped);
    };
    let rolled_back = is_rolled_back(cluster, observed) && seen.primary().is_none();
    let first = furthest(cluster, observed).filter(|_| rolled_back);
    // Those that leave the file still have it, until others have copied it.
    let empty = |name: &Name| node(observed, name).is_some_and(|on| on.data == PgData::Empty);
    let all_lost = || machines_of(cluster, observed).into_iter().all(empty);
    if all_lost() {
        draft.wait(PostgresWaiting::AllPgDataLost { cluster: cluster.name.clone() }.into());
        return;
    }
    for (node, on) in stopped {
        let data = match &on.data {
            PgData::Present { .. } => PgStart::Own(system),
            PgData::Empty | PgData::Unreadable { .. } => PgStart::Join(system),
        };
        // There is nothing to copy before a primary is there.
        if matches!(data, PgStart::Join(_)) && seen.primary().is_none() {
            continue;
        }
        // After a rebuild of etcd the node with the most data leads first; where none is known, the judge says why.
        if rolled_back && first.is_some_and(|first| *first != node.name) {
            continue;
        }
        let reason = if matches!(data, PgStart::Own(_)) { Reason::NotRunning } else { Reason::Missing };
        draft.steps.push(Step::new(PostgresAction::StartPatroni { machine: node.name.clone(), data }, reason));
        if rolled_back {
            break;
        }
    }
}

/// One node makes the cluster, and only where none can have made it.
fn bootstrap(
    draft: &mut Draft<'_>,
    cluster: &Postgres,
    seen: &PostgresView<'_>,
    stopped: &[(&Node, &PostgresOnMachine)],
) {
    let observed = draft.observed;
    let started = &observed.ledger.of_postgres(&cluster.name).started;
    // The one that was chosen before is not replaced by another: its data may be half made.
    let chosen = |node: &&Node| started.is_empty() || started.contains_key(&node.name);
    let may_lead = |node: &&Node| !node.tags.is_never_primary();
    let first = cluster.nodes.iter().filter(may_lead).find(chosen);
    if first.is_some_and(|first| runs(observed, first)) {
        return beside(draft, cluster, stopped);
    }
    let Some((node, on)) = stopped.iter().find(|(node, _)| Some(*node) == first) else { return };
    if seen.keys().leader.is_some() {
        return;
    }
    // Members accept Patroni once auth is on: their own steps come first.
    if let Err(waiting) = accepted_everywhere(cluster, observed, &draft.view, &node.name) {
        draft.wait(waiting.into());
        return;
    }
    let data = match &on.data {
        PgData::Present { system, .. } => PgStart::Own(*system),
        PgData::Empty | PgData::Unreadable { .. } => PgStart::Bootstrap,
    };
    let machine = node.name.clone();
    draft.steps.push(Step::new(PostgresAction::StartPatroni { machine, data }, Reason::Missing));
}

fn runs(observed: &Observed, node: &Node) -> bool {
    self::node(observed, &node.name).is_some_and(|on| on.service.state == ServiceState::Running)
}

/// While the first node makes the cluster, the others start: they copy its data as soon as there is some.
fn beside(draft: &mut Draft<'_>, cluster: &Postgres, stopped: &[(&Node, &PostgresOnMachine)]) {
    for (node, _) in stopped.iter().filter(|(_, on)| on.data == PgData::Empty) {
        // A member that is away, or that is closed to clients still, is there for them as soon as there is data.
        if accepted_everywhere(cluster, draft.observed, &draft.view, &node.name).is_ok() {
            let machine = node.name.clone();
            let action = PostgresAction::StartPatroni { machine, data: PgStart::Beside };
            draft.steps.push(Step::new(action, Reason::Missing));
        }
    }
}

/// Has running nodes take up what is written, one at a time, the primary last.
pub(super) fn take_up(draft: &mut Draft<'_>) -> Report {
    let desired = draft.desired;
    // etcd's own repair comes first, and does not wait for this.
    if !strong(&draft.view) {
        return Report::Left(Because::Awaited);
    }
    for cluster in &desired.postgres {
        let Some(seen) = PostgresView::seen(cluster, draft.observed) else { continue };
        let primary = seen.primary();
        let late = |node: &&Node| {
            let on = self::node(draft.observed, &node.name);
            on.is_some_and(|on| on.service.state == ServiceState::Running && on.node.is_ok() && on.is_outdated())
        };
        let mut late: Vec<&Node> = cluster.nodes.iter().filter(late).collect();
        // One that receives nothing may need what is written to receive something.
        let receives = |node: &Node| seen.node(&node.patroni_name).is_some_and(|facts| facts.streaming);
        late.sort_by_key(|node| (primary == Some(node.patroni_name.as_str()), receives(node)));
        if let Some(node) = late.first() {
            let action = PostgresAction::ReloadPatroni { machine: node.name.clone() };
            let renewed = self::node(draft.observed, &node.name).is_some_and(PostgresOnMachine::presents_others);
            draft.steps.push(Step::new(action, if renewed { Reason::Renewed } else { Reason::Changed }));
            return Report::Looked;
        }
    }
    Report::Looked
}

/// Takes back the steps on etcd that have to wait until PostgreSQL is as it should be.
pub(super) fn hold(draft: &mut Draft<'_>) -> Report {
    let (kept, held) = {
        let case = Case::of(draft.desired, draft.observed, &draft.view);
        let mut held = Vec::new();
        let mut kept = draft.steps.clone();
        kept.retain(|step| match interlock::check(&case, &[&step.action], &step.action) {
            Err(Refusal::Held(waiting)) if matches!(step.action.class().company, Company::Alone | Company::Alike) => {
                held.push(waiting);
                false
            }
            Ok(()) | Err(_) => true,
        });
        (kept, held)
    };
    draft.steps = kept;
    draft.waiting.extend(held.into_iter().map(Waiting::from));
    Report::Looked
}

/// Stops the nodes of all clusters before the etcd beneath is built anew.
pub(super) fn stop_all(draft: &mut Draft<'_>) -> Report {
    let (desired, observed) = (draft.desired, draft.observed);
    for cluster in desired.postgres.iter().filter(|cluster| stands(cluster, observed)) {
        // The primary last: no standby takes its place meanwhile.
        let primary = PostgresView::seen(cluster, observed).and_then(|seen| seen.primary());
        let mut machines: Vec<&Name> = machines_of(cluster, observed).into_iter().collect();
        machines.sort_by_key(|machine| {
            let leads = node(observed, machine).and_then(|on| on.node.as_ref().ok());
            let leads = leads.is_some_and(|facts| facts.role == NodeRole::Primary);
            leads || primary == Some(machine.as_str())
        });
        for machine in machines {
            match node(observed, machine) {
                Some(on) if on.service.state == ServiceState::Stopped => {}
                Some(_) => {
                    let action = PostgresAction::StopPatroni { machine: machine.clone() };
                    let reason = Reason::EtcdRebuilt;
                    draft.steps.push(Step::new(action, reason));
                    return Report::Looked;
                }
                None if observed.ledger.of_postgres(&cluster.name).started.contains_key(machine) => {
                    let error = "whether PostgreSQL runs there is not known".to_owned();
                    draft.wait(PostgresWaiting::PatroniStarting { machine: machine.clone(), error }.into());
                }
                None => {}
            }
        }
    }
    Report::Looked
}

/// Removes nodes that the file does not have any more: a primary hands over, then Patroni is stopped, then the machine goes.
pub(super) fn retire(draft: &mut Draft<'_>) -> Report {
    let (desired, observed) = (draft.desired, draft.observed);
    for cluster in &desired.postgres {
        let known = observed.ledger.of_postgres(&cluster.name);
        let Some(seen) = PostgresView::seen(cluster, observed) else { return Report::Left(Because::Awaited) };
        // One that is gone stays in the ledger until the next run writes down what it sees: it holds up no other.
        let is_gone = |name: &Name| observed.machines.get(name).is_some_and(|seen| seen.machine.is_absent());
        let former = known.started.keys().filter(|name| cluster.node(name).is_none() && !is_gone(name));
        // The primary last: until the others are gone, one of them may be the only synchronous standby.
        let Some(machine) = former.min_by_key(|name| seen.primary() == Some(name.as_str())).cloned() else { continue };
        if seen.primary() == Some(machine.as_str()) {
            let step = switched_over(draft, cluster, &seen, &machine, Reason::NotInFile);
            return push(draft, cluster, step);
        }
        let step = match node(observed, &machine) {
            Some(on) if on.service.state != ServiceState::Stopped => {
                Some(Step::new(PostgresAction::StopPatroni { machine }, Reason::NotInFile))
            }
            Some(_) | None => match has_no_last_copy(desired, observed, &machine) {
                Ok(()) => members::discard(draft, &machine),
                Err(waiting) => {
                    draft.wait(waiting.into());
                    None
                }
            },
        };
        draft.steps.extend(step);
        return Report::Looked;
    }
    Report::Looked
}

/// Has the primary hand over, as an operator asked: the judge says whether it may.
pub(super) fn switch_over(draft: &mut Draft<'_>, cluster: &Postgres, to: Option<&Name>) {
    use crate::observed::Unsettled;
    let name = cluster.name.clone();
    let seen = match super::situation::postgres::seen(cluster, draft.observed) {
        Ok(seen) => seen,
        Err(waiting) => return draft.wait(waiting.into()),
    };
    let unsettled = |why| PostgresWaiting::PostgresUnsettled { cluster: name.clone(), why };
    let why = seen.settled(cluster.synchronous_standbys()).err();
    let Some(primary) = seen.primary() else {
        return draft.wait(unsettled(why.unwrap_or(Unsettled::NoPrimary)).into());
    };
    let from = cluster.node_in_patroni(primary).map(|node| node.name.clone()).or_else(|| Name::parse(primary).ok());
    let Some(from) = from else { return draft.wait(PostgresWaiting::NoCandidate { cluster: name }.into()) };
    if let Some(to) = to {
        let action = PostgresAction::Switchover { cluster: name, from, to: to.clone() };
        return draft.steps.push(Step::new(action, Reason::Asked));
    }
    match (switched_over(draft, cluster, &seen, &from, Reason::Asked), why) {
        (None, Some(why)) => draft.wait(unsettled(why).into()),
        (step, _) => drop(push(draft, cluster, step)),
    }
}

fn push(draft: &mut Draft<'_>, cluster: &Postgres, step: Option<Step>) -> Report {
    match step {
        Some(step) => draft.steps.push(step),
        None => draft.wait(PostgresWaiting::NoCandidate { cluster: cluster.name.clone() }.into()),
    }
    Report::Looked
}

/// Waits until every cluster is as it should be.
pub(super) fn settle(draft: &mut Draft<'_>) -> Report {
    let (desired, observed) = (draft.desired, draft.observed);
    for cluster in &desired.postgres {
        let Some(seen) = PostgresView::seen(cluster, observed) else { continue };
        if let Some(record) = &observed.ledger.of_postgres(&cluster.name).switchover {
            let (from, to) = (record.from.clone(), record.to.clone());
            let name = cluster.name.clone();
            draft.wait(PostgresWaiting::SwitchoverUndetermined { cluster: name, from, to }.into());
        } else if let Err(why) = seen.settled(cluster.synchronous_standbys()) {
            draft.wait(PostgresWaiting::PostgresUnsettled { cluster: cluster.name.clone(), why }.into());
        } else if let Err(waiting) = knows_the_settings(cluster, observed, &seen) {
            // What waits for a restart is not known yet.
            draft.wait(waiting.into());
        }
    }
    Report::Looked
}

impl From<PostgresWaiting> for Waiting {
    fn from(waiting: PostgresWaiting) -> Self {
        Self::Postgres(waiting)
    }
}
