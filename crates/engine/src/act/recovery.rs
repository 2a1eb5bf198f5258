//! The data of the survivor, put away → the data of a new cluster of one member, on its machine.

use raftsman_api::v1::restore_data_request::Part;
use raftsman_api::v1::{RestoreDataHead, RestoreDataRequest};
use raftsman_core::action::RecoveryAction;
use raftsman_core::observed::MemberId;
use raftsman_core::spec::{EtcdVersion, Name};

use super::{ActError, Executor};

/// No cluster makes so many writes in the time that operators need to notice the loss of its majority.
const BUMP: u64 = 1_000_000_000;

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &RecoveryAction) -> Result<(), ActError> {
    match action {
        RecoveryAction::RestoreData { machine, version } => Box::pin(executor.restore_data(machine, *version)).await,
    }
}

impl Executor<'_> {
    pub(super) async fn restore_data(self, machine: &Name, version: EtcdVersion) -> Result<(), ActError> {
        let cluster = self.cluster();
        let ledger = cluster.ledger();
        let (Some(recovery), Some(url)) = (ledger.etcd.recovery(), ledger.etcd.members.get(machine)) else {
            return Err(ActError::NoSuchMember(machine.clone()));
        };
        self.install_tool(machine, version).await?;
        let head = RestoreDataHead {
            version: version.to_string(),
            sha256: String::new(),
            name: machine.to_string(),
            initial_cluster: format!("{machine}={url}"),
            // Member ids follow from it: the same cluster may have to be recovered a second time.
            token: format!("{}-{}", cluster.desired.etcd.token, recovery.since.as_second()),
            peer_url: url.clone(),
            bump_revision: BUMP,
            own_member_id: recovery.member.map_or(0, |MemberId(id)| id),
            ..RestoreDataHead::default()
        };
        let head = RestoreDataRequest { part: Some(Part::Head(head)) };
        self.agent(machine).await?.restore_data(self.stamped(futures::stream::iter([head]))).await?;
        Ok(())
    }
}
