//! calls that name a program → the same as etcd's own calls, and refused where the program is not known.

use raftsman_api::hex;
use raftsman_api::roles::Role;
use raftsman_api::v1::{self, Program, ServiceState, install_program_request::Part};
use tonic::{Code, Status};

use crate::harness::{Client, Fleet, Machine, VERSION, etcd_digest, kill, put_artifact, report, running, stamp, until};

/// A program that no agent has.
const UNKNOWN: i32 = 4711;

fn head(program: i32, binary: &str, version: &str, sha256: &str) -> v1::InstallProgramRequest {
    let (version, sha256, binary) = (version.to_owned(), sha256.to_owned(), binary.to_owned());
    let head = v1::InstallProgramHead { program, version, sha256, binary };
    v1::InstallProgramRequest { part: Some(Part::Head(head)) }
}

fn chunk(bytes: &[u8]) -> v1::InstallProgramRequest {
    v1::InstallProgramRequest { part: Some(Part::Chunk(bytes.to_vec())) }
}

async fn install(client: &mut Client, parts: Vec<v1::InstallProgramRequest>) -> Result<bool, Status> {
    let reply = client.install_program(stamp(tokio_stream::iter(parts))).await?;
    Ok(reply.into_inner().bytes_needed)
}

async fn configure(client: &mut Client, program: i32, config: &str) -> Result<(), Status> {
    let digest = hex::sha256(config.as_bytes());
    let request = v1::ConfigureProgramRequest { program, config: config.to_owned(), digest };
    client.configure_program(stamp(request)).await.map(drop)
}

fn start(program: i32, expected: Option<v1::EtcdExpected>) -> v1::StartProgramRequest {
    use v1::start_program_request::Expected;
    v1::StartProgramRequest { program, version: VERSION.to_owned(), expected: expected.map(Expected::Etcd) }
}

fn restart(program: i32, expected: Option<v1::EtcdExpected>) -> v1::RestartProgramRequest {
    use v1::restart_program_request::Expected;
    let expected = expected.map(Expected::Etcd);
    v1::RestartProgramRequest { program, version: VERSION.to_owned(), expected, grace_seconds: 10 }
}

fn stop(program: i32) -> v1::StopProgramRequest {
    v1::StopProgramRequest { program, grace_seconds: 10, resume_after_seconds: 0 }
}

fn empty(bootstrap: &str) -> v1::EtcdExpected {
    let bootstrap = bootstrap.to_owned();
    v1::EtcdExpected { data: v1::DataState::Empty.into(), bootstrap, ..v1::EtcdExpected::default() }
}

fn present(cluster_id: u64) -> v1::EtcdExpected {
    v1::EtcdExpected { data: v1::DataState::Present.into(), cluster_id, ..v1::EtcdExpected::default() }
}

/// The first program of the report.
async fn of_etcd(client: &mut Client) -> v1::ProgramReport {
    let mut programs = report(client).await.programs;
    let named: Vec<Program> = programs.iter().map(v1::ProgramReport::program).collect();
    assert_eq!(named, [Program::Etcd, Program::Haproxy, Program::Keepalived, Program::Patroni]);
    let program = programs.remove(0);
    assert_eq!(program.program(), Program::Etcd);
    program
}

#[tokio::test]
async fn a_program_is_installed_configured_started_restarted_and_stopped_by_its_name() {
    let fleet = Fleet::new("f9");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    let etcd = Program::Etcd.into();
    put_artifact(&machine.root(), VERSION);
    // Nothing that is not pinned.
    let digest = etcd_digest(VERSION);
    let refused = install(&mut client, vec![head(etcd, "", VERSION, &digest)]).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    machine.pin(&fleet, "etcd", VERSION, &digest).await;
    assert!(!install(&mut client, vec![head(etcd, "", VERSION, &digest)]).await.unwrap());
    for purpose in [v1::Purpose::EtcdPeer, v1::Purpose::EtcdServer] {
        machine.certify(&fleet, &mut client, purpose).await;
    }
    configure(&mut client, etcd, &machine.plain_config()).await.unwrap();
    let ready = of_etcd(&mut client).await;
    assert_eq!(ready.installed, [v1::InstalledVersion { version: VERSION.to_owned(), sha256: digest }]);
    assert_eq!(ready.config_digest, hex::sha256(machine.plain_config().as_bytes()));
    assert!(!ready.listening && ready.service.unwrap().state() == ServiceState::Stopped);

    let request = start(etcd, Some(empty(&machine.bootstrap())));
    let first = client.start_program(stamp(request)).await.unwrap().into_inner().pid;
    let cluster = running(&mut client).await.data.unwrap().cluster_id;
    machine.serves().await;
    let runs = of_etcd(&mut client).await;
    assert!(runs.listening, "{runs:?}");
    assert_eq!((runs.service.unwrap().pid, runs.running_version.as_str()), (first, VERSION));
    assert_eq!(machine.etcd_pid(), Some(first));

    let request = v1::ProgramLogsRequest { program: etcd, lines: 5 };
    let mut reader = machine.client(&fleet, Role::Reader).await;
    let lines = reader.program_logs(request).await.unwrap().into_inner().lines;
    assert!(lines.len() == 5 && lines.iter().all(|line| line.contains("\"level\"")), "{lines:?}");

    let request = restart(etcd, Some(present(cluster)));
    let second = client.restart_program(stamp(request)).await.unwrap().into_inner().pid;
    assert_ne!(first, second);
    // It is supervised as one that StartEtcd started.
    running(&mut client).await;
    kill(second);
    until(&mut client, "a new process", |etcd| {
        let service = etcd.service.as_ref().unwrap();
        service.state() == ServiceState::Running && service.pid != second
    })
    .await;
    client.stop_program(stamp(stop(etcd))).await.unwrap();
    let stopped = of_etcd(&mut client).await;
    assert!(!stopped.listening && stopped.service.unwrap().last_exit.starts_with("stopped as requested"));
    assert_eq!(machine.etcd_pid(), None);
}

