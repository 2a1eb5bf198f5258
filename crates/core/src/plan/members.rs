//! Members that should be, members that are → one change at a time: replace, grow, move, shrink.
//!
//! A member joins as a learner and is promoted once it has caught up. What costs fault tolerance comes last: while a
//! member can be added, none is removed.

use std::net::IpAddr;

use jiff::SignedDuration;

use super::report::{Because, Report};
use super::situation::{Ready, may_lead, trusted_target};
use super::{Draft, Reason, Step, WaitKind, Waiting};
use crate::action::{Action, EtcdAction, MachineAction, MemberAction, StartData};
use crate::desired::{self, Member};
use crate::observed::{Data, Fact, ListedMember, MachineObserved, MemberId, Power, ServiceState, quorum};
use crate::spec::Name;

/// A learner may be so many entries behind the leader when it is promoted.
const CLOSE: u64 = 5_000;
/// A learner that was removed again is not added anew before this.
const REST: SignedDuration = SignedDuration::from_mins(10);

/// What a name is to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has a vote.
    Voter(MemberId),
    /// It is a member without a vote.
    Learner(MemberId),
    /// A majority says that it is no member.
    Outside,
    /// No member can be asked.
    Unknown,
}

impl Standing {
    /// Whether it is proven to be no member.
    pub(super) fn outside(self) -> bool {
        self == Self::Outside
    }
}

impl Draft<'_> {
    /// What this name is to the cluster.
    pub(super) fn standing(&self, name: &Name) -> Standing {
        match self.view.listed {
            None => Standing::Unknown,
            Some(_) => match self.entry(name) {
                Some(member) if member.learner => Standing::Learner(member.id),
                Some(member) => Standing::Voter(member.id),
                None => Standing::Outside,
            },
        }
    }

    /// Whether this name is to join a cluster that others make up: known before the survivor of a recovery can be asked.
    pub(super) fn joins(&self, name: &Name) -> bool {
        let ledger = &self.observed.ledger.etcd;
        match self.standing(name) {
            Standing::Outside => true,
            Standing::Unknown => ledger.reshaped && !ledger.started.contains_key(name),
            Standing::Voter(_) | Standing::Learner(_) => false,
        }
    }

    /// The cluster's own entry of this name.
    pub(super) fn entry(&self, name: &Name) -> Option<&ListedMember> {
        let ours = self.desired.etcd.member(name).map(Member::peer_url);
        let named = |m: &&ListedMember| {
            m.name == name.as_str()
                || m.name.is_empty()
                    && (self.observed.ledger.etcd.name_of(m).as_ref() == Some(name)
                        || ours.as_ref().is_some_and(|url| m.peer_urls.contains(url)))
        };
        self.view.listed?.iter().find(named)
    }

    /// Whether an operator, or the file's policy, wants the member of this name replaced.
    pub(super) fn to_be_replaced(&self, name: &Name) -> bool {
        let ledger = &self.observed.ledger;
        let marked = match (ledger.etcd.replace.get(name), self.standing(name)) {
            (Some(marked), Standing::Voter(id) | Standing::Learner(id)) => *marked == id,
            (marked, _) => marked.is_some(),
        };
        marked || self.replaced_in(name) == Some(0)
    }

    /// In how many seconds the file's policy has this member replaced.
    fn replaced_in(&self, name: &Name) -> Option<u64> {
        let (after, since) = (self.desired.etcd.replace_after_ms?, self.observed.ledger.etcd.down_since.get(name)?);
        let left = SignedDuration::from_millis(i64::try_from(after).ok()?) - self.now.duration_since(*since);
        Some(u64::try_from(left.as_millis()).unwrap_or(0).div_ceil(1000))
    }

    /// Whether nothing is under way that a change of members must not run beside.
    fn quiet(&self, about: Option<&Name>) -> bool {
        self.steps.is_empty() && self.view.has_quorum() && self.sound(about)
    }

    /// Machines of which the provider could not be asked.
    fn unknown_machines(&self) -> Vec<Waiting> {
        let unknown = |(name, seen): (&Name, &MachineObserved)| match &seen.machine {
            Fact::Unreachable { error, .. } => {
                Some(Waiting::MachineUnknown { machine: name.clone(), error: error.clone() })
            }
            Fact::Seen { .. } | Fact::Absent { .. } => None,
        };
        self.observed.member_machines().filter_map(unknown).collect()
    }

    /// Voters that are not healthy, other than this one.
    pub(super) fn unhealthy_beside(&self, member: Option<MemberId>) -> Vec<String> {
        let healthy = |id| self.view.healthy.iter().any(|n| self.view.answering.get(n).is_some_and(|e| e.member == id));
        let listed = self.view.listed.unwrap_or_default().iter();
        let down = listed.filter(|m| !m.learner && Some(m.id) != member && !healthy(m.id));
        down.map(|m| self.observed.ledger.etcd.name_of(m).map_or_else(|| m.id.to_string(), |n| n.to_string())).collect()
    }
}

