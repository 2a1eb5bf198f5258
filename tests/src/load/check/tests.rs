//! Histories that are true and histories that are not → the latter are caught, each by its rule.

use std::time::{Duration, Instant};

use super::super::call::{Answer, Ask, Call, Key, Value};
use super::super::history::{Ending, Event, Final, History, Line, Replay};
use super::{Rule, Verdict};
use crate::dice::Dice;

const MILLI: u64 = 1_000_000;

/// A store as etcd is one, with calls that overlap and take effect somewhere in their middle.
struct Store {
    history: History,
    revision: i64,
    values: Vec<Option<Value>>,
    versions: Vec<i64>,
    next: Value,
}

impl Store {
    fn new(keys: usize) -> Self {
        Self { history: History::default(), revision: 1, values: vec![None; keys], versions: vec![0; keys], next: 1 }
    }

    fn value(&mut self) -> Value {
        self.next += 1;
        self.next
    }

    fn event(&mut self, at: u64, key: Key, value: Value) {
        self.values[key as usize] = Some(value);
        self.versions[key as usize] += 1;
        let (revision, version) = (self.revision, self.versions[key as usize]);
        self.history.events.push(Event { at: at + MILLI / 10, revision, key, value: Some(value), version });
    }

    /// Takes effect now.
    fn apply(&mut self, at: u64, ask: &Ask) -> Answer {
        match ask {
            Ask::Swap { key, expected, .. } if self.values[*key as usize] != *expected => {
                Answer::Kept { revision: self.revision, found: self.values[*key as usize] }
            }
            Ask::Put { .. } | Ask::Swap { .. } | Ask::PutAll { .. } => {
                self.revision += 1;
                for (key, value) in ask.writes() {
                    self.event(at, key, value);
                }
                Answer::Written { revision: self.revision }
            }
            Ask::Get { .. } | Ask::GetAll { .. } => Answer::Read {
                revision: self.revision,
                values: ask.reads().iter().map(|key| self.values[*key as usize]).collect(),
            },
        }
    }

    fn record(&mut self, begin: u64, end: u64, ask: Ask, answer: Answer) {
        self.history.calls.push(Call { worker: 0, begin, end, ask, answer, first_failure: None });
    }

    /// One call, with no concurrent one.
    fn alone(&mut self, ask: Ask) -> Answer {
        let begin = self.history.calls.iter().map(|call| call.end).max().unwrap_or(0) + MILLI;
        let answer = self.apply(begin + MILLI / 2, &ask);
        self.record(begin, begin + MILLI, ask, answer.clone());
        answer
    }

    fn put(&mut self, key: Key) -> Value {
        let value = self.value();
        self.alone(Ask::Put { key, value });
        value
    }

    fn end(mut self) -> History {
        let finals = self.history.events.iter().fold(std::collections::BTreeMap::new(), |mut finals, event| {
            finals.insert(event.key, Final { key: event.key, value: event.value, revision: event.revision });
            finals
        });
        let output = self.history.events.iter().map(|event| Event { at: 0, ..event.clone() });
        let replay = |n: u8| Replay { member: [127, 0, 0, n].into(), events: Some(output.clone().collect()) };
        self.history.ending = Some(Ending {
            stopped: self.history.calls.iter().map(|call| call.end).max().unwrap_or(0),
            first_revision: 1,
            last_revision: self.revision,
            finals: finals.into_values().collect(),
            replays: vec![replay(1), replay(2)],
            problems: Vec::new(),
        });
        self.history
    }
}

