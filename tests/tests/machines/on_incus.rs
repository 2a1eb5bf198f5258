//! An Incus server and a file → machines, a cluster on them, whatever befalls them, and nothing again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use raftsman_tests::files::write_private;
use raftsman_tests::incus::{IMAGE, Incus, NETWORK, SUBNET};
use raftsman_tests::lab::agents::{another, pretender};
use raftsman_tests::lab::{Lab, etcd_dir, eventually, kill, soak, text};
use raftsman_tests::load::{Load, LoadSettings};
use rustix::process::Signal;
use serde_json::{Value, json};

fn file(incus: &Incus, members: usize, further: &str) -> String {
    format!(
        "fleet: lab\nmachines:\n  provider: incus\n  image: {IMAGE}\n  subnet: {SUBNET}\n  install_dependencies: false\n  \
         data_disk: 1GiB\n  incus: {{ server: {:?}, network: {NETWORK}, pool: default }}\n{further}etcd:\n  main:\n    \
         version: 3.6.15\n    source: {{ directory: {:?} }}\n    members: {members}\n",
        incus.socket(),
        etcd_dir()
    )
}

/// What the first machine itself says, for a test that fails.
struct Journal<'a>(&'a Incus);

impl Drop for Journal<'_> {
    #[allow(clippy::print_stdout, reason = "the log says why a test failed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = self.0.exec("main-1", "cloud-init status --long; ip -br addr; journalctl -b --no-pager -n 60");
            println!("{}", output.all());
        }
    }
}

#[track_caller]
fn apply(lab: &Lab) {
    lab.run(&["apply", "--yes", "--timeout", "120s"]).ok();
    lab.settled();
}

fn state(incus: &Incus, machine: &str, change: Value) {
    let path = format!("/1.0/instances/{}/state", incus.called(machine));
    incus.query("PUT", &path, Some(&change)).unwrap_or_else(|error| panic!("{machine}: {error}"));
}

/// Deletes the instance behind raftsman's back; its data disk stays.
fn delete(incus: &Incus, machine: &str) {
    state(incus, machine, json!({"action": "stop", "force": true}));
    incus.query("DELETE", &format!("/1.0/instances/{}", incus.called(machine)), None).expect("the instance goes");
}

fn member_ids(lab: &Lab) -> BTreeMap<String, u64> {
    let list = lab.etcdctl(&["member", "list", "-w", "json"]).ok().json();
    let members = list["members"].as_array().expect("members").iter();
    members.map(|m| (m["name"].as_str().unwrap_or_default().to_owned(), m["ID"].as_u64().expect("an id"))).collect()
}

#[test]
fn machines_become_a_cluster_and_nothing_again() {
    let incus = Incus::up();
    let before = incus.inventory();
    let lab = Lab::new(&file(&incus, 3, ""));
    let _journal = Journal(&incus);
    lab.apply();
    lab.settled();

    // Two more, under load: the firewall of those that are there lets them in before they are members.
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(100);
    lab.write_file(&file(&incus, 5, ""));
    lab.apply();
    load.await_writes(100);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_clean();
    assert_eq!(member_ids(&lab).len(), 5);

    // A power cut of everything at once: the cluster is back without an operator.
    lab.etcdctl(&["put", "before", "the power cut"]).ok();
    let names = ["main-1", "main-2", "main-3", "main-4", "main-5"];
    names.iter().for_each(|name| incus.power_cut(name));
    names.iter().for_each(|name| incus.start(name));
    eventually("the cluster is back", || (lab.cluster_status()["settled"] == true).then_some(()));
    assert!(lab.etcdctl(&["get", "before"]).ok().stdout.contains("the power cut"));

    // A server that hangs is named in time, and what was begun goes on when it answers again.
    lab.write_file(&file(&incus, 3, ""));
    kill(incus.pid(), Signal::STOP);
    let begun = Instant::now();
    let refused = lab.run(&["apply", "--yes", "--timeout", "5s"]).failed().all();
    kill(incus.pid(), Signal::CONT);
    assert!(begun.elapsed() < Duration::from_secs(90), "after {:?}: {refused}", begun.elapsed());
    let named = format!("Incus at {} does not answer", incus.socket().display());
    assert!(refused.contains(&named), "{refused}");
    lab.apply();
    lab.nothing_to_do();
    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(incus.inventory(), before);
}

