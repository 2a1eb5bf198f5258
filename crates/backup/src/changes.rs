//! Changes since a full backup → a batch in the store that names the one before; batches in the store → changes, checked.

use std::collections::BTreeMap;

use crate::repository::Repository;
use crate::sign::{SignError, Signer};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use raftsman_core::backup::{
    Batch, BatchName, ChainError, Change, FullName, Layout, Lines, Manifest, ManifestError, Object, Stored,
};
use raftsman_core::observed::ClusterId;

use crate::MOST_TEXT;
use crate::seal::{self, Hashing, Keys, SealError, Seals};
use crate::store::{Store, StoreError};

/// Manifests that are read at the same time.
const AT_A_TIME: usize = 16;

/// Why changes are not in the store, or are not what they should be.
#[derive(Debug, thiserror::Error)]
pub enum ChangesError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A manifest is invalid.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// They have no valid signature of a trusted key.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// No number is left.
    #[error(
        "there is a batch {highest} of changes since `{base}`, which raftsman did not write: no number is left after it"
    )]
    NoNumber {
        /// Since when.
        base: FullName,
        /// The highest.
        highest: u64,
    },
    /// They do not reach the requested point.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The object could not be made or opened.
    #[error("the batch {} of changes since `{}`: {source}", batch.number, batch.base)]
    Seal {
        /// Which.
        batch: BatchName,
        /// Why.
        source: SealError,
    },
    /// It holds other bytes, or other changes, than its manifest says.
    #[error(
        "the batch {} of changes since `{}` is damaged: {what}; nothing from it on can be restored", batch.number, batch.base
    )]
    Damaged {
        /// Which.
        batch: BatchName,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A bug of this program.
    #[error("a batch cannot be written: {0}")]
    Text(#[from] serde_json::Error),
}

/// Where the changes since a full backup end in the store: the next batch begins there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Since when.
    pub base: FullName,
    /// The last revision.
    pub revision: i64,
    /// The cluster's revision when the watch began: changes up to here were seen after the fact.
    pub late: i64,
    after: String,
    next: u64,
}

impl End {
    /// Right after a full backup: no changes have been stored since.
    pub fn of(full: &Manifest) -> Result<Self, ChangesError> {
        let base = full.about.name;
        Ok(Self { base, revision: base.revision(), late: 0, after: full.check()?, next: 1 })
    }

    /// Where the previous writer of changes ended.
    pub async fn find(repository: &Repository, full: &Manifest) -> Result<Self, ChangesError> {
        let (batches, highest) = since(repository, full).await?;
        let mut end = Self { next: highest + 1, ..Self::of(full)? };
        if let Some(last) = raftsman_core::backup::chain(full, &batches, None)?.last() {
            (end.revision, end.after) = (last.to, last.check()?);
        }
        Ok(end)
    }

    /// Writes a batch after it. It is valid when this returns, and not before.
    pub async fn write(
        &mut self,
        repository: &Repository,
        signer: &Signer,
        cluster_id: ClusterId,
        seals: &Seals,
        lines: &Lines,
    ) -> Result<(), ChangesError> {
        let Some((to, until)) = lines.last() else { return Ok(()) };
        let Repository { store, layout, .. } = repository;
        let name = BatchName { base: self.base, number: self.next };
        if name.number > BatchName::MOST {
            return Err(ChangesError::NoNumber { base: self.base, highest: self.next - 1 });
        }
        // Also if the write fails: an object of this number may exist by then.
        self.next += 1;
        let mut bytes = Vec::new();
        let object =
            seal::seal(lines.text(), &mut bytes, seals).map_err(|source| ChangesError::Seal { batch: name, source })?;
        let coding = seals.coding();
        store.put_once(&layout.batch(name, coding), bytes.into()).await?;
        let batch = Batch {
            format: Manifest::FORMAT,
            base: self.base,
            number: name.number,
            cluster_id,
            after: self.after.clone(),
            from: self.revision,
            to,
            until,
            late: Some(self.late).filter(|late| *late > self.revision),
            lines: stored(lines.text()),
            object,
            coding,
        };
        store.put_once(&layout.batch_manifest(name), signer.text(&batch)?.into()).await?;
        (self.revision, self.after) = (to, batch.check()?);
        Ok(())
    }
}

fn stored(bytes: &[u8]) -> Stored {
    let mut tally = Hashing::new(());
    tally.add(bytes);
    tally.stored()
}

