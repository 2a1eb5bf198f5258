//! D-Bus → units of systemd: started, stopped, enabled, and how they ended; the journal → their logs.

use std::fs;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};
use zbus::{Connection, OwnedObjectPath, OwnedVariant, Proxy, Variant};

use crate::files::FileError;

pub use raftsman_core::render::systemd::{ETCD_USER, HAPROXY_USER, POSTGRES_USER};

/// etcd's unit.
pub const ETCD_UNIT: &str = "raftsman-etcd.service";
/// HAProxy's unit.
pub const HAPROXY_UNIT: &str = "raftsman-haproxy.service";
/// keepalived's unit.
pub const KEEPALIVED_UNIT: &str = "raftsman-keepalived.service";
/// Patroni's unit.
pub const PATRONI_UNIT: &str = "raftsman-patroni.service";
/// The agent's own.
pub const AGENT_UNIT: &str = "raftsman-agent.service";
/// Exists while systemd is the init process.
pub const RUNS: &str = "/run/systemd/system";

const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const SERVICE: &str = "org.freedesktop.systemd1.Service";
const BUS: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const POLL: Duration = Duration::from_millis(10);
/// A process starts within this time, or its disk hangs.
const JOB_LIMIT: Duration = Duration::from_secs(30);
const JOURNAL_LIMIT: Duration = Duration::from_secs(10);

/// Why a call to systemd failed.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// The bus cannot be reached.
    #[error("systemd cannot be reached over D-Bus: is the package `dbus` installed?")]
    Bus(#[source] zbus::Error),
    /// systemd returned an error.
    #[error("systemd did not {what} {unit}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// Of which unit.
        unit: String,
        /// Why.
        #[source]
        source: zbus::Error,
    },
    /// The process did not come up.
    #[error("{unit} did not start: {how}; see `journalctl -u {unit}`")]
    NotStarted {
        /// The unit.
        unit: String,
        /// How it ended.
        how: String,
    },
    /// The reload failed.
    #[error("{unit} did not reload: {how}; see `journalctl -u {unit}`")]
    NotReloaded {
        /// The unit.
        unit: String,
        /// How it went.
        how: String,
    },
    /// It takes too long.
    #[error("systemd did not {what} {unit} within {} s", JOB_LIMIT.as_secs())]
    TooLong {
        /// What was asked.
        what: &'static str,
        /// Of which unit.
        unit: String,
    },
    /// The user is missing.
    #[error("there is no user {0}: install the agent again with `raftsman-agent install`")]
    NoUser(&'static str),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A user and its group, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub user: u32,
    /// Its group.
    pub group: u32,
}

/// A connection to systemd.
#[derive(Clone, Debug)]
pub struct Systemd {
    manager: Proxy<'static>,
    etcd_user: Owner,
}

impl Systemd {
    /// Connects to the system's bus.
    pub async fn connect() -> Result<Self, SystemdError> {
        let etcd_user = user(ETCD_USER)?;
        let bus = Connection::system().await.map_err(SystemdError::Bus)?;
        let manager = Proxy::new(&bus, BUS, OBJECT, MANAGER).await.map_err(SystemdError::Bus)?;
        Ok(Self { manager, etcd_user })
    }

    /// The user that etcd runs as, and its tools.
    pub fn etcd_user(&self) -> Owner {
        self.etcd_user
    }

    /// Starts a unit, or finds it started; returns its main process id.
    pub async fn start(&self, unit: &str) -> Result<u32, SystemdError> {
        self.begin(unit).await?;
        let pid: u32 = self.property(unit, SERVICE, "MainPID").await.unwrap_or_default();
        match pid {
            0 => Err(SystemdError::NotStarted { unit: unit.to_owned(), how: self.end_of(unit).await }),
            pid => Ok(pid),
        }
    }

    /// Starts a unit, and waits until it has no job.
    async fn begin(&self, unit: &str) -> Result<(), SystemdError> {
        let refused = |source| SystemdError::Refused { what: "start", unit: unit.to_owned(), source };
        let _: OwnedObjectPath = self.manager.call("StartUnit", &(unit, "replace")).await.map_err(refused)?;
        self.settle("start", unit).await
    }

    /// Runs a oneshot unit to its end.
    pub async fn run(&self, unit: &str) -> Result<(), SystemdError> {
        self.begin(unit).await?;
        match self.property::<String>(unit, SERVICE, "Result").await.as_deref() {
            Some("success") => Ok(()),
            _ => Err(SystemdError::NotStarted { unit: unit.to_owned(), how: self.end_of(unit).await }),
        }
    }

