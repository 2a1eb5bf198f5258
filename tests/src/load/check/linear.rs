//! A key's calls, cut where none was under way → whether some order of them explains every answer, by two checkers.
//!
//! Both checkers are ready-made and independent of each other: stateright's tries every order; that of todc-utils is Wing
//! and Gong's with Lowe's memory. A cut loses nothing: every value that a window may end with is a value that the next may
//! begin with, and each such pair is judged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::Action;
use todc_utils::specifications::Specification;

use super::super::call::{Answer, Ask, Call, Key, Value};
use super::super::history::History;
use super::{Past, Rule, Violation};

/// stateright's checker caches nothing: a window with more calls than this is left to the other one.
const EXHAUSTIVE: usize = 10;

/// What a register can be asked, with what it answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Write(Option<Value>),
    Read(Option<Value>),
    Swapped { expected: Option<Value>, value: Value },
    Kept { expected: Option<Value>, found: Option<Value> },
}

impl Step {
    /// What it leaves behind; none if it could not have answered like this.
    fn apply(self, register: Option<Value>) -> Option<Option<Value>> {
        match self {
            Self::Write(value) => Some(value),
            Self::Read(value) => (register == value).then_some(register),
            Self::Swapped { expected, value } => (register == expected).then_some(Some(value)),
            Self::Kept { expected, found } => (register == found && register != expected).then_some(register),
        }
    }

    fn wrote(self) -> Option<Option<Value>> {
        match self {
            Self::Write(value) => Some(value),
            Self::Swapped { value, .. } => Some(Some(value)),
            Self::Read(_) | Self::Kept { .. } => None,
        }
    }
}

/// A step, and the time within which it was taken.
#[derive(Debug, Clone, Copy)]
struct Span {
    begin: u64,
    end: u64,
    step: Step,
}

/// What the checkers had to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Windows {
    /// How many windows.
    pub count: usize,
    /// The calls of the largest.
    pub largest: usize,
    /// Windows that were too large for one of the two checkers.
    pub by_one_checker: usize,
}

impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} windows, the largest of {} calls", self.count, self.largest)?;
        if self.by_one_checker > 0 { write!(f, ", {} by one checker only", self.by_one_checker) } else { Ok(()) }
    }
}

pub(super) fn check(history: &History, past: &Past) -> (Vec<Violation>, Windows) {
    let (mut found, mut windows) = (Vec::new(), Windows::default());
    for (key, mut spans) in spans(history, past) {
        spans.sort_by_key(|span| (span.begin, span.end));
        let mut registers = BTreeSet::from([None]);
        for window in cut(&spans) {
            windows.count += 1;
            windows.largest = windows.largest.max(window.len());
            windows.by_one_checker += usize::from(window.len() > EXHAUSTIVE);
            let mut after = BTreeSet::new();
            let (before, last) = (std::mem::take(&mut registers), last_written(window));
            for register in &before {
                // A window without a write ends as it began.
                let ends = if last.is_empty() { BTreeSet::from([*register]) } else { last.clone() };
                for end in ends {
                    match judge(*register, window, end) {
                        Ok(true) => {
                            after.insert(end);
                        }
                        Ok(false) => {}
                        Err(what) => {
                            found.push(Violation { rule: Rule::CheckersDiffer, what: format!("key {key}: {what}") });
                        }
                    }
                }
            }
            if after.is_empty() {
                let what = format!("key {key}: nothing explains {window:?} when it began with {before:?}");
                found.push(Violation { rule: Rule::NotLinearizable, what });
                after = if last.is_empty() { before } else { last };
            }
            registers = after;
        }
    }
    (found, windows)
}

/// Every key's steps. A write whose answer was lost is judged by what became of it: it was applied if and when the past
/// says so, some time between its call and the moment when the watch delivered it.
fn spans(history: &History, past: &Past) -> BTreeMap<Key, Vec<Span>> {
    let mut keys: BTreeMap<Key, Vec<Span>> = BTreeMap::new();
    let mut add = |key: Key, begin, end, step| keys.entry(key).or_default().push(Span { begin, end, step });
    let mut applied: BTreeMap<(Key, Value), Vec<i64>> = BTreeMap::new();
    for event in &past.events {
        if let Some(value) = event.value {
            applied.entry((event.key, value)).or_default().push(event.revision);
        }
    }
    let output: BTreeMap<(Key, i64), u64> =
        history.events.iter().map(|event| ((event.key, event.revision), event.at)).collect();
    for call in &history.calls {
        for (key, value) in call.ask.writes() {
            let step = write(call, value);
            let acknowledged = call.acknowledged();
            if acknowledged.is_some() {
                add(key, call.begin, call.end, step);
            }
            // A put that was tried twice may have been applied twice, and the first time after the second.
            let others = applied.get(&(key, value)).into_iter().flatten().filter(|at| Some(**at) != acknowledged);
            for revision in others {
                let end = output.get(&(key, *revision)).copied().unwrap_or(u64::MAX);
                add(key, call.begin, end.max(call.begin), step);
            }
        }
        match &call.answer {
            Answer::Read { values, .. } => {
                for (key, value) in call.ask.reads().into_iter().zip(values) {
                    add(key, call.begin, call.end, Step::Read(*value));
                }
            }
            Answer::Kept { found, .. } => {
                if let Ask::Swap { key, expected, .. } = call.ask {
                    add(key, call.begin, call.end, Step::Kept { expected, found: *found });
                }
            }
            Answer::Written { .. } | Answer::Ambiguous { .. } | Answer::Unknown { .. } => {}
        }
    }
    keys
}

