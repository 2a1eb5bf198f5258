//! A place → objects in it that are written once, found, read and removed.

use std::fmt;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, WriteMultipart};

use crate::place::Place;

/// Large objects go in parts of this size: S3 takes 10,000 of them, each of at least 5 MiB.
const PART: usize = 8 << 20;
/// As many parts are on their way at once.
const IN_FLIGHT: usize = 3;

/// Why something could not be done in a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be used at all.
    #[error("the store {place} cannot be used: {source}")]
    Place {
        /// Which.
        place: String,
        /// Why.
        source: object_store::Error,
    },
    /// No such object.
    #[error("there is no {path} in {place}")]
    NotThere {
        /// Which.
        path: String,
        /// Where.
        place: String,
    },
    /// Another writer was first.
    #[error("{path} in {place} comes from another writer: objects are never written twice")]
    Taken {
        /// Which.
        path: String,
        /// Where.
        place: String,
    },
    /// It was written, and something else is there.
    #[error("{path} was written to {place}, and what is read there is something else: do not trust this store")]
    OtherBytes {
        /// Which.
        path: String,
        /// Where.
        place: String,
    },
    /// Larger than it can be.
    #[error("{path} in {place} has {bytes} bytes: it is none of raftsman's")]
    TooLarge {
        /// Which.
        path: String,
        /// Where.
        place: String,
        /// So many.
        bytes: u64,
    },
    /// The source of the bytes failed.
    #[error("{path} was not written: {source}")]
    Source {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A directory of a store on the disk cannot be made, or closed to others.
    #[error("cannot make {} readable for this user alone: {source}", path.display())]
    Private {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The store refused, or did not answer.
    #[error("cannot {what} {path} in {place}: {}", described(source))]
    Failed {
        /// What was tried.
        what: &'static str,
        /// With which object.
        path: String,
        /// Where.
        place: String,
        /// Why.
        source: object_store::Error,
    },
}

/// The innermost cause: the library repeats it in every layer.
fn described(error: &object_store::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = innermost.to_string();
    // Of the XML error page only its code matters.
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code);
    let hint = match (error, code) {
        (object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }, _)
        | (_, Some("AccessDenied" | "InvalidAccessKeyId" | "SignatureDoesNotMatch")) => {
            "; see whether the credentials are right, and may do that"
        }
        (_, Some("NoSuchBucket")) => "; make the bucket first",
        _ => "",
    };
    match code {
        Some(code) => format!("the store answers {code}{hint}"),
        None => format!("{text}{hint}"),
    }
}

/// Whether a store says that an object is locked, and not that these credentials may not remove anything.
fn is_locked(error: &object_store::Error) -> bool {
    let mut words = error.to_string();
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
        words.push_str(&source.to_string());
    }
    LOCKED.iter().any(|locked| words.contains(locked))
}

/// An object that was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredObject {
    /// Where it is.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// A store of backups.
#[derive(Clone)]
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    place: String,
    /// Where it is a directory: all that is made in it is for this user alone.
    directory: Option<PathBuf>,
}

/// What came of removing an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It is not there any more.
    Gone,
    /// The store keeps it, because it is locked: object lock, a retention policy, immutability.
    Locked,
}

/// What stores answer of a locked object: S3 and compatible APIs, Google Cloud Storage, Azure.
const LOCKED: [&str; 8] = [
    "object lock",
    "ObjectLock",
    "WORM",
    "retention",
    "Retention",
    "BlobImmutableDueToPolicy",
    "UnderLegalHold",
    "event-based hold",
];

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.place)
    }
}

impl Store {
    /// A connection to it. Nothing is asked of it yet.
    pub fn open(place: &Place) -> Result<Self, StoreError> {
        let inner = place.connect().map_err(|source| StoreError::Place { place: place.to_string(), source })?;
        let directory = match place {
            Place::Directory(path) => Some(path.clone()),
            Place::S3(_) | Place::Gcs(_) | Place::Azure(_) => None,
        };
        Ok(Self { inner, place: place.to_string(), directory })
    }

