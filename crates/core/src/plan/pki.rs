//! Certificates that should be, certificates that are → authorities to make, leaves to sign.

use jiff::{SignedDuration, Timestamp};

use super::{Draft, Reason, Step, Waiting, members};
use crate::action::Action;
use crate::desired::{LeafProfile, Member};
use crate::observed::{AgentReport, AuthorityRecord, CertificateFacts, Purpose};

/// Authorities come first: nothing can be signed without them.
pub(super) fn authorities(draft: &mut Draft<'_>) {
    let ledger = &draft.observed.ledger;
    if ledger.peers.is_none() || ledger.clients.is_none() {
        draft.steps.push(Step::new(Action::MakeAuthorities, Reason::Missing));
    }
    for (name, authority) in [("peers", &ledger.peers), ("clients", &ledger.clients)] {
        if authority.as_ref().is_some_and(|a| a.not_after <= draft.now) {
            draft.waiting.push(Waiting::AuthorityExpired { authority: name.to_owned() });
        }
    }
}

/// Signs what a member lacks. Whether all is there already is the answer.
pub(super) fn leaves(draft: &mut Draft<'_>, member: &Member, report: &AgentReport) -> bool {
    let mut complete = true;
    for purpose in Purpose::ALL {
        let authority = match purpose {
            Purpose::Peer => &draft.observed.ledger.peers,
            Purpose::Server => &draft.observed.ledger.clients,
        };
        let Some(authority) = authority.as_ref().filter(|a| a.not_after > draft.now) else {
            complete = false;
            continue;
        };
        let seen = report.etcd.certificates.get(&purpose);
        // A member on the move is reached at its old address until it is restarted.
        let also = Some(members::serves_at(draft, member)).filter(|address| *address != member.address);
        if let Some(reason) = flaw(seen, &member.profile(purpose).with(also), authority, draft.now) {
            let action = Action::IssueCertificate { machine: member.name.clone(), purpose, also };
            // A certificate that merely ends soon still serves: it holds nothing up.
            complete &= matches!(reason, Reason::Expires { hours } if hours > 0);
            draft.steps.push(Step::new(action, reason));
        }
    }
    complete
}

/// What is wrong with a certificate, if anything is.
fn flaw(
    seen: Option<&CertificateFacts>,
    profile: &LeafProfile,
    authority: &AuthorityRecord,
    now: Timestamp,
) -> Option<Reason> {
    let Some(seen) = seen else {
        return Some(Reason::Missing);
    };
    if seen.issuer_key != authority.key {
        return Some(Reason::OtherAuthority);
    }
    if seen.names != profile.all_names() {
        return Some(Reason::OtherNames);
    }
    let left = seen.not_after.duration_since(now);
    // No certificate outlives its authority, so near the authority's end a new one may not be better than the old.
    let new_end = later(now, profile.validity_ms).min(authority.not_after);
    let gain = new_end.duration_since(seen.not_after);
    (left <= millis(profile.renew_before_ms) && gain > SignedDuration::from_mins(1))
        .then(|| Reason::Expires { hours: left.as_hours() })
}

fn millis(ms: u64) -> SignedDuration {
    SignedDuration::from_millis(i64::try_from(ms).unwrap_or(i64::MAX))
}

fn later(now: Timestamp, ms: u64) -> Timestamp {
    now.checked_add(millis(ms)).unwrap_or(Timestamp::MAX)
}
