//! `source:` and `version:` of a cluster → a verified etcd binary, and its SHA-256.
//!
//! All of it blocks (it hashes files and runs `etcd --version`): call it off the async runtime.

mod agent;
mod archive;
mod bundle;
mod download;
mod error;
mod probe;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use raftsman_core::desired::Shipped;
use raftsman_core::spec::{Archive, EtcdVersion, Source};

pub use bundle::PatroniBundle;
pub use download::DownloadError;
pub use error::ArtifactError;

/// A binary that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// What it says it is.
    pub version: EtcdVersion,
    /// Where it is.
    pub path: PathBuf,
    /// Its SHA-256, in hexadecimal digits.
    pub sha256: String,
}

/// A file's identity; another one means that the file has changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Identity {
    path: PathBuf,
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// What was learnt of a file.
#[derive(Debug, Clone)]
struct Known {
    version: EtcdVersion,
    sha256: String,
}

/// The version of the etcd binary in this file.
pub fn version_of(path: &Path) -> Result<EtcdVersion, ArtifactError> {
    probe::version(path)
}

/// Files that this process has run and hashed: one that did not change is not examined again, however many clusters and
/// parts of a command use it.
#[derive(Debug, Clone, Default)]
pub struct Examined {
    etcd: Arc<Mutex<HashMap<Identity, Known>>>,
    agents: Arc<Mutex<HashMap<Identity, AgentExamined>>>,
}

/// What was found out about a file of the agent; empty while it is being examined.
type AgentExamined = Arc<OnceLock<Option<Shipped>>>;

impl Examined {
    /// The program that every machine should run; none where the file is missing, or is no agent.
    pub(crate) fn shipped(&self, path: &Path) -> Option<Shipped> {
        let identity = Identity::of(path, &fs::metadata(path).ok()?);
        let agent = Arc::clone(self.agents.lock().unwrap_or_else(PoisonError::into_inner).entry(identity).or_default());
        agent.get_or_init(|| agent::shipped(path)).clone()
    }

    /// Begins to examine the agent's program while the caller goes on.
    pub(crate) fn begin_shipped(&self, path: &Path) -> thread::JoinHandle<Option<Shipped>> {
        let (this, path) = (self.clone(), path.to_owned());
        thread::spawn(move || this.shipped(&path))
    }
}

/// Finds binaries.
#[derive(Debug, Clone)]
pub struct Artifacts {
    cache_dir: PathBuf,
    examined: Examined,
}

impl Artifacts {
    /// `cache_dir` is where the binaries out of archives are kept; it is made when it is needed.
    pub fn new(cache_dir: PathBuf, examined: Examined) -> Self {
        Self { cache_dir, examined }
    }

    /// Downloads what has to be downloaded for this version, unless it is there.
    pub async fn fetch(&self, source: &Source, version: EtcdVersion) -> Result<(), ArtifactError> {
        match source {
            Source::Archive(Archive { url: Some(url), sha256, .. }) => {
                let sha256 = sha256.of(version).ok_or(ArtifactError::NoHash { version })?;
                // Once it is unpacked, the archive is not needed any more.
                if archive::unpacked(sha256, version, &self.cache_dir)?.exists() {
                    return Ok(());
                }
                Box::pin(download::fetch(&Archive::at(url, version), sha256, &self.cache_dir)).await
            }
            Source::Archive(_) | Source::Path | Source::File(_) | Source::Directory(_) | Source::Package(_) => Ok(()),
        }
    }

    /// As [`Self::locate`], off the runtime: the binary is hashed and run.
    pub async fn found(&self, source: &Source, version: EtcdVersion, base: &Path) -> Result<Artifact, ArtifactError> {
        let (this, source, base) = (self.clone(), source.clone(), base.to_owned());
        tokio::task::spawn_blocking(move || this.locate(&source, version, &base)).await?
    }

    /// As [`Self::tool`], off the runtime.
    pub async fn found_tool(
        &self,
        source: &Source,
        version: EtcdVersion,
        base: &Path,
    ) -> Result<Artifact, ArtifactError> {
        let (this, source, base) = (self.clone(), source.clone(), base.to_owned());
        tokio::task::spawn_blocking(move || this.tool(&source, version, &base)).await?
    }

    /// Finds the binary that a source names, relative to `base_dir`, and checks that it is of this version.
    pub fn locate(&self, source: &Source, version: EtcdVersion, base_dir: &Path) -> Result<Artifact, ArtifactError> {
        let search = std::env::var_os("PATH").unwrap_or_default();
        self.locate_with(source, version, base_dir, &search)
    }

    /// Whether `fetch` and `locate` would find the binary, as far as it can be known without downloading or unpacking.
    pub fn check(&self, source: &Source, version: EtcdVersion, base_dir: &Path) -> Result<(), ArtifactError> {
        let Source::Archive(archive) = source else { return self.locate(source, version, base_dir).map(|_| ()) };
        let sha256 = archive.sha256.of(version).ok_or(ArtifactError::NoHash { version })?;
        if archive::unpacked(sha256, version, &self.cache_dir)?.exists() {
            return self.locate(source, version, base_dir).map(|_| ());
        }
        match &archive.file {
            Some(file) => archive::check(&base_dir.join(Archive::at(file, version)), sha256),
            None => Ok(()),
        }
    }

