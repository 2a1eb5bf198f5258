//! A cluster that answers → its superuser, auth, and proof that strangers are refused.

use std::collections::BTreeSet;

use super::passes::Report;
use super::{Draft, Reason, Step, Waiting, versions};
use crate::action::AuthAction;
use crate::desired::{ClientAccess, Cluster, address_of};
use crate::observed::{ANONYMOUS, AgentReport, Door, Observed, Root, ServiceState};
use crate::spec::{AuthMode, EtcdVersion, Name};

/// The members to be opened to clients: auth is on, and none of those that run accepts clients yet, so that no client
/// depends on one. Nothing where that is not so.
pub(super) fn to_be_opened(desired: &Cluster, observed: &Observed) -> Option<BTreeSet<Name>> {
    if desired.client_access(&observed.ledger) == ClientAccess::Closed {
        return None;
    }
    let mut closed = BTreeSet::new();
    for member in &desired.members {
        let Some(seen) = observed.members.get(&member.name) else { continue };
        let Some(report) = seen.report() else {
            // One that cannot be asked may have been opened already.
            if observed.ledger.started.contains_key(&member.name) && !seen.machine.is_absent() {
                return None;
            }
            continue;
        };
        if report.etcd.service.state == ServiceState::Stopped {
            continue;
        }
        if !runs(desired, observed, &member.name, report, ClientAccess::Closed) {
            return None;
        }
        closed.insert(member.name.clone());
    }
    Some(closed).filter(|closed| !closed.is_empty())
}

/// Whether what runs on this machine was started with the configuration for this access.
fn runs(desired: &Cluster, observed: &Observed, machine: &Name, report: &AgentReport, access: ClientAccess) -> bool {
    let etcd = &report.etcd;
    let version = etcd.running_version.or(etcd.last_version);
    let digest = version.and_then(|version| digest(desired, observed, machine, version, access));
    digest.is_some() && digest == etcd.running_config
}

/// The digest of a member's configuration for this access, where it is.
fn digest(
    desired: &Cluster,
    observed: &Observed,
    machine: &Name,
    version: EtcdVersion,
    access: ClientAccess,
) -> Option<String> {
    let (member, pace) = (desired.member(machine)?, desired.pace(&observed.ledger)?);
    let address = observed.ledger.members.get(machine).and_then(|url| address_of(url)).unwrap_or(member.address);
    Some(desired.config_at(member, version, address, pace, access).digest.clone())
}

/// Whether etcd on this machine, started now with this version, would accept clients before auth is on.
pub(super) fn opens_too_early(
    desired: &Cluster,
    observed: &Observed,
    machine: &Name,
    version: EtcdVersion,
    report: &AgentReport,
) -> bool {
    let config = &report.etcd.config;
    desired.client_access(&observed.ledger) == ClientAccess::Closed
        && config.is_some()
        && *config == digest(desired, observed, machine, version, ClientAccess::Open)
}

/// Shuts the doors as soon as the cluster takes writes, and looks whether they are shut.
pub(super) fn secure(draft: &mut Draft<'_>) -> Report {
    let healthy = || draft.view.healthy.iter().filter_map(|name| draft.view.answering.get(name));
    // Auth goes through the log: the member that is furthest ahead knows best.
    let Some(newest) = healthy().max_by_key(|e| (e.raft_term, e.raft_index)).copied() else { return Report::Looked };
    // Looking for `root` costs a round through the log, so that not every member is asked.
    let root = healthy().map(|e| e.root).find(|r| *r != Root::Unknown).unwrap_or(Root::Unknown);
    if draft.desired.auth == AuthMode::None {
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
        // Whoever changed the file waits for it, and clients with the new password do.
        (Some(true), Root::Outdated) if draft.desired.auth == AuthMode::Password => {
            draft.steps.push(Step::new(AuthAction::ChangeRootPassword, Reason::OtherPassword));
        }
        (Some(false), Root::Unknown | Root::Outdated) | (None, _) => {}
        (Some(true), _) => prove(draft),
    }
    Report::Looked
}

fn prove(draft: &mut Draft<'_>) {
    for (name, etcd) in &draft.view.answering {
        for (who, door) in etcd.doors.iter().flat_map(|d| d.not_shut()) {
            // Without auth, a client of ours needs no name.
            if draft.desired.auth == AuthMode::None && who == ANONYMOUS {
                continue;
            }
            let machine = (*name).clone();
            draft.waiting.push(match door {
                Door::Unclear(error) => Waiting::DoorUnclear { machine, error: error.clone() },
                Door::Open | Door::Shut => Waiting::DoorOpen { machine, who: who.to_owned() },
            });
        }
    }
}
