//! Observe, plan, carry out the wave, observe again: until nothing is left to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use jiff::Timestamp;
use raftsman_core::action::{Action, StartData};
use raftsman_core::desired::Member;
use raftsman_core::observed::{Observed, View};
use raftsman_core::plan::{Plan, Step, Waiting, plan, safety};
use raftsman_core::spec::Name;

use crate::act::{ActError, Hands};
use crate::cluster::{ClusterAt, ClusterError};
use crate::journal::Journal;
use crate::observe::{Observer, token_name};
use crate::store::StoreError;

/// While something is about to happen by itself, it is looked at this often.
const POLL: Duration = Duration::from_millis(20);
/// A learner that does not get on in a quiet cluster is helped this often.
const NUDGE: Duration = Duration::from_secs(1);
/// A step that failed is tried again this many times, each time from a fresh look at the world.
const TRIES: u32 = 3;

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
    /// A step failed; whether it is tried again is decided by the next look.
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
    /// It will not get there by itself.
    Stuck {
        /// Why.
        error: String,
    },
}

/// How applying one cluster ended.
#[derive(Debug)]
pub struct Outcome {
    /// The cluster.
    pub cluster: Name,
    /// The steps that were carried out, in order.
    pub steps: Vec<Action>,
    /// What was seen last.
    pub observed: Option<Observed>,
    /// Nothing when it converged.
    pub error: Option<ApplyError>,
}

/// Why applying stopped.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Somebody must do something first.
    #[error("{}", list(.0))]
    Blocked(Vec<Waiting>),
    /// It took too long.
    #[error("not there after {} s; still waiting for: {}", after.as_secs(), list(waiting))]
    Timeout {
        /// After this time.
        after: Duration,
        /// What was waited for.
        waiting: Vec<Waiting>,
    },
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
    /// A step was done again and again, and the world is as before.
    #[error(
        "{} {} was done {times} times and changed nothing; look at the logs of the machine: `raftsman logs`",
        what.machine().map_or("cluster", |m| m.as_str()),
        what.verb()
    )]
    NoEffect {
        /// How often.
        times: u32,
        /// What.
        what: Action,
    },
    /// Keys or memory of the cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] raftsman_api::tls::TlsError),
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn list(waiting: &[Waiting]) -> String {
    let lines = waiting.iter().map(|w| format!("{w}\n    → {}", w.next()));
    lines.collect::<Vec<_>>().join("\n  ")
}

/// Brings one cluster to where it should be. What happens is told to `tell` as it happens.
pub async fn apply(
    cluster: Arc<ClusterAt>,
    journal: &Journal,
    timeout: Duration,
    tell: &(dyn Fn(Event) + Sync),
) -> Outcome {
    let name = cluster.desired.name.clone();
    let mut run = match Observer::new(cluster) {
        Ok(observer) => Run { observer, journal, tell, steps: Vec::new(), observed: None, begun: Instant::now() },
        Err(error) => {
            return Outcome { cluster: name, steps: Vec::new(), observed: None, error: Some(error.into()) };
        }
    };
    let error = Box::pin(run.until_done(timeout)).await.err();
    match &error {
        Some(error) => tell(Event::Stuck { error: error.to_string() }),
        None => tell(Event::Converged { steps: run.steps.len(), took: run.begun.elapsed() }),
    }
    Outcome { cluster: name, steps: run.steps, observed: run.observed, error }
}

struct Run<'a> {
    observer: Observer,
    journal: &'a Journal,
    tell: &'a (dyn Fn(Event) + Sync),
    steps: Vec<Action>,
    observed: Option<Observed>,
    begun: Instant,
}

