//! A simulated world: every action has its predicted effect on it. The forecast runs on it, and so do the simulations.

mod agents;
mod auth;
mod backup;
mod balancer;
mod effects;
mod etcd;
mod forecast;
mod look;
mod machines;
mod maintenance;
mod members;
mod pki;
mod postgres;
mod preflight;
mod recovery;
mod restore;
mod trust;
mod users;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use jiff::Timestamp;

pub use balancer::{BalancerModel, Vrrp, VrrpState};
pub use effects::Impossible;
pub use forecast::{Forecast, Wave, forecast};
pub use maintenance::Stored;
pub use postgres::{
    ClusterModel, KeysModel, Known, NodeModel, PatroniProcess, PatroniStore, PostgresModel, Reachable, Server, Work,
};
pub use preflight::Latency;

use crate::desired::{Stack, address_of};
use crate::observed::{
    Access, AccessProbe, Agent, AgentProgram, Alarm, AuthorityRecord, CertificateFacts, ClusterId, Data, Delivery,
    Disk, EtcdFacts, Ledger, ListedMember, MemberId, Observed, PortTaken, Power, Purpose, Root, ServiceState,
    TrustDomain,
};
use crate::spec::{EtcdVersion, Name, Shape};
use crate::versions::{Line, REQUESTS_OF_TODAY};

/// One cluster and its machines: the ground truth.
#[derive(Debug, Clone)]
pub struct World {
    /// The clock of the world.
    pub now: Timestamp,
    /// The state's memory.
    pub ledger: Ledger,
    /// The machines, by name: the desired ones and any other.
    pub machines: BTreeMap<Name, MachineModel>,
    /// What the clusters have agreed upon, by id: it outlives any process.
    pub agreed: BTreeMap<ClusterId, Agreed>,
    /// What is true of each PostgreSQL cluster, by name.
    pub postgres: BTreeMap<Name, ClusterModel>,
    /// Patroni's keys in the backup of etcd that a restore takes; nothing where it has all that was written.
    pub backed_up: Option<PatroniStore>,
    /// The member that leads for as long as it answers; none while that is left to the model.
    pub leads: Option<MemberId>,
    /// Counts machines, so that each has its own incarnation.
    pub made: u64,
    /// Counts addresses that the provider assigned: none of them is assigned twice.
    pub assigned: u32,
    /// The authorities that the file brings.
    pub brought: BTreeMap<TrustDomain, AuthorityRecord>,
    /// Digests of configurations of etcd with which it accepts no client but raftsman, where PostgreSQL is to stand on it.
    pub closed: BTreeSet<String>,
    /// Every trust that was ever stored anywhere: its digest, and the keys of those that it trusts.
    pub bundles: BTreeMap<String, BTreeSet<String>>,
    /// What disks and network take.
    pub latency: Latency,
    /// An adopted cluster, as it was seen: only its roles and users change.
    pub watched: Option<Observed>,
}

