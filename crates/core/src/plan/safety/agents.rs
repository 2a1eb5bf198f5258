//! Which program an agent runs, which one is to come → whether it may, and whether this raftsman may change anything.

use super::{Case, Cost, Refusal};
use crate::action::AgentAction;
use crate::desired::Stack;
use crate::observed::{AgentReport, Observed};
use crate::plan::agents::{is_newer, reverted};

/// Refuses changes while an agent is newer: this raftsman does not know what that agent does.
pub(super) fn skew(desired: &Stack, observed: &Observed) -> Result<(), Refusal> {
    let Some(shipped) = &desired.agents.shipped else { return Ok(()) };
    let newer = observed.reports().find(|(_, report)| is_newer(report, shipped));
    let newer = newer.map(|(name, report)| {
        format!("the agent of {name} is of version {}, newer than this raftsman", report.version)
    });
    newer.map_or(Ok(()), |why| Err(Refusal::Otherwise(why)))
}

pub(super) fn judge(case: &Case<'_>, action: &AgentAction) -> Result<Cost, Refusal> {
    match action {
        AgentAction::UpgradeAgent { machine, digest } => {
            upgrade(case.desired, case.report(machine)?, digest).map(|()| case.unharmed)
        }
    }
}

/// Only the program that this raftsman ships, only over one that is not newer, and not one that this machine reverted.
fn upgrade(desired: &Stack, report: &AgentReport, digest: &str) -> Result<(), Refusal> {
    let shipped = desired.agents.shipped.as_ref().filter(|shipped| shipped.digest == digest);
    let shipped = shipped.ok_or(Refusal::NotSeen("the program that is to come"))?;
    let program = report.program.as_ref().ok_or(Refusal::NotSeen("an agent that can be upgraded by a call"))?;
    if program.digest.as_deref() == Some(digest) {
        return Err(Refusal::Otherwise("it runs already".into()));
    }
    if is_newer(report, shipped) {
        return Err(Refusal::Otherwise("it would be a downgrade".into()));
    }
    if reverted(program, shipped).is_some() {
        return Err(Refusal::Otherwise("the machine has reverted this program before".into()));
    }
    Ok(())
}
