//! `raftsman cert rotate`: an operator's request for another authority, or to distrust the old one → marked, and
//! carried out by `apply`.

use std::sync::Arc;

use raftsman_core::observed::{Trust, TrustDomain};
use raftsman_core::spec::{self, Name, Spec};
use serde::Serialize;
use serde_json::json;

use super::apply::{Execution, carry_out, preflight};
use super::begin::{Consent, locked_cluster};
use super::plan::{FleetPlan, cluster_plan};
use super::{OpError, pick_cluster, refuse_newer_agents};
use crate::apply::Outcome;
use crate::fleet::{Context, Fleet};
use crate::journal::Journal;
use crate::observe::Observer;
use crate::stack::StackHandle;
use crate::store::Lock;

/// The operator's request for an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RotateRequest {
    /// Of which side.
    pub side: TrustDomain,
    /// All clients have new certificates: the old authority can be distrusted.
    pub finish: bool,
    /// An emergency: the rotation waits neither for clients nor for members that it does not need.
    pub now: bool,
}

impl RotateRequest {
    fn mark(self, trust: &mut Trust) {
        if self.finish {
            trust.finish = true;
        } else {
            // A rotation that is under way continues.
            trust.asked |= !trust.rotates();
        }
        trust.now |= self.now;
    }

    /// Whether the request is possible.
    fn check(self, cluster: &StackHandle) -> Result<Trust, OpError> {
        let (side, name) = (self.side, cluster.desired.name.clone());
        let trust = cluster.trust(side)?;
        match cluster.desired.etcd.authority(side) {
            _ if self.finish && trust.old.is_empty() => Err(OpError::NothingToFinish { cluster: name, side }),
            spec::Authority::Brought(brought) if !trust.rotates() => {
                Err(OpError::BroughtAuthority { cluster: name, side, certificate: brought.certificate.clone() })
            }
            _ if !self.finish && !self.now && side == TrustDomain::Clients && !trust.old.is_empty() => {
                Err(OpError::ClientsAwaited(name))
            }
            _ => Ok(trust),
        }
    }
}

/// What the rotation would do.
#[derive(Debug, Clone, Serialize)]
pub struct Rotation {
    /// Of which cluster.
    pub cluster: Name,
    /// What `apply` would do.
    pub plan: FleetPlan,
}

/// The whole of `raftsman cert rotate` for one cluster: observes, asks, checks the requirements, marks, and applies.
pub async fn run(
    spec: Spec,
    context: &Context,
    cluster: Option<&str>,
    request: RotateRequest,
    consent: Consent<'_, Rotation>,
    execution: Execution,
) -> Result<Vec<Outcome>, OpError> {
    let (fleet, lock) = locked_cluster(spec, context, "cert rotate", cluster).await?;
    let what = survey(&fleet, cluster, request).await?;
    (consent.show)(&what);
    consent.ask(&what)?;
    let only = [what.cluster];
    execution.unless_interrupted(preflight(&fleet, &only)).await?;
    mark(&fleet, &lock, &only[0], request).await?;
    carry_out(&fleet, &lock, &only, execution).await
}

/// What this rotation would do.
pub async fn survey(fleet: &Arc<Fleet>, cluster: Option<&str>, request: RotateRequest) -> Result<Rotation, OpError> {
    let cluster = Arc::new(pick_cluster(fleet, cluster).await?);
    request.check(&cluster)?;
    let mut observed = Observer::new(Arc::clone(&cluster))?.look().await?;
    refuse_newer_agents(&cluster.desired, &observed)?;
    if let Some(trust) = observed.ledger.etcd.trust_mut(request.side) {
        request.mark(trust);
    }
    let desired = &cluster.desired;
    let plan = cluster_plan(desired, &observed);
    let plan = FleetPlan::new(fleet.spec.fleet.clone(), vec![plan]);
    Ok(Rotation { cluster: desired.name.clone(), plan })
}

/// Records the request, for `apply` to carry out.
pub async fn mark(fleet: &Arc<Fleet>, lock: &Lock, cluster: &Name, request: RotateRequest) -> Result<(), OpError> {
    let cluster = pick_cluster(fleet, Some(cluster.as_str())).await?;
    request.check(&cluster)?;
    cluster.change_trust(lock, request.side, |trust| request.mark(trust)).await?;
    let journal = Journal::new(&fleet.store, &fleet.context, lock);
    journal.note(Some(&cluster.desired.name), "marked", json!({ "rotate": request })).await?;
    Ok(())
}
