//! etcd's data directory → which member of which cluster it belongs to and where its log ends, read from that log.
//!
//! Every segment begins with a checksum record and a metadata record; the latter names the member and the cluster. etcd
//! itself uses it when it starts, so it is known also while etcd does not run.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

mod end;

pub use end::{End, end};

/// A member's identity in its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// The member.
    pub member: u64,
    /// The cluster.
    pub cluster: u64,
}

/// What a data directory holds.
#[derive(Debug)]
pub enum Data {
    /// Nothing.
    Empty,
    /// A member's data.
    Present(Ids),
    /// Content that cannot be read as such.
    Unreadable(String),
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("there is none"),
            Self::Present(ids) => write!(f, "found data of the cluster {:x}, member {:x}", ids.cluster, ids.member),
            Self::Unreadable(problem) => f.write_str(problem),
        }
    }
}

const METADATA: u64 = 1;
const HEAD_BYTES: u64 = 64 * 1024;
const HEAD_RECORDS: usize = 8;

/// Reads the data directory without changing anything.
pub fn look(data: &Path) -> Data {
    match listing(data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Data::Empty,
        Err(error) => return Data::Unreadable(format!("cannot list {}: {error}", data.display())),
        Ok(entries) if entries.is_empty() => return Data::Empty,
        Ok(_) => {}
    }
    let segments = match segments(&data.join("member/wal")) {
        Ok(segments) => segments,
        Err(error) => {
            return Data::Unreadable(format!(
                "there is data, but its write-ahead log cannot be listed ({error}): it is lost, or etcd was interrupted \
                 in its first moments"
            ));
        }
    };
    let mut problem = "the write-ahead log has no segment".to_owned();
    // The newest first; an older one only when the newest cannot be read.
    for segment in segments.iter().rev() {
        match ids(segment) {
            Ok(ids) => return Data::Present(ids),
            Err(error) => problem = format!("cannot read {}: {error}", segment.display()),
        }
    }
    Data::Unreadable(problem)
}

/// The bytes that the directory takes on disk.
pub fn bytes(data: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = listing(data) else { return 0 };
    entries
        .iter()
        .filter_map(|path| Some((path, fs::symlink_metadata(path).ok()?)))
        .map(|(path, metadata)| if metadata.is_dir() { bytes(path) } else { metadata.blocks() * 512 })
        .sum()
}

/// The log's files, oldest first.
fn segments(wal: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = listing(wal)?;
    found.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
    found.sort();
    Ok(found)
}

fn listing(dir: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

fn ids(segment: &Path) -> io::Result<Ids> {
    let mut head = Vec::new();
    File::open(segment)?.take(HEAD_BYTES).read_to_end(&mut head)?;
    parse(&head).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no metadata record at its beginning"))
}

fn parse(mut head: &[u8]) -> Option<Ids> {
    for _ in 0..HEAD_RECORDS {
        let (length, rest) = head.split_first_chunk::<8>()?;
        let field = u64::from_le_bytes(*length);
        let size = usize::try_from(field & 0x00ff_ffff_ffff_ffff).ok()?;
        // The top bit says that the three bits at 56 count the padding to a multiple of eight.
        let padding = if field >> 63 == 1 { usize::try_from((field >> 56) & 7).ok()? } else { 0 };
        let record = rest.get(..size)?;
        head = rest.get(size.checked_add(padding)?..)?;
        let mut kind = None;
        let mut data: &[u8] = &[];
        for field in Fields(record) {
            match field? {
                (1, Value::Number(number)) => kind = Some(number),
                (3, Value::Bytes(bytes)) => data = bytes,
                _ => {}
            }
        }
        if kind? == METADATA {
            return metadata(data);
        }
    }
    None
}

fn metadata(data: &[u8]) -> Option<Ids> {
    let (mut member, mut cluster) = (None, None);
    for field in Fields(data) {
        match field? {
            (1, Value::Number(number)) => member = Some(number),
            (2, Value::Number(number)) => cluster = Some(number),
            _ => {}
        }
    }
    Some(Ids { member: member?, cluster: cluster? })
}

/// The fields of a protocol buffer. Two messages with two fields each do not need generated code.
struct Fields<'a>(&'a [u8]);

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Value::Number(self.number()?),
            1 => Value::Bytes(self.take(8)?),
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Bytes(self.take(4)?),
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            // Malformed: the rest means nothing.
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(record: &[u8]) -> Vec<u8> {
        let padding = (8 - record.len() % 8) % 8;
        let mut field = record.len() as u64;
        if padding != 0 {
            field |= (0x80 | padding as u64) << 56;
        }
        let mut frame = field.to_le_bytes().to_vec();
        frame.extend_from_slice(record);
        frame.extend(std::iter::repeat_n(0, padding));
        frame
    }

    fn segment() -> Vec<u8> {
        // A checksum record, then metadata with member 0x9 and cluster 300.
        let mut bytes = frame(&[0x08, 4, 0x10, 0]);
        bytes.extend(frame(&[0x08, 1, 0x10, 0x85, 0x01, 0x1a, 5, 0x08, 9, 0x10, 0xac, 0x02]));
        bytes
    }

    #[test]
    fn metadata_is_found() {
        assert_eq!(parse(&segment()), Some(Ids { member: 9, cluster: 300 }));
    }

    #[test]
    fn damage_is_no_panic() {
        let whole = segment();
        for cut in 0..whole.len() - 4 {
            assert_eq!(parse(&whole[..cut]), None);
        }
        for position in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[position] ^= 1 << bit;
                let _ = parse(&damaged);
            }
        }
        assert_eq!(parse(&[0xff; 64]), None);
    }

    #[test]
    fn directories() {
        let dir = tempfile::tempdir().expect("dir");
        let data = dir.path().join("data");
        assert!(matches!(look(&data), Data::Empty));
        fs::create_dir(&data).expect("dir");
        assert!(matches!(look(&data), Data::Empty));
        fs::create_dir(data.join("member")).expect("dir");
        assert!(matches!(look(&data), Data::Unreadable(_)));
        fs::create_dir(data.join("member/wal")).expect("dir");
        assert!(matches!(look(&data), Data::Unreadable(_)));
        let first = data.join("member/wal/0000000000000000-0000000000000000.wal");
        fs::write(&first, segment()).expect("write");
        assert!(matches!(look(&data), Data::Present(Ids { member: 9, cluster: 300 })));
        fs::write(data.join("member/wal/0000000000000001-0000000000000005.wal"), b"junk").expect("write");
        assert!(matches!(look(&data), Data::Present(_)), "falls back to an older segment");
        assert!(bytes(&data) > 0);
    }
}