/// Repairs members: a learner that catches up, members that are lost, and members that are down and to be removed
/// anyway.
pub(super) fn repair(draft: &mut Draft<'_>, ready: &[Ready<'_>]) -> Report {
    learners(draft);
    replace(draft);
    let down = draft.unhealthy_beside(None);
    // A member that changes its address may be down because of it: the others still connect to its old one.
    let stray = moved(draft).into_iter().find(|(m, _)| down == [m.name.to_string()]);
    if let Some((member, id)) = stray.filter(|_| draft.steps.is_empty()) {
        relocate(draft, ready, member, id);
    }
    // Before all addresses are known, the file's members are not all described.
    let surplus = if draft.desired.is_placed() { surplus(draft) } else { Vec::new() };
    let dead: Vec<_> = surplus.into_iter().filter(|(name, _)| down.contains(name)).collect();
    let others = down.iter().filter(|name| !dead.iter().any(|(dead, _)| dead == *name)).count();
    if others == 0 && draft.steps.is_empty() {
        shrink(draft, &dead);
    }
    Report::Looked
}

fn learners(draft: &mut Draft<'_>) {
    let learners: Vec<ListedMember> =
        draft.view.listed.unwrap_or_default().iter().filter(|m| m.learner).cloned().collect();
    for learner in learners {
        let name = draft.observed.ledger.etcd.name_of(&learner);
        let wanted = name.clone().filter(|n| draft.desired.etcd.member(n).is_some() && !draft.to_be_replaced(n));
        let Some(machine) = wanted else {
            remove(draft, &learner, Reason::NotInFile);
            continue;
        };
        let kind =
            SignedDuration::from_millis(i64::try_from(draft.desired.etcd.learner_patience_ms).unwrap_or(i64::MAX));
        let record = draft.observed.ledger.etcd.learner.filter(|record| record.member == learner.id);
        let index = draft.view.answering.get(&machine).map_or(0, |e| e.raft_index);
        let leader = draft.view.answering.values().map(|e| e.raft_index).max().unwrap_or(0);
        if index > 0 && index.saturating_add(CLOSE) >= leader {
            promote(draft, machine, learner.id);
        } else if record.is_some_and(|r| draft.now.duration_since(r.since) > kind && index <= r.index) {
            remove(draft, &learner, Reason::Stalled);
        } else {
            draft.wait(Waiting::LearnerCatchingUp { machine, index, of: leader });
        }
    }
}

fn promote(draft: &mut Draft<'_>, machine: Name, member: MemberId) {
    let unhealthy = draft.unhealthy_beside(None);
    if !unhealthy.is_empty() {
        let change = format!("promoting `{machine}`");
        draft.wait(Waiting::HealFirst { change, unhealthy });
    } else if draft.quiet(None) {
        draft.steps.push(Step::new(MemberAction::PromoteMember { machine, member }, Reason::CaughtUp));
    }
}

pub(super) fn remove(draft: &mut Draft<'_>, member: &ListedMember, reason: Reason) {
    let name = draft.observed.ledger.etcd.name_of(member);
    if draft.quiet(name.as_ref()) {
        let name = name.map_or_else(|| member.peer_urls.join(","), |n| n.to_string());
        draft.steps.push(Step::new(MemberAction::RemoveMember { name, member: member.id }, reason));
    }
}

