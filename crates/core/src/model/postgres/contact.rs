//! A simulated node and the etcd beneath it → whether its Patroni reads its keys, and whether etcd admits it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::super::{MachineModel, World};
use super::{NodeModel, PatroniProcess};
use crate::desired::{CLIENT_PORT, ClientAccess, Stack, UserSlot, address_of};
use crate::observed::{Access, ClusterId, MemberId, Password, Purpose};
use crate::spec::{EtcdVersion, Level, Name};

/// The members of etcd that answer at this moment.
#[derive(Debug, Clone)]
pub struct Reachable {
    /// Every member that answers, by its client address.
    at: BTreeMap<SocketAddr, Name>,
    /// The voters that take requests, and their cluster.
    serving: BTreeMap<Name, ClusterId>,
    /// The leader of each cluster that has one.
    pub(super) leaders: BTreeMap<ClusterId, MemberId>,
}

/// Why a request of a node fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// It has no connection to a member that takes requests.
    Unreached,
    /// A member has denied it.
    Denied(String),
}

/// What a node's Patroni could do at etcd in one round.
pub(super) struct Contact {
    /// The member that it is connected with afterwards.
    pub(super) connection: Option<Name>,
    /// Whether that connection is a new one.
    pub(super) anew: bool,
    /// The cluster whose keys it reads, were it only by its watch.
    pub(super) reads: Option<ClusterId>,
    /// The cluster that its requests are admitted by.
    pub(super) writes: Result<ClusterId, Failure>,
}

impl Reachable {
    pub(super) fn of(world: &World) -> Self {
        let mut found = Self { at: BTreeMap::new(), serving: BTreeMap::new(), leaders: BTreeMap::new() };
        let mut voters: BTreeMap<MemberId, ClusterId> = BTreeMap::new();
        for id in world.agreed.keys().copied() {
            if let Some(leader) = world.leader(id) {
                found.leaders.insert(id, leader);
                voters.extend(world.voters_answering(id).map(|voter| (voter, id)));
            }
        }
        let open = |machine: &MachineModel| {
            world.is_heard(machine)
                && machine.process.config.as_ref().is_none_or(|digest| !world.closed.contains(digest))
        };
        for (name, machine) in world.machines.iter().filter(|(_, machine)| open(machine)) {
            let address = machine.process.address.unwrap_or(machine.address);
            found.at.insert(SocketAddr::new(address, CLIENT_PORT), name.clone());
            if let Some(cluster) = machine.member().and_then(|id| voters.get(&id)) {
                found.serving.insert(name.clone(), *cluster);
            }
        }
        found
    }

    /// One round of a running Patroni: it keeps the connection that it has for as long as its member takes requests, and
    /// makes another to a member that it knows otherwise.
    pub(super) fn contact(&self, world: &World, machine: &MachineModel, process: &PatroniProcess) -> Contact {
        let Some(node) = machine.postgres.node.as_ref().filter(|_| !machine.postgres.cut_from_etcd) else {
            return Contact { connection: None, anew: false, reads: None, writes: Err(Failure::Unreached) };
        };
        let open = process.connection.clone().filter(|member| self.at.values().any(|name| name == member));
        let kept = open.clone().filter(|member| self.serving.contains_key(member));
        let lost = kept.is_none();
        let target = kept.or_else(|| {
            let known = process.cached.iter().chain(&process.started_with);
            let mut members = known.filter_map(|address| self.at.get(address));
            let takes = |name: &&Name| self.serving.contains_key(*name) && world.trusts(machine, name).is_ok();
            members.find(takes).cloned()
        });
        let admitted = |member: &Name| {
            let cluster = self.serving.get(member).copied().ok_or(Failure::Unreached)?;
            let access = world.agreed.get(&cluster).map(|agreed| (&agreed.access, agreed.auth));
            let (access, auth) = access.ok_or(Failure::Unreached)?;
            log_in(node, process.taken_up.user, access, auth).map_err(Failure::Denied)?;
            Ok(cluster)
        };
        let writes = target.as_ref().map_or(Err(Failure::Unreached), admitted);
        // A watch is made by a request: only what was admitted once goes on without.
        let anew = lost && writes.is_ok();
        let connection = target.filter(|_| !lost || writes.is_ok()).or(open);
        let reads = connection.as_ref().and_then(|name| world.machines.get(name)).and_then(MachineModel::cluster);
        Contact { connection, anew, reads, writes }
    }

    /// Whether requests of this node's Patroni succeed now.
    pub(super) fn admits(&self, world: &World, machine: &MachineModel) -> bool {
        let process = machine.postgres.process.as_ref();
        process.is_some_and(|process| self.contact(world, machine, process).writes.is_ok())
    }

