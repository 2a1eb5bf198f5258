//! a real HAProxy under an agent → started, asked, reloaded, adopted and stopped, with its connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use raftsman_agent::supervisor::process;
use raftsman_agent::supervisor::program::Program as Supervised;
use raftsman_api::hex;
use raftsman_api::roles::Role;
use raftsman_api::v1::{self, Program, ServerAdmin, ServerState, ServiceState};
use raftsman_core::render::haproxy::{self, Backend, Haproxy, Servers};
use raftsman_core::spec::Name;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::harness::{Client, Fleet, Machine, kill, own_address, report, stamp};
use crate::upgrade::{another, runs, upgrade};

const CLIENTS: u16 = 2379;
const HEALTH: u16 = 2383;

/// What stands for a member: healthy, and sends back what it gets.
struct Member {
    name: &'static str,
    address: Ipv4Addr,
}

impl Member {
    async fn start(name: &'static str) -> Self {
        let address = own_address();
        let clients = TcpListener::bind((address, CLIENTS)).await.unwrap();
        let health = TcpListener::bind((address, HEALTH)).await.unwrap();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = clients.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = connection.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = health.accept().await {
                let mut request = [0; 1024];
                let _ = connection.read(&mut request).await;
                let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            }
        });
        Self { name, address }
    }
}

fn config(machine: &Machine, members: &[&Member]) -> String {
    let backends: Vec<Backend> = members
        .iter()
        .map(|member| Backend {
            name: Name::parse(member.name).unwrap(),
            client: SocketAddr::from((member.address, CLIENTS)),
            health: SocketAddr::from((member.address, HEALTH)),
        })
        .collect();
    haproxy::config(&Haproxy {
        address: Some(machine.address.ip()),
        // An address of a network for documentation: no machine has it.
        virtual_address: Some([203, 0, 113, 7].into()),
        port: CLIENTS,
        servers: Servers::Members(&backends),
        max_connections: 100,
        connect_ms: 1000,
        idle_ms: 60_000,
    })
}

async fn configure(client: &mut Client, program: Program, config: &str) -> Result<(), Status> {
    let digest = hex::sha256(config.as_bytes());
    let request = v1::ConfigureProgramRequest { program: program.into(), config: config.to_owned(), digest };
    client.configure_program(stamp(request)).await.map(drop)
}

fn starting(program: Program) -> v1::StartProgramRequest {
    v1::StartProgramRequest { program: program.into(), ..Default::default() }
}

async fn start(client: &mut Client, program: Program) -> Result<u32, Status> {
    client.start_program(stamp(starting(program))).await.map(|reply| reply.into_inner().pid)
}

async fn reload(client: &mut Client, program: Program) -> Result<(), Status> {
    client.reload_program(stamp(v1::ReloadProgramRequest { program: program.into() })).await.map(drop)
}

async fn stop(client: &mut Client, program: Program) {
    let request = v1::StopProgramRequest { program: program.into(), grace_seconds: 5, resume_after_seconds: 0 };
    client.stop_program(stamp(request)).await.unwrap();
}

async fn set(client: &mut Client, member: &str, admin: ServerAdmin) -> Result<(), Status> {
    let request = v1::SetServerRequest { member: member.to_owned(), admin: admin.into() };
    client.set_server(stamp(request)).await.map(drop)
}

async fn of(client: &mut Client, program: Program) -> v1::ProgramReport {
    let programs = report(client).await.programs;
    programs.into_iter().find(|found| found.program() == program).unwrap()
}

fn pid(program: &v1::ProgramReport) -> u32 {
    program.service.as_ref().unwrap().pid
}

