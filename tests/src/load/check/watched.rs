//! The watch during the load, the members' histories afterwards → every change once and in order, the same from all.

use std::collections::{BTreeMap, BTreeSet};

use super::super::call::Key;
use super::super::history::{Event, History};
use super::{Past, Rule, Violation};

type Told = (i64, Key, Option<u64>, i64);

fn output(event: &Event) -> Told {
    (event.revision, event.key, event.value, event.version)
}

pub(super) fn check(history: &History, past: &Past) -> Vec<Violation> {
    let mut found = Vec::new();
    sequence("the watch", &history.events, past, &mut found);
    let live: BTreeSet<Told> = history.events.iter().map(output).collect();
    let whole: BTreeSet<Told> = past.events.iter().map(output).collect();
    for event in whole.difference(&live) {
        found.push(Violation { rule: Rule::WatchMissed, what: format!("the watch did not tell {event:?}") });
    }
    for event in live.difference(&whole).filter(|(revision, ..)| *revision <= past.last) {
        found.push(Violation { rule: Rule::MembersDiffer, what: format!("only the watch tells {event:?}") });
    }
    let replays = history.ending.iter().flat_map(|ending| &ending.replays);
    for (member, events) in replays.filter_map(|replay| Some((replay.member, replay.events.as_ref()?))) {
        sequence(&format!("{member}, looking back,"), events, past, &mut found);
        let tells: BTreeSet<Told> = events.iter().map(output).collect();
        for event in tells.symmetric_difference(&whole) {
            let what = format!("{member} and another member do not both tell {event:?}");
            found.push(Violation { rule: Rule::MembersDiffer, what });
        }
    }
    found
}

/// etcd counts a key's writes in its version, so that even a change that no other source reported leaves a gap.
fn sequence(source: &str, events: &[Event], past: &Past, found: &mut Vec<Violation>) {
    let mut violated = |rule, what: String| found.push(Violation { rule, what: format!("{source} {what}") });
    let mut seen: BTreeSet<(i64, Key)> = BTreeSet::new();
    let mut versions: BTreeMap<Key, i64> = BTreeMap::new();
    let mut newest = past.first;
    for event in events {
        if !seen.insert((event.revision, event.key)) {
            violated(Rule::WatchRepeated, format!("told twice {event:?}"));
            continue;
        }
        if event.revision < newest {
            violated(Rule::WatchOrder, format!("told after revision {newest} {event:?}"));
        }
        newest = newest.max(event.revision);
        let before = versions.insert(event.key, event.version).unwrap_or(0);
        // A deletion has the version 0, and the key begins at 1 again.
        if event.version != 0 && event.version != before + 1 {
            violated(Rule::WatchMissed, format!("told version {before} of a key and then {event:?}"));
        }
    }
}
