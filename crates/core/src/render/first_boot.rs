//! a machine to be made → the files, packages and commands that turn a bare system into one with an agent.
//!
//! Cloud-init carries it to machines that are made ([`super::cloud_init`]); on hosts that exist it is done by hand, in
//! the same order: packages, files, commands. Nothing in it is a lasting secret: the join token is invalid once the
//! machine was claimed. Lasting secrets are delivered later, from raftsman over mutual TLS ([`super::delivery`]).

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use super::nftables::Firewall;
use super::systemd::AGENT_PROGRAM as AGENT;
use super::units::{self, Unit};
use super::{chrony, nftables};
use crate::boot::Boot;
use crate::spec::{Machines, Updates};

/// The boot data until the agent is installed.
pub const BOOT: &str = "/etc/raftsman/boot.json";
/// The data disk's label.
pub const DATA_LABEL: &str = "raftsman-data";
/// Has Debian's packages of PostgreSQL make no cluster of their own. It must be there before they are installed.
pub const NO_CLUSTER: &str = "/etc/postgresql-common/createcluster.d/raftsman.conf";
const FIRST_BOOT: &str = "/usr/local/lib/raftsman/first-boot";
const DATA_DISK: &str = "/usr/local/lib/raftsman/data-disk";

/// A machine to be made.
#[derive(Debug, Clone, Copy)]
pub struct FirstBoot<'a> {
    /// Its identity, and its agent's boot data.
    pub boot: &'a Boot,
    /// What all machines of the fleet have in common.
    pub machines: &'a Machines,
    /// The addresses of its cluster's members, its own among them.
    pub members: &'a [IpAddr],
    /// The hardware address of its network card, where the provider knows it.
    pub mac: Option<&'a str>,
    /// The data disk as the machine sees it, such as `/dev/disk/by-id/virtio-raftsman-data`.
    pub data_disk: Option<&'a str>,
    /// Where the agent's program comes from.
    pub agent: AgentFrom<'a>,
    /// The distribution's packages of programs that its agent is to supervise.
    pub programs: &'a [String],
    /// Whether the provider puts the machine's files in place itself, before its first start: it need not wait for the
    /// end of cloud-init then.
    pub files_in_place: bool,
}

/// Where the agent's program comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentFrom<'a> {
    /// It is in the image, or the provider puts it in its place: what installs it tries until it is there.
    InPlace,
    /// It is in the image, or was put here, under a name that begins with that of the agent's program and is this
    /// order's own: a late upload of an earlier order overwrites nothing.
    Uploaded(&'a str),
    /// It is the file `raftsman-agent` on the disk that holds the boot data (NoCloud's, with the label `cidata`).
    SeedDisk,
    /// It is downloaded from here, and must have this SHA-256.
    Url {
        /// Where from.
        url: &'a str,
        /// In hexadecimal.
        sha256: &'a str,
    },
}

/// A file on a machine; root's.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// Where it is.
    pub path: String,
    /// Its permissions.
    pub mode: u32,
    /// What is in it.
    pub contents: String,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is in it may be secret.
        f.debug_struct("File").field("path", &self.path).field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// A literal word of a shell command.
fn word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

