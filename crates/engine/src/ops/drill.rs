//! `raftsman drill`: the newest backup → restored into a throwaway etcd, compared with what it should be, and written down.

use std::sync::Arc;

use jiff::Timestamp;
use raftsman_backup::Keys;
use raftsman_core::backup::{Drill, ManifestError};
use serde_json::json;

use super::{OpError, pick_cluster};
use crate::act::Hands;
use crate::act::restore::seen;
use crate::backup::{BackupError, StoreOf};
use crate::fleet::Fleet;
use crate::journal::Journal;
use crate::observe::Observer;
use crate::point::{Point, Wish};
use crate::store::Lock;

/// No record is as large as this.
const MOST: u64 = 1 << 20;

/// Tries the newest backup with all changes since. What comes of it stands in the store, and in the state.
pub async fn drill(
    fleet: &Arc<Fleet>,
    lock: &Lock,
    cluster: Option<&str>,
    keys: &Keys,
    watch: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Drill, OpError> {
    let cluster = Arc::new(pick_cluster(fleet, cluster)?);
    let at = StoreOf::open(fleet, &cluster.desired.name)?;
    let journal = Journal::new(&fleet.store, &fleet.setting, lock);
    let observer = Observer::new(Arc::clone(&cluster))?;
    let observed = observer.look().await?;
    let (now, current) = (Timestamp::now(), seen(&observed));
    let point = Point::find(&at, Wish::Newest, keys).await?;
    let hands = Hands { observer: &observer, generation: lock.generation() };
    let tried = match hands.try_out(&at, &point, keys, None, watch).await {
        Ok(tried) => tried,
        Err(error) => {
            let error_text = crate::error_chain(&error);
            journal.note(Some(&cluster.desired.name), "drill failed", json!({ "error": error_text }))?;
            return Err(error.into());
        }
    };
    let answered = observed.members.values().any(|member| member.etcd.seen().is_some());
    let behind = answered.then(|| (current - tried.revision).max(0));
    let age = u64::try_from(now.duration_since(point.at()).as_millis()).unwrap_or(0);
    let drill = Drill {
        format: Drill::FORMAT,
        backup: point.full.about.name,
        at: now,
        machine: tried.machine,
        version: cluster.desired.version,
        batches: point.batches.len(),
        revision: tried.revision,
        keys: tried.keys,
        took_ms: u64::try_from(tried.took.as_millis()).unwrap_or(u64::MAX),
        behind,
        behind_ms: behind.map(|behind| if behind == 0 { 0 } else { age }),
    };
    let path = at.layout.drill(now, drill.backup);
    let text = drill.text().map_err(BackupError::from)?;
    at.store.put_once(&path, text.into()).await.map_err(BackupError::from)?;
    cluster.remember(|ledger| ledger.drill = Some(drill.clone()))?;
    journal.note(Some(&cluster.desired.name), "drill", json!({ "drill": drill }))?;
    Ok(drill)
}

/// All drills that stand in the store, the oldest first.
pub async fn history(fleet: &Arc<Fleet>, cluster: Option<&str>) -> Result<Vec<Drill>, OpError> {
    let at = StoreOf::open(fleet, &pick_cluster(fleet, cluster)?.desired.name)?;
    let mut drills = Vec::new();
    for found in at.store.list(&at.layout.drills()).await.map_err(BackupError::from)? {
        let bytes = at.store.get(&found.path, MOST).await.map_err(BackupError::from)?;
        drills.push(
            Drill::read(&bytes)
                .map_err(|error: ManifestError| BackupError::from(raftsman_backup::full::FullError::from(error)))?,
        );
    }
    Ok(drills)
}
