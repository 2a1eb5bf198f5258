//! A machine with what it boots with → systemd and cloud-init do with it what was meant.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use raftsman_core::render::cloud_init;
use raftsman_core::render::delivery::{self, TakesEffect};
use raftsman_core::render::first_boot::{AgentFrom, FirstBoot};
use raftsman_core::render::nftables::{self, Firewall};
use raftsman_core::render::systemd::AGENT_PROGRAM;
use raftsman_core::spec::{Machines, Name, read};
use raftsman_tests::conformance::order;
use raftsman_tests::files::write_private;
use raftsman_tests::hosts::Hosts;
use raftsman_tests::lab::{binary, eventually};

/// The test's own address in the hosts' network.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
/// A port of the host that the firewall does not open.
const UNOPENED: u16 = 8080;

fn machines(key: &str) -> Machines {
    // Read as a file for this computer, which ignores all of it.
    let text = format!(
        "fleet: shop\nmachines:\n  admin: {{ user: ops, ssh_keys: [\"{key}\"], console_password: {{ env: CONSOLE }} }}\n  \
         time: {{ servers: [{{ url: 10.77.0.1, options: [iburst] }}] }}\n  node_exporter: true\n  updates: off\n  \
         install_dependencies: false\n  firewall: {{ metrics_from: [10.77.0.99] }}\netcd: {{ main: {{ members: 3 }} }}\n"
    );
    let reading = read(&text);
    assert_eq!(reading.errors(), 0, "{}", reading.render("raftsman.yaml", &text, false));
    reading.spec.expect("a spec").machines
}

fn open(address: Ipv4Addr, port: u16) -> bool {
    TcpStream::connect_timeout(&SocketAddr::from((address, port)), Duration::from_secs(3)).is_ok()
}

/// Logs in as this user. The machine has generated its host keys, which are in no `known_hosts` yet.
fn login(hosts: &Hosts, user: &str, command: &str) -> Output {
    let mut ssh = Command::new("ssh");
    ssh.args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-i"]).arg(hosts.key());
    ssh.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]);
    ssh.arg(format!("{user}@{}", hosts.addresses()[0])).arg(command).stdin(Stdio::null());
    ssh.output().expect("ssh: install openssh-client")
}

/// Puts a file where an agent puts it.
fn put(hosts: &Hosts, path: &str, contents: &str) {
    write_private(hosts.disk(0, path), contents);
}

