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
