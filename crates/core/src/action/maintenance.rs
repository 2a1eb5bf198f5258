//! Compaction, defragmentation and disarming of alarms, and what each means for safety.

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Company, Subject};
use crate::observed::Alarm;
use crate::spec::Name;

/// One action on databases and alarms.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum MaintenanceAction {
    /// Drop what was overwritten or deleted before this revision, on every member. The files stay as large as they are.
    Compact {
        /// The oldest revision that can still be read.
        revision: i64,
    },
    /// Write a member's database anew, without the free space in it. The member answers no client meanwhile.
    Defragment {
        /// Where.
        machine: Name,
    },
    /// Disarm an alarm whose cause is gone.
    DisarmAlarm {
        /// Which.
        alarm: Alarm,
    },
}

impl MaintenanceAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            // Older revisions are dropped.
            Self::Compact { .. } => Class::of(Changes::Data).irreversible().beside(Company::Alone),
            Self::Defragment { .. } => Class::of(Changes::Data).takes_member(),
            Self::DisarmAlarm { .. } => Class::of(Changes::Data).beside(Company::Alone),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::Compact { .. } | Self::DisarmAlarm { .. } => Subject::Cluster,
            Self::Defragment { machine } => Subject::Machine(machine),
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Compact { .. } => "compact",
            Self::Defragment { .. } => "defragment",
            Self::DisarmAlarm { alarm: Alarm::NoSpace } => "disarm NOSPACE",
            Self::DisarmAlarm { alarm: Alarm::Corrupt } => "disarm CORRUPT",
        }
    }
}
