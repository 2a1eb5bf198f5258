//! What is known of a backup once it was taken and read back ↔ its manifest.

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::name::{Coding, FullName};
use crate::observed::ClusterId;
use crate::render::digest;
use crate::spec::{EtcdVersion, Name};

/// The form that this version writes, and the newest that it reads.
const FORMAT: u32 = 1;

/// Whose backup it is, and from when: all that is known before its first byte comes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
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
    /// The member that sends it.
    pub member: Name,
    /// The version that this member runs.
    pub version: EtcdVersion,
    /// When it began.
    pub begun: Timestamp,
    /// The last revision when etcd had begun to send it: there is nothing later in it. Not known of the oldest backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upto: Option<i64>,
}

/// What is in etcd at a revision, as few numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hashed {
    /// etcd's hash over all keys.
    pub hash: u32,
    /// The oldest revision that could be read.
    pub compacted: i64,
    /// How many keys there were.
    pub keys: u64,
}

/// A full backup that counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The form of this file.
    pub format: u32,
    /// Whose it is, and from when.
    #[serde(flatten)]
    pub about: About,
    /// When it had been read back.
    pub finished: Timestamp,
    /// What was in etcd at the revision of its name.
    #[serde(flatten)]
    pub hashed: Hashed,
    /// The snapshot itself, as etcd sent it.
    pub snapshot: Stored,
    /// The object in the store.
    pub object: Stored,
    /// How the object was made from the snapshot.
    pub coding: Coding,
}

/// As it is written: with the SHA-256 of all that is before it, in the shortest form of JSON.
#[derive(Serialize, Deserialize)]
struct Written<T> {
    #[serde(flatten)]
    manifest: T,
    check: String,
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
    #[error("the manifest of {what} cannot be read: it does not count")]
    Unreadable {
        /// Of what.
        what: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Written by a newer version.
    #[error("{what} was made by a newer raftsman (form {found}): use that one to restore it")]
    Newer {
        /// What.
        what: String,
        /// Its form.
        found: u32,
    },
    /// Something in it was changed.
    #[error("the manifest of {what} was changed since it was written: it does not count")]
    Changed {
        /// Of what.
        what: String,
    },
    /// It lies elsewhere than it says.
    #[error("the manifest of {what} is that of another one, `{found}`: somebody has moved it")]
    Misplaced {
        /// What lies there.
        what: String,
        /// What it says.
        found: String,
    },
}

/// What every word of a manifest is known by.
pub(super) fn check<T: Serialize>(manifest: &T) -> Result<String, serde_json::Error> {
    Ok(digest(&serde_json::to_string(manifest)?))
}

/// A manifest's text, for people too.
pub(super) fn text<T: Serialize + Clone>(manifest: &T) -> Result<String, serde_json::Error> {
    let written = Written { check: check(manifest)?, manifest: manifest.clone() };
    Ok(serde_json::to_string_pretty(&written)? + "\n")
}

/// A manifest as it was written, or not at all.
pub(super) fn read<T: Serialize + DeserializeOwned + Clone>(what: &str, bytes: &[u8]) -> Result<T, ManifestError> {
    #[derive(Deserialize)]
    struct Form {
        format: u32,
    }
    let what = || what.to_owned();
    let unreadable = |source| ManifestError::Unreadable { what: what(), source };
    // The form first: a newer one may have other fields.
    let Form { format } = serde_json::from_slice(bytes).map_err(unreadable)?;
    if format > FORMAT {
        return Err(ManifestError::Newer { what: what(), found: format });
    }
    let Written::<T> { manifest, .. } = serde_json::from_slice(bytes).map_err(unreadable)?;
    // To the letter: what means the same in other letters was touched as well.
    match text(&manifest).map_err(unreadable)?.as_bytes() == bytes {
        true => Ok(manifest),
        false => Err(ManifestError::Changed { what: what() }),
    }
}

impl Manifest {
    /// The form that this version writes.
    pub const FORMAT: u32 = FORMAT;

    /// Reads the manifest that lies with the backup of this name.
    pub fn read(name: FullName, bytes: &[u8]) -> Result<Self, ManifestError> {
        let what = format!("the backup `{name}`");
        let manifest: Self = read(&what, bytes)?;
        match manifest.about.name == name {
            true => Ok(manifest),
            false => Err(ManifestError::Misplaced { what, found: manifest.about.name.to_string() }),
        }
    }

    /// What every word of it is known by.
    pub fn check(&self) -> Result<String, serde_json::Error> {
        check(self)
    }

    /// Its text, for people too.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        text(self)
    }

    /// There is no change in it after this one: it was the last when etcd began to send.
    pub fn most(&self) -> i64 {
        self.about.upto.unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::backup) fn manifest() -> Manifest {
        let begun: Timestamp = "2026-11-16T03:00:00Z".parse().expect("a moment");
        Manifest {
            format: FORMAT,
            about: About {
                name: FullName::new(begun, 42),
                fleet: Name::fixed("shop"),
                fleet_id: "f".to_owned(),
                cluster: Name::fixed("main"),
                cluster_id: ClusterId(7),
                member: Name::fixed("main-2"),
                version: EtcdVersion::default(),
                begun,
                upto: Some(44),
            },
            finished: begun,
            hashed: Hashed { hash: 1, compacted: 2, keys: 3 },
            snapshot: Stored { bytes: 10, sha256: "aa".to_owned() },
            object: Stored { bytes: 5, sha256: "bb".to_owned() },
            coding: Coding { zstd: true, age: false },
        }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written_or_not_at_all() {
        let (name, text) = (manifest().about.name, manifest().text().expect("a text"));
        assert_eq!(Manifest::read(name, text.as_bytes()).expect("it counts"), manifest());
        let changed = text.replace("\"keys\": 3", "\"keys\": 4");
        assert!(
            changed != text && matches!(Manifest::read(name, changed.as_bytes()), Err(ManifestError::Changed { .. }))
        );
        let lower = text.replace("T03:00:00Z", "t03:00:00z");
        assert!(lower != text && matches!(Manifest::read(name, lower.as_bytes()), Err(ManifestError::Changed { .. })));
        let newer = text.replace("\"format\": 1", "\"format\": 2");
        assert!(matches!(Manifest::read(name, newer.as_bytes()), Err(ManifestError::Newer { found: 2, .. })));
        assert!(matches!(Manifest::read(name, &text.as_bytes()[..50]), Err(ManifestError::Unreadable { .. })));
        let elsewhere = FullName::new(name.taken(), 43);
        assert!(matches!(Manifest::read(elsewhere, text.as_bytes()), Err(ManifestError::Misplaced { .. })));
    }
}
