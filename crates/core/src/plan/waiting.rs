//! What a plan does not do → why not, and what somebody can do about it.

use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::observed::{Alarm, ClusterId, Concern, Side, size};
use crate::spec::{AuthMode, EtcdVersion, Name};
use crate::versions::{Line, VersionRefusal};

/// Something that is not done, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "waiting", rename_all = "snake_case")]
pub enum Waiting {
    /// The provider could not be asked about the machine.
    MachineUnknown {
        /// Which.
        machine: Name,
        /// What stood in the way.
        error: String,
    },
    /// The machine runs and its agent does not answer.
    AgentUnreachable {
        /// Which.
        machine: Name,
        /// What stood in the way.
        error: String,
        /// Since when.
        since: Timestamp,
    },
    /// The machine is gone, and a member of the cluster with it.
    MachineLost {
        /// Which.
        machine: Name,
    },
    /// The machine is a new one under an old name: the member's data went with the old one.
    MachineRebuilt {
        /// Which.
        machine: Name,
    },
    /// etcd ran on this machine, and its data is gone.
    DataLost {
        /// Which.
        machine: Name,
    },
    /// The file gives a machine another address, and this provider's machines do not move.
    CannotMove {
        /// Which.
        machine: Name,
        /// Where it is.
        from: IpAddr,
        /// Where the file wants it.
        to: IpAddr,
    },
    /// Another machine answers at this one's address.
    WrongMachine {
        /// The machine that should answer.
        machine: Name,
        /// The one that does.
        found: Name,
    },
    /// The data directory holds something that is not a member's data.
    DataUnreadable {
        /// Which.
        machine: Name,
        /// What is wrong with it.
        problem: String,
    },
    /// The data on the disk belongs to another cluster.
    ForeignData {
        /// Which.
        machine: Name,
        /// Whose data it is.
        found: ClusterId,
        /// Whose it should be.
        expected: ClusterId,
    },
    /// A member of another cluster answers at this member's address.
    ForeignMember {
        /// Which.
        machine: Name,
        /// Whose member answers.
        found: ClusterId,
        /// Whose should.
        expected: ClusterId,
    },
    /// The machines hold the data of different clusters, and nothing says which is the right one.
    SeveralClusters {
        /// What was found where.
        found: Vec<(ClusterId, Vec<Name>)>,
    },
    /// The cluster formed once, and no member has data.
    AllDataLost {
        /// The cluster that was.
        cluster: ClusterId,
    },
    /// The machine's clock and ours differ too much for certificates to be trusted.
    ClockSkew {
        /// Which.
        machine: Name,
        /// By how many milliseconds it is ahead of ours.
        offset_ms: i64,
    },
    /// The disk is nearly full.
    DiskFull {
        /// Which.
        machine: Name,
        /// Free bytes.
        free: u64,
    },
    /// Somebody else holds a port that etcd needs.
    PortTaken {
        /// Where.
        machine: Name,
        /// Which port.
        port: u16,
        /// Who.
        holder: String,
    },
    /// etcd ends again and again.
    EtcdCrashes {
        /// Where.
        machine: Name,
        /// How often.
        restarts: u32,
        /// How it ended last.
        last_exit: String,
    },
    /// etcd runs and has not answered yet.
    EtcdStarting {
        /// Where.
        machine: Name,
        /// What was tried.
        error: String,
    },
    /// etcd answers, and no linearizable read went through it yet.
    NoQuorumYet {
        /// Where.
        machine: Name,
        /// What the read said.
        error: String,
    },
    /// Too few members can be started for a majority.
    NoMajority {
        /// So many can.
        ready: usize,
        /// So many are needed.
        needed: usize,
    },
    /// Too few machines can be asked to measure.
    NotMeasured {
        /// So many can.
        ready: usize,
        /// So many are needed.
        needed: usize,
    },
    /// Heartbeat or election time-out do not suit what was measured, or the disk does not suit etcd.
    TimersUnfit {
        /// In which way.
        concern: Concern,
    },
    /// The step would cost quorum.
    WouldLoseQuorum {
        /// What would be done.
        verb: String,
        /// Where.
        machine: Name,
        /// Healthy members.
        healthy: usize,
        /// Of so many.
        of: usize,
    },
    /// The step's precondition does not hold.
    Unsafe {
        /// What would be done.
        verb: String,
        /// Where.
        machine: Option<Name>,
        /// What does not hold.
        refusal: String,
    },
    /// Another disruptive step goes first.
    Turn {
        /// Who waits.
        machine: Name,
        /// What for.
        verb: String,
    },
    /// The file's version cannot be reached from those that run.
    VersionRefused {
        /// The oldest that runs.
        running: EtcdVersion,
        /// What the file says.
        wanted: EtcdVersion,
        /// Why.
        refusal: VersionRefusal,
    },
    /// etcd is about to settle on a line.
    VersionSettling {
        /// The line.
        line: Line,
    },
    /// A new member gets its data.
    LearnerCatchingUp {
        /// Which.
        machine: Name,
        /// So far it is.
        index: u64,
        /// And the leader here.
        of: u64,
    },
    /// A new member did not get on and was taken out again.
    LearnerEvicted {
        /// Which.
        machine: Name,
    },
    /// A change of members waits for the others to be healthy.
    HealFirst {
        /// What waits.
        change: String,
        /// Who is not healthy.
        unhealthy: Vec<String>,
    },
    /// A member is lost, and the file has it replaced after a while.
    ReplacedLater {
        /// Which.
        machine: Name,
        /// In so many seconds.
        seconds: u64,
    },
    /// There is nobody to hand leadership to.
    NoHeir {
        /// Who leads.
        machine: Name,
        /// How many other members could become one.
        others: usize,
    },
    /// A new member's address is another member's.
    AddressInUse {
        /// The new one.
        machine: Name,
        /// Whose it is.
        holder: String,
    },
    /// The cluster was made for another way to prove who one is than the file says.
    AuthDiffers {
        /// What it was made for.
        made_for: AuthMode,
        /// What the file says.
        wanted: AuthMode,
    },
    /// The authority that signs certificates has expired.
    AuthorityExpired {
        /// Which: `peers` or `clients`.
        authority: String,
    },
    /// A member has not got the trust or the certificate yet that a change of the authority rests on.
    TrustLags {
        /// Which.
        machine: Name,
        /// Of which side.
        side: Side,
    },
    /// Two that must trust each other before an authority changes do not shake hands.
    HandshakeFailed {
        /// Who came.
        from: String,
        /// To whom.
        to: Name,
        /// What happened.
        error: String,
    },
    /// A member lets somebody in with a certificate of an authority that it should not trust any more.
    StillLetIn {
        /// Where.
        machine: Name,
        /// Of which side.
        side: Side,
        /// Which of its authorities.
        number: u32,
    },
    /// etcd raised an alarm.
    AlarmRaised {
        /// Which.
        alarm: Alarm,
    },
    /// The data itself fills the quota.
    QuotaFull {
        /// So much is in use after compaction.
        in_use: i64,
        /// Of so much.
        quota: i64,
        /// What fills the database most.
        filled_by: Vec<String>,
    },
    /// A member's data is not that of the others.
    MemberCorrupt {
        /// Which.
        machine: Name,
        /// How it shows.
        how: String,
    },
    /// A member does not start, because its data is not that of another, and nobody can tell whose is right.
    DataDisputed {
        /// Which.
        machine: Name,
    },
    /// Somebody gets in who should not.
    DoorOpen {
        /// Where.
        machine: Name,
        /// Who.
        who: String,
    },
    /// Whether strangers are refused could not be told yet.
    DoorUnclear {
        /// Where.
        machine: Name,
        /// What was seen.
        error: String,
    },
    /// Others run these members: raftsman only watches them.
    NotTakenOver {
        /// Who.
        members: Vec<Name>,
    },
    /// Something of a cluster that others run is not as the file says.
    Differs {
        /// Where; empty for the cluster as a whole.
        machines: Vec<Name>,
        /// What, in the file's words.
        key: String,
        /// What was found.
        found: String,
        /// What the file says.
        wanted: String,
    },
    /// A member that others run does not answer.
    MemberSilent {
        /// Which.
        machine: Name,
        /// What was tried.
        error: String,
    },
    /// The cluster's users and roles could not be asked for.
    UsersUnknown {
        /// What stood in the way.
        error: String,
    },
    /// What is to be delivered to a machine cannot be put together.
    Undeliverable {
        /// Which.
        machine: Name,
        /// What stands in the way.
        error: String,
    },
    /// A backup is restored for other members than the file has now.
    RestoredOthers {
        /// For whom.
        members: Vec<Name>,
    },
    /// Whether a user has the password of the file could not be told.
    PasswordUnknown {
        /// Whose.
        user: String,
        /// What stood in the way.
        error: String,
    },
}

