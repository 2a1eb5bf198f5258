//! path, bytes → a file that exists completely or not at all, readable by its owner only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct FileError {
    /// What was tried.
    pub action: &'static str,
    /// On what.
    pub path: PathBuf,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

/// For `map_err`: names what was tried on which path.
pub(crate) fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FileError + use<'a> {
    move |source| FileError { action, path: path.to_path_buf(), source }
}

/// Replaces the file's whole content in one step.
pub(crate) fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
