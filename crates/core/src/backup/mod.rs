//! What lies in a store of backups → what can be restored from it, and what may go.
//!
//! ```text
//! FLEET/CLUSTER/full/20261115T230000Z-0000000000012345678/
//!     begun.json                first of all, by whoever makes it: nobody else takes this name
//!     snapshot.db[.zst][.age]   etcd's own snapshot, as `etcdutl` restores it once it is unpacked
//!     manifest.json             written last, after the snapshot was read back: without it nothing counts
//! FLEET/CLUSTER/changes/20261115T230000Z-0000000000012345678/
//!     00000001.jsonl[.zst][.age]   what changed since, in batches that name the one before
//! ```
//!
//! Every object is written once and never again.

pub mod manifest;
pub mod name;
pub mod retention;

pub use manifest::{About, Hashed, Manifest, ManifestError, Stored};
pub use name::{BatchName, Coding, FullName, Layout, NameError, Object};
pub use retention::{Keep, Kept, Verdict, judge};
