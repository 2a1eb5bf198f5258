//! The nodes of PostgreSQL clusters → names and addresses that are invalid, or those of other machines.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use super::super::super::balancers::Instances;
use super::super::super::diagnostic::Path;
use super::super::super::machines::Provider;
use super::super::super::postgres::{Node, Nodes, PostgresCluster};
use super::super::super::types::Spec;
use super::super::super::units::Name;
use super::super::groups::groups;
use super::super::machines::Network;
use super::super::members::{one_address, one_host};
use super::super::{Finding, Findings};
use super::at;

/// Every node asks every other one in failsafe mode, and each streams from the primary.
const MOST_NODES: u64 = 9;

/// Names and addresses of machines, and what has them.
pub(super) struct Taken<'s> {
    names: HashMap<Cow<'s, str>, (Path, Owner)>,
    addresses: HashMap<IpAddr, (Path, Owner)>,
}

/// What runs on a machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Member,
    Instance,
    Node,
}

/// The machines of members and of balancers' instances.
pub(super) fn of_others(spec: &Spec) -> Taken<'_> {
    let mut taken = Taken { names: HashMap::new(), addresses: HashMap::new() };
    for group in groups(spec).filter(|group| group.section == "etcd") {
        for number in (1..=group.number.min(9)).filter(|_| group.counted) {
            taken.names.insert(format!("{}-{number}", group.name).into(), (group.list_at(), Owner::Member));
        }
        for (index, member) in group.listed().enumerate() {
            let path = |key: &str| group.list_at().index(index).key(key);
            taken.names.insert(member.name.as_str().into(), (path("name"), Owner::Member));
            if let Some(address) = member.address {
                taken.addresses.insert(address, (path("address"), Owner::Member));
            }
        }
    }
    for (name, balancer) in &spec.balancers {
        let instances = Path::of(&["balancers", name.as_str(), "instances"]);
        match &balancer.instances {
            Instances::Beside(_) => {}
            Instances::Count(count) => {
                for number in 1..=(*count).min(9) {
                    taken.names.insert(format!("{name}-{number}").into(), (instances.clone(), Owner::Instance));
                }
            }
            Instances::List(list) => {
                for (index, instance) in list.iter().enumerate() {
                    let path = |key: &str| instances.clone().index(index).key(key);
                    taken.names.insert(instance.name.as_str().into(), (path("name"), Owner::Instance));
                    if let Some(address) = instance.address {
                        taken.addresses.insert(address, (path("address"), Owner::Instance));
                    }
                }
            }
        }
        if let Some(address) = balancer.virtual_address {
            let path = Path::of(&["balancers", name.as_str(), "virtual_address"]);
            taken.addresses.insert(address, (path, Owner::Instance));
        }
    }
    taken
}

pub(super) fn check<'s>(
    findings: &mut Findings<'s>,
    taken: &mut Taken<'s>,
    name: &'s Name,
    cluster: &'s PostgresCluster,
) {
    let spec = findings.spec;
    let here = || at(name, &["nodes"]);
    let local = spec.machines.provider == Provider::Local;
    let network = spec.machines.network.as_deref().and_then(|text| Network::parse(text).ok()).filter(|_| local);
    match cluster.nodes.number() {
        0 => findings.add(
            Finding::error("nodes-none", here(), "a PostgreSQL cluster needs nodes")
                .help("`nodes: 3`: a primary, a synchronous standby, and one to spare"),
        ),
        count if count > MOST_NODES => findings.add(
            Finding::error("nodes-many", here(), format!("{count} nodes are more than raftsman runs"))
                .why("every node asks every other one before a promotion, and in failsafe mode")
                .help("use 3, up to 9"),
        ),
        _ => {}
    }
    match &cluster.nodes {
        Nodes::Count(count) => {
            if name.as_str().len() + 2 > Name::LONGEST {
                findings.add(
                    Finding::error(
                        "name-too-long",
                        here(),
                        format!("the nodes' names, such as `{name}-1`, are longer than 63 characters"),
                    )
                    .why("a node's name is its machine's host name")
                    .help("give the cluster a shorter name, or list the nodes by names of your own"),
                );
            }
            for number in 1..=(*count).min(9) {
                one_name(findings, taken, format!("{name}-{number}").into(), here());
            }
        }
        Nodes::List(list) => {
            let mut of_patroni: HashMap<&str, usize> = HashMap::new();
            for (index, node) in list.iter().enumerate() {
                let path = |key: &str| here().index(index).key(key);
                one_name(findings, taken, node.name.as_str().into(), path("name"));
                if let Some(address) = node.address {
                    one_address(findings, || path("address"), address, local, network.as_ref());
                    one_owner(findings, taken, address, path("address"));
                }
                one_host(findings, || path("host"), node.host.as_deref(), "db2.example.org");
                in_patroni(findings, &path, &mut of_patroni, index, node);
            }
            if !list.is_empty() && list.iter().all(|node| node.tags.is_never_primary()) {
                findings.add(
                    Finding::error("postgres-no-primary", here(), "none of the nodes may be the primary")
                        .on_key()
                        .why("Patroni promotes no node with `nofailover`, or with `failover_priority: 0`")
                        .help("leave these tags to the nodes that shall never be the primary"),
                );
            }
        }
    }
}

