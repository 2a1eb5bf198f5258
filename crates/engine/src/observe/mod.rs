//! World → Observed: every machine, agent and member of one cluster, observed concurrently and within time limits.

mod adopted;
mod agent;
mod balancer;
mod catalog;
mod etcd;
mod handshakes;
mod http;
mod limits;
mod maintenance;
mod postgres;
mod probe;
mod users;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use futures::future::{BoxFuture, join_all};
use jiff::Timestamp;
use raftsman_api::tls::TlsError;
use raftsman_core::desired::ClientAccess;
use raftsman_core::observed::{
    Agent, AuthorityRecord, Delivery, EtcdFacts, EtcdObserved, Fact, Handshakes, Ledger, Machine, MachineObserved,
    MemberObserved, Observed, Power, ServiceState, Trust, TrustDomain, View,
};
use raftsman_core::plan::trust::to_be_proven;
use raftsman_core::spec::{AuthMode, Name};
use raftsman_etcd::Endpoint;
use tokio::sync::Mutex;

pub use agent::{AgentCalls, AgentLink, LinkError};
pub use etcd::EtcdLink;
pub(crate) use etcd::members;
pub(crate) use http::get as http_get;
pub(crate) use users::{read as read_access, try_password};

use crate::fleet::RENEW_AFTER;
use crate::machines::Lookup;
use crate::pki::PkiError;
use crate::stack::{ClusterCredentials, StackError, StackHandle};
use crate::store::{Lock, StoreError};

/// Observes one cluster repeatedly, and keeps its connections open in between.
#[derive(Debug)]
pub struct Observer {
    cluster: Arc<StackHandle>,
    /// To the agent of every machine.
    agents: std::sync::Mutex<BTreeMap<Name, Arc<AgentLink>>>,
    /// To etcd of every member, which may still be on another machine than its new one.
    members: std::sync::Mutex<BTreeMap<Name, Arc<EtcdLink>>>,
    /// When the links and the credentials were last renewed, because their certificates expire.
    renewed: std::sync::Mutex<Timestamp>,
    credentials: Mutex<Option<Known>>,
    brought: Mutex<Option<BTreeMap<TrustDomain, AuthorityRecord>>>,
    before: Mutex<Option<Observed>>,
    /// The provider's ids of the machines in the last observation.
    ids: std::sync::Mutex<BTreeMap<Name, String>>,
    maintenance: Mutex<maintenance::Causes>,
    known: Mutex<users::Known>,
    /// Logins of Patroni's, by cluster and machine.
    logins: Mutex<BTreeMap<(Name, Name), postgres::Tried>>,
    compared: Mutex<catalog::Compared>,
    into_data: bool,
}

/// Credentials, and what they were made of: the authorities, and which clients members accept.
#[derive(Debug)]
struct Known {
    of: ([Option<Trust>; 2], ClientAccess),
    credentials: ClusterCredentials,
}

/// What an observation found, before the ledger is updated from it.
struct Looked {
    observed: Observed,
    places: BTreeMap<Name, IpAddr>,
    /// Nothing where etcd cannot be asked.
    credentials: Option<ClusterCredentials>,
}

impl Observer {
    /// An observer without a connection yet.
    pub fn new(cluster: Arc<StackHandle>) -> Result<Self, TlsError> {
        let observer = Self {
            cluster,
            agents: Default::default(),
            members: Default::default(),
            renewed: std::sync::Mutex::new(Timestamp::now()),
            credentials: Mutex::new(None),
            brought: Mutex::new(None),
            before: Mutex::new(None),
            ids: Default::default(),
            maintenance: Mutex::default(),
            known: Mutex::default(),
            logins: Mutex::default(),
            compared: Mutex::default(),
            into_data: false,
        };
        observer.connect()?;
        Ok(observer)
    }

