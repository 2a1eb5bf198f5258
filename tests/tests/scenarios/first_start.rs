//! A file and nothing else → machines, members and a cluster, whatever cannot be reached meanwhile.
//!
//! A line with `*` begins a wave; the three numbers are what the cluster can lose before, during and after it, `-` for
//! no quorum. `Scene::to_the_end` itself holds every end against 're-planning changes nothing'.

use insta::assert_snapshot;
use raftsman_core::observed::{Disk, PortTaken};
use raftsman_tests::fixtures::{Hidden, Scene, cluster};

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
    waits: main-1: the provider does not answer: timed out
    waits: main-2: the provider does not answer: timed out
    waits: main-3: the provider does not answer: timed out
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
    waits: main-1: the provider does not answer: timed out
    waits: main-2: the provider does not answer: timed out
    waits: main-3: the provider does not answer: timed out
    waits: main-4: the provider does not answer: timed out
    waits: main-5: the provider does not answer: timed out
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
