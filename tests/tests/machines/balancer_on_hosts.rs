//! A file with a balancer and a virtual address, and hosts with systemd → clients that know only that address.

use std::net::IpAddr;
use std::time::Duration;

use raftsman_core::render::systemd::ROOT;
use raftsman_core::render::{haproxy, keepalived};
use raftsman_tests::hosts::{Hosts, Manifest};
use raftsman_tests::lab::{Lab, etcd_dir, eventually, soak};
use raftsman_tests::load::{Load, LoadSettings};
use serde_json::Value;

/// Hosts 0 to 2 have the members.
const MEMBERS: usize = 3;
/// Hosts 3 and 4 have the balancer's instances.
const INSTANCES: [usize; 2] = [3, 4];
/// How long clients wait for an answer that are not to notice anything.
const PATIENT: Duration = Duration::from_secs(3);
const ADDRESS: &str = "10.77.0.200";
const BOTH: &str = "systemctl is-active raftsman-haproxy raftsman-keepalived";

fn file(hosts: &Hosts, further: &str) -> String {
    let addresses = hosts.addresses();
    let member = |i: usize| format!("      - {{ name: db{}, address: {} }}\n", i + 1, addresses[i]);
    let instance = |(n, i): (usize, usize)| format!("      - {{ name: lb{}, address: {} }}\n", n + 1, addresses[i]);
    let members: String = (0..MEMBERS).map(member).collect();
    let instances: String = INSTANCES.into_iter().enumerate().map(instance).collect();
    format!(
        "fleet: lab\nmachines:\n  provider: hosts\n  ssh: {{ config: {:?} }}\netcd:\n  main:\n    version: 3.6.15\n    \
         source: {{ directory: {:?} }}\n    members:\n{members}{further}balancers:\n  front:\n    etcd: main\n    \
         virtual_address: {ADDRESS}\n    instances:\n{instances}",
        hosts.ssh_config(),
        etcd_dir()
    )
}

/// Hosts as they are before raftsman, and a cluster behind a balancer on them.
fn up() -> (Hosts, Vec<Manifest>, Lab) {
    let hosts = Hosts::up(MEMBERS + INSTANCES.len());
    for i in INSTANCES {
        hosts.install(i, haproxy::PROGRAM);
        hosts.install(i, keepalived::PROGRAM);
    }
    let before = (0..hosts.addresses().len()).map(|i| hosts.manifest(i)).collect();
    let lab = Lab::new(&file(&hosts, ""));
    lab.apply();
    // It is done only once an instance has the address.
    assert_eq!(INSTANCES.into_iter().filter(|i| has(&hosts, *i)).count(), 1, "one instance has the address");
    lab.settled();
    (hosts, before, lab)
}

/// Which instances have the virtual address, as `raftsman status` says; both pass connections to all members.
#[track_caller]
fn sound(lab: &Lab) -> Vec<bool> {
    let status = lab.settled();
    let balancer = &status["clusters"][0]["balancers"][0];
    let instances = balancer["instances"].as_array().expect("instances");
    assert_eq!(instances.len(), INSTANCES.len(), "{balancer}");
    for instance in instances {
        assert_eq!(instance["state"], "running", "{instance}");
        let members = instance["members"].as_array().expect("members");
        assert_eq!(members.iter().filter(|member| member["state"] == "up").count(), MEMBERS, "{instance}");
    }
    instances.iter().map(|instance| instance["has_virtual_address"] == true).collect()
}

fn has(hosts: &Hosts, i: usize) -> bool {
    hosts.console(i, "ip -br address show eth0").stdout.contains(&format!("{ADDRESS}/"))
}

/// The one host that has the virtual address.
#[track_caller]
fn holder(hosts: &Hosts) -> usize {
    eventually("one instance has the address", || {
        let mut with = INSTANCES.into_iter().filter(|i| has(hosts, *i));
        with.next().filter(|_| with.next().is_none())
    })
}

fn other(i: usize) -> usize {
    INSTANCES.into_iter().find(|other| *other != i).expect("two instances")
}

/// Clients that know the virtual address only, and give up a call after this time.
fn clients(lab: &Lab, try_timeout: Duration) -> Load {
    let via = Some("front");
    let load = Load::start(lab, LoadSettings { rate: 100, workers: 16, via, try_timeout, ..LoadSettings::default() });
    assert_eq!(load.members().endpoints(), [ADDRESS.parse::<IpAddr>().expect("an address")]);
    load.await_writes(50);
    load
}

