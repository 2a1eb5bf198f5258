//! Endpoints and credentials of a cluster that is not raftsman's → all that can be observed of it without a change.

mod certificates;
mod metrics;
mod process;

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use etcd_client::{Client, Member};
use futures::future::join_all;
use jiff::Timestamp;
use raftsman_api::tls::Identity;
use raftsman_core::adopt::{self, Found, Hash, Hashes};
use raftsman_core::observed::{Access, Alarm, ListedMember, MemberId, Password, Purpose, ROOT};
use raftsman_core::spec::AuthMode;
use raftsman_etcd::{Answered, CALL_TIMEOUT, Credentials, Endpoint, EtcdError, bounded, dial};
use secrecy::SecretString;

pub(crate) use process::settings_of;

use crate::observe::{read_access, try_password};
use crate::pki::{self, PkiError};

/// How to reach the cluster.
pub struct Way {
    /// URLs of members.
    pub endpoints: Vec<String>,
    /// The authority of the members' certificates, PEM.
    pub ca_pem: String,
    /// The client certificate.
    pub identity: Option<Identity>,
    /// The password of `root`.
    pub password: Option<SecretString>,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Way").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

/// Why a cluster cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// Not an address to connect to.
    #[error("`{0}` is not the URL of a member: write `https://<name or address>:<port>`")]
    Endpoint(String),
    /// No TLS.
    #[error("`{0}` is without TLS: raftsman does not connect in plaintext; give the members certificates first")]
    Plaintext(String),
    /// No member answers.
    #[error("no member answers: {}", .0.join("; "))]
    NoneAnswers(Vec<String>),
    /// Auth is enabled, and no credentials were given.
    #[error(
        "authentication is required: give the password of `root` with --password-file, or a certificate of `root` with \
         --cert and --key"
    )]
    NeedsUser,
    /// Endpoints of different clusters.
    #[error("the endpoints belong to different clusters ({}): adopt one at a time", .0.join(", "))]
    SeveralClusters(Vec<String>),
    /// The CA.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// Connections.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

/// The endpoint of a URL.
pub fn endpoint(url: &str) -> Result<Endpoint, LookError> {
    if url.starts_with("http://") || url.starts_with("unix") {
        return Err(LookError::Plaintext(url.to_owned()));
    }
    let wrong = || LookError::Endpoint(url.to_owned());
    let place = url.strip_prefix("https://").unwrap_or(url).trim_end_matches('/');
    if let Ok(at) = place.parse::<SocketAddr>() {
        return Ok(Endpoint::from(at));
    }
    let (host, _) = place.rsplit_once(':').ok_or_else(wrong)?;
    let at = place.to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(wrong)?;
    Endpoint::named(at, host).ok_or_else(wrong)
}

/// One member that answered.
struct Answer {
    url: String,
    to: Endpoint,
    client: Client,
    says: Answered,
    status: etcd_client::StatusResponse,
}

