//! Files with and without balancers, and a life → what goes wrong with instances, and the rule that a step breaks.

use raftsman_core::action::{Action, BalancerAction, Changes, PostgresAction};
use raftsman_core::desired::{Behind, Stack};
use raftsman_core::model::{BalancerModel, MachineModel, VrrpState, World};
use raftsman_core::observed::{Observed, ServerState};
use raftsman_core::spec::Name;

use crate::dice::Dice;
use crate::fixtures;

const TWO: &str = "instances: [{ name: front-1, address: 127.0.42.101 }, { name: front-2, address: 127.0.42.102 }]";
const ONE: &str = "instances: [{ name: front-1, address: 127.0.42.101 }]";
const WITH_ADDRESS: &str = "instances: [{ name: front-1, address: 10.78.0.101 }, { name: front-2, address: 10.78.0.102 }], \
                            virtual_address: 10.78.0.100";

/// Clusters of this computer behind balancers on machines of their own, beside members, and behind none.
pub(super) fn on_this_computer(members: usize) -> Vec<Stack> {
    let behind = |further: &[&str], front: Option<&str>| fixtures::behind(&[], members, further, front);
    vec![
        behind(&[], Some(TWO)),
        behind(&["quota: 4GiB"], Some(TWO)),
        behind(&[], Some(ONE)),
        behind(&["log_level: warn"], Some("instances: members, port: 12379")),
        behind(&[], None),
    ]
}

/// Clusters on machines, whose balancers share an address or have none.
pub(super) fn on_machines() -> Vec<Stack> {
    let machines = ["provider: incus", "image: a", "subnet: 10.78.0.0/24", "incus: { network: raft, pool: default }"];
    let behind = |members, front| fixtures::behind(&machines, members, &[], Some(front));
    vec![
        behind(3, WITH_ADDRESS),
        behind(5, WITH_ADDRESS),
        behind(3, "instances: members, virtual_address: 10.78.0.100"),
        behind(4, "instances: members, port: 12379"),
    ]
}

/// Something goes wrong with an instance; whether there was one.
pub(super) fn happens(dice: &mut Dice, machine: &mut MachineModel) -> bool {
    let BalancerModel { running, installed, backs_off, address_backs_off, vrrp, .. } = &mut machine.balancer;
    match (dice.below(5), vrrp) {
        // It is killed: its agent starts it again.
        (0 | 1, _) if running.is_some() => *backs_off = true,
        (2, _) if machine.exists => *installed = false,
        // It does not hear the holder for a while, and takes the address as well.
        (3, Some(vrrp)) => vrrp.state = VrrpState::Master,
        // keepalived alone is killed.
        (4, Some(_)) => *address_backs_off = true,
        _ => return false,
    }
    true
}

/// All that is needed is installed again.
pub(super) fn clear(world: &mut World) {
    world.machines.values_mut().for_each(|machine| machine.balancer.installed = true);
}

/// What clients connect through, and what they are connected to, are not changed in one wave.
pub(super) fn mixed(actions: &[Action]) -> bool {
    let balancing = |action: &&Action| action.class().changes == Changes::Balancing;
    let count = actions.iter().filter(balancing).count();
    count > 0 && count < actions.len()
}

