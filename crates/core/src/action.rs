//! All that may be done to the world: a closed list, as data.

use serde::{Deserialize, Serialize};

use crate::observed::{ClusterId, Purpose};
use crate::spec::{EtcdVersion, Name};

/// One deed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// Make, or take in, the cluster's certificate authorities.
    MakeAuthorities,
    /// Make the machine.
    CreateMachine {
        /// Which.
        machine: Name,
    },
    /// Start a machine that exists and does not run.
    StartMachine {
        /// Which.
        machine: Name,
    },
    /// Take the new machine's agent into the fleet: it proves its join token and gets its certificate.
    Enroll {
        /// Which.
        machine: Name,
    },
    /// Put a version of etcd beside those that are there.
    InstallEtcd {
        /// Where.
        machine: Name,
        /// Which.
        version: EtcdVersion,
    },
    /// Have a key made on the machine, and sign a certificate for it.
    IssueCertificate {
        /// Where.
        machine: Name,
        /// What for.
        purpose: Purpose,
    },
    /// Write etcd's configuration file.
    ConfigureEtcd {
        /// Where.
        machine: Name,
        /// Digest of the file.
        digest: String,
    },
    /// Start etcd.
    StartEtcd {
        /// Where.
        machine: Name,
        /// Which version.
        version: EtcdVersion,
        /// What its data directory must hold, checked again on the machine.
        data: StartData,
    },
    /// Stop etcd and start it again, on the configuration that is there.
    RestartEtcd {
        /// Where.
        machine: Name,
        /// Which version.
        version: EtcdVersion,
        /// The cluster that its data must belong to.
        cluster: ClusterId,
    },
    /// Make the superuser `root`, with the role `root`.
    CreateRoot,
    /// Turn auth on: from now on nobody gets in without credentials.
    EnableAuth,
}

/// What a data directory must hold for a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartData {
    /// Nothing: the member is born.
    Empty,
    /// This cluster's data: the member comes back.
    Of(ClusterId),
}

impl Action {
    /// The machine that it is done to; `None` when it is done to the cluster as a whole.
    pub fn machine(&self) -> Option<&Name> {
        match self {
            Self::MakeAuthorities | Self::CreateRoot | Self::EnableAuth => None,
            Self::CreateMachine { machine }
            | Self::StartMachine { machine }
            | Self::Enroll { machine }
            | Self::InstallEtcd { machine, .. }
            | Self::IssueCertificate { machine, .. }
            | Self::ConfigureEtcd { machine, .. }
            | Self::StartEtcd { machine, .. }
            | Self::RestartEtcd { machine, .. } => Some(machine),
        }
    }

    /// Whether it takes something away while it is done.
    pub fn disruptive(&self) -> bool {
        matches!(self, Self::RestartEtcd { .. })
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::MakeAuthorities => "make authorities",
            Self::CreateMachine { .. } => "create machine",
            Self::StartMachine { .. } => "start machine",
            Self::Enroll { .. } => "enroll",
            Self::InstallEtcd { .. } => "install etcd",
            Self::IssueCertificate { purpose: Purpose::Peer, .. } => "sign peer cert",
            Self::IssueCertificate { purpose: Purpose::Server, .. } => "sign server cert",
            Self::ConfigureEtcd { .. } => "configure etcd",
            Self::StartEtcd { .. } => "start etcd",
            Self::RestartEtcd { .. } => "restart etcd",
            Self::CreateRoot => "create root",
            Self::EnableAuth => "enable auth",
        }
    }
}
