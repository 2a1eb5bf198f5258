//! A wish, and what is in a store → the full backup and the changes since that fulfil it.

use jiff::Timestamp;
use raftsman_backup::changes::{self, ChangesError};
use raftsman_backup::{Keys, full};
use raftsman_core::backup::{Batch, ChainError, FullName, Manifest, chain};

use crate::backup::{BackupError, StoreOf};

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
#[derive(Debug, Clone)]
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

    /// Finds it.
    pub async fn find(at: &StoreOf, wish: Wish, keys: &Keys) -> Result<Self, BackupError> {
        let complete: Vec<FullName> = full::list(&at.store, &at.layout)
            .await?
            .into_iter()
            .filter(|(_, counts)| *counts)
            .map(|(n, _)| n)
            .collect();
        let none = || BackupError::None { place: at.store.place().to_owned(), cluster: at.cluster.clone() };
        let newest = *complete.last().ok_or_else(none)?;
        let manifest =
            async |name| Ok::<_, BackupError>(full::manifest(&at.store, &at.layout, &at.cluster, name).await?);
        match wish {
            Wish::Backup(name) => Ok(Self { full: manifest(name).await?, batches: Vec::new(), revision: None }),
            Wish::Newest => {
                let full = manifest(newest).await?;
                let batches = chain(&full, &batches(at, &full).await?, None).map_err(ChangesError::from)?;
                Ok(Self { full, batches, revision: None })
            }
            Wish::Revision(revision) => {
                for name in complete.iter().rev().filter(|name| name.revision() <= revision) {
                    let full = manifest(*name).await?;
                    // What it surely does not hold more than.
                    if full.most() <= revision {
                        let batches =
                            chain(&full, &batches(at, &full).await?, Some(revision)).map_err(ChangesError::from)?;
                        return Ok(Self { full, batches, revision: Some(revision) });
                    }
                }
                Err(BackupError::TooEarly { oldest: *complete.first().unwrap_or(&newest) })
            }
            Wish::Moment(moment) => {
                for name in complete.iter().rev().filter(|name| name.taken() <= moment) {
                    if let Some(point) = Self::at_moment(at, manifest(*name).await?, moment, keys).await? {
                        return Ok(point);
                    }
                }
                Err(BackupError::TooEarly { oldest: *complete.first().unwrap_or(&newest) })
            }
        }
    }

    /// From this backup, unless it may hold what was written later.
    async fn at_moment(
        at: &StoreOf,
        full: Manifest,
        moment: Timestamp,
        keys: &Keys,
    ) -> Result<Option<Self>, BackupError> {
        let all = batches(at, &full).await?;
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
            let changes = changes::open(&at.store, &at.layout, batch, keys).await?;
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

async fn batches(at: &StoreOf, full: &Manifest) -> Result<Vec<Batch>, BackupError> {
    let name = full.about.name;
    let found = changes::list(&at.store, &at.layout.batches(name), &at.layout).await?;
    let complete = found.get(&name).map(|found| found.complete.clone()).unwrap_or_default();
    Ok(changes::read(&at.store, &at.layout, &complete).await?)
}
