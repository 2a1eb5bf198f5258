//! A cluster's members of the moment → one connection each, made again when it broke.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use etcd_client::Client;
use raftsman_etcd::{CALL_TIMEOUT, Credentials, EtcdError, dial};

use super::target::{Target, Texts, address};

/// A member that cannot be reached is tried again after this time.
const REDIAL: Duration = Duration::from_millis(40);
/// The member list is asked for this often.
const FOLLOW: Duration = Duration::from_millis(500);
/// A call that finds no connection looks again after this time.
const LOOK: Duration = Duration::from_millis(5);

/// A connection to one member.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) address: IpAddr,
    generation: u64,
    pub(super) client: Client,
}

#[derive(Default)]
struct Inner {
    wanted: BTreeSet<IpAddr>,
    dialling: BTreeSet<IpAddr>,
    live: BTreeMap<IpAddr, Link>,
    generation: u64,
    turn: usize,
    credentials: Option<(Texts, Credentials)>,
    last_failure: Option<String>,
}

/// The members that a load works against. A test may set others at any time.
pub struct Members {
    target: Mutex<Target>,
    inner: Mutex<Inner>,
}

impl Members {
    pub(super) fn new(target: Target) -> Self {
        let inner = Inner { wanted: target.endpoints.iter().copied().collect(), ..Inner::default() };
        Self { target: Mutex::new(target), inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no poison")
    }

    /// From now on these are the members. Connections to others are given up.
    pub fn set(&self, endpoints: impl IntoIterator<Item = IpAddr>) {
        let mut inner = self.inner();
        inner.wanted = endpoints.into_iter().collect();
        let Inner { wanted, live, .. } = &mut *inner;
        live.retain(|address, _| wanted.contains(address));
    }

    /// From now on these are the members and the files for new connections.
    pub fn retarget(&self, target: Target) {
        self.set(target.endpoints.iter().copied());
        *self.target.lock().expect("no poison") = target;
    }

    /// The members of the moment.
    pub fn endpoints(&self) -> Vec<IpAddr> {
        self.inner().wanted.iter().copied().collect()
    }

    /// Open connections.
    pub(super) fn links(&self) -> Vec<Link> {
        self.inner().live.values().cloned().collect()
    }

    /// A connection, turn and turn about; to another member than the one that just failed, if there is another.
    fn pick(&self, failed: Option<&Link>) -> Option<Link> {
        let mut inner = self.inner();
        inner.turn = inner.turn.wrapping_add(1);
        let turn = inner.turn;
        let others: Vec<&Link> =
            inner.live.values().filter(|link| failed.is_none_or(|failed| failed.address != link.address)).collect();
        if !others.is_empty() {
            return others.get(turn % others.len()).map(|link| (*link).clone());
        }
        // The same member again only over a new connection: the old one has just failed. A client that knows one address
        // only, a balancer's, uses a connection again over which a member itself refused.
        let failed = failed?;
        let only = inner.wanted.len() == 1;
        inner.live.get(&failed.address).filter(|link| only || link.generation != failed.generation).cloned()
    }

    /// Waits for a connection, as a client does that waits for a server to be ready; or says why there is none.
    pub(super) async fn link(&self, failed: Option<&Link>, kind: Duration) -> Result<Link, String> {
        let begun = Instant::now();
        loop {
            if let Some(link) = self.pick(failed) {
                return Ok(link);
            }
            if begun.elapsed() >= kind {
                let why = self.inner().last_failure.clone().unwrap_or_default();
                return Err(format!("no connection to any other member: {why}"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// This connection failed. It is made anew.
    pub(super) fn lost(&self, link: &Link) {
        let mut inner = self.inner();
        if inner.live.get(&link.address).is_some_and(|live| live.generation == link.generation) {
            inner.live.remove(&link.address);
        }
    }

    /// Keeps a connection to every member, for ever.
    pub(super) async fn keep(self: Arc<Self>) {
        loop {
            let missing: Vec<IpAddr> = {
                let mut inner = self.inner();
                let missing = |a: &&IpAddr| !inner.live.contains_key(*a) && !inner.dialling.contains(*a);
                let missing: Vec<IpAddr> = inner.wanted.iter().filter(missing).copied().collect();
                inner.dialling.extend(missing.iter().copied());
                missing
            };
            for address in missing {
                tokio::spawn(Arc::clone(&self).connect(address));
            }
            tokio::time::sleep(REDIAL).await;
        }
    }

    async fn connect(self: Arc<Self>, address: IpAddr) {
        let dialled = match self.credentials() {
            Ok(credentials) => dial(address, &credentials).await.map_err(|error| output(&error)),
            Err(error) => Err(error),
        };
        let mut inner = self.inner();
        inner.dialling.remove(&address);
        match dialled {
            Ok(client) if inner.wanted.contains(&address) => {
                inner.generation += 1;
                let link = Link { address, generation: inner.generation, client };
                inner.live.insert(address, link);
            }
            Ok(_) => {}
            Err(error) => inner.last_failure = Some(error),
        }
    }

    /// From the files as they are now: they change when certificates are renewed.
    fn credentials(&self) -> Result<Credentials, String> {
        let texts = self.target.lock().expect("no poison").texts().map_err(|e| format!("the load's own files: {e}"))?;
        let mut inner = self.inner();
        if let Some((known, credentials)) = &inner.credentials
            && *known == texts
        {
            return Ok(credentials.clone());
        }
        let credentials = texts.credentials().map_err(|error| output(&error))?;
        inner.credentials = Some((texts, credentials.clone()));
        Ok(credentials)
    }

    /// Follows etcd's own list of members, for ever. Learners and members that were never started serve no client.
    pub(super) async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(FOLLOW).await;
            let Some(mut link) = self.pick(None) else { continue };
            let Ok(Ok(list)) = tokio::time::timeout(CALL_TIMEOUT, link.client.member_list()).await else { continue };
            let serving = list.members().iter().filter(|m| !m.is_learner() && !m.name().is_empty());
            let addresses: BTreeSet<IpAddr> =
                serving.flat_map(|m| m.client_urls()).filter_map(|url| address(url)).collect();
            if !addresses.is_empty() && !addresses.iter().eq(self.inner().wanted.iter()) {
                self.set(addresses);
            }
        }
    }
}

/// An error with its causes.
fn output(error: &EtcdError) -> String {
    raftsman_engine::error_chain(error)
}
