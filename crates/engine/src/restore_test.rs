//! A point in a store, a machine → the result of a restore test in a temporary etcd there, and a snapshot of it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use raftsman_api::v1::rehearse_reply::What;
use raftsman_api::v1::rehearse_request::Part;
use raftsman_api::v1::{RehearseHead, RehearseRequest};
use raftsman_backup::full::{self, TransferProgress};
use raftsman_backup::snapshot::Check;
use raftsman_backup::{Keys, Point, changes};
use raftsman_core::backup::Hashed;
use raftsman_core::spec::{EtcdVersion, Name};
use serde::Serialize;
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::arriving::Arriving;
use crate::backup::{BackupError, BackupRepository};
use crate::observe::AgentLink;

/// A message takes less than this.
const CHUNK: usize = 1 << 20;
/// How often a restore test begins where a lease ended before all changes were replayed: that is so on a machine that
/// stalls for longer than the lease lasts, and comes out right once it does not.
const ATTEMPTS: usize = 5;

/// The result of a restore test.
#[derive(Debug, Clone, Serialize)]
pub struct RestoreTestResult {
    /// On which machine.
    pub machine: Name,
    /// The last revision in it.
    pub revision: i64,
    /// How many keys there are then.
    pub keys: u64,
    /// How long it took.
    #[serde(skip)]
    pub took: Duration,
    /// SHA-256 of the snapshot, where one was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Where the restore test runs.
#[derive(Debug)]
pub struct Stage<'a> {
    /// The machine.
    pub machine: Name,
    /// The way to its agent. It has etcd, etcd's tool and a certificate for etcd.
    pub agent: &'a AgentLink,
    /// The version that serves it.
    pub version: EtcdVersion,
}

