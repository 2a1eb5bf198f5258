//! Machines whose addresses the provider assigns → addresses first, then everything as if the file had given them.
//!
//! The notation is that of the other scenarios: a line with `*` begins a wave.

use std::collections::BTreeSet;
use std::net::IpAddr;

use insta::assert_snapshot;
use raftsman_core::action::{Action, EtcdAction, MachineAction};
use raftsman_core::desired::{DesireError, Stack};
use raftsman_core::model::{World, forecast};
use raftsman_core::plan::safety::judge;
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene, assigned, describe, epoch};

fn scene(main: &[&str], front: Option<&str>) -> Scene {
    let desired = assigned(main, front);
    let world = World::empty(&desired, epoch());
    Scene { desired, world, hidden: BTreeSet::new() }
}

fn settled(main: &[&str]) -> Scene {
    let mut scene = scene(main, None);
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
    scene
}

fn names(cluster: &Stack) -> Vec<&str> {
    cluster.etcd.members.iter().map(|member| member.name.as_str()).collect()
}

fn assigns(action: &Action) -> bool {
    matches!(action, Action::Machine(MachineAction::AssignAddress { .. }))
}

#[test]
fn three_members_come_up_at_assigned_addresses() {
    let mut scene = scene(&["members: 3"], None);
    assert!(scene.desired.etcd.members.is_empty(), "no member is described before its address is known");
    assert_snapshot!(scene.to_the_end(), @"
    * assign address main-1 main-2 main-3: not there yet; - - -
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
    assert_eq!(names(&scene.desired), ["main-1", "main-2", "main-3"]);
    assert_eq!(scene.world.ledger.etcd.founders.len(), 3);
}

#[test]
fn the_forecast_goes_on_with_the_addresses_that_a_step_makes_known() {
    let scene = scene(&["members: 3"], None);
    let foreseen = forecast(&scene.desired, &scene.look(), scene.world.now);
    assert!(foreseen.converges, "{:?}", foreseen.waiting);
    assert!(foreseen.waves[0].steps.iter().all(|step| assigns(&step.action)) && foreseen.waves[0].steps.len() == 3);
}

#[test]
fn a_cluster_grows_by_members_with_assigned_addresses() {
    let mut scene = settled(&["members: 3"]);
    scene.desired = assigned(&["members: 5"], None);
    scene.take_up();
    assert_eq!(names(&scene.desired), ["main-1", "main-2", "main-3"], "known by their addresses in the state");
    assert_snapshot!(scene.to_the_end(), @"
    * assign address main-4 main-5: not there yet; 1 1 1
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
fn all_members_are_replaced_by_others_of_new_names() {
    let mut scene = settled(&["members: [{ name: a }, { name: b }, { name: c }]"]);
    scene.desired = assigned(&["members: [{ name: d }, { name: e }, { name: f }]"], None);
    scene.take_up();
    assert!(scene.desired.etcd.members.is_empty());
    assert_snapshot!(describe(&scene.plan()), @"* assign address d e f: not there yet; 1 1 1");
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
    let kept: Vec<&str> = scene.world.ledger.machines.addresses.keys().map(|name| name.as_str()).collect();
    assert_eq!(kept, ["d", "e", "f"], "the others are forgotten with their machines");
}

#[test]
fn a_provider_that_does_not_answer_assigns_nothing_and_maintenance_goes_on() {
    let mut scene = scene(&["members: 3"], None);
    scene.hide(2, Hidden::Machine);
    assert_snapshot!(scene.to_the_end(), @"
    * assign address main-1 main-3: not there yet; - - -
    waits: main-2: the provider does not answer: timed out
    ");
    scene.hidden.clear();
    assert!(scene.to_the_end().ends_with("done\n"));

    scene.desired = assigned(&["members: 5", "quota: 4GiB"], None);
    scene.hide(4, Hidden::Machine);
    scene.hide(5, Hidden::Machine);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    waits: main-4: the provider does not answer: timed out
    waits: main-5: the provider does not answer: timed out
    ");
    scene.hidden.clear();
    assert!(scene.to_the_end().ends_with("done\n"));
}

#[test]
fn an_apply_that_is_killed_between_two_addresses_is_continued() {
    let mut killed = scene(&["members: 3"], None);
    let first = Action::Machine(MachineAction::AssignAddress { machine: Name::fixed("main-2") });
    killed.world.act(&killed.desired, &first, 0).expect("done");
    let kept = killed.world.ledger.machines.addresses.clone();
    killed.take_up();
    assert_eq!(names(&killed.desired), ["main-2"]);
    assert_snapshot!(describe(&killed.plan()), @"* assign address main-1 main-3: not there yet; - - -");
    assert!(killed.to_the_end().ends_with("done\n"));
    assert_eq!(names(&killed.desired), ["main-1", "main-2", "main-3"], "in the order of the file");
    assert_eq!(killed.desired.machine_address(&Name::fixed("main-2")), kept.values().next().copied());
}

#[test]
fn assigned_addresses_make_the_same_cluster_as_given_ones() {
    let (one, two) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let given = assigned(
        &["members: [{ name: b, address: 10.0.0.2 }, { name: a, address: 10.0.0.1 }]"],
        Some("instances: [{ name: lb, address: 10.0.0.3 }]"),
    );
    let open = assigned(&["members: [{ name: b }, { name: a }]"], Some("instances: [{ name: lb }]"));
    let placed = open.place(&Name::fixed("a"), one).unwrap().place(&Name::fixed("b"), two).unwrap();
    assert!(!placed.is_placed() && placed.balancers[0].instances.is_empty());
    let placed = placed.place(&Name::fixed("lb"), IpAddr::from([10, 0, 0, 3])).unwrap();
    assert!(placed.is_placed());
    assert_eq!(
        (&placed.etcd.members, &placed.machines, &placed.etcd.token),
        (&given.etcd.members, &given.machines, &given.etcd.token)
    );
    assert_eq!(placed.balancers[0].instances, given.balancers[0].instances);
    let twice = open.place(&Name::fixed("a"), one).unwrap().place(&Name::fixed("b"), one);
    assert!(matches!(twice, Err(DesireError::AddressTwice { .. })), "{twice:?}");
}

#[test]
fn a_machine_is_not_made_before_it_has_an_address_and_gets_no_second_one() {
    let mut scene = scene(&["members: 3"], None);
    let machine = || Name::fixed("main-1");
    let (assign, create) = (
        Action::Machine(MachineAction::AssignAddress { machine: machine() }),
        Action::Machine(MachineAction::CreateMachine { machine: machine() }),
    );
    let judged = |scene: &Scene, action: &Action| judge(&scene.desired, &scene.look(), &[action], action);
    assert!(judged(&scene, &assign).is_ok());
    assert_snapshot!(judged(&scene, &create).unwrap_err(), @"it has no address yet");
    scene.world.act(&scene.desired, &assign, 0).expect("done");
    assert_snapshot!(judged(&scene, &assign).unwrap_err(), @"it has an address");
    assert!(scene.world.act(&scene.desired, &assign, 0).is_err());
    scene.take_up();
    assert!(judged(&scene, &create).is_ok());
}

#[test]
fn a_balancer_waits_for_the_address_of_a_new_instance_and_members_are_served_meanwhile() {
    let mut scene = scene(&["members: 3"], Some("instances: 1"));
    assert!(scene.to_the_end().ends_with("done\n"));
    scene.desired = assigned(&["members: 3"], Some("instances: 2"));
    scene.hidden.insert(("front-2".to_owned(), Hidden::Machine));
    assert_snapshot!(scene.to_the_end(), @"waits: front-2: the provider does not answer: timed out");
    scene.hidden.clear();
    let output =
        scene.until(|action| matches!(action, Action::Etcd(EtcdAction::RestartEtcd { .. })) || assigns(action));
    assert!(output.contains("assign address front-2"), "{output}");
    assert!(scene.to_the_end().ends_with("done\n"));
}
