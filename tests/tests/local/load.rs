//! Clients at work while raftsman changes the cluster: nothing is lost, nothing is stale, no client sees an error.

use std::process::Command;
use std::time::Duration;

use raftsman_tests::hand::Hand;
use raftsman_tests::lab::Lab;
use raftsman_tests::load::check::Rule;
use raftsman_tests::load::{Load, LoadSettings, Target};

#[test]
fn a_change_of_the_configuration_rolls_under_load() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let load = Load::start(&lab, LoadSettings::default());
    std::thread::sleep(Duration::from_secs(1));
    lab.write_file(&format!("{}    log_level: warn\n", lab.file()));
    load.mark("apply");
    let restarts = lab.apply().iter().filter(|line| line.to_string().contains("restart_etcd")).count();
    load.mark("applied");
    assert!(restarts >= 3, "every member was restarted");
    load.await_writes(100);
    let verdict = load.finish();
    println!("{verdict}");
    verdict.assert_clean();
    assert_eq!(verdict.figures.output, (3, 3), "every member tells the same past:\n{verdict}");
    assert!(verdict.figures.rewatches > 0, "the watch's own member was restarted:\n{verdict}");
    lab.destroy();
}

/// The checks must see a real loss, not only one that a test made up.
#[test]
fn a_member_that_loses_writes_is_detected() {
    let lab = Lab::cluster(1, "3.6.15", &[]);
    lab.apply();
    let mut hand = Hand::take_over(lab);
    let (data, aside) = (hand.data(0), hand.lab.path().join("aside"));
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("cp runs");
        assert!(copied.success());
    };
    let load = Load::against(Target::of(&hand.lab, "main"), LoadSettings::default());
    load.await_writes(50);
    hand.stop(0);
    copy(&data, &aside);
    hand.start(0);
    load.await_writes(50);
    // Writes that were acknowledged since the copy are lost.
    hand.stop(0);
    std::fs::remove_dir_all(&data).expect("etcd's data");
    copy(&aside, &data);
    hand.start(0);
    load.await_writes(200);
    let verdict = load.finish();
    let found: Vec<Rule> = verdict.violations.iter().map(|violation| violation.rule).collect();
    for rule in [Rule::LostWrite, Rule::NotLinearizable, Rule::Order, Rule::StaleRead] {
        assert!(found.contains(&rule), "{rule:?} is missing:\n{verdict}");
    }
    // The violation was intended: the history is not needed.
    std::fs::remove_file(verdict.history.expect("it is kept")).expect("it was there");
}
