//! What Patroni says of its nodes and keeps in etcd → facts of a PostgreSQL cluster, and what follows from them.

mod catalog;
mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Observed;
use super::agent::{CertificateFacts, Delivery, PortTaken, Service};
use super::fact::Fact;
use crate::desired::{Postgres, UserSlot};
use crate::spec::{Name, PatroniVersion, PostgresVersion, SyncMode};

pub use catalog::{Catalog, CatalogDatabase, CatalogRole, RoleAttribute, elements};
pub use read::PatroniError;

/// The identifier that `initdb` gives to a cluster's data: every node's data has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SystemId(pub u64);

impl PostgresOnMachine {
    /// Whether the running Patroni has not taken up what is written.
    pub fn is_outdated(&self) -> bool {
        let written = self.written.as_ref().map(|file| &file.digest);
        let differs = written != self.taken_up.as_ref().map(|file| &file.digest);
        written.is_some() && (differs || self.other_secrets || self.presents_others())
    }

    /// Whether the running processes present other certificates than those that are there.
    pub fn presents_others(&self) -> bool {
        self.certificates.iter().any(|(purpose, there)| self.presented.get(purpose) != Some(&there.fingerprint))
    }
}

impl fmt::Display for SystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One PostgreSQL cluster, as etcd and its nodes show it. What runs on its machines is in their agents' reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostgresObserved {
    /// What Patroni keeps in etcd.
    pub keys: Fact<PatroniKeys>,
    /// For each node that was asked to: its attempts to log in to members of etcd with Patroni's own file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub logins: BTreeMap<Name, EtcdLogins>,
    /// Its roles and databases, or why they could not be read; nothing where the file says nothing of them, or no primary
    /// could be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog: Option<Result<Catalog, String>>,
}

impl PostgresObserved {
    /// Of Patroni's keys alone.
    pub fn of_keys(keys: Fact<PatroniKeys>) -> Self {
        Self { keys, logins: BTreeMap::new(), catalog: None }
    }
}

/// New logins to members of etcd with the very file and CA certificates that Patroni has on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdLogins {
    /// When, by our clock.
    pub at: Timestamp,
    /// The user of etcd.
    pub user: UserSlot,
    /// By member: whether it was accepted and could read Patroni's keys, or why not.
    pub members: BTreeMap<Name, Result<(), String>>,
}

/// PostgreSQL and Patroni on one machine, as its agent sees them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PostgresOnMachine {
    /// Installed versions of Patroni, with the SHA-256 of their bundle.
    pub patroni: BTreeMap<PatroniVersion, String>,
    /// The version that the running Patroni was started with.
    pub running_patroni: Option<PatroniVersion>,
    /// PostgreSQL's version on the disk; nothing where it is not installed.
    pub installed: Option<PostgresVersion>,
    /// What is written.
    pub written: Option<PatroniFile>,
    /// What the running Patroni has taken up, at its start or by a reload.
    pub taken_up: Option<PatroniFile>,
    /// The members of etcd that the running Patroni was started with: it falls back to them.
    #[serde(default)]
    pub started_with: BTreeSet<SocketAddr>,
    /// Digest of the CA certificates that it checks members of etcd by: they are read anew for each connection.
    pub trust: Option<String>,
    /// Whether it has the secrets that it should have.
    #[serde(default, skip_serializing_if = "Delivery::is_current")]
    pub secrets: Delivery,
    /// Whether the running Patroni has taken up other secrets than those that are written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub other_secrets: bool,
    /// Its certificates.
    #[serde(default)]
    pub certificates: BTreeMap<NodePurpose, CertificateFacts>,
    /// The fingerprints of those that the running processes have taken up, at their start or by a reload.
    #[serde(default)]
    pub presented: BTreeMap<NodePurpose, String>,
    /// Patroni's process.
    pub service: Service,
    /// PostgreSQL's data.
    pub data: PgData,
    /// Whether a cluster's data was ever seen here.
    pub had_data: bool,
    /// Ports that it needs and other processes hold.
    #[serde(default)]
    pub ports_taken: Vec<PortTaken>,
    /// What Patroni answers, or why it does not.
    pub node: Result<NodeFacts, String>,
}

