//! Certificates, tokens and binaries of others → refused, by the commands and by real agents, one row an attack.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use raftsman_api::fence::stamp;
use raftsman_api::hex;
use raftsman_api::tls::{ClientTls, Identity, connect, key_of};
use raftsman_api::v1::agent_client::AgentClient;
use raftsman_api::v1::install_etcd_request::Part;
use raftsman_api::v1::{self, ReportRequest, StopEtcdRequest};
use raftsman_tests::files::write_private;
use raftsman_tests::lab::{Lab, binary};
use tonic::transport::Channel;
use tonic::{Code, Request};

const EVIL: &[u8] = b"#!/bin/sh\ntouch /tmp/raftsman-was-here\n";

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode() & 0o777
}

/// What `raftsman cert issue --agent-role` wrote, in use.
struct Role {
    identity: Identity,
    trust: String,
}

impl Role {
    fn issued(lab: &Lab, name: &str, role: &str) -> Self {
        let issued = lab.run(&["cert", "issue", name, "--agent-role", role, "--out", "roles", "--json"]).ok().json();
        let file = |key: &str| lab.path().join(issued[key].as_str().expect("a path"));
        assert_eq!(mode(&file("key")), 0o600);
        let read = |key: &str| fs::read_to_string(file(key)).expect("a file");
        let identity = Identity::from_pem(&read("certificate"), &read("key")).expect("an identity");
        Self { identity, trust: read("ca") }
    }

    async fn client(&self, lab: &Lab) -> Result<AgentClient<Channel>, String> {
        let id = lab.fleet_id().expect("an id");
        let tls = ClientTls::claimed(&self.identity, &self.trust, "main-1", &id).expect("TLS");
        let at = (lab.address("main-1"), 2378).into();
        connect(at, &tls).await.map(|it| AgentClient::new(it.channel)).map_err(|e| raftsman_engine::error_chain(&e))
    }
}

fn generation(lab: &Lab) -> u64 {
    let text = fs::read_to_string(lab.path().join(".raftsman/generation")).expect("a generation");
    text.trim().parse().expect("a number")
}

fn head(program: &str) -> v1::InstallEtcdHead {
    v1::InstallEtcdHead { version: "3.6.15".to_owned(), sha256: hex::sha256(EVIL), program: program.to_owned() }
}

