//! orders → agents on existing hosts: SSH is used once, for the installation.
//!
//! The record of a host is a small file in the state, written before the host is touched. SSH is the system's own
//! program, so that the user's configuration, keys, agent and known hosts apply.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use raftsman_core::render::systemd::AGENT_PROGRAM;
use raftsman_core::spec::Name;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::files::{self, FileError, failed};
use crate::program::{self, Failure};
use crate::reach::{self, Tries};
use crate::{MachineOrder, MachineRecord, Power, Provider, ProviderError, new_id};

const TRIES: Tries = Tries { once: Duration::from_secs(3), pause: Duration::from_millis(20) };
/// From its installation until the agent serves.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The agent is some 20 MB, and the connection may be slow.
const SSH_LIMIT: Duration = Duration::from_secs(600);

/// Reads the boot data from the first line and the agent's program from the rest, and runs that to install itself. No
/// single quotes: it is one argument of `sh -c '…'`, because a user's login shell may be another.
const INSTALL: &str = r#"set -eu
umask 077
IFS= read -r boot
dir=$(mktemp -d)
trap "rm -rf $dir" EXIT
cat >$dir/raftsman-agent
chmod 700 $dir/raftsman-agent
as_root=; [ $(id -u) = 0 ] || as_root="sudo -n"
printf "%s\n" "$boot" | $as_root $dir/raftsman-agent install"#;

/// Has an installed agent remove itself, if it is this fleet's.
fn uninstall(fleet_id: &str) -> String {
    format!(
        r#"set -eu
as_root=; [ $(id -u) = 0 ] || as_root="sudo -n"
[ ! -e {AGENT_PROGRAM} ] || $as_root {AGENT_PROGRAM} uninstall --fleet {fleet_id}"#
    )
}

/// How hosts are reached, and where their records are kept.
#[derive(Clone, Debug)]
pub struct HostsSettings {
    /// The directory that holds a file for each host.
    pub dir: PathBuf,
    /// The fleet that the hosts belong to.
    pub fleet_id: String,
    /// The `raftsman-agent` program that is put on them.
    pub agent: PathBuf,
    /// How they are reached the first time.
    pub ssh: Ssh,
    /// The SSH destination of a host, by machine; its address when none is given.
    pub destinations: BTreeMap<String, String>,
}

/// SSH options beyond the user's own configuration.
#[derive(Clone, Debug, Default)]
pub struct Ssh {
    /// The user that logs in.
    pub user: Option<String>,
    /// On which port.
    pub port: Option<u16>,
    /// A configuration file instead of the user's.
    pub config: Option<PathBuf>,
}

/// Hosts that exist already.
#[derive(Clone, Debug)]
pub struct Hosts {
    settings: HostsSettings,
}

/// Why an operation on a host failed.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A name that cannot be a file's and a certificate's.
    #[error("`{0}` cannot be a machine's name: use lower-case letters, digits and hyphens, at most 63")]
    Name(String),
    /// The record of a host cannot be read.
    #[error("{} is malformed: bring it back from a copy of the state, or remove it: the host is installed again then", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// It is somewhere else.
    #[error("the host {name} is at {found}, the order says {wanted}: hosts do not move")]
    OtherAddress {
        /// The host.
        name: String,
        /// Where it is.
        found: SocketAddr,
        /// What was ordered.
        wanted: SocketAddr,
    },
    /// SSH is not there.
    #[error("`ssh` could not be run: install OpenSSH's client")]
    NoSsh(#[source] io::Error),
    /// Its host key is unknown, or has changed.
    #[error(
        "{host}: its SSH host key is not known, or another than before: compare it with the host's own, then log in once \
         with `ssh {host}`; ssh says:\n{words}"
    )]
    HostKey {
        /// What SSH calls it.
        host: String,
        /// What SSH said.
        words: String,
    },
    /// No connection, or no login.
    #[error("{host}: no login by SSH: see that `ssh {host} true` works without a question; ssh says:\n{words}")]
    NoLogin {
        /// What SSH calls it.
        host: String,
        /// What SSH said.
        words: String,
    },
    /// Not allowed to become root.
    #[error(
        "{host}: sudo asks for a password: let this user use sudo without one, or log in as root; it says:\n{words}"
    )]
    NoSudo {
        /// What SSH calls it.
        host: String,
        /// What was said.
        words: String,
    },
    /// The agent could not be installed or removed.
    #[error("{host}: {words}")]
    Refused {
        /// What SSH calls it.
        host: String,
        /// What the agent said.
        words: String,
    },
    /// It took too long.
    #[error("{host}: SSH did not end within {} min", SSH_LIMIT.as_secs() / 60)]
    TooLong {
        /// What SSH calls it.
        host: String,
    },
    /// It does not serve.
    #[error(
        "the agent was installed on {name} and does not answer at {address} after {} s: is a firewall between? On the \
         host, `journalctl -u raftsman-agent` tells more",
        START_LIMIT.as_secs()
    )]
    Silent {
        /// The host.
        name: String,
        /// Where it should.
        address: SocketAddr,
    },
    /// Only its owner can switch it on.
    #[error("the host {0} cannot be started from here: switch it on")]
    NoPower(String),
    /// Only its owner can change its address.
    #[error("the host {0} cannot be given another address from here")]
    NoMove(String),
}

