//! Scripted worlds of other versions → the way there hop by hop, the way back, and what is refused.
//!
//! A line with `*` begins a wave; the three numbers are what the cluster can lose before, during and after it.

use insta::assert_snapshot;
use raftsman_core::action::{Action, EtcdAction, VersionAction};
use raftsman_core::observed::{Data, Root, ServiceState};
use raftsman_core::spec::EtcdVersion;
use raftsman_core::versions::Line;
use raftsman_tests::fixtures::{Hidden, Scene, cluster, describe};

/// All versions that the directory of these scenes holds.
const ALL: &[&str] = &["3.4.45", "3.5.34", "3.6.15", "3.7.2"];

fn version(text: &str) -> EtcdVersion {
    EtcdVersion::parse(text).expect("a version")
}

/// A settled cluster of this version.
fn running(at: &str) -> Scene {
    Scene::settled_with(3, &[&format!("version: {at}")])
}

/// The same without auth.
fn running_without_auth(at: &str) -> Scene {
    Scene::settled_with(3, &[&format!("version: {at}"), "auth: { mode: none }"])
}

/// The file is changed.
trait Wants: Sized {
    fn now_wants(&mut self, wanted: &str, available: &[&str], further: &[&str]);

    fn wants(mut self, wanted: &str, available: &[&str], further: &[&str]) -> Self {
        self.now_wants(wanted, available, further);
        self
    }
}

impl Wants for Scene {
    fn now_wants(&mut self, wanted: &str, available: &[&str], further: &[&str]) {
        let line = format!("version: {wanted}");
        let lines: Vec<&str> = [line.as_str()].into_iter().chain(further.iter().copied()).collect();
        self.desired = cluster(self.desired.etcd.members.len(), &lines);
        self.desired.etcd.available.extend(available.iter().map(|v| version(v)));
    }
}

fn restarts(machine: &str) -> impl Fn(&Action) -> bool {
    move |action| matches!(action, Action::Etcd(EtcdAction::RestartEtcd { machine: m, .. }) if m.as_str() == machine)
}

// ---- The way up.

