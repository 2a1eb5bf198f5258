//! orders → containers and virtual machines of an Incus server, tagged with the fleet's id.
//!
//! The description of a machine and the progress of its creation are on the instance itself: there is no other record.

mod addresses;
mod api;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use hyper::Method;
use raftsman_core::desired::AGENT_PORT;
use raftsman_core::render::cloud_init::{self, UserDataError};
use raftsman_core::render::digest;
use raftsman_core::render::first_boot::{self, AgentFrom, FirstBoot};
use raftsman_core::render::systemd::{AGENT_PROGRAM, ROOT};
use raftsman_core::spec::{self, IncusKind, Machines, Name, Shape};
use serde_json::{Map, Value, json};

use crate::files::{FileError, failed};
use crate::reach::{self, Tries};
use crate::{MachineOrder, MachineRecord, Power, Provider, ProviderError, hardware_address, server_name};
use api::{Content, Server};

/// The key with the id of the fleet that owns it.
const FLEET: &str = "user.raftsman.fleet";
/// Its name in the fleet. The instances of earlier versions, without this key, have this name on the server, too.
const MACHINE: &str = "user.raftsman.machine";
/// The cluster that it is for.
const CLUSTER: &str = "user.raftsman.cluster";
/// Where it is reached.
const ADDRESS: &str = "user.raftsman.address";
/// The digest of the boot data of its agent.
const BOOT: &str = "user.raftsman.boot";
/// What it is made of.
const SHAPE: &str = "user.raftsman.shape";
/// Marks that its creation is complete: the number that Incus gave it ([`NUMBER`]). Another instance of this name has
/// another number, so that a late request of a killed run does not complete an instance that it never saw.
const FINISHED: &str = "user.raftsman.finished";
/// Incus's own number of an instance, in its configuration: another instance of the same name has another.
const NUMBER: &str = "volatile.uuid";
/// How often an instance is made again because a late request of an earlier run came in between.
const MAKES: u32 = 5;
/// A virtual machine's data disk as it sees it: Incus names disks after the device `data`.
const DATA_DISK: &str = "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_incus_data";

const TRIES: Tries = Tries { once: Duration::from_secs(1), pause: Duration::from_millis(50) };
/// The key of an instance's own id, which the server gives it.
const ID: &str = "volatile.uuid";
/// From the start to an agent that answers; where packages are installed first, longer.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
const INSTALL_LIMIT: Duration = Duration::from_secs(900);

/// Which server, and what machines there are made of.
#[derive(Clone, Debug)]
pub struct IncusSettings {
    /// The fleet's name, which names of instances begin with.
    pub fleet: String,
    /// The fleet's id: the tag of everything that is made.
    pub fleet_id: String,
    /// The agent's program on this computer.
    pub agent: PathBuf,
    /// What the file says of machines.
    pub machines: Machines,
    /// Where the server is a cluster: the zones that its members are.
    pub zones: BTreeMap<String, Name>,
    /// With https: our certificate.
    pub certificate: Option<PathBuf>,
    /// With https: its key.
    pub key: Option<PathBuf>,
    /// With https: the certificate that the server shows.
    pub server_certificate: Option<PathBuf>,
}

/// Machines on an Incus server.
#[derive(Debug)]
pub struct Incus {
    settings: IncusSettings,
    incus: spec::Incus,
    server: Arc<OnceLock<Server>>,
}

