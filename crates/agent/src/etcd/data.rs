//! the data of a removed member → moved away, where operators can still find it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::etcd::wal::{self, Data};
use crate::files::{self, FileError};
use crate::root::Root;

/// Why the data stays where it is.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// It is another member's.
    #[error("etcd's data is not as expected: expected {expected}, but {found}: nothing was moved")]
    Other {
        /// What the caller expects.
        expected: String,
        /// What is there.
        found: Data,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Moves the data of this member away; 0 stands for data that cannot be read as a member's. Succeeds when there is
/// none. Data that was moved away before is deleted, because a disk has room for one copy.
pub fn put_away(root: &Root, member: u64) -> Result<(), DataError> {
    let data = root.data();
    let name = match wal::look(&data) {
        Data::Empty => return Ok(()),
        Data::Present(ids) if ids.member == member => format!("{member:016x}"),
        Data::Unreadable(_) if member == 0 => "unreadable".to_owned(),
        found => {
            let expected = match member {
                0 => "data that cannot be read".to_owned(),
                member => format!("data of the member {member:x}"),
            };
            return Err(DataError::Other { expected, found });
        }
    };
    let removed = root.removed();
    files::make_dir(&removed, 0o700)?;
    let target = removed.join(format!("{name}-{}", Timestamp::now().as_millisecond()));
    fs::rename(&data, &target).map_err(FileError::of("move away", &data))?;
    files::sync_parent(&data)?;
    files::sync_parent(&target)?;
    forget_older(&removed, &target)
}

/// Where the data of this member was moved to; nothing where it was not.
pub fn put_away_of(root: &Root, member: u64) -> Result<Option<PathBuf>, DataError> {
    let removed = root.removed();
    let entries = match fs::read_dir(&removed) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(FileError::of("list", &removed))?,
    };
    let of_member = |path: &PathBuf| matches!(wal::look(path), Data::Present(ids) if ids.member == member);
    Ok(entries.flatten().map(|entry| entry.path()).filter(of_member).max())
}

fn forget_older(removed: &Path, newest: &Path) -> Result<(), DataError> {
    for entry in fs::read_dir(removed).map_err(FileError::of("list", removed))?.flatten() {
        if entry.path() != newest {
            files::remove_dir(&entry.path())?;
        }
    }
    Ok(())
}
