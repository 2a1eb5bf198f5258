//! Membership, voting and leadership: etcd's own calls, each through the leader.

use std::time::Duration;

use etcd_client::{Client, MemberAddOptions, StatusResponse};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use raftsman_core::action::MemberAction;
use raftsman_core::observed::{ListedMember, MemberId};
use raftsman_etcd::{EtcdError, PROBE_KEY, bounded};

use super::versions::leads;
use super::{ActError, Executor};
use crate::observe;

/// How long a change of members that etcd rejects as too early is retried.
const RETRY_FOR: Duration = Duration::from_secs(15);
const AGAIN: Duration = Duration::from_millis(100);
/// A member learns of its leader within a heartbeat.
const SOON: Duration = Duration::from_millis(10);

/// A removed member ends by itself and drops all calls that it has at that moment. A client that retries must not reach
/// the next member that is removed.
const REST: Duration = Duration::from_secs(1);

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &MemberAction, now: Timestamp) -> Result<(), ActError> {
    match action {
        MemberAction::AddLearner { peer_url, .. } => executor.add_learner(peer_url, now).await,
        MemberAction::PromoteMember { member, .. } => executor.promote_member(*member, now).await,
        MemberAction::RemoveMember { member, .. } => executor.remove_member(*member, now).await,
        MemberAction::UpdateMember { machine, member, peer_url, version, cluster } => {
            executor.update_member(*member, peer_url, now).await?;
            executor.configure_etcd(machine, *version, None, None).await?;
            executor.restart_etcd(machine, *version, *cluster).await
        }
        MemberAction::MoveLeader { member, .. } => executor.move_leader(*member, now).await,
    }
}

impl Executor<'_> {
    async fn add_learner(self, peer_url: &str, now: Timestamp) -> Result<(), ActError> {
        let client = self.leader(now).await?;
        self.with_retries(&client, |mut client| async move {
            let options = MemberAddOptions::new().with_is_learner();
            Ok(client.member_add([peer_url], Some(options)).await.map(drop)?)
        })
        .await
    }

    /// Has the cluster agree on an entry that changes nothing. A learner that was sent a snapshot counts as having
    /// applied nothing before the next entry comes, refuses its own first request for it, and a quiet cluster has no
    /// next entry.
    pub async fn nudge(self, now: Timestamp) -> Result<(), ActError> {
        let mut client = Box::pin(self.voter(now, |_| true)).await?;
        self.pass_fence(&client).await?;
        bounded(async { Ok(client.delete(PROBE_KEY, None).await?) }).await?;
        Ok(())
    }

    async fn promote_member(self, member: MemberId, now: Timestamp) -> Result<(), ActError> {
        let client = self.leader(now).await?;
        self.with_retries(&client, |mut client| async move { Ok(client.member_promote(member.0).await.map(drop)?) })
            .await
    }

    async fn remove_member(self, member: MemberId, now: Timestamp) -> Result<(), ActError> {
        let client = self.leader(now).await?;
        self.with_retries(&client, |mut client| async move { Ok(client.member_remove(member.0).await.map(drop)?) })
            .await?;
        tokio::time::sleep(REST).await;
        Ok(())
    }

    async fn update_member(self, member: MemberId, url: &str, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.changing(now).await?;
        bounded(async { Ok(client.member_update(member.0, [url.to_owned()]).await?) }).await?;
        Ok(())
    }

    async fn move_leader(self, to: MemberId, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.changing(now).await?;
        bounded(async { Ok(client.move_leader(to.0).await?) }).await?;
        self.all_follow(to, now).await
    }

    /// Waits until every member that answers knows its new leader. A member that does not know it forwards writes to
    /// the old leader; when that one stops next, the client gets no answer to its write.
    async fn all_follow(self, leader: MemberId, now: Timestamp) -> Result<(), ActError> {
        let credentials = self.observer.credentials(now).await?.ok_or(ActError::NoMemberAnswers)?;
        let begun = tokio::time::Instant::now();
        for name in self.cluster().places().keys() {
            let Ok(link) = self.etcd(name) else { continue };
            let Ok(mut client) = Box::pin(link.client(&credentials)).await else { continue };
            loop {
                let status: Result<_, EtcdError> = bounded(async { Ok(client.status().await?) }).await;
                // A member that fails to answer is observed again before the next step.
                let follows = status.map_or(true, |status| status.leader() == leader.0);
                if follows || begun.elapsed() > RETRY_FOR {
                    break;
                }
                tokio::time::sleep(SOON).await;
            }
        }
        Ok(())
    }

    pub(super) async fn member_list(self, now: Timestamp) -> Result<Vec<ListedMember>, ActError> {
        Ok(observe::members(self.leader(now).await?).await?)
    }

    /// A connection to the leader: some versions do not forward every request.
    pub(super) async fn leader(self, now: Timestamp) -> Result<Client, ActError> {
        Box::pin(self.voter(now, leads)).await
    }

    /// A connection to a voter of this kind; if there is none, to another. All are asked at once, so that one that
    /// hangs does not delay the answer of another.
    pub(super) async fn voter(
        self,
        now: Timestamp,
        wanted: impl Fn(&StatusResponse) -> bool,
    ) -> Result<Client, ActError> {
        let credentials = self.observer.credentials(now).await?.ok_or(ActError::NoMemberAnswers)?;
        let places = self.cluster().places();
        let asked = places.keys().filter_map(|name| self.etcd(name).ok()).map(|link| {
            let credentials = &credentials;
            async move {
                let mut client = Box::pin(link.client(credentials)).await.ok()?;
                let status: Result<_, EtcdError> = bounded(async { Ok(client.status().await?) }).await;
                let status = status.ok().filter(|status| status.leader() != 0 && !status.is_learner())?;
                Some((client, status))
            }
        });
        let mut answers: FuturesUnordered<_> = asked.collect();
        let mut other: Result<Client, ActError> = Err(ActError::NoMemberAnswers);
        while let Some(answer) = answers.next().await {
            match answer {
                Some((client, status)) if wanted(&status) => return Ok(client),
                Some((client, _)) => other = Ok(client),
                None => {}
            }
        }
        other
    }

    /// etcd changes its members only once they have been connected for five seconds, and promotes a learner only when
    /// the leader knows its progress: a moment later the answer may differ. The fence is passed before each try.
    async fn with_retries<F>(self, client: &Client, call: impl Fn(Client) -> F) -> Result<(), ActError>
    where
        F: Future<Output = Result<(), EtcdError>> + Send,
    {
        let begun = tokio::time::Instant::now();
        loop {
            self.pass_fence(client).await?;
            match bounded(call(client.clone())).await {
                Err(error) if error.too_early() && begun.elapsed() < RETRY_FOR => tokio::time::sleep(AGAIN).await,
                outcome => return Ok(outcome?),
            }
        }
    }
}
