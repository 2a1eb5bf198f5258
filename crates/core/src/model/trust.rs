//! Certificates and trust in the simulated world → which members complete TLS handshakes, and what a test shows.

use std::collections::{BTreeMap, BTreeSet};

use super::{MachineModel, World};
use crate::desired::Stack;
use crate::observed::{
    AuthorityRecord, ClusterId, HandshakeResult, Handshakes, MemberId, Observed, Origin, Purpose, ServiceState, Trust,
    TrustDomain, View, quorum,
};
use crate::plan::trust::to_be_proven;
use crate::spec::{AuthMode, Authority, Name};

use super::effects::{Impossible, later};

fn connected(one: &MachineModel, other: &MachineModel) -> bool {
    let knows = |m: &MachineModel, o: &MachineModel| o.member().is_some_and(|id| m.process.connected.contains(&id));
    knows(one, other) && knows(other, one)
}

impl World {
    /// Whether etcd on this machine accepts what the authority with this key signed.
    pub fn accepts(&self, machine: &MachineModel, purpose: Purpose, key: &str) -> bool {
        match machine.process.read.get(&purpose).or_else(|| machine.process.trust.get(&purpose)) {
            // Of some processes nothing is known: they are assumed to have the wanted trust.
            None => true,
            Some(digest) => self.bundles.get(digest).is_some_and(|keys| keys.contains(key)),
        }
    }

    /// Whether these two members' etcds accept each other's certificates.
    fn linked(&self, one: &MachineModel, other: &MachineModel) -> bool {
        let shows = |m: &MachineModel| m.certificates.get(&Purpose::Peer).map(|c| c.issuer_key.clone());
        let accepts =
            |m: &MachineModel, o: &MachineModel| shows(o).is_none_or(|key| self.accepts(m, Purpose::Peer, &key));
        accepts(one, other) && accepts(other, one)
    }

    /// Whether these two members talk to each other: over a connection that they have, or over one that they could make.
    fn talk(&self, one: &MachineModel, other: &MachineModel) -> bool {
        connected(one, other) || self.linked(one, other)
    }

    /// The members of these that this one is in touch with, itself among them.
    fn around(
        one: &(MemberId, &MachineModel),
        voters: &[(MemberId, &MachineModel)],
        talk: impl Fn(&MachineModel, &MachineModel) -> bool,
    ) -> Vec<MemberId> {
        voters.iter().filter(|(id, other)| *id == one.0 || talk(one.1, other)).map(|(id, _)| *id).collect()
    }

    /// The first of these that most are in touch with, and those.
    fn most(
        voters: &[(MemberId, &MachineModel)],
        talk: impl Fn(&MachineModel, &MachineModel) -> bool,
    ) -> (Option<MemberId>, Vec<MemberId>) {
        let mut most = (None, Vec::new());
        for voter in voters {
            let group = Self::around(voter, voters, &talk);
            if group.len() > most.1.len() {
                most = (Some(voter.0), group);
            }
            if most.1.len() == voters.len() {
                break;
            }
        }
        most
    }

    /// The leader, or the member that could lead, and the voters that are connected to it. A leader stays for as long
    /// as a majority is connected to it.
    pub(super) fn following(&self, cluster: ClusterId) -> (Option<MemberId>, Vec<MemberId>) {
        let up = self.voters_up(cluster);
        let voters = self.agreed.get(&cluster).map_or(0, |a| a.members.iter().filter(|m| !m.learner).count());
        let talk = |one: &MachineModel, other: &MachineModel| self.talk(one, other);
        let leads = up.iter().find(|(id, _)| self.leads == Some(*id));
        let group = leads.map(|leader| Self::around(leader, &up, talk)).unwrap_or_default();
        if leads.is_some() && group.len() >= quorum(voters) {
            return (self.leads, group);
        }
        Self::most(&up, talk)
    }

    /// Voters of this cluster that would be in touch if every connection had to be made anew.
    pub fn voters_trusting(&self, cluster: ClusterId) -> Vec<MemberId> {
        Self::most(&self.voters_up(cluster), |one, other| self.linked(one, other)).1
    }

    /// Members connect to every member that they can, and stay connected for as long as both run.
    pub(super) fn connect(&mut self) {
        let with = |one: &MachineModel| -> BTreeSet<MemberId> {
            let others =
                self.machines.values().filter(|o| o.answers() && one.answers() && o.cluster() == one.cluster());
            others
                .filter(|o| o.member() != one.member() && self.talk(one, o))
                .filter_map(MachineModel::member)
                .collect()
        };
        let connected: BTreeMap<Name, BTreeSet<MemberId>> =
            self.machines.iter().map(|(name, m)| (name.clone(), with(m))).collect();
        for (name, connected) in connected {
            if let Some(machine) = self.machines.get_mut(&name) {
                machine.process.connected = connected;
            }
        }
    }

    /// Members that were seen healthy are connected to the leader, whatever certificates they present by now.
    pub(super) fn connect_the_healthy(&mut self, observed: &Observed) {
        let view = View::of(observed);
        let Some(leader) = view.leader else { return };
        let id = |name: &Name| view.answering.get(name).map(|e| e.member);
        for name in view.healthy.iter().filter(|name| **name != leader) {
            for (one, other) in [(*name, leader), (leader, *name)] {
                if let (Some(machine), Some(other)) = (self.machines.get_mut(one), id(other)) {
                    machine.process.connected.insert(other);
                }
            }
        }
        self.connect();
    }

