//! A PostgreSQL cluster on the model, and one thing that goes wrong → what Patroni does in the rounds after it.
//!
//! No planner takes part: what the simulated lives rest on is compared here with what was measured of Patroni.

use std::collections::{BTreeMap, BTreeSet};

use raftsman_core::action::{Account, Action, EtcdAction, MachineAction, PgStart, PostgresAction, UserAction};
use raftsman_core::desired::{Stack, UserSlot};
use raftsman_core::model::{KeysModel, PostgresModel, World};
use raftsman_core::observed::{NodePurpose, NodeRole, NodeState, Purpose, ServiceState, TrustDomain};
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{self, Scene, epoch};

/// A stack on the model, without a planner.
struct Lab {
    desired: Stack,
    world: World,
}

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

impl Lab {
    /// Three members of etcd, and a PostgreSQL cluster with these lines, as an apply leaves them.
    fn standing(postgres: &[&str]) -> Self {
        let desired = fixtures::standing(&[], postgres);
        let mut beneath = desired.clone();
        beneath.postgres.clear();
        beneath.machines.retain(|name, _| beneath.etcd.member(name).is_some());
        let world = World::empty(&beneath, epoch());
        let mut scene = Scene { desired: beneath, world, hidden: BTreeSet::new() };
        let output = scene.to_the_end();
        assert!(output.ends_with("done\n"), "{output}");
        let mut lab = Self { desired, world: scene.world };
        let cluster = lab.desired.postgres[0].clone();
        let (role, permissions) = cluster.etcd_role();
        lab.act(UserAction::SetRole { role: role.clone(), set: permissions.into(), revoke: Vec::new() });
        lab.act(UserAction::SetUser {
            user: cluster.etcd_user(UserSlot::A),
            account: Account::Make,
            grant: vec![role],
            revoke: Vec::new(),
        });
        lab.act(PostgresAction::MakePostgresCa { cluster: cluster.name.clone() });
        for (index, node) in cluster.nodes.iter().enumerate() {
            let machine = node.name.clone();
            lab.act(MachineAction::CreateMachine { machine: machine.clone() });
            lab.act(MachineAction::Enroll { machine: machine.clone() });
            lab.act(PostgresAction::InstallPatroni { machine: machine.clone(), version: cluster.patroni });
            for purpose in NodePurpose::ALL {
                lab.act(PostgresAction::IssueNodeCertificate { machine: machine.clone(), purpose });
            }
            lab.configure(&machine, UserSlot::A);
            let system = lab.keys().and_then(|keys| keys.system);
            let data = system.map_or(PgStart::Bootstrap, PgStart::Join);
            lab.act(PostgresAction::StartPatroni { machine, data });
            lab.rounds(if index == 0 { 1 } else { 5 });
        }
        assert_eq!(lab.primary().as_deref(), Some("pg-1"));
        lab
    }

    fn act(&mut self, action: impl Into<Action>) {
        let action = action.into();
        self.world.act(&self.desired, &action, 0).unwrap_or_else(|why| panic!("{action:?}: {why}"));
    }

    fn refused(&mut self, action: impl Into<Action>) -> String {
        self.world.act(&self.desired, &action.into(), 0).expect_err("it is refused").0
    }

    fn configure(&mut self, machine: &Name, user: UserSlot) {
        let hosts = self.desired.etcd_hosts(&self.world.ledger);
        let trust = self.world.ledger.etcd.trust(TrustDomain::Clients).expect("a CA").digest();
        let (digest, machine) = (format!("{user} {hosts:?}"), machine.clone());
        self.act(PostgresAction::ConfigurePatroni { machine, user, hosts, digest, trust });
    }

    fn rounds(&mut self, count: usize) {
        (0..count).for_each(|_| self.world.pass_time());
    }

    fn node(&mut self, text: &str) -> &mut PostgresModel {
        &mut self.world.machines.get_mut(&name(text)).expect("a machine").postgres
    }

    /// The node is killed, and its agent, too: nothing starts it again.
    fn lose(&mut self, text: &str) {
        self.node(text).kill();
        self.world.machines.get_mut(&name(text)).expect("a machine").agent_up = false;
    }

    fn bring_back(&mut self, text: &str) {
        self.world.machines.get_mut(&name(text)).expect("a machine").agent_up = true;
    }

    fn keys(&self) -> Option<&KeysModel> {
        self.world.patroni_keys(&name("pg"))
    }

    fn keys_mut(&mut self) -> &mut KeysModel {
        let agreed = self.world.agreed.values_mut().next().expect("an etcd cluster");
        agreed.patroni.clusters.get_mut(&name("pg")).expect("keys")
    }

