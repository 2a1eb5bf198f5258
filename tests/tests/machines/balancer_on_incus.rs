//! An Incus server and a file with a balancer → machines of its own, one address in front of etcd, and nothing again.

use raftsman_core::render::{haproxy, keepalived};
use raftsman_tests::incus::{IMAGE, Incus, NETWORK, SUBNET};
use raftsman_tests::lab::{Lab, etcd_dir};
use raftsman_tests::load::{Load, LoadSettings};

const ADDRESS: &str = "10.78.0.100";
const INSTANCES: [&str; 2] = ["front-1", "front-2"];

#[test]
fn machines_of_a_balancer_wait_for_packages_and_serve() {
    let incus = Incus::up();
    let before = incus.inventory();
    let lab = Lab::new(&format!(
        "fleet: lab\nmachines:\n  provider: incus\n  image: {IMAGE}\n  subnet: {SUBNET}\n  install_dependencies: false\n  \
         incus: {{ server: {:?}, network: {NETWORK}, pool: default }}\n  firewall:\n    operators_from: [10.78.0.1]\n    \
         clients_from: [10.78.0.1]\netcd:\n  main:\n    version: 3.6.15\n    source: {{ directory: {:?} }}\n    \
         members: 1\nbalancers:\n  front: {{ etcd: main, instances: 2, virtual_address: {ADDRESS} }}\n",
        incus.socket(),
        etcd_dir()
    ));
    // The machines are there, etcd serves, and what is missing is named.
    let refused = lab.run(&["apply", "--yes", "--timeout", "20s"]).failed().all();
    assert!(refused.contains("the package `haproxy` is not installed"), "{refused}");
    lab.etcdctl(&["put", "greeting", "hello"]).ok();
    for machine in INSTANCES {
        incus.install(machine, haproxy::PROGRAM);
    }
    let refused = lab.run(&["apply", "--yes", "--timeout", "5s"]).failed().all();
    assert!(refused.contains("the package `keepalived` is not installed"), "{refused}");
    for machine in INSTANCES {
        incus.install(machine, keepalived::PROGRAM);
    }
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    let status = lab.settled();
    let instances = status["clusters"][0]["balancers"][0]["instances"].as_array().expect("instances").clone();
    assert_eq!(instances.len(), INSTANCES.len(), "{instances:?}");
    for instance in &instances {
        assert_eq!(instance["state"], "running", "{instance}");
        assert_eq!(instance["members"][0]["state"], "up", "{instance}");
    }
    lab.nothing_to_do();

    // Through the firewalls of both: clients know the virtual address only, and the other instance takes it over.
    let has = |machine: &str| incus.exec(machine, "ip -br address show eth0").stdout.contains(&format!("{ADDRESS}/"));
    let holders = || INSTANCES.into_iter().filter(|machine| has(machine)).collect::<Vec<_>>();
    let [holder] = holders()[..] else { panic!("one instance has the address: {:?}", holders()) };
    let load = Load::start(&lab, LoadSettings { rate: 100, via: Some("front"), ..LoadSettings::default() });
    load.await_writes(100);
    load.mark("power cut");
    incus.power_cut(holder);
    load.await_writes(100);
    assert!(!holders().contains(&holder) && holders().len() == 1, "{:?}", holders());
    // It keeps no data and needs no question: apply starts it again, and the address stays.
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    lab.settled();
    assert!(!holders().contains(&holder) && holders().len() == 1, "{:?}", holders());
    load.await_writes(50);
    let verdict = load.finish();
    println!("{verdict}");
    assert!(verdict.violations.is_empty(), "{verdict}");

    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(incus.inventory(), before);
}
