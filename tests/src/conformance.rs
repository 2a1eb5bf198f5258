//! A provider at its real server → whether it keeps the contract that all of them keep.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use futures::future::join_all;
use raftsman_core::boot::Boot;
use raftsman_core::desired::AGENT_PORT;
use raftsman_providers::{Connection, MachineOrder, MachineRecord, Power, Provider, ProviderError};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

/// Where a provider is tested, and with which credentials.
pub struct Site<'a> {
    /// A connection for the fleet of this id.
    pub connect: &'a dyn Fn(&str) -> Connection,
    /// Names and addresses of machines that may be made there; at least three.
    pub machines: Vec<(String, IpAddr)>,
    /// Everything that the server lists, raftsman's or not.
    pub everything: &'a dyn Fn() -> BTreeSet<String>,
}

/// An order for this machine of this fleet.
pub fn order(fleet: &str, name: &str, address: IpAddr) -> MachineOrder {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let boot = Boot {
        fleet_id: fleet.to_owned(),
        fleet: "conformance".to_owned(),
        machine: name.to_owned(),
        address,
        agent_port: AGENT_PORT,
        fleet_ca_pem: params.self_signed(&key).expect("a certificate").pem(),
        join_token: Some("00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff".to_owned()),
        join_deadline: None,
    };
    MachineOrder {
        name: name.to_owned(),
        address,
        agent_port: AGENT_PORT,
        cluster: "main".to_owned(),
        members: vec![address],
        boot,
        zone: None,
        machines: None,
        artifacts: Vec::new(),
        packages: Vec::new(),
        joined: false,
    }
}

async fn names(provider: &dyn Provider) -> BTreeSet<String> {
    provider.inventory().await.expect("an inventory").into_iter().map(|machine| machine.name).collect()
}

/// Prints the differences alone: there may be thousands of things.
#[track_caller]
fn unchanged(before: &BTreeSet<String>, after: &BTreeSet<String>, what: &str) {
    let differences: Vec<&String> = before.symmetric_difference(after).collect();
    assert!(differences.is_empty(), "{what}: {differences:#?}");
}

/// Holds the provider to the contract. Panics where it breaks it.
pub async fn conform(site: &Site<'_>) {
    let before = (site.everything)();
    let ours = (site.connect)("fleet-a");
    let orders: Vec<MachineOrder> = site.machines.iter().map(|(name, at)| order("fleet-a", name, *at)).collect();
    let (first, others) = orders.split_first().expect("machines to make");

    // Nothing is there, and deleting what does not exist succeeds.
    assert_eq!(names(&*ours).await, BTreeSet::new());
    assert_eq!(ours.machine(&first.name).await.expect("an answer"), None);
    ours.delete(&first.name, None).await.expect("nothing is deleted");
    ours.delete(&first.name, Some("gone")).await.expect("nothing is deleted");

    // An order is carried out once, however often and however simultaneously it is given.
    let made = ours.create(first).await.expect("a machine");
    assert!(made.finished && made.power == Power::Running && made.address == first.address, "{made:?}");
    assert_eq!(ours.machine(&first.name).await.expect("an answer").as_ref(), Some(&made));
    // No host answers at the address of a deleted machine, not even with `connection refused`.
    let listens = |order: &MachineOrder| {
        TcpStream::connect_timeout(&SocketAddr::new(order.address, order.agent_port), Duration::from_secs(5)).is_ok()
    };
    assert!(listens(first), "its agent serves");
    let one = (site.everything)();
    assert_eq!(ours.create(first).await.expect("the same machine"), made);
    unchanged(&one, &(site.everything)(), "something was made twice");
    let made = join_all(others.iter().map(|order| ours.create(order))).await;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    assert!(others.iter().all(listens), "their agents serve");
    let all: BTreeSet<String> = orders.iter().map(|order| order.name.clone()).collect();
    assert_eq!(names(&*ours).await, all);
    let three = (site.everything)();

    // Another fleet neither sees nor gets nor removes what is ours.
    let theirs = (site.connect)("fleet-b");
    let seen = theirs.inventory().await.unwrap_or_default();
    assert!(seen.is_empty(), "another fleet sees {seen:?}");
    theirs.create(&order("fleet-b", &first.name, first.address)).await.expect_err("it is ours");
    let _ = theirs.delete(&first.name, None).await;
    unchanged(&three, &(site.everything)(), "another fleet changed something");
    assert!(listens(first), "its agent still serves");
    assert_eq!(names(&*ours).await, all);

    // An order to take away the machine that was seen does nothing to another one of the same name.
    let id = |seen: Option<MachineRecord>| seen.and_then(|machine| machine.id).expect("an id");
    let seen = id(ours.machine(&first.name).await.expect("an answer"));
    let listed = ours.inventory().await.expect("an inventory").into_iter().find(|machine| machine.name == first.name);
    assert_eq!(id(listed), seen, "one id in both answers");
    ours.delete(&first.name, Some(&seen)).await.expect("it is given back");
    ours.create(first).await.expect("the next one of this name");
    let next = id(ours.machine(&first.name).await.expect("an answer"));
    assert_ne!(next, seen, "another machine has another id");
    for refused in [ours.delete(&first.name, Some(&seen)).await, ours.dismantle(&first.name, Some(&seen)).await] {
        let refused = refused.expect_err("it is another machine");
        assert!(matches!(refused, ProviderError::AnotherMachine { .. } | ProviderError::NoDataDisk(_)), "{refused}");
    }
    assert!(listens(first), "its agent still serves");
    assert_eq!(names(&*ours).await, all);

    // Deleted once, and again.
    for order in &orders {
        ours.delete(&order.name, None).await.expect("it is given back");
        ours.delete(&order.name, None).await.expect("it is gone already");
        assert!(!listens(order), "its agent is gone");
    }
    assert_eq!(names(&*ours).await, BTreeSet::new());
    unchanged(&before, &(site.everything)(), "something was left, or something else was touched");
}
