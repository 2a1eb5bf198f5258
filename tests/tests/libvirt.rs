//! The libvirt of the tests itself: a machine boots, loses its power, and goes.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use raftsman_tests::lab::{eventually, text};
use raftsman_tests::libvirt::{BASE, BOOT_LIMIT, Libvirt, NETWORK, POOL};

/// A domain with an overlay of the base and a seed that says a word on the serial line.
fn domain(libvirt: &Libvirt) -> String {
    format!(
        "<domain type='qemu'><name>m1</name><memory unit='MiB'>512</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' machine='q35'>hvm</type><boot dev='hd'/></os><features><acpi/><apic/></features>\
         <cpu mode='custom' match='exact' check='none'><model fallback='allow'>qemu64</model></cpu>\
         <devices>\
         <disk type='volume' device='disk'><driver name='qemu' type='qcow2' cache='unsafe'/>\
         <source pool='{POOL}' volume='m1.qcow2'/><target dev='vda' bus='virtio'/></disk>\
         <disk type='volume' device='disk'><driver name='qemu' type='raw'/><source pool='{POOL}' volume='m1.seed'/>\
         <target dev='vdb' bus='virtio'/><readonly/></disk>\
         <interface type='network'><source network='{NETWORK}'/><model type='virtio'/><rom enabled='no'/></interface>\
         <serial type='file'><source path='{}'/></serial><controller type='usb' model='none'/><memballoon model='none'/>\
         </devices></domain>",
        libvirt.console("m1").display()
    )
}

const SEED: &str = r#"cd "$1"
printf 'instance-id: one\nlocal-hostname: m1\n' >meta-data
printf 'version: 2\nethernets:\n  eth0: {match: {name: "e*"}, addresses: [10.79.0.11/24]}\n' >network-config
printf '#cloud-config\nruncmd:\n- echo "$(hostname) is up" >/dev/ttyS0\n' >user-data
truncate -s 4M m1.seed
mkfs.vfat -n cidata m1.seed
mcopy -i m1.seed meta-data network-config user-data ::
"#;

#[test]
fn a_machine_comes_and_goes() {
    let libvirt = Libvirt::up();
    let before = libvirt.everything();
    assert_eq!(
        before.iter().map(String::as_str).collect::<Vec<_>>(),
        ["network lab", "pool machines", "volume machines/base.qcow2"]
    );
    let overlay = ["--format", "qcow2", "--backing-vol", BASE, "--backing-vol-format", "qcow2"];
    libvirt.virsh(&[&["vol-create-as", POOL, "m1.qcow2", "2G"][..], &overlay].concat()).ok();
    text(Command::new("bash").args(["-ec", SEED, "seed"]).arg(libvirt.path()).output().expect("bash runs")).ok();
    libvirt.virsh(&["vol-create-as", POOL, "m1.seed", "4M"]).ok();
    let seed = libvirt.path().join("m1.seed").display().to_string();
    libvirt.virsh(&["vol-upload", "m1.seed", &seed, "--pool", POOL]).ok();
    libvirt.define("define", &domain(&libvirt));
    let made = ["domain m1", "volume machines/m1.qcow2", "volume machines/m1.seed"].map(str::to_owned);
    assert!(libvirt.everything().is_superset(&made.into()));
    libvirt.virsh(&["start", "m1"]).ok();

    // Its kernel, systemd and cloud-init: what it was told, it does.
    let begun = Instant::now();
    let said = || std::fs::read_to_string(libvirt.console("m1")).unwrap_or_default();
    while !said().contains("m1 is up") {
        assert!(begun.elapsed() < BOOT_LIMIT, "it does not boot: {}", said());
        std::thread::sleep(Duration::from_millis(200));
    }
    eventually("it is at its address", || TcpStream::connect("10.79.0.11:22").ok());
    libvirt.power_cut("m1");
    assert_eq!(libvirt.virsh(&["domstate", "m1"]).ok().stdout.trim(), "shut off");
    libvirt.virsh(&["undefine", "m1"]).ok();
    for volume in ["m1.qcow2", "m1.seed"] {
        libvirt.virsh(&["vol-delete", volume, "--pool", POOL]).ok();
    }
    assert_eq!(libvirt.everything(), before);

    let (dir, group) = (libvirt.path().to_owned(), libvirt.group().to_owned());
    drop(libvirt);
    assert!(!dir.exists() && !group.exists());
}
