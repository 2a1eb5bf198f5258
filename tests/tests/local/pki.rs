//! CAs change on real etcd: clients with the current bundle notice nothing, and every member rejects the old CAs.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use raftsman_engine::pki::{Authority, AuthorityKind};
use raftsman_engine::store::{IdentitySource, Store};
use raftsman_tests::files::write_private;
use raftsman_tests::lab::engine::block_on;
use raftsman_tests::lab::{Lab, eventually, forecast_equals_fact, kill, soak};
use raftsman_tests::load::{Load, LoadSettings};
use rustix::process::Signal;
use secrecy::ExposeSecret as _;
use serde_json::Value;

const AGENTS: u16 = 2378;
const CLIENTS: u16 = 2379;
const PEERS: u16 = 2380;

/// Five members where there is time.
fn members() -> usize {
    if soak() { 5 } else { 3 }
}

/// A client: its certificate, its key and the CAs that it trusts, as files.
#[derive(Clone)]
struct TestClient {
    dir: PathBuf,
}

/// What became of one TLS connection.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Accepted,
    /// By the server, or by the client that verifies the server's certificate; in openssl's words.
    Rejected(String),
    /// The server is stopping, or has not started yet.
    Unreachable,
}

impl TestClient {
    /// A client with an empty common name, from the CA that the state keeps under this name; it trusts that CA alone.
    fn of(lab: &Lab, kept: &str, kind: AuthorityKind) -> Self {
        let store = block_on(Store::open(&lab.path().join(".raftsman"), "lab")).expect("the state");
        let secrets = block_on(store.unlock(IdentitySource::State(None))).expect("the secrets");
        let key = block_on(secrets.get(kept)).expect("readable").unwrap_or_else(|| panic!("no key of {kept}"));
        let certificate = block_on(store.get_certificate(kept)).expect("readable").expect("a certificate");
        let authority = Authority::load(kind, &certificate, &key).expect("an authority");
        let day = Duration::from_secs(24 * 3600);
        let issued = authority.issue_client("", Some("lab"), day, jiff::Timestamp::now()).expect("a certificate");
        let dir = lab.path().join(format!("client-of-{kept}"));
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join("tls.crt"), issued.0).expect("written");
        std::fs::write(dir.join("tls.key"), issued.1.expose_secret()).expect("written");
        std::fs::write(dir.join("ca.crt"), certificate).expect("written");
        Self { dir }
    }

    /// A client as `raftsman cert issue` equips it.
    #[track_caller]
    fn issued(lab: &Lab, directory: &str) -> Self {
        lab.run(&["cert", "issue", "tls", "--out", directory]).ok();
        Self { dir: lab.path().join(directory) }
    }

    /// Connects with openssl, not with raftsman's code. `verifies`: checks the server's certificate with `ca.crt`.
    fn connect(&self, address: &str, port: u16, verifies: bool) -> Outcome {
        let file = |name: &str| self.dir.join(name).to_string_lossy().into_owned();
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-connect", &format!("{address}:{port}")]).args([
            "-cert",
            &file("tls.crt"),
            "-key",
            &file("tls.key"),
        ]);
        if verifies {
            command.args(["-verify_return_error", "-CAfile", &file("ca.crt")]);
        }
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("openssl");
        let question = format!("GET /version HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        // A rejected openssl may have exited already.
        let _ = child.stdin.take().expect("piped").write_all(question.as_bytes());
        let output = child.wait_with_output().expect("it ends");
        let (answer, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        match answer.contains("etcdserver") {
            true => Outcome::Accepted,
            false if ["alert", "verify error", "verify failed"].iter().any(|word| why.contains(word)) => {
                Outcome::Rejected(format!("{address}:{port}: {why}"))
            }
            false => Outcome::Unreachable,
        }
    }
}

/// Connects to every member in a loop, with a new handshake each time.
struct Prober {
    stop: Arc<AtomicBool>,
    probes: JoinHandle<(u32, Vec<String>)>,
}

