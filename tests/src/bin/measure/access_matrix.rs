//! A stack with PostgreSQL behind HAProxy → every port and login, tried with every certificate: a table of what gets in.
//!
//! It exits 1 where anything gets in that should not, or does not that should.

#![allow(clippy::print_stdout, reason = "a table is printed")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use raftsman_core::spec::KeyAlgorithm;
use raftsman_engine::pki::{Authority, AuthorityKind};
use raftsman_tests::files::write_private;
use raftsman_tests::lab::{Lab, text};
use raftsman_tests::postgres::bare::{major, postgres_dir};
use raftsman_tests::postgres::{Stack, balancer, psql, section};
use secrecy::ExposeSecret as _;

const DAY: Duration = Duration::from_secs(24 * 3600);
const NODE: &str = "app-1";
const WRONG: &str = "wrong";

/// What a client shows.
struct Shown {
    name: &'static str,
    /// The certificate and its key.
    files: Option<(PathBuf, PathBuf)>,
    tls: bool,
}

impl Shown {
    fn new(name: &'static str, files: (PathBuf, PathBuf)) -> Self {
        Self { name, files: Some(files), tls: true }
    }

    /// The certificate that a program of the lab shows.
    fn of(name: &'static str, directory: &Path) -> Self {
        Self::new(name, (directory.join("tls.crt"), directory.join("tls.key")))
    }
}

/// A way to get in with what is shown, and what should come of it.
struct Row {
    name: &'static str,
    /// What may be shown: the names of these.
    intended: &'static [&'static str],
    enters: Box<dyn Fn(&Shown) -> bool>,
}

/// Certificates that Patroni's REST interface takes.
const CLUSTERS_OWN: &[&str] = &["a node's", "the balancer's"];
/// A password decides, over TLS; no certificate is asked for.
const ANY_OVER_TLS: &[&str] =
    &["none", "a node's", "the balancer's", "another cluster's", "a member's", "unknown CA", "expired"];
const NOTHING: &[&str] = &[];

