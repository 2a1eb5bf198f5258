//! What can be wrong with a binary → a message that says what to do.

use std::io;
use std::path::PathBuf;

use raftsman_core::spec::{EtcdVersion, PatroniVersion};

use super::DownloadError;

/// Why there is no binary to install.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// A task ended abnormally: a bug of ours.
    #[error("a task of raftsman ended abnormally, which is a bug: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// Nothing on the PATH.
    #[error(
        "etcd is not on the PATH; install it (Debian: apt install etcd-server), or say in the file where it is: \
         `source: {{archive: {{file: etcd-v{version}-linux-amd64.tar.gz, sha256: …}}}}`, `source: {{file: …}}` or \
         `source: {{directory: …}}`"
    )]
    NotOnPath {
        /// What was looked for.
        version: EtcdVersion,
    },
    /// The tool that restores snapshots is missing.
    #[error(
        "{} does not exist, nor is etcdutl on the PATH: it makes data of a database, and comes with every release of \
         etcd from 3.5 on: put it beside etcd {version}",
        beside.display()
    )]
    NoTool {
        /// Where it was looked for.
        beside: PathBuf,
        /// For which version.
        version: EtcdVersion,
    },
    /// The file is not there.
    #[error("{path} does not exist; correct `source:` in the file", path = path.display())]
    NoSuchFile {
        /// The file.
        path: PathBuf,
    },
    /// The directory has no such version.
    #[error(
        "{directory} has no {version}/etcd ({}); put the binary there, or change `version:`",
        listed(there),
        directory = directory.display()
    )]
    NotInDirectory {
        /// The directory.
        directory: PathBuf,
        /// What was looked for.
        version: EtcdVersion,
        /// What is in it.
        there: Vec<EtcdVersion>,
    },
    /// Not the name of a package.
    #[error("`{package}` is not the name of a Debian package; the one with the server is `etcd-server`")]
    PackageName {
        /// The name.
        package: String,
    },
    /// No dpkg here.
    #[error("dpkg-query cannot be run ({source}): this computer seems not to be a Debian; use another `source:`")]
    NoDpkg {
        /// Why not.
        source: io::Error,
    },
    /// The package is not installed.
    #[error("the package `{package}` is not installed; install it: apt install {package}")]
    NotInstalled {
        /// The package.
        package: String,
    },
    /// The package has no etcd in it.
    #[error("the package `{package}` installs no bin/etcd; the one with the server is `etcd-server`")]
    NotInPackage {
        /// The package.
        package: String,
    },
    /// It may not be run.
    #[error("{path} is not an executable file; if it is the right one: chmod +x {path}", path = path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
    },
    /// It is for other machines.
    #[error(
        "{path} is not a program for this computer ({here}): it is {found}; take the one for {here}",
        path = path.display()
    )]
    WrongArchitecture {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: String,
        /// What is needed.
        here: &'static str,
    },
    /// It is another version.
    #[error("{path} is etcd {found}, the file says {wanted}; {advice}", path = path.display())]
    WrongVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: EtcdVersion,
        /// The version in the file.
        wanted: EtcdVersion,
        /// What to do.
        advice: String,
    },
    /// It does not answer as etcd does.
    #[error("{path} does not answer `--version` as etcd does ({said}); is it etcd?", path = path.display())]
    NotEtcd {
        /// The file.
        path: PathBuf,
        /// What it did instead.
        said: String,
    },
    /// It cannot be run.
    #[error("{path} cannot be run: {source}{hint}", path = path.display(), hint = run_hint(source))]
    CannotRun {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The hash in the file is none.
    #[error("`{sha256}` is not a SHA-256 (64 hexadecimal digits); it is in the SHA256SUMS file beside the release")]
    NotAHash {
        /// What was written.
        sha256: String,
    },
    /// The file has no hash for this version.
    #[error("the file has no SHA-256 for etcd {version}: add it to `sha256:` of the archive")]
    NoHash {
        /// The version.
        version: EtcdVersion,
    },
    /// The archive cannot be downloaded.
    #[error("{url} cannot be downloaded: {source}; or download it by other means, and name it with `file:`")]
    Download {
        /// From where.
        url: String,
        /// Why not.
        source: DownloadError,
    },
    /// What was downloaded is not what was meant.
    #[error(
        "{url} has the SHA-256 {found}, the file says {wanted}: nothing was kept; compare with the release's SHA256SUMS \
         before you change the file"
    )]
    OtherDownload {
        /// From where.
        url: String,
        /// Its hash.
        found: String,
        /// The hash in the file.
        wanted: String,
    },
    /// The version has no bundle.
    #[error(
        "raftsman ships no bundle of Patroni {version}, and the file has no SHA-256 of one: name one with \
         `patroni: {{ source: {{ bundle: {{ file: …, sha256: … }} }} }}`, or write the version of one that is shipped"
    )]
    NoBundle {
        /// Which version.
        version: PatroniVersion,
    },
    /// The bundle is missing where it should be.
    #[error(
        "the bundle of Patroni {version} is not at {}: make it there with `tools/patroni-bundle {version} {}`, or name \
         another one with `patroni: {{ source: {{ bundle: {{ file: …, sha256: … }} }} }}`", place.display(), place.display()
    )]
    NotShipped {
        /// Where it should be.
        place: PathBuf,
        /// Which version.
        version: PatroniVersion,
    },
    /// The archive is not the one that was meant.
    #[error(
        "{path} has the SHA-256 {found}, the file says {wanted}; download the archive again, and compare with the \
         release's SHA256SUMS before you change the file",
        path = path.display()
    )]
    HashMismatch {
        /// The archive.
        path: PathBuf,
        /// Its hash.
        found: String,
        /// The hash in the file.
        wanted: String,
    },
    /// The archive has no etcd in it.
    #[error("{path} holds no etcd; a release archive such as etcd-v3.6.15-linux-amd64.tar.gz is expected", path = path.display())]
    NotInArchive {
        /// The archive.
        path: PathBuf,
    },
    /// The archive cannot be unpacked.
    #[error("{path} is not a readable .tar.gz: {source}", path = path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The binary out of the archive cannot be written.
    #[error("cannot write {path}: {source}; it needs about 30 MB, and to be writable by you", path = path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn listed(versions: &[EtcdVersion]) -> String {
    if versions.is_empty() {
        return "no version is there".to_owned();
    }
    let versions: Vec<_> = versions.iter().map(ToString::to_string).collect();
    format!("there are {}", versions.join(", "))
}

fn run_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; is it on a file system mounted noexec?",
        _ => "",
    }
}
