//! an admin's bytes → another program of the agent, staged and checked; which program runs, and why not another.
//!
//! Under systemd the program that the unit starts lies where the agent cannot write. Upgraded programs therefore live
//! below the root, each in a directory of its digest. `confirmed.json` names the one that every start of the unit's
//! program hands over to. `trial.json` names the one that is on trial: renamed to `confirmed.json`, it is confirmed;
//! renamed away, it is reverted. A rename has one winner, so that a program is never both.

pub mod trial;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{self, SHA256};
use jiff::Timestamp;
use raftsman_api::{hex, v1};
use raftsman_core::desired::AgentVersion;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::files::{self, FileError};
use crate::machine::disk;
use crate::report::moment;
use crate::root::Root;
use crate::status::describe;

/// This agent's own version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The name of every program's file: providers identify an agent's process by it.
const PROGRAM: &str = "raftsman-agent";
/// etcd's log and database continue to grow during the transfer: the same reserve as before a start of etcd.
const RESERVE: u64 = 64 << 20;
/// A program that takes longer to say its version does not run here.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// A process that another thread is starting may hold the new file open for writing for a moment.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// One interrupted trial is no evidence against the program; this many in a row are.
const MOST_INTERRUPTIONS: u32 = 3;

/// Why the agent was not upgraded.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// An invalid digest; it becomes a directory's name.
    #[error("`{0}` is not a SHA-256 in hexadecimal")]
    Digest(String),
    /// A version that is none.
    #[error("`{0}` is not a version such as 1.2.3")]
    Version(String),
    /// An older program.
    #[error(
        "this agent is of version {running}, the program that came is of version {offered}: agents are not downgraded"
    )]
    Older {
        /// What runs.
        running: &'static str,
        /// What came.
        offered: String,
    },
    /// No room.
    #[error("the program has {} MiB, and {} MiB are free on the machine's disk, of which {} stay free: nothing was written",
        size >> 20, free >> 20, RESERVE >> 20)]
    NoRoom {
        /// How large it is.
        size: u64,
        /// Free bytes.
        free: u64,
    },
    /// Other bytes than were announced.
    #[error("{found} bytes came, {expected} were announced: the agent was not upgraded")]
    OtherSize {
        /// What was announced.
        expected: u64,
        /// What came.
        found: u64,
    },
    /// Other bytes than were announced.
    #[error("the bytes have the SHA-256 {found}, announced was {expected}: the agent was not upgraded")]
    OtherBytes {
        /// What was announced.
        expected: String,
        /// What came.
        found: String,
    },
    /// It does not run on this machine.
    #[error("the program does not run on this machine: {0}; the agent was not upgraded")]
    DoesNotRun(String),
    /// It is another program than announced.
    #[error("the program says that it is `{found}`, announced was {PROGRAM} {expected}: the agent was not upgraded")]
    OtherProgram {
        /// What was announced.
        expected: String,
        /// What it says.
        found: String,
    },
    /// One upgrade at a time.
    #[error("this agent is itself on trial after an upgrade: ask for its report first, which confirms it")]
    OnTrial,
    /// The trial was reverted before this program could confirm it.
    #[error("this program was on trial, and was reverted before it could serve")]
    Reverted,
    /// The next program, or the process that watches it, could not be started.
    #[error("cannot start {}", path.display())]
    Exec {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The process that watches the trial did not start.
    #[error("the process that watches the trial of a new agent did not start")]
    NoGuardian,
    /// The process that is watched could not be signalled or watched.
    #[error("the agent's process could not be signalled or watched")]
    Process(#[source] io::Error),
    /// A record is damaged.
    #[error("{} is malformed: remove it", path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A program of the agent, by its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Hex SHA-256.
    pub sha256: String,
    /// What it says of itself.
    pub version: String,
}

/// A program on trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Which.
    #[serde(flatten)]
    pub program: Program,
    /// No other trial has it: when it began, in nanoseconds.
    pub id: String,
    /// The program that ran before.
    pub back: PathBuf,
}