fn in_patroni<'s>(
    findings: &mut Findings<'_>,
    path: &dyn Fn(&str) -> Path,
    seen: &mut HashMap<&'s str, usize>,
    index: usize,
    node: &'s Node,
) {
    let name = node.patroni_name.as_deref().unwrap_or(node.name.as_str());
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if name.is_empty() || name.len() > 63 || !name.bytes().all(plain) {
        findings.add(
            Finding::error(
                "postgres-patroni-name",
                path("patroni_name"),
                "a name in Patroni is 1 to 63 letters, digits, `-`, `_` and `.`",
            )
            .help("leave it out: the node's own name is the default"),
        );
    } else if seen.insert(name, index).is_some() {
        findings.add(
            Finding::error(
                "postgres-patroni-name",
                path("patroni_name"),
                format!("two nodes are called `{name}` in Patroni"),
            )
            .uses(path("name"))
            .why("each would overwrite the other's key, and take its leadership for its own")
            .help("leave it out: the node's own name is the default"),
        );
    }
}

fn one_name<'s>(findings: &mut Findings<'s>, taken: &mut Taken<'s>, name: Cow<'s, str>, path: Path) {
    match taken.names.get(&name) {
        None => drop(taken.names.insert(name, (path, Owner::Node))),
        Some((first, Owner::Node)) => findings.add(
            Finding::error("name-twice", path, format!("two machines are called `{name}`"))
                .also(first.clone(), "also here")
                .why("nodes are named as their machines, which are unique in the fleet")
                .help("rename one of them; those that are only counted are named after their cluster"),
        ),
        Some((first, owner)) => {
            let finding = beside(path, first, *owner, &format!("the machine `{name}`"));
            findings.add(finding);
        }
    }
}

fn one_owner(findings: &mut Findings<'_>, taken: &mut Taken<'_>, address: IpAddr, path: Path) {
    match taken.addresses.get(&address) {
        None => drop(taken.addresses.insert(address, (path, Owner::Node))),
        Some((first, Owner::Node)) => findings.add(
            Finding::error("address-twice", path, format!("the address {address} is given twice"))
                .also(first.clone(), "also here")
                .help("give each machine an address of its own"),
        ),
        Some((first, owner)) => {
            let finding = beside(path, first, *owner, &format!("the address {address}"));
            findings.add(finding);
        }
    }
}

fn beside(path: Path, first: &Path, owner: Owner, what: &str) -> Finding {
    let (whose, why) = match owner {
        Owner::Member | Owner::Node => (
            "a member of etcd",
            "etcd renews leases when its leader changes: where the leader and the primary are lost together, writes stop \
             for an election and a whole `ttl` longer",
        ),
        Owner::Instance => ("a balancer", "a machine that is lost would take both with it"),
    };
    Finding::error("postgres-beside-etcd", path, format!("{what} is that of {whose}"))
        .also(first.clone(), "also here")
        .why(why)
        .help("give every node a machine of its own")
}
