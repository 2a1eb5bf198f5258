//! etcd's snapshot as it arrives → a full backup that was read back; a full backup → its snapshot, checked.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use aws_lc_rs::rand;
use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use raftsman_api::hex;
use raftsman_core::backup::{About, FullName, Hashed, Layout, Manifest, ManifestError, Object, Stored};
use serde_json::json;
use tokio::task::{JoinError, spawn_blocking};

use crate::MOST_TEXT;
use crate::pipe::{self, Feeder};
use crate::repository::Repository;
use crate::seal::{self, Hashing, Keys, SealError, Seals};
use crate::sign::{SignError, Signer};
use crate::snapshot::{Check, SnapshotError};
use crate::store::{Store, StoreError};

/// Why there is no backup, or why it is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum FullError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record under another name than its own.
    #[error("what is at {0} is the record of another drill")]
    Misplaced(String),
    /// etcd stopped in the middle.
    #[error("etcd did not say what is in it: {0}")]
    Etcd(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What came is no snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Its object could not be made or opened.
    #[error("the backup `{name}`: {source}")]
    Seal {
        /// Which.
        name: FullName,
        /// Why.
        source: SealError,
    },
    /// What is in the store is something else than was written.
    #[error(
        "the backup `{name}` is damaged: its {what} is {found}, and should be {expected}; it is invalid; choose another"
    )]
    Damaged {
        /// Which.
        name: FullName,
        /// What is wrong with it.
        what: &'static str,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// It was restored, and is not what it should be.
    #[error("the backup `{name}` was restored, and holds {} keys with the hash {:x} instead of {} with {:x}: it is \
        invalid; choose another", found.keys, found.hash, expected.keys, expected.hash)]
    OtherContents {
        /// Which.
        name: FullName,
        /// What etcd said when it was made.
        expected: Hashed,
        /// What etcd says now.
        found: Hashed,
    },
    /// Its manifest is invalid.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// It has no valid signature of a trusted key.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// It is another cluster's.
    #[error("the backup `{name}` is of the cluster `{found}`, not of `{expected}`: it has been moved")]
    OtherCluster {
        /// Which.
        name: FullName,
        /// Whose it should be.
        expected: String,
        /// Whose it is.
        found: String,
    },
    /// It was begun and never finished.
    #[error("there is no valid backup `{name}` in {place}: `raftsman backup list` lists those that there are")]
    Incomplete {
        /// Which.
        name: FullName,
        /// Where.
        place: String,
    },
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random,
    /// The manifest cannot be serialized.
    #[error("the manifest cannot be written: {0}")]
    Text(#[from] serde_json::Error),
    /// A bug of this program.
    #[error("the work on a backup ended unexpectedly: {0}")]
    Ended(#[from] JoinError),
}

impl FullError {
    /// Whether the fault is the reader's, not the backup's: the store is unreachable, or the key is wrong.
    pub fn is_ours(&self) -> bool {
        match self {
            Self::Store(error) => matches!(error, StoreError::Failed { .. } | StoreError::Place { .. }),
            Self::Seal { source, .. } => {
                matches!(source, SealError::NoKey | SealError::Decrypt(age::DecryptError::NoMatchingKeys))
            }
            _ => false,
        }
    }
}

/// How far a backup is, for progress displays.
#[derive(Debug, Default)]
pub struct TransferProgress {
    received: AtomicU64,
    pub(crate) stored: AtomicU64,
    pub(crate) checked: AtomicU64,
}

impl TransferProgress {
    /// Bytes that etcd has sent.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Bytes of the object on their way to the store.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// Bytes of the object that were read back.
    pub fn checked(&self) -> u64 {
        self.checked.load(Ordering::Relaxed)
    }
}

/// Makes a backup of the snapshot stream that etcd sends. It is valid when this returns, and not before.
///
/// `hashed` is what etcd says of its own keys at the backup's revision; it is asked meanwhile, because it takes a while.
pub async fn take<E: std::error::Error + Send + Sync + 'static>(
    repository: &Repository,
    signer: &Signer,
    about: About,
    seals: &Seals,
    snapshot: impl Stream<Item = Result<Bytes, E>>,
    hashed: impl Future<Output = Result<Hashed, E>>,
    progress: &TransferProgress,
) -> Result<Manifest, FullError> {
    let Repository { store, layout, .. } = repository;
    let name = about.name;
    let coding = seals.coding();
    let path = layout.snapshot(name, coding);
    claim(store, layout, &about).await?;

    let (feeder, inlet) = pipe::inward();
    let (mut outlet, pieces) = pipe::outward();
    let seals = seals.clone();
    let sealing = spawn_blocking(move || {
        let object = seal::seal(inlet, &mut outlet, &seals)?;
        outlet.end()?;
        Ok(object)
    });
    let count = |bytes| {
        progress.stored.fetch_add(bytes, Ordering::Relaxed);
    };
    let sending = Instant::now();
    let uploading = store.upload(&path, pieces, count);
    let (hashed, fed, uploaded) = futures::join!(hashed, feed(snapshot, feeder, progress), uploading);
    let sealed = sealing.await?.map_err(|source| FullError::Seal { name, source });
    // The first error made the others stop with errors of their own.
    let (snapshot, object) = match (fed, uploaded, sealed) {
        (Err(Fed::Wrong(error)), ..) => return Err(error),
        (_, Err(error @ (StoreError::Failed { .. } | StoreError::Place { .. })), _) => return Err(error.into()),
        (_, _, Err(error)) => return Err(error),
        (_, Err(error), _) => return Err(error.into()),
        (Err(Fed::ReaderGone), ..) => {
            let source = SealError::Stream(io::ErrorKind::BrokenPipe.into());
            return Err(FullError::Seal { name, source });
        }
        (Ok(snapshot), Ok(()), Ok(object)) => (snapshot, object),
    };
    let hashed = hashed.map_err(|error| FullError::Etcd(Box::new(error)))?;
    let (sent, reading) = (sending.elapsed(), Instant::now());
    same(name, &object, &read_back(store, &path, progress).await?)?;
    tracing::debug!(backup = %name, ?sent, read_back = ?reading.elapsed(), "all of it is there");

    let (format, finished) = (Manifest::FORMAT, Timestamp::now());
    let manifest = Manifest { format, about, finished, hashed, snapshot, object, coding };
    store.put_once(&layout.manifest(name), signer.text(&manifest)?.into()).await?;
    Ok(manifest)
}

/// Reserves the name for one process: not every store makes the end of a multipart upload conditional.
async fn claim(store: &Store, layout: &Layout, about: &About) -> Result<(), FullError> {
    let mut random = [0; 16];
    rand::fill(&mut random).map_err(|_| FullError::Random)?;
    let mark = json!({ "member": about.member, "begun": about.begun, "mark": hex::encode(&random) });
    Ok(store.put_once(&layout.begun(about.name), format!("{mark}\n").into()).await?)
}

enum Fed {
    Wrong(FullError),
    ReaderGone,
}

/// The end is passed on only when the snapshot is complete and its hash is right.
async fn feed<E: std::error::Error + Send + Sync + 'static>(
    snapshot: impl Stream<Item = Result<Bytes, E>>,
    feeder: Feeder,
    progress: &TransferProgress,
) -> Result<Stored, Fed> {
    let mut check = Check::default();
    let mut snapshot = std::pin::pin!(snapshot);
    while let Some(piece) = snapshot.next().await {
        let piece = piece.map_err(|error| Fed::Wrong(FullError::Etcd(Box::new(error))))?;
        progress.received.fetch_add(piece.len() as u64, Ordering::Relaxed);
        check.take(&piece);
        if !feeder.feed(piece).await {
            return Err(Fed::ReaderGone);
        }
    }
    let stored = check.finish().map_err(|error| Fed::Wrong(error.into()))?;
    match feeder.end().await {
        true => Ok(stored),
        false => Err(Fed::ReaderGone),
    }
}