/// Removes members that are lost, or that an operator wants replaced, so that new ones can join.
fn replace(draft: &mut Draft<'_>) {
    let lost = std::mem::take(&mut draft.lost);
    let of = draft.observed.ledger.etcd.members.len();
    let for_good: Vec<String> = lost
        .iter()
        .map(|(_, waiting)| waiting)
        .filter(|w| w.kind() == WaitKind::Blocked)
        .map(ToString::to_string)
        .collect();
    // No member can be replaced without a majority, and the members that are lost do not come back.
    if !draft.view.has_quorum() && for_good.len() < of && of - for_good.len() < quorum(of) {
        draft.wait(Waiting::MajorityLost { lost: for_good, of });
        draft.waiting.extend(lost.into_iter().map(|(_, w)| w).filter(|w| w.kind() != WaitKind::Blocked));
        return;
    }
    for (name, waiting) in lost {
        if draft.to_be_replaced(&name) && draft.view.has_quorum() {
            continue;
        }
        match draft.replaced_in(&name) {
            Some(seconds) => draft.wait(Waiting::ReplacedLater { machine: name, seconds }),
            None => draft.wait(waiting),
        }
    }
    let mut marked: Vec<Name> = draft.desired.etcd.members.iter().map(|m| m.name.clone()).collect();
    marked.retain(|name| draft.to_be_replaced(name));
    for name in marked {
        let Standing::Voter(id) = draft.standing(&name) else { continue };
        let Some(entry) = draft.entry(&name).cloned() else { continue };
        let unhealthy = draft.unhealthy_beside(Some(id));
        if !unhealthy.is_empty() && draft.view.healthy.contains(&name) {
            draft.wait(Waiting::HealFirst { change: format!("replacing `{name}`"), unhealthy });
        } else if draft.view.leader == Some(&name) {
            hand_over(draft, &name);
        } else {
            remove(draft, &entry, Reason::Replaced);
        }
    }
}

/// Transfers leadership to the healthy member of the file that is furthest ahead.
pub(super) fn hand_over(draft: &mut Draft<'_>, from: &Name) {
    if !draft.quiet(Some(from)) {
        return;
    }
    let reason = match may_lead(draft.observed, &draft.view, from) {
        true => Reason::LeaderGoes { from: from.clone() },
        false => Reason::LeaderLeftBehind { from: from.clone() },
    };
    match transfer_target(draft, from) {
        Some(action) => draft.steps.push(Step::new(action, reason)),
        None => {
            let others =
                draft.desired.etcd.members.iter().filter(|m| m.name != *from && !draft.to_be_replaced(&m.name));
            let others = others.count();
            draft.wait(Waiting::NoTransferTarget { machine: from.clone(), others });
        }
    }
}

/// Transfers leadership before the leader restarts, where another member can take it. A restart does not depend on it:
/// etcd transfers leadership by itself when it stops, but only after it has closed its clients' connections.
pub(super) fn hand_over_to_restart(draft: &Draft<'_>, from: &Name) -> Option<Step> {
    if draft.view.leader != Some(from) || !draft.quiet(Some(from)) {
        return None;
    }
    Some(Step::new(transfer_target(draft, from)?, Reason::LeaderRestarts { from: from.clone() }))
}

fn transfer_target(draft: &Draft<'_>, from: &Name) -> Option<Action> {
    let agreement = draft.observed.agreement(&draft.view);
    let others = draft.desired.etcd.members.iter().map(|m| &m.name);
    let others = others.filter(|n| *n != from && draft.view.healthy.contains(n) && !draft.to_be_replaced(n));
    let others = others.filter(|n| trusted_target(&draft.view, &agreement, n));
    let others = others.filter(|n| may_lead(draft.observed, &draft.view, n));
    let facts = others.filter_map(|n| draft.view.answering.get(n).map(|e| (n, e)));
    let target = facts.max_by_key(|(name, e)| (e.raft_index, std::cmp::Reverse(*name)));
    target.map(|(name, e)| Action::Member(MemberAction::MoveLeader { machine: name.clone(), member: e.member }))
}

/// Grows, moves and shrinks the cluster, once all that exists is as it should be.
pub(super) fn change_membership(draft: &mut Draft<'_>, ready: &[Ready<'_>]) -> Report {
    let missing: Vec<&Member> =
        draft.desired.etcd.members.iter().filter(|m| draft.standing(&m.name).outside()).collect();
    let surplus = surplus(draft);
    let moved = moved(draft);
    if missing.is_empty() && surplus.is_empty() && moved.is_empty() {
        return Report::Looked;
    }
    if draft.view.listed.unwrap_or_default().iter().any(|m| m.learner) {
        return Report::Left(Because::Learner);
    }
    // A machine that its provider cannot be asked for can neither be made nor deleted: its cluster would stay half changed.
    let unknown = draft.unknown_machines();
    if !unknown.is_empty() {
        draft
            .waiting
            .extend(unknown.into_iter().filter(|waiting| !draft.waiting.contains(waiting)).collect::<Vec<_>>());
        return Report::Looked;
    }
    let unhealthy = draft.unhealthy_beside(None);
    if !unhealthy.is_empty() {
        let names = missing.iter().map(|m| m.name.to_string()).chain(surplus.iter().map(|(n, _)| n.clone()));
        let names = names.chain(moved.iter().map(|(m, _)| m.name.to_string())).collect::<Vec<_>>().join(", ");
        draft.wait(Waiting::HealFirst { change: format!("changing the members {names}"), unhealthy });
        return Report::Looked;
    }
    // A cluster that is larger than it should be has one to spare; a smaller one has not.
    let voters = draft.view.voters;
    match missing.first() {
        Some(_) if voters > draft.desired.etcd.members.len() && !surplus.is_empty() => shrink(draft, &surplus),
        Some(_) => grow(draft, ready, &missing),
        None => match moved.first() {
            Some((member, id)) => relocate(draft, ready, member, *id),
            None => shrink(draft, &surplus),
        },
    }
    Report::Looked
}

