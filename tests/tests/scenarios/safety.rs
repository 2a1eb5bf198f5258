//! A step that takes something away for good, and a world that has changed since it was planned → it is not done.

use std::collections::BTreeMap;

use insta::assert_snapshot;
use raftsman_core::action::{
    Account, Action, AgentAction, AuthAction, BackupAction, Company, EtcdAction, MachineAction, MaintenanceAction,
    MemberAction, PkiAction, PreflightAction, RecoveryAction, RestoreAction, StartData, Takes, UserAction,
    VersionAction,
};
use raftsman_core::observed::{
    Alarm, ClusterId, Data, ListedMember, MemberId, Observed, Purpose, ServiceState, TrustDomain,
};
use raftsman_core::plan::safety::{self, Refusal};
use raftsman_core::spec::{EtcdVersion, Name};
use raftsman_tests::fixtures::{Scene, cluster};

fn name(number: usize) -> Name {
    Name::parse(&format!("main-{number}")).expect("a name")
}

/// One of each, and each of the kinds that are judged otherwise than the rest of their action.
fn every_action() -> Vec<Action> {
    let (machine, version, cluster) = (name(1), EtcdVersion::new(3, 6, 15), ClusterId(1));
    let at = || machine.clone();
    let user = |account| {
        Action::User(UserAction::SetUser { user: "app".to_owned(), account, grant: Vec::new(), revoke: Vec::new() })
    };
    let start = |data| Action::Etcd(EtcdAction::StartEtcd { machine: at(), version, data });
    let (member, side, purpose, digest) = (MemberId(1), TrustDomain::Peers, Purpose::Peer, String::new);
    let (address, peer_url) = ("10.0.0.1".parse().expect("an address"), String::new);
    vec![
        Action::Pki(PkiAction::MakeAuthorities),
        Action::Pki(PkiAction::AddAuthority { side }),
        Action::Pki(PkiAction::ActivateAuthority { side }),
        Action::Pki(PkiAction::DistrustAuthority { side, unused: false }),
        Action::Pki(PkiAction::DistrustAuthority { side, unused: true }),
        Action::Pki(PkiAction::DeleteAuthority { side }),
        Action::Pki(PkiAction::StoreTrust { machine: at(), purpose }),
        Action::Machine(MachineAction::CreateMachine { machine: at() }),
        Action::Machine(MachineAction::StartMachine { machine: at() }),
        Action::Machine(MachineAction::Enroll { machine: at() }),
        Action::Preflight(PreflightAction::Measure),
        Action::Etcd(EtcdAction::InstallEtcd { machine: at(), version }),
        Action::Pki(PkiAction::IssueCertificate { machine: at(), purpose, also: None }),
        Action::Etcd(EtcdAction::ConfigureEtcd { machine: at(), version, at: None, digest: digest() }),
        Action::Machine(MachineAction::SetFirewall { machine: at(), digest: digest() }),
        Action::Machine(MachineAction::SetAccess { machine: at(), digest: digest() }),
        Action::Machine(MachineAction::RenewAgent { machine: at() }),
        Action::Agent(AgentAction::UpgradeAgent { machine: at(), digest: digest() }),
        Action::Machine(MachineAction::Deliver { machine: at() }),
        Action::Backup(BackupAction::ConfigureBackups { machine: at() }),
        start(StartData::Empty),
        start(StartData::Joining(cluster)),
        start(StartData::Of(cluster)),
        start(StartData::Alone(cluster)),
        Action::Etcd(EtcdAction::RestartEtcd { machine: at(), version, cluster }),
        Action::Etcd(EtcdAction::RestartTogether { machines: BTreeMap::from([(at(), version)]), cluster }),
        Action::Etcd(EtcdAction::StopEtcd { machine: at() }),
        Action::Etcd(EtcdAction::ClearData { machine: at(), member: None }),
        Action::Recovery(RecoveryAction::RestoreData { machine: at(), version }),
        Action::Restore(RestoreAction::PrepareRestore),
        Action::Restore(RestoreAction::RestoreBackup { machine: at(), version }),
        Action::Restore(RestoreAction::CompareRestored { machines: vec![at()] }),
        Action::Machine(MachineAction::DeleteMachine { machine: at() }),
        Action::Machine(MachineAction::RebuildMachine { machine: at() }),
        Action::Machine(MachineAction::MoveMachine { machine: at(), address }),
        Action::Member(MemberAction::AddLearner { machine: at(), peer_url: peer_url() }),
        Action::Member(MemberAction::PromoteMember { machine: at(), member }),
        Action::Member(MemberAction::RemoveMember { name: "main-1".to_owned(), member }),
        Action::Member(MemberAction::UpdateMember { machine: at(), member, peer_url: peer_url(), version, cluster }),
        Action::Member(MemberAction::MoveLeader { machine: at(), member }),
        Action::Maintenance(MaintenanceAction::Compact { revision: 1 }),
        Action::Maintenance(MaintenanceAction::Defragment { machine: at() }),
        Action::Maintenance(MaintenanceAction::DisarmAlarm { alarm: Alarm::NoSpace }),
        Action::Version(VersionAction::TakeSnapshot { version }),
        Action::Version(VersionAction::EnableDowngrade { version }),
        Action::Version(VersionAction::CancelDowngrade),
        Action::Auth(AuthAction::CreateRoot),
        Action::Auth(AuthAction::ChangeRootPassword),
        Action::Auth(AuthAction::EnableAuth),
        Action::Auth(AuthAction::DisableAuth),
        Action::User(UserAction::SetRole { role: "app".to_owned(), set: Vec::new(), revoke: Vec::new() }),
        Action::User(UserAction::DeleteRole { role: "app".to_owned() }),
        user(Account::Keep),
        user(Account::Make),
        user(Account::Password),
        user(Account::Remake),
        Action::User(UserAction::DeleteUser { user: "app".to_owned() }),
    ]
}

