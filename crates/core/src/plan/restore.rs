//! A backup that an operator decided to restore → the steps that replace all data with it, on every member at once.
//!
//! Machines are made ready first. Then every member is stopped, so that no client writes data that the restore would
//! lose. The old data is put away, and stays on the machines. All members get the same snapshot, and raftsman checks
//! that they hold the same before a client can reach them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::report::{Because, Report};
use super::situation::Ready;
use super::{Draft, Reason, Step, Waiting};
use crate::action::{EtcdAction, RestoreAction};
use crate::backup::FullName;
use crate::desired::Stack;
use crate::observed::{
    AgentReport, ClusterId, Data, Ledger, Mode, Observed, Restoration, ServiceState, SnapshotSource,
};
use crate::spec::Name;

/// What is restored into this cluster; it is not tested yet.
pub fn untried(desired: &Stack, observed: &Observed, backup: FullName, revision: i64, now: Timestamp) -> Restoration {
    Restoration {
        backup,
        history: None,
        manifest: None,
        revision,
        keys: 0,
        since: now,
        old: replaced(observed),
        members: desired.etcd.members.iter().map(|member| (member.name.clone(), member.peer_url())).collect(),
        version: desired.etcd.version,
        source: SnapshotSource::File(format!("{}-restored-{}.db", desired.name, now.as_millisecond())),
        sha256: String::new(),
        bump: 0,
        agreed: false,
    }
}

/// Records that an operator decided on this restore.
pub fn decide(ledger: &mut Ledger, restoration: Restoration) {
    // The machines' previous data is replaced: its absence must not block their next start.
    ledger.etcd.started.clear();
    ledger.etcd.members.extend(restoration.members.clone());
    ledger.etcd.mode = Mode::Restoring(Box::new(restoration));
}

/// All clusters that there is data of: what a backup takes the place of.
pub fn replaced(observed: &Observed) -> BTreeSet<ClusterId> {
    let found = observed.reports().filter_map(|(_, report)| report.cluster_on_disk());
    found.chain(observed.ledger.etcd.cluster).collect()
}

/// Whether the file wants a cluster that was never started to be bootstrapped from a backup.
pub(super) fn awaited(draft: &Draft<'_>) -> bool {
    let ledger = &draft.observed.ledger;
    let never = ledger.etcd.cluster.is_none() && ledger.etcd.founders.is_empty() && draft.view.clusters.is_empty();
    draft.desired.etcd.settings.restore_from.is_some() && never
}

/// Once all machines are ready: the backup is tested on one of them, and all get the resulting snapshot.
pub(super) fn prepare(draft: &mut Draft<'_>, ready: &[Ready<'_>]) -> Report {
    if draft.steps.is_empty() && draft.waiting.is_empty() && ready.len() == draft.desired.etcd.members.len() {
        draft.steps.push(Step::new(RestoreAction::PrepareRestore, Reason::BootstrappedFrom));
    }
    let lost = std::mem::take(&mut draft.lost);
    draft.waiting.extend(lost.into_iter().map(|(_, waiting)| waiting));
    Report::Looked
}

/// The next steps.
pub(super) fn restore(draft: &mut Draft<'_>, ready: &[Ready<'_>]) -> Report {
    let (observed, now) = (draft.observed, draft.now);
    let Some(restoration) = observed.ledger.etcd.restoration() else { return Report::Looked };
    let lost = std::mem::take(&mut draft.lost);
    draft.waiting.extend(lost.into_iter().map(|(_, waiting)| waiting));
    if !draft.steps.is_empty() {
        return Report::Left(Because::StepsFirst);
    }
    if !draft.waiting.is_empty() {
        return Report::Left(Because::Awaited);
    }
    // A member that cannot be asked may still serve.
    for (name, seen) in observed.member_machines() {
        if seen.report().is_none() && !seen.machine.is_absent() {
            let error = "its agent does not answer".to_owned();
            draft.wait(Waiting::AgentUnreachable { machine: name.clone(), error, since: now });
        }
    }
    if !draft.waiting.is_empty() {
        return Report::Looked;
    }
    let reason = || Reason::Restored { backup: restoration.backup };
    let reports: BTreeMap<&Name, &AgentReport> = observed.reports().collect();
    let old = |report: &AgentReport| restoration.replaces(&report.etcd.data);
    let mut serving: Vec<&Name> = reports
        .iter()
        .filter(|(_, report)| report.etcd.service.state != ServiceState::Stopped)
        .filter(|(_, report)| old(report) || report.etcd.data == Data::Empty)
        .map(|(name, _)| *name)
        .collect();
    if serving.len() > 1 {
        // The leader last: it would wait for another member to take over, and all of them stop.
        serving.retain(|name| draft.view.leader != Some(*name));
    }
    if !serving.is_empty() {
        let stop = |machine: &Name| Step::new(EtcdAction::StopEtcd { machine: machine.clone() }, reason());
        draft.steps.extend(serving.into_iter().map(stop));
        return Report::Looked;
    }
    for (name, report) in reports.iter().filter(|(_, report)| old(report)) {
        let member = match report.etcd.data {
            Data::Present { member, .. } => Some(member),
            Data::Empty | Data::Unreadable { .. } => None,
        };
        draft.steps.push(Step::new(EtcdAction::ClearData { machine: (*name).clone(), member }, reason()));
    }
    if !draft.steps.is_empty() {
        return Report::Looked;
    }
    let is_ready = |name: &Name| ready.iter().any(|ready| ready.member.name == *name);
    for name in restoration.members.keys().filter(|name| is_ready(name)) {
        if reports.get(name).is_some_and(|report| report.etcd.data == Data::Empty) {
            let (machine, version) = (name.clone(), restoration.version);
            draft.steps.push(Step::new(RestoreAction::RestoreBackup { machine, version }, reason()));
        }
    }
    if !draft.steps.is_empty() {
        return Report::Looked;
    }
    match found(observed, restoration).len() {
        // The next observation takes it for the cluster.
        1 if restoration.agreed => {}
        1 => {
            let machines = restoration.members.keys().cloned().collect();
            draft.steps.push(Step::new(RestoreAction::CompareRestored { machines }, reason()));
        }
        _ => {
            let found = found(observed, restoration);
            let found = found.into_iter().map(|(id, names)| (id, names.into_iter().cloned().collect())).collect();
            draft.wait(Waiting::SeveralClusters { found });
        }
    }
    Report::Looked
}

/// The members that it was decided for are those of the file still.
pub(super) fn same_members(draft: &mut Draft<'_>) -> Report {
    let members = draft.desired.etcd.members.iter();
    let wanted: BTreeMap<Name, String> = members.map(|member| (member.name.clone(), member.peer_url())).collect();
    if let Some(restoration) = draft.observed.ledger.etcd.restoration().filter(|it| it.members != wanted) {
        draft.wait(Waiting::RestoredOthers { members: restoration.members.keys().cloned().collect() });
    }
    Report::Looked
}

/// The clusters that the members' new data belongs to, and which members hold it.
pub(super) fn found<'a>(observed: &'a Observed, restoration: &'a Restoration) -> BTreeMap<ClusterId, Vec<&'a Name>> {
    let mut found: BTreeMap<ClusterId, Vec<&Name>> = BTreeMap::new();
    for name in restoration.members.keys() {
        let on_disk = observed.report(name).and_then(AgentReport::cluster_on_disk);
        if let Some(cluster) = on_disk.filter(|cluster| !restoration.old.contains(cluster)) {
            found.entry(cluster).or_default().push(name);
        }
    }
    found
}