impl Prober {
    fn start(lab: &Lab, client: &TestClient) -> Self {
        let (stop, client, addresses) = (Arc::new(AtomicBool::new(false)), client.clone(), lab.addresses());
        let stopped = Arc::clone(&stop);
        let probes = std::thread::spawn(move || {
            let (mut accepted, mut rejected) = (0, Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                for address in &addresses {
                    match client.connect(&address.to_string(), CLIENTS, true) {
                        Outcome::Accepted => accepted += 1,
                        Outcome::Rejected(why) => rejected.push(why),
                        Outcome::Unreachable => {}
                    }
                    // The probes must not load the machine.
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
            (accepted, rejected)
        });
        Self { stop, probes }
    }

    /// How many connections were accepted, and why the others were rejected.
    fn finish(self) -> (u32, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        self.probes.join().expect("the thread ends")
    }

    #[track_caller]
    fn all_accepted(self) -> u32 {
        let (accepted, rejected) = self.finish();
        assert_eq!(rejected, Vec::<String>::new());
        assert!(accepted > 10, "{accepted} connections prove nothing");
        accepted
    }
}

/// Asserts that every member accepts, or rejects, this client.
#[track_caller]
fn everywhere(lab: &Lab, port: u16, client: &TestClient, expected: bool) {
    for address in lab.addresses() {
        let answer = eventually("the server answers", || {
            let outcome = client.connect(&address.to_string(), port, false);
            (outcome != Outcome::Unreachable).then_some(outcome)
        });
        assert_eq!(answer == Outcome::Accepted, expected, "at {address}:{port}: {answer:?}");
    }
}

/// Rotates, and holds the forecast against what was done.
#[track_caller]
fn rotate(lab: &Lab, arguments: &[&str]) {
    let all = [&["cert", "rotate"], arguments, &["--yes", "--json", "--timeout", "60s"]].concat();
    let lines = lab.run(&all).ok().json_lines();
    assert!(lines.iter().any(|line| line["event"] == "wave"), "{lines:?}");
    forecast_equals_fact(&lines);
}

#[track_caller]
fn settled(lab: &Lab) -> Value {
    let status = lab.settled();
    assert_eq!(status["clusters"][0]["settled"], true, "{status}");
    lab.nothing_to_do();
    status["clusters"][0].clone()
}

#[test]
fn both_authorities_change_under_load() {
    let lab = Lab::cluster(members(), "3.6.15", &["certificates: { validity: 2h, renew_before: 1h }"]);
    lab.apply();
    let old_peer = TestClient::of(&lab, "main-peers", AuthorityKind::EtcdPeers);
    let old_client = TestClient::of(&lab, "main-clients", AuthorityKind::EtcdClients);
    everywhere(&lab, PEERS, &old_peer, true);
    everywhere(&lab, PEERS, &old_client, false);
    everywhere(&lab, CLIENTS, &old_client, true);
    everywhere(&lab, CLIENTS, &old_peer, false);

    // These clients trust the old authority only, and show what it signed.
    let load = Load::start(&lab, LoadSettings { rate: 200, ..LoadSettings::default() });
    let prober = Prober::start(&lab, &old_client);
    load.mark("rotate peers");
    rotate(&lab, &["peers"]);
    everywhere(&lab, PEERS, &old_peer, false);
    everywhere(&lab, PEERS, &TestClient::of(&lab, "main-peers-2", AuthorityKind::EtcdPeers), true);
    settled(&lab);

    load.mark("rotate clients");
    rotate(&lab, &["clients"]);
    let status = settled(&lab);
    assert_eq!(status["old_ca_trusted"], serde_json::json!(["clients"]));
    let text = lab.run(&["status"]).ok().stdout;
    assert!(text.contains("the old clients CA is still trusted"), "{text}");
    let text = lab.run(&["cert", "list"]).ok().stdout;
    assert!(text.contains("clients CA (still trusted)") && text.contains("clients CA (signs)"), "{text}");
    let again = lab.run(&["cert", "rotate", "clients", "--yes"]).failed();
    assert!(again.stderr.contains("--finish"), "{}", again.all());
    let new_client = TestClient::of(&lab, "main-clients-2", AuthorityKind::EtcdClients);
    everywhere(&lab, CLIENTS, &old_client, true);
    everywhere(&lab, CLIENTS, &new_client, true);
    println!("handshakes             {} of a client with the old CA", prober.all_accepted());

    // From now on they trust both, and show what the new one signed.
    load.refresh(&lab);
    load.await_writes(100);
    let (prober, late) = (Prober::start(&lab, &TestClient::issued(&lab, "issued")), Prober::start(&lab, &old_client));
    load.mark("finish");
    rotate(&lab, &["clients", "--finish"]);
    everywhere(&lab, CLIENTS, &old_client, false);
    everywhere(&lab, CLIENTS, &new_client, true);
    let (_, heard) = late.finish();
    assert!(!heard.is_empty(), "a client without the new CA is rejected, and so would the others have been");

    // Certificates end, too: each is signed anew, and its key with it.
    load.mark("renew");
    let (pids, shown) = (lab.etcds(), fingerprints(&lab));
    lab.write_file(&lab.file().replace("validity: 2h, renew_before: 1h", "validity: 1000h, renew_before: 900h"));
    lab.apply();
    assert_eq!(lab.etcds(), pids, "no member was restarted");
    let renewed = fingerprints(&lab);
    assert!(shown.iter().all(|old| !renewed.contains(old)), "{shown:?} {renewed:?}");
    load.await_writes(100);
    println!("handshakes             {} of a client with both CAs", prober.all_accepted());
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_clean();

    let status = settled(&lab);
    assert_eq!(status["old_ca_trusted"], serde_json::json!([]));
    let kept = ["fleet.age", "main-clients-2.age", "main-peers-2.age"];
    assert_eq!(lab.listing("secrets"), kept, "nothing of the old ones is left");
    // Agents accept none of them.
    for client in [&old_peer, &old_client, &new_client] {
        everywhere(&lab, AGENTS, client, false);
    }
    lab.destroy();
}

#[test]
fn with_passwords_another_ca_restarts_no_member() {
    let lab = Lab::cluster(3, "3.6.15", &["auth: { mode: password }"]);
    lab.apply();
    let pids = lab.etcds();
    let load = Load::start(&lab, LoadSettings { rate: 100, ..LoadSettings::default() });
    rotate(&lab, &["clients"]);
    load.refresh(&lab);
    load.await_writes(50);
    rotate(&lab, &["clients", "--finish"]);
    load.await_writes(50);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_clean();
    assert_eq!(lab.etcds(), pids, "no member was restarted");
    all_signed_by(&lab, "main etcd peers CA", "main etcd clients CA 2");
    settled(&lab);
    lab.destroy();
}

/// Two CAs that the operator brings, which expire after this time.
fn bring(lab: &Lab, name: &str, lasts: Duration) {
    for side in ["peers", "clients"] {
        bring_one(lab, &format!("{name}-{side}"), lasts);
    }
}

fn bring_one(lab: &Lab, name: &str, lasts: Duration) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::default();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(1970, 1, 1) + (now + lasts);
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    parameters.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
    let certificate = parameters.self_signed(&key).expect("a certificate");
    write_private(lab.path().join(format!("{name}.crt")), &certificate.pem());
    write_private(lab.path().join(format!("{name}.key")), &key.serialize_pem());
}

fn brought(name: &str) -> String {
    let one = |side: &str| {
        format!("{side}: {{ brought: {{ certificate: {name}-{side}.crt, key: {{ file: {name}-{side}.key }} }} }}")
    };
    format!("    ca: {{ {}, {} }}\n", one("peers"), one("clients"))
}

/// What openssl says of the certificate that is shown there.
fn shown(address: &str, port: u16, what: &str) -> String {
    let script =
        format!("openssl s_client -connect {address}:{port} </dev/null 2>/dev/null | openssl x509 -noout {what}");
    let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The issuer's common name in the certificate that is served there.
fn signer(address: &str, port: u16) -> String {
    shown(address, port, "-issuer").rsplit("CN = ").next().unwrap_or_default().to_owned()
}

/// Of every certificate that members show.
fn fingerprints(lab: &Lab) -> Vec<String> {
    let all = lab.addresses().into_iter().flat_map(|address| [PEERS, CLIENTS].map(|port| (address, port)));
    all.map(|(address, port)| shown(&address.to_string(), port, "-fingerprint -sha256")).collect()
}

#[track_caller]
fn all_signed_by(lab: &Lab, peers: &str, clients: &str) {
    for address in lab.addresses() {
        let address = address.to_string();
        assert_eq!((signer(&address, PEERS).as_str(), signer(&address, CLIENTS).as_str()), (peers, clients));
    }
}

#[test]
fn made_then_brought_then_another_then_made() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    lab.etcdctl(&["put", "it", "stays"]).ok();
    let made = lab.file();
    all_signed_by(&lab, "main etcd peers CA", "main etcd clients CA");
    let lasts = Duration::from_secs(400 * 24 * 3600);
    for name in ["ours", "another"] {
        bring(&lab, name, lasts);
        lab.write_file(&format!("{made}{}", brought(name)));
        lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
        rotate(&lab, &["clients", "--finish"]);
        all_signed_by(&lab, &format!("{name}-peers"), &format!("{name}-clients"));
        // When it ends is what the status says of it.
        let first = settled(&lab)["first_ca_expiry"].clone();
        let at: jiff::Timestamp = first["at"].as_str().and_then(|at| at.parse().ok()).expect("a time");
        let left = at.duration_since(jiff::Timestamp::now()).as_secs().unsigned_abs();
        assert!(lasts.as_secs() - 3600 < left && left <= lasts.as_secs(), "{first}");
        assert_eq!(first["due"], false);
        let refused = lab.run(&["cert", "rotate", "peers", "--yes"]).failed();
        assert!(refused.stderr.contains("put another certificate"), "{}", refused.all());
    }
    // What was brought is kept: the files may go before the authority does.
    std::fs::remove_file(lab.path().join("another-peers.key")).expect("it is ours");
    lab.write_file(&made);
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    rotate(&lab, &["clients", "--finish"]);
    all_signed_by(&lab, "main etcd peers CA 4", "main etcd clients CA 4");
    settled(&lab);
    assert_eq!(lab.etcdctl(&["get", "it", "--print-value-only"]).ok().stdout.trim(), "stays");
    lab.destroy();
}

/// Starts it, and kills it once this holds; whether it came to that.
fn killed_when(lab: &Lab, arguments: &[&str], mut holds: impl FnMut() -> bool) -> bool {
    let mut child = lab.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let killed = eventually("it holds, or the command ends", || match holds() {
        true => Some(true),
        false => child.try_wait().expect("it is ours").map(|_| false),
    });
    kill(child.id(), Signal::KILL);
    child.wait().expect("it was ours");
    killed
}

#[test]
fn killed_in_every_phase() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let old_peer = TestClient::of(&lab, "main-peers", AuthorityKind::EtcdPeers);
    let old_client = TestClient::of(&lab, "main-clients", AuthorityKind::EtcdClients);
    let load = Load::start(&lab, LoadSettings { rate: 100, ..LoadSettings::default() });
    let apply = ["apply", "--yes", "--timeout", "60s"];
    let has = |side: &str, what: &str| lab.ledger()[side].get(what).is_some();
    let trust = |machine: &str| {
        std::fs::read_to_string(lab.machine(machine).join("etcd/tls/peer/current/ca.crt")).unwrap_or_default()
    };
    let pids = lab.etcds();
    let restarted = |all: bool| {
        let same = lab.etcds().iter().filter(|found| pids.contains(found)).count();
        if all { same == 0 } else { same < pids.len() }
    };
    let first = ["cert", "rotate", "peers", "--yes"];
    assert!(killed_when(&lab, &first, || lab.listing("secrets").contains(&"main-peers-2.age".to_owned())));
    if !has("peers", "next") {
        // Killed before the ledger recorded it: the key that is left belongs to no CA.
        assert!(killed_when(&lab, &first, || has("peers", "next")));
    }
    assert!(killed_when(&lab, &apply, || trust("main-2").matches("BEGIN CERTIFICATE").count() == 2));
    assert!(killed_when(&lab, &apply, || restarted(false)));
    assert!(killed_when(&lab, &apply, || restarted(true)));
    assert!(killed_when(&lab, &apply, || has("peers", "old")));
    assert!(killed_when(&lab, &apply, || has("peers", "retired")));
    assert!(killed_when(&lab, &apply, || trust("main-3").matches("BEGIN CERTIFICATE").count() == 1));
    // The one that ends it all may be too quick to be killed.
    killed_when(&lab, &apply, || !has("peers", "retired"));
    lab.run(&apply).ok();
    everywhere(&lab, PEERS, &old_peer, false);
    settled(&lab);

