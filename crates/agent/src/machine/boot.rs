//! `agent/boot.json` → which machine of which fleet this is.

use raftsman_core::boot::Boot;

use crate::files::{self, FileError};
use crate::root::Root;

/// Why the boot data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// There is none.
    #[error("{path} is missing: the machine was not ordered by raftsman, or its provider did not finish")]
    Missing {
        /// Where it should be.
        path: String,
    },
    /// It cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is not what it should be.
    #[error("{path} is malformed: delete the machine and create it again")]
    Malformed {
        /// Where it is.
        path: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// Reads the boot data.
pub fn read(root: &Root) -> Result<Boot, BootError> {
    let path = root.boot();
    let shown = || path.display().to_string();
    let text = files::read(&path)?.ok_or_else(|| BootError::Missing { path: shown() })?;
    serde_json::from_str(&text).map_err(|source| BootError::Malformed { path: shown(), source })
}

/// Destroys the join token, here and on disk.
pub fn forget_token(boot: &mut Boot, root: &Root) -> Result<(), BootError> {
    boot.join_token = None;
    let text = serde_json::to_vec_pretty(boot)
        .map_err(|source| BootError::Malformed { path: root.boot().display().to_string(), source })?;
    Ok(files::write(&root.boot(), &text, 0o600)?)
}
