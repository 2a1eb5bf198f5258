//! a machine to be made → libvirt's XML; libvirt's XML → the needed content.

use std::fmt::Write as _;
use std::net::IpAddr;

use raftsman_core::spec::{Firmware, Link, Shape};
use roxmltree::{Document, Node};

/// The XML namespace of the element that marks a machine of raftsman.
pub(super) const NAMESPACE: &str = "urn:raftsman:machine";

/// The tag in a domain's metadata: its fleet and its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) fleet: String,
    pub(super) machine: String,
    pub(super) address: IpAddr,
    pub(super) agent_port: u16,
    /// cloud-init's instance id: another one makes cloud-init run again.
    pub(super) life: String,
    /// Whether it was started.
    pub(super) started: bool,
    pub(super) shape: Option<Shape>,
}

/// A domain that is there.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) running: bool,
    /// None on a foreign domain.
    pub(super) tag: Option<Tag>,
}

/// A volume that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Volume {
    /// `file`, `block` or another kind.
    pub(super) kind: String,
    pub(super) path: String,
    pub(super) format: String,
    pub(super) capacity: u64,
}

/// What a host offers for a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// `kvm` or `qemu`.
    pub(super) domain: String,
    pub(super) arch: String,
}

/// A disk of a domain.
pub(super) struct Disk<'a> {
    pub(super) pool: &'a str,
    pub(super) name: &'a str,
    pub(super) volume: &'a Volume,
    pub(super) serial: Option<&'a str>,
    pub(super) readonly: bool,
}

/// An interface of a domain.
pub(super) struct Card<'a> {
    pub(super) link: Link<'a>,
    pub(super) mac: &'a str,
}

/// A domain to be defined.
pub(super) struct Order<'a> {
    /// What libvirt calls it.
    pub(super) name: &'a str,
    pub(super) tag: &'a Tag,
    pub(super) host: &'a Host,
    pub(super) vcpus: u32,
    pub(super) memory: u64,
    pub(super) firmware: Firmware,
    pub(super) disks: &'a [Disk<'a>],
    pub(super) cards: &'a [Card<'a>],
}

/// A text in an attribute or an element.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c => out.push(c),
        }
    }
    out
}

impl Tag {
    fn attributes(&self) -> String {
        let Self { fleet, machine, address, agent_port, life, started, shape } = self;
        format!(
            "fleet='{}' machine='{}' address='{address}' agent-port='{agent_port}' life='{}' started='{}' shape='{}'",
            escaped(fleet),
            escaped(machine),
            escaped(life),
            if *started { "yes" } else { "no" },
            escaped(&shape.as_ref().map(Shape::text).unwrap_or_default())
        )
    }

    /// As `virsh metadata --set` takes it.
    pub(super) fn element(&self) -> String {
        format!("<machine {}/>", self.attributes())
    }

    fn read(node: Node<'_, '_>) -> Option<Self> {
        let text = |name: &str| node.attribute(name).map(str::to_owned);
        Some(Self {
            fleet: text("fleet")?,
            machine: text("machine")?,
            address: node.attribute("address")?.parse().ok()?,
            agent_port: node.attribute("agent-port")?.parse().ok()?,
            life: text("life")?,
            started: node.attribute("started") == Some("yes"),
            shape: node.attribute("shape").and_then(Shape::parse),
        })
    }
}

