//! What keeps databases small: compaction everywhere, defragmentation of one member, disarmed alarms.

use std::time::{Duration, Instant};

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions};
use jiff::Timestamp;
use raftsman_core::action::{Action, MaintenanceAction};
use raftsman_core::observed::Alarm;
use raftsman_core::plan::safety;
use raftsman_core::spec::Name;
use raftsman_etcd::{EtcdError, REWRITE, bounded, within};

use super::{ActError, Executor};

/// The size from which clients notice the pause of a defragmentation.
const LARGE: i64 = 64 << 20;
/// Longer than most clients wait before they try another member.
const REST: Duration = Duration::from_secs(5);
/// etcd commits what was written this often, unless a flag says otherwise.
const COMMIT: Duration = Duration::from_millis(100);
/// The size in use is final after this many commits without a change.
const STEADY: u32 = 3;
/// A follower applies a disarmed alarm within moments.
const HEARD: Duration = Duration::from_secs(5);

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &MaintenanceAction, now: Timestamp) -> Result<(), ActError> {
    match action {
        MaintenanceAction::Compact { revision } => executor.compact(*revision, now).await,
        MaintenanceAction::Defragment { machine } => executor.defragment(machine, now).await,
        MaintenanceAction::DisarmAlarm { alarm } => Box::pin(executor.disarm(*alarm, now)).await,
    }
}

impl Executor<'_> {
    /// Compacts, and waits until every member has dropped the old revisions: each does so by itself, after the call.
    async fn compact(self, revision: i64, now: Timestamp) -> Result<(), ActError> {
        let mut leader = self.changing(now).await?;
        physically(&mut leader, revision).await?;
        for mut client in self.clients(now).await? {
            // A member that went away meanwhile compacts when it comes back.
            let _ = physically(&mut client, revision).await;
        }
        self.await_freed_pages(now).await
    }

    /// Pages that a compaction releases count as free only some commits later, a tenth of a second each. Until then the
    /// size in use reads too high, and a database with room would look full.
    async fn await_freed_pages(self, now: Timestamp) -> Result<(), ActError> {
        let mut clients = self.clients(now).await?;
        let begun = Instant::now();
        let (mut before, mut same) = (Vec::new(), 0);
        while same < STEADY && begun.elapsed() < HEARD {
            tokio::time::sleep(COMMIT).await;
            let mut sizes = Vec::new();
            for client in &mut clients {
                let status: Result<_, EtcdError> = bounded(async { Ok(client.status().await?) }).await;
                sizes.push(status.ok().map(|status| status.raft_used_db_size()));
            }
            same = if sizes == before { same + 1 } else { 0 };
            before = sizes;
        }
        Ok(())
    }

    async fn defragment(self, machine: &Name, now: Timestamp) -> Result<(), ActError> {
        let credentials = self.observer.credentials(now).await?.ok_or(ActError::NoMemberAnswers)?;
        let mut client = self.etcd(machine)?.client(&credentials).await?;
        let status = bounded(async { Ok(client.status().await?) }).await?;
        // A client that waited for the member before, or lost a write in the leadership transfer, retries within
        // moments. It must not reach the next member while that one does not answer. While no write succeeds there is
        // no client to protect.
        if status.raft_used_db_size() >= LARGE && status.errors().is_empty() {
            tokio::time::sleep(REST).await;
            let (fresh, action) = (
                self.observer.look().await?,
                Action::Maintenance(MaintenanceAction::Defragment { machine: machine.clone() }),
            );
            safety::judge(&self.cluster().desired, &fresh, &[&action], &action).map_err(ActError::Unsafe)?;
        }
        self.pass_fence(&client).await?;
        within(REWRITE, async { Ok(client.defragment().await?) }).await?;
        Ok(())
    }

    async fn disarm(self, alarm: Alarm, now: Timestamp) -> Result<(), ActError> {
        let kind = match alarm {
            Alarm::NoSpace => AlarmType::Nospace,
            Alarm::Corrupt => AlarmType::Corrupt,
        };
        let mut leader = self.changing(now).await?;
        let raised = bounded(async { Ok(leader.alarm(AlarmAction::Get, kind, None).await?) }).await?;
        for one in raised.alarms().iter().filter(|one| one.alarm() == kind) {
            let mut options = AlarmOptions::new();
            options.with_member(one.member_id());
            bounded(async { Ok(leader.alarm(AlarmAction::Deactivate, kind, Some(options)).await?) }).await?;
        }
        let begun = Instant::now();
        for mut client in self.clients(now).await? {
            while begun.elapsed() < HEARD && knows_of(&mut client, kind).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// Connections to all members that answer.
    async fn clients(self, now: Timestamp) -> Result<Vec<Client>, ActError> {
        let credentials = self.observer.credentials(now).await?.ok_or(ActError::NoMemberAnswers)?;
        let mut clients = Vec::new();
        for name in self.cluster().places().keys() {
            if let Ok(link) = self.etcd(name)
                && let Ok(client) = link.client(&credentials).await
            {
                clients.push(client);
            }
        }
        Ok(clients)
    }
}

/// Compacts unless done, and waits until this member has dropped everything: etcd also makes a second caller wait, and
/// only then answers that the revision is compacted already.
async fn physically(client: &mut Client, revision: i64) -> Result<(), EtcdError> {
    let options = CompactionOptions::new().with_physical();
    match within(REWRITE, async { Ok(client.compact(revision, Some(options)).await?) }).await {
        Err(error) if !error.compacted() => Err(error),
        _ => Ok(()),
    }
}

async fn knows_of(client: &mut Client, alarm: AlarmType) -> bool {
    let status: Result<_, EtcdError> = bounded(async { Ok(client.status().await?) }).await;
    status.is_ok_and(|status| status.errors().iter().any(|e| e.to_uppercase().contains(alarm.as_str_name())))
}
