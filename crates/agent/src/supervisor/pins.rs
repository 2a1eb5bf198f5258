//! the SHA-256 that an admin pinned → which binaries may be installed and run.
//!
//! An operator may install pinned binaries only: otherwise a role that may restart a program could run any binary. Only
//! the agent writes the file; it is checked when bytes are installed, and again before each run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::files;
use crate::root::Root;
use crate::supervisor::binaries::{self, Binary, BinaryError, Wanted};
use crate::supervisor::hashed::file_digest;

/// The SHA-256 of every binary that may be run, by its name and version.
type Pinned = BTreeMap<String, String>;

/// Binaries that an agent without pins has installed may still be run: by the digests that it recorded. Once there is a
/// list, only the list counts.
pub fn begin(root: &Root) -> Result<(), BinaryError> {
    if files::read(&root.pins())?.is_some() {
        return Ok(());
    }
    pin(root, &binaries::recorded(root))
}

/// Adds to the binaries that may be run. Of one binary and version, the last pin counts.
pub fn pin(root: &Root, wanted: &[Wanted]) -> Result<(), BinaryError> {
    let mut pinned = read(root)?;
    pinned.extend(wanted.iter().map(|it| (key(it.binary(), it.version()), it.sha256().to_owned())));
    let text = serde_json::to_vec_pretty(&pinned).map_err(BinaryError::Pins)?;
    Ok(files::write(&root.pins(), &text, 0o600)?)
}

/// Whether these bytes may be installed.
pub fn check(root: &Root, wanted: &Wanted) -> Result<(), BinaryError> {
    let (binary, version) = (wanted.binary(), wanted.version().to_owned());
    match read(root)?.remove(&key(binary, &version)) {
        None => Err(BinaryError::NotPinned { binary, version }),
        Some(pinned) if pinned == wanted.sha256() => Ok(()),
        Some(pinned) => Err(BinaryError::OtherPin { binary, version, pinned, found: wanted.sha256().to_owned() }),
    }
}

/// The path of this version's binary, after its bytes match the pin; `None` when it is not installed.
///
/// All of it is read, some 20 ms for etcd, unless this process has read it and it is the same since.
pub fn verified(root: &Root, binary: Binary, version: &str) -> Result<Option<PathBuf>, BinaryError> {
    let Some(path) = binaries::path(root, binary, version)? else { return Ok(None) };
    let pinned = read(root)?.remove(&key(binary, version));
    let found = file_digest(&path)?.unwrap_or_default();
    match pinned {
        Some(pinned) if pinned == found => {
            binary.check_unpacked(&path, version)?;
            Ok(Some(path))
        }
        None => Err(BinaryError::NotPinned { binary, version: version.to_owned() }),
        Some(pinned) => Err(BinaryError::Swapped { path, binary, version: version.to_owned(), pinned, found }),
    }
}

fn key(binary: Binary, version: &str) -> String {
    format!("{binary} {version}")
}

fn read(root: &Root) -> Result<Pinned, BinaryError> {
    match files::read(&root.pins())? {
        Some(text) => serde_json::from_str(&text).map_err(BinaryError::Pins),
        None => Ok(Pinned::new()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use raftsman_api::hex;

    use super::*;
    use crate::supervisor::binaries::Download;

    fn wanted(binary: Binary, bytes: &[u8]) -> Wanted {
        Wanted::new(binary, "3.6.15", &hex::sha256(bytes)).expect("wanted")
    }

    fn install(root: &Root, wanted: &Wanted, bytes: &[u8]) {
        let mut download = Download::begin(root, wanted.clone()).expect("begin");
        download.write(bytes).expect("write");
        download.finish(root).expect("finish");
    }

    #[test]
    fn only_pinned_bytes_are_installed_and_run() {
        let (_dir, root) = Root::scratch();
        let (etcd, tool) = (wanted(Binary::Etcd, b"etcd"), wanted(Binary::Etcdutl, b"tool"));
        assert!(matches!(check(&root, &etcd), Err(BinaryError::NotPinned { .. })));
        pin(&root, std::slice::from_ref(&etcd)).expect("pinned");
        check(&root, &etcd).expect("may be installed");
        // A pin is for one binary and version.
        assert!(matches!(check(&root, &tool), Err(BinaryError::NotPinned { .. })));
        assert!(matches!(check(&root, &wanted(Binary::Etcd, b"evil")), Err(BinaryError::OtherPin { .. })));

        assert!(verified(&root, Binary::Etcd, "3.6.15").expect("not there").is_none());
        install(&root, &etcd, b"etcd");
        let path = verified(&root, Binary::Etcd, "3.6.15").expect("good").expect("there");

        // Swapped, with the record of its digest beside it.
        fs::write(&path, b"evil").expect("swapped");
        fs::write(path.with_extension("sha256"), hex::sha256(b"evil")).expect("swapped");
        let refused = verified(&root, Binary::Etcd, "3.6.15").expect_err("refused");
        assert!(matches!(refused, BinaryError::Swapped { .. }), "{refused}");
        // Installed without a pin: an agent with a list does not accept it.
        install(&root, &tool, b"tool");
        begin(&root).expect("there is a list");
        assert!(matches!(verified(&root, Binary::Etcdutl, "3.6.15"), Err(BinaryError::NotPinned { .. })));

        // By an earlier agent, which had no list.
        fs::remove_file(root.pins()).expect("removed");
        begin(&root).expect("a list");
        verified(&root, Binary::Etcdutl, "3.6.15").expect("good").expect("there");

        // A damaged list allows nothing.
        fs::write(root.pins(), "{").expect("damaged");
        assert!(matches!(check(&root, &etcd), Err(BinaryError::Pins(_))));
    }
}
