//! A network of an Incus server, the addresses in use → a free one.
//!
//! Incus keeps no reservation for an instance that does not exist: an address is reserved by the instance that is made
//! with it, and Incus starts no second one with the same.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use raftsman_core::spec::Subnet;
use serde_json::Value;

use super::IncusError;
use super::api::Server;

/// A network as far as addresses are concerned.
#[derive(Debug, PartialEq, Eq)]
struct Network {
    /// The server's own address in it.
    own: Ipv4Addr,
    prefix: u8,
    /// Where its DHCP server takes addresses from, from the first to the last; from all of it where none are given.
    dynamic: Vec<(Ipv4Addr, Ipv4Addr)>,
}

/// A free address of this network, the same at every request for as long as it is free: the search begins at a place
/// that this text determines, so that two runs that do not know of each other seldom find the same.
pub(super) async fn assign(
    server: &Server,
    network: &str,
    begin: &str,
    taken: &BTreeSet<IpAddr>,
) -> Result<IpAddr, IncusError> {
    let path = format!("/1.0/networks/{network}");
    let unusable = |why| IncusError::NoAddresses { network: network.to_owned(), why };
    let found = server.get(&path).await?.ok_or_else(|| unusable("there is none of this name"))?;
    let read = Network::read(&found).map_err(unusable)?;
    let mut in_use = taken.clone();
    // Networks without a DHCP server of their own have no leases.
    match server.get(&format!("{path}/leases")).await {
        Ok(leases) => in_use.extend(leased(&leases.unwrap_or_default())),
        Err(IncusError::Refused { .. }) => {}
        Err(error) => return Err(error),
    }
    // A client that is restricted to a project sees the instances of that one only.
    let instances = match server.get("/1.0/instances?recursion=1&all-projects=true").await {
        Err(IncusError::Refused { .. } | IncusError::Untrusted { .. }) => {
            server.get("/1.0/instances?recursion=1").await?
        }
        answer => answer?,
    };
    in_use.extend(given(&instances.unwrap_or_default(), network));
    let free = read.free(begin, &in_use).map(IpAddr::V4);
    free.ok_or_else(|| IncusError::NetworkFull { network: network.to_owned(), subnet: read.subnet() })
}

impl Network {
    fn read(found: &Value) -> Result<Self, &'static str> {
        if found["managed"] != true {
            return Err("Incus does not manage it");
        }
        let config = |key: &str| found["config"][key].as_str().unwrap_or_default();
        let (own, prefix) = config("ipv4.address").split_once('/').ok_or("it has no IPv4 subnet")?;
        if config("ipv4.dhcp") == "false" {
            return Err("its DHCP server is off");
        }
        let (own, prefix) = (own.parse().ok(), prefix.parse().ok().filter(|prefix| *prefix <= 32));
        let (own, prefix) = own.zip(prefix).ok_or("its IPv4 subnet cannot be read")?;
        let range = |text: &str| {
            let (first, last) = text.trim().split_once('-')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let dynamic = config("ipv4.dhcp.ranges").split(',').filter_map(range).collect();
        Ok(Self { own, prefix, dynamic })
    }

    fn hosts(&self) -> u32 {
        u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0)
    }

    fn first(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.own.to_bits() & !self.hosts())
    }

    fn subnet(&self) -> String {
        format!("{}/{}", self.first(), self.prefix)
    }

    /// A free address; where the network has ranges for its DHCP server, one outside of them as long as there is one.
    fn free(&self, begin: &str, in_use: &BTreeSet<IpAddr>) -> Option<Ipv4Addr> {
        let subnet = Subnet::parse(&self.subnet()).ok()?;
        let size = u64::from(self.hosts()) + 1;
        let start = u64::from_str_radix(begin.get(..15)?, 16).ok()? % size;
        let all = || {
            let numbers = (0..size).map(move |step| (start + step) % size);
            let addresses = numbers.filter_map(|number| Some(self.first().to_bits() | u32::try_from(number).ok()?));
            addresses.map(Ipv4Addr::from_bits).filter(|address| {
                let host = IpAddr::V4(*address);
                *address != self.own && subnet.has_room_for(host) && !in_use.contains(&host)
            })
        };
        let is_dynamic =
            |address: &Ipv4Addr| self.dynamic.iter().any(|(first, last)| first <= address && address <= last);
        all().find(|address| !is_dynamic(address)).or_else(|| all().next())
    }
}