    /// Restarts a unit; returns whether it exists.
    pub async fn restart(&self, unit: &str) -> Result<bool, SystemdError> {
        match self.manager.call::<_, _, OwnedObjectPath>("RestartUnit", &(unit, "replace")).await {
            Ok(_) => self.settle("restart", unit).await?,
            Err(error) if is_unknown(&error) => return Ok(false),
            Err(source) => return Err(SystemdError::Refused { what: "restart", unit: unit.to_owned(), source }),
        }
        match self.property::<String>(unit, UNIT, "ActiveState").await.as_deref() {
            Some("active" | "activating" | "reloading") => Ok(true),
            _ => Err(SystemdError::NotStarted { unit: unit.to_owned(), how: self.end_of(unit).await }),
        }
    }

    /// Stops a unit; succeeds when it does not exist.
    pub async fn stop(&self, unit: &str) -> Result<(), SystemdError> {
        match self.manager.call::<_, _, OwnedObjectPath>("StopUnit", &(unit, "replace")).await {
            Ok(_) => self.settle("stop", unit).await,
            Err(error) if is_unknown(&error) => Ok(()),
            Err(source) => Err(SystemdError::Refused { what: "stop", unit: unit.to_owned(), source }),
        }
    }

    /// Reloads an active unit.
    pub async fn reload_unit(&self, unit: &str) -> Result<(), SystemdError> {
        let refused = |source| SystemdError::Refused { what: "reload", unit: unit.to_owned(), source };
        let _: OwnedObjectPath = self.manager.call("ReloadUnit", &(unit, "replace")).await.map_err(refused)?;
        self.settle("reload", unit).await?;
        match self.property::<String>(unit, SERVICE, "ReloadResult").await.as_deref() {
            Some("success") | None => Ok(()),
            Some(how) => Err(SystemdError::NotReloaded { unit: unit.to_owned(), how: how.to_owned() }),
        }
    }

    /// Reloads the unit files (`daemon-reload`).
    pub async fn reload(&self) -> Result<(), SystemdError> {
        let refused = |source| SystemdError::Refused { what: "reload", unit: "its units".to_owned(), source };
        self.manager.call("Reload", &()).await.map_err(refused)
    }

    /// Enables a unit at every boot.
    pub async fn enable(&self, unit: &str) -> Result<(), SystemdError> {
        let refused = |source| SystemdError::Refused { what: "enable", unit: unit.to_owned(), source };
        let enable = (vec![unit], false, true);
        let call = self.manager.call("EnableUnitFiles", &enable);
        let _: (bool, Vec<(String, String, String)>) = call.await.map_err(refused)?;
        Ok(())
    }

    /// Disables a unit.
    pub async fn disable(&self, unit: &str) -> Result<(), SystemdError> {
        let refused = |source| SystemdError::Refused { what: "disable", unit: unit.to_owned(), source };
        let disable = (vec![unit], false);
        let call = self.manager.call("DisableUnitFiles", &disable);
        let _: Vec<(String, String, String)> = call.await.map_err(refused)?;
        Ok(())
    }

    /// Resets the failed state of a unit; succeeds when it did not fail.
    pub async fn forget_failure(&self, unit: &str) {
        let _: Result<(), _> = self.manager.call("ResetFailedUnit", &(unit,)).await;
    }

    /// Runs a program outside of the agent's own unit: it outlives the agent, and does not have its restrictions.
    pub async fn run_apart(
        &self,
        unit: &str,
        purpose: &str,
        program: &str,
        arguments: &[&str],
    ) -> Result<(), SystemdError> {
        let refused = |source| SystemdError::Refused { what: "start", unit: unit.to_owned(), source };
        let argv: Vec<&str> = std::iter::once(program).chain(arguments.iter().copied()).collect();
        let properties: Vec<(&str, Variant<'_>)> = vec![
            ("Description", Variant::from(purpose)),
            ("CollectMode", Variant::from("inactive-or-failed")),
            ("ExecStart", Variant::from(vec![(program, argv, false)])),
        ];
        let more: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
        let start = (unit, "replace", properties, more);
        let call = self.manager.call("StartTransientUnit", &start);
        let _: OwnedObjectPath = call.await.map_err(refused)?;
        Ok(())
    }