/// Whether waiting helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Patience {
    /// It mends itself: look again.
    Soon,
    /// Somebody must do something.
    Blocked,
    /// Good to know; nothing has to be done.
    Note,
}

impl Waiting {
    /// Whether waiting helps.
    pub fn patience(&self) -> Patience {
        match self {
            Self::MachineUnknown { .. }
            | Self::AgentUnreachable { .. }
            | Self::EtcdStarting { .. }
            | Self::NoQuorumYet { .. }
            | Self::NoMajority { .. }
            | Self::NotMeasured { .. }
            | Self::Turn { .. }
            | Self::LearnerCatchingUp { .. }
            | Self::HealFirst { .. }
            | Self::ReplacedLater { .. }
            | Self::NoHeir { others: 1.., .. }
            | Self::TrustLags { .. }
            | Self::HandshakeFailed { .. }
            | Self::VersionSettling { .. }
            | Self::DoorUnclear { .. }
            | Self::MemberSilent { .. }
            | Self::UsersUnknown { .. }
            | Self::PasswordUnknown { .. } => Patience::Soon,
            Self::NotTakenOver { .. } | Self::TimersUnfit { .. } => Patience::Note,
            // With one or two members no other can take over: waiting never helps.
            Self::WouldLoseQuorum { of, .. } if *of < 3 => Patience::Blocked,
            Self::WouldLoseQuorum { .. } => Patience::Soon,
            Self::Unsafe { .. }
            | Self::MachineLost { .. }
            | Self::MachineRebuilt { .. }
            | Self::DataLost { .. }
            | Self::CannotMove { .. }
            | Self::WrongMachine { .. }
            | Self::DataUnreadable { .. }
            | Self::ForeignData { .. }
            | Self::ForeignMember { .. }
            | Self::SeveralClusters { .. }
            | Self::AllDataLost { .. }
            | Self::ClockSkew { .. }
            | Self::DiskFull { .. }
            | Self::PortTaken { .. }
            | Self::EtcdCrashes { .. }
            | Self::VersionRefused { .. }
            | Self::LearnerEvicted { .. }
            | Self::AddressInUse { .. }
            | Self::NoHeir { others: 0, .. }
            | Self::AuthDiffers { .. }
            | Self::AuthorityExpired { .. }
            | Self::StillLetIn { .. }
            | Self::AlarmRaised { .. }
            | Self::QuotaFull { .. }
            | Self::MemberCorrupt { .. }
            | Self::Differs { .. }
            | Self::Undeliverable { .. }
            | Self::RestoredOthers { .. }
            | Self::DataDisputed { .. }
            | Self::DoorOpen { .. } => Patience::Blocked,
        }
    }

