//! Hosts with a systemd of their own, reached by SSH once → a cluster, operated without SSH, and gone without a trace.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use raftsman_core::render::systemd::ROOT;
use raftsman_tests::hosts::{Hosts, Manifest};
use raftsman_tests::lab::agents::{another, pretender};
use raftsman_tests::lab::{Lab, binary, etcd_dir, eventually};
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

    // From here on no login is possible.
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

fn main_pid(hosts: &Hosts, unit: &str) -> String {
    hosts.console(0, &format!("systemctl show -P MainPID {unit}")).ok().stdout
}

/// The agent is a unit of systemd, and so is etcd. What is left of a unit's processes ends with its main process: the
/// guardian has to be faster, or to stay.
#[test]
fn an_agent_is_upgraded_and_reverted_under_systemd() {
    let hosts = Hosts::up(1);
    // A small disk, in memory: one of the programs fills it. Enough for etcd, three programs and what the agent keeps free.
    let room = 3 * (another("").len() >> 20) + 400;
    hosts.console(0, &format!("mkdir -p {ROOT} && mount -t tmpfs -o size={room}M tmpfs {ROOT}")).ok();
    let mut lab = Lab::new(&file(&hosts, &hosts.ssh_config()));
    lab.apply();
    let (agent, etcd) = (main_pid(&hosts, "raftsman-agent"), main_pid(&hosts, "raftsman-etcd"));
    lab.ship("second", &another("second"));
    lab.apply();
    assert_eq!(lab.cluster_status()["members"][0]["agent"]["shipped"], true);
    assert_eq!(main_pid(&hosts, "raftsman-agent"), agent, "it is upgraded in its process");
    lab.nothing_to_do();
    // The unit's own program hands over to the confirmed one.
    hosts.console(0, "systemctl restart raftsman-agent").ok();
    eventually("the agent is back", || (lab.cluster_status()["settled"] == true).then_some(()));
    assert_eq!(lab.cluster_status()["members"][0]["agent"]["shipped"], true);

    let version = lab.version();
    let pretends = |does: &str| pretender(&version, does);
    let broken = [
        ("ends", pretends("echo 'error: broken' >&2; exit 1"), "it ended: error: broken"),
        ("hangs", pretends("while :; do sleep 1; done"), "did not serve within 15 s"),
        ("fills", pretends("cat /dev/zero >$2/full; while :; do sleep 1; done"), "did not serve within 15 s"),
    ];
    for (mark, program, why) in broken {
        lab.ship(mark, &program);
        let begun = Instant::now();
        let output = lab.run(&["apply", "--yes", "--timeout", "60s"]).failed().all();
        assert!(begun.elapsed() < Duration::from_secs(30), "{mark}, after {:?}: {output}", begun.elapsed());
        assert!(output.contains("reverted") && output.contains(why), "{mark}: {output}");
        assert!(!lab.run(&["plan"]).stdout.contains("upgrade agent"), "{mark}: it is not tried again");
        hosts.console(0, &format!("rm -f {ROOT}/full")).ok();
        assert_eq!(main_pid(&hosts, "raftsman-etcd"), etcd, "{mark}: etcd's process is the same");
        let running = hosts.console(0, "readlink /proc/$(systemctl show -P MainPID raftsman-agent)/exe").ok().stdout;
        assert!(running.contains("/agent/programs/"), "{mark}: the one that was confirmed is back: {running}");
    }
    lab.ship("fixed", &another("fixed"));
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    settled(&lab);
    assert_eq!(main_pid(&hosts, "raftsman-etcd"), etcd);
}

