//! `raftsman versions`: the running and the desired version → the upgrade path, or why there is none.

use std::collections::BTreeMap;
use std::sync::Arc;

use raftsman_core::observed::{SnapshotRecord, View};
use raftsman_core::plan::{route, versions};
use raftsman_core::spec::{EtcdVersion, Name};
use raftsman_core::versions::{Line, VersionRefusal};
use serde::Serialize;

use super::{OpError, for_each_stack};
use crate::fleet::Fleet;
use crate::observe::Observer;

/// The versions of one cluster.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterVersions {
    /// Its name.
    pub cluster: Name,
    /// The version that each member runs, or ran last; members with an unknown version are missing.
    pub running: BTreeMap<Name, EtcdVersion>,
    /// What the file wants.
    pub wanted: EtcdVersion,
    /// The versions that the source has.
    pub available: Vec<EtcdVersion>,
    /// Every version on the path; none when all members run the desired one, or when there is no path.
    pub way: Vec<EtcdVersion>,
    /// Why there is no upgrade path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<NoWay>,
    /// Why a version on the path cannot be installed: `apply` would not start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmet: Option<String>,
    /// The minor version that a downgrade of etcd was enabled for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downgrade: Option<Line>,
    /// The last snapshot that was taken before a change of versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotRecord>,
}

/// Why there is no upgrade path.
#[derive(Debug, Clone, Serialize)]
pub struct NoWay {
    /// In words.
    pub message: String,
    /// What to do.
    pub next: String,
    /// As data.
    #[serde(flatten)]
    pub refusal: VersionRefusal,
}

/// Observes every cluster.
pub async fn all(fleet: &Arc<Fleet>, only: &[Name]) -> Result<Vec<ClusterVersions>, OpError> {
    for_each_stack(fleet, only, |cluster| async move {
        let observed = Observer::new(Arc::clone(&cluster))?.look().await?;
        let desired = &cluster.desired;
        let now = versions(desired, &observed, &View::of(&observed));
        let lowest = now.running.values().min().copied().unwrap_or(desired.etcd.version);
        let (way, refused) = match route(desired, &observed) {
            Ok(way) => (way, None),
            Err(refusal) => {
                let (message, next) = (refusal.to_string(), refusal.next(lowest));
                (Vec::new(), Some(NoWay { message, next, refusal }))
            }
        };
        let fleet = &cluster.fleet;
        let hops = if now.running.is_empty() { vec![desired.etcd.version] } else { way.clone() };
        let mut checks = hops.iter().map(|hop| fleet.artifacts.check(&desired.etcd.source, *hop, fleet.context.base()));
        let unmet = checks.find_map(Result::err).filter(|_| observed.ledger.etcd.adopted().is_none());
        Ok(ClusterVersions {
            unmet: unmet.map(|error| crate::error_chain(&error)),
            cluster: desired.name.clone(),
            running: now.running,
            wanted: desired.etcd.version,
            available: desired.etcd.available.iter().copied().collect(),
            way,
            refused,
            downgrade: now.downgrade,
            snapshot: observed.ledger.etcd.snapshot.clone(),
        })
    })
    .await
}
