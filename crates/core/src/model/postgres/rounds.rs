//! One round of every simulated Patroni → leases, demotions, promotions, what standbys receive, what is acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::World;
use super::super::effects::{hash, later};
use super::contact::{Contact, Failure, Reachable};
use super::keys::{self, KeysModel};
use super::{Known, PostgresModel, Server, Work};
use crate::observed::{ClusterId, NodeRole, PgData, Power, ServiceState, SystemId};
use crate::spec::Name;

/// Rounds that it takes to copy or rewind the data of a node.
const WORK: u32 = 2;

/// Patroni reads the list of etcd's members again after so many times its `ttl`.
const LIST_AGES: u64 = 10;

/// One round of one PostgreSQL cluster.
struct Round<'w> {
    world: &'w mut World,
    cluster: Name,
    /// The machines of its nodes, by their names among Patroni's.
    nodes: BTreeMap<String, Name>,
    /// What each of them could do at etcd.
    contacts: BTreeMap<String, Contact>,
    /// The etcd cluster that admits a node.
    etcd: Option<ClusterId>,
}

impl World {
    /// A connection ends with either of its processes.
    pub(in crate::model) fn drop_connections(&mut self) {
        let ended = |name: &Name| {
            !self.machines.get(name).is_some_and(|m| m.exists && m.process.state == ServiceState::Running)
        };
        let lost: Vec<Name> = self
            .machines
            .iter()
            .filter(|(_, m)| m.postgres.process.as_ref().and_then(|p| p.connection.as_ref()).is_some_and(ended))
            .map(|(name, _)| name.clone())
            .collect();
        for name in lost {
            let machine = self.machines.get_mut(&name);
            machine.and_then(|m| m.postgres.process.as_mut()).into_iter().for_each(|p| p.connection = None);
        }
    }

    /// The process of this member ends: every connection to it, too.
    pub(in crate::model) fn drop_connections_to(&mut self, member: &Name) {
        for process in self.machines.values_mut().filter_map(|machine| machine.postgres.process.as_mut()) {
            process.connection = process.connection.take().filter(|name| name != member);
        }
    }

    /// One round of Patroni on every node. Where there are any, the world's clock advances by it.
    pub(in crate::model) fn pass_time_of_postgres(&mut self) {
        let nodes = self.machines.values().filter(|m| m.exists).filter_map(|m| {
            let node = m.postgres.node.as_ref()?;
            Some((node.cluster.clone(), keys::seconds(&m.postgres.settings(), "loop_wait", 10)))
        });
        let rounds: BTreeMap<Name, u64> = nodes.collect();
        let Some(shortest) = rounds.values().copied().min() else { return };
        self.now = later(self.now, shortest * 1_000);
        let now = self.now;
        for machine in self.machines.values_mut().filter(|m| m.exists) {
            // On this computer a machine counts as stopped when its agent is gone, and what runs on it goes on.
            let starts = machine.agent_up && machine.power == Power::Running;
            let node = &mut machine.postgres;
            match node.service {
                ServiceState::Backoff if starts => {
                    let version = node.last_version.unwrap_or_default();
                    node.start(version, now);
                }
                ServiceState::Running => node.restarts = 0,
                ServiceState::Backoff | ServiceState::Stopped => {}
            }
            if let Some(server) = &mut node.server {
                server.starting = server.starting.saturating_sub(1);
            }
        }
        let reachable = Reachable::of(self);
        for (id, agreed) in &mut self.agreed {
            let leader = reachable.leaders.get(id).copied();
            if agreed.patroni.lessor != leader {
                agreed.patroni.clusters.values_mut().for_each(|keys| keys.renew(now));
                agreed.patroni.lessor = leader;
            }
        }
        for cluster in rounds.into_keys() {
            Round::begin(self, &reachable, cluster).run(&reachable);
        }
    }
}

