//! A change that goes to etcd itself → allowed once a majority of the members' agents obey this generation of the lock.

use etcd_client::Client;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use raftsman_api::v1::PassFenceRequest;
use raftsman_core::spec::Name;
use tonic::Code;

use super::{ActError, Executor};
use crate::observe;

impl Executor<'_> {
    /// A connection to the leader for a change, made right after the fence was passed.
    pub(super) async fn changing(self, now: Timestamp) -> Result<Client, ActError> {
        let client = Box::pin(self.leader(now)).await?;
        self.pass_fence(&client).await?;
        Ok(client)
    }

    /// Has a majority of the members' agents obey our generation. Two majorities share an agent: once an operator with
    /// a newer lock has passed, none with an older one does. How many it takes follows from etcd's own list, which is
    /// the same for both of them.
    pub(super) async fn pass_fence(self, client: &Client) -> Result<(), ActError> {
        Box::pin(self.majority_passed(client)).await
    }

    async fn majority_passed(self, client: &Client) -> Result<(), ActError> {
        let ledger = self.cluster().ledger();
        // An adopted cluster has no agents.
        if ledger.etcd.adopted().is_some() {
            return Ok(());
        }
        let listed = observe::members(client.clone()).await?;
        let voters: Vec<_> = listed.iter().filter(|member| !member.learner).collect();
        let needed = voters.len() / 2 + 1;
        let mut why = "their machines are not in the state".to_owned();
        let mut passed = 0;
        let names = voters.iter().filter_map(|member| ledger.etcd.name_of(member));
        let mut answers: FuturesUnordered<_> = names.map(|name| self.pass_at(name)).collect();
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(()) => passed += 1,
                Err(ActError::Refused(status))
                    if !matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded) =>
                {
                    return Err(ActError::Refused(status));
                }
                Err(error) => why = error.to_string(),
            }
            if passed >= needed {
                return Ok(());
            }
        }
        Err(ActError::NotFenced { passed, needed, why })
    }

    async fn pass_at(self, machine: Name) -> Result<(), ActError> {
        self.agent(&machine).await?.pass_fence(self.stamped(PassFenceRequest {})).await?;
        Ok(())
    }
}
