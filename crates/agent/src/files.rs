//! path, bytes, mode → a file that exists completely or not at all, also after a power failure.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::digest::{Context, SHA256};
use raftsman_api::hex;

/// The mode of a file that a program reads and other users do not. Where the program has a user of its own, the
/// directory above sets the group; elsewhere it is the agent's own user, below a directory that no other user may
/// enter.
pub const FOR_PROGRAM: u32 = 0o640;
/// The same of a directory: what is made in it later has its group.
pub const DIR_FOR_PROGRAM: u32 = 0o2750;

static NEXT: AtomicU64 = AtomicU64::new(0);

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

impl FileError {
    /// For `map_err`: names what was tried on which path.
    pub fn of<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |source| Self { action, path: path.to_path_buf(), source }
    }
}

/// A unique name beside `path`; it starts with a dot so that leftovers are distinguishable from real files.
pub fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{name}.{}-{number}.tmp", std::process::id()))
}

/// Removes leftovers of killed writes below a directory, except below those of `not_in`.
pub fn remove_unfinished(dir: &Path, not_in: &[&Path]) -> Result<(), FileError> {
    for entry in fs::read_dir(dir).map_err(FileError::of("list", dir))?.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if name.starts_with(b".") && name.ends_with(b".tmp") {
            let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(FileError::of("remove", &path))?;
        } else if is_dir && !not_in.contains(&path.as_path()) {
            remove_unfinished(&path, not_in)?;
        }
    }
    Ok(())
}

/// Replaces the file's whole content in one step.
pub fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    let temporary = beside(path);
    let written = create(&temporary, mode)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .map_err(FileError::of("write", &temporary));
    let renamed = written.and_then(|()| fs::rename(&temporary, path).map_err(FileError::of("replace", path)));
    if let Err(error) = renamed {
        // The first error is the one to report; a leftover does no harm.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_parent(path)
}

/// A new file that no other process could open before its mode was set.
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    // The umask may have removed bits.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    Ok(file)
}

/// Makes a directory and those above it; an existing one keeps its content and gets the mode.
pub fn make_dir(path: &Path, mode: u32) -> Result<(), FileError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(FileError::of("make the directory", path))
}

/// Points a symbolic link elsewhere in one step.
pub fn point(link: &Path, target: &Path) -> Result<(), FileError> {
    let temporary = beside(link);
    std::os::unix::fs::symlink(target, &temporary).map_err(FileError::of("make the link", &temporary))?;
    if let Err(error) = fs::rename(&temporary, link).map_err(FileError::of("replace the link", link)) {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_parent(link)
}

/// Makes a rename in the directory above `path` durable.
pub fn sync_parent(path: &Path) -> Result<(), FileError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(FileError::of("sync the directory", parent))
}

/// The file's text; `None` when there is no such file.
pub fn read(path: &Path) -> Result<Option<String>, FileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::of("read", path)(error)),
    }
}

/// Removes a file; whether there was one.
pub fn remove(path: &Path) -> Result<bool, FileError> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(FileError::of("remove", path)(error)),
    }
}

/// Removes a directory with all that is in it; fine when there is none.
pub fn remove_dir(path: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::of("remove", path)(error)),
        _ => Ok(()),
    }
}

/// The last lines of a file, at most so many bytes, not looking before the offset `from`.
pub fn tail(path: &Path, lines: usize, bytes: u64, from: u64) -> Result<Vec<String>, FileError> {
    let read = || -> io::Result<Vec<String>> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        let length = file.metadata()?.len();
        let start = length.saturating_sub(bytes).max(from.min(length));
        file.seek(SeekFrom::Start(start))?;
        let mut content = Vec::new();
        file.take(bytes).read_to_end(&mut content)?;
        let text = String::from_utf8_lossy(&content);
        let mut found: Vec<&str> = text.lines().collect();
        if start > from && found.len() > 1 {
            // The first one is most likely cut in the middle.
            found.remove(0);
        }
        let skip = found.len().saturating_sub(lines);
        Ok(found[skip..].iter().map(|line| (*line).to_owned()).collect())
    };
    read().map_err(FileError::of("read", path))
}

/// The SHA-256 of an open file, from where it is to its end, without all of it in memory.
pub fn digest(file: &mut File, path: &Path) -> Result<String, FileError> {
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match file.read(&mut buffer).map_err(FileError::of("read", path))? {
            0 => return Ok(hex::encode(context.finish().as_ref())),
            count => context.update(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_whole_with_its_mode() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("secret");
        write(&path, b"one", 0o600).expect("write");
        write(&path, b"two", 0o600).expect("write");
        assert_eq!(read(&path).expect("read").as_deref(), Some("two"));
        let mode = fs::metadata(&path).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 1, "no leftovers");
        assert!(read(&dir.path().join("none")).expect("read").is_none());
    }

    #[test]
    fn tail_is_bounded() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("log");
        let text: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        fs::write(&path, &text).expect("write");
        assert_eq!(tail(&path, 2, 1 << 20, 0).expect("tail"), ["line 998", "line 999"]);
        let cut = tail(&path, 1000, 100, 0).expect("tail");
        assert!(cut.len() < 12 && cut.iter().all(|line| line.starts_with("line 9")), "{cut:?}");
        let from = u64::try_from(text.len()).expect("length");
        assert!(tail(&path, 10, 1 << 20, from).expect("tail").is_empty());
        assert!(tail(&dir.path().join("none"), 1, 1, 0).expect("tail").is_empty());
    }
}