#[test]
fn the_server_assigns_addresses_that_the_file_does_not_give() {
    let incus = Incus::up();
    let before = incus.inventory();
    let file = |members| file(&incus, members, "").replace(&format!("  subnet: {SUBNET}\n"), "");
    let lab = Lab::new(&file(3));
    let _journal = Journal(&incus);
    let plan = lab.run(&["plan"]).stdout;
    assert!(plan.contains("assign address"), "{plan}");
    // A network without a DHCP server gives no machine its address.
    let dhcp = |on: &str| {
        let change = json!({"config": {"ipv4.dhcp": on}});
        incus.query("PATCH", &format!("/1.0/networks/{NETWORK}"), Some(&change)).expect("the network changes");
    };
    dhcp("false");
    let refused = lab.run(&["apply", "--yes"]).failed().all();
    assert!(refused.contains("its DHCP server is off") && refused.contains("`address:`"), "{refused}");
    assert_eq!(incus.inventory(), before, "nothing was made");
    let status = lab.run(&["status"]).stdout;
    assert!(status.contains("no address yet: main-1, main-2, main-3"), "{status}");
    dhcp("true");
    lab.apply();
    lab.settled();
    let addresses = |lab: &Lab| -> BTreeMap<String, String> {
        let status = lab.cluster_status();
        let members = status["members"].as_array().expect("members").iter();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        members.map(|member| (text(&member["name"]), text(&member["address"]))).collect()
    };
    let three = addresses(&lab);
    let distinct: BTreeSet<&String> = three.values().collect();
    assert_eq!(distinct.len(), 3, "{three:?}");
    for address in three.values() {
        let last: u8 = address.strip_prefix("10.78.0.").and_then(|last| last.parse().ok()).expect("of the network");
        assert!((2..200).contains(&last) || last > 250, "{address} is the gateway's, or of the range of DHCP");
    }
    lab.nothing_to_do();

    // Incus starts no second instance with an address.
    let address = &three["main-1"];
    let other = Lab::new(&file(3).replace("members: 3", &format!("members: [{{ name: other, address: {address} }}]")));
    let refused = other.run(&["apply", "--yes"]).failed().all();
    let taken = format!("another instance on Incus has its address {address}");
    assert!(refused.contains(&taken), "{refused}");
    other.run(&["destroy", "--yes"]).ok();

    // The state has lost where they are: Incus knows it.
    let true_one = lab.ledger();
    std::fs::remove_file(lab.path().join(".raftsman/clusters/main.json")).expect("removed");
    std::fs::remove_dir_all(lab.path().join(".raftsman/history")).expect("removed");
    let repaired = lab.run(&["state", "repair", "--yes", "--json"]).ok().json();
    assert_eq!(repaired["repaired"][0]["from"], "world");
    for key in ["cluster", "members", "started"] {
        assert_eq!(lab.ledger()[key], true_one[key], "{key}");
    }
    lab.nothing_to_do();

    // Members go; those that stay keep their addresses.
    lab.write_file(&file(1));
    lab.apply();
    lab.nothing_to_do();
    let one = addresses(&lab);
    assert_eq!(one.get("main-1"), three.get("main-1"));
    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(incus.inventory(), before);
}

#[test]
fn an_agent_is_upgraded_and_reverted() {
    let incus = Incus::up();
    let mut lab = Lab::new(&file(&incus, 1, ""));
    let _journal = Journal(&incus);
    lab.apply();
    let pid = |unit: &str| incus.exec("main-1", &format!("systemctl show -P MainPID {unit}")).ok().stdout;
    let (agent, etcd) = (pid("raftsman-agent"), pid("raftsman-etcd"));
    lab.ship("second", &another("second"));
    lab.apply();
    assert_eq!(lab.cluster_status()["members"][0]["agent"]["shipped"], true);
    assert_eq!(pid("raftsman-agent"), agent, "it is upgraded in its process");

    lab.ship("broken", &pretender(&lab.version(), "echo 'error: broken' >&2; exit 1"));
    let begun = Instant::now();
    let output = lab.run(&["apply", "--yes", "--timeout", "60s"]).failed().all();
    assert!(begun.elapsed() < Duration::from_secs(30), "after {:?}: {output}", begun.elapsed());
    assert!(output.contains("reverted") && output.contains("it ended: error: broken"), "{output}");
    lab.ship("second", &another("second"));
    lab.settled();
    assert_eq!(pid("raftsman-etcd"), etcd, "etcd's process is the same");
}

