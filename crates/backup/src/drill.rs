//! The result of a drill → its record in the store; the records in a store → the results of earlier drills.

use std::time::Duration;

use jiff::Timestamp;
use raftsman_core::backup::{Drill, Point, Signable as _};
use raftsman_core::spec::{EtcdVersion, Name};

use crate::MOST_TEXT;
use crate::full::FullError;
use crate::repository::Repository;
use crate::sign::Signer;

/// A backup was restored into a temporary etcd, which holds what it should.
#[derive(Debug, Clone)]
pub struct TestedRestore {
    /// On which machine.
    pub machine: Name,
    /// With which version of etcd.
    pub version: EtcdVersion,
    /// The last revision that came back.
    pub revision: i64,
    /// How many keys there are then.
    pub keys: u64,
    /// How long it took.
    pub took: Duration,
}

/// Stores the record. `current` is the cluster's own revision when the drill began, where it is known. Without a signer
/// (of another fleet's backup) the record is not signed: that fleet ignores it.
pub async fn record(
    repository: &Repository,
    signer: Option<&Signer>,
    point: &Point,
    tried: TestedRestore,
    begun: Timestamp,
    current: Option<i64>,
) -> Result<Drill, FullError> {
    let behind = current.map(|current| (current - tried.revision).max(0));
    let age = u64::try_from(begun.duration_since(point.at()).as_millis()).unwrap_or(0);
    let drill = Drill {
        format: Drill::FORMAT,
        backup: point.full.about.name,
        at: begun,
        machine: tried.machine,
        version: tried.version,
        batches: point.batches.len(),
        revision: tried.revision,
        keys: tried.keys,
        took_ms: u64::try_from(tried.took.as_millis()).unwrap_or(u64::MAX),
        behind,
        behind_ms: behind.map(|behind| if behind == 0 { 0 } else { age }),
    };
    let text = match signer {
        Some(signer) => signer.text(&drill)?,
        None => drill.text(None)?,
    };
    let Repository { store, layout, .. } = repository;
    store.put_once(&layout.drill(begun, drill.backup), text.into()).await?;
    Ok(drill)
}

/// A record, verified.
async fn read(repository: &Repository, path: &str) -> Result<Drill, FullError> {
    let text = repository.store.get(path, MOST_TEXT).await?;
    let drill = repository.trust.verify(|| format!("the record of a drill at {path}"), Drill::read(&text)?)?;
    match repository.layout.drill(drill.at, drill.backup) == path {
        true => Ok(drill),
        false => Err(FullError::Misplaced(path.to_owned())),
    }
}

/// All verified records in the store, the oldest first.
pub async fn history(repository: &Repository) -> Result<Vec<Drill>, FullError> {
    let mut drills = Vec::new();
    for found in repository.store.list(&repository.layout.drills()).await? {
        match read(repository, &found.path).await {
            Ok(drill) => drills.push(drill),
            Err(error) if error.is_ours() => return Err(error),
            Err(error) => tracing::warn!(%error, path = found.path, "a record is refused"),
        }
    }
    drills.sort_by_key(|drill| drill.at);
    Ok(drills)
}

/// The newest that was verified and is not from the future.
pub async fn last(repository: &Repository, now: Timestamp) -> Result<Option<Drill>, FullError> {
    for found in repository.store.list(&repository.layout.drills()).await?.iter().rev() {
        match read(repository, &found.path).await {
            Ok(drill) if drill.at.duration_since(now) > raftsman_core::backup::point::CLOCK_SKEW => {
                tracing::warn!(path = found.path, "the record of a drill is from the future");
            }
            Ok(drill) => return Ok(Some(drill)),
            Err(error) if error.is_ours() => return Err(error),
            Err(error) => tracing::warn!(%error, path = found.path, "a record is refused"),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use raftsman_core::backup::FullName;

    use super::*;
    use crate::fixtures::{repository, signer};

    /// An attacker with write access can copy a record that we signed, but cannot pass it off as another drill's.
    #[tokio::test]
    async fn a_record_under_another_name_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let repository = repository(dir.path());
        let at: Timestamp = "2026-11-16T03:00:00Z".parse().unwrap();
        let (ours, other) = (FullName::new(at, 10), FullName::new(at, 20));
        let drill = Drill {
            format: Drill::FORMAT,
            backup: ours,
            at,
            machine: Name::fixed("main-1"),
            version: EtcdVersion::parse("3.6.15").unwrap(),
            batches: 0,
            revision: 10,
            keys: 1,
            took_ms: 1,
            behind: None,
            behind_ms: None,
        };
        let text = signer().text(&drill).unwrap();
        let Repository { store, layout, .. } = &repository;
        let later = at + jiff::SignedDuration::from_hours(1);
        for place in [layout.drill(at, ours), layout.drill(later, ours), layout.drill(at, other)] {
            store.put_once(&place, text.clone().into()).await.unwrap();
        }
        assert_eq!(last(&repository, later).await.unwrap().as_ref(), Some(&drill));
        assert_eq!(history(&repository).await.unwrap(), [drill]);
    }
}
