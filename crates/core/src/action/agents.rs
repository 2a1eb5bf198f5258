//! What is done to an agent's own program, and what it means for safety.

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Company, Subject};
use crate::spec::Name;

/// One action on an agent's own program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum AgentAction {
    /// Have an agent replaced by the one that this raftsman ships. etcd's process is not touched.
    UpgradeAgent {
        /// Where.
        machine: Name,
        /// SHA-256 of the new program.
        digest: String,
    },
}

impl AgentAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            // One at a time: no more than one machine is without its agent for a moment.
            Self::UpgradeAgent { .. } => Class::of(Changes::Machine).beside(Company::Alone),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::UpgradeAgent { machine, .. } => Subject::Machine(machine),
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::UpgradeAgent { .. } => "upgrade agent",
        }
    }
}