    /// Whether we, with a certificate of the authority that signs for clients, can speak to this member's etcd.
    pub fn receives_us(&self, desired: &Stack, machine: &MachineModel) -> bool {
        let Some(trust) = &self.ledger.etcd.clients else { return true };
        let shown = machine.certificates.get(&Purpose::Server);
        let known = shown.is_none_or(|c| trust.trusts(&c.issuer_key));
        let shows = self.ledger.etcd.auth.unwrap_or(desired.etcd.auth) != AuthMode::Password;
        known && (!shows || self.accepts(machine, Purpose::Server, &trust.current.key))
    }

    /// Every bundle that can be made of the authorities that the ledger knows may be on a disk somewhere.
    pub(super) fn note_bundles(&mut self) {
        for side in TrustDomain::ALL {
            if let Some(trust) = self.ledger.etcd.trust(side) {
                self.bundles.extend(trust.bundles());
            }
        }
    }

    /// The trust that is to be stored now, by its digest.
    pub(super) fn store_trust(&mut self, side: TrustDomain) -> Result<String, Impossible> {
        let trust = self.ledger.etcd.trust(side).ok_or_else(|| Impossible("there is no authority".to_owned()))?;
        let digest = trust.digest();
        let keys: BTreeSet<String> = trust.trusted().into_iter().map(|a| a.key.clone()).collect();
        self.bundles.insert(digest.clone(), keys);
        Ok(digest)
    }

    /// The authority that the file says: brought, or a new one.
    pub(super) fn authority(&self, desired: &Stack, side: TrustDomain) -> AuthorityRecord {
        let number = self.ledger.etcd.trust(side).map_or(1, |t| t.numbered + 1);
        let origin = match desired.etcd.authority(side) {
            Authority::Made => Origin::Made,
            Authority::Brought(_) => Origin::Brought,
        };
        if let (Origin::Brought, Some(brought)) = (origin, self.brought.get(&side)) {
            return AuthorityRecord { number, ..brought.clone() };
        }
        AuthorityRecord { origin, ..self.made_authority(desired, side.name(), number) }
    }

    /// A new authority of this name.
    pub(super) fn made_authority(&self, desired: &Stack, name: &str, number: u32) -> AuthorityRecord {
        let key = format!("{name}-{number}");
        let certificate = format!("certificate of {key}\n");
        let not_after = later(self.now, desired.etcd.ca_validity_ms);
        AuthorityRecord { number, not_after, origin: Origin::Made, key, certificate }
    }

    pub(super) fn trust_mut(&mut self, side: TrustDomain) -> Result<&mut Trust, Impossible> {
        self.ledger.etcd.trust_mut(side).as_mut().ok_or_else(|| Impossible("there is no authority".to_owned()))
    }

    /// What handshake tests show, where a phase depends on it.
    pub fn test_handshakes(&self, desired: &Stack, observed: &Observed) -> BTreeMap<Name, Handshakes> {
        let sides = to_be_proven(desired, observed, self.now);
        if sides.is_empty() {
            return BTreeMap::new();
        }
        let serves = |m: &MachineModel| m.exists && m.process.state == ServiceState::Running && m.process.warm_up == 0;
        let one = |(name, machine): (&Name, &MachineModel)| -> Option<(Name, Handshakes)> {
            observed.report(name)?;
            let mut handshakes = Handshakes::default();
            for (other, o) in self.machines.iter().filter(|(other, o)| *other != name && o.exists) {
                let error = match (serves(o), self.linked(machine, o)) {
                    (false, _) => Some("connection refused".to_owned()),
                    (true, false) => Some("bad certificate".to_owned()),
                    (true, true) => None,
                };
                handshakes.peers.insert(other.clone(), error);
            }
            for side in &sides {
                let trust = self.ledger.etcd.trust(*side)?;
                let result =
                    |a: &AuthorityRecord| match (serves(machine), self.accepts(machine, side.purpose(), &a.key)) {
                        (false, _) => HandshakeResult::Unclear("connection refused".to_owned()),
                        (true, true) => HandshakeResult::Accepted,
                        (true, false) => HandshakeResult::Refused("bad certificate".to_owned()),
                    };
                let results = trust.known().into_iter().map(|a| (a.key.clone(), result(a))).collect();
                handshakes.let_in.insert(*side, results);
            }
            Some((name.clone(), handshakes))
        };
        self.machines.iter().filter_map(one).collect()
    }

    /// Voters of this cluster that answer at the addresses that the other members use, trusted or not.
    pub(super) fn voters_up(&self, cluster: ClusterId) -> Vec<(MemberId, &MachineModel)> {
        let Some(agreed) = self.agreed.get(&cluster) else { return Vec::new() };
        let voter = |m: &MachineModel| -> Option<MemberId> {
            let id = m.member().filter(|_| m.answers() && m.cluster() == Some(cluster))?;
            let listed = agreed.members.iter().find(|l| l.id == id && !l.learner)?;
            let found = m.process.address.is_none_or(|a| listed.peer_urls.contains(&crate::desired::peer_url(a)));
            found.then_some(id)
        };
        self.machines.values().filter_map(|m| Some((voter(m)?, m))).collect()
    }
}
