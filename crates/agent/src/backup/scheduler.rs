//! The settings of backups on this machine → backups on a schedule, made by one machine of the cluster at a time.
//!
//! A lease in the cluster's own etcd decides which machine it is. If two hold it for a moment, nothing is lost: objects
//! are written once, and a machine that finds an object already written starts again from what is in the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, EventType, PutOptions, Txn, TxnOp, WatchOptions, WatchResponse};
use jiff::Timestamp;
use prost::Message as _;
use raftsman_api::v1;
use raftsman_backup::changes::{ChangesError, End};
use raftsman_backup::full::{FullError, TransferProgress};
use raftsman_backup::prune::prune;
use raftsman_backup::{Repository, StoreError};
use raftsman_core::backup::{Change, Event, Keep, Lines, Manifest};
use raftsman_core::observed::ClusterId;
use raftsman_etcd::{Answered, EtcdError, bounded};
use tokio::sync::{Mutex as Turn, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::Agent;
use crate::access::certs;
use crate::backup::drill::{self, DrillSchedule};
use crate::backup::{self, BackupError, Order};
use crate::files::{self, FileError};
use crate::report::moment;
use crate::root::Root;
use crate::status::describe;
use crate::supervisor::program::Program;
use crate::supervisor::service::State;

/// The key with the name of the machine that makes backups, attached to that machine's lease.
pub const KEY: &str = "raftsman/backup-keeper";
/// The stamp of settings that cannot be read any more.
const DAMAGED: &str = "damaged";
/// Another machine takes over this long after the one that makes backups has died.
const LEASE: Duration = Duration::from_secs(15);
/// How often the holder renews the lease, and the other machines check the key.
const LOOK: Duration = Duration::from_secs(3);
/// How long the leader's machine, which has most load, waits so that another one can acquire the lease first.
const COURTESY: Duration = Duration::from_secs(10);
/// The shortest and the longest pause after a failure.
const REST: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(60)];
/// etcd sends up to a thousand revisions at once to a watch that catches up.
const LARGEST_MESSAGE: usize = 2 << 30;
/// A batch of this size is written at once, also before its time.
const LARGE: usize = 4 << 20;

/// Why no backups are made.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// A backup could not be made, or etcd not be asked.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// Changes could not be recorded.
    #[error(transparent)]
    Changes(#[from] ChangesError),
    /// etcd's watch ended.
    #[error("the watch on etcd's changes ended{}", if .0.is_empty() { String::new() } else { format!(": {}", .0) })]
    WatchLost(String),
    /// Another machine makes them.
    #[error("lost the lease: another machine makes the backups now")]
    LeaseLost,
}

impl From<EtcdError> for SchedulerError {
    fn from(error: EtcdError) -> Self {
        Self::Backup(error.into())
    }
}

impl From<etcd_client::Error> for SchedulerError {
    fn from(error: etcd_client::Error) -> Self {
        EtcdError::from(error).into()
    }
}

impl From<StoreError> for SchedulerError {
    fn from(error: StoreError) -> Self {
        Self::Backup(error.into())
    }
}

impl From<FullError> for SchedulerError {
    fn from(error: FullError) -> Self {
        Self::Backup(error.into())
    }
}

/// The settings of backups on a machine.
#[derive(Debug)]
struct BackupConfig {
    order: Order,
    every: Duration,
    changes_every: Option<Duration>,
    drill: Option<DrillSchedule>,
    keep: Keep,
    /// Whether this machine removes backups beyond the retention.
    prune: bool,
}

impl BackupConfig {
    fn new(request: v1::SetBackupsRequest) -> Result<Option<Self>, BackupError> {
        let Some(order) = request.order else { return Ok(None) };
        Ok(Some(Self {
            order: Order::new(order)?,
            every: Duration::from_millis(request.every_ms),
            changes_every: Some(Duration::from_millis(request.changes_every_ms)).filter(|every| !every.is_zero()),
            drill: DrillSchedule::new(request.drill_every_ms, &request.drill_version)?,
            prune: request.prune,
            keep: Keep {
                last: request.keep_last,
                hourly: request.keep_hourly,
                daily: request.keep_daily,
                weekly: request.keep_weekly,
                changes_s: request.keep_changes_s,
            },
        }))
    }
}