/// So many calls, so many at a time, in no particular order. Some answers are lost on the way.
fn busy(seed: u64, calls: usize, at_once: usize, keys: usize, lost_one_in: usize) -> History {
    let (mut dice, mut store) = (Dice::new(seed), Store::new(keys));
    let mut under_way: Vec<(u64, Ask, Option<Answer>)> = Vec::new();
    let (mut begun, mut now) = (0, 0);
    while begun < calls || !under_way.is_empty() {
        now += 1 + dice.below(usize::try_from(MILLI / 2).unwrap_or(1)) as u64;
        let key = |dice: &mut Dice| Key::try_from(dice.below(keys)).unwrap_or(0);
        if begun < calls && under_way.len() < at_once && !dice.one_in(3) {
            let first = key(&mut dice);
            let ask = match dice.below(10) {
                0..4 => Ask::Put { key: first, value: store.value() },
                4 | 5 => Ask::Swap { key: first, expected: store.values[first as usize], value: store.value() },
                6 => Ask::PutAll { pairs: vec![(first, store.value())] },
                7 => Ask::GetAll { keys: vec![first] },
                _ => Ask::Get { key: first },
            };
            under_way.push((now, ask, None));
            begun += 1;
        } else if !under_way.is_empty() {
            let index = dice.below(under_way.len());
            let (begin, ask, applied) = under_way.swap_remove(index);
            match applied {
                None if !ask.writes().is_empty() && dice.one_in(lost_one_in) => {
                    // Not applied, and its outcome is unknown.
                    store.record(begin, now, ask, Answer::Unknown { error: "lost".to_owned() });
                }
                None => {
                    let answer = store.apply(now, &ask);
                    under_way.push((begin, ask, Some(answer)));
                }
                Some(_) if !ask.writes().is_empty() && dice.one_in(lost_one_in) => {
                    // Applied, and its outcome is unknown.
                    store.record(begin, now, ask, Answer::Unknown { error: "lost".to_owned() });
                }
                Some(answer) => store.record(begin, now, ask, answer),
            }
        }
    }
    store.end()
}