/// A cluster with certificates for its readers and operators: what each of them can do, and until when.
#[tokio::test]
async fn roles_of_agents() {
    let lab = Lab::cluster(1, "3.6.15", &[]);
    lab.apply();
    let (reader, operator) = (Role::issued(&lab, "monitoring", "reader"), Role::issued(&lab, "eve", "operator"));
    let newest = generation(&lab);
    let mut refusals = Vec::new();
    let mut refused = |attack: &'static str, status: tonic::Status, code: Code| {
        assert_eq!(status.code(), code, "{attack}: {status:?}");
        refusals.push(attack);
    };

    let mut client = reader.client(&lab).await.expect("a reader gets in");
    client.report(ReportRequest::default()).await.expect("and may look");
    let stop = || stamp(Request::new(StopEtcdRequest { grace_seconds: 1, ..StopEtcdRequest::default() }), newest);
    refused("a reader stops etcd", client.stop_etcd(stop()).await.unwrap_err(), Code::PermissionDenied);
    let far = stamp(Request::new(StopEtcdRequest { grace_seconds: 1, ..StopEtcdRequest::default() }), u64::MAX);
    refused("a reader moves the fence", client.stop_etcd(far).await.unwrap_err(), Code::PermissionDenied);

    let mut client = operator.client(&lab).await.expect("an operator gets in");
    for (attack, generation) in [("the last generation", u64::MAX), ("one far ahead", newest + (1 << 33))] {
        let status = client
            .stop_etcd(stamp(
                Request::new(StopEtcdRequest { grace_seconds: 1, ..StopEtcdRequest::default() }),
                generation,
            ))
            .await;
        refused(attack, status.unwrap_err(), Code::FailedPrecondition);
    }
    for (attack, program) in [("an etcdutl of its own", "etcdutl"), ("an etcd of its own", "etcd")] {
        let parts = [Part::Head(head(program)), Part::Chunk(EVIL.to_vec())];
        let parts = futures::stream::iter(parts.map(|part| v1::InstallEtcdRequest { part: Some(part) }));
        let status = client.install_etcd(stamp(Request::new(parts), newest)).await.unwrap_err();
        refused(attack, status, Code::PermissionDenied);
    }
    let pins = v1::PinBinariesRequest { binaries: vec![head("etcdutl")] };
    let status = client.pin_binaries(stamp(Request::new(pins), newest)).await.unwrap_err();
    refused("an operator vouches for its binary", status, Code::PermissionDenied);
    let access = v1::SetAccessRequest { trust_pem: operator.trust.clone(), revoked: Vec::new() };
    let status = client.set_access(stamp(Request::new(access), newest)).await.unwrap_err();
    refused("an operator changes which clients are accepted", status, Code::PermissionDenied);
    let status = client.deliver(stamp(Request::new(v1::DeliverRequest::default()), newest)).await.unwrap_err();
    refused("an operator sets the console's password", status, Code::PermissionDenied);
    let status = client.set_firewall(stamp(Request::new(v1::SetFirewallRequest::default()), newest)).await.unwrap_err();
    refused("an operator opens the firewall", status, Code::PermissionDenied);
    let status = client.set_backups(stamp(Request::new(v1::SetBackupsRequest::default()), newest)).await.unwrap_err();
    refused("an operator sends backups elsewhere", status, Code::PermissionDenied);
    let program = futures::stream::iter([v1::UpgradeAgentRequest::default()]);
    let status = client.upgrade_agent(stamp(Request::new(program), newest)).await.unwrap_err();
    refused("an operator replaces the agent's program", status, Code::PermissionDenied);
    // The fence has not moved: raftsman's own calls are accepted.
    lab.nothing_to_do();

    // Its certificate is revoked: on the connection that is open too.
    lab.run(&["cert", "revoke", "roles/eve.crt"]).ok();
    let status = client.report(ReportRequest::default()).await.unwrap_err();
    refused("a revoked certificate on an open connection", status, Code::Unauthenticated);
    operator.client(&lab).await.expect_err("a revoked certificate on a new one");
    let key = key_of(&operator.identity.chain[0]).expect("a key");
    lab.run(&["cert", "revoke", &key]).ok();
    lab.run(&["cert", "revoke", "nonsense"]).failed();
    reader.client(&lab).await.expect("others are not").report(ReportRequest::default()).await.expect("may look");
    lab.nothing_to_do();

    // A new CA for the fleet. Certificates of the old one are rejected then.
    let etcds = lab.etcds();
    let said = lab.run(&["cert", "rotate", "fleet", "--yes"]).ok().stdout;
    let phases = ["1/3", "2/3", "3/3", "The fleet has a new CA"].map(|phase| said.find(phase));
    assert!(phases.iter().all(Option::is_some) && phases.is_sorted(), "{said}");
    reader.client(&lab).await.expect_err("a certificate of the old CA");
    let secrets = lab.listing("secrets");
    assert!(secrets.contains(&"fleet-2.age".to_owned()) && !secrets.contains(&"fleet.age".to_owned()), "{secrets:?}");
    lab.nothing_to_do();
    assert_eq!(lab.etcds(), etcds, "etcd is not touched");
    fs::remove_dir_all(lab.path().join("roles")).expect("the old ones");
    let again = Role::issued(&lab, "monitoring", "reader");
    again.client(&lab).await.expect("one of the new CA").report(ReportRequest::default()).await.expect("may look");
    // Revoked keys stay revoked, and new machines trust the new CA.
    let list = lab.run(&["cert", "list", "--json"]).ok().json();
    let agents = list["certificates"].as_array().expect("a list").iter().filter(|it| it["what"] == "agent");
    assert!(agents.clone().count() == 1 && agents.clone().all(|it| it["renewal"].is_string()), "{list}");
    assert_eq!(refusals.len(), 13, "{refusals:?}");
    assert!(!Path::new("/tmp/raftsman-was-here").exists());
}

