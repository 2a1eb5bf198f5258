//! Clients that attack a cluster while it is bootstrapped, restored or left half made → none gets a write or a user in.

#![allow(clippy::print_stdout, reason = "a test says what it met")]

use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Permission, UserAddOptions};
use jiff::Timestamp;
use raftsman_api::tls::Identity;
use raftsman_core::desired::CLIENT_PORT;
use raftsman_engine::pki::{Authority, AuthorityKind};
use raftsman_etcd::{Credentials, dial};
use raftsman_tests::dice::Dice;
use raftsman_tests::lab::{Lab, eventually, kill, soak};
use rustix::process::Signal;
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const HOUR: Duration = Duration::from_secs(3600);
/// Passwords take etcd a while, and ten attackers have just tried many.
const LONG: &str = "--command-timeout=30s";
/// So many attack at once: each of the kinds of [`Attacker`], several times.
const ATTACKERS: usize = 10;

/// Which way an attacker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Grpc,
    Gateway,
}

/// What an attacker shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shows {
    /// No certificate.
    Nothing,
    /// A certificate for `root`, of a CA of its own.
    Foreign,
    /// A certificate for an ordinary client, of the CA that the file names: it was there before the cluster.
    Ordinary,
}

/// Every attack, by name.
const ATTACKS: [(&str, Way, Shows); 6] = [
    ("gRPC without a certificate", Way::Grpc, Shows::Nothing),
    ("the gateway without a certificate", Way::Gateway, Shows::Nothing),
    ("gRPC with a foreign certificate for root", Way::Grpc, Shows::Foreign),
    ("the gateway with a foreign certificate for root", Way::Gateway, Shows::Foreign),
    ("gRPC with an ordinary certificate", Way::Grpc, Shows::Ordinary),
    ("the gateway with an ordinary certificate", Way::Gateway, Shows::Ordinary),
];

fn authority(kind: AuthorityKind, name: &str) -> Authority {
    let algorithm = raftsman_core::spec::KeyAlgorithm::EcdsaP256;
    Authority::make(kind, name, None, algorithm, Timestamp::now(), HOUR).expect("an authority")
}

fn identity(authority: &Authority, user: &str) -> Identity {
    let (chain, key) = authority.issue_client(user, None, HOUR, Timestamp::now()).expect("a certificate");
    Identity::from_pem(&chain, key.expose_secret()).expect("an identity")
}

/// Attackers that try everything on every member, again and again, until they are stopped.
struct Siege {
    runtime: tokio::runtime::Runtime,
    over: Arc<AtomicBool>,
    tries: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
    attackers: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

impl Siege {
    /// Attacks this lab. `clients` is the CA that the file names, where it names one.
    fn of(lab: &Lab, clients: Option<&Authority>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
        let over = Arc::new(AtomicBool::new(false));
        let (tries, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let foreign = identity(&authority(AuthorityKind::EtcdClients, "a foreign CA"), "root");
        let known = ATTACKS.iter().filter(|(_, _, shows)| *shows != Shows::Ordinary || clients.is_some());
        let attackers = known
            .cycle()
            .take(ATTACKERS)
            .map(|(name, way, shows)| {
                let shown = match shows {
                    Shows::Nothing => None,
                    Shows::Foreign => Some(foreign.clone()),
                    Shows::Ordinary => clients.map(|authority| identity(authority, "eve")),
                };
                let (over, state) = (Arc::clone(&over), lab.path().join(".raftsman"));
                let (tries, answered) = (Arc::clone(&tries), Arc::clone(&answered));
                runtime.spawn(async move {
                    let mut breaches = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        // The server's CA is no secret.
                        let Some(ca) = server_ca(&state) else { continue };
                        for address in addresses(&state) {
                            let Ok(credentials) = Credentials::new(&ca, shown.as_ref(), None) else { continue };
                            tries.fetch_add(1, Ordering::Relaxed);
                            let done = match way {
                                Way::Grpc => by_grpc(address, &credentials, &answered).await,
                                Way::Gateway => by_gateway(address, &credentials, &answered).await,
                            };
                            breaches.extend(done.into_iter().map(|what| format!("{name} at {address}: {what}")));
                        }
                    }
                    breaches
                })
            })
            .collect();
        Self { runtime, over, tries, answered, attackers }
    }

    /// Ends it; none of them got anything in.
    #[track_caller]
    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        let breaches: Vec<String> = self.runtime.block_on(async {
            let mut all = Vec::new();
            for attacker in self.attackers {
                all.extend(attacker.await.expect("an attacker ends"));
            }
            all
        });
        let (tries, answered) = (self.tries.load(Ordering::Relaxed), self.answered.load(Ordering::Relaxed));
        println!("{tries} tries, of which etcd itself answered {answered}");
        assert!(tries > 10, "the attackers were there: {tries} tries");
        assert_eq!(breaches, Vec::<String>::new(), "an attacker got something in");
    }
}

