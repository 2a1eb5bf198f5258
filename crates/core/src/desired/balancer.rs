//! One balancer of the file and what is behind it → its instances with their configuration.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::addresses::{Allotment, Spot};
use super::{CLIENT_PORT, Config, DesireError, LeafProfile, POSTGRES_PORT, REST_PORT, Stack, Usage, etcd};
use crate::ledger::Ledger;
use crate::render;
use crate::render::haproxy::{self, Backend, Haproxy, Servers};
use crate::render::keepalived::{self, Keepalived};
use crate::render::nftables::Front;
use crate::spec::postgres::HbaRule;
use crate::spec::{self, Balancer as Section, Beside, Instances, Name, Subnet};

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
    /// The etcd cluster that it is in front of, or that the PostgreSQL cluster stands on.
    pub cluster: Name,
    /// What it is in front of.
    pub behind: Behind,
    /// The port that clients connect to.
    pub port: u16,
    /// The port that leads to standbys of PostgreSQL.
    pub replicas_port: Option<u16>,
    /// The address that one of its instances has at a time.
    pub virtual_address: Option<IpAddr>,
    /// Its instances, in order.
    pub instances: Vec<Instance>,
    /// The DNS names that clients know it by, sorted: its own among them.
    pub names: Vec<String>,
    section: Section,
}

/// What a balancer is in front of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Behind {
    /// The members of the etcd cluster.
    Members,
    /// The nodes of this PostgreSQL cluster.
    Nodes(Name),
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
    /// The certificate that it shows to Patroni, where it is in front of PostgreSQL.
    pub probe: Option<LeafProfile>,
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
    /// The cluster that it is in front of.
    pub fn before(&self) -> &Name {
        match &self.behind {
            Behind::Members => &self.cluster,
            Behind::Nodes(postgres) => postgres,
        }
    }

    /// The addresses that clients connect to, sorted. They are in the certificates of members or nodes.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        let instances = self.instances.iter().filter(|instance| self.listens_at_own(instance));
        instances.map(|instance| instance.address).chain(self.virtual_address).collect()
    }

    /// What the firewall of an instance's machine lets in: clients, and the instances that it shares an address with.
    pub(super) fn front(&self, instance: &Instance) -> Front {
        let others = self.instances.iter().filter(|other| other.name != instance.name);
        let peers = others.map(|other| other.address).filter(|_| self.virtual_address.is_some()).collect();
        let ports = std::iter::once(self.port).chain(self.replicas_port).collect();
        Front { ports, postgres: self.behind != Behind::Members, peers }
    }

    /// What clients that know only the balancer are configured with: the virtual address, or every instance's.
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        let own = self.instances.iter().filter(|instance| self.listens_at_own(instance));
        match self.virtual_address {
            Some(address) => vec![SocketAddr::new(address, self.port)],
            None => own.map(|instance| SocketAddr::new(instance.address, self.port)).collect(),
        }
    }

    /// HAProxy's configuration file of an instance that passes connections to these servers.
    fn haproxy(&self, instance: &Instance, servers: Servers<'_>) -> Config {
        let text = haproxy::config(&Haproxy {
            address: Some(instance.address).filter(|_| self.listens_at_own(instance)),
            virtual_address: self.virtual_address,
            port: self.port,
            servers,
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

impl Stack {
    /// All that a balancer passes connections to: the members of the file; or the nodes of the file and those that leave it
    /// and are still there, of which one may be the primary.
    pub fn servers(&self, balancer: &Balancer, ledger: &Ledger) -> Vec<Name> {
        match &balancer.behind {
            Behind::Members => self.etcd.members.iter().map(|member| member.name.clone()).collect(),
            Behind::Nodes(cluster) => {
                self.postgres(cluster).map(|cluster| cluster.places(ledger).into_keys().collect()).unwrap_or_default()
            }
        }
    }

    /// HAProxy's configuration file of an instance that passes connections to these members or nodes, and shows the
    /// certificate with this fingerprint to Patroni. Nothing where it needs one and has none.
    ///
    /// A learner answers `/health` as other members do, and refuses what clients ask: it is no backend before it votes.
    pub fn haproxy(
        &self,
        (balancer, instance): (&Balancer, &Instance),
        servers: &[Name],
        certificate: Option<&str>,
        ledger: &Ledger,
    ) -> Option<Config> {
        let cluster = match &balancer.behind {
            Behind::Members => {
                let members = self.etcd.backends(servers, ledger);
                return Some(balancer.haproxy(instance, Servers::Members(&members)));
            }
            Behind::Nodes(cluster) => self.postgres(cluster)?,
        };
        let places = cluster.places(ledger);
        let nodes: Vec<Backend> =
            servers.iter().filter_map(|name| Some(node_backend(name, *places.get(name)?))).collect();
        let from: Vec<Subnet> = HbaRule::sources(&cluster.section.access).into_iter().collect();
        let (nodes, from, replicas_port) = (nodes.as_slice(), from.as_slice(), balancer.replicas_port);
        let servers = Servers::Nodes { nodes, replicas_port, from, certificate: certificate? };
        Some(balancer.haproxy(instance, servers))
    }
}

/// A node behind a balancer.
fn node_backend(node: &Name, address: IpAddr) -> Backend {
    let at = |port| SocketAddr::new(address, port);
    Backend { name: node.clone(), client: at(POSTGRES_PORT), health: at(REST_PORT) }
}

/// A member behind a balancer.
pub(super) fn backend(member: &Name, address: IpAddr) -> Backend {
    let at = |port| SocketAddr::new(address, port);
    Backend { name: member.clone(), client: at(CLIENT_PORT), health: at(HEALTH_PORT) }
}

/// Makes every choice that the file leaves open about a balancer of this stack; and the machines of its instances, those
/// among them that have no address yet.
pub(super) fn resolve(
    fleet: &Name,
    name: &Name,
    section: &Section,
    cluster: &Stack,
    addresses: &mut Allotment,
) -> Result<(Balancer, Vec<Spot>), DesireError> {
    let behind = match section.behind() {
        Some(spec::Behind::Postgres(postgres)) => Behind::Nodes(postgres.clone()),
        Some(spec::Behind::Etcd(_)) | None => Behind::Members,
    };
    let before = match &behind {
        Behind::Members => None,
        Behind::Nodes(postgres) => cluster.postgres(postgres),
    };
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
                let address = addresses.allot(&cluster.name, &instance)?;
                places.push((instance, address));
            }
        }
        Instances::List(list) => {
            for instance in list {
                let address = match instance.address {
                    Some(address) => Some(address),
                    None => addresses.allot(&cluster.name, &instance.name)?,
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
        let probe = before.map(|postgres| {
            let certificates = &postgres.section.certificates;
            let organization = certificates.organization.clone().unwrap_or_else(|| fleet.to_string());
            let (name, names) = (instance.to_string(), vec![instance.to_string()]);
            // It is a client only, and Patroni lets no client change anything without a password besides.
            LeafProfile::new(name, organization, names, Vec::new(), Usage::Client, certificates)
        });
        Instance { name: instance, address, beside_member: section.is_beside_members(), probe, keepalived }
    });
    let names: BTreeSet<String> = section.names.iter().cloned().chain([name.to_string()]).collect();
    let balancer = Balancer {
        name: name.clone(),
        cluster: cluster.name.clone(),
        behind,
        port: section.port(),
        replicas_port: section.replicas_port,
        virtual_address: section.virtual_address,
        instances: instances.collect(),
        names: names.into_iter().collect(),
        section: section.clone(),
    };
    Ok((balancer, places))
}
