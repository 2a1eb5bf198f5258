//! Keys → values: what the state has to offer, wherever it is kept.
//!
//! Reading takes no lock. Writing needs a [`Lease`], which is granted to one process at a time for each stack, and
//! which can be lost. Values are opaque: secrets are sealed before they come here, and opened after they were read.

use std::fmt;
use std::path::Path;

use async_trait::async_trait;

use super::{Entry, Filter, Holder, LockInfo, LockScope, Removal, StoreError};

/// Where the state of one fleet is kept.
#[async_trait]
pub trait State: fmt::Debug + Send + Sync {
    /// The value of this key; nothing where there is none.
    async fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError>;

    /// All keys of this kind, in order.
    async fn list(&self, kind: &KeyKind) -> Result<Vec<Key>, StoreError>;

    /// The lines of the journal that match the filter, oldest first.
    async fn journal(&self, filter: &Filter) -> Result<Vec<Entry>, StoreError>;

    /// Takes the locks of this scope, all or none, with a generation that is greater than every one before. Where
    /// another process holds one of them, the error names that process.
    async fn lease(&self, scope: &LockScope, info: &LockInfo) -> Result<Box<dyn Lease>, StoreError>;

    /// A process that holds a lock of this scope now, if there is one and it left its record.
    async fn holder(&self, scope: &LockScope) -> Result<Option<Holder>, StoreError>;

    /// Where the value of this key is, for messages.
    fn place(&self, key: &Key) -> Place;
}

/// Where a value is, as messages name it: a file, or a key of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place(String);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&Path> for Place {
    fn from(path: &Path) -> Self {
        Self(path.display().to_string())
    }
}

impl From<&Key> for Place {
    fn from(key: &Key) -> Self {
        Self(key.to_string())
    }
}

/// Locks that are held until this is dropped, or until they are lost: then every write is refused.
///
/// [`super::Lock`] decides which keys it may write.
#[async_trait]
pub trait Lease: fmt::Debug + Send + Sync {
    /// Greater than that of every lease before it of the same stack.
    fn generation(&self) -> u64;

    /// Writes a value, unless the one that is there now is not the expected one: then it is
    /// [`StoreError::Changed`], and nothing was written.
    async fn put(&self, key: &Key, value: &[u8], before: &Before) -> Result<Revision, StoreError>;

    /// Deletes a value; returns whether there was one.
    async fn delete(&self, key: &Key) -> Result<bool, StoreError>;

    /// Appends lines to the journal; when this returns, they are durable.
    async fn append(&self, entries: &[Entry]) -> Result<(), StoreError>;

    /// Deletes everything that raftsman keeps here.
    async fn clear(&self) -> Result<Removal, StoreError>;
}

/// A value as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The value.
    pub value: Vec<u8>,
    /// Which one it is, for a writer that replaces exactly this one.
    pub revision: Revision,
}

/// Tells the values that a key has one after the other apart. Its text has a meaning only for the state that gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision(pub(super) String);

/// What a writer expects in the place of its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Before {
    /// Anything, or nothing.
    Any,
    /// Nothing.
    Nothing,
    /// Exactly this one.
    Exactly(Revision),
}

/// The name of a value. It is shown as the key that etcd would have for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The fleet: its id, its name, the format of the state.
    Fleet,
    /// The public key that secrets are sealed for.
    Recipient,
    /// A certificate.
    Certificate(KeyName),
    /// A secret, sealed.
    Secret(KeyName),
    /// The ledger of a cluster.
    Ledger(KeyName),
    /// A version of a cluster's ledger.
    History(KeyName, u64),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fleet => f.write_str("fleet"),
            Self::Recipient => f.write_str("recipient"),
            Self::Certificate(name) => write!(f, "certificates/{name}"),
            Self::Secret(name) => write!(f, "secrets/{name}"),
            Self::Ledger(cluster) => write!(f, "clusters/{cluster}/ledger"),
            Self::History(cluster, number) => write!(f, "history/{cluster}/{number:0DIGITS$}"),
        }
    }
}

/// Numbers in keys are padded to this width, so that keys sort by number.
pub(super) const DIGITS: usize = 12;

/// Keys that are listed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyKind {
    /// All certificates.
    Certificates,
    /// All secrets.
    Secrets,
    /// The ledgers of all clusters.
    Ledgers,
    /// All kept versions of this cluster's ledger.
    History(KeyName),
}

/// A part of a key. It is checked, so that no key leads anywhere else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyName(String);

impl KeyName {
    /// This text as a part of a key.
    pub fn parse(name: &str) -> Result<Self, StoreError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        let good = name.len() <= 128
            && name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
            && name.bytes().all(allowed);
        if good { Ok(Self(name.to_owned())) } else { Err(StoreError::Name { name: name.to_owned() }) }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
