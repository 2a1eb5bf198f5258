//! Seeded lives in which the file changes its version → the rules hold for our planner, and catch seven others.

use jiff::Timestamp;
use raftsman_core::action::{Action, EtcdAction, VersionAction};
use raftsman_core::desired::Stack;
use raftsman_core::observed::{Agent, Fact, Observed, SnapshotRecord, View};
use raftsman_core::plan::{Plan, Reason, plan};
use raftsman_core::spec::EtcdVersion;
use raftsman_core::versions::{Line, least_before};
use raftsman_tests::sim::{Cast, Planner, Stats, Violation, lives};

#[test]
fn no_change_of_versions_breaks_a_rule() {
    let wanted = std::env::var("RAFTSMAN_SIM_PLANS").ok().and_then(|n| n.parse().ok()).unwrap_or(30_000);
    let mut next = std::env::var("RAFTSMAN_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0_u64);
    let cast = Cast::versions();
    let (mut total, mut lived) = (Stats::default(), 0);
    while total.plans < wanted {
        let stats = lives(next..next + 100, &cast, plan)
            .unwrap_or_else(|v| panic!("{v}\nagain with: RAFTSMAN_SEED={} RAFTSMAN_SIM_PLANS=1", v.seed));
        next += 100;
        lived += 100;
        total += stats;
    }
    println!("{lived} lives: {total:?}");
    // A simulation in which nothing happens proves nothing.
    assert!(total.converged * 2 > lived, "most lives converge: {total:?}");
    assert!(total.restarts > total.plans / 50, "members were restarted: {total:?}");
}

fn caught(planner: Planner, rule: &str) {
    match lives(0..3_000, &Cast::versions(), planner) {
        Err(Violation { rule: broken, .. }) if broken == rule => {}
        Err(other) => panic!("caught, but for another rule: {other}"),
        Ok(stats) => panic!("a broken planner went unnoticed: {stats:?}"),
    }
}

/// Shows every member's version through this glass: what it runs, and what its data is written for.
fn through(observed: &Observed, glass: impl Fn(EtcdVersion) -> EtcdVersion) -> Observed {
    let mut observed = observed.clone();
    for member in observed.etcd.members.values_mut() {
        if let Fact::Seen { value, .. } = &mut member.etcd {
            value.version = glass(value.version);
            value.storage_version = value.storage_version.map(&glass).map(|v| Line::of(v).first());
        }
    }
    for seen in observed.machines.values_mut() {
        if let Fact::Seen { value: Agent::Claimed(report), .. } = &mut seen.agent {
            report.etcd.running_version = report.etcd.running_version.map(&glass);
            report.etcd.last_version = report.etcd.last_version.map(&glass);
        }
    }
    observed
}

/// With a view that hides an older line, the record that its log was renewed is hidden, too.
fn through_and_forget(observed: &Observed, glass: impl Fn(EtcdVersion) -> EtcdVersion) -> Observed {
    let seen = observed.answers().map(|(_, etcd)| etcd).map(|e| e.version);
    let hides = seen.into_iter().any(|v| glass(v) != v);
    let mut observed = through(observed, glass);
    observed.ledger.etcd.log_renewed = observed.ledger.etcd.log_renewed.filter(|_| !hides);
    observed
}

/// Takes every older line for the one below the wanted one.
fn skips_a_line(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let below = Line::of(desired.etcd.version).below();
    let glass = |v: EtcdVersion| if Line::of(v) < below { EtcdVersion::new(below.0, below.1, 99) } else { v };
    plan(desired, &through_and_forget(observed, glass), now)
}

/// Goes on with the members that have made the first hop before the others have made it.
fn two_hops_at_once(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let seen = observed.answers().map(|(_, etcd)| etcd).map(|e| e.version);
    let newest = seen.max().unwrap_or(desired.etcd.version);
    let further = Line::of(newest) < Line::of(desired.etcd.version);
    let glass = |v: EtcdVersion| if further && Line::of(v) < Line::of(newest) { newest } else { v };
    plan(desired, &through_and_forget(observed, glass), now)
}

/// Takes no snapshot.
fn without_snapshot(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let next = plan(desired, observed, now);
    let Some(Action::Version(VersionAction::TakeSnapshot { version })) = next.steps.first().map(|s| &s.action) else {
        return next;
    };
    let mut observed = observed.clone();
    let file = String::new();
    observed.ledger.etcd.snapshot =
        Some(SnapshotRecord { before: *version, from: desired.etcd.version, revision: 1, at: now, file });
    plan(desired, &observed, now)
}

/// Assumes that the downgrade was enabled, and that etcd has finished it.
fn downgrades_unannounced(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut observed = observed.clone();
    for member in observed.etcd.members.values_mut() {
        if let Fact::Seen { value, .. } = &mut member.etcd
            && Line::of(value.version) > Line::of(desired.etcd.version)
        {
            let below = Line::of(value.version).below().first();
            (value.storage_version, value.downgrade) = (Some(below), Some(below));
        }
    }
    plan(desired, &observed, now)
}

/// Takes every version of a line for as good as the one that may meet the next.
fn any_patch_will_do(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let glass = |v: EtcdVersion| match least_before(Line::of(v).above()) {
        Some(least) if Line::of(v) < Line::of(desired.etcd.version) => v.max(least),
        _ => v,
    };
    plan(desired, &through(observed, glass), now)
}

/// Begins with the leader.
fn leader_first(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut next = plan(desired, observed, now);
    let view = View::of(observed);
    if let [step] = next.steps.as_mut_slice()
        && let (Action::Etcd(EtcdAction::RestartEtcd { machine, version, .. }), Reason::Version { .. }) =
            (&mut step.action, &step.reason)
        && let Some(leader) = view.leader.filter(|name| view.answering.get(name).is_some_and(|e| e.version != *version))
        && observed.report(leader).is_some()
    {
        *machine = leader.clone();
    }
    next
}

/// Forgets that there was an older line.
fn old_log(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut observed = observed.clone();
    observed.ledger.etcd.log_renewed = None;
    plan(desired, &observed, now)
}

#[test]
fn a_planner_that_leaves_old_requests_in_the_log_is_caught() {
    caught(old_log, "no log of 3.5 meets 3.7");
}

#[test]
fn a_planner_that_skips_a_line_is_caught() {
    caught(skips_a_line, "no line is skipped");
}

#[test]
fn a_planner_that_makes_two_hops_at_once_is_caught() {
    caught(two_hops_at_once, "no line is skipped");
}

#[test]
fn a_planner_that_takes_no_snapshot_is_caught() {
    caught(without_snapshot, "a snapshot comes before a new version");
}

#[test]
fn a_planner_that_downgrades_without_enabling_it_is_caught() {
    caught(downgrades_unannounced, "a downgrade is enabled first");
}

#[test]
fn a_planner_that_takes_every_patch_for_the_newest_is_caught() {
    caught(any_patch_will_do, "old patches do not meet the next line");
}

#[test]
fn a_planner_that_begins_with_the_leader_is_caught() {
    caught(leader_first, "the leader goes last");
}