/// Reports until HAProxy says this of the members.
async fn until(client: &mut Client, wanted: &[(&str, ServerState)]) {
    let begun = Instant::now();
    loop {
        let balancer = report(client).await.balancer.unwrap_or_default();
        let found: Vec<(&str, ServerState)> =
            balancer.servers.iter().map(|server| (server.name.as_str(), server.state())).collect();
        if found == wanted && balancer.problem.is_empty() {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "waited in vain for {wanted:?}; last seen: {balancer:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// A client's connection through the balancer.
struct Connection(TcpStream);

impl Connection {
    async fn open(machine: &Machine) -> Self {
        Self(TcpStream::connect((machine.address.ip(), CLIENTS)).await.unwrap())
    }

    async fn is_alive(&mut self) -> bool {
        let mut back = [0; 5];
        self.0.write_all(b"hello").await.is_ok() && self.0.read_exact(&mut back).await.is_ok() && &back == b"hello"
    }
}

fn processes(machine: &Machine) -> usize {
    process::all_of(&machine.root(), Supervised::Haproxy).len()
}

const UP: ServerState = ServerState::Up;

#[tokio::test]
async fn members_are_reported_and_drained_but_not_the_last() {
    let fleet = Fleet::new("f12");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    let (one, two) = (Member::start("main-1").await, Member::start("main-2").await);
    let refused = set(&mut client, "main-1", ServerAdmin::Drain).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, "HAProxy is not running: start it"));
    let refused = start(&mut client, Program::Haproxy).await.unwrap_err();
    assert_eq!(refused.message(), "HAProxy is not configured: write its configuration first");
    assert!(report(&mut client).await.balancer.is_none());

    let text = config(&machine, &[&one, &two]);
    configure(&mut client, Program::Haproxy, &text).await.unwrap();
    let pid_of = start(&mut client, Program::Haproxy).await.unwrap();
    assert_eq!(start(&mut client, Program::Haproxy).await.unwrap(), pid_of, "it runs already");
    until(&mut client, &[("main-1", UP), ("main-2", UP)]).await;
    let runs = of(&mut client, Program::Haproxy).await;
    assert!(runs.listening && pid(&runs) == pid_of, "{runs:?}");
    assert_eq!(
        (&runs.config_digest, &runs.running_config_digest),
        (&hex::sha256(text.as_bytes()), &runs.config_digest)
    );
    assert_eq!(runs.config, text);
    let [installed] = &*runs.installed else { panic!("{runs:?}") };
    assert!(installed.version.starts_with(|first: char| first.is_ascii_digit()), "{installed:?}");
    assert_eq!((&installed.version, &installed.version), (&runs.current_version, &runs.running_version));
    assert!(!report(&mut client).await.balancer.unwrap().has_virtual_address);

    let mut connection = Connection::open(&machine).await;
    assert!(connection.is_alive().await);
    set(&mut client, "main-1", ServerAdmin::Drain).await.unwrap();
    until(&mut client, &[("main-1", ServerState::Draining), ("main-2", UP)]).await;
    set(&mut client, "main-1", ServerAdmin::Drain).await.unwrap();
    assert!(connection.is_alive().await, "a drain ends no connection");
    let refused = set(&mut client, "main-2", ServerAdmin::Drain).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(
        refused.message(),
        "`main-2` is not drained: no other server of HAProxy is up, and new connections would fail"
    );
    set(&mut client, "main-1", ServerAdmin::Ready).await.unwrap();
    until(&mut client, &[("main-1", UP), ("main-2", UP)]).await;

    let refused = set(&mut client, "main-3", ServerAdmin::Ready).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert!(refused.message().starts_with("HAProxy has no server `main-3`"), "{refused}");
    for (member, admin) in [
        ("main-1 state maint; shutdown frontend clients", ServerAdmin::Ready),
        ("main-1\nshow info", ServerAdmin::Ready),
        ("", ServerAdmin::Ready),
        ("main-1", ServerAdmin::Unspecified),
    ] {
        let refused = set(&mut client, member, admin).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    stop(&mut client, Program::Haproxy).await;
    assert_eq!(processes(&machine), 0);
    assert!(report(&mut client).await.balancer.is_none());
}

#[tokio::test]
async fn a_reload_keeps_connections_and_a_broken_file_changes_nothing() {
    let fleet = Fleet::new("f12");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    let (one, two) = (Member::start("main-1").await, Member::start("main-2").await);
    let refused = reload(&mut client, Program::Haproxy).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, "HAProxy is not running: start it"));
    configure(&mut client, Program::Haproxy, &config(&machine, &[&one, &two])).await.unwrap();
    let master = start(&mut client, Program::Haproxy).await.unwrap();
    until(&mut client, &[("main-1", UP), ("main-2", UP)]).await;
    set(&mut client, "main-2", ServerAdmin::Drain).await.unwrap();
    let mut connection = Connection::open(&machine).await;
    assert!(connection.is_alive().await);

    let three = Member::start("main-3").await;
    let text = config(&machine, &[&one, &two, &three]);
    configure(&mut client, Program::Haproxy, &text).await.unwrap();
    let before = of(&mut client, Program::Haproxy).await;
    assert_ne!(before.config_digest, before.running_config_digest);
    reload(&mut client, Program::Haproxy).await.unwrap();
    let after = of(&mut client, Program::Haproxy).await;
    assert_eq!(
        (&after.config_digest, &after.running_config_digest),
        (&hex::sha256(text.as_bytes()), &after.config_digest)
    );
    assert_eq!((pid(&after), after.service.as_ref().unwrap().restarts), (master, 0));
    until(&mut client, &[("main-1", UP), ("main-2", ServerState::Draining), ("main-3", UP)]).await;
    assert!(connection.is_alive().await, "the worker before the reload still has it");
    assert!(Connection::open(&machine).await.is_alive().await);

    // HAProxy's own language runs programs: what raftsman does not write is not even stored.
    let foreign = format!("{text}program x\n    command /bin/true\n");
    let refused = configure(&mut client, Program::Haproxy, &foreign).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let line = text.lines().count() + 1;
    assert!(refused.message().starts_with(&format!("line {line} of HAProxy's configuration is none")), "{refused}");

    let broken = format!("{text}    server main-1 127.0.0.1:1\n");
    configure(&mut client, Program::Haproxy, &broken).await.unwrap();
    let refused = reload(&mut client, Program::Haproxy).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused.message().starts_with("HAProxy refuses its configuration: config : parsing [haproxy.cfg:"),
        "{refused}"
    );
    assert!(refused.message().contains("another server named 'main-1' was already defined"), "{refused}");
    let refused = of(&mut client, Program::Haproxy).await;
    assert_eq!((pid(&refused), refused.running_config_digest), (master, hex::sha256(text.as_bytes())));
    assert!(connection.is_alive().await && Connection::open(&machine).await.is_alive().await);

    // Nor is it started with it, and all processes end, also the one with the old connection.
    stop(&mut client, Program::Haproxy).await;
    assert_eq!(processes(&machine), 0);
    assert!(!connection.is_alive().await);
    let refused = start(&mut client, Program::Haproxy).await.unwrap_err();
    assert!(refused.message().contains("another server named 'main-1' was already defined"), "{refused}");
    assert_eq!(of(&mut client, Program::Haproxy).await.service.unwrap().state(), ServiceState::Stopped);
}

