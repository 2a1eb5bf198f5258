//! `machines` of a cluster, `machine` of a member → the fleet's section `machines` as it holds for one machine.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::incus::IncusKind;
use super::machines::{Firewall, Machines};
use super::types::{EtcdCluster, Member, Members};
use super::units::{ByteSize, Name};

/// In what the machines of a cluster differ from the fleet's. Everything else is the same for the whole fleet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterMachines {
    /// Virtual CPUs of a machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Memory of a machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Size of a machine's system disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<ByteSize>,
    /// Size of a separate disk for the data of etcd or PostgreSQL, kept when the machine is rebuilt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_disk: Option<ByteSize>,
    /// The image that machines boot from: a name or id as the provider knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The zones that the cluster's members are spread over. All of them by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zones: Option<Vec<Name>>,
    /// The firewall of the cluster's machines: `false`, or from where each service is reached. Replaces the fleet's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firewall: Option<Firewall>,
    /// Metrics of the machine itself for Prometheus, on port 9100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_exporter: Option<bool>,
    /// Tags of the logs of the cluster's machines. What is not written is the fleet's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<ClusterLogs>,
    /// Incus: what machines are, and what they are connected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incus: Option<ClusterIncus>,
    /// libvirt: what machines are connected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libvirt: Option<ClusterLibvirt>,
}

/// In what the tags of logs of a cluster's machines differ.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterLogs {
    /// Tag of etcd's logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_tag: Option<String>,
    /// Tag of the node exporter's logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_exporter_tag: Option<String>,
    /// Tag of Patroni's and PostgreSQL's logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patroni_tag: Option<String>,
}

/// In what the machines of a cluster on Incus differ. The server and its storage pool are the fleet's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterIncus {
    /// The network that machines are connected to: one that the server manages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Profiles that machines begin with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Vec<String>>,
    /// What a machine is.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<IncusKind>,
    /// Network ACLs of the server's for these machines, besides their own firewall.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acls: Option<Vec<String>>,
}

/// In what the machines of a cluster on libvirt differ. The connection and its storage pools are the fleet's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterLibvirt {
    /// The libvirt network that machines are on, by name or UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Instead of a network: an interface of the host that machines are connected to directly (macvtap in bridge mode).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macvtap: Option<String>,
}

/// In what the machine of one member differs from those of its cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MemberMachine {
    /// Virtual CPUs of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Memory of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Size of the machine's system disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<ByteSize>,
    /// Size of a separate disk for the data of etcd or PostgreSQL, kept when the machine is rebuilt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_disk: Option<ByteSize>,
    /// The image that the machine boots from: a name or id as the provider knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// What each level may say of a machine's size: the fleet, a cluster, a member.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size<'a> {
    pub(super) vcpus: Option<u32>,
    pub(super) memory: Option<ByteSize>,
    pub(super) disk: Option<ByteSize>,
    pub(super) data_disk: Option<ByteSize>,
    pub(super) image: Option<&'a str>,
}

impl Size<'_> {
    /// Its keys, and whether each is written.
    pub(super) fn keys(&self) -> [(&'static str, bool); 5] {
        [
            ("vcpus", self.vcpus.is_some()),
            ("memory", self.memory.is_some()),
            ("disk", self.disk.is_some()),
            ("data_disk", self.data_disk.is_some()),
            ("image", self.image.is_some()),
        ]
    }

    fn apply(&self, machines: &mut Machines) {
        machines.vcpus = self.vcpus.or(machines.vcpus);
        machines.memory = self.memory.or(machines.memory);
        machines.disk = self.disk.or(machines.disk);
        machines.data_disk = self.data_disk.or(machines.data_disk);
        machines.image = self.image.map(ToOwned::to_owned).or(machines.image.take());
    }
}

impl ClusterMachines {
    pub(super) fn size(&self) -> Size<'_> {
        let Self { vcpus, memory, disk, data_disk, .. } = *self;
        Size { vcpus, memory, disk, data_disk, image: self.image.as_deref() }
    }

    fn apply(&self, machines: &mut Machines) {
        self.size().apply(machines);
        machines.firewall = self.firewall.clone().or(machines.firewall.take());
        machines.node_exporter = self.node_exporter.or(machines.node_exporter);
        if let (Some(ours), Some(logs)) = (&self.logs, &mut machines.logs) {
            logs.etcd_tag = ours.etcd_tag.clone().or(logs.etcd_tag.take());
            logs.node_exporter_tag = ours.node_exporter_tag.clone().or(logs.node_exporter_tag.take());
            logs.patroni_tag = ours.patroni_tag.clone().or(logs.patroni_tag.take());
        }
        if let Some(ours) = &self.incus {
            let incus = machines.incus.get_or_insert_default();
            incus.network = ours.network.clone().or(incus.network.take());
            incus.profiles = ours.profiles.clone().or(incus.profiles.take());
            incus.kind = ours.kind.unwrap_or(incus.kind);
            if let Some(acls) = &ours.acls {
                incus.acls.clone_from(acls);
            }
        }
        // A link is one of two keys: the cluster's replaces both of the fleet's.
        if let Some(ours) = self.libvirt.as_ref().filter(|ours| ours.network.is_some() || ours.macvtap.is_some()) {
            let libvirt = machines.libvirt.get_or_insert_default();
            libvirt.network.clone_from(&ours.network);
            libvirt.macvtap.clone_from(&ours.macvtap);
        }
    }
}

impl MemberMachine {
    pub(super) fn size(&self) -> Size<'_> {
        let Self { vcpus, memory, disk, data_disk, .. } = *self;
        Size { vcpus, memory, disk, data_disk, image: self.image.as_deref() }
    }
}

impl Machines {
    pub(super) fn size(&self) -> Size<'_> {
        let Self { vcpus, memory, disk, data_disk, .. } = *self;
        Size { vcpus, memory, disk, data_disk, image: self.image.as_deref() }
    }

    /// This section with what a cluster says otherwise of its machines.
    pub fn with_cluster(&self, ours: Option<&ClusterMachines>) -> Cow<'_, Self> {
        let Some(ours) = ours else { return Cow::Borrowed(self) };
        let mut machines = self.clone();
        ours.apply(&mut machines);
        Cow::Owned(machines)
    }

    /// This section with what a member says otherwise of its machine.
    pub fn with_member(&self, ours: Option<&MemberMachine>) -> Cow<'_, Self> {
        let Some(ours) = ours else { return Cow::Borrowed(self) };
        let mut machines = self.clone();
        ours.size().apply(&mut machines);
        Cow::Owned(machines)
    }
}

impl EtcdCluster {
    /// The members that the file lists; none where it only counts them.
    pub fn listed(&self) -> &[Member] {
        match &self.members {
            Members::Count(_) => &[],
            Members::List(list) => list,
        }
    }
}
