//! Clusters as they may be found → every finding in words, and a file that says no more than was seen.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use raftsman_core::adopt::{
    Authority, Certificate, Choices, Found, Hash, Hashes, Member, Process, Status, draft, findings,
};
use raftsman_core::observed::{
    Access, Alarm, ClusterId, Granted, ListedMember, MemberId, Password, Purpose, Role, User,
};
use raftsman_core::spec::{AuthMode, EtcdVersion, KeySpan, Level, Name, read};

fn now() -> Timestamp {
    "2026-11-15T00:00:00Z".parse().expect("a time")
}

fn later(hours: i64) -> Timestamp {
    now().checked_add(SignedDuration::from_hours(hours)).expect("a time")
}

fn certificate(purpose: Purpose, hours: i64, names: &[&str]) -> Certificate {
    Certificate {
        subject: "CN=x".to_owned(),
        issuer: "CN=ca".to_owned(),
        names: names.iter().map(|n| (*n).to_owned()).collect(),
        not_after: later(hours),
        server_auth: true,
        client_auth: purpose == Purpose::Peer,
    }
}

fn member(number: u8) -> Member {
    let address = format!("10.0.0.{number}");
    let signed = |purpose| (purpose, Ok(certificate(purpose, 10_000, &[&address])));
    Member {
        listed: ListedMember {
            id: MemberId(u64::from(number)),
            name: format!("n{number}"),
            peer_urls: vec![format!("https://{address}:2380")],
            learner: false,
        },
        client_urls: vec![format!("https://{address}:2379")],
        endpoint: format!("https://{address}:2379"),
        address: address.parse().ok(),
        status: Ok(Status {
            version: EtcdVersion::new(3, 6, 15),
            leader: Some(MemberId(1)),
            revision: 7,
            db_size: 1 << 20,
            db_in_use: 1 << 20,
            quota: Some(2 << 30),
        }),
        certificates: BTreeMap::from([signed(Purpose::Peer), signed(Purpose::Server)]),
        process: None,
        metrics: BTreeMap::new(),
    }
}

fn found() -> Found {
    let hash = |hash| Hash { hash, compacted: 1 };
    Found {
        at: now(),
        cluster: ClusterId(0xc1),
        members: (1..=3).map(member).collect(),
        mode: AuthMode::Certificate,
        certificates_needed: true,
        auth: Some(true),
        access: Ok(Access::default()),
        alarms: Vec::new(),
        hashes: Hashes { revision: 7, members: (1..=3).map(|n| (format!("n{n}"), hash(0xabc))).collect() },
        authority: Authority { subject: "CN=ca".to_owned(), not_after: later(50_000), key: "k".to_owned() },
        shared_authority: Some(false),
    }
}

fn choices() -> Choices {
    let name = |text| Name::parse(text).expect("a name");
    Choices { fleet: name("shop"), cluster: name("main"), root_password: None, clients: None, peers: None }
}

fn described(found: &Found) -> String {
    let line = |f: raftsman_core::adopt::Finding| {
        format!("{:?} {} {}: {}\n", f.weight, f.code, f.member.unwrap_or_default(), f.message)
    };
    findings(found).into_iter().map(line).collect()
}

#[test]
fn a_sound_cluster_has_no_findings() {
    assert_eq!(described(&found()), "");
}

