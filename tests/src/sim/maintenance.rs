//! Databases in simulated lives → they fill up, are compacted by others and corrupted, and what must hold meanwhile.

use raftsman_core::action::{Action, MaintenanceAction, MemberAction};
use raftsman_core::desired::Stack;
use raftsman_core::model::{Agreed, MachineModel, World};
use raftsman_core::observed::{Alarm, ClusterId, Data, MemberId, quorum};
use raftsman_core::plan::{Plan, Waiting};
use raftsman_core::spec::{ByteSize, Name};

use crate::dice::Dice;

const MIB: i64 = 1 << 20;

/// Files to change between: small quotas, so that they are reached, and rules for rewriting.
pub(super) const FILES: [&[&str]; 4] = [
    &["quota: 64MiB"],
    &["quota: 256MiB"],
    &["quota: 64MiB", "maintenance: { defragment: { free: 50%, at_least: 8MiB } }"],
    &["quota: 64MiB", "maintenance: { defragment: { free: 30%, at_least: 4MiB }, window: { from: 02:00, to: 14:00 } }"],
];

/// Whether this life is about databases.
pub(super) fn is_configured(desired: &Stack) -> bool {
    desired.etcd.settings.quota <= ByteSize::mib(256)
}

/// Clients write, delete and compact; now and then a member's data is damaged. Whether anything happened is the answer.
pub(super) fn happens(dice: &mut Dice, world: &mut World, sound: bool) -> bool {
    let Some(id) = world.agreed.iter().find(|(_, a)| a.formed).map(|(id, _)| *id) else { return false };
    if !world.has_quorum(id) {
        return false;
    }
    let amount = |dice: &mut Dice| i64::try_from(dice.below(40)).unwrap_or(0) * MIB;
    match dice.below(12) {
        0..3 => world.write(amount(dice), 0),
        3..7 => world.write(0, amount(dice)),
        7..9 => world.delete(amount(dice)),
        9 => world.compact_everywhere(),
        10 if sound => {
            let listed: Vec<Name> = members(world, id).map(|(name, _)| name.clone()).collect();
            // Only where the sound ones stay a majority: more is for people.
            let damaged = members(world, id).filter(|(_, m)| m.corrupt).count();
            let Some(name) = dice.pick(&listed).filter(|_| (damaged + 1) * 2 < listed.len()).cloned() else {
                return false;
            };
            world.corrupt(&name);
        }
        _ => return false,
    }
    true
}

fn agreed(world: &World) -> Option<(ClusterId, &Agreed)> {
    world.agreed.iter().find(|(_, a)| a.formed).map(|(id, a)| (*id, a))
}

/// The machines of a cluster's voters.
fn members(world: &World, id: ClusterId) -> impl Iterator<Item = (&Name, &MachineModel)> {
    let voters: Vec<MemberId> =
        world.agreed.get(&id).into_iter().flat_map(|a| &a.members).filter(|m| !m.learner).map(|m| m.id).collect();
    world.machines.iter().filter(move |(_, m)| {
        m.exists && matches!(m.data, Data::Present { member, cluster } if cluster == id && voters.contains(&member))
    })
}

/// Whether a member's data is corrupt.
pub(super) fn damaged(world: &World) -> bool {
    world.machines.values().any(|m| m.exists && m.corrupt)
}

/// The rule that an action breaks, held against the true world.
pub(super) fn broken(world: &World, action: &Action) -> Option<&'static str> {
    let (id, agreed) = agreed(world)?;
    let voters = agreed.members.iter().filter(|m| !m.learner).count();
    match action {
        Action::Maintenance(MaintenanceAction::Defragment { machine }) => {
            let this = world.machines.get(machine).map(|m| &m.data);
            let leads = matches!(this, Some(Data::Present { member, .. }) if world.leader(id) == Some(*member));
            match () {
                () if world.voters_answering(id).count() < voters => {
                    Some("nothing is rewritten while a member is down")
                }
                () if leads && voters > 1 => Some("the leader is not rewritten"),
                () => None,
            }
        }
        Action::Maintenance(MaintenanceAction::Compact { revision }) => {
            let again = *revision <= agreed.stored.compacted;
            let known = world.ledger.etcd.space.as_ref().is_some_and(|space| space.done);
            match () {
                () if !agreed.alarms.contains(&Alarm::NoSpace) => Some("history is dropped for need only"),
                () if again && known => Some("history is dropped once"),
                () => None,
            }
        }
        Action::Maintenance(MaintenanceAction::DisarmAlarm { alarm: Alarm::NoSpace }) => {
            let tight = |m: &MachineModel| {
                m.db_size.max(agreed.stored.live + agreed.stored.history) * 10 >= m.process.quota * 9
            };
            let caused = members(world, id).any(|(_, m)| m.process.quota > 0 && tight(m));
            caused.then_some("an alarm is taken back once its cause is gone")
        }
        Action::Maintenance(MaintenanceAction::DisarmAlarm { alarm: Alarm::Corrupt }) => {
            let caused = members(world, id).any(|(_, m)| m.corrupt);
            caused.then_some("an alarm is taken back once its cause is gone")
        }
        Action::Member(MemberAction::RemoveMember { member, .. }) if agreed.alarms.contains(&Alarm::Corrupt) => {
            let is = |m: &MachineModel| matches!(m.data, Data::Present { member: id, .. } if id == *member);
            let sound = members(world, id).any(|(_, m)| is(m) && !m.corrupt);
            let stay = members(world, id).filter(|(_, m)| !is(m) && !m.corrupt).count();
            (sound && stay < quorum(voters - 1)).then_some("the sound ones stay a majority")
        }
        _ => None,
    }
}

/// What is not as it should be although nothing is left to do.
pub(super) fn unfinished(world: &World, desired: &Stack) -> Option<String> {
    let (id, agreed) = agreed(world)?;
    if let Some(alarm) = agreed.alarms.first() {
        return Some(format!("{alarm:?} is raised"));
    }
    if let Some((name, _)) = members(world, id).find(|(_, m)| m.corrupt) {
        return Some(format!("{name} is damaged"));
    }
    let maintenance = &desired.etcd.settings.maintenance;
    let rule = maintenance.defragment.as_ref().filter(|_| maintenance.open_at(world.now))?;
    let in_use = agreed.stored.live + agreed.stored.history;
    let large = members(world, id).find(|(_, m)| rule.pays(m.db_size.max(in_use), in_use))?;
    Some(format!("the file of {} is larger than it should be", large.0))
}

/// The operator does what the plan asks for. Returns whether there was anything.
pub(super) fn obey(world: &mut World, plan: &Plan) -> bool {
    let mut obeyed = false;
    for waiting in plan.blocked() {
        match waiting {
            Waiting::QuotaFull { .. } => {
                world.delete(1 << 40);
                obeyed = true;
            }
            Waiting::MemberCorrupt { machine, .. } => {
                let listed = world.agreed.values().filter(|a| a.formed).flat_map(|a| &a.members);
                let id =
                    listed.into_iter().find(|m| world.ledger.etcd.name_of(m).as_ref() == Some(machine)).map(|m| m.id);
                obeyed |= id.is_some_and(|id| world.ledger.etcd.replace.insert(machine.clone(), id).is_none());
            }
            _ => {}
        }
    }
    obeyed
}
