//! A copy of the state from before another operator took over → agents and etcd carry out none of its calls.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use raftsman_core::action::{Account, Action, AuthAction, MaintenanceAction, MemberAction, UserAction, VersionAction};
use raftsman_core::observed::{Alarm, ClusterId, Granted, MemberId};
use raftsman_core::spec::{EtcdVersion, KeySpan, Level, Name};
use raftsman_engine::act::Executor;
use raftsman_engine::observe::Observer;
use raftsman_tests::lab::{Lab, engine};

const ROLES: &str = "roles: { reader: [{ read: { prefix: /app/ } }] }";
const USERS: &str = "users: { alice: { roles: [reader] } }";

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

/// How often a member was asked to transfer its leadership.
fn hand_overs(lab: &Lab) -> usize {
    let logs = lab.etcds().into_iter().map(|(name, _)| lab.machine(&name).join("etcd/etcd.log"));
    logs.map(|log| std::fs::read_to_string(log).expect("a log").matches("leadership transfer starting").count()).sum()
}

/// Everything in etcd that the actions below change.
fn facts(lab: &Lab) -> Vec<String> {
    let ask = |arguments: &[&str]| lab.etcdctl(arguments).ok().stdout;
    let status: serde_json::Value =
        serde_json::from_str(&ask(&["endpoint", "status", "--cluster", "-w", "json"])).expect("a status");
    let members = status.as_array().into_iter().flatten().map(|one| {
        let status = &one["Status"];
        format!("revision {}, {}", status["header"]["revision"], status["downgradeInfo"])
    });
    let mut facts: Vec<String> = members.collect();
    // A member that a busy machine keeps waiting may be followed by another at any time, but not because it was asked.
    facts.push(format!("asked to hand over {} times", hand_overs(lab)));
    for arguments in [
        &["member", "list"][..],
        &["user", "list"],
        &["role", "list"],
        &["role", "get", "reader"],
        &["alarm", "list"],
        &["auth", "status"],
        // Fails once its history was dropped.
        &["get", "history", "--rev=2"],
    ] {
        facts.push(ask(arguments));
    }
    facts
}

