//! another CA bundle, stored or not, loaded by etcd or not → which TLS handshakes succeed.

use raftsman_api::hex;
use raftsman_api::roles::Role;
use raftsman_api::v1::{self, Purpose};
use tokio::net::TcpListener;
use tonic::Code;

use crate::harness::{
    Client, Fleet, Machine, VERSION, own_address, report, running, stamp, start_empty, start_on, stop, versions,
};

async fn ready(fleet: &Fleet) -> (Machine, Client) {
    let (machine, mut client) = Machine::claimed(fleet).await;
    machine.ready_etcd(fleet, &mut client, VERSION).await;
    (machine, client)
}

async fn store_trust(client: &mut Client, purpose: Purpose, pem: &str) -> Result<(), tonic::Status> {
    let request = v1::StoreTrustRequest { purpose: purpose.into(), trust_pem: pem.to_owned() };
    client.store_trust(stamp(request)).await.map(drop)
}

/// What the machine behind the client finds at this address.
async fn handshake(client: &mut Client, address: &str) -> String {
    let targets = vec![v1::Target { name: "other".to_owned(), address: address.to_owned() }];
    let results = client.handshake(v1::HandshakeRequest { targets }).await.unwrap().into_inner().results;
    assert_eq!((results.len(), results[0].name.as_str()), (1, "other"));
    results[0].error.clone()
}

fn digests(etcd: &v1::EtcdReport) -> (Vec<&str>, Vec<&str>) {
    (
        etcd.certificates.iter().map(|found| found.trust_digest.as_str()).collect(),
        etcd.running_trust.iter().map(|found| found.digest.as_str()).collect(),
    )
}

