//! Backups and how long they are to be kept → which may go.
//!
//! What goes must be needed by nothing that stays: batches of changes need their full backup and every batch before them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::{Date, ISOWeekDate};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::name::FullName;

/// What was begun and never finished is somebody's who still works on it, until it is this old.
const ABANDONED_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// How long backups are kept. Times are in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// The newest backup of each of so many hours that have one.
    pub hourly: u32,
    /// The same of days.
    pub daily: u32,
    /// The same of weeks, which begin on Monday.
    pub weekly: u32,
    /// Changes since a backup, so that every moment of this time can be restored, in seconds.
    pub changes_s: u64,
}

/// A full backup in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub name: FullName,
    /// Whether it has a manifest: without one it does not count.
    pub complete: bool,
    /// Whether it was restored, and found to be what it says.
    pub proven: bool,
    /// When the last change was made that batches since it hold, if there are any.
    pub changes_until: Option<Timestamp>,
}

/// What may go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Full backups, with all that is in their directories.
    pub fulls: BTreeSet<FullName>,
    /// The batches of changes since these.
    pub changes: BTreeSet<FullName>,
}

/// What may go now.
pub fn judge(backups: &[Kept], keep: Keep, now: Timestamp) -> Verdict {
    let complete: BTreeMap<FullName, &Kept> =
        backups.iter().filter(|backup| backup.complete).map(|backup| (backup.name, backup)).collect();
    let mut staying: BTreeSet<FullName> = BTreeSet::new();
    // Whatever else is said: the newest, and the newest of which it is known that it can be restored.
    staying.extend(complete.keys().next_back());
    staying.extend(complete.values().rev().find(|backup| backup.proven).map(|backup| backup.name));
    let utc = |name: &FullName| name.taken().to_zoned(TimeZone::UTC).datetime();
    let hour = |name: &FullName| (utc(name).date(), utc(name).hour());
    let day = |name: &FullName| -> Date { utc(name).date() };
    let week = |name: &FullName| -> ISOWeekDate { utc(name).date().iso_week_date() };
    staying.extend(newest_of_each(&complete, keep.hourly, hour));
    staying.extend(newest_of_each(&complete, keep.daily, day));
    staying.extend(newest_of_each(&complete, keep.weekly, |name| (week(name).year(), week(name).week())));

    let window = SignedDuration::from_secs(i64::try_from(keep.changes_s).unwrap_or(i64::MAX));
    let since = now.checked_sub(window).unwrap_or(Timestamp::MIN);
    // Changes that reach into the time in which every moment counts; and those of the newest, which still grow.
    let newest = complete.keys().next_back().copied();
    let wanted = |backup: &Kept| {
        keep.changes_s > 0 && (backup.changes_until.is_some_and(|until| until >= since) || Some(backup.name) == newest)
    };
    let with_changes: BTreeSet<FullName> =
        complete.values().filter(|backup| wanted(backup)).map(|backup| backup.name).collect();
    staying.extend(&with_changes);

    let abandoned = |backup: &Kept| !backup.complete && backup.name.taken() + ABANDONED_AFTER < now;
    let goes = |backup: &&Kept| match backup.complete {
        true => !staying.contains(&backup.name),
        false => abandoned(backup),
    };
    let fulls: BTreeSet<FullName> = backups.iter().filter(goes).map(|backup| backup.name).collect();
    let changes = backups.iter().filter(|backup| backup.changes_until.is_some());
    let changes = changes.map(|backup| backup.name).filter(|name| !with_changes.contains(name));
    Verdict { changes: changes.filter(|name| fulls.contains(name) || complete.contains_key(name)).collect(), fulls }
}

/// The newest of each of the last so many periods that have one at all.
fn newest_of_each<P: PartialEq>(
    backups: &BTreeMap<FullName, &Kept>,
    most: u32,
    period: impl Fn(&FullName) -> P,
) -> Vec<FullName> {
    let mut found: Vec<FullName> = Vec::new();
    for name in backups.keys().rev() {
        if found.len() >= most as usize {
            break;
        }
        if found.last().is_none_or(|newer| period(newer) != period(name)) {
            found.push(*name);
        }
    }
    found
}
