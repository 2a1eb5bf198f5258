//! What may be written in `raftsman.yaml` → the types it is read into, and its JSON schema.
//!
//! The doc comments here are what editors show: they become the schema's descriptions.

use std::net::IpAddr;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backups::{Backups, RestoreFrom};
use super::balancers::Balancer;
use super::machines::Machines;
use super::maintenance::Maintenance;
use super::overrides::{ClusterMachines, MemberMachine};
use super::postgres::PostgresCluster;
use super::units::{ByteSize, Duration, EtcdVersion, Name};
use super::users::{Roles, Users};

/// One fleet: the machines, and the clusters that run on them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The fleet's name. It appears in certificates and in the names of machines.
    pub fleet: Name,
    /// Where raftsman keeps what cannot be observed: CA keys (encrypted), passwords, the lock, the journal.
    /// A directory, relative to this file.
    #[serde(default = "default_state")]
    pub state: String,
    /// Where machines come from, and what every machine of the fleet has in common.
    #[serde(default)]
    pub machines: Machines,
    /// The etcd clusters, by name.
    #[serde(default)]
    pub etcd: IndexMap<Name, EtcdCluster>,
    /// PostgreSQL clusters, by name.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub postgres: IndexMap<Name, PostgresCluster>,
    /// Load balancers in front of clusters, by name.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub balancers: IndexMap<Name, Balancer>,
    /// Where backups are kept, and how they are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backups: Option<Backups>,
    /// Warnings that are accepted, by their codes, such as `members-even`: they are not shown any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accept_warnings: Vec<String>,
}

/// A secret, by reference: never the value itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Secret {
    /// The contents of this file, without the last line break. Relative to this file.
    File(String),
    /// The value of this environment variable of the command that applies the file.
    Env(String),
}

/// One etcd cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EtcdCluster {
    /// How many members, or each of them.
    pub members: Members,
    /// In what the cluster's machines differ from those that the fleet's section `machines` describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<ClusterMachines>,
    /// The version of etcd.
    #[serde(default)]
    pub version: EtcdVersion,
    /// Where the etcd binary comes from.
    #[serde(default)]
    pub source: Source,
    /// Tells clusters apart while they form. `<fleet>-<cluster>` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// How clients authenticate.
    #[serde(default)]
    pub auth: Auth,
    /// The JSON gateway (`/v3/...`), which Patroni needs. On by default with passwords, off with certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<bool>,
    /// The v2 REST API, which etcd had up to 3.5.
    #[serde(default, skip_serializing_if = "is_false")]
    pub v2_api: bool,
    /// Which old revisions etcd compacts automatically.
    #[serde(default)]
    pub auto_compaction: AutoCompaction,
    /// The size at which the database stops taking writes.
    #[serde(default = "default_quota")]
    pub quota: ByteSize,
    /// Heartbeat and election time-outs, or `measured`.
    #[serde(default)]
    pub timers: Timers,
    /// Checks against silent divergence of members.
    #[serde(default)]
    pub corruption_checks: CorruptionChecks,
    /// How much etcd logs.
    #[serde(default)]
    pub log_level: LogLevel,
    /// Certificate authorities: made by raftsman, or brought.
    #[serde(default)]
    pub ca: Authorities,
    /// The members' certificates.
    #[serde(default)]
    pub certificates: Certificates,
    /// Replace a member that has been down for this long, such as `10m`, without an operator: its machine is deleted
    /// and a new one takes its place. By default a lost member waits for `raftsman replace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_after: Option<Duration>,
    /// Keep the cluster's machines and data: `raftsman destroy` refuses, and a member that is removed from the file
    /// stays until this is `false`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub prevent_destroy: bool,
    /// How long a new member may make no progress before it is removed again.
    #[serde(default = "default_learner_patience")]
    pub learner_patience: Duration,
    /// What `apply` does to keep the database small, and when. Nothing by default; a full database is always
    /// handled.
    #[serde(default, skip_serializing_if = "Maintenance::is_none")]
    pub maintenance: Maintenance,
    /// The backup that a new cluster is bootstrapped from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_from: Option<RestoreFrom>,
    /// What each role may do, by name. Once given, this is all: other roles are removed. Without it, roles are left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles: Option<Roles>,
    /// The users besides `root`, by name. Once given, this is all: other users are removed. Without it, users are left
    /// alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<Users>,
    /// Further settings of etcd's configuration file, by etcd's own names.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub flags: IndexMap<String, FlagValue>,
}

