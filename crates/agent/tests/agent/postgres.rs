//! a real Patroni with PostgreSQL under an agent, on a real etcd with passwords → brought up, asked, reloaded, restarted and
//! stopped by calls, with nothing left.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use raftsman_agent::postgres::running;
use raftsman_agent::supervisor::process;
use raftsman_agent::supervisor::program::Program as Supervised;
use raftsman_api::hex;
use raftsman_api::roles::Role;
use raftsman_api::v1::{self, DataState, PostgresRole, Program, Purpose, ServiceState};
use raftsman_core::render::patroni::{self, DATA, DIR, Patroni, PgSecret, Programs, SERVER_TLS};
use raftsman_core::spec::postgres::NodeTags;
use raftsman_core::spec::{Watchdog, WatchdogMode};
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::harness::{self, Client, Fleet, Machine, VERSION, bear, kill, report, signal, stamp};

const PATRONI: &str = "4.1.5";
/// From nothing to a primary takes some 10 s: the bound is for what hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Where `just lab-postgres` puts Patroni and the programs of PostgreSQL.
fn lab() -> PathBuf {
    let lab = std::env::var_os("RAFTSMAN_LAB").map(|lab| PathBuf::from(lab).join("postgres"));
    lab.filter(|dir| dir.join("bin").exists())
        .expect("RAFTSMAN_LAB with PostgreSQL in it: run `just lab-postgres` first")
}

/// The major version of the lab's PostgreSQL, which is Debian's.
fn major() -> u32 {
    let bin = fs::canonicalize(lab().join("bin")).unwrap();
    bin.parent().and_then(Path::file_name).and_then(|name| name.to_str()?.parse().ok()).unwrap()
}

fn text(address: IpAddr, user: &str) -> String {
    text_of("pg-1", address, address, user)
}

/// The file of a node at this address, on an etcd at that one.
fn text_of(name: &str, address: IpAddr, etcd: IpAddr, user: &str) -> String {
    let settings = [("ttl", "20"), ("loop_wait", "1"), ("retry_timeout", "3"), ("synchronous_mode", "false")];
    let settings = settings.map(|(path, json)| (path.to_owned(), json.to_owned()));
    patroni::config(&Patroni {
        scope: "pg",
        namespace: "/service/",
        name,
        address,
        hosts: &BTreeSet::from([SocketAddr::new(etcd, 2379)]),
        etcd_user: user,
        settings: &BTreeMap::from(settings),
        nodes: &BTreeSet::from([address]),
        access: &[],
        balancers: &BTreeSet::new(),
        programs: Programs::Package(major()),
        slot_wal_mib: 64,
        watchdog: &Watchdog { mode: WatchdogMode::Off, device: "/dev/watchdog".to_owned(), safety_margin: 5 },
        tags: NodeTags::default(),
    })
}

/// What stands for no secret of this kind anywhere else.
fn secret(name: &str) -> String {
    format!("s3cret-{name}-\"{{root}}\\")
}

fn configuration(fleet: &Fleet, text: &str, etcd_user: &str) -> v1::ConfigurePatroniRequest {
    let mut secrets: HashMap<String, String> =
        PgSecret::ALL.map(|it| (it.name().to_owned(), secret(it.name()))).into_iter().collect();
    secrets.insert("dcs".to_owned(), secret(etcd_user));
    v1::ConfigurePatroniRequest {
        config: text.to_owned(),
        digest: patroni::digest(text),
        secrets,
        etcd_trust_pem: fleet.ca_pem.clone(),
        stamp: format!("stamp of {etcd_user}"),
    }
}

fn starting(data: DataState, system_id: u64) -> v1::StartProgramRequest {
    use v1::start_program_request::Expected;
    let expected = v1::PostgresExpected { data: data.into(), system_id };
    let expected = Some(Expected::Postgres(expected));
    v1::StartProgramRequest { program: Program::Patroni.into(), version: PATRONI.to_owned(), expected }
}

async fn start(client: &mut Client, data: DataState, system_id: u64) -> Result<u32, Status> {
    client.start_program(stamp(starting(data, system_id))).await.map(|reply| reply.into_inner().pid)
}

