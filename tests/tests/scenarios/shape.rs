//! A file in which machines are made otherwise → which machines are made anew, in which order, and what is left alone.
//!
//! The notation is that of the other scenarios: a line with `*` begins a wave.

use std::collections::BTreeSet;

use insta::assert_snapshot;
use raftsman_core::action::{Action, MachineAction};
use raftsman_core::model::World;
use raftsman_core::plan::safety;
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene, describe, epoch, on_machines};

const DATA_DISK: &str = "data_disk: 4GiB";

/// A cluster on machines that are made like this.
fn settled(members: usize, machines: &[&str]) -> Scene {
    let desired = on_machines(members, machines);
    let world = World::empty(&desired, epoch());
    let mut scene = Scene { desired, world, hidden: BTreeSet::new() };
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
    scene
}

/// The same cluster, and a file that says this by now.
fn changed(members: usize, before: &[&str], after: &[&str]) -> Scene {
    Scene { desired: on_machines(members, after), ..settled(members, before) }
}

#[test]
fn with_data_disks_machines_are_rebuilt_around_them() {
    let mut scene = changed(3, &["image: a", DATA_DISK], &["image: b", "memory: 4GiB", DATA_DISK]);
    assert_snapshot!(scene.to_the_end(), @"
    * rebuild machine main-2: image: a → b, memory: as given → 4GiB; 1 0 1
    * start machine main-2: not running; 0 0 0
    * start etcd main-2: not running; 0 0 1
    * rebuild machine main-3: image: a → b, memory: as given → 4GiB; 1 0 1
    * start machine main-3: not running; 0 0 0
    * start etcd main-3: not running; 0 0 1
    * rebuild machine main-1: image: a → b, memory: as given → 4GiB; 1 0 1, hand-over
    * start machine main-1: not running; 0 0 0
    * start etcd main-1: not running; 0 0 1
    done
    ");
}

#[test]
fn without_data_disks_members_are_replaced() {
    let mut scene = changed(3, &["image: a"], &["image: b"]);
    assert_snapshot!(scene.to_the_end(), @"
    * remove member main-2: image: a → b; 1 0 0
    * stop etcd main-2: replaced; 0 0 0
    * delete machine main-2: replaced; 0 0 0
    * create machine main-2: not there yet; 0 0 0
    * enroll main-2: new machine; 0 0 0
    * sign peer cert main-2: not there yet; 0 0 0
      sign server cert main-2: not there yet; 0 0 0
      install etcd main-2: not there yet; 0 0 0
      configure etcd main-2: not there yet; 0 0 0
    * add learner main-2: not there yet; 0 0 0
    * start etcd main-2: not there yet; 0 0 0
    * promote main-2: caught up; 0 1 1
    * remove member main-3: image: a → b; 1 0 0
    * stop etcd main-3: replaced; 0 0 0
    * delete machine main-3: replaced; 0 0 0
    * create machine main-3: not there yet; 0 0 0
    * enroll main-3: new machine; 0 0 0
    * sign peer cert main-3: not there yet; 0 0 0
      sign server cert main-3: not there yet; 0 0 0
      install etcd main-3: not there yet; 0 0 0
      configure etcd main-3: not there yet; 0 0 0
    * add learner main-3: not there yet; 0 0 0
    * start etcd main-3: not there yet; 0 0 0
    * promote main-3: caught up; 0 1 1
    * move leader to main-2: main-1 stops serving next; 1 1 1, hand-over
    * remove member main-1: image: a → b; 1 0 0
    * stop etcd main-1: replaced; 0 0 0
    * delete machine main-1: replaced; 0 0 0
    * create machine main-1: not there yet; 0 0 0
    * enroll main-1: new machine; 0 0 0
    * sign peer cert main-1: not there yet; 0 0 0
      sign server cert main-1: not there yet; 0 0 0
      install etcd main-1: not there yet; 0 0 0
      configure etcd main-1: not there yet; 0 0 0
    * add learner main-1: not there yet; 0 0 0
    * start etcd main-1: not there yet; 0 0 0
    * promote main-1: caught up; 0 1 1
    done
    ");
}

#[test]
fn a_data_disk_that_is_new_has_no_data_yet() {
    let mut scene = changed(3, &["image: a"], &["image: a", DATA_DISK]);
    assert_snapshot!(describe(&scene.plan()), @"
    * remove member main-2: data disk: no → yes; 1 0 0
    waits: main-3: rebuild machine waits for its turn
    waits: main-1: rebuild machine waits for its turn
    ");
    assert!(!scene.to_the_end().contains("rebuild machine"));
}

#[test]
fn changed_boot_data_replaces_nothing() {
    let further = ["image: a", "dns: { servers: [10.78.0.1] }", "updates: off", "gateway: 10.78.0.1"];
    let scene = changed(3, &["image: a"], &further);
    assert_eq!(describe(&scene.plan()), "done\n");
}

#[test]
fn a_machine_that_says_nothing_of_itself_is_left_alone() {
    let mut scene = changed(3, &["image: a"], &["image: b"]);
    (1..=3).for_each(|number| scene.machine(number).shape = None);
    assert_eq!(describe(&scene.plan()), "done\n");
}

#[test]
fn while_a_member_is_down_no_machine_is_made_anew() {
    for disk in [DATA_DISK, "updates: off"] {
        let mut scene = changed(3, &["image: a", disk], &["image: b", disk]);
        scene.hide(2, Hidden::Etcd);
        let output = describe(&scene.plan());
        assert!(!output.contains("* rebuild") && !output.contains("remove"), "{output}");
    }
    let mut scene = changed(3, &["image: a", DATA_DISK], &["image: b", DATA_DISK]);
    scene.hide(2, Hidden::Agent);
    scene.hide(2, Hidden::Etcd);
    assert_snapshot!(describe(&scene.plan()), @"
    waits: main-2: the agent does not answer: timed out
    waits: rebuilding the machine of `main-2` waits for unhealthy members: main-2
    ");
}

#[test]
fn the_only_member_needs_a_data_disk() {
    let scene = changed(1, &["image: a"], &["image: b"]);
    assert_snapshot!(describe(&scene.plan()), @"blocked: main-1: no other member can take over leadership");
    let mut scene = changed(1, &["image: a", DATA_DISK], &["image: b", DATA_DISK]);
    assert_snapshot!(scene.to_the_end(), @"
    blocked: main-1: rebuild machine would lose quorum: 1 of 1 members are healthy
    ");
}

#[test]
fn members_come_and_go_first() {
    let mut scene = Scene { desired: on_machines(5, &["image: b"]), ..settled(3, &["image: a"]) };
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
    * remove member main-2: image: a → b; 2 1 1
    * stop etcd main-2: replaced; 1 1 1
    * delete machine main-2: replaced; 1 1 1
    * create machine main-2: not there yet; 1 1 1
    * enroll main-2: new machine; 1 1 1
    * sign peer cert main-2: not there yet; 1 1 1
      sign server cert main-2: not there yet; 1 1 1
      install etcd main-2: not there yet; 1 1 1
      configure etcd main-2: not there yet; 1 1 1
    * add learner main-2: not there yet; 1 1 1
    * start etcd main-2: not there yet; 1 1 1
    * promote main-2: caught up; 1 2 2
    * remove member main-3: image: a → b; 2 1 1
    * stop etcd main-3: replaced; 1 1 1
    * delete machine main-3: replaced; 1 1 1
    * create machine main-3: not there yet; 1 1 1
    * enroll main-3: new machine; 1 1 1
    * sign peer cert main-3: not there yet; 1 1 1
      sign server cert main-3: not there yet; 1 1 1
      install etcd main-3: not there yet; 1 1 1
      configure etcd main-3: not there yet; 1 1 1
    * add learner main-3: not there yet; 1 1 1
    * start etcd main-3: not there yet; 1 1 1
    * promote main-3: caught up; 1 2 2
    * move leader to main-2: main-1 stops serving next; 2 2 2, hand-over
    * remove member main-1: image: a → b; 2 1 1
    * stop etcd main-1: replaced; 1 1 1
    * delete machine main-1: replaced; 1 1 1
    * create machine main-1: not there yet; 1 1 1
    * enroll main-1: new machine; 1 1 1
    * sign peer cert main-1: not there yet; 1 1 1
      sign server cert main-1: not there yet; 1 1 1
      install etcd main-1: not there yet; 1 1 1
      configure etcd main-1: not there yet; 1 1 1
    * add learner main-1: not there yet; 1 1 1
    * start etcd main-1: not there yet; 1 1 1
    * promote main-1: caught up; 1 2 2
    done
    ");
}

#[test]
fn a_machine_whose_data_would_be_lost_is_not_rebuilt() {
    let scene = changed(3, &["image: a"], &["image: b"]);
    let action = Action::Machine(MachineAction::RebuildMachine { machine: Name::parse("main-2").expect("a name") });
    let refused = safety::judge(&scene.desired, &scene.look(), &[&action], &action).expect_err("a refusal");
    assert_snapshot!(refused, @"
    its data would be lost with it
    ");
}
