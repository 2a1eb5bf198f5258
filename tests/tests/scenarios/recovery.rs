//! What is left of a cluster that lost its majority → what `recover` makes of it, and the steps that build it anew.

use insta::assert_snapshot;
use raftsman_core::action::{Action, EtcdAction, MemberAction, RecoveryAction, StartData};
use raftsman_core::model::{MachineModel, forecast};
use raftsman_core::observed::{Data, ServiceState};
use raftsman_core::plan::recovery::{self, Proposal, State, Unclear, survey};
use raftsman_core::plan::{Plan, safety};
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene, cluster};

fn name(number: usize) -> Name {
    Name::parse(&format!("main-{number}")).expect("a name")
}

/// Machines that are gone with their disks.
fn demolish(scene: &mut Scene, numbers: &[usize]) {
    for number in numbers {
        *scene.machine(*number) = MachineModel::none();
    }
}

fn proposal(scene: &Scene, lost: &[Name], from: Option<&Name>) -> Result<Proposal, Unclear> {
    survey(&scene.desired, &scene.look(), lost, from).outcome
}

/// The operator approves the proposal.
fn decide(scene: &mut Scene) {
    let remains = survey(&scene.desired, &scene.look(), &[], None);
    assert!(remains.outcome.is_ok(), "{remains:?}");
    recovery::decide(&mut scene.world.ledger, &remains, scene.world.now);
}

