//! a call's generation → obeyed, or refused because another operator has taken over since.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::files::{self, FileError};

/// Why a generation is not obeyed.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// Somebody holds a newer lock.
    #[error(
        "generation {offered} is older than {newest}: another operator has taken the lock since; run the command again \
         to plan anew. If the state was brought back from an old copy, write {newest} into its file `generation` first"
    )]
    Older {
        /// What the call bore.
        offered: u64,
        /// What the agent has obeyed.
        newest: u64,
    },
    /// It could not be kept.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file holds something else.
    #[error("{} holds no number", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
}

/// The newest generation obeyed, kept over restarts.
#[derive(Debug)]
pub struct Fence {
    path: PathBuf,
    newest: Mutex<u64>,
}

impl Fence {
    /// Reads what was obeyed last.
    pub fn open(path: PathBuf) -> Result<Self, FenceError> {
        let newest = match files::read(&path)? {
            None => 0,
            // Guessing zero would let a stale operator in.
            Some(text) => text.trim().parse().map_err(|_| FenceError::Malformed { path: path.clone() })?,
        };
        Ok(Self { path, newest: Mutex::new(newest) })
    }

    /// The newest generation obeyed.
    pub fn newest(&self) -> u64 {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a call through, and remembers its generation first.
    pub fn pass(&self, offered: u64) -> Result<(), FenceError> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if offered < *newest {
            return Err(FenceError::Older { offered, newest: *newest });
        }
        if offered > *newest {
            files::write(&self.path, format!("{offered}\n").as_bytes(), 0o600)?;
            *newest = offered;
        }
        Ok(())
    }
}
