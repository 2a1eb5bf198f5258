//! `raftsman backup`: a cluster → a new backup, a list of its backups, and whether they are intact.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use raftsman_api::v1::{self, take_backup_reply};
use raftsman_backup::copy::CopyEnd;
use raftsman_backup::full::{self, Depth, TransferProgress};
use raftsman_backup::prune::prune as remove_old;
use raftsman_backup::{Keys, Place, Store, changes};
use raftsman_core::backup::point::is_future;
use raftsman_core::backup::{FullName, Keep, Layout, Manifest, RestoreTarget, chain};
use raftsman_core::desired::ClientAccess;
use raftsman_core::observed::{Observed, View};
use raftsman_core::spec::{AuthMode, Backups, Name, Prune, Spec};
use serde::Serialize;
use serde_json::json;

use super::begin::locked_cluster;
use super::{OpError, pick_cluster};
use crate::act::pki::certify_client;
use crate::arriving::Arriving;
use crate::backup::{Accepted, BackupError, BackupRepository, make_signing_key, order, place, public_key};
use crate::fleet::{Context, Fleet, directory_of};
use crate::journal::Journal;
use crate::observe::Observer;

/// The interval of progress reports.
const TELL: Duration = Duration::from_millis(500);

/// The progress of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Bytes of the snapshot that were received.
    pub received: u64,
    /// Bytes of the object that were sent to the store.
    pub stored: u64,
    /// Bytes of the object that were read, back from the store or to verify it.
    pub checked: u64,
    /// The total of bytes to receive or, where nothing is received, to check.
    pub total: u64,
}

/// Receives the progress of a backup.
pub type Watch<'a> = dyn Fn(Progress) + Send + Sync + 'a;

/// A new backup.
#[derive(Debug, Serialize)]
pub struct NewBackup {
    /// What is known of it.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// Where it is.
    pub place: String,
    /// Its snapshot there.
    pub path: String,
}

impl NewBackup {
    fn of(at: &BackupRepository, manifest: Manifest) -> Self {
        let path = at.repository.layout.snapshot(manifest.about.name, manifest.coding);
        Self { path, place: at.repository.store.place().to_owned(), manifest }
    }
}

/// The whole of `raftsman backup now`: takes the lock and has a member's machine make a backup. The lock is released as
/// soon as no change is left to make.
pub async fn now(
    spec: Spec,
    context: &Context,
    cluster: Option<&str>,
    watch: &Watch<'_>,
) -> Result<NewBackup, OpError> {
    let (fleet, lock) = locked_cluster(spec, context, "backup", cluster).await?;
    let cluster = Arc::new(pick_cluster(&fleet, cluster).await?);
    let name = cluster.desired.name.clone();
    make_signing_key(&fleet, &lock).await?;
    let at = BackupRepository::open(&fleet, &name, &Accepted::default()).await?;
    let observer = Observer::new(Arc::clone(&cluster))?;
    let observed = observer.look().await?;
    let machine = chosen(&observed).ok_or_else(|| OpError::NoQuorum(name.clone()))?;
    let size = View::of(&observed).answering.get(&machine).map_or(0, |etcd| etcd.db_size);
    let link = observer.agent(&machine).ok_or_else(|| OpError::NoSuchMember(machine.to_string()))?;
    let root_password = match cluster.auth() {
        AuthMode::Password => cluster.root_password().await?,
        AuthMode::Certificate | AuthMode::None => {
            certify_client(&cluster, &link, lock.generation(), ClientAccess::Open).await?;
            None
        }
    };
    let journal = Journal::new(&fleet.store, &fleet.context, &lock);
    journal.note(Some(&name), "backup", json!({ "machine": machine })).await?;
    // The journal holds the lock, too.
    drop((journal, lock));

    let request = order(&fleet, &at.settings, &at.place, &name, root_password, &observed.ledger.etcd.lineage()).await?;
    let failed = |status| BackupError::Agent { machine: machine.clone(), status: Box::new(status) };
    let mut replies = link.client().await?.take_backup(request).await.map_err(failed)?.into_inner();
    while let Some(reply) = replies.next().await {
        match reply.map_err(failed)?.what {
            Some(take_backup_reply::What::TransferProgress(v1::TransferProgress { received, stored, checked })) => {
                let total = u64::try_from(size).unwrap_or_default().max(received);
                watch(Progress { received, stored, checked, total });
            }
            Some(take_backup_reply::What::Manifest(text)) => {
                let manifest: Manifest =
                    serde_json::from_str(&text).map_err(|error| OpError::Unclear(error.to_string()))?;
                return Ok(NewBackup::of(&at, manifest));
            }
            None => {}
        }
    }
    Err(BackupError::Broken { machine }.into())
}