#[test]
fn a_host_is_enrolled_manually() {
    let hosts = Hosts::up(1);
    let before = hosts.manifest(0);
    let lab = Lab::new(&file(&hosts, &hosts.ssh_config()));
    hosts.stop_sshd(0);
    // The host's administrator has put the agent's program somewhere, and pastes a line.
    let line = lab.run(&["join", "db1"]).ok().stdout;
    std::fs::copy(binary("raftsman-agent"), hosts.disk(0, "/usr/local/bin/raftsman-agent")).expect("a copy");
    hosts.console(0, &line).ok();
    lab.apply();
    settled(&lab);
    assert_eq!(lab.listing("secrets"), ["fleet.age", "main-clients.age", "main-peers.age"], "no token is kept");
    // Pasted again, nothing changes: the machine is taken.
    hosts.console(0, &line).ok();
    lab.nothing_to_do();

    // Its figures are there for Prometheus.
    let output = || hosts.console(0, "cat /var/lib/prometheus/node-exporter/raftsman.prom").stdout;
    let output =
        eventually("etcd runs in its figures", || Some(output()).filter(|it| it.contains("raftsman_etcd_running 1")));
    assert!(output.contains("raftsman_certificate_not_after_seconds{purpose=\"etcd-peer\"}"), "{output}");

    lab.run(&["destroy", "--yes"]).ok();
    std::fs::remove_file(hosts.disk(0, "/usr/local/bin/raftsman-agent")).expect("what was put there by hand");
    hosts.start_sshd(0);
    assert_eq!(hosts.left(0, &before), Vec::<String>::new(), "left on the host");
}

#[test]
fn a_host_that_waited_too_long_is_enrolled_anew() {
    let hosts = Hosts::up(1);
    let lab = Lab::new(&file(&hosts, &hosts.ssh_config()));
    let mut apply = lab.command(&["apply", "--yes", "--json"]).stdout(Stdio::piped()).spawn().expect("raftsman starts");
    let lines = BufReader::new(apply.stdout.take().expect("its output")).lines().map_while(Result::ok);
    // The agent is there, and about to be taken in.
    assert!(lines.filter(|line| line.contains(r#""event":"done""#)).any(|line| line.contains("create_machine")));
    apply.kill().expect("raftsman is killed");
    apply.wait().expect("raftsman ends");
    let claimed = hosts.console(0, "test -e /var/lib/raftsman/agent/tls/current").code == 0;
    assert!(!claimed, "it was killed in time");
    let late = r#"sed -i 's/"join_deadline": "[^"]*"/"join_deadline": "2020-01-01T00:00:00Z"/' /var/lib/raftsman/agent/boot.json"#;
    hosts.console(0, late).ok();
    hosts.console(0, "grep -q 2020-01-01 /var/lib/raftsman/agent/boot.json && systemctl restart raftsman-agent").ok();
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    settled(&lab);
}

#[test]
fn an_ssh_server_that_hangs_is_named_in_time() {
    let hosts = Hosts::up(1);
    let lab = Lab::new(&file(&hosts, &hosts.ssh_config()));
    hosts.console(0, "pkill -STOP -x sshd").ok();
    let begun = Instant::now();
    let refused = lab.run(&["apply", "--yes", "--timeout", "5s"]).failed().all();
    assert!(begun.elapsed() < Duration::from_secs(40), "after {:?}: {refused}", begun.elapsed());
    let named = format!("{}: no login by SSH", hosts.addresses()[0]);
    assert!(refused.contains(&named), "{refused}");
    hosts.console(0, "pkill -CONT -x sshd").ok();
    lab.apply();
    settled(&lab);
}

#[test]
fn what_is_in_the_way_is_said_and_nothing_is_touched() {
    let hosts = Hosts::up(1);
    let lab = Lab::new(&file(&hosts, &hosts.ssh_config()));
    lab.apply();
    let before = hosts.manifest(0);

    // A host of another fleet.
    let others = Lab::new(&file(&hosts, &hosts.ssh_config()).replace("fleet: lab", "fleet: others"));
    let refused = others.run(&["apply", "--yes", "--timeout", "10s"]).failed().all();
    assert!(refused.contains("this machine belongs to the fleet lab"), "{refused}");

    // A host whose key is in no known_hosts.
    let config = std::fs::read_to_string(hosts.ssh_config()).expect("a configuration");
    let known = hosts.known_hosts().display().to_string();
    let unknown = others.path().join("unknown");
    std::fs::write(&unknown, config.replace(&known, "/dev/null")).expect("a configuration");
    others.write_file(&file(&hosts, &unknown).replace("fleet: lab", "fleet: others"));
    let refused = others.run(&["apply", "--yes", "--timeout", "10s"]).failed().all();
    assert!(refused.contains("its SSH host key is not known"), "{refused}");

    // The agent of this fleet writes its figures all the time.
    let mut left = hosts.left(0, &before);
    left.retain(|line| !line.contains("/raftsman.prom "));
    assert_eq!(left, Vec::<String>::new());
    settled(&lab);
}