    /// The machine that it is about.
    pub fn machine(&self) -> Option<&Name> {
        match self {
            Self::MachineUnknown { machine, .. }
            | Self::AgentUnreachable { machine, .. }
            | Self::MachineLost { machine }
            | Self::MachineRebuilt { machine }
            | Self::DataLost { machine }
            | Self::CannotMove { machine, .. }
            | Self::WrongMachine { machine, .. }
            | Self::DataUnreadable { machine, .. }
            | Self::ForeignData { machine, .. }
            | Self::ForeignMember { machine, .. }
            | Self::ClockSkew { machine, .. }
            | Self::DiskFull { machine, .. }
            | Self::PortTaken { machine, .. }
            | Self::EtcdCrashes { machine, .. }
            | Self::EtcdStarting { machine, .. }
            | Self::NoQuorumYet { machine, .. }
            | Self::WouldLoseQuorum { machine, .. }
            | Self::Turn { machine, .. }
            | Self::LearnerCatchingUp { machine, .. }
            | Self::LearnerEvicted { machine }
            | Self::ReplacedLater { machine, .. }
            | Self::NoHeir { machine, .. }
            | Self::AddressInUse { machine, .. }
            | Self::MemberCorrupt { machine, .. }
            | Self::DataDisputed { machine }
            | Self::TrustLags { machine, .. }
            | Self::HandshakeFailed { to: machine, .. }
            | Self::StillLetIn { machine, .. }
            | Self::DoorOpen { machine, .. }
            | Self::MemberSilent { machine, .. }
            | Self::Undeliverable { machine, .. }
            | Self::DoorUnclear { machine, .. } => Some(machine),
            Self::Unsafe { machine, .. } => machine.as_ref(),
            Self::TimersUnfit { concern } => concern.machine(),
            Self::Differs { machines, .. } => machines.first().filter(|_| machines.len() == 1),
            Self::SeveralClusters { .. }
            | Self::AllDataLost { .. }
            | Self::NoMajority { .. }
            | Self::NotMeasured { .. }
            | Self::HealFirst { .. }
            | Self::VersionRefused { .. }
            | Self::VersionSettling { .. }
            | Self::AuthDiffers { .. }
            | Self::AuthorityExpired { .. }
            | Self::AlarmRaised { .. }
            | Self::QuotaFull { .. }
            | Self::NotTakenOver { .. }
            | Self::UsersUnknown { .. }
            | Self::RestoredOthers { .. }
            | Self::PasswordUnknown { .. } => None,
        }
    }

