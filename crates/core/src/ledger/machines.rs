//! A step on a machine → what is remembered of it.

#![warn(clippy::wildcard_enum_match_arm)]

use super::Ledger;
use crate::action::MachineAction;
use crate::desired::{Address, Stack};
use crate::observed::Observed;
use crate::spec::Name;

pub(super) fn ahead(ledger: &mut Ledger, desired: &Stack, action: &MachineAction) {
    match action {
        MachineAction::CreateMachine { machine } if desired.etcd.member(machine).is_none() => {
            if let Some((_, instance)) = desired.instance(machine) {
                ledger.instances.insert(machine.clone(), instance.address);
            }
        }
        MachineAction::CreateMachine { machine } if ledger.cluster.is_some() => {
            if let Some(member) = desired.etcd.member(machine) {
                ledger.members.entry(machine.clone()).or_insert_with(|| member.peer_url());
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
                self.addresses.insert(machine.name.clone(), found.address);
            }
            if let Some(zone) = found.zone.as_ref().or(machine.place.zone.as_ref()) {
                self.zones.insert(machine.name.clone(), zone.clone());
            }
        }
        // Also those that were made before the ledger was lost.
        for instance in desired.own_instances() {
            if seen(&instance.name).is_some() {
                self.instances.entry(instance.name.clone()).or_insert(instance.address);
            }
        }
        let gone = |name: &Name| observed.machines.get(name).is_none_or(|seen| seen.machine.is_absent());
        self.instances.retain(|name, _| desired.machine(name).is_some() || !gone(name));
        self.forget_places(desired);
    }

    /// Forgets where machines were that neither the file nor the provider has any more: another machine may have the
    /// address by now.
    pub(super) fn forget_places(&mut self, desired: &Stack) {
        let Self { members, instances, zones, addresses, .. } = self;
        let known =
            |name: &Name| members.contains_key(name) || instances.contains_key(name) || desired.machine(name).is_some();
        zones.retain(|name, _| known(name));
        addresses.retain(|name, _| known(name));
    }
}
