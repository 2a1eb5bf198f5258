//! The agent's report → what is installed, configured, running and stored on its machine.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::balancer::BalancerOnMachine;
use super::etcd::{ClusterId, MemberId};
use super::postgres::PostgresOnMachine;
use crate::backup::{Drill, FullName};
use crate::spec::{EtcdVersion, Name};

/// What answered where the machine's agent should be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "agent", rename_all = "lowercase")]
pub enum Agent {
    /// A new agent that holds the join token of this machine and no certificate yet.
    Unclaimed,
    /// An agent of this fleet.
    Claimed(Box<AgentReport>),
}

/// An agent's report of its machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentReport {
    /// The machine that the agent is configured for.
    pub machine: Name,
    /// Made at the agent's first start on an empty disk: a rebuilt machine has another.
    pub incarnation: String,
    /// The agent's version.
    pub version: String,
    /// The newest generation of the lock that it has accepted.
    pub generation: u64,
    /// The machine's clock less ours, in milliseconds.
    pub clock_offset_ms: i64,
    /// The agent's own certificate.
    pub certificate: Option<CertificateFacts>,
    /// Room on the disk.
    pub disk: Disk,
    /// Digest of the firewall rules, where raftsman made the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firewall: Option<String>,
    /// Digest of the fleet's CAs that it trusts and of what is revoked, where they were ever changed since its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// Whether it has the secrets that the file refers to for machines.
    #[serde(default, skip_serializing_if = "Delivery::is_current")]
    pub delivery: Delivery,
    /// Whether it has the schedule and the store of the file for backups.
    #[serde(default, skip_serializing_if = "Delivery::is_current")]
    pub backup_settings: Delivery,
    /// Its part in making backups, where machines make them by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backups: Option<BackupState>,
    /// The program of the agent; none where it is too old to be upgraded by a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<AgentProgram>,
    /// etcd on this machine.
    pub etcd: EtcdOnMachine,
    /// An instance of a balancer on this machine; none where the agent is too old to run one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balancer: Option<BalancerOnMachine>,
    /// A node of a PostgreSQL cluster on this machine; none where the agent is too old to run one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PostgresOnMachine>,
}

impl AgentReport {
    /// The cluster whose data is on the machine's disk.
    pub fn cluster_on_disk(&self) -> Option<ClusterId> {
        match self.etcd.data {
            Data::Present { cluster, .. } => Some(cluster),
            Data::Empty | Data::Unreadable { .. } => None,
        }
    }
}

/// The program of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentProgram {
    /// Hex SHA-256; not known in the first moments after its start.
    pub digest: Option<String>,
    /// The last upgrade that the machine reverted, unless one succeeded since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedUpgrade>,
    /// Why it runs instead of the one that was confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// An upgrade of an agent that its machine reverted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedUpgrade {
    /// Hex SHA-256 of the program.
    pub digest: String,
    /// Its version.
    pub version: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Option<Timestamp>,
    /// The program was not the cause: it may be tried again.
    pub retriable: bool,
}

/// A machine's role in making backups: one of a cluster makes them, and the others are on standby.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupState {
    /// Whether it makes them.
    pub keeps: bool,
    /// The newest complete full backup, as far as it knows.
    pub full: Option<FullName>,
    /// Whether it has read the store: only then no full backup means that there is none.
    #[serde(default)]
    pub store_read: bool,
    /// All that was written until then is in the store; not known where changes are not recorded.
    pub covered: Option<Timestamp>,
    /// When it last saw a machine that makes them, or started to watch for one.
    pub held: Option<Timestamp>,
    /// Why it cannot make backups, and since when.
    pub problem: Option<(String, Timestamp)>,
    /// The newest drill that it knows of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drill: Option<Drill>,
    /// Why drills fail, and since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drill_problem: Option<(String, Timestamp)>,
    /// So many full backups in the store could not be verified, or are from the future.
    #[serde(default)]
    pub unverified: u32,
}

/// Whether a machine was given what the file refers to. The observation does not hold what that is: not even a digest
/// of a password is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    /// It was, or there is nothing to give.
    #[default]
    Current,
    /// It was given something else, or nothing yet.
    Outdated,
    /// What it should be given cannot be read.
    Unknown(String),
}

