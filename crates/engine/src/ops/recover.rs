//! `raftsman recover`: a cluster that lost its majority permanently → what is left, and a decision for `apply`.

use std::sync::Arc;

use jiff::Timestamp;
use raftsman_core::observed::Observed;
use raftsman_core::plan::recovery::{self, Proposal, Remains};
use raftsman_core::spec::{Name, Spec};
use serde::Serialize;
use serde_json::json;

use super::apply::{Execution, carry_out};
use super::begin::{Consent, locked_cluster};
use super::plan::{FleetPlan, cluster_plan};
use super::{OpError, pick_cluster, refuse_newer_agents};
use crate::apply::Outcome;
use crate::fleet::{Context, Fleet};
use crate::journal::Journal;
use crate::observe::Observer;
use crate::stack::StackHandle;
use crate::store::Lock;

/// The operator's input to a recovery.
#[derive(Debug, Clone, Default)]
pub struct RecoverRequest {
    /// The cluster; the only one of the file when it is not named.
    pub cluster: Option<String>,
    /// The survivor to recover from, where the operator chooses it.
    pub from: Option<Name>,
    /// Members that are known to be lost permanently.
    pub lost: Vec<Name>,
}

/// What recovering a cluster would do.
#[derive(Debug, Clone, Serialize)]
pub struct Survey {
    /// Which.
    pub cluster: Name,
    /// What is left of it.
    #[serde(flatten)]
    pub remains: Remains,
    /// What `apply` would do.
    #[serde(skip)]
    pub plan: Option<FleetPlan>,
    /// A recovery was approved already, and continues.
    pub under_way: bool,
}

/// The whole of `raftsman recover`: observes what is left, asks, records the decision, and applies it. With `show` it
/// only observes.
pub async fn run(
    spec: Spec,
    context: &Context,
    request: &RecoverRequest,
    show: bool,
    consent: Consent<'_, Survey>,
    execution: Execution,
) -> Result<Vec<Outcome>, OpError> {
    let (fleet, lock) = locked_cluster(spec, context, "recover", request.cluster.as_deref()).await?;
    let found = survey(&fleet, request).await?;
    (consent.show)(&found);
    let proposal = match &found.remains.outcome {
        _ if found.under_way => None,
        Ok(proposal) => Some(proposal),
        Err(unclear) => return Err(OpError::Unclear(unclear.to_string())),
    };
    if show {
        return Ok(Vec::new());
    }
    consent.ask(&found)?;
    if let Some(proposal) = proposal {
        execution.unless_interrupted(mark(&fleet, &lock, request, proposal)).await?;
    }
    carry_out(&fleet, &lock, std::slice::from_ref(&found.cluster), execution).await
}

/// Observes what is left. Nothing is changed.
pub async fn survey(fleet: &Arc<Fleet>, request: &RecoverRequest) -> Result<Survey, OpError> {
    let cluster = Arc::new(pick_cluster(fleet, request.cluster.as_deref()).await?);
    let mut observed = Observer::into_data(Arc::clone(&cluster))?.look().await?;
    let desired = &cluster.desired;
    let now = Timestamp::now();
    let under_way = observed.ledger.etcd.recovery().is_some();
    let remains = recovery::survey(desired, &observed, &request.lost, request.from.as_ref());
    if !under_way {
        recovery::decide(&mut observed.ledger, &remains, now);
    }
    let plan = observed.ledger.etcd.recovery().is_some().then(|| plan(fleet, &cluster, &observed));
    Ok(Survey { cluster: desired.name.clone(), remains, plan, under_way })
}

fn plan(fleet: &Fleet, cluster: &StackHandle, observed: &Observed) -> FleetPlan {
    let plan = cluster_plan(&cluster.desired, observed);
    FleetPlan::new(fleet.spec.fleet.clone(), vec![plan])
}

/// Records the decision: from now on `apply` recovers the cluster. The proposal must still hold.
pub async fn mark(
    fleet: &Arc<Fleet>,
    lock: &Lock,
    request: &RecoverRequest,
    proposal: &Proposal,
) -> Result<(), OpError> {
    let cluster = Arc::new(pick_cluster(fleet, request.cluster.as_deref()).await?);
    let observed = Observer::into_data(Arc::clone(&cluster))?.look().await?;
    refuse_newer_agents(&cluster.desired, &observed)?;
    // What is missing is reported before anything is changed.
    let source = &cluster.desired.etcd.source;
    let seen = observed.report(&proposal.survivor);
    let version = seen.and_then(|r| r.etcd.used_with()).unwrap_or(cluster.desired.etcd.version);
    fleet.artifacts.tool(source, version, fleet.context.base())?;
    let remains = recovery::survey(&cluster.desired, &observed, &request.lost, request.from.as_ref());
    match &remains.outcome {
        Ok(now) if now.survivor == proposal.survivor && now.of == proposal.of => {}
        Ok(_) => return Err(OpError::Unclear("what is left has changed: look again".to_owned())),
        Err(unclear) => return Err(OpError::Unclear(unclear.to_string())),
    }
    let now = Timestamp::now();
    cluster.remember(lock, |ledger| recovery::decide(ledger, &remains, now)).await?;
    let journal = Journal::new(&fleet.store, &fleet.context, lock);
    journal.note(Some(&cluster.desired.name), "recovery", json!({ "remains": remains })).await?;
    Ok(())
}
