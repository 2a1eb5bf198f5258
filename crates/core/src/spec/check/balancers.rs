//! The section `balancers` → invalid or colliding machines, ports and addresses, and what would disturb clients.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use super::super::balancers::{Balancer, BalancerTimeouts, Behind, Instance, Instances, Vrrp};
use super::super::diagnostic::Path;
use super::super::fault::nearest;
use super::super::machines::Provider;
use super::super::postgres::HbaRule;
use super::super::types::{Members, Spec};
use super::super::units::{Duration, Name, quoted};
use super::machines::Network;
use super::members::{one_address, one_host};
use super::pki::dns_name;
use super::{Finding, Findings};

/// HAProxy's user may not listen below.
const FIRST_PORT: u16 = 1024;
/// The ports of a machine's agent and of the node exporter.
const OF_MACHINES: [(u16, &str); 2] = [(2378, "the agent"), (9100, "the node exporter")];
/// Those that etcd may have on a member's machine, besides 2379.
const OF_MEMBERS: [u16; 4] = [2380, 2381, 2382, 2383];
/// What etcd's client port is.
const CLIENT_PORT: u16 = 2379;
/// As many connections take 3.5 GiB of memory, and two file descriptors each.
const MOST_CONNECTIONS: u32 = 100_000;
/// More instances are more machines that check every member.
const MOST_INSTANCES: u64 = 9;
/// HAProxy counts milliseconds in 31 bits.
const LONGEST_TIMEOUT: Duration = Duration::from_days(24);
/// etcd pings connections without traffic every two hours (`grpc-keepalive-interval`).
const SHORTEST_IDLE: Duration = Duration::from_hours(3);

fn at(balancer: &Name, key: &str) -> Path {
    Path::of(&["balancers", balancer.as_str(), key])
}

/// What was found to be taken so far, and where.
#[derive(Default)]
struct InUse<'s> {
    names: HashMap<Cow<'s, str>, Path>,
    addresses: HashMap<IpAddr, Path>,
    router_ids: HashMap<u8, &'s Name>,
    /// Balancers on members' machines, by etcd cluster.
    beside: HashMap<&'s Name, &'s Name>,
}

pub(super) fn check(findings: &mut Findings<'_>) {
    let spec = findings.spec;
    if spec.balancers.is_empty() {
        return;
    }
    let mut taken = of_members(spec);
    for (name, balancer) in &spec.balancers {
        front(findings, name, balancer);
        instances(findings, &mut taken, name, balancer);
        ports(findings, name, balancer);
        virtual_address(findings, &mut taken, name, balancer);
        names(findings, name, balancer);
        limits(findings, name, balancer);
    }
}

/// The names and addresses of members.
fn of_members(spec: &Spec) -> InUse<'_> {
    let mut taken = InUse::default();
    for (cluster, settings) in &spec.etcd {
        let members = Path::of(&["etcd", cluster.as_str(), "members"]);
        match &settings.members {
            Members::Count(count) => {
                for number in 1..=(*count).min(9) {
                    taken.names.insert(format!("{cluster}-{number}").into(), members.clone());
                }
            }
            Members::List(list) => {
                for (index, member) in list.iter().enumerate() {
                    let path = |key: &str| members.clone().index(index).key(key);
                    taken.names.insert(member.name.as_str().into(), path("name"));
                    if let Some(address) = member.address {
                        taken.addresses.insert(address, path("address"));
                    }
                }
            }
        }
    }
    taken
}

