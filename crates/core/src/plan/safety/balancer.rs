//! A step on an instance of a balancer → what it costs, or why it must not be done.

use super::{Case, Cost, Refusal, otherwise};
use crate::action::BalancerAction;
use crate::desired::{Balancer, Behind, Instance};
use crate::observed::{BalancerOnMachine, ServerState};
use crate::spec::Name;

pub(super) fn judge(case: &Case<'_>, action: &BalancerAction) -> Result<Cost, Refusal> {
    match action {
        BalancerAction::IssueBalancerCertificate { machine } => {
            let (balancer, _) = in_file(case, machine)?;
            case.any_report(machine)?;
            let Behind::Nodes(cluster) = &balancer.behind else {
                return Err(otherwise("the balancer is in front of etcd: it presents no certificate"));
            };
            match &case.observed.ledger.of_postgres(cluster).trust {
                Some(trust) if trust.current.not_after > case.observed.at() => {}
                Some(_) => return Err(otherwise("the cluster's CA has expired")),
                None => return Err(otherwise("the cluster has no CA yet")),
            }
        }
        BalancerAction::ConfigureBalancer { machine, members, certificate, .. } => {
            in_file(case, machine)?;
            let seen = case.any_report(machine)?.balancer.as_ref();
            let has = seen.and_then(|seen| seen.certificate.as_ref()).map(|certificate| &certificate.fingerprint);
            if certificate.as_ref().is_some_and(|certificate| has != Some(certificate)) {
                return Err(Refusal::NotSeen("the certificate that the balancer presents to Patroni"));
            }
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
            before_members(case, machine)?;
            let facts = &seen(case, machine)?.facts;
            if !facts.servers.get(member).is_some_and(|server| server.state == ServerState::Up) {
                return Err(Refusal::NotSeen("that the instance passes connections to the member"));
            }
            if !facts.can_drain(member) {
                return Err(otherwise("no other member would get the balancer's connections"));
            }
        }
        BalancerAction::AdmitMember { machine, member } => {
            before_members(case, machine)?;
            if !seen(case, machine)?.facts.servers.contains_key(member) {
                return Err(Refusal::NotSeen("that the member is behind the instance"));
            }
        }
    }
    Ok(case.unharmed)
}

fn in_file<'a>(case: &Case<'a>, machine: &Name) -> Result<(&'a Balancer, &'a Instance), Refusal> {
    case.desired.instance(machine).ok_or_else(|| otherwise("the file has no instance of a balancer there"))
}

/// Which node of PostgreSQL gets connections is for its role to decide.
fn before_members(case: &Case<'_>, machine: &Name) -> Result<(), Refusal> {
    match case.desired.instance(machine).map(|(balancer, _)| &balancer.behind) {
        Some(Behind::Nodes(_)) => Err(otherwise("nodes of PostgreSQL are not drained")),
        Some(Behind::Members) | None => Ok(()),
    }
}

fn seen<'a>(case: &Case<'a>, machine: &Name) -> Result<&'a BalancerOnMachine, Refusal> {
    case.any_report(machine)?.balancer.as_ref().ok_or(Refusal::NotSeen("the balancer"))
}
