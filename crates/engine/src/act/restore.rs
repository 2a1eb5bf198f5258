//! The one snapshot of a backup → the data of every member, and the check that all members hold the same data.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use jiff::Timestamp;
use raftsman_api::v1::restore_data_request::Part;
use raftsman_api::v1::{
    CompareReply, CompareRequest, ConfigureEtcdRequest, Contents, HandshakeRequest, ReportRequest, RestoreDataHead,
    RestoreDataRequest, RestoreHow, StopEtcdRequest, Target,
};
use raftsman_backup::{Keys, Point, RestoreTarget};
use raftsman_core::action::{RestoreAction, StartData};
use raftsman_core::desired::{CLOSED_PORT, ClientAccess};
use raftsman_core::observed::{ClusterId, Ledger, Observed, Restoration, SnapshotSource, View};
use raftsman_core::plan::restore::{decide, untried};
use raftsman_core::spec::{EtcdVersion, Name, RestoreFrom};
use secrecy::ExposeSecret as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;

use super::pki::certify_client;
use super::{ActError, Executor};
use crate::backup::{self, Accepted, BackupError, BackupRepository};
use crate::restore_test::{RestoreTestResult, Stage, run_restore_test};
use crate::secrets;
use crate::stack::StackHandle;

const CHUNK: usize = 1 << 20;
/// No cluster makes so many writes between the last observation and now.
const BUMP: u64 = 1_000_000_000;
/// How long members that were just restored may take to connect to each other.
const RETRY_FOR: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(100);

/// Where the snapshot of a restoration is.
pub(crate) fn snapshot(cluster: &StackHandle, file: &str) -> PathBuf {
    cluster.fleet.store.dir().join("snapshots").join(file)
}

/// The highest revision that was observed of a cluster.
pub(crate) fn seen(observed: &Observed) -> i64 {
    let answers = observed.answers().map(|(_, etcd)| etcd).map(|etcd| etcd.revision);
    answers.max().unwrap_or(0).max(observed.ledger.etcd.last_revision)
}

/// The point to restore that the file names.
fn target(from: &RestoreFrom) -> Result<RestoreTarget, ActError> {
    let wrong = |what: &str| ActError::NoSuchPoint(what.to_owned());
    Ok(match from {
        RestoreFrom { backup: Some(name), .. } => RestoreTarget::Backup(name.parse().map_err(|_| wrong(name))?),
        RestoreFrom { revision: Some(revision), .. } => {
            RestoreTarget::Revision(i64::try_from(*revision).map_err(|_| wrong(&revision.to_string()))?)
        }
        RestoreFrom { at: Some(at), .. } => RestoreTarget::Moment(at.parse().map_err(|_| wrong(at))?),
        _ => RestoreTarget::Newest,
    })
}

/// Whether a machine has all that a restore needs now.
fn is_able(observed: &Observed, machine: &Name, version: EtcdVersion) -> bool {
    let report = observed.report(machine);
    report.is_some_and(|report| report.etcd.installed.contains_key(&version))
}

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &RestoreAction) -> Result<(), ActError> {
    match action {
        RestoreAction::PrepareRestore => Box::pin(executor.prepare_restore()).await,
        RestoreAction::RestoreBackup { machine, version } => Box::pin(executor.restore_backup(machine, *version)).await,
        RestoreAction::CompareRestored { machines } => Box::pin(executor.compare_restored(machines)).await,
    }
}