/// One machine: the ground truth.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineModel {
    /// Whether it exists.
    pub exists: bool,
    /// Whether it runs.
    pub power: Power,
    /// Whether its agent answers.
    pub agent_up: bool,
    /// Whether its agent has a certificate of the fleet.
    pub claimed: bool,
    /// Which machine of this name it is.
    pub incarnation: String,
    /// Where it is reached.
    pub address: IpAddr,
    /// Its clock less ours.
    pub clock_offset_ms: i64,
    /// Room on its disk.
    pub disk: Disk,
    /// What it is made of.
    pub shape: Option<Shape>,
    /// The zone that it is in.
    pub zone: Option<Name>,
    /// Digest of its firewall's rules.
    pub firewall: Option<String>,
    /// Digest of which clients its agent accepts.
    pub access: Option<String>,
    /// Its agent's own certificate, where that is of interest.
    pub agent_certificate: Option<CertificateFacts>,
    /// Its agent's version.
    pub agent_version: String,
    /// Its agent's program; none where that is too old to be upgraded by a call.
    pub program: Option<AgentProgram>,
    /// Digests of programs that do not run on it.
    pub reverts: BTreeSet<String>,
    /// Whether it has the secrets that the file refers to.
    pub delivery: Delivery,
    /// Whether it has the backup settings of the file.
    pub backup_settings: Delivery,
    /// Installed versions.
    pub installed: BTreeSet<EtcdVersion>,
    /// Certificates.
    pub certificates: BTreeMap<Purpose, CertificateFacts>,
    /// Digest of the configuration file.
    pub config: Option<String>,
    /// The texts of configurations that were seen, by digest.
    pub texts: BTreeMap<String, String>,
    /// The address in it.
    pub config_address: Option<IpAddr>,
    /// The data directory.
    pub data: Data,
    /// Whether there ever was data.
    pub had_data: bool,
    /// The version that etcd was last started with.
    pub last_version: Option<EtcdVersion>,
    /// The process.
    pub process: Process,
    /// Ports that other processes hold.
    pub ports_taken: Vec<PortTaken>,
    /// Size of its database file.
    pub db_size: i64,
    /// The quota of its configuration.
    pub quota: i64,
    /// Whether its data is not that of the others.
    pub corrupt: bool,
    /// The instance of a balancer on it.
    pub balancer: BalancerModel,
    /// The node of a PostgreSQL cluster on it.
    pub postgres: PostgresModel,
}

/// etcd's process on a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// Whether it runs.
    pub state: ServiceState,
    /// What it was started with.
    pub config: Option<String>,
    /// What it was started with.
    pub version: Option<EtcdVersion>,
    /// How often it ended by itself.
    pub restarts: u32,
    /// Observations that must pass before it answers: a real process takes time to start.
    pub warm_up: u32,
    /// The address in what it was started with.
    pub address: Option<IpAddr>,
    /// The quota that it was started with.
    pub quota: i64,
    /// Digests of the trust that it has read, as far as its agent knows.
    pub trust: BTreeMap<Purpose, String>,
    /// Digests of the trust that it has really read, where its agent reports it wrongly.
    pub read: BTreeMap<Purpose, String>,
    /// Members that it is connected with: a connection outlives the certificates that it was made with.
    pub connected: BTreeSet<MemberId>,
}

/// What a cluster has agreed upon.
#[derive(Debug, Clone, PartialEq)]
pub struct Agreed {
    /// Its members.
    pub members: Vec<ListedMember>,
    /// Its superuser.
    pub root: Root,
    /// Whether auth is on.
    pub auth: bool,
    /// Whether it ever had a leader.
    pub formed: bool,
    /// Alarms.
    pub alarms: Vec<Alarm>,
    /// Whether unauthenticated clients are rejected.
    pub probe: AccessProbe,
    /// What its members hold.
    pub stored: Stored,
    /// Its roles and users.
    pub access: Access,
    /// The line that the data is written for: the lowest of all members' once all of them answer.
    pub line: Option<Line>,
    /// The line that a downgrade is enabled to.
    pub downgrade: Option<Line>,
    /// Whether the members' logs hold requests from before [`REQUESTS_OF_TODAY`].
    pub old_requests: bool,
    /// What PostgreSQL clusters keep in it.
    pub patroni: PatroniStore,
}

impl MachineModel {
    /// A machine that does not exist.
    pub fn none() -> Self {
        Self {
            exists: false,
            power: Power::Stopped,
            agent_up: false,
            claimed: false,
            incarnation: String::new(),
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            clock_offset_ms: 0,
            disk: Disk { free: 1 << 34, total: 1 << 35 },
            shape: None,
            zone: None,
            firewall: None,
            access: None,
            agent_certificate: None,
            agent_version: "model".to_owned(),
            program: None,
            reverts: BTreeSet::new(),
            delivery: Delivery::Current,
            backup_settings: Delivery::Current,
            installed: BTreeSet::new(),
            certificates: BTreeMap::new(),
            config: None,
            texts: BTreeMap::new(),
            config_address: None,
            data: Data::Empty,
            had_data: false,
            last_version: None,
            process: Process::none(),
            ports_taken: Vec::new(),
            db_size: 0,
            quota: 0,
            corrupt: false,
            balancer: BalancerModel::default(),
            postgres: PostgresModel::default(),
        }
    }

