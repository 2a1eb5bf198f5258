//! A step on an instance of a balancer, on the simulated world → what it passes connections to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::effects::Impossible;
use super::{MachineModel, World};
use crate::action::BalancerAction;
use crate::desired::{Behind, Stack};
use crate::observed::{
    BalancerFacts, BalancerOnMachine, CertificateFacts, PackagedProgram, Power, ServerFacts, ServerState, Service,
    ServiceState,
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
    /// What keepalived runs for.
    pub vrrp: Option<Vrrp>,
    /// Members that get no new connections.
    pub draining: BTreeSet<Name>,
    /// HAProxy ended by itself, and is started again.
    pub backs_off: bool,
    /// keepalived ended by itself, beside a HAProxy that runs.
    pub address_backs_off: bool,
    /// The certificate that HAProxy shows to Patroni.
    pub certificate: Option<CertificateFacts>,
}

/// keepalived at one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vrrp {
    /// The virtual address.
    pub address: IpAddr,
    /// The place of the instance in its balancer: the first has the highest priority.
    pub rank: usize,
    /// Whether it has the address.
    pub state: VrrpState,
}

/// Whether an instance has the virtual address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VrrpState {
    /// Another one has it, or none yet.
    Backup,
    /// It has heard of no holder for a while, and takes it next.
    Due,
    /// It has it.
    Master,
}

impl Vrrp {
    /// As the file has it for the instance on this machine.
    fn of(desired: &Stack, machine: &Name, state: VrrpState) -> Option<Self> {
        let (balancer, _) = desired.instance(machine)?;
        let rank = balancer.instances.iter().position(|instance| instance.name == *machine)?;
        Some(Self { address: balancer.virtual_address?, rank, state })
    }
}

impl Default for BalancerModel {
    fn default() -> Self {
        Self {
            installed: true,
            written: None,
            running: None,
            written_address: None,
            running_address: None,
            vrrp: None,
            draining: BTreeSet::new(),
            backs_off: false,
            address_backs_off: false,
            certificate: None,
        }
    }
}

impl BalancerModel {
    /// What an observation shows.
    pub(super) fn of(desired: &Stack, machine: &Name, seen: Option<&BalancerOnMachine>) -> Self {
        let Some(seen) = seen else { return Self::default() };
        let servers: BTreeSet<Name> = seen.facts.servers.keys().cloned().collect();
        let with = |digest: &Option<String>| digest.clone().map(|digest| (digest, servers.clone()));
        let draining = seen.facts.servers.iter().filter(|(_, server)| server.state == ServerState::Draining);
        let state = if seen.has_virtual_address { VrrpState::Master } else { VrrpState::Backup };
        // Which address another file has is not reported.
        let file = desired.instance(machine).and_then(|(_, instance)| instance.keepalived.as_ref());
        let as_wanted = file.is_some_and(|file| seen.keepalived.running_config.as_ref() == Some(&file.digest));
        Self {
            vrrp: Vrrp::of(desired, machine, state).filter(|_| as_wanted),
            installed: seen.haproxy.installed.is_some(),
            written: with(&seen.haproxy.config),
            running: with(&seen.haproxy.running_config),
            written_address: seen.keepalived.config.clone(),
            running_address: seen.keepalived.running_config.clone(),
            draining: draining.map(|(name, _)| name.clone()).collect(),
            backs_off: seen.haproxy.service.state == ServiceState::Backoff,
            address_backs_off: seen.keepalived.service.state == ServiceState::Backoff,
            certificate: seen.certificate.clone(),
        }
    }

    /// An agent starts HAProxy and keepalived again, with what is written.
    pub(super) fn pass_time(&mut self, agent_up: bool) {
        let comes_back = |backs_off: bool| backs_off && agent_up && self.installed;
        let (haproxy, keepalived) = (comes_back(self.backs_off), comes_back(self.address_backs_off));
        if haproxy {
            self.running.clone_from(&self.written);
            self.draining.clear();
            self.backs_off = false;
        }
        if keepalived {
            self.running_address.clone_from(&self.written_address);
            self.address_backs_off = false;
        }
        if haproxy || keepalived {
            // keepalived has ended with HAProxy, and is started with it.
            self.vrrp = self.vrrp.map(|vrrp| Vrrp { state: VrrpState::Backup, ..vrrp });
        }
    }

    /// Both processes have what is written, and the file has keepalived run for this.
    fn take_up(&mut self, wanted: Option<Vrrp>) {
        self.running.clone_from(&self.written);
        self.running_address = self.written_address.clone().filter(|_| wanted.is_some());
        let before = self.vrrp.filter(|_| !self.backs_off);
        let keeps = |vrrp: &Vrrp| before.filter(|before| before.address == vrrp.address).map(|before| before.state);
        self.vrrp = wanted.map(|vrrp| Vrrp { state: keeps(&vrrp).unwrap_or(VrrpState::Backup), ..vrrp });
        self.draining.clear();
        self.backs_off = false;
    }

    /// Whether HAProxy runs, and keepalived with it.
    fn shares_address(&self) -> bool {
        self.running.is_some() && !self.backs_off && self.running_address.is_some() && !self.address_backs_off
    }
}

