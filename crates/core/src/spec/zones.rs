//! `machines.zones` → what fails together, what is particular to each of them, and which member goes where.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::machines::Machines;
use super::units::Name;

/// A failure domain: machines that fail together. A KVM host, an Incus server, an availability zone, a rack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Zone {
    /// libvirt: the KVM host that this zone is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libvirt: Option<ZoneLibvirt>,
    /// Incus: the server, project or cluster member that this zone is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incus: Option<ZoneIncus>,
}

/// The KVM host of a zone. What is not written is the fleet's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ZoneLibvirt {
    /// How this host's libvirt is reached: `qemu+ssh://root@kvm1/system`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// The storage pool that machines' disks are made in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The pool of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pool: Option<String>,
    /// The pool of the disks for etcd's data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_pool: Option<String>,
    /// The pool of the small disks that machines boot with (cloud-init's).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed_pool: Option<String>,
    /// The libvirt network that machines are on, by name or UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Instead of a network: an interface of the host that machines are connected to directly (macvtap in bridge mode).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macvtap: Option<String>,
}

/// The Incus server, project or cluster member of a zone. What is not written is the fleet's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ZoneIncus {
    /// The server: the path of its socket, or `https://host:8443`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// With https: the client certificate, which the server trusts: a file, relative to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// With https: the key of the client certificate: a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// With https: the server's own certificate, which it must show: a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_certificate: Option<String>,
    /// The project that machines belong to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Where the server is a cluster: the cluster member that machines are made on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The network that machines are connected to: one that the server manages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The storage pool of system disks and data disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

impl Machines {
    /// This section as it holds in a zone.
    pub fn with_zone(&self, zone: Option<&Name>) -> Cow<'_, Self> {
        let Some(Zone { libvirt, incus }) = zone.and_then(|zone| self.zones.get(zone)) else {
            return Cow::Borrowed(self);
        };
        let mut machines = self.clone();
        if let Some(ours) = libvirt {
            let libvirt = machines.libvirt.get_or_insert_default();
            for (to, from) in [(&mut libvirt.uri, &ours.uri), (&mut libvirt.pool, &ours.pool)] {
                if let Some(from) = from {
                    to.clone_from(from);
                }
            }
            overwrite(&mut libvirt.image_pool, &ours.image_pool);
            overwrite(&mut libvirt.data_pool, &ours.data_pool);
            overwrite(&mut libvirt.seed_pool, &ours.seed_pool);
            // A link is one of two keys: the zone's replaces both of the fleet's.
            if ours.network.is_some() || ours.macvtap.is_some() {
                libvirt.network.clone_from(&ours.network);
                libvirt.macvtap.clone_from(&ours.macvtap);
            }
        }
        if let Some(ours) = incus {
            let incus = machines.incus.get_or_insert_default();
            overwrite(&mut incus.server, &ours.server);
            overwrite(&mut incus.certificate, &ours.certificate);
            overwrite(&mut incus.key, &ours.key);
            overwrite(&mut incus.server_certificate, &ours.server_certificate);
            overwrite(&mut incus.project, &ours.project);
            overwrite(&mut incus.network, &ours.network);
            overwrite(&mut incus.pool, &ours.pool);
            if let Some(target) = &ours.target {
                incus.targets = vec![target.clone()];
            }
        }
        Cow::Owned(machines)
    }
}

fn overwrite(to: &mut Option<String>, from: &Option<String>) {
    if from.is_some() {
        to.clone_from(from);
    }
}

/// Spreads members evenly over zones: one that has its zone keeps it, each other goes where the fewest are, in the order of
/// the file. The same at every run, and no member moves because of one that comes or goes.
pub fn spread(zones: &[&Name], given: &[Option<Name>]) -> Vec<Option<Name>> {
    let mut counts: Vec<usize> =
        zones.iter().map(|zone| given.iter().flatten().filter(|given| given == zone).count()).collect();
    let place = |given: &Option<Name>| {
        if given.is_some() {
            return given.clone();
        }
        let fewest =
            counts.iter().enumerate().min_by_key(|(index, count)| (**count, *index)).map(|(index, _)| index)?;
        counts[fewest] += 1;
        Some(zones[fewest].clone())
    };
    given.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_spread_evenly_and_stay() {
        let [a, b, c] = ["a", "b", "c"].map(Name::fixed);
        let described = |zones: &[&Name], given: &[Option<Name>]| -> String {
            let placed = spread(zones, given);
            placed.iter().map(|zone| zone.as_ref().map_or("-", |zone| zone.as_str())).collect()
        };
        let none = || vec![None; 5];
        assert_eq!(described(&[&a, &b, &c], &none()), "abcab");
        assert_eq!(described(&[], &none()), "-----");
        // A third zone: those that have a place keep it, new ones go there.
        let kept = [Some(a.clone()), Some(b.clone()), Some(a.clone()), None, None];
        assert_eq!(described(&[&a, &b, &c], &kept), "abacb");
    }
}
