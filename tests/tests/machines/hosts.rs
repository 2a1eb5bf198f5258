//! The hosts of the tests themselves: they start, answer, lose power and come back.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use raftsman_tests::hosts::{Hosts, USER};
use raftsman_tests::lab::{eventually, processes};

#[test]
fn hosts_run_systemd_and_keep_their_disks() {
    let mut hosts = Hosts::up(3);
    assert_eq!(hosts.addresses().len(), 3);
    for i in 0..3 {
        assert_eq!(
            hosts.ssh(i, "id -un; sudo id -un; cat /proc/1/comm").ok().stdout,
            format!("{USER}\nroot\nsystemd\n")
        );
        eventually("the host has started", || {
            (hosts.console(i, "systemctl is-system-running").stdout.trim() == "running").then_some(())
        });
    }
    // They reach each other, and the test reaches them.
    hosts.ssh(0, "sudo ping -c 1 -W 5 10.77.0.13").ok();

    // A service of ours is there after a power cut, and what was written is on the disk.
    let unit = "[Service]\\nExecStart=/usr/bin/sleep 1000000\\n[Install]\\nWantedBy=multi-user.target\\n";
    let install = format!(
        "sudo sh -c 'printf \"{unit}\" >/etc/systemd/system/ours.service && systemctl enable --now ours && echo kept >/etc/ours'"
    );
    hosts.ssh(1, &install).ok();
    let boot = hosts.ssh(1, "cat /proc/1/stat | cut -d' ' -f22; cat /etc/machine-id").ok().stdout;
    hosts.power_cut(1);
    assert_ne!(hosts.ssh(1, "true").code, 0);
    assert_eq!(std::fs::read_to_string(hosts.disk(1, "/etc/ours")).expect("the disk"), "kept\n");
    hosts.start(1);
    let again = hosts.ssh(1, "cat /proc/1/stat | cut -d' ' -f22; cat /etc/machine-id").ok().stdout;
    assert_ne!(boot, again, "another start");
    assert_eq!(boot.lines().last(), again.lines().last(), "of the same machine");
    eventually("the service is back", || (hosts.ssh(1, "systemctl is-active ours").code == 0).then_some(()));

    // It can restart and power off by itself, too.
    hosts.ssh(1, "sudo systemctl reboot");
    eventually("it restarts", || {
        let now = hosts.ssh(1, "cat /proc/1/stat | cut -d' ' -f22; cat /etc/machine-id").stdout;
        (!now.is_empty() && now != again).then_some(())
    });
    hosts.power_off(1);

    // Another disk is another machine.
    hosts.wipe(1);
    hosts.start(1);
    hosts.ssh(1, "test ! -e /etc/ours").ok();
    assert_ne!(hosts.ssh(1, "cat /etc/machine-id").ok().stdout.lines().last(), again.lines().last());
}

#[test]
fn a_host_can_be_cut_off_and_closed() {
    let mut hosts = Hosts::up(2);
    hosts.cut(0);
    hosts.ssh(1, "sudo ping -c 1 -W 1 10.77.0.11").failed();
    hosts.console(0, "true").ok();
    hosts.heal(0);
    hosts.ssh(1, "sudo ping -c 3 -W 5 10.77.0.11").ok();

    hosts.part(0, 1);
    hosts.ssh(1, "sudo ping -c 1 -W 1 10.77.0.11").failed();
    hosts.ssh(0, "true").ok();
    hosts.unite();
    hosts.ssh(1, "sudo ping -c 3 -W 5 10.77.0.11").ok();
    // Threads of the test get them, too.
    let address = SocketAddr::from((hosts.addresses()[0], 22));
    std::thread::spawn(move || TcpStream::connect(address)).join().expect("a thread").expect("sshd");

    hosts.stop_sshd(0);
    assert!(TcpStream::connect(address).is_err());
    hosts.start_sshd(0);
    hosts.ssh(0, "true").ok();
}

#[test]
fn a_manifest_shows_what_changed() {
    let hosts = Hosts::up(1);
    let before = hosts.manifest(0);
    assert_eq!(hosts.manifest(0).since(&before), Vec::<String>::new());
    hosts.ssh(0, "sudo systemctl restart ssh; sudo touch /etc/passwd").ok();
    hosts.wait(0);
    assert_eq!(hosts.manifest(0).since(&before), Vec::<String>::new(), "touched is not changed");

    hosts.ssh(0, "sudo useradd --system etcd && echo x | sudo tee -a /etc/hosts && sudo rm /etc/issue").ok();
    let changed = hosts.manifest(0).since(&before);
    let has = |start: &str| changed.iter().any(|line| line.starts_with(start));
    assert!(has("+ user etcd:") && has("+ group etcd:"), "{changed:#?}");
    assert!(has("- file /etc/hosts ") && has("+ file /etc/hosts ") && has("- file /etc/issue "), "{changed:#?}");
}

#[test]
fn nothing_is_left_of_two_sets() {
    let own = std::fs::read_link("/proc/thread-self/ns/net").expect("a network");
    let (one, two) = (Hosts::up(1), Hosts::up(1));
    let dirs = [&one, &two].map(|hosts| hosts.ssh_config().parent().expect("a directory").to_owned());
    let groups = [&one, &two].map(|hosts| hosts.group().to_owned());
    one.console(0, "true").ok();
    two.ssh(0, "true").ok();
    drop(two);
    drop(one);
    for dir in dirs {
        assert!(!dir.exists());
        let left: Vec<_> = processes().into_iter().filter(|(_, line)| line.contains(&*dir.to_string_lossy())).collect();
        assert_eq!(left, []);
    }
    assert!(!groups.iter().any(|group| Path::new(group).exists()));
    assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").expect("a network"), own);
}
