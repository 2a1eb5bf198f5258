//! The section `machines` → each machine that should be: its place, its shape, its address, what it is given.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::addresses::Spot;
use crate::spec::zones::spread;
use crate::spec::{EtcdCluster, FirewallSources, Machines, Name, Provider, Shape};

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

/// The machines of a cluster's members, in the order of `members`: the fleet's section, overridden by the zone, the cluster
/// and the member. Those that are overridden alike share one section.
pub(super) fn resolve(
    fleet: &Arc<Machines>,
    cluster: &EtcdCluster,
    members: &[Spot],
    remembered: Option<&BTreeMap<Name, Name>>,
) -> BTreeMap<Name, Machine> {
    let named = |index: usize| cluster.listed().get(index).and_then(|member| member.zone.as_ref());
    let mut sections: BTreeMap<Option<Name>, Arc<Machines>> = BTreeMap::new();
    let zones = placed(fleet, cluster, members, remembered);
    let machine = |(index, ((name, address), zone)): (usize, (&Spot, Option<Name>))| {
        let section = sections.entry(zone.clone()).or_insert_with(|| {
            let in_zone = merged(fleet, fleet.with_zone(zone.as_ref()));
            merged(&in_zone, in_zone.with_cluster(cluster.machines.as_ref()))
        });
        let ours = cluster.listed().get(index).and_then(|member| member.machine.as_ref());
        let settings = merged(section, section.with_member(ours));
        let home = home(fleet, remembered, name).cloned();
        let (provider, connection) = (settings.provider, connection(&settings));
        let place = Place { provider, connection, zone, home, pinned: named(index).is_some() };
        (name.clone(), Machine::new(name.clone(), *address, settings, place))
    };
    members.iter().zip(zones).enumerate().map(machine).collect()
}

/// The machines that a balancer has to itself, spread over the fleet's zones.
pub(super) fn of_balancer(
    fleet: &Arc<Machines>,
    instances: &[Spot],
    remembered: Option<&BTreeMap<Name, Name>>,
) -> BTreeMap<Name, Machine> {
    let home = |name: &Name| home(fleet, remembered, name).cloned();
    let given: Vec<Option<Name>> = instances.iter().map(|(name, _)| home(name)).collect();
    let zones: Vec<&Name> = fleet.zones.keys().collect();
    let zones = if fleet.provider == Provider::Hosts { given } else { spread(&zones, &given) };
    let machine = |((name, address), zone): (&Spot, Option<Name>)| {
        let settings = merged(fleet, fleet.with_zone(zone.as_ref()));
        let (provider, connection) = (settings.provider, connection(&settings));
        let place = Place { provider, connection, zone, home: home(name), pinned: false };
        (name.clone(), Machine::new(name.clone(), *address, settings, place))
    };
    instances.iter().zip(zones).map(machine).collect()
}

/// The zone of each member: the one that the file names for it, the one that it is in, or the emptiest.
fn placed(
    fleet: &Machines,
    cluster: &EtcdCluster,
    members: &[Spot],
    remembered: Option<&BTreeMap<Name, Name>>,
) -> Vec<Option<Name>> {
    let ours = cluster.machines.as_ref().and_then(|ours| ours.zones.as_ref());
    let zones: Vec<&Name> = ours.map_or_else(|| fleet.zones.keys().collect(), |ours| ours.iter().collect());
    let given = |(index, (name, _)): (usize, &Spot)| {
        let named = cluster.listed().get(index).and_then(|member| member.zone.as_ref());
        named.or_else(|| home(fleet, remembered, name)).cloned()
    };
    let given: Vec<Option<Name>> = members.iter().enumerate().map(given).collect();
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
