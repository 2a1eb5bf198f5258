//! A history → the violations that a client can observe, and the measurements.

use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

use super::history::{Event, History};
use super::kept;

mod figures;
mod ledger;
mod linear;
mod order;
#[cfg(test)]
mod tests;
mod watched;

pub use figures::{Figures, Gap};

/// What must not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A write was acknowledged and is not in the cluster's past.
    LostWrite,
    /// A key does not hold at the end what its last write put there.
    FinalValue,
    /// A write appeared that no call asked for, or that was refused.
    Unexplained,
    /// A read returned what was not, or no longer, there.
    StaleRead,
    /// Revisions do not follow the order in which calls came after each other.
    Order,
    /// Writes of one transaction have different revisions.
    Torn,
    /// No order of a key's calls explains their answers.
    NotLinearizable,
    /// Two checkers judge the same calls differently: one of them is wrong.
    CheckersDiffer,
    /// The watch left out a change.
    WatchMissed,
    /// The watch delivered a change twice.
    WatchRepeated,
    /// The watch delivered a change after a later one.
    WatchOrder,
    /// Two members return different histories.
    MembersDiffer,
    /// The end could not be looked at.
    Unfinished,
}

/// One thing that must not have happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Against which rule.
    pub rule: Rule,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)
    }
}

/// The judgement on a load.
#[derive(Debug)]
pub struct Verdict {
    /// What was measured.
    pub figures: Figures,
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// Calls that failed for a client that tries once more, and why: the first few.
    pub errors: Vec<String>,
    /// Where the history is kept, if something was wrong.
    pub history: Option<PathBuf>,
}

/// So many violations and errors are printed in full.
const TOLD: usize = 12;

impl Verdict {
    /// Judges a history; its file is kept if there is something to look for.
    pub fn of(history: &History, file: Option<tempfile::TempPath>) -> Self {
        let begun = Instant::now();
        let past = Past::of(history);
        let mut violations = ledger::check(history, &past);
        violations.extend(watched::check(history, &past));
        violations.extend(order::check(history, &past));
        let (linear, windows) = linear::check(history, &past);
        violations.extend(linear);
        let mut figures = Figures::of(history);
        figures.windows = windows;
        figures.checking = begun.elapsed();
        let errors = figures::errors(history);
        let wrong = !violations.is_empty() || !errors.is_empty();
        Self { figures, violations, errors, history: file.filter(|_| wrong).and_then(kept) }
    }

    /// Panics if anything was lost, stale, out of order, or reported wrongly. Calls may have failed.
    #[track_caller]
    pub fn assert_consistent(&self) {
        assert!(self.violations.is_empty(), "{self}");
    }

    /// Panics if anything was wrong, or if a client that tries once more saw an error.
    #[track_caller]
    pub fn assert_clean(&self) {
        self.assert_consistent();
        assert_eq!(self.figures.errors, 0, "{self}");
    }

    /// Whether `assert_clean` would pass.
    pub fn clean(&self) -> bool {
        self.violations.is_empty() && self.figures.errors == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.figures)?;
        writeln!(f, "violations             {}", self.violations.len())?;
        for violation in self.violations.iter().take(TOLD) {
            writeln!(f, "  {violation}")?;
        }
        for error in self.errors.iter().take(TOLD) {
            writeln!(f, "  error after one retry: {error}")?;
        }
        match &self.history {
            Some(path) => writeln!(f, "the history is kept in {}", path.display()),
            None => Ok(()),
        }
    }
}

/// What happened to the keys, as the cluster reports it: afterwards if it still can, else from the watch.
struct Past {
    events: Vec<Event>,
    first: i64,
    last: i64,
}

impl Past {
    fn of(history: &History) -> Self {
        let (first, last) =
            history.ending.as_ref().map_or((0, i64::MAX), |ending| (ending.first_revision, ending.last_revision));
        let replays = history.ending.iter().flat_map(|ending| &ending.replays);
        let output = replays.filter_map(|replay| replay.events.as_ref()).next();
        let mut events = output.unwrap_or(&history.events).clone();
        events.retain(|event| event.revision <= last);
        Self { events, first, last }
    }

    /// What was written to a key at a revision; none if nothing was.
    fn at(&self, revision: i64, key: u32) -> Option<&Event> {
        let from = self.events.partition_point(|event| event.revision < revision);
        let same = self.events.get(from..).unwrap_or_default();
        same.iter().take_while(|event| event.revision == revision).find(|event| event.key == key)
    }
}
