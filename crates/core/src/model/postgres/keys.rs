//! What Patroni keeps in a simulated etcd → leases, synchronous standbys, and the settings as values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::desired::PARAMETERS;
use crate::observed::{MemberId, PatroniKeys, SyncKey, SystemId, TimelineEnd};
use crate::spec::Name;

use super::World;

/// Patroni's settings of a whole cluster, each by its path, in JSON.
pub(super) type Settings = BTreeMap<String, String>;

/// Parameters of PostgreSQL, in JSON.
pub(super) type Parameters = BTreeMap<String, String>;

/// Parameters that only a start of PostgreSQL changes, and what they are without a setting, where a standby needs at least
/// as much as its primary.
const AT_START: [(&str, Option<i64>); 10] = [
    ("max_connections", Some(100)),
    ("max_worker_processes", Some(8)),
    ("max_wal_senders", Some(10)),
    ("max_prepared_transactions", Some(0)),
    ("max_locks_per_transaction", Some(64)),
    ("max_replication_slots", None),
    ("shared_buffers", None),
    ("track_commit_timestamp", None),
    ("wal_buffers", None),
    ("wal_level", None),
];

/// What the PostgreSQL clusters on an etcd cluster keep there.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PatroniStore {
    /// By PostgreSQL cluster.
    pub clusters: BTreeMap<Name, KeysModel>,
    /// The leader of etcd that counts the leases: another one counts them from their beginning.
    pub lessor: Option<MemberId>,
}

/// What one PostgreSQL cluster keeps in etcd.
#[derive(Debug, Clone, PartialEq)]
pub struct KeysModel {
    /// Whose data the cluster has.
    pub system: Option<SystemId>,
    /// The node with the leader's lease.
    pub leader: Option<String>,
    /// When the lease ends, unless it is renewed.
    pub lease_end: Timestamp,
    /// Which standbys have every acknowledged commit.
    pub sync: SyncKey,
    /// The settings of the whole cluster.
    pub settings: Arc<Settings>,
    /// The ends of former timelines.
    pub history: Vec<TimelineEnd>,
    /// The nodes that have to agree where etcd is lost.
    pub failsafe: BTreeSet<String>,
    /// The nodes, and when the lease of each one's key ends.
    pub members: BTreeMap<String, Timestamp>,
}

impl Default for KeysModel {
    fn default() -> Self {
        Self {
            system: None,
            leader: None,
            lease_end: Timestamp::UNIX_EPOCH,
            sync: SyncKey::default(),
            settings: Arc::default(),
            history: Vec::new(),
            failsafe: BTreeSet::new(),
            members: BTreeMap::new(),
        }
    }
}

impl KeysModel {
    /// As a client reads them.
    pub(super) fn read(&self) -> PatroniKeys {
        PatroniKeys {
            system: self.system,
            leader: self.leader.clone(),
            sync: self.sync.clone(),
            settings: (!self.settings.is_empty()).then(|| nest(&self.settings)),
            history: self.history.clone(),
            failsafe: self.failsafe.clone(),
            members: self.members.keys().cloned().collect(),
            failover: false,
        }
    }

    /// As they were read at this moment: every lease was just renewed.
    pub(super) fn of(keys: &PatroniKeys, now: Timestamp) -> Self {
        let settings = keys.settings.as_deref().map(flatten).unwrap_or_default();
        let end = World::lease_end(&settings, now);
        Self {
            system: keys.system,
            leader: keys.leader.clone(),
            lease_end: end,
            sync: keys.sync.clone(),
            settings: Arc::new(settings),
            history: keys.history.clone(),
            failsafe: keys.failsafe.clone(),
            members: keys.members.iter().map(|name| (name.clone(), end)).collect(),
        }
    }

    /// This node has the leader's lease, from now on.
    pub(super) fn lead(&mut self, node: &str, now: Timestamp) {
        self.leader = Some(node.to_owned());
        self.lease_end = World::lease_end(&self.settings, now);
    }

    /// All leases are counted from their beginning.
    pub(super) fn renew(&mut self, now: Timestamp) {
        let end = World::lease_end(&self.settings, now);
        self.lease_end = end;
        self.members.values_mut().for_each(|member| *member = end);
    }

    /// What was not renewed in time is removed.
    pub(super) fn expire(&mut self, now: Timestamp) {
        if self.lease_end <= now {
            self.leader = None;
        }
        self.members.retain(|_, end| *end > now);
    }

    /// A timeline ends here.
    pub(super) fn fork(&mut self, timeline: u32, position: u64) {
        self.history.retain(|end| end.timeline != timeline);
        self.history.push(TimelineEnd { timeline, position });
        self.history.sort_by_key(|end| end.timeline);
    }

    /// The key is written anew only where something changes.
    pub(super) fn name_synchronous(&mut self, leader: Option<&String>, standbys: BTreeSet<String>, quorum: u32) {
        let leader = leader.cloned();
        if (&self.sync.leader, &self.sync.standbys, self.sync.quorum) != (&leader, &standbys, quorum) {
            let revision = self.sync.revision + 1;
            self.sync = SyncKey { leader, standbys, quorum, revision };
        }
    }
}

