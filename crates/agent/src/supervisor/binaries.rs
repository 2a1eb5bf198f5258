//! a version's bytes → a binary of a program, installed beside its other versions, not started yet.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{self, SHA256};
use raftsman_api::hex;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::files::{self, FileError};
use crate::root::Root;
use crate::supervisor::bundle::{self, BundleError};
use crate::supervisor::hashed::file_digest;
use crate::supervisor::program::Program;

/// Why a binary was not installed, or is not run.
#[derive(Debug, thiserror::Error)]
pub enum BinaryError {
    /// An invalid version; it becomes a directory's name, so it must contain nothing else.
    #[error("`{0}` is not a version such as 3.6.15")]
    Version(String),
    /// A digest that is none.
    #[error("`{0}` is not a SHA-256 in hexadecimal")]
    Digest(String),
    /// A binary that no program has.
    #[error("`{0}` is none of the programs that are installed: etcd, etcdutl or patroni")]
    Unknown(String),
    /// Other bytes than were promised.
    #[error("{binary} {version}: the bytes have the SHA-256 {found}, expected was {expected}: nothing was installed")]
    OtherBytes {
        /// The binary.
        binary: Binary,
        /// The version.
        version: String,
        /// What was promised.
        expected: String,
        /// What came.
        found: String,
    },
    /// No admin has pinned it.
    #[error(
        "{binary} {version} is not pinned on this machine, and is neither installed nor run: an admin pins its SHA-256, \
         which `raftsman apply` does"
    )]
    NotPinned {
        /// The binary.
        binary: Binary,
        /// The version.
        version: String,
    },
    /// An admin has pinned other bytes.
    #[error(
        "{binary} {version}: the SHA-256 {found} is not the one that an admin pinned, {pinned}: nothing was installed"
    )]
    OtherPin {
        /// The binary.
        binary: Binary,
        /// The version.
        version: String,
        /// What was pinned.
        pinned: String,
        /// What was asked for.
        found: String,
    },
    /// What is installed was changed since.
    #[error(
        "{} has the SHA-256 {found}, not the {pinned} that an admin pinned for {binary} {version}: it was changed on this \
         machine, and is not run. Find out what changed it; then remove the file, and `raftsman apply` installs it \
         again", path.display()
    )]
    Swapped {
        /// Where.
        path: PathBuf,
        /// The binary.
        binary: Binary,
        /// The version.
        version: String,
        /// What was pinned.
        pinned: String,
        /// What is there.
        found: String,
    },
    /// The list of pins is damaged.
    #[error("agent/pinned.json is malformed: remove it, and `raftsman apply` pins what it installs again")]
    Pins(#[source] serde_json::Error),
    /// It is a bundle, and cannot be unpacked or run.
    #[error("{binary} {version}")]
    Bundle {
        /// The binary.
        binary: Binary,
        /// The version.
        version: String,
        /// Why.
        #[source]
        source: BundleError,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A binary of a program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// The server.
    Etcd,
    /// What makes data of a snapshot.
    Etcdutl,
    /// Patroni, a bundle.
    Patroni,
}

impl Binary {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Etcd, Self::Etcdutl, Self::Patroni];

    /// The binary of this name; etcd when none is given.
    pub fn new(name: &str) -> Result<Self, BinaryError> {
        match name {
            "" | "etcd" => Ok(Self::Etcd),
            "etcdutl" => Ok(Self::Etcdutl),
            "patroni" => Ok(Self::Patroni),
            other => Err(BinaryError::Unknown(other.to_owned())),
        }
    }

    /// The name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Etcdutl => "etcdutl",
            Self::Patroni => "patroni",
        }
    }

    /// The program that it belongs to; it is installed beside that program's versions.
    pub fn program(self) -> Program {
        match self {
            Self::Etcd | Self::Etcdutl => Program::Etcd,
            Self::Patroni => Program::Patroni,
        }
    }

    /// Whether it is a tar file, which is unpacked beside itself. Such a binary is alone in its version's directory.
    fn is_bundle(self) -> bool {
        match self {
            Self::Etcd | Self::Etcdutl => false,
            Self::Patroni => true,
        }
    }

    /// Whether what was unpacked of a bundle is still what it came with; of any other binary there is nothing to check.
    pub fn check_unpacked(self, path: &Path, version: &str) -> Result<(), BinaryError> {
        if !self.is_bundle() {
            return Ok(());
        }
        let checked = bundle::check(path, &[self.name(), &self.digest_file()]);
        checked.map_err(|source| BinaryError::Bundle { binary: self, version: version.to_owned(), source })
    }

    fn versions(self, root: &Root) -> PathBuf {
        self.program().files(root).versions()
    }

    fn digest_file(self) -> String {
        format!("{}.sha256", self.name())
    }
}

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A version to be installed, checked for form.
#[derive(Clone, Debug)]
pub struct Wanted {
    binary: Binary,
    version: String,
    sha256: String,
}

