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
    let (pruned, paths) = doomed(store, layout, keep, now).await?;
    for path in paths {
        store.remove(&path).await?;
    }
    Ok(pruned)
}

/// What may go, one object after the other.
async fn doomed(
    store: &Store,
    layout: &Layout,
    keep: Keep,
    now: Timestamp,
) -> Result<(Pruned, Vec<String>), ChangesError> {
    let Verdict { fulls, changes } = judge(&kept(store, layout).await?, keep, now);
    let mut paths = Vec::new();
    // Changes first: without them their backup is still whole.
    for base in &changes {
        paths.extend(objects(store, layout, &layout.batches(*base)).await?);
    }
    for full in &fulls {
        paths.extend(objects(store, layout, &layout.full(*full)).await?);
    }
    Ok((Pruned { fulls: fulls.len(), changes: changes.len() }, paths))
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
async fn objects(store: &Store, layout: &Layout, path: &str) -> Result<Vec<String>, StoreError> {
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
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use jiff::SignedDuration;
    use raftsman_core::backup::{Change, Event, Hashed, Lines, Manifest};
    use raftsman_core::observed::ClusterId;

    use super::*;
    use crate::changes::End;
    use crate::fixtures::{about, cluster, layout};
    use crate::full::Moved;
    use crate::{Keys, Place, Point, Seals, Wish};

    /// A snapshot as etcd sends it: pages, and their SHA-256 behind them.
    fn snapshot() -> Vec<u8> {
        let pages = vec![7_u8; 8192];
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &pages);
        [pages.as_slice(), hash.as_ref()].concat()
    }

    async fn backup(store: &Store, layout: &Layout, taken: Timestamp, revision: i64) -> Manifest {
        let seals = Seals { zstd: true, recipients: Vec::new() };
        let about = about(taken, revision, revision);
        let pieces = stream::iter([Ok::<_, std::io::Error>(snapshot().into())]);
        let hashed = async { Ok(Hashed { hash: 1, compacted: 0, keys: 1 }) };
        let full = full::take(store, layout, about, &seals, pieces, hashed, &Moved::default()).await.unwrap();
        let mut end = End::of(&full).unwrap();
        for at in 1..=3 {
            let mut lines = Lines::default();
            let event = Event::Put { key: b"k".to_vec(), value: b"v".to_vec(), lease: 0, ttl: 0 };
            lines.push(&Change { revision: revision + at, at: taken, events: vec![event] }).unwrap();
            end.write(store, layout, ClusterId(7), &seals, &lines).await.unwrap();
        }
        full
    }

    #[tokio::test]
    async fn killed_anywhere_what_is_left_counts_or_does_not() {
        let keep = Keep { hourly: 1, daily: 2, weekly: 1, changes_s: 3600 };
        let (main, layout, keys) = (cluster(), layout(), Keys::default());
        let begun: Timestamp = "2026-11-16T03:00:00Z".parse().unwrap();
        let now = begun + SignedDuration::from_hours(60);
        for removed in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(&Place::Directory(dir.path().to_owned())).unwrap();
            for hour in 0..3 {
                backup(&store, &layout, begun + SignedDuration::from_hours(hour), 10 * (hour + 1)).await;
            }
            let newest = backup(&store, &layout, now - SignedDuration::from_mins(1), 50).await;
            let (pruned, paths) = doomed(&store, &layout, keep, now).await.unwrap();
            assert_eq!((pruned, paths.len()), (Pruned { fulls: 2, changes: 3 }, 24));
            // Nothing but a removal changes what is there: these are all moments.
            for path in &paths[..removed] {
                store.remove(path).await.unwrap();
            }
            // What is still there and has a manifest is whole, and the newest is always there with all changes.
            for name in full::complete(&store, &layout).await.unwrap() {
                let manifest = full::manifest(&store, &layout, &main, name).await.unwrap();
                full::verify(&store, &layout, &manifest, &keys, &Moved::default()).await.unwrap();
                let (batches, _) = changes::since(&store, &layout, &manifest).await.unwrap();
                let way = raftsman_core::backup::chain(&manifest, &batches, None).unwrap();
                assert_eq!(way.len(), batches.len(), "{removed}: no batch counts that leads nowhere");
            }
            let point = Point::find(&store, &layout, &main, Wish::Newest, &keys).await.unwrap();
            assert_eq!((point.full.about.name, point.last()), (newest.about.name, 53));
            // Whoever comes next ends it.
            prune(&store, &layout, keep, now).await.unwrap();
            assert_eq!(full::list(&store, &layout).await.unwrap().len(), 2, "{removed}");
            let changes = changes::list(&store, &layout.changes(), &layout).await.unwrap();
            assert_eq!(changes.keys().collect::<Vec<_>>(), [&newest.about.name], "{removed}");
            if removed == paths.len() {
                break;
            }
        }
    }

    /// A list of backups is read, which takes its time, and retention goes on meanwhile.
    #[tokio::test]
    async fn what_retention_takes_while_somebody_reads_is_not_damaged() {
        let (layout, keys, moved) = (layout(), Keys::default(), Moved::default());
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&Place::Directory(dir.path().to_owned())).unwrap();
        let taken: Timestamp = "2026-11-16T03:00:00Z".parse().unwrap();
        let gone = backup(&store, &layout, taken, 10).await;
        let damaged = backup(&store, &layout, taken + SignedDuration::from_hours(1), 20).await;
        for path in objects(&store, &layout, &layout.full(gone.about.name)).await.unwrap() {
            store.remove(&path).await.unwrap();
        }
        store.remove(&layout.snapshot(damaged.about.name, damaged.coding)).await.unwrap();
        for (manifest, expected) in [(&gone, Some(None)), (&damaged, None)] {
            let name = manifest.about.name;
            let looked = full::verify(&store, &layout, manifest, &keys, &moved).await;
            assert!(looked.is_err(), "{name}");
            let looked = full::unless_gone(&store, &layout, name, looked).await;
            assert_eq!(looked.ok(), expected, "{name}");
        }
    }
}