/// Every action that goes to etcd itself.
fn changes(of: &[(Name, MemberId)], cluster: ClusterId, leader: MemberId) -> Vec<Action> {
    let (machine, member) = of.iter().find(|(_, id)| *id != leader).expect("a follower").clone();
    let version = EtcdVersion::parse("3.6.15").expect("a version");
    let keys = KeySpan { key: b"a".to_vec(), end: b"b".to_vec() };
    vec![
        Action::Member(MemberAction::AddLearner {
            machine: machine.clone(),
            peer_url: "https://127.0.0.9:2380".to_owned(),
        }),
        Action::Member(MemberAction::PromoteMember { machine: machine.clone(), member }),
        Action::Member(MemberAction::RemoveMember { name: machine.to_string(), member }),
        Action::Member(MemberAction::UpdateMember {
            machine: machine.clone(),
            member,
            peer_url: "https://127.0.0.9:2380".to_owned(),
            version,
            cluster,
        }),
        Action::Member(MemberAction::MoveLeader { machine: machine.clone(), member }),
        Action::Maintenance(MaintenanceAction::Compact { revision: 3 }),
        Action::Maintenance(MaintenanceAction::Defragment { machine }),
        Action::Maintenance(MaintenanceAction::DisarmAlarm { alarm: Alarm::NoSpace }),
        Action::Version(VersionAction::EnableDowngrade { version: EtcdVersion::parse("3.5.0").expect("a version") }),
        Action::Version(VersionAction::CancelDowngrade),
        Action::Auth(AuthAction::CreateRoot),
        Action::Auth(AuthAction::ChangeRootPassword),
        Action::Auth(AuthAction::EnableAuth),
        Action::Auth(AuthAction::DisableAuth),
        Action::User(UserAction::SetRole {
            role: "stale".to_owned(),
            set: vec![Granted { level: Level::Read, keys }],
            revoke: vec![],
        }),
        Action::User(UserAction::DeleteRole { role: "reader".to_owned() }),
        Action::User(UserAction::SetUser {
            user: "stale".to_owned(),
            account: Account::Make,
            grant: vec!["reader".to_owned()],
            revoke: vec![],
        }),
        Action::User(UserAction::DeleteUser { user: "alice".to_owned() }),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_state_changes_nothing_in_etcd() {
    let lab = Lab::cluster(3, "3.6.15", &[ROLES, USERS]);
    lab.apply();
    for value in ["1", "2", "3"] {
        lab.etcdctl(&["put", "history", value]).ok();
    }
    // Another operator takes over: once it changes etcd, a majority of the agents have its lock's generation.
    for _ in 0..2 {
        for member in ["main-1", "main-2"] {
            lab.run(&["move-leader", member]).ok();
        }
    }
    let generation = lab.path().join(".raftsman/generation");
    let newest: u64 = std::fs::read_to_string(&generation).expect("it").trim().parse().expect("a number");
    assert!(newest >= 3, "{newest}");

    let observer = Observer::new(Arc::new(engine::cluster(&lab, "main"))).expect("an observer");
    let observed = observer.look().await.expect("a look");
    let seen: Vec<_> = observed
        .etcd
        .members
        .iter()
        .map(|(name, m)| (name.clone(), m.etcd.seen().expect("it answers").clone()))
        .collect();
    let ids: Vec<_> = seen.iter().map(|(name, etcd)| (name.clone(), etcd.member)).collect();
    let (cluster, leader) = (seen[0].1.cluster, seen[0].1.leader.expect("a leader"));
    assert!(hand_overs(&lab) > 0, "the logs tell of those that were asked for");
    let before = facts(&lab);
    let old = engine::lock(&lab, 1);
    let stale = Executor { observer: &observer, lock: &old, limit: Duration::from_secs(20) };
    for action in changes(&ids, cluster, leader) {
        let refused = stale.act(&action).await.expect_err(action.verb()).to_string();
        // By how much depends on the agent that answers first: a minority may not have the newest one.
        assert!(refused.contains("generation 1 is older than"), "{}: {refused}", action.verb());
    }
    let refused = Box::pin(stale.nudge(Timestamp::now())).await.expect_err("refused").to_string();
    assert!(refused.contains("is older than"), "{refused}");
    assert_eq!(facts(&lab), before, "nothing was changed");

    drop(old);

    // The same from the command line, with the state's own generation taken back.
    std::fs::write(&generation, "0\n").expect("an older copy");
    for arguments in [&["defrag", "--all"][..], &["compact", "--yes"], &["move-leader", "main-3"]] {
        let refused = lab.run(arguments).failed();
        assert!(refused.all().contains("is older than"), "{arguments:?}: {refused:?}");
    }
    lab.write_file(&lab.file().replace("users: {", "users: { bob: { roles: [reader] },"));
    let refused = lab.run(&["apply", "--yes", "--timeout", "20s"]).failed();
    assert!(refused.all().contains("is older than"), "{refused:?}");
    assert_eq!(facts(&lab), before, "nothing was changed");

    // With the newest one it is done.
    std::fs::write(&generation, format!("{newest}\n")).expect("the newest");
    let newest = engine::lock(&lab, newest);
    let current = Executor { observer: &observer, lock: &newest, limit: Duration::from_secs(20) };
    let role = changes(&ids, cluster, leader)
        .into_iter()
        .find(|change| matches!(change, Action::User(UserAction::SetRole { .. })));
    current.act(&role.expect("a role")).await.expect("it is done");
    assert_ne!(facts(&lab), before);
    assert_eq!(name("main-1"), ids[0].0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_etcd_takes_a_majority_of_agents() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let observer = Observer::new(Arc::new(engine::cluster(&lab, "main"))).expect("an observer");
    observer.look().await.expect("a look");
    let lock = engine::lock(&lab, 100);
    let executor = Executor { observer: &observer, lock: &lock, limit: Duration::from_secs(2) };
    let role = |name: &str| Action::User(UserAction::SetRole { role: name.to_owned(), set: vec![], revoke: vec![] });
    let agents = lab.agents();
    raftsman_tests::lab::kill(agents[0].1, rustix::process::Signal::KILL);
    executor.act(&role("one")).await.expect("two of three will do");
    raftsman_tests::lab::kill(agents[1].1, rustix::process::Signal::KILL);
    let refused = executor.act(&role("two")).await.expect_err("one of three will not").to_string();
    assert!(refused.starts_with("etcd was not changed: 1 of the 2 agents that it takes"), "{refused}");
    assert_eq!(lab.etcdctl(&["role", "list"]).ok().stdout, "one\n");
}