impl<'w> Round<'w> {
    fn begin(world: &'w mut World, reachable: &Reachable, cluster: Name) -> Self {
        let mut nodes = BTreeMap::new();
        let mut contacts = BTreeMap::new();
        for (machine, model) in world.nodes_of(&cluster) {
            let Some(node) = model.postgres.of_cluster(&cluster) else { continue };
            nodes.insert(node.name.clone(), machine.clone());
            if let Some(process) = &model.postgres.process {
                contacts.insert(node.name.clone(), reachable.contact(world, model, process));
            }
        }
        let etcd = contacts.values().find_map(|contact| contact.writes.clone().ok());
        Self { world, cluster, nodes, contacts, etcd }
    }

    fn run(mut self, reachable: &Reachable) {
        self.read();
        self.keep_lease();
        for id in reachable.leaders.keys() {
            let now = self.world.now;
            if let Some(agreed) = self.world.agreed.get_mut(id) {
                agreed.patroni.clusters.get_mut(&self.cluster).into_iter().for_each(|keys| keys.expire(now));
            }
        }
        self.bootstrap();
        self.start_servers();
        self.elect();
        self.follow();
        self.name_synchronous();
        self.write();
    }

    fn node(&self, name: &str) -> Option<&PostgresModel> {
        self.nodes.get(name).and_then(|machine| self.world.machines.get(machine)).map(|machine| &machine.postgres)
    }

    fn node_mut(&mut self, name: &str) -> Option<&mut PostgresModel> {
        let machine = self.nodes.get(name)?;
        self.world.machines.get_mut(machine).map(|machine| &mut machine.postgres)
    }

    fn names(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }

    fn keys(&self) -> Option<&KeysModel> {
        self.world.agreed.get(&self.etcd?)?.patroni.clusters.get(&self.cluster)
    }

    fn keys_mut(&mut self) -> Option<&mut KeysModel> {
        let agreed = self.world.agreed.get_mut(&self.etcd?)?;
        Some(agreed.patroni.clusters.entry(self.cluster.clone()).or_default())
    }

    /// Whether requests of this node are admitted by the etcd cluster of this round.
    fn writes(&self, name: &str) -> bool {
        let contact = self.contacts.get(name);
        self.etcd.is_some() && contact.is_some_and(|contact| contact.writes.as_ref().ok().copied() == self.etcd)
    }

    /// Every Patroni reads its keys, by a request or out of its watch, and writes the key of its own node.
    fn read(&mut self) {
        let now = self.world.now;
        for name in self.names() {
            let Some(contact) = self.contacts.get(&name) else { continue };
            let (connection, anew, reads) = (contact.connection.clone(), contact.anew, contact.reads);
            let admitted = contact.writes.is_ok();
            let found = reads.and_then(|id| self.world.agreed.get(&id)).map(|agreed| {
                let keys = agreed.patroni.clusters.get(&self.cluster).cloned().unwrap_or_default();
                Known { settings: keys.settings, failsafe: keys.failsafe, leader: keys.leader }
            });
            let listed = reads.filter(|_| admitted).map(|id| Reachable::listed(self.world, id));
            let Some(node) = self.node_mut(&name) else { continue };
            let list_ages = LIST_AGES * keys::seconds(&node.settings(), "ttl", 30) * 1_000;
            let Some(process) = &mut node.process else { continue };
            process.connection = connection;
            if let Some(found) = found {
                process.known = found;
                process.dcs_seen = now;
            }
            if admitted {
                (process.logged_in, process.failsafe, process.written_at) = (true, false, now);
            }
            if let Some(listed) = listed.filter(|_| anew || later(process.cached_at, list_ages) <= now) {
                (process.cached, process.cached_at) = (listed, now);
            }
            if self.writes(&name)
                && let Some(keys) = self.keys_mut()
            {
                let end = World::lease_end(&keys.settings, now);
                keys.members.insert(name, end);
            }
        }
    }