/// What it is in front of.
fn front(findings: &mut Findings<'_>, name: &Name, balancer: &Balancer) {
    let spec = findings.spec;
    let here = || Path::of(&["balancers", name.as_str()]);
    match balancer.behind() {
        Some(Behind::Etcd(etcd)) => {
            if !spec.etcd.contains_key(etcd) {
                unknown(findings, name, ("etcd", "etcd"), etcd, spec.etcd.keys().map(Name::as_str).collect());
            }
            if balancer.replicas_port.is_some() {
                findings.add(
                    Finding::error("replicas-port-unused", at(name, "replicas_port"), "members of etcd are all alike")
                        .on_key()
                        .also(at(name, "etcd"), "in front of etcd")
                        .help("remove it: only PostgreSQL has standbys"),
                );
            }
        }
        Some(Behind::Postgres(postgres)) => {
            if !spec.postgres.contains_key(postgres) {
                let known = spec.postgres.keys().map(Name::as_str).collect();
                unknown(findings, name, ("postgres", "PostgreSQL"), postgres, known);
            }
            reachable(findings, name, postgres);
            if balancer.is_beside_members() {
                findings.add(
                    Finding::error(
                        "balancer-beside-etcd",
                        at(name, "instances"),
                        "a balancer of PostgreSQL has machines of its own",
                    )
                    .also(at(name, "postgres"), "in front of PostgreSQL")
                    .why("load of PostgreSQL's clients would slow etcd down, which every node depends on")
                    .help("use `instances: 2`"),
                );
            }
        }
        None => {
            let both = balancer.etcd.is_some();
            let message = match both {
                true => "a balancer is in front of one cluster, and this one names two",
                false => "a balancer is in front of one cluster, and this one names none",
            };
            let finding =
                Finding::error("balancer-without-cluster", if both { at(name, "postgres") } else { here() }, message);
            findings.add(finding.on_key().help("write `etcd: main`, or `postgres: app`, with a cluster of this file"));
        }
    }
    if spec.etcd.contains_key(name) {
        findings.add(
            Finding::error(
                "balancer-name-taken",
                Path::of(&["balancers", name.as_str()]),
                format!("an etcd cluster is called `{name}` too"),
            )
            .on_key()
            .uses(Path::of(&["etcd", name.as_str()]))
            .why("commands name clusters and balancers alike: `raftsman status front`")
            .help(format!("rename the balancer, `{name}-front` for example")),
        );
    }
}

/// Through a balancer, a node sees no client's address: HAProxy lets in clients of all networks of `access`, and a node only
/// takes its word for rules that let all of them in.
fn reachable(findings: &mut Findings<'_>, name: &Name, postgres: &Name) {
    let Some(cluster) = findings.spec.postgres.get(postgres) else { return };
    let sources = HbaRule::sources(&cluster.access);
    let narrow: Vec<usize> =
        cluster.access.iter().enumerate().filter(|(_, rule)| !rule.covers(&sources)).map(|(index, _)| index).collect();
    let Some(first) = narrow.first() else { return };
    let rule = |index: usize| Path::of(&["postgres", postgres.as_str(), "access"]).index(index);
    let why = "a node sees the balancer's address in place of the client's: what one rule lets in from fewer networks than \
               another would be open to all of them";
    let finding = if narrow.len() == cluster.access.len() {
        Finding::error("balancer-access", at(name, "postgres"), "no client would get through the balancer")
            .also(rule(*first), "lets clients in from fewer networks than another rule does")
            .help("give at least one rule all networks that clients of the balancer connect from")
    } else {
        let message = "clients get through the balancer by some rules of `access` only";
        Finding::warning("balancer-access", at(name, "postgres"), message)
            .also(rule(*first), "not through the balancer: from fewer networks than another rule")
            .help("have the clients of this rule connect to the nodes, or give all rules the same networks")
    };
    findings.add(finding.why(why));
}

fn unknown(findings: &mut Findings<'_>, name: &Name, (key, what): (&str, &str), cluster: &Name, known: Vec<&str>) {
    let help = match nearest(cluster.as_str(), &known) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None if known.is_empty() => format!("add it to `{key}:`"),
        None => format!("the clusters are `{}`", known.join("`, `")),
    };
    let message = format!("the file has no {what} cluster `{cluster}`");
    findings.add(Finding::error("balancer-without-cluster", at(name, key), message).uses(Path::of(&[key])).help(help));
}

/// How many instances there will be; unknown where its cluster is.
fn count(spec: &Spec, balancer: &Balancer) -> Option<u64> {
    match &balancer.instances {
        Instances::Count(count) => Some(u64::from(*count)),
        Instances::List(list) => Some(list.len() as u64),
        Instances::Beside(_) => spec.etcd.get(balancer.etcd.as_ref()?).map(|cluster| cluster.members.number()),
    }
}

