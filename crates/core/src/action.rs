//! All that may be done to the world: a closed list, as data, and what each means for safety.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::observed::{Alarm, ClusterId, Granted, MemberId, Purpose, Side};
use crate::spec::{EtcdVersion, KeySpan, Name};

/// One deed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// Make, or take in, the cluster's certificate authorities.
    MakeAuthorities,
    /// Make, or take in, the authority that is to sign next. Nobody trusts it yet.
    NextAuthority {
        /// Whose.
        side: Side,
    },
    /// From now on the next authority signs.
    SwitchAuthority {
        /// Whose.
        side: Side,
    },
    /// The old authorities are to be trusted no more.
    RetireAuthority {
        /// Whose.
        side: Side,
        /// Not the old ones, but the one that was to be the next and is not wanted any more.
        unused: bool,
    },
    /// Nobody lets certificates of the old authorities in any more: their keys go, too.
    ForgetAuthority {
        /// Whose.
        side: Side,
    },
    /// Put the certificates of all authorities that are to be trusted beside a certificate. etcd reads them when it
    /// starts.
    StoreTrust {
        /// Where.
        machine: Name,
        /// Beside which.
        purpose: Purpose,
    },
    /// Make the machine.
    CreateMachine {
        /// Which.
        machine: Name,
    },
    /// Start a machine that exists and does not run.
    StartMachine {
        /// Which.
        machine: Name,
    },
    /// Take the new machine's agent into the fleet: it proves its join token and gets its certificate.
    Enroll {
        /// Which.
        machine: Name,
    },
    /// Measure every machine's disk and the network between them, and set heartbeat and election time-outs by it.
    Measure,
    /// Put a version of etcd beside those that are there.
    InstallEtcd {
        /// Where.
        machine: Name,
        /// Which.
        version: EtcdVersion,
    },
    /// Have a key made on the machine, and sign a certificate for it.
    IssueCertificate {
        /// Where.
        machine: Name,
        /// What for.
        purpose: Purpose,
        /// An address that is to be in it beside those of the file: where the member still is.
        also: Option<IpAddr>,
    },
    /// Write etcd's configuration file.
    ConfigureEtcd {
        /// Where.
        machine: Name,
        /// The version that will read it.
        version: EtcdVersion,
        /// The address that it is for, while that is not the one of the file.
        at: Option<IpAddr>,
        /// Digest of the file.
        digest: String,
    },
    /// Have other rules of who may reach what hold on a machine that raftsman made.
    SetFirewall {
        /// Where.
        machine: Name,
        /// Digest of the rules.
        digest: String,
    },
    /// Have an agent accept other clients: the fleet's CAs that it trusts, and the certificates that are revoked.
    SetAccess {
        /// Where.
        machine: Name,
        /// Digest of both.
        digest: String,
    },
    /// Have an agent make a new key, and sign a certificate for it.
    RenewAgent {
        /// Where.
        machine: Name,
    },
    /// Bring the secrets that the file refers to for machines, and what goes with them, to one that raftsman made.
    Deliver {
        /// Where.
        machine: Name,
    },
    /// Start etcd.
    StartEtcd {
        /// Where.
        machine: Name,
        /// Which version.
        version: EtcdVersion,
        /// What its data directory must hold, checked again on the machine.
        data: StartData,
    },
    /// Stop etcd and start it again, on the configuration that is there.
    RestartEtcd {
        /// Where.
        machine: Name,
        /// Which version.
        version: EtcdVersion,
        /// The cluster that its data must belong to.
        cluster: ClusterId,
    },
    /// Stop and start all of them at the same time: none can shake hands with one that was not restarted, because the
    /// authority that all of them trust has ended.
    RestartTogether {
        /// Where, and which version.
        machines: BTreeMap<Name, EtcdVersion>,
        /// The cluster that their data must belong to.
        cluster: ClusterId,
    },
    /// Stop etcd for good: it is no member any more.
    StopEtcd {
        /// Where.
        machine: Name,
    },
    /// Put the data of one that is no member any more out of the way.
    ClearData {
        /// Where.
        machine: Name,
        /// Whose data it must be; none when it cannot be read as a member's.
        member: Option<MemberId>,
    },
    /// Fill the data directory of the one that survived from its own data, which was put away: a new cluster of one
    /// member, with revisions above all that anybody saw.
    RestoreData {
        /// Where.
        machine: Name,
        /// The version whose tool does it.
        version: EtcdVersion,
    },
    /// Try the backup that a new cluster is born from in a throwaway etcd, and make one snapshot of it for all members.
    PrepareRestore,
    /// Fill an empty data directory from the snapshot that all members are restored from.
    RestoreBackup {
        /// Where.
        machine: Name,
        /// The version whose tool does it.
        version: EtcdVersion,
    },
    /// Start the members that were restored where no client finds them, see that all hold the same, then start them for
    /// everybody.
    CompareRestored {
        /// All of them.
        machines: Vec<Name>,
    },
    /// Give the machine back, with its disk.
    DeleteMachine {
        /// Which.
        machine: Name,
    },
    /// Take the machine away but for the disk with its data, around which it is made anew.
    RebuildMachine {
        /// Which.
        machine: Name,
    },
    /// Give the machine another address. etcd goes on at the old one until it is restarted.
    MoveMachine {
        /// Which.
        machine: Name,
        /// Its new address.
        address: IpAddr,
    },
    /// Take a member in as a learner: it gets all data before it has a vote.
    AddLearner {
        /// Its machine.
        machine: Name,
        /// Where other members will reach it.
        peer_url: String,
    },
    /// Give a learner that has caught up its vote.
    PromoteMember {
        /// Its machine.
        machine: Name,
        /// Which.
        member: MemberId,
    },
    /// Take a member out of the cluster.
    RemoveMember {
        /// Its name, or where other members would reach it when it never had one.
        name: String,
        /// Which.
        member: MemberId,
    },
    /// Tell the cluster where a member is reached from now on, and restart it there.
    UpdateMember {
        /// Its machine.
        machine: Name,
        /// Which.
        member: MemberId,
        /// Where other members reach it from now on.
        peer_url: String,
        /// Which version.
        version: EtcdVersion,
        /// The cluster that its data must belong to.
        cluster: ClusterId,
    },
    /// Hand leadership over.
    MoveLeader {
        /// To whom.
        machine: Name,
        /// To whom.
        member: MemberId,
    },
    /// Drop what was overwritten or deleted before this revision, on every member. The files stay as large as they are.
    Compact {
        /// The oldest revision that can still be read.
        revision: i64,
    },
    /// Write a member's database anew, without the room that is free in it. It answers nobody meanwhile.
    Defragment {
        /// Where.
        machine: Name,
    },
    /// Take back an alarm whose cause is gone.
    DisarmAlarm {
        /// Which.
        alarm: Alarm,
    },
    /// Save all data in a file of the state, before a version comes that may not give it back.
    TakeSnapshot {
        /// The version that is about to come.
        version: EtcdVersion,
    },
    /// Tell etcd that the cluster goes down to this line: it rewrites its data for it.
    EnableDowngrade {
        /// The first version of the line.
        version: EtcdVersion,
    },
    /// Call off a downgrade that etcd was told of.
    CancelDowngrade,
    /// Make the superuser `root`, with the role `root`.
    CreateRoot,
    /// Give `root` the password that the file refers to, in place of the one that the state knows of.
    ChangeRootPassword,
    /// Turn auth on: from now on nobody gets in without credentials.
    EnableAuth,
    /// Turn auth off: whoever has a certificate of the clients' authority may do everything.
    DisableAuth,
    /// Make a role where there is none, and change what it may do.
    SetRole {
        /// Which.
        role: String,
        /// What it may do from now on, in place of what it may do with the same keys.
        set: Vec<Granted>,
        /// What it may do no more.
        revoke: Vec<KeySpan>,
    },
    /// Remove a role: nobody has it any more.
    DeleteRole {
        /// Which.
        role: String,
    },
    /// Make a user where there is none, or change its password and its roles.
    SetUser {
        /// Which.
        user: String,
        /// What becomes of the user itself. The password is the one that the file refers to.
        account: Account,
        /// Roles that it gets, before it loses any.
        grant: Vec<String>,
        /// Roles that it loses.
        revoke: Vec<String>,
    },
    /// Remove a user: it cannot come in any more.
    DeleteUser {
        /// Which.
        user: String,
    },
}