    /// Whether its etcd runs and has finished starting. On this computer a machine counts as stopped when its agent is
    /// gone, and etcd may well run on.
    fn answers(&self) -> bool {
        self.exists && self.process.state == ServiceState::Running && self.process.warm_up == 0
    }

    /// Digests of the trust that etcd would read if it were started now.
    fn trust_on_disk(&self) -> BTreeMap<Purpose, String> {
        self.certificates.iter().filter_map(|(purpose, c)| Some((*purpose, c.trust.clone()?))).collect()
    }

    fn cluster(&self) -> Option<ClusterId> {
        match self.data {
            Data::Present { cluster, .. } => Some(cluster),
            Data::Empty | Data::Unreadable { .. } => None,
        }
    }

    fn member(&self) -> Option<MemberId> {
        match self.data {
            Data::Present { member, .. } => Some(member),
            Data::Empty | Data::Unreadable { .. } => None,
        }
    }
}

impl Process {
    /// No process.
    pub fn none() -> Self {
        Self {
            state: ServiceState::Stopped,
            config: None,
            version: None,
            restarts: 0,
            warm_up: 0,
            address: None,
            quota: 0,
            trust: BTreeMap::new(),
            read: BTreeMap::new(),
            connected: BTreeSet::new(),
        }
    }
}

impl World {
    /// A world in which nothing exists yet.
    pub fn empty(desired: &Stack, now: Timestamp) -> Self {
        let machines = desired.all_machines().map(|name| (name.clone(), MachineModel::none())).collect();
        Self {
            now,
            ledger: Ledger::default(),
            machines,
            agreed: BTreeMap::new(),
            postgres: BTreeMap::new(),
            backed_up: None,
            leads: None,
            made: 0,
            assigned: 0,
            brought: BTreeMap::new(),
            closed: BTreeSet::new(),
            bundles: BTreeMap::new(),
            latency: Latency::USUAL,
            watched: None,
        }
    }

