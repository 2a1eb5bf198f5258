//! A step on an instance of a balancer → what it costs, or why it must not be done.

use super::{Case, Cost, Refusal, otherwise};
use crate::action::BalancerAction;
use crate::observed::{BalancerOnMachine, ServerState};
use crate::spec::Name;

pub(super) fn judge(case: &Case<'_>, action: &BalancerAction) -> Result<Cost, Refusal> {
    match action {
        BalancerAction::ConfigureBalancer { machine, members, .. } => {
            in_file(case, machine)?;
            case.any_report(machine)?;
            // HAProxy without a member would refuse every client.
            if members.is_empty() {
                return Err(otherwise("no member would be left behind the balancer"));
            }
        }
        BalancerAction::StartBalancer { machine } | BalancerAction::ReloadBalancer { machine } => {
            in_file(case, machine)?;
            seen(case, machine)?;
        }
        BalancerAction::StopBalancer { machine } => {
            if case.desired.instance(machine).is_some() {
                return Err(otherwise("the file has an instance of a balancer there"));
            }
            seen(case, machine)?;
        }
        BalancerAction::DrainMember { machine, member } => {
            let facts = &seen(case, machine)?.facts;
            if !facts.servers.get(member).is_some_and(|server| server.state == ServerState::Up) {
                return Err(Refusal::NotSeen("that the instance passes connections to the member"));
            }
            if !facts.can_drain(member) {
                return Err(otherwise("no other member would get the balancer's connections"));
            }
        }
        BalancerAction::AdmitMember { machine, member } => {
            if !seen(case, machine)?.facts.servers.contains_key(member) {
                return Err(Refusal::NotSeen("that the member is behind the instance"));
            }
        }
    }
    Ok(case.unharmed)
}

fn in_file(case: &Case<'_>, machine: &Name) -> Result<(), Refusal> {
    let there = case.desired.instance(machine);
    there.map(drop).ok_or_else(|| otherwise("the file has no instance of a balancer there"))
}

fn seen<'a>(case: &Case<'a>, machine: &Name) -> Result<&'a BalancerOnMachine, Refusal> {
    case.any_report(machine)?.balancer.as_ref().ok_or(Refusal::NotSeen("the balancer"))
}
