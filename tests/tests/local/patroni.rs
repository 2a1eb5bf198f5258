//! Patroni's file as raftsman writes it → Patroni, which accepts it and runs three nodes by it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

use raftsman_core::desired::{Identity, LoopbackNetwork, Stack, UserSlot, resolve};
use raftsman_core::observed::Ledger;
use raftsman_core::render::patroni::{OnMachine, PgSecret, filled, foreign_line};
use raftsman_core::spec;
use raftsman_tests::lab::{Lab, eventually};
use raftsman_tests::postgres::bare::{REST_LOGIN, postgres_dir, tail};
use raftsman_tests::postgres::{BarePostgres, Dcs, Timers};

/// etcd's user and role as raftsman names them for a PostgreSQL cluster `pg`.
const ETCD_LINES: [&str; 3] = [
    "auth: { mode: password }",
    "roles: { pg-patroni: [{ readwrite: { prefix: /service/pg/ } }] }",
    "users: { pg-patroni-a: { roles: [pg-patroni], password: { file: patroni.password } } }",
];

/// A name for the programs of PostgreSQL on this computer.
const VERSION: &str = "15.18";

/// The stack of this lab's etcd and of three nodes at the addresses that they have by hand.
fn stack(lab: &Lab, nodes: &[IpAddr]) -> Stack {
    let [_, second, third, _] = lab.addresses().first().expect("a machine").octets();
    let mut text = format!("{}postgres:\n  pg:\n    etcd: main\n    version: '{VERSION}'\n", lab.file());
    text.push_str("    source: { directory: . }\n    patroni: { ttl: 20, loop_wait: 1, retry_timeout: 3 }\n");
    text.push_str("    parameters: { shared_buffers: 32MB, max_connections: 50, pg_stat_statements.track: none }\n");
    text.push_str("    access: [{ databases: [postgres], users: [app], from: [127.0.0.0/8] }]\n    nodes:\n");
    for (index, address) in nodes.iter().enumerate() {
        text.push_str(&format!("      - {{ name: pg-{}, address: {address} }}\n", index + 1));
    }
    let reading = spec::read(&text);
    let rendered = reading.render("raftsman.yaml", &text, false);
    let spec = reading.spec.or(reading.later).unwrap_or_else(|| panic!("{rendered}"));
    let network = Some(LoopbackNetwork::new(second, third));
    let identity = Identity { id: "f1ee7".to_owned(), network, places: BTreeMap::new(), zones: BTreeMap::new() };
    resolve(&spec, &identity).expect("addresses").stacks.remove(0)
}

/// Lays a node's directory out as a machine's root, with what was made for nodes by hand.
fn lay_out(dir: &Path) {
    symlink(".", dir.join("postgres")).expect("a link");
    for purpose in ["server", "rest"] {
        let current = dir.join("tls").join(purpose).join("current");
        std::fs::create_dir_all(&current).expect("a directory");
        for (name, from) in [("tls.crt", "tls.crt"), ("tls.key", "tls.key"), ("ca.crt", "../ca.crt")] {
            symlink(dir.join(from), current.join(name)).expect("a link");
        }
    }
    symlink(dir.join("../etcd-ca.crt"), dir.join("tls/etcd-ca.crt")).expect("a link");
    for below in ["run", "sockets"] {
        std::fs::create_dir(dir.join(below)).expect("a directory");
        std::fs::set_permissions(dir.join(below), std::fs::Permissions::from_mode(0o700)).expect("a mode");
    }
    let programs = dir.join("programs").join(VERSION);
    std::fs::create_dir_all(&programs).expect("a directory");
    symlink(postgres_dir().join("bin"), programs.join("bin")).expect("a link");
}

/// The user that PostgreSQL sees itself as: root's are another one's, in a namespace.
fn user() -> String {
    let named = Command::new("id").arg("-un").output().expect("id runs");
    let user = String::from_utf8(named.stdout).expect("a name").trim().to_owned();
    if user == "root" { "daemon".to_owned() } else { user }
}

fn psql(place: &str, statement: &str) -> Output {
    let mut psql = Command::new(postgres_dir().join("bin/psql"));
    psql.args(["-X", "-At", "-c", statement, "-d", place])
        .env("PGCONNECT_TIMEOUT", "5")
        .env("PGPASSWORD", "replicator-secret");
    psql.output().expect("psql runs")
}

