//! What a plan does not do to a PostgreSQL cluster, or to the etcd beneath it → why not, and what an operator can do.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::WaitKind;
use crate::observed::{SystemId, Unsettled};
use crate::spec::Name;

/// Something of a PostgreSQL cluster that is not done, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "waiting", rename_all = "snake_case")]
pub enum PostgresWaiting {
    /// The agent is too old to run a node.
    NodeUnknown {
        /// Where.
        machine: Name,
    },
    /// Patroni runs and has not answered yet.
    PatroniStarting {
        /// Where.
        machine: Name,
        /// What it said instead.
        error: String,
    },
    /// Patroni crashes repeatedly.
    PatroniCrashes {
        /// Where.
        machine: Name,
        /// How often.
        restarts: u32,
        /// How it ended last.
        last_exit: String,
    },
    /// The machine holds the data of another PostgreSQL cluster.
    ForeignPgData {
        /// Where.
        machine: Name,
        /// Whose data it is.
        found: SystemId,
        /// Whose it should be; nothing where the cluster has none yet.
        expected: Option<SystemId>,
    },
    /// What is in the data directory cannot be read.
    PgDataUnreadable {
        /// Where.
        machine: Name,
        /// Why.
        problem: String,
    },
    /// The cluster had data, and no node has it any more.
    AllPgDataLost {
        /// The cluster.
        cluster: Name,
    },
    /// Patroni's keys could not be read.
    KeysUnknown {
        /// The cluster.
        cluster: Name,
        /// The error.
        error: String,
    },
    /// The file has another major version of PostgreSQL than the cluster's data.
    MajorVersion {
        /// The cluster.
        cluster: Name,
        /// The version of its data.
        runs: u32,
        /// The version of the file.
        wanted: u32,
    },
    /// The cluster is not as it must be before anything is taken away from it, or from the etcd beneath.
    PostgresUnsettled {
        /// The cluster.
        cluster: Name,
        /// Why not.
        why: Unsettled,
    },
    /// A node has not read Patroni's keys since the last step on etcd, or since Patroni's settings were changed.
    NotSeenSince {
        /// Where.
        machine: Name,
        /// When that step ended.
        since: Timestamp,
    },
    /// A node could not log in to a member of etcd with Patroni's file.
    LoginFailed {
        /// Where.
        machine: Name,
        /// The member.
        member: Name,
        /// The error.
        error: String,
    },
    /// A running Patroni may know no members of etcd but those that go.
    MembersUnknown {
        /// Where.
        machine: Name,
        /// When it has read the list of members again.
        until: Timestamp,
    },
    /// The etcd beneath can lose no member now.
    EtcdFirst {
        /// The cluster.
        cluster: Name,
        /// What is not done.
        verb: String,
    },
    /// A switchover was asked for, and whether it was done is not known yet.
    SwitchoverUndetermined {
        /// The cluster.
        cluster: Name,
        /// The primary then.
        from: Name,
        /// The standby that was to follow it.
        to: Name,
    },
    /// No standby may take the primary's place.
    NoCandidate {
        /// The cluster.
        cluster: Name,
    },
    /// The etcd beneath was built anew, and names another node than the one with the most data.
    SyncRolledBack {
        /// The cluster.
        cluster: Name,
        /// The node that etcd names.
        named: String,
        /// The node that has more; nothing where a node cannot be asked.
        ahead: Option<Name>,
    },
    /// Roles and databases could not be read.
    CatalogUnknown {
        /// The cluster.
        cluster: Name,
        /// The error.
        error: String,
    },
    /// A database differs in what cannot change.
    DatabaseDiffers {
        /// The cluster.
        cluster: Name,
        /// The database.
        database: String,
        /// In what.
        how: String,
    },
    /// There is no such role, and the file does not list roles.
    OwnerMissing {
        /// The cluster.
        cluster: Name,
        /// The database.
        database: String,
        /// The role that should own it.
        owner: String,
    },
    /// A role that is to go owns something, or has rights on something.
    RoleNeeded {
        /// The cluster.
        cluster: Name,
        /// The role.
        role: String,
    },
}

impl PostgresWaiting {
    /// The error of a login that was not tried yet.
    pub const UNTRIED: &'static str = "not tried yet";

