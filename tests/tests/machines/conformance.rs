//! Every provider at its real server → the same contract.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use raftsman_core::spec::Machines;
use raftsman_providers::{
    Connection, HostsSettings, IncusSettings, LibvirtSettings, LocalSettings, Power, ProviderError, Settings, Ssh,
    connect,
};
use raftsman_tests::conformance::{Site, conform, order};
use raftsman_tests::dice::Dice;
use raftsman_tests::hosts::Hosts;
use raftsman_tests::incus::{IMAGE, Incus, NETWORK, SUBNET};
use raftsman_tests::lab::{binary, eventually};
use raftsman_tests::libvirt::{self, BASE, Libvirt, POOL};
use raftsman_tests::proxy::{Fault, Proxy, seeded};
use serde_json::json;
use tokio::time::timeout;

fn run(site: &Site<'_>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(conform(site));
}

fn entries(dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn this_computer() {
    let home = tempfile::tempdir().expect("a directory");
    let connection = |fleet: &str| {
        let settings =
            LocalSettings { dir: home.path().into(), fleet_id: fleet.to_owned(), agent: binary("raftsman-agent") };
        connect(Settings::Local(settings))
    };
    let at = |n: u8| (format!("m{n}"), IpAddr::V4(Ipv4Addr::new(127, 77, 1, n)));
    let everything = || entries(home.path());
    run(&Site { connect: &connection, machines: (1..=3).map(at).collect(), everything: &everything });
}

#[test]
fn hosts_that_exist_already() {
    let hosts = Hosts::up(3);
    let home = tempfile::tempdir().expect("a directory");
    let connection = |fleet: &str| {
        connect(Settings::Hosts(HostsSettings {
            dir: home.path().join(fleet),
            fleet_id: fleet.to_owned(),
            agent: binary("raftsman-agent"),
            ssh: Ssh { config: Some(hosts.ssh_config()), ..Ssh::default() },
            destinations: BTreeMap::new(),
        }))
    };
    let addresses = hosts.addresses().into_iter().enumerate();
    let machines = addresses.map(|(i, address)| (format!("db{i}"), IpAddr::V4(address))).collect();
    // Agents that were not claimed: what they write at their first start is their own business, and so are their figures.
    let everything = || {
        let all = (0..3).flat_map(|i| hosts.manifest(i).0.into_iter().map(move |line| format!("{i} {line}")));
        let own = ["var/lib/raftsman/", "node-exporter/raftsman.prom"];
        all.filter(|line| !own.iter().any(|part| line.contains(part))).collect()
    };
    run(&Site { connect: &connection, machines, everything: &everything });
}

/// What a file says of machines at this server.
fn machines_at(server: &str, further: &str) -> Machines {
    let text = format!(
        "fleet: conformance\nmachines:\n  provider: incus\n  image: {IMAGE}\n  subnet: {SUBNET}\n  \
         install_dependencies: false\n  data_disk: 1GiB\n  \
         incus: {{ server: {server:?}, network: {NETWORK}, pool: default{further} }}\netcd: {{ main: {{ members: 3 }} }}\n"
    );
    let reading = raftsman_core::spec::read(&text);
    assert_eq!(reading.errors(), 0, "{}", reading.render("raftsman.yaml", &text, false));
    reading.spec.expect("a spec").machines
}

/// The server at this socket, for this fleet.
fn incus_at(socket: &Path, fleet: &str) -> Connection {
    connect(Settings::Incus(IncusSettings {
        fleet: "conformance".to_owned(),
        fleet_id: fleet.to_owned(),
        agent: binary("raftsman-agent"),
        machines: machines_at(&socket.to_string_lossy(), ""),
        zones: BTreeMap::new(),
        certificate: None,
        key: None,
        server_certificate: None,
    }))
}

/// By network: an untrusted client gets an error that says so, and a server with another certificate is not used.
#[test]
fn incus_by_network() {
    let incus = Incus::up();
    let (url, server) = incus.https();
    let pair = || {
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    };
    let ((ours, key), (another, _)) = (pair(), pair());
    let file = |name: &str, text: &str| {
        std::fs::write(incus.path().join(name), text).expect("a file");
        incus.path().join(name)
    };
    let certificate = Some(file("ours.crt", &ours));
    let key = Some(file("ours.key", &key));
    let named = ", certificate: c, key: k, server_certificate: s";
    let at = |shown: &str| {
        connect(Settings::Incus(IncusSettings {
            fleet: "conformance".to_owned(),
            fleet_id: "fleet-a".to_owned(),
            agent: binary("raftsman-agent"),
            machines: machines_at(&url, named),
            zones: BTreeMap::new(),
            certificate: certificate.clone(),
            key: key.clone(),
            server_certificate: Some(file("shown.crt", shown)),
        }))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let refused = at(&server).inventory().await.expect_err("not trusted yet").to_string();
        assert!(refused.contains("denies access"), "{refused}");
        incus.trust("raftsman", &ours);
        assert_eq!(at(&server).inventory().await.expect("an inventory"), []);
        let refused = at(&another).inventory().await.expect_err("another server").to_string();
        assert!(refused.contains("does not answer"), "{refused}");
    });
}

