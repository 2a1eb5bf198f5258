//! A file with a PostgreSQL cluster → a stack on this computer: brought up, used by clients, changed, and gone again.

use std::net::IpAddr;
use std::process::Command;

use raftsman_tests::lab::{Lab, Output, etcd_dir, eventually, kill};
use raftsman_tests::postgres::bare::postgres_dir;
use raftsman_tests::postgres::{Clients, Ledger, Watch};
use rustix::process::Signal;

/// The major version of the lab's PostgreSQL, which is Debian's.
fn major() -> String {
    let bin = std::fs::canonicalize(postgres_dir().join("bin")).expect("PostgreSQL");
    bin.parent().and_then(|dir| dir.file_name()).and_then(|name| name.to_str()).expect("a version").to_owned()
}

/// A file with three members, three nodes and Patroni's shortest timers.
fn file() -> String {
    let (etcd, bundle, major) = (etcd_dir(), postgres_dir().join("patroni-4.1.5.tar"), major());
    let sha256 = include_str!("../../../tools/patroni/4.1.5.sha256").trim();
    format!(
        "fleet: lab
etcd:
  main:
    members: 3
    version: 3.6.15
    source: {{ directory: {etcd:?} }}
    auth: {{ mode: password }}
postgres:
  app:
    etcd: main
    nodes: 3
    version: {major}
    patroni: {{ ttl: 20, loop_wait: 1, retry_timeout: 3, source: {{ bundle: {{ file: {bundle:?}, sha256: {sha256} }} }} }}
    parameters: {{ shared_buffers: 32MB, max_connections: 50 }}
    access: [{{ databases: [shop], users: [shop], from: [127.0.0.0/8] }}]
"
    )
}

/// One statement of the superuser, on the primary.
#[track_caller]
fn psql(lab: &Lab, statement: &str) -> Output {
    lab.run(&["psql", "app", "--", "-X", "-At", "-v", "ON_ERROR_STOP=1", "-c", statement])
}

/// What a client of the cluster knows.
#[track_caller]
fn clients(lab: &Lab) -> Clients {
    psql(lab, "create role shop login password 'shop-secret'").ok();
    psql(lab, "create database shop owner shop").ok();
    let env = lab.run(&["env", "app", "--json"]).ok().json();
    let ca = std::fs::read_to_string(env["ca"].as_str().expect("a path")).expect("the CA");
    let hosts = env["hosts"].as_array().expect("hosts").iter().enumerate();
    let nodes = hosts.map(|(index, host)| {
        let address: IpAddr = host.as_str().and_then(|host| host.parse().ok()).expect("an address");
        (format!("app-{}", index + 1), address)
    });
    Clients::new(nodes.collect(), ("shop", "shop-secret"), "shop", &ca)
}

/// Which standby is synchronous decides the order of some steps, and is Patroni's choice: the forecast is not compared.
#[track_caller]
fn apply(lab: &Lab) {
    lab.run(&["apply", "--yes", "--timeout", "120s"]).ok();
}

#[track_caller]
fn nothing_to_do(lab: &Lab) {
    let plan = lab.run(&["plan"]);
    assert!(plan.stdout.contains("Nothing to do."), "{}", plan.all());
}

