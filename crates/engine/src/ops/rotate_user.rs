//! `raftsman rotate-user`: an operator's request for another user of etcd for Patroni → marked, and carried out by `apply`.

use std::sync::Arc;

use raftsman_core::spec::{Name, Spec};
use serde::Serialize;
use serde_json::json;

use super::apply::{Execution, carry_out, preflight};
use super::begin::{Consent, locked_cluster};
use super::plan::{FleetPlan, cluster_plan};
use super::switchover::pick;
use super::{OpError, pick_cluster, refuse_newer_agents};
use crate::apply::Outcome;
use crate::fleet::{Context, Fleet};
use crate::journal::Journal;
use crate::observe::Observer;

/// What the change would do.
#[derive(Debug, Clone, Serialize)]
pub struct UserRotation {
    /// Of which PostgreSQL cluster.
    pub cluster: Name,
    /// The user that Patroni logs in as now.
    pub from: String,
    /// The user that it logs in as afterwards.
    pub to: String,
    /// What `apply` would do.
    pub plan: FleetPlan,
}

/// The whole of `raftsman rotate-user`: observes, asks, checks the requirements, marks, and applies.
pub async fn run(
    spec: Spec,
    context: &Context,
    cluster: Option<&str>,
    consent: Consent<'_, UserRotation>,
    execution: Execution,
) -> Result<Vec<Outcome>, OpError> {
    let (name, etcd) = pick(&spec, cluster)?;
    let (fleet, lock) = locked_cluster(spec, context, "rotate-user", Some(etcd.as_str())).await?;
    let what = survey(&fleet, &name, &etcd).await?;
    (consent.show)(&what);
    consent.ask(&what)?;
    let only = [etcd];
    execution.unless_interrupted(preflight(&fleet, &only)).await?;
    pick_cluster(&fleet, Some(only[0].as_str())).await?.change_etcd_user(&lock, &name).await?;
    let journal = Journal::new(&fleet.store, &fleet.context, &lock);
    journal.note(Some(&only[0]), "marked", json!({ "rotate_user": name, "to": what.to })).await?;
    carry_out(&fleet, &lock, &only, execution).await
}

/// What the change would do; or why there is nothing to change, or a change is under way.
async fn survey(fleet: &Arc<Fleet>, name: &Name, etcd: &Name) -> Result<UserRotation, OpError> {
    let stack = Arc::new(pick_cluster(fleet, Some(etcd.as_str())).await?);
    let desired = &stack.desired;
    let missing = || OpError::NoSuchPostgres { name: name.to_string(), known: Vec::new() };
    let wanted = desired.postgres(name).ok_or_else(missing)?;
    let mut observed = Observer::new(Arc::clone(&stack))?.look().await?;
    refuse_newer_agents(desired, &observed)?;
    let known = observed.ledger.of_postgres(name);
    let (from, to) = (wanted.etcd_user(known.user), wanted.etcd_user(known.user.other()));
    let access = observed.answers().find_map(|(_, etcd)| etcd.access.as_ref()?.as_ref().ok());
    match access.map(|access| (access.users.contains_key(&from), access.users.contains_key(&to))) {
        None => return Err(OpError::UsersUnknown(etcd.clone())),
        Some((false, _)) => return Err(OpError::NoUserYet { cluster: name.clone(), user: from }),
        Some((true, true)) => return Err(OpError::UserChanges { cluster: name.clone(), user: from, old: to }),
        Some((true, false)) => {}
    }
    let known = observed.ledger.postgres.entry(name.clone()).or_default();
    known.user = known.user.other();
    let plan = cluster_plan(desired, &observed);
    let plan = FleetPlan::new(fleet.spec.fleet.clone(), vec![plan]);
    Ok(UserRotation { cluster: name.clone(), from, to, plan })
}