    /// Waits until the process of a unit has ended.
    pub async fn wait_for_end(&self, unit: &str) -> Result<(), SystemdError> {
        self.settle("start", unit).await?;
        let begun = Instant::now();
        while self.main_pid(unit).await.is_some() {
            if begun.elapsed() > JOB_LIMIT {
                return Err(SystemdError::TooLong { what: "finish", unit: unit.to_owned() });
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// The main process of a unit that runs.
    pub async fn main_pid(&self, unit: &str) -> Option<u32> {
        self.property(unit, SERVICE, "MainPID").await.filter(|pid| *pid != 0)
    }

    /// How the last run of a unit ended.
    pub async fn end_of(&self, unit: &str) -> String {
        let code: i32 = self.property(unit, SERVICE, "ExecMainCode").await.unwrap_or_default();
        let status: i32 = self.property(unit, SERVICE, "ExecMainStatus").await.unwrap_or_default();
        match code {
            1 => format!("exit code {status}"),
            2 | 3 => format!("signal {status}"),
            _ => "unknown".to_owned(),
        }
    }

    /// systemd's invocation id of the current or last run of a unit.
    pub async fn invocation(&self, unit: &str) -> Option<String> {
        let id: Vec<u8> = self.property(unit, UNIT, "InvocationID").await?;
        (!id.is_empty()).then(|| raftsman_api::hex::encode(&id))
    }

    /// Waits until a unit has no job.
    async fn settle(&self, what: &'static str, unit: &str) -> Result<(), SystemdError> {
        let begun = Instant::now();
        loop {
            // The unit's job: 0 when there is none.
            let job: Option<(u32, OwnedObjectPath)> = self.property(unit, UNIT, "Job").await;
            if job.is_none_or(|(number, _)| number == 0) {
                return Ok(());
            }
            if begun.elapsed() > JOB_LIMIT {
                return Err(SystemdError::TooLong { what, unit: unit.to_owned() });
            }
            sleep(POLL).await;
        }
    }

    async fn property<T: TryFrom<OwnedVariant>>(&self, unit: &str, interface: &'static str, name: &str) -> Option<T> {
        let path: OwnedObjectPath = self.manager.call("LoadUnit", &(unit,)).await.ok()?;
        // A direct call: a proxy's cache could return an old value.
        let properties = "org.freedesktop.DBus.Properties";
        let proxy = Proxy::new(self.manager.connection(), BUS, path, properties).await.ok()?;
        let value: OwnedVariant = proxy.call("Get", &(interface, name)).await.ok()?;
        T::try_from(value).ok()
    }
}

fn is_unknown(error: &zbus::Error) -> bool {
    matches!(error, zbus::Error::MethodError(name, ..) if name.as_str() == "org.freedesktop.systemd1.NoSuchUnit")
}

/// A user's numbers; nothing when there is no such user.
pub fn owner(user: &str) -> Result<Option<Owner>, FileError> {
    let path = Path::new("/etc/passwd");
    let text = fs::read_to_string(path).map_err(FileError::of("read", path))?;
    let numbers = |line: &str| {
        let mut fields = line.split(':');
        let (name, _, user_id, group_id) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        (name == user).then_some(Owner { user: user_id.parse().ok()?, group: group_id.parse().ok()? })
    };
    Ok(text.lines().find_map(numbers))
}

/// A user that must be there.
pub fn user(name: &'static str) -> Result<Owner, SystemdError> {
    owner(name)?.ok_or(SystemdError::NoUser(name))
}

/// Changes the owner of a directory and all of its content to this user.
pub fn give(path: &Path, owner: Owner) -> Result<(), FileError> {
    change_owner(path, Some(owner.user), owner.group)
}

/// Lets a group read a directory with all that is in it.
pub fn give_to_group(path: &Path, group: u32) -> Result<(), FileError> {
    change_owner(path, None, group)
}

fn change_owner(path: &Path, user: Option<u32>, group: u32) -> Result<(), FileError> {
    const CHANGE: &str = "change the owner of";
    let mut waiting = vec![path.to_path_buf()];
    while let Some(path) = waiting.pop() {
        let found = fs::symlink_metadata(&path).map_err(FileError::of(CHANGE, &path))?;
        if user.is_some_and(|user| user != found.uid()) || found.gid() != group {
            lchown(&path, user, Some(group)).map_err(FileError::of(CHANGE, &path))?;
        }
        if found.is_dir() {
            let entries = fs::read_dir(&path).map_err(FileError::of("list", &path))?;
            waiting.extend(entries.flatten().map(|entry| entry.path()));
        }
    }
    Ok(())
}

/// The last lines that a unit logged, in this run or in all of them.
pub async fn journal(unit: &str, invocation: Option<&str>, lines: usize) -> Result<Vec<String>, FileError> {
    read_journal(unit, invocation.map(|id| format!("_SYSTEMD_INVOCATION_ID={id}")), lines).await
}

async fn read_journal(unit: &str, only: Option<String>, lines: usize) -> Result<Vec<String>, FileError> {
    let program = Path::new("journalctl");
    let mut command = Command::new(program);
    command.args(["--quiet", "--no-pager", "--output=cat", &format!("--lines={lines}"), &format!("--unit={unit}")]);
    command.args(only).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output =
        timeout(JOURNAL_LIMIT, command.output()).await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    let output = output.map_err(FileError::of("run", program))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// The same of what it logged since a moment. What the unit has written is in the journal first.
pub async fn journal_since(unit: &str, since: Timestamp, lines: usize) -> Result<Vec<String>, FileError> {
    let sync = Command::new("journalctl").arg("--sync").stdin(Stdio::null()).stderr(Stdio::null()).status();
    let _ = timeout(JOURNAL_LIMIT, sync).await;
    let (seconds, rest) = (since.as_second(), since.subsec_microsecond());
    read_journal(unit, Some(format!("--since=@{seconds}.{rest:06}")), lines).await
}
