//! Expensive observations, made only because of an alarm → what fills a database, whether members agree.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::view::quorum;
use super::{Observed, Service, ServiceState, View};
use crate::spec::Name;

/// So many prefixes are reported.
const TOLD: usize = 5;
/// Of every prefix so many keys are looked at closely at most.
const SAMPLES: usize = 32;
/// Prefixes are distinguished down to this depth.
const DEPTH: usize = 4;
/// So many prefixes are distinguished; further ones are counted in their parents.
const GROUPS: usize = 4096;

/// What was measured because of an alarm.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Maintenance {
    /// What fills the database; looked at while the quota is used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filling: Option<Filling>,
    /// Every member's hash; compared while an alarm says that members differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hashes: Option<Hashes>,
}

/// What fills a database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filling {
    /// Keys that were counted.
    pub keys: u64,
    /// Whether those are all.
    pub complete: bool,
    /// What they take without their history, estimated from samples.
    pub bytes: u64,
    /// The prefixes that take most, with their history.
    pub prefixes: Vec<FilledPrefix>,
}

/// What the keys of one prefix take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilledPrefix {
    /// The prefix.
    pub prefix: String,
    /// How many keys it has.
    pub keys: u64,
    /// What they take, estimated.
    pub bytes: u64,
    /// What their old values take, which compaction frees, estimated.
    pub history: u64,
}

impl fmt::Display for FilledPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, keys, bytes, history } = self;
        let plural = if *keys == 1 { "" } else { "s" };
        write!(f, "`{prefix}` ({keys} key{plural}, about {}", size(*bytes))?;
        // History that takes less than a tenth of the bytes would not change the operator's picture.
        if *history >= (*bytes / 10).max(1024) {
            write!(f, ", and {} of old values", size(*history))?;
        }
        f.write_str(")")
    }
}

/// Bytes, with a unit that suits their number.
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Counts keys by their prefixes, in one pass and bounded memory.
#[derive(Debug, Default)]
pub struct PrefixCounter {
    keys: u64,
    /// By depth, so that a prefix with nearly all values can be split further.
    groups: Vec<BTreeMap<String, Group>>,
}

#[derive(Debug, Default, Clone)]
struct Group {
    keys: u64,
    revisions: u64,
    samples: Vec<Vec<u8>>,
    stride: u64,
}

/// A prefix worth a closer look, and keys of it that stand for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sampled {
    /// The prefix.
    pub prefix: String,
    /// How many keys it has.
    pub keys: u64,
    /// How many values of them are kept.
    pub revisions: u64,
    /// Some of them, evenly spread.
    pub samples: Vec<Vec<u8>>,
}

impl PrefixCounter {
    /// Counts a key of which so many values are kept.
    pub fn add(&mut self, key: &[u8], revisions: u64) {
        self.keys += 1;
        self.groups.resize_with(DEPTH, BTreeMap::new);
        let text = String::from_utf8_lossy(key);
        for (depth, groups) in self.groups.iter_mut().enumerate() {
            let Some(prefix) = prefix(&text, depth + 1) else { break };
            if groups.len() >= GROUPS && !groups.contains_key(prefix) {
                break;
            }
            groups.entry(prefix.to_owned()).or_default().add(key, revisions);
        }
    }

    /// The prefixes with most values, each split until no child has nearly all of its values.
    pub fn top(&self) -> Vec<Sampled> {
        let Some(first) = self.groups.first() else { return Vec::new() };
        let mut top: Vec<Sampled> = first.keys().map(|prefix| self.narrowed(prefix, 0)).collect();
        top.sort_by_key(|s| (std::cmp::Reverse(s.revisions), s.prefix.clone()));
        top.truncate(TOLD);
        top
    }

    fn narrowed(&self, prefix: &str, depth: usize) -> Sampled {
        let group = self.groups[depth].get(prefix).cloned().unwrap_or_default();
        let below = self.groups.get(depth + 1).into_iter().flat_map(|g| g.range(prefix.to_owned()..));
        let below = below.take_while(|(name, _)| name.starts_with(prefix)).filter(|(name, _)| *name != prefix);
        let largest = below.max_by_key(|(_, g)| g.revisions);
        match largest.filter(|(_, g)| g.revisions * 10 >= group.revisions * 9) {
            Some((name, _)) => self.narrowed(name, depth + 1),
            None => {
                let Group { keys, revisions, samples, .. } = group;
                Sampled { prefix: prefix.to_owned(), keys, revisions, samples }
            }
        }
    }

