//! `10.77.0.0/24` → a network, or the reason why it is none.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::units::{UnitError, as_text, quoted};

/// A network: its first address, and how many bits all of its addresses have in common. A single address is one too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subnet {
    first: IpAddr,
    prefix: u8,
}

impl Subnet {
    /// Reads `10.77.0.0/24`, `fd00:77::/64`, or a single address.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        const EXAMPLE: &str = "a first address and a prefix length, such as `10.77.0.0/24` or `fd00:77::/64`";
        let text = text.trim();
        let bad = |why: &str, help: String| UnitError::new(format!("{} is not a network: {why}", quoted(text)), help);
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let Ok(address) = address.parse::<IpAddr>() else {
            return Err(bad("it does not start with an address", EXAMPLE.to_owned()));
        };
        let longest = Self::longest(address);
        let Some(prefix) = prefix else { return Ok(Self::single(address)) };
        let digits = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_digit());
        let Some(prefix) = prefix.parse().ok().filter(|prefix| digits && *prefix <= longest) else {
            return Err(bad(&format!("the prefix length is a number from 0 to {longest}"), EXAMPLE.to_owned()));
        };
        let first = Self::cut(address, prefix);
        if first != address {
            return Err(bad("it does not start at its first address", format!("write `{first}/{prefix}`")));
        }
        Ok(Self { first, prefix })
    }

    /// This address only.
    pub fn single(address: IpAddr) -> Self {
        Self { first: address, prefix: Self::longest(address) }
    }

    fn longest(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }

    /// The address with everything behind the prefix set to zero.
    fn cut(address: IpAddr, prefix: u8) -> IpAddr {
        match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        }
    }

    /// Its first address.
    pub fn first(self) -> IpAddr {
        self.first
    }

    /// How many bits its addresses have in common.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Whether it is one address only.
    pub fn is_single(self) -> bool {
        self.prefix == Self::longest(self.first)
    }

    /// Whether this address is in it.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && Self::cut(address, self.prefix) == self.first
    }

    /// Whether all of another network is in it.
    pub fn covers(self, other: Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.first)
    }

    /// Whether a machine can have this address of it: not the first, which is the network's, and in IPv4 not the last,
    /// which is the broadcast address.
    pub fn has_room_for(self, address: IpAddr) -> bool {
        let last = match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(v4)) => {
                let hosts = u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
                v4.to_bits() == first.to_bits() | hosts
            }
            _ => false,
        };
        self.contains(address) && address != self.first && !last
    }

    /// The addresses that machines can have in it, from the one with this number on.
    pub fn hosts_from(self, number: u32) -> impl Iterator<Item = IpAddr> {
        let room = 128u32.min(u32::from(Self::longest(self.first) - self.prefix));
        let size = 1u128.checked_shl(room).unwrap_or(u128::MAX);
        let address = move |number: u128| match self.first {
            IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() | number as u32)),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() | number)),
        };
        // A small subnet has no beginning to keep clear of.
        let from = if size > 2 * u128::from(number) { u128::from(number) } else { 1 };
        (from..size).map(address).filter(move |address| self.has_room_for(*address))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_single() {
            true => f.pad(&self.first.to_string()),
            false => f.pad(&format!("{}/{}", self.first, self.prefix)),
        }
    }
}

as_text!(
    Subnet,
    deserialize_str,
    "a network such as `10.77.0.0/24`",
    json_schema!({
        "description": "A network, such as `10.77.0.0/24`, or a single address.",
        "type": "string",
        "pattern": "^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$"
    })
);

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(text: &str) -> Subnet {
        Subnet::parse(text).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn networks_survive_being_written_and_read_again() {
        for text in ["10.77.0.0/24", "0.0.0.0/0", "10.0.0.5", "::/0", "fd00:77::/64", "fd00::1", "10.0.0.4/31"] {
            assert_eq!(subnet(text).to_string(), text);
        }
        assert_eq!(subnet("10.0.0.5/32"), subnet("10.0.0.5"));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/+8", "10.0.0/8", "::/129", "10.77.0.1/24", "fd00::1/64", "/8"]
        {
            assert!(Subnet::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn machines_get_what_is_free() {
        let hosts = |text: &str| subnet(text).hosts_from(11).map(|host| host.to_string()).collect::<Vec<_>>();
        assert_eq!(hosts("10.0.0.4/30"), ["10.0.0.5", "10.0.0.6"]);
        assert_eq!(hosts("10.0.0.32/27").first().map(String::as_str), Some("10.0.0.43"));
        assert_eq!(hosts("10.77.0.0/24").len(), 244);
        assert_eq!(
            subnet("fd00:77::/64").hosts_from(11).next().map(|host| host.to_string()).as_deref(),
            Some("fd00:77::b")
        );
        assert!(subnet("::/0").hosts_from(11).next().is_some());
    }

    #[test]
    fn addresses_are_inside_or_not() {
        let net = subnet("10.77.0.0/24");
        for (address, inside, room) in [
            ("10.77.0.1", true, true),
            ("10.77.0.0", true, false),
            ("10.77.0.255", true, false),
            ("10.77.1.0", false, false),
            ("::1", false, false),
        ] {
            let address = address.parse().expect("an address");
            assert_eq!((net.contains(address), net.has_room_for(address)), (inside, room), "{address}");
        }
        assert!(subnet("0.0.0.0/0").contains("255.255.255.255".parse().expect("an address")));
        assert!(subnet("::/0").contains("ffff::".parse().expect("an address")));
        assert!(!subnet("::/0").contains("10.0.0.1".parse().expect("an address")));
        assert!(subnet("fd00:77::/64").has_room_for("fd00:77::1".parse().expect("an address")));
    }
}