    load.refresh(&lab);
    let now = ["cert", "rotate", "clients", "--now", "--yes"];
    assert!(killed_when(&lab, &now, || has("clients", "next")));
    load.refresh(&lab);
    assert!(killed_when(&lab, &apply, || has("clients", "old")));
    // It goes on without waiting for clients: it was asked to.
    load.refresh(&lab);
    killed_when(&lab, &apply, || has("clients", "retired"));
    lab.run(&apply).ok();
    load.refresh(&lab);
    everywhere(&lab, CLIENTS, &old_client, false);
    settled(&lab);
    assert_eq!(lab.listing("secrets"), ["fleet.age", "main-clients-2.age", "main-peers-2.age"]);
    load.await_writes(50);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_consistent();
    lab.destroy();
}

#[test]
fn in_an_emergency_a_machine_that_is_silent_is_left_behind() {
    let lab = Lab::cluster(5, "3.6.15", &[]);
    lab.apply();
    let old_peer = TestClient::of(&lab, "main-peers", AuthorityKind::EtcdPeers);
    let load = Load::start(&lab, LoadSettings { rate: 50, ..LoadSettings::default() });
    let (_, agent) = lab.agents().into_iter().find(|(name, _)| name == "main-5").expect("its agent");
    kill(agent, Signal::STOP);
    let waits = lab.run(&["cert", "rotate", "peers", "--now", "--yes", "--timeout", "30s"]).failed();
    assert!(waits.all().contains("main-5: the agent does not answer"), "{}", waits.all());
    let trust = lab.ledger()["peers"].clone();
    assert_eq!(trust["current"]["number"], 2, "the others did not wait for it: {trust}");
    kill(agent, Signal::CONT);
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    everywhere(&lab, PEERS, &old_peer, false);
    settled(&lab);
    load.await_writes(50);
    let verdict = load.finish();
    println!("{verdict}");
    // One member is left behind and one is restarted: a client that asks both gets no answer, but no wrong one.
    verdict.assert_consistent();
    lab.destroy();
}