    /// What somebody can do about it.
    pub fn next(&self) -> String {
        match self {
            Self::MachineUnknown { .. } => "check that the provider answers".to_owned(),
            Self::AgentUnreachable { machine, .. } => {
                format!("look at the agent's log: `raftsman logs {machine} --agent`, and at the machine itself")
            }
            Self::MachineLost { machine } | Self::MachineRebuilt { machine } => format!(
                "bring the old machine `{machine}` back with its disk, or give it up: `raftsman replace {machine}`"
            ),
            Self::DataLost { machine } => format!(
                "bring the data of `{machine}` back, or give it up: `raftsman replace {machine}`; an empty member must \
                 never rejoin under its old id"
            ),
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
                format!("find out who runs that etcd at the address of `{machine}`, or give the member another address")
            }
            Self::SeveralClusters { .. } => {
                "move the wrong data directories away: raftsman does not guess which cluster is yours".to_owned()
            }
            Self::AllDataLost { .. } => {
                "bring the data back, or `raftsman destroy` the cluster and apply again to start with an empty one"
                    .to_owned()
            }
            Self::ClockSkew { machine, .. } => format!("set the clock of `{machine}`, or of this computer, right"),
            Self::DiskFull { machine, .. } => format!("make room on the disk of `{machine}`"),
            Self::PortTaken { holder, .. } => format!("stop {holder}, or give the member another address"),
            Self::EtcdCrashes { machine, .. } => format!("read etcd's log: `raftsman logs {machine}`"),
            Self::EtcdStarting { machine, .. } => {
                format!("if it takes long, read etcd's log: `raftsman logs {machine}`")
            }
            Self::NoQuorumYet { .. } => "it needs a majority of the members to answer each other".to_owned(),
            Self::NoMajority { .. } => "see above why the other members are not ready".to_owned(),
            Self::NotMeasured { .. } => {
                "bring the agents of the other machines back: see above, and `raftsman status`".to_owned()
            }
            Self::TimersUnfit { concern } => concern.next(),
            Self::Unsafe { .. } => "look at `raftsman status`, and apply again once it holds".to_owned(),
            Self::WouldLoseQuorum { of, .. } if *of < 3 => {
                format!("a cluster of {of} has no member to spare: give it three members")
            }
            Self::WouldLoseQuorum { .. } => "heal the unhealthy members first".to_owned(),
            Self::Turn { .. } => "one at a time".to_owned(),
            Self::VersionRefused { running, refusal, .. } => refusal.next(*running),
            Self::VersionSettling { .. } => "etcd looks every few seconds whether all members run it".to_owned(),
            Self::LearnerCatchingUp { .. } => "it gets its vote when it has caught up".to_owned(),
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
            Self::NoHeir { .. } => "it needs another healthy member of the file".to_owned(),
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
                format!("it follows by itself once `{machine}` can be reached; see `raftsman status`")
            }
            Self::HandshakeFailed { to, .. } => {
                format!("if it does not mend itself, read etcd's log: `raftsman logs {to}`")
            }
            Self::StillLetIn { .. } => {
                "if the old and the new CA are below the same root, bring them without the root; otherwise find out \
                 what etcd trusts there"
                    .to_owned()
            }
            Self::AlarmRaised { alarm: Alarm::NoSpace } => "apply makes room once a majority answers".to_owned(),
            Self::AlarmRaised { alarm: Alarm::Corrupt } => {
                "`raftsman verify` compares the members; restart nothing before it is clear which one differs"
                    .to_owned()
            }
            Self::QuotaFull { .. } => {
                "raise `quota:` in the file, or delete what fills it (deleting works); then apply again".to_owned()
            }
            Self::DataDisputed { .. } => {
                "`raftsman verify` compares those that run; replace nobody before it is clear whose data is right"
                    .to_owned()
            }
            Self::MemberCorrupt { machine, .. } => {
                format!("have it fetch all data anew from the others: `raftsman replace {machine}`")
            }
            Self::DoorOpen { .. } => "take the cluster off the network until this is understood".to_owned(),
            Self::DoorUnclear { .. } | Self::UsersUnknown { .. } => "it is tried again".to_owned(),
            Self::NotTakenOver { .. } => {
                "taking them over needs an agent on each machine and the keys of both authorities, and is not in this \
                 version yet"
                    .to_owned()
            }
            Self::Differs { .. } => {
                "write what was found into the file, or change it where the member is run: raftsman restarts no member \
                 that is not its own"
                    .to_owned()
            }
            Self::MemberSilent { .. } => "look at it where it is run".to_owned(),
            Self::Undeliverable { .. } => {
                "put it where `backups`, or `admin` and `logs` below `machines`, say that it is, then apply again"
                    .to_owned()
            }
            Self::RestoredOthers { .. } => {
                "give the file the members that it had, or decide anew with `raftsman restore`".to_owned()
            }
            Self::PasswordUnknown { user, .. } => {
                format!("see to it that the password of `{user}` can be read where the file says that it is")
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
            Self::MachineUnknown { machine, error } => write!(f, "{machine}: the provider could not be asked: {error}"),
            Self::AgentUnreachable { machine, error, .. } => write!(f, "{machine}: the agent does not answer: {error}"),
            Self::MachineLost { machine } => write!(f, "{machine}: the machine is gone, and a member's data with it"),
            Self::MachineRebuilt { machine } => {
                write!(f, "{machine}: this is another machine than the one that etcd was started on")
            }
            Self::DataLost { machine } => {
                write!(f, "{machine}: etcd ran here and its data directory is empty")
            }
            Self::CannotMove { machine, from, to } => {
                write!(f, "{machine}: it is at {from} and cannot move to {to}: that is another machine")
            }
            Self::WrongMachine { machine, found } => {
                write!(f, "{machine}: at its address answers the machine `{found}`")
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
            Self::AllDataLost { cluster } => write!(f, "cluster {cluster} existed, and no member has data any more"),
            Self::ClockSkew { machine, offset_ms } => {
                let (seconds, word) =
                    (offset_ms.unsigned_abs() / 1000, if *offset_ms > 0 { "ahead of" } else { "behind" });
                write!(f, "{machine}: its clock is {seconds} s {word} ours")
            }
            Self::DiskFull { machine, free } => {
                write!(f, "{machine}: its disk has {} MiB free, etcd needs at least 64", free / (1024 * 1024))
            }
            Self::PortTaken { machine, port, holder } => write!(f, "{machine}: port {port} is held by {holder}"),
            Self::EtcdCrashes { machine, restarts, last_exit } => {
                write!(f, "{machine}: etcd ended {restarts} times: {last_exit}")
            }
            Self::EtcdStarting { machine, .. } => write!(f, "{machine}: etcd is starting"),
            Self::NoQuorumYet { machine, .. } => write!(f, "{machine}: no linearizable read through it yet"),
            Self::NoMajority { ready, needed } => {
                let members = if *ready == 1 { "member" } else { "members" };
                write!(f, "{ready} {members} can be started, a majority is {needed}")
            }
            Self::NotMeasured { ready, needed } => {
                write!(
                    f,
                    "the timers are to be measured, and {ready} of the {needed} agents that it takes can be asked"
                )
            }
            Self::TimersUnfit { concern } => concern.fmt(f),
            Self::WouldLoseQuorum { verb, machine, healthy, of } => {
                write!(f, "{machine}: {verb} would cost quorum: {healthy} of {of} members are healthy")
            }
            Self::Unsafe { verb, machine: Some(machine), refusal } => {
                write!(f, "{machine}: not safe to {verb}: {refusal}")
            }
            Self::Unsafe { verb, machine: None, refusal } => write!(f, "not safe to {verb}: {refusal}"),
            Self::Turn { machine, verb } => write!(f, "{machine}: {verb} waits for its turn"),
            Self::VersionRefused { running, wanted, refusal } => {
                write!(f, "no way from {running} to {wanted}: {refusal}")
            }
            Self::VersionSettling { line } => write!(f, "the cluster has not settled on {line} yet"),
            Self::LearnerCatchingUp { machine, index, of } => {
                write!(f, "{machine}: catches up, {index} of {of}")
            }
            Self::LearnerEvicted { machine } => {
                write!(f, "{machine}: it did not get on as a learner and was taken out again")
            }
            Self::HealFirst { change, unhealthy } => {
                write!(f, "{change} waits for {}: not healthy", join(unhealthy.iter()))
            }
            Self::ReplacedLater { machine, seconds } => {
                write!(f, "{machine}: lost; it is replaced in {seconds} s (`replace_after`)")
            }
            Self::NoHeir { machine, .. } => write!(f, "{machine}: nobody can take leadership over from it"),
            Self::AddressInUse { machine, holder } => {
                write!(f, "{machine}: its address is the one of the member `{holder}`")
            }
            Self::AuthDiffers { made_for, wanted } => {
                write!(f, "the cluster's clients log in by {made_for}, the file says `mode: {wanted}`")
            }
            Self::AuthorityExpired { authority } => write!(f, "the authority of the {authority} has expired"),
            Self::TrustLags { machine, side } => {
                write!(f, "{machine}: has not got what the change of the {side} CA rests on")
            }
            Self::HandshakeFailed { from, to, error } => write!(f, "{from} → {to}: no handshake: {error}"),
            Self::StillLetIn { machine, side, number } => {
                write!(f, "{machine}: still lets in whom the old {side} CA {number} vouches for")
            }
            Self::AlarmRaised { alarm: Alarm::NoSpace } => f.write_str("etcd takes no writes: its quota is used up"),
            Self::AlarmRaised { alarm: Alarm::Corrupt } => f.write_str("etcd says that a member's data is corrupt"),
            Self::QuotaFull { in_use, quota, filled_by } => {
                let (in_use, quota) = (size(in_use.unsigned_abs()), size(quota.unsigned_abs()));
                write!(f, "etcd takes no writes: the data itself fills the quota, {in_use} of {quota}")?;
                if filled_by.is_empty() { Ok(()) } else { write!(f, "; most of it: {}", filled_by.join(", ")) }
            }
            Self::MemberCorrupt { machine, how } => write!(f, "{machine}: {how}"),
            Self::DataDisputed { machine } => {
                write!(f, "{machine}: etcd does not start: its data differs from that of another member")
            }
            Self::DoorOpen { machine, who } => write!(f, "{machine}: {who} client was let in"),
            Self::DoorUnclear { machine, error } => write!(f, "{machine}: strangers could not be tried: {error}"),
            Self::NotTakenOver { members } => {
                write!(f, "others run {}: raftsman watches, and changes roles and users only", join(members.iter()))
            }
            Self::Differs { machines, key, found, wanted } => {
                let colon = if machines.is_empty() { "" } else { ": " };
                write!(f, "{}{colon}`{key}` is {found}, the file says {wanted}", join(machines.iter()))
            }
            Self::MemberSilent { machine, error } => write!(f, "{machine}: it does not answer: {error}"),
            Self::UsersUnknown { error } => write!(f, "users and roles could not be asked for: {error}"),
            Self::Undeliverable { machine, error } => {
                write!(f, "{machine}: its secrets cannot be delivered: {error}")
            }
            Self::RestoredOthers { members } => {
                write!(f, "a backup is being restored for {}, and the file has other members", join(members.iter()))
            }
            Self::PasswordUnknown { user, error } => write!(f, "the password of `{user}` could not be tried: {error}"),
        }
    }
}
