//! `raftsman logs`: a machine → the last lines of the log of its etcd, its Patroni, its HAProxy or its agent.

use std::sync::Arc;

use raftsman_api::v1::{LogOf, LogsRequest, Program, ProgramLogsRequest};

use super::{OpError, pick_machine};
use crate::fleet::Fleet;
use crate::observe::{AgentLink, LinkError};

/// Whose log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// What the machine is for: etcd's on a member's, Patroni's on a node's, HAProxy's on one that a balancer has to
    /// itself.
    Machine,
    /// The agent's.
    Agent,
    /// HAProxy's.
    Balancer,
}

/// The last lines of a log.
pub async fn logs(fleet: &Arc<Fleet>, machine: &str, of: Source, lines: u32) -> Result<Vec<String>, OpError> {
    let (cluster, machine) = pick_machine(fleet, machine)?;
    let is_member = cluster.etcd.member(machine).is_some();
    if of == Source::Balancer && cluster.instance(machine).is_none() {
        let all = fleet.desired.stacks.iter().flat_map(|cluster| cluster.instances());
        let known = all.map(|(_, instance)| instance.name.to_string()).collect();
        return Err(OpError::NoBalancerThere { machine: machine.to_string(), known });
    }
    let missing = || OpError::NoSuchMachine { name: machine.to_string(), known: Vec::new() };
    let address = cluster.machine_address(machine).ok_or_else(missing)?;
    let mut client = AgentLink::new(fleet, machine, address)?.client().await?;
    let log = match of {
        Source::Agent => Some(LogOf::Agent),
        Source::Machine if is_member => Some(LogOf::Etcd),
        Source::Machine | Source::Balancer => None,
    };
    if let Some(log) = log {
        let reply = client.logs(LogsRequest { log: log.into(), lines }).await.map_err(LinkError::from)?;
        return Ok(reply.into_inner().lines);
    }
    let is_node = of == Source::Machine && cluster.node(machine).is_some();
    let program = if is_node { Program::Patroni } else { Program::Haproxy };
    let request = ProgramLogsRequest { program: program.into(), lines };
    Ok(client.program_logs(request).await.map_err(LinkError::from)?.into_inner().lines)
}

/// The index of the first line that is new since the previous read of the log's last lines.
pub fn added(before: &[String], now: &[String]) -> usize {
    // Assumes that as few lines as possible left the beginning: the same line may occur twice.
    let kept = (0..=before.len()).map(|gone| &before[gone..]).find(|kept| now.starts_with(kept));
    kept.map_or(0, <[String]>::len)
}

#[cfg(test)]
mod tests {
    use super::added;

    #[test]
    fn only_what_was_added_is_new() {
        let new = |before: &str, now: &str| {
            let lines = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
            now.chars().skip(added(&lines(before), &lines(now))).collect::<String>()
        };
        assert_eq!(new("", "abc"), "abc");
        assert_eq!(new("abc", "abc"), "");
        assert_eq!(new("abc", "abcd"), "d");
        assert_eq!(new("abc", "bcde"), "de", "the window has moved on");
        assert_eq!(new("aaa", "aaaa"), "a", "the same line again");
        assert_eq!(new("abc", "xyz"), "xyz", "more than a window has come");
        assert_eq!(new("abc", ""), "", "it was begun anew");
    }
}
