//! A step on a machine or its agent → what it costs, or why it must not be done.

use super::{Case, Cost, Refusal, otherwise};
use crate::action::MachineAction;
use crate::observed::{Agent, Fact, Power, ServiceState};
use crate::plan::situation::postgres::has_no_last_copy;
use crate::spec::Shape;

pub(super) fn judge(case: &Case<'_>, action: &MachineAction) -> Result<Cost, Refusal> {
    let unharmed = case.unharmed;
    match action {
        MachineAction::AssignAddress { machine } => {
            if !case.machine(machine)?.machine.is_absent() {
                return Err(Refusal::NotSeen("that the machine is absent"));
            }
            let held = case.observed.ledger.places().contains_key(machine);
            if held || case.desired.machine_address(machine).is_some() {
                return Err(otherwise("it has an address"));
            }
            Ok(unharmed)
        }
        MachineAction::CreateMachine { machine } => {
            if case.desired.machine_address(machine).is_none() {
                return Err(otherwise("it has no address yet"));
            }
            if !case.machine(machine)?.machine.is_absent() {
                return Err(Refusal::NotSeen("that the machine is absent"));
            }
            if case.observed.ledger.etcd.started.contains_key(machine) && !case.outside(machine) {
                return Err(otherwise("etcd ran on a machine of this name: its data is not there"));
            }
            Ok(unharmed)
        }
        MachineAction::StartMachine { machine } => match case.machine(machine)?.machine.seen() {
            Some(seen) if seen.power == Power::Stopped => Ok(unharmed),
            Some(_) => Err(otherwise("the machine runs")),
            None => Err(Refusal::NotSeen("the machine")),
        },
        MachineAction::Enroll { machine } => match &case.machine(machine)?.agent {
            Fact::Seen { value: Agent::Unclaimed, .. } => Ok(unharmed),
            Fact::Seen { value: Agent::Claimed(_), .. } | Fact::Absent { .. } | Fact::Unreachable { .. } => {
                Err(Refusal::NotSeen("a new agent"))
            }
        },
        MachineAction::SetFirewall { machine, .. }
        | MachineAction::SetAccess { machine, .. }
        | MachineAction::RenewAgent { machine }
        | MachineAction::Deliver { machine }
        | MachineAction::MoveMachine { machine, .. } => case.report(machine).map(|_| unharmed),
        MachineAction::RebuildMachine { machine } => {
            let seen = case.machine(machine)?.machine.seen().ok_or(Refusal::NotSeen("the machine"))?;
            if !seen.shape.as_ref().is_some_and(Shape::keeps_data) {
                return Err(otherwise("its data would be lost with it"));
            }
            case.report(machine)?;
            case.restart(machine)
        }
        MachineAction::DeleteMachine { machine } => {
            let seen = case.machine(machine)?;
            seen.machine.seen().ok_or(Refusal::NotSeen("the machine"))?;
            case.no_member(machine)?;
            if seen.report().is_some_and(|report| report.etcd.service.state != ServiceState::Stopped) {
                return Err(otherwise("etcd runs on it"));
            }
            let node = seen.report().and_then(|report| report.postgres.as_ref());
            if node.is_some_and(|node| node.service.state != ServiceState::Stopped) {
                return Err(otherwise("PostgreSQL runs on it"));
            }
            has_no_last_copy(case.desired, case.observed, machine)?;
            Ok(unharmed)
        }
    }
}
