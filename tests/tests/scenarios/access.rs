//! Clusters before and after auth is on → when members are opened to clients, and when they are not.

use insta::assert_snapshot;
use raftsman_core::action::{Action, AuthAction, EtcdAction, StartData};
use raftsman_core::desired::ClientAccess;
use raftsman_core::observed::ServiceState;
use raftsman_core::plan::safety;
use raftsman_core::spec::AuthMode;
use raftsman_tests::fixtures::{Hidden, Scene, cluster};

const PASSWORD: &str = "auth: { mode: password }";
const BROUGHT: &str = "ca: { clients: { brought: { certificate: ca.crt, key: { file: ca.key } } } }";

/// The access that every member that runs was started for.
fn access(scene: &Scene) -> Vec<Option<ClientAccess>> {
    let (desired, world) = (&scene.desired, &scene.world);
    let timers = desired.etcd.timers(&world.ledger).expect("timers");
    let of = |member: &raftsman_core::desired::Member| {
        let process = &world.machines[&member.name].process;
        let running = process.config.clone().filter(|_| process.state == ServiceState::Running)?;
        [ClientAccess::Closed, ClientAccess::Open]
            .into_iter()
            .find(|access| desired.etcd.config(member, desired.etcd.version, timers, *access).digest == running)
    };
    desired.etcd.members.iter().map(of).collect()
}

fn is_auth(action: &Action) -> bool {
    *action == Action::Auth(AuthAction::EnableAuth)
}

