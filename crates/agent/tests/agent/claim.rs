//! the first connection of a machine → claimed once, by the holder of the token; a man in the middle is detected.

use std::fs;

use raftsman_api::claim::{self, JoinToken};
use raftsman_api::roles::Role;
use raftsman_api::tls::{ConnectError, Identity, ServerTls, machine_name, roots};
use raftsman_api::v1;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::PrivatePkcs8KeyDer;
use tokio::net::TcpListener;
use tonic::Code;

use crate::harness::{Client, Fleet, Machine, PORT, own_address, report};

#[tokio::test]
async fn a_machine_is_claimed_once() {
    let fleet = Fleet::new("f1");
    let mut machine = Machine::start(&fleet).await;
    let early = machine.connect_as(&fleet, Role::Operator.organization()).await;
    assert!(matches!(early, Err(ConnectError::Untrusted { .. })), "its certificate is still self-signed");

    machine.claim(&fleet, &machine.token).await.unwrap();
    let boot = fs::read_to_string(machine.root().boot()).unwrap();
    assert!(!boot.contains("join_token") && !boot.contains(&machine.token.to_hex()), "the token is dead");

    let mut client = machine.client(&fleet, Role::Reader).await;
    let seen = report(&mut client).await;
    assert_eq!((seen.fleet_id.as_str(), seen.machine.as_str()), ("f1", "etcd-1"));
    let certificate = seen.agent_certificate.unwrap();
    assert_eq!(certificate.names, [machine.address.ip().to_string().as_str(), "etcd-1.f1.raftsman"]);
    assert_eq!(certificate.issuer_key.len(), 64);

    // The token again, over a connection that accepts any server certificate.
    let again = machine.claim(&fleet, &machine.token).await;
    assert_eq!(again, Err("already claimed by fleet test (f1)".to_owned()));

    // All of it is still so after a restart.
    machine.kill_agent();
    machine.start_agent().await;
    let mut client = machine.client(&fleet, Role::Reader).await;
    assert_eq!(report(&mut client).await.incarnation, seen.incarnation);
    assert!(machine.claim(&fleet, &machine.token).await.is_err());
    assert!(!machine.log().contains(&machine.token.to_hex()), "no secret in the log");
}

#[tokio::test]
async fn another_token_is_rejected() {
    let fleet = Fleet::new("f1");
    let machine = Machine::start(&fleet).await;
    let other = JoinToken::generate().unwrap();
    let refused = machine.claim(&fleet, &other).await.unwrap_err();
    assert!(refused.contains("could not prove"), "{refused}");
    machine.claim(&fleet, &machine.token).await.unwrap();
}

