//! One verb of the command line each: the file, the state and the world → what the command shows.

pub mod adopt;
pub mod apply;
pub mod backup;
pub mod begin;
pub mod cert;
pub mod destroy;
pub mod drill;
pub mod env;
pub mod fleet_access;
pub mod init;
pub mod join;
pub mod logs;
pub mod maintenance;
pub mod needs;
pub mod plan;
pub mod preflight;
pub mod psql;
pub mod recover;
pub mod replace;
pub mod restore;
pub mod rotate;
pub mod rotate_user;
pub mod state;
pub mod status;
pub mod switchover;
pub mod version;
pub mod versions;

use std::collections::BTreeSet;
use std::sync::Arc;

use raftsman_core::desired::{Postgres, Stack};
use raftsman_core::observed::{Observed, TrustDomain};
use raftsman_core::plan::{Waiting, newer_agents};
use raftsman_core::render::haproxy::LONGEST_SOCKET;
use raftsman_core::spec::Name;
use raftsman_etcd::EtcdError;

use crate::act::ActError;
use crate::apply::ApplyError;
use crate::artifacts::ArtifactError;
use crate::backup::BackupError;
use crate::fleet::{Context, Fleet, FleetError};
use crate::machines::{Inventory, SilentConnection};
use crate::observe::LinkError;
use crate::pki::PkiError;
use crate::stack::{StackError, StackHandle};
use crate::store::{LockInfo, StoreError};

