//! a snapshot and changes since → a throwaway etcd that holds them, what is in it, and a snapshot of that.
//!
//! Nothing of the machine's own member is touched. Who asks learns whether a backup can be restored, and gets one
//! snapshot that holds everything up to a revision, to restore all members from.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use etcd_client::{Client, GetOptions, LeaseGrantOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions, Txn, TxnOp};
use raftsman_backup::Keys;
use raftsman_backup::changes::{self, ChangesError};
use raftsman_backup::full::{FullError, Moved};
use raftsman_core::backup::{Change, Event, Hashed};
use raftsman_etcd::{EtcdError, PROBE_KEY, bounded, dial, within};
use rustix::process::Signal;
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::Agent;
use crate::backup::{self, BackupError, Stored};
use crate::etcd::{self, Program};
use crate::files::{self, FileError};
use crate::launch::PATH;
use crate::process;
use crate::restore::{self, RestoreError};
use crate::root::Root;

/// How long etcd may take to serve what was restored.
const STARTING: Duration = Duration::from_secs(120);
/// How often leases are renewed: what ends meanwhile would take keys with it that were there.
const RENEW: Duration = Duration::from_millis(700);
/// Whose length nobody could ask for any more.
const SOME_SECONDS: i64 = 60;
const AGAIN: Duration = Duration::from_millis(50);

