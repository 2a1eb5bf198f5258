//! `raftsman drill`: the newest backup → restored into a throwaway etcd, compared with what it should be, and written down.

use std::sync::Arc;

use jiff::Timestamp;
use raftsman_backup::drill::{self, Tried};
use raftsman_backup::{Keys, Wish};
use raftsman_core::backup::Drill;
use serde_json::json;

use super::{OpError, pick_cluster};
use crate::act::Hands;
use crate::act::restore::seen;
use crate::backup::{BackupError, source};
use crate::fleet::Fleet;
use crate::journal::Journal;
use crate::observe::Observer;
use crate::store::Lock;

/// Tries the newest backup with all changes since, of this cluster or of another one, on a machine of this cluster. What
/// comes of it stands in the store; and in the state of the cluster whose backup it is.
pub async fn drill(
    fleet: &Arc<Fleet>,
    lock: &Lock,
    cluster: Option<&str>,
    from: Option<&str>,
    keys: &Keys,
    watch: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Drill, OpError> {
    let cluster = Arc::new(pick_cluster(fleet, cluster)?);
    let at = source(fleet, &cluster.desired.name, from)?;
    let journal = Journal::new(&fleet.store, &fleet.setting, lock);
    let observer = Observer::new(Arc::clone(&cluster))?;
    let observed = observer.look().await?;
    let (now, current) = (Timestamp::now(), seen(&observed));
    let point = at.find(Wish::Newest, keys).await?;
    let hands = Hands { observer: &observer, generation: lock.generation() };
    let tried = match hands.try_out(&at, &point, keys, None, watch).await {
        Ok(tried) => tried,
        Err(error) => {
            let error_text = crate::error_chain(&error);
            journal.note(Some(&cluster.desired.name), "drill failed", json!({ "error": error_text }))?;
            return Err(error.into());
        }
    };
    // Of another cluster nobody here knows how far it is.
    let answered = from.is_none() && observed.members.values().any(|member| member.etcd.seen().is_some());
    let version = cluster.desired.version;
    let tried = Tried { machine: tried.machine, version, revision: tried.revision, keys: tried.keys, took: tried.took };
    let drill = drill::record(&at.store, &at.layout, &point, tried, now, answered.then_some(current))
        .await
        .map_err(BackupError::from)?;
    if from.is_none() {
        cluster.remember(|ledger| ledger.drill = Some(drill.clone()))?;
    }
    journal.note(Some(&cluster.desired.name), "drill", json!({ "drill": drill, "from": from }))?;
    Ok(drill)
}

/// All drills that stand in the store, the oldest first.
pub async fn history(fleet: &Arc<Fleet>, cluster: Option<&str>, from: Option<&str>) -> Result<Vec<Drill>, OpError> {
    let at = source(fleet, &pick_cluster(fleet, cluster)?.desired.name, from)?;
    Ok(drill::history(&at.store, &at.layout).await.map_err(BackupError::from)?)
}
