//! Observe, plan, execute the wave, observe again: until nothing is left to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use jiff::Timestamp;
use raftsman_core::action::{Action, EtcdAction, StartData};
use raftsman_core::desired::{DesireError, Member};
use raftsman_core::observed::{Ledger, Observed, ServiceState, View};
use raftsman_core::plan::safety::{self, Refusal};
use raftsman_core::plan::{Plan, Step, Waiting, plan};
use raftsman_core::spec::Name;

use crate::act::{ActError, Executor};
use crate::interrupt::Interrupt;
use crate::journal::Journal;
use crate::observe::Observer;
use crate::stack::{StackError, StackHandle};
use crate::store::StoreError;
use crate::tokens::token_name;

/// The first interval between observations while a change is expected: most changes take milliseconds.
const POLL: Duration = Duration::from_millis(20);
/// The longest interval between observations of a slow change.
const SLOW_POLL: Duration = Duration::from_secs(1);
/// The interval is this fraction of the time waited so far: detection adds 2.5 % to the wait at most.
const POLLS: u32 = 40;
/// How often a learner that is not making progress in a quiet cluster gets a new log entry.
const NUDGE: Duration = Duration::from_secs(1);
/// A failed step is retried this many times, each time after a new observation.
const TRIES: u32 = 3;

/// A step has at least this time, even when that of the run is over.
const LEAST: Duration = Duration::from_secs(5);

/// What happened, as it happens: for progress views and logs.
#[derive(Debug, Clone)]
pub enum Event {
    /// A wave begins.
    Wave {
        /// Its steps.
        steps: Vec<Step>,
    },
    /// A step is done.
    Done {
        /// Which.
        action: Action,
        /// How long it took.
        took: Duration,
    },
    /// A step failed; the next observation decides whether it is retried.
    Failed {
        /// Which.
        action: Action,
        /// Why.
        error: String,
    },
    /// Nothing can be done now; this is waited for.
    Waiting {
        /// What for.
        waiting: Vec<Waiting>,
    },
    /// The cluster is as it should be.
    Converged {
        /// After so many steps.
        steps: usize,
        /// And this long.
        took: Duration,
    },
    /// The run was asked to end, and has ended.
    Interrupted(Interrupted),
    /// The cluster will not converge by itself.
    Stuck {
        /// Why.
        error: String,
    },
}

/// What an interrupted run has done, and what it leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interrupted {
    /// The steps that were carried out, in order.
    pub finished: Vec<Action>,
    /// Members whose etcd does not run, as far as was observed.
    pub down: Vec<Name>,
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let finished: Vec<String> = self.finished.iter().map(Action::describe).collect();
        match finished.as_slice() {
            [] => write!(f, "interrupted before the first step")?,
            [one] => write!(f, "interrupted after 1 step: {one}")?,
            steps => write!(f, "interrupted after {} steps: {}", steps.len(), steps.join(", "))?,
        }
        if !self.down.is_empty() {
            let down: Vec<&str> = self.down.iter().map(Name::as_str).collect();
            write!(f, "; etcd does not run on {}", down.join(", "))?;
        }
        write!(f, "; the next `raftsman apply` continues from here")
    }
}

/// How applying one cluster ended.
#[derive(Debug)]
pub struct Outcome {
    /// The cluster.
    pub cluster: Name,
    /// The steps that were carried out, in order.
    pub steps: Vec<Action>,
    /// The last observation.
    pub observed: Option<Observed>,
    /// Nothing when it converged.
    pub error: Option<ApplyError>,
}

