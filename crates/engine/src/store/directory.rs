//! A directory → the state of one fleet, one file per key, each replaced atomically.
//!
//! A killed process leaves either the old file or the new one. Nothing here waits for longer than the disk takes,
//! except for a lock: so a write has no point at which it could be cancelled half done.

mod files;
mod journal;
mod lock;
mod migrate;

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use raftsman_api::hex;
use serde::Deserialize;

pub(crate) use files::write as write_file;
use files::{PRIVATE, PUBLIC};
pub(super) use files::{check_mode, read};

use super::secrets;
use super::state::{Before, DIGITS, Key, KeyKind, KeyName, Lease, Place, Revision, State, Stored};
use super::{Entry, FORMAT, Filter, Fleet, Holder, LockInfo, LockScope, Protection, Removal, StoreError};

pub(super) const FLEET: &str = "fleet.json";
pub(super) const IDENTITY: &str = "identity.txt";
pub(super) const IDENTITY_ENCRYPTED: &str = "identity.age";
pub(super) const RECIPIENT: &str = "recipient";
pub(super) const GENERATION: &str = "generation";
pub(super) const LOCK: &str = "lock";
pub(super) const JOURNAL: &str = "journal.jsonl";

/// The directories, each with the ending of the files that raftsman keeps in it.
pub(super) const SECRETS: Shelf = Shelf { directory: "secrets", ending: "age", mode: PRIVATE };
pub(super) const CERTIFICATES: Shelf = Shelf { directory: "certificates", ending: "pem", mode: PUBLIC };
pub(super) const CLUSTERS: Shelf = Shelf { directory: "clusters", ending: "json", mode: PRIVATE };
/// The last versions of each ledger, for `raftsman state repair`.
const HISTORY: Shelf = Shelf { directory: "history", ending: "json", mode: PRIVATE };

/// The locks of single stacks.
const LOCKS: Shelf = Shelf { directory: "locks", ending: "lock", mode: PRIVATE };

/// The order of deletion. A certificate without its key would be a damaged state; a key without its certificate is one
/// that was never completed.
pub(super) const SHELVES: [Shelf; 4] = [CERTIFICATES, SECRETS, HISTORY, CLUSTERS];
/// Deleted after them. Without `fleet.json` there is no state any more, and the next command removes the rest. While it
/// exists, the identity that decrypts the state exists too.
pub(super) const FILES: [&str; 7] = [JOURNAL, FLEET, IDENTITY, IDENTITY_ENCRYPTED, RECIPIENT, GENERATION, LOCK];

/// One directory of the state: files by name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shelf {
    pub(super) directory: &'static str,
    ending: &'static str,
    mode: u32,
}

/// A state in a directory.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    dir: PathBuf,
}

impl Directory {
    pub(super) fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Makes the state of a new fleet. What an earlier, killed call left is completed.
    ///
    /// `fleet.json` is written last: without it there is no state yet, and nothing in the directory is of value.
    pub(super) async fn create(dir: &Path, protection: Protection, fleet: &Fleet) -> Result<Self, StoreError> {
        files::make_directory(dir)?;
        files::check_owner(dir)?;
        // Two processes that create the state at once must not write two identities.
        let _guard = lock::guard(dir).await?;
        if dir.join(FLEET).exists() {
            return Err(StoreError::Exists { dir: dir.to_owned() });
        }
        check_worthless(dir)?;
        for shelf in SHELVES {
            files::make_directory(&dir.join(shelf.directory))?;
        }
        files::sweep(dir)?;
        files::remove_if_there(&dir.join(IDENTITY))?;
        files::remove_if_there(&dir.join(IDENTITY_ENCRYPTED))?;
        let made = secrets::make_identity(protection)?;
        let file = if made.encrypted { IDENTITY_ENCRYPTED } else { IDENTITY };
        files::write(&dir.join(file), &made.text, PRIVATE)?;
        files::write(&dir.join(RECIPIENT), format!("{}\n", made.recipient).as_bytes(), PRIVATE)?;
        // An existing generation stays: it must never decrease.
        if !dir.join(GENERATION).exists() {
            files::write(&dir.join(GENERATION), b"0\n", PRIVATE)?;
        }
        let place = dir.join(FLEET);
        files::write(&place, &fleet.text(place.as_path())?, PRIVATE)?;
        Ok(Self::at(dir))
    }

    /// Why there is no fleet here.
    pub(super) fn missing(&self) -> StoreError {
        if let Err(error) = check_worthless(&self.dir) {
            return error;
        }
        let (dir, made) = (self.dir.clone(), [LOCK, RECIPIENT, IDENTITY, IDENTITY_ENCRYPTED, GENERATION]);
        match made.iter().any(|file| dir.join(file).exists()) {
            true => StoreError::Unfinished { dir },
            false => StoreError::Missing { dir },
        }
    }

