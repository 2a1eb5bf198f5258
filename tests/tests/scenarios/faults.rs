//! A running cluster to which something happens → what is repaired, and what the planner refuses to guess.
//!
//! A line with `*` begins a wave; the three numbers are what the cluster can lose before, during and after it, `-` for
//! no quorum. `Scene::to_the_end` itself holds every end against 're-planning changes nothing'.

use insta::assert_snapshot;
use raftsman_core::action::{Action, EtcdAction};
use raftsman_core::model::MachineModel;
use raftsman_core::observed::{Alarm, ClusterId, Data, Disk, MemberId, PortTaken, Power, ProbeOutcome, ServiceState};
use raftsman_core::plan::Waiting;
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene, cluster, describe};

/// Another cluster's id.
const OTHER: ClusterId = ClusterId(0xbad);

// ---- Something goes away.

#[test]
fn an_agent_does_not_answer() {
    let mut scene = Scene::settled(3);
    scene.machine(2).agent_up = false;
    assert_snapshot!(scene.to_the_end(), @"waits: main-2: the agent does not answer: connection refused");
    scene.machine(2).agent_up = true;
    assert_snapshot!(scene.to_the_end(), @"done");
}

#[test]
fn an_agent_of_this_computer_is_gone_and_its_etcd_runs_on() {
    let mut scene = Scene::settled(3);
    scene.machine(2).power = Power::Stopped;
    scene.machine(2).agent_up = false;
    assert_snapshot!(scene.to_the_end(), @"
    * start machine main-2: not running; 1 1 1
    done
    ");
}

#[test]
fn a_machine_is_stopped() {
    let mut scene = Scene::settled(3);
    scene.cut_power(3);
    assert_snapshot!(scene.to_the_end(), @"
    * start machine main-3: not running; 0 0 0
    done
    ");
}

#[test]
fn all_machines_are_stopped() {
    let mut scene = Scene::settled(3);
    (1..=3).for_each(|i| scene.cut_power(i));
    assert_snapshot!(scene.to_the_end(), @"
    * start machine main-1 main-2 main-3: not running; - - -
    done
    ");
}

#[test]
fn an_etcd_was_stopped_by_hand() {
    let mut scene = Scene::settled(3);
    scene.machine(1).process.state = ServiceState::Stopped;
    assert_snapshot!(scene.to_the_end(), @"
    * start etcd main-1: not running; 0 0 1
    done
    ");
}

#[test]
fn the_provider_does_not_answer_for_a_running_cluster() {
    let mut scene = Scene::settled(3);
    (1..=3).for_each(|i| scene.hide(i, Hidden::Machine));
    assert_snapshot!(scene.to_the_end(), @"
    waits: main-1: the provider does not answer: timed out
    waits: main-2: the provider does not answer: timed out
    waits: main-3: the provider does not answer: timed out
    ");
}

#[test]
fn etcd_cannot_be_reached_and_its_agent_says_that_it_runs() {
    let mut scene = Scene::settled(3);
    scene.hide(2, Hidden::Etcd);
    assert_snapshot!(scene.to_the_end(), @"waits: main-2: etcd is starting");
}

// ---- Something is lost for good: nothing is guessed, nothing is made worse.

#[test]
fn a_machine_is_lost() {
    let mut scene = Scene::settled(3);
    *scene.machine(2) = MachineModel::none();
    assert_snapshot!(scene.to_the_end(), @"blocked: main-2: the machine is gone, and a member's data with it");
}

#[test]
fn a_machine_was_rebuilt_under_its_old_name() {
    let mut scene = Scene::settled(3);
    let rebuilt = MachineModel {
        exists: true,
        power: Power::Running,
        agent_up: true,
        incarnation: "another".to_owned(),
        ..MachineModel::none()
    };
    *scene.machine(2) = rebuilt;
    assert_snapshot!(scene.to_the_end(), @"blocked: main-2: this is another machine than the one that etcd was started on");
    scene.machine(2).claimed = true;
    assert_snapshot!(scene.to_the_end(), @"blocked: main-2: this is another machine than the one that etcd was started on");
}

#[test]
fn the_data_of_one_was_wiped() {
    let mut scene = Scene::settled(3);
    scene.machine(2).process.state = ServiceState::Stopped;
    scene.machine(2).data = Data::Empty;
    assert_snapshot!(scene.to_the_end(), @"blocked: main-2: etcd ran here and its data directory is empty");
}

#[test]
fn the_data_of_one_is_something_else() {
    let mut scene = Scene::settled(3);
    scene.machine(2).process.state = ServiceState::Stopped;
    scene.machine(2).data = Data::Unreadable { problem: "no WAL in it".to_owned() };
    assert_snapshot!(scene.to_the_end(), @"blocked: main-2: the data directory holds no member's data: no WAL in it");
}

#[test]
fn the_data_of_one_is_of_another_cluster() {
    let mut scene = Scene::settled(3);
    scene.machine(2).process.state = ServiceState::Stopped;
    scene.machine(2).data = Data::Present { member: MemberId(7), cluster: OTHER };
    assert_snapshot!(scene.to_the_end(), @"blocked: main-2: the data on its disk belongs to cluster bad, not to 714813d15d706db5");
}

#[test]
fn a_member_of_another_cluster_answers() {
    let mut scene = Scene::settled(3);
    scene.machine(2).data = Data::Present { member: MemberId(7), cluster: OTHER };
    let agreed = scene.agreed().clone();
    scene.world.agreed.insert(OTHER, agreed);
    assert_snapshot!(scene.to_the_end(), @"
    blocked: main-2: the data on its disk belongs to cluster bad, not to 714813d15d706db5
    ");
}

#[test]
fn the_machines_hold_data_of_different_clusters_and_it_is_unknown_which_is_ours() {
    let mut scene = Scene::settled(3);
    (1..=3).for_each(|i| scene.machine(i).process.state = ServiceState::Stopped);
    scene.machine(2).data = Data::Present { member: MemberId(7), cluster: OTHER };
    scene.world.ledger.etcd.cluster = None;
    assert_snapshot!(scene.to_the_end(), @"blocked: the machines hold data of different clusters: bad on main-2; 714813d15d706db5 on main-1 main-3;");
}

#[test]
fn the_state_lost_the_id_and_the_members_have_it() {
    let mut scene = Scene::settled(3);
    (1..=3).for_each(|i| scene.machine(i).process.state = ServiceState::Stopped);
    scene.world.ledger.etcd.cluster = None;
    let id = scene.id();
    // Whether auth is on in this very cluster is not known before it answers.
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; - - -
    * start etcd main-1 main-2 main-3: first start, 3 of 3 together; - - 1
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart all etcd cluster: auth is on: open to clients; - - 1
    done
    ");
    assert_eq!(scene.world.ledger.etcd.cluster, Some(id));
}

#[test]
fn all_data_is_lost() {
    let mut scene = Scene::settled(3);
    for i in 1..=3 {
        scene.machine(i).process.state = ServiceState::Stopped;
        scene.machine(i).data = Data::Empty;
    }
    assert_snapshot!(scene.to_the_end(), @"blocked: all members of cluster 714813d15d706db5 have lost their data");
}

#[test]
fn all_machines_are_lost() {
    let mut scene = Scene::settled(3);
    (1..=3).for_each(|i| *scene.machine(i) = MachineModel::none());
    assert_snapshot!(scene.to_the_end(), @"
    blocked: main-1: the machine is gone, and a member's data with it
    blocked: main-2: the machine is gone, and a member's data with it
    blocked: main-3: the machine is gone, and a member's data with it
    ");
}

// ---- A machine is not fit.

#[test]
fn a_clock_is_wrong() {
    let mut scene = Scene::settled(3);
    scene.machine(1).clock_offset_ms = 3_600_000;
    scene.machine(2).clock_offset_ms = -90_000;
    scene.machine(3).clock_offset_ms = 59_000;
    assert_snapshot!(scene.to_the_end(), @"
    blocked: main-1: its clock is 3600 s ahead of this computer's
    blocked: main-2: its clock is 90 s behind this computer's
    ");
}

#[test]
fn a_disk_is_full() {
    let mut scene = Scene::settled(3);
    // A full disk blocks a start; a running etcd is left alone.
    for i in [1, 2] {
        scene.machine(i).disk = Disk { free: 1 << 20, total: 1 << 35 };
    }
    scene.machine(2).process.state = ServiceState::Stopped;
    assert_snapshot!(scene.to_the_end(), @"blocked: main-2: its disk has 1 MiB free, etcd needs at least 64");
}

#[test]
fn a_port_was_taken_while_etcd_was_down() {
    let mut scene = Scene::settled(3);
    let holder = || vec![PortTaken { port: 2379, holder: "nginx (pid 80)".to_owned() }];
    scene.machine(2).process.state = ServiceState::Stopped;
    scene.machine(2).ports_taken = holder();
    assert_snapshot!(scene.to_the_end(), @"blocked: main-2: port 2379 is held by nginx (pid 80)");
    scene.machine(2).ports_taken.clear();
    assert_snapshot!(scene.to_the_end(), @"
    * start etcd main-2: not running; 0 0 1
    done
    ");
}

#[test]
fn etcd_ends_again_and_again() {
    let mut scene = Scene::settled(3);
    scene.machine(2).process.state = ServiceState::Backoff;
    scene.machine(2).process.restarts = 2;
    assert_snapshot!(describe(&scene.plan()), @"waits: main-2: etcd is starting");
    scene.machine(2).process.restarts = 5;
    assert_snapshot!(describe(&scene.plan()), @"blocked: main-2: etcd exited 5 times: signal 9");
}

// ---- Alarms of etcd.

#[test]
fn an_alarm_and_a_change() {
    let mut scene = Scene::settled(3);
    // More room is what a full quota needs.
    scene.agreed().alarms = vec![Alarm::NoSpace];
    scene.desired = cluster(3, &["quota: 16GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    * disarm NOSPACE cluster: there is free space again; 1 1 1
    done
    ");
    // A member with corrupt data may not come back from a restart.
    scene.world.corrupt(&Name::fixed("main-2"));
    scene.desired = cluster(3, &["quota: 7GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    blocked: main-2: its data differs from that of the other members
    ");
}

#[test]
fn members_that_accept_anonymous_clients_are_reported() {
    let mut scene = Scene::settled(3);
    scene.agreed().probe.anonymous = ProbeOutcome::Accepted;
    scene.agreed().probe.foreign = ProbeOutcome::Untested("timed out".to_owned());
    assert_snapshot!(scene.to_the_end(), @"
    blocked: main-1: an anonymous client was accepted
    waits: main-1: rejection of unauthenticated clients could not be tested: timed out
    blocked: main-2: an anonymous client was accepted
    waits: main-2: rejection of unauthenticated clients could not be tested: timed out
    blocked: main-3: an anonymous client was accepted
    waits: main-3: rejection of unauthenticated clients could not be tested: timed out
    ");
}

#[test]
fn auth_is_off() {
    let mut scene = Scene::settled(3);
    scene.agreed().auth = false;
    assert_snapshot!(scene.to_the_end(), @"
    * enable auth cluster: auth is off; 1 1 1
    done
    ");
}

#[test]
fn what_waits_for_a_member_that_is_lost_is_not_waited_for() {
    let mut scene = Scene::settled(5);
    scene.desired = cluster(7, &[]);
    scene.until(|action| matches!(action, Action::Etcd(EtcdAction::InstallEtcd { .. })));
    *scene.machine(2) = MachineModel::none();
    scene.world.remember(&scene.desired);
    let plan = scene.plan();
    assert!(plan.steps.is_empty() && plan.is_stuck(), "{plan:?}");
    assert!(plan.waiting.iter().any(|w| matches!(w, Waiting::HealFirst { .. })), "{plan:?}");
    // One that is only down comes back.
    let mut scene = Scene::settled(5);
    scene.desired = cluster(7, &[]);
    scene.until(|action| matches!(action, Action::Etcd(EtcdAction::InstallEtcd { .. })));
    scene.hide(2, Hidden::Etcd);
    assert!(!scene.plan().is_stuck(), "{:?}", scene.plan());
}
