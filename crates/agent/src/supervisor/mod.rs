//! wanted running or stopped → etcd as a supervised process that outlives the agent.
//!
//! One task owns the process; everybody else sends it a command or looks at its [`View`]. There is no pid file: after a
//! restart the agent finds its etcd by the argument that only this etcd has.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::access::certs::{CertsError, Store};
use crate::etcd::bootstrap::{self, Start};
use crate::etcd::data::{self, DataError};
use crate::etcd::wal::{self, Data, Ids};
use crate::etcd::{self, EtcdError};
use crate::files::{self, FileError};
use crate::machine::disk;
use crate::root::Root;
use crate::status::describe;
use crate::supervisor::launch::{LaunchError, Launcher, Run};
use crate::supervisor::process::Handle;

pub mod confine;
pub mod launch;
pub mod pins;
pub mod ports;
pub mod process;
pub mod systemd;

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);
/// A run of this length was a good one.
const GOOD_RUN: Duration = Duration::from_secs(10);
const LOOK_FOR_IDS: Duration = Duration::from_millis(200);
/// How long a process that ignores SIGKILL is waited for, such as one that hangs in a dead disk.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// The grace when a stop that was interrupted is finished.
const USUAL_GRACE: Duration = Duration::from_secs(10);
const LEAST_FREE: u64 = 64 << 20;
/// Why etcd was not started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Not there yet.
    #[error("etcd {0} is not installed: install it first")]
    NotInstalled(String),
    /// Not there yet.
    #[error("etcd is not configured: write its configuration first")]
    NotConfigured,
    /// Not there yet.
    #[error("etcd has no {0} certificate: request and store one first")]
    NoCertificate(&'static str),
    /// Somebody else listens.
    #[error("port {port} is held by {holder}: etcd cannot listen on it")]
    PortTaken {
        /// The port.
        port: u16,
        /// Who holds it.
        holder: String,
    },
    /// The data is not what the caller believes.
    #[error("etcd's data is not as expected: {0}")]
    OtherData(String),
    /// No room.
    #[error("only {} MiB are free on the machine's disk: etcd needs at least {}", free >> 20, LEAST_FREE >> 20)]
    DiskFull {
        /// Free bytes.
        free: u64,
    },
    /// It works on the data.
    #[error("etcd runs, or will be started again: stop it before its data is touched")]
    NotStopped,
    /// It runs with the other members.
    #[error("etcd is running: stop it before it is started alone")]
    NotAlone,
    /// Another version runs.
    #[error("etcd {running} is running: stop it before starting {wanted}")]
    OtherVersion {
        /// What runs.
        running: String,
        /// What was asked for.
        wanted: String,
    },
    /// The process could not be made.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The process could not be signalled or watched.
    #[error("etcd's process {pid} could not be signalled or watched")]
    Process {
        /// Its number.
        pid: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It does not die.
    #[error("etcd's process {pid} did not end after SIGKILL: its disk may hang")]
    Immortal {
        /// Its number.
        pid: u32,
    },
    /// etcd's files are at fault.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The data is not what the caller believes, or stays where it is.
    #[error(transparent)]
    Data(#[from] DataError),
    /// etcd's certificates are at fault.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The record is not what it should be.
    #[error("service.json is malformed")]
    Malformed(#[source] serde_json::Error),
    /// The agent ends.
    #[error("the agent is shutting down")]
    Closed,
}

/// What the data directory must hold before a start, and how etcd starts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing.
    Empty {
        /// The lines of etcd's configuration that say which cluster it is born into; none when the configuration or an
        /// earlier try says so.
        bootstrap: String,
    },
    /// A member's data.
    Cluster {
        /// Of this cluster.
        id: u64,
        /// Forget all other members and go on alone, for this one start.
        alone: bool,
    },
}

/// The digests of the trust bundles; empty where there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trust {
    /// Towards other members.
    pub peer: String,
    /// Towards clients.
    pub server: String,
}

impl Trust {
    /// The trust on disk.
    fn read(root: &Root) -> Result<Self, CertsError> {
        let digest = |dir| Store::new(dir).trust_digest().map(Option::unwrap_or_default);
        Ok(Self { peer: digest(root.peer_tls())?, server: digest(root.server_tls())? })
    }
}

/// What etcd was last asked to do, and with what it was started. Kept in `service.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Whether etcd should run.
    pub running: bool,
    /// The version of the last start.
    pub version: String,
    /// The digest of the configuration of the last start.
    pub config_digest: String,
    /// The trust that etcd read at the last start: a later one is on disk only.
    pub trust: Trust,
    /// Whether the last start was told to forget all other members.
    pub alone: bool,
    /// Whether etcd was ever started here.
    pub ever_started: bool,
    /// When it was started or stopped last.
    pub since: Option<Timestamp>,
    /// Restarts since it was last asked to start.
    pub restarts: u32,
    /// How the last run ended.
    pub last_exit: String,
    /// Whose data it ran on: a member that lost its data must not come back under the same name.
    pub ids: Option<Ids>,
    /// The version of a restart that was ordered and in which etcd was not started yet: the next start is of this version.
    pub restarting: Option<String>,
}

