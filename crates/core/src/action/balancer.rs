//! What is done to the instances of a balancer, and what each step means for safety.

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Company, Subject};
use crate::spec::Name;

/// A step on an instance of a balancer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum BalancerAction {
    /// Have a key made on an instance's machine, and sign a certificate for it that Patroni knows the instance by.
    IssueBalancerCertificate {
        /// Where.
        machine: Name,
    },
    /// Write the configuration of HAProxy, and of keepalived where there is a virtual address.
    ConfigureBalancer {
        /// Where.
        machine: Name,
        /// The members of etcd, or the nodes of PostgreSQL, that connections are passed to.
        members: Vec<Name>,
        /// The fingerprint of the certificate that HAProxy shows to Patroni, where it is in front of PostgreSQL.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        certificate: Option<String>,
        /// Digest of HAProxy's configuration.
        digest: String,
    },
    /// Start HAProxy, and keepalived where there is a virtual address.
    StartBalancer {
        /// Where.
        machine: Name,
    },
    /// Have the running processes take up the configuration that is written. Connections go on.
    ReloadBalancer {
        /// Where.
        machine: Name,
    },
    /// Stop both on a machine that stays.
    StopBalancer {
        /// Where.
        machine: Name,
    },
    /// Have an instance pass no new connection to a member.
    DrainMember {
        /// Where the instance is.
        machine: Name,
        /// The member.
        member: Name,
    },
    /// Have an instance pass new connections to a member again.
    AdmitMember {
        /// Where the instance is.
        machine: Name,
        /// The member.
        member: Name,
    },
}

impl BalancerAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            // Nothing runs by it yet, or more runs than before.
            Self::IssueBalancerCertificate { .. } | Self::ConfigureBalancer { .. } | Self::StartBalancer { .. } => {
                Class::of(Changes::Machine)
            }
            // What clients connect through changes: not while a step changes what they are connected to.
            Self::ReloadBalancer { .. }
            | Self::StopBalancer { .. }
            | Self::DrainMember { .. }
            | Self::AdmitMember { .. } => Class::of(Changes::Balancing).beside(Company::Alike),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        Subject::Machine(self.machine())
    }

    /// The machine of the instance.
    pub fn machine(&self) -> &Name {
        match self {
            Self::IssueBalancerCertificate { machine }
            | Self::ConfigureBalancer { machine, .. }
            | Self::StartBalancer { machine }
            | Self::ReloadBalancer { machine }
            | Self::StopBalancer { machine }
            | Self::DrainMember { machine, .. }
            | Self::AdmitMember { machine, .. } => machine,
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::IssueBalancerCertificate { .. } => "sign balancer cert",
            Self::ConfigureBalancer { .. } => "configure balancer",
            Self::StartBalancer { .. } => "start balancer",
            Self::ReloadBalancer { .. } => "reload balancer",
            Self::StopBalancer { .. } => "stop balancer",
            Self::DrainMember { .. } => "drain",
            Self::AdmitMember { .. } => "admit",
        }
    }
}
