//! What a plan does not do → why not, and what an operator can do about it.

mod postgres;
mod words;

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::observed::{Alarm, ClusterId, Concern, TrustDomain};
use crate::spec::{AuthMode, EtcdVersion, Name};
use crate::versions::{Line, VersionRefusal};

pub use postgres::PostgresWaiting;

/// Something that is not done, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "waiting", rename_all = "snake_case")]
pub enum Waiting {
    /// The provider could not be asked about the machine.
    MachineUnknown {
        /// Which.
        machine: Name,
        /// The error.
        error: String,
    },
    /// The machine runs and its agent does not answer.
    AgentUnreachable {
        /// Which.
        machine: Name,
        /// The error.
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
    /// The file does not have this member any more, and keeps the cluster's machines.
    DestroyPrevented {
        /// Which.
        member: String,
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
        /// The cluster that the data belongs to.
        found: ClusterId,
        /// The cluster that it should belong to.
        expected: ClusterId,
    },
    /// A member of another cluster answers at this member's address.
    ForeignMember {
        /// Which.
        machine: Name,
        /// The cluster of the member that answers.
        found: ClusterId,
        /// The cluster of the member that should answer.
        expected: ClusterId,
    },
    /// The machines hold the data of different clusters, and nothing says which is the right one.
    SeveralClusters {
        /// What was found where.
        found: Vec<(ClusterId, Vec<Name>)>,
    },
    /// The cluster formed once, and no member has data.
    AllDataLost {
        /// The cluster's id.
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
    /// Another process holds a port that etcd needs.
    PortTaken {
        /// Where.
        machine: Name,
        /// Which port.
        port: u16,
        /// The process that holds it.
        holder: String,
    },
    /// etcd crashes repeatedly.
    EtcdCrashes {
        /// Where.
        machine: Name,
        /// How often.
        restarts: u32,
        /// How it ended last.
        last_exit: String,
    },
    /// The agent is too old to run a balancer.
    BalancerUnknown {
        /// Where.
        machine: Name,
    },
    /// A program of the distribution that a balancer needs is not installed.
    PackageMissing {
        /// Where.
        machine: Name,
        /// The name of its package.
        package: String,
    },
    /// HAProxy or keepalived ended and is started again.
    BalancerStarting {
        /// Where.
        machine: Name,
        /// Which of the two.
        program: String,
        /// How it ended.
        error: String,
    },
    /// HAProxy has not found a member healthy yet that serves, or the primary.
    BalancerChecks {
        /// Where.
        machine: Name,
        /// The member, or the primary's node.
        member: Name,
        /// Where it is asked for its health.
        port: u16,
    },
    /// No instance of a balancer has taken its virtual address yet.
    VirtualAddressUnheld {
        /// The balancer.
        balancer: Name,
        /// The address.
        address: IpAddr,
    },
    /// Several instances of a balancer have its virtual address at the same time.
    VirtualAddressConflict {
        /// The balancer.
        balancer: Name,
        /// The address.
        address: IpAddr,
        /// The instances that have it.
        machines: Vec<Name>,
    },
    /// HAProxy or keepalived crashes repeatedly.
    BalancerCrashes {
        /// Where.
        machine: Name,
        /// Which of the two.
        program: String,
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
    /// etcd runs, accepts connections and does not answer.
    EtcdSilent {
        /// Where.
        machine: Name,
        /// What was tried.
        error: String,
    },
    /// etcd sends an invalid answer, which is not used.
    EtcdUnclear {
        /// Where.
        machine: Name,
        /// What it is.
        error: String,
    },
    /// etcd does not accept the password of `root`.
    AuthenticationFailed {
        /// At which members.
        members: Vec<Name>,
    },
    /// More members are lost for good than the cluster can do without.
    MajorityLost {
        /// Which, and what became of each.
        lost: Vec<String>,
        /// Of so many.
        of: usize,
    },
    /// A user that the file does not name may do everything.
    UnknownSuperuser {
        /// Which.
        user: String,
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
        /// The machine whose step waits.
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
        /// Its index.
        index: u64,
        /// The leader's index.
        of: u64,
    },
    /// A new member made no progress and was removed again.
    LearnerEvicted {
        /// Which.
        machine: Name,
    },
    /// A change of members waits for the others to be healthy.
    HealFirst {
        /// What waits.
        change: String,
        /// The members that are not healthy.
        unhealthy: Vec<String>,
    },
    /// A member is lost, and the file has it replaced after a while.
    ReplacedLater {
        /// Which.
        machine: Name,
        /// In so many seconds.
        seconds: u64,
    },
    /// There is no member to transfer leadership to.
    NoTransferTarget {
        /// The leader.
        machine: Name,
        /// How many other members could become one.
        others: usize,
    },
    /// A new member's address is another member's.
    AddressInUse {
        /// The new one.
        machine: Name,
        /// The member that has it.
        holder: String,
    },
    /// The cluster was bootstrapped for another auth mode than the file says.
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
        side: TrustDomain,
    },
    /// A client and a member that must trust each other before an authority changes do not complete a TLS handshake.
    HandshakeFailed {
        /// The client of the handshake.
        from: String,
        /// The member that it connected to.
        to: Name,
        /// What happened.
        error: String,
    },
    /// A member still accepts certificates of an authority that it should not trust any more.
    OldCaAccepted {
        /// Where.
        machine: Name,
        /// Of which side.
        side: TrustDomain,
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
    /// A member does not start, because its data differs from another member's, and which one is right is not known.
    DataDisputed {
        /// Which.
        machine: Name,
    },
    /// A client gets in that should be rejected.
    UnauthenticatedAccepted {
        /// Where.
        machine: Name,
        /// The kind of client.
        client: String,
    },
    /// Rejection of unauthenticated clients could not be tested yet.
    ProbeFailed {
        /// Where.
        machine: Name,
        /// What was seen.
        error: String,
    },
    /// These members are adopted read-only.
    NotTakenOver {
        /// The members.
        members: Vec<Name>,
    },
    /// A setting of an adopted cluster differs from the file.
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
    /// An adopted member does not answer.
    MemberSilent {
        /// Which.
        machine: Name,
        /// What was tried.
        error: String,
    },
    /// The cluster's users and roles could not be asked for.
    UsersUnknown {
        /// The error.
        error: String,
    },
    /// What is to be delivered to a machine cannot be put together.
    Undeliverable {
        /// Which.
        machine: Name,
        /// The error.
        error: String,
    },
    /// The backup settings of a machine cannot be put together.
    BackupsUnreadable {
        /// Which.
        machine: Name,
        /// The error.
        error: String,
    },
    /// A backup is restored for other members than the file has now.
    RestoredOthers {
        /// The members that it is restored for.
        members: Vec<Name>,
    },
    /// An agent is newer than this raftsman, which then changes nothing.
    AgentNewer {
        /// Where.
        machine: Name,
        /// Its version.
        version: String,
        /// The version that this raftsman ships.
        ours: String,
    },
    /// An agent is too old to be upgraded by a call.
    AgentTooOld {
        /// Where.
        machine: Name,
        /// Its version.
        version: String,
        /// What helps.
        remedy: Remedy,
    },
    /// A machine has reverted the upgrade of its agent.
    AgentReverted {
        /// Where.
        machine: Name,
        /// The version that was tried.
        version: String,
        /// Why it was reverted.
        reason: String,
        /// What helps beside another raftsman.
        remedy: Remedy,
    },
    /// A machine's disk has no room for another program of its agent.
    AgentNoRoom {
        /// Where.
        machine: Name,
        /// Free bytes.
        free: u64,
        /// Bytes of the program.
        size: u64,
    },
    /// Whether a user has the password of the file could not be tested.
    PasswordUnknown {
        /// The user.
        user: String,
        /// The error.
        error: String,
    },
    /// Of a PostgreSQL cluster, or of the etcd beneath it.
    #[serde(untagged)]
    Postgres(PostgresWaiting),
}

/// How an agent that no call can upgrade gets another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// The machine is replaced.
    Replace,
    /// The agent is installed again, over SSH.
    Install,
    /// The agent's process is ended: it starts with the new program.
    Restart,
}

/// Whether waiting helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitKind {
    /// It resolves by itself: look again.
    Transient,
    /// An operator must act.
    Blocked,
    /// Nothing has to be done.
    Informational,
}

impl Waiting {
    /// Whether waiting helps.
    pub fn kind(&self) -> WaitKind {
        match self {
            Self::Postgres(waiting) => waiting.kind(),
            Self::MachineUnknown { .. }
            | Self::AgentUnreachable { .. }
            | Self::EtcdStarting { .. }
            | Self::BalancerStarting { .. }
            | Self::BalancerChecks { .. }
            | Self::VirtualAddressUnheld { .. }
            // For a moment it is usual, when instances hear each other again. `apply` ends at its time limit if it lasts.
            | Self::VirtualAddressConflict { .. }
            | Self::EtcdSilent { .. }
            | Self::NoQuorumYet { .. }
            | Self::NoMajority { .. }
            | Self::NotMeasured { .. }
            | Self::Turn { .. }
            | Self::LearnerCatchingUp { .. }
            | Self::HealFirst { .. }
            | Self::ReplacedLater { .. }
            | Self::NoTransferTarget { others: 1.., .. }
            | Self::TrustLags { .. }
            | Self::HandshakeFailed { .. }
            | Self::VersionSettling { .. }
            | Self::ProbeFailed { .. }
            | Self::MemberSilent { .. }
            | Self::UsersUnknown { .. }
            | Self::PasswordUnknown { .. } => WaitKind::Transient,
            Self::NotTakenOver { .. } | Self::TimersUnfit { .. } | Self::AgentTooOld { .. } => WaitKind::Informational,
            // With one or two members no other can take over: waiting never helps.
            Self::WouldLoseQuorum { of, .. } if *of < 3 => WaitKind::Blocked,
            Self::WouldLoseQuorum { .. } => WaitKind::Transient,
            Self::Unsafe { .. }
            | Self::AgentNewer { .. }
            | Self::AgentReverted { .. }
            | Self::AgentNoRoom { .. }
            | Self::EtcdUnclear { .. }
            | Self::AuthenticationFailed { .. }
            | Self::MajorityLost { .. }
            | Self::UnknownSuperuser { .. }
            | Self::MachineLost { .. }
            | Self::MachineRebuilt { .. }
            | Self::DataLost { .. }
            | Self::CannotMove { .. }
            | Self::DestroyPrevented { .. }
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
            | Self::BalancerUnknown { .. }
            | Self::PackageMissing { .. }
            | Self::BalancerCrashes { .. }
            | Self::VersionRefused { .. }
            | Self::LearnerEvicted { .. }
            | Self::AddressInUse { .. }
            | Self::NoTransferTarget { others: 0, .. }
            | Self::AuthDiffers { .. }
            | Self::AuthorityExpired { .. }
            | Self::OldCaAccepted { .. }
            | Self::AlarmRaised { .. }
            | Self::QuotaFull { .. }
            | Self::MemberCorrupt { .. }
            | Self::Differs { .. }
            | Self::Undeliverable { .. }
            | Self::BackupsUnreadable { .. }
            | Self::RestoredOthers { .. }
            | Self::DataDisputed { .. }
            | Self::UnauthenticatedAccepted { .. } => WaitKind::Blocked,
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
            | Self::BalancerUnknown { machine }
            | Self::PackageMissing { machine, .. }
            | Self::BalancerStarting { machine, .. }
            | Self::BalancerChecks { machine, .. }
            | Self::BalancerCrashes { machine, .. }
            | Self::EtcdStarting { machine, .. }
            | Self::EtcdSilent { machine, .. }
            | Self::EtcdUnclear { machine, .. }
            | Self::NoQuorumYet { machine, .. }
            | Self::WouldLoseQuorum { machine, .. }
            | Self::Turn { machine, .. }
            | Self::LearnerCatchingUp { machine, .. }
            | Self::LearnerEvicted { machine }
            | Self::ReplacedLater { machine, .. }
            | Self::NoTransferTarget { machine, .. }
            | Self::AddressInUse { machine, .. }
            | Self::MemberCorrupt { machine, .. }
            | Self::DataDisputed { machine }
            | Self::TrustLags { machine, .. }
            | Self::HandshakeFailed { to: machine, .. }
            | Self::OldCaAccepted { machine, .. }
            | Self::UnauthenticatedAccepted { machine, .. }
            | Self::MemberSilent { machine, .. }
            | Self::Undeliverable { machine, .. }
            | Self::BackupsUnreadable { machine, .. }
            | Self::AgentNewer { machine, .. }
            | Self::AgentTooOld { machine, .. }
            | Self::AgentReverted { machine, .. }
            | Self::AgentNoRoom { machine, .. }
            | Self::ProbeFailed { machine, .. } => Some(machine),
            Self::Unsafe { machine, .. } => machine.as_ref(),
            Self::Postgres(waiting) => waiting.machine(),
            Self::TimersUnfit { concern } => concern.machine(),
            Self::Differs { machines, .. } => machines.first().filter(|_| machines.len() == 1),
            Self::SeveralClusters { .. }
            | Self::AllDataLost { .. }
            | Self::AuthenticationFailed { .. }
            | Self::MajorityLost { .. }
            | Self::UnknownSuperuser { .. }
            | Self::NoMajority { .. }
            | Self::NotMeasured { .. }
            | Self::VirtualAddressUnheld { .. }
            | Self::VirtualAddressConflict { .. }
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
            | Self::DestroyPrevented { .. }
            | Self::PasswordUnknown { .. } => None,
        }
    }
}
