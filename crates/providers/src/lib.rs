//! settings → a connection to a provider of machines; orders → machines.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use raftsman_core::boot::Boot;
use raftsman_core::spec::{Machines, Name, Shape};
use serde::{Deserialize, Serialize};

pub mod hosts;
pub mod incus;
pub mod libvirt;
pub mod local;
pub mod networks;

mod files;
mod process;
mod program;
mod reach;
mod zoned;

pub use files::FileError;
pub use hosts::{Hosts, HostsError, HostsSettings, Ssh};
pub use incus::{Incus, IncusError, IncusSettings};
pub use libvirt::{Libvirt, LibvirtError, LibvirtSettings};
pub use local::{Local, LocalError, LocalSettings};
pub use zoned::{Part, Zoned};

/// The settings of a provider.
#[derive(Clone, Debug)]
pub enum Settings {
    /// This computer: a machine is a directory and an agent process.
    Local(LocalSettings),
    /// Hosts that exist already, reached by SSH once.
    Hosts(HostsSettings),
    /// An Incus server.
    Incus(IncusSettings),
    /// Virtual machines through libvirt.
    Libvirt(LibvirtSettings),
}

/// A provider of machines: the contract of all providers, tested by one suite against every real server.
///
/// Idempotent by name and by the fleet's tag: an order whose reply was lost is repeated, and makes nothing twice. An
/// object with another fleet's tag, or without one, is never touched.
#[async_trait]
pub trait Provider: fmt::Debug + Send + Sync {
    /// The fleet's machines, by name.
    async fn inventory(&self) -> Result<Vec<MachineRecord>, ProviderError>;

    /// The names of its connections: a server, a daemon or a zone each. Most providers have one, without a name.
    fn connections(&self) -> Vec<String> {
        vec![String::new()]
    }

    /// The connection that the machine of this name is on, or is to be made on; none where it may be on any of them.
    fn connection_of(&self, _name: &str) -> Option<String> {
        Some(String::new())
    }

    /// The fleet's machines on one connection, by name: another connection that does not answer is not waited for.
    async fn inventory_of(&self, _connection: &str) -> Result<Vec<MachineRecord>, ProviderError> {
        self.inventory().await
    }

    /// The machine of this name, if there is one: observing a cluster must not cost a query of the whole fleet.
    async fn machine(&self, name: &str) -> Result<Option<MachineRecord>, ProviderError>;

    /// The machines of these names, in the same order: with one request where the server supports it.
    async fn machines(&self, names: &[String]) -> Vec<Result<Option<MachineRecord>, ProviderError>> {
        futures::future::join_all(names.iter().map(|name| self.machine(name))).await
    }

    /// An address for a machine that is to be made in this zone, with these settings of the file: none of those that are
    /// taken. Where the server keeps reservations, the same one at every request for this name. The caller records it
    /// before the machine is ordered with it.
    async fn assign(
        &self,
        name: &str,
        _zone: Option<&Name>,
        _machines: &Machines,
        _taken: &BTreeSet<IpAddr>,
    ) -> Result<IpAddr, ProviderError> {
        Err(ProviderError::AssignsNone(name.to_owned()))
    }

    /// Makes a machine, or completes an incomplete one, and starts it.
    async fn create(&self, order: &MachineOrder) -> Result<MachineRecord, ProviderError>;

    /// Starts a machine that is there.
    async fn start(&self, name: &str) -> Result<(), ProviderError>;

    /// Gives a machine another address. Its programs continue meanwhile, at the old one.
    async fn readdress(&self, name: &str, address: IpAddr) -> Result<(), ProviderError>;

    /// Removes a machine except its data disk; the next order rebuilds it around that. Only the observed machine: see
    /// [`Provider::delete`].
    async fn dismantle(&self, name: &str, seen: Option<&str>) -> Result<(), ProviderError>;

    /// Deletes a machine, with its data; succeeds when there is none. With the id of the observed machine, only that
    /// one: another one of its name stays.
    async fn delete(&self, name: &str, seen: Option<&str>) -> Result<(), ProviderError>;

    /// Fails where the machine of this name is not the observed one. Machines without an id cannot be distinguished.
    async fn is_the_same(&self, name: &str, seen: Option<&str>) -> Result<(), ProviderError> {
        let Some(seen) = seen else { return Ok(()) };
        match self.machine(name).await?.and_then(|found| found.id) {
            Some(found) if found != seen => {
                Err(ProviderError::AnotherMachine { name: name.to_owned(), seen: seen.to_owned(), found })
            }
            _ => Ok(()),
        }
    }
}

/// A connection to a provider of machines.
pub type Connection = Arc<dyn Provider>;

/// Why a provider failed.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The local provider.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// Hosts that exist already.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// Incus.
    #[error(transparent)]
    Incus(#[from] IncusError),
    /// Virtual machines through libvirt.
    #[error(transparent)]
    Libvirt(#[from] LibvirtError),
    /// It was made again since it was observed.
    #[error(
        "the machine `{name}` is another one than was seen ({found}, not {seen}): nothing was taken away; look at \
         `raftsman plan` and run the command again"
    )]
    AnotherMachine {
        /// Its name.
        name: String,
        /// The id of the observed one.
        seen: String,
        /// The id of the current one.
        found: String,
    },
    /// A zone did not answer.
    #[error(
        "the zone {zones} has not answered within {} s: see whether its host is up and reached; if it is lost for good, \
         remove it from `machines.zones`",
        limit.as_secs()
    )]
    Silent {
        /// The zones that are reached by that connection.
        zones: String,
        /// For how long it was asked.
        limit: std::time::Duration,
    },
    /// Two machines of one name.
    #[error(
        "the machine `{name}` is in two zones, {zones}: one of them was lost and replaced; delete the one that is no \
         member any more"
    )]
    Twice {
        /// Its name.
        name: String,
        /// Where.
        zones: String,
    },
    /// In no zone of the file.
    #[error("the machine `{name}` is in no zone of the file: run `raftsman plan`")]
    Nowhere {
        /// Its name.
        name: String,
    },
    /// It assigns no addresses.
    #[error("this provider assigns no addresses: give `{0}` an `address:` in the file")]
    AssignsNone(String),
    /// Nothing would be left of it.
    #[error("the machine `{0}` has no data disk to rebuild it with: replace the member")]
    NoDataDisk(String),
}

