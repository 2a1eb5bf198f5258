//! The section `postgres:` → PostgreSQL clusters: their nodes, the etcd beneath, what Patroni and PostgreSQL are told.

mod values;
mod versions;

use std::collections::BTreeSet;
use std::net::IpAddr;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use versions::{PatroniVersion, PostgresVersion};

use super::overrides::{ClusterMachines, MemberMachine};
use super::subnet::Subnet;
use super::types::{Authority, Certificates, FlagValue, Secret, is_false};
use super::units::{ByteSize, Duration, Name};

/// One PostgreSQL cluster: a primary and its standbys, which Patroni runs. This version refuses the keys that it does not
/// carry out yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostgresCluster {
    /// The etcd cluster of this file that Patroni keeps its keys in; or an etcd that raftsman does not run.
    pub etcd: DcsOf,
    /// How many nodes, or each of them.
    pub nodes: Nodes,
    /// In what the cluster's machines differ from those that the fleet's section `machines` describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<ClusterMachines>,
    /// The version of PostgreSQL: `17` takes the minor version that the source has, `17.11` demands it.
    #[serde(default)]
    pub version: PostgresVersion,
    /// Where PostgreSQL comes from. Debian's package `postgresql-<major>` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PostgresSource>,
    /// Patroni: its version, its keys in etcd, its timers.
    #[serde(default)]
    pub patroni: Patroni,
    /// Parameters of PostgreSQL, by its own names, the same on every node.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub parameters: IndexMap<String, FlagValue>,
    /// The superuser, `postgres`.
    #[serde(default, skip_serializing_if = "RolePassword::is_made")]
    pub superuser: RolePassword,
    /// The role that standbys replicate as, `replicator`.
    #[serde(default, skip_serializing_if = "RolePassword::is_made")]
    pub replicator: RolePassword,
    /// The role that a former primary is rewound as, `rewind`.
    #[serde(default, skip_serializing_if = "RolePassword::is_made")]
    pub rewind: RolePassword,
    /// The roles besides PostgreSQL's own and raftsman's, by name. Once given, this is all: other roles are removed.
    /// Without it, roles are left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles: Option<IndexMap<String, PgRole>>,
    /// The databases besides PostgreSQL's own, by name. Without it, databases are left alone. A database is never removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub databases: Option<IndexMap<String, Database>>,
    /// Which clients may connect, in order: rules of `pg_hba.conf`, always over TLS and with a password (SCRAM). None by
    /// default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access: Vec<HbaRule>,
    /// The certificate authority that signs for PostgreSQL and for Patroni's REST interface: made by raftsman, or brought.
    #[serde(default)]
    pub ca: Authority,
    /// The nodes' certificates.
    #[serde(default)]
    pub certificates: Certificates,
    /// On how many nodes besides the primary a commit is before it is acknowledged.
    #[serde(default)]
    pub synchronous: Synchronous,
    /// Patroni's failsafe mode: while etcd is lost, the primary goes on as long as every node answers it. On by default.
    #[serde(default = "yes")]
    pub failsafe: bool,
    /// What resets a machine whose Patroni hangs while it is the primary.
    #[serde(default)]
    pub watchdog: Watchdog,
    /// The backups by pgBackRest, in the store of `backups`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backups: Option<PostgresBackups>,
    /// The backup that a new cluster is bootstrapped from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_from: Option<PostgresRestoreFrom>,
    /// Keep the cluster's machines and data: `raftsman destroy` refuses, and a node that is removed from the file stays
    /// until this is `false`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub prevent_destroy: bool,
}

/// The etcd that Patroni keeps its keys in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum DcsOf {
    /// This etcd cluster of the file. raftsman makes its role and its user.
    Cluster(Name),
    /// An etcd that raftsman does not run.
    External(ExternalEtcd),
}

/// An etcd that raftsman does not run: work on it is not coordinated with PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalEtcd {
    /// `address:port` of each member's client listener.
    pub endpoints: Vec<String>,
    /// The CA certificate that signed the members' server certificates: a file, relative to this one.
    pub ca_cert: String,
    /// The user that Patroni logs in as. Its role may read and write Patroni's prefix.
    pub username: String,
    /// That user's password.
    pub password: Secret,
}

