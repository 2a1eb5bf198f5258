//! a snapshot and changes since → a temporary etcd that holds them, its content, and a snapshot of it.
//!
//! The machine's own member is not touched. The caller learns whether a backup can be restored, and gets one snapshot
//! that holds everything up to a revision, to restore all members from.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, GetOptions, LeaseGrantOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions, Txn, TxnOp};
use futures::FutureExt as _;
use raftsman_backup::Keys;
use raftsman_backup::changes::{self, ChangesError};
use raftsman_backup::full::{FullError, TransferProgress};
use raftsman_core::backup::{Change, Event, Hashed};
use raftsman_etcd::{EtcdError, PROBE_KEY, bounded, dial, within};
use rustix::process::Signal;
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Child;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::Agent;
use crate::access::certs;
use crate::backup::{self, BackupError, Stored};
use crate::etcd::restore::{self, RestoreError};
use crate::files::{self, FileError};
use crate::machine::disk::disk;
use crate::root::Root;
use crate::supervisor::binaries::Binary;
use crate::supervisor::confine::Workspace;
use crate::supervisor::pins;
use crate::supervisor::process;
use crate::supervisor::program::Program;

/// How long etcd may take to serve the restored data.
const STARTING: Duration = Duration::from_secs(120);
/// How often leases are renewed: one that expires meanwhile would delete its keys. The shortest lasts for two seconds.
const RENEW: Duration = Duration::from_millis(300);
/// The TTL of a lease whose real TTL could not be read any more.
const SOME_SECONDS: i64 = 60;
const AGAIN: Duration = Duration::from_millis(50);

/// Why the restore of a backup could not be tested.
#[derive(Debug, thiserror::Error)]
pub enum RestoreTestError {
    /// etcd's tool refused it.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The agent cannot connect to the temporary etcd.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// It does not serve.
    #[error("what was restored is not served: {0}")]
    Silent(#[source] EtcdError),
    /// It refused something.
    #[error("what was restored does not take its changes: {0}")]
    Etcd(#[from] EtcdError),
    /// A replayed change got another revision.
    #[error(
        "the change that was made at revision {expected} came out at {found}: the backup and its changes do not fit together"
    )]
    OtherRevision {
        /// Where it was made.
        expected: i64,
        /// Where it came out.
        found: i64,
    },
    /// The machine stalled for longer than a lease lasts.
    #[error("a lease ended while changes were replayed: the machine is too busy to renew it in time; try again later")]
    LeaseEnded,
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
    /// No room for it.
    #[error(
        "{free} MiB are free on the disk of etcd's data, and {needed} MiB are needed beside {reserve} MiB that stay free for etcd: \
         make room, or try the backup on a machine of another cluster, with `raftsman drill --from`"
    )]
    NoRoom {
        /// What is free.
        free: u64,
        /// What is needed.
        needed: u64,
        /// What stays free.
        reserve: u64,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The request is invalid.
    #[error("{0}")]
    Request(String),
}

/// How often the free space is checked during a restore test.
const WATCH_ROOM: Duration = Duration::from_millis(250);
/// What the member's etcd needs to continue: its log grows by segments of 64 MiB, and a full disk stops all writes.
const LEAST_RESERVE: u64 = 256 << 20;
const MOST_RESERVE: u64 = 8 << 30;
const END_OF_CERTIFICATE: &str = "-----END CERTIFICATE-----";
/// The first segment of a new member's log, and what its database grows by.
const LOG: u64 = 128 << 20;

/// The free space on the disk of etcd's data. A reserve stays free for the machine's member.
#[derive(Debug, Clone)]
pub struct Room {
    root: Root,
}

impl Room {
    /// Of this machine.
    pub fn of(agent: &Agent) -> Self {
        Self { root: agent.root.clone() }
    }

    /// Whether there is room for a snapshot and changes of this size, and for the data that is made of them.
    pub fn holds(&self, bytes: u64) -> Result<(), RestoreTestError> {
        fits(bytes, disk(&self.root)?)
    }

    /// Returns when the reserve is about to be used, by whatever process.
    pub async fn ends(&self) -> RestoreTestError {
        used_up(|| Ok(disk(&self.root)?)).await
    }
}

/// The reserve on a disk of this size.
fn reserve(total: u64) -> u64 {
    (total / 20).clamp(LEAST_RESERVE, MOST_RESERVE)
}

/// Whether a restore test of this size fits on a disk with this free and total space.
fn fits(bytes: u64, (free, total): (u64, u64)) -> Result<(), RestoreTestError> {
    let (needed, reserve) = (bytes.saturating_mul(2).saturating_add(LOG), reserve(total));
    match free >= needed.saturating_add(reserve) {
        true => Ok(()),
        false => Err(RestoreTestError::NoRoom { free: free >> 20, needed: needed >> 20, reserve: reserve >> 20 }),
    }
}

