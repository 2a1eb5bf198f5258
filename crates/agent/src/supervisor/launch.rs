//! etcd as it is installed and configured → its process: a child of its own, or a unit of systemd.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use tokio::task::spawn_blocking;

use crate::etcd::{self, EtcdError, Program};
use crate::files::{self, FileError};
use crate::root::Root;
use crate::supervisor::pins;
use crate::supervisor::process::{self, Handle};
use crate::supervisor::systemd::{self, Owner, Systemd, SystemdError};

/// Where etcd and its tools find programs, and all that they find in their environment.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// So much of a log is looked through for etcd's last words.
const LAST_WORDS: (usize, u64) = (50, 64 * 1024);

/// How etcd is run on this machine.
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
    #[error("etcd could not be started")]
    Spawn(#[source] io::Error),
    /// systemd could not start it.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// What is installed must not be run.
    #[error(transparent)]
    Binary(#[from] EtcdError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl LaunchError {
    /// Whether there never was a process: one that ended at once may have written data.
    pub fn nothing_ran(&self) -> bool {
        matches!(
            self,
            Self::Spawn(_) | Self::Binary(_) | Self::Systemd(SystemdError::Bus(_) | SystemdError::Refused { .. })
        )
    }
}

/// A run of etcd.
#[derive(Debug)]
pub struct Run {
    /// The process, when it is our child.
    child: Option<Child>,
    /// Where this run begins in the log.
    log: Mark,
}

/// Where a run begins in the log.
#[derive(Debug)]
enum Mark {
    /// At this byte of the file.
    Offset(u64),
    /// By the number that systemd gave the run; none when it is not known.
    Invocation(Option<String>),
}

impl Launcher {
    /// Starts etcd; its process number.
    pub async fn launch(&self, root: &Root) -> Result<(u32, Run), LaunchError> {
        verify(root, &etcd::current(root).unwrap_or_default()).await?;
        match self {
            Self::Child => spawn(root),
            Self::Unit(systemd) => {
                // The agent made the directory, and may have restored the data with etcd's own tool.
                systemd::give(&root.data(), systemd.etcd_user())?;
                let pid = systemd.start(systemd::ETCD_UNIT).await?;
                let log = Mark::Invocation(systemd.invocation(systemd::ETCD_UNIT).await);
                Ok((pid, Run { child: None, log }))
            }
        }
    }

    /// The process of an etcd that an agent before this one started: the unit's own, or one that provably is ours.
    pub async fn running(&self, root: &Root) -> Option<Handle> {
        match self {
            Self::Child => process::ours(&root.config_argument(), &root.versions()),
            Self::Unit(systemd) => {
                let pid = systemd.main_pid(systemd::ETCD_UNIT).await?;
                let handle = Handle::open(pid).ok()?;
                // The number could have changed hands before the handle was opened, so it is asked for once more.
                (systemd.main_pid(systemd::ETCD_UNIT).await == Some(pid)).then_some(handle)
            }
        }
    }

    /// The user as whom everything runs that is not the agent; its own where it has no other.
    pub fn unprivileged(&self) -> Option<Owner> {
        match self {
            Self::Child => None,
            Self::Unit(systemd) => Some(systemd.etcd_user()),
        }
    }

    /// A run that an agent before this one began.
    pub async fn adopted(&self, root: &Root) -> Run {
        let log = match self {
            Self::Child => Mark::Offset(fs::metadata(root.etcd_log()).map_or(0, |found| found.len())),
            Self::Unit(systemd) => Mark::Invocation(systemd.invocation(systemd::ETCD_UNIT).await),
        };
        Run { child: None, log }
    }

    /// How a run ended, with etcd's own last words.
    pub async fn exit_summary(&self, root: &Root, run: Run) -> String {
        let (most, bytes) = LAST_WORDS;
        let (how, words) = match (self, run.log) {
            (Self::Unit(systemd), Mark::Invocation(invocation)) => {
                let words = systemd::journal(systemd::ETCD_UNIT, invocation.as_deref(), most).await;
                (systemd.end_of(systemd::ETCD_UNIT).await, words.unwrap_or_default())
            }
            (_, mark) => {
                let from = if let Mark::Offset(from) = mark { from } else { 0 };
                let how = match run.child.map(|mut child| child.wait()) {
                    Some(Ok(status)) => exit(status),
                    Some(Err(error)) => format!("unknown: {error}"),
                    None => "unknown: it was started by an agent before this one".to_owned(),
                };
                (how, files::tail(&root.etcd_log(), most, bytes, from).unwrap_or_default())
            }
        };
        let fatal = |line: &&String| {
            line.contains(r#""level":"fatal""#) || line.contains(r#""level":"panic""#) || line.starts_with("panic:")
        };
        match words.iter().rev().find(fatal) {
            Some(line) => format!("{how}: {}", gist(line).chars().take(600).collect::<String>()),
            None => how,
        }
    }
}

/// Whether this version may be run: what was installed may have been changed since.
pub async fn verify(root: &Root, version: &str) -> Result<(), LaunchError> {
    let (root, version) = (root.clone(), version.to_owned());
    let checked = spawn_blocking(move || pins::verified(&root, Program::Etcd, &version)).await;
    checked.map_err(|error| LaunchError::Spawn(io::Error::other(error)))??;
    Ok(())
}

fn spawn(root: &Root) -> Result<(u32, Run), LaunchError> {
    let path = root.etcd_log();
    let log =
        OpenOptions::new().append(true).create(true).mode(0o600).open(&path).map_err(FileError::of("open", &path))?;
    let from = log.metadata().map_err(FileError::of("read", &path))?.len();
    let errors = log.try_clone().map_err(FileError::of("open", &path))?;
    // A plain file and a process group of its own: etcd outlives the agent. A clean environment: etcd would take
    // ETCD_ variables for settings.
    let child = Command::new(root.current().join("etcd"))
        .arg(root.config_argument())
        .env_clear()
        .env("PATH", PATH)
        .current_dir(root.etcd())
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(LaunchError::Spawn)?;
    Ok((child.id(), Run { child: Some(child), log: Mark::Offset(from) }))
}

/// What a line of etcd's log says, without its time, place and stack.
fn gist(line: &str) -> String {
    let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else { return line.to_owned() };
    let text = |key: &str| line.get(key).and_then(|value| value.as_str()).unwrap_or_default();
    let parts = [text("msg"), text("error")];
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(": ")
}

fn exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}
