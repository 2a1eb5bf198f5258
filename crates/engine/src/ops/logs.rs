//! `raftsman logs`: a machine → the last lines of its etcd's or its agent's log.

use std::sync::Arc;

use raftsman_api::v1::{LogOf, LogsRequest};

use super::OpError;
use crate::fleet::Fleet;
use crate::observe::{AgentLink, LinkError};

/// The last lines of a log.
pub async fn logs(fleet: &Arc<Fleet>, machine: &str, of_agent: bool, lines: u32) -> Result<Vec<String>, OpError> {
    let all = || fleet.desired.clusters.iter().flat_map(|c| &c.members);
    let member = all().find(|m| m.name.as_str() == machine).ok_or_else(|| OpError::NoSuchMachine {
        name: machine.to_owned(),
        known: all().map(|m| m.name.to_string()).collect(),
    })?;
    let mut client = AgentLink::new(fleet, &member.name, member.address)?.client().await?;
    let log = if of_agent { LogOf::Agent } else { LogOf::Etcd };
    let reply = client.logs(LogsRequest { log: log.into(), lines }).await.map_err(LinkError::from)?;
    Ok(reply.into_inner().lines)
}
