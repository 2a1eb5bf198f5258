//! Alarms, sizes, the file's `maintenance:` → space freed, large files defragmented, corruption reported.
//!
//! Nothing of this heals by itself in etcd. A full database is compacted once, its members are rewritten one by one,
//! and only then is the alarm disarmed. The members' own hashes tell which member is corrupt.

use super::report::{Because, Report};
use super::safety::Case;
use super::situation::{at_part, has_room};
use super::{Draft, Reason, Step, Waiting, members, safety};
use crate::action::{Action, MaintenanceAction, MemberAction};
use crate::observed::{Agreement, Alarm, EtcdFacts, Filling};
use crate::spec::Name;

/// A database that has this part of its quota in use after compaction is full: rewriting it would not help for long.
const FULL_PERCENT: i64 = 85;

impl Draft<'_> {
    /// Healthy voters with their status, in order.
    fn sized(&self) -> Vec<(Name, EtcdFacts)> {
        let facts = |name: &&Name| self.view.answering.get(*name).map(|e| ((*name).clone(), (*e).clone()));
        self.view.healthy.iter().filter_map(facts).collect()
    }

    /// The quota of a member: as it reports, else the file's.
    fn quota(&self, etcd: &EtcdFacts) -> i64 {
        etcd.quota.unwrap_or_else(|| i64::try_from(self.desired.etcd.settings.quota.bytes()).unwrap_or(i64::MAX))
    }

    /// Whether changing members may go on: nothing says that data is corrupt, or it is about the corrupt member itself,
    /// or about one without which all agree.
    pub(super) fn sound(&self, about: Option<&Name>) -> bool {
        let agreement = self.observed.agreement(&self.view);
        let differs = |name: &Name| matches!(&agreement, Agreement::Differ(names) if names.contains(name));
        !self.view.corrupt() || about.is_some_and(|name| differs(name) || self.observed.rest_agrees(&self.view, name))
    }
}

/// Handles alarms, whose causes must be removed before other changes.
pub(super) fn clear_alarms(draft: &mut Draft<'_>) -> Report {
    if draft.view.corrupt() {
        corruption(draft);
    } else if draft.view.alarmed(Alarm::NoSpace) {
        space(draft);
    }
    Report::Looked
}

/// The members' hashes tell which one is corrupt; only an operator decides to replace it.
fn corruption(draft: &mut Draft<'_>) {
    match draft.observed.agreement(&draft.view) {
        Agreement::All if draft.steps.is_empty() => {
            let action = MaintenanceAction::DisarmAlarm { alarm: Alarm::Corrupt };
            draft.steps.push(Step::new(action, Reason::MembersAgree));
        }
        Agreement::All => {}
        Agreement::Differ(names) => {
            for machine in names {
                // One that is to be replaced goes in `members`.
                if !draft.to_be_replaced(&machine) {
                    let how = "its data differs from that of the other members".to_owned();
                    draft.wait(Waiting::MemberCorrupt { machine, how });
                }
            }
        }
        // Without the one that is about to be removed, the others agree.
        Agreement::Unclear
            if draft.steps.iter().any(|s| matches!(s.action, Action::Member(MemberAction::RemoveMember { .. }))) => {}
        Agreement::Unclear => draft.wait(Waiting::AlarmRaised { alarm: Alarm::Corrupt }),
    }
}

/// A member that does not start because its data is not that of another: only where all others agree is it the one.
pub(super) fn refuses_to_start(draft: &mut Draft<'_>, machine: Name) {
    let waiting = if draft.observed.rest_agrees(&draft.view, &machine) {
        let how = "etcd does not start: its data differs from that of the other members".to_owned();
        Waiting::MemberCorrupt { machine: machine.clone(), how }
    } else {
        Waiting::DataDisputed { machine: machine.clone() }
    };
    draft.lose(&machine, waiting);
}

/// Frees space: compact, defragment one by one, disarm the alarm.
fn space(draft: &mut Draft<'_>) {
    if !draft.steps.is_empty() || quota_rises(draft) {
        return;
    }
    let sized = draft.sized();
    let unhealthy = draft.unhealthy_beside(None);
    let tight: Vec<Name> =
        sized.iter().filter(|(_, e)| !has_room(e, draft.quota(e))).map(|(name, _)| name.clone()).collect();
    if tight.is_empty() && unhealthy.is_empty() {
        let action = MaintenanceAction::DisarmAlarm { alarm: Alarm::NoSpace };
        draft.steps.push(Step::new(action, Reason::RoomAgain));
        return;
    }
    if tight.is_empty() {
        // Whether the other members have room is not known: no history is dropped on a guess.
        draft.wait(Waiting::HealFirst { change: "disarming the alarm".to_owned(), unhealthy });
        return;
    }
    let newest = sized.iter().map(|(_, e)| e.revision).max().unwrap_or(0);
    // All hold the same data: where the least is in use, compaction has got furthest.
    let data = sized.iter().map(|(_, e)| e.db_in_use).min().unwrap_or(0);
    let quotas = sized.iter().filter(|(name, _)| tight.contains(name)).map(|(_, e)| draft.quota(e));
    let full = quotas.min().filter(|quota| at_part(data, *quota, FULL_PERCENT));
    // Pages that compaction freed count as free only after further commits, and while no client can write there may be
    // none for long. Where the keys take far less than is said to be in use, rewriting the files shows what is true.
    let counted = draft
        .observed
        .etcd
        .maintenance
        .filling
        .as_ref()
        .filter(|filling| filling.complete)
        .map(|filling| filling.bytes);
    let doubtful = counted.is_some_and(|counted| counted.saturating_mul(2) < data.unsigned_abs());
    let unproven = |name: &Name| !draft.observed.ledger.etcd.space.as_ref().is_some_and(|s| s.rewritten.contains(name));
    let proven = !doubtful || !tight.iter().any(unproven);
    let revision = match &draft.observed.ledger.etcd.space {
        None => Some(newest),
        // A run that was killed does not know whether compaction ended: it is requested again, which waits for its end.
        Some(record) if !record.done => Some(record.revision),
        // While the quota is used up only deletions go through: there is something new to drop.
        Some(record) if full.is_some() && newest > record.revision => Some(newest),
        Some(_) => None,
    };
    if let Some(revision) = revision {
        let filled_by = draft.observed.etcd.maintenance.filling.as_ref().map(most).unwrap_or_default();
        draft.steps.push(Step::new(MaintenanceAction::Compact { revision }, Reason::QuotaUsedUp { filled_by }));
    } else if let Some(quota) = full.filter(|_| proven) {
        let filled_by = draft.observed.etcd.maintenance.filling.as_ref().map(most).unwrap_or_default();
        draft.wait(Waiting::QuotaFull { in_use: data, quota, filled_by });
    } else if !unhealthy.is_empty() {
        draft.wait(Waiting::HealFirst { change: "freeing space in the database".to_owned(), unhealthy });
    } else {
        defragment(draft, tight);
    }
}