impl ProviderError {
    /// Whether it refused because the object does not belong to this fleet.
    pub fn is_foreign(&self) -> bool {
        match self {
            Self::Local(error) => matches!(error, LocalError::NotOurs { .. }),
            // Foreign hosts are not in the state.
            Self::Hosts(_)
            | Self::NoDataDisk(_)
            | Self::AssignsNone(_)
            | Self::AnotherMachine { .. }
            | Self::Silent { .. }
            | Self::Twice { .. }
            | Self::Nowhere { .. } => false,
            Self::Incus(error) => matches!(error, IncusError::NotOurs { .. }),
            Self::Libvirt(error) => matches!(error, LibvirtError::NotOurs { .. }),
        }
    }
}

/// A machine to be made.
#[derive(Clone, Debug)]
pub struct MachineOrder {
    /// Its name, unique in the fleet: a DNS label.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// The port that its agent serves on.
    pub agent_port: u16,
    /// The cluster that it is for.
    pub cluster: String,
    /// The addresses of that cluster's machines, its own among them: the firewall admits them, and placement spreads
    /// them.
    pub members: Vec<IpAddr>,
    /// The boot data of its agent.
    pub boot: Boot,
    /// The zone that it is made in, where the file has zones.
    pub zone: Option<Name>,
    /// The section `machines` of the file as it holds for this machine; the fleet's where nothing is given.
    pub machines: Option<Arc<Machines>>,
    /// Binaries that come with it.
    pub artifacts: Vec<Artifact>,
    /// The distribution's packages of programs that its agent is to supervise.
    pub packages: Vec<String>,
    /// Its agent was installed manually and has proven its token: for an existing host, nothing is left to do.
    pub joined: bool,
}

/// A version of etcd that is put on the machine before its first start.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// The version, such as 3.6.15.
    pub version: String,
    /// The etcd binary on this computer.
    pub path: PathBuf,
}

/// Whether a machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Power {
    /// It does.
    Running,
    /// It does not.
    Stopped,
}

/// A machine that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineRecord {
    /// Its name.
    pub name: String,
    /// The provider's own id, which is unique, also among later machines of this name. None where only the data disk of
    /// a machine is left, or where it was made before there were ids.
    pub id: Option<String>,
    /// Its address.
    pub address: IpAddr,
    /// The port that its agent serves on.
    pub agent_port: u16,
    /// Whether it runs.
    pub power: Power,
    /// Whether its creation is complete; if not, [`Provider::create`] completes it.
    pub finished: bool,
    /// Its shape, where that is written on it.
    pub shape: Option<Shape>,
    /// The zone that it is in, where that is known.
    pub zone: Option<Name>,
}

/// The name of a machine on a server. Machines' names are unique in their fleet, and a server has machines of many
/// fleets: the fleet's name comes first. A name too long for a host name ends in a digest instead.
pub(crate) fn server_name(fleet: &str, machine: &str) -> String {
    let whole = format!("{fleet}-{machine}");
    if whole.len() <= Name::LONGEST {
        return whole;
    }
    let digest = raftsman_core::render::digest(&whole);
    let begin: String = whole.chars().take(Name::LONGEST - DIGEST_LENGTH - 1).collect();
    format!("{}-{}", begin.trim_end_matches('-'), digest.chars().take(DIGEST_LENGTH).collect::<String>())
}

/// 32 bits distinguish the machines of a server.
const DIGEST_LENGTH: usize = 8;

/// An id for a machine whose server gives it none.
pub(crate) fn new_id() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    // The hasher's keys are random; the time distinguishes ids of one process.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{:016x}", RandomState::new().hash_one(now))
}

/// The MAC address of a machine's first network card: the same at every order, and unique. Locally administered, so
/// that it differs from every manufactured card.
pub(crate) fn hardware_address(fleet_id: &str, machine: &str) -> String {
    let digest = raftsman_core::render::digest(&format!("{fleet_id}\n{machine}"));
    let bytes = digest.as_bytes().chunks(2).take(5).map(String::from_utf8_lossy);
    bytes.fold("02".to_owned(), |address, byte| address + ":" + &byte)
}

/// Connects to a provider of machines.
pub fn connect(settings: Settings) -> Connection {
    match settings {
        Settings::Local(settings) => Arc::new(Local::new(settings)),
        Settings::Hosts(settings) => Arc::new(Hosts::new(settings)),
        Settings::Incus(settings) => Arc::new(Incus::new(settings)),
        Settings::Libvirt(settings) => Arc::new(Libvirt::new(settings)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_tell_machines_of_two_fleets_apart() {
        assert_eq!(server_name("shop", "etcd-1"), "shop-etcd-1");
        assert_ne!(server_name("shop", "etcd-1"), server_name("bank", "etcd-1"));
        let long = "a".repeat(63);
        let (one, two) = (server_name(&long, "etcd-1"), server_name(&long, "etcd-2"));
        assert!(one.len() <= 63 && two.len() <= 63 && one != two, "{one} {two}");
        assert!(Name::parse(&one).is_ok());
    }
}
