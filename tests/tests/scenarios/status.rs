//! What was observed of PostgreSQL clusters → what `raftsman status` says of them, and what a switchover would be.

use std::collections::BTreeSet;

use insta::assert_snapshot;
use raftsman_core::action::{Action, PostgresAction};
use raftsman_core::observed::{Agent, AgentReport, Copies, Fact, NodeFacts, NodeState, Observed, PgData, SystemId};
use raftsman_core::plan::{Plan, switchover};
use raftsman_core::spec::Name;
use raftsman_engine::ops::status::{NodeStatus, PostgresStatus, postgres};
use raftsman_tests::fixtures::{Scene, describe, epoch, standing};
use serde_json::Value;

use super::postgres::{THREE, empty, pg, settled, to_the_end};

fn node(number: u32) -> Name {
    Name::parse(&format!("pg-{number}")).expect("a name")
}

/// The status of the only cluster, in a few words a node.
fn told(scene: &Scene, observed: &Observed) -> String {
    let status = of(scene, observed);
    let optional = |value: Option<String>| value.unwrap_or_else(|| "?".to_owned());
    let copies = status.copies.map(|copies| match copies {
        Copies::NotWritable => "no writes".to_owned(),
        Copies::Synchronous(copies) => copies.to_string(),
    });
    let mut out = format!(
        "{}, {} leads, timeline {}, copies {} of {}, {}\n",
        status.state,
        optional(status.primary.as_ref().map(ToString::to_string)),
        optional(status.timeline.map(|timeline| timeline.to_string())),
        optional(copies),
        status.copies_wanted,
        optional(status.synchronous_mode.map(|mode| format!("{mode:?}"))),
    );
    if let Some(problem) = &status.problem {
        out.push_str(&format!("! {problem}\n"));
    }
    for node in &status.nodes {
        out.push_str(&line(node));
    }
    out
}

fn line(node: &NodeStatus) -> String {
    let mut parts = vec![node.state.to_owned()];
    parts.extend(node.version.map(|version| version.to_string()));
    parts.extend(node.patroni.map(|version| format!("patroni {version}")));
    parts.extend(node.timeline.map(|timeline| format!("timeline {timeline}")));
    parts.extend(node.lag.map(|lag| format!("lag {lag}")));
    parts.extend(node.pending.iter().map(|(key, of)| format!("{key} {} → {}", of.from, of.to)));
    parts.extend((!node.in_file).then(|| "not in the file".to_owned()));
    parts.extend(node.problem.iter().map(|problem| format!("! {problem}")));
    format!("{}: {}\n", node.name, parts.join(", "))
}

fn of(scene: &Scene, observed: &Observed) -> PostgresStatus {
    postgres(&scene.desired, observed, scene.world.now).remove(0)
}

fn report(observed: &mut Observed, number: u32) -> &mut AgentReport {
    match &mut observed.machines.get_mut(&node(number)).expect("a machine").agent {
        Fact::Seen { value: Agent::Claimed(report), .. } => report,
        other => panic!("{other:?}"),
    }
}

fn facts(observed: &mut Observed, number: u32) -> &mut NodeFacts {
    report(observed, number).postgres.as_mut().expect("a node").node.as_mut().expect("an answer")
}

/// The status, after something of a settled cluster is seen otherwise.
fn where_seen(scene: &Scene, change: impl Fn(&mut Observed)) -> String {
    let mut observed = scene.look();
    change(&mut observed);
    told(scene, &observed)
}

