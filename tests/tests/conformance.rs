//! Every provider at its real server → the same contract.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use raftsman_providers::{Connection, HostsSettings, IncusSettings, LocalSettings, Settings, Ssh, connect};
use raftsman_tests::conformance::{Site, conform};
use raftsman_tests::hosts::Hosts;
use raftsman_tests::incus::{IMAGE, Incus, NETWORK, SUBNET};
use raftsman_tests::lab::binary;

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
    // Agents that were not claimed: what they write at their first start is their own business.
    let everything = || {
        let all = (0..3).flat_map(|i| hosts.manifest(i).0.into_iter().map(move |line| format!("{i} {line}")));
        all.filter(|line| !line.contains("var/lib/raftsman/")).collect()
    };
    run(&Site { connect: &connection, machines, everything: &everything });
}

/// The server at this socket, for this fleet.
fn incus_at(socket: &Path, fleet: &str) -> Connection {
    let text = format!(
        "fleet: conformance\nmachines:\n  provider: incus\n  image: {IMAGE}\n  subnet: {SUBNET}\n  \
         install_dependencies: false\n  data_disk: 1GiB\n  \
         incus: {{ server: {socket:?}, network: {NETWORK}, pool: default }}\netcd: {{ main: {{ members: 3 }} }}\n"
    );
    let reading = raftsman_core::spec::read(&text);
    assert_eq!(reading.errors(), 0, "{}", reading.render("raftsman.yaml", &text, false));
    connect(Settings::Incus(IncusSettings {
        fleet_id: fleet.to_owned(),
        agent: binary("raftsman-agent"),
        machines: reading.spec.expect("a spec").machines,
        certificate: None,
        key: None,
        server_certificate: None,
    }))
}

#[test]
fn incus() {
    let incus = Incus::up();
    let socket = incus.socket();
    let connection = |fleet: &str| incus_at(&socket, fleet);
    let machines = (1..=3).map(|n| (format!("m{n}"), IpAddr::V4(Ipv4Addr::new(10, 78, 0, 10 + n)))).collect();
    run(&Site { connect: &connection, machines, everything: &|| incus.inventory() });
}
