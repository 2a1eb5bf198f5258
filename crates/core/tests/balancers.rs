//! Balancers of a file → what they are resolved to, and their files, judged by the programs that read them.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test hands files to the programs that read them; core itself must not"
)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Command;

use raftsman_core::desired::{Balancer, Desired, Identity, Instance, Stack, resolve};
use raftsman_core::observed::Ledger;
use raftsman_core::render::haproxy::Backend;
use raftsman_core::render::keepalived;
use raftsman_core::spec::{Name, Spec};
use serde_json::{Value, json};

/// A spec with these balancers. A file that has them is refused, because this version does not run them yet.
fn spec(machines: Value, members: Value, balancers: Value) -> Spec {
    let file = json!({
        "fleet": "shop", "machines": machines, "etcd": { "main": { "members": members } }, "balancers": balancers,
    });
    serde_json::from_value(file).expect("a spec")
}

fn desired(machines: Value, members: Value, balancers: Value) -> Desired {
    let identity = Identity {
        id: "0f1e".to_owned(),
        network: Some("127.0.42.0/24".parse().expect("a network")),
        places: BTreeMap::new(),
        zones: BTreeMap::new(),
    };
    resolve(&spec(machines, members, balancers), &identity).expect("addresses")
}

fn on_incus(balancers: Value) -> Desired {
    desired(json!({ "provider": "incus", "subnet": "10.77.0.0/24" }), json!(3), balancers)
}

fn only(desired: &Desired) -> (&Stack, &Balancer) {
    (&desired.stacks[0], &desired.stacks[0].balancers[0])
}

fn backends(cluster: &Stack) -> Vec<Backend> {
    let names: Vec<Name> = cluster.etcd.members.iter().map(|member| member.name.clone()).collect();
    cluster.etcd.backends(&names, &Ledger::default())
}

/// HAProxy's file of an instance with all members or nodes of the file behind it.
fn haproxy(stack: &Stack, balancer: &Balancer, instance: &Instance) -> String {
    let file = stack.haproxy(
        (balancer, instance),
        &stack.servers(balancer, &Ledger::default()),
        Some("c0ffee"),
        &Ledger::default(),
    );
    file.expect("a file").text
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn machines_of_their_own_come_after_the_members() {
    let desired = on_incus(json!({ "front": {
        "etcd": "main", "instances": 2, "virtual_address": "10.77.0.15", "names": ["etcd.example.com"],
    } }));
    let (main, front) = only(&desired);
    let at: Vec<(String, IpAddr)> = front.instances.iter().map(|one| (one.name.to_string(), one.address)).collect();
    // The virtual address is no machine's.
    assert_eq!(at, [("front-1".to_owned(), address("10.77.0.14")), ("front-2".to_owned(), address("10.77.0.16"))]);
    let backends: Vec<String> = backends(main).iter().map(|one| format!("{} {}", one.name, one.client)).collect();
    assert_eq!(backends, ["main-1 10.77.0.11:2379", "main-2 10.77.0.12:2379", "main-3 10.77.0.13:2379"]);
    assert_eq!(front.endpoints(), ["10.77.0.15:2379".parse().expect("an endpoint")]);
    let server = &main.etcd.members[0].server;
    assert_eq!(server.names, ["etcd.example.com", "front", "main-1"]);
    let mut all = ["10.77.0.11", "10.77.0.14", "10.77.0.15", "10.77.0.16"].map(address).to_vec();
    all.sort();
    assert_eq!(server.addresses, all);
    assert_eq!(main.etcd.members[0].peer.names, ["main-1"], "members do not reach each other through a balancer");
}

#[test]
fn members_behind_a_balancer_say_how_they_are() {
    let balancers = json!({ "front": { "etcd": "main", "instances": 2 } });
    let (behind, alone) = (on_incus(balancers), on_incus(json!({})));
    let listener = "listen-metrics-urls: \"http://10.77.0.11:2383\"\n";
    assert!(behind.stacks[0].etcd.members[0].config.text.contains(listener));
    assert!(!alone.stacks[0].etcd.members[0].config.text.contains("listen-metrics-urls"));
    let main = &behind.stacks[0];
    let rules = main.firewall(&main.etcd.members[0].machine, &Ledger::default()).expect("a firewall").text;
    assert!(rules.contains("ip saddr { 10.77.0.14, 10.77.0.15 } tcp dport 2383 accept\n"), "{rules}");
}

#[test]
fn beside_members_etcd_keeps_its_port() {
    let hosts = || json!({ "provider": "hosts" });
    let members = || {
        json!([
            { "name": "db1", "address": "10.0.0.11" },
            { "name": "db2", "address": "10.0.0.12" },
            { "name": "db3", "address": "10.0.0.13" },
        ])
    };
    let shared = json!({ "front": { "etcd": "main", "instances": "members", "virtual_address": "10.0.0.100" } });
    let with_address = desired(hosts(), members(), shared);
    let (main, front) = only(&with_address);
    let text = haproxy(main, front, &front.instances[0]);
    let binds: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("bind ")).collect();
    assert_eq!(binds, ["    bind 10.0.0.100:2379 tcp-ut 30s transparent"]);
    assert_eq!(front.addresses().into_iter().collect::<Vec<_>>(), [address("10.0.0.100")]);
    let other_port = json!({ "front": { "etcd": "main", "instances": "members", "port": 12379 } });
    let with_port = desired(hosts(), members(), other_port);
    let (main, front) = only(&with_port);
    let text = haproxy(main, front, &front.instances[1]);
    let binds: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("bind ")).collect();
    assert_eq!(binds, ["    bind 10.0.0.12:12379 tcp-ut 30s"]);
    let endpoints: Vec<String> = front.endpoints().iter().map(ToString::to_string).collect();
    assert_eq!(endpoints, ["10.0.0.11:12379", "10.0.0.12:12379", "10.0.0.13:12379"]);
}

