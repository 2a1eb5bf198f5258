//! A backup in a store → the same in another one, byte for byte, read back there.

use std::sync::atomic::Ordering;

use crate::repository::Repository;
use futures::TryStreamExt as _;
use raftsman_core::backup::{Batch, Layout, Manifest};

use crate::MOST_TEXT;
use crate::changes::{self, ChangesError};
use crate::full::{self, FullError, TransferProgress};
use crate::point::PointError;
use crate::store::{Store, StoreError};

/// Where a copy goes.
#[derive(Debug, Clone, Copy)]
pub struct CopyEnd<'a> {
    /// In which store.
    pub store: &'a Store,
    /// Where in it.
    pub layout: &'a Layout,
}

/// Copies a full backup, and these batches of changes since. Each is valid there once all of it was read back; after
/// an interruption it can be done again, and what is there already is not sent twice.
pub async fn copy(
    from: &Repository,
    to: CopyEnd<'_>,
    full: &Manifest,
    batches: &[Batch],
    progress: &TransferProgress,
) -> Result<(), PointError> {
    copy_full(from, to, full, progress).await?;
    for batch in batches {
        copy_batch(from, to, batch).await?;
    }
    Ok(())
}

async fn copy_full(
    from: &Repository,
    to: CopyEnd<'_>,
    full: &Manifest,
    progress: &TransferProgress,
) -> Result<(), FullError> {
    let name = full.about.name;
    let text = from.store.get(&from.layout.manifest(name), MOST_TEXT).await?;
    let path = to.layout.snapshot(name, full.coding);
    match to.store.get(&to.layout.manifest(name), MOST_TEXT).await {
        Ok(there) if there == text => {
            progress.stored.store(full.object.bytes, Ordering::Relaxed);
            // Read back what is there all the same: the operator is about to rely on this copy.
            return full::same(name, &full.object, &full::read_back(to.store, &path, progress).await?);
        }
        Ok(_) => {
            let (path, place) = (to.layout.manifest(name), to.store.place().to_owned());
            return Err(StoreError::Taken { path, place }.into());
        }
        Err(StoreError::NotThere { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    // The original's start marker: two copies write the same bytes, and another backup of this name finds it taken.
    let begun = from.store.get(&from.layout.begun(name), MOST_TEXT).await?;
    to.store.put_once(&to.layout.begun(name), begun).await?;

    let (_, pieces) = from.store.read(&from.layout.snapshot(name, full.coding)).await?;
    let count = |bytes| {
        progress.stored.fetch_add(bytes, Ordering::Relaxed);
    };
    to.store.upload(&path, pieces.map_err(std::io::Error::other), count).await?;
    // The read-back finds every fault of the transfer, or of the source: the copy stays invalid.
    full::same(name, &full.object, &full::read_back(to.store, &path, progress).await?)?;
    to.store.put_once(&to.layout.manifest(name), text).await?;
    Ok(())
}

async fn copy_batch(from: &Repository, to: CopyEnd<'_>, batch: &Batch) -> Result<(), ChangesError> {
    let name = batch.name();
    let bytes = changes::object(from, batch).await?;
    to.store.put_once(&to.layout.batch(name, batch.coding), bytes).await?;
    let (found, text) = changes::manifest(from, name).await?;
    match found == *batch {
        true => Ok(to.store.put_once(&to.layout.batch_manifest(name), text).await?),
        false => Err(ChangesError::Damaged { batch: name, what: "its manifest was changed meanwhile" }),
    }
}
