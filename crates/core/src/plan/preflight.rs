//! Timers that are to be measured → a measurement, once enough machines are there for it; timers that do not suit what
//! was measured → reported.

use super::report::Report;
use super::{Draft, Reason, Step, Waiting};
use crate::action::PreflightAction;
use crate::desired::Stack;
use crate::observed::{Ledger, Observed, judge, quorum};
use crate::spec::Name;

/// How many machines a measurement needs: all before the cluster exists, later a majority, so that a lost machine does
/// not block it.
pub fn needed(desired: &Stack, ledger: &Ledger) -> usize {
    let all = desired.etcd.members.len();
    if ledger.etcd.cluster.is_some() { quorum(all) } else { all }
}

/// The machines that can be asked to measure, and how many it takes.
pub fn answering<'a>(desired: &'a Stack, observed: &Observed) -> (Vec<&'a Name>, usize) {
    let answers = |name: &Name| observed.report(name).is_some_and(|r| r.machine == *name);
    let answering = desired.etcd.members.iter().map(|m| &m.name).filter(|name| answers(name)).collect();
    (answering, needed(desired, &observed.ledger))
}

/// Has everything measured that the timers rest on.
pub(super) fn measure(draft: &mut Draft<'_>) -> Report {
    if draft.desired.etcd.timers(&draft.observed.ledger).is_some() {
        return Report::Looked;
    }
    let (ready, needed) = answering(draft.desired, draft.observed);
    if ready.len() < needed {
        let ready = ready.len();
        draft.wait(Waiting::NotMeasured { ready, needed });
    } else {
        draft.steps.push(Step::new(PreflightAction::Measure, Reason::NotMeasured));
    }
    Report::Looked
}

/// Says what does not suit the last measurement.
pub(super) fn note(draft: &mut Draft<'_>) -> Report {
    let ledger = &draft.observed.ledger;
    let (Some(timers), Some(preflight)) = (draft.desired.etcd.timers(ledger), &ledger.etcd.preflight) else {
        return Report::Looked;
    };
    let concerns = judge(timers, &preflight.measurement);
    draft.waiting.extend(concerns.into_iter().map(|concern| Waiting::TimersUnfit { concern }));
    Report::Looked
}
