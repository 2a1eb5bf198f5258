//! machines to be made → every file that they boot with, as snapshots, and judged by the programs that read them.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test hands files to the programs that read them; core itself must not"
)]

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use jiff::Timestamp;
use raftsman_core::boot::Boot;
use raftsman_core::render::cloud_init::{self, FurtherInterface, LONGEST, UserDataError};
use raftsman_core::render::delivery::{self, Deliverable, Delivered, DeliveryError};
use raftsman_core::render::first_boot::{AgentFrom, FirstBoot};
use raftsman_core::render::{chrony, fluent_bit, nftables, systemd, units};
use raftsman_core::spec::{Dns, Firewall, Machines, Name, Subnet, read};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ9q0xyTn1PLbVZ7gk2cCyZV3Vn0Vqz1oXJ0uJq9vQ3B";

/// The section `machines` of a file. The file itself is refused as long as its provider is not in this version, so that
/// it is read as one for this computer, which warns and no more.
fn machines(lines: &str) -> Machines {
    let lines: String = lines.lines().map(|line| format!("  {line}\n")).collect();
    let text = format!("fleet: shop\nmachines:\n  provider: local\n{lines}etcd: {{ main: {{ members: 3 }} }}\n");
    let reading = read(&text);
    assert_eq!(reading.errors(), 0, "{}", reading.render("raftsman.yaml", &text, false));
    reading.spec.expect("a spec").machines
}

fn boot(address: &str) -> Boot {
    Boot {
        fleet_id: "0f1e2d3c4b5a69788796a5b4c3d2e1f0".to_owned(),
        fleet: "shop".to_owned(),
        machine: "main-1".to_owned(),
        address: address.parse().expect("an address"),
        agent_port: 2378,
        fleet_ca_pem: format!(
            "-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n",
            format!("{}\n", "M".repeat(64)).repeat(10)
        ),
        join_token: Some("5e".repeat(32)),
        join_deadline: Some(Timestamp::UNIX_EPOCH),
    }
}

fn addresses(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|text| text.parse().expect("an address")).collect()
}