#[test]
fn two_of_three_are_gone() {
    let mut scene = Scene::settled(3);
    demolish(&mut scene, &[1, 3]);
    decide(&mut scene);
    let foreseen = forecast(&scene.desired, &scene.look(), scene.world.now);
    assert!(foreseen.converges, "{foreseen:?}");
    assert_snapshot!(scene.to_the_end(), @"
    * stop etcd main-2: recovered from main-2; - - -
    * configure etcd main-2: recovered from main-2; - - -
    * start alone main-2: recovered from main-2; - - -
    * stop etcd main-2: recovered from main-2; 0 - 0
    * clear data main-2: recovered from main-2; - - -
    * restore data main-2: recovered from main-2; - - -
    * create machine main-1 main-3: not there yet; - - -
      start etcd main-2: not running; - - -
    * enroll main-1 main-3: new machine; 0 0 0
    * sign peer cert main-1 main-3: not there yet; 0 0 0
      sign server cert main-1 main-3: not there yet; 0 0 0
      install etcd main-1 main-3: not there yet; 0 0 0
      configure etcd main-1 main-3: not there yet; 0 0 0
      configure etcd main-2: the file has changed; 0 0 0
    * restart all etcd cluster: auth is on: open to clients; - - 0
    * add learner main-1: not there yet; 0 0 0
    * start etcd main-1: not there yet; 0 0 0
    * promote main-1: caught up; 0 0 0
    * add learner main-3: not there yet; 0 0 0
    * start etcd main-3: not there yet; 0 0 0
    * promote main-3: caught up; 0 1 1
    done
    ");
    assert_eq!(scene.world.ledger.etcd.recovery(), None);
}

#[test]
fn machines_that_are_there_before_the_survivor_serves_are_configured_once() {
    let mut scene = Scene::settled(3);
    demolish(&mut scene, &[1, 3]);
    decide(&mut scene);
    scene.until(|action| matches!(action, Action::Recovery(RecoveryAction::RestoreData { .. })));
    let starts = |action: &Action| matches!(action, Action::Etcd(EtcdAction::StartEtcd { .. }));
    let configured = |plan: &Plan, name: &Name| {
        let configures = |action: &Action| matches!(action, Action::Etcd(EtcdAction::ConfigureEtcd { machine, .. }) if machine == name);
        plan.steps.iter().filter(|step| configures(&step.action)).count()
    };
    let mut before = 0;
    loop {
        let mut next = scene.plan();
        next.steps.retain(|step| !starts(&step.action));
        if next.steps.is_empty() {
            break;
        }
        before += configured(&next, &name(1));
        scene.carry_out(&next);
    }
    assert_eq!(before, 1, "its configuration does not wait for the survivor");
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n") && !output.contains("configure etcd main-1"), "{output}");
}

#[test]
fn of_two_survivors_one_goes_on_and_the_other_fetches_all_anew() {
    let mut scene = Scene::settled(5);
    demolish(&mut scene, &[1, 2, 3]);
    decide(&mut scene);
    assert_snapshot!(scene.to_the_end(), @"
    * stop etcd main-5: recovered from main-4; - - -
    * stop etcd main-4: recovered from main-4; - - -
    * configure etcd main-4: recovered from main-4; - - -
    * start alone main-4: recovered from main-4; - - -
    * clear data main-5: recovered from main-4; 0 - 0
    * stop etcd main-4: recovered from main-4; 0 - 0
    * clear data main-4: recovered from main-4; - - -
    * restore data main-4: recovered from main-4; - - -
    * create machine main-1 main-2 main-3: not there yet; - - -
      start etcd main-4: not running; - - -
    * enroll main-1 main-2 main-3: new machine; 0 0 0
    * sign peer cert main-1 main-2 main-3: not there yet; 0 0 0
      sign server cert main-1 main-2 main-3: not there yet; 0 0 0
      install etcd main-1 main-2 main-3: not there yet; 0 0 0
      configure etcd main-1 main-2 main-3: not there yet; 0 0 0
      configure etcd main-4: the file has changed; 0 0 0
    * restart all etcd cluster: auth is on: open to clients; - - 0
    * add learner main-1: not there yet; 0 0 0
    * start etcd main-1: not there yet; 0 0 0
    * promote main-1: caught up; 0 0 0
    * add learner main-2: not there yet; 0 0 0
    * start etcd main-2: not there yet; 0 0 0
    * promote main-2: caught up; 0 1 1
    * add learner main-3: not there yet; 1 1 1
    * start etcd main-3: not there yet; 1 1 1
    * promote main-3: caught up; 1 1 1
    * add learner main-5: not there yet; 1 1 1
    * start etcd main-5: not there yet; 1 1 1
    * promote main-5: caught up; 1 2 2
    done
    ");
}

#[test]
fn a_wiped_disk_and_a_stopped_survivor() {
    let mut scene = Scene::settled(3);
    demolish(&mut scene, &[1]);
    scene.machine(2).data = Data::Empty;
    scene.machine(2).process.state = ServiceState::Stopped;
    scene.machine(3).process.state = ServiceState::Stopped;
    decide(&mut scene);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-3: recovered from main-3; - - -
    * start alone main-3: recovered from main-3; - - -
    * stop etcd main-3: recovered from main-3; 0 - 0
    * clear data main-3: recovered from main-3; - - -
    * restore data main-3: recovered from main-3; - - -
    * create machine main-1: not there yet; - - -
      start etcd main-3: not running; - - -
    * enroll main-1: new machine; 0 0 0
      clear data main-2: replaced; 0 0 0
    * sign peer cert main-1: not there yet; 0 0 0
      sign server cert main-1: not there yet; 0 0 0
      install etcd main-1: not there yet; 0 0 0
      configure etcd main-1: not there yet; 0 0 0
      configure etcd main-3: the file has changed; 0 0 0
    * restart all etcd cluster: auth is on: open to clients; - - 0
    * add learner main-1: not there yet; 0 0 0
    * start etcd main-1: not there yet; 0 0 0
    * promote main-1: caught up; 0 0 0
    * add learner main-2: not there yet; 0 0 0
    * start etcd main-2: not there yet; 0 0 0
    * promote main-2: caught up; 0 1 1
    done
    ");
}

#[test]
fn the_file_has_changed_meanwhile() {
    let mut scene = Scene::settled(3);
    demolish(&mut scene, &[1, 2]);
    decide(&mut scene);
    scene.desired = cluster(5, &["log_level: warn"]);
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
    assert_eq!(scene.agreed().members.len(), 5);
}

#[test]
fn another_run_continues_an_interrupted_recovery() {
    let mut scene = Scene::settled(5);
    demolish(&mut scene, &[1, 2, 3]);
    decide(&mut scene);
    // Every wave is followed by the loss of everything but the world and the ledger, and a reboot of the survivor.
    for _ in 0..40 {
        let next = scene.plan();
        let Some(step) = next.steps.first() else { break };
        scene.world.ledger.ahead(&scene.desired, &scene.look(), &step.action, scene.world.now);
        scene.world.act(&scene.desired, &step.action, 0).expect("possible");
        scene.world.pass_time();
        scene.world.remember(&scene.desired);
    }
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
}

// ---- It refuses to guess.

#[test]
fn nothing_is_proposed_where_nothing_has_to_be_lost() {
    let mut scene = Scene::settled(3);
    assert_eq!(proposal(&scene, &[], None), Err(Unclear::HasQuorum));
    // Two processes are down, and their data is there.
    scene.machine(1).process.state = ServiceState::Stopped;
    scene.machine(2).process.state = ServiceState::Stopped;
    assert_eq!(proposal(&scene, &[], None), Err(Unclear::MajorityLeft { survivors: 3, of: 3 }));
    assert_eq!(proposal(&Scene::empty(3, &[]), &[], None), Err(Unclear::NeverFormed));
}

#[test]
fn an_unreachable_member_may_have_newer_data() {
    let mut scene = Scene::settled(3);
    demolish(&mut scene, &[1]);
    scene.hide(2, Hidden::Agent);
    scene.hide(2, Hidden::Etcd);
    assert_eq!(proposal(&scene, &[], None), Err(Unclear::Unknown { members: vec![name(2)] }));
    let given_up = proposal(&scene, &[name(2)], None).expect("a proposal");
    assert_eq!(given_up.survivor, name(3));
    // A member that answers is not given up by `--lost`.
    let remains = survey(&scene.desired, &scene.look(), &[name(2), name(3)], None);
    assert!(matches!(remains.members[2].state, State::Survivor { .. }), "{remains:?}");
}

#[test]
fn a_machine_without_power_is_brought_up_first() {
    let mut scene = Scene::settled(3);
    demolish(&mut scene, &[1, 2]);
    scene.cut_power(3);
    assert_eq!(proposal(&scene, &[], None), Err(Unclear::Unknown { members: vec![name(3)] }));
}

#[test]
fn no_member_is_left() {
    let mut scene = Scene::settled(3);
    demolish(&mut scene, &[1, 2, 3]);
    assert_eq!(proposal(&scene, &[], None), Err(Unclear::NoDataLeft));
}

#[test]
fn the_message_of_every_refusal() {
    let members = vec![name(2), name(3)];
    let all = [
        Unclear::HasQuorum,
        Unclear::NeverFormed,
        Unclear::MajorityLeft { survivors: 2, of: 3 },
        Unclear::Unknown { members },
        Unclear::NoDataLeft,
        Unclear::NoSurvivor { member: name(1) },
        Unclear::Unreadable { member: name(1) },
        Unclear::Adopted,
        Unclear::Restoring,
    ];
    assert_snapshot!(all.map(|unclear| unclear.to_string()).join("\n"), @"
    the cluster has its majority: there is nothing to recover
    the cluster never formed: `raftsman apply` makes it
    2 of 3 members have their data, which is a majority: nothing has to be lost; `raftsman apply` brings them up
    it is not known whether main-2, main-3 still has its data: bring it back (`raftsman apply` starts machines that are stopped), or confirm that it is gone for good with `--lost main-2 --lost main-3`
    no member has its data: only a backup can bring it back (`raftsman restore`)
    `main-1` has no data to recover from
    how far the data of `main-1` reaches cannot be read: name the survivor with `--from`
    this cluster is adopted read-only
    a restore is under way, which replaces the data of all members: `raftsman apply` continues it, `raftsman restore` takes another backup
    ");
}

// ---- Safety refuses what must not be done, whichever planner asks.

#[test]
fn nothing_is_taken_away_before_the_data_is_safe() {
    let mut scene = Scene::settled(5);
    demolish(&mut scene, &[1, 2, 3]);
    let cluster = scene.world.ledger.etcd.cluster.expect("a cluster");
    let alone = Action::Etcd(EtcdAction::StartEtcd {
        machine: name(4),
        version: scene.desired.etcd.version,
        data: StartData::Alone(cluster),
    });
    let judge = |scene: &Scene, action: &Action| safety::judge(&scene.desired, &scene.look(), &[action], action);
    // No recovery has been approved.
    assert!(judge(&scene, &alone).is_err());
    decide(&mut scene);
    // The other survivor still runs: two clusters would go on.
    assert!(judge(&scene, &alone).is_err());
    scene.until(|action| matches!(action, Action::Etcd(EtcdAction::StopEtcd { machine }) if *machine == name(4)));
    let restore =
        Action::Recovery(RecoveryAction::RestoreData { machine: name(4), version: scene.desired.etcd.version });
    let Data::Present { member, .. } = scene.machine(5).data else { panic!("it has data") };
    let clear = Action::Etcd(EtcdAction::ClearData { machine: name(5), member: Some(member) });
    assert!(judge(&scene, &clear).is_err() && judge(&scene, &restore).is_err());
    scene.until(|action| *action == alone);
    assert!(judge(&scene, &clear).is_ok() && judge(&scene, &restore).is_err());
    // Nor is anything cleared but the data that was seen.
    assert!(judge(&scene, &Action::Etcd(EtcdAction::ClearData { machine: name(5), member: None })).is_err());
    // Nor does another member join meanwhile.
    let add =
        Action::Member(MemberAction::AddLearner { machine: name(1), peer_url: "https://127.0.42.1:2380".to_owned() });
    assert!(judge(&scene, &add).is_err());
}
