//! What is measured before a cluster starts, and what it means for safety.

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Company, Subject};

/// A measurement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum PreflightAction {
    /// Measure every machine's disk and the network between them, and set heartbeat and election time-outs by it.
    Measure,
}

impl PreflightAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            // Other steps of the wave would distort the measurement.
            Self::Measure => Class::of(Changes::Nothing).beside(Company::Alone),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::Measure => Subject::Cluster,
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Measure => "measure",
        }
    }
}
