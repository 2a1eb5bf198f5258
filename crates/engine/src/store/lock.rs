//! A lease → the right to write some keys: those of the locked stacks, or all of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::state::{Before, Key, Lease, Revision};
use super::{Entry, Removal, StoreError};

/// The holder of a lock, and its verb.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockInfo {
    /// The command, such as `apply`.
    pub verb: String,
    /// The user.
    pub user: String,
    /// The computer.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// Since when.
    pub since: Timestamp,
}

impl LockInfo {
    /// This process, now, for this verb.
    pub fn new(verb: &str, user: &str, host: &str) -> Self {
        let (verb, user, host) = (verb.to_owned(), user.to_owned(), host.to_owned());
        Self { verb, user, host, pid: std::process::id(), since: Timestamp::now() }
    }
}

/// What a lock is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockScope {
    /// All of the state: its own entries and every stack.
    Fleet,
    /// These stacks, by name: each etcd cluster is one.
    Stacks(BTreeSet<String>),
}

/// The holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Of which stack; nothing where it is all of the state.
    pub stack: Option<String>,
    /// Its user, host and verb.
    pub info: LockInfo,
}

/// The lock, held until its last clone is dropped or the process ends, for whatever reason.
///
/// Everything that writes to the state takes a reference to it, so no write is possible without the lock.
#[derive(Debug, Clone)]
pub struct Lock(Arc<Held>);

#[derive(Debug)]
struct Held {
    /// Of which state.
    dir: PathBuf,
    scope: LockScope,
    info: LockInfo,
    lease: Box<dyn Lease>,
}

impl Lock {
    pub(super) fn new(dir: &Path, scope: &LockScope, info: LockInfo, lease: Box<dyn Lease>) -> Self {
        Self(Arc::new(Held { dir: dir.to_owned(), scope: scope.clone(), info, lease }))
    }

    /// Rejects a write to another state than the locked one.
    fn covers(&self, dir: &Path) -> Result<(), StoreError> {
        match self.0.dir == dir {
            true => Ok(()),
            false => Err(StoreError::OtherLock { locked: self.0.dir.clone(), dir: dir.to_owned() }),
        }
    }

    /// Rejects a write to a key that is not locked. Secrets and certificates are written under any lock: most belong to
    /// one stack by their name, and some are made by the first stack that needs them.
    pub(super) fn covers_key(&self, dir: &Path, key: &Key) -> Result<(), StoreError> {
        self.covers(dir)?;
        let what = match (key, &self.0.scope) {
            (Key::Secret(_) | Key::Certificate(_), _) | (_, LockScope::Fleet) => return Ok(()),
            (Key::Ledger(stack) | Key::History(stack, _), LockScope::Stacks(stacks)) => {
                if stacks.contains(stack.as_str()) {
                    return Ok(());
                }
                format!("cluster `{stack}`")
            }
            (Key::Fleet | Key::Recipient, LockScope::Stacks(_)) => "the fleet's own entries".to_owned(),
        };
        Err(StoreError::NotLocked { what })
    }

    pub(super) async fn put(
        &self,
        dir: &Path,
        key: &Key,
        value: &[u8],
        before: &Before,
    ) -> Result<Revision, StoreError> {
        self.covers_key(dir, key)?;
        self.0.lease.put(key, value, before).await
    }

    pub(super) async fn delete(&self, dir: &Path, key: &Key) -> Result<bool, StoreError> {
        self.covers_key(dir, key)?;
        self.0.lease.delete(key).await
    }

    pub(super) async fn append(&self, dir: &Path, entries: &[Entry]) -> Result<(), StoreError> {
        self.covers(dir)?;
        self.0.lease.append(entries).await
    }

    pub(super) async fn clear(&self, dir: &Path) -> Result<Removal, StoreError> {
        self.covers_key(dir, &Key::Fleet)?;
        self.0.lease.clear().await
    }

    /// Greater than that of every lock before. Agents refuse changes of a smaller one than they have seen.
    pub fn generation(&self) -> u64 {
        self.0.lease.generation()
    }

    /// The record that was written when it was taken.
    pub fn info(&self) -> &LockInfo {
        &self.0.info
    }
}