/// Refuses to record what this raftsman could not carry out, because an agent of the cluster is newer.
pub(crate) fn refuse_newer_agents(desired: &Stack, observed: &Observed) -> Result<(), OpError> {
    newer_agents(desired, observed).next().map_or(Ok(()), |newer| Err(OpError::AgentNewer { newer: Box::new(newer) }))
}

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// The fleet cannot be opened.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// Auth was never observed as enabled.
    #[error(
        "auth of cluster `{0}` is not known to be on, and until it is, every client with a certificate is a superuser: \
         run `raftsman apply` first"
    )]
    AuthOff(Name),
    /// An agent is newer than this raftsman.
    #[error("{newer}; {}", newer.next())]
    AgentNewer {
        /// Which one, and what to do.
        newer: Box<Waiting>,
    },
    /// The operator did not approve.
    #[error("{0}")]
    Declined(String),
    /// A requirement of `apply` is missing.
    #[error("{}", needs::listed(.0))]
    Unmet(Vec<needs::Unmet>),
    /// Some clusters did not converge; the causes were reported as they happened.
    #[error("not as it should be yet: {}; what stopped it is named above", names(.0))]
    NotConverged(Vec<Name>),
    /// The file was never applied.
    #[error("this fleet was never applied: run `raftsman apply` first")]
    NeverApplied,
    /// The file keeps a cluster.
    #[error(
        "`prevent_destroy: true` in {}{} keeps cluster `{cluster}`: nothing was destroyed; remove that line if it is to go",
        file.display(), line.map(|line| format!(":{line}")).unwrap_or_default()
    )]
    DestroyPrevented {
        /// Which cluster.
        cluster: Name,
        /// Where that is written.
        file: std::path::PathBuf,
        /// In which line.
        line: Option<usize>,
    },
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The cluster's keys or ledger.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// An etcd binary.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// A certificate.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] raftsman_api::tls::TlsError),
    /// An agent.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// etcd.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// An action.
    #[error(transparent)]
    Act(#[from] ActError),
    /// The provider does not answer, and the verb needs it.
    #[error("{}; {consequence}", silent.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    ProviderSilent {
        /// Its connections that cannot be asked.
        silent: BTreeSet<SilentConnection>,
        /// What was not done, and what to do.
        consequence: &'static str,
    },
    /// The provider.
    #[error("{}", crate::error_chain(.0))]
    Provider(#[from] raftsman_providers::ProviderError),
    /// A machine is still there.
    #[error("{}", crate::error_chain(.0))]
    GiveBack(#[from] crate::machines::GiveBackError),
    /// The loopback network.
    #[error(transparent)]
    Network(#[from] raftsman_providers::networks::NetworkError),
    /// Applying stopped.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// An operator interrupted it.
    #[error("interrupted: done {}, not done {}; give the command again to go on", names(done), names(left))]
    Interrupted {
        /// Members that it was done to.
        done: Vec<Name>,
        /// Members that it was not done to.
        left: Vec<Name>,
    },
    /// Backups.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// A cluster cannot be adopted.
    #[error(transparent)]
    Adopt(#[from] adopt::AdoptError),
    /// A ledger cannot be rebuilt from observations.
    #[error("the ledger of cluster `{cluster}` cannot be rebuilt: {source}")]
    Rebuild {
        /// Which cluster.
        cluster: Name,
        /// Why.
        source: raftsman_core::observed::RebuildError,
    },
    /// A ledger cannot be rebuilt in the middle of a rotation.
    #[error(
        "the ledger of cluster `{cluster}` cannot be rebuilt: the state keeps {count} {side} CAs, so that a rotation was \
         under way, and which members trust which is not known; bring the state's directory back from a copy"
    )]
    RebuildRotation {
        /// Which cluster.
        cluster: Name,
        /// Which side.
        side: TrustDomain,
        /// How many CAs the state keeps.
        count: usize,
    },
    /// No such cluster in the file.
    #[error("the file has no cluster `{name}`; it has: {}", known.join(", "))]
    NoSuchCluster {
        /// Asked for.
        name: String,
        /// There are.
        known: Vec<String>,
    },
    /// The file has several clusters and none was named.
    #[error("the file has several clusters: name one of {}", .0.join(", "))]
    WhichCluster(Vec<String>),
    /// No such machine in the file.
    #[error("the file has no machine `{name}`; it has: {}", known.join(", "))]
    NoSuchMachine {
        /// Asked for.
        name: String,
        /// There are.
        known: Vec<String>,
    },
    /// The machine is a balancer's.
    #[error(
        "`{name}` is an instance of a balancer, which keeps no data and has no members' verbs; members are: {}",
        known.join(", ")
    )]
    NotAMember {
        /// Asked for.
        name: String,
        /// There are.
        known: Vec<String>,
    },
    /// The machine is a PostgreSQL node's.
    #[error("`{name}` is a node of a PostgreSQL cluster, and no member of etcd; members are: {}", known.join(", "))]
    NodeOfPostgres {
        /// Asked for.
        name: String,
        /// There are.
        known: Vec<String>,
    },
    /// No such PostgreSQL cluster in the file.
    #[error("the file has no PostgreSQL cluster `{name}`; it has: {}", known.join(", "))]
    NoSuchPostgres {
        /// Asked for.
        name: String,
        /// There are.
        known: Vec<String>,
    },
    /// The file has none at all.
    #[error("the file has no PostgreSQL cluster: `raftsman explain postgres` says how one is written")]
    NoPostgres,
    /// No such node in the file.
    #[error("the PostgreSQL cluster `{cluster}` has no node `{name}`; it has: {}", known.join(", "))]
    NoSuchNode {
        /// The cluster.
        cluster: Name,
        /// Asked for.
        name: String,
        /// There are.
        known: Vec<String>,
    },
    /// Patroni did not do what it was asked for.
    #[error(
        "{to} is not the primary of `{cluster}`: Patroni has given the switchover from {from} up; its log there says \
         why: `raftsman logs {from}`"
    )]
    GivenUp {
        /// The cluster.
        cluster: Name,
        /// The primary then.
        from: Name,
        /// The standby that was to follow it.
        to: Name,
    },
    /// No such balancer in the file.
    #[error("the file has no balancer `{name}`; it has: {}", known.join(", "))]
    NoSuchBalancer {
        /// Asked for.
        name: String,
        /// There are.
        known: Vec<String>,
    },
    /// It has no primary.
    #[error("`{0}` has no primary now: `raftsman status` says why")]
    NoPrimary(Name),
    /// The superuser logs in on the machine itself.
    #[error(
        "the superuser logs in on a node's own machine only, and the machines of this file are not on this computer: run \
         `sudo psql -h /run/raftsman-postgres -U postgres` on the primary's, which `raftsman status` names"
    )]
    PsqlElsewhere,
    /// The file has none at all.
    #[error("the file has no balancer `{0}`, and no other: `raftsman explain balancers` says how one is written")]
    NoBalancers(String),
    /// The balancer is in front of another cluster.
    #[error("the balancer `{balancer}` is in front of `{cluster}`, not of `{asked}`")]
    BalancerElsewhere {
        /// The balancer.
        balancer: String,
        /// The cluster that it is in front of.
        cluster: Name,
        /// Asked for.
        asked: String,
    },
    /// No instance of a balancer runs on this machine.
    #[error("no balancer runs on `{machine}`; balancers run on: {}", crate::ops::or_nothing(known))]
    NoBalancerThere {
        /// Asked for.
        machine: String,
        /// Where they run.
        known: Vec<String>,
    },
    /// Machines that raftsman makes need no invitation.
    #[error("only existing hosts are enrolled manually (`provider: hosts`): `raftsman apply` makes all other machines")]
    NoHosts,
    /// Too short or too long.
    #[error("a host is given at least a minute and at most 7 days to join: `--valid-for 1h` is the default")]
    JoinWindow,
    /// A join token could not be made.
    #[error(transparent)]
    Token(#[from] crate::tokens::TokenError),
    /// It must not be done now.
    #[error("not done: {}\n    → {}", .0, .0.next())]
    NotSafe(Waiting),
    /// It was begun, and is not at its end yet, or that is not known.
    #[error("{}\n    → {}", .0, .0.next())]
    NotKnown(Waiting),
    /// A majority is needed and there is none.
    #[error(
        "cluster `{0}` has no quorum: bring members back with their disks, `raftsman status` says which are missing; \
         if they are gone for good, `raftsman recover`"
    )]
    NoQuorum(Name),
    /// The request is ambiguous.
    #[error("{0}")]
    Unclear(String),
    /// No agent can be asked to measure.
    #[error(
        "no agent of `{cluster}` can measure: {why}; `raftsman apply` makes machines, `raftsman status` shows their \
         state"
    )]
    NoMeasurement {
        /// Which cluster.
        cluster: Name,
        /// Why one of them cannot.
        why: String,
    },
    /// The cluster does not list the member, or it does not answer.
    #[error("`{0}` is no member that answers: look at `raftsman status`; `raftsman apply` brings in what the file has")]
    NoSuchMember(String),
    /// There is no such revision.
    #[error("there is no revision {revision} to compact to: the newest is {newest}")]
    NoSuchRevision {
        /// Asked for.
        revision: i64,
        /// There is.
        newest: i64,
    },
    /// A user's name that cannot name files.
    #[error("`{0}` cannot be the name of a certificate's files: use letters, digits, `-`, `_`, `.` and `@`")]
    UserName(String),
    /// Neither a certificate nor a key.
    #[error("`{0}` is neither a certificate file nor the SHA-256 of a public key in hexadecimal")]
    NoCertificate(String),
    /// The key is that of the fleet's own authority.
    #[error("this is the key of the fleet's CA itself: `raftsman cert rotate fleet` makes another")]
    RevokesAuthority,
    /// The next phase must wait.
    #[error(
        "the fleet's CA cannot be changed further: {} did not confirm it; see that they are reachable (`raftsman status`), \
         then run `raftsman cert rotate fleet` again: it goes on where it is", .0.join(", ")
    )]
    AgentsBehind(Vec<String>),
    /// Files are not overwritten.
    #[error("{} is there already, and nothing was issued: choose another directory with --out, or give --force to replace it", .0.display())]
    FileExists(std::path::PathBuf),
    /// The file brings the authority that should be rotated.
    #[error(
        "the file brings the {side} CA of `{cluster}`: put another certificate and key in the place of {certificate}, \
         then `raftsman apply`"
    )]
    BroughtAuthority {
        /// Which cluster.
        cluster: Name,
        /// Which side.
        side: TrustDomain,
        /// Its certificate.
        certificate: String,
    },
    /// No member shows its users.
    #[error(
        "no member of `{0}` shows its users, so it is not known which of them Patroni has: `raftsman status` says what \
         is wrong with the members"
    )]
    UsersUnknown(Name),
    /// Patroni has no user yet.
    #[error("etcd has no user `{user}` for `{cluster}` yet: `raftsman apply` makes it")]
    NoUserYet {
        /// The PostgreSQL cluster.
        cluster: Name,
        /// Its user.
        user: String,
    },
    /// The last change of Patroni's user is not complete.
    #[error(
        "the user of etcd for `{cluster}` is being changed to `{user}`, and `{old}` is still there: `raftsman apply` \
         completes it"
    )]
    UserChanges {
        /// The PostgreSQL cluster.
        cluster: Name,
        /// The new user.
        user: String,
        /// The one that goes.
        old: String,
    },
    /// There is no old authority.
    #[error("the {side} CA of `{cluster}` is the only one that is trusted: there is nothing to finish")]
    NothingToFinish {
        /// Which cluster.
        cluster: Name,
        /// Which side.
        side: TrustDomain,
    },
    /// The rotation waits for clients.
    #[error(
        "the old clients CA of `{0}` is still trusted, so that clients can get new certificates; once they have: \
         `raftsman cert rotate clients --finish`"
    )]
    ClientsAwaited(Name),
    /// Another process listens where a machine of this computer should.
    #[error(
        "a process listens on {at} already, where machine `{machine}` should: stop it, or give the member another address"
    )]
    PortTaken {
        /// The machine.
        machine: Name,
        /// The address and port.
        at: std::net::SocketAddr,
    },
    /// The path of HAProxy's admin socket on this computer is longer than that of a UNIX socket may be.
    #[error(
        "HAProxy's admin socket of machine `{machine}` would be {}: its path has {} bytes, a UNIX socket of HAProxy at \
         most {LONGEST_SOCKET}: name a shorter path in `machines: {{ directory: … }}`, or move the file to one",
        path.display(),
        path.as_os_str().len()
    )]
    SocketPath {
        /// The machine.
        machine: Name,
        /// The socket.
        path: std::path::PathBuf,
    },
    /// The agent's program is not there.
    #[error("{} is not a program that can be run: install raftsman-agent beside raftsman, or give --agent-binary", .0.display())]
    NoAgent(std::path::PathBuf),
    /// A file could not be written or read.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: std::path::PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A task ended abnormally: a bug of ours.
    #[error("a task of raftsman ended abnormally, which is a bug: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl OpError {
    /// The stack whose lock another process holds, where that is the cause; nothing inside where that process holds the
    /// lock of the whole fleet.
    pub fn locked(&self) -> Option<Option<&str>> {
        match self {
            Self::Store(StoreError::Locked { stack, .. })
            | Self::Fleet(FleetError::Store(StoreError::Locked { stack, .. })) => Some(stack.as_deref()),
            _ => None,
        }
    }
}