/// Observes everything.
pub async fn look(way: &Way, now: Timestamp) -> Result<Found, LookError> {
    let credentials = Credentials::new(&way.ca_pem, way.identity.as_ref(), way.password.clone())?;
    let mut urls: Vec<String> = Vec::new();
    for url in &way.endpoints {
        endpoint(url)?;
        urls.push(if url.contains("://") { url.clone() } else { format!("https://{url}") });
    }
    let asked = join_all(urls.iter().map(|url| ask(url, &credentials))).await;
    let mut answers: Vec<Answer> = Vec::new();
    let mut errors: Vec<String> = Vec::new();
    for (url, answer) in urls.iter().zip(asked) {
        match answer {
            Ok(answer) => answers.push(answer),
            Err(error) => errors.push(format!("{url}: {}", said(&error))),
        }
    }
    let Some(first) = answers.first() else {
        let locked = errors.iter().all(|error| error.contains("user name is empty"));
        return Err(if locked { LookError::NeedsUser } else { LookError::NoneAnswers(errors) });
    };
    let id = first.says.cluster;
    if answers.iter().any(|answer| answer.says.cluster != id) {
        let ids = answers.iter().map(|answer| format!("{} at {}", answer.says.cluster, answer.url));
        return Err(LookError::SeveralClusters(ids.collect()));
    }
    let mut client = first.client.clone();
    let list = bounded(async { Ok(client.member_list().await?) }).await?;
    let found = join_all(list.members().iter().map(|m| member(m, &answers, way, &credentials))).await;
    let (mut members, more): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    members.sort_by(|a, b| a.listed.name.cmp(&b.listed.name));
    answers.extend(more.into_iter().flatten());
    let auth = patiently_auth(&client).await;
    let certificates_needed = certificates_needed(&answers[0].to, way).await;
    let mode = if way.password.is_some() || !certificates_needed { AuthMode::Password } else { AuthMode::Certificate };
    let authority = pki::describe(&way.ca_pem)?;
    Ok(Found {
        at: now,
        cluster: id,
        mode,
        certificates_needed,
        auth,
        access: access(&client, auth).await,
        alarms: answers.first().map(|answer| alarms(answer.status.errors())).unwrap_or_default(),
        hashes: hashes(&answers, &members).await,
        authority: adopt::Authority {
            subject: authority.subject,
            not_after: authority.not_after,
            key: authority.public_key_sha256,
        },
        shared_authority: shared(&members, way).await,
        members,
    })
}

async fn ask(url: &str, credentials: &Credentials) -> Result<Answer, EtcdError> {
    let Ok(to) = endpoint(url) else { return Err(EtcdError::Timeout(CALL_TIMEOUT)) };
    let mut client = Box::pin(login(&to, credentials)).await?;
    let status = bounded(async { Ok(client.status().await?) }).await?;
    let says = Answered::read(&status)?;
    Ok(Answer { url: url.to_owned(), to, client, says, status })
}

/// Login fails while auth is disabled: then the call is made without a password.
async fn login(to: &Endpoint, credentials: &Credentials) -> Result<Client, EtcdError> {
    match dial(to.clone(), credentials).await {
        Err(EtcdError::Call(etcd_client::Error::GRpcStatus(status))) if status.message().contains("not enabled") => {
            dial(to.clone(), &credentials.without_password()).await
        }
        other => other,
    }
}

/// One member: as it answered already, or asked now where it says that clients reach it.
async fn member(
    listed: &Member,
    answers: &[Answer],
    way: &Way,
    credentials: &Credentials,
) -> (adopt::Member, Option<Answer>) {
    let known = answers.iter().find(|answer| answer.says.member.0 == listed.id());
    let url = known.map(|answer| answer.url.clone()).or_else(|| listed.client_urls().first().cloned());
    let url = url.unwrap_or_default();
    let asked = match known {
        Some(_) => None,
        None => Some(Box::pin(ask(&url, credentials)).await),
    };
    let status = match (known, &asked) {
        (Some(answer), _) | (None, Some(Ok(answer))) => Ok(status(answer)),
        (None, Some(Err(error))) => Err(said(error)),
        (None, None) => Err("it was not asked".to_owned()),
    };
    let to = endpoint(&url).ok();
    let peer = listed.peer_urls().first().and_then(|url| endpoint(url).ok());
    let (server, peer) =
        tokio::join!(certificates::seen(to.as_ref(), way.identity.as_ref()), certificates::seen(peer.as_ref(), None));
    let metrics = match (&to, &status) {
        (Some(to), Ok(_)) => metrics::fetch(to, credentials).await.unwrap_or_default(),
        _ => BTreeMap::new(),
    };
    let process = to.as_ref().and_then(|to| process::listening_at(to.at));
    let found = adopt::Member {
        listed: ListedMember {
            id: MemberId(listed.id()),
            name: listed.name().to_owned(),
            peer_urls: listed.peer_urls().to_vec(),
            learner: listed.is_learner(),
        },
        client_urls: listed.client_urls().to_vec(),
        address: to.as_ref().map(|to| to.at.ip()),
        endpoint: url,
        status,
        certificates: BTreeMap::from([(Purpose::Server, server), (Purpose::Peer, peer)]),
        process,
        metrics,
    };
    (found, asked.and_then(Result::ok))
}

