//! The file `lock` → one writer at a time, and for all others who that is.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{GENERATION, LOCK, StoreError, files};

/// Who holds the lock, and what for.
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

/// The lock, held until its last clone is dropped or the process ends, however it ends.
///
/// Everything that writes to the state takes a reference to it: without the lock there is nothing to write with.
#[derive(Debug, Clone)]
pub struct Lock(Arc<Held>);

#[derive(Debug)]
struct Held {
    dir: PathBuf,
    file: File,
    info: LockInfo,
    generation: u64,
}

impl Lock {
    pub(super) fn take(dir: &Path, info: LockInfo) -> Result<Self, StoreError> {
        let mut file = guard(dir)?;
        let path = dir.join(LOCK);
        let failed = || StoreError::io("write", &path);
        let mut text = serde_json::to_vec(&info).map_err(|source| StoreError::Encode { file: path.clone(), source })?;
        text.push(b'\n');
        // In place, not by rename: the lock is on this very file.
        file.set_len(0).map_err(failed())?;
        file.rewind().map_err(failed())?;
        file.write_all(&text).map_err(failed())?;
        files::sweep(dir)?;
        let generation = next_generation(dir)?;
        Ok(Self(Arc::new(Held { dir: dir.to_owned(), file, info, generation })))
    }

    /// Refuses to write to another state than the one that is locked.
    pub(super) fn covers(&self, dir: &Path) -> Result<(), StoreError> {
        match self.0.dir == dir {
            true => Ok(()),
            false => Err(StoreError::OtherLock { locked: self.0.dir.clone(), dir: dir.to_owned() }),
        }
    }

    /// Greater than that of every lock before. Agents refuse changes of a smaller one than they have seen.
    pub fn generation(&self) -> u64 {
        self.0.generation
    }

    /// What was said when it was taken.
    pub fn info(&self) -> &LockInfo {
        &self.0.info
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The system releases the lock when the file is closed, right after this. A name that stays in it misleads
        // only people who read the file, so that a failure is of no consequence.
        let _ = self.file.set_len(0);
    }
}

/// Locks the directory without a generation: for its making and its removal.
pub(super) fn guard(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK);
    let mut tries = 0;
    loop {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(files::PRIVATE)
            .open(&path)
            .map_err(StoreError::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            // One who only asks who holds it has it for a moment too, and a new holder has not said its name yet.
            Err(TryLockError::WouldBlock) if tries < 5 => {
                tries += 1;
                thread::sleep(Duration::from_millis(10));
                continue;
            }
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::Locked { holder: read_info(&mut file).map(Box::new) });
            }
            Err(TryLockError::Error(error)) => return Err(StoreError::io("lock", &path)(error)),
        }
        // Whoever held it before may have removed the state: a lock on a file that is gone locks nothing.
        let ours = file.metadata().map_err(StoreError::io("read", &path))?;
        match std::fs::metadata(&path) {
            Ok(there) if there.ino() == ours.ino() && there.dev() == ours.dev() => return Ok(file),
            _ => continue,
        }
    }
}

/// Who holds the lock now; `None` when nobody does, or nobody that left a name.
pub(super) fn holder(dir: &Path) -> Result<Option<LockInfo>, StoreError> {
    let path = dir.join(LOCK);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io("open", path)(error)),
    };
    // Shared, so that two who ask do not take each other for the holder.
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(read_info(&mut file)),
        Err(TryLockError::Error(error)) => Err(StoreError::io("lock", path)(error)),
    }
}

fn read_info(file: &mut File) -> Option<LockInfo> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn next_generation(dir: &Path) -> Result<u64, StoreError> {
    let path = dir.join(GENERATION);
    let bytes = files::read(&path)?.ok_or_else(|| StoreError::damaged(path.clone(), "it is missing"))?;
    let generation: u64 = std::str::from_utf8(&bytes)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .and_then(|generation: u64| generation.checked_add(1))
        .ok_or_else(|| StoreError::damaged(path.clone(), "it is not a number"))?;
    files::write(&path, format!("{generation}\n").as_bytes(), files::PRIVATE)?;
    Ok(generation)
}
