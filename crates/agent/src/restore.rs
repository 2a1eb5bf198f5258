//! a snapshot's bytes or data that was put away, the member to be → a data directory, made by etcd's own tool.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use aws_lc_rs::digest::{self, SHA256};
use raftsman_api::hex;
use raftsman_api::v1::RestoreDataHead;
use tokio::process::Command;
use tokio::time::timeout;

use crate::Agent;
use crate::data::{self, DataError};
use crate::etcd::{self, EtcdError, Program};
use crate::files::{self, FileError};
use crate::launch::PATH;
use crate::root::Root;
use crate::service::State;
use crate::wal::{self, Data, Ids};

/// A snapshot of the greatest size that etcd allows is written in less, also on a slow disk.
const TOOL_LIMIT: Duration = Duration::from_secs(600);
const MOST_WORDS: usize = 600;

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// It works on its data.
    #[error("etcd runs, or will be started again: stop it before its data is restored")]
    NotStopped,
    /// There is data.
    #[error("etcd's data is not as expected: expected none, but {0}: clear it first")]
    OtherData(Data),
    /// The tool is not there.
    #[error("etcdutl {0} is not installed: install it first")]
    NoTool(String),
    /// Other bytes than were promised.
    #[error("the snapshot has the SHA-256 {found}, expected was {expected}: nothing was restored")]
    OtherBytes {
        /// What was promised.
        expected: String,
        /// What came.
        found: String,
    },
    /// Nothing was put away.
    #[error("no data of the member {0:x} was put away here: nothing was restored")]
    NothingPutAway(u64),
    /// Bytes came where none were announced.
    #[error("bytes came, although the data that was put away is to be restored")]
    Unasked,
    /// The tool could not be run.
    #[error("etcdutl could not be run")]
    Run(#[source] std::io::Error),
    /// The tool took too long.
    #[error("etcdutl did not end within {} min: it was killed, and nothing was restored", TOOL_LIMIT.as_secs() / 60)]
    TooLong,
    /// The tool refused.
    #[error("etcdutl refused the snapshot ({status}): {words}")]
    Refused {
        /// How it ended.
        status: std::process::ExitStatus,
        /// Its last words.
        words: String,
    },
    /// The tool made something else.
    #[error("etcdutl made no member's data: {0}")]
    NoData(Data),
    /// etcd's files are at fault.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// What was put away cannot be found.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A snapshot that comes over the wire. Dropped, it leaves nothing.
pub struct Restore {
    head: RestoreDataHead,
    tool: PathBuf,
    source: Source,
}

/// What is restored.
enum Source {
    /// A snapshot, as its bytes come.
    Bytes { snapshot: Unfinished, file: File, digest: Box<digest::Context> },
    /// The database in data that was put away.
    Own(PathBuf),
}

impl Restore {
    /// Checks what can be known before the bytes come.
    pub fn begin(agent: &Agent, head: RestoreDataHead) -> Result<Self, RestoreError> {
        let root = &agent.root;
        if agent.service.view().state != State::Stopped {
            return Err(RestoreError::NotStopped);
        }
        match wal::look(&root.data()) {
            Data::Empty => {}
            found @ (Data::Present(_) | Data::Unreadable(_)) => return Err(RestoreError::OtherData(found)),
        }
        let tool = etcd::program(root, Program::Etcdutl, &head.version)?
            .ok_or_else(|| RestoreError::NoTool(head.version.clone()))?;
        let source = if head.own_member_id == 0 {
            let snapshot = Unfinished(files::beside(&root.etcd().join("snapshot")));
            let file = files::create(&snapshot.0, 0o600).map_err(FileError::of("create", &snapshot.0))?;
            Source::Bytes { snapshot, file, digest: Box::new(digest::Context::new(&SHA256)) }
        } else {
            let away = data::put_away_of(root, head.own_member_id)?;
            Source::Own(away.ok_or(RestoreError::NothingPutAway(head.own_member_id))?.join("member/snap/db"))
        };
        Ok(Self { head, tool, source })
    }

    /// Some bytes more.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        match &mut self.source {
            Source::Bytes { snapshot, file, digest } => {
                digest.update(bytes);
                Ok(file.write_all(bytes).map_err(FileError::of("write", &snapshot.0))?)
            }
            Source::Own(_) => Err(RestoreError::Unasked),
        }
    }

    /// All bytes are there: checks them and makes the data directory of them.
    pub async fn finish(self, root: &Root) -> Result<Ids, RestoreError> {
        let Self { head, tool, source } = self;
        let made = Unfinished(files::beside(&root.data()));
        match source {
            Source::Bytes { snapshot, file, digest } => {
                drop(file);
                let found = hex::encode(digest.finish().as_ref());
                if found != head.sha256.to_ascii_lowercase() {
                    return Err(RestoreError::OtherBytes { expected: head.sha256, found });
                }
                run(&tool, root, &head, &snapshot.0, &made.0).await?;
            }
            Source::Own(database) => run(&tool, root, &head, &database, &made.0).await?,
        }
        let ids = match wal::look(&made.0) {
            Data::Present(ids) => ids,
            found @ (Data::Empty | Data::Unreadable(_)) => return Err(RestoreError::NoData(found)),
        };
        let data = root.data();
        if data.exists() {
            // Only where it is empty.
            fs::remove_dir(&data).map_err(FileError::of("replace", &data))?;
        }
        fs::rename(&made.0, &data).map_err(FileError::of("put the data in place at", &data))?;
        files::sync_parent(&data)?;
        Ok(ids)
    }
}

async fn run(
    tool: &Path,
    root: &Root,
    head: &RestoreDataHead,
    snapshot: &Path,
    target: &Path,
) -> Result<(), RestoreError> {
    let mut command = Command::new(tool);
    command
        .args(["snapshot", "restore"])
        .arg(snapshot)
        .arg("--data-dir")
        .arg(target)
        // In one word each, so that no value can be taken for another option.
        .arg(format!("--name={}", head.name))
        .arg(format!("--initial-cluster={}", head.initial_cluster))
        .arg(format!("--initial-cluster-token={}", head.token))
        .arg(format!("--initial-advertise-peer-urls={}", head.peer_url))
        // Only what was sent as a snapshot has a hash behind it.
        .arg(format!("--skip-hash-check={}", head.own_member_id != 0));
    if head.bump_revision > 0 {
        // The tool takes the one only with the other: what clients saw of the old revisions is void.
        command.arg(format!("--bump-revision={}", head.bump_revision)).arg("--mark-compacted");
    }
    carry_out(&mut command, &root.etcd()).await
}

/// Runs etcd's tool to its end.
pub(crate) async fn carry_out(command: &mut Command, dir: &Path) -> Result<(), RestoreError> {
    let run = command.env_clear().env("PATH", PATH).current_dir(dir).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(TOOL_LIMIT, run).await.map_err(|_| RestoreError::TooLong)?.map_err(RestoreError::Run)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let words = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it gave no reason");
    Err(RestoreError::Refused { status: output.status, words: words.chars().take(MOST_WORDS).collect() })
}

/// A file or directory that goes unless it got another name.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // A leftover harms nothing: the agent's next start removes it.
        let _ = if self.0.is_dir() { fs::remove_dir_all(&self.0) } else { fs::remove_file(&self.0) };
    }
}