impl Executor<'_> {
    /// The backup that the file bootstraps a new cluster from: tested, and recorded as a restoration.
    async fn prepare_restore(self) -> Result<(), ActError> {
        let cluster = self.cluster();
        let from = cluster.desired.etcd.settings.restore_from.clone().unwrap_or_default();
        let (fleet, name) = (&cluster.fleet, &cluster.desired.name);
        let accepted = Accepted { unsigned: from.trust_unsigned, ..Accepted::default() };
        let at = backup::source(fleet, name, from.cluster.as_deref(), &accepted).await.map_err(Box::new)?;
        let keys = match &from.key {
            Some(key) => {
                let text =
                    secrets::resolve(key, fleet.context.base()).map_err(|error| Box::new(BackupError::from(error)))?;
                backup::identities(text.expose_secret())
            }
            None => Keys::default(),
        };
        let point = at.find(target(&from)?, &keys).await.map_err(Box::new)?;
        let observed = self.observer.look_and_learn(self.lock).await?;
        let (restoration, _) =
            self.restorable(&at, from.cluster.as_deref(), &point, &observed, &keys, &|_, _| {}).await?;
        cluster.remember(self.lock, |ledger| decide(ledger, restoration)).await?;
        Ok(())
    }

    /// Tries a point, and makes one snapshot of it for all members.
    pub(crate) async fn restorable(
        self,
        at: &BackupRepository,
        from: Option<&str>,
        point: &Point,
        observed: &Observed,
        keys: &Keys,
        watch: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Result<(Restoration, RestoreTestResult), ActError> {
        let cluster = self.cluster();
        let name = point.full.about.name;
        let untried = untried(&cluster.desired, observed, name, point.last(), Timestamp::now());
        // Machines that can read it themselves need no other snapshot, as long as there is nothing to add.
        let as_it_is = !point.is_encrypted() && point.batches.is_empty() && point.revision.is_none();
        let (source, path) = match &untried.source {
            SnapshotSource::File(file) if !as_it_is => (untried.source.clone(), Some(snapshot(cluster, file))),
            _ => (SnapshotSource::Store(from.map(ToOwned::to_owned)), None),
        };
        let tried = self.try_out(at, point, keys, path.as_deref(), watch).await?;
        let beyond = u64::try_from(seen(observed) - tried.revision).unwrap_or(0);
        let restoration = Restoration {
            history: Some(point.full.about.cluster_id),
            manifest: Some(Box::new(point.full.clone())),
            revision: tried.revision,
            keys: tried.keys,
            bump: BUMP + beyond,
            source,
            sha256: tried.sha256.clone().unwrap_or_else(|| point.full.snapshot.sha256.clone()),
            ..untried
        };
        Ok((restoration, tried))
    }

    /// Restores a point into a temporary etcd on one of the cluster's machines.
    pub(crate) async fn try_out(
        self,
        at: &BackupRepository,
        point: &Point,
        keys: &Keys,
        save: Option<&Path>,
        watch: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Result<RestoreTestResult, ActError> {
        let (desired, observed) = (&self.cluster().desired, self.observer.look().await?);
        let version = desired.etcd.version;
        let leader = View::of(&observed).leader;
        // A machine that has all that a restore needs, and is not the leader: the leader has more load.
        let able =
            desired.etcd.members.iter().map(|member| &member.name).filter(|name| is_able(&observed, name, version));
        let machine = able.min_by_key(|name| leader == Some(*name)).ok_or(ActError::NoMemberAnswers)?;
        self.install_tool(machine, version).await?;
        let agent = &self.link(machine)?;
        certify_client(self.cluster(), agent, self.generation(), ClientAccess::Open).await?;
        let stage = Stage { machine: machine.clone(), agent, version };
        Ok(run_restore_test(at, point, keys, &stage, save, watch).await.map_err(Box::new)?)
    }

    fn restoration(self) -> Result<Restoration, ActError> {
        self.cluster()
            .ledger()
            .etcd
            .restoration()
            .cloned()
            .ok_or_else(|| ActError::NothingToRestore(self.cluster().desired.name.clone()))
    }

    async fn restore_backup(self, machine: &Name, version: EtcdVersion) -> Result<(), ActError> {
        let restoration = self.restoration()?;
        let head = self.head(&restoration, machine)?;
        let prepared = RestoreDataHead { how: RestoreHow::Prepared.into(), ..head.clone() };
        let prepared = futures::stream::iter([RestoreDataRequest { part: Some(Part::Head(prepared)) }]);
        match self.agent(machine).await?.restore_data(self.stamped(prepared)).await {
            Ok(_) => return Ok(()),
            // Made since, or its agent was restarted: the data is made now.
            Err(status) if status.code() == tonic::Code::NotFound => {}
            Err(status) => return Err(status.into()),
        }
        self.make_data(&restoration, machine, version, RestoreHow::Unspecified).await
    }

    /// While members still serve: every machine that is able makes its member's data beforehand.
    pub(crate) async fn prepare_data(self, restoration: &Restoration) -> Result<(), ActError> {
        let observed = self.observer.look().await?;
        let version = restoration.version;
        let able = restoration.members.keys().filter(|name| is_able(&observed, name, version));
        let making = able.map(|machine| self.make_data(restoration, machine, version, RestoreHow::Prepare));
        try_join_all(making).await?;
        Ok(())
    }

    /// Has a machine make the data of its member.
    async fn make_data(
        self,
        restoration: &Restoration,
        machine: &Name,
        version: EtcdVersion,
        how: RestoreHow,
    ) -> Result<(), ActError> {
        self.install_tool(machine, version).await?;
        let cluster = self.cluster();
        let head = RestoreDataHead { how: how.into(), ..self.head(restoration, machine)? };
        let mut agent = self.agent(machine).await?;
        let path = match &restoration.source {
            SnapshotSource::File(file) => snapshot(cluster, file),
            SnapshotSource::Store(from) => {
                // The restore uses exactly what was verified when it was approved: the hashes are in the ledger.
                let (name, accepted) = (&cluster.desired.name, Accepted::default());
                let at = backup::source(&cluster.fleet, name, from.as_deref(), &accepted).await.map_err(Box::new)?;
                let stored = match &restoration.manifest {
                    Some(full) => at.point_of(full).map_err(Box::new)?,
                    None => at.full(restoration.backup).await.map_err(Box::new)?,
                };
                let head = RestoreDataHead { from: Some(stored), ..head };
                let head = futures::stream::iter([RestoreDataRequest { part: Some(Part::Head(head)) }]);
                agent.restore_data(self.stamped(head)).await?;
                return Ok(());
            }
        };
        let failed = |source| ActError::Read { path: path.clone(), source };
        let mut file = std::fs::File::open(&path).map_err(failed)?;
        let head = RestoreDataHead { bytes: file.metadata().map_err(failed)?.len(), ..head };
        let (parts, sent) = mpsc::channel(4);
        let reading = tokio::task::spawn_blocking(move || -> std::io::Result<()> {
            let mut part = Part::Head(head);
            loop {
                if parts.blocking_send(RestoreDataRequest { part: Some(part) }).is_err() {
                    // The receiver has ended, and its own result says why.
                    return Ok(());
                }
                let mut bytes = Vec::with_capacity(CHUNK);
                if file.by_ref().take(CHUNK as u64).read_to_end(&mut bytes)? == 0 {
                    return Ok(());
                }
                part = Part::Chunk(bytes);
            }
        });
        let restored = agent.restore_data(self.stamped(ReceiverStream::new(sent))).await;
        // A file that could not be read to its end has another digest; the cause is here.
        if let Ok(Err(source)) = reading.await {
            return Err(ActError::Read { path, source });
        }
        restored?;
        Ok(())
    }

    /// What etcd's tool gets on this machine.
    fn head(self, restoration: &Restoration, machine: &Name) -> Result<RestoreDataHead, ActError> {
        let url = restoration.members.get(machine).ok_or_else(|| ActError::NoSuchMember(machine.clone()))?;
        let all: Vec<String> = restoration.members.iter().map(|(name, url)| format!("{name}={url}")).collect();
        Ok(RestoreDataHead {
            version: restoration.version.to_string(),
            sha256: restoration.sha256.clone(),
            name: machine.to_string(),
            initial_cluster: all.join(","),
            token: format!("{}-{}", self.cluster().desired.etcd.token, restoration.since.as_millisecond()),
            peer_url: url.clone(),
            bump_revision: restoration.bump,
            ..RestoreDataHead::default()
        })
    }

    /// Puts etcd's tool on the machine, unless it is there.
    pub(super) async fn install_tool(self, machine: &Name, version: EtcdVersion) -> Result<(), ActError> {
        let (cluster, fleet) = (self.cluster(), &self.cluster().fleet);
        let tool = fleet.artifacts.found_tool(&cluster.desired.etcd.source, version, fleet.context.base()).await?;
        self.install(machine, &tool, "etcdutl").await
    }

    /// Members serve at a port that no client uses, with certificates only, so that no client reads data before all
    /// members hold the same.
    async fn compare_restored(self, machines: &[Name]) -> Result<(), ActError> {
        let restoration = self.restoration()?;
        let compared = self.compared(&restoration, machines).await;
        // Whatever the result: members do not stay at that port.
        let stopped = join_all(machines.iter().map(|machine| self.stop_at_once(machine))).await;
        let cluster = compared?;
        stopped.into_iter().collect::<Result<Vec<_>, _>>()?;
        try_join_all(machines.iter().map(async |machine| {
            self.configure_etcd(machine, restoration.version, None, None).await?;
            certify_client(self.cluster(), self.link(machine)?.as_ref(), self.generation(), ClientAccess::Open).await
        }))
        .await?;
        // Before clients have access: data that clients write from now on is not compared any more.
        let agreed = |ledger: &mut Ledger| ledger.etcd.restoration_mut().into_iter().for_each(|it| it.agreed = true);
        self.cluster().remember(self.lock, agreed).await?;
        for (number, machine) in machines.iter().enumerate() {
            self.start_etcd(machine, restoration.version, StartData::Of(cluster)).await?;
            // A member that starts asks the others whether they hold the same data, and waits long for one that listens
            // and does not serve yet.
            if number + 1 < machines.len() {
                self.answers_members(machine).await?;
            }
        }
        if let SnapshotSource::File(file) = &restoration.source {
            // It holds all data in clear text and is not needed any more. If it cannot be removed, the restore is still
            // complete.
            let _ = std::fs::remove_file(snapshot(self.cluster(), file));
        }
        Ok(())
    }

    /// Waits until a member that was started answers other members. It answers clients only once there is a majority.
    pub(super) async fn answers_members(self, machine: &Name) -> Result<(), ActError> {
        let begun = Instant::now();
        let address = self.member(machine)?.address.to_string();
        while begun.elapsed() < RETRY_FOR {
            let itself = Target { name: machine.to_string(), address: address.clone() };
            let request = HandshakeRequest { targets: vec![itself] };
            let asked = self.agent(machine).await?.handshake(request).await?.into_inner();
            if asked.results.iter().all(|result| result.error.is_empty()) {
                break;
            }
            sleep(AGAIN).await;
        }
        Ok(())
    }

    /// No client uses it, so it need not transfer leadership.
    async fn stop_at_once(self, machine: &Name) -> Result<(), ActError> {
        let request = StopEtcdRequest { grace_seconds: 1, ..Default::default() };
        self.agent(machine).await?.stop_etcd(self.stamped(request)).await?;
        Ok(())
    }

    /// The id of the cluster that they form, once all hold the same data.
    async fn compared(self, restoration: &Restoration, machines: &[Name]) -> Result<ClusterId, ActError> {
        let (cluster, version) = (self.cluster(), restoration.version);
        let timers = cluster.desired.etcd.timers(&cluster.ledger()).ok_or(ActError::NotMeasured)?;
        try_join_all(machines.iter().map(async |machine| {
            // A killed run may have left it running.
            self.stop_at_once(machine).await?;
            let config = cluster.desired.etcd.closed_config(self.member(machine)?, version, timers);
            let request = ConfigureEtcdRequest { config: config.text, digest: config.digest };
            self.agent(machine).await?.configure_etcd(self.stamped(request)).await?;
            certify_client(cluster, self.link(machine)?.as_ref(), self.generation(), ClientAccess::Closed).await
        }))
        .await?;
        let started = try_join_all(machines.iter().map(async |machine| {
            let report = self.agent(machine).await?.report(ReportRequest { into_data: false }).await?.into_inner();
            let data = report.etcd.and_then(|etcd| etcd.data).unwrap_or_default();
            let cluster = ClusterId(data.cluster_id);
            self.start_etcd(machine, version, StartData::Of(cluster)).await?;
            Ok::<_, ActError>(cluster)
        }))
        .await?;
        let begun = Instant::now();
        loop {
            let tried = try_join_all(machines.iter().map(async |machine| -> Result<CompareReply, ActError> {
                let request = CompareRequest { port: u32::from(CLOSED_PORT) };
                Ok(self.agent(machine).await?.compare(request).await?.into_inner())
            }));
            let held: Vec<CompareReply> = match tried.await {
                Ok(held) => held,
                Err(error) if begun.elapsed() > RETRY_FOR => return Err(error),
                Err(_) => {
                    sleep(AGAIN).await;
                    continue;
                }
            };
            let revision = held.iter().map(|one| one.revision).max().unwrap_or(0);
            let same = held.windows(2).all(|two| two[0] == two[1]);
            if !same && begun.elapsed() < RETRY_FOR {
                // A member may have applied an entry that another is about to apply.
                sleep(AGAIN).await;
                continue;
            }
            let Contents { keys, .. } = held.first().and_then(|one| one.contents).unwrap_or_default();
            if same && keys == restoration.keys && revision > restoration.revision {
                return started.first().copied().ok_or(ActError::NoMemberAnswers);
            }
            let found: Vec<String> = machines
                .iter()
                .zip(&held)
                .map(|(name, one)| {
                    let Contents { hash, keys, .. } = one.contents.unwrap_or_default();
                    format!("{name} has {keys} keys with the hash {hash:x} at revision {}", one.revision)
                })
                .collect();
            return Err(ActError::RestoredOtherwise { keys: restoration.keys, found: found.join(", ") });
        }
    }
}
