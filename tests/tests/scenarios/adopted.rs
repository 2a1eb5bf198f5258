//! Clusters adopted read-only, on the model → differences and one note; no planner may change a member.

use std::collections::BTreeMap;

use insta::assert_snapshot;
use raftsman_core::action::{Action, AuthAction, EtcdAction, MachineAction, MemberAction, PkiAction, StartData};
use raftsman_core::adopt;
use raftsman_core::model::forecast;
use raftsman_core::observed::{Adopted, Alarm, Fact, MemberId, Mode, Observed, Purpose};
use raftsman_core::plan::{Plan, plan, safety};
use raftsman_core::spec::EtcdVersion;
use raftsman_tests::fixtures::{Scene, cluster, describe};

const FILE: [&str; 2] = ["roles: { reader: [{ read: { prefix: /app/ } }] }", "users: { metrics: { roles: [reader] } }"];

/// A settled cluster, adopted read-only, with the settings of the file.
fn adopted(further: &[&str]) -> (Scene, Observed) {
    let mut scene = Scene::empty(3, further);
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
    let mut observed = scene.look();
    let clients = scene.desired.etcd.members.iter().map(|m| (m.name.clone(), m.client_url())).collect();
    observed.ledger.etcd.mode = Mode::Adopted(Adopted { clients });
    observed.ledger.etcd.started.clear();
    let settings = adopt::wanted(&scene.desired);
    for seen in observed.machines.values_mut() {
        seen.agent = Fact::Absent { at: scene.world.now };
        if let Fact::Seen { value, .. } = &mut seen.machine {
            value.foreign = true;
        }
    }
    for member in observed.etcd.members.values_mut() {
        if let Fact::Seen { value, .. } = &mut member.etcd {
            value.settings.clone_from(&settings);
        }
    }
    (scene, observed)
}

fn planned(scene: &Scene, observed: &Observed) -> Plan {
    plan(&scene.desired, observed, scene.world.now)
}

fn change(observed: &mut Observed, change: impl Fn(&mut raftsman_core::observed::EtcdFacts)) {
    for member in observed.etcd.members.values_mut() {
        if let Fact::Seen { value, .. } = &mut member.etcd {
            change(value);
        }
    }
}