#[test]
fn machines_heal_under_load() {
    let incus = Incus::up();
    let lab = Lab::new(&file(&incus, 3, ""));
    let _journal = Journal(&incus);
    apply(&lab);
    let ids = member_ids(&lab);
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(100);
    let a_while = Duration::from_secs(if soak() { 60 } else { 10 });

    // Powered off.
    incus.power_cut("main-1");
    eventually("it shows", || (lab.run(&["plan"]).stdout.contains("start machine")).then_some(()));
    apply(&lab);

    // Frozen.
    state(&incus, "main-2", json!({"action": "freeze"}));
    std::thread::sleep(a_while);
    assert!(lab.run(&["plan"]).stdout.contains("start machine"));
    apply(&lab);

    // Cut off: only the network can repair that, and nothing is done to a machine that merely does not answer.
    incus.cut("main-3");
    std::thread::sleep(a_while);
    let status = lab.cluster_status();
    assert_eq!(status["settled"], false);
    lab.run(&["apply", "--yes", "--timeout", "5s"]).failed();
    incus.heal("main-3");
    eventually("it is back", || (lab.cluster_status()["settled"] == true).then_some(()));
    assert_eq!(member_ids(&lab), ids, "no member was replaced so far");

    // Deleted, and its data disk is there: the same member comes back.
    delete(&incus, "main-1");
    apply(&lab);
    assert_eq!(member_ids(&lab), ids, "the same member came back");

    // Deleted with its disk: another member takes its place, once the operator asks for it.
    delete(&incus, "main-2");
    incus.query("DELETE", "/1.0/storage-pools/default/volumes/custom/lab-main-2-data", None).expect("the volume goes");
    let refused = lab.run(&["apply", "--yes", "--timeout", "5s"]).failed().all();
    assert!(refused.contains("raftsman replace main-2"), "{refused}");
    lab.run(&["replace", "main-2", "--yes", "--timeout", "120s"]).ok();
    lab.settled();
    let after = member_ids(&lab);
    assert!(after["main-1"] == ids["main-1"] && after["main-3"] == ids["main-3"] && after["main-2"] != ids["main-2"]);

    load.refresh(&lab);
    load.await_writes(100);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_consistent();
}

#[test]
fn machines_are_made_anew_as_the_file_says() {
    let incus = Incus::up();
    let before = incus.inventory();
    let lab = Lab::new(&file(&incus, 3, "  memory: 512MiB\n"));
    let _journal = Journal(&incus);
    apply(&lab);
    let ids = member_ids(&lab);
    let sizes = || -> BTreeSet<String> {
        let instances = incus.query("GET", "/1.0/instances?recursion=1", None).expect("instances");
        let sizes = instances.as_array().expect("a list").iter();
        sizes.map(|it| it["config"]["limits.memory"].as_str().unwrap_or("none").to_owned()).collect()
    };
    assert_eq!(sizes(), [(512 << 20).to_string()].into());
    let load = Load::start(&lab, LoadSettings::default());
    load.await_writes(100);

    // Their boot data changes nothing that is there.
    lab.write_file(&file(&incus, 3, "  memory: 512MiB\n  updates: off\n"));
    lab.nothing_to_do();

    // Around their data disks, one after the other: the same members.
    lab.write_file(&file(&incus, 3, "  memory: 768MiB\n"));
    let plan = lab.run(&["plan"]).stdout;
    assert!(plan.contains("rebuild machine") && plan.contains("memory: 512MiB → 768MiB"), "{plan}");
    apply(&lab);
    assert_eq!(sizes(), [(768 << 20).to_string()].into());
    assert_eq!(member_ids(&lab), ids, "the same members came back");
    lab.nothing_to_do();

    // Without data disks: other members take their places.
    lab.write_file(&file(&incus, 3, "").replace("  data_disk: 1GiB\n", ""));
    apply(&lab);
    assert_eq!(sizes(), ["none".to_owned()].into());
    let after = member_ids(&lab);
    assert!(after.iter().all(|(name, id)| ids[name] != *id), "{after:?}");

    load.refresh(&lab);
    load.await_writes(100);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_consistent();
    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(incus.inventory(), before);
}

/// Tries every port of the machines, up to the one that is named and those around the node exporter's, and prints which
/// answer: a line a machine.
const SCAN: &str = r#"
import resource, select, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
last, hosts = int(sys.argv[1]), sys.argv[2:]
ports = sorted({*range(1, last + 1), *range(9000, 9200)})
def answering(host, ports):
    poll, tried, found = select.epoll(), {}, []
    for port in ports:
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex((host, port))
        tried[s.fileno()] = (s, port)
        poll.register(s, select.EPOLLOUT)
    # Once all are on their way, and long enough for the kernel to try each of them again.
    end = time.monotonic() + 1.3
    while tried and (left := end - time.monotonic()) > 0:
        for number, _ in poll.poll(left):
            s, port = tried.pop(number)
            if s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                found.append(port)
            poll.unregister(number)
            s.close()
    for s, _ in tried.values():
        s.close()
    return found
