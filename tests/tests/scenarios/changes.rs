//! A running cluster and another file → the steps from one to the other, in their order.
//!
//! A line with `*` begins a wave; the three numbers are what the cluster can lose before, during and after it, `-` for
//! no quorum. `Scene::to_the_end` itself holds every end against 're-planning changes nothing'.

use insta::assert_snapshot;
use raftsman_core::action::{Action, EtcdAction, MachineAction, MaintenanceAction, UserAction};
use raftsman_core::model::MachineModel;
use raftsman_core::observed::{ClusterId, Data, MemberId, ServiceState};
use raftsman_core::plan::{Considered, Outcome, explain};
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene, cluster};

fn member_of(machine: &MachineModel) -> MemberId {
    match machine.data {
        Data::Present { member, .. } => member,
        Data::Empty | Data::Unreadable { .. } => panic!("no data"),
    }
}

#[test]
fn changed_configuration_followers_first_leader_last() {
    let mut scene = Scene::settled(3);
    let leader = member_of(scene.machine(2));
    scene.world.leads = Some(leader);
    scene.desired = cluster(3, &["quota: 4GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-1: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: the file has changed; 1 0 1
    done
    ");
}

#[test]
fn changed_configuration_the_unhealthy_first() {
    let mut scene = Scene::settled(5);
    scene.machine(4).process.warm_up = u32::MAX;
    scene.desired = cluster(5, &["quota: 4GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3 main-4 main-5: the file has changed; 1 1 1
    * restart etcd main-4: the file has changed; 1 1 2
    * restart etcd main-2: the file has changed; 2 1 2
    * restart etcd main-3: the file has changed; 2 1 2
    * restart etcd main-5: the file has changed; 2 1 2
    * move leader to main-2: main-1 restarts next; 2 2 2, hand-over
    * restart etcd main-1: the file has changed; 2 1 2
    done
    ");
}

#[test]
fn changed_configuration_while_one_is_down() {
    let mut scene = Scene::settled(3);
    scene.machine(3).agent_up = false;
    scene.machine(3).process.state = ServiceState::Stopped;
    scene.desired = cluster(3, &["quota: 4GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2: the file has changed; 0 0 0
    waits: main-3: the agent does not answer: connection refused
    waits: main-2: restart etcd would lose quorum: 2 of 3 members are healthy
    ");
    scene.machine(3).agent_up = true;
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-3: the file has changed; 0 0 0
    * start etcd main-3: not running; 0 0 1
    * restart etcd main-2: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    done
    ");
}

#[test]
fn changed_configuration_of_a_lone_member() {
    let mut scene = Scene::settled(1);
    scene.desired = cluster(1, &["quota: 4GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1: the file has changed; 0 0 0
    blocked: main-1: restart etcd would lose quorum: 1 of 1 members are healthy
    ");
}

#[test]
fn changed_configuration_before_the_first_start() {
    let mut scene = Scene::empty(3, &[]);
    scene.hide(2, Hidden::Agent);
    scene.hide(3, Hidden::Agent);
    let _ = scene.to_the_end();
    scene.hidden.clear();
    scene.desired = cluster(3, &["quota: 4GiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1: the file has changed; - - -
      enroll main-2 main-3: new machine; - - -
    * sign peer cert main-2 main-3: not there yet; - - -
      sign server cert main-2 main-3: not there yet; - - -
      install etcd main-2 main-3: not there yet; - - -
      configure etcd main-2 main-3: not there yet; - - -
    * start etcd main-1 main-2 main-3: first start, 3 of 3 together; - - 1
    * create root cluster: not there yet; 1 1 1
    * enable auth cluster: auth is off; 1 1 1
    done
    ");
}

#[test]
fn another_version() {
    let mut scene = Scene::settled(3);
    scene.desired = cluster(3, &["version: 3.6.14"]);
    assert_snapshot!(scene.to_the_end(), @"
    * install etcd main-1 main-2 main-3: not there yet; 1 1 1
    * take snapshot cluster: 3.6.15 → 3.6.14; 1 1 1
    * restart etcd main-2: 3.6.15 → 3.6.14; 1 0 1
    * restart etcd main-3: 3.6.15 → 3.6.14; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: 3.6.15 → 3.6.14; 1 0 1
    done
    ");
}

#[test]
fn more_members() {
    let mut scene = Scene::settled(3);
    scene.desired = cluster(5, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * create machine main-4 main-5: not there yet; 1 1 1
    * enroll main-4 main-5: new machine; 1 1 1
    * sign peer cert main-4 main-5: not there yet; 1 1 1
      sign server cert main-4 main-5: not there yet; 1 1 1
      install etcd main-4 main-5: not there yet; 1 1 1
      configure etcd main-4 main-5: not there yet; 1 1 1
    * add learner main-4: not there yet; 1 1 1
    * start etcd main-4: not there yet; 1 1 1
    * promote main-4: caught up; 1 1 1
    * add learner main-5: not there yet; 1 1 1
    * start etcd main-5: not there yet; 1 1 1
    * promote main-5: caught up; 1 2 2
    done
    ");
}

#[test]
fn fewer_members() {
    let mut scene = Scene::settled(5);
    scene.desired = cluster(3, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * remove member main-5: not in the file; 2 1 1
    * stop etcd main-5: not in the file; 1 1 1
    * delete machine main-5: not in the file; 1 1 1
    * remove member main-4: not in the file; 1 1 1
    * stop etcd main-4: not in the file; 1 1 1
    * delete machine main-4: not in the file; 1 1 1
    done
    ");
}

#[test]
fn another_address() {
    let mut scene = Scene::settled(3);
    let other = "127.0.42.99".parse().expect("an address");
    scene.desired.etcd.members[1].address = other;
    assert_snapshot!(scene.to_the_end(), @"
    * move machine main-2: another address; 1 1 1
    * move member main-2: another address; 1 0 1
    done
    ");
    // Also while no member answers: the state has it.
    (1..=3).for_each(|i| scene.cut_power(i));
    assert_snapshot!(scene.to_the_end(), @"
    * start machine main-1 main-2 main-3: not running; - - -
    done
    ");
}

// ---- Certificates.

#[test]
fn certificates_end_soon() {
    let mut scene = Scene::settled(3);
    scene.later(24 * 61);
    assert_snapshot!(scene.to_the_end(), @"
    * sign peer cert main-1 main-2 main-3: expires in 29 days; 1 1 1
      sign server cert main-1 main-2 main-3: expires in 29 days; 1 1 1
    done
    ");
}

#[test]
fn certificates_have_ended() {
    let mut scene = Scene::settled(3);
    scene.later(24 * 91);
    assert_snapshot!(scene.to_the_end(), @"
    * sign peer cert main-1 main-2 main-3: expired; 1 1 1
      sign server cert main-1 main-2 main-3: expired; 1 1 1
    done
    ");
}

#[test]
fn certificates_need_other_names() {
    let mut scene = Scene::settled(3);
    scene.desired = cluster(3, &["certificates: { extra_names: [etcd.example.org] }"]);
    assert_snapshot!(scene.to_the_end(), @"
    * sign server cert main-1 main-2 main-3: names have changed; 1 1 1
    done
    ");
}

// ---- A cluster that is to be kept.

#[test]
fn prevent_destroy_keeps_members_that_the_file_has_no_more() {
    let mut scene = Scene::settled_with(5, &["prevent_destroy: true"]);
    scene.desired = cluster(3, &["prevent_destroy: true"]);
    assert_snapshot!(scene.to_the_end(), @"
    blocked: main-5: not in the file any more, and `prevent_destroy: true` keeps its machine and its data
    blocked: main-4: not in the file any more, and `prevent_destroy: true` keeps its machine and its data
    ");
    scene.desired = cluster(3, &[]);
    let output = scene.to_the_end();
    assert!(output.contains("delete machine main-5") && output.ends_with("done\n"), "{output}");
}

#[test]
fn what_is_deleted_for_good_is_named() {
    use raftsman_core::plan::deletion;
    let name = |text: &str| Name::parse(text).expect("a name");
    let user = Action::User(UserAction::DeleteUser { user: "alice".to_owned() });
    assert_eq!(deletion(&user).as_deref(), Some("user alice"));
    assert_eq!(
        deletion(&Action::Machine(MachineAction::DeleteMachine { machine: name("main-2") })).as_deref(),
        Some("machine main-2")
    );
    assert_eq!(
        deletion(&Action::Maintenance(MaintenanceAction::Compact { revision: 7 })).as_deref(),
        Some("history before revision 7")
    );
    assert_eq!(deletion(&Action::Etcd(EtcdAction::StopEtcd { machine: name("main-2") })), None);
}

#[test]
fn a_changed_setting_is_named() {
    let mut scene = Scene::settled(3);
    let before = scene.desired.clone();
    scene.desired = cluster(3, &["quota: 4GiB", "log_level: warn"]);
    let mut observed = scene.look();
    for (name, seen) in &mut observed.machines {
        let raftsman_core::observed::Fact::Seen { value: raftsman_core::observed::Agent::Claimed(report), .. } =
            &mut seen.agent
        else {
            panic!("{name} is claimed");
        };
        let text = before.etcd.member(name).map(|member| member.config.text.clone());
        report.etcd.config_text.clone_from(&text);
        report.etcd.running_config_text = text;
    }
    let steps = raftsman_core::model::forecast(&scene.desired, &observed, scene.world.now);
    let output: Vec<String> = steps
        .steps()
        .map(|step| format!("{} {}: {}", step.action.verb(), step.action.subject(), step.reason))
        .collect();
    assert_snapshot!(output.join("\n"), @"
    configure etcd main-1: quota 8GiB → 4GiB, log_level info → warn
    configure etcd main-2: quota 8GiB → 4GiB, log_level info → warn
    configure etcd main-3: quota 8GiB → 4GiB, log_level info → warn
    restart etcd main-2: quota 8GiB → 4GiB, log_level info → warn
    restart etcd main-3: quota 8GiB → 4GiB, log_level info → warn
    move leader to main-2: main-1 restarts next
    restart etcd main-1: quota 8GiB → 4GiB, log_level info → warn
    ");
}

/// One line for each pass of the planner.
fn explained(scene: &Scene) -> String {
    let considered = explain(&scene.desired, &scene.look(), scene.world.now);
    let line = |pass: &Considered| match &pass.outcome {
        Outcome::Nothing => format!("{}: nothing", pass.about),
        Outcome::Left { because } => format!("{}: left, {because}", pass.about),
        Outcome::Found { steps, waiting } => {
            let steps = steps.iter().map(|step| format!("{} {}", step.action.verb(), step.action.subject()));
            let found: Vec<String> = steps.chain(waiting.iter().map(ToString::to_string)).collect();
            format!("{}: {}", pass.about, found.join(", "))
        }
    };
    considered.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_pass_reports_its_result() {
    let mut scene = Scene::settled(3);
    scene.desired = cluster(3, &["quota: 4GiB"]);
    assert_snapshot!(explained(&scene), @"
    the cluster's id, and data of others: nothing
    agents newer than this raftsman: nothing
    addresses before the first start: left, only before the first start
    addresses of new machines: nothing
    CAs: nothing
    machines, certificates, binaries and configuration: configure etcd main-1, configure etcd main-2, configure etcd main-3
    machines of balancers: nothing
    measuring timers before the first start: left, only before the first start
    stopped members: nothing
    members not in the file, needed for quorum: left, only without quorum
    learners, lost and replaced members: nothing
    alarms: nothing
    measuring timers: left, the steps above come first
    downgrade: left, the steps above come first
    a leader that the others could not follow: nothing
    rolling restart: settings, version, CAs: left, the steps above come first
    CA rotation: nothing
    members to add, remove or move: left, the steps above come first
    machines of former members: nothing
    machines of former balancers: left, the steps above come first
    machines to rebuild: left, the steps above come first
    auth: nothing
    users with the role root that the file does not name: nothing
    users and roles: left, the file does not ask for it
    scheduled defragmentation: left, the steps above come first
    agents' programs: left, the steps above come first
    balancers: left, the steps above come first
    secrets and backup settings on machines: left, the steps above come first
    timers against the last measurement: nothing
    agents that are not upgraded: nothing
    members to drain and to admit: nothing
    virtual addresses: left, the steps above come first
    ");
    scene.until(|action| matches!(action, Action::Etcd(EtcdAction::ConfigureEtcd { .. })));
    let output = explained(&scene);
    assert!(output.contains("rolling restart: settings, version, CAs: restart etcd main-2"), "{output}");
    // Where it is not clear which cluster this is, no other pass runs.
    scene.world.ledger.etcd.cluster = Some(ClusterId(7));
    let output = explained(&scene);
    assert!(output.starts_with("the cluster's id") && output.lines().count() == 1, "{output}");
}
