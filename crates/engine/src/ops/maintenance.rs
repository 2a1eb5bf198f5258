//! `raftsman defrag`, `compact`, `move-leader`, `verify`: one action each, checked against a new observation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use raftsman_core::action::{Action, MaintenanceAction, MemberAction};
use raftsman_core::observed::{Agreement, Hash, Hashes, Observed, View};
use raftsman_core::plan::{Reason, Step, Waiting, defragment, safety};
use raftsman_core::spec::{Defragmentation, Name, Spec};
use serde::Serialize;

use super::apply::OnEvent;
use super::begin::{Consent, locked_cluster, locked_member};
use super::{OpError, for_each_stack, pick_cluster, pick_member};
use crate::act::Executor;
use crate::apply::Event;
use crate::fleet::{Context, Fleet};
use crate::interrupt::Interrupt;
use crate::journal::Journal;
use crate::observe::Observer;
use crate::stack::StackHandle;
use crate::store::Lock;

/// Members compact at slightly different moments: hashes that cannot be compared are requested again.
const TRIES: u32 = 5;

/// A member whose database was defragmented.
#[derive(Debug, Clone, Serialize)]
pub struct Defragmented {
    /// Which.
    pub member: Name,
    /// Its size before.
    pub before: i64,
    /// Its size now.
    pub after: i64,
}

/// What a compaction dropped.
#[derive(Debug, Clone, Serialize)]
pub struct Compacted {
    /// The cluster.
    pub cluster: Name,
    /// The oldest revision that can still be read.
    pub revision: i64,
    /// The newest one.
    pub newest: i64,
}

/// Single actions on one cluster.
pub(super) struct Single<'a> {
    pub(super) observer: Observer,
    journal: Journal,
    on_event: &'a OnEvent,
}

impl<'a> Single<'a> {
    pub(super) fn new(
        fleet: &Arc<Fleet>,
        cluster: StackHandle,
        lock: &Lock,
        on_event: &'a OnEvent,
    ) -> Result<Self, OpError> {
        let journal = Journal::new(&fleet.store, &fleet.context, lock);
        Ok(Self { observer: Observer::new(Arc::new(cluster))?, journal, on_event })
    }

    pub(super) async fn look(&self) -> Result<Observed, OpError> {
        Ok(self.observer.look_and_learn(self.journal.lock()).await?)
    }

    /// Executes it, unless the safety check refuses it.
    pub(super) async fn act(&self, observed: &Observed, action: Action, reason: Reason) -> Result<(), OpError> {
        let cluster = self.observer.cluster();
        let (desired, name) = (&cluster.desired, &cluster.desired.name);
        let cost = safety::judge(desired, observed, &[&action], &action)
            .map_err(|refusal| OpError::NotSafe(safety::refused(&action, refusal)))?;
        let (before, during, pause, copies) = (cost.before, cost.during, cost.pause, cost.copies);
        let step = Step { action: action.clone(), reason, before, during, after: before, pause, copies };
        cluster
            .remember(self.journal.lock(), |ledger| ledger.ahead(desired, observed, &action, Timestamp::now()))
            .await?;
        self.journal.begun(name, std::slice::from_ref(&step)).await?;
        (self.on_event)(name, Event::Wave { steps: vec![step] });
        let begun = Instant::now();
        let executor = Executor { observer: &self.observer, lock: self.journal.lock(), limit: Duration::MAX };
        let outcome = executor.act(&action).await;
        match &outcome {
            Ok(()) => {
                cluster
                    .remember(self.journal.lock(), |ledger| ledger.after(desired, &action, Timestamp::now()))
                    .await?;
                (self.on_event)(name, Event::Done { action: action.clone(), took: begun.elapsed() });
            }
            Err(error) => {
                (self.on_event)(name, Event::Failed { action: action.clone(), error: error.to_string() });
            }
        }
        let outcomes = [(action, outcome)];
        self.journal.ended(name, &outcomes).await?;
        let [(_, outcome)] = outcomes;
        Ok(outcome?)
    }
}

/// The members to defragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefragScope<'a> {
    /// All members with much free space in their files.
    Large,
    /// Those of all members.
    All,
    /// That of this member.
    Member(&'a str),
}

