//! `raftsman apply`: carries out what `plan` shows, every cluster by itself.

use std::sync::Arc;
use std::time::Duration;

use raftsman_core::spec::{Name, Spec};
use raftsman_providers::networks::Networks;
use serde_json::json;

use super::destroy::remove_dir;
use super::needs::{agent, provider_answers};
use super::{OpError, for_each_cluster, lock_info};
use crate::apply::{self, ApplyError, Event, Outcome};
use crate::cluster::ClusterAt;
use crate::fleet::{Fleet, Setting};
use crate::interrupt::Interrupt;
use crate::journal::Journal;
use crate::store::{Lock, Protection, Store, StoreError};

/// Hears of everything that happens to a cluster, as it happens.
pub type Tell = Arc<dyn Fn(&Name, Event) + Send + Sync>;

/// A state, and the right to change it.
pub struct Begun {
    /// The state.
    pub store: Store,
    /// Its lock.
    pub lock: Lock,
    /// Whether there was none before.
    pub made: bool,
}

/// Makes the state where there is none yet, and takes its lock.
pub fn begin(spec: &Spec, setting: &Setting, verb: &str) -> Result<Begun, OpError> {
    let dir = setting.state_dir(spec);
    let (store, made) = match Store::open(&dir, spec.fleet.as_str()) {
        Ok(store) => (store, false),
        Err(StoreError::Missing { .. } | StoreError::Unfinished { .. }) => {
            (Fleet::create(spec, setting, Protection::IdentityFile, jiff::Timestamp::now())?, true)
        }
        Err(error) => return Err(error.into()),
    };
    let lock = store.lock(lock_info(setting, verb))?;
    Ok(Begun { store, lock, made })
}

/// Finds every binary, authority and secret that will be needed: what is missing is said before anything is changed.
pub async fn preflight(fleet: &Arc<Fleet>, only: &[Name]) -> Result<(), OpError> {
    agent(&fleet.setting)?;
    let silent = fleet.inventory().await.silent;
    let chosen = || fleet.desired.clusters.iter().filter(|c| only.is_empty() || only.contains(&c.name));
    let clusters = chosen().map(|cluster| Ok((cluster, ClusterAt::open(fleet, cluster)?)));
    let clusters = clusters.collect::<Result<Vec<_>, OpError>>()?;
    // What runs is maintained without its provider, as far as that goes. Where nothing runs yet, all waits for machines.
    if clusters.iter().all(|(_, at)| at.ledger().started.is_empty() && at.ledger().adopted.is_none()) {
        provider_answers(fleet, &silent, chosen().flat_map(|c| &c.members).map(|m| &m.name))?;
    }
    for (cluster, at) in clusters {
        // Nothing is installed where others run etcd.
        if at.ledger().adopted.is_none() {
            fleet.artifacts.fetch(&cluster.source, cluster.version).await?;
            fleet.artifacts.found(&cluster.source, cluster.version, fleet.setting.base()).await?;
        }
        at.check_references(jiff::Timestamp::now())?;
    }
    Ok(())
}

/// Takes a state away again that this run made, when it turned out that nothing can be begun.
pub fn withdraw(store: Store, setting: &Setting, lock: Lock) -> Result<(), OpError> {
    Networks::new(setting.registry.clone()).release(&store.fleet().id)?;
    remove_dir(&store.dir().join("artifacts"))?;
    store.remove(lock)?;
    Ok(())
}

/// Applies the clusters, each by itself, under this lock.
pub async fn apply(
    fleet: &Arc<Fleet>,
    lock: &Lock,
    only: &[Name],
    timeout: Duration,
    tell: Tell,
    interrupt: &Interrupt,
) -> Result<Vec<Outcome>, OpError> {
    let journal = Arc::new(Journal::new(&fleet.store, &fleet.setting, lock));
    for_each_cluster(fleet, only, |cluster| {
        let (journal, tell, interrupt) = (Arc::clone(&journal), Arc::clone(&tell), interrupt.clone());
        async move {
            let name = cluster.desired.name.clone();
            let tell = |event| tell(&name, event);
            let outcome = Box::pin(apply::apply(Arc::clone(&cluster), &journal, timeout, &tell, &interrupt)).await;
            if let Some(revision) = outcome.observed.as_ref().and_then(apply::last_revision) {
                cluster.remember(journal.lock(), |ledger| ledger.last_revision = ledger.last_revision.max(revision))?;
            }
            match &outcome.error {
                None => journal.note(Some(&name), "converged", json!({ "steps": outcome.steps.len() }))?,
                Some(ApplyError::Interrupted(_)) => {
                    journal.note(Some(&name), "interrupted", json!({ "steps": outcome.steps.len() }))?;
                }
                Some(error) => journal.note(Some(&name), "stopped", json!({ "error": error.to_string() }))?,
            }
            Ok(outcome)
        }
    })
    .await
}
