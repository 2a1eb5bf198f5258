//! a version's bytes, a configuration → etcd installed and configured, not yet started.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{self, SHA256};
use raftsman_api::hex;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::files::{self, FileError};
use crate::root::Root;

pub mod bootstrap;
pub mod data;
pub mod db;
pub mod handshake;
pub mod restore;
pub mod restore_test;
pub mod wal;

const DIGEST_COMMENT: &str = "# raftsman: config ";

/// Why etcd was not installed or configured.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// A version that is none; it becomes a directory's name, so it must not say anything else.
    #[error("`{0}` is not a version such as 3.6.15")]
    Version(String),
    /// A digest that is none.
    #[error("`{0}` is not a SHA-256 in hexadecimal")]
    Digest(String),
    /// A program that is none of etcd's.
    #[error("`{0}` is none of etcd's programs: etcd or etcdutl")]
    Program(String),
    /// Other bytes than were promised.
    #[error("{program} {version}: the bytes have the SHA-256 {found}, expected was {expected}: nothing was installed")]
    OtherBytes {
        /// The program.
        program: Program,
        /// The version.
        version: String,
        /// What was promised.
        expected: String,
        /// What came.
        found: String,
    },
    /// No admin vouches for it.
    #[error(
        "{program} {version} is not pinned on this machine, and is neither installed nor run: an admin pins its SHA-256, \
         which `raftsman apply` does"
    )]
    NotPinned {
        /// The program.
        program: Program,
        /// The version.
        version: String,
    },
    /// An admin vouches for other bytes.
    #[error(
        "{program} {version}: the SHA-256 {found} is not the one that an admin pinned, {pinned}: nothing was installed"
    )]
    OtherPin {
        /// The program.
        program: Program,
        /// The version.
        version: String,
        /// What was pinned.
        pinned: String,
        /// What was asked for.
        found: String,
    },
    /// What is installed was changed since.
    #[error(
        "{} has the SHA-256 {found}, not the {pinned} that an admin pinned for {program} {version}: it was changed on this \
         machine, and is not run. Find out by whom; then remove the file, and `raftsman apply` installs it again", path.display()
    )]
    Swapped {
        /// Where.
        path: PathBuf,
        /// The program.
        program: Program,
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
    /// A configuration other than was promised.
    #[error("the configuration's SHA-256 is {found}, the call says {expected}: nothing was written")]
    OtherConfig {
        /// What was promised.
        expected: String,
        /// What came.
        found: String,
    },
    /// A first start without a word about the cluster.
    #[error(
        "etcd has no data, and nothing says which cluster it is born into: send the lines of its birth, or configure \
         `initial-cluster-state`"
    )]
    NoBootstrap,
    /// Two words about the cluster.
    #[error(
        "the configuration says itself how etcd is born (`initial-cluster-state`): configure it without, or send no birth"
    )]
    TwoBootstraps,
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A program of etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The server.
    Etcd,
    /// What makes data of a snapshot.
    Etcdutl,
}

impl Program {
    /// The program of this name; the server when none is given.
    pub fn new(name: &str) -> Result<Self, EtcdError> {
        match name {
            "" | "etcd" => Ok(Self::Etcd),
            "etcdutl" => Ok(Self::Etcdutl),
            other => Err(EtcdError::Program(other.to_owned())),
        }
    }

