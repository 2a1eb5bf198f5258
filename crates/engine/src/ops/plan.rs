//! `raftsman plan`: what should be and what is → what `apply` would do, step by step.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use raftsman_core::desired::{Cluster, Identity, LoopbackNetwork, resolve};
use raftsman_core::model::{Forecast, forecast};
use raftsman_core::observed::{Fact, Ledger, MemberObserved, Observed, Preflight, Upkeep};
use raftsman_core::spec::{EtcdVersion, Name, Pace, Spec};
use serde::Serialize;

use super::{OpError, for_each_cluster, strangers};
use crate::fleet::{Fleet, FleetError};
use crate::observe::Observer;

/// The forecast of one cluster.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterPlan {
    /// Its name.
    pub cluster: Name,
    /// Its members.
    pub members: usize,
    /// Its version.
    pub version: EtcdVersion,
    /// Its heartbeat and election time-outs; nothing while they are to be measured.
    pub timers: Option<Pace>,
    /// Whether the file wants them measured.
    pub timers_by_measurement: bool,
    /// What was measured last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preflight: Option<Preflight>,
    /// What would be done.
    #[serde(flatten)]
    pub forecast: Forecast,
}

/// The forecast of a fleet.
#[derive(Debug, Clone, Serialize)]
pub struct FleetPlan {
    /// Its name.
    pub fleet: Name,
    /// Its clusters.
    pub clusters: Vec<ClusterPlan>,
    /// Machines of the fleet that the file does not name. Nothing is done to them.
    pub strangers: Vec<String>,
}

impl FleetPlan {
    /// Whether there is anything to do.
    pub fn has_steps(&self) -> bool {
        self.clusters.iter().any(|c| !c.forecast.waves.is_empty())
    }

    /// Whether every cluster gets to where it should be.
    pub fn converges(&self) -> bool {
        self.clusters.iter().all(|c| c.forecast.converges)
    }
}

/// The plan of a fleet that was applied before.
pub async fn plan(fleet: &Arc<Fleet>, only: &[Name]) -> Result<FleetPlan, OpError> {
    let clusters = for_each_cluster(fleet, only, |cluster| async move {
        let observed = Observer::new(Arc::clone(&cluster))?.look().await?;
        Ok(cluster_plan(&cluster.desired, &observed))
    });
    Ok(FleetPlan { clusters: clusters.await?, strangers: strangers(fleet).await?, fleet: fleet.spec.fleet.clone() })
}

/// The plan of a fleet that has no state yet: nothing of it can exist.
pub fn plan_of_new(spec: &Spec) -> Result<FleetPlan, OpError> {
    // Which network it will be is chosen by the first apply; the plan does not depend on it.
    let network = spec.machines.network.as_deref().and_then(|n| n.parse().ok());
    let network = network.or_else(|| Some(LoopbackNetwork::new(0, 1)));
    let identity = Identity { id: "new".to_owned(), network, places: BTreeMap::new() };
    let desired = resolve(spec, &identity).map_err(FleetError::from)?;
    let at = Timestamp::now();
    let absent =
        || MemberObserved { machine: Fact::Absent { at }, agent: Fact::Absent { at }, etcd: Fact::Absent { at } };
    let clusters = desired.clusters.iter().map(|cluster| {
        let members: BTreeMap<Name, MemberObserved> =
            cluster.members.iter().map(|m| (m.name.clone(), absent())).collect();
        let (ledger, upkeep) = (Ledger::default(), Upkeep::default());
        let observed = Observed { ledger, members, brought: BTreeMap::new(), handshakes: BTreeMap::new(), upkeep };
        cluster_plan(cluster, &observed)
    });
    Ok(FleetPlan { fleet: spec.fleet.clone(), clusters: clusters.collect(), strangers: Vec::new() })
}

/// The forecast of one cluster that was looked at.
pub(super) fn cluster_plan(desired: &Cluster, observed: &Observed) -> ClusterPlan {
    ClusterPlan {
        cluster: desired.name.clone(),
        members: desired.members.len(),
        version: desired.version,
        timers: desired.pace(&observed.ledger),
        timers_by_measurement: desired.settings.timers.given().is_none(),
        preflight: observed.ledger.preflight.clone(),
        forecast: forecast(desired, observed, Timestamp::now()),
    }
}
