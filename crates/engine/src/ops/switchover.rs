//! `raftsman switchover`: a PostgreSQL cluster → another primary, by one judged action.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use raftsman_core::action::{Action, PostgresAction};
use raftsman_core::desired::{Postgres, Stack};
use raftsman_core::observed::{Observed, PostgresView};
use raftsman_core::plan::{CopiesLeft, Pause, PostgresWaiting, Reason, Waiting, switchover};
use raftsman_core::spec::{DcsOf, Name, PostgresCluster, Spec};
use serde::Serialize;

use super::OpError;
use super::apply::OnEvent;
use super::begin::{Consent, locked_cluster};
use super::maintenance::Single;
use crate::fleet::Context;
use crate::interrupt::Interrupt;
use crate::stack::StackHandle;

/// How often it is looked whether it is done.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A switchover.
#[derive(Debug, Clone, Serialize)]
pub struct Switchover {
    /// The PostgreSQL cluster.
    pub cluster: Name,
    /// The primary before.
    pub from: Name,
    /// The primary afterwards.
    pub to: Name,
    /// For how many milliseconds writes stop, as estimated.
    pub pause_ms: u32,
    /// On how many standbys every acknowledged commit is: before, during and after.
    pub copies: Option<CopiesLeft>,
}

/// What came of it.
#[derive(Debug, Clone)]
pub enum Switched {
    /// The node that was named is the primary already.
    Already(Name),
    /// It was done.
    Done(Switchover),
}

/// How long it is waited for its end.
#[derive(Debug, Clone, Copy)]
pub struct Patience<'a> {
    /// No longer than this.
    pub limit: Duration,
    /// Not after an operator has interrupted it.
    pub interrupt: &'a Interrupt,
}