impl Run<'_> {
    async fn until_done(&mut self, timeout: Duration) -> Result<(), ApplyError> {
        let mut failures = 0;
        let mut told = Vec::new();
        let (mut before, mut same) = (Vec::new(), 0);
        let mut progress = Instant::now();
        let mut nudged = Instant::now();
        loop {
            let (observed, next) = self.look_and_plan().await?;
            self.observed = Some(observed);
            if next.is_done() {
                return self.tidy();
            }
            if !next.steps.is_empty() {
                let actions: Vec<Action> = next.steps.iter().map(|s| s.action.clone()).collect();
                same = if actions == before { same + 1 } else { 0 };
                if same >= TRIES {
                    return Err(ApplyError::NoEffect { times: same, what: next.steps[0].action.clone() });
                }
                before = actions;
                match self.carry_out(next.steps).await? {
                    None => {
                        failures = 0;
                        progress = Instant::now();
                    }
                    Some(_) if failures + 1 < TRIES => failures += 1,
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
                let hands = Hands { observer: &self.observer, generation: self.journal.generation() };
                // It only helps: whether the learner gets on is seen at the next look.
                let _ = Box::pin(hands.nudge(Timestamp::now())).await;
            }
            if told != next.waiting {
                (self.tell)(Event::Waiting { waiting: next.waiting.clone() });
                told = next.waiting;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn look_and_plan(&self) -> Result<(Observed, Plan), ApplyError> {
        let observed = self.observer.look().await?;
        let next = plan(&self.observer.cluster().desired, &observed, Timestamp::now());
        Ok((observed, next))
    }

    /// Carries out one wave, all of it at the same time. The first failure, if there was one, is the answer.
    async fn carry_out(&mut self, steps: Vec<Step>) -> Result<Option<ApplyError>, ApplyError> {
        self.write_ahead(&steps)?;
        let name = &self.observer.cluster().desired.name;
        self.journal.begun(name, &steps)?;
        (self.tell)(Event::Wave { steps: steps.clone() });
        let hands = Hands { observer: &self.observer, generation: self.journal.generation() };
        let tell = self.tell;
        let observer = &self.observer;
        let perform = |action: &Action| {
            let action = action.clone();
            async move {
                let begun = Instant::now();
                let outcome = deed(observer, hands, &action).await;
                match &outcome {
                    Ok(()) => tell(Event::Done { action: action.clone(), took: begun.elapsed() }),
                    Err(error) => tell(Event::Failed { action: action.clone(), error: error.to_string() }),
                }
                (action, outcome)
            }
        };
        let (mut births, others): (Vec<&Action>, Vec<&Action>) =
            steps.iter().map(|s| &s.action).partition(|a| is_birth(a));
        // A member that is born asks the others who is there, in the order of their URLs, until one answers. One that
        // listens and does not serve yet keeps it waiting for a second: so the one that all others ask first goes ahead,
        // and they follow at once.
        let desired = &observer.cluster().desired;
        births.sort_by_key(|action| action.machine().and_then(|name| desired.member(name)).map(Member::peer_url));
        let births = async {
            let Some((first, rest)) = births.split_first() else { return Vec::new() };
            let mut outcomes = vec![perform(first).await];
            if let Some(follower) = rest.first() {
                hands.await_peer_service(first, follower).await;
            }
            outcomes.extend(join_all(rest.iter().copied().map(perform)).await);
            outcomes
        };
        let (mut outcomes, born) = tokio::join!(join_all(others.into_iter().map(perform)), births);
        outcomes.extend(born);
        self.journal.ended(name, &outcomes)?;
        let mut first = None;
        for (action, outcome) in outcomes {
            match outcome {
                Ok(()) => {
                    self.observer.cluster().remember(|ledger| ledger.after(&action))?;
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

    /// Every machine is claimed: their tokens are dead. Where a run was killed in between, they are still in the state, and
    /// perhaps the key of an authority that never was.
    fn tidy(&self) -> Result<(), ApplyError> {
        let cluster = self.observer.cluster();
        cluster.sweep_authorities()?;
        for member in &cluster.desired.members {
            cluster.fleet.secrets.delete(&token_name(&member.name))?;
        }
        Ok(())
    }

    /// What a crash must not make us forget goes to the disk before anything is done.
    fn write_ahead(&self, steps: &[Step]) -> Result<(), StoreError> {
        let cluster = self.observer.cluster();
        let Some(observed) = &self.observed else { return Ok(()) };
        let now = Timestamp::now();
        cluster.remember(|ledger| {
            for step in steps {
                ledger.ahead(&cluster.desired, observed, &step.action, now);
            }
        })
    }
}

/// Whether etcd is started on an empty directory.
fn is_birth(action: &Action) -> bool {
    matches!(action, Action::StartEtcd { data: StartData::Empty | StartData::Joining(_), .. })
}

/// Does it; what takes something away, or changes who has a say, is judged once more, on a fresh look, right before.
async fn deed(observer: &Observer, hands: Hands<'_>, action: &Action) -> Result<(), ActError> {
    if action.exclusive() || action.changes_trust() {
        let fresh = observer.look().await?;
        safety::judge(&observer.cluster().desired, &fresh, &[action], action).map_err(ActError::Unsafe)?;
    }
    hands.act(action).await
}

/// The highest revision that was seen, for a restore to stay above.
pub fn last_revision(observed: &Observed) -> Option<i64> {
    View::of(observed).answering.values().map(|e| e.revision).max()
}
