//! a file → its SHA-256, computed once for as long as the file stays the same.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::files::{self, FileError};

/// The kernel's clock of files advances in ticks of up to this length: what is written within one does not show.
const TICK: Duration = Duration::from_millis(10);

/// What this process has read, all of it. A start of etcd follows its installation, and both would read it.
static HASHED: LazyLock<Mutex<HashMap<Stamp, String>>> = LazyLock::new(Mutex::default);

/// What differs after every change of a file's content: no call sets the time of the last change of an
/// inode.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }

    /// Whether a later change is certain to have another time.
    fn is_past(&self, now: SystemTime) -> bool {
        let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(self.changed.0), u32::try_from(self.changed.1)) else {
            return false;
        };
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        now.duration_since(changed).is_ok_and(|since| since > TICK)
    }
}

/// The SHA-256 of this file, in hexadecimal; `None` when there is no such file.
pub(crate) fn file_digest(path: &Path) -> Result<Option<String>, FileError> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(FileError::of("open", path))?,
    };
    let stamp = |file: &File| Ok(Stamp::of(&file.metadata().map_err(FileError::of("look at", path))?));
    let before = stamp(&file)?;
    let known = HASHED.lock().unwrap_or_else(PoisonError::into_inner).get(&before).cloned();
    if known.is_some() {
        return Ok(known);
    }
    let digest = files::digest(&mut file, path)?;
    // Read while it was changed, or so shortly before that another change might not show: the next caller reads it again.
    if stamp(&file)? == before && before.is_past(SystemTime::now()) {
        HASHED.lock().unwrap_or_else(PoisonError::into_inner).insert(before, digest.clone());
    }
    Ok(Some(digest))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread::sleep;

    use raftsman_api::hex;
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

    use super::*;

    #[test]
    fn every_change_shows_also_one_that_hides_its_time() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("etcd");
        assert_eq!(file_digest(&path).expect("nothing there"), None);
        let mut known = false;
        for content in [b"one", b"two", b"six"] {
            let written = fs::metadata(&path).ok();
            fs::write(&path, content).expect("write");
            if let Some(before) = written {
                let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
                let modified = time(before.mtime(), before.mtime_nsec());
                let times = Timestamps { last_access: modified, last_modification: modified };
                utimensat(CWD, &path, &times, AtFlags::empty()).expect("as if it had not been written");
            }
            assert_eq!(file_digest(&path).expect("readable"), Some(hex::sha256(content)));
            sleep(TICK * 3);
            assert_eq!(file_digest(&path).expect("readable"), Some(hex::sha256(content)));
            let stamp = Stamp::of(&fs::metadata(&path).expect("there"));
            known |= HASHED.lock().expect("no panic").contains_key(&stamp);
        }
        assert!(known, "it is remembered");
    }
}
