//! What is wanted, and the backups of a store that were verified → the full backup and the changes since that are it, or why
//! there is none: what cannot be restored is refused, never replaced by something near.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::changes::{Batch, ChainError, chain};
use super::history::{History, in_force};
use super::manifest::Manifest;
use super::name::{BatchName, FullName};
use crate::observed::ClusterId;

/// Clocks of machines differ by less: a backup whose name is further ahead is from the future.
pub const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(10);

/// What is to be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreTarget {
    /// The newest point that can be restored.
    Newest,
    /// This full backup, as it is.
    Backup(FullName),
    /// Everything up to this revision.
    Revision(i64),
    /// Everything up to this moment.
    Moment(Timestamp),
}

/// What is restored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    /// The full backup.
    pub full: Manifest,
    /// The changes since, in order.
    pub batches: Vec<Batch>,
    /// Changes after this revision are left out; as it is when there is none.
    pub revision: Option<i64>,
}

impl Point {
    /// The last revision that there will be, as far as it is known before it is tried.
    pub fn last(&self) -> i64 {
        let changed = self.batches.last().map_or(0, |batch| batch.to);
        self.revision.unwrap_or_else(|| changed.max(self.full.about.name.revision()))
    }

    /// When the last change was made that is in it, as far as it is known.
    pub fn at(&self) -> Timestamp {
        self.batches.last().map_or(self.full.about.begun, |batch| batch.until)
    }

    /// Whether some of it can be read only with a key.
    pub fn is_encrypted(&self) -> bool {
        self.full.coding.age || self.batches.iter().any(|batch| batch.coding.age)
    }
}

/// Why there is no such point.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// There is none at all.
    #[error(
        "no verified backup is there: make one with `raftsman backup now`, or see `raftsman backup list` for those that were refused"
    )]
    None,
    /// No such full backup.
    #[error("there is no verified backup `{0}`: list those that there are with `raftsman backup list`")]
    NoSuchBackup(FullName),
    /// Before all that there is of a history.
    #[error(
        "no backup is old enough: the oldest of the history {history} is `{oldest}`, and everything from the moment on \
         that it was made can be restored"
    )]
    TooEarly {
        /// The oldest of that history.
        oldest: FullName,
        /// Which history.
        history: ClusterId,
    },
    /// A history without a backup.
    #[error(
        "no backup of the history {history} is there, which was in force then: other histories hold other data; see `raftsman backup list`"
    )]
    NoneOfHistory {
        /// Which history.
        history: ClusterId,
    },
    /// Older than all histories that are known.
    #[error("nothing is known of that time: the oldest history that backups name began at {began}")]
    BeforeHistories {
        /// When the oldest began.
        began: Timestamp,
    },
    /// No backup shows what was written until then.
    #[error(
        "what was written between {known} and then is not in the store, or not when: `--revision {revision}` is the last that is known to be of that time"
    )]
    NotCovered {
        /// Up to when all is known.
        known: Timestamp,
        /// The last revision that is in the store.
        revision: i64,
    },
    /// The clock showed this moment more than once.
    #[error(
        "the machine's clock was set back after revision {revision}, so that this time occurred more than once: name \
         the revision, with `--revision`"
    )]
    ClockSetBack {
        /// After which revision.
        revision: i64,
    },
    /// What may be the newest cannot be verified.
    #[error(
        "`{doubtful}` may be the newest backup, and cannot be verified: see `raftsman backup list`; remove it, or choose with `--backup`, `--revision` or `--at`"
    )]
    Doubtful {
        /// Which.
        doubtful: FullName,
    },
    /// Changes do not lead there.
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// The full backups of a cluster, as they were found in a store.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// Those whose signature was verified.
    pub fulls: Vec<Manifest>,
    /// Those whose manifest was refused, or damaged.
    pub doubtful: BTreeSet<FullName>,
    /// The histories of the cluster, where its state is at hand.
    pub known: Vec<History>,
}

/// What was read of the changes so far.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// The batches since full backups, verified.
    pub batches: BTreeMap<FullName, Vec<Batch>>,
    /// The revisions in a batch, and when each was seen.
    pub times: BTreeMap<BatchName, Vec<(i64, Timestamp)>>,
}

