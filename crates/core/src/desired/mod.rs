//! A valid Spec and the fleet's identity → Desired, in which every choice is made.

mod addresses;
mod agents;
mod balancer;
mod etcd;
mod machines;
mod unplaced;
mod users;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::SignedDuration;

use crate::observed::{Ledger, Origin, TrustDomain};
use crate::render;
use crate::render::haproxy::Backend;
use crate::render::nftables::{self, BalancerFirewall, Firewall, Front};
use crate::spec::{
    AuthMode, Authorities, Authority, Backups, EtcdCluster, EtcdVersion, KeyAlgorithm, Machines, Name, RaftTimers,
    Secret, Source, Spec,
};

pub use crate::render::etcd::ClientAccess;
use addresses::Spot;
pub use addresses::{LoopbackNetwork, NetworkError};
pub use agents::{AGENT_RENEW_BEFORE, AGENT_VALIDITY, AgentVersion, Agents, Shipped};
pub use balancer::{Balancer, HEALTH_PORT, Instance};
pub use etcd::{AGENT_PORT, CLIENT_PORT, CLOSED_PORT, HTTP_PORT, LeafProfile, PEER_PORT, Usage};
pub use machines::{Address, Capabilities, Machine, Place};
pub use unplaced::Unplaced;
pub use users::{Access, User};

/// What the state adds to the file: the identity of this fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The fleet's id, which no other fleet has.
    pub id: String,
    /// Local provider: the network that addresses are taken from.
    pub network: Option<LoopbackNetwork>,
    /// Where the members are that have an address already: a change of the file alone moves no member.
    pub places: BTreeMap<Name, BTreeMap<Name, IpAddr>>,
    /// The zones that members' machines are in already.
    pub zones: BTreeMap<Name, BTreeMap<Name, Name>>,
}

/// Everything that should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// The fleet's name.
    pub fleet: Name,
    /// Its stacks, in the order of the file's etcd clusters.
    pub stacks: Vec<Stack>,
}

/// What is planned together, under one lock: an etcd cluster and what stands in front of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    /// Its name.
    pub name: Name,
    /// Its version of etcd.
    pub version: EtcdVersion,
    /// Where the binary comes from.
    pub source: Source,
    /// The versions that can be had from there, the wanted one among them.
    pub available: BTreeSet<EtcdVersion>,
    /// How clients authenticate.
    pub auth: AuthMode,
    /// The password of `root`, when the file refers to one.
    pub root_password: Option<Secret>,
    /// Made or brought authorities.
    pub authorities: Authorities,
    /// Organization in certificates.
    pub organization: String,
    /// Key algorithm of the authorities that are made.
    pub algorithm: KeyAlgorithm,
    /// How long made authorities are valid, in milliseconds.
    pub ca_validity_ms: u64,
    /// Tells clusters apart while they form.
    pub token: String,
    /// A member that is down for so many milliseconds is replaced automatically.
    pub replace_after_ms: Option<u64>,
    /// A learner that makes no progress for so many milliseconds is removed again.
    pub learner_patience_ms: u64,
    /// Roles and users.
    pub access: Access,
    /// Which clients its agents accept, and the CA that signs for them.
    pub agents: Agents,
    /// What stands in front of it, in the order of the file: planned together with it, under one lock.
    pub balancers: Vec<Balancer>,
    /// The backups that its machines make by themselves, where the file has a schedule.
    pub backups: Option<Arc<Backups>>,
    /// The cluster's section of the file, for configurations of versions on the way.
    pub settings: Arc<EtcdCluster>,
    /// Its members, in order.
    pub members: Vec<Member>,
    /// The machines that its members and the instances of its balancers run on, by name: also those whose address is
    /// still to be assigned, and which no member and no instance is described for yet.
    pub machines: BTreeMap<Name, Machine>,
    /// What describes the rest of it, once the provider has assigned the addresses that are not known yet; nothing
    /// where all are known.
    pub unplaced: Option<Arc<Unplaced>>,
}

/// One member that should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Its name.
    pub name: Name,
    /// The machine that it runs on: of the same name.
    pub machine: Name,
    /// Where it serves: its machine's address.
    pub address: IpAddr,
    /// etcd's configuration file at the version of the file, with etcd's own time-outs where they are to be measured.
    pub config: Config,
    /// The certificate that it presents to other members.
    pub peer: LeafProfile,
    /// The certificate that it presents to clients.
    pub server: LeafProfile,
}

