//! etcd's snapshot as a stream → whether it is complete, its size and its hash.

use aws_lc_rs::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use raftsman_api::hex;
use raftsman_core::backup::Stored;

/// A database is written in pages of a multiple of this; behind it stands the hash.
const PAGE: u64 = 512;

/// Why these bytes are no snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The stream ended in the middle.
    #[error("{bytes} bytes of a snapshot came, which is no whole one")]
    Incomplete {
        /// So many.
        bytes: u64,
    },
    /// What came is not what was sent.
    #[error("the snapshot's bytes do not have the SHA-256 that etcd put behind them")]
    OtherBytes,
}

/// Hashes all but the last 32 bytes, which are etcd's own hash of what is before them.
pub struct Check {
    context: Context,
    tail: Vec<u8>,
    bytes: u64,
}

impl Default for Check {
    fn default() -> Self {
        Self { context: Context::new(&SHA256), tail: Vec::new(), bytes: 0 }
    }
}

impl Check {
    /// The next bytes.
    pub fn take(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        // Of what is held back and what came, all but the last 32 bytes are the database.
        let known = (self.tail.len() + bytes.len()).saturating_sub(SHA256_OUTPUT_LEN);
        let held = known.min(self.tail.len());
        self.context.update(&self.tail[..held]);
        self.tail.drain(..held);
        let (body, rest) = bytes.split_at(known - held);
        self.context.update(body);
        self.tail.extend_from_slice(rest);
    }

    /// The end of the stream: how many bytes, and the SHA-256 of all of them.
    pub fn finish(self) -> Result<Stored, SnapshotError> {
        if self.bytes % PAGE != SHA256_OUTPUT_LEN as u64 {
            return Err(SnapshotError::Incomplete { bytes: self.bytes });
        }
        let mut whole = self.context.clone();
        whole.update(&self.tail);
        match self.context.finish().as_ref() == self.tail.as_slice() {
            true => Ok(Stored { bytes: self.bytes, sha256: hex::encode(whole.finish().as_ref()) }),
            false => Err(SnapshotError::OtherBytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(bytes: &[u8], part: usize) -> Result<Stored, SnapshotError> {
        let mut check = Check::default();
        bytes.chunks(part).for_each(|part| check.take(part));
        check.finish()
    }

    #[test]
    fn a_snapshot_is_checked_by_the_hash_behind_it() {
        let mut bytes = vec![7; 3 * 512];
        let hash = aws_lc_rs::digest::digest(&SHA256, &bytes);
        bytes.extend_from_slice(hash.as_ref());
        for part in [1, 31, 32, 33, 512, 4096] {
            let stored = Stored { bytes: 1568, sha256: hex::sha256(&bytes) };
            assert_eq!(checked(&bytes, part), Ok(stored), "in parts of {part}");
        }
        let cut = &bytes[..bytes.len() - 1];
        assert_eq!(checked(cut, 100), Err(SnapshotError::Incomplete { bytes: 1567 }));
        assert_eq!(checked(&bytes[..512 + 32], 100), Err(SnapshotError::OtherBytes));
        bytes[0] = 8;
        assert_eq!(checked(&bytes, 100), Err(SnapshotError::OtherBytes));
    }
}
