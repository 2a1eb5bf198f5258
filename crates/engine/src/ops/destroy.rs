//! `raftsman destroy`: machines and everything that the state holds about them → deleted.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::join_all;
use raftsman_core::desired::Stack;
use raftsman_core::spec::postgres::DcsOf;
use raftsman_core::spec::{self, EtcdCluster, Name, PostgresCluster, Spec, line_of};
use raftsman_providers::networks::Networks;
use serde::Serialize;

use super::OpError;
use super::begin::{Begun, Consent, begin, clusters, state};
use crate::authorities::sweep;
use crate::fleet::{Context, Fleet, HOSTS};
use crate::machines::{GiveBackError, Inventory, SilentConnection};
use crate::postgres::is_secret_of;
use crate::stack::{StackHandle, adopted_name, earlier_passwords_name, root_password_name};
use crate::store::{Lock, LockScope, Store};
use crate::tokens::token_name;

/// Why nothing is destroyed without the provider.
const LEFT_BEHIND: &str = "nothing was destroyed, because its machines would be left behind without their state; see that \
    it answers, or name clusters whose machines are elsewhere";

/// What would be, or was, destroyed.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Destruction {
    /// Machines, with their data.
    pub machines: Vec<String>,
    /// Clusters whose keys and ledgers are deleted.
    pub clusters: Vec<Name>,
    /// Whether the state is deleted too: nothing of the fleet is left then.
    pub state: bool,
    /// Files in the state that raftsman did not make, and that stay.
    pub left: Vec<PathBuf>,
    /// The provider's ids of the machines, where it has them: another machine of the same name is not destroyed.
    #[serde(skip)]
    pub ids: BTreeMap<String, String>,
}

/// The whole of `raftsman destroy`: observes, asks, and destroys. Returns nothing where there was no state.
pub async fn run(
    mut spec: Spec,
    context: &Context,
    only: &[Name],
    consent: Consent<'_, Destruction>,
    on_event: &(dyn Fn(&str) + Sync),
) -> Result<Option<Destruction>, OpError> {
    if state(&spec, context).await?.is_none() {
        Store::remove_unfinished(&context.state_dir(&spec)).await?;
        return Ok(None);
    }
    allowed(&spec, &context.file, only)?;
    // The fleet's actual network counts, not the one that the file asks for.
    spec.machines.network = None;
    let scope = if only.is_empty() { LockScope::Fleet } else { clusters(&spec, only) };
    let Begun { fleet, lock, .. } = begin(spec, context, "destroy", &scope).await?;
    let what = survey(&fleet, only).await?;
    (consent.show)(&what);
    consent.ask(&what)?;
    Ok(Some(destroy(fleet, lock, what, on_event).await?))
}

/// Whether the file allows that these clusters are destroyed.
fn allowed(spec: &Spec, file: &std::path::Path, only: &[Name]) -> Result<(), OpError> {
    let kept =
        |(name, cluster): &(&Name, &EtcdCluster)| cluster.prevent_destroy && (only.is_empty() || only.contains(name));
    let etcd = spec.etcd.iter().find(kept).map(|(name, _)| ("etcd", name));
    // It goes with the etcd cluster that it stands on.
    let goes = |cluster: &PostgresCluster| match &cluster.etcd {
        DcsOf::Cluster(etcd) => only.is_empty() || only.contains(etcd),
        DcsOf::External(_) => only.is_empty(),
    };
    let postgres = spec.postgres.iter().find(|(_, cluster)| cluster.prevent_destroy && goes(cluster));
    let Some((section, name)) = etcd.or(postgres.map(|(name, _)| ("postgres", name))) else { return Ok(()) };
    let path = spec::Path::of(&[section, name.as_str(), "prevent_destroy"]);
    let line = std::fs::read_to_string(file).ok().and_then(|text| line_of(&text, &path));
    Err(OpError::DestroyPrevented { cluster: name.clone(), file: file.to_owned(), line })
}

