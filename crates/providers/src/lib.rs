//! settings → a connection to where machines come from; orders → machines.

use std::net::IpAddr;
use std::path::PathBuf;

use raftsman_core::boot::Boot;
use serde::{Deserialize, Serialize};

pub mod local;
pub mod networks;

mod process;

pub use local::{Local, LocalError, LocalSettings};

/// Where machines come from.
#[derive(Clone, Debug)]
pub enum Settings {
    /// This computer: a machine is a directory and an agent process.
    Local(LocalSettings),
}

/// A connection to where machines come from. Idempotent by name: an order whose reply was lost is given again.
#[derive(Clone, Debug)]
pub enum Connection {
    /// This computer.
    Local(Local),
}

/// Why a provider did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The local provider.
    #[error(transparent)]
    Local(#[from] LocalError),
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
    /// What its agent is told.
    pub boot: Boot,
    /// Binaries that come with it.
    pub artifacts: Vec<Artifact>,
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
    /// Its address.
    pub address: IpAddr,
    /// The port that its agent serves on.
    pub agent_port: u16,
    /// Whether it runs.
    pub power: Power,
}

/// Connects to where machines come from.
pub fn connect(settings: Settings) -> Connection {
    match settings {
        Settings::Local(settings) => Connection::Local(Local::new(settings)),
    }
}

impl Connection {
    /// The fleet's machines.
    pub async fn inventory(&self) -> Result<Vec<MachineRecord>, ProviderError> {
        match self {
            Self::Local(local) => Ok(local.inventory().await?),
        }
    }

    /// The machine of this name, if there is one: looking at a cluster must not cost a look at the whole fleet.
    pub async fn machine(&self, name: &str) -> Result<Option<MachineRecord>, ProviderError> {
        match self {
            Self::Local(local) => Ok(local.machine(name).await?),
        }
    }

    /// Makes a machine, or completes one that was made in part, and starts it.
    pub async fn create(&self, order: &MachineOrder) -> Result<MachineRecord, ProviderError> {
        match self {
            Self::Local(local) => Ok(local.create(order).await?),
        }
    }

    /// Whether the machine was made to its end; if not, [`Self::create`] completes it.
    pub fn is_finished(&self, name: &str) -> Result<bool, ProviderError> {
        match self {
            Self::Local(local) => Ok(local.is_finished(name)?),
        }
    }

    /// Starts a machine that is there.
    pub async fn start(&self, name: &str) -> Result<(), ProviderError> {
        match self {
            Self::Local(local) => Ok(local.start(name).await?),
        }
    }

    /// Gives a machine another address. What runs on it goes on meanwhile, at the old one.
    pub async fn readdress(&self, name: &str, address: IpAddr) -> Result<(), ProviderError> {
        match self {
            Self::Local(local) => Ok(local.readdress(name, address).await?),
        }
    }

    /// Destroys a machine with its data; fine when there is none.
    pub async fn delete(&self, name: &str) -> Result<(), ProviderError> {
        match self {
            Self::Local(local) => Ok(local.delete(name).await?),
        }
    }
}