/// What the process does at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    #[default]
    Stopped,
    /// Runs as this process.
    Running(u32),
    /// Ended by itself, will be started again.
    Backoff,
}

/// The service as everybody may see it.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// What was asked.
    pub record: Record,
    /// What is.
    pub state: State,
}

enum Ask {
    Start { version: String, expected: Expected, reply: oneshot::Sender<Result<u32, ServiceError>> },
    Restart { version: String, cluster: u64, grace: Duration, reply: oneshot::Sender<Result<u32, ServiceError>> },
    Stop { grace: Duration, resume: Option<Duration>, reply: oneshot::Sender<Result<(), ServiceError>> },
    Clear { member: u64, reply: oneshot::Sender<Result<(), ServiceError>> },
}

/// The way to the task that owns etcd's process.
#[derive(Clone, Debug)]
pub struct Service {
    asks: mpsc::Sender<Ask>,
    view: watch::Receiver<View>,
}

impl Service {
    /// Takes up what was wanted: adopts the etcd that runs, or starts it when it should run and does not.
    pub async fn open(root: Root, address: IpAddr, launcher: Launcher) -> Result<Self, ServiceError> {
        let record: Record = match files::read(&root.service())? {
            Some(text) => serde_json::from_str(&text).map_err(ServiceError::Malformed)?,
            None => Record::default(),
        };
        let (asks, inbox) = mpsc::channel(8);
        let (shown, view) = watch::channel(View::default());
        let mut supervisor =
            Supervisor { root, launcher, address, record, phase: Phase::Stopped, delay: FIRST_DELAY, shown };
        if supervisor.record.ever_started {
            supervisor.take_up().await;
        }
        supervisor.show();
        tokio::spawn(supervisor.run(inbox));
        Ok(Self { asks, view })
    }

    /// The service now.
    pub fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// Starts etcd and keeps it running; its process number.
    pub async fn start(&self, version: String, expected: Expected) -> Result<u32, ServiceError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(Ask::Start { version, expected, reply }).await.map_err(|_| ServiceError::Closed)?;
        answer.await.map_err(|_| ServiceError::Closed)?
    }

    /// Stops etcd and starts it again on this cluster's data; its process number. Once it is sent, the order is carried
    /// out whether or not the answer is waited for.
    pub async fn restart(&self, version: String, cluster: u64, grace: Duration) -> Result<u32, ServiceError> {
        let (reply, answer) = oneshot::channel();
        let ask = Ask::Restart { version, cluster, grace, reply };
        self.asks.send(ask).await.map_err(|_| ServiceError::Closed)?;
        answer.await.map_err(|_| ServiceError::Closed)?
    }

    /// Stops etcd and keeps it stopped, or starts it again after a while; returns when it is gone.
    pub async fn stop(&self, grace: Duration, resume: Option<Duration>) -> Result<(), ServiceError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(Ask::Stop { grace, resume, reply }).await.map_err(|_| ServiceError::Closed)?;
        answer.await.map_err(|_| ServiceError::Closed)?
    }

    /// Puts the data of this member away, and forgets that there ever was any. Only while etcd is stopped.
    pub async fn clear(&self, member: u64) -> Result<(), ServiceError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(Ask::Clear { member, reply }).await.map_err(|_| ServiceError::Closed)?;
        answer.await.map_err(|_| ServiceError::Closed)?
    }
}

struct Running {
    handle: Handle,
    run: Run,
    since: Instant,
}

enum Phase {
    Stopped,
    Running(Running),
    Backoff(Instant),
}

enum Event {
    Ask(Option<Ask>),
    Ended,
    Due,
    LookForIds,
}

/// All that a start needs to know.
struct Ready {
    digest: String,
    /// The whole file.
    config: String,
    ids: Option<Ids>,
}

struct Supervisor {
    root: Root,
    launcher: Launcher,
    address: IpAddr,
    record: Record,
    phase: Phase,
    delay: Duration,
    shown: watch::Sender<View>,
}

