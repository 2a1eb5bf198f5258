//! a program as it is installed and configured → its process: a child of its own, or a unit of systemd.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use crate::balancer::{self, haproxy};
use crate::files::{self, FileError};
use crate::machine::install;
use crate::postgres::config::UNPRIVILEGED;
use crate::postgres::running;
use crate::root::Root;
use crate::supervisor::binaries::{self, Binary, BinaryError};
use crate::supervisor::pins;
use crate::supervisor::process::{self, Handle};
use crate::supervisor::program::{PYTHON, Program, Source};
use crate::supervisor::systemd::{self, Owner, Systemd, SystemdError};

/// The lines and bytes at the end of a log that are searched for the reason of an exit.
const END_OF_LOG: (usize, u64) = (50, 64 * 1024);
/// The length to which that reason is cut.
const LONGEST_REASON: usize = 600;
/// The limit of a log that is read for a caller.
const MOST_LOG_BYTES: u64 = 1 << 20;

/// What Patroni logs in the meantime, and how long it may take: a round takes its `loop_wait`, and longer where etcd or
/// PostgreSQL hang.
const RELOAD_LINES: usize = 1000;
const RELOAD_LIMIT: Duration = Duration::from_secs(90);
const RELOAD_POLL: Duration = Duration::from_millis(200);

/// How programs are run on this machine.
#[derive(Clone, Debug)]
pub enum Launcher {
    /// As a process that outlives the agent, its log in a file.
    Child,
    /// As a unit of systemd with a user of its own, its log in the journal.
    Unit(Systemd),
}

