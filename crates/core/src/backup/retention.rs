//! Backups and how long they are to be kept → which may be deleted.
//!
//! Only what was verified counts, and only that goes: what an attacker puts into a store neither pushes a backup out nor
//! is removed. What goes must be needed by nothing that stays: batches of changes need their full backup and every batch
//! before them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::{Date, ISOWeekDate};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::name::FullName;
use super::point::is_future;
use crate::observed::ClusterId;

/// A backup that was begun and never finished may still be in progress until it is this old.
const ABANDONED_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// How long backups are kept. Times are in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// This number of the last backups, in any case; one at least.
    pub last: u32,
    /// The newest backup of each of so many hours that have one.
    pub hourly: u32,
    /// The same of days.
    pub daily: u32,
    /// The same of weeks, which begin on Monday.
    pub weekly: u32,
    /// Changes since a backup, so that every moment of this time can be restored, in seconds.
    pub changes_s: u64,
}

/// How a full backup stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its manifest was read, names it, and has a signature of the cluster's key.
    Verified {
        /// The history that it is of.
        history: ClusterId,
    },
    /// It has a manifest that was refused: it is not counted, and stays.
    Unverified,
    /// It has no manifest.
    Unfinished,
}

/// A full backup in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub name: FullName,
    /// Whether it counts.
    pub standing: Standing,
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
    /// Not counted and not removed: names from the future, and manifests that were refused.
    pub ignored: BTreeSet<FullName>,
}

/// What may go now. `current` is the history that is in force.
pub fn judge(backups: &[Kept], keep: Keep, current: Option<ClusterId>, now: Timestamp) -> Verdict {
    let ignored: BTreeSet<FullName> = backups
        .iter()
        .filter(|backup| backup.standing == Standing::Unverified || is_future(backup.name, now))
        .map(|backup| backup.name)
        .collect();
    let verified: BTreeMap<FullName, &Kept> = backups
        .iter()
        .filter(|backup| matches!(backup.standing, Standing::Verified { .. }) && !ignored.contains(&backup.name))
        .map(|backup| (backup.name, backup))
        .collect();
    let mut staying: BTreeSet<FullName> = BTreeSet::new();
    // Whatever else is said: the last ones, by their time, and in the history in force by their revision, which is right
    // also when a clock was not; and the newest of which it is known that it can be restored.
    let last = keep.last.max(1) as usize;
    staying.extend(verified.keys().rev().take(last));
    let mut in_force: Vec<&&Kept> = verified
        .values()
        .filter(|backup| matches!(backup.standing, Standing::Verified { history } if Some(history) == current))
        .collect();
    in_force.sort_by_key(|backup| (backup.name.revision(), backup.name));
    staying.extend(in_force.iter().rev().take(last).map(|backup| backup.name));
    // Changes that still grow, or would be the only ones left.
    let mut with_changes: BTreeSet<FullName> = match keep.changes_s {
        0 => BTreeSet::new(),
        _ => staying.clone(),
    };
    staying.extend(verified.values().rev().find(|backup| backup.proven).map(|backup| backup.name));
    let utc = |name: &FullName| name.taken().to_zoned(TimeZone::UTC).datetime();
    let hour = |name: &FullName| (utc(name).date(), utc(name).hour());
    let day = |name: &FullName| -> Date { utc(name).date() };
    let week = |name: &FullName| -> ISOWeekDate { utc(name).date().iso_week_date() };
    staying.extend(newest_of_each(&verified, keep.hourly, hour));
    staying.extend(newest_of_each(&verified, keep.daily, day));
    staying.extend(newest_of_each(&verified, keep.weekly, |name| (week(name).year(), week(name).week())));

    let window = SignedDuration::from_secs(i64::try_from(keep.changes_s).unwrap_or(i64::MAX));
    let since = now.checked_sub(window).unwrap_or(Timestamp::MIN);
    // Changes that reach into the time in which every moment counts.
    let reaches = |backup: &&&Kept| keep.changes_s > 0 && backup.changes_until.is_some_and(|until| until >= since);
    with_changes.extend(verified.values().filter(reaches).map(|backup| backup.name));
    staying.extend(&with_changes);

    let goes = |backup: &&Kept| match backup.standing {
        _ if ignored.contains(&backup.name) => false,
        Standing::Verified { .. } => !staying.contains(&backup.name),
        Standing::Unverified => false,
        Standing::Unfinished => backup.name.taken() + ABANDONED_AFTER < now,
    };
    let fulls: BTreeSet<FullName> = backups.iter().filter(goes).map(|backup| backup.name).collect();
    let changes = backups.iter().filter(|backup| backup.changes_until.is_some());
    let changes = changes.map(|backup| backup.name).filter(|name| !with_changes.contains(name));
    let changes = changes.filter(|name| fulls.contains(name) || verified.contains_key(name)).collect();
    Verdict { changes, fulls, ignored }
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
