//! An approved restore → the steps that replace all data by the backup, and what blocks them.

use std::collections::{BTreeMap, BTreeSet};

use insta::assert_snapshot;
use raftsman_core::action::{Action, EtcdAction, RestoreAction};
use raftsman_core::backup::FullName;
use raftsman_core::model::{MachineModel, World, forecast};
use raftsman_core::observed::{Data, Restoration, ServiceState, SnapshotSource};
use raftsman_core::plan::recovery::{self, Unclear};
use raftsman_core::plan::restore::{decide, replaced};
use raftsman_core::plan::safety;
use raftsman_core::spec::Name;
use raftsman_tests::dice::Dice;
use raftsman_tests::fixtures::{Hidden, Scene, cluster, desired, epoch};

/// The operator approves a restore.
fn restore(scene: &mut Scene) {
    scene.later(1);
    let restoration = Restoration {
        backup: FullName::new(scene.world.now, 42),
        history: None,
        manifest: None,
        revision: 42,
        keys: 7,
        since: scene.world.now,
        old: replaced(&scene.look()),
        members: scene.desired.etcd.members.iter().map(|m| (m.name.clone(), m.peer_url())).collect(),
        version: scene.desired.etcd.version,
        source: SnapshotSource::File("main-restored.db".to_owned()),
        sha256: "aa".to_owned(),
        bump: 1_000_000_000,
        agreed: false,
    };
    decide(&mut scene.world.ledger, restoration);
}

#[test]
fn all_members_get_the_same_backup() {
    let mut scene = Scene::settled(3);
    let before = scene.id();
    restore(&mut scene);
    let foreseen = forecast(&scene.desired, &scene.look(), scene.world.now);
    assert!(foreseen.converges, "{foreseen:?}");
    assert_snapshot!(scene.to_the_end());
    assert_eq!(scene.world.ledger.etcd.restoration(), None);
    assert_ne!(scene.world.ledger.etcd.cluster, Some(before), "it is another cluster");
}

/// A survivor's data is not used then: a recovery would be overwritten by the rest of the restore.
#[test]
fn nothing_is_recovered_while_a_backup_is_restored() {
    let mut scene = Scene::settled(3);
    restore(&mut scene);
    scene.until(|action| matches!(action, Action::Etcd(EtcdAction::StopEtcd { .. })));
    *scene.machine(1) = MachineModel::none();
    *scene.machine(2) = MachineModel::none();
    let remains = recovery::survey(&scene.desired, &scene.look(), &[], None);
    assert_eq!(remains.outcome, Err(Unclear::Restoring), "{remains:?}");
    recovery::decide(&mut scene.world.ledger, &remains, scene.world.now);
    assert_eq!(scene.world.ledger.etcd.recovery(), None);
    assert!(scene.to_the_end().ends_with("done\n"));
    assert_eq!(scene.world.ledger.etcd.restoration(), None);
}

#[test]
fn a_machine_that_is_gone_is_made_anew_for_it() {
    let mut scene = Scene::settled(3);
    *scene.machine(2) = MachineModel::none();
    restore(&mut scene);
    assert_snapshot!(scene.to_the_end());
}

#[test]
fn without_a_majority_a_backup_helps_as_well() {
    let mut scene = Scene::settled(3);
    *scene.machine(1) = MachineModel::none();
    *scene.machine(3) = MachineModel::none();
    restore(&mut scene);
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
}

/// `restore_from` in the file: once the cluster exists, it has no effect.
#[test]
fn a_new_cluster_is_bootstrapped_from_a_backup() {
    let text = "fleet: lab\nbackups: { store: { directory: /b } }\n\
                etcd: { main: { members: 3, restore_from: { cluster: shop/main } } }\n";
    let desired = desired(text).stacks.remove(0);
    let mut scene = Scene { world: World::empty(&desired, epoch()), desired, hidden: BTreeSet::new() };
    let foreseen = forecast(&scene.desired, &scene.look(), scene.world.now);
    assert!(foreseen.converges, "{foreseen:?}");
    assert_snapshot!(scene.to_the_end());
    let prepare = Action::Restore(RestoreAction::PrepareRestore);
    let judged = safety::judge(&scene.desired, &scene.look(), &[&prepare], &prepare);
    assert!(judged.is_err(), "it is there already: {judged:?}");
}