impl EtcdCluster {
    /// Whether members serve their API as JSON, too, for clients without gRPC: with passwords, unless the file says no.
    pub fn serves_gateway(&self) -> bool {
        self.gateway.unwrap_or(self.auth.mode == AuthMode::Password)
    }
}

/// How many members, or each of them.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Members {
    /// The number of members, named `<cluster>-1` and on; addresses chosen by the provider.
    Count(u32),
    /// Each member.
    List(Vec<Member>),
}

impl Members {
    /// How many.
    pub fn number(&self) -> u64 {
        match self {
            Self::Count(count) => u64::from(*count),
            Self::List(list) => list.len() as u64,
        }
    }
}

/// One member of a cluster, and the machine it lives on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// The member's name, which is its machine's name too.
    pub name: Name,
    /// The machine's address. Chosen by the provider by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Hosts: what SSH calls it, a name of your configuration of SSH for example. Its address by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The zone that the machine is in. Chosen by raftsman by default, so that members are spread evenly; hosts name theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<Name>,
    /// In what the member's machine differs from those of its cluster: its size, its image, its disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MemberMachine>,
}

/// Where the etcd binary comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// `etcd` on the PATH of the command that applies the file. Its version is checked.
    #[default]
    Path,
    /// This binary. Relative to this file.
    File(String),
    /// A directory with one directory a version: `<directory>/3.6.15/etcd`.
    Directory(String),
    /// The binary that this Debian package installed, such as `etcd-server`.
    Package(String),
    /// A release archive (`etcd-v3.6.15-linux-amd64.tar.gz`), a file or downloaded, checked by its SHA-256.
    Archive(Archive),
}

/// A release archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Archive {
    /// The archive's file, relative to this one. `{version}` in it stands for the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Or where it is downloaded from, once. `{version}` in it stands for the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Its SHA-256, as published beside the archive; or one for each version: `{ 3.5.34: …, 3.6.15: … }`.
    pub sha256: Checksums,
}

/// The SHA-256 of one archive, or of one for each version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Checksums {
    /// Of the one archive.
    One(String),
    /// Of each version's.
    Each(IndexMap<EtcdVersion, String>),
}

impl Checksums {
    /// The one for this version.
    pub fn of(&self, version: EtcdVersion) -> Option<&str> {
        match self {
            Self::One(sha256) => Some(sha256),
            Self::Each(each) => each.get(&version).map(String::as_str),
        }
    }
}

impl Archive {
    /// What stands for the version in a file's name or a URL.
    pub const VERSION: &str = "{version}";

    /// The name or URL for this version.
    pub fn at(place: &str, version: EtcdVersion) -> String {
        place.replace(Self::VERSION, &version.to_string())
    }
}

/// How clients authenticate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// `certificate`: the certificate's common name is the user. `password`: a user and a password, over TLS. `none`:
    /// every client with a certificate may do everything.
    pub mode: AuthMode,
    /// Password mode: the password of `root`. Made by raftsman and kept encrypted in the state by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_password: Option<Secret>,
}

/// How clients authenticate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// The certificate's common name is the user.
    #[default]
    Certificate,
    /// A user and a password, over TLS.
    Password,
    /// No authentication of users: every client with a certificate of the clients CA may do everything. For the
    /// upgrade from 3.4 to 3.5, which etcd does not support while auth is on.
    None,
}

impl std::fmt::Display for AuthMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Certificate => "certificate",
            Self::Password => "password",
            Self::None => "none",
        })
    }
}

/// Which old revisions etcd compacts automatically.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AutoCompaction {
    /// By age or by number of revisions.
    pub mode: CompactionMode,
    /// `periodic`: keep this long (`1h`). `revision`: keep this number of revisions. `0` turns compaction off.
    pub retention: Retention,
}

/// By age or by number of revisions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CompactionMode {
    /// Keep what is younger than the retention.
    Periodic,
    /// Keep this number of the last revisions.
    #[default]
    Revision,
}

/// How much history is kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Retention {
    /// A number of revisions.
    Revisions(u64),
    /// This long.
    Age(Duration),
}