#[test]
fn with_passwords_members_are_opened_once_auth_is_on() {
    let mut scene = Scene::empty(3, &[PASSWORD]);
    scene.until(is_auth);
    assert_eq!(access(&scene), [Some(ClientAccess::Closed); 3]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart all etcd cluster: auth is on: open to clients; - - 1
    done
    ");
    assert_eq!(access(&scene), [Some(ClientAccess::Open); 3]);
}

#[test]
fn a_cluster_of_one_is_opened_like_others() {
    let mut scene = Scene::empty(1, &[PASSWORD]);
    let output = scene.to_the_end();
    assert!(output.contains("restart all etcd") && output.ends_with("done\n"), "{output}");
    assert_eq!(access(&scene), [Some(ClientAccess::Open)]);
}

#[test]
fn certificates_of_a_brought_ca_open_nothing_before_auth() {
    let mut scene = Scene::empty(3, &[BROUGHT]);
    let record = raftsman_core::observed::AuthorityRecord {
        number: 0,
        key: "theirs".to_owned(),
        not_after: jiff::Timestamp::MAX,
        origin: raftsman_core::observed::Origin::Brought,
        certificate: "theirs\n".to_owned(),
    };
    scene.world.brought.insert(raftsman_core::observed::TrustDomain::Clients, record);
    scene.until(is_auth);
    assert_eq!(access(&scene), [Some(ClientAccess::Closed); 3]);
    let output = scene.to_the_end();
    assert!(output.contains("restart all etcd") && output.ends_with("done\n"), "{output}");
    assert_eq!(access(&scene), [Some(ClientAccess::Open); 3]);
}

/// With a CA that raftsman made, nothing but raftsman has a certificate at the first start.
#[test]
fn a_first_start_with_a_made_ca_needs_no_restart() {
    for lines in [&[][..], &["auth: { mode: none }"]] {
        let mut scene = Scene::empty(3, lines);
        let output = scene.to_the_end();
        assert!(!output.contains("restart") && output.ends_with("done\n"), "{output}");
    }
}

/// Auth was turned on by a version that did not record it.
#[test]
fn a_cluster_that_has_auth_already_changes_nothing() {
    let mut scene = Scene::settled_with(3, &[PASSWORD]);
    scene.world.ledger.etcd.secured = None;
    scene.world.remember(&scene.desired.clone());
    let output = scene.to_the_end();
    assert_eq!(output, "done\n");
}

/// Left half made by a version that bootstrapped open clusters: auth first, and no member is closed for it.
#[test]
fn an_open_cluster_without_auth_gets_auth_at_once() {
    let mut scene = Scene::settled_with(3, &[PASSWORD]);
    scene.agreed().auth = false;
    scene.world.ledger.etcd.secured = None;
    let output = scene.to_the_end();
    assert!(output.contains("enable auth") && !output.contains("restart") && output.ends_with("done\n"), "{output}");
}

#[test]
fn auth_that_the_file_did_not_want_before_closes_nothing() {
    let mut scene = Scene::settled_with(3, &["auth: { mode: none }"]);
    scene.desired = cluster(3, &["auth: { mode: certificate }"]);
    assert_eq!(scene.world.ledger.etcd.auth, Some(AuthMode::None));
    let output = scene.to_the_end();
    assert!(output.contains("enable auth") && !output.contains("restart") && output.ends_with("done\n"), "{output}");
}

/// Killed after every wave, no member that runs accepts clients while auth is off.
#[test]
fn killed_anywhere_no_member_is_open_without_auth() {
    for kept in 0..12 {
        let mut scene = Scene::empty(3, &[PASSWORD]);
        for _ in 0..kept {
            let plan = scene.plan();
            for step in &plan.steps {
                scene.world.act(&scene.desired, &step.action, 0).expect("possible");
                let auth = scene.world.agreed.values().any(|agreed| agreed.auth);
                assert!(auth || !access(&scene).contains(&Some(ClientAccess::Open)), "{step:?}");
            }
            scene.world.pass_time();
            // A killed run does not record what it observed.
            if kept % 2 == 0 {
                scene.world.remember(&scene.desired.clone());
            }
        }
        scene.world.remember(&scene.desired.clone());
        let output = scene.to_the_end();
        assert!(output.ends_with("done\n"), "{output}");
        assert_eq!(access(&scene), [Some(ClientAccess::Open); 3]);
    }
}

/// One that was opened when the command was killed serves clients: the others follow one at a time.
#[test]
fn a_half_opened_cluster_is_opened_one_at_a_time() {
    let mut scene = Scene::empty(3, &[PASSWORD]);
    scene.until(|action| matches!(action, Action::Auth(AuthAction::EnableAuth)));
    scene.until(|action| matches!(action, Action::Etcd(EtcdAction::ConfigureEtcd { .. })));
    let (version, cluster) = (scene.desired.etcd.version, scene.id());
    let machine = scene.desired.etcd.members[0].name.clone();
    scene
        .world
        .act(&scene.desired, &Action::Etcd(EtcdAction::RestartEtcd { machine, version, cluster }), 0)
        .expect("possible");
    let output = scene.to_the_end();
    assert!(!output.contains("restart all etcd") && output.matches("restart etcd").count() == 2, "{output}");
    assert!(output.ends_with("done\n"), "{output}");
}

/// A member that does not answer may serve clients already: the others are opened one at a time.
#[test]
fn members_are_opened_together_only_where_all_agents_answer() {
    let mut scene = Scene::empty(3, &[PASSWORD]);
    scene.until(is_auth);
    scene.hide(3, Hidden::Agent);
    let output = scene.to_the_end();
    assert!(!output.contains("restart all etcd") && output.matches("restart etcd").count() == 2, "{output}");
}

/// Opening relies on agents' reports: where two CAs have the same name, closed members may reject raftsman's clients.
#[test]
fn members_are_opened_although_etcd_does_not_answer() {
    let mut scene = Scene::empty(3, &[PASSWORD]);
    scene.until(is_auth);
    (1..=3).for_each(|number| scene.hide(number, Hidden::Etcd));
    let output = scene.until(|action| matches!(action, Action::Etcd(EtcdAction::RestartTogether { .. })));
    assert!(output.contains("restart all etcd"), "{output}");
    assert_eq!(access(&scene), [Some(ClientAccess::Open); 3]);
}

/// Of any planner: a start that would accept clients too early is refused, and so is a restart of all members.
#[test]
fn safety_judges_what_opens_too_early() {
    let mut scene = Scene::empty(1, &[PASSWORD]);
    scene.until(|action| matches!(action, Action::Etcd(EtcdAction::ConfigureEtcd { .. })));
    let member = scene.desired.etcd.members[0].clone();
    let version = scene.desired.etcd.version;
    let start = Action::Etcd(EtcdAction::StartEtcd { machine: member.name.clone(), version, data: StartData::Empty });
    assert!(safety::judge(&scene.desired, &scene.look(), &[&start], &start).is_ok());
    let timers = scene.desired.etcd.timers(&scene.world.ledger).expect("timers");
    let open = scene.desired.etcd.config(&member, version, timers, ClientAccess::Open).digest.clone();
    scene.machine(1).config = Some(open);
    let refused = safety::judge(&scene.desired, &scene.look(), &[&start], &start).expect_err("refused");
    assert_eq!(refused.to_string(), "it would accept clients before auth is on");

    let scene = Scene::settled_with(3, &[PASSWORD]);
    let machines = scene.desired.etcd.members.iter().map(|member| (member.name.clone(), version)).collect();
    let restart = Action::Etcd(EtcdAction::RestartTogether { machines, cluster: scene.id() });
    let refused = safety::judge(&scene.desired, &scene.look(), &[&restart], &restart).expect_err("refused");
    assert_eq!(refused.to_string(), "members are restarted one at a time");
}
