//! One instance of a balancer and its virtual address → keepalived's configuration file.

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::spec::Name;

/// Debian's keepalived.
pub const PROGRAM: &str = "/usr/sbin/keepalived";
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
        insta::assert_snapshot!("keepalived", text);
    }
}
