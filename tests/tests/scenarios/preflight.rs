//! Timers that are to be measured, timers that do not suit what was measured → what the planner does and says.

use insta::assert_snapshot;
use raftsman_core::action::{Action, MachineAction, PreflightAction};
use raftsman_core::model::{Latency, forecast};
use raftsman_core::observed::Preflight;
use raftsman_core::plan::safety;
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene, cluster, describe};

const MEASURED: [&str; 1] = ["timers: measured"];
const FAR: Latency = Latency { write_us: 3_000, round_trip_us: 150_000 };

fn name(number: usize) -> Name {
    Name::parse(&format!("main-{number}")).expect("a name")
}

/// The heartbeat in the configuration that every member runs, in milliseconds; they must be the same.
fn heartbeat(scene: &Scene) -> u64 {
    let timers = scene.desired.etcd.timers(&scene.world.ledger).expect("timers");
    for member in &scene.desired.etcd.members {
        let access = scene.desired.etcd.client_access(&scene.world.ledger);
        let config = scene.desired.etcd.config(member, scene.desired.etcd.version, timers, access);
        assert!(config.text.contains(&format!("heartbeat-interval: {}\n", timers.heartbeat.as_millis())), "{config:?}");
        assert!(config.text.contains(&format!("election-timeout: {}\n", timers.election.as_millis())), "{config:?}");
        let process = &scene.world.machines[&member.name].process;
        assert_eq!(process.config.as_ref(), Some(&config.digest), "{}", member.name);
    }
    timers.heartbeat.as_millis()
}

/// The operator runs `raftsman preflight --save`.
fn save(scene: &mut Scene, latency: Latency) {
    scene.world.latency = latency;
    scene.world.act(&scene.desired, &Action::Preflight(PreflightAction::Measure), 0).expect("possible");
}

