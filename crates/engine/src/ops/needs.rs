//! What the file refers to, and this computer → what `apply` needs and would not find.
//!
//! `plan` reports it without changing or downloading anything; `apply` stops there before it asks.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use raftsman_core::action::{Action, BalancerAction, MachineAction};
use raftsman_core::desired::{
    AGENT_PORT, Behind, CLIENT_PORT, Desired, HEALTH_PORT, PEER_PORT, POSTGRES_PORT, REST_PORT, Stack,
};
use raftsman_core::observed::TrustDomain;
use raftsman_core::render::haproxy::{LONGEST_SOCKET, SOCKET};
use raftsman_core::spec::{self, AuthMode, Name, Provider, Spec};
use raftsman_providers::networks::{Networks, taken};
use serde::Serialize;

use super::OpError;
use super::plan::FleetPlan;
use crate::artifacts::Artifacts;
use crate::authorities::{brought, brought_certificate};
use crate::error_chain;
use crate::fleet::{Context, Fleet, FleetError};
use crate::machines::SilentConnection;
use crate::pki::{Authority, AuthorityKind};
use crate::stack::{StackError, StackHandle};

/// Something that `apply` needs and would not find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unmet {
    /// Which cluster needs it; all of them where none is named.
    pub cluster: Option<Name>,
    /// What kind of thing it is.
    pub need: Need,
    /// What is wrong, and what to do.
    pub message: String,
}

/// What `apply` needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// The agent's program.
    AgentBinary,
    /// The provider's own inventory.
    Machines,
    /// A network on this computer that no other fleet uses.
    Network,
    /// etcd's program, of the version of the file.
    EtcdBinary,
    /// The bundle of Patroni.
    Patroni,
    /// The secrets and certificate authorities that the file refers to.
    References,
    /// The ports of a machine that is to be made or started on this computer.
    Port,
    /// A directory for machines on this computer whose path is short enough for their sockets.
    Directory,
}

/// What is missing, in one line.
pub(super) fn listed(unmet: &[Unmet]) -> String {
    match unmet {
        [] => "nothing is missing".to_owned(),
        [one] => one.message.clone(),
        [one, rest @ ..] => format!("{}, and {} more: see above", one.message, rest.len()),
    }
}

/// What a fleet without a state would not find.
pub(super) fn of_new(spec: &Spec, context: &Context, desired: &Desired, only: &[Name], now: Timestamp) -> Vec<Unmet> {
    let mut unmet = Vec::new();
    let mut note = |cluster: Option<&Stack>, need, outcome: Result<(), OpError>| {
        if let Err(error) = outcome {
            unmet.push(Unmet { cluster: cluster.map(|c| c.name.clone()), need, message: error_chain(&error) });
        }
    };
    note(None, Need::AgentBinary, agent(context));
    let network = spec.machines.network.as_deref().filter(|_| spec.machines.provider == Provider::Local);
    if let Some(network) = network.and_then(|network| network.parse().ok()) {
        let vacant = Networks::new(context.registry.clone()).vacant(network);
        note(None, Need::Network, vacant.map_err(|error| FleetError::from(error).into()));
    }
    let artifacts = Artifacts::new(context.state_dir(spec).join("artifacts"), context.examined.clone());
    // Clusters mostly share the binary of the cluster before: it is searched once.
    let mut found = None;
    for cluster in wanted(desired, only) {
        let needed = (&cluster.etcd.source, cluster.etcd.version);
        if found != Some(needed) {
            let binary = artifacts.check(&cluster.etcd.source, cluster.etcd.version, context.base());
            found = binary.is_ok().then_some(needed);
            note(Some(cluster), Need::EtcdBinary, binary.map_err(OpError::from));
        }
        for bundle in bundles(&artifacts, cluster, context) {
            note(Some(cluster), Need::Patroni, bundle);
        }
        note(Some(cluster), Need::References, references(cluster, context.base(), now).map_err(OpError::from));
        if spec.machines.provider == Provider::Local {
            let machines = cluster.instances().map(|(_, instance)| &instance.name);
            note(Some(cluster), Need::Directory, sockets(spec, context, machines));
        }
    }
    unmet
}

