//! the segments of a write-ahead log → its last entry, and what it says is committed.
//!
//! Read as etcd itself reads it when it starts: up to the zeros at the end of a segment, or up to the first incomplete
//! record. Only while etcd does not run.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::{Fields, Value, segments};

const ENTRY: u64 = 2;
const STATE: u64 = 3;
const CHECKSUM: u64 = 4;
const SNAPSHOT: u64 = 5;
/// Of an entry only the beginning is of interest: term and index come before the data.
const HEAD: usize = 64;
const BUFFER: usize = 64 * 1024;

/// Where a log ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The term of the last entry.
    pub term: u64,
    /// The index of the last entry.
    pub index: u64,
    /// The last index that the member knew to be committed.
    pub commit: u64,
}

/// Where the log in this data directory ends. All zero when nothing of it can be read.
pub fn end(data: &Path) -> End {
    let mut all = Seen::default();
    // Every segment begins with the state as it was, so most often the newest one is enough.
    for segment in segments(&data.join("member/wal")).unwrap_or_default().iter().rev() {
        let Ok(file) = File::open(segment) else { continue };
        let length = file.metadata().map_or(0, |found| found.len());
        let seen = scan(&mut BufReader::with_capacity(BUFFER, file), length);
        all = Seen {
            entry: all.entry.or(seen.entry),
            commit: all.commit.or(seen.commit),
            snapshot: all.snapshot.or(seen.snapshot),
        };
        if all.entry.is_some() && all.commit.is_some() {
            break;
        }
    }
    let commit = all.commit.unwrap_or_default();
    let entry = all.entry.unwrap_or_default();
    // A member that was sent a snapshot has no entries before it. One beyond the commit is not valid: etcd was
    // interrupted before it took it over.
    let snapshot = all.snapshot.filter(|found| found.index <= commit).unwrap_or_default();
    let last = if snapshot.index > entry.index { snapshot } else { entry };
    End { term: last.term, index: last.index, commit }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    term: u64,
    index: u64,
}

/// The last of each kind in a segment. A later entry replaces those from its index on, so the last one is the end.
#[derive(Debug, Default)]
struct Seen {
    entry: Option<Position>,
    commit: Option<u64>,
    snapshot: Option<Position>,
}

fn scan(reader: &mut impl Read, length: u64) -> Seen {
    let mut seen = Seen::default();
    let mut checksum = 0;
    let mut left = length;
    // Everything that cannot be read is the end: zeros, a torn record, the end of the file.
    while let Ok(Some(record)) = Record::read(reader, &mut left, checksum) {
        if record.kind == CHECKSUM {
            // It carries the sum over all segments before.
            checksum = record.said;
            continue;
        }
        if record.said != record.sum {
            break;
        }
        checksum = record.sum;
        let head = &record.head[..record.head_length];
        match record.kind {
            ENTRY => seen.entry = numbers(head, [2, 3]).map(position).or(seen.entry),
            STATE => seen.commit = numbers(head, [3, 3]).map(|[commit, _]| commit).or(seen.commit),
            SNAPSHOT => seen.snapshot = numbers(head, [2, 1]).map(position).or(seen.snapshot),
            _ => {}
        }
    }
    seen
}

fn position([term, index]: [u64; 2]) -> Position {
    Position { term, index }
}

/// The values of these two fields of a message that is only read in part.
fn numbers(head: &[u8], wanted: [u64; 2]) -> Option<[u64; 2]> {
    let mut found = [None; 2];
    for field in Fields(head) {
        // Cut off in the middle, where the data begins.
        let Some((tag, value)) = field else { break };
        if let Value::Number(number) = value {
            for (wanted, found) in wanted.iter().zip(&mut found) {
                if tag == *wanted {
                    *found = Some(number);
                }
            }
        }
    }
    Some([found[0]?, found[1]?])
}

struct Record {
    kind: u64,
    /// The checksum that the record carries.
    said: u32,
    /// The checksum with this record's data.
    sum: u32,
    head: [u8; HEAD],
    head_length: usize,
}

