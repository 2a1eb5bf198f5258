//! `raftsman restore`: a backup → what would be lost, and a decision that `apply` carries out.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
pub use raftsman_backup::RestoreTarget;
use raftsman_backup::{Keys, Point};
use raftsman_core::backup::FullName;
use raftsman_core::observed::{Observed, Restoration};
use raftsman_core::plan::restore::{decide, untried};
use raftsman_core::spec::{Name, Spec};
use serde::Serialize;
use serde_json::json;

use super::apply::{Execution, carry_out};
use super::begin::{Consent, locked_cluster};
use super::plan::{FleetPlan, cluster_plan};
use super::{OpError, pick_cluster, refuse_newer_agents};
use crate::act::Executor;
use crate::act::restore::seen;
use crate::apply::Outcome;
use crate::backup::{Accepted, source};
use crate::fleet::{Context, Fleet};
use crate::journal::Journal;
use crate::observe::Observer;
use crate::restore_test::RestoreTestResult;
use crate::store::Lock;

/// What restoring a backup would do.
#[derive(Debug, Serialize)]
pub struct Survey {
    /// Into which cluster.
    pub cluster: Name,
    /// From where.
    pub place: String,
    /// The full backup.
    pub backup: FullName,
    /// The number of batches of changes that are replayed.
    pub batches: usize,
    /// Everything up to this revision is restored.
    pub revision: i64,
    /// When the last restored change was made.
    pub at: Timestamp,
    /// The highest revision that was ever observed of this cluster.
    pub seen: i64,
    /// What `apply` would do.
    #[serde(skip)]
    pub plan: FleetPlan,
    #[serde(skip)]
    point: Point,
    #[serde(skip)]
    observed: Observed,
}

impl Survey {
    /// The number of revisions that are lost, as far as is known.
    pub fn lost(&self) -> i64 {
        (self.seen - self.revision).max(0)
    }
}

/// What is to be restored, and from where.
#[derive(Debug)]
pub struct Request {
    /// Into which cluster; the only one of the file when it is not named.
    pub cluster: Option<String>,
    /// From the backups of another cluster.
    pub from: Option<String>,
    /// Which backups are accepted beyond those that are signed with the cluster's own key.
    pub accepted: Accepted,
    /// Up to where.
    pub target: RestoreTarget,
    /// What decrypts it.
    pub keys: Keys,
    /// Only look.
    pub show: bool,
}

/// Hears of the restore test.
pub struct Watch<'a> {
    /// Bytes that were read, and their total.
    pub progress: &'a (dyn Fn(u64, u64) + Send + Sync),
    /// Its result.
    pub tried: &'a (dyn Fn(&RestoreTestResult) + Sync),
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// The whole of `raftsman restore`: observes, asks, tests the backup, records the decision, and applies it.
pub async fn run(
    spec: Spec,
    context: &Context,
    request: Request,
    consent: Consent<'_, Survey>,
    watch: Watch<'_>,
    execution: Execution,
) -> Result<Vec<Outcome>, OpError> {
    let Request { cluster, from, accepted, target, keys, show } = request;
    let (fleet, lock) = locked_cluster(spec, context, "restore", cluster.as_deref()).await?;
    let found = survey(&fleet, cluster.as_deref(), from.as_deref(), &accepted, target, &keys).await?;
    (consent.show)(&found);
    if show {
        return Ok(Vec::new());
    }
    consent.ask(&found)?;
    let marked = Box::pin(async {
        let tried = try_out(&fleet, &lock, &found, from.as_deref(), &keys, watch.progress).await?;
        (watch.tried)(&tried.result);
        mark(&fleet, &lock, &found, &tried).await
    });
    execution.unless_interrupted(marked).await?;
    carry_out(&fleet, &lock, std::slice::from_ref(&found.cluster), execution).await
}

/// Observes the cluster and the backup, and what the restore would change. Nothing is changed.
pub async fn survey(
    fleet: &Arc<Fleet>,
    cluster: Option<&str>,
    from: Option<&str>,
    accepted: &Accepted,
    target: RestoreTarget,
    keys: &Keys,
) -> Result<Survey, OpError> {
    let cluster = Arc::new(pick_cluster(fleet, cluster).await?);
    let at = source(fleet, &cluster.desired.name, from, accepted).await?;
    let observed = Observer::new(Arc::clone(&cluster))?.look().await?;
    refuse_newer_agents(&cluster.desired, &observed)?;
    if observed.ledger.etcd.adopted().is_some() {
        return Err(OpError::Unclear(
            "this cluster is adopted read-only: restore it with the tools that run it".to_owned(),
        ));
    }
    if observed.ledger.etcd.cluster.is_none() {
        return Err(OpError::Unclear(format!(
            "`{}` has no machines yet: run `raftsman apply` first",
            cluster.desired.name
        )));
    }
    if !cluster.desired.is_placed() {
        return Err(OpError::Unclear(format!(
            "not all machines of `{}` have an address yet: run `raftsman apply` first",
            cluster.desired.name
        )));
    }
    let point = at.find(target, keys).await?;
    let mut then = observed.clone();
    let (name, revision) = (point.full.about.name, point.last());
    decide(&mut then.ledger, untried(&cluster.desired, &observed, name, revision, Timestamp::now()));
    let plan = cluster_plan(&cluster.desired, &then);
    Ok(Survey {
        cluster: cluster.desired.name.clone(),
        place: at.repository.store.place().to_owned(),
        backup: point.full.about.name,
        batches: point.batches.len(),
        revision: point.last(),
        at: point.at(),
        seen: seen(&observed),
        plan: FleetPlan::new(fleet.spec.fleet.clone(), vec![plan]),
        point,
        observed,
    })
}

/// A backup that was tested, and can be restored.
#[derive(Debug)]
pub struct TestedBackup {
    /// What came of it.
    pub result: RestoreTestResult,
    restoration: Restoration,
}

/// Tests the backup on a machine, in a temporary etcd. Nothing is changed.
pub async fn try_out(
    fleet: &Arc<Fleet>,
    lock: &Lock,
    survey: &Survey,
    from: Option<&str>,
    keys: &Keys,
    watch: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<TestedBackup, OpError> {
    // It was verified already: what is read must have the same hashes.
    let at = source(fleet, &survey.cluster, from, &Accepted::default()).await?;
    let observer = Observer::new(Arc::new(pick_cluster(fleet, Some(survey.cluster.as_str())).await?))?;
    let executor = Executor { observer: &observer, lock, limit: Duration::MAX };
    let (restoration, result) = executor.restorable(&at, from, &survey.point, &survey.observed, keys, watch).await?;
    Ok(TestedBackup { result, restoration })
}

/// Has machines prepare their members' data, and records the decision: from now on `apply` restores it.
pub async fn mark(fleet: &Arc<Fleet>, lock: &Lock, survey: &Survey, tried: &TestedBackup) -> Result<(), OpError> {
    let cluster = Arc::new(pick_cluster(fleet, Some(survey.cluster.as_str())).await?);
    let observer = Observer::new(Arc::clone(&cluster))?;
    let executor = Executor { observer: &observer, lock, limit: Duration::MAX };
    // Before any member stops: clients do not have to wait for the slow part.
    executor.prepare_data(&tried.restoration).await?;
    cluster.remember(lock, |ledger| decide(ledger, tried.restoration.clone())).await?;
    let journal = Journal::new(&fleet.store, &fleet.context, lock);
    journal.note(Some(&survey.cluster), "restore", json!({ "restoration": tried.restoration })).await?;
    Ok(())
}
