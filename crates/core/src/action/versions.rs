//! What a change of versions needs beside restarts, and what each means for safety.

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Company, Subject};
use crate::spec::EtcdVersion;

/// One deed around a change of versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum VersionAction {
    /// Save all data in a file of the state, before a version comes that may not give it back.
    TakeSnapshot {
        /// The version that is about to come.
        version: EtcdVersion,
    },
    /// Tell etcd that the cluster goes down to this line: it rewrites its data for it.
    EnableDowngrade {
        /// The first version of the line.
        version: EtcdVersion,
    },
    /// Call off a downgrade that etcd was told of.
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