    /// Finds the tool that restores snapshots: beside etcd, as releases have it, or on the PATH.
    pub fn tool(&self, source: &Source, version: EtcdVersion, base_dir: &Path) -> Result<Artifact, ArtifactError> {
        let beside = archive::tool_beside(&self.locate(source, version, base_dir)?.path);
        let search = std::env::var_os("PATH").unwrap_or_default();
        let path = Some(beside.clone()).filter(|path| path.exists()).or_else(|| program(&search, "etcdutl"));
        let path = path.ok_or(ArtifactError::NoTool { beside, version })?;
        let sha256 = probe::sha256(&path)?;
        Ok(Artifact { version, path, sha256 })
    }

    fn locate_with(
        &self,
        source: &Source,
        version: EtcdVersion,
        base_dir: &Path,
        search: &OsStr,
    ) -> Result<Artifact, ArtifactError> {
        let path = match source {
            Source::Path => on_path(search, version)?,
            Source::File(file) => base_dir.join(file),
            Source::Directory(directory) => {
                let directory = base_dir.join(directory);
                let path = directory.join(version.to_string()).join("etcd");
                if !path.exists() {
                    let there = versions_in(&directory);
                    return Err(ArtifactError::NotInDirectory { directory, version, there });
                }
                path
            }
            Source::Package(package) => in_package(package)?,
            Source::Archive(archive) => {
                let sha256 = archive.sha256.of(version).ok_or(ArtifactError::NoHash { version })?;
                let path = match &archive.file {
                    Some(file) => base_dir.join(Archive::at(file, version)),
                    None => download::place(sha256, &self.cache_dir),
                };
                archive::unpack(&path, sha256, version, &self.cache_dir)?
            }
        };
        let known = self.examine(&path)?;
        if known.version != version {
            let advice = advice(source, known.version);
            return Err(ArtifactError::WrongVersion { path, found: known.version, wanted: version, advice });
        }
        Ok(Artifact { version, path, sha256: known.sha256 })
    }

    fn examine(&self, path: &Path) -> Result<Known, ArtifactError> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ArtifactError::NoSuchFile { path: path.to_owned() });
            }
            Err(source) => return Err(ArtifactError::Unreadable { path: path.to_owned(), source }),
        };
        if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
            return Err(ArtifactError::NotExecutable { path: path.to_owned() });
        }
        let identity = Identity::of(path, &metadata);
        let known = self.examined.etcd.lock().unwrap_or_else(PoisonError::into_inner).get(&identity).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        // Outside of the lock, so that other callers do not wait. At worst the same file is hashed twice.
        let (sha256, version) = thread::scope(|scope| {
            let version = scope.spawn(|| probe::version(path));
            (probe::sha256(path), version.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        let known = Known { sha256: sha256?, version: version? };
        self.examined.etcd.lock().unwrap_or_else(PoisonError::into_inner).insert(identity, known.clone());
        Ok(known)
    }
}

impl Identity {
    fn of(path: &Path, metadata: &Metadata) -> Self {
        Self {
            path: path.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

fn on_path(search: &OsStr, version: EtcdVersion) -> Result<PathBuf, ArtifactError> {
    program(search, "etcd").ok_or(ArtifactError::NotOnPath { version })
}

fn program(search: &OsStr, name: &str) -> Option<PathBuf> {
    // Relative entries depend on the current directory, so they are skipped.
    std::env::split_paths(search)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|path| fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0))
}

/// The versions that a source holds beside the one that the file names: only a directory shows them.
pub fn available(source: &Source, base_dir: &Path) -> Vec<EtcdVersion> {
    match source {
        Source::Directory(directory) => versions_in(&base_dir.join(directory)),
        Source::Path | Source::File(_) | Source::Package(_) | Source::Archive(_) => Vec::new(),
    }
}

fn versions_in(directory: &Path) -> Vec<EtcdVersion> {
    let mut versions: Vec<_> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().join("etcd").exists())
        .filter_map(|entry| EtcdVersion::parse(entry.file_name().to_str()?).ok())
        .collect();
    versions.sort();
    versions
}

fn in_package(package: &str) -> Result<PathBuf, ArtifactError> {
    let name = || package.to_owned();
    // A name that begins with a dash would be an option.
    let good = package.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && package.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.:".contains(&byte));
    if !good {
        return Err(ArtifactError::PackageName { package: name() });
    }
    let listed = Command::new("dpkg-query")
        .args(["-L", package])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| ArtifactError::NoDpkg { source })?;
    if !listed.status.success() {
        return Err(ArtifactError::NotInstalled { package: name() });
    }
    etcd_among(&String::from_utf8_lossy(&listed.stdout)).ok_or_else(|| ArtifactError::NotInPackage { package: name() })
}

/// Of the files that a package installed, directories and documentation among them, the program.
fn etcd_among(files: &str) -> Option<PathBuf> {
    files.lines().map(Path::new).find(|path| path.ends_with("bin/etcd") && path.is_file()).map(Path::to_owned)
}

/// What to write in the file, or to do, so that source and version agree.
fn advice(source: &Source, found: EtcdVersion) -> String {
    let other = match source {
        Source::Path => "install the other version, or name it with `source:`",
        Source::File(_) => "name another binary with `source: {file: …}`",
        Source::Directory(_) => "put the right binary there",
        Source::Package(_) => "install the other version of the package",
        Source::Archive(_) => "name the archive of the other version",
    };
    format!("write `version: {found}`, or {other}")
}