#[test]
fn everything_that_can_be_wrong() {
    let mut found = found();
    found.auth = Some(false);
    found.certificates_needed = false;
    found.shared_authority = Some(true);
    found.authority.not_after = later(24);
    found.alarms = vec![(MemberId(2), Alarm::NoSpace), (MemberId(9), Alarm::Corrupt)];
    found.hashes.members.insert("n3".to_owned(), Hash { hash: 0xdef, compacted: 1 });
    let [first, second, third] = found.members.as_mut_slice() else { panic!("three") };
    first.status =
        Ok(Status { db_size: 1 << 31, db_in_use: 1 << 28, leader: None, ..first.status.clone().expect("one") });
    first.metrics.insert("wal_fsync_p99_ms".to_owned(), 64.0);
    first.certificates.insert(Purpose::Server, Ok(certificate(Purpose::Server, -5, &["n1.example"])));
    let flags = [("unsafe-no-fsync", "true"), ("wal-dir", "/wal"), ("heartbeat-interval", "50")];
    let flags = flags.map(|(name, value)| (name.to_owned(), value.to_owned()));
    first.process = Some(Process { pid: 1, program: None, source: "its arguments".to_owned(), settings: flags.into() });
    second.listed.learner = true;
    second.listed.peer_urls = vec!["http://10.0.0.2:7001".to_owned(), "http://10.1.0.2:7001".to_owned()];
    second.certificates.insert(
        Purpose::Peer,
        Ok(Certificate { client_auth: false, server_auth: false, ..certificate(Purpose::Peer, 400, &[]) }),
    );
    second.status = Ok(Status { version: EtcdVersion::new(3, 5, 2), ..second.status.clone().expect("one") });
    second.process = Some(Process { settings: BTreeMap::new(), ..first.process.clone().expect("one") });
    third.status = Err("nothing listens there".to_owned());
    let access = found.access.as_mut().expect("access");
    let everything = User { roles: ["root".to_owned()].into(), password: Password::Other };
    access.users.insert("root".to_owned(), everything.clone());
    access.users.insert("mallory".to_owned(), everything);
    insta::assert_snapshot!(described(&found), @"
    Problem no-leader n1: it has no leader
    Problem nearly-full n1: its database uses 100 % of the quota
    Problem member-silent n3: it does not answer: nothing listens there
    Problem alarm n2: the quota is used up: it takes no writes
    Problem alarm : etcd reports that its data is corrupt
    Problem hash-differs : members hold different data at revision 7: n1 00000abc, n2 00000abc, n3 00000def
    Problem auth-off : auth is off: every client that reaches a member can read and write everything
    Problem authority-ends : the authority of the clients ends in 24 h
    Problem plaintext n2: it is reached without TLS
    Problem certificate-ends n1: its server certificate ends in the past
    Problem flag-harmful n1: a power cut loses acknowledged writes (`unsafe-no-fsync`)
    Problem peer-not-client n2: its peer certificate may not be used to connect (no clientAuth)
    Problem not-server n2: its peer certificate may not be used by a server (no serverAuth)
    Warning learner n2: it is a learner, without a vote
    Warning authority-shared : peers and clients have the same authority: every client can join as a member
    Warning name-missing n1: its server certificate is not valid for 10.0.0.1, where it is reached, but for n1.example
    Warning disk-slow n1: writes to its log take up to 64 ms (99 % of them), etcd wants less than 10
    Warning certificate-ends n2: its peer certificate ends in 16 days
    Warning name-missing n2: its peer certificate is not valid for 10.0.0.2, where it is reached, but for nothing
    Warning versions-mixed : members run different versions: 3.5.2, 3.6.15
    Warning setting-differs : `timers.heartbeat` is not the same on every member: n1 50ms, n2 100ms
    Warning superusers : users besides `root` that may do everything: mallory
    Note fragmented n1: of 2048 MiB of its database 256 are in use
    Note wal-apart n1: its write-ahead log is in a directory of its own (`wal-dir`)
    Note other-port n2: peers reach it at port 7001; the file cannot say any but 2380
    Note several-peer-urls n2: it has several peer URLs: http://10.0.0.2:7001, http://10.1.0.2:7001
    Note gateway-on : the JSON gateway is on, which cannot tell users apart by their certificates
    ");
}

#[test]
fn a_cluster_elsewhere_is_described_as_hosts() {
    let drafted = draft(&found(), &choices());
    insta::assert_snapshot!(drafted.text, @r#"
    # Written by `raftsman adopt` on 2026-11-15: a cluster that raftsman did not create, as it was found.
    # raftsman observes it, and changes only the roles and users that you change here.
    fleet: shop
    machines:
      provider: hosts
    etcd:
      main:
        members:
          - { name: n1, address: "10.0.0.1" }
          - { name: n2, address: "10.0.0.2" }
          - { name: n3, address: "10.0.0.3" }
        version: 3.6.15
        auth: { mode: certificate }
        quota: 2GiB
        # Not seen, or not the same everywhere, so that raftsman's default stands for it: auto_compaction, timers.heartbeat, corruption_checks.initial, log_level, gateway.
        # The authorities' keys were not brought: raftsman trusts them and signs nothing. Once they can be used:
        # ca: { clients: { brought: { certificate: ca.crt, key: { file: ca.key } } } }
        roles: {}
        users: {}
    "#);
    let codes: Vec<&str> = drafted.left_out.iter().map(|f| f.code).collect();
    assert_eq!(codes, ["settings-not-seen"]);
    let reading = read(&drafted.text);
    let errors: Vec<&str> = reading.diagnostics.iter().filter(|d| d.is_error()).map(|d| d.code).collect();
    assert_eq!(errors, Vec::<&str>::new());
}

#[test]
fn what_the_file_cannot_say_is_left_out_and_reported() {
    let mut found = found();
    let odd = Granted { level: Level::Read, keys: KeySpan { key: vec![0xfe], end: Vec::new() } };
    let access = found.access.as_mut().expect("access");
    access.roles.insert("odd".to_owned(), [odd].into_iter().collect::<Role>());
    access.users.insert("a".to_owned(), User { roles: ["odd".to_owned()].into(), password: Password::None });
    for member in &mut found.members {
        let flags = [("snapshot-count", "10000"), ("socket-reuse-port", "true"), ("auto-compaction-retention", "5m")];
        let settings = flags.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        member.process = Some(Process { pid: 1, program: None, source: "its arguments".to_owned(), settings });
    }
    if let Some(process) = found.members[2].process.as_mut() {
        process.settings.insert("max-txn-ops".to_owned(), "7".to_owned());
    }
    let drafted = draft(&found, &choices());
    assert!(!drafted.text.contains("roles:") && !drafted.text.contains("users:"), "{}", drafted.text);
    assert!(drafted.text.contains("snapshot-count: 10000"), "{}", drafted.text);
    let described: Vec<String> = drafted.left_out.iter().map(|f| format!("{}: {}", f.code, f.message)).collect();
    insta::assert_snapshot!(described.join("\n"), @r#"
    flag-differs: `max-txn-ops` is not the same on every member
    flag-left-out: `socket-reuse-port` is true, and cannot be in the file: `socket-reuse-port` would have no effect
    roles-left-out: role `odd` may read key \xfe, which is no text
    "#);
}