    /// The node with the lease renews it, or is demoted where it cannot.
    fn keep_lease(&mut self) {
        let now = self.world.now;
        for name in self.names() {
            let Some(node) = self.node(&name) else { continue };
            let Some(process) = &node.process else { continue };
            let settings = node.settings();
            let (primary, written_at) =
                (node.server.as_ref().is_some_and(|s| s.role == NodeRole::Primary), process.written_at);
            let system = node.system();
            let failure = match self.contacts.get(&name).map(|contact| contact.writes.clone()) {
                Some(Err(failure)) => failure,
                Some(Ok(_)) if self.writes(&name) => {
                    let paused = keys::is_paused(&settings);
                    let Some(keys) = self.keys_mut() else { continue };
                    match &keys.leader {
                        // It has nothing to lead with: it gives the lease back.
                        Some(leader) if *leader == name && system.is_none() => keys.leader = None,
                        Some(leader) if *leader == name => keys.lead(&name, now),
                        // It has lost its lease, and no other node has it: it takes it back where the keys allow that.
                        None if primary
                            && may_lead(keys, &name)
                            && (keys.system.is_none() || keys.system == system) =>
                        {
                            keys.system = system;
                            keys.lead(&name, now);
                        }
                        Some(_) | None if primary && !paused => self.demote(&name),
                        Some(_) | None => {}
                    }
                    if let Some(keys) = self.keys_mut().filter(|keys| keys.leader.as_ref() == Some(&name)) {
                        keys.failsafe = keys.members.keys().cloned().collect();
                    }
                    continue;
                }
                Some(Ok(_)) | None => Failure::Unreached,
            };
            if !primary || keys::is_paused(&settings) {
                continue;
            }
            let retry = later(written_at, keys::seconds(&settings, "retry_timeout", 10) * 1_000);
            match failure {
                // 'failed to update leader lock': no other attempt is made.
                Failure::Denied(_) => self.demote(&name),
                Failure::Unreached if retry > now => {}
                Failure::Unreached => {
                    let holds = self.failsafe_holds(&name);
                    let told = self.node_mut(&name).and_then(|node| node.process.as_mut()).map(|process| {
                        process.failsafe = holds;
                        process.known.failsafe.clone()
                    });
                    if !holds {
                        self.demote(&name);
                        continue;
                    }
                    for node in told.into_iter().flatten() {
                        let process = self.node_mut(&node).and_then(|node| node.process.as_mut());
                        process.into_iter().for_each(|process| process.told_at = Some(now));
                    }
                }
            }
        }
    }

    /// Whether every other node agrees that this one stays the primary without etcd.
    fn failsafe_holds(&self, name: &str) -> bool {
        let Some(node) = self.node(name) else { return false };
        let Some(process) = &node.process else { return false };
        let agrees = |other: &String| {
            other == name || self.node(other).is_some_and(|other| other.answers() && !other.cut_from_nodes)
        };
        keys::has_failsafe(&node.settings())
            && !node.cut_from_nodes
            && process.known.failsafe.contains(name)
            && process.known.failsafe.iter().all(agrees)
    }

    fn demote(&mut self, name: &str) {
        self.world.postgres.entry(self.cluster.clone()).or_default().demotions += 1;
        if let Some(machine) = self.nodes.get(name).cloned() {
            self.world.demote(&machine);
        }
        if self.writes(name)
            && let Some(keys) = self.keys_mut().filter(|keys| keys.leader.as_deref() == Some(name))
        {
            keys.leader = None;
        }
    }

    /// Where the cluster has no data yet, the first node that etcd admits makes it.
    fn bootstrap(&mut self) {
        if self.etcd.is_none() || self.keys().is_some_and(|keys| keys.system.is_some()) {
            return;
        }
        let may = |node: &PostgresModel| {
            node.data == PgData::Empty && node.node.as_ref().is_some_and(|node| !node.tags.is_never_primary())
        };
        let empty = |name: &&String| self.writes(name) && self.node(name).is_some_and(may);
        let Some(first) = self.nodes.keys().find(empty).cloned() else { return };
        let now = self.world.now;
        self.world.made += 1;
        let system = SystemId(hash(&format!("{} {}", self.cluster, self.world.made)));
        let Some(node) = self.node_mut(&first) else { return };
        let settings = node.node.as_ref().map(|node| Arc::clone(&node.settings)).unwrap_or_default();
        node.data = PgData::Present { system, timeline: 1, position: 1 };
        node.had_data = true;
        node.server =
            Some(Server { starting: 0, ..Server::new(NodeRole::Primary, keys::parameters(&settings), node.minor) });
        (node.synchronous, node.waits_for) = (BTreeSet::new(), u32::from(keys::is_strict(&settings)));
        let known = Known { settings: Arc::clone(&settings), ..Known::default() };
        node.process.iter_mut().for_each(|process| process.known = known.clone());
        if let Some(keys) = self.keys_mut() {
            (keys.system, keys.settings) = (Some(system), settings);
            keys.lead(&first, now);
            keys.name_synchronous(Some(&first), BTreeSet::new(), 0);
        }
    }