#[test]
fn a_new_cluster_measures_before_it_is_configured() {
    let mut scene = Scene::empty(3, &MEASURED);
    scene.world.latency = FAR;
    assert_snapshot!(scene.to_the_end(), @"
    * make authorities cluster: not there yet; - - -
      create machine main-1 main-2 main-3: not there yet; - - -
    * enroll main-1 main-2 main-3: new machine; - - -
    * sign peer cert main-1 main-2 main-3: not there yet; - - -
      sign server cert main-1 main-2 main-3: not there yet; - - -
      install etcd main-1 main-2 main-3: not there yet; - - -
    * measure cluster: heartbeat and election are derived from it; - - -
    * configure etcd main-1 main-2 main-3: not there yet; - - -
    * start etcd main-1 main-2 main-3: first start, 3 of 3 together; - - 1
    * create root cluster: not there yet; 1 1 1
    * enable auth cluster: auth is off; 1 1 1
    done
    ");
    assert_eq!(heartbeat(&scene), 200);
}

#[test]
fn the_forecast_measures_too_and_is_what_happens() {
    let mut scene = Scene::empty(3, &MEASURED);
    let foreseen = forecast(&scene.desired, &scene.look(), scene.world.now);
    assert!(foreseen.converges, "{foreseen:?}");
    let foreseen: Vec<Vec<Action>> =
        foreseen.waves.iter().map(|w| w.steps.iter().map(|s| s.action.clone()).collect()).collect();
    let mut done = Vec::new();
    loop {
        let steps = scene.plan().steps;
        if steps.is_empty() {
            break;
        }
        for step in &steps {
            scene.world.act(&scene.desired, &step.action, 0).expect("possible");
        }
        scene.world.pass_time();
        scene.world.remember(&scene.desired);
        done.push(steps.into_iter().map(|s| s.action).collect::<Vec<_>>());
    }
    assert_eq!(foreseen, done);
    assert_eq!(done.iter().flatten().filter(|a| **a == Action::Preflight(PreflightAction::Measure)).count(), 1);
}

#[test]
fn a_running_cluster_measures_and_goes_on_as_it_was_when_that_suits() {
    let mut scene = Scene::settled(3);
    scene.desired = cluster(3, &MEASURED);
    assert_snapshot!(scene.to_the_end(), @"
    * measure cluster: heartbeat and election are derived from it; 1 1 1
    done
    ");
    assert_eq!(heartbeat(&scene), 100);
}

#[test]
fn a_running_cluster_keeps_its_timers_until_others_are_measured() {
    let mut scene = Scene::settled_with(3, &["timers: { heartbeat: 400ms, election: 4s }"]);
    scene.desired = cluster(3, &MEASURED);
    scene.world.latency = FAR;
    assert_snapshot!(scene.to_the_end(), @"
    * measure cluster: heartbeat and election are derived from it; 1 1 1
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    done
    ");
    assert_eq!(heartbeat(&scene), 200);
}

#[test]
fn noise_restarts_no_member_and_a_real_change_restarts_all_one_at_a_time() {
    let mut scene = Scene::settled_with(3, &MEASURED);
    assert_eq!(heartbeat(&scene), 100);
    save(&mut scene, Latency { write_us: 9_000, round_trip_us: 90_000 });
    assert_snapshot!(scene.to_the_end(), @"
    done
    ");
    save(&mut scene, FAR);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    done
    ");
    assert_eq!(heartbeat(&scene), 200);
    // One step back down is not worth a restart of every member.
    save(&mut scene, Latency::USUAL);
    assert_snapshot!(scene.to_the_end(), @"
    done
    ");
    assert_eq!(heartbeat(&scene), 200);
}

#[test]
fn a_machine_that_cannot_be_asked_holds_up_the_first_measurement() {
    let mut scene = Scene::empty(3, &MEASURED);
    let _ = scene.until(|action| matches!(action, Action::Machine(MachineAction::Enroll { .. })));
    scene.hide(3, Hidden::Agent);
    assert_snapshot!(scene.to_the_end(), @"
    * sign peer cert main-1 main-2: not there yet; - - -
      sign server cert main-1 main-2: not there yet; - - -
      install etcd main-1 main-2: not there yet; - - -
    waits: the timers are to be measured: 2 of the 3 agents that are needed answer
    waits: main-3: the agent does not answer: timed out
    ");
    scene.hidden.clear();
    assert!(scene.to_the_end().ends_with("done\n"));
}

#[test]
fn a_lost_member_does_not_hold_up_a_measurement_of_the_others() {
    let mut scene = Scene::settled(3);
    scene.desired = cluster(3, &MEASURED);
    scene.hide(3, Hidden::Agent);
    assert_snapshot!(scene.to_the_end(), @"
    * measure cluster: heartbeat and election are derived from it; 1 1 1
    waits: main-3: the agent does not answer: timed out
    ");
    let kept = scene.world.ledger.etcd.preflight.as_ref().expect("measured");
    assert_eq!(kept.rule, Preflight::RULE);
    scene.hidden.clear();
    assert_snapshot!(scene.to_the_end(), @"
    done
    ");
}

#[test]
fn too_few_agents_measure_nothing_and_no_member_is_restarted() {
    let mut scene = Scene::settled_with(3, &["timers: { heartbeat: 400ms, election: 4s }"]);
    scene.desired = cluster(3, &MEASURED);
    scene.hide(2, Hidden::Agent);
    scene.hide(3, Hidden::Agent);
    assert_snapshot!(scene.to_the_end(), @"
    waits: main-2: the agent does not answer: timed out
    waits: main-3: the agent does not answer: timed out
    waits: the timers are to be measured: 1 of the 2 agents that are needed answer
    ");
    let observed = scene.look();
    let refused = safety::judge(
        &scene.desired,
        &observed,
        &[&Action::Preflight(PreflightAction::Measure)],
        &Action::Preflight(PreflightAction::Measure),
    )
    .expect_err("refused");
    assert_eq!(refused.to_string(), "too few agents answer");
}

#[test]
fn a_member_replaced_later_gets_the_timers_of_the_others() {
    let mut scene = Scene::empty(3, &MEASURED);
    scene.world.latency = FAR;
    let _ = scene.to_the_end();
    scene.world.latency = Latency::USUAL;
    let id = scene.agreed().members.iter().find(|m| m.name == "main-2").expect("listed").id;
    scene.world.ledger.etcd.replace.insert(name(2), id);
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n") && !output.contains("measure"), "{output}");
    assert_eq!(heartbeat(&scene), 200);
}

#[test]
fn timers_of_the_file_are_never_changed_and_what_does_not_suit_is_said() {
    let mut scene = Scene::settled(3);
    save(&mut scene, FAR);
    assert_snapshot!(scene.to_the_end(), @"
    note: main-3 ↔ main-2: ten round trips of 150 ms do not fit into an election time-out of 1s
    done
    ");
    assert_eq!(heartbeat(&scene), 100);
    save(&mut scene, Latency { write_us: 130_000, round_trip_us: 500 });
    assert_snapshot!(scene.to_the_end(), @"
    note: main-3: a durable write takes up to 130 ms, a heartbeat comes every 100ms
    note: main-3: a durable write takes up to 130 ms, etcd wants less than 10 ms
    done
    ");
    scene.desired = cluster(3, &["timers: { heartbeat: 1s, election: 10s }"]);
    let _ = scene.to_the_end();
    save(&mut scene, Latency::USUAL);
    let plan = scene.plan();
    assert!(plan.is_done(), "a note holds nothing up");
    assert_snapshot!(describe(&plan), @"
    note: a lost leader is noticed after 10s; by what was measured, 1s would do
    done
    ");
}
