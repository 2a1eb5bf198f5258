//! a program of the agent → one that serves in its place, or the old one again; etcd's process is the same throughout.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use raftsman_api::roles::Role;
use raftsman_api::tls::{ClientTls, connect};
use raftsman_api::{hex, v1};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use crate::harness::{Client, Fleet, Machine, VERSION, kill, running, signal, stamp, start_empty};

const OWN: &str = env!("CARGO_PKG_VERSION");
/// However an upgrade ends, an agent serves after this time.
const BACK: Duration = Duration::from_secs(30);

/// What the machine runs.
fn own_program() -> Vec<u8> {
    fs::read(env!("CARGO_BIN_EXE_raftsman-agent")).unwrap()
}

/// A program that does the same, and is another: bytes after the end of an ELF file mean nothing.
pub(crate) fn another(mark: &str) -> Vec<u8> {
    let mut bytes = own_program();
    bytes.extend_from_slice(mark.as_bytes());
    bytes
}

/// A program that says that it is an agent, and then does this.
fn pretender(does: &str) -> Vec<u8> {
    format!("#!/bin/sh\n[ \"$1\" = --version ] && echo raftsman-agent {OWN} && exit\n{does}\n").into_bytes()
}

fn head(bytes: &[u8]) -> v1::UpgradeAgentHead {
    v1::UpgradeAgentHead { sha256: hex::sha256(bytes), size: bytes.len() as u64, version: OWN.to_owned() }
}

async fn send(client: &mut Client, head: v1::UpgradeAgentHead, bytes: &[u8]) -> Result<v1::UpgradeAgentReply, Status> {
    use v1::upgrade_agent_request::Part;
    let part = |part| v1::UpgradeAgentRequest { part: Some(part) };
    let chunks = bytes.chunks(1 << 20).map(|chunk| part(Part::Chunk(chunk.to_vec())));
    let parts: Vec<_> = std::iter::once(part(Part::Head(head))).chain(chunks).collect();
    client.upgrade_agent(stamp(tokio_stream::iter(parts))).await.map(tonic::Response::into_inner)
}

pub(crate) async fn upgrade(fleet: &Fleet, machine: &Machine, bytes: &[u8]) -> Result<v1::UpgradeAgentReply, Status> {
    send(&mut machine.client(fleet, Role::Admin).await, head(bytes), bytes).await
}

/// A report over a new connection; none while no agent serves.
async fn asked(fleet: &Fleet, machine: &Machine) -> Option<v1::ReportReply> {
    let identity = fleet.identity(Role::Operator.organization());
    let tls = ClientTls::claimed(&identity, &fleet.ca_pem, machine.name, fleet.id).unwrap();
    let ask = async {
        let mut client = Client::new(connect(machine.address, &tls).await.ok()?.channel);
        Some(client.report(v1::ReportRequest::default()).await.ok()?.into_inner())
    };
    timeout(Duration::from_secs(2), ask).await.ok()?
}

