//! An action on the simulated world → its predicted effect, or why it is impossible. Each topic has its own file.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{
    Agreed, MachineModel, PatroniStore, Stored, World, agents, auth, backup, balancer, etcd, machines, maintenance,
    members, pki, postgres, preflight, recovery, restore, users, versions,
};
use crate::action::Action;
use crate::desired::Stack;
use crate::observed::{Access, AccessProbe, ClusterId, Data, ListedMember, MemberId, Power, ProbeOutcome, Root};
use crate::render;
use crate::spec::{AuthMode, Name};

/// The world refused: the machine was not as the action needs it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("impossible: {0}")]
pub struct Impossible(pub String);

impl Agreed {
    pub(super) fn new(members: Vec<ListedMember>) -> Self {
        let probe = AccessProbe {
            anonymous: ProbeOutcome::Denied,
            plaintext: ProbeOutcome::Denied,
            foreign: ProbeOutcome::Denied,
        };
        Self {
            members,
            root: Root::Missing,
            auth: false,
            formed: false,
            alarms: Vec::new(),
            probe,
            stored: Stored::new(),
            access: Access::default(),
            line: None,
            downgrade: None,
            old_requests: false,
            patroni: PatroniStore::default(),
        }
    }
}

impl World {
    /// Applies it. Processes that it starts need `warm_up` observations before they answer.
    pub fn act(&mut self, desired: &Stack, action: &Action, warm_up: u32) -> Result<(), Impossible> {
        let now = self.now;
        let observed = self.observe(desired);
        self.ledger.ahead(desired, &observed, action, now);
        if let Some(watched) = &mut self.watched {
            return users::change_watched(watched, desired, action);
        }
        match action {
            Action::Machine(action) => machines::act(self, desired, action)?,
            Action::Agent(action) => agents::act(self, desired, action)?,
            Action::Pki(action) => pki::act(self, desired, action)?,
            Action::Preflight(action) => preflight::act(self, desired, action)?,
            Action::Etcd(action) => etcd::act(self, desired, action, warm_up)?,
            Action::Member(action) => members::act(self, desired, action, warm_up)?,
            Action::Maintenance(action) => maintenance::act(self, action)?,
            Action::Version(action) => versions::act(self, desired, action)?,
            Action::Backup(action) => backup::act(self, action)?,
            Action::Balancer(action) => balancer::act(self, desired, action)?,
            Action::Postgres(action) => postgres::act(self, desired, action)?,
            Action::Auth(action) => auth::act(self, action)?,
            Action::User(action) => users::act(self, desired, action)?,
            Action::Restore(action) => restore::act(self, desired, action, warm_up)?,
            Action::Recovery(action) => recovery::act(self, action)?,
        }
        self.ledger.after(desired, action, now);
        Ok(())
    }

    /// Records what an observation showed, as the engine does.
    pub fn remember(&mut self, desired: &Stack) {
        let observed = self.observe(desired);
        self.ledger.learn(desired, &observed, self.now);
    }

    /// The data of a member that etcd was once started on.
    pub(super) fn bootstrap_data(&self, desired: &Stack, name: &Name, cluster: Option<ClusterId>) -> Data {
        let ids = Ids::of(&self.founders(desired));
        let listed = cluster.and_then(|id| self.agreed.get(&id)).into_iter().flat_map(|agreed| &agreed.members);
        let listed = listed.into_iter().find(|m| m.name == name.as_str()).map(|m| m.id);
        let member = listed.or_else(|| ids.members.get(name).copied());
        Data::Present { member: member.unwrap_or(MemberId(0)), cluster: cluster.unwrap_or(ids.cluster) }
    }

    /// What a cluster that formed once has agreed upon, where no member answers: what apply completes before it ends.
    pub(super) fn remembered(&mut self, desired: &Stack) {
        let Some(cluster) = self.ledger.etcd.cluster else { return };
        let (founders, access) = (self.founders(desired), users::settled(desired, &self.ledger));
        self.agreed.entry(cluster).or_insert_with(|| Agreed {
            root: Root::Ready,
            auth: desired.etcd.auth != AuthMode::None,
            formed: true,
            access,
            ..Agreed::new(Ids::of(&founders).list(&founders))
        });
    }

    /// Those that the cluster was first started with, or will be.
    pub(super) fn founders(&self, desired: &Stack) -> BTreeMap<Name, String> {
        if self.ledger.etcd.founders.is_empty() {
            return desired.etcd.members.iter().map(|m| (m.name.clone(), m.peer_url())).collect();
        }
        self.ledger.etcd.founders.clone()
    }

    pub(super) fn existing(&mut self, name: &Name) -> Result<&mut MachineModel, Impossible> {
        self.machines.get_mut(name).filter(|m| m.exists).ok_or_else(|| Impossible(format!("{name} does not exist")))
    }

    pub(super) fn with_agent(&mut self, name: &Name) -> Result<&mut MachineModel, Impossible> {
        let machine = self.existing(name)?;
        if machine.power == Power::Running && machine.agent_up {
            Ok(machine)
        } else {
            Err(Impossible(format!("the agent on {name} does not answer")))
        }
    }

    pub(super) fn claimed(&mut self, name: &Name) -> Result<&mut MachineModel, Impossible> {
        let machine = self.with_agent(name)?;
        if machine.claimed { Ok(machine) } else { Err(Impossible(format!("{name} has no certificate yet"))) }
    }

    pub(super) fn agree(&mut self, change: impl FnOnce(&mut Agreed)) -> Result<(), Impossible> {
        let id = self.agreed.keys().copied().find(|id| self.has_quorum(*id));
        match id.and_then(|id| self.agreed.get_mut(&id)) {
            Some(agreed) => {
                change(agreed);
                Ok(())
            }
            None => Err(no_quorum()),
        }
    }
}

pub(super) fn no_quorum() -> Impossible {
    Impossible("no quorum".to_owned())
}

pub(super) fn later(now: Timestamp, ms: u64) -> Timestamp {
    let span = SignedDuration::from_millis(i64::try_from(ms).unwrap_or(i64::MAX));
    now.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// As in etcd, ids follow from the first members and the token: the same file forms the same cluster.
pub(super) struct Ids {
    pub(super) cluster: ClusterId,
    pub(super) members: BTreeMap<Name, MemberId>,
}

impl Ids {
    pub(super) fn of(founders: &BTreeMap<Name, String>) -> Self {
        let members: BTreeMap<Name, MemberId> =
            founders.iter().map(|(name, url)| (name.clone(), MemberId(hash(url)))).collect();
        let all: String = members.values().map(|id| format!("{id}")).collect();
        Self { cluster: ClusterId(hash(&all)), members }
    }

    pub(super) fn list(&self, founders: &BTreeMap<Name, String>) -> Vec<ListedMember> {
        let entry = |(name, url): (&Name, &String)| {
            let id = *self.members.get(name)?;
            Some(ListedMember { id, name: name.to_string(), peer_urls: vec![url.clone()], learner: false })
        };
        founders.iter().filter_map(entry).collect()
    }
}

pub(super) fn hash(text: &str) -> u64 {
    u64::from_str_radix(&render::digest(text)[..16], 16).unwrap_or(1)
}