#[tokio::test]
async fn haproxy_outlives_its_agent_and_is_started_again_when_it_ends() {
    let fleet = Fleet::new("f12");
    let (mut machine, mut client) = Machine::claimed(&fleet).await;
    let (one, two) = (Member::start("main-1").await, Member::start("main-2").await);
    configure(&mut client, Program::Haproxy, &config(&machine, &[&one, &two])).await.unwrap();
    let master = start(&mut client, Program::Haproxy).await.unwrap();
    until(&mut client, &[("main-1", UP), ("main-2", UP)]).await;
    let mut connection = Connection::open(&machine).await;
    // After a reload there are three processes with the same arguments.
    assert!(connection.is_alive().await);
    reload(&mut client, Program::Haproxy).await.unwrap();
    // The master runs its program anew meanwhile, and has no arguments for a moment.
    let begun = Instant::now();
    while processes(&machine) < 3 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} processes", processes(&machine));
        sleep(Duration::from_millis(50)).await;
    }

    machine.kill_agent();
    assert!(connection.is_alive().await);
    machine.start_agent().await;
    let mut client = machine.client(&fleet, Role::Operator).await;
    assert_eq!(pid(&of(&mut client, Program::Haproxy).await), master, "the master, not a worker");
    assert!(connection.is_alive().await);
    set(&mut client, "main-1", ServerAdmin::Drain).await.unwrap();
    reload(&mut client, Program::Haproxy).await.unwrap();
    until(&mut client, &[("main-1", ServerState::Draining), ("main-2", UP)]).await;

    kill(master);
    let begun = Instant::now();
    loop {
        let runs = of(&mut client, Program::Haproxy).await;
        let service = runs.service.as_ref().unwrap();
        if service.state() == ServiceState::Running && service.pid != master && runs.listening {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{runs:?}");
        sleep(Duration::from_millis(50)).await;
    }
    until(&mut client, &[("main-1", UP), ("main-2", UP)]).await;
    // A worker that hangs does not keep a stop from ending all of it.
    let master = pid(&of(&mut client, Program::Haproxy).await);
    for worker in process::all_of(&machine.root(), Supervised::Haproxy) {
        if worker.pid() != master {
            worker.signal(rustix::process::Signal::STOP).unwrap();
        }
    }
    let problem = report(&mut client).await.balancer.unwrap().problem;
    assert_eq!(problem, "HAProxy did not answer on its admin socket within 1 s");
    let request =
        v1::StopProgramRequest { program: Program::Haproxy.into(), grace_seconds: 1, resume_after_seconds: 0 };
    client.stop_program(stamp(request)).await.unwrap();
    assert_eq!(processes(&machine), 0);
    machine.kill_agent();
    machine.start_agent().await;
    let mut client = machine.client(&fleet, Role::Operator).await;
    assert_eq!(of(&mut client, Program::Haproxy).await.service.unwrap().state(), ServiceState::Stopped);
}