/// How far a look-up is.
#[derive(Debug)]
pub enum Lookup {
    /// It needs the batches since this backup.
    NeedsBatches(FullName),
    /// It needs the times in this batch.
    NeedsTimes(Box<Batch>),
    /// The point is found.
    Found(Box<Point>),
}

/// Whether a name says a moment that has not come yet.
pub fn is_future(name: FullName, now: Timestamp) -> bool {
    name.taken().duration_since(now) > CLOCK_SKEW
}

impl Catalog {
    /// The histories that lead to the one in force, the oldest first.
    pub fn histories(&self, now: Timestamp) -> Vec<History> {
        let here = |history: &History| self.fulls.iter().any(|full| full.about.cluster_id == history.id);
        if self.known.iter().any(here) {
            return self.known.clone();
        }
        let histories = |full: &Manifest| match full.about.histories.is_empty() {
            true => vec![History::first(full.about.cluster_id)],
            false => full.about.histories.clone(),
        };
        let superseded: BTreeSet<ClusterId> = self
            .fulls
            .iter()
            .flat_map(|full| histories(full).into_iter().map(|history| history.id).rev().skip(1))
            .collect();
        let standing = |full: &&Manifest| {
            let about = &full.about;
            (!superseded.contains(&about.cluster_id), !is_future(about.name, now), about.name)
        };
        self.fulls.iter().max_by_key(standing).map(histories).unwrap_or_default()
    }

    /// The full backups of a history, in the order of their revisions.
    fn of(&self, history: ClusterId) -> Vec<&Manifest> {
        let mut fulls: Vec<&Manifest> = self.fulls.iter().filter(|full| full.about.cluster_id == history).collect();
        fulls.sort_by_key(|full| (full.about.name.revision(), full.about.name));
        fulls
    }

    /// The newest full backup of the newest history that has one.
    pub fn newest(&self, now: Timestamp) -> Result<&Manifest, LookupError> {
        let histories = self.histories(now);
        let newest = histories.iter().rev().find_map(|history| self.of(history.id).pop());
        let newest = newest.ok_or(LookupError::None)?;
        let later = |name: &&FullName| **name > newest.about.name && !is_future(**name, now);
        match self.doubtful.iter().rev().find(later) {
            Some(doubtful) => Err(LookupError::Doubtful { doubtful: *doubtful }),
            None => Ok(newest),
        }
    }

    /// Looks for what is wanted, with what was read so far.
    pub fn locate(&self, target: RestoreTarget, evidence: &Evidence, now: Timestamp) -> Result<Lookup, LookupError> {
        match target {
            RestoreTarget::Backup(name) => {
                let full = self.fulls.iter().find(|full| full.about.name == name);
                let full = full.ok_or(LookupError::NoSuchBackup(name))?.clone();
                Ok(found(full, Vec::new(), None))
            }
            RestoreTarget::Newest => self.furthest(evidence, now),
            RestoreTarget::Revision(revision) => self.revision(revision, evidence, now),
            RestoreTarget::Moment(moment) => self.moment(moment, evidence, now),
        }
    }

    /// The newest point: of all chains of changes the one that leads furthest. An operator's backup is newer than the
    /// one that machines follow, and one that they have just begun to follow is not followed far yet.
    fn furthest(&self, evidence: &Evidence, now: Timestamp) -> Result<Lookup, LookupError> {
        let newest = self.newest(now)?;
        // A snapshot may hold more than its name says, and how much is not known: only the revision of its name is
        // certain.
        let mut best = (newest.about.name.revision(), newest, Vec::new());
        for full in self.of(newest.about.cluster_id).into_iter().rev() {
            let Some(batches) = evidence.batches.get(&full.about.name) else {
                return Ok(Lookup::NeedsBatches(full.about.name));
            };
            let whole = chain(full, batches, None)?;
            let Some(last) = whole.last().map(|batch| batch.to) else { continue };
            if ends_before(last, newest) {
                break;
            }
            if last > best.0 {
                best = (last, full, whole);
            }
        }
        let (_, full, batches) = best;
        Ok(found(full.clone(), batches, None))
    }

