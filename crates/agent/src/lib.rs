//! a root directory → the agent of one machine, serving until it is killed.
//!
//! A library only so that tests reach its parts; the program is `main.rs`.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use raftsman_api::hex;
use raftsman_api::v1::agent_server::AgentServer;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

use crate::access::accept;
use crate::access::claim::{Claim, ClaimError};
use crate::access::fence::{Fence, FenceError};
use crate::background::Background;
use crate::backup::scheduler::{self, BackupScheduler};
use crate::etcd::restore_test;
use crate::files::FileError;
use crate::machine::boot::{self, BootError};
use crate::machine::metrics;
use crate::machine::upgrade::trial::{self, Next};
use crate::machine::upgrade::{self, Settled, Upgrade, UpgradeError};
use crate::root::Root;
use crate::supervisor::binaries::BinaryError;
use crate::supervisor::launch::Launcher;
use crate::supervisor::service::ServiceError;
use crate::supervisor::systemd::{Systemd, SystemdError};
use crate::supervisor::{Supervisor, pins, ports};

pub mod access;
pub mod background;
pub mod backup;
pub mod balancer;
pub mod etcd;
pub mod files;
pub mod machine;
pub mod postgres;
pub mod report;
pub mod root;
pub mod server;
pub mod status;
pub mod supervisor;