impl FirstBoot<'_> {
    /// The firewall rules, or nothing where there is no firewall.
    pub fn firewall(&self) -> Option<String> {
        let sources = self.machines.sources()?;
        let metrics = self.machines.node_exporter == Some(true);
        let agent_port = self.boot.agent_port;
        // Which listeners etcd has is not known yet: the agent gets the full rules before etcd starts.
        let etcd_metrics = false;
        // A member that does not run yet has no health to check, and no clients.
        let (members, balancers, nodes) = (self.members, &BTreeSet::new(), &BTreeSet::new());
        let sources = &sources;
        let firewall = Firewall { sources, agent_port, members, metrics, etcd_metrics, balancers, nodes, front: None };
        Some(nftables::rules(&firewall))
    }

    /// What the distribution has to have installed; nothing where the image carries everything.
    pub fn packages(&self) -> Vec<&str> {
        let machines = self.machines;
        if !machines.installs() {
            return Vec::new();
        }
        let mut packages = vec!["dbus"];
        let wanted = [
            ("chrony", machines.time.is_some()),
            ("curl", matches!(self.agent, AgentFrom::Url { .. })),
            ("e2fsprogs", self.data_disk.is_some()),
            ("nftables", machines.sources().is_some()),
            ("prometheus-node-exporter", machines.node_exporter == Some(true)),
            ("unattended-upgrades", machines.updates == Some(Updates::Security)),
        ];
        packages.extend(wanted.iter().filter(|(_, wanted)| *wanted).map(|(name, _)| *name));
        packages.extend(self.programs.iter().map(String::as_str));
        packages
    }

    /// Whether a package of PostgreSQL is installed, which would make and start a cluster of its own.
    fn installs_postgres(&self) -> bool {
        self.packages().iter().any(|package| package.starts_with("postgresql"))
    }

    /// Whether fluent-bit is installed: on its own, because Debian has no such package, and one that cannot be found
    /// must not prevent the installation of the others.
    fn installs_logs(&self) -> bool {
        self.machines.installs() && self.machines.logs.is_some()
    }

    /// Its files, in order.
    pub fn files(&self) -> Result<Vec<File>, serde_json::Error> {
        let file = |path: &str, mode: u32, contents: String| File { path: path.to_owned(), mode, contents };
        let machines = self.machines;
        let mut files = vec![
            file(BOOT, 0o600, serde_json::to_string(self.boot)? + "\n"),
            file(FIRST_BOOT, 0o755, self.script()),
            units::FIRST_BOOT.file(),
        ];
        if self.data_disk.is_some() {
            files.push(file(DATA_DISK, 0o755, include_str!("scripts/data-disk").to_owned()));
            files.push(units::DATA_DISK.file());
        }
        if let Some(rules) = self.firewall() {
            files.push(file(nftables::PATH, 0o600, rules));
            files.push(units::FIREWALL.file());
        }
        // Where the file names no password yet, too: one that it names later is set by this unit.
        files.push(units::CONSOLE.file());
        if let Some(time) = &machines.time {
            files.push(file(chrony::PATH, 0o644, chrony::config(time)));
        }
        if machines.logs.is_some() {
            files.extend(super::fluent_bit::stubs());
        }
        if self.installs_postgres() {
            files.push(file(NO_CLUSTER, 0o644, "create_main_cluster = false\n".to_owned()));
        }
        match machines.updates {
            None => {}
            Some(Updates::Off) => files.push(file(PERIODIC, 0o644, periodic(false))),
            Some(Updates::Security) => {
                files.push(file(PERIODIC, 0o644, periodic(true)));
                files.push(file("/etc/apt/apt.conf.d/52raftsman-updates", 0o644, SECURITY_ONLY.to_owned()));
                files.push(file("/etc/needrestart/conf.d/raftsman.conf", 0o644, NO_RESTART.to_owned()));
            }
        }
        Ok(files)
    }

    /// Its units that are started with every boot.
    fn units(&self) -> Vec<Unit> {
        let firewall = self.machines.sources().map(|_| units::FIREWALL);
        let data_disk = self.data_disk.map(|_| units::DATA_DISK);
        firewall.into_iter().chain(data_disk).chain([units::FIRST_BOOT]).collect()
    }

    /// The links that enable its units, where files are put in place: what each is called, and what it leads to.
    pub fn links(&self) -> Vec<(String, String)> {
        self.units().into_iter().flat_map(Unit::links).collect()
    }

    /// What is run once the packages and files are there, in order, each as its words. What cannot be done now is tried
    /// again by systemd.
    pub fn commands(&self) -> Vec<Vec<&'static str>> {
        let mut commands = Vec::new();
        if !self.files_in_place {
            // Units are read once, after all of them are enabled: a small machine takes a quarter of a second for it.
            let mut enable = vec!["systemctl", "enable", "--no-reload"];
            enable.extend(self.units().iter().map(|unit| unit.name));
            commands.extend([enable, vec!["systemctl", "daemon-reload"]]);
            if self.machines.sources().is_some() {
                commands.push(vec!["systemctl", "start", units::FIREWALL.name]);
            }
            commands.push(vec!["systemctl", "start", "--no-block", units::FIRST_BOOT.name]);
        }
        if self.machines.time.is_some() {
            commands.push(vec!["systemctl", "restart", "chrony.service"]);
        }
        if self.installs_logs() {
            // The package brings its own configuration, and would ask which one to keep.
            let keep = "Dpkg::Options::=--force-confold";
            let quiet = "DEBIAN_FRONTEND=noninteractive";
            commands.push(vec!["env", quiet, "apt-get", "install", "-y", "-o", keep, "fluent-bit"]);
        }
        commands
    }

    /// What is done once, before the agent starts. Every line may be done again.
    fn script(&self) -> String {
        let mut out = String::from("#!/bin/sh\n# Written by raftsman.\nset -eu\n");
        match self.agent {
            AgentFrom::InPlace => {}
            // Its mode is set here: writing into a file that exists already does not change its mode.
            AgentFrom::Uploaded(path) => out.push_str(&format!(
                "if [ -e {path} ]; then\n    chmod 0755 {path}\n    mv {path} {AGENT}\nfi\nrm -f {AGENT}-*\n"
            )),
            AgentFrom::SeedDisk => out.push_str(&format!(
                "seed=$(mktemp -d)\n\
                 mount -o ro /dev/disk/by-label/cidata \"$seed\"\n\
                 install -m 0755 \"$seed/raftsman-agent\" {AGENT}\n\
                 umount \"$seed\"\n"
            )),
            AgentFrom::Url { url, sha256 } => out.push_str(&format!(
                "curl --fail --silent --show-error --location --retry 5 --output {AGENT}.new {}\n\
                 echo {}'  {AGENT}.new' | sha256sum --check --quiet\n\
                 chmod 0755 {AGENT}.new\n\
                 mv {AGENT}.new {AGENT}\n",
                word(url),
                word(sha256)
            )),
        }
        if let Some(disk) = self.data_disk {
            out.push_str(&format!("{DATA_DISK} {}\nsystemctl start {}\n", word(disk), units::DATA_DISK.name));
        }
        out.push_str(&format!("{AGENT} install <{BOOT}\nrm {BOOT}\n"));
        out
    }
}

const PERIODIC: &str = "/etc/apt/apt.conf.d/20auto-upgrades";

fn periodic(on: bool) -> String {
    let on = u8::from(on);
    format!("APT::Periodic::Update-Package-Lists \"{on}\";\nAPT::Periodic::Unattended-Upgrade \"{on}\";\n")
}

/// If members restarted at the same time, the cluster would be down: no update restarts the machine.
const SECURITY_ONLY: &str = "\
#clear Unattended-Upgrade::Allowed-Origins;
#clear Unattended-Upgrade::Origins-Pattern;
Unattended-Upgrade::Origins-Pattern {
  \"origin=Debian,codename=${distro_codename}-security,label=Debian-Security\";
  \"origin=Ubuntu,archive=${distro_codename}-security\";
};
Unattended-Upgrade::Automatic-Reboot \"false\";
";

/// The same for services that use what was updated.
const NO_RESTART: &str = "$nrconf{override_rc}{qr(^raftsman-)} = 0;\n";
