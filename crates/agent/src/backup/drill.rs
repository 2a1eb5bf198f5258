//! The newest backup in a store → restored into a temporary etcd here on a schedule, and the result recorded.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use jiff::Timestamp;
use raftsman_backup::drill::{self, TestedRestore};
use raftsman_backup::full::{self, FullError, TransferProgress};
use raftsman_backup::{Keys, PointError, Repository, RestoreTarget, point};
use raftsman_core::backup::Drill;
use raftsman_core::spec::EtcdVersion;
use tokio::time::{Instant, sleep};

use crate::Agent;
use crate::backup::scheduler::due;
use crate::backup::{self, BackupError, Order, Stored};
use crate::etcd::restore_test::{RestoreTest, RestoreTestError, Room};
use crate::status::describe;

/// The longest wait before the next try after a failed one.
const AGAIN: Duration = Duration::from_secs(600);
/// Where nothing was backed up yet.
const SOON: Duration = Duration::from_secs(3);

/// Why a drill has no result.
#[derive(Debug, thiserror::Error)]
enum DrillError {
    #[error(transparent)]
    Point(#[from] PointError),
    #[error(transparent)]
    Full(#[from] FullError),
    #[error(transparent)]
    RestoreTest(#[from] RestoreTestError),
    #[error(transparent)]
    Backup(#[from] BackupError),
}

/// How often, and with what.
#[derive(Debug, Clone, Copy)]
pub struct DrillSchedule {
    every: Duration,
    version: EtcdVersion,
}

impl DrillSchedule {
    /// Parses the settings; nothing where drills are disabled.
    pub fn new(every_ms: u64, version: &str) -> Result<Option<Self>, BackupError> {
        if every_ms == 0 {
            return Ok(None);
        }
        let version = EtcdVersion::parse(version).map_err(|error| BackupError::Request(error.to_string()))?;
        Ok(Some(Self { every: Duration::from_millis(every_ms), version }))
    }
}

/// Tests the newest backup on schedule, as long as this machine holds the lease of the backup scheduler.
pub async fn run(agent: &Arc<Agent>, order: &Order, schedule: Option<DrillSchedule>, mut client: Client) -> Infallible {
    let Some(schedule) = schedule else { return std::future::pending().await };
    loop {
        let wait = match Box::pin(turn(agent, order, schedule, &mut client)).await {
            Ok(wait) => wait,
            // The first backup is not complete yet.
            Err(DrillError::Point(PointError::None { .. })) => SOON,
            Err(error) => {
                let error = describe(&error);
                tracing::warn!(error, "a drill failed");
                agent.backup_scheduler.drilled(Some(error));
                schedule.every.min(AGAIN)
            }
        };
        sleep(wait).await;
    }
}

/// One drill, if it is due. Returns the time until the next.
async fn turn(
    agent: &Arc<Agent>,
    order: &Order,
    schedule: DrillSchedule,
    client: &mut Client,
) -> Result<Duration, DrillError> {
    let repository = order.repository()?;
    if let Some(last) = drill::last(&repository, Timestamp::now()).await? {
        note(agent, &last)?;
        let wait = due(schedule.every, last.at);
        if !wait.is_zero() {
            return Ok(wait);
        }
    }
    let current = backup::now(client).await?.revision();
    let (who, order) = (Arc::clone(agent), order.clone());
    let trying = Box::pin(async move { try_newest(&who, &order, repository, schedule.version, current).await });
    let done = agent.background.run(trying).await?;
    tracing::info!(backup = %done.backup, took_ms = done.took_ms, "a drill: the newest backup came back");
    note(agent, &done)?;
    agent.backup_scheduler.drilled(None);
    Ok(due(schedule.every, done.at))
}

/// Records the result for the agent's report.
fn note(agent: &Agent, drill: &Drill) -> Result<(), FullError> {
    agent.backup_scheduler.known().drill = serde_json::to_string(drill)?;
    Ok(())
}

async fn try_newest(
    agent: &Agent,
    order: &Order,
    repository: Repository,
    version: EtcdVersion,
    current: i64,
) -> Result<Drill, DrillError> {
    let (now, begun) = (Timestamp::now(), Instant::now());
    let point = point::find(&repository, RestoreTarget::Newest, &order.histories, &Keys::default()).await?;
    let at = Stored { repository, point };
    let room = Room::of(agent);
    room.holds(at.bytes())?;
    tokio::select! {
        full = room.ends() => Err(full.into()),
        tried = Box::pin(try_point(agent, order, &at, version, now, begun, current)) => tried,
    }
}

async fn try_point(
    agent: &Agent,
    order: &Order,
    at: &Stored,
    version: EtcdVersion,
    now: Timestamp,
    begun: Instant,
    current: i64,
) -> Result<Drill, DrillError> {
    let mut restore_test = RestoreTest::begin(agent, &version.to_string()).await?;
    restore_test.fetch(at, &TransferProgress::default()).await?;
    let mut running = restore_test.start(agent).await?;
    full::holds(&at.point.full, running.hashed(at.point.full.about.name.revision()).await?)?;
    running.replay_from(at).await?;
    let (revision, keys) = running.ended(0).await?;
    let machine = backup::name(&agent.claim.boot().machine)?;
    let tried = TestedRestore { machine, version, revision, keys, took: begun.elapsed() };
    Ok(drill::record(&at.repository, Some(&order.signer), &at.point, tried, now, Some(current)).await?)
}
