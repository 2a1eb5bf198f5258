//! A file with the PostgreSQL cluster `app` on etcd → a stack that raftsman applies and changes, and clients of it.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;
use serde_json::Value;

use super::bare::{demotions_in, major, postgres_dir};
use super::clients::Clients;
use crate::lab::{Lab, Output, etcd_dir, eventually, kill};

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

/// The role and the database of clients, as further lines of the cluster; the password is in a file beside the lab's.
pub fn catalog() -> String {
    format!(
        "    roles:\n      {0}: {{ password: {{ file: {0}.password }} }}\n    databases:\n      {DATABASE}: {{ owner: {0} }}\n",
        LOGIN.0
    )
}

/// A file with three members with these further lines, three nodes and a balancer in front of them.
pub fn file(of_etcd: &str) -> String {
    format!(
        "fleet: lab
etcd:
  main:
    members: 3
    version: 3.6.15
    source: {{ directory: {:?} }}
    auth: {{ mode: password }}
{of_etcd}{}{}",
        etcd_dir(),
        section(&major(), "127.0.0.0/8", &format!("    nodes: 3\n{}", catalog())),
        balancer("instances: 2")
    )
}

/// Writes a password that the file refers to: for the role of [`catalog`], that of clients.
#[track_caller]
pub fn write_password(lab: &Lab, role: &str, password: Option<&str>) {
    let path = lab.path().join(format!("{role}.password"));
    fs::write(&path, password.unwrap_or(LOGIN.1)).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
}

/// Patience for what a busy computer takes.
pub const APPLY: [&str; 4] = ["apply", "--yes", "--timeout", "180s"];

/// What is under test, and how the superuser is asked, who logs in on the primary's own machine only.
pub struct Stack<'a> {
    /// Its directory.
    pub lab: &'a Lab,
    /// Runs a statement on the primary, which is on this machine.
    pub superuser: &'a dyn Fn(&str, &str) -> Output,
}

/// A statement of the superuser on the primary of `app`, where its machines are on this computer.
pub fn psql(lab: &Lab, statement: &str) -> Output {
    lab.run(&["psql", "app", "--", "-X", "-At", "-v", "ON_ERROR_STOP=1", "-c", statement])
}

impl Stack<'_> {
    /// Which standby is synchronous decides the order of some steps, and is Patroni's choice: the forecast is not compared.
    #[track_caller]
    pub fn apply(&self) {
        self.lab.run(&APPLY).ok();
    }

    /// Another node takes the primary's place. On a busy computer a member may not answer for a moment: it is refused then.
    #[track_caller]
    pub fn switch_over(&self) {
        eventually("a switchover", || {
            let asked = self.lab.run(&["switchover", "app", "--yes"]);
            if asked.stderr.starts_with("error: not done:") {
                return None;
            }
            asked.ok();
            Some(())
        });
    }

    /// Whichever of the two the file has is replaced by the other one. It is not applied.
    #[track_caller]
    pub fn exchange(&self, [one, other]: [&str; 2]) {
        let text = self.lab.file();
        assert!(text.contains(one) != text.contains(other), "one of {one} and {other}: {text}");
        let (from, to) = if text.contains(one) { (one, other) } else { (other, one) };
        self.lab.write_file(&text.replace(from, to));
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

    /// The machines of its nodes.
    #[track_caller]
    pub fn nodes(&self) -> Vec<String> {
        let nodes = self.seen()["nodes"].as_array().expect("nodes").clone();
        nodes.iter().map(|node| node["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Patroni and PostgreSQL on a node: processes whose arguments name its directory. Neither its agent nor a client does.
    pub fn processes_of(&self, node: &str) -> Vec<(u32, String)> {
        let dir = self.lab.machine(node).join("postgres").to_string_lossy().into_owned();
        self.lab.processes().into_iter().filter(|(_, line)| line.contains(&dir)).collect()
    }

    /// Kills Patroni and PostgreSQL on a node.
    pub fn kill_node(&self, node: &str) {
        self.processes_of(node).into_iter().for_each(|(pid, _)| kill(pid, Signal::KILL));
    }

    /// How often a primary gave its role up, by the words of every Patroni, where its machines are on this computer.
    pub fn demotions(&self) -> usize {
        let machines = self.nodes().into_iter().map(|node| self.lab.machine(&node));
        let logs = machines.map(|machine| fs::read_to_string(machine.join("postgres/patroni.log")));
        logs.map(|log| demotions_in(&log.expect("a log"))).sum()
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

    /// What clients know: every other of them connects through this balancer. Makes their role and their database
    /// where the file does not have them.
    #[track_caller]
    pub fn clients(&self, balancer: &str) -> Clients {
        let mut clients = self.clients_of_nodes();
        let through = self.lab.run(&["env", "--via", balancer, "--json"]).ok().json();
        let port = u16::try_from(through["port"].as_u64().expect("a port")).expect("a port");
        let instances = through["hosts"].as_array().expect("hosts").iter();
        clients.lead_through(instances.map(|host| SocketAddr::new(address(host), port)).collect());
        clients
    }

    /// What clients know that connect to the nodes. Makes their role and their database where the file
    /// does not have them.
    #[track_caller]
    pub fn clients_of_nodes(&self) -> Clients {
        if self.ask(&format!("select count(*) from pg_roles where rolname = '{}'", LOGIN.0)) == "0" {
            self.ask(&format!("create role {} login password '{}'", LOGIN.0, LOGIN.1));
            self.ask(&format!("create database {DATABASE} owner {}", LOGIN.0));
        }
        let env = self.lab.run(&["env", "app", "--json"]).ok().json();
        let ca = fs::read_to_string(env["ca"].as_str().expect("a path")).expect("the CA");
        let nodes = self.seen()["nodes"].as_array().expect("nodes").clone();
        let nodes =
            nodes.iter().map(|node| (node["name"].as_str().expect("a name").to_owned(), address(&node["address"])));
        let nodes: Vec<(String, IpAddr)> = nodes.collect();
        let hosts: Vec<IpAddr> = env["hosts"].as_array().expect("hosts").iter().map(address).collect();
        assert_eq!(hosts, nodes.iter().map(|(_, address)| *address).collect::<Vec<_>>());
        Clients::new(nodes, LOGIN, DATABASE, &ca)
    }
}

fn address(value: &Value) -> IpAddr {
    value.as_str().and_then(|at| at.parse().ok()).expect("an address")
}