fn server_ca(state: &Path) -> Option<String> {
    let found = std::fs::read_dir(state.join("certificates")).ok()?.flatten();
    let certificates = found.map(|entry| entry.path());
    let of_clients =
        |path: &std::path::PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().contains("clients"));
    let texts = certificates.filter(of_clients).filter_map(|path| std::fs::read_to_string(path).ok());
    Some(texts.collect::<String>()).filter(|text| text.contains("END CERTIFICATE"))
}

fn addresses(state: &Path) -> Vec<Ipv4Addr> {
    let machines = std::fs::read_dir(state.join("machines")).into_iter().flatten().flatten();
    let tag = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("machine.json")).ok()?;
        serde_json::from_str::<serde_json::Value>(&text).ok()?["address"].as_str()?.parse().ok()
    };
    machines.filter_map(|entry| tag(entry.path())).collect()
}

/// What was done to the cluster over gRPC.
async fn by_grpc(address: Ipv4Addr, credentials: &Credentials, answered: &AtomicU64) -> Vec<&'static str> {
    let mut done = Vec::new();
    let limit = Duration::from_millis(500);
    let dialled = tokio::time::timeout(limit, dial(std::net::IpAddr::V4(address), credentials)).await;
    let Ok(Ok(mut client)) = dialled else { return done };
    let mut note = |what, outcome: Result<Result<(), etcd_client::Error>, tokio::time::error::Elapsed>| match outcome {
        Ok(Ok(())) => done.push(what),
        Ok(Err(etcd_client::Error::GRpcStatus(status))) if status.message().contains("etcdserver") => {
            answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Err(_)) | Err(_) => {}
    };
    let open = Some(UserAddOptions::new().with_no_pwd());
    note("role add", tokio::time::timeout(limit, async { client.role_add("evil").await.map(drop) }).await);
    let all = Permission::read_write("").with_all_keys();
    let grant = async { client.role_grant_permission("evil", all).await.map(drop) };
    note("role grant", tokio::time::timeout(limit, grant).await);
    note("user add", tokio::time::timeout(limit, async { client.user_add("eve", "", open).await.map(drop) }).await);
    note(
        "user grant",
        tokio::time::timeout(limit, async { client.user_grant_role("eve", "root").await.map(drop) }).await,
    );
    note("put", tokio::time::timeout(limit, async { client.put("evil", "1", None).await.map(drop) }).await);
    // Not a lease: 3.4 gives one to every client that it accepts, also with auth.
    done
}

