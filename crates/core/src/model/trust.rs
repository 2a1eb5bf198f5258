//! Certificates and trust in the simulated world → who shakes hands with whom, and what somebody who tries would see.

use std::collections::{BTreeMap, BTreeSet};

use super::{MachineModel, World};
use crate::desired::Cluster;
use crate::observed::{
    AuthorityRecord, ClusterId, Greeting, Handshakes, MemberId, Observed, Origin, Purpose, ServiceState, Side, Trust,
};
use crate::plan::trust::to_be_proven;
use crate::spec::{AuthMode, Authority, Name};

use super::effects::{Impossible, later};

impl World {
    /// Whether etcd on this machine accepts what the authority with this key signed.
    pub fn accepts(&self, machine: &MachineModel, purpose: Purpose, key: &str) -> bool {
        match machine.process.read.get(&purpose).or_else(|| machine.process.trust.get(&purpose)) {
            // Of some processes nothing is known: they are taken to be as they should be.
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

    /// Of these members of a cluster, those that are in touch with each other through one of them: the most.
    pub(super) fn in_touch(&self, voters: &[(MemberId, &MachineModel)]) -> Vec<MemberId> {
        let with = |(id, m): &(MemberId, &MachineModel)| -> Vec<MemberId> {
            voters.iter().filter(|(other, o)| other == id || self.linked(m, o)).map(|(id, _)| *id).collect()
        };
        let mut most = Vec::new();
        for voter in voters {
            let group = with(voter);
            if group.len() == voters.len() {
                return group;
            }
            if group.len() > most.len() {
                most = group;
            }
        }
        most
    }

    /// Whether we, with a certificate of the authority that signs for clients, can speak to this member's etcd.
    pub fn receives_us(&self, desired: &Cluster, machine: &MachineModel) -> bool {
        let Some(trust) = &self.ledger.clients else { return true };
        let shown = machine.certificates.get(&Purpose::Server);
        let known = shown.is_none_or(|c| trust.trusts(&c.issuer_key));
        let shows = self.ledger.auth.unwrap_or(desired.auth) != AuthMode::Password;
        known && (!shows || self.accepts(machine, Purpose::Server, &trust.current.key))
    }

    /// Every bundle that can be made of the authorities that the ledger knows may be on a disk somewhere.
    pub(super) fn note_bundles(&mut self) {
        for side in Side::ALL {
            if let Some(trust) = self.ledger.trust(side) {
                self.bundles.extend(trust.bundles());
            }
        }
    }

    /// The trust that is to be stored now, by its digest.
    pub(super) fn store_trust(&mut self, side: Side) -> Result<String, Impossible> {
        let trust = self.ledger.trust(side).ok_or_else(|| Impossible("there is no authority".to_owned()))?;
        let digest = trust.digest();
        let keys: BTreeSet<String> = trust.trusted().into_iter().map(|a| a.key.clone()).collect();
        self.bundles.insert(digest.clone(), keys);
        Ok(digest)
    }

    /// The authority that the file says: brought, or a new one.
    pub(super) fn authority(&self, desired: &Cluster, side: Side) -> AuthorityRecord {
        let number = self.ledger.trust(side).map_or(1, |t| t.numbered + 1);
        let origin = match desired.authority(side) {
            Authority::Made => Origin::Made,
            Authority::Brought(_) => Origin::Brought,
        };
        if let (Origin::Brought, Some(brought)) = (origin, self.brought.get(&side)) {
            return AuthorityRecord { number, ..brought.clone() };
        }
        let key = format!("{side}-{number}");
        let certificate = format!("certificate of {key}\n");
        AuthorityRecord { number, not_after: later(self.now, desired.ca_validity_ms), origin, key, certificate }
    }

    pub(super) fn trust_mut(&mut self, side: Side) -> Result<&mut Trust, Impossible> {
        self.ledger.trust_mut(side).as_mut().ok_or_else(|| Impossible("there is no authority".to_owned()))
    }

    /// What shaking hands shows, where something rests on it.
    pub fn shake_hands(&self, desired: &Cluster, observed: &Observed) -> BTreeMap<Name, Handshakes> {
        let sides = to_be_proven(desired, observed, self.now);
        if sides.is_empty() {
            return BTreeMap::new();
        }
        let serves = |m: &MachineModel| m.exists && m.process.state == ServiceState::Running && m.process.warm_up == 0;
        let one = |(name, machine): (&Name, &MachineModel)| -> Option<(Name, Handshakes)> {
            observed.members.get(name)?.report()?;
            let mut shaken = Handshakes::default();
            for (other, o) in self.machines.iter().filter(|(other, o)| *other != name && o.exists) {
                let error = match (serves(o), self.linked(machine, o)) {
                    (false, _) => Some("connection refused".to_owned()),
                    (true, false) => Some("bad certificate".to_owned()),
                    (true, true) => None,
                };
                shaken.peers.insert(other.clone(), error);
            }
            for side in &sides {
                let trust = self.ledger.trust(*side)?;
                let greet = |a: &AuthorityRecord| match (serves(machine), self.accepts(machine, side.purpose(), &a.key))
                {
                    (false, _) => Greeting::Unclear("connection refused".to_owned()),
                    (true, true) => Greeting::Accepted,
                    (true, false) => Greeting::Refused("bad certificate".to_owned()),
                };
                let greetings = trust.known().into_iter().map(|a| (a.key.clone(), greet(a))).collect();
                shaken.let_in.insert(*side, greetings);
            }
            Some((name.clone(), shaken))
        };
        self.machines.iter().filter_map(one).collect()
    }

    /// Voters of this cluster that answer where the others look for them, whether or not anybody trusts them.
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
