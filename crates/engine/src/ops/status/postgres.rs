//! PostgreSQL clusters, as etcd and their nodes show them → the status of each cluster and node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use raftsman_core::desired::{Postgres, Stack};
use raftsman_core::observed::{
    AgentReport, CertificateFacts, Copies, Fact, NodeFacts, NodePurpose, NodeRole, NodeState, Observed, PendingSetting,
    PgData, PostgresOnMachine, PostgresView, Power, ServiceState, Unsettled,
};
use raftsman_core::spec::{Name, PatroniVersion, PostgresVersion, SyncMode};
use serde::Serialize;

use super::{AgentStatus, Expiry};

/// The status of a PostgreSQL cluster.
#[derive(Debug, Clone, Serialize)]
pub struct PostgresStatus {
    /// Its name.
    pub name: Name,
    /// In one word: `settled`, `unsettled`, `unknown` (Patroni's keys cannot be read) or `new` (it was not made yet).
    pub state: &'static str,
    /// Why it is not settled, in words.
    pub problem: Option<String>,
    /// The same as data, where nodes or keys show it.
    pub unsettled: Option<Unsettled>,
    /// The node that takes writes: the only one that says so, with the leader's lease, on the highest timeline.
    pub primary: Option<Name>,
    /// The primary's timeline.
    pub timeline: Option<u32>,
    /// On how many nodes besides the primary every acknowledged commit is; nothing where Patroni's keys cannot be read.
    pub copies: Option<Copies>,
    /// On how many it should be.
    pub copies_wanted: u32,
    /// What happens without a synchronous standby, by the settings that Patroni has.
    pub synchronous_mode: Option<SyncMode>,
    /// Whether Patroni leaves everything as it is until an operator resumes it; nothing where no node says.
    pub paused: Option<bool>,
    /// Whether Patroni was asked for a switchover or failover that is not done.
    pub failover_pending: Option<bool>,
    /// A switchover that raftsman asked for and whose end was not seen.
    pub switchover: Option<SwitchoverStatus>,
    /// Its nodes: those of the file, then those that are still to go.
    pub nodes: Vec<NodeStatus>,
    /// The nodes' certificate that expires first.
    pub first_expiry: Option<Expiry>,
    /// When its CA expires.
    pub ca_expiry: Option<Expiry>,
}

/// A switchover that raftsman asked for.
#[derive(Debug, Clone, Serialize)]
pub struct SwitchoverStatus {
    /// The primary then.
    pub from: Name,
    /// The standby that was to follow it.
    pub to: Name,
    /// When it was asked for.
    pub begun: Timestamp,
}

/// The status of a node.
#[derive(Debug, Clone, Serialize)]
pub struct NodeStatus {
    /// Its name: its machine's.
    pub name: Name,
    /// Its name among Patroni's.
    pub patroni_name: String,
    /// Its machine's address, where it is known.
    pub address: Option<IpAddr>,
    /// Whether the file has it; one that it does not have is still to go.
    pub in_file: bool,
    /// In one word: `primary`, `sync_standby`, `standby`, `standby_leader`, `disputed` (it says that it takes writes, and
    /// etcd or another node says otherwise), `copying`, `initializing`, `starting`, `restarting`, `stopping`, `stopped`,
    /// `failed`, `crashing`, `silent`, `unreachable`, `missing`, `new` or `unknown`.
    pub state: &'static str,
    /// What is wrong with it, if anything.
    pub problem: Option<String>,
    /// The version of PostgreSQL that runs.
    pub version: Option<PostgresVersion>,
    /// The version on the disk.
    pub installed: Option<PostgresVersion>,
    /// The version of Patroni that runs.
    pub patroni: Option<PatroniVersion>,
    /// The timeline that it is on, while PostgreSQL runs.
    pub timeline: Option<u32>,
    /// How far it wrote, or received.
    pub position: Option<u64>,
    /// How many bytes it is behind the primary's position, on the same timeline. Nodes are asked one after the other.
    pub lag: Option<u64>,
    /// Whether it receives changes as they are made; nothing of the primary.
    pub streaming: Option<bool>,
    /// Whether a setting waits for a restart of PostgreSQL.
    pub pending_restart: Option<bool>,
    /// Which settings wait for it, as far as Patroni says.
    pub pending: BTreeMap<String, PendingSetting>,
    /// When its Patroni last read its keys.
    pub dcs_seen: Option<Timestamp>,
    /// Patroni's process.
    pub pid: Option<u32>,
    /// How often Patroni ended by itself since it was last asked to start.
    pub restarts: Option<u32>,
    /// Its certificates.
    pub certificates: BTreeMap<NodePurpose, CertificateFacts>,
    /// Its machine's agent.
    pub agent: Option<AgentStatus>,
}

