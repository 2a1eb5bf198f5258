//! A stack, dice → one thing that is done or happens to it, and the end of it: everything is as it should be again.

use std::time::Duration;

use rustix::process::Signal;

use super::stack::{APPLY, Stack};
use crate::dice::Dice;
use crate::lab::{eventually, kill};
use crate::partition::{Cut, Groups, Ports};

/// The longest time after which something is killed: an `apply` that restarts every node takes about as long.
const WITHIN_MS: usize = 15_000;

/// What is done or happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The primary hands over, as an operator asked.
    Switchover,
    /// Patroni and PostgreSQL of the primary are killed.
    PrimaryKilled,
    /// The primary's machine loses its power, and gets it back once another node leads.
    PrimaryGone,
    /// A standby's machine loses its power.
    StandbyGone,
    /// The primary's machine stands still until another node leads, and goes on then.
    PrimaryPaused,
    /// The primary's machine reaches neither etcd nor the other nodes until another node leads, and clients reach it.
    PrimaryCutOff,
    /// Two members of etcd are killed at once.
    MembersKilled,
    /// Every member of etcd restarts for a setting.
    EtcdRolled,
    /// Every member of etcd gets another version.
    EtcdUpgraded,
    /// A member of etcd is replaced.
    MemberReplaced,
    /// The CA of etcd's clients is changed.
    EtcdCa,
    /// Patroni gets another user of etcd.
    EtcdUser,
    /// A parameter is raised or lowered that every node restarts for.
    Parameter,
    /// The same, and the command is killed.
    CommandKilled,
    /// The same, and an agent is killed.
    AgentKilled,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Switchover,
        Self::PrimaryKilled,
        Self::PrimaryGone,
        Self::StandbyGone,
        Self::PrimaryPaused,
        Self::PrimaryCutOff,
        Self::MembersKilled,
        Self::EtcdRolled,
        Self::EtcdUpgraded,
        Self::MemberReplaced,
        Self::EtcdCa,
        Self::EtcdUser,
        Self::Parameter,
        Self::CommandKilled,
        Self::AgentKilled,
    ];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Switchover => "switchover",
            Self::PrimaryKilled => "primary killed",
            Self::PrimaryGone => "primary's machine gone",
            Self::StandbyGone => "standby's machine gone",
            Self::PrimaryPaused => "primary paused",
            Self::PrimaryCutOff => "primary cut off",
            Self::MembersKilled => "two members killed",
            Self::EtcdRolled => "etcd rolled",
            Self::EtcdUpgraded => "etcd upgraded",
            Self::MemberReplaced => "member replaced",
            Self::EtcdCa => "clients' CA changed",
            Self::EtcdUser => "Patroni's user changed",
            Self::Parameter => "parameter changed",
            Self::CommandKilled => "command killed",
            Self::AgentKilled => "agent killed",
        }
    }

    /// Whether a node may still say that it is no standby when another one leads: it stood still, and has not seen yet that
    /// its lease is over. A commit there waits for a synchronous standby that follows another primary by then.
    pub fn leaves_a_former_primary(self) -> bool {
        self == Self::PrimaryPaused
    }

    /// One that raftsman carries out step by step: writes it into the file, where it is a matter of the file. The answer
    /// is the command.
    #[track_caller]
    pub fn begin(self, stack: &Stack<'_>, dice: &mut Dice) -> Option<Vec<String>> {
        let lab = stack.lab;
        let words: Vec<&str> = match self {
            Self::EtcdRolled => {
                stack.exchange(["quota: 2GiB", "quota: 3GiB"]);
                APPLY.to_vec()
            }
            Self::EtcdUpgraded => {
                stack.exchange(["version: 3.6.15", "version: 3.6.14"]);
                APPLY.to_vec()
            }
            Self::Parameter => {
                another_parameter(stack, dice);
                APPLY.to_vec()
            }
            Self::MemberReplaced => {
                let members: Vec<String> = lab.etcds().into_iter().map(|(name, _)| name).collect();
                return Some(["replace", dice.pick(&members).expect("a member"), "--yes"].map(str::to_owned).to_vec());
            }
            Self::EtcdCa => vec!["cert", "rotate", "clients", "--yes"],
            Self::EtcdUser => vec!["rotate-user", "--yes"],
            Self::Switchover
            | Self::PrimaryKilled
            | Self::PrimaryGone
            | Self::StandbyGone
            | Self::PrimaryPaused
            | Self::PrimaryCutOff
            | Self::MembersKilled
            | Self::CommandKilled
            | Self::AgentKilled => return None,
        };
        Some(words.into_iter().map(str::to_owned).collect())
    }

    /// Does it, and brings the stack back to where nothing is left to do.
    #[track_caller]
    pub fn carry_out(self, stack: &Stack<'_>, groups: &Groups, dice: &mut Dice) {
        let lab = stack.lab;
        match self {
            Self::Switchover => stack.switch_over(),
            Self::PrimaryKilled => {
                let primary = the_primary(stack);
                stack.kill_node(&primary);
            }
            Self::PrimaryGone => {
                let primary = the_primary(stack);
                lab.cut_power(&primary);
                another_than(stack, &primary);
            }
            Self::StandbyGone => {
                let primary = the_primary(stack);
                let standbys: Vec<String> = stack.nodes().into_iter().filter(|node| *node != primary).collect();
                lab.cut_power(dice.pick(&standbys).expect("a standby"));
            }
            Self::PrimaryPaused => {
                let primary = the_primary(stack);
                let all = lab.processes_of(&primary);
                all.iter().for_each(|pid| kill(*pid, Signal::STOP));
                another_than(stack, &primary);
                all.iter().for_each(|pid| kill(*pid, Signal::CONT));
            }
            Self::PrimaryCutOff => {
                let primary = the_primary(stack);
                cut_off(stack, groups, &primary);
                another_than(stack, &primary);
                Groups::heal();
            }
            Self::MembersKilled => {
                let members = dice.some(&lab.etcds(), 2);
                members.iter().for_each(|(_, pid)| kill(*pid, Signal::KILL));
            }
            Self::EtcdRolled
            | Self::EtcdUpgraded
            | Self::MemberReplaced
            | Self::EtcdCa
            | Self::EtcdUser
            | Self::Parameter => {
                let words = self.begin(stack, dice).expect("a command");
                lab.run(&words.iter().map(String::as_str).collect::<Vec<_>>()).ok();
            }
            Self::CommandKilled => {
                another_parameter(stack, dice);
                let mut apply = lab.spawn(&APPLY);
                std::thread::sleep(Duration::from_millis(dice.below(WITHIN_MS) as u64));
                let _ = apply.kill();
                let _ = apply.wait();
            }
            Self::AgentKilled => {
                another_parameter(stack, dice);
                let mut apply = lab.spawn(&APPLY);
                std::thread::sleep(Duration::from_millis(dice.below(WITHIN_MS) as u64));
                if let Some((_, pid)) = dice.pick(&lab.agents()) {
                    kill(*pid, Signal::KILL);
                }
                let _ = apply.wait();
            }
        }
        stack.apply();
        lab.nothing_to_do();
    }
}

