//! Settings of a machine's first boot → networks it is not in, firewalls too open or too closed, unreachable sources.

use std::net::IpAddr;

use super::super::diagnostic::Path;
use super::super::machines::{Dns, Firewall, FirewallSources, Machines, Mirror, Provider};
use super::super::subnet::Subnet;
use super::super::units::quoted;
use super::groups::groups;
use super::{Finding, Findings};

fn at(key: &str) -> Path {
    Path::of(&["machines", key])
}

pub(super) fn check(findings: &mut Findings<'_>) {
    let machines = &findings.spec.machines;
    match machines.subnet {
        Some(subnet) => network(findings, machines, subnet),
        None => {
            if machines.gateway.is_some() {
                findings.add(
                    Finding::error("gateway-alone", at("gateway"), "a gateway is of no use without `subnet`")
                        .on_key()
                        .uses(at("subnet"))
                        .why("without a subnet a machine uses DHCP, which gives it the gateway too")
                        .help("add `subnet`, such as `10.77.0.0/24`, or remove `gateway`"),
                );
            }
        }
    }
    if let Some(settings) = &machines.dns {
        dns(findings, settings);
    }
    if let Some(Firewall::Sources(settings)) = &machines.firewall {
        sources(findings, &at, machines.node_exporter == Some(true), settings);
    }
    if let Some(settings) = &machines.mirror {
        mirror(findings, settings);
    }
}

fn network(findings: &mut Findings<'_>, machines: &Machines, subnet: Subnet) {
    let first = subnet.first();
    let small = subnet.prefix() > if first.is_ipv4() { 30 } else { 126 };
    let impossible = match first {
        _ if subnet.prefix() == 0 => Some("is every address there is"),
        _ if first.is_loopback() => Some("never leaves a machine"),
        _ if first.is_multicast() => Some("is for multicast"),
        IpAddr::V4(v4) if v4.is_link_local() => Some("is link-local: its addresses change when a machine boots"),
        _ => None,
    };
    if let Some(reason) = impossible {
        findings.add(
            Finding::error("subnet-impossible", at("subnet"), format!("{subnet} {reason}"))
                .help("write the network that the machines are connected to, such as `10.77.0.0/24`"),
        );
        return;
    }
    if small {
        findings.add(
            Finding::error("subnet-small", at("subnet"), format!("{subnet} has no room for machines and a gateway"))
                .help("`/24` has room for 254"),
        );
        return;
    }
    if let Some(gateway) = machines.gateway
        && !subnet.has_room_for(gateway)
    {
        findings.add(
            Finding::error("gateway-outside", at("gateway"), format!("no host of {subnet} has the address {gateway}"))
                .also(at("subnet"), "the subnet")
                .why("a machine reaches its gateway without a gateway")
                .help("write the gateway's address in the machines' own network"),
        );
    }
    if machines.provider != Provider::Local {
        members(findings, machines, subnet);
    }
    let named = machines.dns.as_ref().is_some_and(|dns| !dns.servers.is_empty());
    if machines.installs() && machines.gateway.is_none() && machines.mirror.is_none() {
        findings.add(
            Finding::warning("gateway-none", at("subnet"), "machines have no route out of their subnet")
                .on_key()
                .uses(at("gateway"))
                .uses(at("mirror"))
                .uses(at("install_dependencies"))
                .why("the first boot installs packages from the distribution's servers")
                .help("add `gateway`, or a `mirror` in the subnet, or set `install_dependencies: false`"),
        );
    } else if machines.installs() && !named {
        findings.add(
            Finding::warning("dns-none", at("subnet"), "machines have no name server")
                .on_key()
                .uses(at("dns"))
                .uses(at("install_dependencies"))
                .why("with a `subnet` there is no DHCP that would name a server")
                .help("add `dns: { servers: […] }`"),
        );
    }
}

fn members(findings: &mut Findings<'_>, machines: &Machines, subnet: Subnet) {
    for group in groups(findings.spec) {
        for (index, listed) in group.listed().enumerate() {
            let Some(address) = listed.address else { continue };
            let here = || group.list_at().index(index).key("address");
            if !subnet.has_room_for(address) {
                findings.add(
                    Finding::error(
                        "address-outside-subnet",
                        here(),
                        format!("no machine of {subnet} can have the address {address}"),
                    )
                    .also(at("subnet"), "the subnet")
                    .uses(at("provider"))
                    .help("correct the address, or the subnet"),
                );
            } else if machines.gateway == Some(address) {
                findings.add(
                    Finding::error("address-of-gateway", here(), format!("{address} is the gateway's address"))
                        .also(at("gateway"), "the gateway")
                        .uses(at("provider"))
                        .help(format!("give the {} another one", group.what)),
                );
            }
        }
    }
}