    /// The world that an observation shows. What could not be reached is modelled as it must be for nothing to be done
    /// to it: it is marked unreachable again at every observation.
    pub fn from_observed(desired: &Stack, observed: &Observed, now: Timestamp) -> Self {
        let mut world = Self::empty(desired, now);
        world.ledger = observed.ledger.clone();
        world.brought.clone_from(&observed.etcd.brought);
        world.note_bundles();
        if observed.ledger.etcd.adopted().is_some() {
            world.watched = Some(observed.clone());
            return world;
        }
        for (name, seen) in &observed.machines {
            let answer = observed.answer(name);
            let machine = world.machines.entry(name.clone()).or_insert_with(MachineModel::none);
            if let Some(m) = seen.machine.seen() {
                machine.exists = true;
                machine.power = m.power;
                machine.address = m.address;
                machine.shape.clone_from(&m.shape);
                machine.incarnation = format!("seen-{name}");
            } else if seen.agent.seen().is_some() || answer.is_some() {
                // Its provider cannot be asked, but what runs on it answers.
                machine.exists = true;
                machine.power = Power::Running;
                let known = observed.ledger.etcd.members.get(name).and_then(|url| address_of(url));
                let address = known.or_else(|| desired.machine_address(name));
                machine.address = address.unwrap_or(machine.address);
                machine.incarnation = format!("seen-{name}");
            }
            machine.agent_up = seen.agent.seen().is_some();
            if let Some(Agent::Claimed(report)) = seen.agent.seen() {
                let etcd = &report.etcd;
                machine.balancer = BalancerModel::of(desired, name, report.balancer.as_ref());
                machine.claimed = true;
                machine.incarnation.clone_from(&report.incarnation);
                machine.clock_offset_ms = report.clock_offset_ms;
                machine.disk = report.disk;
                machine.firewall.clone_from(&report.firewall);
                machine.access.clone_from(&report.access);
                machine.agent_certificate.clone_from(&report.certificate);
                machine.agent_version.clone_from(&report.version);
                machine.program.clone_from(&report.program);
                machine.delivery.clone_from(&report.delivery);
                machine.backup_settings.clone_from(&report.backup_settings);
                machine.installed = etcd.installed.keys().copied().collect();
                machine.certificates.clone_from(&etcd.certificates);
                machine.config.clone_from(&etcd.config);
                let texts = [(&etcd.config, &etcd.config_text), (&etcd.running_config, &etcd.running_config_text)];
                machine.texts = texts.into_iter().filter_map(|(d, t)| Some((d.clone()?, t.clone()?))).collect();
                machine.config_address = observed.ledger.etcd.members.get(name).and_then(|url| address_of(url));
                machine.data = etcd.data.clone();
                machine.had_data = etcd.had_data;
                machine.last_version = etcd.last_version;
                machine.ports_taken.clone_from(&etcd.ports_taken);
                machine.process = Process {
                    state: etcd.service.state,
                    config: etcd.running_config.clone(),
                    version: etcd.running_version.or(etcd.last_version),
                    restarts: etcd.service.restarts,
                    warm_up: 0,
                    address: observed.ledger.etcd.members.get(name).and_then(|url| address_of(url)),
                    quota: 0,
                    trust: etcd.running_trust.clone(),
                    ..Process::none()
                };
            }
            if let Some(etcd) = answer {
                world.adopt(etcd);
                world.adopt_size(desired, name, observed, etcd);
            }
        }
        world.trust_the_silent(desired, observed);
        world.connect_the_healthy(observed);
        world.adopt_postgres(desired, observed);
        world
    }

    /// A stopped machine cannot be asked, nor one whose agent is silent while its etcd answers. It is assumed
    /// unchanged: a machine that etcd was started on has etcd's data.
    fn trust_the_silent(&mut self, desired: &Stack, observed: &Observed) {
        let others = observed.answers().map(|(_, etcd)| etcd);
        let timers = desired.etcd.timers(&observed.ledger).unwrap_or_default();
        let access = desired.etcd.client_access(&observed.ledger);
        let assumed = others.map(|e| e.version).min().unwrap_or(desired.etcd.version);
        for (name, incarnation) in &observed.ledger.etcd.started {
            let (Some(seen), Some(member)) = (observed.machines.get(name), desired.etcd.member(name)) else { continue };
            let answer = observed.answer(name);
            let answers = answer.is_some();
            let stopped = answers || seen.machine.seen().is_some_and(|m| m.power == Power::Stopped);
            if seen.agent.seen().is_some() || !stopped {
                continue;
            }
            let data = match answer {
                Some(etcd) => Data::Present { member: etcd.member, cluster: etcd.cluster },
                None => self.bootstrap_data(desired, name, observed.ledger.etcd.cluster),
            };
            let version = answer.map_or(assumed, |e| e.version);
            let running = if answers { ServiceState::Running } else { ServiceState::Stopped };
            let signed = |purpose| Some((purpose, self.certificate(desired, name, purpose, None).ok()?));
            let certificates = Purpose::ALL.into_iter().filter_map(signed).collect();
            if let Some(machine) = self.machines.get_mut(name) {
                machine.claimed = true;
                machine.incarnation.clone_from(incarnation);
                machine.installed = BTreeSet::from([version]);
                machine.last_version = Some(version);
                machine.certificates = certificates;
                machine.config = Some(desired.etcd.config(member, version, timers, access).digest.clone());
                machine.config_address = observed.ledger.etcd.members.get(name).and_then(|url| address_of(url));
                machine.data = data;
                machine.had_data = true;
                machine.process = Process {
                    state: running,
                    config: machine.config.clone(),
                    version: Some(version),
                    address: machine.config_address,
                    trust: machine.trust_on_disk(),
                    ..Process::none()
                };
            }
            self.remembered(desired);
        }
    }

