//! What is known of a backup once it was taken and read back ↔ its manifest.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::name::{Coding, FullName};
use crate::observed::ClusterId;
use crate::spec::{EtcdVersion, Name};

/// The form that this version writes, and the newest that it reads.
const FORMAT: u32 = 1;

/// A full backup that counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The form of this file.
    pub format: u32,
    /// Its name: the moment and the revision are in it.
    pub name: FullName,
    /// The fleet's name.
    pub fleet: Name,
    /// The fleet's own id: two fleets may bear one name.
    pub fleet_id: String,
    /// The cluster's name.
    pub cluster: Name,
    /// etcd's id of it.
    pub cluster_id: ClusterId,
    /// The member that it was taken from.
    pub member: Name,
    /// The version that this member ran.
    pub version: EtcdVersion,
    /// When it began.
    pub begun: Timestamp,
    /// When it had been read back.
    pub finished: Timestamp,
    /// etcd's hash over all keys at the revision, and the oldest revision that can still be read there.
    pub hash: u32,
    /// The oldest revision that can still be read in it.
    pub compacted: i64,
    /// Keys in it.
    pub keys: u64,
    /// The snapshot itself, as etcd sent it.
    pub snapshot: Stored,
    /// The object in the store.
    pub object: Stored,
    /// How the object was made from the snapshot.
    pub coding: Coding,
}

/// Bytes, and how they are known again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// How many.
    pub bytes: u64,
    /// SHA-256 of them, in hexadecimal.
    pub sha256: String,
}

/// Why a manifest does not count.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not one at all.
    #[error("the manifest of the backup `{name}` cannot be read: it does not count")]
    Unreadable {
        /// Whose.
        name: FullName,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Written by a newer version.
    #[error("the backup `{name}` was made by a newer raftsman (form {found}): use that one to restore it")]
    Newer {
        /// Whose.
        name: FullName,
        /// Its form.
        found: u32,
    },
    /// It lies elsewhere than it says.
    #[error("the manifest of the backup `{name}` is that of another one, `{found}`: somebody has moved it")]
    Misplaced {
        /// Where it lies.
        name: FullName,
        /// What it says.
        found: FullName,
    },
}

impl Manifest {
    /// The form that this version writes.
    pub const FORMAT: u32 = FORMAT;

    /// Reads the manifest that lies with the backup of this name.
    pub fn read(name: FullName, text: &[u8]) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        struct Form {
            format: u32,
        }
        let unreadable = |source| ManifestError::Unreadable { name, source };
        // The form first: a newer one may have other fields.
        let Form { format } = serde_json::from_slice(text).map_err(unreadable)?;
        if format > FORMAT {
            return Err(ManifestError::Newer { name, found: format });
        }
        let manifest: Self = serde_json::from_slice(text).map_err(unreadable)?;
        match manifest.name == name {
            true => Ok(manifest),
            false => Err(ManifestError::Misplaced { name, found: manifest.name }),
        }
    }

    /// Its text, for people too.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}
