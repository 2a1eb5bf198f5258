//! The simulated world → what an observer would see of it.

use std::collections::{BTreeMap, BTreeSet};

use super::{MachineModel, Stored, World};
use crate::desired::Stack;
use crate::observed::{
    Agent, AgentReport, BalancerOnMachine, ClusterId, Data, EtcdFacts, EtcdObserved, EtcdOnMachine, Fact, LogEnd,
    Machine, MachineObserved, MemberObserved, Observed, PostgresOnMachine, Power, Service, ServiceState,
};
use crate::spec::{AuthMode, Name};
use crate::versions::Line;

impl World {
    /// A look at everything, without faults.
    pub fn observe(&self, desired: &Stack) -> Observed {
        if let Some(watched) = &self.watched {
            return Observed { ledger: self.ledger.clone(), ..watched.clone() };
        }
        let names = desired.etcd.members.iter().map(|m| &m.name).chain(self.ledger.etcd.members.keys());
        let names: BTreeSet<&Name> = names.collect();
        let nodes = self.ledger.postgres.values().flat_map(|cluster| cluster.started.keys());
        let instances = self.ledger.machines.instances.keys();
        let machines = names.iter().copied().chain(desired.machines.keys()).chain(instances).chain(nodes);
        let machines: BTreeSet<&Name> = machines.collect();
        let machines = machines.into_iter();
        let machines = machines.map(|name| (name.clone(), self.observe_machine(desired, name))).collect();
        let members = names.iter().map(|name| ((*name).clone(), self.observe_member(desired, name))).collect();
        let (brought, maintenance) = (self.brought.clone(), self.observe_maintenance(desired));
        let etcd = EtcdObserved { members, maintenance, brought, handshakes: BTreeMap::new() };
        let postgres = self.observe_postgres(desired);
        let mut observed = Observed { ledger: self.ledger.clone(), machines, etcd, postgres };
        observed.etcd.handshakes = self.test_handshakes(desired, &observed);
        observed
    }

    fn observe_machine(&self, desired: &Stack, name: &Name) -> MachineObserved {
        let at = self.now;
        let Some(machine) = self.machines.get(name).filter(|m| m.exists) else {
            return MachineObserved { machine: Fact::Absent { at }, agent: Fact::Absent { at } };
        };
        let agent = if machine.power == Power::Stopped {
            Fact::Absent { at }
        } else if !machine.agent_up {
            Fact::Unreachable { error: "connection refused".to_owned(), since: at }
        } else if machine.claimed {
            let balancer = self.observe_balancer(desired, &machine.balancer);
            let postgres = self.observe_node(desired, name, machine);
            Fact::Seen { value: Agent::Claimed(Box::new(report(name, machine, balancer, postgres))), at }
        } else {
            Fact::Seen { value: Agent::Unclaimed, at }
        };
        let value = Machine {
            power: machine.power,
            address: machine.address,
            foreign: false,
            shape: machine.shape.clone(),
            zone: machine.zone.clone(),
        };
        MachineObserved { machine: Fact::Seen { value, at }, agent }
    }

    pub(super) fn observe_member(&self, desired: &Stack, name: &Name) -> MemberObserved {
        let at = self.now;
        let Some(machine) = self.machines.get(name).filter(|m| m.exists) else {
            return MemberObserved { etcd: Fact::Absent { at }, problem: None };
        };
        let etcd = match machine.cluster() {
            Some(cluster)
                if self.is_heard(machine) && self.is_in_place(name, machine) && self.receives_us(desired, machine) =>
            {
                Fact::Seen { value: self.etcd(desired, machine, cluster), at }
            }
            _ if machine.process.state == ServiceState::Stopped => Fact::Absent { at },
            _ => Fact::Unreachable { error: "connection refused".to_owned(), since: at },
        };
        MemberObserved { etcd, problem: None }
    }