/// The member to take the snapshot from: the most up-to-date healthy follower, and the leader only when there is no
/// follower.
fn chosen(observed: &Observed) -> Option<Name> {
    let view = View::of(observed);
    let rank = |name: &&&Name| (view.leader != Some(**name), view.answering.get(**name).map(|etcd| etcd.raft_index));
    view.healthy.iter().filter(|_| view.has_quorum()).max_by_key(rank).map(|name| (*name).clone())
}

/// A backup in the store.
#[derive(Debug, Serialize)]
pub struct Listed {
    /// Its name.
    pub name: FullName,
    /// Its manifest, when it is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Manifest>,
    /// Why it is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A cluster's backups.
#[derive(Debug, Serialize)]
pub struct Listing {
    /// The cluster that they belong to.
    pub cluster: Name,
    /// Where.
    pub place: String,
    /// All of them, the oldest first.
    pub backups: Vec<Listed>,
}

/// The backups in the store.
pub async fn list(fleet: &Arc<Fleet>, cluster: Option<&str>, accepted: &Accepted) -> Result<Listing, OpError> {
    let at = BackupRepository::open(fleet, &pick_cluster(fleet, cluster).await?.desired.name, accepted).await?;
    let now = Timestamp::now();
    let found = at.repository.found().await.map_err(BackupError::from)?;
    let mut backups = Vec::new();
    for (name, manifest) in found.verified {
        let problem =
            is_future(name, now).then(|| "its name has a time in the future: retention ignores it".to_owned());
        backups.push(Listed { name, manifest: Some(manifest), problem });
    }
    for (name, error) in found.refused {
        backups.push(Listed { name, manifest: None, problem: Some(error.to_string()) });
    }
    for name in found.unfinished {
        backups.push(Listed { name, manifest: None, problem: Some("it was never finished".to_owned()) });
    }
    backups.sort_by_key(|backup| backup.name);
    let (place, cluster) = (at.repository.store.place().to_owned(), at.repository.cluster);
    Ok(Listing { place, cluster, backups })
}

/// The result of removing old backups.
#[derive(Debug, Serialize)]
pub struct Pruned {
    /// The cluster that they belong to.
    pub cluster: Name,
    /// Where.
    pub place: String,
    /// Whether this is a dry run: nothing was removed.
    pub shown: bool,
    /// Full backups that were removed.
    pub fulls: Vec<FullName>,
    /// Backups whose changes were removed.
    pub changes: Vec<FullName>,
    /// The store keeps these, because they are locked.
    pub locked: Vec<FullName>,
    /// Neither counted nor removed: they cannot be verified, or are dated in the future.
    pub ignored: Vec<FullName>,
}

/// The whole of `raftsman backup prune`: takes the lock and removes what the file's retention does not keep.
pub async fn prune(
    spec: Spec,
    context: &Context,
    cluster: Option<&str>,
    accepted: &Accepted,
    only_show: bool,
) -> Result<Pruned, OpError> {
    let (fleet, lock) = locked_cluster(spec, context, "backup prune", cluster).await?;
    let cluster = pick_cluster(&fleet, cluster).await?;
    let at = BackupRepository::open(&fleet, &cluster.desired.name, accepted).await?;
    if at.settings.prune == Prune::Never {
        return Err(BackupError::NeverPruned.into());
    }
    let kept = at.settings.kept();
    let keep = Keep {
        last: kept.last,
        hourly: kept.hourly,
        daily: kept.daily,
        weekly: kept.weekly,
        changes_s: kept.changes.as_millis() / 1000,
    };
    let current = cluster.ledger().etcd.cluster;
    let gone =
        remove_old(&at.repository, keep, current, Timestamp::now(), only_show).await.map_err(BackupError::from)?;
    let list = |names: std::collections::BTreeSet<FullName>| names.into_iter().collect::<Vec<_>>();
    let pruned = Pruned {
        cluster: cluster.desired.name.clone(),
        place: at.repository.store.place().to_owned(),
        shown: only_show,
        fulls: list(gone.fulls),
        changes: list(gone.changes),
        locked: list(gone.locked),
        ignored: list(gone.ignored),
    };
    if !only_show {
        let journal = Journal::new(&fleet.store, &fleet.context, &lock);
        journal.note(Some(&pruned.cluster), "backup prune", json!({ "pruned": pruned })).await?;
    }
    Ok(pruned)
}

/// The key that verifies a cluster's backups.
#[derive(Debug, Serialize)]
pub struct VerifyingKey {
    /// The fleet that it belongs to.
    pub fleet: Name,
    /// Of which cluster.
    pub cluster: Name,
    /// The key.
    pub key: String,
}

/// The keys that verify the backups of these clusters, for `trust:` in the file of another fleet.
pub async fn keys(fleet: &Arc<Fleet>) -> Result<Vec<VerifyingKey>, OpError> {
    let mut keys = Vec::new();
    for cluster in fleet.spec.etcd.keys() {
        let key = public_key(fleet, cluster).await?.to_string();
        keys.push(VerifyingKey { fleet: fleet.spec.fleet.clone(), cluster: cluster.clone(), key });
    }
    Ok(keys)
}

/// The manifest of a backup; of the newest when none is named.
pub async fn show(
    fleet: &Arc<Fleet>,
    cluster: Option<&str>,
    name: Option<&str>,
    accepted: &Accepted,
) -> Result<NewBackup, OpError> {
    let at = BackupRepository::open(fleet, &pick_cluster(fleet, cluster).await?.desired.name, accepted).await?;
    let manifest = at.named(name).await?;
    Ok(NewBackup::of(&at, manifest))
}

/// The result of verifying a backup.
#[derive(Debug, Serialize)]
pub struct Verified {
    /// Which.
    pub name: FullName,
    /// `snapshot`: the content is what etcd sent. `object`: the bytes are those that were written; the content was not
    /// checked, because it is encrypted. `damaged`: neither, or it is not signed with the cluster's key.
    pub verdict: &'static str,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Which backups are verified.
#[derive(Debug, Clone, Copy)]
pub enum Selection<'a> {
    /// The newest.
    Newest,
    /// All of them.
    All,
    /// This one.
    Named(&'a str),
}

/// Reads backups completely.
pub async fn verify(
    fleet: &Arc<Fleet>,
    cluster: Option<&str>,
    selection: Selection<'_>,
    accepted: &Accepted,
    keys: &Keys,
    watch: &Watch<'_>,
) -> Result<Vec<Verified>, OpError> {
    let at = BackupRepository::open(fleet, &pick_cluster(fleet, cluster).await?.desired.name, accepted).await?;
    let names = match selection {
        Selection::Named(name) => vec![name.parse().map_err(BackupError::from)?],
        Selection::Newest => vec![at.named(None).await?.about.name],
        Selection::All => {
            let listed = full::list(&at.repository.store, &at.repository.layout).await.map_err(BackupError::from)?;
            listed.into_iter().filter(|(_, has_manifest)| *has_manifest).map(|(name, _)| name).collect()
        }
    };
    let mut verified = Vec::new();
    for name in names {
        let looked = verify_one(&at, name, keys, watch).await;
        let looked = match selection {
            Selection::All => full::unless_gone(&at.repository, name, looked).await,
            Selection::Named(_) | Selection::Newest => looked.map(Some),
        };
        verified.push(match looked {
            Ok(None) => continue,
            Ok(Some(Depth::Snapshot)) => Verified { name, verdict: "snapshot", problem: None },
            Ok(Some(Depth::Object)) => Verified { name, verdict: "object", problem: None },
            Err(error) if error.is_ours() || matches!(error, full::FullError::Incomplete { .. }) => {
                return Err(BackupError::from(error).into());
            }
            Err(error) => Verified { name, verdict: "damaged", problem: Some(error.to_string()) },
        });
    }
    Ok(verified)
}

async fn verify_one(
    at: &BackupRepository,
    name: FullName,
    keys: &Keys,
    watch: &Watch<'_>,
) -> Result<Depth, full::FullError> {
    let manifest = at.manifest(name).await?;
    let moved = TransferProgress::default();
    let looking = full::verify(&at.repository, &manifest, keys, &moved);
    telling(looking, &moved, manifest.object.bytes, watch).await
}

/// Reports progress until the work ends.
async fn telling<T>(work: impl Future<Output = T>, moved: &TransferProgress, total: u64, watch: &Watch<'_>) -> T {
    let mut work = std::pin::pin!(work);
    let mut tick = tokio::time::interval(TELL);
    loop {
        tokio::select! {
            ended = &mut work => return ended,
            _ = tick.tick() => {
                let (received, stored, checked) = (moved.received(), moved.stored(), moved.checked());
                watch(Progress { received, stored, checked, total });
            }
        }
    }
}

/// Where a copy goes.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// A directory with the layout of a store.
    Directory(&'a Path),
    /// The store of another file.
    Store {
        /// What that file says of backups.
        settings: &'a Backups,
        /// Paths in it are relative to this directory.
        base: &'a Path,
    },
    /// The plain snapshot, in a file.
    File(&'a Path),
}

/// A copy of a backup.
#[derive(Debug, Serialize)]
pub struct Copied {
    /// Which backup.
    pub backup: FullName,
    /// The number of batches of changes that were copied with it.
    pub batches: usize,
    /// Where it is.
    pub place: String,
    /// Its snapshot there.
    pub path: String,
}

/// Copies a backup, with all changes since, to another store; or its snapshot alone, decoded, into a file.
pub async fn copy(
    fleet: &Arc<Fleet>,
    cluster: Option<&str>,
    name: Option<&str>,
    target: Target<'_>,
    accepted: &Accepted,
    keys: &Keys,
    watch: &Watch<'_>,
) -> Result<Copied, OpError> {
    let at = BackupRepository::open(fleet, &pick_cluster(fleet, cluster).await?.desired.name, accepted).await?;
    let manifest = match (name, &target) {
        // The backup whose changes reach the newest revision, which need not be the newest backup.
        (None, Target::Directory(_) | Target::Store { .. }) => at.find(RestoreTarget::Newest, keys).await?.full,
        _ => at.named(name).await?,
    };
    let (backup, moved, total) = (manifest.about.name, TransferProgress::default(), manifest.object.bytes);
    let (store, layout) = match target {
        Target::File(path) => {
            let failed = |source| BackupError::Write { path: path.to_owned(), source };
            let file = Arriving::begin(path).map_err(failed)?;
            let writer = file.writer().map_err(failed)?;
            let fetching = full::fetch(&at.repository, &manifest, keys, &moved, writer);
            telling(fetching, &moved, total, watch).await.map_err(BackupError::from)?;
            file.keep().map_err(failed)?;
            let (place, path) = (directory_of(path).display().to_string(), path.display().to_string());
            return Ok(Copied { backup, batches: 0, place, path });
        }
        Target::Directory(path) => {
            let failed = |source| BackupError::Write { path: path.to_owned(), source };
            std::fs::create_dir_all(path).map_err(failed)?;
            let place = Place::Directory(path.canonicalize().map_err(failed)?);
            (
                Store::open(&place).map_err(BackupError::from)?,
                Layout::new("", &fleet.spec.fleet, &at.repository.cluster),
            )
        }
        Target::Store { settings, base } => {
            let store = Store::open(&place(base, &settings.store)?).map_err(BackupError::from)?;
            (store, Layout::new(&settings.prefix, &fleet.spec.fleet, &at.repository.cluster))
        }
    };
    let copying = async {
        let (batches, _) = changes::since(&at.repository, &manifest).await?;
        // Batches that do not continue the backup are not copied.
        let batches = chain(&manifest, &batches, None).map_err(changes::ChangesError::from)?;
        let to = CopyEnd { store: &store, layout: &layout };
        raftsman_backup::copy::copy(&at.repository, to, &manifest, &batches, &moved).await?;
        Ok::<_, BackupError>(batches.len())
    };
    let batches = telling(copying, &moved, total, watch).await?;
    let path = layout.snapshot(backup, manifest.coding);
    Ok(Copied { backup, batches, place: store.place().to_owned(), path })
}