/// A machine without power sends nothing any more, not even the end of its connections, and forgets its addresses. The
/// network of a host of the lab outlives the host: it is taken off the bridge first, which the host does not see.
fn lose_power(hosts: &mut Hosts, i: usize) {
    let host = i + 1;
    hosts.space().run(&format!("ip link set h{host} nomaster\n"));
    hosts.power_cut(i);
    hosts.space().run(&format!("ip -n h{host} address del {ADDRESS}/32 dev eth0\nip link set h{host} master bridge\n"));
}

/// The steps of an apply that were done: what, where.
fn done(lines: &[Value]) -> Vec<(String, String)> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let waves = lines.iter().filter(|line| line["event"] == "wave");
    let steps = waves.flat_map(|wave| wave["steps"].as_array().into_iter().flatten()).map(|step| &step["action"]);
    steps.map(|action| (word(&action["do"]), word(&action["machine"]))).collect()
}

#[test]
fn clients_of_a_virtual_address_outlive_its_holder() {
    let (mut hosts, before, lab) = up();
    let first = INSTANCES.into_iter().find(|i| has(&hosts, *i)).expect("the holder");
    assert_eq!(sound(&lab), INSTANCES.map(|i| i == first), "one has the address");
    lab.nothing_to_do();

    // A changed setting, member by member: drained and admitted at both, and no client sees an error.
    let load = clients(&lab, PATIENT);
    lab.write_file(&file(&hosts, "    flags: { max-request-bytes: 2000000 }\n"));
    let steps = done(&lab.apply());
    load.await_writes(50);
    for step in ["drain_member", "admit_member"] {
        for machine in ["lb1", "lb2"] {
            let count = steps.iter().filter(|(done, at)| done == step && at == machine).count();
            assert_eq!(count, MEMBERS, "{step} at {machine}: {steps:?}");
        }
    }
    let verdict = load.finish();
    println!("{verdict}");
    assert!(verdict.violations.is_empty(), "{verdict}");
    assert_eq!(verdict.figures.errors, 0, "{verdict}");
    assert_eq!(sound(&lab), INSTANCES.map(|i| i == first), "it did not move");

    // The holder's HAProxy is killed: the other instance takes the address, and the agent starts HAProxy again.
    let load = clients(&lab, PATIENT);
    load.mark("HAProxy killed");
    hosts.console(first, "systemctl kill -s KILL raftsman-haproxy").ok();
    eventually("the other has the address", || (has(&hosts, other(first)) && !has(&hosts, first)).then_some(()));
    load.await_writes(50);
    eventually("both are back", || (hosts.console(first, BOTH).stdout == "active\nactive\n").then_some(()));
    let verdict = load.finish();
    println!("{verdict}");
    assert!(verdict.violations.is_empty(), "{verdict}");

    // The holder's machine loses its power: the address comes back, and apply says which machine is missing.
    let second = other(first);
    let load = clients(&lab, PATIENT);
    load.mark("the machine lost its power");
    lose_power(&mut hosts, second);
    eventually("the other has the address", || has(&hosts, first).then_some(()));
    load.await_writes(50);
    let refused = lab.run(&["apply", "--yes", "--timeout", "5s"]).failed().all();
    let missing = if second == INSTANCES[0] { "lb1" } else { "lb2" };
    assert!(refused.contains(&format!("{missing}: the agent does not answer")), "{refused}");
    // Once it has power again, its agent starts both programs, and the address stays where it is.
    hosts.start(second);
    lab.apply();
    eventually("both are back", || (hosts.console(second, BOTH).stdout == "active\nactive\n").then_some(()));
    assert_eq!(holder(&hosts), first, "it does not move back");
    sound(&lab);
    load.await_writes(50);
    let verdict = load.finish();
    println!("{verdict}");
    assert!(verdict.violations.is_empty(), "{verdict}");

    lab.run(&["destroy", "--yes"]).ok();
    for (i, before) in before.iter().enumerate() {
        assert_eq!(hosts.left(i, before), Vec::<String>::new(), "left on host {i}");
    }
    assert!(!INSTANCES.into_iter().any(|i| has(&hosts, i)), "the address is gone");
}

/// What set up HAProxy and keepalived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Raftsman,
    Hand,
}

/// How the holder ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Haproxy,
    Machine,
}

