//! What is in a repository, and the retention → what is no longer needed is removed.

use std::collections::BTreeSet;

use jiff::Timestamp;
use raftsman_core::backup::{FullName, Keep, Kept, Layout, Object, Standing, Verdict, judge};
use raftsman_core::observed::ClusterId;

use crate::changes::{self, ChangesError};
use crate::drill;
use crate::full::FullError;
use crate::repository::Repository;
use crate::store::{Removed, Store, StoreError};

/// Why old backups are not removed.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A full backup, or a drill.
    #[error(transparent)]
    Full(#[from] FullError),
    /// Changes.
    #[error(transparent)]
    Changes(#[from] ChangesError),
}

/// What went, and what did not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Full backups, with all that was in their directories.
    pub fulls: BTreeSet<FullName>,
    /// The changes since these.
    pub changes: BTreeSet<FullName>,
    /// Of these the store keeps something, because it is locked.
    pub locked: BTreeSet<FullName>,
    /// Not counted and not removed: they could not be verified, or are from the future.
    pub ignored: BTreeSet<FullName>,
}

/// One directory that goes, object by object.
#[derive(Debug)]
struct Doomed {
    name: FullName,
    paths: Vec<String>,
}

/// Removes what retention does not keep, or only lists it. Interrupted, it can be done again: a backup becomes invalid
/// before anything else of it is removed. `current` is the history in force.
pub async fn prune(
    repository: &Repository,
    keep: Keep,
    current: Option<ClusterId>,
    now: Timestamp,
    only_show: bool,
) -> Result<Pruned, PruneError> {
    let (mut pruned, doomed) = doomed(repository, keep, current, now).await?;
    for Doomed { name, paths } in doomed.into_iter().filter(|_| !only_show) {
        for path in paths {
            // A locked backup stays whole: nothing else of it is removed.
            if repository.store.remove(&path).await? == Removed::Locked {
                pruned.locked.insert(name);
                break;
            }
        }
    }
    let Pruned { fulls, changes, locked, .. } = &mut pruned;
    fulls.retain(|name| !locked.contains(name));
    changes.retain(|name| !locked.contains(name));
    Ok(pruned)
}

/// What may be removed, one directory after the other.
async fn doomed(
    repository: &Repository,
    keep: Keep,
    current: Option<ClusterId>,
    now: Timestamp,
) -> Result<(Pruned, Vec<Doomed>), PruneError> {
    let Repository { store, layout, .. } = repository;
    let Verdict { fulls, changes, ignored } = judge(&kept(repository).await?, keep, current, now);
    let mut doomed = Vec::new();
    // Changes first: without them their backup is still whole.
    for base in &changes {
        doomed.push(Doomed { name: *base, paths: objects(store, layout, &layout.batches(*base)).await? });
    }
    for full in &fulls {
        doomed.push(Doomed { name: *full, paths: objects(store, layout, &layout.full(*full)).await? });
    }
    Ok((Pruned { fulls, changes, locked: BTreeSet::new(), ignored }, doomed))
}

/// What there is.
async fn kept(repository: &Repository) -> Result<Vec<Kept>, PruneError> {
    let Repository { store, layout, .. } = repository;
    // Signed plain-text backups from before encryption was required are ours, and retention removes them in time.
    let mut ours = repository.clone();
    ours.trust.encrypted = false;
    let found = ours.found().await?;
    let changes = changes::list(store, &layout.changes(), layout).await?;
    let history = drill::history(repository).await?;
    let proven: BTreeSet<FullName> = history.iter().map(|drill| drill.backup).collect();
    let mut standings: Vec<(FullName, Standing)> = Vec::new();
    for (name, manifest) in &found.verified {
        standings.push((*name, Standing::Verified { history: manifest.about.cluster_id }));
    }
    standings.extend(found.refused.keys().map(|name| (*name, Standing::Unverified)));
    standings.extend(found.unfinished.iter().map(|name| (*name, Standing::Unfinished)));
    // Changes whose backup is gone already: an earlier run was interrupted.
    let seen: BTreeSet<FullName> = standings.iter().map(|(name, _)| *name).collect();
    standings.extend(changes.keys().filter(|name| !seen.contains(*name)).map(|name| (*name, Standing::Unfinished)));
    let mut kept = Vec::new();
    for (name, standing) in standings {
        let changes_until = match (changes.get(&name), standing) {
            (None, _) => None,
            (Some(found), Standing::Verified { .. }) => Some(until(&ours, name, found).await?),
            (Some(_), Standing::Unverified | Standing::Unfinished) => Some(name.taken()),
        };
        kept.push(Kept { name, standing, proven: proven.contains(&name), changes_until });
    }
    kept.sort_by_key(|kept| kept.name);
    Ok(kept)
}