/// Runs a program on a file, which must have nothing to say against it.
#[track_caller]
fn accepted(program: &str, arguments: &[&str], name: &str, text: &str) {
    let path = std::env::temp_dir().join(format!("raftsman-balancers-{}-{name}", std::process::id()));
    std::fs::write(&path, text).expect("the file");
    let output = Command::new(program).args(arguments).arg(&path).output();
    std::fs::remove_file(&path).expect("it was written");
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; see CONTRIBUTING.md"));
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && !said.to_lowercase().contains("warning"), "{program}: {said}\n{text}");
}

#[test]
fn haproxy_and_keepalived_accept_their_files() {
    let desired = on_incus(json!({ "front": {
        "etcd": "main", "instances": 3, "virtual_address": "10.77.0.100", "max_connections": 1000,
    } }));
    let (main, front) = only(&desired);
    // keepalived takes one that there is, and no loopback.
    let interfaces = std::fs::read_dir("/sys/class/net").expect("interfaces").flatten();
    let names = interfaces.filter_map(|entry| entry.file_name().into_string().ok());
    let interface = names.filter(|name| name != "lo" && name != "bonding_masters").min().expect("an interface");
    for instance in &front.instances {
        let text = haproxy(main, front, instance).replace("{root}", "/tmp");
        accepted(raftsman_core::render::haproxy::PROGRAM, &["-c", "-f"], "haproxy.cfg", &text);
        let text = &instance.keepalived.as_ref().expect("there is a virtual address").text;
        let text = text.replace(keepalived::INTERFACE, &interface);
        accepted(keepalived::PROGRAM, &["--config-test", "--use-file"], "keepalived.conf", &text);
    }
}