fn instances<'s>(findings: &mut Findings<'s>, taken: &mut InUse<'s>, name: &'s Name, balancer: &'s Balancer) {
    let spec = findings.spec;
    let here = || at(name, "instances");
    match count(spec, balancer) {
        Some(0) if !balancer.is_beside_members() => findings.add(
            Finding::error("instances-none", here(), "a balancer needs at least one instance")
                .help("`instances: 2` can lose one, with a `virtual_address` where the provider's network allows it"),
        ),
        Some(1) => findings.add(
            Finding::warning(
                "balancer-single",
                here(),
                "a single instance: when its machine is lost, clients reach nothing through the balancer",
            )
            .help("use `instances: 2` and a `virtual_address`, or give clients two addresses"),
        ),
        Some(count) if count > MOST_INSTANCES => findings.add(
            Finding::error("instances-many", here(), format!("{count} instances are more than raftsman runs"))
                .why("each instance checks every server each second")
                .help("use 2 or 3"),
        ),
        Some(_) | None => {}
    }
    let local = spec.machines.provider == Provider::Local;
    let network = spec.machines.network.as_deref().and_then(|text| Network::parse(text).ok()).filter(|_| local);
    match &balancer.instances {
        Instances::Beside(_) => {
            if let Some(etcd) = &balancer.etcd
                && let Some(first) = taken.beside.insert(etcd, name)
            {
                findings.add(
                    Finding::error("beside-twice", here(), format!("the balancer `{first}` has the members' machines"))
                        .also(at(first, "instances"), "also beside members")
                        .why("one HAProxy runs on a machine")
                        .help("give one of them machines of its own: `instances: 2`"),
                );
            }
        }
        Instances::Count(count) => {
            if name.as_str().len() + 2 > Name::LONGEST {
                findings.add(
                    Finding::error(
                        "name-too-long",
                        here(),
                        format!("the instances' names, such as `{name}-1`, are longer than 63 characters"),
                    )
                    .why("an instance's name is its machine's host name")
                    .help("give the balancer a shorter name, or list the instances by names of your own"),
                );
            }
            for number in 1..=(*count).min(9) {
                one_name(findings, taken, format!("{name}-{number}").into(), here());
            }
            if *count > 0 && needs_addresses(spec) {
                nowhere(findings, here(), format!("{count} instances without an address"));
            }
        }
        Instances::List(list) => {
            for (index, instance) in list.iter().enumerate() {
                listed(findings, taken, &here().index(index), instance, local, network.as_ref());
            }
        }
    }
}

/// One instance of a list.
fn listed<'s>(
    findings: &mut Findings<'s>,
    taken: &mut InUse<'s>,
    path: &Path,
    instance: &'s Instance,
    local: bool,
    network: Option<&Network>,
) {
    one_name(findings, taken, instance.name.as_str().into(), path.clone().key("name"));
    one_host(findings, || path.clone().key("host"), instance.host.as_deref(), "lb2.example.org");
    match instance.address {
        Some(address) => {
            let here = || path.clone().key("address");
            one_address(findings, here, address, local, network);
            address_once(findings, taken, address, here());
        }
        None if needs_addresses(findings.spec) => {
            nowhere(findings, path.clone(), format!("`{}` has no address", instance.name));
        }
        None => {}
    }
}

/// Whether the file has to say every machine's address.
fn needs_addresses(spec: &Spec) -> bool {
    match spec.machines.provider {
        Provider::Local | Provider::Incus | Provider::Openstack | Provider::Aws => false,
        Provider::Hosts => true,
        Provider::Libvirt => spec.machines.subnet.is_none(),
    }
}

fn nowhere(findings: &mut Findings<'_>, path: Path, which: String) {
    let hosts = findings.spec.machines.provider == Provider::Hosts;
    let finding = match hosts {
        true => Finding::error("host-nowhere", path, which)
            .why("with `provider: hosts` the machines exist already, each at its address")
            .help("list the instances, each with its address: `- { name: lb1, address: 10.0.0.21 }`"),
        false => Finding::error("machine-nowhere", path, format!("{which}, and no subnet to take one from"))
            .uses(Path::of(&["machines", "subnet"]))
            .why("the certificates of what is behind it have the balancer's addresses in them")
            .help("add `subnet` to `machines`, such as `10.77.0.0/24`, or an address to each instance"),
    };
    findings.add(finding.uses(Path::of(&["machines", "provider"])));
}

fn one_name<'s>(findings: &mut Findings<'s>, taken: &mut InUse<'s>, name: Cow<'s, str>, path: Path) {
    match taken.names.get(&name) {
        None => drop(taken.names.insert(name, path)),
        Some(first) => findings.add(
            Finding::error("name-twice", path, format!("two machines are called `{name}`"))
                .also(first.clone(), "also here")
                .why("members and instances are named as their machines, which are unique in the fleet")
                .help("rename one of them; those that are only counted are named after their cluster or balancer"),
        ),
    }
}