/// The instances that share an address agree on the one that has it. It stays where it is (`nopreempt`); where no instance
/// has it, the first by priority takes it after a while without messages of a holder.
pub(super) fn elect(machines: &mut BTreeMap<Name, MachineModel>) {
    let mut shared: BTreeMap<IpAddr, Vec<&mut Vrrp>> = BTreeMap::new();
    for machine in machines.values_mut() {
        let on = machine.exists && machine.power == Power::Running;
        let shares = on && machine.balancer.shares_address();
        let Some(vrrp) = &mut machine.balancer.vrrp else { continue };
        match shares {
            true => shared.entry(vrrp.address).or_default().push(vrrp),
            false => vrrp.state = VrrpState::Backup,
        }
    }
    for mut instances in shared.into_values() {
        instances.sort_by_key(|vrrp| (vrrp.state != VrrpState::Master, vrrp.rank));
        let Some((first, others)) = instances.split_first_mut() else { continue };
        first.state = match first.state {
            VrrpState::Backup => VrrpState::Due,
            VrrpState::Due | VrrpState::Master => VrrpState::Master,
        };
        others.iter_mut().for_each(|vrrp| vrrp.state = VrrpState::Backup);
    }
}

pub(super) fn act(world: &mut World, desired: &Stack, action: &BalancerAction) -> Result<(), Impossible> {
    let impossible = |what: &str| Impossible(format!("{}: {what}", action.machine()));
    let addressed = desired.instance(action.machine()).and_then(|(_, instance)| instance.keepalived.as_ref());
    let vrrp = Vrrp::of(desired, action.machine(), VrrpState::Backup);
    let ledger = world.ledger.clone();
    let signed = match action {
        BalancerAction::IssueBalancerCertificate { machine } => Some(world.balancer_certificate(desired, machine)?),
        _ => None,
    };
    let balancer = &mut world.claimed(action.machine())?.balancer;
    match action {
        BalancerAction::IssueBalancerCertificate { .. } => balancer.certificate = signed,
        BalancerAction::ConfigureBalancer { machine, members, certificate, digest } => {
            let of = desired.instance(machine).ok_or_else(|| impossible("no instance is there"))?;
            let has = balancer.certificate.as_ref().map(|certificate| &certificate.fingerprint);
            let file = desired.haproxy(of, members, certificate.as_deref(), &ledger);
            let file = file.filter(|_| certificate.is_none() || has == certificate.as_ref());
            let file = file.ok_or_else(|| impossible("it lacks its certificate"))?;
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
            balancer.take_up(vrrp);
        }
        BalancerAction::StopBalancer { .. } => {
            (balancer.running, balancer.running_address) = (None, None);
            (balancer.backs_off, balancer.address_backs_off) = (false, false);
            balancer.vrrp = None;
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
    /// What the authority of the PostgreSQL cluster signs for an instance in front of it.
    fn balancer_certificate(&self, desired: &Stack, machine: &Name) -> Result<CertificateFacts, Impossible> {
        let none = || Impossible(format!("{machine} is in front of no PostgreSQL"));
        let (balancer, instance) = desired.instance(machine).ok_or_else(none)?;
        let (Behind::Nodes(cluster), Some(profile)) = (&balancer.behind, &instance.probe) else { return Err(none()) };
        let trust = self.ledger.of_postgres(cluster).trust.as_ref();
        let trust = trust.ok_or_else(|| Impossible("there is no authority".to_owned()))?;
        Ok(self.signed(machine, "Balancer", profile, trust, &trust.current))
    }

    /// What an agent reports of the instance on its machine.
    pub(super) fn observe_balancer(&self, desired: &Stack, balancer: &BalancerModel) -> BalancerOnMachine {
        let running = balancer.running.as_ref().filter(|_| !balancer.backs_off);
        let program = |config: Option<&String>, running: Option<&String>, backs_off: bool| PackagedProgram {
            installed: balancer.installed.then(|| "model".to_owned()),
            config: config.cloned(),
            config_text: None,
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
            let state = match self.machines.get(name).filter(|machine| machine.postgres.node.is_some()) {
                Some(node) => match node.postgres.is_primary() && node.postgres.answers() {
                    true => ServerState::Up,
                    false => ServerState::Down,
                },
                None => match self.observe_member(desired, name).etcd.seen() {
                    None => ServerState::Down,
                    Some(etcd) if etcd.read_error.is_some() => ServerState::Down,
                    Some(_) if balancer.draining.contains(name) => ServerState::Draining,
                    Some(_) => ServerState::Up,
                },
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
            keepalived: program(
                balancer.written_address.as_ref(),
                balancer.running_address.as_ref().filter(|_| !balancer.address_backs_off),
                balancer.address_backs_off,
            ),
            facts: BalancerFacts { servers, ..BalancerFacts::default() },
            problem: None,
            certificate: balancer.certificate.clone(),
            has_virtual_address: balancer.shares_address()
                && balancer.vrrp.is_some_and(|vrrp| vrrp.state == VrrpState::Master),
        }
    }
}
