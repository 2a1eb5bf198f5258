//! Years of schedules, outages, drills, half-made and forged backups → retention never takes what is still needed; years of
//! backups, restores, retention and clocks that are set → what a revision or a moment is restored from is what was there then,
//! or it is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::catch_unwind;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use raftsman_core::backup::history::begin;
use raftsman_core::backup::{
    About, Batch, Catalog, Coding, Evidence, FullName, Hashed, History, Keep, Kept, Lookup, Manifest, Point,
    RestoreTarget, Standing, Stored, Verdict, judge,
};
use raftsman_core::observed::ClusterId;
use raftsman_core::spec::{EtcdVersion, Name};
use raftsman_tests::dice::Dice;

/// What takes long is looked at after every so many runs: what was taken once does not come back.
const LOOKS: u64 = 97;

type Judge = fn(&[Kept], Keep, Option<ClusterId>, Timestamp) -> Verdict;

const HISTORY: ClusterId = ClusterId(1);

fn counts(kept: &Kept) -> bool {
    matches!(kept.standing, Standing::Verified { .. })
}

/// What the test has on record, beside what is in the store.
struct World {
    seed: u64,
    now: Timestamp,
    keep: Keep,
    store: BTreeMap<FullName, Kept>,
    /// Every backup that was ever valid.
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

    /// Whether this moment can be restored: from a valid backup, and the changes since.
    fn restorable(store: &BTreeMap<FullName, Kept>, moment: Timestamp) -> bool {
        let covers = |kept: &Kept| {
            counts(kept) && kept.name.taken() <= moment && kept.changes_until.is_some_and(|until| until >= moment)
        };
        store.values().any(covers)
    }

