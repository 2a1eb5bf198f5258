//! What Patroni says of its nodes and keeps in etcd → facts of a PostgreSQL cluster, and what follows from them.

mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::spec::{PatroniVersion, PostgresVersion};

pub use read::PatroniError;

/// The identifier that `initdb` gives to a cluster's data: every node's data has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SystemId(pub u64);

impl fmt::Display for SystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
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
    /// Whether a setting waits for a restart.
    pub pending_restart: bool,
    /// When it last read Patroni's keys, by its own clock, rounded down to a second.
    ///
    /// Patroni reads them out of its watch's memory: this does not show that a new request to etcd would succeed.
    pub dcs_seen: Timestamp,
    /// Patroni's version.
    pub patroni: PatroniVersion,
    /// PostgreSQL's version, while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<PostgresVersion>,
}

/// What a node is, as it sees itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

/// The conclusions about a PostgreSQL cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresView<'a> {
    nodes: &'a BTreeMap<String, Result<NodeFacts, String>>,
    keys: &'a PatroniKeys,
}

impl<'a> PostgresView<'a> {
    /// Of what each node answers, under the name that Patroni has for it, and what is in etcd.
    pub fn of(nodes: &'a BTreeMap<String, Result<NodeFacts, String>>, keys: &'a PatroniKeys) -> Self {
        Self { nodes, keys }
    }

    fn answering(&self) -> impl Iterator<Item = (&'a String, &'a NodeFacts)> {
        self.nodes.iter().filter_map(|(name, answer)| Some((name, answer.as_ref().ok()?)))
    }

    /// The nodes that say that they take writes.
    pub fn claims(&self) -> BTreeSet<&'a String> {
        let writes = |facts: &NodeFacts| facts.role == NodeRole::Primary && facts.state == NodeState::Running;
        self.answering().filter(|(_, facts)| writes(facts)).map(|(name, _)| name).collect()
    }

    /// The node that takes writes: the only one that says so, with the leader's lease, on the highest timeline.
    pub fn primary(&self) -> Option<&'a String> {
        let highest = self.timelines().into_iter().next_back();
        let claims = self.claims();
        let only = claims.first().copied().filter(|_| claims.len() == 1)?;
        let facts = self.nodes.get(only)?.as_ref().ok()?;
        (self.keys.leader.as_ref() == Some(only) && facts.timeline == highest).then_some(only)
    }

    /// The timelines that nodes are on.
    pub fn timelines(&self) -> BTreeSet<u32> {
        self.answering().filter_map(|(_, facts)| facts.timeline).collect()
    }

    /// The standbys that have every acknowledged commit and get the next one: etcd names them, and they stream.
    pub fn synchronous(&self) -> BTreeSet<&'a String> {
        let named = |name: &String| self.keys.sync.standbys.contains(name);
        let of_primary = self.keys.sync.leader.as_ref() == self.primary();
        let streams = |facts: &NodeFacts| facts.streaming && facts.state == NodeState::Running;
        let found = self.answering().filter(|(name, facts)| of_primary && named(name) && streams(facts));
        found.map(|(name, _)| name).collect()
    }

    /// On how many nodes besides the primary an acknowledged commit is.
    pub fn copies(&self) -> Copies {
        if self.primary().is_none() {
            return Copies::NotWritable;
        }
        // A commit waits for as many of the standbys that are named as the election of a primary can do without.
        let waited_for = self.keys.sync.standbys.len().saturating_sub(self.keys.sync.quorum as usize);
        Copies::Synchronous(u32::try_from(waited_for.min(self.synchronous().len())).unwrap_or(u32::MAX))
    }

    /// Whether every node is as it should be, with so many synchronous standbys: only then may something be taken away.
    pub fn settled(&self, wanted: u32) -> Result<(), Unsettled> {
        let claims = self.claims();
        if claims.len() > 1 {
            return Err(Unsettled::SeveralPrimaries(claims.into_iter().cloned().collect()));
        }
        for (name, answer) in self.nodes {
            let Ok(facts) = answer else { return Err(Unsettled::Silent(name.clone())) };
            if facts.paused {
                return Err(Unsettled::Paused);
            }
            if facts.state != NodeState::Running {
                return Err(Unsettled::NotRunning(name.clone()));
            }
            if facts.system != self.keys.system {
                return Err(Unsettled::OtherSystem(name.clone()));
            }
        }
        if self.keys.failover {
            return Err(Unsettled::FailoverPending);
        }
        let timelines = self.timelines();
        if timelines.len() > 1 {
            return Err(Unsettled::TimelinesDiffer(timelines));
        }
        if self.primary().is_none() {
            return Err(Unsettled::NoPrimary);
        }
        let streaming = u32::try_from(self.synchronous().len()).unwrap_or(u32::MAX);
        if streaming < wanted {
            return Err(Unsettled::SynchronousMissing { streaming, wanted });
        }
        Ok(())
    }

    /// The nodes that have not read Patroni's keys since this moment, as far as they answer.
    pub fn not_seen_since(&self, moment: Timestamp) -> BTreeSet<&'a String> {
        let seen = |answer: &Result<NodeFacts, String>| answer.as_ref().is_ok_and(|facts| facts.dcs_seen > moment);
        self.nodes.iter().filter(|(_, answer)| !seen(answer)).map(|(name, _)| name).collect()
    }
}