pub(crate) async fn read_back(store: &Store, path: &str, progress: &TransferProgress) -> Result<Stored, StoreError> {
    let (_, mut pieces) = store.read(path).await?;
    let mut tally = Hashing::new(());
    while let Some(piece) = pieces.try_next().await? {
        progress.checked.fetch_add(piece.len() as u64, Ordering::Relaxed);
        tally.add(&piece);
    }
    Ok(tally.stored())
}

pub(crate) fn same(name: FullName, expected: &Stored, found: &Stored) -> Result<(), FullError> {
    let damaged = |what, expected: &dyn ToString, found: &dyn ToString| {
        Err(FullError::Damaged { name, what, expected: expected.to_string(), found: found.to_string() })
    };
    match (expected.bytes == found.bytes, expected.sha256 == found.sha256) {
        (true, true) => Ok(()),
        (false, _) => damaged("size in bytes", &expected.bytes, &found.bytes),
        (true, false) => damaged("SHA-256", &expected.sha256, &found.sha256),
    }
}

/// Compares the restored contents with what etcd reported when the backup was made.
pub fn holds(manifest: &Manifest, found: Hashed) -> Result<(), FullError> {
    match found == manifest.hashed {
        true => Ok(()),
        false => Err(FullError::OtherContents { name: manifest.about.name, expected: manifest.hashed, found }),
    }
}