impl Supervisor {
    async fn run(mut self, mut inbox: mpsc::Receiver<Ask>) {
        loop {
            let event = match &self.phase {
                Phase::Stopped => Event::Ask(inbox.recv().await),
                Phase::Backoff(due) => tokio::select! {
                    ask = inbox.recv() => Event::Ask(ask),
                    () = sleep_until(*due) => Event::Due,
                },
                Phase::Running(running) => tokio::select! {
                    ask = inbox.recv() => Event::Ask(ask),
                    () = running.handle.ended() => Event::Ended,
                    () = sleep(LOOK_FOR_IDS), if self.record.ids.is_none() => Event::LookForIds,
                },
            };
            match event {
                Event::Ask(None) => return,
                Event::Ask(Some(Ask::Start { version, expected, reply })) => {
                    let started = self.start(&version, &expected).await;
                    self.show();
                    let _ = reply.send(started);
                }
                Event::Ask(Some(Ask::Restart { version, cluster, grace, reply })) => {
                    let restarted = self.restart_as_ordered(&version, cluster, grace).await;
                    self.show();
                    let _ = reply.send(restarted);
                }
                Event::Ask(Some(Ask::Stop { grace, resume, reply })) => {
                    let stopped = self.stop(grace, resume).await;
                    self.show();
                    let _ = reply.send(stopped);
                }
                Event::Ask(Some(Ask::Clear { member, reply })) => {
                    let cleared = self.clear(member).await;
                    self.show();
                    let _ = reply.send(cleared);
                }
                Event::Ended => self.ended().await,
                Event::Due => self.restart().await,
                Event::LookForIds => self.remember_ids(),
            }
            self.show();
        }
    }

    fn show(&self) {
        let state = match &self.phase {
            Phase::Stopped => State::Stopped,
            Phase::Running(running) => State::Running(running.handle.pid()),
            Phase::Backoff(_) => State::Backoff,
        };
        self.shown.send_replace(View { record: self.record.clone(), state });
    }

    async fn take_up(&mut self) {
        self.adopt().await;
        match (matches!(self.phase, Phase::Running(_)), self.record.running) {
            (true, true) | (false, false) => {}
            (false, true) => self.restart().await,
            (true, false) => {
                // A stop was interrupted together with the agent.
                if let Err(error) = self.stop(USUAL_GRACE, None).await {
                    tracing::error!(error = describe(&error), "etcd should be stopped and is not");
                }
            }
        }
    }

    async fn start(&mut self, version: &str, expected: &Expected) -> Result<u32, ServiceError> {
        let alone = matches!(expected, Expected::Cluster { alone: true, .. });
        if !matches!(self.phase, Phase::Running(_)) {
            self.adopt().await;
        }
        if let Phase::Running(running) = &self.phase {
            if self.record.version != version {
                let (running, wanted) = (self.record.version.clone(), version.to_owned());
                return Err(ServiceError::OtherVersion { running, wanted });
            }
            if alone && !self.record.alone {
                return Err(ServiceError::NotAlone);
            }
            let pid = running.handle.pid();
            if !self.record.running {
                self.record.running = true;
                self.save()?;
            }
            return Ok(pid);
        }
        let Ready { digest, config, ids } = self.check(version, expected)?;
        self.ports_are_free(&config)?;
        files::make_dir(&self.root.data(), 0o700)?;
        etcd::choose(&self.root, version)?;
        etcd::write_config(&self.root, &config)?;
        let before = self.record.clone();
        self.record.version = version.to_owned();
        self.record.restarts = 0;
        self.record.ids = ids;
        self.record.alone = alone;
        self.record.running = true;
        self.record.restarting = None;
        self.delay = FIRST_DELAY;
        let started = self.spawn(digest).await;
        if matches!(&started, Err(ServiceError::Launch(error)) if error.nothing_ran()) {
            // Nothing ran, so nothing is to be remembered or tried again.
            self.record = before;
            self.try_save();
        }
        started
    }