    /// Patroni starts PostgreSQL where it does not run: as the primary only where the node has the lease.
    fn start_servers(&mut self) {
        let leader = self.keys().and_then(|keys| keys.leader.clone());
        let system = self.keys().and_then(|keys| keys.system);
        for name in self.names() {
            let Some(node) = self.node(&name) else { continue };
            let works = node.process.as_ref().is_none_or(|process| process.work.is_some() || !process.logged_in);
            let own = node.system().is_some() && (system.is_none() || node.system() == system);
            if works || node.server.is_some() || !own {
                continue;
            }
            let role = if leader.as_ref() == Some(&name) { NodeRole::Primary } else { NodeRole::Replica };
            let Some(machine) = self.nodes.get(&name) else { continue };
            let parameters = self.world.parameters_for(&self.cluster, machine, role);
            if let Some(node) = self.node_mut(&name) {
                node.server = Some(Server::new(role, parameters, node.minor));
            }
        }
    }

    /// A node that was demoted and still has the lease is promoted again.
    fn resume(&mut self) {
        let Some(leader) = self.keys().and_then(|keys| keys.leader.clone()).filter(|name| self.writes(name)) else {
            return;
        };
        let standby = |node: &PostgresModel| {
            node.server.as_ref().is_some_and(|server| server.role == NodeRole::Replica && server.is_up())
        };
        if self.node(&leader).is_some_and(standby)
            && let Some(machine) = self.nodes.get(&leader).cloned()
        {
            let (cluster, now) = (self.cluster.clone(), self.world.now);
            let promoted = self.world.promote(&cluster, &machine, now);
            debug_assert!(promoted.is_ok(), "{promoted:?}");
        }
    }

    /// Where no node has the lease, a standby that has every acknowledged commit, as far as the keys tell, takes it.
    fn elect(&mut self) {
        self.resume();
        let Some(keys) = self.keys().filter(|keys| keys.leader.is_none() && keys.system.is_some()) else { return };
        if keys::is_paused(&keys.settings) {
            return;
        }
        // Each node asks the others, too: where one answers that it is the primary, none is promoted.
        // One that stays the primary without etcd has told them so.
        let tells = |node: &PostgresModel| node.process.as_ref().is_some_and(|process| process.failsafe);
        let alive = |node: &PostgresModel| node.is_primary() && !node.cut_from_nodes && (node.answers() || tells(node));
        if self.nodes.keys().filter_map(|name| self.node(name)).any(alive) {
            return;
        }
        let quorum = keys::has_quorum_commit(&keys.settings);
        let eligible = |name: &&String| {
            let Some(node) = self.node(name) else { return false };
            let tags = node.node.as_ref().map(|node| node.tags).unwrap_or_default();
            self.writes(name)
                && node.answers()
                && node.server.as_ref().is_some_and(Server::is_up)
                && node.system() == keys.system
                && !tags.is_never_primary()
                && !node.is_in_failsafe(self.world.now)
                && may_lead(keys, name)
        };
        // Each node asks those that the keys name; one that cannot be asked has no vote.
        let votes = |name: &String| {
            let position = self.node(name).and_then(PostgresModel::position);
            let others = keys.sync.standbys.iter().filter(|other| *other != name);
            let behind = |other: &&String| {
                self.node(other).is_some_and(|n| n.answers() && !n.cut_from_nodes && n.position() <= position)
            };
            others.filter(behind).count()
        };
        let enough = |name: &&String| {
            !quorum
                || keys.sync.leader.is_none()
                || keys.sync.leader.as_ref() == Some(*name)
                || votes(name) >= keys.sync.quorum as usize
        };
        let candidates = self.nodes.keys().filter(eligible).filter(enough);
        let best = candidates.max_by_key(|name| {
            let node = self.node(name);
            let priority = node.and_then(|n| n.node.as_ref()).and_then(|n| n.tags.failover_priority);
            (node.and_then(PostgresModel::position), priority.unwrap_or(1))
        });
        let Some(machine) = best.and_then(|name| self.nodes.get(name)).cloned() else { return };
        let (cluster, now) = (self.cluster.clone(), self.world.now);
        let promoted = self.world.promote(&cluster, &machine, now);
        debug_assert!(promoted.is_ok(), "{promoted:?}");
    }