/// How many nodes, or each of them.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Nodes {
    /// The number of nodes, named `<cluster>-1` and on; addresses chosen by the provider.
    Count(u32),
    /// Each node.
    List(Vec<Node>),
}

/// One node of a PostgreSQL cluster, and its machine, which has no other service on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The node's name, which is its machine's name too.
    pub name: Name,
    /// The machine's address: PostgreSQL, replication and Patroni's REST interface are advertised by it. Chosen by the
    /// provider by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Hosts: the SSH destination, a name of your SSH configuration for example. Its address by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The zone that the machine is in. Chosen by raftsman by default, so that nodes are spread evenly; hosts name theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Name>,
    /// In what the node's machine differs from those of its cluster: its size, its image, its disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MemberMachine>,
    /// Patroni's tags of this node.
    #[serde(default, skip_serializing_if = "NodeTags::is_default")]
    pub tags: NodeTags,
    /// The node's name in Patroni; its own name by default. It cannot change later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patroni_name: Option<String>,
}

/// Patroni's tags of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NodeTags {
    /// Never the primary.
    #[serde(skip_serializing_if = "is_false")]
    pub nofailover: bool,
    /// Not behind the replicas' port of a balancer.
    #[serde(skip_serializing_if = "is_false")]
    pub noloadbalance: bool,
    /// Never a synchronous standby.
    #[serde(skip_serializing_if = "is_false")]
    pub nosync: bool,
    /// New nodes are copied from this one by preference.
    #[serde(skip_serializing_if = "is_false")]
    pub clonefrom: bool,
    /// Of the nodes that have received the same, the one with the highest number is promoted. `0` is the same as
    /// `nofailover`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failover_priority: Option<u32>,
}

/// Patroni: its version, its keys in etcd, its timers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Patroni {
    /// The version of Patroni.
    pub version: PatroniVersion,
    /// Where Patroni comes from. The bundle that is shipped with raftsman by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<PatroniSource>,
    /// The cluster's name in Patroni; its name in this file by default. It cannot change later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The prefix of Patroni's keys in etcd: they are below `<namespace><scope>/`. It cannot change later.
    pub namespace: String,
    /// Seconds after which the leader key expires: how long a lost primary goes unnoticed. At least 20, and at least
    /// `loop_wait` + 2 × `retry_timeout`.
    pub ttl: u32,
    /// Seconds between two rounds of Patroni. At least 1.
    pub loop_wait: u32,
    /// Seconds for which requests to etcd and PostgreSQL are repeated before the primary is demoted. At least 3.
    pub retry_timeout: u32,
    /// Seconds that a primary that crashed may take to start again before a standby is promoted; `0`: at once.
    pub primary_start_timeout: u32,
    /// Seconds that PostgreSQL may take to stop, in synchronous mode, before it is killed; `0`: no limit.
    pub primary_stop_timeout: u32,
    /// A standby that is further behind is not promoted.
    pub maximum_lag_on_failover: ByteSize,
}

/// On how many nodes besides the primary a commit is before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Synchronous {
    /// What happens without a synchronous standby.
    pub mode: SyncMode,
    /// The number of synchronous standbys.
    pub nodes: u32,
}

/// What happens without a synchronous standby.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SyncMode {
    /// No acknowledged commit is on the primary only: without a synchronous standby there are no writes.
    #[default]
    Strict,
    /// The same, but each commit waits for the fastest of all standbys (quorum commit).
    Quorum,
    /// Without a synchronous standby, writes go on: a failover can lose acknowledged commits.
    Preferred,
    /// Asynchronous replication: a failover can lose acknowledged commits.
    Off,
}

/// What resets a machine whose Patroni hangs while it is the primary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Watchdog {
    /// Whether Patroni uses the watchdog.
    pub mode: WatchdogMode,
    /// The device.
    pub device: String,
    /// Seconds before the leader key expires at which the machine is reset; `-1`: half of `ttl`.
    pub safety_margin: i32,
}

/// Whether Patroni uses the watchdog.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WatchdogMode {
    /// Where the machine has one.
    #[default]
    Automatic,
    /// A node without one never becomes the primary.
    Required,
    /// Never.
    Off,
}

