//! `raftsman join`: a host of the file without SSH access → the command that enrolls it manually.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use raftsman_core::boot::Boot;
use raftsman_core::spec::postgres::Nodes;
use raftsman_core::spec::{Instances, Members, Name, Provider, Spec};
use serde::Serialize;

use super::begin::{Begun, begin, clusters};
use super::{OpError, pick_machine};
use crate::act;
use crate::fleet::{Context, Fleet};
use crate::stack::StackHandle;
use crate::store::Lock;
use crate::tokens::KeptToken;

/// The shortest validity: an agent must get the token within it.
const SHORTEST: Duration = Duration::from_secs(60);
/// The line is a secret for as long as it is valid: no longer than an operator needs to get to a host.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// What enrolls a host manually.
#[derive(Debug, Clone, Serialize)]
pub struct Invitation {
    /// The host.
    pub machine: Name,
    /// Where its agent will answer.
    pub address: IpAddr,
    /// Until when.
    pub until: Option<Timestamp>,
    /// The boot data for its agent, on one line. It is of no use once the host is enrolled.
    pub boot: Boot,
}

/// The whole of `raftsman join`: makes the state where there is none, and invites the host under its cluster's lock.
pub async fn run(spec: Spec, context: &Context, host: &str, valid_for: Duration) -> Result<Invitation, OpError> {
    check(&spec)?;
    // Hosts are listed in the file, by name.
    let cluster = spec.etcd.iter().find(|(_, cluster)| match &cluster.members {
        Members::List(list) => list.iter().any(|member| member.name.as_str() == host),
        Members::Count(_) => false,
    });
    let balancer = spec.balancers.values().find(|balancer| match &balancer.instances {
        Instances::List(list) => list.iter().any(|instance| instance.name.as_str() == host),
        Instances::Count(_) | Instances::Beside(_) => false,
    });
    let node = spec.postgres.values().find(|cluster| match &cluster.nodes {
        Nodes::List(list) => list.iter().any(|node| node.name.as_str() == host),
        Nodes::Count(_) => false,
    });
    let beneath = || node?.beneath();
    let cluster = cluster.map(|(name, _)| name);
    let cluster = cluster.or_else(|| balancer.and_then(|balancer| spec.beneath(balancer))).or_else(beneath);
    let only: Vec<Name> = cluster.cloned().into_iter().collect();
    let scope = clusters(&spec, &only);
    let Begun { fleet, lock, .. } = begin(spec, context, "join", &scope).await?;
    join(&fleet, &lock, host, valid_for).await
}

/// Whether the file has hosts to invite. Checked before anything is made.
pub fn check(spec: &Spec) -> Result<(), OpError> {
    if spec.machines.provider == Provider::Hosts { Ok(()) } else { Err(OpError::NoHosts) }
}

/// Invites a host: the next `apply` enrolls it, once its agent has the boot data.
///
/// Each invitation has a token of its own and invalidates the one before: a line that was printed earlier does not work
/// any more.
pub async fn join(fleet: &Arc<Fleet>, lock: &Lock, host: &str, valid_for: Duration) -> Result<Invitation, OpError> {
    if !(SHORTEST..=LONGEST).contains(&valid_for) {
        return Err(OpError::JoinWindow);
    }
    let (cluster, machine) = pick_machine(fleet, host)?;
    check(&fleet.spec)?;
    let missing = || OpError::NoSuchMachine { name: host.to_owned(), known: Vec::new() };
    let address = cluster.machine_address(machine).ok_or_else(missing)?;
    let (cluster, machine) = (StackHandle::open(fleet, cluster).await?, machine.clone());
    cluster.begin(lock).await?;
    let kept = KeptToken::renew(&fleet.secrets, lock, &machine, Some(Timestamp::now() + valid_for)).await?;
    let boot = act::boot_data(fleet, &machine, address, &kept);
    Ok(Invitation { machine, address, until: boot.join_deadline, boot })
}
