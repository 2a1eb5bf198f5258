//! A change of members or of leadership → what it costs, or why it must not be done.

use super::{Case, Cost, Refusal, corrupt, otherwise};
use crate::action::MemberAction;
use crate::observed::{Agreement, ListedMember, MemberId, Tolerance};
use crate::plan::Pause;
use crate::plan::situation::{may_lead, trusted_target};
use crate::spec::Name;

pub(super) fn judge(case: &Case<'_>, action: &MemberAction) -> Result<Cost, Refusal> {
    let membership = Membership::of(case)?;
    match action {
        MemberAction::AddLearner { machine, .. } => membership.add_learner(machine),
        MemberAction::PromoteMember { member, .. } => membership.promote(*member),
        MemberAction::RemoveMember { member, .. } => membership.remove(*member),
        MemberAction::UpdateMember { machine, member, version, .. } => {
            membership.sound_unless(false)?;
            membership.entry(*member)?;
            case.may_run(machine, *version)?;
            case.restart(machine)
        }
        MemberAction::MoveLeader { machine, member } => membership.move_leader(machine, *member),
    }
}

/// A majority's list of members, for changes of it: one at a time, on a cluster whose other voters are healthy.
struct Membership<'a> {
    case: &'a Case<'a>,
    list: &'a [ListedMember],
}

impl<'a> Membership<'a> {
    fn of(case: &'a Case<'a>) -> Result<Self, Refusal> {
        let list = case.view.listed.filter(|_| case.view.has_quorum()).ok_or(Refusal::NoQuorum)?;
        Ok(Self { case, list })
    }

    fn entry(&self, id: MemberId) -> Result<&'a ListedMember, Refusal> {
        self.list.iter().find(|m| m.id == id).ok_or(Refusal::NotSeen("the member in the cluster's list"))
    }

    fn healthy(&self, id: MemberId) -> bool {
        let view = self.case.view;
        view.healthy.iter().any(|n| view.answering.get(n).is_some_and(|e| e.member == id))
    }

    fn voters_healthy_beside(&self, beside: Option<MemberId>) -> bool {
        let voters = self.list.iter().filter(|m| !m.learner);
        voters.into_iter().all(|m| Some(m.id) == beside || self.healthy(m.id))
    }

    /// While etcd says that data is corrupt, only what repairs it is done.
    fn sound_unless(&self, repairs: bool) -> Result<(), Refusal> {
        if self.case.view.corrupt() && !repairs { Err(corrupt()) } else { Ok(()) }
    }

    fn add_learner(&self, machine: &Name) -> Result<Cost, Refusal> {
        self.sound_unless(false)?;
        if self.list.iter().any(|m| m.learner) {
            return Err(otherwise("another learner is catching up"));
        }
        if !self.voters_healthy_beside(None) {
            return Err(self.case.costs_quorum());
        }
        self.case.no_member(machine).map(|()| self.case.unharmed)
    }

    fn promote(&self, member: MemberId) -> Result<Cost, Refusal> {
        self.sound_unless(false)?;
        if !self.entry(member)?.learner {
            return Err(otherwise("it has a vote already"));
        }
        if !self.voters_healthy_beside(None) {
            return Err(self.case.costs_quorum());
        }
        let view = self.case.view;
        let after = Tolerance::of(view.healthy.len() + 1, view.voters + 1);
        Ok(Cost { during: after, ..self.case.unharmed })
    }

    fn remove(&self, member: MemberId) -> Result<Cost, Refusal> {
        let (observed, view) = (self.case.observed, self.case.view);
        // It is known to differ from a majority, or without it all agree.
        let differs = |name: &Name| matches!(&observed.agreement(view), Agreement::Differ(them) if them.contains(name));
        let name = self.list.iter().find(|m| m.id == member).and_then(|m| observed.ledger.etcd.name_of(m));
        let damaged = name.as_ref().is_some_and(|name| differs(name) || observed.rest_agrees(view, name));
        self.sound_unless(damaged)?;
        if self.entry(member)?.learner {
            return Ok(self.case.unharmed);
        }
        let was_healthy = self.healthy(member);
        let during = Tolerance::of(view.healthy.len() - usize::from(was_healthy), view.voters - 1);
        let others_ill = was_healthy && !self.voters_healthy_beside(Some(member));
        if during == Tolerance::NoQuorum || view.voters == 1 || others_ill {
            return Err(self.case.costs_quorum());
        }
        let mut stay = observed.voters(view).unwrap_or_default();
        stay.retain(|other| Some(other) != name.as_ref());
        if !damaged && observed.etcd.maintenance.hashes.as_ref().is_some_and(|hashes| hashes.conflict(&stay)) {
            return Err(otherwise("the members that stay differ in their data"));
        }
        let leader = view.leader.and_then(|name| view.answering.get(name)).map(|e| e.member);
        if leader.is_none_or(|leader| leader == member) {
            return Err(otherwise("it is the leader, or there is none: leadership has to be transferred first"));
        }
        Ok(Cost { during, ..self.case.unharmed })
    }

    fn move_leader(&self, machine: &Name, member: MemberId) -> Result<Cost, Refusal> {
        let (observed, view) = (self.case.observed, self.case.view);
        // Leadership is transferred from a member that differs to one of the majority.
        self.sound_unless(trusted_target(view, &observed.agreement(view), machine))?;
        if !self.healthy(member) || self.entry(member)?.learner {
            return Err(Refusal::NotSeen("a healthy member to transfer leadership to"));
        }
        let target = observed.ledger.etcd.name_of(self.entry(member)?);
        if target.is_some_and(|name| !may_lead(observed, view, &name)) {
            return Err(otherwise("others could not follow it while the peers CA changes"));
        }
        Ok(Cost { pause: Pause::LEADER_MOVED, ..self.case.unharmed })
    }
}
