//! Backup state as the machines report it → whether an operator must act.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::drill::Drill;
use super::name::FullName;
use crate::observed::BackupState;
use crate::spec::{Backups, Duration, Name};

/// A full backup may take a while, and another agent may have to take over first.
const GRACE: SignedDuration = SignedDuration::from_mins(10);
/// The same for changes, and for an agent that cannot make backups: it passes for a member that was just started.
const CHANGES_GRACE: SignedDuration = SignedDuration::from_mins(1);

/// The status of a cluster's backups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Health {
    /// The machine that makes them.
    pub scheduler: Option<Name>,
    /// The newest complete full backup.
    pub full: Option<FullName>,
    /// Whether a machine has read the store: only then no full backup means that there is none.
    pub store_read: bool,
    /// All that was written until then is in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub covered: Option<Timestamp>,
    /// What an operator must look at.
    pub problems: Vec<Problem>,
}

/// Why backups are not what the file wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "problem", rename_all = "snake_case")]
pub enum Problem {
    /// No machine makes them.
    NoScheduler,
    /// It cannot.
    Failing {
        /// The machine.
        machine: Name,
        /// Why.
        error: String,
        /// Since when.
        since: Timestamp,
    },
    /// The newest full backup is too old.
    Late {
        /// The newest.
        full: FullName,
        /// One is wanted so often.
        every: Duration,
    },
    /// The newest backup could not be restored in a drill.
    DrillFailed {
        /// Where it was tried.
        machine: Name,
        /// Why.
        error: String,
        /// Since when.
        since: Timestamp,
    },
    /// The last successful drill is too old.
    DrillLate {
        /// The last.
        last: Timestamp,
        /// One is wanted so often.
        every: Duration,
    },
    /// The store holds objects that are not, or cannot be verified as, backups of this cluster.
    Unverified {
        /// So many.
        count: u32,
    },
    /// Changes are not recorded in time.
    ChangesLate {
        /// All until then are.
        covered: Timestamp,
        /// They are wanted so often.
        every: Duration,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoScheduler => {
                f.write_str("no machine makes backups: run `raftsman apply`, or look at the agents' logs")
            }
            Self::Failing { machine, error, since } => {
                write!(f, "{machine} cannot make backups since {}: {error}", minute(*since))
            }
            Self::Late { full, every } => {
                write!(f, "the newest full backup is of {}, and one is wanted every {every}", minute(full.taken()))
            }
            Self::DrillFailed { machine, error, since } => {
                write!(f, "the newest backup cannot be restored on {machine} since {}: {error}", minute(*since))
            }
            Self::DrillLate { last, every } => {
                write!(f, "the last drill was on {}, and one is wanted every {every}", minute(*last))
            }
            Self::Unverified { count } => write!(
                f,
                "{count} in the store cannot be verified, or are from the future: retention ignores them; see \
                 `raftsman backup list`"
            ),
            Self::ChangesLate { covered, every } => {
                write!(f, "changes are in the store up to {}, and are wanted every {every}", minute(*covered))
            }
        }
    }
}

