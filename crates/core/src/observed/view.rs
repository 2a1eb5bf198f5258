//! Facts of single members → the cluster as a whole: its voters, the healthy ones, and its fault tolerance.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::etcd::{Alarm, ClusterId, ListedMember, MemberId};
use super::{EtcdFacts, Observed};
use crate::spec::Name;

/// How many of so many voters must agree.
pub fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

/// How many members a cluster can lose and go on writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    /// No quorum: it takes no writes.
    NoQuorum,
    /// It can lose so many.
    CanLose(u32),
}

impl Tolerance {
    /// From the number of healthy voters among all voters.
    pub fn of(healthy: usize, voters: usize) -> Self {
        match healthy.checked_sub(quorum(voters)) {
            Some(spare) if voters > 0 => Self::CanLose(u32::try_from(spare).unwrap_or(u32::MAX)),
            _ => Self::NoQuorum,
        }
    }
}

/// The cluster as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct View<'a> {
    /// The members that answered, by name.
    pub answering: BTreeMap<&'a Name, &'a EtcdFacts>,
    /// Of those, the ones through which a linearizable read succeeded.
    pub healthy: BTreeSet<&'a Name>,
    /// The voters, as a healthy member lists them; the desired ones while there is no such list.
    pub voters: usize,
    /// The member list of a healthy member.
    pub listed: Option<&'a [ListedMember]>,
    /// Ids of the clusters that members answered with or have on their disks.
    pub clusters: BTreeMap<ClusterId, BTreeSet<&'a Name>>,
    /// The leader's name, when it is known.
    pub leader: Option<&'a Name>,
}

impl<'a> View<'a> {
    /// Derives it from the facts.
    pub fn of(observed: &'a Observed) -> Self {
        let answering: BTreeMap<&Name, &EtcdFacts> = observed.answers().collect();
        let healthy: BTreeSet<&Name> =
            answering.iter().filter(|(_, e)| e.healthy() && !e.learner).map(|(name, _)| *name).collect();
        // A healthy member's list went through quorum; the one with the newest term is used.
        let listed = healthy
            .iter()
            .filter_map(|name| answering.get(name))
            .filter(|e| !e.members.is_empty())
            .max_by_key(|e| (e.raft_term, e.raft_index))
            .map(|e| e.members.as_slice());
        let voters = listed.map_or(observed.etcd.members.len(), |list| list.iter().filter(|m| !m.learner).count());
        let mut clusters: BTreeMap<ClusterId, BTreeSet<&Name>> = BTreeMap::new();
        let on_disk = observed.reports().filter_map(|(name, report)| Some((name, report.cluster_on_disk()?)));
        for (name, id) in observed.answers().map(|(name, etcd)| (name, etcd.cluster)).chain(on_disk) {
            clusters.entry(id).or_default().insert(name);
        }
        let leader_id: Option<MemberId> =
            healthy.iter().filter_map(|n| answering.get(n)).max_by_key(|e| e.raft_term).and_then(|e| e.leader);
        let leader = leader_id.and_then(|id| answering.iter().find(|(_, e)| e.member == id).map(|(name, _)| *name));
        Self { answering, healthy, voters, listed, clusters, leader }
    }

    /// What the cluster can lose now.
    pub fn tolerance(&self) -> Tolerance {
        Tolerance::of(self.healthy.len(), self.voters)
    }

    /// What it can lose while this member is down.
    pub fn tolerance_without(&self, name: &Name) -> Tolerance {
        Tolerance::of(self.healthy.len() - usize::from(self.healthy.contains(name)), self.voters)
    }

    /// What it can lose once these members are healthy.
    pub fn tolerance_with<'n>(&self, names: impl IntoIterator<Item = &'n Name>) -> Tolerance {
        let more = names.into_iter().filter(|name| !self.healthy.contains(name)).count();
        Tolerance::of((self.healthy.len() + more).min(self.voters), self.voters)
    }

    /// Whether it is healthy, and lists no member but itself.
    pub fn is_alone(&self, name: &Name) -> bool {
        let only = self.listed.is_some_and(|list| matches!(list, [one] if one.name == name.as_str()));
        only && self.healthy.contains(name)
    }

    /// Whether a member knows of this alarm.
    pub fn alarmed(&self, alarm: Alarm) -> bool {
        self.answering.values().any(|e| e.alarms.contains(&alarm))
    }

    /// Whether etcd reports that a member's data is corrupt.
    pub fn corrupt(&self) -> bool {
        self.alarmed(Alarm::Corrupt)
    }

    /// Whether the cluster takes writes.
    pub fn has_quorum(&self) -> bool {
        self.tolerance() != Tolerance::NoQuorum
    }
}
