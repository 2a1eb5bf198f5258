//! etcd or its agent killed → etcd runs on, or runs again.

use std::fs;
use std::time::{Duration, Instant};

use raftsman_agent::supervisor::program::Program;
use raftsman_api::roles::Role;
use raftsman_api::v1::{self, ServiceState};
use tokio::time::sleep;

use crate::harness::{Fleet, Machine, VERSION, configure, kill, report, running, signal, stamp, start_empty, until};

fn state(etcd: &v1::EtcdReport) -> ServiceState {
    etcd.service.as_ref().unwrap().state()
}

#[tokio::test]
async fn a_killed_etcd_is_started_again() {
    let fleet = Fleet::new("f5");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    let first = start_empty(&mut client, VERSION).await.unwrap();
    let ids = running(&mut client).await.data.unwrap();
    kill(first);
    let after = until(&mut client, "a new process", |etcd| {
        state(etcd) == ServiceState::Running && etcd.service.as_ref().unwrap().pid != first
    })
    .await;
    let service = after.service.unwrap();
    assert_eq!((service.restarts, service.last_exit.as_str()), (1, "signal 9"));
    assert_eq!(after.data.unwrap().member_id, ids.member_id);

    client.stop_etcd(stamp(v1::StopEtcdRequest { grace_seconds: 5, ..Default::default() })).await.unwrap();
    let stopped = report(&mut client).await.etcd.unwrap();
    assert_eq!(state(&stopped), ServiceState::Stopped);
    assert!(stopped.service.unwrap().last_exit.starts_with("stopped as requested"));
    assert_eq!(machine.etcd_pid(), None);
    client.stop_etcd(stamp(v1::StopEtcdRequest { grace_seconds: 5, ..Default::default() })).await.unwrap();
    sleep(Duration::from_millis(300)).await;
    assert_eq!(machine.etcd_pid(), None, "stopped is stopped");
}

#[tokio::test]
async fn an_etcd_that_hangs_is_stopped_all_the_same() {
    let fleet = Fleet::new("f5");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    let pid = start_empty(&mut client, VERSION).await.unwrap();
    running(&mut client).await;
    // Its first entries are on the disk once it leads; before that there may be nothing to read.
    sleep(Duration::from_secs(2)).await;
    signal(pid, rustix::process::Signal::STOP);
    client.stop_etcd(stamp(v1::StopEtcdRequest { grace_seconds: 1, ..Default::default() })).await.unwrap();
    let stopped = report(&mut client).await.etcd.unwrap();
    assert_eq!(state(&stopped), ServiceState::Stopped);
    assert_eq!(stopped.service.unwrap().last_exit, "stopped as requested (signal 9)");
    assert_eq!(machine.etcd_pid(), None);
    assert!(stopped.data.unwrap().last_index > 0, "its log can be read");
}

#[tokio::test]
async fn a_hopeless_etcd_is_tried_less_and_less() {
    let fleet = Fleet::new("f5");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    configure(&mut client, &machine.config().replace("initial-cluster: etcd-1=", "initial-cluster: etcd-9="))
        .await
        .unwrap();
    start_empty(&mut client, VERSION).await.unwrap();
    let begun = Instant::now();
    let failing = until(&mut client, "three restarts", |etcd| etcd.service.as_ref().unwrap().restarts >= 3).await;
    assert!(begun.elapsed() > Duration::from_millis(700), "100 + 200 + 400 ms");
    let last = failing.service.unwrap().last_exit;
    assert!(
        last.starts_with("exit code 1: ") && last.contains("couldn't find local name"),
        "etcd's last words: {last}"
    );
    // Stopping works in the pause, too.
    client.stop_etcd(stamp(v1::StopEtcdRequest { grace_seconds: 1, ..Default::default() })).await.unwrap();
    assert_eq!(state(&report(&mut client).await.etcd.unwrap()), ServiceState::Stopped);
}