/// Why there is no process.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The process could not be made.
    #[error("{program} could not be started")]
    Spawn {
        /// Which program.
        program: Program,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot run as a child.
    #[error("{0} needs a machine of its own, with systemd: this agent runs without it")]
    NeedsSystemd(Program),
    /// It is bound to another program, which does not run.
    #[error("{program} runs only beside {needed}, and {needed} is not running: start it first")]
    Needs {
        /// Which program.
        program: Program,
        /// What it is bound to.
        needed: Program,
    },
    /// The program refuses its configuration file.
    #[error("{program} refuses its configuration: {reason}")]
    ConfigRefused {
        /// Which program.
        program: Program,
        /// Its own words.
        reason: String,
    },
    /// It reads its configuration only when it starts.
    #[error("{0} reads its configuration only when it starts: restart it")]
    NoReload(Program),
    /// The process runs with its configuration before.
    #[error("{program} did not take up its configuration: {reason}")]
    NotReloaded {
        /// Which program.
        program: Program,
        /// What it says, or does not.
        reason: String,
    },
    /// systemd could not start it.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// The installed binary must not be run.
    #[error(transparent)]
    Binary(#[from] BinaryError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl LaunchError {
    /// Whether there never was a process: one that ended at once may have written data.
    pub fn nothing_ran(&self) -> bool {
        matches!(
            self,
            Self::Spawn { .. }
                | Self::Binary(_)
                | Self::NeedsSystemd(_)
                | Self::Needs { .. }
                | Self::ConfigRefused { .. }
                | Self::Systemd(SystemdError::Bus(_) | SystemdError::Refused { .. } | SystemdError::NoUser(_))
        )
    }
}

/// A run of a program.
#[derive(Debug)]
pub struct Run {
    /// The process, when this program started it.
    child: Option<Child>,
    /// Its process id, when an earlier agent started it. It is this process' child if that agent was upgraded.
    adopted: Option<u32>,
    /// Where this run begins in the log.
    log: Mark,
}

/// Where a log is read from.
enum Since {
    /// This byte of the file.
    Offset(u64),
    /// This moment.
    Moment(Timestamp),
}

/// Where a run begins in the log.
#[derive(Debug)]
enum Mark {
    /// At this byte of the file.
    Offset(u64),
    /// By systemd's invocation id of the run; none when it is not known.
    Invocation(Option<String>),
}

impl Launcher {
    /// Starts a program; returns its process id.
    pub async fn launch(&self, root: &Root, program: Program) -> Result<(u32, Run), LaunchError> {
        verify(root, program, &binaries::current(root, program).unwrap_or_default()).await?;
        if program == Program::Patroni {
            running::make_sockets(root, self)?;
        }
        match self {
            Self::Child => spawn(root, program),
            Self::Unit(systemd) => {
                self.give_files(root, program).await?;
                // Not left to systemd, which would start HAProxy as well, even where it was stopped as requested.
                if let Some(needed) = program.bound_to()
                    && systemd.main_pid(needed.unit()).await.is_none()
                {
                    return Err(LaunchError::Needs { program, needed });
                }
                let pid = systemd.start(program.unit()).await?;
                let log = Mark::Invocation(systemd.invocation(program.unit()).await);
                Ok((pid, Run { child: None, adopted: None, log }))
            }
        }
    }

    /// Gives a program's user what it reads and writes: the agent made the directories, and may have written to them.
    async fn give_files(&self, root: &Root, program: Program) -> Result<Option<Owner>, LaunchError> {
        let Self::Unit(systemd) = self else { return Ok(None) };
        if !install::is_laid_out(program)? {
            install::lay_out_apart(systemd, program).await?;
        }
        let Some(user) = program.user() else { return Ok(None) };
        let owner = systemd::user(user)?;
        let files = program.files(root);
        // An agent that was upgraded made the directory itself, with its own group.
        for path in [files.dir(), &files.config()] {
            if path.exists() {
                chown(path, None, Some(owner.group)).map_err(FileError::of("change the group of", path))?;
            }
        }
        // What was written there before the program's user was there has the agent's group.
        let tls = balancer::tls_dir(root);
        if program == Program::Haproxy && tls.exists() {
            systemd::give_to_group(&tls, owner.group)?;
        }
        if program == Program::Patroni {
            let config = files.config();
            let given = chown(&config, Some(owner.user), Some(owner.group));
            given.map_err(FileError::of("change the owner of", &config))?;
        }
        for dir in program.writes(root) {
            files::make_dir(&dir, 0o700)?;
            match program {
                // The agent puts nothing into them. What PostgreSQL's own users can run there could lead a walk elsewhere.
                Program::Patroni => chown(&dir, Some(owner.user), Some(owner.group))
                    .map_err(FileError::of("change the owner of", &dir))?,
                Program::Etcd | Program::Haproxy | Program::Keepalived => systemd::give(&dir, owner)?,
            }
        }
        Ok(Some(owner))
    }

    /// Whether a program accepts its configuration file, where it can say so without being started.
    pub async fn check_config(&self, root: &Root, program: Program) -> Result<(), LaunchError> {
        match program {
            Program::Etcd | Program::Keepalived | Program::Patroni => Ok(()),
            Program::Haproxy => {
                let user = self.give_files(root, program).await?;
                haproxy::check(root, user).await.map_err(|reason| LaunchError::ConfigRefused { program, reason })
            }
        }
    }

    /// Waits until a program that was just started can be asked, or has ended.
    pub async fn started(&self, root: &Root, program: Program, process: &Handle) {
        match program {
            Program::Etcd | Program::Keepalived | Program::Patroni => {}
            Program::Haproxy => {
                if let Err(problem) = haproxy::answers(root, process, None).await {
                    tracing::warn!(problem, "{program} was started, and cannot be asked");
                }
            }
        }
    }

    /// Has a running program take up its configuration file, without ending connections.
    pub async fn reload(&self, root: &Root, program: Program, process: &Handle) -> Result<(), LaunchError> {
        match program {
            Program::Etcd => Err(LaunchError::NoReload(program)),
            Program::Keepalived => self.order_reload(program, process, Signal::HUP).await,
            Program::Patroni => {
                let failed = |reason| LaunchError::NotReloaded { program, reason };
                running::knows_hangup(process).await.map_err(failed)?;
                let since = self.now(root, program);
                self.order_reload(program, process, Signal::HUP).await?;
                self.has_reloaded(root, program, process, since).await.map_err(failed)
            }
            Program::Haproxy => {
                self.check_config(root, program).await?;
                let failed = |reason| LaunchError::NotReloaded { program, reason };
                // Before it answers it may not know the signal yet, which would end it.
                let before = haproxy::answers(root, process, None).await.map_err(failed)?;
                let drained = haproxy::drained(root).await;
                self.order_reload(program, process, Signal::USR2).await?;
                if let Err(problem) = haproxy::answers(root, process, Some(before)).await {
                    let log = self.log(root, program, END_OF_LOG.0).await.unwrap_or_default();
                    let reason = program.fatal(&log).map_or_else(String::new, |reason| format!(": {reason}"));
                    return Err(failed(format!("{problem}{reason}")));
                }
                haproxy::drain_again(root, &drained).await;
                Ok(())
            }
        }
    }

    async fn order_reload(&self, program: Program, process: &Handle, signal: Signal) -> Result<(), LaunchError> {
        match self {
            Self::Child => {
                process.signal(signal).map_err(|error| LaunchError::NotReloaded { program, reason: error.to_string() })
            }
            Self::Unit(systemd) => Ok(systemd.reload_unit(program.unit()).await?),
        }
    }

    /// The end of a program's log now.
    fn now(&self, root: &Root, program: Program) -> Since {
        match self {
            Self::Child => Since::Offset(fs::metadata(program.files(root).log()).map_or(0, |found| found.len())),
            Self::Unit(_) => Since::Moment(Timestamp::now()),
        }
    }

    /// Waits until Patroni's log since then says that its file is taken up.
    async fn has_reloaded(&self, root: &Root, program: Program, process: &Handle, since: Since) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let log = match &since {
                Since::Offset(from) => files::tail(&program.files(root).log(), RELOAD_LINES, MOST_LOG_BYTES, *from),
                Since::Moment(moment) => systemd::journal_since(program.unit(), *moment, RELOAD_LINES).await,
            };
            match running::reloaded(&log.unwrap_or_default()) {
                running::Reload::Done => return Ok(()),
                running::Reload::Failed(line) => return Err(line),
                running::Reload::Pending => {}
            }
            if timeout(RELOAD_POLL, process.ended()).await.is_ok() {
                return Err("it ended".to_owned());
            }
            if begun.elapsed() > RELOAD_LIMIT {
                return Err(format!("its log does not say so within {} s", RELOAD_LIMIT.as_secs()));
            }
        }
    }

    /// Ends what outlived a program's process; systemd does so itself, but for Patroni's PostgreSQL.
    pub async fn end_rest(&self, root: &Root, program: Program) {
        match (self, program) {
            (Self::Child, Program::Haproxy) => haproxy::end_workers(|| process::all_of(root, program)).await,
            (_, Program::Patroni) => running::end_rest(root, self).await,
            (Self::Unit(_), _) | (_, Program::Etcd | Program::Keepalived) => {}
        }
    }

    /// The version of a Debian package's program; none for other programs, or where it is not installed.
    pub async fn package_version(&self, program: Program) -> Option<String> {
        match program.source() {
            Source::Pinned(_) => None,
            Source::Package(package) => package.version(self.unprivileged()).await,
        }
    }

    /// The process of a program that an earlier agent started: the unit's own, or one that is provably the agent's.
    pub async fn running(&self, root: &Root, program: Program) -> Option<Handle> {
        match self {
            Self::Child => process::of(root, program),
            Self::Unit(systemd) => {
                let pid = systemd.main_pid(program.unit()).await?;
                let handle = Handle::open(pid).ok()?;
                // The process id could have been reused before the handle was opened, so it is read once more.
                (systemd.main_pid(program.unit()).await == Some(pid)).then_some(handle)
            }
        }
    }

    /// The user that runs every program except the agent; the agent's own where it has no other.
    pub fn unprivileged(&self) -> Option<Owner> {
        match self {
            Self::Child => None,
            Self::Unit(systemd) => Some(systemd.etcd_user()),
        }
    }

    /// A run that an earlier agent began.
    pub async fn adopted(&self, root: &Root, program: Program, pid: u32) -> Run {
        let log = match self {
            Self::Child => Mark::Offset(fs::metadata(program.files(root).log()).map_or(0, |found| found.len())),
            Self::Unit(systemd) => Mark::Invocation(systemd.invocation(program.unit()).await),
        };
        Run { child: None, adopted: Some(pid), log }
    }

    /// How a run ended, with the reason that the program's own log gives.
    pub async fn exit_summary(&self, root: &Root, program: Program, run: Run) -> String {
        let (most, bytes) = END_OF_LOG;
        let (how, log) = match (self, run.log) {
            (Self::Unit(systemd), Mark::Invocation(invocation)) => {
                let log = systemd::journal(program.unit(), invocation.as_deref(), most).await;
                (systemd.end_of(program.unit()).await, log.unwrap_or_default())
            }
            (_, mark) => {
                let from = if let Mark::Offset(from) = mark { from } else { 0 };
                let how = match run.child.map(|mut child| child.wait()) {
                    Some(Ok(status)) => exit(status),
                    Some(Err(error)) => format!("unknown: {error}"),
                    None => run
                        .adopted
                        .and_then(reaped)
                        .unwrap_or_else(|| "unknown: it was started by an agent before this one".to_owned()),
                };
                (how, files::tail(&program.files(root).log(), most, bytes, from).unwrap_or_default())
            }
        };
        match program.fatal(&log) {
            Some(reason) => format!("{how}: {}", reason.chars().take(LONGEST_REASON).collect::<String>()),
            None => how,
        }
    }

    /// The last lines that a program logged.
    pub async fn log(&self, root: &Root, program: Program, lines: usize) -> Result<Vec<String>, FileError> {
        self.tail(program.files(root).log(), program.unit(), lines).await
    }

    /// The last lines that the agent logged.
    pub async fn agent_log(&self, root: &Root, lines: usize) -> Result<Vec<String>, FileError> {
        self.tail(root.agent_log(), systemd::AGENT_UNIT, lines).await
    }

    async fn tail(&self, file: PathBuf, unit: &str, lines: usize) -> Result<Vec<String>, FileError> {
        match self {
            Self::Unit(_) => systemd::journal(unit, None, lines).await,
            Self::Child => {
                let path = file.clone();
                let read = spawn_blocking(move || files::tail(&path, lines, MOST_LOG_BYTES, 0)).await;
                read.map_err(|error| FileError::of("read", &file)(io::Error::other(error)))?
            }
        }
    }
}

