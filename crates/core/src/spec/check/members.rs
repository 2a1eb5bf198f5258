//! The members of all clusters → counts, names and addresses that are invalid or collide.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use super::super::diagnostic::Path;
use super::super::machines::Provider;
use super::super::types::Members;
use super::super::units::{Name, quoted};
use super::groups::{Group, groups};
use super::machines::{Network, ssh_destination};
use super::{Finding, Findings};

/// Where a member is written: its cluster, and its place in the list unless it was only counted.
#[derive(Clone, Copy)]
struct Place<'s> {
    cluster: &'s Name,
    index: Option<usize>,
}

impl Place<'_> {
    fn path(self, key: &str) -> Path {
        let path = Path::of(&["etcd", self.cluster.as_str(), "members"]);
        match self.index {
            Some(index) => path.index(index).key(key),
            None => path,
        }
    }
}

pub(super) fn check(findings: &mut Findings<'_>) {
    let spec = findings.spec;
    let local = spec.machines.provider == Provider::Local;
    let network = spec.machines.network.as_deref().and_then(|text| Network::parse(text).ok()).filter(|_| local);
    let mut names: HashMap<Cow<'_, str>, Place<'_>> = HashMap::new();
    let mut addresses: HashMap<IpAddr, Place<'_>> = HashMap::new();
    let mut tokens: HashMap<Cow<'_, str>, &Name> = HashMap::new();
    let mut machines: u64 = 0;
    for (cluster, settings) in &spec.etcd {
        let members = Path::of(&["etcd", cluster.as_str(), "members"]);
        let number = settings.members.number();
        machines += number;
        count(findings, &members, number);
        match &settings.members {
            Members::Count(count) => {
                if cluster.as_str().len() + 2 > Name::LONGEST {
                    findings.add(
                        Finding::error(
                            "name-too-long",
                            members,
                            format!("the members' names, such as `{cluster}-1`, are longer than 63 characters"),
                        )
                        .why("a member's name is its machine's host name")
                        .help("give the cluster a shorter name, or list the members by names of your own"),
                    );
                }
                for number in 1..=(*count).min(9) {
                    taken(findings, &mut names, format!("{cluster}-{number}").into(), Place { cluster, index: None });
                }
            }
            Members::List(list) => {
                for (index, member) in list.iter().enumerate() {
                    let place = Place { cluster, index: Some(index) };
                    taken(findings, &mut names, member.name.as_str().into(), place);
                    one_host(findings, || place.path("host"), member.host.as_deref(), "db2.example.org");
                    if let Some(address) = member.address {
                        one_address(findings, || place.path("address"), address, local, network.as_ref());
                        if let Some(first) = addresses.insert(address, place) {
                            findings.add(
                                Finding::error(
                                    "address-twice",
                                    place.path("address"),
                                    format!("the address {address} is given to two members"),
                                )
                                .also(first.path("address"), "also here")
                                .help(
                                    "give each member an address of its own, or leave them out and let raftsman choose",
                                ),
                            );
                        }
                    }
                }
            }
        }
        token(findings, &mut tokens, cluster, settings.token.as_deref());
    }
    for group in groups(spec) {
        located(findings, &group);
    }
    machines += spec.postgres.values().map(|cluster| cluster.nodes.number()).sum::<u64>();
    if let Some(network) = &network
        && machines > Network::USABLE
    {
        findings.add(
            Finding::error(
                "network-full",
                Path::of(&["machines", "network"]),
                match spec.postgres.is_empty() {
                    true => format!("{machines} members do not fit into {network}"),
                    false => format!("{machines} members and nodes do not fit into {network}"),
                },
            )
            .uses(Path::of(&["etcd"]))
            .uses(Path::of(&["postgres"]))
            .why(format!("a /24 has room for {} machines", Network::USABLE))
            .help("use fewer members on this computer, or split the fleet into files with a network each"),
        );
    }
}

