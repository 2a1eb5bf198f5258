//! Machines on Incus from nothing to a healthy cluster, by hand and by raftsman, alternating in one run → medians side by side.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use raftsman_tests::incus::{IMAGE, Incus, NETWORK, SUBNET};
use raftsman_tests::lab::{Lab, etcd_dir, eventually};
use serde_json::json;

const GOAL: f64 = 1.2;
const VERSION: &str = "3.6.15";

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let rounds: usize = arguments.first().and_then(|n| n.parse().ok()).unwrap_or(3);
    let incus = Incus::up();
    println!("etcd {VERSION} on containers with cloud-init, from nothing; {rounds} rounds; seconds");
    println!("by hand: machines made one by one through the API, etcd started by cloud-init, no TLS, no auth");
    println!("raftsman: TLS, auth, agents, firewall");
    println!("round  by hand, 3  raftsman, 3  raftsman, 5");
    let (mut hand, mut ours, mut five) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut turns: [(&mut Vec<Duration>, &dyn Fn() -> Duration); 2] =
            [(&mut hand, &|| by_hand(&incus, 3)), (&mut ours, &|| by_raftsman(&incus, 3))];
        if round % 2 == 1 {
            turns.reverse();
        }
        for (times, bring_up) in turns {
            times.push(bring_up());
        }
        five.push(by_raftsman(&incus, 5));
        let [a, b, c] = [&hand, &ours, &five].map(|times| times[round].as_secs_f64());
        println!("{:>5}  {a:>10.1}  {b:>11.1}  {c:>11.1}", round + 1);
    }
    let [hand, ours, five] = [hand, ours, five].map(median);
    println!("median {hand:>10.1}  {ours:>11.1}  {five:>11.1}");
    let ratio = ours / hand;
    println!("bench-incus ratio={ratio:.2} goal={GOAL}");
    if ratio <= GOAL { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn by_hand(incus: &Incus, members: u8) -> Duration {
    let begun = Instant::now();
    let at = |i: u8| format!("10.78.0.{}", 100 + i);
    let all: Vec<String> = (1..=members).map(|i| format!("h{i}=http://{}:2380", at(i))).collect();
    let binary = etcd_dir().join(VERSION).join("etcd");
    for i in 1..=members {
        let (name, address) = (format!("h{i}"), at(i));
        let start = format!(
            "systemd-run --unit=etcd /usr/local/bin/etcd --name {name} --data-dir /var/lib/etcd \
             --listen-client-urls http://{address}:2379 --advertise-client-urls http://{address}:2379 \
             --listen-peer-urls http://{address}:2380 --initial-advertise-peer-urls http://{address}:2380 \
             --initial-cluster {}",
            all.join(",")
        );
        let instance = json!({
            "name": name, "type": "container", "source": {"type": "image", "alias": IMAGE},
            "config": {
                "cloud-init.user-data": format!("#cloud-config\nlocale: false\nruncmd:\n- {start}\n"),
                "cloud-init.network-config":
                    format!("version: 2\nethernets:\n  eth0: {{ addresses: [\"{address}/24\"] }}\n"),
            },
            "devices": {"eth0": {"type": "nic", "name": "eth0", "network": NETWORK, "ipv4.address": address}},
        });
        incus.query("POST", "/1.0/instances", Some(&instance)).expect("a machine");
        let push =
            incus.client(&["file", "push", "-q"]).arg(&binary).arg(format!("{name}/usr/local/bin/etcd")).status();
        assert!(push.expect("incus runs").success());
        incus.start(&name);
    }
    for i in 1..=members {
        eventually("it is healthy", || healthy(&at(i)).then_some(()));
    }
    let took = begun.elapsed();
    for i in 1..=members {
        incus.power_cut(&format!("h{i}"));
        incus.query("DELETE", &format!("/1.0/instances/h{i}"), None).expect("gone");
    }
    took
}

fn healthy(address: &str) -> bool {
    let asked = || -> std::io::Result<String> {
        let to = format!("{address}:2379").parse().expect("an address");
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_millis(500))?;
        stream.write_all(format!("GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    asked().is_ok_and(|answer| answer.contains("\"true\""))
}

/// `raftsman apply` from a directory that holds the file and nothing else.
fn by_raftsman(incus: &Incus, members: u8) -> Duration {
    let lab = Lab::new(&format!(
        "fleet: lab\nmachines:\n  provider: incus\n  image: {IMAGE}\n  subnet: {SUBNET}\n  install_dependencies: false\n  \
         incus: {{ server: {:?}, network: {NETWORK} }}\netcd:\n  main:\n    version: {VERSION}\n    \
         source: {{ directory: {:?} }}\n    members: {members}\n",
        incus.socket(),
        etcd_dir()
    ));
    let begun = Instant::now();
    lab.run(&["apply", "--yes", "--timeout", "180s"]).ok();
    let took = begun.elapsed();
    lab.run(&["destroy", "--yes"]).ok();
    took
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}
