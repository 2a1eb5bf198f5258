//! Balancers in front of a cluster → machines, HAProxy and keepalived, and members drained around every restart.
//!
//! The notation is that of the other scenarios: a line with `*` begins a wave.

use std::collections::BTreeSet;

use insta::assert_snapshot;
use raftsman_core::action::{Action, BalancerAction, EtcdAction};
use raftsman_core::desired::Stack;
use raftsman_core::model::{MachineModel, VrrpState, World, forecast};
use raftsman_core::observed::{Agent, Fact, ServerState};
use raftsman_core::plan::plan;
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene, behind, describe, epoch, standing, standing_behind};
use raftsman_tests::sim::agents;

use super::postgres;

const TWO: &str = "instances: [{ name: lb-1, address: 127.0.42.101 }, { name: lb-2, address: 127.0.42.102 }]";

fn cluster(members: usize, further: &[&str]) -> Stack {
    behind(&[], members, further, Some(TWO))
}

fn empty(desired: Stack) -> Scene {
    let world = World::empty(&desired, epoch());
    Scene { desired, world, hidden: BTreeSet::new() }
}

fn settled(desired: Stack) -> Scene {
    let mut scene = empty(desired);
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
    scene
}

fn machine<'s>(scene: &'s mut Scene, name: &'static str) -> &'s mut MachineModel {
    scene.world.machines.get_mut(&Name::fixed(name)).expect("a machine")
}