    /// With the mean size of every prefix's samples, what fills the database.
    pub fn filling(&self, complete: bool, sizes: &[(Sampled, u64)]) -> Filling {
        let mut prefixes: Vec<FilledPrefix> = sizes
            .iter()
            .map(|(sampled, mean)| FilledPrefix {
                prefix: sampled.prefix.clone(),
                keys: sampled.keys,
                bytes: sampled.keys * mean,
                history: sampled.revisions.saturating_sub(sampled.keys) * mean,
            })
            .collect();
        prefixes.sort_by_key(|p| std::cmp::Reverse(p.bytes + p.history));
        let (keys, bytes) = prefixes.iter().fold((0, 0), |(k, b), p| (k + p.keys, b + p.bytes));
        // Keys outside the samples are assumed to be like them.
        let others = self.keys.saturating_sub(keys);
        let bytes = bytes + others * (bytes / keys.max(1));
        Filling { keys: self.keys, complete, bytes, prefixes }
    }
}

impl Group {
    fn add(&mut self, key: &[u8], revisions: u64) {
        self.stride = self.stride.max(1);
        if self.keys.is_multiple_of(self.stride) {
            if self.samples.len() == SAMPLES {
                let mut index = 0;
                self.samples.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.stride *= 2;
            }
            if self.keys.is_multiple_of(self.stride) {
                self.samples.push(key.to_vec());
            }
        }
        self.keys += 1;
        self.revisions += revisions;
    }
}

/// The first so many parts of a key, or nothing when it has fewer. A key without parts is one for itself.
fn prefix(key: &str, parts: usize) -> Option<&str> {
    let body = key.len() - key.trim_start_matches('/').len();
    let ends: Vec<usize> = key[body..].match_indices(['/', ':']).map(|(at, _)| body + at + 1).take(parts).collect();
    match ends.get(parts - 1) {
        Some(end) => Some(&key[..*end]),
        None if parts == 1 => Some(key),
        None => None,
    }
}

/// Every member's hash, at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hashes {
    /// The revision.
    pub revision: i64,
    /// By member.
    pub members: BTreeMap<Name, Hash>,
}

/// One member's hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hash {
    /// It answered.
    Known {
        /// The hash.
        hash: u32,
        /// The compacted revision: only hashes with the same one can be compared.
        compacted: i64,
    },
    /// It could not be asked.
    Unknown(String),
}

/// Whether members hold the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agreement {
    /// Every voter holds the same.
    All,
    /// These differ from all others, which are a majority and hold the same.
    Differ(Vec<Name>),
    /// It is not known: there is no majority that agrees, or not every voter could be compared.
    Unclear,
}

impl Hashes {
    /// Whether these voters hold the same.
    pub fn agreement(&self, voters: &[Name]) -> Agreement {
        let mut groups: BTreeMap<(i64, u32), usize> = BTreeMap::new();
        let known = |name: &Name| match self.members.get(name) {
            Some(Hash::Known { hash, compacted }) => Some((*compacted, *hash)),
            Some(Hash::Unknown(_)) | None => None,
        };
        for key in voters.iter().filter_map(known) {
            *groups.entry(key).or_default() += 1;
        }
        let Some((most, count)) = groups.into_iter().max_by_key(|(_, count)| *count) else { return Agreement::Unclear };
        if voters.is_empty() || count < quorum(voters.len()) {
            return Agreement::Unclear;
        }
        let differs = |name: &&Name| known(name).is_some_and(|(compacted, hash)| compacted == most.0 && hash != most.1);
        let differing: Vec<Name> = voters.iter().filter(differs).cloned().collect();
        match differing.is_empty() {
            false => Agreement::Differ(differing),
            true if count == voters.len() => Agreement::All,
            true => Agreement::Unclear,
        }
    }
}

impl Hashes {
    /// Whether all that could be asked of these voters, this one aside, hold the same and are a majority.
    pub fn rest_agrees(&self, voters: &[Name], but: &Name) -> bool {
        let rest = voters.iter().filter(|name| *name != but).filter_map(|name| self.members.get(name));
        let known: Vec<&Hash> = rest.filter(|hash| matches!(hash, Hash::Known { .. })).collect();
        known.len() >= quorum(voters.len()) && known.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Whether two of these are known to differ.
    pub fn conflict(&self, voters: &[Name]) -> bool {
        let known = voters.iter().filter_map(|name| match self.members.get(name) {
            Some(Hash::Known { hash, compacted }) => Some((compacted, hash)),
            Some(Hash::Unknown(_)) | None => None,
        });
        let mut by_compaction: BTreeMap<&i64, &u32> = BTreeMap::new();
        known.into_iter().any(|(compacted, hash)| *by_compaction.entry(compacted).or_insert(hash) != hash)
    }
}

/// What etcd says when it finds at its start that its data is not that of another member.
const INCONSISTENT: &str = "found data inconsistency with peers";

impl Service {
    /// Whether etcd does not start because its data is not that of another member. It does not tell which data is
    /// right.
    pub fn finds_others_different(&self) -> bool {
        self.state != ServiceState::Running && self.last_exit.as_ref().is_some_and(|exit| exit.contains(INCONSISTENT))
    }
}

impl Observed {
    /// The names of the voters, where they are known.
    pub fn voters(&self, view: &View<'_>) -> Option<Vec<Name>> {
        let voters = view.listed?.iter().filter(|m| !m.learner);
        voters.map(|m| self.ledger.etcd.name_of(m)).collect()
    }

