//! A running cluster that raftsman did not make, as it was seen → the file that describes it, and findings about it.

mod file;
mod findings;
mod settings;

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;

pub use file::{Choices, Drafted, draft};
pub use findings::{Finding, Weight, findings};
pub use settings::{Difference, differences, seen, wanted};

use crate::observed::{Access, Alarm, ClusterId, ListedMember, MemberId, Purpose};
use crate::spec::{AuthMode, EtcdVersion};

/// All that was seen of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// When.
    pub at: Timestamp,
    /// etcd's id of it.
    pub cluster: ClusterId,
    /// Its members, in the order of their names.
    pub members: Vec<Member>,
    /// How clients authenticate.
    pub mode: AuthMode,
    /// Whether a client without a certificate gets no connection.
    pub certificates_needed: bool,
    /// Whether auth is on; none when no member could tell.
    pub auth: Option<bool>,
    /// Roles and users, where we may ask for them; else why not.
    pub access: Result<Access, String>,
    /// Alarms, and the members that raised them.
    pub alarms: Vec<(MemberId, Alarm)>,
    /// What the members' data hashes to, at one revision.
    pub hashes: Hashes,
    /// The authority of the clients' certificates.
    pub authority: Authority,
    /// Whether the same authority signs for peers: then every client can connect as a peer.
    pub shared_authority: Option<bool>,
}

/// What the members' data hashes to.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Hashes {
    /// At this revision.
    pub revision: i64,
    /// By member; equal hashes can only be expected of the same compaction, which is beside it.
    pub members: BTreeMap<String, Hash>,
}

/// One member's hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Hash {
    /// The hash.
    pub hash: u32,
    /// The revision up to which history was dropped.
    pub compacted: i64,
}

/// An authority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Authority {
    /// Its subject.
    pub subject: String,
    /// Valid until.
    pub not_after: Timestamp,
    /// SHA-256 of its public key.
    pub key: String,
}

/// One member, as far as it was seen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Member {
    /// As the cluster lists it.
    #[serde(flatten)]
    pub listed: ListedMember,
    /// Where it says that clients reach it.
    pub client_urls: Vec<String>,
    /// Where it was reached, or tried to be.
    pub endpoint: String,
    /// The address of that, where it is one or stands for one.
    pub address: Option<IpAddr>,
    /// What it answered, or why it did not.
    pub status: Result<Status, String>,
    /// The certificates that it shows, by purpose; or why none was seen.
    pub certificates: BTreeMap<Purpose, Result<Certificate, String>>,
    /// The process, where it runs on this computer and we may look at it.
    pub process: Option<Process>,
    /// What it measured of itself.
    pub metrics: BTreeMap<String, f64>,
}

/// What a member answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Its version.
    pub version: EtcdVersion,
    /// The leader that it follows.
    pub leader: Option<MemberId>,
    /// Its revision.
    pub revision: i64,
    /// Size of its database file.
    pub db_size: i64,
    /// Of that, in use.
    pub db_in_use: i64,
    /// Its quota, where it tells.
    pub quota: Option<u64>,
}

/// A certificate that a member shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Certificate {
    /// Its subject.
    pub subject: String,
    /// Its issuer.
    pub issuer: String,
    /// Names and addresses in it.
    pub names: Vec<String>,
    /// Valid until.
    pub not_after: Timestamp,
    /// Whether it may be used as a server.
    pub server_auth: bool,
    /// Whether it may be used as a client.
    pub client_auth: bool,
}

/// A process of etcd on this computer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Which.
    pub pid: u32,
    /// Its program.
    pub program: Option<String>,
    /// Where its settings come from.
    pub source: String,
    /// Its settings by etcd's own names, as they were given.
    pub settings: BTreeMap<String, String>,
}

impl Member {
    /// Its settings in the file's words, as far as they were seen.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let version = self.status.as_ref().map(|status| status.version).unwrap_or_default();
        let quota = self.status.as_ref().ok().and_then(|status| status.quota);
        let quota = quota.or_else(|| self.metrics.get("etcd_server_quota_backend_bytes").map(|bytes| *bytes as u64));
        seen(self.process.as_ref().map(|process| &process.settings), quota, version)
    }
}
