//! A directory → what cannot be observed: the fleet's identity, secrets, certificates, ledgers, the lock, the journal.
//!
//! Everything is read and written by key, one file per key, each replaced atomically: a killed process leaves either
//! the old file or the new one. Reading takes no lock; every write takes a reference to the [`Lock`] of its stack or of
//! the whole fleet, and a ledger is replaced only by the successor of the version that was read.

mod error;
mod files;
#[cfg(test)]
pub(crate) mod fixture;
mod journal;
mod ledgers;
mod lock;
mod migrate;
mod secrets;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use age::x25519;
use jiff::Timestamp;
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use error::StoreError;
pub use journal::{Entry, Filter};
pub use ledgers::{Kept, Version};
pub use lock::{Holder, Lock, LockInfo, LockScope};
pub use secrets::{IdentitySource, Secrets};

pub(crate) use files::write as write_file;
use files::{PRIVATE, PUBLIC};

/// The format that this version writes, and the newest that it reads.
/// 1 had ledgers without a version. 2 had one lock for the whole fleet: a raftsman of that format ignores the locks of
/// single stacks.
const FORMAT: u32 = 3;

const FLEET: &str = "fleet.json";
const IDENTITY: &str = "identity.txt";
const IDENTITY_ENCRYPTED: &str = "identity.age";
const RECIPIENT: &str = "recipient";
const GENERATION: &str = "generation";
const LOCK: &str = "lock";
const JOURNAL: &str = "journal.jsonl";

/// The directories, each with the ending of the files that raftsman keeps in it.
const SECRETS: Shelf = Shelf { directory: "secrets", ending: "age", mode: PRIVATE };
const CERTIFICATES: Shelf = Shelf { directory: "certificates", ending: "pem", mode: PUBLIC };
const CLUSTERS: Shelf = Shelf { directory: "clusters", ending: "json", mode: PRIVATE };
/// The last versions of each ledger, for `raftsman state repair`.
const HISTORY: Shelf = Shelf { directory: "history", ending: "json", mode: PRIVATE };

/// The locks of single stacks.
const LOCKS: Shelf = Shelf { directory: "locks", ending: "lock", mode: PRIVATE };

/// One directory of the state: files by name.
#[derive(Debug, Clone, Copy)]
struct Shelf {
    directory: &'static str,
    ending: &'static str,
    mode: u32,
}

/// The fleet whose state this is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fleet {
    /// The format of the directory.
    pub format: u32,
    /// 16 random bytes in hexadecimal digits: tells two fleets of one name apart.
    pub id: String,
    /// The fleet's name.
    pub name: String,
    /// The loopback network of the local provider, such as `127.0.42.0/24`.
    pub network: Option<String>,
    /// When the state was made.
    pub created: Timestamp,
}

/// How the identity that decrypts the secrets is kept.
#[derive(Debug)]
pub enum Protection {
    /// In a file that only the user can read.
    IdentityFile,
    /// In a file encrypted by this passphrase.
    Passphrase(SecretString),
}

/// Where the identity that decrypts the secrets is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityPlace {
    /// In the state, readable.
    File,
    /// In the state, encrypted by a passphrase.
    EncryptedFile,
    /// Elsewhere: the user knows.
    Elsewhere,
}

/// What a removal did not delete.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Files and directories that raftsman did not make.
    pub left: Vec<PathBuf>,
}

/// The state of one fleet, in a directory.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
    fleet: Fleet,
}

impl Store {
    /// Makes the state of a new fleet. What an earlier, killed call left is completed.
    ///
    /// `fleet.json` is written last: without it there is no state yet, and nothing in the directory is of value.
    pub fn create(
        dir: &Path,
        fleet_name: &str,
        network: Option<&str>,
        protection: Protection,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        files::make_directory(dir)?;
        files::check_owner(dir)?;
        // Two processes that create the state at once must not write two identities.
        let _guard = lock::guard(dir)?;
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
        let recipient = secrets::make_identity(dir, protection)?;
        files::write(&dir.join(RECIPIENT), format!("{recipient}\n").as_bytes(), PRIVATE)?;
        // An existing generation stays: it must never decrease.
        if !dir.join(GENERATION).exists() {
            files::write(&dir.join(GENERATION), b"0\n", PRIVATE)?;
        }
        let fleet = Fleet {
            format: FORMAT,
            id: crate::secrets::random_hex::<16>().map_err(|_| StoreError::Random)?,
            name: fleet_name.to_owned(),
            network: network.map(str::to_owned),
            created: now,
        };
        files::write_json(&dir.join(FLEET), &fleet)?;
        Ok(Self { dir: dir.to_owned(), fleet })
    }