/// Checks the disk until less than the reserve is free.
async fn used_up(mut look: impl FnMut() -> Result<(u64, u64), RestoreTestError>) -> RestoreTestError {
    loop {
        match look() {
            Ok((free, total)) if free < reserve(total) => {
                return RestoreTestError::NoRoom { free: free >> 20, needed: 0, reserve: reserve(total) >> 20 };
            }
            Ok(_) => sleep(WATCH_ROOM).await,
            Err(error) => return error,
        }
    }
}

/// A temporary etcd that is being prepared. Dropped, it leaves nothing.
pub struct RestoreTest {
    version: String,
    dir: Workspace,
    snapshot: Option<(PathBuf, File)>,
    /// Whether it was verified against the hash at its end.
    checked: bool,
}

impl RestoreTest {
    /// Makes room for the snapshot.
    pub async fn begin(agent: &Agent, version: &str) -> Result<Self, RestoreTestError> {
        let dir = Workspace::new(&agent.root, "rehearsal", agent.launcher.unprivileged())?;
        let path = dir.path().join("snapshot.db");
        let file = files::create(&path, 0o600).map_err(FileError::of("create", &path))?;
        dir.give(&path)?;
        let file = File::from_std(file);
        Ok(Self { version: version.to_owned(), dir, snapshot: Some((path, file)), checked: false })
    }

    /// Some bytes of the snapshot more.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), RestoreTestError> {
        match &mut self.snapshot {
            Some((path, file)) => Ok(file.write_all(bytes).await.map_err(FileError::of("write", path))?),
            None => Err(RestoreTestError::Request("the snapshot comes before the changes".to_owned())),
        }
    }

    /// All of the snapshot, from a store.
    pub async fn fetch(&mut self, at: &Stored, progress: &TransferProgress) -> Result<(), RestoreTestError> {
        let Some((path, file)) = &self.snapshot else { return Ok(()) };
        let file = file.try_clone().await.map_err(FileError::of("write", path))?.into_std().await;
        at.fetch(progress, file).await?;
        self.checked = true;
        Ok(())
    }

    /// The snapshot is complete: starts an etcd that serves it to this machine's agent only.
    pub async fn start(mut self, agent: &Agent) -> Result<Running, RestoreTestError> {
        let Some((path, mut file)) = self.snapshot.take() else {
            return Err(RestoreTestError::Request("there is no snapshot".to_owned()));
        };
        file.flush().await.map_err(FileError::of("write", &path))?;
        drop(file);
        let root = &agent.root;
        let binary = |binary| -> Result<Option<PathBuf>, RestoreError> {
            pins::verified(root, binary, &self.version).map_err(Into::into)
        };
        let tool = binary(Binary::Etcdutl)?.ok_or_else(|| RestoreError::NoTool(self.version.clone()))?;
        let etcd = binary(Binary::Etcd)?.ok_or_else(|| RestoreTestError::NoEtcd(self.version.clone()))?;
        let address = agent.claim.boot().address;
        let (clients, peers) = (free_port(address)?, free_port(address)?);
        let url = |at: SocketAddr| format!("https://{at}");
        let data = self.dir.path().join("data");
        let mut restoring = self.dir.command(&tool);
        restoring.args(["snapshot", "restore"]).arg(&path).arg("--data-dir").arg(&data).args([
            "--name=rehearsal".to_owned(),
            format!("--initial-cluster=rehearsal={}", url(peers)),
            format!("--initial-advertise-peer-urls={}", url(peers)),
            "--initial-cluster-token=rehearsal".to_owned(),
            format!("--skip-hash-check={}", self.checked),
        ]);
        restore::carry_out(&mut restoring).await?;
        // It is in the data now.
        std::fs::remove_file(&path).map_err(FileError::of("remove", &path))?;
        let log = self.dir.path().join("etcd.log");
        let log = std::fs::File::create(&log).map_err(FileError::of("create", &log))?;
        let process = self
            .dir
            .command(&etcd)
            .args(["--name=rehearsal", "--log-level=warn", "--auto-compaction-retention=0"])
            .arg(mark(root))
            // A transaction of the original must fit into one transaction here.
            .args(["--max-txn-ops=10000000", "--max-request-bytes=1073741824", "--quota-backend-bytes=107374182400"])
            .arg(format!("--data-dir={}", data.display()))
            .arg(format!("--listen-client-urls={}", url(clients)))
            .arg(format!("--advertise-client-urls={}", url(clients)))
            .arg(format!("--listen-peer-urls={}", url(peers)))
            .args(tls("", &root.server_tls(), &self.only_us(agent)?))
            .args(tls("peer-", &root.peer_tls(), &root.peer_tls().join("current/ca.crt")))
            // The gateway would be a client of its own, and no certificate lets it in.
            .arg("--enable-grpc-gateway=false")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(RestoreTestError::Run)?;
        let client = serving(agent, clients).await.map_err(RestoreTestError::Silent)?;
        let leases = Leases::default();
        let renewing = tokio::spawn(renewing(Arc::clone(&leases)));
        let mut running = Running { client, leases, renewing, at: None, _process: process, _dir: self.dir };
        running.at = Some(running.revision().await?);
        running.adopt_leases().await?;
        Ok(running)
    }

    /// The CA file of a temporary etcd: it trusts only the certificate of this machine's agent, not every client of the
    /// same authority. A backup may be from a time without auth, and every client of the cluster could read all of it.
    fn only_us(&self, agent: &Agent) -> Result<PathBuf, RestoreTestError> {
        let own = certs::Store::new(agent.root.client_tls()).current_dir().ok_or(BackupError::NotReady)?;
        let own = own.join("tls.crt");
        let chain = std::fs::read_to_string(&own).map_err(FileError::of("read", &own))?;
        let end = chain.find(END_OF_CERTIFICATE).map_or(chain.len(), |at| at + END_OF_CERTIFICATE.len());
        let trusted = self.dir.path().join("trusted.crt");
        files::write(&trusted, format!("{}\n", &chain[..end]).as_bytes(), 0o600)?;
        self.dir.give(&trusted)?;
        Ok(trusted)
    }
}

