//! libvirt, and an image that nothing of ours is in → a cluster of virtual machines, kept alive, and gone without a trace.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use raftsman_tests::lab::{Lab, etcd_dir, eventually, soak};
use raftsman_tests::libvirt::{BASE, Libvirt, NETWORK, POOL, SUBNET};

/// Machines without KVM: everything takes ten times as long, etcd's heartbeat included.
fn file(libvirt: &Libvirt, network: &str, interfaces: &str, members: &str) -> String {
    format!(
        "fleet: lab\nmachines:\n  provider: libvirt\n  image: {BASE}\n  vcpus: 1\n  memory: 512MiB\n  data_disk: 1GiB\n  \
         install_dependencies: false\n  {network}\n  libvirt: {{ uri: {:?}, pool: {POOL}, network: {NETWORK}{interfaces} }}\n\
         etcd:\n  main:\n    version: 3.6.15\n    source: {{ directory: {:?} }}\n    members: {members}\n    \
         timers: {{ heartbeat: 500ms, election: 5s }}\n",
        libvirt.uri(),
        etcd_dir()
    )
}

/// What a test waits for is a figure, too.
#[allow(clippy::print_stdout, reason = "measurements go to the log")]
fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    println!("{what}: {:.0?}", begun.elapsed());
    done
}

#[track_caller]
fn apply(lab: &Lab) {
    lab.run(&["apply", "--yes", "--timeout", "10m"]).ok();
}

/// The members as etcd lists them: name and id.
fn members(lab: &Lab) -> Vec<(String, String)> {
    let list = lab.etcdctl(&["member", "list", "--hex", "--write-out=simple"]).ok().stdout;
    let member = |line: &str| match line.split(", ").collect::<Vec<_>>()[..] {
        [id, "started", name, ..] => Some((name.to_owned(), id.to_owned())),
        _ => None,
    };
    let mut all: Vec<(String, String)> = list.lines().filter_map(member).collect();
    all.sort();
    all
}

/// An operator deletes a machine's domain, and those of its disks whose names end so.
fn take(libvirt: &Libvirt, machine: &str, disks: &[&str]) {
    libvirt.power_cut(machine);
    libvirt.virsh(&["undefine", &libvirt.called(machine)]).ok();
    let of_machine = format!("_{machine}_");
    for volume in libvirt.everything().iter().filter_map(|thing| thing.strip_prefix("volume machines/")) {
        if volume.contains(&of_machine) && disks.iter().any(|disk| volume.ends_with(disk)) {
            libvirt.virsh(&["vol-delete", volume, "--pool", POOL]).ok();
        }
    }
}

#[test]
fn a_machine_whose_domain_is_lost_comes_back_around_its_data_disk() {
    let libvirt = Libvirt::up();
    let before = libvirt.everything();
    // It asks by DHCP, and libvirt's network keeps the address for it; a second interface has an address of its own.
    let backup = ", interfaces: [{ network: lab, subnet: 10.80.0.0/24, addresses: { main-1: 10.80.0.11 } }]";
    let lab = Lab::new(&file(&libvirt, "", backup, "[{ name: main-1, address: 10.79.0.11 }]"));
    timed("a machine with a healthy etcd", || apply(&lab));
    lab.settled();
    libvirt.also_at("10.80.0.1/24");
    eventually("it is reached at its second interface", || TcpStream::connect("10.80.0.11:22").ok());
    let etcd = "10.80.0.11:2379".parse().expect("an address");
    TcpStream::connect_timeout(&etcd, Duration::from_secs(5)).expect_err("etcd is on the first only");
    lab.etcdctl(&["put", "kept", "all the time"]).ok();
    let first = members(&lab);

    take(&libvirt, "main-1", &["_system", "_seed.iso"]);
    timed("a machine around its data disk", || apply(&lab));
    lab.settled();
    assert_eq!(members(&lab), first);
    assert!(lab.etcdctl(&["get", "kept"]).ok().stdout.contains("all the time"));

    timed("destroy", || lab.run(&["destroy", "--yes"]).ok());
    assert_eq!(libvirt.everything(), before);
}

