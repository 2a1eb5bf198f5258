//! The libvirt of the tests itself: a machine boots, loses its power, and goes. And orders that no machine boots for.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use raftsman_core::spec::read;
use raftsman_providers::{Connection, LibvirtSettings, Power, Settings, connect};
use raftsman_tests::conformance::order;
use raftsman_tests::dice::Dice;
use raftsman_tests::lab::{binary, eventually, soak, text};
use raftsman_tests::libvirt::{BASE, BOOT_LIMIT, Libvirt, NETWORK, POOL};
use tokio::runtime::Runtime;
use tokio::time::timeout;

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

    // Its kernel, systemd and cloud-init carry out the boot data.
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

/// What a file with these lines below `machines` and `machines.libvirt` orders there.
fn connection(libvirt: &Libvirt, machines: &str, settings: &str) -> Connection {
    let text = format!(
        "fleet: lab\nmachines:\n  provider: libvirt\n  image: {BASE}\n  install_dependencies: false\n  {machines}\n  \
         libvirt:\n    uri: {:?}\n    {settings}\netcd:\n  main:\n    members:\n      \
         - {{ name: m1, address: 10.79.0.11 }}\n      - {{ name: m2, address: 10.79.0.12 }}\n      \
         - {{ name: m3, address: 10.79.0.13 }}\n",
        libvirt.uri()
    );
    let reading = read(&text);
    assert_eq!(reading.errors(), 0, "{}", reading.render("raftsman.yaml", &text, false));
    let machines = reading.spec.expect("a spec").machines;
    let (fleet, fleet_id, agent) = ("lab".to_owned(), "fleet-a".to_owned(), binary("raftsman-agent"));
    connect(Settings::Libvirt(LibvirtSettings { fleet, fleet_id, agent, machines }))
}

const SUBNET: &str = "subnet: 10.79.0.0/24";
/// More than any host has: such a machine is described, and does not start.
const TOO_LARGE: &str = "memory: 4096TiB";

fn refusal(runtime: &Runtime, connection: &Connection) -> String {
    let order = order("fleet-a", "m1", "10.79.0.11".parse().expect("an address"));
    runtime.block_on(connection.create(&order)).expect_err("it cannot be made").to_string()
}

