//! Scripted worlds → what the planner does about them, and what it refuses to do.
//!
//! A line with `*` begins a wave; the three numbers are what the cluster can lose before, during and after it, `-` for
//! no quorum. `Scene::to_the_end` itself holds every end against 're-planning changes nothing'.

use insta::assert_snapshot;
use raftsman_core::action::{Action, EtcdAction, MachineAction, MaintenanceAction, UserAction};
use raftsman_core::model::MachineModel;
use raftsman_core::observed::{Alarm, ClusterId, Data, Disk, MemberId, PortTaken, Power, ProbeOutcome, ServiceState};
use raftsman_core::plan::{Considered, Outcome, Waiting, explain};
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene, cluster, describe};

/// Another cluster's id.
const OTHER: ClusterId = ClusterId(0xbad);

fn member_of(machine: &MachineModel) -> MemberId {
    match machine.data {
        Data::Present { member, .. } => member,
        Data::Empty | Data::Unreadable { .. } => panic!("no data"),
    }
}

// ---- The first bring-up.

#[test]
fn one_member() {
    assert_snapshot!(Scene::empty(1, &[]).to_the_end(), @"
    * make authorities cluster: not there yet; - - -
      create machine main-1: not there yet; - - -
    * enroll main-1: new machine; - - -
    * sign peer cert main-1: not there yet; - - -
      sign server cert main-1: not there yet; - - -
      install etcd main-1: not there yet; - - -
      configure etcd main-1: not there yet; - - -
    * start etcd main-1: first start, 1 of 1 together; - - 0
    * create root cluster: not there yet; 0 0 0
    * enable auth cluster: auth is off; 0 0 0
    done
    ");
}

#[test]
fn three_members() {
    assert_snapshot!(Scene::empty(3, &[]).to_the_end(), @"
    * make authorities cluster: not there yet; - - -
      create machine main-1 main-2 main-3: not there yet; - - -
    * enroll main-1 main-2 main-3: new machine; - - -
    * sign peer cert main-1 main-2 main-3: not there yet; - - -
      sign server cert main-1 main-2 main-3: not there yet; - - -
      install etcd main-1 main-2 main-3: not there yet; - - -
      configure etcd main-1 main-2 main-3: not there yet; - - -
    * start etcd main-1 main-2 main-3: first start, 3 of 3 together; - - 1
    * create root cluster: not there yet; 1 1 1
    * enable auth cluster: auth is off; 1 1 1
    done
    ");
}

#[test]
fn five_members() {
    assert_snapshot!(Scene::empty(5, &[]).to_the_end(), @"
    * make authorities cluster: not there yet; - - -
      create machine main-1 main-2 main-3 main-4 main-5: not there yet; - - -
    * enroll main-1 main-2 main-3 main-4 main-5: new machine; - - -
    * sign peer cert main-1 main-2 main-3 main-4 main-5: not there yet; - - -
      sign server cert main-1 main-2 main-3 main-4 main-5: not there yet; - - -
      install etcd main-1 main-2 main-3 main-4 main-5: not there yet; - - -
      configure etcd main-1 main-2 main-3 main-4 main-5: not there yet; - - -
    * start etcd main-1 main-2 main-3 main-4 main-5: first start, 5 of 5 together; - - 2
    * create root cluster: not there yet; 2 2 2
    * enable auth cluster: auth is off; 2 2 2
    done
    ");
}

#[test]
fn one_of_three_cannot_be_reached_at_first() {
    let mut scene = Scene::empty(3, &[]);
    scene.hide(3, Hidden::Agent);
    assert_snapshot!(scene.to_the_end(), @"
    * make authorities cluster: not there yet; - - -
      create machine main-1 main-2 main-3: not there yet; - - -
    * enroll main-1 main-2: new machine; - - -
    * sign peer cert main-1 main-2: not there yet; - - -
      sign server cert main-1 main-2: not there yet; - - -
      install etcd main-1 main-2: not there yet; - - -
      configure etcd main-1 main-2: not there yet; - - -
    * start etcd main-1 main-2: first start, 2 of 3 together; - - 0
    * create root cluster: not there yet; 0 0 0
    * enable auth cluster: auth is off; 0 0 0
    waits: main-3: the agent does not answer: timed out
    ");
    scene.hidden.clear();
    assert_snapshot!(scene.to_the_end(), @"
    * enroll main-3: new machine; 0 0 0
    * sign peer cert main-3: not there yet; 0 0 0
      sign server cert main-3: not there yet; 0 0 0
      install etcd main-3: not there yet; 0 0 0
      configure etcd main-3: not there yet; 0 0 0
    * start etcd main-3: not there yet; 0 0 1
    done
    ");
}

#[test]
fn two_of_three_cannot_be_reached_at_first() {
    let mut scene = Scene::empty(3, &[]);
    scene.hide(2, Hidden::Agent);
    scene.hide(3, Hidden::Agent);
    assert_snapshot!(scene.to_the_end(), @"
    * make authorities cluster: not there yet; - - -
      create machine main-1 main-2 main-3: not there yet; - - -
    * enroll main-1: new machine; - - -
    * sign peer cert main-1: not there yet; - - -
      sign server cert main-1: not there yet; - - -
      install etcd main-1: not there yet; - - -
      configure etcd main-1: not there yet; - - -
    waits: 1 member can be started, a majority is 2
    waits: main-2: the agent does not answer: timed out
    waits: main-3: the agent does not answer: timed out
    ");
    scene.hidden.clear();
    assert_snapshot!(scene.to_the_end(), @"
    * enroll main-2 main-3: new machine; - - -
    * sign peer cert main-2 main-3: not there yet; - - -
      sign server cert main-2 main-3: not there yet; - - -
      install etcd main-2 main-3: not there yet; - - -
      configure etcd main-2 main-3: not there yet; - - -
    * start etcd main-1 main-2 main-3: first start, 3 of 3 together; - - 1
    * create root cluster: not there yet; 1 1 1
    * enable auth cluster: auth is off; 1 1 1
    done
    ");
}

#[test]
fn the_provider_does_not_answer() {
    let mut scene = Scene::empty(3, &[]);
    (1..=3).for_each(|i| scene.hide(i, Hidden::Machine));
    assert_snapshot!(scene.to_the_end(), @"
    * make authorities cluster: not there yet; - - -
    waits: main-1: the provider could not be asked: timed out
    waits: main-2: the provider could not be asked: timed out
    waits: main-3: the provider could not be asked: timed out
    ");
}

/// Members answer although their provider does not. None of them is added or removed then: the machines could be neither
/// made nor deleted.
#[test]
fn members_stay_while_the_provider_does_not_answer() {
    let mut scene = Scene::settled(5);
    scene.desired = cluster(3, &[]);
    (1..=5).for_each(|i| scene.hide(i, Hidden::Machine));
    assert_snapshot!(scene.to_the_end(), @"
    waits: main-1: the provider could not be asked: timed out
    waits: main-2: the provider could not be asked: timed out
    waits: main-3: the provider could not be asked: timed out
    waits: main-4: the provider could not be asked: timed out
    waits: main-5: the provider could not be asked: timed out
    ");
    scene.hidden.clear();
    assert!(scene.to_the_end().ends_with("done\n"));
}

#[test]
fn a_port_is_taken_before_the_first_start() {
    let mut scene = Scene::empty(3, &[]);
    scene.machine(2).ports_taken = vec![PortTaken { port: 2380, holder: "nginx (pid 80)".to_owned() }];
    assert_snapshot!(scene.to_the_end(), @"
    * make authorities cluster: not there yet; - - -
      create machine main-1 main-2 main-3: not there yet; - - -
    * enroll main-1 main-2 main-3: new machine; - - -
    * sign peer cert main-1 main-2 main-3: not there yet; - - -
      sign server cert main-1 main-2 main-3: not there yet; - - -
      install etcd main-1 main-2 main-3: not there yet; - - -
      configure etcd main-1 main-2 main-3: not there yet; - - -
    * start etcd main-1 main-3: first start, 2 of 3 together; - - 0
    * create root cluster: not there yet; 0 0 0
    * enable auth cluster: auth is off; 0 0 0
    blocked: main-2: port 2380 is held by nginx (pid 80)
    ");
    scene.machine(2).ports_taken.clear();
    assert_snapshot!(scene.to_the_end(), @"
    * start etcd main-2: not there yet; 0 0 1
    done
    ");
}

#[test]
fn a_disk_is_full_before_the_first_start() {
    let mut scene = Scene::empty(3, &[]);
    scene.hide(1, Hidden::Agent);
    let _ = scene.to_the_end();
    scene.machine(1).disk = Disk { free: 5 << 20, total: 1 << 35 };
    scene.hidden.clear();
    assert_snapshot!(scene.to_the_end(), @"
    * enroll main-1: new machine; 0 0 0
    blocked: main-1: its disk has 5 MiB free, etcd needs at least 64
    ");
}

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
    waits: main-1: the provider could not be asked: timed out
    waits: main-2: the provider could not be asked: timed out
    waits: main-3: the provider could not be asked: timed out
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
    scene.world.ledger.cluster = None;
    assert_snapshot!(scene.to_the_end(), @"blocked: the machines hold data of different clusters: bad on main-2; 714813d15d706db5 on main-1 main-3;");
}

#[test]
fn the_state_lost_the_id_and_the_members_have_it() {
    let mut scene = Scene::settled(3);
    (1..=3).for_each(|i| scene.machine(i).process.state = ServiceState::Stopped);
    scene.world.ledger.cluster = None;
    let id = scene.id();
    // Whether auth is on in this very cluster is not known before it answers.
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; - - -
    * start etcd main-1 main-2 main-3: first start, 3 of 3 together; - - 1
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart all etcd cluster: auth is on: open to clients; - - 1
    done
    ");
    assert_eq!(scene.world.ledger.cluster, Some(id));
}

#[test]
fn all_data_is_lost() {
    let mut scene = Scene::settled(3);
    for i in 1..=3 {
        scene.machine(i).process.state = ServiceState::Stopped;
        scene.machine(i).data = Data::Empty;
    }
    assert_snapshot!(scene.to_the_end(), @"blocked: cluster 714813d15d706db5 existed, and no member has data any more");
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
    blocked: main-1: its clock is 3600 s ahead of ours
    blocked: main-2: its clock is 90 s behind ours
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
    assert_snapshot!(describe(&scene.plan()), @"blocked: main-2: etcd ended 5 times: signal 9");
}

// ---- The file changes.

#[test]
fn changed_configuration_followers_first_leader_last() {
    let mut scene = Scene::settled(3);
    let leader = member_of(scene.machine(2));
    scene.world.leads = Some(leader);
    scene.desired = cluster(3, &["quota: 4GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-1: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * hand over to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: the file has changed; 1 0 1
    done
    ");
}

#[test]
fn changed_configuration_the_unhealthy_first() {
    let mut scene = Scene::settled(5);
    scene.machine(4).process.warm_up = u32::MAX;
    scene.desired = cluster(5, &["quota: 4GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3 main-4 main-5: the file has changed; 1 1 1
    * restart etcd main-4: the file has changed; 1 1 2
    * restart etcd main-2: the file has changed; 2 1 2
    * restart etcd main-3: the file has changed; 2 1 2
    * restart etcd main-5: the file has changed; 2 1 2
    * hand over to main-2: main-1 restarts next; 2 2 2, hand-over
    * restart etcd main-1: the file has changed; 2 1 2
    done
    ");
}

#[test]
fn changed_configuration_while_one_is_down() {
    let mut scene = Scene::settled(3);
    scene.machine(3).agent_up = false;
    scene.machine(3).process.state = ServiceState::Stopped;
    scene.desired = cluster(3, &["quota: 4GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2: the file has changed; 0 0 0
    waits: main-3: the agent does not answer: connection refused
    waits: main-2: restart etcd would cost quorum: 2 of 3 members are healthy
    ");
    scene.machine(3).agent_up = true;
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-3: the file has changed; 0 0 0
    * start etcd main-3: not running; 0 0 1
    * restart etcd main-2: the file has changed; 1 0 1
    * hand over to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    done
    ");
}

#[test]
fn changed_configuration_of_a_lone_member() {
    let mut scene = Scene::settled(1);
    scene.desired = cluster(1, &["quota: 4GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1: the file has changed; 0 0 0
    blocked: main-1: restart etcd would cost quorum: 1 of 1 members are healthy
    ");
}

#[test]
fn changed_configuration_before_the_first_start() {
    let mut scene = Scene::empty(3, &[]);
    scene.hide(2, Hidden::Agent);
    scene.hide(3, Hidden::Agent);
    let _ = scene.to_the_end();
    scene.hidden.clear();
    scene.desired = cluster(3, &["quota: 4GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1: the file has changed; - - -
      enroll main-2 main-3: new machine; - - -
    * sign peer cert main-2 main-3: not there yet; - - -
      sign server cert main-2 main-3: not there yet; - - -
      install etcd main-2 main-3: not there yet; - - -
      configure etcd main-2 main-3: not there yet; - - -
    * start etcd main-1 main-2 main-3: first start, 3 of 3 together; - - 1
    * create root cluster: not there yet; 1 1 1
    * enable auth cluster: auth is off; 1 1 1
    done
    ");
}

#[test]
fn another_version() {
    let mut scene = Scene::settled(3);
    scene.desired = cluster(3, &["version: 3.6.14"]);
    assert_snapshot!(scene.to_the_end(), @"
    * install etcd main-1 main-2 main-3: not there yet; 1 1 1
    * take snapshot cluster: 3.6.15 → 3.6.14; 1 1 1
    * restart etcd main-2: 3.6.15 → 3.6.14; 1 0 1
    * restart etcd main-3: 3.6.15 → 3.6.14; 1 0 1
    * hand over to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: 3.6.15 → 3.6.14; 1 0 1
    done
    ");
}

#[test]
fn more_members() {
    let mut scene = Scene::settled(3);
    scene.desired = cluster(5, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * create machine main-4 main-5: not there yet; 1 1 1
    * enroll main-4 main-5: new machine; 1 1 1
    * sign peer cert main-4 main-5: not there yet; 1 1 1
      sign server cert main-4 main-5: not there yet; 1 1 1
      install etcd main-4 main-5: not there yet; 1 1 1
      configure etcd main-4 main-5: not there yet; 1 1 1
    * add learner main-4: not there yet; 1 1 1
    * start etcd main-4: not there yet; 1 1 1
    * promote main-4: caught up; 1 1 1
    * add learner main-5: not there yet; 1 1 1
    * start etcd main-5: not there yet; 1 1 1
    * promote main-5: caught up; 1 2 2
    done
    ");
}

#[test]
fn fewer_members() {
    let mut scene = Scene::settled(5);
    scene.desired = cluster(3, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * remove member main-5: not in the file; 2 1 1
    * stop etcd main-5: not in the file; 1 1 1
    * delete machine main-5: not in the file; 1 1 1
    * remove member main-4: not in the file; 1 1 1
    * stop etcd main-4: not in the file; 1 1 1
    * delete machine main-4: not in the file; 1 1 1
    done
    ");
}

#[test]
fn another_address() {
    let mut scene = Scene::settled(3);
    let other = "127.0.42.99".parse().expect("an address");
    scene.desired.members[1].address = other;
    assert_snapshot!(scene.to_the_end(), @"
    * move machine main-2: another address; 1 1 1
    * move member main-2: another address; 1 0 1
    done
    ");
    // Also while no member answers: the state has it.
    (1..=3).for_each(|i| scene.cut_power(i));
    assert_snapshot!(scene.to_the_end(), @"
    * start machine main-1 main-2 main-3: not running; - - -
    done
    ");
}

// ---- Certificates.

#[test]
fn certificates_end_soon() {
    let mut scene = Scene::settled(3);
    scene.later(24 * 61);
    assert_snapshot!(scene.to_the_end(), @"
    * sign peer cert main-1 main-2 main-3: expires in 29 days; 1 1 1
      sign server cert main-1 main-2 main-3: expires in 29 days; 1 1 1
    done
    ");
}

#[test]
fn certificates_have_ended() {
    let mut scene = Scene::settled(3);
    scene.later(24 * 91);
    assert_snapshot!(scene.to_the_end(), @"
    * sign peer cert main-1 main-2 main-3: expired; 1 1 1
      sign server cert main-1 main-2 main-3: expired; 1 1 1
    done
    ");
}

#[test]
fn certificates_need_other_names() {
    let mut scene = Scene::settled(3);
    scene.desired = cluster(3, &["certificates: { extra_names: [etcd.example.org] }"]);
    assert_snapshot!(scene.to_the_end(), @"
    * sign server cert main-1 main-2 main-3: names have changed; 1 1 1
    done
    ");
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
    * hand over to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    * disarm NOSPACE cluster: there is room again; 1 1 1
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

// ---- A cluster that is to be kept.

#[test]
fn prevent_destroy_keeps_members_that_the_file_has_no_more() {
    let mut scene = Scene::settled_with(5, &["prevent_destroy: true"]);
    scene.desired = cluster(3, &["prevent_destroy: true"]);
    assert_snapshot!(scene.to_the_end(), @"
    blocked: main-5: not in the file any more, and `prevent_destroy: true` keeps its machine and its data
    blocked: main-4: not in the file any more, and `prevent_destroy: true` keeps its machine and its data
    ");
    scene.desired = cluster(3, &[]);
    let output = scene.to_the_end();
    assert!(output.contains("delete machine main-5") && output.ends_with("done\n"), "{output}");
}

#[test]
fn what_is_deleted_for_good_is_named() {
    use raftsman_core::plan::deletion;
    let name = |text: &str| Name::parse(text).expect("a name");
    let user = Action::User(UserAction::DeleteUser { user: "alice".to_owned() });
    assert_eq!(deletion(&user).as_deref(), Some("user alice"));
    assert_eq!(
        deletion(&Action::Machine(MachineAction::DeleteMachine { machine: name("main-2") })).as_deref(),
        Some("machine main-2")
    );
    assert_eq!(
        deletion(&Action::Maintenance(MaintenanceAction::Compact { revision: 7 })).as_deref(),
        Some("history before revision 7")
    );
    assert_eq!(deletion(&Action::Etcd(EtcdAction::StopEtcd { machine: name("main-2") })), None);
}

#[test]
fn a_changed_setting_is_named() {
    let mut scene = Scene::settled(3);
    let before = scene.desired.clone();
    scene.desired = cluster(3, &["quota: 4GiB", "log_level: warn"]);
    let mut observed = scene.look();
    for (name, seen) in &mut observed.machines {
        let raftsman_core::observed::Fact::Seen { value: raftsman_core::observed::Agent::Claimed(report), .. } =
            &mut seen.agent
        else {
            panic!("{name} is claimed");
        };
        let text = before.member(name).map(|member| member.config.text.clone());
        report.etcd.config_text.clone_from(&text);
        report.etcd.running_config_text = text;
    }
    let steps = raftsman_core::model::forecast(&scene.desired, &observed, scene.world.now);
    let output: Vec<String> = steps
        .steps()
        .map(|step| format!("{} {}: {}", step.action.verb(), step.action.subject(), step.reason))
        .collect();
    assert_snapshot!(output.join("\n"), @"
    configure etcd main-1: quota 8GiB → 4GiB, log_level info → warn
    configure etcd main-2: quota 8GiB → 4GiB, log_level info → warn
    configure etcd main-3: quota 8GiB → 4GiB, log_level info → warn
    restart etcd main-2: quota 8GiB → 4GiB, log_level info → warn
    restart etcd main-3: quota 8GiB → 4GiB, log_level info → warn
    hand over to main-2: main-1 restarts next
    restart etcd main-1: quota 8GiB → 4GiB, log_level info → warn
    ");
}

/// One line for each pass of the planner.
fn explained(scene: &Scene) -> String {
    let considered = explain(&scene.desired, &scene.look(), scene.world.now);
    let line = |pass: &Considered| match &pass.outcome {
        Outcome::Nothing => format!("{}: nothing", pass.about),
        Outcome::Left { because } => format!("{}: left, {because}", pass.about),
        Outcome::Found { steps, waiting } => {
            let steps = steps.iter().map(|step| format!("{} {}", step.action.verb(), step.action.subject()));
            let found: Vec<String> = steps.chain(waiting.iter().map(ToString::to_string)).collect();
            format!("{}: {}", pass.about, found.join(", "))
        }
    };
    considered.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_pass_reports_its_result() {
    let mut scene = Scene::settled(3);
    scene.desired = cluster(3, &["quota: 4GiB"]);
    assert_snapshot!(explained(&scene), @"
    the cluster's id, and data of others: nothing
    agents newer than this raftsman: nothing
    CAs: nothing
    machines, certificates, binaries and configuration: configure etcd main-1, configure etcd main-2, configure etcd main-3
    measuring timers before the first start: left, only before the first start
    stopped members: nothing
    members not in the file, needed for quorum: left, only without quorum
    learners, lost and replaced members: nothing
    alarms: nothing
    measuring timers: left, the steps above come first
    downgrade: left, the steps above come first
    a leader that the others could not follow: nothing
    rolling restart: settings, version, CAs: left, the steps above come first
    CA rotation: nothing
    members to add, remove or move: left, the steps above come first
    machines of former members: nothing
    machines to make anew: left, the steps above come first
    auth: nothing
    users with the role root that the file does not name: nothing
    users and roles: left, the file does not ask for it
    scheduled defragmentation: left, the steps above come first
    agents' programs: left, the steps above come first
    secrets and backup settings on machines: left, the steps above come first
    timers against the last measurement: nothing
    agents that are not upgraded: nothing
    ");
    scene.until(|action| matches!(action, Action::Etcd(EtcdAction::ConfigureEtcd { .. })));
    let output = explained(&scene);
    assert!(output.contains("rolling restart: settings, version, CAs: restart etcd main-2"), "{output}");
    // Where it is not clear which cluster this is, no other pass runs.
    scene.world.ledger.cluster = Some(ClusterId(7));
    let output = explained(&scene);
    assert!(output.starts_with("the cluster's id") && output.lines().count() == 1, "{output}");
}