impl Wanted {
    /// Checks the form of both.
    pub fn new(binary: Binary, version: &str, sha256: &str) -> Result<Self, BinaryError> {
        let sha256 = sha256.to_ascii_lowercase();
        if sha256.len() != 64 || hex::decode(&sha256).is_none() {
            return Err(BinaryError::Digest(sha256));
        }
        Ok(Self { binary, version: checked_version(version)?.to_owned(), sha256 })
    }

    /// Which binary.
    pub fn binary(&self) -> Binary {
        self.binary
    }

    /// Which version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Which bytes, in hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Whether the version is installed, with exactly these bytes.
    pub fn is_installed(&self, root: &Root) -> Result<bool, BinaryError> {
        let dir = self.binary.versions(root).join(&self.version);
        if recorded_digest(&dir, self.binary).as_deref() != Some(self.sha256.as_str()) {
            return Ok(false);
        }
        let path = dir.join(self.binary.name());
        let same = file_digest(&path)?.as_deref() == Some(self.sha256.as_str());
        Ok(same && self.binary.check_unpacked(&path, &self.version).is_ok())
    }

    /// Installs from the machine's own artifacts; `false` when there is none with these bytes.
    pub fn install_artifact(&self, root: &Root) -> Result<bool, BinaryError> {
        let name = self.binary.name();
        for artifact in [root.artifact(name, &self.version), Root::image_artifact(name, &self.version)] {
            if !artifact.exists() {
                continue;
            }
            // Hashed at its new place, where nothing but a change of its bytes changes it any more.
            let incoming = Incoming::new(root, self)?;
            let target = incoming.dir.join(name);
            let executable = fs::metadata(&artifact).is_ok_and(|found| found.permissions().mode() & 0o555 == 0o555);
            if executable {
                link(&artifact, &target)?;
            } else {
                copy(&artifact, &target)?;
            }
            match file_digest(&target)? {
                Some(found) if found == self.sha256 => {
                    incoming.finish(root, self)?;
                    return Ok(true);
                }
                found => {
                    let (place, found) = (artifact.display(), found.unwrap_or_default());
                    tracing::warn!(%place, found, "the artifact has other bytes than asked for: not used");
                }
            }
        }
        Ok(false)
    }
}

/// A version that is being received. Dropped before its end, it leaves nothing.
pub struct Download {
    wanted: Wanted,
    incoming: Incoming,
    file: File,
    digest: digest::Context,
}

impl Download {
    /// Nothing has come yet.
    pub fn begin(root: &Root, wanted: Wanted) -> Result<Self, BinaryError> {
        let incoming = Incoming::new(root, &wanted)?;
        let path = incoming.dir.join(wanted.binary.name());
        let file = files::create(&path, 0o755).map_err(FileError::of("create", &path))?;
        Ok(Self { wanted, incoming, file, digest: digest::Context::new(&SHA256) })
    }

    /// Some bytes more.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BinaryError> {
        self.digest.update(bytes);
        let path = &self.incoming.dir;
        Ok(self.file.write_all(bytes).map_err(FileError::of("write the download in", path))?)
    }

    /// All bytes have arrived: checks them and installs the version.
    pub fn finish(self, root: &Root) -> Result<(), BinaryError> {
        let found = hex::encode(self.digest.finish().as_ref());
        if found != self.wanted.sha256 {
            let Wanted { binary, version, sha256: expected } = self.wanted;
            return Err(BinaryError::OtherBytes { binary, version, expected, found });
        }
        self.incoming.finish(root, &self.wanted)
    }
}

/// A version's directory before it has its final name.
struct Incoming {
    dir: PathBuf,
}

impl Incoming {
    fn new(root: &Root, wanted: &Wanted) -> Result<Self, BinaryError> {
        let dir = files::beside(&wanted.binary.versions(root).join(&wanted.version));
        files::make_dir(&dir, 0o755)?;
        Ok(Self { dir })
    }

