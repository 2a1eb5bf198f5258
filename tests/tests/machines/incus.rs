//! The Incus server of the tests itself: machines come and go, and a proxy in front of it loses what it should.

use std::process::Command;
use std::time::Duration;

use raftsman_tests::incus::{IMAGE, Incus, NETWORK, ask};
use raftsman_tests::lab::{eventually, text};
use raftsman_tests::proxy::{Fault, Proxy, seeded};
use serde_json::{Value, json};

fn machine(name: &str, address: &str) -> Value {
    json!({
        "name": name, "type": "container", "start": true, "source": {"type": "image", "alias": IMAGE},
        "config": {
            "user.fleet": "f1",
            "cloud-init.user-data": format!("#cloud-config\nwrite_files:\n- {{path: /etc/told, content: {name}}}\n"),
        },
        "devices": {"eth0": {"type": "nic", "name": "eth0", "network": NETWORK, "ipv4.address": address}},
    })
}

#[test]
fn three_machines_come_and_go() {
    let incus = Incus::up();
    let before = incus.inventory();
    let names = ["m1", "m2", "m3"];
    for (i, name) in names.iter().enumerate() {
        let machine = machine(name, &format!("10.78.0.{}", 11 + i));
        incus.query("POST", "/1.0/instances", Some(&machine)).expect("a machine");
    }
    for name in names {
        incus.exec(name, "cloud-init status --wait").ok();
        assert_eq!(
            incus.exec(name, "cat /etc/told; hostname; cat /proc/1/comm").ok().stdout,
            format!("{name}{name}\nsystemd\n")
        );
    }
    incus.exec("m1", "ping -c 1 -W 5 10.78.0.13").ok();
    incus.cut("m3");
    incus.exec("m1", "ping -c 1 -W 1 10.78.0.13").failed();
    incus.heal("m3");

    // A power cut keeps the disk.
    incus.exec("m2", "echo kept >/etc/ours").ok();
    incus.power_cut("m2");
    incus.exec("m2", "true").failed();
    incus.start("m2");
    assert_eq!(incus.exec("m2", "cat /etc/ours").ok().stdout, "kept\n");

    let ours = incus.query("GET", "/1.0/instances?recursion=2&filter=config.user.fleet+eq+f1", None).expect("a list");
    assert_eq!(ours.as_array().map(Vec::len), Some(3));
    for name in names {
        incus
            .query("PUT", &format!("/1.0/instances/{name}/state"), Some(&json!({"action": "stop", "force": true})))
            .expect("off");
        incus.query("DELETE", &format!("/1.0/instances/{name}"), None).expect("gone");
    }
    assert_eq!(incus.inventory(), before);

    let (dir, group) = (incus.path().to_owned(), incus.group().to_owned());
    drop(incus);
    assert!(!dir.exists() && !group.exists());
}

#[test]
fn a_trusted_client_may_connect_by_network() {
    let incus = Incus::up();
    let (url, server) = incus.https();
    let key = rcgen::KeyPair::generate().expect("a key");
    let client = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate");
    let file = |name: &str, text: &str| {
        std::fs::write(incus.path().join(name), text).expect("a file");
        incus.path().join(name)
    };
    let (certificate, key) = (file("client.crt", &client.pem()), file("client.key", &key.serialize_pem()));
    let server = file("server.crt", &server);
    let auth = || {
        let mut curl = Command::new("curl");
        // Under the one address that its certificate names.
        let address = url.trim_start_matches("https://");
        curl.args(["--silent", "--show-error", "--connect-to", &format!("127.0.0.1:8443:{address}"), "--cacert"]);
        curl.arg(&server).arg("--cert").arg(&certificate);
        let output = curl.arg("--key").arg(&key).arg("https://127.0.0.1:8443/1.0").output().expect("curl runs");
        text(output).ok().json()["metadata"]["auth"].as_str().map(str::to_owned)
    };
    assert_eq!(auth().as_deref(), Some("untrusted"));
    incus.trust("raftsman", &client.pem());
    assert_eq!(auth().as_deref(), Some("trusted"));
}

#[test]
fn a_proxy_loses_what_the_plan_says() {
    let incus = Incus::up();
    let socket = incus.path().join("proxy");
    let proxy = Proxy::start(&socket, &incus.socket(), |_| Fault::None);
    let volumes = "/1.0/storage-pools/default/volumes/custom";
    let volume = |name: &str| json!({"name": name, "config": {}});
    let exists = |name: &str| incus.query("GET", &format!("{volumes}/{name}"), None).is_ok();

    ask(proxy.socket(), "POST", volumes, Some(&volume("passed"))).expect("nothing is lost");
    assert!(exists("passed"));
    proxy.plan(|_| Fault::LostReply);
    ask(proxy.socket(), "POST", volumes, Some(&volume("unheard"))).expect_err("the reply is lost");
    eventually("it was carried out all the same", || exists("unheard").then_some(()));
    for (fault, name) in [(Fault::Refused, "refused"), (Fault::Lost, "lost")] {
        proxy.plan(move |_| fault);
        ask(proxy.socket(), "POST", volumes, Some(&volume(name))).expect_err("it does not reach the server");
        assert!(!exists(name));
    }
    proxy.plan(|_| Fault::Stalled(Duration::from_millis(200)));
    let begun = std::time::Instant::now();
    ask(proxy.socket(), "GET", "/1.0", None).expect("late");
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert_eq!(proxy.log().iter().filter(|(request, _)| request.method == "POST").count(), 4);

    // The same seed has the same fate for the same request.
    let plan = || seeded(7, 6, Duration::from_millis(1));
    let begun = proxy.log().len();
    proxy.plan(plan());
    for i in 0..20 {
        let _ = ask(proxy.socket(), "GET", &format!("/1.0/instances/{i}"), None);
    }
    let log = &proxy.log()[begun..];
    let (faults, mut again) = (log.iter().filter(|(_, fault)| *fault != Fault::None).count(), plan());
    assert!(log.len() == 20 && 0 < faults && faults < 20, "{log:#?}");
    assert!(log.iter().rev().all(|(request, fault)| again(request) == *fault));
}