/// Where raftsman has no subnet to choose addresses from and the provider assigns none, the file has to name them.
fn located(findings: &mut Findings<'_>, group: &Group<'_>) {
    let what = group.what;
    let machines = &findings.spec.machines;
    let hosts = match machines.provider {
        // The provider assigns an address where there is none.
        Provider::Local | Provider::Incus | Provider::Openstack | Provider::Aws => return,
        Provider::Hosts => true,
        Provider::Libvirt if machines.subnet.is_some() => return,
        Provider::Libvirt => false,
    };
    let nowhere = |at: Path, who: String| {
        let provider = || Path::of(&["machines", "provider"]);
        if hosts {
            return Finding::error("host-nowhere", at, format!("{who}: the address of the host is missing"))
                .uses(provider())
                .why("with `provider: hosts` the machines exist already, each at its address")
                .help(format!("list the {what}s, each with its address: `- {{ name: db1, address: 10.0.0.11 }}`"));
        }
        Finding::error("machine-nowhere", at, format!("{who}, and no subnet to take one from"))
            .uses(provider())
            .uses(Path::of(&["machines", "subnet"]))
            .why(format!("a {what} is known by its address for as long as it lives"))
            .help(format!("add `subnet` to `machines`, such as `10.77.0.0/24`, or an address to each {what}"))
    };
    if group.counted {
        findings.add(nowhere(group.list_at(), format!("{} {what}s without an address", group.number)));
    }
    for (index, listed) in group.listed().enumerate().filter(|(_, listed)| listed.address.is_none()) {
        findings.add(nowhere(group.list_at().index(index), format!("`{}` has no address", listed.name)));
    }
}

fn count(findings: &mut Findings<'_>, path: &Path, count: u64) {
    let tolerates = |members: u64| members.saturating_sub(1) / 2;
    match count {
        0 => findings.add(
            Finding::error("members-none", path.clone(), "a cluster needs at least one member")
                .help("`members: 3` can lose one machine, `members: 5` two"),
        ),
        1 => findings.add(
            Finding::warning(
                "members-one",
                path.clone(),
                "a single member: when its machine is lost, so is the cluster",
            )
            .help("fine for a try; use `members: 3` for anything that matters"),
        ),
        2 => findings.add(
            Finding::warning("members-even", path.clone(), "two members can lose none, the same as one")
                .why("a majority of two is two: either machine can stop the cluster")
                .help("use 3, which can lose one"),
        ),
        4 | 6 | 8 => findings.add(
            Finding::warning(
                "members-even",
                path.clone(),
                format!("{count} members can lose {}, the same as {}", tolerates(count), count - 1),
            )
            .why("the additional machine adds nothing but one more that can fail, and makes every write slower")
            .help(format!("use {}, or {} to lose {}", count - 1, count + 1, tolerates(count + 1))),
        ),
        10.. => findings.add(
            Finding::error("members-many", path.clone(), format!("{count} members are more than raftsman runs"))
                .why("every write waits for a majority: etcd gets slower with each member, and 9 can already lose 4")
                .help("use 5, which can lose 2, or 7, which can lose 3"),
        ),
        _ => {}
    }
}

fn taken<'s>(
    findings: &mut Findings<'_>,
    names: &mut HashMap<Cow<'s, str>, Place<'s>>,
    name: Cow<'s, str>,
    place: Place<'s>,
) {
    let Some(first) = names.get(&name) else {
        names.insert(name, place);
        return;
    };
    let (code, message, help) = match (first.index, place.index) {
        (Some(_), Some(_)) if first.cluster == place.cluster => {
            ("name-twice", format!("the member `{name}` is listed twice"), "rename one of them")
        }
        (Some(_), Some(_)) => (
            "name-twice",
            format!("the member `{name}` is listed in the cluster `{}` too", first.cluster),
            "a member's name is its machine's name, and unique in the fleet: rename one of them",
        ),
        _ => (
            "name-generated-twice",
            format!("two members are called `{name}`: members that are only counted are named after their cluster"),
            "rename a cluster or the listed member",
        ),
    };
    findings.add(Finding::error(code, place.path("name"), message).also(first.path("name"), "also here").help(help));
}