    fn finish(self, root: &Root, wanted: &Wanted) -> Result<(), BinaryError> {
        let binary = self.dir.join(wanted.binary.name());
        let settle = || -> io::Result<()> {
            if fs::metadata(&binary)?.permissions().mode() & 0o111 == 0 {
                fs::set_permissions(&binary, fs::Permissions::from_mode(0o755))?;
            }
            File::open(&binary)?.sync_all()
        };
        settle().map_err(FileError::of("settle", &binary))?;
        files::write(&self.dir.join(wanted.binary.digest_file()), wanted.sha256.as_bytes(), 0o644)?;
        if wanted.binary.is_bundle() {
            let failed = |source| {
                let (binary, version) = (wanted.binary, wanted.version.clone());
                BinaryError::Bundle { binary, version, source }
            };
            bundle::unpack(&binary).map_err(failed)?;
        }
        let target = wanted.binary.versions(root).join(&wanted.version);
        if target.exists() {
            // Another binary, or other bytes under the same version. A running program keeps its own file; the
            // directory is dropped with the old content.
            let others = !wanted.binary.is_bundle();
            for entry in fs::read_dir(&target).map_err(FileError::of("list", &target))?.flatten() {
                let ours = self.dir.join(entry.file_name());
                if others && !ours.exists() {
                    link(&entry.path(), &ours)?;
                }
            }
            renameat_with(CWD, &self.dir, CWD, &target, RenameFlags::EXCHANGE)
                .map_err(|error| FileError::of("replace", &target)(error.into()))?;
        } else {
            fs::rename(&self.dir, &target).map_err(FileError::of("install", &target))?;
        }
        Ok(files::sync_parent(&target)?)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Already renamed when the installation succeeded; otherwise a leftover does no harm.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A hard link costs no space, but shares content and mode with the source: where a link is impossible, the bytes are
/// copied into a file that is provably new.
fn link(from: &Path, to: &Path) -> Result<(), FileError> {
    if fs::hard_link(from, to).is_ok() { Ok(()) } else { copy(from, to) }
}

fn copy(from: &Path, to: &Path) -> Result<(), FileError> {
    let copy = || -> io::Result<()> { io::copy(&mut File::open(from)?, &mut files::create(to, 0o755)?).map(drop) };
    copy().map_err(FileError::of("copy", from))
}

/// Removes what an interrupted installation left.
pub fn clean(root: &Root, program: Program) {
    let leftovers = fs::read_dir(program.files(root).versions()).into_iter().flatten().flatten();
    for entry in leftovers.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b".")) {
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// The versions of a binary that are installed, with their digests.
pub fn installed(root: &Root, binary: Binary) -> Vec<(String, String)> {
    let entries = fs::read_dir(binary.versions(root)).into_iter().flatten().flatten();
    let mut found: Vec<(String, String)> = entries
        .filter_map(|entry| {
            let version = entry.file_name().into_string().ok()?;
            checked_version(&version).ok()?;
            let dir = entry.path();
            dir.join(binary.name()).is_file().then_some(())?;
            Some((version, recorded_digest(&dir, binary)?))
        })
        .collect();
    found.sort();
    found
}

/// All binaries that are installed, with the digests that were recorded at their installation.
pub fn recorded(root: &Root) -> Vec<Wanted> {
    let of_binary = |binary: Binary| {
        let entries = fs::read_dir(binary.versions(root)).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let version = entry.file_name().into_string().ok()?;
            Wanted::new(binary, &version, recorded_digest(&entry.path(), binary)?.trim()).ok()
        })
    };
    Binary::ALL.into_iter().flat_map(of_binary).collect()
}

/// Whether this version of a binary can be started.
pub fn has(root: &Root, binary: Binary, version: &str) -> bool {
    path(root, binary, version).is_ok_and(|found| found.is_some())
}

/// Where this version of a binary is; `None` when it is not installed.
pub fn path(root: &Root, binary: Binary, version: &str) -> Result<Option<PathBuf>, BinaryError> {
    let path = binary.versions(root).join(checked_version(version)?).join(binary.name());
    Ok(path.is_file().then_some(path))
}