/// The whole of `raftsman defrag`: takes the lock and defragments the databases of a cluster's members, one at a time,
/// followers first, the leader after a leadership transfer. `locked` is called as soon as the lock is held.
pub async fn defrag(
    spec: Spec,
    context: &Context,
    cluster: Option<&str>,
    scope: DefragScope<'_>,
    locked: &(dyn Fn() + Sync),
    on_event: &OnEvent,
    interrupt: &Interrupt,
) -> Result<Vec<Defragmented>, OpError> {
    let (fleet, lock) = match scope {
        DefragScope::Member(member) => locked_member(spec, context, "defrag", cluster, member).await?,
        DefragScope::Large | DefragScope::All => locked_cluster(spec, context, "defrag", cluster).await?,
    };
    locked();
    let (cluster, member) = match scope {
        DefragScope::Member(member) => {
            pick_member(&fleet, cluster, member).await.map(|(cluster, member)| (cluster, Some(member)))?
        }
        DefragScope::Large | DefragScope::All => (pick_cluster(&fleet, cluster).await?, None),
    };
    let single = Single::new(&fleet, cluster, &lock, on_event)?;
    let mut observed = single.look().await?;
    let mut left: Vec<Name> = match member {
        Some(member) => vec![member],
        None => {
            let view = View::of(&observed);
            let voters = view.listed.unwrap_or_default().iter().filter(|m| !m.learner);
            voters.filter_map(|m| observed.ledger.etcd.name_of(m)).collect()
        }
    };
    if left.is_empty() {
        return Err(OpError::NoQuorum(single.observer.cluster().desired.name.clone()));
    }
    if scope == DefragScope::Large {
        let view = View::of(&observed);
        // It is unknown for a member that does not answer; the safety check decides then.
        let idle = |name: &Name| view.answering.get(name).map(|e| !Defragmentation::ASKED.pays(e.db_size, e.db_in_use));
        if left.iter().all(|name| idle(name).is_some()) {
            left.retain(|name| idle(name) != Some(true));
        }
    }
    let mut done = Vec::new();
    while !left.is_empty() {
        if interrupt.asked() {
            let done = done.iter().map(|one: &Defragmented| one.member.clone()).collect();
            return Err(OpError::Interrupted { done, left });
        }
        let plan = defragment(&single.observer.cluster().desired, &observed, left.clone(), Timestamp::now());
        let Some(step) = plan.steps.into_iter().next() else {
            // The reason why the first one cannot go, not that the others wait for their turn.
            let why = plan.waiting.into_iter().min_by_key(|w| matches!(w, Waiting::Turn { .. }));
            return Err(why.map_or_else(|| OpError::NoSuchMember(left.remove(0).to_string()), OpError::NotSafe));
        };
        let size = |observed: &Observed, name: &Name| View::of(observed).answering.get(name).map_or(0, |e| e.db_size);
        single.act(&observed, step.action.clone(), Reason::Asked).await?;
        let now = single.look().await?;
        if let Action::Maintenance(MaintenanceAction::Defragment { machine }) = step.action {
            let (before, after) = (size(&observed, &machine), size(&now, &machine));
            left.retain(|name| *name != machine);
            done.push(Defragmented { member: machine, before, after });
        }
        observed = now;
    }
    Ok(done)
}

/// How much history to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactTarget {
    /// All before this revision.
    Before(i64),
    /// All but this many of the last revisions.
    AllBut(i64),
}

/// The oldest revision that stays, and the newest one.
fn target(cluster: Name, observed: &Observed, what: CompactTarget) -> Result<Compacted, OpError> {
    let view = View::of(observed);
    let revisions = view.healthy.iter().filter_map(|n| view.answering.get(n)).map(|e| e.revision);
    let newest = revisions.max().ok_or_else(|| OpError::NoQuorum(cluster.clone()))?;
    let revision = match what {
        CompactTarget::Before(revision) => revision,
        CompactTarget::AllBut(count) => newest - count,
    };
    match (1..=newest).contains(&revision) {
        true => Ok(Compacted { cluster, revision, newest }),
        false => Err(OpError::NoSuchRevision { revision, newest }),
    }
}

/// The whole of `raftsman compact`: takes the lock, observes, asks, and compacts the history.
pub async fn compact(
    spec: Spec,
    context: &Context,
    cluster: Option<&str>,
    what: CompactTarget,
    consent: Consent<'_, Compacted>,
    on_event: &OnEvent,
) -> Result<Compacted, OpError> {
    let (fleet, lock) = locked_cluster(spec, context, "compact", cluster).await?;
    let single = Single::new(&fleet, pick_cluster(&fleet, cluster).await?, &lock, on_event)?;
    let name = single.observer.cluster().desired.name.clone();
    let foreseen = target(name.clone(), &single.observer.look().await?, what)?;
    (consent.show)(&foreseen);
    consent.ask(&foreseen)?;
    let observed = single.look().await?;
    // The revision that the operator approved, even if the cluster has newer ones meanwhile.
    let compacted = target(name, &observed, CompactTarget::Before(foreseen.revision))?;
    single
        .act(&observed, Action::Maintenance(MaintenanceAction::Compact { revision: compacted.revision }), Reason::Asked)
        .await?;
    Ok(compacted)
}

