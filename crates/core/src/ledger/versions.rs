//! Versions that are seen, a snapshot that is taken → what is remembered of them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::EtcdLedger;
use crate::observed::{ListedMember, View};
use crate::spec::EtcdVersion;
use crate::versions::{Line, REQUESTS_OF_TODAY};

/// A snapshot of all data, taken before a change of versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// The version that was about to start.
    pub before: EtcdVersion,
    /// The version that wrote it.
    pub from: EtcdVersion,
    /// It holds at least this revision.
    pub revision: i64,
    /// When it was taken.
    pub at: Timestamp,
    /// Its file in the state's directory of snapshots.
    pub file: String,
}

impl EtcdLedger {
    /// Learns which members' logs may still hold requests of an older line. A member that has followed the cluster down
    /// to the older line has written a snapshot of its log then (etcd does so for nothing else), and one of the line
    /// beyond has read it all.
    pub(super) fn learn_requests(&mut self, list: &[ListedMember], view: &View<'_>) {
        let answers = || view.answering.values().filter(|e| list.iter().any(|m| m.id == e.member));
        if answers().any(|e| Line::of(e.version) < REQUESTS_OF_TODAY) {
            self.log_renewed = Some(BTreeSet::new());
            return;
        }
        let Some(renewed) = &mut self.log_renewed else { return };
        let older = Some(REQUESTS_OF_TODAY.below());
        for etcd in answers() {
            let down = etcd.downgrade.map(Line::of) == older && etcd.storage_version.map(Line::of) == older;
            if down || Line::of(etcd.version) > REQUESTS_OF_TODAY {
                renewed.insert(etcd.member);
            }
        }
        renewed.retain(|id| list.iter().any(|m| m.id == *id));
        let beyond = |id| answers().any(|e| e.member == id && Line::of(e.version) > REQUESTS_OF_TODAY);
        if list.iter().all(|m| beyond(m.id)) {
            self.log_renewed = None;
        }
    }
}