/// The version of a program that the next start uses.
pub fn current(root: &Root, program: Program) -> Option<String> {
    let target = fs::read_link(program.files(root).current()).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// Chooses the version of a program that the next start uses.
pub fn choose(root: &Root, program: Program, version: &str) -> Result<(), BinaryError> {
    let version = checked_version(version)?;
    if current(root, program).as_deref() == Some(version) {
        return Ok(());
    }
    Ok(files::point(&program.files(root).current(), &Path::new("versions").join(version))?)
}

fn checked_version(version: &str) -> Result<&str, BinaryError> {
    let (numbers, suffix) = version.split_once('-').map_or((version, None), |(numbers, rest)| (numbers, Some(rest)));
    let parts: Vec<&str> = numbers.split('.').collect();
    let number = |part: &&str| (1..=5).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    let fits = |rest: &str| {
        (1..=32).contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.')
    };
    if parts.len() == 3 && parts.iter().all(number) && suffix.is_none_or(fits) {
        Ok(version)
    } else {
        Err(BinaryError::Version(version.to_owned()))
    }
}

fn recorded_digest(dir: &Path, binary: Binary) -> Option<String> {
    fs::read_to_string(dir.join(binary.digest_file())).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn versions_are_not_paths() {
        for good in ["3.6.15", "3.7.0-rc.1", "3.4.45"] {
            assert!(checked_version(good).is_ok(), "{good}");
        }
        for bad in ["", "3.6", "../3.6.1", "3.6.1/..", "3.6.1-", "v3.6.1", "3.6.1-../x", ".3.6"] {
            assert!(checked_version(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn artifact_is_linked_when_its_bytes_fit() {
        let (_dir, root) = Root::scratch();
        let wanted = Wanted::new(Binary::Etcd, "3.6.15", &hex::sha256(b"binary")).expect("wanted");
        assert!(!wanted.install_artifact(&root).expect("no artifact"));
        let artifact = root.artifact("etcd", "3.6.15");
        files::make_dir(artifact.parent().expect("parent"), 0o755).expect("dir");
        files::write(&artifact, b"other", 0o755).expect("write");
        assert!(!wanted.install_artifact(&root).expect("other bytes"));
        files::write(&artifact, b"binary", 0o755).expect("write");
        assert!(wanted.install_artifact(&root).expect("install"));
        assert!(wanted.is_installed(&root).expect("look"));
        let linked = fs::metadata(Binary::Etcd.versions(&root).join("3.6.15/etcd")).expect("metadata");
        assert_eq!(linked.ino(), fs::metadata(&artifact).expect("metadata").ino());
        assert_eq!(installed(&root, Binary::Etcd), [("3.6.15".to_owned(), hex::sha256(b"binary"))]);
    }

    #[test]
    fn download_is_checked() {
        let (_dir, root) = Root::scratch();
        let wanted = Wanted::new(Binary::Etcd, "3.6.15", &hex::sha256(b"binary")).expect("wanted");
        let mut download = Download::begin(&root, wanted.clone()).expect("begin");
        download.write(b"binbry").expect("write");
        assert!(matches!(download.finish(&root), Err(BinaryError::OtherBytes { .. })));
        assert!(installed(&root, Binary::Etcd).is_empty());
        let mut download = Download::begin(&root, wanted.clone()).expect("begin");
        download.write(b"bin").expect("write");
        download.write(b"ary").expect("write");
        download.finish(&root).expect("finish");
        assert!(wanted.is_installed(&root).expect("look"));
        let mode =
            fs::metadata(Binary::Etcd.versions(&root).join("3.6.15/etcd")).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        // Other bytes under the same version replace it.
        let other = Wanted::new(Binary::Etcd, "3.6.15", &hex::sha256(b"fixed")).expect("wanted");
        let mut download = Download::begin(&root, other.clone()).expect("begin");
        download.write(b"fixed").expect("write");
        download.finish(&root).expect("finish");
        assert!(other.is_installed(&root).expect("look"));
        // Another program is installed beside it, and each is replaced independently.
        let tool = Wanted::new(Binary::Etcdutl, "3.6.15", &hex::sha256(b"tool")).expect("wanted");
        for (wanted, bytes) in [(&tool, "tool"), (&wanted, "binary")] {
            assert!(!wanted.is_installed(&root).expect("look"));
            let mut download = Download::begin(&root, wanted.clone()).expect("begin");
            download.write(bytes.as_bytes()).expect("write");
            download.finish(&root).expect("finish");
        }
        assert!(tool.is_installed(&root).expect("look") && wanted.is_installed(&root).expect("look"));
        assert_eq!(installed(&root, Binary::Etcd), [("3.6.15".to_owned(), hex::sha256(b"binary"))]);
        assert_eq!(fs::read_dir(Binary::Etcd.versions(&root)).expect("list").count(), 1, "no leftovers");
    }
}
