//! Bytes that arrive → a file that exists once it is complete and synced, readable by its owner only.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::fleet::directory_of;

/// Written under another name until it is complete. Dropped before that, it leaves nothing.
#[derive(Debug)]
pub struct Arriving {
    file: NamedTempFile,
    path: PathBuf,
}

impl Arriving {
    /// Creates the temporary file, and the directory of the final one.
    pub fn begin(path: &Path) -> io::Result<Self> {
        let dir = directory_of(path);
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let file =
            tempfile::Builder::new().prefix(".tmp-").permissions(Permissions::from_mode(0o600)).tempfile_in(dir)?;
        Ok(Self { file, path: dir.join(path.file_name().unwrap_or_default()) })
    }

    /// A second handle, for a writer on another thread.
    pub fn writer(&self) -> io::Result<File> {
        self.file.as_file().try_clone()
    }

    /// All of it is there.
    pub fn keep(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist(&self.path).map_err(|error| error.error)?;
        File::open(self.path.parent().unwrap_or(&self.path)).and_then(|dir| dir.sync_all())
    }
}

impl Write for Arriving {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