#[test]
fn every_action_has_its_class() {
    let mut table = String::new();
    for action in every_action() {
        let class = action.class();
        let mark = |is: bool, word: &'static str| if is { word } else { "" };
        let company = match class.company {
            Company::Any => "any",
            Company::OneLoss => "no other loss",
            Company::Alike => "alike",
            Company::Alone => "alone",
        };
        let line = format!(
            "{:<17} {:<11} {company:<13} {:<12} {:<13} {}",
            action.verb(),
            format!("{:?}", class.changes).to_lowercase(),
            match class.takes {
                Takes::Nothing => "",
                Takes::Member => "member away",
                Takes::Node => "node away",
            },
            mark(class.irreversible, "irreversible"),
            mark(class.judged_again(), "judged again"),
        );
        table.push_str(line.trim_end());
        table.push('\n');
    }
    assert_snapshot!(table);
}

#[test]
fn what_is_irreversible_is_judged_again() {
    for action in every_action() {
        let class = action.class();
        assert!(class.judged_again() || !class.irreversible && !action.disruptive(), "{action:?}");
        assert!(class.company == Company::Alone || !action.disruptive(), "{action:?}");
    }
}

/// The judgement of a step by itself, on this look.
fn judged(scene: &Scene, observed: &Observed, action: &Action) -> Result<(), String> {
    safety::judge(&scene.desired, observed, &[action], action).map(drop).map_err(|refusal: Refusal| refusal.to_string())
}

/// Carries out waves until one holds this action, and returns the action: it is next.
fn up_to(scene: &mut Scene, wanted: impl Fn(&Action) -> bool) -> Action {
    for _ in 0..60 {
        let plan = scene.plan();
        assert!(!plan.steps.is_empty(), "it never comes to it: {plan:?}");
        if let Some(step) = plan.steps.iter().find(|step| wanted(&step.action)) {
            assert_eq!(judged(scene, &scene.look(), &step.action), Ok(()));
            return step.action.clone();
        }
        let first = plan.steps[0].action.clone();
        scene.until(|action| *action == first);
    }
    panic!("it goes round in circles")
}

/// A cluster of five of which the file has only three any more.
fn shrinking() -> (Scene, ListedMember) {
    let mut scene = Scene::settled(5);
    let entry = scene.agreed().members.iter().find(|m| m.name == "main-5").cloned().expect("an entry");
    scene.desired = cluster(3, &[]);
    (scene, entry)
}

#[test]
fn a_machine_whose_member_is_listed_again_stays() {
    let (mut scene, entry) = shrinking();
    let stop = up_to(&mut scene, |action| matches!(action, Action::Etcd(EtcdAction::StopEtcd { .. })));
    let mut listed = scene.clone();
    listed.agreed().members.push(entry.clone());
    assert_snapshot!(judged(&listed, &listed.look(), &stop).unwrap_err(), @"that it is no member any more was not seen");
    let delete = up_to(&mut scene, |action| matches!(action, Action::Machine(MachineAction::DeleteMachine { .. })));
    let mut listed = scene.clone();
    listed.agreed().members.push(entry);
    assert_snapshot!(judged(&listed, &listed.look(), &delete).unwrap_err(), @"that it is no member any more was not seen");
    // Its etcd was started since.
    scene.machine(5).process.state = ServiceState::Running;
    assert_snapshot!(judged(&scene, &scene.look(), &delete).unwrap_err(), @"etcd runs on it");
}

#[test]
fn only_the_data_that_was_seen_is_cleared() {
    let mut scene = Scene::settled(3);
    let id = scene.agreed().members.iter().find(|m| m.name == "main-2").map(|m| m.id).expect("an entry");
    scene.world.ledger.etcd.replace.insert(name(2), id);
    let clear = up_to(&mut scene, |action| matches!(action, Action::Etcd(EtcdAction::ClearData { .. })));
    let cluster = scene.id();
    scene.machine(2).data = Data::Present { member: MemberId(7), cluster };
    assert_snapshot!(judged(&scene, &scene.look(), &clear).unwrap_err(), @"its data is another member's");
}

#[test]
fn machines_are_given_back_one_after_the_other() {
    let mut scene = Scene::settled(5);
    // Both were removed by hand.
    scene.agreed().members.retain(|m| m.name != "main-4" && m.name != "main-5");
    scene.desired = cluster(3, &[]);
    scene.world.remember(&scene.desired.clone());
    assert_snapshot!(scene.to_the_end());
}