    /// For tests: the same place, behind a store that wraps it.
    #[cfg(test)]
    pub(crate) fn behind(self, what: impl FnOnce(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>) -> Self {
        let Self { inner, place, directory } = self;
        Self { inner: what(inner), place, directory }
    }

    /// Before an object is written: in a directory, those that lead to it are for this user alone.
    fn enclose(&self, path: &str) -> Result<(), StoreError> {
        let Some(root) = &self.directory else { return Ok(()) };
        let Some((above, _)) = path.rsplit_once('/') else { return Ok(()) };
        let path = root.join(above);
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(|source| StoreError::Private { path, source })
    }

    /// Once it is there.
    fn close(&self, path: &str) -> Result<(), StoreError> {
        let Some(root) = &self.directory else { return Ok(()) };
        let path = root.join(path);
        let closed = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600));
        closed.map_err(|source| StoreError::Private { path, source })
    }

    /// Where it is, for people.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Writes a small object, unless there is one, and reads it back. One that holds these very bytes is ours: only the
    /// reply was lost.
    pub async fn put_once(&self, path: &str, bytes: Bytes) -> Result<(), StoreError> {
        let options = PutOptions::from(PutMode::Create);
        self.enclose(path)?;
        let written = self.inner.put_opts(&Path::from(path), bytes.clone().into(), options).await;
        if written.is_ok() {
            self.close(path)?;
        }
        let (path, place) = (path.to_owned(), self.place.clone());
        let there = match written {
            Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => self.get(&path, bytes.len() as u64).await,
            Err(source) => return Err(StoreError::Failed { what: "write", path, place, source }),
        };
        match (written.is_ok(), there) {
            (_, Ok(there)) if there == bytes => Ok(()),
            (true, Ok(_) | Err(StoreError::TooLarge { .. })) => Err(StoreError::OtherBytes { path, place }),
            (false, Ok(_) | Err(StoreError::TooLarge { .. })) => Err(StoreError::Taken { path, place }),
            (_, Err(error)) => Err(error),
        }
    }

    /// A small object, whole. One of more than so many bytes is not read.
    pub async fn get(&self, path: &str, most: u64) -> Result<Bytes, StoreError> {
        let (bytes, pieces) = self.read(path).await?;
        if bytes > most {
            return Err(StoreError::TooLarge { path: path.to_owned(), place: self.place.clone(), bytes });
        }
        let mut whole = Vec::new();
        let mut pieces = pieces;
        while let Some(piece) = pieces.try_next().await? {
            // Whatever size it reported before.
            let bytes = (whole.len() + piece.len()) as u64;
            if bytes > most {
                return Err(StoreError::TooLarge { path: path.to_owned(), place: self.place.clone(), bytes });
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.into())
    }

    /// A large object, piece by piece, and its size.
    pub async fn read(&self, path: &str) -> Result<(u64, BoxStream<'static, Result<Bytes, StoreError>>), StoreError> {
        let failed = self.failed("read", path);
        let found = self.inner.get(&Path::from(path)).await.map_err(&failed)?;
        let bytes = found.meta.size;
        Ok((bytes, found.into_stream().map_err(failed).boxed()))
    }

    /// Writes a large object in parts while it arrives. It is there once all of it has come, or not at all.
    pub async fn upload(
        &self,
        path: &str,
        pieces: impl Stream<Item = std::io::Result<Bytes>>,
        stored: impl Fn(u64),
    ) -> Result<(), StoreError> {
        let failed = self.failed("write", path);
        self.enclose(path)?;
        let upload = self.inner.put_multipart(&Path::from(path)).await.map_err(&failed)?;
        let mut parts = WriteMultipart::new_with_chunk_size(upload, PART);
        let mut pieces = std::pin::pin!(pieces);
        while let Some(piece) = pieces.next().await {
            let wrong = match piece {
                Ok(piece) => {
                    let room = parts.wait_for_capacity(IN_FLIGHT).await;
                    stored(piece.len() as u64);
                    parts.put(piece);
                    room.map_err(&failed).err()
                }
                Err(source) => Some(StoreError::Source { path: path.to_owned(), source }),
            };
            if let Some(wrong) = wrong {
                // If the abort fails, too, it is left to the store's own rules for incomplete uploads.
                let _ = parts.abort().await;
                return Err(wrong);
            }
        }
        parts.finish().await.map(drop).map_err(failed)?;
        self.close(path)
    }

    /// All objects below this, sorted.
    pub async fn list(&self, prefix: &str) -> Result<Vec<StoredObject>, StoreError> {
        let found = self.inner.list(Some(&Path::from(prefix)));
        let found = found.map_ok(|meta| StoredObject { path: meta.location.to_string(), bytes: meta.size });
        let mut found: Vec<StoredObject> = found.try_collect().await.map_err(self.failed("list", prefix))?;
        found.sort();
        Ok(found)
    }

    /// Removes an object. One that is not there is removed already; one that is locked
    /// stays.
    pub async fn remove(&self, path: &str) -> Result<Removed, StoreError> {
        match self.inner.delete(&Path::from(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(Removed::Gone),
            Err(source) if is_locked(&source) => Ok(Removed::Locked),
            Err(source) => Err(self.failed("remove", path)(source)),
        }
    }

    fn failed(&self, what: &'static str, path: &str) -> impl Fn(object_store::Error) -> StoreError + Send + 'static {
        let (path, place) = (path.to_owned(), self.place.clone());
        move |source| match source {
            object_store::Error::NotFound { .. } if what == "read" => {
                StoreError::NotThere { path: path.clone(), place: place.clone() }
            }
            source => StoreError::Failed { what, path: path.clone(), place: place.clone(), source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &std::path::Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// All data of a cluster is in a backup: in a directory, others of the machine cannot read it.
    #[tokio::test]
    async fn what_is_in_a_directory_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&Place::Directory(dir.path().to_owned())).unwrap();
        store.put_once("a/b/small", "x".into()).await.unwrap();
        let pieces = futures::stream::iter([Ok(Bytes::from_static(b"large"))]);
        store.upload("a/c/large", pieces, |_| {}).await.unwrap();
        for below in ["a", "a/b", "a/c"] {
            assert_eq!(mode(&dir.path().join(below)), 0o700, "{below}");
        }
        for file in ["a/b/small", "a/c/large"] {
            assert_eq!(mode(&dir.path().join(file)), 0o600, "{file}");
        }
    }

    #[test]
    fn a_lock_is_not_a_lack_of_rights() {
        let said = |text: &str| object_store::Error::PermissionDenied { path: "x".to_owned(), source: text.into() };
        for locked in [
            "<Code>AccessDenied</Code><Message>Access Denied because object protected by object lock.</Message>",
            "Object 'b/o' is subject to bucket's retention policy or object retention and cannot be deleted",
            "<Code>BlobImmutableDueToPolicy</Code>",
        ] {
            assert!(is_locked(&said(locked)), "{locked}");
        }
        assert!(!is_locked(&said("<Code>AccessDenied</Code><Message>Access Denied</Message>")));
    }
}
