//! All that may be done to a machine and its agent, and what each means for safety.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Company, Subject};
use crate::spec::Name;

/// One action on a machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum MachineAction {
    /// Have the provider assign an address to a machine that is to be made.
    AssignAddress {
        /// Which.
        machine: Name,
    },
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
    /// Enroll the new machine's agent in the fleet: it proves its join token and gets its certificate.
    Enroll {
        /// Which.
        machine: Name,
    },
    /// Replace the firewall rules of a machine that raftsman made.
    SetFirewall {
        /// Where.
        machine: Name,
        /// Digest of the rules.
        digest: String,
    },
    /// Change the clients that an agent accepts: the fleet's CAs that it trusts, and the certificates that are revoked.
    SetAccess {
        /// Where.
        machine: Name,
        /// Digest of both.
        digest: String,
    },
    /// Have an agent make a new key, and sign a certificate for it.
    RenewAgent {
        /// Where.
        machine: Name,
    },
    /// Deliver the secrets that the file refers to for machines, and the files that go with them, to a machine that
    /// raftsman made.
    Deliver {
        /// Where.
        machine: Name,
    },
    /// Give the machine another address. etcd listens on the old one until it is restarted.
    MoveMachine {
        /// Which.
        machine: Name,
        /// Its new address.
        address: IpAddr,
    },
    /// Delete the machine but keep its data disk, around which it is made anew.
    RebuildMachine {
        /// Which.
        machine: Name,
    },
    /// Delete the machine, with its disk.
    DeleteMachine {
        /// Which.
        machine: Name,
    },
}

impl MachineAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            // Without effect on what runs, or made again by the same action.
            Self::AssignAddress { .. }
            | Self::CreateMachine { .. }
            | Self::StartMachine { .. }
            | Self::Enroll { .. }
            | Self::SetFirewall { .. }
            | Self::SetAccess { .. }
            | Self::RenewAgent { .. }
            | Self::Deliver { .. }
            // etcd listens on the old address until it is restarted.
            | Self::MoveMachine { .. } => Class::of(Changes::Machine),
            // Its root disk is deleted.
            Self::RebuildMachine { .. } => Class::of(Changes::Machine).takes_member().irreversible(),
            // The member with this id does not return.
            Self::DeleteMachine { .. } => Class::of(Changes::Machine).irreversible().beside(Company::OneLoss),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        Subject::Machine(self.machine())
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::AssignAddress { .. } => "assign address",
            Self::CreateMachine { .. } => "create machine",
            Self::StartMachine { .. } => "start machine",
            Self::Enroll { .. } => "enroll",
            Self::SetFirewall { .. } => "set firewall",
            Self::SetAccess { .. } => "set agent access",
            Self::RenewAgent { .. } => "renew agent cert",
            Self::Deliver { .. } => "deliver secrets",
            Self::MoveMachine { .. } => "move machine",
            Self::RebuildMachine { .. } => "rebuild machine",
            Self::DeleteMachine { .. } => "delete machine",
        }
    }

    /// The machine that it is done to.
    pub fn machine(&self) -> &Name {
        match self {
            Self::AssignAddress { machine }
            | Self::CreateMachine { machine }
            | Self::StartMachine { machine }
            | Self::Enroll { machine }
            | Self::SetFirewall { machine, .. }
            | Self::SetAccess { machine, .. }
            | Self::RenewAgent { machine }
            | Self::Deliver { machine }
            | Self::MoveMachine { machine, .. }
            | Self::RebuildMachine { machine }
            | Self::DeleteMachine { machine } => machine,
        }
    }
}
