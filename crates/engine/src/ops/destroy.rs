//! `raftsman destroy`: machines and everything that was kept about them → nothing.

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::join_all;
use raftsman_core::desired::Cluster;
use raftsman_core::observed::Ledger;
use raftsman_core::spec::Name;
use raftsman_providers::networks::Networks;
use serde::Serialize;

use super::OpError;
use crate::authorities::sweep;
use crate::cluster::adopted_name;
use crate::fleet::{Fleet, HOSTS};
use crate::machines::GiveBackError;
use crate::observe::token_name;
use crate::store::Lock;

/// What would be, or was, destroyed.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Destruction {
    /// Machines, with their data.
    pub machines: Vec<String>,
    /// Clusters whose keys and memory go.
    pub clusters: Vec<Name>,
    /// Whether the state goes too: nothing of the fleet is left then.
    pub state: bool,
    /// Files in the state that raftsman did not make, and left.
    pub left: Vec<PathBuf>,
}

/// What `destroy` would destroy: everything, or these clusters only.
pub async fn survey(fleet: &Fleet, only: &[Name]) -> Result<Destruction, OpError> {
    let inventory = fleet.provider.inventory().await?;
    let listed = |cluster: &Cluster| {
        let ledger: Option<Ledger> = fleet.store.get_cluster(cluster.name.as_str()).ok().flatten();
        ledger.unwrap_or_default().members
    };
    let goes = |name: &str| {
        only.is_empty()
            || fleet
                .desired
                .clusters
                .iter()
                .filter(|c| only.contains(&c.name))
                .any(|c| c.members.iter().any(|m| m.name.as_str() == name) || listed(c).contains_key(name))
    };
    let machines = inventory.into_iter().map(|m| m.name).filter(|name| goes(name)).collect();
    let clusters: Vec<Name> =
        fleet.desired.clusters.iter().map(|c| c.name.clone()).filter(|n| only.is_empty() || only.contains(n)).collect();
    Ok(Destruction { machines, clusters, state: only.is_empty(), left: Vec::new() })
}

/// Destroys it. `tell` hears of every machine that is gone.
pub async fn destroy(
    fleet: Arc<Fleet>,
    lock: Lock,
    what: Destruction,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<Destruction, OpError> {
    let deleted = join_all(what.machines.iter().map(|name| async {
        let gone = fleet.give_back(name, lock.generation()).await;
        if gone.is_ok() {
            tell(name);
        }
        gone
    }));
    for outcome in deleted.await {
        outcome?;
    }
    // A killed run may have left a machine that is not one yet: a directory in which nothing is said.
    let members = || fleet.desired.clusters.iter().filter(|c| what.clusters.contains(&c.name)).flat_map(|c| &c.members);
    for member in members().filter(|m| !what.machines.iter().any(|name| m.name.as_str() == name)) {
        match fleet.give_back(member.name.as_str(), lock.generation()).await {
            // Not made by raftsman: it stays.
            Err(GiveBackError::Provider(error)) if error.is_foreign() => {}
            outcome => outcome?,
        }
    }
    for cluster in &what.clusters {
        sweep(&fleet.store, &fleet.secrets, cluster, |_, _| false)?;
        fleet.secrets.delete(&format!("{cluster}-root-password"))?;
        let adopted = adopted_name(cluster);
        fleet.secrets.delete(&adopted)?;
        for certificate in [format!("{adopted}-ca"), adopted] {
            fleet.store.delete_certificate(&certificate)?;
        }
        let members = fleet.desired.clusters.iter().filter(|c| c.name == *cluster).flat_map(|c| &c.members);
        for member in members {
            fleet.secrets.delete(&token_name(&member.name))?;
        }
        fleet.store.delete_cluster(cluster.as_str())?;
        remove_dir(&fleet.store.dir().join("clients").join(cluster.as_str()))?;
    }
    if !what.state {
        return Ok(what);
    }
    for ours in ["clients", "artifacts", "snapshots"] {
        remove_dir(&fleet.store.dir().join(ours))?;
    }
    // Only where they are empty: what is not ours stays.
    for ours in ["machines", HOSTS] {
        let _ = std::fs::remove_dir(fleet.store.dir().join(ours));
    }
    Networks::new(fleet.setting.registry.clone()).release(fleet.id())?;
    let left = fleet.store.clone().remove(lock)?.left;
    Ok(Destruction { left, ..what })
}

pub(super) fn remove_dir(path: &std::path::Path) -> Result<(), OpError> {
    match std::fs::remove_dir_all(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(OpError::File { action: "remove", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
