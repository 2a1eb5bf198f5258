//! The section `machines.libvirt` → what libvirt would refuse, and what would leave machines unreachable.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::super::diagnostic::Path;
use super::super::libvirt::{Interface, Libvirt, Link};
use super::super::machines::Provider;
use super::super::types::Spec;
use super::super::units::{Name, quoted};
use super::groups::groups;
use super::{Finding, Findings, overrides};

fn at(key: &str) -> Path {
    Path::of(&["machines", "libvirt", key])
}

fn above(key: &str) -> Path {
    Path::of(&["machines", key])
}

pub(super) fn check(findings: &mut Findings<'_>) {
    let machines = &findings.spec.machines;
    if machines.provider != Provider::Libvirt {
        return;
    }
    if !overrides::every_machine(findings.spec, |machines| machines.image.is_some()) {
        findings.add(
            Finding::error("image-none", above("provider"), "no image is named that virtual machines boot from")
                .uses(above("image"))
                .uses(Path::of(&["etcd"]))
                .uses(Path::of(&["postgres"]))
                .why("a machine's system disk is made from a volume of a libvirt pool, such as a cloud image of Debian")
                .help("add `image`, the volume's name; docs/guide/libvirt.md says how to put one there"),
        );
    }
    let default = Libvirt::default();
    let settings = machines.libvirt.as_ref().unwrap_or(&default);
    texts(findings, settings);
    linked(findings, settings, &at);
    let known = members(findings.spec);
    for (index, interface) in settings.interfaces.iter().enumerate() {
        further(findings, interface, &known, || at("interfaces").index(index));
    }
    hardware(findings, settings, &known);
}

/// A name that is valid in libvirt.
pub(super) fn named(findings: &mut Findings<'_>, path: Path, text: &str) {
    if text.trim().is_empty() || text.starts_with('-') || text.contains(|c: char| c.is_control()) {
        findings.add(
            Finding::error("libvirt-name-invalid", path, format!("{} cannot be a name of libvirt's", quoted(text)))
                .help("write it as libvirt knows it, or leave it out"),
        );
    }
}

/// Names that are invalid in libvirt.
fn texts(findings: &mut Findings<'_>, settings: &Libvirt) {
    let pools =
        [("image_pool", &settings.image_pool), ("data_pool", &settings.data_pool), ("seed_pool", &settings.seed_pool)];
    let optional = pools.into_iter().chain([("network", &settings.network), ("macvtap", &settings.macvtap)]);
    let given = optional.filter_map(|(key, text)| Some((key, text.as_ref()?)));
    for (key, text) in given.chain([("pool", &settings.pool)]) {
        named(findings, at(key), text);
    }
    connection(findings, || at("uri"), &settings.uri);
}

/// How libvirt is reached, as the fleet or a zone says.
pub(super) fn connection(findings: &mut Findings<'_>, at: impl Fn() -> Path, text: &str) {
    named(findings, at(), text);
    if text.trim().is_empty() || text.contains(|c: char| c.is_control()) {
        return;
    }
    match uri(text) {
        Ok(Transport::Local | Transport::Protected) => {}
        Ok(Transport::Plain) => findings.add(
            Finding::warning("libvirt-uri-plain", at(), "this connection is neither encrypted nor authenticated")
                .why("what machines boot with, and their join tokens, can be read and changed on the way")
                .help("use `qemu+ssh://` or `qemu+tls://`"),
        ),
        Err(Refused::Shape) => findings.add(
            Finding::error("libvirt-uri-invalid", at(), format!("{} is no address of libvirt's", quoted(text)))
                .help("such as `qemu:///system`, or `qemu+ssh://root@kvm1.example.com/system`"),
        ),
        Err(Refused::Runs(what)) => findings.add(
            Finding::error("libvirt-uri-command", at(), format!("{what} in a libvirt URI runs a program"))
                .why("a program that the file names would run as the user of raftsman, or on the libvirt host")
                .help(
                    "such as `qemu:///system`, or `qemu+ssh://root@kvm1.example.com/system?keyfile=/home/me/.ssh/kvm`",
                ),
        ),
        Err(Refused::Unverified(what)) => findings.add(
            Finding::error("libvirt-uri-unverified", at(), format!("{what} accepts any server as the libvirt host"))
                .why("that server would get what machines boot with, and their join tokens")
                .help("remove it, and put the host's key or certificate where SSH or libvirt looks for it"),
        ),
        Err(Refused::Unknown(parameter)) => findings.add(
            Finding::error(
                "libvirt-uri-parameter",
                at(),
                format!("the parameter {} of a libvirt URI is not supported", quoted(&parameter)),
            )
            .help(format!("remove it; supported are {}", PARAMETERS.map(|name| format!("`{name}`")).join(", "))),
        ),
    }
}

