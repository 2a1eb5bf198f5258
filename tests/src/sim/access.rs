//! Files whose clients need no certificate, or have one before the cluster → which clients members accept before auth is on.

use raftsman_core::action::{Action, EtcdAction, MemberAction, RestoreAction};
use raftsman_core::desired::{ClientAccess, Stack};
use raftsman_core::model::{MachineModel, World};
use raftsman_core::observed::{Data, ServiceState};
use raftsman_core::spec::{AuthMode, Authority, Name};

/// Passwords, and a clients' CA that others sign with, too.
pub(super) const FILES: [[&str; 2]; 4] = [
    ["auth: { mode: password }", "quota: 8GiB"],
    ["auth: { mode: password }", "quota: 4GiB"],
    [BROUGHT, "quota: 8GiB"],
    [BROUGHT, "quota: 4GiB"],
];

const BROUGHT: &str = "ca: { clients: { brought: { certificate: first.crt, key: { file: first.key } } } }";

/// Whether a member's process was started with the configuration that accepts clients.
fn accepts_clients(desired: &Stack, world: &World, name: &Name, machine: &MachineModel) -> bool {
    let timers = desired.etcd.timers(&world.ledger).unwrap_or_default();
    let (Some(member), Some(version)) = (desired.etcd.member(name), machine.process.version) else { return false };
    let open = desired.etcd.config(member, version, timers, ClientAccess::Open);
    machine.process.state != ServiceState::Stopped && machine.process.config.as_ref() == Some(&open.digest)
}

/// Whether a client may depend on any member.
pub(super) fn serves_clients(desired: &Stack, world: &World) -> bool {
    world.machines.iter().any(|(name, machine)| {
        let Data::Present { member, cluster } = machine.data else { return false };
        let listed = world.agreed.get(&cluster).is_some_and(|agreed| agreed.members.iter().any(|m| m.id == member));
        listed && accepts_clients(desired, world, name, machine)
    })
}

/// The members that accept clients although auth, which the file wants, is off in their cluster.
pub(super) fn broken(desired: &Stack, world: &World, action: &Action) -> Option<String> {
    let others = desired.etcd.auth == AuthMode::Password || desired.etcd.authorities.clients != Authority::Made;
    if desired.etcd.auth == AuthMode::None || !others {
        return None;
    }
    let started: Vec<&Name> = match action {
        Action::Etcd(EtcdAction::StartEtcd { machine, .. })
        | Action::Etcd(EtcdAction::RestartEtcd { machine, .. })
        | Action::Member(MemberAction::UpdateMember { machine, .. }) => vec![machine],
        Action::Etcd(EtcdAction::RestartTogether { machines, .. }) => machines.keys().collect(),
        Action::Restore(RestoreAction::CompareRestored { machines }) => machines.iter().collect(),
        _ => Vec::new(),
    };
    let open = started.into_iter().find(|name| {
        let Some(machine) = world.machines.get(*name) else { return false };
        let Data::Present { cluster, .. } = machine.data else { return false };
        let secured = world.agreed.get(&cluster).is_some_and(|agreed| agreed.auth);
        !secured && accepts_clients(desired, world, name, machine)
    });
    open.map(|name| format!("{name} after {action:?}"))
}