/// The whole of `raftsman switchover`: takes the lock, observes, chooses a standby where none is named, asks, has the
/// primary hand over, and waits until the standby is seen to be the primary and to have a synchronous standby of its own:
/// until then Patroni would not let any node take its place.
pub async fn run(
    spec: Spec,
    context: &Context,
    cluster: Option<&str>,
    to: Option<&str>,
    patience: Patience<'_>,
    consent: Consent<'_, Switchover>,
    on_event: &OnEvent,
) -> Result<Switched, OpError> {
    let (name, etcd) = pick(&spec, cluster)?;
    let (fleet, lock) = locked_cluster(spec, context, "switchover", Some(etcd.as_str())).await?;
    let missing = || OpError::NoSuchPostgres { name: name.to_string(), known: Vec::new() };
    let stack = fleet.desired.stacks.iter().find(|stack| stack.name == etcd).ok_or_else(missing)?;
    let single = Single::new(&fleet, StackHandle::open(&fleet, stack).await?, &lock, on_event)?;
    let desired = Arc::clone(single.observer.cluster());
    let desired = &desired.desired;
    let wanted = desired.postgres(&name).ok_or_else(missing)?;
    let to = to.map(|to| node(wanted, to)).transpose()?;
    let observed = single.look().await?;
    if let Some(to) = to.filter(|to| leads(wanted, &observed, to) && undetermined(wanted, &observed).is_none()) {
        return Ok(Switched::Already(to.clone()));
    }
    let (foreseen, _) = foresee(desired, wanted, &observed, to)?;
    (consent.show)(&foreseen);
    consent.ask(&foreseen)?;
    // As the operator approved it, even if another standby would be chosen by now.
    let observed = single.look().await?;
    let (now, action) = foresee(desired, wanted, &observed, Some(&foreseen.to))?;
    if now.from != foreseen.from {
        return Err(OpError::Unclear(format!(
            "not done: {} was the primary of `{name}`, and {} is by now: give the command again",
            foreseen.from, now.from
        )));
    }
    if patience.interrupt.asked() {
        return Err(OpError::Interrupted { done: Vec::new(), left: vec![foreseen.to] });
    }
    single.act(&observed, action, Reason::Asked).await?;
    let begun = Instant::now();
    loop {
        let observed = single.look().await?;
        let waiting = match (leads(wanted, &observed, &foreseen.to), undetermined(wanted, &observed)) {
            (true, _) => match without_standby(wanted, &observed) {
                Some(waiting) => waiting,
                None => return Ok(Switched::Done(foreseen)),
            },
            (false, Some(waiting)) => waiting,
            // The ledger forgets it once Patroni has completed it or given it up.
            (false, None) => return Err(OpError::GivenUp { cluster: name, to: foreseen.to, from: foreseen.from }),
        };
        if begun.elapsed() >= patience.limit || patience.interrupt.asked() {
            return Err(OpError::NotKnown(waiting));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The PostgreSQL cluster of this name, or the only one; and the etcd cluster that it stands on.
pub(super) fn pick(spec: &Spec, name: Option<&str>) -> Result<(Name, Name), OpError> {
    let of = |(name, section): (&Name, &PostgresCluster)| match &section.etcd {
        DcsOf::Cluster(etcd) => Some((name.clone(), etcd.clone())),
        DcsOf::External(_) => None,
    };
    let all: Vec<(Name, Name)> = spec.postgres.iter().filter_map(of).collect();
    let known = || all.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
    match name {
        _ if all.is_empty() => Err(OpError::NoPostgres),
        Some(name) => {
            let missing = || OpError::NoSuchPostgres { name: name.to_owned(), known: known() };
            all.iter().find(|(one, _)| one.as_str() == name).cloned().ok_or_else(missing)
        }
        None => match all.as_slice() {
            [only] => Ok(only.clone()),
            _ => Err(OpError::WhichCluster(known())),
        },
    }
}

fn node<'a>(cluster: &'a Postgres, name: &str) -> Result<&'a Name, OpError> {
    let found = cluster.nodes.iter().map(|node| &node.name).find(|node| node.as_str() == name);
    found.ok_or_else(|| OpError::NoSuchNode {
        cluster: cluster.name.clone(),
        name: name.to_owned(),
        known: cluster.nodes.iter().map(|node| node.name.to_string()).collect(),
    })
}

/// What a switchover would be, and its action; or why it must not be done.
fn foresee(
    desired: &Stack,
    cluster: &Postgres,
    observed: &Observed,
    to: Option<&Name>,
) -> Result<(Switchover, Action), OpError> {
    let plan = switchover(desired, observed, cluster, to, Timestamp::now());
    let step = plan.steps.into_iter().next();
    match (step.as_ref().map(|step| (&step.action, step.pause, step.copies)), plan.waiting.into_iter().next()) {
        (Some((Action::Postgres(PostgresAction::Switchover { cluster, from, to }), pause, copies)), _) => {
            let pause_ms = match pause {
                Pause::Patroni(ms) | Pause::HandOver(ms) => ms,
                Pause::None | Pause::NotServing => 0,
            };
            let (cluster, from, to) = (cluster.clone(), from.clone(), to.clone());
            let action = Action::Postgres(PostgresAction::Switchover {
                cluster: cluster.clone(),
                from: from.clone(),
                to: to.clone(),
            });
            Ok((Switchover { cluster, from, to, pause_ms, copies }, action))
        }
        (_, Some(waiting)) => Err(OpError::NotSafe(waiting)),
        (Some(_) | None, None) => {
            Err(OpError::NotSafe(PostgresWaiting::NoCandidate { cluster: cluster.name.clone() }.into()))
        }
    }
}

/// Whether this node is seen to be the primary.
fn leads(cluster: &Postgres, observed: &Observed, node: &Name) -> bool {
    let seen = PostgresView::seen(cluster, observed);
    let primary = seen.as_ref().and_then(|seen| seen.primary());
    cluster.node(node).is_some_and(|node| primary == Some(node.patroni_name.as_str()))
}

/// That the primary has no synchronous standby where it should have one.
fn without_standby(cluster: &Postgres, observed: &Observed) -> Option<Waiting> {
    let seen = PostgresView::seen(cluster, observed)?;
    let wanted = cluster.synchronous_standbys();
    if wanted == 0 || !seen.synchronous().is_empty() {
        return None;
    }
    let why = seen.settled(wanted).err()?;
    Some(PostgresWaiting::PostgresUnsettled { cluster: cluster.name.clone(), why }.into())
}

/// A switchover that was asked for and whose end was not seen.
fn undetermined(cluster: &Postgres, observed: &Observed) -> Option<Waiting> {
    let record = observed.ledger.of_postgres(&cluster.name).switchover.as_ref()?;
    let (from, to) = (record.from.clone(), record.to.clone());
    Some(PostgresWaiting::SwitchoverUndetermined { cluster: cluster.name.clone(), from, to }.into())
}