/// What a node's certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodePurpose {
    /// PostgreSQL presents it to clients and to other nodes.
    Server,
    /// Patroni presents it at its REST interface, and to those of other nodes.
    Rest,
}

impl NodePurpose {
    /// Every certificate that a node needs.
    pub const ALL: [Self; 2] = [Self::Server, Self::Rest];
}

/// What of Patroni's file decides whether it reaches etcd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatroniFile {
    /// Digest of the file, without its secrets.
    pub digest: String,
    /// The user of etcd in it.
    pub user: UserSlot,
    /// The members of etcd in it.
    pub hosts: BTreeSet<SocketAddr>,
}

/// PostgreSQL's data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "data", rename_all = "lowercase")]
pub enum PgData {
    /// Nothing is in it.
    Empty,
    /// It holds a cluster's data.
    Present {
        /// Whose.
        system: SystemId,
        /// Its timeline, as of the last checkpoint.
        timeline: u32,
        /// The end of its log, as far as that is known while PostgreSQL does not run.
        position: u64,
    },
    /// It could not be read.
    Unreadable {
        /// Why.
        problem: String,
    },
}

/// What a node's Patroni answers (`GET /patroni`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Its name among Patroni's.
    pub name: String,
    /// What it is.
    pub role: NodeRole,
    /// What PostgreSQL does there.
    pub state: NodeState,
    /// Whose data it has, once it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<SystemId>,
    /// The timeline that it is on, while PostgreSQL runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<u32>,
    /// How far it wrote, or received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Whether it receives changes as they are made.
    pub streaming: bool,
    /// Whether Patroni leaves everything as it is until an operator resumes it.
    pub paused: bool,
    /// Whether it goes by the word of a primary that went on without etcd: for `ttl` after that word, it does not take the
    /// primary's place, whatever etcd says by then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failsafe: bool,
    /// Whether a setting waits for a restart.
    pub pending_restart: bool,
    /// Which settings wait for it, as far as Patroni says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pending: BTreeMap<String, PendingSetting>,
    /// When it last read Patroni's keys, rounded down to a second; in an agent's report by our clock.
    ///
    /// Patroni reads them out of its watch's memory: this does not show that a new request to etcd would succeed.
    pub dcs_seen: Timestamp,
    /// Patroni's version.
    pub patroni: PatroniVersion,
    /// PostgreSQL's version, while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<PostgresVersion>,
}

/// A setting that waits for a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingSetting {
    /// The value that PostgreSQL runs with.
    pub from: String,
    /// The value that it gets.
    pub to: String,
}

impl PendingSetting {
    /// Whether the number gets smaller: a standby that has less of it than its primary stops.
    pub fn is_lowered(&self) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        number(&self.from).zip(number(&self.to)).is_some_and(|(from, to)| to < from)
    }
}

/// What a node is, as it sees itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// It takes writes.
    Primary,
    /// It follows the primary.
    Replica,
    /// It follows a primary of another cluster, and the nodes of this one follow it.
    StandbyLeader,
    /// It has no data yet.
    Uninitialized,
}

/// What PostgreSQL does on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It runs.
    Running,
    /// It has been told to start.
    Starting,
    /// It does not run.
    Stopped,
    /// It has been told to stop.
    Stopping,
    /// It is restarted.
    Restarting,
    /// Its data is made.
    Initializing,
    /// Its data is copied from another node.
    CreatingReplica,
    /// It ended by itself.
    Crashed,
    /// It does not start.
    StartFailed,
    /// A word of Patroni's that raftsman does not know.
    Other(String),
}

/// What Patroni keeps in etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatroniKeys {
    /// Whose data the cluster has, once its first node made it.
    pub system: Option<SystemId>,
    /// The node that holds the leader's lease.
    pub leader: Option<String>,
    /// Which standbys have every acknowledged commit.
    pub sync: SyncKey,
    /// The settings of the whole cluster, in JSON.
    pub settings: Option<String>,
    /// The ends of former timelines, the oldest first.
    pub history: Vec<TimelineEnd>,
    /// The nodes that have to agree where etcd is lost.
    pub failsafe: BTreeSet<String>,
    /// The nodes that Patroni knows.
    pub members: BTreeSet<String>,
    /// Whether a switchover or failover was asked for and is not done.
    pub failover: bool,
}

