//! One action → the world, and nothing beside it. Each topic is carried out in the file of its name.

mod agents;
mod auth;
mod backup;
mod balancer;
mod catalog;
mod etcd;
mod fence;
mod machines;
mod maintenance;
mod members;
pub(crate) mod pki;
mod postgres;
mod preflight;
mod recovery;
pub(crate) mod restore;
mod users;
mod versions;

pub use agents::UpgradeError;
pub use machines::{boot, boot_data};
pub use versions::SnapshotError;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use raftsman_core::action::Action;
use raftsman_core::desired::Member;
use raftsman_core::spec::Name;
use raftsman_etcd::EtcdError;

use crate::artifacts::ArtifactError;
use crate::delivery::DeliveryError;
use crate::observe::{AgentCalls, AgentLink, EtcdLink, LinkError, Observer};
use crate::pki::PkiError;
use crate::stack::{StackError, StackHandle};
use crate::store::{Lock, StoreError};

/// Why an action failed.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// The agent.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The agent refused.
    #[error("{}", refusal(.0))]
    Refused(#[from] tonic::Status),
    /// The provider.
    #[error("{}", crate::error_chain(.0))]
    Provider(#[from] raftsman_providers::ProviderError),
    /// The machine is still there.
    #[error("{}", crate::error_chain(.0))]
    GiveBack(#[from] crate::machines::GiveBackError),
    /// The etcd binary.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// A certificate.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The cluster's keys or ledger.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// etcd.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The agent's upgrade.
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
    /// What is to be delivered.
    #[error(transparent)]
    Delivery(#[from] Box<DeliveryError>),
    /// The join token.
    #[error(transparent)]
    Token(#[from] crate::tokens::TokenError),
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A condition that held when the action was planned does not hold any more.
    #[error("not done: what was observed has changed since it was planned: {0}")]
    Unsafe(raftsman_core::plan::safety::Refusal),
    /// A backup.
    #[error(transparent)]
    Backup(#[from] Box<crate::backup::BackupError>),
    /// The point to restore that the file names is invalid.
    #[error("`{0}` is nothing that can be restored: look at `restore_from`")]
    NoSuchPoint(String),
    /// No restore has been approved.
    #[error("no backup is to be restored into `{0}`")]
    NothingToRestore(Name),
    /// Members hold other data than was restored.
    #[error(
        "after it was restored, {found}, and {keys} keys should be there: no client has seen it; restore another backup"
    )]
    RestoredOtherwise {
        /// How many keys there should be.
        keys: u64,
        /// What was found.
        found: String,
    },
    /// The file has no such member.
    #[error("the file has no member `{0}`")]
    NoSuchMember(Name),
    /// The file has no such machine.
    #[error("the file has no machine `{0}`")]
    NoSuchMachine(Name),
    /// The file has no instance of a balancer there.
    #[error("the file has no instance of a balancer on `{0}`")]
    NoSuchInstance(Name),
    /// The file has no such PostgreSQL cluster.
    #[error("the file has no PostgreSQL cluster `{0}`")]
    NoSuchPostgres(Name),
    /// The file has no such role or database.
    #[error("the file has no role or database `{name}` of `{cluster}`")]
    NotInCatalog {
        /// The cluster.
        cluster: Name,
        /// The role or database.
        name: String,
    },
    /// There is no primary to ask.
    #[error("`{0}` has no primary: apply again once it has one")]
    NoPrimary(Name),
    /// The file has no node of a PostgreSQL cluster there.
    #[error("the file has no node of a PostgreSQL cluster on `{0}`")]
    NoSuchNode(Name),
    /// A member's configuration is not that of the plan.
    #[error("the configuration of etcd on `{0}` has changed since it was planned: apply again")]
    OtherConfiguration(Name),
    /// Patroni's file, or the CA certificates beside it, are not those of the plan.
    #[error("what Patroni on `{0}` is told has changed since it was planned: apply again")]
    OtherPatroniFile(Name),
    /// The servers behind the balancer, their addresses or its certificate are not those of the plan.
    #[error("what the balancer on `{0}` is told has changed since it was planned: apply again")]
    OtherBackends(Name),
    /// A member that should join is not listed.
    #[error("the cluster does not list `{0}`, which should join it: apply again")]
    NotListed(Name),
    /// Too few machines measured.
    #[error("{ready} of the {needed} machines that it takes could be measured: {why}")]
    TooFewMeasured {
        /// How many did.
        ready: usize,
        /// How many are needed.
        needed: usize,
        /// Why another one did not.
        why: String,
    },
    /// Too few agents confirmed that no operator holds a newer lock.
    #[error(
        "etcd was not changed: {passed} of the {needed} agents that it takes have confirmed that no operator has taken \
         the lock since; the others: {why}; `raftsman status` says which agents do not answer"
    )]
    NotFenced {
        /// How many did.
        passed: usize,
        /// How many are needed.
        needed: usize,
        /// Why another one did not.
        why: String,
    },
    /// The timers must be measured first.
    #[error("the timers are to be measured first: apply again")]
    NotMeasured,
    /// No member answers.
    #[error("no member of the cluster answers")]
    NoMemberAnswers,
}

/// Carries out actions on one cluster, under one generation of the lock.
#[derive(Debug, Clone, Copy)]
pub struct Executor<'a> {
    /// The cluster and the connections to it.
    pub observer: &'a Observer,
    /// The lock: what is remembered is written under it, and every change bears its generation.
    pub lock: &'a Lock,
    /// The limit of calls that only wait for an answer.
    pub limit: Duration,
}