/// The mark in the arguments of a temporary etcd of this machine. etcd ignores the option when it has data.
fn mark(root: &Root) -> String {
    format!("--initial-cluster-token=rehearsal-of-{}", root.path().display())
}

/// Ends one that a killed agent has left behind.
pub fn sweep(root: &Root) {
    if let Some(left) = process::ours(root, Program::Etcd, &mark(root)) {
        tracing::info!(pid = left.pid(), "a restore test that was interrupted is ended");
        let _ = left.signal(Signal::KILL);
    }
}

/// etcd's options for keys and certificates, and for the clients that it trusts.
fn tls(prefix: &str, dir: &Path, trusted: &Path) -> [String; 4] {
    let file = |flag: &str, path: &Path| format!("--{prefix}{flag}={}", path.display());
    [
        file("cert-file", &dir.join("current/tls.crt")),
        file("key-file", &dir.join("current/tls.key")),
        file("trusted-ca-file", trusted),
        format!("--{prefix}client-cert-auth=true"),
    ]
}

fn free_port(address: IpAddr) -> Result<SocketAddr, RestoreTestError> {
    let free = TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr());
    free.map_err(RestoreTestError::Run)
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

type Leases = Arc<Mutex<Vec<(i64, LeaseKeeper, LeaseKeepAliveStream)>>>;

