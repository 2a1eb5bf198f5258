//! Machines that should be, machines that are → machines to make, start, take in and equip.

use super::{Draft, Reason, Step, Waiting, pki};
use crate::action::Action;
use crate::desired::Member;
use crate::observed::{Agent, AgentReport, Data, Fact, Power, ServiceState};

/// Certificates are trusted by the clock: more than this apart, a fresh certificate may not be valid yet over there.
const MAX_CLOCK_OFFSET_MS: u64 = 60_000;
/// etcd needs room for its first write-ahead log segment.
const MIN_FREE_BYTES: u64 = 64 * 1024 * 1024;

/// A member whose machine has all that etcd needs.
pub(super) struct Ready<'a> {
    pub(super) member: &'a Member,
    pub(super) report: &'a AgentReport,
}

/// Steps that bring machines closer to running etcd; the answer is who is there already.
pub(super) fn prepare<'a>(draft: &mut Draft<'a>) -> Vec<Ready<'a>> {
    let desired = draft.desired;
    desired.members.iter().filter_map(|member| prepare_one(draft, member)).collect()
}

fn prepare_one<'a>(draft: &mut Draft<'a>, member: &'a Member) -> Option<Ready<'a>> {
    let name = &member.name;
    let observed = draft.observed;
    let seen = observed.members.get(name)?;
    let started = observed.ledger.started.get(name);
    match &seen.machine {
        Fact::Unreachable { error, .. } => {
            draft.wait(Waiting::MachineUnknown { machine: name.clone(), error: error.clone() });
            return None;
        }
        Fact::Absent { .. } if started.is_some() => {
            draft.wait(Waiting::MachineLost { machine: name.clone() });
            return None;
        }
        Fact::Absent { .. } => {
            draft.steps.push(Step::new(Action::CreateMachine { machine: name.clone() }, Reason::Missing));
            return None;
        }
        Fact::Seen { value, .. } if value.power == Power::Stopped => {
            draft.steps.push(Step::new(Action::StartMachine { machine: name.clone() }, Reason::NotRunning));
            return None;
        }
        Fact::Seen { .. } => {}
    }
    let report = match &seen.agent {
        Fact::Unreachable { error, since } => {
            draft.wait(Waiting::AgentUnreachable { machine: name.clone(), error: error.clone(), since: *since });
            return None;
        }
        Fact::Absent { at } => {
            let error = "the machine runs without an agent".to_owned();
            draft.wait(Waiting::AgentUnreachable { machine: name.clone(), error, since: *at });
            return None;
        }
        Fact::Seen { value: Agent::Unclaimed, .. } if started.is_some() => {
            draft.wait(Waiting::MachineRebuilt { machine: name.clone() });
            return None;
        }
        Fact::Seen { value: Agent::Unclaimed, .. } => {
            draft.steps.push(Step::new(Action::Enroll { machine: name.clone() }, Reason::Unclaimed));
            return None;
        }
        Fact::Seen { value: Agent::Claimed(report), .. } => report,
    };
    equip(draft, member, report).then_some(Ready { member, report })
}

/// Steps that equip a machine of ours; whether it lacks nothing is the answer.
fn equip(draft: &mut Draft<'_>, member: &Member, report: &AgentReport) -> bool {
    let name = &member.name;
    let etcd = &report.etcd;
    if report.machine != *name {
        draft.wait(Waiting::WrongMachine { machine: name.clone(), found: report.machine.clone() });
        return false;
    }
    if draft.observed.ledger.started.get(name).is_some_and(|incarnation| *incarnation != report.incarnation) {
        draft.wait(Waiting::MachineRebuilt { machine: name.clone() });
        return false;
    }
    if report.clock_offset_ms.unsigned_abs() > MAX_CLOCK_OFFSET_MS {
        draft.wait(Waiting::ClockSkew { machine: name.clone(), offset_ms: report.clock_offset_ms });
        return false;
    }
    let running = etcd.service.state == ServiceState::Running;
    // While etcd runs, it is etcd that judges its data: in its first moments it is not readable yet.
    if let Data::Unreadable { problem } = &etcd.data
        && !running
    {
        draft.wait(Waiting::DataUnreadable { machine: name.clone(), problem: problem.clone() });
        return false;
    }
    if !running && report.disk.free < MIN_FREE_BYTES {
        draft.wait(Waiting::DiskFull { machine: name.clone(), free: report.disk.free });
        return false;
    }
    if let Some(version) = etcd.running_version.filter(|v| running && *v != draft.desired.version) {
        let wanted = draft.desired.version;
        draft.wait(Waiting::VersionDiffers { machine: name.clone(), running: version, wanted });
        return false;
    }
    let mut complete = pki::leaves(draft, member, report);
    if !etcd.installed.contains_key(&draft.desired.version) {
        let action = Action::InstallEtcd { machine: name.clone(), version: draft.desired.version };
        draft.steps.push(Step::new(action, Reason::Missing));
        complete = false;
    }
    if etcd.config.as_ref() != Some(&member.config_digest) {
        let action = Action::ConfigureEtcd { machine: name.clone(), digest: member.config_digest.clone() };
        let reason = if etcd.config.is_none() { Reason::Missing } else { Reason::Changed };
        draft.steps.push(Step::new(action, reason));
        complete = false;
    }
    complete
}