/// Why a backup could not be rehearsed.
#[derive(Debug, thiserror::Error)]
pub enum RehearsalError {
    /// etcd's tool refused it.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// No way into the throwaway etcd.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// It does not serve.
    #[error("what was restored is not served: {0}")]
    Silent(#[source] EtcdError),
    /// It refused something.
    #[error("what was restored does not take its changes: {0}")]
    Etcd(#[from] EtcdError),
    /// A change came out otherwise.
    #[error(
        "the change that was made at revision {expected} came out at {found}: the backup and its changes do not fit together"
    )]
    OtherRevision {
        /// Where it was made.
        expected: i64,
        /// Where it came out.
        found: i64,
    },
    /// It ends before.
    #[error("the backup holds changes up to revision {found} already: it cannot be restored to {wanted}")]
    TooFar {
        /// What was wanted.
        wanted: i64,
        /// What is in it.
        found: i64,
    },
    /// The backup.
    #[error(transparent)]
    Full(#[from] FullError),
    /// The changes since.
    #[error(transparent)]
    Changes(#[from] ChangesError),
    /// The binary is not there.
    #[error("etcd {0} is not installed: install it first")]
    NoEtcd(String),
    /// It could not be run.
    #[error("etcd could not be run")]
    Run(#[source] std::io::Error),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// What was sent makes no sense.
    #[error("{0}")]
    Request(String),
}

/// A throwaway etcd on its way. Dropped, it leaves nothing.
pub struct Rehearsal {
    version: String,
    dir: Dir,
    snapshot: Option<(PathBuf, File)>,
    /// Whether it was held against the hash behind it.
    checked: bool,
}

/// A directory that goes when nobody needs it any more.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        // A leftover harms nothing: the agent's next start removes it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Rehearsal {
    /// Makes room for the snapshot.
    pub async fn begin(agent: &Agent, version: &str) -> Result<Self, RehearsalError> {
        let dir = Dir(files::beside(&agent.root.etcd().join("rehearsal")));
        files::make_dir(&dir.0, 0o700)?;
        let path = dir.0.join("snapshot.db");
        let file = File::create(&path).await.map_err(FileError::of("create", &path))?;
        Ok(Self { version: version.to_owned(), dir, snapshot: Some((path, file)), checked: false })
    }

    /// Some bytes of the snapshot more.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), RehearsalError> {
        match &mut self.snapshot {
            Some((path, file)) => Ok(file.write_all(bytes).await.map_err(FileError::of("write", path))?),
            None => Err(RehearsalError::Request("the snapshot comes before the changes".to_owned())),
        }
    }

    /// All of the snapshot, from a store.
    pub async fn fetch(&mut self, at: &Stored, moved: &Moved) -> Result<(), RehearsalError> {
        let Some((path, file)) = &self.snapshot else { return Ok(()) };
        let file = file.try_clone().await.map_err(FileError::of("write", path))?.into_std().await;
        at.fetch(moved, file).await?;
        self.checked = true;
        Ok(())
    }

    /// All of the snapshot is there: an etcd that serves it, to this machine's agent and to nobody else.
    pub async fn start(mut self, agent: &Agent) -> Result<Running, RehearsalError> {
        let Some((path, mut file)) = self.snapshot.take() else {
            return Err(RehearsalError::Request("there is no snapshot".to_owned()));
        };
        file.flush().await.map_err(FileError::of("write", &path))?;
        drop(file);
        let root = &agent.root;
        let program = |program| -> Result<Option<PathBuf>, RestoreError> {
            etcd::program(root, program, &self.version).map_err(Into::into)
        };
        let tool = program(Program::Etcdutl)?.ok_or_else(|| RestoreError::NoTool(self.version.clone()))?;
        let binary = program(Program::Etcd)?.ok_or_else(|| RehearsalError::NoEtcd(self.version.clone()))?;
        let address = agent.claim.boot().address;
        let (clients, peers) = (free_port(address)?, free_port(address)?);
        let url = |at: SocketAddr| format!("https://{at}");
        let data = self.dir.0.join("data");
        let mut restoring = Command::new(tool);
        restoring.args(["snapshot", "restore"]).arg(&path).arg("--data-dir").arg(&data).args([
            "--name=rehearsal".to_owned(),
            format!("--initial-cluster=rehearsal={}", url(peers)),
            format!("--initial-advertise-peer-urls={}", url(peers)),
            "--initial-cluster-token=rehearsal".to_owned(),
            format!("--skip-hash-check={}", self.checked),
        ]);
        restore::carry_out(&mut restoring, &self.dir.0).await?;
        // It is in the data now.
        std::fs::remove_file(&path).map_err(FileError::of("remove", &path))?;
        let log = self.dir.0.join("etcd.log");
        let log = std::fs::File::create(&log).map_err(FileError::of("create", &log))?;
        let process = Command::new(binary)
            .args(["--name=rehearsal", "--log-level=warn", "--auto-compaction-retention=0"])
            .arg(mark(root))
            // Whatever was written as one is written as one here.
            .args(["--max-txn-ops=10000000", "--max-request-bytes=1073741824", "--quota-backend-bytes=107374182400"])
            .arg(format!("--data-dir={}", data.display()))
            .arg(format!("--listen-client-urls={}", url(clients)))
            .arg(format!("--advertise-client-urls={}", url(clients)))
            .arg(format!("--listen-peer-urls={}", url(peers)))
            .args(tls("", &root.server_tls()))
            .args(tls("peer-", &root.peer_tls()))
            .env_clear()
            .env("PATH", PATH)
            .current_dir(&self.dir.0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(RehearsalError::Run)?;
        let client = serving(agent, clients).await.map_err(RehearsalError::Silent)?;
        let mut running =
            Running { client, leases: Vec::new(), renewed: Instant::now(), _process: process, _dir: self.dir };
        running.adopt_leases().await?;
        Ok(running)
    }
}

/// What a throwaway etcd of this machine is known by. It means nothing to one that has data.
fn mark(root: &Root) -> String {
    format!("--initial-cluster-token=rehearsal-of-{}", root.path().display())
}

/// Ends one that an agent has left behind which was killed.
pub fn sweep(root: &Root) {
    if let Some(left) = process::with_argument(&mark(root)).and_then(|pid| process::Handle::open(pid).ok()) {
        tracing::info!(pid = left.pid(), "a rehearsal that was broken off is ended");
        let _ = left.signal(Signal::KILL);
    }
}

/// What etcd is told of keys and certificates; only who has one of ours gets in.
fn tls(prefix: &str, dir: &Path) -> [String; 4] {
    let dir = dir.join("current");
    let file = |flag: &str, name: &str| format!("--{prefix}{flag}={}", dir.join(name).display());
    [
        file("cert-file", "tls.crt"),
        file("key-file", "tls.key"),
        file("trusted-ca-file", "ca.crt"),
        format!("--{prefix}client-cert-auth=true"),
    ]
}

fn free_port(address: IpAddr) -> Result<SocketAddr, RehearsalError> {
    let free = TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr());
    free.map_err(RehearsalError::Run)
}

async fn serving(agent: &Agent, at: SocketAddr) -> Result<Client, EtcdError> {
    let begun = Instant::now();
    loop {
        let tried = async {
            let credentials = backup::by_certificate(agent).map_err(|_| EtcdError::Timeout(STARTING))?;
            let mut client = Box::pin(dial(at, &credentials)).await?;
            bounded(async { Ok(client.get(PROBE_KEY, None).await?) }).await?;
            Ok(client)
        };
        match tried.await {
            Ok(client) => return Ok(client),
            Err(error) if begun.elapsed() > STARTING => return Err(error),
            Err(_) => sleep(AGAIN).await,
        }
    }
}

/// A throwaway etcd that serves. Dropped, it leaves nothing.
pub struct Running {
    client: Client,
    leases: Vec<(i64, LeaseKeeper, LeaseKeepAliveStream)>,
    renewed: Instant,
    _process: Child,
    _dir: Dir,
}

impl Running {
    /// The last revision in it.
    pub async fn revision(&mut self) -> Result<i64, RehearsalError> {
        let read = bounded(async { Ok(self.client.get(PROBE_KEY, None).await?) }).await?;
        Ok(read.header().map_or(0, |header| header.revision()))
    }

