//! The state's memory of a cluster → what no look at the world can tell.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::etcd::ClusterId;
use crate::spec::{AuthMode, Name};

/// What the state remembers of one cluster.
///
/// Every entry is written before the act that it speaks of, so that a crash in between is seen as 'may have happened'.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// The cluster's id, once it formed. A cluster never gets a second one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// The members that the cluster was first started with, and where other members reach them.
    pub members: BTreeMap<Name, String>,
    /// For each member that etcd was started on: the incarnation of its machine then.
    pub started: BTreeMap<Name, String>,
    /// How clients proved who they are when the cluster was first started: its superuser is made for this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthMode>,
    /// The authority of the peers' certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<AuthorityRecord>,
    /// The authority of the clients' certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<AuthorityRecord>,
    /// The highest revision ever seen: a restore must bump above it.
    pub last_revision: i64,
}

/// A certificate authority, as far as the planner needs to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityRecord {
    /// SHA-256 of its public key.
    pub key: String,
    /// Valid until.
    pub not_after: Timestamp,
}