    fn retain(&mut self, judge: Judge) {
        let seed = self.seed;
        let before = self.store.clone();
        let Verdict { fulls, changes, .. } = judge(&self.list(), self.keep, Some(HISTORY), self.now);
        self.deleted += fulls.len();
        for name in &changes {
            self.store.get_mut(name).expect("changes that are there").changes_until = None;
        }
        for name in &fulls {
            let gone = self.store.remove(name).expect("a backup that is there");
            assert_eq!(gone.changes_until, None, "seed {seed}: the changes since {name} need it");
        }
        for kept in before.values().filter(|kept| kept.standing == Standing::Unfinished) {
            let old = kept.name.taken() + hours(24) < self.now;
            assert_eq!(!old, self.store.contains_key(&kept.name), "seed {seed}: {} half made", kept.name);
        }
        for kept in before.values().filter(|kept| kept.standing == Standing::Unverified) {
            assert!(self.store.contains_key(&kept.name), "seed {seed}: {} is not ours to remove", kept.name);
        }
        let last = before.values().rev().filter(|kept| counts(kept)).take(self.keep.last as usize);
        for kept in last {
            assert!(self.store.contains_key(&kept.name), "seed {seed}: {} is one of the last", kept.name);
        }
        let complete = |store: &BTreeMap<FullName, Kept>, proven: bool| {
            store.values().rev().find(|kept| counts(kept) && (kept.proven || !proven)).map(|kept| kept.name)
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
        // And what the file promises, computed from all backups that ever existed.
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
        let counted = self.store.values().filter(|kept| counts(kept)).count();
        assert!(
            counted <= (hourly + daily + weekly + 2 * self.keep.last) as usize + 2 + reaching,
            "seed {seed}: {counted} stay"
        );
    }
}

/// Two years with this seed; how many backups were taken and how many deleted.
fn two_years(seed: u64, judge: Judge) -> (usize, usize) {
    let mut dice = Dice::new(seed);
    let most = |dice: &mut Dice, n: usize| u32::try_from(dice.below(n)).expect("small");
    let changes = [0, 600, 3 * 3600, 7 * 24 * 3600];
    let keep = Keep {
        last: 1 + most(&mut dice, 4),
        hourly: most(&mut dice, 30),
        daily: most(&mut dice, 15),
        weekly: most(&mut dice, 60),
        changes_s: *dice.pick(&changes).expect("one"),
    };
    let every = *dice.pick(&[30, 60, 360, 1440]).expect("one");
    let now: Timestamp = "2026-11-15T23:00:00Z".parse().expect("a moment");
    let mut world = World { seed, now, keep, store: BTreeMap::new(), history: BTreeSet::new(), deleted: 0, runs: 0 };
    let end = now + hours(2 * 365 * 24);
    let (mut revision, mut taken, mut forged) = (1, 0, 0);
    while world.now < end {
        // The schedule, roughly; now and then nothing is done for days.
        let minutes = if dice.one_in(400) { 60 * 24 * dice.below(20) } else { every + dice.below(every / 4 + 1) };
        let gap = minutes > 2 * every;
        world.now += SignedDuration::from_mins(i64::try_from(minutes).expect("small"));
        let newest = world.store.values().rev().find(|kept| counts(kept)).map(|kept| kept.name);
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
        let standing = if complete { Standing::Verified { history: HISTORY } } else { Standing::Unfinished };
        world.store.insert(name, Kept { name, standing, proven: false, changes_until: None });
        if complete {
            world.history.insert(name);
        }
        // An attacker with write access to the store puts junk there: of now, and of the future.
        for ahead in [0, 24, 24 * 365] {
            if dice.one_in(60) && forged < 30 {
                forged += 1;
                let name = FullName::new(world.now + hours(ahead) + SignedDuration::from_secs(1), revision);
                let standing = Standing::Unverified;
                world.store.insert(name, Kept { name, standing, proven: true, changes_until: None });
            }
        }
        if dice.one_in(40)
            && let Some(kept) = world.store.values_mut().rev().find(|kept| counts(kept))
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
    let forgets_proofs: Judge = |backups, keep, current, now| {
        let unproven: Vec<Kept> = backups.iter().map(|kept| Kept { proven: false, ..*kept }).collect();
        judge(&unproven, keep, current, now)
    };
    let forgets_changes: Judge = |backups, keep, current, now| {
        let without: Vec<Kept> = backups.iter().map(|kept| Kept { changes_until: None, ..*kept }).collect();
        judge(&without, keep, current, now)
    };
    let counts_what_is_half_made: Judge = |backups, keep, current, now| {
        let all = backups.iter().map(|kept| match kept.standing {
            Standing::Unfinished => Kept { standing: Standing::Verified { history: HISTORY }, ..*kept },
            Standing::Verified { .. } | Standing::Unverified => *kept,
        });
        judge(&all.collect::<Vec<_>>(), keep, current, now)
    };
    let trusts_names: Judge = |backups, keep, current, now| {
        let all = backups.iter().map(|kept| match kept.standing {
            Standing::Unverified => Kept { standing: Standing::Verified { history: HISTORY }, ..*kept },
            Standing::Verified { .. } | Standing::Unfinished => *kept,
        });
        judge(&all.collect::<Vec<_>>(), keep, current, now)
    };
    let removes_what_it_cannot_verify: Judge = |backups, keep, current, now| {
        let mut verdict = judge(backups, keep, current, now);
        verdict.fulls.extend(std::mem::take(&mut verdict.ignored));
        verdict
    };
    let keeps_one_day_less: Judge = |backups, keep, current, now| {
        judge(backups, Keep { daily: keep.daily.saturating_sub(1), ..keep }, current, now)
    };
    let keeps_the_last_only_once: Judge =
        |backups, keep, current, now| judge(backups, Keep { last: 1, ..keep }, current, now);
    let keeps_everything: Judge = |_, _, _, _| Verdict::default();
    for (what, broken) in [
        ("forgets proofs", forgets_proofs),
        ("forgets changes", forgets_changes),
        ("counts what is half made", counts_what_is_half_made),
        ("keeps one day less", keeps_one_day_less),
        ("keeps one of the last", keeps_the_last_only_once),
        ("trusts names", trusts_names),
        ("removes what it cannot verify", removes_what_it_cannot_verify),
        ("keeps everything", keeps_everything),
    ] {
        assert!(caught(broken), "one that {what} goes unnoticed");
    }
}

/// One change, in a history: when the agent that records it saw it, by its clock, and all that this clock showed until
/// the next.
#[derive(Debug, Clone)]
struct Written {
    revision: i64,
    at: Timestamp,
    lowest: Timestamp,
    highest: Timestamp,
}

/// A cluster over years, with its true history, and a store with what was backed up.
struct Life {
    dice: Dice,
    seed: u64,
    /// Whether clocks are set.
    clocks: bool,
    /// The time that it is, and what a clock shows beyond it.
    now: Timestamp,
    ahead: SignedDuration,
    histories: Vec<History>,
    truth: BTreeMap<ClusterId, Vec<Written>>,
    revision: i64,
    fulls: BTreeMap<FullName, Manifest>,
    batches: BTreeMap<FullName, Vec<Batch>>,
    /// The backup that changes are written down since, what they follow, and what is not written down yet.
    base: Option<(FullName, String, i64)>,
    pending: Vec<(i64, Timestamp)>,
    /// What was done up to this revision was seen after the fact.
    late: i64,
    times: BTreeMap<raftsman_core::backup::BatchName, Vec<(i64, Timestamp)>>,
    found: usize,
    refused: usize,
}

/// How something is looked up: ours, or one that is broken.
type Find = fn(&Life, RestoreTarget) -> Option<Point>;

fn ours(life: &Life, target: RestoreTarget) -> Option<Point> {
    let known = if life.seed.is_multiple_of(2) { life.histories.clone() } else { Vec::new() };
    let catalog = Catalog { fulls: life.fulls.values().cloned().collect(), doubtful: BTreeSet::new(), known };
    let mut evidence = Evidence::default();
    loop {
        match catalog.locate(target, &evidence, life.clock()) {
            Ok(Lookup::Found(point)) => return Some(*point),
            Ok(Lookup::NeedsBatches(name)) => {
                evidence.batches.insert(name, life.batches.get(&name).cloned().unwrap_or_default());
            }
            Ok(Lookup::NeedsTimes(batch)) => {
                evidence.times.insert(batch.name(), life.times[&batch.name()].clone());
            }
            Err(_) => return None,
        }
    }
}

/// As it was: the newest backup before the moment, whatever history it is of, with what is there of changes.
fn whatever_is_near(life: &Life, target: RestoreTarget) -> Option<Point> {
    let RestoreTarget::Moment(moment) = target else { return ours(life, target) };
    for full in life.fulls.values().rev().filter(|full| full.about.name.taken() <= moment) {
        let all = life.batches.get(&full.about.name).cloned().unwrap_or_default();
        let mut revision = full.about.name.revision();
        for batch in &all {
            let seen = life.times[&batch.name()].iter().filter(|(_, at)| *at <= moment);
            revision = seen.map(|(revision, _)| *revision).max().unwrap_or(revision);
        }
        if revision >= full.most() || full.finished <= moment {
            return Some(Point { full: full.clone(), batches: all, revision: Some(revision) });
        }
    }
    None
}

/// Forgets which histories there were: each backup is of a cluster that was bootstrapped with nothing.
fn one_history(life: &Life, target: RestoreTarget) -> Option<Point> {
    let RestoreTarget::Moment(moment) = target else { return ours(life, target) };
    let full = life.fulls.values().rev().find(|full| full.about.begun <= moment)?;
    let known = vec![History::first(full.about.cluster_id)];
    let same = |other: &&Manifest| other.about.cluster_id == full.about.cluster_id;
    let fulls: Vec<Manifest> = life.fulls.values().filter(same).cloned().collect();
    let batches = life.batches.get(&full.about.name).cloned().unwrap_or_default();
    let last = batches.last().map_or(full.about.name.revision(), |batch| batch.to);
    let catalog = Catalog { fulls, doubtful: BTreeSet::new(), known };
    let evidence = Evidence { batches: BTreeMap::from([(full.about.name, batches)]), times: life.times.clone() };
    match catalog.locate(RestoreTarget::Revision(last), &evidence, life.clock()) {
        Ok(Lookup::Found(point)) => Some(*point),
        _ => None,
    }
}

impl Life {
    fn new(seed: u64, clocks: bool) -> Self {
        let now: Timestamp = "2026-11-15T23:00:00Z".parse().expect("a moment");
        let id = ClusterId(1);
        let first = Written { revision: 1, at: now, lowest: now, highest: now };
        Self {
            dice: Dice::new(seed),
            seed,
            clocks,
            now,
            ahead: SignedDuration::ZERO,
            histories: vec![History::first(id)],
            truth: BTreeMap::from([(id, vec![first])]),
            revision: 1,
            fulls: BTreeMap::new(),
            batches: BTreeMap::new(),
            base: None,
            pending: Vec::new(),
            late: 0,
            times: BTreeMap::new(),
            found: 0,
            refused: 0,
        }
    }

    fn clock(&self) -> Timestamp {
        // To the second, as backups are named.
        Timestamp::from_second((self.now + self.ahead).as_second()).expect("a moment")
    }

    fn history(&self) -> ClusterId {
        self.histories.last().expect("one").id
    }

    /// What the clock shows now is shown while the last change is the last.
    fn show(&mut self) {
        let (clock, history) = (self.clock(), self.history());
        let last = self.truth.get_mut(&history).and_then(|all| all.last_mut()).expect("one");
        (last.lowest, last.highest) = (last.lowest.min(clock), last.highest.max(clock));
    }

    fn pass(&mut self, seconds: usize) {
        self.show();
        self.now += SignedDuration::from_secs(i64::try_from(seconds).expect("small"));
        self.show();
    }

    fn write(&mut self) {
        let seconds = 1 + self.dice.below(400);
        self.pass(seconds);
        let clock = self.clock();
        self.revision += 1;
        let (history, revision) = (self.history(), self.revision);
        let written = Written { revision, at: clock, lowest: clock, highest: clock };
        self.truth.get_mut(&history).expect("it").push(written);
        if self.base.is_some() {
            if self.pending.last().is_some_and(|(_, last)| clock < *last) {
                self.flush();
            }
            self.pending.push((revision, clock));
        }
    }

    /// Writes down what is pending.
    fn flush(&mut self) {
        let Some((base, after, from)) = self.base.clone() else { return };
        let pending = std::mem::take(&mut self.pending);
        let Some((to, until)) = pending.last().copied() else { return };
        let all = self.batches.entry(base).or_default();
        let stored = Stored { bytes: 1, sha256: format!("{to}") };
        let number = all.len() as u64 + 1;
        let (lines, object, coding) = (stored.clone(), stored, Coding::default());
        let cluster_id = self.histories.last().expect("one").id;
        let format = Manifest::FORMAT;
        let late = Some(self.late).filter(|late| *late > from);
        let batch = Batch { format, base, number, cluster_id, after, from, to, until, late, lines, object, coding };
        self.base = Some((base, batch.check().expect("a check"), to));
        self.times.insert(batch.name(), pending);
        all.push(batch);
    }

    fn full(&mut self) {
        self.pass(1);
        let (begun, revision) = (self.clock(), self.revision);
        let name = FullName::new(begun, revision);
        if self.fulls.contains_key(&name) {
            return;
        }
        // While it is sent, clients write.
        for _ in 0..self.dice.below(3) {
            self.write();
        }
        self.flush();
        // An operator made it: what changes is still written down since the one before.
        let (followed, late) = (self.base.clone().filter(|_| self.dice.one_in(4)), self.late);
        let stored = Stored { bytes: 1, sha256: "aa".to_owned() };
        let about = About {
            name,
            fleet: Name::fixed("shop"),
            fleet_id: "f".to_owned(),
            cluster: Name::fixed("main"),
            cluster_id: self.history(),
            member: Name::fixed("main-1"),
            version: EtcdVersion::default(),
            begun,
            upto: Some(self.revision),
            histories: self.histories.clone(),
            previous: None,
        };
        let hashed = Hashed { hash: 1, compacted: 0, keys: 1 };
        let (format, finished, coding) = (Manifest::FORMAT, self.clock(), Coding::default());
        let full = Manifest { format, about, finished, hashed, snapshot: stored.clone(), object: stored, coding };
        self.base = Some((name, full.check().expect("a check"), revision));
        self.begin_after(revision);
        if followed.is_some() {
            (self.base, self.pending, self.late) = (followed, Vec::new(), late);
        }
        self.fulls.insert(name, full);
    }

    /// An agent that begins to watch gets earlier changes at once, after the fact.
    fn begin_after(&mut self, revision: i64) {
        let (clock, of) = (self.clock(), &self.truth[&self.history()]);
        self.pending = of.iter().filter(|it| it.revision > revision).map(|it| (it.revision, clock)).collect();
        self.late = self.revision;
    }

    /// Another machine goes on, with the newest backup, and is not done with what came since when it is killed.
    fn take_over(&mut self) {
        let of_it = self.fulls.values().filter(|full| full.about.cluster_id == self.history());
        let Some(full) = of_it.max_by_key(|full| full.about.name.revision()).cloned() else { return };
        let name = full.about.name;
        let last = self.batches.get(&name).and_then(|all| all.last());
        let (after, from) = last.map_or((full.check(), name.revision()), |last| (last.check(), last.to));
        self.base = Some((name, after.expect("a check"), from));
        self.begin_after(from);
        let rest = self.pending.split_off(self.pending.len() / 2);
        self.flush();
        self.pending = rest;
    }

    fn restore(&mut self) {
        let target = match self.dice.below(3) {
            0 => RestoreTarget::Newest,
            1 => RestoreTarget::Moment(self.clock() - hours(i64::try_from(self.dice.below(50)).expect("small"))),
            _ => RestoreTarget::Revision((self.revision - i64::try_from(self.dice.below(500)).expect("small")).max(1)),
        };
        let Some(point) = ours(self, target) else { return };
        self.pass(60);
        let id = ClusterId(self.histories.len() as u64 + 1);
        let (parent, clock) = (Some(point.full.about.cluster_id), self.clock());
        // The operator's clock is another one.
        let began = self.now + SignedDuration::from_secs(i64::try_from(self.dice.below(20)).expect("small") - 10);
        let revision = Some(point.last());
        begin(&mut self.histories, History { id, parent, revision, began: Some(began) });
        self.revision += 1_000_000_000;
        let first = Written { revision: self.revision, at: clock, lowest: clock, highest: clock };
        self.truth.insert(id, vec![first]);
        self.base = None;
        self.pending.clear();
    }

    fn retain(&mut self, keep: Keep) {
        let kept: Vec<Kept> = self
            .fulls
            .values()
            .map(|full| {
                let name = full.about.name;
                let standing = Standing::Verified { history: full.about.cluster_id };
                let changes_until = self.batches.get(&name).and_then(|all| all.last()).map(|batch| batch.until);
                Kept { name, standing, proven: false, changes_until }
            })
            .collect();
        let verdict = judge(&kept, keep, Some(self.history()), self.clock());
        self.batches.retain(|name, _| !verdict.changes.contains(name) && !verdict.fulls.contains(name));
        self.fulls.retain(|name, _| !verdict.fulls.contains(name));
        if let Some((base, ..)) = self.base
            && !self.fulls.contains_key(&base)
        {
            panic!("seed {}: {base} is still followed", self.seed);
        }
    }

    /// Whether it must be found: a full backup of the history in force from before it, and changes from there past it.
    /// Of moments only as long as no clock was ever set.
    fn is_there(&self, target: RestoreTarget) -> bool {
        let of = &self.truth[&self.history()];
        let (at, past, begun) = match target {
            RestoreTarget::Revision(revision) => (revision, revision, Timestamp::MAX),
            RestoreTarget::Moment(moment) if !self.clocks && of[0].at + SignedDuration::from_secs(20) < moment => {
                let Some(next) = of.iter().find(|it| it.at > moment) else { return false };
                // From a full backup of before it: a later one does not show when its contents were written.
                (next.revision - 1, next.revision, moment)
            }
            _ => return false,
        };
        let leads_there = |full: &Manifest| {
            let written = |revision: i64| {
                let mut changes = self.batches.get(&full.about.name).into_iter().flatten();
                changes.find(|batch| batch.from < revision && revision <= batch.to)
            };
            // Not by an agent that began to watch later, and saw both after the fact.
            let timed = |revision: i64| {
                let late = written(revision).and_then(|batch| batch.late);
                begun == Timestamp::MAX || late.is_none_or(|late| late < revision)
            };
            full.about.cluster_id == self.history()
                && full.most() <= at
                && full.about.begun <= begun
                && written(past).is_some()
                && timed(past)
                && timed(at)
        };
        self.fulls.values().any(leads_there)
    }

    /// What is found is what was there then.
    fn look(&mut self, find: Find) {
        let back = SignedDuration::from_secs(i64::try_from(self.dice.below(4 * 24 * 3600)).expect("small"));
        let target = match self.dice.below(6) {
            0 => RestoreTarget::Newest,
            1 | 2 => {
                RestoreTarget::Revision((self.revision - i64::try_from(self.dice.below(300)).expect("small")).max(1))
            }
            _ => RestoreTarget::Moment(self.clock() - back),
        };
        let Some(point) = find(self, target) else {
            self.refused += 1;
            let there = self.is_there(target);
            assert!(!there, "seed {}: {target:?} at {} is there and was refused", self.seed, self.clock());
            return;
        };
        self.found += 1;
        let (history, last) = (point.full.about.cluster_id, point.last());
        let what = format!("seed {}: {target:?} at {}: {last} of {history}", self.seed, self.clock());
        let here = self.truth[&history].iter().find(|it| it.revision == last);
        let here = here.unwrap_or_else(|| panic!("{what}: no such revision in that history"));
        match target {
            RestoreTarget::Revision(revision) => assert_eq!(last, revision, "{what}"),
            // A clock is read before what it is read for is done.
            RestoreTarget::Moment(moment) => {
                let second = SignedDuration::from_secs(1);
                let shown = here.lowest - second <= moment && moment <= here.highest + second;
                assert!(shown, "{what}: the clock showed {} to {} then", here.lowest, here.highest);
            }
            RestoreTarget::Newest => {
                let reached = |full: &Manifest| {
                    let changes = self.batches.get(&full.about.name).and_then(|all| all.last());
                    changes.map_or(full.about.name.revision(), |batch| batch.to)
                };
                let most = self.fulls.values().filter(|full| full.about.cluster_id == history).map(reached).max();
                assert_eq!(Some(last), most, "{what}: not all that there is");
            }
            RestoreTarget::Backup(_) => {}
        }
    }
}

/// Years of it. How much was found, and how much refused.
fn years(seed: u64, clocks: bool, find: Find) -> (usize, usize) {
    let mut life = Life::new(seed, clocks);
    let keep = Keep { last: 2, hourly: 6, daily: 4, weekly: 2, changes_s: 2 * 24 * 3600 };
    for step in 0..2500 {
        for _ in 0..life.dice.below(4) {
            life.write();
        }
        let seconds = life.dice.below(3600);
        life.pass(seconds);
        if !life.dice.one_in(8) {
            life.flush();
        }
        if life.dice.one_in(40) {
            // No agent recorded the changes: only a full backup has them.
            life.base = None;
            life.pending.clear();
        }
        if life.dice.one_in(6) {
            life.full();
            // Machines remove what is old when they have made one, not when an operator has.
            if life.base.as_ref().is_none_or(|(base, ..)| life.fulls.keys().next_back() == Some(base)) {
                life.retain(keep);
            }
        }
        if life.base.is_some() && life.dice.one_in(30) {
            life.pass(20);
            life.take_over();
        }
        if life.dice.one_in(90) {
            life.restore();
        }
        if clocks && life.dice.one_in(120) {
            // A clock is set: back, ahead, or right again.
            life.show();
            life.ahead = match life.dice.below(4) {
                0 => SignedDuration::from_hours(-3),
                1 => SignedDuration::from_hours(5),
                _ => SignedDuration::ZERO,
            };
            life.show();
        }
        if step % 5 == 0 {
            life.look(find);
        }
    }
    (life.found, life.refused)
}

#[test]
fn years_of_restores_and_clocks() {
    let (mut found, mut refused) = (0, 0);
    for seed in 0..40 {
        let (more, less) = years(seed, seed % 4 > 1, ours);
        found += more;
        refused += less;
    }
    println!("{found} found, {refused} refused");
    // What is refused was never written down, or is gone: each refusal is checked for that.
    assert!(found > 5000 && refused > 5000, "{found} found, {refused} refused");
}

#[test]
fn look_ups_that_take_something_near_are_caught() {
    for (what, broken) in [("takes whatever is near", whatever_is_near as Find), ("forgets histories", one_history)] {
        let caught = (0..10).any(|seed| catch_unwind(|| years(seed, false, broken)).is_err());
        assert!(caught, "one that {what} goes unnoticed");
    }
}
