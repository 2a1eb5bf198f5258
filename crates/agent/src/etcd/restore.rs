//! a snapshot's bytes, a backup in a store or data that was moved away, the future member → a data directory, made by
//! etcd's own tool: in the member's place, or beside it until it is needed there.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::digest::{self, SHA256};
use prost::Message as _;
use raftsman_api::hex;
use raftsman_api::v1::{RestoreDataHead, RestoreHow};
use raftsman_backup::full::{FullError, TransferProgress};
use tokio::process::Command;
use tokio::time::timeout;

use crate::Agent;
use crate::backup::{BackupError, Stored};
use crate::etcd::data::{self, DataError};
use crate::etcd::wal::{self, Data, Ids};
use crate::files::{self, FileError};
use crate::machine::disk;
use crate::root::Root;
use crate::supervisor::binaries::{Binary, BinaryError};
use crate::supervisor::confine::Workspace;
use crate::supervisor::pins;
use crate::supervisor::program::Program;
use crate::supervisor::service::State;
use crate::supervisor::systemd::Owner;

/// A snapshot of the greatest size that etcd allows is written in less, also on a slow disk.
const TOOL_LIMIT: Duration = Duration::from_secs(600);
const MOST_WORDS: usize = 600;
const PREPARED: &str = ".prepared-";

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// etcd is not stopped.
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
        /// What was received.
        found: String,
    },
    /// The backup.
    #[error(transparent)]
    Full(#[from] FullError),
    /// The request is invalid.
    #[error(transparent)]
    Backup(#[from] Box<BackupError>),
    /// Nothing was prepared, or something else.
    #[error("no such data was prepared here")]
    NotPrepared,
    /// No data was moved away.
    #[error("no data of the member {0:x} was put away here: nothing was restored")]
    NothingPutAway(u64),
    /// Bytes came where none were announced.
    #[error("bytes came, although none were announced")]
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
        /// Its last message.
        words: String,
    },
    /// The tool made something else.
    #[error("etcdutl made no member's data: {0}")]
    NoData(Data),
    /// etcd's files are at fault.
    #[error(transparent)]
    Binary(#[from] BinaryError),
    /// There is no room for it.
    #[error(
        "{free} MiB are free on the disk of etcd's data, and restoring this backup needs {needed} MiB: make room first"
    )]
    NoRoom {
        /// What is free.
        free: u64,
        /// What is needed.
        needed: u64,
    },
    /// The data that was moved away cannot be found.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A snapshot that becomes a member's data. Dropped before its end, it leaves nothing.
pub struct Restore {
    head: RestoreDataHead,
    source: Source,
    /// The user that etcd's tool runs as.
    user: Option<Owner>,
}

/// What is restored.
enum Source {
    /// A snapshot, as its bytes come.
    Bytes { tool: PathBuf, room: Room, left: u64, digest: Box<digest::Context> },
    /// What is in a store.
    Stored { tool: PathBuf, at: Box<Stored> },
    /// The database in data that was moved away.
    Own { tool: PathBuf, database: PathBuf },
    /// Data that was prepared from it before.
    Prepared(PathBuf),
}

impl Restore {
    /// Checks what can be checked before the bytes arrive.
    pub fn begin(agent: &Agent, head: RestoreDataHead) -> Result<Self, RestoreError> {
        let (root, user) = (&agent.root, agent.launcher.unprivileged());
        if head.how() != RestoreHow::Prepare {
            if agent.supervisor.of(Program::Etcd).view().state != State::Stopped {
                return Err(RestoreError::NotStopped);
            }
            match wal::look(&root.data()) {
                Data::Empty => {}
                found @ (Data::Present(_) | Data::Unreadable(_)) => return Err(RestoreError::OtherData(found)),
            }
        }
        if head.how() == RestoreHow::Prepared {
            let prepared = prepared(root, &head);
            return match prepared.is_dir() {
                true => Ok(Self { head, source: Source::Prepared(prepared), user }),
                false => Err(RestoreError::NotPrepared),
            };
        }
        let tool = pins::verified(root, Binary::Etcdutl, &head.version)?
            .ok_or_else(|| RestoreError::NoTool(head.version.clone()))?;
        let source = if let Some(from) = &head.from {
            Source::Stored { tool, at: Box::new(Stored::new(from).map_err(Box::new)?) }
        } else if head.own_member_id == 0 {
            holds(root, head.bytes)?;
            let (room, digest) = (Room::new(root, user)?, Box::new(digest::Context::new(&SHA256)));
            Source::Bytes { tool, room, left: head.bytes, digest }
        } else {
            let away = data::put_away_of(root, head.own_member_id)?;
            let away = away.ok_or(RestoreError::NothingPutAway(head.own_member_id))?;
            Source::Own { tool, database: away.join("member/snap/db") }
        };
        Ok(Self { head, source, user })
    }

