//! One member's facts → short answers that the planner asks for.

use super::etcd::ClusterId;
use super::{Agent, AgentReport, Data, MemberObserved};

impl MemberObserved {
    /// The report of the agent, when there is one of this fleet.
    pub fn report(&self) -> Option<&AgentReport> {
        match self.agent.seen() {
            Some(Agent::Claimed(report)) => Some(report),
            Some(Agent::Unclaimed) | None => None,
        }
    }

    /// The cluster whose data is on the machine's disk.
    pub fn cluster_on_disk(&self) -> Option<ClusterId> {
        match self.report()?.etcd.data {
            Data::Present { cluster, .. } => Some(cluster),
            Data::Empty | Data::Unreadable { .. } => None,
        }
    }
}
