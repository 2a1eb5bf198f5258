//! A moment and a revision → the name of a backup; the path of an object → what it is.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};

use crate::spec::Name;

const MOMENT: &str = "%Y%m%dT%H%M%SZ";
const FULL: &str = "full";
const CHANGES: &str = "changes";
const DRILLS: &str = "drills";
const SNAPSHOT: &str = "snapshot.db";
const MANIFEST: &str = "manifest.json";
const BEGUN: &str = "begun.json";
const BATCH: &str = "jsonl";
const BATCH_MANIFEST: &str = "json";

/// Not the name of a backup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of a backup: they look like `20261115T230000Z-0000000000012345678`")]
pub struct NameError(pub String);

/// The name of a full backup: when it was taken, and up to which revision it surely goes. Names sort as the backups were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FullName {
    second: i64,
    revision: i64,
}

impl FullName {
    /// Of a snapshot that was taken then, and that holds every change up to this one.
    pub fn new(taken: Timestamp, revision: i64) -> Self {
        Self { second: taken.as_second(), revision: revision.max(0) }
    }

    /// When it was taken, to the second.
    pub fn taken(self) -> Timestamp {
        Timestamp::from_second(self.second).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// It holds every change up to this one. There may be more in it: etcd does not report the revision of a snapshot,
    /// and this one was asked for right before.
    pub fn revision(self) -> i64 {
        self.revision
    }
}

impl fmt::Display for FullName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = self.taken().to_zoned(TimeZone::UTC).strftime(MOMENT);
        write!(f, "{moment}-{:019}", self.revision)
    }
}

impl FromStr for FullName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let read = || -> Option<Self> {
            let (moment, revision) = text.split_once('-')?;
            let moment = DateTime::strptime(MOMENT, moment).ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp();
            let digits = revision.len() == 19 && revision.bytes().all(|b| b.is_ascii_digit());
            let name = Self::new(moment, revision.parse().ok().filter(|_| digits)?);
            // One backup has one name.
            (name.to_string() == text).then_some(name)
        };
        read().ok_or_else(|| NameError(text.to_owned()))
    }
}

impl Serialize for FullName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FullName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// How the bytes of an object were made from those of the thing itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coding {
    /// Compressed with zstd.
    pub zstd: bool,
    /// Then encrypted with age.
    pub age: bool,
}

impl Coding {
    /// What it adds to a file's name.
    pub fn suffix(self) -> &'static str {
        match (self.zstd, self.age) {
            (false, false) => "",
            (true, false) => ".zst",
            (false, true) => ".age",
            (true, true) => ".zst.age",
        }
    }

    fn parse(suffix: &str) -> Option<Self> {
        let all = [(false, false), (true, false), (false, true), (true, true)];
        all.map(|(zstd, age)| Self { zstd, age }).into_iter().find(|coding| coding.suffix() == suffix)
    }
}

/// Which batch of changes since a full backup: they are numbered from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchName {
    /// The backup that they begin after.
    pub base: FullName,
    /// Its number.
    pub number: u64,
}

impl BatchName {
    /// Names have room for eight digits.
    pub const MOST: u64 = 99_999_999;
}

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    /// The claim of the process that makes a full backup: no other process makes this one.
    Begun(FullName),
    /// The snapshot of a full backup.
    Snapshot(FullName),
    /// Its manifest, which makes it complete.
    Manifest(FullName),
    /// A batch of changes.
    Batch(BatchName),
    /// Its manifest, which makes it complete.
    BatchManifest(BatchName),
}

/// Where the objects of one cluster are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: String,
}

impl Layout {
    /// Of this cluster, below what the file names.
    pub fn new(prefix: &str, fleet: &Name, cluster: &Name) -> Self {
        let prefix = prefix.trim_matches('/');
        let slash = if prefix.is_empty() { "" } else { "/" };
        Self { root: format!("{prefix}{slash}{fleet}/{cluster}") }
    }

    /// The prefix of all its objects.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Whether it is that of this cluster of this fleet.
    pub fn is_of(&self, fleet: &Name, cluster: &Name) -> bool {
        let above = self.root.strip_suffix(&format!("{fleet}/{cluster}"));
        above.is_some_and(|above| above.is_empty() || above.ends_with('/'))
    }

    /// Where full backups are, a directory each.
    pub fn fulls(&self) -> String {
        format!("{}/{FULL}", self.root)
    }

    /// The prefix of all objects of a full backup.
    pub fn full(&self, full: FullName) -> String {
        format!("{}/{FULL}/{full}", self.root)
    }

    /// A snapshot.
    pub fn snapshot(&self, full: FullName, coding: Coding) -> String {
        format!("{}/{FULL}/{full}/{SNAPSHOT}{}", self.root, coding.suffix())
    }

    /// The claim of the process that makes it.
    pub fn begun(&self, full: FullName) -> String {
        format!("{}/{FULL}/{full}/{BEGUN}", self.root)
    }

    /// A manifest.
    pub fn manifest(&self, full: FullName) -> String {
        format!("{}/{FULL}/{full}/{MANIFEST}", self.root)
    }

    /// Where the batches of changes since a full backup are.
    pub fn batches(&self, base: FullName) -> String {
        format!("{}/{CHANGES}/{base}", self.root)
    }

