//! World → Observed: every machine, agent and member of one cluster, looked at concurrently and within bounds of time.

mod adopted;
mod agent;
mod doors;
mod etcd;
mod handshakes;
mod http;
mod upkeep;
mod users;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use futures::future::join_all;
use jiff::Timestamp;
use raftsman_api::tls::TlsError;
use raftsman_core::observed::{
    AuthorityRecord, EtcdFacts, Fact, Handshakes, Machine, MemberObserved, Observed, Power, ServiceState, Side, Trust,
    Upkeep, View,
};
use raftsman_core::plan::trust::to_be_proven;
use raftsman_core::spec::{AuthMode, Name};
use raftsman_providers::{MachineRecord, ProviderError};
use tokio::sync::Mutex;

pub use agent::{AgentLink, LinkError, token_name};
pub use etcd::EtcdLink;
pub(crate) use etcd::members;
pub(crate) use http::get as http_get;
pub(crate) use users::{read as read_access, try_password};

use crate::cluster::{ClusterAt, ClusterCredentials, ClusterError};
use crate::pki::PkiError;

/// Looks at one cluster again and again, keeping its connections open in between.
#[derive(Debug)]
pub struct Observer {
    cluster: Arc<ClusterAt>,
    links: std::sync::Mutex<BTreeMap<Name, Arc<Links>>>,
    credentials: Mutex<Option<Known>>,
    brought: Mutex<Option<BTreeMap<Side, AuthorityRecord>>>,
    before: Mutex<Option<Observed>>,
    upkeep: Mutex<upkeep::Found>,
    known: Mutex<users::Known>,
    into_data: bool,
}

/// Credentials, and the authorities that they were made of.
#[derive(Debug)]
struct Known {
    of: [Option<Trust>; 2],
    credentials: ClusterCredentials,
}

/// The ways to one member: to its machine's agent, and to its etcd, which may still be elsewhere.
#[derive(Debug)]
pub struct Links {
    /// To the agent.
    pub agent: AgentLink,
    /// To etcd.
    pub etcd: EtcdLink,
}

impl Observer {
    /// An observer without a connection yet.
    pub fn new(cluster: Arc<ClusterAt>) -> Result<Self, TlsError> {
        let observer = Self {
            cluster,
            links: Default::default(),
            credentials: Mutex::new(None),
            brought: Mutex::new(None),
            before: Mutex::new(None),
            upkeep: Mutex::default(),
            known: Mutex::default(),
            into_data: false,
        };
        for (name, place) in observer.cluster.places() {
            observer.connect(&name, place, place)?;
        }
        Ok(observer)
    }

    /// One that has agents look into etcd's data, also while etcd runs.
    pub fn into_data(cluster: Arc<ClusterAt>) -> Result<Self, TlsError> {
        Ok(Self { into_data: true, ..Self::new(cluster)? })
    }

    /// The ways to a member whose machine and whose etcd are here; those that are open stay open.
    fn connect(&self, name: &Name, machine: IpAddr, etcd: IpAddr) -> Result<Arc<Links>, TlsError> {
        let etcd = self.cluster.endpoint(name, etcd);
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(links) = links.get(name).filter(|l| l.agent.address() == machine && *l.etcd.to() == etcd) {
            return Ok(Arc::clone(links));
        }
        let agent = AgentLink::new(&self.cluster.fleet, name, machine)?;
        let new = Arc::new(Links { agent, etcd: EtcdLink::new(etcd) });
        links.insert(name.clone(), Arc::clone(&new));
        Ok(new)
    }

    /// The cluster that it looks at.
    pub fn cluster(&self) -> &Arc<ClusterAt> {
        &self.cluster
    }

