//! Agents that run another program than this raftsman ships → which are upgraded, in which order, and which are not.

use insta::assert_snapshot;
use raftsman_core::action::{Action, AgentAction, MachineAction};
use raftsman_core::desired::AgentVersion;
use raftsman_core::observed::{AgentProgram, FailedUpgrade};
use raftsman_core::plan::safety;
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene};
use raftsman_tests::sim::agents::shipping;

/// A cluster as raftsman 1.1.0 has made it.
fn settled() -> Scene {
    let mut scene = Scene::empty(3, &[]);
    scene.desired = shipping(scene.desired, ("1.1.0", "old"));
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n") && !output.contains("upgrade agent"), "machines come with the agent: {output}");
    scene
}

/// The same, now operated with another raftsman.
fn with(version: &str, digest: &str) -> Scene {
    let mut scene = settled();
    scene.desired = shipping(scene.desired, (version, digest));
    scene
}

#[test]
fn agents_are_upgraded_one_at_a_time() {
    assert_snapshot!(with("1.2.0", "new").to_the_end(), @"
    * upgrade agent main-1: 1.1.0 → 1.2.0; 1 1 1
    * upgrade agent main-2: 1.1.0 → 1.2.0; 1 1 1
    * upgrade agent main-3: 1.1.0 → 1.2.0; 1 1 1
    done
    ");
}

#[test]
fn another_program_of_the_same_version_is_an_upgrade() {
    assert_snapshot!(with("1.1.0", "rebuilt").plan().steps[0].reason, @"another build of 1.1.0");
}

#[test]
fn upgrades_come_after_all_else() {
    let mut scene = with("1.2.0", "new");
    let changed = raftsman_tests::fixtures::cluster(3, &["quota: 4GiB"]);
    scene.desired = shipping(changed, ("1.2.0", "new"));
    let output = scene.to_the_end();
    assert!(output.rfind("restart etcd") < output.find("upgrade agent"), "{output}");
    // One that cannot be asked may be in the middle of something: the others wait.
    let mut scene = with("1.2.0", "new");
    scene.hide(3, Hidden::Agent);
    assert!(scene.plan().steps.is_empty());
}

#[test]
fn a_reverted_upgrade_is_named_and_not_tried_again() {
    let mut scene = with("1.2.0", "new");
    scene.machine(1).reverts.insert("new".to_owned());
    let step = scene.plan().steps[0].action.clone();
    scene.world.act(&scene.desired, &step, 0).expect_err("the machine reverts it");
    assert_snapshot!(scene.to_the_end(), @"
    * upgrade agent main-2: 1.1.0 → 1.2.0; 1 1 1
    * upgrade agent main-3: 1.1.0 → 1.2.0; 1 1 1
    blocked: main-1: the upgrade of its agent to 1.2.0 was reverted: it ended
    ");
    assert!(safety::judge(&scene.desired, &scene.look(), &[&step], &step).is_err());
    let advice = scene.plan().waiting[0].next();
    assert_snapshot!(advice, @"read the agent's log: `raftsman logs main-1 --agent`; another version of raftsman is tried by itself, this one only after you kill the agent's process of `main-1`: `raftsman apply` starts it with the new binary");

    // It blocks nothing else.
    scene.desired = shipping(raftsman_tests::fixtures::cluster(3, &["quota: 4GiB"]), ("1.2.0", "new"));
    assert!(scene.to_the_end().contains("restart etcd"));
    // Another program is another try.
    scene.desired = shipping(scene.desired, ("1.2.1", "fixed"));
    assert!(scene.to_the_end().ends_with("done\n"));
}

/// A machine that lost its power in between, or a command that was killed, says nothing about the program.
#[test]
fn an_interrupted_upgrade_is_tried_again() {
    let mut scene = with("1.2.0", "new");
    let failed = FailedUpgrade {
        digest: "new".to_owned(),
        version: "1.2.0".to_owned(),
        reason: "interrupted".to_owned(),
        at: None,
        retriable: true,
    };
    scene.machine(1).program.as_mut().expect("a program").failed = Some(failed);
    assert!(scene.to_the_end().ends_with("done\n"));
}

#[test]
fn a_newer_agent_is_left_alone_and_so_is_its_cluster() {
    let mut scene = with("1.0.9", "older");
    // Something else is to be done, and is not.
    scene.desired = shipping(raftsman_tests::fixtures::cluster(3, &["quota: 4GiB"]), ("1.0.9", "older"));
    assert_snapshot!(scene.to_the_end(), @"
    blocked: main-1: its agent is of version 1.1.0, this raftsman is of version 1.0.9
    blocked: main-2: its agent is of version 1.1.0, this raftsman is of version 1.0.9
    blocked: main-3: its agent is of version 1.1.0, this raftsman is of version 1.0.9
    ");
    let machine = Name::parse("main-1").expect("a name");
    let downgrade = Action::Agent(AgentAction::UpgradeAgent { machine: machine.clone(), digest: "older".to_owned() });
    for action in [downgrade, Action::Machine(MachineAction::RenewAgent { machine })] {
        let refused = safety::judge(&scene.desired, &scene.look(), &[&action], &action).expect_err("refused");
        assert!(refused.to_string().contains("newer than this raftsman"), "{refused}");
    }
}

/// Agents of before this call are named with what helps, and all else goes on.
#[test]
fn an_agent_without_the_call_is_named() {
    let mut scene = with("1.2.0", "new");
    scene.machine(2).program = None;
    scene.machine(2).agent_version = "1.0.0".to_owned();
    assert_snapshot!(scene.to_the_end(), @"
    * upgrade agent main-1: 1.1.0 → 1.2.0; 1 1 1
    * upgrade agent main-3: 1.1.0 → 1.2.0; 1 1 1
    note: main-2: its agent, of version 1.0.0, is too old to be upgraded by `apply`
    done
    ");
}

#[test]
fn a_full_disk_is_named_before_the_program_is_sent() {
    let mut scene = with("1.2.0", "new");
    scene.machine(1).disk.free = 70 << 20;
    assert_snapshot!(scene.to_the_end(), @"
    * upgrade agent main-2: 1.1.0 → 1.2.0; 1 1 1
    * upgrade agent main-3: 1.1.0 → 1.2.0; 1 1 1
    blocked: main-1: its disk has 70.0 MiB free, and the new agent binary needs 30.0 MiB
    ");
}

/// In its first moments an agent does not know its own digest: that is not another program.
#[test]
fn what_is_not_known_yet_is_no_difference() {
    let mut scene = settled();
    scene.machine(1).program = Some(AgentProgram::default());
    assert_eq!(scene.to_the_end(), "done\n");
}

#[test]
fn versions_are_compared_as_numbers() {
    let parse = |text: &str| AgentVersion::parse(text);
    assert!(parse("0.10.0") > parse("0.9.9") && parse("1.0.0-rc1") == parse("1.0.0"));
    assert!(["", "1.2", "1.2.3.4", "one"].iter().all(|text| parse(text).is_none()));
}
