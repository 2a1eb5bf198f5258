//! An agent, an etcd or a disk that hangs → the command ends in time, and says what has not answered.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all};
use raftsman_api::v1;
use raftsman_core::action::{
    Action, AuthAction, BackupAction, EtcdAction, MachineAction, MaintenanceAction, PkiAction, PreflightAction,
    StartData,
};
use raftsman_core::observed::{ClusterId, MemberId, Purpose};
use raftsman_core::spec::{EtcdVersion, Name};
use raftsman_engine::act::Executor;
use raftsman_engine::observe::{AgentCalls, Observer};
use raftsman_tests::lab::{Lab, engine, eventually, kill};
use rustix::process::Signal;

/// A call that has a limit of its own, or that of the run.
const PROMPT: Duration = Duration::from_secs(15);
/// One that takes as long as a database is large: that the agent hangs shows by the connection.
const LONG: Duration = Duration::from_secs(45);

/// Every action that goes to an agent, on this machine. Of those that need a store, a firewall or a new machine the calls
/// are below.
fn asked(machine: &Name, cluster: ClusterId, digest: &str) -> Vec<(Action, &'static str)> {
    let version = EtcdVersion::parse("3.6.15").expect("a version");
    let machine = || machine.clone();
    vec![
        (Action::Etcd(EtcdAction::InstallEtcd { machine: machine(), version }), "PinBinaries"),
        (
            Action::Pki(PkiAction::IssueCertificate { machine: machine(), purpose: Purpose::Peer, also: None }),
            "RequestCertificate",
        ),
        (Action::Pki(PkiAction::StoreTrust { machine: machine(), purpose: Purpose::Server }), "StoreTrust"),
        (
            Action::Etcd(EtcdAction::ConfigureEtcd {
                machine: machine(),
                version,
                at: None,
                digest: digest.to_owned(),
            }),
            "ConfigureEtcd",
        ),
        (Action::Machine(MachineAction::SetAccess { machine: machine(), digest: String::new() }), "SetAccess"),
        (Action::Machine(MachineAction::RenewAgent { machine: machine() }), "RequestCertificate"),
        (Action::Machine(MachineAction::Deliver { machine: machine() }), "Report"),
        (Action::Backup(BackupAction::ConfigureBackups { machine: machine() }), "SetBackups"),
        (
            Action::Etcd(EtcdAction::StartEtcd { machine: machine(), version, data: StartData::Of(cluster) }),
            "StartEtcd",
        ),
        (Action::Etcd(EtcdAction::RestartEtcd { machine: machine(), version, cluster }), "RestartEtcd"),
        (Action::Etcd(EtcdAction::RestartTogether { machines: [(machine(), version)].into(), cluster }), "RestartEtcd"),
        (Action::Etcd(EtcdAction::StopEtcd { machine: machine() }), "StopEtcd"),
        (Action::Etcd(EtcdAction::ClearData { machine: machine(), member: Some(MemberId(1)) }), "ClearData"),
        (Action::Preflight(PreflightAction::Measure), "Measure"),
        (Action::Machine(MachineAction::RebuildMachine { machine: machine() }), "StopEtcd"),
        (Action::Maintenance(MaintenanceAction::Defragment { machine: machine() }), "PassFence"),
        (Action::Auth(AuthAction::CreateRoot), "PassFence"),
    ]
}

type Said<'a> = LocalBoxFuture<'a, String>;

