//! A step on databases or alarms → what it costs, or why it must not be done.

use super::{Case, Cost, Refusal, corrupt, otherwise};
use crate::action::MaintenanceAction;
use crate::observed::{Agreement, Alarm, EtcdFacts, ListedMember, Tolerance, size};
use crate::plan::Pause;
use crate::plan::situation::has_room;
use crate::spec::{EtcdVersion, Name};

pub(super) fn judge(case: &Case<'_>, action: &MaintenanceAction) -> Result<Cost, Refusal> {
    let list = case.view.listed.filter(|_| case.view.has_quorum()).ok_or(Refusal::NoQuorum)?;
    match action {
        MaintenanceAction::Compact { revision } => compact(case, *revision).map(|()| case.unharmed),
        MaintenanceAction::Defragment { machine } => defragment(case, list, machine),
        MaintenanceAction::DisarmAlarm { alarm } => disarm(case, list, *alarm).map(|()| case.unharmed),
    }
}

/// Before these versions a member could be corrupted when it was defragmented while a snapshot came in.
fn defragments_safely(version: EtcdVersion) -> bool {
    match version.minor_line() {
        (3, 5) => version >= EtcdVersion::new(3, 5, 23),
        (3, 6) => version >= EtcdVersion::new(3, 6, 5),
        line => line > (3, 6),
    }
}

/// The status of every listed voter; nothing unless all are healthy.
fn voters<'a>(case: &Case<'a>, list: &[ListedMember]) -> Option<Vec<&'a EtcdFacts>> {
    let view = case.view;
    let facts = |m: &ListedMember| {
        view.healthy.iter().filter_map(|n| view.answering.get(n)).find(|e| e.member == m.id).copied()
    };
    list.iter().filter(|m| !m.learner).map(facts).collect()
}

fn compact(case: &Case<'_>, revision: i64) -> Result<(), Refusal> {
    let view = case.view;
    if view.corrupt() {
        return Err(corrupt());
    }
    let newest = view.healthy.iter().filter_map(|n| view.answering.get(n)).map(|e| e.revision).max();
    if newest.is_none_or(|newest| revision > newest) { Err(Refusal::NotSeen("that revision")) } else { Ok(()) }
}

fn defragment(case: &Case<'_>, list: &[ListedMember], machine: &Name) -> Result<Cost, Refusal> {
    let view = case.view;
    if view.corrupt() {
        return Err(corrupt());
    }
    let before = case.unharmed.before;
    let etcd = view.answering.get(machine).ok_or(Refusal::NotSeen("the member's etcd"))?;
    let voters = voters(case, list).filter(|voters| voters.iter().any(|e| e.member == etcd.member));
    voters.ok_or_else(|| case.costs_quorum())?;
    if list.iter().any(|m| m.learner) && !defragments_safely(etcd.version) {
        let version = etcd.version;
        let why = format!("a learner is catching up, and with it etcd {version} may corrupt its data");
        return Err(Refusal::Otherwise(why));
    }
    if view.leader == Some(machine) && view.voters > 1 {
        return Err(otherwise("it is the leader: leadership has to be transferred first"));
    }
    case.room_for_new_file(machine, etcd)?;
    // Its raft keeps running: it votes, and answers no client. Only where it is the only member do all clients wait.
    let during = if view.voters > 1 { view.tolerance_without(machine).max(Tolerance::CanLose(0)) } else { before };
    let pause = if view.voters > 1 { Pause::None } else { Pause::while_defragmenting(etcd.db_in_use) };
    Ok(Cost { before, during, pause, copies: None })
}

fn disarm(case: &Case<'_>, list: &[ListedMember], alarm: Alarm) -> Result<(), Refusal> {
    match alarm {
        Alarm::Corrupt => match case.observed.agreement(case.view) {
            Agreement::All => Ok(()),
            Agreement::Differ(_) | Agreement::Unclear => Err(Refusal::NotSeen("that all members hold the same data")),
        },
        Alarm::NoSpace => {
            let file = i64::try_from(case.desired.etcd.settings.quota.bytes()).unwrap_or(i64::MAX);
            let room = |e: &&EtcdFacts| has_room(e, e.quota.unwrap_or(file));
            match voters(case, list) {
                Some(voters) if voters.iter().all(room) => Ok(()),
                Some(_) => Err(otherwise("a member's database is still near its quota")),
                None => Err(Refusal::NotSeen("every member's size")),
            }
        }
    }
}

impl Case<'_> {
    /// A database is rewritten into a new file beside the old one.
    pub(in crate::plan) fn room_for_new_file(&self, machine: &Name, etcd: &EtcdFacts) -> Result<(), Refusal> {
        let needed = etcd.db_in_use.unsigned_abs();
        match self.machine(machine)?.report().map(|r| r.disk.free) {
            Some(free) if free < needed => {
                let (free, needed) = (size(free), size(needed));
                Err(Refusal::Otherwise(format!("its disk has {free} free, and the new file takes {needed}")))
            }
            Some(_) | None => Ok(()),
        }
    }
}
