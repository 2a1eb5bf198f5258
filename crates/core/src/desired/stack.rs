//! Services and their machines → what is planned together, under one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::addresses::Spot;
use super::machines::Overrides;
use super::{
    AGENT_PORT, Agents, Balancer, Behind, Config, Etcd, Instance, LeafProfile, Machine, Postgres, Unplaced, etcd,
    machines,
};
use crate::observed::Ledger;
use crate::render;
use crate::render::nftables::{self, BalancerFirewall, Firewall, Front, NodeFirewall};
use crate::spec::{Machines, Name};

/// An etcd cluster, what stands on it and what stands in front of it. What one of its services needs of another is decided on one
/// observation of all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    /// Its name: that of its etcd cluster. Its lock and its ledger have it.
    pub name: Name,
    /// Which clients its agents accept, and the CA that signs for them.
    pub agents: Agents,
    /// The machines that its members, its nodes and the instances of its balancers run on, by name: also those whose
    /// address is still to be assigned, and which no member, node or instance is described for yet.
    pub machines: BTreeMap<Name, Machine>,
    /// The etcd cluster.
    pub etcd: Etcd,
    /// The PostgreSQL clusters that stand on it, in the order of the file.
    pub postgres: Vec<Postgres>,
    /// What stands in front of it, in the order of the file.
    pub balancers: Vec<Balancer>,
    /// What describes the rest of it, once the provider has assigned the addresses that are not known yet; nothing
    /// where all are known.
    pub unplaced: Option<Arc<Unplaced>>,
}

impl Stack {
    /// This etcd cluster alone.
    pub(super) fn new(name: &Name, etcd: Etcd, machines: BTreeMap<Name, Machine>) -> Self {
        let (name, agents) = (name.clone(), Agents::default());
        Self { name, agents, machines, etcd, postgres: Vec::new(), balancers: Vec::new(), unplaced: None }
    }

    /// The machine of this name.
    pub fn machine(&self, name: &Name) -> Option<&Machine> {
        self.machines.get(name)
    }

    /// Clients of a balancer check the certificate of the member, or of the node, against the balancer's name and addresses.
    pub(super) fn stand_behind(
        &mut self,
        balancer: Balancer,
        own: &[Spot],
        fleet: &Arc<Machines>,
        zones: Option<&BTreeMap<Name, Name>>,
    ) {
        self.machines.extend(machines::resolve(fleet, &Overrides::default(), own, zones));
        let servers: Vec<&mut LeafProfile> = match &balancer.behind {
            Behind::Members => self.etcd.members.iter_mut().map(|member| &mut member.server).collect(),
            Behind::Nodes(name) => {
                let cluster = self.postgres.iter_mut().find(|cluster| cluster.name == *name);
                cluster.into_iter().flat_map(|cluster| cluster.stand_behind(&balancer)).collect()
            }
        };
        for LeafProfile { names, addresses, .. } in servers {
            names.extend(balancer.names.iter().cloned());
            names.sort();
            names.dedup();
            addresses.extend(balancer.addresses());
            addresses.sort();
            addresses.dedup();
        }
        self.balancers.push(balancer);
    }

    /// Its machines in order: those of members, those of nodes, then those that balancers have to themselves.
    pub fn all_machines(&self) -> impl Iterator<Item = &Name> {
        let members = self.etcd.members.iter().map(|member| &member.name);
        let nodes = self.nodes().map(|(_, node)| &node.name);
        members.chain(nodes).chain(self.own_instances().map(|instance| &instance.name))
    }

    /// The instances of balancers on machines of their own.
    pub fn own_instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances().map(|(_, instance)| instance).filter(|instance| !instance.beside_member)
    }

    /// Where the machine of this name is, once that is known.
    pub fn machine_address(&self, name: &Name) -> Option<IpAddr> {
        self.machine(name)?.address.given()
    }

    /// Every instance of its balancers.
    pub fn instances(&self) -> impl Iterator<Item = (&Balancer, &Instance)> {
        self.balancers.iter().flat_map(|balancer| balancer.instances.iter().map(move |instance| (balancer, instance)))
    }

    /// The instance that runs on this machine.
    pub fn instance(&self, machine: &Name) -> Option<(&Balancer, &Instance)> {
        self.instances().find(|(_, instance)| instance.name == *machine)
    }

    /// The addresses of instances of balancers that check its members' health.
    fn checked_from(&self) -> BTreeSet<IpAddr> {
        let before = self.instances().filter(|(balancer, _)| balancer.behind == Behind::Members);
        before.map(|(_, instance)| instance.address).collect()
    }

    /// The firewall's rules on this machine; nothing where raftsman writes none.
    pub fn firewall(&self, machine: &Name, ledger: &Ledger) -> Option<Config> {
        let Machine { name, firewall, metrics, .. } = self.machine(machine)?;
        let (sources, agent_port, metrics) = (firewall.as_ref()?, AGENT_PORT, *metrics);
        if let Some((cluster, _)) = self.node(name) {
            let nodes = &cluster.neighbours(ledger);
            let balancers = &cluster.balancers;
            let text = nftables::node_rules(&NodeFirewall { sources, agent_port, nodes, balancers, metrics });
            return Some(Config { digest: render::digest(&text), text });
        }
        let front = self.instance(name).map(|(balancer, instance)| balancer.front(instance));
        if let Some(front) = front.as_ref().filter(|_| self.etcd.member(name).is_none()) {
            let text = nftables::balancer_rules(&BalancerFirewall { sources, agent_port, front, metrics });
            return Some(Config { digest: render::digest(&text), text });
        }
        let etcd_metrics = etcd::serves_http_apart(&self.etcd.settings);
        let nodes = self.postgres.iter().flat_map(|cluster| cluster.neighbours(ledger)).collect();
        self.rules(machine, ledger, etcd_metrics, &self.checked_from(), &nodes, front.as_ref())
    }

    /// The rules that the machine boots with for the first time.
    pub fn first_firewall(&self, machine: &Name, ledger: &Ledger) -> Option<Config> {
        self.rules(machine, ledger, false, &BTreeSet::new(), &BTreeSet::new(), None)
    }

    fn rules(
        &self,
        machine: &Name,
        ledger: &Ledger,
        etcd_metrics: bool,
        balancers: &BTreeSet<IpAddr>,
        nodes: &BTreeSet<IpAddr>,
        front: Option<&Front>,
    ) -> Option<Config> {
        let machine = self.machine(machine)?;
        let sources = machine.firewall.as_ref()?;
        let members: Vec<IpAddr> = self.etcd.neighbours(ledger).into_iter().collect();
        let (agent_port, metrics, members) = (AGENT_PORT, machine.metrics, members.as_slice());
        let firewall = Firewall { sources, agent_port, members, metrics, etcd_metrics, balancers, nodes, front };
        let text = nftables::rules(&firewall);
        Some(Config { digest: render::digest(&text), text })
    }
}
