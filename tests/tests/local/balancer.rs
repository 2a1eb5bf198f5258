//! Clients that know only a balancer's address → what they notice when members are killed, and when they are restarted.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use raftsman_tests::balancer::{Balancer, Drain, behind};
use raftsman_tests::hand::Hand;
use raftsman_tests::lab::{Lab, Output, etcdctl, eventually, kill, text};
use raftsman_tests::load::{Load, LoadSettings, Target, Verdict};
use rustix::process::Signal;

use crate::cli::status_is_documented;

/// One client for each member: a client has one connection.
const CLIENTS: u64 = 3;

fn clients(hand: &Hand, address: IpAddr) -> Vec<Load> {
    let target = Target { endpoints: vec![address], ..Target::of(&hand.lab, "main") };
    (1..=CLIENTS)
        .map(|seed| {
            let settings =
                LoadSettings { seed, rate: 60, workers: 8, follow_members: false, ..LoadSettings::default() };
            Load::against(target.clone(), settings)
        })
        .collect()
}

fn await_writes(clients: &[Load], more: u64) {
    clients.iter().for_each(|load| load.await_writes(more));
}

fn mark(clients: &[Load], text: &str) {
    clients.iter().for_each(|load| load.mark(text));
}

fn finish(clients: Vec<Load>) -> Vec<Verdict> {
    clients.into_iter().map(Load::finish).collect()
}

/// A restart by hand with leadership moved first, as the plan does it: the next member that is not restarted takes it.
fn restart(hand: &mut Hand, balancer: &Balancer, index: usize, how: Drain) {
    let leader = hand.leader();
    if leader == index {
        hand.move_leader(index, (index + 1) % hand.members());
    }
    let name = hand.name(index).to_owned();
    balancer.take_out(&name, how);
    if how == Drain::DrainAndCut {
        eventually("its connections are gone", || (balancer.connections(&name) == 0).then_some(()));
    }
    hand.restart(index);
    match how {
        Drain::Not => {}
        Drain::Drain | Drain::DrainAndCut => balancer.admit(&name),
    }
}

#[test]
fn clients_of_a_balancer_outlive_every_member() {
    let (mut hand, address) = behind("3.6.15");
    let balancer = Balancer::start(&hand, address);
    let clients = clients(&hand, address);
    await_writes(&clients, 50);
    for index in 0..hand.members() {
        mark(&clients, &format!("kill {}", hand.name(index)));
        hand.kill(index);
        await_writes(&clients, 100);
        hand.start(index);
        balancer.admit(hand.name(index));
        await_writes(&clients, 20);
    }
    for verdict in finish(clients) {
        println!("{verdict}");
        assert!(verdict.violations.is_empty(), "{verdict}\n{}", balancer.log());
        // A killed leader costs an election of one to two seconds, and what was under way.
        assert!(verdict.figures.longest_gap.length < Duration::from_secs(10), "{verdict}");
    }
    drop(balancer);
    hand.lab.destroy();
}

/// The same rolling restart in three ways, as a table. Nothing may be lost; errors are printed and not judged: leadership
/// is moved right before a stop, so that a call can meet both within its one retry, whichever way is taken.
#[test]
fn rolling_restarts_behind_a_balancer_lose_nothing() {
    let (mut hand, address) = behind("3.6.15");
    let balancer = Balancer::start(&hand, address);
    println!("before a restart  client  retried  errors  longest gap  gap after");
    for how in [Drain::Not, Drain::Drain, Drain::DrainAndCut] {
        let clients = clients(&hand, address);
        await_writes(&clients, 50);
        for index in 0..hand.members() {
            mark(&clients, &format!("restart {}", hand.name(index)));
            restart(&mut hand, &balancer, index, how);
            await_writes(&clients, 50);
        }
        for (client, verdict) in finish(clients).into_iter().enumerate() {
            let figures = &verdict.figures;
            println!(
                "{:<16}  {client:>6}  {:>7}  {:>6}  {:>8.0} ms  {}",
                how.name(),
                figures.retried,
                figures.errors,
                figures.longest_gap.length.as_secs_f64() * 1000.0,
                figures.gap_after.as_deref().unwrap_or_default(),
            );
            assert!(verdict.violations.is_empty(), "{verdict}\n{}", balancer.log());
        }
    }
    drop(balancer);
    hand.lab.destroy();
}

/// A file with a balancer in front of three members, on this computer.
fn fronted() -> Lab {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.write_file(&format!("{}{FRONT}", lab.file()));
    lab
}