/// The status of all PostgreSQL clusters on this etcd cluster.
pub fn postgres(desired: &Stack, observed: &Observed, now: Timestamp) -> Vec<PostgresStatus> {
    desired.postgres.iter().map(|cluster| one(desired, observed, cluster, now)).collect()
}

fn one(desired: &Stack, observed: &Observed, cluster: &Postgres, now: Timestamp) -> PostgresStatus {
    let seen = PostgresView::seen(cluster, observed);
    let known = observed.ledger.of_postgres(&cluster.name);
    let keys = observed.postgres.get(&cluster.name).and_then(|seen| seen.keys.seen());
    let (state, problem, unsettled) = judged(observed, cluster, seen.as_ref());
    let primary = seen.as_ref().and_then(|seen| seen.primary());
    let leading = primary.and_then(|primary| seen.as_ref()?.node(primary));
    let of_file = cluster.nodes.iter().map(|node| Of {
        name: &node.name,
        patroni_name: &node.patroni_name,
        address: Some(node.address),
        in_file: true,
    });
    let former = known.started.keys().filter(|name| cluster.node(name).is_none()).map(|name| Of {
        name,
        patroni_name: name.as_str(),
        address: observed.machine(name).map(|machine| machine.address),
        in_file: false,
    });
    let nodes: Vec<NodeStatus> =
        of_file.chain(former).map(|of| node(desired, observed, cluster, seen.as_ref(), leading, &of)).collect();
    let answers = || cluster.nodes.iter().filter_map(|node| facts(observed, &node.name));
    PostgresStatus {
        name: cluster.name.clone(),
        state,
        problem,
        unsettled,
        primary: primary.and_then(|name| machine_of(cluster, name)),
        timeline: leading.and_then(|facts| facts.timeline),
        copies: seen.as_ref().map(PostgresView::copies),
        copies_wanted: cluster.synchronous_standbys(),
        synchronous_mode: keys.and_then(|keys| keys.mode()),
        paused: answers().next().map(|_| answers().any(|facts| facts.paused)),
        failover_pending: keys.map(|keys| keys.failover),
        switchover: known.switchover.as_ref().map(|record| SwitchoverStatus {
            from: record.from.clone(),
            to: record.to.clone(),
            begun: record.begun,
        }),
        first_expiry: first_leaf(cluster, &nodes, now),
        ca_expiry: authority(observed, cluster, now),
        nodes,
    }
}

/// Whether it is as it should be, or why not.
fn judged(
    observed: &Observed,
    cluster: &Postgres,
    seen: Option<&PostgresView<'_>>,
) -> (&'static str, Option<String>, Option<Unsettled>) {
    let known = observed.ledger.of_postgres(&cluster.name);
    let Some(seen) = seen else {
        let fact = observed.postgres.get(&cluster.name).map(|seen| &seen.keys);
        let error = fact.and_then(Fact::error);
        let begun = known.system.is_some() || !known.started.is_empty();
        if !begun && error.is_none() {
            return ("new", None, None);
        }
        let error = error.unwrap_or("they were not read");
        return ("unknown", Some(format!("Patroni's keys cannot be read: {error}")), None);
    };
    if seen.keys().system.or(known.system).is_none() {
        return ("new", None, None);
    }
    if let Some(record) = &known.switchover {
        let problem = format!("whether {} took the place of {} is not known yet", record.to, record.from);
        return ("unsettled", Some(problem), None);
    }
    match seen.settled(cluster.synchronous_standbys()) {
        Ok(()) => ("settled", None, None),
        Err(why) => ("unsettled", Some(why.to_string()), Some(why)),
    }
}

/// Which node, and what the file or the state says of it.
struct Of<'a> {
    name: &'a Name,
    patroni_name: &'a str,
    address: Option<IpAddr>,
    in_file: bool,
}

fn facts<'a>(observed: &'a Observed, machine: &Name) -> Option<&'a NodeFacts> {
    observed.report(machine)?.postgres.as_ref()?.node.as_ref().ok()
}

