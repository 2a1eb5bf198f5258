//! What was observed → facts with their age, and what follows from them.

mod agent;
mod balancer;
mod etcd;
mod fact;
mod maintenance;
mod postgres;
mod preflight;
mod trust;
mod users;
mod view;
mod zones;

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use agent::{
    Agent, AgentProgram, AgentReport, BackupState, CertificateFacts, Data, Delivery, Disk, EtcdOnMachine,
    FailedUpgrade, LogEnd, PortTaken, Purpose, Service, ServiceState,
};
pub use balancer::{BalancerFacts, BalancerOnMachine, PackagedProgram, ServerFacts, ServerState, StatError};
pub use etcd::{
    ANONYMOUS, AccessProbe, Alarm, ClusterId, EtcdFacts, EtcdObserved, ListedMember, MemberId, MemberObserved,
    ProbeOutcome, Problem, Root,
};
pub use fact::Fact;
pub use maintenance::{Agreement, FilledPrefix, Filling, Hash, Hashes, Maintenance, PrefixCounter, Sampled, size};
pub use postgres::{
    Catalog, CatalogDatabase, CatalogRole, Copies, EtcdLogins, NodeFacts, NodePurpose, NodeRole, NodeState,
    PatroniError, PatroniFile, PatroniKeys, PendingSetting, PgData, PostgresObserved, PostgresOnMachine, PostgresView,
    RoleAttribute, SyncKey, SystemId, TimelineEnd, Unsettled, elements,
};
pub use preflight::{Concern, Measured, Measurement, Preflight, Worst, judge, recommend, time};
pub use trust::{AuthorityRecord, HandshakeResult, Handshakes, Origin, Trust, TrustDomain};
pub use users::{Access, Granted, Password, ROOT, Role, User};
pub use view::{Tolerance, View, quorum};
pub use zones::Zones;

use crate::desired::Stack;
pub use crate::ledger::{
    Adopted, EtcdLedger, LearnerRecord, Ledger, MachineLedger, Mode, PostgresLedger, RebuildError, Recovery,
    Restoration, SnapshotRecord, SnapshotSource, SpaceRecord, SwitchoverRecord, SyncRecord,
};
use crate::spec::{Name, Shape};

/// All that was seen of one stack at one moment: its machines, and each service on them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// What the state remembers: what no observation can tell.
    pub ledger: Ledger,
    /// Every machine, bottom up: those of the file, and those that are to go, whatever runs on them.
    pub machines: BTreeMap<Name, MachineObserved>,
    /// etcd, as its members answer.
    pub etcd: EtcdObserved,
    /// The PostgreSQL clusters on it, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub postgres: BTreeMap<Name, PostgresObserved>,
}

/// What was seen of one machine, whatever runs on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineObserved {
    /// The provider's report of it.
    pub machine: Fact<Machine>,
    /// The agent's report of it, with what is installed, configured and running there.
    pub agent: Fact<Agent>,
}

impl Observed {
    /// Where nothing was made yet: none of the cluster's machines exists, and no member answers.
    pub fn nothing(desired: &Stack, at: Timestamp) -> Self {
        let absent = || MachineObserved { machine: Fact::Absent { at }, agent: Fact::Absent { at } };
        let silent = |name: &Name| (name.clone(), MemberObserved { etcd: Fact::Absent { at }, problem: None });
        let members = desired.etcd.members.iter().map(|member| silent(&member.name)).collect();
        let machines = desired.machines.keys().map(|name| (name.clone(), absent())).collect();
        let unread = |name: &Name| (name.clone(), PostgresObserved::of_keys(Fact::Absent { at }));
        let postgres = desired.postgres.iter().map(|cluster| unread(&cluster.name)).collect();
        let etcd = EtcdObserved { members, ..EtcdObserved::default() };
        Self { ledger: Ledger::default(), machines, etcd, postgres }
    }

    /// The machines of members, and of former ones.
    pub fn member_machines(&self) -> impl Iterator<Item = (&Name, &MachineObserved)> {
        self.machines.iter().filter(|(name, _)| self.etcd.members.contains_key(*name))
    }

    /// The time of the observation.
    pub fn at(&self) -> Timestamp {
        let machines = self.machines.values().map(|seen| seen.machine.at().max(seen.agent.at()));
        let members = self.etcd.members.values().map(|member| member.etcd.at());
        machines.chain(members).max().unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// The provider's report of this machine, when there is one.
    pub fn machine(&self, name: &Name) -> Option<&Machine> {
        self.machines.get(name)?.machine.seen()
    }

    /// The report of this machine's agent, when it is one of this fleet.
    pub fn report(&self, machine: &Name) -> Option<&AgentReport> {
        self.machines.get(machine)?.report()
    }

    /// The reports of all agents of this fleet that answered.
    pub fn reports(&self) -> impl Iterator<Item = (&Name, &AgentReport)> {
        self.machines.iter().filter_map(|(name, seen)| Some((name, seen.report()?)))
    }

    /// The answer of etcd at this member's client address, when there is one.
    pub fn answer(&self, member: &Name) -> Option<&EtcdFacts> {
        self.etcd.members.get(member)?.etcd.seen()
    }

    /// The answers of all members that gave one.
    pub fn answers(&self) -> impl Iterator<Item = (&Name, &EtcdFacts)> {
        self.etcd.members.iter().filter_map(|(name, member)| Some((name, member.etcd.seen()?)))
    }
}

impl MachineObserved {
    /// The report of the agent, when it is one of this fleet.
    pub fn report(&self) -> Option<&AgentReport> {
        match self.agent.seen() {
            Some(Agent::Claimed(report)) => Some(report),
            Some(Agent::Unclaimed) | None => None,
        }
    }
}

/// The provider's report of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Whether it runs.
    pub power: Power,
    /// Where it is reached.
    pub address: IpAddr,
    /// It belongs to an adopted cluster: raftsman does not change it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// What it is made of, where that is written on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// The zone that it is in, where its provider reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Name>,
}

/// Whether a machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Power {
    /// It runs.
    Running,
    /// It exists and does not run.
    Stopped,
}