fn grow(draft: &mut Draft<'_>, ready: &[Ready<'_>], missing: &[&Member]) {
    for member in missing {
        let name = &member.name;
        if let Some(at) = draft.observed.ledger.etcd.evicted.get(name)
            && draft.now.duration_since(*at) < REST
            && !draft.observed.ledger.etcd.replace.contains_key(name)
        {
            draft.wait(Waiting::LearnerEvicted { machine: name.clone() });
            continue;
        }
        let url = member.peer_url();
        let holder = draft.view.listed.unwrap_or_default().iter().find(|m| m.peer_urls.contains(&url));
        if let Some(holder) = holder {
            let holder = holder.name.clone();
            draft.wait(Waiting::AddressInUse { machine: name.clone(), holder });
            continue;
        }
        if ready.iter().any(|r| r.member.name == *name && r.report.etcd.service.state == ServiceState::Stopped) {
            let action = MemberAction::AddLearner { machine: name.clone(), peer_url: url };
            draft.steps.push(Step::new(action, Reason::Missing));
            return;
        }
    }
}

/// Listed members that the file does not have: the unhealthy first, the leader last.
fn surplus(draft: &Draft<'_>) -> Vec<(String, ListedMember)> {
    let ledger = &draft.observed.ledger;
    let mut surplus: Vec<(Option<Name>, ListedMember)> = draft
        .view
        .listed
        .unwrap_or_default()
        .iter()
        .filter(|m| !m.learner)
        .map(|m| (ledger.etcd.name_of(m), m.clone()))
        .filter(|(name, _)| name.as_ref().is_none_or(|n| draft.desired.etcd.member(n).is_none()))
        .collect();
    surplus.sort_by_key(|(name, member)| {
        let healthy = name.as_ref().is_some_and(|n| draft.view.healthy.contains(n));
        let leads = name.as_ref().is_some_and(|n| draft.view.leader == Some(n));
        (healthy, leads, std::cmp::Reverse(name.clone()), member.id)
    });
    let named = |(name, m): (Option<Name>, ListedMember)| (name.map_or_else(|| m.id.to_string(), |n| n.to_string()), m);
    surplus.into_iter().map(named).collect()
}

fn shrink(draft: &mut Draft<'_>, surplus: &[(String, ListedMember)]) {
    if draft.desired.etcd.settings.prevent_destroy {
        for (name, _) in surplus {
            draft.wait(Waiting::DestroyPrevented { member: name.clone() });
        }
        return;
    }
    let Some((name, member)) = surplus.first() else { return };
    match Name::parse(name) {
        Ok(name) if draft.view.leader == Some(&name) => hand_over(draft, &name),
        _ => remove(draft, member, Reason::NotInFile),
    }
    for (name, _) in &surplus[1..] {
        if let Ok(machine) = Name::parse(name) {
            draft.wait(Waiting::Turn { machine, verb: "remove member".to_owned() });
        }
    }
}

/// Members that the cluster lists at another address than the file.
fn moved<'a>(draft: &Draft<'a>) -> Vec<(&'a Member, MemberId)> {
    let elsewhere =
        |m: &&Member| draft.entry(&m.name).is_some_and(|e| !e.learner && !e.peer_urls.contains(&m.peer_url()));
    let desired = draft.desired;
    desired.etcd.members.iter().filter(elsewhere).filter_map(|m| draft.entry(&m.name).map(|e| (m, e.id))).collect()
}

fn relocate(draft: &mut Draft<'_>, ready: &[Ready<'_>], member: &Member, id: MemberId) {
    let name = &member.name;
    let Some(ready) = ready.iter().find(|r| r.member.name == *name) else { return };
    let Data::Present { cluster, .. } = ready.report.etcd.data else { return };
    let action = MemberAction::UpdateMember {
        machine: name.clone(),
        member: id,
        peer_url: member.peer_url(),
        version: ready.version,
        cluster,
    };
    draft.steps.push(Step::new(action, Reason::Moved));
}

