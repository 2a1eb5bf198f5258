//! Files that have machines made otherwise → what must hold when machines are made anew.

use raftsman_core::action::{Action, MachineAction};
use raftsman_core::desired::Stack;
use raftsman_core::model::{MachineModel, World};
use raftsman_core::observed::{Observed, View};
use raftsman_core::spec::{Name, Shape};

/// Other images, other sizes, with and without a disk for the data.
pub(super) const FILES: [&[&str]; 4] = [
    &["image: a", "data_disk: 4GiB"],
    &["image: b", "data_disk: 4GiB", "memory: 4GiB"],
    &["image: b"],
    &["image: c", "vcpus: 2"],
];

/// Whether the file has this machine made otherwise.
pub(super) fn outdated(desired: &Stack, name: &Name, machine: Option<&MachineModel>) -> bool {
    let found = machine.and_then(|machine| machine.shape.as_ref());
    found
        .zip(desired.machine(name).and_then(|wanted| wanted.shape.as_ref()))
        .is_some_and(|(found, wanted)| found.change_to(wanted).is_some())
}

/// The rule that is broken by making a machine anew like this.
pub(super) fn broken(world: &World, observed: &Observed, action: &Action) -> Option<&'static str> {
    let Action::Machine(MachineAction::RebuildMachine { machine }) = action else { return None };
    let found = world.machines.get(machine).and_then(|machine| machine.shape.as_ref());
    if !found.is_some_and(Shape::keeps_data) {
        return Some("data outlives its machine");
    }
    (!others_healthy(observed, machine)).then_some("machines are made anew among healthy members")
}

/// Whether every voter but this one was seen healthy.
pub(super) fn others_healthy(observed: &Observed, machine: &Name) -> bool {
    let view = View::of(observed);
    let others = view.listed.unwrap_or_default().iter().filter(|m| !m.learner);
    let mut others = others.filter_map(|m| observed.ledger.etcd.name_of(m)).filter(|name| name != machine);
    others.all(|name| view.healthy.contains(&name))
}

/// What is not as the file says.
pub(super) fn unfinished(desired: &Stack, world: &World) -> Option<String> {
    let mut machines = desired.etcd.members.iter().map(|member| (&member.name, world.machines.get(&member.name)));
    let old = machines.find(|(name, machine)| outdated(desired, name, *machine))?;
    Some(format!("{} is made otherwise", old.0))
}