/// A machine's part in making backups.
#[derive(Debug)]
pub struct BackupScheduler {
    request: watch::Sender<v1::SetBackupsRequest>,
    report: Mutex<v1::BackupsReport>,
    /// An error beside the making of backups that does not stop it.
    beside: Mutex<Option<String>>,
    /// Held while a full backup is made. Changes to the machine do not wait for it: it is slow, and they may be urgent.
    pub making: Arc<Turn<()>>,
}

impl BackupScheduler {
    /// Loads the settings from before the agent's start.
    pub fn open(root: &Root) -> Result<Self, FileError> {
        let path = root.backups();
        let request = match std::fs::read(&path) {
            // Not the same as no settings: that would be a machine without backups, and the operator would not notice.
            Ok(bytes) => v1::SetBackupsRequest::decode(bytes.as_slice()).unwrap_or_else(|_| damaged()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => v1::SetBackupsRequest::default(),
            Err(error) => return Err(FileError::of("read", &path)(error)),
        };
        Ok(Self {
            request: watch::Sender::new(request),
            report: Mutex::default(),
            beside: Mutex::default(),
            making: Arc::default(),
        })
    }

    /// Stores the settings, and uses them from now on.
    pub fn set(&self, root: &Root, request: v1::SetBackupsRequest) -> Result<(), BackupError> {
        if let Some(order) = request.order.clone() {
            Order::new(order)?;
        }
        files::write(&root.backups(), &request.encode_to_vec(), 0o600)?;
        self.request.send_replace(request);
        Ok(())
    }

    /// For the agent's report; nothing without settings.
    pub fn report(&self, root: &Root) -> Option<v1::BackupsReport> {
        let stamp = Some(self.request.borrow().stamp.clone()).filter(|stamp| !stamp.is_empty())?;
        let described = certs::Store::new(root.client_tls()).describe(v1::Purpose::EtcdClient, "").ok().flatten();
        let certificate_not_after = described.and_then(|certificate| certificate.not_after);
        Some(v1::BackupsReport { stamp, certificate_not_after, ..self.known().clone() })
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, v1::BackupsReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, problem: String) {
        let mut known = self.known();
        if known.problem.is_empty() {
            known.problem_since = Some(moment(Timestamp::now()));
        }
        known.problem = problem;
        known.keeps = false;
    }

    /// Why the newest backup could not be restored; nothing after a success.
    pub(crate) fn drilled(&self, problem: Option<String>) {
        let mut known = self.known();
        known.drill_problem_since =
            problem.as_ref().map(|_| known.drill_problem_since.unwrap_or_else(|| moment(Timestamp::now())));
        known.drill_problem = problem.unwrap_or_default();
    }

    fn is_well(&self) {
        let beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut known = self.known();
        known.problem_since = beside.is_some().then(|| known.problem_since.unwrap_or_else(|| moment(Timestamp::now())));
        known.problem = beside.unwrap_or_default();
    }
}

/// Settings that cannot be read any more. Raftsman never produces their stamp, so it delivers the settings again.
fn damaged() -> v1::SetBackupsRequest {
    v1::SetBackupsRequest { stamp: DAMAGED.to_owned(), ..Default::default() }
}

/// Follows the settings, as long as the agent runs.
pub async fn run(agent: Arc<Agent>) {
    let mut requests = agent.backup_scheduler.request.subscribe();
    loop {
        *agent.backup_scheduler.known() =
            v1::BackupsReport { held: Some(moment(Timestamp::now())), ..Default::default() };
        let config = BackupConfig::new(requests.borrow_and_update().clone());
        let work = async {
            match config {
                Ok(Some(config)) => serve(&agent, &config).await,
                Ok(None) => {
                    if agent.backup_scheduler.request.borrow().stamp == DAMAGED {
                        agent
                            .backup_scheduler
                            .failed("the settings of backups on this machine are damaged: apply again".to_owned());
                    }
                    std::future::pending().await
                }
                Err(error) => {
                    agent.backup_scheduler.failed(describe(&error));
                    std::future::pending().await
                }
            }
        };
        tokio::select! {
            () = work => {}
            changed = requests.changed() => if changed.is_err() { return },
        }
    }
}

async fn serve(agent: &Arc<Agent>, config: &BackupConfig) {
    let mut rest = REST[0];
    loop {
        let (begun, process) = (Instant::now(), agent.supervisor.of(Program::Etcd).view().state);
        match Box::pin(term(agent, config)).await {
            Err(SchedulerError::LeaseLost) => agent.backup_scheduler.known().keeps = false,
            Err(error) => {
                let error = describe(&error);
                tracing::warn!(error, "backups are not made");
                agent.backup_scheduler.failed(error);
            }
            Ok(never) => match never {},
        }
        // A failure after a long success starts with the shortest pause again.
        rest = if begun.elapsed() > REST[1] { REST[0] } else { (rest * 2).min(REST[1]) };
        // A restart of etcd ends the pause: the failure was that of the earlier process.
        let over = Instant::now() + rest;
        while Instant::now() < over && agent.supervisor.of(Program::Etcd).view().state == process {
            sleep(LOOK.min(over - Instant::now())).await;
        }
        if agent.supervisor.of(Program::Etcd).view().state != process {
            rest = REST[0];
        }
    }
}

/// Acquires the lease once it is free, and holds it until an error.
async fn term(agent: &Arc<Agent>, config: &BackupConfig) -> Result<std::convert::Infallible, SchedulerError> {
    // A stopped etcd is not an error: another machine makes backups.
    while !matches!(agent.supervisor.of(Program::Etcd).view().state, State::Running(_)) {
        agent.backup_scheduler.is_well();
        sleep(LOOK).await;
    }
    let mut client = backup::client(agent, &config.order).await?;
    let lease = elected(agent, &mut client).await?;
    tracing::info!("acquired the lease: this machine makes the backups now");
    agent.backup_scheduler.known().keeps = true;
    let outcome = tokio::select! {
        lost = hold(agent, client.clone(), lease) => Err(lost),
        outcome = work(agent, config, client.clone()) => outcome,
        never = drill::run(agent, &config.order, config.drill, client.clone()) => match never {},
    };
    // The next holder runs drills as well, and its result counts.
    agent.backup_scheduler.drilled(None);
    // The next holder need not wait until the lease expires.
    let _ = bounded(async { Ok(client.lease_revoke(lease).await?) }).await;
    outcome
}

/// Waits until no machine holds the key, and acquires it. Returns its lease.
async fn elected(agent: &Agent, client: &mut Client) -> Result<i64, SchedulerError> {
    let name = agent.claim.boot().machine;
    let mut vacant_since: Option<Instant> = None;
    loop {
        let seen = bounded(async { Ok(client.get(KEY, None).await?) }).await?;
        // A key without a lease would never expire: no machine wrote it, and it would block all of them.
        let taken = seen.kvs().iter().any(|kv| kv.lease() != 0);
        let left = seen.kvs().first().map_or(0, |kv| kv.mod_revision());
        if !taken {
            let since = *vacant_since.get_or_insert_with(Instant::now);
            let status = bounded(async { Ok(client.status().await?) }).await?;
            let leads = status.header().is_some_and(|header| header.member_id() == status.leader());
            if !status.is_learner() && (!leads || since.elapsed() >= COURTESY) {
                let seconds = i64::try_from(LEASE.as_secs()).unwrap_or(i64::MAX);
                let lease = bounded(async { Ok(client.lease_grant(seconds, None).await?.id()) }).await?;
                let vacant = Compare::mod_revision(KEY, CompareOp::Equal, left);
                let take = TxnOp::put(KEY, name.as_str(), Some(PutOptions::new().with_lease(lease)));
                let txn = Txn::new().when([vacant]).and_then([take]);
                if bounded(async { Ok(client.txn(txn).await?.succeeded()) }).await? {
                    return Ok(lease);
                }
                let _ = bounded(async { Ok(client.lease_revoke(lease).await?) }).await;
            }
        } else {
            vacant_since = None;
            // Another machine makes backups now, so an earlier error of this one does not count any more.
            agent.backup_scheduler.is_well();
            agent.backup_scheduler.known().held = Some(moment(Timestamp::now()));
        }
        sleep(LOOK).await;
    }
}

/// Renews the lease. Returns when that fails.
async fn hold(agent: &Agent, mut client: Client, lease: i64) -> SchedulerError {
    let mut renewed = Instant::now();
    let Ok((mut asking, mut answers)) = client.lease_keep_alive(lease).await else { return SchedulerError::LeaseLost };
    loop {
        sleep(LOOK).await;
        let asked = Instant::now();
        let renewal = async {
            asking.keep_alive().await.ok()?;
            answers.message().await.ok()?.filter(|answer| answer.ttl() > 0)
        };
        match timeout(LOOK, renewal).await {
            Ok(Some(_)) => {
                renewed = asked;
                agent.backup_scheduler.known().held = Some(moment(Timestamp::now()));
            }
            Ok(None) => return SchedulerError::LeaseLost,
            // No other machine can acquire it before the lease expires.
            Err(_) if renewed.elapsed() + LOOK < LEASE => {}
            Err(_) => return SchedulerError::LeaseLost,
        }
    }
}

/// Makes full backups when they are due and batches of changes between them, and removes old ones.
async fn work(
    agent: &Arc<Agent>,
    config: &BackupConfig,
    client: Client,
) -> Result<std::convert::Infallible, SchedulerError> {
    let repository = config.order.repository()?;
    let status = bounded(async { Ok(client.clone().status().await?) }).await?;
    let history = Answered::read(&status)?.cluster;
    config.order.expect(history)?;
    let mut newest = newest(agent, &repository, history).await?;
    agent.backup_scheduler.known().store_read = true;
    let mut pruned = None;
    loop {
        let (full, mut end) = match newest.take() {
            Some(full) if config.changes_every.is_none() => (full, None),
            Some(full) => match End::find(&repository, &full).await {
                Ok(end) => (full, Some(end)),
                Err(ChangesError::Store(error)) => return Err(error.into()),
                // The batches in the store do not form a chain: only a full backup can be continued.
                Err(error) => {
                    tracing::warn!(error = describe(&error), "changes do not lead on: a full backup follows");
                    continue;
                }
            },
            None => {
                let full = make(agent, config).await?;
                let end = End::of(&full)?;
                (full, config.changes_every.map(|_| end))
            }
        };
        tracing::debug!(cluster = %repository.cluster, full = %full.about.name, "the newest full backup");
        agent.backup_scheduler.known().full = full.about.name.to_string();
        if config.prune && pruned != Some(full.about.name) {
            pruned = Some(full.about.name);
            // A failure to remove old backups does not prevent new ones.
            let beside = match prune(&repository, config.keep, Some(history), Timestamp::now(), false).await {
                Ok(gone) => {
                    agent.backup_scheduler.known().unverified = u32::try_from(gone.ignored.len()).unwrap_or(u32::MAX);
                    if !gone.ignored.is_empty() {
                        tracing::warn!(
                            count = gone.ignored.len(),
                            "backups cannot be verified, or are from the future"
                        );
                    }
                    let (fulls, changes, locked) = (gone.fulls.len(), gone.changes.len(), gone.locked.len());
                    if fulls + changes + locked > 0 {
                        tracing::info!(fulls, changes, locked, "old backups removed");
                    }
                    None
                }
                Err(error) => {
                    tracing::warn!(error = describe(&error), "old backups are not removed");
                    Some(format!("old backups are not removed: {}", describe(&error)))
                }
            };
            *agent.backup_scheduler.beside.lock().unwrap_or_else(PoisonError::into_inner) = beside;
        }
        // Where changes are recorded, the next batch shows whether that works.
        if end.is_none() {
            agent.backup_scheduler.is_well();
        }
        newest = match &mut end {
            None => {
                sleep(due(config.every, full.about.name.taken())).await;
                Some(make(agent, config).await?)
            }
            Some(end) => match follow(agent, config, &repository, &full, end, client.clone()).await {
                Ok(next) => Some(next),
                // etcd has compacted the next revisions: only a full backup holds them now.
                Err(Lost::Compacted) => {
                    tracing::warn!("changes were compacted before they were written down: a full backup follows");
                    None
                }
                // An operator or a rule of the store removed it: a newer full backup of an operator may continue the
                // chain.
                Err(Lost::Gone) => {
                    tracing::warn!(full = %full.about.name, "the full backup that changes were written since is gone");
                    self::newest(agent, &repository, history).await?
                }
                Err(Lost::Wrong(error)) => return Err(error),
            },
        };
    }
}

/// The time until the next run of this interval.
pub(crate) fn due(every: Duration, last: Timestamp) -> Duration {
    let age = Timestamp::now().duration_since(last);
    every.saturating_sub(Duration::try_from(age).unwrap_or_default())
}

/// The newest verified full backup of the history in force. Rejected ones are counted.
async fn newest(
    agent: &Agent,
    repository: &Repository,
    history: ClusterId,
) -> Result<Option<Manifest>, SchedulerError> {
    let found = repository.found().await?;
    for (name, error) in &found.refused {
        tracing::warn!(backup = %name, error = describe(error), "a backup is ignored");
    }
    agent.backup_scheduler.known().unverified = u32::try_from(found.refused.len()).unwrap_or(u32::MAX);
    Ok(found.newest_of(history))
}

/// Makes a full backup, after any other that is being made here.
async fn make(agent: &Arc<Agent>, config: &BackupConfig) -> Result<Manifest, SchedulerError> {
    let _alone = agent.backup_scheduler.making.lock().await;
    let (maker, order) = (Arc::clone(agent), config.order.clone());
    let making = Box::pin(async move { backup::take(&maker, &order, &TransferProgress::default()).await });
    let manifest = agent.background.run(making).await?;
    tracing::info!(backup = %manifest.about.name, bytes = manifest.object.bytes, "backup made");
    Ok(manifest)
}

enum Lost {
    /// etcd has compacted the next revisions.
    Compacted,
    /// The full backup is not in the store any more.
    Gone,
    Wrong(SchedulerError),
}

impl<E: Into<SchedulerError>> From<E> for Lost {
    fn from(error: E) -> Self {
        Self::Wrong(error.into())
    }
}

/// Records changes after the last batch. When it is due, the next full backup is made meanwhile: this returns it once
/// changes are recorded up to the last revision that it can hold, so that every revision in between can be restored.
async fn follow(
    agent: &Arc<Agent>,
    config: &BackupConfig,
    repository: &Repository,
    full: &Manifest,
    end: &mut End,
    mut client: Client,
) -> Result<Manifest, Lost> {
    let every = config.changes_every.unwrap_or(config.every);
    let cluster_id = full.about.cluster_id;
    let Order { signer, seals, .. } = &config.order;
    // Changes since a backup that is not in the store restore nothing.
    let write = async |end: &mut End, lines: &Lines| {
        if lines.last().is_none() {
            return Ok(());
        }
        match repository.manifest(full.about.name).await {
            Err(FullError::Incomplete { .. }) => return Err(Lost::Gone),
            found => found?,
        };
        end.write(repository, signer, cluster_id, seals, lines).await.map_err(Lost::from)
    };
    let options = WatchOptions::new().with_all_keys().with_start_revision(end.revision + 1);
    let mut watching = client.watch_client().max_decoding_message_size(LARGEST_MESSAGE);
    let mut watch = bounded(async { Ok(watching.watch("", Some(options)).await?) }).await?;
    // The watch delivers all earlier changes now, and they get this time.
    end.late = backup::now(&mut client).await?.revision();
    let mut next = std::pin::pin!(async {
        sleep(due(config.every, full.about.name.taken())).await;
        make(agent, config).await
    });
    let mut made: Option<Manifest> = None;
    let mut leases = Leases { client: client.clone(), known: BTreeMap::new() };
    let mut lines = Lines::default();
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // Up to this revision `lines` and the earlier batches are complete: every revision changes a key, and etcd reports
    // it.
    let mut seen = end.revision;
    loop {
        if let Some(next) = made.take_if(|next| seen >= next.most()) {
            write(end, &lines).await?;
            return Ok(next);
        }
        tokio::select! {
            message = watch.message() => {
                let Some(message) = message? else { return Err(SchedulerError::WatchLost(String::new()).into()) };
                if message.compact_revision() > 0 {
                    return Err(Lost::Compacted);
                }
                if message.canceled() {
                    return Err(SchedulerError::WatchLost(message.cancel_reason().to_owned()).into());
                }
                let now = Timestamp::now();
                if lines.last().is_some_and(|(_, last)| now < last) {
                    // The clock was set back: times within a batch must ascend.
                    write(end, &lines).await?;
                    lines = Lines::default();
                }
                for change in changes(&message, now, &mut leases).await {
                    seen = change.revision;
                    lines.push(&change).map_err(ChangesError::from)?;
                }
                if lines.text().len() < LARGE {
                    continue;
                }
            }
            _ = tick.tick() => {}
            next = &mut next, if made.is_none() => {
                made = Some(next?);
                continue;
            }
        }
        // The current revision of the cluster, also when this member is behind.
        let asked = Timestamp::now();
        let revision = backup::now(&mut client).await?.revision();
        write(end, &lines).await?;
        lines = Lines::default();
        agent.backup_scheduler.is_well();
        let mut known = agent.backup_scheduler.known();
        known.revision = end.revision;
        if revision <= end.revision {
            known.covered = Some(moment(asked));
        }
    }
}

/// The changes of a message, by revision. etcd never splits a revision.
async fn changes(message: &WatchResponse, at: Timestamp, leases: &mut Leases) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    for event in message.events() {
        let Some(kv) = event.kv() else { continue };
        let key = kv.key().to_vec();
        let request = match event.event_type() {
            EventType::Delete => Event::Delete { key },
            EventType::Put => {
                let (value, lease) = (kv.value().to_vec(), kv.lease());
                Event::Put { key, value, lease, ttl: leases.ttl(lease).await }
            }
        };
        match changes.last_mut() {
            Some(last) if last.revision == kv.mod_revision() => last.events.push(request),
            _ => changes.push(Change { revision: kv.mod_revision(), at, events: vec![request] }),
        }
    }
    changes
}

/// The TTLs of leases: a watch does not report them.
struct Leases {
    client: Client,
    known: BTreeMap<i64, i64>,
}

impl Leases {
    /// Each is requested once. 0 for no lease, and for one that does not exist any more.
    async fn ttl(&mut self, lease: i64) -> i64 {
        /// More than clusters use at a time; a lease that was evicted costs another call.
        const MOST: usize = 100_000;
        if lease == 0 {
            return 0;
        }
        if let Some(known) = self.known.get(&lease) {
            return *known;
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        let asked = bounded(async { Ok(self.client.lease_time_to_live(lease, None).await?.granted_ttl()) }).await;
        let ttl = asked.unwrap_or(0).max(0);
        self.known.insert(lease, ttl);
        ttl
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_settings_are_not_taken_for_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = Root::open(dir.path()).expect("root");
        let stamp = || BackupScheduler::open(&root).expect("a scheduler").report(&root).map(|report| report.stamp);
        assert_eq!(stamp(), None, "it was told nothing");
        std::fs::create_dir_all(root.backups().parent().expect("a directory")).expect("a directory");
        std::fs::write(root.backups(), [0xff; 7]).expect("a damaged file");
        assert_eq!(stamp().as_deref(), Some(DAMAGED));
    }
}