fn rules(history: &History) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Verdict::of(history, None).violations.iter().map(|violation| violation.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

/// Applies this change to all sources of the history: the watch and the members.
fn all_orders(history: &mut History, change: impl Fn(&mut Vec<Event>)) {
    change(&mut history.events);
    for replay in &mut history.ending.as_mut().expect("an end").replays {
        change(replay.events.as_mut().expect("events"));
    }
}

#[test]
fn correct_histories_pass() {
    for seed in 0..60 {
        let history = busy(seed, 300, 6, 3, 20);
        let verdict = Verdict::of(&history, None);
        assert!(verdict.violations.is_empty(), "seed {seed}:\n{verdict}");
        assert!(verdict.figures.windows.largest > 3, "seed {seed}: nothing overlapped");
    }
}

#[test]
fn tens_of_thousands_of_calls_are_judged_in_seconds() {
    let history = busy(1, 40_000, 16, 32, 1_000);
    let begun = Instant::now();
    assert_eq!(rules(&history), []);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// A put of its own, between others, so that each test has a history to spoil.
fn three_puts() -> (History, Value) {
    let mut store = Store::new(2);
    store.put(0);
    let value = store.put(0);
    store.put(1);
    store.put(0);
    store.alone(Ask::Get { key: 0 });
    (store.end(), value)
}

#[test]
fn a_quiet_history_is_clean() {
    assert_eq!(rules(&three_puts().0), []);
}

#[test]
fn a_lost_write_is_caught() {
    let (mut history, value) = three_puts();
    // As if it had never happened, versions and all.
    all_orders(&mut history, |events| {
        events.retain(|event| event.value != Some(value));
        for event in events.iter_mut().filter(|event| event.key == 0 && event.version > 2) {
            event.version -= 1;
        }
    });
    assert_eq!(rules(&history), [Rule::LostWrite]);
}

#[test]
fn a_lost_last_write_is_caught() {
    let mut store = Store::new(1);
    store.put(0);
    let mut history = store.end();
    let lost = Call {
        worker: 1,
        begin: 10 * MILLI,
        end: 11 * MILLI,
        ask: Ask::Put { key: 0, value: 77 },
        answer: Answer::Written { revision: 3 },
        first_failure: None,
    };
    history.calls.push(lost);
    assert_eq!(rules(&history), [Rule::LostWrite]);
}

#[test]
fn a_key_that_went_back_is_caught() {
    let (mut history, value) = three_puts();
    for found in history.ending.as_mut().into_iter().flat_map(|ending| &mut ending.finals) {
        if found.key == 0 {
            (found.value, found.revision) = (Some(value), 3);
        }
    }
    assert_eq!(rules(&history), [Rule::FinalValue]);
}

#[test]
fn a_stale_read_is_caught() {
    let (mut history, value) = three_puts();
    for call in &mut history.calls {
        if let Answer::Read { revision, values } = &mut call.answer {
            (*revision, *values) = (3, vec![Some(value)]);
        }
    }
    // By the revisions, and by both checkers that do not use revisions.
    assert_eq!(rules(&history), [Rule::StaleRead, Rule::NotLinearizable]);
}

#[test]
fn a_stale_read_with_a_wrong_revision_is_caught() {
    let (mut history, value) = three_puts();
    for call in &mut history.calls {
        if let Answer::Read { values, .. } = &mut call.answer {
            *values = vec![Some(value)];
        }
    }
    assert_eq!(rules(&history), [Rule::StaleRead, Rule::NotLinearizable]);
}

#[test]
fn a_stale_read_among_many_calls_is_caught() {
    for seed in 0..40 {
        let mut history = busy(seed, 300, 6, 3, 20);
        // What was in the key two acknowledged writes ago.
        let mut old: Vec<(Key, Value, u64)> = Vec::new();
        for call in &history.calls {
            if call.acknowledged().is_some() {
                old.extend(call.ask.writes().into_iter().map(|(key, value)| (key, value, call.end)));
            }
        }
        let after = |key: Key, end: u64| {
            let writes = history.calls.iter().filter(|call| call.begin > end && call.acknowledged().is_some());
            writes.filter(|call| call.ask.writes().iter().any(|(written, _)| *written == key)).map(|c| c.end).min()
        };
        let stale = old.into_iter().find_map(|(key, value, end)| Some((key, value, after(key, after(key, end)?)?)));
        let (key, value, known) = stale.expect("a value that was overwritten");
        let read = history.calls.iter_mut().find(|call| call.begin > known && call.ask == Ask::Get { key });
        let read = read.expect("a read after that");
        if let Answer::Read { values, .. } = &mut read.answer {
            *values = vec![Some(value)];
        }
        let found = rules(&history);
        assert!(found.contains(&Rule::NotLinearizable), "seed {seed}: {found:?}");
        assert!(!found.contains(&Rule::CheckersDiffer), "seed {seed}: {found:?}");
    }
}

#[test]
fn a_repeated_event_is_caught() {
    let mut history = three_puts().0;
    let again = history.events[1].clone();
    history.events.insert(2, again);
    assert_eq!(rules(&history), [Rule::WatchRepeated]);
}

#[test]
fn an_event_that_comes_late_is_caught() {
    let mut history = three_puts().0;
    history.events.swap(1, 2);
    assert_eq!(rules(&history), [Rule::WatchOrder]);
}

#[test]
fn a_missing_event_is_caught() {
    let mut history = three_puts().0;
    history.events.remove(1);
    assert_eq!(rules(&history), [Rule::WatchMissed]);
}

#[test]
fn a_missing_event_is_caught_by_its_version_when_the_past_is_compacted() {
    let (mut history, value) = three_puts();
    // The write itself was not acknowledged, and the past is compacted: only etcd's version counter shows it.
    for replay in &mut history.ending.as_mut().expect("an end").replays {
        replay.events = None;
    }
    for call in history.calls.iter_mut().filter(|call| call.ask.writes().iter().any(|(_, v)| *v == value)) {
        call.answer = Answer::Unknown { error: "lost".to_owned() };
    }
    history.events.retain(|event| event.value != Some(value));
    assert_eq!(rules(&history), [Rule::WatchMissed]);
}

#[test]
fn the_missing_end_of_a_watch_is_caught() {
    let mut history = three_puts().0;
    history.events.pop();
    assert_eq!(rules(&history), [Rule::WatchMissed]);
}

#[test]
fn members_that_differ_are_caught() {
    let mut history = three_puts().0;
    let replays = &mut history.ending.as_mut().expect("an end").replays;
    replays[1].events.as_mut().expect("events")[1].value = Some(4711);
    assert_eq!(rules(&history), [Rule::MembersDiffer]);
}

#[test]
fn a_write_that_no_call_asked_for_is_caught() {
    let mut store = Store::new(1);
    store.put(0);
    store.revision += 1;
    store.event(10 * MILLI, 0, 4711);
    assert_eq!(rules(&store.end()), [Rule::Unexplained]);
}

#[test]
fn a_swap_that_was_refused_and_done_is_caught() {
    let mut store = Store::new(1);
    let before = store.put(0);
    let value = store.value();
    store.alone(Ask::Swap { key: 0, expected: Some(before), value });
    let mut history = store.end();
    history.calls[1].answer = Answer::Kept { revision: 3, found: Some(value) };
    assert!(rules(&history).contains(&Rule::Unexplained));
}

#[test]
fn a_torn_transaction_is_caught() {
    let mut store = Store::new(2);
    let pairs = vec![(0, store.value()), (1, store.value())];
    store.alone(Ask::PutAll { pairs });
    let mut history = store.end();
    let late = |event: &mut Event| {
        if event.key == 1 {
            event.revision += 1;
        }
    };
    all_orders(&mut history, |events| events.iter_mut().for_each(late));
    let ending = history.ending.as_mut().expect("an end");
    ending.last_revision += 1;
    ending.finals.iter_mut().filter(|found| found.key == 1).for_each(|found| found.revision += 1);
    assert_eq!(rules(&history), [Rule::Torn]);
}

#[test]
fn a_put_that_was_applied_twice_because_it_was_tried_twice_is_no_fault() {
    let mut store = Store::new(1);
    let value = store.value();
    store.alone(Ask::Put { key: 0, value });
    store.put(0);
    // The first try was under way for long, and came after the other client's put.
    store.revision += 1;
    store.event(20 * MILLI, 0, value);
    let mut history = store.end();
    history.calls[0].first_failure = Some("no answer".to_owned());
    let read = Answer::Read { revision: 4, values: vec![Some(value)] };
    let (begin, end) = (30 * MILLI, 31 * MILLI);
    history.calls.push(Call { worker: 0, begin, end, ask: Ask::Get { key: 0 }, answer: read, first_failure: None });
    assert_eq!(rules(&history), []);
}

#[test]
fn the_longest_gap_is_found_with_its_time() {
    let mut history = three_puts().0;
    for call in &mut history.calls[2..] {
        (call.begin, call.end) = (call.begin + 500 * MILLI, call.end + 500 * MILLI);
    }
    history.ending.as_mut().expect("an end").stopped = 511 * MILLI;
    let figures = Verdict::of(&history, None).figures;
    // Puts end at 2, 4, 506 and 508 ms.
    assert_eq!(figures.longest_gap.at, Duration::from_millis(4));
    assert_eq!(figures.longest_gap.length, Duration::from_millis(502));
}

#[test]
fn a_gap_that_lasts_until_the_end_counts() {
    let mut history = three_puts().0;
    history.ending.as_mut().expect("an end").stopped = 3_000 * MILLI;
    let figures = Verdict::of(&history, None).figures;
    assert_eq!(figures.longest_gap.length, Duration::from_millis(3_000 - 8));
}

#[test]
fn what_comes_after_the_end_is_no_gap() {
    let mut history = three_puts().0;
    history.calls[3].end = 3_000 * MILLI;
    history.ending.as_mut().expect("an end").stopped = 9 * MILLI;
    let figures = Verdict::of(&history, None).figures;
    assert_eq!(figures.longest_gap.length, Duration::from_millis(3));
}

#[test]
fn a_history_survives_its_file() {
    let history = busy(3, 50, 4, 2, 5);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut text = String::new();
    let mut line = |line: &Line| {
        text.push_str(&serde_json::to_string(line).expect("JSON"));
        text.push('\n');
    };
    history.calls.iter().for_each(|call| line(&Line::Call(call.clone())));
    history.events.iter().for_each(|event| line(&Line::Event(event.clone())));
    history.ending.iter().for_each(|ending| line(&Line::End(ending.clone())));
    std::fs::write(file.path(), text).expect("a file");
    let read = History::read(file.path()).expect("the file");
    assert_eq!((read.calls, read.events, read.ending), (history.calls, history.events, history.ending));
}
