//! Clients at work while raftsman changes the cluster: nothing is lost, nothing is stale, nobody sees an error.

use std::time::Duration;

use raftsman_tests::lab::Lab;
use raftsman_tests::load::{Load, LoadSettings};

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
    assert_eq!(verdict.figures.told, (3, 3), "every member tells the same past:\n{verdict}");
    assert!(verdict.figures.rewatches > 0, "the watch's own member was restarted:\n{verdict}");
    lab.destroy();
}