/// A setting in whole seconds.
pub(super) fn seconds(settings: &Settings, path: &str, otherwise: u64) -> u64 {
    settings.get(path).and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

fn is_on(settings: &Settings, path: &str) -> bool {
    settings.get(path).is_some_and(|value| value == "true")
}

/// Whether the primary goes on without etcd while all nodes answer.
pub(super) fn has_failsafe(settings: &Settings) -> bool {
    is_on(settings, "failsafe_mode")
}

/// Whether Patroni leaves everything as it is.
pub(super) fn is_paused(settings: &Settings) -> bool {
    is_on(settings, "pause")
}

/// Whether commits wait for standbys.
pub(super) fn is_synchronous(settings: &Settings) -> bool {
    is_on(settings, "synchronous_mode") || has_quorum_commit(settings)
}

/// Whether a commit waits for the fastest standbys.
pub(super) fn has_quorum_commit(settings: &Settings) -> bool {
    settings.get("synchronous_mode").is_some_and(|value| value.trim_matches('"') == "quorum")
}

/// Whether no commit is acknowledged without a standby.
pub(super) fn is_strict(settings: &Settings) -> bool {
    is_synchronous(settings) && is_on(settings, "synchronous_mode_strict")
}

/// How many standbys a commit waits for.
pub(super) fn synchronous_standbys(settings: &Settings) -> u32 {
    u32::try_from(seconds(settings, "synchronous_node_count", 1)).unwrap_or(1)
}

/// The parameters that only a start of PostgreSQL changes.
pub(super) fn parameters(settings: &Settings) -> Parameters {
    let value = |name: &str| settings.get(&format!("{PARAMETERS}{name}")).cloned();
    AT_START.iter().filter_map(|(name, _)| Some(((*name).to_owned(), value(name)?))).collect()
}

/// The names of those parameters.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    AT_START.iter().map(|(name, _)| *name)
}

/// The value of a parameter as PostgreSQL shows it.
pub(super) fn value(parameters: &Parameters, name: &str) -> String {
    let otherwise = AT_START.iter().find(|(known, _)| *known == name).and_then(|(_, otherwise)| *otherwise);
    let given = parameters.get(name).map(|value| value.trim_matches('"').to_owned());
    given.or(otherwise.map(|number| number.to_string())).unwrap_or_else(|| "its default".to_owned())
}

/// The value of a parameter that a standby must have at least as much of as its primary.
pub(super) fn number(parameters: &Parameters, name: &str, otherwise: i64) -> i64 {
    parameters.get(name).and_then(|value| value.trim_matches('"').parse().ok()).unwrap_or(otherwise)
}

/// Whether a standby with these parameters can follow a primary with those.
pub(super) fn follows(standby: &Parameters, primary: &Parameters) -> bool {
    let enough = |(name, otherwise): &(&str, Option<i64>)| {
        otherwise.is_none_or(|otherwise| number(standby, name, otherwise) >= number(primary, name, otherwise))
    };
    AT_START.iter().all(enough)
}

/// These parameters, raised to the primary's where a standby would not start otherwise.
pub(super) fn at_least(mut parameters: Parameters, primary: &Parameters) -> Parameters {
    for (name, otherwise) in AT_START {
        let Some(otherwise) = otherwise else { continue };
        if number(&parameters, name, otherwise) < number(primary, name, otherwise) {
            let value = primary.get(name).cloned().unwrap_or_else(|| otherwise.to_string());
            parameters.insert(name.to_owned(), value);
        }
    }
    parameters
}

/// The settings as the JSON that Patroni keeps.
fn nest(settings: &Settings) -> String {
    let mut root = Map::new();
    for (path, value) in settings {
        let value: Value = serde_json::from_str(value).unwrap_or(Value::Null);
        // A parameter's own name may have dots.
        let (parents, last) = match path.strip_prefix(PARAMETERS) {
            Some(parameter) => (vec!["postgresql", "parameters"], parameter),
            None => match path.rsplit_once('.') {
                Some((parents, last)) => (parents.split('.').collect(), last),
                None => (Vec::new(), path.as_str()),
            },
        };
        let mut place = Some(&mut root);
        for parent in parents {
            let inner = place.map(|map| map.entry(parent).or_insert_with(|| Value::Object(Map::new())));
            place = inner.and_then(Value::as_object_mut);
        }
        if let Some(place) = place {
            place.insert(last.to_owned(), value);
        }
    }
    Value::Object(root).to_string()
}

/// The settings by path.
fn flatten(text: &str) -> Settings {
    fn walk(path: &str, value: &Value, into: &mut Settings) {
        match value.as_object().filter(|_| format!("{path}.").as_str() != PARAMETERS) {
            Some(map) => {
                for (key, value) in map {
                    let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    walk(&below, value, into);
                }
            }
            None => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    into.insert(format!("{path}.{key}"), value.to_string());
                }
                if !value.is_object() {
                    into.insert(path.to_owned(), value.to_string());
                }
            }
        }
    }
    let mut settings = Settings::new();
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        walk("", &value, &mut settings);
    }
    settings
}