    /// Rejects a directory that other users can change, or whose identity they can read.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        files::check_owner(&self.dir)?;
        check_mode(&self.dir, 0o022)?;
        check_mode(&self.dir.join(IDENTITY), 0o077)
    }

    /// Deletes what a killed `create` or `clear` left.
    pub(super) async fn remove_unfinished(dir: &Path) -> Result<Removal, StoreError> {
        if !dir.exists() {
            return Ok(Removal::default());
        }
        let _guard = lock::guard(dir).await?;
        if dir.join(FLEET).exists() {
            return Err(StoreError::Exists { dir: dir.to_owned() });
        }
        check_worthless(dir)?;
        clear(dir)
    }
}

#[async_trait]
impl State for Directory {
    async fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        let stored = |value: Vec<u8>| Stored { revision: revision(&value), value };
        Ok(read(&path(&self.dir, key))?.map(stored))
    }

    async fn list(&self, kind: &KeyKind) -> Result<Vec<Key>, StoreError> {
        let (shelf, key): (Shelf, &(dyn Fn(KeyName) -> Option<Key> + Sync)) = match kind {
            KeyKind::Certificates => (CERTIFICATES, &|name| Some(Key::Certificate(name))),
            KeyKind::Secrets => (SECRETS, &|name| Some(Key::Secret(name))),
            KeyKind::Ledgers => (CLUSTERS, &|name| Some(Key::Ledger(name))),
            KeyKind::History(cluster) => (HISTORY, &|name| {
                let number = name.as_str().strip_prefix(cluster.as_str())?.strip_prefix('.')?.parse().ok()?;
                Some(Key::History(cluster.clone(), number))
            }),
        };
        Ok(shelf.names(&self.dir)?.into_iter().filter_map(key).collect())
    }

    async fn journal(&self, filter: &Filter) -> Result<Vec<Entry>, StoreError> {
        journal::read(&self.dir.join(JOURNAL), filter)
    }

    async fn lease(&self, scope: &LockScope, info: &LockInfo) -> Result<Box<dyn Lease>, StoreError> {
        if migrate::format(&self.dir)? < FORMAT {
            migrate::migrate(&self.dir, &lock::take(&self.dir, &LockScope::Fleet, info).await?)?;
        }
        Ok(Box::new(lock::take(&self.dir, scope, info).await?))
    }

    async fn holder(&self, scope: &LockScope) -> Result<Option<Holder>, StoreError> {
        let LockScope::Stacks(stacks) = scope else { return lock::holder(&self.dir) };
        for stack in stacks {
            if let Some(info) = lock::stack_holder(&self.dir, &KeyName::parse(stack)?)? {
                return Ok(Some(Holder { stack: Some(stack.clone()), info }));
            }
        }
        Ok(lock::holder(&self.dir)?.filter(|holder| holder.stack.is_none()))
    }

    fn place(&self, key: &Key) -> Place {
        path(&self.dir, key).as_path().into()
    }
}

#[async_trait]
impl Lease for lock::Held {
    fn generation(&self) -> u64 {
        self.number()
    }

    async fn put(&self, key: &Key, value: &[u8], before: &Before) -> Result<Revision, StoreError> {
        let (dir, _writing) = (self.dir(), self.writing());
        self.check(key)?;
        let (path, (shelf, _)) = (path(dir, key), place(key));
        let mode = shelf.map_or(PRIVATE, |shelf| shelf.mode);
        let changed = || StoreError::Changed { key: key.to_string() };
        match before {
            Before::Any => {}
            // Atomic: holders of other stacks may write the same key.
            Before::Nothing => {
                return files::write_new(&path, value, mode)?.then(|| revision(value)).ok_or_else(changed);
            }
            Before::Exactly(expected) => {
                if read(&path)?.is_none_or(|there| revision(&there) != *expected) {
                    return Err(changed());
                }
            }
        }
        match key {
            // A copy, which a power failure may lose: what it is a copy of stays.
            Key::History(..) => {
                files::make_directory(&dir.join(HISTORY.directory))?;
                files::write_unsynced(&path, value, mode)?;
            }
            Key::Fleet | Key::Recipient | Key::Certificate(_) | Key::Secret(_) | Key::Ledger(_) => {
                files::write(&path, value, mode)?;
            }
        }
        Ok(revision(value))
    }

