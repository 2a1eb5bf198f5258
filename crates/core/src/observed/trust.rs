//! The authorities of one side of a cluster → which one signs, which ones are trusted, and the bundle that says so.
//!
//! An authority is changed in phases: the next one is trusted beside the one that signs, then signs itself, then the
//! old one is trusted no more. Each phase is recorded here before any action follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{CertificateFacts, Purpose};
use crate::render;
use crate::spec::Name;

/// Which certificates an authority signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrustDomain {
    /// What members present to each other.
    Peers,
    /// What clients present, and what members present to clients.
    Clients,
}

impl TrustDomain {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Peers, Self::Clients];

    /// Its name in plans and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Peers => "peers",
            Self::Clients => "clients",
        }
    }

    /// The members' certificate that its authority signs, and beside which its trust is kept.
    pub fn purpose(self) -> Purpose {
        match self {
            Self::Peers => Purpose::Peer,
            Self::Clients => Purpose::Server,
        }
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Purpose {
    /// The side whose authority signs it.
    pub fn side(self) -> TrustDomain {
        match self {
            Self::Peer => TrustDomain::Peers,
            Self::Server => TrustDomain::Clients,
        }
    }
}

/// Where an authority comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Made by raftsman.
    #[default]
    Made,
    /// Brought by the user.
    Brought,
}

/// A certificate authority, as far as the planner needs to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityRecord {
    /// Counts the authorities of this side. The state keeps its key under this number.
    pub number: u32,
    /// SHA-256 of its public key.
    pub key: String,
    /// Valid until.
    pub not_after: Timestamp,
    /// Where it comes from.
    pub origin: Origin,
    /// Its certificate, PEM, and those above it where they were brought.
    pub certificate: String,
}

/// The authorities of one side of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// Signs.
    pub current: AuthorityRecord,
    /// Trusted, and signs next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<AuthorityRecord>,
    /// Trusted still. The first is the oldest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub old: Vec<AuthorityRecord>,
    /// Trusted no more, and not yet seen to be refused everywhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<AuthorityRecord>,
    /// The highest number that an authority of this side ever had.
    pub numbered: u32,
    /// An operator wants another authority.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
    /// An operator confirms that all clients have what they need: the old authorities can go.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finish: bool,
    /// An emergency: members that cannot be reached are not waited for, unless a majority needs them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub now: bool,
}

impl Trust {
    /// The first authority of a side.
    pub fn new(current: AuthorityRecord) -> Self {
        let numbered = current.number;
        Self {
            current,
            next: None,
            old: Vec::new(),
            retired: Vec::new(),
            numbered,
            asked: false,
            finish: false,
            now: false,
        }
    }

    /// Every authority whose certificates are to be accepted, each once, in an order that no phase changes.
    pub fn trusted(&self) -> Vec<&AuthorityRecord> {
        ordered(std::iter::once(&self.current).chain(&self.next).chain(&self.old))
    }

    /// Every authority that a machine may still know.
    pub fn known(&self) -> Vec<&AuthorityRecord> {
        ordered(std::iter::once(&self.current).chain(&self.next).chain(&self.old).chain(&self.retired))
    }

    /// The authority that signed a certificate, by its key.
    pub fn by_key(&self, key: &str) -> Option<&AuthorityRecord> {
        self.known().into_iter().find(|a| a.key == key)
    }

    /// Whether certificates of this key's authority are to be accepted.
    pub fn trusts(&self, key: &str) -> bool {
        self.trusted().iter().any(|a| a.key == key)
    }

    /// Whether this certificate is to be accepted.
    pub fn accepts(&self, certificate: &CertificateFacts, now: Timestamp) -> bool {
        certificate.not_after > now && self.trusts(&certificate.issuer_key)
    }

    /// The certificates of every authority that is to be trusted, as one PEM text.
    pub fn bundle(&self) -> String {
        bundle(&self.trusted())
    }

    /// The digest of the bundle.
    pub fn digest(&self) -> String {
        render::digest(&self.bundle())
    }

    /// The keys in the bundle of this digest, where it is one that can be made of the authorities that are known.
    pub fn keys_of(&self, digest: &str) -> Option<BTreeSet<String>> {
        self.bundles().remove(digest)
    }

