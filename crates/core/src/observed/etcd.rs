//! etcd's own answers → the members of the cluster, its leader, and the clients that it accepts.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::trust::{AuthorityRecord, Handshakes, TrustDomain};
use super::users::Access;
use super::{Fact, Maintenance};
use crate::spec::{EtcdVersion, Name};

/// What was seen of etcd itself, apart from the machines that it runs on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EtcdObserved {
    /// Every member, by the name of its machine: those of the file, and those that are to go.
    pub members: BTreeMap<Name, MemberObserved>,
    /// What was measured because of an alarm.
    #[serde(default)]
    pub maintenance: Maintenance,
    /// The authorities that the file brings, as they are found where it says.
    #[serde(default)]
    pub brought: BTreeMap<TrustDomain, AuthorityRecord>,
    /// Which certificates each member accepts. Tested while an authority changes, where a phase depends on it.
    #[serde(default)]
    pub handshakes: BTreeMap<Name, Handshakes>,
}

/// What was seen of the etcd that answers at one member's address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberObserved {
    /// Its answer.
    pub etcd: Fact<EtcdFacts>,
    /// Why it could not be asked, where something listens there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// etcd's id of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u64);

/// etcd's id of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// Ids are shown and kept in hexadecimal, as etcd prints them.
macro_rules! hexadecimal {
    ($id:ident) => {
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:x}", self.0)
            }
        }

        impl Serialize for $id {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $id {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                u64::from_str_radix(&text, 16).map(Self).map_err(serde::de::Error::custom)
            }
        }
    };
}

hexadecimal!(ClusterId);
hexadecimal!(MemberId);

/// What one member answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdFacts {
    /// Its id.
    pub member: MemberId,
    /// Its cluster's id.
    pub cluster: ClusterId,
    /// The leader that it follows.
    pub leader: Option<MemberId>,
    /// Its term.
    pub raft_term: u64,
    /// The last index of its log.
    pub raft_index: u64,
    /// Its revision.
    pub revision: i64,
    /// Its version.
    pub version: EtcdVersion,
    /// The version that its data is written for: what it calls its storage's, or up to 3.5, which does not, the
    /// cluster's. It follows once all members run a line.
    pub storage_version: Option<EtcdVersion>,
    /// The target version of a downgrade that is enabled; etcd up to 3.5 does not report it.
    pub downgrade: Option<EtcdVersion>,
    /// Size of its database file.
    pub db_size: i64,
    /// Of that, in use.
    pub db_in_use: i64,
    /// At this size it takes no more writes; not every version says so.
    pub quota: Option<i64>,
    /// Whether it is a learner, without a vote.
    pub learner: bool,
    /// Why a linearizable read through it failed; `None` when it succeeded, which proves quorum.
    pub read_error: Option<String>,
    /// The members that it knows.
    pub members: Vec<ListedMember>,
    /// Alarms that it knows of.
    pub alarms: Vec<Alarm>,
    /// Whether auth is on; `None` when it did not say.
    pub auth: Option<bool>,
    /// The superuser, looked at while auth is off.
    pub root: Root,
    /// Whether unauthenticated clients are rejected, tested once auth is on.
    pub probe: Option<AccessProbe>,
    /// Roles and users, or why they could not be asked for. Looked at where the file speaks of them, once auth is on, at
    /// one member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Result<Access, String>>,
    /// Settings in the file's words, as far as they can be seen of an adopted member.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

impl EtcdFacts {
    /// Whether a linearizable read through this member succeeded.
    pub fn healthy(&self) -> bool {
        self.read_error.is_none()
    }

    /// Whether it leads.
    pub fn leads(&self) -> bool {
        self.leader == Some(self.member)
    }
}

/// A member as listed by etcd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedMember {
    /// Its id.
    pub id: MemberId,
    /// Its name; empty while it never started.
    pub name: String,
    /// Where other members reach it.
    pub peer_urls: Vec<String>,
    /// Whether it is a learner.
    pub learner: bool,
}

/// An alarm of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Alarm {
    /// The quota is used up: no writes.
    NoSpace,
    /// Members differ in their data.
    Corrupt,
}

/// Why an etcd that listens could not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Problem {
    /// It accepts connections and does not answer.
    Silent,
    /// It does not accept our password.
    Denied,
    /// It sends an invalid answer.
    Unclear,
}

/// The superuser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Root {
    /// Not looked at.
    Unknown,
    /// There is no user `root`, or it lacks the role `root`.
    Missing,
    /// There is, with the role.
    Ready,
    /// It has the password that the state knows of, and the file refers to another.
    Outdated,
}

/// How messages name a client without credentials.
pub const ANONYMOUS: &str = "an anonymous";

/// Whether clients that should be rejected are rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessProbe {
    /// A client without credentials.
    pub anonymous: ProbeOutcome,
    /// A client without TLS.
    pub plaintext: ProbeOutcome,
    /// A client whose certificate a foreign authority signed.
    pub foreign: ProbeOutcome,
}

impl AccessProbe {
    /// The probes that were not rejected, with their outcome.
    pub fn not_denied(&self) -> impl Iterator<Item = (&'static str, &ProbeOutcome)> {
        [(ANONYMOUS, &self.anonymous), ("a plaintext", &self.plaintext), ("a foreign-CA", &self.foreign)]
            .into_iter()
            .filter(|(_, outcome)| !matches!(outcome, ProbeOutcome::Denied))
    }
}

/// The outcome of one probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeOutcome {
    /// The client was rejected.
    Denied,
    /// The client was accepted.
    Accepted,
    /// It could not be tested.
    Untested(String),
}
