//! calls of every role and generation → done or refused, also over restarts.

use raftsman_api::roles::Role;
use raftsman_api::v1::{self, Purpose};
use raftsman_api::{fence, hex};
use tonic::{Code, Request};

use crate::harness::{Client, Fleet, Machine, configure, report};

fn request() -> v1::RequestCertificateRequest {
    v1::RequestCertificateRequest { purpose: Purpose::EtcdPeer.into() }
}

#[tokio::test]
async fn roles_are_kept_apart() {
    let fleet = Fleet::new("f2");
    let (machine, _) = Machine::claimed(&fleet).await;
    let mut reader = machine.client(&fleet, Role::Reader).await;
    report(&mut reader).await;
    let refused = reader.request_certificate(fence::stamp(Request::new(request()), 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(refused.message(), "this call needs the role operator, the client certificate has the role reader");
    let refused = reader.claim(v1::ClaimRequest { nonce: vec![0; 32] }).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    for role in [Role::Operator, Role::Admin] {
        let mut client = machine.client(&fleet, role).await;
        client.request_certificate(fence::stamp(Request::new(request()), 1)).await.unwrap();
    }
    let connected = machine.connect_as(&fleet, "raftsman:unknown").await.unwrap();
    let refused = Client::new(connected.channel).report(v1::ReportRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn an_older_generation_is_refused_for_ever() {
    let fleet = Fleet::new("f2");
    let (mut machine, mut client) = Machine::claimed(&fleet).await;
    let unstamped = client.request_certificate(request()).await.unwrap_err();
    assert_eq!(unstamped.code(), Code::InvalidArgument);
    client.request_certificate(fence::stamp(Request::new(request()), 5)).await.unwrap();
    client.request_certificate(fence::stamp(Request::new(request()), 5)).await.unwrap();
    for restart in [false, true] {
        if restart {
            machine.kill_agent();
            machine.start_agent().await;
            client = machine.client(&fleet, Role::Operator).await;
        }
        let refused = client.request_certificate(fence::stamp(Request::new(request()), 3)).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().starts_with("generation 3 is older than 5: another operator"), "{refused:?}");
        assert_eq!(report(&mut client).await.generation, 5);
    }
    client.request_certificate(fence::stamp(Request::new(request()), 6)).await.unwrap();
    assert_eq!(report(&mut client).await.generation, 6);
}

#[tokio::test]
async fn an_unclaimed_machine_does_nothing() {
    let fleet = Fleet::new("f2");
    let machine = Machine::start(&fleet).await;
    let mut client = Client::new(machine.unclaimed(&fleet).await.unwrap().channel);
    let refused = client.request_certificate(fence::stamp(Request::new(request()), 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn certificates_are_renewed() {
    let fleet = Fleet::new("f2");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    let before = report(&mut client).await.agent_certificate.unwrap().fingerprint;
    machine.certify(&fleet, &mut client, Purpose::Agent).await;
    let after = report(&mut client).await.agent_certificate.unwrap().fingerprint;
    assert_ne!(before, after);
    let shown = machine.connect_as(&fleet, Role::Reader.organization()).await.unwrap().server_certificate;
    assert_eq!(hex::sha256(&shown), after, "served from the next connection on");

    let first = machine.certify(&fleet, &mut client, Purpose::EtcdServer).await;
    client.request_certificate(fence::stamp(Request::new(request()), 1)).await.unwrap();
    let foreign = v1::StoreCertificateRequest {
        purpose: Purpose::EtcdPeer.into(),
        chain_pem: first,
        trust_pem: fleet.ca_pem.clone(),
    };
    let refused = client.store_certificate(fence::stamp(Request::new(foreign), 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
}

#[tokio::test]
async fn configuration_and_logs() {
    let fleet = Fleet::new("f2");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    let config = "data-dir: {root}/etcd/data\n";
    configure(&mut client, config).await.unwrap();
    let etcd = report(&mut client).await.etcd.unwrap();
    assert_eq!(etcd.config_digest, hex::sha256(config.as_bytes()));
    assert_eq!((etcd.running_config_digest.as_str(), etcd.had_data), ("", false));
    let wrong = v1::ConfigureEtcdRequest { config: config.to_owned(), digest: "00".to_owned() };
    let refused = client.configure_etcd(fence::stamp(Request::new(wrong), 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let request = v1::LogsRequest { log: v1::LogOf::Agent.into(), lines: 1 };
    let lines = client.logs(request).await.unwrap().into_inner().lines;
    assert_eq!(lines.len(), 1);
    assert!(machine.log().contains(&lines[0]));
}

/// A thousand connections that never finish a handshake, held open until the end.
#[tokio::test]
async fn half_open_connections_keep_no_operator_out() {
    use tokio::io::AsyncWriteExt as _;
    let fleet = Fleet::new("f2");
    let (machine, _) = Machine::claimed(&fleet).await;
    // The second opens with the head of a TLS record whose body never comes.
    for opening in [&b""[..], &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]] {
        let mut held = Vec::new();
        for _ in 0..1_000 {
            let mut connection = tokio::net::TcpStream::connect(machine.address).await.unwrap();
            // One that made room for another is closed already.
            let _ = connection.write_all(opening).await;
            held.push(connection);
        }
        for _ in 0..5 {
            let begun = std::time::Instant::now();
            let mut client = machine.client(&fleet, Role::Reader).await;
            report(&mut client).await;
            let took = begun.elapsed();
            // Half of the time after which the agent itself gives up a handshake.
            assert!(took < std::time::Duration::from_secs(5), "{took:?} with {opening:?}");
        }
        drop(held);
    }
}