impl PatroniKeys {
    /// A setting of the whole cluster that is a number of seconds.
    pub fn seconds(&self, key: &str) -> Option<u32> {
        let settings: serde_json::Value = serde_json::from_str(self.settings.as_deref()?).ok()?;
        settings.get(key)?.as_u64().and_then(|seconds| u32::try_from(seconds).ok())
    }

    /// What happens without a synchronous standby, by the settings that Patroni has; nothing where it has none yet.
    pub fn mode(&self) -> Option<SyncMode> {
        let settings: serde_json::Value = serde_json::from_str(self.settings.as_deref()?).ok()?;
        let is = |key: &str| settings.get(key).is_some_and(|value| *value == serde_json::Value::Bool(true));
        Some(match settings.get("synchronous_mode").and_then(serde_json::Value::as_str) {
            Some("quorum") => SyncMode::Quorum,
            Some(_) | None if !is("synchronous_mode") => SyncMode::Off,
            Some(_) | None if is("synchronous_mode_strict") => SyncMode::Strict,
            Some(_) | None => SyncMode::Preferred,
        })
    }
}

/// Which standbys have every acknowledged commit, as of a revision of etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncKey {
    /// The primary that says so.
    pub leader: Option<String>,
    /// The standbys.
    pub standbys: BTreeSet<String>,
    /// How many of them have to answer where a primary is elected: a commit waits for the others' number.
    pub quorum: u32,
    /// etcd's revision at which the key was last written: it never goes back under a living cluster.
    pub revision: i64,
}

/// The end of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEnd {
    /// Which.
    pub timeline: u32,
    /// Where the next one forked off it.
    pub position: u64,
}

/// On how many nodes besides the primary every acknowledged commit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Copies {
    /// It takes no writes.
    NotWritable,
    /// On so many.
    Synchronous(u32),
}

/// Why nothing may be taken away from a PostgreSQL cluster, or from the etcd beneath it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unsettled {
    /// A node's Patroni does not answer.
    Silent(String),
    /// Several nodes say that they take writes.
    SeveralPrimaries(BTreeSet<String>),
    /// No node both takes writes and holds the lease.
    NoPrimary,
    /// Patroni is paused.
    Paused,
    /// A switchover or failover is under way.
    FailoverPending,
    /// A node goes by the word of a primary that went on without etcd: no standby takes its place yet.
    Failsafe(String),
    /// PostgreSQL does not run on a node.
    NotRunning(String),
    /// Nodes are on different timelines.
    TimelinesDiffer(BTreeSet<u32>),
    /// A node has the data of another cluster.
    OtherSystem(String),
    /// Fewer synchronous standbys stream than there should be.
    SynchronousMissing {
        /// So many do.
        streaming: u32,
        /// So many should.
        wanted: u32,
    },
}

impl fmt::Display for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(node) => write!(f, "Patroni on {node} does not answer"),
            Self::SeveralPrimaries(nodes) => {
                write!(f, "several nodes take writes: {}", nodes.iter().cloned().collect::<Vec<_>>().join(", "))
            }
            Self::NoPrimary => f.write_str("it has no primary"),
            Self::Paused => f.write_str("Patroni is paused"),
            Self::FailoverPending => f.write_str("a switchover or failover is under way"),
            Self::Failsafe(node) => {
                write!(f, "etcd was lost: {node} takes no primary's place until `ttl` after it is back")
            }
            Self::NotRunning(node) => write!(f, "PostgreSQL does not run on {node}"),
            Self::TimelinesDiffer(timelines) => {
                let timelines: Vec<String> = timelines.iter().map(ToString::to_string).collect();
                write!(f, "its nodes are on different timelines: {}", timelines.join(", "))
            }
            Self::OtherSystem(node) => write!(f, "{node} has the data of another cluster"),
            Self::SynchronousMissing { streaming, wanted } => {
                write!(f, "{streaming} of {wanted} synchronous standbys stream")
            }
        }
    }
}