/// An administrator's setup: the same two configurations, HAProxy's unit with what Debian's has, and a keepalived that
/// asks every second whether HAProxy runs. The units know nothing of each other.
fn by_hand(hosts: &Hosts, i: usize) {
    let script = format!(
        "set -e\nsystemctl disable --now raftsman-agent\nsystemctl stop raftsman-keepalived raftsman-haproxy\n\
         mkdir /etc/hand\ninstall -m 644 {ROOT}/haproxy/haproxy.cfg /etc/hand/\n\
         sed -e 's/^vrrp_instance.*/vrrp_script alive {{\\n    script \"\\/usr\\/bin\\/pgrep -x haproxy\"\\n    \
         interval 1\\n    fall 1\\n    rise 1\\n}}\\n&\\n    track_script {{\\n        alive\\n    }}/' \
         -e 's/^global_defs.*/&\\n    script_user root\\n    enable_script_security/' \
         {ROOT}/keepalived/keepalived.conf >/etc/hand/keepalived.conf\n\
         cat >/etc/systemd/system/hand-haproxy.service <<'UNIT'\n[Unit]\nAfter=network-online.target\n[Service]\n\
         Type=notify\nUser=raftsman-haproxy\nWorkingDirectory={ROOT}\nExecStart={} -Ws -f /etc/hand/haproxy.cfg\n\
         KillMode=mixed\nRestart=always\nLimitNOFILE=262144\n[Install]\nWantedBy=multi-user.target\nUNIT\n\
         cat >/etc/systemd/system/hand-keepalived.service <<'UNIT'\n[Unit]\nAfter=network-online.target\n[Service]\n\
         ExecStart={} --dont-fork --log-console --no-syslog --vrrp --use-file=/etc/hand/keepalived.conf\n\
         KillMode=process\nRestart=always\n[Install]\nWantedBy=multi-user.target\nUNIT\n\
         systemctl daemon-reload\nsystemctl enable --now hand-haproxy hand-keepalived\n",
        haproxy::PROGRAM,
        keepalived::PROGRAM,
    );
    hosts.console(i, &script).ok();
}

/// How long clients had no acknowledged write when the holder ended in this way.
fn gap(hosts: &mut Hosts, lab: &Lab, by: By, end: End) -> Duration {
    let (haproxy, units) = match by {
        By::Raftsman => ("raftsman-haproxy", BOTH),
        By::Hand => ("hand-haproxy", "systemctl is-active hand-haproxy hand-keepalived"),
    };
    let holding = holder(hosts);
    let load = clients(lab, Duration::from_millis(500));
    match end {
        End::Haproxy => drop(hosts.console(holding, &format!("systemctl kill -s KILL {haproxy}")).ok()),
        End::Machine => lose_power(hosts, holding),
    }
    load.await_writes(100);
    let verdict = load.finish();
    assert!(verdict.violations.is_empty(), "{by:?} {end:?}: {verdict}");
    if end == End::Machine {
        assert!(has(hosts, other(holding)), "the other has the address");
        hosts.start(holding);
    }
    eventually("both are back", || (hosts.console(holding, units).stdout == "active\nactive\n").then_some(()));
    // It has heard of the holder by then.
    std::thread::sleep(Duration::from_secs(2));
    verdict.figures.longest_gap.length
}

fn median(gaps: &[Duration]) -> Duration {
    let mut sorted = gaps.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// The same hosts, the same configurations: what clients notice when the holder of the address ends.
#[test]
fn a_lost_holder_is_noticed_as_by_hand() {
    let (mut hosts, _, lab) = up();
    let rounds = if soak() { 5 } else { 1 };
    let ends = [(End::Haproxy, "HAProxy killed"), (End::Machine, "machine lost")];
    let mut gaps = ends.map(|_| (Vec::new(), Vec::new()));
    for _ in 0..rounds {
        for (n, (end, _)) in ends.into_iter().enumerate() {
            gaps[n].0.push(gap(&mut hosts, &lab, By::Raftsman, end));
        }
    }
    INSTANCES.into_iter().for_each(|i| by_hand(&hosts, i));
    for _ in 0..rounds {
        for (n, (end, _)) in ends.into_iter().enumerate() {
            gaps[n].1.push(gap(&mut hosts, &lab, By::Hand, end));
        }
    }
    println!("the longest gap between two acknowledged writes, 100 a second, {rounds} each");
    println!("| | raftsman: median, longest | by hand: median, longest | ratio of medians |\n|---|---|---|---|");
    for ((_, name), (ours, hand)) in ends.into_iter().zip(&gaps) {
        let worst = |gaps: &[Duration]| gaps.iter().max().copied().unwrap_or_default();
        let ratio = median(ours).as_secs_f64() / median(hand).as_secs_f64();
        println!(
            "| {name} | {:.2?}, {:.2?} | {:.2?}, {:.2?} | {ratio:.2} |",
            median(ours),
            worst(ours),
            median(hand),
            worst(hand)
        );
        assert!(worst(ours) < Duration::from_secs(20), "{name}: {ours:?}");
    }
}