/// What there is of the changes since one backup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredBatches {
    /// Batches that have a manifest, in order.
    pub complete: Vec<BatchName>,
    /// The highest number that a writer has used.
    pub highest: u64,
}

/// The changes below this path, by the backup that they are since.
pub async fn list(store: &Store, path: &str, layout: &Layout) -> Result<BTreeMap<FullName, StoredBatches>, StoreError> {
    let mut found: BTreeMap<FullName, StoredBatches> = BTreeMap::new();
    for object in store.list(path).await? {
        let (batch, counts) = match layout.object(&object.path) {
            Some((Object::BatchManifest(batch), _)) => (batch, true),
            Some((Object::Batch(batch), _)) => (batch, false),
            _ => continue,
        };
        let one = found.entry(batch.base).or_default();
        one.highest = one.highest.max(batch.number);
        one.complete.extend(counts.then_some(batch));
    }
    Ok(found)
}

/// The manifest of a batch, verified, and its text.
pub(crate) async fn manifest(repository: &Repository, name: BatchName) -> Result<(Batch, Bytes), ChangesError> {
    let text = repository.store.get(&repository.layout.batch_manifest(name), MOST_TEXT).await?;
    let what = || format!("the batch {} of changes since `{}`", name.number, name.base);
    let batch = repository.trust.verify(what, Batch::read(name, &text)?)?;
    repository.trust.coding(what, batch.coding)?;
    Ok((batch, text))
}

/// The manifests of these batches.
pub async fn read(repository: &Repository, names: &[BatchName]) -> Result<Vec<Batch>, ChangesError> {
    let one = async |name: BatchName| Ok(manifest(repository, name).await?.0);
    futures::stream::iter(names.iter().copied()).map(one).buffered(AT_A_TIME).try_collect().await
}

/// The valid batches since a full backup, and the highest number that was used.
pub async fn since(repository: &Repository, full: &Manifest) -> Result<(Vec<Batch>, u64), ChangesError> {
    let (name, layout) = (full.about.name, &repository.layout);
    let StoredBatches { complete, highest } =
        list(&repository.store, &layout.batches(name), layout).await?.remove(&name).unwrap_or_default();
    Ok((read(repository, &complete).await?, highest))
}

/// A batch's bytes, as they were written.
pub(crate) async fn object(repository: &Repository, batch: &Batch) -> Result<Bytes, ChangesError> {
    let path = repository.layout.batch(batch.name(), batch.coding);
    let bytes = repository.store.get(&path, batch.object.bytes).await?;
    match stored(&bytes) == batch.object {
        true => Ok(bytes),
        false => Err(ChangesError::Damaged { batch: batch.name(), what: "its bytes are not those that were written" }),
    }
}

/// What is in a batch.
#[derive(Debug)]
pub struct Opened {
    /// As it was written, a line a change.
    pub lines: Vec<u8>,
    /// Decoded.
    pub changes: Vec<Change>,
}