/// The machine of the node that Patroni has under this name.
fn machine_of(cluster: &Postgres, patroni_name: &str) -> Option<Name> {
    let node = cluster.node_in_patroni(patroni_name).map(|node| node.name.clone());
    // A node that is not in the file has the name of its machine.
    node.or_else(|| Name::parse(patroni_name).ok())
}

fn node(
    desired: &Stack,
    observed: &Observed,
    cluster: &Postgres,
    seen: Option<&PostgresView<'_>>,
    primary: Option<&NodeFacts>,
    of: &Of<'_>,
) -> NodeStatus {
    let report = observed.report(of.name);
    let on = report.and_then(|report| report.postgres.as_ref());
    let facts = on.and_then(|on| on.node.as_ref().ok());
    let (state, problem) = state(observed, cluster, seen, of, report);
    let lag = facts.zip(primary).filter(|(own, of)| own.name != of.name && own.timeline == of.timeline);
    NodeStatus {
        name: of.name.clone(),
        patroni_name: of.patroni_name.to_owned(),
        address: of.address,
        in_file: of.in_file,
        state,
        problem,
        version: facts.and_then(|facts| facts.server),
        installed: on.and_then(|on| on.installed),
        patroni: facts.map(|facts| facts.patroni).or(on.and_then(|on| on.running_patroni)),
        timeline: facts.and_then(|facts| facts.timeline),
        position: facts.and_then(|facts| facts.position),
        lag: lag.and_then(|(own, of)| Some(of.position?.saturating_sub(own.position?))),
        streaming: facts.filter(|facts| facts.role != NodeRole::Primary).map(|facts| facts.streaming),
        pending_restart: facts.map(|facts| facts.pending_restart),
        pending: facts.map(|facts| facts.pending.clone()).unwrap_or_default(),
        dcs_seen: facts.map(|facts| facts.dcs_seen),
        pid: on.and_then(|on| on.service.pid),
        restarts: on.map(|on| on.service.restarts),
        certificates: on.map(|on| on.certificates.clone()).unwrap_or_default(),
        agent: report.map(|report| AgentStatus::of(desired, report)),
    }
}