    /// The node that takes writes: the one with the lease, or, where etcd is lost, the one that goes on without.
    fn primary(&self) -> Option<String> {
        let leader = match self.keys() {
            Some(keys) => keys.leader.clone(),
            None => self.nodes.keys().find(|name| self.node(name).is_some_and(PostgresModel::is_primary)).cloned(),
        };
        leader.filter(|leader| self.node(leader).is_some_and(PostgresModel::is_primary))
    }

    /// Standbys receive what the primary wrote, copy its data, or take back what it never had.
    fn follow(&mut self) {
        let primary = self.primary();
        let leader = primary.as_ref().and_then(|name| self.node(name)).and_then(|node| {
            let (timeline, position) = node.position()?;
            let parameters = node.server.as_ref()?.parameters.clone();
            Some((node.system()?, timeline, position, parameters, node.cut_from_nodes))
        });
        let history = self.keys().map(|keys| keys.history.clone()).unwrap_or_default();
        for name in self.names().into_iter().filter(|name| Some(name) != primary.as_ref()) {
            let reads = self.contacts.get(&name).is_some_and(|contact| contact.reads.is_some());
            let Some(node) = self.node_mut(&name) else { continue };
            let Some((system, timeline, position, parameters, cut)) = &leader else {
                node.server.iter_mut().for_each(|server| server.streaming = false);
                continue;
            };
            let cut = *cut || node.cut_from_nodes;
            let streamed = node.streams();
            let runs = node.process.as_ref().is_some_and(|process| process.logged_in);
            if let Some((work, left)) = node.process.as_ref().and_then(|process| process.work) {
                let left = if cut { left } else { left - 1 };
                let work = (left > 0).then_some((work, left));
                node.process.iter_mut().for_each(|process| process.work = work);
                if work.is_none() {
                    // The base is older than what was written meanwhile: the rest is received once it streams.
                    let position = position.saturating_sub(1);
                    node.data = PgData::Present { system: *system, timeline: *timeline, position };
                    node.had_data = true;
                    let parameters = keys::at_least(keys::parameters(&node.settings()), parameters);
                    node.server = Some(Server::new(NodeRole::Replica, parameters, node.minor));
                }
                continue;
            }
            let begin = |node: &mut PostgresModel, work: Work| {
                if runs && reads && !cut {
                    node.server = None;
                    node.process.iter_mut().for_each(|process| process.work = Some((work, WORK)));
                }
            };
            let Some((of, received)) = node.position() else {
                if node.data == PgData::Empty {
                    begin(node, Work::Copying);
                }
                continue;
            };
            let Some(server) = node.server.as_mut().filter(|server| server.is_up()) else { continue };
            if server.role == NodeRole::Primary {
                // Its Patroni is gone, and it waits for standbys that follow another.
                server.streaming = false;
                continue;
            }
            let fork = history.iter().filter(|end| end.timeline >= of).map(|end| end.position).min();
            let ancestor = match of.cmp(timeline) {
                std::cmp::Ordering::Equal => received <= *position,
                std::cmp::Ordering::Less => fork.is_some_and(|fork| received <= fork),
                std::cmp::Ordering::Greater => false,
            };
            let follows = keys::follows(&server.parameters, parameters);
            server.streaming = ancestor && !cut && follows && (runs || streamed);
            if server.streaming {
                // What was written in this round is still on its way.
                let position = if of == *timeline { received } else { position.saturating_sub(1) };
                node.set_position(*timeline, position.max(received));
            } else if !ancestor {
                begin(node, Work::Rewinding);
            }
        }
    }

