//! A cluster that answers → its superuser, auth, and proof that strangers are refused.

use super::{Draft, Reason, Step, Waiting};
use crate::action::Action;
use crate::observed::{Door, Root};

/// Shuts the doors as soon as the cluster takes writes, and looks whether they are shut.
pub(super) fn secure(draft: &mut Draft<'_>) {
    if !draft.view.has_quorum() || draft.steps.iter().any(|s| s.action.exclusive()) {
        return;
    }
    let healthy = || draft.view.healthy.iter().filter_map(|name| draft.view.answering.get(name));
    // Auth goes through the log: the member that is furthest ahead knows best.
    let Some(newest) = healthy().max_by_key(|e| (e.raft_term, e.raft_index)).copied() else { return };
    // Looking for `root` costs a round through the log, so that not every member is asked.
    let root = healthy().map(|e| e.root).find(|r| *r != Root::Unknown).unwrap_or(Root::Unknown);
    match (newest.auth, root) {
        (Some(false), Root::Missing) => {
            draft.steps.push(Step::new(Action::CreateRoot, Reason::Missing));
        }
        (Some(false), Root::Ready) => {
            draft.steps.push(Step::new(Action::EnableAuth, Reason::NoAuth));
        }
        (Some(false), Root::Unknown) | (None, _) => {}
        (Some(true), _) => prove(draft),
    }
}

fn prove(draft: &mut Draft<'_>) {
    for (name, etcd) in &draft.view.answering {
        for (who, door) in etcd.doors.iter().flat_map(|d| d.not_shut()) {
            let machine = (*name).clone();
            draft.waiting.push(match door {
                Door::Unclear(error) => Waiting::DoorUnclear { machine, error: error.clone() },
                Door::Open | Door::Shut => Waiting::DoorOpen { machine, who: who.to_owned() },
            });
        }
    }
}