    /// What is in it at this revision.
    pub async fn hashed(&mut self, revision: i64) -> Result<Hashed, RehearsalError> {
        Ok(backup::hash(self.client.clone(), revision).await?)
    }

    /// How many keys there are now.
    async fn keys(&mut self) -> Result<u64, RehearsalError> {
        let all = GetOptions::new().with_all_keys().with_count_only();
        let count = within(backup::COUNTING, async { Ok(self.client.get("", Some(all)).await?) }).await?;
        Ok(u64::try_from(count.count()).unwrap_or_default())
    }

    /// A connection, for a snapshot of all that is in it.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Makes all changes again that a point in a store is made of.
    pub async fn replay_from(&mut self, at: &Stored) -> Result<(), RehearsalError> {
        for batch in &at.point.batches {
            let opened = changes::open(&at.store, &at.layout, batch, &Keys::default()).await?;
            self.replay(&opened.changes, at.point.revision.unwrap_or(0)).await?;
        }
        Ok(())
    }

    /// What it holds, once it is where it should be; 0 where nobody said.
    pub async fn ended(&mut self, upto: i64) -> Result<(i64, u64), RehearsalError> {
        let revision = self.revision().await?;
        match upto == 0 || revision == upto {
            true => Ok((revision, self.keys().await?)),
            false => Err(RehearsalError::OtherRevision { expected: upto, found: revision }),
        }
    }

    /// Makes changes again, up to this revision. Those that it holds already are passed over.
    pub async fn replay(&mut self, changes: &[Change], upto: i64) -> Result<(), RehearsalError> {
        let mut at = self.revision().await?;
        if upto > 0 && at > upto {
            return Err(RehearsalError::TooFar { wanted: upto, found: at });
        }
        for change in changes.iter().filter(|change| upto == 0 || change.revision <= upto) {
            if change.revision <= at {
                continue;
            }
            let mut operations = Vec::with_capacity(change.events.len());
            for event in &change.events {
                operations.push(match event {
                    Event::Delete { key } => TxnOp::delete(key.as_slice(), None),
                    Event::Put { key, value, lease: 0, .. } => TxnOp::put(key.as_slice(), value.as_slice(), None),
                    Event::Put { key, value, lease, ttl } => {
                        self.lease(*lease, *ttl).await?;
                        TxnOp::put(key.as_slice(), value.as_slice(), Some(PutOptions::new().with_lease(*lease)))
                    }
                });
            }
            let txn = Txn::new().and_then(operations);
            let done = within(backup::COUNTING, async { Ok(self.client.txn(txn).await?) }).await?;
            at = done.header().map_or(0, |header| header.revision());
            if at != change.revision {
                return Err(RehearsalError::OtherRevision { expected: change.revision, found: at });
            }
            if self.renewed.elapsed() > RENEW {
                self.renew().await?;
            }
        }
        Ok(())
    }

    /// A lease that keys go with.
    async fn lease(&mut self, id: i64, ttl: i64) -> Result<(), RehearsalError> {
        if self.leases.iter().any(|(known, ..)| *known == id) {
            return Ok(());
        }
        let seconds = if ttl > 0 { ttl } else { SOME_SECONDS };
        let options = LeaseGrantOptions::new().with_id(id);
        bounded(async { Ok(self.client.lease_grant(seconds, Some(options)).await?) }).await?;
        self.hold(id).await
    }

    async fn adopt_leases(&mut self) -> Result<(), RehearsalError> {
        let all = bounded(async { Ok(self.client.leases().await?) }).await?;
        for lease in all.leases() {
            self.hold(lease.id()).await?;
        }
        Ok(())
    }

    async fn hold(&mut self, id: i64) -> Result<(), RehearsalError> {
        let (asking, answers) = bounded(async { Ok(self.client.lease_keep_alive(id).await?) }).await?;
        self.leases.push((id, asking, answers));
        Ok(())
    }

    async fn renew(&mut self) -> Result<(), RehearsalError> {
        for (_, asking, answers) in &mut self.leases {
            // One that has gone shows at the next change.
            let _ = bounded(async {
                asking.keep_alive().await?;
                Ok(answers.message().await?)
            })
            .await;
        }
        self.renewed = Instant::now();
        Ok(())
    }
}