/// The result of reading a listed backup; nothing when retention has removed it since.
pub async fn unless_gone<T>(
    repository: &Repository,
    name: FullName,
    looked: Result<T, FullError>,
) -> Result<Option<T>, FullError> {
    let Err(error) = looked else { return looked.map(Some) };
    // A removal begins with the manifest.
    match repository.store.get(&repository.layout.manifest(name), MOST_TEXT).await {
        Err(StoreError::NotThere { .. }) => Ok(None),
        _ => Err(error),
    }
}

/// How deep a backup was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Its object is the one that was written.
    Object,
    /// And what is in it is what etcd sent.
    Snapshot,
}

/// Reads all of a backup, and verifies as deep as it can: an encrypted snapshot only with a key.
pub async fn verify(
    repository: &Repository,
    manifest: &Manifest,
    keys: &Keys,
    progress: &TransferProgress,
) -> Result<Depth, FullError> {
    if manifest.coding.age && keys.0.is_empty() {
        let path = repository.layout.snapshot(manifest.about.name, manifest.coding);
        same(manifest.about.name, &manifest.object, &read_back(&repository.store, &path, progress).await?)?;
        return Ok(Depth::Object);
    }
    fetch(repository, manifest, keys, progress, io::sink()).await.map(|_| Depth::Snapshot)
}

/// Writes a backup's snapshot to `W`. The caller must discard what was written if this returns an error.
pub async fn fetch<W: Write + Send + 'static>(
    repository: &Repository,
    manifest: &Manifest,
    keys: &Keys,
    progress: &TransferProgress,
    to: W,
) -> Result<W, FullError> {
    let (name, coding) = (manifest.about.name, manifest.coding);
    let (bytes, mut pieces) = repository.store.read(&repository.layout.snapshot(name, coding)).await?;
    if bytes != manifest.object.bytes {
        let (expected, found) = (manifest.object.bytes.to_string(), bytes.to_string());
        return Err(FullError::Damaged { name, what: "size in bytes", expected, found });
    }
    let (feeder, inlet) = pipe::inward();
    let (keys, most) = (keys.clone(), manifest.snapshot.bytes);
    let opening = spawn_blocking(move || {
        let mut checked = Checked { to, check: Check::default() };
        let object = seal::open(inlet, &mut checked, coding, &keys, most)?;
        checked.to.flush()?;
        Ok((object, checked))
    });
    let feeding = async move {
        while let Some(piece) = pieces.try_next().await? {
            progress.checked.fetch_add(piece.len() as u64, Ordering::Relaxed);
            if !feeder.feed(piece).await {
                return Ok(());
            }
        }
        feeder.end().await;
        Ok::<_, StoreError>(())
    };
    let (fed, opened) = futures::join!(feeding, opening);
    fed?;
    let (object, checked) = opened?.map_err(|source| FullError::Seal { name, source })?;
    same(name, &manifest.object, &object)?;
    same(name, &manifest.snapshot, &checked.check.finish()?)?;
    Ok(checked.to)
}

struct Checked<W> {
    to: W,
    check: Check,
}

impl<W: Write> Write for Checked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let many = self.to.write(bytes)?;
        self.check.take(&bytes[..many]);
        Ok(many)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The names of the full backups of a cluster, oldest first, and whether each has a manifest, which is not read.
pub async fn list(store: &Store, layout: &Layout) -> Result<Vec<(FullName, bool)>, StoreError> {
    let mut found = BTreeMap::new();
    for object in store.list(&layout.fulls()).await? {
        match layout.object(&object.path) {
            Some((Object::Manifest(name), _)) => drop(found.insert(name, true)),
            Some((Object::Snapshot(name) | Object::Begun(name), _)) => drop(found.entry(name).or_insert(false)),
            Some((Object::Batch(_) | Object::BatchManifest(_), _)) | None => {}
        }
    }
    Ok(found.into_iter().collect())
}
