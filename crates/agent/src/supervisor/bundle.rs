//! a program's bundle, one tar file → its files, unpacked beside it; and whether they are still those of the bundle.
//!
//! An admin has pinned the bytes of a bundle. Even so, nothing in it is written outside of its directory.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Component, Path, PathBuf};

use tar::{Archive, EntryType};

use crate::files::{self, FileError};

/// The bytes of all files together. Patroni's bundle has 7 MB.
const MOST_BYTES: u64 = 128 << 20;
/// Files and directories. Patroni's bundle has 550.
const MOST_ENTRIES: usize = 10_000;

/// Why a bundle was not unpacked, or is not run.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Something that raftsman does not put into a bundle.
    #[error("the bundle's entry `{entry}` {problem}: nothing was installed")]
    Entry {
        /// Its path in the bundle.
        entry: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Too much.
    #[error("the bundle has more than {} MiB or {MOST_ENTRIES} entries: nothing was installed", MOST_BYTES >> 20)]
    TooLarge,
    /// Not a tar file.
    #[error("the bundle {} cannot be read as a tar file", path.display())]
    Malformed {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The unpacked files were changed.
    #[error(
        "{} is not what the pinned bundle has there: it was changed on this machine, and the bundle is not run. Find out \
         what changed it; then remove the directory of this version, and `raftsman apply` installs it again", path.display()
    )]
    Changed {
        /// Where.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Unpacks a bundle into the directory that it is in.
pub fn unpack(bundle: &Path) -> Result<(), BundleError> {
    let dir = bundle.parent().unwrap_or(Path::new("/"));
    each(bundle, &mut |path, content| {
        let target = dir.join(path);
        let written = match content {
            None => return Ok(files::make_dir(&target, 0o755)?),
            Some(bytes) => files::create(&target, 0o644).and_then(|mut file| file.write_all(bytes)),
        };
        Ok(written.map_err(FileError::of("unpack", &target))?)
    })
    .map(drop)
}

/// Whether the files beside a bundle are exactly its own. `besides` are names in its directory that are not.
pub fn check(bundle: &Path, besides: &[&str]) -> Result<(), BundleError> {
    let dir = bundle.parent().unwrap_or(Path::new("/"));
    let known = each(bundle, &mut |path, content| {
        let target = dir.join(path);
        // Of what is there itself: a link would lead elsewhere.
        let same = fs::symlink_metadata(&target).is_ok_and(|found| match content {
            None => found.is_dir(),
            Some(bytes) => {
                let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                found.is_file() && found.len() == length && fs::read(&target).is_ok_and(|read| read == bytes)
            }
        });
        if same { Ok(()) } else { Err(BundleError::Changed { path: target }) }
    })?;
    // A file more would be loaded as well.
    let mut waiting = vec![PathBuf::new()];
    while let Some(below) = waiting.pop() {
        let listed = dir.join(&below);
        for entry in fs::read_dir(&listed).map_err(FileError::of("list", &listed))? {
            let entry = entry.map_err(FileError::of("list", &listed))?;
            let path = below.join(entry.file_name());
            if besides.iter().any(|name| path == Path::new(name)) {
                continue;
            }
            if !known.contains(&path) {
                return Err(BundleError::Changed { path: entry.path() });
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(path);
            }
        }
    }
    Ok(())
}

type Visit<'a> = &'a mut dyn FnMut(&Path, Option<&[u8]>) -> Result<(), BundleError>;

/// Every directory and file of a bundle, each checked; returns their paths.
fn each(bundle: &Path, visit: Visit<'_>) -> Result<BTreeSet<PathBuf>, BundleError> {
    let file = File::open(bundle).map_err(FileError::of("open", bundle))?;
    if file.metadata().map_err(FileError::of("look at", bundle))?.len() > MOST_BYTES {
        return Err(BundleError::TooLarge);
    }
    let malformed = |source| BundleError::Malformed { path: bundle.to_path_buf(), source };
    let mut archive = Archive::new(file);
    let mut known = BTreeSet::new();
    let mut total = 0;
    for entry in archive.entries().map_err(malformed)? {
        let mut entry = entry.map_err(malformed)?;
        let shown = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let wrong = |problem| BundleError::Entry { entry: shown.clone(), problem };
        let path = entry.path().map_err(malformed)?.into_owned();
        let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_below || path.as_os_str().is_empty() {
            return Err(wrong("is not a path below the bundle's directory"));
        }
        let kind = entry.header().entry_type();
        if kind != EntryType::Regular && kind != EntryType::Directory {
            return Err(wrong("is neither a file nor a directory"));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if parent.is_some_and(|parent| !known.contains(parent)) {
            return Err(wrong("is in a directory that the bundle does not have before it"));
        }
        total += entry.size();
        if total > MOST_BYTES || known.len() >= MOST_ENTRIES {
            return Err(BundleError::TooLarge);
        }
        if kind == EntryType::Directory {
            visit(&path, None)?;
        } else {
            let mut bytes = Vec::new();
            entry.by_ref().take(MOST_BYTES).read_to_end(&mut bytes).map_err(malformed)?;
            visit(&path, Some(&bytes))?;
        }
        if !known.insert(path) {
            return Err(wrong("is there twice"));
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tar::{Builder, Header};

    use super::*;

    fn bundle(dir: &Path, entries: &[(&str, EntryType, &[u8])]) -> PathBuf {
        let mut builder = Builder::new(Vec::new());
        for (path, kind, bytes) in entries {
            let mut header = Header::new_ustar();
            // Not by `set_path`, which refuses what is tested here.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(bytes.len() as u64);
            header.set_mode(0o4777);
            if matches!(kind, EntryType::Symlink | EntryType::Link) {
                header.set_link_name("/etc/passwd").expect("a link");
            }
            header.set_cksum();
            builder.append(&header, *bytes).expect("an entry");
        }
        let path = dir.join("patroni");
        fs::write(&path, builder.into_inner().expect("a bundle")).expect("write");
        path
    }

    #[test]
    fn nothing_is_unpacked_outside_of_its_directory() {
        let cases: [(&str, EntryType, &str); 9] = [
            ("../outside", EntryType::Regular, "is not a path below"),
            ("/tmp/raftsman-outside", EntryType::Regular, "is not a path below"),
            ("site/../../outside", EntryType::Regular, "is not a path below"),
            ("./start.py", EntryType::Regular, "is not a path below"),
            ("link", EntryType::Symlink, "is neither a file nor a directory"),
            ("link", EntryType::Link, "is neither a file nor a directory"),
            ("device", EntryType::Block, "is neither a file nor a directory"),
            ("pipe", EntryType::Fifo, "is neither a file nor a directory"),
            ("nowhere/start.py", EntryType::Regular, "is in a directory that the bundle does not have"),
        ];
        for (path, kind, why) in cases {
            let above = tempfile::tempdir().expect("dir");
            let dir = above.path().join("4.1.5");
            fs::create_dir(&dir).expect("dir");
            let refused = unpack(&bundle(&dir, &[(path, kind, b"")])).expect_err(path);
            assert!(refused.to_string().contains(why), "{path}: {refused}");
            assert_eq!(fs::read_dir(above.path()).expect("list").count(), 1, "{path}");
            assert_eq!(fs::read_dir(&dir).expect("list").count(), 1, "{path}");
            assert!(!Path::new("/tmp/raftsman-outside").exists());
        }
        let dir = tempfile::tempdir().expect("dir");
        let twice = [("a", EntryType::Regular, &b"1"[..]), ("a", EntryType::Regular, b"2")];
        unpack(&bundle(dir.path(), &twice)).expect_err("the same file twice");
        let dir = tempfile::tempdir().expect("dir");
        fs::write(dir.path().join("patroni"), b"no tar file").expect("write");
        unpack(&dir.path().join("patroni")).expect_err("no tar file");
    }

    #[test]
    fn every_change_of_an_unpacked_file_shows() {
        let entries = [
            ("site/", EntryType::Directory, &b""[..]),
            ("site/a.py", EntryType::Regular, b"import os\n"),
            ("start.py", EntryType::Regular, b"run\n"),
        ];
        let unpacked = || {
            let dir = tempfile::tempdir().expect("dir");
            let path = bundle(dir.path(), &entries);
            fs::write(dir.path().join("patroni.sha256"), b"00").expect("write");
            unpack(&path).expect("unpacked");
            check(&path, &["patroni", "patroni.sha256"]).expect("as it came");
            (dir, path)
        };
        let changes: [fn(&Path); 6] = [
            |dir| fs::write(dir.join("start.py"), b"ran\n").expect("write"),
            |dir| fs::remove_file(dir.join("site/a.py")).expect("remove"),
            |dir| fs::write(dir.join("site/os.py"), b"").expect("write"),
            |dir| fs::create_dir(dir.join("site/os")).expect("a directory"),
            |dir| symlink("/etc", dir.join("more")).expect("a link"),
            |dir| {
                fs::rename(dir.join("start.py"), dir.join("patroni.sha256")).expect("move");
                symlink("patroni.sha256", dir.join("start.py")).expect("a link");
            },
        ];
        for change in changes {
            let (dir, path) = unpacked();
            change(dir.path());
            let refused = check(&path, &["patroni", "patroni.sha256"]).expect_err("changed");
            assert!(matches!(refused, BundleError::Changed { .. }), "{refused}");
        }
    }
}
