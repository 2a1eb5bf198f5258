//! The section `machines.libvirt` → where virtual machines are made, from what, and what they are connected to.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::machines::Dns;
use super::subnet::Subnet;
use super::units::Name;

/// Virtual machines through libvirt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Libvirt {
    /// How libvirt is reached, as `virsh --connect` takes it: `qemu:///system`, `qemu+ssh://root@kvm1/system`.
    pub uri: String,
    /// The storage pool that machines' disks are made in.
    pub pool: String,
    /// The pool of the image, which is a volume; `pool` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pool: Option<String>,
    /// The pool of the disks for etcd's data; `pool` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_pool: Option<String>,
    /// The pool of the small disks that machines boot with (cloud-init's); `pool` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed_pool: Option<String>,
    /// What a machine's system disk is: an overlay of the image, or a copy.
    pub clone: Cloning,
    /// The libvirt network that machines are on, by name or UUID; `default` by default. etcd listens there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Instead of a network: an interface of the host, such as `enp3s0`, that machines are connected to directly (macvtap
    /// in bridge mode). The host itself does not reach them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macvtap: Option<String>,
    /// Hardware addresses, by machine. Made from the fleet's id and the machine's name by default, and stay.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub macs: BTreeMap<Name, String>,
    /// Further interfaces, for others than etcd.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    /// The firmware of a machine.
    pub firmware: Firmware,
    /// Whether machines start when their host does.
    pub autostart: bool,
    /// Whether machines run on the processor itself or are emulated. KVM where the host has it, by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acceleration: Option<Acceleration>,
}

/// A further interface of every machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Interface {
    /// A libvirt network, by name or UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Or an interface of the host (macvtap).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macvtap: Option<String>,
    /// The network that the addresses are in. Without it, a machine uses DHCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet: Option<Subnet>,
    /// The gateway of the subnet, for what the first interface does not reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Name servers on this interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<Dns>,
    /// Addresses, by machine.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub addresses: BTreeMap<Name, IpAddr>,
    /// Hardware addresses, by machine.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub macs: BTreeMap<Name, String>,
}

/// What a machine's system disk is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Cloning {
    /// An overlay of the image, which must stay where it is, unchanged: fast to make.
    #[default]
    Overlay,
    /// All of the image.
    Copy,
}

/// The firmware of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Firmware {
    /// BIOS, or what the architecture has instead.
    #[default]
    Bios,
    /// UEFI.
    Uefi,
}

/// How a machine's instructions are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Acceleration {
    /// By the processor (KVM).
    Kvm,
    /// Emulated by QEMU, about ten times slower.
    None,
}

/// What an interface is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link<'a> {
    /// A libvirt network, by name or UUID.
    Network(&'a str),
    /// An interface of the host.
    Macvtap(&'a str),
}

impl Default for Libvirt {
    fn default() -> Self {
        Self {
            uri: "qemu:///system".to_owned(),
            pool: "default".to_owned(),
            image_pool: None,
            data_pool: None,
            seed_pool: None,
            clone: Cloning::default(),
            network: None,
            macvtap: None,
            macs: BTreeMap::new(),
            interfaces: Vec::new(),
            firmware: Firmware::default(),
            autostart: true,
            acceleration: None,
        }
    }
}

impl Libvirt {
    /// The pool of the image.
    pub fn image_pool(&self) -> &str {
        self.image_pool.as_deref().unwrap_or(&self.pool)
    }

    /// The pool of the disks for data.
    pub fn data_pool(&self) -> &str {
        self.data_pool.as_deref().unwrap_or(&self.pool)
    }

    /// The pool of the disks that machines boot with.
    pub fn seed_pool(&self) -> &str {
        self.seed_pool.as_deref().unwrap_or(&self.pool)
    }

    /// What etcd's interface is connected to.
    pub fn link(&self) -> Link<'_> {
        link(self.network.as_deref(), self.macvtap.as_deref())
    }

    /// Whether libvirt is on this computer, as far as its address tells.
    pub fn is_here(&self) -> bool {
        let host = self.uri.split_once("://").map(|(_, rest)| rest.split(['/', '?']).next().unwrap_or_default());
        host.is_none_or(|host| matches!(host, "" | "localhost" | "127.0.0.1" | "[::1]"))
    }
}

impl Interface {
    /// What it is connected to.
    pub fn link(&self) -> Link<'_> {
        link(self.network.as_deref(), self.macvtap.as_deref())
    }
}

fn link<'a>(network: Option<&'a str>, macvtap: Option<&'a str>) -> Link<'a> {
    match (network, macvtap) {
        (None, Some(interface)) => Link::Macvtap(interface),
        (network, _) => Link::Network(network.unwrap_or("default")),
    }
}
