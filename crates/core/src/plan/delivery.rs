//! Machines whose secrets are not those that the file refers to → deliveries, once all else is as it should be.

use super::{Draft, Patience, Reason, Step, Waiting};
use crate::action::Action;
use crate::observed::Delivery;

/// Last of all, so that a password that cannot be read keeps nobody from mending a cluster.
pub(super) fn deliver(draft: &mut Draft<'_>) {
    let soon = |waiting: &Waiting| waiting.patience() == Patience::Soon;
    if !draft.steps.is_empty() || draft.waiting.iter().any(soon) {
        return;
    }
    for member in &draft.desired.members {
        let machine = &member.name;
        match draft.observed.members.get(machine).and_then(|seen| seen.report()).map(|report| &report.delivery) {
            None | Some(Delivery::Current) => {}
            Some(Delivery::Outdated) => {
                let action = Action::Deliver { machine: machine.clone() };
                draft.steps.push(Step::new(action, Reason::OtherSecrets));
            }
            Some(Delivery::Unknown(error)) => {
                draft.waiting.push(Waiting::Undeliverable { machine: machine.clone(), error: error.clone() });
            }
        }
    }
}