    fn synchronous(&self) -> Vec<String> {
        self.keys().map(|keys| keys.sync.standbys.iter().cloned().collect()).unwrap_or_default()
    }

    /// The node that takes writes.
    fn primary(&self) -> Option<String> {
        let pg = name("pg");
        let mut primaries = self.world.nodes_of(&pg).filter(|(_, machine)| machine.postgres.is_primary());
        primaries.next().map(|(name, _)| name.to_string())
    }

    fn acknowledged(&self) -> u64 {
        self.world.postgres[&name("pg")].acknowledged
    }

    /// Whether a commit is acknowledged in the next round.
    fn takes_writes(&mut self) -> bool {
        let before = self.acknowledged();
        self.rounds(1);
        self.acknowledged() > before
    }

    fn lost(&self) -> Option<&String> {
        self.world.postgres[&name("pg")].lost.as_ref()
    }

    fn etcd(&mut self, members: &[&str], state: ServiceState) {
        for member in members {
            self.world.machines.get_mut(&name(member)).expect("a member").process.state = state;
        }
    }

    /// Every member is restarted in turn: no connection is left.
    fn roll_etcd(&mut self) {
        let cluster = *self.world.agreed.keys().next().expect("an etcd cluster");
        let version = self.desired.etcd.version;
        for member in self.desired.etcd.members.clone() {
            self.act(EtcdAction::RestartEtcd { machine: member.name, version, cluster });
            self.rounds(1);
        }
    }
}

#[test]
fn a_cluster_comes_up_with_one_synchronous_standby() {
    let mut lab = Lab::standing(&["nodes: 3"]);
    assert_eq!(lab.synchronous(), ["pg-2"]);
    assert!(lab.takes_writes());
    let observed = lab.world.observe(&lab.desired);
    let report = observed.report(&name("pg-3")).and_then(|report| report.postgres.as_ref()).expect("a report");
    let facts = report.node.as_ref().expect("an answer");
    assert_eq!((facts.role, &facts.state, facts.streaming), (NodeRole::Replica, &NodeState::Running, true));
    let logins = &observed.postgres[&name("pg")].logins[&name("pg-3")];
    assert_eq!(logins.members.values().filter(|login| login.is_ok()).count(), 3, "{logins:?}");
}

#[test]
fn the_synchronous_standby_follows_a_primary_that_is_killed_after_its_lease() {
    let mut lab = Lab::standing(&["nodes: 3"]);
    let acknowledged = lab.acknowledged();
    lab.lose("pg-1");
    // 30 s in rounds of 10 s.
    lab.rounds(2);
    assert_eq!(lab.primary(), None);
    lab.rounds(1);
    assert_eq!(lab.primary().as_deref(), Some("pg-2"));
    let (timeline, position) = lab.node("pg-2").position().expect("data");
    assert!(timeline == 2 && position >= acknowledged, "{timeline} {position} {acknowledged}");
    lab.rounds(1);
    assert_eq!(lab.synchronous(), ["pg-3"]);
    assert!(lab.takes_writes());
    // The former primary has a commit that was never acknowledged: it is rewound.
    lab.bring_back("pg-1");
    lab.rounds(6);
    assert!(lab.node("pg-1").streams());
    assert_eq!(lab.node("pg-1").position().map(|(timeline, _)| timeline), Some(2));
    assert_eq!(lab.lost(), None);
}

#[test]
fn another_standby_becomes_synchronous_when_one_is_killed() {
    let mut lab = Lab::standing(&["nodes: 3"]);
    lab.lose("pg-2");
    assert!(lab.takes_writes());
    assert_eq!(lab.synchronous(), ["pg-3"]);
    lab.lose("pg-3");
    assert!(!lab.takes_writes() && !lab.takes_writes(), "strict");
    assert_eq!(lab.primary().as_deref(), Some("pg-1"));
    lab.bring_back("pg-2");
    lab.rounds(4);
    assert!(lab.takes_writes());
    assert_eq!(lab.lost(), None);
}

#[test]
fn a_primary_without_etcd_is_demoted_unless_every_node_agrees() {
    for (failsafe, stays) in [("failsafe: true", true), ("failsafe: false", false)] {
        let mut lab = Lab::standing(&["nodes: 3", failsafe]);
        lab.etcd(&["main-2", "main-3"], ServiceState::Stopped);
        lab.rounds(1);
        assert_eq!(lab.primary().is_some(), stays, "{failsafe}");
        assert_eq!(lab.takes_writes(), stays, "{failsafe}");
        // The leader of etcd that is elected then counts every lease from its beginning.
        lab.etcd(&["main-2", "main-3"], ServiceState::Running);
        lab.rounds(6);
        assert!(lab.takes_writes(), "{failsafe}");
        assert_eq!(lab.lost(), None);
    }
    let mut lab = Lab::standing(&["nodes: 3"]);
    lab.lose("pg-3");
    lab.rounds(1);
    lab.etcd(&["main-2", "main-3"], ServiceState::Stopped);
    lab.rounds(1);
    assert_eq!(lab.primary(), None, "a replica does not answer, and its key is there still");
}

