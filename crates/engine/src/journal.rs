//! What a run does → lines of the journal: user, time, lock generation, step, outcome.

use jiff::Timestamp;
use raftsman_core::action::Action;
use raftsman_core::plan::Step;
use raftsman_core::spec::Name;
use serde_json::json;

use crate::act::ActError;
use crate::fleet::Context;
use crate::store::{Entry, Lock, Store, StoreError};

/// The journal of one run.
#[derive(Debug)]
pub struct Journal {
    store: Store,
    who: String,
    lock: Lock,
    run: String,
}

impl Journal {
    /// A run that holds the lock.
    pub fn new(store: &Store, context: &Context, lock: &Lock) -> Self {
        let who = format!("{}@{}", context.user, context.host);
        let run = format!("{}-{}", lock.info().verb, lock.generation());
        Self { store: store.clone(), who, lock: lock.clone(), run }
    }

    /// The lock of the run.
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// A wave begins: recorded before anything is done.
    pub async fn begun(&self, cluster: &Name, steps: &[Step]) -> Result<(), StoreError> {
        let entries = steps.iter().map(|step| {
            let event = json!({ "step": step.action, "reason": step.reason });
            self.entry(Some(cluster), "begun", event)
        });
        self.store.append(&self.lock, &entries.collect::<Vec<_>>()).await
    }

    /// A wave has ended.
    pub async fn ended(&self, cluster: &Name, outcomes: &[(Action, Result<(), ActError>)]) -> Result<(), StoreError> {
        let entries = outcomes.iter().map(|(action, outcome)| match outcome {
            Ok(()) => self.entry(Some(cluster), "done", json!({ "step": action })),
            Err(error) => self.entry(Some(cluster), "failed", json!({ "step": action, "error": error.to_string() })),
        });
        self.store.append(&self.lock, &entries.collect::<Vec<_>>()).await
    }

    /// Records another event.
    pub async fn note(&self, cluster: Option<&Name>, kind: &str, event: serde_json::Value) -> Result<(), StoreError> {
        self.store.append(&self.lock, &[self.entry(cluster, kind, event)]).await
    }

    fn entry(&self, cluster: Option<&Name>, kind: &str, event: serde_json::Value) -> Entry {
        Entry {
            at: Timestamp::now(),
            who: self.who.clone(),
            generation: self.lock.generation(),
            run: self.run.clone(),
            cluster: cluster.map(ToString::to_string),
            kind: kind.to_owned(),
            event,
        }
    }
}
