//! The file `journal.jsonl` → one line of JSON for each entry, synced to the disk before the next step begins.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::files;
use crate::store::{Entry, Filter, StoreError};

pub(super) fn append(path: &Path, entries: &[Entry]) -> Result<(), StoreError> {
    let failed = || StoreError::io("write", path);
    let mut lines = Vec::new();
    for entry in entries {
        let encoded = serde_json::to_writer(&mut lines, entry);
        encoded.map_err(|source| StoreError::Encode { place: path.into(), source })?;
        lines.push(b'\n');
    }
    let new = !path.exists();
    let mut file =
        OpenOptions::new().read(true).append(true).create(true).mode(files::PRIVATE).open(path).map_err(failed())?;
    // Not every process that appends a line holds the state's lock: lines must not interleave.
    file.lock().map_err(StoreError::io("lock", path))?;
    repair(&mut file).map_err(failed())?;
    file.write_all(&lines).map_err(failed())?;
    file.sync_data().map_err(failed())?;
    if new { files::sync_parent(path) } else { Ok(()) }
}

/// A process that is killed while it writes leaves half a line at the end. It was never acknowledged, so it is removed.
fn repair(file: &mut File) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut end = length;
    let mut tail = Vec::new();
    const BLOCK: u64 = 4096;
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let mut block = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        Read::by_ref(file).take(end - start).read_to_end(&mut block)?;
        if let Some(position) = block.iter().rposition(|byte| *byte == b'\n') {
            tail.splice(0..0, block.drain(position + 1..));
            break;
        }
        tail.splice(0..0, block);
        end = start;
    }
    if tail.is_empty() {
        return Ok(());
    }
    if serde_json::from_slice::<Entry>(&tail).is_ok() {
        // Only the line break is missing.
        return file.write_all(b"\n");
    }
    file.set_len(length - tail.len() as u64)
}

pub(super) fn read(path: &Path, filter: &Filter) -> Result<Vec<Entry>, StoreError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::io("read", path)(error)),
    };
    let mut reader = BufReader::new(file);
    let mut entries = VecDeque::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(StoreError::io("read", path))? == 0 {
            break;
        }
        let entry: Entry = match serde_json::from_slice(&line) {
            Ok(entry) => entry,
            // Torn, or just being written.
            Err(_) if !line.ends_with(b"\n") => break,
            Err(error) => return Err(StoreError::damaged(path, format!("line {number}: {error}"))),
        };
        if filter.cluster.is_some() && filter.cluster != entry.cluster {
            continue;
        }
        entries.push_back(entry);
        if filter.last.is_some_and(|last| entries.len() > last) {
            entries.pop_front();
        }
    }
    Ok(entries.into())
}
