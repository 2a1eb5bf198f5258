//! Seeded lives in which CAs change → our planner has no member or client rejected, and seven broken ones are caught.

use jiff::Timestamp;
use raftsman_core::action::{Action, PkiAction};
use raftsman_core::desired::Stack;
use raftsman_core::observed::{Agent, AgentReport, Fact, HandshakeResult, Handshakes, Observed, TrustDomain, View};
use raftsman_core::plan::{Pause, Plan, Reason, Step, plan};
use raftsman_core::spec::Name;
use raftsman_tests::sim::{Cast, Planner, Violation, all_at_once, lives};

#[test]
fn no_plan_of_ours_has_a_member_or_client_rejected() {
    let first = std::env::var("RAFTSMAN_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0_u64);
    let lived = if first == 0 { 800 } else { 1 };
    let stats = lives(first..first + lived, &Cast::with_rotations(), plan)
        .unwrap_or_else(|v| panic!("{v}\nagain with: RAFTSMAN_SEED={}", v.seed));
    println!("{stats:?}");
    if lived == 1 {
        return;
    }
    // A simulation in which nothing happens proves nothing.
    assert!(stats.converged * 2 > 800, "{stats:?}");
    assert!(stats.restarts > 1_000, "{stats:?}");
}

/// What a CA that is activated too early or distrusted too late leads to: members reject each other, or raftsman.
const REJECTED: [&str; 2] = ["no member is cut off", "our clients are accepted"];

#[track_caller]
fn caught(planner: Planner, rules: &[&str]) {
    match lives(0..3_000, &Cast::with_rotations(), planner) {
        Err(Violation { rule: broken, .. }) if rules.contains(&broken) => {}
        Err(other) => panic!("caught, but for another rule: {other}"),
        Ok(stats) => panic!("a broken planner went unnoticed: {stats:?}"),
    }
}

/// The same observation with other reports.
fn with(observed: &Observed, change: impl Fn(&mut AgentReport, &Observed)) -> Observed {
    let mut changed = observed.clone();
    for member in changed.machines.values_mut() {
        if let Fact::Seen { value: Agent::Claimed(report), .. } = &mut member.agent {
            change(report, observed);
        }
    }
    changed
}

/// As if every handshake had succeeded, and every client of the old CA had been rejected.
fn assume_handshakes(observed: &mut Observed) {
    let names: Vec<Name> = observed.machines.keys().cloned().collect();
    for name in &names {
        let mut all = Handshakes::default();
        all.peers.extend(names.iter().map(|other| (other.clone(), None)));
        for side in TrustDomain::ALL {
            let Some(trust) = observed.ledger.etcd.trust(side) else { continue };
            let handshake = |key: &str| match trust.trusts(key) {
                true => HandshakeResult::Accepted,
                false => HandshakeResult::Refused("assumed".to_owned()),
            };
            all.let_in.insert(side, trust.known().iter().map(|a| (a.key.clone(), handshake(&a.key))).collect());
        }
        observed.etcd.handshakes.insert(name.clone(), all);
    }
}

/// Does not test any handshake.
fn proves_nothing(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut observed = observed.clone();
    assume_handshakes(&mut observed);
    plan(desired, &observed, now)
}

/// Takes the CAs on the disk for those that the process has loaded: it restarts no member.
fn disk_is_enough(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut observed = with(observed, |report, _| {
        for (purpose, certificate) in &report.etcd.certificates {
            report.etcd.running_trust.extend(certificate.trust.clone().map(|digest| (*purpose, digest)));
        }
    });
    assume_handshakes(&mut observed);
    plan(desired, &observed, now)
}

/// Lets the next CA sign before any member trusts it.
fn switches_first(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut observed = with(observed, |report, observed| {
        for side in TrustDomain::ALL {
            let Some(digest) = observed.ledger.etcd.trust(side).map(|t| t.digest()) else { continue };
            if let Some(certificate) = report.etcd.certificates.get_mut(&side.purpose()) {
                certificate.trust = Some(digest.clone());
                report.etcd.running_trust.insert(side.purpose(), digest);
            }
        }
    });
    assume_handshakes(&mut observed);
    plan(desired, &observed, now)
}

/// Trusts the old authority no more while members still show what it signed.
fn retires_first(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut observed = with(observed, |report, observed| {
        let Some(trust) = observed.ledger.etcd.trust(TrustDomain::Peers) else { return };
        let shown = report.etcd.certificates.get_mut(&TrustDomain::Peers.purpose());
        if let Some(certificate) = shown.filter(|c| trust.trusts(&c.issuer_key)) {
            certificate.issuer_key.clone_from(&trust.current.key);
        }
    });
    assume_handshakes(&mut observed);
    plan(desired, &observed, now)
}

/// Does not wait for clients to get new certificates.
fn hurries(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let tolerance = View::of(observed).tolerance();
    if plan.is_done() && observed.ledger.etcd.clients.as_ref().is_some_and(|t| !t.old.is_empty()) {
        plan.steps.push(Step {
            action: Action::Pki(PkiAction::DistrustAuthority { side: TrustDomain::Clients, unused: false }),
            reason: Reason::NotNeeded,
            before: tolerance,
            during: tolerance,
            after: tolerance,
            pause: Pause::None,
            copies: None,
        });
    }
    plan
}

/// Forgets the old authority as soon as it is not to be trusted any more.
fn forgets_first(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let retired = |side: &TrustDomain| observed.ledger.etcd.trust(*side).is_some_and(|t| !t.retired.is_empty());
    let quiet = View::of(observed).has_quorum() && plan.steps.len() == 1;
    if let (Some(side), true) = (TrustDomain::ALL.into_iter().find(retired), quiet) {
        plan.steps[0].action = Action::Pki(PkiAction::DeleteAuthority { side });
    }
    plan
}

#[test]
fn a_planner_that_proves_nothing_is_caught() {
    caught(proves_nothing, &REJECTED);
}

#[test]
fn a_planner_that_restarts_no_member_is_caught() {
    caught(disk_is_enough, &REJECTED);
}

#[test]
fn a_planner_that_activates_before_members_trust_is_caught() {
    caught(switches_first, &REJECTED);
}

#[test]
fn a_planner_that_retires_what_is_still_shown_is_caught() {
    caught(retires_first, &REJECTED);
}

#[test]
fn a_planner_that_restarts_all_at_once_for_trust_is_caught() {
    caught(all_at_once, &["a step that changes the cluster is alone"]);
}

#[test]
fn a_planner_that_gives_clients_no_time_is_caught() {
    caught(hurries, &["clients get time for new certificates"]);
}

#[test]
fn a_planner_that_forgets_before_all_refuse_is_caught() {
    caught(forgets_first, &["the old CA is rejected"]);
}
