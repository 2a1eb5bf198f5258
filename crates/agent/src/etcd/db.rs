//! etcd's database file → the last revision in it, and up to which entry of the log it was applied.
//!
//! Reads only the needed part of bbolt's format: the newer of two meta pages, then down one edge of two trees. etcd may
//! write the file meanwhile: an invalid page is an error, and every length is checked before it is used.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: u32 = 0xED0C_DAED;
const HEADER: usize = 16;
const ELEMENT: usize = 16;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
/// Trees of etcd's size are a handful of pages deep.
const DEEPEST: usize = 32;
const LARGEST_PAGE: usize = 64 << 20;

/// How far a database was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The last revision in it.
    pub revision: u64,
    /// The last entry of the log whose effect is in it.
    pub index: u64,
}

/// How far this database was applied.
pub fn applied(path: &Path) -> io::Result<Applied> {
    let bolt = Bolt::open(path)?;
    let meta = bolt.bucket(b"meta")?.ok_or_else(|| broken("there is no bucket `meta`"))?;
    let index = bolt.get(&meta, b"consistent_index")?.as_deref().and_then(number).unwrap_or(0);
    let mut revision = 1;
    if let Some(keys) = bolt.bucket(b"key")? {
        revision = bolt.last_key(&keys)?.as_deref().and_then(number).unwrap_or(1);
    }
    // The last deletion may have been compacted: then only this records its revision.
    for compacted in [&b"finishedCompactRev"[..], b"scheduledCompactRev"] {
        revision = revision.max(bolt.get(&meta, compacted)?.as_deref().and_then(number).unwrap_or(0));
    }
    Ok(Applied { revision, index })
}

struct Bolt {
    file: File,
    page_size: usize,
    root: u64,
}

/// A page with its overflow pages.
struct Page(Vec<u8>);

/// Where a bucket's tree begins: on a page, or inside the value that names it.
enum Bucket {
    At(u64),
    Inline(Vec<u8>),
}

impl Bolt {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // The position of the second meta page depends on the page size, which the first contains unless it is torn.
        let sizes = [4096, 8192, 16384, 65536];
        let metas = std::iter::once(0).chain(sizes).filter_map(|at| Meta::read(&file, at));
        let newest = metas.max_by_key(|meta| meta.transaction).ok_or_else(|| broken("no meta page can be read"))?;
        Ok(Self { file, page_size: newest.page_size, root: newest.root })
    }

    fn page(&self, id: u64) -> io::Result<Page> {
        let at = id.checked_mul(self.page_size as u64).ok_or_else(|| broken("a page beyond all files"))?;
        let mut bytes = vec![0; self.page_size];
        self.file.read_exact_at(&mut bytes, at)?;
        let overflow = u32_at(&bytes, 12)? as usize;
        let length = overflow.checked_add(1).and_then(|pages| pages.checked_mul(self.page_size));
        let length = length.filter(|length| *length <= LARGEST_PAGE).ok_or_else(|| broken("a page too large"))?;
        bytes.resize(length, 0);
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(Page(bytes))
    }

    fn first_page(&self, bucket: &Bucket) -> io::Result<Page> {
        match bucket {
            Bucket::At(id) => self.page(*id),
            Bucket::Inline(bytes) => Ok(Page(bytes.clone())),
        }
    }

    fn bucket(&self, name: &[u8]) -> io::Result<Option<Bucket>> {
        let Some(value) = self.get(&Bucket::At(self.root), name)? else { return Ok(None) };
        Ok(Some(match u64_at(&value, 0)? {
            0 => Bucket::Inline(value.get(HEADER..).unwrap_or_default().to_vec()),
            id => Bucket::At(id),
        }))
    }

    /// The value of a key, by the branch that would hold it.
    fn get(&self, bucket: &Bucket, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut page = self.first_page(bucket)?;
        for _ in 0..DEEPEST {
            let count = page.count()?;
            if page.is_branch()? {
                let mut child = None;
                for n in 0..count {
                    let (found, id) = page.branch(n)?;
                    if n > 0 && found > key {
                        break;
                    }
                    child = Some(id);
                }
                page = self.page(child.ok_or_else(|| broken("an empty branch"))?)?;
                continue;
            }
            for n in 0..count {
                let (found, value) = page.leaf(n)?;
                if found == key {
                    return Ok(Some(value.to_vec()));
                }
            }
            return Ok(None);
        }
        Err(broken("a tree without end"))
    }

    fn last_key(&self, bucket: &Bucket) -> io::Result<Option<Vec<u8>>> {
        let mut page = self.first_page(bucket)?;
        for _ in 0..DEEPEST {
            let Some(last) = page.count()?.checked_sub(1) else { return Ok(None) };
            if !page.is_branch()? {
                return Ok(Some(page.leaf(last)?.0.to_vec()));
            }
            page = self.page(page.branch(last)?.1)?;
        }
        Err(broken("a tree without end"))
    }
}