/// Runs the restore test. It changes nothing; a file is written where the snapshot is wanted.
pub async fn run_restore_test(
    at: &BackupRepository,
    point: &Point,
    keys: &Keys,
    stage: &Stage<'_>,
    save: Option<&Path>,
    watch: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<RestoreTestResult, BackupError> {
    for _ in 1..ATTEMPTS {
        match attempt(at, point, keys, stage, save, watch).await {
            Err(BackupError::Agent { status, .. }) if status.code() == Code::Aborted => {}
            done => return done,
        }
    }
    attempt(at, point, keys, stage, save, watch).await
}

async fn attempt(
    at: &BackupRepository,
    point: &Point,
    keys: &Keys,
    stage: &Stage<'_>,
    save: Option<&Path>,
    watch: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<RestoreTestResult, BackupError> {
    let begun = Instant::now();
    let manifest = &point.full;
    let failed = |status| BackupError::Agent { machine: stage.machine.clone(), status: Box::new(status) };
    let head = RehearseHead {
        version: stage.version.to_string(),
        hash_at: manifest.about.name.revision(),
        upto: point.revision.unwrap_or(0),
        snapshot: save.is_some(),
        from: at.readable(point)?,
        bytes: point.batches.iter().fold(manifest.snapshot.bytes, |all, batch| all.saturating_add(batch.lines.bytes)),
    };
    let (parts, sent) = mpsc::channel(8);
    let progress = TransferProgress::default();
    let sending = send(at, point, keys, head, parts, &progress);
    let receiving = async {
        let mut client = stage.agent.client().await.map_err(Box::new)?;
        let mut replies = client.rehearse(ReceiverStream::new(sent)).await.map_err(failed)?.into_inner();
        let mut result = None;
        let mut file = save.map(Saved::begin).transpose()?;
        while let Some(reply) = replies.next().await {
            match reply.map_err(failed)?.what {
                Some(What::RestoreTestResult(all)) => result = Some(all),
                Some(What::Snapshot(bytes)) => file.iter_mut().try_for_each(|file| file.write(&bytes))?,
                Some(What::TransferProgress(progress)) => watch(progress.checked, manifest.object.bytes),
                Some(What::Revision(_)) | None => {}
            }
        }
        let result = result.ok_or_else(|| BackupError::Broken { machine: stage.machine.clone() })?;
        let sha256 = file.map(Saved::finish).transpose()?;
        Ok::<_, BackupError>((result, sha256))
    };
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    let telling = async {
        loop {
            tick.tick().await;
            if progress.checked() == 0 {
                continue;
            }
            watch(progress.checked(), manifest.object.bytes);
        }
    };
    let both = async {
        let mut receiving = Box::pin(receiving);
        tokio::select! {
            // An error of the backup has priority over the end of the stream.
            biased;
            (sent, parts) = sending => match sent {
                // An interrupted transfer must not look complete: the call is cancelled before the agent can see the
                // stream's end.
                Err(error) => {
                    drop(receiving);
                    drop(parts);
                    Err(error)
                }
                Ok(()) => {
                    drop(parts);
                    receiving.await
                }
            },
            received = &mut receiving => received,
        }
    };
    let (result, sha256) = tokio::select! {
        outcome = both => outcome?,
        () = telling => return Err(BackupError::Broken { machine: stage.machine.clone() }),
    };
    let base = result.base.unwrap_or_default();
    full::holds(manifest, Hashed { hash: base.hash, compacted: base.compacted, keys: base.keys })?;
    let machine = stage.machine.clone();
    Ok(RestoreTestResult { machine, revision: result.revision, keys: result.keys, took: begun.elapsed(), sha256 })
}

/// Sends all of it. The caller sends the end, because an interrupted transfer has none.
async fn send(
    at: &BackupRepository,
    point: &Point,
    keys: &Keys,
    head: RehearseHead,
    parts: Sender<RehearseRequest>,
    progress: &TransferProgress,
) -> (Result<(), BackupError>, Sender<RehearseRequest>) {
    let part = |part| RehearseRequest { part: Some(part) };
    let reads_itself = head.from.is_some();
    // The receiver has ended, and its own result says why.
    let _ = parts.send(part(Part::Head(head))).await;
    if reads_itself {
        return (Ok(()), parts);
    }
    let chunks = io::BufWriter::with_capacity(CHUNK, Chunks(parts.clone()));
    let fetched = full::fetch(&at.repository, &point.full, keys, progress, chunks).await;
    let mut outcome = fetched.map(drop).map_err(BackupError::from);
    for batch in &point.batches {
        if outcome.is_err() || parts.is_closed() {
            break;
        }
        outcome = async {
            for chunk in changes::open(&at.repository, batch, keys).await?.lines.chunks(CHUNK) {
                let _ = parts.send(part(Part::Changes(chunk.to_vec()))).await;
            }
            Ok(())
        }
        .await;
    }
    if outcome.is_err() && parts.is_closed() {
        // The agent's answer has the cause.
        return std::future::pending().await;
    }
    (outcome, parts)
}

struct Chunks(Sender<RehearseRequest>);

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let many = bytes.len().min(CHUNK);
        let part = RehearseRequest { part: Some(Part::Snapshot(bytes[..many].to_vec())) };
        self.0.blocking_send(part).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(many)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A snapshot that is written into a file, which exists once it is complete.
struct Saved {
    file: Arriving,
    path: PathBuf,
    check: Check,
}

impl Saved {
    fn begin(path: &Path) -> Result<Self, BackupError> {
        let file = Arriving::begin(path).map_err(|source| BackupError::Write { path: path.to_owned(), source })?;
        Ok(Self { file, path: path.to_owned(), check: Check::default() })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.check.take(bytes);
        let path = &self.path;
        self.file.write_all(bytes).map_err(|source| BackupError::Write { path: path.clone(), source })
    }

    fn finish(self) -> Result<String, BackupError> {
        let Self { file, path, check } = self;
        let stored = check.finish().map_err(full::FullError::from)?;
        file.keep().map_err(|source| BackupError::Write { path, source })?;
        Ok(stored.sha256)
    }
}
