//! A member of an adopted cluster → what its etcd answers, and what can be observed of its settings.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use raftsman_core::observed::{EtcdFacts, Fact, Machine, MachineObserved, MemberId, MemberObserved, Power, Root};
use raftsman_core::spec::{EtcdVersion, Name};
use raftsman_etcd::{Answered, EtcdError, PROBE_KEY, bounded};

use super::Observer;
use super::etcd::{EtcdLink, Open, alarms, members};
use crate::stack::ClusterCredentials;

impl Observer {
    /// Observes a member on a machine that is not raftsman's: it has no provider and no agent to ask.
    pub(super) async fn watch(
        &self,
        name: &Name,
        place: IpAddr,
        credentials: Option<&ClusterCredentials>,
        now: Timestamp,
    ) -> (MachineObserved, MemberObserved) {
        let machine = Machine { power: Power::Running, address: place, foreign: true, shape: None, zone: None };
        let etcd = match credentials {
            Some(credentials) => Box::pin(self.connect_etcd(name, place).watch(credentials, now)).await,
            None => Fact::Unreachable { error: "no credentials".to_owned(), since: now },
        };
        let machine =
            MachineObserved { machine: Fact::Seen { value: machine, at: now }, agent: Fact::Absent { at: now } };
        (machine, MemberObserved { etcd, problem: None })
    }
}

impl EtcdLink {
    async fn watch(&self, credentials: &ClusterCredentials, now: Timestamp) -> Fact<EtcdFacts> {
        let mut open = self.open.lock().await;
        match Box::pin(self.watched(&mut open, credentials)).await {
            Ok(value) => Fact::Seen { value, at: now },
            Err(error) => {
                *open = Open::default();
                let error = if error.refused() { "nothing listens there".to_owned() } else { error.to_string() };
                Fact::Unreachable { error, since: now }
            }
        }
    }

    async fn watched(&self, open: &mut Open, credentials: &ClusterCredentials) -> Result<EtcdFacts, EtcdError> {
        let mut root = self.root_client(open, credentials).await?;
        let auth = crate::adopt::auth(&root).await;
        if auth == Some(true) && !open.locked {
            open.locked = true;
            open.root = None;
            root = self.root_client(open, credentials).await?;
        }
        let status = bounded(async { Ok(root.status().await?) }).await?;
        let Answered { cluster, member, revision, version } = Answered::read(&status)?;
        let read = bounded(async { Ok(root.get(PROBE_KEY, None).await?) }).await;
        if read.as_ref().is_err_and(EtcdError::token_lost) {
            open.root = None;
        }
        // `permission denied` for this key still proves that a majority answered.
        let read_error = read.err().filter(|error| !error.to_string().contains("permission denied"));
        let listed = if read_error.is_none() { members(root).await? } else { Vec::new() };
        let quota = u64::try_from(status.db_size_quota()).ok().filter(|bytes| *bytes > 0);
        Ok(EtcdFacts {
            member,
            cluster,
            leader: Some(status.leader()).filter(|id| *id != 0).map(MemberId),
            raft_term: status.raft_term(),
            raft_index: status.raft_index(),
            revision,
            version,
            db_size: status.db_size(),
            db_in_use: status.raft_used_db_size(),
            learner: status.is_learner(),
            read_error: read_error.map(|error| error.to_string()),
            members: listed,
            alarms: alarms(status.errors()),
            auth,
            root: Root::Unknown,
            probe: None,
            access: None,
            quota: Some(status.db_size_quota()).filter(|quota| *quota > 0),
            storage_version: None,
            downgrade: None,
            settings: self.settings(quota, version),
        })
    }

    fn settings(&self, quota: Option<u64>, version: EtcdVersion) -> BTreeMap<String, String> {
        crate::adopt::settings_of(self.to.at, quota, version)
    }
}
