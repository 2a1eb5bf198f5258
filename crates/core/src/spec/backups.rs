//! The section `backups:` → where backups are kept, and how they are made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::types::Secret;
use super::units::Duration;

/// Where backups are kept, and how they are made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Backups {
    /// Where they are kept.
    pub store: BackupStore,
    /// All of them lie below this in the store, in `<prefix>/<fleet>/<cluster>`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// Compress them with zstd. On by default.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub compress: bool,
    /// Encrypt them with age: only the keys of these recipients (`age1…`) decrypt them. The keys are needed to restore
    /// them, not to make them: keep them where the store is not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub encrypt_to: Vec<String>,
    /// The machines make a full backup at this interval, without an operator. By default only `raftsman backup now`
    /// makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// Between full backups they store changes at this interval: whatever was acknowledged longer ago can be restored.
    /// Off by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes_every: Option<Duration>,
    /// At this interval, one of the machines restores the newest backup into a temporary etcd, and compares it with
    /// what it should hold: a drill. Off by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drill_every: Option<Duration>,
    /// How long backups are kept. For ever without `every`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<KeepBackups>,
    /// What removes backups that are not kept any more. The machines by default.
    #[serde(default, skip_serializing_if = "Prune::is_machines")]
    pub prune: Prune,
    /// Public keys of other fleets, as `raftsman backup key` prints them there (`ed25519:…`): their backups in the same
    /// store are accepted. Those of this fleet are accepted by its own key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trust: Vec<String>,
}

/// What removes backups that are not kept any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Prune {
    /// The machine that makes them, after each.
    #[default]
    Machines,
    /// `raftsman backup prune`: machines need no right to delete in the store.
    Operator,
    /// Not raftsman: rules of the store itself, or nothing.
    Never,
}

impl Prune {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
    fn is_machines(&self) -> bool {
        *self == Self::Machines
    }
}

impl Backups {
    /// How long they are kept.
    pub fn kept(&self) -> KeepBackups {
        self.keep.clone().unwrap_or_default()
    }
}

/// How long backups are kept. The newest stays, whatever is said here, and so does the newest that was restored in a drill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KeepBackups {
    /// This number of the last backups, in any case; one at least.
    pub last: u32,
    /// The newest of each hour, for this number of hours that have one.
    pub hourly: u32,
    /// The newest of each day, for this number of days that have one.
    pub daily: u32,
    /// The newest of each week, for this number of weeks that have one.
    pub weekly: u32,
    /// Every moment of this time can be restored: changes are kept, with the backups that they need.
    pub changes: Duration,
}

impl Default for KeepBackups {
    fn default() -> Self {
        Self { last: 3, hourly: 24, daily: 7, weekly: 4, changes: Duration::from_days(2) }
    }
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_yes(on: &bool) -> bool {
    *on
}

/// The backup that a new cluster is bootstrapped from. It has no effect once the cluster exists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RestoreFrom {
    /// The cluster that the backups are of: a cluster of this fleet, or `FLEET/CLUSTER` of another one in the same
    /// store. The cluster's own by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// This full backup, as it is. The newest with all changes since by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// Everything up to this revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Everything up to this moment, such as `2026-11-16T07:00:00Z`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The age identity that opens it, where it is encrypted. It is not sent to machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Secret>,
    /// Accept it although it is not signed, or with a key that is not trusted: for a backup from before they were signed,
    /// in a store that no attacker can write to.
    #[serde(skip_serializing_if = "super::types::is_false")]
    pub trust_unsigned: bool,
}

/// Where backups are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackupStore {
    /// S3, or a compatible server, such as Ceph's gateway.
    S3(S3Store),
    /// Google Cloud Storage.
    Gcs(GcsStore),
    /// Azure Blob Storage.
    Azure(AzureStore),
    /// A directory that is there on every machine, and on the computer that runs raftsman: a file system of the network.
    /// Its whole path.
    Directory(String),
}

/// A bucket of S3.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct S3Store {
    /// The bucket. It must be there.
    pub bucket: String,
    /// The region.
    #[serde(default = "default_region")]
    pub region: String,
    /// The server, such as `https://s3.example.com`. Amazon's own of the region by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The certificate of the authority that the server's is from, and from no other. Relative to this file. The
    /// machines' own authorities by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_cert: Option<String>,
    /// The bucket is in the server's name, not in the path.
    #[serde(default, skip_serializing_if = "super::types::is_false")]
    pub virtual_hosted: bool,
    /// The machines' credentials. Their own role (of the instance they are) by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<S3Credentials>,
}

fn default_region() -> String {
    "us-east-1".to_owned()
}

/// An access key of S3.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct S3Credentials {
    /// Its id.
    pub id: Secret,
    /// Its secret.
    pub secret: Secret,
    /// The session token of temporary credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Secret>,
}

/// A bucket of Google Cloud Storage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GcsStore {
    /// The bucket. It must be there.
    pub bucket: String,
    /// The key of a service account, as Google issues it (JSON). The machines' own account by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Secret>,
}

/// A container of Azure Blob Storage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AzureStore {
    /// The storage account.
    pub account: String,
    /// The container. It must be there.
    pub container: String,
    /// A key of the account. The machines' own identity by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Secret>,
}