pub(crate) fn main(_: &[String]) -> ExitCode {
    let lab = Lab::cluster(3, "3.6.15", &["auth: { mode: password }"]);
    let ended = ended(&lab);
    let another = "  web: { etcd: main, nodes: 1, synchronous: { mode: off }, version: VERSION, patroni: PATRONI }\n";
    let own = "    nodes: 3\n    ca: { brought: { certificate: app-ca.crt, key: { file: app-ca.key } } }\n";
    let section = section(&major(), "127.0.0.0/8", own);
    let patroni = section.lines().find_map(|line| line.trim().strip_prefix("patroni: ")).expect("Patroni's");
    let another = another.replace("VERSION", &major()).replace("PATRONI", patroni);
    lab.write_file(&format!("{}{section}{another}{}", lab.file(), balancer("instances: 1")));
    let superuser = |_: &str, statement: &str| psql(&lab, statement);
    let stack = Stack { lab: &lab, superuser: &superuser };
    stack.apply();
    stack.clients("db");

    let machine = |name: &str, below: &str| lab.machine(name).join(below);
    let stranger =
        Authority::make(AuthorityKind::Postgres, "stranger", None, KeyAlgorithm::EcdsaP256, Timestamp::now(), DAY);
    let shown = [
        Shown { name: "none", files: None, tls: true },
        Shown::of("a node's", &machine(NODE, "postgres/tls/rest/current")),
        Shown::of("the balancer's", &machine("db-1", "haproxy/tls/current")),
        Shown::of("another cluster's", &machine("web-1", "postgres/tls/rest/current")),
        Shown::of("a member's", &machine("main-1", "etcd/tls/server/current")),
        Shown::new("unknown CA", issued(&lab, "stranger", &stranger.expect("a CA"), Timestamp::now())),
        Shown::new("expired", ended),
        Shown { name: "plaintext", files: None, tls: false },
    ];
    let mut rows = of_rest(&lab);
    rows.extend(of_postgres(&lab, &stack));
    rows.extend(of_etcd(&lab));
    let address = lab.address(NODE).to_string();
    rows.push(Row {
        name: "agent 2378: any call",
        intended: NOTHING,
        enters: Box::new(move |shown| curl(shown, &format!("{address}:2378"), "/", &["--http2-prior-knowledge"]) != 0),
    });

    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let columns: Vec<String> = shown.iter().map(|shown| format!("{:>20}", shown.name)).collect();
    println!("{:width$} {}", "", columns.concat());
    let mut wrong = 0;
    for row in &rows {
        let cells = shown.iter().map(|shown| {
            let (enters, should) = ((row.enters)(shown), row.intended.contains(&shown.name));
            wrong += usize::from(enters != should);
            let cell = match (enters, should) {
                (true, true) => "in",
                (false, false) => "-",
                (true, false) => "IN, WRONG",
                (false, true) => "refused, WRONG",
            };
            format!("{cell:>20}")
        });
        println!("{:width$} {}", row.name, cells.collect::<Vec<_>>().concat());
    }
    println!("{} cells, {wrong} wrong", rows.len() * shown.len());
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Brings the CA of the cluster, and has it sign a certificate that ended an hour ago.
fn ended(lab: &Lab) -> (PathBuf, PathBuf) {
    let begun = Timestamp::now() - SignedDuration::from_hours(2);
    let made = Authority::make(AuthorityKind::Postgres, "app", None, KeyAlgorithm::EcdsaP256, begun, 100 * DAY);
    let authority = made.expect("a CA");
    write_private(lab.path().join("app-ca.crt"), authority.certificate_pem());
    write_private(lab.path().join("app-ca.key"), authority.key_pem().expose_secret());
    issued(lab, "ended", &authority, begun)
}

/// A client certificate for an hour.
fn issued(lab: &Lab, name: &str, authority: &Authority, now: Timestamp) -> (PathBuf, PathBuf) {
    let hour = Duration::from_secs(3600);
    let (chain, key) = authority.issue_client(name, None, hour, now).expect("a certificate");
    let files = (lab.path().join(format!("{name}.crt")), lab.path().join(format!("{name}.key")));
    write_private(&files.0, &chain);
    write_private(&files.1, key.expose_secret());
    files
}

/// The status code of a request; 0 where there was no connection.
fn curl(shown: &Shown, to: &str, path: &str, further: &[&str]) -> u16 {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--insecure", "--max-time", "5", "--output", "/dev/null", "--write-out", "%{http_code}"]);
    if let Some((certificate, key)) = &shown.files {
        curl.arg("--cert").arg(certificate).arg("--key").arg(key);
    }
    let scheme = if shown.tls { "https" } else { "http" };
    let output = text(curl.args(further).arg(format!("{scheme}://{to}{path}")).output().expect("curl runs"));
    output.stdout.trim().parse().unwrap_or(0)
}

fn of_rest(lab: &Lab) -> Vec<Row> {
    let (at, password) = (format!("{}:8008", lab.address(NODE)), secret(lab, &["restapi:", "password:"]));
    let ask = |name, intended, path: &'static str, further: Vec<String>, refused: &'static [u16]| {
        let at = at.clone();
        let enters = move |shown: &Shown| {
            let further: Vec<&str> = further.iter().map(String::as_str).collect();
            !refused.contains(&curl(shown, &at, path, &further))
        };
        Row { name, intended, enters: Box::new(enters) }
    };
    let order = |password: Option<&str>, body: &str| -> Vec<String> {
        let login = password.map(|password| format!("raftsman:{password}"));
        let login = login.into_iter().flat_map(|login| ["--user".to_owned(), login]);
        login.chain(["--data", body].map(str::to_owned)).collect()
    };
    // A switchover to a node that there is not: who is let in is told so.
    let switch = |password: Option<&str>| order(password, "{\"leader\": \"none\", \"candidate\": \"none\"}");
    // What a primary without etcd sends to the others: a node that takes it does not look for another one.
    let failsafe = |password: Option<&str>| order(password, "{\"name\": \"none\"}");
    vec![
        ask("REST 8008: role", CLUSTERS_OWN, "/patroni", vec![], &[0]),
        ask("REST 8008: settings", CLUSTERS_OWN, "/config", vec![], &[0]),
        ask("REST 8008: switchover, no password", NOTHING, "/switchover", switch(None), &[0, 401]),
        ask("REST 8008: switchover, wrong password", NOTHING, "/switchover", switch(Some(WRONG)), &[0, 401]),
        ask("REST 8008: failsafe, no password", NOTHING, "/failsafe", failsafe(None), &[0, 401]),
        ask("REST 8008: switchover, password", CLUSTERS_OWN, "/switchover", switch(Some(&password)), &[0, 401]),
    ]
}

fn of_postgres(lab: &Lab, stack: &Stack<'_>) -> Vec<Row> {
    let primary = stack.primary().expect("a primary");
    let (node, proxy) = (lab.address(&primary).to_string(), lab.address("db-1").to_string());
    let log_in = |name, intended, at: &str, port: u16, user: &'static str, password: String| {
        let at = at.to_owned();
        let enters = move |shown: &Shown| {
            let mut psql = Command::new(postgres_dir().join("bin/psql"));
            let database = if user == "shop" { "shop" } else { "postgres" };
            let mut login = format!("host={at} port={port} user={user} dbname={database} connect_timeout=5");
            login.push_str(if shown.tls { " sslmode=require" } else { " sslmode=disable" });
            if let Some((certificate, key)) = &shown.files {
                login.push_str(&format!(" sslcert={} sslkey={}", certificate.display(), key.display()));
            }
            psql.env("PGPASSWORD", &password).args(["-X", "-At", "-c", "select 1", "-d", &login]);
            text(psql.output().expect("psql runs")).code == 0
        };
        Row { name, intended, enters: Box::new(enters) }
    };
    let own = || "shop-secret".to_owned();
    let wrong = || WRONG.to_owned();
    let replicator = secret(lab, &["replication:", "password:"]);
    let rewind = secret(lab, &["rewind:", "password:"]);
    vec![
        log_in("PostgreSQL 5432: role", ANY_OVER_TLS, &node, 5432, "shop", own()),
        log_in("PostgreSQL 5432: role, wrong password", NOTHING, &node, 5432, "shop", wrong()),
        log_in("PostgreSQL 5432: superuser, role's password", NOTHING, &node, 5432, "postgres", own()),
        log_in(
            "PostgreSQL 5432: replicator, its password, no replication",
            NOTHING,
            &node,
            5432,
            "replicator",
            replicator,
        ),
        // On this computer nodes connect from 127.0.0.1, as every client does: only the password tells. Elsewhere a node
        // lets this login in from nodes' addresses.
        log_in("PostgreSQL 5432: rewind, its password", ANY_OVER_TLS, &node, 5432, "rewind", rewind),
        log_in("HAProxy 5432: role", ANY_OVER_TLS, &proxy, 5432, "shop", own()),
        log_in("HAProxy 5432: role, wrong password", NOTHING, &proxy, 5432, "shop", wrong()),
        log_in("HAProxy 5432: superuser, role's password", NOTHING, &proxy, 5432, "postgres", own()),
        log_in("HAProxy 5433: role", ANY_OVER_TLS, &proxy, 5433, "shop", own()),
    ]
}

