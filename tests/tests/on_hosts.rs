//! Hosts with a systemd of their own, reached by SSH once → a cluster, operated without SSH, and gone without a trace.

use std::path::Path;

use raftsman_tests::hosts::{Hosts, Manifest};
use raftsman_tests::lab::{Lab, etcd_dir, eventually};
use raftsman_tests::load::{Load, LoadSettings};

fn file(hosts: &Hosts, ssh: &Path) -> String {
    let member = |(i, address)| format!("      - {{ name: db{}, address: {address} }}\n", i + 1);
    let members: String = hosts.addresses().into_iter().enumerate().map(member).collect();
    format!(
        "fleet: lab\nmachines:\n  provider: hosts\n  ssh: {{ config: {ssh:?} }}\netcd:\n  main:\n    version: 3.6.15\n    \
         source: {{ directory: {:?} }}\n    members:\n{members}",
        etcd_dir()
    )
}

fn manifests(hosts: &Hosts) -> Vec<Manifest> {
    (0..hosts.addresses().len()).map(|i| hosts.manifest(i)).collect()
}

#[track_caller]
fn settled(lab: &Lab) {
    let status = lab.cluster_status();
    assert_eq!(status["settled"], true, "{status}");
}

#[test]
fn hosts_become_a_cluster_and_hosts_again() {
    let mut hosts = Hosts::up(3);
    let before = manifests(&hosts);
    let lab = Lab::new(&file(&hosts, &hosts.ssh_config()));
    lab.apply();
    settled(&lab);

    // etcd is a unit of its own with a user of its own, and its log is in the journal.
    let user = hosts.ssh(0, "ps -o user:32= -p $(systemctl show -P MainPID raftsman-etcd)").ok().stdout;
    assert_eq!(user.trim(), "raftsman-etcd");
    let log = lab.run(&["logs", "db1"]).ok().stdout;
    assert!(log.contains("ready to serve client requests"), "{log}");

    // From here on nobody can log in.
    (0..3).for_each(|i| hosts.stop_sshd(i));
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(100);
    lab.write_file(&format!("{}    quota: 3GiB\n", lab.file()));
    lab.apply();
    lab.run(&["cert", "rotate", "peers", "--yes"]).ok();
    load.await_writes(100);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_clean();

    // A power cut of everything at once: the cluster is back without an operator.
    lab.etcdctl(&["put", "before", "the power cut"]).ok();
    (0..3).for_each(|i| hosts.power_cut(i));
    (0..3).for_each(|i| hosts.start(i));
    (0..3).for_each(|i| hosts.stop_sshd(i));
    eventually("the cluster is back", || (lab.cluster_status()["settled"] == true).then_some(()));
    assert!(lab.etcdctl(&["get", "before"]).ok().stdout.contains("the power cut"));

    lab.run(&["destroy", "--yes"]).ok();
    lab.holds_nothing(None, &[]);
    (0..3).for_each(|i| hosts.start_sshd(i));
    for (i, (before, after)) in before.iter().zip(manifests(&hosts)).enumerate() {
        assert_eq!(after.since(before), Vec::<String>::new(), "left on host {i}");
    }
}
