//! Unauthenticated and unauthorized clients of an agent → rejected with a reason, and nothing is changed.

use raftsman_api::fence::stamp;
use raftsman_api::roles::Role;
use raftsman_api::tls::{ClientTls, Identity, connect};
use raftsman_api::v1::agent_client::AgentClient;
use raftsman_api::v1::{ClaimRequest, ConfigureEtcdRequest, ReportRequest, StopEtcdRequest};
use raftsman_engine::pki::{Authority, AuthorityKind};
use raftsman_engine::store::{IdentitySource, Store};
use raftsman_tests::lab::Lab;
use raftsman_tests::story::{Facts, Story, Window, assert_same};
use secrecy::ExposeSecret as _;

/// Clients that call an agent without raftsman.
#[tokio::test]
async fn an_agent_rejects_unauthorized_clients() {
    let mut story = Story::default();
    let (lab, other) = (Lab::cluster(1, "3.6.15", &[]), Lab::cluster(1, "3.6.15", &[]));
    lab.apply();
    other.run(&["init", "-f", "x.yaml"]);
    other.run(&["plan"]).ok();
    let window = Window::of(&lab);
    let at = (lab.address("main-1"), 2378).into();
    let id = lab.fleet_id().expect("an id");
    let fleet = async |lab: &Lab| {
        let store = Store::open(&lab.path().join(".raftsman"), "lab").await.expect("the state");
        let secrets = store.unlock(IdentitySource::State(None)).await.expect("the secrets");
        let key = secrets.get("fleet").await.expect("readable").expect("a key");
        let certificate = store.get_certificate("fleet").await.expect("readable").expect("a certificate");
        Authority::load(AuthorityKind::Fleet, &certificate, &key).expect("an authority")
    };
    let (ours, theirs) = (fleet(&lab).await, fleet(&other).await);
    let identity = |authority: &Authority, role: Option<&str>| {
        let hour = std::time::Duration::from_secs(3600);
        let (chain, key) = authority.issue_client("eve", role, hour, jiff::Timestamp::now()).expect("a certificate");
        Identity::from_pem(&chain, key.expose_secret()).expect("an identity")
    };
    let tls = |identity: &Identity| ClientTls::claimed(identity, ours.certificate_pem(), "main-1", &id).expect("TLS");
    let client = async |role: Option<Role>| {
        let tls = tls(&identity(&ours, role.map(Role::organization)));
        AgentClient::new(connect(at, &tls).await.expect("a connection").channel)
    };
    let before = Facts::of(&lab, Some(&window));

    let stop = || StopEtcdRequest { grace_seconds: 1, ..Default::default() };
    let configure = || ConfigureEtcdRequest { config: "name: evil\n".to_owned(), digest: "0".repeat(64) };
    let refused = client(None).await.report(ReportRequest::default()).await.expect_err("refused");
    story.describe("a certificate without a role", refused.message(), &["needs the role reader"]);
    let refused = client(Some(Role::Reader)).await.stop_etcd(stamp(tonic::Request::new(stop()), 1000)).await;
    story.describe(
        "a reader that wants to stop etcd",
        refused.expect_err("refused").message(),
        &["needs the role operator", "has the role reader"],
    );
    let refused = client(Some(Role::Operator)).await.stop_etcd(stop()).await.expect_err("refused");
    story.describe("a change without a generation", refused.message(), &["generation"]);
    let refused = client(Some(Role::Operator)).await.stop_etcd(stamp(tonic::Request::new(stop()), 0)).await;
    story.describe("a change of an older generation", refused.expect_err("refused").message(), &["is older than"]);
    // The agent has this generation already: nothing new to store.
    let newest =
        std::fs::read_to_string(lab.path().join(".raftsman/generation")).expect("it").trim().parse().expect("a number");
    let refused = client(Some(Role::Admin)).await.configure_etcd(stamp(tonic::Request::new(configure()), newest)).await;
    story.describe(
        "a configuration that is not what its digest says",
        refused.expect_err("refused").message(),
        &["SHA-256", "nothing was written"],
    );
    let refused =
        client(Some(Role::Admin)).await.claim(ClaimRequest { nonce: vec![7; 32] }).await.expect_err("refused");
    story.describe("a join token that was used", refused.message(), &["claimed"]);
    let rejected = match connect(at, &tls(&identity(&theirs, Some(Role::Admin.organization())))).await {
        Err(error) => raftsman_engine::error_chain(&error),
        // With TLS 1.3 the server's no may come with the first call.
        Ok(connected) => {
            AgentClient::new(connected.channel).report(ReportRequest::default()).await.expect_err("refused").to_string()
        }
    };
    story.describe("an admin of another fleet", "refused in the handshake", &[]);
    assert!(!rejected.is_empty());
    let error = connect(
        at,
        &ClientTls::claimed(&identity(&theirs, None), theirs.certificate_pem(), "main-1", &id).expect("TLS"),
    )
    .await;
    story.describe(
        "an agent of another fleet",
        &raftsman_engine::error_chain(&error.expect_err("refused")),
        &["not the agent of main-1"],
    );

    assert_same("at the agent's door", &before, &Facts::of(&lab, Some(&window)));
    story.snapshot("agent", 8);
}