/// Measured: a standby that was told follows the former primary for `ttl`, though the lease is gone and it was asked to lead.
#[test]
fn a_standby_that_goes_by_a_primary_without_etcd_takes_no_place_for_a_while() {
    let mut lab = Lab::standing(&["nodes: 3"]);
    let switch = || PostgresAction::Switchover { cluster: name("pg"), from: name("pg-1"), to: name("pg-2") };
    lab.etcd(&["main-2", "main-3"], ServiceState::Stopped);
    lab.rounds(1);
    lab.etcd(&["main-2", "main-3"], ServiceState::Running);
    lab.rounds(1);
    assert!(lab.takes_writes());
    assert!(lab.refused(switch()).contains("failsafe"));
    // `ttl` is three rounds.
    lab.rounds(3);
    lab.act(switch());
    assert_eq!(lab.primary().as_deref(), Some("pg-2"));
}

#[test]
fn a_slow_round_is_not_the_end_of_a_primary() {
    let fast = "patroni: { ttl: 20, loop_wait: 1, retry_timeout: 3 }";
    let mut lab = Lab::standing(&["nodes: 3", "failsafe: false", fast]);
    lab.etcd(&["main-2", "main-3"], ServiceState::Stopped);
    lab.rounds(2);
    assert_eq!(lab.primary().as_deref(), Some("pg-1"));
    lab.rounds(1);
    assert_eq!(lab.primary(), None);
}

#[test]
fn another_password_demotes_at_once() {
    let mut lab = Lab::standing(&["nodes: 3"]);
    let user = lab.desired.postgres[0].etcd_user(UserSlot::A);
    let (grant, revoke) = (Vec::new(), Vec::new());
    lab.act(UserAction::SetUser { user, account: Account::Password, grant, revoke });
    let before = lab.world.now;
    lab.rounds(1);
    assert_eq!(lab.primary(), None);
    // A watch that is open goes on: what a node has seen says nothing of what it could do.
    let process = lab.node("pg-2").process.clone().expect("it runs");
    assert!(process.dcs_seen > before && process.written_at <= before);
}

#[test]
fn a_second_user_takes_the_place_of_the_first_without_a_pause() {
    let mut lab = Lab::standing(&["nodes: 3"]);
    let cluster = lab.desired.postgres[0].clone();
    let (role, _) = cluster.etcd_role();
    let (user, grant) = (cluster.etcd_user(UserSlot::B), vec![role]);
    lab.act(UserAction::SetUser { user, account: Account::Make, grant, revoke: Vec::new() });
    for node in ["pg-3", "pg-2", "pg-1"] {
        lab.configure(&name(node), UserSlot::B);
        lab.act(PostgresAction::ReloadPatroni { machine: name(node) });
        assert!(lab.takes_writes());
    }
    lab.act(UserAction::DeleteUser { user: cluster.etcd_user(UserSlot::A) });
    assert!(lab.takes_writes());
    assert_eq!(lab.primary().as_deref(), Some("pg-1"));
}

#[test]
fn a_ca_that_nodes_do_not_have_is_noticed_when_connections_end() {
    let mut lab = Lab::standing(&["nodes: 3", "failsafe: false"]);
    for member in ["main-1", "main-2", "main-3"] {
        let machine = lab.world.machines.get_mut(&name(member)).expect("a member");
        machine.certificates.get_mut(&Purpose::Server).expect("a certificate").issuer_key = "another".to_owned();
    }
    lab.rounds(10);
    assert_eq!(lab.primary().as_deref(), Some("pg-1"));
    assert!(!lab.world.could_connect_anew(&lab.world.reachable(), &name("pg-1")));
    lab.roll_etcd();
    assert_eq!(lab.primary(), None);
}