/// A rule of `pg_hba.conf`: `hostssl`, with a password (SCRAM). It has no other method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HbaRule {
    /// The databases, or `all`.
    pub databases: Vec<String>,
    /// The roles, or `all`.
    pub users: Vec<String>,
    /// From where: networks such as `10.0.0.0/8`, or single addresses.
    pub from: Vec<Subnet>,
}

/// The password of a role of raftsman's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RolePassword {
    /// The password. Made by raftsman and kept encrypted in the state by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
}

/// Roles that raftsman makes and keeps, the superuser first.
pub const OUR_ROLES: [&str; 3] = ["postgres", "replicator", "rewind"];
/// Whose members run programs, or read and write files of the node.
const OUTSIDE: [&str; 3] = ["pg_execute_server_program", "pg_read_server_files", "pg_write_server_files"];

/// Whether PostgreSQL comes with this role.
pub fn is_predefined(role: &str) -> bool {
    role.starts_with("pg_")
}

/// Whether raftsman or PostgreSQL needs this role: no file removes or changes it.
pub fn is_reserved(role: &str) -> bool {
    is_predefined(role) || OUR_ROLES.contains(&role)
}

/// Whether a member of this role can do everything that PostgreSQL can.
pub fn is_as_superuser(role: &str) -> bool {
    OUTSIDE.contains(&role) || OUR_ROLES.contains(&role)
}

/// One role of PostgreSQL. None of them can be a superuser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PgRole {
    /// Its password, which every role that logs in needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// Whether it can log in. On by default.
    pub login: bool,
    /// Whether it can create databases.
    #[serde(skip_serializing_if = "is_false")]
    pub createdb: bool,
    /// Whether it can create roles.
    #[serde(skip_serializing_if = "is_false")]
    pub createrole: bool,
    /// Whether it can start replication. Refused with the modes `strict` and `quorum`: its receiver could pass for a
    /// synchronous standby.
    #[serde(skip_serializing_if = "is_false")]
    pub replication: bool,
    /// How many connections it may have at a time. Any number by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_limit: Option<u32>,
    /// The roles that it is a member of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub member_of: Vec<String>,
    /// Parameters of PostgreSQL for its sessions.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub settings: IndexMap<String, FlagValue>,
}

/// One database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Database {
    /// The role that owns it.
    pub owner: String,
    /// Its encoding. It cannot change later.
    #[serde(default = "default_encoding")]
    pub encoding: String,
    /// Its locale. It cannot change later.
    #[serde(default = "default_locale")]
    pub locale: String,
    /// Extensions that are created in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<String>,
}

/// Where PostgreSQL comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PostgresSource {
    /// This Debian package, such as `postgresql-17`.
    Package(String),
    /// A directory with one directory a version: `<directory>/17.11/bin`.
    Directory(String),
    /// An archive with `bin`, `lib` and `share`, a file or downloaded, checked by its SHA-256.
    Archive(PostgresArchive),
}

/// An archive of PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostgresArchive {
    /// The archive's file, relative to this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Or where it is downloaded from, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Its SHA-256.
    pub sha256: String,
}

/// Where Patroni comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PatroniSource {
    /// A bundle: Patroni and the Python modules that it needs, as one file, checked by its SHA-256.
    Bundle(Bundle),
}

/// A bundle of Patroni.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// The bundle's file, relative to this one. `{version}` in it stands for the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Or where it is downloaded from, once. `{version}` in it stands for the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Its SHA-256; or one for each version: `{ 4.1.5: …, 4.1.6: … }`.
    pub sha256: BundleChecksums,
}

/// The SHA-256 of one bundle, or of one for each version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum BundleChecksums {
    /// Of the one bundle.
    One(String),
    /// Of each version's.
    Each(IndexMap<PatroniVersion, String>),
}

/// The backups of a PostgreSQL cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostgresBackups {
    /// The interval of full backups, such as `1w`.
    pub full_every: Duration,
    /// The interval of differential backups between them, such as `1d`. None by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff_every: Option<Duration>,
    /// How many full backups are kept, with the WAL that is needed from the oldest on.
    #[serde(default = "default_keep_full")]
    pub keep_full: u32,
    /// The interval at which the newest backup is restored into a temporary PostgreSQL and compared: a drill. Off by
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drill_every: Option<Duration>,
}

