//! `raftsman backup`: a cluster → a new backup of it, those that there are, and whether they are what they say.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use raftsman_api::v1::{self, take_backup_reply};
use raftsman_backup::Keys;
use raftsman_backup::full::{self, Depth, Moved};
use raftsman_core::backup::{FullName, Manifest};
use raftsman_core::observed::{Observed, View};
use raftsman_core::spec::{AuthMode, Name};
use serde::Serialize;

use super::{OpError, pick_cluster};
use crate::act::pki::certify_client;
use crate::backup::{BackupError, StoreOf, order};
use crate::fleet::Fleet;
use crate::observe::Observer;
use crate::store::Lock;

/// How often somebody who watches is told.
const TELL: Duration = Duration::from_millis(500);

/// How far a backup is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Bytes of the snapshot that came.
    pub received: u64,
    /// Bytes of the object on their way to the store.
    pub stored: u64,
    /// Bytes of the object that were read, back or again.
    pub checked: u64,
    /// As many bytes are to be received or, where nothing is received, checked.
    pub total: u64,
}

/// Hears how far a backup is.
pub type Watch<'a> = dyn Fn(Progress) + Send + Sync + 'a;

/// A new backup.
#[derive(Debug, Serialize)]
pub struct Taken {
    /// What is known of it.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// Where it is.
    pub place: String,
    /// Its snapshot there.
    pub path: String,
}

impl Taken {
    fn of(at: &StoreOf, manifest: Manifest) -> Self {
        let path = at.layout.snapshot(manifest.about.name, manifest.coding);
        Self { path, place: at.store.place().to_owned(), manifest }
    }
}

/// Has a member's machine make a backup. The lock is given back as soon as nothing is changed any more.
pub async fn now(fleet: &Arc<Fleet>, lock: Lock, cluster: Option<&str>, watch: &Watch<'_>) -> Result<Taken, OpError> {
    let cluster = Arc::new(pick_cluster(fleet, cluster)?);
    let name = cluster.desired.name.clone();
    let at = StoreOf::open(fleet, &name)?;
    let observer = Observer::new(Arc::clone(&cluster))?;
    let observed = observer.look().await?;
    let machine = chosen(&observed).ok_or_else(|| OpError::NoQuorum(name.clone()))?;
    let size = View::of(&observed).answering.get(&machine).map_or(0, |etcd| etcd.db_size);
    let links = observer.links(&machine).ok_or_else(|| OpError::NoSuchMember(machine.to_string()))?;
    let root_password = match cluster.auth() {
        AuthMode::Password => cluster.root_password()?,
        AuthMode::Certificate | AuthMode::None => {
            certify_client(&cluster, &links.agent, lock.generation()).await?;
            None
        }
    };
    drop(lock);

    let request = order(fleet, &at.settings, &at.place, &name, root_password)?;
    let failed = |status| BackupError::Agent { machine: machine.clone(), status: Box::new(status) };
    let mut replies = links.agent.client().await?.take_backup(request).await.map_err(failed)?.into_inner();
    while let Some(reply) = replies.next().await {
        match reply.map_err(failed)?.what {
            Some(take_backup_reply::What::Moved(v1::Moved { received, stored, checked })) => {
                let total = u64::try_from(size).unwrap_or_default().max(received);
                watch(Progress { received, stored, checked, total });
            }
            Some(take_backup_reply::What::Manifest(text)) => {
                let manifest: Manifest =
                    serde_json::from_str(&text).map_err(|error| OpError::Unclear(error.to_string()))?;
                return Ok(Taken::of(&at, manifest));
            }
            None => {}
        }
    }
    Err(BackupError::Broken { machine }.into())
}

/// Whose snapshot: a healthy follower that is as far as any, and the leader only when there is nobody else.
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
    /// What is known of it, when it counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Manifest>,
    /// Why it does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A cluster's backups.
#[derive(Debug, Serialize)]
pub struct Listing {
    /// Whose.
    pub cluster: Name,
    /// Where.
    pub place: String,
    /// All of them, the oldest first.
    pub backups: Vec<Listed>,
}

