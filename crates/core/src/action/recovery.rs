//! The step that only a recovery has, and what it means for safety.

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Company, Subject};
use crate::spec::{EtcdVersion, Name};

/// One step of a recovery.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum RecoveryAction {
    /// Fill the survivor's data directory from its own data, which was put away: a new cluster of one member, with
    /// revisions above every revision that a client saw.
    RestoreData {
        /// Where.
        machine: Name,
        /// The version whose tool does it.
        version: EtcdVersion,
    },
}

impl RecoveryAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            // Clients see the restored data, and write on it.
            Self::RestoreData { .. } => Class::of(Changes::Data).irreversible().beside(Company::Alone),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::RestoreData { machine, .. } => Subject::Machine(machine),
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::RestoreData { .. } => "restore data",
        }
    }
}
