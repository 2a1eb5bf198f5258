//! Batches of changes since a full backup → those that lead to a revision, in order; a batch's lines ↔ changes.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::manifest::{self, Manifest, ManifestError, Signable, Stored, Unverified};
use super::name::{BatchName, Coding, FullName};
use crate::observed::ClusterId;

/// A complete batch of changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The form of this file.
    pub format: u32,
    /// The backup that it is a change since.
    pub base: FullName,
    /// Its number. A batch that was begun and never finished keeps its number.
    pub number: u64,
    /// etcd's id of the cluster.
    pub cluster_id: ClusterId,
    /// The check of the manifest of the batch before it, or of the full backup.
    pub after: String,
    /// It begins after this revision.
    pub from: i64,
    /// It ends with this one, and all between are in it.
    pub to: i64,
    /// When its last change was seen.
    pub until: Timestamp,
    /// Changes up to this revision were seen after the fact, when an agent began to watch: they were made some time
    /// before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<i64>,
    /// The lines themselves.
    pub lines: Stored,
    /// The object in the store.
    pub object: Stored,
    /// How the object was made from the lines.
    pub coding: Coding,
}

impl Batch {
    /// What it is called.
    pub fn name(&self) -> BatchName {
        BatchName { base: self.base, number: self.number }
    }

    /// Reads the manifest that is stored with the batch of this name.
    pub fn read(name: BatchName, bytes: &[u8]) -> Result<Unverified<Self>, ManifestError> {
        let what = format!("the batch {} of changes since `{}`", name.number, name.base);
        let batch = manifest::read::<Self>(&what, bytes)?;
        let found = batch.claimed().name();
        match found == name {
            true => Ok(batch),
            false => Err(ManifestError::Misplaced { what, found: format!("{}, {}", found.base, found.number) }),
        }
    }

    /// The check over its whole manifest.
    pub fn check(&self) -> Result<String, serde_json::Error> {
        manifest::check(self)
    }
}

impl Signable for Batch {
    const KIND: &'static str = "batch of changes";
}

/// Why changes do not lead there.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// They end before.
    #[error("the changes since `{base}` end with revision {last}: nothing after it is in this store")]
    Ends {
        /// Since when.
        base: FullName,
        /// The last.
        last: i64,
    },
    /// One is missing, or is not the one that was there.
    #[error(
        "the batch {number} of changes since `{base}` follows one that is not there or was changed: nothing from it on \
         can be restored, everything up to revision {last} can"
    )]
    Gap {
        /// Since when.
        base: FullName,
        /// Which.
        number: u64,
        /// The last revision before the gap.
        last: i64,
    },
    /// A bug in this program.
    #[error("a manifest cannot be written: {0}")]
    Text(#[from] serde_json::Error),
}

/// The batches that lead from a full backup to this revision, or as far as they go, in order.
///
/// Each names the one before it. Two can follow the same one, when an agent lost the lease and still wrote. Both are
/// valid: the one that others follow leads further.
pub fn chain(full: &Manifest, batches: &[Batch], to: Option<i64>) -> Result<Vec<Batch>, ChainError> {
    let base = full.about.name;
    let mut batches: Vec<(&Batch, String)> =
        batches.iter().map(|batch| Ok((batch, batch.check()?))).collect::<Result<_, serde_json::Error>>()?;
    batches.sort_by_key(|(batch, _)| (batch.to, batch.number));
    let root = full.check()?;
    let reached = |last: &Batch| {
        // From the end to the beginning: every batch of the chain is there and unchanged.
        let mut way = vec![last];
        while way.last().is_some_and(|batch| batch.after != root) {
            let first = way.last()?;
            let before = batches.iter().find(|(batch, check)| *check == first.after && batch.to == first.from)?;
            way.push(before.0);
        }
        let begins = way.last().is_some_and(|first| first.from == base.revision());
        begins.then(|| way.into_iter().rev().cloned().collect::<Vec<Batch>>())
    };
    let whole = batches.iter().rev().find_map(|(batch, _)| reached(batch));
    let last = whole.as_ref().and_then(|way| way.last()).map_or(base.revision(), |batch| batch.to);
    let beyond = batches.iter().find(|(batch, _)| batch.to > last);
    let mut way = match (to, beyond) {
        (Some(to), _) if to <= last => {
            // The shortest chain that reaches the revision: the operator may want to get rid of the changes behind it.
            let enough = batches.iter().filter(|(batch, _)| batch.to >= to).find_map(|(batch, _)| reached(batch));
            enough.or(whole).unwrap_or_default()
        }
        (_, Some((batch, _))) => return Err(ChainError::Gap { base, number: batch.number, last }),
        (Some(_), None) => return Err(ChainError::Ends { base, last }),
        (None, None) => whole.unwrap_or_default(),
    };
    way.retain(|batch| to.is_none_or(|to| batch.from < to));
    Ok(way)
}

/// Everything that happened at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The revision.
    pub revision: i64,
    /// When it was seen, by the clock of the machine that recorded it.
    pub at: Timestamp,
    /// What happened, each to another key.
    pub events: Vec<Event>,
}