/// What fills a database most, in words.
fn most(filling: &Filling) -> Vec<String> {
    filling.prefixes.iter().take(3).map(ToString::to_string).collect()
}

/// Whether the file has a greater quota than a member runs with: then a rolling restart may be all that is needed. With
/// one or two members nothing is restarted, so that there is nothing to wait for.
fn quota_rises(draft: &Draft<'_>) -> bool {
    let wanted = i64::try_from(draft.desired.etcd.settings.quota.bytes()).unwrap_or(i64::MAX);
    let rises = |name: &&Name| {
        let quota = draft.view.answering.get(*name).and_then(|e| e.quota);
        let etcd = draft.observed.report(name).map(|r| &r.etcd);
        let stale = etcd.is_some_and(|etcd| etcd.running_config != etcd.config);
        // A member that does not report its quota may run with a smaller one for as long as its configuration differs.
        stale && quota.is_none_or(|quota| quota < wanted)
    };
    draft.view.voters >= 3 && draft.view.healthy.iter().any(rises)
}

/// Rewrites the files of these members, one at a time: followers first, and the leader once it leads no more.
pub(super) fn defragment(draft: &mut Draft<'_>, mut who: Vec<Name>) {
    let turn = |machine: Name| Waiting::Turn { machine, verb: "defragment".to_owned() };
    // A learner gets a snapshot, and before 3.5.23 and 3.6.5 the two could corrupt a member.
    let learning = draft.view.listed.unwrap_or_default().iter().any(|m| m.learner);
    if learning || !draft.steps.is_empty() {
        draft.waiting.extend(who.into_iter().map(turn));
        return;
    }
    // A member without room on its disk does not delay the others, and waiting makes no room.
    who.retain(|machine| {
        let Some(etcd) = draft.view.answering.get(machine) else { return true };
        match Case::of(draft.desired, draft.observed, &draft.view).room_for_new_file(machine, etcd) {
            Ok(()) => true,
            Err(refusal) => {
                let action = Action::Maintenance(MaintenanceAction::Defragment { machine: machine.clone() });
                draft.waiting.push(safety::refused(&action, refusal));
                false
            }
        }
    });
    // A member that does not answer delays the others as well: the judge says so when it refuses the step of one that
    // does.
    let silent = |name: &Name| !draft.view.answering.contains_key(name);
    who.sort_by_key(|name| (silent(name), draft.view.leader == Some(name), name.clone()));
    let mut who = who.into_iter();
    let Some(machine) = who.next() else { return };
    if draft.view.leader == Some(&machine) && draft.view.voters > 1 {
        members::hand_over(draft, &machine);
        draft.wait(turn(machine));
    } else if let Some(etcd) = draft.view.answering.get(&machine) {
        let reason = Reason::RoomInFile { free: (etcd.db_size - etcd.db_in_use).max(0), of: etcd.db_size };
        draft.steps.push(Step::new(MaintenanceAction::Defragment { machine }, reason));
    }
    draft.waiting.extend(who.map(turn));
}

/// Defragmentation that the file asks for, in its maintenance window: once all else is as it should be.
pub(super) fn routine(draft: &mut Draft<'_>) -> Report {
    let maintenance = &draft.desired.etcd.settings.maintenance;
    let Some(rule) = &maintenance.defragment else { return Report::Left(Because::NotAsked) };
    let alarmed = draft.view.answering.values().any(|e| !e.alarms.is_empty());
    if alarmed {
        return Report::Left(Because::Alarmed);
    }
    if !maintenance.open_at(draft.now) {
        return Report::Left(Because::WindowClosed);
    }
    if !draft.unhealthy_beside(None).is_empty() {
        return Report::Left(Because::Unhealthy);
    }
    let pays = |(name, e): (Name, EtcdFacts)| rule.pays(e.db_size, e.db_in_use).then_some(name);
    let who: Vec<Name> = draft.sized().into_iter().filter_map(pays).collect();
    defragment(draft, who);
    Report::Looked
}
