//! `raftsman cert revoke` and `raftsman cert rotate fleet`: the certificates that agents accept → recorded, carried out
//! by `apply`, and proven by every agent's report.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use raftsman_core::spec::{Name, Spec};
use serde_json::json;

use super::apply::{Execution, carry_out, converged, preflight};
use super::begin::{Consent, locked_fleet, open};
use super::{OpError, for_each_stack};
use crate::authorities::public_key;
use crate::fleet::{Context, Fleet};
use crate::fleet_access::Phase;
use crate::journal::Journal;
use crate::observe::Observer;
use crate::store::Lock;

/// The whole of `raftsman cert rotate fleet`: phase by phase, each carried out on every machine and proven by every
/// agent before the next begins. An interrupted rotation continues at its phase.
pub async fn run_rotation(
    spec: Spec,
    context: &Context,
    consent: Consent<'_, Phase>,
    on_phase: &(dyn Fn(Phase) + Sync),
    execution: Execution,
) -> Result<(), OpError> {
    let (mut fleet, lock) = locked_fleet(spec.clone(), context, "cert rotate").await?;
    let mut phase = fleet.access.phase();
    consent.ask(&phase)?;
    if phase == Phase::Settled {
        execution.unless_interrupted(preflight(&fleet, &[])).await?;
        phase = advance(&fleet, &lock).await?;
    }
    loop {
        on_phase(phase);
        fleet = open(spec.clone(), fleet.context.clone()).await?;
        converged(&carry_out(&fleet, &lock, &[], execution.clone()).await?)?;
        proven(&fleet).await?;
        if phase == Phase::Distrusting {
            on_phase(Phase::Settled);
            return Ok(());
        }
        phase = advance(&fleet, &lock).await?;
    }
}

/// The whole of `raftsman cert revoke`: records the key, sends it to every agent, and checks that each rejects it.
pub async fn run_revocation(
    spec: Spec,
    context: &Context,
    certificate: &str,
    execution: Execution,
) -> Result<String, OpError> {
    let key = key_to_revoke(certificate)?;
    let (fleet, lock) = locked_fleet(spec.clone(), context, "cert revoke").await?;
    revoke(&fleet, &lock, &key).await?;
    let fleet = open(spec, fleet.context.clone()).await?;
    converged(&carry_out(&fleet, &lock, &[], execution).await?)?;
    proven(&fleet).await?;
    Ok(key)
}

/// The key to revoke: of a certificate file, or its SHA-256 in hexadecimal.
pub fn key_to_revoke(what: &str) -> Result<String, OpError> {
    if what.len() == 64 && what.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(what.to_ascii_lowercase());
    }
    public_key(Path::new(what)).ok_or_else(|| OpError::NoCertificate(what.to_owned()))
}

/// Records it, so that `apply` sends it to every agent; returns whether it was not on the list yet.
pub async fn revoke(fleet: &Arc<Fleet>, lock: &Lock, key: &str) -> Result<bool, OpError> {
    if fleet.authority.facts().public_key_sha256 == key {
        return Err(OpError::RevokesAuthority);
    }
    let mut access = fleet.access.clone();
    let new = access.revoked.insert(key.to_owned());
    access.write(&fleet.secrets, lock).await?;
    let journal = Journal::new(&fleet.store, &fleet.context, lock);
    journal.note(None, "marked", json!({ "revoke": key })).await?;
    Ok(new)
}

/// Starts the next phase of a rotation. The phase before must be [`proven`].
pub async fn advance(fleet: &Arc<Fleet>, lock: &Lock) -> Result<Phase, OpError> {
    let mut access = fleet.access.clone();
    let next = match access.phase() {
        Phase::Settled => {
            access.begin(&fleet.store, &fleet.secrets, lock, Timestamp::now()).await?;
            Phase::Trusting
        }
        Phase::Trusting => {
            access.activate(&fleet.secrets, lock).await?;
            Phase::Signing
        }
        Phase::Signing | Phase::Distrusting => {
            access.distrust(&fleet.store, &fleet.secrets, lock).await?;
            Phase::Distrusting
        }
    };
    let journal = Journal::new(&fleet.store, &fleet.context, lock);
    journal.note(None, "marked", json!({ "rotate": { "side": "fleet", "phase": next } })).await?;
    Ok(next)
}

/// Whether every agent reports the expected trust, and a certificate of the signing authority.
pub async fn proven(fleet: &Arc<Fleet>) -> Result<(), OpError> {
    let behind = for_each_stack(fleet, &[], |cluster| async move {
        if cluster.ledger().etcd.adopted().is_some() {
            return Ok(Vec::new());
        }
        let observed = Observer::new(Arc::clone(&cluster))?.look().await?;
        let agents = &cluster.desired.agents;
        let lags = |name: &&Name| {
            let report = observed.report(name);
            report.is_none_or(|report| {
                let shows = report.certificate.as_ref().map(|certificate| &certificate.issuer_key);
                report.access != agents.access || shows != agents.signer.as_ref()
            })
        };
        Ok(cluster.desired.all_machines().filter(lags).cloned().collect::<Vec<_>>())
    });
    let behind: Vec<String> = behind.await?.into_iter().flatten().map(|name| name.to_string()).collect();
    if behind.is_empty() { Ok(()) } else { Err(OpError::AgentsBehind(behind)) }
}
