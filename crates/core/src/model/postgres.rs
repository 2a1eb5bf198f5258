//! A step on a node of a PostgreSQL cluster, on the simulated world → which node takes writes, and what each one has.

#![warn(clippy::wildcard_enum_match_arm)]

mod catalog;
mod contact;
mod keys;
mod look;
mod rounds;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;

pub use contact::Reachable;
pub use keys::{KeysModel, PatroniStore};

use super::effects::{Impossible, later, no_quorum};
use super::{MachineModel, World};
use crate::action::{PgStart, PostgresAction};
use crate::desired::{Stack, UserSlot};
use crate::observed::{
    Catalog, CertificateFacts, NodePurpose, NodeRole, PatroniFile, PgData, ServiceState, SystemId, Trust,
};
use crate::spec::postgres::NodeTags;
use crate::spec::{Name, PatroniVersion, PostgresVersion};

use keys::{Parameters, Settings};

/// The minor version that a source has at first, where the file demands none.
const MINOR: u32 = 11;

/// PostgreSQL and Patroni on one machine: the ground truth.
#[derive(Debug, Clone, PartialEq)]
pub struct PostgresModel {
    /// Which node it is, by the file that was written last.
    pub node: Option<NodeModel>,
    /// Installed versions of Patroni.
    pub patroni: BTreeSet<PatroniVersion>,
    /// Patroni's file.
    pub written: Option<PatroniFile>,
    /// Digest of the CA certificates on the disk: they are read anew for each connection.
    pub trust: Option<String>,
    /// Its certificates.
    pub certificates: BTreeMap<NodePurpose, CertificateFacts>,
    /// PostgreSQL's data, up to the last change that it has.
    pub data: PgData,
    /// Whether there ever was data.
    pub had_data: bool,
    /// Whether Patroni runs.
    pub service: ServiceState,
    /// The version of Patroni that was started last.
    pub last_version: Option<PatroniVersion>,
    /// How often Patroni ended by itself.
    pub restarts: u32,
    /// The running Patroni.
    pub process: Option<PatroniProcess>,
    /// The running PostgreSQL: it outlives a Patroni that is killed.
    pub server: Option<Server>,
    /// The standbys that commits on this node wait for, as Patroni has told PostgreSQL; where it names none, any.
    pub synchronous: BTreeSet<String>,
    /// For so many of them.
    pub waits_for: u32,
    /// The minor version of PostgreSQL's programs on the disk.
    pub minor: u32,
    /// Its packets to etcd are lost.
    pub cut_from_etcd: bool,
    /// Its packets to the other nodes are lost.
    pub cut_from_nodes: bool,
    /// Patroni's REST interface does not answer.
    pub rest_silent: bool,
}

/// Which node a machine is.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeModel {
    /// Its PostgreSQL cluster.
    pub cluster: Name,
    /// Its name among Patroni's.
    pub name: String,
    /// Patroni's tags of it.
    pub tags: NodeTags,
    /// The cluster's keys in etcd are below this.
    pub prefix: String,
    /// The names of the users of etcd.
    pub users: BTreeMap<UserSlot, String>,
    /// The settings that a cluster is made with.
    pub settings: Arc<Settings>,
    /// PostgreSQL's version on its disk.
    pub version: PostgresVersion,
}

/// A running Patroni.
#[derive(Debug, Clone, PartialEq)]
pub struct PatroniProcess {
    /// Its version.
    pub version: PatroniVersion,
    /// The file that it has taken up, at its start or by a reload.
    pub taken_up: PatroniFile,
    /// The fingerprints of the certificates that it and its PostgreSQL have taken up then.
    pub presented: BTreeMap<NodePurpose, String>,
    /// The members of etcd that it was started with.
    pub started_with: BTreeSet<SocketAddr>,
    /// The members of etcd, as it last read their list.
    pub cached: BTreeSet<SocketAddr>,
    /// When that was.
    pub cached_at: Timestamp,
    /// The member of etcd that it has a connection and a watch at.
    pub connection: Option<Name>,
    /// Whether it was ever let in by etcd: its REST interface does not answer before.
    pub logged_in: bool,
    /// When it last read its keys, were it only out of its watch.
    pub dcs_seen: Timestamp,
    /// When a request of its own last succeeded.
    pub written_at: Timestamp,
    /// What it knows of its keys.
    pub known: Known,
    /// It is the primary by the consent of all other nodes, without etcd.
    pub failsafe: bool,
    /// When a primary without etcd last told it so.
    pub told_at: Option<Timestamp>,
    /// What it does to its data, and for how many rounds still.
    pub work: Option<(Work, u32)>,
}

