//! One action → the world, and nothing beside it.

mod auth;
mod etcd;
mod fence;
mod machine;
mod members;
pub(crate) mod pki;
mod preflight;
mod recovery;
pub(crate) mod restore;
mod upkeep;
mod users;
mod versions;

pub use machine::{boot, boot_data};
pub use versions::SnapshotError;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use raftsman_core::action::{
    Action, AuthAction, EtcdAction, MachineAction, MemberAction, PkiAction, PreflightAction, RecoveryAction,
    RestoreAction, UpkeepAction, UserAction, VersionAction,
};
use raftsman_core::desired::Member;
use raftsman_core::spec::Name;
use raftsman_etcd::EtcdError;

use crate::artifacts::ArtifactError;
use crate::cluster::{ClusterAt, ClusterError};
use crate::delivery::DeliveryError;
use crate::observe::{AgentCalls, LinkError, Links, Observer};
use crate::pki::PkiError;
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
    /// Keys or memory of the cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// etcd.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
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
    /// What held when it was planned does not hold any more.
    #[error("not done, because the world has changed since it was planned: {0}")]
    Unsafe(raftsman_core::plan::safety::Refusal),
    /// A backup.
    #[error(transparent)]
    Backup(#[from] Box<crate::backup::BackupError>),
    /// What the file wants back makes no sense.
    #[error("`{0}` is nothing that can be restored: look at `restore_from`")]
    NoSuchPoint(String),
    /// Nobody decided to restore a backup.
    #[error("no backup is to be restored into `{0}`")]
    NothingToRestore(Name),
    /// Members hold something else than was restored.
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
    /// A member that should join is not listed.
    #[error("the cluster does not list `{0}`, which should join it: apply again")]
    NotListed(Name),
    /// Too few machines measured.
    #[error("{ready} of the {needed} machines that it takes could be measured: {why}")]
    TooFewMeasured {
        /// So many did.
        ready: usize,
        /// So many are needed.
        needed: usize,
        /// Why another one did not.
        why: String,
    },
    /// Too few agents could be asked whether a newer lock is obeyed.
    #[error(
        "etcd was not changed: {passed} of the {needed} agents that it takes have confirmed that no operator has taken \
         the lock since; the others: {why}; `raftsman status` says which agents do not answer"
    )]
    NotFenced {
        /// So many did.
        passed: usize,
        /// So many are needed.
        needed: usize,
        /// Why another one did not.
        why: String,
    },
    /// The timers are to be measured first.
    #[error("the timers are to be measured first: apply again")]
    NotMeasured,
    /// No member answers.
    #[error("no member of the cluster answers")]
    NobodyAnswers,
}

/// Carries out actions on one cluster, under one generation of the lock.
#[derive(Debug, Clone, Copy)]
pub struct Hands<'a> {
    /// The cluster and the connections to it.
    pub observer: &'a Observer,
    /// The lock: what is remembered is written under it, and every change bears its generation.
    pub lock: &'a Lock,
    /// No call whose answer is only waited for takes longer.
    pub limit: Duration,
}

/// An agent that gave no answer has refused nothing.
fn refusal(status: &tonic::Status) -> String {
    match status.code() {
        tonic::Code::DeadlineExceeded | tonic::Code::Unavailable => status.message().to_owned(),
        _ => format!("the agent refused: {}", status.message()),
    }
}