#[test]
fn a_stack_is_brought_up_changed_beneath_and_above_and_destroyed() {
    let lab = Lab::new(&file());
    lab.apply();
    nothing_to_do(&lab);
    assert_eq!(psql(&lab, "select current_setting('max_connections')").ok().stdout.trim(), "50");
    let clients = clients(&lab);
    let (watch, ledger) = (Watch::start(&clients), Ledger::start(&clients, 2));

    only_the_role_gets_in(&lab);

    // Beneath: every member restarts. Above: nodes restart for a parameter, raised and lowered.
    lab.write_file(
        &lab.file().replace("    auth: { mode: password }\n", "    auth: { mode: password }\n    quota: 3GiB\n"),
    );
    apply(&lab);
    nothing_to_do(&lab);
    ledger.await_writes(20);
    for connections in ["70", "40"] {
        let from = lab.file();
        let at = from.find("max_connections: ").expect("the parameter") + "max_connections: ".len();
        lab.write_file(&format!("{}{connections}{}", &from[..at], &from[at + 2..]));
        apply(&lab);
        nothing_to_do(&lab);
        assert_eq!(psql(&lab, "select current_setting('max_connections')").ok().stdout.trim(), connections);
        ledger.await_writes(20);
    }
    // The CA of etcd's clients, which nodes check members by.
    lab.run(&["cert", "rotate", "clients", "--yes"]).ok();
    apply(&lab);
    ledger.await_writes(20);
    // Another node on request.
    let before = eventually("a primary", || primary(&lab));
    lab.run(&["switchover", "app", "--yes"]).ok();
    let after = eventually("a primary after the switchover", || primary(&lab));
    assert_ne!(before, after);
    ledger.await_writes(20);
    // The primary's Patroni and PostgreSQL are killed: its agent starts them again, or a synchronous standby follows.
    for (pid, _) in of_node(&lab, &after) {
        kill(pid, Signal::KILL);
    }
    ledger.await_writes(20);
    apply(&lab);
    nothing_to_do(&lab);

    let (accounts, seen) = (ledger.finish(), watch.finish());
    println!("{accounts:?}\n{seen:?}");
    assert_eq!(accounts.lost, [] as [String; 0], "acknowledged and not there");
    assert_eq!(seen.two_primaries, [], "two nodes took writes at once");
    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(lab.processes(), []);
}

/// From outside a node's machine: the role by its password and over TLS, to its database; nothing else.
#[track_caller]
fn only_the_role_gets_in(lab: &Lab) {
    let env = lab.run(&["env", "app", "--json"]).ok().json();
    let (host, ca) = (env["hosts"][0].as_str().expect("a host"), env["ca"].as_str().expect("a CA"));
    for (login, answer) in [
        (format!("user=shop dbname=shop password=shop-secret sslmode=verify-full sslrootcert={ca}"), "1"),
        ("user=shop dbname=shop password=shop-secret sslmode=disable".to_owned(), "pg_hba.conf rejects"),
        ("user=shop dbname=shop password=wrong sslmode=require".to_owned(), "password authentication failed"),
        ("user=shop dbname=postgres password=shop-secret sslmode=require".to_owned(), "pg_hba.conf rejects"),
        ("user=postgres dbname=postgres password=shop-secret sslmode=require".to_owned(), "pg_hba.conf rejects"),
        ("user=replicator dbname=postgres password=shop-secret sslmode=require".to_owned(), "pg_hba.conf rejects"),
    ] {
        let mut psql = Command::new(postgres_dir().join("bin/psql"));
        let asked = psql.args(["-X", "-At", "-c", "select 1", "-d", &format!("host={host} {login}")]).output();
        let asked = asked.expect("psql runs");
        let said = String::from_utf8_lossy(&[asked.stdout, asked.stderr].concat()).into_owned();
        assert!(said.contains(answer) && asked.status.success() == (answer == "1"), "{login}: {said}");
    }
}

/// The machine of the node that takes writes.
fn primary(lab: &Lab) -> Option<String> {
    let data = psql(lab, "show data_directory");
    // …/machines/app-1/postgres/data
    let machine = data.stdout.trim().split('/').rev().nth(2)?.to_owned();
    (data.code == 0).then_some(machine)
}

/// The processes of a node: those whose arguments name its directory, and are neither its agent's nor a client's.
fn of_node(lab: &Lab, machine: &str) -> Vec<(u32, String)> {
    let dir = format!("{}/.raftsman/machines/{machine}/postgres", lab.path().display());
    lab.processes().into_iter().filter(|(_, line)| line.contains(&dir)).collect()
}

/// The default bundle is the one beside the agent, and a file without one says how it is made.
#[test]
fn a_missing_bundle_is_named_before_anything_is_made() {
    let text = file();
    let (from, to) = (text.find(", source: { bundle").expect("a source"), text.find(" } } }\n").expect("its end"));
    let lab = Lab::new(&format!("{}{}", &text[..from], &text[to + " } }".len()..]));
    let beside = raftsman_tests::lab::binary("raftsman-agent").with_file_name("patroni-4.1.5.tar");
    if beside.exists() {
        return;
    }
    let refused = lab.run(&["apply", "--yes"]).failed();
    assert!(refused.stderr.contains("the bundle of Patroni 4.1.5 is not at"), "{}", refused.all());
    assert!(!lab.path().join(".raftsman/machines").exists(), "nothing was made");
}