/// What a libvirt URI may be asked for: where the daemon, keys and certificates are. The others (`command`, `netcat`) run
/// programs, switch checks off (`no_verify`), or are not needed.
const PARAMETERS: [&str; 10] = [
    "socket",
    "mode",
    "keyfile",
    "known_hosts",
    "known_hosts_verify",
    "sshauth",
    "no_tty",
    "pkipath",
    "proxy",
    "tls_priority",
];

/// How a URI gets to libvirt.
enum Transport {
    Local,
    Protected,
    Plain,
}

/// Why a URI is refused.
enum Refused {
    Shape,
    Runs(String),
    Unverified(String),
    Unknown(String),
}

/// Reads a URI as libvirt does: `driver[+transport]://[user@][host][:port]/[path][?parameters]`.
fn uri(text: &str) -> Result<Transport, Refused> {
    let (scheme, rest) = text.split_once("://").ok_or(Refused::Shape)?;
    let (driver, transport) = match scheme.split_once('+') {
        Some((driver, transport)) => (driver, Some(transport)),
        None => (scheme, None),
    };
    if driver.is_empty() || !driver.bytes().all(|b| b.is_ascii_lowercase()) {
        return Err(Refused::Shape);
    }
    let (place, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let transport = match transport {
        None if authority.is_empty() => Transport::Local,
        Some("unix") => Transport::Local,
        None | Some("ssh" | "libssh" | "libssh2" | "tls") => Transport::Protected,
        Some("tcp") => Transport::Plain,
        Some("ext") => return Err(Refused::Runs("the transport `ext`".to_owned())),
        Some(_) => return Err(Refused::Shape),
    };
    // The host and the user become arguments of `ssh`.
    let (destination, port) = match authority.rsplit_once(':') {
        Some((destination, port)) if !port.contains(']') => (destination, Some(port)),
        _ => (authority, None),
    };
    let destination = destination.replace(['[', ']'], "");
    let odd_port = port.is_some_and(|port| port.parse::<u16>().is_err());
    let odd_path = path.contains(|c: char| !(c.is_ascii_alphanumeric() || "/._-".contains(c)));
    if odd_port
        || odd_path
        || destination.contains('%')
        || !destination.is_empty() && super::machines::ssh_destination(&destination).is_err()
    {
        return Err(Refused::Shape);
    }
    for parameter in parameters.split(['&', ';']).filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        // Libvirt undoes escapes: `comm%61nd` would be `command`.
        let runs = |c: char| c.is_whitespace() || "$`'\"|;&<>(){}\\!*".contains(c);
        match name {
            "command" | "netcat" => return Err(Refused::Runs(format!("`{name}`"))),
            "no_verify" | "no_sanity" => return Err(Refused::Unverified(format!("`{name}`"))),
            "known_hosts_verify" if value != "normal" => return Err(Refused::Unverified(format!("`{parameter}`"))),
            _ if !PARAMETERS.contains(&name) => return Err(Refused::Unknown(name.to_owned())),
            _ if value.contains(runs) || value.contains('%') || value.starts_with('-') => return Err(Refused::Shape),
            _ => {}
        }
    }
    Ok(transport)
}

/// The interface that etcd listens on, as the fleet or a cluster says.
pub(super) fn linked(findings: &mut Findings<'_>, settings: &Libvirt, at: &dyn Fn(&str) -> Path) {
    one_link(findings, settings.network.is_some(), settings.macvtap.is_some(), at("network"), at("macvtap"));
    let machines = &findings.spec.machines;
    if let Link::Macvtap(_) = settings.link() {
        if machines.subnet.is_none() {
            findings.add(
                Finding::error("macvtap-without-subnet", at("macvtap"), "machines on macvtap need `machines.subnet`")
                    .on_key()
                    .uses(above("subnet"))
                    .why("their network is not libvirt's: it cannot keep an address for each of them")
                    .help("add `subnet`, and `gateway` where there is one"),
            );
        }
        if settings.is_here() {
            findings.add(
                Finding::warning("macvtap-host", at("macvtap"), "the host of a macvtap does not reach its machines, nor they it")
                    .on_key()
                    .uses(Path::of(&["machines", "libvirt", "uri"]))
                    .why("in bridge mode, what a machine sends goes out by the interface and never to the host itself; raftsman must reach every machine's agent")
                    .help("run raftsman on another computer of that network, with `uri: qemu+ssh://<host>/system`, or use a libvirt network"),
            );
        }
    }
}

fn one_link(findings: &mut Findings<'_>, network: bool, macvtap: bool, one: Path, other: Path) {
    if network && macvtap {
        findings.add(
            Finding::error("interface-both", other, "an interface has either `network` or `macvtap`")
                .on_key()
                .also(one, "the network")
                .help("keep one of them; `interfaces` has room for the other"),
        );
    }
}