    fn revision(&self, revision: i64, evidence: &Evidence, now: Timestamp) -> Result<Lookup, LookupError> {
        let mut oldest = None;
        for history in self.histories(now).iter().rev() {
            let fulls = self.of(history.id);
            oldest = fulls.first().map(|full| (full.about.name, history.id)).or(oldest);
            // No revision is in two histories: one that begins after it does not have it.
            if fulls.first().is_none_or(|full| full.about.name.revision() > revision) {
                continue;
            }
            let mut missing = None;
            // A full backup may hold changes up to its upper bound: one that may hold later ones does not serve.
            for full in fulls.iter().rev().filter(|full| full.most() <= revision) {
                let Some(batches) = evidence.batches.get(&full.about.name) else {
                    return Ok(Lookup::NeedsBatches(full.about.name));
                };
                let error = match chain(full, batches, Some(revision)) {
                    Ok(batches) => return Ok(found((*full).clone(), batches, Some(revision))),
                    Err(error) => error,
                };
                let (first, _) = missing.get_or_insert((*full, error));
                if batches.iter().map(|batch| batch.to).max().is_some_and(|last| ends_before(last, first)) {
                    break;
                }
            }
            match missing {
                Some((_, error)) => return Err(error.into()),
                None => break,
            }
        }
        let (oldest, history) = oldest.ok_or(LookupError::None)?;
        Err(LookupError::TooEarly { oldest, history })
    }