/// Whether this version of a program may be run: the installed file may have been changed since.
pub async fn verify(root: &Root, program: Program, version: &str) -> Result<(), LaunchError> {
    let binary = match program.source() {
        Source::Pinned(binary) => binary,
        // Debian's package manager vouches for it.
        Source::Package(_) => return Ok(()),
    };
    let (root, version) = (root.clone(), version.to_owned());
    let checked = spawn_blocking(move || pins::verified(&root, binary, &version)).await;
    checked.map_err(|error| LaunchError::Spawn { program, source: io::Error::other(error) })??;
    Ok(())
}

fn spawn(root: &Root, program: Program) -> Result<(u32, Run), LaunchError> {
    if !program.runs_as_child() {
        return Err(LaunchError::NeedsSystemd(program));
    }
    let files = program.files(root);
    let path = files.log();
    let log =
        OpenOptions::new().append(true).create(true).mode(0o600).open(&path).map_err(FileError::of("open", &path))?;
    let from = log.metadata().map_err(FileError::of("read", &path))?.len();
    let errors = log.try_clone().map_err(FileError::of("open", &path))?;
    // A plain file and a process group of its own: the program outlives the agent.
    let mut command = match program.source() {
        Source::Pinned(Binary::Patroni) => python(),
        Source::Pinned(binary @ (Binary::Etcd | Binary::Etcdutl)) => Command::new(files.current().join(binary.name())),
        Source::Package(package) => Command::new(package.program),
    };
    let child = command
        .args(program.arguments(root))
        .env_clear()
        .envs(program.environment().iter().copied())
        .current_dir(files.dir())
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(|source| LaunchError::Spawn { program, source })?;
    Ok((child.id(), Run { child: Some(child), adopted: None, log: Mark::Offset(from) }))
}

/// PostgreSQL does not run as root: in a user namespace of its own root is another user, and its files are still its own.
fn python() -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(PYTHON);
    }
    let mut command = Command::new("/usr/bin/unshare");
    let user = UNPRIVILEGED;
    command.args(["--user", &format!("--map-user={user}"), &format!("--map-group={user}"), "--", PYTHON]);
    command
}

/// How a process ended that the previous program started in this very process; none for any other.
fn reaped(pid: u32) -> Option<String> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let (_, status) = waitpid(Some(pid), WaitOptions::NOHANG).ok()??;
    Some(exit(ExitStatus::from_raw(status.as_raw())))
}

fn exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}