type State = (&'static str, Option<String>);

/// What a node is, in one word, and what is wrong with it.
fn state(
    observed: &Observed,
    cluster: &Postgres,
    seen: Option<&PostgresView<'_>>,
    of: &Of<'_>,
    report: Option<&AgentReport>,
) -> State {
    let Some(machine) = observed.machines.get(of.name) else { return ("missing", None) };
    match &machine.machine {
        Fact::Unreachable { error, .. } => return ("unreachable", Some(error.clone())),
        Fact::Absent { .. } => return ("missing", None),
        Fact::Seen { value, .. } if value.power == Power::Stopped => {
            return ("stopped", Some("the machine does not run".to_owned()));
        }
        Fact::Seen { .. } => {}
    }
    let Some(report) = report else {
        return match &machine.agent {
            Fact::Unreachable { error, .. } => ("unreachable", Some(error.clone())),
            Fact::Absent { .. } | Fact::Seen { .. } => ("new", None),
        };
    };
    let Some(on) = &report.postgres else {
        return ("unknown", Some(format!("its agent ({}) is too old to run PostgreSQL", report.version)));
    };
    let started = observed.ledger.of_postgres(&cluster.name).started.contains_key(of.name);
    match (on.service.state, &on.node) {
        (ServiceState::Backoff, _) => ("crashing", on.service.last_exit.clone()),
        (ServiceState::Running, Ok(facts)) => running(cluster, seen, of, facts),
        (ServiceState::Running, Err(error)) => {
            let state = if is_known(cluster, seen, of, on, observed.at()) { "silent" } else { "starting" };
            (state, Some(format!("Patroni does not answer: {error}")))
        }
        (ServiceState::Stopped, _) => match &on.data {
            PgData::Unreadable { problem } => ("stopped", Some(format!("PostgreSQL's data cannot be read: {problem}"))),
            PgData::Empty if on.had_data => ("stopped", Some("its data directory is empty, and had data".to_owned())),
            PgData::Empty if !started => ("new", None),
            PgData::Empty | PgData::Present { .. } => ("stopped", None),
        },
    }
}

/// Whether this very process has been at etcd: its key there would have expired without it.
fn is_known(
    cluster: &Postgres,
    seen: Option<&PostgresView<'_>>,
    of: &Of<'_>,
    on: &PostgresOnMachine,
    at: Timestamp,
) -> bool {
    let ttl = SignedDuration::from_secs(i64::from(cluster.section.patroni.ttl));
    let long = on.service.since.is_some_and(|since| at.duration_since(since) > ttl);
    long && seen.is_some_and(|seen| seen.keys().members.contains(of.patroni_name))
}

/// The state of a node whose Patroni answers.
fn running(cluster: &Postgres, seen: Option<&PostgresView<'_>>, of: &Of<'_>, facts: &NodeFacts) -> State {
    let wanted = seen.and_then(|seen| seen.keys().system);
    if let (Some(found), Some(wanted)) = (facts.system, wanted)
        && found != wanted
    {
        return ("disputed", Some(format!("it has the data of another cluster ({found}, not {wanted})")));
    }
    match &facts.state {
        NodeState::Running => ran(cluster, seen, of, facts),
        NodeState::Starting => ("starting", None),
        NodeState::Restarting => ("restarting", None),
        NodeState::Stopping => ("stopping", None),
        NodeState::Initializing => ("initializing", None),
        NodeState::CreatingReplica => ("copying", None),
        NodeState::Stopped => ("stopped", Some("Patroni runs, and PostgreSQL does not".to_owned())),
        NodeState::Crashed => ("failed", Some("PostgreSQL ended by itself".to_owned())),
        NodeState::StartFailed => ("failed", Some("PostgreSQL does not start".to_owned())),
        NodeState::Other(word) => ("unknown", Some(format!("Patroni says `{word}`"))),
    }
}

/// The state of a node whose PostgreSQL runs.
fn ran(cluster: &Postgres, seen: Option<&PostgresView<'_>>, of: &Of<'_>, facts: &NodeFacts) -> State {
    let others = || {
        let claims = seen.map(PostgresView::claims).unwrap_or_default();
        let others = claims.into_iter().filter(|name| *name != of.patroni_name);
        others.filter_map(|name| machine_of(cluster, name)).map(|name| name.to_string()).collect::<Vec<_>>()
    };
    match facts.role {
        // Where the keys cannot be read, its own word is all that there is.
        NodeRole::Primary if seen.is_none_or(|seen| seen.primary() == Some(of.patroni_name)) => ("primary", None),
        NodeRole::Primary => {
            let others = others();
            let why = match others.is_empty() {
                false => format!("it says that it takes writes, and so does {}", others.join(", ")),
                true => "it says that it takes writes, and does not have the leader's lease on the highest timeline"
                    .to_owned(),
            };
            ("disputed", Some(why))
        }
        NodeRole::Replica if seen.is_some_and(|seen| seen.synchronous().contains(of.patroni_name)) => {
            ("sync_standby", None)
        }
        NodeRole::Replica if facts.streaming => ("standby", None),
        NodeRole::Replica => ("standby", Some("it does not receive changes as they are made".to_owned())),
        NodeRole::StandbyLeader => ("standby_leader", Some("it follows a primary of another cluster".to_owned())),
        NodeRole::Uninitialized => ("new", None),
    }
}

fn first_leaf(cluster: &Postgres, nodes: &[NodeStatus], now: Timestamp) -> Option<Expiry> {
    let of_node = |node: &NodeStatus| {
        let (profile, name) = (cluster.node(&node.name), node.name.clone());
        let expiry = move |(purpose, facts): (&NodePurpose, &CertificateFacts)| {
            let before = profile.map(|node| node.profile(*purpose).renew_before());
            let due = before.is_some_and(|before| facts.not_after.duration_since(now) <= before);
            let what = match purpose {
                NodePurpose::Server => "server",
                NodePurpose::Rest => "rest",
            };
            Expiry { at: facts.not_after, what, member: Some(name.clone()), due }
        };
        node.certificates.iter().map(expiry).collect::<Vec<_>>()
    };
    nodes.iter().flat_map(of_node).min()
}

fn authority(observed: &Observed, cluster: &Postgres, now: Timestamp) -> Option<Expiry> {
    let trust = observed.ledger.of_postgres(&cluster.name).trust.as_ref()?;
    let at = trust.next.as_ref().unwrap_or(&trust.current).not_after;
    // As of etcd's: a certificate that is signed later would end with it.
    let certificates = &cluster.section.certificates;
    let soon = certificates.validity.as_millis().saturating_mul(2).min(certificates.ca_validity.as_millis() / 2);
    let due = at.duration_since(now) < SignedDuration::from_millis(i64::try_from(soon).unwrap_or(i64::MAX));
    Some(Expiry { at, what: "postgres", member: None, due })
}
