//! orders → virtual machines through libvirt: a domain, its disks, and the seed disk for cloud-init.
//!
//! libvirt is reached by the system's own `virsh`, so that every URI that it supports works, and the user's SSH
//! configuration and policies apply. A domain of this fleet has a tag in its metadata; a volume of this fleet has a
//! prefix in its name. An object with neither is never touched.

mod iso;
mod virsh;
mod xml;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use raftsman_core::render::cloud_init::{self, FurtherInterface};
use raftsman_core::render::first_boot::{AgentFrom, FirstBoot};
use raftsman_core::spec::{Acceleration, ByteSize, Cloning, Libvirt as Spec, Link, Machines, Name};

use self::virsh::Virsh;
use self::xml::{Card, Disk, Domain, Tag, Volume};
use crate::files::failed;
use crate::reach::{self, Tries};
use crate::{MachineOrder, MachineRecord, Power, Provider, ProviderError, hardware_address, server_name};

pub use self::virsh::LibvirtError;

/// From a machine's start until its agent serves: a first boot that installs packages, on a slow host.
const START_LIMIT: Duration = Duration::from_secs(900);
const TRIES: Tries = Tries { once: Duration::from_secs(3), pause: Duration::from_millis(250) };
/// The label that cloud-init looks for.
const SEED_LABEL: &str = "cidata";
/// The data disk's serial number, and how the machine finds it by that.
const DATA_SERIAL: &str = "raftsman-data";
const DATA_DISK: &str = "/dev/disk/by-id/virtio-raftsman-data";
/// The prefix of a shape that names the interface of a machine without a libvirt network.
const MACVTAP: &str = "macvtap ";
const VCPUS: u32 = 2;
const MEMORY: ByteSize = ByteSize::gib(8);

/// Where virtual machines are made, and what they are like.
#[derive(Clone, Debug)]
pub struct LibvirtSettings {
    /// The fleet's name, which names of domains begin with.
    pub fleet: String,
    /// The fleet that the machines belong to.
    pub fleet_id: String,
    /// The `raftsman-agent` program that is put on them.
    pub agent: PathBuf,
    /// What the file says of machines.
    pub machines: Machines,
}

/// Virtual machines through libvirt.
#[derive(Clone, Debug)]
pub struct Libvirt {
    settings: LibvirtSettings,
    spec: Spec,
    virsh: Virsh,
}

/// Which of a machine's disks a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Seed,
    System,
    /// Deleted last: while it exists, so does the machine.
    Data,
}

/// A volume of this fleet: the content of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owned {
    pool: String,
    name: String,
    machine: String,
    address: IpAddr,
    part: Part,
}

#[async_trait]
impl Provider for Libvirt {
    async fn inventory(&self) -> Result<Vec<MachineRecord>, ProviderError> {
        let mut machines = BTreeMap::new();
        for domain in self.domains().await? {
            let running = domain.running;
            let Domain { name, uuid, tag, .. } = domain;
            let ours = tag.filter(|tag| self.is_ours(tag, &name));
            machines.extend(ours.map(|tag| (tag.machine.clone(), record(&tag, &uuid, running))));
        }
        for volume in self.volumes().await? {
            machines.entry(volume.machine.clone()).or_insert_with(|| volume.record());
        }
        Ok(machines.into_values().collect())
    }

    async fn machine(&self, name: &str) -> Result<Option<MachineRecord>, ProviderError> {
        if let Some((domain, tag)) = self.ours(name).await? {
            return Ok(Some(record(&tag, &domain.uuid, domain.running)));
        }
        // Its domain is gone, or was never made: it is made around what is left.
        Ok(self.volumes().await?.into_iter().find(|volume| volume.machine == name).map(|volume| volume.record()))
    }

    /// One list for all of them: each request starts a program, and over SSH costs a login.
    async fn machines(&self, names: &[String]) -> Vec<Result<Option<MachineRecord>, ProviderError>> {
        let known: BTreeMap<String, MachineRecord> = match self.inventory().await {
            Ok(all) => all.into_iter().map(|machine| (machine.name.clone(), machine)).collect(),
            Err(_) => BTreeMap::new(),
        };
        let mut found = Vec::new();
        for name in names {
            found.push(match known.get(name) {
                Some(machine) => Ok(Some(machine.clone())),
                // Not there, or not ours: a query by its name tells.
                None => self.machine(name).await,
            });
        }
        found
    }