struct Meta {
    page_size: usize,
    root: u64,
    transaction: u64,
}

impl Meta {
    /// The meta page at this place, where there is a whole one.
    fn read(file: &File, at: u64) -> Option<Self> {
        let mut bytes = [0; HEADER + 64];
        file.read_exact_at(&mut bytes, at).ok()?;
        let meta = &bytes[HEADER..];
        let page_size = u32_at(meta, 8).ok()? as usize;
        let whole = u32_at(meta, 0).ok()? == MAGIC && u64_at(meta, 56).ok()? == fnv1a(&meta[..56]);
        let sensible = page_size.is_power_of_two() && (512..=LARGEST_PAGE).contains(&page_size);
        (whole && sensible && (at == 0 || at == page_size as u64)).then(|| Self {
            page_size,
            root: u64_at(meta, 16).unwrap_or(0),
            transaction: u64_at(meta, 48).unwrap_or(0),
        })
    }
}

impl Page {
    fn flags(&self) -> io::Result<u16> {
        Ok(u16::from_le_bytes(part(&self.0, 8, 2)?.try_into().map_err(|_| broken("flags"))?))
    }

    fn is_branch(&self) -> io::Result<bool> {
        match self.flags()? {
            flags if flags & BRANCH != 0 => Ok(true),
            flags if flags & LEAF != 0 => Ok(false),
            flags => Err(broken(&format!("a page that is neither branch nor leaf: {flags}"))),
        }
    }

    fn count(&self) -> io::Result<usize> {
        Ok(usize::from(u16::from_le_bytes(part(&self.0, 10, 2)?.try_into().map_err(|_| broken("a count"))?)))
    }

    /// The n-th child: its first key, and its page.
    fn branch(&self, n: usize) -> io::Result<(&[u8], u64)> {
        let at = HEADER + n * ELEMENT;
        let (position, key) = (u32_at(&self.0, at)? as usize, u32_at(&self.0, at + 4)? as usize);
        Ok((part(&self.0, at + position, key)?, u64_at(&self.0, at + 8)?))
    }

    /// The n-th key and its value.
    fn leaf(&self, n: usize) -> io::Result<(&[u8], &[u8])> {
        let at = HEADER + n * ELEMENT;
        let position = at + u32_at(&self.0, at + 4)? as usize;
        let (key, value) = (u32_at(&self.0, at + 8)? as usize, u32_at(&self.0, at + 12)? as usize);
        Ok((part(&self.0, position, key)?, part(&self.0, position + key, value)?))
    }
}

/// The number that a key or a value begins with.
fn number(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
}

fn part(bytes: &[u8], at: usize, length: usize) -> io::Result<&[u8]> {
    at.checked_add(length).and_then(|end| bytes.get(at..end)).ok_or_else(|| broken("something beyond its page"))
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    Ok(u32::from_le_bytes(part(bytes, at, 4)?.try_into().map_err(|_| broken("a number"))?))
}

fn u64_at(bytes: &[u8], at: usize) -> io::Result<u64> {
    Ok(u64::from_le_bytes(part(bytes, at, 8)?.try_into().map_err(|_| broken("a number"))?))
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}
