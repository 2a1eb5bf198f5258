//! versions and starts → installed and started, or refused with the reason.

use std::fs;
use std::net::TcpListener;

use raftsman_api::hex;
use raftsman_api::v1;
use tonic::Code;

use crate::harness::{
    Fleet, Machine, VERSION, chunk, configure, etcd_digest, install_head, put_artifact, report, stamp, start_empty,
    until, versions,
};

#[tokio::test]
async fn bytes_are_asked_for_and_checked() {
    let fleet = Fleet::new("f3");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    let digest = hex::sha256(b"new etcd");
    machine.pin(&fleet, "etcd", "3.6.99", &digest).await;
    let ask = tokio_stream::iter([install_head("3.6.99", &digest)]);
    assert!(client.install_etcd(stamp(ask)).await.unwrap().into_inner().bytes_needed);

    let bad = tokio_stream::iter([install_head("3.6.99", &digest), chunk(b"new "), chunk(b"etce")]);
    let refused = client.install_etcd(stamp(bad)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("nothing was installed"), "{refused:?}");
    assert!(report(&mut client).await.etcd.unwrap().installed.is_empty());

    let good = tokio_stream::iter([install_head("3.6.99", &digest), chunk(b"new "), chunk(b"etcd")]);
    assert!(!client.install_etcd(stamp(good)).await.unwrap().into_inner().bytes_needed);
    let again = tokio_stream::iter([install_head("3.6.99", &digest)]);
    assert!(!client.install_etcd(stamp(again)).await.unwrap().into_inner().bytes_needed);
    let installed = report(&mut client).await.etcd.unwrap().installed;
    assert_eq!(installed, [v1::InstalledVersion { version: "3.6.99".to_owned(), sha256: digest.clone() }]);

    let outside = tokio_stream::iter([install_head("../../x", &digest)]);
    assert_eq!(client.install_etcd(stamp(outside)).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(fs::read_dir(machine.etcd_files().versions()).unwrap().count(), 1, "no leftovers");
}

#[tokio::test]
async fn a_start_is_refused_with_the_reason() {
    let fleet = Fleet::new("f3");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    let mut expect = Vec::new();
    expect.push((start_empty(&mut client, VERSION).await, "is not installed"));
    put_artifact(&machine.root(), VERSION);
    machine.pin(&fleet, "etcd", VERSION, &etcd_digest(VERSION)).await;
    let head = tokio_stream::iter([install_head(VERSION, &etcd_digest(VERSION))]);
    client.install_etcd(stamp(head)).await.unwrap();
    expect.push((start_empty(&mut client, VERSION).await, "is not configured"));
    configure(&mut client, &machine.config()).await.unwrap();
    expect.push((start_empty(&mut client, VERSION).await, "no peer certificate"));
    machine.ready_etcd(&fleet, &mut client, VERSION).await;

    let listener = TcpListener::bind((machine.address.ip(), 2380)).unwrap();
    expect.push((start_empty(&mut client, VERSION).await, "port 2380 is held by"));
    let taken = report(&mut client).await.etcd.unwrap().ports_taken;
    assert_eq!(taken.len(), 1);
    assert!(taken[0].holder.contains(&format!("(pid {})", std::process::id())), "{taken:?}");
    drop(listener);

    fs::create_dir_all(machine.root().data().join("member")).unwrap();
    expect.push((start_empty(&mut client, VERSION).await, "expected no data"));
    for (refused, reason) in expect {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains(reason), "{refused:?} should say: {reason}");
    }
    let unsaid = v1::StartEtcdRequest { version: VERSION.to_owned(), ..v1::StartEtcdRequest::default() };
    assert_eq!(client.start_etcd(stamp(unsaid)).await.unwrap_err().code(), Code::InvalidArgument);
    assert!(!report(&mut client).await.etcd.unwrap().had_data, "a refused start is none");
}

#[tokio::test]
async fn ids_are_those_that_etcd_reports() {
    let fleet = Fleet::new("f3");
    for version in &versions() {
        let (machine, mut client) = Machine::claimed(&fleet).await;
        machine.ready_etcd(&fleet, &mut client, version).await;
        let pid = start_empty(&mut client, version).await.unwrap();
        assert_eq!(start_empty(&mut client, version).await.unwrap(), pid, "a second start changes nothing");
        let etcd = until(&mut client, "data", |etcd| {
            etcd.data.as_ref().is_some_and(|data| data.state() == v1::DataState::Present)
        })
        .await;
        let data = etcd.data.unwrap();
        let (member, cluster) = (format!("{:x}", data.member_id), format!("{:x}", data.cluster_id));
        let described = |line: &String| {
            line.contains(&format!(r#""local-member-id":"{member}""#))
                && line.contains(&format!(r#""cluster-id":"{cluster}""#))
        };
        let begun = std::time::Instant::now();
        loop {
            let request = v1::LogsRequest { log: v1::LogOf::Etcd.into(), lines: 1000 };
            let lines = client.logs(request).await.unwrap().into_inner().lines;
            if lines.iter().any(described) {
                break;
            }
            assert!(begun.elapsed().as_secs() < 20, "etcd {version} never told {member} and {cluster}: {lines:#?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(etcd.running_version, *version);
        assert!(data.bytes > 0 && etcd.had_data);

        client.stop_etcd(stamp(v1::StopEtcdRequest { grace_seconds: 10, ..Default::default() })).await.unwrap();
        assert_eq!(machine.etcd_pid(), None);
        // The same data again, but only for the cluster it belongs to.
        let start = |expected_cluster_id| v1::StartEtcdRequest {
            version: version.clone(),
            expected_data: v1::DataState::Present.into(),
            expected_cluster_id,
            ..v1::StartEtcdRequest::default()
        };
        let refused = client.start_etcd(stamp(start(data.cluster_id ^ 1))).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        client.start_etcd(stamp(start(data.cluster_id))).await.unwrap();
    }
}
