//! a data directory → where its log ends, put out of the way, filled from a snapshot.

use std::fs;

use raftsman_api::hex;
use raftsman_api::roles::Role;
use raftsman_api::v1::{self, install_etcd_request, restore_data_request};
use tonic::{Code, Status};

use crate::harness::{
    Client, Fleet, Machine, VERSION, bear, chunk, configure, etcdctl, kill, report, running, stamp, start_empty,
    start_on, stop, versions,
};

async fn clear(client: &mut Client, expected_member_id: u64) -> Result<(), Status> {
    client.clear_data(stamp(v1::ClearDataRequest { expected_member_id })).await.map(drop)
}

async fn data(client: &mut Client) -> v1::Data {
    report(client).await.etcd.unwrap().data.unwrap()
}

/// What etcd itself says when it starts on its data: the last index, its term, what is committed.
async fn described(client: &mut Client) -> Vec<(u64, u64, u64)> {
    let request = v1::LogsRequest { log: v1::LogOf::Etcd.into(), lines: 1000 };
    let lines = client.logs(request).await.unwrap().into_inner().lines;
    let number = |line: &str, name: &str| -> Option<u64> {
        let rest = line.split_once(name)?.1;
        rest[..rest.find(|letter: char| !letter.is_ascii_digit())?].parse().ok()
    };
    lines
        .iter()
        .filter(|line| line.contains("newRaft"))
        .filter_map(|line| Some((number(line, "lastindex: ")?, number(line, "lastterm: ")?, number(line, "commit: ")?)))
        .collect()
}

#[tokio::test]
async fn the_log_ends_where_etcd_says() {
    let fleet = Fleet::new("f8");
    for version in &versions() {
        let (machine, mut client) = Machine::claimed(&fleet).await;
        machine.ready_etcd(&fleet, &mut client, version).await;
        start_empty(&mut client, version).await.unwrap();
        let cluster = running(&mut client).await.data.unwrap().cluster_id;
        machine.serves().await;
        for key in 0..8 {
            machine.etcdctl(&["put", &format!("key{key}"), &"value".repeat(1000)]).unwrap();
        }
        assert_eq!(data(&mut client).await.last_index, 0, "it runs");
        stop(&mut client).await;
        let found = data(&mut client).await;
        assert!(found.last_index > 8 && found.last_term > 1, "etcd {version}: {found:?}");
        assert!(found.commit_index <= found.last_index, "etcd {version}: {found:?}");
        let start = v1::StartEtcdRequest {
            version: version.clone(),
            expected_data: v1::DataState::Present.into(),
            expected_cluster_id: cluster,
            ..v1::StartEtcdRequest::default()
        };
        client.start_etcd(stamp(start.clone())).await.unwrap();
        machine.serves().await;
        let last = *described(&mut client).await.last().unwrap();
        assert_eq!(last, (found.last_index, found.last_term, found.commit_index), "etcd {version}");

        // Killed in the middle of its work.
        kill(machine.etcd_pid().unwrap());
        stop(&mut client).await;
        let found = data(&mut client).await;
        assert!(found.last_index > last.0, "etcd {version}: {found:?}");
        client.start_etcd(stamp(start)).await.unwrap();
        machine.serves().await;
        let last = *described(&mut client).await.last().unwrap();
        assert_eq!(last, (found.last_index, found.last_term, found.commit_index), "etcd {version}, killed");
    }
}

#[tokio::test]
async fn data_is_moved_away_and_a_bootstrap_can_follow() {
    let fleet = Fleet::new("f8");
    let (mut machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    configure(&mut client, &machine.plain_config()).await.unwrap();
    clear(&mut client, 7).await.unwrap();
    let token = |token: &str| format!("{}initial-cluster-token: {token}\n", machine.bootstrap());
    bear(&mut client, VERSION, &token("first")).await.unwrap();
    let first = running(&mut client).await.data.unwrap();
    machine.serves().await;
    let refused = clear(&mut client, first.member_id).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("stop it before its data is touched"), "{refused:?}");
    stop(&mut client).await;
    for other in [0, first.member_id ^ 1] {
        let refused = clear(&mut client, other).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("nothing was moved"), "{refused:?}");
    }
    assert_eq!(data(&mut client).await.member_id, first.member_id);
    clear(&mut client, first.member_id).await.unwrap();
    clear(&mut client, first.member_id).await.unwrap();
    let cleared = report(&mut client).await.etcd.unwrap();
    assert_eq!(cleared.data.unwrap().state(), v1::DataState::Empty);
    assert!(!cleared.had_data, "as if there never was any");

    // Also after a restart of the agent; then another bootstrap.
    machine.kill_agent();
    machine.start_agent().await;
    let mut client = machine.client(&fleet, Role::Operator).await;
    assert!(!report(&mut client).await.etcd.unwrap().had_data);
    let token = |token: &str| format!("{}initial-cluster-token: {token}\n", machine.bootstrap());
    bear(&mut client, VERSION, &token("second")).await.unwrap();
    let second = running(&mut client).await.data.unwrap();
    assert_ne!(second.cluster_id, first.cluster_id);
    machine.serves().await;
    stop(&mut client).await;
    clear(&mut client, second.member_id).await.unwrap();
    let kept: Vec<String> = fs::read_dir(machine.root().removed())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(kept.len() == 1 && kept[0].starts_with(&format!("{:016x}-", second.member_id)), "the newest: {kept:?}");

    // What cannot be read goes only when the caller says so.
    fs::create_dir_all(machine.root().data().join("member")).unwrap();
    assert_eq!(clear(&mut client, second.member_id).await.unwrap_err().code(), Code::FailedPrecondition);
    clear(&mut client, 0).await.unwrap();
    assert_eq!(data(&mut client).await.state(), v1::DataState::Empty);
}

