//! A directory of a test → files that only their owner may read, and all that is in it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Writes a file that only its owner may read.
#[track_caller]
pub fn write_private(path: impl AsRef<Path>, text: &str) {
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("a mode");
}

/// Every file below, in order; what a link points to is elsewhere.
pub fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(below(&entry.path())),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found.sort();
    found
}