    fn adopt(&mut self, etcd: &EtcdFacts) {
        let shut = crate::observed::ProbeOutcome::Denied;
        self.leads = etcd.leader.or(self.leads);
        let agreed = self.agreed.entry(etcd.cluster).or_insert_with(|| Agreed {
            members: etcd.members.clone(),
            root: etcd.root,
            auth: etcd.auth.unwrap_or(false),
            formed: etcd.leader.is_some(),
            alarms: etcd.alarms.clone(),
            probe: AccessProbe { anonymous: shut.clone(), plaintext: shut.clone(), foreign: shut },
            stored: Agreed::UNSEEN,
            access: Access::default(),
            line: None,
            downgrade: None,
            old_requests: self.ledger.etcd.log_renewed.as_ref().is_some_and(|renewed| {
                etcd.members.is_empty() || etcd.members.iter().any(|m| !renewed.contains(&m.id))
            }),
            patroni: PatroniStore::default(),
        });
        if let Some(Ok(access)) = &etcd.access {
            agreed.access = access.clone();
        }
        agreed.formed |= etcd.leader.is_some();
        agreed.auth |= etcd.auth.unwrap_or(false);
        match etcd.root {
            root @ (Root::Ready | Root::Outdated) => agreed.root = root,
            Root::Missing | Root::Unknown => {}
        }
        if let Some(probe) = &etcd.probe {
            agreed.probe = probe.clone();
        }
        agreed.line = agreed.line.max(etcd.storage_version.map(Line::of));
        agreed.downgrade = agreed.downgrade.or(etcd.downgrade.map(Line::of));
        if agreed.members.is_empty() {
            agreed.members.clone_from(&etcd.members);
        }
    }

    /// Whether this machine's etcd answers as a member: a removed member's process exits by itself.
    fn is_heard(&self, machine: &MachineModel) -> bool {
        let agreed = machine.cluster().and_then(|c| self.agreed.get(&c));
        let listed = |agreed: &Agreed| agreed.members.iter().any(|m| Some(m.id) == machine.member());
        machine.answers() && agreed.is_none_or(|agreed| !agreed.formed || listed(agreed))
    }

    /// Whether it serves at the address that the state has for it: the other members connect to no other.
    fn is_in_place(&self, name: &Name, machine: &MachineModel) -> bool {
        let place = self.ledger.etcd.members.get(name).and_then(|url| address_of(url));
        place.is_none_or(|place| machine.process.address.is_none_or(|address| address == place))
    }

    /// Voters of this cluster that answer at the addresses that the other members use, and are connected to the leader
    /// or to a member that could lead.
    pub fn voters_answering(&self, cluster: ClusterId) -> impl Iterator<Item = MemberId> {
        self.following(cluster).1.into_iter()
    }

    /// Whether a majority of the cluster's voters answers.
    pub fn has_quorum(&self, cluster: ClusterId) -> bool {
        self.agreed.get(&cluster).is_some_and(|agreed| {
            let voters = agreed.members.iter().filter(|m| !m.learner).count();
            self.voters_answering(cluster).count() >= crate::observed::quorum(voters)
        })
    }

    /// The leader: the one that was seen to lead, else the first member that most are in touch with.
    pub fn leader(&self, cluster: ClusterId) -> Option<MemberId> {
        if !self.has_quorum(cluster) {
            return None;
        }
        self.following(cluster).0
    }

