//! Members that should run, members that run → first start, restarts, and the identity of the cluster.

use super::report::{Because, Report};
use super::safety::Case;
use super::situation::{Ready, left_behind, to_be_opened};
use super::{Draft, Reason, Step, Waiting, maintenance, members, safety, trust, versions};
use crate::action::{Action, EtcdAction, StartData, VersionAction};
use crate::observed::{AgentReport, ClusterId, Data, Fact, Problem, ServiceState, TrustDomain, quorum};
use crate::spec::{AuthMode, EtcdVersion, Name};

/// After so many crashes a process is not expected to come up by itself any more.
pub(super) const CRASHES: u32 = 5;

/// Which cluster this is. Where that is not clear, nothing at all is done.
pub(super) fn identity(draft: &mut Draft<'_>) -> Report {
    let ledger = &draft.observed.ledger;
    let expected = match (ledger.etcd.cluster, draft.view.clusters.len()) {
        (Some(cluster), _) => Some(cluster),
        (None, 0 | 1) => draft.view.clusters.keys().next().copied(),
        (None, _) => {
            let found = draft.view.clusters.iter();
            let found = found.map(|(id, names)| (*id, names.iter().map(|n| (*n).clone()).collect())).collect();
            draft.waiting.push(Waiting::SeveralClusters { found });
            return Report::Looked;
        }
    };
    if let Some(expected) = expected {
        foreign_members(draft, expected);
    }
    // With and without users, clients show the same certificates: auth is turned on or off, and nothing else changes.
    let by_password = |mode| mode == AuthMode::Password;
    let differs = |made_for: &AuthMode| by_password(*made_for) != by_password(draft.desired.etcd.auth);
    if let Some(made_for) = ledger.etcd.auth.filter(differs) {
        draft.waiting.push(Waiting::AuthDiffers { made_for, wanted: draft.desired.etcd.auth });
    }
    if let Some(cluster) = ledger.etcd.cluster
        && draft.observed.member_machines().all(|(_, m)| m.report().is_some_and(|r| r.etcd.data == Data::Empty))
        && draft.view.answering.is_empty()
    {
        draft.waiting.push(Waiting::AllDataLost { cluster });
    }
    Report::Looked
}

fn foreign_members(draft: &mut Draft<'_>, expected: ClusterId) {
    for name in draft.observed.etcd.members.keys() {
        let on_disk = draft.observed.report(name).and_then(AgentReport::cluster_on_disk);
        if let Some(found) = draft.observed.answer(name).map(|e| e.cluster).filter(|c| *c != expected) {
            draft.waiting.push(Waiting::ForeignMember { machine: name.clone(), found, expected });
        } else if let Some(found) = on_disk.filter(|c| *c != expected) {
            draft.waiting.push(Waiting::ForeignData { machine: name.clone(), found, expected });
        }
    }
}

