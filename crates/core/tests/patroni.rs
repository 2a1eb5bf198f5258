//! Recorded answers of Patroni and its keys in etcd → facts, and the conclusions about a cluster.

use std::collections::{BTreeMap, BTreeSet};

use raftsman_core::observed::{
    Copies, NodeFacts, NodeRole, NodeState, PatroniKeys, PostgresView, SyncKey, SystemId, Unsettled,
};
use raftsman_core::spec::{PatroniVersion, PostgresVersion};
use serde_json::Value;

macro_rules! recorded {
    ($name:literal) => {
        include_str!(concat!("patroni/", $name, ".json"))
    };
}

const SYSTEM: SystemId = SystemId(7_709_464_615_402_515_781);

fn facts(answer: &str) -> NodeFacts {
    NodeFacts::read(answer).expect("an answer that can be read")
}

fn keys(recorded: &str) -> PatroniKeys {
    let recorded: BTreeMap<String, Value> = serde_json::from_str(recorded).expect("keys");
    let entry = |(key, entry): (&'_ String, &'_ Value)| {
        (
            key.clone(),
            entry["value"].as_str().unwrap_or_default().to_owned(),
            entry["mod_revision"].as_i64().unwrap_or(0),
        )
    };
    let all: Vec<(String, String, i64)> = recorded.iter().map(entry).collect();
    let all = all.iter().map(|(key, value, revision)| (key.as_str(), value.as_str(), *revision));
    PatroniKeys::read("/service/pg/", all).expect("keys that can be read")
}

type Nodes = BTreeMap<String, Result<NodeFacts, String>>;

/// pg-3 is the primary, pg-1 the synchronous standby, pg-2 another replica.
fn cluster() -> (Nodes, PatroniKeys) {
    let answers = [recorded!("patroni-primary"), recorded!("patroni-sync-standby"), recorded!("patroni-replica")];
    let nodes = answers.map(facts).into_iter().map(|facts| (facts.name.clone(), Ok(facts)));
    (nodes.collect(), keys(recorded!("keys")))
}

fn change(nodes: &mut Nodes, name: &str, with: impl FnOnce(&mut NodeFacts)) {
    with(nodes.get_mut(name).expect("a node").as_mut().expect("it answers"));
}

#[test]
fn what_nodes_answer() {
    let primary = facts(recorded!("patroni-primary"));
    assert_eq!((primary.name.as_str(), primary.role), ("pg-3", NodeRole::Primary));
    assert_eq!((primary.system, primary.timeline, primary.position), (Some(SYSTEM), Some(2), Some(67_109_544)));
    assert_eq!((primary.streaming, primary.paused, primary.pending_restart), (false, false, false));
    assert_eq!(primary.patroni, PatroniVersion::new(4, 1, 5));
    assert_eq!(primary.server, Some(PostgresVersion { major: 15, minor: Some(18) }));
    assert_eq!(primary.dcs_seen.as_second(), 1_794_999_624);
    assert!(facts(recorded!("patroni-primary-paused")).paused);
    let replica = facts(recorded!("patroni-replica"));
    assert_eq!((replica.role, replica.streaming, replica.position), (NodeRole::Replica, true, Some(67_109_544)));
    let starting = facts(recorded!("patroni-starting"));
    assert_eq!((starting.state, starting.timeline, starting.server), (NodeState::Starting, None, None));
    assert_eq!(facts(recorded!("patroni-stopped")).state, NodeState::Stopped);
}

#[test]
fn answers_that_cannot_be_read_say_why() {
    let without = |key: &str| {
        let mut answer: Value = serde_json::from_str(recorded!("patroni-primary")).expect("JSON");
        answer.as_object_mut().expect("an object").remove(key);
        NodeFacts::read(&answer.to_string()).expect_err("it cannot be read").to_string()
    };
    assert_eq!(
        without("role"),
        "Patroni's answer cannot be read: it has no `role`; is its version one that raftsman runs?"
    );
    assert!(without("patroni").contains("it has no name"));
    assert!(NodeFacts::read("<html>").is_err());
    // A word of a newer Patroni is no error: it is a state in which nothing is taken away.
    let newer = recorded!("patroni-primary").replacen("running", "hibernating", 1);
    assert_eq!(facts(&newer).state, NodeState::Other("hibernating".to_owned()));
}