/// How far the changes since a backup go: the last that was verified says it. Of what was only begun nothing more is known
/// than when it can have begun.
async fn until(
    repository: &Repository,
    name: FullName,
    found: &changes::StoredBatches,
) -> Result<Timestamp, ChangesError> {
    for batch in found.complete.iter().rev() {
        match changes::manifest(repository, *batch).await {
            Ok((batch, _)) => return Ok(batch.until),
            Err(ChangesError::Store(error)) => return Err(error.into()),
            Err(error) => tracing::warn!(%error, "a batch of changes is refused"),
        }
    }
    Ok(name.taken())
}

/// Manifests first, the last of them before all others: without it the rest is invalid.
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
    use raftsman_core::backup::{BatchName, Change, Event, Hashed, Lines, Manifest};

    use super::*;
    use crate::changes::End;
    use crate::fixtures::{about, locked_store, repository, signer};
    use crate::full::{self, TransferProgress};
    use crate::{Keys, RestoreTarget, Seals, point};

    const KEEP: Keep = Keep { last: 1, hourly: 1, daily: 2, weekly: 1, changes_s: 3600 };

    /// A snapshot as etcd sends it: pages, and their SHA-256 behind them.
    fn snapshot() -> Vec<u8> {
        let pages = vec![7_u8; 8192];
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &pages);
        [pages.as_slice(), hash.as_ref()].concat()
    }

    async fn backup(repository: &Repository, taken: Timestamp, revision: i64) -> Manifest {
        let seals = Seals { zstd: true, recipients: Vec::new() };
        let about = about(taken, revision, revision);
        let pieces = stream::iter([Ok::<_, std::io::Error>(snapshot().into())]);
        let hashed = async { Ok(Hashed { hash: 1, compacted: 0, keys: 1 }) };
        let progress = TransferProgress::default();
        let full = full::take(repository, &signer(), about, &seals, pieces, hashed, &progress).await.unwrap();
        let mut end = End::of(&full).unwrap();
        for at in 1..=3 {
            let mut lines = Lines::default();
            let event = Event::Put { key: b"k".to_vec(), value: b"v".to_vec(), lease: 0, ttl: 0 };
            lines.push(&Change { revision: revision + at, at: taken, events: vec![event] }).unwrap();
            end.write(repository, &signer(), ClusterId(7), &seals, &lines).await.unwrap();
        }
        full
    }

    async fn names(repository: &Repository) -> Vec<FullName> {
        full::list(&repository.store, &repository.layout).await.unwrap().into_iter().map(|(name, _)| name).collect()
    }

    #[tokio::test]
    async fn killed_anywhere_what_is_left_counts_or_does_not() {
        let keys = Keys::default();
        let begun: Timestamp = "2026-11-16T03:00:00Z".parse().unwrap();
        let now = begun + SignedDuration::from_hours(60);
        for removed in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let repository = repository(dir.path());
            let (store, layout) = (&repository.store, &repository.layout);
            for hour in 0..3 {
                backup(&repository, begun + SignedDuration::from_hours(hour), 10 * (hour + 1)).await;
            }
            let newest = backup(&repository, now - SignedDuration::from_mins(1), 50).await;
            let (pruned, doomed) = doomed(&repository, KEEP, None, now).await.unwrap();
            let paths: Vec<String> = doomed.into_iter().flat_map(|doomed| doomed.paths).collect();
            assert_eq!((pruned.fulls.len(), pruned.changes.len(), paths.len()), (2, 3, 24));
            // Nothing but a removal changes what is there: these are all moments.
            for path in &paths[..removed] {
                store.remove(path).await.unwrap();
            }
            // What is still there and has a manifest is whole, and the newest is always there with all changes.
            for manifest in repository.found().await.unwrap().verified.values() {
                full::verify(&repository, manifest, &keys, &TransferProgress::default()).await.unwrap();
                let (batches, _) = changes::since(&repository, manifest).await.unwrap();
                let way = raftsman_core::backup::chain(manifest, &batches, None).unwrap();
                assert_eq!(way.len(), batches.len(), "{removed}: no batch counts that leads nowhere");
            }
            let point = point::find(&repository, RestoreTarget::Newest, &[], &keys).await.unwrap();
            assert_eq!((point.full.about.name, point.last()), (newest.about.name, 53));
            // The next run finishes it.
            prune(&repository, KEEP, None, now, false).await.unwrap();
            assert_eq!(names(&repository).await.len(), 2, "{removed}");
            let changes = changes::list(store, &layout.changes(), layout).await.unwrap();
            assert_eq!(changes.keys().collect::<Vec<_>>(), [&newest.about.name], "{removed}");
            if removed == paths.len() {
                break;
            }
        }
    }

    /// Of two backups one object each is locked, the one that would go first: nothing else of them goes either.
    #[tokio::test]
    async fn what_is_locked_stays_whole_and_is_named() {
        let begun: Timestamp = "2026-11-16T03:00:00Z".parse().unwrap();
        let now = begun + SignedDuration::from_hours(60);
        let dir = tempfile::tempdir().unwrap();
        let repository = repository(dir.path());
        let (store, layout) = (&repository.store, &repository.layout);
        for hour in 0..3 {
            backup(&repository, begun + SignedDuration::from_hours(hour), 10 * (hour + 1)).await;
        }
        backup(&repository, now - SignedDuration::from_mins(1), 50).await;
        let shown = prune(&repository, KEEP, None, now, true).await.unwrap();
        let fulls: Vec<FullName> = shown.fulls.iter().copied().collect();
        let only_changes: Vec<FullName> = shown.changes.difference(&shown.fulls).copied().collect();
        let ([first, other], [base]) = (fulls.as_slice(), only_changes.as_slice()) else { panic!("{shown:?}") };
        let locked = [layout.manifest(*first), layout.batch_manifest(BatchName { base: *base, number: 3 })];
        let there = async || {
            let full = store.list(&layout.full(*first)).await.unwrap();
            (full, store.list(&layout.batches(*base)).await.unwrap())
        };
        let before = there().await;
        assert_eq!((before.0.len(), before.1.len()), (3, 6));

        let under_lock = locked_store(&repository, &locked, "Access Denied because object protected by object lock.");
        let pruned = prune(&under_lock, KEEP, None, now, false).await.unwrap();
        assert_eq!(pruned.locked, BTreeSet::from([*first, *base]));
        assert_eq!(pruned.fulls, BTreeSet::from([*other]));
        assert!(!pruned.changes.contains(base) && pruned.changes.contains(other), "{pruned:?}");
        assert_eq!(there().await, before);
        assert!(store.list(&layout.full(*other)).await.unwrap().is_empty());
        let found = repository.found().await.unwrap();
        full::verify(&repository, &found.verified[first], &Keys::default(), &TransferProgress::default())
            .await
            .unwrap();
        assert_eq!(changes::since(&repository, &found.verified[base]).await.unwrap().0.len(), 3);

        // Credentials that may not remove anything are an error, and no lock.
        let refusing = locked_store(&repository, &locked, "Access Denied");
        let refused = prune(&refusing, KEEP, None, now, false).await;
        assert!(matches!(refused, Err(PruneError::Store(StoreError::Failed { what: "remove", .. }))), "{refused:?}");
        assert_eq!(there().await, before);

        // Once the lock has ended, they go.
        let pruned = prune(&repository, KEEP, None, now, false).await.unwrap();
        assert_eq!((pruned.fulls, pruned.locked), (BTreeSet::from([*first]), BTreeSet::new()));
        assert_eq!(there().await, (Vec::new(), Vec::new()));
    }

    /// An attacker with write access adds manifests with names of the future, and of all hours that are kept.
    #[tokio::test]
    async fn what_is_forged_pushes_nothing_out_and_stays() {
        let begun: Timestamp = "2026-11-16T03:00:00Z".parse().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let repository = repository(dir.path());
        let mut real = Vec::new();
        for hour in 0..3 {
            real.push(backup(&repository, begun + SignedDuration::from_hours(hour), 10 * (hour + 1)).await);
        }
        let now = begun + SignedDuration::from_mins(150);
        let text = std::fs::read_to_string(dir.path().join(repository.layout.manifest(real[2].about.name))).unwrap();
        let mut forged = Vec::new();
        for number in 1..=6 {
            // Six of the future, and six that are only a little newer: junk, a moved manifest, one without a signature.
            for (ahead, what) in [(SignedDuration::from_hours(24 * 365), 0), (SignedDuration::from_secs(1), number % 3)]
            {
                let name = FullName::new(now + ahead * i32::try_from(number).unwrap(), 100 + number);
                let mut unsigned = real[2].clone();
                unsigned.about.name = name;
                let lie = match what {
                    0 => "junk".to_owned(),
                    1 => text.clone(),
                    _ => raftsman_core::backup::Signable::text(&unsigned, None).unwrap(),
                };
                repository.store.put_once(&repository.layout.manifest(name), lie.into()).await.unwrap();
                forged.push(name);
            }
        }
        let keep = Keep { hourly: 3, daily: 6, weekly: 6, ..KEEP };
        let pruned = prune(&repository, keep, Some(ClusterId(7)), now, false).await.unwrap();
        assert_eq!((pruned.fulls.len(), pruned.ignored.len()), (0, 12), "{pruned:?}");
        let left = names(&repository).await;
        assert!(
            real.iter().all(|full| left.contains(&full.about.name)) && forged.iter().all(|name| left.contains(name))
        );
        // Also with nothing to keep: the last stays.
        let keep = Keep { last: 2, hourly: 0, daily: 0, weekly: 0, changes_s: 0 };
        let pruned = prune(&repository, keep, Some(ClusterId(7)), now, false).await.unwrap();
        assert_eq!(pruned.fulls.into_iter().collect::<Vec<_>>(), [real[0].about.name]);
    }

    /// A genuine backup whose name is of the future, because a clock was wrong, is neither counted nor removed.
    #[tokio::test]
    async fn a_clock_that_was_ahead_pushes_nothing_out() {
        let begun: Timestamp = "2026-11-16T03:00:00Z".parse().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let repository = repository(dir.path());
        let ahead = backup(&repository, begun + SignedDuration::from_hours(24 * 365), 5).await;
        let before = backup(&repository, begun - SignedDuration::from_hours(24 * 365), 30).await;
        let real = backup(&repository, begun, 20).await;
        let keep = Keep { last: 1, hourly: 0, daily: 0, weekly: 0, changes_s: 0 };
        let pruned = prune(&repository, keep, Some(ClusterId(7)), begun, false).await.unwrap();
        // The newest by its revision stays, although its clock was behind, and the newest by its time.
        assert!(pruned.fulls.is_empty(), "{pruned:?}");
        assert_eq!(pruned.ignored.into_iter().collect::<Vec<_>>(), [ahead.about.name]);
        let mut expected = vec![before.about.name, real.about.name, ahead.about.name];
        expected.sort();
        assert_eq!(names(&repository).await, expected);
    }

    /// A slow read of the list of backups, while retention goes on.
    #[tokio::test]
    async fn what_retention_removes_during_a_read_is_not_damaged() {
        let (keys, progress) = (Keys::default(), TransferProgress::default());
        let dir = tempfile::tempdir().unwrap();
        let repository = repository(dir.path());
        let (store, layout) = (&repository.store, &repository.layout);
        let taken: Timestamp = "2026-11-16T03:00:00Z".parse().unwrap();
        let gone = backup(&repository, taken, 10).await;
        let damaged = backup(&repository, taken + SignedDuration::from_hours(1), 20).await;
        for path in objects(store, layout, &layout.full(gone.about.name)).await.unwrap() {
            store.remove(&path).await.unwrap();
        }
        store.remove(&layout.snapshot(damaged.about.name, damaged.coding)).await.unwrap();
        for (manifest, expected) in [(&gone, Some(None)), (&damaged, None)] {
            let name = manifest.about.name;
            let looked = full::verify(&repository, manifest, &keys, &progress).await;
            assert!(looked.is_err(), "{name}");
            let looked = full::unless_gone(&repository, name, looked).await;
            assert_eq!(looked.ok(), expected, "{name}");
        }
    }
}
