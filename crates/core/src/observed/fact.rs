//! One observation of one thing → seen, absent, or unreachable: three distinct answers.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The outcome of observing one thing.
///
/// `Unreachable` is not `Absent`: nothing may be created, replaced or destroyed because it could not be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "lowercase")]
pub enum Fact<T> {
    /// It is there, and this is what it looks like.
    Seen {
        /// What was seen.
        value: T,
        /// When.
        at: Timestamp,
    },
    /// The authoritative source answered that it does not exist.
    Absent {
        /// When.
        at: Timestamp,
    },
    /// The authoritative source could not be asked.
    Unreachable {
        /// The error.
        error: String,
        /// Since when it could not be reached, as far as this run knows.
        since: Timestamp,
    },
}

impl<T> Fact<T> {
    /// What was seen, if anything was.
    pub fn seen(&self) -> Option<&T> {
        match self {
            Self::Seen { value, .. } => Some(value),
            Self::Absent { .. } | Self::Unreachable { .. } => None,
        }
    }

    /// Why it could not be asked, where it could not.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Unreachable { error, .. } => Some(error),
            Self::Seen { .. } | Self::Absent { .. } => None,
        }
    }

    /// When it was observed; where it is unreachable, since when.
    pub fn at(&self) -> Timestamp {
        match self {
            Self::Seen { at, .. } | Self::Absent { at } | Self::Unreachable { since: at, .. } => *at,
        }
    }

    /// Whether the authoritative source answered that it does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent { .. })
    }

    /// Carries the beginning of an outage over from the previous observation.
    pub fn since_before(self, before: Option<&Self>) -> Self {
        match (self, before) {
            (Self::Unreachable { error, .. }, Some(Self::Unreachable { since, .. })) => {
                Self::Unreachable { error, since: *since }
            }
            (fact, _) => fact,
        }
    }
}
