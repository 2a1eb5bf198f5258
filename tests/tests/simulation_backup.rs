//! Two years of schedules, outages, drills and half-made backups → retention never takes what somebody still needs.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::catch_unwind;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use raftsman_core::backup::{FullName, Keep, Kept, Verdict, judge};
use raftsman_tests::dice::Dice;

/// What takes long is looked at after every so many runs: what was taken once does not come back.
const LOOKS: u64 = 97;

type Judge = fn(&[Kept], Keep, Timestamp) -> Verdict;

/// What the test knows, beside what is in the store.
struct World {
    seed: u64,
    now: Timestamp,
    keep: Keep,
    store: BTreeMap<FullName, Kept>,
    /// Every backup that ever counted.
    history: BTreeSet<FullName>,
    deleted: usize,
    runs: u64,
}

fn hours(n: i64) -> SignedDuration {
    SignedDuration::from_hours(n)
}

/// The last so many periods of the history, each with its backups.
fn periods<P: Ord>(history: &BTreeSet<FullName>, most: u32, period: impl Fn(FullName) -> P) -> Vec<Vec<FullName>> {
    let mut all: BTreeMap<P, Vec<FullName>> = BTreeMap::new();
    for name in history {
        all.entry(period(*name)).or_default().push(*name);
    }
    all.into_values().rev().take(most as usize).collect()
}

impl World {
    fn list(&self) -> Vec<Kept> {
        self.store.values().copied().collect()
    }

    /// Whether this moment can be restored: from a backup that counts, and the changes since.
    fn restorable(store: &BTreeMap<FullName, Kept>, moment: Timestamp) -> bool {
        let covers = |kept: &Kept| {
            kept.complete && kept.name.taken() <= moment && kept.changes_until.is_some_and(|until| until >= moment)
        };
        store.values().any(covers)
    }

    fn retain(&mut self, judge: Judge) {
        let seed = self.seed;
        let before = self.store.clone();
        let Verdict { fulls, changes } = judge(&self.list(), self.keep, self.now);
        self.deleted += fulls.len();
        for name in &changes {
            self.store.get_mut(name).expect("changes that are there").changes_until = None;
        }
        for name in &fulls {
            let gone = self.store.remove(name).expect("a backup that is there");
            assert_eq!(gone.changes_until, None, "seed {seed}: the changes since {name} need it");
        }
        for kept in before.values().filter(|kept| !kept.complete) {
            let old = kept.name.taken() + hours(24) < self.now;
            assert_eq!(!old, self.store.contains_key(&kept.name), "seed {seed}: {} half made", kept.name);
        }
        let complete = |store: &BTreeMap<FullName, Kept>, proven: bool| {
            store.values().rev().find(|kept| kept.complete && (kept.proven || !proven)).map(|kept| kept.name)
        };
        assert_eq!(complete(&self.store, false), complete(&before, false), "seed {seed}: the newest");
        assert_eq!(complete(&self.store, true), complete(&before, true), "seed {seed}: the newest that was proven");
        self.runs += 1;
        if !self.runs.is_multiple_of(LOOKS) {
            return;
        }
        // Every moment of the time that is kept, as far as it could be restored before.
        let window = i64::try_from(self.keep.changes_s).expect("a span");
        for step in 0..=20 {
            let moment = self.now - SignedDuration::from_secs(window * step / 20);
            let could = World::restorable(&before, moment);
            assert_eq!(could, could && World::restorable(&self.store, moment), "seed {seed}: {moment} at {}", self.now);
        }
        // And what the file promises, reckoned from all that ever was.
        let utc = |name: FullName| name.taken().to_zoned(TimeZone::UTC).datetime();
        let week = |name: FullName| (utc(name).date().iso_week_date().year(), utc(name).date().iso_week_date().week());
        let Keep { hourly, daily, weekly, .. } = self.keep;
        let promised = [
            periods(&self.history, hourly, |name| (utc(name).date(), utc(name).hour())),
            periods(&self.history, daily, |name| utc(name).date()),
            periods(&self.history, weekly, week),
        ];
        for (promise, of) in promised.iter().zip(["hour", "day", "week"]) {
            for backups in promise {
                let kept = backups.iter().any(|name| self.store.contains_key(name));
                assert!(kept, "seed {seed}: no backup of the {of} of {} is left at {}", backups[0], self.now);
            }
        }
        let reaching = self.store.values().filter(|kept| kept.changes_until.is_some()).count();
        let counted = self.store.values().filter(|kept| kept.complete).count();
        assert!(counted <= (hourly + daily + weekly) as usize + 2 + reaching, "seed {seed}: {counted} stay");
    }
}

