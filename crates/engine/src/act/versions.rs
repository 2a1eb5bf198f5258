//! What a change of versions needs beside restarts: a snapshot of all data, and etcd's consent to a downgrade.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Client, DowngradeOptions};
use jiff::Timestamp;
use raftsman_backup::snapshot::{self, Check};
use raftsman_core::action::VersionAction;
use raftsman_core::observed::SnapshotRecord;
use raftsman_core::spec::EtcdVersion;
use raftsman_etcd::{Answered, EtcdError, PROBE_KEY, bounded};

use super::{ActError, Executor};
use crate::arriving::Arriving;

/// The wait for the next part of a member's snapshot ends after this time.
const SILENCE: Duration = Duration::from_secs(30);

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file.
    #[error("cannot write the snapshot {}: {source}; it needs as much room as etcd's database", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The received bytes are not a snapshot.
    #[error(transparent)]
    Wrong(#[from] snapshot::SnapshotError),
    /// The member stopped sending.
    #[error("etcd sent no bytes of its snapshot for {} s", SILENCE.as_secs())]
    Silent,
}

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &VersionAction, now: Timestamp) -> Result<(), ActError> {
    match action {
        VersionAction::TakeSnapshot { version } => Box::pin(executor.take_snapshot(*version, now)).await,
        VersionAction::EnableDowngrade { version } => executor.enable_downgrade(*version, now).await,
        VersionAction::CancelDowngrade => executor.cancel_downgrade(now).await,
    }
}

impl Executor<'_> {
    /// Saves all data, as it is now, in a file of the state.
    async fn take_snapshot(self, before: EtcdVersion, now: Timestamp) -> Result<(), ActError> {
        // A follower has less load than the leader.
        let mut client = Box::pin(self.voter(now, |status| !leads(status))).await?;
        let status = bounded(async { Ok(client.status().await?) }).await?;
        // A member that answers a linearizable read holds every write that was acknowledged until now.
        let read = bounded(async { Ok(client.get(PROBE_KEY, None).await?) }).await?;
        let from = Answered::read(&status)?.version;
        let unclear = || EtcdError::Unclear("it does not say how far it is".to_owned());
        let revision = read.header().map(|header| header.revision()).ok_or_else(unclear)?;
        let dir = self.cluster().fleet.store.dir().join("snapshots");
        let file = format!("{}-{revision}-{from}.db", self.cluster().desired.name);
        receive(&mut client, &dir.join(&file)).await?;
        let record = SnapshotRecord { before, from, revision, at: now, file };
        self.cluster().remember(self.lock, |ledger| ledger.etcd.snapshot = Some(record)).await?;
        Ok(())
    }

    async fn enable_downgrade(self, version: EtcdVersion, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.changing(now).await?.maintenance_client();
        let target = version.to_string();
        bounded(async { Ok(client.downgrade(DowngradeOptions::Validate(target.clone())).await?) }).await?;
        bounded(async { Ok(client.downgrade(DowngradeOptions::Enable(target)).await?) }).await?;
        Ok(())
    }

    async fn cancel_downgrade(self, now: Timestamp) -> Result<(), ActError> {
        // A member of 3.5 cancels the downgrade and never answers, so a newer one is asked.
        let client = Box::pin(self.voter(now, |status| !status.storage_version().is_empty())).await?;
        self.pass_fence(&client).await?;
        let mut client = client.maintenance_client();
        bounded(async { Ok(client.downgrade(DowngradeOptions::Cancel).await?) }).await?;
        Ok(())
    }
}

pub(super) fn leads(status: &etcd_client::StatusResponse) -> bool {
    status.header().is_some_and(|header| header.member_id() == status.leader())
}

/// Written under another name until all of it is received, verified against etcd's hash, and synced to the disk.
async fn receive(client: &mut Client, path: &Path) -> Result<(), ActError> {
    let failed = |source| SnapshotError::File { path: path.to_owned(), source };
    let mut file = Arriving::begin(path).map_err(failed)?;
    let mut stream = bounded(async { Ok(client.snapshot().await?) }).await?;
    let mut check = Check::default();
    loop {
        let next = tokio::time::timeout(SILENCE, stream.message()).await.map_err(|_| SnapshotError::Silent)?;
        let Some(part) = next.map_err(EtcdError::from)? else { break };
        check.take(part.blob());
        file.write_all(part.blob()).map_err(failed)?;
    }
    check.finish().map_err(SnapshotError::from)?;
    file.keep().map_err(failed)?;
    Ok(())
}