#[test]
fn a_machine_boots_for_the_first_time() {
    let mut hosts = Hosts::up(1);
    let address = hosts.addresses()[0];
    let key = std::fs::read_to_string(hosts.key().with_extension("pub")).expect("a key");
    let machines = machines(key.trim());
    let boot = order("fleet-a", "main-1", address.into()).boot;
    let first = FirstBoot {
        boot: &boot,
        machines: &machines,
        members: &[address.into()],
        mac: None,
        data_disk: None,
        agent: AgentFrom::InPlace,
        programs: &[],
        files_in_place: false,
    };

    // Off, and on again as a machine that was just made.
    hosts.power_off(0);
    let seed = hosts.disk(0, "/var/lib/cloud/seed/nocloud");
    std::fs::create_dir_all(&seed).expect("the disk");
    std::fs::write(seed.join("user-data"), cloud_init::user_data(&first).expect("user data")).expect("the disk");
    std::fs::write(seed.join("meta-data"), cloud_init::meta_data(&boot)).expect("the disk");
    let network = hosts.disk(0, "/etc/cloud/cloud.cfg.d/99-network.cfg");
    std::fs::write(network, "network: { config: disabled }\n").expect("the disk");
    std::fs::remove_file(hosts.disk(0, "/etc/cloud/cloud-init.disabled")).expect("the disk");
    hosts.start(0);
    let done = hosts.console(0, "cloud-init status --wait --long");
    assert!(done.stdout.contains("status: done"), "{}{}", done.stdout, done.stderr);
    assert!(!done.stdout.contains("errors:\n\t- "), "{}", done.stdout);

    // The administrator gets in, and becomes root.
    let login = login(&hosts, "ops", "hostname; id -un; sudo -n id -un");
    assert_eq!(String::from_utf8_lossy(&login.stdout), "main-1\nops\nroot\n", "{login:?}");
    hosts.console(0, "grep -q '^ops:!' /etc/shadow").ok();

    // The firewall is there, and so are the services behind its open ports.
    hosts.console(0, "systemctl is-active raftsman-firewall.service && nft list table inet raftsman").ok();
    hosts.console(0, "systemctl start prometheus-node-exporter.service").ok();
    let listen = format!("systemd-run --unit=unopened /usr/bin/python3 -m http.server {UNOPENED}");
    hosts.console(0, &listen).ok();
    let up = |port: u16| {
        let listening = format!("ss -Hltn 'sport = :{port}' | grep -q .");
        eventually("the port is open", || (hosts.console(0, &listening).code == 0).then_some(()));
    };
    up(9100);
    up(UNOPENED);
    assert!(open(address, 22) && !open(address, 9100) && !open(address, UNOPENED));

    // Other rules are delivered, and count at once.
    let mut sources = machines.sources().expect("sources");
    sources.metrics_from = None;
    let members = [address.into(), HERE];
    let none = std::collections::BTreeSet::new();
    let firewall = Firewall {
        sources: &sources,
        agent_port: 2378,
        members: &members,
        metrics: true,
        etcd_metrics: true,
        balancers: &none,
        nodes: &none,
        front: None,
    };
    put(&hosts, nftables::PATH, &nftables::rules(&firewall));
    hosts.console(0, "systemctl reload raftsman-firewall.service").ok();
    assert!(open(address, 9100) && !open(address, UNOPENED));

    // So is the console's password, which stays nowhere.
    let password = delivery::console_password(&Name::fixed("ops"), "it's \"hunter2\": $x").expect("a password");
    put(&hosts, password.what.path(), &password.contents);
    let TakesEffect::Run(unit) = password.what.then() else { panic!("{:?}", password.what.then()) };
    hosts.console(0, &format!("systemctl start {unit}")).ok();
    hosts.console(0, "grep -q '^ops:\\$' /etc/shadow && test ! -e /etc/raftsman/console-password").ok();

    // The time comes from where the file says.
    hosts.console(0, "grep -qx 'server 10.77.0.1 iburst' /etc/chrony/chrony.conf").ok();

    // The agent is not there yet: it is tried again, and the token stays root's.
    assert_eq!(hosts.console(0, "stat -c '%a %U' /etc/raftsman/boot.json").ok().stdout, "600 root\n");
    let tried = |hosts: &Hosts, least: u32| {
        eventually("it is retried", || {
            let tries = hosts.console(0, "systemctl show -P NRestarts raftsman-first-boot.service").stdout;
            tries.trim().parse::<u32>().is_ok_and(|tries| tries >= least).then_some(())
        });
    };
    tried(&hosts, 2);
    // A power cut changes nothing of that.
    hosts.power_cut(0);
    hosts.start(0);
    assert!(open(address, 22) && !open(address, UNOPENED));
    tried(&hosts, 1);

    // Now it is, and installs itself.
    let program = hosts.disk(0, AGENT_PROGRAM);
    let arriving = program.with_extension("new");
    std::fs::copy(binary("raftsman-agent"), &arriving).expect("the disk");
    std::fs::rename(&arriving, &program).expect("the disk");
    let answers = |hosts: &Hosts| {
        eventually("the agent answers", || open(address, 2378).then_some(()));
        hosts.console(0, "systemctl is-active raftsman-agent.service raftsman-firewall.service").ok();
    };
    answers(&hosts);
    eventually("the first boot is over", || {
        (hosts.console(0, "test -e /etc/raftsman/boot.json").code != 0).then_some(())
    });
    assert_eq!(hosts.console(0, "stat -c '%a %U' /var/lib/raftsman/agent/boot.json").ok().stdout, "600 root\n");

    // It comes back by itself, never without the firewall, and may write where things are delivered.
    hosts.power_cut(0);
    hosts.start(0);
    answers(&hosts);
    assert!(!open(address, UNOPENED));
    let requires = hosts.console(0, "systemctl show -P Requires raftsman-agent.service").ok().stdout;
    assert!(requires.contains("raftsman-firewall.service"), "{requires}");
    let writes = "nsenter --target=$(systemctl show -P MainPID raftsman-agent) --mount -- touch";
    hosts.console(0, &format!("{writes} /etc/raftsman/x")).ok();
    hosts.console(0, &format!("{writes} /etc/x")).failed();
}
