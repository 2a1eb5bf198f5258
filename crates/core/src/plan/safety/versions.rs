//! A step around a change of versions, a version that a member is to run → what it costs, or why it must not be done.

use super::{Case, Cost, Refusal};
use crate::action::VersionAction;
use crate::plan::versions::versions;
use crate::spec::{EtcdVersion, Name};
use crate::versions::{AUTH_CHANGED_AFTER, Line, REQUESTS_OF_TODAY, VersionRefusal, least_before};

pub(super) fn judge(case: &Case<'_>, action: &VersionAction) -> Result<Cost, Refusal> {
    case.with_quorum()?;
    let judged = match action {
        VersionAction::TakeSnapshot { .. } | VersionAction::CancelDowngrade => Ok(()),
        VersionAction::EnableDowngrade { version } => downgrade(case, *version),
    };
    judged.map(|()| case.unharmed)
}

/// Whether a downgrade to this version may be enabled now.
fn downgrade(case: &Case<'_>, version: EtcdVersion) -> Result<(), Refusal> {
    let view = case.view;
    let now = versions(case.desired, case.observed, view);
    let above = Line::of(version).above();
    let voters = view.listed.unwrap_or_default().iter().filter(|m| !m.learner);
    let healthy = |id| view.healthy.iter().any(|n| view.answering.get(n).is_some_and(|e| e.member == id));
    if !voters.clone().all(|m| healthy(m.id)) {
        return Err(case.costs_quorum());
    }
    if now.downgrade.is_some() || now.running.values().any(|v| Line::of(*v) != above) {
        return Err(Refusal::Otherwise(format!("not all members run {above}, or the downgrade is enabled already")));
    }
    Ok(())
}

impl Case<'_> {
    /// Whether a member may be started with this version: judged again for every step, whichever pass planned it.
    pub(super) fn may_run(&self, machine: &Name, version: EtcdVersion) -> Result<(), Refusal> {
        let now = versions(self.desired, self.observed, self.view);
        let otherwise = |text: String| Err(Refusal::Otherwise(text));
        let Some(running) = now.running.get(machine).copied().filter(|running| *running != version) else {
            return Ok(());
        };
        let saved = self.observed.ledger.etcd.snapshot.as_ref().is_some_and(|s| s.before == version);
        if !saved && !now.running.values().any(|v| *v == version) {
            return Err(Refusal::NotSeen("a snapshot from before this version"));
        }
        let (from, to) = (Line::of(running), Line::of(version));
        if to == from {
            return Ok(());
        }
        if to != from.above() && to != from.below() {
            return otherwise(format!("from {running} to {version} a line would be skipped"));
        }
        if now.auth && from.min(to) == AUTH_CHANGED_AFTER {
            return otherwise(VersionRefusal::AuthOn { line: from.min(to) }.to_string());
        }
        if to < from {
            return match now.written_for.iter().max() {
                None => Err(Refusal::NotSeen("what the data is written for")),
                Some(line) if *line > to => otherwise(format!("the data is written for {line}")),
                Some(_) => Ok(()),
            };
        }
        if now.downgrade.is_some() {
            return otherwise("a downgrade is enabled".to_owned());
        }
        if let Some(line) = now.written_for.iter().min().filter(|line| !to.fits(**line)) {
            return otherwise(format!("the data is written for {line}"));
        }
        if from == REQUESTS_OF_TODAY && now.old_requests {
            return otherwise(format!("the log may hold requests of {}, which {to} does not read", from.below()));
        }
        let least = least_before(to);
        match now.running.values().find(|v| Line::of(**v) < to && least.is_some_and(|least| **v < least)) {
            Some(old) => otherwise(format!("{old} must not meet {to}")),
            None => Ok(()),
        }
    }
}