    async fn create(&self, order: &MachineOrder) -> Result<MachineRecord, ProviderError> {
        Ok(self.for_order(order).make(order).await?)
    }

    async fn start(&self, name: &str) -> Result<(), ProviderError> {
        let found = self.ours(name).await?;
        let (domain, tag) = found.ok_or_else(|| LibvirtError::Missing(name.to_owned()))?;
        self.switch_on(&domain, tag).await?;
        Ok(())
    }

    async fn readdress(&self, name: &str, _: IpAddr) -> Result<(), ProviderError> {
        Err(LibvirtError::NoMove(name.to_owned()).into())
    }

    async fn dismantle(&self, name: &str, seen: Option<&str>) -> Result<(), ProviderError> {
        self.is_the_same(name, seen).await?;
        let data = |volume: &Owned| volume.machine == name && volume.part == Part::Data;
        if !self.volumes().await?.iter().any(data) {
            return Err(ProviderError::NoDataDisk(name.to_owned()));
        }
        Ok(self.undefine(name).await.map(drop)?)
    }

    async fn delete(&self, name: &str, seen: Option<&str>) -> Result<(), ProviderError> {
        self.is_the_same(name, seen).await?;
        Ok(self.remove(name).await?)
    }
}

/// A domain that was defined and never started is incomplete.
fn record(tag: &Tag, uuid: &str, running: bool) -> MachineRecord {
    MachineRecord {
        name: tag.machine.clone(),
        id: Some(uuid.to_owned()),
        address: tag.address,
        agent_port: tag.agent_port,
        power: if running { Power::Running } else { Power::Stopped },
        finished: tag.started || running,
        shape: tag.shape.clone(),
        zone: None,
    }
}

impl Owned {
    fn record(&self) -> MachineRecord {
        MachineRecord {
            name: self.machine.clone(),
            id: None,
            address: self.address,
            agent_port: raftsman_core::desired::AGENT_PORT,
            power: Power::Stopped,
            finished: false,
            shape: None,
            zone: None,
        }
    }
}

/// The prefix of a fleet's volumes. Neither ids nor names of machines have an underscore.
fn prefix(fleet: &str) -> String {
    format!("raftsman_{fleet}_")
}

/// The name of a machine's volume: all that must be known of the machine when nothing else of it is left.
fn volume_name(fleet: &str, machine: &str, address: IpAddr, part: Part) -> String {
    let part = match part {
        Part::Seed => "seed.iso",
        Part::System => "system",
        Part::Data => "data",
    };
    // A colon would be parsed as a protocol.
    format!("{}{machine}_{}_{part}", prefix(fleet), address.to_string().replace(':', "-"))
}

/// The reverse, for a volume of this fleet.
fn owned(fleet: &str, pool: &str, name: &str) -> Option<Owned> {
    let mut words = name.strip_prefix(&prefix(fleet))?.split('_');
    let (machine, address, part) = (words.next()?, words.next()?, words.next()?);
    let address = address.parse().or_else(|_| address.replace('-', ":").parse()).ok()?;
    let part = match part {
        "seed.iso" => Part::Seed,
        "system" => Part::System,
        "data" => Part::Data,
        _ => return None,
    };
    let whole = words.next().is_none() && Name::parse(machine).is_ok();
    whole.then(|| Owned { pool: pool.to_owned(), name: name.to_owned(), machine: machine.to_owned(), address, part })
}

impl Libvirt {
    /// The provider with these settings. It connects to nothing yet.
    pub fn new(settings: LibvirtSettings) -> Self {
        let spec = settings.machines.libvirt.clone().unwrap_or_default();
        let virsh = Virsh { uri: spec.uri.clone() };
        Self { settings, spec, virsh }
    }

    /// The same libvirt, with the file's settings for the ordered machine.
    fn for_order(&self, order: &MachineOrder) -> Self {
        let machines = order.machines.as_deref().unwrap_or(&self.settings.machines).clone();
        Self::new(LibvirtSettings { machines, ..self.settings.clone() })
    }