/// Everything that can be asked for.
fn full() -> Machines {
    machines(&format!(
        "data_disk: 20GiB
subnet: 10.77.0.0/24
gateway: 10.77.0.1
dns: {{ servers: [10.77.0.2, 10.77.0.3, 10.77.0.4], search: [example.com, etcd.example.com] }}
admin:
  user: ops
  ssh_keys:
    - {KEY} alice@example.com
    - \"{KEY}  o'brien \\\"the key\\\" äöü: #1\"
  console_password: {{ file: console }}
time:
  servers: [{{ url: time.example.com, options: [iburst, minpoll 4] }}]
  pools: [{{ url: pool.example.com, options: [iburst] }}, {{ url: \"fd00::1\" }}]
  makestep: {{ threshold: 0.5, limit: -1 }}
logs:
  etcd_tag: etcd.main
  forward: {{ host: logs.example.com, shared_key: {{ file: key }}, ca_cert: ca.pem }}
  dynamic: {{ key_prefix: /logs/, endpoints: [\"10.0.0.5:2379\"], ca_cert: ca.pem, certificate: c.pem, key: {{ file: k }} }}
firewall:
  operators_from: [10.0.0.0/8, 10.1.2.3, \"fd00:1::/32\"]
  clients_from: [10.77.0.0/16, 0.0.0.0/0, \"fd00::/8\"]
  ssh_from: [10.9.0.0/16]
  metrics_from: [10.8.0.4, 10.8.0.5]
node_exporter: true
updates: security
mirror: {{ packages: \"http://mirror.example.com/debian\", security: \"http://mirror.example.com/debian-security\" }}
"
    ))
}

fn full_members() -> Vec<IpAddr> {
    addresses(&["10.77.0.11", "10.77.0.12", "10.77.0.13", "10.77.0.14", "10.77.0.15", "10.77.0.16", "fd00:77::1"])
}

const URL: AgentFrom<'_> = AgentFrom::Url {
    url: "https://mirror.example.com/it's/raftsman-agent",
    sha256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
};

/// Runs with everything that can be asked for, and with nothing.
fn each(check: impl Fn(&str, &FirstBoot<'_>)) {
    let (minimal, full, off) =
        (machines("image: debian-12"), full(), machines("updates: off\nfirewall: false\ninstall_dependencies: false"));
    let (members, boot, boot6) = (full_members(), boot("10.77.0.11"), boot("fd00:77::1"));
    let base = FirstBoot {
        boot: &boot,
        machines: &minimal,
        members: &members[..3],
        mac: None,
        data_disk: None,
        agent: AgentFrom::InPlace,
        programs: &[],
        files_in_place: false,
    };
    check("minimal", &base);
    check("off", &FirstBoot { machines: &off, boot: &boot6, agent: AgentFrom::SeedDisk, ..base });
    let data_disk = Some("/dev/disk/by-id/virtio-raftsman-data");
    let mac = Some("52:54:00:AB:CD:EF");
    check("full", &FirstBoot { machines: &full, members: &members, mac, data_disk, agent: URL, ..base });
    check("in_place", &FirstBoot { machines: &full, data_disk, files_in_place: true, ..base });
}

/// The network configuration; with everything, of three interfaces.
fn network_config(name: &str, first: &FirstBoot<'_>) -> String {
    let backup = Subnet::parse("10.80.0.0/24").expect("a network");
    let dns = Dns { servers: addresses(&["10.80.0.1"]), search: Vec::new() };
    let fixed = FurtherInterface {
        mac: "52:54:00:AB:CD:F0",
        address: addresses(&["10.80.0.11"]).pop(),
        subnet: Some(backup),
        gateway: addresses(&["10.80.0.1"]).pop(),
        dns: Some(&dns),
    };
    let asking = FurtherInterface { mac: "52:54:00:ab:cd:f1", address: None, subnet: None, gateway: None, dns: None };
    match name {
        "full" => cloud_init::network_config_of(first, &[fixed, asking]),
        _ => cloud_init::network_config(first),
    }
}

fn snapshot(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("first_boot_snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

#[test]
fn what_machines_boot_with() {
    each(|name, first| {
        snapshot(&format!("{name}_user_data"), &cloud_init::user_data(first).expect("user data"));
        snapshot(&format!("{name}_network_config"), &network_config(name, first));
        snapshot(&format!("{name}_meta_data"), &cloud_init::meta_data(first.boot));
    });
}

fn referred<'a>() -> fluent_bit::Referred<'a> {
    fluent_bit::Referred {
        forward_ca: Some("-----BEGIN CERTIFICATE-----\nforward\n"),
        shared_key: Some("${HOME}\"quoted\" \\ $(x) `y`"),
        dynamic_ca: Some("-----BEGIN CERTIFICATE-----\ndynamic\n"),
        dynamic_certificate: Some("-----BEGIN CERTIFICATE-----\nclient\n"),
        dynamic_key: Some("-----BEGIN PRIVATE KEY-----\nclient\n"),
        dynamic_password: None,
    }
}

#[test]
fn what_is_delivered_later() {
    let machines = full();
    let logs = machines.logs.as_ref().expect("logs");
    let mut files = fluent_bit::delivered("main-1", logs, true, &referred()).expect("files");
    files.push(delivery::console_password(&Name::fixed("ops"), "it's: a \"password\"").expect("a password"));
    let described = |Delivered { what, contents }: &Delivered| {
        assert!(what.path().starts_with("/etc/raftsman/") && Deliverable::parse(what.name()) == Some(*what));
        format!("== {}: {}, then {:?}\n{contents}", what.name(), what.path(), what.then())
    };
    snapshot("delivered", &files.iter().map(described).collect::<String>());
    assert!(!format!("{files:?}").contains("password\\\""), "{files:?}");
    let short = fluent_bit::Referred { shared_key: None, ..referred() };
    let error = fluent_bit::delivered("main-1", logs, true, &short).expect_err("no key");
    assert_eq!(error.to_string(), "the shared key is missing: it is referred to by `machines.logs.forward.shared_key`");
    let error = delivery::console_password(&Name::fixed("ops"), "a\nroot:b").expect_err("two lines");
    assert_eq!(error, DeliveryError::ControlCharacter { what: "the console's password" });
}

#[test]
fn nothing_secret_is_in_user_data() {
    each(|_, first| {
        let text = cloud_init::user_data(first).expect("user data");
        // The file refers to secrets by these names; what they stand for is not even handed in.
        for secret in ["PRIVATE KEY", "shared_key", "console:", "RAFTSMAN_SHARED_KEY"] {
            assert!(!text.contains(secret), "{secret}");
        }
        let token = first.boot.join_token.as_deref().expect("a token");
        assert_eq!(text.matches(token).count(), usize::from(!first.files_in_place));
        assert!(!cloud_init::meta_data(first.boot).contains(token));
    });
}

#[test]
fn user_data_fits_into_every_cloud() {
    let machines = full();
    let (members, boot) = (full_members(), boot("10.77.0.11"));
    let mac = Some("52:54:00:AB:CD:EF");
    let data_disk = Some("/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0123456789abcdef0");
    let mut first = FirstBoot {
        boot: &boot,
        machines: &machines,
        members: &members,
        mac,
        data_disk,
        agent: URL,
        programs: &[],
        files_in_place: false,
    };
    let length = cloud_init::user_data(&first).expect("user data").len();
    assert!(length < LONGEST - 6 * 1024, "{length} bytes leave too little room for SSH keys");
    let mut many = machines.clone();
    many.admin.as_mut().expect("an admin").ssh_keys.extend(std::iter::repeat_n(KEY.to_owned(), 200));
    first.machines = &many;
    let error = cloud_init::user_data(&first).expect_err("too long");
    assert!(matches!(&error, UserDataError::TooLong { bytes, .. } if *bytes > LONGEST), "{error}");
}

#[test]
fn a_rebuilt_machine_boots_for_the_first_time_again() {
    let old = boot("10.77.0.11");
    let new = Boot { join_token: Some("6f".repeat(32)), ..old.clone() };
    assert_ne!(cloud_init::instance_id(&old), cloud_init::instance_id(&new));
    assert_eq!(cloud_init::instance_id(&old), cloud_init::instance_id(&old.clone()));
}

#[test]
fn rules_let_in_the_members_of_the_list() {
    let machines = full();
    let sources = machines.sources().expect("doors");
    let members = addresses(&["10.77.0.11"]);
    let firewall = nftables::Firewall {
        sources: &sources,
        agent_port: 2378,
        members: &members,
        metrics: false,
        etcd_metrics: false,
        balancers: &std::collections::BTreeSet::new(),
        nodes: &std::collections::BTreeSet::new(),
        front: None,
    };
    let rules = nftables::rules(&firewall);
    assert!(rules.contains("ip saddr { 10.77.0.11 } tcp dport 2380 accept"));
    assert!(!rules.contains("9100"));
}

// What follows asks the programs that read these files. They must be installed: a check that may be skipped is none.

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("raftsman-first-boot-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory");
        Self(dir)
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.0.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(&path, text).expect("a file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(program: &str, arguments: &[&str]) -> Output {
    // Administrators' programs are not on every user's PATH.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new(program).args(arguments).env("PATH", path).stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"))
}

fn accepted(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}:\n{said}");
    said
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn cloud_init_accepts_its_files() {
    let scratch = Scratch::new("cloud-init");
    each(|name, first| {
        let user_data = scratch.write(&format!("{name}/user-data"), &cloud_init::user_data(first).expect("user data"));
        let said = accepted("cloud-init", &["schema", "--config-file", shown(&user_data)]);
        assert!(said.to_lowercase().contains("valid cloud-config") && !said.contains("deprecat"), "{said}");
        let network = scratch.write(&format!("{name}/network-config"), &network_config(name, first));
        for renderer in ["networkd", "eni", "netplan"] {
            let out = scratch.0.join(format!("{name}-{renderer}"));
            accepted(
                "cloud-init",
                &[
                    "devel",
                    "net-convert",
                    "-k",
                    "yaml",
                    "-D",
                    "debian",
                    "-p",
                    shown(&network),
                    "-O",
                    renderer,
                    "-d",
                    shown(&out),
                ],
            );
        }
    });
    let gateway = std::fs::read_dir(scratch.0.join("full-networkd/etc/systemd/network")).expect("networkd's files");
    let text: String =
        gateway.map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("text")).collect();
    for wanted in [
        "Address=10.77.0.11/24",
        "Gateway=10.77.0.1",
        "DNS=10.77.0.2",
        "MACAddress=52:54:00:ab:cd:ef",
        "Address=10.80.0.11/24",
    ] {
        assert!(text.contains(wanted), "{wanted} in\n{text}");
    }
}

/// cloud-init reads YAML 1.1 with Python's reader; what it reads must be what was meant.
#[test]
fn python_reads_what_was_written() {
    let scratch = Scratch::new("python");
    let machines = full();
    let (members, boot) = (full_members(), boot("10.77.0.11"));
    let first = FirstBoot {
        boot: &boot,
        machines: &machines,
        members: &members,
        mac: None,
        data_disk: Some("/dev/vdb"),
        agent: URL,
        programs: &[],
        files_in_place: false,
    };
    let user_data = scratch.write("user-data", &cloud_init::user_data(&first).expect("user data"));
    let program = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let read: serde_json::Value =
        serde_json::from_str(&accepted("/usr/bin/python3", &["-c", program, shown(&user_data)])).expect("JSON");
    let files = first.files().expect("files");
    let written = read["write_files"].as_array().expect("files");
    assert_eq!(written.len(), files.len());
    for (file, written) in files.iter().zip(written) {
        assert_eq!(written["path"], file.path);
        assert_eq!(written["content"], file.contents);
        assert_eq!(written["permissions"], format!("{:04o}", file.mode));
    }
    let keys = &machines.admin.as_ref().expect("an admin").ssh_keys;
    assert_eq!(read["users"][0]["ssh_authorized_keys"], serde_json::json!(keys));
    assert_eq!(read["runcmd"], serde_json::json!(first.commands()));
    let described: Boot = serde_json::from_str(written[0]["content"].as_str().expect("text")).expect("boot data");
    assert!(described == boot);
}

#[test]
fn scripts_are_shell() {
    let scratch = Scratch::new("scripts");
    each(|name, first| {
        for file in first.files().expect("files").iter().filter(|file| file.contents.starts_with("#!/bin/sh")) {
            let path = scratch.write(&format!("{name}{}", file.path), &file.contents);
            accepted("sh", &["-n", shown(&path)]);
        }
    });
}

/// Loop devices belong to root.
fn as_root(script: &str) -> Output {
    match accepted("id", &["-u"]).trim() {
        "0" => run("sh", &["-c", script]),
        _ => run("sudo", &["-n", "sh", "-c", script]),
    }
}

#[test]
fn only_a_blank_disk_is_formatted() {
    let scratch = Scratch::new("data-disk");
    let (machines, boot) = (machines("data_disk: 1GiB"), boot("10.77.0.11"));
    let data_disk = Some("/dev/vdb");
    let first = FirstBoot {
        boot: &boot,
        machines: &machines,
        members: &[],
        mac: None,
        data_disk,
        agent: AgentFrom::InPlace,
        programs: &[],
        files_in_place: false,
    };
    let files = first.files().expect("files");
    let script = files.iter().find(|file| file.path.ends_with("/data-disk")).expect("a script");
    let script = scratch.write("data-disk.sh", &script.contents);
    // What is on the disk; whether it is taken; whether it is as it was afterwards.
    let cases = [
        ("blank", ":", true, false),
        ("ours", "mkfs.ext4 -q -L raftsman-data $disk", true, true),
        ("label", "mkfs.ext4 -q -L other $disk", false, true),
        ("swap", "mkswap -q -L raftsman-data $disk", false, true),
        ("table", "echo 'label: gpt' | sfdisk -q $disk", false, true),
        ("head", "printf x | dd of=$disk bs=1 seek=60000000 conv=notrunc status=none", false, true),
        ("tail", "printf x | dd of=$disk bs=1 seek=83000000 conv=notrunc status=none", false, true),
    ];
    for (name, fill, taken, kept) in cases {
        let disk = scratch.write(name, "");
        let disk = shown(&disk);
        accepted("sh", &["-ec", &format!("disk={disk}; truncate -s 80M $disk; {fill}")]);
        let sum = || accepted("sha256sum", &[disk]);
        let before = sum();
        let output = as_root(&format!(
            "set -eu; loop=$(losetup --find --show {disk}); trap 'losetup -d $loop' EXIT; sh {} $loop",
            shown(&script)
        ));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.success(), sum() == before), (taken, kept), "{name}: {said}");
        assert_eq!(said.contains("left alone"), !taken, "{name}: {said}");
        if taken {
            assert!(accepted("blkid", &["-p", "-o", "export", disk]).contains("LABEL=raftsman-data"), "{name}");
        }
    }
}

#[test]
fn nftables_accepts_the_firewall() {
    let scratch = Scratch::new("nftables");
    each(|name, first| {
        let Some(rules) = first.firewall() else { return };
        let path = scratch.write(&format!("{name}.nft"), &rules);
        // Loaded twice, because it is loaded again when members change; in a network of its own.
        let script = format!("nft -f {0} && nft -f {0} && nft -j list ruleset", shown(&path));
        let listed = accepted("unshare", &["--map-root-user", "--net", "sh", "-ec", &script]);
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        let rules =
            listed["nftables"].as_array().expect("rules").iter().filter(|item| item["rule"].is_object()).count();
        assert!(rules >= 8, "{listed}");
    });
}

/// Two network namespaces with a veth pair between them: a machine behind its rules, and all clients. `$1` are the
/// rules, what follows are the clients' addresses. Prints which client reaches which port.
const WIRE: &str = r#"
mount -t tmpfs none /run
ip netns add machine
ip link add outside type veth peer name inside netns machine
ip link set lo up; ip link set outside up
ip -n machine link set lo up; ip -n machine link set inside up
ip -n machine address add 10.77.0.11/32 dev inside
ip -n machine address add fd00:77::11/128 dev inside nodad
ip -n machine route add default dev inside
ip -n machine -6 route add default dev inside
rules=$1; shift
for address; do
  case $address in *:*) ip address add $address/128 dev outside nodad ;; *) ip address add $address/32 dev outside ;; esac
done
ip route add 10.77.0.11 dev outside
ip -6 route add fd00:77::11 dev outside
ip netns exec machine nft -f "$rules"
ip netns exec machine /usr/bin/python3 -c "$SERVE" &
server=$!
/usr/bin/python3 -c "$KNOCK" "$@"
kill $server
"#;

const SERVE: &str = r#"
import socket, threading, time
def serve(port):
    with socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64) as door:
        while True: door.accept()[0].close()
for port in (22, 2378, 2379, 2380, 9100, 8080): threading.Thread(target=serve, args=(port,), daemon=True).start()
time.sleep(600)
"#;

/// Refusals are answers that the rules let through, so that a server that is not up yet is tried again.
const KNOCK: &str = r#"
import concurrent.futures, json, socket, sys, time
def knock(pair):
    source, port = pair
    target = "fd00:77::11" if ":" in source else "10.77.0.11"
    end = time.monotonic() + 8
    while time.monotonic() < end:
        try:
            socket.create_connection((target, port), timeout=8, source_address=(source, 0)).close()
            return True
        except ConnectionRefusedError: time.sleep(0.1)
        except TimeoutError: return False
    return "refused"
pairs = [(source, port) for source in sys.argv[1:] for port in (22, 2378, 2379, 2380, 9100, 8080)]
with concurrent.futures.ThreadPoolExecutor(len(pairs)) as pool: answers = list(pool.map(knock, pairs))
found = {source: [] for source in sys.argv[1:]}
for (source, port), answer in zip(pairs, answers):
    if answer: found[source].append(port if answer is True else answer)
print(json.dumps(found))
"#;

#[test]
fn only_listed_networks_reach_a_port() {
    let scratch = Scratch::new("wire");
    let mut machines = full();
    let Some(Firewall::Sources(sources)) = &mut machines.firewall else { panic!("doors") };
    sources.clients_from = Some(vec![Subnet::parse("10.0.0.0/8").expect("a network")]);
    let (members, boot) = (full_members(), boot("10.77.0.11"));
    let first = FirstBoot {
        boot: &boot,
        machines: &machines,
        members: &members,
        mac: None,
        data_disk: None,
        agent: URL,
        programs: &[],
        files_in_place: false,
    };
    let rules = scratch.write("firewall.nft", &first.firewall().expect("rules"));
    let sources = ["10.77.0.12", "10.9.0.1", "10.8.0.4", "192.0.2.1", "fd00:77::1", "fd00:1::5", "2001:db8::1"];
    let script = format!("export SERVE='{SERVE}' KNOCK='{KNOCK}'\n{WIRE}");
    let mut arguments = vec!["--map-root-user", "--net", "--mount", "sh", "-ec", &script, "wire", shown(&rules)];
    arguments.extend(sources);
    let found: serde_json::Value = serde_json::from_str(&accepted("unshare", &arguments)).expect("JSON");
    let wanted = serde_json::json!({
        "10.77.0.12": [2378, 2379, 2380],
        "10.9.0.1": [22, 2378, 2379],
        "10.8.0.4": [2378, 2379, 9100],
        "192.0.2.1": [],
        "fd00:77::1": [2379, 2380],
        "fd00:1::5": [2378],
        "2001:db8::1": [],
    });
    assert_eq!(found, wanted);
}

#[test]
fn chrony_accepts_its_file() {
    let scratch = Scratch::new("chrony");
    let text = chrony::config(full().time.as_ref().expect("time"));
    let path = scratch.write("chrony.conf", &text);
    let said = accepted("chronyd", &["-p", "-f", shown(&path)]);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(said.lines().any(|printed| printed.trim() == line), "{line} in\n{said}");
    }
}

#[test]
fn apt_accepts_its_files() {
    let scratch = Scratch::new("apt");
    let (machines, boot) = (full(), boot("10.77.0.11"));
    let first = FirstBoot {
        boot: &boot,
        machines: &machines,
        members: &[],
        mac: None,
        data_disk: None,
        agent: AgentFrom::InPlace,
        programs: &[],
        files_in_place: false,
    };
    for file in first.files().expect("files").iter().filter(|file| file.path.starts_with("/etc/apt/")) {
        let path = scratch.write(&file.path, &file.contents);
        let said = accepted("apt-config", &["-c", shown(&path), "dump"]);
        let wanted = if file.path.contains("20auto") {
            "APT::Periodic::Unattended-Upgrade \"1\";"
        } else {
            "Automatic-Reboot \"false\";"
        };
        assert!(said.contains(wanted), "{said}");
    }
}

/// A root directory in which every program that the units name is there.
fn laid_out(scratch: &Scratch) -> Vec<String> {
    for name in ["sysinit", "network-online", "network-pre", "local-fs", "multi-user", "shutdown", "basic", "umount"] {
        scratch.write(
            &format!("usr/lib/systemd/system/{name}.target"),
            "[Unit]\nDescription=a target\nDefaultDependencies=no\n",
        );
    }
    for program in [
        "bin/sh",
        "usr/local/lib/raftsman/raftsman-agent",
        "var/lib/raftsman/etcd/current/etcd",
        "usr/sbin/haproxy",
        "usr/sbin/keepalived",
        "usr/bin/python3",
        "usr/sbin/nft",
        "usr/sbin/chpasswd",
        "bin/rm",
        "bin/kill",
    ] {
        let path = scratch.write(program, "#!/bin/sh\n");
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permissions");
    }
    units::ALL.iter().map(|unit| shown(&scratch.write(&unit.file().path, unit.text)).to_owned()).collect()
}

#[test]
fn systemd_accepts_its_units() {
    let scratch = Scratch::new("systemd");
    let units = laid_out(&scratch);
    let root = format!("--root={}", shown(&scratch.0));
    for unit in units {
        let said = accepted("systemd-analyze", &["verify", "--man=no", "--recursive-errors=no", &root, &unit]);
        assert_eq!(said, "", "{unit}");
    }
}

#[test]
fn units_are_enabled_from_outside_as_systemd_does_it() {
    each(|name, first| {
        let scratch = Scratch::new(&format!("links-{name}"));
        laid_out(&scratch);
        let root = format!("--root={}", shown(&scratch.0));
        let links = first.links();
        assert!(links.len() > usize::from(first.data_disk.is_some()), "{links:?}");
        for (link, target) in &links {
            let unit = Path::new(target).file_name().and_then(|name| name.to_str()).expect("a unit");
            accepted("systemctl", &[&root, "enable", unit]);
            let made = std::fs::read_link(scratch.0.join(link.trim_start_matches('/'))).expect("a link of systemctl's");
            assert_eq!(made.to_str(), Some(target.as_str()));
        }
    });
}

#[test]
fn long_running_units_are_confined() {
    let scratch = Scratch::new("security");
    laid_out(&scratch);
    let root = format!("--root={}", shown(&scratch.0));
    // systemd's own measure, 100 for no restriction at all. The agent is root.
    let units = [
        ("raftsman-agent.service", systemd::agent_unit(), "35"),
        ("raftsman-etcd.service", systemd::etcd_unit(), "20"),
        ("raftsman-haproxy.service", systemd::haproxy_unit(), "20"),
        ("raftsman-keepalived.service", systemd::keepalived_unit(), "40"),
        ("raftsman-patroni.service", systemd::patroni_unit(), "25"),
    ];
    for (name, text, most) in units {
        let path = scratch.write(&format!("etc/systemd/system/{name}"), &text);
        let said = accepted("systemd-analyze", &["verify", "--man=no", "--recursive-errors=no", &root, shown(&path)]);
        assert_eq!(said, "", "{name}");
        accepted("systemd-analyze", &["security", "--no-pager", "--offline=true", "--threshold", most, shown(&path)]);
    }
}
