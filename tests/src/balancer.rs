//! Members and an address → a real HAProxy in front of them, with the configuration that raftsman renders.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use raftsman_core::desired::{CLIENT_PORT, HEALTH_PORT};
use raftsman_core::observed::{BalancerFacts, ServerState};
use raftsman_core::render::haproxy::{self, BACKEND, Backend, FALLBACK, Servers};
use raftsman_core::spec::Name;
use rustix::process::Signal;

use crate::hand::Hand;
use crate::lab::{Lab, eventually, kill};

/// A HAProxy that runs until this is dropped.
pub struct Balancer {
    dir: tempfile::TempDir,
    process: Child,
}

/// How a member is taken out of a balancer before it is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// It is not.
    Not,
    /// It gets no new connections; etcd itself ends those that it has.
    Drain,
    /// It gets no new connections, and those that it has are cut before it stops.
    DrainAndCut,
}

impl Drain {
    /// What the result is printed with.
    pub fn name(self) -> &'static str {
        match self {
            Self::Not => "not drained",
            Self::Drain => "drained",
            Self::DrainAndCut => "drained, cut",
        }
    }
}

/// An address of the lab's network that no machine has, in the members' certificates.
pub fn address_of(lab: &Lab) -> IpAddr {
    let [a, b, c, _] = lab.addresses().first().expect("a machine").octets();
    IpAddr::from([a, b, c, 200])
}

/// A cluster `main` whose members have the certificates and the listener that a balancer needs, restarted by hand.
pub fn behind(version: &str) -> (Hand, IpAddr) {
    let lab = Lab::cluster(3, version, &[]);
    lab.apply();
    let address = address_of(&lab);
    lab.write_file(&format!("{}    certificates: {{ extra_addresses: [{address}] }}\n", lab.file()));
    lab.apply();
    let mut hand = Hand::take_over(lab);
    for index in 0..hand.members() {
        let path = hand.lab.machine(hand.name(index)).join("etcd/etcd.yaml");
        let text = std::fs::read_to_string(&path).expect("etcd's configuration");
        let listener = SocketAddr::new(hand.address(index), HEALTH_PORT);
        std::fs::write(&path, format!("{text}listen-metrics-urls: http://{listener}\n")).expect("it is written");
        hand.restart(index);
    }
    (hand, address)
}

impl Balancer {
    /// Starts one that listens at this address, in front of the hand's members; and waits until all of them are healthy.
    pub fn start(hand: &Hand, address: IpAddr) -> Self {
        let backends: Vec<Backend> = (0..hand.members())
            .map(|index| Backend {
                name: Name::parse(hand.name(index)).expect("a name"),
                client: SocketAddr::new(hand.address(index), CLIENT_PORT),
                health: SocketAddr::new(hand.address(index), HEALTH_PORT),
            })
            .collect();
        let text = haproxy::config(&haproxy::Haproxy {
            address: Some(address),
            virtual_address: None,
            port: CLIENT_PORT,
            servers: Servers::Members(&backends),
            max_connections: 1000,
            connect_ms: 1000,
            idle_ms: 86_400_000,
        });
        let dir = tempfile::Builder::new().prefix("raftsman-lb-").tempdir().expect("a directory");
        std::fs::create_dir_all(dir.path().join("haproxy/run")).expect("a directory");
        let file = dir.path().join("haproxy.cfg");
        std::fs::write(&file, text.replace("{root}", &dir.path().to_string_lossy())).expect("the file");
        let log = std::fs::File::create(dir.path().join("haproxy.log")).expect("a log");
        let process = Command::new(haproxy::PROGRAM)
            .args(["-W", "-db", "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("HAProxy is installed");
        let balancer = Self { dir, process };
        eventually("HAProxy finds every member healthy", || (balancer.healthy().len() == hand.members()).then_some(()));
        balancer
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join(haproxy::SOCKET)
    }

    /// What HAProxy wrote so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("haproxy.log")).unwrap_or_default()
    }

    /// Sends a command over the admin socket: what it answered, or nothing where it does not listen yet.
    pub fn ask(&self, command: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.socket()).ok()?;
        stream.write_all(format!("{command}\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer.trim().to_owned())
    }

    /// Sends a command that answers nothing when it is done.
    #[track_caller]
    fn describe(&self, command: &str) {
        assert_eq!(self.ask(command).expect("HAProxy answers"), "", "{command}");
    }

    /// What it reports about the members; nothing before it listens.
    pub fn facts(&self) -> BalancerFacts {
        self.ask("show stat")
            .map_or_else(BalancerFacts::default, |report| BalancerFacts::parse(&report).expect("a report of HAProxy"))
    }

    /// The members that get connections.
    pub fn healthy(&self) -> Vec<Name> {
        let servers = self.facts().servers.into_iter();
        servers.filter(|(_, server)| server.state == ServerState::Up).map(|(name, _)| name).collect()
    }

    /// How many connections a member has from here.
    #[track_caller]
    pub fn connections(&self, member: &str) -> u64 {
        self.facts().servers[member].connections
    }

    /// Takes a member out.
    pub fn take_out(&self, member: &str, how: Drain) {
        if how == Drain::Not {
            return;
        }
        for backend in [BACKEND, FALLBACK] {
            self.describe(&format!("set server {backend}/{member} state drain"));
        }
        if how == Drain::DrainAndCut {
            for backend in [BACKEND, FALLBACK] {
                self.describe(&format!("shutdown sessions server {backend}/{member}"));
            }
        }
    }

    /// Lets a member have connections again, once it is healthy.
    #[track_caller]
    pub fn admit(&self, member: &str) {
        for backend in [BACKEND, FALLBACK] {
            self.describe(&format!("set server {backend}/{member} state ready"));
        }
        eventually("the member is healthy", || self.healthy().iter().any(|name| name.as_str() == member).then_some(()));
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // The master ends its worker with itself.
        kill(self.process.id(), Signal::TERM);
        let _ = self.process.wait();
    }
}
