//! the root directory → how much of its disk is free.

use crate::files::FileError;
use crate::root::Root;

/// The bytes that are free on the disk that the root is on.
pub fn free_bytes(root: &Root) -> Result<u64, FileError> {
    disk(root).map(|(free, _)| free)
}

/// Free and total bytes of the disk that the root is on.
pub fn disk(root: &Root) -> Result<(u64, u64), FileError> {
    let found =
        rustix::fs::statvfs(root.path()).map_err(|error| FileError::of("measure", root.path())(error.into()))?;
    Ok((found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize))
}