/// An upgrade that was reverted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Which program.
    #[serde(flatten)]
    pub program: Program,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Timestamp,
    /// Whether the cause is not the program.
    pub retriable: bool,
    /// So many trials of this program in a row were interrupted.
    #[serde(default)]
    pub interruptions: u32,
}

/// Why a trial was reverted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It ended, with this last message; none where it was killed or left none.
    Ended(Option<String>),
    /// It never served.
    Silent,
    /// It served, and no client asked for its report.
    NotAsked,
    /// The machine, or the process that watched it, went down in between.
    Interrupted,
    /// The process that was to watch it ended before the trial began.
    Unwatched,
    /// The system did not run it.
    NotRun(String),
}

impl Reason {
    fn text(&self) -> String {
        match self {
            Self::Ended(Some(words)) => format!("it ended: {words}"),
            Self::Ended(None) => "it ended, or was killed, before it had answered a client".to_owned(),
            Self::Silent => format!("it did not serve within {} s", trial::LIMIT.as_secs()),
            Self::NotAsked => format!("no client asked for its report within {} s", trial::LIMIT.as_secs()),
            Self::Interrupted => "the machine or its agent was restarted while the new program was on trial".to_owned(),
            Self::Unwatched => "the process that was to watch its trial did not start, or was killed".to_owned(),
            Self::NotRun(error) => format!("it could not be run: {error}"),
        }
    }

    /// Whether the reason may be unrelated to the program.
    fn interrupts(&self) -> bool {
        matches!(self, Self::Interrupted | Self::Unwatched | Self::Ended(None))
    }
}

fn dir(root: &Root) -> PathBuf {
    root.path().join("agent/programs")
}

fn confirmed_file(root: &Root) -> PathBuf {
    dir(root).join("confirmed.json")
}

fn trial_file(root: &Root) -> PathBuf {
    dir(root).join("trial.json")
}

fn failed_file(root: &Root) -> PathBuf {
    dir(root).join("failed.json")
}

/// There once the program on trial serves.
fn serving_file(root: &Root) -> PathBuf {
    dir(root).join("serving")
}

impl Program {
    fn path(&self, root: &Root) -> PathBuf {
        dir(root).join(&self.sha256).join(PROGRAM)
    }