#[tokio::test]
async fn trust_is_swapped_on_disk_and_read_at_the_next_start() {
    let fleet = Fleet::new("f7");
    let other = Fleet::new("f7");
    let (_machine, mut client) = ready(&fleet).await;
    let (old, both) = (hex::sha256(fleet.ca_pem.as_bytes()), format!("{}{}", fleet.ca_pem, other.ca_pem));
    let new = hex::sha256(both.as_bytes());
    assert_eq!(digests(&report(&mut client).await.etcd.unwrap()), (vec![old.as_str(); 2], vec![]), "it does not run");
    start_empty(&mut client, VERSION).await.unwrap();
    let before = running(&mut client).await;
    assert_eq!(digests(&before), (vec![old.as_str(); 2], vec![old.as_str(); 2]));

    store_trust(&mut client, Purpose::EtcdPeer, &both).await.unwrap();
    store_trust(&mut client, Purpose::EtcdPeer, &both).await.unwrap();
    let swapped = report(&mut client).await.etcd.unwrap();
    assert_eq!(digests(&swapped), (vec![new.as_str(), &old], vec![old.as_str(); 2]), "etcd has not read it yet");
    assert_eq!(swapped.certificates[0].fingerprint, before.certificates[0].fingerprint);
    stop(&mut client).await;
    start_on(&mut client, before.data.unwrap().cluster_id, false).await.unwrap();
    let restarted = running(&mut client).await;
    assert_eq!(digests(&restarted), (vec![new.as_str(), &old], vec![new.as_str(), &old]));

    for (purpose, pem) in [(Purpose::Agent, both.as_str()), (Purpose::EtcdServer, ""), (Purpose::EtcdServer, "junk")] {
        let refused = store_trust(&mut client, purpose, pem).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
}

#[tokio::test]
async fn handshakes_succeed_where_both_sides_trust() {
    let (fleet, other) = (Fleet::new("f7"), Fleet::new("f7"));
    let (serving, mut server) = ready(&fleet).await;
    let (_asking, mut friend) = ready(&fleet).await;
    let (untrusted, mut foreign) = ready(&other).await;
    let address = serving.address.ip().to_string();
    let refused = handshake(&mut friend, &address).await;
    assert!(refused.contains(&format!("{address}:2380: cannot connect: Connection refused")), "{refused}");
    start_empty(&mut server, VERSION).await.unwrap();
    let cluster = running(&mut server).await.data.unwrap().cluster_id;
    serving.serves().await;
    assert_eq!(handshake(&mut friend, &address).await, "");

    // The member of another CA does not trust etcd, then etcd does not trust it, then both trust both.
    let refused = handshake(&mut foreign, &address).await;
    assert!(refused.contains("the handshake failed: invalid peer certificate"), "{refused}");
    let both = format!("{}{}", fleet.ca_pem, other.ca_pem);
    store_trust(&mut foreign, Purpose::EtcdPeer, &both).await.unwrap();
    let refused = handshake(&mut foreign, &address).await;
    assert!(refused.contains("it rejected our certificate"), "{refused}");
    store_trust(&mut server, Purpose::EtcdPeer, &both).await.unwrap();
    let refused = handshake(&mut foreign, &address).await;
    assert!(refused.contains("it rejected our certificate"), "etcd has not read it yet: {refused}");
    stop(&mut server).await;
    start_on(&mut server, cluster, false).await.unwrap();
    serving.serves().await;
    assert_eq!(handshake(&mut foreign, &address).await, "");

    // etcd also looks where a member comes from, after the handshake: here that is 127.0.0.1.
    let request = v1::RequestCertificateRequest { purpose: Purpose::EtcdPeer.into() };
    let csr = foreign.request_certificate(stamp(request)).await.unwrap().into_inner().csr_der;
    let request = v1::StoreCertificateRequest {
        purpose: Purpose::EtcdPeer.into(),
        chain_pem: other.sign(&csr, "unknown.invalid", untrusted.address.ip()),
        trust_pem: both,
    };
    foreign.store_certificate(stamp(request)).await.unwrap();
    let refused = handshake(&mut foreign, &address).await;
    assert!(refused.contains("it rejected our certificate"), "{refused}");
}

#[tokio::test]
async fn every_version_passes_handshakes() {
    let fleet = Fleet::new("f7");
    let (_asking, mut client) = ready(&fleet).await;
    for version in &versions() {
        let (machine, mut server) = Machine::claimed(&fleet).await;
        machine.ready_etcd(&fleet, &mut server, version).await;
        start_empty(&mut server, version).await.unwrap();
        machine.serves().await;
        assert_eq!(handshake(&mut client, &machine.address.ip().to_string()).await, "", "etcd {version}");
    }
}

#[tokio::test]
async fn an_unreachable_peer_is_distinguished_from_a_rejection() {
    let fleet = Fleet::new("f7");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    let address = own_address().to_string();
    let targets = vec![v1::Target { name: "other".to_owned(), address: address.clone() }];
    let early = client.handshake(v1::HandshakeRequest { targets }).await.unwrap_err();
    assert_eq!(early.code(), Code::FailedPrecondition);
    machine.certify(&fleet, &mut client, Purpose::EtcdPeer).await;
    let mut reader = machine.client(&fleet, Role::Reader).await;
    let silent = TcpListener::bind((address.as_str(), 2380)).await.unwrap();
    let name = |name: &str, address: &str| v1::Target { name: name.to_owned(), address: address.to_owned() };
    let absent = own_address().to_string();
    let targets = vec![name("silent", &address), name("absent", &absent), name("odd", "etcd-9")];
    let found = reader.handshake(v1::HandshakeRequest { targets }).await.unwrap().into_inner().results;
    let errors: Vec<(&str, &str)> = found.iter().map(|one| (one.name.as_str(), one.error.as_str())).collect();
    assert_eq!(errors[0], ("silent", format!("{address}:2380: no answer within 3 s").as_str()));
    assert!(errors[1].1.contains("cannot connect"), "{errors:?}");
    assert_eq!(errors[2], ("odd", "`etcd-9` is not an address"));
    drop(silent);
}
