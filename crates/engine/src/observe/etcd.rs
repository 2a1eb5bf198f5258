//! A member's address → what its etcd answers: its id, its leader, whether it can read through a majority.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use etcd_client::{Client, GetOptions};
use jiff::Timestamp;
use raftsman_core::desired::HTTP_PORT;
use raftsman_core::observed::{AccessProbe, Alarm, EtcdFacts, Fact, ListedMember, MemberId, Problem, Root};
use raftsman_core::spec::EtcdVersion;
use raftsman_etcd::{Answered, Endpoint, EtcdError, PROBE_KEY, bounded, dial};
use tokio::sync::Mutex;

use super::{http, probe};
use crate::stack::ClusterCredentials;

/// The connection to one member's etcd.
#[derive(Debug)]
pub struct EtcdLink {
    pub(super) to: Endpoint,
    pub(super) open: Mutex<Open>,
}

#[derive(Default)]
pub(super) struct Open {
    pub(super) root: Option<Client>,
    anonymous: Option<Client>,
    /// The access probe's result for this process, kept once every attempt was denied.
    probe: Option<AccessProbe>,
    /// Whether the password that was accepted is the one before that of the file.
    outdated: bool,
    /// With passwords: whether auth was enabled at the last observation, so that a login is needed.
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

    /// The endpoint of the member.
    pub fn to(&self) -> &Endpoint {
        &self.to
    }

    pub(super) async fn look(
        &self,
        credentials: &ClusterCredentials,
        now: Timestamp,
    ) -> (Fact<EtcdFacts>, Option<Problem>) {
        let mut open = self.open.lock().await;
        match Box::pin(self.facts(&mut open, credentials)).await {
            Ok(value) => (Fact::Seen { value, at: now }, None),
            Err(error) => {
                *open = Open { locked: open.locked, ..Open::default() };
                (Fact::Unreachable { error: error.to_string(), since: now }, problem(&error))
            }
        }
    }

    async fn facts(&self, open: &mut Open, credentials: &ClusterCredentials) -> Result<EtcdFacts, EtcdError> {
        let auth = self.auth(open, credentials).await;
        // A learner cannot confirm a majority, but it shows whether it requires credentials.
        let locked = match &auth {
            Err(error) if error.learner() => self.learner_auth(open).await.unwrap_or(open.locked),
            auth => matches!(auth, Ok(true)),
        };
        if locked && !open.locked {
            open.locked = true;
            open.root = None;
        }
        let mut root = self.root_client(open, credentials).await?;
        let status = bounded(async { Ok(root.status().await?) }).await?;
        let Answered { cluster, member, revision, version } = Answered::read(&status)?;
        let read = match auth {
            // While auth is disabled, the read without a user has shown already that there is a majority.
            Ok(false) => Ok(()),
            Ok(true) => bounded(async { Ok(root.get(PROBE_KEY, None).await?) }).await.map(|_| ()),
            Err(ref error) => Err(EtcdError::Call(etcd_client::Error::ElectError(error.to_string()))),
        };
        if read.as_ref().is_err_and(EtcdError::token_lost) {
            open.root = None;
        }
        let healthy = read.is_ok();
        let members = if healthy { members(root).await? } else { Vec::new() };
        let probe = match (&auth, healthy) {
            (Ok(locked), true) if *locked || credentials.nameless => match &open.probe {
                // While the connection stands, it is the same process, and its access rules do not change.
                Some(probe) => Some(probe.clone()),
                None => {
                    let tried = Box::pin(probe::try_all(self.to.at.ip(), credentials)).await;
                    open.probe = Some(tried.clone()).filter(|probe| probe.not_denied().next().is_none());
                    Some(tried)
                }
            },
            _ => None,
        };
        let downgrade = status.downgrade_info().filter(|d| d.enabled()).and_then(|d| line(d.target_version()));
        let storage_version = match line(status.storage_version()) {
            Some(version) => Some(version),
            None => self.cluster_version(credentials).await,
        };
        Ok(EtcdFacts {
            member,
            cluster,
            leader: Some(status.leader()).filter(|id| *id != 0).map(MemberId),
            raft_term: status.raft_term(),
            raft_index: status.raft_index(),
            revision,
            version,
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
            root: if open.outdated { Root::Outdated } else { Root::Unknown },
            probe,
            access: None,
            settings: BTreeMap::new(),
        })
    }

    /// Whether auth is enabled, asked without a user: a linearizable read succeeds while it is disabled, and is denied
    /// once it is enabled.
    async fn auth(&self, open: &mut Open, credentials: &ClusterCredentials) -> Result<bool, EtcdError> {
        let mut anonymous = match &open.anonymous {
            Some(client) => client.clone(),
            None => open.anonymous.insert(dial(self.to.clone(), &credentials.anonymous).await?).clone(),
        };
        match bounded(async { Ok(anonymous.get(PROBE_KEY, None).await?) }).await {
            Ok(_) => Ok(false),
            Err(error) if error.unauthenticated() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether a learner requires credentials: it answers a serializable read while auth is disabled.
    async fn learner_auth(&self, open: &Open) -> Option<bool> {
        let mut anonymous = open.anonymous.clone()?;
        let own = GetOptions::new().with_serializable();
        match bounded(async { Ok(anonymous.get(PROBE_KEY, Some(own)).await?) }).await {
            Ok(_) => Some(false),
            Err(error) => error.unauthenticated().then_some(true),
        }
    }

    /// The version that the cluster has agreed upon. Only HTTP serves it: up to 3.5 it is the format of the data.
    async fn cluster_version(&self, credentials: &ClusterCredentials) -> Option<EtcdVersion> {
        let answer = match http::get(&self.to, &credentials.root, "/version").await {
            Ok(answer) => answer,
            // The HTTP endpoints may have a listener of their own.
            Err(_) => {
                let at = SocketAddr::new(self.to.at.ip(), HTTP_PORT);
                let apart = Endpoint { at, name: self.to.name.clone() };
                http::get(&apart, &credentials.root, "/version").await.ok()?
            }
        };
        let answer: serde_json::Value = serde_json::from_slice(&answer).ok()?;
        line(answer["etcdcluster"].as_str()?)
    }

    pub(super) async fn root_client(
        &self,
        open: &mut Open,
        credentials: &ClusterCredentials,
    ) -> Result<Client, EtcdError> {
        if let Some(client) = &open.root {
            return Ok(client.clone());
        }
        // Login fails while auth is disabled.
        if !open.locked {
            let client = dial(self.to.clone(), &credentials.root.without_password()).await?;
            return Ok(open.root.insert(client).clone());
        }
        open.outdated = false;
        let mut client = dial(self.to.clone(), &credentials.root).await;
        for before in &credentials.root_before {
            if !client.as_ref().is_err_and(EtcdError::denied) {
                break;
            }
            if let Ok(outdated) = dial(self.to.clone(), before).await {
                open.outdated = true;
                client = Ok(outdated);
            }
        }
        Ok(open.root.insert(client?).clone())
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

/// Why an etcd that listens did not answer; nothing where it may still be starting.
fn problem(error: &EtcdError) -> Option<Problem> {
    if error.denied() {
        return Some(Problem::Denied);
    }
    match error {
        EtcdError::Unclear(_) => Some(Problem::Unclear),
        other => other.silent().then_some(Problem::Silent),
    }
}

/// A version as etcd writes it: a line has its first version, or no third number at all.
fn line(text: &str) -> Option<EtcdVersion> {
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
