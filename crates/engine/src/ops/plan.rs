//! `raftsman plan`: desired and observed state → what `apply` would do, step by step.

mod diff;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use raftsman_core::action::{Action, EtcdAction};
use raftsman_core::desired::{Identity, LoopbackNetwork, Stack, resolve};
use raftsman_core::model::{Forecast, forecast};
use raftsman_core::observed::{Observed, Preflight, View, Zones};
use raftsman_core::plan::{Considered, deletion, explain};
use raftsman_core::spec::{EtcdVersion, Name, RaftTimers, Spec};
use serde::Serialize;

pub use diff::ConfigDiff;

use super::needs::{self, Need, Unmet};
use super::{OpError, Surroundings, for_each_stack, surroundings};
use crate::fleet::{Context, Fleet, FleetError};
use crate::machines::SilentConnection;
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
    /// Its zones, and how many of them it can lose, where zones are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zones: Option<Zones>,
    /// Its heartbeat and election time-outs; nothing while they are to be measured.
    pub timers: Option<RaftTimers>,
    /// Whether the file wants them measured.
    pub timers_by_measurement: bool,
    /// What was measured last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preflight: Option<Preflight>,
    /// How long each member that is stopped may wait for clients that watch, where members are and etcd waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_held_ms: Option<u64>,
    /// What would be done.
    #[serde(flatten)]
    pub forecast: Forecast,
    /// With `--diff`: how the configuration files of etcd, HAProxy and keepalived would change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diffs: Option<Vec<ConfigDiff>>,
    /// With `--explain`: the result of every pass of the planner, for the next wave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub considered: Option<Vec<Considered>>,
}

/// What a plan shows beside its steps.
#[derive(Debug, Clone, Copy, Default)]
pub struct Detail {
    /// How configuration files would change.
    pub diffs: bool,
    /// The result of every pass of the planner.
    pub explain: bool,
}

/// The forecast of a fleet.
#[derive(Debug, Clone, Serialize)]
pub struct FleetPlan {
    /// Its name.
    pub fleet: Name,
    /// Its clusters.
    pub clusters: Vec<ClusterPlan>,
    /// Machines of the fleet that the file does not name. They are not changed.
    pub unnamed_machines: Vec<String>,
    /// Connections of the provider that do not answer: their machines are neither made nor changed.
    pub provider_unreachable: Vec<SilentConnection>,
    /// What the steps delete permanently.
    pub deletions: Vec<Deletion>,
    /// What `apply` needs and would not find: it does not start.
    pub unmet: Vec<Unmet>,
}

/// Something that a step deletes permanently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Deletion {
    /// In which cluster.
    pub cluster: Name,
    /// What, such as `user alice`.
    pub what: String,
}

impl FleetPlan {
    /// The forecasts of a fleet's clusters.
    pub(super) fn new(fleet: Name, clusters: Vec<ClusterPlan>) -> Self {
        let of_cluster = |plan: &ClusterPlan| {
            let cluster = plan.cluster.clone();
            let what = plan.forecast.steps().filter_map(|step| deletion(&step.action));
            what.map(|what| Deletion { cluster: cluster.clone(), what }).collect::<Vec<_>>()
        };
        let deletions = clusters.iter().flat_map(of_cluster).collect();
        let (unnamed_machines, provider_unreachable, unmet) = (Vec::new(), Vec::new(), Vec::new());
        Self { fleet, clusters, unnamed_machines, provider_unreachable, deletions, unmet }
    }

    /// Whether there is anything to do.
    pub fn has_steps(&self) -> bool {
        self.clusters.iter().any(|c| !c.forecast.waves.is_empty())
    }

    /// What prevents `apply` from starting at all. A port in use only blocks its own cluster, as long as another one
    /// can be applied.
    pub fn obstacles(&self) -> Vec<&Unmet> {
        let held = |name: &Name| self.unmet.iter().any(|u| u.need == Need::Port && u.cluster.as_ref() == Some(name));
        let mut with_steps = self.clusters.iter().filter(|c| !c.forecast.waves.is_empty());
        let others_go_on = with_steps.any(|c| !held(&c.cluster));
        self.unmet.iter().filter(|unmet| unmet.need != Need::Port || !others_go_on).collect()
    }