async fn restart_postgres(client: &mut Client, role: PostgresRole) -> Result<(), Status> {
    client.restart_postgres(stamp(v1::RestartPostgresRequest { role: role.into() })).await.map(drop)
}

async fn set(client: &mut Client, path: &str, json: &str) -> Result<(), Status> {
    let setting = v1::PatroniSetting { path: path.to_owned(), json: json.to_owned() };
    client.set_patroni(stamp(v1::SetPatroniRequest { settings: vec![setting] })).await.map(drop)
}

/// An admin alone changes roles and databases, none of them as good as a superuser; a reader sees no passwords.
async fn roles_and_databases([reader, operator, admin]: [&mut Client; 3]) {
    let role = |name: &str| v1::PostgresRoleSettings { name: name.to_owned(), login: true, ..Default::default() };
    let set = |settings: v1::PostgresRoleSettings, verifier: Option<&str>| {
        stamp(v1::SetPostgresRoleRequest { settings: Some(settings), verifier: verifier.map(str::to_owned) })
    };
    let of_nodes = |role: &str, verifier: &str| {
        stamp(v1::SetNodePasswordRequest { role: role.to_owned(), verifier: verifier.to_owned() })
    };
    let drop_role = |name: &str| stamp(v1::DropPostgresRoleRequest { name: name.to_owned() });
    let database = v1::DatabaseEntry {
        name: "shop".to_owned(),
        owner: "a-\"b".to_owned(),
        encoding: "UTF8".to_owned(),
        locale: "C.UTF-8".to_owned(),
        extensions: vec!["pg_trgm".to_owned()],
    };
    let make = |database: &v1::DatabaseEntry| stamp(v1::SetDatabaseRequest { database: Some(database.clone()) });
    for other in [&mut *reader, operator] {
        for refused in [
            other.set_postgres_role(set(role("app"), None)).await.unwrap_err(),
            other.drop_postgres_role(drop_role("app")).await.unwrap_err(),
            other.set_database(make(&database)).await.unwrap_err(),
            other.set_node_password(of_nodes("replicator", "SCRAM-SHA-256$")).await.unwrap_err(),
        ] {
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        }
    }
    let member = |of: &str| v1::PostgresRoleSettings { member_of: vec![of.to_owned()], ..role("app") };
    for (settings, verifier) in [
        (role("postgres"), None),
        (role("replicator"), Some("")),
        (role("pg_monitor"), None),
        (member("postgres"), None),
        (member("rewind"), None),
        (member("pg_execute_server_program"), None),
        (role("app"), Some("in the clear")),
        (role("app"), Some("md5a3556571e93b0d20722ba62be61e8c2d")),
    ] {
        let refused = admin.set_postgres_role(set(settings, verifier)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    for (role, verifier) in
        [("postgres", "SCRAM-SHA-256$"), ("app", "SCRAM-SHA-256$"), ("replicator", "clear"), ("rewind", "")]
    {
        let refused = admin.set_node_password(of_nodes(role, verifier)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    let refused = admin.drop_postgres_role(drop_role("rewind")).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");

    // Names are names, whatever is in them.
    let verifier = "SCRAM-SHA-256$4096:AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:\
                    AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let group = v1::PostgresRoleSettings { login: false, ..role("readers") };
    admin.set_postgres_role(set(group.clone(), Some(""))).await.unwrap();
    let wanted = v1::PostgresRoleSettings {
        connection_limit: Some(7),
        member_of: vec!["pg_monitor".to_owned(), "readers".to_owned()],
        parameters: HashMap::from([
            ("search_path".to_owned(), "\"$user\", public".to_owned()),
            ("application_name".to_owned(), "it's; a 'name'".to_owned()),
        ]),
        ..role("a-\"b")
    };
    for verifier in [Some(verifier), None] {
        admin.set_postgres_role(set(wanted.clone(), verifier)).await.unwrap();
        admin.set_database(make(&database)).await.unwrap();
    }
    let request = v1::ReadCatalogRequest { extensions_of: vec!["shop".to_owned()] };
    let seen = admin.read_catalog(request.clone()).await.unwrap().into_inner();
    let entry = |seen: &v1::ReadCatalogReply, name: &str| {
        seen.roles.iter().find(|role| role.settings.as_ref().is_some_and(|it| it.name == name)).cloned().unwrap()
    };
    let mut found = entry(&seen, "a-\"b");
    found.settings.as_mut().unwrap().member_of.sort();
    assert_eq!(found.settings.as_ref(), Some(&wanted));
    assert!(found.verifier == verifier && found.has_password && found.needed && !found.superuser, "{found:?}");
    let mut there = seen.databases.iter().find(|database| database.name == "shop").cloned().unwrap();
    assert!(there.extensions.contains(&"pg_trgm".to_owned()), "{there:?}");
    there.extensions.clone_from(&database.extensions);
    assert_eq!(there, database);
    let read = reader.read_catalog(request.clone()).await.unwrap().into_inner();
    assert!(read.roles.iter().all(|role| role.verifier.is_empty()) && entry(&read, "a-\"b").has_password);
    // However many readers ask at once, PostgreSQL has sessions left: more calls than it lets in (100).
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..150 {
        let (mut client, request) = (reader.clone(), request.clone());
        asked.spawn(async move { client.read_catalog(request).await.map(drop) });
    }
    for answer in asked.join_all().await {
        answer.unwrap();
    }

    // What is not wanted any more is taken, and one that owns something only cannot log in.
    admin.set_postgres_role(set(role("a-\"b"), Some(""))).await.unwrap();
    admin.drop_postgres_role(drop_role("readers")).await.unwrap();
    admin.drop_postgres_role(drop_role("readers")).await.unwrap();
    let seen = admin.read_catalog(v1::ReadCatalogRequest::default()).await.unwrap().into_inner();
    let found = entry(&seen, "a-\"b");
    assert_eq!((found.settings, found.has_password), (Some(role("a-\"b")), false));
    assert!(!seen.roles.iter().any(|role| role.settings.as_ref().is_some_and(|it| it.name == "readers")));
    admin.drop_postgres_role(drop_role("a-\"b")).await.unwrap();
    let seen = admin.read_catalog(v1::ReadCatalogRequest::default()).await.unwrap().into_inner();
    assert!(!entry(&seen, "a-\"b").settings.unwrap().login);
    admin.set_database(make(&v1::DatabaseEntry { owner: "postgres".to_owned(), ..database })).await.unwrap();
    admin.drop_postgres_role(drop_role("a-\"b")).await.unwrap();
    let seen = admin.read_catalog(v1::ReadCatalogRequest::default()).await.unwrap().into_inner();
    assert!(!seen.roles.iter().any(|role| role.settings.as_ref().is_some_and(|it| it.name == "a-\"b")));
}

async fn stop(client: &mut Client, grace_seconds: u32) {
    let request = v1::StopProgramRequest { program: Program::Patroni.into(), grace_seconds, resume_after_seconds: 0 };
    client.stop_program(stamp(request)).await.unwrap();
}

/// Installs Patroni's bundle out of the machine's own artifacts.
async fn install(machine: &Machine, fleet: &Fleet, client: &mut Client) -> String {
    let bytes = fs::read(lab().join(format!("patroni-{PATRONI}.tar"))).unwrap();
    let sha256 = hex::sha256(&bytes);
    let artifact = machine.root().artifact("patroni", PATRONI);
    fs::create_dir_all(artifact.parent().unwrap()).unwrap();
    fs::write(&artifact, bytes).unwrap();
    machine.pin(fleet, "patroni", PATRONI, &sha256).await;
    let head = v1::InstallProgramHead {
        program: Program::Patroni.into(),
        version: PATRONI.to_owned(),
        sha256: sha256.clone(),
        ..Default::default()
    };
    let head = v1::InstallProgramRequest { part: Some(v1::install_program_request::Part::Head(head)) };
    let reply = client.install_program(stamp(tokio_stream::iter([head]))).await.unwrap();
    assert!(!reply.into_inner().bytes_needed);
    sha256
}

/// An etcd that lets Patroni's users in by their passwords.
async fn etcd(machine: &Machine, fleet: &Fleet, client: &mut Client) {
    machine.ready_etcd(fleet, client, VERSION).await;
    // With a trust bundle etcd asks its clients for certificates: Patroni has none.
    let asks = "  trusted-ca-file: {root}/etcd/tls/server/current/ca.crt\n  client-cert-auth: true\n";
    let config = machine.config().replacen(asks, "", 1);
    harness::configure(client, &config).await.unwrap();
    bear(client, VERSION, "").await.unwrap();
    machine.serves().await;
    let (a, b) = (format!("a:{}", secret("a")), format!("b:{}", secret("b")));
    for line in [
        &["user", "add", "root:root-password"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "pg"],
        &["role", "grant-permission", "--prefix=true", "pg", "readwrite", "/service/pg/"],
        &["user", "add", &a],
        &["user", "grant-role", "a", "pg"],
        &["user", "add", &b],
        &["user", "grant-role", "b", "pg"],
        &["auth", "enable"],
    ] {
        machine.etcdctl(line).unwrap_or_else(|complaint| panic!("{line:?}: {complaint}"));
    }
}

/// Reports until PostgreSQL is as wanted, by Patroni's own words.
async fn until(
    client: &mut Client,
    what: &str,
    wanted: impl Fn(&v1::PostgresReport, &Value) -> bool,
) -> v1::PostgresReport {
    let begun = Instant::now();
    loop {
        let asked = Instant::now();
        let postgres = report(client).await.postgres.unwrap();
        assert!(asked.elapsed() < Duration::from_secs(10), "a report took {:?}", asked.elapsed());
        let answer = serde_json::from_str(&postgres.answer).unwrap_or_default();
        if wanted(&postgres, &answer) {
            return postgres;
        }
        assert!(begun.elapsed() < LIMIT, "waited in vain for: {what}; last seen: {postgres:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

fn is_primary(answer: &Value) -> bool {
    // The identifier comes with a later round.
    answer["role"] == "primary" && answer["state"] == "running" && answer["database_system_identifier"].is_string()
}

async fn primary(client: &mut Client) -> v1::PostgresReport {
    until(client, "a primary", |_, answer| is_primary(answer)).await
}

async fn of_patroni(client: &mut Client) -> v1::ProgramReport {
    let programs = report(client).await.programs;
    programs.into_iter().find(|found| found.program() == Program::Patroni).unwrap()
}

fn postmaster(machine: &Machine) -> Option<u32> {
    let text = fs::read_to_string(machine.path().join(DATA).join("postmaster.pid")).ok()?;
    text.lines().next()?.trim().parse().ok()
}

fn nothing_is_left(machine: &Machine) {
    let root = machine.root();
    assert!(process::of(&root, Supervised::Patroni).is_none());
    assert!(running::left(&root).is_empty());
    assert!(!Path::new(&patroni::sockets(&root.path().display().to_string())).exists());
    for port in [5432, 8008] {
        std::net::TcpListener::bind((machine.address.ip(), port)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_brought_up_asked_reloaded_restarted_and_stopped() {
    let fleet = Fleet::new("f20");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    let ip = machine.address.ip();
    assert!(report(&mut client).await.postgres.is_none());
    etcd(&machine, &fleet, &mut client).await;
    let sha256 = install(&machine, &fleet, &mut client).await;
    let refused = start(&mut client, DataState::Empty, 0).await.unwrap_err();
    assert_eq!(refused.message(), "Patroni is not configured: write its configuration first");
    let first = text(ip, "a");
    // An etcd and a password of an operator's own would run programs of his own.
    let refused = client.configure_patroni(stamp(configuration(&fleet, &first, "a"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let mut admin = machine.client(&fleet, Role::Admin).await;
    admin.configure_patroni(stamp(configuration(&fleet, &first, "a"))).await.unwrap();
    let refused = start(&mut client, DataState::Empty, 0).await.unwrap_err();
    assert_eq!(refused.message(), "PostgreSQL has no certificate: request and store one first");
    for purpose in [Purpose::Postgres, Purpose::Patroni] {
        machine.certify(&fleet, &mut client, purpose).await;
    }
    let refused = start(&mut client, DataState::Present, 7).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let refused = restart_postgres(&mut client, PostgresRole::Primary).await.unwrap_err();
    assert_eq!(refused.message(), "Patroni is not running: start it");
    let ready = of_patroni(&mut client).await;
    assert_eq!(ready.installed, [v1::InstalledVersion { version: PATRONI.to_owned(), sha256 }]);
    assert_eq!((ready.config.as_str(), ready.config_digest.as_str()), (first.as_str(), &*patroni::digest(&first)));
    assert_eq!(ready.ports_taken, []);

    // A new cluster.
    let pid = start(&mut client, DataState::Empty, 0).await.unwrap();
    let up = primary(&mut client).await;
    let data = up.data.clone().unwrap();
    let answer: Value = serde_json::from_str(&up.answer).unwrap();
    assert_eq!(answer["database_system_identifier"], data.system_id.to_string());
    assert_eq!((data.state(), data.timeline), (DataState::Present, 1));
    assert!(data.position > 0 && up.had_data && up.problem.is_empty(), "{up:?}");
    assert_eq!((up.running_config.as_str(), up.started_with.clone()), (first.as_str(), vec![format!("{ip}:2379")]));
    assert_eq!(up.etcd_trust_digest, hex::sha256(fleet.ca_pem.as_bytes()));
    assert_eq!((up.secrets_stamp.as_str(), up.certificates.len()), ("stamp of a", 2));
    assert!(up.installed.starts_with(&format!("{}.", major())), "{}", up.installed);
    let runs = of_patroni(&mut client).await;
    assert!(runs.listening && runs.running_version == PATRONI, "{runs:?}");
    assert_eq!(runs.running_config_digest, patroni::digest(&first));
    assert_eq!(start(&mut client, DataState::Present, data.system_id).await.unwrap(), pid, "it runs already");
    start(&mut client, DataState::Present, 7).await.unwrap_err();

    // Its own login to etcd, which a reader may have tried.
    let mut reader = machine.client(&fleet, Role::Reader).await;
    let login = reader.log_in_to_etcd(v1::LogInToEtcdRequest {}).await.unwrap().into_inner();
    let accepted = vec![v1::EtcdLogin { host: format!("{ip}:2379"), error: String::new() }];
    assert_eq!((login.user.as_str(), &login.logins), ("a", &accepted));

    // What a reader, and an operator, cannot have.
    for refused in [
        reader.configure_patroni(stamp(configuration(&fleet, &first, "a"))).await.unwrap_err(),
        restart_postgres(&mut reader, PostgresRole::Primary).await.unwrap_err(),
        set(&mut reader, "ttl", "30").await.unwrap_err(),
        reader.switch_over(stamp(v1::SwitchOverRequest::default())).await.unwrap_err(),
        reader.reinitialize_node(stamp(v1::ReinitializeNodeRequest { system_id: data.system_id })).await.unwrap_err(),
    ] {
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    let digest = hex::sha256(first.as_bytes());
    let request = v1::ConfigureProgramRequest { program: Program::Patroni.into(), config: first.clone(), digest };
    let refused = client.configure_program(stamp(request)).await.unwrap_err();
    assert!(refused.message().contains("ConfigurePatroni"), "{refused}");
    let foreign = first.replacen("log:\n", "log:\n  dir: \"/etc\"\n", 1);
    let refused = admin.configure_patroni(stamp(configuration(&fleet, &foreign, "a"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "line 5 of Patroni's file is none that raftsman writes: nothing was written");
    let refused = set(&mut client, "postgresql.parameters.archive_command", "\"id\"").await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let refused = restart_postgres(&mut client, PostgresRole::Replica).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    for system_id in [0, 7, data.system_id] {
        let request = v1::ReinitializeNodeRequest { system_id };
        let refused = client.reinitialize_node(stamp(request)).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    }
    let request = v1::SwitchOverRequest { from: "pg-1".to_owned(), to: "pg-2".to_owned() };
    let refused = client.switch_over(stamp(request)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("HTTP status 412"), "{refused}");

    roles_and_databases([&mut reader, &mut client, &mut admin]).await;

    // PostgreSQL is restarted, Patroni is not.
    let old = postmaster(&machine);
    set(&mut client, "postgresql.parameters.max_connections", "60").await.unwrap();
    until(&mut client, "a pending restart", |_, answer| answer["pending_restart"] == true).await;
    restart_postgres(&mut client, PostgresRole::Primary).await.unwrap();
    until(&mut client, "no pending restart", |_, answer| is_primary(answer) && answer["pending_restart"].is_null())
        .await;
    assert_ne!(postmaster(&machine), old);

    // The other user of etcd, by a reload; then the first one may go.
    let second = text(ip, "b");
    admin.configure_patroni(stamp(configuration(&fleet, &second, "b"))).await.unwrap();
    let written = report(&mut client).await.postgres.unwrap();
    assert_eq!((written.running_config.as_str(), written.secrets_stamp.as_str()), (first.as_str(), "stamp of b"));
    client.reload_program(stamp(v1::ReloadProgramRequest { program: Program::Patroni.into() })).await.unwrap();
    let reloaded = report(&mut client).await.postgres.unwrap();
    assert_eq!(reloaded.running_config, second);
    let login = reader.log_in_to_etcd(v1::LogInToEtcdRequest {}).await.unwrap().into_inner();
    assert_eq!((login.user.as_str(), &login.logins), ("b", &accepted));
    machine.etcdctl(&["--user=root:root-password", "user", "delete", "a"]).unwrap();
    let seen = |answer: &Value| answer["dcs_last_seen"].as_i64().unwrap_or_default();
    let now = seen(&serde_json::from_str(&reloaded.answer).unwrap());
    until(&mut client, "etcd as the other user", |_, answer| is_primary(answer) && seen(answer) > now + 4).await;
    assert_eq!(
        fs::read_to_string(Supervised::Patroni.files(&machine.root()).log()).unwrap().matches("emoting self").count(),
        0
    );

    // A password that etcd does not have.
    let mut wrong = configuration(&fleet, &second, "b");
    wrong.secrets.insert("dcs".to_owned(), "wrong".to_owned());
    admin.configure_patroni(stamp(wrong)).await.unwrap();
    let login = reader.log_in_to_etcd(v1::LogInToEtcdRequest {}).await.unwrap().into_inner();
    assert!(login.logins[0].error.contains("authentication failed"), "{login:?}");
    admin.configure_patroni(stamp(configuration(&fleet, &second, "b"))).await.unwrap();

    // A Patroni that was killed adopts the PostgreSQL that it left.
    let (old, pid) = (postmaster(&machine), process::of(&machine.root(), Supervised::Patroni).unwrap().pid());
    kill(pid);
    until(&mut client, "another Patroni", |_, answer| {
        is_primary(answer) && process::of(&machine.root(), Supervised::Patroni).is_some_and(|it| it.pid() != pid)
    })
    .await;
    assert_eq!((postmaster(&machine), running::left(&machine.root()).len()), (old, 1));

    // No secret is anywhere but in Patroni's file.
    let shown = format!("{:?}", report(&mut client).await);
    let record = fs::read_to_string(machine.path().join(DIR).join("service.json")).unwrap();
    let log = fs::read_to_string(Supervised::Patroni.files(&machine.root()).log()).unwrap();
    for place in [shown, record, log, machine.log()] {
        assert!(!place.contains("s3cret"), "{place}");
    }

    // A restart is of both.
    use v1::restart_program_request::Expected;
    let expected = v1::PostgresExpected { data: DataState::Present.into(), system_id: data.system_id };
    let mut request = v1::RestartProgramRequest {
        program: Program::Patroni.into(),
        version: PATRONI.to_owned(),
        expected: Some(Expected::Postgres(v1::PostgresExpected { system_id: 7, ..expected })),
        grace_seconds: 60,
    };
    client.restart_program(stamp(request.clone())).await.unwrap_err();
    assert_eq!(postmaster(&machine), old, "a restart that is refused costs nothing");
    request.expected = Some(Expected::Postgres(expected));
    client.restart_program(stamp(request)).await.unwrap();
    primary(&mut client).await;
    assert_ne!(postmaster(&machine), old);
    stop(&mut client, 60).await;
    nothing_is_left(&machine);
    let stopped = report(&mut client).await.postgres.unwrap();
    assert!(
        stopped.running_config.is_empty() && stopped.answer.is_empty() && stopped.problem.is_empty(),
        "{stopped:?}"
    );
    assert_eq!((stopped.had_data, stopped.data.unwrap().system_id), (true, data.system_id));

    // A Patroni that hangs takes its PostgreSQL with it.
    start(&mut client, DataState::Present, data.system_id).await.unwrap();
    primary(&mut client).await;
    signal(process::of(&machine.root(), Supervised::Patroni).unwrap().pid(), Signal::STOP);
    stop(&mut client, 1).await;
    nothing_is_left(&machine);

    // What was changed on the disk is not run.
    let bundle = machine.path().join(DIR).join("versions").join(PATRONI).join("site/patroni/__init__.py");
    fs::write(&bundle, "import os\n").unwrap();
    let refused = start(&mut client, DataState::Present, data.system_id).await.unwrap_err();
    assert!(refused.message().contains("is not what the pinned bundle has there"), "{refused}");
    nothing_is_left(&machine);
    assert_eq!(of_patroni(&mut client).await.service.unwrap().state(), ServiceState::Stopped);
    let key = machine.path().join(SERVER_TLS).join("current/tls.key");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(key).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

async fn ready(machine: &Machine, fleet: &Fleet, client: &mut Client, text: &str) {
    install(machine, fleet, client).await;
    let mut admin = machine.client(fleet, Role::Admin).await;
    admin.configure_patroni(stamp(configuration(fleet, text, "a"))).await.unwrap();
    for purpose in [Purpose::Postgres, Purpose::Patroni] {
        machine.certify(fleet, client, purpose).await;
    }
}

async fn standby(client: &mut Client, timeline: u32) -> v1::PostgresReport {
    until(client, "a standby that streams", |postgres, answer| {
        answer["role"] == "replica"
            && answer["state"] == "running"
            && answer["replication_state"] == "streaming"
            && answer["timeline"] == timeline
            && postgres.data.as_ref().is_some_and(|data| data.state() == DataState::Present)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_joins_takes_over_and_is_made_anew() {
    let fleet = Fleet::new("f21");
    let (one, mut first) = Machine::claimed(&fleet).await;
    let (two, mut second) = Machine::claimed(&fleet).await;
    let dcs = one.address.ip();
    etcd(&one, &fleet, &mut first).await;
    ready(&one, &fleet, &mut first, &text_of("pg-1", dcs, dcs, "a")).await;
    ready(&two, &fleet, &mut second, &text_of("pg-2", two.address.ip(), dcs, "a")).await;
    start(&mut first, DataState::Empty, 0).await.unwrap();
    let system = primary(&mut first).await.data.unwrap().system_id;

    start(&mut second, DataState::Empty, system).await.unwrap();
    let joined = standby(&mut second, 1).await;
    assert_eq!(joined.data.unwrap().system_id, system);
    restart_postgres(&mut second, PostgresRole::Primary).await.unwrap_err();
    restart_postgres(&mut second, PostgresRole::Replica).await.unwrap();
    standby(&mut second, 1).await;

    let request = v1::SwitchOverRequest { from: "pg-2".to_owned(), to: "pg-1".to_owned() };
    let refused = first.switch_over(stamp(request)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "not the primary: {refused}");
    let request = v1::SwitchOverRequest { from: "pg-1".to_owned(), to: "pg-2".to_owned() };
    let switched = first.switch_over(stamp(request)).await.unwrap().into_inner();
    assert!(!switched.undetermined);
    until(&mut second, "the other primary", |_, answer| is_primary(answer) && answer["timeline"] == 2).await;
    standby(&mut first, 2).await;

    let old = postmaster(&one);
    first.reinitialize_node(stamp(v1::ReinitializeNodeRequest { system_id: 7 })).await.unwrap_err();
    first.reinitialize_node(stamp(v1::ReinitializeNodeRequest { system_id: system })).await.unwrap();
    until(&mut first, "another PostgreSQL", |_, answer| {
        answer["replication_state"] == "streaming" && postmaster(&one) != old
    })
    .await;
    assert_eq!(standby(&mut first, 2).await.data.unwrap().system_id, system);

    stop(&mut first, 60).await;
    stop(&mut second, 60).await;
    nothing_is_left(&one);
    nothing_is_left(&two);
}
