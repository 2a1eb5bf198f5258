//! What is running, lost, in the way or full → a refusal, and what runs goes on.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use raftsman_tests::lab::{Lab, etcd_dir, eventually};
use raftsman_tests::story::{Story, Window};

use super::{APPLY, authority, listen, with_file, write};

#[test]
fn a_running_cluster_keeps_what_it_is() {
    let mut story = Story::default();
    let lab =
        Lab::cluster(3, "3.6.15", &["ca: { peers: { brought: { certificate: good.crt, key: { file: good.key } } } }"]);
    authority(&lab, "good", (2020, 2050), true);
    authority(&lab, "other", (2020, 2050), true);
    lab.apply();
    let window = Window::of(&lab);
    let file = lab.file();
    let net = lab.address("main-1").octets()[2];
    let mut change = |what: &str, from: &str, to: &str, says: &[&str]| {
        assert!(file.contains(from), "{what}: {file}");
        with_file(&mut story, what, &lab, Some(&window), &file.replace(from, to), says);
        // Reading verbs say the same, and change nothing either.
        assert_eq!(lab.run(&["status"]).code, 0, "{what}");
        assert!(lab.run(&["plan"]).ok().stdout.contains("Nothing to do"), "{what}");
    };
    change(
        "another version",
        "version: 3.6.15",
        "version: 3.4.45",
        &["no path from 3.6.15 to 3.4.45: etcd cannot be downgraded to 3.4", "write `version: 3.6.15`"],
    );
    change(
        "another way to log in",
        "version: 3.6.15",
        "version: 3.6.15\n    auth: { mode: password }",
        &["log in by certificate", "write `auth: { mode: certificate }`"],
    );
    change(
        "another CA with the key of this one",
        "certificate: good.crt",
        "certificate: other.crt",
        &["does not belong to"],
    );
    change(
        "another CA without its key",
        "certificate: good.crt, key: { file: good.key }",
        "certificate: other.crt, key: { file: nosuch.key }",
        &["nosuch.key does not exist"],
    );
    change(
        "another network",
        "fleet: lab\n",
        "fleet: lab\nmachines: { network: 127.0.253.0/24 }\n",
        &["are in the network", "destroy the fleet"],
    );
    // What another operator of this computer must not do to it.
    let other =
        Lab::new(&format!("{}machines: {{ network: 127.0.{net}.0/24 }}\n", Lab::cluster(1, "3.6.15", &[]).file()));
    story.refuse("another fleet's network", &other, None, &APPLY, &["belongs to the fleet", "name another"]);
    assert!(!other.path().join(".raftsman").exists());
    let shared = lab.path().join(".raftsman/machines");
    other.write_file(&format!("{}machines: {{ directory: {shared:?} }}\n", Lab::cluster(1, "3.6.15", &[]).file()));
    for _ in 0..2 {
        // The first run makes the state; the second one must add nothing.
        other.run(&["plan"]);
    }
    story.refuse(
        "another fleet's machines in the directory",
        &other,
        None,
        &APPLY,
        &["is a machine of the fleet", "use another directory"],
    );
    assert_eq!(lab.run(&["status"]).code, 0);
    story.snapshot("running", 7);
}