impl Record {
    /// The next record; `None` where the segment ends. Never holds more than a buffer of it.
    fn read(reader: &mut impl Read, left: &mut u64, checksum: u32) -> io::Result<Option<Self>> {
        let mut length = [0; 8];
        reader.read_exact(&mut length)?;
        let field = u64::from_le_bytes(length);
        let size = field & 0x00ff_ffff_ffff_ffff;
        let padding = if field >> 63 == 1 { (field >> 56) & 7 } else { 0 };
        *left = left.saturating_sub(8);
        if size == 0 || size + padding > *left {
            return Ok(None);
        }
        *left -= size + padding;
        let mut rest = reader.take(size);
        let mut record = Self { kind: 0, said: 0, sum: checksum, head: [0; HEAD], head_length: 0 };
        while rest.limit() > 0 {
            match number(&mut rest)? {
                0x08 => record.kind = number(&mut rest)?,
                0x10 => record.said = u32::try_from(number(&mut rest)?).map_err(io::Error::other)?,
                0x1a => {
                    let length = number(&mut rest)?;
                    record.take_data(&mut (&mut rest).take(length))?;
                }
                _ => return Ok(None),
            }
        }
        io::copy(&mut reader.take(padding), &mut io::sink())?;
        Ok(Some(record))
    }

    fn take_data(&mut self, data: &mut impl Read) -> io::Result<()> {
        let mut buffer = [0; 8 * 1024];
        loop {
            let count = data.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            let bytes = &buffer[..count];
            self.sum = castagnoli(self.sum, bytes);
            let room = (HEAD - self.head_length).min(count);
            self.head[self.head_length..self.head_length + room].copy_from_slice(&bytes[..room]);
            self.head_length += room;
        }
    }
}

fn number(reader: &mut impl Read) -> io::Result<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        reader.read_exact(&mut byte)?;
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(value);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0x82f6_3b78 } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