    /// Some bytes more.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        match &mut self.source {
            Source::Bytes { room, left, digest, .. } => {
                *left = left.checked_sub(bytes.len() as u64).ok_or(RestoreError::Unasked)?;
                digest.update(bytes);
                Ok(room.file.write_all(bytes).map_err(FileError::of("write", &room.snapshot))?)
            }
            Source::Stored { .. } | Source::Own { .. } | Source::Prepared(_) => Err(RestoreError::Unasked),
        }
    }

    /// All bytes have arrived: checks them and makes the data directory.
    pub async fn finish(self, root: &Root) -> Result<Ids, RestoreError> {
        let Self { head, source, user } = self;
        let made = match source {
            Source::Bytes { tool, room, digest, .. } => {
                right(&head, hex::encode(digest.finish().as_ref()))?;
                run(&tool, root, &head, room.closed()).await?
            }
            Source::Stored { tool, at } => {
                right(&head, at.point.full.snapshot.sha256.clone())?;
                holds(root, at.point.full.snapshot.bytes)?;
                let room = Room::new(root, user)?;
                let file = room.file.try_clone().map_err(FileError::of("write", &room.snapshot))?;
                at.fetch(&TransferProgress::default(), file).await?;
                run(&tool, root, &head, room.closed()).await?
            }
            Source::Own { tool, database } => run(&tool, root, &head, Room::of(root, user, &database)?).await?,
            Source::Prepared(prepared) => Unfinished(prepared),
        };
        let ids = match wal::look(&made.0) {
            Data::Present(ids) => ids,
            found @ (Data::Empty | Data::Unreadable(_)) => return Err(RestoreError::NoData(found)),
        };
        if head.how() == RestoreHow::Prepare {
            let prepared = prepared(root, &head);
            // Data that an earlier restore prepared and did not use.
            for entry in fs::read_dir(root.etcd()).into_iter().flatten().flatten() {
                if entry.file_name().as_encoded_bytes().starts_with(PREPARED.as_bytes()) {
                    drop(Unfinished(entry.path()));
                }
            }
            fs::rename(&made.0, &prepared).map_err(FileError::of("keep the data at", &prepared))?;
            return Ok(ids);
        }
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

/// Whether there is room for a snapshot of this size, and for the data that is made of it.
fn holds(root: &Root, bytes: u64) -> Result<(), RestoreError> {
    let (free, needed) = (disk::free_bytes(root)?, bytes.saturating_mul(2));
    match free >= needed {
        true => Ok(()),
        false => Err(RestoreError::NoRoom { free: free >> 20, needed: needed >> 20 }),
    }
}

/// Where etcd's tool works, with the snapshot that it reads.
struct Room {
    workspace: Workspace,
    snapshot: PathBuf,
    file: File,
}

impl Room {
    /// With an empty file for a snapshot.
    fn new(root: &Root, user: Option<Owner>) -> Result<Self, FileError> {
        let workspace = Workspace::new(root, "restore", user)?;
        let snapshot = workspace.path().join("snapshot.db");
        let file = files::create(&snapshot, 0o600).map_err(FileError::of("create", &snapshot))?;
        workspace.give(&snapshot)?;
        Ok(Self { workspace, snapshot, file })
    }

    /// All of the snapshot is there.
    fn closed(self) -> (Workspace, PathBuf) {
        (self.workspace, self.snapshot)
    }

    /// With a database that the tool's user cannot access in its place.
    fn of(root: &Root, user: Option<Owner>, database: &Path) -> Result<(Workspace, PathBuf), FileError> {
        let workspace = Workspace::new(root, "restore", user)?;
        let snapshot = workspace.path().join("snapshot.db");
        fs::hard_link(database, &snapshot).map_err(FileError::of("link", database))?;
        workspace.give(&snapshot)?;
        Ok((workspace, snapshot))
    }
}

fn right(head: &RestoreDataHead, found: String) -> Result<(), RestoreError> {
    match found == head.sha256.to_ascii_lowercase() {
        true => Ok(()),
        false => Err(RestoreError::OtherBytes { expected: head.sha256.clone(), found }),
    }
}

/// Where data is kept that was prepared with this request. Its name is one that an agent's next start removes.
fn prepared(root: &Root, head: &RestoreDataHead) -> PathBuf {
    // The data is the same, wherever its snapshot comes from.
    let words = RestoreDataHead { from: None, how: 0, bytes: 0, ..head.clone() };
    let digest = hex::encode(digest::digest(&SHA256, &words.encode_to_vec()).as_ref());
    root.etcd().join(format!("{PREPARED}{}.tmp", &digest[..16]))
}

async fn run(
    tool: &Path,
    root: &Root,
    head: &RestoreDataHead,
    (workspace, snapshot): (Workspace, PathBuf),
) -> Result<Unfinished, RestoreError> {
    let data = workspace.path().join("data");
    let mut command = workspace.command(tool);
    command
        .args(["snapshot", "restore"])
        .arg(snapshot)
        .arg("--data-dir")
        .arg(&data)
        // As `--option=value`, so that no value can be parsed as another option.
        .arg(format!("--name={}", head.name))
        .arg(format!("--initial-cluster={}", head.initial_cluster))
        .arg(format!("--initial-cluster-token={}", head.token))
        .arg(format!("--initial-advertise-peer-urls={}", head.peer_url))
        // Only a snapshot that was sent has a hash at its end. One from a store was verified against it already.
        .arg(format!("--skip-hash-check={}", head.own_member_id != 0 || head.from.is_some()));
    if head.bump_revision > 0 {
        // The tool accepts the one only with the other: watches of clients on old revisions are invalid.
        command.arg(format!("--bump-revision={}", head.bump_revision)).arg("--mark-compacted");
    }
    carry_out(&mut command).await?;
    let made = Unfinished(files::beside(&root.data()));
    workspace.take_out(&data, &made.0)?;
    Ok(made)
}

/// Runs etcd's tool to its end.
pub(crate) async fn carry_out(command: &mut Command) -> Result<(), RestoreError> {
    let output =
        timeout(TOOL_LIMIT, command.output()).await.map_err(|_| RestoreError::TooLong)?.map_err(RestoreError::Run)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let words = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it gave no reason");
    Err(RestoreError::Refused { status: output.status, words: words.chars().take(MOST_WORDS).collect() })
}

/// A file or directory that is removed unless it was renamed.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // A leftover does no harm: the agent's next start removes it.
        let _ = if self.0.is_dir() { fs::remove_dir_all(&self.0) } else { fs::remove_file(&self.0) };
    }
}
