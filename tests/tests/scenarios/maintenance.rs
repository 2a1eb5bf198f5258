//! Full databases, large files, corrupt members → what the planner does about them, and what it leaves to operators.

use insta::assert_snapshot;
use raftsman_core::action::{Action, MaintenanceAction, MemberAction};
use raftsman_core::model::forecast;
use raftsman_core::observed::{Alarm, Fact, Hash, Hashes, MemberId, SpaceRecord, View};
use raftsman_core::plan::{Waiting, plan, safety};
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene, cluster};

const MIB: i64 = 1 << 20;

fn name(number: usize) -> Name {
    Name::parse(&format!("main-{number}")).expect("a name")
}

/// A settled cluster with this quota.
fn small(members: usize) -> Scene {
    let mut scene = Scene::empty(members, &["quota: 16MiB"]);
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
    scene
}

/// One whose quota is used up by so much data and so much history.
fn full(members: usize, live: i64, history: i64) -> Scene {
    let mut scene = small(members);
    scene.world.write(live * MIB, history * MIB);
    assert_eq!(scene.agreed().alarms, [Alarm::NoSpace]);
    scene
}

/// The member that leads.
fn leader(scene: &Scene) -> MemberId {
    scene.world.leader(scene.id()).expect("a leader")
}

// ---- The quota is used up.