    /// The client addresses of a cluster's members that have started, as etcd lists them.
    pub(super) fn listed(world: &World, cluster: ClusterId) -> BTreeSet<SocketAddr> {
        let members = world.agreed.get(&cluster).into_iter().flat_map(|agreed| &agreed.members);
        let started = members.filter(|member| !member.name.is_empty());
        let addresses = started.flat_map(|member| &member.peer_urls).filter_map(|url| address_of(url));
        addresses.map(|address| SocketAddr::new(address, CLIENT_PORT)).collect()
    }

    /// A new login to this member as that user, with the CA certificates on the node's disk.
    pub(super) fn log_in_to(
        &self,
        world: &World,
        machine: &MachineModel,
        user: UserSlot,
        member: &Name,
    ) -> Result<(), String> {
        let node = machine.postgres.node.as_ref().ok_or_else(|| "there is no file".to_owned())?;
        if machine.postgres.cut_from_etcd || !self.at.values().any(|name| name == member) {
            return Err("connection refused".to_owned());
        }
        world.trusts(machine, member)?;
        let cluster = self.serving.get(member).ok_or_else(|| "no leader".to_owned())?;
        let agreed = world.agreed.get(cluster).ok_or_else(|| "no leader".to_owned())?;
        log_in(node, user, &agreed.access, agreed.auth)
    }
}

/// Whether etcd admits this user to the cluster's keys.
fn log_in(node: &NodeModel, slot: UserSlot, access: &Access, auth: bool) -> Result<(), String> {
    if !auth {
        return Err("authentication is not enabled".to_owned());
    }
    let user = node.users.get(&slot).and_then(|name| access.users.get(name));
    let user = user.ok_or_else(|| "authentication failed, invalid user ID or password".to_owned())?;
    // One that was not tried is right until a node finds otherwise, as the planner takes it.
    if matches!(user.password, Password::Other | Password::None) {
        return Err("authentication failed, invalid user ID or password".to_owned());
    }
    let may = |level: Level| {
        let roles = user.roles.iter().filter_map(|role| access.roles.get(role));
        let mut granted = roles.flat_map(|role| &role.permissions);
        granted.any(|(keys, has)| keys.contains(node.prefix.as_bytes()) && has.covers(level))
    };
    if may(Level::Read) && may(Level::Write) { Ok(()) } else { Err("permission denied".to_owned()) }
}

impl World {
    /// Remembers the configuration with which this member accepts no client but raftsman.
    pub(in crate::model) fn note_closed(
        &mut self,
        desired: &Stack,
        name: &Name,
        version: EtcdVersion,
        address: Option<IpAddr>,
    ) {
        let Some(member) = desired.etcd.member(name).filter(|_| !desired.postgres.is_empty()) else { return };
        let timers = desired.etcd.timers(&self.ledger).unwrap_or_default();
        let address = address.unwrap_or(member.address);
        let closed = desired.etcd.config_at(member, version, address, timers, ClientAccess::Closed);
        self.closed.insert(closed.digest.clone());
    }

    /// Whether a new connection of this node would accept the member's certificate.
    fn trusts(&self, machine: &MachineModel, member: &Name) -> Result<(), String> {
        let shown = self.machines.get(member).and_then(|member| member.certificates.get(&Purpose::Server));
        let Some(shown) = shown else { return Ok(()) };
        let bundle = machine.postgres.trust.as_ref().and_then(|digest| self.bundles.get(digest));
        if !bundle.is_some_and(|keys| keys.contains(&shown.issuer_key)) {
            return Err("certificate signed by unknown authority".to_owned());
        }
        if shown.not_after <= self.now {
            return Err("the certificate has expired".to_owned());
        }
        Ok(())
    }

    /// The members of etcd that answer at this moment.
    pub fn reachable(&self) -> Reachable {
        Reachable::of(self)
    }

    /// Whether this node could log in anew to this member as this user.
    pub fn could_log_in(
        &self,
        reachable: &Reachable,
        node: &Name,
        user: UserSlot,
        member: &Name,
    ) -> Result<(), String> {
        let machine = self.machines.get(node).ok_or_else(|| format!("{node} does not exist"))?;
        reachable.log_in_to(self, machine, user, member)
    }

    pub(super) fn could_log_in_anywhere(&self, node: &Name) -> bool {
        let reachable = Reachable::of(self);
        let user = self.machines.get(node).and_then(|machine| machine.postgres.written.as_ref()).map(|file| file.user);
        user.is_some_and(|user| self.machines.keys().any(|m| self.could_log_in(&reachable, node, user, m).is_ok()))
    }

    /// Whether a running Patroni would find a member that admits it, had it to connect anew.
    pub fn could_connect_anew(&self, reachable: &Reachable, node: &Name) -> bool {
        let Some(machine) = self.machines.get(node) else { return false };
        let Some(process) = &machine.postgres.process else { return true };
        let alone = PatroniProcess { connection: None, ..process.clone() };
        reachable.contact(self, machine, &alone).writes.is_ok()
    }
}
