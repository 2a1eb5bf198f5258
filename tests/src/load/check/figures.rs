//! A history → throughput, pauses, retries and errors, as a client sees them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::super::call::Answer;
use super::super::history::History;
use super::linear::Windows;

/// A time without an acknowledged write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gap {
    /// How long.
    pub length: Duration,
    /// When it began, since the load's start.
    pub at: Duration,
}

/// What was measured.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// From the first acknowledged write to the end.
    pub lasted: Duration,
    /// Calls of each kind.
    pub calls: BTreeMap<&'static str, usize>,
    /// Writes that were acknowledged.
    pub acknowledged: usize,
    /// The longest time without an acknowledged write.
    pub longest_gap: Gap,
    /// The test's last marker before the gap ended.
    pub gap_after: Option<String>,
    /// Half of the acknowledged writes took no longer than this.
    pub median: Duration,
    /// Of a hundred acknowledged writes, 99 took no longer than this.
    pub percentile_99: Duration,
    /// Calls whose first try failed.
    pub retried: usize,
    /// Calls that failed with their retry.
    pub errors: usize,
    /// Compare-and-swaps whose retry met another worker's value, so that the first try's outcome is unknown.
    pub ambiguous: usize,
    /// How many times the watch was restarted.
    pub rewatches: usize,
    /// Members that returned the whole history, and all that were asked.
    pub output: (usize, usize),
    /// What the linearizability checkers had to do.
    pub windows: Windows,
    /// How long the checks took.
    pub checking: Duration,
}

impl Figures {
    pub(super) fn of(history: &History) -> Self {
        let stopped = history.ending.as_ref().map_or(0, |ending| ending.stopped);
        let written = history.calls.iter().filter(|call| call.acknowledged().is_some());
        let mut times: Vec<(u64, u64)> = written.map(|call| (call.end, call.end - call.begin)).collect();
        times.sort_unstable();
        let first = times.first().map_or(0, |(end, _)| *end);
        let longest_gap = longest_gap(times.iter().map(|(end, _)| *end), stopped);
        let ended = longest_gap.at + longest_gap.length;
        let marks = history.marks.iter().rev();
        let gap_after = marks.into_iter().find(|(at, _)| Duration::from_nanos(*at) <= ended);
        let mut latencies: Vec<u64> = times.iter().map(|(_, latency)| *latency).collect();
        latencies.sort_unstable();
        let share = |percent: usize| {
            let index = (latencies.len() * percent / 100).min(latencies.len().saturating_sub(1));
            Duration::from_nanos(latencies.get(index).copied().unwrap_or(0))
        };
        let mut calls = BTreeMap::new();
        for call in &history.calls {
            *calls.entry(call.ask.kind()).or_insert(0) += 1;
        }
        let replays = history.ending.as_ref().map_or(&[][..], |ending| &ending.replays);
        Self {
            lasted: Duration::from_nanos(stopped.saturating_sub(first)),
            calls,
            acknowledged: times.len(),
            longest_gap,
            gap_after: gap_after.map(|(_, text)| text.clone()),
            median: share(50),
            percentile_99: share(99),
            retried: history.calls.iter().filter(|call| call.first_failure.is_some()).count(),
            errors: errors(history).len(),
            ambiguous: history.calls.iter().filter(|call| matches!(call.answer, Answer::Ambiguous { .. })).count(),
            rewatches: history.rewatches,
            output: (replays.iter().filter(|replay| replay.events.is_some()).count(), replays.len()),
            windows: Windows::default(),
            checking: Duration::ZERO,
        }
    }

    /// Acknowledged writes a second.
    pub fn throughput(&self) -> f64 {
        self.acknowledged as f64 / self.lasted.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// The longest time between two acknowledged writes, or after the last until the load was stopped. What comes later are
/// stragglers: no worker starts another call.
fn longest_gap(ends: impl Iterator<Item = u64>, stopped: u64) -> Gap {
    let ends: Vec<u64> = ends.take_while(|end| *end < stopped).chain([stopped]).collect();
    let gaps = ends.iter().zip(ends.iter().skip(1)).map(|(before, after)| (after - before, *before));
    let (length, at) = gaps.max_by_key(|(length, _)| *length).unwrap_or((0, 0));
    Gap { length: Duration::from_nanos(length), at: Duration::from_nanos(at) }
}

/// Calls that failed with their retry, in words.
pub(super) fn errors(history: &History) -> Vec<String> {
    let failed = history.calls.iter().filter_map(|call| match &call.answer {
        Answer::Unknown { error } => {
            let first = call.first_failure.as_deref().unwrap_or("no reason");
            let at = Duration::from_nanos(call.begin).as_secs_f64();
            Some(format!("{} at {at:.3} s: {first}; then: {error}", call.ask.kind()))
        }
        Answer::Written { .. } | Answer::Read { .. } | Answer::Kept { .. } | Answer::Ambiguous { .. } => None,
    });
    failed.collect()
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        let calls: Vec<String> = self.calls.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        writeln!(f, "lasted                 {:.1} s", self.lasted.as_secs_f64())?;
        writeln!(f, "calls                  {}", calls.join(", "))?;
        writeln!(f, "acknowledged writes    {} ({:.0} a second)", self.acknowledged, self.throughput())?;
        let after = self.gap_after.as_ref().map(|mark| format!(", after '{mark}'")).unwrap_or_default();
        let gap = self.longest_gap;
        writeln!(f, "longest without one    {:.0} ms, at {:.1} s{after}", millis(gap.length), gap.at.as_secs_f64())?;
        writeln!(
            f,
            "a write took           {:.1} ms; 99 of 100 up to {:.1} ms",
            millis(self.median),
            millis(self.percentile_99)
        )?;
        writeln!(f, "first tries that failed {}; errors after one retry {}", self.retried, self.errors)?;
        writeln!(f, "swaps, result unknown  {}", self.ambiguous)?;
        writeln!(f, "watch taken up again   {}", self.rewatches)?;
        writeln!(f, "the past told by       {} of {} members", self.output.0, self.output.1)?;
        writeln!(f, "judged                 {} in {:.1} s", self.windows, self.checking.as_secs_f64())
    }
}