    /// Whether it resolves by itself.
    pub fn kind(&self) -> WaitKind {
        match self {
            Self::PatroniStarting { .. }
            | Self::KeysUnknown { .. }
            | Self::NotSeenSince { .. }
            | Self::LoginFailed { .. }
            | Self::MembersUnknown { .. }
            | Self::EtcdFirst { .. }
            | Self::CatalogUnknown { .. }
            | Self::SwitchoverUndetermined { .. } => WaitKind::Transient,
            Self::PostgresUnsettled { why, .. } => match why {
                Unsettled::Silent(_)
                | Unsettled::NoPrimary
                | Unsettled::FailoverPending
                | Unsettled::Failsafe(_)
                | Unsettled::NotRunning(_)
                | Unsettled::TimelinesDiffer(_)
                | Unsettled::SynchronousMissing { .. } => WaitKind::Transient,
                Unsettled::SeveralPrimaries(_) | Unsettled::Paused | Unsettled::OtherSystem(_) => WaitKind::Blocked,
            },
            Self::NodeUnknown { .. }
            | Self::MajorVersion { .. }
            | Self::PatroniCrashes { .. }
            | Self::ForeignPgData { .. }
            | Self::PgDataUnreadable { .. }
            | Self::AllPgDataLost { .. }
            | Self::NoCandidate { .. }
            | Self::DatabaseDiffers { .. }
            | Self::OwnerMissing { .. }
            | Self::RoleNeeded { .. }
            | Self::SyncRolledBack { .. } => WaitKind::Blocked,
        }
    }

    /// The machine that it is about.
    pub fn machine(&self) -> Option<&Name> {
        match self {
            Self::NodeUnknown { machine }
            | Self::PatroniStarting { machine, .. }
            | Self::PatroniCrashes { machine, .. }
            | Self::ForeignPgData { machine, .. }
            | Self::PgDataUnreadable { machine, .. }
            | Self::NotSeenSince { machine, .. }
            | Self::LoginFailed { machine, .. }
            | Self::MembersUnknown { machine, .. } => Some(machine),
            Self::AllPgDataLost { .. }
            | Self::MajorVersion { .. }
            | Self::KeysUnknown { .. }
            | Self::PostgresUnsettled { .. }
            | Self::EtcdFirst { .. }
            | Self::SwitchoverUndetermined { .. }
            | Self::NoCandidate { .. }
            | Self::CatalogUnknown { .. }
            | Self::DatabaseDiffers { .. }
            | Self::OwnerMissing { .. }
            | Self::RoleNeeded { .. }
            | Self::SyncRolledBack { .. } => None,
        }
    }

    /// What an operator can do about it.
    pub fn next(&self) -> String {
        match self {
            Self::NodeUnknown { .. } => "its agent is upgraded first, by this or another `apply`".to_owned(),
            Self::PatroniStarting { machine, .. } => {
                format!("if it takes long, read Patroni's log: `raftsman logs {machine}`")
            }
            Self::PatroniCrashes { machine, .. } => format!("read Patroni's log: `raftsman logs {machine}`"),
            Self::ForeignPgData { machine, .. } => {
                format!("move the foreign data directory of `{machine}` away, or bring the right one back")
            }
            Self::PgDataUnreadable { machine, .. } => {
                format!("bring the data of `{machine}` back; if PostgreSQL never ran there, move what is there away")
            }
            Self::AllPgDataLost { cluster } => {
                format!("bring the data of a node back, or restore `{cluster}` from a backup")
            }
            Self::MajorVersion { runs, .. } => {
                format!("write `version: {runs}` again: this version does not upgrade data to another major version")
            }
            Self::KeysUnknown { .. } => "check that etcd answers: `raftsman status`".to_owned(),
            Self::PostgresUnsettled { cluster, why } => match why {
                Unsettled::Paused => format!("resume it on one of its nodes: `patronictl resume {cluster}`"),
                Unsettled::SeveralPrimaries(_) => {
                    "stop writes, find the node that was cut off, and stop PostgreSQL there: raftsman does not guess \
                     which node is right"
                        .to_owned()
                }
                Unsettled::OtherSystem(node) => {
                    format!("move the foreign data directory of `{node}` away: Patroni copies the right one")
                }
                Unsettled::Failsafe(_) => "nothing: it ends by itself".to_owned(),
                Unsettled::Silent(node) | Unsettled::NotRunning(node) => {
                    format!("if it lasts, read Patroni's log: `raftsman logs {node}`")
                }
                Unsettled::NoPrimary
                | Unsettled::FailoverPending
                | Unsettled::TimelinesDiffer(_)
                | Unsettled::SynchronousMissing { .. } => {
                    "if it lasts, read Patroni's log on each node: `raftsman logs`".to_owned()
                }
            },
            Self::NotSeenSince { machine, .. } => {
                format!("if it lasts, see why Patroni on `{machine}` does not reach etcd: `raftsman logs {machine}`")
            }
            Self::LoginFailed { .. } => {
                "it is tried again; if it lasts, see whether the node reaches the member, and which CA and user it has"
                    .to_owned()
            }
            Self::MembersUnknown { .. } => "nothing: Patroni reads the list of members again by then".to_owned(),
            Self::EtcdFirst { .. } => "etcd's own steps come first: `raftsman status`".to_owned(),
            Self::SwitchoverUndetermined { .. } => "nothing: Patroni completes it or gives it up".to_owned(),
            Self::NoCandidate { .. } => {
                "see why no standby is synchronous (with `mode: off`: streams), or which tags keep them from becoming the \
                 primary: `raftsman status`"
                    .to_owned()
            }
            Self::SyncRolledBack { .. } => {
                "bring the silent nodes back; etcd's backup is older than the data of PostgreSQL".to_owned()
            }
            Self::CatalogUnknown { .. } => "it is asked again; if it lasts, read PostgreSQL's log: `raftsman logs`".to_owned(),
            Self::DatabaseDiffers { database, .. } => format!(
                "write in the file what `{database}` has, or make a database with another name and move the data there"
            ),
            Self::OwnerMissing { owner, .. } => format!("list `{owner}` under `roles`, or make it with `raftsman psql`"),
            Self::RoleNeeded { role, .. } => format!(
                "in each of its databases give away what it has (`raftsman psql`): `REASSIGN OWNED BY \"{role}\" TO …; DROP \
                 OWNED BY \"{role}\"`; or list `{role}` under `roles` again"
            ),
        }
    }
}

