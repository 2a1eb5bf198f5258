//! A step of a recovery, on the simulated world → a cluster of one member, with the survivor's data.

#![warn(clippy::wildcard_enum_match_arm)]

use super::World;
use super::effects::{Impossible, hash, no_quorum};
use crate::action::RecoveryAction;
use crate::observed::{ClusterId, Data, ListedMember, MemberId, ServiceState};
use crate::spec::Name;

pub(super) fn act(world: &mut World, action: &RecoveryAction) -> Result<(), Impossible> {
    match action {
        RecoveryAction::RestoreData { machine, .. } => world.restore_data(machine),
    }
}

impl World {
    /// A cluster of one member, with the data of the last cluster that this machine was a member of.
    fn restore_data(&mut self, name: &Name) -> Result<(), Impossible> {
        let recovery =
            self.ledger.etcd.recovery().cloned().ok_or_else(|| Impossible("nothing to restore".to_owned()))?;
        recovery.member.ok_or_else(|| Impossible("nothing was put away".to_owned()))?;
        self.made += 1;
        let cluster = ClusterId(hash(&format!("{} {}", recovery.of, self.made)));
        let peer_urls: Vec<String> = self.ledger.etcd.members.get(name).cloned().into_iter().collect();
        let member = MemberId(hash(&format!("{peer_urls:?} {cluster}")));
        let machine = self.claimed(name)?;
        if machine.data != Data::Empty || machine.process.state != ServiceState::Stopped {
            return Err(Impossible(format!("the data of {name} is not as expected")));
        }
        machine.data = Data::Present { member, cluster };
        machine.had_data = true;
        let mut agreed = self.agreed.get(&recovery.of).cloned().ok_or_else(no_quorum)?;
        agreed.members = vec![ListedMember { id: member, name: name.to_string(), peer_urls, learner: false }];
        self.agreed.insert(cluster, agreed);
        self.agreed.remove(&recovery.of);
        Ok(())
    }
}
