//! A step on a machine → what is remembered of it.

#![warn(clippy::wildcard_enum_match_arm)]

use super::Ledger;
use crate::action::MachineAction;
use crate::desired::Cluster;

pub(super) fn ahead(ledger: &mut Ledger, desired: &Cluster, action: &MachineAction) {
    match action {
        MachineAction::CreateMachine { machine } if ledger.cluster.is_some() => {
            if let Some(member) = desired.member(machine) {
                ledger.members.entry(machine.clone()).or_insert_with(|| member.peer_url());
            }
        }
        // A look at the world tells whether it was done.
        MachineAction::CreateMachine { .. }
        | MachineAction::StartMachine { .. }
        | MachineAction::Enroll { .. }
        | MachineAction::SetFirewall { .. }
        | MachineAction::SetAccess { .. }
        | MachineAction::RenewAgent { .. }
        | MachineAction::Deliver { .. }
        | MachineAction::MoveMachine { .. }
        | MachineAction::RebuildMachine { .. }
        | MachineAction::DeleteMachine { .. } => {}
    }
}