    /// The primary's Patroni names the standbys that a commit waits for: those that stream.
    fn name_synchronous(&mut self) {
        let Some(primary) = self.primary().filter(|name| self.writes(name)) else { return };
        let Some(keys) = self.keys() else { return };
        let settings = Arc::clone(&keys.settings);
        let wanted = keys::synchronous_standbys(&settings) as usize;
        let able = |name: &&String| {
            let node = self.node(name);
            let nosync = node.and_then(|n| n.node.as_ref()).is_some_and(|n| n.tags.nosync);
            !nosync && node.is_some_and(|n| n.streams() && n.process.is_some())
        };
        let able: BTreeSet<String> = self.nodes.keys().filter(able).cloned().collect();
        let (named, quorum) = if keys::has_quorum_commit(&settings) {
            let quorum = able.len().saturating_sub(wanted);
            (able, quorum)
        } else if keys::is_synchronous(&settings) {
            let kept = keys.sync.standbys.iter().filter(|name| able.contains(*name));
            let others = able.iter().filter(|name| !keys.sync.standbys.contains(*name));
            (kept.chain(others).take(wanted).cloned().collect(), 0)
        } else {
            (BTreeSet::new(), 0)
        };
        let leader = keys::is_synchronous(&settings).then_some(&primary);
        let newly: Vec<String> = named.difference(&keys.sync.standbys).cloned().collect();
        let waits_for = match (named.len().min(wanted), keys::is_strict(&settings)) {
            (0, true) => 1,
            (waits_for, true | false) => waits_for,
        };
        let position = self.node(&primary).and_then(PostgresModel::position);
        let quorum = u32::try_from(quorum).unwrap_or(0);
        if let Some(keys) = self.keys_mut() {
            keys.name_synchronous(leader, named.clone(), quorum);
        }
        if let Some(node) = self.node_mut(&primary) {
            (node.synchronous, node.waits_for) = (named, u32::try_from(waits_for).unwrap_or(1));
        }
        // A standby is named once it has all that was written before.
        for name in newly {
            if let (Some(node), Some((timeline, position))) = (self.node_mut(&name), position) {
                node.set_position(timeline, position);
            }
        }
    }

    /// A client commits on the primary: it is acknowledged once enough of the standbys that it waits for have it.
    fn write(&mut self) {
        let Some(primary) = self.primary() else { return };
        let Some(node) = self.node(&primary) else { return };
        let Some((timeline, position)) = node.position() else { return };
        let (waits_for, named) = (node.waits_for as usize, node.synchronous.clone());
        let any = named.is_empty();
        let streaming: Vec<String> = self
            .nodes
            .keys()
            .filter(|name| self.node(name).is_some_and(PostgresModel::streams) && **name != primary)
            .cloned()
            .collect();
        let fastest = streaming.iter().filter(|name| any || named.contains(*name)).take(waits_for.max(1));
        let fastest: BTreeSet<String> = fastest.cloned().collect();
        let acknowledged = waits_for == 0 || fastest.len() >= waits_for;
        // One commit that is not acknowledged is in the primary's log all the same.
        let truth = self.world.postgres.entry(self.cluster.clone()).or_default();
        let next = match acknowledged {
            true => position + 1,
            false if (truth.timeline, truth.acknowledged) == (timeline, position) => position + 1,
            false => return,
        };
        if acknowledged {
            (truth.timeline, truth.acknowledged) = (timeline, next);
        }
        if let Some(node) = self.node_mut(&primary) {
            node.set_position(timeline, next);
        }
        for name in streaming {
            let received = if fastest.contains(&name) { next } else { position };
            if let Some(node) = self.node_mut(&name) {
                let before = node.position().map_or(0, |(_, position)| position);
                node.set_position(timeline, received.max(before));
            }
        }
    }
}

/// Whether the keys allow this node to become the primary.
fn may_lead(keys: &KeysModel, name: &String) -> bool {
    !keys::is_synchronous(&keys.settings)
        || keys.sync.leader.is_none()
        || keys.sync.leader.as_ref() == Some(name)
        || keys.sync.standbys.contains(name)
}
