//! The state → what cannot be observed: the fleet's identity, secrets, certificates, ledgers, the lock, the journal.
//!
//! [`Store`] knows what each key means; [`State`] keeps the bytes. Reading takes no lock; every write takes a reference
//! to the [`Lock`] of its stack or of the whole fleet, and a ledger is replaced only by the successor of the version
//! that was read.

#[cfg(test)]
mod conformance;
mod directory;
mod error;
#[cfg(test)]
pub(crate) mod fixture;
mod journal;
mod ledgers;
mod lock;
mod secrets;
mod state;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use error::StoreError;
pub use journal::{Entry, Filter};
pub use ledgers::{Kept, Version};
pub use lock::{Holder, Lock, LockInfo, LockScope};
pub use secrets::{IdentitySource, Secrets};
pub use state::{Before, Key, KeyKind, KeyName, Lease, Place, Revision, State, Stored};

pub(crate) use directory::write_file;
use directory::{Directory, IDENTITY, IDENTITY_ENCRYPTED};

/// The format that this version writes, and the newest that it reads.
/// 1 had ledgers without a version. 2 had one lock for the whole fleet: a raftsman of that format ignores the locks of
/// single stacks.
const FORMAT: u32 = 3;

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

impl Fleet {
    /// As it is stored.
    fn text(&self, place: impl Into<Place>) -> Result<Vec<u8>, StoreError> {
        let encode = |source| StoreError::Encode { place: place.into(), source };
        let mut text = serde_json::to_vec_pretty(self).map_err(encode)?;
        text.push(b'\n');
        Ok(text)
    }
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

/// The state of one fleet.
#[derive(Debug, Clone)]
pub struct Store {
    /// Where the state is, and what commands keep on this computer beside it: machines, binaries, the identity.
    dir: PathBuf,
    fleet: Fleet,
    state: Arc<dyn State>,
}

impl Store {
    /// Makes the state of a new fleet. What an earlier, killed call left is completed.
    pub async fn create(
        dir: &Path,
        fleet_name: &str,
        network: Option<&str>,
        protection: Protection,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let fleet = Fleet {
            format: FORMAT,
            id: crate::secrets::random_hex::<16>().map_err(|_| StoreError::Random)?,
            name: fleet_name.to_owned(),
            network: network.map(str::to_owned),
            created: now,
        };
        let state = Arc::new(Directory::create(dir, protection, &fleet).await?);
        Ok(Self { dir: dir.to_owned(), fleet, state })
    }