/// The conclusions about a PostgreSQL cluster. Nodes have the names that Patroni has for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresView<'a> {
    nodes: BTreeMap<&'a str, Result<&'a NodeFacts, &'a str>>,
    keys: &'a PatroniKeys,
}

impl PatroniKeys {
    /// Whether this node leads, or may lead next.
    fn names(&self, node: &str) -> bool {
        let sync = &self.sync;
        [&self.leader, &sync.leader].into_iter().flatten().any(|name| name == node) || sync.standbys.contains(node)
    }
}

impl<'a> PostgresView<'a> {
    /// Of what each node answers and what is in etcd.
    pub fn of(nodes: &'a BTreeMap<String, Result<NodeFacts, String>>, keys: &'a PatroniKeys) -> Self {
        let nodes = nodes.iter().map(|(name, answer)| (name.as_str(), answer.as_ref().map_err(String::as_str)));
        Self { nodes: nodes.collect(), keys }
    }

    /// Of the nodes of the file, and of those that Patroni was started on and that are still to go; nothing where Patroni's
    /// keys could not be read. One that is to go and does not answer is no part of the cluster any more, unless etcd names
    /// it as one that has every commit: nothing waits for it.
    pub fn seen(cluster: &'a Postgres, observed: &'a Observed) -> Option<Self> {
        let keys = observed.postgres.get(&cluster.name)?.keys.seen()?;
        let former = observed.ledger.postgres.get(&cluster.name).into_iter().flat_map(|ledger| ledger.started.keys());
        let former = former.filter(|name| cluster.node(name).is_none()).map(|name| (name.as_str(), name));
        let nodes = cluster.nodes.iter().map(|node| (node.patroni_name.as_str(), &node.name)).chain(former);
        let answer = |machine: &Name| match observed.report(machine).and_then(|report| report.postgres.as_ref()) {
            Some(node) => node.node.as_ref().map_err(String::as_str),
            None => Err("its agent does not answer"),
        };
        let nodes = nodes.map(|(name, machine)| (name, answer(machine)));
        let counts = |(name, answer): &(&str, Result<_, _>)| {
            answer.is_ok() || cluster.node_in_patroni(name).is_some() || keys.names(name)
        };
        Some(Self { nodes: nodes.filter(counts).collect(), keys })
    }

    fn answering(&self) -> impl Iterator<Item = (&'a str, &'a NodeFacts)> {
        self.nodes.iter().filter_map(|(name, answer)| Some((*name, (*answer).ok()?)))
    }