/// What is in a batch, all of it checked.
pub async fn open(repository: &Repository, batch: &Batch, keys: &Keys) -> Result<Opened, ChangesError> {
    let name = batch.name();
    let damaged = |what| ChangesError::Damaged { batch: name, what };
    let bytes = object(repository, batch).await?;
    let mut lines = Vec::new();
    seal::open(bytes.as_ref(), &mut lines, batch.coding, keys, batch.lines.bytes)
        .map_err(|source| ChangesError::Seal { batch: name, source })?;
    if stored(&lines) != batch.lines {
        return Err(damaged("what is in it is not what was written"));
    }
    let changes = Lines::read(&lines)?;
    // etcd leaves out no revision that changed a key, and nothing else makes one.
    let expected = (batch.from + 1)..=batch.to;
    match changes.iter().map(|change| change.revision).eq(expected) {
        true => Ok(Opened { lines, changes }),
        false => Err(damaged("a revision is missing in it")),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use raftsman_core::backup::{Coding, Event, Hashed};

    use super::*;
    use crate::fixtures::{about, repository, signer};

    fn full() -> Manifest {
        let begun: Timestamp = "2026-11-16T03:00:00Z".parse().unwrap();
        let stored = Stored { bytes: 1, sha256: "aa".to_owned() };
        let about = about(begun, 10, 12);
        let hashed = Hashed { hash: 1, compacted: 2, keys: 3 };
        let (format, coding) = (Manifest::FORMAT, Coding::default());
        Manifest { format, about, finished: begun, hashed, snapshot: stored.clone(), object: stored, coding }
    }

    fn lines(revisions: std::ops::RangeInclusive<i64>) -> Lines {
        let mut lines = Lines::default();
        for revision in revisions {
            let event = Event::Put { key: b"k".to_vec(), value: revision.to_string().into(), lease: 0, ttl: 0 };
            lines.push(&Change { revision, at: Timestamp::UNIX_EPOCH, events: vec![event] }).unwrap();
        }
        lines
    }

    #[tokio::test]
    async fn the_next_writer_continues_where_the_last_one_ended() {
        let dir = tempfile::tempdir().unwrap();
        let repository = repository(dir.path());
        let (store, layout) = (&repository.store, &repository.layout);
        let (full, id) = (full(), ClusterId(7));
        let seals = Seals { zstd: true, recipients: Vec::new() };
        let mut end = End::find(&repository, &full).await.unwrap();
        assert_eq!(end, End::of(&full).unwrap());
        end.write(&repository, &signer(), id, &seals, &lines(11..=15)).await.unwrap();
        end.write(&repository, &signer(), id, &seals, &Lines::default()).await.unwrap();
        // A writer dies before it writes the manifest.
        let half = BatchName { base: full.about.name, number: 2 };
        store.put_once(&layout.batch(half, seals.coding()), "half".into()).await.unwrap();
        let mut next = End::find(&repository, &full).await.unwrap();
        assert_eq!((next.revision, next.next), (15, 3));
        next.write(&repository, &signer(), id, &seals, &lines(16..=16)).await.unwrap();
        // The earlier writer is still alive, and has not seen it: its number is taken.
        let refused = end.write(&repository, &signer(), id, &seals, &lines(16..=17)).await;
        assert!(matches!(refused, Err(ChangesError::Store(StoreError::Taken { .. }))), "{refused:?}");

        let found = list(store, &layout.changes(), layout).await.unwrap();
        let found = &found[&full.about.name];
        assert_eq!((found.highest, found.complete.len()), (3, 2));
        let batches = read(&repository, &found.complete).await.unwrap();
        let way = raftsman_core::backup::chain(&full, &batches, None).unwrap();
        let mut revisions = Vec::new();
        for batch in &way {
            revisions
                .extend(open(&repository, batch, &Keys::default()).await.unwrap().changes.iter().map(|c| c.revision));
        }
        assert_eq!(revisions, [11, 12, 13, 14, 15, 16]);

        let path = dir.path().join(layout.batch(way[0].name(), way[0].coding));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let refused = open(&repository, &way[0], &Keys::default()).await;
        assert!(matches!(refused, Err(ChangesError::Damaged { .. })), "{refused:?}");
    }

    /// An attacker puts batches there: none of them is taken for a change, and numbers do not run out unnoticed.
    #[tokio::test]
    async fn a_forged_batch_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let repository = repository(dir.path());
        let (full, id) = (full(), ClusterId(7));
        let seals = Seals { zstd: true, recipients: Vec::new() };
        let other = Signer::new(&[9; 32]).unwrap();
        let mut end = End::of(&full).unwrap();
        end.write(&repository, &other, id, &seals, &lines(11..=15)).await.unwrap();
        let refused = End::find(&repository, &full).await;
        assert!(matches!(refused, Err(ChangesError::Sign(SignError::OtherKey { .. }))), "{refused:?}");
        let last = BatchName { base: full.about.name, number: BatchName::MOST };
        let mut end = End { next: BatchName::MOST + 1, ..End::of(&full).unwrap() };
        repository.store.put_once(&repository.layout.batch(last, seals.coding()), "x".into()).await.unwrap();
        let refused = end.write(&repository, &signer(), id, &seals, &lines(11..=12)).await;
        assert!(matches!(refused, Err(ChangesError::NoNumber { .. })), "{refused:?}");
    }

    #[tokio::test]
    async fn a_batch_that_leaves_something_out_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let repository = repository(dir.path());
        let (store, layout) = (&repository.store, &repository.layout);
        let mut end = End::of(&full()).unwrap();
        let seals = Seals { zstd: false, recipients: Vec::new() };
        end.write(&repository, &signer(), ClusterId(7), &seals, &lines(12..=13)).await.unwrap();
        let found = list(store, &layout.changes(), layout).await.unwrap();
        let batches = read(&repository, &found[&end.base].complete).await.unwrap();
        let refused = open(&repository, &batches[0], &Keys::default()).await;
        assert!(matches!(refused, Err(ChangesError::Damaged { .. })), "{refused:?}");
    }
}
