//! A lab that raftsman brought up and whose agents are gone → the same etcd servers, restarted by hand.

use std::fs::OpenOptions;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use etcd_client::Client;
use raftsman_api::tls::Identity;
use raftsman_etcd::{Credentials, EtcdError, dial};
use rustix::process::Signal;

use crate::lab::{Lab, eventually, kill};
use crate::load::Target;

/// The operator checks this often.
const POLL: Duration = Duration::from_millis(10);

/// A member, and how it was started.
struct Member {
    name: String,
    address: IpAddr,
    arguments: Vec<String>,
    directory: PathBuf,
    pid: u32,
    /// The process that the operator started, and must reap.
    own: Option<Child>,
}

/// An operator with a shell on every machine, and the cluster that raftsman would have maintained.
pub struct Hand {
    /// Where the cluster lives.
    pub lab: Lab,
    members: Vec<Member>,
    credentials: Credentials,
    runtime: tokio::runtime::Runtime,
}

impl Hand {
    /// Takes a lab over: ends its agents, which would start etcd again by themselves. etcd outlives them.
    pub fn take_over(lab: Lab) -> Self {
        for (_, pid) in lab.agents() {
            kill(pid, Signal::KILL);
        }
        eventually("the agents are gone", || lab.agents().is_empty().then_some(()));
        let target = Target::of(&lab, "main");
        let addresses = target.endpoints.iter();
        let members = lab.etcds().into_iter().zip(addresses).map(|((name, pid), address)| {
            let proc = PathBuf::from(format!("/proc/{pid}"));
            let line = std::fs::read(proc.join("cmdline")).expect("etcd runs");
            let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
            let arguments = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            let directory = std::fs::read_link(proc.join("cwd")).expect("etcd runs");
            Member { name, address: *address, arguments, directory, pid, own: None }
        });
        let members = members.collect();
        let read = |path: &PathBuf| std::fs::read_to_string(path).expect("a file of the target");
        let identity = target.certificate.as_ref().map(|(certificate, key)| {
            Identity::from_pem(&read(certificate), &read(key)).expect("a certificate and its key")
        });
        let credentials = Credentials::new(&read(&target.ca), identity.as_ref(), None).expect("credentials");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { lab, members, credentials, runtime }
    }

    /// How many members there are.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Which member leads.
    pub fn leader(&self) -> usize {
        eventually("a member leads", || {
            (0..self.members.len()).find(|index| {
                let status = self.ask(*index, async |mut client: Client| Ok(client.status().await?));
                let status = status.ok().and_then(|status| Some((status.leader(), status.header()?.member_id())));
                status.is_some_and(|(leader, id)| leader == id)
            })
        })
    }

    /// Moves the leadership from one member to another, as `etcdctl move-leader` does.
    pub fn move_leader(&self, from: usize, to: usize) {
        let id = self.ask(to, async |mut client: Client| Ok(client.status().await?)).expect("a member's status");
        let id = id.header().expect("a header").member_id();
        self.ask(from, async move |mut client: Client| Ok(client.move_leader(id).await?)).expect("the leader moves");
    }

    /// Ends a member with SIGTERM, starts it again as it was, and waits until a linearizable read goes through it.
    pub fn restart(&mut self, index: usize) {
        self.stop(index);
        self.start(index);
    }

    /// A member's name.
    pub fn name(&self, index: usize) -> &str {
        &self.members[index].name
    }

    /// A member's address.
    pub fn address(&self, index: usize) -> IpAddr {
        self.members[index].address
    }

    /// Where a member keeps its data.
    pub fn data(&self, index: usize) -> PathBuf {
        self.lab.machine(&self.members[index].name).join("etcd/data")
    }

    /// Ends a member with SIGTERM.
    pub fn stop(&mut self, index: usize) {
        self.end(index, Signal::TERM);
    }

    /// Kills a member.
    pub fn kill(&mut self, index: usize) {
        self.end(index, Signal::KILL);
    }

    fn end(&mut self, index: usize, signal: Signal) {
        let member = &mut self.members[index];
        kill(member.pid, signal);
        match member.own.take() {
            Some(mut child) => {
                child.wait().expect("it was ours");
            }
            None => {
                let line = format!("/proc/{}/cmdline", member.pid);
                let ended = || std::fs::read(&line).map_or(true, |line| line.is_empty());
                while !ended() {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }

    /// Starts a member as it was, and waits until a linearizable read goes through it.
    pub fn start(&mut self, index: usize) {
        let member = &mut self.members[index];
        let log = self.lab.machine(&member.name).join("etcd/etcd.log");
        let log = OpenOptions::new().append(true).open(log).expect("etcd's log");
        let child = Command::new(&member.arguments[0])
            .args(&member.arguments[1..])
            .env_clear()
            .current_dir(&member.directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("etcd's log"))
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        member.pid = child.id();
        member.own = Some(child);
        while self.ask(index, async |mut client: Client| Ok(client.get("probe", None).await?)).is_err() {
            std::thread::sleep(POLL);
        }
    }

    fn ask<T>(&self, index: usize, call: impl AsyncFnOnce(Client) -> Result<T, EtcdError>) -> Result<T, EtcdError> {
        self.runtime.block_on(async {
            let client = dial(self.members[index].address, &self.credentials).await?;
            let limit = raftsman_etcd::CALL_TIMEOUT;
            tokio::time::timeout(limit, Box::pin(call(client))).await.unwrap_or(Err(EtcdError::Timeout(limit)))
        })
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(child) = &mut member.own {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
