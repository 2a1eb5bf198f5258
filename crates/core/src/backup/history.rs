//! The histories of a cluster's data → the one that was in force at a moment.
//!
//! A restore and a recovery begin a history: etcd gives the cluster another id, and revisions go on far above all that
//! were seen. Each history names the one whose data it began with. Backups carry all of them, so that they are known
//! when the first backups of a history are gone.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::observed::ClusterId;

/// Manifests name so many histories; older ones are left out. No cluster is restored this often.
const MOST: usize = 200;

/// A history of a cluster's data: from a bootstrap, a restore or a recovery to the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// etcd's id of the cluster: every bootstrap, restore and recovery makes another one.
    pub id: ClusterId,
    /// The history whose data it began with; none of a new cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ClusterId>,
    /// The revision of the parent that it began with, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// From then on it was in force; from the beginning where there was none before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<Timestamp>,
}

impl History {
    /// Of a cluster that was bootstrapped with nothing.
    pub fn first(id: ClusterId) -> Self {
        Self { id, parent: None, revision: None, began: None }
    }
}

/// Another history begins after these.
pub fn begin(histories: &mut Vec<History>, next: History) {
    histories.retain(|history| history.id != next.id);
    histories.push(next);
    let surplus = histories.len().saturating_sub(MOST);
    histories.drain(..surplus);
}

/// The history that was in force at a moment; nothing where it is older than all that are known.
pub fn in_force(histories: &[History], moment: Timestamp) -> Option<&History> {
    histories.iter().rev().find(|history| history.began.is_none_or(|began| began <= moment))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a moment")
    }

    #[test]
    fn a_moment_belongs_to_the_history_that_was_in_force_then() {
        let mut histories = vec![History::first(ClusterId(1))];
        for (id, began) in [(2, 100), (3, 200)] {
            let parent = Some(ClusterId(id - 1));
            begin(&mut histories, History { id: ClusterId(id), parent, revision: Some(7), began: Some(at(began)) });
        }
        let found = |second| in_force(&histories, at(second)).map(|history| history.id.0);
        assert_eq!([0, 99, 100, 199, 200, 9999].map(found), [1, 1, 2, 2, 3, 3].map(Some));
        // A history that was left out did exist: no other one is returned in its place.
        assert_eq!(in_force(&histories[1..], at(99)), None);
    }

    #[test]
    fn only_the_newest_are_named() {
        let mut histories = Vec::new();
        for id in 1..=300 {
            let history = History { began: Some(at(id)), ..History::first(ClusterId(id.unsigned_abs())) };
            begin(&mut histories, history);
        }
        assert_eq!((histories.len(), histories[0].id, histories[199].id), (200, ClusterId(101), ClusterId(300)));
    }
}
