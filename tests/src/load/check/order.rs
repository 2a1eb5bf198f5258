//! Revisions in the answers, the cluster's past → reads that returned what was not there, and revisions that went back.
//!
//! This is stricter than linearizability of each key by itself: it holds across keys, and it relies on the revisions
//! that etcd guarantees. It is also quick, so that it sees all calls at once.

use std::collections::BTreeMap;

use super::super::call::{Answer, Ask, Call, Key, Value};
use super::super::history::History;
use super::{Past, Rule, Violation};

pub(super) fn check(history: &History, past: &Past) -> Vec<Violation> {
    let mut found = contents(history, past);
    found.extend(real_time(&history.calls));
    found
}

/// What a read returned must have been there at the revision that the read returned.
fn contents(history: &History, past: &Past) -> Vec<Violation> {
    let mut keys: BTreeMap<Key, Vec<(i64, Option<Value>)>> = BTreeMap::new();
    for event in &past.events {
        keys.entry(event.key).or_default().push((event.revision, event.value));
    }
    let at = |key: Key, revision: i64| -> Option<Value> {
        let changes = keys.get(&key)?;
        let after = changes.partition_point(|(changed, _)| *changed <= revision);
        changes.get(after.checked_sub(1)?)?.1
    };
    let mut found = Vec::new();
    for call in &history.calls {
        let (revision, output): (i64, Vec<(Key, Option<Value>)>) = match (&call.answer, &call.ask) {
            (Answer::Read { revision, values }, ask) => {
                (*revision, ask.reads().into_iter().zip(values.clone()).collect())
            }
            (Answer::Kept { revision, found }, Ask::Swap { key, .. }) => (*revision, vec![(*key, *found)]),
            _ => continue,
        };
        for (key, output) in output {
            let there = at(key, revision);
            if output != there {
                let what = format!("at revision {revision} key {key} held {there:?}, not {output:?}: {call:?}");
                found.push(Violation { rule: Rule::StaleRead, what });
            }
        }
    }
    found
}

/// A call that begins after another has ended sees at least as much as the other.
fn real_time(calls: &[Call]) -> Vec<Violation> {
    let revision = |call: &Call| match call.answer {
        Answer::Written { revision } | Answer::Read { revision, .. } | Answer::Kept { revision, .. } => Some(revision),
        Answer::Ambiguous { .. } | Answer::Unknown { .. } => None,
    };
    let mut begins: Vec<(&Call, i64)> = calls.iter().filter_map(|call| Some((call, revision(call)?))).collect();
    let mut ends = begins.clone();
    begins.sort_by_key(|(call, _)| call.begin);
    ends.sort_by_key(|(call, _)| call.end);
    let mut ended = ends.into_iter().peekable();
    let mut newest: Option<(&Call, i64)> = None;
    let mut found = Vec::new();
    for (call, revision) in begins {
        while let Some((before, known)) = ended.next_if(|(before, _)| before.end < call.begin) {
            if newest.is_none_or(|(_, newest)| known > newest) {
                newest = Some((before, known));
            }
        }
        let Some((before, known)) = newest else { continue };
        let behind = if call.acknowledged().is_some() { revision <= known } else { revision < known };
        if behind {
            let rule = if call.acknowledged().is_some() { Rule::Order } else { Rule::StaleRead };
            let what = format!(
                "began after revision {known} was known and is of revision {revision}: {call:?}; known from {before:?}"
            );
            found.push(Violation { rule, what });
        }
    }
    found
}
