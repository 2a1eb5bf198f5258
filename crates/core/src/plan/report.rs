//! The report of a pass: that it looked, or why it left its topic for later.

use std::fmt;

use serde::Serialize;

/// The report of a pass. The steps and waits that it added are in the draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Report {
    /// It looked at all that it is about.
    Looked,
    /// It left what it is about for later.
    Left(Because),
}

/// Why a pass leaves something for later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// Steps that come before it are planned.
    StepsFirst,
    /// A step is planned that is alone in its wave.
    AloneFirst,
    /// The provider has not assigned all addresses.
    Unplaced,
    /// The cluster has not formed.
    NotFormed,
    /// The cluster has formed.
    Formed,
    /// There is no quorum.
    NoQuorum,
    /// There is quorum.
    HasQuorum,
    /// The member list is not known.
    NotListed,
    /// A member's data is corrupt.
    Corrupt,
    /// An alarm is raised.
    Alarmed,
    /// A member is unhealthy.
    Unhealthy,
    /// A learner catches up.
    Learner,
    /// What is waited for changes it.
    Awaited,
    /// Auth is not on.
    NoAuth,
    /// Members do not accept clients yet.
    Closed,
    /// The file does not ask for it.
    NotAsked,
    /// The maintenance window is closed.
    WindowClosed,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StepsFirst => "the steps above come first",
            Self::AloneFirst => "a step above must run alone",
            Self::Unplaced => "not all addresses are assigned yet",
            Self::NotFormed => "the cluster has not formed yet",
            Self::Formed => "only before the first start",
            Self::NoQuorum => "no quorum",
            Self::HasQuorum => "only without quorum",
            Self::NotListed => "no healthy member reports the member list",
            Self::Corrupt => "the CORRUPT alarm is raised",
            Self::Alarmed => "an alarm is raised",
            Self::Unhealthy => "a member is unhealthy",
            Self::Learner => "a learner is still catching up",
            Self::Awaited => "what the cluster waits for comes first",
            Self::Closed => "members do not accept clients yet",
            Self::NoAuth => "auth is not on",
            Self::NotAsked => "the file does not ask for it",
            Self::WindowClosed => "outside the maintenance window",
        })
    }
}
