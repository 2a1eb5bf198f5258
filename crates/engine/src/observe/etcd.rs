//! A member's address → what its etcd answers: who it is, whom it follows, whether it can read through a majority.

use std::collections::BTreeMap;

use etcd_client::Client;
use jiff::Timestamp;
use raftsman_core::observed::{Alarm, ClusterId, Doors, EtcdFacts, Fact, ListedMember, MemberId, Root};
use raftsman_core::spec::EtcdVersion;
use raftsman_etcd::{Endpoint, EtcdError, PROBE_KEY, bounded, dial};
use tokio::sync::Mutex;

use super::{doors, http};
use crate::cluster::ClusterCredentials;

/// The way to one member's etcd.
#[derive(Debug)]
pub struct EtcdLink {
    pub(super) to: Endpoint,
    pub(super) open: Mutex<Open>,
}

#[derive(Default)]
pub(super) struct Open {
    pub(super) root: Option<Client>,
    nobody: Option<Client>,
    /// What strangers met at this process, once all of them were refused.
    doors: Option<Doors>,
    /// With passwords: whether auth was on when we last looked, so that we have to log in.
    pub(super) locked: bool,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("locked", &self.locked).finish_non_exhaustive()
    }
}

impl EtcdLink {
    /// The way to the member that listens here.
    pub fn new(to: impl Into<Endpoint>) -> Self {
        Self { to: to.into(), open: Mutex::new(Open::default()) }
    }

    /// Where it leads.
    pub fn to(&self) -> &Endpoint {
        &self.to
    }

    pub(super) async fn look(&self, credentials: &ClusterCredentials, now: Timestamp) -> Fact<EtcdFacts> {
        let mut open = self.open.lock().await;
        match Box::pin(self.facts(&mut open, credentials)).await {
            Ok(value) => Fact::Seen { value, at: now },
            Err(error) => {
                *open = Open { locked: open.locked, ..Open::default() };
                Fact::Unreachable { error: error.to_string(), since: now }
            }
        }
    }

    async fn facts(&self, open: &mut Open, credentials: &ClusterCredentials) -> Result<EtcdFacts, EtcdError> {
        let auth = self.auth(open, credentials).await;
        if matches!(auth, Ok(true)) && !open.locked {
            open.locked = true;
            open.root = None;
        }
        let mut root = self.root_client(open, credentials).await?;
        let status = bounded(async { Ok(root.status().await?) }).await?;
        let header = status.header().map(|h| (h.cluster_id(), h.member_id(), h.revision()));
        let (cluster, member, revision) = header.unwrap_or_default();
        let read = match auth {
            // While auth is off, nobody's read has shown already that there is a majority.
            Ok(false) => Ok(()),
            Ok(true) => bounded(async { Ok(root.get(PROBE_KEY, None).await?) }).await.map(|_| ()),
            Err(ref error) => Err(EtcdError::Call(etcd_client::Error::ElectError(error.to_string()))),
        };
        if read.as_ref().is_err_and(EtcdError::token_lost) {
            open.root = None;
        }
        let healthy = read.is_ok();
        let members = if healthy { members(root).await? } else { Vec::new() };
        let doors = match (&auth, healthy) {
            (Ok(locked), true) if *locked || credentials.nameless => match &open.doors {
                // As long as the connection stands, it is the same process: its doors do not open by themselves.
                Some(doors) => Some(doors.clone()),
                None => {
                    let tried = Box::pin(doors::try_all(self.to.at.ip(), credentials)).await;
                    open.doors = Some(tried.clone()).filter(|doors| doors.not_shut().next().is_none());
                    Some(tried)
                }
            },
            _ => None,
        };
        let downgrade = status.downgrade_info().filter(|d| d.enabled()).and_then(|d| version(d.target_version()));
        let storage_version = match version(status.storage_version()) {
            Some(version) => Some(version),
            None => self.cluster_version(credentials).await,
        };
        Ok(EtcdFacts {
            member: MemberId(member),
            cluster: ClusterId(cluster),
            leader: Some(status.leader()).filter(|id| *id != 0).map(MemberId),
            raft_term: status.raft_term(),
            raft_index: status.raft_index(),
            revision,
            version: EtcdVersion::parse(status.version()).unwrap_or_default(),
            storage_version,
            downgrade,
            db_size: status.db_size(),
            db_in_use: status.raft_used_db_size(),
            quota: Some(status.db_size_quota()).filter(|quota| *quota > 0),
            learner: status.is_learner(),
            read_error: read.err().map(|e| e.to_string()),
            members,
            alarms: alarms(status.errors()),
            auth: auth.ok(),
            root: Root::Unknown,
            doors,
            access: None,
            settings: BTreeMap::new(),
        })
    }

