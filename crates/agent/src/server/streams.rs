//! a long call → its progress and its result, as a stream of replies.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use raftsman_api::v1::take_backup_reply::What;
use raftsman_api::v1::{self, rehearse_request};
use raftsman_backup::full::TransferProgress;
use raftsman_core::backup::{Hashed, Lines};
use tokio::sync::mpsc::Sender;
use tonic::{Status, Streaming};

use crate::Agent;
use crate::backup::{self, BackupError, Order, Stored};
use crate::etcd::restore_test::{RestoreTest, RestoreTestError};
use crate::server::{next, second_head};
use crate::status::Coded;

/// How often progress is reported.
const TELL: Duration = Duration::from_millis(500);

/// Makes a backup, and reports its progress and its end to a caller that still listens.
pub(super) async fn serve_backup(agent: &Agent, order: Order, replies: &Sender<Result<v1::TakeBackupReply, Status>>) {
    let progress = TransferProgress::default();
    let reply = |what| Ok(v1::TakeBackupReply { what: Some(what) });
    let mut taking = pin!(backup::take(agent, &order, &progress));
    let mut tick = tokio::time::interval(TELL);
    let taken = loop {
        tokio::select! {
            taken = &mut taking => break taken,
            _ = tick.tick() => {
                // The caller may have disconnected, or be too slow.
                let _ = replies.try_send(reply(What::TransferProgress(moved_so_far(&progress))));
            }
        }
    };
    let text = taken.and_then(|manifest| {
        tracing::info!(backup = %manifest.about.name, bytes = manifest.object.bytes, "backup made");
        serde_json::to_string(&manifest).map_err(|error| BackupError::Full(error.into()))
    });
    let last = text.map(What::Manifest).map_or_else(
        |error| {
            let status = error.status();
            tracing::warn!(error = status.message(), "backup failed");
            Err(status)
        },
        reply,
    );
    let _ = replies.send(last).await;
}

/// Restores a point into a temporary etcd and reports what it holds, as long as the caller listens.
pub(super) async fn serve_restore_test(
    agent: &Agent,
    head: &v1::RehearseHead,
    mut parts: Streaming<v1::RehearseRequest>,
    replies: &Sender<Result<v1::RehearseReply, Status>>,
) -> Result<(), Status> {
    use v1::rehearse_reply::What;
    let coded = |error: RestoreTestError| error.status();
    let report = async |what| {
        let sent = replies.send(Ok(v1::RehearseReply { what: Some(what) })).await;
        sent.map_err(|_| Status::cancelled("the caller went away"))
    };
    let mut coming = RestoreTest::begin(agent, &head.version).await.map_err(coded)?;
    let from = head.from.as_ref().map(Stored::new).transpose().map_err(|error| coded(error.into()))?;
    if let Some(from) = &from {
        let progress = TransferProgress::default();
        let mut fetching = pin!(coming.fetch(from, &progress));
        let mut tick = tokio::time::interval(TELL);
        loop {
            tokio::select! {
                fetched = &mut fetching => break fetched.map_err(coded)?,
                _ = tick.tick() => report(What::TransferProgress(moved_so_far(&progress))).await?,
            }
        }
    }
    let first = loop {
        match next(&mut parts, |message| message.part).await? {
            Some(_) if from.is_some() => return Err(Status::invalid_argument("it is read from the store")),
            Some(rehearse_request::Part::Snapshot(bytes)) => coming.write(&bytes).await.map_err(coded)?,
            Some(rehearse_request::Part::Head(_)) => return Err(second_head()),
            Some(rehearse_request::Part::Changes(lines)) => break Some(lines),
            None => break None,
        }
    };
    let mut running = coming.start(agent).await.map_err(coded)?;
    report(What::Revision(running.revision().await.map_err(coded)?)).await?;
    let base = match head.hash_at {
        0 => None,
        revision => Some(wire(running.hashed(revision).await.map_err(coded)?)),
    };
    if let Some(from) = &from {
        running.replay_from(from).await.map_err(coded)?;
    }
    let mut lines = first;
    let mut rest: Vec<u8> = Vec::new();
    while let Some(bytes) = lines {
        rest.extend(bytes);
        let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let changes = Lines::read(&rest[..whole]).map_err(|error| Status::invalid_argument(error.to_string()))?;
        rest.drain(..whole);
        running.replay(&changes, head.upto).await.map_err(coded)?;
        report(What::Revision(running.revision().await.map_err(coded)?)).await?;
        lines = match next(&mut parts, |message| message.part).await? {
            Some(rehearse_request::Part::Changes(lines)) => Some(lines),
            Some(_) => return Err(Status::invalid_argument("only changes may follow changes")),
            None => None,
        };
    }
    if !rest.is_empty() {
        return Err(Status::invalid_argument("the last change is not whole"));
    }
    let (revision, keys) = running.ended(head.upto).await.map_err(coded)?;
    report(What::RestoreTestResult(v1::RestoreTestResult { base, revision, keys })).await?;
    if head.snapshot {
        let unavailable = |error: raftsman_etcd::EtcdError| Status::unavailable(error.to_string());
        let snapshot = running.client().snapshot().await.map_err(|error| unavailable(error.into()))?;
        let mut pieces = pin!(backup::pieces(snapshot));
        while let Some(piece) = pieces.next().await {
            report(What::Snapshot(piece.map_err(unavailable)?.to_vec())).await?;
        }
    }
    Ok(())
}

fn moved_so_far(progress: &TransferProgress) -> v1::TransferProgress {
    v1::TransferProgress { received: progress.received(), stored: progress.stored(), checked: progress.checked() }
}

pub(super) fn wire(contents: Hashed) -> v1::Contents {
    let Hashed { hash, compacted, keys } = contents;
    v1::Contents { hash, compacted, keys }
}