impl<'h> Hands<'h> {
    /// Does it. The future is boxed here, so that it is compiled here and not again by everything that awaits it.
    pub fn act<'a>(self, action: &'a Action) -> BoxFuture<'a, Result<(), ActError>>
    where
        'h: 'a,
    {
        Box::pin(async move {
            let now = Timestamp::now();
            match action {
                Action::Pki(PkiAction::MakeAuthorities) => self.make_authorities(now),
                Action::Pki(PkiAction::NextAuthority { side }) => {
                    Ok(self.cluster().next_authority(self.lock, *side, now)?)
                }
                Action::Pki(PkiAction::SwitchAuthority { side }) => {
                    Ok(self.cluster().change_trust(self.lock, *side, |trust| trust.switch(now))?)
                }
                Action::Pki(PkiAction::RetireAuthority { side, unused }) => {
                    Ok(self.cluster().change_trust(self.lock, *side, |trust| trust.retire(*unused))?)
                }
                Action::Pki(PkiAction::ForgetAuthority { side }) => self.forget_authority(*side),
                Action::Pki(PkiAction::StoreTrust { machine, purpose }) => self.store_trust(machine, *purpose).await,
                Action::Etcd(EtcdAction::RestartTogether { machines, cluster }) => {
                    self.restart_together(machines, *cluster).await
                }
                Action::Machine(MachineAction::CreateMachine { machine }) => self.create_machine(machine, now).await,
                Action::Machine(MachineAction::StartMachine { machine }) => self.start_machine(machine, now).await,
                Action::Machine(MachineAction::Enroll { machine }) => self.enroll(machine, now).await,
                Action::Preflight(PreflightAction::Measure) => Box::pin(self.measure()).await,
                Action::Etcd(EtcdAction::InstallEtcd { machine, version }) => {
                    self.install_etcd(machine, *version).await
                }
                Action::Pki(PkiAction::IssueCertificate { machine, purpose, also }) => {
                    self.issue_certificate(machine, *purpose, *also, now).await
                }
                Action::Etcd(EtcdAction::ConfigureEtcd { machine, version, at, .. }) => {
                    self.configure_etcd(machine, *version, *at).await
                }
                Action::Machine(MachineAction::SetFirewall { machine, .. }) => self.set_firewall(machine).await,
                Action::Machine(MachineAction::SetAccess { machine, .. }) => self.set_access(machine).await,
                Action::Machine(MachineAction::RenewAgent { machine }) => self.renew_agent(machine, now).await,
                Action::Machine(MachineAction::Deliver { machine }) => self.deliver(machine).await,
                Action::Etcd(EtcdAction::StartEtcd { machine, version, data }) => {
                    self.start_etcd(machine, *version, *data).await
                }
                Action::Etcd(EtcdAction::StopEtcd { machine }) => self.stop_etcd(machine).await,
                Action::Etcd(EtcdAction::ClearData { machine, member }) => self.clear_data(machine, *member).await,
                Action::Restore(RestoreAction::PrepareRestore) => Box::pin(self.prepare_restore()).await,
                Action::Restore(RestoreAction::RestoreBackup { machine, version }) => {
                    Box::pin(self.restore_backup(machine, *version)).await
                }
                Action::Restore(RestoreAction::CompareRestored { machines }) => {
                    Box::pin(self.compare_restored(machines)).await
                }
                Action::Recovery(RecoveryAction::RestoreData { machine, version }) => {
                    Box::pin(self.restore_data(machine, *version)).await
                }
                Action::Machine(MachineAction::DeleteMachine { machine }) => self.delete_machine(machine).await,
                Action::Machine(MachineAction::RebuildMachine { machine }) => self.rebuild_machine(machine).await,
                Action::Machine(MachineAction::MoveMachine { machine, address }) => {
                    self.move_machine(machine, *address).await
                }
                Action::Member(MemberAction::AddLearner { peer_url, .. }) => self.add_learner(peer_url, now).await,
                Action::Member(MemberAction::PromoteMember { member, .. }) => self.promote_member(*member, now).await,
                Action::Member(MemberAction::RemoveMember { member, .. }) => self.remove_member(*member, now).await,
                Action::Member(MemberAction::UpdateMember { machine, member, peer_url, version, cluster }) => {
                    self.update_member(*member, peer_url, now).await?;
                    self.configure_etcd(machine, *version, None).await?;
                    self.restart_etcd(machine, *version, *cluster).await
                }
                Action::Member(MemberAction::MoveLeader { member, .. }) => self.move_leader(*member, now).await,
                Action::Etcd(EtcdAction::RestartEtcd { machine, version, cluster }) => {
                    self.restart_etcd(machine, *version, *cluster).await
                }
                Action::Upkeep(UpkeepAction::Compact { revision }) => self.compact(*revision, now).await,
                Action::Upkeep(UpkeepAction::Defragment { machine }) => self.defragment(machine, now).await,
                Action::Upkeep(UpkeepAction::DisarmAlarm { alarm }) => Box::pin(self.disarm(*alarm, now)).await,
                Action::Version(VersionAction::TakeSnapshot { version }) => {
                    Box::pin(self.take_snapshot(*version, now)).await
                }
                Action::Version(VersionAction::EnableDowngrade { version }) => {
                    self.enable_downgrade(*version, now).await
                }
                Action::Version(VersionAction::CancelDowngrade) => self.cancel_downgrade(now).await,
                Action::Auth(AuthAction::CreateRoot) => self.create_root(now).await,
                Action::Auth(AuthAction::ChangeRootPassword) => self.change_root_password(now).await,
                Action::Auth(AuthAction::EnableAuth) => self.enable_auth(now).await,
                Action::Auth(AuthAction::DisableAuth) => self.disable_auth(now).await,
                Action::User(UserAction::SetRole { role, set, revoke }) => {
                    Box::pin(self.set_role(role, set, revoke, now)).await
                }
                Action::User(UserAction::DeleteRole { role }) => Box::pin(self.delete_role(role, now)).await,
                Action::User(UserAction::SetUser { user, account, grant, revoke }) => {
                    Box::pin(self.set_user(user, *account, grant, revoke, now)).await
                }
                Action::User(UserAction::DeleteUser { user }) => Box::pin(self.delete_user(user, now)).await,
            }
        })
    }
}

impl Hands<'_> {
    fn cluster(&self) -> &ClusterAt {
        self.observer.cluster()
    }

    fn generation(&self) -> u64 {
        self.lock.generation()
    }

    fn member(&self, machine: &Name) -> Result<&Member, ActError> {
        self.cluster().desired.member(machine).ok_or_else(|| ActError::NoSuchMember(machine.clone()))
    }

    fn links(&self, machine: &Name) -> Result<Arc<Links>, ActError> {
        self.observer.links(machine).ok_or_else(|| ActError::NoSuchMember(machine.clone()))
    }

    /// The agent of this machine.
    async fn agent(&self, machine: &Name) -> Result<AgentCalls, ActError> {
        Ok(self.links(machine)?.agent.client_within(self.limit).await?)
    }

    fn stamped<T>(&self, message: T) -> tonic::Request<T> {
        raftsman_api::fence::stamp(tonic::Request::new(message), self.generation())
    }
}