/// Brings members up: at first a majority together, later each that does not run.
pub(super) fn run(draft: &mut Draft<'_>, ready: &[Ready<'_>]) -> Report {
    let mut startable: Vec<(&Ready<'_>, StartData)> = Vec::new();
    let mut up = 0;
    for r in ready {
        // A machine that the cluster does not list as a member has no reason to start etcd yet.
        if draft.standing(&r.member.name).outside() {
            continue;
        }
        if !formed(draft) && !founder(draft, &r.member.name) {
            continue;
        }
        match r.report.etcd.service.state {
            ServiceState::Running => {
                up += 1;
                await_health(draft, &r.member.name);
            }
            ServiceState::Backoff => {
                up += 1;
                await_restart(draft, r);
            }
            ServiceState::Stopped => {
                if let Some(data) = may_start(draft, r) {
                    startable.push((r, data));
                }
            }
        }
    }
    if formed(draft) {
        for (r, data) in startable {
            let reason = if matches!(data, StartData::Of(_)) { Reason::NotRunning } else { Reason::Missing };
            draft.steps.push(start(r, data, reason));
        }
        return Report::Looked;
    }
    let founders = draft.observed.ledger.etcd.founders.len();
    let of = if founders == 0 { draft.desired.etcd.members.len() } else { founders };
    // Whatever is done now is done before the first start.
    if !draft.steps.is_empty() {
        return Report::Left(Because::StepsFirst);
    }
    if startable.is_empty() {
        // The file may have other members by now than those that were first started.
        if up < quorum(of) && draft.waiting.is_empty() && draft.lost.is_empty() {
            draft.wait(Waiting::NoMajority { ready: up, needed: quorum(of) });
        }
        return Report::Looked;
    }
    // Started one by one, members wait for each other for ever: a majority is started together.
    if up + startable.len() < quorum(of) {
        draft.wait(Waiting::NoMajority { ready: up + startable.len(), needed: quorum(of) });
        return Report::Looked;
    }
    let starting = startable.len();
    for (r, data) in startable {
        draft.steps.push(start(r, data, Reason::FirstStart { starting, of }));
    }
    Report::Looked
}

/// Whether it is one of those that the cluster is first started with: once the first was started, they are fixed.
fn founder(draft: &Draft<'_>, name: &Name) -> bool {
    let founders = &draft.observed.ledger.etcd.founders;
    founders.is_empty() || founders.contains_key(name)
}

/// Whether the cluster exists: it was seen once, or it answers now.
pub(super) fn formed(draft: &Draft<'_>) -> bool {
    draft.observed.ledger.etcd.cluster.is_some()
        || draft.view.has_quorum()
        || draft.view.answering.values().any(|e| e.leader.is_some())
}

fn start(ready: &Ready<'_>, data: StartData, reason: Reason) -> Step {
    Step::new(EtcdAction::StartEtcd { machine: ready.member.name.clone(), version: ready.version, data }, reason)
}

/// What a stopped member's data directory must hold for its start, or nothing when it must not be started.
fn may_start(draft: &mut Draft<'_>, ready: &Ready<'_>) -> Option<StartData> {
    let name = &ready.member.name;
    let etcd = &ready.report.etcd;
    if let Some(taken) = etcd.ports_taken.first() {
        let (port, holder) = (taken.port, taken.holder.clone());
        draft.wait(Waiting::PortTaken { machine: name.clone(), port, holder });
        return None;
    }
    match etcd.data {
        Data::Present { cluster, .. } => Some(StartData::Of(cluster)),
        // An empty member under an old id has lost the record of its votes: it must never restart like this.
        Data::Empty if etcd.had_data => {
            draft.lose(name, Waiting::DataLost { machine: name.clone() });
            None
        }
        Data::Empty => bootstrap(draft, name),
        Data::Unreadable { .. } => None,
    }
}

/// How a member is bootstrapped: with its cluster, or into one that lists it. The founders' list is valid until the
/// members change.
fn bootstrap(draft: &mut Draft<'_>, name: &Name) -> Option<StartData> {
    let ledger = &draft.observed.ledger;
    match (draft.view.listed, ledger.etcd.cluster.or_else(|| draft.view.clusters.keys().next().copied())) {
        (Some(_), Some(cluster)) => Some(StartData::Joining(cluster)),
        _ if !ledger.etcd.reshaped && founder(draft, name) => Some(StartData::Empty),
        _ => {
            let error = "the cluster cannot be asked for its members".to_owned();
            draft.wait(Waiting::NoQuorumYet { machine: name.clone(), error });
            None
        }
    }
}

fn await_health(draft: &mut Draft<'_>, name: &Name) {
    let Some(member) = draft.observed.etcd.members.get(name) else { return };
    match &member.etcd {
        // A learner answers no linearizable reads.
        Fact::Seen { value, .. } if value.learner => {}
        Fact::Seen { value, .. } => {
            if let Some(error) = &value.read_error {
                draft.wait(Waiting::NoQuorumYet { machine: name.clone(), error: error.clone() });
            }
        }
        Fact::Unreachable { error, .. } => {
            let (machine, error) = (name.clone(), error.clone());
            match member.problem {
                None => draft.wait(Waiting::EtcdStarting { machine, error }),
                Some(Problem::Silent) => draft.wait(Waiting::EtcdSilent { machine, error }),
                Some(Problem::Unclear) => draft.wait(Waiting::EtcdUnclear { machine, error }),
                Some(Problem::Denied) => denied(draft, machine),
            }
        }
        Fact::Absent { .. } => {
            draft.wait(Waiting::EtcdStarting { machine: name.clone(), error: "nothing listens yet".to_owned() });
        }
    }
}

/// Failed authentication is reported once for all members, because the remedy is the same.
fn denied(draft: &mut Draft<'_>, machine: Name) {
    let known = draft.waiting.iter_mut().find_map(|waiting| match waiting {
        Waiting::AuthenticationFailed { members } => Some(members),
        _ => None,
    });
    match known {
        Some(members) => members.push(machine),
        None => draft.wait(Waiting::AuthenticationFailed { members: vec![machine] }),
    }
}

fn await_restart(draft: &mut Draft<'_>, ready: &Ready<'_>) {
    let machine = ready.member.name.clone();
    let service = &ready.report.etcd.service;
    let last_exit = service.last_exit.clone().unwrap_or_else(|| "for an unknown reason".to_owned());
    if service.finds_others_different() {
        maintenance::refuses_to_start(draft, machine);
        return;
    }
    let waiting = if let Some(taken) = ready.report.etcd.ports_taken.first() {
        Waiting::PortTaken { machine, port: taken.port, holder: taken.holder.clone() }
    } else if service.restarts >= CRASHES {
        Waiting::EtcdCrashes { machine, restarts: service.restarts, last_exit }
    } else {
        Waiting::EtcdStarting { machine, error: last_exit }
    };
    draft.wait(waiting);
}

/// Carries a changed configuration, version or trust through the cluster: the unhealthy first, then followers, the
/// leader last, after it has transferred leadership.
pub(super) fn roll(draft: &mut Draft<'_>, ready: &[Ready<'_>]) -> Report {
    let mut stale: Vec<&Ready<'_>> = ready
        .iter()
        .filter(|r| !draft.standing(&r.member.name).outside())
        .filter(|r| match r.report.etcd.service.state {
            ServiceState::Running => {
                let running = r.report.etcd.running_config.as_ref();
                // One that accepts clients already is not closed to them: auth is turned on at once.
                let configured = running == Some(&r.digest) || r.open.is_some() && running == r.open.as_ref();
                !configured || changes(r).is_some() || distrusts(draft, r)
            }
            // A member that is down for a moment restarts by itself, with the new configuration and its old version.
            ServiceState::Backoff => changes(r).is_some(),
            ServiceState::Stopped => false,
        })
        .collect();
    if trust::locked_out(draft.desired, draft.observed, &draft.view, draft.now) {
        restart_together(draft, &stale, Reason::LockedOut);
        return Report::Looked;
    }
    if !stale.is_empty()
        && let Some(closed) = to_be_opened(draft.desired, draft.observed)
    {
        stale.retain(|r| closed.contains(&r.member.name));
        restart_together(draft, &stale, Reason::Secured);
        return Report::Looked;
    }
    let left = left_behind(draft.observed, &draft.view);
    let rank = |r: &&Ready<'_>| {
        let name = &r.member.name;
        (draft.view.healthy.contains(name) && !left.contains(name), draft.view.leader == Some(name))
    };
    stale.sort_by_key(rank);
    let Some(first) = stale.first().copied() else { return Report::Looked };
    let Data::Present { cluster, .. } = first.report.etcd.data else { return Report::Looked };
    let name = &first.member.name;
    // etcd transfers leadership to the member that it has been connected to the longest: that may be one that is left
    // behind.
    if !left.is_empty() && draft.view.leader == Some(name) && draft.view.healthy.len() > 1 {
        members::hand_over(draft, name);
        return Report::Looked;
    }
    let version = first.version;
    let etcd = &first.report.etcd;
    let reason = match changes(first) {
        Some(from) => Reason::Version { from, to: version },
        None if etcd.running_config.as_ref() == Some(&first.digest) => Reason::OtherTrust,
        None => Reason::settings(first.changes.clone()),
    };
    let action = Action::Etcd(EtcdAction::RestartEtcd { machine: name.clone(), version, cluster });
    let save_first = matches!(reason, Reason::Version { .. }) && versions::snapshot_due(draft, version);
    let verdict = match save_first {
        true => Case::of(draft.desired, draft.observed, &draft.view).restart(name),
        false => safety::judge(draft.desired, draft.observed, &[&action], &action),
    };
    // A cluster too small for it may be about to grow: a restart that cannot be done delays nothing else.
    if let Err(refusal) = verdict {
        draft.wait(safety::refused(&action, refusal));
        return Report::Looked;
    }
    if save_first {
        draft.steps.push(Step::new(VersionAction::TakeSnapshot { version }, reason));
    } else if let Some(step) = members::hand_over_to_restart(draft, name) {
        draft.steps.push(step);
    } else {
        draft.steps.push(Step::new(action, reason));
        stale.remove(0);
    }
    for r in stale {
        draft.waiting.push(Waiting::Turn { machine: r.member.name.clone(), verb: "restart etcd".to_owned() });
    }
    Report::Looked
}