    fn etcd(&self, desired: &Stack, machine: &MachineModel, cluster: ClusterId) -> EtcdFacts {
        let leader = self.leader(cluster);
        let agreed = self.agreed.get(&cluster);
        let member = machine.member().unwrap_or(crate::observed::MemberId(0));
        let learner = agreed.is_some_and(|a| a.members.iter().any(|m| m.id == member && m.learner));
        let in_touch = learner || self.voters_answering(cluster).any(|id| id == member);
        let leader = leader.filter(|_| in_touch);
        let read_error = match leader {
            None => Some("no leader".to_owned()),
            Some(_) => learner.then(|| "rpc not supported for learner".to_owned()),
        };
        let asked = agreed.filter(|_| read_error.is_none());
        let stored = agreed.map_or_else(Stored::new, |a| a.stored);
        let version = machine.process.version.unwrap_or(desired.etcd.version);
        let tells = Line::of(version) >= Line(3, 6);
        EtcdFacts {
            member,
            cluster,
            leader,
            raft_term: 2,
            raft_index: 10,
            revision: stored.revision,
            version,
            storage_version: agreed.and_then(|a| a.line).map(Line::first),
            downgrade: agreed.and_then(|a| a.downgrade).filter(|_| tells).map(Line::first),
            db_size: machine.db_size(stored),
            db_in_use: stored.in_use(),
            quota: Some(machine.process.quota).filter(|quota| *quota > 0),
            learner,
            members: asked.map(|a| a.members.clone()).unwrap_or_default(),
            alarms: agreed.map(|a| a.alarms.clone()).unwrap_or_default(),
            auth: asked.map(|a| a.auth),
            root: agreed.map_or(crate::observed::Root::Unknown, |a| a.root),
            probe: asked.filter(|a| a.auth || desired.etcd.auth == AuthMode::None).map(|a| a.probe.clone()),
            access: asked.filter(|a| a.auth).map(|a| Ok(a.access.clone())),
            settings: BTreeMap::new(),
            read_error,
        }
    }
}

fn report(
    name: &Name,
    machine: &MachineModel,
    balancer: BalancerOnMachine,
    postgres: Option<PostgresOnMachine>,
) -> AgentReport {
    let process = &machine.process;
    let running = process.state == ServiceState::Running;
    AgentReport {
        machine: name.clone(),
        incarnation: machine.incarnation.clone(),
        version: machine.agent_version.clone(),
        generation: 0,
        clock_offset_ms: machine.clock_offset_ms,
        certificate: machine.agent_certificate.clone(),
        disk: machine.disk,
        firewall: machine.firewall.clone(),
        access: machine.access.clone(),
        delivery: machine.delivery.clone(),
        backup_settings: machine.backup_settings.clone(),
        backups: None,
        program: machine.program.clone(),
        balancer: Some(balancer),
        postgres,
        etcd: EtcdOnMachine {
            installed: machine.installed.iter().map(|v| (*v, String::new())).collect::<BTreeMap<_, _>>(),
            config_text: machine.config.as_ref().and_then(|digest| machine.texts.get(digest)).cloned(),
            running_config_text: {
                let digest = process.config.as_ref().filter(|_| running);
                digest.and_then(|digest| machine.texts.get(digest)).cloned()
            },
            config: machine.config.clone(),
            running_config: process.config.clone().filter(|_| running),
            running_version: process.version.filter(|_| running),
            running_trust: if running { process.trust.clone() } else { BTreeMap::new() },
            last_version: machine.last_version,
            certificates: machine.certificates.clone(),
            service: Service {
                state: process.state,
                pid: running.then_some(1),
                since: None,
                restarts: process.restarts,
                last_exit: (process.restarts > 0).then(|| "signal 9".to_owned()),
            },
            data: machine.data.clone(),
            ports_taken: machine.ports_taken.clone(),
            had_data: machine.had_data,
            log: (!running && matches!(machine.data, Data::Present { .. })).then_some(LogEnd {
                term: 2,
                index: 10,
                commit: 10,
                revision: Some(1),
                applied: 10,
            }),
        },
    }
}