#[test]
fn authorities_that_have_ended_are_followed_by_others() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    let made = lab.file();
    let lasts = Duration::from_secs(60);
    let begun = std::time::Instant::now();
    bring(&lab, "short", lasts);
    lab.write_file(&format!("{made}{}", brought("short")));
    lab.run(&["apply", "--yes", "--timeout", "55s"]).ok();
    lab.etcdctl(&["put", "it", "stays"]).ok();
    std::thread::sleep(lasts.saturating_sub(begun.elapsed()) + Duration::from_secs(2));
    let refused = lab.run(&["env"]).failed();
    assert!(refused.stderr.contains("short-clients ended at"), "nothing can be signed any more: {}", refused.all());
    let blocked = lab.run(&["apply", "--yes", "--timeout", "10s"]).failed();
    assert!(blocked.all().contains("the clients CA has expired"), "{}", blocked.all());
    lab.write_file(&made);
    let lines = lab.run(&["apply", "--yes", "--json", "--timeout", "60s"]).ok().json_lines();
    forecast_equals_fact(&lines);
    let together = |line: &Value| line["event"] == "done" && line["action"]["do"] == "restart_together";
    assert!(lines.iter().any(together), "{lines:?}");
    assert_eq!(lab.etcdctl(&["get", "it", "--print-value-only"]).ok().stdout.trim(), "stays");
    settled(&lab);
    lab.destroy();
}
