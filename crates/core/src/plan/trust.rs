//! A rotation of authorities, which members trust which → its next phase, once every member is seen to be ready.
//!
//! etcd reads certificates at every handshake, but the authorities that it trusts only when it starts. So the next
//! authority is trusted by all before it signs anything, and the old one until its certificates are out of use; and no
//! phase begins before handshakes have shown that the previous one is in effect on every member.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::report::Report;
use super::situation::{Participant, emergency, left_behind, may_lead, participants};
use super::{Draft, Reason, Step, Waiting, members};
use crate::action::PkiAction;
use crate::desired::Stack;
use crate::observed::{
    AgentReport, AuthorityRecord, HandshakeResult, Observed, Origin, ServiceState, Trust, TrustDomain, View, quorum,
};
use crate::spec::{AuthMode, Authority, Name};

/// The next phase of a rotation of an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The next one signs.
    Switch,
    /// The old authorities are distrusted.
    Retire,
    /// The distrusted authorities are deleted.
    Forget,
}

impl Phase {
    pub(super) fn action(self, side: TrustDomain) -> PkiAction {
        match self {
            Self::Switch => PkiAction::ActivateAuthority { side },
            Self::Retire => PkiAction::DistrustAuthority { side, unused: false },
            Self::Forget => PkiAction::DeleteAuthority { side },
        }
    }

    fn reason(self) -> Reason {
        match self {
            Self::Switch => Reason::TrustedByAll,
            Self::Retire => Reason::NotNeeded,
            Self::Forget => Reason::RefusedByAll,
        }
    }
}

/// Whether this authority is one that the file wants: made as it says, or the one that it brings.
pub(super) fn is_wanted(desired: &Stack, observed: &Observed, side: TrustDomain, record: &AuthorityRecord) -> bool {
    match (desired.etcd.authority(side), observed.etcd.brought.get(&side)) {
        (Authority::Made, _) => record.origin == Origin::Made,
        // Where it could not be read, nothing is concluded.
        (Authority::Brought(_), brought) => brought.is_none_or(|b| b.certificate == record.certificate),
    }
}

/// The next phase of a change of this side's authorities.
pub(super) fn phase(desired: &Stack, observed: &Observed, side: TrustDomain, now: Timestamp) -> Option<Phase> {
    let trust = observed.ledger.etcd.trust(side)?;
    match &trust.next {
        Some(next) if is_wanted(desired, observed, side, next) => Some(Phase::Switch),
        Some(_) => None,
        None if trust.finishes(side, now) => Some(Phase::Retire),
        None => (!trust.retired.is_empty()).then_some(Phase::Forget),
    }
}

/// The members that must be ready before a phase: all, in an emergency all that can be reached. An emergency leaves no
/// member behind where the others would be no majority while one of them restarts.
fn needed<'a>(observed: &'a Observed, view: &View<'_>, trust: &Trust) -> Vec<Participant<'a>> {
    let mut all = participants(observed, view);
    let of = all.len();
    if trust.now {
        all.retain(|(_, report)| report.is_some_and(runs));
        if all.len() <= quorum(of) {
            return participants(observed, view);
        }
    }
    all
}

fn runs(report: &AgentReport) -> bool {
    report.etcd.service.state == ServiceState::Running
}

/// Whether etcd checks client certificates on this side. Clients with passwords present none.
fn checked(desired: &Stack, observed: &Observed, side: TrustDomain) -> bool {
    side == TrustDomain::Peers || observed.ledger.etcd.auth.unwrap_or(desired.etcd.auth) != AuthMode::Password
}

/// Whether the running process, and what it would read if it were started now, are as they should be.
pub(super) fn in_effect(desired: &Stack, observed: &Observed, side: TrustDomain, report: &AgentReport) -> bool {
    let Some(trust) = observed.ledger.etcd.trust(side) else { return true };
    let (digest, etcd) = (trust.digest(), &report.etcd);
    let stored = etcd.certificates.get(&side.purpose()).is_some_and(|c| c.trust.as_ref() == Some(&digest));
    let running = etcd.running_trust.get(&side.purpose()) == Some(&digest);
    stored && (running || !checked(desired, observed, side))
}

