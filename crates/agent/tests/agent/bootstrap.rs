//! a start with or without data → the bootstrap lines are in the configuration for the first start only.

use std::fs;
use std::time::Duration;

use raftsman_api::hex;
use raftsman_api::v1::{self, ServiceState};
use tokio::time::sleep;
use tonic::Code;

use crate::harness::{
    Client, Fleet, Machine, VERSION, bear, configure, kill, own_address, report, running, stamp, start_empty, start_on,
    stop, until, versions,
};

const EXISTING: &str = "# raftsman: data\ninitial-cluster-state: existing\n";

fn config(machine: &Machine) -> String {
    fs::read_to_string(machine.etcd_files().config()).unwrap()
}

async fn ready(fleet: &Fleet) -> (Machine, Client) {
    let (machine, mut client) = Machine::claimed(fleet).await;
    machine.ready_etcd(fleet, &mut client, VERSION).await;
    configure(&mut client, &machine.plain_config()).await.unwrap();
    (machine, client)
}

async fn another(client: &mut Client, first: u32) {
    until(client, "a new process", |etcd| {
        let service = etcd.service.as_ref().unwrap();
        service.state() == ServiceState::Running && service.pid != first
    })
    .await;
}

#[tokio::test]
async fn bootstrap_lines_apply_once() {
    let fleet = Fleet::new("f6");
    let (machine, mut client) = ready(&fleet).await;
    let refused = start_empty(&mut client, VERSION).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("does not say how to bootstrap it"), "{refused:?}");
    assert!(!report(&mut client).await.etcd.unwrap().had_data);

    bear(&mut client, VERSION, &machine.bootstrap()).await.unwrap();
    let started = running(&mut client).await;
    let digest = hex::sha256(machine.plain_config().as_bytes());
    assert_eq!(
        (&started.config_digest, &started.running_config_digest),
        (&digest, &digest),
        "the birth is no part of it"
    );
    assert!(config(&machine).ends_with(&format!("# raftsman: birth\n{}", machine.bootstrap())));
    machine.serves().await;

    stop(&mut client).await;
    let data = started.data.unwrap();
    start_on(&mut client, data.cluster_id, false).await.unwrap();
    machine.serves().await;
    assert!(config(&machine).ends_with(EXISTING), "{}", config(&machine));
    assert!(!config(&machine).contains("initial-cluster:"));
    assert_eq!(report(&mut client).await.etcd.unwrap().running_config_digest, digest);

    // The data directory is lost while etcd is stopped. No later start bootstraps a cluster here.
    stop(&mut client).await;
    fs::rename(machine.root().data(), machine.root().etcd().join("lost")).unwrap();
    let refused = start_empty(&mut client, VERSION).await.unwrap_err();
    assert!(refused.message().contains("does not say how to bootstrap it"), "{refused:?}");
    let refused = start_on(&mut client, data.cluster_id, false).await.unwrap_err();
    assert!(refused.message().contains("there is none"), "{refused:?}");
}

#[tokio::test]
async fn every_version_restarts_without_bootstrap_lines() {
    let fleet = Fleet::new("f6");
    for version in &versions() {
        let (machine, mut client) = Machine::claimed(&fleet).await;
        machine.ready_etcd(&fleet, &mut client, version).await;
        configure(&mut client, &machine.plain_config()).await.unwrap();
        bear(&mut client, version, &machine.bootstrap()).await.unwrap();
        let started = running(&mut client).await.data.unwrap();
        machine.serves().await;
        for alone in [false, true, false] {
            stop(&mut client).await;
            let start = v1::StartEtcdRequest {
                version: version.clone(),
                expected_data: v1::DataState::Present.into(),
                expected_cluster_id: started.cluster_id,
                force_new_cluster: alone,
                ..v1::StartEtcdRequest::default()
            };
            client.start_etcd(stamp(start)).await.unwrap();
            machine.serves().await;
            let data = report(&mut client).await.etcd.unwrap().data.unwrap();
            assert_eq!((data.member_id, data.cluster_id), (started.member_id, started.cluster_id), "etcd {version}");
        }
    }
}

#[tokio::test]
async fn a_bootstrap_is_retried_until_there_is_data() {
    let fleet = Fleet::new("f6");
    let (machine, mut client) = ready(&fleet).await;
    // The first configuration is hopeless: etcd ends before it has data.
    configure(&mut client, &machine.plain_config().replace("name: etcd-1", "name: etcd-9")).await.unwrap();
    bear(&mut client, VERSION, &machine.bootstrap()).await.unwrap();
    until(&mut client, "a restart", |etcd| etcd.service.as_ref().unwrap().restarts >= 1).await;
    assert!(config(&machine).ends_with(&format!("# raftsman: birth\n{}", machine.bootstrap())));
    configure(&mut client, &machine.plain_config()).await.unwrap();
    assert!(
        config(&machine).ends_with(&format!("# raftsman: birth\n{}", machine.bootstrap())),
        "the birth is not over"
    );
    // The next supervised start finds the good configuration, with the bootstrap lines.
    running(&mut client).await;
    machine.serves().await;
    let first = machine.etcd_pid().unwrap();
    kill(first);
    another(&mut client, first).await;
    machine.serves().await;
    assert!(config(&machine).ends_with(EXISTING), "there is data now");
    // A configuration that comes now goes before the section, too.
    configure(&mut client, &machine.plain_config()).await.unwrap();
    assert!(config(&machine).ends_with(EXISTING));
}

#[tokio::test]
async fn a_member_goes_on_alone_once() {
    let fleet = Fleet::new("f6");
    let (machine, mut client) = ready(&fleet).await;
    // One member of two: the other never starts, so that no leader can be elected.
    let bootstrap = machine.bootstrap().replace(":2380\n", &format!(":2380,etcd-2=https://{}:2380\n", own_address()));
    bear(&mut client, VERSION, &bootstrap).await.unwrap();
    let cluster = running(&mut client).await.data.unwrap().cluster_id;
    sleep(Duration::from_secs(2)).await;
    assert!(machine.etcdctl(&["--command-timeout=1s", "put", "key", "value"]).is_err(), "no quorum");
    let refused = start_on(&mut client, cluster, true).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("stop it before it is started alone"), "{refused:?}");
    stop(&mut client).await;

    let first = start_on(&mut client, cluster, true).await.unwrap();
    assert!(config(&machine).ends_with("force-new-cluster: true\n"));
    machine.serves().await;
    assert_eq!(machine.etcdctl(&["member", "list"]).unwrap().lines().count(), 1);
    assert_eq!(start_on(&mut client, cluster, true).await.unwrap(), first, "again, after a lost reply");

    // The agent's own restart does not repeat it.
    kill(first);
    another(&mut client, first).await;
    assert!(config(&machine).ends_with(EXISTING), "{}", config(&machine));
    machine.serves().await;
    stop(&mut client).await;
    start_on(&mut client, cluster, true).await.unwrap();
    stop(&mut client).await;
    start_on(&mut client, cluster, false).await.unwrap();
    assert!(config(&machine).ends_with(EXISTING), "the next start is a common one");

    let both = v1::StartEtcdRequest {
        version: VERSION.to_owned(),
        expected_data: v1::DataState::Empty.into(),
        force_new_cluster: true,
        ..v1::StartEtcdRequest::default()
    };
    assert_eq!(client.start_etcd(stamp(both)).await.unwrap_err().code(), Code::InvalidArgument);
}
