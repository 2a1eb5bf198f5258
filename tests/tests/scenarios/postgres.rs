//! PostgreSQL on top of etcd → machines, users, nodes; and what each waits for of the other.
//!
//! The notation is that of the other scenarios: a line with `*` begins a wave. A line with `~` is waited for until it
//! resolves by itself, one round of Patroni at a time.

use std::collections::BTreeSet;

use insta::assert_snapshot;
use jiff::Timestamp;
use raftsman_core::action::{
    Account, Action, AuthAction, EtcdAction, MachineAction, PgStart, PostgresAction, UserAction,
};
use raftsman_core::desired::{Stack, UserSlot};
use raftsman_core::model::World;
use raftsman_core::observed::{
    Agent, Fact, NodeFacts, NodeRole, Observed, PgData, PostgresObserved, PostgresOnMachine, Power,
};
use raftsman_core::plan::{Plan, WaitKind, safety};
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Scene, describe, epoch, standing, standing_on};

pub(super) const THREE: &[&str] = &["nodes: 3"];

pub(super) fn pg() -> Name {
    Name::fixed("pg")
}

pub(super) fn empty(desired: Stack) -> Scene {
    let world = World::empty(&desired, epoch());
    Scene { desired, world, hidden: BTreeSet::new() }
}

pub(super) fn settled(desired: Stack) -> Scene {
    let mut scene = empty(desired);
    let output = to_the_end(&mut scene);
    assert!(output.ends_with("done\n"), "{output}");
    scene
}

/// Carries out wave after wave, and lets time pass while something is waited for that resolves by itself.
pub(super) fn to_the_end(scene: &mut Scene) -> String {
    let mut output = String::new();
    let mut last = String::new();
    let mut rounds = 0;
    for _ in 0..400 {
        let next = scene.plan();
        if !next.steps.is_empty() {
            output.push_str(&describe(&Plan { steps: next.steps.clone(), waiting: Vec::new() }));
            scene.carry_out(&next);
            (last, rounds) = (String::new(), 0);
            continue;
        }
        let soon: Vec<String> =
            next.waiting.iter().filter(|w| w.kind() == WaitKind::Transient).map(ToString::to_string).collect();
        if soon.is_empty() || rounds > 100 {
            output.push_str(&describe(&next));
            return output;
        }
        let line = format!("~ {}\n", soon.join("; "));
        if line != last {
            output.push_str(&line);
        }
        (last, rounds) = (line, rounds + 1);
        scene.world.pass_time();
        scene.world.remember(&scene.desired);
    }
    panic!("it goes round in circles:\n{output}")
}

