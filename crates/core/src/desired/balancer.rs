//! One balancer of the file and the members behind it → its instances with their configuration.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::addresses::{Allotment, Spot};
use super::{CLIENT_PORT, Config, DesireError, Stack, etcd};
use crate::render;
use crate::render::haproxy::{self, Backend, Haproxy};
use crate::render::keepalived::{self, Keepalived};
use crate::render::nftables::Front;
use crate::spec::{Balancer as Section, Beside, Instances, Name};

/// Where etcd says whether it is healthy: over plain HTTP, `/health` and `/metrics`, and nothing else. Only members behind
/// a balancer listen there.
pub const HEALTH_PORT: u16 = 2383;
/// Of the first instance; each further one has one less. keepalived's highest is 254.
const FIRST_PRIORITY: u8 = 200;

/// One balancer that should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balancer {
    /// Its name.
    pub name: Name,
    /// The etcd cluster that it is in front of.
    pub cluster: Name,
    /// The port that clients connect to.
    pub port: u16,
    /// The address that one of its instances has at a time.
    pub virtual_address: Option<IpAddr>,
    /// Its instances, in order.
    pub instances: Vec<Instance>,
    /// The DNS names that clients know it by, sorted: its own among them.
    pub names: Vec<String>,
    section: Section,
}

/// One instance of a balancer that should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its name: its machine's.
    pub name: Name,
    /// Its machine's address.
    pub address: IpAddr,
    /// Whether its machine is a member's.
    pub beside_member: bool,
    /// keepalived's configuration file, where there is a virtual address.
    pub keepalived: Option<Config>,
}

impl Instance {
    /// The packages of the distribution that its machine needs.
    pub fn packages(&self) -> impl Iterator<Item = &'static str> {
        let keepalived = self.keepalived.as_ref().map(|_| keepalived::PACKAGE);
        [haproxy::PACKAGE].into_iter().chain(keepalived)
    }
}

impl Balancer {
    /// The addresses that clients connect to, sorted. They are in the members' certificates.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        let instances = self.instances.iter().filter(|instance| self.listens_at_own(instance));
        instances.map(|instance| instance.address).chain(self.virtual_address).collect()
    }

    /// What the firewall of an instance's machine lets in: clients, and the instances that it shares an address with.
    pub(super) fn front(&self, instance: &Instance) -> Front {
        let others = self.instances.iter().filter(|other| other.name != instance.name);
        let peers = others.map(|other| other.address).filter(|_| self.virtual_address.is_some()).collect();
        Front { port: self.port, peers }
    }

    /// What clients that know only the balancer are configured with: the virtual address, or every instance's.
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        let own = self.instances.iter().filter(|instance| self.listens_at_own(instance));
        match self.virtual_address {
            Some(address) => vec![SocketAddr::new(address, self.port)],
            None => own.map(|instance| SocketAddr::new(instance.address, self.port)).collect(),
        }
    }

    /// HAProxy's configuration file of an instance that passes connections to these members.
    ///
    /// A learner answers `/health` as other members do, and refuses what clients ask: it is no backend before it votes.
    pub fn haproxy(&self, instance: &Instance, backends: &[Backend]) -> Config {
        let text = haproxy::config(&Haproxy {
            address: Some(instance.address).filter(|_| self.listens_at_own(instance)),
            virtual_address: self.virtual_address,
            port: self.port,
            backends,
            max_connections: self.section.max_connections,
            connect_ms: self.section.timeouts.connect.as_millis(),
            idle_ms: self.section.timeouts.idle.as_millis(),
        });
        Config { digest: render::digest(&text), text }
    }

    /// On a member's machine, etcd already listens on its port of the machine's address.
    fn listens_at_own(&self, instance: &Instance) -> bool {
        !instance.beside_member || self.port != CLIENT_PORT
    }
}

/// A member behind a balancer.
pub(super) fn backend(member: &Name, address: IpAddr) -> Backend {
    let at = |port| SocketAddr::new(address, port);
    Backend { name: member.clone(), client: at(CLIENT_PORT), health: at(HEALTH_PORT) }
}

/// Makes every choice that the file leaves open about a balancer of this cluster; and the machines of its instances,
/// those among them that have no address yet.
pub(super) fn resolve(
    name: &Name,
    section: &Section,
    cluster: &Stack,
    addresses: &mut Allotment,
) -> Result<(Balancer, Vec<Spot>), DesireError> {
    let mut places: Vec<Spot> = Vec::new();
    match &section.instances {
        Instances::Beside(Beside::Members) => {
            let members = etcd::named(&cluster.name, &cluster.etcd.settings)?.into_iter();
            places.extend(members.map(|(member, _)| {
                let address = cluster.etcd.member(&member).map(|member| member.address);
                (member, address)
            }));
        }
        Instances::Count(count) => {
            for index in 1..=*count {
                let instance = Name::parse(&format!("{name}-{index}"))
                    .map_err(|_| DesireError::NameTooLong { cluster: name.clone() })?;
                let address = addresses.allot(&section.etcd, &instance)?;
                places.push((instance, address));
            }
        }
        Instances::List(list) => {
            for instance in list {
                let address = match instance.address {
                    Some(address) => Some(address),
                    None => addresses.allot(&section.etcd, &instance.name)?,
                };
                places.push((instance.name.clone(), address));
            }
        }
    }
    let all: Vec<IpAddr> = places.iter().filter_map(|(_, address)| *address).collect();
    let known = places.iter().cloned().enumerate().filter_map(|(index, (name, address))| Some((index, name, address?)));
    let instances = known.map(|(index, instance, address)| {
        let peers: Vec<IpAddr> = all.iter().copied().filter(|other| *other != address).collect();
        let keepalived = section.virtual_address.zip(section.router_id()).map(|(virtual_address, router_id)| {
            let text = keepalived::config(&Keepalived {
                balancer: name,
                instance: &instance,
                interface: section.vrrp.interface.as_deref(),
                router_id,
                priority: FIRST_PRIORITY.saturating_sub(u8::try_from(index).unwrap_or(u8::MAX)).max(1),
                address,
                peers: &peers,
                virtual_address,
            });
            Config { digest: render::digest(&text), text }
        });
        Instance { name: instance, address, beside_member: section.is_beside_members(), keepalived }
    });
    let names: BTreeSet<String> = section.names.iter().cloned().chain([name.to_string()]).collect();
    let balancer = Balancer {
        name: name.clone(),
        cluster: section.etcd.clone(),
        port: section.port,
        virtual_address: section.virtual_address,
        instances: instances.collect(),
        names: names.into_iter().collect(),
        section: section.clone(),
    };
    Ok((balancer, places))
}