fn status(answer: &Answer) -> adopt::Status {
    let status = &answer.status;
    adopt::Status {
        version: answer.says.version,
        leader: Some(status.leader()).filter(|id| *id != 0).map(MemberId),
        revision: answer.says.revision,
        db_size: status.db_size(),
        db_in_use: status.raft_used_db_size(),
        quota: u64::try_from(status.db_size_quota()).ok().filter(|bytes| *bytes > 0),
    }
}

fn said(error: &EtcdError) -> String {
    if error.refused() { "nothing listens there".to_owned() } else { error.to_string() }
}

/// The same, retried while an election is under way.
async fn patiently_auth(client: &Client) -> Option<bool> {
    for _ in 0..10 {
        if let Some(on) = auth(client).await {
            return Some(on);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    None
}

/// Whether auth is enabled: the reason of a failed login with a random password tells. It changes nothing.
pub(crate) async fn auth(client: &Client) -> Option<bool> {
    let word = crate::secrets::random_password().ok()?;
    match try_password(client.clone(), "raftsman-asks-whether-auth-is-on", &word).await {
        Password::Other | Password::None | Password::Right => Some(true),
        Password::Unknown(text) if text.contains("not enabled") => Some(false),
        Password::Unknown(_) | Password::Untried => None,
    }
}

/// Roles and users. A wrong password shows whether a user has a password.
async fn access(client: &Client, auth: Option<bool>) -> Result<Access, String> {
    let mut access = Box::pin(read_access(client)).await.map_err(|error| error.to_string())?;
    if auth == Some(true) {
        for (name, user) in access.users.iter_mut().filter(|(name, _)| name.as_str() != ROOT) {
            let word = crate::secrets::random_password().map_err(|error| error.to_string())?;
            user.password = try_password(client.clone(), name, &word).await;
        }
    }
    Ok(access)
}

/// Whether a client without a certificate gets no answer.
async fn certificates_needed(to: &Endpoint, way: &Way) -> bool {
    let Ok(anonymous) = Credentials::new(&way.ca_pem, None, None) else { return true };
    let tried = async {
        let mut client = dial(to.clone(), &anonymous).await?;
        bounded(async { Ok(client.status().await?) }).await
    };
    match Box::pin(tried).await {
        Ok(_) => false,
        Err(error) => error.turned_away() || !error.unauthenticated(),
    }
}

/// `memberID:10276657743932975437 alarm:NOSPACE`, as a member's status lists them.
fn alarms(errors: &[String]) -> Vec<(MemberId, Alarm)> {
    let one = |text: &String| {
        let id = text.split_once("memberID:")?.1.split_whitespace().next()?.parse().ok()?;
        let alarm = match text {
            text if text.contains("NOSPACE") => Alarm::NoSpace,
            text if text.contains("CORRUPT") => Alarm::Corrupt,
            _ => return None,
        };
        Some((MemberId(id), alarm))
    };
    errors.iter().filter_map(one).collect()
}

/// Every member's hash at a revision that all of them have.
async fn hashes(answers: &[Answer], members: &[adopt::Member]) -> Hashes {
    let revision = answers.iter().map(|answer| answer.says.revision).min().unwrap_or(0);
    let asked = answers.iter().map(|answer| async move {
        let mut client = answer.client.clone();
        let hash = bounded(async { Ok(client.hash_kv(revision).await?) }).await.ok()?;
        let name = members.iter().find(|m| m.listed.id == answer.says.member)?.listed.name.clone();
        Some((name, Hash { hash: hash.hash(), compacted: hash.compact_version() }))
    });
    Hashes { revision, members: join_all(asked).await.into_iter().flatten().collect() }
}

/// Whether the clients' authority also signs peer certificates.
async fn shared(members: &[adopt::Member], way: &Way) -> Option<bool> {
    let peers = members.iter().filter_map(|m| endpoint(m.listed.peer_urls.first()?).ok());
    for peer in peers {
        if let Some(trusted) = certificates::trusted(&peer, &way.ca_pem).await {
            return Some(trusted);
        }
    }
    None
}
