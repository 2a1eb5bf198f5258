//! Seeded random worlds and faults → the rules hold for our planner, and are seen to be broken by five others.

use jiff::Timestamp;
use raftsman_core::action::{Action, EtcdAction};
use raftsman_core::desired::Stack;
use raftsman_core::observed::{Data, EtcdLedger, Fact, Ledger, MachineObserved, Observed, Root, ServiceState, View};
use raftsman_core::plan::{Pause, Plan, Reason, Step, Waiting, plan};
use raftsman_tests::sim::{Cast, Planner, Stats, Violation, all_at_once, lives};

/// So many plans a run of the tests makes at least; `RAFTSMAN_SIM_PLANS` asks for more.
fn wanted_plans() -> usize {
    std::env::var("RAFTSMAN_SIM_PLANS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000)
}

#[test]
fn no_plan_of_ours_breaks_a_rule() {
    let begun = std::time::Instant::now();
    let cast = Cast::new();
    let first = std::env::var("RAFTSMAN_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0_u64);
    let mut total = Stats::default();
    let mut lived = 0;
    let mut next = first;
    while total.plans < wanted_plans() {
        let stats = lives(next..next + 200, &cast, plan)
            .unwrap_or_else(|v| panic!("{v}\nagain with: RAFTSMAN_SEED={} RAFTSMAN_SIM_PLANS=1", v.seed));
        next += 200;
        lived += 200;
        total += stats;
    }
    println!("{lived} lives in {:?}: {total:?}", begun.elapsed());
    // A simulation in which nothing happens proves nothing.
    assert!(total.converged * 2 > lived, "most lives converge: {total:?}");
    assert!(total.faults > total.plans / 20, "faults were thrown in: {total:?}");
    assert!(total.restarts > total.plans / 200, "members were restarted: {total:?}");
}

fn caught(planner: Planner, rule: &str) {
    let cast = Cast::new();
    match lives(0..3_000, &cast, planner) {
        Err(Violation { rule: broken, .. }) if broken == rule => {}
        Err(other) => panic!("caught, but for another rule: {other}"),
        Ok(stats) => panic!("a broken planner went unnoticed: {stats:?}"),
    }
}

/// Takes what it cannot reach for something that is not there.
fn unreachable_is_absent(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    fn absent<T>(fact: &mut Fact<T>) {
        if let Fact::Unreachable { since, .. } = fact {
            *fact = Fact::Absent { at: *since };
        }
    }
    let mut observed = observed.clone();
    for MachineObserved { machine, agent } in observed.machines.values_mut() {
        absent(machine);
        absent(agent);
    }
    observed.etcd.members.values_mut().for_each(|member| absent(&mut member.etcd));
    plan(desired, &observed, now)
}

/// Forgets what it started: a wiped member is started again, empty, under its old id.
fn forgetful(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut observed = observed.clone();
    let EtcdLedger { peers, clients, .. } = observed.ledger.etcd.clone();
    let etcd = EtcdLedger { peers, clients, ..EtcdLedger::default() };
    observed.ledger = Ledger { etcd, ..Ledger::default() };
    for seen in observed.machines.values_mut() {
        if let Fact::Seen { value: raftsman_core::observed::Agent::Claimed(report), .. } = &mut seen.agent {
            report.etcd.had_data = false;
        }
    }
    plan(desired, &observed, now)
}

/// Starts members one by one and waits for each to be healthy.
fn one_by_one(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let first_start = |s: &Step| matches!(s.reason, Reason::FirstStart { .. });
    if plan.steps.iter().any(first_start) {
        let waits = observed.reports().any(|(name, report)| {
            let running = report.etcd.service.state == ServiceState::Running;
            running && !observed.answer(name).is_some_and(|e| e.healthy())
        });
        plan.steps.truncate(usize::from(!waits));
        if waits {
            plan.waiting.push(Waiting::NoMajority { ready: 1, needed: 2 });
        }
    }
    plan
}

/// Restarts the next member as soon as the last one runs, whether or not it is healthy.
fn impatient(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    if !plan.steps.is_empty() || View::of(observed).listed.is_none() {
        return plan;
    }
    let stale = desired.etcd.members.iter().find_map(|m| {
        let etcd = &observed.report(&m.name)?.etcd;
        let Data::Present { cluster, .. } = etcd.data else { return None };
        let stale = etcd.running_config.is_some() && etcd.running_config.as_ref() != Some(&m.config.digest);
        stale.then(|| {
            Action::Etcd(EtcdAction::RestartEtcd { machine: m.name.clone(), version: desired.etcd.version, cluster })
        })
    });
    let tolerance = View::of(observed).tolerance();
    let steps = stale.into_iter().map(|action| Step {
        action,
        reason: Reason::Changed,
        before: tolerance,
        during: tolerance,
        after: tolerance,
        pause: Pause::None,
        copies: None,
    });
    Plan { steps: steps.collect(), waiting: plan.waiting }
}

/// Turns auth on before there is a superuser.
fn auth_first(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut observed = observed.clone();
    for member in observed.etcd.members.values_mut() {
        if let Fact::Seen { value, .. } = &mut member.etcd {
            value.root = Root::Ready;
        }
    }
    plan(desired, &observed, now)
}

/// Writes the configuration again at every look.
fn restless(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut observed = observed.clone();
    for seen in observed.machines.values_mut() {
        if let Fact::Seen { value: raftsman_core::observed::Agent::Claimed(report), .. } = &mut seen.agent {
            report.etcd.config = Some("something else".to_owned());
        }
    }
    plan(desired, &observed, now)
}

#[test]
fn a_planner_that_takes_unreachable_for_absent_is_caught() {
    caught(unreachable_is_absent, "unreachable is not absent");
}

#[test]
fn a_planner_that_forgets_what_it_started_is_caught() {
    caught(forgetful, "a member is bootstrapped once");
}

#[test]
fn a_planner_that_starts_members_one_by_one_is_caught() {
    caught(one_by_one, "converges when faults cease");
}

#[test]
fn a_planner_that_restarts_all_at_once_is_caught() {
    caught(all_at_once, "a step that changes the cluster is alone");
}

#[test]
fn a_planner_that_does_not_wait_for_health_is_caught() {
    caught(impatient, "no step of ours costs quorum");
}

#[test]
fn a_planner_that_enables_auth_before_root_exists_is_caught() {
    caught(auth_first, "auth only with root");
}

#[test]
fn a_planner_that_never_converges_is_caught() {
    caught(restless, "converges when faults cease");
}
