//! Agents that run another program than the one that this raftsman ships → upgrades, one at a time.

use super::report::Report;
use super::{Draft, Reason, Remedy, Step, Waiting};
use crate::action::AgentAction;
use crate::desired::{AgentVersion, Capabilities, Shipped, Stack};
use crate::observed::{AgentProgram, AgentReport, FailedUpgrade, Observed};
use crate::spec::Name;

/// What stays free on a machine's disk when its agent is upgraded: as much as the agent itself keeps.
const RESERVE: u64 = 64 << 20;

/// Whether an agent is of a newer version than the one that is shipped. One whose version cannot be read is not.
pub(super) fn is_newer(report: &AgentReport, shipped: &Shipped) -> bool {
    AgentVersion::parse(&report.version).is_some_and(|version| version > shipped.version)
}

/// The upgrade to this program that a machine has reverted, unless the program was not the cause.
pub(super) fn reverted<'a>(program: &'a AgentProgram, shipped: &Shipped) -> Option<&'a FailedUpgrade> {
    program.failed.as_ref().filter(|failed| failed.digest == shipped.digest && !failed.retriable)
}

/// Agents that are newer than this raftsman: it changes nothing then.
pub fn newer_agents<'a>(desired: &'a Stack, observed: &'a Observed) -> impl Iterator<Item = Waiting> + 'a {
    let newer = |(machine, report): (&Name, &AgentReport)| {
        let shipped = desired.agents.shipped.as_ref().filter(|shipped| is_newer(report, shipped))?;
        let (version, ours) = (report.version.clone(), shipped.version.to_string());
        Some(Waiting::AgentNewer { machine: machine.clone(), version, ours })
    };
    observed.reports().filter_map(newer)
}

pub(super) fn newer(draft: &mut Draft<'_>) -> Report {
    draft.waiting.extend(newer_agents(draft.desired, draft.observed));
    Report::Looked
}

/// Whether this agent runs another program and can be upgraded.
fn is_due(report: &AgentReport, shipped: &Shipped) -> bool {
    let Some((program, from)) = report.program.as_ref().and_then(|p| Some((p, p.digest.as_ref()?))) else {
        return false;
    };
    let room = report.disk.free >= shipped.size.saturating_add(RESERVE);
    *from != shipped.digest && reverted(program, shipped).is_none() && room
}

/// Whether this agent is upgraded before it is given what only the shipped one may know.
pub(super) fn comes_first(draft: &Draft<'_>, report: &AgentReport) -> bool {
    draft.desired.agents.shipped.as_ref().is_some_and(|shipped| is_due(report, shipped))
}

/// The first agent, in the order of the file, that runs another program. The others wait for the result of its upgrade.
pub(super) fn upgrade(draft: &mut Draft<'_>) -> Report {
    let Some(shipped) = &draft.desired.agents.shipped else { return Report::Looked };
    for machine in draft.desired.all_machines() {
        let Some(report) = draft.observed.report(machine) else { continue };
        if !is_due(report, shipped) {
            continue;
        }
        let action = AgentAction::UpgradeAgent { machine: machine.clone(), digest: shipped.digest.clone() };
        let reason = Reason::OtherAgent { from: report.version.clone(), to: shipped.version.to_string() };
        draft.steps.push(Step::new(action, reason));
        return Report::Looked;
    }
    Report::Looked
}

/// Agents that stay as they are, and why. This delays no other step.
pub(super) fn note(draft: &mut Draft<'_>) -> Report {
    let Some(shipped) = &draft.desired.agents.shipped else { return Report::Looked };
    for machine in draft.desired.all_machines().cloned() {
        let Some(report) = draft.observed.report(&machine) else { continue };
        let Some(wanted) = draft.desired.machine(&machine) else { continue };
        let Some(program) = &report.program else {
            let (version, remedy) = (report.version.clone(), Remedy::of(wanted.capabilities));
            draft.waiting.push(Waiting::AgentTooOld { machine, version, remedy });
            continue;
        };
        if program.digest.as_ref() == Some(&shipped.digest) {
            continue;
        }
        if let Some(failed) = reverted(program, shipped) {
            let (version, reason) = (failed.version.clone(), failed.reason.clone());
            let remedy = Remedy::of(wanted.capabilities);
            draft.waiting.push(Waiting::AgentReverted { machine, version, reason, remedy });
        } else if program.digest.is_some() && report.disk.free < shipped.size.saturating_add(RESERVE) {
            draft.waiting.push(Waiting::AgentNoRoom { machine, free: report.disk.free, size: shipped.size });
        }
    }
    Report::Looked
}

impl Remedy {
    fn of(machines: Capabilities) -> Self {
        match machines {
            Capabilities { makes: false, .. } => Self::Install,
            Capabilities { boots: true, .. } => Self::Replace,
            Capabilities { .. } => Self::Restart,
        }
    }
}