    /// Every bundle that can be made of the authorities that are known: its digest, and the keys in it.
    pub fn bundles(&self) -> BTreeMap<String, BTreeSet<String>> {
        let known = self.known();
        let some = |bits: usize| -> Vec<&AuthorityRecord> {
            known.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, a)| *a).collect()
        };
        let sets = (1..1_usize << known.len().min(8)).map(some);
        sets.map(|set| (render::digest(&bundle(&set)), set.iter().map(|a| a.key.clone()).collect())).collect()
    }

    /// Whether a change of the authority is under way.
    pub fn rotates(&self) -> bool {
        self.next.is_some() || !self.old.is_empty() || !self.retired.is_empty()
    }

    /// Whether the old authorities are to go: those of the peers as soon as no member needs them, those of the clients
    /// once an operator says so, in an emergency, or when they have expired.
    pub fn finishes(&self, side: TrustDomain, now: Timestamp) -> bool {
        !self.old.is_empty()
            && (side == TrustDomain::Peers || self.finish || self.now || self.old.iter().all(|a| a.not_after <= now))
    }

    /// The authority that signs members' certificates now. What members present to clients is signed by the oldest
    /// authority for as long as there are clients that may trust no other.
    pub fn signer(&self, side: TrustDomain, renew_before: jiff::SignedDuration, now: Timestamp) -> &AuthorityRecord {
        let serves = |a: &&AuthorityRecord| a.not_after.duration_since(now) > renew_before;
        match self.old.iter().find(serves) {
            Some(old) if !self.finishes(side, now) => old,
            _ => &self.current,
        }
    }

    /// Adds the next authority. A previous next authority, which never signed, is not trusted any more.
    pub fn take_in(&mut self, next: AuthorityRecord) {
        self.numbered = self.numbered.max(next.number);
        self.retired.extend(self.next.take());
        self.retired.retain(|a| a.certificate != next.certificate);
        self.next = Some(next);
        self.asked = false;
    }

    /// The next one signs. What the one before signed is accepted for as long as that one is valid.
    pub fn switch(&mut self, now: Timestamp) {
        let Some(next) = self.next.take() else { return };
        let before = std::mem::replace(&mut self.current, next);
        let lives = before.not_after > now;
        if lives { &mut self.old } else { &mut self.retired }.push(before);
        let current = &self.current;
        self.old.retain(|a| a.certificate != current.certificate);
    }

    /// The old ones, or the one that was to be the next and is unused, are trusted no more.
    pub fn retire(&mut self, unused: bool) {
        if unused {
            self.retired.extend(self.next.take());
            return;
        }
        self.retired.append(&mut self.old);
        self.finish = false;
    }

    /// Deletes the authorities that are not trusted any more: every member rejects them.
    pub fn forget(&mut self) {
        self.retired.clear();
        if self.next.is_none() && self.old.is_empty() {
            self.now = false;
        }
    }
}

fn ordered<'a>(records: impl Iterator<Item = &'a AuthorityRecord>) -> Vec<&'a AuthorityRecord> {
    let mut records: Vec<_> = records.collect();
    records.sort_by(|a, b| (&a.key, &a.certificate).cmp(&(&b.key, &b.certificate)));
    records.dedup_by(|a, b| a.certificate == b.certificate);
    records
}

fn bundle(records: &[&AuthorityRecord]) -> String {
    let mut text = String::new();
    for record in records {
        text.push_str(record.certificate.trim_end());
        text.push('\n');
    }
    text
}

/// Which certificates are accepted where while an authority changes, as handshakes have shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshakes {
    /// From this machine, with its own certificate, to other members' peer ports: what went wrong, if anything.
    pub peers: BTreeMap<Name, Option<String>>,
    /// At this member's port of each side: the result for a client with a certificate of the authority with this key.
    pub let_in: BTreeMap<TrustDomain, BTreeMap<String, HandshakeResult>>,
}

/// The result of a handshake with a client certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HandshakeResult {
    /// The certificate was accepted.
    Accepted,
    /// The certificate was rejected, with this error.
    Refused(String),
    /// It could not be tested.
    Unclear(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u32) -> AuthorityRecord {
        AuthorityRecord {
            number,
            key: format!("key-{}", 9 - number),
            not_after: Timestamp::MAX,
            origin: Origin::Made,
            certificate: format!("certificate {number}\n"),
        }
    }

    #[test]
    fn the_bundle_is_the_same_before_and_after_the_switch() {
        let mut trust = Trust::new(record(1));
        let alone = trust.digest();
        trust.take_in(record(2));
        let both = trust.digest();
        assert_ne!(alone, both);
        trust.switch(Timestamp::UNIX_EPOCH);
        assert_eq!(trust.digest(), both, "no member is restarted when a CA is activated");
        assert_eq!((trust.current.number, trust.old.len()), (2, 1));
        trust.retire(false);
        assert_ne!(trust.digest(), both);
        assert_eq!(trust.keys_of(&both).map(|keys| keys.len()), Some(2), "a process may still run with it");
        trust.forget();
        assert!(!trust.rotates());
        assert_eq!(trust.keys_of(&alone), None);
    }

    #[test]
    fn an_authority_that_comes_back_is_there_once() {
        let mut trust = Trust::new(record(1));
        trust.take_in(record(2));
        trust.switch(Timestamp::UNIX_EPOCH);
        trust.take_in(AuthorityRecord { number: 3, ..record(1) });
        let both = trust.digest();
        assert_eq!(trust.trusted().len(), 2);
        trust.switch(Timestamp::UNIX_EPOCH);
        assert_eq!(trust.digest(), both);
        assert_eq!(trust.old.iter().map(|a| a.number).collect::<Vec<_>>(), [2]);
        assert_eq!(trust.numbered, 3);
    }

    #[test]
    fn what_members_show_to_clients_changes_last() {
        let mut trust = Trust::new(record(1));
        trust.take_in(record(2));
        trust.switch(Timestamp::UNIX_EPOCH);
        let (week, now) = (jiff::SignedDuration::from_hours(168), Timestamp::UNIX_EPOCH);
        assert_eq!(trust.signer(TrustDomain::Peers, week, now).number, 2);
        assert_eq!(trust.signer(TrustDomain::Clients, week, now).number, 1);
        trust.old[0].not_after = now.checked_add(week).expect("a timestamp");
        assert_eq!(trust.signer(TrustDomain::Clients, week, now).number, 2, "nearly over");
        trust.old[0].not_after = Timestamp::MAX;
        trust.finish = true;
        assert_eq!(trust.signer(TrustDomain::Clients, week, now).number, 2);
    }
}