fn names(names: &[Name]) -> String {
    let names: Vec<&str> = names.iter().map(Name::as_str).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The lock's record: the user, the host and the verb.
fn lock_info(context: &Context, verb: &str) -> LockInfo {
    LockInfo::new(verb, &context.user, &context.host)
}

/// The cluster of this name; without a name, the only one.
async fn pick_cluster(fleet: &Arc<Fleet>, name: Option<&str>) -> Result<StackHandle, OpError> {
    let clusters = &fleet.desired.stacks;
    let known = || clusters.iter().map(|c| c.name.to_string()).collect();
    let picked = match name {
        Some(name) => {
            let missing = || OpError::NoSuchCluster { name: name.to_owned(), known: known() };
            clusters.iter().find(|c| c.name.as_str() == name).ok_or_else(missing)?
        }
        None => match clusters.as_slice() {
            [only] => only,
            _ => return Err(OpError::WhichCluster(known())),
        },
    };
    Ok(StackHandle::open(fleet, picked).await?)
}

/// The PostgreSQL cluster of this name, and its stack.
fn pick_postgres<'a>(fleet: &'a Fleet, name: &str) -> Option<(&'a Stack, &'a Postgres)> {
    let all = fleet.desired.stacks.iter().flat_map(|stack| stack.postgres.iter().map(move |cluster| (stack, cluster)));
    all.into_iter().find(|(_, cluster)| cluster.name.as_str() == name)
}

