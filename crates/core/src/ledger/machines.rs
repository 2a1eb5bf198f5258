//! A step on a machine, machines that are seen → what is remembered of them.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Ledger;
use crate::action::MachineAction;
use crate::desired::{Address, Stack};
use crate::observed::Observed;
use crate::spec::Name;

/// What is remembered of the machines of a stack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineLedger {
    /// The machines that are no members', made or about to be made, and where they are: those that balancers have to
    /// themselves, and those of PostgreSQL's nodes.
    pub instances: BTreeMap<Name, IpAddr>,
    /// The addresses that the provider assigned, of machines made or still to be made.
    pub addresses: BTreeMap<Name, IpAddr>,
    /// The zone of each member's machine, where the file has zones: a changed file moves none of them.
    pub zones: BTreeMap<Name, Name>,
}

pub(super) fn ahead(ledger: &mut Ledger, desired: &Stack, action: &MachineAction) {
    match action {
        MachineAction::CreateMachine { machine } if desired.etcd.member(machine).is_none() => {
            if let Some(address) = desired.machine_address(machine) {
                ledger.machines.instances.insert(machine.clone(), address);
            }
        }
        MachineAction::CreateMachine { machine } if ledger.etcd.cluster.is_some() => {
            if let Some(member) = desired.etcd.member(machine) {
                ledger.etcd.members.entry(machine.clone()).or_insert_with(|| member.peer_url());
            }
        }
        // The next observation tells whether it was done; the code that executes it records an address.
        MachineAction::CreateMachine { .. }
        | MachineAction::AssignAddress { .. }
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

impl Ledger {
    /// Remembers where machines are: as their provider reports it, else as the file had it when they were seen.
    pub(super) fn place(&mut self, desired: &Stack, observed: &Observed) {
        let seen = |name: &Name| observed.machine(name);
        for machine in desired.machines.values() {
            let Some(found) = seen(&machine.name) else { continue };
            // It was made before the ledger was lost: it has its address already.
            if machine.address == Address::Assigned && !found.foreign {
                self.machines.addresses.insert(machine.name.clone(), found.address);
            }
            if let Some(zone) = found.zone.as_ref().or(machine.place.zone.as_ref()) {
                self.machines.zones.insert(machine.name.clone(), zone.clone());
            }
        }
        // Also those that were made before the ledger was lost.
        let instances = desired.own_instances().map(|instance| (&instance.name, instance.address));
        for (name, address) in instances.chain(desired.nodes().map(|(_, node)| (&node.name, node.address))) {
            if seen(name).is_some() {
                self.machines.instances.entry(name.clone()).or_insert(address);
            }
        }
        let gone = |name: &Name| observed.machines.get(name).is_none_or(|seen| seen.machine.is_absent());
        self.machines.instances.retain(|name, _| desired.machine(name).is_some() || !gone(name));
        self.forget_places(desired);
    }

    /// Forgets where machines were that neither the file nor the provider has any more: another machine may have the
    /// address by now.
    pub(super) fn forget_places(&mut self, desired: &Stack) {
        let MachineLedger { instances, zones, addresses } = &mut self.machines;
        let members = &self.etcd.members;
        let known =
            |name: &Name| members.contains_key(name) || instances.contains_key(name) || desired.machine(name).is_some();
        zones.retain(|name, _| known(name));
        addresses.retain(|name, _| known(name));
    }
}
