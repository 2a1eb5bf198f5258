//! For tests: states that earlier versions wrote → copies of them, with the modes that a state has.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A state as raftsman wrote it before there were locks of single stacks: one cluster of one member, applied once.
pub(crate) fn of_format_2() -> (TempDir, PathBuf) {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir(to).unwrap();
        fs::set_permissions(to, Permissions::from_mode(0o700)).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
            if from.is_dir() {
                copy(&from, &to);
            } else {
                fs::copy(&from, &to).unwrap();
                fs::set_permissions(&to, Permissions::from_mode(0o600)).unwrap();
            }
        }
    }
    let scratch = TempDir::new().unwrap();
    let dir = scratch.path().join("state");
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/fixtures/format-2"), &dir);
    (scratch, dir)
}