/// A configuration file of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Its text.
    pub text: String,
    /// SHA-256 of it, in hexadecimal.
    pub digest: String,
}

/// Why no Desired could be made of a valid file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DesireError {
    /// The network has too few addresses.
    #[error(
        "the network {network} has no free address left and cluster `{cluster}` needs one more: \
         give the fleet fewer members, or spread it over two files"
    )]
    NetworkFull {
        /// The network.
        network: String,
        /// The cluster that found it full.
        cluster: Name,
    },
    /// Members named after the cluster would have names that no host can have.
    #[error(
        "cluster `{cluster}` has too long a name for its members to be named after it: shorten it, or name each member"
    )]
    NameTooLong {
        /// The cluster.
        cluster: Name,
    },
    /// The provider chooses no addresses.
    #[error("member `{member}` has no address: this provider needs `address:` for each member")]
    NoAddress {
        /// The member.
        member: Name,
    },
    /// The provider assigned one address twice.
    #[error(
        "the provider assigned {address} to `{machine}`, and `{holder}` has it: give `{machine}` an `address:` in the \
         file"
    )]
    AddressTwice {
        /// The machine that it was assigned to.
        machine: Name,
        /// Which.
        address: IpAddr,
        /// The machine that had it before.
        holder: Name,
    },
}

/// Makes every choice that the file leaves open.
pub fn resolve(spec: &Spec, identity: &Identity) -> Result<Desired, DesireError> {
    let mut stacks = some(spec, identity, |_| true)?;
    let mut rest: Option<Arc<Unplaced>> = None;
    for stack in stacks.iter_mut().filter(|stack| stack.unplaced_machines().next().is_some()) {
        let unplaced = || Arc::new(Unplaced { spec: Arc::new(spec.clone()), identity: identity.clone() });
        stack.unplaced = Some(Arc::clone(rest.get_or_insert_with(unplaced)));
    }
    Ok(Desired { fleet: spec.fleet.clone(), stacks })
}

/// The stacks of these etcd clusters of the file.
fn some(spec: &Spec, identity: &Identity, wanted: impl Fn(&Name) -> bool) -> Result<Vec<Stack>, DesireError> {
    let mut addresses = addresses::Allotment::new(spec, identity);
    let machines = Arc::new(spec.machines.clone());
    let backups = spec.backups.as_ref().filter(|backups| backups.every.is_some()).cloned().map(Arc::new);
    let mut stacks = spec
        .etcd
        .iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, cluster)| {
            let fronted = spec.balancers.values().any(|balancer| balancer.etcd == *name);
            let zones = identity.zones.get(name);
            let cluster = etcd::resolve(&spec.fleet, name, cluster, &machines, zones, fronted, &mut addresses)?;
            Ok(Stack { backups: backups.clone(), ..cluster })
        })
        .collect::<Result<Vec<_>, _>>()?;
    for (name, section) in &spec.balancers {
        let Some(stack) = stacks.iter_mut().find(|stack| stack.name == section.etcd) else { continue };
        let (balancer, places) = balancer::resolve(name, section, stack, &mut addresses)?;
        let own = if section.is_beside_members() { Vec::new() } else { places };
        stack.stand_behind(balancer, &own, &machines, identity.zones.get(&section.etcd));
    }
    Ok(stacks)
}

impl Stack {
    /// The member of this name.
    pub fn member(&self, name: &Name) -> Option<&Member> {
        self.members.iter().find(|m| m.name == *name)
    }

    /// The machine of this name.
    pub fn machine(&self, name: &Name) -> Option<&Machine> {
        self.machines.get(name)
    }

    /// Clients of a balancer check the member's certificate against the balancer's name and addresses.
    fn stand_behind(
        &mut self,
        balancer: Balancer,
        own: &[Spot],
        fleet: &Arc<Machines>,
        zones: Option<&BTreeMap<Name, Name>>,
    ) {
        self.machines.extend(machines::of_balancer(fleet, own, zones));
        for LeafProfile { names, addresses, .. } in self.members.iter_mut().map(|member| &mut member.server) {
            names.extend(balancer.names.iter().cloned());
            names.sort();
            names.dedup();
            addresses.extend(balancer.addresses());
            addresses.sort();
            addresses.dedup();
        }
        self.balancers.push(balancer);
    }

