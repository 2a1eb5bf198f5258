//! An etcd that listens and cannot be asked, a password that changed, a lost majority → named as what it is.

use std::collections::BTreeSet;

use insta::assert_snapshot;
use raftsman_core::action::{Action, EtcdAction};
use raftsman_core::model::{MachineModel, forecast};
use raftsman_core::observed::{Fact, Observed, Password, Problem, Root, User};
use raftsman_core::plan::{Plan, plan};
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene, cluster, describe};

const PASSWORD: &str = "auth: { mode: password, root_password: { file: root.password } }";

fn name(number: usize) -> Name {
    Name::parse(&format!("main-{number}")).expect("a name")
}

/// These members' etcd listens and cannot be asked.
fn with_problem(scene: &Scene, numbers: &[usize], problem: Problem, error: &str) -> Observed {
    let mut observed = scene.look();
    for number in numbers {
        let member = observed.etcd.members.get_mut(&name(*number)).expect("a member");
        member.etcd = Fact::Unreachable { error: error.to_owned(), since: scene.world.now };
        member.problem = Some(problem);
    }
    observed
}

fn planned(scene: &Scene, observed: &Observed) -> Plan {
    plan(&scene.desired, observed, scene.world.now)
}

/// What each says to do.
fn next(plan: &Plan) -> String {
    plan.waiting.iter().map(|waiting| waiting.next() + "\n").collect()
}

#[test]
fn a_password_that_is_not_accepted_is_called_that_and_ends_apply() {
    let scene = Scene::settled_with(3, &[PASSWORD]);
    let denied = "etcdserver: authentication failed, invalid user ID or password";
    let plan = planned(&scene, &with_problem(&scene, &[1, 2, 3], Problem::Denied, denied));
    assert!(plan.is_stuck(), "{plan:?}");
    assert_snapshot!(describe(&plan) + &next(&plan));
}

#[test]
fn another_password_in_the_file_is_a_step() {
    let mut scene = Scene::settled_with(3, &[PASSWORD]);
    scene.agreed().root = Root::Outdated;
    assert_snapshot!(scene.to_the_end());
}

#[test]
fn an_etcd_that_hangs_is_not_starting() {
    let scene = Scene::settled(3);
    let plan = planned(&scene, &with_problem(&scene, &[2], Problem::Silent, "no answer from etcd within 3 s"));
    assert_snapshot!(describe(&plan) + &next(&plan));
}

#[test]
fn what_a_member_does_not_say_blocks() {
    let mut scene = Scene::settled(3);
    // A changed setting waits: no member is restarted while another one's status is unknown.
    scene.desired = cluster(3, &["log_level: warn"]);
    scene.until(|action| matches!(action, Action::Etcd(EtcdAction::ConfigureEtcd { .. })));
    let unclear = "etcd's answer is not understood: it says that its version is `?`";
    let plan = planned(&scene, &with_problem(&scene, &[2], Problem::Unclear, unclear));
    assert_snapshot!(describe(&plan));
}

/// What answers is not replaced after a while as if it were down, whatever it answers.
#[test]
fn a_member_that_answers_is_not_down() {
    let scene = Scene::settled(3);
    for problem in [Problem::Silent, Problem::Denied, Problem::Unclear] {
        let observed = with_problem(&scene, &[2], problem, "?");
        let mut ledger = observed.ledger.clone();
        ledger.learn(&scene.desired, &observed, scene.world.now);
        assert_eq!(ledger.etcd.down_since.contains_key(&name(2)), problem == Problem::Silent, "{problem:?}");
    }
}

#[test]
fn a_lost_majority_is_recovered_not_replaced() {
    let mut scene = Scene::settled(3);
    *scene.machine(1) = MachineModel::none();
    *scene.machine(3) = MachineModel::none();
    let plan = scene.plan();
    assert_snapshot!(describe(&plan) + &next(&plan));
    // One of three is no majority: it can be replaced.
    let mut scene = Scene::settled(3);
    *scene.machine(3) = MachineModel::none();
    let plan = scene.plan();
    assert!(next(&plan).contains("raftsman replace main-3"), "{plan:?}");
}

#[test]
fn after_a_reboot_of_all_machines_the_forecast_ends_well() {
    let mut scene = Scene::settled(3);
    (1..=3).for_each(|number| scene.cut_power(number));
    let foreseen = forecast(&scene.desired, &scene.look(), scene.world.now);
    assert!(foreseen.converges, "{foreseen:?}");
}

#[test]
fn a_superuser_that_the_file_does_not_know_is_named() {
    let mut scene = Scene::settled(3);
    let mallory = User { roles: BTreeSet::from(["root".to_owned()]), password: Password::Untried };
    scene.agreed().access.users.insert("mallory".to_owned(), mallory.clone());
    let app = User { roles: BTreeSet::from(["app".to_owned()]), ..mallory.clone() };
    scene.agreed().access.users.insert("app".to_owned(), app);
    let plan = scene.plan();
    assert!(!plan.is_done() && plan.is_stuck(), "{plan:?}");
    assert_snapshot!(describe(&plan) + &next(&plan));
    // Where the file has users, it is removed.
    let mut scene = Scene::settled_with(3, &["users: {}"]);
    scene.agreed().access.users.insert("mallory".to_owned(), mallory);
    assert!(scene.to_the_end().contains("delete user mallory"));
}

#[test]
fn users_are_forecast_once_while_the_provider_does_not_answer() {
    let mut scene = Scene::settled(3);
    scene.desired = cluster(3, &["users: { app: {} }"]);
    (1..=3).for_each(|i| scene.hide(i, Hidden::Machine));
    let foreseen = forecast(&scene.desired, &scene.look(), scene.world.now);
    let steps: Vec<String> = foreseen.steps().map(|step| step.action.describe()).collect();
    assert_eq!(steps.len(), 1, "{steps:?}");
    assert_eq!(foreseen.waiting.len(), 3, "{:?}", foreseen.waiting);
    assert!(!foreseen.converges);
}
