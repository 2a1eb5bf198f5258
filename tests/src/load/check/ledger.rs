//! Acknowledged writes, the cluster's past, the keys at the end → what was lost, and what no call wrote.

use std::collections::BTreeMap;

use super::super::call::{Answer, Call, Key, Value};
use super::super::history::{Event, History};
use super::{Past, Rule, Violation};

pub(super) fn check(history: &History, past: &Past) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut violated = |rule, what| found.push(Violation { rule, what });
    for call in &history.calls {
        let Some(revision) = call.acknowledged() else { continue };
        for (key, value) in call.ask.writes() {
            match past.at(revision, key).map(|event| event.value) {
                Some(Some(there)) if there == value => {}
                Some(there) => violated(
                    Rule::LostWrite,
                    format!("acknowledged, but at its revision key {key} became {there:?}: {call:?}"),
                ),
                // Every write of a transaction has the same revision: one that is elsewhere was torn off.
                None if past.events.iter().any(|event| event.value == Some(value)) => {
                    violated(Rule::Torn, format!("key {key} was not written at the revision of its call: {call:?}"));
                }
                None => violated(Rule::LostWrite, format!("acknowledged, and not there: {call:?}")),
            }
        }
    }

    let mut last: BTreeMap<Key, &Event> = BTreeMap::new();
    for event in &past.events {
        last.insert(event.key, event);
    }
    if let Some(ending) = &history.ending {
        for problem in &ending.problems {
            violated(Rule::Unfinished, problem.clone());
        }
        let finals: BTreeMap<Key, _> = ending.finals.iter().map(|found| (found.key, found)).collect();
        for (key, event) in &last {
            let there = finals.get(key).map(|found| (found.value, found.revision));
            if there != Some((event.value, event.revision)) {
                violated(
                    Rule::FinalValue,
                    format!("key {key} holds {there:?} at the end; the last that happened to it is {event:?}"),
                );
            }
        }
        for (key, found) in &finals {
            if !last.contains_key(key) {
                violated(Rule::FinalValue, format!("key {key} holds {found:?}, and nothing ever happened to it"));
            }
        }
    } else {
        violated(Rule::Unfinished, "the load was not ended".to_owned());
    }

    let asked: BTreeMap<(Key, Value), &Call> =
        history.calls.iter().flat_map(|call| call.ask.writes().into_iter().map(move |write| (write, call))).collect();
    for event in &past.events {
        match event.value.and_then(|value| asked.get(&(event.key, value))) {
            None => violated(Rule::Unexplained, format!("no call asked for {event:?}")),
            Some(call) if matches!(call.answer, Answer::Kept { .. }) => {
                violated(Rule::Unexplained, format!("a swap was refused and done, at {}: {call:?}", event.revision));
            }
            Some(_) => {}
        }
    }
    found
}
