//! The objects of a backup store → what can be restored from them, and what may be deleted.
//!
//! ```text
//! FLEET/CLUSTER/full/20261115T230000Z-0000000000012345678/
//!     begun.json                written first, by the process that makes it: no other takes this name
//!     snapshot.db[.zst][.age]   etcd's own snapshot, as `etcdutl` restores it once it is unpacked
//!     manifest.json             written last, after the snapshot was read back: without it the backup is incomplete
//! FLEET/CLUSTER/changes/20261115T230000Z-0000000000012345678/
//!     00000001.jsonl[.zst][.age]   what changed since, a line for each revision
//!     00000001.json                the batch's manifest, written last: it names the one before
//! FLEET/CLUSTER/drills/20261116T080000Z-20261115T230000Z-0000000000012345678.json
//!     when a backup was restored into a temporary etcd, and what came of it
//! ```
//!
//! Every object is written once and never again. Manifests and records are signed with the cluster's key: write access
//! to the store is enough to delete backups, and not to add one.

pub mod changes;
pub mod drill;
pub mod health;
pub mod history;
pub mod manifest;
pub mod name;
pub mod point;
pub mod retention;

pub use changes::{Batch, ChainError, Change, Event, Lines, chain};
pub use drill::Drill;
pub use health::{Health, health, last_drill};
pub use history::History;
pub use manifest::{About, Hashed, Manifest, ManifestError, Signable, Signature, Stored, Unverified};
pub use name::{BatchName, Coding, FullName, Layout, NameError, Object};
pub use point::{Catalog, Evidence, Lookup, LookupError, Point, RestoreTarget};
pub use retention::{Keep, Kept, Standing, Verdict, judge};