/// Members that have not got everything yet that must be there before the phase.
fn laggards(desired: &Stack, observed: &Observed, view: &View<'_>, side: TrustDomain, phase: Phase) -> Vec<Name> {
    let Some(trust) = observed.ledger.etcd.trust(side) else { return Vec::new() };
    let ready = |report: &AgentReport| {
        let leaf = report.etcd.certificates.get(&side.purpose());
        let reissued = leaf.is_some_and(|c| c.issuer_key == trust.current.key);
        runs(report) && in_effect(desired, observed, side, report) && (reissued || phase != Phase::Retire)
    };
    let needed = needed(observed, view, trust);
    let late = needed.iter().filter(|(_, r)| !r.is_some_and(ready)).map(|(name, _)| *name);
    // A leader that is left behind must transfer leadership first: the others could not follow it.
    let leads = view.leader.filter(|leader| side == TrustDomain::Peers && !may_lead(observed, view, leader));
    let late: BTreeSet<&Name> = late.chain(leads).collect();
    late.into_iter().cloned().collect()
}

/// Transfers leadership away from a member that others could not follow once they are restarted. Its agent is not
/// needed for it.
pub(super) fn hand_over_left_behind(draft: &mut Draft<'_>) -> Report {
    let leads = |name: &Name| may_lead(draft.observed, &draft.view, name);
    let Some(leader) = draft.view.leader.filter(|leader| !leads(leader)).cloned() else { return Report::Looked };
    if draft.view.healthy.iter().any(|name| leads(name)) {
        members::hand_over(draft, &leader);
    }
    Report::Looked
}

/// Sides on which handshakes have to be tested now: a phase waits for nothing else.
pub fn to_be_proven(desired: &Stack, observed: &Observed, now: Timestamp) -> Vec<TrustDomain> {
    let view = View::of(observed);
    let due = |side: &TrustDomain| match phase(desired, observed, *side, now) {
        None => false,
        Some(phase) => !in_vain(observed, *side, now) && laggards(desired, observed, &view, *side, phase).is_empty(),
    };
    TrustDomain::ALL.into_iter().filter(due).collect()
}

/// Whether the authority that signs has expired: what it signed has expired with it, and no handshake can succeed.
fn in_vain(observed: &Observed, side: TrustDomain, now: Timestamp) -> bool {
    observed.ledger.etcd.trust(side).is_some_and(|t| t.current.not_after <= now)
}

/// The preconditions of the phase that handshakes have not shown yet.
fn unproven(
    desired: &Stack,
    observed: &Observed,
    view: &View<'_>,
    side: TrustDomain,
    phase: Phase,
    now: Timestamp,
) -> Vec<Waiting> {
    let Some(trust) = observed.ledger.etcd.trust(side) else { return Vec::new() };
    let needed = needed(observed, view, trust);
    let mut missing = Vec::new();
    let mut failed = |from: String, to: &Name, error: &str| {
        missing.push(Waiting::HandshakeFailed { from, to: to.clone(), error: error.to_owned() });
    };
    let untried = "not tested yet";
    let empty = Default::default();
    let mut open = Vec::new();
    for (name, _) in &needed {
        let tried = observed.etcd.handshakes.get(*name).unwrap_or(&empty);
        if side == TrustDomain::Peers {
            for (other, _) in needed.iter().filter(|(other, _)| other != name) {
                match tried.peers.get(*other) {
                    Some(None) => {}
                    Some(Some(error)) => failed(name.to_string(), other, error),
                    None => failed(name.to_string(), other, untried),
                }
            }
        }
        if !checked(desired, observed, side) {
            continue;
        }
        let handshake = |key: &str| tried.let_in.get(&side).and_then(|keys| keys.get(key));
        let lives = |a: &&AuthorityRecord| a.not_after > now;
        for authority in trust.trusted().into_iter().filter(lives) {
            let who = || format!("a certificate of the {side} CA {}", authority.number);
            match handshake(&authority.key) {
                Some(HandshakeResult::Accepted) => {}
                Some(HandshakeResult::Refused(error) | HandshakeResult::Unclear(error)) => failed(who(), name, error),
                None => failed(who(), name, untried),
            }
        }
        // A retired authority may share its key with one that is still trusted.
        let gone = trust.retired.iter().filter(lives).filter(|a| !trust.trusts(&a.key));
        for authority in gone.filter(|_| phase == Phase::Forget) {
            let who = || format!("a certificate of the {side} CA {}", authority.number);
            match handshake(&authority.key) {
                Some(HandshakeResult::Refused(_)) => {}
                Some(HandshakeResult::Accepted) => {
                    open.push(Waiting::OldCaAccepted { machine: (*name).clone(), side, number: authority.number })
                }
                Some(HandshakeResult::Unclear(error)) => failed(who(), name, error),
                None => failed(who(), name, untried),
            }
        }
    }
    missing.extend(open);
    missing
}

