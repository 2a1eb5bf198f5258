//! What is known of a backup once it was taken and read back ↔ its manifest, with the signature of the cluster's key.

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::history::History;
use super::name::{Coding, FullName};
use crate::observed::ClusterId;
use crate::render::digest;
use crate::spec::{EtcdVersion, Name};

/// The form that this version writes, and the newest that it reads.
const FORMAT: u32 = 2;

/// The cluster and the time of a backup: all that is known before its first byte arrives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Its name: the moment and the revision are in it.
    pub name: FullName,
    /// The fleet's name.
    pub fleet: Name,
    /// The fleet's own id: two fleets may have one name.
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
    /// The histories of the cluster's data, the oldest first; the last is the one that this backup is of. Not known of
    /// the oldest backups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histories: Vec<History>,
    /// The `check` of the newest full backup of this history that was in the store when this one began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
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

/// A complete full backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The form of this file.
    pub format: u32,
    /// The cluster and the time.
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

/// As it is written: with the SHA-256 of all that is before it, in the shortest form of JSON, and the signature of that.
#[derive(Serialize, Deserialize)]
struct Written<T> {
    #[serde(flatten)]
    manifest: T,
    check: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signed: Option<Signature>,
}

/// An Ed25519 signature, and the key that verifies it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The public key, as `raftsman backup key` prints it.
    pub key: String,
    /// The signature, in hexadecimal.
    pub signature: String,
}

/// What can be signed: its kind is part of what is signed, so that no kind is accepted in the place of another.
pub trait Signable: Serialize + DeserializeOwned + Clone {
    /// The kind, as it is signed.
    const KIND: &'static str;

    /// What the signature is made over.
    fn message(&self) -> Result<Vec<u8>, serde_json::Error> {
        Ok(format!("raftsman {}\n{}", Self::KIND, serde_json::to_string(self)?).into_bytes())
    }

    /// Its text in the store, also readable for operators.
    fn text(&self, signed: Option<Signature>) -> Result<String, serde_json::Error> {
        let written = Written { check: check(self)?, manifest: self.clone(), signed };
        Ok(serde_json::to_string_pretty(&written)? + "\n")
    }
}

/// What was read from a store, and whose signature is not verified yet: nothing in it may be relied upon.
#[derive(Debug, Clone)]
pub struct Unverified<T> {
    claimed: T,
    signed: Option<Signature>,
}

impl<T: Signable> Unverified<T> {
    /// What it claims to be, to compare with where it is stored.
    pub(super) fn claimed(&self) -> &T {
        &self.claimed
    }

    /// Returns it once `verify` has accepted its signature.
    pub fn verified<E>(self, verify: impl FnOnce(&T, Option<&Signature>) -> Result<(), E>) -> Result<T, E> {
        verify(&self.claimed, self.signed.as_ref())?;
        Ok(self.claimed)
    }
}

/// The size and the checksum of some bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// How many.
    pub bytes: u64,
    /// SHA-256 of them, in hexadecimal.
    pub sha256: String,
}

/// Why a manifest is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not one at all.
    #[error("the manifest of {what} cannot be read: the backup is invalid")]
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
    #[error("the manifest of {what} was changed since it was written: the backup is invalid")]
    Changed {
        /// Of what.
        what: String,
    },
    /// It is stored under another name than it says.
    #[error("the manifest of {what} is that of another one, `{found}`: it was moved")]
    Misplaced {
        /// What lies there.
        what: String,
        /// What it says.
        found: String,
    },
}

/// The check over a whole manifest.
pub(super) fn check<T: Serialize>(manifest: &T) -> Result<String, serde_json::Error> {
    Ok(digest(&serde_json::to_string(manifest)?))
}

/// Parses a manifest, and refuses one that was changed.
pub(super) fn read<T: Signable>(what: &str, bytes: &[u8]) -> Result<Unverified<T>, ManifestError> {
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
    let Written::<T> { manifest: claimed, signed, .. } = serde_json::from_slice(bytes).map_err(unreadable)?;
    // Byte for byte: a manifest that was rewritten with the same meaning was changed as well.
    match claimed.text(signed.clone()).map_err(unreadable)?.as_bytes() == bytes {
        true => Ok(Unverified { claimed, signed }),
        false => Err(ManifestError::Changed { what: what() }),
    }
}

impl Signable for Manifest {
    const KIND: &'static str = "full backup";
}

impl Manifest {
    /// The form that this version writes.
    pub const FORMAT: u32 = FORMAT;

    /// Reads the manifest that is stored with the backup of this name.
    pub fn read(name: FullName, bytes: &[u8]) -> Result<Unverified<Self>, ManifestError> {
        let what = format!("the backup `{name}`");
        let manifest = read::<Self>(&what, bytes)?;
        let found = manifest.claimed.about.name;
        match found == name {
            true => Ok(manifest),
            false => Err(ManifestError::Misplaced { what, found: found.to_string() }),
        }
    }

    /// The check over all of it.
    pub fn check(&self) -> Result<String, serde_json::Error> {
        check(self)
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
                histories: vec![History::first(ClusterId(7))],
                previous: None,
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
        let signed = Signature { key: "ed25519:aa".to_owned(), signature: "bb".to_owned() };
        let (name, text) = (manifest().about.name, manifest().text(Some(signed.clone())).expect("a text"));
        let read = Manifest::read(name, text.as_bytes()).expect("it is whole");
        let accept = |_: &Manifest, with: Option<&Signature>| (with == Some(&signed)).then_some(()).ok_or("unsigned");
        assert_eq!(read.verified(accept), Ok(manifest()));
        let unsigned = manifest().text(None).expect("a text");
        let read = Manifest::read(name, unsigned.as_bytes()).expect("it is whole");
        assert_eq!(read.verified(accept), Err("unsigned"));
        let changed = text.replace("\"keys\": 3", "\"keys\": 4");
        assert!(
            changed != text && matches!(Manifest::read(name, changed.as_bytes()), Err(ManifestError::Changed { .. }))
        );
        let lower = text.replace("T03:00:00Z", "t03:00:00z");
        assert!(lower != text && matches!(Manifest::read(name, lower.as_bytes()), Err(ManifestError::Changed { .. })));
        let newer = text.replace("\"format\": 2", "\"format\": 3");
        assert!(matches!(Manifest::read(name, newer.as_bytes()), Err(ManifestError::Newer { found: 3, .. })));
        assert!(matches!(Manifest::read(name, &text.as_bytes()[..50]), Err(ManifestError::Unreadable { .. })));
        let elsewhere = FullName::new(name.taken(), 43);
        assert!(matches!(Manifest::read(elsewhere, text.as_bytes()), Err(ManifestError::Misplaced { .. })));
    }
}
