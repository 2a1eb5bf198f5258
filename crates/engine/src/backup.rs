//! `backups:` of the file → the store with its credentials, and the prefix of one cluster's backups in it.

use std::path::{Path, PathBuf};

use raftsman_api::v1::{SetBackupsRequest, StoredPoint, TakeBackupRequest};
use raftsman_backup::full::FullError;
use raftsman_backup::place::{AccessKeys, Azure, Gcs, S3};
use raftsman_backup::sign::{self, SignError};
use raftsman_backup::{
    Keys, Place, Point, PointError, PublicKey, Repository, RestoreTarget, Signer, Store, StoreError, Trust,
};
use raftsman_core::backup::{FullName, History, Layout, Manifest};
use raftsman_core::observed::Ledger;
use raftsman_core::spec::{BackupStore, Backups, Name, Prune, S3Store, Secret};
use secrecy::{ExposeSecret as _, SecretString};

use crate::fleet::Fleet;
use crate::secrets::{self, SecretError};
use crate::stack::{StackError, StackHandle};
use crate::store::Lock;

/// Why backups cannot be accessed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file has no store.
    #[error("no backup store is configured: add `backups:` to the file (docs/operate/backups.md)")]
    NoStore,
    /// A secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A certificate or a key.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No cluster's name.
    #[error("{0}: give CLUSTER, or FLEET/CLUSTER")]
    NoCluster(String),
    /// No key of age.
    #[error("{} holds no age identity: a line that begins with AGE-SECRET-KEY-1", .0.display())]
    NoIdentity(PathBuf),
    /// The cluster's own secrets.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// This program is broken.
    #[error("the backup settings for a machine cannot be written: {0}")]
    Text(#[from] serde_json::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The state.
    #[error(transparent)]
    State(#[from] crate::store::StoreError),
    /// What signs and verifies backups.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// The state has no key for backups yet.
    #[error("this fleet has no key for its backups yet: `raftsman apply` makes it, or the first `raftsman backup now`")]
    NoSigningKey,
    /// The file keeps everything.
    #[error("the file says `prune: never`: nothing is removed from the store")]
    NeverPruned,
    /// Old backups.
    #[error(transparent)]
    Prune(#[from] raftsman_backup::prune::PruneError),
    /// A backup.
    #[error(transparent)]
    Full(#[from] FullError),
    /// Not a name.
    #[error(transparent)]
    Name(#[from] raftsman_core::backup::NameError),
    /// Changes since a backup.
    #[error(transparent)]
    Changes(#[from] raftsman_backup::changes::ChangesError),
    /// No such point.
    #[error(transparent)]
    Point(#[from] PointError),
    /// Machines have no key.
    #[error("the backup `{0}` is encrypted: machines cannot read it")]
    Unreadable(FullName),
    /// A file.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The agent cannot be reached.
    #[error(transparent)]
    Link(#[from] Box<crate::observe::LinkError>),
    /// The agent failed, or went away.
    #[error("the backup on {machine} failed: {}", .status.message())]
    Agent {
        /// Where.
        machine: Name,
        /// What it said.
        status: Box<tonic::Status>,
    },
    /// The agent ended the call without a result.
    #[error(
        "the agent of {machine} stopped in the middle of a backup: look at its log, `raftsman logs {machine} --agent`"
    )]
    Broken {
        /// Where.
        machine: Name,
    },
}

/// The fleet's secret that the keys of its clusters' backups follow from, as the state names it.
const SIGNING: &str = "backup-signing";

/// Which backups an operator accepts beyond those that are signed with the cluster's own key.
#[derive(Debug, Clone, Default)]
pub struct Accepted {
    /// Signed with one of these keys as well.
    pub keys: Vec<PublicKey>,
    /// Unsigned, signed with another key, or in the clear.
    pub unsigned: bool,
}

/// The seed of the key that signs the backups of a cluster of this fleet; nothing where the fleet has no secret for it
/// yet.
async fn seed(fleet: &Fleet, cluster: &Name) -> Result<Option<Vec<u8>>, BackupError> {
    let secret = fleet.secrets.get(SIGNING).await?;
    Ok(secret.map(|secret| sign::seed(secret.expose_secret().as_bytes(), fleet.id(), cluster)))
}

/// Makes the fleet's secret for signing backups, unless there is one.
pub async fn make_signing_key(fleet: &Fleet, lock: &Lock) -> Result<(), BackupError> {
    fleet.secrets.get_or_put(lock, SIGNING, secrets::random_token()?).await?;
    Ok(())
}

/// What verifies the backups of a cluster of this fleet.
pub async fn public_key(fleet: &Fleet, cluster: &Name) -> Result<PublicKey, BackupError> {
    Ok(Signer::new(&seed(fleet, cluster).await?.ok_or(BackupError::NoSigningKey)?)?.public())
}

/// Where a cluster's backups are.
#[derive(Debug)]
pub struct BackupRepository {
    /// The store, the prefix of the backups in it, and which of them are accepted.
    pub repository: Repository,
    /// Where the store is, with its credentials.
    pub place: Place,
    /// How they are made.
    pub settings: Backups,
    /// What signs them, where they are this fleet's.
    pub signer: Option<Signer>,
    /// The histories of the cluster's data, where its state is at hand.
    pub histories: Vec<History>,
    owner: Name,
}

impl BackupRepository {
    /// Of this cluster, as the file says.
    pub async fn open(fleet: &Fleet, cluster: &Name, accepted: &Accepted) -> Result<Self, BackupError> {
        let signer = seed(fleet, cluster).await?.map(|seed| Signer::new(&seed)).transpose()?;
        let ledger = fleet.store.get_cluster::<Ledger>(cluster.as_str()).await?;
        let histories = ledger.map(|ledger| ledger.value.etcd.lineage()).unwrap_or_default();
        Self::assemble(fleet, &fleet.spec.fleet, cluster, accepted, signer, histories)
    }

    /// Of a cluster of another fleet, whose backups are in the same store.
    pub fn of_another(fleet: &Fleet, owner: &Name, cluster: &Name, accepted: &Accepted) -> Result<Self, BackupError> {
        Self::assemble(fleet, owner, cluster, accepted, None, Vec::new())
    }

    fn assemble(
        fleet: &Fleet,
        owner: &Name,
        cluster: &Name,
        accepted: &Accepted,
        signer: Option<Signer>,
        histories: Vec<History>,
    ) -> Result<Self, BackupError> {
        let settings = fleet.spec.backups.clone().ok_or(BackupError::NoStore)?;
        let place = place(fleet.context.base(), &settings.store)?;
        let mut keys = accepted.keys.clone();
        match &signer {
            Some(signer) => keys.push(signer.public()),
            // The keys in `trust:` of the file verify other fleets' backups only.
            None => {
                let trusted: Result<Vec<PublicKey>, SignError> = settings.trust.iter().map(|key| key.parse()).collect();
                keys.extend(trusted?);
            }
        }
        let repository = Repository {
            store: Store::open(&place)?,
            layout: Layout::new(&settings.prefix, owner, cluster),
            cluster: cluster.clone(),
            trust: Trust { keys, unsigned: accepted.unsigned, encrypted: !settings.encrypt_to.is_empty() },
        };
        Ok(Self { repository, place, settings, signer, histories, owner: owner.clone() })
    }

    /// Finds the point that an operator wants to restore.
    pub async fn find(&self, target: RestoreTarget, keys: &Keys) -> Result<Point, BackupError> {
        Ok(raftsman_backup::point::find(&self.repository, target, &self.histories, keys).await?)
    }

    /// The manifest of the full backup of this name, verified; of the newest when none is named.
    pub async fn named(&self, name: Option<&str>) -> Result<Manifest, BackupError> {
        match name {
            Some(name) => Ok(self.manifest(name.parse()?).await?),
            None => Ok(raftsman_backup::point::newest(&self.repository, &self.histories).await?),
        }
    }

    /// The manifest of a full backup.
    pub async fn manifest(&self, name: FullName) -> Result<Manifest, FullError> {
        self.repository.manifest(name).await
    }

    /// What a machine needs to know to read a full backup, as it is.
    pub async fn full(&self, name: FullName) -> Result<StoredPoint, BackupError> {
        self.point_of(&self.manifest(name).await?)
    }

    /// What a machine needs to know to read this full backup, as it is.
    pub fn point_of(&self, full: &Manifest) -> Result<StoredPoint, BackupError> {
        let point = Point { full: full.clone(), batches: Vec::new(), revision: None };
        self.readable(&point)?.ok_or(BackupError::Unreadable(full.about.name))
    }

    /// What a machine needs to know to read it by itself. Nothing where it lacks the key.
    pub fn readable(&self, point: &Point) -> Result<Option<StoredPoint>, BackupError> {
        if point.is_encrypted() {
            return Ok(None);
        }
        Ok(Some(StoredPoint {
            place: serde_json::to_string(&self.place)?,
            prefix: self.settings.prefix.clone(),
            fleet: self.owner.to_string(),
            cluster: self.repository.cluster.to_string(),
            point: serde_json::to_string(point)?,
        }))
    }
}

/// The repository of the cluster itself, or of another one, given as `CLUSTER` or `FLEET/CLUSTER`.
pub async fn source(
    fleet: &Fleet,
    cluster: &Name,
    from: Option<&str>,
    accepted: &Accepted,
) -> Result<BackupRepository, BackupError> {
    let Some(from) = from else { return BackupRepository::open(fleet, cluster, accepted).await };
    let name = |text: &str| Name::parse(text).map_err(|error| BackupError::NoCluster(error.to_string()));
    match from.split_once('/') {
        Some((owner, cluster)) if name(owner)? == fleet.spec.fleet => {
            // A fleet of this name may have used the store before: its key can only come from the file.
            let mut at = BackupRepository::open(fleet, &name(cluster)?, accepted).await?;
            let trusted: Result<Vec<PublicKey>, SignError> = at.settings.trust.iter().map(|key| key.parse()).collect();
            at.repository.trust.keys.extend(trusted?);
            Ok(at)
        }
        Some((owner, cluster)) => BackupRepository::of_another(fleet, &name(owner)?, &name(cluster)?, accepted),
        None => BackupRepository::open(fleet, &name(from)?, accepted).await,
    }
}

/// What a machine needs to know to make a backup.
pub async fn order(
    fleet: &Fleet,
    settings: &Backups,
    place: &Place,
    cluster: &Name,
    root_password: Option<SecretString>,
    histories: &[History],
) -> Result<TakeBackupRequest, BackupError> {
    let seed = seed(fleet, cluster).await?.ok_or(BackupError::NoSigningKey)?;
    Ok(TakeBackupRequest {
        signing_key: raftsman_api::hex::encode(&seed),
        histories: serde_json::to_string(histories)?,
        place: serde_json::to_string(place)?,
        prefix: settings.prefix.clone(),
        compress: settings.compress,
        recipients: settings.encrypt_to.clone(),
        fleet: fleet.spec.fleet.to_string(),
        cluster: cluster.to_string(),
        root_password: root_password.map(|password| password.expose_secret().to_owned()).unwrap_or_default(),
    })
}

/// What the machines of a cluster get to make backups on a schedule; nothing where the file sets no schedule.
pub async fn settings(cluster: &StackHandle) -> Result<Option<SetBackupsRequest>, BackupError> {
    let fleet = &cluster.fleet;
    let Some(settings) = &fleet.spec.backups else { return Ok(None) };
    let Some(every) = settings.every else { return Ok(None) };
    let place = place(fleet.context.base(), &settings.store)?;
    let histories = cluster.ledger().etcd.lineage();
    let order =
        order(fleet, settings, &place, &cluster.desired.name, cluster.root_password().await?, &histories).await?;
    let keep = settings.kept();
    Ok(Some(SetBackupsRequest {
        order: Some(order),
        every_ms: every.as_millis(),
        changes_every_ms: settings.changes_every.map_or(0, |every| every.as_millis()),
        prune: settings.prune == Prune::Machines,
        keep_last: keep.last,
        keep_hourly: keep.hourly,
        keep_daily: keep.daily,
        keep_weekly: keep.weekly,
        keep_changes_s: settings.changes_every.map_or(0, |_| keep.changes.as_millis() / 1000),
        stamp: String::new(),
        drill_every_ms: settings.drill_every.map_or(0, |every| every.as_millis()),
        // The request also changes with the version, because the agent's restore tool must match it.
        drill_version: settings.drill_every.map_or_else(String::new, |_| cluster.desired.etcd.version.to_string()),
    }))
}

/// The store; paths in it are relative to `base`.
pub fn place(base: &Path, store: &BackupStore) -> Result<Place, BackupError> {
    let secret = |reference: &Secret| -> Result<String, BackupError> {
        Ok(secrets::resolve(reference, base)?.expose_secret().to_owned())
    };
    Ok(match store {
        BackupStore::S3(S3Store { bucket, region, endpoint, ca_cert, virtual_hosted, credentials }) => {
            let ca_pem = ca_cert.as_ref().map(|path| {
                let path = base.join(path);
                std::fs::read_to_string(&path).map_err(|source| BackupError::Read { path, source })
            });
            let keys = credentials.as_ref().map(|credentials| -> Result<_, BackupError> {
                let session = credentials.session.as_ref().map(secret).transpose()?;
                Ok(AccessKeys { id: secret(&credentials.id)?, secret: secret(&credentials.secret)?, session })
            });
            Place::S3(S3 {
                bucket: bucket.clone(),
                region: region.clone(),
                endpoint: endpoint.clone(),
                ca_pem: ca_pem.transpose()?,
                virtual_hosted: *virtual_hosted,
                keys: keys.transpose()?,
            })
        }
        BackupStore::Gcs(gcs) => Place::Gcs(Gcs {
            bucket: gcs.bucket.clone(),
            service_account: gcs.credentials.as_ref().map(secret).transpose()?,
        }),
        BackupStore::Azure(azure) => Place::Azure(Azure {
            account: azure.account.clone(),
            container: azure.container.clone(),
            access_key: azure.credentials.as_ref().map(secret).transpose()?,
        }),
        BackupStore::Directory(path) => Place::Directory(PathBuf::from(path)),
    })
}

/// The age identities in a text.
pub fn identities(text: &str) -> Keys {
    Keys(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
}

/// What opens encrypted backups: the identities in these files, as `age-keygen` writes them.
pub fn keys(files: &[PathBuf]) -> Result<Keys, BackupError> {
    let mut found = Keys::default();
    for path in files {
        let text = std::fs::read_to_string(path).map_err(|source| BackupError::Read { path: path.clone(), source })?;
        let before = found.0.len();
        found.0.extend(identities(&text).0);
        if found.0.len() == before {
            return Err(BackupError::NoIdentity(path.clone()));
        }
    }
    Ok(found)
}