    /// Goes on with another desired state of the same cluster: the file has changed, or addresses were assigned.
    /// Connections to machines that stay where they are stay open.
    pub fn follow(&mut self, cluster: Arc<StackHandle>) -> Result<(), TlsError> {
        self.cluster = cluster;
        // The file may bring others.
        *self.brought.get_mut() = None;
        let (machines, members) = (self.cluster.machines(), self.cluster.places());
        let agents = self.agents.get_mut().unwrap_or_else(PoisonError::into_inner);
        agents.retain(|name, _| machines.contains_key(name));
        let etcds = self.members.get_mut().unwrap_or_else(PoisonError::into_inner);
        etcds.retain(|name, _| members.contains_key(name));
        self.connect()
    }

    fn connect(&self) -> Result<(), TlsError> {
        for (name, address) in self.cluster.machines() {
            self.connect_agent(&name, address)?;
        }
        for (name, address) in self.cluster.places() {
            self.connect_etcd(&name, address);
        }
        Ok(())
    }

    /// An observer that has agents read etcd's data, also while etcd runs.
    pub fn into_data(cluster: Arc<StackHandle>) -> Result<Self, TlsError> {
        Ok(Self { into_data: true, ..Self::new(cluster)? })
    }

    /// The connection to the agent of a machine at this address; an open one is reused.
    fn connect_agent(&self, machine: &Name, address: IpAddr) -> Result<Arc<AgentLink>, TlsError> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = agents.get(machine).filter(|link| link.address() == address) {
            return Ok(Arc::clone(link));
        }
        let new = Arc::new(AgentLink::new(&self.cluster.fleet, machine, address)?);
        agents.insert(machine.clone(), Arc::clone(&new));
        Ok(new)
    }

    /// The connection to a member's etcd at this address; an open one is reused.
    fn connect_etcd(&self, member: &Name, address: IpAddr) -> Arc<EtcdLink> {
        let endpoint = self.cluster.endpoint(member, address);
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = members.get(member).filter(|link| *link.to() == endpoint) {
            return Arc::clone(link);
        }
        let new = Arc::new(EtcdLink::new(endpoint));
        members.insert(member.clone(), Arc::clone(&new));
        new
    }

    /// The observed cluster.
    pub fn cluster(&self) -> &Arc<StackHandle> {
        &self.cluster
    }

    /// The provider's id of the machine in the last observation: a step that was checked against it applies to that
    /// machine only.
    pub fn machine_id(&self, machine: &Name) -> Option<String> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).get(machine).cloned()
    }

    /// The connection to the agent of a machine.
    pub fn agent(&self, machine: &Name) -> Option<Arc<AgentLink>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner).get(machine).cloned()
    }

    /// The connection to a member's etcd.
    pub fn etcd(&self, member: &Name) -> Option<Arc<EtcdLink>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).get(member).cloned()
    }

    /// Our credentials for etcd; none before the cluster has authorities.
    pub async fn credentials(&self, now: Timestamp) -> Result<Option<ClusterCredentials>, StackError> {
        let mut known = self.credentials.lock().await;
        let ledger = self.cluster.ledger();
        let access = self.cluster.desired.etcd.client_access(&ledger);
        let adopted = ledger.etcd.adopted().is_some();
        let of = ([ledger.etcd.peers, ledger.etcd.clients], access);
        if !adopted && of.0.iter().any(Option::is_none) {
            return Ok(None);
        }
        let credentials = match known.as_ref().filter(|known| known.of == of) {
            Some(known) => known.credentials.clone(),
            None => {
                let credentials = self.cluster.credentials(now).await?;
                known.insert(Known { of, credentials }).credentials.clone()
            }
        };
        // Members are added, removed and moved: their addresses are read each time.
        let members = self.cluster.places();
        let members = members.iter().map(|(name, place)| self.cluster.endpoint(name, *place));
        let members: Vec<Endpoint> = members.collect();
        let root = credentials.root.with_members(members.clone());
        let root_before = credentials.root_before.iter().map(|one| one.with_members(members.clone())).collect();
        Ok(Some(ClusterCredentials { root, root_before, ..credentials }))
    }

    /// Renews credentials and links in time: an observer that runs for days outlives its first certificates. Calls
    /// under way keep the links that they have.
    async fn renew(&self, now: Timestamp) -> Result<(), TlsError> {
        {
            let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
            if now.duration_since(*renewed) <= RENEW_AFTER {
                return Ok(());
            }
            *renewed = now;
        }
        *self.credentials.lock().await = None;
        for link in self.members.lock().unwrap_or_else(PoisonError::into_inner).values_mut() {
            *link = Arc::new(EtcdLink::new(link.to().clone()));
        }
        for (name, link) in self.agents.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            *link = Arc::new(AgentLink::new(&self.cluster.fleet, name, link.address())?);
        }
        Ok(())
    }

    /// Authorities that the file brings are read once per run.
    async fn brought(&self) -> Result<BTreeMap<TrustDomain, AuthorityRecord>, StackError> {
        let mut brought = self.brought.lock().await;
        if let Some(brought) = brought.as_ref() {
            return Ok(brought.clone());
        }
        Ok(brought.insert(self.cluster.brought_authorities()?).clone())
    }

    /// Observes everything once, and writes nothing: what was learnt is in the returned ledger. Boxed here, so that it
    /// is compiled once and not again in every caller.
    pub fn look(&self) -> BoxFuture<'_, Result<Observed, StackError>> {
        Box::pin(async move {
            let now = Timestamp::now();
            let mut looked = self.gather(now).await?;
            looked.observed.ledger = {
                let mut ledger = self.cluster.ledger();
                ledger.learn(&self.cluster.desired, &looked.observed, now);
                ledger
            };
            self.retell(&mut looked.observed, &self.cluster.ledger());
            Ok(self.prove(looked, now).await)
        })
    }

    /// The same under the lock: what was learnt is also written to the state, before any step depends on it.
    pub fn look_and_learn<'a>(&'a self, lock: &'a Lock) -> BoxFuture<'a, Result<Observed, StackError>> {
        Box::pin(async move {
            let now = Timestamp::now();
            let mut looked = self.gather(now).await?;
            self.is_new_or_known(&looked.observed)?;
            self.cluster.begin(lock).await?;
            self.cluster.compare(lock).await?;
            let before = self.cluster.ledger();
            self.cluster.remember(lock, |ledger| ledger.learn(&self.cluster.desired, &looked.observed, now)).await?;
            looked.observed.ledger = self.cluster.ledger();
            self.retell(&mut looked.observed, &before);
            Ok(self.prove(looked, now).await)
        })
    }

    /// A ledger is made only where it is certain that there is no machine yet: else it may have been lost.
    fn is_new_or_known(&self, observed: &Observed) -> Result<(), StackError> {
        let unknown = |(name, seen): (&Name, &MachineObserved)| match &seen.machine {
            Fact::Unreachable { error, .. } => Some((name.clone(), error.clone())),
            Fact::Seen { .. } | Fact::Absent { .. } => None,
        };
        match observed.machines.iter().find_map(unknown).filter(|_| !self.cluster.has_ledger()) {
            Some((machine, error)) => {
                Err(StackError::MachineUnknown { cluster: self.cluster.desired.name.clone(), machine, error })
            }
            None => Ok(()),
        }
    }

    /// Marks machines that make scheduled backups for an update after a new history was learnt: their settings were
    /// compared with the ledger from before.
    fn retell(&self, observed: &mut Observed, before: &Ledger) {
        if self.cluster.desired.etcd.backups.is_none() || observed.ledger.etcd.lineage() == before.etcd.lineage() {
            return;
        }
        let EtcdObserved { members, .. } = &observed.etcd;
        for (_, machine) in observed.machines.iter_mut().filter(|(name, _)| members.contains_key(*name)) {
            if let Fact::Seen { value: Agent::Claimed(report), .. } = &mut machine.agent
                && report.backup_settings == Delivery::Current
            {
                report.backup_settings = Delivery::Outdated;
            }
        }
    }

    /// Observes every machine, agent and member, with the ledger as it is.
    async fn gather(&self, now: Timestamp) -> Result<Looked, StackError> {
        self.renew(now).await?;
        let brought = self.brought().await?;
        let credentials = match self.credentials(now).await {
            Ok(Some(credentials)) => Ok(credentials),
            Ok(None) => Err(Fact::Absent { at: now }),
            // The authority has expired: etcd rejects every certificate that it signed, ours included.
            Err(StackError::Pki(error @ PkiError::AuthorityEnded { .. })) => {
                Err(Fact::Unreachable { error: error.to_string(), since: now })
            }
            Err(error) => return Err(error),
        };
        let (places, all) = (self.cluster.places(), self.cluster.machines());
        // Without an address there is no agent to ask; whether the machine exists is known to the provider.
        let unplaced = self.cluster.desired.unplaced_machines().map(|machine| machine.name.clone());
        let unplaced: Vec<Name> = unplaced.filter(|name| !all.contains_key(name)).collect();
        let mut found = self.machines(all.keys().chain(&unplaced).cloned().collect(), now).await;
        let looks = all.iter().map(|(name, address)| {
            let machine = found.remove(name).unwrap_or(Fact::Absent { at: now });
            let member = places.contains_key(name);
            let credentials = credentials.as_ref();
            async move {
                match member {
                    true => {
                        let (machine, etcd) = self.look_at_member(name, *address, machine, credentials, now).await;
                        (machine, Some(etcd))
                    }
                    false => (self.look_at_machine(name, *address, machine, now).await, None),
                }
            }
        });
        let (mut machines, mut members) = (BTreeMap::new(), BTreeMap::new());
        for (name, (machine, member)) in all.keys().zip(join_all(looks).await) {
            machines.insert(name.clone(), machine);
            members.extend(member.map(|member| (name.clone(), member)));
        }
        for name in unplaced {
            let machine = found.remove(&name).unwrap_or(Fact::Absent { at: now });
            machines.insert(name, MachineObserved { machine, agent: Fact::Absent { at: now } });
        }
        // The ledger is made before the first machine: a cluster with machines and no ledger has lost it.
        let ours = |(_, seen): &(&Name, &MachineObserved)| {
            seen.machine.seen().is_some_and(|m| !m.foreign) || seen.report().is_some()
        };
        if !self.cluster.has_ledger()
            && let Some((name, _)) = machines.iter().find(ours)
        {
            let (cluster, trace) = (self.cluster.desired.name.to_string(), format!("machine `{name}`"));
            return Err(StoreError::LedgerMissing { cluster, trace }.into());
        }
        let etcd = EtcdObserved { members, brought, ..EtcdObserved::default() };
        let mut observed = Observed { ledger: self.cluster.ledger(), machines, etcd, postgres: BTreeMap::new() };
        if let Ok(credentials) = &credentials {
            // Raftsman does not manage the superuser and the alarms of an adopted cluster.
            if observed.ledger.etcd.adopted().is_none() {
                self.look_for_root(&mut observed, credentials).await;
                observed.etcd.maintenance = Box::pin(self.look_into_alarms(&observed, credentials)).await;
            }
            self.look_for_users(&mut observed, credentials).await;
        }
        observed.postgres = Box::pin(self.look_for_patroni(&observed, credentials.as_ref().ok(), now)).await;
        Box::pin(self.look_into_catalogs(&mut observed)).await;
        let mut before = self.before.lock().await;
        if let Some(before) = before.as_ref() {
            carry_over(&mut observed, before);
        }
        *before = Some(observed.clone());
        Ok(Looked { observed, places, credentials: credentials.ok() })
    }

    /// Tests handshakes where the next phase of a CA rotation depends on them, and logins where a step beneath PostgreSQL
    /// does, with the ledger as it is now.
    async fn prove(&self, looked: Looked, now: Timestamp) -> Observed {
        let Looked { mut observed, places, credentials } = looked;
        if let Some(credentials) = &credentials {
            observed.etcd.handshakes = self.test_handshakes(&observed, &places, credentials, now).await;
        }
        Box::pin(self.test_logins(&mut observed, now)).await;
        observed
    }

    /// Has members test TLS handshakes, where the next phase of a CA rotation depends on them.
    async fn test_handshakes(
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
        let members = places.keys().filter(|name| observed.report(name).is_some());
        let links = members.filter_map(|name| Some((name, self.agent(name)?, self.etcd(name)?)));
        let tries = links.map(|(name, agent, etcd)| async move {
            let others =
                places.iter().filter(|(other, _)| *other != name).map(|(n, place)| (n.clone(), *place)).collect();
            (name.clone(), handshakes::of_member(&agent, &etcd, &others, sides, credentials).await)
        });
        join_all(tries).await.into_iter().collect()
    }

    /// All machines, requested at once, each connection of the provider by itself. Adopted clusters have
    /// none.
    async fn machines(&self, names: Vec<Name>, now: Timestamp) -> BTreeMap<Name, Fact<Machine>> {
        if self.cluster.ledger().etcd.adopted().is_some() {
            return BTreeMap::new();
        }
        let found = self.cluster.fleet.machine_records(&names).await;
        let id = |found: &Lookup| found.as_ref().ok()?.as_ref()?.id.clone();
        let ids = found.iter().filter_map(|(name, found)| Some((name.clone(), id(found)?))).collect();
        *self.ids.lock().unwrap_or_else(PoisonError::into_inner) = ids;
        found.into_iter().map(|(name, found)| (name, machine_fact(found, now))).collect()
    }

    /// Whether there is an agent to ask at a machine, and where. A provider that does not answer says nothing about the
    /// machine: its agent is asked at its last or desired address.
    fn reach(&self, name: &Name, place: IpAddr, machine: &Fact<Machine>) -> Option<(IpAddr, Power)> {
        match machine {
            Fact::Seen { value, .. } => Some((value.address, value.power)),
            Fact::Unreachable { .. } => Some((self.agent(name).map_or(place, |link| link.address()), Power::Running)),
            Fact::Absent { .. } => None,
        }
    }

    /// With the local provider a stopped machine is one without an agent process: its programs may still run.
    async fn look_at_agent(&self, name: &Name, at: (IpAddr, Power), now: Timestamp) -> Fact<Agent> {
        let (address, power) = at;
        match (power, self.connect_agent(name, address)) {
            (Power::Running, Ok(link)) => link.look(&self.cluster, self.into_data, now).await,
            (Power::Running, Err(error)) => Fact::Unreachable { error: error.to_string(), since: now },
            (Power::Stopped, _) => Fact::Absent { at: now },
        }
    }

    /// A machine that no member runs on.
    async fn look_at_machine(
        &self,
        name: &Name,
        place: IpAddr,
        machine: Fact<Machine>,
        now: Timestamp,
    ) -> MachineObserved {
        let agent = match self.reach(name, place, &machine) {
            Some(at) => self.look_at_agent(name, at, now).await,
            None => Fact::Absent { at: now },
        };
        MachineObserved { machine, agent }
    }

    async fn look_at_member(
        &self,
        name: &Name,
        place: IpAddr,
        machine: Fact<Machine>,
        credentials: Result<&ClusterCredentials, &Fact<EtcdFacts>>,
        now: Timestamp,
    ) -> (MachineObserved, MemberObserved) {
        if self.cluster.ledger().etcd.adopted().is_some() {
            return self.watch(name, place, credentials.ok(), now).await;
        }
        let Some(at) = self.reach(name, place, &machine) else {
            let silent = MemberObserved { etcd: Fact::Absent { at: now }, problem: None };
            return (MachineObserved { agent: Fact::Absent { at: now }, machine }, silent);
        };
        let link = self.connect_etcd(name, place);
        let etcd = async {
            match credentials {
                Ok(credentials) => Box::pin(link.look(credentials, now)).await,
                Err(fact) => (fact.clone(), None),
            }
        };
        let (agent, (etcd, problem)) = tokio::join!(self.look_at_agent(name, at, now), etcd);
        let machine = MachineObserved { machine, agent };
        let stopped = machine.report().is_some_and(|r| r.etcd.service.state == ServiceState::Stopped);
        let etcd = match etcd {
            // Nothing listens, and the agent reports etcd as stopped.
            Fact::Unreachable { .. } if stopped => Fact::Absent { at: now },
            etcd => etcd,
        };
        (machine, MemberObserved { etcd, problem })
    }

    /// Asks one healthy member for the superuser: the question costs a round through the Raft log, so one is enough.
    async fn look_for_root(&self, observed: &mut Observed, credentials: &ClusterCredentials) {
        let asked = {
            let view = View::of(observed);
            let open = |name: &&Name| view.answering.get(*name).is_some_and(|e| e.auth == Some(false));
            // Without auth no superuser is needed.
            if !view.has_quorum() || self.cluster.desired.etcd.auth == AuthMode::None {
                return;
            }
            view.healthy.iter().copied().find(open).cloned()
        };
        let Some(name) = asked else { return };
        let Some(link) = self.etcd(&name) else { return };
        let root = link.root(credentials).await;
        if let Some(Fact::Seen { value, .. }) = observed.etcd.members.get_mut(&name).map(|m| &mut m.etcd) {
            value.root = root;
        }
    }
}