#[tokio::test]
async fn an_upgrade_of_the_agent_does_not_touch_haproxy() {
    let fleet = Fleet::new("f12");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    let (one, two) = (Member::start("main-1").await, Member::start("main-2").await);
    configure(&mut client, Program::Haproxy, &config(&machine, &[&one, &two])).await.unwrap();
    let master = start(&mut client, Program::Haproxy).await.unwrap();
    until(&mut client, &[("main-1", UP), ("main-2", UP)]).await;
    let mut connection = Connection::open(&machine).await;
    assert!(connection.is_alive().await);
    let program = another("second");
    upgrade(&fleet, &machine, &program).await.unwrap();
    let report = runs(&fleet, &machine, &program).await;
    assert_eq!(report.programs.iter().map(pid).collect::<Vec<_>>(), [0, master, 0, 0]);
    assert!(connection.is_alive().await);
    // The agent after it reloads and stops it.
    let mut client = machine.client(&fleet, Role::Operator).await;
    reload(&mut client, Program::Haproxy).await.unwrap();
    assert!(connection.is_alive().await);
    stop(&mut client, Program::Haproxy).await;
    assert_eq!(processes(&machine), 0);
}

#[tokio::test]
async fn what_a_program_of_a_package_cannot_do_is_refused() {
    let fleet = Fleet::new("f12");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    for (program, name, package) in
        [(Program::Haproxy, "HAProxy", "haproxy"), (Program::Keepalived, "keepalived", "keepalived")]
    {
        let head = v1::InstallProgramHead { program: program.into(), ..Default::default() };
        let head = v1::InstallProgramRequest { part: Some(v1::install_program_request::Part::Head(head)) };
        let refused = client.install_program(stamp(tokio_stream::iter([head]))).await.unwrap_err();
        let expected = format!("{name} is not installed by a call, but from Debian's package: `apt install {package}`");
        assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, expected.as_str()));
        let versioned = v1::StartProgramRequest { version: "2.6.12".to_owned(), ..starting(program) };
        let refused = client.start_program(stamp(versioned)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    // keepalived would change the addresses of this computer.
    let text =
        "vrrp_instance front {\n    interface {interface}\n    virtual_ipaddress {\n        10.0.0.100/32\n    }\n}\n";
    configure(&mut client, Program::Keepalived, text).await.unwrap();
    let refused = start(&mut client, Program::Keepalived).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(refused.message(), "keepalived needs a machine of its own, with systemd: this agent runs without it");
    let keepalived = of(&mut client, Program::Keepalived).await;
    assert_eq!(keepalived.config_digest, hex::sha256(text.as_bytes()));
    let interface = raftsman_core::render::keepalived::interface(&keepalived.config).unwrap();
    assert_ne!(interface, "{interface}");
    assert_eq!(keepalived.config, text.replace("{interface}", interface));
    assert_eq!(keepalived.service.unwrap().state(), ServiceState::Stopped, "nothing is tried again");
    let refused = reload(&mut client, Program::Etcd).await.unwrap_err();
    assert_eq!(refused.message(), "etcd is not running: start it");

    let mut reader = machine.client(&fleet, Role::Reader).await;
    for refused in [
        reload(&mut reader, Program::Haproxy).await.unwrap_err(),
        set(&mut reader, "main-1", ServerAdmin::Ready).await.unwrap_err(),
    ] {
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    let request = v1::SetServerRequest { member: "main-1".to_owned(), admin: ServerAdmin::Drain.into() };
    let refused = [
        client.set_server(request).await.unwrap_err(),
        client.reload_program(v1::ReloadProgramRequest { program: Program::Haproxy.into() }).await.unwrap_err(),
    ];
    for refused in refused {
        assert!(refused.message().contains("generation"), "{refused}");
    }
}
