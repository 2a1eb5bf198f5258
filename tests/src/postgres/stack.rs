//! A file with the PostgreSQL cluster `app` on etcd → a stack that raftsman applies and changes, and clients of it.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::bare::postgres_dir;
use super::clients::Clients;
use crate::lab::{Lab, Output, eventually};

/// The role that clients log in as, its password, and its database.
const LOGIN: (&str, &str) = ("shop", "shop-secret");
const DATABASE: &str = "shop";

/// A section `balancers`: two instances in front of `app`, with these keys of the balancer besides.
pub fn balancer(further: &str) -> String {
    format!("balancers:\n  db: {{ postgres: app, replicas_port: 5433, {further} }}\n")
}

/// A section `postgres` for this major version, with clients from these networks, Patroni's shortest timers, and these
/// further lines of the cluster.
pub fn section(major: &str, from: &str, further: &str) -> String {
    let bundle = postgres_dir().join("patroni-4.1.5.tar");
    let sha256 = include_str!("../../../tools/patroni/4.1.5.sha256").trim();
    format!(
        "postgres:
  app:
    etcd: main
    version: {major}
    patroni: {{ ttl: 20, loop_wait: 1, retry_timeout: 3, source: {{ bundle: {{ file: {bundle:?}, sha256: {sha256} }} }} }}
    parameters: {{ shared_buffers: 32MB, max_connections: 50 }}
    access: [{{ databases: [{DATABASE}], users: [{}], from: [{from}] }}]
{further}",
        LOGIN.0
    )
}

/// What is under test, and how the superuser is asked, who logs in on the primary's own machine only.
pub struct Stack<'a> {
    /// Its directory.
    pub lab: &'a Lab,
    /// Runs a statement on the primary, which is on this machine.
    pub superuser: &'a dyn Fn(&str, &str) -> Output,
}

impl Stack<'_> {
    /// Which standby is synchronous decides the order of some steps, and is Patroni's choice: the forecast is not compared.
    #[track_caller]
    pub fn apply(&self) {
        self.lab.run(&["apply", "--yes", "--timeout", "180s"]).ok();
    }

    /// The file's part is replaced, applied, and then there is nothing to do.
    #[track_caller]
    pub fn change(&self, from: &str, to: &str) {
        let text = self.lab.file();
        assert!(text.contains(from), "{from} is not in {text}");
        self.lab.write_file(&text.replace(from, to));
        self.apply();
        self.lab.nothing_to_do();
    }

    /// The cluster, as `raftsman status` shows it.
    #[track_caller]
    pub fn seen(&self) -> Value {
        self.lab.run(&["status", "--json"]).json()["clusters"][0]["postgres"][0].clone()
    }

    /// The machine of the node that takes writes.
    #[track_caller]
    pub fn primary(&self) -> Option<String> {
        self.seen()["primary"].as_str().map(str::to_owned)
    }

    /// A statement of the superuser.
    #[track_caller]
    pub fn ask(&self, statement: &str) -> String {
        let primary = eventually("a primary", || self.primary());
        (self.superuser)(&primary, statement).ok().stdout.trim().to_owned()
    }

    /// What clients know, of whom every other connects through this balancer. Makes their role and their database.
    #[track_caller]
    pub fn clients(&self, balancer: &str) -> Clients {
        self.ask(&format!("create role {} login password '{}'", LOGIN.0, LOGIN.1));
        self.ask(&format!("create database {DATABASE} owner {}", LOGIN.0));
        let env = |arguments: &[&str]| self.lab.run(&[&["env", "--json"], arguments].concat()).ok().json();
        let direct = env(&["app"]);
        let ca = std::fs::read_to_string(direct["ca"].as_str().expect("a path")).expect("the CA");
        let address = |value: &Value| value.as_str().and_then(|at| at.parse::<IpAddr>().ok()).expect("an address");
        let nodes = self.seen()["nodes"].as_array().expect("nodes").clone();
        let nodes =
            nodes.iter().map(|node| (node["name"].as_str().expect("a name").to_owned(), address(&node["address"])));
        let nodes: Vec<(String, IpAddr)> = nodes.collect();
        let hosts: Vec<IpAddr> = direct["hosts"].as_array().expect("hosts").iter().map(address).collect();
        assert_eq!(hosts, nodes.iter().map(|(_, address)| *address).collect::<Vec<_>>());
        let through = env(&["--via", balancer]);
        let port = u16::try_from(through["port"].as_u64().expect("a port")).expect("a port");
        let instances = through["hosts"].as_array().expect("hosts").iter();
        let instances = instances.map(|host| SocketAddr::new(address(host), port)).collect();
        Clients::new(nodes, LOGIN, DATABASE, &ca).through(instances)
    }
}
