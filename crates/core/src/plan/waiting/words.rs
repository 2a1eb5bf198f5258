//! What is waited for → what is said of it, and what an operator can do.

use std::fmt;

use super::{Remedy, Waiting};
use crate::observed::{Alarm, size};
use crate::plan::balancer::{HAPROXY, KEEPALIVED};
use crate::spec::Name;

impl Waiting {
    /// What an operator can do about it.
    pub fn next(&self) -> String {
        match self {
            Self::Postgres(waiting) => waiting.next(),
            Self::MachineUnknown { .. } => "check that the provider answers".to_owned(),
            Self::AgentUnreachable { machine, .. } => {
                format!("look at the agent's log: `raftsman logs {machine} --agent`, and at the machine itself")
            }
            Self::MachineLost { machine } | Self::MachineRebuilt { machine } => format!(
                "bring the old machine `{machine}` back with its disk, or replace the member: `raftsman replace \
                 {machine}`"
            ),
            Self::DataLost { machine } => format!(
                "bring the data of `{machine}` back, or replace the member: `raftsman replace {machine}`; an empty \
                 member must never rejoin under its old id"
            ),
            Self::DestroyPrevented { member } => {
                format!("add `{member}` to the file again; or, to delete it with its data, remove `prevent_destroy`")
            }
            Self::CannotMove { from, .. } => format!(
                "write {from} again; or give the member at the new address another name: it joins first, then this one leaves"
            ),
            Self::WrongMachine { .. } => "give each machine an address of its own".to_owned(),
            Self::DataUnreadable { machine, .. } => {
                format!("bring the data of `{machine}` back; if etcd never ran there, move what is there away")
            }
            Self::ForeignData { machine, .. } => {
                format!("move the foreign data directory of `{machine}` away, or bring the right one back")
            }
            Self::ForeignMember { machine, .. } => {
                format!(
                    "find out which process runs that etcd at the address of `{machine}`, or give the member \
                    another address"
                )
            }
            Self::SeveralClusters { .. } => {
                "move the wrong data directories away: raftsman does not guess which cluster is the right \
                 one"
                .to_owned()
            }
            Self::AllDataLost { .. } => {
                "bring the data back, or `raftsman destroy` the cluster and apply again to start with an empty one"
                    .to_owned()
            }
            Self::ClockSkew { machine, .. } => format!("correct the clock of `{machine}` or of this computer"),
            Self::DiskFull { machine, .. } => format!("free space on the disk of `{machine}`"),
            Self::PortTaken { holder, .. } => format!("stop {holder}, or give the member another address"),
            Self::EtcdCrashes { machine, .. } => format!("read etcd's log: `raftsman logs {machine}`"),
            Self::BalancerUnknown { .. } => "its agent is upgraded first, by this or another `apply`".to_owned(),
            Self::PackageMissing { machine, package } => {
                format!("install it on {machine}: `apt-get install {package}`, then apply again")
            }
            Self::BalancerStarting { machine, program, .. } => {
                format!("if it takes long, read its log: {}", log_of(machine, program))
            }
            Self::BalancerChecks { machine, member, port } => format!(
                "if it takes long, see that {machine} reaches port {port} of {member}, and read its log: {}",
                log_of(machine, HAPROXY)
            ),
            Self::VirtualAddressUnheld { .. } => {
                "keepalived takes it after about three seconds without a message of a holder; if it takes longer, read \
                 its log on the instances: `journalctl -u raftsman-keepalived`"
                    .to_owned()
            }
            Self::VirtualAddressConflict { .. } => {
                "they do not receive each other's VRRP messages: let IP protocol 112 pass between their addresses, in \
                 both directions, in every firewall between them"
                    .to_owned()
            }
            Self::BalancerCrashes { machine, program, .. } => format!("read its log: {}", log_of(machine, program)),
            Self::EtcdStarting { machine, .. } => {
                format!("if it takes long, read etcd's log: `raftsman logs {machine}`")
            }
            Self::EtcdSilent { machine, .. } => format!(
                "read etcd's log: `raftsman logs {machine}`; if its process hangs, kill it: the agent starts it again"
            ),
            Self::EtcdUnclear { machine, .. } => format!(
                "see what answers at the client address of `{machine}`; if it is etcd, of a version that raftsman \
                 supports, report a bug"
            ),
            Self::AuthenticationFailed { .. } => {
                "point `root_password` to the current password; to change it, apply with the current one first, then \
                 with the new one"
                    .to_owned()
            }
            Self::MajorityLost { .. } => {
                "bring their machines back with their disks, or recover the cluster from the members that are left: \
                 `raftsman recover`"
                    .to_owned()
            }
            Self::UnknownSuperuser { user } => format!(
                "if it should not exist, remove it: `etcdctl user delete {user}`; otherwise list it under `users` with \
                 the role `root`, with all other users that are to stay: apply deletes users that are not listed"
            ),
            Self::NoQuorumYet { .. } => "it needs a majority of the members to answer each other".to_owned(),
            Self::NoMajority { .. } => "see above why the other members are not ready".to_owned(),
            Self::NotMeasured { .. } => {
                "bring the agents of the other machines back: see above, and `raftsman status`".to_owned()
            }
            Self::TimersUnfit { concern } => concern.next(),
            Self::Unsafe { .. } => "look at `raftsman status`, and apply again once the condition is met".to_owned(),
            Self::WouldLoseQuorum { of, .. } if *of < 3 => {
                format!("a cluster of {of} cannot lose a member: give it three members")
            }
            Self::WouldLoseQuorum { .. } => "bring the unhealthy members back first".to_owned(),
            Self::Turn { .. } => "one at a time".to_owned(),
            Self::VersionRefused { running, refusal, .. } => refusal.next(*running),
            Self::VersionSettling { .. } => "etcd checks every few seconds whether all members run it".to_owned(),
            Self::LearnerCatchingUp { .. } => "it is promoted when it has caught up".to_owned(),
            Self::LearnerEvicted { machine } => format!(
                "look at its log (`raftsman logs {machine}`) and at the network between the members; then \
                 `raftsman replace {machine}`, or apply again in ten minutes"
            ),
            Self::HealFirst { .. } => {
                "bring them back, or have a lost one replaced: `raftsman replace <member>`".to_owned()
            }
            Self::ReplacedLater { machine, .. } => {
                format!("bring it back before that, or do not wait: `raftsman replace {machine}`")
            }
            Self::NoTransferTarget { .. } => "it needs another healthy member of the file".to_owned(),
            Self::AddressInUse { machine, .. } => format!("give `{machine}` an address of its own"),
            Self::AuthDiffers { made_for, .. } => format!(
                "write `auth: {{ mode: {made_for} }}`: changing how the clients of a running cluster log in is not in \
                 this version yet"
            ),
            Self::AuthorityExpired { authority } => format!(
                "bring another one: put its certificate and key where the file says, or write `{authority}: made` \
                 below `ca`"
            ),
            Self::TrustLags { machine, .. } => {
                format!("it continues once `{machine}` can be reached; see `raftsman status`")
            }
            Self::HandshakeFailed { to, .. } => {
                format!("if it persists, read etcd's log: `raftsman logs {to}`")
            }
            Self::OldCaAccepted { .. } => {
                "if the old and the new CA are below the same root, bring them without the root; otherwise find out \
                 what etcd trusts there"
                    .to_owned()
            }
            Self::AlarmRaised { alarm: Alarm::NoSpace } => "apply frees space once a majority answers".to_owned(),
            Self::AlarmRaised { alarm: Alarm::Corrupt } => {
                "`raftsman verify` compares the members; restart nothing before it is clear which one differs"
                    .to_owned()
            }
            Self::QuotaFull { .. } => {
                "raise `quota:` in the file, or delete what fills it (deleting works); then apply again".to_owned()
            }
            Self::DataDisputed { .. } => {
                "`raftsman verify` compares those that run; replace no member before it is clear which one is right"
                    .to_owned()
            }
            Self::MemberCorrupt { machine, .. } => {
                format!("replace it, so that it gets all data from the others: `raftsman replace {machine}`")
            }
            Self::UnauthenticatedAccepted { .. } => {
                "disconnect the cluster from its clients until the cause is known".to_owned()
            }
            Self::ProbeFailed { .. } | Self::UsersUnknown { .. } => "it is retried".to_owned(),
            Self::NotTakenOver { .. } => {
                "managing them needs an agent on each machine and the keys of both CAs, and is not in this version yet"
                    .to_owned()
            }
            Self::Differs { .. } => {
                "write the found value into the file, or change it with the tools that run the member: raftsman does \
                 not restart adopted members"
                    .to_owned()
            }
            Self::MemberSilent { .. } => "look at it with the tools that run it".to_owned(),
            Self::Undeliverable { .. } => {
                "put it where `admin` and `logs` below `machines` say that it is, then apply again".to_owned()
            }
            Self::BackupsUnreadable { .. } => "put it where `backups` says that it is, then apply again".to_owned(),
            Self::AgentNewer { version, .. } => {
                format!("install raftsman {version} or later on this computer: it changes nothing until then")
            }
            Self::AgentTooOld { machine, remedy, .. } => remedy.next(machine.as_str()),
            Self::AgentReverted { machine, remedy, .. } => format!(
                "read the agent's log: `raftsman logs {machine} --agent`; another version of raftsman is tried by itself, \
                 this one only after you {}",
                remedy.next(machine.as_str())
            ),
            Self::AgentNoRoom { machine, .. } => format!("free space on the disk of `{machine}`"),
            Self::RestoredOthers { .. } => {
                "give the file the members that it had, or start another restore with `raftsman restore`".to_owned()
            }
            Self::PasswordUnknown { user, .. } => {
                format!("make the password of `{user}` readable where the file says that it is")
            }
        }
    }
}

