//! `raftsman drill`: the newest backup → restored into a temporary etcd, compared with its manifest, and recorded.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use raftsman_backup::drill::{self, TestedRestore};
use raftsman_backup::sign::SignError;
use raftsman_backup::{Keys, PublicKey, RestoreTarget};
use raftsman_core::backup::Drill;
use raftsman_core::spec::Spec;
use serde_json::json;

use super::begin::locked_cluster;
use super::{OpError, pick_cluster};
use crate::act::Executor;
use crate::act::restore::seen;
use crate::backup::{Accepted, BackupError, BackupRepository, make_signing_key, source};
use crate::fleet::{Context, Fleet};
use crate::journal::Journal;
use crate::observe::Observer;

/// The whole of `raftsman drill`: takes the lock and tests the newest backup with all changes since, of this cluster or
/// of another one, on a machine of this cluster. The result is recorded in the store, and in the state of the cluster
/// that the backup is of.
pub async fn run(
    spec: Spec,
    context: &Context,
    cluster: Option<&str>,
    from: Option<&str>,
    accepted: &Accepted,
    keys: &Keys,
    watch: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Drill, OpError> {
    let (fleet, lock) = locked_cluster(spec, context, "drill", cluster).await?;
    let cluster = Arc::new(pick_cluster(&fleet, cluster).await?);
    let at = source(&fleet, &cluster.desired.name, from, accepted).await?;
    let journal = Journal::new(&fleet.store, &fleet.context, &lock);
    let observer = Observer::new(Arc::clone(&cluster))?;
    let observed = observer.look().await?;
    let (now, current) = (Timestamp::now(), seen(&observed));
    let point = at.find(RestoreTarget::Newest, keys).await?;
    let executor = Executor { observer: &observer, lock: &lock, limit: Duration::MAX };
    let tried = match executor.try_out(&at, &point, keys, None, watch).await {
        Ok(tried) => tried,
        Err(error) => {
            let error_text = crate::error_chain(&error);
            journal.note(Some(&cluster.desired.name), "drill failed", json!({ "error": error_text })).await?;
            return Err(error.into());
        }
    };
    // The current revision of another cluster is unknown here.
    let answered = from.is_none() && observed.answers().next().is_some();
    let version = cluster.desired.etcd.version;
    let tried =
        TestedRestore { machine: tried.machine, version, revision: tried.revision, keys: tried.keys, took: tried.took };
    // A drill of another fleet's backup is signed with this cluster's own key: fleets that trust that key accept it.
    make_signing_key(&fleet, &lock).await?;
    let own = BackupRepository::open(&fleet, &cluster.desired.name, &Accepted::default()).await?.signer;
    let signer = at.signer.as_ref().or(own.as_ref());
    let drill = drill::record(&at.repository, signer, &point, tried, now, answered.then_some(current))
        .await
        .map_err(BackupError::from)?;
    if from.is_none() {
        cluster.remember(&lock, |ledger| ledger.etcd.drill = Some(drill.clone())).await?;
    }
    journal.note(Some(&cluster.desired.name), "drill", json!({ "drill": drill, "from": from })).await?;
    Ok(drill)
}

/// All drills that the store records, the oldest first.
pub async fn history(fleet: &Arc<Fleet>, cluster: Option<&str>, from: Option<&str>) -> Result<Vec<Drill>, OpError> {
    let name = pick_cluster(fleet, cluster).await?.desired.name.clone();
    let mut at = source(fleet, &name, from, &Accepted::default()).await?;
    // Other fleets' keys that the file trusts, and this cluster's own, for drills of other fleets' backups.
    let trusted: Result<Vec<PublicKey>, SignError> = at.settings.trust.iter().map(|key| key.parse()).collect();
    at.repository.trust.keys.extend(trusted.map_err(BackupError::from)?);
    at.repository
        .trust
        .keys
        .extend(BackupRepository::open(fleet, &name, &Accepted::default()).await?.signer.map(|own| own.public()));
    Ok(drill::history(&at.repository).await.map_err(BackupError::from)?)
}
