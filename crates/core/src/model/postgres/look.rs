//! Simulated nodes and keys → what their agents and etcd would show of them; and back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::super::{MachineModel, World};
use super::contact::Reachable;
use super::keys::{self, KeysModel};
use super::{Known, PatroniProcess, PostgresModel, Server, Work, describe};
use crate::desired::{Postgres, Stack};
use crate::observed::{
    Agent, ClusterId, Delivery, EtcdLogins, Fact, ListedMember, NodeFacts, NodeRole, NodeState, Observed, PatroniKeys,
    PendingSetting, PgData, PostgresObserved, PostgresOnMachine, Service, ServiceState, View,
};
use crate::spec::{Name, PostgresVersion};

impl World {
    /// What the agent of this machine reports of PostgreSQL; nothing where the stack has none.
    pub(in crate::model) fn observe_node(
        &self,
        desired: &Stack,
        name: &Name,
        machine: &MachineModel,
    ) -> Option<PostgresOnMachine> {
        let node = &machine.postgres;
        if desired.postgres.is_empty() && node.node.is_none() {
            return None;
        }
        let wanted = desired.node(name).map(|(cluster, _)| cluster.version);
        let version = wanted.or(node.node.as_ref().map(|node| node.version));
        let process = node.process.as_ref();
        let running = node.service == ServiceState::Running;
        Some(PostgresOnMachine {
            patroni: node.patroni.iter().map(|version| (*version, String::new())).collect(),
            running_patroni: process.map(|process| process.version),
            installed: version.map(|version| with_minor(version, node.minor)),
            written: node.written.clone(),
            taken_up: process.map(|process| process.taken_up.clone()),
            started_with: process.map(|process| process.started_with.clone()).unwrap_or_default(),
            trust: node.trust.clone(),
            secrets: Delivery::Current,
            other_secrets: false,
            certificates: node.certificates.clone(),
            presented: process.map(|process| process.presented.clone()).unwrap_or_default(),
            service: Service {
                state: node.service,
                pid: running.then_some(1),
                since: None,
                restarts: node.restarts,
                last_exit: (node.restarts > 0).then(|| "signal 9".to_owned()),
            },
            data: node.data.clone(),
            had_data: node.had_data,
            ports_taken: machine.ports_taken.clone(),
            node: facts(node, version, self.now),
        })
    }

    /// Patroni's keys, and attempts of every node to log in to every voter with its own file.
    pub(in crate::model) fn observe_postgres(&self, desired: &Stack) -> BTreeMap<Name, PostgresObserved> {
        if desired.postgres.is_empty() {
            return BTreeMap::new();
        }
        let reachable = Reachable::of(self);
        let one = |cluster: &Postgres| PostgresObserved {
            keys: self.observe_keys(desired, &reachable, &cluster.name),
            logins: self.log_in_everywhere(desired, &reachable, &cluster.name),
            catalog: self.observe_catalog(cluster),
        };
        desired.postgres.iter().map(|cluster| (cluster.name.clone(), one(cluster))).collect()
    }

    fn observe_keys(&self, desired: &Stack, reachable: &Reachable, cluster: &Name) -> Fact<PatroniKeys> {
        let at = self.now;
        if self.agreed.is_empty() {
            return Fact::Absent { at };
        }
        let received = |id: &&ClusterId| {
            self.machines.values().any(|m| m.cluster() == Some(**id) && m.answers() && self.receives_us(desired, m))
        };
        match reachable.leaders.keys().find(received).and_then(|id| self.agreed.get(id)) {
            Some(agreed) => {
                let keys = agreed.patroni.clusters.get(cluster).map(KeysModel::read);
                Fact::Seen { value: keys.unwrap_or_default(), at }
            }
            None => Fact::Unreachable { error: "no leader".to_owned(), since: at },
        }
    }

    fn log_in_everywhere(&self, desired: &Stack, reachable: &Reachable, cluster: &Name) -> BTreeMap<Name, EtcdLogins> {
        let quorate = reachable.leaders.keys().next().or_else(|| self.agreed.keys().next());
        let listed = quorate.and_then(|id| self.agreed.get(id)).into_iter().flat_map(|agreed| &agreed.members);
        let voter = |member: &ListedMember| self.ledger.etcd.name_of(member).filter(|_| !member.learner);
        let voters: BTreeSet<Name> = listed.filter_map(voter).collect();
        let nodes = desired.postgres(cluster).into_iter().flat_map(|cluster| &cluster.nodes).map(|node| &node.name);
        // Those that leave the file are asked for as long as Patroni may run there.
        let started = self.ledger.postgres.get(cluster).into_iter().flat_map(|known| known.started.keys());
        let one = |name: &Name| {
            let asked = |machine: &&MachineModel| machine.exists && machine.agent_up && machine.claimed;
            let machine = self.machines.get(name).filter(asked)?;
            let user = machine.postgres.written.as_ref()?.user;
            let log_in = |member: &Name| (member.clone(), reachable.log_in_to(self, machine, user, member));
            Some((name.clone(), EtcdLogins { at: self.now, user, members: voters.iter().map(log_in).collect() }))
        };
        nodes.chain(started).filter_map(one).collect()
    }

