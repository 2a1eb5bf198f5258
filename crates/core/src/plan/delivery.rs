//! Machines whose secrets are not those that the file refers to → deliveries, once all else is as it should be.

use super::report::Report;
use super::{Draft, Reason, Step, Waiting};
use crate::action::MachineAction;
use crate::observed::Delivery;

/// Gives machines the secrets of the file, where they have others.
pub(super) fn deliver(draft: &mut Draft<'_>) -> Report {
    for machine in draft.desired.all_machines() {
        match draft.observed.report(machine).map(|report| &report.delivery) {
            None | Some(Delivery::Current) => {}
            Some(Delivery::Outdated) => {
                let action = MachineAction::Deliver { machine: machine.clone() };
                draft.steps.push(Step::new(action, Reason::OtherSecrets));
            }
            Some(Delivery::Unknown(error)) => {
                draft.waiting.push(Waiting::Undeliverable { machine: machine.clone(), error: error.clone() });
            }
        }
    }
    Report::Looked
}
