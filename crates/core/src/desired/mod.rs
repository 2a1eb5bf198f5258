//! A valid Spec and the fleet's identity → Desired, in which every choice is made.

mod addresses;
mod agents;
mod balancer;
mod etcd;
mod machines;
mod postgres;
mod stack;
mod unplaced;
mod users;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::spec::{self, DcsOf, Name, Spec};

pub use crate::render::etcd::ClientAccess;
pub use addresses::{LoopbackNetwork, NetworkError};
pub use agents::{AGENT_RENEW_BEFORE, AGENT_VALIDITY, AgentVersion, Agents, Shipped};
pub use balancer::{Balancer, Behind, HEALTH_PORT, Instance};
pub use etcd::{
    AGENT_PORT, CLIENT_PORT, CLOSED_PORT, Etcd, HTTP_PORT, LeafProfile, Member, PEER_PORT, Usage, address_of, peer_url,
};
pub use machines::{Address, Capabilities, Machine, Place};
pub use postgres::{Node, PARAMETERS, POSTGRES_PORT, Postgres, REST_PORT, UserSlot};
pub use stack::Stack;
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

/// A configuration file of a program.
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
            let fronted = spec.balancers.values().any(|balancer| balancer.behind() == Some(spec::Behind::Etcd(name)));
            let (etcd, places) = etcd::resolve(&spec.fleet, name, cluster, backups.clone(), fronted, &mut addresses)?;
            let overrides = machines::Overrides::of_members(cluster);
            let machines = machines::resolve(&machines, &overrides, &places, identity.zones.get(name));
            Ok(Stack::new(name, etcd, machines))
        })
        .collect::<Result<Vec<_>, _>>()?;
    for (name, section) in &spec.postgres {
        // A file whose etcd raftsman does not run is refused so far.
        let DcsOf::Cluster(etcd) = &section.etcd else { continue };
        let Some(stack) = stacks.iter_mut().find(|stack| stack.name == *etcd) else { continue };
        let (mut postgres, places) = postgres::resolve(&spec.fleet, name, section, etcd, &mut addresses)?;
        let overrides = machines::Overrides::of_nodes(section);
        let machines = machines::resolve(&machines, &overrides, &places, identity.zones.get(etcd));
        postgres.stand_on(&machines);
        stack.machines.extend(machines);
        let users = UserSlot::BOTH.map(|slot| postgres.etcd_user(slot));
        stack.etcd.access.patroni.extend(users.into_iter().chain([postgres.etcd_role().0]));
        stack.postgres.push(postgres);
    }
    for (name, section) in &spec.balancers {
        let beneath = spec.beneath(section);
        let Some(stack) = stacks.iter_mut().find(|stack| Some(&stack.name) == beneath) else { continue };
        let (balancer, places) = balancer::resolve(&spec.fleet, name, section, stack, &mut addresses)?;
        let own = if section.is_beside_members() { Vec::new() } else { places };
        let zones = identity.zones.get(&stack.name);
        stack.stand_behind(balancer, &own, &machines, zones);
    }
    Ok(stacks)
}