fn further(findings: &mut Findings<'_>, interface: &Interface, known: &BTreeSet<&Name>, here: impl Fn() -> Path) {
    let (network, macvtap) = (interface.network.is_some(), interface.macvtap.is_some());
    one_link(findings, network, macvtap, here().key("network"), here().key("macvtap"));
    if !network && !macvtap {
        findings.add(
            Finding::error("interface-nowhere", here(), "this interface is connected to nothing")
                .help("add `network`, a libvirt network's name, or `macvtap`, an interface of the host"),
        );
    }
    let Some(subnet) = interface.subnet else {
        for (key, given) in [("gateway", interface.gateway.is_some()), ("addresses", !interface.addresses.is_empty())] {
            if given {
                findings.add(
                    Finding::error(
                        "interface-without-subnet",
                        here().key(key),
                        format!("`{key}` is of no use without `subnet`"),
                    )
                    .on_key()
                    .uses(here().key("subnet"))
                    .why("without a subnet a machine uses DHCP")
                    .help("add `subnet`, such as `10.80.0.0/24`, or remove it"),
                );
            }
        }
        return;
    };
    if let Some(gateway) = interface.gateway.filter(|gateway| !subnet.has_room_for(*gateway)) {
        findings.add(
            Finding::error(
                "gateway-outside",
                here().key("gateway"),
                format!("no host of {subnet} has the address {gateway}"),
            )
            .also(here().key("subnet"), "the subnet")
            .help("write the gateway's address in this interface's own network"),
        );
    }
    let mut seen: BTreeMap<IpAddr, &Name> = BTreeMap::new();
    for (machine, address) in &interface.addresses {
        let path = || here().key("addresses").key(machine.as_str());
        if !subnet.has_room_for(*address) {
            findings.add(
                Finding::error(
                    "address-outside-subnet",
                    path(),
                    format!("no machine of {subnet} can have the address {address}"),
                )
                .also(here().key("subnet"), "the subnet")
                .help("correct the address, or the subnet"),
            );
        } else if let Some(other) = seen.insert(*address, machine) {
            findings.add(
                Finding::error("address-twice", path(), format!("{address} is the address of `{other}` already"))
                    .help("give each machine its own"),
            );
        }
        unknown(findings, machine, known, path);
    }
    for machine in known.iter().filter(|machine| !interface.addresses.contains_key(**machine)) {
        findings.add(
            Finding::error(
                "interface-without-address",
                here(),
                format!("`{machine}` has no address on this interface"),
            )
            .uses(here().key("addresses"))
            .uses(Path::of(&["etcd"]))
            .uses(Path::of(&["postgres"]))
            .help(format!("add it to `addresses`: `{machine}: …`")),
        );
    }
}

/// All machines of the file that it names.
fn members(spec: &Spec) -> BTreeSet<&Name> {
    groups(spec).flat_map(|group| group.listed()).map(|listed| listed.name).collect()
}

fn unknown(findings: &mut Findings<'_>, machine: &Name, known: &BTreeSet<&Name>, path: impl Fn() -> Path) {
    if !known.is_empty() && !known.contains(machine) {
        findings.add(
            Finding::warning("machine-unknown", path(), format!("no member or node is called `{machine}`"))
                .on_key()
                .uses(Path::of(&["etcd"]))
                .uses(Path::of(&["postgres"]))
                .help("correct the name, or remove the line"),
        );
    }
}

fn hardware(findings: &mut Findings<'_>, settings: &Libvirt, known: &BTreeSet<&Name>) {
    let further = settings.interfaces.iter().enumerate();
    let further = further.map(|(index, interface)| (at("interfaces").index(index).key("macs"), &interface.macs));
    let mut seen: BTreeMap<String, &Name> = BTreeMap::new();
    for (here, macs) in std::iter::once((at("macs"), &settings.macs)).chain(further) {
        for (machine, mac) in macs {
            let path = || here.clone().key(machine.as_str());
            if let Err(reason) = hardware_address(mac) {
                findings.add(
                    Finding::error("mac-invalid", path(), format!("{} is no hardware address: {reason}", quoted(mac)))
                        .help("six bytes such as `52:54:00:de:e3:65`"),
                );
            } else if let Some(other) = seen.insert(mac.to_ascii_lowercase(), machine) {
                findings.add(
                    Finding::error("mac-twice", path(), format!("{mac} is given to `{other}` already"))
                        .why("two cards with one address on a network lose each other's packets")
                        .help("give each interface its own, or leave them out: raftsman makes them"),
                );
            }
            unknown(findings, machine, known, path);
        }
    }
}

fn hardware_address(text: &str) -> Result<(), &'static str> {
    let bytes: Vec<Option<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2 && !byte.contains('+')))
        .collect();
    match bytes.as_slice() {
        [Some(first), rest @ ..] if rest.len() == 5 && rest.iter().all(Option::is_some) => match first % 2 {
            0 => Ok(()),
            _ => Err("its first byte is odd, which means a group of cards"),
        },
        _ => Err("it is not six bytes in hexadecimal with colons"),
    }
}