/// The addresses of leases, also of those that Incus keeps for instances that are off.
fn leased(leases: &Value) -> impl Iterator<Item = IpAddr> {
    leases.as_array().into_iter().flatten().filter_map(|lease| lease["address"].as_str()?.parse().ok())
}

/// The addresses that instances are given in this network, by themselves or by their profiles.
fn given(instances: &Value, network: &str) -> impl Iterator<Item = IpAddr> {
    let devices = instances.as_array().into_iter().flatten().flat_map(|instance| {
        ["expanded_devices", "devices"]
            .into_iter()
            .filter_map(|key| instance[key].as_object())
            .flat_map(|all| all.values())
    });
    let here = devices.filter(move |nic| nic["network"] == network || nic["parent"] == network);
    here.flat_map(|nic| ["ipv4.address", "ipv6.address"].map(|key| nic[key].as_str()))
        .filter_map(|address| address?.parse().ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn network(config: Value) -> Network {
        Network::read(&json!({"managed": true, "config": config})).expect("a network")
    }

    #[test]
    fn networks_without_a_subnet_that_incus_manages_have_no_addresses() {
        let read = |found: Value| Network::read(&found).unwrap_err();
        assert_eq!(read(json!({"managed": false, "config": {}})), "Incus does not manage it");
        assert_eq!(read(json!({"managed": true, "config": {"ipv4.address": "none"}})), "it has no IPv4 subnet");
        let off = json!({"managed": true, "config": {"ipv4.address": "10.7.0.1/24", "ipv4.dhcp": "false"}});
        assert_eq!(read(off), "its DHCP server is off");
    }

    #[test]
    fn an_address_is_free_and_the_same_at_every_request() {
        let small = network(json!({"ipv4.address": "10.7.0.1/29"}));
        assert_eq!(small.subnet(), "10.7.0.0/29");
        let mut in_use = BTreeSet::new();
        let mut found = Vec::new();
        while let Some(address) = small.free("4c0ffee4c0ffee00", &in_use) {
            assert_eq!(small.free("4c0ffee4c0ffee00", &in_use), Some(address));
            assert!(in_use.insert(IpAddr::V4(address)), "{address} twice");
            found.push(address.octets()[3]);
        }
        found.sort_unstable();
        assert_eq!(found, [2, 3, 4, 5, 6], "neither the network, nor its gateway, nor the broadcast address");
    }

    #[test]
    fn an_address_outside_of_the_ranges_of_dhcp_is_preferred() {
        let ranges =
            network(json!({"ipv4.address": "10.7.0.1/29", "ipv4.dhcp.ranges": "10.7.0.2-10.7.0.4, 10.7.0.6-10.7.0.6"}));
        let mut in_use = BTreeSet::new();
        assert_eq!(ranges.free("00000000000000000", &in_use), Some(Ipv4Addr::new(10, 7, 0, 5)));
        in_use.insert(IpAddr::from([10, 7, 0, 5]));
        assert_eq!(ranges.free("00000000000000000", &in_use), Some(Ipv4Addr::new(10, 7, 0, 2)));
    }

    #[test]
    fn leases_and_addresses_of_instances_in_the_network_are_in_use() {
        let leases = json!([{"address": "10.7.0.2", "type": "dynamic"}, {"address": "10.7.0.1", "type": "gateway"}]);
        assert_eq!(leased(&leases).count(), 2);
        let nic = |network: &str, address: &str| json!({"eth0": {"network": network, "ipv4.address": address}});
        let instances = json!([
            {"devices": {}, "expanded_devices": nic("raft", "10.7.0.3")},
            {"devices": nic("other", "10.8.0.3")},
            {"expanded_devices": {"eth0": {"parent": "raft", "ipv4.address": "10.7.0.4"}, "root": {"type": "disk"}}},
        ]);
        let found: Vec<String> = given(&instances, "raft").map(|address| address.to_string()).collect();
        assert_eq!(found, ["10.7.0.3", "10.7.0.4"]);
    }
}