#[test]
fn balancers_come_up_behind_their_cluster() {
    assert_snapshot!(empty(cluster(3, &[])).to_the_end(), @"
    * make authorities cluster: not there yet; - - -
      create machine main-1 main-2 main-3 lb-1 lb-2: not there yet; - - -
    * enroll main-1 main-2 main-3 lb-1 lb-2: new machine; - - -
    * sign peer cert main-1 main-2 main-3: not there yet; - - -
      sign server cert main-1 main-2 main-3: not there yet; - - -
      install etcd main-1 main-2 main-3: not there yet; - - -
      configure etcd main-1 main-2 main-3: not there yet; - - -
    * start etcd main-1 main-2 main-3: first start, 3 of 3 together; - - 1
    * create root cluster: not there yet; 1 1 1
    * enable auth cluster: auth is off; 1 1 1
    * configure balancer lb-1 lb-2: not there yet; 1 1 1
    * start balancer lb-1 lb-2: not running; 1 1 1
    done
    ");
}

#[test]
fn members_are_drained_around_every_restart() {
    let mut scene = settled(cluster(3, &[]));
    scene.desired = cluster(3, &["quota: 4GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * drain lb-1 lb-2: main-2 stops serving next; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * admit lb-1 lb-2: main-2 serves again; 1 1 1
    * drain lb-1 lb-2: main-3 stops serving next; 1 1 1
    * restart etcd main-3: the file has changed; 1 0 1
    * admit lb-1 lb-2: main-3 serves again; 1 1 1
    * drain lb-1 lb-2: main-1 stops serving next; 1 1 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    * admit lb-1 lb-2: main-1 serves again; 1 1 1
    done
    ");
}

#[test]
fn a_balancer_in_front_of_a_cluster_that_runs() {
    let mut scene = settled(behind(&[], 3, &[], None));
    scene.desired = cluster(3, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * sign server cert main-1 main-2 main-3: names have changed; 1 1 1
      configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
      create machine lb-1 lb-2: not there yet; 1 1 1
    * enroll lb-1 lb-2: new machine; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    * configure balancer lb-1 lb-2: not there yet; 1 1 1
    * start balancer lb-1 lb-2: not running; 1 1 1
    done
    ");
}

#[test]
fn a_learner_gets_no_connections_before_it_votes() {
    let mut scene = settled(cluster(3, &[]));
    scene.desired = cluster(4, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * create machine main-4: not there yet; 1 1 1
    * enroll main-4: new machine; 1 1 1
    * sign peer cert main-4: not there yet; 1 1 1
      sign server cert main-4: not there yet; 1 1 1
      install etcd main-4: not there yet; 1 1 1
      configure etcd main-4: not there yet; 1 1 1
    * add learner main-4: not there yet; 1 1 1
    * start etcd main-4: not there yet; 1 1 1
    * promote main-4: caught up; 1 1 1
    * configure balancer lb-1 lb-2: the members behind it have changed; 1 1 1
    * reload balancer lb-1: the members behind it have changed; 1 1 1
    * reload balancer lb-2: the members behind it have changed; 1 1 1
    done
    ");
}

#[test]
fn a_member_that_goes_is_drained_first() {
    let mut scene = settled(cluster(4, &[]));
    scene.desired = cluster(3, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * drain lb-1 lb-2: main-4 stops serving next; 1 1 1
    * remove member main-4: not in the file; 1 1 1
    * stop etcd main-4: not in the file; 1 1 1
    * delete machine main-4: not in the file; 1 1 1
    * configure balancer lb-1 lb-2: the members behind it have changed; 1 1 1
    * reload balancer lb-1: the members behind it have changed; 1 1 1
    * reload balancer lb-2: the members behind it have changed; 1 1 1
    done
    ");
}

#[test]
fn a_balancer_that_is_removed_goes_with_its_machines() {
    let mut scene = settled(cluster(3, &[]));
    scene.desired = behind(&[], 3, &[], None);
    assert_snapshot!(scene.to_the_end(), @"
    * sign server cert main-1 main-2 main-3: names have changed; 1 1 1
      configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    * delete machine lb-1: not in the file; 1 1 1
    * delete machine lb-2: not in the file; 1 1 1
    done
    ");
}

#[test]
fn beside_members_it_is_stopped_where_it_was() {
    let beside = || behind(&[], 3, &[], Some("instances: members, port: 12379"));
    let mut scene = empty(beside());
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n") && !output.contains("lb-"), "{output}");
    scene.desired = behind(&[], 3, &[], None);
    assert_snapshot!(scene.to_the_end(), @"
    * sign server cert main-1 main-2 main-3: names have changed; 1 1 1
      configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    * stop balancer main-1: not in the file; 1 1 1
    * stop balancer main-2: not in the file; 1 1 1
    * stop balancer main-3: not in the file; 1 1 1
    done
    ");
}

/// An instance keeps no data: its machine is made anew without a question.
#[test]
fn a_lost_instance_is_made_anew() {
    let mut scene = settled(cluster(3, &[]));
    *machine(&mut scene, "lb-2") = MachineModel::none();
    assert_snapshot!(scene.to_the_end(), @"
    * create machine lb-2: not there yet; 1 1 1
    * enroll lb-2: new machine; 1 1 1
    * configure balancer lb-2: not there yet; 1 1 1
    * start balancer lb-2: not running; 1 1 1
    done
    ");
}

/// What is wrong with a balancer keeps no operator from repairing etcd.
#[test]
fn etcd_goes_on_where_a_balancer_cannot_be_reached() {
    let mut scene = settled(cluster(3, &[]));
    scene.hidden.insert(("lb-1".to_owned(), Hidden::Agent));
    scene.desired = cluster(3, &["quota: 4GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * drain lb-2: main-2 stops serving next; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * admit lb-2: main-2 serves again; 1 1 1
    * drain lb-2: main-3 stops serving next; 1 1 1
    * restart etcd main-3: the file has changed; 1 0 1
    * admit lb-2: main-3 serves again; 1 1 1
    * drain lb-2: main-1 stops serving next; 1 1 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    * admit lb-2: main-1 serves again; 1 1 1
    waits: lb-1: the agent does not answer: timed out
    ");
}

#[test]
fn without_its_package_it_waits() {
    let mut scene = settled(behind(&[], 3, &[], None));
    scene.desired = cluster(3, &[]);
    scene.until(|action| matches!(action, Action::Etcd(EtcdAction::RestartEtcd { .. })));
    for name in ["lb-1", "lb-2"] {
        machine(&mut scene, name).balancer.installed = name == "lb-2";
    }
    assert_snapshot!(scene.to_the_end(), @"
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    * configure balancer lb-2: not there yet; 1 1 1
    * start balancer lb-2: not running; 1 1 1
    blocked: lb-1: the package `haproxy` is not installed
    ");
}

/// An apply that was killed between a drain and the restart: the next one admits the member, whatever it does then.
#[test]
fn what_was_drained_and_left_is_admitted() {
    let mut scene = settled(cluster(3, &[]));
    let before = scene.desired.clone();
    scene.desired = cluster(3, &["quota: 4GiB"]);
    scene.until(|action| matches!(action, Action::Balancer(BalancerAction::DrainMember { .. })));
    scene.desired = before;
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * admit lb-1 lb-2: main-2 serves again; 1 1 1
    done
    ");
}

/// Where HAProxy finds no other member healthy, etcd's own safety decides.
#[test]
fn the_last_member_of_an_instance_is_not_drained() {
    let mut scene = settled(cluster(1, &[]));
    scene.desired = cluster(1, &["log_level: warn"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1: the file has changed; 0 0 0
    blocked: main-1: restart etcd would lose quorum: 1 of 1 members are healthy
    ");
}

const MACHINES: [&str; 4] =
    ["provider: incus", "image: a", "subnet: 10.78.0.0/24", "incus: { network: raft, pool: default }"];

/// Three members behind two instances on machines; those share this address.
fn sharing(address: &str) -> Stack {
    behind(&MACHINES, 3, &[], Some(&format!("instances: 2, virtual_address: {address}")))
}

/// As the file says, with the address at the first instance.
fn shared() -> Scene {
    let mut scene = empty(sharing("10.78.0.100"));
    scene.to_the_end();
    scene.world.pass_time();
    let output = scene.to_the_end();
    assert_eq!(output, "done\n");
    scene
}

#[test]
fn instances_share_an_address() {
    let mut scene = shared();
    scene.desired = sharing("10.78.0.99");
    let other = scene.to_the_end();
    scene.desired = behind(&MACHINES, 3, &[], Some("instances: 2"));
    assert_snapshot!(format!("another address\n{other}none\n{}", scene.to_the_end()), @"
    another address
    * sign server cert main-1 main-2 main-3: names have changed; 1 1 1
    * configure balancer front-1 front-2: the file has changed; 1 1 1
    * reload balancer front-1: the file has changed; 1 1 1
    * reload balancer front-2: the file has changed; 1 1 1
    done
    none
    * sign server cert main-1 main-2 main-3: names have changed; 1 1 1
      set firewall front-1 front-2: the file has changed; 1 1 1
    * configure balancer front-1 front-2: the file has changed; 1 1 1
    * reload balancer front-1: the file has changed; 1 1 1
    * reload balancer front-2: the file has changed; 1 1 1
    done
    ");
}

/// No client reaches an address that no instance has.
#[test]
fn it_is_done_once_an_instance_has_the_address() {
    let mut scene = empty(sharing("10.78.0.100"));
    let waves = scene.to_the_end();
    let (_, end) = waves.split_once("* start balancer").expect("it is started");
    let foreseen = forecast(&scene.desired, &empty(sharing("10.78.0.100")).look(), scene.world.now);
    assert!(foreseen.converges, "{:?}", foreseen.waiting);
    scene.world.pass_time();
    let first = scene.to_the_end();
    // HAProxy is killed, and keepalived ends with it.
    machine(&mut scene, "front-1").balancer.backs_off = true;
    scene.world.pass_time();
    let killed = scene.to_the_end();
    scene.world.pass_time();
    assert_snapshot!(format!("{end}{first}killed\n{killed}{}", scene.to_the_end()), @"
     front-1 front-2: not running; 1 1 1
    waits: front: no instance has the virtual address 10.78.0.100 yet
    done
    killed
    waits: front: no instance has the virtual address 10.78.0.100 yet
    done
    ");
}

/// A reload would have no effect on what does not run.
#[test]
fn keepalived_that_ends_is_waited_for() {
    let mut scene = shared();
    machine(&mut scene, "front-2").balancer.address_backs_off = true;
    let ended = scene.to_the_end();
    scene.world.pass_time();
    assert_snapshot!(format!("{ended}later\n{}", scene.to_the_end()), @"
    waits: front-2: keepalived is starting
    later
    done
    ");
}

#[test]
fn an_address_at_two_instances_is_named() {
    let mut scene = shared();
    let vrrp = &mut machine(&mut scene, "front-2").balancer.vrrp;
    vrrp.as_mut().expect("keepalived").state = VrrpState::Master;
    assert_snapshot!(scene.to_the_end(), @"waits: front: several instances have the virtual address 10.78.0.100: front-1 front-2");
}

/// An instance that cannot be asked may have the address.
#[test]
fn an_address_that_an_unreachable_instance_may_have_is_not_waited_for() {
    let mut scene = shared();
    scene.hidden.insert(("front-1".to_owned(), Hidden::Agent));
    assert_snapshot!(scene.to_the_end(), @"waits: front-1: the agent does not answer: timed out");
}

/// An agent takes only the lines of HAProxy's configuration that it knows.
#[test]
fn an_agent_is_upgraded_before_its_balancer_is_configured() {
    let mut scene = settled(behind(&[], 3, &[], None));
    scene.desired = agents::shipping(cluster(3, &[]), ("1.1.0", "a"));
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
    scene.desired = agents::shipping(cluster(2, &[]), ("1.2.0", "b"));
    assert_snapshot!(scene.to_the_end(), @"
    * drain lb-1 lb-2: main-3 stops serving next; 1 1 1
    * remove member main-3: not in the file; 1 0 0
    * stop etcd main-3: not in the file; 0 0 0
    * delete machine main-3: not in the file; 0 0 0
    * upgrade agent lb-1: 1.1.0 → 1.2.0; 0 0 0
    * upgrade agent lb-2: 1.1.0 → 1.2.0; 0 0 0
    * configure balancer lb-1 lb-2: the members behind it have changed; 0 0 0
    * reload balancer lb-1: the members behind it have changed; 0 0 0
    * reload balancer lb-2: the members behind it have changed; 0 0 0
    note: main-1: its agent, of version model, is too old to be upgraded by `apply`
    note: main-2: its agent, of version model, is too old to be upgraded by `apply`
    done
    ");
}

/// HAProxy that was killed and is not up again is told, and delays nothing else.
#[test]
fn an_instance_that_starts_is_waited_for() {
    let mut scene = settled(cluster(3, &[]));
    machine(&mut scene, "lb-1").balancer.backs_off = true;
    let forecast = forecast(&scene.desired, &scene.look(), scene.world.now);
    let waiting: Vec<String> = forecast.waiting.iter().map(ToString::to_string).collect();
    assert_eq!((forecast.converges, waiting.join("; ")), (false, "lb-1: HAProxy is starting".to_owned()));
}

/// A member that took long to restart is down at HAProxy, drained or not, until two checks have succeeded. Done before that,
/// one that was drained would stay so.
#[test]
fn a_member_that_an_instance_does_not_find_healthy_yet_is_waited_for() {
    let scene = settled(cluster(3, &[]));
    let mut observed = scene.look();
    let seen = observed.machines.get_mut(&Name::fixed("lb-2")).expect("a machine");
    let Fact::Seen { value: Agent::Claimed(report), .. } = &mut seen.agent else { panic!("an agent of ours") };
    let servers = &mut report.balancer.as_mut().expect("a balancer").facts.servers;
    servers.get_mut(&Name::fixed("main-3")).expect("a member").state = ServerState::Down;
    let plan = plan(&scene.desired, &observed, scene.world.now);
    assert_snapshot!(describe(&plan), @"waits: lb-2: HAProxy has not found main-3 healthy yet");
}

/// What a balancer of PostgreSQL is given.
const BEFORE_NODES: &str = "instances: [{ name: db-1, address: 127.0.42.111 }, { name: db-2, address: 127.0.42.112 }]";

#[test]
fn in_front_of_postgresql() {
    let nodes = postgres::THREE;
    let mut scene = postgres::empty(standing_behind(nodes, BEFORE_NODES));
    let output = postgres::to_the_end(&mut scene);
    let (_, of_balancer) = output.split_once("* start patroni").expect("nodes are started");
    assert_snapshot!(of_balancer, @"
     pg-2 pg-3: not there yet; 1 1 1
    * configure balancer db-1 db-2: not there yet; 1 1 1
    * start balancer db-1 db-2: not running; 1 1 1
    ~ pg: PostgreSQL does not run on pg-2
    done
    ");
    // Which node is the primary is found out by HAProxy: a switchover changes nothing there, and nothing is drained.
    scene.desired = standing_behind(&["nodes: 3", "parameters: { max_connections: 200 }"], BEFORE_NODES);
    assert_snapshot!(postgres::to_the_end(&mut scene), @"
    * set patroni pg: the file has changed; 1 1 1
    ~ pg-1: Patroni has not been seen at etcd since the last step, at 2026-11-15T12:01:20Z
    * restart postgresql pg-3: the file has changed; 1 1 1, copies 1 1 1
    * restart postgresql pg-2: the file has changed; 1 1 1, copies 1 0 1
    * switch over pg: pg-1 restarts next; 1 1 1, copies 1 - 1, switchover
    done
    ");
    scene.desired = standing_behind(
        &["nodes: 3", "parameters: { max_connections: 200 }"],
        &format!("{BEFORE_NODES}, replicas_port: 5433"),
    );
    assert_snapshot!(postgres::to_the_end(&mut scene), @"
    * configure balancer db-1 db-2: the file has changed; 1 1 1
    * reload balancer db-1: the file has changed; 1 1 1
    * reload balancer db-2: the file has changed; 1 1 1
    done
    ");
}

#[test]
fn a_certificate_that_ends_is_renewed_and_taken_up() {
    let mut scene = postgres::settled(standing_behind(postgres::THREE, BEFORE_NODES));
    let certificate = machine(&mut scene, "db-1").balancer.certificate.clone().expect("a certificate");
    scene.world.now = certificate.not_after - jiff::SignedDuration::from_hours(24);
    assert_snapshot!(postgres::to_the_end(&mut scene), @"
    * sign peer cert main-1 main-2 main-3: expires in 24 h; 1 1 1
      sign server cert main-1 main-2 main-3: expires in 24 h; 1 1 1
      sign balancer cert db-1 db-2: expires in 24 h; 1 1 1
      sign postgresql cert pg-1 pg-2 pg-3: expires in 24 h; 1 1 1
      sign rest cert pg-1 pg-2 pg-3: expires in 24 h; 1 1 1
    * reload patroni pg-2: its certificates were renewed; 1 1 1
    * reload patroni pg-3: its certificates were renewed; 1 1 1
    * reload patroni pg-1: its certificates were renewed; 1 1 1
    * configure balancer db-1 db-2: the file has changed; 1 1 1
    * reload balancer db-1: the file has changed; 1 1 1
    * reload balancer db-2: the file has changed; 1 1 1
    done
    ");
    let renewed = machine(&mut scene, "db-1").balancer.certificate.clone().expect("a certificate");
    assert!(renewed.not_after > certificate.not_after);
}

#[test]
fn a_balancer_of_postgresql_goes() {
    let mut scene = postgres::settled(standing_behind(postgres::THREE, BEFORE_NODES));
    scene.desired = standing(&[], postgres::THREE);
    assert_snapshot!(postgres::to_the_end(&mut scene), @"
    * sign postgresql cert pg-1 pg-2 pg-3: names have changed; 1 1 1
    * reload patroni pg-2: its certificates were renewed; 1 1 1
    * reload patroni pg-3: its certificates were renewed; 1 1 1
    * reload patroni pg-1: its certificates were renewed; 1 1 1
    * delete machine db-1: not in the file; 1 1 1
    * delete machine db-2: not in the file; 1 1 1
    done
    ");
}

/// Nodes that come are behind the balancer before one of them may become the primary; nodes that go stay until they are gone.
#[test]
fn nodes_are_replaced_behind_a_balancer() {
    let nodes = |numbers: [u8; 3]| {
        let list =
            numbers.map(|number| format!("{{ name: pg-{number}, address: 127.0.42.{} }}", 120 + number)).join(", ");
        standing_behind(&[&format!("nodes: [{list}]")], BEFORE_NODES)
    };
    let mut scene = postgres::settled(nodes([1, 2, 3]));
    scene.desired = nodes([4, 5, 6]);
    assert_snapshot!(postgres::to_the_end(&mut scene), @"
    * create machine pg-4 pg-5 pg-6: not there yet; 1 1 1
    * enroll pg-4 pg-5 pg-6: new machine; 1 1 1
    * install patroni pg-4 pg-5 pg-6: not there yet; 1 1 1
      sign postgresql cert pg-4 pg-5 pg-6: not there yet; 1 1 1
      sign rest cert pg-4 pg-5 pg-6: not there yet; 1 1 1
      configure patroni pg-4 pg-5 pg-6: not there yet; 1 1 1
    * start patroni pg-4 pg-5 pg-6: not there yet; 1 1 1
    * configure balancer db-1 db-2: the members behind it have changed; 1 1 1
    * reload balancer db-1: the members behind it have changed; 1 1 1
    * reload balancer db-2: the members behind it have changed; 1 1 1
    * stop patroni pg-2: not in the file; 1 1 1, copies 1 0 1
    * delete machine pg-2: not in the file; 1 1 1
    * configure balancer db-1 db-2: the members behind it have changed; 1 1 1
    * reload balancer db-1: the members behind it have changed; 1 1 1
    * reload balancer db-2: the members behind it have changed; 1 1 1
    * stop patroni pg-3: not in the file; 1 1 1, copies 1 0 1
    * delete machine pg-3: not in the file; 1 1 1
    * configure balancer db-1 db-2: the members behind it have changed; 1 1 1
    * reload balancer db-1: the members behind it have changed; 1 1 1
    * reload balancer db-2: the members behind it have changed; 1 1 1
    * switch over pg: not in the file; 1 1 1, copies 1 - 1, switchover
    * stop patroni pg-1: not in the file; 1 1 1, copies 1 0 1
    * delete machine pg-1: not in the file; 1 1 1
    * configure balancer db-1 db-2: the members behind it have changed; 1 1 1
    * reload balancer db-1: the members behind it have changed; 1 1 1
    * reload balancer db-2: the members behind it have changed; 1 1 1
    done
    ");
}