fn address_once<'s>(findings: &mut Findings<'s>, taken: &mut InUse<'s>, address: IpAddr, path: Path) {
    match taken.addresses.get(&address) {
        None => drop(taken.addresses.insert(address, path)),
        Some(first) => findings.add(
            Finding::error("address-twice", path, format!("the address {address} is given twice"))
                .also(first.clone(), "also here")
                .help("give each machine, and each virtual address, an address of its own"),
        ),
    }
}

fn ports(findings: &mut Findings<'_>, name: &Name, balancer: &Balancer) {
    let (port, here) = (balancer.port(), || at(name, "port"));
    let expected = match balancer.postgres {
        Some(_) => "5432 is what clients of PostgreSQL expect",
        None => "2379 is what clients of etcd expect",
    };
    for (key, port) in [("port", Some(port)), ("replicas_port", balancer.replicas_port)] {
        let Some(port) = port else { continue };
        if port < FIRST_PORT {
            findings.add(
                Finding::error("port-privileged", at(name, key), format!("only root may listen on port {port}"))
                    .why("HAProxy runs as a user of its own, without any privilege")
                    .help(format!("use 1024 or more; {expected}")),
            );
            return;
        }
        if let Some((_, owner)) = OF_MACHINES.iter().find(|(taken, _)| *taken == port) {
            findings.add(
                Finding::error("port-taken", at(name, key), format!("port {port} is that of {owner}"))
                    .help(format!("use another one; {expected}")),
            );
            return;
        }
    }
    if balancer.replicas_port == Some(port) {
        findings.add(
            Finding::error("port-taken", at(name, "replicas_port"), format!("port {port} leads to the primary"))
                .also(here(), "the primary's")
                .help(format!("use another one, such as {}", port.saturating_add(1))),
        );
        return;
    }
    if !balancer.is_beside_members() {
        return;
    }
    if port == CLIENT_PORT && balancer.virtual_address.is_none() {
        findings.add(
            Finding::error("port-taken", here(), "on members' machines, etcd listens on port 2379")
                .also(at(name, "instances"), "beside members")
                .help(
                    "add a `virtual_address`, use another port such as 12379, or machines of its own: `instances: 2`",
                ),
        );
    } else if OF_MEMBERS.contains(&port) {
        findings.add(
            Finding::error("port-taken", here(), format!("on members' machines, etcd may listen on port {port}"))
                .also(at(name, "instances"), "beside members")
                .help("use another port, such as 12379"),
        );
    }
}