/// The member of this name, and its cluster, which may be named too.
async fn pick_member(fleet: &Arc<Fleet>, cluster: Option<&str>, member: &str) -> Result<(StackHandle, Name), OpError> {
    if cluster.is_some() {
        pick_cluster(fleet, cluster).await?;
    }
    let clusters = fleet.desired.stacks.iter().filter(|c| cluster.is_none_or(|name| c.name.as_str() == name));
    let members = clusters.flat_map(|c| c.etcd.members.iter().map(move |m| (c, &m.name)));
    let (cluster, name) = named(members, member).map_err(|error| match (error, pick_machine(fleet, member)) {
        (OpError::NoSuchMachine { name, known }, Ok((cluster, machine))) => match cluster.node(machine) {
            Some(_) => OpError::NodeOfPostgres { name, known },
            None => OpError::NotAMember { name, known },
        },
        (other, _) => other,
    })?;
    Ok((StackHandle::open(fleet, cluster).await?, name.clone()))
}

/// The machine of this name, and the cluster whose member, node or balancer it is for.
fn pick_machine<'a>(fleet: &'a Fleet, machine: &str) -> Result<(&'a Stack, &'a Name), OpError> {
    let machines = fleet.desired.stacks.iter().flat_map(|c| c.all_machines().map(move |name| (c, name)));
    named(machines, machine)
}