/// The record of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Known {
    name: String,
    address: IpAddr,
    agent_port: u16,
    /// Whether its agent was installed completely.
    installed: bool,
    /// Made when it is enrolled: the next time it gets another.
    #[serde(default)]
    id: Option<String>,
}

impl Known {
    fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.agent_port)
    }

    /// Whether a process listens on the agent's port.
    async fn answers(&self) -> bool {
        reach::answers(self.socket(), TRIES.once).await
    }

    /// The provider cannot see whether a host is switched on: only its agent can tell. A host without an agent waits
    /// for its installation.
    fn record(self) -> MachineRecord {
        let Self { name, address, agent_port, installed, id } = self;
        let power = if installed { Power::Running } else { Power::Stopped };
        MachineRecord { name, id, address, agent_port, power, finished: installed, shape: None, zone: None }
    }
}

#[async_trait]
impl Provider for Hosts {
    async fn inventory(&self) -> Result<Vec<MachineRecord>, ProviderError> {
        Ok(self.list()?)
    }

    async fn machine(&self, name: &str) -> Result<Option<MachineRecord>, ProviderError> {
        Ok(self.known(name)?.map(Known::record))
    }

    /// Installs the agent on the host, which is there already.
    async fn create(&self, order: &MachineOrder) -> Result<MachineRecord, ProviderError> {
        Ok(self.install(order).await?)
    }

    async fn start(&self, name: &str) -> Result<(), ProviderError> {
        Err(HostsError::NoPower(name.to_owned()).into())
    }

    async fn readdress(&self, name: &str, _: IpAddr) -> Result<(), ProviderError> {
        Err(HostsError::NoMove(name.to_owned()).into())
    }

    async fn dismantle(&self, name: &str, _: Option<&str>) -> Result<(), ProviderError> {
        Err(ProviderError::NoDataDisk(name.to_owned()))
    }

    /// Removes the record of the host. An agent that still answers did not leave when it was asked, and is removed over
    /// SSH, like one whose installation is incomplete; one that does not answer any more has left, or its host is gone.
    async fn delete(&self, name: &str, seen: Option<&str>) -> Result<(), ProviderError> {
        self.is_the_same(name, seen).await?;
        Ok(self.forget(name).await?)
    }
}

impl Hosts {
    /// The provider with these settings. It connects to nothing yet.
    pub fn new(settings: HostsSettings) -> Self {
        Self { settings }
    }

    fn file(&self, name: &str) -> Result<PathBuf, HostsError> {
        if Name::parse(name).is_ok() {
            Ok(self.settings.dir.join(format!("{name}.json")))
        } else {
            Err(HostsError::Name(name.to_owned()))
        }
    }