/// The result of a call, as text.
fn output<'a, T: 'a>(answer: impl Future<Output = Result<T, tonic::Status>> + 'a) -> Said<'a> {
    answer
        .map(|said| said.err().map_or_else(|| "it was answered".to_owned(), |no| no.message().to_owned()))
        .boxed_local()
}

/// Every other call that changes something, or takes long: no action gets as far here.
fn called(agent: &AgentCalls) -> Vec<(&'static str, Duration, Said<'_>)> {
    use futures::stream::iter;
    let agent = move || agent.clone();
    let prompt = [
        ("FinishClaim", output(async move { agent().finish_claim(v1::FinishClaimRequest::default()).await })),
        ("InstallEtcd", output(async move { agent().install_etcd(iter([v1::InstallEtcdRequest::default()])).await })),
        (
            "UpgradeAgent",
            output(async move { agent().upgrade_agent(iter([v1::UpgradeAgentRequest::default()])).await }),
        ),
        (
            "StoreCertificate",
            output(async move { agent().store_certificate(v1::StoreCertificateRequest::default()).await }),
        ),
        ("SetFirewall", output(async move { agent().set_firewall(v1::SetFirewallRequest::default()).await })),
        ("Deliver", output(async move { agent().deliver(v1::DeliverRequest::default()).await })),
        ("SetBackups", output(async move { agent().set_backups(v1::SetBackupsRequest::default()).await })),
        ("ReadCatalog", output(async move { agent().read_catalog(v1::ReadCatalogRequest::default()).await })),
        (
            "SetPostgresRole",
            output(async move { agent().set_postgres_role(v1::SetPostgresRoleRequest::default()).await }),
        ),
        (
            "DropPostgresRole",
            output(async move { agent().drop_postgres_role(v1::DropPostgresRoleRequest::default()).await }),
        ),
        (
            "SetNodePassword",
            output(async move { agent().set_node_password(v1::SetNodePasswordRequest::default()).await }),
        ),
        ("SetDatabase", output(async move { agent().set_database(v1::SetDatabaseRequest::default()).await })),
        ("Leave", output(async move { agent().leave(v1::LeaveRequest::default()).await })),
    ];
    let patient = [
        ("TakeBackup", output(async move { agent().take_backup(v1::TakeBackupRequest::default()).await })),
        ("RestoreData", output(async move { agent().restore_data(iter([v1::RestoreDataRequest::default()])).await })),
        ("Rehearse", output(async move { agent().rehearse(iter([v1::RehearseRequest::default()])).await })),
        ("Compare", output(async move { agent().compare(v1::CompareRequest::default()).await })),
    ];
    let prompt = prompt.into_iter().map(|(call, said)| (call, PROMPT, said));
    prompt.chain(patient.into_iter().map(|(call, said)| (call, LONG, said))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_hangs_is_named_in_every_call() {
    let lab = Lab::cluster(1, "3.6.15", &[]);
    lab.apply();
    let observer = Observer::new(Arc::new(engine::cluster(&lab, "main"))).expect("an observer");
    let mut observed = observer.look().await.expect("a look");
    // One that gets no processor for seconds is silent.
    for _ in 0..5 {
        if observed.etcd.members.values().any(|member| member.etcd.seen().is_none()) {
            observed = observer.look().await.expect("a look");
        }
    }
    let (name, member) = observed.etcd.members.iter().next().expect("a member");
    let cluster = member.etcd.seen().expect("it answers").cluster;
    let digest = observed.report(name).and_then(|report| report.etcd.running_config.clone()).expect("a configuration");
    let agent = lab.agents()[0].1;
    let lock = engine::lock(&lab, 100);
    let executor = Executor { observer: &observer, lock: &lock, limit: Duration::from_secs(3) };
    let link = observer.agent(name).expect("a link");
    let calls = link.client_within(executor.limit).await.expect("a connection");
    kill(agent, Signal::STOP);
    let begun = Instant::now();
    let acts = asked(name, cluster, &digest).into_iter().map(|(action, call)| async move {
        let error = executor.act(&action).await.expect_err(action.verb()).to_string();
        let named = error.contains("the agent of main-1") && error.contains(call) && error.contains("within ");
        (!named || begun.elapsed() > PROMPT).then(|| format!("{}: {error} ({:?})", action.verb(), begun.elapsed()))
    });
    let calls = called(&calls).into_iter().map(|(call, most, said)| async move {
        let error = tokio::time::timeout(most, said).await.unwrap_or_else(|_| "nothing is said".to_owned());
        // A call with a long limit ends when the connection breaks.
        let words = if most == PROMPT { format!("has not answered {call} within ") } else { call.to_owned() };
        let named = error.contains("the agent of main-1") && error.contains(&words);
        (!named).then(|| format!("{call}: {error} ({:?})", begun.elapsed()))
    });
    let (acts, calls) = tokio::join!(join_all(acts), join_all(calls));
    // The agent must not carry out these calls when it is resumed.
    kill(agent, Signal::KILL);
    let unnamed: Vec<String> = acts.into_iter().chain(calls).flatten().collect();
    assert_eq!(unnamed, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_hangs_is_named_with_the_call() {
    let lab = Lab::cluster(1, "3.6.15", &[]);
    lab.apply();
    let observer = Observer::new(Arc::new(engine::cluster(&lab, "main"))).expect("an observer");
    observer.look().await.expect("a look");
    let credentials = observer.credentials(jiff::Timestamp::now()).await.expect("readable").expect("credentials");
    let link = observer.etcd(&Name::parse("main-1").expect("a name")).expect("a link");
    let client = link.client(&credentials).await.expect("a connection");
    let (etcd, address) = (lab.etcds()[0].1, IpAddr::from(lab.address("main-1")));
    kill(etcd, Signal::STOP);
    let (mut one, mut two, mut three, mut four) = (client.clone(), client.clone(), client.clone(), client);
    let limit = Duration::from_secs(10);
    let answers = tokio::join!(
        tokio::time::timeout(limit, one.user_add("eve", "x", None)),
        tokio::time::timeout(limit, two.member_remove(7)),
        tokio::time::timeout(limit, three.auth_disable()),
        tokio::time::timeout(limit, four.role_add("eve")),
    );
    // It accepts connections and sends nothing: a starting etcd does not.
    let (status, words) = (lab.cluster_status(), lab.run(&["status"]).stdout);
    kill(etcd, Signal::CONT);
    assert_eq!(status["members"][0]["state"], "silent", "{status}");
    assert!(words.contains("silent") && !words.contains("starting"), "{words}");
    let (one, two, three, four) = answers;
    let errors = [
        (one.expect("in time").map(drop), "UserAdd"),
        (two.expect("in time").map(drop), "MemberRemove"),
        (three.expect("in time").map(drop), "AuthDisable"),
        (four.expect("in time").map(drop), "RoleAdd"),
    ];
    for (answer, call) in errors {
        let error = answer.expect_err("it hangs").to_string();
        assert!(error.contains(&format!("etcd at {address}:2379 has not answered {call} within 3 s")), "{error}");
    }
}

#[test]
fn apply_ends_in_time_when_a_disk_or_an_agent_hangs() {
    let lab = Lab::cluster(3, "3.6.14", &[]);
    lab.apply();
    // A FIFO without a writer blocks its readers, as a failed disk does.
    lab.write_file(&lab.file().replace("3.6.14", "3.6.15"));
    let artifact = lab.machine("main-2").join("artifacts/etcd-3.6.15");
    std::fs::create_dir_all(artifact.parent().expect("a directory")).expect("a directory");
    let made = std::process::Command::new("mkfifo").arg(&artifact).status().expect("mkfifo");
    assert!(made.success());
    let begun = Instant::now();
    let hung = lab.run(&["apply", "--yes", "--timeout", "6s"]).failed();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(hung.all().contains("the agent of main-2 has not answered InstallEtcd within "), "{hung:?}");
    // The reader that hangs gets its end of the file, and all goes on.
    std::fs::remove_file(&artifact).expect("removed");
    lab.agents().iter().filter(|(name, _)| name == "main-2").for_each(|(_, pid)| kill(*pid, Signal::KILL));

    // An agent that stops in the middle of a restart.
    let run = lab.spawn(&["apply", "--yes", "--timeout", "8s"]);
    let journal = || std::fs::read_to_string(lab.path().join(".raftsman/journal.jsonl")).unwrap_or_default();
    eventually("a restart begins", || journal().contains("restart_etcd").then_some(()));
    let agents = lab.agents();
    agents.iter().for_each(|(_, pid)| kill(*pid, Signal::STOP));
    let begun = Instant::now();
    let hung = raftsman_tests::lab::text(run.wait_with_output().expect("it was ours")).failed();
    agents.iter().for_each(|(_, pid)| kill(*pid, Signal::CONT));
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    // A call that was under way has no answer; a connection that is made since has none either.
    let silent = |line: &str| line.contains(" has not answered ") || line.contains(": no answer within ");
    let named =
        |line: &str| agents.iter().any(|(name, _)| line.contains(&format!("{name}: the agent does not answer: ")));
    let acted = |line: &str| agents.iter().any(|(name, _)| line.contains(&format!("{name} restart etcd failed: ")));
    assert!(hung.all().lines().any(|line| silent(line) && (named(line) || acted(line))), "{hung:?}");
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    lab.nothing_to_do();
}
