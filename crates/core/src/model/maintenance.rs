//! Databases that grow, are compacted and defragmented; alarms that are raised and disarmed; members that differ.

use std::collections::BTreeMap;

use super::effects::Impossible;
use super::{Agreed, MachineModel, World};
use crate::action::MaintenanceAction;
use crate::desired::Stack;
use crate::observed::{
    Alarm, ClusterId, EtcdFacts, FilledPrefix, Filling, Hash, Hashes, Maintenance, MemberId, Observed, ServiceState,
    View,
};
use crate::spec::Name;

/// What a cluster's members hold alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// The newest revision.
    pub revision: i64,
    /// What can be read now takes so many bytes.
    pub live: i64,
    /// What was overwritten or deleted takes so many more, until it is compacted.
    pub history: i64,
    /// What was compacted.
    pub compacted: i64,
}

impl Stored {
    /// A nearly empty database.
    pub(super) fn new() -> Self {
        Self { revision: 1, live: 20 << 10, history: 0, compacted: 0 }
    }

    /// What is in use.
    pub(super) fn in_use(self) -> i64 {
        self.live + self.history
    }
}

pub(super) fn act(world: &mut World, action: &MaintenanceAction) -> Result<(), Impossible> {
    match action {
        MaintenanceAction::Compact { revision } => world.compact(*revision),
        MaintenanceAction::Defragment { machine } => world.defragment(machine),
        MaintenanceAction::DisarmAlarm { alarm } => world.disarm(*alarm),
    }
}

impl MachineModel {
    /// The size of its database file: it never shrinks by itself.
    pub(super) fn db_size(&self, stored: Stored) -> i64 {
        self.db_size.max(stored.in_use())
    }
}

impl World {
    /// Clients write: so much more data, so much more history. They stop where the quota says so.
    pub fn write(&mut self, live: i64, history: i64) {
        for (id, agreed) in &mut self.agreed {
            if !agreed.alarms.is_empty() {
                continue;
            }
            agreed.stored.live += live;
            agreed.stored.history += history;
            agreed.stored.revision += 1 + live / 1024 + history / 1024;
            let here = |m: &&mut MachineModel| m.exists && m.cluster() == Some(*id);
            for machine in self.machines.values_mut().filter(here) {
                machine.db_size = machine.db_size(agreed.stored);
                if machine.process.quota > 0 && machine.db_size >= machine.process.quota {
                    agreed.alarms = vec![Alarm::NoSpace];
                }
            }
        }
    }

    /// Clients delete: what they delete becomes history.
    pub fn delete(&mut self, live: i64) {
        for agreed in self.agreed.values_mut() {
            let live = live.min(agreed.stored.live);
            agreed.stored.live -= live;
            agreed.stored.history += live;
            agreed.stored.revision += 1 + live / 1024;
        }
    }

    /// A client compacts every cluster up to its current revision.
    pub fn compact_everywhere(&mut self) {
        for agreed in self.agreed.values_mut() {
            agreed.stored.history = 0;
            agreed.stored.compacted = agreed.stored.revision;
        }
    }

    /// A member's data becomes corrupt, and etcd notices.
    pub fn corrupt(&mut self, name: &Name) {
        let Some(machine) = self.machines.get_mut(name) else { return };
        machine.corrupt = true;
        if let Some(agreed) = machine.cluster().and_then(|id| self.agreed.get_mut(&id)) {
            agreed.alarms = vec![Alarm::Corrupt];
        }
    }

    fn compact(&mut self, revision: i64) -> Result<(), Impossible> {
        self.agree(|agreed| {
            let stored = &mut agreed.stored;
            if revision > stored.compacted {
                // Only what came after it stays.
                let after = stored.revision - revision;
                stored.history = if after > 0 { stored.history.min(after * 1024) } else { 0 };
                stored.compacted = revision;
            }
        })
    }

    fn defragment(&mut self, name: &Name) -> Result<(), Impossible> {
        let machine = self.machines.get(name).filter(|m| m.answers());
        let id = machine.and_then(MachineModel::cluster);
        let stored = id.and_then(|id| self.agreed.get(&id)).map(|agreed| agreed.stored);
        match (self.machines.get_mut(name), stored) {
            (Some(machine), Some(stored)) => {
                machine.db_size = stored.in_use();
                Ok(())
            }
            _ => Err(Impossible(format!("etcd on {name} does not answer"))),
        }
    }