#[test]
fn incus() {
    let incus = Incus::up();
    let socket = incus.socket();
    let connection = |fleet: &str| incus_at(&socket, fleet);
    let machines = (1..=3).map(|n| (format!("m{n}"), IpAddr::V4(Ipv4Addr::new(10, 78, 0, 10 + n)))).collect();
    run(&Site { connect: &connection, machines, everything: &|| incus.inventory() });
}

/// What an apply does about one machine: look, then the one thing that is missing.
async fn bring(provider: &Connection, name: &str, address: IpAddr, attempt: i64) -> Result<bool, ProviderError> {
    let mut order = order("fleet-a", name, address);
    // Every run of raftsman gives a new machine another hour.
    order.boot.join_deadline = Some(Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1_000_000 + attempt));
    match provider.machine(name).await? {
        None => provider.create(&order).await.map(|_| true),
        Some(found) if !found.finished => provider.create(&order).await.map(|_| true),
        Some(found) if found.power == Power::Stopped => provider.start(name).await.map(|()| false),
        Some(_) => Ok(true),
    }
}

/// One machine, made and given back while requests and replies are lost, and while the caller is killed.
async fn through_faults(incus: &Incus, number: u64, seed: u64) {
    let name = format!("f{number}");
    let address = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 20 + (number % 100) as u8));
    let proxy = Proxy::start(&incus.path().join(format!("p{number}")), &incus.socket(), |_| Fault::None);
    let provider = incus_at(proxy.socket(), "fleet-a");
    let mut dice = Dice::new(seed);
    let own = [format!("/conformance-{name}"), format!("/conformance-{name}-data")];
    let all = || {
        let ours = incus.inventory().into_iter().filter(|url| own.iter().any(|name| url.ends_with(name)));
        ours.collect::<BTreeSet<_>>()
    };
    let faults = |dice: &mut Dice| proxy.plan(seeded(dice.bits(), 6 + dice.below(12), Duration::from_millis(300)));
    let kind = |dice: &mut Dice| Duration::from_millis(if dice.below(3) == 0 { dice.bits() % 4000 } else { 20_000 });

    for attempt in 0..2 {
        faults(&mut dice);
        // Killed after a while, or refused, or done.
        let _ = timeout(kind(&mut dice), bring(&provider, &name, address, attempt)).await;
    }
    proxy.plan(|_| Fault::None);
    for attempt in 2.. {
        let done = bring(&provider, &name, address, attempt).await;
        let done = done.unwrap_or_else(|e| {
            let look = "ls -l /etc/raftsman /usr/local/lib/raftsman /var/lib/raftsman; ip -br addr; \
                        systemctl --failed --no-pager; journalctl -b --no-pager -n 40";
            let output = incus.exec(&name, look).all();
            panic!("seed {seed}: {e:?}; there are {:?}\n{:#?}\n{output}", incus.inventory(), proxy.log())
        });
        if done {
            break;
        }
    }
    let found = provider.machine(&name).await.expect("an answer").expect("a machine");
    assert!(found.finished && found.power == Power::Running, "seed {seed}: {found:?}");
    assert_eq!(all().len(), 3, "seed {seed}: an instance, its volume and its data's: {:?}", all());

    for _ in 0..2 {
        faults(&mut dice);
        let _ = timeout(kind(&mut dice), provider.delete(&name, None)).await;
    }
    proxy.plan(|_| Fault::None);
    provider.delete(&name, None).await.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
    assert_eq!(all(), BTreeSet::new(), "seed {seed}: nothing is left");
}

/// A request of a run that was killed comes late, when another machine of that name is half made.
#[test]
fn a_late_request_finishes_nothing_on_incus() {
    let incus = Incus::up();
    let proxy = Proxy::start(&incus.path().join("proxy"), &incus.socket(), |_| Fault::None);
    let provider = incus_at(proxy.socket(), "fleet-a");
    let address = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 11));
    let config = || incus.query("GET", "/1.0/instances/conformance-m1", None).expect("an instance")["config"].clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // The last word on the first machine is lost; of the second there is nothing but a bare system.
        proxy.plan(|request| if request.method == "PATCH" { Fault::Lost } else { Fault::None });
        bring(&provider, "m1", address, 0).await.expect_err("not finished");
        let first = config();
        proxy.plan(|request| if request.path.contains("/files?") { Fault::Refused } else { Fault::None });
        bring(&provider, "m1", address, 1).await.expect_err("not equipped");
        assert_ne!(config()["volatile.uuid"], first["volatile.uuid"], "another machine");
        let late = json!({"config": {"user.raftsman.finished": first["volatile.uuid"]}});
        incus.query("PATCH", "/1.0/instances/conformance-m1", Some(&late)).expect("a late request");
        proxy.plan(|_| Fault::None);
        assert!(bring(&provider, "m1", address, 2).await.expect("a machine with an agent"));
        let found = provider.machine("m1").await.expect("an answer").expect("a machine");
        assert!(found.finished && found.power == Power::Running, "{found:?}");
    });
}

