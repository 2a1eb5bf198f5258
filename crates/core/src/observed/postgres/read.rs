//! Patroni's answers and keys, in JSON → facts.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::{NodeFacts, NodeRole, NodeState, PatroniKeys, PendingSetting, SyncKey, SystemId, TimelineEnd};
use crate::spec::{PatroniVersion, PostgresVersion};

/// Patroni said something that raftsman cannot read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Patroni's {what} cannot be read: {why}; is its version one that raftsman runs?")]
pub struct PatroniError {
    /// Which answer or key.
    pub what: String,
    /// What is wrong with it.
    pub why: String,
}

impl NodeFacts {
    /// Reads the answer to `GET /patroni`.
    pub fn read(answer: &str) -> Result<Self, PatroniError> {
        let bad = |why: &str| PatroniError { what: "answer".to_owned(), why: why.to_owned() };
        let answer: Value = serde_json::from_str(answer).map_err(|error| bad(&error.to_string()))?;
        let text = |key: &str| answer[key].as_str().ok_or_else(|| bad(&format!("it has no `{key}`")));
        let role = match text("role")? {
            "primary" | "master" => NodeRole::Primary,
            "replica" => NodeRole::Replica,
            "standby_leader" => NodeRole::StandbyLeader,
            "uninitialized" => NodeRole::Uninitialized,
            other => return Err(bad(&format!("`{other}` is no role"))),
        };
        let patroni = &answer["patroni"];
        let name = patroni["name"].as_str().ok_or_else(|| bad("it has no name"))?;
        let version = patroni["version"].as_str().and_then(|text| PatroniVersion::parse(text).ok());
        let seen = answer["dcs_last_seen"].as_i64().and_then(|seconds| Timestamp::from_second(seconds).ok());
        let xlog = &answer["xlog"];
        let position = xlog["location"].as_u64().or_else(|| xlog["received_location"].as_u64());
        Ok(Self {
            name: name.to_owned(),
            role,
            state: state(text("state")?),
            system: answer["database_system_identifier"].as_str().and_then(system),
            timeline: answer["timeline"].as_u64().and_then(|timeline| u32::try_from(timeline).ok()),
            position,
            streaming: answer["replication_state"] == "streaming",
            paused: answer["pause"] == true,
            failsafe: answer["failsafe_mode_is_active"] == true,
            pending_restart: answer["pending_restart"] == true,
            pending: answer["pending_restart_reason"].as_object().into_iter().flatten().filter_map(pending).collect(),
            // Before its first round it has seen nothing.
            dcs_seen: seen.unwrap_or(Timestamp::UNIX_EPOCH),
            patroni: version.ok_or_else(|| bad("it has no version of Patroni"))?,
            server: answer["server_version"].as_u64().and_then(server),
        })
    }
}

fn pending((name, change): (&String, &Value)) -> Option<(String, PendingSetting)> {
    let text = |key: &str| match &change[key] {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(on) => Some(if *on { "on" } else { "off" }.to_owned()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    Some((name.clone(), PendingSetting { from: text("old_value")?, to: text("new_value")? }))
}

fn state(word: &str) -> NodeState {
    match word {
        "running" => NodeState::Running,
        "starting" => NodeState::Starting,
        "stopped" => NodeState::Stopped,
        "stopping" => NodeState::Stopping,
        "restarting" => NodeState::Restarting,
        "initializing new cluster" | "running custom bootstrap script" => NodeState::Initializing,
        "creating replica" => NodeState::CreatingReplica,
        "crashed" => NodeState::Crashed,
        "start failed" | "restart failed" | "stop failed" | "initdb failed" | "custom bootstrap failed" => {
            NodeState::StartFailed
        }
        other => NodeState::Other(other.to_owned()),
    }
}

fn system(text: &str) -> Option<SystemId> {
    text.parse().ok().map(SystemId)
}

/// PostgreSQL's own number of its version: 150018 is 15.18.
fn server(number: u64) -> Option<PostgresVersion> {
    let (major, minor) = (u32::try_from(number / 10_000).ok()?, u32::try_from(number % 10_000).ok()?);
    Some(PostgresVersion { major, minor: Some(minor) })
}

impl PatroniKeys {
    /// Reads the keys below this prefix, each with its value and the revision at which it was last written.
    pub fn read<'k>(
        prefix: &str,
        keys: impl IntoIterator<Item = (&'k str, &'k str, i64)>,
    ) -> Result<Self, PatroniError> {
        let mut found = Self::default();
        for (key, value, revision) in keys {
            let Some(key) = key.strip_prefix(prefix) else { continue };
            let bad = |why: &str| PatroniError { what: format!("key `{key}`"), why: why.to_owned() };
            let json = || serde_json::from_str::<Value>(value).map_err(|error| bad(&error.to_string()));
            match key {
                "initialize" => found.system = system(value),
                "leader" => found.leader = Some(value.to_owned()).filter(|leader| !leader.is_empty()),
                "sync" => found.sync = sync(&json()?, revision),
                "config" => found.settings = Some(value.to_owned()),
                "history" => {
                    let ends = json()?;
                    let ends = ends.as_array().ok_or_else(|| bad("it is no list"))?.iter();
                    let end = |entry: &Value| {
                        let timeline = u32::try_from(entry[0].as_u64()?).ok()?;
                        Some(TimelineEnd { timeline, position: entry[1].as_u64()? })
                    };
                    let ends: Option<Vec<TimelineEnd>> = ends.map(end).collect();
                    found.history = ends.ok_or_else(|| bad("an entry has no timeline or no position"))?;
                }
                "failsafe" => {
                    found.failsafe = json()?.as_object().into_iter().flatten().map(|(n, _)| n.clone()).collect()
                }
                // It stays as `{}` once it is done.
                "failover" => {
                    let asked = json()?;
                    let named = |key: &str| asked[key].as_str().is_some_and(|name| !name.is_empty());
                    found.failover = named("leader") || named("member");
                }
                // Positions and slots; a further key of a newer Patroni.
                other => found.members.extend(other.strip_prefix("members/").map(str::to_owned)),
            }
        }
        Ok(found)
    }
}

fn sync(value: &Value, revision: i64) -> SyncKey {
    let standbys: BTreeSet<String> = value["sync_standby"]
        .as_str()
        .into_iter()
        .flat_map(|names| names.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    SyncKey {
        leader: value["leader"].as_str().filter(|leader| !leader.is_empty()).map(str::to_owned),
        standbys,
        quorum: value["quorum"].as_u64().and_then(|quorum| u32::try_from(quorum).ok()).unwrap_or(0),
        revision,
    }
}