/// CRC-32C, continued from the sum of what came before.
fn castagnoli(sum: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!sum, |sum, byte| TABLE[usize::from(sum.to_le_bytes()[0] ^ byte)] ^ (sum >> 8))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Segment {
        bytes: Vec<u8>,
        sum: u32,
    }

    fn put(out: &mut Vec<u8>, mut number: u64) {
        while number >= 0x80 {
            out.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
    }

    impl Segment {
        fn new(before: u32) -> Self {
            let mut segment = Self { bytes: Vec::new(), sum: before };
            segment.frame(CHECKSUM, None);
            segment.record(1, &[0x08, 9, 0x10, 7]);
            segment
        }

        fn frame(&mut self, kind: u64, data: Option<&[u8]>) {
            let mut record = vec![0x08];
            put(&mut record, kind);
            record.push(0x10);
            put(&mut record, self.sum.into());
            if let Some(data) = data {
                record.push(0x1a);
                put(&mut record, data.len() as u64);
                record.extend_from_slice(data);
            }
            let padding = (8 - record.len() % 8) % 8;
            let mut field = record.len() as u64;
            if padding != 0 {
                field |= (0x80 | padding as u64) << 56;
            }
            self.bytes.extend(field.to_le_bytes());
            self.bytes.extend(record);
            self.bytes.extend(std::iter::repeat_n(0, padding));
        }

        fn record(&mut self, kind: u64, data: &[u8]) {
            self.sum = castagnoli(self.sum, data);
            self.frame(kind, Some(data));
        }

        fn entry(&mut self, term: u64, index: u64, payload: usize) {
            let mut data = vec![0x08, 0, 0x10];
            put(&mut data, term);
            data.push(0x18);
            put(&mut data, index);
            data.push(0x22);
            put(&mut data, payload as u64);
            data.extend(std::iter::repeat_n(0x5a, payload));
            self.record(ENTRY, &data);
        }

        fn state(&mut self, term: u64, commit: u64) {
            let mut data = vec![0x08];
            put(&mut data, term);
            data.extend([0x10, 9, 0x18]);
            put(&mut data, commit);
            self.record(STATE, &data);
        }

        fn snapshot(&mut self, term: u64, index: u64) {
            let mut data = vec![0x08];
            put(&mut data, index);
            data.push(0x10);
            put(&mut data, term);
            self.record(SNAPSHOT, &data);
        }

        fn end(&self) -> End {
            ends(&[&self.bytes])
        }
    }

    fn ends(segments: &[&[u8]]) -> End {
        let dir = tempfile::tempdir().expect("dir");
        let wal = dir.path().join("member/wal");
        fs::create_dir_all(&wal).expect("dir");
        for (number, bytes) in segments.iter().enumerate() {
            fs::write(wal.join(format!("{number:016x}-{number:016x}.wal")), bytes).expect("write");
        }
        fs::write(wal.join("0.tmp"), "what etcd has in store").expect("write");
        end(dir.path())
    }

    #[test]
    fn known_sum() {
        assert_eq!(castagnoli(0, b"123456789"), 0xe306_9283);
        assert_eq!(castagnoli(castagnoli(0, b"1234"), b"56789"), 0xe306_9283);
    }

    #[test]
    fn the_last_entry_counts() {
        let mut segment = Segment::new(0);
        assert_eq!(segment.end(), End::default());
        segment.entry(1, 1, 3);
        segment.state(1, 1);
        segment.entry(1, 2, 0);
        segment.entry(1, 300, 100_000);
        assert_eq!(segment.end(), End { term: 1, index: 300, commit: 1 });
        // Another leader replaced entries that were not committed.
        segment.entry(4, 2, 10);
        segment.state(4, 2);
        assert_eq!(segment.end(), End { term: 4, index: 2, commit: 2 });
    }

    #[test]
    fn zeros_and_torn_records_are_the_end() {
        let mut segment = Segment::new(0);
        segment.state(2, 4);
        segment.entry(2, 5, 1000);
        let whole = segment.bytes.len();
        segment.entry(2, 6, 5000);
        let before = End { term: 2, index: 5, commit: 4 };
        let mut filled = segment.bytes.clone();
        filled.resize(1 << 20, 0);
        assert_eq!(ends(&[&filled]), End { index: 6, ..before });
        for cut in (whole..segment.bytes.len()).step_by(97) {
            assert_eq!(ends(&[&segment.bytes[..cut]]), before, "cut at {cut}");
            // The disk wrote the rest of the record as zeros.
            let mut torn = segment.bytes[..cut].to_vec();
            torn.resize(1 << 16, 0);
            assert_eq!(ends(&[&torn]), before, "torn at {cut}");
        }
    }

    #[test]
    fn older_segments_are_asked_where_the_newest_does_not_say() {
        let mut old = Segment::new(0);
        old.entry(3, 9, 1);
        old.state(3, 9);
        let mut new = Segment::new(old.sum);
        new.state(3, 9);
        assert_eq!(ends(&[&old.bytes, &new.bytes]), End { term: 3, index: 9, commit: 9 });
        assert_eq!(ends(&[&old.bytes, b"junk"]), End { term: 3, index: 9, commit: 9 });
        // A snapshot was sent, but its state was not written; then it was.
        new.snapshot(5, 50);
        assert_eq!(ends(&[&old.bytes, &new.bytes]), End { term: 3, index: 9, commit: 9 });
        new.state(5, 50);
        assert_eq!(ends(&[&old.bytes, &new.bytes]), End { term: 5, index: 50, commit: 50 });
        new.entry(6, 51, 1);
        assert_eq!(ends(&[&old.bytes, &new.bytes]), End { term: 6, index: 51, commit: 50 });
    }

    #[test]
    fn damage_is_no_panic() {
        let mut segment = Segment::new(0);
        segment.state(2, 4);
        segment.entry(2, 5, 10);
        for position in 0..segment.bytes.len() {
            for bit in 0..8 {
                let mut damaged = segment.bytes.clone();
                damaged[position] ^= 1 << bit;
                let _ = scan(&mut damaged.as_slice(), damaged.len() as u64);
            }
        }
    }
}
