//! Every size, version and way to log in, and what real clusters must do beside coming up.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use raftsman_tests::dice::Dice;
use raftsman_tests::lab::{Lab, Output, binary, etcd_dir, soak};
use serde_json::{Value, json};

const PASSWORD: &str = "auth: { mode: password }";

/// What a command printed and how it ended.
fn run(program: &str, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{program}: {e}"));
    // One that does not read its input may be gone already.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[track_caller]
fn openssl(arguments: &[&str]) -> String {
    run("openssl", arguments, "").ok().stdout
}

/// The answer's body when curl was answered with 200.
fn curl(arguments: &[&str], body: Option<&str>) -> Result<String, Output> {
    let mut all = vec!["-sS", "--max-time", "10", "--fail"];
    all.extend(arguments);
    if body.is_some() {
        all.extend(["-d", "@-"]);
    }
    let output = run("curl", &all, body.unwrap_or_default());
    if output.code == 0 { Ok(output.stdout) } else { Err(output) }
}

fn env(lab: &Lab, cluster: &str) -> Value {
    lab.run(&["env", cluster, "--json"]).ok().json()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().expect("a list").iter().map(|v| text(v).to_owned()).collect()
}

/// Every member rejects clients in plain text, without credentials, and with credentials of another CA.
fn unauthenticated_clients_are_rejected(lab: &Lab, password: bool) {
    let env = env(lab, "main");
    let ca = text(&env["ca"]);
    let (foreign, key) = (lab.path().join("foreign.crt"), lab.path().join("foreign.key"));
    let (foreign, key) = (foreign.to_string_lossy(), key.to_string_lossy());
    let subject = ["-subj", "/CN=root", "-days", "2", "-nodes", "-keyout", &key, "-out", &foreign];
    openssl(&[&["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"][..], &subject].concat());
    for endpoint in texts(&env["endpoints"]) {
        let plain = endpoint.replace("https://", "http://");
        assert!(curl(&[&format!("{plain}/version")], None).is_err(), "plain text at {endpoint}");
        let range = format!("{endpoint}/v3/kv/range");
        let version = format!("{endpoint}/version");
        let clients: [&[&str]; 2] = [&["--cacert", ca], &["--cacert", ca, "--cert", &foreign, "--key", &key]];
        for client in clients {
            // With certificates the handshake fails; with passwords the request after it.
            let (url, body) = if password { (&range, Some(r#"{"key":"YQ=="}"#)) } else { (&version, None) };
            let answer = curl(&[client, &[url.as_str()]].concat(), body);
            assert!(answer.is_err(), "{endpoint} accepted an unauthenticated client: {client:?}: {answer:?}");
        }
        // The same request succeeds with the right credentials.
        if !password {
            let ours = ["--cacert", ca, "--cert", text(&env["certificate"]), "--key", text(&env["key"]), &version];
            assert!(curl(&ours, None).expect("root gets in").contains("etcdserver"));
        }
    }
}

/// Logs in and writes through the JSON gateway of every member, as Patroni does.
fn gateway_works(lab: &Lab) {
    let env = env(lab, "main");
    let ca = text(&env["ca"]);
    let password = std::fs::read_to_string(text(&env["password_file"])).expect("the password");
    let login = json!({ "name": "root", "password": password }).to_string();
    for endpoint in texts(&env["endpoints"]) {
        let answer = curl(&["--cacert", ca, &format!("{endpoint}/v3/auth/authenticate")], Some(&login));
        let answer: Value = serde_json::from_str(&answer.expect("logged in")).expect("JSON");
        let token = format!("Authorization: {}", text(&answer["token"]));
        // The key `gateway`, the value `works`.
        let put = r#"{"key":"Z2F0ZXdheQ==","value":"d29ya3M="}"#;
        curl(&["--cacert", ca, "-H", &token, &format!("{endpoint}/v3/kv/put")], Some(put)).expect("written");
    }
    assert_eq!(lab.etcdctl(&["get", "gateway", "--print-value-only"]).ok().stdout.trim(), "works");
}

/// From nothing to a cluster that does all that it should, and back to nothing.
fn cell(members: usize, version: &str, password: bool) {
    let lab = Lab::cluster(members, version, if password { &[PASSWORD] } else { &[] });
    lab.apply();
    let status = lab.settled();
    let cluster = &status["clusters"][0];
    assert_eq!((&cluster["settled"], &cluster["auth"]), (&json!(true), &json!(true)), "{cluster}");
    assert_eq!(cluster["tolerance"]["can_lose"], (members - 1) / 2);
    let listed = cluster["members"].as_array().expect("members");
    assert_eq!(listed.len(), members);
    for member in listed {
        assert_eq!(member["version"], version);
        assert_eq!(member["probe"], json!({ "anonymous": "denied", "plaintext": "denied", "foreign": "denied" }));
    }
    assert_eq!(lab.etcdctl(&["put", "greeting", "hello"]).ok().stdout.trim(), "OK");
    assert_eq!(lab.etcdctl(&["get", "greeting", "--print-value-only"]).ok().stdout.trim(), "hello");
    unauthenticated_clients_are_rejected(&lab, password);
    if password {
        gateway_works(&lab);
    }
    lab.nothing_to_do();
    let again = lab.apply();
    assert!(again.iter().all(|l| l["event"] != "wave"), "{again:?}");
    lab.destroy();
}

/// Whether this run takes a cell: one size for every version and mode, and over them every size. Four draws are all cells.
fn drawn(members: usize, version: &str, password: bool) -> bool {
    let row = ["3.4.45", "3.5.34", "3.6.15", "3.7.2"].iter().position(|v| *v == version).expect("a version of the lab");
    let turn = Dice::of_this_run("matrix").below(4);
    (row * 2 + usize::from(password) + members / 2 + turn).is_multiple_of(4)
}

/// One test a cell. Every run has a slice that touches every size, version and mode; `RAFTSMAN_SOAK=1` has all of it.
macro_rules! cells {
    ($($name:ident: $members:literal, $version:literal, $mode:ident;)*) => { $(
        #[test]
        fn $name() {
            let password = stringify!($mode) == "password";
            if drawn($members, $version, password) || soak() {
                cell($members, $version, password);
            }
        }
    )* };
}

cells! {
    certificate_1_member_3_5: 1, "3.5.34", certificate;
    certificate_3_members_3_5: 3, "3.5.34", certificate;
    certificate_5_members_3_5: 5, "3.5.34", certificate;
    certificate_7_members_3_5: 7, "3.5.34", certificate;
    certificate_1_member_3_6: 1, "3.6.15", certificate;
    certificate_3_members_3_6: 3, "3.6.15", certificate;
    certificate_5_members_3_6: 5, "3.6.15", certificate;
    certificate_7_members_3_6: 7, "3.6.15", certificate;
    certificate_1_member_3_7: 1, "3.7.2", certificate;
    certificate_3_members_3_7: 3, "3.7.2", certificate;
    certificate_5_members_3_7: 5, "3.7.2", certificate;
    certificate_7_members_3_7: 7, "3.7.2", certificate;
    password_1_member_3_5: 1, "3.5.34", password;
    password_3_members_3_5: 3, "3.5.34", password;
    password_5_members_3_5: 5, "3.5.34", password;
    password_7_members_3_5: 7, "3.5.34", password;
    password_1_member_3_6: 1, "3.6.15", password;
    password_3_members_3_6: 3, "3.6.15", password;
    password_5_members_3_6: 5, "3.6.15", password;
    password_7_members_3_6: 7, "3.6.15", password;
    password_1_member_3_7: 1, "3.7.2", password;
    password_3_members_3_7: 3, "3.7.2", password;
    password_5_members_3_7: 5, "3.7.2", password;
    password_7_members_3_7: 7, "3.7.2", password;
    certificate_1_member_3_4: 1, "3.4.45", certificate;
    certificate_3_members_3_4: 3, "3.4.45", certificate;
    certificate_5_members_3_4: 5, "3.4.45", certificate;
    certificate_7_members_3_4: 7, "3.4.45", certificate;
    password_1_member_3_4: 1, "3.4.45", password;
    password_3_members_3_4: 3, "3.4.45", password;
    password_5_members_3_4: 5, "3.4.45", password;
    password_7_members_3_4: 7, "3.4.45", password;
}

#[test]
fn a_line_without_fixes_is_warned_of() {
    let lab = Lab::cluster(1, "3.4.45", &[]);
    assert!(lab.run(&["check"]).ok().stdout.contains("etcd 3.4 gets no more fixes"));
    for verb in [&["plan"][..], &["apply", "--yes", "--timeout", "30s"]] {
        let stderr = lab.run(verb).ok().stderr;
        assert!(stderr.contains("etcd 3.4 gets no more fixes"), "{verb:?}: {stderr}");
    }
    lab.destroy();
}

fn two_clusters(lines_of_two: &str) -> String {
    let source = format!("source: {{ directory: {:?} }}", etcd_dir());
    let cluster =
        |name: &str, more: &str| format!("  {name}:\n    members: 3\n    version: 3.6.15\n    {source}\n{more}");
    format!("fleet: lab\netcd:\n{}{}", cluster("one", ""), cluster("two", lines_of_two))
}

#[test]
fn two_clusters_in_one_file() {
    let lab = Lab::new(&two_clusters("    auth: { mode: password }\n"));
    lab.apply();
    let status = lab.settled();
    let ids: Vec<&Value> = status["clusters"].as_array().expect("clusters").iter().map(|c| &c["id"]).collect();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);
    for cluster in ["one", "two"] {
        lab.etcdctl_of(cluster, &["put", "whose", cluster]).ok();
    }
    for cluster in ["one", "two"] {
        assert_eq!(lab.etcdctl_of(cluster, &["get", "whose", "--print-value-only"]).ok().stdout.trim(), cluster);
    }
    // Each cluster rejects the credentials of the other.
    let (one, two) = (env(&lab, "one"), env(&lab, "two"));
    let url = format!("{}/version", texts(&one["endpoints"])[0]);
    let foreign = lab.path().join(".raftsman/clients/two");
    let (certificate, key) = (foreign.join("root.crt"), foreign.join("root.key"));
    let (certificate, key) = (certificate.to_string_lossy(), key.to_string_lossy());
    assert!(two["user"] == "root" && Path::new(&*key).exists());
    assert!(curl(&["--cacert", text(&one["ca"]), "--cert", &certificate, "--key", &key, &url], None).is_err());
    // Destroying the one leaves the other alone.
    let pids: Vec<_> = lab.etcds().into_iter().filter(|(name, _)| name.starts_with("two")).collect();
    lab.run(&["destroy", "--yes", "one"]).ok();
    assert_eq!(lab.etcds(), pids);
    assert_eq!(lab.run(&["status", "--json", "two"]).ok().json()["clusters"][0]["settled"], true);
    lab.destroy();
}

#[test]
fn a_stuck_cluster_does_not_hold_up_another() {
    let lab = Lab::new(&two_clusters(""));
    lab.run(&["apply", "--yes", "--timeout", "30s", "one"]).ok();
    let status = lab.run(&["status", "--json"]).json();
    let address = text(&status["clusters"][1]["members"][1]["address"]).to_owned();
    lab.write_file(&two_clusters("").replacen("members: 3\n", "members: 3\n    quota: 4GiB\n", 1));
    let listener = TcpListener::bind((address.as_str(), 2379)).expect("a port that is free");

    let stuck = lab.run(&["apply", "--yes", "--timeout", "10s"]).failed();
    assert_eq!(stuck.code, 1);
    assert!(stuck.stdout.contains("one is as it should be"), "{}", stuck.all());
    assert!(stuck.all().contains("two-2: port 2379 is held by"), "{}", stuck.all());
    assert_eq!(lab.run(&["status", "--json", "one"]).ok().json()["clusters"][0]["settled"], true);

    // Once the way is free, the same command finishes it.
    drop(listener);
    lab.run(&["apply", "--yes", "--timeout", "30s"]).ok();
    lab.run(&["status"]).ok();
    lab.destroy();
}

#[test]
fn a_missing_binary_is_said_before_anything_is_done() {
    let nowhere = two_clusters("").replace("  two:\n", "  two:\n    token: other\n");
    let nowhere = {
        let (head, tail) = nowhere.split_at(nowhere.find("  two:").expect("the second cluster"));
        format!("{head}{}", tail.replace("3.6.15", "3.6.13"))
    };
    let lab = Lab::new(&nowhere);
    let refused = lab.run(&["apply", "--yes", "--timeout", "30s"]).failed();
    assert!(refused.stderr.contains("3.6.13"), "{}", refused.all());
    assert_eq!(lab.processes(), []);
    assert_eq!(lab.listing("machines"), [""; 0]);
    // What does not need it is done when it is asked for by name.
    lab.run(&["apply", "--yes", "--timeout", "30s", "one"]).ok();
    lab.destroy();
}

#[test]
fn fleets_side_by_side_do_not_collide() {
    let labs: Vec<Lab> = (0..4).map(|i| Lab::cluster(if i == 0 { 3 } else { 1 }, "3.6.15", &[])).collect();
    std::thread::scope(|scope| {
        for lab in &labs {
            scope.spawn(|| lab.apply());
        }
    });
    let mut networks: Vec<[u8; 3]> = Vec::new();
    for lab in &labs {
        assert_eq!(lab.cluster_status()["settled"], true);
        let [a, b, c, _] = lab.addresses()[0].octets();
        networks.push([a, b, c]);
    }
    networks.sort_unstable();
    networks.dedup();
    assert_eq!(networks.len(), 4, "a network each: {networks:?}");
    // Destroying one fleet leaves the other alone.
    labs[0].destroy();
    assert_eq!(labs[1].cluster_status()["settled"], true);
    labs.iter().skip(1).for_each(Lab::destroy);
}

#[test]
fn a_network_of_a_fleet_that_is_down_is_still_its_own() {
    let lab = Lab::cluster(1, "3.6.15", &[]);
    lab.apply();
    let [a, b, c, _] = lab.addresses()[0].octets();
    for (pid, _) in lab.processes() {
        raftsman_tests::lab::kill(pid, rustix::process::Signal::KILL);
    }
    let other = Lab::cluster(1, "3.6.15", &[]);
    other.write_file(&format!("machines: {{ network: {a}.{b}.{c}.0/24 }}\n{}", other.file()));
    let file = other.path().join("raftsman.yaml");
    // From another directory, where a relative path to the state would mean nothing.
    let mut command = other.command(&["apply", "--yes", "--timeout", "30s", "--file"]);
    let output = command.arg(&file).current_dir("/").output().expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains(&lab.fleet_id().expect("a fleet")), "{stderr}");
    lab.apply();
    lab.destroy();
}

#[test]
fn without_root() {
    const UNPRIVILEGED: u32 = 65534;
    if !rustix::process::getuid().is_root() {
        return; // As all other tests here have shown then.
    }
    let mut lab = Lab::new("");
    let dir = lab.path().to_owned();
    for name in ["raftsman", "raftsman-agent"] {
        std::fs::create_dir_all(dir.join("bin")).expect("a directory");
        std::fs::copy(binary(name), dir.join("bin").join(name)).expect("a copy");
    }
    std::fs::create_dir_all(dir.join("etcd/3.6.15")).expect("a directory");
    std::fs::copy(etcd_dir().join("3.6.15/etcd"), dir.join("etcd/3.6.15/etcd")).expect("a copy");
    lab.write_file(
        "fleet: lab\netcd:\n  main:\n    members: 3\n    version: 3.6.15\n    source: { directory: etcd }\n",
    );
    run("chown", &["-R", "65534:65534", &dir.to_string_lossy()], "").ok();
    lab.run_as(UNPRIVILEGED);
    lab.apply();
    for (pid, line) in lab.processes() {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let uid = status.lines().find(|l| l.starts_with("Uid:")).expect("an owner").to_owned();
        assert!(uid.split_whitespace().skip(1).all(|id| id == "65534"), "{line}: {uid}");
    }
    lab.etcdctl(&["put", "a", "b"]).ok();
    assert_eq!(lab.settled()["clusters"][0]["settled"], true);
    lab.destroy();
}

/// The certificate that is served there, as PEM.
fn served(address: &str, port: u16) -> String {
    let output = run("openssl", &["s_client", "-connect", &format!("{address}:{port}")], "");
    let begin = output.stdout.find("-----BEGIN CERTIFICATE-----").unwrap_or_else(|| panic!("{output:?}"));
    let end = output.stdout.find("-----END CERTIFICATE-----").expect("its end");
    format!("{}-----END CERTIFICATE-----\n", &output.stdout[begin..end])
}

fn described(pem: &str, what: &[&str]) -> String {
    run("openssl", &[&["x509", "-noout"], what].concat(), pem).ok().stdout
}

fn fingerprint(pem: &str) -> String {
    let line = described(pem, &["-fingerprint", "-sha256"]);
    line.trim().rsplit('=').next().unwrap_or_default().replace(':', "").to_lowercase()
}

#[test]
fn authorities_that_are_brought() {
    let lab = Lab::cluster(
        3,
        "3.6.15",
        &[
            "ca:",
            "  peers: { brought: { certificate: peers.crt, key: { file: peers.key } } }",
            "  clients: { brought: { certificate: clients.crt, key: { file: clients.key } } }",
            "certificates:",
            "  organization: Acme",
            "  extra_names: [etcd.example.org]",
            "  extra_addresses: [192.0.2.7]",
        ],
    );
    let algorithms: [(&str, &[&str]); 2] =
        [("peers", &["rsa:2048"]), ("clients", &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"])];
    for (name, algorithm) in algorithms {
        let path = |ending: &str| lab.path().join(format!("{name}.{ending}")).to_string_lossy().into_owned();
        let (certificate, key, subject) = (path("crt"), path("key"), format!("/O=Acme/CN=Acme {name}"));
        let rest = ["-nodes", "-days", "400", "-subj", &subject, "-keyout", &key, "-out", &certificate];
        let usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"];
        openssl(&[&["req", "-x509", "-newkey"], algorithm, &rest, &usage].concat());
    }
    lab.apply();
    for address in lab.addresses() {
        for (port, name) in [(2379, "clients"), (2380, "peers")] {
            let pem = served(&address.to_string(), port);
            let file = lab.path().join("served.crt");
            std::fs::write(&file, &pem).expect("written");
            let ca = lab.path().join(format!("{name}.crt"));
            openssl(&["verify", "-CAfile", &ca.to_string_lossy(), &file.to_string_lossy()]);
            assert!(described(&pem, &["-issuer"]).contains(&format!("Acme {name}")));
        }
        let names = described(&served(&address.to_string(), 2379), &["-ext", "subjectAltName", "-subject"]);
        for name in ["DNS:etcd.example.org", "IP Address:192.0.2.7", &format!("IP Address:{address}"), "Acme"] {
            assert!(names.contains(name), "{name}: {names}");
        }
    }
    lab.etcdctl(&["put", "a", "b"]).ok();
    unauthenticated_clients_are_rejected(&lab, false);
    lab.destroy();
}

#[test]
fn authorities_with_rsa_keys() {
    let lab = Lab::cluster(3, "3.6.15", &["ca: { algorithm: rsa-2048 }"]);
    lab.apply();
    for name in ["main-peers", "main-clients"] {
        let pem = std::fs::read_to_string(lab.path().join(format!(".raftsman/certificates/{name}.pem"))).expect("a CA");
        let text = described(&pem, &["-text"]);
        assert!(text.contains("Public-Key: (2048 bit)") && text.contains("rsaEncryption"), "{text}");
    }
    lab.etcdctl(&["put", "a", "b"]).ok();
    unauthenticated_clients_are_rejected(&lab, false);
    lab.destroy();
}

/// Machines in the order in which a step of this kind was done to them, wave by wave.
fn waves_of(lines: &[Value], action: &str) -> Vec<Vec<String>> {
    let steps = |line: &Value| -> Vec<String> {
        let steps = line["steps"].as_array().into_iter().flatten();
        steps.filter(|s| s["action"]["do"] == action).map(|s| text(&s["action"]["machine"]).to_owned()).collect()
    };
    lines.iter().filter(|l| l["event"] == "wave").map(steps).filter(|w| !w.is_empty()).collect()
}

#[test]
fn changed_configuration_goes_through_the_cluster_one_by_one() {
    let lab = Lab::cluster(3, "3.6.15", &["quota: 2GiB"]);
    lab.apply();
    lab.etcdctl(&["put", "before", "the change"]).ok();
    for quota in ["3GiB", "4GiB"] {
        let leader = text(&lab.cluster_status()["leader"]).to_owned();
        let before = lab.etcds();
        let file = lab.file();
        let at = file.find("quota: ").expect("a quota") + "quota: ".len();
        lab.write_file(&format!("{}{quota}{}", &file[..at], &file[at + 4..]));
        // Seen from outside, never more than one member is down.
        let (done, fewest, looks) = (AtomicBool::new(false), AtomicUsize::new(3), AtomicUsize::new(0));
        let lines = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    fewest.fetch_min(lab.etcds().len(), Ordering::Relaxed);
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
            let lines = lab.run(&["apply", "--yes", "--json", "--timeout", "60s"]);
            done.store(true, Ordering::Relaxed);
            lines
        });
        let lines = lines.ok().json_lines();
        raftsman_tests::lab::forecast_equals_fact(&lines);
        let restarts = waves_of(&lines, "restart_etcd");
        assert!(restarts.iter().all(|w| w.len() == 1), "one at a time: {restarts:?}");
        let order: Vec<&String> = restarts.iter().flatten().collect();
        assert_eq!(order.len(), 3, "each once: {order:?}");
        assert_eq!(*order[2], leader, "the leader last: {order:?}");
        assert!(looks.into_inner() > 10 && fewest.into_inner() >= 2, "two at least were there all the time");
        let after = lab.etcds();
        assert!(before.iter().zip(&after).all(|(b, a)| b.0 == a.0 && b.1 != a.1), "{before:?} {after:?}");
        for name in ["main-1", "main-2", "main-3"] {
            let config = std::fs::read_to_string(lab.machine(name).join("etcd/etcd.yaml")).expect("a configuration");
            let bytes = quota[..1].parse::<u64>().expect("a number") << 30;
            assert!(config.contains(&bytes.to_string()), "{config}");
        }
        // No second change.
        lab.nothing_to_do();
        lab.apply();
        assert_eq!(lab.etcds(), after);
        assert_eq!(lab.cluster_status()["settled"], true);
    }
    assert_eq!(lab.etcdctl(&["get", "before", "--print-value-only"]).ok().stdout.trim(), "the change");
    lab.destroy();
}

#[test]
fn certificates_are_renewed_without_a_restart() {
    let lab = Lab::cluster(3, "3.6.15", &["certificates: { validity: 2h, renew_before: 1h }"]);
    lab.apply();
    let shown = || -> Vec<(String, String)> {
        let at = lab.addresses().into_iter().map(|a| a.to_string());
        at.map(|a| (fingerprint(&served(&a, 2379)), fingerprint(&served(&a, 2380)))).collect()
    };
    let output = || -> Vec<(String, String)> {
        let members = lab.cluster_status()["members"].clone();
        let of = |m: &Value, purpose: &str| text(&m["certificates"][purpose]["fingerprint"]).to_owned();
        members.as_array().expect("members").iter().map(|m| (of(m, "server"), of(m, "peer"))).collect()
    };
    let (old, pids) = (output(), lab.etcds());
    assert_eq!(shown(), old);
    // Those that are there end within the new time for renewal.
    lab.write_file(&lab.file().replace("validity: 2h, renew_before: 1h", "validity: 1000h, renew_before: 900h"));
    let lines = lab.apply();
    let issued: usize = waves_of(&lines, "issue_certificate").iter().map(Vec::len).sum();
    assert_eq!(issued, 6, "two for each member");
    let new = output();
    assert!(old.iter().zip(&new).all(|(o, n)| o.0 != n.0 && o.1 != n.1), "{old:?} {new:?}");
    assert_eq!(lab.etcds(), pids, "no member was restarted");
    assert_eq!(shown(), new, "etcd shows the new ones at the next handshake");
    lab.etcdctl(&["put", "after", "renewal"]).ok();
    lab.apply();
    assert_eq!(output(), new, "renewed once");
    lab.destroy();
}
