//! The balancers of a cluster, as observed → the status of each instance and of the members behind it.

use std::net::IpAddr;

use raftsman_core::desired::{Balancer, Instance, Stack};
use raftsman_core::observed::{AgentReport, Fact, Observed, Power, ServerState, ServiceState};
use raftsman_core::spec::Name;
use serde::Serialize;

use super::AgentStatus;

/// The status of a balancer.
#[derive(Debug, Clone, Serialize)]
pub struct BalancerStatus {
    /// Its name.
    pub name: Name,
    /// What clients that know only the balancer are configured with.
    pub endpoints: Vec<String>,
    /// The address that one of its instances has at a time.
    pub virtual_address: Option<IpAddr>,
    /// Its instances.
    pub instances: Vec<InstanceStatus>,
}

/// The status of an instance of a balancer.
#[derive(Debug, Clone, Serialize)]
pub struct InstanceStatus {
    /// Its machine.
    pub machine: Name,
    /// Its machine's address.
    pub address: IpAddr,
    /// In one word: `running`, `stopped`, `failing`, `missing` (there is no such machine) or `unknown`.
    pub state: &'static str,
    /// What is wrong with it, if anything.
    pub problem: Option<String>,
    /// The version of HAProxy that is installed.
    pub version: Option<String>,
    /// HAProxy's process.
    pub pid: Option<u32>,
    /// How often it ended by itself.
    pub restarts: Option<u32>,
    /// Whether its machine has the virtual address now; nothing where there is none, or the agent does not answer.
    pub has_virtual_address: Option<bool>,
    /// The members behind it, as it reports them.
    pub members: Vec<BackendStatus>,
    /// Its machine's agent.
    pub agent: Option<AgentStatus>,
}

/// The status of a member at an instance.
#[derive(Debug, Clone, Serialize)]
pub struct BackendStatus {
    /// The member.
    pub member: Name,
    /// Whether it gets new connections, and why not.
    pub state: ServerState,
    /// How many connections it has through the instance.
    pub connections: u64,
}

/// The status of all balancers in front of this cluster.
pub(super) fn balancers(desired: &Stack, observed: &Observed) -> Vec<BalancerStatus> {
    let of = |balancer: &Balancer| BalancerStatus {
        name: balancer.name.clone(),
        endpoints: balancer.endpoints().into_iter().map(|at| format!("https://{at}")).collect(),
        virtual_address: balancer.virtual_address,
        instances: balancer.instances.iter().map(|one| instance(desired, observed, balancer, one)).collect(),
    };
    desired.balancers.iter().map(of).collect()
}

fn instance(desired: &Stack, observed: &Observed, balancer: &Balancer, of: &Instance) -> InstanceStatus {
    let report = observed.report(&of.name);
    let (state, problem) = state(observed, of, report);
    let seen = report.and_then(|report| report.balancer.as_ref());
    let servers = seen.map(|seen| &seen.facts.servers).into_iter().flatten();
    InstanceStatus {
        machine: of.name.clone(),
        address: of.address,
        state,
        problem,
        version: seen.and_then(|seen| seen.haproxy.installed.clone()),
        pid: seen.and_then(|seen| seen.haproxy.service.pid),
        restarts: seen.map(|seen| seen.haproxy.service.restarts),
        has_virtual_address: seen.filter(|_| balancer.virtual_address.is_some()).map(|seen| seen.has_virtual_address),
        members: servers
            .map(|(member, server)| BackendStatus {
                member: member.clone(),
                state: server.state,
                connections: server.connections,
            })
            .collect(),
        agent: report.map(|report| AgentStatus::of(desired, report)),
    }
}

fn state(observed: &Observed, of: &Instance, report: Option<&AgentReport>) -> (&'static str, Option<String>) {
    let Some(machine) = observed.machines.get(&of.name) else { return ("missing", None) };
    let Some(report) = report else {
        return match (&machine.machine, &machine.agent) {
            (Fact::Absent { .. }, _) => ("missing", None),
            (Fact::Seen { value, .. }, _) if value.power == Power::Stopped => {
                ("stopped", Some("the machine does not run".to_owned()))
            }
            (Fact::Unreachable { error, .. }, _) | (_, Fact::Unreachable { error, .. }) => {
                ("unknown", Some(error.clone()))
            }
            (_, Fact::Absent { .. } | Fact::Seen { .. }) => {
                ("unknown", Some("its agent is not enrolled yet".to_owned()))
            }
        };
    };
    let Some(seen) = &report.balancer else {
        return ("unknown", Some(format!("its agent ({}) is too old to run a balancer", report.version)));
    };
    match (seen.haproxy.service.state, &seen.problem) {
        (ServiceState::Stopped, _) => ("stopped", None),
        (ServiceState::Backoff, _) => ("failing", seen.haproxy.service.last_exit.clone()),
        (ServiceState::Running, Some(problem)) => ("failing", Some(problem.clone())),
        (ServiceState::Running, None) => {
            let backs_off = of.keepalived.is_some() && seen.keepalived.service.state == ServiceState::Backoff;
            let exit = || seen.keepalived.service.last_exit.as_deref().unwrap_or("for an unknown reason");
            match backs_off {
                true => ("failing", Some(format!("keepalived ended: {}", exit()))),
                false => ("running", None),
            }
        }
    }
}
