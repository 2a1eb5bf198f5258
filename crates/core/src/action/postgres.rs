//! What is done to the nodes of a PostgreSQL cluster and to their Patroni, and what each step means for safety.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{Account, Changes, Class, Company, Subject};
use crate::desired::UserSlot;
use crate::observed::{NodePurpose, NodeRole, SystemId};
use crate::spec::{Name, PatroniVersion};

/// A step on a node of a PostgreSQL cluster, or on the cluster as Patroni has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum PostgresAction {
    /// Make, or add, the CA that signs for PostgreSQL and for Patroni's REST interface.
    MakePostgresCa {
        /// The cluster.
        cluster: Name,
    },
    /// Have a key made on a node's machine, and sign a certificate for it. The CA certificate comes with it.
    IssueNodeCertificate {
        /// Where.
        machine: Name,
        /// What for.
        purpose: NodePurpose,
    },
    /// Bring a version of Patroni to a machine.
    InstallPatroni {
        /// Where.
        machine: Name,
        /// Which.
        version: PatroniVersion,
    },
    /// Write Patroni's file, its secrets, and the CA certificates that it checks the members of etcd by.
    ConfigurePatroni {
        /// Where.
        machine: Name,
        /// The user of etcd in it.
        user: UserSlot,
        /// The members of etcd in it, by their client address.
        hosts: BTreeSet<SocketAddr>,
        /// Digest of the file, without its secrets.
        digest: String,
        /// Digest of the CA certificates.
        trust: String,
    },
    /// Start Patroni, which starts PostgreSQL.
    StartPatroni {
        /// Where.
        machine: Name,
        /// What it must find there.
        data: PgStart,
    },
    /// Have the running Patroni take up its file. It goes on with the members of etcd that it was started with.
    ReloadPatroni {
        /// Where.
        machine: Name,
    },
    /// Restart Patroni and PostgreSQL on a node that is not the primary.
    RestartPatroni {
        /// Where.
        machine: Name,
        /// The version that runs afterwards.
        version: PatroniVersion,
    },
    /// Restart PostgreSQL on a node.
    RestartPostgres {
        /// Where.
        machine: Name,
        /// What the node must be.
        role: NodeRole,
    },
    /// Copy a standby's data from the primary anew.
    ReinitializeNode {
        /// Where.
        machine: Name,
        /// Whose data it must have now.
        system: SystemId,
    },
    /// Stop Patroni and PostgreSQL on a node that is to go, or while the etcd beneath is built anew.
    StopPatroni {
        /// Where.
        machine: Name,
    },
    /// Have a synchronous standby take the primary's place.
    Switchover {
        /// The cluster.
        cluster: Name,
        /// The primary.
        from: Name,
        /// The standby.
        to: Name,
    },
    /// Change Patroni's settings of the whole cluster.
    SetPatroni {
        /// The cluster.
        cluster: Name,
        /// Each setting that changes, and its value in JSON; none removes it.
        set: BTreeMap<String, Option<String>>,
    },
    /// Give a role what the file says: what it may do, its memberships and its settings.
    SetPostgresRole {
        /// The cluster.
        cluster: Name,
        /// The role.
        role: String,
        /// What is done to the role itself and to its password.
        account: Account,
    },
    /// Give a role that nodes log in as the password of the file: their files follow.
    SetNodePassword {
        /// The cluster.
        cluster: Name,
        /// The role.
        role: String,
    },
    /// Remove a role: one that owns something, or has rights on something, only cannot log in any more.
    DropPostgresRole {
        /// The cluster.
        cluster: Name,
        /// The role.
        role: String,
    },
    /// Create a database, or give it the owner and the extensions that the file says.
    SetDatabase {
        /// The cluster.
        cluster: Name,
        /// The database.
        database: String,
    },
}

/// What a start of Patroni must find on its machine. The agent checks it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PgStart {
    /// Nothing, neither there nor in etcd: the cluster is made by this node.
    Bootstrap,
    /// Nothing there, while another node makes the cluster: its data is copied as soon as there is some. Where that node
    /// fails, Patroni has one of these make the cluster.
    Beside,
    /// Nothing there: the data of this cluster is copied.
    Join(SystemId),
    /// The data of this cluster.
    Own(SystemId),
}

