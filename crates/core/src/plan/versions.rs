//! The version of the file, the versions that run → the version that each member should run now, and what comes first.

use std::collections::BTreeMap;

use jiff::SignedDuration;

use super::report::Report;
use super::{Draft, Reason, Step, Waiting};
use crate::action::VersionAction;
use crate::desired::Stack;
use crate::observed::{Observed, View};
use crate::spec::{AuthMode, EtcdVersion, Name, ignored_by};
use crate::versions::{AUTH_CHANGED_AFTER, Hop, Line, VersionRefusal, Versions, next, path};

/// A snapshot that is younger than this serves a change that was interrupted and is taken up again.
const FRESH: SignedDuration = SignedDuration::from_hours(1);

/// Which version is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpgradePath {
    /// This one, for every member.
    To(EtcdVersion),
    /// No member changes its version, unless this hop is done first; new members join with this version.
    Hold(EtcdVersion, Option<Hop>),
    /// No member changes its version at all: the settings of the file are meant for a version that cannot be reached.
    Stay(EtcdVersion),
}

impl UpgradePath {
    /// The version for a member that runs this one now, or none.
    pub(super) fn target(self, running: Option<EtcdVersion>) -> EtcdVersion {
        match self {
            Self::To(version) => version,
            Self::Hold(version, _) | Self::Stay(version) => running.unwrap_or(version),
        }
    }
}

/// What the members run, or ran last, and what their data is written for.
pub fn versions(desired: &Stack, observed: &Observed, view: &View<'_>) -> Versions {
    let ledger = &observed.ledger;
    let member =
        |name: &Name| view.listed.is_none_or(|list| list.iter().any(|m| ledger.etcd.name_of(m).as_ref() == Some(name)));
    let members = observed.etcd.members.keys().filter(|name| member(name));
    let running: BTreeMap<Name, EtcdVersion> =
        members.filter_map(|name| Some((name.clone(), running(observed, name)?))).collect();
    let half_way = running.values().any(|v| Some(Line::of(*v)) != running.values().next().map(|v| Line::of(*v)));
    let answers = || view.answering.iter().filter(|(name, _)| member(name)).map(|(_, e)| e);
    // Where the file wants auth and it is not on yet, turning it on waits until all members run the same line.
    let auth = answers().any(|e| e.auth == Some(true)) || desired.etcd.auth != AuthMode::None && !half_way;
    let old_requests = ledger
        .etcd
        .log_renewed
        .as_ref()
        .is_some_and(|renewed| view.listed.is_none_or(|list| list.iter().any(|m| !renewed.contains(&m.id))));
    Versions {
        old_requests,
        running,
        written_for: answers().filter_map(|e| e.storage_version).map(Line::of).collect(),
        downgrade: answers().find_map(|e| e.downgrade).map(Line::of),
        auth,
    }
}

/// The version that a member runs; where none answers, the one that etcd was last started with on its machine.
fn running(observed: &Observed, member: &Name) -> Option<EtcdVersion> {
    let last = || observed.report(member).and_then(|r| r.etcd.used_with());
    observed.answer(member).map(|e| e.version).or_else(last)
}

/// Finds the version that is next on the upgrade path.
pub(super) fn upgrade_path(draft: &mut Draft<'_>) -> UpgradePath {
    let wanted = draft.desired.etcd.version;
    let now = versions(draft.desired, draft.observed, &draft.view);
    let Some(running) = now.running.values().min().copied() else { return UpgradePath::To(wanted) };
    // The file wants auth off: versions change once it is.
    if draft.desired.etcd.auth == AuthMode::None && now.auth {
        return UpgradePath::Hold(running, None);
    }
    let hop = next(&now, wanted, &draft.desired.etcd.available).and_then(|hop| match hop {
        Some(Hop::To(version)) => understood(draft.desired, &now, version).map(|()| hop),
        hop => Ok(hop),
    });
    match hop {
        Ok(None) => UpgradePath::To(wanted),
        Ok(Some(Hop::To(version))) => UpgradePath::To(version),
        Ok(Some(Hop::Settle(line))) => {
            draft.wait(Waiting::VersionSettling { line });
            UpgradePath::Hold(running, None)
        }
        Ok(Some(hop @ (Hop::Enable(_) | Hop::Renew(_) | Hop::Cancel(_)))) => UpgradePath::Hold(running, Some(hop)),
        Err(refusal) => {
            draft.wait(Waiting::VersionRefused { running, wanted, refusal });
            UpgradePath::Stay(running)
        }
    }
}

/// Every version on the way from what runs to what the file says; the last one is the file's, and nothing is left when
/// all members run it.
pub fn route(desired: &Stack, observed: &Observed) -> Result<Vec<EtcdVersion>, VersionRefusal> {
    let now = versions(desired, observed, &View::of(observed));
    let route = path(&now, desired.etcd.version, &desired.etcd.available)?;
    for version in &route {
        understood(desired, &now, *version)?;
    }
    Ok(route)
}

/// Whether a version of another line takes all settings of the file. etcd says nothing about those that it ignores.
fn understood(desired: &Stack, now: &Versions, version: EtcdVersion) -> Result<(), VersionRefusal> {
    if now.running.values().all(|v| Line::of(*v) == Line::of(version)) {
        return Ok(());
    }
    match desired.etcd.settings.flags.keys().find(|flag| ignored_by(flag, version)) {
        Some(flag) => Err(VersionRefusal::UnknownFlag { flag: flag.clone(), version }),
        None => Ok(()),
    }
}

/// Enables or cancels a downgrade.
pub(super) fn follow_upgrade_path(draft: &mut Draft<'_>, path: UpgradePath) -> Report {
    let UpgradePath::Hold(running, Some(hop)) = path else { return Report::Looked };
    match hop {
        Hop::Enable(line) | Hop::Renew(line) => {
            let renews = matches!(hop, Hop::Renew(_));
            let unhealthy = draft.unhealthy_beside(None);
            if !unhealthy.is_empty() {
                let change = if renews { "a new log".to_owned() } else { format!("the downgrade to {line}") };
                draft.wait(Waiting::HealFirst { change, unhealthy });
                return Report::Looked;
            }
            let version = line.first();
            let reason =
                if renews { Reason::OldRequests { line } } else { Reason::Version { from: running, to: version } };
            draft.steps.push(Step::new(VersionAction::EnableDowngrade { version }, reason));
        }
        Hop::Cancel(line) => {
            let reason = Reason::Unwanted { version: line.first() };
            draft.steps.push(Step::new(VersionAction::CancelDowngrade, reason));
        }
        Hop::To(_) | Hop::Settle(_) => {}
    }
    Report::Looked
}

/// Whether members run both of the lines between which auth must not be turned on.
pub(super) fn between_auths(draft: &Draft<'_>) -> bool {
    let now = versions(draft.desired, draft.observed, &draft.view);
    let on = |line| now.running.values().any(|v| Line::of(*v) == line);
    on(AUTH_CHANGED_AFTER) && on(AUTH_CHANGED_AFTER.above())
}

/// Whether a snapshot has to be saved before the first member starts this version.
pub(super) fn snapshot_due(draft: &Draft<'_>, version: EtcdVersion) -> bool {
    let now = versions(draft.desired, draft.observed, &draft.view);
    let taken = draft.observed.ledger.etcd.snapshot.as_ref();
    let fresh = taken.is_some_and(|s| s.before == version && draft.now.duration_since(s.at) < FRESH);
    !fresh && !now.running.values().any(|v| *v == version)
}