    /// Opens the state of a fleet.
    pub fn open(dir: &Path, fleet_name: &str) -> Result<Self, StoreError> {
        let path = dir.join(FLEET);
        let Some(bytes) = files::read(&path)? else {
            check_worthless(dir)?;
            let made = [LOCK, RECIPIENT, IDENTITY, IDENTITY_ENCRYPTED, GENERATION];
            return Err(if made.iter().any(|file| dir.join(file).exists()) {
                StoreError::Unfinished { dir: dir.to_owned() }
            } else {
                StoreError::Missing { dir: dir.to_owned() }
            });
        };
        // The format is read first: a newer one may differ in everything else.
        let format = format_of(&path, &bytes)?;
        if format > FORMAT {
            return Err(StoreError::NewerFormat { dir: dir.to_owned(), found: format, known: FORMAT });
        }
        let fleet: Fleet = files::parse_json(&path, &bytes)?;
        if fleet.name != fleet_name {
            let dir = dir.to_owned();
            return Err(StoreError::OtherFleet { dir, expected: fleet_name.to_owned(), found: fleet.name });
        }
        files::check_owner(dir)?;
        files::check_mode(dir, 0o022)?;
        files::check_mode(&dir.join(IDENTITY), 0o077)?;
        Ok(Self { dir: dir.to_owned(), fleet })
    }

    /// The fleet.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Keeps the network of the local provider.
    pub fn set_network(&mut self, lock: &Lock, network: Option<String>) -> Result<(), StoreError> {
        lock.covers_fleet(&self.dir)?;
        let fleet = Fleet { network, format: FORMAT, ..self.fleet.clone() };
        files::write_json(&self.dir.join(FLEET), &fleet)?;
        self.fleet = fleet;
        Ok(())
    }

    /// Sets another network in this opened state only, not on the disk.
    pub(crate) fn foresee_network(&mut self, network: &str) {
        self.fleet.network = Some(network.to_owned());
    }

    /// Writes a secret: encryption needs no identity.
    pub fn put_secret(&self, lock: &Lock, name: &str, secret: &SecretString) -> Result<(), StoreError> {
        lock.covers(&self.dir)?;
        secrets::put(&self.dir, &recipient(&self.dir)?, name, secret)
    }

    /// Where the identity is, so that the caller knows what to request from the user.
    pub fn identity_place(&self) -> IdentityPlace {
        if self.dir.join(IDENTITY).exists() {
            IdentityPlace::File
        } else if self.dir.join(IDENTITY_ENCRYPTED).exists() {
            IdentityPlace::EncryptedFile
        } else {
            IdentityPlace::Elsewhere
        }
    }

    /// Opens the secrets. With a passphrase this takes about a second, once.
    pub fn unlock(&self, source: IdentitySource) -> Result<Secrets, StoreError> {
        Secrets::unlock(&self.dir, source)
    }

    /// Takes the lock of the whole fleet, with a generation greater than every one before: for its own entries.
    pub fn lock(&self, info: LockInfo) -> Result<Lock, StoreError> {
        self.lock_for(&LockScope::Fleet, info)
    }

    /// Takes the lock of what is to be changed, with a generation greater than every one before. A state of an earlier
    /// format is migrated first.
    pub fn lock_for(&self, scope: &LockScope, info: LockInfo) -> Result<Lock, StoreError> {
        if self.format_now()? < FORMAT {
            migrate::migrate(&self.dir, &Lock::take(&self.dir, &LockScope::Fleet, info.clone())?)?;
        }
        let lock = Lock::take(&self.dir, scope, info)?;
        // Checked again under the lock: a newer raftsman may have migrated the state since it was opened.
        match self.format_now()? {
            FORMAT => Ok(lock),
            found => Err(StoreError::NewerFormat { dir: self.dir.clone(), found, known: FORMAT }),
        }
    }