/// What becomes of a user, its roles apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Account {
    /// Nothing.
    Keep,
    /// It is made.
    Make,
    /// It gets another password.
    Password,
    /// It is removed and made again, with all its roles: etcd neither gives a password to a user that was made without
    /// one, nor takes one away.
    Remake,
}

/// What a data directory must hold for a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartData {
    /// Nothing: the member is born together with its cluster.
    Empty,
    /// Nothing: the member joins this cluster, which lists it already.
    Joining(ClusterId),
    /// This cluster's data: the member comes back.
    Of(ClusterId),
    /// This cluster's data: the member forgets all others, who are lost, and goes on alone.
    Alone(ClusterId),
}

/// What an action is done to.
enum Subject<'a> {
    /// The cluster as a whole.
    Cluster,
    /// A machine.
    Machine(&'a Name),
    /// A member of the list, a role or a user, by its name.
    Named(&'a str),
}

/// What an action means for safety. `Action::class` has one answer for each, so that a new one does not compile before
/// it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// What it changes.
    pub changes: Changes,
    /// Whether a member is away while it is done.
    pub takes_member: bool,
    /// Whether no other action brings back what it takes away.
    pub irreversible: bool,
    /// What may be done at the same time.
    pub company: Company,
}

/// What an action changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Changes {
    /// Nothing of the cluster: it measures, saves or tries something.
    Nothing,
    /// One machine, or what is installed and runs on it.
    Machine,
    /// Which authorities are trusted.
    Trust,
    /// Which members there are, and which have a vote.
    Membership,
    /// Which member leads.
    Leadership,
    /// What is stored.
    Data,
    /// The version that the data is written for.
    Format,
    /// Whether clients must authenticate.
    Auth,
    /// Which users and roles there are, and what they may do.
    Users,
}