    /// A batch of changes.
    pub fn batch(&self, batch: BatchName, coding: Coding) -> String {
        format!("{}/{CHANGES}/{}/{:08}.{BATCH}{}", self.root, batch.base, batch.number, coding.suffix())
    }

    /// The manifest of a batch of changes.
    pub fn batch_manifest(&self, batch: BatchName) -> String {
        format!("{}/{CHANGES}/{}/{:08}.{BATCH_MANIFEST}", self.root, batch.base, batch.number)
    }

    /// Where changes are, a directory for each full backup that they begin after.
    pub fn changes(&self) -> String {
        format!("{}/{CHANGES}", self.root)
    }

    /// Where the records of drills are.
    pub fn drills(&self) -> String {
        format!("{}/{DRILLS}", self.root)
    }

    /// The record of a drill.
    pub fn drill(&self, at: Timestamp, full: FullName) -> String {
        format!("{}/{DRILLS}/{}-{full}.json", self.root, at.to_zoned(TimeZone::UTC).strftime(MOMENT))
    }

    /// The backup that the record of a drill at this path is about; nothing when it is none.
    pub fn drilled(&self, path: &str) -> Option<FullName> {
        let name = path.strip_prefix(&self.drills())?.strip_prefix('/')?.strip_suffix(".json")?;
        name.split_once('-')?.1.parse().ok()
    }

    /// What the object at this path is, and how it is coded; nothing when it is not one of ours.
    pub fn object(&self, path: &str) -> Option<(Object, Coding)> {
        let below = path.strip_prefix(&self.root)?.strip_prefix('/')?;
        let mut parts = below.split('/');
        let (kind, name, file) = (parts.next()?, parts.next()?, parts.next()?);
        let full: FullName = name.parse().ok().filter(|_| parts.next().is_none())?;
        match kind {
            FULL if file == BEGUN => Some((Object::Begun(full), Coding::default())),
            FULL if file == MANIFEST => Some((Object::Manifest(full), Coding::default())),
            FULL => Some((Object::Snapshot(full), Coding::parse(file.strip_prefix(SNAPSHOT)?)?)),
            CHANGES => {
                let (number, rest) = file.split_once('.')?;
                let number = number.parse().ok().filter(|_| number.len() == 8)?;
                let batch = BatchName { base: full, number };
                if rest == BATCH_MANIFEST {
                    return Some((Object::BatchManifest(batch), Coding::default()));
                }
                Some((Object::Batch(batch), Coding::parse(rest.strip_prefix(BATCH)?)?))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> FullName {
        FullName::new("2026-11-15T23:00:00.9Z".parse().expect("a moment"), 12_345_678)
    }

    #[test]
    fn names_sort_as_backups_were_taken_and_are_read_back() {
        let text = full().to_string();
        assert_eq!(text, "20261115T230000Z-0000000000012345678");
        assert_eq!(text.parse(), Ok(full()));
        let later = FullName::new(full().taken() + jiff::SignedDuration::from_secs(1), 1);
        assert!(later > full() && later.to_string() > text);
        for wrong in [
            "",
            "x",
            "20261115T230000Z",
            "20261315T230000Z-0000000000012345678",
            "20261115T230000Z-1",
            "20261115T230000Z-+000000000012345678",
        ] {
            assert_eq!(wrong.parse::<FullName>(), Err(NameError(wrong.to_owned())));
        }
    }

    #[test]
    fn a_path_tells_what_it_is() {
        let layout = Layout::new("/site/a/", &Name::fixed("shop"), &Name::fixed("main"));
        let codings = [(false, false), (true, false), (false, true), (true, true)];
        for coding in codings.map(|(zstd, age)| Coding { zstd, age }) {
            let batch = BatchName { base: full(), number: 7 };
            let snapshot = layout.snapshot(full(), coding);
            assert!(snapshot.starts_with("site/a/shop/main/full/20261115T230000Z-"), "{snapshot}");
            assert_eq!(layout.object(&snapshot), Some((Object::Snapshot(full()), coding)));
            assert_eq!(layout.object(&layout.batch(batch, coding)), Some((Object::Batch(batch), coding)));
            let manifest = layout.batch_manifest(batch);
            assert_eq!(layout.object(&manifest), Some((Object::BatchManifest(batch), Coding::default())));
        }
        let manifest = layout.manifest(full());
        assert_eq!(layout.object(&manifest), Some((Object::Manifest(full()), Coding::default())));
        assert_eq!(layout.object(&layout.begun(full())), Some((Object::Begun(full()), Coding::default())));
        let drill = layout.drill(full().taken(), full());
        assert_eq!((layout.drilled(&drill), layout.object(&drill)), (Some(full()), None));
        assert_eq!(layout.drilled(&manifest), None);
        let other = Layout::new("", &Name::fixed("shop"), &Name::fixed("main2"));
        assert_eq!(other.root(), "shop/main2");
        assert_eq!(other.object(&manifest), None);
        assert_eq!(Layout::new("", &Name::fixed("shop"), &Name::fixed("main")).object(&other.manifest(full())), None);
        for strange in ["site/a/shop/main/full/x/manifest.json", "site/a/shop/main/notes.txt"] {
            assert_eq!(layout.object(strange), None);
        }
        assert_eq!(layout.object(&format!("{manifest}/more")), None);
    }
}
