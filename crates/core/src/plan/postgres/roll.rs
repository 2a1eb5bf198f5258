//! Settings of the file, settings that Patroni and PostgreSQL have → settings to change, nodes to restart one by one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::report::Report;
use super::super::{Draft, PostgresWaiting, Reason, Step};
use super::push;
use crate::action::PostgresAction;
use crate::desired::{Node, PARAMETERS, Postgres};
use crate::observed::{NodeFacts, NodeRole, PostgresView};
use crate::plan::situation::postgres::{
    ORDERED, is_fronted, knows_the_settings, lowered_before_primary, node, ordered_parameter,
};
use crate::spec::Name;

/// Patroni's settings in JSON, each by its path.
fn flat(settings: &str) -> BTreeMap<String, String> {
    fn walk(prefix: &str, value: &Value, found: &mut BTreeMap<String, String>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    let dot = if prefix.is_empty() { "" } else { "." };
                    walk(&format!("{prefix}{dot}{key}"), value, found);
                }
            }
            other => drop(found.insert(prefix.to_owned(), other.to_string())),
        }
    }
    let mut found = BTreeMap::new();
    if let Ok(settings) = serde_json::from_str::<Value>(settings) {
        walk("", &settings, &mut found);
    }
    found
}

/// Changes Patroni's settings of the whole cluster. What is raised and what is lowered is not changed in one step:
/// standbys are restarted first for the one, the primary for the other.
pub(in crate::plan) fn set(draft: &mut Draft<'_>) -> Report {
    let (desired, observed) = (draft.desired, draft.observed);
    for cluster in &desired.postgres {
        let Some(seen) = PostgresView::seen(cluster, observed) else { continue };
        let Some(settings) = seen.keys().settings.as_deref() else { continue };
        if seen.settled(cluster.synchronous_standbys()).is_err() || pending(cluster, &seen).next().is_some() {
            continue;
        }
        // It is waited for at the end of the plan.
        if knows_the_settings(cluster, observed, &seen).is_err() {
            continue;
        }
        let has = flat(settings);
        let differing = cluster.settings.iter().filter(|(key, value)| has.get(*key) != Some(value));
        let mut set: BTreeMap<String, Option<String>> =
            differing.map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
        let surplus = has.keys().filter(|key| key.starts_with(PARAMETERS) && !cluster.settings.contains_key(*key));
        set.extend(surplus.map(|key| (key.clone(), None)));
        let raises = |key: &str, to: &Option<String>| {
            let number = |text: Option<&String>| text.and_then(|text| text.trim_matches('"').parse::<i64>().ok());
            let usual = ORDERED.iter().find(|(name, _)| key.strip_prefix(PARAMETERS) == Some(name)).map(|(_, to)| *to);
            match (number(has.get(key)).or(usual), number(to.as_ref()).or(usual)) {
                (Some(from), Some(to)) => Some(to > from),
                (Some(_) | None, Some(_) | None) => None,
            }
        };
        let ordered: BTreeSet<String> = set
            .iter()
            .filter(|(key, _)| key.strip_prefix(PARAMETERS).is_some_and(ordered_parameter))
            .map(|(key, _)| key.clone())
            .collect();
        let raised = ordered.iter().any(|key| set.get(key).is_some_and(|to| raises(key, to) == Some(true)));
        if raised {
            set.retain(|key, to| !ordered.contains(key) || raises(key, to) == Some(true));
        }
        if !set.is_empty() {
            let action = PostgresAction::SetPatroni { cluster: cluster.name.clone(), set };
            draft.steps.push(Step::new(action, Reason::Changed));
            return Report::Looked;
        }
    }
    Report::Looked
}

/// The nodes that a setting waits on for a restart.
fn pending<'a>(cluster: &'a Postgres, seen: &PostgresView<'a>) -> impl Iterator<Item = (&'a Node, &'a NodeFacts)> {
    let facts = |node: &'a Node| Some((node, seen.node(&node.patroni_name)?));
    let all: Vec<(&Node, &NodeFacts)> = cluster.nodes.iter().filter_map(facts).collect();
    all.into_iter().filter(|(_, facts)| facts.pending_restart)
}