/// The end of an upload that was broken off comes late, when another machine of that name has its own.
#[test]
fn a_late_upload_spoils_nothing_on_incus() {
    let incus = Incus::up();
    let proxy = Proxy::start(&incus.path().join("proxy"), &incus.socket(), |_| Fault::None);
    let provider = incus_at(proxy.socket(), "fleet-a");
    let address = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 11));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        proxy.plan(|request| if request.method == "PATCH" { Fault::Lost } else { Fault::None });
        bring(&provider, "m1", address, 0).await.expect_err("not finished");
        proxy.plan(|request| if request.path.ends_with("/state") { Fault::Refused } else { Fault::None });
        bring(&provider, "m1", address, 1).await.expect_err("not started");
        let log = proxy.log();
        let uploads = log.iter().map(|(request, _)| &request.path).filter(|path| path.contains("/raftsman-agent-"));
        let uploads: Vec<String> = uploads.cloned().collect();
        assert!(uploads.len() == 2 && uploads[0] != uploads[1], "{uploads:?}");
        let mut late = std::os::unix::net::UnixStream::connect(incus.socket()).expect("the server");
        let head = "Host: incus\r\nX-Incus-type: file\r\nX-Incus-mode: 0644\r\nContent-Length: 4\r\nConnection: close";
        write!(late, "POST {} HTTP/1.1\r\n{head}\r\n\r\nhalf", uploads[0]).expect("a late upload");
        let mut reply = String::new();
        late.read_to_string(&mut reply).expect("a reply");
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        proxy.plan(|_| Fault::None);
        assert!(!bring(&provider, "m1", address, 2).await.expect("it is started"));
    });
    eventually("its agent answers", || std::net::TcpStream::connect((address, 2378)).ok());
    let there = incus.exec("m1", "ls /usr/local/lib/raftsman").ok().stdout;
    assert!(!there.contains("raftsman-agent-"), "{there}");
}

/// `RAFTSMAN_FAULT_RUNS` is how many, `RAFTSMAN_FAULT_FIRST` the number of the first: each run has a seed of its own.
#[test]
fn incus_with_faults() {
    let number = |name: &str, usual: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let (first, runs) = (number("RAFTSMAN_FAULT_FIRST", 1), number("RAFTSMAN_FAULT_RUNS", 9));
    let incus = Incus::up();
    // Foreign machines, with names that ours could have.
    let foreign = json!({"name": "conformance-f0", "type": "container", "source": {"type": "image", "alias": IMAGE}});
    incus.query("POST", "/1.0/instances", Some(&foreign)).expect("a machine");
    let volume = json!({"name": "conformance-f0-data", "config": {}});
    incus.query("POST", "/1.0/storage-pools/default/volumes/custom", Some(&volume)).expect("a volume");
    let before = incus.inventory();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let others = incus_at(&incus.socket(), "fleet-a");
        others.create(&order("fleet-a", "f0", IpAddr::V4(Ipv4Addr::new(10, 78, 0, 19)))).await.expect_err("not ours");
        others.delete("f0", None).await.expect_err("not ours");
        // A few at a time: the machine has two cores.
        let mut all =
            stream::iter(first..first + runs).map(|number| through_faults(&incus, number, number)).buffer_unordered(3);
        let mut done = 0;
        while all.next().await.is_some() {
            done += 1;
            if done % 20 == 0 {
                println!("{done} of {runs}");
            }
        }
    });
    assert_eq!(incus.inventory(), before, "nothing leaked, nothing of others touched");
    println!("{runs} machines made and given back through faults: 0 leaked, 0 foreign ones touched");
}

/// The libvirt of the tests, for this fleet.
fn libvirt_at(libvirt: &Libvirt, fleet: &str) -> Connection {
    let text = format!(
        "fleet: conformance\nmachines:\n  provider: libvirt\n  image: {BASE}\n  subnet: {}\n  vcpus: 1\n  \
         memory: 512MiB\n  install_dependencies: false\n  data_disk: 1GiB\n  \
         libvirt: {{ uri: {:?}, pool: {POOL}, network: {} }}\netcd: {{ main: {{ members: 3 }} }}\n",
        libvirt::SUBNET,
        libvirt.uri(),
        libvirt::NETWORK
    );
    let reading = raftsman_core::spec::read(&text);
    assert_eq!(reading.errors(), 0, "{}", reading.render("raftsman.yaml", &text, false));
    let machines = reading.spec.expect("a spec").machines;
    let agent = binary("raftsman-agent");
    let (fleet, fleet_id) = ("conformance".to_owned(), fleet.to_owned());
    connect(Settings::Libvirt(LibvirtSettings { fleet, fleet_id, agent, machines }))
}

#[test]
fn libvirt() {
    let libvirt = Libvirt::up();
    let connection = |fleet: &str| libvirt_at(&libvirt, fleet);
    let machines = (1..=3).map(|n| (format!("m{n}"), IpAddr::V4(Ipv4Addr::new(10, 79, 0, 10 + n)))).collect();
    run(&Site { connect: &connection, machines, everything: &|| libvirt.everything() });
}
