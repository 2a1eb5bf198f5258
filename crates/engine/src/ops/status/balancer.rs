//! The balancers of a stack, as observed → the status of each instance and of the servers behind it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use raftsman_core::desired::{Balancer, Behind, Instance, Stack};
use raftsman_core::observed::{AgentReport, Fact, Observed, Power, ServerFacts, ServerState, ServiceState};
use raftsman_core::spec::Name;
use serde::Serialize;

use super::AgentStatus;

/// The status of a balancer.
#[derive(Debug, Clone, Serialize)]
pub struct BalancerStatus {
    /// Its name.
    pub name: Name,
    /// The PostgreSQL cluster that it is in front of; nothing where it is in front of etcd.
    pub postgres: Option<Name>,
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
    /// The members of etcd or nodes of PostgreSQL behind it, as it reports them. Of nodes, the primary alone is up.
    pub members: Vec<BackendStatus>,
    /// The nodes behind the port for clients that only read. Of these, standbys are up.
    pub replicas: Vec<BackendStatus>,
    /// Its machine's agent.
    pub agent: Option<AgentStatus>,
}

/// The status of a member or node at an instance.
#[derive(Debug, Clone, Serialize)]
pub struct BackendStatus {
    /// Its name.
    pub member: Name,
    /// Whether it gets new connections, and why not.
    pub state: ServerState,
    /// How many connections it has through the instance.
    pub connections: u64,
}

/// The status of all balancers of this stack.
pub(super) fn balancers(desired: &Stack, observed: &Observed) -> Vec<BalancerStatus> {
    let of = |balancer: &Balancer| BalancerStatus {
        name: balancer.name.clone(),
        postgres: match &balancer.behind {
            Behind::Members => None,
            Behind::Nodes(cluster) => Some(cluster.clone()),
        },
        endpoints: balancer.endpoints().into_iter().map(|at| endpoint(balancer, at)).collect(),
        virtual_address: balancer.virtual_address,
        instances: balancer.instances.iter().map(|one| instance(desired, observed, balancer, one)).collect(),
    };
    desired.balancers.iter().map(of).collect()
}

fn endpoint(balancer: &Balancer, at: SocketAddr) -> String {
    match balancer.behind {
        Behind::Members => format!("https://{at}"),
        Behind::Nodes(_) => at.to_string(),
    }
}

fn backends(servers: &BTreeMap<Name, ServerFacts>) -> Vec<BackendStatus> {
    let of = |(member, server): (&Name, &ServerFacts)| BackendStatus {
        member: member.clone(),
        state: server.state,
        connections: server.connections,
    };
    servers.iter().map(of).collect()
}

fn instance(desired: &Stack, observed: &Observed, balancer: &Balancer, of: &Instance) -> InstanceStatus {
    let report = observed.report(&of.name);
    let (state, problem) = state(observed, of, report);
    let seen = report.and_then(|report| report.balancer.as_ref());
    let facts = seen.map(|seen| &seen.facts);
    InstanceStatus {
        machine: of.name.clone(),
        address: of.address,
        state,
        problem,
        version: seen.and_then(|seen| seen.haproxy.installed.clone()),
        pid: seen.and_then(|seen| seen.haproxy.service.pid),
        restarts: seen.map(|seen| seen.haproxy.service.restarts),
        has_virtual_address: seen.filter(|_| balancer.virtual_address.is_some()).map(|seen| seen.has_virtual_address),
        members: facts.map(|facts| backends(&facts.servers)).unwrap_or_default(),
        replicas: facts.map(|facts| backends(&facts.replicas)).unwrap_or_default(),
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
