//! Files that name no addresses → the rules of addresses that a provider assigns.

use raftsman_core::action::{Action, EtcdAction, MachineAction, StartData};
use raftsman_core::desired::{Stack, address_of};
use raftsman_core::model::World;

use crate::fixtures;

/// Members by their number and by their names, and balancers in front of them.
pub(super) fn files() -> Vec<Vec<Stack>> {
    let counted = |n: usize| fixtures::assigned(&[&format!("members: {n}")], None);
    let named = |names: &[&str]| {
        let list: Vec<String> = names.iter().map(|name| format!("{{ name: {name} }}")).collect();
        fixtures::assigned(&[&format!("members: [{}]", list.join(", "))], None)
    };
    let fronted = |n: usize, front| fixtures::assigned(&[&format!("members: {n}")], front);
    vec![
        vec![counted(3), counted(5), counted(1), counted(4)],
        vec![
            named(&["a", "b", "c"]),
            named(&["a", "b", "d"]),
            named(&["d", "e", "f"]),
            named(&["a", "b", "c", "d", "e"]),
        ],
        vec![
            fronted(3, None),
            fronted(3, Some("instances: 2")),
            fronted(5, Some("instances: 1")),
            fronted(3, Some("instances: members, port: 12379")),
        ],
    ]
}

/// The rule that this action breaks.
pub(super) fn broken(desired: &Stack, world: &World, action: &Action) -> Option<&'static str> {
    match action {
        Action::Machine(MachineAction::CreateMachine { machine }) => {
            let unknown = desired.machine(machine).is_some() && desired.machine_address(machine).is_none();
            unknown.then_some("an address is known before it is used")
        }
        Action::Machine(MachineAction::AssignAddress { machine }) => {
            let held = world.ledger.etcd.members.get(machine).and_then(|url| address_of(url)).is_some();
            let again = held || world.ledger.machines.addresses.contains_key(machine);
            again.then_some("an address is assigned once")
        }
        Action::Etcd(EtcdAction::StartEtcd { data: StartData::Empty, .. }) => {
            let founded = !world.ledger.etcd.founders.is_empty() || world.agreed.values().any(|agreed| agreed.formed);
            (!founded && !desired.is_placed()).then_some("a cluster is founded with all its members")
        }
        _ => None,
    }
}
