//! PostgreSQL on etcd in faulted lives → no acknowledged commit is lost, and neither service is changed beside the other.

use raftsman_core::plan::plan;
use raftsman_tests::sim::{Cast, Stats, lives};

/// So many plans a run of the tests makes at least. Of what `RAFTSMAN_SIM_PLANS` asks for it makes two thirds: each life
/// takes three times as long as one of etcd alone.
fn wanted_plans() -> usize {
    let asked = std::env::var("RAFTSMAN_SIM_PLANS").ok().and_then(|n| n.parse::<usize>().ok());
    asked.map_or(80_000, |asked| (asked * 2).div_ceil(3))
}

fn live(cast: &Cast, wanted: usize) {
    let first = std::env::var("RAFTSMAN_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0_u64);
    let (mut total, mut lived) = (Stats::default(), 0);
    while total.plans < wanted {
        let seeds = first + lived..first + lived + 50;
        let stats = lives(seeds, cast, plan)
            .unwrap_or_else(|v| panic!("{v}\nagain with: RAFTSMAN_SEED={} RAFTSMAN_SIM_PLANS=1", v.seed));
        total += stats;
        lived += 50;
    }
    // A simulation in which nothing happens proves nothing.
    let lived = usize::try_from(lived).expect("a number");
    assert!(total.converged * 2 > lived, "most lives converge: {total:?}");
    assert!(total.restarts > total.plans / 200, "members and nodes were restarted: {total:?}");
}

#[test]
fn no_plan_of_ours_loses_a_commit() {
    live(&Cast::with_postgres(), wanted_plans());
}

#[test]
fn no_rotation_of_a_ca_cuts_a_node_off() {
    live(&Cast::with_postgres_and_rotations(), wanted_plans().div_ceil(2));
}
