//! A step on an instance of a balancer, on the simulated world → what it passes connections to.

use std::collections::{BTreeMap, BTreeSet};

use super::World;
use super::effects::Impossible;
use crate::action::BalancerAction;
use crate::desired::Cluster;
use crate::observed::{
    BalancerFacts, BalancerOnMachine, PackagedProgram, ServerFacts, ServerState, Service, ServiceState,
};
use crate::spec::Name;

/// An instance of a balancer: the ground truth.
#[derive(Debug, Clone, PartialEq)]
pub struct BalancerModel {
    /// Whether its programs are installed.
    pub installed: bool,
    /// HAProxy's configuration file: its digest, and the members in it.
    pub written: Option<(String, BTreeSet<Name>)>,
    /// The same as the running process has it.
    pub running: Option<(String, BTreeSet<Name>)>,
    /// Digest of keepalived's configuration file.
    pub written_address: Option<String>,
    /// The same as the running process has it.
    pub running_address: Option<String>,
    /// Members that get no new connections.
    pub draining: BTreeSet<Name>,
    /// HAProxy ended by itself, and is started again.
    pub backs_off: bool,
}

impl Default for BalancerModel {
    fn default() -> Self {
        Self {
            installed: true,
            written: None,
            running: None,
            written_address: None,
            running_address: None,
            draining: BTreeSet::new(),
            backs_off: false,
        }
    }
}

impl BalancerModel {
    /// What an observation shows.
    pub(super) fn of(seen: Option<&BalancerOnMachine>) -> Self {
        let Some(seen) = seen else { return Self::default() };
        let servers: BTreeSet<Name> = seen.facts.servers.keys().cloned().collect();
        let with = |digest: &Option<String>| digest.clone().map(|digest| (digest, servers.clone()));
        let draining = seen.facts.servers.iter().filter(|(_, server)| server.state == ServerState::Draining);
        Self {
            installed: seen.haproxy.installed.is_some(),
            written: with(&seen.haproxy.config),
            running: with(&seen.haproxy.running_config),
            written_address: seen.keepalived.config.clone(),
            running_address: seen.keepalived.running_config.clone(),
            draining: draining.map(|(name, _)| name.clone()).collect(),
            backs_off: seen.haproxy.service.state == ServiceState::Backoff,
        }
    }

    /// An agent starts HAProxy again, with what is written.
    pub(super) fn pass_time(&mut self, agent_up: bool) {
        if self.backs_off && agent_up && self.installed {
            self.running.clone_from(&self.written);
            self.draining.clear();
            self.backs_off = false;
        }
    }

    /// Both processes have what is written.
    fn take_up(&mut self, addressed: bool) {
        self.running.clone_from(&self.written);
        self.running_address = self.written_address.clone().filter(|_| addressed);
        self.draining.clear();
        self.backs_off = false;
    }
}

pub(super) fn act(world: &mut World, desired: &Cluster, action: &BalancerAction) -> Result<(), Impossible> {
    let impossible = |what: &str| Impossible(format!("{}: {what}", action.machine()));
    let addressed = desired.instance(action.machine()).and_then(|(_, instance)| instance.keepalived.as_ref());
    let ledger = world.ledger.clone();
    let balancer = &mut world.claimed(action.machine())?.balancer;
    match action {
        BalancerAction::ConfigureBalancer { machine, members, digest } => {
            let (front, instance) = desired.instance(machine).ok_or_else(|| impossible("no instance is there"))?;
            let file = front.haproxy(instance, &desired.backends(members, &ledger));
            if file.digest != *digest {
                return Err(impossible("the configuration is not the one that was planned"));
            }
            balancer.written = Some((file.digest, members.iter().cloned().collect()));
            balancer.written_address = addressed.map(|file| file.digest.clone());
        }
        BalancerAction::StartBalancer { .. } | BalancerAction::ReloadBalancer { .. } => {
            if !balancer.installed || balancer.written.is_none() {
                return Err(impossible("HAProxy is not installed, or not configured"));
            }
            balancer.take_up(addressed.is_some());
        }
        BalancerAction::StopBalancer { .. } => {
            (balancer.running, balancer.running_address, balancer.backs_off) = (None, None, false);
        }
        BalancerAction::DrainMember { member, .. } | BalancerAction::AdmitMember { member, .. } => {
            if !balancer.running.as_ref().is_some_and(|(_, members)| members.contains(member)) {
                return Err(impossible("no server of this name"));
            }
            match action {
                BalancerAction::DrainMember { .. } => drop(balancer.draining.insert(member.clone())),
                _ => drop(balancer.draining.remove(member)),
            }
        }
    }
    Ok(())
}

impl World {
    /// What an agent reports of the instance on its machine.
    pub(super) fn observe_balancer(&self, desired: &Cluster, balancer: &BalancerModel) -> BalancerOnMachine {
        let running = balancer.running.as_ref().filter(|_| !balancer.backs_off);
        let program = |config: Option<&String>, running: Option<&String>, backs_off: bool| PackagedProgram {
            installed: balancer.installed.then(|| "model".to_owned()),
            config: config.cloned(),
            running_config: running.cloned(),
            service: Service {
                state: match running {
                    Some(_) => ServiceState::Running,
                    None if backs_off => ServiceState::Backoff,
                    None => ServiceState::Stopped,
                },
                pid: running.map(|_| 1),
                since: None,
                restarts: 0,
                last_exit: None,
            },
            ports_taken: Vec::new(),
        };
        let server = |name: &Name| {
            let state = match self.observe_member(desired, name).etcd.seen() {
                None => ServerState::Down,
                Some(etcd) if etcd.read_error.is_some() => ServerState::Down,
                Some(_) if balancer.draining.contains(name) => ServerState::Draining,
                Some(_) => ServerState::Up,
            };
            (name.clone(), ServerFacts { state, connections: 0 })
        };
        let servers: BTreeMap<Name, ServerFacts> =
            running.iter().flat_map(|(_, members)| members).map(server).collect();
        BalancerOnMachine {
            haproxy: program(
                balancer.written.as_ref().map(|(digest, _)| digest),
                running.map(|(digest, _)| digest),
                balancer.backs_off,
            ),
            keepalived: program(balancer.written_address.as_ref(), balancer.running_address.as_ref(), false),
            facts: BalancerFacts { servers },
            problem: None,
            has_virtual_address: false,
        }
    }
}