/// Why the Incus provider failed.
#[derive(Debug, thiserror::Error)]
pub enum IncusError {
    /// No answer.
    #[error(
        "Incus at {server} does not answer: see whether it runs there, and whether you may use it (the group \
         `incus-admin`, or a certificate that it trusts)"
    )]
    Connection {
        /// The server.
        server: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Authentication failed.
    #[error(
        "Incus at {server} denies access ({words}): have it trust the certificate with `incus config trust \
         add-certificate`, or allow it the project"
    )]
    Untrusted {
        /// The server.
        server: String,
        /// In its words.
        words: String,
    },
    /// It returned an error.
    #[error("Incus refused: {words} ({what})")]
    Refused {
        /// What was asked.
        what: String,
        /// Its code, as in HTTP.
        code: u64,
        /// In its words.
        words: String,
    },
    /// There is no such image.
    #[error("Incus has no image `{image}`: import one, or name another as in `incus image list` (key `image`)")]
    NoImage {
        /// Its alias or fingerprint.
        image: String,
    },
    /// An operation that does not end.
    #[error("an operation at Incus ({server}) does not end: see `incus operation list`, then apply again")]
    Slow {
        /// The server.
        server: String,
    },
    /// It belongs to another owner.
    #[error(
        "{what} `{name}` on Incus is not this fleet's, and is left alone: name the member otherwise, or use another \
         project"
    )]
    NotOurs {
        /// An instance or a volume.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Gone while it was being made.
    #[error("the machine `{0}` disappeared while it was being made: another client of Incus deletes machines there")]
    Vanished(String),
    /// It runs, and its agent does not answer.
    #[error(
        "the machine `{name}` runs, but its agent does not answer at {at} after {} s: look at `incus exec {name} -- \
         journalctl -b -u cloud-final -u raftsman-first-boot`, and whether this computer reaches that network",
        waited.as_secs()
    )]
    NoAgent {
        /// The machine.
        name: String,
        /// Where it should answer.
        at: SocketAddr,
        /// For how long it was tried.
        waited: Duration,
    },
    /// No network to take an address from.
    #[error(
        "Incus assigns no addresses in the network `{network}`: {why}; give each machine an `address:`, or `machines` a \
         `subnet`"
    )]
    NoAddresses {
        /// The network.
        network: String,
        /// Why it has none to assign.
        why: &'static str,
    },
    /// All are in use.
    #[error(
        "the network `{network}` ({subnet}) on Incus has no free address: delete instances that are not needed, or name \
         a larger network"
    )]
    NetworkFull {
        /// The network.
        network: String,
        /// Its subnet.
        subnet: String,
    },
    /// Another instance has the address: Incus starts only one of them.
    #[error(
        "`{instance}` cannot start: another instance on Incus has its address {address}; delete it (`incus delete \
         {instance}`), give its machine another `address:` in the file, and apply again"
    )]
    AddressTaken {
        /// The instance.
        instance: String,
        /// Its address.
        address: String,
    },
    /// It cannot change an address.
    #[error("the machine `{0}` cannot get another address on Incus: replace the member")]
    NoMove(String),
    /// Not where a server can be.
    #[error("`{0}` is not the URL of an Incus server: write `https://host:8443`")]
    Address(String),
    /// The file names no certificates.
    #[error("an Incus server that is reached by network needs `certificate`, `key` and `server_certificate`")]
    NoCertificate,
    /// An invalid certificate or key.
    #[error("{} holds no certificate or key in PEM", .0.display())]
    Unreadable(PathBuf),
    /// A certificate that cannot be used.
    #[error("our certificate for Incus cannot be used")]
    Tls(#[source] rustls::Error),
    /// The user data of a machine's first boot.
    #[error(transparent)]
    UserData(#[from] UserDataError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl IncusError {
    /// Whether another operation on the same object is under way.
    fn is_busy(&self) -> bool {
        let busy = |words: &str| words.contains("busy running") || words.contains("matching non-reusable operation");
        matches!(self, Self::Refused { words, .. } if busy(words))
    }

    fn exists_already(&self) -> bool {
        // The last one is the error of two orders at the same moment.
        let words = |words: &str| words.contains("already exists") || words.contains("UNIQUE constraint failed");
        matches!(self, Self::Refused { code, words: said, .. } if *code == 409 || words(said))
    }

    fn is_absent(&self) -> bool {
        matches!(self, Self::Refused { code, words, .. } if *code == 404 || words.contains("not found"))
    }
}

/// An instance or a volume of this fleet.
struct Instance {
    /// What the server calls it.
    called: String,
    /// The zone of the cluster member that it is on, where the file has one for it.
    zone: Option<Name>,
    status: String,
    config: Map<String, Value>,
}

impl Instance {
    fn text(&self, key: &str) -> Option<&str> {
        self.config.get(key)?.as_str()
    }

    /// The machine that it is, or is a disk of.
    fn machine(&self) -> &str {
        let named = self.text(MACHINE);
        named.unwrap_or_else(|| {
            self.called.strip_suffix(VOLUME_SUFFIX).filter(|_| self.is_volume()).unwrap_or(&self.called)
        })
    }

    /// Only instances have a status.
    fn is_volume(&self) -> bool {
        self.status.is_empty()
    }

    fn runs(&self) -> bool {
        matches!(self.status.as_str(), "Running" | "Starting" | "Ready")
    }

    fn finished(&self) -> bool {
        self.text(FINISHED).is_some_and(|number| self.text(NUMBER) == Some(number))
    }

    /// What is left of a machine when its instance is gone.
    fn disk(&self, name: &str) -> Option<MachineRecord> {
        self.record(name).map(|found| MachineRecord { id: None, ..found })
    }

    /// A frozen instance does not run, and is started like one that is off.
    fn record(&self, name: &str) -> Option<MachineRecord> {
        let power = if self.runs() { Power::Running } else { Power::Stopped };
        let address = self.text(ADDRESS)?.parse().ok()?;
        let finished = self.finished();
        let shape = self.text(SHAPE).and_then(Shape::parse);
        let id = self.text(ID).map(ToOwned::to_owned);
        let zone = self.zone.clone();
        Some(MachineRecord { name: name.to_owned(), id, address, agent_port: AGENT_PORT, power, finished, shape, zone })
    }
}

#[async_trait]
impl Provider for Incus {
    async fn inventory(&self) -> Result<Vec<MachineRecord>, ProviderError> {
        Ok(self.list().await?)
    }

    async fn machine(&self, name: &str) -> Result<Option<MachineRecord>, ProviderError> {
        let server = self.server()?;
        match self.instance(server, name).await? {
            Some(found) => Ok(found.record(name)),
            None => Ok(self.kept(server, name).await?.and_then(|disk| disk.disk(name))),
        }
    }

    async fn assign(
        &self,
        name: &str,
        _: Option<&Name>,
        machines: &Machines,
        taken: &BTreeSet<IpAddr>,
    ) -> Result<IpAddr, ProviderError> {
        let network = machines.incus.as_ref().and_then(|incus| incus.network.as_deref());
        let begin = digest(&format!("{}\n{name}", self.settings.fleet_id));
        Ok(addresses::assign(self.server()?, network.unwrap_or_default(), &begin, taken).await?)
    }

    async fn create(&self, order: &MachineOrder) -> Result<MachineRecord, ProviderError> {
        Ok(self.for_order(order).make(order).await?)
    }

    async fn start(&self, name: &str) -> Result<(), ProviderError> {
        let server = self.server()?;
        let found = self.instance(server, name).await?.ok_or_else(|| IncusError::Vanished(name.to_owned()))?;
        Ok(switch_on(server, &found).await?)
    }

    async fn readdress(&self, name: &str, _: IpAddr) -> Result<(), ProviderError> {
        Err(IncusError::NoMove(name.to_owned()).into())
    }

    async fn dismantle(&self, name: &str, seen: Option<&str>) -> Result<(), ProviderError> {
        self.is_the_same(name, seen).await?;
        let server = self.server()?;
        if self.kept(server, name).await?.is_none() {
            return Err(ProviderError::NoDataDisk(name.to_owned()));
        }
        if let Some(found) = self.instance(server, name).await? {
            remove(server, &found).await?;
        }
        Ok(())
    }

    async fn delete(&self, name: &str, seen: Option<&str>) -> Result<(), ProviderError> {
        self.is_the_same(name, seen).await?;
        let server = self.server()?;
        if let Some(found) = self.instance(server, name).await? {
            remove(server, &found).await?;
        }
        if let Some(disk) = self.kept(server, name).await?
            && let Some(path) = self.volume_path(&disk.called)
        {
            gone(server.change(Method::DELETE, &path, None).await)?;
        }
        Ok(())
    }
}

/// Stops and deletes it.
async fn remove(server: &Server, found: &Instance) -> Result<(), IncusError> {
    let path = format!("/1.0/instances/{}", found.called);
    if found.status != "Stopped" {
        let stop = json!({"action": "stop", "force": true, "timeout": 30});
        match server.change(Method::PUT, &format!("{path}/state"), Some(&stop)).await {
            Err(IncusError::Refused { words, .. }) if words.contains("already stopped") => {}
            stopped => gone(stopped)?,
        }
    }
    gone(server.change(Method::DELETE, &path, None).await)
}

/// An object that does not exist need not be removed.
fn gone(removed: Result<(), IncusError>) -> Result<(), IncusError> {
    removed.or_else(|error| if error.is_absent() { Ok(()) } else { Err(error) })
}

async fn switch_on(server: &Server, found: &Instance) -> Result<(), IncusError> {
    if found.runs() {
        return Ok(());
    }
    let action = if found.status == "Frozen" { "unfreeze" } else { "start" };
    let path = format!("/1.0/instances/{}/state", found.called);
    match server.change(Method::PUT, &path, Some(&json!({ "action": action }))).await {
        Err(IncusError::Refused { words, .. }) if words.contains("already running") => Ok(()),
        Err(IncusError::Refused { words, .. }) if words.contains("already defined on another NIC") => {
            let (instance, address) = (found.called.clone(), found.text(ADDRESS).unwrap_or_default().to_owned());
            Err(IncusError::AddressTaken { instance, address })
        }
        started => started,
    }
}

impl Incus {
    /// The provider with these settings. It connects to nothing yet.
    pub fn new(settings: IncusSettings) -> Self {
        let incus = settings.machines.incus.clone().unwrap_or_default();
        Self { settings, incus, server: Arc::default() }
    }

    /// The same server, with the file's settings for the ordered machine.
    fn for_order(&self, order: &MachineOrder) -> Self {
        let machines = order.machines.as_deref().unwrap_or(&self.settings.machines).clone();
        let incus = machines.incus.clone().unwrap_or_default();
        let settings = IncusSettings { machines, ..self.settings.clone() };
        Self { settings, incus, server: Arc::clone(&self.server) }
    }

    /// Whether an instance has the name of a machine of this fleet, current or of earlier versions. A copy of one does
    /// not.
    fn is_named(&self, found: &Instance) -> bool {
        let machine = found.machine();
        found.called == machine || found.called == self.called(machine)
    }

    /// The name of a new machine on the server.
    fn called(&self, machine: &str) -> String {
        server_name(&self.settings.fleet, machine)
    }

    /// Certificates are read once, when they are first needed.
    fn server(&self) -> Result<&Server, IncusError> {
        match self.server.get() {
            Some(server) => Ok(server),
            None => {
                let server = Server::new(&self.settings)?;
                Ok(self.server.get_or_init(|| server))
            }
        }
    }

    /// The instance of this machine, if there is one; an error when a foreign instance has its name. Earlier versions
    /// named it by the machine's name alone.
    async fn instance(&self, server: &Server, machine: &str) -> Result<Option<Instance>, IncusError> {
        let called = self.called(machine);
        if let Some(found) = server.get(&format!("/1.0/instances/{called}")).await? {
            let found = self.ours(&found, "the instance", &called)?;
            if found.machine() == machine {
                return Ok(Some(found));
            }
        }
        let found = server.get(&format!("/1.0/instances/{machine}")).await?;
        Ok(found.and_then(|found| self.ours(&found, "the instance", machine).ok()).filter(|it| it.machine() == machine))
    }

    fn ours(&self, found: &Value, what: &'static str, name: &str) -> Result<Instance, IncusError> {
        let config = found["config"].as_object().cloned().unwrap_or_default();
        let status = found["status"].as_str().unwrap_or_default().to_owned();
        let location = found["location"].as_str().unwrap_or_default();
        let zone = self.settings.zones.get(location).cloned();
        let found = Instance { called: name.to_owned(), zone, status, config };
        match found.text(FLEET) == Some(&self.settings.fleet_id) {
            true => Ok(found),
            false => Err(IncusError::NotOurs { what, name: name.to_owned() }),
        }
    }

    fn volume_path(&self, called: &str) -> Option<String> {
        let pool = self.incus.pool.as_ref()?;
        Some(format!("/1.0/storage-pools/{pool}/volumes/custom/{called}"))
    }

    /// The machine's data disk, if there is one.
    async fn kept(&self, server: &Server, machine: &str) -> Result<Option<Instance>, IncusError> {
        for called in [volume_name(&self.called(machine)), volume_name(machine)] {
            let Some(path) = self.volume_path(&called) else { return Ok(None) };
            let Some(found) = server.get(&path).await? else { continue };
            match self.ours(&found, "the volume", &called) {
                // One of this fleet's, of a machine whose name is longer.
                Ok(found) if found.machine() != machine => {}
                Ok(found) => return Ok(Some(found)),
                // A foreign volume does not conflict where there are no data disks, nor where ours has another name.
                Err(IncusError::NotOurs { .. })
                    if self.settings.machines.data_disk.is_none() || called == volume_name(machine) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    async fn list(&self) -> Result<Vec<MachineRecord>, IncusError> {
        let server = self.server()?;
        let mut machines = Vec::new();
        let instances = server.get("/1.0/instances?recursion=1").await?;
        for found in instances.as_ref().and_then(Value::as_array).into_iter().flatten() {
            let called = found["name"].as_str().unwrap_or_default();
            let ours = self.ours(found, "the instance", called).ok().filter(|found| self.is_named(found));
            machines.extend(ours.and_then(|found| found.record(found.machine())));
        }
        if let Some(pool) = &self.incus.pool {
            let volumes = server.get(&format!("/1.0/storage-pools/{pool}/volumes/custom?recursion=1")).await?;
            for found in volumes.as_ref().and_then(Value::as_array).into_iter().flatten() {
                let called = found["name"].as_str().unwrap_or_default();
                let Ok(disk) = self.ours(found, "the volume", called) else { continue };
                let name = disk.machine();
                if called.ends_with(VOLUME_SUFFIX) && machines.iter().all(|found: &MachineRecord| found.name != name) {
                    machines.extend(disk.disk(name));
                }
            }
        }
        machines.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(machines)
    }

    async fn make(&self, order: &MachineOrder) -> Result<MachineRecord, IncusError> {
        let server = self.server()?;
        let name = &order.name;
        let boot_digest = boot_digest(order)?;
        let vanished = || IncusError::Vanished(name.clone());
        let found = self.latest(server, order, &boot_digest).await?;
        match (found.finished(), found.text(BOOT) == Some(&boot_digest)) {
            (true, true) => {}
            (true, false) => self.send_again(server, order, &boot_digest, &found).await?,
            // It was never started. Once it is, only an order to delete removes it: it may have been claimed.
            (false, _) => {
                self.equip(server, order, &boot_digest, &found.called).await?;
                let finished = json!({"config": {FINISHED: found.text(NUMBER)}});
                server.change(Method::PATCH, &format!("/1.0/instances/{}", found.called), Some(&finished)).await?;
            }
        }
        let found = self.instance(server, name).await?.ok_or_else(vanished)?;
        switch_on(server, &found).await?;
        self.await_agent(order, &found.called).await?;
        self.instance(server, name).await?.and_then(|found| found.record(name)).ok_or_else(vanished)
    }

    /// The instance, made where there is none. An incomplete one with other boot data or another shape is removed
    /// first: it cannot have been claimed.
    async fn latest(&self, server: &Server, order: &MachineOrder, boot_digest: &str) -> Result<Instance, IncusError> {
        let name = &order.name;
        for _ in 0..MAKES {
            match self.instance(server, name).await? {
                Some(found)
                    if found.finished() || (found.text(BOOT) == Some(boot_digest) && !self.outdated(&found)) =>
                {
                    return Ok(found);
                }
                Some(half) => remove(server, &half).await?,
                None => self.make_instance(server, order, boot_digest).await?,
            }
        }
        Err(IncusError::Vanished(name.clone()))
    }

    async fn make_instance(&self, server: &Server, order: &MachineOrder, boot_digest: &str) -> Result<(), IncusError> {
        let data = match self.settings.machines.data_disk {
            Some(_) => self.make_volume(server, order).await?,
            None => None,
        };
        let instance = self.instance_of(order, boot_digest, data.as_deref())?;
        let target = self.target(server, order).await?;
        let path =
            target.map_or_else(|| "/1.0/instances".to_owned(), |target| format!("/1.0/instances?target={target}"));
        match server.change(Method::POST, &path, Some(&instance)).await {
            // A reply was lost, or another request was faster: the next look shows the owner.
            Err(error) if error.exists_already() => Ok(()),
            Err(IncusError::Refused { words, .. }) if words.contains("mage") && words.contains("not found") => {
                Err(IncusError::NoImage { image: self.settings.machines.image.clone().unwrap_or_default() })
            }
            made => made,
        }
    }

    /// The name of the machine's data disk, made where there is none.
    async fn make_volume(&self, server: &Server, order: &MachineOrder) -> Result<Option<String>, IncusError> {
        if let Some(kept) = self.kept(server, &order.name).await? {
            return Ok(Some(kept.called));
        }
        let called = volume_name(&self.called(&order.name));
        let Some(path) = self.volume_path(&called) else { return Ok(None) };
        let size = self.settings.machines.data_disk.map(|size| size.bytes().to_string());
        let content = match self.incus.kind {
            IncusKind::Container => "filesystem",
            IncusKind::VirtualMachine => "block",
        };
        let volume = json!({
            "name": called,
            "content_type": content,
            "config": {
                "size": size, FLEET: self.settings.fleet_id, MACHINE: order.name, CLUSTER: order.cluster,
                ADDRESS: order.address.to_string(),
            },
        });
        let volumes = path.rsplit_once('/').map_or(path.as_str(), |(volumes, _)| volumes);
        match server.change(Method::POST, volumes, Some(&volume)).await {
            Err(error) if error.exists_already() => {}
            made => made?,
        }
        Ok(Some(called))
    }

    fn outdated(&self, found: &Instance) -> bool {
        found.text(SHAPE) != Some(&self.shape())
    }

    /// The shape of machines, as it is written on them.
    fn shape(&self) -> String {
        self.settings.machines.shape().map(|shape| shape.text()).unwrap_or_default()
    }

    fn container(&self) -> bool {
        self.incus.kind == IncusKind::Container
    }

    /// The first boot of a machine. A virtual machine that is off has no file access: its files come with its user
    /// data.
    fn first_boot<'a>(&'a self, order: &'a MachineOrder, mac: &'a str, program: &'a str) -> FirstBoot<'a> {
        let machines = &self.settings.machines;
        FirstBoot {
            boot: &order.boot,
            machines,
            members: &order.members,
            mac: Some(mac),
            data_disk: (machines.data_disk.is_some() && !self.container()).then_some(DATA_DISK),
            agent: AgentFrom::Uploaded(program),
            programs: &order.packages,
            // Packages would overwrite some of them, or prompt about them.
            files_in_place: self.container() && !machines.installs(),
        }
    }

    /// The request for an instance; off at first.
    fn instance_of(&self, order: &MachineOrder, boot_digest: &str, data: Option<&str>) -> Result<Value, IncusError> {
        let machines = &self.settings.machines;
        let container = self.container();
        let mac = hardware_address(&self.settings.fleet_id, &order.name);
        let program = program(boot_digest);
        let first = self.first_boot(order, &mac, &program);
        let mut config = json!({
            FLEET: self.settings.fleet_id,
            MACHINE: order.name,
            CLUSTER: order.cluster,
            ADDRESS: order.address.to_string(),
            BOOT: boot_digest,
            SHAPE: self.shape(),
            // The instance must start again after a reboot of the server.
            "boot.autostart": "true",
            "cloud-init.user-data": cloud_init::user_data(&first)?,
        });
        if machines.subnet.is_some() {
            config["cloud-init.network-config"] = cloud_init::network_config(&first).into();
        }
        if let Some(vcpus) = machines.vcpus {
            config["limits.cpu"] = vcpus.to_string().into();
        }
        if let Some(memory) = machines.memory {
            config["limits.memory"] = memory.bytes().to_string().into();
        }
        let mut devices = Map::new();
        if let Some(network) = &self.incus.network {
            let family = if order.address.is_ipv4() { "ipv4.address" } else { "ipv6.address" };
            let mut nic = json!({
                "type": "nic", "name": "eth0", "network": network, "hwaddr": mac, family: order.address.to_string(),
            });
            if !self.incus.acls.is_empty() {
                nic["security.acls"] = self.incus.acls.join(",").into();
            }
            devices.insert("eth0".to_owned(), nic);
        }
        if let Some(pool) = &self.incus.pool {
            let mut root = json!({"type": "disk", "path": "/", "pool": pool});
            if let Some(size) = machines.disk {
                root["size"] = size.bytes().to_string().into();
            }
            devices.insert("root".to_owned(), root);
            if let Some(volume) = data {
                let mut data = json!({"type": "disk", "pool": pool, "source": volume});
                if container {
                    data["path"] = ROOT.into();
                }
                devices.insert("data".to_owned(), data);
            }
        }
        let image = machines.image.as_deref().unwrap_or_default();
        let by = if is_fingerprint(image) { "fingerprint" } else { "alias" };
        let mut instance = json!({
            "name": self.called(&order.name),
            "type": if container { "container" } else { "virtual-machine" },
            "source": {"type": "image", by: image},
            "config": config,
            "devices": devices,
        });
        if let Some(profiles) = &self.incus.profiles {
            instance["profiles"] = json!(profiles);
        }
        Ok(instance)
    }

    /// On an Incus cluster: the server in it for this machine. Machines of one cluster are spread in turn, each by its
    /// position among them, so that concurrent orders need no coordination.
    async fn target(&self, server: &Server, order: &MachineOrder) -> Result<Option<String>, IncusError> {
        let environment = server.get("/1.0").await?.unwrap_or_default();
        if environment["environment"]["server_clustered"] != true {
            return Ok(None);
        }
        let members = server.get("/1.0/cluster/members?recursion=1").await?.unwrap_or_default();
        let mut servers: Vec<&str> = members
            .as_array()
            .into_iter()
            .flatten()
            .filter(|member| member["status"] == "Online")
            .filter_map(|member| member["server_name"].as_str())
            .filter(|name| self.incus.targets.is_empty() || self.incus.targets.iter().any(|target| target == name))
            .collect();
        servers.sort_unstable();
        let mut addresses = order.members.clone();
        addresses.sort_unstable();
        let place = addresses.iter().position(|address| *address == order.address).unwrap_or_default();
        Ok(servers.get(place % servers.len().max(1)).map(|name| (*name).to_owned()))
    }

    /// Puts the agent's program and the files of the first boot in their places. A virtual machine has the agent in its
    /// image.
    async fn equip(
        &self,
        server: &Server,
        order: &MachineOrder,
        boot_digest: &str,
        called: &str,
    ) -> Result<(), IncusError> {
        if !self.container() {
            return Ok(());
        }
        let name = &order.name;
        let (ours, program) = (&self.settings.agent, program(boot_digest));
        let bytes = tokio::fs::read(ours).await.map_err(failed("read", ours))?;
        server.put(called, &program, Content::File { mode: 0o755, bytes: bytes.into() }).await?;
        let mac = hardware_address(&self.settings.fleet_id, name);
        let first = self.first_boot(order, &mac, &program);
        if !first.files_in_place {
            return Ok(());
        }
        let failed = |source| UserDataError::Boot { machine: name.clone(), source };
        for file in first.files().map_err(failed)? {
            server.put(called, &file.path, Content::File { mode: file.mode, bytes: file.contents.into() }).await?;
        }
        for (link, target) in first.links() {
            server.put(called, &link, Content::Link(target)).await?;
        }
        Ok(())
    }

    /// Gives an existing machine new boot data: its agent reads it when it starts, unless it was claimed meanwhile.
    async fn send_again(
        &self,
        server: &Server,
        order: &MachineOrder,
        boot_digest: &str,
        found: &Instance,
    ) -> Result<(), IncusError> {
        let path = format!("/1.0/instances/{}", found.called);
        let boot = boot_text(order)?;
        server.put(&found.called, first_boot::BOOT, Content::File { mode: 0o600, bytes: boot.into() }).await?;
        if found.runs() {
            let stop = json!({"action": "stop", "timeout": 30});
            server.change(Method::PUT, &format!("{path}/state"), Some(&stop)).await?;
        }
        server.change(Method::PATCH, &path, Some(&json!({"config": {BOOT: boot_digest}}))).await
    }

    async fn await_agent(&self, order: &MachineOrder, called: &str) -> Result<(), IncusError> {
        let at = SocketAddr::new(order.address, order.agent_port);
        let limit = if self.settings.machines.installs() { INSTALL_LIMIT } else { BOOT_LIMIT };
        let served = reach::await_answer(at, TRIES, limit).await;
        served.map_err(|waited| IncusError::NoAgent { name: called.to_owned(), at, waited })
    }
}

const VOLUME_SUFFIX: &str = "-data";

fn volume_name(called: &str) -> String {
    format!("{called}{VOLUME_SUFFIX}")
}

fn is_fingerprint(image: &str) -> bool {
    image.len() >= 12 && image.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())
}

fn boot_text(order: &MachineOrder) -> Result<String, IncusError> {
    let failed = |source| UserDataError::Boot { machine: order.name.clone(), source };
    Ok(serde_json::to_string(&order.boot).map_err(failed)? + "\n")
}

/// The path of the agent's program. An interrupted upload may still be under way when the next run makes a machine of
/// the same name: it must not be the same file.
fn program(boot_digest: &str) -> String {
    format!("{AGENT_PROGRAM}-{}", &boot_digest[..boot_digest.len().min(12)])
}

fn boot_digest(order: &MachineOrder) -> Result<String, IncusError> {
    Ok(digest(&boot_text(order)?))
}