    fn checked(head: &v1::UpgradeAgentHead) -> Result<Self, UpgradeError> {
        let sha256 = head.sha256.to_ascii_lowercase();
        if sha256.len() != 64 || hex::decode(&sha256).is_none() {
            return Err(UpgradeError::Digest(sha256));
        }
        let offered = AgentVersion::parse(&head.version).ok_or_else(|| UpgradeError::Version(head.version.clone()))?;
        if AgentVersion::parse(VERSION).is_some_and(|running| offered < running) {
            return Err(UpgradeError::Older { running: VERSION, offered: head.version.clone() });
        }
        Ok(Self { sha256, version: head.version.clone() })
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, UpgradeError> {
    let Some(text) = files::read(path)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|source| UpgradeError::Malformed { path: path.to_path_buf(), source })
}

fn write<T: Serialize>(path: &Path, record: &T) -> Result<(), UpgradeError> {
    let malformed = |source| UpgradeError::Malformed { path: path.to_path_buf(), source };
    Ok(files::write(path, &serde_json::to_vec_pretty(record).map_err(malformed)?, 0o600)?)
}

/// Moves the record of the trial elsewhere; whether it was this call that did.
fn take_trial(root: &Root, to: &Path) -> Result<bool, UpgradeError> {
    let from = trial_file(root);
    match fs::rename(&from, to) {
        Ok(()) => Ok(files::sync_parent(to).map(|()| true)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(FileError::of("rename", &from)(error).into()),
    }
}

/// A trial that was ended and whose result is not recorded yet.
fn reverting_file(root: &Root) -> PathBuf {
    dir(root).join("reverting.json")
}

/// Ends a trial without a confirmation; `false` where it was confirmed, or reverted, before.
fn revert(root: &Root, trial: &Trial, reason: &Reason) -> Result<bool, UpgradeError> {
    let reverts = take_trial(root, &reverting_file(root))?;
    if reverts {
        write_down(root, trial, reason);
    }
    Ok(reverts)
}

/// Removes a reverted program, and records why. The old program has to run again also when it cannot be recorded.
fn write_down(root: &Root, trial: &Trial, reason: &Reason) {
    let kept = read::<Program>(&confirmed_file(root)).ok().flatten();
    sweep(root, kept.as_ref());
    let before = read::<Failed>(&failed_file(root)).ok().flatten().filter(|failed| failed.program == trial.program);
    let interruptions = if reason.interrupts() { before.map_or(0, |failed| failed.interruptions) + 1 } else { 0 };
    let retriable = match reason {
        Reason::NotAsked => true,
        Reason::Ended(None) | Reason::Interrupted | Reason::Unwatched => interruptions < MOST_INTERRUPTIONS,
        Reason::Ended(Some(_)) | Reason::Silent | Reason::NotRun(_) => false,
    };
    let at = Timestamp::now();
    let failed = Failed { program: trial.program.clone(), reason: reason.text(), at, retriable, interruptions };
    tracing::error!(sha256 = failed.program.sha256, reason = failed.reason, "the upgrade of the agent is reverted");
    let recorded = write(&failed_file(root), &failed).or_else(|_| write_in_place(root, &failed));
    let written = recorded.and_then(|()| {
        files::remove(&reverting_file(root))?;
        files::remove(&serving_file(root))?;
        Ok(())
    });
    if let Err(error) = written {
        tracing::error!(error = describe(&error), "why it was reverted cannot be written down");
    }
}

/// Records a failure on a disk without room for another file: over the record of the trial, which has its room already.
fn write_in_place(root: &Root, failed: &Failed) -> Result<(), UpgradeError> {
    let path = reverting_file(root);
    let malformed = |source| UpgradeError::Malformed { path: path.clone(), source };
    let text = serde_json::to_vec(failed).map_err(malformed)?;
    let overwrite = |file: File| {
        file.write_all_at(&text, 0)?;
        file.set_len(text.len().try_into().unwrap_or(u64::MAX))?;
        file.sync_all()
    };
    OpenOptions::new().write(true).open(&path).and_then(overwrite).map_err(FileError::of("write", &path))?;
    fs::rename(&path, failed_file(root)).map_err(FileError::of("rename", &path))?;
    Ok(files::sync_parent(&path)?)
}

/// The SHA-256 of a file.
fn digest_of(path: &Path) -> Result<String, FileError> {
    files::digest(&mut File::open(path).map_err(FileError::of("open", path))?, path)
}

/// What a start of the agent finds.
#[derive(Debug)]
pub enum Settled {
    /// This program runs.
    Run(Upgrade),
    /// The confirmed one is another: it takes over in this process.
    HandOver(Program),
}

/// Decides which program runs. Called with the agent's lock held. `guardian` is the process that watches this one while
/// it is on trial.
pub fn settle(root: &Root, guardian: Option<u32>) -> Result<Settled, UpgradeError> {
    let on_trial = read::<Trial>(&trial_file(root));
    match (guardian, on_trial) {
        (Some(_), Ok(Some(_))) => return Ok(Settled::Run(Upgrade::new(true, None))),
        (Some(_), Ok(None)) => return Err(UpgradeError::Reverted),
        (Some(_), Err(error)) => return Err(error),
        (None, Ok(Some(trial))) => {
            revert(root, &trial, &Reason::Interrupted)?;
        }
        (None, Ok(None)) => {
            if let Ok(Some(trial)) = read::<Trial>(&reverting_file(root)) {
                write_down(root, &trial, &Reason::Interrupted);
            }
        }
        (None, Err(error)) => {
            // The record is unreadable, and the machine needs an agent.
            tracing::error!(error = describe(&error), "the record of a trial is removed");
            files::remove(&trial_file(root))?;
        }
    }
    let confirmed = match confirmed(root) {
        Ok(confirmed) => confirmed,
        Err(error) => {
            let problem = format!("the program that was confirmed is not used: {}", describe(&error));
            tracing::error!(problem, "this program runs instead");
            return Ok(Settled::Run(Upgrade::new(false, Some(problem))));
        }
    };
    sweep(root, confirmed.as_ref());
    match confirmed {
        Some(program) if !is_own(&program.path(root)) => Ok(Settled::HandOver(program)),
        Some(_) | None => Ok(Settled::Run(Upgrade::new(false, None))),
    }
}

/// The confirmed program, its bytes checked; none where there is none, or this one is newer.
fn confirmed(root: &Root) -> Result<Option<Program>, UpgradeError> {
    let Some(program) = read::<Program>(&confirmed_file(root))? else { return Ok(None) };
    let path = program.path(root);
    if is_own(&path) {
        return Ok(Some(program));
    }
    // The machine got a newer one since: from its provider, or with its image.
    if AgentVersion::parse(&program.version) < AgentVersion::parse(VERSION) {
        files::remove(&confirmed_file(root))?;
        return Ok(None);
    }
    let found = digest_of(&path)?;
    if found != program.sha256 {
        return Err(UpgradeError::OtherBytes { expected: program.sha256, found });
    }
    Ok(Some(program))
}

fn is_own(path: &Path) -> bool {
    let own = fs::read_link("/proc/self/exe");
    own.is_ok_and(|own| path.canonicalize().is_ok_and(|path| path == own))
}

/// Removes programs other than this one. A leftover only costs space.
fn sweep(root: &Root, keep: Option<&Program>) {
    for entry in fs::read_dir(dir(root)).into_iter().flatten().flatten() {
        let kept = keep.is_some_and(|keep| entry.file_name() == keep.sha256.as_str());
        if !kept && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Makes the program that the unit starts the one that runs.
pub fn forget(root: &Path) -> Result<(), FileError> {
    files::remove_dir(&root.join("agent/programs"))
}

/// What has to be done before the next program runs: held until then.
type Held = Box<dyn Send + 'static>;

/// This process' program, and the next one.
#[derive(Debug)]
pub struct Upgrade {
    own: OnceLock<Option<String>>,
    on_trial: AtomicBool,
    problem: Option<String>,
    order: Mutex<Order>,
}

/// The way from the call to the end of this program.
#[derive(Default)]
struct Order {
    given: Option<oneshot::Sender<(Program, Held)>>,
    awaited: Option<oneshot::Receiver<(Program, Held)>>,
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Order").field("given", &self.given.is_none()).finish_non_exhaustive()
    }
}

impl Upgrade {
    fn new(on_trial: bool, problem: Option<String>) -> Self {
        let (given, awaited) = oneshot::channel();
        let order = Mutex::new(Order { given: Some(given), awaited: Some(awaited) });
        Self { own: OnceLock::new(), on_trial: AtomicBool::new(on_trial), problem, order }
    }

    /// The SHA-256 of the program of this process. It is computed once; some 20 ms for 30 MB.
    pub fn own_digest(&self) -> Option<&str> {
        let compute = || match digest_of(Path::new("/proc/self/exe")) {
            Ok(digest) => Some(digest),
            Err(error) => {
                tracing::warn!(error = describe(&error), "the agent's own program cannot be read");
                None
            }
        };
        self.own.get_or_init(compute).as_deref()
    }

    /// Whether this program waits for its confirmation.
    pub fn is_on_trial(&self) -> bool {
        self.on_trial.load(Ordering::Acquire)
    }

    /// This program serves: from now on only a client's call is missing.
    pub fn serves(&self, root: &Root) -> Result<(), UpgradeError> {
        if self.is_on_trial() { Ok(files::write(&serving_file(root), b"", 0o600)?) } else { Ok(()) }
    }

    /// Confirms this program, which is about to answer a client. What it replaced is removed.
    pub fn confirm(&self, root: &Root) -> Result<(), UpgradeError> {
        if !self.is_on_trial() {
            return Ok(());
        }
        if take_trial(root, &confirmed_file(root))? {
            let confirmed = read::<Program>(&confirmed_file(root))?;
            tracing::info!(sha256 = confirmed.as_ref().map(|it| it.sha256.as_str()), "this agent is confirmed");
            files::remove(&failed_file(root))?;
            files::remove(&serving_file(root))?;
            sweep(root, confirmed.as_ref());
            self.on_trial.store(false, Ordering::Release);
            return Ok(());
        }
        // Another call confirmed it first, or the trial is over.
        if self.is_on_trial() { Err(UpgradeError::Reverted) } else { Ok(()) }
    }

    /// What is reported of it.
    pub fn report(&self, root: &Root) -> v1::AgentProgram {
        let failed = read::<Failed>(&failed_file(root)).unwrap_or_default();
        // After a failure the report must say at once whether the answering program is the failed one; otherwise it
        // does not wait for the digest.
        let own = if failed.is_some() { self.own_digest() } else { self.own.get().and_then(Option::as_deref) };
        v1::AgentProgram {
            sha256: own.unwrap_or_default().to_owned(),
            failed: failed.map(|failed| v1::FailedUpgrade {
                sha256: failed.program.sha256,
                version: failed.program.version,
                reason: failed.reason,
                at: Some(moment(failed.at)),
                retriable: failed.retriable,
            }),
            problem: self.problem.clone().unwrap_or_default(),
        }
    }

    /// Ends this program in favour of the next. `held` is kept until then.
    pub fn order(&self, program: Program, held: impl Send + 'static) {
        let given = self.order.lock().unwrap_or_else(PoisonError::into_inner).given.take();
        if let Some(given) = given {
            let _ = given.send((program, Box::new(held)));
        }
    }

    /// Returns once another program is to take over.
    pub async fn ordered(&self) -> (Program, Held) {
        let awaited = self.order.lock().unwrap_or_else(PoisonError::into_inner).awaited.take();
        match awaited {
            Some(awaited) => match awaited.await {
                Ok(order) => order,
                Err(_) => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

/// A program that comes over the wire. Dropped before its end, it leaves nothing.
pub struct Staging {
    program: Program,
    size: u64,
    came: u64,
    dir: PathBuf,
    file: File,
    digest: digest::Context,
}

impl Staging {
    /// Nothing has come yet; there is room for all of it.
    pub fn begin(root: &Root, head: &v1::UpgradeAgentHead) -> Result<Self, UpgradeError> {
        let program = Program::checked(head)?;
        let (free, size) = (disk::free_bytes(root)?, head.size);
        if size.saturating_add(RESERVE) > free {
            return Err(UpgradeError::NoRoom { size, free });
        }
        files::make_dir(&dir(root), 0o700)?;
        let dir = files::beside(&dir(root).join(&program.sha256));
        files::make_dir(&dir, 0o700)?;
        let path = dir.join(PROGRAM);
        let created = files::create(&path, 0o700).map_err(FileError::of("create", &path));
        if created.is_err() {
            let _ = fs::remove_dir_all(&dir);
        }
        Ok(Self { program, size, came: 0, dir, file: created?, digest: digest::Context::new(&SHA256) })
    }

    /// Some bytes more.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), UpgradeError> {
        self.came = self.came.saturating_add(bytes.len().try_into().unwrap_or(u64::MAX));
        if self.came > self.size {
            return Err(UpgradeError::OtherSize { expected: self.size, found: self.came });
        }
        self.digest.update(bytes);
        Ok(self.file.write_all(bytes).map_err(FileError::of("write the program in", &self.dir))?)
    }

    /// All bytes are there: checks them, and puts the program in its place.
    pub fn finish(mut self, root: &Root) -> Result<Program, UpgradeError> {
        if self.came != self.size {
            return Err(UpgradeError::OtherSize { expected: self.size, found: self.came });
        }
        let digest = std::mem::replace(&mut self.digest, digest::Context::new(&SHA256));
        let found = hex::encode(digest.finish().as_ref());
        if found != self.program.sha256 {
            return Err(UpgradeError::OtherBytes { expected: self.program.sha256.clone(), found });
        }
        self.file.sync_all().map_err(FileError::of("write the program in", &self.dir))?;
        let target = dir(root).join(&self.program.sha256);
        files::remove_dir(&target)?;
        fs::rename(&self.dir, &target).map_err(FileError::of("put the program in place at", &target))?;
        files::sync_parent(&target)?;
        Ok(self.program.clone())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Runs a staged program to print its version: one that cannot run here is rejected while this one serves.
pub async fn probe(root: &Root, program: &Program) -> Result<(), UpgradeError> {
    let tried = version_of(&program.path(root)).await;
    let checked = match tried {
        Ok(found) if found == format!("{PROGRAM} {}", program.version) => return Ok(()),
        Ok(found) => UpgradeError::OtherProgram { expected: program.version.clone(), found },
        Err(error) => error,
    };
    let _ = fs::remove_dir_all(dir(root).join(&program.sha256));
    Err(checked)
}

async fn version_of(path: &Path) -> Result<String, UpgradeError> {
    let does_not_run = |error: io::Error| UpgradeError::DoesNotRun(error.to_string());
    let mut tries = 0;
    let child = loop {
        let mut command = Command::new(path);
        command.arg("--version").env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        match command.kill_on_drop(true).spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES => {
                tries += 1;
                sleep(BUSY_PAUSE).await;
            }
            spawned => break spawned.map_err(does_not_run)?,
        }
    };
    let late = |_| UpgradeError::DoesNotRun(format!("`--version` took longer than {} s", PROBE_LIMIT.as_secs()));
    let output = timeout(PROBE_LIMIT, child.wait_with_output()).await.map_err(late)?.map_err(does_not_run)?;
    let first = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().next().unwrap_or_default().trim().to_owned();
    if output.status.success() {
        Ok(first(&output.stdout))
    } else {
        Err(UpgradeError::DoesNotRun(format!("`--version`: {}: {}", output.status, first(&output.stderr))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> (tempfile::TempDir, Root) {
        let (dir, root) = Root::scratch();
        files::make_dir(&super::dir(&root), 0o700).expect("programs");
        (dir, root)
    }

    fn head(bytes: &[u8], version: &str) -> v1::UpgradeAgentHead {
        v1::UpgradeAgentHead { sha256: hex::sha256(bytes), size: bytes.len() as u64, version: version.to_owned() }
    }

    fn staged(root: &Root, bytes: &[u8], version: &str) -> Result<Program, UpgradeError> {
        let mut staging = Staging::begin(root, &head(bytes, version))?;
        staging.write(bytes)?;
        staging.finish(root)
    }

    fn on_trial(root: &Root, program: &Program) -> Trial {
        let trial = Trial { program: program.clone(), id: "1".to_owned(), back: PathBuf::from("/old") };
        write(&trial_file(root), &trial).expect("trial");
        trial
    }

    fn directories(root: &Root) -> usize {
        let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        fs::read_dir(dir(root)).expect("list").flatten().filter(is_dir).count()
    }

    #[test]
    fn only_announced_bytes_are_staged() {
        let (_dir, root) = root();
        assert!(matches!(staged(&root, b"old", "0.0.1"), Err(UpgradeError::Older { .. })));
        let unfit = [
            v1::UpgradeAgentHead { sha256: "../..".to_owned(), ..head(b"new", VERSION) },
            v1::UpgradeAgentHead { version: "new".to_owned(), ..head(b"new", VERSION) },
            v1::UpgradeAgentHead { size: 1 << 60, ..head(b"new", VERSION) },
        ];
        assert!(unfit.iter().all(|head| Staging::begin(&root, head).is_err()));

        let mut other = Staging::begin(&root, &head(b"new", VERSION)).expect("begun");
        other.write(b"NEW").expect("written");
        assert!(matches!(other.finish(&root), Err(UpgradeError::OtherBytes { .. })));
        let mut more = Staging::begin(&root, &head(b"new", VERSION)).expect("begun");
        assert!(matches!(more.write(b"newer"), Err(UpgradeError::OtherSize { .. })));
        drop(more);
        let less = Staging::begin(&root, &head(b"new", VERSION)).expect("begun");
        assert!(matches!(less.finish(&root), Err(UpgradeError::OtherSize { .. })));
        assert_eq!(directories(&root), 0, "nothing is left of them");

        let program = staged(&root, b"new", VERSION).expect("staged");
        assert_eq!(fs::read(program.path(&root)).expect("read"), b"new");
    }

    #[test]
    fn a_trial_is_confirmed_or_reverted_and_never_both() {
        let (_dir, root) = root();
        let program = staged(&root, b"new", VERSION).expect("staged");
        let trial = on_trial(&root, &program);
        let upgrade = Upgrade::new(true, None);
        upgrade.confirm(&root).expect("confirmed");
        assert!(!upgrade.is_on_trial());
        assert!(!revert(&root, &trial, &Reason::Silent).expect("too late"));
        assert_eq!(confirmed(&root).expect("read"), Some(program.clone()));

        let trial = on_trial(&root, &program);
        assert!(revert(&root, &trial, &Reason::Silent).expect("reverted"));
        let late = Upgrade::new(true, None);
        assert!(matches!(late.confirm(&root), Err(UpgradeError::Reverted)));
        let failed = late.report(&root).failed.expect("reported");
        assert_eq!((failed.sha256, failed.retriable), (program.sha256, false));
    }

    #[test]
    fn interruptions_are_tried_again_a_few_times() {
        let (_dir, root) = root();
        let program = staged(&root, b"new", VERSION).expect("staged");
        let revert_for = |reason: Reason| {
            let trial = on_trial(&root, &program);
            assert!(revert(&root, &trial, &reason).expect("reverted"));
            Upgrade::new(false, None).report(&root).failed.expect("reported").retriable
        };
        assert!(revert_for(Reason::Interrupted));
        assert!(revert_for(Reason::Unwatched));
        assert!(!revert_for(Reason::Interrupted), "three in a row");
        assert!(revert_for(Reason::NotAsked));
        assert!(revert_for(Reason::Interrupted), "counted anew");
        assert!(!revert_for(Reason::Ended(Some("no".to_owned()))));
    }

    #[test]
    fn a_start_hands_over_to_the_confirmed_program_only() {
        let (_dir, root) = root();
        assert!(matches!(settle(&root, None), Ok(Settled::Run(_))));
        let program = staged(&root, b"new", "99.0.0").expect("staged");
        write(&confirmed_file(&root), &program).expect("confirmed");
        staged(&root, b"leftover", "99.0.0").expect("staged");
        assert!(matches!(settle(&root, None), Ok(Settled::HandOver(found)) if found == program));
        assert_eq!(directories(&root), 1, "the leftover is gone");

        // A leftover trial is an interrupted one.
        on_trial(&root, &program);
        assert!(matches!(settle(&root, None), Ok(Settled::HandOver(_))));
        assert!(matches!(settle(&root, Some(1)), Err(UpgradeError::Reverted)));

        // Changed since: this program runs, and reports it.
        fs::write(program.path(&root), "evil").expect("changed");
        let Ok(Settled::Run(upgrade)) = settle(&root, None) else { panic!("it runs") };
        assert!(upgrade.report(&root).problem.contains("SHA-256"));

        // An older one gives way.
        write(&confirmed_file(&root), &Program { version: "0.0.1".to_owned(), ..program }).expect("confirmed");
        assert!(matches!(settle(&root, None), Ok(Settled::Run(_))));
        assert!(!confirmed_file(&root).exists());
    }
}