const KEEP_ALIVE: Duration = Duration::from_secs(20);
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// How long calls have for their last answers before another build of the agent takes over.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Why the agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Another one does.
    #[error("another agent runs on {}: it holds agent.lock", root.display())]
    Running {
        /// The root.
        root: PathBuf,
    },
    /// The address is not free.
    #[error("cannot listen on {address}{}", holder.as_ref().map(|h| format!(", held by {h}; free it, or give the machine another address")).unwrap_or_default())]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The process that holds it.
        holder: Option<String>,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The boot data is at fault.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The machine's identity is at fault.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The generation is at fault.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// A program's record is at fault.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// systemd is at fault.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// The pinned binaries cannot be read.
    #[error(transparent)]
    Pins(#[from] BinaryError),
    /// The record of the agent's programs cannot be read.
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
    /// The server ended.
    #[error("the gRPC server failed")]
    Serve(#[from] tonic::transport::Error),
    /// No threads.
    #[error("no threads can be started")]
    Threads(#[source] io::Error),
    /// The system provides no randomness.
    #[error("the system's random number generator failed")]
    Randomness,
}

/// All parts of a running agent.
#[derive(Debug)]
pub struct Agent {
    /// The root directory.
    pub root: Root,
    /// The fleet that this machine belongs to.
    pub claim: Claim,
    /// The newest generation that is obeyed.
    pub fence: Fence,
    /// Its programs.
    pub supervisor: Supervisor,
    /// How they are run.
    pub launcher: Launcher,
    /// Its part in making backups.
    pub backup_scheduler: BackupScheduler,
    /// Threads for work that can wait.
    pub background: Background,
    /// Its own program, and the next one.
    pub upgrade: Upgrade,
}

/// How programs are run on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchMode {
    /// As processes that the agent starts itself.
    Child,
    /// As units of systemd.
    Systemd,
}

/// Runs the agent until it fails or is killed, or until another program is to take over this process. `guardian` is the
/// process that watches this program while it is on trial.
pub async fn run(root: &Path, mode: LaunchMode, guardian: Option<u32>) -> Result<Option<Next>, AgentError> {
    let root = Root::open(root)?;
    let mut lock = lock(&root).await?;
    restore_test::sweep(&root);
    root.prepare()?;
    let upgrade = match upgrade::settle(&root, guardian)? {
        Settled::Run(upgrade) => upgrade,
        Settled::HandOver(program) => return Ok(Some(Next::Confirmed(program))),
    };
    if let Some(guardian) = guardian {
        trial::watch_guardian(root.clone(), mode, guardian);
    }
    pins::begin(&root)?;
    let boot = boot::read(&root)?;
    // The machine may have got another address while no agent ran.
    let listen = SocketAddr::new(boot.address, boot.agent_port);
    // Before etcd is touched: an agent that no client can reach must not act either.
    let listener = TcpListener::bind(listen).await.map_err(|source| AgentError::Listen {
        address: listen,
        holder: ports::taken(&[listen]).into_iter().next().map(|taken| taken.holder),
        source,
    })?;
    // Not before: a process that waits for this agent must not take another process's open port for it.
    writeln!(lock, "{}", std::process::id()).map_err(FileError::of("write", &root.lock()))?;
    let incarnation = incarnation(&root)?;
    let fence = Fence::open(root.generation())?;
    let address = boot.address;
    let claim = Claim::open(&root, boot, incarnation)?;
    let launcher = match mode {
        LaunchMode::Child => Launcher::Child,
        LaunchMode::Systemd => Launcher::Unit(Systemd::connect().await?),
    };
    let supervisor = Supervisor::open(&root, address, &launcher).await?;
    let tls = claim.tls().clone();
    tracing::info!(%listen, root = %root.path().display(), claimed = claim.is_claimed(), "agent serves");
    let backup_scheduler = BackupScheduler::open(&root)?;
    let background = Background::start().map_err(AgentError::Threads)?;
    let agent = Arc::new(Agent { root, claim, fence, supervisor, launcher, backup_scheduler, background, upgrade });
    tokio::spawn(scheduler::run(Arc::clone(&agent)));
    let hashed = Arc::clone(&agent);
    agent.background.spawn(async move { hashed.upgrade.own_digest().is_some() });
    if mode == LaunchMode::Systemd {
        tokio::spawn(metrics::keep_writing(Arc::clone(&agent)));
    }
    agent.upgrade.serves(&agent.root)?;
    let server = server::Server::new(Arc::clone(&agent));
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(AgentServer::new(server))
        .serve_with_incoming_shutdown(ReceiverStream::new(accept::accept(listener, tls)), async {
            // A dropped sender is not an order.
            if ended.await.is_err() {
                std::future::pending::<()>().await;
            }
        });
    let mut serving = std::pin::pin!(serving);
    let (program, held) = tokio::select! {
        served = &mut serving => return Ok(served.map(|()| None)?),
        ordered = agent.upgrade.ordered() => ordered,
    };
    tracing::info!(sha256 = program.sha256, version = program.version, "another build of the agent takes over");
    let _ = end.send(());
    if timeout(LAST_ANSWERS, serving).await.is_err() {
        tracing::info!("calls that are not answered yet are cancelled");
    }
    drop(held);
    Ok(Some(Next::OnTrial(program)))
}

/// The lock that says that an agent runs here, without its process id yet; the system releases it when the agent ends,
/// for whatever reason.
async fn lock(root: &Root) -> Result<File, AgentError> {
    let path = root.lock();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(FileError::of("open", &path))?;
    for attempt in 1.. {
        match file.try_lock() {
            Ok(()) => break,
            // A process that checks whether an agent runs here holds the lock for a moment.
            Err(TryLockError::WouldBlock) if attempt < LOCK_TRIES => sleep(LOCK_PAUSE).await,
            Err(TryLockError::WouldBlock) => return Err(AgentError::Running { root: root.path().to_path_buf() }),
            Err(TryLockError::Error(error)) => return Err(FileError::of("lock", &path)(error).into()),
        }
    }
    // Its one block is kept: on a full disk there might be no other for the process id.
    let emptied = file.write_all_at(b"\n", 0).and_then(|()| file.set_len(1));
    emptied.map_err(FileError::of("write", &path))?;
    Ok(file)
}

/// The machine's incarnation, made at the agent's first start.
fn incarnation(root: &Root) -> Result<String, AgentError> {
    let path = root.incarnation();
    if let Some(text) = files::read(&path)? {
        return Ok(text.trim().to_owned());
    }
    let mut bytes = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| AgentError::Randomness)?;
    let text = hex::encode(&bytes);
    files::write(&path, text.as_bytes(), 0o600)?;
    Ok(text)
}
