//! A stack with machines whose addresses are not known yet, an address → the stack with one more machine known.
//!
//! A provider assigns an address as a step of the plan, before it makes the machine. Until then there is no [`Member`]
//! and no [`Instance`] for that machine, so that no code can read, render or certify an address that is not known.
//!
//! [`Member`]: super::Member
//! [`Instance`]: super::Instance

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::{DesireError, Etcd, Identity, Machine, Stack, some};
use crate::ledger::Ledger;
use crate::spec::{Name, Spec};

/// What describes a stack again once more of its machines have an address.
#[derive(Debug, Clone, PartialEq)]
pub struct Unplaced {
    /// The file.
    pub(super) spec: Arc<Spec>,
    /// What the state added to it.
    pub(super) identity: Identity,
}

impl Stack {
    /// The machines that have no address yet, by name.
    pub fn unplaced_machines(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values().filter(|machine| machine.address.given().is_none())
    }

    /// Whether every machine has its address.
    pub fn is_placed(&self) -> bool {
        self.unplaced.is_none()
    }

    /// The stack once this machine has this address: the same as if the file had given it.
    pub fn place(&self, machine: &Name, address: IpAddr) -> Result<Self, DesireError> {
        self.with_addresses(BTreeMap::from([(machine.clone(), address)]))
    }

    /// The stack with the addresses that the state has for its machines by now; nothing where that is no more than is
    /// known here.
    pub fn placed_by(&self, ledger: &Ledger) -> Result<Option<Self>, DesireError> {
        if self.is_placed() {
            return Ok(None);
        }
        let mut known = ledger.places();
        known.retain(|name, _| self.unplaced_machines().any(|machine| machine.name == *name));
        if known.is_empty() { Ok(None) } else { self.with_addresses(known).map(Some) }
    }

    fn with_addresses(&self, new: BTreeMap<Name, IpAddr>) -> Result<Self, DesireError> {
        let Some(unplaced) = &self.unplaced else { return Ok(self.clone()) };
        let holder = |machine: &Name, address: IpAddr| {
            let others = self.machines.values().filter(|other| other.name != *machine);
            let known = |other: &Machine| other.address.given().or_else(|| new.get(&other.name).copied());
            others.filter(|other| known(other) == Some(address)).map(|other| other.name.clone()).next()
        };
        for (machine, address) in &new {
            if let Some(holder) = holder(machine, *address) {
                return Err(DesireError::AddressTwice { machine: machine.clone(), address: *address, holder });
            }
        }
        let Unplaced { spec, identity } = &**unplaced;
        let mut places = identity.places.get(&self.name).cloned().unwrap_or_default();
        places.extend(new);
        let zones = identity.zones.get(&self.name).cloned().unwrap_or_default();
        let identity = Identity {
            id: identity.id.clone(),
            network: identity.network,
            places: BTreeMap::from([(self.name.clone(), places)]),
            zones: BTreeMap::from([(self.name.clone(), zones)]),
        };
        let Some(stack) = some(spec, &identity, |name| *name == self.name)?.pop() else { return Ok(self.clone()) };
        let left = stack.unplaced_machines().next().is_some();
        let unplaced = left.then(|| Arc::new(Unplaced { spec: Arc::clone(spec), identity }));
        // What the state and this computer added after the file was resolved.
        let (available, agents) = (self.etcd.available.clone(), self.agents.clone());
        let etcd = Etcd { available, ..stack.etcd };
        Ok(Self { agents, etcd, unplaced, ..stack })
    }
}