    /// Whether auth is on, asked as nobody: a linearizable read succeeds while it is off, and is refused once it is on.
    async fn auth(&self, open: &mut Open, credentials: &ClusterCredentials) -> Result<bool, EtcdError> {
        let mut nobody = match &open.nobody {
            Some(client) => client.clone(),
            None => open.nobody.insert(dial(self.to.clone(), &credentials.nobody).await?).clone(),
        };
        match bounded(async { Ok(nobody.get(PROBE_KEY, None).await?) }).await {
            Ok(_) => Ok(false),
            Err(error) if error.unauthenticated() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The version that the cluster has agreed upon, of which only HTTP tells: up to 3.5 its data is written for it.
    async fn cluster_version(&self, credentials: &ClusterCredentials) -> Option<EtcdVersion> {
        let answer = http::get(&self.to, &credentials.root, "/version").await.ok()?;
        let answer: serde_json::Value = serde_json::from_slice(&answer).ok()?;
        version(answer["etcdcluster"].as_str()?)
    }

    pub(super) async fn root_client(
        &self,
        open: &mut Open,
        credentials: &ClusterCredentials,
    ) -> Result<Client, EtcdError> {
        if let Some(client) = &open.root {
            return Ok(client.clone());
        }
        // Logging in fails while auth is off.
        let credentials = if open.locked { credentials.root.clone() } else { credentials.root.without_password() };
        Ok(open.root.insert(dial(self.to.clone(), &credentials).await?).clone())
    }

    /// Whether there is a superuser with its role. Asked while auth is off.
    pub(super) async fn root(&self, credentials: &ClusterCredentials) -> Root {
        let mut open = self.open.lock().await;
        let Ok(mut client) = self.root_client(&mut open, credentials).await else { return Root::Unknown };
        match bounded(async { Ok(client.user_get("root").await?) }).await {
            Ok(user) if user.roles().iter().any(|r| r == "root") => Root::Ready,
            Ok(_) => Root::Missing,
            Err(EtcdError::Call(etcd_client::Error::GRpcStatus(status)))
                if status.message().contains("user name not found") =>
            {
                Root::Missing
            }
            Err(_) => Root::Unknown,
        }
    }

    /// A client to change things with: `root`, logged in where that is needed.
    pub async fn client(&self, credentials: &ClusterCredentials) -> Result<Client, EtcdError> {
        let mut open = self.open.lock().await;
        self.root_client(&mut open, credentials).await
    }
}

/// A version as etcd writes it: a line has its first version, or no third number at all.
fn version(text: &str) -> Option<EtcdVersion> {
    EtcdVersion::parse(text).or_else(|_| EtcdVersion::parse(&format!("{text}.0"))).ok()
}

/// The cluster's list of its members.
pub(crate) async fn members(mut client: Client) -> Result<Vec<ListedMember>, EtcdError> {
    let list = bounded(async { Ok(client.member_list().await?) }).await?;
    let members = list.members().iter().map(|m| ListedMember {
        id: MemberId(m.id()),
        name: m.name().to_owned(),
        peer_urls: m.peer_urls().to_vec(),
        learner: m.is_learner(),
    });
    Ok(members.collect())
}

/// Alarms are in the status too, where asking for them costs no round through the log.
pub(super) fn alarms(errors: &[String]) -> Vec<Alarm> {
    let mut alarms = Vec::new();
    for (text, alarm) in [("NOSPACE", Alarm::NoSpace), ("CORRUPT", Alarm::Corrupt)] {
        if errors.iter().any(|e| e.contains(text)) {
            alarms.push(alarm);
        }
    }
    alarms
}
