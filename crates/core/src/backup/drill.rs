//! The result of a restore drill ↔ its record in the store.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::manifest::{self, Manifest, ManifestError, Signable, Unverified};
use super::name::FullName;
use crate::spec::{EtcdVersion, Name};

/// A backup was restored into a temporary etcd, and holds what etcd said when it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drill {
    /// The form of this file.
    pub format: u32,
    /// Which backup.
    pub backup: FullName,
    /// When it was tried.
    pub at: Timestamp,
    /// On which machine.
    pub machine: Name,
    /// With which version of etcd.
    pub version: EtcdVersion,
    /// So many batches of changes were replayed.
    pub batches: usize,
    /// The last revision that came back.
    pub revision: i64,
    /// How many keys there are then.
    pub keys: u64,
    /// How long it took until it was served and compared.
    pub took_ms: u64,
    /// So many revisions were in the cluster and not in the store; not known where no member answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<i64>,
    /// All that was written longer ago than this came back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_ms: Option<u64>,
}

impl Drill {
    /// The form that this version writes.
    pub const FORMAT: u32 = Manifest::FORMAT;

    /// Reads a record.
    pub fn read(bytes: &[u8]) -> Result<Unverified<Self>, ManifestError> {
        manifest::read("a drill", bytes)
    }
}

impl Signable for Drill {
    const KIND: &'static str = "drill";
}