    /// The nodes and keys that an observation shows. A node whose Patroni answers is connected with a member that takes
    /// requests, as far as that is known.
    pub(in crate::model) fn adopt_postgres(&mut self, desired: &Stack, observed: &Observed) {
        let now = self.now;
        for (name, report) in observed.reports().filter(|_| !desired.postgres.is_empty()) {
            if let Some(version) = report.etcd.running_version {
                self.note_closed(desired, name, version, None);
            }
        }
        for (cluster, seen) in &observed.postgres {
            if let Some(Ok(catalog)) = &seen.catalog {
                self.postgres.entry(cluster.clone()).or_default().catalog = catalog.clone();
            }
            if let Some(keys) = seen.keys.seen() {
                let quorate = self.agreed.keys().copied().find(|id| self.has_quorum(*id));
                let agreed = quorate.and_then(|id| self.agreed.get_mut(&id));
                if let Some(agreed) = agreed {
                    agreed.patroni.clusters.insert(cluster.clone(), KeysModel::of(keys, now));
                }
            }
        }
        for id in self.agreed.keys().copied().collect::<Vec<_>>() {
            let lessor = self.leader(id);
            self.agreed.get_mut(&id).into_iter().for_each(|agreed| agreed.patroni.lessor = lessor);
        }
        let member = View::of(observed).healthy.iter().next().map(|name| (*name).clone());
        for (cluster, node) in desired.nodes() {
            let Some(Agent::Claimed(report)) = observed.machines.get(&node.name).and_then(|m| m.agent.seen()) else {
                continue;
            };
            let Some(seen) = &report.postgres else { continue };
            let keys = observed.postgres.get(&cluster.name).and_then(|seen| seen.keys.seen());
            let model = PostgresModel::of(desired, &node.name, seen, keys, member.as_ref(), now);
            if let Some(machine) = self.machines.get_mut(&node.name) {
                machine.postgres = model;
            }
        }
        for cluster in &desired.postgres {
            let primary = self.nodes_of(&cluster.name).find(|(_, machine)| machine.postgres.is_primary());
            let position = primary.and_then(|(_, machine)| machine.postgres.position());
            if let Some((timeline, acknowledged)) = position {
                let truth = self.postgres.entry(cluster.name.clone()).or_default();
                (truth.timeline, truth.acknowledged) = (timeline, acknowledged);
            }
        }
    }
}

/// A version on a disk, or that runs, has a minor version.
fn with_minor(version: PostgresVersion, minor: u32) -> PostgresVersion {
    PostgresVersion { minor: version.minor.or(Some(minor)), ..version }
}

/// The settings that wait for a restart of PostgreSQL.
fn pending(node: &PostgresModel) -> BTreeMap<String, PendingSetting> {
    let Some(server) = &node.server else { return BTreeMap::new() };
    let wanted = keys::parameters(&node.settings());
    let change = |name: &'static str| {
        let (from, to) = (keys::value(&server.parameters, name), keys::value(&wanted, name));
        (from != to).then(|| (name.to_owned(), PendingSetting { from, to }))
    };
    keys::names().filter_map(change).collect()
}

/// What a node's Patroni answers.
fn facts(node: &PostgresModel, version: Option<PostgresVersion>, now: Timestamp) -> Result<NodeFacts, String> {
    let (Some(process), Some(of)) = (&node.process, &node.node) else { return Err("connection refused".to_owned()) };
    if !node.answers() {
        return Err(if process.logged_in { "timed out" } else { "connection refused" }.to_owned());
    }
    let position = node.position();
    let up = node.server.as_ref().filter(|server| server.is_up());
    let state = match (process.work, &node.server) {
        (Some((Work::Copying, _)), _) => NodeState::CreatingReplica,
        (Some((Work::Rewinding, _)), _) | (None, None) => NodeState::Stopped,
        (None, Some(server)) if server.is_up() => NodeState::Running,
        (None, Some(_)) => NodeState::Starting,
    };
    let role = match &node.server {
        Some(server) => server.role,
        None if node.data == PgData::Empty => NodeRole::Uninitialized,
        None => NodeRole::Replica,
    };
    Ok(NodeFacts {
        name: of.name.clone(),
        role,
        state,
        system: node.system(),
        timeline: position.map(|(timeline, _)| timeline).filter(|_| up.is_some()),
        position: position.map(|(_, position)| position).filter(|_| up.is_some()),
        streaming: node.streams(),
        paused: keys::is_paused(&process.known.settings),
        failsafe: node.is_in_failsafe(now),
        pending_restart: node.pending_restart(),
        pending: pending(node),
        dcs_seen: Timestamp::from_second(process.dcs_seen.as_second()).unwrap_or(process.dcs_seen),
        patroni: process.version,
        server: version.zip(up).map(|(version, server)| with_minor(version, server.minor)),
    })
}

