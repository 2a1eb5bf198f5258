//! orders → machines on this computer: `<dir>/<name>/` and an agent process for it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use raftsman_core::boot::Boot;
use raftsman_core::render::{haproxy, patroni};
use raftsman_core::spec::Name;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::files;
use crate::process::{self, Proved};
use crate::reach;
use crate::{MachineOrder, MachineRecord, Power, Provider, ProviderError, new_id};

const POLL: Duration = Duration::from_millis(2);
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
const START_LIMIT: Duration = Duration::from_secs(15);
const END_LIMIT: Duration = Duration::from_secs(15);

/// Where the local provider keeps its machines.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// The directory that holds a directory for each machine.
    pub dir: PathBuf,
    /// The fleet that the machines belong to.
    pub fleet_id: String,
    /// The `raftsman-agent` program.
    pub agent: PathBuf,
}

/// Machines on this computer.
#[derive(Clone, Debug)]
pub struct Local {
    settings: LocalSettings,
}

/// Why the local provider failed.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// A file operation failed.
    #[error("cannot {action} {}{}", path.display(), hint(source))]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A name that cannot be a directory's and a certificate's.
    #[error("`{0}` cannot be a machine's name: use lower-case letters, digits and hyphens, at most 63")]
    Name(String),
    /// The directory belongs to another fleet.
    #[error(
        "{} is a machine of the fleet {found}, not of {expected}: use another directory, or delete that fleet first",
        dir.display()
    )]
    ForeignMachine {
        /// The machine's directory.
        dir: PathBuf,
        /// The fleet in its tag.
        found: String,
        /// Our fleet.
        expected: String,
    },
    /// The tag cannot be read.
    #[error("{} is malformed: nothing was changed; remove the directory manually if it is not needed", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The directory exists, and raftsman did not make it.
    #[error("{} exists, but raftsman did not make it: move it away", dir.display())]
    NotOurs {
        /// The directory.
        dir: PathBuf,
    },
    /// No such machine.
    #[error("there is no machine {0}: create it first")]
    NoMachine(String),
    /// An order does not move a machine.
    #[error(
        "the machine {name} has the address {found}, the order says {wanted}: move it first, or delete it and create it again"
    )]
    OtherAddress {
        /// The machine.
        name: String,
        /// What it has.
        found: SocketAddr,
        /// What was ordered.
        wanted: SocketAddr,
    },
    /// The new address cannot be bound.
    #[error("the machine {name} cannot move to {wanted}: it stays where it is")]
    NoAddress {
        /// The machine.
        name: String,
        /// Where it should go.
        wanted: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The program could not be started.
    #[error("the agent {} could not be started: is raftsman-agent installed beside raftsman?", path.display())]
    Spawn {
        /// The program.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It ended at once.
    #[error("the agent of {name} ended at once; its log says:\n{log}")]
    Ended {
        /// The machine.
        name: String,
        /// The last lines of its log.
        log: String,
    },
    /// It does not serve.
    #[error("the agent of {name} does not serve on {address} after {} s; its log says:\n{log}", START_LIMIT.as_secs())]
    Silent {
        /// The machine.
        name: String,
        /// Where it should.
        address: SocketAddr,
        /// The last lines of its log.
        log: String,
    },
    /// A process could not be ended.
    #[error("the process {pid} of {name} did not exit: kill it manually, then delete the machine again")]
    Immortal {
        /// The machine.
        name: String,
        /// Its process.
        pid: u32,
    },
    /// The process that holds the lock is not provably the agent.
    #[error(
        "{} is locked, but by no process that is provably this machine's agent: nothing was killed; see \
         `fuser` on that file",
        lock.display()
    )]
    Unproved {
        /// The lock.
        lock: PathBuf,
    },
    /// The task was cancelled.
    #[error("the work on this computer's files was interrupted")]
    Broken(#[from] tokio::task::JoinError),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            " (free some space where the machines are, then run the same command again)"
        }
        _ => "",
    }
}

/// The tag with the fleet and the machine of a directory. Written before everything else.
#[derive(Debug, Serialize, Deserialize)]
struct Tag {
    fleet_id: String,
    name: String,
    address: IpAddr,
    agent_port: u16,
    /// Made with the directory: the next machine of this name has another.
    #[serde(default)]
    id: Option<String>,
}