    /// Its machines in order: those of members, then those that balancers have to themselves.
    pub fn all_machines(&self) -> impl Iterator<Item = &Name> {
        self.members.iter().map(|member| &member.name).chain(self.own_instances().map(|instance| &instance.name))
    }

    /// The instances of balancers on machines of their own.
    pub fn own_instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances().map(|(_, instance)| instance).filter(|instance| !instance.beside_member)
    }

    /// Where the machine of this name is, once that is known.
    pub fn machine_address(&self, name: &Name) -> Option<IpAddr> {
        self.machine(name)?.address.given()
    }

    /// Every instance of its balancers.
    pub fn instances(&self) -> impl Iterator<Item = (&Balancer, &Instance)> {
        self.balancers.iter().flat_map(|balancer| balancer.instances.iter().map(move |instance| (balancer, instance)))
    }

    /// The instance that runs on this machine.
    pub fn instance(&self, machine: &Name) -> Option<(&Balancer, &Instance)> {
        self.instances().find(|(_, instance)| instance.name == *machine)
    }

    /// These members as backends of a balancer, where they serve now.
    pub fn backends(&self, members: &[Name], ledger: &Ledger) -> Vec<Backend> {
        let members = members.iter().filter_map(|name| self.member(name));
        members
            .map(|member| {
                let known = ledger.members.get(&member.name).and_then(|url| address_of(url));
                balancer::backend(&member.name, known.unwrap_or(member.address))
            })
            .collect()
    }

    /// The addresses of instances of its balancers, which check its members' health.
    fn checked_from(&self) -> BTreeSet<IpAddr> {
        self.instances().map(|(_, instance)| instance.address).collect()
    }

    /// The authority of this side, as the file says.
    pub fn authority(&self, side: TrustDomain) -> &Authority {
        match side {
            TrustDomain::Peers => &self.authorities.peers,
            TrustDomain::Clients => &self.authorities.clients,
        }
    }

    /// How long before the end of an authority that raftsman made another one is made: long enough for the certificates
    /// that it signed to be renewed by the other, and no longer than the other one lasts.
    pub fn renew_authority_before(&self) -> SignedDuration {
        let leaves = self.settings.certificates.validity.as_millis().saturating_mul(2);
        etcd::span(leaves.min(self.ca_validity_ms / 2))
    }

    /// The addresses of all present and future members: they reach each other.
    pub fn neighbours(&self, ledger: &Ledger) -> BTreeSet<IpAddr> {
        let here = ledger.members.values().filter_map(|url| address_of(url));
        self.members.iter().map(|member| member.address).chain(here).collect()
    }

    /// The firewall's rules on this machine; nothing where raftsman writes none.
    pub fn firewall(&self, machine: &Name, ledger: &Ledger) -> Option<Config> {
        let Machine { name, firewall, metrics, .. } = self.machine(machine)?;
        let (sources, agent_port, metrics) = (firewall.as_ref()?, AGENT_PORT, *metrics);
        let front = self.instance(name).map(|(balancer, instance)| balancer.front(instance));
        if let Some(front) = front.as_ref().filter(|_| self.member(name).is_none()) {
            let text = nftables::balancer_rules(&BalancerFirewall { sources, agent_port, front, metrics });
            return Some(Config { digest: render::digest(&text), text });
        }
        let etcd_metrics = etcd::serves_http_apart(&self.settings);
        self.rules(machine, ledger, etcd_metrics, &self.checked_from(), front.as_ref())
    }

    /// The rules that the machine boots with for the first time.
    pub fn first_firewall(&self, machine: &Name, ledger: &Ledger) -> Option<Config> {
        self.rules(machine, ledger, false, &BTreeSet::new(), None)
    }

    fn rules(
        &self,
        machine: &Name,
        ledger: &Ledger,
        etcd_metrics: bool,
        balancers: &BTreeSet<IpAddr>,
        front: Option<&Front>,
    ) -> Option<Config> {
        let machine = self.machine(machine)?;
        let sources = machine.firewall.as_ref()?;
        let members: Vec<IpAddr> = self.neighbours(ledger).into_iter().collect();
        let (agent_port, metrics, members) = (AGENT_PORT, machine.metrics, members.as_slice());
        let firewall = Firewall { sources, agent_port, members, metrics, etcd_metrics, balancers, front };
        let text = nftables::rules(&firewall);
        Some(Config { digest: render::digest(&text), text })
    }

    /// The heartbeat and election time-outs of every member: those of the file, or those that were measured; nothing
    /// while they are to be measured and have not been.
    pub fn timers(&self, ledger: &Ledger) -> Option<RaftTimers> {
        self.settings.timers.given().or_else(|| ledger.preflight.as_ref().map(|preflight| preflight.timers))
    }

    /// Which clients members accept now. Where auth is wanted, every client that is accepted before it is on is a
    /// superuser: raftsman first sees that auth is on, in this very cluster, and then opens members to clients.
    pub fn client_access(&self, ledger: &Ledger) -> ClientAccess {
        let rebuilt = ledger.is_built_anew();
        let secured = !rebuilt && ledger.secured.is_some() && ledger.secured == ledger.cluster;
        match self.auth {
            AuthMode::None => ClientAccess::Open,
            AuthMode::Certificate | AuthMode::Password if secured => ClientAccess::Open,
            // So far the file let every client do everything.
            AuthMode::Certificate if ledger.auth == Some(AuthMode::None) => ClientAccess::Open,
            // No certificate was issued yet but raftsman's own.
            AuthMode::Certificate if ledger.secured.is_none() && self.is_sole_issuer(ledger) => ClientAccess::Open,
            AuthMode::Certificate | AuthMode::Password => ClientAccess::Closed,
        }
    }

    /// Whether raftsman made every authority whose client certificates are accepted.
    fn is_sole_issuer(&self, ledger: &Ledger) -> bool {
        match &ledger.clients {
            Some(trust) => trust.trusted().iter().all(|authority| authority.origin == Origin::Made),
            None => self.authorities.clients == Authority::Made,
        }
    }

    /// A member's configuration at this version, which may be one on the way to the file's.
    pub fn config<'a>(
        &self,
        member: &'a Member,
        version: EtcdVersion,
        timers: RaftTimers,
        access: ClientAccess,
    ) -> Cow<'a, Config> {
        self.config_at(member, version, member.address, timers, access)
    }

    /// The same at this address: a member that changes its address is configured for the new one when it moves.
    pub fn config_at<'a>(
        &self,
        member: &'a Member,
        version: EtcdVersion,
        address: IpAddr,
        timers: RaftTimers,
        access: ClientAccess,
    ) -> Cow<'a, Config> {
        let rendered = self.settings.timers.given().unwrap_or_default();
        let same = version == self.version && address == member.address && timers == rendered;
        if same && access == ClientAccess::Open {
            return Cow::Borrowed(&member.config);
        }
        Cow::Owned(etcd::config(
            &self.settings,
            &member.name,
            address,
            version,
            timers,
            access,
            !self.balancers.is_empty(),
        ))
    }

    /// A member's configuration while it is compared with the others: it listens at [`CLOSED_PORT`].
    pub fn closed_config(&self, member: &Member, version: EtcdVersion, timers: RaftTimers) -> Config {
        etcd::closed(&self.settings, &member.name, member.address, version, timers)
    }
}

impl Member {
    /// Where clients reach it.
    pub fn client_url(&self) -> String {
        etcd::url(self.address, CLIENT_PORT)
    }

    /// Where other members reach it.
    pub fn peer_url(&self) -> String {
        peer_url(self.address)
    }

    /// The certificate for this purpose.
    pub fn profile(&self, purpose: crate::observed::Purpose) -> &LeafProfile {
        match purpose {
            crate::observed::Purpose::Peer => &self.peer,
            crate::observed::Purpose::Server => &self.server,
        }
    }
}

/// Where other members reach a member at this address.
pub fn peer_url(address: IpAddr) -> String {
    etcd::url(address, PEER_PORT)
}

/// The address in a peer URL of ours.
pub fn address_of(peer_url: &str) -> Option<IpAddr> {
    let place = peer_url.strip_prefix("https://")?;
    place.parse::<std::net::SocketAddr>().ok().map(|place| place.ip())
}