/// What happened to a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// It was written.
    Put {
        /// The key.
        #[serde(with = "Bytes")]
        key: Vec<u8>,
        /// Its value.
        #[serde(with = "Bytes")]
        value: Vec<u8>,
        /// The lease that it goes with; 0 for none.
        #[serde(default, skip_serializing_if = "is_zero")]
        lease: i64,
        /// The TTL that the lease was granted with, in seconds, where the lease still existed.
        #[serde(default, skip_serializing_if = "is_zero")]
        ttl: i64,
    },
    /// It is gone.
    Delete {
        /// The key.
        #[serde(with = "Bytes")]
        key: Vec<u8>,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Bytes as Base64, as etcd's own tools print keys in JSON.
struct Bytes;

impl Bytes {
    fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        BASE64_STANDARD.decode(String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Changes that are collected for a batch.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    text: Vec<u8>,
    last: Option<(i64, Timestamp)>,
}

impl Lines {
    /// One more, after all others.
    pub fn push(&mut self, change: &Change) -> Result<(), serde_json::Error> {
        serde_json::to_writer(&mut self.text, change)?;
        self.text.push(b'\n');
        self.last = Some((change.revision, change.at));
        Ok(())
    }

    /// The last revision in it, and when it was seen.
    pub fn last(&self) -> Option<(i64, Timestamp)> {
        self.last
    }

    /// Their text, a line each.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// What is in a batch.
    pub fn read(text: &[u8]) -> Result<Vec<Change>, serde_json::Error> {
        text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(serde_json::from_slice).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::manifest::tests::manifest;

    fn batch(number: u64, after: String, from: i64, to: i64) -> Batch {
        let stored = Stored { bytes: 1, sha256: "cc".to_owned() };
        Batch {
            format: Manifest::FORMAT,
            base: manifest().about.name,
            number,
            cluster_id: ClusterId(7),
            after,
            from,
            to,
            until: Timestamp::UNIX_EPOCH,
            late: None,
            lines: stored.clone(),
            object: stored,
            coding: Coding::default(),
        }
    }

    /// Four in a row, from 42 to 82.
    fn four() -> Vec<Batch> {
        let mut all: Vec<Batch> = Vec::new();
        for number in 0..4_u8 {
            let after = all.last().map_or_else(|| manifest().check(), Batch::check).expect("a check");
            let from = 42 + 10 * i64::from(number);
            all.push(batch(u64::from(number) + 1, after, from, from + 10));
        }
        all
    }

    fn numbers(way: &[Batch]) -> Vec<u64> {
        way.iter().map(|batch| batch.number).collect()
    }

    #[test]
    fn batches_lead_as_far_as_requested() {
        let way = |to| chain(&manifest(), &four(), to).map(|way| numbers(&way));
        assert_eq!(way(None).expect("all"), [1, 2, 3, 4]);
        assert_eq!(way(Some(82)).expect("all"), [1, 2, 3, 4]);
        assert_eq!(way(Some(63)).expect("three"), [1, 2, 3]);
        assert_eq!(way(Some(62)).expect("two"), [1, 2]);
        assert!(way(Some(42)).expect("none is needed").is_empty());
        assert!(matches!(way(Some(83)), Err(ChainError::Ends { last: 82, .. })));
        assert!(chain(&manifest(), &[], None).expect("nothing changed").is_empty());
    }

    #[test]
    fn a_missing_or_changed_batch_is_noticed() {
        for missing in 0..3 {
            let mut some = four();
            some.remove(missing);
            let last = 42 + 10 * i64::try_from(missing).expect("small");
            let refused = chain(&manifest(), &some, None);
            assert!(matches!(refused, Err(ChainError::Gap { last: at, .. }) if at == last), "{refused:?}");
            assert_eq!(chain(&manifest(), &some, Some(last)).expect("up to it").len(), missing);
            let mut other = four();
            other[missing].object.sha256 = "dd".to_owned();
            let refused = chain(&manifest(), &other, Some(82));
            assert!(matches!(refused, Err(ChainError::Gap { .. })), "{refused:?}");
        }
    }

    #[test]
    fn of_two_that_follow_one_the_way_that_leads_further_counts() {
        let mut all = four();
        let after = all[1].check().expect("a check");
        all.push(batch(9, after, 62, 65));
        assert_eq!(numbers(&chain(&manifest(), &all, None).expect("all")), [1, 2, 3, 4]);
        assert_eq!(numbers(&chain(&manifest(), &all, Some(65)).expect("the short one")), [1, 2, 9]);
    }

    #[test]
    fn changes_are_read_as_they_were_written() {
        let at: Timestamp = "2026-11-16T07:00:00.25Z".parse().expect("a moment");
        let (key, value) = (vec![0, 255, b'k'], b"v\n".to_vec());
        let all = vec![
            Change { revision: 7, at, events: vec![Event::Put { key: key.clone(), value, lease: 0, ttl: 0 }] },
            Change {
                revision: 8,
                at,
                events: vec![
                    Event::Delete { key },
                    Event::Put { key: b"a".to_vec(), value: Vec::new(), lease: -5, ttl: 60 },
                ],
            },
        ];
        let mut lines = Lines::default();
        all.iter().for_each(|change| lines.push(change).expect("a line"));
        assert_eq!(lines.last(), Some((8, at)));
        assert_eq!(Lines::read(lines.text()).expect("changes"), all);
        assert!(Lines::read(&lines.text()[..lines.text().len() - 3]).is_err());
    }
}
