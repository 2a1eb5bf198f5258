//! The clusters of every service → what the file says of their machines, for rules that hold for all of them.

use std::net::IpAddr;

use super::super::diagnostic::Path;
use super::super::overrides::{ClusterMachines, MemberMachine};
use super::super::postgres::{Node, Nodes};
use super::super::types::{Member, Members, Spec};
use super::super::units::Name;

/// A cluster of some service, as far as its machines go.
#[derive(Clone, Copy)]
pub(super) struct Group<'s> {
    /// The section of the file that it is in.
    pub(super) section: &'static str,
    pub(super) name: &'s Name,
    /// What runs on one of its machines, and the key that has them all.
    pub(super) what: &'static str,
    key: &'static str,
    pub(super) machines: Option<&'s ClusterMachines>,
    /// How many machines it has.
    pub(super) number: u64,
    /// Whether the file only counts them.
    pub(super) counted: bool,
    members: &'s [Member],
    nodes: &'s [Node],
}

/// A member or a node that the file lists.
#[derive(Clone, Copy)]
pub(super) struct Listed<'s> {
    pub(super) name: &'s Name,
    pub(super) address: Option<IpAddr>,
    pub(super) zone: Option<&'s Name>,
    pub(super) machine: Option<&'s MemberMachine>,
}

/// Every cluster of the file, section by section.
pub(super) fn groups(spec: &Spec) -> impl Iterator<Item = Group<'_>> {
    let etcd = spec.etcd.iter().map(|(name, cluster)| Group {
        section: "etcd",
        name,
        what: "member",
        key: "members",
        machines: cluster.machines.as_ref(),
        number: cluster.members.number(),
        counted: matches!(cluster.members, Members::Count(_)),
        members: cluster.listed(),
        nodes: &[],
    });
    let postgres = spec.postgres.iter().map(|(name, cluster)| Group {
        section: "postgres",
        name,
        what: "node",
        key: "nodes",
        machines: cluster.machines.as_ref(),
        number: cluster.nodes.number(),
        counted: matches!(cluster.nodes, Nodes::Count(_)),
        members: &[],
        nodes: cluster.listed(),
    });
    etcd.chain(postgres)
}

impl<'s> Group<'s> {
    /// Where it says how its machines differ.
    pub(super) fn machines_at(&self) -> Path {
        Path::of(&[self.section, self.name.as_str(), "machines"])
    }

    /// Where its members or nodes are.
    pub(super) fn list_at(&self) -> Path {
        Path::of(&[self.section, self.name.as_str(), self.key])
    }

    /// The members or nodes that the file lists; none where it only counts them.
    pub(super) fn listed(&self) -> impl Iterator<Item = Listed<'s>> + use<'s> {
        let member = |member: &'s Member| Listed {
            name: &member.name,
            address: member.address,
            zone: member.zone.as_ref(),
            machine: member.machine.as_ref(),
        };
        let node = |node: &'s Node| Listed {
            name: &node.name,
            address: node.address,
            zone: node.zone.as_ref(),
            machine: node.machine.as_ref(),
        };
        self.members.iter().map(member).chain(self.nodes.iter().map(node))
    }
}
