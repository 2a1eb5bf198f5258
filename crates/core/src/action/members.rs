//! All that may be done to the list of members and to leadership, and what each means for safety.

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Company, Subject};
use crate::observed::{ClusterId, MemberId};
use crate::spec::{EtcdVersion, Name};

/// One change of members or of leadership.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum MemberAction {
    /// Add a member as a learner: it gets all data before it has a vote.
    AddLearner {
        /// Its machine.
        machine: Name,
        /// Where other members will reach it.
        peer_url: String,
    },
    /// Promote a learner that has caught up.
    PromoteMember {
        /// Its machine.
        machine: Name,
        /// Which.
        member: MemberId,
    },
    /// Remove a member from the cluster.
    RemoveMember {
        /// Its name, or where other members would reach it when it never had one.
        name: String,
        /// Which.
        member: MemberId,
    },
    /// Tell the cluster where a member is reached from now on, and restart it there.
    UpdateMember {
        /// Its machine.
        machine: Name,
        /// Which.
        member: MemberId,
        /// Where other members reach it from now on.
        peer_url: String,
        /// Which version.
        version: EtcdVersion,
        /// The cluster that its data must belong to.
        cluster: ClusterId,
    },
    /// Transfer leadership.
    MoveLeader {
        /// The machine of the new leader.
        machine: Name,
        /// The new leader.
        member: MemberId,
    },
}

impl MemberAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            Self::AddLearner { .. } | Self::PromoteMember { .. } => {
                Class::of(Changes::Membership).beside(Company::Alone)
            }
            // A removed member id never returns.
            Self::RemoveMember { .. } => Class::of(Changes::Membership).irreversible().beside(Company::Alone),
            Self::UpdateMember { .. } => Class::of(Changes::Membership).takes_member(),
            Self::MoveLeader { .. } => Class::of(Changes::Leadership).beside(Company::Alone),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::RemoveMember { name, .. } => Subject::Named(name),
            Self::AddLearner { machine, .. }
            | Self::PromoteMember { machine, .. }
            | Self::UpdateMember { machine, .. }
            | Self::MoveLeader { machine, .. } => Subject::Machine(machine),
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::AddLearner { .. } => "add learner",
            Self::PromoteMember { .. } => "promote",
            Self::RemoveMember { .. } => "remove member",
            Self::UpdateMember { .. } => "move member",
            Self::MoveLeader { .. } => "move leader to",
        }
    }
}
