//! firewall sources and members → nftables rules: the sources that each service of a machine accepts, and no others.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use crate::desired::{CLIENT_PORT, HEALTH_PORT, HTTP_PORT, PEER_PORT, POSTGRES_PORT, REST_PORT};
use crate::spec::{FirewallSources, Subnet};

/// Where the rules are on the machine.
pub const PATH: &str = "/etc/raftsman/firewall.nft";
/// SSH's port.
pub const SSH_PORT: u16 = 22;
/// The node exporter's port.
pub const METRICS_PORT: u16 = 9100;

/// What the rules of one machine are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firewall<'a> {
    /// The sources from which each service may be reached.
    pub sources: &'a FirewallSources,
    /// The port that the agent serves on.
    pub agent_port: u16,
    /// The addresses of the cluster's members.
    pub members: &'a [IpAddr],
    /// Whether there is a node exporter.
    pub metrics: bool,
    /// Whether etcd's metrics have a listener of their own.
    pub etcd_metrics: bool,
    /// The addresses of the instances of the cluster's balancers.
    pub balancers: &'a BTreeSet<IpAddr>,
    /// The addresses of the nodes of PostgreSQL whose Patroni keeps its keys in this etcd.
    pub nodes: &'a BTreeSet<IpAddr>,
    /// The instance of a balancer that shares the machine.
    pub front: Option<&'a Front>,
}

/// What an instance of a balancer is reached by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Front {
    /// The ports that clients connect to.
    pub ports: Vec<u16>,
    /// Whether they are PostgreSQL's clients, and not etcd's.
    pub postgres: bool,
    /// The addresses of the other instances, with which it agrees on the virtual address; none where there is none.
    pub peers: Vec<IpAddr>,
}

/// The rules, a table of their own: others on the machine stay as they are. Loaded as a whole or not at all.
pub fn rules(firewall: &Firewall<'_>) -> String {
    let sources = firewall.sources;
    let members: Vec<Subnet> = firewall.members.iter().copied().map(Subnet::single).collect();
    let balancers: Vec<Subnet> = firewall.balancers.iter().copied().map(Subnet::single).collect();
    // Members may ask each other as clients do, wherever clients may come from; balancers pass on what clients ask; and
    // the Patroni of each node is a client.
    let nodes = || firewall.nodes.iter().copied().map(Subnet::single);
    let near = || members.iter().chain(&balancers).copied().chain(nodes());
    let clients = sources.clients_from.as_ref().map(|from| from.iter().copied().chain(near()).collect::<Vec<_>>());
    let mut out = String::with_capacity(2048);
    out.push_str(HEAD);
    accept(&mut out, "raftsman's operators", firewall.agent_port, sources.operators_from.as_deref());
    accept(&mut out, "etcd's clients", CLIENT_PORT, clients.as_deref());
    if firewall.etcd_metrics {
        // Operators ask there for the version that the cluster has agreed upon.
        let operators = sources.operators_from.iter().flatten().copied();
        let from = sources.metrics_from.as_ref().map(|from| from.iter().copied().chain(operators).collect::<Vec<_>>());
        accept(&mut out, "etcd's metrics", HTTP_PORT, from.as_deref());
    }
    if !balancers.is_empty() {
        accept(&mut out, "balancers that check etcd's health", HEALTH_PORT, Some(&balancers));
    }
    if let Some(Front { ports, peers, .. }) = firewall.front {
        for port in ports.iter().filter(|port| **port != CLIENT_PORT) {
            accept(&mut out, "the balancer's clients", *port, sources.clients_from.as_deref());
        }
        accept_vrrp(&mut out, peers);
    }
    accept(&mut out, "etcd's members", PEER_PORT, Some(&members));
    accept(&mut out, "SSH", SSH_PORT, sources.ssh_from.as_deref());
    if firewall.metrics {
        accept(&mut out, "the node exporter", METRICS_PORT, sources.metrics_from.as_deref());
    }
    out.push_str("    }\n}\n");
    out
}

/// What the rules of a machine are made of that a balancer has to itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalancerFirewall<'a> {
    /// The sources from which each service may be reached.
    pub sources: &'a FirewallSources,
    /// The port that the agent serves on.
    pub agent_port: u16,
    /// What the instance is reached by.
    pub front: &'a Front,
    /// Whether there is a node exporter.
    pub metrics: bool,
}