    /// Opens the state of a fleet.
    pub async fn open(dir: &Path, fleet_name: &str) -> Result<Self, StoreError> {
        let state = Directory::at(dir);
        let Some(stored) = state.get(&Key::Fleet).await? else { return Err(state.missing()) };
        let place = state.place(&Key::Fleet);
        // The format is read first: a newer one may differ in everything else.
        let format = directory::format_of(place.clone(), &stored.value)?;
        if format > FORMAT {
            return Err(StoreError::NewerFormat { dir: dir.to_owned(), found: format, known: FORMAT });
        }
        let fleet = directory::fleet_of(place, &stored.value)?;
        if fleet.name != fleet_name {
            let dir = dir.to_owned();
            return Err(StoreError::OtherFleet { dir, expected: fleet_name.to_owned(), found: fleet.name });
        }
        state.check()?;
        Ok(Self { dir: dir.to_owned(), fleet, state: Arc::new(state) })
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
    pub async fn set_network(&mut self, lock: &Lock, network: Option<String>) -> Result<(), StoreError> {
        let fleet = Fleet { network, format: FORMAT, ..self.fleet.clone() };
        let text = fleet.text(self.state.place(&Key::Fleet))?;
        lock.put(&self.dir, &Key::Fleet, &text, &Before::Any).await?;
        self.fleet = fleet;
        Ok(())
    }

    /// Sets another network in this opened state only, not on the disk.
    pub(crate) fn foresee_network(&mut self, network: &str) {
        self.fleet.network = Some(network.to_owned());
    }

    /// Writes a secret: encryption needs no identity.
    pub async fn put_secret(&self, lock: &Lock, name: &str, secret: &SecretString) -> Result<(), StoreError> {
        let recipient = secrets::recipient(&*self.state).await?;
        secrets::put(&self.dir, &recipient, lock, name, secret).await
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
    pub async fn unlock(&self, source: IdentitySource) -> Result<Secrets, StoreError> {
        Secrets::unlock(&self.dir, &self.state, source).await
    }

    /// Takes the lock of the whole fleet, with a generation greater than every one before: for its own entries.
    pub async fn lock(&self, info: LockInfo) -> Result<Lock, StoreError> {
        self.lock_for(&LockScope::Fleet, info).await
    }

    /// Takes the lock of what is to be changed, with a generation greater than every one before. A state of an earlier
    /// format is migrated first.
    pub async fn lock_for(&self, scope: &LockScope, info: LockInfo) -> Result<Lock, StoreError> {
        let lease = self.state.lease(scope, &info).await?;
        // Checked again under the lock: a newer raftsman may have migrated the state since it was opened.
        let fleet = self.state.get(&Key::Fleet).await?;
        let fleet = fleet.ok_or_else(|| StoreError::Missing { dir: self.dir.clone() })?;
        match directory::format_of(self.state.place(&Key::Fleet), &fleet.value)? {
            FORMAT => Ok(Lock::new(&self.dir, scope, info, lease)),
            found => Err(StoreError::NewerFormat { dir: self.dir.clone(), found, known: FORMAT }),
        }
    }

    /// The process that holds a lock now, if there is one and it left its record.
    pub async fn lock_holder(&self) -> Result<Option<Holder>, StoreError> {
        self.state.holder(&LockScope::Fleet).await
    }

    /// The process that holds the lock of this stack, or that of the whole fleet.
    pub async fn stack_holder(&self, stack: &str) -> Result<Option<Holder>, StoreError> {
        self.state.holder(&LockScope::Stacks([stack.to_owned()].into())).await
    }

    /// The certificate of this name.
    pub async fn get_certificate(&self, name: &str) -> Result<Option<String>, StoreError> {
        let key = Key::Certificate(KeyName::parse(name)?);
        let Some(stored) = self.state.get(&key).await? else { return Ok(None) };
        let damaged = |_| StoreError::damaged(self.state.place(&key), "it is not text");
        String::from_utf8(stored.value).map(Some).map_err(damaged)
    }

    /// Keeps a certificate.
    pub async fn put_certificate(&self, lock: &Lock, name: &str, pem: &str) -> Result<(), StoreError> {
        let key = Key::Certificate(KeyName::parse(name)?);
        lock.put(&self.dir, &key, pem.as_bytes(), &Before::Any).await.map(drop)
    }

    /// Deletes a certificate; returns whether there was one.
    pub async fn delete_certificate(&self, lock: &Lock, name: &str) -> Result<bool, StoreError> {
        lock.delete(&self.dir, &Key::Certificate(KeyName::parse(name)?)).await
    }

    /// The names of all certificates, in order.
    pub async fn certificates(&self) -> Result<Vec<String>, StoreError> {
        let name = |key: Key| match key {
            Key::Certificate(name) => Some(name.to_string()),
            Key::Fleet | Key::Recipient | Key::Secret(_) | Key::Ledger(_) | Key::History(..) => None,
        };
        Ok(self.state.list(&KeyKind::Certificates).await?.into_iter().filter_map(name).collect())
    }

    /// The ledger of a cluster, with its version.
    pub async fn get_cluster<T: DeserializeOwned>(&self, name: &str) -> Result<Option<Kept<T>>, StoreError> {
        ledgers::get(&*self.state, self.fleet.format, name).await
    }

    /// Writes the ledger of a cluster, in the place of exactly this version.
    pub async fn put_cluster<T: Serialize + Sync>(
        &self,
        lock: &Lock,
        name: &str,
        before: &Version,
        cluster: &T,
    ) -> Result<Version, StoreError> {
        ledgers::put(self, lock, name, before, cluster).await
    }

    /// Whether the ledger that was read is still the newest.
    pub async fn compare_cluster(&self, lock: &Lock, name: &str, read: &Version) -> Result<(), StoreError> {
        ledgers::compare(self, lock, name, read).await
    }

    /// Deletes the ledger of a cluster, with its history; returns whether there was one.
    pub async fn delete_cluster(&self, lock: &Lock, name: &str) -> Result<bool, StoreError> {
        ledgers::delete(self, lock, name).await
    }

    /// The last version of a cluster's ledger, from its history; none where it is not there or damaged.
    pub async fn newest_in_history<T: DeserializeOwned>(&self, name: &str) -> Result<Option<Kept<T>>, StoreError> {
        ledgers::newest(&*self.state, name).await
    }

    /// The versions of a cluster's ledger that the history holds, oldest first: number and what is wrong with it.
    pub async fn history(&self, name: &str) -> Result<Vec<(u64, Option<String>)>, StoreError> {
        ledgers::history(&*self.state, name).await
    }

    /// Writes a ledger in the place of one that is missing or damaged.
    pub async fn replace_cluster<T: Serialize + Sync>(
        &self,
        lock: &Lock,
        name: &str,
        cluster: &T,
    ) -> Result<Version, StoreError> {
        ledgers::replace(self, lock, name, cluster).await
    }

    /// The names of all clusters, in order.
    pub async fn clusters(&self) -> Result<Vec<String>, StoreError> {
        let name = |key: Key| match key {
            Key::Ledger(cluster) => Some(cluster.to_string()),
            Key::Fleet | Key::Recipient | Key::Certificate(_) | Key::Secret(_) | Key::History(..) => None,
        };
        Ok(self.state.list(&KeyKind::Ledgers).await?.into_iter().filter_map(name).collect())
    }

    /// Appends lines to the journal; when this returns, they are durable.
    pub async fn append(&self, lock: &Lock, entries: &[Entry]) -> Result<(), StoreError> {
        lock.append(&self.dir, entries).await
    }

    /// The lines of the journal that match the filter, oldest first.
    pub async fn journal(&self, filter: &Filter) -> Result<Vec<Entry>, StoreError> {
        self.state.journal(filter).await
    }

    /// Deletes everything that raftsman made here, and nothing else. The directory goes too, if nothing is left in it.
    pub async fn remove(self, lock: Lock) -> Result<Removal, StoreError> {
        let removal = lock.clear(&self.dir).await;
        drop(lock);
        removal
    }

    /// Deletes what a killed `create` or `remove` left: the case of [`StoreError::Unfinished`].
    pub async fn remove_unfinished(dir: &Path) -> Result<Removal, StoreError> {
        Directory::remove_unfinished(dir).await
    }
}
