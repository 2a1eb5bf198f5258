//! binaries whose SHA-256 no admin has pinned → neither installed nor run.

use std::fs;

use raftsman_api::hex;
use raftsman_api::roles::Role;
use raftsman_api::v1::{self, ServiceState, install_etcd_request, restore_data_request};
use tonic::Code;

use crate::harness::{
    Client, Fleet, Machine, VERSION, chunk, etcd_digest, install_head, kill, report, running, stamp, start_empty, stop,
    until,
};

const EVIL: &[u8] = b"#!/bin/sh\nid > ran-as\n";

fn tool(bytes: &[u8]) -> v1::InstallEtcdRequest {
    let head =
        v1::InstallEtcdHead { version: VERSION.to_owned(), sha256: hex::sha256(bytes), program: "etcdutl".to_owned() };
    v1::InstallEtcdRequest { part: Some(install_etcd_request::Part::Head(head)) }
}

async fn restore(client: &mut Client) -> tonic::Status {
    let head = v1::RestoreDataHead { version: VERSION.to_owned(), sha256: hex::sha256(b""), ..Default::default() };
    let part = v1::RestoreDataRequest { part: Some(restore_data_request::Part::Head(head)) };
    client.restore_data(stamp(tokio_stream::iter([part]))).await.unwrap_err()
}

#[tokio::test]
async fn an_operator_runs_no_program_of_its_own() {
    let fleet = Fleet::new("f9");
    let (machine, mut operator) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut operator, VERSION).await;

    // What the restore of a backup would run.
    let upload = || tokio_stream::iter([tool(EVIL), chunk(EVIL)]);
    let refused = operator.install_etcd(stamp(upload())).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("not pinned"), "{refused:?}");
    // In the place of the etcd that an admin had installed.
    let other = tokio_stream::iter([install_head(VERSION, &hex::sha256(EVIL)), chunk(EVIL)]);
    let refused = operator.install_etcd(stamp(other)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("not the one that an admin pinned"), "{refused:?}");
    // Nor can an operator pin it.
    let pin = v1::PinBinariesRequest {
        binaries: vec![v1::InstallEtcdHead {
            version: VERSION.to_owned(),
            sha256: hex::sha256(EVIL),
            program: "etcdutl".to_owned(),
        }],
    };
    let refused = operator.pin_binaries(stamp(pin)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("needs the role admin"), "{refused:?}");
    assert!(!machine.etcd_files().versions().join(VERSION).join("etcdutl").exists());
    assert_eq!(report(&mut operator).await.etcd.unwrap().installed[0].sha256, etcd_digest(VERSION));

    // What root's programs read is an admin's too.
    let firewall = operator.set_firewall(stamp(v1::SetFirewallRequest::default())).await.unwrap_err();
    let delivery = operator.deliver(stamp(v1::DeliverRequest::default())).await.unwrap_err();
    assert_eq!((firewall.code(), delivery.code()), (Code::PermissionDenied, Code::PermissionDenied));

    // Once an admin has pinned these bytes, an operator may install them.
    machine.pin(&fleet, "etcdutl", VERSION, &hex::sha256(EVIL)).await;
    operator.install_etcd(stamp(upload())).await.unwrap();
}

#[tokio::test]
async fn a_swapped_binary_is_not_started_and_the_report_says_why() {
    let fleet = Fleet::new("f9");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    start_empty(&mut client, VERSION).await.unwrap();
    let pid = running(&mut client).await.service.unwrap().pid;
    machine.serves().await;

    // Its file is exchanged under it, with the note of its digest.
    let dir = machine.etcd_files().versions().join(VERSION);
    let good = fs::read(dir.join("etcd")).unwrap();
    let swap = |bytes: &[u8]| {
        fs::remove_file(dir.join("etcd")).unwrap();
        fs::write(dir.join("etcd"), bytes).unwrap();
        fs::write(dir.join("etcd.sha256"), hex::sha256(bytes)).unwrap();
        fs::set_permissions(dir.join("etcd"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    swap(EVIL);
    kill(pid);
    let etcd = until(&mut client, "a reason", |etcd| {
        etcd.service.as_ref().unwrap().last_exit.contains("it was changed on this machine")
    })
    .await;
    assert_ne!(etcd.service.as_ref().unwrap().state(), ServiceState::Running);
    assert!(!machine.root().etcd().join("ran-as").exists(), "it never ran");

    // It comes back by itself once its bytes do.
    swap(&good);
    running(&mut client).await;

    // A start by a call is refused alike.
    stop(&mut client).await;
    swap(EVIL);
    let cluster = report(&mut client).await.etcd.unwrap().data.unwrap().cluster_id;
    let refused = crate::harness::start_on(&mut client, cluster, false).await.unwrap_err();
    assert!(refused.message().contains("it was changed on this machine"), "{refused:?}");
    assert!(!machine.root().etcd().join("ran-as").exists(), "it never ran");
}

#[tokio::test]
async fn a_swapped_tool_restores_nothing() {
    let fleet = Fleet::new("f9");
    let (machine, _) = Machine::claimed(&fleet).await;
    let mut client = machine.client(&fleet, Role::Operator).await;
    machine.pin(&fleet, "etcdutl", VERSION, &hex::sha256(b"tool")).await;
    client.install_etcd(stamp(tokio_stream::iter([tool(b"tool"), chunk(b"tool")]))).await.unwrap();
    let path = machine.etcd_files().versions().join(VERSION).join("etcdutl");
    fs::write(&path, EVIL).unwrap();
    let refused = restore(&mut client).await;
    assert!(refused.message().contains("it was changed on this machine"), "{refused:?}");
    assert!(fs::read_dir(machine.root().etcd()).unwrap().flatten().all(|entry| entry.file_name() != "ran-as"));
}