/// Restarts nodes that have to be: replicas that are not synchronous, synchronous ones, and the primary last, after a
/// switchover. What is lowered is lowered on the primary first, in place.
pub(in crate::plan) fn roll(draft: &mut Draft<'_>) -> Report {
    let (desired, observed) = (draft.desired, draft.observed);
    for cluster in &desired.postgres {
        let Some(seen) = PostgresView::seen(cluster, observed) else { continue };
        let outdated = |node: &&Node| {
            let on = self::node(observed, &node.name);
            on.is_some_and(|on| on.running_patroni.is_some_and(|running| running != cluster.patroni))
        };
        // The package was upgraded: PostgreSQL goes on with the programs that it was started from.
        let upgraded = |node: &Node| {
            let runs = seen.node(&node.patroni_name)?.server?;
            let installed = self::node(observed, &node.name)?.installed?;
            let differs = installed.minor.zip(runs.minor).is_some_and(|(there, runs)| there != runs);
            (installed.major == runs.major && differs).then_some((runs, installed))
        };
        let waits = |node: &Node| seen.node(&node.patroni_name).is_some_and(|facts| facts.pending_restart);
        let due: Vec<&Node> =
            cluster.nodes.iter().filter(|node| waits(node) || outdated(node) || upgraded(node).is_some()).collect();
        if due.is_empty() {
            continue;
        }
        // A standby that has less than its primary receives nothing until it is restarted: nothing is lost by it.
        let leading = seen.primary().and_then(|primary| seen.node(primary));
        let idle = |node: &&&Node| {
            let name = node.patroni_name.as_str();
            let facts = seen.node(name).filter(|facts| !facts.streaming && facts.role == NodeRole::Replica);
            let starts = |facts| leading.is_none_or(|primary| !lowered_before_primary(facts, primary));
            facts.is_some_and(starts) && waits(node) && seen.settled_beside(0, Some(name)).is_ok()
        };
        if let Some(node) = due.iter().find(idle) {
            let action = PostgresAction::RestartPostgres { machine: node.name.clone(), role: NodeRole::Replica };
            draft.steps.push(Step::new(action, Reason::Changed));
            return Report::Looked;
        }
        if let Err(why) = seen.settled(cluster.synchronous_standbys()) {
            draft.wait(PostgresWaiting::PostgresUnsettled { cluster: cluster.name.clone(), why }.into());
            return Report::Looked;
        }
        let Some(primary) = seen.primary() else { return Report::Looked };
        let leads = |node: &Node| node.patroni_name == primary;
        let lowered = seen.node(primary).is_some_and(|facts| {
            facts.pending.iter().any(|(key, change)| ordered_parameter(key) && change.is_lowered())
        });
        let restart = |node: &Node, role| PostgresAction::RestartPostgres { machine: node.name.clone(), role };
        let first = due.iter().find(|node| leads(node)).filter(|_| lowered || cluster.nodes.len() == 1);
        let why = |node: &Node| match upgraded(node).filter(|_| !waits(node)) {
            Some((from, to)) => Reason::PostgresVersion { from, to },
            None => Reason::Changed,
        };
        if let Some(node) = first {
            draft.steps.push(Step::new(restart(node, NodeRole::Primary), why(node)));
            return Report::Looked;
        }
        let synchronous = seen.synchronous();
        let mut standbys: Vec<&&Node> = due.iter().filter(|node| !leads(node)).collect();
        standbys.sort_by_key(|node| synchronous.contains(node.patroni_name.as_str()));
        if let Some(node) = standbys.first() {
            let action = match outdated(node) {
                true => PostgresAction::RestartPatroni { machine: node.name.clone(), version: cluster.patroni },
                false => restart(node, NodeRole::Replica),
            };
            draft.steps.push(Step::new(action, why(node)));
            return Report::Looked;
        }
        let Some(leader) = cluster.node_in_patroni(primary) else { return Report::Looked };
        let reason = Reason::PrimaryRestarts { from: leader.name.clone() };
        let step = switched_over(draft, cluster, &seen, &leader.name, reason);
        return push(draft, cluster, step);
    }
    Report::Looked
}

/// A standby that has every commit takes the primary's place: the one that Patroni would prefer, with nothing to restart for.
/// Balancers in front of it have it already.
pub(in crate::plan) fn switched_over(
    draft: &Draft<'_>,
    cluster: &Postgres,
    seen: &PostgresView<'_>,
    from: &Name,
    reason: Reason,
) -> Option<Step> {
    let candidates = seen.candidates();
    let fit = |node: &&Node| {
        let may = !node.tags.is_never_primary() && node.name != *from;
        let finds = is_fronted(draft.desired, cluster, draft.observed, &node.name);
        may && finds && candidates.contains(node.patroni_name.as_str())
    };
    let position = |node: &Node| seen.node(&node.patroni_name).and_then(|facts| facts.position).unwrap_or(0);
    let best = cluster.nodes.iter().filter(fit).max_by_key(|node| {
        (node.tags.failover_priority.unwrap_or(1), position(node), std::cmp::Reverse(node.name.clone()))
    })?;
    let (cluster, from, to) = (cluster.name.clone(), from.clone(), best.name.clone());
    Some(Step::new(PostgresAction::Switchover { cluster, from, to }, reason))
}