    /// The name of a new machine in libvirt.
    fn called(&self, machine: &str) -> String {
        server_name(&self.settings.fleet, machine)
    }

    /// Whether a domain of this name with this tag is this fleet's. A copy of one has another name, and is not. Earlier
    /// versions named domains by the machine's name alone.
    fn is_ours(&self, tag: &Tag, called: &str) -> bool {
        tag.fleet == self.settings.fleet_id && (called == tag.machine || called == self.called(&tag.machine))
    }

    fn uri(&self) -> String {
        self.spec.uri.clone()
    }

    fn malformed(&self, what: &str) -> impl FnOnce(String) -> LibvirtError {
        let (uri, what) = (self.uri(), what.to_owned());
        move |why| LibvirtError::Malformed { uri, what, why }
    }

    // What is there.

    /// The domain of this name, whatever its owner.
    async fn domain(&self, name: &str) -> Result<Option<Domain>, LibvirtError> {
        let text = match self.virsh.ask(&["dumpxml", &format!("--domain={name}")]).await {
            Err(error) if error.says("Domain not found") || error.says("failed to get domain") => return Ok(None),
            asked => asked?,
        };
        let domain = xml::read_domain(&text).map_err(self.malformed(name))?;
        // A name of digits may match another domain's number.
        Ok((domain.name == name).then_some(domain))
    }

    /// The domain of this machine and its tag. A foreign domain of its name is an error.
    async fn ours(&self, machine: &str) -> Result<Option<(Domain, Tag)>, LibvirtError> {
        for called in [self.called(machine), machine.to_owned()] {
            let Some(domain) = self.domain(&called).await? else { continue };
            match &domain.tag {
                Some(tag) if self.is_ours(tag, &called) && tag.machine == machine => {
                    let tag = tag.clone();
                    return Ok(Some((domain, tag)));
                }
                // A foreign domain that only has the machine's own name does not conflict.
                _ if called == machine => {}
                _ => return Err(LibvirtError::NotOurs { uri: self.uri(), name: called }),
            }
        }
        Ok(None)
    }

    /// All domains. One connection to libvirt for all of them: over SSH each costs a login.
    async fn domains(&self) -> Result<Vec<Domain>, LibvirtError> {
        let list = self.virsh.ask(&["list", "--all", "--uuid"]).await?;
        let uuids: Vec<&str> = list.split_whitespace().collect();
        if uuids.is_empty() {
            return Ok(Vec::new());
        }
        let script: String = uuids.iter().map(|uuid| format!("dumpxml {uuid};")).collect();
        let texts = match self.virsh.ask(&[&script]).await {
            Ok(text) => text.split_inclusive("</domain>\n").map(str::to_owned).collect(),
            // One of them was removed meanwhile.
            Err(_) => {
                let mut texts = Vec::new();
                for uuid in uuids {
                    match self.virsh.ask(&["dumpxml", uuid]).await {
                        Err(error) if error.says("Domain not found") => {}
                        asked => texts.push(asked?),
                    }
                }
                texts
            }
        };
        let texts = texts.iter().filter(|text| !text.trim().is_empty());
        texts.map(|text| xml::read_domain(text.trim()).map_err(self.malformed("a domain"))).collect()
    }

    /// The volumes of ours.
    async fn volumes(&self) -> Result<Vec<Owned>, LibvirtError> {
        let pools = BTreeSet::from([self.spec.pool.as_str(), self.spec.data_pool(), self.spec.seed_pool()]);
        let mut volumes = Vec::new();
        for pool in pools {
            // virsh lists volumes only as a table. Our names have no blanks.
            let list = self.virsh.ask(&["vol-list", &format!("--pool={pool}")]).await;
            let list = list.map_err(|error| self.of_pool(pool, error))?;
            let names = list.lines().filter_map(|line| line.split_whitespace().next());
            volumes.extend(names.filter_map(|name| owned(&self.settings.fleet_id, pool, name)));
        }
        Ok(volumes)
    }