    /// What a node answers.
    pub fn node(&self, name: &str) -> Option<&'a NodeFacts> {
        self.nodes.get(name).and_then(|answer| answer.ok())
    }

    /// What Patroni keeps in etcd.
    pub fn keys(&self) -> &'a PatroniKeys {
        self.keys
    }

    /// The nodes that say that they take writes.
    pub fn claims(&self) -> BTreeSet<&'a str> {
        let writes = |facts: &NodeFacts| facts.role == NodeRole::Primary && facts.state == NodeState::Running;
        self.answering().filter(|(_, facts)| writes(facts)).map(|(name, _)| name).collect()
    }

    /// The node that takes writes: the only one that says so, with the leader's lease, on the highest timeline.
    pub fn primary(&self) -> Option<&'a str> {
        let highest = self.timelines().into_iter().next_back();
        let claims = self.claims();
        let only = claims.first().copied().filter(|_| claims.len() == 1)?;
        (self.keys.leader.as_deref() == Some(only) && self.node(only)?.timeline == highest).then_some(only)
    }

    /// The timelines that nodes are on.
    pub fn timelines(&self) -> BTreeSet<u32> {
        self.answering().filter_map(|(_, facts)| facts.timeline).collect()
    }

    /// The standbys that have every acknowledged commit and get the next one: etcd names them, and they stream.
    pub fn synchronous(&self) -> BTreeSet<&'a str> {
        let named = |name: &str| self.keys.sync.standbys.contains(name);
        let of_primary = self.keys.sync.leader.as_deref() == self.primary();
        self.streaming().filter(|name| of_primary && named(name)).collect()
    }

    /// The nodes that receive changes as they are made.
    fn streaming(&self) -> impl Iterator<Item = &'a str> {
        let streams = |facts: &NodeFacts| facts.streaming && facts.state == NodeState::Running;
        self.answering().filter(move |(_, facts)| streams(facts)).map(|(name, _)| name)
    }

    /// The standbys that a primary may hand over to with nothing lost: the synchronous ones. Where Patroni keeps none, those
    /// that stream: a primary that stops in good order sends them the rest.
    pub fn candidates(&self) -> BTreeSet<&'a str> {
        match self.keys.mode() {
            Some(SyncMode::Off) => self.streaming().collect(),
            Some(_) | None => self.synchronous(),
        }
    }

    /// On how many nodes besides the primary an acknowledged commit is.
    pub fn copies(&self) -> Copies {
        self.copies_without(None)
    }

    /// The same while this node is away.
    pub fn copies_without(&self, away: Option<&str>) -> Copies {
        if self.primary().is_none_or(|primary| away == Some(primary)) {
            return Copies::NotWritable;
        }
        // A commit waits for as many of the standbys that are named as the election of a primary can do without.
        let waited_for = self.keys.sync.standbys.len().saturating_sub(self.keys.sync.quorum as usize);
        let there = self.synchronous().into_iter().filter(|name| Some(*name) != away).count();
        Copies::Synchronous(u32::try_from(waited_for.min(there)).unwrap_or(u32::MAX))
    }

    /// Whether every node is as it should be, with so many synchronous standbys: only then may something be taken away.
    pub fn settled(&self, wanted: u32) -> Result<(), Unsettled> {
        self.settled_beside(wanted, None)
    }

    /// The same of all nodes but this one.
    pub fn settled_beside(&self, wanted: u32, beside: Option<&str>) -> Result<(), Unsettled> {
        let claims = self.claims();
        if claims.len() > 1 {
            return Err(Unsettled::SeveralPrimaries(claims.into_iter().map(str::to_owned).collect()));
        }
        let others = || self.nodes.iter().filter(|(name, _)| Some(**name) != beside);
        for (name, answer) in others() {
            let Ok(facts) = answer else { return Err(Unsettled::Silent((*name).to_owned())) };
            if facts.paused {
                return Err(Unsettled::Paused);
            }
            if facts.state != NodeState::Running {
                return Err(Unsettled::NotRunning((*name).to_owned()));
            }
            if facts.failsafe {
                return Err(Unsettled::Failsafe((*name).to_owned()));
            }
            match (facts.system, self.keys.system) {
                (Some(of_node), Some(of_cluster)) if of_node == of_cluster => {}
                (Some(_), Some(_)) => return Err(Unsettled::OtherSystem((*name).to_owned())),
                // Patroni says it once it has made the data. Keys and nodes are read at different moments, so that either
                // may be known first.
                (None, Some(_) | None) => return Err(Unsettled::NotRunning((*name).to_owned())),
                (Some(_), None) => return Err(Unsettled::NoPrimary),
            }
        }
        if self.keys.failover {
            return Err(Unsettled::FailoverPending);
        }
        let timelines: BTreeSet<u32> =
            others().filter_map(|(_, answer)| answer.ok()).filter_map(|facts| facts.timeline).collect();
        if timelines.len() > 1 {
            return Err(Unsettled::TimelinesDiffer(timelines));
        }
        if self.primary().is_none() {
            return Err(Unsettled::NoPrimary);
        }
        let streaming = self.synchronous().into_iter().filter(|name| Some(*name) != beside).count();
        let streaming = u32::try_from(streaming).unwrap_or(u32::MAX);
        if streaming < wanted {
            return Err(Unsettled::SynchronousMissing { streaming, wanted });
        }
        Ok(())
    }

    /// The nodes that have not read Patroni's keys since this moment, as far as they answer.
    pub fn not_seen_since(&self, moment: Timestamp) -> BTreeSet<&'a str> {
        let seen = |answer: &Result<&NodeFacts, &str>| answer.is_ok_and(|facts| facts.dcs_seen > moment);
        self.nodes.iter().filter(|(_, answer)| !seen(answer)).map(|(name, _)| *name).collect()
    }
}
