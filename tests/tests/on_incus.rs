//! An Incus server and a file → machines, a cluster on them, and nothing again.

use raftsman_tests::incus::{IMAGE, Incus, NETWORK, SUBNET};
use raftsman_tests::lab::{Lab, etcd_dir};

fn file(incus: &Incus, members: usize) -> String {
    format!(
        "fleet: lab\nmachines:\n  provider: incus\n  image: {IMAGE}\n  subnet: {SUBNET}\n  install_dependencies: false\n  \
         data_disk: 1GiB\n  incus: {{ server: {:?}, network: {NETWORK}, pool: default }}\netcd:\n  main:\n    \
         version: 3.6.15\n    source: {{ directory: {:?} }}\n    members: {members}\n",
        incus.socket(),
        etcd_dir()
    )
}

/// What the machines themselves say, for a test that fails.
struct Journals<'a>(&'a Incus);

impl Drop for Journals<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = self.0.exec(
                "main-1",
                "cloud-init status --long; ip -br addr; systemctl --failed; journalctl -b --no-pager | tail -40",
            );
            println!("{}", output.all());
        }
    }
}

#[test]
fn machines_become_a_cluster_and_nothing_again() {
    let incus = Incus::up();
    let before = incus.inventory();
    let lab = Lab::new(&file(&incus, 3));
    let _journals = Journals(&incus);
    let begun = std::time::Instant::now();
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    println!("three members: {:?}", begun.elapsed());
    lab.settled();
    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(incus.inventory(), before);
}
