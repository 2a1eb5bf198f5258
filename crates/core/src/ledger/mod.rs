//! The state's memory of a stack → what no observation can tell.

#![warn(clippy::wildcard_enum_match_arm)]

mod auth;
mod etcd;
mod machines;
mod maintenance;
mod members;
mod mode;
mod postgres;
mod rebuild;
mod recovery;
mod restore;
mod stored;
mod versions;

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use etcd::EtcdLedger;
pub use machines::MachineLedger;
pub use maintenance::SpaceRecord;
pub use members::LearnerRecord;
pub use mode::{Adopted, Mode};
pub use postgres::{PostgresLedger, SwitchoverRecord, SyncRecord};
pub use rebuild::RebuildError;
pub use recovery::Recovery;
pub use restore::{Restoration, SnapshotSource};
pub use versions::SnapshotRecord;

use stored::Stored;

use crate::action::Action;
use crate::desired::{Stack, address_of};
use crate::observed::Observed;
use crate::spec::Name;

/// What the state remembers of one stack.
///
/// Every entry is written before the action that it records, so that a crash in between reads as 'may have happened'.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Ledger {
    /// Of its machines, whatever runs on them.
    pub machines: MachineLedger,
    /// Of its etcd cluster.
    pub etcd: EtcdLedger,
    /// Of each PostgreSQL cluster that stands on it.
    pub postgres: BTreeMap<Name, PostgresLedger>,
}

impl Ledger {
    /// Where its machines are, or will be made: members and instances where they are known at, the others where their
    /// provider assigned it.
    pub fn places(&self) -> BTreeMap<Name, IpAddr> {
        let mut places = self.machines.addresses.clone();
        places.extend(self.machines.instances.iter().map(|(name, address)| (name.clone(), *address)));
        places.extend(self.etcd.members.iter().filter_map(|(name, url)| Some((name.clone(), address_of(url)?))));
        places
    }

    /// Records, before an action is done, what must survive a crash during it.
    pub fn ahead(&mut self, desired: &Stack, observed: &Observed, action: &Action, now: Timestamp) {
        self.note_step(desired, action, now);
        match action {
            Action::Machine(action) => machines::ahead(self, desired, action),
            Action::Etcd(action) => etcd::ahead(&mut self.etcd, desired, observed, action),
            Action::Member(action) => members::ahead(&mut self.etcd, desired, observed, action, now),
            Action::Maintenance(action) => maintenance::ahead(&mut self.etcd, observed, action),
            Action::Auth(action) => auth::ahead(&mut self.etcd, desired, action),
            Action::Postgres(action) => postgres::ahead(self, desired, observed, action, now),
            // The next observation tells whether it was done, or the code that executes it records it.
            Action::Pki(_)
            | Action::Agent(_)
            | Action::Preflight(_)
            | Action::Version(_)
            | Action::Backup(_)
            | Action::Balancer(_)
            | Action::User(_)
            | Action::Restore(_)
            | Action::Recovery(_) => {}
        }
    }

    /// What is known once an action was done.
    pub fn after(&mut self, desired: &Stack, action: &Action, now: Timestamp) {
        self.note_step(desired, action, now);
        match action {
            Action::Maintenance(action) => maintenance::after(&mut self.etcd, action),
            Action::Restore(action) => restore::after(&mut self.etcd, action),
            Action::Postgres(action) => postgres::after(self, action, now),
            // The next observation shows it.
            Action::Machine(_)
            | Action::Agent(_)
            | Action::Pki(_)
            | Action::Preflight(_)
            | Action::Etcd(_)
            | Action::Member(_)
            | Action::Version(_)
            | Action::Backup(_)
            | Action::Balancer(_)
            | Action::Auth(_)
            | Action::User(_)
            | Action::Recovery(_) => {}
        }
    }

    /// Records what an observation showed and a later one may not show.
    pub fn learn(&mut self, desired: &Stack, observed: &Observed, now: Timestamp) {
        self.place(desired, observed);
        self.etcd.learn(desired, observed, now);
        postgres::learn(self, desired, observed, now);
        self.forget_places(desired);
    }
}