/// The rule that this step breaks, judged before it is done.
pub(super) fn broken(desired: &Stack, world: &World, observed: &Observed, action: &Action) -> Option<&'static str> {
    if let Action::Balancer(BalancerAction::DrainMember { machine, member }) = action {
        let balancer = &world.machines.get(machine)?.balancer;
        let (_, members) = balancer.running.as_ref()?;
        let others = members.iter().filter(|name| *name != member);
        if others.clone().all(|name| balancer.draining.contains(name)) {
            return Some("a balancer is not drained to nothing");
        }
    }
    if let Action::Balancer(BalancerAction::ConfigureBalancer { members, .. }) = action {
        let leads = |(_, machine): &(&Name, &MachineModel)| machine.exists && machine.postgres.is_primary();
        let primary = world.machines.iter().find(leads).map(|(name, _)| name);
        let in_front = desired.instance(action.machine()?).is_some_and(|(it, _)| it.behind != Behind::Members);
        if in_front && primary.is_some_and(|primary| !members.contains(primary)) {
            return Some("a balancer of PostgreSQL leads to the primary");
        }
    }
    if let Action::Postgres(PostgresAction::Switchover { to, .. }) = action {
        let running = desired.instances().filter(|(balancer, _)| balancer.behind != Behind::Members);
        let running = running.filter(|(_, instance)| observed.report(&instance.name).is_some());
        let running = running.filter_map(|(_, instance)| {
            let balancer = &world.machines.get(&instance.name)?.balancer;
            balancer.running.as_ref().filter(|_| !balancer.backs_off)
        });
        if running.into_iter().any(|(_, nodes)| !nodes.contains(to)) {
            return Some("balancers lead to the next primary");
        }
    }
    let stops = action.machine().filter(|_| action.disruptive())?;
    let not_drained = |machine: &Name| {
        observed.machine(machine)?;
        let seen = observed.report(machine)?.balancer.as_ref().filter(|seen| seen.haproxy.runs())?;
        let server = seen.facts.servers.get(stops)?;
        Some(server.state == ServerState::Up && seen.facts.can_drain(stops))
    };
    let gets_more = desired.instances().any(|(_, instance)| not_drained(&instance.name) == Some(true));
    gets_more.then_some("a member is drained before it stops serving")
}

/// What is not as the file says, once nothing is planned.
pub(super) fn unfinished(desired: &Stack, world: &World) -> Option<String> {
    for (balancer, instance) in desired.instances() {
        let Some(BalancerModel { running, running_address, draining, certificate, .. }) =
            world.machines.get(&instance.name).filter(|machine| machine.exists).map(|machine| &machine.balancer)
        else {
            return Some(format!("{} does not exist", instance.name));
        };
        let certificate = certificate.as_ref().map(|certificate| certificate.fingerprint.as_str());
        let servers = desired.servers(balancer, &world.ledger);
        let file = desired.haproxy((balancer, instance), &servers, certificate, &world.ledger);
        if running.as_ref().map(|(running, _)| running) != file.as_ref().map(|file| &file.digest) {
            return Some(format!("{} does not run with the file's configuration", instance.name));
        }
        if *running_address != instance.keepalived.as_ref().map(|file| file.digest.clone()) {
            return Some(format!("{} does not share the file's virtual address", instance.name));
        }
        if !draining.is_empty() {
            return Some(format!("{} still drains {draining:?}", instance.name));
        }
    }
    for balancer in desired.balancers.iter().filter(|balancer| balancer.virtual_address.is_some()) {
        let machines = balancer.instances.iter().filter_map(|instance| world.machines.get(&instance.name));
        let states = machines.filter_map(|machine| machine.balancer.vrrp).map(|vrrp| vrrp.state);
        let holders = states.filter(|state| *state == VrrpState::Master).count();
        if holders != 1 {
            return Some(format!("{holders} instances of {} have its virtual address", balancer.name));
        }
    }
    // A machine that was made for a file before the cluster formed, and that a later file does not have, is not known.
    let known = |name: &Name| desired.machine(name).is_some() || world.ledger.etcd.members.contains_key(name);
    let runs = |(name, machine): (&Name, &MachineModel)| {
        (machine.exists && known(name) && machine.balancer.running.is_some() && desired.instance(name).is_none())
            .then(|| format!("{name} still runs a balancer"))
    };
    let left = |(name, machine): (&Name, &MachineModel)| {
        (machine.exists && world.ledger.machines.instances.contains_key(name) && desired.machine(name).is_none())
            .then(|| format!("{name} is still there"))
    };
    world.machines.iter().find_map(runs).or_else(|| world.machines.iter().find_map(left))
}
