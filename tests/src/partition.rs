//! Machines on one computer → networks between them that can be cut, in both directions or in one.
//!
//! A member's outgoing connections all come from 127.0.0.1, so that no address tells them apart. Its processes do: each
//! machine's are in a control group of their own, and packets are dropped by the group that sends or receives them and
//! the address of the member at the other end. All of it in namespaces of our own, which end with us.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::lab::{Lab, binary};

/// Where control groups are, in namespaces of our own.
const GROUPS: &str = "/sys/fs/cgroup";
const INSIDE: &str = "RAFTSMAN_INSIDE";

/// Starts this program again in a network of its own, unless it is in one. Needs root.
pub fn enter() {
    if std::env::var_os(INSIDE).is_some() {
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let inside = format!("ip link set lo up && mount -t cgroup2 none {GROUPS} && exec \"$@\"");
    let error = Command::new("unshare")
        .args(["--net", "--mount", "--", "sh", "-c", &inside, "sh"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    panic!("unshare: {error}: install util-linux, iproute2 and nftables, and be root");
}

/// What cannot be reached of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ports {
    /// Members of etcd, at the port for their like.
    Peers,
    /// Everything that is on the machines.
    All,
}

impl Ports {
    fn side(self, side: &str) -> String {
        match self {
            Self::Peers => format!("tcp {side} 2380"),
            Self::All => String::new(),
        }
    }
}

/// Which packets are lost between a member and the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// All.
    Both,
    /// Those that it sends.
    Sent,
    /// Those that it should get.
    Received,
}

/// The groups of one lab's machines.
pub struct Groups {
    name: String,
}

impl Groups {
    /// From now on each machine of the lab has a group of its own.
    pub fn of(lab: &mut Lab) -> Self {
        let name = format!("raftsman-{}-{}", std::process::id(), lab.path().file_name().expect("a name").display());
        let groups = Self { name };
        // It does not say which version it is: raftsman would take this script for another build, and upgrade agents to it.
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && exit 1\ngroup={}/${{2##*/}}\nmkdir -p \"$group\" && echo $$ >\"$group/cgroup.procs\"\nexec {} \"$@\"\n",
            groups.path().display(),
            binary("raftsman-agent").display(),
        );
        std::fs::create_dir_all(groups.path()).expect("a control group");
        let agent = lab.path().join("raftsman-agent");
        std::fs::write(&agent, script).expect("a script");
        std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755)).expect("a program");
        lab.use_agent(agent);
        groups
    }

    fn path(&self) -> PathBuf {
        Path::new(GROUPS).join(&self.name)
    }

    /// Cuts a machine off from the others.
    pub fn cut(&self, cut: Cut, ports: Ports, machine: (&str, Ipv4Addr), others: &[(String, Ipv4Addr)]) {
        let mut rules = (String::new(), String::new());
        let mut lose = |from: (&str, Ipv4Addr), to: (&str, Ipv4Addr)| {
            let group = |name: &str| format!("socket cgroupv2 level 2 \"{}/{name}\"", self.name);
            // What its clients send, and what its server sends.
            let _ = writeln!(rules.0, "  {} ip daddr {} {} drop", group(from.0), to.1, ports.side("dport"));
            let _ = writeln!(rules.1, "  {} ip saddr {} {} drop", group(to.0), from.1, ports.side("sport"));
        };
        for (name, address) in others.iter().filter(|(name, _)| self.path().join(name).is_dir()) {
            let other = (name.as_str(), *address);
            if cut != Cut::Received {
                lose(machine, other);
            }
            if cut != Cut::Sent {
                lose(other, machine);
            }
        }
        nft(&format!(
            "table inet cut {{\n chain out {{ type filter hook output priority 0;\n{} }}\n chain in {{ type filter hook \
             input priority 0;\n{} }}\n}}\n",
            rules.0, rules.1
        ));
    }

    /// All machines reach each other again.
    pub fn heal() {
        nft("flush ruleset\n");
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for machine in std::fs::read_dir(self.path()).into_iter().flatten().flatten().filter(|e| e.path().is_dir()) {
            let _ = std::fs::remove_dir(machine.path());
        }
        let _ = std::fs::remove_dir(self.path());
    }
}

fn nft(rules: &str) {
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft: install nftables");
    nft.stdin.take().expect("its input").write_all(rules.as_bytes()).expect("nft reads");
    assert!(nft.wait().expect("nft ends").success(), "nft refuses:\n{rules}");
}
