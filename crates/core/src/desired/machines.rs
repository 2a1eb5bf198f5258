//! The section `machines` → each machine that should be: its place, its shape, its address, what it is given.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use crate::spec::{Doors, EtcdCluster, Machines, Member, Name, Provider, Shape};

/// One machine that should be. What runs on it names it: a member of etcd by its field `machine`.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Its name, unique in the fleet.
    pub name: Name,
    /// Where it is made, or found.
    pub place: Place,
    /// Where it is reached.
    pub address: Address,
    /// What it is made of, where it is made from an image.
    pub shape: Option<Shape>,
    /// What can be done with it.
    pub capabilities: Capabilities,
    /// From where it may be reached, where it has a firewall that raftsman writes.
    pub firewall: Option<Doors>,
    /// Whether it serves metrics of its own (node exporter).
    pub metrics: bool,
    /// Whether files with secrets are delivered to it once it runs.
    pub delivers: bool,
    /// The section `machines` of the file as it holds for this machine.
    pub settings: Arc<Machines>,
}

/// Where a machine is made, or found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What makes it.
    pub provider: Provider,
    /// The server of the provider, where the provider has one: libvirt's URI, Incus's socket or URL.
    pub connection: Option<String>,
}

/// Where a machine is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// Known before it is made: given in the file, or taken from the fleet's network.
    Given(IpAddr),
    /// Assigned by the provider: known once the machine is made.
    Assigned,
}

impl Address {
    /// The address, where it is known before the machine is made.
    pub fn given(self) -> Option<IpAddr> {
        match self {
            Self::Given(address) => Some(address),
            Self::Assigned => None,
        }
    }
}

impl Machine {
    /// The machine of this name at this address, as this section describes it.
    pub(super) fn new(name: Name, address: IpAddr, settings: Arc<Machines>) -> Self {
        let capabilities = Capabilities::of(settings.provider);
        Self {
            name,
            place: Place { provider: settings.provider, connection: connection(&settings) },
            address: Address::Given(address),
            shape: settings.shape(),
            capabilities,
            firewall: settings.doors().filter(|_| capabilities.boots),
            metrics: settings.node_exporter == Some(true),
            delivers: capabilities.boots && settings.has_deliveries(),
            settings,
        }
    }
}

/// The fleet's section as it holds for this cluster. Clusters that say nothing of it share one.
pub(super) fn of_cluster(fleet: &Arc<Machines>, cluster: &EtcdCluster) -> Arc<Machines> {
    merged(fleet, fleet.with_cluster(cluster.machines.as_ref()))
}

/// A cluster's section as it holds for the machine of this member.
pub(super) fn of_member(cluster: &Arc<Machines>, member: Option<&Member>) -> Arc<Machines> {
    merged(cluster, cluster.with_member(member.and_then(|member| member.machine.as_ref())))
}

fn merged(below: &Arc<Machines>, merged: Cow<'_, Machines>) -> Arc<Machines> {
    match merged {
        Cow::Borrowed(_) => Arc::clone(below),
        Cow::Owned(merged) => Arc::new(merged),
    }
}

fn connection(settings: &Machines) -> Option<String> {
    match settings.provider {
        Provider::Incus => Some(settings.incus.clone().unwrap_or_default().server().to_owned()),
        Provider::Libvirt => Some(settings.libvirt.clone().unwrap_or_default().uri),
        Provider::Local | Provider::Hosts | Provider::Openstack | Provider::Aws => None,
    }
}

/// What can be done with a machine. The planner reads this, never a provider's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// It is made and deleted. Without it, it exists already: enrolled once, and left clean.
    pub makes: bool,
    /// It gets another address while what runs on it goes on.
    pub moves: bool,
    /// It boots with boot data and a firewall of its own.
    pub boots: bool,
}

impl Capabilities {
    /// Of the machines of this provider.
    pub fn of(provider: Provider) -> Self {
        match provider {
            Provider::Local => Self { makes: true, moves: true, boots: false },
            Provider::Hosts => Self { makes: false, moves: false, boots: false },
            Provider::Incus | Provider::Libvirt | Provider::Openstack | Provider::Aws => {
                Self { makes: true, moves: false, boots: true }
            }
        }
    }
}