/// Files that a command would write or read.
#[test]
fn files_of_others() {
    let lab = Lab::cluster(1, "3.6.15", &[]);
    lab.apply();
    // Never overwritten, never shortened in silence, and `root` for a day.
    let issue = |more: &[&str]| lab.run(&[&["cert", "issue"], more].concat());
    let alice = issue(&["alice", "--out", "certs"]).ok();
    assert!(!alice.stderr.contains("warning:"), "{}", alice.stderr);
    let before = fs::read(lab.path().join("certs/alice.key")).expect("a key");
    let refused = issue(&["alice", "--out", "certs"]).failed().all();
    assert!(refused.contains("there already") && refused.contains("--force"), "{refused}");
    assert_eq!(fs::read(lab.path().join("certs/alice.key")).expect("a key"), before);
    issue(&["bob", "--out", "certs"]).ok();
    issue(&["alice", "--out", "certs", "--force"]).ok();
    assert_ne!(fs::read(lab.path().join("certs/alice.key")).expect("a key"), before);
    write_private(lab.path().join("certs/ca.crt"), "another CA");
    let refused = issue(&["carol", "--out", "certs"]).failed().all();
    assert!(refused.contains("ca.crt is there already"), "{refused}");
    assert!(!lab.path().join("certs/carol.key").exists());

    let root = issue(&["root", "--out", "root", "--json"]).ok();
    let hours = |output: &raftsman_tests::lab::Output| {
        let until: jiff::Timestamp = output.json()["not_after"].as_str().expect("a time").parse().expect("a time");
        until.duration_since(jiff::Timestamp::now()).as_hours()
    };
    assert!(hours(&root) < 25 && root.json()["warnings"] == serde_json::json!([]), "{}", root.stdout);
    let root = issue(&["root", "--out", "root90", "--validity", "90d", "--json"]).ok();
    assert!(root.stderr.contains("warning:") && root.stderr.contains("no revocation list"), "{}", root.stderr);
    let long = issue(&["dave", "--out", "long", "--validity", "20y", "--json"]).ok();
    assert!(long.stderr.contains("instead of 7300 days"), "{}", long.stderr);
    for attack in ["../up", "-rf", ".hidden", "a/b", "$(id)"] {
        issue(&["--out", "names", "--", attack]).failed();
    }
    assert!(!lab.path().join("names").exists());

    // Whatever the umask, and whichever user made the directory.
    fs::create_dir_all(lab.path().join(".raftsman/clients")).expect("a directory");
    fs::set_permissions(lab.path().join(".raftsman/clients"), fs::Permissions::from_mode(0o777)).expect("its mode");
    let raftsman = binary("raftsman");
    let open = Command::new("sh")
        .args(["-c", "umask 000; exec \"$0\" env", &raftsman.display().to_string()])
        .current_dir(lab.path())
        .output()
        .expect("it runs");
    assert!(open.status.success(), "{open:?}");
    for (path, wanted) in [("", 0o700), ("main", 0o700), ("main/root.key", 0o600)] {
        assert_eq!(mode(&lab.path().join(".raftsman/clients").join(path)), wanted, "{path}");
    }

    // Two files with one key: refused by `check`, with the place, and by all that would use it.
    let certificate = |name: &str, key: &str| {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-days", "30", "-subj", &format!("/CN={name}"), "-key", key, "-out"])
            .arg(format!("{name}.crt"))
            .args(["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"])
            .current_dir(lab.path())
            .output()
            .expect("openssl");
        assert!(made.status.success(), "{made:?}");
    };
    for key in ["one.key", "two.key"] {
        let made = Command::new("openssl")
            .args(["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key])
            .current_dir(lab.path())
            .output();
        assert!(made.expect("openssl").status.success());
        fs::set_permissions(lab.path().join(key), fs::Permissions::from_mode(0o600)).expect("its mode");
    }
    certificate("peers", "one.key");
    certificate("clients", "one.key");
    certificate("others", "two.key");
    fs::copy(lab.path().join("one.key"), lab.path().join("copy.key")).expect("a copy");
    let file = |clients: &str, key: &str| {
        let brought =
            |cert: &str, key: &str| format!("{{ brought: {{ certificate: {cert}, key: {{ file: {key} }} }} }}");
        let (peers, clients) = (brought("peers.crt", "one.key"), brought(clients, key));
        format!("{}    ca: {{ peers: {peers}, clients: {clients} }}\n", lab.file())
    };
    let plain = lab.file();
    fs::write(lab.path().join("shared.yaml"), file("clients.crt", "copy.key")).expect("a file");
    fs::write(lab.path().join("apart.yaml"), file("others.crt", "two.key")).expect("a file");
    for verb in ["check", "plan"] {
        let refused = lab.run(&[verb, "--file", "shared.yaml"]).failed().all();
        assert!(refused.contains("ca-shared") && refused.contains("shared.yaml:"), "{refused}");
    }
    lab.run(&["check", "--file", "apart.yaml"]).ok();
    assert_eq!(lab.file(), plain);

    // A file that is too large costs neither memory nor time: this one is 1 GiB of zeros.
    let huge = fs::File::create(lab.path().join("huge.yaml")).expect("a file");
    huge.set_len(1 << 30).expect("its size");
    let refused = lab.run(&["check", "--file", "huge.yaml"]).failed().all();
    assert!(refused.contains("larger than 8 MiB"), "{refused}");
    let refused = lab.run(&["check", "--file", "/dev/zero"]).failed().all();
    assert!(refused.contains("larger than 8 MiB"), "{refused}");
}

/// The data with which a host joins.
#[test]
fn join_tokens() {
    let lab = Lab::new(
        "fleet: lab\nmachines: { provider: hosts }\netcd:\n  main:\n    members: [{ name: db1, address: 127.9.9.1 }]\n",
    );
    let boot = |more: &[&str]| lab.run(&[&["join", "db1", "--json"], more].concat()).ok().json();
    let (first, second) = (boot(&[]), boot(&[]));
    let token = |it: &serde_json::Value| it["boot"]["join_token"].as_str().expect("a token").to_owned();
    assert_ne!(token(&first), token(&second), "each is new");
    let minutes = |it: &serde_json::Value| {
        let until: jiff::Timestamp = it["until"].as_str().expect("a time").parse().expect("a time");
        assert_eq!(it["until"], it["boot"]["join_deadline"], "the agent knows it too");
        until.duration_since(jiff::Timestamp::now()).as_secs() / 60
    };
    assert!((58..=60).contains(&minutes(&first)));
    assert!((3..=5).contains(&minutes(&boot(&["--valid-for", "5m"]))));
    for (attack, time) in [("for ever", "10y"), ("for no time", "0s"), ("for a moment", "1s")] {
        let refused = lab.run(&["join", "db1", "--valid-for", time]).failed().all();
        assert!(refused.contains("at most 7 days"), "{attack}: {refused}");
    }
}