/// It may serve what is to be replaced.
#[test]
fn one_that_cannot_be_asked_is_waited_for() {
    let mut scene = Scene::settled(3);
    scene.hide(2, Hidden::Agent);
    restore(&mut scene);
    let next = scene.plan();
    assert!(next.steps.is_empty() && !next.waiting.is_empty(), "{next:?}");
}

#[test]
fn a_file_with_other_members_is_not_what_was_decided() {
    let mut scene = Scene::settled(3);
    restore(&mut scene);
    scene.desired = cluster(5, &[]);
    let next = scene.plan();
    assert!(next.steps.is_empty(), "{next:?}");
    assert_snapshot!(next.waiting.iter().map(|w| format!("{w}\n→ {}\n", w.next())).collect::<String>());
}

#[test]
fn no_data_is_removed_while_a_member_serves_it() {
    let mut scene = Scene::settled(3);
    let name = |number: usize| Name::parse(&format!("main-{number}")).expect("a name");
    let Data::Present { member, .. } = scene.machine(1).data else { panic!("it has data") };
    let clear = Action::Etcd(EtcdAction::ClearData { machine: name(1), member: Some(member) });
    let fill = Action::Restore(RestoreAction::RestoreBackup { machine: name(1), version: scene.desired.etcd.version });
    let compare = Action::Restore(RestoreAction::CompareRestored { machines: vec![name(1), name(2), name(3)] });
    for action in [&clear, &fill, &compare] {
        let judged = safety::judge(&scene.desired, &scene.look(), &[action], action);
        assert!(judged.is_err(), "no restore has been approved: {judged:?}");
    }
    restore(&mut scene);
    for action in [&clear, &fill, &compare] {
        let judged = safety::judge(&scene.desired, &scene.look(), &[action], action);
        assert!(judged.is_err(), "members serve: {judged:?}");
    }
}

/// Runs are killed after any step, machines are lost, and the operator approves another restore in the middle.
#[test]
fn whatever_happens_meanwhile_one_cluster_comes_of_it() {
    for seed in 0..2000 {
        let mut dice = Dice::new(seed);
        let mut scene = Scene::settled([1, 3, 5][dice.below(3)]);
        let members = scene.desired.etcd.members.len();
        restore(&mut scene);
        let mut trouble = dice.below(4);
        for round in 0.. {
            let next = scene.plan();
            assert!(round < 200, "seed {seed}: it does not end: {next:?}");
            if next.is_done() {
                break;
            }
            // Of a wave some are done, and the run is killed.
            let many = next.steps.len();
            let done = if dice.one_in(3) && many > 0 { dice.below(many) + 1 } else { many };
            for step in &next.steps[..done] {
                let done = scene.world.act(&scene.desired, &step.action, 0);
                done.unwrap_or_else(|error| panic!("seed {seed}: {step:?}: {error}"));
            }
            scene.world.pass_time();
            scene.world.remember(&scene.desired);
            let mut serving: BTreeMap<_, usize> = BTreeMap::new();
            for machine in scene.world.machines.values() {
                if let (Data::Present { cluster, .. }, ServiceState::Running) = (&machine.data, machine.process.state) {
                    *serving.entry(*cluster).or_default() += 1;
                }
            }
            assert!(serving.len() <= 1, "seed {seed}: two clusters serve: {serving:?}");
            if trouble > 0 && dice.one_in(3) {
                trouble -= 1;
                match dice.below(3) {
                    0 if scene.world.ledger.etcd.restoration().is_some() => {
                        *scene.machine(dice.below(members) + 1) = MachineModel::none()
                    }
                    1 => scene.cut_power(dice.below(members) + 1),
                    _ => restore(&mut scene),
                }
            }
        }
        assert_eq!(scene.world.ledger.etcd.restoration(), None, "seed {seed}");
    }
}
