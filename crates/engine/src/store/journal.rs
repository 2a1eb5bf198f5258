//! What was done → one entry each, durable before the next step begins.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When.
    pub at: Timestamp,
    /// The user, as `user@host`.
    pub who: String,
    /// Under which lock.
    pub generation: u64,
    /// Which run of apply, or of another verb.
    pub run: String,
    /// Which cluster; none for an event of the whole fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// What kind of event, such as `started`.
    pub kind: String,
    /// The event. It must hold no secret.
    pub event: serde_json::Value,
}

/// Which lines are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those of this cluster only.
    pub cluster: Option<String>,
    /// Only this many of the last lines.
    pub last: Option<usize>,
}
