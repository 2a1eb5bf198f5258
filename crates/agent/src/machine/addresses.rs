//! `/proc/net` → the addresses that this machine has now, and the interface of one of them.
//!
//! Files rather than netlink, which the agent's unit does not allow; rather than `bind`, which succeeds for every address
//! where `ip_nonlocal_bind` is set, as many balancers have it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether the machine has this address now.
pub fn has(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_local(&read("fib_trie"), address),
        IpAddr::V6(address) => interface_of_v6(&read("if_inet6"), address).is_some(),
    }
}

/// The interface that has this address. Of IPv4 the kernel lists none: it is the one that the most specific route to it
/// goes through.
pub fn interface_of(address: IpAddr) -> Option<String> {
    match address {
        IpAddr::V4(address) => route_to(&read("route"), address),
        IpAddr::V6(address) => interface_of_v6(&read("if_inet6"), address),
    }
}

fn read(name: &str) -> String {
    fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default()
}

/// `|-- 10.0.0.1` and below it lines such as `/32 host LOCAL`.
fn is_local(table: &str, address: Ipv4Addr) -> bool {
    let mut base = Ipv4Addr::UNSPECIFIED;
    table.lines().map(str::trim).any(|line| {
        if let Some(text) = line.strip_prefix("|-- ") {
            base = text.parse().unwrap_or(Ipv4Addr::UNSPECIFIED);
        }
        let prefix = line.strip_prefix('/').and_then(|rest| rest.strip_suffix(" LOCAL"));
        let prefix: Option<u32> = prefix.and_then(|rest| rest.split(' ').next()?.parse().ok());
        prefix.is_some_and(|prefix| within(address, base, mask(prefix)))
    })
}

fn mask(prefix: u32) -> u32 {
    u32::MAX.checked_shl(32_u32.saturating_sub(prefix)).unwrap_or(0)
}

fn within(address: Ipv4Addr, base: Ipv4Addr, mask: u32) -> bool {
    address.to_bits() & mask == base.to_bits() & mask
}

/// Columns: interface, destination, gateway, flags, three counts, mask. Numbers are in the machine's byte order.
fn route_to(table: &str, address: Ipv4Addr) -> Option<String> {
    let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::to_ne_bytes).map(Ipv4Addr::from);
    let routes = table.lines().skip(1).filter_map(|line| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        let (base, mask) = (number(columns.get(1)?)?, number(columns.get(7)?)?.to_bits());
        within(address, base, mask).then(|| (mask.count_ones(), (*columns[0]).to_owned()))
    });
    // Of several that are alike, the first.
    routes.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, interface)| interface)
}

/// Columns: address, index, prefix, scope, flags, interface.
fn interface_of_v6(table: &str, address: Ipv6Addr) -> Option<String> {
    table.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        let found = u128::from_str_radix(columns.first()?, 16).ok()?;
        (Ipv6Addr::from_bits(found) == address).then(|| columns.get(5).map(|name| (*name).to_owned()))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIE: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 127.0.0.0
        /8 host LOCAL
     |-- 192.0.2.0
        /24 link UNICAST
     |-- 192.0.2.2
        /32 host LOCAL
     |-- 192.0.2.255
        /32 link BROADCAST
";

    #[test]
    fn addresses_of_this_machine_are_told_from_those_that_it_can_reach() {
        let local = |text: &str| is_local(TRIE, text.parse().expect("an address"));
        assert!(local("192.0.2.2") && local("127.76.0.5"));
        assert!(!local("192.0.2.3") && !local("192.0.2.255") && !local("10.0.0.1") && !local("0.0.0.0"));
        assert!(has(IpAddr::from([127, 0, 0, 1])) && !has(IpAddr::from([192, 0, 2, 250])));
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_interface_is_that_of_the_most_specific_route() {
        let table = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                     eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\neth1 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
        let interface = |text: &str| route_to(table, text.parse().expect("an address"));
        assert_eq!(interface("192.0.2.9").as_deref(), Some("eth1"));
        assert_eq!(interface("10.1.1.1").as_deref(), Some("eth0"), "an address without a network of its own");
        assert_eq!(route_to("", Ipv4Addr::LOCALHOST), None);
    }

    #[test]
    fn addresses_of_ipv6_have_their_interface() {
        let table = "fd000000000000000000000000000099 02 40 00 80     eth0\n";
        assert_eq!(interface_of_v6(table, "fd00::99".parse().expect("an address")).as_deref(), Some("eth0"));
        assert_eq!(interface_of_v6(table, "fd00::98".parse().expect("an address")), None);
    }
}