#[tokio::test]
async fn a_claim_goes_on_after_a_restart_in_the_middle() {
    let fleet = Fleet::new("f1");
    let mut machine = Machine::start(&fleet).await;
    let mut client = Client::new(machine.unclaimed(&fleet).await.unwrap().channel);
    let nonce = claim::nonce().unwrap();
    let csr = client.claim(v1::ClaimRequest { nonce }).await.unwrap().into_inner().csr_der;
    machine.kill_agent();
    machine.start_agent().await;
    let mut client = Client::new(machine.unclaimed(&fleet).await.unwrap().channel);
    let name = machine_name(machine.name, fleet.id);
    // Certificates that would lock out all operators are refused.
    let foreign = Fleet::new("f1").sign(&csr, &name, machine.address.ip());
    let misnamed = fleet.sign(&csr, "etcd-2.f1.raftsman", machine.address.ip());
    let key = KeyPair::generate().unwrap();
    let other_csr = CertificateParams::default().serialize_request(&key).unwrap();
    let other_key = fleet.sign(other_csr.der(), &name, machine.address.ip());
    for chain_pem in [foreign, misnamed, other_key, "junk".to_owned()] {
        let refused = client.finish_claim(v1::FinishClaimRequest { chain_pem }).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
    let chain_pem = fleet.sign(&csr, &name, machine.address.ip());
    client.finish_claim(v1::FinishClaimRequest { chain_pem }).await.unwrap();
    machine.client(&fleet, Role::Reader).await;
}

#[tokio::test]
async fn a_man_in_the_middle_is_detected() {
    let fleet = Fleet::new("f1");
    let machine = Machine::start(&fleet).await;
    // The one in between shows a certificate of its own; let it even be able to call the agent.
    let key = KeyPair::generate().unwrap();
    let shown = CertificateParams::default().self_signed(&key).unwrap().der().clone();
    let identity = Identity { chain: vec![shown], key: PrivatePkcs8KeyDer::from(key.serialize_der()).into() };
    let tls = ServerTls::new(identity, roots(&fleet.ca_pem).unwrap()).unwrap();
    let listener = TcpListener::bind((own_address(), 0)).await.unwrap();
    let between = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        let mut stream = tls.accept(tcp).await.unwrap();
        // An empty SETTINGS frame: as far as HTTP/2 goes.
        tokio::io::AsyncWriteExt::write_all(&mut stream, &[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    });
    let workstation = fleet.identity(Role::Operator.organization());
    let tls = raftsman_api::tls::ClientTls::unclaimed(&workstation, machine.name, fleet.id).unwrap();
    let seen = raftsman_api::tls::connect(between, &tls).await.unwrap().server_certificate;
    // It passes the workstation's nonce on to the real agent and the agent's proof back.
    let nonce = claim::nonce().unwrap();
    let mut passed_on = Client::new(machine.unclaimed(&fleet).await.unwrap().channel);
    let reply = passed_on.claim(v1::ClaimRequest { nonce: nonce.clone() }).await.unwrap().into_inner();
    let verdict = claim::verify(&machine.token, &nonce, &seen, &reply.csr_der, &reply.proof);
    assert_eq!(verdict, Err(claim::ClaimError::WrongProof));
    served.abort();
}

#[tokio::test]
async fn a_claim_after_the_deadline_is_refused() {
    let fleet = Fleet::new("f1");
    let mut machine = Machine::lay_out(&fleet, Some("2020-01-01T00:00:00Z"));
    machine.start_agent().await;
    let refused = machine.claim(&fleet, &machine.token).await.unwrap_err();
    assert!(refused.contains("ended at 2020-01-01"), "{refused}");
    assert!(!fs::read_to_string(machine.root().boot()).unwrap().contains("join_token"));
}

#[tokio::test]
async fn connecting_fails_fast_and_says_why() {
    let fleet = Fleet::new("f1");
    let (machine, _) = Machine::claimed(&fleet).await;
    let foreign = Fleet::new("f2");
    let identity = foreign.identity(Role::Admin.organization());
    let tls = raftsman_api::tls::ClientTls::claimed(&identity, &fleet.ca_pem, machine.name, fleet.id).unwrap();
    let refused = raftsman_api::tls::connect(machine.address, &tls).await;
    assert!(matches!(refused, Err(ConnectError::Untrusted { .. })), "{refused:?}");

    let identity = fleet.identity(Role::Admin.organization());
    let tls = raftsman_api::tls::ClientTls::claimed(&identity, &fleet.ca_pem, "etcd-2", fleet.id).unwrap();
    let other_machine = raftsman_api::tls::connect(machine.address, &tls).await;
    assert!(matches!(other_machine, Err(ConnectError::Untrusted { .. })), "{other_machine:?}");

    // A busy computer keeps some of them waiting; a time-out would all.
    let mut fastest = std::time::Duration::MAX;
    for _ in 0..5 {
        let begun = std::time::Instant::now();
        let unheard = raftsman_api::tls::connect((own_address(), PORT).into(), &tls).await;
        assert!(matches!(unheard, Err(ConnectError::Refused { .. })), "{unheard:?}");
        fastest = fastest.min(begun.elapsed());
    }
    assert!(fastest < std::time::Duration::from_millis(200), "{fastest:?}");
}