impl Tag {
    fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.agent_port)
    }

    fn record(self, power: Power, finished: bool) -> MachineRecord {
        let Self { name, address, agent_port, id, .. } = self;
        MachineRecord { name, id, address, agent_port, power, finished, shape: None, zone: None }
    }
}

/// Work on files, off the async runtime.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LocalError> + Send + 'static,
) -> Result<T, LocalError> {
    spawn_blocking(work).await?
}

fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> LocalError + use<'a> {
    move |source| LocalError::File { action, path: path.to_path_buf(), source }
}

#[async_trait]
impl Provider for Local {
    /// A directory with another fleet's tag is an error.
    async fn inventory(&self) -> Result<Vec<MachineRecord>, ProviderError> {
        let this = self.clone();
        Ok(blocking(move || this.list()).await?)
    }

    async fn machine(&self, name: &str) -> Result<Option<MachineRecord>, ProviderError> {
        let (this, root) = (self.clone(), self.root(name)?);
        Ok(blocking(move || this.look(&root)).await?)
    }

    async fn create(&self, order: &MachineOrder) -> Result<MachineRecord, ProviderError> {
        let (this, copy) = (self.clone(), order.clone());
        let tag = blocking(move || this.lay_out(&copy)).await?;
        self.brief(order).await?;
        self.wake(&tag).await?;
        Ok(tag.record(Power::Running, true))
    }

    /// Starts the machine's agent unless it runs.
    async fn start(&self, name: &str) -> Result<(), ProviderError> {
        Ok(self.wake(&self.known(name)?).await?)
    }

    /// The agent serves at the new address at once, and etcd continues as it is until it is restarted.
    async fn readdress(&self, name: &str, address: IpAddr) -> Result<(), ProviderError> {
        let tag = self.known(name)?;
        if tag.address == address {
            return Ok(self.wake(&tag).await?);
        }
        Ok(self.relocate(Tag { address, ..tag }).await?)
    }

    async fn dismantle(&self, name: &str, _: Option<&str>) -> Result<(), ProviderError> {
        Err(ProviderError::NoDataDisk(name.to_owned()))
    }

    /// Ends the machine's processes and removes its directory.
    async fn delete(&self, name: &str, seen: Option<&str>) -> Result<(), ProviderError> {
        self.is_the_same(name, seen).await?;
        Ok(self.remove(name).await?)
    }
}

impl Local {
    /// The provider with these settings. It changes nothing yet.
    pub fn new(settings: LocalSettings) -> Self {
        Self { settings }
    }

    fn known(&self, name: &str) -> Result<Tag, LocalError> {
        self.tag(&self.root(name)?)?.ok_or_else(|| LocalError::NoMachine(name.to_owned()))
    }

    async fn relocate(&self, moved: Tag) -> Result<(), LocalError> {
        let root = self.root(&moved.name)?;
        let root = root.canonicalize().map_err(failed("resolve", &root))?;
        let wanted = moved.socket();
        // Before anything is changed: an agent that no client can reach is worse than one at the wrong address.
        TcpListener::bind(wanted).map_err(|source| LocalError::NoAddress {
            name: moved.name.clone(),
            wanted,
            source,
        })?;
        self.end_agent(&moved.name, &root).await?;
        let path = root.join("machine.json");
        write(&path, &json(&path, &moved)?)?;
        self.wake(&moved).await
    }

    async fn remove(&self, name: &str) -> Result<(), LocalError> {
        let root = self.root(name)?;
        if self.tag(&root)?.is_none() {
            // An empty directory: a run was killed between making it and its tag.
            remove_unfinished_tag(&root)?;
            return match fs::remove_dir(&root) {
                Ok(()) => Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(_) => Err(LocalError::NotOurs { dir: root }),
            };
        }
        // Without symbolic links, as the agent itself sees its root.
        let root = root.canonicalize().map_err(failed("resolve", &root))?;
        // The agent first: it would start the others again.
        self.end_agent(name, &root).await?;
        end_postgres(name, &root).await?;
        let config = root.join("haproxy/haproxy.cfg").into_os_string().into_encoded_bytes();
        end_processes(name, &root, &config, Path::new(haproxy::PROGRAM)).await?;
        let config = [b"--config-file=", root.join("etcd/etcd.yaml").as_os_str().as_encoded_bytes()].concat();
        end_processes(name, &root, &config, &root.join("etcd/versions")).await?;
        blocking(move || remove(&root)).await
    }

