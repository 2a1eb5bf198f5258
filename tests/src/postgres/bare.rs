//! An etcd cluster with passwords → three nodes of Patroni by hand, as well as one can: what raftsman is measured against.
//!
//! TLS 1.3 for clients, replication and REST; REST wants a client certificate and a password; SCRAM; one synchronous
//! standby, strictly. All of it is ended and removed when it is dropped.

use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use raftsman_api::tls::Identity;
use raftsman_core::spec::KeyAlgorithm;
use raftsman_engine::pki::{Authority, AuthorityKind, LeafProfile, Usages};
use rustix::process::Signal;
use secrecy::ExposeSecret as _;
use serde_json::Value;

use super::clients::Clients;
use super::connect::{self, Tls};
use crate::files::write_private;
use crate::lab::{Lab, kill, processes};

/// The port of Patroni's REST interface.
pub(super) const REST_PORT: u16 = 8008;
/// PostgreSQL's port.
pub(super) const PORT: u16 = 5432;
/// PostgreSQL's superuser, and its password.
pub(super) const SUPERUSER: (&str, &str) = ("postgres", "super-secret");
/// etcd's user for Patroni, and its password.
pub const DCS_LOGIN: (&str, &str) = ("patroni", "dcs-secret-0123456789");
/// The login to REST that changes something.
pub const REST_LOGIN: (&str, &str) = ("raftsman", "rest-secret");
/// From nothing to a synchronous standby took 36 s at a `loop_wait` of 10 s on a busy computer: the bound is for what hangs.
const SETTLE: Duration = Duration::from_secs(180);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Where the last byte of the nodes' addresses begins, in the members' network: machines of a lab come from below.
const FIRST: u8 = 211;
/// The last byte of the address of HAProxy in front of them.
const PROXY: u8 = 220;

/// Where `just lab-postgres` puts Patroni and the programs of PostgreSQL.
pub fn postgres_dir() -> PathBuf {
    let lab = std::env::var_os("RAFTSMAN_LAB").map(PathBuf::from);
    let dir = lab.map(|lab| lab.join("postgres")).filter(|dir| dir.join("patroni/start.py").exists());
    dir.expect("RAFTSMAN_LAB with PostgreSQL in it: run `just lab-postgres` first")
}

/// The major version of the lab's PostgreSQL, which is Debian's.
pub fn major() -> String {
    let bin = std::fs::canonicalize(postgres_dir().join("bin")).expect("PostgreSQL");
    bin.parent().and_then(|dir| dir.file_name()).and_then(|name| name.to_str()).expect("a version").to_owned()
}

/// The etcd that Patroni keeps its keys in, and the login for it.
#[derive(Debug, Clone)]
pub struct Dcs {
    /// Addresses of members.
    pub members: Vec<IpAddr>,
    /// A file with the CA of the members' certificates.
    pub ca: PathBuf,
    /// etcd's user.
    pub user: String,
    /// Its password.
    pub password: String,
}

/// The role and the user of etcd that Patroni needs, as lines of a cluster's section.
pub const ETCD_LINES: [&str; 3] = [
    "auth: { mode: password }",
    "roles: { patroni: [{ readwrite: { prefix: /service/pg/ } }] }",
    "users: { patroni: { roles: [patroni], password: { file: patroni.password } } }",
];

impl Dcs {
    /// The password that [`ETCD_LINES`] refer to, in a lab that is not applied yet.
    pub fn prepare(lab: &Lab) {
        write_private(lab.path().join("patroni.password"), DCS_LOGIN.1);
    }

    /// The login to the cluster `main`, which runs.
    #[track_caller]
    pub fn of(lab: &Lab) -> Self {
        let env = lab.run(&["env", "main", "--json"]).ok().json();
        let members = env["endpoints"].as_array().expect("endpoints").iter().map(|url| {
            let socket = url.as_str().and_then(|url| url.strip_prefix("https://")).expect("a URL of TLS");
            socket.parse::<SocketAddr>().expect("an address").ip()
        });
        let password = std::fs::read_to_string(lab.path().join("patroni.password")).expect("the password");
        Self {
            members: members.collect(),
            ca: PathBuf::from(env["ca"].as_str().expect("a CA")),
            user: DCS_LOGIN.0.to_owned(),
            password,
        }
    }
}

/// Patroni's timers, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Timers {
    /// How long the leader's lease lasts.
    pub ttl: u32,
    /// The time between two rounds.
    pub loop_wait: u32,
    /// For how long calls to etcd and PostgreSQL are repeated.
    pub retry_timeout: u32,
}