/// A host that is given must be one that `ssh` cannot take for an option.
pub(super) fn one_host(findings: &mut Findings<'_>, path: impl FnOnce() -> Path, host: Option<&str>, example: &str) {
    if let Some(host) = host
        && let Err(reason) = ssh_destination(host)
    {
        findings.add(
            Finding::error("host-invalid", path(), format!("{} is not an SSH destination: {reason}", quoted(host)))
                .why("it is an argument of the program `ssh`, which runs commands that its options name")
                .help(format!("a name, an address or an alias of your SSH configuration, such as `{example}`")),
        );
    }
}

/// An address that a machine can have.
pub(super) fn one_address(
    findings: &mut Findings<'_>,
    at: impl Fn() -> Path,
    address: IpAddr,
    local: bool,
    network: Option<&Network>,
) {
    let provider = || Path::of(&["machines", "provider"]);
    let impossible = match address {
        _ if address.is_unspecified() => Some("stands for every address, not for one machine"),
        _ if address.is_multicast() => Some("is a multicast address"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("is the broadcast address"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("is in 0.0.0.0/8, which no machine can have"),
        IpAddr::V4(v4) if v4.octets()[0] >= 240 => Some("is in a reserved range, which no machine can have"),
        _ => None,
    };
    if let Some(reason) = impossible {
        findings.add(
            Finding::error("address-impossible", at(), format!("{address} {reason}"))
                .help("write the machine's own address, or leave it out and let raftsman choose"),
        );
    } else if local && !matches!(address, IpAddr::V4(v4) if v4.is_loopback()) {
        findings.add(
            Finding::error("address-not-local", at(), format!("{address} is not a loopback address of this computer"))
                .uses(provider())
                .why("the local provider runs every machine on this computer, each on an address in 127.0.0.0/8")
                .help("use an address such as `127.0.42.11`, or leave it out"),
        );
    } else if let Some(network) = network
        && !network.contains(address)
    {
        findings.add(
            Finding::error("address-outside", at(), format!("{address} is outside the network {network}"))
                .also(Path::of(&["machines", "network"]), "the network")
                .help(format!("use an address from {} to {}", network.host(1), network.host(254))),
        );
    } else if local && network.is_some() && matches!(address, IpAddr::V4(v4) if matches!(v4.octets()[3], 0 | 255)) {
        findings.add(
            Finding::error(
                "address-impossible",
                at(),
                format!("{address} is the first or last of its network, which no machine can have"),
            )
            .uses(Path::of(&["machines", "network"]))
            .help("use one in between"),
        );
    } else if local && address == IpAddr::from([127, 0, 0, 1]) {
        findings.add(
            Finding::warning("address-localhost", at(), "127.0.0.1 is where everything else on this computer listens")
                .uses(provider())
                .why("another etcd or agent there would be in the way")
                .help("use another address in 127.0.0.0/8, or leave it out"),
        );
    } else if matches!(address, IpAddr::V4(v4) if v4.is_link_local()) {
        findings.add(
            Finding::warning(
                "address-link-local",
                at(),
                format!("{address} is a link-local address, which changes when the machine boots"),
            )
            .help("use a fixed address"),
        );
    }
}

fn token<'s>(
    findings: &mut Findings<'s>,
    tokens: &mut HashMap<Cow<'s, str>, &'s Name>,
    cluster: &'s Name,
    token: Option<&'s str>,
) {
    let at = |cluster: &Name| Path::of(&["etcd", cluster.as_str(), "token"]);
    if let Some(token) = token
        && (token.is_empty() || token.contains(|c: char| c.is_whitespace() || c.is_control()))
    {
        findings.add(
            Finding::error("token-empty", at(cluster), "the token is empty or has spaces in it")
                .help(format!("remove it: `{}-{cluster}` is the default", findings.spec.fleet)),
        );
        return;
    }
    let effective = token.map_or_else(|| format!("{}-{cluster}", findings.spec.fleet).into(), Cow::from);
    match tokens.get(&effective) {
        None => {
            tokens.insert(effective, cluster);
        }
        Some(first) => findings.add(
            Finding::error(
                "token-twice",
                at(cluster),
                format!("the clusters `{first}` and `{cluster}` have the same token {}", quoted(&effective)),
            )
            .also(at(first), "also here")
            .why("the token is what keeps members of one cluster from joining the other while they form")
            .help("remove the token from both: by default each cluster has its own"),
        ),
    }
}