for host in hosts:
    found = [port for at in range(0, len(ports), 3000) for port in answering(host, ports[at : at + 3000])]
    print("open:", *sorted(found))
"#;

#[test]
fn only_what_the_role_needs_answers() {
    let incus = Incus::up();
    let probe = "  node_exporter: true\n  firewall:\n    operators_from: [10.78.0.1]\n    clients_from: [10.78.0.1, 10.78.0.50]\n    \
                 ssh_from: [10.78.0.1]\n    metrics_from: [10.78.0.51]\n";
    let lab = Lab::new(&file(&incus, 3, probe));
    let _journal = Journal(&incus);
    apply(&lab);
    for (name, address) in [("client", "10.78.0.50"), ("prometheus", "10.78.0.51"), ("neighbour", "10.78.0.52")] {
        let eth0 = json!({"type": "nic", "name": "eth0", "network": NETWORK, "ipv4.address": address});
        let instance = json!({
            "name": name, "type": "container", "start": true, "source": {"type": "image", "alias": IMAGE},
            "devices": {"eth0": eth0},
        });
        incus.query("POST", "/1.0/instances", Some(&instance)).expect("a machine");
        let has = format!("ip -br addr show eth0 | grep -q {address}/");
        eventually("it has its address", || (incus.exec(name, &has).code == 0).then_some(()));
    }
    for i in 1..=3 {
        incus.exec(&format!("main-{i}"), "systemctl start prometheus-node-exporter ssh").ok();
    }
    let last = if soak() { 65535 } else { 3000 };
    let scan = |from: Option<&str>, machines: &[u8]| -> Vec<String> {
        let hosts: Vec<String> = machines.iter().map(|i| format!("10.78.0.1{i}")).collect();
        let output = match from {
            Some(machine) => {
                incus.exec(machine, &format!("python3 -c '{SCAN}' {last} {}", hosts.join(" "))).ok().stdout
            }
            None => {
                let mut python = std::process::Command::new("python3");
                python.args(["-c", SCAN, &last.to_string()]).args(&hosts);
                text(python.output().expect("python3")).ok().stdout
            }
        };
        let found: Vec<String> =
            output.lines().filter_map(|line| Some(line.strip_prefix("open:")?.trim().to_owned())).collect();
        assert_eq!(found.len(), machines.len(), "{output}");
        found
    };
    let mut table = format!("ports 1 to {last} that answer\n| from | main-1 | main-2 | main-3 |\n|---|---|---|---|\n");
    for (client, from, expected) in [
        ("the operator's computer", None, "22 2378 2379"),
        ("a client", Some("client"), "2379"),
        ("Prometheus", Some("prometheus"), "9100"),
        ("a neighbour", Some("neighbour"), ""),
    ] {
        let found = scan(from, &[1, 2, 3]);
        let _ = writeln!(table, "| {client} | {} |", found.join(" | "));
        assert!(found.iter().all(|ports| ports == expected), "{table}");
    }
    let found = scan(Some("main-1"), &[2, 3]);
    let _ = writeln!(table, "| main-1 | | {} |", found.join(" | "));
    assert!(found.iter().all(|ports| ports == "2379 2380"), "{table}");
    println!("{table}");
}