/// What a fleet with a state would not find for these plans.
pub(super) async fn of_fleet(fleet: &Arc<Fleet>, plan: &FleetPlan, only: &[Name], now: Timestamp) -> Vec<Unmet> {
    let plans = &plan.clusters;
    let mut unmet = Vec::new();
    let mut note = |cluster: Option<&Stack>, need, outcome: Result<(), OpError>| {
        if let Err(error) = outcome {
            unmet.push(Unmet { cluster: cluster.map(|c| c.name.clone()), need, message: error_chain(&error) });
        }
    };
    note(None, Need::AgentBinary, agent(&fleet.context));
    let machines =
        plans.iter().flat_map(|plan| plan.forecast.steps()).filter_map(|step| through_provider(&step.action));
    note(None, Need::Machines, provider_answers(fleet, &plan.provider_unreachable, machines));
    for cluster in wanted(&fleet.desired, only) {
        let at = match StackHandle::open(fleet, cluster).await {
            Ok(at) => at,
            Err(error) => {
                note(Some(cluster), Need::References, Err(error.into()));
                continue;
            }
        };
        // Nothing is installed in an adopted cluster.
        if at.ledger().etcd.adopted().is_none() {
            let binary = fleet.artifacts.check(&cluster.etcd.source, cluster.etcd.version, fleet.context.base());
            note(Some(cluster), Need::EtcdBinary, binary.map_err(OpError::from));
        }
        for bundle in bundles(&fleet.artifacts, cluster, &fleet.context) {
            note(Some(cluster), Need::Patroni, bundle);
        }
        note(Some(cluster), Need::References, at.check_references(now).await.map_err(OpError::from));
        let plan = plans.iter().find(|plan| plan.cluster == cluster.name);
        if fleet.spec.machines.provider == Provider::Local {
            let steps = || plan.iter().flat_map(|plan| plan.forecast.steps());
            for step in steps() {
                note(Some(cluster), Need::Port, ports(cluster, &step.action));
            }
            let machines = steps().filter_map(|step| configures_haproxy(&step.action));
            note(Some(cluster), Need::Directory, sockets(&fleet.spec, &fleet.context, machines));
        }
    }
    unmet
}

/// The machine that a step has the provider make, start, move or delete.
fn through_provider(action: &Action) -> Option<&Name> {
    let Action::Machine(action) = action else { return None };
    match action {
        MachineAction::AssignAddress { machine }
        | MachineAction::CreateMachine { machine }
        | MachineAction::StartMachine { machine }
        | MachineAction::MoveMachine { machine, .. }
        | MachineAction::RebuildMachine { machine }
        | MachineAction::DeleteMachine { machine } => Some(machine),
        MachineAction::Enroll { .. }
        | MachineAction::SetFirewall { .. }
        | MachineAction::SetAccess { .. }
        | MachineAction::RenewAgent { .. }
        | MachineAction::Deliver { .. } => None,
    }
}

/// Whether the connections of the provider that these machines are on answer.
pub(super) fn provider_answers<'a>(
    fleet: &Fleet,
    silent: &[SilentConnection],
    machines: impl Iterator<Item = &'a Name>,
) -> Result<(), OpError> {
    let needed: BTreeSet<SilentConnection> =
        machines.flat_map(|machine| fleet.silent_for(silent, machine)).cloned().collect();
    let consequence = "its machines cannot be made or changed: see that it answers, then run the command again";
    if needed.is_empty() { Ok(()) } else { Err(OpError::ProviderSilent { silent: needed, consequence }) }
}

fn wanted<'a>(desired: &'a Desired, only: &'a [Name]) -> impl Iterator<Item = &'a Stack> {
    desired.stacks.iter().filter(|c| only.is_empty() || only.contains(&c.name))
}

/// Whether the agent's program can be run.
pub(super) fn agent(context: &Context) -> Result<(), OpError> {
    let agent = &context.agent;
    match std::fs::metadata(agent).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0) {
        true => Ok(()),
        false => Err(OpError::NoAgent(agent.clone())),
    }
}

