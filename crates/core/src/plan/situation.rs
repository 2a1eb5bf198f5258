//! What was observed → answers that several passes and the judge ask for. Nothing is planned here.

pub(super) mod postgres;

use std::collections::BTreeSet;

use crate::desired::{ClientAccess, Member, Stack, address_of};
use crate::observed::{AgentReport, Agreement, EtcdFacts, Observed, ServiceState, TrustDomain, View};
use crate::render::changes::Change;
use crate::spec::{EtcdVersion, Name};

/// An alarm is disarmed once every member is below this part of its quota.
const ROOM_PERCENT: i64 = 90;

/// A member whose machine has all that etcd needs.
pub(super) struct Ready<'a> {
    pub(super) member: &'a Member,
    pub(super) report: &'a AgentReport,
    /// The version that it should run now.
    pub(super) version: EtcdVersion,
    /// The digest of its configuration at that version.
    pub(super) digest: String,
    /// While it is to be closed to clients: the digest of the same configuration, open.
    pub(super) open: Option<String>,
    /// What differs in it from the one that runs, where that is known.
    pub(super) changes: Vec<Change>,
}

/// A member of the cluster, and its agent's report.
pub(super) type Participant<'a> = (&'a Name, Option<&'a AgentReport>);

/// Members of the cluster as it lists them; where no member can be asked, those that etcd was started on.
pub(super) fn participants<'a>(observed: &'a Observed, view: &View<'_>) -> Vec<Participant<'a>> {
    let ledger = &observed.ledger;
    let counts = |name: &Name| match view.listed {
        Some(list) => list.iter().any(|m| ledger.etcd.name_of(m).as_ref() == Some(name)),
        None => ledger.etcd.started.contains_key(name),
    };
    observed.machines.iter().filter(|(name, _)| counts(name)).map(|(name, m)| (name, m.report())).collect()
}

/// Members whose etcd may not know the authority that signs now: one that runs with other trust, in an emergency one that
/// cannot be asked. They talk to others over connections that they have; none could be made anew.
pub(super) fn left_behind(observed: &Observed, view: &View<'_>) -> BTreeSet<Name> {
    let Some(trust) = observed.ledger.etcd.trust(TrustDomain::Peers) else { return BTreeSet::new() };
    let (digest, changed) = (trust.digest(), !trust.old.is_empty() || !trust.retired.is_empty());
    let knows = |running: &String| {
        *running == digest || trust.keys_of(running).is_some_and(|keys| keys.contains(&trust.current.key))
    };
    let left = |report: Option<&AgentReport>| match report {
        None => trust.now && changed,
        // An older agent does not report the trust that it started etcd with.
        Some(report) => {
            report.etcd.running_trust.get(&TrustDomain::Peers.purpose()).is_some_and(|running| !knows(running))
        }
    };
    let left = participants(observed, view).into_iter().filter(|(_, report)| left(*report));
    left.map(|(name, _)| name.clone()).collect()
}

/// Whether an operator wants the authority of the peers changed without waiting for members that cannot be reached.
pub(super) fn emergency(observed: &Observed) -> bool {
    observed.ledger.etcd.trust(TrustDomain::Peers).is_some_and(|trust| trust.now && trust.rotates())
}

/// Whether others could follow this member if they were restarted: not one that is left behind, or about to be.
pub(super) fn may_lead(observed: &Observed, view: &View<'_>, name: &Name) -> bool {
    let silent = observed.report(name).is_none();
    let about_to_be = emergency(observed) && silent;
    !about_to_be && !left_behind(observed, view).contains(name)
}

/// The members to be opened to clients: auth is on, and none of those that run accepts clients yet, so that no client
/// depends on one. Nothing where that is not so.
pub(super) fn to_be_opened(desired: &Stack, observed: &Observed) -> Option<BTreeSet<Name>> {
    if desired.etcd.client_access(&observed.ledger) == ClientAccess::Closed {
        return None;
    }
    let mut closed = BTreeSet::new();
    for member in &desired.etcd.members {
        let Some(seen) = observed.machines.get(&member.name) else { continue };
        let Some(report) = seen.report() else {
            // One that cannot be asked may have been opened already.
            if observed.ledger.etcd.started.contains_key(&member.name) && !seen.machine.is_absent() {
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

/// Whether members accept clients, and none of them is about to be restarted for it.
pub(super) fn is_open(desired: &Stack, observed: &Observed) -> bool {
    desired.etcd.client_access(&observed.ledger) == ClientAccess::Open && to_be_opened(desired, observed).is_none()
}

/// Whether what runs on this machine was started with the configuration for this access.
fn runs(desired: &Stack, observed: &Observed, machine: &Name, report: &AgentReport, access: ClientAccess) -> bool {
    let etcd = &report.etcd;
    let version = etcd.running_version.or(etcd.last_version);
    let digest = version.and_then(|version| digest(desired, observed, machine, version, access));
    digest.is_some() && digest == etcd.running_config
}

/// The digest of a member's configuration for this access, where it is.
fn digest(
    desired: &Stack,
    observed: &Observed,
    machine: &Name,
    version: EtcdVersion,
    access: ClientAccess,
) -> Option<String> {
    let (member, timers) = (desired.etcd.member(machine)?, desired.etcd.timers(&observed.ledger)?);
    let address = observed.ledger.etcd.members.get(machine).and_then(|url| address_of(url)).unwrap_or(member.address);
    Some(desired.etcd.config_at(member, version, address, timers, access).digest.clone())
}

/// Whether etcd on this machine, started now with this version, would accept clients before auth is on.
pub(super) fn opens_too_early(
    desired: &Stack,
    observed: &Observed,
    machine: &Name,
    version: EtcdVersion,
    report: &AgentReport,
) -> bool {
    let config = &report.etcd.config;
    desired.etcd.client_access(&observed.ledger) == ClientAccess::Closed
        && config.is_some()
        && *config == digest(desired, observed, machine, version, ClientAccess::Open)
}

/// Whether a size is at this part of the quota, or above.
pub(super) fn at_part(size: i64, quota: i64, percent: i64) -> bool {
    i128::from(size) * 100 >= i128::from(quota) * i128::from(percent)
}

/// Whether there is room again in a member's database.
pub(super) fn has_room(etcd: &EtcdFacts, quota: i64) -> bool {
    !at_part(etcd.db_size, quota, ROOM_PERCENT)
}

/// Whether this member may be trusted with leadership: no alarm says that data is corrupt, or its hash agrees with the
/// majority's.
pub(super) fn trusted_target(view: &View<'_>, agreement: &Agreement, target: &Name) -> bool {
    !view.corrupt() || matches!(agreement, Agreement::Differ(names) if !names.contains(target))
}
