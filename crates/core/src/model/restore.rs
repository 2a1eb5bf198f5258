//! A step of a restore, on the simulated world → the members' data and processes then.

#![warn(clippy::wildcard_enum_match_arm)]

use super::backup::unconfigured;
use super::effects::{Ids, Impossible, hash};
use super::{Agreed, PatroniStore, World};
use crate::action::{RestoreAction, StartData};
use crate::backup::FullName;
use crate::desired::Stack;
use crate::observed::{ClusterId, Data, ServiceState};
use crate::plan::restore;
use crate::spec::Name;

pub(super) fn act(world: &mut World, desired: &Stack, action: &RestoreAction, warm_up: u32) -> Result<(), Impossible> {
    match action {
        RestoreAction::PrepareRestore => {
            let backup = FullName::new(world.now, 0);
            let restoration = restore::untried(desired, &world.observe(desired), backup, 0, world.now);
            restore::decide(&mut world.ledger, restoration);
        }
        RestoreAction::RestoreBackup { machine, .. } => world.restore_backup(machine)?,
        RestoreAction::CompareRestored { machines } => {
            let restoration = world.ledger.etcd.restoration();
            let version = restoration.map_or(desired.etcd.version, |restoration| restoration.version);
            for machine in machines {
                world.stop(machine, None)?;
                let Data::Present { cluster, .. } = world.claimed(machine)?.data else {
                    return Err(Impossible(format!("{machine} was not restored")));
                };
                let timers = desired.etcd.timers(&world.ledger).unwrap_or_default();
                let access = desired.etcd.client_access(&world.ledger);
                let config = desired.etcd.member(machine).map(|m| desired.etcd.config(m, version, timers, access));
                world.note_closed(desired, machine, version, None);
                world.claimed(machine)?.config = config.map(|config| config.digest.clone());
                world.start(machine, version, StartData::Of(cluster), warm_up)?;
                // Machines that make backups by themselves are given the new history.
                world.claimed(machine)?.backup_settings = unconfigured(desired);
            }
        }
    }
    Ok(())
}

impl World {
    fn restore_backup(&mut self, name: &Name) -> Result<(), Impossible> {
        let restoration =
            self.ledger.etcd.restoration().cloned().ok_or_else(|| Impossible("nothing to restore".to_owned()))?;
        let mut ids = Ids::of(&restoration.members);
        ids.cluster = ClusterId(hash(&format!("{} {}", ids.cluster, restoration.since)));
        let list = ids.list(&restoration.members);
        let machine = self.claimed(name)?;
        if machine.data != Data::Empty || machine.process.state != ServiceState::Stopped {
            return Err(Impossible(format!("the data of {name} is not as expected")));
        }
        let member = list.iter().find(|member| member.name == name.as_str()).map(|member| member.id);
        let member = member.ok_or_else(|| Impossible(format!("{name} is no member of what is restored")))?;
        machine.data = Data::Present { member, cluster: ids.cluster };
        machine.had_data = true;
        // The backup holds what the cluster had agreed upon.
        let before = restoration.old.iter().find_map(|old| self.agreed.get(old)).cloned();
        let before = before.unwrap_or_else(|| Agreed::new(Vec::new()));
        // Patroni's keys are those of the moment at which the backup was made.
        let patroni = self.backed_up.clone().unwrap_or_else(|| before.patroni.clone());
        let patroni = PatroniStore { lessor: None, ..patroni };
        self.agreed.entry(ids.cluster).or_insert_with(|| Agreed { members: list, patroni, ..before });
        Ok(())
    }
}