/// Whether all that the file refers to for a cluster exists and is valid.
fn references(cluster: &Stack, base: &Path, now: Timestamp) -> Result<(), StackError> {
    for side in TrustDomain::ALL {
        if let spec::Authority::Brought(reference) = cluster.etcd.authority(side) {
            brought(side, reference, base, now)?;
        }
    }
    for postgres in &cluster.postgres {
        if let spec::Authority::Brought(reference) = &postgres.section.ca {
            let certificate = brought_certificate(reference, base)?;
            let key = crate::secrets::resolve(&reference.key, base)?;
            Authority::brought(AuthorityKind::Postgres, &certificate, &key, now)?;
        }
        for role in [&postgres.section.replicator, &postgres.section.rewind] {
            if let Some(reference) = &role.password {
                crate::secrets::resolve(reference, base)?;
            }
        }
    }
    let root = cluster.etcd.root_password.as_ref().filter(|_| cluster.etcd.auth == AuthMode::Password);
    let users = cluster.etcd.access.users.iter().flatten().filter_map(|(_, user)| user.password.as_ref());
    for reference in root.into_iter().chain(users) {
        crate::secrets::resolve(reference, base)?;
    }
    Ok(())
}

/// Whether there is the bundle of Patroni that each PostgreSQL cluster needs.
fn bundles<'a>(
    artifacts: &'a Artifacts,
    stack: &'a Stack,
    context: &'a Context,
) -> impl Iterator<Item = Result<(), OpError>> {
    stack.postgres.iter().map(|cluster| {
        let source = cluster.section.patroni.source.as_ref();
        Ok(artifacts.check_bundle(source, cluster.patroni, context.base(), &context.agent)?)
    })
}

/// The machine whose HAProxy a step configures.
fn configures_haproxy(action: &Action) -> Option<&Name> {
    match action {
        Action::Balancer(BalancerAction::ConfigureBalancer { machine, .. }) => Some(machine),
        _ => None,
    }
}

/// Whether HAProxy can have its admin socket in the directories of these machines on this computer.
fn sockets<'a>(spec: &Spec, context: &Context, machines: impl Iterator<Item = &'a Name>) -> Result<(), OpError> {
    let dir = resolved(&context.local_machines(&spec.machines, &context.state_dir(spec)));
    for machine in machines {
        let path = dir.join(machine.as_str()).join(SOCKET);
        if path.as_os_str().len() > LONGEST_SOCKET {
            return Err(OpError::SocketPath { machine: machine.clone(), path });
        }
    }
    Ok(())
}

/// The path without symbolic links, as an agent sees it, where a part of it does not exist yet.
pub(super) fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let known = path.ancestors().find_map(|known| Some((known, known.canonicalize().ok()?)));
    let Some((known, canonical)) = known else { return path };
    path.strip_prefix(known).map(|rest| canonical.join(rest)).unwrap_or(path.clone())
}

/// Whether the ports that a machine on this computer is about to use are free. etcd of a stopped machine may still run,
/// so those ports are its own.
fn ports(cluster: &Stack, action: &Action) -> Result<(), OpError> {
    let mut ports = vec![AGENT_PORT];
    let machine = if let Action::Machine(MachineAction::CreateMachine { machine }) = action {
        if cluster.etcd.member(machine).is_some() {
            ports.extend([CLIENT_PORT, PEER_PORT]);
            // Where balancers ask for the member's health.
            ports.extend(cluster.balancers.iter().find(|it| it.behind == Behind::Members).map(|_| HEALTH_PORT));
        }
        let of_balancer = cluster.instance(machine).map(|(balancer, _)| (balancer.port, balancer.replicas_port));
        ports.extend(of_balancer.into_iter().flat_map(|(port, replicas)| std::iter::once(port).chain(replicas)));
        ports.extend(cluster.node(machine).iter().flat_map(|_| [POSTGRES_PORT, REST_PORT]));
        machine
    } else if let Action::Machine(MachineAction::StartMachine { machine }) = action {
        machine
    } else {
        return Ok(());
    };
    let address = cluster.machine_address(machine);
    let Some(address) = address else { return Ok(()) };
    match ports.into_iter().find(|port| taken(address, *port)) {
        Some(port) => Err(OpError::PortTaken { machine: machine.clone(), at: (address, port).into() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_resolved_as_far_as_it_exists() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, dir.path().join("link")).unwrap();
        assert_eq!(resolved(&dir.path().join("link/.raftsman/machines")), real.join(".raftsman/machines"));
        assert_eq!(resolved(Path::new("/nonexistent/a")), Path::new("/nonexistent/a"));
    }
}