#[test]
fn three_nodes_run_by_the_file() {
    let lab = Lab::cluster(1, "3.6.15", &ETCD_LINES);
    Dcs::prepare(&lab);
    lab.apply();
    let mut postgres = BarePostgres::prepare(&Dcs::of(&lab), Timers::SHORTEST);
    let addresses: Vec<IpAddr> = (0..postgres.nodes()).map(|index| postgres.address(index)).collect();
    let stack = stack(&lab, &addresses);
    let (cluster, hosts) = (&stack.postgres[0], stack.etcd_hosts(&Ledger::default()));
    let password = std::fs::read_to_string(lab.path().join("patroni.password")).expect("the password");
    let secrets = BTreeMap::from([
        (PgSecret::Dcs, password),
        (PgSecret::Rest, REST_LOGIN.1.to_owned()),
        (PgSecret::Replicator, "replicator-secret".to_owned()),
        (PgSecret::Rewind, "rewind \"secret\" \\ {root}".to_owned()),
    ]);
    postgres.rewrite(|name, address, dir| {
        lay_out(dir);
        let node = cluster.nodes.iter().find(|node| node.name.as_str() == name).expect("a node");
        assert_eq!(node.address, address);
        let text = cluster.patroni_file(node, &hosts, UserSlot::A).text;
        assert_eq!(foreign_line(&text), None, "{text}");
        let (root, sockets) = (dir.to_string_lossy(), dir.join("sockets"));
        let on_machine =
            OnMachine { root: &root, sockets: &sockets.to_string_lossy(), user: &user(), secrets: &secrets };
        filled(&text, &on_machine).expect("all secrets")
    });

    let mut validate = Command::new("/usr/bin/python3");
    validate.args(["-I", "-B"]).arg(postgres_dir().join("patroni/start.py")).arg("--validate-config");
    let said = validate.arg(postgres.dir(0).join("patroni.yml")).output().expect("Patroni runs");
    let words = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    assert!(said.status.success() && words.trim().is_empty(), "{words}");

    for index in 0..postgres.nodes() {
        postgres.start(index);
    }
    // A standby streams by TLS and password; then the former primary, too, whose place it takes.
    postgres.settled();
    let settled = postgres.switchover();

    // The superuser is let in on the socket of its machine, without a password, and nowhere else.
    let sockets = postgres.dir(settled.primary).join("sockets");
    let socket = format!("host={} user=postgres dbname=postgres", sockets.display());
    let standbys = "select count(*) from pg_stat_replication join pg_stat_ssl using (pid) where version = 'TLSv1.3'";
    let asked = psql(&socket, standbys);
    let words = String::from_utf8_lossy(&[asked.stdout.clone(), asked.stderr].concat()).into_owned();
    assert_eq!(
        String::from_utf8_lossy(&asked.stdout).trim(),
        "2",
        "{words}\n{}",
        tail(&postgres.log(settled.primary), 20)
    );
    let asked = psql(&socket, "select current_setting('max_connections'), current_setting('pg_stat_statements.track')");
    assert_eq!(String::from_utf8_lossy(&asked.stdout).trim(), "50|none");
    let at = format!("host={} dbname=postgres", postgres.address(settled.primary));
    for (refused, why) in [
        (format!("{at} user=postgres sslmode=require"), "pg_hba.conf rejects"),
        (format!("{at} user=replicator sslmode=require"), "pg_hba.conf rejects"),
        (format!("{at} user=app sslmode=disable"), "pg_hba.conf rejects"),
        (format!("{at} user=rewind sslmode=require"), "password authentication failed"),
    ] {
        let asked = psql(&refused, "select 1");
        let words = String::from_utf8_lossy(&asked.stderr).into_owned();
        assert!(!asked.status.success() && words.contains(why), "{refused}: {words}");
    }

    // A primary that was killed is rewound by the role for it, or simply follows: either way it streams again.
    postgres.kill(settled.primary);
    eventually("another node is the primary", || {
        let leads = |member: &serde_json::Value| {
            let other = member["name"] != postgres.name(settled.primary);
            member["role"] == "leader" && member["state"] == "running" && other
        };
        postgres.members().iter().any(leads).then_some(())
    });
    postgres.start(settled.primary);
    let after = postgres.settled();
    assert!(after.timeline > settled.timeline, "{after:?}");
    drop(postgres);
    lab.destroy();
}