    fn root(&self, name: &str) -> Result<PathBuf, LocalError> {
        if Name::parse(name).is_ok() {
            Ok(self.settings.dir.join(name))
        } else {
            Err(LocalError::Name(name.to_owned()))
        }
    }

    /// The machine's tag; `None` when there is none.
    fn tag(&self, root: &Path) -> Result<Option<Tag>, LocalError> {
        let path = root.join("machine.json");
        let text = match fs::read_to_string(&path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            read => read.map_err(failed("read", &path))?,
        };
        let tag: Tag = serde_json::from_str(&text).map_err(|source| LocalError::Malformed { path, source })?;
        if tag.fleet_id == self.settings.fleet_id {
            Ok(Some(tag))
        } else {
            Err(LocalError::ForeignMachine {
                dir: root.to_path_buf(),
                found: tag.fleet_id,
                expected: self.settings.fleet_id.clone(),
            })
        }
    }

    fn list(&self) -> Result<Vec<MachineRecord>, LocalError> {
        let dir = &self.settings.dir;
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed("list", dir))?,
        };
        let mut machines = Vec::new();
        for entry in entries {
            let root = entry.map_err(failed("list", dir))?.path();
            machines.extend(self.look(&root)?);
        }
        machines.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(machines)
    }

    fn look(&self, root: &Path) -> Result<Option<MachineRecord>, LocalError> {
        let Some(tag) = self.tag(root)? else { return Ok(None) };
        let lock = root.join("agent.lock");
        let runs = process::is_locked(&lock).map_err(failed("look at", &lock))?;
        let power = if runs { Power::Running } else { Power::Stopped };
        // A machine whose creation was interrupted has no boot data yet.
        let agent = root.join("agent");
        let finished = agent.join("boot.json").exists() || agent.join("tls/current").exists();
        Ok(Some(tag.record(power, finished)))
    }

    fn lay_out(&self, order: &MachineOrder) -> Result<Tag, LocalError> {
        let root = self.root(&order.name)?;
        let wanted = Tag {
            fleet_id: self.settings.fleet_id.clone(),
            name: order.name.clone(),
            address: order.address,
            agent_port: order.agent_port,
            id: Some(new_id()),
        };
        let tag = match self.tag(&root)? {
            Some(found) if found.socket() != wanted.socket() => {
                return Err(LocalError::OtherAddress {
                    name: found.name.clone(),
                    found: found.socket(),
                    wanted: wanted.socket(),
                });
            }
            Some(found) => found,
            None => {
                remove_unfinished_tag(&root)?;
                if fs::read_dir(&root).is_ok_and(|mut entries| entries.next().is_some()) {
                    return Err(LocalError::NotOurs { dir: root });
                }
                make_dir(&root)?;
                let path = root.join("machine.json");
                write(&path, &json(&path, &wanted)?)?;
                wanted
            }
        };
        let artifacts = root.join("artifacts");
        make_dir(&artifacts)?;
        for dir in [&root, &artifacts, &root.join("agent")] {
            remove_unfinished(dir)?;
        }
        for artifact in &order.artifacts {
            let target = artifacts.join(format!("etcd-{}", artifact.version));
            if !target.exists() {
                put(&artifact.path, &target)?;
            }
        }
        Ok(tag)
    }

    /// Writes the boot data unless the machine was claimed. An unclaimed agent with other boot data, left by an order
    /// whose token was lost, is ended: it could never be claimed.
    async fn brief(&self, order: &MachineOrder) -> Result<(), LocalError> {
        let root = self.root(&order.name)?;
        let root = root.canonicalize().map_err(failed("resolve", &root))?;
        let agent = root.join("agent");
        make_dir(&agent)?;
        let boot = agent.join("boot.json");
        let claimed = agent.join("tls/current");
        let text = json(&boot, &order.boot)?;
        if claimed.exists() || fs::read(&boot).is_ok_and(|found| found == text) {
            return Ok(());
        }
        self.end_agent(&order.name, &root).await?;
        // It may have been claimed before it ended.
        if claimed.exists() { Ok(()) } else { write(&boot, &text) }
    }

    /// Starts the agent when its lock is free, and waits until it serves.
    async fn wake(&self, tag: &Tag) -> Result<(), LocalError> {
        let root = self.root(&tag.name)?;
        let root = root.canonicalize().map_err(failed("resolve", &root))?;
        let lock = root.join("agent.lock");
        // Only the lines that this start adds to its log matter.
        let before = fs::metadata(root.join("agent.log")).map_or(0, |log| log.len());
        let mut child = match process::is_locked(&lock).map_err(failed("look at", &lock))? {
            true => None,
            false => {
                correct(&root, tag)?;
                Some(self.spawn(&root)?)
            }
        };
        let begun = Instant::now();
        loop {
            // The lock and its holder are checked before the port, on which another process may listen: an agent writes
            // its process id once it has bound the port.
            let ours = process::is_locked(&lock).map_err(failed("look at", &lock))?
                && child.as_ref().is_none_or(|child| holder(&lock) == child.id());
            if ours && reach::answers(tag.socket(), CONNECT_LIMIT).await {
                return Ok(());
            }
            let ended = match &mut child {
                Some(child) => child.try_wait().map_err(failed("watch the agent of", &root))?.is_some(),
                None => !process::is_locked(&lock).map_err(failed("look at", &lock))?,
            };
            if ended && !ours {
                return Err(LocalError::Ended { name: tag.name.clone(), log: last_lines(&root, before) });
            }
            if begun.elapsed() > START_LIMIT {
                return Err(LocalError::Silent {
                    name: tag.name.clone(),
                    address: tag.socket(),
                    log: last_lines(&root, before),
                });
            }
            sleep(POLL).await;
        }
    }

    fn spawn(&self, root: &Path) -> Result<Child, LocalError> {
        let path = root.join("agent.log");
        let log =
            OpenOptions::new().append(true).create(true).mode(0o600).open(&path).map_err(failed("open", &path))?;
        let errors = log.try_clone().map_err(failed("open", &path))?;
        // Tokio's, because it reaps the agent when that ends; std's would leave a zombie in a long-lived process.
        Command::new(&self.settings.agent)
            .arg("--root")
            .arg(root)
            .arg("--detach")
            // The operator's environment may hold secrets, and the agent outlives the operator's command.
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .current_dir(root)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|source| LocalError::Spawn { path: self.settings.agent.clone(), source })
    }

    /// Ends the process that watches an upgrade of the agent: it would start the old program again.
    fn end_guardian(&self, root: &Path) -> Result<(), LocalError> {
        let of_root = root.as_os_str().as_encoded_bytes();
        for pid in process::all() {
            let proved = Proved::open(pid, |arguments| {
                arguments.get(1).is_some_and(|task| task == b"guard")
                    && arguments.windows(2).any(|pair| pair[0] == b"--root" && pair[1] == of_root)
                    && self.is_agent(pid)
            });
            if let Some(guardian) = proved.map_err(failed("look at the processes of", root))? {
                guardian.kill().map_err(failed("kill a process of", root))?;
            }
        }
        Ok(())
    }

    async fn end_agent(&self, name: &str, root: &Path) -> Result<(), LocalError> {
        self.end_guardian(root)?;
        let lock = root.join("agent.lock");
        let begun = Instant::now();
        let mut killed: Option<Proved> = None;
        while process::is_locked(&lock).map_err(failed("look at", &lock))? {
            if killed.is_none()
                && let Some(pid) = holder(&lock)
            {
                let root = root.as_os_str().as_encoded_bytes();
                let proved = Proved::open(pid, |arguments| {
                    arguments.windows(2).any(|pair| pair[0] == b"--root" && pair[1] == root) && self.is_agent(pid)
                });
                if let Some(agent) = proved.map_err(failed("look at the holder of", &lock))? {
                    agent.kill().map_err(failed("kill the holder of", &lock))?;
                    killed = Some(agent);
                }
            }
            // A lock that is just being taken has no process id in it yet, and other processes probe it for a moment.
            if begun.elapsed() > if killed.is_some() { END_LIMIT } else { Duration::from_secs(1) } {
                return Err(match killed {
                    Some(agent) => LocalError::Immortal { name: name.to_owned(), pid: agent.pid },
                    None => LocalError::Unproved { lock },
                });
            }
            sleep(POLL).await;
        }
        ended(name, root, killed).await
    }

    /// Whether the process runs a program of the agent's name; the program's file may have been replaced since.
    fn is_agent(&self, pid: u32) -> bool {
        let Ok(running) = fs::read_link(format!("/proc/{pid}/exe")) else { return false };
        let running = running.to_string_lossy().trim_end_matches(" (deleted)").to_owned();
        let Some(expected) = self.settings.agent.file_name() else { return false };
        Path::new(&running).file_name() == Some(expected)
    }
}