    /// The name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Etcdutl => "etcdutl",
        }
    }

    fn digest_file(self) -> String {
        format!("{}.sha256", self.name())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A version to be installed, checked for form.
#[derive(Clone, Debug)]
pub struct Wanted {
    program: Program,
    version: String,
    sha256: String,
}

impl Wanted {
    /// Checks the form of both.
    pub fn new(program: Program, version: &str, sha256: &str) -> Result<Self, EtcdError> {
        let sha256 = sha256.to_ascii_lowercase();
        if sha256.len() != 64 || hex::decode(&sha256).is_none() {
            return Err(EtcdError::Digest(sha256));
        }
        Ok(Self { program, version: checked_version(version)?.to_owned(), sha256 })
    }

    /// Which program.
    pub fn program(&self) -> Program {
        self.program
    }

    /// Which version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Which bytes, in hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Whether the version is there, with exactly these bytes.
    pub fn is_installed(&self, root: &Root) -> Result<bool, EtcdError> {
        let dir = root.versions().join(&self.version);
        if recorded_digest(&dir, self.program).as_deref() != Some(self.sha256.as_str()) {
            return Ok(false);
        }
        Ok(file_digest(&dir.join(self.program.name()))?.as_deref() == Some(self.sha256.as_str()))
    }

    /// Installs from the machine's own artifacts; `false` when there is none with these bytes.
    pub fn install_artifact(&self, root: &Root) -> Result<bool, EtcdError> {
        let name = self.program.name();
        for artifact in [root.artifact(name, &self.version), Root::image_artifact(name, &self.version)] {
            match file_digest(&artifact)? {
                Some(found) if found == self.sha256 => {
                    self.install_file(root, &artifact)?;
                    return Ok(true);
                }
                Some(found) => {
                    let place = artifact.display();
                    tracing::warn!(%place, found, "the artifact has other bytes than asked for: not used");
                }
                None => {}
            }
        }
        Ok(false)
    }

    fn install_file(&self, root: &Root, artifact: &Path) -> Result<(), EtcdError> {
        let incoming = Incoming::new(root, self)?;
        let target = incoming.dir.join(self.program.name());
        let executable = fs::metadata(artifact).is_ok_and(|found| found.permissions().mode() & 0o555 == 0o555);
        if executable {
            link(artifact, &target)?;
        } else {
            copy(artifact, &target)?;
        }
        incoming.finish(root, self)
    }
}

/// A version that comes over the wire. Dropped before its end, it leaves nothing.
pub struct Download {
    wanted: Wanted,
    incoming: Incoming,
    file: File,
    digest: digest::Context,
}

impl Download {
    /// Nothing has come yet.
    pub fn begin(root: &Root, wanted: Wanted) -> Result<Self, EtcdError> {
        let incoming = Incoming::new(root, &wanted)?;
        let path = incoming.dir.join(wanted.program.name());
        let file = files::create(&path, 0o755).map_err(FileError::of("create", &path))?;
        Ok(Self { wanted, incoming, file, digest: digest::Context::new(&SHA256) })
    }

    /// Some bytes more.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), EtcdError> {
        self.digest.update(bytes);
        let path = &self.incoming.dir;
        Ok(self.file.write_all(bytes).map_err(FileError::of("write the download in", path))?)
    }

    /// All bytes are there: checks them and installs the version.
    pub fn finish(self, root: &Root) -> Result<(), EtcdError> {
        let found = hex::encode(self.digest.finish().as_ref());
        if found != self.wanted.sha256 {
            let Wanted { program, version, sha256: expected } = self.wanted;
            return Err(EtcdError::OtherBytes { program, version, expected, found });
        }
        self.incoming.finish(root, &self.wanted)
    }
}

/// A version's directory before it has its final name.
struct Incoming {
    dir: PathBuf,
}

impl Incoming {
    fn new(root: &Root, wanted: &Wanted) -> Result<Self, EtcdError> {
        let dir = files::beside(&root.versions().join(&wanted.version));
        files::make_dir(&dir, 0o755)?;
        Ok(Self { dir })
    }

