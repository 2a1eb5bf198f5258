//! `raftsman replace`: a member that an operator gives up → marked, and replaced by `apply`.

use std::sync::Arc;

use raftsman_core::observed::{MemberId, Observed, View};
use raftsman_core::spec::{Name, Spec};
use serde::Serialize;
use serde_json::json;

use super::apply::{Execution, carry_out, preflight};
use super::begin::{Consent, locked_member};
use super::plan::{FleetPlan, cluster_plan};
use super::{OpError, pick_member, refuse_newer_agents};
use crate::apply::Outcome;
use crate::fleet::{Context, Fleet};
use crate::journal::Journal;
use crate::observe::Observer;
use crate::stack::StackHandle;
use crate::store::Lock;

/// What replacing a member would do.
#[derive(Debug, Clone, Serialize)]
pub struct Replacement {
    /// Its cluster.
    pub cluster: Name,
    /// Its name, which its replacement has too.
    pub member: Name,
    /// etcd's id of it, which its replacement does not have.
    pub id: MemberId,
    /// What `apply` would do.
    pub plan: FleetPlan,
}

/// The whole of `raftsman replace`: observes, asks, checks the requirements, marks the member, and applies unless it
/// should only be marked.
pub async fn run(
    spec: Spec,
    context: &Context,
    member: &str,
    mark_only: bool,
    consent: Consent<'_, Replacement>,
    execution: Execution,
) -> Result<(Replacement, Vec<Outcome>), OpError> {
    let (fleet, lock) = locked_member(spec, context, "replace", None, member).await?;
    let what = survey(&fleet, member).await?;
    (consent.show)(&what);
    consent.ask(&what)?;
    let only = [what.cluster.clone()];
    if mark_only {
        mark(&fleet, &lock, member).await?;
        return Ok((what, Vec::new()));
    }
    let marked = async {
        preflight(&fleet, &only).await?;
        mark(&fleet, &lock, member).await
    };
    execution.unless_interrupted(marked).await?;
    Ok((what, carry_out(&fleet, &lock, &only, execution).await?))
}

/// What replacing this member would do.
pub async fn survey(fleet: &Arc<Fleet>, member: &str) -> Result<Replacement, OpError> {
    let (cluster, member) = pick_member(fleet, None, member).await?;
    let cluster = Arc::new(cluster);
    let mut observed = Observer::new(Arc::clone(&cluster))?.look().await?;
    let id = listed(&cluster, &observed, &member)?;
    observed.ledger.etcd.replace.insert(member.clone(), id);
    let desired = &cluster.desired;
    let plan = cluster_plan(desired, &observed);
    let plan = FleetPlan::new(fleet.spec.fleet.clone(), vec![plan]);
    Ok(Replacement { cluster: desired.name.clone(), member, id, plan })
}

/// Records that this member is to be replaced: this id, and no later member of the same name.
pub async fn mark(fleet: &Arc<Fleet>, lock: &Lock, member: &str) -> Result<(Name, Name), OpError> {
    let (cluster, member) = pick_member(fleet, None, member).await?;
    let cluster = Arc::new(cluster);
    let observed = Observer::new(Arc::clone(&cluster))?.look().await?;
    let id = listed(&cluster, &observed, &member)?;
    refuse_newer_agents(&cluster.desired, &observed)?;
    cluster
        .remember(lock, |ledger| {
            ledger.etcd.replace.insert(member.clone(), id);
        })
        .await?;
    let journal = Journal::new(&fleet.store, &fleet.context, lock);
    journal.note(Some(&cluster.desired.name), "marked", json!({ "replace": member, "member": id })).await?;
    Ok((cluster.desired.name.clone(), member))
}

/// The member of this name, as a majority lists it; or the one that was marked before and is removed already: an
/// operator can repeat an interrupted command, and it continues.
fn listed(cluster: &StackHandle, observed: &Observed, member: &Name) -> Result<MemberId, OpError> {
    let view = View::of(observed);
    let list = view.listed.filter(|_| view.has_quorum());
    let list = list.ok_or_else(|| OpError::NoQuorum(cluster.desired.name.clone()))?;
    let found = list.iter().find(|m| observed.ledger.etcd.name_of(m).as_ref() == Some(member));
    let found = found.map(|m| m.id).or_else(|| observed.ledger.etcd.replace.get(member).copied());
    found.ok_or_else(|| OpError::NoSuchMember(member.to_string()))
}