/// What a running Patroni knows of its keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Known {
    /// The settings of the whole cluster.
    pub settings: Arc<Settings>,
    /// The nodes that have to agree where etcd is lost.
    pub failsafe: BTreeSet<String>,
    /// The node with the lease.
    pub leader: Option<String>,
}

/// What Patroni does to a node's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// It copies it from the primary.
    Copying,
    /// It takes back what the primary never had.
    Rewinding,
}

/// A running PostgreSQL.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// Primary or replica.
    pub role: NodeRole,
    /// Rounds until it is up.
    pub starting: u32,
    /// Whether it receives changes as they are made.
    pub streaming: bool,
    /// The parameters that it was started with, of those that only a start changes.
    pub parameters: Parameters,
    /// The minor version of the programs that it was started from.
    pub minor: u32,
}

/// What is true of a PostgreSQL cluster, wherever it is kept.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterModel {
    /// The timeline of the last commit that was acknowledged to a client.
    pub timeline: u32,
    /// The position of that commit.
    pub acknowledged: u64,
    /// How often Patroni demoted a primary.
    pub demotions: u32,
    /// Its roles and databases.
    pub catalog: Catalog,
    /// How a node was promoted that lacked an acknowledged commit.
    pub lost: Option<String>,
}

impl Default for PostgresModel {
    fn default() -> Self {
        Self {
            node: None,
            patroni: BTreeSet::new(),
            written: None,
            trust: None,
            certificates: BTreeMap::new(),
            data: PgData::Empty,
            had_data: false,
            service: ServiceState::Stopped,
            last_version: None,
            restarts: 0,
            process: None,
            server: None,
            synchronous: BTreeSet::new(),
            waits_for: 0,
            minor: MINOR,
            cut_from_etcd: false,
            cut_from_nodes: false,
            rest_silent: false,
        }
    }
}

impl Server {
    fn new(role: NodeRole, parameters: Parameters, minor: u32) -> Self {
        Self { role, starting: 1, streaming: false, parameters, minor }
    }

    /// Whether it has finished starting.
    pub fn is_up(&self) -> bool {
        self.starting == 0
    }
}

impl PostgresModel {
    /// The node of this cluster that it is.
    pub fn of_cluster(&self, cluster: &Name) -> Option<&NodeModel> {
        self.node.as_ref().filter(|node| node.cluster == *cluster)
    }

    /// Whose data it has.
    pub fn system(&self) -> Option<SystemId> {
        match self.data {
            PgData::Present { system, .. } => Some(system),
            PgData::Empty | PgData::Unreadable { .. } => None,
        }
    }

    /// Its timeline, and the last position on it.
    pub fn position(&self) -> Option<(u32, u64)> {
        match self.data {
            PgData::Present { timeline, position, .. } => Some((timeline, position)),
            PgData::Empty | PgData::Unreadable { .. } => None,
        }
    }

    fn set_position(&mut self, timeline: u32, position: u64) {
        if let PgData::Present { system, .. } = self.data {
            self.data = PgData::Present { system, timeline, position };
        }
    }

