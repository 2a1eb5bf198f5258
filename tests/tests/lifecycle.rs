//! Real etcd, from nothing to a healthy cluster and back to nothing.

use raftsman_tests::lab::Lab;

#[test]
fn three_members_with_certificates() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let status = lab.run(&["status", "--json"]).ok().json();
    let cluster = &status["clusters"][0];
    assert_eq!(cluster["settled"], true);
    assert_eq!(cluster["auth"], true);
    assert_eq!(cluster["tolerance"]["can_lose"], 1);
    assert_eq!(lab.etcdctl(&["put", "greeting", "hello"]).ok().stdout.trim(), "OK");
    assert_eq!(lab.etcdctl(&["get", "greeting", "--print-value-only"]).ok().stdout.trim(), "hello");

    // Re-planning changes nothing.
    assert_eq!(lab.run(&["plan", "--detailed-exitcode"]).ok().stdout.contains("Nothing to do"), true);

    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(lab.processes(), []);
    assert!(!lab.path().join(".raftsman").exists());
}
