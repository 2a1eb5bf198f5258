//! `raftsman apply`: executes what `plan` shows, every cluster independently.

use std::sync::Arc;
use std::time::Duration;

use raftsman_core::desired::Stack;
use raftsman_core::spec::{Name, Spec};
use serde_json::json;

use super::begin::{Begun, Consent, begin, clusters, is_new, open, withdraw};
use super::needs::{Unmet, agent, provider_answers};
use super::plan::{Detail, FleetPlan, plan, plan_of_new};
use super::{OpError, for_each_stack};
use crate::apply::{self, ApplyError, Event, Outcome};
use crate::fleet::{Context, Fleet};
use crate::interrupt::Interrupt;
use crate::journal::Journal;
use crate::stack::StackHandle;
use crate::store::Lock;

/// Receives every event of a cluster as it happens.
pub type OnEvent = Arc<dyn Fn(&Name, Event) + Send + Sync>;

/// How steps are carried out.
#[derive(Clone)]
pub struct Execution {
    /// It stops after this time without progress.
    pub timeout: Duration,
    /// Receives every event.
    pub report: OnEvent,
    /// Interrupts it.
    pub interrupt: Interrupt,
}

impl std::fmt::Debug for Execution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Execution").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Execution {
    /// Runs the preparation before the first step, unless the operator interrupts it: nothing is under way yet.
    pub(super) async fn unless_interrupted<T>(
        &self,
        work: impl Future<Output = Result<T, OpError>>,
    ) -> Result<T, OpError> {
        tokio::select! {
            outcome = work => outcome,
            () = self.interrupt.wait() => Err(OpError::Interrupted { done: Vec::new(), left: Vec::new() }),
        }
    }
}

/// Whether every cluster converged.
pub(super) fn converged(outcomes: &[Outcome]) -> Result<(), OpError> {
    let not: Vec<Name> = outcomes.iter().filter(|o| o.error.is_some()).map(|o| o.cluster.clone()).collect();
    if not.is_empty() { Ok(()) } else { Err(OpError::NotConverged(not)) }
}

/// The whole of `raftsman apply`: plans, asks, takes the lock, checks the requirements, and applies. Where nothing can
/// start, a state that was made for it is removed again.
pub async fn run(
    spec: Spec,
    context: &Context,
    only: &[Name],
    consent: Consent<'_, FleetPlan>,
    execution: Execution,
) -> Result<Vec<Outcome>, OpError> {
    let mut context = context.clone();
    let scope = clusters(&spec, only);
    // The operator is asked before anything is made, even the state.
    let mut forecast = match is_new(&spec, &context).await? {
        true => {
            // Needed once the state is made: it is read beside etcd's binary.
            context.examined.begin_shipped(&context.agent);
            plan_of_new(&spec, &context, only, Detail::default())?
        }
        false => {
            let fleet = open(spec.clone(), context).await?;
            // The operator has given a passphrase already: it is not requested again.
            context = fleet.context.clone();
            plan(&fleet, only, Detail::default()).await?
        }
    };
    if !forecast.obstacles().is_empty() && !is_new(&spec, &context).await? {
        // A port may be in use by a machine that another command has just made: if a command holds the lock, it is
        // named, or waited for.
        let begun = begin(spec.clone(), &context, "apply", &scope).await?;
        drop(begun.lock);
        forecast = plan(&begun.fleet, only, Detail::default()).await?;
    }
    (consent.show)(&forecast);
    if !forecast.has_steps() && forecast.converges() {
        return Ok(Vec::new());
    }
    let obstacles: Vec<Unmet> = forecast.obstacles().into_iter().cloned().collect();
    if !obstacles.is_empty() {
        return Err(OpError::Unmet(obstacles));
    }
    consent.ask(&forecast)?;
    let Begun { fleet, lock, made } = begin(spec, &context, "apply", &scope).await?;
    if let Err(error) = execution.unless_interrupted(preflight(&fleet, only)).await {
        if made {
            drop(lock);
            withdraw(fleet.store.clone(), &context).await?;
        }
        return Err(error);
    }
    carry_out(&fleet, &lock, only, execution).await
}

/// Applies the clusters, each independently, under this lock.
pub async fn carry_out(
    fleet: &Arc<Fleet>,
    lock: &Lock,
    only: &[Name],
    execution: Execution,
) -> Result<Vec<Outcome>, OpError> {
    let Execution { timeout, report: on_event, interrupt } = execution;
    let journal = Arc::new(Journal::new(&fleet.store, &fleet.context, lock));
    for_each_stack(fleet, only, |cluster| {
        let (journal, on_event, interrupt) = (Arc::clone(&journal), Arc::clone(&on_event), interrupt.clone());
        async move {
            let name = cluster.desired.name.clone();
            let on_event = |event| on_event(&name, event);
            let outcome = Box::pin(apply::apply(Arc::clone(&cluster), &journal, timeout, &on_event, &interrupt)).await;
            if let Some(revision) = outcome.observed.as_ref().and_then(apply::last_revision) {
                cluster
                    .remember(journal.lock(), |ledger| {
                        ledger.etcd.last_revision = ledger.etcd.last_revision.max(revision)
                    })
                    .await?;
            }
            match &outcome.error {
                None => journal.note(Some(&name), "converged", json!({ "steps": outcome.steps.len() })).await?,
                Some(ApplyError::Interrupted(_)) => {
                    journal.note(Some(&name), "interrupted", json!({ "steps": outcome.steps.len() })).await?;
                }
                Some(error) => journal.note(Some(&name), "stopped", json!({ "error": error.to_string() })).await?,
            }
            Ok(outcome)
        }
    })
    .await
}

/// Finds every binary, authority and secret that will be needed: what is missing is reported before anything is
/// changed.
pub async fn preflight(fleet: &Arc<Fleet>, only: &[Name]) -> Result<(), OpError> {
    agent(&fleet.context)?;
    let chosen = || fleet.desired.stacks.iter().filter(|c| only.is_empty() || only.contains(&c.name));
    let mut clusters = Vec::new();
    for cluster in chosen() {
        clusters.push((cluster, StackHandle::open(fleet, cluster).await?));
    }
    // Running clusters are maintained without the provider as far as possible. Where none runs yet, everything depends
    // on machines.
    if clusters.iter().all(|(_, at)| at.ledger().etcd.started.is_empty() && at.ledger().etcd.adopted().is_none()) {
        let silent = fleet.inventory().await.silent;
        provider_answers(fleet, &silent, chosen().flat_map(Stack::all_machines))?;
    }
    for (cluster, at) in clusters {
        // Nothing is installed in an adopted cluster.
        if at.ledger().etcd.adopted().is_none() {
            fleet.artifacts.fetch(&cluster.etcd.source, cluster.etcd.version).await?;
            fleet.artifacts.found(&cluster.etcd.source, cluster.etcd.version, fleet.context.base()).await?;
        }
        at.check_references(jiff::Timestamp::now()).await?;
    }
    Ok(())
}
