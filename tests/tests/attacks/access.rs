//! Clients without credentials at a running cluster → what they can read, and what they cannot.

use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use raftsman_core::spec;
use raftsman_tests::dice::Dice;
use raftsman_tests::lab::{Lab, soak};

/// The status that a client without a certificate and a user gets; 0 for none.
fn asked(address: Ipv4Addr, port: u16, path: &str, http: &str) -> u16 {
    let url = format!("https://{address}:{port}{path}");
    let curl = ["-sk", http, "--max-time", "5", "-o", "/dev/null", "-w", "%{http_code}", &url];
    let output = Command::new("curl").args(curl).output().expect("curl");
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(0)
}

/// What etcd serves over HTTP without authentication.
const PATHS: [&str; 8] =
    ["/metrics", "/debug/vars", "/debug/pprof/", "/debug/requests", "/version", "/health", "/v2/keys/", "/v3/kv/range"];

/// With passwords and without the gateway, the client port serves gRPC only.
#[test]
fn a_client_without_credentials_reads_nothing_at_the_client_port() {
    let versions = ["3.4.45", "3.5.34", "3.6.15", "3.7.2"];
    let part = if soak() { versions.len() } else { 1 };
    for version in Dice::of_this_run("client port").some(&versions, part) {
        let lab = Lab::cluster(1, version, &["auth: { mode: password }", "gateway: false"]);
        lab.apply();
        let address = lab.address("main-1");
        for path in PATHS {
            for http in ["--http1.1", "--http2"] {
                let status = asked(address, 2379, path, http);
                assert!(!(200..300).contains(&status), "{version}: {path} by {http}: {status}");
            }
        }
        // The metrics listener: only the firewall restricts its clients.
        for (path, answer) in [("/metrics", 200), ("/version", 200), ("/debug/pprof/", 404), ("/v3/kv/range", 404)] {
            assert_eq!(asked(address, 2381, path, "--http1.1"), answer, "{version}: {path}");
        }
        lab.etcdctl(&["put", "a", "b"]).ok();
        lab.nothing_to_do();
        lab.destroy();
    }
}

/// Connections to an agent that never finish a handshake keep no operator out.
#[test]
fn a_thousand_half_open_connections_do_not_stop_status() {
    let lab = Lab::cluster(1, "3.6.15", &[]);
    lab.apply();
    let address = lab.address("main-1");
    let held: Vec<TcpStream> = (0..1_000).map(|_| TcpStream::connect((address, 2378)).expect("connected")).collect();
    let begun = Instant::now();
    let status = lab.run(&["status"]).ok();
    let took = begun.elapsed();
    assert!(status.stdout.contains("healthy, can lose 0, auth on"), "{}", status.all());
    assert!(took < Duration::from_secs(10), "{took:?}");
    drop(held);
    lab.destroy();
}

/// Settings with which a file would undo what keeps a cluster safe: the name of the attack, the version, further lines,
/// the setting, and the rule that refuses it.
const SETTINGS: [(&str, &str, &str, &str, &str); 19] = [
    ("throw all others out", "3.6.15", "", "force-new-cluster: true", "flag-harmful"),
    ("lose writes in a power cut", "3.6.15", "", "unsafe-no-fsync: true", "flag-harmful"),
    ("lose quorum by a change of members", "3.6.15", "", "strict-reconfig-check: false", "flag-harmful"),
    ("self-signed certificates", "3.5.34", "", "auto-tls: true", "flag-harmful"),
    ("self-signed peers", "3.5.34", "", "peer-auto-tls: true", "flag-harmful"),
    ("self-signed certificates by a field's name", "3.6.15", "", "clientautotls: true", "flag-harmful"),
    ("self-signed peers by a field's name", "3.6.15", "", "peerautotls: true", "flag-harmful"),
    ("a member's certificate from anywhere", "3.6.15", "", "peer-skip-client-san-verification: true", "flag-harmful"),
    ("the same by its old name", "3.5.34", "", "experimental-peer-skip-client-san-verification: true", "flag-harmful"),
    (
        "the same by its oldest line",
        "3.4.45",
        "",
        "experimental-peer-skip-client-san-verification: true",
        "flag-harmful",
    ),
    ("profiles without credentials", "3.6.15", "auth: { mode: password }", "enable-pprof: true", "flag-harmful"),
    ("no client certificates", "3.6.15", "", "client-cert-auth: false", "flag-owned"),
    ("another CA for clients", "3.6.15", "", "trusted-ca-file: /tmp/ca.crt", "flag-owned"),
    ("no peer certificates", "3.6.15", "", "peer-client-cert-auth: false", "flag-owned"),
    ("another listener for clients", "3.6.15", "", "listen-client-urls: http://0.0.0.0:2379", "flag-owned"),
    ("another listener for HTTP", "3.6.15", "", "listen-client-http-urls: http://0.0.0.0:1", "flag-owned"),
    ("another listener for metrics", "3.6.15", "", "listen-metrics-urls: http://0.0.0.0:1", "flag-owned"),
    ("other data", "3.6.15", "", "data-dir: /var/lib/etcd", "flag-owned"),
    ("a gate of one's own", "3.6.15", "", "feature-gates: InitialCorruptCheck=false", "flag-owned"),
];

#[test]
fn settings_that_undo_safety_are_refused() {
    for (attack, version, further, context, rule) in SETTINGS {
        let text = format!(
            "fleet: lab\netcd:\n  main:\n    members: 3\n    version: {version}\n    {further}\n    flags:\n      \
             {context}\n"
        );
        let reading = spec::read(&text);
        let rendered = reading.render("raftsman.yaml", &text, false);
        assert!(reading.spec.is_none(), "{attack} passes");
        assert!(rendered.contains(&format!("[{rule}]")), "{attack}: {rendered}");
    }
}
