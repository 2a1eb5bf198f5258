//! What is done for scheduled backups, and what it means for safety.

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Subject};
use crate::spec::Name;

/// A step for scheduled backups.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum BackupAction {
    /// Give a machine the schedule, the store and the certificate that it makes backups with, or take them from it.
    ConfigureBackups {
        /// Where.
        machine: Name,
    },
}

impl BackupAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            // Backups read, and no member is restarted for them.
            Self::ConfigureBackups { .. } => Class::of(Changes::Machine),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::ConfigureBackups { machine } => Subject::Machine(machine),
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::ConfigureBackups { .. } => "configure backups",
        }
    }
}
