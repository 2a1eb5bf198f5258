//! etcd's snapshots → objects of a store that were read back; and back again. For the agent that makes them and for
//! the commands that list, verify and restore them.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod changes;
pub mod copy;
pub mod drill;
#[cfg(test)]
mod fixtures;
pub mod full;
pub mod pipe;
pub mod place;
pub mod point;
pub mod prune;
pub mod repository;
pub mod seal;
pub mod sign;
pub mod snapshot;
pub mod store;

pub use place::Place;
pub use point::PointError;
pub use raftsman_core::backup::{Point, RestoreTarget};
pub use repository::Repository;
pub use seal::{Keys, Seals};
pub use sign::{PublicKey, Signer, Trust};
pub use store::{Store, StoreError};

/// No manifest, and no record of a drill, is as large as this.
const MOST_TEXT: u64 = 1 << 20;
