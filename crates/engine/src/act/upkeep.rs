//! What keeps databases small: compaction everywhere, defragmentation of one member, alarms taken back.

use std::time::{Duration, Instant};

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions};
use jiff::Timestamp;
use raftsman_core::action::{Action, UpkeepAction};
use raftsman_core::observed::Alarm;
use raftsman_core::plan::safety;
use raftsman_core::spec::Name;
use raftsman_etcd::{EtcdError, REWRITE, bounded, within};

use super::{ActError, Hands};

/// What takes long enough to be rewritten for callers to notice.
const LARGE: i64 = 64 << 20;
/// Longer than most callers wait before they try another member.
const REST: Duration = Duration::from_secs(5);
/// etcd commits what was written this often, unless a flag says otherwise.
const COMMIT: Duration = Duration::from_millis(100);
/// As many commits without a change are the end of it.
const STEADY: u32 = 3;
/// A follower hears of a disarmed alarm within moments.
const HEARD: Duration = Duration::from_secs(5);

/// Does it.
pub(super) async fn act(hands: Hands<'_>, action: &UpkeepAction, now: Timestamp) -> Result<(), ActError> {
    match action {
        UpkeepAction::Compact { revision } => hands.compact(*revision, now).await,
        UpkeepAction::Defragment { machine } => hands.defragment(machine, now).await,
        UpkeepAction::DisarmAlarm { alarm } => Box::pin(hands.disarm(*alarm, now)).await,
    }
}

impl Hands<'_> {
    /// Compacts, and waits for every member to have dropped what it should: each does so by itself, behind the call.
    async fn compact(self, revision: i64, now: Timestamp) -> Result<(), ActError> {
        let mut leader = self.changing(now).await?;
        physically(&mut leader, revision).await?;
        for mut client in self.clients(now).await? {
            // One that went away meanwhile compacts when it comes back.
            let _ = physically(&mut client, revision).await;
        }
        self.await_freed_pages(now).await
    }

    /// Pages that a compaction gave up count as free only some commits later, a tenth of a second each: what is in use
    /// would be told too high, and a database that has room again be taken for a full one.
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
        let credentials = self.observer.credentials(now).await?.ok_or(ActError::NobodyAnswers)?;
        let mut client = self.links(machine)?.etcd.client(&credentials).await?;
        let status = bounded(async { Ok(client.status().await?) }).await?;
        // Whom the member before has kept waiting, or whose write was lost in the hand-over, comes back within moments,
        // and must not meet the next one that answers nobody. While no write goes through there is nobody to spare.
        if status.raft_used_db_size() >= LARGE && status.errors().is_empty() {
            tokio::time::sleep(REST).await;
            let (fresh, action) =
                (self.observer.look().await?, Action::Upkeep(UpkeepAction::Defragment { machine: machine.clone() }));
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

    /// Connections to all members that there are.
    async fn clients(self, now: Timestamp) -> Result<Vec<Client>, ActError> {
        let credentials = self.observer.credentials(now).await?.ok_or(ActError::NobodyAnswers)?;
        let mut clients = Vec::new();
        for name in self.cluster().places().keys() {
            if let Ok(links) = self.links(name)
                && let Ok(client) = links.etcd.client(&credentials).await
            {
                clients.push(client);
            }
        }
        Ok(clients)
    }
}

/// Compacts where it is not done yet, and waits until this member has dropped everything: etcd keeps the second caller
/// waiting too, and tells it only then that it came too late.
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