    /// At every moment in between etcd is wanted running: this agent, or the next, starts it.
    async fn restart_as_ordered(&mut self, version: &str, cluster: u64, grace: Duration) -> Result<u32, ServiceError> {
        let expected = Expected::Cluster { id: cluster, alone: false };
        if !matches!(self.phase, Phase::Running(_)) {
            self.adopt().await;
        }
        if !matches!(self.phase, Phase::Running(_)) {
            return self.start(version, &expected).await;
        }
        self.check(version, &expected)?;
        // One that must not be started costs no member that runs.
        launch::verify(&self.root, version).await?;
        self.record.running = true;
        self.record.restarting = Some(version.to_owned());
        self.save()?;
        self.halt(grace).await?;
        let started = self.start(version, &expected).await;
        if let Err(error) = &started {
            self.record.running = true;
            self.record.last_exit = describe(error);
            tracing::error!(
                error = self.record.last_exit,
                "etcd was stopped for a restart and did not start: tried again"
            );
            self.back_off();
        }
        started
    }

    /// All that can be known to go wrong, before anything is changed. Ports apart: etcd may still hold them itself.
    fn check(&self, version: &str, expected: &Expected) -> Result<Ready, ServiceError> {
        if !etcd::has(&self.root, version) {
            return Err(ServiceError::NotInstalled(version.to_owned()));
        }
        let (digest, config) = etcd::configuration(&self.root)?.ok_or(ServiceError::NotConfigured)?;
        for (purpose, dir) in [("peer", self.root.peer_tls()), ("server", self.root.server_tls())] {
            Store::new(dir).current_dir().ok_or(ServiceError::NoCertificate(purpose))?;
        }
        let (start, ids) = match (wal::look(&self.root.data()), expected) {
            (Data::Empty, Expected::Empty { bootstrap }) => (Start::Bootstrap(bootstrap), None),
            (Data::Present(ids), Expected::Cluster { id, alone }) if ids.cluster == *id => {
                (Start::Data { alone: *alone }, Some(ids))
            }
            (found, expected) => {
                let expected = match expected {
                    Expected::Empty { .. } => "no data".to_owned(),
                    Expected::Cluster { id, .. } => format!("data of the cluster {id:x}"),
                };
                return Err(ServiceError::OtherData(format!("expected {expected}, but {found}")));
            }
        };
        let config = bootstrap::prepared(&config, start)?;
        let free = disk::free_bytes(&self.root)?;
        if free < LEAST_FREE {
            return Err(ServiceError::DiskFull { free });
        }
        Ok(Ready { digest, config, ids })
    }

    fn ports_are_free(&self, config: &str) -> Result<(), ServiceError> {
        match ports::taken(&ports::wanted(config, self.address)).into_iter().next() {
            Some(taken) => Err(ServiceError::PortTaken { port: taken.port, holder: taken.holder }),
            None => Ok(()),
        }
    }

    /// The intent is on disk before the process is there: whoever finds the process knows what it is.
    async fn spawn(&mut self, config_digest: String) -> Result<u32, ServiceError> {
        self.record.config_digest = config_digest;
        self.record.trust = Trust::read(&self.root)?;
        self.record.ever_started = true;
        self.record.since = Some(Timestamp::now());
        self.save()?;
        let (pid, run) = self.launcher.launch(&self.root).await?;
        let handle = Handle::open(pid).map_err(|source| ServiceError::Process { pid, source })?;
        tracing::info!(pid, version = self.record.version, "etcd started");
        self.phase = Phase::Running(Running { handle, run, since: Instant::now() });
        Ok(pid)
    }

    /// Takes an etcd of ours that somebody else started: an agent before us.
    async fn adopt(&mut self) {
        let Some(handle) = self.launcher.running(&self.root).await else { return };
        tracing::info!(pid = handle.pid(), "etcd runs already: adopted");
        let run = self.launcher.adopted(&self.root).await;
        self.phase = Phase::Running(Running { handle, run, since: Instant::now() });
    }

