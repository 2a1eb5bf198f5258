//! A step for scheduled backups → what it costs, or why it must not be done.

use super::{Case, Cost, Refusal};
use crate::action::BackupAction;

pub(super) fn judge(case: &Case<'_>, action: &BackupAction) -> Result<Cost, Refusal> {
    match action {
        BackupAction::ConfigureBackups { machine } => case.report(machine).map(|_| case.unharmed),
    }
}