    fn disarm(&mut self, alarm: Alarm) -> Result<(), Impossible> {
        self.agree(|agreed| agreed.alarms.retain(|raised| *raised != alarm))
    }

    /// What an observation of the cause of an alarm shows.
    pub(super) fn observe_maintenance(&self, desired: &Stack) -> Maintenance {
        let Some((id, agreed)) = self.agreed.iter().find(|(id, a)| !a.alarms.is_empty() && self.has_quorum(**id))
        else {
            return Maintenance::default();
        };
        let stored = agreed.stored;
        let (bytes, history) = (stored.live.unsigned_abs(), stored.history.unsigned_abs());
        let prefix = FilledPrefix { prefix: "data/".to_owned(), keys: bytes / 1024, bytes, history };
        let filling = Filling { keys: bytes / 1024, complete: true, bytes, prefixes: vec![prefix] };
        let names = desired.etcd.members.iter().map(|m| &m.name).chain(self.ledger.etcd.members.keys());
        let hash = |name: &Name| {
            let machine = self.machines.get(name).filter(|m| self.is_heard(m) && m.cluster() == Some(*id))?;
            // Two corrupt members have different hashes.
            let damage = machine.member().map_or(0, |id| id.0.to_le_bytes()[0]);
            let hash = if machine.corrupt { 0xbad00 + u32::from(damage) } else { 0x900d };
            Some((name.clone(), Hash::Known { hash, compacted: stored.compacted }))
        };
        let hashes = Hashes { revision: stored.revision, members: names.filter_map(hash).collect() };
        Maintenance {
            filling: agreed.alarms.contains(&Alarm::NoSpace).then_some(filling),
            hashes: agreed.alarms.contains(&Alarm::Corrupt).then_some(hashes),
        }
    }

    /// Takes over what was seen of a member's database.
    pub(super) fn adopt_size(&mut self, desired: &Stack, name: &Name, observed: &Observed, etcd: &EtcdFacts) {
        let file = i64::try_from(desired.etcd.settings.quota.bytes()).unwrap_or(i64::MAX);
        if let Some(machine) = self.machines.get_mut(name) {
            machine.db_size = etcd.db_size;
            machine.quota = file;
            machine.process.quota = etcd.quota.unwrap_or(file);
            machine.corrupt = self_corrupt(observed, name);
        }
        let Some(agreed) = self.agreed.get_mut(&etcd.cluster) else { return };
        // What compaction will leave is known once it was done, and else estimated by what was counted.
        let compacted = observed.ledger.etcd.space.as_ref().is_some_and(|space| space.done);
        let live = match &observed.etcd.maintenance.filling {
            Some(filling) if !compacted => i64::try_from(filling.bytes).unwrap_or(i64::MAX).min(etcd.db_in_use),
            _ => etcd.db_in_use,
        };
        let stored = &mut agreed.stored;
        let first = stored.revision == 0;
        stored.revision = stored.revision.max(etcd.revision);
        stored.live = if first { live } else { stored.live.min(live) };
        let in_use = if first { etcd.db_in_use } else { (stored.live + stored.history).min(etcd.db_in_use) };
        stored.history = (in_use - stored.live).max(0);
    }
}

impl Agreed {
    /// For a cluster whose data is about to be taken over from what was seen.
    pub(super) const UNSEEN: Stored = Stored { revision: 0, live: 0, history: 0, compacted: 0 };
}

fn self_corrupt(observed: &Observed, name: &Name) -> bool {
    use crate::observed::Agreement;
    matches!(observed.agreement(&View::of(observed)), Agreement::Differ(names) if names.contains(name))
}

/// A member that starts or comes back has the size of what it holds.
pub(super) fn grow(machines: &mut BTreeMap<Name, MachineModel>, agreed: &mut BTreeMap<ClusterId, Agreed>) {
    for machine in machines.values_mut().filter(|m| m.exists && m.process.state == ServiceState::Running) {
        let Some(agreed) = machine.cluster().and_then(|id| agreed.get_mut(&id)) else { continue };
        machine.db_size = machine.db_size(agreed.stored);
        let listed = |id: MemberId| agreed.members.iter().any(|m| m.id == id);
        let full = machine.process.quota > 0 && machine.db_size >= machine.process.quota;
        // The next write raises the alarm.
        if full && agreed.formed && agreed.alarms.is_empty() && machine.member().is_some_and(listed) {
            agreed.alarms = vec![Alarm::NoSpace];
        }
    }
}