impl PostgresAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            Self::MakePostgresCa { .. } => Class::of(Changes::Trust),
            // Nothing runs by it yet, or more runs than before.
            Self::IssueNodeCertificate { .. }
            | Self::InstallPatroni { .. }
            | Self::ConfigurePatroni { .. }
            | Self::StartPatroni { .. } => Class::of(Changes::Machine),
            // What it takes up may be wrong: one node shows it before the next one follows.
            Self::ReloadPatroni { .. } => Class::of(Changes::Node).beside(Company::Alone),
            Self::RestartPatroni { .. } | Self::RestartPostgres { .. } => Class::of(Changes::Node).takes_node(),
            Self::ReinitializeNode { .. } => Class::of(Changes::Node).takes_node().irreversible(),
            Self::StopPatroni { .. } => Class::of(Changes::Node).takes_node(),
            Self::Switchover { .. } => Class::of(Changes::Primary).takes_node(),
            Self::SetPatroni { .. } => Class::of(Changes::Patroni).beside(Company::Alone),
            // A node that connects anew is not let in before it has taken the password up.
            Self::SetNodePassword { .. } => Class::of(Changes::Catalog).irreversible().beside(Company::Alone),
            Self::SetPostgresRole { account: Account::Keep | Account::Make, .. } | Self::SetDatabase { .. } => {
                Class::of(Changes::Catalog).beside(Company::Alike)
            }
            // The password before is lost, and so is what a role was granted.
            Self::SetPostgresRole { account: Account::Password | Account::Remake, .. }
            | Self::DropPostgresRole { .. } => Class::of(Changes::Catalog).irreversible().beside(Company::Alike),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::IssueNodeCertificate { machine, .. }
            | Self::InstallPatroni { machine, .. }
            | Self::ConfigurePatroni { machine, .. }
            | Self::StartPatroni { machine, .. }
            | Self::ReloadPatroni { machine }
            | Self::RestartPatroni { machine, .. }
            | Self::RestartPostgres { machine, .. }
            | Self::ReinitializeNode { machine, .. }
            | Self::StopPatroni { machine } => Subject::Machine(machine),
            Self::MakePostgresCa { cluster } | Self::Switchover { cluster, .. } | Self::SetPatroni { cluster, .. } => {
                Subject::Named(cluster.as_str())
            }
            Self::SetPostgresRole { role, .. }
            | Self::SetNodePassword { role, .. }
            | Self::DropPostgresRole { role, .. } => Subject::Named(role),
            Self::SetDatabase { database, .. } => Subject::Named(database),
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::MakePostgresCa { .. } => "make postgresql CA",
            Self::IssueNodeCertificate { purpose: NodePurpose::Server, .. } => "sign postgresql cert",
            Self::IssueNodeCertificate { purpose: NodePurpose::Rest, .. } => "sign rest cert",
            Self::InstallPatroni { .. } => "install patroni",
            Self::ConfigurePatroni { .. } => "configure patroni",
            Self::StartPatroni { data: PgStart::Bootstrap, .. } => "bootstrap postgresql",
            Self::StartPatroni { .. } => "start patroni",
            Self::ReloadPatroni { .. } => "reload patroni",
            Self::RestartPatroni { .. } => "restart patroni",
            Self::RestartPostgres { .. } => "restart postgresql",
            Self::ReinitializeNode { .. } => "re-initialise",
            Self::StopPatroni { .. } => "stop patroni",
            Self::Switchover { .. } => "switch over",
            Self::SetPatroni { .. } => "set patroni",
            Self::SetPostgresRole { .. } => "set postgresql role",
            Self::SetNodePassword { .. } => "set node password",
            Self::DropPostgresRole { .. } => "drop postgresql role",
            Self::SetDatabase { .. } => "set database",
        }
    }
}