#[test]
fn what_is_in_etcd() {
    let keys = keys(recorded!("keys"));
    assert_eq!((keys.system, keys.leader.as_deref()), (Some(SYSTEM), Some("pg-3")));
    assert_eq!(keys.members, ["pg-1", "pg-2", "pg-3"].map(str::to_owned).into());
    let standbys = BTreeSet::from(["pg-1".to_owned()]);
    assert_eq!(keys.sync, SyncKey { leader: Some("pg-3".to_owned()), standbys, quorum: 0, revision: 59 });
    assert_eq!(keys.history.iter().map(|end| (end.timeline, end.position)).collect::<Vec<_>>(), [(1, 67_109_240)]);
    // `{}` is what a switchover leaves behind.
    assert!(!keys.failover);
    let asked = |value: &'static str| PatroniKeys::read("/service/pg/", [("/service/pg/failover", value, 1)]);
    assert!(asked(r#"{"leader":"pg-3","member":"pg-1"}"#).expect("keys").failover);
    assert!(asked("no JSON").is_err());
    // Keys of another cluster are not this one's.
    let other = PatroniKeys::read("/service/pg/", [("/service/pg2/leader", "pg-9", 1)]).expect("keys");
    assert_eq!(other, PatroniKeys::default());
}

#[test]
fn a_cluster_as_it_should_be() {
    let (nodes, keys) = cluster();
    let view = PostgresView::of(&nodes, &keys);
    assert_eq!(view.primary(), Some("pg-3"));
    assert_eq!((view.copies(), view.settled(1)), (Copies::Synchronous(1), Ok(())));
    assert_eq!(view.settled(2), Err(Unsettled::SynchronousMissing { streaming: 1, wanted: 2 }));
    let seen = jiff::Timestamp::from_second(1_794_999_624).expect("a moment");
    // Rounded down to a second: the same second is not later.
    assert_eq!(view.not_seen_since(seen).len(), 3);
    assert_eq!(view.not_seen_since(seen - jiff::SignedDuration::from_millis(1)).len(), 0);
}

#[test]
fn what_is_not_as_it_should_be() {
    let unsettled = |change: &dyn Fn(&mut Nodes, &mut PatroniKeys)| {
        let (mut nodes, mut keys) = cluster();
        change(&mut nodes, &mut keys);
        let view = PostgresView::of(&nodes, &keys);
        (view.settled(1).expect_err("it is not settled"), view.copies())
    };
    let one = Copies::Synchronous(1);
    assert_eq!(
        unsettled(&|nodes, _| _ = nodes.insert("pg-2".to_owned(), Err("refused".to_owned()))),
        (Unsettled::Silent("pg-2".to_owned()), one)
    );
    assert_eq!(
        unsettled(&|nodes, _| change(nodes, "pg-2", |facts| facts.state = NodeState::Starting)),
        (Unsettled::NotRunning("pg-2".to_owned()), one)
    );
    assert_eq!(unsettled(&|nodes, _| change(nodes, "pg-1", |facts| facts.paused = true)), (Unsettled::Paused, one));
    assert_eq!(unsettled(&|_, keys| keys.failover = true), (Unsettled::FailoverPending, one));
    assert_eq!(
        unsettled(&|nodes, _| change(nodes, "pg-3", |facts| facts.failsafe = true)),
        (Unsettled::Failsafe("pg-3".to_owned()), one)
    );
    assert_eq!(
        unsettled(&|nodes, _| change(nodes, "pg-2", |facts| facts.system = Some(SystemId(1)))),
        (Unsettled::OtherSystem("pg-2".to_owned()), one)
    );
    // A node that has just made or copied its data does not say whose it is yet, nor do the keys before the first is done.
    assert_eq!(
        unsettled(&|nodes, _| change(nodes, "pg-2", |facts| facts.system = None)),
        (Unsettled::NotRunning("pg-2".to_owned()), one)
    );
    assert_eq!(unsettled(&|_, keys| keys.system = None), (Unsettled::NoPrimary, one));
    assert_eq!(
        unsettled(&|nodes, _| change(nodes, "pg-2", |facts| facts.timeline = Some(1))),
        (Unsettled::TimelinesDiffer([1, 2].into()), one)
    );
    // The lease says who leads: a node that still takes writes without it is about to be demoted.
    assert_eq!(unsettled(&|_, keys| keys.leader = None), (Unsettled::NoPrimary, Copies::NotWritable));
    assert_eq!(
        unsettled(&|nodes, _| change(nodes, "pg-1", |facts| facts.role = NodeRole::Primary)),
        (Unsettled::SeveralPrimaries(["pg-1", "pg-3"].map(str::to_owned).into()), Copies::NotWritable)
    );
    let missing = Unsettled::SynchronousMissing { streaming: 0, wanted: 1 };
    let none = Copies::Synchronous(0);
    assert_eq!(unsettled(&|nodes, _| change(nodes, "pg-1", |facts| facts.streaming = false)), (missing.clone(), none));
    // What a former primary wrote there says nothing of this one.
    assert_eq!(unsettled(&|_, keys| keys.sync.leader = Some("pg-1".to_owned())), (missing, none));
}

#[test]
fn copies_with_a_quorum() {
    let (nodes, mut keys) = cluster();
    keys.sync.standbys.insert("pg-2".to_owned());
    // Both have every commit.
    assert_eq!(PostgresView::of(&nodes, &keys).copies(), Copies::Synchronous(2));
    // One of the two has it, either of them.
    keys.sync.quorum = 1;
    assert_eq!(PostgresView::of(&nodes, &keys).copies(), Copies::Synchronous(1));
    let mut silent = nodes.clone();
    silent.insert("pg-2".to_owned(), Err("refused".to_owned()));
    assert_eq!(PostgresView::of(&silent, &keys).copies(), Copies::Synchronous(1));
}
