//! A restore target, and what is in a repository → the full backup and the changes that lead to it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use raftsman_core::backup::{
    Catalog, Evidence, FullName, History, Lookup, LookupError, Manifest, Point, RestoreTarget,
};

use crate::changes::{self, ChangesError};
use crate::full::FullError;
use crate::repository::Repository;
use crate::seal::Keys;
use crate::store::StoreError;

/// Why a restore target cannot be reached.
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
    #[error("{place} holds no valid backup of `{cluster}`: make one with `raftsman backup now`")]
    None {
        /// Where.
        place: String,
        /// Whose.
        cluster: raftsman_core::spec::Name,
    },
    /// The backup that may be the newest was rejected.
    #[error(
        "`{name}` may be the newest backup, and cannot be verified: {source}; remove it, or choose with `--backup`, \
         `--revision` or `--at`"
    )]
    Doubtful {
        /// Which.
        name: FullName,
        /// Why it was refused.
        source: FullError,
    },
    /// There is none like that.
    #[error(transparent)]
    Lookup(#[from] LookupError),
}

/// What is in a repository, for looking something up; and why what was refused was.
async fn catalog(
    repository: &Repository,
    known: &[History],
) -> Result<(Catalog, BTreeMap<FullName, FullError>), PointError> {
    let mut found = repository.found().await?;
    if found.verified.is_empty() {
        let none =
            || PointError::None { place: repository.store.place().to_owned(), cluster: repository.cluster.clone() };
        return Err(found.refused.pop_last().map_or_else(none, |(_, error)| error.into()));
    }
    let doubtful = found.refused.keys().copied().collect();
    let fulls = found.verified.into_values().collect();
    Ok((Catalog { fulls, doubtful, known: known.to_vec() }, found.refused))
}

/// Why, with the rejections so far.
fn why(error: LookupError, refused: &mut BTreeMap<FullName, FullError>) -> PointError {
    if let LookupError::Doubtful { doubtful } = error
        && let Some(source) = refused.remove(&doubtful)
    {
        return PointError::Doubtful { name: doubtful, source };
    }
    error.into()
}

/// The newest full backup.
pub async fn newest(repository: &Repository, known: &[History]) -> Result<Manifest, PointError> {
    let (catalog, mut refused) = catalog(repository, known).await?;
    catalog.newest(Timestamp::now()).cloned().map_err(|error| why(error, &mut refused))
}

/// Finds it. `known` are the cluster's histories, where its state is available.
pub async fn find(
    repository: &Repository,
    target: RestoreTarget,
    known: &[History],
    keys: &Keys,
) -> Result<Point, PointError> {
    // A backup that the operator names is read alone: the error says why it is rejected.
    if let RestoreTarget::Backup(name) = target {
        return Ok(Point { full: repository.manifest(name).await?, batches: Vec::new(), revision: None });
    }
    let now = Timestamp::now();
    let (catalog, mut refused) = catalog(repository, known).await?;
    let mut evidence = Evidence::default();
    loop {
        match catalog.locate(target, &evidence, now).map_err(|error| why(error, &mut refused))? {
            Lookup::Found(point) => return Ok(*point),
            Lookup::NeedsBatches(name) => {
                let batches = match catalog.fulls.iter().find(|full| full.about.name == name) {
                    Some(full) => changes::since(repository, full).await?.0,
                    None => Vec::new(),
                };
                evidence.batches.insert(name, batches);
            }
            Lookup::NeedsTimes(batch) => {
                let opened = changes::open(repository, &batch, keys).await?;
                let times = opened.changes.iter().map(|change| (change.revision, change.at)).collect();
                evidence.times.insert(batch.name(), times);
            }
        }
    }
}
