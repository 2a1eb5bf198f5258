//! other CAs, revoked keys → which clients get in, on new connections and on open ones.

use raftsman_api::roles::Role;
use raftsman_api::tls::{ClientTls, Identity, connect, key_of};
use raftsman_api::v1;
use tonic::Code;

use crate::harness::{Client, Fleet, Machine, report, stamp};

fn access(trust: &[&Fleet], revoked: &[&Identity]) -> v1::SetAccessRequest {
    v1::SetAccessRequest {
        trust_pem: trust.iter().map(|fleet| fleet.ca_pem.as_str()).collect(),
        revoked: revoked.iter().map(|identity| key_of(&identity.chain[0]).unwrap()).collect(),
    }
}

async fn connect_with(machine: &Machine, fleet: &Fleet, trusts: &str, identity: &Identity) -> Result<Client, String> {
    let tls = ClientTls::claimed(identity, trusts, machine.name, fleet.id).unwrap();
    connect(machine.address, &tls).await.map(|it| Client::new(it.channel)).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_revoked_client_is_refused_also_on_an_open_connection() {
    let fleet = Fleet::new("fa");
    let (mut machine, _) = Machine::claimed(&fleet).await;
    let stolen = fleet.identity(Role::Operator.organization());
    let mut open = connect_with(&machine, &fleet, &fleet.ca_pem, &stolen).await.unwrap();
    report(&mut open).await;

    // An operator must not change which clients the agent accepts.
    let refused = open.set_access(stamp(access(&[&fleet], &[]))).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let mut admin = machine.client(&fleet, Role::Admin).await;
    assert_eq!(report(&mut admin).await.access_digest, "");
    admin.set_access(stamp(access(&[&fleet], &[&stolen]))).await.unwrap();
    assert_ne!(report(&mut admin).await.access_digest, "");

    let refused = open.report(v1::ReportRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    connect_with(&machine, &fleet, &fleet.ca_pem, &stolen).await.unwrap_err();
    // Over a restart too.
    machine.kill_agent();
    machine.start_agent().await;
    connect_with(&machine, &fleet, &fleet.ca_pem, &stolen).await.unwrap_err();
    report(&mut machine.client(&fleet, Role::Reader).await).await;
}

#[tokio::test]
async fn a_caller_cannot_lock_itself_out() {
    let fleet = Fleet::new("fa");
    let other = Fleet::new("fa");
    let (machine, _) = Machine::claimed(&fleet).await;
    let own = fleet.identity(Role::Admin.organization());
    let mut admin = connect_with(&machine, &fleet, &fleet.ca_pem, &own).await.unwrap();
    for (attack, request) in [
        ("only another CA", access(&[&other], &[])),
        ("its own key", access(&[&fleet], &[&own])),
        ("no CA", v1::SetAccessRequest::default()),
        ("no key", v1::SetAccessRequest { trust_pem: fleet.ca_pem.clone(), revoked: vec!["x".to_owned()] }),
    ] {
        let refused = admin.set_access(stamp(request)).await.expect_err(attack);
        assert!(matches!(refused.code(), Code::FailedPrecondition | Code::InvalidArgument), "{attack}: {refused:?}");
    }
    assert_eq!(report(&mut admin).await.access_digest, "");
}

#[tokio::test]
async fn the_fleets_ca_changes_in_phases() {
    let (old, new) = (Fleet::new("fa"), Fleet::new("fa"));
    let (machine, mut by_old) = Machine::claimed(&old).await;
    let both = format!("{}{}", old.ca_pem, new.ca_pem);
    let (reader_of_new, admin_of_new) =
        (new.identity(Role::Reader.organization()), new.identity(Role::Admin.organization()));
    connect_with(&machine, &old, &both, &reader_of_new).await.unwrap_err();

    let mut admin = machine.client(&old, Role::Admin).await;
    admin.set_access(stamp(access(&[&old, &new], &[]))).await.unwrap();
    let mut by_new = connect_with(&machine, &old, &both, &admin_of_new).await.unwrap();
    let issuer = |report: &v1::ReportReply| report.agent_certificate.as_ref().unwrap().issuer_key.clone();
    let before = issuer(&report(&mut by_new).await);
    machine.certify(&new, &mut by_new, v1::Purpose::Agent).await;
    let mut by_new = connect_with(&machine, &old, &new.ca_pem, &admin_of_new).await.expect("signed by the new one");
    assert_ne!(issuer(&report(&mut by_new).await), before);

    by_new.set_access(stamp(access(&[&new], &[]))).await.unwrap();
    // The agent rejects certificates that the old CA signed, also on open connections.
    let refused = by_old.report(v1::ReportRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    let admin_of_old = old.identity(Role::Admin.organization());
    connect_with(&machine, &old, &both, &admin_of_old).await.unwrap_err();
    report(&mut by_new).await;
}