#[test]
fn machines_and_their_data() {
    let mut story = Story::default();
    let (lab, other) = (Lab::cluster(3, "3.6.15", &[]), Lab::cluster(1, "3.6.15", &[]));
    lab.apply();
    other.apply();
    let window = Window::of(&lab);
    let window = Some(&window);
    let data = |lab: &Lab, machine: &str| lab.machine(machine).join("etcd/data");
    let aside = lab.path().join("aside");
    std::fs::create_dir(&aside).expect("a directory");
    let kept = aside.join("data");
    // The first apply starts the machine and goes no further; the second one must change nothing at all.
    let twice = |story: &mut Story, what: &str, says: &[&str]| {
        lab.run(&APPLY).failed();
        story.refuse(what, &lab, window, &APPLY, says);
        let status = lab.cluster_status();
        let state = status["members"][2]["state"].as_str().unwrap_or_default();
        assert!(!["leader", "follower"].contains(&state), "{what}: main-3 is a {state}");
    };
    let heal = || {
        // An agent that tried in vain for a while tries again after a pause, which apply does not wait for.
        eventually("the cluster is whole", || {
            (lab.run(&["apply", "--yes", "--timeout", "60s"]).code == 0).then_some(())
        });
    };

    lab.cut_power("main-3");
    std::fs::rename(data(&lab, "main-3"), &kept).expect("moved");
    twice(&mut story, "a member's data is gone", &["its data directory is empty", "bring the data of `main-3` back"]);
    lab.cut_power("main-3");
    let _ = std::fs::remove_dir(data(&lab, "main-3"));
    std::fs::create_dir_all(data(&lab, "main-3")).expect("a directory");
    std::fs::write(data(&lab, "main-3").join("holiday.jpg"), "!").expect("a file");
    twice(
        &mut story,
        "something else in the data directory",
        &["holds no member's data", "bring the data of `main-3` back"],
    );
    lab.cut_power("main-3");
    std::fs::remove_dir_all(data(&lab, "main-3")).expect("removed");
    other.cut_power("main-1");
    std::fs::rename(data(&other, "main-1"), data(&lab, "main-3")).expect("moved");
    twice(&mut story, "another cluster's data", &["belongs to cluster", "bring the right one back"]);
    lab.cut_power("main-3");
    std::fs::rename(data(&lab, "main-3"), data(&other, "main-1")).expect("moved");
    std::fs::rename(&kept, data(&lab, "main-3")).expect("moved");
    heal();

    // Ports.
    let here = lab.address("main-3");
    lab.cut_power("main-3");
    story.restless(Some("main-3"));
    for (port, what) in [(2379, "clients"), (2380, "peers")] {
        let listener = listen(here, port);
        twice(
            &mut story,
            &format!("another process on the port of the {what}"),
            &[&format!("port {port} is held by"), "or give the member another address"],
        );
        lab.cut_power("main-3");
        drop(listener);
    }
    story.restless(None);
    let listener = listen(here, 2378);
    story.refuse(
        "another process on the agent's port",
        &lab,
        window,
        &APPLY,
        &["a process listens on", "stop it, or give the member another address"],
    );
    drop(listener);
    story.restless(Some("main-3"));
    let foreign = tempfile::tempdir().expect("a directory");
    let url = |port: u16| format!("http://{here}:{port}");
    let mut etcd = Command::new(etcd_dir().join("3.6.15/etcd"))
        .args(["--data-dir", &foreign.path().to_string_lossy(), "--name", "foreign"])
        .args(["--listen-client-urls", &url(2379), "--advertise-client-urls", &url(2379)])
        .args(["--listen-peer-urls", &url(2380), "--initial-advertise-peer-urls", &url(2380)])
        .args(["--initial-cluster", &format!("foreign={}", url(2380))])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd");
    eventually("it listens", || std::net::TcpStream::connect((here, 2379)).ok());
    twice(&mut story, "a foreign etcd on the member's ports", &["is held by etcd", "stop etcd"]);
    etcd.kill().expect("killed");
    etcd.wait().expect("reaped");
    story.restless(None);
    heal();

    // The machine.
    lab.cut_power("main-3");
    let machine = aside.join("main-3");
    std::fs::rename(lab.machine("main-3"), &machine).expect("moved");
    story.refuse(
        "a lost machine",
        &lab,
        window,
        &APPLY,
        &["the machine is gone", "bring the old machine `main-3` back"],
    );
    other.cut_power("main-1");
    std::fs::rename(other.machine("main-1"), lab.machine("main-3")).expect("moved");
    story.refuse(
        "another fleet's machine in its place",
        &lab,
        window,
        &APPLY,
        &["is a machine of the fleet", "use another directory"],
    );
    std::fs::rename(lab.machine("main-3"), other.machine("main-1")).expect("moved");
    std::fs::create_dir(lab.machine("main-3")).expect("a directory");
    std::fs::write(lab.machine("main-3").join("machine.json"), "{").expect("a file");
    story.refuse("a damaged tag", &lab, window, &APPLY, &["machine.json is malformed", "nothing was changed"]);
    std::fs::remove_dir_all(lab.machine("main-3")).expect("removed");
    std::fs::rename(&machine, lab.machine("main-3")).expect("moved");
    std::fs::rename(lab.machine("main-3").join("agent/incarnation"), &kept).expect("moved");
    std::fs::rename(lab.machine("main-3").join("etcd"), aside.join("etcd")).expect("moved");
    twice(
        &mut story,
        "a rebuilt machine",
        &["another machine than the one that etcd was started on", "bring the old machine"],
    );
    lab.cut_power("main-3");
    std::fs::rename(&kept, lab.machine("main-3").join("agent/incarnation")).expect("moved");
    std::fs::remove_dir_all(lab.machine("main-3").join("etcd")).expect("removed");
    std::fs::rename(aside.join("etcd"), lab.machine("main-3").join("etcd")).expect("moved");
    heal();

    // Everything.
    for name in ["main-1", "main-2", "main-3"] {
        lab.cut_power(name);
        std::fs::rename(data(&lab, name), aside.join(name)).expect("moved");
    }
    lab.run(&APPLY).failed();
    story.refuse("all data is gone", &lab, None, &APPLY, &["have lost their data", "raftsman destroy"]);
    assert_eq!(lab.etcds(), []);
    for name in ["main-1", "main-2", "main-3"] {
        lab.cut_power(name);
        let _ = std::fs::remove_dir(data(&lab, name));
        std::fs::rename(aside.join(name), data(&lab, name)).expect("moved");
    }
    heal();
    story.snapshot("machines", 12);
}