impl Remedy {
    fn next(self, machine: &str) -> String {
        match self {
            Self::Replace => format!("replace the machine: `raftsman replace {machine}`"),
            Self::Install => format!(
                "put the new `raftsman-agent` on the host and run the line that `raftsman join {machine}` prints \
                 there: it installs the agent again, and the member keeps its data"
            ),
            Self::Restart => {
                format!("kill the agent's process of `{machine}`: `raftsman apply` starts it with the new binary")
            }
        }
    }
}

fn join<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|i| i.to_string()).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres(waiting) => waiting.fmt(f),
            Self::MachineUnknown { machine, error } => write!(f, "{machine}: the provider does not answer: {error}"),
            Self::AgentUnreachable { machine, error, .. } => write!(f, "{machine}: the agent does not answer: {error}"),
            Self::MachineLost { machine } => write!(f, "{machine}: the machine is gone, and a member's data with it"),
            Self::MachineRebuilt { machine } => {
                write!(f, "{machine}: this is another machine than the one that etcd was started on")
            }
            Self::DataLost { machine } => {
                write!(f, "{machine}: etcd ran here and its data directory is empty")
            }
            Self::DestroyPrevented { member } => {
                write!(
                    f,
                    "{member}: not in the file any more, and `prevent_destroy: true` keeps its machine and its data"
                )
            }
            Self::CannotMove { machine, from, to } => {
                write!(f, "{machine}: it is at {from} and cannot move to {to}: that is another machine")
            }
            Self::WrongMachine { machine, found } => {
                write!(f, "{machine}: the machine `{found}` answers at its address")
            }
            Self::DataUnreadable { machine, problem } => {
                write!(f, "{machine}: the data directory holds no member's data: {problem}")
            }
            Self::ForeignData { machine, found, expected } => {
                write!(f, "{machine}: the data on its disk belongs to cluster {found}, not to {expected}")
            }
            Self::ForeignMember { machine, found, expected } => {
                write!(f, "{machine}: a member of cluster {found} answers at its address, not one of {expected}")
            }
            Self::SeveralClusters { found } => {
                f.write_str("the machines hold data of different clusters:")?;
                for (cluster, names) in found {
                    write!(f, " {cluster} on {};", join(names.iter()))?;
                }
                Ok(())
            }
            Self::AllDataLost { cluster } => write!(f, "all members of cluster {cluster} have lost their data"),
            Self::ClockSkew { machine, offset_ms } => {
                let (seconds, word) =
                    (offset_ms.unsigned_abs() / 1000, if *offset_ms > 0 { "ahead of" } else { "behind" });
                write!(f, "{machine}: its clock is {seconds} s {word} this computer's")
            }
            Self::DiskFull { machine, free } => {
                write!(f, "{machine}: its disk has {} MiB free, etcd needs at least 64", free / (1024 * 1024))
            }
            Self::PortTaken { machine, port, holder } => write!(f, "{machine}: port {port} is held by {holder}"),
            Self::EtcdCrashes { machine, restarts, last_exit } => {
                write!(f, "{machine}: etcd exited {restarts} times: {last_exit}")
            }
            Self::BalancerUnknown { machine } => write!(f, "{machine}: its agent is too old to run a balancer"),
            Self::PackageMissing { machine, package } => {
                write!(f, "{machine}: the package `{package}` is not installed")
            }
            Self::BalancerStarting { machine, program, .. } => write!(f, "{machine}: {program} is starting"),
            Self::BalancerChecks { machine, member, .. } => {
                write!(f, "{machine}: HAProxy has not found {member} healthy yet")
            }
            Self::VirtualAddressUnheld { balancer, address } => {
                write!(f, "{balancer}: no instance has the virtual address {address} yet")
            }
            Self::VirtualAddressConflict { balancer, address, machines } => {
                write!(f, "{balancer}: several instances have the virtual address {address}: {}", join(machines.iter()))
            }
            Self::BalancerCrashes { machine, program, restarts, last_exit } => {
                write!(f, "{machine}: {program} exited {restarts} times: {last_exit}")
            }
            Self::EtcdStarting { machine, .. } => write!(f, "{machine}: etcd is starting"),
            Self::EtcdSilent { machine, error } => {
                write!(f, "{machine}: etcd runs and does not answer: {error}")
            }
            Self::EtcdUnclear { machine, error } => write!(f, "{machine}: {error}"),
            Self::AuthenticationFailed { members } => write!(
                f,
                "authentication failed: etcd on {} does not accept the password of `root` that the file refers to",
                join(members.iter())
            ),
            Self::MajorityLost { lost, of } => {
                write!(f, "the majority is lost, {} of {of} members: {}", lost.len(), lost.join("; "))
            }
            Self::UnknownSuperuser { user } => {
                write!(f, "user `{user}` has the role `root`, and the file does not name it")
            }
            Self::NoQuorumYet { machine, .. } => write!(f, "{machine}: no linearizable read through it yet"),
            Self::NoMajority { ready, needed } => {
                let members = if *ready == 1 { "member" } else { "members" };
                write!(f, "{ready} {members} can be started, a majority is {needed}")
            }
            Self::NotMeasured { ready, needed } => {
                write!(f, "the timers are to be measured: {ready} of the {needed} agents that are needed answer")
            }
            Self::TimersUnfit { concern } => concern.fmt(f),
            Self::WouldLoseQuorum { verb, machine, healthy, of } => {
                write!(f, "{machine}: {verb} would lose quorum: {healthy} of {of} members are healthy")
            }
            Self::Unsafe { verb, machine: Some(machine), refusal } => {
                write!(f, "{machine}: not safe to {verb}: {refusal}")
            }
            Self::Unsafe { verb, machine: None, refusal } => write!(f, "not safe to {verb}: {refusal}"),
            Self::Turn { machine, verb } => write!(f, "{machine}: {verb} waits for its turn"),
            Self::VersionRefused { running, wanted, refusal } => {
                write!(f, "no path from {running} to {wanted}: {refusal}")
            }
            Self::VersionSettling { line } => write!(f, "the cluster has not settled on {line} yet"),
            Self::LearnerCatchingUp { machine, index, of } => {
                write!(f, "{machine}: catches up, {index} of {of}")
            }
            Self::LearnerEvicted { machine } => {
                write!(f, "{machine}: it made no progress as a learner and was removed again")
            }
            Self::HealFirst { change, unhealthy } => {
                write!(f, "{change} waits for unhealthy members: {}", join(unhealthy.iter()))
            }
            Self::ReplacedLater { machine, seconds } => {
                write!(f, "{machine}: lost; it is replaced in {seconds} s (`replace_after`)")
            }
            Self::NoTransferTarget { machine, .. } => write!(f, "{machine}: no other member can take over leadership"),
            Self::AddressInUse { machine, holder } => {
                write!(f, "{machine}: the member `{holder}` has its address")
            }
            Self::AuthDiffers { made_for, wanted } => {
                write!(f, "the cluster's clients log in by {made_for}, the file says `mode: {wanted}`")
            }
            Self::AuthorityExpired { authority } => write!(f, "the {authority} CA has expired"),
            Self::TrustLags { machine, side } => {
                write!(f, "{machine}: does not have the new trust bundle or certificate of the {side} CA yet")
            }
            Self::HandshakeFailed { from, to, error } => write!(f, "{from} → {to}: TLS handshake failed: {error}"),
            Self::OldCaAccepted { machine, side, number } => {
                write!(f, "{machine}: still accepts certificates of the old {side} CA {number}")
            }
            Self::AlarmRaised { alarm: Alarm::NoSpace } => f.write_str("etcd takes no writes: its quota is used up"),
            Self::AlarmRaised { alarm: Alarm::Corrupt } => f.write_str("etcd reports that a member's data is corrupt"),
            Self::QuotaFull { in_use, quota, filled_by } => {
                let (in_use, quota) = (size(in_use.unsigned_abs()), size(quota.unsigned_abs()));
                write!(f, "etcd takes no writes: the data itself fills the quota, {in_use} of {quota}")?;
                if filled_by.is_empty() { Ok(()) } else { write!(f, "; most of it: {}", filled_by.join(", ")) }
            }
            Self::MemberCorrupt { machine, how } => write!(f, "{machine}: {how}"),
            Self::DataDisputed { machine } => {
                write!(f, "{machine}: etcd does not start: its data differs from that of another member")
            }
            Self::UnauthenticatedAccepted { machine, client } => write!(f, "{machine}: {client} client was accepted"),
            Self::ProbeFailed { machine, error } => {
                write!(f, "{machine}: rejection of unauthenticated clients could not be tested: {error}")
            }
            Self::NotTakenOver { members } => {
                write!(f, "{}: adopted read-only, raftsman changes roles and users only", join(members.iter()))
            }
            Self::Differs { machines, key, found, wanted } => {
                let colon = if machines.is_empty() { "" } else { ": " };
                write!(f, "{}{colon}`{key}` is {found}, the file says {wanted}", join(machines.iter()))
            }
            Self::MemberSilent { machine, error } => write!(f, "{machine}: it does not answer: {error}"),
            Self::UsersUnknown { error } => write!(f, "users and roles could not be listed: {error}"),
            Self::Undeliverable { machine, error } => {
                write!(f, "{machine}: its secrets cannot be delivered: {error}")
            }
            Self::BackupsUnreadable { machine, error } => {
                write!(f, "{machine}: its backup settings cannot be read: {error}")
            }
            Self::AgentNewer { machine, version, ours } => {
                write!(f, "{machine}: its agent is of version {version}, this raftsman is of version {ours}")
            }
            Self::AgentTooOld { machine, version, .. } => {
                write!(f, "{machine}: its agent, of version {version}, is too old to be upgraded by `apply`")
            }
            Self::AgentReverted { machine, version, reason, .. } => {
                write!(f, "{machine}: the upgrade of its agent to {version} was reverted: {reason}")
            }
            Self::AgentNoRoom { machine, free, size: needed } => {
                let (free, needed) = (size(*free), size(*needed));
                write!(f, "{machine}: its disk has {free} free, and the new agent binary needs {needed}")
            }
            Self::RestoredOthers { members } => {
                write!(f, "a backup is being restored for {}, and the file has other members", join(members.iter()))
            }
            Self::PasswordUnknown { user, error } => write!(f, "the password of `{user}` could not be tested: {error}"),
        }
    }
}

/// How the log of a balancer's program is read: keepalived is a unit wherever it runs.
fn log_of(machine: &Name, program: &str) -> String {
    match program {
        KEEPALIVED => format!("`journalctl -u raftsman-keepalived` on {machine}"),
        _ => format!("`raftsman logs {machine} --balancer`"),
    }
}
