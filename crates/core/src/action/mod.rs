//! Every action that raftsman can take: a closed list, as data, and what each means for safety.
//!
//! A topic has a file of the same name in every layer: its actions here, `plan/` and `plan/safety/`, `model/`, and
//! `engine/act/`.

#![warn(clippy::wildcard_enum_match_arm)]

mod agents;
mod auth;
mod backup;
mod balancer;
mod etcd;
mod machines;
mod maintenance;
mod members;
mod pki;
mod postgres;
mod preflight;
mod recovery;
mod restore;
mod users;
mod versions;

use serde::{Deserialize, Serialize};

pub use agents::AgentAction;
pub use auth::AuthAction;
pub use backup::BackupAction;
pub use balancer::BalancerAction;
pub use etcd::{EtcdAction, StartData};
pub use machines::MachineAction;
pub use maintenance::MaintenanceAction;
pub use members::MemberAction;
pub use pki::PkiAction;
pub use postgres::{PgStart, PostgresAction};
pub use preflight::PreflightAction;
pub use recovery::RecoveryAction;
pub use restore::RestoreAction;
pub use users::{Account, UserAction};
pub use versions::VersionAction;

use crate::spec::Name;

/// One action, by its topic. JSON leaves the topic out: no two topics have an action of the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Action {
    /// On a machine or its agent.
    Machine(MachineAction),
    /// On an agent's own program.
    Agent(AgentAction),
    /// On authorities, certificates or trust.
    Pki(PkiAction),
    /// A measurement before the first start.
    Preflight(PreflightAction),
    /// On etcd, where it runs.
    Etcd(EtcdAction),
    /// On the list of members, or on leadership.
    Member(MemberAction),
    /// On databases and alarms.
    Maintenance(MaintenanceAction),
    /// Around a change of versions.
    Version(VersionAction),
    /// On scheduled backups.
    Backup(BackupAction),
    /// On the instances of a balancer.
    Balancer(BalancerAction),
    /// On the nodes of a PostgreSQL cluster.
    Postgres(PostgresAction),
    /// On auth.
    Auth(AuthAction),
    /// On roles and users.
    User(UserAction),
    /// Of a restore from a backup.
    Restore(RestoreAction),
    /// Of a recovery.
    Recovery(RecoveryAction),
}

/// Asks the action's topic.
macro_rules! ask {
    ($action:expr, $topic:ident => $answer:expr) => {
        match $action {
            Action::Machine($topic) => $answer,
            Action::Agent($topic) => $answer,
            Action::Pki($topic) => $answer,
            Action::Preflight($topic) => $answer,
            Action::Etcd($topic) => $answer,
            Action::Member($topic) => $answer,
            Action::Maintenance($topic) => $answer,
            Action::Version($topic) => $answer,
            Action::Backup($topic) => $answer,
            Action::Balancer($topic) => $answer,
            Action::Postgres($topic) => $answer,
            Action::Auth($topic) => $answer,
            Action::User($topic) => $answer,
            Action::Restore($topic) => $answer,
            Action::Recovery($topic) => $answer,
        }
    };
}

/// An action of a topic is an action.
macro_rules! topics {
    ($($topic:ident($action:ident)),* $(,)?) => {
        $(impl From<$action> for Action {
            fn from(action: $action) -> Self {
                Self::$topic(action)
            }
        })*
    };
}

topics! {
    Machine(MachineAction),
    Agent(AgentAction),
    Pki(PkiAction),
    Preflight(PreflightAction),
    Etcd(EtcdAction),
    Member(MemberAction),
    Maintenance(MaintenanceAction),
    Version(VersionAction),
    Backup(BackupAction),
    Balancer(BalancerAction),
    Postgres(PostgresAction),
    Auth(AuthAction),
    User(UserAction),
    Restore(RestoreAction),
    Recovery(RecoveryAction),
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

/// What an action means for safety. Each topic has one answer for each of its actions, so that a new one does not
/// compile before it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// What it changes.
    pub changes: Changes,
    /// What is down while it is done.
    pub takes: Takes,
    /// Whether no other action brings back what it takes away.
    pub irreversible: bool,
    /// What may be done at the same time.
    pub company: Company,
}

/// What is down while an action is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// A member of etcd.
    Member,
    /// A node of a PostgreSQL cluster.
    Node,
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
    /// What clients connect through, and which members they are passed to.
    Balancing,
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
    /// What runs on a node of a PostgreSQL cluster.
    Node,
    /// Which node of a PostgreSQL cluster takes writes.
    Primary,
    /// Patroni's settings of a whole PostgreSQL cluster.
    Patroni,
    /// Which roles and databases a PostgreSQL cluster has.
    Catalog,
}

/// What may be in the same wave as an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Company {
    /// Anything that is not alone.
    Any,
    /// Nothing else that deletes for good: the cluster is observed again between two such steps. A restore or a
    /// recovery was approved for all members at once.
    OneLoss,
    /// Only what changes the same.
    Alike,
    /// Nothing.
    Alone,
}

impl Class {
    const fn of(changes: Changes) -> Self {
        Self { changes, takes: Takes::Nothing, irreversible: false, company: Company::Any }
    }

    const fn takes_member(self) -> Self {
        Self { takes: Takes::Member, company: Company::Alone, ..self }
    }

    const fn takes_node(self) -> Self {
        Self { takes: Takes::Node, company: Company::Alone, ..self }
    }

    const fn irreversible(self) -> Self {
        Self { irreversible: true, ..self }
    }

    const fn beside(self, company: Company) -> Self {
        Self { company, ..self }
    }

    /// Whether it is judged once more, on a fresh observation, right before it is done.
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
        ask!(self, topic => topic.class())
    }

    fn done_to(&self) -> Subject<'_> {
        ask!(self, topic => topic.done_to())
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
            Self::Etcd(action) => action.brings_up(),
            Self::Restore(action) => action.brings_up(),
            Self::Machine(_)
            | Self::Agent(_)
            | Self::Pki(_)
            | Self::Preflight(_)
            | Self::Member(_)
            | Self::Maintenance(_)
            | Self::Version(_)
            | Self::Backup(_)
            | Self::Balancer(_)
            | Self::Postgres(_)
            | Self::Auth(_)
            | Self::User(_)
            | Self::Recovery(_) => Vec::new(),
        }
    }

    /// Whether a member or a node is down while it is done.
    pub fn disruptive(&self) -> bool {
        self.class().takes != Takes::Nothing
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
        ask!(self, topic => topic.verb())
    }
}