/// Ends all processes with this argument that run this program, or one from below this directory.
async fn end_processes(name: &str, root: &Path, argument: &[u8], programs: &Path) -> Result<(), LocalError> {
    let begun = Instant::now();
    let mut killed = BTreeMap::new();
    loop {
        let found = process::with_argument(argument, programs);
        let Some(first) = found.first() else { return ended(name, root, killed.into_values()).await };
        if begun.elapsed() > END_LIMIT {
            return Err(LocalError::Immortal { name: name.to_owned(), pid: *first });
        }
        for pid in found {
            let ours = |arguments: &[Vec<u8>]| {
                arguments.iter().skip(1).any(|found| *found == argument) && process::is_ours(pid, programs)
            };
            let proved = Proved::open(pid, ours).map_err(failed("look at the processes of", root))?;
            if let Some(process) = proved {
                process.kill().map_err(failed("kill a process of", root))?;
                killed.insert(pid, process);
            }
        }
        sleep(POLL).await;
    }
}

/// Ends Patroni, the PostgreSQL that it ran, and programs that made or copied its data; removes PostgreSQL's socket, which
/// is not below the root.
async fn end_postgres(name: &str, root: &Path) -> Result<(), LocalError> {
    let bytes = |path: PathBuf| path.into_os_string().into_encoded_bytes();
    // Patroni first: it would start PostgreSQL again.
    let config = bytes(root.join(patroni::DIR).join(patroni::FILE));
    end_processes(name, root, &config, Path::new("/usr/bin/python3")).await?;
    let data = bytes(root.join(patroni::DATA));
    let all = [data.clone(), [b"--pgdata=", data.as_slice()].concat()];
    let own = root.join(patroni::PROGRAMS);
    for programs in [Path::new("/usr/lib/postgresql"), own.as_path()] {
        // PostgreSQL that is killed leaves its shared memory; one that ends at once does not.
        let begun = Instant::now();
        loop {
            let found = process::with_argument(&data, programs);
            if found.is_empty() || begun.elapsed() > END_LIMIT {
                break;
            }
            for pid in found {
                let ours = |arguments: &[Vec<u8>]| arguments.contains(&data) && process::is_ours(pid, programs);
                if let Ok(Some(process)) = Proved::open(pid, ours) {
                    process.signal(Signal::QUIT).map_err(failed("end a process of", root))?;
                }
            }
            sleep(POLL).await;
        }
        for argument in &all {
            end_processes(name, root, argument, programs).await?;
        }
    }
    let sockets = PathBuf::from(patroni::sockets(&root.display().to_string()));
    let own = rustix::process::geteuid().as_raw();
    if fs::symlink_metadata(&sockets).is_ok_and(|found| found.is_dir() && found.uid() == own) {
        fs::remove_dir_all(&sockets).map_err(failed("remove", &sockets))?;
    }
    Ok(())
}

