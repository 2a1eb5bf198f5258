//! A file and its state → the context of a verb: the desired state, our credentials, the provider of machines.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use raftsman_api::roles::Role;
use raftsman_api::tls::Identity as TlsIdentity;
use raftsman_core::desired::{self, DesireError, Desired, LoopbackNetwork};
use raftsman_core::observed::{Ledger, TrustDomain};
use raftsman_core::spec::{
    Incus, Instance, Instances, Machines, Member, Members, Name, PostgresCluster, Provider, Spec, Ssh,
};
use raftsman_providers::networks::{NetworkError, Networks};
use raftsman_providers::{
    Connection, HostsSettings, IncusSettings, LibvirtSettings, LocalSettings, Part, Settings, Zoned,
};
use secrecy::{ExposeSecret, SecretString};

use crate::artifacts::{Artifacts, Examined};
use crate::authorities::kept_numbers;
use crate::fleet_access::{self, FleetAccess};
use crate::pki::{Authority, AuthorityKind, PkiError};
use crate::stack::{adopted_name, root_password_name};
use crate::store::{IdentityPlace, IdentitySource, Lock, LockInfo, Protection, Secrets, Store, StoreError};

/// The validity of the certificates with which a process authenticates to agents and etcd: short, because none of them
/// is ever revoked.
pub(crate) const OWN_VALIDITY: Duration = Duration::from_secs(24 * 3600);
/// A process that runs for longer renews them after half of that, which leaves enough time to retry.
pub(crate) const RENEW_AFTER: SignedDuration = SignedDuration::from_hours(12);
/// How long the fleet's authority is valid.
const FLEET_CA_VALIDITY: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Asks a person for a passphrase, with this prompt; else says why it was not given.
pub type AskPassphrase = fn(&str) -> Result<SecretString, String>;

/// What the command line knows and the engine needs.
#[derive(Debug, Clone)]
pub struct Context {
    /// The file.
    pub file: PathBuf,
    /// Where the agent's binary is.
    pub agent: PathBuf,
    /// Where the networks of this user's fleets are registered.
    pub registry: PathBuf,
    /// An age identity kept outside the state.
    pub identity: Option<PathBuf>,
    /// The passphrase of the identity, when the user gave one.
    pub passphrase: Option<SecretString>,
    /// Asks for the passphrase where one is needed; none in a run without a terminal.
    pub ask_passphrase: Option<AskPassphrase>,
    /// The user that runs the command.
    pub user: String,
    /// Where.
    pub host: String,
    /// The programs that were looked at already.
    pub examined: Examined,
}

/// The directory of a file; the current directory where its path has none.
pub fn directory_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

impl Context {
    /// What paths in the file are relative to.
    pub fn base(&self) -> &Path {
        directory_of(&self.file)
    }

    /// Where the state of this fleet is.
    pub fn state_dir(&self, spec: &Spec) -> PathBuf {
        self.base().join(&spec.state)
    }

    /// Where the local provider has the directories of machines, by the directory of the state.
    pub(crate) fn local_machines(&self, machines: &Machines, state: &Path) -> PathBuf {
        let directory = machines.directory.as_ref();
        directory.map_or_else(|| state.join("machines"), |directory| self.base().join(directory))
    }

    /// Asks for the passphrase where the state needs one and none is given.
    fn complete_passphrase(&mut self, store: &Store) -> Result<(), FleetError> {
        if store.identity_place() == IdentityPlace::EncryptedFile
            && self.passphrase.is_none()
            && self.identity.is_none()
            && let Some(ask) = self.ask_passphrase
        {
            self.passphrase = Some(ask("Passphrase of the state: ").map_err(FleetError::NoPassphrase)?);
        }
        Ok(())
    }

    pub(crate) fn identity_source(&self) -> IdentitySource {
        match &self.identity {
            Some(path) => IdentitySource::File(path.clone(), self.passphrase.clone()),
            None => IdentitySource::State(self.passphrase.clone()),
        }
    }
}