/// Asks until an agent reports what is wanted.
async fn until(
    fleet: &Fleet,
    machine: &Machine,
    what: &str,
    wanted: impl Fn(&v1::AgentProgram) -> bool,
) -> v1::ReportReply {
    let begun = Instant::now();
    loop {
        let report = asked(fleet, machine).await;
        if let Some(report) = report.filter(|report| wanted(report.agent_program.as_ref().unwrap())) {
            return report;
        }
        assert!(begun.elapsed() < BACK, "waited in vain for: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn runs(fleet: &Fleet, machine: &Machine, bytes: &[u8]) -> v1::ReportReply {
    let digest = hex::sha256(bytes);
    until(fleet, machine, "the program", |program| program.sha256 == digest).await
}

/// Waits, without asking, until the new program is on trial; its process.
async fn trial_begins(machine: &Machine) -> u32 {
    let begun = Instant::now();
    loop {
        if let Some(pid) = machine.processes("--guardian").first() {
            return *pid;
        }
        assert!(begun.elapsed() < BACK, "the trial does not begin");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Waits, without asking, until the trial is over.
async fn trial_ends(machine: &Machine) {
    let begun = Instant::now();
    while machine.path().join("agent/programs/trial.json").exists() || !machine.processes("guard --root").is_empty() {
        assert!(begun.elapsed() < BACK, "the trial does not end");
        sleep(Duration::from_millis(20)).await;
    }
}

/// With a running etcd, whose process is the answer.
async fn with_etcd(fleet: &Fleet) -> (Machine, u32) {
    let (machine, client) = Machine::claimed(fleet).await;
    let etcd = start_etcd(fleet, &machine, client).await;
    (machine, etcd)
}

async fn start_etcd(fleet: &Fleet, machine: &Machine, mut client: Client) -> u32 {
    machine.ready_etcd(fleet, &mut client, VERSION).await;
    let pid = start_empty(&mut client, VERSION).await.unwrap();
    running(&mut client).await;
    machine.serves().await;
    pid
}

/// Until etcd is seen under the agent that serves, as the same process.
fn same_etcd(report: &v1::ReportReply, machine: &Machine, pid: u32) {
    let service = report.etcd.as_ref().unwrap().service.clone().unwrap();
    assert_eq!((service.state(), service.pid), (v1::ServiceState::Running, pid));
    assert_eq!(machine.etcd_pid(), Some(pid));
}

#[tokio::test]
async fn upgraded_in_its_own_process_beside_the_same_etcd() {
    let fleet = Fleet::new("fleet-1");
    let (machine, etcd) = with_etcd(&fleet).await;
    let agent = machine.agent_pid().unwrap();
    let before = runs(&fleet, &machine, &own_program()).await;
    same_etcd(&before, &machine, etcd);

    for mark in ["second", "third"] {
        let begun = Instant::now();
        let program = another(mark);
        assert!(!upgrade(&fleet, &machine, &program).await.unwrap().unchanged);
        let report = runs(&fleet, &machine, &program).await;
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        same_etcd(&report, &machine, etcd);
        assert_eq!(machine.agent_pid(), Some(agent), "systemd and providers know it by its number");
        assert_eq!(report.incarnation, before.incarnation);
        trial_ends(&machine).await;
        assert!(upgrade(&fleet, &machine, &program).await.unwrap().unchanged, "it runs already");
        assert_eq!(fs::read_dir(machine.path().join("agent/programs")).unwrap().count(), 2, "no leftovers");
    }
    // The guardian is gone, not a zombie.
    let children = fs::read_to_string(format!("/proc/{agent}/task/{agent}/children")).unwrap();
    assert_eq!(children.split_whitespace().collect::<Vec<_>>(), [etcd.to_string()]);
    machine.etcdctl(&["put", "key", "value"]).unwrap();

    // It is still the child of this process, which knows how it ended.
    kill(etcd);
    let mut client = machine.client(&fleet, Role::Operator).await;
    let restarted = crate::harness::until(&mut client, "another etcd", |etcd| {
        etcd.service.as_ref().unwrap().state() == v1::ServiceState::Running
            && etcd.service.as_ref().unwrap().restarts == 1
    })
    .await;
    let service = restarted.service.unwrap();
    assert_eq!(service.last_exit, "signal 9");
    let children = fs::read_to_string(format!("/proc/{agent}/task/{agent}/children")).unwrap();
    assert!(!children.split_whitespace().any(|pid| pid == etcd.to_string()), "no zombie: {children}");
}

#[tokio::test]
async fn every_later_start_hands_over_to_the_confirmed_program() {
    let fleet = Fleet::new("fleet-1");
    let (mut machine, etcd) = with_etcd(&fleet).await;
    let program = another("second");
    upgrade(&fleet, &machine, &program).await.unwrap();
    runs(&fleet, &machine, &program).await;
    machine.kill_agent();
    machine.start_agent().await;
    same_etcd(&runs(&fleet, &machine, &program).await, &machine, etcd);

    // Damaged: the machine still has an agent, which says so.
    machine.kill_agent();
    let path = machine.path().join("agent/programs").join(hex::sha256(&program)).join("raftsman-agent");
    fs::write(&path, "damaged").unwrap();
    machine.start_agent().await;
    let report = runs(&fleet, &machine, &own_program()).await;
    assert!(report.agent_program.as_ref().unwrap().problem.contains("SHA-256"), "{report:?}");
    same_etcd(&report, &machine, etcd);
    // And it is healed by the next upgrade.
    upgrade(&fleet, &machine, &program).await.unwrap();
    let report = runs(&fleet, &machine, &program).await;
    assert_eq!(report.agent_program.unwrap().problem, "");
}

#[tokio::test]
async fn what_cannot_run_is_refused_while_the_old_agent_serves() {
    let fleet = Fleet::new("fleet-1");
    let (machine, mut operator) = Machine::claimed(&fleet).await;
    let mut admin = machine.client(&fleet, Role::Admin).await;
    let program = pretender("exit 1");
    let refused = send(&mut operator, head(&program), &program).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "it runs as the agent's user: {refused}");

    let wrong = v1::UpgradeAgentHead { sha256: hex::sha256(b"another"), ..head(&program) };
    let refused = send(&mut admin, wrong, &program).await.unwrap_err();
    assert_eq!((refused.code(), refused.message().contains("SHA-256")), (Code::InvalidArgument, true), "{refused}");
    let large = v1::UpgradeAgentHead { size: 1 << 50, ..head(&program) };
    let refused = send(&mut admin, large, &program).await.unwrap_err();
    assert_eq!((refused.code(), refused.message().contains("free")), (Code::ResourceExhausted, true), "{refused}");
    let older = v1::UpgradeAgentHead { version: "0.0.1".to_owned(), ..head(&program) };
    let refused = send(&mut admin, older, &program).await.unwrap_err();
    assert_eq!((refused.code(), refused.message().contains("downgraded")), (Code::FailedPrecondition, true));
    let newer = v1::UpgradeAgentHead { version: "99.0.0".to_owned(), ..head(&program) };
    let refused = send(&mut admin, newer, &program).await.unwrap_err();
    assert_eq!((refused.code(), refused.message().contains("99.0.0")), (Code::InvalidArgument, true), "{refused}");
    for bad in [b"not a program".to_vec(), pretender("").split_off(20), b"#!/bin/sh\nsleep 60\n".to_vec()] {
        let refused = send(&mut admin, head(&bad), &bad).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    }
    let report = runs(&fleet, &machine, &own_program()).await;
    assert_eq!(report.agent_program.unwrap().failed, None);
    assert_eq!(fs::read_dir(machine.path().join("agent/programs")).unwrap().count(), 0, "no leftovers");
    assert_eq!(fs::metadata(machine.path().join("agent/programs")).unwrap().permissions().mode() & 0o777, 0o700);
}

/// A failed upgrade, reported by the old program.
async fn reverted(fleet: &Fleet, machine: &Machine, program: &[u8], begun: Instant) -> v1::FailedUpgrade {
    let report = runs(fleet, machine, &own_program()).await;
    assert!(begun.elapsed() < BACK, "{:?}", begun.elapsed());
    let failed = report.agent_program.unwrap().failed.expect("it says what failed");
    assert_eq!(failed.sha256, hex::sha256(program));
    assert!(!machine.path().join("agent/programs/confirmed.json").exists());
    failed
}

#[tokio::test]
async fn a_program_that_ends_is_reverted_at_once() {
    let fleet = Fleet::new("fleet-1");
    let (machine, etcd) = with_etcd(&fleet).await;
    let program = pretender("echo 'error: not today' >&2; exit 1");
    let begun = Instant::now();
    upgrade(&fleet, &machine, &program).await.unwrap();
    let failed = reverted(&fleet, &machine, &program, begun).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(failed.reason.contains("not today") && !failed.retriable, "{failed:?}");
    same_etcd(&asked(&fleet, &machine).await.unwrap(), &machine, etcd);

    // It is no obstacle to a better one.
    let good = another("good");
    upgrade(&fleet, &machine, &good).await.unwrap();
    let report = runs(&fleet, &machine, &good).await;
    assert_eq!(report.agent_program.as_ref().unwrap().failed, None);
    same_etcd(&report, &machine, etcd);
}

#[tokio::test]
async fn a_program_that_hangs_is_reverted_in_time() {
    let fleet = Fleet::new("fleet-1");
    let (machine, etcd) = with_etcd(&fleet).await;
    let program = pretender("while :; do sleep 1; done");
    let begun = Instant::now();
    upgrade(&fleet, &machine, &program).await.unwrap();
    let failed = reverted(&fleet, &machine, &program, begun).await;
    assert!(failed.reason.contains("did not serve") && !failed.retriable, "{failed:?}");
    same_etcd(&asked(&fleet, &machine).await.unwrap(), &machine, etcd);
}

/// As when `apply` is killed: the program is not to blame.
#[tokio::test]
async fn a_program_that_no_client_asks_is_reverted_and_may_be_tried_again() {
    let fleet = Fleet::new("fleet-1");
    let (machine, etcd) = with_etcd(&fleet).await;
    let program = another("second");
    let begun = Instant::now();
    upgrade(&fleet, &machine, &program).await.unwrap();
    trial_begins(&machine).await;
    trial_ends(&machine).await;
    let failed = reverted(&fleet, &machine, &program, begun).await;
    assert!(failed.retriable, "{failed:?}");
    upgrade(&fleet, &machine, &program).await.unwrap();
    same_etcd(&runs(&fleet, &machine, &program).await, &machine, etcd);
}

#[tokio::test]
async fn a_killed_trial_brings_the_old_program_back() {
    let fleet = Fleet::new("fleet-1");
    let (machine, etcd) = with_etcd(&fleet).await;
    let program = another("second");
    let begun = Instant::now();
    upgrade(&fleet, &machine, &program).await.unwrap();
    kill(trial_begins(&machine).await);
    let failed = reverted(&fleet, &machine, &program, begun).await;
    assert!(failed.retriable, "{failed:?}");
    same_etcd(&asked(&fleet, &machine).await.unwrap(), &machine, etcd);
}

#[tokio::test]
async fn without_its_guardian_a_trial_is_confirmed_or_reverts_itself() {
    let fleet = Fleet::new("fleet-1");
    let (machine, etcd) = with_etcd(&fleet).await;
    for asks in [false, true] {
        let program = another(if asks { "asked" } else { "not asked" });
        let begun = Instant::now();
        upgrade(&fleet, &machine, &program).await.unwrap();
        trial_begins(&machine).await;
        for guardian in machine.processes("guard --root") {
            signal(guardian, Signal::KILL);
        }
        let report = if asks {
            runs(&fleet, &machine, &program).await
        } else {
            trial_ends(&machine).await;
            assert!(reverted(&fleet, &machine, &program, begun).await.retriable);
            asked(&fleet, &machine).await.unwrap()
        };
        same_etcd(&report, &machine, etcd);
    }
}

/// As a power cut in the middle of a trial: the next start knows of it.
#[tokio::test]
async fn a_start_finds_an_interrupted_trial() {
    let fleet = Fleet::new("fleet-1");
    let (mut machine, etcd) = with_etcd(&fleet).await;
    let program = another("second");
    upgrade(&fleet, &machine, &program).await.unwrap();
    let begun = Instant::now();
    trial_begins(&machine).await;
    machine.processes("guard --root").into_iter().for_each(kill);
    machine.kill_agent();
    machine.start_agent().await;
    let failed = reverted(&fleet, &machine, &program, begun).await;
    assert!(failed.retriable && failed.reason.contains("restarted"), "{failed:?}");
    same_etcd(&asked(&fleet, &machine).await.unwrap(), &machine, etcd);
}

/// It accepts connections, and answers none: the kernel does that for a process that is stopped.
#[tokio::test]
async fn a_program_that_does_not_answer_is_reverted_in_time() {
    let fleet = Fleet::new("fleet-1");
    let (machine, etcd) = with_etcd(&fleet).await;
    let program = another("second");
    let begun = Instant::now();
    upgrade(&fleet, &machine, &program).await.unwrap();
    signal(trial_begins(&machine).await, Signal::STOP);
    reverted(&fleet, &machine, &program, begun).await;
    same_etcd(&asked(&fleet, &machine).await.unwrap(), &machine, etcd);
}

#[tokio::test]
async fn a_wrong_digest_leaves_agent_and_etcd_alone() {
    let fleet = Fleet::new("fleet-1");
    let (machine, etcd) = with_etcd(&fleet).await;
    let agent = machine.agent_pid();
    let program = another("second");
    let announced = v1::UpgradeAgentHead { sha256: hex::sha256(b"another"), ..head(&program) };
    let refused = send(&mut machine.client(&fleet, Role::Admin).await, announced, &program).await.unwrap_err();
    assert!(refused.message().contains("SHA-256"), "{refused}");
    same_etcd(&runs(&fleet, &machine, &own_program()).await, &machine, etcd);
    assert_eq!(machine.agent_pid(), agent);
    assert_eq!(fs::read_dir(machine.path().join("agent/programs")).unwrap().count(), 0, "no leftovers");
}

/// Enough for etcd with its write-ahead log, two programs and what the agent keeps free.
fn disk_mib() -> u32 {
    let program = u32::try_from(own_program().len() >> 20).unwrap();
    2 * program + 400
}

/// Writes until there is no room for a single byte.
fn fill(machine: &Machine) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(machine.path().join("full")).unwrap();
    for size in [1 << 20, 1 << 12, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}

async fn with_etcd_and_disk(fleet: &Fleet) -> (Machine, u32) {
    let (machine, client) = Machine::claimed_with_disk(fleet, disk_mib()).await;
    let etcd = start_etcd(fleet, &machine, client).await;
    (machine, etcd)
}

#[tokio::test]
async fn a_disk_that_fills_up_while_the_program_is_sent_leaves_agent_and_etcd_alone() {
    use v1::upgrade_agent_request::Part;
    let fleet = Fleet::new("fleet-1");
    let (machine, etcd) = with_etcd_and_disk(&fleet).await;
    let agent = machine.agent_pid();
    let program = another("second");
    let (parts, stream) = tokio::sync::mpsc::channel(1);
    let mut admin = machine.client(&fleet, Role::Admin).await;
    let call = tokio::spawn(async move {
        let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
        admin.upgrade_agent(stamp(stream)).await
    });
    parts.send(v1::UpgradeAgentRequest { part: Some(Part::Head(head(&program))) }).await.unwrap();
    for (i, chunk) in program.chunks(1 << 20).enumerate() {
        if i == 8 {
            fill(&machine);
        }
        // The call ends in the middle.
        let _ = parts.send(v1::UpgradeAgentRequest { part: Some(Part::Chunk(chunk.to_vec())) }).await;
    }
    drop(parts);
    let refused = call.await.unwrap().unwrap_err();
    assert!(refused.message().contains("No space left on device"), "{refused}");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    same_etcd(&runs(&fleet, &machine, &own_program()).await, &machine, etcd);
    assert_eq!(machine.agent_pid(), agent);
    assert_eq!(fs::read_dir(machine.path().join("agent/programs")).unwrap().count(), 0, "no leftovers");
    machine.etcdctl(&["get", "key"]).unwrap();
}

/// It fills the disk as long as it lives, and so does another process afterwards.
#[tokio::test]
async fn a_program_that_fills_the_disk_is_reverted_in_time() {
    let fleet = Fleet::new("fleet-1");
    for ends in ["exit 1", "while :; do cat /dev/zero >> \"$2/full\"; sleep 0.1; done"] {
        let (machine, etcd) = with_etcd_and_disk(&fleet).await;
        let program = pretender(&format!("cat /dev/zero > \"$2/full\"; {ends}"));
        let begun = Instant::now();
        upgrade(&fleet, &machine, &program).await.unwrap();
        trial_begins(&machine).await;
        let failed = reverted(&fleet, &machine, &program, begun).await;
        assert!(failed.reason.contains("it ended") || failed.reason.contains("did not serve"), "{failed:?}");
        assert!(machine.path().join("full").exists());
        same_etcd(&asked(&fleet, &machine).await.unwrap(), &machine, etcd);
        machine.etcdctl(&["get", "key"]).unwrap();
    }
}

/// Not the program's doing: there is no room for anything that the machine would write, before and after the trial.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_stays_full_does_not_keep_the_old_program_away() {
    let fleet = Fleet::new("fleet-1");
    let (machine, etcd) = with_etcd_and_disk(&fleet).await;
    let program = pretender("sleep 2; exit 1");
    let begun = Instant::now();
    upgrade(&fleet, &machine, &program).await.unwrap();
    trial_begins(&machine).await;
    let fills = std::sync::atomic::AtomicBool::new(true);
    let failed = std::thread::scope(|scope| {
        scope.spawn(|| {
            while fills.load(std::sync::atomic::Ordering::Relaxed) {
                fill(&machine);
            }
        });
        let failed = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(reverted(&fleet, &machine, &program, begun))
        });
        fills.store(false, std::sync::atomic::Ordering::Relaxed);
        failed
    });
    assert!(failed.retriable, "{failed:?}");
    same_etcd(&asked(&fleet, &machine).await.unwrap(), &machine, etcd);

    // With room again the next one is tried.
    fs::remove_file(machine.path().join("full")).unwrap();
    let good = another("good");
    upgrade(&fleet, &machine, &good).await.unwrap();
    let report = runs(&fleet, &machine, &good).await;
    assert_eq!(report.agent_program.as_ref().unwrap().failed, None);
    same_etcd(&report, &machine, etcd);
}