    /// Whether its PostgreSQL takes writes, or would if enough standbys acknowledged them.
    pub fn is_primary(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.role == NodeRole::Primary && server.is_up())
    }

    /// Whether its PostgreSQL is up and receives changes as they are made.
    pub fn streams(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_up() && server.streaming)
    }

    /// Whether its Patroni has come up and answers other nodes and the agent.
    pub fn answers(&self) -> bool {
        !self.rest_silent && self.process.as_ref().is_some_and(|process| process.logged_in)
    }

    /// The settings that it knows of: those of the keys, or those of its file before it has read them.
    pub fn settings(&self) -> Arc<Settings> {
        let known = self.process.as_ref().map(|process| &process.known.settings).filter(|known| !known.is_empty());
        let written = self.node.as_ref().map(|node| &node.settings);
        known.or(written).cloned().unwrap_or_default()
    }

    /// Whether it goes by the word of a primary without etcd.
    pub fn is_in_failsafe(&self, now: Timestamp) -> bool {
        let ttl = keys::seconds(&self.settings(), "ttl", 30) * 1_000;
        let told_at = self.process.as_ref().and_then(|process| process.told_at);
        told_at.is_some_and(|at| later(at, ttl) > now)
    }

    /// Whether a setting waits for a restart of PostgreSQL.
    pub fn pending_restart(&self) -> bool {
        let wanted = keys::parameters(&self.settings());
        let differs =
            |server: &Server| keys::names().any(|n| keys::value(&server.parameters, n) != keys::value(&wanted, n));
        self.server.as_ref().is_some_and(differs)
    }

    /// Patroni is started with what is written.
    fn start(&mut self, version: PatroniVersion, now: Timestamp) {
        let Some(file) = self.written.clone() else { return };
        let presented = self.fingerprints();
        self.service = ServiceState::Running;
        self.last_version = Some(version);
        self.process = Some(PatroniProcess {
            version,
            started_with: file.hosts.clone(),
            cached: BTreeSet::new(),
            cached_at: now,
            connection: None,
            logged_in: false,
            dcs_seen: Timestamp::UNIX_EPOCH,
            written_at: now,
            known: Known::default(),
            failsafe: false,
            told_at: None,
            work: None,
            taken_up: file,
            presented,
        });
    }

    fn fingerprints(&self) -> BTreeMap<NodePurpose, String> {
        self.certificates.iter().map(|(purpose, there)| (*purpose, there.fingerprint.clone())).collect()
    }

    /// Patroni and PostgreSQL are killed, or lose their power: the agent starts Patroni again.
    pub fn kill(&mut self) {
        self.kill_patroni();
        self.server = None;
    }

    /// Patroni alone is killed: PostgreSQL goes on as it is.
    pub fn kill_patroni(&mut self) {
        if self.service == ServiceState::Running {
            self.service = ServiceState::Backoff;
            self.restarts += 1;
        }
        self.process = None;
    }

    /// PostgreSQL alone is killed: Patroni starts it again.
    pub fn kill_server(&mut self) {
        self.server = None;
    }
}

pub(super) fn act(world: &mut World, desired: &Stack, action: &PostgresAction) -> Result<(), Impossible> {
    match action {
        PostgresAction::MakePostgresCa { cluster } => {
            let authority = world.made_authority(desired, &format!("postgres-{cluster}"), 1);
            world.ledger.postgres.entry(cluster.clone()).or_default().trust.get_or_insert(Trust::new(authority));
            Ok(())
        }
        PostgresAction::IssueNodeCertificate { machine, purpose } => {
            let certificate = world.node_certificate(desired, machine, *purpose)?;
            world.claimed(machine)?.postgres.certificates.insert(*purpose, certificate);
            Ok(())
        }
        PostgresAction::InstallPatroni { machine, version } => {
            world.claimed(machine)?.postgres.patroni.insert(*version);
            Ok(())
        }
        PostgresAction::ConfigurePatroni { machine, user, hosts, digest, trust } => {
            // Another step of the same wave may have changed what is trusted since.
            if !world.bundles.contains_key(trust) {
                world.note_bundles();
            }
            let node = describe(desired, machine)?;
            let configured = &mut world.claimed(machine)?.postgres;
            configured.node = Some(node);
            configured.written = Some(PatroniFile { digest: digest.clone(), user: *user, hosts: hosts.clone() });
            configured.trust = Some(trust.clone());
            Ok(())
        }
        PostgresAction::StartPatroni { machine, data } => world.start_patroni(desired, machine, *data),
        PostgresAction::ReloadPatroni { machine } => {
            let reloaded = &mut world.claimed(machine)?.postgres;
            let presented = reloaded.fingerprints();
            match (&mut reloaded.process, &reloaded.written) {
                (Some(process), Some(file)) => (process.taken_up, process.presented) = (file.clone(), presented),
                (None, _) | (_, None) => return Err(Impossible(format!("Patroni does not run on {machine}"))),
            }
            Ok(())
        }
        PostgresAction::RestartPatroni { machine, version } => {
            if !world.claimed(machine)?.postgres.patroni.contains(version) {
                return Err(Impossible(format!("{machine} lacks Patroni {version}")));
            }
            world.stop_patroni(machine)?;
            let now = world.now;
            world.claimed(machine)?.postgres.start(*version, now);
            Ok(())
        }
        PostgresAction::RestartPostgres { machine, role } => world.restart_postgres(machine, *role),
        PostgresAction::ReinitializeNode { machine, system } => {
            let emptied = &mut world.claimed(machine)?.postgres;
            if emptied.is_primary() || emptied.system() != Some(*system) || emptied.process.is_none() {
                return Err(Impossible(format!("{machine} is no standby of this cluster that Patroni runs on")));
            }
            emptied.server = None;
            emptied.data = PgData::Empty;
            Ok(())
        }
        PostgresAction::StopPatroni { machine } => world.stop_patroni(machine),
        PostgresAction::Switchover { cluster, from, to } => world.switch_over(cluster, from, to),
        PostgresAction::SetPatroni { cluster, set } => world.set_patroni(cluster, set),
        PostgresAction::SetPostgresRole { cluster, role, .. } => world.set_role(desired, cluster, role),
        PostgresAction::SetNodePassword { cluster, role } => world.set_node_password(cluster, role),
        PostgresAction::DropPostgresRole { cluster, role } => world.drop_role(cluster, role),
        PostgresAction::SetDatabase { cluster, database } => world.set_database(desired, cluster, database),
    }
}

