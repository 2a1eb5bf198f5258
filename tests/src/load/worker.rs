//! A rate and a mix → calls, each tried once more on another member when it failed.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use etcd_client::Error;
use raftsman_etcd::EtcdError;

use super::call::{Answer, Ask, Call, Key, Reply, Spelling, Value, ask};
use super::history::{Line, Recorder};
use super::members::{Link, Members};
use crate::dice::Dice;

/// Of a hundred calls so many write: 60 puts, 10 swaps, 5 transactions. The others read.
const PUTS: usize = 60;
const SWAPS: usize = 10;
const PUT_ALLS: usize = 5;
const GETS: usize = 20;
/// The share of calls that write.
const WRITES: f64 = 0.75;
/// How many keys a transaction has.
const TOGETHER: usize = 3;
/// Calls that were due longer ago than this, because no worker was free to make them, are left out: a client that was
/// held up does not come back with a flood.
const BACKLOG: Duration = Duration::from_millis(50);

/// A clock that lets one call go at every tick.
pub(super) struct Pace {
    tick: Duration,
    next: Mutex<Instant>,
}

impl Pace {
    /// For so many writes a second.
    pub(super) fn new(writes: u32) -> Self {
        let tick = Duration::from_secs_f64(WRITES / f64::from(writes.max(1)));
        Self { tick, next: Mutex::new(Instant::now()) }
    }

    async fn turn(&self) {
        let due = {
            let mut next = self.next.lock().expect("no poison");
            let oldest = Instant::now().checked_sub(BACKLOG).unwrap_or(*next);
            let due = (*next).max(oldest);
            *next = due + self.tick;
            due
        };
        tokio::time::sleep_until(due.into()).await;
    }
}

/// What all workers of a load share.
pub(super) struct Shared {
    pub(super) members: Arc<Members>,
    pub(super) spelling: Spelling,
    pub(super) recorder: Recorder,
    pub(super) pace: Pace,
    pub(super) keys: u32,
    pub(super) try_timeout: Duration,
    pub(super) retry_pause: Duration,
    pub(super) stop: AtomicBool,
    pub(super) next_value: AtomicU64,
    /// What was seen last in each key; 0 for nothing.
    pub(super) seen: Vec<AtomicU64>,
    pub(super) acknowledged: AtomicU64,
    pub(super) failed: AtomicU64,
}

impl Shared {
    fn seen(&self, key: Key) -> Option<Value> {
        let value = self.seen.get(key as usize).map_or(0, |seen| seen.load(Ordering::Relaxed));
        (value != 0).then_some(value)
    }

    fn see(&self, key: Key, value: Option<Value>) {
        if let Some(seen) = self.seen.get(key as usize) {
            seen.store(value.unwrap_or(0), Ordering::Relaxed);
        }
    }
}

/// Makes calls until the load stops.
pub(super) async fn work(worker: u32, shared: Arc<Shared>, mut dice: Dice) {
    loop {
        shared.pace.turn().await;
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let ask = choose(&shared, &mut dice);
        let call = call(worker, &shared, ask).await;
        learn(&shared, &call);
        shared.recorder.record(Line::Call(call));
    }
}

fn choose(shared: &Shared, dice: &mut Dice) -> Ask {
    let mut key = || Key::try_from(dice.below(shared.keys as usize)).unwrap_or(0);
    let first = key();
    let mut several: Vec<Key> = std::iter::repeat_with(key).take(TOGETHER).collect();
    several.sort_unstable();
    several.dedup();
    let value = || shared.next_value.fetch_add(1, Ordering::Relaxed);
    let share = dice.below(100);
    if share < PUTS {
        Ask::Put { key: first, value: value() }
    } else if share < PUTS + SWAPS {
        Ask::Swap { key: first, expected: shared.seen(first), value: value() }
    } else if share < PUTS + SWAPS + PUT_ALLS {
        Ask::PutAll { pairs: several.into_iter().map(|key| (key, value())).collect() }
    } else if share < PUTS + SWAPS + PUT_ALLS + GETS {
        Ask::Get { key: first }
    } else {
        Ask::GetAll { keys: several }
    }
}

fn learn(shared: &Shared, call: &Call) {
    match &call.answer {
        Answer::Written { .. } => {
            shared.acknowledged.fetch_add(1, Ordering::Relaxed);
            for (key, value) in call.ask.writes() {
                shared.see(key, Some(value));
            }
        }
        Answer::Read { values, .. } => {
            for (key, value) in call.ask.reads().into_iter().zip(values) {
                shared.see(key, *value);
            }
        }
        Answer::Kept { found, .. } | Answer::Ambiguous { found } => {
            if let Ask::Swap { key, .. } = call.ask {
                shared.see(key, *found);
            }
        }
        Answer::Unknown { .. } => {
            shared.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn call(worker: u32, shared: &Shared, ask: Ask) -> Call {
    let begin = shared.recorder.now();
    let (first_failure, answer) = match attempt(shared, &ask, None).await {
        Ok(reply) => (None, first_answer(reply)),
        Err(first) => {
            tokio::time::sleep(shared.retry_pause).await;
            let answer = match attempt(shared, &ask, first.link.as_ref()).await {
                Ok(reply) => second_answer(&ask, reply, first.link.is_some()),
                Err(second) => Answer::Unknown { error: second.output },
            };
            (Some(first.output), answer)
        }
    };
    Call { worker, begin, end: shared.recorder.now(), ask, answer, first_failure }
}

fn first_answer(reply: Reply) -> Answer {
    match reply {
        Reply::Written(revision) => Answer::Written { revision },
        Reply::Read(revision, values) => Answer::Read { revision, values },
        Reply::Kept(revision, found) => Answer::Kept { revision, found: found.map(|(value, _)| value) },
    }
}

/// A second try of a swap may fail because the first did it.
fn second_answer(ask: &Ask, reply: Reply, first_was_sent: bool) -> Answer {
    match (ask, reply) {
        (Ask::Swap { value, .. }, Reply::Kept(_, Some((found, since)))) if found == *value => {
            Answer::Written { revision: since }
        }
        (Ask::Swap { .. }, Reply::Kept(_, found)) if first_was_sent => {
            Answer::Ambiguous { found: found.map(|(value, _)| value) }
        }
        (_, reply) => first_answer(reply),
    }
}

struct Failure {
    /// None when there was no connection to send anything over.
    link: Option<Link>,
    output: String,
}

async fn attempt(shared: &Shared, what: &Ask, failed: Option<&Link>) -> Result<Reply, Failure> {
    let link =
        shared.members.link(failed, shared.try_timeout).await.map_err(|output| Failure { link: None, output })?;
    let mut client = link.client.clone();
    let asked = Box::pin(ask(&mut client, &shared.spelling, what));
    let error = match tokio::time::timeout(shared.try_timeout, asked).await {
        Ok(Ok(reply)) => return Ok(reply),
        Ok(Err(error)) => {
            if !of_etcd(&error) {
                shared.members.lost(&link);
            }
            raftsman_engine::error_chain(&EtcdError::Call(error))
        }
        Err(_) => {
            shared.members.lost(&link);
            format!("no answer within {} ms", shared.try_timeout.as_millis())
        }
    };
    Err(Failure { output: format!("{}: {error}", link.address), link: Some(link) })
}

/// Whether the member itself said so, so that its connection is sound. A lost token needs a new connection all the same.
fn of_etcd(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => {
            status.message().starts_with("etcdserver:") && !status.message().contains("auth token")
        }
        _ => false,
    }
}