/// Where a machine of the file is, when that is not where it says.
pub(super) fn misplaced(draft: &Draft<'_>, member: &Member) -> Option<IpAddr> {
    let seen = draft.observed.machine(&member.name);
    seen.map(|machine| machine.address).filter(|address| *address != member.address)
}

/// Starts members that are to be removed while the cluster still needs them: without a majority no member can be
/// removed.
pub(super) fn keep_quorum(draft: &mut Draft<'_>) -> Report {
    for (name, seen) in &draft.observed.machines {
        if draft.desired.etcd.member(name).is_some() || !draft.observed.ledger.etcd.started.contains_key(name) {
            continue;
        }
        match &seen.machine {
            // An agent that answers may be on another machine than the provider's.
            Fact::Unreachable { error, .. } => {
                draft.wait(Waiting::MachineUnknown { machine: name.clone(), error: error.clone() });
                continue;
            }
            Fact::Seen { value, .. } if value.power == Power::Stopped => {
                draft.steps.push(Step::new(MachineAction::StartMachine { machine: name.clone() }, Reason::NotRunning));
                continue;
            }
            Fact::Seen { .. } | Fact::Absent { .. } => {}
        }
        let Some(etcd) = seen.report().map(|r| &r.etcd) else { continue };
        let newest = etcd.installed.keys().max().copied();
        if let (ServiceState::Stopped, Data::Present { cluster, .. }, Some(version)) =
            (etcd.service.state, &etcd.data, newest)
        {
            let data = StartData::Of(*cluster);
            let action = EtcdAction::StartEtcd { machine: name.clone(), version, data };
            draft.steps.push(Step::new(action, Reason::NotRunning));
        }
    }
    Report::Looked
}

/// Deletes machines of removed members that the file does not have.
pub(super) fn retire(draft: &mut Draft<'_>) -> Report {
    let surplus = draft.observed.etcd.members.keys().filter(|name| draft.desired.etcd.member(name).is_none());
    let surplus: Vec<Name> = surplus.filter(|name| draft.standing(name).outside()).cloned().collect();
    for name in surplus {
        if let Some(step) = discard(draft, &name) {
            draft.steps.push(step);
        }
    }
    Report::Looked
}

/// The next step of deleting a machine that belongs to no member.
pub(super) fn discard(draft: &mut Draft<'_>, name: &Name) -> Option<Step> {
    let seen = draft.observed.machines.get(name)?;
    let power = match &seen.machine {
        Fact::Absent { .. } => return None,
        Fact::Unreachable { error, .. } => {
            draft.wait(Waiting::MachineUnknown { machine: name.clone(), error: error.clone() });
            return None;
        }
        Fact::Seen { value, .. } => value.power,
    };
    let reason = if draft.desired.etcd.member(name).is_some() { Reason::Replaced } else { Reason::NotInFile };
    let had_data = draft.observed.etcd.members.contains_key(name);
    if reason == Reason::NotInFile && had_data && draft.desired.etcd.settings.prevent_destroy {
        draft.wait(Waiting::DestroyPrevented { member: name.to_string() });
        return None;
    }
    let delete = || Step::new(MachineAction::DeleteMachine { machine: name.clone() }, reason.clone());
    match (seen.report(), &seen.agent) {
        (Some(report), _) if report.etcd.service.state != ServiceState::Stopped => {
            Some(Step::new(EtcdAction::StopEtcd { machine: name.clone() }, reason))
        }
        (Some(_), _) => Some(delete()),
        // Its etcd may run on without an agent: on this computer a machine without one counts as stopped.
        (None, _) if power == Power::Stopped => Some(delete()),
        (None, _) if draft.to_be_replaced(name) => Some(delete()),
        (None, Fact::Unreachable { error, since }) => {
            let (error, since) = (error.clone(), *since);
            draft.wait(Waiting::AgentUnreachable { machine: name.clone(), error, since });
            None
        }
        (None, _) => Some(delete()),
    }
}

/// The address at which a member serves now; where no member can be asked, the one in the state.
pub(super) fn serves_at(draft: &Draft<'_>, member: &Member) -> IpAddr {
    let url = match draft.standing(&member.name) {
        Standing::Outside => None,
        Standing::Unknown => draft.observed.ledger.etcd.members.get(&member.name),
        Standing::Voter(_) | Standing::Learner(_) => draft.entry(&member.name).and_then(|e| e.peer_urls.first()),
    };
    url.and_then(|url| desired::address_of(url)).unwrap_or(member.address)
}