impl Timers {
    /// Patroni's defaults.
    pub const DEFAULT: Self = Self { ttl: 30, loop_wait: 10, retry_timeout: 10 };
    /// The shortest that Patroni accepts.
    pub const SHORTEST: Self = Self { ttl: 20, loop_wait: 1, retry_timeout: 3 };
}

struct Node {
    name: String,
    address: IpAddr,
    dir: PathBuf,
    patroni: Option<Child>,
}

impl Node {
    /// PostgreSQL's first process on this node's data: its id, and its segment of shared memory.
    fn postmaster(&self) -> Option<(u32, Option<String>)> {
        let text = std::fs::read_to_string(self.dir.join("data/postmaster.pid")).ok()?;
        let mut lines = text.lines();
        let pid: u32 = lines.next()?.trim().parse().ok()?;
        let segment = lines.nth(5).and_then(|line| line.split_whitespace().nth(1)).map(str::to_owned);
        Some((pid, segment))
    }

    /// Whether this process is the postmaster of this node, and no other that has got its number since.
    fn is_postmaster(&self, pid: u32) -> bool {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == self.dir.join("data"))
    }
}

/// A PostgreSQL cluster of three nodes by hand.
pub struct BarePostgres {
    dir: tempfile::TempDir,
    nodes: Vec<Node>,
    proxy: IpAddr,
    haproxy: Option<Child>,
    clients: Arc<Clients>,
}

impl BarePostgres {
    /// Makes everything that can be made beforehand; nothing is started. Addresses are of the members' network.
    pub fn prepare(dcs: &Dcs, timers: Timers) -> Self {
        let dir = tempfile::Builder::new().prefix("bare-postgres-").tempdir().expect("a directory");
        let now = Timestamp::now();
        let made = Authority::make(AuthorityKind::Fleet, "postgres CA", None, KeyAlgorithm::EcdsaP256, now, DAY);
        let authority = made.expect("a CA");
        std::fs::write(dir.path().join("ca.crt"), authority.certificate_pem()).expect("a file");
        let etcd_ca = std::fs::read_to_string(&dcs.ca).expect("etcd's CA");
        std::fs::write(dir.path().join("etcd-ca.crt"), etcd_ca).expect("a file");
        let Some(IpAddr::V4(member)) = dcs.members.first() else { panic!("no member with an address of IPv4") };
        let [a, b, c, _] = member.octets();
        let at = |last| IpAddr::V4(Ipv4Addr::new(a, b, c, last));
        let proxy = at(PROXY);
        let nodes = (0..3u8).map(|index| {
            let (name, address) = (format!("pg-{}", index + 1), at(FIRST + index));
            let dir = dir.path().join(&name);
            std::fs::create_dir(&dir).expect("a directory");
            let key = rcgen::KeyPair::generate().expect("a key");
            let csr = rcgen::CertificateParams::default().serialize_request(&key).expect("a request");
            let profile = LeafProfile {
                common_name: name.clone(),
                organization: None,
                dns_names: vec![name.clone()],
                addresses: vec![address, proxy],
                usages: Usages::Both,
                validity: DAY,
            };
            let chain = authority.sign_csr(csr.der(), &profile, now).expect("a certificate");
            std::fs::write(dir.join("tls.crt"), chain).expect("a file");
            write_private(dir.join("tls.key"), &key.serialize_pem());
            Node { name, address, dir, patroni: None }
        });
        let nodes: Vec<Node> = nodes.collect();
        for node in &nodes {
            write_private(node.dir.join("patroni.yml"), &configuration(dir.path(), node, dcs, timers));
        }
        let (chain, key) = authority.issue_client("operator", None, DAY, now).expect("a client certificate");
        let identity = Identity::from_pem(&chain, key.expose_secret()).expect("an identity");
        let tls = Tls::new(authority.certificate_pem(), identity);
        write_private(dir.path().join("client.pem"), &(chain + key.expose_secret()));
        let places = nodes.iter().map(|node| (node.name.clone(), node.address)).collect();
        Self { dir, nodes, proxy, haproxy: None, clients: Arc::new(Clients::with(places, SUPERUSER, "postgres", tls)) }
    }

    /// Prepares and starts all nodes, and waits until there is a synchronous standby.
    pub fn up(dcs: &Dcs, timers: Timers) -> Self {
        let mut cluster = Self::prepare(dcs, timers);
        cluster.start_all();
        cluster.settled();
        cluster
    }

