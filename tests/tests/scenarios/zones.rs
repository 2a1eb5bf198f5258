//! Machines of several sizes and in several zones → who is made anew, who goes where, and what can be lost.
//!
//! The notation is that of the other scenarios: a line with `*` begins a wave.

use std::collections::{BTreeMap, BTreeSet};

use insta::assert_snapshot;
use raftsman_core::desired::{Identity, Stack, resolve};
use raftsman_core::model::World;
use raftsman_core::observed::{Tolerance, View, Zones};
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene, describe, desired, epoch, machines_of, spec};

const THREE: &str = "zones: { a: { incus: { target: a } }, b: { incus: { target: b } }, c: { incus: { target: c } } }";

fn settled(desired: Stack) -> Scene {
    let world = World::empty(&desired, epoch());
    let mut scene = Scene { desired, world, hidden: BTreeSet::new() };
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
    scene
}

fn zones(cluster: &Stack) -> String {
    let zone = |name: &Name| cluster.machines[name].place.zone.as_ref().map_or("-", |zone| zone.as_str());
    cluster.etcd.members.iter().map(|member| zone(&member.machine)).collect()
}

fn tolerances(scene: &Scene) -> (Tolerance, Tolerance) {
    let observed = scene.look();
    let view = View::of(&observed);
    (view.tolerance(), Zones::of(&scene.desired, &observed, &view).expect("zones").tolerance)
}

#[test]
fn two_clusters_of_one_file_have_machines_of_their_own_sizes() {
    let desired = desired(
        "fleet: lab\nmachines:\n  provider: incus\n  image: a\n  memory: 2GiB\n  subnet: 10.78.0.0/24\n  \
         incus: { network: raft, pool: default }\netcd:\n  small: { members: 1 }\n  large:\n    \
         machines: { memory: 8GiB, vcpus: 4, incus: { network: fast } }\n    members:\n    \
         - { name: large-1, machine: { memory: 16GiB, data_disk: 20GiB } }\n    - { name: large-2 }\n    \
         - { name: large-3 }\n",
    );
    let shapes = desired.stacks.iter().flat_map(|cluster| cluster.machines.values()).map(|machine| {
        let part = |key| machine.shape.as_ref().and_then(|shape| shape.part(key)).unwrap_or("-");
        format!("{} {} {} {} {}\n", machine.name, part("memory"), part("vcpus"), part("network"), part("data disk"))
    });
    assert_snapshot!(shapes.collect::<String>(), @"
    small-1 2GiB as given raft no
    large-1 16GiB 4 fast yes
    large-2 8GiB 4 fast no
    large-3 8GiB 4 fast no
    ");
}

#[test]
fn only_the_machine_of_another_size_is_made_anew() {
    let list = |third: &str| format!("members: [{{ name: m1 }}, {{ name: m2 }}, {{ name: m3{third} }}]");
    let mut scene = settled(machines_of(&["data_disk: 4GiB"], &[&list("")]));
    scene.desired = machines_of(&["data_disk: 4GiB"], &[&list(", machine: { memory: 4GiB }")]);
    assert_snapshot!(scene.to_the_end(), @"
    * rebuild machine m3: memory: as given → 4GiB; 1 0 1
    * start machine m3: not running; 0 0 0
    * start etcd m3: not running; 0 0 1
    done
    ");
}

#[test]
fn members_are_spread_over_zones_and_stay_there() {
    let before = machines_of(&[THREE], &["members: 3"]);
    assert_eq!(zones(&before), "abc");
    assert_eq!(zones(&machines_of(&[THREE], &["members: 5"])), "abcab");
    assert_eq!(zones(&machines_of(&[THREE], &["members: 3", "machines: { zones: [c, a] }"])), "cac");
    let listed = "members: [{ name: m1, zone: c }, { name: m2 }, { name: m3 }]";
    assert_eq!(zones(&machines_of(&[THREE], &[listed])), "cab");
    // Another zone, first in the file: who has a place keeps it.
    let text = "fleet: lab\nmachines: { zones: { z: {}, a: {}, b: {}, c: {} } }\netcd: { main: { members: 4 } }\n";
    let remembered = [("main-1", "a"), ("main-2", "b"), ("main-3", "c")];
    let remembered = remembered.map(|(member, zone)| (Name::fixed(member), Name::fixed(zone)));
    let identity = Identity {
        id: "f1ee7".to_owned(),
        network: Some(raftsman_core::desired::LoopbackNetwork::new(0, 42)),
        places: BTreeMap::new(),
        zones: [(Name::fixed("main"), remembered.into())].into(),
    };
    let desired = resolve(&spec(text), &identity).expect("resolved");
    assert_eq!(zones(&desired.stacks[0]), "abcz");
}

#[test]
fn a_zone_that_is_lost_is_named_and_what_is_left_is_stated() {
    let mut scene = settled(machines_of(&[THREE], &["members: 5"]));
    assert_eq!(tolerances(&scene), (Tolerance::CanLose(2), Tolerance::CanLose(1)));
    // Both members of the zone a.
    for number in [1, 4] {
        scene.cut_power(number);
        scene.hide(number, Hidden::Machine);
    }
    assert_eq!(tolerances(&scene), (Tolerance::CanLose(0), Tolerance::CanLose(0)));
    let observed = scene.look();
    let zones = Zones::of(&scene.desired, &observed, &View::of(&observed)).expect("zones");
    assert_eq!(zones.down, [Name::fixed("a")].into());
    // Two in one zone: the loss of that one costs quorum.
    let scene = settled(machines_of(&[THREE], &["members: 3", "machines: { zones: [a, b] }"]));
    assert_eq!(tolerances(&scene), (Tolerance::CanLose(1), Tolerance::CanLose(0)));
}

#[test]
fn a_member_moves_to_the_zone_that_the_file_names_for_it() {
    let list = |zone: &str| format!("members: [{{ name: m1 }}, {{ name: m2 }}, {{ name: m3, zone: {zone} }}]");
    let mut scene = settled(machines_of(&[THREE, "data_disk: 4GiB"], &[&list("c")]));
    scene.desired = machines_of(&[THREE, "data_disk: 4GiB"], &[&list("a")]);
    assert_eq!(scene.world.machines[&Name::fixed("m3")].zone, Some(Name::fixed("c")));
    assert_snapshot!(scene.to_the_end(), @"
    * remove member m3: zone: c → a; 1 0 0
    * stop etcd m3: replaced; 0 0 0
    * delete machine m3: replaced; 0 0 0
    * create machine m3: not there yet; 0 0 0
    * enroll m3: new machine; 0 0 0
    * sign peer cert m3: not there yet; 0 0 0
      sign server cert m3: not there yet; 0 0 0
      install etcd m3: not there yet; 0 0 0
      configure etcd m3: not there yet; 0 0 0
    * add learner m3: not there yet; 0 0 0
    * start etcd m3: not there yet; 0 0 0
    * promote m3: caught up; 0 1 1
    done
    ");
    assert_eq!(scene.world.machines[&Name::fixed("m3")].zone, Some(Name::fixed("a")));
    // One whose zone is chosen stays, whatever would be chosen now.
    let mut scene = settled(machines_of(&[THREE], &["members: 3"]));
    scene.desired = machines_of(&[THREE], &["members: 3", "machines: { zones: [c, b, a] }"]);
    assert_eq!(describe(&scene.plan()), "done\n");
}