#[test]
fn as_the_file_says() {
    let (scene, observed) = adopted(&FILE);
    let next = planned(&scene, &observed);
    assert!(next.is_done());
    assert_snapshot!(describe(&next), @"
    note: main-1 main-2 main-3: adopted read-only, raftsman changes roles and users only
    done
    ");
}

#[test]
fn everything_is_otherwise() {
    let (scene, mut observed) = adopted(&FILE);
    change(&mut observed, |etcd| {
        etcd.version = EtcdVersion::new(3, 5, 34);
        etcd.settings.insert("quota".to_owned(), "2GiB".to_owned());
        etcd.settings.insert("flags.max-txn-ops".to_owned(), "10".to_owned());
        etcd.auth = Some(false);
        etcd.alarms = vec![Alarm::NoSpace];
        for (index, member) in etcd.members.iter_mut().enumerate() {
            member.peer_urls = vec![format!("https://127.0.0.1:{}", 12380 + index)];
        }
        etcd.members[2].name = "other".to_owned();
    });
    assert_snapshot!(describe(&planned(&scene, &observed)), @"
    note: main-1 main-2 main-3: adopted read-only, raftsman changes roles and users only
    blocked: `member main-3` is no member, the file says a member
    blocked: `member other` is a member, the file says no member
    blocked: main-1: `peer URL` is https://127.0.0.1:12380, the file says https://127.0.42.1:2380
    blocked: main-1 main-2 main-3: `version` is 3.5.34, the file says 3.6.15
    blocked: main-1 main-2 main-3: `quota` is 2GiB, the file says 8GiB
    blocked: main-1 main-2 main-3: `flags.max-txn-ops` is 10, the file says its default
    blocked: main-2: `peer URL` is https://127.0.0.1:12381, the file says https://127.0.42.2:2380
    blocked: `auth` is off, the file says on
    blocked: etcd takes no writes: its quota is used up
    ");
}

#[test]
fn settings_that_were_not_seen_are_no_difference() {
    let (scene, mut observed) = adopted(&FILE);
    change(&mut observed, |etcd| etcd.settings = BTreeMap::new());
    assert!(planned(&scene, &observed).is_done());
}

#[test]
fn one_does_not_answer() {
    let (scene, mut observed) = adopted(&FILE);
    if let Some(last) = observed.etcd.members.values_mut().last() {
        last.etcd = Fact::Unreachable { error: "nothing listens there".to_owned(), since: scene.world.now };
    }
    assert_snapshot!(describe(&planned(&scene, &observed)), @"
    note: main-1 main-2 main-3: adopted read-only, raftsman changes roles and users only
    waits: main-3: it does not answer: nothing listens there
    ");
}

#[test]
fn another_cluster_answers() {
    let (scene, mut observed) = adopted(&FILE);
    observed.ledger.etcd.cluster = Some(raftsman_core::observed::ClusterId(7));
    assert_snapshot!(describe(&planned(&scene, &observed)), @"
    blocked: main-1: a member of cluster 714813d15d706db5 answers at its address, not one of 7
    blocked: main-2: a member of cluster 714813d15d706db5 answers at its address, not one of 7
    blocked: main-3: a member of cluster 714813d15d706db5 answers at its address, not one of 7
    ");
}

#[test]
fn roles_and_users_are_changed_from_the_file() {
    let (mut scene, observed) = adopted(&FILE);
    let file = [
        "roles: { reader: [{ read: { prefix: /app/ } }], writer: [{ write: { prefix: /app/ } }] }",
        "users: { app: { roles: [writer] } }",
    ];
    scene.desired = cluster(3, &file);
    let forecast = forecast(&scene.desired, &observed, scene.world.now);
    assert!(forecast.converges, "{forecast:?}");
    let output: Vec<String> =
        forecast.waves.iter().map(|w| describe(&Plan { steps: w.steps.clone(), waiting: vec![] })).collect();
    assert_snapshot!(output.concat(), @"
    * set role writer: not there yet: write prefix /app/; 1 1 1
    * set user app: not there yet: role writer; 1 1 1
      delete user metrics: not in the file; 1 1 1
    ");
}

/// An empty file would remove members, a larger one add some: never here.
#[test]
fn another_number_of_members_changes_none() {
    let (mut scene, observed) = adopted(&FILE);
    for members in [1, 5] {
        scene.desired = cluster(members, &FILE);
        let next = planned(&scene, &observed);
        assert!(next.steps.is_empty(), "{next:?}");
        assert!(!next.is_done());
    }
}

#[test]
fn no_member_of_others_is_touched() {
    let (scene, observed) = adopted(&FILE);
    let machine = scene.desired.etcd.members[0].name.clone();
    let (version, id) = (scene.desired.etcd.version, scene.id());
    let member = MemberId(1);
    let actions = [
        Action::Pki(PkiAction::MakeAuthorities),
        Action::Machine(MachineAction::CreateMachine { machine: machine.clone() }),
        Action::Machine(MachineAction::StartMachine { machine: machine.clone() }),
        Action::Machine(MachineAction::DeleteMachine { machine: machine.clone() }),
        Action::Etcd(EtcdAction::StartEtcd { machine: machine.clone(), version, data: StartData::Of(id) }),
        Action::Etcd(EtcdAction::StopEtcd { machine: machine.clone() }),
        Action::Etcd(EtcdAction::ClearData { machine: machine.clone(), member: None }),
        Action::Pki(PkiAction::IssueCertificate { machine: machine.clone(), purpose: Purpose::Peer, also: None }),
        Action::Member(MemberAction::RemoveMember { name: machine.to_string(), member }),
        Action::Member(MemberAction::MoveLeader { machine, member }),
        Action::Auth(AuthAction::CreateRoot),
        Action::Auth(AuthAction::EnableAuth),
    ];
    for action in actions {
        let verdict = safety::judge(&scene.desired, &observed, &[&action], &action);
        assert_eq!(
            verdict.map_err(|refusal| refusal.to_string()),
            Err("this cluster is adopted read-only".to_owned()),
            "{action:?}"
        );
    }
}