/// What the judge says of this step by itself.
fn judged(scene: &Scene, action: impl Into<Action>) -> String {
    let action = action.into();
    match safety::judge(&scene.desired, &scene.look(), &[&action], &action) {
        Ok(cost) => format!("allowed, {:?}", cost.copies.map(|copies| copies.during)),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn from_nothing() {
    assert_snapshot!(to_the_end(&mut empty(standing(&[], THREE))), @"
    * make authorities cluster: not there yet; - - -
      create machine main-1 main-2 main-3 pg-1 pg-2 pg-3: not there yet; - - -
      make postgresql CA pg: not there yet; - - -
    * enroll main-1 main-2 main-3 pg-1 pg-2 pg-3: new machine; - - -
    * sign peer cert main-1 main-2 main-3: not there yet; - - -
      sign server cert main-1 main-2 main-3: not there yet; - - -
      install etcd main-1 main-2 main-3: not there yet; - - -
      configure etcd main-1 main-2 main-3: not there yet; - - -
      install patroni pg-1 pg-2 pg-3: not there yet; - - -
      sign postgresql cert pg-1 pg-2 pg-3: not there yet; - - -
      sign rest cert pg-1 pg-2 pg-3: not there yet; - - -
    * start etcd main-1 main-2 main-3: first start, 3 of 3 together; - - 1
    * create root cluster: not there yet; 1 1 1
    * enable auth cluster: auth is off; 1 1 1
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
      set role pg-patroni: not there yet; 1 1 1
    * set user pg-patroni-a: not there yet; 1 1 1
    * configure patroni pg-1 pg-2 pg-3: not there yet; 1 1 1
    * restart all etcd cluster: auth is on: open to clients; - - 1
    * bootstrap postgresql pg-1: not there yet; 1 1 1
    * start patroni pg-2 pg-3: not there yet; 1 1 1
    ~ pg: PostgreSQL does not run on pg-2
    done
    ");
}

/// As it is while `initdb` runs: Patroni runs on the first node, and there is no data yet.
#[test]
fn others_start_while_the_first_node_makes_the_cluster() {
    let mut scene = empty(standing(&[], THREE));
    let bootstraps = |plan: &Plan| plan.steps.iter().any(|step| step.action.verb() == "bootstrap postgresql");
    let mut next = scene.plan();
    while !bootstraps(&next) {
        scene.carry_out(&next);
        next = scene.plan();
    }
    let beside = PostgresAction::StartPatroni { machine: Name::fixed("pg-2"), data: PgStart::Beside };
    assert_eq!(judged(&scene, beside.clone()), "no node makes the cluster");
    scene.carry_out(&next);
    assert_eq!(judged(&scene, beside.clone()), "the cluster exists already: its data is copied");
    for agreed in scene.world.agreed.values_mut() {
        agreed.patroni.clusters.clear();
    }
    scene.world.ledger.postgres.get_mut(&pg()).expect("it is known").system = None;
    let first = &mut scene.world.machines.get_mut(&Name::fixed("pg-1")).expect("a machine").postgres;
    (first.data, first.server, first.had_data) = (PgData::Empty, None, false);
    assert_eq!(judged(&scene, beside), "allowed, None");
    assert_snapshot!(to_the_end(&mut scene), @"
    * start patroni pg-2 pg-3: not there yet; 1 1 1
    ~ pg: PostgreSQL does not run on pg-2
    done
    ");
}

/// Debian's package manager upgrades it on each machine; PostgreSQL goes on with what it was started from.
#[test]
fn the_package_is_upgraded() {
    let mut scene = settled(standing(&[], THREE));
    scene.world.machines.get_mut(&Name::fixed("pg-3")).expect("a machine").postgres.minor = 12;
    assert_snapshot!(to_the_end(&mut scene), @"
    * restart postgresql pg-3: 17.11 → 17.12; 1 1 1, copies 1 1 1
    done
    ");
    for machine in scene.world.machines.values_mut() {
        machine.postgres.minor = 13;
    }
    assert_snapshot!(to_the_end(&mut scene), @"
    * restart postgresql pg-3: 17.12 → 17.13; 1 1 1, copies 1 1 1
    * restart postgresql pg-2: 17.11 → 17.13; 1 1 1, copies 1 0 1
    * switch over pg: pg-1 restarts next; 1 1 1, copies 1 - 1, switchover
    done
    ");
}

/// All nodes are replaced, and the only one with data loses its power before another has copied it.
#[test]
fn no_machine_goes_with_the_last_copy() {
    let listed = |numbers: [u8; 3]| {
        let one = |number: u8| format!("{{ name: pg-{number}, address: 127.0.42.{} }}", 120 + number);
        format!("nodes: [{}]", numbers.map(one).join(", "))
    };
    let mut scene = settled(standing(&[], &[&listed([1, 2, 3])]));
    scene.desired = standing(&[], &[&listed([5, 6, 7])]);
    for number in 1..=3 {
        let name = Name::parse(&format!("pg-{number}")).expect("a name");
        let machine = scene.world.machines.get_mut(&name).expect("a machine");
        machine.postgres.kill();
        (machine.power, machine.agent_up) = (Power::Stopped, false);
    }
    let output = to_the_end(&mut scene);
    assert!(!output.contains("delete machine"), "{output}");
    let end = "waits: pg: it has no primary\nwaits: pg: Patroni on pg-1 does not answer\n";
    assert!(output.ends_with(end), "{output}");
    let delete = MachineAction::DeleteMachine { machine: Name::fixed("pg-1") };
    assert_eq!(judged(&scene, delete), "pg: it has no primary");
}

#[test]
fn a_setting_of_the_etcd_beneath() {
    let mut scene = settled(standing(&[], THREE));
    scene.desired = standing(&["quota: 4GiB"], THREE);
    assert_snapshot!(to_the_end(&mut scene), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    done
    ");
}

#[test]
fn a_parameter_is_raised() {
    let mut scene = settled(standing(&[], &["nodes: 3", "parameters: { max_connections: 100 }"]));
    scene.desired = standing(&[], &["nodes: 3", "parameters: { max_connections: 200 }"]);
    assert_snapshot!(to_the_end(&mut scene), @"
    * set patroni pg: the file has changed; 1 1 1
    ~ pg-1: Patroni has not been seen at etcd since the last step, at 2026-11-15T12:01:20Z
    * restart postgresql pg-3: the file has changed; 1 1 1, copies 1 1 1
    * restart postgresql pg-2: the file has changed; 1 1 1, copies 1 0 1
    * switch over pg: pg-1 restarts next; 1 1 1, copies 1 - 1, switchover
    done
    ");
}

/// No commit waits for a standby; a primary that stops in good order sends the rest to those that stream.
#[test]
fn without_synchronous_standbys_one_that_streams_takes_over() {
    let off = "synchronous: { mode: off }";
    let mut scene = settled(standing(&[], &["nodes: 3", off, "parameters: { max_connections: 100 }"]));
    scene.desired = standing(&[], &["nodes: 3", off, "parameters: { max_connections: 200 }"]);
    assert_snapshot!(to_the_end(&mut scene), @"
    * set patroni pg: the file has changed; 1 1 1
    ~ pg-1: Patroni has not been seen at etcd since the last step, at 2026-11-15T12:01:20Z
    * restart postgresql pg-2: the file has changed; 1 1 1, copies 0 0 0
    * restart postgresql pg-3: the file has changed; 1 1 1, copies 0 0 0
    * switch over pg: pg-1 restarts next; 1 1 1, copies 0 - 0, switchover
    done
    ");
}

#[test]
fn nothing_is_restarted_before_every_node_has_read_the_settings() {
    let mut scene = settled(standing(&[], THREE));
    scene.desired = standing(&[], &["nodes: 3", "parameters: { max_connections: 200 }"]);
    let setting = scene.plan();
    assert!(describe(&setting).starts_with("* set patroni pg"), "{}", describe(&setting));
    // Of a node that is cut off from etcd, Patroni does not tell that it has to be restarted.
    scene.world.machines.get_mut(&Name::fixed("pg-3")).expect("a node").postgres.cut_from_etcd = true;
    scene.carry_out(&setting);
    let since = scene.world.ledger.of_postgres(&pg()).settings_set.expect("it is remembered");
    // Patroni takes them up at the end of a round: the one after it, `loop_wait` later, shows that it has.
    let since = since + jiff::SignedDuration::from_secs(10);
    for _ in 0..2 {
        scene.world.pass_time();
        scene.world.remember(&scene.desired);
    }
    let held = describe(&scene.plan());
    assert!(
        held.contains(&format!("pg-3: Patroni has not been seen at etcd since the last step, at {since}")),
        "{held}"
    );
    assert!(!held.contains("restart") && !held.contains("switch over"), "{held}");
    scene.world.machines.get_mut(&Name::fixed("pg-3")).expect("a node").postgres.cut_from_etcd = false;
    let rest = to_the_end(&mut scene);
    assert!(rest.contains("restart postgresql pg-3") && rest.ends_with("done\n"), "{rest}");
}

#[test]
fn a_parameter_is_lowered() {
    let mut scene = settled(standing(&[], &["nodes: 3", "parameters: { max_connections: 100 }"]));
    scene.desired = standing(&[], &["nodes: 3", "parameters: { max_connections: 50 }"]);
    assert_snapshot!(to_the_end(&mut scene), @"
    * set patroni pg: the file has changed; 1 1 1
    ~ pg-1: Patroni has not been seen at etcd since the last step, at 2026-11-15T12:01:20Z
    * restart postgresql pg-1: the file has changed; 1 1 1, copies 1 - 1, switchover
    * restart postgresql pg-3: the file has changed; 1 1 1, copies 1 1 1
    * restart postgresql pg-2: the file has changed; 1 1 1, copies 1 0 1
    done
    ");
}

#[test]
fn one_is_raised_and_another_lowered() {
    let mut scene =
        settled(standing(&[], &["nodes: 3", "parameters: { max_connections: 100, max_worker_processes: 8 }"]));
    scene.desired = standing(&[], &["nodes: 3", "parameters: { max_connections: 50, max_worker_processes: 16 }"]);
    assert_snapshot!(to_the_end(&mut scene), @"
    * set patroni pg: the file has changed; 1 1 1
    ~ pg-1: Patroni has not been seen at etcd since the last step, at 2026-11-15T12:01:20Z
    * restart postgresql pg-3: the file has changed; 1 1 1, copies 1 1 1
    * restart postgresql pg-2: the file has changed; 1 1 1, copies 1 0 1
    * switch over pg: pg-1 restarts next; 1 1 1, copies 1 - 1, switchover
    * set patroni pg: the file has changed; 1 1 1
    ~ pg-1: Patroni has not been seen at etcd since the last step, at 2026-11-15T12:02:10Z
    * restart postgresql pg-2: the file has changed; 1 1 1, copies 1 - 1, switchover
    * restart postgresql pg-3: the file has changed; 1 1 1, copies 1 1 1
    * restart postgresql pg-1: the file has changed; 1 1 1, copies 1 0 1
    done
    ");
}

#[test]
fn the_user_of_etcd_is_changed_by_a_second_one() {
    let mut scene = settled(standing(&[], THREE));
    scene.world.ledger.postgres.get_mut(&pg()).expect("a cluster").user = UserSlot::B;
    assert_snapshot!(to_the_end(&mut scene), @"
    * set user pg-patroni-b: not there yet; 1 1 1
    * configure patroni pg-1 pg-2 pg-3: the file has changed; 1 1 1
    * reload patroni pg-2: the file has changed; 1 1 1
    * reload patroni pg-3: the file has changed; 1 1 1
    * reload patroni pg-1: the file has changed; 1 1 1
    * delete user pg-patroni-a: not needed any more; 1 1 1
    done
    ");
}

#[test]
fn the_clients_ca_beneath_is_changed() {
    let mut scene = settled(standing(&[], THREE));
    scene.world.ledger.etcd.clients.as_mut().expect("a CA").asked = true;
    assert_snapshot!(to_the_end(&mut scene), @"
    * add clients CA cluster: requested; 1 1 1
    * store server trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
      configure patroni pg-1 pg-2 pg-3: the file has changed; 1 1 1
    * activate clients CA cluster: trusted by every member; 1 1 1
    * sign server cert main-1: signed by another authority; 1 1 1
    * sign server cert main-2: signed by another authority; 1 1 1
    * sign server cert main-3: signed by another authority; 1 1 1
    * distrust clients CA cluster: not needed any more; 1 1 1
    * store server trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
      configure patroni pg-1 pg-2 pg-3: the file has changed; 1 1 1
    * delete clients CA cluster: refused by every member; 1 1 1
    done
    ");
}

#[test]
fn every_member_of_etcd_is_renamed() {
    let members = |names: [&str; 3]| {
        let entry = |(i, name): (usize, &&str)| format!("{{ name: {name}, address: 127.0.42.{} }}", 20 + i);
        let base = if names[0].starts_with('n') { 10 } else { 0 };
        let list: Vec<String> = names.iter().enumerate().map(|(i, name)| entry((i + base, name))).collect();
        standing_on(&format!("[{}]", list.join(", ")), &[], THREE)
    };
    let mut scene = settled(members(["main-1", "main-2", "main-3"]));
    scene.desired = members(["new-1", "new-2", "new-3"]);
    assert_snapshot!(to_the_end(&mut scene), @"
    * create machine new-1 new-2 new-3: not there yet; 1 1 1
      configure patroni pg-1 pg-2 pg-3: the file has changed; 1 1 1
    * enroll new-1 new-2 new-3: new machine; 1 1 1
    * sign peer cert new-1 new-2 new-3: not there yet; 1 1 1
      sign server cert new-1 new-2 new-3: not there yet; 1 1 1
      install etcd new-1 new-2 new-3: not there yet; 1 1 1
      configure etcd new-1 new-2 new-3: not there yet; 1 1 1
    * reload patroni pg-2: the file has changed; 1 1 1
    * reload patroni pg-3: the file has changed; 1 1 1
    * reload patroni pg-1: the file has changed; 1 1 1
    * add learner new-1: not there yet; 1 1 1
    * start etcd new-1: not there yet; 1 1 1
    * promote new-1: caught up; 1 1 1
    * remove member main-3: not in the file; 1 1 1
    * stop etcd main-3: not in the file; 1 1 1
    * delete machine main-3: not in the file; 1 1 1
    * configure patroni pg-1 pg-2 pg-3: the file has changed; 1 1 1
    * reload patroni pg-2: the file has changed; 1 1 1
    * reload patroni pg-3: the file has changed; 1 1 1
    * reload patroni pg-1: the file has changed; 1 1 1
    * add learner new-2: not there yet; 1 1 1
    * start etcd new-2: not there yet; 1 1 1
    * promote new-2: caught up; 1 1 1
    * remove member main-2: not in the file; 1 1 1
    * stop etcd main-2: not in the file; 1 1 1
    * delete machine main-2: not in the file; 1 1 1
    * configure patroni pg-1 pg-2 pg-3: the file has changed; 1 1 1
    * reload patroni pg-2: the file has changed; 1 1 1
    * reload patroni pg-3: the file has changed; 1 1 1
    * reload patroni pg-1: the file has changed; 1 1 1
    * add learner new-3: not there yet; 1 1 1
    * start etcd new-3: not there yet; 1 1 1
    * promote new-3: caught up; 1 1 1
    * move leader to new-1: main-1 stops serving next; 1 1 1, hand-over
    ~ pg-1: Patroni may know no members of etcd but those that go, until 2026-11-15T12:07:50Z
    * remove member main-1: not in the file; 1 1 1
    * stop etcd main-1: not in the file; 1 1 1
    * delete machine main-1: not in the file; 1 1 1
    * configure patroni pg-1 pg-2 pg-3: the file has changed; 1 1 1
    * reload patroni pg-2: the file has changed; 1 1 1
    * reload patroni pg-3: the file has changed; 1 1 1
    * reload patroni pg-1: the file has changed; 1 1 1
    done
    ");
}

#[test]
fn a_node_more_and_a_node_less() {
    let mut scene = settled(standing(&[], THREE));
    scene.desired = standing(&[], &["nodes: 4"]);
    assert_snapshot!(to_the_end(&mut scene), @"
    * create machine pg-4: not there yet; 1 1 1
    * enroll pg-4: new machine; 1 1 1
    * install patroni pg-4: not there yet; 1 1 1
      sign postgresql cert pg-4: not there yet; 1 1 1
      sign rest cert pg-4: not there yet; 1 1 1
      configure patroni pg-4: not there yet; 1 1 1
    * start patroni pg-4: not there yet; 1 1 1
    ~ pg: PostgreSQL does not run on pg-4
    done
    ");
    scene.desired = standing(&[], THREE);
    assert_snapshot!(to_the_end(&mut scene), @"
    * stop patroni pg-4: not in the file; 1 1 1, copies 1 1 1
    * delete machine pg-4: not in the file; 1 1 1
    done
    ");
}

/// The command was killed before it wrote down that the machine of a former node is gone: the next one goes on with the
/// others.
#[test]
fn a_former_node_that_is_gone_holds_up_no_other() {
    let node = |number: u8| format!("{{ name: pg-{number}, address: 127.0.42.{} }}", 120 + number);
    let listed = |numbers: &[u8]| {
        let nodes: Vec<String> = numbers.iter().map(|number| node(*number)).collect();
        standing(&[], &[&format!("nodes: [{}]", nodes.join(", "))])
    };
    let mut scene = settled(listed(&[1, 2, 3, 4]));
    scene.desired = listed(&[2, 3]);
    let machine = scene.world.machines.get_mut(&Name::fixed("pg-4")).expect("a machine");
    machine.postgres.kill();
    machine.exists = false;
    assert_snapshot!(describe(&scene.plan()), @"* switch over pg: not in the file; 1 1 1, copies 1 - 1, switchover");
}

#[test]
fn certificates_are_renewed_and_taken_up_one_node_after_the_other() {
    let mut scene = settled(standing(&[], THREE));
    let near = scene.look().report(&Name::fixed("pg-2")).and_then(|report| report.postgres.as_ref()).map(|on| {
        let ends = on.certificates.values().map(|certificate| certificate.not_after).min().expect("certificates");
        ends.checked_sub(jiff::SignedDuration::from_hours(24)).expect("a moment")
    });
    scene.world.now = near.expect("a node");
    scene.world.pass_time();
    let all = to_the_end(&mut scene);
    let nodes: Vec<&str> = all.lines().filter(|line| line.contains("patroni") || line.contains(" pg-")).collect();
    assert_snapshot!(nodes.join("\n"), @"
      sign postgresql cert pg-1 pg-2 pg-3: expires in 23 h; 1 1 1
      sign rest cert pg-1 pg-2 pg-3: expires in 23 h; 1 1 1
    * reload patroni pg-2: its certificates were renewed; 1 1 1
    * reload patroni pg-3: its certificates were renewed; 1 1 1
    * reload patroni pg-1: its certificates were renewed; 1 1 1
    ");
    let node = scene.look().report(&Name::fixed("pg-1")).and_then(|report| report.postgres.clone()).expect("a node");
    assert!(!node.presents_others(), "{node:?}");
}

#[test]
fn the_primary_is_removed_from_the_file() {
    let node = |number: usize| format!("{{ name: pg-{number}, address: 127.0.42.{} }}", 50 + number);
    let nodes = |numbers: &[usize]| {
        let list: Vec<String> = numbers.iter().map(|number| node(*number)).collect();
        standing(&[], &[&format!("nodes: [{}]", list.join(", "))])
    };
    let mut scene = settled(nodes(&[1, 2, 3, 4]));
    scene.desired = nodes(&[2, 3, 4]);
    assert_snapshot!(to_the_end(&mut scene), @"
    * switch over pg: not in the file; 1 1 1, copies 1 - 1, switchover
    * stop patroni pg-1: not in the file; 1 1 1, copies 1 0 1
    * delete machine pg-1: not in the file; 1 1 1
    done
    ");
}

#[test]
fn what_the_interlock_refuses() {
    let scene = settled(standing(&[], THREE));
    let cluster = scene.desired.postgres.first().expect("a cluster");
    let used = cluster.etcd_user(UserSlot::A);
    let user = |account| UserAction::SetUser { user: used.clone(), account, grant: Vec::new(), revoke: Vec::new() };
    let verdicts = [
        ("another password", judged(&scene, user(Account::Password))),
        ("made anew", judged(&scene, user(Account::Remake))),
        ("deleted", judged(&scene, UserAction::DeleteUser { user: used.clone() })),
        ("its role deleted", judged(&scene, UserAction::DeleteRole { role: cluster.etcd_role().0 })),
        ("auth off", judged(&scene, AuthAction::DisableAuth)),
        (
            "to a standby that is not synchronous",
            judged(
                &scene,
                PostgresAction::Switchover { cluster: pg(), from: Name::fixed("pg-1"), to: Name::fixed("pg-3") },
            ),
        ),
        ("the primary's Patroni stopped", judged(&scene, PostgresAction::StopPatroni { machine: Name::fixed("pg-1") })),
    ];
    let lines: Vec<String> = verdicts.iter().map(|(what, verdict)| format!("{what}: {verdict}")).collect();
    assert_snapshot!(lines.join("\n"), @"
    another password: Patroni on pg-1 uses the user `pg-patroni-a` of etcd
    made anew: Patroni on pg-1 uses the user `pg-patroni-a` of etcd
    deleted: Patroni on pg-1 uses the user `pg-patroni-a` of etcd
    its role deleted: Patroni of `pg` needs it
    auth off: Patroni logs in with a password: auth stays on
    to a standby that is not synchronous: pg-3 is not a synchronous standby
    the primary's Patroni stopped: the file has a node there
    ");
}

#[test]
fn what_keeps_etcd_from_being_touched() {
    let scene = settled(standing(&[], THREE));
    let (member, version) = (Name::fixed("main-2"), scene.desired.etcd.version);
    let restart = Action::Etcd(EtcdAction::RestartEtcd { machine: member, version, cluster: scene.id() });
    let seen = |change: &dyn Fn(&mut Observed)| {
        let mut observed = scene.look();
        change(&mut observed);
        match safety::judge(&scene.desired, &observed, &[&restart], &restart) {
            Ok(_) => "allowed".to_owned(),
            Err(refusal) => refusal.to_string(),
        }
    };
    fn node<'a>(observed: &'a mut Observed, name: &'static str) -> &'a mut PostgresOnMachine {
        let machine = observed.machines.get_mut(&Name::fixed(name)).expect("a machine");
        match &mut machine.agent {
            Fact::Seen { value: Agent::Claimed(report), .. } => report.postgres.as_mut().expect("a node"),
            Fact::Seen { .. } | Fact::Absent { .. } | Fact::Unreachable { .. } => panic!("no report"),
        }
    }
    fn facts<'a>(observed: &'a mut Observed, name: &'static str) -> &'a mut NodeFacts {
        node(observed, name).node.as_mut().expect("it answers")
    }
    fn cluster(observed: &mut Observed) -> &mut PostgresObserved {
        observed.postgres.get_mut(&pg()).expect("a cluster")
    }
    let lines = [
        ("as it should be", seen(&|_| {})),
        ("a replica answers no more", seen(&|o| node(o, "pg-3").node = Err("refused".to_owned()))),
        ("the synchronous standby does not stream", seen(&|o| facts(o, "pg-2").streaming = false)),
        ("paused", seen(&|o| facts(o, "pg-1").paused = true)),
        ("failsafe mode", seen(&|o| facts(o, "pg-3").failsafe = true)),
        ("two primaries", seen(&|o| facts(o, "pg-2").role = NodeRole::Primary)),
        ("not seen since", seen(&|o| facts(o, "pg-3").dcs_seen = Timestamp::UNIX_EPOCH)),
        ("no login tried", seen(&|o| cluster(o).logins.clear())),
        (
            "a login fails",
            seen(&|o| {
                let logins = cluster(o).logins.get_mut(&Name::fixed("pg-3")).expect("logins");
                logins.members.insert(Name::fixed("main-1"), Err("certificate signed by unknown authority".to_owned()));
            }),
        ),
        (
            "keys that cannot be read",
            seen(&|o| cluster(o).keys = Fact::Unreachable { error: "timed out".to_owned(), since: epoch() }),
        ),
    ];
    let lines: Vec<String> = lines.iter().map(|(what, verdict)| format!("{what}: {verdict}")).collect();
    assert_snapshot!(lines.join("\n"), @"
    as it should be: allowed
    a replica answers no more: pg: Patroni on pg-3 does not answer
    the synchronous standby does not stream: pg: 0 of 1 synchronous standbys stream
    paused: pg: Patroni is paused
    failsafe mode: pg: etcd was lost: pg-3 takes no primary's place until `ttl` after it is back
    two primaries: pg: several nodes take writes: pg-1, pg-2
    not seen since: pg-3: Patroni has not been seen at etcd since the last step, at 2026-11-15T12:00:10Z
    no login tried: pg-1: it cannot log in to main-1 as Patroni does: not tried yet
    a login fails: pg-3: it cannot log in to main-1 as Patroni does: certificate signed by unknown authority
    keys that cannot be read: pg: Patroni's keys cannot be read: timed out
    ");
}
