//! Machines whose backup settings are not those of the file → their configuration, once all else is as it should be.

use super::report::Report;
use super::{Draft, Reason, Step, Waiting};
use crate::action::BackupAction;
use crate::observed::Delivery;

/// Gives machines the schedule and the store of the file, where they have others.
pub(super) fn configure(draft: &mut Draft<'_>) -> Report {
    for member in &draft.desired.etcd.members {
        let machine = &member.name;
        match draft.observed.report(machine).map(|report| &report.backup_settings) {
            None | Some(Delivery::Current) => {}
            Some(Delivery::Outdated) => {
                let action = BackupAction::ConfigureBackups { machine: machine.clone() };
                let reason =
                    if draft.desired.etcd.backups.is_some() { Reason::BackupsDiffer } else { Reason::BackupsRemoved };
                draft.steps.push(Step::new(action, reason));
            }
            Some(Delivery::Unknown(error)) => {
                draft.waiting.push(Waiting::BackupsUnreadable { machine: machine.clone(), error: error.clone() });
            }
        }
    }
    Report::Looked
}
