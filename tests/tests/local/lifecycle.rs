//! Real etcd, from nothing to a healthy cluster and back to nothing.

use raftsman_tests::lab::{Lab, eventually, kill};
use rustix::process::Signal;

#[test]
fn three_members_with_certificates() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let status = lab.settled();
    let cluster = &status["clusters"][0];
    assert_eq!(cluster["settled"], true);
    assert_eq!(cluster["auth"], true);
    assert_eq!(cluster["tolerance"]["can_lose"], 1);
    assert_eq!(lab.etcdctl(&["put", "greeting", "hello"]).ok().stdout.trim(), "OK");
    assert_eq!(lab.etcdctl(&["get", "greeting", "--print-value-only"]).ok().stdout.trim(), "hello");

    // Re-planning changes nothing.
    lab.nothing_to_do();

    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(lab.processes(), []);
    assert!(!lab.path().join(".raftsman").exists());
}

/// Ends a machine's agent and etcd, in this order: the agent would start etcd again.
fn end(lab: &Lab, machine: &str) {
    for processes in [lab.agents(), lab.etcds()] {
        let pid = processes.into_iter().find(|(name, _)| name == machine).expect("it runs").1;
        kill(pid, Signal::KILL);
        eventually("it is gone", || (!lab.processes().iter().any(|(p, _)| *p == pid)).then_some(()));
    }
}

#[test]
fn a_machine_that_is_lost_is_not_made_anew() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    lab.etcdctl(&["put", "before", "the loss"]).ok();
    end(&lab, "main-2");
    std::fs::remove_dir_all(lab.machine("main-2")).expect("it is ours to remove");

    // An empty member under the old id would have lost the votes that it cast.
    let refused = lab.run(&["apply", "--yes", "--timeout", "30s"]).failed();
    assert!(refused.stdout.contains("main-2: the machine is gone, and a member's data with it"), "{}", refused.all());
    assert!(!lab.machine("main-2").exists());
    assert_eq!((lab.agents().len(), lab.etcds().len()), (2, 2));
    // The others go on.
    lab.etcdctl(&["put", "after", "the loss"]).ok();
    assert_eq!(lab.etcdctl(&["get", "before", "--print-value-only"]).ok().stdout.trim(), "the loss");
    lab.destroy();
}

#[test]
fn a_member_whose_data_was_wiped_does_not_come_back_empty() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    end(&lab, "main-2");
    std::fs::remove_dir_all(lab.machine("main-2").join("etcd/data")).expect("it is ours to remove");

    let refused = lab.run(&["apply", "--yes", "--timeout", "30s"]).failed();
    assert!(refused.stdout.contains("main-2: etcd ran here and its data directory is empty"), "{}", refused.all());
    assert_eq!((lab.agents().len(), lab.etcds().len()), (3, 2), "its agent is there and lets etcd be");
    lab.etcdctl(&["put", "the others", "go on"]).ok();
    lab.destroy();
}

#[test]
fn data_that_is_put_back_is_taken_up_again() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let id = lab.cluster_status()["id"].clone();
    end(&lab, "main-2");
    let (data, aside) = (lab.machine("main-2").join("etcd/data"), lab.path().join("aside"));
    std::fs::rename(&data, &aside).expect("aside");
    lab.run(&["apply", "--yes", "--timeout", "30s"]).failed();
    let _ = std::fs::remove_dir_all(&data);
    std::fs::rename(&aside, &data).expect("back");
    lab.apply();
    let cluster = lab.cluster_status();
    assert_eq!((&cluster["settled"], &cluster["id"]), (&true.into(), &id), "{cluster}");
    lab.destroy();
}
