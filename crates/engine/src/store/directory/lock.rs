//! The files `lock` and `locks/<stack>.lock` → one writer of each stack at a time, and its record for other processes.
//!
//! A writer of some stacks holds `lock` shared and the files of its stacks exclusively; a writer of the fleet's own
//! entries holds `lock` exclusively, and so excludes all others. The operating system releases both when the process
//! ends.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{GENERATION, LOCK, LOCKS, files};
use crate::store::state::{Key, KeyName};
use crate::store::{Holder, LockInfo, LockScope, StoreError};

/// How often a lock is tried before its holder is named. A process that only reads the holder, or that sweeps, also
/// holds it for a moment, and a new holder has not written its record yet.
const TRIES: u32 = 20;
/// The lock of the generation's counter. No stack has such a name: they begin with a letter or a digit.
const COUNTER: &str = ".generation";
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// Locks that this process holds. The operating system releases them when the files are closed.
#[derive(Debug)]
pub(super) struct Held {
    dir: PathBuf,
    fleet: File,
    /// Nothing where all of the state is held.
    stacks: Option<BTreeMap<String, File>>,
    generation: u64,
    /// Held by the task that compares and writes: tasks of one process share the lock.
    writing: Mutex<()>,
}

pub(super) async fn take(dir: &Path, scope: &LockScope, info: &LockInfo) -> Result<Held, StoreError> {
    let (fleet, stacks) = match scope {
        LockScope::Fleet => {
            let mut fleet = guard(dir).await?;
            write_info(&mut fleet, &dir.join(LOCK), info)?;
            files::sweep(dir)?;
            (fleet, None)
        }
        LockScope::Stacks(names) => {
            sweep_if_alone(dir)?;
            let fleet = share(dir).await?;
            files::make_directory(&dir.join(LOCKS.directory))?;
            let mut stacks = BTreeMap::new();
            for name in names {
                let path = LOCKS.path(dir, KeyName::parse(name)?.as_str());
                let Some(mut file) = locked(&path, Mode::Exclusive).await? else {
                    let holder = File::open(&path).ok().and_then(|mut file| read_info(&mut file)).map(Box::new);
                    return Err(StoreError::Locked { stack: Some(name.clone()), holder });
                };
                write_info(&mut file, &path, info)?;
                stacks.insert(name.clone(), file);
            }
            (fleet, Some(stacks))
        }
    };
    // Drawn only now: of two holders of one stack, the later one has the greater number.
    let generation = next_generation(dir).await?;
    Ok(Held { dir: dir.to_owned(), fleet, stacks, generation, writing: Mutex::new(()) })
}

impl Held {
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn number(&self) -> u64 {
        self.generation
    }

