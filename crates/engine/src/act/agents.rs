//! The program that raftsman ships → sent to an agent, which then runs it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use raftsman_api::hex;
use raftsman_api::v1::upgrade_agent_request::Part;
use raftsman_api::v1::{AgentProgram, ReportRequest, UpgradeAgentHead, UpgradeAgentRequest};
use raftsman_core::action::AgentAction;
use raftsman_core::spec::Name;

use super::{ActError, Executor};

/// gRPC's messages are limited to 4 MiB.
const CHUNK: usize = 1 << 20;
/// A machine reverts a program that does not serve within 15 s, and serves again some seconds later.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// An agent serves some 50 ms after its start.
const POLL: Duration = Duration::from_millis(20);
/// The limit for one report: a program that hangs must not use up the time for the old one that the machine brings
/// back.
const REPORT_LIMIT: Duration = Duration::from_secs(2);

/// Why an agent was not upgraded.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// The machine has brought the old program back.
    #[error("the machine has reverted the upgrade of its agent, and the old one serves: {reason}")]
    Reverted {
        /// Why.
        reason: String,
    },
    /// Neither the new nor the old program answers.
    #[error(
        "the agent of {machine} does not answer {} s after its upgrade ({last}); the machine brings the old one back by \
         itself: look at its log, `raftsman logs {machine} --agent`",
        ANSWER_LIMIT.as_secs()
    )]
    Silent {
        /// Where.
        machine: Name,
        /// What was seen last.
        last: String,
    },
    /// The file was replaced while the command ran.
    #[error("{} has changed since it was planned with: run the command again", path.display())]
    Changed {
        /// Which.
        path: PathBuf,
    },
}

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &AgentAction) -> Result<(), ActError> {
    match action {
        AgentAction::UpgradeAgent { machine, digest } => Box::pin(executor.upgrade_agent(machine, digest)).await,
    }
}

impl Executor<'_> {
    async fn upgrade_agent(self, machine: &Name, digest: &str) -> Result<(), ActError> {
        let cluster = self.cluster();
        let path = cluster.fleet.context.agent.clone();
        let changed = || UpgradeError::Changed { path: path.clone() };
        let version = cluster.desired.agents.shipped.as_ref().map(|shipped| shipped.version.to_string());
        let bytes = tokio::fs::read(&path).await.map_err(|source| ActError::Read { path: path.clone(), source })?;
        let (bytes, found) = tokio::task::spawn_blocking(move || {
            let found = hex::sha256(&bytes);
            (bytes, found)
        })
        .await
        .map_err(crate::observe::LinkError::from)?;
        let version = version.filter(|_| found == digest).ok_or_else(changed)?;
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let head = Part::Head(UpgradeAgentHead { sha256: digest.to_owned(), size, version });
        let part = |part| UpgradeAgentRequest { part: Some(part) };
        let chunks: Vec<Part> = bytes.chunks(CHUNK).map(|chunk| Part::Chunk(chunk.to_vec())).collect();
        drop(bytes);
        let parts = futures::stream::iter(std::iter::once(head).chain(chunks).map(part));
        self.agent(machine).await?.upgrade_agent(self.stamped(parts)).await?;
        self.await_program(machine, digest).await
    }

    /// Asks until the new program answers, which confirms it, or the old one again.
    async fn await_program(self, machine: &Name, digest: &str) -> Result<(), ActError> {
        let link = self.link(machine)?;
        let begun = Instant::now();
        let mut last = "no answer yet".to_owned();
        loop {
            // The connection to the old program ends with it.
            link.hang_up().await;
            match self.program(machine).await {
                Ok(Some(program)) if program.sha256 == digest => return Ok(()),
                Ok(Some(AgentProgram { failed: Some(failed), .. })) if failed.sha256 == digest => {
                    return Err(UpgradeError::Reverted { reason: failed.reason }.into());
                }
                Ok(_) => "the old program still answers".clone_into(&mut last),
                Err(error) => last = error.to_string(),
            }
            if begun.elapsed() > ANSWER_LIMIT {
                return Err(UpgradeError::Silent { machine: machine.clone(), last }.into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn program(self, machine: &Name) -> Result<Option<AgentProgram>, ActError> {
        let mut agent = self.link(machine)?.client_within(REPORT_LIMIT).await?;
        Ok(agent.report(ReportRequest { into_data: false }).await?.into_inner().agent_program)
    }
}