#[test]
fn clients_of_postgresql_get_through_a_balancer() {
    let file = json!({
        "fleet": "shop",
        "machines": {
            "provider": "incus", "subnet": "10.77.0.0/24",
            "firewall": { "postgres_from": ["10.5.0.0/16"], "clients_from": [] },
        },
        "etcd": { "main": { "members": 3, "auth": { "mode": "password" } } },
        "postgres": { "app": {
            "etcd": "main", "nodes": 3,
            "access": [{ "databases": ["shop"], "users": ["shop"], "from": ["10.5.0.0/16", "10.77.0.0/28"] }],
        } },
        "balancers": { "db": { "postgres": "app", "instances": 2, "replicas_port": 5433, "names": ["db.example.com"] } },
    });
    let spec: Spec = serde_json::from_value(file).expect("a spec");
    let identity = Identity { id: "0f1e".to_owned(), network: None, places: BTreeMap::new(), zones: BTreeMap::new() };
    let desired = resolve(&spec, &identity).expect("addresses");
    let (stack, db) = only(&desired);
    let endpoints: Vec<String> = db.endpoints().iter().map(ToString::to_string).collect();
    assert_eq!(endpoints, ["10.77.0.17:5432", "10.77.0.18:5432"]);
    let app = &stack.postgres[0];
    // Clients check a node's certificate against what they connect to; members of etcd and REST have nothing of it.
    assert_eq!(app.nodes[0].server.names, ["app-1", "db", "db.example.com"]);
    assert!(app.nodes[0].server.addresses.contains(&address("10.77.0.18")));
    assert_eq!(app.nodes[0].rest.names, ["app-1"]);
    assert_eq!(stack.etcd.members[0].server.names, ["main-1"]);
    assert!(!stack.etcd.members[0].config.text.contains("listen-metrics-urls"));
    // The first may connect as a client of the file already: its network is the file's.
    let rules = |text: &str| -> Vec<String> {
        let rules = text.lines().filter(|line| line.contains("hostssl shop shop"));
        rules.filter_map(|line| line.split_whitespace().rev().nth(1).map(str::to_owned)).collect()
    };
    let patroni = app.patroni_file(&app.nodes[0], &Default::default(), raftsman_core::desired::UserSlot::A).text;
    assert_eq!(rules(&patroni), ["10.5.0.0/16", "10.77.0.0/28", "10.77.0.17/32", "10.77.0.18/32"]);
    let node = stack.firewall(&app.nodes[0].name, &Ledger::default()).expect("a firewall").text;
    assert!(node.contains("10.77.0.17, 10.77.0.18 } tcp dport 8008 accept\n"), "{node}");
    let instance = stack.firewall(&db.instances[0].name, &Ledger::default()).expect("a firewall").text;
    assert!(instance.contains("ip saddr { 10.5.0.0/16 } tcp dport 5433 accept\n"), "{instance}");
    // HAProxy reads its certificate while it checks the file.
    let dir = std::env::temp_dir().join(format!("raftsman-balancers-{}", std::process::id()));
    let tls = dir.join("haproxy/tls/current");
    std::fs::create_dir_all(&tls).expect("a directory");
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/CN=db-1",
    ]);
    let made = openssl.args(["-keyout", "tls.key", "-out", "tls.crt"]).current_dir(&tls).output().expect("openssl");
    assert!(made.status.success(), "{made:?}");
    std::fs::copy(tls.join("tls.crt"), tls.join("ca.crt")).expect("the CA");
    let text = haproxy(stack, db, &db.instances[0]).replace("{root}", dir.to_str().expect("a path"));
    accepted(raftsman_core::render::haproxy::PROGRAM, &["-c", "-f"], "haproxy-postgres.cfg", &text);
    std::fs::remove_dir_all(dir).expect("ours");
    let without =
        stack.haproxy((db, &db.instances[0]), &stack.servers(db, &Ledger::default()), None, &Ledger::default());
    assert!(without.is_none(), "Patroni would not know it");
}

#[test]
fn of_instances_that_start_together_the_first_has_the_address() {
    let balancers = json!({ "front": { "etcd": "main", "instances": 3, "virtual_address": "10.77.0.100" } });
    let desired = on_incus(balancers);
    let (_, front) = only(&desired);
    let line = |key: &str| -> Vec<String> {
        let texts = front.instances.iter().map(|one| &one.keepalived.as_ref().expect("a file").text);
        texts.filter_map(|text| text.lines().find(|line| line.contains(key)).map(|l| l.trim().to_owned())).collect()
    };
    assert_eq!(line("priority"), ["priority 200", "priority 199", "priority 198"]);
    assert_eq!(line("virtual_router_id"), ["virtual_router_id 100"; 3]);
}