/// Heartbeat and election time-outs, the same on every member: these, or `measured`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Timers {
    /// Found by a rule.
    Found(TimersFound),
    /// These.
    Given(RaftTimers),
}

/// How heartbeat and election time-outs are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TimersFound {
    /// By what the members' disks and the network between them were measured to take, once; see `raftsman preflight`.
    Measured,
}

/// Heartbeat and election time-outs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RaftTimers {
    /// How often the leader sends heartbeats: about one round trip between members.
    pub heartbeat: Duration,
    /// How long a follower waits for a heartbeat before it starts an election: at least ten heartbeats.
    pub election: Duration,
}

/// Checks against silent divergence of members.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CorruptionChecks {
    /// Compare with the other members before serving.
    pub initial: bool,
    /// Compare hashes after each compaction (3.5 and later).
    pub compact_hash: bool,
}

/// How much etcd logs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// Normal operation.
    #[default]
    Info,
    /// Warnings.
    Warn,
    /// Errors.
    Error,
}

/// Certificate authorities: separate for peers and clients, so that no client can join as a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Authorities {
    /// Signs the certificates that members show each other.
    pub peers: Authority,
    /// Signs the certificates of clients, and those that members show to clients.
    pub clients: Authority,
    /// Key algorithm of the authorities that raftsman makes.
    pub algorithm: KeyAlgorithm,
}

/// One certificate authority.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Authority {
    /// Made by raftsman, its key encrypted in the state.
    #[default]
    Made,
    /// Brought by you.
    Brought(BroughtAuthority),
}

/// A certificate authority that you bring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BroughtAuthority {
    /// Its certificate, PEM: a file, relative to this one.
    pub certificate: String,
    /// Its private key, PEM (PKCS#8).
    pub key: Secret,
}

/// A key algorithm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum KeyAlgorithm {
    /// ECDSA on P-256.
    #[default]
    #[serde(rename = "ecdsa-p256")]
    EcdsaP256,
    /// ECDSA on P-384.
    #[serde(rename = "ecdsa-p384")]
    EcdsaP384,
    /// RSA with 2048 bits.
    #[serde(rename = "rsa-2048")]
    Rsa2048,
    /// RSA with 4096 bits.
    #[serde(rename = "rsa-4096")]
    Rsa4096,
}

/// The members' certificates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Certificates {
    /// The organization in their subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub organization: Option<String>,
    /// Further DNS names under which clients reach the members.
    pub extra_names: Vec<String>,
    /// Further addresses under which clients reach the members.
    pub extra_addresses: Vec<IpAddr>,
    /// How long a certificate is valid.
    pub validity: Duration,
    /// How long before its end it is renewed.
    pub renew_before: Duration,
    /// How long the authorities that raftsman makes are valid.
    pub ca_validity: Duration,
}

/// A value of a further setting.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum FlagValue {
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Anything else.
    Text(String),
}

pub(super) fn default_state() -> String {
    ".raftsman".to_owned()
}

fn default_quota() -> ByteSize {
    ByteSize::gib(8)
}

fn default_learner_patience() -> Duration {
    Duration::from_millis(5 * 60 * 1000)
}

pub(super) fn is_false(value: &bool) -> bool {
    !value
}

impl Default for AutoCompaction {
    fn default() -> Self {
        Self { mode: CompactionMode::Revision, retention: Retention::Revisions(1000) }
    }
}

impl Default for Timers {
    fn default() -> Self {
        Self::Given(RaftTimers::default())
    }
}

impl Timers {
    /// What the file says itself; nothing where it wants them measured.
    pub fn given(&self) -> Option<RaftTimers> {
        match self {
            Self::Given(timers) => Some(*timers),
            Self::Found(TimersFound::Measured) => None,
        }
    }
}

impl Default for RaftTimers {
    fn default() -> Self {
        Self { heartbeat: Duration::from_millis(100), election: Duration::from_millis(1000) }
    }
}

impl Default for CorruptionChecks {
    fn default() -> Self {
        Self { initial: true, compact_hash: true }
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self {
            organization: None,
            extra_names: Vec::new(),
            extra_addresses: Vec::new(),
            validity: Duration::from_days(90),
            renew_before: Duration::from_days(30),
            ca_validity: Duration::from_days(3650),
        }
    }
}
