//! A backup that takes the place of all data → what is remembered of it.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{EtcdLedger, Mode};
use crate::action::RestoreAction;
use crate::backup::{FullName, Manifest};
use crate::observed::{ClusterId, Data, Observed};
use crate::spec::{EtcdVersion, Name};

/// A backup that takes the place of all data of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restoration {
    /// The full backup that it comes from.
    pub backup: FullName,
    /// The history that it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<ClusterId>,
    /// What was verified when it was decided: machines that read the store themselves are held to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Box<Manifest>>,
    /// The last revision in it.
    pub revision: i64,
    /// How many keys there are then.
    pub keys: u64,
    /// When it was decided.
    pub since: Timestamp,
    /// Clusters whose data it takes the place of.
    pub old: BTreeSet<ClusterId>,
    /// The members to be, and where they reach each other.
    pub members: BTreeMap<Name, String>,
    /// The version whose tool restores it, and that runs first.
    pub version: EtcdVersion,
    /// The one snapshot that all members are restored from.
    pub source: SnapshotSource,
    /// SHA-256 of it.
    pub sha256: String,
    /// Revisions begin so far above the last one in it: above every revision that a client ever saw.
    pub bump: u64,
    /// Whether all members were seen to hold the same, before clients could reach them.
    #[serde(default)]
    pub agreed: bool,
}

/// Where a snapshot is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotSource {
    /// In this file, in the state's directory of snapshots.
    File(String),
    /// It is the full backup itself, among those of this cluster (`CLUSTER`, or `FLEET/CLUSTER`; the cluster's own without
    /// one): machines read it from the store.
    Store(Option<String>),
}

impl Restoration {
    /// Whether this data is what it takes the place of.
    pub fn replaces(&self, data: &Data) -> bool {
        match data {
            Data::Empty => false,
            Data::Unreadable { .. } => true,
            Data::Present { cluster, .. } => self.old.contains(cluster),
        }
    }
}

pub(super) fn after(ledger: &mut EtcdLedger, action: &RestoreAction) {
    match action {
        RestoreAction::CompareRestored { .. } => {
            if let Some(restoration) = ledger.restoration_mut() {
                restoration.agreed = true;
            }
        }
        RestoreAction::PrepareRestore | RestoreAction::RestoreBackup { .. } => {}
    }
}

impl EtcdLedger {
    /// Once all members have the same of a backup, they are the cluster.
    pub(super) fn restored(&mut self, observed: &Observed, now: Timestamp) {
        let Some(restoration) = self.restoration().cloned().filter(|restoration| restoration.agreed) else { return };
        let report = |name: &Name| observed.report(name);
        let Some(cluster) = restoration.members.keys().find_map(|name| match report(name)?.etcd.data {
            Data::Present { cluster, .. } => Some(cluster).filter(|found| !restoration.old.contains(found)),
            Data::Empty | Data::Unreadable { .. } => None,
        }) else {
            return;
        };
        self.begin_history(cluster, restoration.history, Some(restoration.revision), now);
        self.cluster = Some(cluster);
        self.members.clone_from(&restoration.members);
        self.founders.clone_from(&restoration.members);
        let incarnation = |name: &Name| Some((name.clone(), report(name)?.incarnation.clone()));
        self.started = restoration.members.keys().filter_map(incarnation).collect();
        self.reshaped = false;
        self.down_since.clear();
        self.evicted.clear();
        self.replace.clear();
        (self.learner, self.space, self.log_renewed) = (None, None, None);
        self.mode = Mode::Normal;
    }
}
