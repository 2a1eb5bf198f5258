//! `raftsman preflight`: measured disks and network → whether heartbeat and election time-outs fit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use raftsman_core::observed::{Concern, Measurement, Preflight, Worst, judge, recommend};
use raftsman_core::spec::{Name, RaftTimers, Spec};
use serde::Serialize;
use serde_json::json;

use super::OpError;
use super::begin::locked;
use crate::act::Executor;
use crate::fleet::Context;
use crate::journal::Journal;
use crate::observe::Observer;
use crate::stack::StackHandle;

/// What was measured on one cluster, and what follows.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterPreflight {
    /// Its name.
    pub cluster: Name,
    /// What was measured.
    #[serde(flatten)]
    pub measurement: Measurement,
    /// Machines that did not answer, and why.
    pub silent: BTreeMap<Name, String>,
    /// The slowest disk, and the highest round-trip time.
    pub worst: Worst,
    /// The timers that suit it.
    pub recommended: RaftTimers,
    /// The timers in force: of the file, or of the recorded measurement; nothing before there is one.
    pub timers: Option<RaftTimers>,
    /// Whether the file wants them measured.
    pub by_measurement: bool,
    /// Whether this measurement is kept.
    pub saved: bool,
    /// What does not fit.
    pub concerns: Vec<ConcernStatus>,
}

/// A setting that does not fit, as text.
#[derive(Debug, Clone, Serialize)]
pub struct ConcernStatus {
    /// In words.
    pub message: String,
    /// What to do.
    pub next: String,
    /// Whether the cluster may lose its leader for it.
    #[serde(rename = "unsafe")]
    pub is_unsafe: bool,
    /// As data.
    #[serde(flatten)]
    pub concern: Concern,
}

impl ClusterPreflight {
    /// Whether the timers that are in force put the cluster at risk.
    pub fn is_unsafe(&self) -> bool {
        self.concerns.iter().any(|c| c.is_unsafe)
    }
}

/// The whole of `raftsman preflight`: takes the lock and measures every cluster, one after the other: they may share
/// disks. With `save` the measurement is kept.
pub async fn run(spec: Spec, context: &Context, only: &[Name], save: bool) -> Result<Vec<ClusterPreflight>, OpError> {
    let (fleet, lock) = locked(spec, context, "preflight", only).await?;
    let journal = Journal::new(&fleet.store, &fleet.context, &lock);
    let mut all = Vec::new();
    for desired in fleet.desired.stacks.iter().filter(|c| only.is_empty() || only.contains(&c.name)) {
        all.push(one(Arc::new(StackHandle::open(&fleet, desired).await?), &journal, save).await?);
    }
    Ok(all)
}

async fn one(cluster: Arc<StackHandle>, journal: &Journal, save: bool) -> Result<ClusterPreflight, OpError> {
    let name = cluster.desired.name.clone();
    if cluster.ledger().etcd.adopted().is_some() {
        return Err(OpError::NoMeasurement {
            cluster: name,
            why: "it is adopted read-only, without an agent".to_owned(),
        });
    }
    let observer = Observer::new(Arc::clone(&cluster))?;
    // Where the machines are by now.
    observer.look().await?;
    let executor = Executor { observer: &observer, lock: journal.lock(), limit: Duration::MAX };
    let (measurement, silent) = executor.measurement().await?;
    if measurement.members.is_empty() {
        let why = silent.into_values().next().unwrap_or_default();
        return Err(OpError::NoMeasurement { cluster: name, why });
    }
    if save {
        let kept = Preflight::after(cluster.ledger().etcd.preflight.as_ref(), measurement.clone());
        journal.note(Some(&name), "measured", json!(kept)).await?;
        cluster.remember(journal.lock(), |ledger| ledger.etcd.preflight = Some(kept)).await?;
    }
    let timers = cluster.desired.etcd.timers(&cluster.ledger());
    let concerns = timers.map(|timers| judge(timers, &measurement)).unwrap_or_default();
    let concerns = concerns.into_iter().map(|concern| ConcernStatus {
        message: concern.to_string(),
        next: concern.next(),
        is_unsafe: concern.is_unsafe(),
        concern,
    });
    Ok(ClusterPreflight {
        cluster: name,
        silent,
        worst: measurement.worst(),
        recommended: recommend(&measurement),
        timers,
        by_measurement: cluster.desired.etcd.settings.timers.given().is_none(),
        saved: save,
        concerns: concerns.collect(),
        measurement,
    })
}