#[test]
fn a_full_database_is_compacted_rewritten_and_written_to_again() {
    let mut scene = full(3, 2, 14);
    assert_snapshot!(scene.to_the_end(), @"
    * compact cluster: the quota is used up, most by `data/` (2068 keys, about 2.0 MiB, and 14.0 MiB of old values); 1 1 1
    * defragment main-2: 14.0 MiB of 16.0 MiB are free; 1 0 1
    * defragment main-3: 14.0 MiB of 16.0 MiB are free; 1 0 1
    * move leader to main-2: main-1 stops serving next; 1 1 1, hand-over
    * defragment main-1: 14.0 MiB of 16.0 MiB are free; 1 0 1
    * disarm NOSPACE cluster: there is free space again; 1 1 1
    done
    ");
    assert_eq!(scene.agreed().alarms, []);
    scene.world.write(MIB, 0);
    assert_snapshot!(scene.to_the_end(), @"
    done
    ");
}

#[test]
fn the_forecast_of_a_full_database_is_what_happens() {
    let mut scene = full(5, 2, 14);
    let foreseen = forecast(&scene.desired, &scene.look(), scene.world.now);
    assert!(foreseen.converges, "{foreseen:?}");
    let foreseen: Vec<Action> = foreseen.steps().map(|s| s.action.clone()).collect();
    let mut done = Vec::new();
    while let Some(step) = scene.plan().steps.first() {
        scene.world.act(&scene.desired, &step.action, 0).expect("possible");
        scene.world.pass_time();
        scene.world.remember(&scene.desired);
        done.push(step.action.clone());
    }
    assert_eq!(foreseen, done);
}

#[test]
fn the_data_itself_fills_the_quota() {
    let mut scene = full(3, 15, 1);
    assert_snapshot!(scene.to_the_end(), @"
    * compact cluster: the quota is used up, most by `data/` (15380 keys, about 15.0 MiB); 1 1 1
    blocked: etcd takes no writes: the data itself fills the quota, 15.0 MiB of 16.0 MiB; most of it: `data/` (15380 keys, about 15.0 MiB)
    ");
    // Deleting goes through while writing does not: then there is something to drop again.
    scene.world.delete(10 * MIB);
    assert_snapshot!(scene.to_the_end(), @"
    * compact cluster: the quota is used up, most by `data/` (5140 keys, about 5.0 MiB, and 10.0 MiB of old values); 1 1 1
    * defragment main-2: 11.0 MiB of 16.0 MiB are free; 1 0 1
    * defragment main-3: 11.0 MiB of 16.0 MiB are free; 1 0 1
    * move leader to main-2: main-1 stops serving next; 1 1 1, hand-over
    * defragment main-1: 11.0 MiB of 16.0 MiB are free; 1 0 1
    * disarm NOSPACE cluster: there is free space again; 1 1 1
    done
    ");
}

#[test]
fn a_greater_quota_is_carried_through_and_the_alarm_taken_back() {
    let mut scene = full(3, 15, 1);
    let _ = scene.to_the_end();
    scene.desired = cluster(3, &["quota: 64MiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    * disarm NOSPACE cluster: there is free space again; 1 1 1
    done
    ");
}

#[test]
fn a_greater_quota_alone_is_enough() {
    let mut scene = full(3, 2, 14);
    scene.desired = cluster(3, &["quota: 64MiB"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    * disarm NOSPACE cluster: there is free space again; 1 1 1
    done
    ");
    assert_eq!(scene.agreed().stored.compacted, 0, "no history was dropped without need");
}

#[test]
fn history_is_kept_where_all_that_answer_have_room() {
    let mut scene = full(3, 2, 14);
    scene.desired = cluster(3, &["quota: 64MiB"]);
    let restarted = |scene: &Scene| {
        let last = scene.plan().steps.first().map(|s| s.action.clone());
        matches!(last, Some(Action::Maintenance(MaintenanceAction::DisarmAlarm { .. })))
    };
    while !restarted(&scene) {
        let step = scene.plan().steps.first().expect("it gets there").action.clone();
        for step in scene.plan().steps {
            scene.world.act(&scene.desired, &step.action, 0).expect("possible");
        }
        scene.world.pass_time();
        scene.world.remember(&scene.desired);
        assert!(!matches!(step, Action::Maintenance(MaintenanceAction::Compact { .. })), "{step:?}");
    }
    // The one that was restarted last is not back yet.
    scene.hide(1, Hidden::Etcd);
    assert_snapshot!(scene.to_the_end(), @"
    waits: main-1: etcd is starting
    waits: disarming the alarm waits for unhealthy members: main-1
    ");
}

#[test]
fn no_room_is_made_while_a_member_is_down() {
    let mut scene = full(3, 2, 14);
    scene.hide(2, Hidden::Etcd);
    assert_snapshot!(scene.to_the_end(), @"
    * compact cluster: the quota is used up, most by `data/` (2068 keys, about 2.0 MiB, and 14.0 MiB of old values); 0 0 0
    waits: main-2: etcd is starting
    waits: freeing space in the database waits for unhealthy members: main-2
    ");
    scene.hidden.clear();
    assert_snapshot!(scene.to_the_end(), @"
    * defragment main-2: 14.0 MiB of 16.0 MiB are free; 1 0 1
    * defragment main-3: 14.0 MiB of 16.0 MiB are free; 1 0 1
    * move leader to main-2: main-1 stops serving next; 1 1 1, hand-over
    * defragment main-1: 14.0 MiB of 16.0 MiB are free; 1 0 1
    * disarm NOSPACE cluster: there is free space again; 1 1 1
    done
    ");
}

#[test]
fn a_run_that_was_killed_while_compacting_waits_for_its_end() {
    let mut scene = full(3, 2, 14);
    let Some(Action::Maintenance(MaintenanceAction::Compact { revision })) =
        scene.plan().steps.first().map(|s| s.action.clone())
    else {
        panic!("{:?}", scene.plan())
    };
    scene.world.ledger.etcd.space = Some(SpaceRecord { revision, done: false, ..SpaceRecord::default() });
    // It is unknown whether the call was made.
    assert_eq!(scene.plan().steps[0].action, Action::Maintenance(MaintenanceAction::Compact { revision }));
    assert!(scene.to_the_end().ends_with("done\n"));
    assert_eq!(scene.world.ledger.etcd.space, None, "the next time is another");
}

#[test]
fn what_compaction_freed_is_not_counted_yet() {
    let mut scene = full(3, 2, 14);
    scene.until(|action| matches!(action, Action::Maintenance(MaintenanceAction::Compact { .. })));
    let stale = |scene: &Scene| {
        let mut observed = scene.look();
        for member in observed.etcd.members.values_mut() {
            if let Fact::Seen { value, .. } = &mut member.etcd {
                value.db_in_use = value.db_size;
            }
        }
        plan(&scene.desired, &observed, scene.world.now)
    };
    // The keys take 2 MiB: the files are rewritten, whatever they say is in use.
    let next = stale(&scene);
    assert!(matches!(next.steps[0].action, Action::Maintenance(MaintenanceAction::Defragment { .. })), "{next:?}");
    // Once all of them were, their reported sizes are right.
    let space = scene.world.ledger.etcd.space.as_mut().expect("a compaction");
    space.rewritten = [name(1), name(2), name(3)].into();
    let next = stale(&scene);
    assert!(next.steps.is_empty() && matches!(next.waiting[0], Waiting::QuotaFull { .. }), "{next:?}");
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
}

#[test]
fn one_member_makes_room_by_itself() {
    let mut scene = full(1, 2, 14);
    assert_snapshot!(scene.to_the_end(), @"
    * compact cluster: the quota is used up, most by `data/` (2068 keys, about 2.0 MiB, and 14.0 MiB of old values); 0 0 0
    * defragment main-1: 14.0 MiB of 16.0 MiB are free; 0 0 0, hand-over
    * disarm NOSPACE cluster: there is free space again; 0 0 0
    done
    ");
}

#[test]
fn a_member_that_has_room_is_left_alone() {
    let mut scene = full(3, 2, 14);
    scene.world.compact_everywhere();
    scene.machine(2).db_size = 2 * MIB;
    assert_snapshot!(scene.to_the_end(), @"
    * compact cluster: the quota is used up, most by `data/` (2068 keys, about 2.0 MiB); 1 1 1
    * defragment main-3: 14.0 MiB of 16.0 MiB are free; 1 0 1
    * move leader to main-2: main-1 stops serving next; 1 1 1, hand-over
    * defragment main-1: 14.0 MiB of 16.0 MiB are free; 1 0 1
    * disarm NOSPACE cluster: there is free space again; 1 1 1
    done
    ");
}

// ---- Files that are larger than what is in them.

const RULE: &str = "maintenance: { defragment: { free: 50%, at_least: 100MiB } }";
const ON_SUNDAYS: &str =
    "maintenance: { defragment: { free: 50%, at_least: 100MiB }, window: { days: [sun], from: 02:00, to: 04:00 } }";

fn large(rule: &[&str]) -> Scene {
    let mut scene = Scene::empty(3, rule);
    let _ = scene.to_the_end();
    scene.world.write(100 * MIB, 300 * MIB);
    scene.world.compact_everywhere();
    scene
}

#[test]
fn nothing_is_rewritten_unless_the_file_says_so() {
    assert_snapshot!(large(&[]).to_the_end(), @"done");
}

#[test]
fn large_files_are_rewritten_followers_first() {
    let mut scene = large(&[RULE]);
    let led = leader(&scene);
    assert_snapshot!(scene.to_the_end(), @"
    * defragment main-2: 300.0 MiB of 400.0 MiB are free; 1 0 1
    * defragment main-3: 300.0 MiB of 400.0 MiB are free; 1 0 1
    * move leader to main-2: main-1 stops serving next; 1 1 1, hand-over
    * defragment main-1: 300.0 MiB of 400.0 MiB are free; 1 0 1
    done
    ");
    assert_ne!(leader(&scene), led, "it handed over before it was rewritten");
}

#[test]
fn outside_of_the_window_nothing_is_done() {
    let mut scene = large(&[ON_SUNDAYS]);
    scene.world.now = "2026-02-28T03:00:00Z".parse().expect("a Saturday");
    assert_snapshot!(scene.to_the_end(), @"done");
    scene.world.now = "2026-03-01T03:00:00Z".parse().expect("a Sunday");
    assert!(
        scene
            .plan()
            .steps
            .iter()
            .any(|s| matches!(s.action, Action::Maintenance(MaintenanceAction::Defragment { .. })))
    );
    scene.later(1);
    assert_snapshot!(scene.to_the_end(), @"done");
}

#[test]
fn nothing_is_rewritten_while_a_member_is_down() {
    let mut scene = large(&[RULE]);
    scene.hide(3, Hidden::Etcd);
    assert_snapshot!(scene.to_the_end(), @"
    waits: main-3: etcd is starting
    ");
    let defragment = Action::Maintenance(MaintenanceAction::Defragment { machine: name(2) });
    let refused = safety::judge(&scene.desired, &scene.look(), &[&defragment], &defragment);
    assert_snapshot!(refused.expect_err("it must not"), @"
    2 of 3 members are healthy: quorum would be lost
    ");
}

#[test]
fn a_disk_without_room_for_the_new_file_is_named() {
    let mut scene = large(&[RULE]);
    scene.machine(2).disk.free = 70 << 20;
    // The others are rewritten all the same, and then there is nothing to wait for.
    assert_snapshot!(scene.to_the_end(), @"
    * defragment main-3: 300.0 MiB of 400.0 MiB are free; 1 0 1
    * move leader to main-2: main-1 stops serving next; 1 1 1, hand-over
    * defragment main-1: 300.0 MiB of 400.0 MiB are free; 1 0 1
    blocked: main-2: not safe to defragment: its disk has 70.0 MiB free, and the new file takes 100.0 MiB
    ");
}

#[test]
fn the_leader_is_never_rewritten() {
    let scene = large(&[RULE]);
    let leads = (1..=3).map(name).find(|n| scene.look().etcd.members[n].etcd.seen().is_some_and(|e| e.leads()));
    let defragment = Action::Maintenance(MaintenanceAction::Defragment { machine: leads.expect("a leader") });
    let refused = safety::judge(&scene.desired, &scene.look(), &[&defragment], &defragment);
    assert_snapshot!(refused.expect_err("it must not"), @"
    it is the leader: leadership has to be transferred first
    ");
}

#[test]
fn an_old_version_is_not_rewritten_while_a_learner_gets_its_snapshot() {
    for (version, safe) in [("3.5.22", false), ("3.5.23", true), ("3.6.4", false), ("3.6.5", true), ("3.4.45", false)] {
        let mut scene = Scene::empty(3, &[&format!("version: {version}")]);
        let _ = scene.to_the_end();
        let id = MemberId(77);
        let learner = raftsman_core::observed::ListedMember {
            id,
            name: String::new(),
            peer_urls: vec!["https://127.0.42.77:2380".to_owned()],
            learner: true,
        };
        scene.agreed().members.push(learner);
        let follower = (1..=3).map(name).find(|n| scene.look().etcd.members[n].etcd.seen().is_some_and(|e| !e.leads()));
        let defragment = Action::Maintenance(MaintenanceAction::Defragment { machine: follower.expect("a follower") });
        let judged = safety::judge(&scene.desired, &scene.look(), &[&defragment], &defragment);
        assert_eq!(judged.is_ok(), safe, "{version}: {judged:?}");
    }
}

// ---- A member's data is not that of the others.

#[test]
fn a_corrupt_member_is_named_and_nothing_is_done() {
    let mut scene = Scene::settled(3);
    scene.world.corrupt(&name(2));
    assert_snapshot!(scene.to_the_end(), @"
    blocked: main-2: its data differs from that of the other members
    ");
}

#[test]
fn a_corrupt_member_is_replaced_on_request() {
    for corrupt in 1..=3 {
        let mut scene = Scene::settled(3);
        scene.world.corrupt(&name(corrupt));
        let id = scene.look().etcd.members[&name(corrupt)].etcd.seen().expect("it answers").member;
        scene.world.ledger.etcd.replace.insert(name(corrupt), id);
        let output = scene.to_the_end();
        assert!(output.ends_with("done\n"), "{output}");
        assert_eq!((scene.agreed().alarms.len(), scene.machine(corrupt).corrupt), (0, false), "{output}");
        if corrupt == 2 {
            assert_snapshot!(output, @"
            * remove member main-2: replaced; 1 0 0
            * stop etcd main-2: replaced; 0 0 0
            * clear data main-2: replaced; 0 0 0
            * disarm CORRUPT cluster: all members hold the same data; 0 0 0
            * add learner main-2: not there yet; 0 0 0
            * start etcd main-2: not there yet; 0 0 0
            * promote main-2: caught up; 0 1 1
            done
            ");
        }
    }
}

#[test]
fn a_sound_member_is_not_replaced_under_the_alarm() {
    let mut scene = Scene::settled(3);
    scene.world.corrupt(&name(2));
    let id = scene.look().etcd.members[&name(3)].etcd.seen().expect("it answers").member;
    scene.world.ledger.etcd.replace.insert(name(3), id);
    assert_snapshot!(scene.to_the_end(), @"
    blocked: main-2: its data differs from that of the other members
    ");
    let remove = Action::Member(MemberAction::RemoveMember { name: "main-3".to_owned(), member: id });
    let refused = safety::judge(&scene.desired, &scene.look(), &[&remove], &remove);
    assert_snapshot!(refused.expect_err("it must not"), @"
    etcd reports that a member's data is corrupt
    ");
}

#[test]
fn no_member_is_called_corrupt_where_no_majority_agrees() {
    let mut scene = Scene::settled(3);
    scene.world.corrupt(&name(1));
    scene.hide(2, Hidden::Etcd);
    assert_snapshot!(scene.to_the_end(), @"
    waits: main-2: etcd is starting
    blocked: main-1: its data differs from that of the other members
    ");
}

#[test]
fn a_corrupt_member_that_does_not_start_is_named() {
    let mut scene = Scene::settled(3);
    let machine = scene.machine(2);
    machine.process.state = raftsman_core::observed::ServiceState::Backoff;
    machine.process.restarts = 7;
    let mut observed = scene.look();
    let Some(Fact::Seen { value: raftsman_core::observed::Agent::Claimed(report), .. }) =
        observed.machines.get_mut(&name(2)).map(|m| &mut m.agent)
    else {
        panic!("an agent")
    };
    report.etcd.service.last_exit =
        Some("exit code 1: 8e9e05c52164694d found data inconsistency with peers".to_owned());
    // The others have not been compared yet.
    let next = plan(&scene.desired, &observed, scene.world.now);
    assert_snapshot!(raftsman_tests::fixtures::describe(&next), @"
    blocked: main-2: etcd does not start: its data differs from that of another member
    ");
    let hash = |hash| Hash::Known { hash, compacted: 1 };
    let hashes = |third| Hashes { revision: 1, members: [(name(1), hash(7)), (name(3), hash(third))].into() };
    // The others differ as well: it may be the one that is right.
    observed.etcd.maintenance.hashes = Some(hashes(8));
    let next = plan(&scene.desired, &observed, scene.world.now);
    assert_snapshot!(raftsman_tests::fixtures::describe(&next), @"
    blocked: main-2: etcd does not start: its data differs from that of another member
    ");
    let view = View::of(&observed);
    let id = view.listed.expect("a list").iter().find(|m| m.name == "main-2").expect("it is listed").id;
    let remove = Action::Member(MemberAction::RemoveMember { name: "main-2".to_owned(), member: id });
    let refused = safety::judge(&scene.desired, &observed, &[&remove], &remove);
    assert_snapshot!(refused.expect_err("it must not"), @"
    the members that stay differ in their data
    ");
    observed.etcd.maintenance.hashes = Some(hashes(7));
    let next = plan(&scene.desired, &observed, scene.world.now);
    assert_snapshot!(raftsman_tests::fixtures::describe(&next), @"
    blocked: main-2: etcd does not start: its data differs from that of the other members
    ");
    assert_snapshot!(next.waiting[0].next(), @"
    replace it, so that it gets all data from the others: `raftsman replace main-2`
    ");
}