#[track_caller]
fn the_primary(stack: &Stack<'_>) -> String {
    eventually("a primary", || stack.primary())
}

#[track_caller]
fn another_than(stack: &Stack<'_>, former: &str) {
    eventually("another primary", || stack.primary().filter(|now| now != former));
}

/// The node's machine and the others do not reach each other any more; clients reach all of them.
pub fn cut_off(stack: &Stack<'_>, groups: &Groups, node: &str) {
    let lab = stack.lab;
    let members = lab.etcds().into_iter().map(|(name, _)| name);
    let others = stack.nodes().into_iter().chain(members).filter(|name| name != node);
    let others: Vec<_> = others.map(|name| (name.clone(), lab.address(&name))).collect();
    groups.cut(Cut::Both, Ports::All, (node, lab.address(node)), &others);
}

/// Writes another number of connections into the file.
fn another_parameter(stack: &Stack<'_>, dice: &mut Dice) {
    let file = stack.lab.file();
    let all = [40, 50, 60, 70].map(|number| format!("max_connections: {number}"));
    let now = all.iter().find(|text| file.contains(*text)).expect("the parameter");
    let others: Vec<&String> = all.iter().filter(|text| *text != now).collect();
    stack.lab.write_file(&file.replace(now, dice.pick(&others).expect("another")));
}
