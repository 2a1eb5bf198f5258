//! a call's generation → obeyed, or refused because another operator has taken the lock since.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::files::{self, FileError};

/// Why a generation is not obeyed.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// Another operator holds a newer lock.
    #[error(
        "generation {offered} is older than {newest}: another operator has taken the lock since; run the command again \
         to plan again. If the state was brought back from an old copy, write {newest} into its file `generation` first"
    )]
    Older {
        /// What the call bore.
        offered: u64,
        /// What the agent has obeyed.
        newest: u64,
    },
    /// Too far ahead for any sequence of locks.
    #[error(
        "generation {offered} is further ahead of {newest} than locks can be taken: obeying it would lock out every later \
         operator. The file `generation` of the state is damaged: write {newest} into it, then run the command again"
    )]
    TooFar {
        /// What the call bore.
        offered: u64,
        /// What the agent has obeyed.
        newest: u64,
    },
    /// It could not be stored.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file holds something else.
    #[error("{} holds no number", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
}

/// How far a generation may be ahead of the newest one obeyed. A lock adds one: this many take 136 years at one a
/// second, and a fence that was moved by mistake can still be passed afterwards.
const FURTHEST: u64 = 1 << 32;

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
            // Falling back to zero would accept an operator with an old lock.
            Some(text) => text.trim().parse().map_err(|_| FenceError::Malformed { path: path.clone() })?,
        };
        Ok(Self { path, newest: Mutex::new(newest) })
    }

    /// The newest generation obeyed.
    pub fn newest(&self) -> u64 {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a call, and records its generation first.
    pub fn pass(&self, offered: u64) -> Result<(), FenceError> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if offered < *newest {
            return Err(FenceError::Older { offered, newest: *newest });
        }
        if offered.saturating_sub(*newest) > FURTHEST || offered == u64::MAX {
            return Err(FenceError::TooFar { offered, newest: *newest });
        }
        if offered > *newest {
            files::write(&self.path, format!("{offered}\n").as_bytes(), 0o600)?;
            *newest = offered;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_that_no_lock_can_have_does_not_move_the_fence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("generation");
        let fence = Fence::open(path.clone()).unwrap();
        fence.pass(7).unwrap();
        for offered in [u64::MAX, u64::MAX - 1, 1 << 63, 8 + FURTHEST] {
            let refused = fence.pass(offered).unwrap_err();
            assert!(matches!(refused, FenceError::TooFar { newest: 7, .. }), "{refused}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "7\n");
        fence.pass(8).unwrap();
        fence.pass(8 + FURTHEST).unwrap();
        // Even in small enough steps the last number is refused: no generation can follow it.
        std::fs::write(&path, format!("{}\n", u64::MAX - 1)).unwrap();
        let fence = Fence::open(path).unwrap();
        assert!(matches!(fence.pass(u64::MAX), Err(FenceError::TooFar { .. })));
        fence.pass(u64::MAX - 1).unwrap();
    }
}