/// The whole of `raftsman move-leader`: takes the lock and transfers leadership to this member. `locked` is called as
/// soon as the lock is held.
pub async fn move_leader(
    spec: Spec,
    context: &Context,
    member: &str,
    locked: &(dyn Fn() + Sync),
    on_event: &OnEvent,
) -> Result<Name, OpError> {
    let (fleet, lock) = locked_member(spec, context, "move-leader", None, member).await?;
    locked();
    let (cluster, machine) = pick_member(&fleet, None, member).await?;
    let single = Single::new(&fleet, cluster, &lock, on_event)?;
    let observed = single.look().await?;
    let view = View::of(&observed);
    if !view.has_quorum() {
        return Err(OpError::NoQuorum(single.observer.cluster().desired.name.clone()));
    }
    if view.leader == Some(&machine) {
        return Ok(machine);
    }
    let id = view.answering.get(&machine).map(|e| e.member);
    let id = id.ok_or_else(|| OpError::NoSuchMember(machine.to_string()))?;
    let action = Action::Member(MemberAction::MoveLeader { machine: machine.clone(), member: id });
    single.act(&observed, action, Reason::Asked).await?;
    Ok(machine)
}

/// Whether the members of a cluster hold the same data.
#[derive(Debug, Clone, Serialize)]
pub struct Verification {
    /// The cluster.
    pub cluster: Name,
    /// The revision at which they were compared.
    pub revision: i64,
    /// `same`, `differ` or `unclear`.
    pub verdict: &'static str,
    /// Members that differ from a majority.
    pub differing: Vec<Name>,
    /// Every member's answer.
    pub members: Vec<Verified>,
}

/// One member's answer.
#[derive(Debug, Clone, Serialize)]
pub struct Verified {
    /// Its name.
    pub member: Name,
    /// The hash of its data.
    pub hash: Option<u32>,
    /// The revision up to which its history was compacted.
    pub compacted: Option<i64>,
    /// Why it could not be asked.
    pub problem: Option<String>,
}

/// Compares the data of the members of these clusters.
pub async fn verify(fleet: &Arc<Fleet>, only: &[Name]) -> Result<Vec<Verification>, OpError> {
    for_each_stack(fleet, only, |cluster| async move { Box::pin(verify_one(cluster)).await }).await
}

async fn verify_one(cluster: Arc<StackHandle>) -> Result<Verification, OpError> {
    let name = cluster.desired.name.clone();
    let observer = Observer::new(cluster)?;
    let mut tries = 0;
    loop {
        tries += 1;
        let (observed, hashes) = observer.compare().await?;
        let view = View::of(&observed);
        let hashes = hashes.unwrap_or(Hashes { revision: 0, members: Default::default() });
        let mut voters: Vec<Name> = match view.listed {
            Some(list) => list.iter().filter(|m| !m.learner).filter_map(|m| observed.ledger.etcd.name_of(m)).collect(),
            None => observed.machines.keys().cloned().collect(),
        };
        voters.sort();
        let agreement = hashes.agreement(&voters);
        if agreement == Agreement::Unclear && tries < TRIES && view.has_quorum() {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        }
        let (verdict, differing) = match agreement {
            Agreement::All => ("same", Vec::new()),
            Agreement::Differ(names) => ("differ", names),
            Agreement::Unclear => ("unclear", Vec::new()),
        };
        let silent = || Hash::Unknown("it does not answer".to_owned());
        let members = voters.iter().map(|member| match hashes.members.get(member).cloned().unwrap_or_else(silent) {
            Hash::Known { hash, compacted } => {
                Verified { member: member.clone(), hash: Some(hash), compacted: Some(compacted), problem: None }
            }
            Hash::Unknown(problem) => {
                Verified { member: member.clone(), hash: None, compacted: None, problem: Some(problem) }
            }
        });
        let members = members.collect();
        return Ok(Verification { cluster: name, revision: hashes.revision, verdict, differing, members });
    }
}