/// Nine boots without KVM: more than ten minutes.
#[test]
fn three_machines_become_a_cluster_that_survives_losses_and_nothing_again() {
    if !soak() {
        return;
    }
    let libvirt = Libvirt::up();
    let before = libvirt.everything();
    let lab = Lab::new(&file(&libvirt, &format!("subnet: {SUBNET}"), "", "3"));
    timed("three machines with a healthy etcd", || apply(&lab));
    lab.settled();
    lab.etcdctl(&["put", "kept", "all the time"]).ok();
    let first = members(&lab);
    assert_eq!(first.len(), 3, "{first:?}");

    take(&libvirt, "main-2", &["_system", "_seed.iso"]);
    timed("a machine around its data disk", || apply(&lab));
    lab.settled();
    assert_eq!(members(&lab), first);

    libvirt.power_cut("main-1");
    timed("a machine switched on", || apply(&lab));
    lab.settled();
    assert_eq!(members(&lab), first);

    // All of a machine is gone: it is given up, and a new member fetches all data from the others.
    take(&libvirt, "main-3", &["_system", "_seed.iso", "_data"]);
    timed("a member replaced", || lab.run(&["replace", "main-3", "--yes", "--timeout", "10m"]).ok());
    lab.settled();
    let second = members(&lab);
    assert_eq!(second[..2], first[..2]);
    assert_ne!(second[2].1, first[2].1);
    assert!(lab.etcdctl(&["get", "kept"]).ok().stdout.contains("all the time"));

    // Another size: made anew one at a time around their data disks, and the same members come back.
    lab.write_file(&lab.file().replace("memory: 512MiB", "memory: 640MiB"));
    timed("three machines of another size", || apply(&lab));
    lab.settled();
    assert_eq!(members(&lab), second);
    let sizes =
        ["main-1", "main-2", "main-3"].map(|machine| libvirt.virsh(&["dominfo", &libvirt.called(machine)]).ok().stdout);
    assert!(sizes.iter().all(|output| output.contains("655360 KiB")), "{sizes:?}");
    lab.nothing_to_do();

    timed("destroy", || lab.run(&["destroy", "--yes"]).ok());
    assert_eq!(libvirt.everything(), before);
}

/// Four boots without KVM, three of them at the same time: some ten minutes.
#[test]
fn a_cluster_on_three_kvm_hosts_survives_the_loss_of_one() {
    if !soak() {
        return;
    }
    let libvirt = Libvirt::hosts(3);
    let before: Vec<_> = (0..3).map(|number| libvirt.host(number).everything()).collect();
    let zone =
        |number: usize| format!("    kvm{}: {{ libvirt: {{ uri: {:?} }} }}\n", number + 1, libvirt.host(number).uri());
    let zones: Vec<String> = (0..3).map(zone).collect();
    let text = |zones: String| {
        format!(
            "fleet: lab\nmachines:\n  provider: libvirt\n  image: {BASE}\n  vcpus: 1\n  memory: 512MiB\n  \
             data_disk: 1GiB\n  install_dependencies: false\n  subnet: {SUBNET}\n  \
             libvirt: {{ pool: {POOL}, network: {NETWORK} }}\n  zones:\n{zones}etcd:\n  main:\n    version: 3.6.15\n    \
             source: {{ directory: {:?} }}\n    members: 3\n    timers: {{ heartbeat: 500ms, election: 5s }}\n",
            etcd_dir()
        )
    };
    let lab = Lab::new(&text(zones.concat()));
    timed("three members on three hosts", || apply(&lab));
    lab.settled();
    let on =
        |number: usize, machine: &str| libvirt.host(number).everything().contains(&format!("domain lab-{machine}"));
    assert!(on(0, "main-1") && on(1, "main-2") && on(2, "main-3"));
    let healthy = lab.run(&["status"]).ok().stdout;
    assert!(healthy.contains("can lose 1 member or 1 zone"), "{healthy}");
    lab.etcdctl(&["put", "kept", "all the time"]).ok();
    let first = members(&lab);

    // The zone is named, and what can be lost; the other two go on.
    libvirt.lose(1);
    let status = timed("status with a host lost", || lab.run(&["status"]));
    assert_eq!(status.code, 2, "{status:?}");
    assert!(
        status.stdout.contains("can lose no member") && status.stdout.contains("down: zone kvm2"),
        "{}",
        status.stdout
    );
    lab.etcdctl(&["put", "kept", "also then"]).ok();

    // It is gone for good: the file says so, and the member is made in another zone.
    lab.write_file(&text(zones[0].clone() + &zones[2]));
    timed("a member replaced in another zone", || {
        lab.run(&["replace", "main-2", "--yes", "--timeout", "10m"]).ok();
    });
    lab.settled();
    assert!(on(0, "main-2") || on(2, "main-2"));
    let second = members(&lab);
    assert_eq!((&second[0], &second[2]), (&first[0], &first[2]));
    assert_ne!(second[1].1, first[1].1);
    assert!(lab.etcdctl(&["get", "kept"]).ok().stdout.contains("also then"));

    timed("destroy", || lab.run(&["destroy", "--yes"]).ok());
    assert_eq!(libvirt.host(0).everything(), before[0]);
    assert_eq!(libvirt.host(2).everything(), before[2]);
}