    fn moment(&self, moment: Timestamp, evidence: &Evidence, now: Timestamp) -> Result<Lookup, LookupError> {
        let histories = self.histories(now);
        let Some(oldest) = histories.first() else { return Err(LookupError::None) };
        let began = oldest.began.unwrap_or_default();
        let history = in_force(&histories, moment).ok_or(LookupError::BeforeHistories { began })?.id;
        let fulls = self.of(history);
        let Some(oldest) = fulls.first() else { return Err(LookupError::NoneOfHistory { history }) };
        let (mut first, mut uncovered): (Option<&Manifest>, Option<LookupError>) = (None, None);
        let mut best: Option<(i64, &Manifest, Vec<Batch>)> = None;
        for full in fulls.iter().copied().rev().filter(|full| full.about.begun <= moment) {
            let Some(batches) = evidence.batches.get(&full.about.name) else {
                return Ok(Lookup::NeedsBatches(full.about.name));
            };
            let whole = match chain(full, batches, None) {
                // The part without a gap may reach far enough.
                Err(ChainError::Gap { last, .. }) => chain(full, batches, Some(last))?,
                chain => chain?,
            };
            // What was written down twice, since this one and since the one before it, has the time at which it was seen
            // first there: the later look-up of the same change says less.
            let newest = *first.get_or_insert(full);
            if best.is_some() && whole.last().is_some_and(|batch| ends_before(batch.to, newest)) {
                break;
            }
            let revision = match at(full, &whole, &fulls, moment, evidence) {
                Ok(At::NeedsTimes(batch)) => return Ok(Lookup::NeedsTimes(batch)),
                Ok(At::Revision(revision)) => revision,
                Err(error @ LookupError::NotCovered { .. }) => {
                    uncovered.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            // A snapshot may hold what was written later: an older one leads there.
            if revision >= full.most() && best.as_ref().is_none_or(|(known, ..)| revision > *known) {
                let batches = whole.into_iter().filter(|batch| batch.from < revision).collect();
                best = Some((revision, full, batches));
            }
        }
        let Some((revision, full, batches)) = best else {
            return Err(uncovered.unwrap_or(LookupError::TooEarly { oldest: oldest.about.name, history }));
        };
        let out_of_turn = |other: &&&Manifest| match other.about.begun > moment {
            true => other.about.name.revision() < revision,
            false => other.about.name.revision() > revision,
        };
        match fulls.iter().find(out_of_turn) {
            Some(before) => Err(LookupError::ClockSetBack { revision: before.about.name.revision() }),
            None => Ok(found(full.clone(), batches, Some(revision))),
        }
    }
}

/// Whether changes that lead this far end before a full backup: then those since older ones do as well.
fn ends_before(last: i64, full: &Manifest) -> bool {
    last < full.about.name.revision()
}

fn found(full: Manifest, batches: Vec<Batch>, revision: Option<i64>) -> Lookup {
    Lookup::Found(Box::new(Point { full, batches, revision }))
}

enum At {
    NeedsTimes(Box<Batch>),
    Revision(i64),
}

/// The last revision until a moment, as this backup and the changes since show; only where they show that nothing else
/// was written until then.
fn at(
    full: &Manifest,
    whole: &[Batch],
    fulls: &[&Manifest],
    moment: Timestamp,
    evidence: &Evidence,
) -> Result<At, LookupError> {
    let mut revision = full.about.name.revision();
    let mut known = full.about.begun;
    for (index, batch) in whole.iter().enumerate() {
        if batch.until <= moment {
            (revision, known) = (batch.to, batch.until);
            continue;
        }
        let Some(times) = evidence.times.get(&batch.name()) else {
            return Ok(At::NeedsTimes(Box::new(batch.clone())));
        };
        let before = times.iter().take_while(|(_, at)| *at <= moment).last();
        let (revision, known) = before.copied().unwrap_or((revision, known));
        // The next one was made before it was seen: perhaps before the moment.
        if batch.late.is_some_and(|late| late > revision) {
            return Err(LookupError::NotCovered { known, revision });
        }
        let later = times.iter().any(|(at, seen)| *at > revision && *seen <= moment)
            || whole[index + 1..].iter().any(|batch| batch.until <= moment);
        return match later {
            true => Err(LookupError::ClockSetBack { revision }),
            false => Ok(At::Revision(revision)),
        };
    }
    // Nothing later is in these changes. A full backup that was begun later shows that nothing is missing in them.
    let shown = |other: &&Manifest| other.about.begun >= moment && other.about.name.revision() == revision;
    match fulls.iter().copied().any(|other| other.about.name != full.about.name && shown(&other)) {
        true => Ok(At::Revision(revision)),
        false if full.about.begun == moment && whole.is_empty() => Ok(At::Revision(revision)),
        false => Err(LookupError::NotCovered { known, revision }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::manifest::tests::manifest;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a moment")
    }

    fn full(history: u64, second: i64, revision: i64) -> Manifest {
        let mut full = manifest();
        full.about.name = FullName::new(at(second), revision);
        full.about.begun = at(second);
        full.about.upto = Some(revision);
        full.about.cluster_id = ClusterId(history);
        let parent = Some(ClusterId(1));
        let second = History { id: ClusterId(2), parent, revision: Some(10), began: Some(at(100)) };
        full.about.histories =
            [History::first(ClusterId(1)), second].into_iter().take(usize::try_from(history).unwrap_or(2)).collect();
        full
    }

    fn find(fulls: Vec<Manifest>, target: RestoreTarget) -> Result<(u64, i64), LookupError> {
        let catalog = Catalog { fulls, ..Catalog::default() };
        let mut evidence = Evidence::default();
        loop {
            match catalog.locate(target, &evidence, at(10_000))? {
                Lookup::Found(point) => return Ok((point.full.about.cluster_id.0, point.last())),
                Lookup::NeedsBatches(name) => drop(evidence.batches.insert(name, Vec::new())),
                Lookup::NeedsTimes(_) => panic!("no batch is there"),
            }
        }
    }

    /// A cluster was restored at 100. Retention has removed the first backups since: only that of 300 is left.
    #[test]
    fn a_moment_is_never_restored_from_the_history_before() {
        let fulls = || vec![full(1, 0, 10), full(1, 50, 10), full(2, 300, 1_000_000_050), full(2, 400, 1_000_000_050)];
        let moment = |second| find(fulls(), RestoreTarget::Moment(at(second)));
        assert!(matches!(moment(200), Err(LookupError::TooEarly { history: ClusterId(2), .. })), "{:?}", moment(200));
        assert_eq!(moment(20).expect("nothing changed until 50"), (1, 10));
        assert_eq!(moment(350).expect("nothing changed until 400"), (2, 1_000_000_050));
        // Nothing shows what was written after the last one of a history.
        assert!(matches!(moment(70), Err(LookupError::NotCovered { .. })));
        assert!(matches!(moment(500), Err(LookupError::NotCovered { .. })));
        let revision = |revision| find(fulls(), RestoreTarget::Revision(revision));
        assert!(matches!(revision(1_000_000_020), Err(LookupError::Chain(ChainError::Ends { last: 10, .. }))));
        assert_eq!(revision(10).expect("it is there"), (1, 10));
        assert_eq!(find(fulls(), RestoreTarget::Newest).expect("the newest"), (2, 1_000_000_050));
        // Also when a clock of the first history was ahead.
        let ahead = vec![full(1, 0, 10), full(1, 9000, 11), full(2, 300, 1_000_000_050)];
        assert_eq!(find(ahead, RestoreTarget::Newest).expect("the newest"), (2, 1_000_000_050));
    }

    /// A batch of one change each second, from a revision and a second on, seen then or all at `late`.
    fn batch(full: &Manifest, revisions: (i64, i64), seen: i64, late: Option<i64>) -> (Batch, Vec<(i64, Timestamp)>) {
        let (from, to) = revisions;
        let moment = |revision: i64| at(if late.is_some() { seen } else { seen + revision - from - 1 });
        let times: Vec<_> = (from + 1..=to).map(|revision| (revision, moment(revision))).collect();
        let stored = super::super::Stored { bytes: 1, sha256: "cc".to_owned() };
        let batch = Batch {
            format: Manifest::FORMAT,
            base: full.about.name,
            number: 1,
            cluster_id: full.about.cluster_id,
            after: full.check().expect("a check"),
            from,
            to,
            until: moment(to),
            late,
            lines: stored.clone(),
            object: stored,
            coding: super::super::Coding::default(),
        };
        (batch, times)
    }

    /// Machines follow the first; an operator made the second; another machine has just begun to follow that one.
    #[test]
    fn the_changes_that_lead_further_count() {
        let (first, second) = (full(1, 0, 10), full(1, 100, 20));
        let catalog = Catalog { fulls: vec![first.clone(), second.clone()], ..Catalog::default() };
        let followed = batch(&first, (10, 50), 90, None);
        let find = |begun: Option<(Batch, Vec<(i64, Timestamp)>)>, target| {
            let mut evidence = Evidence::default();
            for (batch, times) in [Some(followed.clone()), begun].into_iter().flatten() {
                evidence.times.insert(batch.name(), times);
                evidence.batches.insert(batch.base, vec![batch]);
            }
            evidence.batches.entry(second.about.name).or_default();
            match catalog.locate(target, &evidence, at(10_000)) {
                Ok(Lookup::Found(point)) => (point.full.about.name.revision(), point.last()),
                other => panic!("{other:?}"),
            }
        };
        let late = || Some(batch(&second, (20, 30), 500, Some(60)));
        for begun in [None, late()] {
            assert_eq!(find(begun.clone(), RestoreTarget::Newest), (10, 50));
            assert_eq!(find(begun.clone(), RestoreTarget::Revision(40)), (10, 40));
            // Revision 31 was written at 110; an agent that began to watch later saw it at 500.
            assert_eq!(find(begun, RestoreTarget::Moment(at(110))), (10, 31));
        }
    }

    #[test]
    fn what_may_be_the_newest_is_not_passed_over() {
        let doubtful = FullName::new(at(60), 99);
        let future = FullName::new(at(1_000_000), 99);
        let with = |doubtful: FullName| {
            let doubtful = BTreeSet::from([doubtful]);
            Catalog { fulls: vec![full(1, 50, 10)], doubtful, known: Vec::new() }
                .newest(at(10_000))
                .map(|full| full.about.name)
        };
        assert!(matches!(with(doubtful), Err(LookupError::Doubtful { doubtful: found }) if found == doubtful));
        assert_eq!(with(future).expect("names of the future are passed over"), FullName::new(at(50), 10));
    }
}
