//! wanted running or stopped → a program as a supervised process that outlives the agent.
//!
//! One task owns the process; everything else sends it an order or reads its [`View`]. There is no pid file: after a
//! restart the agent finds the process by the argument that only this process has.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::etcd::data::DataError;
use crate::etcd::prestart::PrestartError;
use crate::files::{self, FileError};
use crate::machine::disk;
use crate::root::Root;
use crate::status::describe;
use crate::supervisor::binaries::{self, BinaryError};
use crate::supervisor::config;
use crate::supervisor::launch::{self, LaunchError, Launcher, Run};
use crate::supervisor::packages::Package;
use crate::supervisor::ports;
use crate::supervisor::process::Handle;
use crate::supervisor::program::{Expected, Own, Program, Resume, Source};

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);
/// A run of this length resets the back-off.
const GOOD_RUN: Duration = Duration::from_secs(10);
/// How often a program is checked for what the record still misses.
const LEARN: Duration = Duration::from_millis(200);
/// How long a process that ignores SIGKILL is waited for, such as one that hangs on a failed disk.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// The grace when a stop that was interrupted is finished.
const USUAL_GRACE: Duration = Duration::from_secs(10);
/// Why a program was not started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Not there yet.
    #[error("{program} {version} is not installed: install it first")]
    NotInstalled {
        /// Which program.
        program: Program,
        /// Which version.
        version: String,
    },
    /// Its package is not there.
    #[error("{program} is not installed on this machine, and comes from Debian's package: `apt install {}`", package.name)]
    NoPackage {
        /// Which program.
        program: Program,
        /// Its package.
        package: Package,
    },
    /// It does not run.
    #[error("{0} is not running: start it")]
    NotRunning(Program),
    /// Not there yet.
    #[error("{0} is not configured: write its configuration first")]
    NotConfigured(Program),
    /// Another process listens.
    #[error("port {port} is held by {holder}: {program} cannot listen on it")]
    PortTaken {
        /// Which program.
        program: Program,
        /// The port.
        port: u16,
        /// The process that holds it.
        holder: String,
    },
    /// No room.
    #[error("only {} MiB are free on the machine's disk: {program} needs at least {}", free >> 20, program.least_free() >> 20)]
    DiskFull {
        /// Which program.
        program: Program,
        /// Free bytes.
        free: u64,
    },
    /// The program is not stopped.
    #[error("{0} runs, or will be started again: stop it before its data is touched")]
    NotStopped(Program),
    /// Another version runs.
    #[error("{program} {running} is running: stop it before starting {wanted}")]
    OtherVersion {
        /// Which program.
        program: Program,
        /// What runs.
        running: String,
        /// What was asked for.
        wanted: String,
    },
    /// The process could not be made.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The process could not be signalled or watched.
    #[error("{program}'s process {pid} could not be signalled or watched")]
    Process {
        /// Which program.
        program: Program,
        /// Its number.
        pid: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It does not end after SIGKILL.
    #[error("{program}'s process {pid} did not end after SIGKILL: its disk may hang")]
    Immortal {
        /// Which program.
        program: Program,
        /// Its number.
        pid: u32,
    },
    /// A requirement of the program itself is not met before a start.
    #[error(transparent)]
    Prestart(#[from] PrestartError),
    /// Its binaries are at fault.
    #[error(transparent)]
    Binary(#[from] BinaryError),
    /// The data is not what the caller expects, or cannot be moved.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The record is malformed.
    #[error("service.json is malformed")]
    Malformed(#[source] serde_json::Error),
    /// The agent ends.
    #[error("the agent is shutting down")]
    Closed,
}

/// What a program was last asked to do, and its version and configuration at the last start. Kept in `service.json`,
/// together with the program's own part ([`Own`]).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Whether it should run.
    pub running: bool,
    /// The version of the last start.
    pub version: String,
    /// The digest of the configuration of the last start.
    pub config_digest: String,
    /// Whether it was ever started here.
    pub ever_started: bool,
    /// When it was started or stopped last.
    pub since: Option<Timestamp>,
    /// Restarts since it was last asked to start.
    pub restarts: u32,
    /// How the last run ended.
    pub last_exit: String,
    /// The version of an ordered restart that is not complete: the next start is of this version.
    pub restarting: Option<String>,
}

/// The file: one object with the fields of both, as earlier agents wrote it.
#[derive(Serialize)]
struct Stored<'a> {
    #[serde(flatten)]
    record: &'a Record,
    #[serde(flatten)]
    own: &'a Own,
}

fn read(root: &Root, program: Program) -> Result<(Record, Own), ServiceError> {
    let Some(text) = files::read(&program.files(root).record())? else {
        return Ok((Record::default(), program.unknown()));
    };
    let parse = || Ok((serde_json::from_str(&text)?, program.read_own(&text)?));
    parse().map_err(ServiceError::Malformed)
}

/// The state of the process.
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

/// A supervised program as the rest of the agent sees it.
#[derive(Clone, Debug)]
pub struct View {
    /// What was asked.
    pub record: Record,
    /// The program's own part of it.
    pub own: Own,
    /// The state of its process.
    pub state: State,
}

/// Moves a program's data away.
type Clear = Box<dyn FnOnce(&Root) -> Result<(), DataError> + Send>;

enum Ask {
    Start { version: String, expected: Expected, reply: oneshot::Sender<Result<u32, ServiceError>> },
    Restart { version: String, expected: Expected, grace: Duration, reply: oneshot::Sender<Result<u32, ServiceError>> },
    Reload { reply: oneshot::Sender<Result<(), ServiceError>> },
    Stop { grace: Duration, resume: Option<Duration>, reply: oneshot::Sender<Result<(), ServiceError>> },
    Clear { clear: Clear, reply: oneshot::Sender<Result<(), ServiceError>> },
}

/// The handle of the task that owns one program's process.
#[derive(Clone, Debug)]
pub struct Service {
    asks: mpsc::Sender<Ask>,
    view: watch::Receiver<View>,
}

impl Service {
    /// Restores the wanted state: adopts the running process, or starts it when it should run and does not.
    pub async fn open(root: Root, program: Program, address: IpAddr, launcher: Launcher) -> Result<Self, ServiceError> {
        let (record, own) = read(&root, program)?;
        let (asks, inbox) = mpsc::channel(8);
        let (shown, view) = watch::channel(View { record: record.clone(), own: own.clone(), state: State::default() });
        let (phase, delay) = (Phase::Stopped, FIRST_DELAY);
        let mut task = Task { program, root, launcher, address, record, own, phase, delay, shown };
        if task.record.ever_started {
            task.take_up().await;
        }
        task.show();
        tokio::spawn(task.run(inbox));
        Ok(Self { asks, view })
    }

    /// The service now.
    pub fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// Starts the program and keeps it running; returns its process id.
    pub async fn start(&self, version: String, expected: Expected) -> Result<u32, ServiceError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(Ask::Start { version, expected, reply }).await.map_err(|_| ServiceError::Closed)?;
        answer.await.map_err(|_| ServiceError::Closed)?
    }

    /// Stops the program and starts it again; returns its process id. Once sent, the order is carried out even if the
    /// caller does not wait for the answer.
    pub async fn restart(&self, version: String, expected: Expected, grace: Duration) -> Result<u32, ServiceError> {
        let (reply, answer) = oneshot::channel();
        let ask = Ask::Restart { version, expected, grace, reply };
        self.asks.send(ask).await.map_err(|_| ServiceError::Closed)?;
        answer.await.map_err(|_| ServiceError::Closed)?
    }

    /// Has the program take up its configuration file without ending connections.
    pub async fn reload(&self) -> Result<(), ServiceError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(Ask::Reload { reply }).await.map_err(|_| ServiceError::Closed)?;
        answer.await.map_err(|_| ServiceError::Closed)?
    }

    /// Stops the program and keeps it stopped, or starts it again after a while; returns when the process is gone.
    pub async fn stop(&self, grace: Duration, resume: Option<Duration>) -> Result<(), ServiceError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(Ask::Stop { grace, resume, reply }).await.map_err(|_| ServiceError::Closed)?;
        answer.await.map_err(|_| ServiceError::Closed)?
    }

    /// Moves the program's data away, and clears the record of it. Only while it is stopped.
    pub async fn clear(
        &self,
        clear: impl FnOnce(&Root) -> Result<(), DataError> + Send + 'static,
    ) -> Result<(), ServiceError> {
        let (reply, answer) = oneshot::channel();
        let ask = Ask::Clear { clear: Box::new(clear), reply };
        self.asks.send(ask).await.map_err(|_| ServiceError::Closed)?;
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
    Learn,
}

