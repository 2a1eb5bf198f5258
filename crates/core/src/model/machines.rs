//! A step on a machine or its agent, on the simulated world → the machine as it is then.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::backup::unconfigured;
use super::effects::Impossible;
use super::{MachineModel, World};
use crate::action::MachineAction;
use crate::desired::Stack;
use crate::observed::{Delivery, Power, ServiceState};
use crate::spec::{Name, Shape};

pub(super) fn act(world: &mut World, desired: &Stack, action: &MachineAction) -> Result<(), Impossible> {
    match action {
        MachineAction::AssignAddress { machine } => {
            let known = world.ledger.places().contains_key(machine) || desired.machine_address(machine).is_some();
            if known || world.machines.get(machine).is_some_and(|found| found.exists) {
                return Err(Impossible(format!("{machine} has an address")));
            }
            let address = world.next_address(desired);
            world.ledger.machines.addresses.insert(machine.clone(), address);
        }
        MachineAction::CreateMachine { machine } => {
            world.made += 1;
            let firewall = desired.first_firewall(machine, &world.ledger).map(|rules| rules.digest);
            let incarnation = format!("made-{}", world.made);
            let address = desired.machine_address(machine);
            let address = address.ok_or_else(|| Impossible(format!("{machine} is not in the file")))?;
            let new = world.machines.entry(machine.clone()).or_insert_with(MachineModel::none);
            if !new.exists {
                let ports_taken = std::mem::take(&mut new.ports_taken);
                let made = MachineModel { exists: true, incarnation, address, ports_taken, ..MachineModel::none() };
                let wanted = desired.machine(machine);
                let shape = wanted.and_then(|wanted| wanted.shape.clone());
                let zone = wanted.and_then(|wanted| wanted.place.zone.clone());
                *new = MachineModel {
                    firewall,
                    shape,
                    zone,
                    delivery: undelivered(desired, machine),
                    backup_settings: unconfigured(desired),
                    ..made
                };
            }
            power_on(new);
        }
        MachineAction::StartMachine { machine } => {
            let started = world.existing(machine)?;
            // A machine of which only the data disk is left is made anew around it.
            let shape = desired.machine(machine).and_then(|wanted| wanted.shape.clone());
            if started.shape.is_none() && shape.is_some() {
                started.delivery = undelivered(desired, machine);
                started.backup_settings = unconfigured(desired);
                started.shape = shape;
            }
            power_on(started);
        }
        MachineAction::Enroll { machine } => world.enroll(desired, machine)?,
        MachineAction::SetFirewall { machine, digest } => world.claimed(machine)?.firewall = Some(digest.clone()),
        MachineAction::SetAccess { machine, digest } => world.claimed(machine)?.access = Some(digest.clone()),
        MachineAction::RenewAgent { machine } => {
            let (now, agents) = (world.now, &desired.agents);
            let renewed = world.claimed(machine)?;
            if let Some(certificate) = &mut renewed.agent_certificate {
                certificate.not_before = now;
                certificate.not_after = agents.renewed_until(now);
                certificate.issuer_key = agents.signer.clone().unwrap_or_else(|| certificate.issuer_key.clone());
            }
        }
        MachineAction::Deliver { machine } => world.claimed(machine)?.delivery = Delivery::Current,
        MachineAction::MoveMachine { machine, address } => world.existing(machine)?.address = *address,
        MachineAction::RebuildMachine { machine } => {
            let cluster = world.existing(machine)?.cluster();
            world.stop(machine, cluster)?;
            let rebuilt = world.existing(machine)?;
            if !rebuilt.shape.as_ref().is_some_and(Shape::keeps_data) {
                *rebuilt = MachineModel::none();
            }
            (rebuilt.power, rebuilt.agent_up, rebuilt.shape) = (Power::Stopped, false, None);
        }
        MachineAction::DeleteMachine { machine } => *world.existing(machine)? = MachineModel::none(),
    }
    Ok(())
}

impl World {
    /// An address that a provider might assign. It is not known before, so the model takes those of documents (RFC
    /// 5737): no planner and no reader can take them for real ones.
    fn next_address(&mut self, desired: &Stack) -> IpAddr {
        const NETWORKS: [[u8; 3]; 3] = [[192, 0, 2], [198, 51, 100], [203, 0, 113]];
        const HOSTS: u32 = 254;
        let in_use: BTreeSet<IpAddr> = self.ledger.places().into_values().collect();
        let given: BTreeSet<IpAddr> = desired.machines.values().filter_map(|machine| machine.address.given()).collect();
        loop {
            let number = self.assigned;
            self.assigned += 1;
            let network = usize::try_from(number / HOSTS).unwrap_or_default() % NETWORKS.len();
            let [a, b, c] = NETWORKS.get(network).copied().unwrap_or_default();
            let address = IpAddr::from([a, b, c, u8::try_from(number % HOSTS + 1).unwrap_or(1)]);
            if !in_use.contains(&address) && !given.contains(&address) {
                return address;
            }
        }
    }
}

/// A new machine was given nothing yet.
fn undelivered(desired: &Stack, machine: &Name) -> Delivery {
    let delivers = desired.machine(machine).is_some_and(|wanted| wanted.delivers);
    if delivers { Delivery::Outdated } else { Delivery::Current }
}

fn power_on(machine: &mut MachineModel) {
    machine.power = Power::Running;
    machine.agent_up = true;
    // The agent starts what ran before: etcd restarts with its machine.
    if machine.process.config.is_some() && machine.process.state == ServiceState::Stopped && machine.had_data {
        machine.process.state = ServiceState::Backoff;
    }
}
