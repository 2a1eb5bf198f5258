//! (Desired, Observed, now) → Plan: what to do next, and for all that is not done, why not.

mod adopted;
mod agents;
mod auth;
mod backup;
mod balancer;
mod deletions;
mod delivery;
mod etcd;
mod machines;
mod maintenance;
mod members;
mod passes;
mod pki;
mod postgres;
pub mod preflight;
pub mod recovery;
mod report;
pub mod restore;
pub mod safety;
mod shape;
mod situation;
mod step;
pub mod trust;
mod users;
mod versions;
mod waiting;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use agents::newer_agents;
pub use deletions::deletion;
pub use passes::{Considered, Intent, Outcome};
pub use postgres::logins_to_try;
pub use report::Because;
pub use step::{CopiesLeft, Pause, Reason, Step};
pub use users::{Drift, drift};
pub use versions::{route, versions};
pub use waiting::{PostgresWaiting, Remedy, WaitKind, Waiting};

use crate::desired::{Postgres, Stack};
use crate::observed::{Observed, View};
use crate::spec::Name;

/// What to do next with one cluster.
///
/// `steps` is one wave: every step in it is safe beside every other, so they are carried out at the same time, and then
/// the cluster is observed again. A step that takes anything away is alone in its wave.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What to do now.
    pub steps: Vec<Step>,
    /// What is not done, and why.
    pub waiting: Vec<Waiting>,
}

impl Plan {
    /// Whether nothing is left to do or to wait for. Informational entries do not count.
    pub fn is_done(&self) -> bool {
        self.steps.is_empty() && self.waiting.iter().all(|w| w.kind() == WaitKind::Informational)
    }

    /// Whether nothing is done and waiting does not help: what is waited for is itself blocked.
    pub fn is_stuck(&self) -> bool {
        let lost: Vec<&Name> = self.blocked().filter_map(Waiting::machine).collect();
        let hopeless = |waiting: &Waiting| match waiting {
            Waiting::HealFirst { unhealthy, .. } => {
                unhealthy.iter().all(|member| lost.iter().any(|name| name.as_str() == member))
            }
            other => other.kind() != WaitKind::Transient,
        };
        self.steps.is_empty() && self.waiting.iter().all(hopeless)
    }

    /// What waiting does not resolve.
    pub fn blocked(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter().filter(|w| w.kind() == WaitKind::Blocked)
    }
}

/// Plans the next wave for one cluster.
pub fn plan(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut draft = Draft::new(desired, observed, now);
    passes::make(&mut draft, |_, _, _, _| {});
    safety::gate(draft)
}

/// What every pass of the next plan came to, in their order, before safety judges it.
pub fn explain(desired: &Stack, observed: &Observed, now: Timestamp) -> Vec<Considered> {
    passes::explain(&mut Draft::new(desired, observed, now))
}

/// The next step of a defragmentation of these members that an operator asked for: followers first, never the leader.
pub fn defragment(desired: &Stack, observed: &Observed, members: Vec<Name>, now: Timestamp) -> Plan {
    let mut draft = Draft::new(desired, observed, now);
    maintenance::defragment(&mut draft, members);
    safety::gate(draft)
}

/// The switchover of a PostgreSQL cluster that an operator asked for: to this node, or to the one that a plan would choose.
pub fn switchover(desired: &Stack, observed: &Observed, cluster: &Postgres, to: Option<&Name>, now: Timestamp) -> Plan {
    let mut draft = Draft::new(desired, observed, now);
    postgres::switch_over(&mut draft, cluster, to);
    safety::gate(draft)
}

/// A plan that is being made.
struct Draft<'a> {
    desired: &'a Stack,
    observed: &'a Observed,
    view: View<'a>,
    now: Timestamp,
    steps: Vec<Step>,
    waiting: Vec<Waiting>,
    /// Members that are lost, and what to wait for unless an operator wants them replaced.
    lost: Vec<(Name, Waiting)>,
}

impl<'a> Draft<'a> {
    fn new(desired: &'a Stack, observed: &'a Observed, now: Timestamp) -> Self {
        let view = View::of(observed);
        Self { desired, observed, view, now, steps: Vec::new(), waiting: Vec::new(), lost: Vec::new() }
    }
}

impl Draft<'_> {
    /// This member is lost, for this reason.
    fn lose(&mut self, name: &Name, waiting: Waiting) {
        self.lost.push((name.clone(), waiting));
    }

    /// What several passes wait for is said once.
    fn wait(&mut self, waiting: Waiting) {
        if !self.waiting.contains(&waiting) {
            self.waiting.push(waiting);
        }
    }

    fn has_step_for(&self, machine: &Name) -> bool {
        self.steps.iter().any(|s| s.action.machine() == Some(machine))
    }
}
