//! A step around a change of versions, on the simulated world → the snapshot, or the downgrade that is enabled.

#![warn(clippy::wildcard_enum_match_arm)]

use super::World;
use super::effects::{Impossible, no_quorum};
use crate::action::VersionAction;
use crate::desired::Stack;
use crate::observed::SnapshotRecord;
use crate::versions::Line;

pub(super) fn act(world: &mut World, desired: &Stack, action: &VersionAction) -> Result<(), Impossible> {
    match action {
        VersionAction::TakeSnapshot { version } => {
            let leader = world.agreed.keys().find_map(|id| world.leader(*id)).ok_or_else(no_quorum)?;
            let from = world.machines.values().find(|m| m.member() == Some(leader)).and_then(|m| m.process.version);
            let (before, from) = (*version, from.unwrap_or(desired.etcd.version));
            let file = format!("{}-{}-{from}.db", desired.name, 1);
            world.ledger.etcd.snapshot = Some(SnapshotRecord { before, from, revision: 1, at: world.now, file });
            Ok(())
        }
        VersionAction::EnableDowngrade { version } => {
            let target = Line::of(*version);
            let mut refused = false;
            world.agree(|agreed| {
                // etcd accepts only the line below the one that it has agreed upon.
                refused = agreed.line != Some(target.above());
                if !refused {
                    agreed.downgrade = Some(target);
                }
            })?;
            if refused { Err(Impossible("invalid downgrade target version".to_owned())) } else { Ok(()) }
        }
        VersionAction::CancelDowngrade => world.agree(|agreed| agreed.downgrade = None),
    }
}
