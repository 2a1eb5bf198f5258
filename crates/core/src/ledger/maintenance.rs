//! A step on databases or alarms → what is remembered of it.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::EtcdLedger;
use crate::action::MaintenanceAction;
use crate::observed::{Alarm, Observed, View};
use crate::spec::Name;

/// A compaction that is to make room.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceRecord {
    /// Everything before this revision is dropped.
    pub revision: i64,
    /// Whether it ended on every member: compacting goes on behind the call, so that a run that was killed in between
    /// does not know.
    pub done: bool,
    /// The members whose files were rewritten since: their size in use is exact.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub rewritten: BTreeSet<Name>,
}

pub(super) fn ahead(ledger: &mut EtcdLedger, observed: &Observed, action: &MaintenanceAction) {
    match action {
        MaintenanceAction::Compact { revision } if View::of(observed).alarmed(Alarm::NoSpace) => {
            ledger.space = Some(SpaceRecord { revision: *revision, done: false, rewritten: BTreeSet::new() });
        }
        // The next observation tells whether it was done.
        MaintenanceAction::Compact { .. }
        | MaintenanceAction::Defragment { .. }
        | MaintenanceAction::DisarmAlarm { .. } => {}
    }
}

pub(super) fn after(ledger: &mut EtcdLedger, action: &MaintenanceAction) {
    let Some(space) = &mut ledger.space else { return };
    match action {
        MaintenanceAction::Compact { revision } => space.done |= space.revision == *revision,
        MaintenanceAction::Defragment { machine } => {
            space.rewritten.insert(machine.clone());
        }
        MaintenanceAction::DisarmAlarm { .. } => {}
    }
}