    async fn ended(&mut self) {
        let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::Stopped) else { return };
        let lived = running.since.elapsed();
        self.record.last_exit = self.launcher.exit_summary(&self.root, running.run).await;
        self.record.since = Some(Timestamp::now());
        if lived >= GOOD_RUN {
            self.delay = FIRST_DELAY;
        }
        tracing::warn!(how = self.record.last_exit, delay = ?self.delay, "etcd ended by itself: it will be started again");
        self.back_off();
    }

    fn back_off(&mut self) {
        self.phase = Phase::Backoff(Instant::now() + self.delay);
        self.delay = (self.delay * 2).min(LONGEST_DELAY);
        self.try_save();
    }

    /// Starts etcd again as it was, on the data that it had.
    async fn restart(&mut self) {
        self.adopt().await;
        if matches!(self.phase, Phase::Running(_)) {
            return;
        }
        let data = wal::look(&self.root.data());
        if let Some(known) = self.record.ids {
            let problem = match &data {
                Data::Present(ids) if *ids == known => None,
                Data::Present(_) => Some("its data directory belongs to another member now".to_owned()),
                Data::Empty => Some("its data is gone".to_owned()),
                Data::Unreadable(problem) => Some(problem.clone()),
            };
            if let Some(problem) = problem {
                // A member that forgot what it promised could vote twice. The plan has to replace it.
                self.record.last_exit = format!("not started again: {problem}");
                tracing::error!(problem, "etcd is not started again");
                self.phase = Phase::Stopped;
                self.try_save();
                return;
            }
        }
        self.record.restarts = self.record.restarts.saturating_add(1);
        if let Err(error) = self.start_again(matches!(data, Data::Present(_))).await {
            self.record.last_exit = describe(&error);
            tracing::error!(error = self.record.last_exit, "etcd could not be started again");
            self.back_off();
        }
    }

    async fn start_again(&mut self, has_data: bool) -> Result<u32, ServiceError> {
        let (digest, config) = etcd::configuration(&self.root)?.ok_or(ServiceError::NotConfigured)?;
        // It would end at once, and for that moment look as if it ran.
        self.ports_are_free(&config)?;
        // Once there is data the bootstrap is over, and whoever forgot the other members did so at the first start.
        if has_data {
            let wanted = bootstrap::prepared(&config, Start::Data { alone: false })?;
            if wanted != config {
                etcd::write_config(&self.root, &wanted)?;
            }
            self.record.alone = false;
        }
        if let Some(version) = self.record.restarting.clone() {
            etcd::choose(&self.root, &version)?;
            self.record.version = version;
            self.record.restarting = None;
        }
        self.spawn(digest).await
    }

    async fn stop(&mut self, grace: Duration, resume: Option<Duration>) -> Result<(), ServiceError> {
        // What was stopped before stays stopped.
        let resume = resume.filter(|_| self.record.running);
        self.record.running = resume.is_some();
        self.record.restarting = None;
        self.save()?;
        self.halt(grace).await?;
        if let Some(pause) = resume {
            self.phase = Phase::Backoff(Instant::now() + pause);
        }
        Ok(())
    }

    /// Ends the process; whether it should run is for the caller to have written down.
    async fn halt(&mut self, grace: Duration) -> Result<(), ServiceError> {
        if !matches!(self.phase, Phase::Running(_)) {
            self.phase = Phase::Stopped;
            if self.record.ever_started {
                self.adopt().await;
            }
        }
        let Phase::Running(running) = &self.phase else { return Ok(()) };
        let handle = &running.handle;
        let pid = handle.pid();
        let process = |source| ServiceError::Process { pid, source };
        self.shown.send_modify(|view| view.record.running = self.record.running);
        handle.signal(Signal::TERM).map_err(process)?;
        if timeout(grace, handle.ended()).await.is_err() {
            tracing::warn!(pid, ?grace, "etcd did not end within its grace period: killed");
            handle.signal(Signal::KILL).map_err(process)?;
            timeout(KILL_LIMIT, handle.ended()).await.map_err(|_| ServiceError::Immortal { pid })?;
        }
        if let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::Stopped) {
            let how = self.launcher.exit_summary(&self.root, running.run).await;
            self.record.last_exit = format!("stopped as asked ({how})");
        }
        self.record.since = Some(Timestamp::now());
        tracing::info!(pid, "etcd stopped");
        self.save()
    }

    async fn clear(&mut self, member: u64) -> Result<(), ServiceError> {
        if !matches!(self.phase, Phase::Stopped) || self.launcher.running(&self.root).await.is_some() {
            return Err(ServiceError::NotStopped);
        }
        // In this order: after a crash in between there is no data, and clearing that is fine.
        data::put_away(&self.root, member)?;
        self.record.running = false;
        self.record.ever_started = false;
        self.record.ids = None;
        tracing::info!(member = format!("{member:x}"), "etcd's data put away");
        self.save()
    }

    fn remember_ids(&mut self) {
        if let Data::Present(ids) = wal::look(&self.root.data()) {
            self.record.ids = Some(ids);
            self.try_save();
        }
    }

    fn save(&self) -> Result<(), ServiceError> {
        let text = serde_json::to_vec_pretty(&self.record).map_err(ServiceError::Malformed)?;
        Ok(files::write(&self.root.service(), &text, 0o600)?)
    }

    /// For facts that are good to have, where a full disk must not stop the supervision.
    fn try_save(&self) {
        if let Err(error) = self.save() {
            tracing::warn!(error = describe(&error), "service.json could not be written");
        }
    }
}
