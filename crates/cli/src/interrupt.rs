//! SIGINT and SIGTERM → the first ends after the steps under way, the second at once; both print what is left.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use raftsman_core::action::Action;
use raftsman_core::spec::Name;
use raftsman_engine::apply::Event;
use raftsman_engine::interrupt::Interrupt;
use raftsman_engine::ops::apply::OnEvent;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::exit::Failure;
use crate::view::Paint;

/// What shells report for a command that a signal ended: 128 plus the signal's number.
const SIGNALLED: u8 = 128;
const SIGINT: u8 = 2;
const SIGTERM: u8 = 15;

/// The steps of a run, from its events.
#[derive(Debug, Default)]
struct Steps {
    under_way: BTreeMap<Name, Vec<Action>>,
    finished: usize,
}

impl Steps {
    fn on_event(&mut self, cluster: &Name, event: &Event) {
        let under_way = self.under_way.entry(cluster.clone()).or_default();
        match event {
            Event::Wave { steps } => *under_way = steps.iter().map(|step| step.action.clone()).collect(),
            Event::Done { action, .. } => {
                under_way.retain(|one| one != action);
                self.finished += 1;
            }
            Event::Failed { action, .. } => under_way.retain(|one| one != action),
            Event::Waiting { .. } | Event::Converged { .. } | Event::Interrupted(_) | Event::Stuck { .. } => {
                under_way.clear();
            }
        }
    }

    fn list(&self) -> String {
        let steps: Vec<String> = self.under_way.values().flatten().map(Action::describe).collect();
        if steps.is_empty() { "none".to_owned() } else { steps.join(", ") }
    }

    /// After the first signal.
    fn ending(&self) -> String {
        format!("interrupted: ends after the steps under way ({}); interrupt again to end at once", self.list())
    }

    /// After the second.
    fn ended(&self) -> String {
        format!(
            "interrupted twice, ended at once: {} steps are finished; under way: {}. A restart of etcd is finished by \
             the machine's agent, any other step may be done, not done or done in part: `raftsman status` shows what \
             is, the next `raftsman apply` continues from there",
            self.finished,
            self.list()
        )
    }
}

/// Runs work that reports its steps and obeys the interrupt.
pub(crate) async fn interruptible<T>(
    on_event: OnEvent,
    work: impl AsyncFnOnce(OnEvent, Interrupt) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let begun = Notify::new();
    begun.notify_one();
    interruptible_once(&begun, on_event, work).await
}

/// The same, once the operator has approved: until then a signal ends the command at once, also while it asks.
pub(crate) async fn interruptible_once<T>(
    begun: &Notify,
    on_event: OnEvent,
    work: impl AsyncFnOnce(OnEvent, Interrupt) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let steps = Arc::new(Mutex::new(Steps::default()));
    let seen = Arc::clone(&steps);
    let on_event: OnEvent = Arc::new(move |cluster, event| {
        lock(&seen).on_event(cluster, &event);
        on_event(cluster, event);
    });
    let (trigger, interrupt) = Interrupt::new();
    let mut work = std::pin::pin!(work(on_event, interrupt));
    tokio::select! {
        // In this order, so that signals are watched before the work begins where it needs no approval.
        biased;
        () = begun.notified() => {}
        outcome = &mut work => return outcome,
    }
    let mut signals = Signals::new().map_err(|error| Failure::other(format!("cannot watch for signals: {error}")))?;
    let first = tokio::select! {
        outcome = &mut work => return outcome,
        first = signals.next() => first,
    };
    trigger.pull();
    say(&lock(&steps).ending());
    let outcome = tokio::select! {
        outcome = work => outcome,
        second = signals.next() => {
            return Err(Failure::other(lock(&steps).ended()).with_code(SIGNALLED + second));
        }
    };
    // Work that completed anyway is a success; a failure gets the exit code of the signal.
    outcome.map_err(|failure| failure.with_code(SIGNALLED + first))
}

fn lock(steps: &Mutex<Steps>) -> std::sync::MutexGuard<'_, Steps> {
    steps.lock().unwrap_or_else(PoisonError::into_inner)
}

#[allow(clippy::print_stderr, reason = "standard output may be JSON")]
fn say(text: &str) {
    eprintln!("{}", Paint::of_stderr().yellow(text));
}

/// Both signals that ask a command to end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// The number of the next one.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => SIGINT,
            _ = self.terminate.recv() => SIGTERM,
        }
    }
}