/// Waits for the killed processes: their locks and ports are free then.
async fn ended(name: &str, root: &Path, killed: impl IntoIterator<Item = Proved>) -> Result<(), LocalError> {
    let begun = Instant::now();
    for process in killed {
        while !process.has_ended().map_err(failed("wait for a process of", root))? {
            if begun.elapsed() > END_LIMIT {
                return Err(LocalError::Immortal { name: name.to_owned(), pid: process.pid });
            }
            sleep(POLL).await;
        }
    }
    Ok(())
}

/// Writes the address of the tag to the boot data, while no agent runs: this completes an interrupted move.
fn correct(root: &Path, tag: &Tag) -> Result<(), LocalError> {
    let path = root.join("agent/boot.json");
    let text = match fs::read_to_string(&path) {
        // Incomplete: the agent reports it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read.map_err(failed("read", &path))?,
    };
    let mut boot: Boot =
        serde_json::from_str(&text).map_err(|source| LocalError::Malformed { path: path.clone(), source })?;
    if (boot.address, boot.agent_port) == (tag.address, tag.agent_port) {
        return Ok(());
    }
    boot.address = tag.address;
    boot.agent_port = tag.agent_port;
    write(&path, &json(&path, &boot)?)
}

fn holder(lock: &Path) -> Option<u32> {
    fs::read_to_string(lock).ok()?.trim().parse().ok()
}