/// Few connections: an instance needs two files for each, and a user of this computer has some thousand.
const FRONT: &str = "balancers:\n  front: { etcd: main, instances: 2, max_connections: 500 }\n";

/// The addresses that `raftsman env --via front` prints.
#[track_caller]
fn via_front(lab: &Lab) -> Vec<IpAddr> {
    let env = lab.run(&["env", "--via", "front", "--json"]).ok().json();
    let endpoints = env["endpoints"].as_array().expect("endpoints").iter();
    let address = |url: &serde_json::Value| {
        let socket = url.as_str().and_then(|url| url.strip_prefix("https://")).expect("a URL of TLS");
        socket.parse::<SocketAddr>().expect("an address").ip()
    };
    endpoints.map(address).collect()
}

/// Runs `etcdctl` as `raftsman env --via front` says.
#[track_caller]
fn etcdctl_via_front(lab: &Lab, arguments: &[&str]) -> Output {
    let env = lab.run(&["env", "--via", "front"]).ok().stdout;
    let script = format!("{env}\nexec \"$ETCDCTL\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "etcdctl"]).args(arguments).env("ETCDCTL", etcdctl());
    text(command.output().expect("a shell"))
}

/// Running HAProxy masters: the machine's name and the process.
fn haproxies(lab: &Lab) -> Vec<(String, u32)> {
    let machines = lab.path().join(".raftsman/machines").to_string_lossy().into_owned() + "/";
    let of = |(pid, line): (u32, String)| {
        let name = line.split_once("haproxy -W -db -f ")?.1.strip_prefix(&machines)?.split('/').next()?.to_owned();
        Some((name, pid))
    };
    lab.processes().into_iter().filter_map(of).collect()
}

/// The steps of an apply that were done: what, where.
fn done(lines: &[serde_json::Value]) -> Vec<(String, String)> {
    let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let waves = lines.iter().filter(|line| line["event"] == "wave");
    let steps = waves.flat_map(|wave| wave["steps"].as_array().into_iter().flatten()).map(|step| &step["action"]);
    steps.map(|action| (word(&action["do"]), word(&action["machine"]))).collect()
}

#[test]
fn a_balancer_of_the_file_is_set_up_followed_and_taken_away() {
    let lab = fronted();
    lab.apply();
    let status = lab.settled();
    status_is_documented(&status);
    let balancer = &status["clusters"][0]["balancers"][0];
    assert_eq!(balancer["name"], "front", "{balancer}");
    let instances = balancer["instances"].as_array().expect("instances");
    assert_eq!(instances.len(), 2, "{balancer}");
    for instance in instances {
        assert_eq!(instance["state"], "running", "{instance}");
        assert!(instance["version"].is_string(), "{instance}");
        let members = instance["members"].as_array().expect("members");
        assert_eq!(members.iter().filter(|member| member["state"] == "up").count(), 3, "{instance}");
    }
    lab.nothing_to_do();

    // Mutual TLS is between the client and the member, through the balancer.
    etcdctl_via_front(&lab, &["put", "greeting", "hello"]).ok();
    assert_eq!(etcdctl_via_front(&lab, &["get", "greeting", "--print-value-only"]).ok().stdout.trim(), "hello");
    let unknown = lab.run(&["env", "--via", "back"]).failed();
    assert!(unknown.stderr.contains("the file has no balancer `back`; it has: front"), "{}", unknown.all());
    let no_instance = lab.run(&["logs", "main-1", "--balancer"]).failed();
    assert!(no_instance.stderr.contains("balancers run on: front-1, front-2"), "{}", no_instance.all());
    lab.run(&["logs", "front-1"]).ok();
    let no_member = lab.run(&["replace", "front-1", "--yes"]).failed();
    assert!(no_member.stderr.contains("`front-1` is an instance of a balancer"), "{}", no_member.all());
    let version = lab.run(&["version"]).ok().stdout;
    assert!(version.contains("front-1"), "{version}");

    // One that is killed is started again by its agent, and clients have the other one meanwhile.
    let (_, pid) = haproxies(&lab).into_iter().find(|(name, _)| name == "front-1").expect("HAProxy of front-1");
    kill(pid, Signal::KILL);
    etcdctl_via_front(&lab, &["put", "greeting", "hello again"]).ok();
    eventually("its agent starts it again", || {
        let status = lab.status();
        let instance = &status["clusters"][0]["balancers"][0]["instances"][0];
        (instance["state"] == "running" && instance["restarts"] == 1).then_some(())
    });
    lab.settled();

    // Removed from the file: its machines go, and the members forget it.
    lab.write_file(&lab.file().replace(FRONT, ""));
    let lines = lab.apply();
    let deleted: Vec<_> = done(&lines).into_iter().filter(|(step, _)| step == "delete_machine").collect();
    assert_eq!(deleted.len(), 2, "{deleted:?}");
    assert_eq!(haproxies(&lab), [], "no HAProxy is left");
    assert_eq!(lab.listing("machines"), ["main-1", "main-2", "main-3"]);
    let none = lab.run(&["env", "--via", "front"]).failed();
    assert!(none.stderr.contains("raftsman explain balancers"), "{}", none.all());
    lab.settled();
    lab.destroy();
}

/// Every member is drained at every instance before it restarts, and admitted afterwards; clients that know only the
/// balancer see no error after their one retry.
#[test]
fn a_rolling_restart_behind_a_balancer_of_the_file_drains_and_admits() {
    let lab = fronted();
    lab.apply();
    let target = Target { endpoints: via_front(&lab), ..Target::of(&lab, "main") };
    let clients: Vec<Load> = (1..=CLIENTS)
        .map(|seed| {
            let settings =
                LoadSettings { seed, rate: 60, workers: 8, follow_members: false, ..LoadSettings::default() };
            Load::against(target.clone(), settings)
        })
        .collect();
    await_writes(&clients, 50);
    lab.write_file(&lab.file().replace(FRONT, &format!("    flags: {{ max-request-bytes: 2000000 }}\n{FRONT}")));
    let steps = done(&lab.apply());
    await_writes(&clients, 50);
    for step in ["drain_member", "admit_member"] {
        for machine in ["front-1", "front-2"] {
            let count = steps.iter().filter(|(done, at)| done == step && at == machine).count();
            assert_eq!(count, 3, "{step} at {machine}: {steps:?}");
        }
    }
    let journal = lab.run(&["journal", "--json"]).ok().stdout;
    assert!(journal.contains("drain_member"), "{journal}");
    lab.nothing_to_do();
    for verdict in finish(clients) {
        println!("{verdict}");
        assert!(verdict.violations.is_empty(), "{verdict}");
        assert_eq!(verdict.figures.errors, 0, "{verdict}");
    }
    lab.destroy();
}

/// Beside members, an instance is stopped and its machine stays; a changed one takes up its file without a restart.
#[test]
fn a_balancer_of_the_file_beside_members_is_reloaded_and_stopped() {
    let near = "balancers:\n  near: { etcd: main, instances: members, port: 12379, max_connections: 500 }\n";
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.write_file(&format!("{}{near}", lab.file()));
    lab.apply();
    let before = haproxies(&lab);
    let diffs = |lab: &Lab| lab.run(&["plan", "--diff", "--json"]).ok().json()["clusters"][0]["diffs"].clone();
    assert_eq!(diffs(&lab), serde_json::json!([]));
    lab.write_file(&lab.file().replace("max_connections: 500", "max_connections: 400"));
    let diffs = diffs(&lab);
    let [one] = &diffs.as_array().expect("diffs")[..] else { panic!("all change alike: {diffs}") };
    assert_eq!((&one["file"], &one["machines"]), (&"haproxy.cfg".into(), &["main-1", "main-2", "main-3"][..].into()));
    let text = one["diff"].as_str().expect("a diff");
    assert!(text.contains("-    maxconn 500\n+    maxconn 400\n"), "{text}");
    let steps = done(&lab.apply());
    assert_eq!(steps.iter().filter(|(step, _)| step == "reload_balancer").count(), 3, "{steps:?}");
    let masters =
        |found: &[(String, u32)]| found.iter().map(|(_, pid)| *pid).collect::<std::collections::BTreeSet<_>>();
    let after = haproxies(&lab);
    assert!(
        masters(&before).intersection(&masters(&after)).count() >= 3,
        "their masters run on: {before:?}, {after:?}"
    );
    lab.run(&["logs", "main-1", "--balancer"]).ok();
    lab.write_file(&lab.file().replace(&near.replace("500", "400"), ""));
    let steps = done(&lab.apply());
    assert_eq!(steps.iter().filter(|(step, _)| step == "stop_balancer").count(), 3, "{steps:?}");
    assert_eq!(haproxies(&lab), [], "no HAProxy is left");
    lab.settled();
    lab.destroy();
}