fn dns(findings: &mut Findings<'_>, dns: &Dns) {
    let here = |key: &str| at("dns").key(key);
    if dns.servers.is_empty() && dns.search.is_empty() {
        findings.add(
            Finding::warning("dns-empty", at("dns"), "neither servers nor domains are named")
                .on_key()
                .uses(here("servers"))
                .uses(here("search"))
                .help("name some under `servers` or `search`, or remove `dns`"),
        );
    }
    for (index, server) in dns.servers.iter().enumerate() {
        if server.is_unspecified() || server.is_multicast() || server.is_loopback() {
            findings.add(
                Finding::error(
                    "dns-server-invalid",
                    here("servers").index(index),
                    format!("no name server can be reached at {server}"),
                )
                .why("machines ask it over the network")
                .help("write the server's own address"),
            );
        }
    }
    if dns.servers.len() > 3 {
        findings.add(
            Finding::warning("dns-servers-many", here("servers"), "only the first three name servers are asked")
                .help("keep three"),
        );
    }
    for (index, domain) in dns.search.iter().enumerate() {
        if let Err(reason) = super::pki::dns_name(domain, false) {
            findings.add(
                Finding::error(
                    "dns-search-invalid",
                    here("search").index(index),
                    format!("{} is not a domain: {reason}", quoted(domain)),
                )
                .help("such as `example.com`"),
            );
        }
    }
}

/// The firewall of the fleet or of a cluster.
pub(super) fn sources(
    findings: &mut Findings<'_>,
    at: &dyn Fn(&str) -> Path,
    exporter: bool,
    sources: &FirewallSources,
) {
    let here = |key: &str| at("firewall").key(key);
    if sources.operators_from.as_ref().is_some_and(Vec::is_empty) {
        findings.add(
            Finding::error("operators-locked-out", here("operators_from"), "no operator could reach the agents")
                .why("raftsman itself connects here")
                .help("list the network that raftsman is run from, or leave it out to accept every source"),
        );
    }
    if sources.clients_from.as_ref().is_some_and(Vec::is_empty) {
        findings.add(
            Finding::error("clients-locked-out", here("clients_from"), "no client could reach etcd, only the members")
                .why("raftsman itself connects here to see whether etcd is healthy")
                .help("list the networks of etcd's clients and of raftsman, or leave it out to accept every source"),
        );
    }
    if findings.spec.postgres.is_empty() {
        for (key, given) in
            [("postgres_from", sources.postgres_from.is_some()), ("rest_from", sources.rest_from.is_some())]
        {
            if given {
                findings.add(
                    Finding::warning("postgres-none", here(key), "no service listens on this port")
                        .on_key()
                        .uses(Path::of(&["postgres"]))
                        .help("it is for machines of PostgreSQL clusters: remove it"),
                );
            }
        }
    }
    if sources.metrics_from.is_some() && !exporter {
        findings.add(
            Finding::warning("metrics-none", here("metrics_from"), "no service listens on this port")
                .on_key()
                .uses(at("node_exporter"))
                .help("set `node_exporter: true`, or remove it"),
        );
    }
}

fn mirror(findings: &mut Findings<'_>, mirror: &Mirror) {
    let urls = [("packages", Some(&mirror.packages)), ("security", mirror.security.as_ref())];
    for (key, url) in urls.iter().filter_map(|(key, url)| url.map(|url| (key, url))) {
        let here = || at("mirror").key(key);
        match address(url) {
            // Not repeated: it may hold a password.
            Err(Wrong::Credentials) => findings.add(
                Finding::error("mirror-password", here(), "this URL has a user or a password in it")
                    .why("it becomes part of a machine's user data, which others can read")
                    .help("let the mirror answer the machines without, by their network"),
            ),
            Err(Wrong::Shape(reason)) => findings.add(
                Finding::error("mirror-invalid", here(), format!("this is not the address of a mirror: {reason}"))
                    .help("such as `http://mirror.example.com/debian`"),
            ),
            Ok(()) => {}
        }
    }
}

enum Wrong {
    Credentials,
    Shape(&'static str),
}

/// Whether this is a URL that apt can take packages from.
fn address(url: &str) -> Result<(), Wrong> {
    let Some(rest) = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")) else {
        return Err(Wrong::Shape("it does not start with `http://` or `https://`"));
    };
    let (place, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if place.contains('@') {
        return Err(Wrong::Credentials);
    }
    let host = match place.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) if port.is_empty() || is_port(port.strip_prefix(':')) => host,
            _ => return Err(Wrong::Shape("its host is malformed")),
        },
        None => match place.split_once(':') {
            Some((host, port)) if is_port(Some(port)) => host,
            None => place,
            _ => return Err(Wrong::Shape("its port is not a number from 1 to 65535")),
        },
    };
    if !super::machines::host(host) {
        return Err(Wrong::Shape("its host is neither a name nor an address"));
    }
    // Of what a path may hold, the characters that stand for nothing else in a list of sources.
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/%+:,=".contains(&b);
    if !path.bytes().all(plain) {
        return Err(Wrong::Shape("its path holds a character that a path cannot hold"));
    }
    Ok(())
}

fn is_port(text: Option<&str>) -> bool {
    text.and_then(|text| text.parse::<u16>().ok()).is_some_and(|port| port > 0)
}