    /// Whether all voters that could be asked, this one aside, hold the same and are a majority.
    pub fn rest_agrees(&self, view: &View<'_>, but: &Name) -> bool {
        let voters = self.voters(view).unwrap_or_default();
        self.etcd.maintenance.hashes.as_ref().is_some_and(|hashes| hashes.rest_agrees(&voters, but))
    }

    /// Whether the voters hold the same, as far as their hashes were compared.
    pub fn agreement(&self, view: &View<'_>) -> Agreement {
        match (&self.etcd.maintenance.hashes, self.voters(view)) {
            (Some(hashes), Some(names)) => hashes.agreement(&names),
            _ => Agreement::Unclear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_as_far_as_it_helps() {
        let mut tally = PrefixCounter::default();
        for i in 0..900 {
            tally.add(format!("/registry/events/ns-{}/e{i}", i % 3).as_bytes(), 1);
        }
        for i in 0..50 {
            tally.add(format!("/registry/pods/p{i}").as_bytes(), 2);
        }
        tally.add(b"config", 1);
        let top = tally.top();
        let described: Vec<(&str, u64, u64)> = top.iter().map(|s| (s.prefix.as_str(), s.keys, s.revisions)).collect();
        assert_eq!(described, [("/registry/events/", 900, 900), ("config", 1, 1)], "the others are a tenth");
        for i in 0..1000 {
            tally.add(format!("/registry/events/ns-1/f{i}").as_bytes(), 1);
        }
        assert_eq!(tally.top()[0].prefix, "/registry/events/", "two thirds are not nearly all of it");
    }

    #[test]
    fn samples_are_few_and_spread() {
        let mut tally = PrefixCounter::default();
        for i in 0..100_000_u32 {
            tally.add(format!("k/{i:06}").as_bytes(), 1);
        }
        let top = tally.top();
        assert!((SAMPLES / 2..=SAMPLES).contains(&top[0].samples.len()), "{}", top[0].samples.len());
        let last = String::from_utf8_lossy(top[0].samples.last().expect("samples")).into_owned();
        assert!(last.as_str() > "k/090000", "{last}");
        let filling = tally.filling(true, &[(top[0].clone(), 100)]);
        assert_eq!((filling.bytes, filling.prefixes[0].history), (10_000_000, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut tally = PrefixCounter::default();
        for i in 0..50_000_u32 {
            tally.add(format!("{i}/{i}/{i}").as_bytes(), 1);
        }
        assert!(tally.groups.iter().all(|g| g.len() <= GROUPS));
        assert_eq!(tally.top().len(), TOLD);
    }

    #[test]
    fn a_majority_is_right_and_a_tie_is_not() {
        let name = |n: u32| Name::parse(&format!("main-{n}")).expect("a name");
        let names = |n: u32| (1..=n).map(name).collect::<Vec<_>>();
        let hashes = |all: &[Option<(u32, i64)>]| Hashes {
            revision: 7,
            members: all
                .iter()
                .zip(1..)
                .map(|(one, n)| match one {
                    Some((hash, compacted)) => (name(n), Hash::Known { hash: *hash, compacted: *compacted }),
                    None => (name(n), Hash::Unknown("timed out".to_owned())),
                })
                .collect(),
        };
        let (a, b, later) = (Some((1, 1)), Some((2, 1)), Some((3, 5)));
        assert_eq!(hashes(&[a, a, a]).agreement(&names(3)), Agreement::All);
        assert_eq!(hashes(&[a, b, a]).agreement(&names(3)), Agreement::Differ(vec![name(2)]));
        assert_eq!(hashes(&[a, b]).agreement(&names(2)), Agreement::Unclear, "a tie");
        assert_eq!(hashes(&[a, None, a]).agreement(&names(3)), Agreement::Unclear, "one was not asked");
        assert_eq!(hashes(&[a, later, a]).agreement(&names(3)), Agreement::Unclear, "another compaction");
        assert_eq!(hashes(&[a, b, None]).agreement(&names(3)), Agreement::Unclear);
        assert_eq!(hashes(&[a, a, a, b, b]).agreement(&names(5)), Agreement::Differ(vec![name(4), name(5)]));
        assert_eq!(hashes(&[]).agreement(&[]), Agreement::Unclear);
        assert!(hashes(&[a, None, a]).rest_agrees(&names(3), &name(2)));
        assert!(!hashes(&[a, None, b]).rest_agrees(&names(3), &name(2)), "whose is right?");
        assert!(!hashes(&[a, None, None]).rest_agrees(&names(3), &name(2)));
        assert!(!hashes(&[a, None]).rest_agrees(&names(2), &name(2)), "one of two is no majority");
        assert!(hashes(&[a, b, later]).conflict(&names(3)) && !hashes(&[a, later, a]).conflict(&names(3)));
    }
}