/// Why the phase must not begin now; nothing when it may.
pub(super) fn hindrances(
    desired: &Stack,
    observed: &Observed,
    side: TrustDomain,
    phase: Phase,
    now: Timestamp,
) -> Vec<Waiting> {
    let view = View::of(observed);
    // The current authority has expired, so no handshake succeeds any more: nothing is lost by going on.
    if phase == Phase::Switch && in_vain(observed, side, now) {
        return Vec::new();
    }
    let lag = laggards(desired, observed, &view, side, phase);
    if !lag.is_empty() {
        return lag.into_iter().map(|machine| Waiting::TrustLags { machine, side }).collect();
    }
    unproven(desired, observed, &view, side, phase, now)
}

/// Advances rotations of authorities by one phase, where every member is ready for it. Both sides advance together, so
/// that members are restarted once for both.
pub(super) fn rotate(draft: &mut Draft<'_>) -> Report {
    let (desired, observed, now) = (draft.desired, draft.observed, draft.now);
    let phases = TrustDomain::ALL.into_iter().filter_map(|side| Some((phase(desired, observed, side, now)?, side)));
    let phases: Vec<(Phase, TrustDomain)> = phases.collect();
    let Some(first) = phases.iter().map(|(phase, _)| *phase).min() else { return Report::Looked };
    let quiet = draft.steps.is_empty();
    for (phase, side) in phases {
        let hindrances = hindrances(desired, observed, side, phase, now);
        if hindrances.is_empty() {
            if quiet && phase == first {
                let ended =
                    observed.ledger.etcd.trust(side).filter(|t| phase == Phase::Switch && t.current.not_after <= now);
                let reason = ended.map_or(phase.reason(), |_| Reason::Expires { hours: -1 });
                draft.steps.push(Step::new(phase.action(side), reason));
            }
            continue;
        }
        // A member that lags for a known reason has that reported already.
        let described: Vec<Name> = draft.waiting.iter().filter_map(|w| w.machine().cloned()).collect();
        let known = |machine: &Name| described.contains(machine) || draft.has_step_for(machine);
        let new = |w: &Waiting| !matches!(w, Waiting::TrustLags { machine, .. } if known(machine));
        let new: Vec<Waiting> = hindrances.into_iter().filter(new).collect();
        draft.waiting.extend(new);
    }
    Report::Looked
}