/// The rules of a machine that a balancer has to itself.
pub fn balancer_rules(firewall: &BalancerFirewall<'_>) -> String {
    let sources = firewall.sources;
    let mut out = String::with_capacity(2048);
    out.push_str(HEAD);
    accept(&mut out, "raftsman's operators", firewall.agent_port, sources.operators_from.as_deref());
    let (whose, from) = match firewall.front.postgres {
        true => ("PostgreSQL's clients", &sources.postgres_from),
        false => ("etcd's clients", &sources.clients_from),
    };
    for port in &firewall.front.ports {
        accept(&mut out, whose, *port, from.as_deref());
    }
    accept_vrrp(&mut out, &firewall.front.peers);
    accept(&mut out, "SSH", SSH_PORT, sources.ssh_from.as_deref());
    if firewall.metrics {
        accept(&mut out, "the node exporter", METRICS_PORT, sources.metrics_from.as_deref());
    }
    out.push_str("    }\n}\n");
    out
}

/// What the rules of the machine of a node of PostgreSQL are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFirewall<'a> {
    /// The sources from which each service may be reached.
    pub sources: &'a FirewallSources,
    /// The port that the agent serves on.
    pub agent_port: u16,
    /// The addresses of the cluster's nodes.
    pub nodes: &'a BTreeSet<IpAddr>,
    /// The addresses of the instances of the balancers in front of it.
    pub balancers: &'a BTreeSet<IpAddr>,
    /// Whether there is a node exporter.
    pub metrics: bool,
}

/// The rules of the machine of a node of PostgreSQL.
pub fn node_rules(firewall: &NodeFirewall<'_>) -> String {
    let sources = firewall.sources;
    let near = || firewall.nodes.iter().chain(firewall.balancers).copied().map(Subnet::single);
    let clients = sources.postgres_from.as_ref().map(|from| from.iter().copied().chain(near()).collect::<Vec<_>>());
    let rest: Vec<Subnet> = sources.rest_from.iter().flatten().copied().chain(near()).collect();
    let mut out = String::with_capacity(2048);
    out.push_str(HEAD);
    accept(&mut out, "raftsman's operators", firewall.agent_port, sources.operators_from.as_deref());
    accept(&mut out, "PostgreSQL's clients and nodes", POSTGRES_PORT, clients.as_deref());
    accept(&mut out, "Patroni's REST interface", REST_PORT, Some(&rest));
    accept(&mut out, "SSH", SSH_PORT, sources.ssh_from.as_deref());
    if firewall.metrics {
        accept(&mut out, "the node exporter", METRICS_PORT, sources.metrics_from.as_deref());
    }
    out.push_str("    }\n}\n");
    out
}