    /// The format that the state has now.
    fn format_now(&self) -> Result<u32, StoreError> {
        let path = self.dir.join(FLEET);
        let bytes = files::read(&path)?.ok_or_else(|| StoreError::Missing { dir: self.dir.clone() })?;
        format_of(&path, &bytes)
    }

    /// The process that holds a lock now, if there is one and it left its record.
    pub fn lock_holder(&self) -> Result<Option<Holder>, StoreError> {
        lock::holder(&self.dir)
    }

    /// The process that holds the lock of this stack, or that of the whole fleet.
    pub fn stack_holder(&self, stack: &str) -> Result<Option<Holder>, StoreError> {
        let of_stack = lock::stack_holder(&self.dir, stack)?.map(|info| Holder { stack: Some(stack.to_owned()), info });
        match of_stack {
            Some(holder) => Ok(Some(holder)),
            None => Ok(lock::holder(&self.dir)?.filter(|holder| holder.stack.is_none())),
        }
    }

    /// The certificate of this name.
    pub fn get_certificate(&self, name: &str) -> Result<Option<String>, StoreError> {
        let path = CERTIFICATES.path(&self.dir, name)?;
        let Some(bytes) = files::read(&path)? else { return Ok(None) };
        String::from_utf8(bytes).map(Some).map_err(|_| StoreError::damaged(path, "it is not text"))
    }

    /// Keeps a certificate.
    pub fn put_certificate(&self, lock: &Lock, name: &str, pem: &str) -> Result<(), StoreError> {
        lock.covers(&self.dir)?;
        CERTIFICATES.write(&self.dir, name, pem.as_bytes())
    }

    /// Deletes a certificate; returns whether there was one.
    pub fn delete_certificate(&self, lock: &Lock, name: &str) -> Result<bool, StoreError> {
        lock.covers(&self.dir)?;
        files::remove_if_there(&CERTIFICATES.path(&self.dir, name)?)
    }

    /// The names of all certificates, in order.
    pub fn certificates(&self) -> Result<Vec<String>, StoreError> {
        CERTIFICATES.names(&self.dir)
    }

    /// The ledger of a cluster, with its version.
    pub fn get_cluster<T: DeserializeOwned>(&self, name: &str) -> Result<Option<Kept<T>>, StoreError> {
        ledgers::get(&self.dir, self.fleet.format, name)
    }

    /// Writes the ledger of a cluster, in the place of exactly this version.
    pub fn put_cluster<T: Serialize>(
        &self,
        lock: &Lock,
        name: &str,
        before: &Version,
        cluster: &T,
    ) -> Result<Version, StoreError> {
        ledgers::put(&self.dir, lock, name, before, cluster)
    }

    /// Whether the ledger that was read is still the newest.
    pub fn compare_cluster(&self, lock: &Lock, name: &str, read: &Version) -> Result<(), StoreError> {
        ledgers::compare(&self.dir, lock, name, read)
    }

    /// Deletes the ledger of a cluster, with its history; returns whether there was one.
    pub fn delete_cluster(&self, lock: &Lock, name: &str) -> Result<bool, StoreError> {
        ledgers::delete(&self.dir, lock, name)
    }

    /// The last version of a cluster's ledger, from its history; none where it is not there or damaged.
    pub fn newest_in_history<T: DeserializeOwned>(&self, name: &str) -> Result<Option<Kept<T>>, StoreError> {
        ledgers::newest(&self.dir, name)
    }

    /// The versions of a cluster's ledger that the history holds, oldest first: number and what is wrong with it.
    pub fn history(&self, name: &str) -> Result<Vec<(u64, Option<String>)>, StoreError> {
        ledgers::history(&self.dir, name)
    }

    /// Writes a ledger in the place of one that is missing or damaged.
    pub fn replace_cluster<T: Serialize>(&self, lock: &Lock, name: &str, cluster: &T) -> Result<Version, StoreError> {
        ledgers::replace(&self.dir, lock, name, cluster)
    }

    /// The names of all clusters, in order.
    pub fn clusters(&self) -> Result<Vec<String>, StoreError> {
        CLUSTERS.names(&self.dir)
    }