impl Order<'_> {
    /// The domain's description.
    pub(super) fn render(&self) -> String {
        let Self { name, tag, host, vcpus, memory, firmware, disks, cards } = self;
        let mut out = String::new();
        let x86 = host.arch == "x86_64";
        // Arm's virtual machines have no other firmware.
        let efi = *firmware == Firmware::Uefi || host.arch == "aarch64";
        let machine = match host.arch.as_str() {
            "x86_64" => " machine='q35'",
            "aarch64" => " machine='virt'",
            _ => "",
        };
        let _ = write!(
            out,
            "<domain type='{}'>\n<name>{}</name>\n<metadata><raftsman:machine xmlns:raftsman='{NAMESPACE}' {}/></metadata>\n\
             <memory unit='b'>{memory}</memory>\n<vcpu>{vcpus}</vcpu>\n\
             <os{}><type arch='{}'{machine}>hvm</type><boot dev='hd'/></os>\n",
            escaped(&host.domain),
            escaped(name),
            tag.attributes(),
            if efi { " firmware='efi'" } else { "" },
            escaped(&host.arch),
        );
        out.push_str(if x86 { "<features><acpi/><apic/></features>\n" } else { "<features><acpi/></features>\n" });
        // The host's CPU as far as a live migration to a similar host allows; emulated, the minimum of current
        // distributions, with the instructions that speed up TLS.
        out.push_str(match (host.domain.as_str(), x86) {
            ("kvm", true) => "<cpu mode='host-model'/>\n",
            ("kvm", false) => "<cpu mode='host-passthrough'/>\n",
            (_, true) => {
                "<cpu mode='custom' match='exact' check='none'><model fallback='allow'>Westmere</model></cpu>\n"
            }
            _ => "",
        });
        out.push_str(
            "<clock offset='utc'/>\n<on_poweroff>destroy</on_poweroff>\n<on_reboot>restart</on_reboot>\n\
             <on_crash>restart</on_crash>\n<devices>\n",
        );
        for (index, disk) in disks.iter().enumerate() {
            disk.render(&mut out, index);
        }
        for card in *cards {
            let (kind, source) = match card.link {
                Link::Network(name) => ("network", format!("network='{}'", escaped(name))),
                Link::Macvtap(interface) => ("direct", format!("dev='{}' mode='bridge'", escaped(interface))),
            };
            // Network boot is not used.
            let _ = writeln!(
                out,
                "<interface type='{kind}'><mac address='{}'/><source {source}/><model type='virtio'/><rom \
                 enabled='no'/></interface>",
                escaped(card.mac)
            );
        }
        out.push_str(
            "<serial type='pty'/>\n<console type='pty'/>\n\
             <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>\n\
             <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>\n\
             <controller type='usb' model='none'/>\n</devices>\n</domain>\n",
        );
        out
    }
}

impl Disk<'_> {
    /// By its path where it has one: AppArmor's helper does not know the path of volumes that are named by their pool.
    fn render(&self, out: &mut String, index: usize) {
        let Volume { kind, path, format, .. } = self.volume;
        let (kind, source) = match kind.as_str() {
            "file" => ("file", format!("file='{}'", escaped(path))),
            "block" => ("block", format!("dev='{}'", escaped(path))),
            _ => ("volume", format!("pool='{}' volume='{}'", escaped(self.pool), escaped(self.name))),
        };
        let letter = char::from(b'a' + (index % 26) as u8);
        let discard = if self.readonly { "" } else { " discard='unmap'" };
        let _ = write!(
            out,
            "<disk type='{kind}' device='disk'><driver name='qemu' type='{}'{discard}/><source {source}/><target \
             dev='vd{letter}' bus='virtio'/>",
            escaped(format)
        );
        if let Some(serial) = self.serial {
            let _ = write!(out, "<serial>{}</serial>", escaped(serial));
        }
        out.push_str(if self.readonly { "<readonly/></disk>\n" } else { "</disk>\n" });
    }
}

/// A volume to be made: empty, or with a backing volume.
pub(super) fn volume(name: &str, capacity: u64, format: &str, backing: Option<&Volume>) -> String {
    let backing = backing.map(|Volume { path, format, .. }| {
        format!("<backingStore><path>{}</path><format type='{}'/></backingStore>", escaped(path), escaped(format))
    });
    format!(
        "<volume><name>{}</name><allocation>0</allocation><capacity unit='bytes'>{capacity}</capacity>\
         <target><format type='{}'/></target>{}</volume>\n",
        escaped(name),
        escaped(format),
        backing.unwrap_or_default()
    )
}