    async fn volume(&self, pool: &str, name: &str) -> Result<Option<Volume>, LibvirtError> {
        let arguments = ["vol-dumpxml", &format!("--vol={name}"), &format!("--pool={pool}")];
        match self.virsh.ask(&arguments).await {
            Err(error) if error.says("Storage volume not found") || error.says("failed to get vol") => Ok(None),
            Err(error) => Err(self.of_pool(pool, error)),
            Ok(text) => xml::read_volume(&text).map(Some).map_err(self.malformed(name)),
        }
    }

    fn of_pool(&self, pool: &str, error: LibvirtError) -> LibvirtError {
        match error.words(&["Storage pool not found", "failed to get pool", "is not active"]) {
            Ok(words) => LibvirtError::NoPool { uri: self.uri(), pool: pool.to_owned(), words },
            Err(error) => error,
        }
    }

    // Making.

    async fn make(&self, order: &MachineOrder) -> Result<MachineRecord, LibvirtError> {
        let life = cloud_init::instance_id(&order.boot);
        let (domain, tag) = match self.ours(&order.name).await? {
            None => self.define(order, life).await?,
            Some((domain, mut tag)) => {
                if tag.address != order.address {
                    let (found, wanted) = (tag.address, order.address);
                    return Err(LibvirtError::OtherAddress { name: order.name.clone(), found, wanted });
                }
                if tag.life == life {
                    (domain, tag)
                } else {
                    // It waits with outdated boot data. The content of its disks stays.
                    self.switch_off(&domain).await?;
                    self.put_seed(order).await?;
                    tag.life = life;
                    self.set_tag(&domain.uuid, &tag, false).await?;
                    (Domain { running: false, ..domain }, tag)
                }
            }
        };
        self.keep_lease(order).await?;
        if self.spec.autostart {
            self.virsh.ask(&["autostart", &domain.uuid]).await?;
        }
        let tag = self.switch_on(&domain, tag).await?;
        Ok(record(&tag, &domain.uuid, true))
    }

    /// Makes a machine's disks and defines its domain. Its data disk may exist already.
    async fn define(&self, order: &MachineOrder, life: String) -> Result<(Domain, Tag), LibvirtError> {
        let name = &order.name;
        let tag = Tag {
            fleet: self.settings.fleet_id.clone(),
            machine: name.clone(),
            address: order.address,
            agent_port: order.agent_port,
            life,
            started: false,
            shape: self.settings.machines.shape(),
        };
        // All requirements, before anything is made.
        let capabilities = match self.spec.acceleration {
            None => self.virsh.ask(&["domcapabilities"]).await,
            Some(Acceleration::Kvm) => self.virsh.ask(&["domcapabilities", "--virttype=kvm"]).await,
            Some(Acceleration::None) => self.virsh.ask(&["domcapabilities", "--virttype=qemu"]).await,
        };
        let host = capabilities.map_err(|error| self.of_start(name, error))?;
        let host = xml::read_host(&host).map_err(self.malformed("its host"))?;
        let image = self.image().await?;
        let macs = self.macs(name);
        let mut cards = Vec::new();
        for (link, mac) in self.links().zip(&macs) {
            if let Link::Network(network) = link {
                let (known, _) = self.network(network, mac, order.address).await?;
                cards.push((Some(known), link, mac));
            } else {
                cards.push((None, link, mac));
            }
        }

        // Disks of an interrupted creation; data disks are never among them.
        let left = self.volumes().await?.into_iter().filter(|volume| volume.machine == *name);
        let (kept, left): (Vec<Owned>, Vec<Owned>) = left.partition(|volume| volume.part == Part::Data);
        for volume in left {
            self.delete_volume(&volume.pool, &volume.name).await?;
        }
        let pool = &self.spec.pool;
        let system = volume_name(&tag.fleet, name, order.address, Part::System);
        self.make_system(&system, &image).await?;
        let data = match self.settings.machines.data_disk {
            None => None,
            Some(size) => {
                let made = volume_name(&tag.fleet, name, order.address, Part::Data);
                let data = kept.into_iter().next().map_or(made, |volume| volume.name);
                let pool = self.spec.data_pool();
                if self.volume(pool, &data).await?.is_none() {
                    let format = self.format(pool).await?;
                    self.make_volume(pool, &xml::volume(&data, size.bytes(), format, None)).await?;
                }
                Some(data)
            }
        };
        let seed = self.put_seed(order).await?;

        let there = |volume: Option<Volume>, name: &str| {
            volume.ok_or_else(|| LibvirtError::Missing(format!("disk {name} of {}", order.name)))
        };
        let system_volume = there(self.volume(pool, &system).await?, &system)?;
        let seed_pool = self.spec.seed_pool();
        let seed_volume = there(self.volume(seed_pool, &seed).await?, &seed)?;
        let mut disks = vec![Disk {
            pool,
            name: &system,
            volume: &system_volume,
            serial: Some("raftsman-system"),
            readonly: false,
        }];
        let data_volume;
        if let Some(data) = &data {
            let pool = self.spec.data_pool();
            data_volume = there(self.volume(pool, data).await?, data)?;
            disks.push(Disk { pool, name: data, volume: &data_volume, serial: Some(DATA_SERIAL), readonly: false });
        }
        let serial = Some("raftsman-seed");
        disks.push(Disk { pool: seed_pool, name: &seed, volume: &seed_volume, serial, readonly: true });
        let cards: Vec<Card<'_>> = cards
            .iter()
            .map(|(known, link, mac)| Card { link: known.as_deref().map_or(*link, Link::Network), mac })
            .collect();
        let machines = &self.settings.machines;
        let called = self.called(name);
        let description = xml::Order {
            name: &called,
            tag: &tag,
            host: &host,
            vcpus: machines.vcpus.unwrap_or(VCPUS),
            memory: machines.memory.unwrap_or(MEMORY).bytes(),
            firmware: self.spec.firmware,
            disks: &disks,
            cards: &cards,
        };
        let defined = self.virsh.define(&["define", "/dev/stdin"], &description.render()).await;
        defined.map_err(|error| self.of_start(&called, error))?;
        self.ours(name).await?.ok_or_else(|| LibvirtError::Missing(name.clone()))
    }