fn write(call: &Call, value: Value) -> Step {
    match call.ask {
        Ask::Swap { expected, .. } => Step::Swapped { expected, value },
        _ => Step::Write(Some(value)),
    }
}

/// Cuts at every moment at which no step was under way.
fn cut(spans: &[Span]) -> Vec<&[Span]> {
    let mut windows = Vec::new();
    let (mut from, mut busy_until) = (0, 0);
    for (index, span) in spans.iter().enumerate() {
        if index > from && span.begin > busy_until {
            windows.push(&spans[from..index]);
            from = index;
        }
        busy_until = busy_until.max(span.end);
    }
    if from < spans.len() {
        windows.push(&spans[from..]);
    }
    windows
}

/// What the register can hold at the window's end: what was written by a write that no other came entirely after.
fn last_written(window: &[Span]) -> BTreeSet<Option<Value>> {
    let latest = window.iter().filter(|span| span.step.wrote().is_some()).map(|span| span.begin).max().unwrap_or(0);
    window.iter().filter(|span| span.end >= latest).filter_map(|span| span.step.wrote()).collect()
}

/// Whether the window can begin with one value and end with the other; an error if the checkers do not agree.
fn judge(begin: Option<Value>, window: &[Span], end: Option<Value>) -> Result<bool, String> {
    let bounds = |begin, end, step| Span { begin, end, step };
    let mut all = vec![bounds(0, 0, Step::Write(begin))];
    // One later, so that the write before them all is before them all.
    all.extend(window.iter().map(|span| bounds(span.begin.saturating_add(1), span.end.saturating_add(1), span.step)));
    let mut moments: Vec<(u64, bool, usize)> = Vec::new();
    for (index, span) in all.iter().enumerate() {
        moments.push((span.begin, false, index));
        moments.push((span.end, true, index));
    }
    // At the same moment beginnings come first: the steps overlap, and either order is allowed.
    moments.sort_unstable();
    all.push(bounds(u64::MAX, u64::MAX, Step::Read(end)));
    moments.extend([(u64::MAX, false, all.len() - 1), (u64::MAX, true, all.len() - 1)]);

    let by_memory = remembering(&all, &moments);
    if window.len() > EXHAUSTIVE {
        return Ok(by_memory);
    }
    let by_all_orders = exhaustive(&all, &moments)?;
    if by_memory == by_all_orders {
        Ok(by_memory)
    } else {
        Err(format!("one checker says {by_memory}, the other {by_all_orders}, from {begin:?} to {end:?}: {window:?}"))
    }
}

struct Register;

impl Specification for Register {
    type State = Option<Value>;
    type Operation = Step;

    fn init() -> Self::State {
        None
    }

    fn apply(step: &Step, register: &Self::State) -> (bool, Self::State) {
        step.apply(*register).map_or((false, *register), |after| (true, after))
    }
}

fn remembering(spans: &[Span], moments: &[(u64, bool, usize)]) -> bool {
    let action = |(_, ends, index): &(u64, bool, usize)| {
        let step = spans[*index].step;
        (*index, if *ends { Action::Response(step) } else { Action::Call(step) })
    };
    let history = todc_utils::linearizability::history::History::from_actions(moments.iter().map(action).collect());
    WGLChecker::<Register>::is_linearizable(history)
}

#[derive(Debug, Clone)]
struct Cell(Option<Value>);

impl SequentialSpec for Cell {
    type Op = Step;
    /// Whether the step could have answered as it did.
    type Ret = bool;

    fn invoke(&mut self, step: &Step) -> bool {
        match step.apply(self.0) {
            Some(after) => {
                self.0 = after;
                true
            }
            None => false,
        }
    }
}

fn exhaustive(spans: &[Span], moments: &[(u64, bool, usize)]) -> Result<bool, String> {
    let mut tester = LinearizabilityTester::new(Cell(None));
    for (_, ends, index) in moments {
        if *ends {
            tester.on_return(*index, true)?;
        } else {
            tester.on_invoke(*index, spans[*index].step)?;
        }
    }
    Ok(tester.is_consistent())
}
