//! What came of trying a backup → its record in the store; the records in a store → what is known of drills.

use std::time::Duration;

use jiff::Timestamp;
use raftsman_core::backup::{Drill, Layout};
use raftsman_core::spec::{EtcdVersion, Name};

use crate::MOST_TEXT;
use crate::full::FullError;
use crate::point::Point;
use crate::store::Store;

/// A backup was restored into a throwaway etcd, which holds what it should.
#[derive(Debug, Clone)]
pub struct Tried {
    /// On which machine.
    pub machine: Name,
    /// With which version of etcd.
    pub version: EtcdVersion,
    /// The last revision that came back.
    pub revision: i64,
    /// How many keys there are then.
    pub keys: u64,
    /// How long it took.
    pub took: Duration,
}

/// Writes it down. `current` is how far the cluster itself was when it began, where anybody knows.
pub async fn record(
    store: &Store,
    layout: &Layout,
    point: &Point,
    tried: Tried,
    begun: Timestamp,
    current: Option<i64>,
) -> Result<Drill, FullError> {
    let behind = current.map(|current| (current - tried.revision).max(0));
    let age = u64::try_from(begun.duration_since(point.at()).as_millis()).unwrap_or(0);
    let drill = Drill {
        format: Drill::FORMAT,
        backup: point.full.about.name,
        at: begun,
        machine: tried.machine,
        version: tried.version,
        batches: point.batches.len(),
        revision: tried.revision,
        keys: tried.keys,
        took_ms: u64::try_from(tried.took.as_millis()).unwrap_or(u64::MAX),
        behind,
        behind_ms: behind.map(|behind| if behind == 0 { 0 } else { age }),
    };
    store.put_once(&layout.drill(begun, drill.backup), drill.text()?.into()).await?;
    Ok(drill)
}

/// All that stand in the store, the oldest first.
pub async fn history(store: &Store, layout: &Layout) -> Result<Vec<Drill>, FullError> {
    let mut drills = Vec::new();
    for found in store.list(&layout.drills()).await? {
        drills.push(Drill::read(&store.get(&found.path, MOST_TEXT).await?)?);
    }
    Ok(drills)
}

/// The newest that can be read.
pub async fn last(store: &Store, layout: &Layout) -> Result<Option<Drill>, FullError> {
    for found in store.list(&layout.drills()).await?.iter().rev() {
        match Drill::read(&store.get(&found.path, MOST_TEXT).await?) {
            Ok(drill) => return Ok(Some(drill)),
            Err(error) => tracing::warn!(%error, path = found.path, "a record does not count"),
        }
    }
    Ok(None)
}