/// Secrets that the file refers to get to machines, and nowhere else.
#[test]
fn secrets_are_delivered() {
    const FIRST: &str = "canary: \"one\" $x";
    const SECOND: &str = "canary two";
    const KEY: &str = "canary-shared-key";
    let incus = Incus::up();
    let admin = "  admin: { user: ops, console_password: { file: console } }\n";
    let logs = "  logs: { forward: { host: 10.78.0.1, ca_cert: ca.pem, shared_key: { file: key } } }\n";
    let lab = Lab::new(&file(&incus, 1, admin));
    let _journal = Journal(&incus);
    let secret = |name: &str, text: &str| write_private(lab.path().join(name), text);
    let password_is = |word: &str| {
        let crypt = r#"perl -e 'my $h = (getpwnam "ops")[1]; exit(crypt($ARGV[0], $h) ne $h)' --"#;
        incus.exec("main-1", &format!("{crypt} '{word}' && test ! -e /etc/raftsman/console-password")).code == 0
    };

    // What cannot be read keeps nothing from being done but its own delivery.
    let refused = lab.run(&["apply", "--yes", "--timeout", "120s"]).failed().all();
    assert!(refused.contains("console does not exist"), "{refused}");
    assert_eq!(member_ids(&lab).len(), 1, "the cluster is there");
    secret("console", FIRST);
    let plan = lab.run(&["plan"]).stdout;
    assert!(plan.contains("deliver secrets"), "{plan}");
    apply(&lab);
    assert!(password_is(FIRST) && !password_is(SECOND));
    lab.nothing_to_do();

    secret("console", SECOND);
    apply(&lab);
    assert!(password_is(SECOND) && !password_is(FIRST));

    // One that is made anew around its data disk was given nothing yet.
    delete(&incus, "main-1");
    apply(&lab);
    assert!(password_is(SECOND));
    lab.nothing_to_do();

    // Logs: no log shipper reads the files on this machine.
    lab.write_file(&file(&incus, 1, &format!("{admin}{logs}")));
    secret("ca.pem", "a certificate");
    secret("key", KEY);
    let refused = lab.run(&["apply", "--yes", "--timeout", "30s"]).failed().all();
    assert!(refused.contains("fluent-bit.service is not installed"), "{refused}");
    let unit = "[Service]\\nEnvironmentFile=/etc/raftsman/logs/secrets.env\\nExecStart=/bin/sleep infinity\\n";
    let unit = format!("printf '{unit}' >/etc/systemd/system/fluent-bit.service && systemctl daemon-reload");
    incus.exec("main-1", &unit).ok();
    apply(&lab);
    lab.nothing_to_do();
    let environment = "tr '\\0' '\\n' </proc/$(systemctl show -P MainPID fluent-bit)/environ";
    assert!(incus.exec("main-1", environment).ok().stdout.contains(&format!("RAFTSMAN_SHARED_KEY={KEY}")));
    let modes = incus.exec("main-1", "stat -c '%a %U %n' /etc/raftsman/logs/*").ok().stdout;
    assert!(modes.lines().count() == 3 && modes.lines().all(|line| line.starts_with("600 root ")), "{modes}");
    lab.write_file(&file(&incus, 1, admin));
    apply(&lab);
    incus.exec("main-1", "test -z \"$(ls /etc/raftsman/logs)\" && ! systemctl is-active fluent-bit").ok();

    // Neither the server nor raftsman's state has any of them.
    let mut output = incus.query("GET", "/1.0/instances?recursion=2", None).expect("an answer").to_string();
    let mut kept = std::process::Command::new("grep");
    kept.args(["-rlaF", "canary"]).arg(lab.path().join(".raftsman"));
    output += &text(kept.output().expect("grep")).stdout;
    output += &lab.run(&["journal", "--json"]).ok().stdout;
    assert!(!output.contains("canary"), "{output}");
}

#[test]
fn what_the_server_stores_is_no_lasting_secret() {
    let incus = Incus::up();
    let lab = Lab::new(&file(&incus, 1, ""));
    let _journal = Journal(&incus);
    let begun = Instant::now();
    apply(&lab);
    println!("one member: {:?}", begun.elapsed());
    let mut output = String::new();
    for path in [
        "/1.0/instances?recursion=2",
        "/1.0/storage-pools/default/volumes?recursion=1",
        "/1.0/profiles?recursion=1",
        "/1.0/images?recursion=1",
        "/1.0/networks?recursion=1",
        "/1.0",
    ] {
        output += &incus.query("GET", path, None).expect("an answer").to_string();
    }
    // All that lasts is in files of this machine, and of the state.
    assert!(output.contains("user.raftsman.boot"), "it tells what it knows");
    // As a key of a machine's boot data, within a text within JSON; Incus itself has tokens for its clusters.
    assert!(!output.contains(r#"join_token\""#), "what the machine was told was put into it");
    assert!(!output.contains("PRIVATE KEY"), "a key");
    let keys =
        incus.exec("main-1", "find /var/lib/raftsman -name '*.pem' -o -name '*key*' | xargs grep -l PRIVATE").ok();
    assert!(keys.stdout.lines().count() >= 3, "{}", keys.stdout);

    // The token is invalid: the agent has none any more, and takes none.
    let boot = incus.exec("main-1", "cat /var/lib/raftsman/agent/boot.json").ok().stdout;
    assert!(!boot.contains("join_token"), "{boot}");
    assert_eq!(lab.listing("secrets"), ["fleet.age", "main-clients.age", "main-peers.age"], "no token is kept");
    incus.exec("main-1", "test ! -e /etc/raftsman/boot.json").ok();
}