fn named<'a>(
    machines: impl Iterator<Item = (&'a Stack, &'a Name)>,
    name: &str,
) -> Result<(&'a Stack, &'a Name), OpError> {
    let machines: Vec<_> = machines.collect();
    machines.iter().find(|(_, known)| known.as_str() == name).copied().ok_or_else(|| {
        let known = machines.iter().map(|(_, name)| name.to_string()).collect();
        OpError::NoSuchMachine { name: name.to_owned(), known }
    })
}

/// Names for a message.
fn or_nothing(names: &[String]) -> String {
    if names.is_empty() { "no machine".to_owned() } else { names.join(", ") }
}

/// What the provider says of the fleet's machines beside those of the file.
#[derive(Debug, Default)]
struct Surroundings {
    /// Machines of the fleet that the file does not name.
    unnamed: Vec<String>,
    /// Connections of the provider that cannot be asked.
    silent: Vec<SilentConnection>,
}

/// Machines of the fleet that the file does not name, as far as the provider answers.
async fn surroundings(fleet: &Arc<Fleet>) -> Result<Surroundings, OpError> {
    let Inventory { machines, silent } = fleet.inventory().await;
    let mut named: BTreeSet<Name> = BTreeSet::new();
    // The file may have dropped machines that are still to be removed.
    for cluster in &fleet.desired.stacks {
        named.extend(StackHandle::open(fleet, cluster).await?.machines().into_keys());
    }
    let unnamed = machines.into_iter().map(|m| m.name).filter(|name| !named.contains(name.as_str())).collect();
    Ok(Surroundings { unnamed, silent })
}

/// The number of clusters handled at a time: a thousand at once would exhaust this computer.
const CLUSTERS_AT_A_TIME: usize = 64;

/// Observes every cluster of the fleet, several at a time, and maps each to a result.
async fn for_each_stack<T, F, W>(fleet: &Arc<Fleet>, only: &[Name], work: W) -> Result<Vec<T>, OpError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, OpError>> + Send + 'static,
    W: Fn(Arc<StackHandle>) -> F,
{
    let mut tasks = Vec::new();
    for desired in fleet.desired.stacks.iter().filter(|c| only.is_empty() || only.contains(&c.name)) {
        tasks.push(work(Arc::new(StackHandle::open(fleet, desired).await?)));
    }
    let spawned = tasks.into_iter().map(|task| async move { tokio::spawn(task).await? });
    in_order(CLUSTERS_AT_A_TIME, spawned).await.into_iter().collect()
}

/// The results of all tasks in the order of the tasks, whatever the order in which they end. A task that hangs occupies
/// one slot only, so the tasks behind the first `at_a_time` do not wait for it.
async fn in_order<T, F: Future<Output = T>>(at_a_time: usize, tasks: impl Iterator<Item = F>) -> Vec<T> {
    use futures::StreamExt as _;
    let numbered = tasks.enumerate().map(|(number, task)| async move { (number, task.await) });
    let mut done: Vec<(usize, T)> = futures::stream::iter(numbered).buffer_unordered(at_a_time).collect().await;
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;

    /// The first task ends when the last one has run: kept in order, the last ones of more than 64 would wait for it.
    #[tokio::test]
    async fn a_stuck_cluster_delays_none_of_the_clusters_behind_the_first_64() {
        const CLUSTERS: usize = 72;
        let (all_others, ran) = (Notify::new(), AtomicUsize::new(1));
        let tasks = (0..CLUSTERS).map(|number| {
            let (all_others, ran) = (&all_others, &ran);
            async move {
                match number {
                    0 => all_others.notified().await,
                    _ if ran.fetch_add(1, Ordering::Relaxed) + 1 == CLUSTERS => all_others.notify_one(),
                    _ => {}
                }
                number
            }
        });
        let done = tokio::time::timeout(Duration::from_secs(10), in_order(CLUSTERS_AT_A_TIME, tasks)).await;
        assert_eq!(done.expect("no task waits for the first"), (0..CLUSTERS).collect::<Vec<_>>());
    }
}