    /// Advances what processes do by themselves: start up, elect a leader, be restarted by their agent.
    pub fn pass_time(&mut self) {
        self.drop_connections();
        let names: BTreeMap<MemberId, String> =
            self.machines.iter().filter_map(|(name, m)| m.member().map(|id| (id, name.to_string()))).collect();
        for machine in self.machines.values_mut().filter(|m| m.exists) {
            machine.balancer.pass_time(machine.agent_up);
            let agreed = machine.cluster().and_then(|id| self.agreed.get_mut(&id));
            if let (Some(agreed), Some(id)) = (agreed.filter(|a| a.formed), machine.member()) {
                match agreed.members.iter_mut().find(|m| m.id == id) {
                    // It exits as soon as it learns that it was removed, however often it is started.
                    None if machine.process.state == ServiceState::Running => {
                        machine.process.state = ServiceState::Backoff;
                        machine.process.restarts += 1;
                        continue;
                    }
                    None => continue,
                    Some(listed) if machine.process.state == ServiceState::Running => {
                        if let Some(name) = names.get(&id) {
                            listed.name.clone_from(name);
                        }
                    }
                    Some(_) => {}
                }
            }
            match machine.process.state {
                ServiceState::Running => {
                    machine.process.warm_up = machine.process.warm_up.saturating_sub(1);
                    // Agents reset the count after a while without a crash.
                    machine.process.restarts = 0;
                    machine.had_data |= matches!(machine.data, Data::Present { .. });
                }
                ServiceState::Backoff if machine.agent_up && machine.data != Data::Empty => {
                    let agreed = machine.cluster().and_then(|id| self.agreed.get(&id));
                    if !agreed.is_none_or(|agreed| agreed.starts(machine.process.version)) {
                        machine.process.restarts += 1;
                        continue;
                    }
                    machine.process.state = ServiceState::Running;
                    machine.process.config.clone_from(&machine.config);
                    machine.process.address = machine.config_address;
                    machine.process.quota = machine.quota;
                    machine.process.trust = machine.trust_on_disk();
                    machine.process.read.clear();
                    machine.process.connected.clear();
                }
                ServiceState::Backoff | ServiceState::Stopped => {}
            }
        }
        balancer::elect(&mut self.machines);
        self.connect();
        maintenance::grow(&mut self.machines, &mut self.agreed);
        let formed: Vec<ClusterId> = self.agreed.keys().copied().filter(|id| self.has_quorum(*id)).collect();
        for id in formed {
            let lines = self.lines(id);
            if let Some(agreed) = self.agreed.get_mut(&id) {
                agreed.formed = true;
                agreed.settle(&lines);
            }
        }
        self.pass_time_of_postgres();
    }

    /// The lines of all members; nothing while one of them does not answer.
    fn lines(&self, cluster: ClusterId) -> Vec<Line> {
        let members = self.agreed.get(&cluster).into_iter().flat_map(|agreed| &agreed.members);
        let answering = |id| self.machines.values().find(|m| m.answers() && m.member() == Some(id));
        let lines = members.map(|m| answering(m.id).and_then(|m| m.process.version).map(Line::of));
        lines.collect::<Option<Vec<Line>>>().unwrap_or_default()
    }
}

impl Agreed {
    /// As etcd's leader does every few seconds: up when all members are, down when a downgrade is enabled, which ends
    /// when all members are down.
    fn settle(&mut self, lines: &[Line]) {
        let lowest = lines.iter().min().copied();
        self.old_requests |= lowest.is_some_and(|line| line < REQUESTS_OF_TODAY);
        match self.downgrade {
            Some(target) => {
                // All members write a snapshot of their logs.
                if self.line > Some(target) && lowest >= Some(REQUESTS_OF_TODAY) {
                    self.old_requests = false;
                }
                self.line = Some(target);
                self.downgrade = self.downgrade.filter(|_| lines.is_empty() || lines.iter().any(|l| *l != target));
            }
            None => self.line = self.line.max(lowest),
        }
    }
}

impl Agreed {
    /// Whether etcd of this version starts on the data of the cluster; else it exits at once.
    fn starts(&self, version: Option<EtcdVersion>) -> bool {
        let Some(line) = version.map(Line::of) else { return true };
        self.line.is_none_or(|cluster| line.fits(cluster)) && !(self.old_requests && line > REQUESTS_OF_TODAY)
    }
}