/// What there is.
pub async fn list(fleet: &Arc<Fleet>, cluster: Option<&str>) -> Result<Listing, OpError> {
    /// Manifests that are read at the same time.
    const AT_A_TIME: usize = 16;
    let at = StoreOf::open(fleet, &pick_cluster(fleet, cluster)?.desired.name)?;
    let found = full::list(&at.store, &at.layout).await.map_err(BackupError::from)?;
    let one = async |(name, complete): (FullName, bool)| -> Result<Listed, OpError> {
        if !complete {
            let problem = Some("it was never finished".to_owned());
            return Ok(Listed { name, manifest: None, problem });
        }
        match full::manifest(&at.store, &at.layout, &at.cluster, name).await {
            Ok(manifest) => Ok(Listed { name, manifest: Some(manifest), problem: None }),
            // A store that cannot be read says nothing about a backup in it.
            Err(error) if error.is_ours() => Err(BackupError::from(error).into()),
            Err(error) => Ok(Listed { name, manifest: None, problem: Some(error.to_string()) }),
        }
    };
    let listed: Vec<Result<Listed, OpError>> =
        futures::stream::iter(found).map(one).buffered(AT_A_TIME).collect().await;
    let backups = listed.into_iter().collect::<Result<_, _>>()?;
    Ok(Listing { place: at.store.place().to_owned(), cluster: at.cluster, backups })
}

/// The manifest of a backup; of the newest when none is named.
pub async fn show(fleet: &Arc<Fleet>, cluster: Option<&str>, name: Option<&str>) -> Result<Taken, OpError> {
    let at = StoreOf::open(fleet, &pick_cluster(fleet, cluster)?.desired.name)?;
    let name = match name {
        Some(name) => name.parse().map_err(BackupError::from)?,
        None => newest(&at).await?,
    };
    let manifest = full::manifest(&at.store, &at.layout, &at.cluster, name).await.map_err(BackupError::from)?;
    Ok(Taken::of(&at, manifest))
}

/// Those that count, the oldest first.
async fn complete(at: &StoreOf) -> Result<Vec<FullName>, BackupError> {
    let found = full::list(&at.store, &at.layout).await?;
    Ok(found.into_iter().filter(|(_, complete)| *complete).map(|(name, _)| name).collect())
}

async fn newest(at: &StoreOf) -> Result<FullName, BackupError> {
    let none = || BackupError::None { place: at.store.place().to_owned(), cluster: at.cluster.clone() };
    complete(at).await?.pop().ok_or_else(none)
}

/// What came of looking at a backup.
#[derive(Debug, Serialize)]
pub struct Verified {
    /// Which.
    pub name: FullName,
    /// `snapshot`: what is in it is what etcd sent. `object`: the bytes are those that were written, and nobody looked
    /// into them, because they are encrypted. `damaged`: neither.
    pub verdict: &'static str,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Which backups are looked at.
#[derive(Debug, Clone, Copy)]
pub enum Which<'a> {
    /// The newest.
    Newest,
    /// All of them.
    All,
    /// This one.
    Named(&'a str),
}

/// Reads backups from the first byte to the last.
pub async fn verify(
    fleet: &Arc<Fleet>,
    cluster: Option<&str>,
    which: Which<'_>,
    keys: &Keys,
    watch: &Watch<'_>,
) -> Result<Vec<Verified>, OpError> {
    let at = StoreOf::open(fleet, &pick_cluster(fleet, cluster)?.desired.name)?;
    let names = match which {
        Which::Named(name) => vec![name.parse().map_err(BackupError::from)?],
        Which::Newest => vec![newest(&at).await?],
        Which::All => complete(&at).await?,
    };
    let mut verified = Vec::new();
    for name in names {
        let looked = verify_one(&at, name, keys, watch).await;
        verified.push(match looked {
            Ok(Depth::Snapshot) => Verified { name, verdict: "snapshot", problem: None },
            Ok(Depth::Object) => Verified { name, verdict: "object", problem: None },
            Err(error) if error.is_ours() || matches!(error, full::FullError::Incomplete { .. }) => {
                return Err(BackupError::from(error).into());
            }
            Err(error) => Verified { name, verdict: "damaged", problem: Some(error.to_string()) },
        });
    }
    Ok(verified)
}

async fn verify_one(at: &StoreOf, name: FullName, keys: &Keys, watch: &Watch<'_>) -> Result<Depth, full::FullError> {
    let manifest = full::manifest(&at.store, &at.layout, &at.cluster, name).await?;
    let moved = Moved::default();
    let mut looking = std::pin::pin!(full::verify(&at.store, &at.layout, &manifest, keys, &moved));
    let mut tick = tokio::time::interval(TELL);
    loop {
        tokio::select! {
            depth = &mut looking => return depth,
            _ = tick.tick() => {
                watch(Progress { received: 0, stored: 0, checked: moved.checked(), total: manifest.object.bytes });
            }
        }
    }
}