/// All that a start needs.
struct Ready {
    digest: String,
    /// The whole file.
    config: String,
    own: Own,
}

struct Task {
    program: Program,
    root: Root,
    launcher: Launcher,
    address: IpAddr,
    record: Record,
    own: Own,
    phase: Phase,
    delay: Duration,
    shown: watch::Sender<View>,
}

impl Task {
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
                    () = sleep(LEARN), if self.own.has_to_learn() => Event::Learn,
                },
            };
            match event {
                Event::Ask(None) => return,
                Event::Ask(Some(Ask::Start { version, expected, reply })) => {
                    let started = self.start(&version, &expected).await;
                    self.show();
                    let _ = reply.send(started);
                }
                Event::Ask(Some(Ask::Restart { version, expected, grace, reply })) => {
                    let restarted = self.restart_as_ordered(&version, &expected, grace).await;
                    self.show();
                    let _ = reply.send(restarted);
                }
                Event::Ask(Some(Ask::Reload { reply })) => {
                    let reloaded = self.reload().await;
                    self.show();
                    let _ = reply.send(reloaded);
                }
                Event::Ask(Some(Ask::Stop { grace, resume, reply })) => {
                    let stopped = self.stop(grace, resume).await;
                    self.show();
                    let _ = reply.send(stopped);
                }
                Event::Ask(Some(Ask::Clear { clear, reply })) => {
                    let cleared = self.clear(clear).await;
                    self.show();
                    let _ = reply.send(cleared);
                }
                Event::Ended => self.ended().await,
                Event::Due => self.restart().await,
                Event::Learn => self.learn(),
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
        self.shown.send_replace(View { record: self.record.clone(), own: self.own.clone(), state });
    }

    async fn take_up(&mut self) {
        self.adopt().await;
        match (matches!(self.phase, Phase::Running(_)), self.record.running) {
            (true, true) | (false, false) => {}
            (false, true) => self.restart().await,
            (true, false) => {
                // The agent ended in the middle of a stop.
                if let Err(error) = self.stop(USUAL_GRACE, None).await {
                    tracing::error!(error = describe(&error), "{} should be stopped and is not", self.program);
                }
            }
        }
    }

    async fn start(&mut self, version: &str, expected: &Expected) -> Result<u32, ServiceError> {
        if !matches!(self.phase, Phase::Running(_)) {
            self.adopt().await;
        }
        if let Phase::Running(running) = &self.phase {
            // A package has one version.
            if matches!(self.program.source(), Source::Pinned(_)) && self.record.version != version {
                let (running, wanted) = (self.record.version.clone(), version.to_owned());
                return Err(ServiceError::OtherVersion { program: self.program, running, wanted });
            }
            expected.fits(&self.own)?;
            let pid = running.handle.pid();
            if !self.record.running {
                self.record.running = true;
                self.save()?;
            }
            return Ok(pid);
        }
        let Ready { digest, config, own } = self.check(version, expected)?;
        self.launcher.check_config(&self.root, self.program).await?;
        self.ports_are_free(&config)?;
        for dir in self.program.writes(&self.root) {
            files::make_dir(&dir, 0o700)?;
        }
        self.choose(version)?;
        config::write_file(&self.root, self.program, &config)?;
        let before = (self.record.clone(), self.own.clone());
        self.record.version = version.to_owned();
        self.record.restarts = 0;
        self.own = own;
        self.record.running = true;
        self.record.restarting = None;
        self.delay = FIRST_DELAY;
        let started = self.spawn(digest).await;
        if let Phase::Running(running) = &self.phase {
            self.launcher.started(&self.root, self.program, &running.handle).await;
        }
        if matches!(&started, Err(ServiceError::Launch(error)) if error.nothing_ran()) {
            // Nothing ran, so nothing is recorded or retried.
            (self.record, self.own) = before;
            self.try_save();
        }
        started
    }

    /// At every moment in between the record says that the program should run: this agent, or the next, starts it.
    async fn restart_as_ordered(
        &mut self,
        version: &str,
        expected: &Expected,
        grace: Duration,
    ) -> Result<u32, ServiceError> {
        if !matches!(self.phase, Phase::Running(_)) {
            self.adopt().await;
        }
        if !matches!(self.phase, Phase::Running(_)) {
            return self.start(version, expected).await;
        }
        self.check(version, expected)?;
        self.launcher.check_config(&self.root, self.program).await?;
        // A binary that must not be started must not cost the running process.
        launch::verify(&self.root, self.program, version).await?;
        self.record.running = true;
        self.record.restarting = Some(version.to_owned());
        self.save()?;
        self.halt(grace).await?;
        let started = self.start(version, expected).await;
        if let Err(error) = &started {
            self.record.running = true;
            self.record.last_exit = describe(error);
            tracing::error!(
                error = self.record.last_exit,
                "{} was stopped for a restart and did not start: tried again",
                self.program
            );
            self.back_off();
        }
        started
    }

    /// All checks that are possible before anything is changed. Except ports: the process may still hold them itself.
    fn check(&self, version: &str, expected: &Expected) -> Result<Ready, ServiceError> {
        let program = self.program;
        match program.source() {
            Source::Pinned(binary) if !binaries::has(&self.root, binary, version) => {
                return Err(ServiceError::NotInstalled { program, version: version.to_owned() });
            }
            Source::Package(package) if !package.is_installed() => {
                return Err(ServiceError::NoPackage { program, package });
            }
            Source::Pinned(_) | Source::Package(_) => {}
        }
        let (digest, config) = self.configuration()?;
        let (config, own) = expected.check(&self.root, &config)?;
        let free = disk::free_bytes(&self.root)?;
        if free < program.least_free() {
            return Err(ServiceError::DiskFull { program, free });
        }
        Ok(Ready { digest, config, own })
    }

    /// Chooses the version of this start.
    fn choose(&self, version: &str) -> Result<(), BinaryError> {
        match self.program.source() {
            Source::Pinned(_) => binaries::choose(&self.root, self.program, version),
            Source::Package(_) => Ok(()),
        }
    }

    async fn reload(&mut self) -> Result<(), ServiceError> {
        if !matches!(self.phase, Phase::Running(_)) && self.record.ever_started {
            self.adopt().await;
        }
        let Phase::Running(running) = &self.phase else { return Err(ServiceError::NotRunning(self.program)) };
        let (digest, _) = self.configuration()?;
        self.launcher.reload(&self.root, self.program, &running.handle).await?;
        self.record.config_digest = digest;
        self.own.note_reload(&self.root)?;
        // HAProxy's master runs the package's program anew.
        self.note_version().await;
        tracing::info!(version = self.record.version, "{} took up its configuration", self.program);
        self.save()
    }

    /// The version of a package is whatever the package manager installed last.
    async fn note_version(&mut self) {
        if let Some(version) = self.launcher.package_version(self.program).await {
            self.record.version = version;
        }
    }

    fn configuration(&self) -> Result<(String, String), ServiceError> {
        config::read(&self.root, self.program)?.ok_or(ServiceError::NotConfigured(self.program))
    }

    fn ports_are_free(&self, config: &str) -> Result<(), ServiceError> {
        let program = self.program;
        match ports::taken(&program.needs_free(&self.root, config, self.address)).into_iter().next() {
            Some(taken) => Err(ServiceError::PortTaken { program, port: taken.port, holder: taken.holder }),
            None => Ok(()),
        }
    }

    /// The intent is on disk before the process exists: an agent that finds the process knows what it is.
    async fn spawn(&mut self, config_digest: String) -> Result<u32, ServiceError> {
        self.record.config_digest = config_digest;
        self.own.note_files(&self.root)?;
        self.record.ever_started = true;
        self.record.since = Some(Timestamp::now());
        self.note_version().await;
        self.save()?;
        let program = self.program;
        let (pid, run) = self.launcher.launch(&self.root, program).await?;
        let handle = Handle::open(pid).map_err(|source| ServiceError::Process { program, pid, source })?;
        tracing::info!(pid, version = self.record.version, "{program} started");
        self.phase = Phase::Running(Running { handle, run, since: Instant::now() });
        Ok(pid)
    }

    /// Takes over a process that an earlier agent started.
    async fn adopt(&mut self) {
        let Some(handle) = self.launcher.running(&self.root, self.program).await else { return };
        tracing::info!(pid = handle.pid(), "{} runs already: adopted", self.program);
        let run = self.launcher.adopted(&self.root, self.program, handle.pid()).await;
        self.phase = Phase::Running(Running { handle, run, since: Instant::now() });
    }

    async fn ended(&mut self) {
        let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::Stopped) else { return };
        let lived = running.since.elapsed();
        self.record.last_exit = self.launcher.exit_summary(&self.root, self.program, running.run).await;
        self.record.since = Some(Timestamp::now());
        if lived >= GOOD_RUN {
            self.delay = FIRST_DELAY;
        }
        tracing::warn!(
            how = self.record.last_exit,
            delay = ?self.delay,
            "{} ended by itself: it will be started again",
            self.program
        );
        self.back_off();
    }

    fn back_off(&mut self) {
        self.phase = Phase::Backoff(Instant::now() + self.delay);
        self.delay = (self.delay * 2).min(LONGEST_DELAY);
        self.try_save();
    }

    /// Restarts the program as it was, unless it must not run.
    async fn restart(&mut self) {
        self.adopt().await;
        if matches!(self.phase, Phase::Running(_)) {
            return;
        }
        let resume = match self.own.resume(&self.root) {
            Ok(resume) => resume,
            Err(problem) => {
                // The plan has to decide about it.
                self.record.last_exit = format!("not started again: {problem}");
                tracing::error!(problem, "{} is not started again", self.program);
                self.phase = Phase::Stopped;
                self.launcher.end_rest(&self.root, self.program).await;
                self.try_save();
                return;
            }
        };
        self.record.restarts = self.record.restarts.saturating_add(1);
        if let Err(error) = self.start_again(&resume).await {
            self.record.last_exit = describe(&error);
            tracing::error!(error = self.record.last_exit, "{} could not be started again", self.program);
            if self.delay >= LONGEST_DELAY {
                // PostgreSQL without a Patroni would go on as the primary after another node has taken its place.
                self.launcher.end_rest(&self.root, self.program).await;
            }
            self.back_off();
        }
    }

    async fn start_again(&mut self, resume: &Resume) -> Result<u32, ServiceError> {
        let (digest, config) = self.configuration()?;
        // It would end at once, and look as if it ran for that moment.
        self.ports_are_free(&config)?;
        let wanted = self.own.resumed(resume, &config)?;
        if wanted != config {
            config::write_file(&self.root, self.program, &wanted)?;
        }
        if let Some(version) = self.record.restarting.clone() {
            self.choose(&version)?;
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

    /// Ends the process; the caller has recorded whether it should run.
    async fn halt(&mut self, grace: Duration) -> Result<(), ServiceError> {
        if !matches!(self.phase, Phase::Running(_)) {
            self.phase = Phase::Stopped;
            if self.record.ever_started {
                self.adopt().await;
            }
        }
        let Phase::Running(running) = &self.phase else {
            if self.record.ever_started {
                // It ended by itself, and may have left something.
                self.launcher.end_rest(&self.root, self.program).await;
            }
            return Ok(());
        };
        let handle = &running.handle;
        let pid = handle.pid();
        let program = self.program;
        let process = |source| ServiceError::Process { program, pid, source };
        self.shown.send_modify(|view| view.record.running = self.record.running);
        handle.signal(Signal::TERM).map_err(process)?;
        if timeout(grace, handle.ended()).await.is_err() {
            tracing::warn!(pid, ?grace, "{program} did not end within its grace period: killed");
            handle.signal(Signal::KILL).map_err(process)?;
            timeout(KILL_LIMIT, handle.ended()).await.map_err(|_| ServiceError::Immortal { program, pid })?;
        }
        self.launcher.end_rest(&self.root, program).await;
        if let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::Stopped) {
            let how = self.launcher.exit_summary(&self.root, self.program, running.run).await;
            self.record.last_exit = format!("stopped as requested ({how})");
        }
        self.record.since = Some(Timestamp::now());
        tracing::info!(pid, "{program} stopped");
        self.save()
    }

    async fn clear(&mut self, clear: Clear) -> Result<(), ServiceError> {
        let program = self.program;
        if !matches!(self.phase, Phase::Stopped) || self.launcher.running(&self.root, program).await.is_some() {
            return Err(ServiceError::NotStopped(program));
        }
        // In this order: after a crash in between there is no data, and clearing again succeeds.
        clear(&self.root)?;
        self.record.running = false;
        self.record.ever_started = false;
        self.own.forget_data();
        self.save()
    }

    fn learn(&mut self) {
        if self.own.learn(&self.root) {
            self.try_save();
        }
    }

    fn save(&self) -> Result<(), ServiceError> {
        let text = serde_json::to_vec_pretty(&Stored { record: &self.record, own: &self.own })
            .map_err(ServiceError::Malformed)?;
        Ok(files::write(&self.program.files(&self.root).record(), &text, 0o600)?)
    }

    /// For optional facts: a full disk must not stop the supervision.
    fn try_save(&self) {
        if let Err(error) = self.save() {
            tracing::warn!(error = describe(&error), "service.json could not be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the previous version of the agent wrote it.
    const BEFORE: &str = r#"{
  "running": true,
  "version": "3.6.15",
  "config_digest": "ab",
  "trust": {
    "peer": "cd",
    "server": "ef"
  },
  "alone": true,
  "ever_started": true,
  "since": "2026-11-17T10:00:00Z",
  "restarts": 2,
  "last_exit": "signal 9",
  "ids": {
    "cluster": 18446744073709551615,
    "member": 1
  },
  "restarting": "3.6.16"
}"#;

    #[test]
    fn the_record_of_the_agent_before_is_read_and_written_in_its_form() {
        let dir = tempfile::tempdir().expect("dir");
        let root = Root::open(dir.path()).expect("root");
        root.prepare().expect("prepare");
        let (record, _) = read(&root, Program::Etcd).expect("none");
        assert!(!record.ever_started);
        files::write(&Program::Etcd.files(&root).record(), BEFORE.as_bytes(), 0o600).expect("write");
        let (record, own) = read(&root, Program::Etcd).expect("read");
        assert_eq!((record.version.as_str(), record.restarting.as_deref()), ("3.6.15", Some("3.6.16")));
        let Own::Etcd(started) = &own else { panic!("{own:?}") };
        assert!(started.alone && started.trust.peer == "cd");
        assert_eq!(started.ids.map(|ids| (ids.cluster, ids.member)), Some((u64::MAX, 1)));
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        let written = serde_json::to_string(&Stored { record: &record, own: &own }).expect("written");
        assert_eq!(value(&written), value(BEFORE));
        // A record of an earlier agent with fewer fields.
        files::write(&Program::Etcd.files(&root).record(), br#"{"running":true}"#, 0o600).expect("write");
        assert!(read(&root, Program::Etcd).expect("read").0.running);
    }
}