/// What `destroy` would destroy: everything, or these clusters only.
pub async fn survey(fleet: &Arc<Fleet>, only: &[Name]) -> Result<Destruction, OpError> {
    let Inventory { machines: inventory, silent } = fleet.inventory().await;
    let chosen = || fleet.desired.stacks.iter().filter(|c| only.is_empty() || only.contains(&c.name));
    let mut named: BTreeSet<Name> = BTreeSet::new();
    for cluster in chosen() {
        // A lost or damaged ledger may have recorded machines that the file does not list: destroying would be a guess.
        named.extend(StackHandle::open(fleet, cluster).await?.machines().into_keys());
    }
    let concerned: BTreeSet<SilentConnection> = match only.is_empty() {
        true => silent.into_iter().collect(),
        false => named.iter().flat_map(|name| fleet.silent_for(&silent, name)).cloned().collect(),
    };
    if !concerned.is_empty() {
        return Err(OpError::ProviderSilent { silent: concerned, consequence: LEFT_BEHIND });
    }
    let goes = |name: &str| only.is_empty() || named.contains(name);
    let ids = inventory.iter().filter_map(|m| Some((m.name.clone(), m.id.clone()?))).collect();
    let machines = inventory.into_iter().map(|m| m.name).filter(|name| goes(name)).collect();
    let mut clusters: Vec<Name> = chosen().map(|cluster| cluster.name.clone()).collect();
    if only.is_empty() {
        // The state goes too, so clusters that the file does not list any more are included.
        let known = fleet.store.clusters().await?.into_iter().filter_map(|name| Name::parse(&name).ok());
        clusters.extend(known.filter(|name| fleet.desired.stacks.iter().all(|cluster| cluster.name != *name)));
    }
    Ok(Destruction { machines, clusters, state: only.is_empty(), left: Vec::new(), ids })
}

/// Destroys it. `on_event` gets every machine that is gone.
pub async fn destroy(
    fleet: Arc<Fleet>,
    lock: Lock,
    what: Destruction,
    on_event: &(dyn Fn(&str) + Sync),
) -> Result<Destruction, OpError> {
    let deleted = join_all(what.machines.iter().map(|name| async {
        let gone = fleet.give_back(&lock, name, what.ids.get(name).map(String::as_str)).await;
        if gone.is_ok() {
            on_event(name);
        }
        gone
    }));
    for outcome in deleted.await {
        outcome?;
    }
    // A killed run may have left an incomplete machine: a directory without a tag.
    let clusters = fleet.desired.stacks.iter().filter(|c| what.clusters.contains(&c.name));
    let machines = clusters.flat_map(Stack::all_machines);
    for machine in machines.filter(|machine| !what.machines.iter().any(|name| machine.as_str() == name)) {
        match fleet.give_back(&lock, machine.as_str(), None).await {
            // Not made by raftsman: it stays.
            Err(GiveBackError::Provider(error)) if error.is_foreign() => {}
            outcome => outcome?,
        }
    }
    for cluster in &what.clusters {
        sweep(&fleet.store, &fleet.secrets, &lock, cluster, |_, _| false).await?;
        fleet.secrets.delete(&lock, &root_password_name(cluster)).await?;
        fleet.secrets.delete(&lock, &earlier_passwords_name(cluster)).await?;
        let standing = fleet.desired.stacks.iter().filter(|stack| stack.name == *cluster);
        for postgres in standing.flat_map(|stack| &stack.postgres) {
            let goes = |name: &String| is_secret_of(name, &postgres.name);
            for name in fleet.store.certificates().await?.into_iter().filter(goes) {
                fleet.store.delete_certificate(&lock, &name).await?;
            }
            for name in fleet.secrets.names().await?.into_iter().filter(goes) {
                fleet.secrets.delete(&lock, &name).await?;
            }
        }
        let adopted = adopted_name(cluster);
        fleet.secrets.delete(&lock, &adopted).await?;
        for certificate in [format!("{adopted}-ca"), adopted] {
            fleet.store.delete_certificate(&lock, &certificate).await?;
        }
        let desired = fleet.desired.stacks.iter().filter(|c| c.name == *cluster);
        for machine in desired.flat_map(Stack::all_machines) {
            fleet.secrets.delete(&lock, &token_name(machine)).await?;
        }
        fleet.store.delete_cluster(&lock, cluster.as_str()).await?;
        remove_dir(&fleet.store.dir().join("clients").join(cluster.as_str()))?;
    }
    if !what.state {
        return Ok(what);
    }
    for ours in ["clients", "artifacts", "snapshots"] {
        remove_dir(&fleet.store.dir().join(ours))?;
    }
    // Only empty directories: files that are not raftsman's stay.
    for ours in ["machines", HOSTS] {
        let _ = std::fs::remove_dir(fleet.store.dir().join(ours));
    }
    Networks::new(fleet.context.registry.clone()).release(fleet.id())?;
    let left = fleet.store.clone().remove(lock).await?.left;
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
