//! the programs of this machine, each wanted running or stopped → one supervised process per program.
//!
//! Programs do not affect each other: each has its own task, record, back-off and exit reasons.

use std::net::IpAddr;

use crate::root::Root;
use crate::supervisor::launch::Launcher;
use crate::supervisor::program::Program;
use crate::supervisor::service::{Service, ServiceError};

pub mod binaries;
pub mod bundle;
pub mod config;
pub mod confine;
mod hashed;
pub mod launch;
pub mod packages;
pub mod pins;
pub mod ports;
pub mod process;
pub mod program;
pub mod service;
pub mod systemd;

/// All supervised programs. A field for each rather than a map, so that none can be missing.
#[derive(Clone, Debug)]
pub struct Supervisor {
    etcd: Service,
    haproxy: Service,
    keepalived: Service,
    patroni: Service,
}

impl Supervisor {
    /// Restores the wanted state of every program.
    pub async fn open(root: &Root, address: IpAddr, launcher: &Launcher) -> Result<Self, ServiceError> {
        let open = |program| Service::open(root.clone(), program, address, launcher.clone());
        // In this order: keepalived does not start before HAProxy.
        Ok(Self {
            etcd: open(Program::Etcd).await?,
            haproxy: open(Program::Haproxy).await?,
            keepalived: open(Program::Keepalived).await?,
            patroni: open(Program::Patroni).await?,
        })
    }

    /// One of them.
    pub fn of(&self, program: Program) -> &Service {
        match program {
            Program::Etcd => &self.etcd,
            Program::Haproxy => &self.haproxy,
            Program::Keepalived => &self.keepalived,
            Program::Patroni => &self.patroni,
        }
    }
}
