//! The file's addresses and the fleet's network → an address for every machine, the same at every run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Capabilities, DesireError, Identity};
use crate::spec::postgres::Nodes;
use crate::spec::{Instances, Members, Name, Provider, Spec, Subnet};

/// Routers and the like are at the beginning of a subnet.
const FIRST_IN_SUBNET: u32 = 11;

/// A machine, and its address where that is known: elsewhere its provider assigns it.
pub(super) type Spot = (Name, Option<IpAddr>);

/// A loopback network of 254 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoopbackNetwork {
    second: u8,
    third: u8,
}

/// Why a text is no such network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a loopback network of the form 127.x.y.0/24")]
pub struct NetworkError(String);

impl LoopbackNetwork {
    /// `127.<second>.<third>.0/24`.
    pub fn new(second: u8, third: u8) -> Self {
        Self { second, third }
    }

    /// The address with this last number.
    pub fn address(self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, self.second, self.third, last)
    }
}

impl fmt::Display for LoopbackNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/24", self.address(0))
    }
}

impl FromStr for LoopbackNetwork {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NetworkError(text.to_owned());
        let address: Ipv4Addr = text.strip_suffix("/24").ok_or_else(wrong)?.parse().map_err(|_| wrong())?;
        match address.octets() {
            [127, second, third, 0] => Ok(Self { second, third }),
            _ => Err(wrong()),
        }
    }
}

impl Serialize for LoopbackNetwork {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LoopbackNetwork {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Assigns addresses in the order of the file, and skips those that a member has and those that the file assigns.
///
/// A fleet that outgrows its network goes on in the one above it: 1,000 clusters in one file are a legitimate plan.
pub(super) struct Allotment {
    network: Option<LoopbackNetwork>,
    subnet: Option<Subnet>,
    places: BTreeMap<Name, BTreeMap<Name, IpAddr>>,
    given: BTreeSet<IpAddr>,
    next: u8,
    full: bool,
    single: bool,
    /// Whether the provider assigns what is not known.
    assigns: bool,
}

impl Allotment {
    pub(super) fn new(spec: &Spec, identity: &Identity) -> Self {
        let written = spec
            .etcd
            .values()
            .flat_map(|cluster| match &cluster.members {
                Members::Count(_) => &[],
                Members::List(list) => list.as_slice(),
            })
            .filter_map(|member| member.address);
        let balancers = spec.balancers.values().flat_map(|balancer| {
            let instances: &[_] = match &balancer.instances {
                Instances::Count(_) | Instances::Beside(_) => &[],
                Instances::List(list) => list,
            };
            instances.iter().filter_map(|instance| instance.address).chain(balancer.virtual_address)
        });
        let nodes = spec.postgres.values().flat_map(|cluster| match &cluster.nodes {
            Nodes::Count(_) => &[],
            Nodes::List(list) => list.as_slice(),
        });
        let nodes = nodes.filter_map(|node| node.address);
        let held = identity.places.values().flat_map(|places| places.values().copied());
        let given = written.chain(nodes).chain(balancers).chain(held).chain(spec.machines.gateway).collect();
        let single = spec.machines.network.is_some();
        let places = identity.places.clone();
        let subnet = spec.machines.subnet.filter(|_| spec.machines.provider != Provider::Local);
        let network = identity.network.filter(|_| subnet.is_none());
        let assigns = Capabilities::of(spec.machines.provider).assigns;
        Self { network, subnet, places, given, next: 1, full: false, single, assigns }
    }

    /// The address of a machine that the file gives none; nothing where its provider is still to assign one.
    pub(super) fn allot(&mut self, cluster: &Name, member: &Name) -> Result<Option<IpAddr>, DesireError> {
        if let Some(place) = self.places.get(cluster).and_then(|places| places.get(member)) {
            return Ok(Some(*place));
        }
        if self.subnet.is_none() && self.assigns {
            return Ok(None);
        }
        if let Some(subnet) = self.subnet {
            let free = subnet.hosts_from(FIRST_IN_SUBNET).find(|address| !self.given.contains(address));
            let full = || DesireError::NetworkFull { network: subnet.to_string(), cluster: cluster.clone() };
            let address = free.ok_or_else(full)?;
            self.given.insert(address);
            return Ok(Some(address));
        }
        loop {
            let Some(network) = self.network else {
                return Err(DesireError::NoAddress { member: member.clone() });
            };
            if self.full {
                return Err(DesireError::NetworkFull { network: network.to_string(), cluster: cluster.clone() });
            }
            let address = IpAddr::V4(network.address(self.next));
            self.step(network);
            if !self.given.contains(&address) {
                return Ok(Some(address));
            }
        }
    }

    fn step(&mut self, network: LoopbackNetwork) {
        if self.next < 254 {
            self.next += 1;
            return;
        }
        self.next = 1;
        let above = match (network.second, network.third) {
            _ if self.single => None,
            (255, 255) => None,
            (second, 255) => Some(LoopbackNetwork::new(second + 1, 0)),
            (second, third) => Some(LoopbackNetwork::new(second, third + 1)),
        };
        match above {
            Some(above) => self.network = Some(above),
            None => self.full = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_read_and_print_alike() {
        let network: LoopbackNetwork = "127.0.42.0/24".parse().expect("a network");
        assert_eq!(network.to_string(), "127.0.42.0/24");
        assert_eq!(network.address(7).to_string(), "127.0.42.7");
        for wrong in ["127.0.42.1/24", "10.0.0.0/24", "127.0.42.0", "127.0.42.0/16", ""] {
            assert!(wrong.parse::<LoopbackNetwork>().is_err(), "{wrong}");
        }
    }
}
