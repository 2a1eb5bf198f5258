//! What a change of versions needs beside restarts, and what each means for safety.

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Company, Subject};
use crate::spec::EtcdVersion;

/// One action around a change of versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum VersionAction {
    /// Save a snapshot in the state, before a version starts that may not be downgraded from.
    TakeSnapshot {
        /// The version that is about to start.
        version: EtcdVersion,
    },
    /// Enable a downgrade to this line: etcd rewrites its data for it.
    EnableDowngrade {
        /// The first version of the line.
        version: EtcdVersion,
    },
    /// Cancel a downgrade that is enabled.
    CancelDowngrade,
}

impl VersionAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            Self::TakeSnapshot { .. } => Class::of(Changes::Nothing),
            Self::EnableDowngrade { .. } | Self::CancelDowngrade => Class::of(Changes::Format).beside(Company::Alone),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::TakeSnapshot { .. } | Self::EnableDowngrade { .. } | Self::CancelDowngrade => Subject::Cluster,
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::TakeSnapshot { .. } => "take snapshot",
            Self::EnableDowngrade { .. } => "enable downgrade",
            Self::CancelDowngrade => "cancel downgrade",
        }
    }
}