    pub(super) fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the lock that this key needs still excludes other processes: a process that finds its file removed locks
    /// a new one.
    pub(super) fn check(&self, key: &Key) -> Result<(), StoreError> {
        let stack = match (key, &self.stacks) {
            (Key::Ledger(stack) | Key::History(stack, _), Some(stacks)) => {
                stacks.get(stack.as_str()).map(|file| (LOCKS.path(&self.dir, stack.as_str()), file))
            }
            _ => None,
        };
        for (path, file) in [(self.dir.join(LOCK), &self.fleet)].into_iter().chain(stack) {
            if !is_at(file, &path)? {
                return Err(StoreError::LockLost { path });
            }
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The system releases the locks when the files are closed, right after this. A record that stays in them only
        // misleads a reader of the file, so a failure is ignored.
        match &self.stacks {
            None => drop(self.fleet.set_len(0)),
            Some(stacks) => stacks.values().for_each(|file| drop(file.set_len(0))),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Shared,
    Exclusive,
}

/// Locks all of the state without a generation: for its creation, its migration and its removal.
pub(super) async fn guard(dir: &Path) -> Result<File, StoreError> {
    locked(&dir.join(LOCK), Mode::Exclusive).await?.ok_or_else(|| refused(dir))
}

/// Takes the shared lock of the state, which other processes may share.
async fn share(dir: &Path) -> Result<File, StoreError> {
    locked(&dir.join(LOCK), Mode::Shared).await?.ok_or_else(|| refused(dir))
}

/// Removes what killed processes left, only while there is no other writer: a running one needs its unfinished files.
fn sweep_if_alone(dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(LOCK);
    let file = open(&path)?;
    match file.try_lock() {
        Ok(()) => files::sweep(dir),
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(StoreError::io("lock", &path)(error)),
    }
}

fn refused(dir: &Path) -> StoreError {
    match holder(dir) {
        Ok(Some(holder)) => StoreError::Locked { stack: holder.stack, holder: Some(Box::new(holder.info)) },
        Ok(None) | Err(_) => StoreError::Locked { stack: None, holder: None },
    }
}

fn open(path: &Path) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false).mode(files::PRIVATE);
    options.open(path).map_err(StoreError::io("open", path))
}

/// The locked file; nothing where another process holds the lock.
async fn locked(path: &Path, mode: Mode) -> Result<Option<File>, StoreError> {
    let mut tries = 0;
    loop {
        let file = open(path)?;
        let tried = match mode {
            Mode::Shared => file.try_lock_shared(),
            Mode::Exclusive => file.try_lock(),
        };
        match tried {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) if tries < TRIES => {
                tries += 1;
                tokio::time::sleep(TRY_AGAIN).await;
                continue;
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(StoreError::io("lock", path)(error)),
        }
        // An earlier holder may have removed the state: a lock on a deleted file excludes no process.
        if is_at(&file, path)? {
            return Ok(Some(file));
        }
    }
}

/// Whether this open file is the one that is at this path now.
fn is_at(file: &File, path: &Path) -> Result<bool, StoreError> {
    let ours = file.metadata().map_err(StoreError::io("read", path))?;
    Ok(std::fs::metadata(path).is_ok_and(|there| there.ino() == ours.ino() && there.dev() == ours.dev()))
}

fn write_info(file: &mut File, path: &Path, info: &LockInfo) -> Result<(), StoreError> {
    let failed = || StoreError::io("write", path);
    let mut text = serde_json::to_vec(info).map_err(|source| StoreError::Encode { place: path.into(), source })?;
    text.push(b'\n');
    // In place, not by rename: the lock is on this very file.
    file.set_len(0).map_err(failed())?;
    file.rewind().map_err(failed())?;
    file.write_all(&text).map_err(failed())
}

/// The process that holds a lock now, all of the state before single stacks; `None` when no process does, or none that
/// left a record.
pub(super) fn holder(dir: &Path) -> Result<Option<Holder>, StoreError> {
    if let Some(info) = holder_of(&dir.join(LOCK))? {
        return Ok(Some(Holder { stack: None, info }));
    }
    for name in LOCKS.names(dir)? {
        if let Some(info) = stack_holder(dir, &name)? {
            return Ok(Some(Holder { stack: Some(name.to_string()), info }));
        }
    }
    Ok(None)
}

/// The process that holds the lock of this stack.
pub(super) fn stack_holder(dir: &Path, stack: &KeyName) -> Result<Option<LockInfo>, StoreError> {
    holder_of(&LOCKS.path(dir, stack.as_str()))
}

fn holder_of(path: &Path) -> Result<Option<LockInfo>, StoreError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io("open", path)(error)),
    };
    // Shared, so that two processes that query do not see each other as the holder, nor a process that holds it shared.
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(read_info(&mut file)),
        Err(TryLockError::Error(error)) => Err(StoreError::io("lock", path)(error)),
    }
}

/// Deletes the locks of single stacks, for the removal of the whole state.
pub(super) fn remove_stacks(dir: &Path) -> Result<(), StoreError> {
    for name in LOCKS.names(dir)? {
        files::remove_if_there(&LOCKS.path(dir, name.as_str()))?;
    }
    files::remove_if_there(&dir.join(LOCKS.directory).join(COUNTER))?;
    files::remove_directory_if_empty(&dir.join(LOCKS.directory))
}

fn read_info(file: &mut File) -> Option<LockInfo> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// One counter for all stacks, so that a later holder always has the greater number, whatever stack an agent belongs
/// to. It has a lock of its own: holders of different stacks draw at the same time.
async fn next_generation(dir: &Path) -> Result<u64, StoreError> {
    files::make_directory(&dir.join(LOCKS.directory))?;
    let counter = dir.join(LOCKS.directory).join(COUNTER);
    // Held for a moment only; a process that was suspended while it holds it is not waited for.
    let counting = locked(&counter, Mode::Exclusive).await?;
    let _counting = counting.ok_or(StoreError::Locked { stack: None, holder: None })?;
    let path = dir.join(GENERATION);
    let bytes = files::read(&path)?.ok_or_else(|| StoreError::damaged(path.as_path(), "it is missing"))?;
    let generation: u64 = std::str::from_utf8(&bytes)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .and_then(|generation: u64| generation.checked_add(1))
        .ok_or_else(|| StoreError::damaged(path.as_path(), "it is not a number"))?;
    files::write(&path, format!("{generation}\n").as_bytes(), files::PRIVATE)?;
    Ok(generation)
}
