//! a call for a backup → the snapshot of this machine's own member, in a store, read back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{Client, GetOptions, ResponseHeader, SnapshotStreaming};
use futures::stream::{self, Stream, StreamExt as _};
use jiff::Timestamp;
use raftsman_api::v1;
use raftsman_backup::full::{self, FullError, TransferProgress};
use raftsman_backup::sign::SignError;
use raftsman_backup::{Keys, Place, Point, Repository, Seals, Signer, Store, StoreError, Trust};
use raftsman_core::backup::{About, FullName, Hashed, History, Layout, Manifest};
use raftsman_core::desired::CLIENT_PORT;
use raftsman_core::observed::ClusterId;
use raftsman_core::spec::Name;
use raftsman_etcd::{Answered, Credentials, EtcdError, PROBE_KEY, bounded, dial, within};
use secrecy::SecretString;

use crate::Agent;
use crate::access::certs::{self, CertsError};
use crate::files::FileError;

pub mod drill;
pub mod scheduler;

/// The wait for the next part of a member's snapshot ends after this time.
const SILENCE: Duration = Duration::from_secs(30);
/// How long etcd may take to hash all of its keys.
pub const COUNTING: Duration = Duration::from_secs(600);

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The request is invalid.
    #[error("{0}")]
    Request(String),
    /// Another backup is being made.
    #[error("this machine is making a backup already: wait for it, or look at its log")]
    Busy,
    /// No certificate for etcd.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// etcd was never given certificates.
    #[error("this machine has no certificate for etcd yet: run `raftsman apply` first")]
    NotReady,
    /// The key that signs backups is invalid.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// etcd holds another history than the one in the settings.
    #[error(
        "etcd's data is of the history {found}, and this machine knows {known}: no backup is made until \
         `raftsman apply` says where it comes from"
    )]
    OtherHistory {
        /// The id in etcd's answer.
        found: ClusterId,
        /// The id in the settings.
        known: String,
    },
    /// The member.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The settings could not be stored.
    #[error(transparent)]
    File(#[from] FileError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The transfer from etcd to the store failed.
    #[error(transparent)]
    Full(#[from] FullError),
}

/// The backup to make.
#[derive(Debug, Clone)]
pub struct Order {
    /// Where to.
    pub place: Place,
    /// Where in it.
    pub layout: Layout,
    /// How objects are made.
    pub seals: Seals,
    /// The cluster that it belongs to.
    pub cluster: Name,
    /// What signs it.
    pub signer: Arc<Signer>,
    /// The histories of the cluster's data; the last one is in force.
    pub histories: Vec<History>,
    fleet: Name,
    password: Option<SecretString>,
}

impl Order {
    /// Parses a request.
    pub fn new(request: v1::TakeBackupRequest) -> Result<Self, BackupError> {
        let (fleet, cluster) = (name(&request.fleet)?, name(&request.cluster)?);
        let place = serde_json::from_str(&request.place).map_err(|_| {
            BackupError::Request(
                "this agent does not understand the store's settings: is raftsman newer than the agent?".to_owned(),
            )
        })?;
        let signer = Signer::new(&raftsman_api::hex::decode(&request.signing_key).unwrap_or_default())?;
        let histories = match request.histories.as_str() {
            "" => Vec::new(),
            text => serde_json::from_str(text).map_err(|_| {
                BackupError::Request(
                    "this agent does not understand the histories: is raftsman newer than the agent?".to_owned(),
                )
            })?,
        };
        let recipients = request.recipients.iter().map(|text| {
            let wrong = |why: &str| BackupError::Request(format!("`{text}` is no public key of age: {why}"));
            text.parse().map_err(wrong)
        });
        Ok(Self {
            layout: Layout::new(&request.prefix, &fleet, &cluster),
            seals: Seals { zstd: request.compress, recipients: recipients.collect::<Result<_, _>>()? },
            password: Some(request.root_password).filter(|password| !password.is_empty()).map(SecretString::from),
            signer: Arc::new(signer),
            histories,
            place,
            fleet,
            cluster,
        })
    }

    /// The repository of its backups, which accepts those that are signed with its key.
    pub fn repository(&self) -> Result<Repository, BackupError> {
        let encrypted = !self.seals.recipients.is_empty();
        Ok(Repository {
            store: Store::open(&self.place)?,
            layout: self.layout.clone(),
            cluster: self.cluster.clone(),
            trust: Trust { encrypted, ..Trust::in_key(self.signer.public()) },
        })
    }

    /// Backups are made only of the history in the settings.
    pub fn expect(&self, found: ClusterId) -> Result<(), BackupError> {
        let known = self.histories.last().map(|history| history.id);
        match known == Some(found) {
            true => Ok(()),
            false => {
                let known = known.map_or_else(|| "none".to_owned(), |known| known.to_string());
                Err(BackupError::OtherHistory { found, known })
            }
        }
    }
}

/// A point in a store that this machine reads itself.
#[derive(Debug)]
pub struct Stored {
    /// Where it is. It is not verified here: the sender of the point has verified it.
    pub repository: Repository,
    /// What is read.
    pub point: Point,
}

impl Stored {
    /// Parses a request.
    pub fn new(wire: &v1::StoredPoint) -> Result<Self, BackupError> {
        let strange = |_| {
            BackupError::Request(
                "this agent does not understand the restore target: is raftsman newer than the agent?".to_owned(),
            )
        };
        let place = serde_json::from_str(&wire.place).map_err(strange)?;
        let cluster = name(&wire.cluster)?;
        let layout = Layout::new(&wire.prefix, &name(&wire.fleet)?, &cluster);
        let point = serde_json::from_str(&wire.point).map_err(strange)?;
        let repository = Repository { store: Store::open(&place)?, layout, cluster, trust: Trust::default() };
        Ok(Self { repository, point })
    }

    /// How many bytes come out of it.
    pub fn bytes(&self) -> u64 {
        let changes: u64 = self.point.batches.iter().map(|batch| batch.lines.bytes).sum();
        self.point.full.snapshot.bytes.saturating_add(changes)
    }

    /// Writes the snapshot of its full backup to a file, and checks all of it.
    pub async fn fetch(&self, progress: &TransferProgress, to: std::fs::File) -> Result<(), FullError> {
        full::fetch(&self.repository, &self.point.full, &Keys::default(), progress, to).await.map(drop)
    }
}

/// A name from a request, or from this machine's settings.
pub fn name(text: &str) -> Result<Name, BackupError> {
    Name::parse(text).map_err(|error| BackupError::Request(error.what))
}

/// Makes a backup. It is complete and valid when this returns.
pub async fn take(agent: &Agent, order: &Order, progress: &TransferProgress) -> Result<Manifest, BackupError> {
    let boot = agent.claim.boot();
    let member = name(&boot.machine)?;
    let repository = order.repository()?;
    let mut client = client(agent, order).await?;
    let status = bounded(async { Ok(client.status().await?) }).await?;
    let begun = Timestamp::now();
    // A member that answers a linearizable read holds every write that was acknowledged until now, and so does a
    // snapshot that it sends afterwards.
    let read = now(&mut client).await?;
    let revision = read.revision();
    let cluster_id = ClusterId(read.cluster_id());
    order.expect(cluster_id)?;
    let newest = repository.found().await?.newest_of(cluster_id);
    let previous = newest.map(|full| full.check()).transpose().map_err(FullError::from)?;
    let mut about = About {
        name: FullName::new(begun, revision),
        fleet: order.fleet.clone(),
        fleet_id: boot.fleet_id,
        cluster: order.cluster.clone(),
        cluster_id,
        member,
        version: Answered::read(&status)?.version,
        begun,
        upto: None,
        histories: order.histories.clone(),
        previous,
    };
    let hashed = Box::pin(hash(client.clone(), revision));
    let mut snapshot = bounded(async { Ok(client.snapshot().await?) }).await?;
    // Once the first part has arrived, later writes are not in the snapshot.
    let first = within(SILENCE, async { Ok(snapshot.message().await?) }).await?;
    about.upto = Some(now(&mut client).await?.revision());
    let first = stream::iter(first.map(|first| Ok(Bytes::copy_from_slice(first.blob()))));
    let snapshot = first.chain(pieces(snapshot));
    Ok(Box::pin(full::take(&repository, &order.signer, about, &order.seals, snapshot, hashed, progress)).await?)
}

/// The current revision of the cluster, confirmed by its majority.
pub async fn now(client: &mut Client) -> Result<ResponseHeader, BackupError> {
    let mut read = bounded(async { Ok(client.get(PROBE_KEY, None).await?) }).await?;
    read.take_header().ok_or_else(|| BackupError::Request("etcd does not say how far it is".to_owned()))
}

/// A connection to this machine's own etcd.
pub async fn client(agent: &Agent, order: &Order) -> Result<Client, BackupError> {
    let credentials = credentials(agent, order.password.clone())?;
    let address = std::net::SocketAddr::new(agent.claim.boot().address, CLIENT_PORT);
    Ok(Box::pin(dial(address, &credentials)).await?)
}

/// The credentials for an etcd that authenticates clients by certificates.
pub fn by_certificate(agent: &Agent) -> Result<Credentials, BackupError> {
    credentials(agent, None)
}

/// The credentials of this machine for etcd.
fn credentials(agent: &Agent, password: Option<SecretString>) -> Result<Credentials, BackupError> {
    let server = certs::Store::new(agent.root.server_tls());
    // The clients' authority has also signed etcd's server certificate.
    let (_, trust) = server.credentials()?.ok_or(BackupError::NotReady)?;
    let identity = match password {
        Some(_) => None,
        None => Some(certs::Store::new(agent.root.client_tls()).identity()?.ok_or(BackupError::NotReady)?),
    };
    Ok(Credentials::new(&trust, identity.as_ref(), password)?)
}

/// What this machine's own etcd holds, asked at this port.
pub async fn contents(agent: &Agent, port: u16) -> Result<(Hashed, i64), BackupError> {
    let address = std::net::SocketAddr::new(agent.claim.boot().address, port);
    let mut client = Box::pin(dial(address, &by_certificate(agent)?)).await?;
    let revision = now(&mut client).await?.revision();
    Ok((hash(client, revision).await?, revision))
}

/// A hash and counts of etcd's content at this revision.
pub async fn hash(mut client: Client, revision: i64) -> Result<Hashed, EtcdError> {
    let all = GetOptions::new().with_all_keys().with_count_only().with_revision(revision);
    // First: it hashes all keys in one call, and keeps none of them in memory.
    let hash = within(COUNTING, async { Ok(client.hash_kv(revision).await?) }).await?;
    let count = within(COUNTING, async { Ok(client.get("", Some(all)).await?) }).await?;
    let keys = u64::try_from(count.count()).unwrap_or_default();
    Ok(Hashed { hash: hash.hash(), compacted: hash.compact_version(), keys })
}

/// etcd's snapshot, piece by piece.
pub fn pieces(snapshot: SnapshotStreaming) -> impl Stream<Item = Result<Bytes, EtcdError>> + Send {
    stream::try_unfold(snapshot, async |mut snapshot| {
        let piece = within(SILENCE, async { Ok(snapshot.message().await?) }).await?;
        Ok(piece.map(|piece| (Bytes::copy_from_slice(piece.blob()), snapshot)))
    })
}
