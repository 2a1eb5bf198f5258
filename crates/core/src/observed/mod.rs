//! What was observed → facts with their age, and what follows from them.

mod agent;
mod balancer;
mod etcd;
mod fact;
mod maintenance;
mod member;
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
pub use balancer::{BalancerFacts, ServerFacts, ServerState, StatError};
pub use etcd::{
    ANONYMOUS, AccessProbe, Alarm, ClusterId, EtcdFacts, ListedMember, MemberId, ProbeOutcome, Problem, Root,
};
pub use fact::Fact;
pub use maintenance::{Agreement, FilledPrefix, Filling, Hash, Hashes, Maintenance, PrefixCounter, Sampled, size};
pub use preflight::{Concern, Measured, Measurement, Preflight, Worst, judge, recommend, time};
pub use trust::{AuthorityRecord, HandshakeResult, Handshakes, Origin, Trust, TrustDomain};
pub use users::{Access, Granted, Password, ROOT, Role, User};
pub use view::{Tolerance, View, quorum};
pub use zones::Zones;

pub use crate::ledger::{
    Adopted, LearnerRecord, Ledger, Mode, RebuildError, Recovery, Restoration, SnapshotRecord, SnapshotSource,
    SpaceRecord,
};
use crate::spec::{Name, Shape};

/// All that was seen of one cluster at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// What the state remembers: what no observation can tell.
    pub ledger: Ledger,
    /// Every member's machine, bottom up: those of the file, and those that are to go.
    pub members: BTreeMap<Name, MemberObserved>,
    /// What was measured because of an alarm.
    #[serde(default)]
    pub maintenance: Maintenance,
    /// The authorities that the file brings, as they are found where it says.
    #[serde(default)]
    pub brought: BTreeMap<TrustDomain, AuthorityRecord>,
    /// Which certificates each member accepts. Tested while an authority changes, where a phase depends on it.
    #[serde(default)]
    pub handshakes: BTreeMap<Name, Handshakes>,
}

impl Observed {
    /// The time of the observation.
    pub fn at(&self) -> Timestamp {
        let at = |m: &MemberObserved| m.machine.at().max(m.agent.at()).max(m.etcd.at());
        self.members.values().map(at).max().unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// What was seen of one member: its machine, the agent there, and the etcd that answers at its address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberObserved {
    /// The provider's report of the machine.
    pub machine: Fact<Machine>,
    /// The agent's report of its machine.
    pub agent: Fact<Agent>,
    /// The answer of etcd itself at the member's client address.
    pub etcd: Fact<EtcdFacts>,
    /// Why etcd could not be asked, where something listens there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
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
