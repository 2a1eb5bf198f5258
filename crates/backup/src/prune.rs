//! What is in a store, and how long it is to be kept → what nobody needs any more is gone.

use std::collections::BTreeSet;

use jiff::Timestamp;
use raftsman_core::backup::{FullName, Keep, Kept, Layout, Object, Verdict, judge};

use crate::changes::{self, ChangesError};
use crate::full;
use crate::store::{Store, StoreError};

/// What went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// So many full backups.
    pub fulls: usize,
    /// The changes since so many.
    pub changes: usize,
}

/// Removes what may go. Interrupted, it can be done again: what goes stops counting before anything else of it goes.
pub async fn prune(store: &Store, layout: &Layout, keep: Keep, now: Timestamp) -> Result<Pruned, ChangesError> {
    let Verdict { fulls, changes } = judge(&kept(store, layout).await?, keep, now);
    // Changes first: without them their backup is still whole.
    for base in &changes {
        remove(store, layout, &layout.batches(*base)).await?;
    }
    for full in &fulls {
        remove(store, layout, &layout.full(*full)).await?;
    }
    Ok(Pruned { fulls: fulls.len(), changes: changes.len() })
}

/// What there is.
async fn kept(store: &Store, layout: &Layout) -> Result<Vec<Kept>, ChangesError> {
    let changes = changes::list(store, &layout.changes(), layout).await?;
    let drills = store.list(&layout.drills()).await?;
    let proven: BTreeSet<FullName> = drills.iter().filter_map(|found| layout.drilled(&found.path)).collect();
    let mut kept = Vec::new();
    let mut seen: BTreeSet<FullName> = BTreeSet::new();
    for (name, complete) in full::list(store, layout).await? {
        seen.insert(name);
        let changes_until = match changes.get(&name) {
            None => None,
            // The last says how far they go; of what was only begun nobody knows more than when it can have begun.
            Some(found) => match found.complete.last() {
                Some(last) => changes::read(store, layout, &[*last]).await?.first().map(|batch| batch.until),
                None => Some(name.taken()),
            },
        };
        kept.push(Kept { name, complete, proven: proven.contains(&name), changes_until });
    }
    // Changes whose backup is gone already: somebody was interrupted.
    let orphans = changes.keys().filter(|name| !seen.contains(*name));
    kept.extend(orphans.map(|name| Kept {
        name: *name,
        complete: false,
        proven: false,
        changes_until: Some(name.taken()),
    }));
    Ok(kept)
}

/// Manifests first, the last of them before all others: what is left then is nothing that counts.
async fn remove(store: &Store, layout: &Layout, path: &str) -> Result<(), StoreError> {
    let rank = |path: &str| match layout.object(path) {
        Some((Object::Manifest(_) | Object::BatchManifest(_), _)) => 0,
        Some((Object::Snapshot(_) | Object::Batch(_), _)) => 1,
        Some((Object::Begun(_), _)) => 2,
        // Not ours.
        None => 3,
    };
    let mut paths: Vec<String> = store.list(path).await?.into_iter().map(|found| found.path).collect();
    paths.retain(|path| rank(path) < 3);
    paths.sort_by(|a, b| rank(a).cmp(&rank(b)).then(b.cmp(a)));
    for path in paths {
        store.remove(&path).await?;
    }
    Ok(())
}
