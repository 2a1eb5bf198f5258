//! A cluster that answers → its superuser, auth, and proof that unauthenticated clients are rejected.

use super::report::Report;
use super::{Draft, Reason, Step, Waiting, versions};
use crate::action::AuthAction;
use crate::observed::{ANONYMOUS, ProbeOutcome, Root};
use crate::spec::AuthMode;

/// Turns auth on as soon as the cluster takes writes, and tests that unauthenticated clients are rejected.
pub(super) fn secure(draft: &mut Draft<'_>) -> Report {
    let healthy = || draft.view.healthy.iter().filter_map(|name| draft.view.answering.get(name));
    // Auth goes through the log: the member that is furthest ahead has its newest state.
    let Some(newest) = healthy().max_by_key(|e| (e.raft_term, e.raft_index)).copied() else { return Report::Looked };
    // Looking for `root` costs a round through the log, so that not every member is asked.
    let root = healthy().map(|e| e.root).find(|r| *r != Root::Unknown).unwrap_or(Root::Unknown);
    if draft.desired.etcd.auth == AuthMode::None {
        match newest.auth {
            Some(true) => draft.steps.push(Step::new(AuthAction::DisableAuth, Reason::AuthOn)),
            Some(false) | None => prove(draft),
        }
        return Report::Looked;
    }
    match (newest.auth, root) {
        (Some(false), _) if versions::between_auths(draft) => {}
        (Some(false), Root::Missing) => {
            draft.steps.push(Step::new(AuthAction::CreateRoot, Reason::Missing));
        }
        (Some(false), Root::Ready) => {
            draft.steps.push(Step::new(AuthAction::EnableAuth, Reason::NoAuth));
        }
        // The operator who changed the file, and clients that already use the new password, wait for this.
        (Some(true), Root::Outdated) if draft.desired.etcd.auth == AuthMode::Password => {
            draft.steps.push(Step::new(AuthAction::ChangeRootPassword, Reason::OtherPassword));
        }
        (Some(false), Root::Unknown | Root::Outdated) | (None, _) => {}
        (Some(true), _) => prove(draft),
    }
    Report::Looked
}

fn prove(draft: &mut Draft<'_>) {
    for (name, etcd) in &draft.view.answering {
        for (who, outcome) in etcd.probe.iter().flat_map(|d| d.not_denied()) {
            // Without auth, raftsman's client needs no user name.
            if draft.desired.etcd.auth == AuthMode::None && who == ANONYMOUS {
                continue;
            }
            let machine = (*name).clone();
            draft.waiting.push(match outcome {
                ProbeOutcome::Untested(error) => Waiting::ProbeFailed { machine, error: error.clone() },
                ProbeOutcome::Accepted | ProbeOutcome::Denied => {
                    Waiting::UnauthenticatedAccepted { machine, client: who.to_owned() }
                }
            });
        }
    }
}