impl fmt::Display for PostgresWaiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeUnknown { machine } => write!(f, "{machine}: its agent is too old to run PostgreSQL"),
            Self::PatroniStarting { machine, error } => write!(f, "{machine}: Patroni is starting: {error}"),
            Self::PatroniCrashes { machine, restarts, last_exit } => {
                write!(f, "{machine}: Patroni exited {restarts} times: {last_exit}")
            }
            Self::ForeignPgData { machine, found, expected: Some(expected) } => {
                write!(f, "{machine}: it has the data of another PostgreSQL cluster ({found}, not {expected})")
            }
            Self::ForeignPgData { machine, found, expected: None } => {
                write!(f, "{machine}: it has the data of a PostgreSQL cluster that raftsman did not make ({found})")
            }
            Self::PgDataUnreadable { machine, problem } => {
                write!(f, "{machine}: PostgreSQL's data cannot be read: {problem}")
            }
            Self::AllPgDataLost { cluster } => write!(f, "{cluster}: no node has the cluster's data any more"),
            Self::KeysUnknown { cluster, error } => write!(f, "{cluster}: Patroni's keys cannot be read: {error}"),
            Self::MajorVersion { cluster, runs, wanted } => {
                write!(f, "{cluster}: its data is PostgreSQL {runs}'s, and the file says {wanted}")
            }
            Self::PostgresUnsettled { cluster, why } => write!(f, "{cluster}: {why}"),
            Self::NotSeenSince { machine, since } => {
                write!(f, "{machine}: Patroni has not been seen at etcd since the last step, at {since}")
            }
            Self::LoginFailed { machine, member, error } => {
                write!(f, "{machine}: it cannot log in to {member} as Patroni does: {error}")
            }
            Self::MembersUnknown { machine, until } => {
                write!(f, "{machine}: Patroni may know no members of etcd but those that go, until {until}")
            }
            Self::EtcdFirst { cluster, verb } => {
                write!(f, "{cluster}: to {verb}, the etcd beneath must be able to lose a member")
            }
            Self::SwitchoverUndetermined { cluster, from, to } => {
                write!(f, "{cluster}: whether {to} took the place of {from} is not known yet")
            }
            Self::NoCandidate { cluster } => write!(f, "{cluster}: no standby may take the primary's place"),
            Self::SyncRolledBack { cluster, named, ahead: Some(ahead) } => {
                write!(
                    f,
                    "{cluster}: the etcd that was built anew names {named} as the primary, and {ahead} has more data"
                )
            }
            Self::SyncRolledBack { cluster, named, ahead: None } => write!(
                f,
                "{cluster}: the etcd that was built anew names {named} as the primary, and not every node can be asked"
            ),
            Self::CatalogUnknown { cluster, error } => {
                write!(f, "{cluster}: its roles and databases cannot be read: {error}")
            }
            Self::DatabaseDiffers { cluster, database, how } => {
                write!(f, "{cluster}: the database `{database}` is another than in the file: {how}")
            }
            Self::OwnerMissing { cluster, database, owner } => {
                write!(f, "{cluster}: the database `{database}` is to belong to `{owner}`, and there is no such role")
            }
            Self::RoleNeeded { cluster, role } => {
                write!(f, "{cluster}: the role `{role}` cannot log in any more, and is kept for what it has")
            }
        }
    }
}