impl Delivery {
    /// Whether nothing is to be done.
    pub fn is_current(&self) -> bool {
        *self == Self::Current
    }
}

/// Room on the disk that holds etcd's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Free for us.
    pub free: u64,
    /// In all.
    pub total: u64,
}

/// etcd on one machine, as its agent sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EtcdOnMachine {
    /// Installed versions, with the SHA-256 of their binary.
    pub installed: BTreeMap<EtcdVersion, String>,
    /// Digest of the configuration file.
    pub config: Option<String>,
    /// The text of that file as it was sent, where the agent tells it: the machine's directory is `{root}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_text: Option<String>,
    /// The text of the configuration that the running process was started with, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_config_text: Option<String>,
    /// Digest of the configuration that the running process was started with.
    pub running_config: Option<String>,
    /// Version that the running process was started with.
    pub running_version: Option<EtcdVersion>,
    /// Version that etcd was last started with here, whether or not it runs.
    pub last_version: Option<EtcdVersion>,
    /// Digests of the trust that the running process was started with: later ones are on disk only.
    #[serde(default)]
    pub running_trust: BTreeMap<Purpose, String>,
    /// Certificates by purpose.
    pub certificates: BTreeMap<Purpose, CertificateFacts>,
    /// The process.
    pub service: Service,
    /// The data directory.
    pub data: Data,
    /// Ports that etcd needs and other processes hold.
    pub ports_taken: Vec<PortTaken>,
    /// Whether a member's data was ever seen here: remembered outside the data directory, so that a wiped directory
    /// differs from one that never held data.
    pub had_data: bool,
    /// Where the log ends, read while etcd does not run, or when raftsman asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogEnd>,
}

/// Where a member's log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEnd {
    /// The term of its last entry.
    pub term: u64,
    /// The index of its last entry.
    pub index: u64,
    /// The last index that it knew to be committed.
    pub commit: u64,
    /// The last revision in the database, where it could be read.
    pub revision: Option<i64>,
    /// The last index whose effect is in the database.
    pub applied: u64,
}

impl EtcdOnMachine {
    /// The version that the data here was last used with.
    pub fn used_with(&self) -> Option<EtcdVersion> {
        self.last_version.filter(|_| self.had_data || matches!(self.data, Data::Present { .. }))
    }
}

/// What a certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// Members present it to each other.
    Peer,
    /// Members present it to clients.
    Server,
}

impl Purpose {
    /// Every certificate that a member needs.
    pub const ALL: [Self; 2] = [Self::Peer, Self::Server];

    /// Its name in plans and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Server => "server",
        }
    }
}

/// What is known of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateFacts {
    /// SHA-256 of the certificate.
    pub fingerprint: String,
    /// Valid from.
    pub not_before: Timestamp,
    /// Valid until.
    pub not_after: Timestamp,
    /// Names and addresses in it, sorted.
    pub names: Vec<String>,
    /// Subject, as text.
    pub subject: String,
    /// SHA-256 of the public key of the authority that signed it.
    pub issuer_key: String,
    /// Digest of the CA certificates that are kept beside it, to check the other side against.
    #[serde(default)]
    pub trust: Option<String>,
}

/// The status of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Its state.
    pub state: ServiceState,
    /// The process, while it runs.
    pub pid: Option<u32>,
    /// In this state since.
    pub since: Option<Timestamp>,
    /// How often it ended by itself since it was last asked to start.
    pub restarts: u32,
    /// How it ended last.
    pub last_exit: Option<String>,
}

/// Whether a service runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceState {
    /// Not running, and not meant to.
    Stopped,
    /// Running.
    Running,
    /// It ended by itself and is started again after a pause.
    Backoff,
}

/// A data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "data", rename_all = "lowercase")]
pub enum Data {
    /// Nothing there.
    Empty,
    /// A member's data, with its member and its cluster.
    Present {
        /// The member.
        member: MemberId,
        /// The cluster.
        cluster: ClusterId,
    },
    /// Something is there that is not a member's data.
    Unreadable {
        /// Why.
        problem: String,
    },
}

/// A port that another process holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortTaken {
    /// The port.
    pub port: u16,
    /// The process that holds it, where it is known.
    pub holder: String,
}
