//! Hosts with systemd, and an Incus server → a file with PostgreSQL on etcd becomes a stack on them, and nothing again.
//!
//! The same on both: brought up behind a balancer, changed beneath and above, its primary's machine without power,
//! destroyed. Clients write meanwhile, and every node is asked each 50 ms whether it takes writes.

use std::cell::RefCell;
use std::ops::Range;

use raftsman_core::render::haproxy;
use raftsman_tests::hosts::Hosts;
use raftsman_tests::incus::{IMAGE, Incus, NETWORK, SUBNET};
use raftsman_tests::lab::{Lab, Output, etcd_dir, eventually};
use raftsman_tests::postgres::{Ledger, Stack, Watch, balancer, catalog, section, write_password};

/// Debian trixie's.
const MAJOR: &str = "17";
const MEMBERS: usize = 3;
const INSTANCES: usize = 2;
const NODES: usize = 3;

/// What the superuser runs on the primary's machine.
fn psql(statement: &str) -> String {
    format!("psql -X -At -v ON_ERROR_STOP=1 -h /run/raftsman-postgres -U postgres -c \"{statement}\"")
}

/// Brings it up, changes it under clients, and has the primary's machine lose its power: nothing acknowledged is lost.
#[track_caller]
fn lives(stack: &Stack<'_>, power_cut: &mut dyn FnMut(&str), power_on: &mut dyn FnMut(&str)) {
    write_password(stack.lab, "shop", None);
    stack.apply();
    stack.lab.nothing_to_do();
    let clients = stack.clients("db");
    let (watch, ledger) = (Watch::start(&clients), Ledger::start(&clients, 2));
    ledger.await_writes(20);
    // Beneath, then above; then another node has the primary's place.
    stack.change("auth: { mode: password }\n", "auth: { mode: password }\n    quota: 3GiB\n");
    ledger.await_writes(20);
    stack.change("max_connections: 50", "max_connections: 60");
    assert_eq!(stack.ask("show max_connections"), "60");
    ledger.await_writes(20);
    let before = eventually("a primary", || stack.primary());
    stack.switch_over();
    let after = eventually("another primary", || stack.primary().filter(|now| *now != before));
    ledger.await_writes(20);
    power_cut(&after);
    let next = eventually("a primary without that machine", || stack.primary().filter(|now| *now != after));
    ledger.await_writes(20);
    power_on(&after);
    stack.apply();
    stack.lab.nothing_to_do();
    ledger.await_writes(20);
    let (accounts, seen) = (ledger.finish(), watch.finish());
    let story = format!("{before}, {after}, {next}: {accounts:?}\n{seen:?}");
    assert_eq!(accounts.lost, [] as [String; 0], "acknowledged and not there: {story}");
    assert_eq!(seen.two_primaries, [], "two nodes took writes at once: {story}");
}