#[tokio::test]
async fn bytes_of_a_binary_are_asked_for_and_checked() {
    let fleet = Fleet::new("f9");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    let (etcd, digest) = (Program::Etcd.into(), hex::sha256(b"new tool"));
    machine.pin(&fleet, "etcdutl", "3.6.99", &digest).await;
    let head = head(etcd, "etcdutl", "3.6.99", &digest);
    assert!(install(&mut client, vec![head.clone()]).await.unwrap());
    let refused = install(&mut client, vec![head.clone(), chunk(b"old tool")]).await.unwrap_err();
    assert!(refused.message().contains("nothing was installed"), "{refused}");
    let refused = install(&mut client, vec![head.clone(), head.clone()]).await.unwrap_err();
    assert!(refused.message().contains("only chunks may follow"), "{refused}");
    assert!(!install(&mut client, vec![head, chunk(b"new "), chunk(b"tool")]).await.unwrap());
    assert!(machine.etcd_files().versions().join("3.6.99/etcdutl").is_file());
}

#[tokio::test]
async fn a_program_that_the_agent_does_not_know_is_refused_and_etcd_is_not_touched() {
    let fleet = Fleet::new("f9");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    let before = of_etcd(&mut client).await;
    let pid = crate::harness::start_empty(&mut client, VERSION).await.unwrap();
    let cluster = running(&mut client).await.data.unwrap().cluster_id;
    let digest = etcd_digest(VERSION);
    for program in [UNKNOWN, Program::Unspecified.into()] {
        let refused = [
            install(&mut client, vec![head(program, "", VERSION, &digest)]).await.unwrap_err(),
            configure(&mut client, program, "name: other\n").await.unwrap_err(),
            client.start_program(stamp(start(program, Some(empty(""))))).await.unwrap_err(),
            client.restart_program(stamp(restart(program, Some(present(cluster))))).await.unwrap_err(),
            client.stop_program(stamp(stop(program))).await.unwrap_err(),
            client.program_logs(v1::ProgramLogsRequest { program, lines: 5 }).await.unwrap_err(),
        ];
        for refused in refused {
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
            assert!(refused.message().contains("program"), "{refused}");
        }
    }
    // Nor is a start or restart of etcd carried out that does not say what is expected.
    let alone = v1::EtcdExpected { force_new_cluster: true, ..present(cluster) };
    for expected in [None, Some(present(0)), Some(empty("")), Some(alone)] {
        let refused = client.restart_program(stamp(restart(Program::Etcd.into(), expected))).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    let refused = client.start_program(stamp(start(Program::Etcd.into(), None))).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert_eq!(machine.etcd_pid(), Some(pid), "etcd runs on");
    assert_eq!(of_etcd(&mut client).await.config_digest, before.config_digest);
}

#[tokio::test]
async fn a_reader_changes_nothing_by_a_programs_name() {
    let fleet = Fleet::new("f9");
    let (machine, _) = Machine::claimed(&fleet).await;
    let mut reader = machine.client(&fleet, Role::Reader).await;
    let etcd = Program::Etcd.into();
    let refused = [
        install(&mut reader, vec![head(etcd, "", VERSION, &hex::sha256(b""))]).await.unwrap_err(),
        configure(&mut reader, etcd, "").await.unwrap_err(),
        reader.start_program(stamp(start(etcd, Some(empty(""))))).await.unwrap_err(),
        reader.restart_program(stamp(restart(etcd, Some(present(1))))).await.unwrap_err(),
        reader.stop_program(stamp(stop(etcd))).await.unwrap_err(),
    ];
    for refused in refused {
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    // Nor an operator without a generation.
    let mut operator = machine.client(&fleet, Role::Operator).await;
    let refused = operator.stop_program(stop(etcd)).await.unwrap_err();
    assert!(refused.message().contains("generation"), "{refused}");
}