/// The backup that a new cluster is bootstrapped from. It has no effect once the cluster exists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PostgresRestoreFrom {
    /// The PostgreSQL cluster that the backups are of. The cluster's own by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Name>,
    /// Everything up to this moment, such as `2026-11-16T07:00:00Z`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// This backup, by its label, and the WAL after it. The newest by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
}

impl HbaRule {
    /// All networks that these rules let clients in from.
    pub fn sources(rules: &[Self]) -> BTreeSet<Subnet> {
        rules.iter().flat_map(|rule| &rule.from).copied().collect()
    }

    /// Whether it lets clients in from all of these networks.
    pub fn covers(&self, sources: &BTreeSet<Subnet>) -> bool {
        sources.iter().all(|source| self.from.iter().any(|from| from.covers(*source)))
    }
}

impl PostgresCluster {
    /// The nodes that the file lists; none where it only counts them.
    pub fn listed(&self) -> &[Node] {
        match &self.nodes {
            Nodes::Count(_) => &[],
            Nodes::List(list) => list,
        }
    }

    /// The etcd cluster of the file that it stands on; nothing where raftsman does not run it.
    pub fn beneath(&self) -> Option<&Name> {
        match &self.etcd {
            DcsOf::Cluster(etcd) => Some(etcd),
            DcsOf::External(_) => None,
        }
    }

    /// Where Patroni's keys are: `<namespace><scope>/`, as Patroni itself joins them.
    pub fn prefix(&self, name: &Name) -> String {
        let scope = self.patroni.scope.as_deref().unwrap_or(name.as_str());
        let parts = self.patroni.namespace.split('/').chain([scope]).filter(|part| !part.is_empty());
        parts.fold("/".to_owned(), |path, part| format!("{path}{part}/"))
    }

    /// How many nodes may be a synchronous standby, whichever of them is the primary now.
    pub fn synchronous_candidates(&self) -> u64 {
        match &self.nodes {
            Nodes::Count(count) => u64::from(*count),
            Nodes::List(list) => {
                list.iter().filter(|node| !node.tags.nosync && !node.tags.is_never_primary()).count() as u64
            }
        }
    }
}

impl Nodes {
    /// How many.
    pub fn number(&self) -> u64 {
        match self {
            Self::Count(count) => u64::from(*count),
            Self::List(list) => list.len() as u64,
        }
    }
}

impl NodeTags {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether Patroni never promotes the node; it is no synchronous standby then, either.
    pub fn is_never_primary(&self) -> bool {
        self.nofailover || self.failover_priority == Some(0)
    }
}

impl SyncMode {
    /// Whether no acknowledged commit is on the primary only.
    pub fn keeps_commits(self) -> bool {
        match self {
            Self::Strict | Self::Quorum => true,
            Self::Preferred | Self::Off => false,
        }
    }
}

impl RolePassword {
    /// Whether raftsman makes it.
    pub fn is_made(&self) -> bool {
        self.password.is_none()
    }
}

impl BundleChecksums {
    /// The one for this version.
    pub fn of(&self, version: PatroniVersion) -> Option<&str> {
        match self {
            Self::One(sha256) => Some(sha256),
            Self::Each(each) => each.get(&version).map(String::as_str),
        }
    }
}

impl Default for Patroni {
    fn default() -> Self {
        Self {
            version: PatroniVersion::default(),
            source: None,
            scope: None,
            namespace: "/service/".to_owned(),
            // Patroni's own defaults.
            ttl: 30,
            loop_wait: 10,
            retry_timeout: 10,
            primary_start_timeout: 300,
            primary_stop_timeout: 300,
            maximum_lag_on_failover: ByteSize::mib(1),
        }
    }
}

impl Default for Synchronous {
    fn default() -> Self {
        Self { mode: SyncMode::Strict, nodes: 1 }
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Self { mode: WatchdogMode::Automatic, device: "/dev/watchdog".to_owned(), safety_margin: 5 }
    }
}

impl Default for PgRole {
    fn default() -> Self {
        Self {
            password: None,
            login: true,
            createdb: false,
            createrole: false,
            replication: false,
            connection_limit: None,
            member_of: Vec::new(),
            settings: IndexMap::new(),
        }
    }
}

fn yes() -> bool {
    true
}

fn default_encoding() -> String {
    "UTF8".to_owned()
}

fn default_locale() -> String {
    "C.UTF-8".to_owned()
}

fn default_keep_full() -> u32 {
    4
}