    fn finish(self, root: &Root, wanted: &Wanted) -> Result<(), EtcdError> {
        let binary = self.dir.join(wanted.program.name());
        let settle = || -> io::Result<()> {
            if fs::metadata(&binary)?.permissions().mode() & 0o111 == 0 {
                fs::set_permissions(&binary, fs::Permissions::from_mode(0o755))?;
            }
            File::open(&binary)?.sync_all()
        };
        settle().map_err(FileError::of("settle", &binary))?;
        files::write(&self.dir.join(wanted.program.digest_file()), wanted.sha256.as_bytes(), 0o644)?;
        let target = root.versions().join(&wanted.version);
        if target.exists() {
            // Another program, or other bytes under the same version. A running etcd keeps its own file; the directory is
            // dropped with the old content.
            for entry in fs::read_dir(&target).map_err(FileError::of("list", &target))?.flatten() {
                let ours = self.dir.join(entry.file_name());
                if !ours.exists() {
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
        // Gone already when the installation succeeded; otherwise a leftover harms nothing.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A hard link costs no space, but shares content and mode with the source: where there can be none, a copy goes into a
/// file that is provably new.
fn link(from: &Path, to: &Path) -> Result<(), FileError> {
    if fs::hard_link(from, to).is_ok() { Ok(()) } else { copy(from, to) }
}

fn copy(from: &Path, to: &Path) -> Result<(), FileError> {
    let copy = || -> io::Result<()> { io::copy(&mut File::open(from)?, &mut files::create(to, 0o755)?).map(drop) };
    copy().map_err(FileError::of("copy", from))
}

/// Removes what an interrupted installation left.
pub fn clean(root: &Root) {
    let leftovers = fs::read_dir(root.versions()).into_iter().flatten().flatten();
    for entry in leftovers.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b".")) {
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// The versions that are installed, with their digests.
pub fn installed(root: &Root) -> Vec<(String, String)> {
    let entries = fs::read_dir(root.versions()).into_iter().flatten().flatten();
    let mut found: Vec<(String, String)> = entries
        .filter_map(|entry| {
            let version = entry.file_name().into_string().ok()?;
            checked_version(&version).ok()?;
            let dir = entry.path();
            dir.join(Program::Etcd.name()).is_file().then_some(())?;
            Some((version, recorded_digest(&dir, Program::Etcd)?))
        })
        .collect();
    found.sort();
    found
}

/// All programs that are installed, by the digests that were written down when they were.
pub fn recorded(root: &Root) -> Vec<Wanted> {
    let entries = fs::read_dir(root.versions()).into_iter().flatten().flatten();
    let versions = entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    let programs = versions.flat_map(|(version, dir)| {
        [Program::Etcd, Program::Etcdutl]
            .into_iter()
            .filter_map(move |program| Wanted::new(program, &version, recorded_digest(&dir, program)?.trim()).ok())
    });
    programs.collect()
}

/// Whether this version can be started.
pub fn has(root: &Root, version: &str) -> bool {
    program(root, Program::Etcd, version).is_ok_and(|found| found.is_some())
}

/// Where this version of a program is; `None` when it is not installed.
pub fn program(root: &Root, program: Program, version: &str) -> Result<Option<PathBuf>, EtcdError> {
    let path = root.versions().join(checked_version(version)?).join(program.name());
    Ok(path.is_file().then_some(path))
}

/// The version that the next start uses.
pub fn current(root: &Root) -> Option<String> {
    let target = fs::read_link(root.current()).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// Chooses the version that the next start uses.
pub fn choose(root: &Root, version: &str) -> Result<(), EtcdError> {
    let version = checked_version(version)?;
    if current(root).as_deref() == Some(version) {
        return Ok(());
    }
    Ok(files::point(&root.current(), &Path::new("versions").join(version))?)
}

/// Writes etcd's configuration. Its digest stands in the file's first line, so that the two cannot part. What the last
/// start added stays: a birth that was tried is not yet over.
pub fn configure(root: &Root, config: &str, expected: &str) -> Result<(), EtcdError> {
    let found = hex::sha256(config.as_bytes());
    if found != expected.to_ascii_lowercase() {
        return Err(EtcdError::OtherConfig { expected: expected.to_owned(), found });
    }
    let rooted = config.replace("{root}", &root.path().display().to_string());
    let text = format!("{DIGEST_COMMENT}{found}\n{rooted}");
    let old = files::read(&root.config())?.unwrap_or_default();
    write_config(root, &bootstrap::reconfigured(&text, &old))
}

/// etcd's configuration file as it is, with the digest of the text as sent.
pub fn configuration(root: &Root) -> Result<Option<(String, String)>, EtcdError> {
    let Some(text) = files::read(&root.config())? else { return Ok(None) };
    let digest = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix(DIGEST_COMMENT))
        // Somebody else's file: a digest that no plan expects.
        .map_or_else(|| hex::sha256(bootstrap::split(&text).0.as_bytes()), ToOwned::to_owned);
    Ok(Some((digest, text)))
}

/// The text that `configure` was given, out of the file that it wrote.
pub fn as_sent(root: &Root, text: &str) -> String {
    let (configured, _) = bootstrap::split(text);
    let configured = match configured.split_once('\n') {
        Some((first, rest)) if first.starts_with(DIGEST_COMMENT) => rest,
        _ => configured,
    };
    configured.replace(&root.path().display().to_string(), "{root}")
}

/// Replaces etcd's configuration file.
pub fn write_config(root: &Root, text: &str) -> Result<(), EtcdError> {
    Ok(files::write(&root.config(), text.as_bytes(), files::FOR_ETCD)?)
}

fn checked_version(version: &str) -> Result<&str, EtcdError> {
    let (numbers, suffix) = version.split_once('-').map_or((version, None), |(numbers, rest)| (numbers, Some(rest)));
    let parts: Vec<&str> = numbers.split('.').collect();
    let number = |part: &&str| (1..=5).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    let fits = |rest: &str| {
        (1..=32).contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.')
    };
    if parts.len() == 3 && parts.iter().all(number) && suffix.is_none_or(fits) {
        Ok(version)
    } else {
        Err(EtcdError::Version(version.to_owned()))
    }
}

fn recorded_digest(dir: &Path, program: Program) -> Option<String> {
    fs::read_to_string(dir.join(program.digest_file())).ok()
}

pub(crate) fn file_digest(path: &Path) -> Result<Option<String>, FileError> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(FileError::of("open", path))?,
    };
    let mut context = digest::Context::new(&SHA256);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match file.read(&mut buffer).map_err(FileError::of("read", path))? {
            0 => return Ok(Some(hex::encode(context.finish().as_ref()))),
            count => context.update(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().expect("dir");
        let root = Root::open(dir.path()).expect("root");
        root.prepare().expect("prepare");
        (dir, root)
    }

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
        let (_dir, root) = root();
        let wanted = Wanted::new(Program::Etcd, "3.6.15", &hex::sha256(b"binary")).expect("wanted");
        assert!(!wanted.install_artifact(&root).expect("no artifact"));
        let artifact = root.artifact("etcd", "3.6.15");
        files::make_dir(artifact.parent().expect("parent"), 0o755).expect("dir");
        files::write(&artifact, b"other", 0o755).expect("write");
        assert!(!wanted.install_artifact(&root).expect("other bytes"));
        files::write(&artifact, b"binary", 0o755).expect("write");
        assert!(wanted.install_artifact(&root).expect("install"));
        assert!(wanted.is_installed(&root).expect("look"));
        let linked = fs::metadata(root.versions().join("3.6.15/etcd")).expect("metadata");
        assert_eq!(linked.ino(), fs::metadata(&artifact).expect("metadata").ino());
        assert_eq!(installed(&root), [("3.6.15".to_owned(), hex::sha256(b"binary"))]);
    }

    #[test]
    fn download_is_checked() {
        let (_dir, root) = root();
        let wanted = Wanted::new(Program::Etcd, "3.6.15", &hex::sha256(b"binary")).expect("wanted");
        let mut download = Download::begin(&root, wanted.clone()).expect("begin");
        download.write(b"binbry").expect("write");
        assert!(matches!(download.finish(&root), Err(EtcdError::OtherBytes { .. })));
        assert!(installed(&root).is_empty());
        let mut download = Download::begin(&root, wanted.clone()).expect("begin");
        download.write(b"bin").expect("write");
        download.write(b"ary").expect("write");
        download.finish(&root).expect("finish");
        assert!(wanted.is_installed(&root).expect("look"));
        let mode = fs::metadata(root.versions().join("3.6.15/etcd")).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        // Other bytes under the same version replace it.
        let other = Wanted::new(Program::Etcd, "3.6.15", &hex::sha256(b"fixed")).expect("wanted");
        let mut download = Download::begin(&root, other.clone()).expect("begin");
        download.write(b"fixed").expect("write");
        download.finish(&root).expect("finish");
        assert!(other.is_installed(&root).expect("look"));
        // Another program goes beside it, and each is replaced by itself.
        let tool = Wanted::new(Program::Etcdutl, "3.6.15", &hex::sha256(b"tool")).expect("wanted");
        for (wanted, bytes) in [(&tool, "tool"), (&wanted, "binary")] {
            assert!(!wanted.is_installed(&root).expect("look"));
            let mut download = Download::begin(&root, wanted.clone()).expect("begin");
            download.write(bytes.as_bytes()).expect("write");
            download.finish(&root).expect("finish");
        }
        assert!(tool.is_installed(&root).expect("look") && wanted.is_installed(&root).expect("look"));
        assert_eq!(installed(&root), [("3.6.15".to_owned(), hex::sha256(b"binary"))]);
        assert_eq!(fs::read_dir(root.versions()).expect("list").count(), 1, "no leftovers");
    }

    #[test]
    fn configuration_keeps_its_digest() {
        let (_dir, root) = root();
        assert!(configuration(&root).expect("read").is_none());
        let config = "data-dir: {root}/etcd/data\n";
        assert!(configure(&root, config, "00").is_err());
        configure(&root, config, &hex::sha256(config.as_bytes())).expect("write");
        let (digest, text) = configuration(&root).expect("read").expect("some");
        assert_eq!(digest, hex::sha256(config.as_bytes()));
        assert!(text.contains(&format!("data-dir: {}/etcd/data\n", root.path().display())));
        assert_eq!(as_sent(&root, &text), config);
        assert_eq!(as_sent(&root, "name: somebody's own\n"), "name: somebody's own\n");
    }
}