    /// The ways to a member.
    pub fn links(&self, machine: &Name) -> Option<Arc<Links>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).get(machine).cloned()
    }

    /// Who we are to etcd; nobody before the cluster has authorities.
    pub async fn credentials(&self, now: Timestamp) -> Result<Option<ClusterCredentials>, ClusterError> {
        let mut known = self.credentials.lock().await;
        let ledger = self.cluster.ledger();
        let of = [ledger.peers, ledger.clients];
        if ledger.adopted.is_none() && of.iter().any(Option::is_none) {
            return Ok(None);
        }
        if let Some(known) = known.as_ref().filter(|known| known.of == of) {
            return Ok(Some(known.credentials.clone()));
        }
        let credentials = self.cluster.credentials(now)?;
        *known = Some(Known { of, credentials: credentials.clone() });
        Ok(Some(credentials))
    }

    /// What the file brings is read once a run.
    async fn brought(&self) -> Result<BTreeMap<Side, AuthorityRecord>, ClusterError> {
        let mut brought = self.brought.lock().await;
        if let Some(brought) = brought.as_ref() {
            return Ok(brought.clone());
        }
        Ok(brought.insert(self.cluster.brought_authorities()?).clone())
    }

    /// Looks at everything once.
    pub async fn look(&self) -> Result<Observed, ClusterError> {
        let now = Timestamp::now();
        let brought = self.brought().await?;
        let credentials = match self.credentials(now).await {
            Ok(Some(credentials)) => Ok(credentials),
            Ok(None) => Err(Fact::Absent { at: now }),
            // Nobody gets in any more with what the authority signed, not even we.
            Err(ClusterError::Pki(error @ PkiError::AuthorityEnded { .. })) => {
                Err(Fact::Unreachable { error: error.to_string(), since: now })
            }
            Err(error) => return Err(error),
        };
        let places = self.cluster.places();
        let looks = places.iter().map(|(name, place)| self.look_at(name, *place, credentials.as_ref(), now));
        let members = join_all(looks).await.into_iter().collect();
        let (ledger, upkeep) = (self.cluster.ledger(), Upkeep::default());
        let mut observed = Observed { ledger, members, brought, handshakes: BTreeMap::new(), upkeep };
        if let Ok(credentials) = &credentials {
            // What to do about somebody else's superuser and alarms is not for us to see to.
            if observed.ledger.adopted.is_none() {
                self.look_for_root(&mut observed, credentials).await;
                observed.upkeep = Box::pin(self.look_into_alarms(&observed, credentials)).await;
            }
            self.look_for_users(&mut observed, credentials).await;
        }
        let mut before = self.before.lock().await;
        if let Some(before) = before.as_ref() {
            carry_over(&mut observed, before);
        }
        *before = Some(observed.clone());
        drop(before);
        self.cluster.remember(|ledger| ledger.learn(&self.cluster.desired, &observed, now))?;
        observed.ledger = self.cluster.ledger();
        if let Ok(credentials) = &credentials {
            observed.handshakes = self.shake_hands(&observed, &places, credentials, now).await;
        }
        Ok(observed)
    }

    /// Has members shake hands, where the next phase of a change of an authority rests on it.
    async fn shake_hands(
        &self,
        observed: &Observed,
        places: &BTreeMap<Name, IpAddr>,
        credentials: &ClusterCredentials,
        now: Timestamp,
    ) -> BTreeMap<Name, Handshakes> {
        let sides = to_be_proven(&self.cluster.desired, observed, now);
        if sides.is_empty() {
            return BTreeMap::new();
        }
        let sides = &sides;
        let members = places.keys().filter(|name| observed.members.get(*name).is_some_and(|m| m.report().is_some()));
        let tries = members.filter_map(|name| Some((name, self.links(name)?))).map(|(name, links)| async move {
            let others =
                places.iter().filter(|(other, _)| *other != name).map(|(n, place)| (n.clone(), *place)).collect();
            (name.clone(), handshakes::of_member(&links, &others, sides, credentials).await)
        });
        join_all(tries).await.into_iter().collect()
    }

    async fn look_at(
        &self,
        name: &Name,
        place: IpAddr,
        credentials: Result<&ClusterCredentials, &Fact<EtcdFacts>>,
        now: Timestamp,
    ) -> (Name, MemberObserved) {
        if self.cluster.ledger().adopted.is_some() {
            return (name.clone(), self.watch(name, place, credentials.ok(), now).await);
        }
        let machine = machine_fact(self.cluster.fleet.provider.machine(name.as_str()).await, now);
        let nothing = || MemberObserved {
            machine: machine.clone(),
            agent: Fact::Absent { at: now },
            etcd: Fact::Absent { at: now },
        };
        let Some(seen) = machine.seen() else { return (name.clone(), nothing()) };
        let links = match self.connect(name, seen.address, place) {
            Ok(links) => links,
            Err(error) => {
                let agent = Fact::Unreachable { error: error.to_string(), since: now };
                return (name.clone(), MemberObserved { agent, ..nothing() });
            }
        };
        // On this computer a stopped machine is one whose agent is gone: its etcd may well run on.
        let agent = async {
            match seen.power {
                Power::Running => links.agent.look(&self.cluster, self.into_data, now).await,
                Power::Stopped => Fact::Absent { at: now },
            }
        };
        let etcd = async {
            match credentials {
                Ok(credentials) => Box::pin(links.etcd.look(credentials, now)).await,
                Err(fact) => fact.clone(),
            }
        };
        let (agent, etcd) = tokio::join!(agent, etcd);
        let observed = MemberObserved { machine, agent, etcd };
        let stopped = observed.report().is_some_and(|r| r.etcd.service.state == ServiceState::Stopped);
        let etcd = match observed.etcd {
            // Nothing listens, and who should know says that nothing should.
            Fact::Unreachable { .. } if stopped => Fact::Absent { at: now },
            etcd => etcd,
        };
        (name.clone(), MemberObserved { etcd, ..observed })
    }

    /// Asks one healthy member for the superuser: it costs a round through the log, so that one is enough.
    async fn look_for_root(&self, observed: &mut Observed, credentials: &ClusterCredentials) {
        let asked = {
            let view = View::of(observed);
            let open = |name: &&Name| view.answering.get(*name).is_some_and(|e| e.auth == Some(false));
            // Without auth nobody asks for one.
            if !view.has_quorum() || self.cluster.desired.auth == AuthMode::None {
                return;
            }
            view.healthy.iter().copied().find(open).cloned()
        };
        let Some(name) = asked else { return };
        let Some(links) = self.links(&name) else { return };
        let root = links.etcd.root(credentials).await;
        if let Some(Fact::Seen { value, .. }) = observed.members.get_mut(&name).map(|m| &mut m.etcd) {
            value.root = root;
        }
    }
}

fn machine_fact(found: Result<Option<MachineRecord>, ProviderError>, at: Timestamp) -> Fact<Machine> {
    match found {
        Err(error) => Fact::Unreachable { error: crate::error_chain(&error), since: at },
        Ok(None) => Fact::Absent { at },
        Ok(Some(record)) => {
            let power = match record.power {
                raftsman_providers::Power::Running => Power::Running,
                raftsman_providers::Power::Stopped => Power::Stopped,
            };
            Fact::Seen { value: Machine { power, address: record.address, foreign: false, shape: record.shape }, at }
        }
    }
}

fn carry_over(observed: &mut Observed, before: &Observed) {
    for (name, member) in &mut observed.members {
        let Some(old) = before.members.get(name) else { continue };
        member.machine = member.machine.clone().since_before(Some(&old.machine));
        member.agent = member.agent.clone().since_before(Some(&old.agent));
        member.etcd = member.etcd.clone().since_before(Some(&old.etcd));
    }
}