/// Why applying stopped.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// An operator must act first.
    #[error("{}", list(.0))]
    Blocked(Vec<Waiting>),
    /// It took too long.
    #[error("not converged after {} s; still waiting for: {}", after.as_secs(), list(waiting))]
    Timeout {
        /// After this time.
        after: Duration,
        /// What was waited for.
        waiting: Vec<Waiting>,
    },
    /// An operator asked for it to end.
    #[error("{0}")]
    Interrupted(Interrupted),
    /// A step failed again and again.
    #[error("{} {verb}: {source}", machine.as_ref().map_or("cluster", |m| m.as_str()))]
    Step {
        /// What.
        verb: &'static str,
        /// Where.
        machine: Option<Name>,
        /// Why.
        source: ActError,
    },
    /// A step was repeated, and the cluster did not change.
    #[error(
        "{} {} was done {times} times without effect; look at the logs of the machine: `raftsman logs`",
        what.machine().map_or("cluster", |m| m.as_str()),
        what.verb()
    )]
    NoEffect {
        /// How often.
        times: u32,
        /// What.
        what: Action,
    },
    /// The cluster's keys or ledger.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] raftsman_api::tls::TlsError),
    /// An address that the provider assigned.
    #[error(transparent)]
    Desire(#[from] DesireError),
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn list(waiting: &[Waiting]) -> String {
    let lines = waiting.iter().map(|w| format!("{w}\n    → {}", w.next()));
    lines.collect::<Vec<_>>().join("\n  ")
}

/// Brings one cluster to the desired state. `on_event` gets every event as it happens.
pub async fn apply(
    cluster: Arc<StackHandle>,
    journal: &Journal,
    timeout: Duration,
    on_event: &(dyn Fn(Event) + Sync),
    interrupt: &Interrupt,
) -> Outcome {
    let name = cluster.desired.name.clone();
    let mut run = match Observer::new(cluster) {
        Ok(observer) => {
            let (steps, begun) = (Vec::new(), Instant::now());
            Run { observer, journal, on_event, interrupt, steps, observed: None, begun }
        }
        Err(error) => {
            return Outcome { cluster: name, steps: Vec::new(), observed: None, error: Some(error.into()) };
        }
    };
    let error = Box::pin(run.until_done(timeout)).await.err();
    match &error {
        Some(ApplyError::Interrupted(how)) => on_event(Event::Interrupted(how.clone())),
        Some(error) => on_event(Event::Stuck { error: error.to_string() }),
        None => on_event(Event::Converged { steps: run.steps.len(), took: run.begun.elapsed() }),
    }
    Outcome { cluster: name, steps: run.steps, observed: run.observed, error }
}

struct Run<'a> {
    observer: Observer,
    journal: &'a Journal,
    on_event: &'a (dyn Fn(Event) + Sync),
    interrupt: &'a Interrupt,
    steps: Vec<Action>,
    observed: Option<Observed>,
    begun: Instant,
}