#[tokio::test]
async fn etcd_outlives_its_agent_and_is_adopted() {
    let fleet = Fleet::new("f5");
    let (mut machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    let pid = start_empty(&mut client, VERSION).await.unwrap();
    let before = running(&mut client).await;
    machine.kill_agent();
    assert_eq!(machine.etcd_pid(), Some(pid), "etcd does not notice");
    machine.start_agent().await;
    let mut client = machine.client(&fleet, Role::Operator).await;
    let adopted = report(&mut client).await.etcd.unwrap();
    assert_eq!(adopted.service.as_ref().unwrap().pid, pid);
    assert_eq!(adopted.running_config_digest, before.running_config_digest);
    assert_eq!(adopted.running_version, VERSION);
    // It is watched like one's own.
    kill(pid);
    until(&mut client, "a new process", |etcd| {
        state(etcd) == ServiceState::Running && etcd.service.as_ref().unwrap().pid != pid
    })
    .await;
    // Both die, as in a power cut: the new agent starts etcd by itself.
    running(&mut client).await;
    machine.kill_agent();
    kill(machine.etcd_pid().unwrap());
    while machine.etcd_pid().is_some() {
        sleep(Duration::from_millis(2)).await;
    }
    machine.start_agent().await;
    let mut client = machine.client(&fleet, Role::Operator).await;
    running(&mut client).await;
    client.stop_etcd(stamp(v1::StopEtcdRequest { grace_seconds: 5, ..Default::default() })).await.unwrap();
    // Stopped stays stopped over a restart.
    machine.kill_agent();
    machine.start_agent().await;
    let mut client = machine.client(&fleet, Role::Operator).await;
    assert_eq!(state(&report(&mut client).await.etcd.unwrap()), ServiceState::Stopped);
    assert_eq!(machine.etcd_pid(), None);
}

/// A process with exactly etcd's argument that is not etcd: of another program, or of another user.
struct Impostor(std::process::Child);

impl Impostor {
    fn new(mut command: std::process::Command, argument: &str) -> Self {
        // A shell that waits ignores what stands behind its script.
        command.args(["-c", "while :; do sleep 1; done", argument]);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_process_that_only_has_the_argument_is_not_taken_for_etcd() {
    let fleet = Fleet::new("f5");
    let (mut machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    let argument = Program::Etcd.known_by(&machine.root());
    // Of the agent's own user, with another program.
    let own = Impostor::new(std::process::Command::new("sh"), &argument);
    let mut impostors = vec![own];
    if rustix::process::geteuid().is_root() {
        // Of another user: even with a program that is called like etcd.
        let elsewhere = tempfile::tempdir().unwrap();
        let program = elsewhere.keep().join("etcd");
        fs::copy("/bin/sh", &program).unwrap();
        fs::set_permissions(program.parent().unwrap(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut other = std::process::Command::new("setpriv");
        other.args(["--reuid=65534", "--clear-groups"]).arg(&program);
        impostors.push(Impostor::new(other, &argument));
    }
    let pids: Vec<u32> = impostors.iter().map(|impostor| impostor.0.id()).collect();
    sleep(Duration::from_millis(200)).await;
    let pid = start_empty(&mut client, VERSION).await.unwrap();
    assert!(!pids.contains(&pid), "etcd itself is started");
    running(&mut client).await;
    // Nor after the agent: it adopts etcd, and stops etcd.
    machine.kill_agent();
    machine.start_agent().await;
    let mut client = machine.client(&fleet, Role::Operator).await;
    assert_eq!(report(&mut client).await.etcd.unwrap().service.unwrap().pid, pid);
    client.stop_etcd(stamp(v1::StopEtcdRequest { grace_seconds: 5, ..Default::default() })).await.unwrap();
    assert_eq!(machine.etcd_pid(), None);
    machine.kill_agent();
    machine.start_agent().await;
    let mut client = machine.client(&fleet, Role::Operator).await;
    assert_eq!(state(&report(&mut client).await.etcd.unwrap()), ServiceState::Stopped, "none of them is adopted");
    for impostor in &mut impostors {
        assert!(impostor.0.try_wait().unwrap().is_none(), "none of them is ended");
    }
}

#[tokio::test]
async fn a_member_without_its_data_is_not_started_again() {
    let fleet = Fleet::new("f5");
    let (mut machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    let pid = start_empty(&mut client, VERSION).await.unwrap();
    running(&mut client).await;
    // The agent records the member id of the data within a moment.
    let begun = Instant::now();
    while !fs::read_to_string(machine.etcd_files().record()).unwrap().contains("\"member\"") {
        assert!(begun.elapsed() < Duration::from_secs(30), "the member id is not recorded");
        sleep(Duration::from_millis(20)).await;
    }
    machine.kill_agent();
    kill(pid);
    while machine.etcd_pid().is_some() {
        sleep(Duration::from_millis(2)).await;
    }
    fs::remove_dir_all(machine.root().data()).unwrap();
    machine.start_agent().await;
    let mut client = machine.client(&fleet, Role::Operator).await;
    let etcd = report(&mut client).await.etcd.unwrap();
    assert_eq!(state(&etcd), ServiceState::Stopped);
    assert_eq!(etcd.service.unwrap().last_exit, "not started again: its data is gone");
    assert!(etcd.had_data);
    assert_eq!(machine.etcd_pid(), None);
}

#[tokio::test]
async fn only_one_agent_runs_in_a_root() {
    let fleet = Fleet::new("f5");
    let (machine, _) = Machine::claimed(&fleet).await;
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_raftsman-agent"))
        .arg("--root")
        .arg(machine.path())
        .output()
        .unwrap();
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("another agent runs"));
}

#[tokio::test]
async fn the_agent_starts_quickly() {
    let fleet = Fleet::new("f5");
    let (mut machine, _) = Machine::claimed(&fleet).await;
    let mut times = Vec::new();
    for _ in 0..9 {
        machine.kill_agent();
        times.push(machine.start_agent().await);
    }
    times.sort();
    // Generous, and the fastest, because tests run side by side on small computers; the usual time is a few milliseconds.
    assert!(times[0] < Duration::from_millis(500), "{times:?}");
}

fn restart_on(version: &str, cluster: u64, grace_seconds: u32) -> v1::RestartEtcdRequest {
    v1::RestartEtcdRequest { version: version.to_owned(), expected_cluster_id: cluster, grace_seconds }
}

#[tokio::test]
async fn a_restart_is_finished_when_the_caller_has_gone() {
    let fleet = Fleet::new("f5");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    let first = start_empty(&mut client, VERSION).await.unwrap();
    let cluster = running(&mut client).await.data.unwrap().cluster_id;
    // A process that does not run needs all of its grace to end.
    signal(first, rustix::process::Signal::STOP);
    let call = client.restart_etcd(stamp(restart_on(VERSION, cluster, 2)));
    assert!(tokio::time::timeout(Duration::from_millis(300), call).await.is_err(), "it was given up");
    drop(client);
    assert_eq!(machine.etcd_pid(), Some(first), "the old process is still there");
    let mut client = machine.client(&fleet, Role::Operator).await;
    let after = until(&mut client, "a new process", |etcd| {
        state(etcd) == ServiceState::Running && etcd.service.as_ref().unwrap().pid != first
    })
    .await;
    assert_eq!(after.data.unwrap().cluster_id, cluster);
    // The usual way: the answer comes once the new process is there.
    let second = after.service.unwrap().pid;
    let third = client.restart_etcd(stamp(restart_on(VERSION, cluster, 10))).await.unwrap().into_inner().pid;
    assert_ne!(third, second);
    // It has etcd's arguments once it has put off what prepared it.
    let there = async {
        while machine.etcd_pid() != Some(third) {
            sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), there).await.expect("it runs etcd");
}

#[tokio::test]
async fn a_restart_is_finished_by_the_next_agent() {
    let fleet = Fleet::new("f5");
    let (mut machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    let first = start_empty(&mut client, VERSION).await.unwrap();
    let cluster = running(&mut client).await.data.unwrap().cluster_id;
    signal(first, rustix::process::Signal::STOP);
    let call = client.restart_etcd(stamp(restart_on(VERSION, cluster, 60)));
    assert!(tokio::time::timeout(Duration::from_millis(300), call).await.is_err());
    machine.kill_agent();
    signal(first, rustix::process::Signal::CONT);
    while machine.etcd_pid().is_some() {
        sleep(Duration::from_millis(2)).await;
    }
    machine.start_agent().await;
    let mut client = machine.client(&fleet, Role::Operator).await;
    assert_eq!(running(&mut client).await.running_version, VERSION);
    let kept = fs::read_to_string(machine.etcd_files().record()).unwrap();
    assert!(kept.contains("\"restarting\": null"), "{kept}");
}

#[tokio::test]
async fn a_restart_that_cannot_succeed_is_refused_while_etcd_serves() {
    let fleet = Fleet::new("f5");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    let pid = start_empty(&mut client, VERSION).await.unwrap();
    let cluster = running(&mut client).await.data.unwrap().cluster_id;
    for (request, problem) in [
        (restart_on("9.9.9", cluster, 5), "not installed"),
        (restart_on(VERSION, cluster + 1, 5), "not as expected"),
        (restart_on(VERSION, 0, 5), "say which cluster"),
    ] {
        let refused = client.restart_etcd(stamp(request)).await.unwrap_err();
        assert!(refused.message().contains(problem), "{refused}");
        assert_eq!(machine.etcd_pid(), Some(pid), "it runs on");
    }
}

#[tokio::test]
async fn an_etcd_that_was_stopped_for_a_while_comes_back() {
    let fleet = Fleet::new("f5");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    start_empty(&mut client, VERSION).await.unwrap();
    running(&mut client).await;
    let pause = v1::StopEtcdRequest { grace_seconds: 5, resume_after_seconds: 1 };
    client.stop_etcd(stamp(pause)).await.unwrap();
    assert_eq!(machine.etcd_pid(), None);
    running(&mut client).await;
    // What was stopped for good stays stopped.
    client.stop_etcd(stamp(v1::StopEtcdRequest { grace_seconds: 5, ..Default::default() })).await.unwrap();
    client.stop_etcd(stamp(pause)).await.unwrap();
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(machine.etcd_pid(), None);
}