fn of_etcd(lab: &Lab) -> Vec<Row> {
    let at = format!("{}:2379", lab.address("main-1"));
    let user = secret(lab, &["etcd3:", "username:"]);
    let log_in = |name, intended, password: &str| {
        let (at, body) = (at.clone(), format!("{{\"name\": \"{user}\", \"password\": \"{password}\"}}"));
        let enters = move |shown: &Shown| curl(shown, &at, "/v3/auth/authenticate", &["--data", &body]) == 200;
        Row { name, intended, enters: Box::new(enters) }
    };
    let read = {
        let at = at.clone();
        move |shown: &Shown| curl(shown, &at, "/v3/kv/range", &["--data", "{\"key\": \"AA==\"}"]) == 200
    };
    vec![
        log_in("etcd 2379: Patroni's user", ANY_OVER_TLS, &secret(lab, &["etcd3:", "password:"])),
        log_in("etcd 2379: Patroni's user, wrong password", NOTHING, WRONG),
        Row { name: "etcd 2379: a key, no login", intended: NOTHING, enters: Box::new(read) },
    ]
}

/// What Patroni's file on a node says below these keys.
fn secret(lab: &Lab, path: &[&str]) -> String {
    let file = std::fs::read_to_string(lab.machine(NODE).join("postgres/patroni.yml")).expect("Patroni's file");
    let mut lines = file.lines();
    let mut last = "";
    for key in path {
        last = lines.find(|line| line.trim_start().starts_with(key)).unwrap_or_else(|| panic!("no {key}"));
    }
    last.split_once(": ").expect("a value").1.trim_matches(['\'', '"']).to_owned()
}
