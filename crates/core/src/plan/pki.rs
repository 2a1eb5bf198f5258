//! Certificates that should be, certificates that are → authorities to make, leaves to sign, trust to store.

use jiff::{SignedDuration, Timestamp};

use super::report::Report;
use super::{Draft, Reason, Step, Waiting, members, trust};
use crate::action::{MachineAction, PkiAction};
use crate::desired::{AGENT_RENEW_BEFORE, LeafProfile, Member};
use crate::observed::{AgentReport, AuthorityRecord, CertificateFacts, Purpose, Trust, TrustDomain};
use crate::spec::{Authority, Name};

/// Authorities come first: nothing can be signed without them.
pub(super) fn authorities(draft: &mut Draft<'_>) -> Report {
    let ledger = &draft.observed.ledger;
    if ledger.etcd.peers.is_none() || ledger.etcd.clients.is_none() {
        draft.steps.push(Step::new(PkiAction::MakeAuthorities, Reason::Missing));
    }
    for side in TrustDomain::ALL {
        let Some(authorities) = draft.observed.ledger.etcd.trust(side) else { continue };
        let unwanted = |next| !trust::is_wanted(draft.desired, draft.observed, side, next);
        if let Some(reason) = successor(draft, side, authorities) {
            draft.steps.push(Step::new(PkiAction::AddAuthority { side }, reason));
        } else if authorities.next.as_ref().is_some_and(unwanted) {
            // Nothing was ever signed by it.
            draft.steps.push(Step::new(PkiAction::DistrustAuthority { side, unused: true }, Reason::Changed));
        } else if authorities.current.not_after <= draft.now && authorities.next.is_none() {
            draft.waiting.push(Waiting::AuthorityExpired { authority: side.name().to_owned() });
        }
    }
    Report::Looked
}

/// Why there has to be another authority, if there has.
fn successor(draft: &Draft<'_>, side: TrustDomain, authorities: &Trust) -> Option<Reason> {
    // One rotation after the other: another one would extend by accident the time that clients have for this one.
    if authorities.finishes(side, draft.now) {
        return None;
    }
    let current = &authorities.current;
    if let Some(next) = &authorities.next {
        let back = trust::is_wanted(draft.desired, draft.observed, side, current);
        let wanted = trust::is_wanted(draft.desired, draft.observed, side, next);
        return (!wanted && !back).then_some(Reason::Changed);
    }
    if !trust::is_wanted(draft.desired, draft.observed, side, current) {
        return Some(Reason::Changed);
    }
    // An authority that the file brings is replaced when its owner brings another one.
    if *draft.desired.etcd.authority(side) != Authority::Made {
        return None;
    }
    if authorities.asked {
        return Some(Reason::Asked);
    }
    let left = current.not_after.duration_since(draft.now);
    (left < draft.desired.etcd.renew_authority_before()).then(|| Reason::Expires { hours: left.as_hours() })
}

/// Which clients an agent accepts, and which certificate it presents. Neither delays any other step, and a new CA signs
/// nothing before it is trusted.
pub(super) fn agent(draft: &mut Draft<'_>, name: &Name, report: &AgentReport) {
    let agents = &draft.desired.agents;
    if let Some(digest) = agents.access.clone().filter(|digest| report.access.as_ref() != Some(digest)) {
        let reason = if report.access.is_none() { Reason::Missing } else { Reason::Changed };
        draft.steps.push(Step::new(MachineAction::SetAccess { machine: name.clone(), digest }, reason));
        return;
    }
    let Some(seen) = &report.certificate else { return };
    let left = seen.not_after.duration_since(draft.now);
    let gain = agents.renewed_until(draft.now).duration_since(seen.not_after);
    let reason = if agents.signer.as_ref().is_some_and(|signer| *signer != seen.issuer_key) {
        Reason::OtherAuthority
    } else if left <= AGENT_RENEW_BEFORE && gain > SignedDuration::from_mins(1) {
        Reason::Expires { hours: left.as_hours() }
    } else {
        return;
    };
    draft.steps.push(Step::new(MachineAction::RenewAgent { machine: name.clone() }, reason));
}

/// Signs and stores what a member lacks; returns whether all is there already.
pub(super) fn leaves(draft: &mut Draft<'_>, member: &Member, report: &AgentReport) -> bool {
    let mut complete = true;
    for purpose in Purpose::ALL {
        let side = purpose.side();
        let Some(authorities) = draft.observed.ledger.etcd.trust(side) else {
            complete = false;
            continue;
        };
        let signer = authorities.signer(side, member.profile(purpose).renew_before(), draft.now);
        if signer.not_after <= draft.now {
            complete = false;
            continue;
        }
        let seen = report.etcd.certificates.get(&purpose);
        // A member that changes its address serves at the old one until it is restarted.
        let also = Some(members::serves_at(draft, member)).filter(|address| *address != member.address);
        // While trust in the new authority is distributed to clients, any authority that they trust is sufficient.
        let waits = !authorities.old.is_empty() && !authorities.finishes(side, draft.now);
        let trusted = Some(authorities).filter(|_| waits);
        let flaw = flaw(seen, &member.profile(purpose).with(also), trusted, signer, draft.now);
        // No member presents a certificate that other members reject, unless they reject its present one anyway.
        let useless = seen.is_none_or(|seen| !authorities.accepts(seen, draft.now));
        let accepted = || trust::accepted(draft.observed, &draft.view, side, &signer.key, &member.name).is_ok();
        match flaw {
            Some(Reason::OtherAuthority) if !useless && !accepted() => {}
            Some(reason) => {
                let action = PkiAction::IssueCertificate { machine: member.name.clone(), purpose, also };
                // A certificate that merely expires soon is still valid: it delays nothing.
                complete &= matches!(reason, Reason::Expires { hours } if hours > 0);
                draft.steps.push(Step::new(action, reason));
                // The trust is stored with it.
                continue;
            }
            None => {}
        }
        if seen.is_some_and(|seen| seen.trust.as_ref() != Some(&authorities.digest())) {
            let action = PkiAction::StoreTrust { machine: member.name.clone(), purpose };
            draft.steps.push(Step::new(action, Reason::OtherTrust));
            complete = false;
        }
    }
    complete
}

/// What is wrong with a certificate, if anything is. One of another authority is right where it is among those that are
/// trusted as well.
pub(super) fn flaw(
    seen: Option<&CertificateFacts>,
    profile: &LeafProfile,
    trusted: Option<&Trust>,
    signer: &AuthorityRecord,
    now: Timestamp,
) -> Option<Reason> {
    let Some(seen) = seen else {
        return Some(Reason::Missing);
    };
    if seen.issuer_key != signer.key && !trusted.is_some_and(|trust| trust.trusts(&seen.issuer_key)) {
        return Some(Reason::OtherAuthority);
    }
    if seen.names != profile.all_names() {
        return Some(Reason::OtherNames);
    }
    let left = seen.not_after.duration_since(now);
    // No certificate outlives its authority, so near the authority's end a new one may not be better than the old.
    let new_end = later(now, profile.validity_ms).min(signer.not_after);
    let gain = new_end.duration_since(seen.not_after);
    (left <= profile.renew_before() && gain > SignedDuration::from_mins(1))
        .then(|| Reason::Expires { hours: left.as_hours() })
}

fn later(now: Timestamp, ms: u64) -> Timestamp {
    let span = SignedDuration::from_millis(i64::try_from(ms).unwrap_or(i64::MAX));
    now.checked_add(span).unwrap_or(Timestamp::MAX)
}
