//! The section `machines` → each machine that should be: its place, its shape, its address, what it is given.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::addresses::Spot;
use crate::spec::zones::spread;
use crate::spec::{
    ClusterMachines, EtcdCluster, FirewallSources, Machines, MemberMachine, Name, PostgresCluster, Provider, Shape,
};

/// One machine that should be. What runs on it names it: a member of etcd by its field `machine`, a node of PostgreSQL by
/// its own name.
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
    pub firewall: Option<FirewallSources>,
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
    /// The zone that it is in, where the file has zones.
    pub zone: Option<Name>,
    /// The zone that it is in as far as the state remembers, also where the file names another one by now.
    pub home: Option<Name>,
    /// Whether the file names the zone of this machine. Elsewhere it was chosen, and a machine that is in another one stays.
    pub pinned: bool,
}

/// Where a machine is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// Known: given in the file, taken from the fleet's network, or assigned by the provider before.
    Given(IpAddr),
    /// The provider is still to assign it. Until then the machine is not made, and what runs on it is not described.
    Assigned,
}

impl Address {
    /// The address, where it is known.
    pub fn given(self) -> Option<IpAddr> {
        match self {
            Self::Given(address) => Some(address),
            Self::Assigned => None,
        }
    }
}

impl Machine {
    fn new(name: Name, address: Option<IpAddr>, settings: Arc<Machines>, place: Place) -> Self {
        let capabilities = Capabilities::of(settings.provider);
        Self {
            name,
            place,
            address: address.map_or(Address::Assigned, Address::Given),
            shape: settings.shape(),
            capabilities,
            firewall: settings.sources().filter(|_| capabilities.boots),
            metrics: settings.node_exporter == Some(true),
            delivers: capabilities.boots && settings.has_deliveries(),
            settings,
        }
    }
}

/// What the file says otherwise of the machines of one cluster, and of single ones among them. A balancer's are as the
/// fleet's.
#[derive(Debug, Default)]
pub(super) struct Overrides<'s> {
    cluster: Option<&'s ClusterMachines>,
    /// In order, where the file lists them.
    listed: Vec<Listed<'s>>,
}

/// What the file says of one machine.
#[derive(Debug, Clone, Copy)]
struct Listed<'s> {
    zone: Option<&'s Name>,
    machine: Option<&'s MemberMachine>,
}

impl<'s> Overrides<'s> {
    pub(super) fn of_members(cluster: &'s EtcdCluster) -> Self {
        let listed = cluster.listed().iter();
        let listed = listed.map(|member| Listed { zone: member.zone.as_ref(), machine: member.machine.as_ref() });
        Self { cluster: cluster.machines.as_ref(), listed: listed.collect() }
    }

    pub(super) fn of_nodes(cluster: &'s PostgresCluster) -> Self {
        let listed = cluster.listed().iter();
        let listed = listed.map(|node| Listed { zone: node.zone.as_ref(), machine: node.machine.as_ref() });
        Self { cluster: cluster.machines.as_ref(), listed: listed.collect() }
    }

    /// The zone that the file names for the machine at this place.
    fn zone(&self, index: usize) -> Option<&'s Name> {
        self.listed.get(index).and_then(|listed| listed.zone)
    }
}

/// The machines of a cluster or a balancer, in the order of `spots`: the fleet's section, overridden by the zone, the
/// cluster and the machine itself. Those that are overridden alike share one section.
pub(super) fn resolve(
    fleet: &Arc<Machines>,
    overrides: &Overrides<'_>,
    spots: &[Spot],
    remembered: Option<&BTreeMap<Name, Name>>,
) -> BTreeMap<Name, Machine> {
    let mut sections: BTreeMap<Option<Name>, Arc<Machines>> = BTreeMap::new();
    let zones = placed(fleet, overrides, spots, remembered);
    let machine = |(index, ((name, address), zone)): (usize, (&Spot, Option<Name>))| {
        let section = sections.entry(zone.clone()).or_insert_with(|| {
            let in_zone = merged(fleet, fleet.with_zone(zone.as_ref()));
            merged(&in_zone, in_zone.with_cluster(overrides.cluster))
        });
        let ours = overrides.listed.get(index).and_then(|listed| listed.machine);
        let settings = merged(section, section.with_member(ours));
        let home = home(fleet, remembered, name).cloned();
        let (provider, connection) = (settings.provider, connection(&settings));
        let place = Place { provider, connection, zone, home, pinned: overrides.zone(index).is_some() };
        (name.clone(), Machine::new(name.clone(), *address, settings, place))
    };
    spots.iter().zip(zones).enumerate().map(machine).collect()
}

/// The zone of each machine: the one that the file names for it, the one that it is in, or the emptiest.
fn placed(
    fleet: &Machines,
    overrides: &Overrides<'_>,
    spots: &[Spot],
    remembered: Option<&BTreeMap<Name, Name>>,
) -> Vec<Option<Name>> {
    let ours = overrides.cluster.and_then(|ours| ours.zones.as_ref());
    let zones: Vec<&Name> = ours.map_or_else(|| fleet.zones.keys().collect(), |ours| ours.iter().collect());
    let given =
        |(index, (name, _)): (usize, &Spot)| overrides.zone(index).or_else(|| home(fleet, remembered, name)).cloned();
    let given: Vec<Option<Name>> = spots.iter().enumerate().map(given).collect();
    match fleet.provider {
        // Where a host is cannot be chosen.
        Provider::Hosts => given,
        Provider::Local | Provider::Incus | Provider::Libvirt | Provider::Openstack | Provider::Aws => {
            spread(&zones, &given)
        }
    }
}

/// The zone that a machine is in as far as the state remembers, where the file still has it.
fn home<'a>(fleet: &Machines, remembered: Option<&'a BTreeMap<Name, Name>>, name: &Name) -> Option<&'a Name> {
    remembered.and_then(|zones| zones.get(name)).filter(|zone| fleet.zones.contains_key(*zone))
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
    /// Its provider assigns it an address where neither the file nor the fleet's network has one.
    pub assigns: bool,
}

impl Capabilities {
    /// Of the machines of this provider.
    pub fn of(provider: Provider) -> Self {
        match provider {
            Provider::Local => Self { makes: true, moves: true, boots: false, assigns: false },
            Provider::Hosts => Self { makes: false, moves: false, boots: false, assigns: false },
            Provider::Libvirt => Self { makes: true, moves: false, boots: true, assigns: false },
            Provider::Incus | Provider::Openstack | Provider::Aws => {
                Self { makes: true, moves: false, boots: true, assigns: true }
            }
        }
    }
}