#[test]
fn hosts_become_a_stack_and_hosts_again() {
    let hosts = Hosts::with_postgres(MEMBERS + INSTANCES + NODES, NODES);
    let addresses = hosts.addresses();
    for instance in MEMBERS..MEMBERS + INSTANCES {
        hosts.install(instance, haproxy::PROGRAM);
    }
    let before: Vec<_> = (0..addresses.len()).map(|i| hosts.manifest(i)).collect();
    let list = |range: Range<usize>, kind: &str| -> String {
        let one = |i: usize| format!("{{ name: {kind}{}, address: {} }}", i + 1, addresses[i]);
        format!("[{}]", range.map(one).collect::<Vec<_>>().join(", "))
    };
    let (instances, nodes) = (MEMBERS..MEMBERS + INSTANCES, MEMBERS + INSTANCES..MEMBERS + INSTANCES + NODES);
    let lab = Lab::new(&format!(
        "fleet: lab\nmachines:\n  provider: hosts\n  ssh: {{ config: {:?} }}\netcd:\n  main:\n    version: 3.6.15\n    \
         source: {{ directory: {:?} }}\n    auth: {{ mode: password }}\n    members: {}\n{}{}",
        hosts.ssh_config(),
        etcd_dir(),
        list(0..MEMBERS, "etcd"),
        section(MAJOR, "10.77.0.0/24", &format!("    nodes: {}\n{}", list(nodes, "pg"), catalog())),
        balancer(&format!("instances: {}", list(instances, "lb"))),
    ));
    let index = |name: &str| name.trim_start_matches(char::is_alphabetic).parse::<usize>().expect("a number") - 1;
    let hosts = RefCell::new(hosts);
    let console = |name: &str, command: &str| hosts.borrow().console(index(name), command);
    let superuser = |primary: &str, statement: &str| console(primary, &psql(statement));
    let stack = Stack { lab: &lab, superuser: &superuser };

    // Without a watchdog that the file requires, no node becomes the primary: the machine says so before anything is there.
    write_password(&lab, "shop", None);
    let file = lab.file();
    lab.write_file(&file.replace("    nodes: [", "    watchdog: { mode: required }\n    nodes: ["));
    let refused = lab.run(&["apply", "--yes"]);
    let why = "the file requires a watchdog, and /dev/watchdog is no device of this machine";
    assert!(refused.code != 0 && refused.all().contains(why), "{}", refused.all());
    lab.write_file(&file);

    lives(&stack, &mut |name| hosts.borrow_mut().power_cut(index(name)), &mut |name| {
        hosts.borrow_mut().start(index(name));
    });

    // A user of the machine has no way in: neither by the socket, nor by files.
    let node = eventually("a primary", || stack.primary());
    let as_user = |name: &str, command: &str| console(name, &format!("setpriv --reuid=1000 --clear-groups {command}"));
    for command in [
        "psql -X -h /run/raftsman-postgres -U postgres -c 'select 1'",
        "cat /var/lib/raftsman/postgres/patroni.yml",
        "ls /var/lib/raftsman/postgres/data",
    ] {
        as_user(&node, command).failed();
    }
    let balancers = format!("lb{}", MEMBERS + 1);
    for file in ["haproxy/haproxy.cfg", "haproxy/tls/current/tls.key"] {
        as_user(&balancers, &format!("cat /var/lib/raftsman/{file}")).failed();
    }
    lab.run(&["destroy", "--yes"]).ok();
    for (i, before) in before.iter().enumerate() {
        assert_eq!(hosts.borrow().left(i, before), [] as [String; 0], "host {}", i + 1);
    }
}

#[test]
fn machines_on_incus_become_a_stack_and_nothing_again() {
    let incus = Incus::up();
    incus.import("postgres", "postgres.squashfs");
    let before = incus.inventory();
    let lab = Lab::new(&format!(
        "fleet: lab\nmachines:\n  provider: incus\n  image: {IMAGE}\n  subnet: {SUBNET}\n  install_dependencies: false\n  \
         incus: {{ server: {:?}, network: {NETWORK}, pool: default }}\n  firewall:\n    operators_from: [10.78.0.1]\n    \
         clients_from: [10.78.0.1]\n    postgres_from: [10.78.0.1]\netcd:\n  main:\n    version: 3.6.15\n    source: {{ \
         directory: {:?} }}\n    auth: {{ mode: password }}\n    members: {MEMBERS}\n{}{}",
        incus.socket(),
        etcd_dir(),
        section(MAJOR, "10.78.0.1", &format!("    nodes: {NODES}\n    machines: {{ image: postgres }}\n{}", catalog())),
        balancer(&format!("instances: {INSTANCES}")),
    ));
    // What machines wait for is named.
    write_password(&lab, "shop", None);
    let refused = lab.run(&["apply", "--yes", "--timeout", "60s"]).failed().all();
    assert!(refused.contains("the package `haproxy` is not installed"), "{refused}");
    for instance in 1..=INSTANCES {
        incus.install(&format!("db-{instance}"), haproxy::PROGRAM);
    }
    let superuser = |primary: &str, statement: &str| -> Output { incus.exec(primary, &psql(statement)) };
    let stack = Stack { lab: &lab, superuser: &superuser };
    lives(&stack, &mut |name| incus.power_cut(name), &mut |name| incus.start(name));
    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(incus.inventory(), before);
}
