//! `raftsman version`: the fleet's agents → the version of each.

use std::sync::Arc;

use raftsman_core::observed::{Agent, Fact, MachineObserved};
use raftsman_core::spec::Name;
use serde::Serialize;

use super::status::AgentStatus;
use super::{OpError, for_each_stack};
use crate::fleet::Fleet;
use crate::observe::Observer;

/// The version of one machine's agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AgentVersion {
    /// The cluster that its machine is of.
    pub cluster: Name,
    /// Its machine.
    pub machine: Name,
    /// Its version, where it answers.
    pub version: Option<String>,
    /// SHA-256 of its program, where it is known.
    pub sha256: Option<String>,
    /// Whether that is the program that this raftsman ships, where both are known.
    pub shipped: Option<bool>,
    /// Why its version is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Asks every agent. An adopted cluster has none.
pub async fn agents(fleet: &Arc<Fleet>) -> Result<Vec<AgentVersion>, OpError> {
    let of_clusters = for_each_stack(fleet, &[], |cluster| async move {
        if cluster.ledger().etcd.adopted().is_some() {
            return Ok(Vec::new());
        }
        let observed = Observer::new(Arc::clone(&cluster))?.look().await?;
        let of_machine = |(machine, seen): (&Name, &MachineObserved)| {
            let (agent, error) = match &seen.agent {
                Fact::Seen { value: Agent::Claimed(report), .. } => {
                    (Some(AgentStatus::of(&cluster.desired, report)), None)
                }
                Fact::Seen { value: Agent::Unclaimed, .. } => (None, Some("it is not enrolled yet".to_owned())),
                Fact::Unreachable { error, .. } => (None, Some(error.clone())),
                Fact::Absent { .. } => (None, Some("there is none".to_owned())),
            };
            let (version, sha256, shipped) = match agent {
                Some(AgentStatus { version, sha256, shipped }) => (Some(version), sha256, shipped),
                None => (None, None, None),
            };
            let (cluster, machine) = (cluster.desired.name.clone(), machine.clone());
            AgentVersion { cluster, machine, version, sha256, shipped, error }
        };
        Ok(observed.machines.iter().map(of_machine).collect())
    });
    Ok(of_clusters.await?.into_iter().flatten().collect())
}