async fn renewing(leases: Leases) {
    loop {
        for (_, asking, answers) in &mut *leases.lock().await {
            // The answer is not awaited: a lease that is gone shows at the next change.
            let _ = asking.keep_alive().await;
            let _ = answers.message().now_or_never();
        }
        sleep(RENEW).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

/// A temporary etcd that serves. Dropped, it leaves nothing.
pub struct Running {
    client: Client,
    leases: Leases,
    /// Renews the leases all the time, also while another call is slow.
    renewing: JoinHandle<()>,
    /// The last revision that was restored or replayed: no other client writes here.
    at: Option<i64>,
    _process: Child,
    _dir: Workspace,
}

impl Running {
    /// The last revision in it.
    pub async fn revision(&mut self) -> Result<i64, RestoreTestError> {
        let read = bounded(async { Ok(self.client.get(PROBE_KEY, None).await?) }).await?;
        Ok(read.header().map_or(0, |header| header.revision()))
    }

    /// The hash of its content at this revision.
    pub async fn hashed(&mut self, revision: i64) -> Result<Hashed, RestoreTestError> {
        Ok(backup::hash(self.client.clone(), revision).await?)
    }

    /// How many keys there are now.
    async fn keys(&mut self) -> Result<u64, RestoreTestError> {
        let all = GetOptions::new().with_all_keys().with_count_only();
        let count = within(backup::COUNTING, async { Ok(self.client.get("", Some(all)).await?) }).await?;
        Ok(u64::try_from(count.count()).unwrap_or_default())
    }

    /// A connection, for a snapshot of all of its content.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Replays all changes of a point in a store.
    pub async fn replay_from(&mut self, at: &Stored) -> Result<(), RestoreTestError> {
        for batch in &at.point.batches {
            let opened = changes::open(&at.repository, batch, &Keys::default()).await?;
            self.replay(&opened.changes, at.point.revision.unwrap_or(0)).await?;
        }
        Ok(())
    }

    /// Its revision and number of keys, once it has reached `upto`; 0 for any revision.
    pub async fn ended(&mut self, upto: i64) -> Result<(i64, u64), RestoreTestError> {
        let revision = self.revision().await?;
        match upto == 0 || revision == upto {
            true => Ok((revision, self.keys().await?)),
            false => Err(self.other_revision(upto, revision).await),
        }
    }

    /// Replays changes, up to this revision. Those that it holds already are skipped.
    pub async fn replay(&mut self, changes: &[Change], upto: i64) -> Result<(), RestoreTestError> {
        let mut at = self.revision().await?;
        // A lease that expired meanwhile deleted keys and added a revision: the change with that revision would be
        // skipped.
        if let Some(expected) = self.at.filter(|expected| *expected != at) {
            return Err(self.other_revision(expected, at).await);
        }
        if upto > 0 && at > upto {
            return Err(RestoreTestError::TooFar { wanted: upto, found: at });
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
                return Err(self.other_revision(change.revision, at).await);
            }
            self.at = Some(at);
        }
        self.at = Some(at);
        Ok(())
    }

    /// Why a change came out at another revision than it was made at.
    async fn other_revision(&mut self, expected: i64, found: i64) -> RestoreTestError {
        let held: Vec<i64> = self.leases.lock().await.iter().map(|(id, ..)| *id).collect();
        for id in held {
            let left = bounded(async { Ok(self.client.lease_time_to_live(id, None).await?.ttl()) }).await;
            if left.is_ok_and(|left| left <= 0) {
                return RestoreTestError::LeaseEnded;
            }
        }
        RestoreTestError::OtherRevision { expected, found }
    }

    /// A lease that keys are attached to.
    async fn lease(&mut self, id: i64, ttl: i64) -> Result<(), RestoreTestError> {
        if self.leases.lock().await.iter().any(|(known, ..)| *known == id) {
            return Ok(());
        }
        let seconds = if ttl > 0 { ttl } else { SOME_SECONDS };
        let options = LeaseGrantOptions::new().with_id(id);
        bounded(async { Ok(self.client.lease_grant(seconds, Some(options)).await?) }).await?;
        self.hold(id).await
    }

    async fn adopt_leases(&mut self) -> Result<(), RestoreTestError> {
        let all = bounded(async { Ok(self.client.leases().await?) }).await?;
        for lease in all.leases() {
            self.hold(lease.id()).await?;
        }
        Ok(())
    }

    async fn hold(&mut self, id: i64) -> Result<(), RestoreTestError> {
        let (asking, answers) = bounded(async { Ok(self.client.lease_keep_alive(id).await?) }).await?;
        self.leases.lock().await.push((id, asking, answers));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    /// Of its 10 GiB, half a GiB stays free.
    const DISK: u64 = 10 * GIB;

    #[test]
    fn what_leaves_etcd_too_little_is_not_tried() {
        for (total, stays) in [(GIB, 256 * MIB), (DISK, 512 * MIB), (1024 * GIB, 8 * GIB), (u64::MAX, 8 * GIB)] {
            assert_eq!(reserve(total), stays, "{total}");
        }
        // The snapshot, the data that is made of it, a log, and what stays free.
        let least = 2 * GIB + 128 * MIB + 512 * MIB;
        fits(GIB, (least, DISK)).expect("room");
        let refused = fits(GIB, (least - 1, DISK)).expect_err("a byte too little").to_string();
        let says = "2687 MiB are free on the disk of etcd's data, and 2176 MiB are needed beside 512 MiB";
        assert!(refused.starts_with(says), "{refused}");
        // Also for empty content: a log is made, and the reserve is for the member only.
        assert!(fits(0, (600 * MIB, DISK)).is_err());
        // An operator may announce any number of bytes.
        for bytes in [DISK, u64::MAX / 2, u64::MAX] {
            assert!(matches!(fits(bytes, (DISK, DISK)), Err(RestoreTestError::NoRoom { .. })), "{bytes}");
        }
        let dir = tempfile::tempdir().expect("dir");
        let room = Room { root: Root::open(dir.path()).expect("root") };
        let refused = room.holds(u64::MAX).expect_err("no disk is as large");
        assert!(matches!(refused, RestoreTestError::NoRoom { .. }), "{refused}");
    }

    #[tokio::test]
    async fn a_disk_that_fills_meanwhile_ends_it() {
        let mut left = [GIB, 512 * MIB, 512 * MIB - 1, GIB].into_iter();
        let ended = used_up(|| Ok((left.next().expect("it has ended before"), DISK))).await;
        let RestoreTestError::NoRoom { free: 511, needed: 0, reserve: 512 } = ended else { panic!("{ended}") };
        assert_eq!(left.next(), Some(GIB), "it ended with the first look that found too little");
        // A disk that cannot be measured may be full.
        let ended = used_up(|| Err(RestoreTestError::Request("not to be measured".to_owned()))).await;
        assert_eq!(ended.to_string(), "not to be measured");
    }
}