/// An address that a network reserves for a machine.
pub(super) fn lease(mac: &str, name: &str, address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("<host mac='{}' name='{}' ip='{v4}'/>", escaped(mac), escaped(name)),
        // DHCP for IPv6 identifies machines by name.
        IpAddr::V6(v6) => format!("<host name='{}' ip='{v6}'/>", escaped(name)),
    }
}

/// The same for the removal of a reservation: whatever its name.
pub(super) fn held(mac: &str, address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("<host mac='{}' ip='{v4}'/>", escaped(mac)),
        IpAddr::V6(v6) => format!("<host ip='{v6}'/>"),
    }
}

fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|child| child.has_tag_name(name))
}

fn text(node: Node<'_, '_>, name: &str) -> Option<String> {
    child(node, name)?.text().map(|text| text.trim().to_owned())
}

fn parse(xml: &str) -> Result<Document<'_>, String> {
    Document::parse(xml).map_err(|error| error.to_string())
}

/// Reads `dumpxml`.
pub(super) fn read_domain(xml: &str) -> Result<Domain, String> {
    let document = parse(xml)?;
    let root = document.root_element();
    let tagged = child(root, "metadata").into_iter().flat_map(|metadata| metadata.children());
    let tag = tagged.filter(|node| node.has_tag_name((NAMESPACE, "machine"))).find_map(Tag::read);
    let (Some(name), Some(uuid)) = (text(root, "name"), text(root, "uuid")) else {
        return Err("it has no name or no UUID".to_owned());
    };
    // A running one has a number.
    Ok(Domain { name, uuid, running: root.attribute("id").is_some(), tag })
}

/// Reads `vol-dumpxml`.
pub(super) fn read_volume(xml: &str) -> Result<Volume, String> {
    let document = parse(xml)?;
    let root = document.root_element();
    let target = child(root, "target").ok_or("it has no target")?;
    let format = child(target, "format").and_then(|format| format.attribute("type")).unwrap_or("raw");
    // A CD is recognised as such, and is raw for QEMU.
    let format = if format == "iso" { "raw" } else { format };
    Ok(Volume {
        kind: root.attribute("type").unwrap_or("file").to_owned(),
        path: text(target, "path").ok_or("it has no path")?,
        format: format.to_owned(),
        capacity: text(root, "capacity").and_then(|bytes| bytes.parse().ok()).ok_or("it has no capacity")?,
    })
}

/// Reads `pool-dumpxml`: the kind of pool, such as `dir`.
pub(super) fn read_pool(xml: &str) -> Result<String, String> {
    let document = parse(xml)?;
    document.root_element().attribute("type").map(str::to_owned).ok_or_else(|| "it has no type".to_owned())
}

/// Reads `net-dumpxml`: the network's name, and whether it reserves exactly this address for this machine.
pub(super) fn read_network(xml: &str, mac: &str, address: IpAddr) -> Result<(String, bool), String> {
    let document = parse(xml)?;
    let root = document.root_element();
    let name = text(root, "name").ok_or("it has no name")?;
    let kept = root.descendants().filter(|node| node.has_tag_name("host")).any(|host| {
        let ours = host.attribute("mac").is_none_or(|found| found.eq_ignore_ascii_case(mac));
        ours && host.attribute("ip").and_then(|ip| ip.parse::<IpAddr>().ok()) == Some(address)
    });
    Ok((name, kept))
}

/// Reads `domcapabilities`.
pub(super) fn read_host(xml: &str) -> Result<Host, String> {
    let document = parse(xml)?;
    let root = document.root_element();
    match (text(root, "domain"), text(root, "arch")) {
        (Some(domain), Some(arch)) => Ok(Host { domain, arch }),
        _ => Err("it names no kind of domain or no architecture".to_owned()),
    }
}