#[test]
fn a_patroni_that_knows_no_member_of_today_is_lost_with_its_connection() {
    let stale = |lab: &mut Lab| {
        let elsewhere = BTreeSet::from(["127.0.42.99:2379".parse().expect("an address")]);
        for node in ["pg-1", "pg-2", "pg-3"] {
            let process = lab.node(node).process.as_mut().expect("it runs");
            (process.started_with, process.cached) = (elsewhere.clone(), elsewhere.clone());
        }
    };
    let mut lab = Lab::standing(&["nodes: 3", "failsafe: false"]);
    stale(&mut lab);
    lab.rounds(3);
    assert_eq!(lab.primary().as_deref(), Some("pg-1"));
    lab.roll_etcd();
    assert_eq!(lab.primary(), None);
    // It reads the list of members again after ten times its ttl.
    let mut lab = Lab::standing(&["nodes: 3", "failsafe: false"]);
    stale(&mut lab);
    lab.rounds(30);
    lab.roll_etcd();
    assert_eq!(lab.primary().as_deref(), Some("pg-1"));
}

#[test]
fn an_old_key_that_a_restore_brings_back_promotes_a_stale_standby() {
    let mut lab = Lab::standing(&["nodes: 3"]);
    let old = lab.keys().expect("keys").clone();
    assert_eq!(lab.synchronous(), ["pg-2"]);
    lab.lose("pg-2");
    lab.rounds(5);
    assert_eq!((lab.synchronous(), lab.lost()), (vec!["pg-3".to_owned()], None));
    lab.lose("pg-1");
    *lab.keys_mut() = old;
    lab.bring_back("pg-2");
    lab.rounds(6);
    assert_eq!(lab.primary().as_deref(), Some("pg-2"));
    assert!(lab.lost().is_some(), "this is the loss that the simulation has to see");
}

#[test]
fn a_switchover_goes_to_a_synchronous_standby_only() {
    let mut lab = Lab::standing(&["nodes: 3"]);
    let switch = |to: &str| PostgresAction::Switchover { cluster: name("pg"), from: name("pg-1"), to: name(to) };
    assert!(lab.refused(switch("pg-3")).contains("not synchronous"));
    lab.act(switch("pg-2"));
    assert_eq!(lab.primary().as_deref(), Some("pg-2"));
    lab.rounds(3);
    assert!(lab.takes_writes() && lab.node("pg-1").streams() && lab.node("pg-3").streams());
    assert_eq!(lab.lost(), None);
}

#[test]
fn a_standby_with_less_than_its_primary_does_not_follow() {
    let mut lab = Lab::standing(&["nodes: 3"]);
    let path = "postgresql.parameters.max_connections".to_owned();
    let set = BTreeMap::from([(path, Some("200".to_owned()))]);
    lab.act(PostgresAction::SetPatroni { cluster: name("pg"), set });
    lab.rounds(1);
    assert!(["pg-1", "pg-2", "pg-3"].iter().all(|node| lab.node(node).pending_restart()));
    let restart = |node: &str, role| PostgresAction::RestartPostgres { machine: name(node), role };
    assert!(lab.refused(restart("pg-3", NodeRole::Primary)).contains("not what it was"));
    lab.act(restart("pg-3", NodeRole::Replica));
    lab.rounds(2);
    assert!(lab.node("pg-3").streams() && !lab.node("pg-3").pending_restart());
    lab.act(restart("pg-1", NodeRole::Primary));
    lab.rounds(2);
    assert_eq!(lab.primary().as_deref(), Some("pg-1"));
    assert!(!lab.node("pg-2").streams() && lab.node("pg-3").streams());
}

#[test]
fn the_quorum_decides_where_each_commit_waits_for_the_fastest_standby() {
    let mut lab = Lab::standing(&["nodes: 3", "synchronous: { mode: quorum }"]);
    assert_eq!(lab.synchronous(), ["pg-2", "pg-3"]);
    assert_eq!(lab.keys().map(|keys| keys.sync.quorum), Some(1));
    // pg-2 has every commit, pg-3 is late: it does not lead alone.
    lab.lose("pg-1");
    lab.lose("pg-2");
    lab.rounds(6);
    assert_eq!(lab.primary(), None);
    lab.bring_back("pg-2");
    lab.rounds(4);
    assert_eq!(lab.primary().as_deref(), Some("pg-2"));
    assert_eq!(lab.lost(), None);
}

#[test]
fn the_forecast_begins_with_the_world_that_was_observed() {
    let mut lab = Lab::standing(&["nodes: 3"]);
    let seen = lab.world.observe(&lab.desired);
    let again = World::from_observed(&lab.desired, &seen, lab.world.now);
    let shown = again.observe(&lab.desired);
    assert_eq!(shown.postgres, seen.postgres);
    for node in ["pg-1", "pg-2", "pg-3"] {
        let of = |observed: &raftsman_core::observed::Observed| {
            observed.report(&name(node)).and_then(|report| report.postgres.clone()).expect("a report")
        };
        assert_eq!(of(&shown), of(&seen));
    }
    lab.world = again;
    assert!(lab.takes_writes());
}
