//! A wish, and what is in a store → the full backup and the changes since that fulfil it.

use jiff::Timestamp;
use raftsman_core::backup::{Batch, ChainError, FullName, Layout, Manifest, chain};
use raftsman_core::spec::Name;
use serde::{Deserialize, Serialize};

use crate::changes::{self, ChangesError};
use crate::full::{self, FullError};
use crate::seal::Keys;
use crate::store::{Store, StoreError};

/// Why a wish cannot be fulfilled.
#[derive(Debug, thiserror::Error)]
pub enum PointError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A full backup.
    #[error(transparent)]
    Full(#[from] FullError),
    /// Changes since one.
    #[error(transparent)]
    Changes(#[from] ChangesError),
    /// There is none at all.
    #[error("{place} holds no backup of `{cluster}` that counts: make one with `raftsman backup now`")]
    None {
        /// Where.
        place: String,
        /// Whose.
        cluster: Name,
    },
    /// Before all that there is.
    #[error(
        "no backup is old enough: the oldest is `{oldest}`, and everything from the moment on that it was made can be restored"
    )]
    TooEarly {
        /// The oldest.
        oldest: FullName,
    },
}

/// What somebody wants to have back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// As much as there is.
    Newest,
    /// This full backup, as it is.
    Backup(FullName),
    /// Everything up to this revision.
    Revision(i64),
    /// Everything up to this moment.
    Moment(Timestamp),
}

/// What fulfils a wish.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    /// The full backup.
    pub full: Manifest,
    /// The changes since, in order.
    pub batches: Vec<Batch>,
    /// Changes after this revision are left out; as it is when there is none.
    pub revision: Option<i64>,
}

impl Point {
    /// The last revision that there will be, as far as it is known before it is tried.
    pub fn last(&self) -> i64 {
        let changed = self.batches.last().map_or(0, |batch| batch.to);
        self.revision.unwrap_or_else(|| changed.max(self.full.about.name.revision()))
    }

    /// When the last change was made that is in it, as far as it is known.
    pub fn at(&self) -> Timestamp {
        self.batches.last().map_or(self.full.about.begun, |batch| batch.until)
    }

    /// Whether some of it can be read only with a key.
    pub fn is_encrypted(&self) -> bool {
        self.full.coding.age || self.batches.iter().any(|batch| batch.coding.age)
    }

    /// Finds it.
    pub async fn find(
        store: &Store,
        layout: &Layout,
        cluster: &Name,
        wish: Wish,
        keys: &Keys,
    ) -> Result<Self, PointError> {
        let complete = full::complete(store, layout).await?;
        let none = || PointError::None { place: store.place().to_owned(), cluster: cluster.clone() };
        let newest = *complete.last().ok_or_else(none)?;
        let manifest = async |name| Ok::<_, PointError>(full::manifest(store, layout, cluster, name).await?);
        let batches = async |full| Ok::<_, PointError>(changes::since(store, layout, full).await?.0);
        match wish {
            Wish::Backup(name) => Ok(Self { full: manifest(name).await?, batches: Vec::new(), revision: None }),
            Wish::Newest => {
                let full = manifest(newest).await?;
                let batches = chain(&full, &batches(&full).await?, None).map_err(ChangesError::from)?;
                Ok(Self { full, batches, revision: None })
            }
            Wish::Revision(revision) => {
                for name in complete.iter().rev().filter(|name| name.revision() <= revision) {
                    let full = manifest(*name).await?;
                    // What it surely does not hold more than.
                    if full.most() <= revision {
                        let batches =
                            chain(&full, &batches(&full).await?, Some(revision)).map_err(ChangesError::from)?;
                        return Ok(Self { full, batches, revision: Some(revision) });
                    }
                }
                Err(PointError::TooEarly { oldest: *complete.first().unwrap_or(&newest) })
            }
            Wish::Moment(moment) => {
                for name in complete.iter().rev().filter(|name| name.taken() <= moment) {
                    if let Some(point) = Self::at_moment(store, layout, manifest(*name).await?, moment, keys).await? {
                        return Ok(point);
                    }
                }
                Err(PointError::TooEarly { oldest: *complete.first().unwrap_or(&newest) })
            }
        }
    }

    /// From this backup, unless it may hold what was written later.
    async fn at_moment(
        store: &Store,
        layout: &Layout,
        full: Manifest,
        moment: Timestamp,
        keys: &Keys,
    ) -> Result<Option<Self>, PointError> {
        let (all, _) = changes::since(store, layout, &full).await?;
        let whole = match chain(&full, &all, None) {
            // What is whole may reach far enough.
            Err(ChainError::Gap { last, .. }) => chain(&full, &all, Some(last)).map_err(ChangesError::from)?,
            chain => chain.map_err(ChangesError::from)?,
        };
        let mut revision = full.about.name.revision();
        for batch in &whole {
            if batch.until <= moment {
                revision = batch.to;
                continue;
            }
            let changes = changes::open(store, layout, batch, keys).await?.changes;
            let last = changes.iter().rev().find(|change| change.at <= moment);
            revision = last.map_or(revision, |change| change.revision);
            break;
        }
        if revision >= full.most() {
            let batches = whole.into_iter().filter(|batch| batch.from < revision).collect();
            return Ok(Some(Self { full, batches, revision: Some(revision) }));
        }
        // Nothing came after it, or nobody wrote it down.
        let all_before = full.finished <= moment && revision == full.about.name.revision();
        Ok(all_before.then(|| Self { full, batches: Vec::new(), revision: None }))
    }
}