    /// What its interfaces are connected to, etcd's first.
    fn links(&self) -> impl Iterator<Item = Link<'_>> {
        std::iter::once(self.spec.link()).chain(self.spec.interfaces.iter().map(|interface| interface.link()))
    }

    /// A machine's hardware addresses, in the same order.
    fn macs(&self, machine: &str) -> Vec<String> {
        let given =
            std::iter::once(&self.spec.macs).chain(self.spec.interfaces.iter().map(|interface| &interface.macs));
        let mac = |(index, given): (usize, &BTreeMap<Name, String>)| match given.get(machine) {
            Some(mac) => mac.to_ascii_lowercase(),
            None if index == 0 => hardware_address(&self.settings.fleet_id, machine),
            None => hardware_address(&self.settings.fleet_id, &format!("{machine}\n{index}")),
        };
        given.enumerate().map(mac).collect()
    }

    /// The network's own name, and whether it keeps this address for this machine.
    async fn network(&self, network: &str, mac: &str, address: IpAddr) -> Result<(String, bool), LibvirtError> {
        let asked = self.virsh.ask(&["net-dumpxml", &format!("--network={network}")]).await;
        let text = asked.map_err(|error| self.of_network(network, error))?;
        xml::read_network(&text, mac, address).map_err(self.malformed(network))
    }

    fn of_network(&self, network: &str, error: LibvirtError) -> LibvirtError {
        match error.words(&["Network not found", "failed to get network", "is not active"]) {
            Ok(words) => LibvirtError::NoNetwork { uri: self.uri(), network: network.to_owned(), words },
            Err(error) => error,
        }
    }

    async fn image(&self) -> Result<Volume, LibvirtError> {
        let image = self.settings.machines.image.as_deref().unwrap_or_default();
        let pool = self.spec.image_pool();
        if let Some(volume) = self.volume(pool, image).await? {
            return Ok(volume);
        }
        // A file that was put into the pool's directory manually shows after a refresh.
        let _ = self.virsh.ask(&["pool-refresh", &format!("--pool={pool}")]).await;
        let found = self.volume(pool, image).await?;
        let missing = || LibvirtError::NoImage { uri: self.uri(), pool: pool.to_owned(), image: image.to_owned() };
        found.ok_or_else(missing)
    }

    /// The format of disks in this pool: files grow as they are filled.
    async fn format(&self, pool: &str) -> Result<&'static str, LibvirtError> {
        let asked = self.virsh.ask(&["pool-dumpxml", &format!("--pool={pool}")]).await;
        let text = asked.map_err(|error| self.of_pool(pool, error))?;
        let kind = xml::read_pool(&text).map_err(self.malformed(pool))?;
        Ok(if matches!(kind.as_str(), "dir" | "fs" | "netfs") { "qcow2" } else { "raw" })
    }

    async fn make_volume(&self, pool: &str, description: &str) -> Result<(), LibvirtError> {
        let arguments = ["vol-create", &format!("--pool={pool}"), "--file=/dev/stdin"];
        let made = self.virsh.define(&arguments, description).await;
        made.map(drop).map_err(|error| self.of_pool(pool, error))
    }

    async fn make_system(&self, name: &str, image: &Volume) -> Result<(), LibvirtError> {
        let pool = &self.spec.pool;
        let wanted = self.settings.machines.disk.map_or(image.capacity, ByteSize::bytes);
        let capacity = wanted.max(image.capacity);
        let format = self.format(pool).await?;
        if self.spec.clone == Cloning::Overlay && format == "qcow2" {
            return self.make_volume(pool, &xml::volume(name, capacity, format, Some(image))).await;
        }
        let description = xml::volume(name, image.capacity, format, None);
        let from = self.settings.machines.image.as_deref().unwrap_or_default();
        let arguments = [
            "vol-create-from",
            &format!("--pool={pool}"),
            "--file=/dev/stdin",
            &format!("--vol={from}"),
            &format!("--inputpool={}", self.spec.image_pool()),
        ];
        let copied = self.virsh.send(&arguments, description.into_bytes()).await;
        copied.map_err(|error| self.of_pool(pool, error))?;
        if capacity > image.capacity {
            let size = format!("--capacity={capacity}B");
            let arguments = ["vol-resize", &format!("--vol={name}"), &format!("--pool={pool}"), &size];
            self.virsh.ask(&arguments).await?;
        }
        Ok(())
    }

    /// Puts the seed disk of the machine into its pool; returns the name of the volume.
    async fn put_seed(&self, order: &MachineOrder) -> Result<String, LibvirtError> {
        let machines = &self.settings.machines;
        let macs = self.macs(&order.name);
        let first = FirstBoot {
            boot: &order.boot,
            machines,
            members: &order.members,
            mac: macs.first().map(String::as_str),
            data_disk: machines.data_disk.map(|_| DATA_DISK),
            agent: AgentFrom::SeedDisk,
            programs: &order.packages,
            files_in_place: false,
        };
        let further: Vec<FurtherInterface<'_>> = self
            .spec
            .interfaces
            .iter()
            .zip(macs.iter().skip(1))
            .map(|(interface, mac)| FurtherInterface {
                mac,
                address: interface.addresses.get(order.name.as_str()).copied(),
                subnet: interface.subnet,
                gateway: interface.gateway,
                dns: interface.dns.as_ref(),
            })
            .collect();
        let program = &self.settings.agent;
        let agent = tokio::fs::read(program).await.map_err(failed("read", program))?;
        let user_data = cloud_init::user_data(&first)?;
        let meta_data = cloud_init::meta_data(&order.boot);
        let network = cloud_init::network_config_of(&first, &further);
        let files: [iso::Entry<'_>; 4] = [
            ("user-data", user_data.as_bytes()),
            ("meta-data", meta_data.as_bytes()),
            ("network-config", network.as_bytes()),
            ("raftsman-agent", &agent),
        ];
        let image = iso::image(SEED_LABEL, &files);
        let pool = self.spec.seed_pool();
        let name = volume_name(&self.settings.fleet_id, &order.name, order.address, Part::Seed);
        // Its size depends on its content.
        self.delete_volume(pool, &name).await?;
        self.make_volume(pool, &xml::volume(&name, image.len() as u64, "raw", None)).await?;
        let arguments = ["vol-upload", &format!("--vol={name}"), "--file=/dev/stdin", &format!("--pool={pool}")];
        self.virsh.send(&arguments, image).await?;
        Ok(name)
    }

    /// Without a subnet the machine uses DHCP: libvirt's network reserves the address for it.
    async fn keep_lease(&self, order: &MachineOrder) -> Result<(), LibvirtError> {
        let Some((network, mac)) = self.leased(&order.name) else { return Ok(()) };
        let (network, kept) = self.network(network, &mac, order.address).await?;
        if kept {
            return Ok(());
        }
        let host = xml::lease(&mac, &self.called(&order.name), order.address);
        self.update_lease(&network, "add-last", &host).await.map_err(|error| match error {
            LibvirtError::Refused { words, .. } if words.contains("is not active") => {
                LibvirtError::NoNetwork { uri: self.uri(), network, words }
            }
            LibvirtError::Refused { words, .. } => {
                LibvirtError::NoLease { machine: order.name.clone(), network, words }
            }
            other => other,
        })
    }

    /// Removes the network's reservation of the machine's address. It may be another network than that of a new
    /// machine.
    async fn drop_lease(&self, name: &str, address: IpAddr, on: Option<&str>) -> Result<(), LibvirtError> {
        let Some((network, mac)) = self.leased(name) else { return Ok(()) };
        let network = on.filter(|on| !on.starts_with(MACVTAP)).unwrap_or(network);
        match self.network(network, &mac, address).await {
            // Gone with its network.
            Err(LibvirtError::NoNetwork { .. }) => Ok(()),
            Err(error) => Err(error),
            Ok((_, false)) => Ok(()),
            Ok((network, true)) => self.update_lease(&network, "delete", &xml::held(&mac, address)).await,
        }
    }

    /// The network that reserves the machine's address, and the MAC address that it is reserved for.
    fn leased(&self, name: &str) -> Option<(&str, String)> {
        match self.spec.link() {
            Link::Network(network) if self.settings.machines.subnet.is_none() => {
                Some((network, self.macs(name).into_iter().next()?))
            }
            _ => None,
        }
    }

    async fn update_lease(&self, network: &str, verb: &str, host: &str) -> Result<(), LibvirtError> {
        let network = format!("--network={network}");
        let arguments = ["net-update", &network, verb, "ip-dhcp-host", host, "--live", "--config"];
        self.virsh.ask(&arguments).await.map(drop)
    }

    // Power.

    /// Starts it unless it runs, and waits for its agent.
    async fn switch_on(&self, domain: &Domain, mut tag: Tag) -> Result<Tag, LibvirtError> {
        if !domain.running {
            match self.virsh.ask(&["start", &domain.uuid]).await {
                Err(error) if error.says("already active") => {}
                started => drop(started.map_err(|error| self.of_start(&domain.name, error))?),
            }
        }
        if !tag.started {
            tag.started = true;
            self.set_tag(&domain.uuid, &tag, true).await?;
        }
        let address = SocketAddr::new(tag.address, tag.agent_port);
        let served = reach::await_answer(address, TRIES, START_LIMIT).await;
        let silent = |_| {
            let (uri, name) = (self.uri(), domain.name.clone());
            LibvirtError::Silent { uri, name, address, limit: START_LIMIT }
        };
        served.map_err(silent)?;
        Ok(tag)
    }

    async fn switch_off(&self, domain: &Domain) -> Result<(), LibvirtError> {
        match self.virsh.ask(&["destroy", &domain.uuid]).await {
            Err(error) if error.says("is not running") || error.says("Domain not found") => Ok(()),
            ended => ended.map(drop),
        }
    }

    async fn set_tag(&self, uuid: &str, tag: &Tag, live: bool) -> Result<(), LibvirtError> {
        let uri = format!("--uri={}", xml::NAMESPACE);
        let element = tag.element();
        let mut arguments = vec!["metadata", uuid, &uri, "--key=raftsman", "--set", &element, "--config"];
        if live {
            arguments.push("--live");
        }
        self.virsh.ask(&arguments).await.map(drop)
    }

    /// The cause of libvirt's error when it does not accept or start a domain.
    fn of_start(&self, machine: &str, error: LibvirtError) -> LibvirtError {
        let LibvirtError::Refused { uri, verb, words } = error else { return error };
        let has = |any: &[&str]| any.iter().any(|what| words.contains(what));
        let machine = machine.to_owned();
        let macvtap = self.links().find_map(|link| match link {
            Link::Macvtap(interface) if words.contains(interface) => Some(interface.to_owned()),
            _ => None,
        });
        let network = self.links().find_map(|link| match link {
            Link::Network(network) if words.contains(network) => Some(network.to_owned()),
            _ => None,
        });
        if has(&["Network not found", "network '"])
            && has(&["is not active", "Network not found"])
            && let Some(network) = network
        {
            LibvirtError::NoNetwork { uri, network, words }
        } else if let Some(interface) = macvtap {
            LibvirtError::NoInterface { machine, interface, words }
        } else if has(&["Permission denied", "apparmor", "AppArmor"]) {
            LibvirtError::NoDiskAccess { machine, words }
        } else if has(&["Unable to find any firmware", "Unable to find 'efi' firmware"]) {
            LibvirtError::NoFirmware { machine, words }
        } else if has(&["type=kvm", "virttype 'kvm'", "KVM is not supported", "/dev/kvm"]) {
            LibvirtError::NoKvm { machine, words }
        } else if has(&["already exists with uuid"]) {
            LibvirtError::NotOurs { uri, name: machine }
        } else {
            LibvirtError::Refused { uri, verb, words }
        }
    }

    // Giving back.

    /// Stops it and undefines it; returns its tag, if it existed. Its volumes stay: all but the data disk are deleted
    /// before it is made again.
    async fn undefine(&self, name: &str) -> Result<Option<Tag>, LibvirtError> {
        let Some((domain, tag)) = self.ours(name).await? else { return Ok(None) };
        self.switch_off(&domain).await?;
        let all = ["--managed-save", "--snapshots-metadata", "--checkpoints-metadata", "--nvram"];
        match self.virsh.ask(&[&["undefine", &domain.uuid][..], &all].concat()).await {
            Err(error) if error.says("Domain not found") => {}
            undefined => drop(undefined?),
        }
        Ok(Some(tag))
    }

    async fn remove(&self, name: &str) -> Result<(), LibvirtError> {
        let tag = self.undefine(name).await?;
        let mut volumes: Vec<Owned> =
            self.volumes().await?.into_iter().filter(|volume| volume.machine == name).collect();
        volumes.sort_by_key(|volume| volume.part);
        let address = tag.as_ref().map(|tag| tag.address);
        if let Some(address) = address.or_else(|| volumes.first().map(|volume| volume.address)) {
            let network = tag.as_ref().and_then(|tag| tag.shape.as_ref()?.part("network"));
            self.drop_lease(name, address, network).await?;
        }
        for volume in volumes {
            self.delete_volume(&volume.pool, &volume.name).await?;
        }
        Ok(())
    }

    async fn delete_volume(&self, pool: &str, name: &str) -> Result<(), LibvirtError> {
        let arguments = ["vol-delete", &format!("--vol={name}"), &format!("--pool={pool}")];
        match self.virsh.ask(&arguments).await {
            Err(error) if error.says("Storage volume not found") || error.says("failed to get vol") => Ok(()),
            deleted => deleted.map(drop).map_err(|error| self.of_pool(pool, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_volumes_tell_whose_they_are() {
        for (machine, address) in [("etcd-1", "10.79.0.11"), ("a", "fd00::5")] {
            let address: IpAddr = address.parse().expect("an address");
            for part in [Part::Seed, Part::System, Part::Data] {
                let name = volume_name("0a1b", machine, address, part);
                let found = owned("0a1b", "p", &name).expect("ours");
                assert_eq!((found.machine.as_str(), found.address, found.part), (machine, address, part));
                assert_eq!(owned("0a1", "p", &name), None);
            }
        }
        for name in ["base.qcow2", "raftsman_0a1b_etcd-1_data", "raftsman_0a1b_etcd-1_10.0.0.1_data_2", ""] {
            assert_eq!(owned("0a1b", "p", name), None, "{name}");
        }
    }
}
