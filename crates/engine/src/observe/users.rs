//! A healthy member → its cluster's roles and users, and whether passwords match those that the file refers to.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use etcd_client::{Client, PermissionType};
use futures::future::{join_all, try_join_all};
use raftsman_core::observed::{Access, Fact, Granted, Observed, Password, Role, User, View};
use raftsman_core::spec::{KeySpan, Level, Name, Secret};
use raftsman_etcd::{EtcdError, bounded};
use secrecy::{ExposeSecret as _, SecretString};

use super::Observer;
use crate::stack::{ClusterCredentials, StackHandle};

/// Every query about users costs a round through the Raft log: between our own changes it is made no more often than
/// this.
const FRESH: Duration = Duration::from_secs(2);
/// Checking a password keeps one CPU of the member busy for a while.
const TRIES_AT_ONCE: usize = 4;

/// What is known of roles and users between observations.
#[derive(Debug, Default)]
pub(super) struct Known {
    access: Option<(Instant, Access)>,
    /// Passwords that were checked: each once, and again after a change.
    passwords: BTreeMap<String, Password>,
}

impl Observer {
    /// Asks one healthy member, preferably the leader, for roles and users where the file lists some, and for users in
    /// any case, to find superusers that the file does not list. Those of an adopted cluster are not raftsman's.
    pub(super) async fn look_for_users(&self, observed: &mut Observed, credentials: &ClusterCredentials) {
        let wanted = &self.cluster.desired.etcd.access;
        let asked = {
            let view = View::of(observed);
            let locked = |name: &&Name| view.answering.get(*name).is_some_and(|e| e.auth == Some(true));
            if wanted.is_silent() && observed.ledger.etcd.adopted().is_some() || !view.has_quorum() {
                return;
            }
            let healthy = view.healthy.iter().copied().filter(locked);
            view.leader.filter(|name| view.healthy.contains(name)).filter(locked).or(healthy.min()).cloned()
        };
        let Some(name) = asked else { return };
        let Some(link) = self.etcd(&name) else { return };
        let access = async {
            let client = link.client(credentials).await?;
            self.access(client).await
        };
        let access = Box::pin(access).await.map_err(|error| error.to_string());
        if let Some(Fact::Seen { value, .. }) = observed.etcd.members.get_mut(&name).map(|m| &mut m.etcd) {
            value.access = Some(access);
        }
    }

    /// Drops what is known of roles and users, after a change.
    pub(crate) async fn forget_access(&self) {
        self.known.lock().await.access = None;
    }

    /// This user's password was changed.
    pub(crate) async fn forget_password(&self, user: &str) {
        self.known.lock().await.passwords.remove(user);
    }

    async fn access(&self, client: Client) -> Result<Access, EtcdError> {
        let mut known = self.known.lock().await;
        if let Some((at, access)) = &known.access
            && at.elapsed() < FRESH
        {
            return Ok(access.clone());
        }
        let wanted = &self.cluster.desired.etcd.access;
        let mut access = match wanted.is_silent() && wanted.patroni.is_empty() {
            true => Access { users: read_users(&client).await?, ..Access::default() },
            false => read(&client).await?,
        };
        known.passwords.retain(|user, _| access.users.contains_key(user));
        let mut untried: Vec<(String, Option<Secret>)> = Vec::new();
        for (name, user) in self.cluster.desired.etcd.access.users.iter().flatten() {
            if access.users.contains_key(name) && !known.passwords.contains_key(name) {
                untried.push((name.clone(), user.password.clone()));
            }
        }
        let mut tried: Vec<(String, Password)> = Vec::new();
        for user in wanted.patroni.iter().filter(|user| access.users.contains_key(*user)) {
            if !known.passwords.contains_key(user) {
                let found = match self.cluster.etcd_password(user).await {
                    Ok(Some(word)) => try_password(client.clone(), user, &word).await,
                    // Nothing that raftsman could write into Patroni's file is right.
                    Ok(None) => Password::Other,
                    Err(error) => Password::Unknown(error.to_string()),
                };
                tried.push((user.clone(), found));
            }
        }
        for some in untried.chunks(TRIES_AT_ONCE) {
            let tries = some.iter().cloned().map(|(name, word)| attempt(&self.cluster, client.clone(), name, word));
            tried.extend(join_all(tries).await);
        }
        for (name, password) in tried {
            // A password that could not be checked is checked again at the next observation.
            match password {
                Password::Unknown(_) => drop(access.users.get_mut(&name).map(|user| user.password = password)),
                _ => drop(known.passwords.insert(name, password)),
            }
        }
        for (name, password) in &known.passwords {
            if let Some(user) = access.users.get_mut(name) {
                user.password = password.clone();
            }
        }
        let unknown = access.users.values().any(|user| matches!(user.password, Password::Unknown(_)));
        known.access = (!unknown).then(|| (Instant::now(), access.clone()));
        Ok(access)
    }
}