impl Run<'_> {
    async fn until_done(&mut self, timeout: Duration) -> Result<(), ApplyError> {
        let mut failures = 0;
        let mut described = Vec::new();
        let (mut before, mut same) = (Vec::new(), 0);
        let mut progress = Instant::now();
        let mut nudged = Instant::now();
        let mut since = Instant::now();
        loop {
            self.take_up()?;
            let looked = tokio::select! {
                looked = self.look_and_plan() => Some(looked?),
                () = self.interrupt.wait() => None,
            };
            let Some((observed, next)) = looked else { return Err(self.interrupted().await) };
            self.observed = Some(observed);
            // What was planned without an address that was found meanwhile is planned anew.
            if self.take_up()? {
                continue;
            }
            if next.is_done() {
                return self.tidy().await;
            }
            if self.interrupt.asked() {
                return Err(self.interrupted().await);
            }
            if !next.steps.is_empty() {
                let actions: Vec<Action> = next.steps.iter().map(|s| s.action.clone()).collect();
                same = if actions == before { same + 1 } else { 0 };
                if same >= TRIES {
                    return Err(ApplyError::NoEffect { times: same, what: next.steps[0].action.clone() });
                }
                before = actions;
                since = Instant::now();
                let left = timeout.saturating_sub(progress.elapsed()).max(LEAST);
                match Box::pin(self.carry_out(next.steps, left)).await? {
                    None => {
                        failures = 0;
                        progress = Instant::now();
                    }
                    Some(_) if failures + 1 < TRIES && progress.elapsed() < timeout => failures += 1,
                    Some(error) => return Err(error),
                }
                continue;
            }
            if next.is_stuck() {
                return Err(ApplyError::Blocked(next.waiting));
            }
            if progress.elapsed() > timeout {
                return Err(ApplyError::Timeout { after: timeout, waiting: next.waiting });
            }
            let learns = |w: &Waiting| matches!(w, Waiting::LearnerCatchingUp { .. });
            if next.waiting.iter().any(learns) && nudged.elapsed() > NUDGE {
                nudged = Instant::now();
                let executor = Executor { observer: &self.observer, lock: self.journal.lock(), limit: LEAST };
                // A failure is ignored: the next observation shows whether the learner makes progress.
                let _ = Box::pin(executor.nudge(Timestamp::now())).await;
            }
            if described != next.waiting {
                (self.on_event)(Event::Waiting { waiting: next.waiting.clone() });
                described = next.waiting;
                since = Instant::now();
            }
            tokio::select! {
                () = tokio::time::sleep((since.elapsed() / POLLS).clamp(POLL, SLOW_POLL)) => {}
                () = self.interrupt.wait() => {}
            }
        }
    }

    /// Goes on with the addresses that the provider has assigned, where there are further ones.
    fn take_up(&mut self) -> Result<bool, ApplyError> {
        let Some(placed) = self.observer.cluster().placed()? else { return Ok(false) };
        self.observer.follow(Arc::new(placed))?;
        Ok(true)
    }

    /// What was done, and which members do not run now.
    async fn interrupted(&mut self) -> ApplyError {
        if let Ok(observed) = self.observer.look().await {
            self.observed = Some(observed);
        }
        let down = self.observed.as_ref().map(down).unwrap_or_default();
        ApplyError::Interrupted(Interrupted { finished: self.steps.clone(), down })
    }

    async fn look_and_plan(&self) -> Result<(Observed, Plan), ApplyError> {
        let observed = self.observer.look_and_learn(self.journal.lock()).await?;
        let next = plan(&self.observer.cluster().desired, &observed, Timestamp::now());
        Ok((observed, next))
    }

    /// Executes one wave, all of its steps concurrently. Returns the first failure, if there was one.
    async fn carry_out(&mut self, steps: Vec<Step>, limit: Duration) -> Result<Option<ApplyError>, ApplyError> {
        let refused = self.judge_again(&steps).await?;
        // What is not done is not noted as begun: the next step would wait for it.
        let begun: Vec<Step> =
            steps.iter().filter(|step| !refused.iter().any(|(action, _)| *action == step.action)).cloned().collect();
        self.write_ahead(&begun).await?;
        let name = &self.observer.cluster().desired.name;
        self.journal.begun(name, &steps).await?;
        (self.on_event)(Event::Wave { steps: steps.clone() });
        let executor = Executor { observer: &self.observer, lock: self.journal.lock(), limit };
        let on_event = self.on_event;
        let observer = &self.observer;
        let refused = &refused;
        let perform = |action: &Action| {
            let action = action.clone();
            async move {
                let begun = Instant::now();
                let outcome = match refused.iter().find(|(refused, _)| *refused == action) {
                    Some((_, refusal)) => Err(ActError::Unsafe(refusal.clone())),
                    None => executor.act(&action).await,
                };
                match &outcome {
                    Ok(()) => on_event(Event::Done { action: action.clone(), took: begun.elapsed() }),
                    Err(error) => on_event(Event::Failed { action: action.clone(), error: error.to_string() }),
                }
                (action, outcome)
            }
        };
        let (mut bootstraps, others): (Vec<&Action>, Vec<&Action>) =
            steps.iter().map(|s| &s.action).partition(|a| is_bootstrap(a));
        // A member that bootstraps asks the others for the members, in the order of their URLs, until one answers. One
        // that listens and does not serve yet delays it by a second. So the member that all others ask first starts
        // first, and they follow at once.
        let desired = &observer.cluster().desired;
        bootstraps
            .sort_by_key(|action| action.machine().and_then(|name| desired.etcd.member(name)).map(Member::peer_url));
        let bootstraps = async {
            let Some((first, rest)) = bootstraps.split_first() else { return Vec::new() };
            let mut outcomes = vec![perform(first).await];
            if let Some(follower) = rest.first() {
                executor.await_peer_service(first, follower).await;
            }
            outcomes.extend(join_all(rest.iter().copied().map(perform)).await);
            outcomes
        };
        let (mut outcomes, started) = tokio::join!(join_all(others.into_iter().map(perform)), bootstraps);
        outcomes.extend(started);
        self.journal.ended(name, &outcomes).await?;
        let mut first = None;
        for (action, outcome) in outcomes {
            match outcome {
                Ok(()) => {
                    let cluster = self.observer.cluster();
                    let done = |ledger: &mut Ledger| ledger.after(&cluster.desired, &action, Timestamp::now());
                    cluster.remember(self.journal.lock(), done).await?;
                    self.steps.push(action);
                }
                Err(source) => {
                    let machine = action.machine().cloned();
                    first.get_or_insert(ApplyError::Step { verb: action.verb(), machine, source });
                }
            }
        }
        Ok(first)
    }

    /// Every machine is claimed, so join tokens are of no use. After a killed run they are still in the state, perhaps
    /// with the key of an authority that was never used.
    async fn tidy(&self) -> Result<(), ApplyError> {
        let cluster = self.observer.cluster();
        let lock = self.journal.lock();
        cluster.sweep_authorities(lock).await?;
        cluster.keep_root_password(lock).await?;
        for machine in cluster.desired.all_machines() {
            cluster.fleet.secrets.delete(lock, &token_name(machine)).await?;
        }
        Ok(())
    }

    /// Judges once more, right before and against one observation, the steps of a wave that cannot be undone, remove a
    /// member or change what the others depend on. Returns those that may not be done any more. Before anything of the wave
    /// is noted in the ledger: a step would be judged as if it were under way already.
    async fn judge_again(&self, steps: &[Step]) -> Result<Vec<(Action, Refusal)>, ApplyError> {
        if !steps.iter().any(|step| step.action.class().judged_again()) {
            return Ok(Vec::new());
        }
        let fresh = self.observer.look_and_learn(self.journal.lock()).await?;
        let desired = &self.observer.cluster().desired;
        let wave: Vec<&Action> = steps.iter().map(|step| &step.action).collect();
        let again = wave.iter().filter(|action| action.class().judged_again());
        let judged = |action: &&&Action| safety::judge(desired, &fresh, &wave, action).err();
        Ok(again.filter_map(|action| Some(((*action).clone(), judged(&action)?))).collect())
    }

    /// Writes what must survive a crash to the disk before anything is done.
    async fn write_ahead(&self, steps: &[Step]) -> Result<(), StoreError> {
        let cluster = self.observer.cluster();
        let Some(observed) = &self.observed else { return Ok(()) };
        let now = Timestamp::now();
        cluster
            .remember(self.journal.lock(), |ledger| {
                for step in steps {
                    ledger.ahead(&cluster.desired, observed, &step.action, now);
                }
            })
            .await
    }
}

/// Members that have data and whose etcd neither answers nor runs, as far as its agent says.
fn down(observed: &Observed) -> Vec<Name> {
    let runs = |name: &Name| match observed.report(name) {
        Some(report) => report.etcd.service.state == ServiceState::Running || !report.etcd.had_data,
        None => observed.answer(name).is_some(),
    };
    let ours = observed.etcd.members.keys().filter(|name| observed.ledger.etcd.started.contains_key(*name));
    ours.filter(|name| !runs(name)).cloned().collect()
}

/// Whether etcd is started on an empty directory.
fn is_bootstrap(action: &Action) -> bool {
    matches!(action, Action::Etcd(EtcdAction::StartEtcd { data: StartData::Empty | StartData::Joining(_), .. }))
}

/// The highest revision that was seen, for a restore to stay above.
pub fn last_revision(observed: &Observed) -> Option<i64> {
    View::of(observed).answering.values().map(|e| e.revision).max()
}