    async fn delete(&self, key: &Key) -> Result<bool, StoreError> {
        let (dir, _writing) = (self.dir(), self.writing());
        self.check(key)?;
        let path = path(dir, key);
        match key {
            // Not synced: one that reappears after a power failure does no harm as long as its ledger is there.
            Key::History(..) => return files::remove_unsynced(&path),
            Key::Ledger(_) => files::sync_parent(&dir.join(HISTORY.directory).join("any"))?,
            Key::Fleet | Key::Recipient | Key::Certificate(_) | Key::Secret(_) => {}
        }
        files::remove_if_there(&path)
    }

    async fn append(&self, entries: &[Entry]) -> Result<(), StoreError> {
        self.check(&Key::Fleet)?;
        journal::append(&self.dir().join(JOURNAL), entries)
    }

    async fn clear(&self) -> Result<Removal, StoreError> {
        self.check(&Key::Fleet)?;
        clear(self.dir())
    }
}

/// A value that is written twice has one revision: replacing either of them is the same.
fn revision(value: &[u8]) -> Revision {
    Revision(hex::sha256(value))
}

/// The shelf and the name of a key's file.
fn place(key: &Key) -> (Option<Shelf>, String) {
    match key {
        Key::Fleet => (None, FLEET.to_owned()),
        Key::Recipient => (None, RECIPIENT.to_owned()),
        Key::Certificate(name) => (Some(CERTIFICATES), name.to_string()),
        Key::Secret(name) => (Some(SECRETS), name.to_string()),
        Key::Ledger(cluster) => (Some(CLUSTERS), cluster.to_string()),
        // A name with a dot cannot be mistaken for another cluster's: clusters' names have none.
        Key::History(cluster, number) => (Some(HISTORY), format!("{cluster}.{number:0DIGITS$}")),
    }
}

fn path(dir: &Path, key: &Key) -> PathBuf {
    match place(key) {
        (Some(shelf), name) => shelf.path(dir, &name),
        (None, file) => dir.join(file),
    }
}

/// The format that a file of the fleet has.
pub(super) fn format_of(place: impl Into<Place>, bytes: &[u8]) -> Result<u32, StoreError> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    files::parse_json(place, bytes).map(|Format { format }| format)
}

pub(super) fn fleet_of(place: impl Into<Place>, bytes: &[u8]) -> Result<Fleet, StoreError> {
    files::parse_json(place, bytes)
}

/// Without `fleet.json` a killed `create` or `clear` leaves no secret, no cluster and no journal. If there is one,
/// `fleet.json` was lost, and the rest must not be touched.
fn check_worthless(dir: &Path) -> Result<(), StoreError> {
    let mut worth = dir.join(JOURNAL).exists();
    for shelf in SHELVES {
        worth |= !shelf.names(dir)?.is_empty();
    }
    if worth {
        return Err(StoreError::damaged(dir.join(FLEET).as_path(), "it is missing, though there is state beside it"));
    }
    Ok(())
}

/// A kill at any point leaves a state that can be opened and removed again, or none.
fn clear(dir: &Path) -> Result<Removal, StoreError> {
    files::sweep(dir)?;
    migrate::remove_copies(dir)?;
    for shelf in SHELVES {
        for name in shelf.names(dir)? {
            files::remove_if_there(&shelf.path(dir, name.as_str()))?;
        }
        files::remove_directory_if_empty(&dir.join(shelf.directory))?;
    }
    lock::remove_stacks(dir)?;
    for file in FILES {
        files::remove_if_there(&dir.join(file))?;
    }
    files::remove_directory_if_empty(dir)?;
    let mut removal = Removal::default();
    for shelf in SHELVES {
        removal.left.extend(files::list(&dir.join(shelf.directory))?);
    }
    let shelves = SHELVES.map(|shelf| dir.join(shelf.directory));
    removal.left.extend(files::list(dir)?.into_iter().filter(|path| !shelves.contains(path)));
    removal.left.sort();
    Ok(removal)
}

impl Shelf {
    fn path(self, dir: &Path, name: &str) -> PathBuf {
        dir.join(self.directory).join(format!("{name}.{}", self.ending))
    }

    /// The names of the files that raftsman made here, in order.
    pub(super) fn names(self, dir: &Path) -> Result<Vec<KeyName>, StoreError> {
        let mut names: Vec<KeyName> = files::list(&dir.join(self.directory))?
            .iter()
            .filter_map(|path| path.file_name()?.to_str()?.strip_suffix(self.ending)?.strip_suffix('.'))
            .filter_map(|name| KeyName::parse(name).ok())
            .collect();
        names.sort();
        Ok(names)
    }
}