    /// Whether every cluster converges.
    pub fn converges(&self) -> bool {
        self.clusters.iter().all(|c| c.forecast.converges)
    }
}

/// The plan of a fleet that was applied before.
pub async fn plan(fleet: &Arc<Fleet>, only: &[Name], detail: Detail) -> Result<FleetPlan, OpError> {
    let clusters = for_each_stack(fleet, only, move |cluster| async move {
        let observed = Observer::new(Arc::clone(&cluster))?.look().await?;
        Ok(detailed_plan(&cluster.desired, &observed, detail))
    });
    // Concurrently: a provider that does not answer costs its time limit once.
    let (clusters, around) = tokio::join!(clusters, surroundings(fleet));
    let Surroundings { unnamed, silent } = around?;
    let mut plan = FleetPlan::new(fleet.spec.fleet.clone(), clusters?);
    (plan.unnamed_machines, plan.provider_unreachable) = (unnamed, silent);
    // Where nothing is to be done, nothing is needed.
    if plan.has_steps() || !plan.converges() {
        plan.unmet = needs::of_fleet(fleet, &plan, only, Timestamp::now()).await;
    }
    Ok(plan)
}

/// The plan of a fleet that has no state yet: nothing of it can exist.
pub fn plan_of_new(spec: &Spec, context: &Context, only: &[Name], detail: Detail) -> Result<FleetPlan, OpError> {
    // The first apply chooses the network; the plan does not depend on it.
    let network = spec.machines.network.as_deref().and_then(|n| n.parse().ok());
    let network = network.or_else(|| Some(LoopbackNetwork::new(0, 1)));
    let identity = Identity { id: "new".to_owned(), network, places: BTreeMap::new(), zones: BTreeMap::new() };
    let desired = resolve(spec, &identity).map_err(FleetError::from)?;
    let at = Timestamp::now();
    let wanted = desired.stacks.iter().filter(|c| only.is_empty() || only.contains(&c.name));
    let clusters = wanted.map(|cluster| {
        let observed = Observed::nothing(cluster, at);
        detailed_plan(cluster, &observed, detail)
    });
    let unmet = needs::of_new(spec, context, &desired, only, at);
    Ok(FleetPlan { unmet, ..FleetPlan::new(spec.fleet.clone(), clusters.collect()) })
}

fn detailed_plan(desired: &Stack, observed: &Observed, detail: Detail) -> ClusterPlan {
    let now = Timestamp::now();
    ClusterPlan {
        diffs: detail.diffs.then(|| diff::diffs(desired, observed)),
        considered: detail.explain.then(|| explain(desired, observed, now)),
        ..cluster_plan_at(desired, observed, now)
    }
}

/// The forecast of one cluster that was looked at.
pub(super) fn cluster_plan(desired: &Stack, observed: &Observed) -> ClusterPlan {
    cluster_plan_at(desired, observed, Timestamp::now())
}

fn cluster_plan_at(desired: &Stack, observed: &Observed, now: Timestamp) -> ClusterPlan {
    let forecast = forecast(desired, observed, now);
    let stops = forecast.steps().any(|step| {
        use EtcdAction::{RestartEtcd, RestartTogether, StopEtcd};
        matches!(step.action, Action::Etcd(RestartEtcd { .. } | RestartTogether { .. } | StopEtcd { .. }))
    });
    ClusterPlan {
        stop_held_ms: desired.etcd.stop_held_ms(&observed.ledger).filter(|_| stops),
        cluster: desired.name.clone(),
        members: desired.etcd.size(),
        version: desired.etcd.version,
        zones: Zones::of(desired, observed, &View::of(observed)),
        timers: desired.etcd.timers(&observed.ledger),
        timers_by_measurement: desired.etcd.settings.timers.given().is_none(),
        preflight: observed.ledger.etcd.preflight.clone(),
        forecast,
        diffs: None,
        considered: None,
    }
}