/// What was done to the cluster through etcd's gateway.
async fn by_gateway(address: Ipv4Addr, credentials: &Credentials, answered: &AtomicU64) -> Vec<&'static str> {
    let calls = [
        ("role add", "/v3/auth/role/add", r#"{"name":"evil"}"#),
        ("user add", "/v3/auth/user/add", r#"{"name":"mallory","password":"x"}"#),
        ("user grant", "/v3/auth/user/grant", r#"{"user":"mallory","role":"root"}"#),
        ("put", "/v3/kv/put", r#"{"key":"ZXZpbA==","value":"MQ=="}"#),
    ];
    let mut done = Vec::new();
    for (what, path, body) in calls {
        let call = async {
            let tcp = TcpStream::connect((address, CLIENT_PORT)).await.ok()?;
            let name = std::net::IpAddr::V4(address).into();
            let mut stream = credentials.connector().connect(name, tcp).await.ok()?;
            let request = format!(
                "POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = Vec::new();
            let _ = (&mut stream).take(4096).read_to_end(&mut answer).await;
            Some(String::from_utf8_lossy(&answer).into_owned())
        };
        match tokio::time::timeout(Duration::from_millis(500), call).await {
            Ok(Some(answer)) if answer.starts_with("HTTP/1.1 200") => done.push(what),
            Ok(Some(answer)) if answer.starts_with("HTTP/1.1") => {
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) | Err(_) => {}
        }
    }
    done
}

/// A way to run a cluster, and the CA that the file names for its clients.
fn lab(version: &str, members: usize, mode: &str, brought: bool) -> (Lab, Option<Authority>) {
    let auth = format!("auth: {{ mode: {mode} }}");
    let ca = "ca: { clients: { brought: { certificate: clients.crt, key: { file: clients.key } } } }";
    let mut further = vec![auth.as_str()];
    further.extend(brought.then_some(ca));
    let lab = Lab::cluster(members, version, &further);
    let clients = brought.then(|| {
        let authority = authority(AuthorityKind::EtcdClients, "a CA of the house");
        let write = |name: &str, text: &str| std::fs::write(lab.path().join(name), text).expect("written");
        write("clients.crt", authority.certificate_pem());
        write("clients.key", authority.key_pem().expose_secret());
        std::fs::set_permissions(lab.path().join("clients.key"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .expect("0600");
        authority
    });
    (lab, clients)
}

/// Nothing is there that the file does not say.
#[track_caller]
fn untouched(lab: &Lab) {
    assert_eq!(lab.etcdctl(&["user", "list", LONG]).ok().stdout.trim(), "root");
    assert_eq!(lab.etcdctl(&["role", "list", LONG]).ok().stdout.trim(), "");
    assert_eq!(lab.etcdctl(&["get", "", "--prefix", "--keys-only", LONG]).ok().stdout.trim(), "");
    lab.nothing_to_do();
}

/// Versions, modes and whether the clients' CA is brought. The first ones are those of every run.
const CLUSTERS: [(&str, &str, bool); 8] = [
    ("3.6.15", "password", false),
    ("3.4.45", "certificate", true),
    ("3.7.2", "password", true),
    ("3.5.34", "password", false),
    ("3.6.15", "certificate", true),
    ("3.5.34", "certificate", true),
    ("3.7.2", "certificate", false),
    ("3.4.45", "password", false),
];

#[test]
fn no_client_gets_in_before_auth_is_on() {
    let rounds = if soak() { 200 } else { 2 };
    for (round, (version, mode, brought)) in CLUSTERS.iter().cycle().take(rounds).enumerate() {
        println!("round {round}: {version}, {mode}, brought: {brought}");
        let (lab, clients) = lab(version, 3, mode, *brought);
        let siege = Siege::of(&lab, clients.as_ref());
        lab.apply();
        std::thread::sleep(Duration::from_millis(200));
        siege.end();
        untouched(&lab);
        lab.destroy();
    }
}

/// Killed after every step, the cluster is left to the attackers for a while; then it is finished.
#[test]
fn a_killed_bootstrap_leaves_nothing_open() {
    // Of the twelve steps, the eighth starts etcd, and the tenth turns auth on.
    let steps: Vec<usize> = (1..=12).collect();
    let kills = if soak() { steps.repeat(2) } else { Dice::of_this_run("bootstrap").some(&steps, 2) };
    for (round, after) in kills.into_iter().enumerate() {
        let (version, mode, brought) = CLUSTERS[round % CLUSTERS.len()];
        let (lab, clients) = lab(version, 1, mode, brought);
        let siege = Siege::of(&lab, clients.as_ref());
        let mut apply = lab.spawn(&["apply", "--yes", "--json", "--timeout", "60s"]);
        let lines = BufReader::new(apply.stdout.take().expect("its output")).lines().map_while(Result::ok);
        let done = lines.filter(|line| line.contains(r#""event":"done""#)).take(after).last();
        kill(apply.id(), Signal::KILL);
        apply.wait().expect("it was ours");
        println!("round {round}: {version}, {mode}, brought: {brought}: killed after {}", done.unwrap_or_default());
        std::thread::sleep(Duration::from_millis(1_500));
        lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
        siege.end();
        untouched(&lab);
        lab.destroy();
    }
}

/// A backup of the time before auth was on is restored, and then a majority is lost: the attackers are there all the time.
#[test]
fn a_restore_and_a_recovery_leave_nothing_open() {
    let shelf = tempfile::tempdir().expect("a directory");
    let (lab, clients) = lab("3.6.15", 3, "none", true);
    lab.write_file(&format!("{}backups:\n  store: {{ directory: {:?} }}\n", lab.file(), shelf.path()));
    lab.apply();
    lab.etcdctl(&["put", "kept", "1"]).ok();
    lab.run(&["backup", "now"]).ok();
    lab.write_file(&lab.file().replace("mode: none", "mode: certificate"));
    lab.apply();

    let siege = Siege::of(&lab, clients.as_ref());
    lab.run(&["restore", "--yes", "--timeout", "120s"]).ok();
    siege.end();
    as_restored(&lab);

    lab.demolish("main-1");
    lab.demolish("main-3");
    let siege = Siege::of(&lab, clients.as_ref());
    eventually("it is clear what is left", || (lab.run(&["recover", "--show"]).code == 0).then_some(()));
    lab.run(&["recover", "--yes", "--timeout", "120s"]).ok();
    siege.end();
    as_restored(&lab);
    lab.destroy();
}

/// What was backed up is there, and nothing of an attacker.
#[track_caller]
fn as_restored(lab: &Lab) {
    assert_eq!(lab.etcdctl(&["user", "list", LONG]).ok().stdout.trim(), "root");
    assert_eq!(lab.etcdctl(&["get", "", "--prefix", "--keys-only", LONG]).ok().stdout.trim(), "kept");
    lab.nothing_to_do();
}