fn virtual_address<'s>(findings: &mut Findings<'s>, taken: &mut InUse<'s>, name: &'s Name, balancer: &'s Balancer) {
    let spec = findings.spec;
    let here = || at(name, "virtual_address");
    let Some(address) = balancer.virtual_address else {
        if balancer.vrrp != Vrrp::default() {
            findings.add(
                Finding::warning("vrrp-unused", at(name, "vrrp"), "there is no virtual address that this is for")
                    .on_key()
                    .uses(here())
                    .help("add `virtual_address`, or remove `vrrp`"),
            );
        }
        return;
    };
    if spec.machines.provider == Provider::Local {
        findings.add(
            Finding::error("virtual-address-local", here(), "the local provider has no virtual addresses")
                .uses(Path::of(&["machines", "provider"]))
                .why("its machines are processes of this computer, and fail together")
                .help("remove it here; `hosts`, `incus` and `libvirt` have it"),
        );
        return;
    }
    if count(spec, balancer) == Some(1) {
        findings.add(
            Finding::error(
                "virtual-address-single",
                here(),
                "a single instance has nothing to hand its address over to",
            )
            .also(at(name, "instances"), "one instance")
            .help("use `instances: 2`, or remove `virtual_address`"),
        );
    }
    one_address(findings, here, address, false, None);
    address_once(findings, taken, address, here());
    if let Some(subnet) = spec.machines.subnet
        && !subnet.has_room_for(address)
    {
        findings.add(
            Finding::error("virtual-address-outside", here(), format!("{address} is no address of a host in {subnet}"))
                .also(Path::of(&["machines", "subnet"]), "the subnet")
                .why("clients and routers find it by ARP or neighbour discovery, in the network of the machines")
                .help("use a free address of the subnet"),
        );
    }
    if let Instances::List(list) = &balancer.instances
        && let Some((index, other)) = (list.iter().enumerate())
            .find_map(|(index, one)| one.address.filter(|one| one.is_ipv4() != address.is_ipv4()).map(|a| (index, a)))
    {
        findings.add(
            Finding::error(
                "virtual-address-family",
                here(),
                format!("{address} and {other} are not of one IP version"),
            )
            .also(at(name, "instances").index(index).key("address"), "an instance")
            .why("instances agree on the virtual address over the same IP version")
            .help("use an address of the same version"),
        );
    }
    if let Some(router_id) = balancer.router_id() {
        if router_id == 0 {
            findings.add(
                Finding::error(
                    "router-id-invalid",
                    at(name, "vrrp").key("router_id"),
                    "a virtual router ID is 1 to 255",
                )
                .help("remove it: the last number of the virtual address is the default"),
            );
        } else if let Some(first) = taken.router_ids.insert(router_id, name) {
            findings.add(
                Finding::error(
                    "router-id-twice",
                    at(name, "vrrp").key("router_id"),
                    format!("the balancer `{first}` has the virtual router ID {router_id}, too"),
                )
                .also(here(), "its last number is the default")
                .why("instances of two balancers would take each other's messages for those of their own")
                .help(format!("give one of them another: `vrrp: {{ router_id: {} }}`", router_id % 255 + 1)),
            );
        }
    }
    if let Some(interface) = &balancer.vrrp.interface {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if interface.is_empty() || interface.len() > 15 || !interface.chars().all(plain) {
            let message = format!("{} is not the name of a network interface", quoted(interface));
            findings.add(
                Finding::error("interface-invalid", at(name, "vrrp").key("interface"), message)
                    .help("such as `eth0`; or remove it: the one that has the machine's address is the default"),
            );
        }
    }
}

fn names(findings: &mut Findings<'_>, name: &Name, balancer: &Balancer) {
    for (index, dns) in balancer.names.iter().enumerate() {
        let here = || at(name, "names").index(index);
        if dns.parse::<IpAddr>().is_ok() {
            findings.add(
                Finding::error("name-is-address", here(), format!("`{dns}` is an address, not a name"))
                    .why("TLS looks for addresses and names in different places of a certificate")
                    .help("addresses of the balancer are in the certificates anyway; others: `extra_addresses`"),
            );
        } else if let Err(reason) = dns_name(dns, true) {
            findings.add(
                Finding::error("dns-name-invalid", here(), format!("{} is not a DNS name: {reason}", quoted(dns)))
                    .help("such as `etcd.example.com`: no scheme, no port"),
            );
        } else if balancer.names[..index].contains(dns) {
            findings.add(
                Finding::warning("name-listed-twice", here(), format!("`{dns}` is listed twice"))
                    .help("remove one of them"),
            );
        }
    }
}

fn limits(findings: &mut Findings<'_>, name: &Name, balancer: &Balancer) {
    if !(1..=MOST_CONNECTIONS).contains(&balancer.max_connections) {
        findings.add(
            Finding::error(
                "connections-invalid",
                at(name, "max_connections"),
                format!("an instance accepts 1 to {MOST_CONNECTIONS} connections"),
            )
            .why("every connection takes up to 35 KiB of memory and two file descriptors")
            .help("10000 is the default"),
        );
    }
    let BalancerTimeouts { connect, idle } = balancer.timeouts;
    for (key, time) in [("connect", connect), ("idle", idle)] {
        if time == Duration::ZERO || time > LONGEST_TIMEOUT {
            findings.add(
                Finding::error("timeout-invalid", at(name, "timeouts").key(key), "HAProxy cannot have this timeout")
                    .help(format!("`1ms` to `{LONGEST_TIMEOUT}`")),
            );
        }
    }
    if idle > Duration::ZERO && idle < SHORTEST_IDLE && balancer.etcd.is_some() {
        findings.add(
            Finding::warning(
                "idle-cuts-watches",
                at(name, "timeouts").key("idle"),
                format!("watches without an event for {idle} are cut"),
            )
            .why("etcd pings connections without traffic every two hours, and clients by default never")
            .help("use `3h` or more; the default is `1d`"),
        );
    }
}
