//! A step on an agent's program, on the simulated world → which program it runs then.

#![warn(clippy::wildcard_enum_match_arm)]

use super::World;
use super::effects::Impossible;
use crate::action::AgentAction;
use crate::desired::{Shipped, Stack};
use crate::observed::{AgentProgram, FailedUpgrade};
use crate::spec::Name;

pub(super) fn act(world: &mut World, desired: &Stack, action: &AgentAction) -> Result<(), Impossible> {
    match action {
        AgentAction::UpgradeAgent { machine, digest } => world.upgrade_agent(desired, machine, digest),
    }
}

impl World {
    /// A new machine comes with the agent that is shipped.
    pub(super) fn enroll(&mut self, desired: &Stack, machine: &Name) -> Result<(), Impossible> {
        let enrolled = self.with_agent(machine)?;
        enrolled.claimed = true;
        if let Some(Shipped { version, digest, .. }) = &desired.agents.shipped {
            enrolled.agent_version = version.to_string();
            enrolled.program = Some(AgentProgram { digest: Some(digest.clone()), ..AgentProgram::default() });
        }
        Ok(())
    }

    fn upgrade_agent(&mut self, desired: &Stack, machine: &Name, digest: &str) -> Result<(), Impossible> {
        let shipped = desired.agents.shipped.as_ref().filter(|shipped| shipped.digest == digest);
        let Shipped { version, .. } = shipped.ok_or_else(|| Impossible("there is no such program".to_owned()))?;
        let upgraded = self.claimed(machine)?;
        let program = upgraded.program.as_mut().ok_or_else(|| Impossible("the agent is too old".to_owned()))?;
        if upgraded.reverts.contains(digest) {
            let (digest, version) = (digest.to_owned(), version.to_string());
            let reason = "it ended".to_owned();
            program.failed = Some(FailedUpgrade { digest, version, reason, at: None, retriable: false });
            return Err(Impossible("the machine has reverted it".to_owned()));
        }
        *program = AgentProgram { digest: Some(digest.to_owned()), ..AgentProgram::default() };
        upgraded.agent_version = version.to_string();
        Ok(())
    }
}
