//! A change of members, a learner's progress → what is remembered of it.

#![warn(clippy::wildcard_enum_match_arm)]

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::EtcdLedger;
use crate::action::MemberAction;
use crate::desired::Stack;
use crate::observed::{ListedMember, MemberId, Observed, View};

/// A learner's progress is written down no more often than this.
const PROGRESS: SignedDuration = SignedDuration::from_secs(5);

/// How far a learner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnerRecord {
    /// Which.
    pub member: MemberId,
    /// The last index of its log.
    pub index: u64,
    /// Since when it has made no progress.
    pub since: Timestamp,
}

pub(super) fn ahead(
    ledger: &mut EtcdLedger,
    desired: &Stack,
    observed: &Observed,
    action: &MemberAction,
    now: Timestamp,
) {
    match action {
        MemberAction::AddLearner { machine, peer_url } => {
            ledger.reshaped = true;
            ledger.members.insert(machine.clone(), peer_url.clone());
            ledger.evicted.remove(machine);
        }
        MemberAction::UpdateMember { .. } => ledger.reshaped = true,
        MemberAction::RemoveMember { member, .. } => {
            ledger.reshaped = true;
            let listed = View::of(observed).listed.unwrap_or_default().iter().find(|m| m.id == *member);
            let learner = listed.filter(|m| m.learner).and_then(|m| ledger.name_of(m));
            ledger.evicted.extend(learner.filter(|name| desired.etcd.member(name).is_some()).map(|name| (name, now)));
        }
        // The next observation tells whether it was done.
        MemberAction::PromoteMember { .. } | MemberAction::MoveLeader { .. } => {}
    }
}

impl EtcdLedger {
    /// Records how far the learner is.
    pub(super) fn follow(&mut self, list: &[ListedMember], view: &View<'_>, now: Timestamp) {
        let Some(learner) = list.iter().find(|m| m.learner) else {
            self.learner = None;
            return;
        };
        let index = view.answering.values().find(|e| e.member == learner.id).map_or(0, |e| e.raft_index);
        match &mut self.learner {
            Some(known) if known.member == learner.id => {
                if index > known.index && now.duration_since(known.since) > PROGRESS {
                    *known = LearnerRecord { member: learner.id, index, since: now };
                }
            }
            other => *other = Some(LearnerRecord { member: learner.id, index, since: now }),
        }
    }
}