fn machine_fact(found: Lookup, at: Timestamp) -> Fact<Machine> {
    match found {
        Err(error) => Fact::Unreachable { error, since: at },
        Ok(None) => Fact::Absent { at },
        Ok(Some(record)) => {
            let power = match record.power {
                raftsman_providers::Power::Running => Power::Running,
                raftsman_providers::Power::Stopped => Power::Stopped,
            };
            let raftsman_providers::MachineRecord { address, shape, zone, .. } = record;
            Fact::Seen { value: Machine { power, address, foreign: false, shape, zone }, at }
        }
    }
}

fn carry_over(observed: &mut Observed, before: &Observed) {
    for (name, seen) in &mut observed.machines {
        let Some(old) = before.machines.get(name) else { continue };
        seen.machine = seen.machine.clone().since_before(Some(&old.machine));
        seen.agent = seen.agent.clone().since_before(Some(&old.agent));
    }
    for (name, member) in &mut observed.etcd.members {
        let Some(old) = before.etcd.members.get(name) else { continue };
        member.etcd = member.etcd.clone().since_before(Some(&old.etcd));
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::fleet::{Context, Fleet};
    use crate::store::fixture;

    fn context(dir: &std::path::Path) -> Context {
        Context {
            file: dir.parent().unwrap().join("raftsman.yaml"),
            agent: "/none".into(),
            registry: dir.join("none"),
            identity: None,
            passphrase: None,
            ask_passphrase: None,
            user: "alice".to_owned(),
            host: "desk".to_owned(),
            examined: Default::default(),
        }
    }

    #[tokio::test]
    async fn a_machine_of_a_balancer_has_an_agent_to_ask_and_no_etcd() {
        let (_scratch, dir) = fixture::of_format_2();
        let file = "fleet: lab\nstate: state\nmachines: { provider: local }\netcd: { main: { members: 1, version: 3.6.15 } }\n\
                    balancers: { front: { etcd: main, instances: 2 } }\n";
        let spec = raftsman_core::spec::read(file).spec.expect("a valid file");
        let fleet = Fleet::open(spec, context(&dir), Timestamp::now()).await.unwrap();
        let cluster = StackHandle::open(&fleet, &fleet.desired.stacks[0]).await.unwrap();
        let machines: Vec<String> = cluster.machines().keys().map(ToString::to_string).collect();
        assert_eq!(machines, ["front-1", "front-2", "main-1"]);
        assert_eq!(cluster.places().len(), 1, "fences, backups and handshakes concern members");
        let observer = Observer::new(Arc::new(cluster)).unwrap();
        let linked = |name: &str| {
            let name = Name::parse(name).unwrap();
            (observer.agent(&name).is_some(), observer.etcd(&name).is_some())
        };
        assert_eq!((linked("main-1"), linked("front-1")), ((true, true), (true, false)));
    }

    #[tokio::test]
    async fn a_changed_file_is_followed_without_new_connections_to_what_stays() {
        let (_scratch, dir) = fixture::of_format_2();
        let handle = async |rest: &str| {
            let file = format!("fleet: lab\nstate: state\nmachines: {{ provider: local }}\netcd: {{ main: {rest}\n");
            let spec = raftsman_core::spec::read(&file).spec.expect("a valid file");
            let fleet = Fleet::open(spec, context(&dir), Timestamp::now()).await.unwrap();
            Arc::new(StackHandle::open(&fleet, &fleet.desired.stacks[0]).await.unwrap())
        };
        let before = "{ members: 1, version: 3.6.15 } }\nbalancers: { front: { etcd: main, instances: 1 } }";
        let mut observer = Observer::new(handle(before).await).unwrap();
        let [stays, goes, comes] = ["main-1", "front-1", "main-2"].map(|name| Name::parse(name).unwrap());
        let (agent, etcd) = (observer.agent(&stays).unwrap(), observer.etcd(&stays).unwrap());
        assert!(observer.agent(&goes).is_some() && observer.agent(&comes).is_none());
        observer.follow(handle("{ members: 2, version: 3.6.15 } }").await).unwrap();
        assert!(Arc::ptr_eq(&agent, &observer.agent(&stays).unwrap()));
        assert!(Arc::ptr_eq(&etcd, &observer.etcd(&stays).unwrap()));
        assert!(observer.agent(&goes).is_none());
        assert!(observer.agent(&comes).is_some() && observer.etcd(&comes).is_some());
        assert_eq!(observer.cluster().desired.etcd.members.len(), 2);
    }

    #[tokio::test]
    async fn an_observer_that_lives_for_days_renews_its_certificates_and_keeps_them_until_then() {
        let (_scratch, dir) = fixture::of_format_2();
        let file = "fleet: lab\nstate: state\nmachines: { provider: local }\netcd: { main: { members: 1, version: 3.6.15 } }\n";
        let spec = raftsman_core::spec::read(file).spec.expect("a valid file");
        let begun = Timestamp::now();
        let fleet = Fleet::open(spec, context(&dir), begun).await.unwrap();
        let cluster = StackHandle::open(&fleet, &fleet.desired.stacks[0]).await.unwrap();
        let observer = Observer::new(Arc::new(cluster)).unwrap();
        let name = fleet.desired.stacks[0].etcd.members[0].name.clone();
        let link = || observer.agent(&name).unwrap();
        observer.credentials(begun).await.unwrap().expect("it has authorities");
        let first = link();
        observer.renew(begun + SignedDuration::from_hours(11)).await.unwrap();
        assert!(Arc::ptr_eq(&first, &link()) && observer.credentials.lock().await.is_some());
        observer.renew(begun + SignedDuration::from_hours(13)).await.unwrap();
        assert!(!Arc::ptr_eq(&first, &link()) && observer.credentials.lock().await.is_none());
        let again = link();
        observer.renew(begun + SignedDuration::from_hours(14)).await.unwrap();
        assert!(Arc::ptr_eq(&again, &link()), "not again before it is time");
    }
}