/// Every role and every user, as etcd lists them. Passwords are not checked.
pub(crate) async fn read(client: &Client) -> Result<Access, EtcdError> {
    let mut lists = client.clone();
    let roles = bounded(async { Ok(lists.role_list().await?) }).await?;
    let role = |name: &String| {
        let (mut client, name) = (client.clone(), name.clone());
        async move {
            let found = bounded(async { Ok(client.role_get(name.clone()).await?) }).await?;
            let granted = found.permissions().into_iter().map(|permission| Granted {
                level: level(permission.get_type()),
                keys: KeySpan { key: permission.key().to_vec(), end: permission.range_end().to_vec() },
            });
            Ok::<_, EtcdError>((name, granted.collect::<Role>()))
        }
    };
    let (roles, users) = futures::try_join!(try_join_all(roles.roles().iter().map(role)), read_users(client))?;
    Ok(Access { roles: roles.into_iter().collect(), users })
}

/// Every user with its roles.
async fn read_users(client: &Client) -> Result<BTreeMap<String, User>, EtcdError> {
    let mut lists = client.clone();
    let users = bounded(async { Ok(lists.user_list().await?) }).await?;
    let user = |name: &String| {
        let (mut client, name) = (client.clone(), name.clone());
        async move {
            let found = bounded(async { Ok(client.user_get(name.clone()).await?) }).await?;
            let user = User { roles: found.roles().iter().cloned().collect(), password: Password::Untried };
            Ok::<_, EtcdError>((name, user))
        }
    };
    Ok(try_join_all(users.users().iter().map(user)).await?.into_iter().collect())
}

fn level(kind: i32) -> Level {
    match PermissionType::try_from(kind) {
        Ok(PermissionType::Read) => Level::Read,
        Ok(PermissionType::Write) => Level::Write,
        Ok(PermissionType::Readwrite) | Err(_) => Level::Readwrite,
    }
}

/// Checks the password that the file refers to; where it refers to none, a random one, which shows whether the user has
/// any.
async fn attempt(cluster: &StackHandle, client: Client, name: String, word: Option<Secret>) -> (String, Password) {
    let word = match &word {
        Some(reference) => crate::secrets::resolve(reference, cluster.fleet.context.base()),
        None => crate::secrets::random_password(),
    };
    let found = match word {
        Ok(word) => try_password(client, &name, &word).await,
        Err(error) => Password::Unknown(error.to_string()),
    };
    (name, found)
}

/// Logs in as this user.
pub(crate) async fn try_password(client: Client, name: &str, word: &SecretString) -> Password {
    let mut auth = client.auth_client();
    let tried = bounded(async { Ok(auth.authenticate(name.to_owned(), word.expose_secret().to_owned()).await?) }).await;
    match tried {
        Ok(_) => Password::Right,
        Err(EtcdError::Call(etcd_client::Error::GRpcStatus(status))) => match status.message() {
            text if text.contains("no password user") => Password::None,
            text if text.contains("invalid user ID or password") => Password::Other,
            text => Password::Unknown(text.to_owned()),
        },
        Err(error) => Password::Unknown(error.to_string()),
    }
}