#[test]
fn before_anything_is_there() {
    let scene = empty(standing(&[], THREE));
    assert_snapshot!(told(&scene, &scene.look()), @"
    new, ? leads, timeline ?, copies ? of 1, ?
    pg-1: missing
    pg-2: missing
    pg-3: missing
    ");
    let nothing = Observed::nothing(&scene.desired, epoch());
    assert_snapshot!(told(&scene, &nothing), @"
    new, ? leads, timeline ?, copies ? of 1, ?
    pg-1: missing
    pg-2: missing
    pg-3: missing
    ");
}

#[test]
fn a_settled_cluster() {
    let scene = settled(standing(&[], THREE));
    assert_snapshot!(told(&scene, &scene.look()), @"
    settled, pg-1 leads, timeline 1, copies 1 of 1, Strict
    pg-1: primary, 17.11, patroni 4.1.5, timeline 1
    pg-2: sync_standby, 17.11, patroni 4.1.5, timeline 1, lag 0
    pg-3: standby, 17.11, patroni 4.1.5, timeline 1, lag 1
    ");
    let status = of(&scene, &scene.look());
    let first = status.first_expiry.expect("certificates");
    assert_eq!((first.what, first.member, first.due), ("rest", Some(node(1)), false));
    let authority = status.ca_expiry.expect("a CA");
    assert!(authority.at > first.at && !authority.due, "{authority:?}");
    let later = first.at;
    let due = postgres(&scene.desired, &scene.look(), later).remove(0);
    assert!(due.first_expiry.is_some_and(|first| first.due));
}

#[test]
fn what_is_seen_otherwise() {
    let scene = settled(standing(&[], THREE));
    let seen = |change: &dyn Fn(&mut Observed)| where_seen(&scene, change);
    let unreachable = || ("timed out".to_owned(), epoch());
    assert_snapshot!(seen(&|observed| {
        let (error, since) = unreachable();
        observed.postgres.get_mut(&pg()).expect("a cluster").keys = Fact::Unreachable { error, since };
    }), @"
    unknown, ? leads, timeline ?, copies ? of 1, ?
    ! Patroni's keys cannot be read: timed out
    pg-1: primary, 17.11, patroni 4.1.5, timeline 1
    pg-2: standby, 17.11, patroni 4.1.5, timeline 1
    pg-3: standby, 17.11, patroni 4.1.5, timeline 1
    ");
    assert_snapshot!(seen(&|observed| {
        let (error, since) = unreachable();
        observed.machines.get_mut(&node(2)).expect("a machine").agent = Fact::Unreachable { error, since };
    }), @"
    unsettled, pg-1 leads, timeline 1, copies 0 of 1, Strict
    ! Patroni on pg-2 does not answer
    pg-1: primary, 17.11, patroni 4.1.5, timeline 1
    pg-2: unreachable, ! timed out
    pg-3: standby, 17.11, patroni 4.1.5, timeline 1, lag 1
    ");
    assert_snapshot!(seen(&|observed| {
        let gone = observed.machines.get_mut(&node(3)).expect("a machine");
        (gone.machine, gone.agent) = (Fact::Absent { at: epoch() }, Fact::Absent { at: epoch() });
    }), @"
    unsettled, pg-1 leads, timeline 1, copies 1 of 1, Strict
    ! Patroni on pg-3 does not answer
    pg-1: primary, 17.11, patroni 4.1.5, timeline 1
    pg-2: sync_standby, 17.11, patroni 4.1.5, timeline 1, lag 0
    pg-3: missing
    ");
    assert_snapshot!(seen(&|observed| report(observed, 3).postgres = None), @"
    unsettled, pg-1 leads, timeline 1, copies 1 of 1, Strict
    ! Patroni on pg-3 does not answer
    pg-1: primary, 17.11, patroni 4.1.5, timeline 1
    pg-2: sync_standby, 17.11, patroni 4.1.5, timeline 1, lag 0
    pg-3: unknown, ! its agent (model) is too old to run PostgreSQL
    ");
    assert_snapshot!(seen(&|observed| facts(observed, 3).state = NodeState::CreatingReplica), @"
    unsettled, pg-1 leads, timeline 1, copies 1 of 1, Strict
    ! PostgreSQL does not run on pg-3
    pg-1: primary, 17.11, patroni 4.1.5, timeline 1
    pg-2: sync_standby, 17.11, patroni 4.1.5, timeline 1, lag 0
    pg-3: copying, 17.11, patroni 4.1.5, timeline 1, lag 1
    ");
    assert_snapshot!(seen(&|observed| facts(observed, 3).state = NodeState::StartFailed), @"
    unsettled, pg-1 leads, timeline 1, copies 1 of 1, Strict
    ! PostgreSQL does not run on pg-3
    pg-1: primary, 17.11, patroni 4.1.5, timeline 1
    pg-2: sync_standby, 17.11, patroni 4.1.5, timeline 1, lag 0
    pg-3: failed, 17.11, patroni 4.1.5, timeline 1, lag 1, ! PostgreSQL does not start
    ");
    assert_snapshot!(seen(&|observed| {
        let behind = facts(observed, 3);
        behind.position = behind.position.map(|position| position.saturating_sub(1));
        behind.streaming = false;
    }), @"
    settled, pg-1 leads, timeline 1, copies 1 of 1, Strict
    pg-1: primary, 17.11, patroni 4.1.5, timeline 1
    pg-2: sync_standby, 17.11, patroni 4.1.5, timeline 1, lag 0
    pg-3: standby, 17.11, patroni 4.1.5, timeline 1, lag 2, ! it does not receive changes as they are made
    ");
    assert_snapshot!(seen(&|observed| facts(observed, 3).timeline = Some(7)), @"
    unsettled, ? leads, timeline ?, copies no writes of 1, Strict
    ! its nodes are on different timelines: 1, 7
    pg-1: disputed, 17.11, patroni 4.1.5, timeline 1, ! it says that it takes writes, and does not have the leader's lease on the highest timeline
    pg-2: standby, 17.11, patroni 4.1.5, timeline 1
    pg-3: standby, 17.11, patroni 4.1.5, timeline 7
    ");
    assert_snapshot!(seen(&|observed| facts(observed, 3).system = Some(SystemId(1))), @"
    unsettled, pg-1 leads, timeline 1, copies 1 of 1, Strict
    ! pg-3 has the data of another cluster
    pg-1: primary, 17.11, patroni 4.1.5, timeline 1
    pg-2: sync_standby, 17.11, patroni 4.1.5, timeline 1, lag 0
    pg-3: disputed, 17.11, patroni 4.1.5, timeline 1, lag 1, ! it has the data of another cluster (1, not 1713926496014938459)
    ");
    assert_snapshot!(seen(&|observed| {
        let leads = facts(observed, 1).role;
        facts(observed, 2).role = leads;
    }), @"
    unsettled, ? leads, timeline ?, copies no writes of 1, Strict
    ! several nodes take writes: pg-1, pg-2
    pg-1: disputed, 17.11, patroni 4.1.5, timeline 1, ! it says that it takes writes, and so does pg-2
    pg-2: disputed, 17.11, patroni 4.1.5, timeline 1, ! it says that it takes writes, and so does pg-1
    pg-3: standby, 17.11, patroni 4.1.5, timeline 1
    ");
    assert_snapshot!(seen(&|observed| {
        let Fact::Seen { value: keys, .. } = &mut observed.postgres.get_mut(&pg()).expect("a cluster").keys else {
            return;
        };
        (keys.leader, keys.failover) = (None, true);
    }), @"
    unsettled, ? leads, timeline ?, copies no writes of 1, Strict
    ! a switchover or failover is under way
    pg-1: disputed, 17.11, patroni 4.1.5, timeline 1, ! it says that it takes writes, and does not have the leader's lease on the highest timeline
    pg-2: standby, 17.11, patroni 4.1.5, timeline 1
    pg-3: standby, 17.11, patroni 4.1.5, timeline 1
    ");
    assert_snapshot!(seen(&|observed| {
        (1..=3).for_each(|number| facts(observed, number).paused = true);
    }), @"
    unsettled, pg-1 leads, timeline 1, copies 1 of 1, Strict
    ! Patroni is paused
    pg-1: primary, 17.11, patroni 4.1.5, timeline 1
    pg-2: sync_standby, 17.11, patroni 4.1.5, timeline 1, lag 0
    pg-3: standby, 17.11, patroni 4.1.5, timeline 1, lag 1
    ");
}

#[test]
fn a_patroni_that_does_not_answer_is_starting_or_silent() {
    let scene = settled(standing(&[], THREE));
    let seen = |seconds: i64| {
        where_seen(&scene, |observed| {
            let at = observed.at();
            let on = report(observed, 3).postgres.as_mut().expect("a node");
            on.node = Err("connection refused".to_owned());
            on.service.since = at.checked_sub(jiff::SignedDuration::from_secs(seconds)).ok();
        })
    };
    assert!(seen(5).contains("pg-3: starting, patroni 4.1.5, ! Patroni does not answer: connection refused"));
    assert!(seen(60).contains("pg-3: silent, patroni 4.1.5, ! Patroni does not answer: connection refused"));
}

#[test]
fn what_does_not_run() {
    let scene = settled(standing(&[], THREE));
    let seen = |state, data: PgData| {
        where_seen(&scene, |observed| {
            let on = report(observed, 3).postgres.as_mut().expect("a node");
            (on.service.state, on.data, on.node) = (state, data.clone(), Err("connection refused".to_owned()));
            on.service.last_exit = Some("exit code 1".to_owned());
        })
    };
    use raftsman_core::observed::ServiceState::{Backoff, Stopped};
    let present = PgData::Present { system: SystemId(7), timeline: 1, position: 1 };
    assert!(seen(Stopped, present.clone()).ends_with("pg-3: stopped, patroni 4.1.5\n"));
    assert!(seen(Backoff, present).ends_with("pg-3: crashing, patroni 4.1.5, ! exit code 1\n"));
    let empty = seen(Stopped, PgData::Empty);
    assert!(empty.ends_with("! its data directory is empty, and had data\n"), "{empty}");
    let unreadable = seen(Stopped, PgData::Unreadable { problem: "torn".to_owned() });
    assert!(unreadable.ends_with("! PostgreSQL's data cannot be read: torn\n"), "{unreadable}");
}

#[test]
fn a_setting_that_waits_for_a_restart() {
    let mut scene = settled(standing(&[], &["nodes: 3", "parameters: { max_connections: 100 }"]));
    scene.desired = standing(&[], &["nodes: 3", "parameters: { max_connections: 200 }"]);
    let setting = scene.plan();
    scene.carry_out(&setting);
    scene.world.pass_time();
    assert_snapshot!(told(&scene, &scene.look()), @"
    settled, pg-1 leads, timeline 1, copies 1 of 1, Strict
    pg-1: primary, 17.11, patroni 4.1.5, timeline 1, max_connections 100 → 200
    pg-2: sync_standby, 17.11, patroni 4.1.5, timeline 1, lag 0, max_connections 100 → 200
    pg-3: standby, 17.11, patroni 4.1.5, timeline 1, lag 1, max_connections 100 → 200
    ");
}

#[test]
fn a_node_that_is_still_to_go() {
    let mut scene = settled(standing(&[], &["nodes: 4"]));
    scene.desired = standing(&[], THREE);
    assert_snapshot!(told(&scene, &scene.look()), @"
    settled, pg-1 leads, timeline 1, copies 1 of 1, Strict
    pg-1: primary, 17.11, patroni 4.1.5, timeline 1
    pg-2: sync_standby, 17.11, patroni 4.1.5, timeline 1, lag 0
    pg-3: standby, 17.11, patroni 4.1.5, timeline 1, lag 1
    pg-4: standby, 17.11, patroni 4.1.5, timeline 1, lag 1, not in the file
    ");
}

#[test]
fn other_modes() {
    let mode = |mode: &str| {
        let mode = format!("synchronous: {{ mode: {mode}, nodes: 1 }}");
        let scene = settled(standing(&[], &["nodes: 3", &mode]));
        told(&scene, &scene.look()).lines().next().expect("a line").to_owned()
    };
    assert_snapshot!(mode("quorum"), @"settled, pg-1 leads, timeline 1, copies 1 of 1, Quorum");
    assert_snapshot!(mode("preferred"), @"settled, pg-1 leads, timeline 1, copies 1 of 1, Preferred");
    assert_snapshot!(mode("off"), @"settled, pg-1 leads, timeline 1, copies 0 of 0, Off");
}

/// docs/reference/json.md names every field, and no other.
#[test]
fn every_field_is_documented() {
    let documented = |heading: &str| -> BTreeSet<String> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/json.md");
        let text = std::fs::read_to_string(path).expect("the document");
        let lines = text.lines().skip_while(|line| line.trim_start_matches('#').trim() != heading).skip(1);
        let rows = lines.take_while(|line| !line.starts_with('#')).filter_map(|line| line.strip_prefix("| `"));
        rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect()
    };
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<BTreeSet<_>>();
    let scene = settled(standing(&[], THREE));
    let status = serde_json::to_value(of(&scene, &scene.look())).expect("JSON");
    assert_eq!(keys(&status), documented("status: a PostgreSQL cluster"));
    assert_eq!(keys(&status["nodes"][0]), documented("status: a node of PostgreSQL"));
}

/// What `raftsman switchover` would do, or why not.
fn switched(scene: &Scene, observed: &Observed, to: Option<u32>) -> String {
    let cluster = scene.desired.postgres(&pg()).expect("a cluster");
    let to = to.map(node);
    let plan = switchover(&scene.desired, observed, cluster, to.as_ref(), scene.world.now);
    let mut out = String::new();
    for step in &plan.steps {
        if let Action::Postgres(PostgresAction::Switchover { from, to, .. }) = &step.action {
            out.push_str(&format!("{from} to {to}; "));
        }
    }
    out + &describe(&Plan { steps: plan.steps, waiting: plan.waiting })
}

#[test]
fn a_switchover_that_is_asked_for() {
    let mut scene = settled(standing(&[], THREE));
    assert_snapshot!(switched(&scene, &scene.look(), None), @"pg-1 to pg-2; * switch over pg: requested; 1 1 1, copies 1 - 1, switchover");
    assert_snapshot!(switched(&scene, &scene.look(), Some(2)), @"pg-1 to pg-2; * switch over pg: requested; 1 1 1, copies 1 - 1, switchover");
    assert_snapshot!(switched(&scene, &scene.look(), Some(3)), @"blocked: not safe to switch over: pg-3 is not a synchronous standby");
    assert_snapshot!(switched(&scene, &scene.look(), Some(1)), @"blocked: not safe to switch over: pg-1 is not a synchronous standby");
    let mut paused = scene.look();
    (1..=3).for_each(|number| facts(&mut paused, number).paused = true);
    assert_snapshot!(switched(&scene, &paused, None), @"blocked: pg: Patroni is paused");
    let mut behind = scene.look();
    facts(&mut behind, 2).streaming = false;
    assert_snapshot!(switched(&scene, &behind, None), @"waits: pg: 0 of 1 synchronous standbys stream");
    let mut unread = scene.look();
    let (error, since) = ("timed out".to_owned(), epoch());
    unread.postgres.get_mut(&pg()).expect("a cluster").keys = Fact::Unreachable { error, since };
    assert_snapshot!(switched(&scene, &unread, None), @"waits: pg: Patroni's keys cannot be read: timed out");
    // It is done, and nothing is left to do.
    let cluster = scene.desired.postgres(&pg()).expect("a cluster").clone();
    let plan = switchover(&scene.desired, &scene.look(), &cluster, None, scene.world.now);
    scene.carry_out(&plan);
    assert!(to_the_end(&mut scene).ends_with("done\n"));
    assert_eq!(of(&scene, &scene.look()).primary, Some(node(2)));
}
