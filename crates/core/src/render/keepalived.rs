//! One instance of a balancer and its virtual address → keepalived's configuration file.

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::spec::Name;

/// Debian's keepalived.
pub const PROGRAM: &str = "/usr/sbin/keepalived";
/// Debian's package of it.
pub const PACKAGE: &str = "keepalived";
/// The name of its configuration file.
pub const FILE: &str = "keepalived.conf";
/// Stands for the interface that has the machine's address, which only its agent knows.
pub const INTERFACE: &str = "{interface}";

/// What an instance's configuration is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keepalived<'a> {
    /// The balancer's name.
    pub balancer: &'a Name,
    /// The instance's name.
    pub instance: &'a Name,
    /// The interface that gets the virtual address; the one that has the machine's address by default.
    pub interface: Option<&'a str>,
    /// The virtual router ID.
    pub router_id: u8,
    /// Of instances that start together, the one with the highest gets the address.
    pub priority: u8,
    /// The machine's own address.
    pub address: IpAddr,
    /// The addresses of the other instances.
    pub peers: &'a [IpAddr],
    /// The address that one of them has.
    pub virtual_address: IpAddr,
}

/// keepalived's configuration file.
///
/// Messages go to each peer's address: many networks carry no multicast. The address does not return to an instance that
/// comes back (`nopreempt`), because every move ends all connections. It runs no check: its unit ends with HAProxy's, and
/// then it hands the address over at once. (A script that asks `pidof` would run `killall5`: keepalived follows the link.)
pub fn config(keepalived: &Keepalived<'_>) -> String {
    let Keepalived { balancer, instance, router_id, priority, address, virtual_address, .. } = keepalived;
    let interface = keepalived.interface.unwrap_or(INTERFACE);
    let prefix = if virtual_address.is_ipv4() { 32 } else { 128 };
    let peers = keepalived.peers.iter().fold(String::new(), |mut list, peer| {
        let _ = writeln!(list, "        {peer}");
        list
    });
    format!(
        "\
# Written by raftsman: changes are lost when the balancer is configured again.
global_defs {{
    router_id {instance}
    vrrp_version 3
}}

vrrp_instance {balancer} {{
    state BACKUP
    nopreempt
    interface {interface}
    virtual_router_id {router_id}
    priority {priority}
    advert_int 1
    unicast_src_ip {address}
    unicast_peer {{
{peers}    }}
    virtual_ipaddress {{
        {virtual_address}/{prefix}
    }}
}}
"
    )
}

/// The interface in a configuration file.
pub fn interface(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.trim().strip_prefix("interface "))
}

/// The number of the first line that is none of [`config`]'s. keepalived runs as root, and its own language runs scripts:
/// an agent takes only what raftsman writes, whoever sends it.
pub fn foreign_line(text: &str) -> Option<usize> {
    text.lines().position(|line| !is_ours(line)).map(|index| index + 1)
}

fn is_ours(line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
    let number = |word: &str| word.parse::<u8>().is_ok();
    let address = |word: &str| word.parse::<IpAddr>().is_ok();
    let interface = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    match words.as_slice() {
        []
        | ["#", ..]
        | ["}"]
        | ["global_defs" | "unicast_peer" | "virtual_ipaddress", "{"]
        | ["vrrp_version", "3"]
        | ["state", "BACKUP"]
        | ["nopreempt"] => true,
        ["router_id", name] | ["vrrp_instance", name, "{"] => Name::parse(name).is_ok(),
        ["interface", name] => *name == INTERFACE || interface(name),
        ["virtual_router_id" | "priority" | "advert_int", value] => number(value),
        ["unicast_src_ip", own] => address(own),
        [one] => one.split_once('/').map_or_else(|| address(one), |(at, prefix)| address(at) && number(prefix)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_of_three() {
        let text = config(&Keepalived {
            balancer: &Name::parse("front").expect("a name"),
            instance: &Name::parse("front-1").expect("a name"),
            interface: None,
            router_id: 100,
            priority: 200,
            address: IpAddr::from([10, 0, 0, 21]),
            peers: &[IpAddr::from([10, 0, 0, 22]), IpAddr::from([10, 0, 0, 23])],
            virtual_address: IpAddr::from([10, 0, 0, 100]),
        });
        assert_eq!(foreign_line(&text), None);
        assert_eq!(interface(&text), Some(INTERFACE));
        insta::assert_snapshot!("keepalived", text);
    }

    #[test]
    fn what_runs_programs_is_not_ours() {
        for line in [
            "    notify /tmp/x",
            "vrrp_script x {",
            "    script /tmp/x",
            "include /tmp/x",
            "    interface eth0 dev",
            "$A=1",
            "    10.0.0.1/24 dev eth0",
            "static_ipaddress {",
            "\tnotify /tmp/x",
            "@^x notify /tmp/x",
        ] {
            assert_eq!(foreign_line(&format!("global_defs {{\n{line}\n")), Some(2), "{line}");
        }
    }
}