/// Whether a member was started with other authorities to trust than those that are to be trusted.
fn distrusts(draft: &Draft<'_>, ready: &Ready<'_>) -> bool {
    TrustDomain::ALL.into_iter().any(|side| !trust::in_effect(draft.desired, draft.observed, side, ready.report))
}

/// Restarts members together: those that no other member can complete a TLS handshake with any more, which would each
/// stay alone, and those that no client depends on yet.
fn restart_together(draft: &mut Draft<'_>, stale: &[&Ready<'_>], reason: Reason) {
    let data = |r: &&Ready<'_>| match r.report.etcd.data {
        Data::Present { cluster, .. } => Some(cluster),
        Data::Empty | Data::Unreadable { .. } => None,
    };
    let Some(cluster) = stale.iter().find_map(data) else { return };
    // A change of the version waits until they trust each other again.
    let machines = stale.iter().filter(|r| data(r).is_some());
    let machines = machines.map(|r| (r.member.name.clone(), changes(r).unwrap_or(r.version))).collect();
    draft.steps.push(Step::new(EtcdAction::RestartTogether { machines, cluster }, reason));
}

/// The version that a member ran until now, where it should run another.
fn changes(ready: &Ready<'_>) -> Option<EtcdVersion> {
    let etcd = &ready.report.etcd;
    etcd.running_version.or(etcd.last_version).filter(|running| *running != ready.version)
}
