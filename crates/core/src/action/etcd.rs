//! All that may be done to etcd on a machine, and what each means for safety.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Company, Subject};
use crate::observed::{ClusterId, MemberId};
use crate::spec::{EtcdVersion, Name};

/// One action on etcd, where it runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum EtcdAction {
    /// Install a version of etcd beside those that are installed.
    InstallEtcd {
        /// Where.
        machine: Name,
        /// Which.
        version: EtcdVersion,
    },
    /// Write etcd's configuration file.
    ConfigureEtcd {
        /// Where.
        machine: Name,
        /// The version that will read it.
        version: EtcdVersion,
        /// The address that it is for, while that is not the one of the file.
        at: Option<IpAddr>,
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
    /// Stop and start all of them at the same time: none can complete a TLS handshake with one that was not restarted,
    /// because the authority that all of them trust has expired.
    RestartTogether {
        /// Where, and which version.
        machines: BTreeMap<Name, EtcdVersion>,
        /// The cluster that their data must belong to.
        cluster: ClusterId,
    },
    /// Stop etcd for good: it is no member any more.
    StopEtcd {
        /// Where.
        machine: Name,
    },
    /// Move the data of a removed member out of the way.
    ClearData {
        /// Where.
        machine: Name,
        /// The member that the data must belong to; none when it cannot be read as a member's.
        member: Option<MemberId>,
    },
}

/// What a data directory must hold for a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartData {
    /// Nothing: the member is bootstrapped together with its cluster.
    Empty,
    /// Nothing: the member joins this cluster, which lists it already.
    Joining(ClusterId),
    /// This cluster's data: the member restarts.
    Of(ClusterId),
    /// This cluster's data: the member removes all others, which are lost, from its list and continues alone.
    Alone(ClusterId),
}

impl EtcdAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            // Without effect on what runs, or made again by the same action.
            Self::InstallEtcd { .. }
            | Self::ConfigureEtcd { .. }
            // Founders start together. The agent checks the data directory again.
            | Self::StartEtcd { data: StartData::Empty | StartData::Joining(_) | StartData::Of(_), .. } => {
                Class::of(Changes::Machine)
            }
            // A removed member id never returns.
            Self::StartEtcd { data: StartData::Alone(_), .. } => {
                Class::of(Changes::Membership).irreversible().beside(Company::Alone)
            }
            Self::RestartEtcd { .. } | Self::RestartTogether { .. } => Class::of(Changes::Machine).takes_member(),
            // The member with this id does not return.
            Self::StopEtcd { .. } => Class::of(Changes::Machine).irreversible().beside(Company::OneLoss),
            Self::ClearData { .. } => Class::of(Changes::Data).irreversible().beside(Company::OneLoss),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::RestartTogether { .. } => Subject::Cluster,
            Self::InstallEtcd { machine, .. }
            | Self::ConfigureEtcd { machine, .. }
            | Self::StartEtcd { machine, .. }
            | Self::RestartEtcd { machine, .. }
            | Self::StopEtcd { machine }
            | Self::ClearData { machine, .. } => Subject::Machine(machine),
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::InstallEtcd { .. } => "install etcd",
            Self::ConfigureEtcd { .. } => "configure etcd",
            Self::StartEtcd { data: StartData::Alone(_), .. } => "start alone",
            Self::StartEtcd { .. } => "start etcd",
            Self::RestartEtcd { .. } => "restart etcd",
            Self::RestartTogether { .. } => "restart all etcd",
            Self::StopEtcd { .. } => "stop etcd",
            Self::ClearData { .. } => "clear data",
        }
    }

    /// Machines whose etcd runs once it is done.
    pub(super) fn brings_up(&self) -> Vec<&Name> {
        match self {
            Self::StartEtcd { machine, .. } | Self::RestartEtcd { machine, .. } => vec![machine],
            Self::RestartTogether { machines, .. } => machines.keys().collect(),
            Self::InstallEtcd { .. } | Self::ConfigureEtcd { .. } | Self::StopEtcd { .. } | Self::ClearData { .. } => {
                Vec::new()
            }
        }
    }
}