/// What may be in the same wave as an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Company {
    /// Anything that is not alone.
    Any,
    /// Nothing else that takes away for good: after one such step the cluster is looked at before the next. While all of
    /// it is restored or recovered, that was decided for all members at once.
    OneLoss,
    /// Only what changes the same.
    Alike,
    /// Nothing.
    Alone,
}

impl Class {
    const fn of(changes: Changes) -> Self {
        Self { changes, takes_member: false, irreversible: false, company: Company::Any }
    }

    const fn takes_member(self) -> Self {
        Self { takes_member: true, company: Company::Alone, ..self }
    }

    const fn irreversible(self) -> Self {
        Self { irreversible: true, ..self }
    }

    const fn beside(self, company: Company) -> Self {
        Self { company, ..self }
    }

    /// Whether it is judged once more, on a fresh look, right before it is done.
    pub fn judged_again(self) -> bool {
        match self.company {
            Company::Any => self.irreversible,
            Company::OneLoss | Company::Alike | Company::Alone => true,
        }
    }
}

impl Action {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            // Without effect on what runs, or made again by the same action.
            Self::CreateMachine { .. }
            | Self::StartMachine { .. }
            | Self::Enroll { .. }
            | Self::InstallEtcd { .. }
            | Self::IssueCertificate { .. }
            | Self::StoreTrust { .. }
            | Self::ConfigureEtcd { .. }
            | Self::SetFirewall { .. }
            | Self::SetAccess { .. }
            | Self::RenewAgent { .. }
            | Self::Deliver { .. }
            // etcd goes on at the old address.
            | Self::MoveMachine { .. }
            // Founders start together. The agent looks at the data directory again.
            | Self::StartEtcd { data: StartData::Empty | StartData::Joining(_) | StartData::Of(_), .. } => {
                Class::of(Changes::Machine)
            }
            Self::TakeSnapshot { .. } => Class::of(Changes::Nothing),
            // Others would be measured with it; it decides what all data becomes.
            Self::Measure | Self::PrepareRestore => Class::of(Changes::Nothing).beside(Company::Alone),
            Self::MakeAuthorities
            | Self::NextAuthority { .. }
            // No member was told of it yet, and the next one is made like it.
            | Self::RetireAuthority { unused: true, .. } => Class::of(Changes::Trust),
            Self::SwitchAuthority { .. } | Self::RetireAuthority { unused: false, .. } => {
                Class::of(Changes::Trust).beside(Company::Alike)
            }
            // Its key goes.
            Self::ForgetAuthority { .. } => Class::of(Changes::Trust).irreversible().beside(Company::Alike),
            Self::RestartEtcd { .. } | Self::RestartTogether { .. } => Class::of(Changes::Machine).takes_member(),
            Self::Defragment { .. } => Class::of(Changes::Data).takes_member(),
            // Its root disk goes.
            Self::RebuildMachine { .. } => Class::of(Changes::Machine).takes_member().irreversible(),
            Self::UpdateMember { .. } => Class::of(Changes::Membership).takes_member(),
            // The member of this identity does not come back.
            Self::StopEtcd { .. } | Self::DeleteMachine { .. } => {
                Class::of(Changes::Machine).irreversible().beside(Company::OneLoss)
            }
            Self::ClearData { .. } | Self::RestoreBackup { .. } => {
                Class::of(Changes::Data).irreversible().beside(Company::OneLoss)
            }
            // Clients see the restored data, and write on it.
            Self::RestoreData { .. } | Self::CompareRestored { .. } => {
                Class::of(Changes::Data).irreversible().beside(Company::Alone)
            }
            // Older revisions go.
            Self::Compact { .. } => Class::of(Changes::Data).irreversible().beside(Company::Alone),
            Self::DisarmAlarm { .. } => Class::of(Changes::Data).beside(Company::Alone),
            Self::AddLearner { .. } | Self::PromoteMember { .. } => {
                Class::of(Changes::Membership).beside(Company::Alone)
            }
            // No member comes back under an identity that was removed.
            Self::RemoveMember { .. } | Self::StartEtcd { data: StartData::Alone(_), .. } => {
                Class::of(Changes::Membership).irreversible().beside(Company::Alone)
            }
            Self::MoveLeader { .. } => Class::of(Changes::Leadership).beside(Company::Alone),
            Self::EnableDowngrade { .. } | Self::CancelDowngrade => Class::of(Changes::Format).beside(Company::Alone),
            Self::CreateRoot | Self::EnableAuth => Class::of(Changes::Auth),
            // The password that was in force goes; what clients read and write without auth is not taken back.
            Self::ChangeRootPassword | Self::DisableAuth => Class::of(Changes::Auth).irreversible(),
            Self::SetRole { .. } | Self::SetUser { account: Account::Keep | Account::Make, .. } => {
                Class::of(Changes::Users)
            }
            // The password that was in force goes, and with a user or role what it was.
            Self::SetUser { account: Account::Password | Account::Remake, .. }
            | Self::DeleteUser { .. }
            | Self::DeleteRole { .. } => Class::of(Changes::Users).irreversible(),
        }
    }

    fn done_to(&self) -> Subject<'_> {
        match self {
            Self::MakeAuthorities
            | Self::Measure
            | Self::NextAuthority { .. }
            | Self::SwitchAuthority { .. }
            | Self::RetireAuthority { .. }
            | Self::ForgetAuthority { .. }
            | Self::RestartTogether { .. }
            | Self::Compact { .. }
            | Self::DisarmAlarm { .. }
            | Self::TakeSnapshot { .. }
            | Self::CompareRestored { .. }
            | Self::PrepareRestore
            | Self::EnableDowngrade { .. }
            | Self::CancelDowngrade
            | Self::CreateRoot
            | Self::ChangeRootPassword
            | Self::EnableAuth
            | Self::DisableAuth => Subject::Cluster,
            Self::RemoveMember { name, .. } => Subject::Named(name),
            Self::SetRole { role, .. } | Self::DeleteRole { role } => Subject::Named(role),
            Self::SetUser { user, .. } | Self::DeleteUser { user } => Subject::Named(user),
            Self::CreateMachine { machine }
            | Self::StartMachine { machine }
            | Self::Enroll { machine }
            | Self::InstallEtcd { machine, .. }
            | Self::IssueCertificate { machine, .. }
            | Self::StoreTrust { machine, .. }
            | Self::ConfigureEtcd { machine, .. }
            | Self::SetFirewall { machine, .. }
            | Self::SetAccess { machine, .. }
            | Self::RenewAgent { machine }
            | Self::Deliver { machine }
            | Self::StartEtcd { machine, .. }
            | Self::RestartEtcd { machine, .. }
            | Self::StopEtcd { machine }
            | Self::ClearData { machine, .. }
            | Self::RestoreData { machine, .. }
            | Self::RestoreBackup { machine, .. }
            | Self::DeleteMachine { machine }
            | Self::RebuildMachine { machine }
            | Self::MoveMachine { machine, .. }
            | Self::AddLearner { machine, .. }
            | Self::PromoteMember { machine, .. }
            | Self::UpdateMember { machine, .. }
            | Self::MoveLeader { machine, .. }
            | Self::Defragment { machine } => Subject::Machine(machine),
        }
    }

    /// The machine that it is done to; `None` when it is done to the cluster as a whole.
    pub fn machine(&self) -> Option<&Name> {
        match self.done_to() {
            Subject::Machine(machine) => Some(machine),
            Subject::Cluster | Subject::Named(_) => None,
        }
    }

    /// What it is done to, as plans show it.
    pub fn subject(&self) -> &str {
        match self.done_to() {
            Subject::Machine(machine) => machine.as_str(),
            Subject::Named(name) => name,
            Subject::Cluster => "cluster",
        }
    }

    /// Machines whose etcd runs once it is done.
    pub fn brings_up(&self) -> Vec<&Name> {
        match self {
            Self::StartEtcd { machine, .. } | Self::RestartEtcd { machine, .. } => vec![machine],
            Self::RestartTogether { machines, .. } => machines.keys().collect(),
            Self::CompareRestored { machines } => machines.iter().collect(),
            Self::MakeAuthorities
            | Self::Measure
            | Self::NextAuthority { .. }
            | Self::SwitchAuthority { .. }
            | Self::RetireAuthority { .. }
            | Self::ForgetAuthority { .. }
            | Self::StoreTrust { .. }
            | Self::CreateMachine { .. }
            | Self::StartMachine { .. }
            | Self::Enroll { .. }
            | Self::InstallEtcd { .. }
            | Self::IssueCertificate { .. }
            | Self::ConfigureEtcd { .. }
            | Self::SetFirewall { .. }
            | Self::SetAccess { .. }
            | Self::RenewAgent { .. }
            | Self::Deliver { .. }
            | Self::StopEtcd { .. }
            | Self::ClearData { .. }
            | Self::RestoreData { .. }
            | Self::PrepareRestore
            | Self::RestoreBackup { .. }
            | Self::DeleteMachine { .. }
            | Self::RebuildMachine { .. }
            | Self::MoveMachine { .. }
            | Self::AddLearner { .. }
            | Self::PromoteMember { .. }
            | Self::RemoveMember { .. }
            | Self::UpdateMember { .. }
            | Self::MoveLeader { .. }
            | Self::Compact { .. }
            | Self::Defragment { .. }
            | Self::DisarmAlarm { .. }
            | Self::TakeSnapshot { .. }
            | Self::EnableDowngrade { .. }
            | Self::CancelDowngrade
            | Self::CreateRoot
            | Self::ChangeRootPassword
            | Self::EnableAuth
            | Self::DisableAuth
            | Self::SetRole { .. }
            | Self::DeleteRole { .. }
            | Self::SetUser { .. }
            | Self::DeleteUser { .. } => Vec::new(),
        }
    }

    /// Whether it takes a member away while it is done.
    pub fn disruptive(&self) -> bool {
        self.class().takes_member
    }

    /// Whether it must be the only one of its wave.
    pub fn exclusive(&self) -> bool {
        self.class().company == Company::Alone
    }

    /// The subject and the verb, for one line: `main-2 restart etcd`.
    pub fn describe(&self) -> String {
        match self.subject() {
            "cluster" => self.verb().to_owned(),
            subject => format!("{subject} {}", self.verb()),
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::MakeAuthorities => "make authorities",
            Self::NextAuthority { side: Side::Peers } => "take in peers CA",
            Self::NextAuthority { side: Side::Clients } => "take in clients CA",
            Self::SwitchAuthority { side: Side::Peers } => "switch peers CA",
            Self::SwitchAuthority { side: Side::Clients } => "switch clients CA",
            Self::RetireAuthority { side: Side::Peers, .. } => "retire peers CA",
            Self::RetireAuthority { side: Side::Clients, .. } => "retire clients CA",
            Self::ForgetAuthority { side: Side::Peers } => "forget peers CA",
            Self::ForgetAuthority { side: Side::Clients } => "forget clients CA",
            Self::StoreTrust { purpose: Purpose::Peer, .. } => "store peer trust",
            Self::StoreTrust { purpose: Purpose::Server, .. } => "store server trust",
            Self::CreateMachine { .. } => "create machine",
            Self::StartMachine { .. } => "start machine",
            Self::Enroll { .. } => "enroll",
            Self::Measure => "measure",
            Self::InstallEtcd { .. } => "install etcd",
            Self::IssueCertificate { purpose: Purpose::Peer, .. } => "sign peer cert",
            Self::IssueCertificate { purpose: Purpose::Server, .. } => "sign server cert",
            Self::ConfigureEtcd { .. } => "configure etcd",
            Self::SetFirewall { .. } => "set firewall",
            Self::SetAccess { .. } => "set agent access",
            Self::RenewAgent { .. } => "renew agent cert",
            Self::Deliver { .. } => "deliver secrets",
            Self::StartEtcd { data: StartData::Alone(_), .. } => "start alone",
            Self::StartEtcd { .. } => "start etcd",
            Self::RestartEtcd { .. } => "restart etcd",
            Self::RestartTogether { .. } => "restart all etcd",
            Self::StopEtcd { .. } => "stop etcd",
            Self::ClearData { .. } => "clear data",
            Self::RestoreData { .. } => "restore data",
            Self::PrepareRestore => "try backup",
            Self::RestoreBackup { .. } => "restore backup",
            Self::CompareRestored { .. } => "compare and start",
            Self::DeleteMachine { .. } => "delete machine",
            Self::RebuildMachine { .. } => "rebuild machine",
            Self::MoveMachine { .. } => "move machine",
            Self::AddLearner { .. } => "add learner",
            Self::PromoteMember { .. } => "promote",
            Self::RemoveMember { .. } => "remove member",
            Self::UpdateMember { .. } => "move member",
            Self::MoveLeader { .. } => "hand over to",
            Self::Compact { .. } => "compact",
            Self::Defragment { .. } => "defragment",
            Self::DisarmAlarm { alarm: Alarm::NoSpace } => "disarm NOSPACE",
            Self::DisarmAlarm { alarm: Alarm::Corrupt } => "disarm CORRUPT",
            Self::TakeSnapshot { .. } => "take snapshot",
            Self::EnableDowngrade { .. } => "enable downgrade",
            Self::CancelDowngrade => "cancel downgrade",
            Self::CreateRoot => "create root",
            Self::ChangeRootPassword => "change root password",
            Self::EnableAuth => "enable auth",
            Self::DisableAuth => "disable auth",
            Self::SetRole { .. } => "set role",
            Self::DeleteRole { .. } => "delete role",
            Self::SetUser { .. } => "set user",
            Self::DeleteUser { .. } => "delete user",
        }
    }
}
