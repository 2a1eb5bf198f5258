//! A step of authorities, certificates or trust → what it costs, or why it must not be done.

use super::{Case, Cost, Refusal};
use crate::action::PkiAction;
use crate::observed::{Purpose, TrustDomain};
use crate::plan::trust;
use crate::spec::Name;

pub(super) fn judge(case: &Case<'_>, action: &PkiAction) -> Result<Cost, Refusal> {
    let judged = match action {
        PkiAction::MakeAuthorities
        | PkiAction::AddAuthority { .. }
        | PkiAction::DistrustAuthority { unused: true, .. } => Ok(()),
        PkiAction::ActivateAuthority { side }
        | PkiAction::DistrustAuthority { side, unused: false }
        | PkiAction::DeleteAuthority { side } => phase(case, *side, action).map_err(Refusal::Otherwise),
        PkiAction::StoreTrust { machine, purpose } => {
            case.report(machine)?;
            trust::covers(case.observed, case.view, purpose.side()).map_err(|other| {
                Refusal::Otherwise(format!("{other} still uses a certificate of a CA that it would not trust"))
            })
        }
        PkiAction::IssueCertificate { machine, purpose, .. } => sign(case, machine, *purpose),
    };
    judged.map(|()| case.unharmed)
}

/// Whether this phase of a change of authorities is the next, and every member is ready for it.
fn phase(case: &Case<'_>, side: TrustDomain, action: &PkiAction) -> Result<(), String> {
    let (desired, observed, now) = (case.desired, case.observed, case.observed.at());
    match trust::phase(desired, observed, side, now) {
        Some(phase) if phase.action(side) == *action => {
            match trust::hindrances(desired, observed, side, phase, now).first() {
                None => Ok(()),
                Some(waiting) => Err(waiting.to_string()),
            }
        }
        Some(_) | None => Err("the CAs are not as expected".to_owned()),
    }
}

/// No certificate that other members accept is replaced by one that they would not.
fn sign(case: &Case<'_>, machine: &Name, purpose: Purpose) -> Result<(), Refusal> {
    let (observed, now) = (case.observed, case.observed.at());
    let report = case.report(machine)?;
    let (Some(member), Some(authorities)) =
        (case.desired.etcd.member(machine), observed.ledger.etcd.trust(purpose.side()))
    else {
        return Err(Refusal::NotSeen("a CA to sign it"));
    };
    let signer = authorities.signer(purpose.side(), member.profile(purpose).renew_before(), now);
    let seen = report.etcd.certificates.get(&purpose);
    if seen.is_some_and(|seen| authorities.accepts(seen, now) && seen.issuer_key != signer.key) {
        trust::accepted(observed, case.view, purpose.side(), &signer.key, machine)
            .map_err(|other| Refusal::Otherwise(format!("{other} does not trust the CA that would sign it")))?;
    }
    Ok(())
}