#[test]
fn a_patch_up() {
    assert_snapshot!(running("3.6.14").wants("3.6.15", &[], &[]).to_the_end(), @"
    * install etcd main-1 main-2 main-3: not there yet; 1 1 1
    * take snapshot cluster: 3.6.14 → 3.6.15; 1 1 1
    * restart etcd main-2: 3.6.14 → 3.6.15; 1 0 1
    * restart etcd main-3: 3.6.14 → 3.6.15; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: 3.6.14 → 3.6.15; 1 0 1
    done
    ");
}

#[test]
fn a_patch_down() {
    assert_snapshot!(running("3.6.15").wants("3.6.14", &[], &[]).to_the_end(), @"
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
fn two_lines_up_each_to_its_end() {
    assert_snapshot!(running("3.5.34").wants("3.7.2", ALL, &[]).to_the_end(), @"
    * install etcd main-1 main-2 main-3: not there yet; 1 1 1
      configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * take snapshot cluster: 3.5.34 → 3.6.15; 1 1 1
    * restart etcd main-2: 3.5.34 → 3.6.15; 1 0 1
    * restart etcd main-3: 3.5.34 → 3.6.15; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: 3.5.34 → 3.6.15; 1 0 1
    * enable downgrade cluster: temporarily: the log holds requests of 3.5; 1 1 1
    * cancel downgrade cluster: to 3.5.0, which is not in the file; 1 1 1
    * install etcd main-1 main-2 main-3: not there yet; 1 1 1
    * take snapshot cluster: 3.6.15 → 3.7.2; 1 1 1
    * restart etcd main-1: 3.6.15 → 3.7.2; 1 0 1
    * restart etcd main-3: 3.6.15 → 3.7.2; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: 3.6.15 → 3.7.2; 1 0 1
    done
    ");
}

#[test]
fn an_old_patch_first_goes_to_one_that_may_meet_the_next_line() {
    let output = running("3.5.30").wants("3.6.15", ALL, &[]).to_the_end();
    let hops: Vec<&str> = output.lines().filter(|line| line.contains("snapshot")).collect();
    assert_snapshot!(hops.join("\n"), @"
    * take snapshot cluster: 3.5.30 → 3.5.34; 1 1 1
    * take snapshot cluster: 3.5.34 → 3.6.15; 1 1 1
    ");
}

#[test]
fn the_members_of_3_4_without_auth() {
    assert_snapshot!(running_without_auth("3.4.45").wants("3.5.34", ALL, &["auth: { mode: none }"]).to_the_end(), @"
    * install etcd main-1 main-2 main-3: not there yet; 1 1 1
      configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * take snapshot cluster: 3.4.45 → 3.5.34; 1 1 1
    * restart etcd main-2: 3.4.45 → 3.5.34; 1 0 1
    * restart etcd main-3: 3.4.45 → 3.5.34; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: 3.4.45 → 3.5.34; 1 0 1
    done
    ");
}

#[test]
fn auth_is_turned_off_for_the_way_from_3_4_and_on_again() {
    let mut scene = running("3.4.45");
    scene.now_wants("3.5.34", ALL, &["auth: { mode: none }"]);
    let down = scene.to_the_end();
    assert!(down.starts_with("* disable auth cluster: auth is on; 1 1 1\n"), "{down}");
    assert!(down.ends_with("done\n"), "{down}");
    scene.now_wants("3.5.34", ALL, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * enable auth cluster: auth is off; 1 1 1
    done
    ");
}

#[test]
fn half_way_from_3_4_auth_has_to_wait() {
    let mut scene = running_without_auth("3.4.45").wants("3.5.34", ALL, &["auth: { mode: none }"]);
    scene.until(restarts("main-2"));
    scene.now_wants("3.5.34", ALL, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * restart etcd main-3: 3.4.45 → 3.5.34; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: 3.4.45 → 3.5.34; 1 0 1
    * create root cluster: not there yet; 1 1 1
    * enable auth cluster: auth is off; 1 1 1
    done
    ");
}

#[test]
fn the_leader_goes_last() {
    for leader in 1..=3 {
        let mut scene = running("3.6.15").wants("3.7.2", ALL, &[]);
        let id = match scene.machine(leader).data {
            Data::Present { member, .. } => member,
            Data::Empty | Data::Unreadable { .. } => panic!("no data"),
        };
        scene.world.leads = Some(id);
        let output = scene.to_the_end();
        let mut lines = output.lines().skip_while(|line| !line.contains("move leader to"));
        let (handed_over, last) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        assert!(handed_over.contains(&format!(": main-{leader} restarts next;")), "{output}");
        assert!(last.contains(&format!("restart etcd main-{leader}:")), "{output}");
        assert!(lines.all(|line| !line.contains("restart etcd")), "{output}");
    }
}

/// Whether logs begin anew on this way.
fn renews(output: &str) -> bool {
    assert!(output.ends_with("done\n"), "{output}");
    output.contains("the log holds requests of 3.5")
}

#[test]
fn requests_of_3_5_are_kept_until_3_7() {
    let mut scene = running("3.5.34").wants("3.6.15", ALL, &[]);
    assert!(!renews(&scene.to_the_end()), "3.6 reads them");
    scene.later(24);
    scene.now_wants("3.7.2", ALL, &[]);
    assert!(renews(&scene.clone().to_the_end()));
    scene.to_the_end();
    scene.now_wants("3.6.15", ALL, &[]);
    scene.to_the_end();
    scene.now_wants("3.7.2", ALL, &[]);
    assert!(!renews(&scene.to_the_end()), "all of them have been to 3.7");
}

#[test]
fn a_cluster_bootstrapped_on_3_6_has_no_older_requests() {
    assert!(!renews(&running("3.6.15").wants("3.7.2", ALL, &[]).to_the_end()));
}

#[test]
fn a_log_begins_anew_only_while_all_are_healthy() {
    let mut scene = running("3.5.34").wants("3.6.15", ALL, &[]);
    scene.to_the_end();
    scene.now_wants("3.7.2", ALL, &[]);
    scene.hide(3, Hidden::Etcd);
    assert_snapshot!(scene.to_the_end(), @"
    waits: main-3: etcd is starting
    waits: a new log waits for unhealthy members: main-3
    ");
}

#[test]
fn interrupted_while_logs_begin_anew() {
    let mut scene = running("3.5.34").wants("3.7.2", ALL, &[]);
    scene.until(|action| matches!(action, Action::Version(VersionAction::EnableDowngrade { .. })));
    let further = scene.clone().to_the_end();
    assert!(further.starts_with("* cancel downgrade") && !renews(&further), "{further}");
    scene.now_wants("3.6.15", ALL, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * cancel downgrade cluster: to 3.5.0, which is not in the file; 1 1 1
    done
    ");
}

// ---- Half way.

#[test]
fn half_way_up_and_back() {
    let mut scene = running("3.5.34").wants("3.6.15", ALL, &[]);
    scene.until(restarts("main-2"));
    scene.now_wants("3.5.34", ALL, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-2: 3.6.15 → 3.5.34; 1 0 1
    done
    ");
}

#[test]
fn half_way_up_and_back_from_a_version_that_does_not_start() {
    let mut scene = running("3.5.34").wants("3.6.15", ALL, &[]);
    scene.until(restarts("main-2"));
    let crashing = scene.machine(2);
    crashing.process.state = ServiceState::Backoff;
    crashing.process.restarts = 9;
    crashing.agent_up = true;
    scene.now_wants("3.5.34", ALL, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 0 0 0
    * restart etcd main-2: 3.6.15 → 3.5.34; 1 0 1
    done
    ");
}

#[test]
fn half_way_up_to_another_patch() {
    let mut scene = running("3.5.34").wants("3.6.14", ALL, &[]);
    scene.until(restarts("main-2"));
    scene.now_wants("3.6.15", ALL, &[]);
    let output = scene.to_the_end();
    assert_eq!(output.matches("restart etcd").count(), 3, "{output}");
    assert!(output.ends_with("done\n"), "{output}");
}

#[test]
fn half_way_of_the_first_hop_the_second_waits() {
    let mut scene = running("3.5.34").wants("3.7.2", ALL, &[]);
    scene.until(restarts("main-2"));
    let output = scene.until(|action| matches!(action, Action::Version(VersionAction::TakeSnapshot { .. })));
    assert_snapshot!(output, @"
    * restart etcd main-3: 3.5.34 → 3.6.15; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: 3.5.34 → 3.6.15; 1 0 1
    * enable downgrade cluster: temporarily: the log holds requests of 3.5; 1 1 1
    * cancel downgrade cluster: to 3.5.0, which is not in the file; 1 1 1
    * install etcd main-1 main-2 main-3: not there yet; 1 1 1
    * take snapshot cluster: 3.6.15 → 3.7.2; 1 1 1
    ");
}

#[test]
fn a_member_that_stops_half_way_comes_back_as_it_was() {
    let mut scene = running("3.5.34").wants("3.6.15", ALL, &[]);
    scene.until(restarts("main-2"));
    let stopped = scene.machine(3);
    stopped.process = raftsman_core::model::Process::none();
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-3: the file has changed; 0 0 0
    * start etcd main-3: not running; 0 0 1
    * configure etcd main-3: the file has changed; 1 1 1
    * restart etcd main-3: 3.5.34 → 3.6.15; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: 3.5.34 → 3.6.15; 1 0 1
    done
    ");
}

#[test]
fn while_a_member_is_down_no_other_changes() {
    let mut scene = running("3.5.34").wants("3.6.15", ALL, &[]);
    scene.until(|action| matches!(action, Action::Version(VersionAction::TakeSnapshot { .. })));
    scene.cut_power(3);
    scene.hide(3, Hidden::Machine);
    assert_snapshot!(scene.to_the_end(), @"
    waits: main-3: the provider does not answer: timed out
    waits: main-2: restart etcd would lose quorum: 2 of 3 members are healthy
    ");
}

#[test]
fn the_next_hop_waits_until_etcd_has_settled() {
    let mut scene = running("3.5.34").wants("3.7.2", ALL, &[]);
    for machine in ["main-2", "main-3", "main-1"] {
        scene.until(restarts(machine));
    }
    scene.agreed().line = Some(Line(3, 5));
    assert_snapshot!(describe(&scene.plan()), @"
    waits: the cluster has not settled on 3.6 yet
    ");
}

#[test]
fn a_snapshot_serves_for_an_hour() {
    let mut scene = running("3.6.14").wants("3.6.15", &[], &[]);
    scene.until(|action| matches!(action, Action::Version(VersionAction::TakeSnapshot { .. })));
    let mut later = scene.clone();
    assert!(describe(&scene.plan()).starts_with("* restart etcd"), "{}", describe(&scene.plan()));
    later.later(2);
    assert!(describe(&later.plan()).starts_with("* take snapshot"), "{}", describe(&later.plan()));
    // Once a member runs the new version, no snapshot of the old one can be taken.
    scene.until(restarts("main-2"));
    scene.later(2);
    assert!(describe(&scene.plan()).starts_with("* restart etcd"), "{}", describe(&scene.plan()));
}

// ---- The way down.

#[test]
fn two_lines_down_each_announced() {
    assert_snapshot!(running("3.7.2").wants("3.5.34", ALL, &[]).to_the_end(), @"
    * enable downgrade cluster: 3.7.2 → 3.6.0; 1 1 1
    * install etcd main-1 main-2 main-3: not there yet; 1 1 1
    * take snapshot cluster: 3.7.2 → 3.6.15; 1 1 1
    * restart etcd main-2: 3.7.2 → 3.6.15; 1 0 1
    * restart etcd main-3: 3.7.2 → 3.6.15; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: 3.7.2 → 3.6.15; 1 0 1
    * enable downgrade cluster: 3.6.15 → 3.5.0; 1 1 1
    * install etcd main-1 main-2 main-3: not there yet; 1 1 1
      configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * take snapshot cluster: 3.6.15 → 3.5.34; 1 1 1
    * restart etcd main-1: 3.6.15 → 3.5.34; 1 0 1
    * restart etcd main-3: 3.6.15 → 3.5.34; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: 3.6.15 → 3.5.34; 1 0 1
    done
    ");
}

#[test]
fn the_next_way_down_waits_until_etcd_has_ended_the_one_before() {
    let mut scene = running("3.6.15").wants("3.5.34", ALL, &[]);
    scene.agreed().downgrade = Some(Line(3, 6));
    assert_snapshot!(describe(&scene.plan()), @"waits: the cluster has not settled on 3.6 yet");
}

#[test]
fn a_downgrade_that_the_file_no_longer_wants_is_cancelled() {
    let mut scene = running("3.7.2").wants("3.6.15", ALL, &[]);
    scene.until(|action| matches!(action, Action::Version(VersionAction::EnableDowngrade { .. })));
    scene.now_wants("3.7.2", ALL, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * cancel downgrade cluster: to 3.6.0, which is not in the file; 1 1 1
    done
    ");
}

#[test]
fn half_way_down_and_up_again() {
    let mut scene = running("3.7.2").wants("3.6.15", ALL, &[]);
    scene.until(restarts("main-2"));
    scene.now_wants("3.7.2", ALL, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * cancel downgrade cluster: to 3.6.0, which is not in the file; 1 1 1
    * restart etcd main-2: 3.6.15 → 3.7.2; 1 0 1
    done
    ");
}

#[test]
fn half_way_down_to_an_old_patch_and_up_again() {
    let mut scene = running("3.6.15").wants("3.5.30", ALL, &[]);
    scene.until(restarts("main-2"));
    scene.now_wants("3.6.15", ALL, &[]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-3: the file has changed; 1 1 1
    * cancel downgrade cluster: to 3.5.0, which is not in the file; 1 1 1
    * install etcd main-1 main-2 main-3: not there yet; 1 1 1
      configure etcd main-1 main-3: the file has changed; 1 1 1
    * take snapshot cluster: 3.5.30 → 3.5.34; 1 1 1
    * restart etcd main-2: 3.5.30 → 3.5.34; 1 0 1
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-2: 3.5.34 → 3.6.15; 1 0 1
    done
    ");
}

#[test]
fn a_downgrade_goes_on_half_way_although_it_was_cancelled() {
    let mut scene = running("3.7.2").wants("3.6.15", ALL, &[]);
    scene.until(restarts("main-2"));
    scene.agreed().downgrade = None;
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n") && !output.contains("downgrade"), "{output}");
}

#[test]
fn the_way_down_needs_every_member() {
    let mut scene = running("3.7.2").wants("3.6.15", ALL, &[]);
    scene.hide(3, Hidden::Etcd);
    assert_snapshot!(scene.to_the_end(), @"
    waits: main-3: etcd is starting
    waits: the downgrade to 3.6 waits for unhealthy members: main-3
    ");
}

// ---- What is refused. Nothing is done about it, and the members stay what they are.

fn refused(mut scene: Scene) -> String {
    let output = scene.to_the_end();
    for (name, machine) in &scene.world.machines {
        assert_eq!(machine.process.state, ServiceState::Running, "{name}: {output}");
    }
    let next: Vec<String> = scene.plan().waiting.iter().map(|w| format!("→ {}", w.next())).collect();
    format!("{output}{}", next.join("\n"))
}

#[test]
fn a_line_is_skipped() {
    assert_snapshot!(refused(running("3.5.34").wants("3.7.2", &["3.5.34", "3.7.1"], &[])), @"
    blocked: no path from 3.5.34 to 3.7.2: etcd is upgraded one minor version at a time, and no version of 3.6 is available
    → make a version of 3.6 available with `source: { directory: … }`, or write one as `version:` first
    ");
}

#[test]
fn a_line_is_skipped_downwards() {
    assert_snapshot!(refused(running("3.7.2").wants("3.5.34", &[], &[])), @"
    blocked: no path from 3.7.2 to 3.5.34: etcd is upgraded one minor version at a time, and no version of 3.6 is available
    → make a version of 3.6 available with `source: { directory: … }`, or write one as `version:` first
    ");
}

#[test]
fn a_version_runs_that_must_not_meet_3_6() {
    assert_snapshot!(refused(running("3.5.30").wants("3.6.15", &["3.5.31"], &[])), @"
    blocked: no path from 3.5.30 to 3.6.15: only 3.5.32 or later may run beside the next minor version: 3.5.30 brings removed members back, and demotes members
    → make 3.5.32 or later of its line available with `source: { directory: … }`, or write it as `version:` first
    ");
}

#[test]
fn a_version_runs_that_must_not_meet_3_7() {
    assert_snapshot!(refused(running("3.6.10").wants("3.7.2", &[], &[])), @"
    blocked: no path from 3.6.10 to 3.7.2: only 3.6.11 or later may run beside the next minor version: 3.6.10 brings removed members back, and demotes members
    → make 3.6.11 or later of its line available with `source: { directory: … }`, or write it as `version:` first
    ");
}

#[test]
fn the_line_in_between_is_there_only_in_a_version_that_must_not_go_on() {
    assert_snapshot!(refused(running("3.5.34").wants("3.7.2", &["3.6.10"], &[])), @"
    blocked: no path from 3.5.34 to 3.7.2: the upgrade path includes 3.6.10, and only 3.6.11 or later can be upgraded further
    → make 3.6.11 or later of its line available with `source: { directory: … }`, or write it as `version:` first
    ");
}

#[test]
fn from_3_4_to_3_5_with_auth() {
    assert_snapshot!(refused(running("3.4.45").wants("3.5.34", ALL, &[])), @"
    blocked: no path from 3.4.45 to 3.5.34: members of 3.4 and 3.5 are not compatible while auth is on
    → write `auth: { mode: none }` and apply; once all members run 3.5, write the old mode again
    ");
}

#[test]
fn half_way_between_3_4_and_3_5_with_auth() {
    let mut scene = running_without_auth("3.4.45").wants("3.5.34", ALL, &["auth: { mode: none }"]);
    scene.until(restarts("main-2"));
    scene.now_wants("3.5.34", ALL, &[]);
    // Another operator turned auth on first.
    (scene.agreed().auth, scene.agreed().root) = (true, Root::Ready);
    assert_snapshot!(refused(scene), @"
    blocked: no path from 3.4.45 to 3.5.34: members of 3.4 and 3.5 are not compatible while auth is on
    → write `auth: { mode: none }` and apply; once all members run 3.5, write the old mode again
    ");
}

#[test]
fn from_3_5_to_3_4() {
    assert_snapshot!(refused(running_without_auth("3.5.34").wants("3.4.45", ALL, &["auth: { mode: none }"])), @"
    blocked: no path from 3.5.34 to 3.4.45: etcd cannot be downgraded to 3.4
    → write `version: 3.5.34`; to go back all the same, restore a snapshot into a new cluster
    ");
}

#[test]
fn a_setting_that_a_version_on_the_way_ignores() {
    let scene = running_without_auth("3.4.45");
    let scene = scene.wants("3.6.15", ALL, &["auth: { mode: none }", "flags: { max-learners: 2 }"]);
    assert_snapshot!(refused(scene), @"
    blocked: no path from 3.4.45 to 3.6.15: 3.5.34 on the upgrade path would ignore `max-learners`
    → remove `max-learners` from `flags:` during the upgrade, or write `version: 3.4.45`
    ");
}

#[test]
fn members_too_far_apart() {
    let mut scene = running("3.7.2");
    let machine = scene.machine(2);
    machine.process.version = Some(version("3.5.34"));
    machine.last_version = Some(version("3.5.34"));
    assert_snapshot!(refused(scene), @"
    * install etcd main-2: not there yet; 1 1 1
    blocked: no path from 3.5.34 to 3.7.2: members of 3.5.34 and 3.7.2 are too far apart
    → bring the members to one line manually, starting with those of 3.5.34
    ");
}

#[test]
fn passwords_cannot_be_given_up() {
    let scene = Scene::settled_with(3, &["version: 3.4.45", "auth: { mode: password }"]);
    assert_snapshot!(refused(scene.wants("3.5.34", ALL, &["auth: { mode: none }"])), @"
    blocked: the cluster's clients log in by password, the file says `mode: none`
    → write `auth: { mode: password }`: changing how the clients of a running cluster log in is not in this version yet
    ");
}
