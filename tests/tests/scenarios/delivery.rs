//! A file that refers to secrets for machines → when they are delivered, and what never waits for them.
//!
//! The notation is that of the other scenarios: a line with `*` begins a wave.

use std::collections::BTreeSet;

use insta::assert_snapshot;
use raftsman_core::model::World;
use raftsman_core::observed::Delivery;
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Scene, desired, epoch, on_machines};

const PASSWORD: &str = "admin: { console_password: { env: CONSOLE } }";

fn new(machines: &[&str]) -> Scene {
    let desired = on_machines(3, machines);
    let world = World::empty(&desired, epoch());
    Scene { desired, world, hidden: BTreeSet::new() }
}

fn set(scene: &mut Scene, machine: &'static str, delivery: Delivery) {
    scene.world.machines.get_mut(&Name::fixed(machine)).expect("a machine").delivery = delivery;
}

/// What is done at the end, from the first line with this verb on.
fn from<'t>(output: &'t str, verb: &str) -> &'t str {
    let at = output.find(verb).unwrap_or_else(|| panic!("no {verb} in\n{output}"));
    &output[output[..at].rfind('\n').map_or(0, |line| line + 1)..]
}

#[test]
fn new_machines_are_given_their_secrets_last() {
    let mut scene = new(&["image: a", PASSWORD]);
    let output = scene.to_the_end();
    assert_snapshot!(from(&output, "deliver"), @"
    * deliver secrets main-1 main-2 main-3: secrets of the file are not on the machine; 1 1 1
    done
    ");
    assert!(!new(&["image: a"]).to_the_end().contains("deliver"), "nothing to deliver");
}

#[test]
fn another_password_is_delivered_to_all_at_once() {
    let mut scene = new(&["image: a", PASSWORD]);
    scene.to_the_end();
    for machine in ["main-1", "main-2", "main-3"] {
        set(&mut scene, machine, Delivery::Outdated);
    }
    assert_snapshot!(scene.to_the_end(), @"
    * deliver secrets main-1 main-2 main-3: secrets of the file are not on the machine; 1 1 1
    done
    ");
}

#[test]
fn a_machine_that_is_rebuilt_is_given_them_again() {
    let mut scene = new(&["image: a", "data_disk: 4GiB", PASSWORD]);
    scene.to_the_end();
    scene.desired = on_machines(3, &["image: b", "data_disk: 4GiB", PASSWORD]);
    assert_snapshot!(scene.to_the_end(), @"
    * rebuild machine main-2: image: a → b; 1 0 1
    * start machine main-2: not running; 0 0 0
    * start etcd main-2: not running; 0 0 1
    * rebuild machine main-3: image: a → b; 1 0 1
    * start machine main-3: not running; 0 0 0
    * start etcd main-3: not running; 0 0 1
    * rebuild machine main-1: image: a → b; 1 0 1, hand-over
    * start machine main-1: not running; 0 0 0
    * start etcd main-1: not running; 0 0 1
    * deliver secrets main-1 main-2 main-3: secrets of the file are not on the machine; 1 1 1
    done
    ");
}

#[test]
fn a_secret_that_cannot_be_read_keeps_nothing_else_from_being_done() {
    let mut scene = new(&["image: a", PASSWORD]);
    scene.to_the_end();
    set(&mut scene, "main-2", Delivery::Unknown("the environment variable CONSOLE is not set".to_owned()));
    assert_snapshot!(scene.to_the_end(), @"
    blocked: main-2: its secrets cannot be delivered: the environment variable CONSOLE is not set
    ");
}

fn scheduled(every: &str) -> Scene {
    let text = format!(
        "fleet: f\nmachines: {{ provider: local }}\nbackups: {{ store: {{ directory: /b }}{every} }}\netcd: {{ main: {{ members: 3 }} }}\n"
    );
    let desired = desired(&text).stacks.remove(0);
    let world = World::empty(&desired, epoch());
    Scene { desired, world, hidden: BTreeSet::new() }
}

#[test]
fn a_schedule_for_backups_is_configured_once_the_cluster_serves_and_taken_back_without_it() {
    let mut scene = scheduled(", every: 1h");
    let output = scene.to_the_end();
    assert_snapshot!(from(&output, "configure backups"), @"
    * configure backups main-1 main-2 main-3: its backup settings are not those of the file; 1 1 1
    done
    ");
    for machine in ["main-1", "main-3"] {
        scene.world.machines.get_mut(&Name::fixed(machine)).expect("a machine").backup_settings = Delivery::Outdated;
    }
    assert_snapshot!(scene.to_the_end(), @"
    * configure backups main-1 main-3: its backup settings are not those of the file; 1 1 1
    done
    ");
    scene.desired = scheduled("").desired;
    for machine in scene.world.machines.values_mut() {
        machine.backup_settings = Delivery::Outdated;
    }
    assert_snapshot!(scene.to_the_end(), @"
    * configure backups main-1 main-2 main-3: the file has no schedule for backups; 1 1 1
    done
    ");
    let unreadable = Delivery::Unknown("the environment variable S3 is not set".to_owned());
    scene.world.machines.get_mut(&Name::fixed("main-2")).expect("a machine").backup_settings = unreadable;
    assert_snapshot!(scene.to_the_end(), @"blocked: main-2: its backup settings cannot be read: the environment variable S3 is not set");
}