/// An agent that gave no answer has refused nothing.
fn refusal(status: &tonic::Status) -> String {
    match status.code() {
        tonic::Code::DeadlineExceeded | tonic::Code::Unavailable => status.message().to_owned(),
        _ => format!("the agent refused: {}", status.message()),
    }
}

impl<'h> Executor<'h> {
    /// Carries it out. The future is boxed here, so that it is compiled once and not again in every caller.
    pub fn act<'a>(self, action: &'a Action) -> BoxFuture<'a, Result<(), ActError>>
    where
        'h: 'a,
    {
        Box::pin(async move {
            let now = Timestamp::now();
            match action {
                Action::Machine(action) => machines::act(self, action, now).await,
                Action::Agent(action) => agents::act(self, action).await,
                Action::Pki(action) => pki::act(self, action, now).await,
                Action::Preflight(action) => preflight::act(self, action).await,
                Action::Backup(action) => backup::act(self, action).await,
                Action::Balancer(action) => balancer::act(self, action, now).await,
                Action::Postgres(action) => postgres::act(self, action, now).await,
                Action::Etcd(action) => etcd::act(self, action).await,
                Action::Member(action) => members::act(self, action, now).await,
                Action::Maintenance(action) => maintenance::act(self, action, now).await,
                Action::Version(action) => versions::act(self, action, now).await,
                Action::Auth(action) => auth::act(self, action, now).await,
                Action::User(action) => users::act(self, action, now).await,
                Action::Restore(action) => restore::act(self, action).await,
                Action::Recovery(action) => recovery::act(self, action).await,
            }
        })
    }
}

impl Executor<'_> {
    fn cluster(&self) -> &StackHandle {
        self.observer.cluster()
    }

    fn generation(&self) -> u64 {
        self.lock.generation()
    }

    fn member(&self, machine: &Name) -> Result<&Member, ActError> {
        self.cluster().desired.etcd.member(machine).ok_or_else(|| ActError::NoSuchMember(machine.clone()))
    }

    /// Where a machine of the file is.
    fn address(&self, machine: &Name) -> Result<IpAddr, ActError> {
        let address = self.cluster().desired.machine_address(machine);
        address.ok_or_else(|| ActError::NoSuchMachine(machine.clone()))
    }

    /// The connection to the agent of this machine.
    fn link(&self, machine: &Name) -> Result<Arc<AgentLink>, ActError> {
        self.observer.agent(machine).ok_or_else(|| ActError::NoSuchMachine(machine.clone()))
    }

    /// The connection to this member's etcd.
    fn etcd(&self, member: &Name) -> Result<Arc<EtcdLink>, ActError> {
        self.observer.etcd(member).ok_or_else(|| ActError::NoSuchMember(member.clone()))
    }

    /// The agent of this machine.
    async fn agent(&self, machine: &Name) -> Result<AgentCalls, ActError> {
        Ok(self.link(machine)?.client_within(self.limit).await?)
    }

    fn stamped<T>(&self, message: T) -> tonic::Request<T> {
        raftsman_api::fence::stamp(tonic::Request::new(message), self.generation())
    }
}