#[tokio::test]
async fn lost_data_is_forgotten_when_it_is_cleared() {
    let fleet = Fleet::new("f8");
    let (mut machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    let pid = start_empty(&mut client, VERSION).await.unwrap();
    let member = running(&mut client).await.data.unwrap().member_id;
    machine.serves().await;
    // Both die and the directory is lost: the agent does not start etcd again, also after its own restart.
    while !fs::read_to_string(machine.etcd_files().record()).unwrap().contains("\"member\"") {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    machine.kill_agent();
    kill(pid);
    while machine.etcd_pid().is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    fs::remove_dir_all(machine.root().data()).unwrap();
    machine.start_agent().await;
    let mut client = machine.client(&fleet, Role::Operator).await;
    assert!(report(&mut client).await.etcd.unwrap().had_data);
    clear(&mut client, member).await.unwrap();
    assert!(!report(&mut client).await.etcd.unwrap().had_data);
}

/// Puts etcd's tool beside etcd. The lab's etcdctl is of the line that still restores, with the same words and code.
async fn install_tool(fleet: &Fleet, machine: &Machine, client: &mut Client) {
    let bytes = fs::read(etcdctl()).unwrap();
    machine.pin(fleet, "etcdutl", VERSION, &hex::sha256(&bytes)).await;
    let head =
        v1::InstallEtcdHead { version: VERSION.to_owned(), sha256: hex::sha256(&bytes), program: "etcdutl".to_owned() };
    let head = v1::InstallEtcdRequest { part: Some(install_etcd_request::Part::Head(head)) };
    let asked = client.install_etcd(stamp(tokio_stream::iter([head.clone()]))).await.unwrap();
    assert!(asked.into_inner().bytes_needed);
    let parts: Vec<_> = std::iter::once(head.clone()).chain(bytes.chunks(1 << 20).map(chunk)).collect();
    assert!(!client.install_etcd(stamp(tokio_stream::iter(parts))).await.unwrap().into_inner().bytes_needed);
    let again = client.install_etcd(stamp(tokio_stream::iter([head]))).await.unwrap();
    assert!(!again.into_inner().bytes_needed);
    let installed = report(client).await.etcd.unwrap().installed;
    assert_eq!(installed.len(), 1, "etcd itself is still there");
}

async fn restore(
    client: &mut Client,
    head: &v1::RestoreDataHead,
    snapshot: &[u8],
) -> Result<v1::RestoreDataReply, Status> {
    let part = |part| v1::RestoreDataRequest { part: Some(part) };
    let chunks = snapshot.chunks(1 << 18).map(|bytes| part(restore_data_request::Part::Chunk(bytes.to_vec())));
    let parts: Vec<_> = std::iter::once(part(restore_data_request::Part::Head(head.clone()))).chain(chunks).collect();
    client.restore_data(stamp(tokio_stream::iter(parts))).await.map(tonic::Response::into_inner)
}

fn revision(machine: &Machine) -> u64 {
    let status = machine.etcdctl(&["get", "key", "-w", "json"]).unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    status["header"]["revision"].as_u64().unwrap()
}

#[tokio::test]
async fn a_snapshot_becomes_data_again() {
    let fleet = Fleet::new("f8");
    let (machine, mut client) = Machine::claimed(&fleet).await;
    machine.ready_etcd(&fleet, &mut client, VERSION).await;
    configure(&mut client, &machine.plain_config()).await.unwrap();
    bear(&mut client, VERSION, &machine.bootstrap()).await.unwrap();
    let first = running(&mut client).await.data.unwrap();
    machine.serves().await;
    machine.etcdctl(&["put", "kept", "in the snapshot"]).unwrap();
    let saved = revision(&machine);
    let file = machine.path().join("saved.db");
    machine.etcdctl(&["snapshot", "save", file.to_str().unwrap()]).unwrap();
    machine.etcdctl(&["put", "kept", "later"]).unwrap();
    let snapshot = fs::read(&file).unwrap();
    let url = format!("https://{}:2380", machine.address.ip());
    let head = v1::RestoreDataHead {
        version: VERSION.to_owned(),
        sha256: hex::sha256(&snapshot),
        name: "etcd-1".to_owned(),
        initial_cluster: format!("etcd-1={url}"),
        token: "restored".to_owned(),
        peer_url: url,
        bump_revision: 1_000_000,
        bytes: snapshot.len() as u64,
        ..v1::RestoreDataHead::default()
    };
    let refusal = |refused: Result<v1::RestoreDataReply, Status>, code, reason: &str| {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(refused.message().contains(reason), "{refused:?} should say: {reason}");
    };
    let unready = Code::FailedPrecondition;
    refusal(restore(&mut client, &head, &snapshot).await, unready, "stop it before its data is restored");
    stop(&mut client).await;
    refusal(restore(&mut client, &head, &snapshot).await, unready, "clear it first");
    clear(&mut client, first.member_id).await.unwrap();
    refusal(restore(&mut client, &head, &snapshot).await, unready, "is not installed");
    install_tool(&fleet, &machine, &mut client).await;
    refusal(restore(&mut client, &head, &snapshot[1..]).await, Code::InvalidArgument, "nothing was restored");
    let small = v1::RestoreDataHead { bytes: head.bytes - 1, ..head.clone() };
    refusal(restore(&mut client, &small, &snapshot).await, Code::InvalidArgument, "none were announced");
    let vast = v1::RestoreDataHead { bytes: 1 << 60, ..head.clone() };
    refusal(restore(&mut client, &vast, &[]).await, Code::ResourceExhausted, "MiB are free");
    // A snapshot that was damaged before its digest was taken: etcd's own checksum at its end detects it.
    let mut damaged = snapshot.clone();
    damaged[5000] ^= 1;
    let other = v1::RestoreDataHead { sha256: hex::sha256(&damaged), ..head.clone() };
    refusal(restore(&mut client, &other, &damaged).await, Code::InvalidArgument, "refused the snapshot");
    let initial_cluster = format!("etcd-9=https://{}:2380", machine.address.ip());
    let other = v1::RestoreDataHead { initial_cluster, ..head.clone() };
    refusal(restore(&mut client, &other, &snapshot).await, Code::InvalidArgument, "refused the snapshot");
    assert_eq!(data(&mut client).await.state(), v1::DataState::Empty);

    let made = restore(&mut client, &head, &snapshot).await.unwrap();
    let restored = data(&mut client).await;
    assert_eq!((restored.member_id, restored.cluster_id), (made.member_id, made.cluster_id));
    assert_ne!(made.cluster_id, first.cluster_id);
    let left: Vec<_> = fs::read_dir(machine.root().etcd())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    start_on(&mut client, made.cluster_id, false).await.unwrap();
    machine.serves().await;
    assert_eq!(machine.etcdctl(&["get", "kept", "--print-value-only"]).unwrap().trim(), "in the snapshot");
    assert!(revision(&machine) > saved + 1_000_000);
    let compacted = machine.etcdctl(&["get", "kept", "--rev", &saved.to_string()]).unwrap_err();
    assert!(compacted.contains("compacted"), "{compacted}");

    // Made beside a member that serves, and put in its place later: only what was asked for with the same words.
    let how = |how: v1::RestoreHow| v1::RestoreDataHead { how: how.into(), token: "again".to_owned(), ..head.clone() };
    let (prepare, prepared) = (how(v1::RestoreHow::Prepare), how(v1::RestoreHow::Prepared));
    let promised = restore(&mut client, &prepare, &snapshot).await.unwrap();
    machine.serves().await;
    assert_eq!(data(&mut client).await.member_id, made.member_id, "nothing was touched");
    refusal(restore(&mut client, &prepared, &[]).await, unready, "stop it before its data is restored");
    stop(&mut client).await;
    refusal(restore(&mut client, &prepared, &[]).await, unready, "clear it first");
    clear(&mut client, made.member_id).await.unwrap();
    let other = v1::RestoreDataHead { token: "another".to_owned(), ..prepared.clone() };
    refusal(restore(&mut client, &other, &[]).await, Code::NotFound, "no such data was prepared");
    let made = restore(&mut client, &prepared, &[]).await.unwrap();
    assert_eq!(made, promised);
    start_on(&mut client, made.cluster_id, false).await.unwrap();
    machine.serves().await;
    assert_eq!(machine.etcdctl(&["get", "kept", "--print-value-only"]).unwrap().trim(), "in the snapshot");

    // Without a bump the revisions go on where the snapshot was taken.
    stop(&mut client).await;
    clear(&mut client, made.member_id).await.unwrap();
    let other = v1::RestoreDataHead { bump_revision: 0, ..head };
    let made = restore(&mut client, &other, &snapshot).await.unwrap();
    start_on(&mut client, made.cluster_id, false).await.unwrap();
    machine.serves().await;
    assert!(revision(&machine) < saved + 100);
}