#[test]
fn what_is_in_the_way_of_a_new_machine() {
    let mut story = Story::default();
    let lab = Lab::cluster(1, "3.6.15", &[]);
    std::fs::create_dir_all(lab.path().join("mine/main-1")).expect("a directory");
    write(&lab, "mine/main-1/thesis.txt", "!", 0o600);
    lab.write_file(&format!("{}machines: {{ directory: mine }}\n", lab.file()));
    lab.run(&APPLY).failed();
    story.refuse("a foreign directory", &lab, None, &APPLY, &["raftsman did not make it", "move it away"]);

    let busy = Lab::cluster(1, "3.6.15", &[]);
    let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 251, 1), 2380)).expect("the port is free");
    busy.write_file(&format!("{}machines: {{ network: 127.0.251.0/24 }}\n", busy.file()));
    story.refuse(
        "another process in the network",
        &busy,
        None,
        &APPLY,
        &["something listens on 127.0.251.1:2380", "name another network"],
    );
    assert!(!busy.path().join(".raftsman").exists());
    drop(listener);
    story.snapshot("in-the-way", 2);
}

#[test]
#[allow(clippy::print_stderr, reason = "the log says what was left out")]
fn a_full_disk() {
    let mut story = Story::default();
    let lab = Lab::cluster(1, "3.6.15", &[]);
    let disk = lab.path().join("disk");
    std::fs::create_dir(&disk).expect("a directory");
    let Some(small) = Disk::mount(&disk, "20m") else {
        eprintln!("SKIPPED: a full disk: mounting a tmpfs is not permitted here");
        return;
    };
    lab.write_file(&format!("{}machines: {{ directory: disk }}\n", lab.file()));
    let output = lab.run(&APPLY).failed();
    let left = std::fs::read_dir(disk.join("main-1/artifacts")).into_iter().flatten().count();
    drop(small);
    story.describe("no room for the binary", &output.all(), &["No space left on device", "free some space"]);
    assert_eq!(left, 0, "half a binary was left");

    // Room for the binary, not for etcd's log.
    let larger = Disk::mount(&disk, "85m").expect("mounted once, mounted twice");
    lab.run(&APPLY).failed();
    let output = lab.run(&APPLY).failed();
    let processes = lab.processes();
    lab.run(&["destroy", "--yes"]).ok();
    drop(larger);
    assert!(processes.iter().any(|(_, line)| line.contains("raftsman-agent")), "{processes:?}");
    assert!(!processes.iter().any(|(_, line)| line.contains("--config-file=")), "etcd was started: {processes:?}");
    story.describe(
        "no room for etcd",
        &output.all(),
        &["MiB free, etcd needs at least 64", "free space on the disk of `main-1`"],
    );
    story.snapshot("disk", 2);
}

/// A small file system, gone when the test ends, however it ends.
struct Disk<'a>(&'a Path);

impl<'a> Disk<'a> {
    fn mount(at: &'a Path, size: &str) -> Option<Self> {
        let options = format!("size={size},mode=700");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "raftsman-test"]).arg(at).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then_some(Self(at))
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        // Lazily: a failed test may have left a process on it, which the lab ends after this.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