    /// Starts Patroni on all nodes.
    pub fn start_all(&mut self) {
        for index in 0..self.nodes.len() {
            self.start(index);
        }
    }

    /// Gives every node another file for Patroni before it is started, by its name, its address and its directory. The
    /// directory holds `tls.crt` and `tls.key`; beside it are `ca.crt` and `etcd-ca.crt`.
    pub fn rewrite(&self, file: impl Fn(&str, IpAddr, &Path) -> String) {
        for node in &self.nodes {
            write_private(node.dir.join("patroni.yml"), &file(&node.name, node.address, &node.dir));
        }
    }

    /// A node's address.
    pub fn address(&self, index: usize) -> IpAddr {
        self.nodes[index].address
    }

    /// A node's directory.
    pub fn dir(&self, index: usize) -> &Path {
        &self.nodes[index].dir
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// A node's name.
    pub fn name(&self, index: usize) -> &str {
        &self.nodes[index].name
    }

    /// Starts Patroni on a node.
    pub fn start(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let log = OpenOptions::new().append(true).create(true).open(node.dir.join("patroni.log")).expect("a log");
        let mut words: Vec<PathBuf> = Vec::new();
        // PostgreSQL does not run as root: in a namespace of its own the same user is another one.
        if rustix::process::geteuid().is_root() {
            words.extend(["unshare", "--user", "--map-user=1", "--map-group=1", "--"].map(PathBuf::from));
        }
        words.extend(["/usr/bin/python3", "-I", "-B"].map(PathBuf::from));
        words.extend([postgres_dir().join("patroni/start.py"), node.dir.join("patroni.yml")]);
        let child = Command::new(&words[0])
            .args(&words[1..])
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .env("LC_ALL", "C.UTF-8")
            .current_dir(&node.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn();
        node.patroni = Some(child.expect("Patroni starts"));
    }

    /// Starts HAProxy in front of all nodes: every other client connects through it from now on. It leads to the primary,
    /// which it asks Patroni for as often as raftsman's does.
    pub fn front(&mut self) {
        let (root, file) = (self.dir.path().display(), self.dir.path().join("haproxy.cfg"));
        let mut text = format!(
            "global
  maxconn 500
defaults
  mode tcp
  timeout connect 1s
  timeout client 1d
  timeout server 1d
  timeout check 2s
  retries 3
  option redispatch 1
listen primary
  bind {}:{PORT}
  tcp-request connection reject if {{ nbsrv(primary) gt 1 }}
  option httpchk
  http-check send meth GET uri /primary
  http-check expect status 200
  default-server check check-ssl port {REST_PORT} verify required ca-file {root}/ca.crt crt {root}/client.pem inter 1s \
fastinter 500ms downinter 500ms fall 3 rise 1 on-marked-down shutdown-sessions
",
            self.proxy
        );
        for Node { name, address, .. } in &self.nodes {
            text.push_str(&format!("  server {name} {address}:{PORT}\n"));
        }
        write_private(&file, &text);
        let log = OpenOptions::new().append(true).create(true).open(self.dir.path().join("haproxy.log"));
        let log = log.expect("a log");
        let mut haproxy = Command::new(raftsman_core::render::haproxy::PROGRAM);
        haproxy.arg("-db").arg("-f").arg(&file).stdin(Stdio::null());
        haproxy.stdout(log.try_clone().expect("a log")).stderr(log);
        self.haproxy = Some(haproxy.spawn().expect("HAProxy starts: install haproxy"));
        let clients = Arc::get_mut(&mut self.clients).expect("no client is at work");
        clients.lead_through(vec![SocketAddr::new(self.proxy, PORT)]);
    }

    /// Kills Patroni and PostgreSQL of a node, as the loss of its machine does.
    pub fn kill(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if let Some(mut patroni) = node.patroni.take() {
            let _ = patroni.kill();
            let _ = patroni.wait();
        }
        if let Some((pid, _)) = node.postmaster().filter(|(pid, _)| node.is_postmaster(*pid)) {
            kill(pid, Signal::KILL);
        }
    }

    /// Lets every Patroni read its file anew.
    pub fn reload(&self) {
        for patroni in self.nodes.iter().filter_map(|node| node.patroni.as_ref()) {
            kill(patroni.id(), Signal::HUP);
        }
    }

    /// What Patroni wrote on a node.
    pub fn log(&self, index: usize) -> String {
        std::fs::read_to_string(self.nodes[index].dir.join("patroni.log")).unwrap_or_default()
    }

    /// How often a primary gave its role up, by the words of every Patroni.
    pub fn demotions(&self) -> usize {
        (0..self.nodes.len()).map(|index| demotions_in(&self.log(index))).sum()
    }

    /// A request to a node's REST interface, with the operator's certificate and password.
    pub fn rest(&self, index: usize, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
        let (address, request) = (self.nodes[index].address, (method, path, body.to_owned()));
        let limit = if method == "GET" { Duration::from_secs(3) } else { Duration::from_secs(120) };
        let (runtime, tls) = (self.clients.runtime(), self.clients.tls());
        runtime.block_on(connect::rest(&tls, address, REST_LOGIN, request, limit))
    }

    /// The nodes as any Patroni that answers lists them; none while none answers.
    pub fn members(&self) -> Vec<Value> {
        let answers = (0..self.nodes.len()).filter_map(|index| self.rest(index, "GET", "/cluster", "").ok());
        let lists = answers.filter(|(status, _)| *status == 200).filter_map(|(_, text)| {
            let cluster: Value = serde_json::from_str(&text).ok()?;
            Some(cluster["members"].as_array()?.clone())
        });
        lists.into_iter().next().unwrap_or_default()
    }

    /// The primary and a synchronous standby, by their places, once all nodes run on one timeline.
    #[track_caller]
    pub fn settled(&self) -> Settled {
        let begun = Instant::now();
        loop {
            let members = self.members();
            if let Some(settled) = self.judge(&members) {
                return settled;
            }
            let logs: Vec<String> = (0..self.nodes.len()).map(|index| tail(&self.log(index), 15)).collect();
            assert!(begun.elapsed() < SETTLE, "not settled: {members:?}\n{}", logs.join("\n"));
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Switches over to a synchronous standby, and waits until all nodes follow it.
    #[track_caller]
    pub fn switchover(&self) -> Settled {
        let before = self.settled();
        let (leader, candidate) = (self.name(before.primary), self.name(before.standby));
        let order = serde_json::json!({ "leader": leader, "candidate": candidate }).to_string();
        let (status, said) = self.rest(before.primary, "POST", "/switchover", &order).expect("an answer");
        // Anything else is undetermined: what became of it is seen below.
        assert!(status == 200 || status == 503, "{status}: {said}");
        let begun = Instant::now();
        loop {
            let settled = self.settled();
            if settled.primary == before.standby && settled.timeline > before.timeline {
                return settled;
            }
            assert!(begun.elapsed() < SETTLE, "{status}: {said}; {settled:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The node with the leader's lease, as any Patroni that answers says.
    pub fn leader(&self) -> Option<usize> {
        self.place(&self.members(), &["leader"])
    }

    /// The first node that has one of these roles.
    fn place(&self, members: &[Value], roles: &[&str]) -> Option<usize> {
        let is = |member: &&Value| member["role"].as_str().is_some_and(|role| roles.contains(&role));
        let name = members.iter().find(is)?["name"].as_str()?;
        self.nodes.iter().position(|node| node.name == name)
    }

    fn judge(&self, members: &[Value]) -> Option<Settled> {
        let place = |roles: &[&str]| self.place(members, roles);
        let runs = |member: &Value| matches!(member["state"].as_str(), Some("running" | "streaming"));
        let timeline = members.first()?["timeline"].as_u64()?;
        let whole = members.len() == self.nodes.len()
            && members.iter().all(|member| runs(member) && member["timeline"].as_u64() == Some(timeline));
        let (primary, standby) = (place(&["leader"])?, place(&["sync_standby", "quorum_standby"])?);
        whole.then_some(Settled { primary, standby, timeline })
    }

    /// How clients connect to it, as the superuser.
    pub fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }
}

/// Where a cluster's roles are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// The place of the primary.
    pub primary: usize,
    /// The place of a synchronous standby.
    pub standby: usize,
    /// The timeline of all nodes.
    pub timeline: u64,
}

/// How often a Patroni said in its log that a primary gave its role up.
pub(super) fn demotions_in(log: &str) -> usize {
    log.lines().filter(|line| line.contains("emoting self") || line.contains("demoted self")).count()
}

/// The last lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Connections on this computer come from 127.0.0.1, whichever of its addresses they go to: pg_hba lets in all of them.
fn configuration(root: &Path, node: &Node, dcs: &Dcs, timers: Timers) -> String {
    let hosts: Vec<String> = dcs.members.iter().map(|address| format!("'{address}:2379'")).collect();
    let (hosts, name, address, root, here) =
        (hosts.join(", "), &node.name, node.address, root.display(), node.dir.display());
    let Timers { ttl, loop_wait, retry_timeout } = timers;
    let bin = postgres_dir().join("bin");
    let bin = bin.display();
    let Dcs { user, password, .. } = dcs;
    let ((superuser, secret), (admin, rest_secret)) = (SUPERUSER, REST_LOGIN);
    let verify = format!("sslmode: verify-full, sslrootcert: {root}/ca.crt");
    format!(
        "scope: pg
namespace: /service/
name: {name}
log: {{ level: INFO }}
restapi:
  listen: {address}:{REST_PORT}
  connect_address: {address}:{REST_PORT}
  certfile: {here}/tls.crt
  keyfile: {here}/tls.key
  cafile: {root}/ca.crt
  verify_client: required
  authentication: {{ username: {admin}, password: {rest_secret} }}
ctl: {{ cacert: {root}/ca.crt, certfile: {here}/tls.crt, keyfile: {here}/tls.key }}
etcd3: {{ hosts: [{hosts}], protocol: https, cacert: {root}/etcd-ca.crt, username: {user}, password: {password} }}
bootstrap:
  dcs:
    ttl: {ttl}
    loop_wait: {loop_wait}
    retry_timeout: {retry_timeout}
    maximum_lag_on_failover: 1048576
    primary_start_timeout: 300
    primary_stop_timeout: 300
    failsafe_mode: false
    synchronous_mode: true
    synchronous_mode_strict: true
    synchronous_node_count: 1
    postgresql:
      use_pg_rewind: true
      use_slots: true
      parameters: {{ max_connections: 100, password_encryption: scram-sha-256 }}
  initdb: [{{ encoding: UTF8 }}, {{ locale: C.UTF-8 }}, data-checksums]
postgresql:
  listen: {address}:{PORT}
  connect_address: {address}:{PORT}
  data_dir: {here}/data
  bin_dir: {bin}
  pgpass: {here}/pgpass
  authentication:
    superuser: {{ username: {superuser}, password: {secret}, {verify} }}
    replication: {{ username: replicator, password: replicator-secret, {verify} }}
    rewind: {{ username: rewind, password: rewind-secret, {verify} }}
  parameters:
    unix_socket_directories: ''
    ssl: 'on'
    ssl_cert_file: {here}/tls.crt
    ssl_key_file: {here}/tls.key
    ssl_ca_file: {root}/ca.crt
    ssl_min_protocol_version: TLSv1.3
    shared_buffers: 32MB
    wal_retrieve_retry_interval: 500ms
  pg_hba:
    - hostssl replication replicator 127.0.0.0/8 scram-sha-256
    - hostssl all all 127.0.0.0/8 scram-sha-256
watchdog: {{ mode: 'off' }}
"
    )
}

impl Drop for BarePostgres {
    fn drop(&mut self) {
        if let Some(mut haproxy) = self.haproxy.take() {
            let _ = haproxy.kill();
            let _ = haproxy.wait();
        }
        // Patroni first, which would start PostgreSQL again; then PostgreSQL, at once, but so that it can remove its shared
        // memory; then what either of them had started and not waited for.
        for node in &mut self.nodes {
            if let Some(mut patroni) = node.patroni.take() {
                let _ = patroni.kill();
                let _ = patroni.wait();
            }
        }
        let postmasters: Vec<_> = self.nodes.iter().filter_map(|node| Some((node, node.postmaster()?))).collect();
        for (_, (pid, _)) in postmasters.iter().filter(|(node, (pid, _))| node.is_postmaster(*pid)) {
            kill(*pid, Signal::QUIT);
        }
        let begun = Instant::now();
        let left = || postmasters.iter().any(|(node, (pid, _))| node.is_postmaster(*pid));
        while left() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let root = self.dir.path().to_string_lossy().into_owned();
        for (pid, line) in processes() {
            if line.contains(&root) && pid != std::process::id() {
                kill(pid, Signal::KILL);
            }
        }
        for (_, (_, segment)) in &postmasters {
            // A postmaster that was killed has left its segment; one that ended has not, and there is nothing to remove.
            if let Some(segment) = segment {
                let _ = Command::new("ipcrm").args(["-m", segment]).stderr(Stdio::null()).status();
            }
        }
    }
}
