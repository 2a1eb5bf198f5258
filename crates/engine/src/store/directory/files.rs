//! Bytes → a file that exists completely or not at all, also after a power failure.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::SHELVES;
use crate::store::{Place, StoreError};

pub(super) const PRIVATE: u32 = 0o600;
pub(super) const PUBLIC: u32 = 0o644;

/// The prefix of the names of incomplete files.
const UNFINISHED: &str = ".tmp-";

/// Makes a directory for the user only. An existing one stays as it is: it may be the user's own.
pub(super) fn make_directory(path: &Path) -> Result<(), StoreError> {
    if path.is_dir() {
        return check_mode(path, 0o022);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(StoreError::io("make the directory", path))?;
    sync_parent(path)
}

/// Replaces a file.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), StoreError> {
    let failed = || StoreError::io("write", path);
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut file = unfinished(dir, mode).map_err(failed())?;
    file.write_all(bytes).map_err(failed())?;
    file.as_file().sync_all().map_err(failed())?;
    file.persist(path).map_err(|error| error.error).map_err(failed())?;
    sync_parent(path)
}

/// Writes a file that does not exist yet; returns whether it was written.
pub(super) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<bool, StoreError> {
    let failed = || StoreError::io("write", path);
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut file = unfinished(dir, mode).map_err(failed())?;
    file.write_all(bytes).map_err(failed())?;
    file.as_file().sync_all().map_err(failed())?;
    match file.persist_noclobber(path) {
        Ok(_) => sync_parent(path).map(|()| true),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed()(error.error)),
    }
}

/// Replaces a file without syncing it: a copy of another file, which a power failure may lose.
pub(super) fn write_unsynced(path: &Path, bytes: &[u8], mode: u32) -> Result<(), StoreError> {
    let failed = || StoreError::io("write", path);
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut file = unfinished(dir, mode).map_err(failed())?;
    file.write_all(bytes).map_err(failed())?;
    file.persist(path).map_err(|error| error.error).map_err(failed()).map(drop)
}

fn unfinished(dir: &Path, mode: u32) -> io::Result<tempfile::NamedTempFile> {
    tempfile::Builder::new().prefix(UNFINISHED).permissions(Permissions::from_mode(mode)).tempfile_in(dir)
}

/// A file's contents; `None` when there is no such file.
pub(in crate::store) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("read", path)(error)),
    }
}

/// The value in a JSON file.
pub(super) fn parse_json<T: DeserializeOwned>(place: impl Into<Place>, bytes: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(bytes).map_err(|error| StoreError::damaged(place, error.to_string()))
}

/// Deletes a file; says whether there was one.
pub(super) fn remove_if_there(path: &Path) -> Result<bool, StoreError> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StoreError::io("delete", path)(error)),
    }
}

/// Deletes a copy of a file without syncing; says whether there was one.
pub(super) fn remove_unsynced(path: &Path) -> Result<bool, StoreError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StoreError::io("delete", path)(error)),
    }
}

/// Deletes a directory, unless something is in it.
pub(super) fn remove_directory_if_empty(path: &Path) -> Result<(), StoreError> {
    match fs::remove_dir(path) {
        Ok(()) => sync_parent(path),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => Ok(()),
        Err(error) => Err(StoreError::io("delete", path)(error)),
    }
}

/// What is in a directory, in order; nothing when there is no such directory.
pub(super) fn list(path: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::io("list", path)(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(StoreError::io("list", path))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// An incomplete directory: a rename completes it.
pub(super) fn unfinished_directory(dir: &Path) -> Result<PathBuf, StoreError> {
    let made = tempfile::Builder::new().prefix(UNFINISHED).permissions(Permissions::from_mode(0o700)).tempdir_in(dir);
    Ok(made.map_err(StoreError::io("make a directory in", dir))?.keep())
}

/// Deletes a directory with all that is in it.
pub(super) fn remove_tree(path: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("delete", path)(error)),
        _ => sync_parent(path),
    }
}

/// Deletes the unfinished files that killed processes left. Only while no other process writes: else they may be in
/// use.
pub(super) fn sweep(dir: &Path) -> Result<(), StoreError> {
    let shelves = SHELVES.map(|shelf| dir.join(shelf.directory));
    for dir in shelves.iter().map(PathBuf::as_path).chain([dir]) {
        for path in list(dir)? {
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes())) {
                if path.is_dir() { remove_tree(&path)? } else { remove_if_there(&path).map(drop)? }
            }
        }
    }
    Ok(())
}

/// Rejects a directory of another user, or a link that another user may redirect.
pub(super) fn check_owner(dir: &Path) -> Result<(), StoreError> {
    let found = fs::symlink_metadata(dir).map_err(StoreError::io("read", dir))?;
    if found.is_symlink() {
        return Err(StoreError::Link { dir: dir.to_owned() });
    }
    let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner == user { Ok(()) } else { Err(StoreError::OtherOwner { dir: dir.to_owned(), owner, user }) }
}

/// Rejects a file that users other than its owner can access. `forbidden` are the bits that must not be set.
pub(in crate::store) fn check_mode(path: &Path, forbidden: u32) -> Result<(), StoreError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StoreError::io("read", path)(error)),
    };
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & forbidden == 0 {
        return Ok(());
    }
    let wanted = if metadata.is_dir() { 0o700 } else { 0o600 };
    Err(StoreError::Permissions { path: path.to_owned(), mode, wanted })
}

/// Makes a change of a directory (a new, renamed or deleted file) durable.
pub(super) fn sync_parent(path: &Path) -> Result<(), StoreError> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    match File::open(dir).and_then(|dir| dir.sync_all()) {
        // A directory that was removed meanwhile needs no sync.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("sync", dir)(error)),
        _ => Ok(()),
    }
}