fn minute(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

/// Their status, as far as the machines that answer know; nothing where machines make none by themselves.
pub fn health(settings: &Backups, machines: &BTreeMap<Name, BackupState>, now: Timestamp) -> Option<Health> {
    let every = settings.every?;
    let scheduler = machines.iter().find(|(_, state)| state.keeps);
    let full = machines.values().filter_map(|state| state.full).max();
    let covered = scheduler.and_then(|(_, state)| state.covered).filter(|_| settings.changes_every.is_some());
    let mut problems = Vec::new();
    for (machine, state) in machines {
        if let Some((error, since)) = state.problem.clone()
            && now.duration_since(since) > CHANGES_GRACE
        {
            problems.push(Problem::Failing { machine: machine.clone(), error, since });
        }
    }
    for (machine, state) in machines {
        if let Some((error, since)) = state.drill_problem.clone() {
            problems.push(Problem::DrillFailed { machine: machine.clone(), error, since });
        }
    }
    let held = machines.values().filter_map(|state| state.held).max();
    let vacant = held.is_none_or(|held| now.duration_since(held) > CHANGES_GRACE);
    if scheduler.is_none() && vacant && problems.is_empty() {
        problems.push(Problem::NoScheduler);
    }
    let late = |at: Timestamp, every: Duration, grace| {
        let limit = SignedDuration::try_from(every.to_std()).unwrap_or(SignedDuration::MAX).saturating_add(grace);
        now.duration_since(at) > limit
    };
    if let Some(full) = full.filter(|full| late(full.taken(), every, GRACE)) {
        problems.push(Problem::Late { full, every });
    }
    if let (Some(last), Some(every)) = (last_drill(machines), settings.drill_every)
        && late(last.at, every, GRACE)
        && machines.values().all(|state| state.drill_problem.is_none())
    {
        problems.push(Problem::DrillLate { last: last.at, every });
    }
    if let (Some(covered), Some(every)) = (covered, settings.changes_every)
        && late(covered, every, CHANGES_GRACE)
    {
        problems.push(Problem::ChangesLate { covered, every });
    }
    if let Some(count) = scheduler.map(|(_, state)| state.unverified).filter(|count| *count > 0) {
        problems.push(Problem::Unverified { count });
    }
    let store_read = machines.values().any(|state| state.store_read);
    Some(Health { scheduler: scheduler.map(|(name, _)| name.clone()), full, store_read, covered, problems })
}

/// The newest drill that a machine knows of.
pub fn last_drill(machines: &BTreeMap<Name, BackupState>) -> Option<&Drill> {
    machines.values().filter_map(|state| state.drill.as_ref()).max_by_key(|drill| drill.at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{BackupStore, EtcdVersion, Prune};

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a moment")
    }

    fn settings() -> Backups {
        Backups {
            store: BackupStore::Directory("/b".to_owned()),
            prefix: String::new(),
            compress: true,
            encrypt_to: Vec::new(),
            every: Some(Duration::from_hours(1)),
            changes_every: Some(Duration::from_millis(2000)),
            drill_every: Some(Duration::from_days(1)),
            keep: None,
            prune: Prune::default(),
            trust: Vec::new(),
        }
    }

    fn words(machines: &[(&'static str, BackupState)], now: &str) -> Vec<String> {
        let machines = machines.iter().map(|(name, state)| (Name::fixed(name), state.clone())).collect();
        let health = health(&settings(), &machines, at(now)).expect("a schedule");
        health.problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_store_that_no_machine_has_read_is_not_empty() {
        let of = |machines: &[(&'static str, BackupState)]| {
            let machines = machines.iter().map(|(name, state)| (Name::fixed(name), state.clone())).collect();
            health(&settings(), &machines, at("2026-11-16T03:05:00Z")).expect("a schedule").store_read
        };
        let looked = BackupState { store_read: true, ..BackupState::default() };
        assert!(!of(&[]) && !of(&[("a", BackupState::default())]));
        assert!(of(&[("a", looked), ("b", BackupState::default())]));
    }

    #[test]
    fn what_is_late_or_failing_is_said() {
        let name = FullName::new(at("2026-11-16T03:00:00Z"), 7);
        let full = Some(name);
        let covered = Some(at("2026-11-16T03:59:00Z"));
        let good = BackupState { keeps: true, full, covered, ..BackupState::default() };
        let by = BackupState::default();
        assert!(words(&[("a", good.clone()), ("b", by.clone())], "2026-11-16T03:59:30Z").is_empty());
        insta::assert_snapshot!(words(&[("a", good.clone()), ("b", by.clone())], "2026-11-16T04:10:01Z").join("\n"), @r"
        the newest full backup is of 2026-11-16 03:00 UTC, and one is wanted every 1h
        changes are in the store up to 2026-11-16 03:59 UTC, and are wanted every 2s
        ");
        insta::assert_snapshot!(words(&[("a", by.clone())], "2026-11-16T04:10:01Z").join("\n"), @"no machine makes backups: run `raftsman apply`, or look at the agents' logs");
        let looks = BackupState { held: Some(at("2026-11-16T04:09:30Z")), ..by.clone() };
        assert!(words(&[("a", looks)], "2026-11-16T04:10:01Z").is_empty(), "another one takes over");
        let drill = Drill {
            format: Drill::FORMAT,
            backup: name,
            at: at("2026-11-15T03:30:00Z"),
            machine: Name::fixed("a"),
            version: EtcdVersion::default(),
            batches: 0,
            revision: 7,
            keys: 1,
            took_ms: 5,
            behind: None,
            behind_ms: None,
        };
        let tried = BackupState { drill: Some(drill), ..good.clone() };
        assert!(words(&[("a", tried.clone())], "2026-11-16T03:39:59Z").is_empty());
        insta::assert_snapshot!(words(&[("a", tried.clone())], "2026-11-16T03:40:01Z").join("\n"), @"the last drill was on 2026-11-15 03:30 UTC, and one is wanted every 1d");
        let bad = BackupState { drill_problem: Some(("no room".to_owned(), at("2026-11-16T03:31:00Z"))), ..tried };
        insta::assert_snapshot!(words(&[("a", bad)], "2026-11-16T03:40:01Z").join("\n"), @"the newest backup cannot be restored on a since 2026-11-16 03:31 UTC: no room");
        let failing = BackupState { problem: Some(("no way".to_owned(), at("2026-11-16T03:01:00Z"))), full, ..by };
        insta::assert_snapshot!(words(&[("a", failing)], "2026-11-16T03:05:00Z").join("\n"), @"a cannot make backups since 2026-11-16 03:01 UTC: no way");
        let visited = BackupState { unverified: 6, ..good };
        insta::assert_snapshot!(words(&[("a", visited)], "2026-11-16T03:59:30Z").join("\n"), @"6 in the store cannot be verified, or are from the future: retention ignores them; see `raftsman backup list`");
        assert_eq!(health(&Backups { every: None, ..settings() }, &BTreeMap::new(), at("2026-11-16T03:05:00Z")), None);
    }
}