/// Two years with this seed; how many backups were taken and how many deleted.
fn two_years(seed: u64, judge: Judge) -> (usize, usize) {
    let mut dice = Dice::new(seed);
    let most = |dice: &mut Dice, n: usize| u32::try_from(dice.below(n)).expect("small");
    let changes = [0, 600, 3 * 3600, 7 * 24 * 3600];
    let keep = Keep {
        hourly: most(&mut dice, 30),
        daily: most(&mut dice, 15),
        weekly: most(&mut dice, 60),
        changes_s: *dice.pick(&changes).expect("one"),
    };
    let every = *dice.pick(&[30, 60, 360, 1440]).expect("one");
    let now: Timestamp = "2026-11-15T23:00:00Z".parse().expect("a moment");
    let mut world = World { seed, now, keep, store: BTreeMap::new(), history: BTreeSet::new(), deleted: 0, runs: 0 };
    let end = now + hours(2 * 365 * 24);
    let (mut revision, mut taken) = (1, 0);
    while world.now < end {
        // The schedule, roughly; now and then nothing is done for days.
        let minutes = if dice.one_in(400) { 60 * 24 * dice.below(20) } else { every + dice.below(every / 4 + 1) };
        let gap = minutes > 2 * every;
        world.now += SignedDuration::from_mins(i64::try_from(minutes).expect("small"));
        let newest = world.store.values().rev().find(|kept| kept.complete).map(|kept| kept.name);
        if let Some(kept) = newest.and_then(|name| world.store.get_mut(&name))
            && keep.changes_s > 0
            && !gap
        {
            kept.changes_until = Some(world.now);
        }
        revision += i64::try_from(dice.below(1000)).expect("small");
        taken += 1;
        let name = FullName::new(world.now, revision);
        let complete = !dice.one_in(30);
        world.store.insert(name, Kept { name, complete, proven: false, changes_until: None });
        if complete {
            world.history.insert(name);
        }
        if dice.one_in(40)
            && let Some(kept) = world.store.values_mut().rev().find(|kept| kept.complete)
        {
            kept.proven = true;
        }
        // Retention runs after every backup, or lags behind.
        if !dice.one_in(5) {
            world.retain(judge);
        }
    }
    (taken, world.deleted)
}

#[test]
fn two_years_of_schedules() {
    let (mut taken, mut deleted) = (0, 0);
    for seed in 0..40 {
        let (more, gone) = two_years(seed, judge);
        taken += more;
        deleted += gone;
    }
    println!("{taken} backups taken, {deleted} deleted");
    assert!(taken > 100_000 && deleted > taken / 2, "{taken} {deleted}");
}

fn caught(broken: Judge) -> bool {
    (0..20).any(|seed| catch_unwind(|| two_years(seed, broken)).is_err())
}

#[test]
fn retentions_that_take_too_much_are_caught() {
    let forgets_proofs: Judge = |backups, keep, now| {
        let unproven: Vec<Kept> = backups.iter().map(|kept| Kept { proven: false, ..*kept }).collect();
        judge(&unproven, keep, now)
    };
    let forgets_changes: Judge = |backups, keep, now| {
        let without: Vec<Kept> = backups.iter().map(|kept| Kept { changes_until: None, ..*kept }).collect();
        judge(&without, keep, now)
    };
    let counts_what_is_half_made: Judge = |backups, keep, now| {
        let all: Vec<Kept> = backups.iter().map(|kept| Kept { complete: true, ..*kept }).collect();
        judge(&all, keep, now)
    };
    let keeps_one_day_less: Judge =
        |backups, keep, now| judge(backups, Keep { daily: keep.daily.saturating_sub(1), ..keep }, now);
    let keeps_everything: Judge = |_, _, _| Verdict::default();
    for (what, broken) in [
        ("forgets proofs", forgets_proofs),
        ("forgets changes", forgets_changes),
        ("counts what is half made", counts_what_is_half_made),
        ("keeps one day less", keeps_one_day_less),
        ("keeps everything", keeps_everything),
    ] {
        assert!(caught(broken), "one that {what} goes unnoticed");
    }
}
