//! A step for scheduled backups, on the simulated world → what a machine knows of them.

use super::World;
use super::effects::Impossible;
use crate::action::BackupAction;
use crate::desired::Stack;
use crate::observed::Delivery;

pub(super) fn act(world: &mut World, action: &BackupAction) -> Result<(), Impossible> {
    match action {
        BackupAction::ConfigureBackups { machine } => world.claimed(machine)?.backup_settings = Delivery::Current,
    }
    Ok(())
}

/// What a machine has that was not given the schedule, or not that of the cluster's new history.
pub(super) fn unconfigured(desired: &Stack) -> Delivery {
    if desired.etcd.backups.is_some() { Delivery::Outdated } else { Delivery::Current }
}
