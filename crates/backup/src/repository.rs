//! A store, a cluster and the keys that are trusted → the full backups there that were verified, and those that were not.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt as _;
use raftsman_core::backup::{FullName, Layout, Manifest};
use raftsman_core::observed::ClusterId;
use raftsman_core::spec::Name;

use crate::MOST_TEXT;
use crate::full::{self, FullError};
use crate::sign::Trust;
use crate::store::{Store, StoreError};

/// Manifests that are read at the same time.
const AT_A_TIME: usize = 16;

/// Where the backups of one cluster are, and which of them are accepted.
#[derive(Debug, Clone)]
pub struct Repository {
    /// The store.
    pub store: Store,
    /// Where in it.
    pub layout: Layout,
    /// The cluster that they are of.
    pub cluster: Name,
    /// Which are accepted.
    pub trust: Trust,
}

/// What there is, by name.
#[derive(Debug, Default)]
pub struct StoredBackups {
    /// Verified.
    pub verified: BTreeMap<FullName, Manifest>,
    /// They have a manifest, which was refused.
    pub refused: BTreeMap<FullName, FullError>,
    /// They have none.
    pub unfinished: BTreeSet<FullName>,
}

impl StoredBackups {
    /// The newest verified one of a history: by its revision, not by clocks.
    pub fn newest_of(self, history: ClusterId) -> Option<Manifest> {
        let of_it = self.verified.into_values().filter(|full| full.about.cluster_id == history);
        of_it.max_by_key(|full| full.about.name.revision())
    }
}

impl Repository {
    /// The manifest of a full backup, verified.
    pub async fn manifest(&self, name: FullName) -> Result<Manifest, FullError> {
        let text = match self.store.get(&self.layout.manifest(name), MOST_TEXT).await {
            Err(StoreError::NotThere { place, .. }) => return Err(FullError::Incomplete { name, place }),
            text => text?,
        };
        let what = || format!("the backup `{name}`");
        let manifest = self.trust.verify(what, Manifest::read(name, &text)?)?;
        // Several fleets may be trusted: what one has signed does not become another's by its place in the store.
        let about = &manifest.about;
        if about.cluster != self.cluster || !self.layout.is_of(&about.fleet, &about.cluster) {
            let (expected, found) = (self.layout.root().to_owned(), format!("{}/{}", about.fleet, about.cluster));
            return Err(FullError::OtherCluster { name, expected, found });
        }
        self.trust.coding(what, manifest.coding)?;
        Ok(manifest)
    }

    /// All of them. What retention takes away meanwhile is left out.
    pub async fn found(&self) -> Result<StoredBackups, FullError> {
        let mut found = StoredBackups::default();
        let mut complete = Vec::new();
        for (name, counts) in full::list(&self.store, &self.layout).await? {
            match counts {
                true => complete.push(name),
                false => drop(found.unfinished.insert(name)),
            }
        }
        let one = async |name: FullName| (name, full::unless_gone(self, name, self.manifest(name).await).await);
        let mut read = futures::stream::iter(complete).map(one).buffered(AT_A_TIME);
        while let Some((name, manifest)) = read.next().await {
            match manifest {
                Ok(Some(manifest)) => drop(found.verified.insert(name, manifest)),
                Ok(None) => {}
                // An unreadable store is no evidence about a backup in it.
                Err(error) if error.is_ours() => return Err(error),
                Err(error) => drop(found.refused.insert(name, error)),
            }
        }
        Ok(found)
    }
}
