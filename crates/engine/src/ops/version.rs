//! `raftsman version`: the fleet's agents → the version of each.

use std::sync::Arc;

use raftsman_core::observed::{Agent, Fact};
use raftsman_core::spec::Name;
use serde::Serialize;

use super::{OpError, for_each_cluster};
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
    /// Why it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Asks every agent. An adopted cluster has none.
pub async fn agents(fleet: &Arc<Fleet>) -> Result<Vec<AgentVersion>, OpError> {
    let of_clusters = for_each_cluster(fleet, &[], |cluster| async move {
        if cluster.ledger().adopted().is_some() {
            return Ok(Vec::new());
        }
        let observed = Observer::new(Arc::clone(&cluster))?.look().await?;
        let of_machine = |(machine, seen): (&Name, &raftsman_core::observed::MemberObserved)| {
            let (version, error) = match &seen.agent {
                Fact::Seen { value: Agent::Claimed(report), .. } => (Some(report.version.clone()), None),
                Fact::Seen { value: Agent::Unclaimed, .. } => (None, Some("it is not enrolled yet".to_owned())),
                Fact::Unreachable { error, .. } => (None, Some(error.clone())),
                Fact::Absent { .. } => (None, Some("there is none".to_owned())),
            };
            AgentVersion { cluster: cluster.desired.name.clone(), machine: machine.clone(), version, error }
        };
        Ok(observed.members.iter().map(of_machine).collect())
    });
    Ok(of_clusters.await?.into_iter().flatten().collect())
}