fn make_dir(path: &Path) -> Result<(), LocalError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("make the directory", path))
}

fn json<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>, LocalError> {
    serde_json::to_vec_pretty(value).map_err(|source| LocalError::Malformed { path: path.to_path_buf(), source })
}

/// Written completely or not at all, readable by its owner only.
fn write(path: &Path, text: &[u8]) -> Result<(), LocalError> {
    files::write(path, text).map_err(failed("write", path))
}

/// Removes what killed calls of [`write`] and [`put`] left in a directory of ours.
fn remove_unfinished(dir: &Path) -> Result<(), LocalError> {
    for path in unfinished(dir) {
        fs::remove_file(&path).map_err(failed("remove", &path))?;
    }
    Ok(())
}

/// Removes an incomplete tag, where nothing else is in the directory: it is ours then.
fn remove_unfinished_tag(root: &Path) -> Result<(), LocalError> {
    let is_tag = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"machine."));
    let there = fs::read_dir(root).map_or(0, Iterator::count);
    if there == unfinished(root).filter(|path| is_tag(path)).count() { remove_unfinished(root) } else { Ok(()) }
}

/// Temporary files of [`write`] and [`put`]: `<name>.<process>.tmp`.
fn unfinished(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let is_unfinished = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".tmp"));
        name.and_then(|name| name.rsplit_once('.')).is_some_and(|(_, process)| process.parse::<u32>().is_ok())
    };
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_unfinished)
}

/// A hard link where that is possible, else a copy; completely or not at all. The copy goes into a file that is
/// provably new: writing into an existing one could overwrite the source, through an earlier link.
fn put(from: &Path, to: &Path) -> Result<(), LocalError> {
    let temporary = to.with_extension(format!("{}.tmp", std::process::id()));
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &temporary)(error)),
        _ => {}
    }
    if fs::hard_link(from, &temporary).is_err() {
        let copy = || -> io::Result<()> {
            let mut source = File::open(from)?;
            let mut target = OpenOptions::new().write(true).create_new(true).mode(0o755).open(&temporary)?;
            io::copy(&mut source, &mut target)?;
            target.set_permissions(fs::Permissions::from_mode(0o755))?;
            target.sync_all()
        };
        if let Err(error) = copy() {
            // A full disk needs the room.
            let _ = fs::remove_file(&temporary);
            return Err(failed("copy", from)(error));
        }
    }
    fs::rename(&temporary, to).map_err(failed("put in place", to))
}

/// The tag is removed last, so that an interrupted removal is detected and can be completed.
fn remove(root: &Path) -> Result<(), LocalError> {
    for entry in fs::read_dir(root).map_err(failed("list", root))?.flatten() {
        let path = entry.path();
        if path.file_name().is_some_and(|name| name == "machine.json") {
            continue;
        }
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(failed("remove", &path))?;
    }
    fs::remove_dir_all(root).map_err(failed("remove", root))
}

fn last_lines(root: &Path, from: u64) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(root.join("agent.log"))?;
        let start = file.metadata()?.len().saturating_sub(4096).max(from);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        Ok(lines[lines.len().saturating_sub(5)..].join("\n"))
    };
    read().unwrap_or_else(|error| format!("(its log cannot be read: {error})"))
}