/// Why a fleet cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A certificate or key.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The loopback network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The fleet has another network than the file says.
    #[error(
        "the machines of this fleet are in the network {has}, the file says `network: {wanted}`: write {has}, or \
         destroy the fleet and apply again"
    )]
    OtherNetwork {
        /// What it has.
        has: String,
        /// What the file says.
        wanted: String,
    },
    /// Not a loopback network.
    #[error(transparent)]
    NetworkName(#[from] desired::NetworkError),
    /// The file cannot be carried out as it is.
    #[error(transparent)]
    Desire(#[from] DesireError),
    /// The passphrase was not given.
    #[error("{0}")]
    NoPassphrase(String),
    /// Not in this version.
    #[error("this version has no such provider: run `raftsman check`")]
    NoProvider,
    /// The operator's own certificate.
    #[error(transparent)]
    Tls(#[from] raftsman_api::tls::TlsError),
    /// The state's creation was interrupted after its identity was made.
    #[error("the state in {} is unfinished: `raftsman apply` completes it", dir.display())]
    Unfinished {
        /// Where.
        dir: PathBuf,
    },
    /// The record of the fleet's authorities.
    #[error("the state's record of the agents' CA is damaged: bring the directory back from a copy")]
    Access(#[source] serde_json::Error),
    /// The state has no fleet authority.
    #[error("the state in {} has no {what}: it is damaged; bring the directory back from a copy", dir.display())]
    Incomplete {
        /// Where.
        dir: PathBuf,
        /// What is missing.
        what: &'static str,
    },
}

/// An open fleet.
pub struct Fleet {
    /// What the command line said.
    pub context: Context,
    /// The file.
    pub spec: Spec,
    /// The desired state.
    pub desired: Desired,
    /// The state.
    pub store: Store,
    /// The state's secrets, open.
    pub secrets: Secrets,
    /// The provider of machines.
    pub provider: Connection,
    /// Finds etcd binaries.
    pub artifacts: Artifacts,
    /// The authority of agents and operators.
    pub authority: Authority,
    /// Which authorities there are, and what is revoked.
    pub access: FleetAccess,
    /// What agents' certificates are checked against, and what agents check clients against.
    pub trust_pem: String,
    /// The addresses that no machine can be assigned any more, once they were read. Held while one is assigned.
    pub(crate) addresses: tokio::sync::Mutex<Option<BTreeSet<IpAddr>>>,
    operator: Mutex<Issued>,
}

/// Our certificate for agents, and when it was issued.
struct Issued {
    identity: TlsIdentity,
    at: Timestamp,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").field("name", &self.spec.fleet).field("store", &self.store).finish_non_exhaustive()
    }
}

const FLEET_AUTHORITY: &str = "fleet";
/// Where the state keeps what is known of hosts that exist already.
pub(crate) const HOSTS: &str = "hosts";

impl Fleet {
    /// Makes the state of a new fleet.
    pub async fn create(
        spec: &Spec,
        context: &Context,
        protection: Protection,
        now: Timestamp,
    ) -> Result<Store, FleetError> {
        let dir = context.state_dir(spec);
        let mut store = Store::create(&dir, spec.fleet.as_str(), None, protection, now).await?;
        let lock = store.lock(LockInfo::new("init", &context.user, &context.host)).await?;
        if let Err(error) = complete(&mut store, &lock, spec, context, now).await {
            // It holds nothing of value yet.
            store.remove(lock).await?;
            return Err(error);
        }
        Ok(store)
    }

    /// Whether everything that every state has was made: a killed `init` may have left less.
    pub async fn is_complete(store: &Store) -> Result<bool, StoreError> {
        // After a rotation it has another number.
        Ok(store.certificates().await?.iter().any(|name| fleet_access::is_place(name)))
    }

    /// Opens the state to read it.
    pub async fn open(spec: Spec, context: Context, now: Timestamp) -> Result<Arc<Self>, FleetError> {
        let mut store = Store::open(&context.state_dir(&spec), spec.fleet.as_str()).await?;
        if spec.machines.provider == Provider::Local {
            foresee_network(&mut store, spec.machines.network.as_deref()).await?;
        }
        Self::opened(store, spec, context, now).await
    }

    /// Whether a part that every state has is not made yet, or has to be updated to the file.
    pub async fn is_to_be_completed(store: &Store, spec: &Spec) -> Result<bool, StoreError> {
        let network = match (&store.fleet().network, &spec.machines.network) {
            (None, _) => true,
            (Some(has), Some(wanted)) => has != wanted,
            (Some(_), None) => false,
        };
        Ok(!Self::is_complete(store).await? || (spec.machines.provider == Provider::Local && network))
    }

    /// Makes what an earlier, killed run did not make, under the lock of the whole fleet.
    pub async fn complete(spec: &Spec, context: &Context, lock: &Lock, now: Timestamp) -> Result<(), FleetError> {
        let mut store = Store::open(&context.state_dir(spec), spec.fleet.as_str()).await?;
        complete(&mut store, lock, spec, context, now).await
    }

    async fn opened(store: Store, spec: Spec, mut context: Context, now: Timestamp) -> Result<Arc<Self>, FleetError> {
        let dir = store.dir().to_owned();
        // It is read concurrently with everything else here.
        let shipped = context.examined.begin_shipped(&context.agent);
        context.complete_passphrase(&store)?;
        let secrets = store.unlock(context.identity_source()).await?;
        if !Self::is_complete(&store).await? {
            return Err(FleetError::Unfinished { dir });
        }
        let access = FleetAccess::read(&secrets).await?;
        let authority = access.authority(&store, &secrets).await?;
        let trust_pem = access.trust_pem(&store).await?;
        let identity = desired_identity(&store).await?;
        let mut desired = desired::resolve(&spec, &identity)?;
        let shipped = shipped.join().ok().flatten();
        for cluster in &mut desired.stacks {
            cluster.etcd.available.extend(crate::artifacts::available(&cluster.etcd.source, context.base()));
            cluster.agents = access.desired(&trust_pem, &authority);
            cluster.agents.shipped.clone_from(&shipped);
        }
        let provider = connection(&spec, &context, &store, &desired)?;
        let operator = Mutex::new(Issued { identity: operator(&context, &authority, now)?, at: now });
        let artifacts = Artifacts::new(dir.join("artifacts"), context.examined.clone());
        Ok(Arc::new(Self {
            context,
            spec,
            desired,
            store,
            secrets,
            provider,
            artifacts,
            authority,
            access,
            trust_pem,
            addresses: tokio::sync::Mutex::default(),
            operator,
        }))
    }

    /// Evidence that this cluster had a ledger, which is made before anything else of a cluster.
    pub(crate) async fn trace_of(&self, cluster: &Name) -> Result<Option<String>, StoreError> {
        if !self.store.history(cluster.as_str()).await?.is_empty() {
            return Ok(Some("a history of it in the state".to_owned()));
        }
        for side in TrustDomain::ALL {
            if !kept_numbers(&self.store, cluster, side).await?.is_empty() {
                return Ok(Some(format!("a {side} CA of it in the state")));
            }
        }
        let kept = [root_password_name(cluster), adopted_name(cluster)];
        let secrets = self.secrets.names().await?;
        Ok(kept.into_iter().find(|name| secrets.contains(name)).map(|name| format!("a secret `{name}` in the state")))
    }

    /// The addresses that the file gives and those that the state has for machines.
    pub(crate) async fn addresses_in_use(&self) -> Result<BTreeSet<IpAddr>, StoreError> {
        let clusters = &self.desired.stacks;
        let machines = clusters.iter().flat_map(|cluster| cluster.machines.values());
        let mut in_use: BTreeSet<IpAddr> = machines.filter_map(|machine| machine.address.given()).collect();
        let balancers = clusters.iter().flat_map(|cluster| &cluster.balancers);
        in_use.extend(balancers.filter_map(|balancer| balancer.virtual_address));
        in_use.extend(self.spec.machines.gateway);
        for ledger in ledgers(&self.store).await?.into_values() {
            in_use.extend(ledger.places().into_values());
        }
        Ok(in_use)
    }

    /// Our certificate for agents, renewed in time by a process that runs for days.
    pub fn operator(&self, now: Timestamp) -> TlsIdentity {
        let mut issued = self.operator.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(issued.at) > RENEW_AFTER
            && let Ok(identity) = operator(&self.context, &self.authority, now)
        {
            *issued = Issued { identity, at: now };
        }
        issued.identity.clone()
    }

    /// The fleet's id.
    pub fn id(&self) -> &str {
        &self.store.fleet().id
    }
}

fn operator(context: &Context, authority: &Authority, now: Timestamp) -> Result<TlsIdentity, FleetError> {
    let who = format!("{}@{}", context.user, context.host);
    let role = Role::Admin.organization();
    let (chain, key) = authority.issue_client(&shortened(&who), Some(role), OWN_VALIDITY, now)?;
    Ok(TlsIdentity::from_pem(&chain, key.expose_secret())?)
}

/// A connection to the provider: one for each server that the file's zones name, combined into one.
fn connection(spec: &Spec, context: &Context, store: &Store, desired: &Desired) -> Result<Connection, FleetError> {
    let machines = &spec.machines;
    let servers = match machines.provider {
        Provider::Incus | Provider::Libvirt if !machines.zones.is_empty() => servers(machines),
        _ => return Ok(raftsman_providers::connect(settings(spec, machines, context, store)?)),
    };
    let mut parts = Vec::new();
    for zones in servers {
        let Some(first) = zones.first() else { continue };
        let mut settings = settings(spec, &machines.with_zone(Some(first)), context, store)?;
        if let Settings::Incus(incus) = &mut settings {
            let target = |zone: &Name| Some((machines.zones.get(zone)?.incus.as_ref()?.target.clone()?, zone.clone()));
            incus.zones = zones.iter().filter_map(target).collect();
        }
        parts.push(Part { zones, connection: raftsman_providers::connect(settings) });
    }
    let mut placement = BTreeMap::new();
    for machine in desired.stacks.iter().flat_map(|cluster| cluster.machines.values()) {
        let zone = machine.place.home.as_ref().or(machine.place.zone.as_ref());
        placement.extend(zone.map(|zone| (machine.name.to_string(), zone.clone())));
    }
    Ok(Arc::new(Zoned::new(parts, placement)))
}

/// The zones of each server, in the order of the file. Members of an Incus cluster are zones of one server.
fn servers(machines: &Machines) -> Vec<Vec<Name>> {
    let mut servers: Vec<(String, Vec<Name>)> = Vec::new();
    for zone in machines.zones.keys() {
        let settings = machines.with_zone(Some(zone));
        let incus = settings.incus.clone().unwrap_or_default();
        let server = match machines.provider {
            Provider::Incus => format!("{} {}", incus.server(), incus.project.as_deref().unwrap_or("default")),
            _ => settings.libvirt.clone().unwrap_or_default().uri,
        };
        match servers.iter_mut().find(|(known, _)| *known == server) {
            Some((_, zones)) => zones.push(zone.clone()),
            None => servers.push((server, vec![zone.clone()])),
        }
    }
    servers.into_iter().map(|(_, zones)| zones).collect()
}

/// Where the file says that machines come from.
fn settings(spec: &Spec, machines: &Machines, context: &Context, store: &Store) -> Result<Settings, FleetError> {
    let Machines { provider, ssh, incus, .. } = machines;
    let fleet_id = store.fleet().id.clone();
    let agent = context.agent.clone();
    let below = |path: &String| context.base().join(path);
    match provider {
        Provider::Local => {
            let dir = context.local_machines(machines, store.dir());
            Ok(Settings::Local(LocalSettings { dir, fleet_id, agent }))
        }
        Provider::Hosts => {
            let Ssh { user, port, config } = ssh.clone().unwrap_or_default();
            let named = |member: &Member| Some((member.name.to_string(), member.host.clone()?));
            let listed = spec.etcd.values().filter_map(|cluster| match &cluster.members {
                Members::List(list) => Some(list),
                Members::Count(_) => None,
            });
            let instance = |instance: &Instance| Some((instance.name.to_string(), instance.host.clone()?));
            let instances = spec.balancers.values().filter_map(|balancer| match &balancer.instances {
                Instances::List(list) => Some(list),
                Instances::Count(_) | Instances::Beside(_) => None,
            });
            let instances = instances.flatten().filter_map(instance);
            let nodes = spec.postgres.values().flat_map(PostgresCluster::listed);
            let nodes = nodes.filter_map(|node| Some((node.name.to_string(), node.host.clone()?)));
            Ok(Settings::Hosts(HostsSettings {
                dir: store.dir().join(HOSTS),
                fleet_id,
                agent,
                ssh: raftsman_providers::Ssh { user, port, config: config.as_ref().map(below) },
                destinations: listed.flatten().filter_map(named).chain(nodes).chain(instances).collect(),
            }))
        }
        Provider::Incus => {
            let Incus { certificate, key, server_certificate, .. } = incus.clone().unwrap_or_default();
            Ok(Settings::Incus(IncusSettings {
                fleet: spec.fleet.to_string(),
                fleet_id,
                agent,
                machines: machines.clone(),
                zones: BTreeMap::new(),
                certificate: certificate.as_ref().map(below),
                key: key.as_ref().map(below),
                server_certificate: server_certificate.as_ref().map(below),
            }))
        }
        Provider::Libvirt => {
            let (fleet, machines) = (spec.fleet.to_string(), machines.clone());
            Ok(Settings::Libvirt(LibvirtSettings { fleet, fleet_id, agent, machines }))
        }
        Provider::Openstack | Provider::Aws => Err(FleetError::NoProvider),
    }
}

/// Claims the network that the file wants, or any. A fleet that has clusters keeps the one that it has.
async fn settle_network(
    store: &mut Store,
    lock: &Lock,
    context: &Context,
    wanted: Option<&str>,
) -> Result<(), FleetError> {
    let fleet = store.fleet().clone();
    let networks = Networks::new(context.registry.clone());
    match (fleet.network, wanted) {
        (Some(has), Some(wanted)) if has != wanted => {
            if !store.clusters().await?.is_empty() {
                return Err(FleetError::OtherNetwork { has, wanted: wanted.to_owned() });
            }
            networks.release(&fleet.id)?;
        }
        (Some(_), _) => return Ok(()),
        (None, _) => {}
    }
    let dir = std::path::absolute(store.dir()).unwrap_or_else(|_| store.dir().to_owned());
    let network = networks.claim(&fleet.id, &dir, wanted.map(str::parse).transpose()?)?;
    Ok(store.set_network(lock, Some(network.to_string())).await?)
}

/// The network that a read-only run plans with: the one that the file wants, where an `apply` would claim it.
async fn foresee_network(store: &mut Store, wanted: Option<&str>) -> Result<(), FleetError> {
    match (store.fleet().network.clone(), wanted) {
        (Some(has), Some(wanted)) if has != wanted => {
            if !store.clusters().await?.is_empty() {
                return Err(FleetError::OtherNetwork { has, wanted: wanted.to_owned() });
            }
            store.foresee_network(wanted);
            Ok(())
        }
        (Some(_), _) => Ok(()),
        (None, _) => Err(FleetError::Unfinished { dir: store.dir().to_owned() }),
    }
}

/// Makes what every state has beside its identity, where it is not there yet.
async fn complete(
    store: &mut Store,
    lock: &Lock,
    spec: &Spec,
    context: &Context,
    now: Timestamp,
) -> Result<(), FleetError> {
    if spec.machines.provider == Provider::Local {
        settle_network(store, lock, context, spec.machines.network.as_deref()).await?;
    }
    // Last: it marks that everything else exists.
    make_fleet_authority(store, lock, now).await
}

/// A common name has room for 64 characters.
fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}

async fn desired_identity(store: &Store) -> Result<desired::Identity, FleetError> {
    let incomplete = || FleetError::Incomplete { dir: store.dir().to_owned(), what: "readable network" };
    let network = store.fleet().network.as_deref().map(str::parse::<LoopbackNetwork>);
    let network = network.transpose().map_err(|_| incomplete())?;
    let (mut places, mut zones) = (BTreeMap::new(), BTreeMap::new());
    for (cluster, ledger) in ledgers(store).await? {
        places.insert(cluster.clone(), ledger.places());
        zones.insert(cluster, ledger.machines.zones);
    }
    Ok(desired::Identity { id: store.fleet().id.clone(), network, places, zones })
}

/// The ledgers of all clusters. A damaged one is rejected where its cluster is opened; the others are not affected.
async fn ledgers(store: &Store) -> Result<BTreeMap<Name, Ledger>, StoreError> {
    let mut ledgers = BTreeMap::new();
    for name in store.clusters().await? {
        match (store.get_cluster::<Ledger>(&name).await, Name::parse(&name)) {
            (Ok(Some(kept)), Ok(cluster)) => drop(ledgers.insert(cluster, kept.value)),
            (Ok(_) | Err(StoreError::LedgerDamaged { .. }), _) => {}
            (Err(error), _) => return Err(error),
        }
    }
    Ok(ledgers)
}

/// Makes the fleet's authority where there is none. The certificate is written last: without it the key has signed
/// nothing yet.
async fn make_fleet_authority(store: &Store, lock: &Lock, now: Timestamp) -> Result<(), FleetError> {
    if Fleet::is_complete(store).await? {
        return Ok(());
    }
    let name = format!("{} fleet CA", store.fleet().name);
    let made = Authority::make(
        AuthorityKind::Fleet,
        &shortened(&name),
        Some(&store.fleet().name),
        raftsman_core::spec::KeyAlgorithm::EcdsaP256,
        now,
        FLEET_CA_VALIDITY,
    )?;
    store.put_secret(lock, FLEET_AUTHORITY, &made.key_pem()).await?;
    store.put_certificate(lock, FLEET_AUTHORITY, made.certificate_pem()).await?;
    Ok(())
}
