//! orders → machines on this computer, made once, known again, and gone without a trace.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use raftsman_core::boot::Boot;
use raftsman_core::render::patroni;
use raftsman_providers::{
    Artifact, Connection, LocalError, LocalSettings, MachineOrder, Power, ProviderError, Settings, connect,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

fn agent() -> PathBuf {
    let beside = std::env::current_exe().unwrap();
    let path = beside.parent().unwrap().parent().unwrap().join("raftsman-agent");
    assert!(path.is_file(), "{} is missing: run `cargo build --release -p raftsman-agent` first", path.display());
    path
}

fn provider(dir: &Path, fleet_id: &str) -> Connection {
    connect(Settings::Local(LocalSettings { dir: dir.to_path_buf(), fleet_id: fleet_id.to_owned(), agent: agent() }))
}

fn order(name: &str, address: &str) -> MachineOrder {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let address: IpAddr = address.parse().unwrap();
    MachineOrder {
        name: name.to_owned(),
        address,
        agent_port: 2378,
        cluster: "main".to_owned(),
        members: vec![address],
        boot: Boot {
            fleet_id: "f1".to_owned(),
            fleet: "test".to_owned(),
            machine: name.to_owned(),
            address,
            agent_port: 2378,
            fleet_ca_pem: params.self_signed(&key).unwrap().pem(),
            join_token: Some("00112233445566778899aabbccddeeff".to_owned()),
            join_deadline: None,
        },
        zone: None,
        machines: None,
        artifacts: Vec::new(),
        packages: Vec::new(),
        joined: false,
    }
}

fn pid(dir: &Path, name: &str) -> u32 {
    fs::read_to_string(dir.join(name).join("agent.lock")).unwrap().trim().parse().unwrap()
}

fn is_alive(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// Some process that is started with etcd's argument, as a stand-in for etcd.
struct Stand(Child);

impl Stand {
    /// One that runs a program which is installed on the machine.
    fn new(config: &Path) -> Self {
        let program = config.parent().unwrap().join("versions/3.6.15/etcd");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::copy("/bin/sh", &program).unwrap();
        Self::of(Command::new(program), config)
    }

    /// One that runs another program, with the same argument.
    fn impostor(config: &Path) -> Self {
        Self::of(Command::new("sh"), config)
    }

    fn of(mut program: Command, config: &Path) -> Self {
        let argument = format!("--config-file={}", config.display());
        Self(program.args(["-c", "while :; do sleep 1; done", &argument]).spawn().unwrap())
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Debian's HAProxy with the configuration of this machine.
fn haproxy(root: &Path) -> Stand {
    let config = root.canonicalize().unwrap().join("haproxy/haproxy.cfg");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    let text = "defaults\n    mode tcp\n    timeout client 1s\nfrontend clients\n    bind 127.77.10.1:2399\n";
    fs::write(&config, text).unwrap();
    let mut program = Command::new(raftsman_core::render::haproxy::PROGRAM);
    Stand(program.args(["-W", "-db", "-f"]).arg(&config).spawn().expect("HAProxy is installed"))
}

/// What stands for Patroni and PostgreSQL with the files of this machine, and the directory of PostgreSQL's socket.
fn postgres(root: &Path) -> ([Stand; 2], PathBuf) {
    let root = root.canonicalize().unwrap();
    let program = root.join(patroni::PROGRAMS).join("15.18/bin/postgres");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::copy("/bin/sh", &program).unwrap();
    let mut server = Command::new(program);
    server.args(["-c", "while :; do sleep 1; done", "-D"]).arg(root.join(patroni::DATA));
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", "import time; time.sleep(600)"]).arg(root.join(patroni::DIR).join(patroni::FILE));
    let sockets = PathBuf::from(patroni::sockets(&root.display().to_string()));
    fs::create_dir(&sockets).unwrap();
    fs::write(sockets.join(".s.PGSQL.5432"), "").unwrap();
    ([python, server].map(|mut program| Stand(program.spawn().unwrap())), sockets)
}

#[tokio::test]
async fn a_machine_comes_and_goes() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("machines");
    let provider = provider(&dir, "f1");
    assert!(provider.inventory().await.unwrap().is_empty());
    let binary = home.path().join("etcd");
    fs::write(&binary, "binary").unwrap();
    let mut order = order("etcd-1", "127.77.10.1");
    order.artifacts.push(Artifact { version: "3.6.15".to_owned(), path: binary });

    let made = provider.create(&order).await.unwrap();
    assert_eq!((made.name.as_str(), made.power), ("etcd-1", Power::Running));
    assert_eq!(provider.inventory().await.unwrap(), std::slice::from_ref(&made));
    assert!(dir.join("etcd-1/artifacts/etcd-3.6.15").is_file());
    let first = pid(&dir, "etcd-1");
    assert_eq!(provider.create(&order).await.unwrap(), made, "again, after a lost reply");
    provider.start("etcd-1").await.unwrap();
    assert_eq!(pid(&dir, "etcd-1"), first, "the same agent");

    // An order with another token, because the first one was lost: the agent must know the new one.
    let token = "ff".repeat(16);
    order.boot.join_token = Some(token.clone());
    provider.create(&order).await.unwrap();
    assert!(fs::read_to_string(dir.join("etcd-1/agent/boot.json")).unwrap().contains(&token));
    assert_ne!(pid(&dir, "etcd-1"), first, "another agent");
    let first = pid(&dir, "etcd-1");

    let number = rustix::process::Pid::from_raw(i32::try_from(first).unwrap()).unwrap();
    rustix::process::kill_process(number, rustix::process::Signal::KILL).unwrap();
    while provider.inventory().await.unwrap()[0].power == Power::Running {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    provider.start("etcd-1").await.unwrap();
    assert_eq!(provider.inventory().await.unwrap()[0].power, Power::Running);

    let agent = pid(&dir, "etcd-1");
    let config = dir.join("etcd-1").canonicalize().unwrap().join("etcd/etcd.yaml");
    let mut ours = Stand::new(&config);
    let mut impostor = Stand::impostor(&config);
    let mut other = Stand::new(&dir.join("etcd-11/etcd/etcd.yaml"));
    let (mut balancer, mut others) = (haproxy(&dir.join("etcd-1")), haproxy(&dir.join("etcd-11")));
    let (mut node, sockets) = postgres(&dir.join("etcd-1"));
    let (mut another, kept) = postgres(&dir.join("etcd-11"));
    provider.delete("etcd-1", None).await.unwrap();
    assert!(!is_alive(agent));
    assert!(!node.iter_mut().any(Stand::is_alive) && !sockets.exists(), "Patroni and PostgreSQL go, with its socket");
    assert!(another.iter_mut().all(Stand::is_alive) && kept.exists(), "another machine's do not");
    fs::remove_dir_all(kept).unwrap();
    assert!(!ours.is_alive(), "etcd goes with its machine");
    assert!(!balancer.is_alive(), "and so does HAProxy");
    assert!(other.is_alive() && others.is_alive(), "another machine's does not");
    assert!(impostor.is_alive(), "nor a process that only has the argument");
    assert!(!dir.join("etcd-1").exists());
    assert!(provider.inventory().await.unwrap().is_empty());
    provider.delete("etcd-1", None).await.unwrap();
    let gone = provider.start("etcd-1").await;
    assert!(matches!(gone, Err(ProviderError::Local(LocalError::NoMachine(_)))), "{gone:?}");
}

#[tokio::test]
async fn a_machine_moves() {
    let dir = tempfile::tempdir().unwrap();
    let provider = provider(dir.path(), "f1");
    let missing = provider.readdress("etcd-6", "127.77.10.7".parse().unwrap()).await;
    assert!(matches!(missing, Err(ProviderError::Local(LocalError::NoMachine(_)))), "{missing:?}");
    let order = order("etcd-6", "127.77.10.6");
    provider.create(&order).await.unwrap();
    let first = pid(dir.path(), "etcd-6");
    let mut etcd = Stand::new(&dir.path().join("etcd-6").canonicalize().unwrap().join("etcd/etcd.yaml"));
    let serves = |address: &str| std::net::TcpStream::connect((address, 2378)).is_ok();

    let taken = std::net::TcpListener::bind("127.77.10.7:2378").unwrap();
    let refused = provider.readdress("etcd-6", "127.77.10.7".parse().unwrap()).await;
    assert!(matches!(refused, Err(ProviderError::Local(LocalError::NoAddress { .. }))), "{refused:?}");
    assert_eq!(pid(dir.path(), "etcd-6"), first, "the same agent");
    assert!(serves("127.77.10.6"));
    drop(taken);

    provider.readdress("etcd-6", "127.77.10.7".parse().unwrap()).await.unwrap();
    let second = pid(dir.path(), "etcd-6");
    assert!(!is_alive(first) && is_alive(second));
    assert!(serves("127.77.10.7") && !serves("127.77.10.6"));
    assert_eq!(provider.machine("etcd-6").await.unwrap().unwrap().address.to_string(), "127.77.10.7");
    assert!(fs::read_to_string(dir.path().join("etcd-6/agent/boot.json")).unwrap().contains("127.77.10.7"));
    provider.readdress("etcd-6", "127.77.10.7".parse().unwrap()).await.unwrap();
    assert_eq!(pid(dir.path(), "etcd-6"), second, "again, after a lost reply");

    // Broken off when only the tag was written: the next start finishes it.
    let number = rustix::process::Pid::from_raw(i32::try_from(second).unwrap()).unwrap();
    rustix::process::kill_process(number, rustix::process::Signal::KILL).unwrap();
    while provider.machine("etcd-6").await.unwrap().unwrap().power == Power::Running {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let tag = dir.path().join("etcd-6/machine.json");
    fs::write(&tag, fs::read_to_string(&tag).unwrap().replace("127.77.10.7", "127.77.10.8")).unwrap();
    provider.start("etcd-6").await.unwrap();
    assert!(serves("127.77.10.8") && !serves("127.77.10.7"));
    assert!(etcd.is_alive(), "etcd does not notice");
    provider.delete("etcd-6", None).await.unwrap();
    assert!(!etcd.is_alive());
}

#[tokio::test]
async fn a_half_made_machine_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    let provider = provider(dir.path(), "f1");
    let order = order("etcd-2", "127.77.10.2");
    fs::create_dir(dir.path().join("etcd-2")).unwrap();
    let tag = r#"{"fleet_id":"f1","name":"etcd-2","address":"127.77.10.2","agent_port":2378}"#;
    fs::write(dir.path().join("etcd-2/machine.json"), tag).unwrap();
    assert_eq!(provider.inventory().await.unwrap()[0].power, Power::Stopped);
    provider.create(&order).await.unwrap();
    let mut moved = order.clone();
    moved.address = "127.77.10.3".parse().unwrap();
    let refused = provider.create(&moved).await;
    assert!(matches!(refused, Err(ProviderError::Local(LocalError::OtherAddress { .. }))), "{refused:?}");
    provider.delete("etcd-2", None).await.unwrap();
}

#[tokio::test]
async fn what_is_not_ours_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("etcd-3");
    fs::create_dir(&foreign).unwrap();
    let tag = r#"{"fleet_id":"f2","name":"etcd-3","address":"127.77.10.4","agent_port":2378}"#;
    fs::write(foreign.join("machine.json"), tag).unwrap();
    let provider = provider(dir.path(), "f1");
    let is_foreign = |error: &ProviderError| matches!(error, ProviderError::Local(LocalError::ForeignMachine { .. }));
    assert!(provider.inventory().await.is_err_and(|error| is_foreign(&error)));
    assert!(provider.create(&order("etcd-3", "127.77.10.4")).await.is_err_and(|error| is_foreign(&error)));
    assert!(provider.delete("etcd-3", None).await.is_err_and(|error| is_foreign(&error)));
    assert!(foreign.exists());
    fs::remove_dir_all(&foreign).unwrap();

    fs::create_dir(dir.path().join("photos")).unwrap();
    fs::write(dir.path().join("photos/cat"), "meow").unwrap();
    assert!(provider.inventory().await.unwrap().is_empty());
    let refused = provider.delete("photos", None).await;
    assert!(matches!(refused, Err(ProviderError::Local(LocalError::NotOurs { .. }))), "{refused:?}");
    let outside = provider.delete("../photos", None).await;
    assert!(matches!(outside, Err(ProviderError::Local(LocalError::Name(_)))), "{outside:?}");
}

#[tokio::test]
async fn an_agent_that_cannot_serve_is_reported_with_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let provider = provider(dir.path(), "f1");
    let _listener = std::net::TcpListener::bind("127.77.10.5:2378").unwrap();
    let failed = provider.create(&order("etcd-5", "127.77.10.5")).await;
    match failed {
        Err(ProviderError::Local(LocalError::Ended { log, .. })) => assert!(log.contains("cannot listen"), "{log}"),
        other => panic!("{other:?}"),
    }
    provider.delete("etcd-5", None).await.unwrap();
}