/// The parameters that PostgreSQL runs with: those of the settings, but for what waits for a restart.
fn running(wanted: &keys::Parameters, facts: &NodeFacts) -> keys::Parameters {
    // Which ones wait may be unknown.
    if facts.pending_restart && facts.pending.is_empty() {
        return keys::Parameters::new();
    }
    let mut parameters = wanted.clone();
    for (name, change) in facts.pending.iter().filter(|(name, _)| keys::names().any(|known| known == name.as_str())) {
        parameters.insert(name.clone(), change.from.clone());
    }
    parameters
}

impl PostgresModel {
    /// What an observation shows.
    fn of(
        desired: &Stack,
        machine: &Name,
        seen: &PostgresOnMachine,
        keys: Option<&PatroniKeys>,
        member: Option<&Name>,
        now: Timestamp,
    ) -> Self {
        let node = describe(desired, machine).ok().filter(|_| seen.written.is_some());
        let known = keys.map(|keys| KeysModel::of(keys, now)).unwrap_or_default();
        let known = Known { settings: Arc::clone(&known.settings), failsafe: known.failsafe, leader: known.leader };
        let waits_for = u32::from(keys::is_strict(&known.settings));
        let answer = seen.node.as_ref().ok();
        let parameters = keys::parameters(&known.settings);
        let server = answer.filter(|facts| facts.state != NodeState::Stopped && facts.timeline.is_some());
        let server = server.map(|facts| Server {
            starting: u32::from(facts.state != NodeState::Running),
            streaming: facts.streaming,
            parameters: running(&parameters, facts),
            role: facts.role,
            minor: facts.server.and_then(|version| version.minor).unwrap_or_default(),
        });
        let data = match (&seen.data, answer.and_then(|facts| Some((facts.system?, facts.timeline?, facts.position?))))
        {
            (
                PgData::Present { .. } | PgData::Empty | PgData::Unreadable { .. },
                Some((system, timeline, position)),
            ) => PgData::Present { system, timeline, position },
            (data, None) => data.clone(),
        };
        let work = answer.and_then(|facts| match facts.state {
            NodeState::CreatingReplica => Some((Work::Copying, 1)),
            NodeState::Running
            | NodeState::Starting
            | NodeState::Stopped
            | NodeState::Stopping
            | NodeState::Restarting
            | NodeState::Initializing
            | NodeState::Crashed
            | NodeState::StartFailed
            | NodeState::Other(_) => None,
        });
        let runs = seen.service.state == ServiceState::Running;
        let process = seen.taken_up.clone().or(seen.written.clone()).filter(|_| runs).map(|taken_up| PatroniProcess {
            version: seen.running_patroni.unwrap_or_default(),
            started_with: seen.started_with.clone(),
            cached: seen.started_with.clone(),
            cached_at: now,
            connection: member.cloned().filter(|_| answer.is_some()),
            logged_in: answer.is_some(),
            dcs_seen: answer.map_or(Timestamp::UNIX_EPOCH, |facts| facts.dcs_seen),
            written_at: now,
            known,
            failsafe: false,
            told_at: answer.filter(|facts| facts.failsafe).map(|_| now),
            work,
            taken_up,
            presented: seen.presented.clone(),
        });
        Self {
            node,
            patroni: seen.patroni.keys().copied().collect(),
            written: seen.written.clone(),
            trust: seen.trust.clone(),
            certificates: seen.certificates.clone(),
            data,
            had_data: seen.had_data,
            service: seen.service.state,
            last_version: seen.running_patroni,
            restarts: seen.service.restarts,
            process,
            server,
            synchronous: keys.map(|keys| keys.sync.standbys.clone()).unwrap_or_default(),
            waits_for,
            minor: seen.installed.and_then(|version| version.minor).unwrap_or_default(),
            ..Self::default()
        }
    }
}
