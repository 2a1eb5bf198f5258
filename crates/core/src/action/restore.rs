//! The steps of a restore from a backup, and what each means for safety.

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Company, Subject};
use crate::spec::{EtcdVersion, Name};

/// One step of a restore from a backup.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum RestoreAction {
    /// Test the backup that a new cluster is bootstrapped from in a temporary etcd, and make one snapshot of it for all
    /// members.
    PrepareRestore,
    /// Fill an empty data directory from the snapshot that all members are restored from.
    RestoreBackup {
        /// Where.
        machine: Name,
        /// The version whose tool does it.
        version: EtcdVersion,
    },
    /// Start the restored members where no client reaches them, check that all hold the same, then start them for
    /// clients.
    CompareRestored {
        /// All of them.
        machines: Vec<Name>,
    },
}

impl RestoreAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            // All members get the data that it makes.
            Self::PrepareRestore => Class::of(Changes::Nothing).beside(Company::Alone),
            Self::RestoreBackup { .. } => Class::of(Changes::Data).irreversible().beside(Company::OneLoss),
            // Clients see the restored data, and write on it.
            Self::CompareRestored { .. } => Class::of(Changes::Data).irreversible().beside(Company::Alone),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::PrepareRestore | Self::CompareRestored { .. } => Subject::Cluster,
            Self::RestoreBackup { machine, .. } => Subject::Machine(machine),
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::PrepareRestore => "try backup",
            Self::RestoreBackup { .. } => "restore backup",
            Self::CompareRestored { .. } => "compare and start",
        }
    }

    /// Machines whose etcd runs once it is done.
    pub(super) fn brings_up(&self) -> Vec<&Name> {
        match self {
            Self::CompareRestored { machines } => machines.iter().collect(),
            Self::PrepareRestore | Self::RestoreBackup { .. } => Vec::new(),
        }
    }
}