#[test]
fn what_is_in_the_way_is_said_and_what_was_made_by_halves_is_known() {
    let libvirt = Libvirt::up();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let before = libvirt.everything();
    let settings = format!("pool: {POOL}\n    network: {NETWORK}");

    // Nothing is made as long as something is missing.
    for (machines, settings, words) in [
        (SUBNET, format!("pool: nowhere\n    network: {NETWORK}"), "the storage pool `nowhere`"),
        (SUBNET, format!("pool: {POOL}\n    network: nowhere"), "the network `nowhere`"),
        (SUBNET, format!("image_pool: nowhere\n    {settings}"), "the storage pool `nowhere`"),
    ] {
        let said = refusal(&runtime, &connection(&libvirt, machines, &settings));
        assert!(said.contains(words), "{said}");
        assert_eq!(libvirt.everything(), before);
    }
    libvirt.virsh(&["vol-create-as", POOL, "other.qcow2", "1M"]).ok();
    std::fs::rename(libvirt.path().join("pool").join(BASE), libvirt.path().join(BASE)).expect("the image is away");
    let said = refusal(&runtime, &connection(&libvirt, SUBNET, &settings));
    assert!(said.contains("the image `base.qcow2` is no volume of the pool `machines`"), "{said}");
    std::fs::rename(libvirt.path().join(BASE), libvirt.path().join("pool").join(BASE)).expect("the image is back");
    libvirt.virsh(&["vol-delete", "other.qcow2", "--pool", POOL]).ok();

    // A foreign machine of that name stays as it is.
    let theirs =
        "<domain type='qemu'><name>lab-m1</name><memory unit='MiB'>64</memory><os><type>hvm</type></os></domain>";
    libvirt.define("define", theirs);
    let ours = connection(&libvirt, SUBNET, &settings);
    let said = refusal(&runtime, &ours);
    assert!(said.contains("does not belong to this fleet"), "{said}");
    assert!(runtime.block_on(ours.delete("m1", None)).expect_err("it is theirs").is_foreign());
    assert!(runtime.block_on(ours.inventory()).expect("an inventory").is_empty());
    libvirt.virsh(&["undefine", "lab-m1"]).ok();
    assert_eq!(libvirt.everything(), before);

    // A network that is off, and an interface that the host has not: said when the machine starts, and the machine is
    // known as one that was not made to its end, until it is given back.
    libvirt.define("net-define", "<network><name>off</name><bridge name='off0'/></network>");
    let with_network = libvirt.everything();
    for (settings, words) in [
        (format!("pool: {POOL}\n    network: off"), "the network `off`"),
        (format!("pool: {POOL}\n    macvtap: nosuch0"), "the host has no interface `nosuch0`"),
    ] {
        let connection = connection(&libvirt, SUBNET, &settings);
        let said = refusal(&runtime, &connection);
        assert!(said.contains(words), "{said}");
        let found = runtime.block_on(connection.machine("m1")).expect("an answer").expect("a machine");
        assert!(!found.finished && found.power == Power::Stopped, "{found:?}");
        assert_eq!(runtime.block_on(connection.inventory()).expect("an inventory"), [found]);
        runtime.block_on(connection.delete("m1", None)).expect("it is given back");
        assert_eq!(libvirt.everything(), with_network);
    }
    libvirt.virsh(&["net-undefine", "off"]).ok();

    // Everything that can be said of a machine, in libvirt's words; and the address that is kept for it.
    let all = format!(
        "{settings}\n    clone: copy\n    firmware: uefi\n    macs: {{ m1: \"52:54:00:DE:E3:65\" }}\n    autostart: false\n    \
         interfaces:\n    - {{ macvtap: eth9, subnet: 10.80.0.0/24, addresses: {{ m1: 10.80.0.11, m2: 10.80.0.12, m3: 10.80.0.13 }} }}"
    );
    let large = format!("{TOO_LARGE}\n  disk: 3GiB\n  data_disk: 1GiB\n  vcpus: 3");
    let whole = connection(&libvirt, &large, &all);
    println!("{}", refusal(&runtime, &whole));
    let described = libvirt.virsh(&["dumpxml", "lab-m1"]).ok().stdout;
    for wanted in [
        "<mac address='52:54:00:de:e3:65'/>",
        "<source network='lab'",
        "<source dev='eth9' mode='bridge'/>",
        "<serial>raftsman-data</serial>",
        "firmware='efi'",
        "<vcpu placement='static'>3</vcpu>",
        "_seed.iso'/>",
    ] {
        assert!(described.contains(wanted), "{wanted} in {described}");
    }
    let made = libvirt.everything();
    let kept = "lab <host mac='52:54:00:de:e3:65' name='lab-m1' ip='10.79.0.11'/>";
    assert!(made.contains(kept), "{made:?}");
    let system =
        made.iter().find_map(|thing| thing.strip_prefix("volume machines/").filter(|it| it.ends_with("_system")));
    let system = libvirt.virsh(&["vol-dumpxml", system.expect("a disk"), "--pool", POOL]).ok().stdout;
    assert!(system.contains(&format!("<capacity unit='bytes'>{}</capacity>", 3u64 << 30)), "{system}");
    assert!(!system.contains("backingStore"), "{system}");
    runtime.block_on(whole.delete("m1", None)).expect("it is given back");
    assert_eq!(libvirt.everything(), before);

    // Its data disk alone is a machine to be completed.
    let name = "raftsman_fleet-a_m2_10.79.0.12_data";
    libvirt.virsh(&["vol-create-as", POOL, name, "1M"]).ok();
    let found = runtime.block_on(ours.machine("m2")).expect("an answer").expect("a machine");
    assert!(!found.finished && found.power == Power::Stopped && found.address.to_string() == "10.79.0.12", "{found:?}");
    runtime.block_on(ours.delete("m2", None)).expect("it is given back");
    assert_eq!(libvirt.everything(), before);
}

#[test]
fn an_order_that_is_broken_off_anywhere_is_taken_up_again() {
    let libvirt = Libvirt::up();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let before = libvirt.everything();
    let large = format!("{TOO_LARGE}\n  data_disk: 1GiB\n  vcpus: 1");
    let provider = connection(&libvirt, &large, &format!("pool: {POOL}\n    network: {NETWORK}"));
    let whole = [
        "domain lab-m1",
        "volume machines/raftsman_fleet-a_m1_10.79.0.11_data",
        "volume machines/raftsman_fleet-a_m1_10.79.0.11_seed.iso",
        "volume machines/raftsman_fleet-a_m1_10.79.0.11_system",
    ];
    let mut dice = Dice::new(11);
    for round in 0..if soak() { 100 } else { 12 } {
        // The caller is killed, and its `virsh` with it.
        for attempt in 0..2 {
            let kind = Duration::from_millis(dice.bits() % 1500);
            let mut order = order("fleet-a", "m1", "10.79.0.11".parse().expect("an address"));
            // Every run of raftsman gives a new machine another hour.
            order.boot.join_deadline = Some(Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1_000_000 + attempt));
            let _ = runtime.block_on(async { timeout(kind, provider.create(&order)).await });
        }
        // The last one gets as far as a machine that is too large for its host gets.
        let said = refusal(&runtime, &provider);
        assert!(said.contains("virsh start"), "round {round}: {said}");
        let made = libvirt.everything();
        let mut added: Vec<&str> = made.difference(&before).map(String::as_str).collect();
        assert!(added.iter().any(|thing| thing.contains("ip='10.79.0.11'")), "round {round}: {added:?}");
        added.retain(|thing| !thing.contains("ip='10.79.0.11'"));
        assert_eq!(added, whole, "round {round}");
        let kind = Duration::from_millis(dice.bits() % 600);
        let _ = runtime.block_on(async { timeout(kind, provider.delete("m1", None)).await });
        runtime.block_on(provider.delete("m1", None)).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert_eq!(libvirt.everything(), before, "round {round}");
    }
}