    /// Appends lines to the journal; when this returns, they are synced to the disk.
    pub fn append(&self, lock: &Lock, entries: &[Entry]) -> Result<(), StoreError> {
        lock.covers(&self.dir)?;
        journal::append(&self.dir.join(JOURNAL), entries)
    }

    /// The lines of the journal that match the filter, oldest first.
    pub fn journal(&self, filter: &Filter) -> Result<Vec<Entry>, StoreError> {
        journal::read(&self.dir.join(JOURNAL), filter)
    }

    /// Deletes everything that raftsman made here, and nothing else. The directory goes too, if nothing is left in it.
    pub fn remove(self, lock: Lock) -> Result<Removal, StoreError> {
        lock.covers_fleet(&self.dir)?;
        let removal = clear(&self.dir);
        drop(lock);
        removal
    }

    /// Deletes what a killed `create` or `remove` left: the case of [`StoreError::Unfinished`].
    pub fn remove_unfinished(dir: &Path) -> Result<Removal, StoreError> {
        if !dir.exists() {
            return Ok(Removal::default());
        }
        let _guard = lock::guard(dir)?;
        if dir.join(FLEET).exists() {
            return Err(StoreError::Exists { dir: dir.to_owned() });
        }
        check_worthless(dir)?;
        clear(dir)
    }
}

fn format_of(path: &Path, bytes: &[u8]) -> Result<u32, StoreError> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    files::parse_json(path, bytes).map(|Format { format }| format)
}

/// Without `fleet.json` a killed `create` or `remove` leaves no secret, no cluster and no journal. If there is one,
/// `fleet.json` was lost, and the rest must not be touched.
fn check_worthless(dir: &Path) -> Result<(), StoreError> {
    let mut worth = dir.join(JOURNAL).exists();
    for shelf in SHELVES {
        worth |= !shelf.names(dir)?.is_empty();
    }
    if worth {
        return Err(StoreError::damaged(dir.join(FLEET), "it is missing, though there is state beside it"));
    }
    Ok(())
}

/// The order of deletion. A certificate without its key would be a damaged state; a key without its certificate is one
/// that was never completed.
const SHELVES: [Shelf; 4] = [CERTIFICATES, SECRETS, HISTORY, CLUSTERS];
/// Deleted after them. Without `fleet.json` there is no state any more, and the next command removes the rest. While it
/// exists, the identity that decrypts the state exists too.
const FILES: [&str; 7] = [JOURNAL, FLEET, IDENTITY, IDENTITY_ENCRYPTED, RECIPIENT, GENERATION, LOCK];

/// A kill at any point leaves a state that can be opened and removed again, or none.
fn clear(dir: &Path) -> Result<Removal, StoreError> {
    files::sweep(dir)?;
    migrate::remove_copies(dir)?;
    for shelf in SHELVES {
        for name in shelf.names(dir)? {
            files::remove_if_there(&shelf.path(dir, &name)?)?;
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
    /// The path of a name. Names are checked, so that none leaves the directory or makes a hidden file.
    fn path(self, dir: &Path, name: &str) -> Result<PathBuf, StoreError> {
        if !good_name(name) {
            return Err(StoreError::Name { name: name.to_owned() });
        }
        Ok(dir.join(self.directory).join(format!("{name}.{}", self.ending)))
    }

    fn write(self, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        files::write(&self.path(dir, name)?, bytes, self.mode)
    }

    fn names(self, dir: &Path) -> Result<Vec<String>, StoreError> {
        let mut names: Vec<String> = files::list(&dir.join(self.directory))?
            .iter()
            .filter_map(|path| path.file_name()?.to_str()?.strip_suffix(self.ending)?.strip_suffix('.'))
            .filter(|name| good_name(name))
            .map(str::to_owned)
            .collect();
        names.sort();
        Ok(names)
    }
}

fn good_name(name: &str) -> bool {
    name.len() <= 128
        && name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte))
}

fn recipient(dir: &Path) -> Result<x25519::Recipient, StoreError> {
    let path = dir.join(RECIPIENT);
    let Some(bytes) = files::read(&path)? else {
        return Err(StoreError::damaged(path, "it is missing"));
    };
    std::str::from_utf8(&bytes)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| StoreError::damaged(path, "it is not an age recipient (age1…)"))
}