/// Whether every other member accepts what this authority signs, running and when started anew.
pub(super) fn accepted(
    observed: &Observed,
    view: &View<'_>,
    side: TrustDomain,
    key: &str,
    machine: &Name,
) -> Result<(), Name> {
    // The owners of clients distribute trust to them; raftsman's own clients accept every trusted authority.
    let Some(trust) = observed.ledger.etcd.trust(side).filter(|_| side == TrustDomain::Peers) else { return Ok(()) };
    let others = needed(observed, view, trust).into_iter().filter(|(name, _)| *name != machine);
    for (name, report) in others {
        let Some(report) = report else { return Err(name.clone()) };
        let (etcd, purpose) = (&report.etcd, side.purpose());
        let stored = etcd.certificates.get(&purpose).and_then(|c| c.trust.as_ref());
        let running = etcd.running_trust.get(&purpose).filter(|_| runs(report));
        let holds = |digest: &String| trust.keys_of(digest).is_some_and(|keys| keys.contains(key));
        if !stored.into_iter().chain(running).all(holds) {
            return Err(name.clone());
        }
    }
    Ok(())
}

/// Whether this member, once restarted, and the healthy others will still complete handshakes: in an emergency at least
/// with all that are not left behind, and with the leader.
pub(super) fn stays_in_touch(observed: &Observed, view: &View<'_>, machine: &Name) -> Result<(), Name> {
    let Some(trust) = observed.ledger.etcd.trust(TrustDomain::Peers) else { return Ok(()) };
    let leaf = |report: &AgentReport| report.etcd.certificates.get(&TrustDomain::Peers.purpose()).cloned();
    let Some(own) = observed.report(machine).and_then(leaf) else { return Ok(()) };
    let holds = |digest: Option<&String>, key: &str| match digest {
        // An older agent does not report the trust that it started etcd with.
        None => true,
        Some(digest) => trust.keys_of(digest).is_some_and(|keys| keys.contains(key)),
    };
    let left = left_behind(observed, view);
    if let Some(leader) = view.leader.filter(|leader| *leader != machine && left.contains(*leader)) {
        return Err(leader.clone());
    }
    let ignored = |name: &Name| emergency(observed) && left.contains(name);
    for (name, report) in participants(observed, view) {
        let counts = name != machine && view.healthy.contains(name) && !ignored(name);
        let Some(report) = report.filter(|_| counts) else { continue };
        let Some(other) = leaf(report) else { continue };
        let running = report.etcd.running_trust.get(&TrustDomain::Peers.purpose());
        if !holds(own.trust.as_ref(), &other.issuer_key) || !holds(running, &own.issuer_key) {
            return Err(name.clone());
        }
    }
    Ok(())
}

/// Whether the trust that is stored now covers every member, also one that presents a certificate of another authority.
pub(super) fn covers(observed: &Observed, view: &View<'_>, side: TrustDomain) -> Result<(), Name> {
    let Some(trust) = observed.ledger.etcd.trust(side).filter(|_| side == TrustDomain::Peers) else { return Ok(()) };
    for (name, report) in needed(observed, view, trust) {
        let leaf = report.and_then(|r| r.etcd.certificates.get(&side.purpose()));
        let ended = |key: &str| trust.by_key(key).is_some_and(|a| a.not_after <= observed.at());
        if leaf.is_some_and(|c| !trust.trusts(&c.issuer_key) && !ended(&c.issuer_key)) {
            return Err(name.clone());
        }
    }
    Ok(())
}

/// Whether so many members trust only expired authorities that the others are no majority: restarted one by one, each
/// would be alone.
pub(super) fn locked_out(desired: &Stack, observed: &Observed, view: &View<'_>, now: Timestamp) -> bool {
    TrustDomain::ALL.into_iter().filter(|side| checked(desired, observed, *side)).any(|side| {
        let Some(trust) = observed.ledger.etcd.trust(side) else { return false };
        let all = participants(observed, view);
        let ended = |key: &String| trust.by_key(key).is_some_and(|a| a.not_after <= now);
        let locked = |report: &AgentReport| {
            let running = report.etcd.running_trust.get(&side.purpose()).filter(|_| runs(report));
            running.and_then(|digest| trust.keys_of(digest)).is_some_and(|keys| keys.iter().all(ended))
        };
        let locked = all.iter().filter(|(_, r)| r.is_some_and(locked)).count();
        locked > 0 && all.len() - locked < quorum(all.len())
    })
}
