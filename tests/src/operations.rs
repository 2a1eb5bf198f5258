//! A running cluster and a wish → the file and the commands by which an operator carries it out.

use std::net::Ipv4Addr;

use crate::dice::Dice;
use crate::lab::{Lab, etcd_dir};

/// What an operator may want of a running cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Two members more.
    Grow,
    /// Two members fewer.
    Shrink,
    /// A member under another name.
    Rename,
    /// A member at another address.
    Move,
    /// A member replaced, although it is well.
    Replace,
    /// A changed setting.
    Reconfigure,
    /// Another patch of the same line, up or down.
    Patch,
    /// Certificates with other names.
    Leaves,
    /// Another authority for what members show each other.
    RotatePeers,
    /// Another authority for clients, and the end of the old one once they have what they need.
    RotateClients,
    /// Database files rewritten.
    Defragment,
    /// Another leader.
    MoveLeader,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Grow,
        Self::Shrink,
        Self::Rename,
        Self::Move,
        Self::Replace,
        Self::Reconfigure,
        Self::Patch,
        Self::Leaves,
        Self::RotatePeers,
        Self::RotateClients,
        Self::Defragment,
        Self::MoveLeader,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grow => "grow",
            Self::Shrink => "shrink",
            Self::Rename => "rename",
            Self::Move => "move",
            Self::Replace => "replace",
            Self::Reconfigure => "reconfigure",
            Self::Patch => "patch",
            Self::Leaves => "leaves",
            Self::RotatePeers => "rotate peers",
            Self::RotateClients => "rotate clients",
            Self::Defragment => "defragment",
            Self::MoveLeader => "move leader",
        }
    }

    /// The operation of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|o| o.name() == name)
    }
}

/// How clients authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// By the name in their certificate.
    Certificate,
    /// By a password.
    Password,
}

impl Auth {
    /// Odd numbers are passwords: growing, renaming and replacing, in which members are learners, are among the first.
    pub fn drawn(seed: u64) -> Self {
        if seed % 2 == 1 { Self::Password } else { Self::Certificate }
    }

    /// Its name in the file and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Password => "password",
        }
    }

    /// The mode of this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Certificate, Self::Password].into_iter().find(|auth| auth.name() == name)
    }
}

/// What the file says at the moment.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Members, by number: their names are `m<number>`; with the last part of their address.
    pub members: Vec<(u32, u8)>,
    /// The patch of 3.6.
    pub patch: u32,
    /// How clients authenticate.
    pub auth: Auth,
    /// Whether the balancer `front` is in front of it.
    pub fronted: bool,
    warn: bool,
    names: u32,
    next: u32,
}

impl Shape {
    /// So many members of 3.6.15.
    pub fn new(members: u32, auth: Auth) -> Self {
        let list = (1..=members).map(|n| (n, u8::try_from(n).unwrap_or(u8::MAX))).collect();
        Self { members: list, patch: 15, auth, fronted: false, warn: false, names: 0, next: members + 1 }
    }

    /// The file.
    pub fn file(&self) -> String {
        let member = |(n, last): &(u32, u8)| format!("      - {{ name: m{n}, address: {} }}\n", address(*last));
        let members: String = self.members.iter().map(member).collect();
        let instance = |(name, last): (&str, u8)| format!("{{ name: {name}, address: {} }}", address(last));
        let instances = [("front-1", 240), ("front-2", 241)].map(instance).join(", ");
        let front = format!("balancers:\n  front: {{ etcd: main, max_connections: 500, instances: [{instances}] }}\n");
        format!(
            "fleet: lab\nmachines: {{ network: {}/24 }}\netcd:\n  main:\n    members:\n{members}    version: 3.6.{}\n    \
             source: {{ directory: {:?} }}\n    log_level: {}\n    certificates: {{ extra_names: [n{}.example.org] }}\n    auth: {{ mode: {} }}\n{}",
            address(0),
            self.patch,
            etcd_dir(),
            if self.warn { "warn" } else { "info" },
            self.names,
            self.auth.name(),
            if self.fronted { front.as_str() } else { "" },
        )
    }

    /// Every member's name and address.
    pub fn addresses(&self) -> Vec<(String, Ipv4Addr)> {
        self.members.iter().map(|(n, last)| (format!("m{n}"), address(*last))).collect()
    }

    fn take_next(&mut self) -> (u32, u8) {
        self.next += 1;
        let taken: Vec<u8> = self.members.iter().map(|(_, last)| *last).collect();
        let mut free = u8::try_from(self.next % 200 + 20).unwrap_or(20);
        while taken.contains(&free) {
            free = free.checked_add(1).unwrap_or(20);
        }
        (self.next, free)
    }

    /// Whether the operation makes sense now.
    pub fn allows(&self, operation: Operation) -> bool {
        match operation {
            Operation::Grow => self.members.len() < 7,
            Operation::Shrink => self.members.len() > 3,
            _ => true,
        }
    }

    /// Changes the file's shape, and says which commands follow.
    pub fn change(&mut self, operation: Operation, dice: &mut Dice) -> Vec<Vec<String>> {
        let apply = vec![words(&["apply", "--yes", "--json", "--timeout", "90s"])];
        let index = dice.below(self.members.len());
        let name = format!("m{}", self.members[index].0);
        match operation {
            Operation::Grow => {
                for _ in 0..2 {
                    let new = self.take_next();
                    self.members.push(new);
                }
                apply
            }
            Operation::Shrink => {
                for _ in 0..2 {
                    self.members.remove(dice.below(self.members.len()));
                }
                apply
            }
            Operation::Rename => {
                self.members[index] = self.take_next();
                apply
            }
            Operation::Move => {
                let (number, _) = self.members[index];
                let (_, last) = self.take_next();
                self.members[index] = (number, last);
                apply
            }
            Operation::Reconfigure => {
                self.warn = !self.warn;
                apply
            }
            Operation::Patch => {
                self.patch = if self.patch == 15 { 14 } else { 15 };
                apply
            }
            Operation::Leaves => {
                self.names += 1;
                apply
            }
            Operation::RotatePeers => vec![rotate(&["peers"])],
            // Between the two, the caller must give clients new certificates.
            Operation::RotateClients => vec![rotate(&["clients"]), rotate(&["clients", "--finish"])],
            Operation::Replace => vec![words(&["replace", &name, "--yes", "--json", "--timeout", "90s"])],
            Operation::Defragment => vec![words(&["defrag", "--all", "--json"])],
            Operation::MoveLeader => vec![words(&["move-leader", &name, "--json"])],
        }
    }
}

/// Labs of this kind have a network of their own, away from those that raftsman chooses.
const NETWORK: (u8, u8) = (77, 20);

/// The address with this last part, in a network that no other process of tests has.
fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, NETWORK.0, NETWORK.1 + (std::process::id() % 200) as u8, last)
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|w| (*w).to_owned()).collect()
}

fn rotate(what: &[&str]) -> Vec<String> {
    words(&[&["cert", "rotate"], what, &["--yes", "--json", "--timeout", "90s"]].concat())
}

/// A lab whose file has this shape, applied.
pub fn lab(shape: &Shape) -> Lab {
    let lab = Lab::new(&shape.file());
    lab.run(&["apply", "--yes", "--timeout", "60s"]).ok();
    lab
}
