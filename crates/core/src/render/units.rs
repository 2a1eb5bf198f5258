//! the name of a unit → its text: those that prepare a machine and do for the agent what it may not do itself.
//!
//! The agent and etcd have units of their own, which the agent writes when it is installed. The agent can write below
//! `/etc/raftsman` and starts units over D-Bus; systemd lets root do so without further authorization.

use super::first_boot::File;

/// A unit of systemd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! unit {
    ($name:literal) => {
        Unit { name: $name, text: include_str!(concat!("units/", $name)) }
    };
}

/// What is done once, before the agent's first start.
pub const FIRST_BOOT: Unit = unit!("raftsman-first-boot.service");
/// The firewall, without which there is no agent.
pub const FIREWALL: Unit = unit!("raftsman-firewall.service");
/// Sets the console's password that the agent was given.
pub const CONSOLE: Unit = unit!("raftsman-console.service");
/// The data disk, without which there is no agent.
pub const DATA_DISK: Unit = unit!("var-lib-raftsman.mount");

/// All of them.
pub const ALL: [Unit; 4] = [FIRST_BOOT, FIREWALL, CONSOLE, DATA_DISK];

impl Unit {
    /// The links that enable it: where each is, and what it leads to. What `systemctl enable` does from within, done from
    /// outside of a machine that never ran.
    pub fn links(self) -> impl Iterator<Item = (String, String)> {
        let file = self.file().path;
        self.text.lines().filter_map(move |line| {
            let (target, how) = match line.split_once('=')? {
                ("WantedBy", target) => (target, "wants"),
                ("RequiredBy", target) => (target, "requires"),
                _ => return None,
            };
            Some((format!("/etc/systemd/system/{target}.{how}/{}", self.name), file.clone()))
        })
    }

    /// The file it is read from.
    pub fn file(self) -> File {
        File { path: format!("/etc/systemd/system/{}", self.name), mode: 0o644, contents: self.text.to_owned() }
    }
}