/// DHCP's answers come to a broadcast address, so that they belong to no connection.
const HEAD: &str = "\
#!/usr/sbin/nft -f
# Written by raftsman: the sources that may connect to each port of this machine.
table inet raftsman
delete table inet raftsman
table inet raftsman {
    chain input {
        type filter hook input priority filter; policy drop;
        ct state established,related accept
        ct state invalid drop
        iifname \"lo\" accept
        meta l4proto { icmp, ipv6-icmp } accept
        udp sport 67 udp dport 68 accept
        ip6 saddr fe80::/10 udp sport 547 udp dport 546 accept
";

/// The rules for the other instances of a balancer with a virtual address.
fn accept_vrrp(out: &mut String, peers: &[IpAddr]) {
    if !peers.is_empty() {
        out.push_str("        # instances that agree on the virtual address\n");
    }
    for peer in peers {
        let family = if peer.is_ipv4() { "ip" } else { "ip6" };
        let _ = writeln!(out, "        {family} saddr {peer} meta l4proto vrrp accept");
    }
}

/// The rules for one port: from everywhere, or from these networks only.
fn accept(out: &mut String, what: &str, port: u16, from: Option<&[Subnet]>) {
    let _ = writeln!(out, "        # {what}");
    let Some(from) = from else {
        let _ = writeln!(out, "        tcp dport {port} accept");
        return;
    };
    for (family, v4) in [("ip", true), ("ip6", false)] {
        let list = apart(from.iter().copied().filter(|subnet| subnet.first().is_ipv4() == v4));
        let names: Vec<String> = list.iter().map(Subnet::to_string).collect();
        match list.as_slice() {
            [] => {}
            [all] if all.prefix() == 0 => {
                let protocol = if v4 { "ipv4" } else { "ipv6" };
                let _ = writeln!(out, "        meta nfproto {protocol} tcp dport {port} accept");
            }
            _ => {
                let _ = writeln!(out, "        {family} saddr {{ {} }} tcp dport {port} accept", names.join(", "));
            }
        }
    }
}

/// In order, without those that are in another one: a set that names an address twice is refused as a whole.
fn apart(subnets: impl Iterator<Item = Subnet>) -> Vec<Subnet> {
    let mut sorted: Vec<Subnet> = subnets.collect();
    // The larger of two that start at the same address comes first.
    sorted.sort();
    let mut kept: Vec<Subnet> = Vec::with_capacity(sorted.len());
    for subnet in sorted {
        // Two networks are apart, or one is in the other.
        if !kept.last().is_some_and(|last| last.contains(subnet.first())) {
            kept.push(subnet);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnets(list: &[&str]) -> Vec<Subnet> {
        list.iter().map(|text| Subnet::parse(text).expect("a network")).collect()
    }

    #[test]
    fn a_balancer_lets_in_clients_and_its_peers() {
        let sources = FirewallSources { clients_from: Some(subnets(&["10.0.0.0/8"])), ..FirewallSources::default() };
        let peers = vec![IpAddr::from([10, 0, 0, 22]), "fd00::22".parse().expect("an address")];
        let front = Front { ports: vec![2379], postgres: false, peers };
        let firewall = BalancerFirewall { sources: &sources, agent_port: 2378, front: &front, metrics: false };
        insta::assert_snapshot!("balancer", balancer_rules(&firewall));
    }

    #[test]
    fn a_balancer_of_postgresql_lets_in_its_clients() {
        let sources = FirewallSources { postgres_from: Some(subnets(&["10.5.0.0/16"])), ..FirewallSources::default() };
        let front = Front { ports: vec![5432, 5433], postgres: true, peers: Vec::new() };
        let rules =
            balancer_rules(&BalancerFirewall { sources: &sources, agent_port: 2378, front: &front, metrics: false });
        for port in [5432, 5433] {
            assert!(rules.contains(&format!("ip saddr {{ 10.5.0.0/16 }} tcp dport {port} accept\n")), "{rules}");
        }
        assert!(!rules.contains("2379") && !rules.contains("8008"), "{rules}");
    }

    #[test]
    fn members_let_in_the_balancers_that_check_them() {
        let sources = FirewallSources { clients_from: Some(subnets(&["10.9.0.0/16"])), ..FirewallSources::default() };
        let (members, balancers) = ([IpAddr::from([10, 0, 0, 11])], BTreeSet::from([IpAddr::from([10, 0, 0, 21])]));
        let rules = rules(&Firewall {
            sources: &sources,
            agent_port: 2378,
            members: &members,
            metrics: false,
            etcd_metrics: false,
            balancers: &balancers,
            nodes: &BTreeSet::from([IpAddr::from([10, 0, 0, 31])]),
            front: Some(&Front { ports: vec![12379], postgres: false, peers: Vec::new() }),
        });
        assert!(rules.contains("ip saddr { 10.9.0.0/16 } tcp dport 12379 accept\n"), "{rules}");
        assert!(rules.contains("ip saddr { 10.0.0.21 } tcp dport 2383 accept\n"), "{rules}");
        assert!(
            rules.contains("ip saddr { 10.0.0.11, 10.0.0.21, 10.0.0.31, 10.9.0.0/16 } tcp dport 2379 accept\n"),
            "{rules}"
        );
    }

    #[test]
    fn nodes_let_in_each_other_and_the_files_sources() {
        let sources = FirewallSources { rest_from: Some(subnets(&["10.8.0.0/16"])), ..FirewallSources::default() };
        let nodes = BTreeSet::from([IpAddr::from([10, 0, 0, 31]), IpAddr::from([10, 0, 0, 32])]);
        let balancers = BTreeSet::from([IpAddr::from([10, 0, 0, 41])]);
        let rules = |sources: &FirewallSources| {
            node_rules(&NodeFirewall {
                sources,
                agent_port: 2378,
                nodes: &nodes,
                balancers: &balancers,
                metrics: false,
            })
        };
        let open = rules(&sources);
        assert!(open.contains("        tcp dport 5432 accept\n"), "{open}");
        let near = "10.0.0.31, 10.0.0.32, 10.0.0.41";
        assert!(open.contains(&format!("ip saddr {{ {near}, 10.8.0.0/16 }} tcp dport 8008 accept\n")), "{open}");
        assert!(!open.contains("2379") && !open.contains("2380"), "{open}");
        let closed = rules(&FirewallSources { postgres_from: Some(Vec::new()), ..FirewallSources::default() });
        assert!(closed.contains(&format!("ip saddr {{ {near} }} tcp dport 5432 accept\n")), "{closed}");
        assert!(closed.contains(&format!("ip saddr {{ {near} }} tcp dport 8008 accept\n")), "{closed}");
    }

    #[test]
    fn networks_in_others_are_left_out() {
        let list = ["10.1.0.0/16", "10.0.0.0/8", "10.0.0.5", "10.0.0.5", "192.168.0.0/24", "192.168.1.0/24"];
        let kept = apart(subnets(&list).into_iter());
        assert_eq!(kept, subnets(&["10.0.0.0/8", "192.168.0.0/24", "192.168.1.0/24"]));
        assert_eq!(apart(subnets(&["10.0.0.0/8", "0.0.0.0/0"]).into_iter()), subnets(&["0.0.0.0/0"]));
    }
}