/// Which node of the file this machine is.
fn describe(desired: &Stack, machine: &Name) -> Result<NodeModel, Impossible> {
    let (cluster, node) = desired.node(machine).ok_or_else(|| Impossible(format!("{machine} is not in the file")))?;
    Ok(NodeModel {
        cluster: cluster.name.clone(),
        name: node.patroni_name.clone(),
        tags: node.tags,
        prefix: cluster.prefix.clone(),
        users: UserSlot::BOTH.map(|slot| (slot, cluster.etcd_user(slot))).into(),
        settings: Arc::new(cluster.settings.clone()),
        version: cluster.version,
    })
}

impl World {
    /// The machines of this PostgreSQL cluster's nodes.
    pub fn nodes_of<'w>(&'w self, cluster: &'w Name) -> impl Iterator<Item = (&'w Name, &'w MachineModel)> {
        self.machines.iter().filter(|(_, machine)| machine.exists && machine.postgres.of_cluster(cluster).is_some())
    }

    /// The keys of this PostgreSQL cluster in the etcd cluster that has a quorum.
    pub fn patroni_keys(&self, cluster: &Name) -> Option<&KeysModel> {
        let quorate = self.agreed.iter().find(|(id, _)| self.has_quorum(**id));
        quorate.and_then(|(_, agreed)| agreed.patroni.clusters.get(cluster))
    }

    fn patroni_keys_mut(&mut self, cluster: &Name) -> Result<&mut KeysModel, Impossible> {
        let id = self.agreed.keys().copied().find(|id| self.has_quorum(*id)).ok_or_else(no_quorum)?;
        let agreed = self.agreed.get_mut(&id).ok_or_else(no_quorum)?;
        Ok(agreed.patroni.clusters.entry(cluster.clone()).or_default())
    }

    fn node_certificate(
        &self,
        desired: &Stack,
        machine: &Name,
        purpose: NodePurpose,
    ) -> Result<CertificateFacts, Impossible> {
        let (cluster, node) =
            desired.node(machine).ok_or_else(|| Impossible(format!("{machine} is not in the file")))?;
        let trust = self.ledger.of_postgres(&cluster.name).trust.as_ref();
        let trust = trust.ok_or_else(|| Impossible("there is no authority".to_owned()))?;
        Ok(self.signed(machine, &format!("{purpose:?}"), node.profile(purpose), trust, &trust.current))
    }

    fn start_patroni(&mut self, desired: &Stack, name: &Name, data: PgStart) -> Result<(), Impossible> {
        let (cluster, _) = desired.node(name).ok_or_else(|| Impossible(format!("{name} is not in the file")))?;
        let system = self.patroni_keys(&cluster.name).and_then(|keys| keys.system);
        let (version, now) = (cluster.patroni, self.now);
        // The agent asks etcd, as Patroni does, whether a cluster is there.
        if data == PgStart::Bootstrap && !self.could_log_in_anywhere(name) {
            return Err(Impossible(format!("{name} cannot read Patroni's keys")));
        }
        let machine = self.claimed(name)?;
        if !machine.ports_taken.is_empty() {
            return Err(Impossible(format!("a port of {name} is taken")));
        }
        let started = &mut machine.postgres;
        if !started.patroni.contains(&version) || started.written.is_none() || started.trust.is_none() {
            return Err(Impossible(format!("{name} lacks Patroni or its file")));
        }
        if started.certificates.len() < NodePurpose::ALL.len() {
            return Err(Impossible(format!("{name} lacks certificates")));
        }
        if started.process.is_some() {
            return Err(Impossible(format!("Patroni runs on {name}")));
        }
        let fits = match (data, &started.data) {
            (PgStart::Bootstrap, PgData::Empty) => system.is_none(),
            (PgStart::Beside, PgData::Empty) => true,
            (PgStart::Join(wanted), PgData::Empty) => system == Some(wanted),
            (PgStart::Own(wanted), PgData::Present { system, .. }) => wanted == *system,
            (
                PgStart::Bootstrap | PgStart::Beside | PgStart::Join(_),
                PgData::Present { .. } | PgData::Unreadable { .. },
            )
            | (PgStart::Own(_), PgData::Empty | PgData::Unreadable { .. }) => false,
        };
        if !fits {
            return Err(Impossible(format!("PostgreSQL's data on {name} is not as expected")));
        }
        started.start(version, now);
        started.restarts = 0;
        Ok(())
    }

    /// Patroni ends PostgreSQL before it ends itself. A primary sends the rest of its log first, and gives its lease back.
    fn stop_patroni(&mut self, name: &Name) -> Result<(), Impossible> {
        let stopped = &mut self.claimed(name)?.postgres;
        let node = stopped.node.clone();
        let ended = stopped.is_primary().then(|| stopped.position()).flatten();
        (stopped.service, stopped.process, stopped.server) = (ServiceState::Stopped, None, None);
        let Some(NodeModel { cluster, name: patroni, .. }) = node else { return Ok(()) };
        if let Some((timeline, position)) = ended {
            self.send_the_rest(&cluster, timeline, position);
        }
        if let Ok(keys) = self.patroni_keys_mut(&cluster) {
            keys.members.remove(&patroni);
            keys.leader = keys.leader.take().filter(|leader| *leader != patroni);
        }
        Ok(())
    }

    /// A primary that is shut down waits until its standbys that stream have all of its log.
    fn send_the_rest(&mut self, cluster: &Name, timeline: u32, position: u64) {
        for machine in self.machines.values_mut().filter(|machine| machine.exists) {
            let node = &mut machine.postgres;
            let follows = node.of_cluster(cluster).is_some() && node.streams();
            if follows && node.position().is_some_and(|(of, _)| of == timeline) {
                node.set_position(timeline, position);
            }
        }
    }

    fn restart_postgres(&mut self, name: &Name, role: NodeRole) -> Result<(), Impossible> {
        let cluster = self.claimed(name)?.postgres.node.as_ref().map(|node| node.cluster.clone());
        let cluster = cluster.ok_or_else(|| Impossible(format!("{name} is no node")))?;
        let parameters = self.parameters_for(&cluster, name, role);
        let restarted = &mut self.claimed(name)?.postgres;
        let (runs, minor) = (restarted.process.is_some(), restarted.minor);
        match restarted.server.as_mut().filter(|server| runs && server.role == role) {
            Some(server) => *server = Server::new(role, parameters, minor),
            None => return Err(Impossible(format!("{name} is not what it was"))),
        }
        Ok(())
    }

    /// The parameters that PostgreSQL starts with on this node. Patroni gives a standby no less than its primary runs with:
    /// it would not start.
    fn parameters_for(&self, cluster: &Name, name: &Name, role: NodeRole) -> Parameters {
        let settings = self.machines.get(name).map(|machine| machine.postgres.settings()).unwrap_or_default();
        let primary = self.nodes_of(cluster).find(|(other, machine)| *other != name && machine.postgres.is_primary());
        let primary = primary.and_then(|(_, machine)| machine.postgres.server.as_ref());
        match primary.filter(|_| role != NodeRole::Primary) {
            Some(primary) => keys::at_least(keys::parameters(&settings), &primary.parameters),
            None => keys::parameters(&settings),
        }
    }

    /// As Patroni does it: only to a synchronous standby, where the mode is synchronous.
    fn switch_over(&mut self, cluster: &Name, from: &Name, to: &Name) -> Result<(), Impossible> {
        let refused = |why: &str| Err(Impossible(format!("no switchover: {why}")));
        self.claimed(from)?;
        let (now, reachable) = (self.now, Reachable::of(self));
        let names = |name: &Name| {
            let node = self.machines.get(name).and_then(|machine| machine.postgres.of_cluster(cluster));
            node.map(|node| node.name.clone()).ok_or_else(|| Impossible(format!("{name} is no node of {cluster}")))
        };
        let (leader, candidate) = (names(from)?, names(to)?);
        let keys = self.patroni_keys(cluster).ok_or_else(no_quorum)?;
        let named = keys.sync.leader.as_ref() == Some(&leader) && keys.sync.standbys.contains(&candidate);
        if keys.leader.as_ref() != Some(&leader) {
            return refused("the node does not lead");
        }
        if keys::is_synchronous(&keys.settings) && !named {
            return refused("the candidate is not synchronous");
        }
        let reaches = |name: &Name| self.machines.get(name).is_some_and(|machine| reachable.admits(self, machine));
        if !reaches(from) || !reaches(to) {
            return refused("a node does not reach etcd");
        }
        let Some((timeline, position)) =
            self.machines.get(from).filter(|machine| machine.postgres.is_primary()).and_then(|m| m.postgres.position())
        else {
            return refused("the node is no primary");
        };
        let streams = self.machines.get(to).is_some_and(|machine| {
            let node = &machine.postgres;
            node.answers() && node.streams() && node.position().is_some_and(|(of, _)| of == timeline)
        });
        if !streams {
            return refused("the candidate does not stream");
        }
        if [from, to].iter().any(|name| self.machines.get(*name).is_some_and(|m| m.postgres.is_in_failsafe(now))) {
            return refused("the candidate would wait for the end of failsafe mode");
        }
        self.send_the_rest(cluster, timeline, position);
        self.demote(from);
        let keys = self.patroni_keys_mut(cluster)?;
        keys.leader = None;
        self.promote(cluster, to, now)
    }

    fn set_patroni(&mut self, cluster: &Name, set: &BTreeMap<String, Option<String>>) -> Result<(), Impossible> {
        let reachable = Reachable::of(self);
        if !self.nodes_of(cluster).any(|(_, m)| m.postgres.answers() && reachable.admits(self, m)) {
            return Err(Impossible("no node of it answers and reaches etcd".to_owned()));
        }
        let keys = self.patroni_keys_mut(cluster)?;
        let settings = Arc::make_mut(&mut keys.settings);
        for (path, value) in set {
            match value {
                Some(value) => settings.insert(path.clone(), value.clone()),
                None => settings.remove(path),
            };
        }
        Ok(())
    }

    /// PostgreSQL becomes a standby: it is restarted for that.
    fn demote(&mut self, name: &Name) {
        let Some(node) = self.machines.get_mut(name).map(|machine| &mut machine.postgres) else { return };
        node.server = Some(Server::new(NodeRole::Replica, keys::parameters(&node.settings()), node.minor));
        node.process.iter_mut().for_each(|process| process.failsafe = false);
    }

    /// A standby becomes the primary, on a timeline of its own.
    fn promote(&mut self, cluster: &Name, name: &Name, now: Timestamp) -> Result<(), Impossible> {
        let found = self.machines.get(name).and_then(|machine| {
            let node = machine.postgres.node.as_ref()?;
            Some((node.name.clone(), machine.postgres.position()?))
        });
        let Some((patroni, (timeline, position))) = found else {
            return Err(Impossible(format!("{name} has no data")));
        };
        let keys = self.patroni_keys_mut(cluster)?;
        let next = keys.history.iter().map(|end| end.timeline).max().unwrap_or(0).max(timeline) + 1;
        keys.fork(timeline, position);
        keys.lead(&patroni, now);
        keys.name_synchronous(Some(&patroni), BTreeSet::new(), 0);
        let waits_for = u32::from(keys::is_strict(&keys.settings));
        // With asynchronous replication an election may lose commits: the file says so.
        let counts = keys::is_synchronous(&keys.settings);
        let truth = self.postgres.entry(cluster.clone()).or_default();
        let complete = timeline >= truth.timeline && position >= truth.acknowledged;
        if !complete && counts {
            let (of, acknowledged) = (truth.timeline, truth.acknowledged);
            let how = format!(
                "{name} was promoted with timeline {timeline} up to {position}, and {acknowledged} of timeline {of} was \
                 acknowledged"
            );
            truth.lost.get_or_insert(how);
        }
        if let Some(promoted) = self.machines.get_mut(name).map(|machine| &mut machine.postgres) {
            promoted.set_position(next, position);
            if let Some(server) = &mut promoted.server {
                (server.role, server.streaming) = (NodeRole::Primary, false);
            }
            (promoted.synchronous, promoted.waits_for) = (BTreeSet::new(), waits_for);
        }
        Ok(())
    }

    /// When a lease that is renewed now ends.
    fn lease_end(settings: &Settings, now: Timestamp) -> Timestamp {
        later(now, keys::seconds(settings, "ttl", 30) * 1_000)
    }
}