    fn known(&self, name: &str) -> Result<Option<Known>, HostsError> {
        let path = self.file(name)?;
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(failed("read", &path))?,
        };
        serde_json::from_str(&text).map(Some).map_err(|source| HostsError::Malformed { path, source })
    }

    fn remember(&self, host: &Known) -> Result<(), HostsError> {
        let path = self.file(&host.name)?;
        let dir = &self.settings.dir;
        fs::create_dir_all(dir).map_err(failed("make the directory", dir))?;
        let text =
            serde_json::to_vec_pretty(host).map_err(|source| HostsError::Malformed { path: path.clone(), source })?;
        Ok(files::write(&path, &text).map_err(failed("write", &path))?)
    }

    fn list(&self) -> Result<Vec<MachineRecord>, HostsError> {
        let dir = &self.settings.dir;
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed("list", dir))?,
        };
        let mut hosts = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed("list", dir))?.file_name();
            // Other files are leftovers of a run that was killed while it wrote.
            let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            hosts.extend(self.known(name)?.map(Known::record));
        }
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(hosts)
    }

    async fn install(&self, order: &MachineOrder) -> Result<MachineRecord, HostsError> {
        let MachineOrder { name, address, agent_port, .. } = order;
        let id = Some(self.known(name)?.and_then(|found| found.id).unwrap_or_else(new_id));
        let host = Known { name: name.clone(), address: *address, agent_port: *agent_port, installed: false, id };
        if let Some(found) = self.known(name)?.filter(|found| found.socket() != host.socket()) {
            let (found, wanted) = (found.socket(), host.socket());
            return Err(HostsError::OtherAddress { name: name.clone(), found, wanted });
        }
        if order.joined {
            let host = Known { installed: true, ..host };
            self.remember(&host)?;
            return Ok(host.record());
        }
        // Before the host is touched: the record must cover what may have been installed.
        self.remember(&host)?;
        let program = &self.settings.agent;
        let agent = tokio::fs::read(program).await.map_err(failed("read", program))?;
        let path = self.file(name)?;
        let mut input = serde_json::to_vec(&order.boot).map_err(|source| HostsError::Malformed { path, source })?;
        input.push(b'\n');
        input.extend(agent);
        self.ssh(&host, INSTALL, input).await?;
        await_agent(&host).await?;
        let host = Known { installed: true, ..host };
        self.remember(&host)?;
        Ok(host.record())
    }

    async fn forget(&self, name: &str) -> Result<(), HostsError> {
        let Some(host) = self.known(name)? else { return Ok(()) };
        let answers = host.answers().await;
        if answers || !host.installed {
            match self.ssh(&host, &uninstall(&self.settings.fleet_id), Vec::new()).await {
                // Nothing was installed there yet, and there is no login to check it.
                Err(HostsError::NoLogin { .. }) if !answers => {}
                removed => removed?,
            }
        }
        let path = self.file(name)?;
        Ok(fs::remove_file(&path).map_err(failed("remove", &path))?)
    }

    /// Runs a script on the host, with this on its standard input.
    async fn ssh(&self, host: &Known, script: &str, input: Vec<u8>) -> Result<(), HostsError> {
        let address = host.address.to_string();
        let destination = self.settings.destinations.get(&host.name).unwrap_or(&address);
        let Ssh { user, port, config } = &self.settings.ssh;
        let mut command = Command::new("ssh");
        // No user is there to answer a prompt. A host that stops answering is detected after 30 s.
        command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
        command.args(["-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"]);
        command.args(config.iter().flat_map(|path| ["-F".into(), path.as_os_str().to_owned()]));
        command.args(user.iter().flat_map(|user| ["-l", user]));
        command.args(port.iter().flat_map(|port| ["-p".to_owned(), port.to_string()]));
        command.args(["--", destination, &format!("sh -c '{script}'")]);
        match program::run(&mut command, input, SSH_LIMIT).await {
            Ok(_) => Ok(()),
            Err(Failure::NotRun(error)) => Err(HostsError::NoSsh(error)),
            Err(Failure::TooLong) => Err(HostsError::TooLong { host: destination.clone() }),
            Err(Failure::Refused { code, words }) => Err(refusal(destination.clone(), code, words)),
        }
    }
}

/// The error that SSH, sudo or the agent reported.
fn refusal(host: String, code: Option<i32>, words: String) -> HostsError {
    match code {
        Some(255) if words.contains("Host key verification failed") => HostsError::HostKey { host, words },
        Some(255) => HostsError::NoLogin { host, words },
        _ if words.contains("sudo:") => HostsError::NoSudo { host, words },
        _ => HostsError::Refused { host, words },
    }
}

async fn await_agent(host: &Known) -> Result<(), HostsError> {
    let served = reach::await_answer(host.socket(), TRIES, START_LIMIT).await;
    served.map_err(|_| HostsError::Silent { name: host.name.clone(), address: host.socket() })
}
