//! An action on the simulated world → its predicted effect, or why it is impossible.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{Agreed, MachineModel, Process, World};
use crate::action::{Action, StartData};
use crate::desired::Cluster;
use crate::observed::{
    AuthorityRecord, CertificateFacts, ClusterId, Data, Door, Doors, ListedMember, MemberId, Power, Purpose, Root,
    ServiceState,
};
use crate::render;
use crate::spec::Name;

/// The world refused: the machine was not as the action needs it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("impossible: {0}")]
pub struct Impossible(pub String);

impl Agreed {
    fn new(members: Vec<ListedMember>) -> Self {
        let doors = Doors { anonymous: Door::Shut, plaintext: Door::Shut, foreign: Door::Shut };
        Self { members, root: Root::Missing, auth: false, formed: false, alarms: Vec::new(), doors }
    }
}

impl World {
    /// Does it. Processes that it starts need `warm_up` looks before they answer.
    pub fn act(&mut self, desired: &Cluster, action: &Action, warm_up: u32) -> Result<(), Impossible> {
        let now = self.now;
        match action {
            Action::MakeAuthorities => {
                let not_after = later(now, desired.ca_validity_ms);
                let record = |key: &str| Some(AuthorityRecord { key: key.to_owned(), not_after });
                self.ledger.peers = self.ledger.peers.take().or_else(|| record("peers"));
                self.ledger.clients = self.ledger.clients.take().or_else(|| record("clients"));
            }
            Action::CreateMachine { machine } => {
                self.made += 1;
                let incarnation = format!("made-{}", self.made);
                let new = self.machines.entry(machine.clone()).or_insert_with(MachineModel::none);
                if !new.exists {
                    let ports_taken = std::mem::take(&mut new.ports_taken);
                    *new = MachineModel { exists: true, incarnation, ports_taken, ..MachineModel::none() };
                }
                power_on(new);
            }
            Action::StartMachine { machine } => power_on(self.existing(machine)?),
            Action::Enroll { machine } => self.with_agent(machine)?.claimed = true,
            Action::InstallEtcd { machine, version } => {
                self.claimed(machine)?.installed.insert(*version);
            }
            Action::IssueCertificate { machine, purpose } => {
                let certificate = self.certificate(desired, machine, *purpose)?;
                self.claimed(machine)?.certificates.insert(*purpose, certificate);
            }
            Action::ConfigureEtcd { machine, digest } => {
                self.claimed(machine)?.config = Some(digest.clone());
            }
            Action::StartEtcd { machine, version, data } => {
                let incarnation = self.claimed(machine)?.incarnation.clone();
                if self.ledger.members.is_empty() {
                    self.ledger.members = desired.members.iter().map(|m| (m.name.clone(), m.peer_url())).collect();
                    self.ledger.auth = Some(desired.auth);
                }
                self.ledger.started.insert(machine.clone(), incarnation);
                self.start(desired, machine, *version, *data, warm_up)?;
            }
            Action::RestartEtcd { machine, version, cluster } => {
                let stopped = self.claimed(machine)?;
                stopped.process = Process::none();
                // It hands its leadership over before it goes, and does not get it back by coming back.
                let stopped = stopped.member();
                if self.leads == stopped {
                    let heir = self.answering(*cluster).find_map(|(_, m)| m.member());
                    self.leads = heir;
                }
                self.start(desired, machine, *version, StartData::Of(*cluster), warm_up)?;
            }
            Action::CreateRoot => self.agree(|agreed| agreed.root = Root::Ready)?,
            Action::EnableAuth => {
                let mut without_root = false;
                self.agree(|agreed| {
                    without_root = agreed.root != Root::Ready;
                    agreed.auth |= !without_root;
                })?;
                if without_root {
                    return Err(Impossible("there is no root user".to_owned()));
                }
            }
        }
        Ok(())
    }

    /// Remembers what a look at the world showed, as the engine does.
    pub fn remember(&mut self) {
        let formed = self.agreed.iter().find(|(id, a)| a.formed && self.has_quorum(**id)).map(|(id, _)| *id);
        self.ledger.cluster = self.ledger.cluster.or(formed);
    }

    /// The data of a member that etcd was once started on.
    pub(super) fn born(&self, desired: &Cluster, name: &Name, cluster: Option<ClusterId>) -> Data {
        let ids = Ids::of(desired);
        let listed = cluster.and_then(|id| self.agreed.get(&id)).into_iter().flat_map(|agreed| &agreed.members);
        let listed = listed.into_iter().find(|m| m.name == name.as_str()).map(|m| m.id);
        let member = listed.or_else(|| ids.members.get(name).copied());
        Data::Present { member: member.unwrap_or(MemberId(0)), cluster: cluster.unwrap_or(ids.cluster) }
    }

    /// What a cluster that formed once has agreed upon, where nobody can be asked: what apply sees to before it ends.
    pub(super) fn remembered(&mut self, desired: &Cluster) {
        let Some(cluster) = self.ledger.cluster else { return };
        self.agreed.entry(cluster).or_insert_with(|| Agreed {
            root: Root::Ready,
            auth: true,
            formed: true,
            ..Agreed::new(Ids::of(desired).list(desired))
        });
    }

    fn existing(&mut self, name: &Name) -> Result<&mut MachineModel, Impossible> {
        self.machines.get_mut(name).filter(|m| m.exists).ok_or_else(|| Impossible(format!("{name} does not exist")))
    }

    fn with_agent(&mut self, name: &Name) -> Result<&mut MachineModel, Impossible> {
        let machine = self.existing(name)?;
        if machine.power == Power::Running && machine.agent_up {
            Ok(machine)
        } else {
            Err(Impossible(format!("the agent on {name} does not answer")))
        }
    }

    fn claimed(&mut self, name: &Name) -> Result<&mut MachineModel, Impossible> {
        let machine = self.with_agent(name)?;
        if machine.claimed { Ok(machine) } else { Err(Impossible(format!("{name} has no certificate yet"))) }
    }

    pub(super) fn certificate(
        &self,
        desired: &Cluster,
        machine: &Name,
        purpose: Purpose,
    ) -> Result<CertificateFacts, Impossible> {
        let authority = match purpose {
            Purpose::Peer => &self.ledger.peers,
            Purpose::Server => &self.ledger.clients,
        };
        let authority = authority.as_ref().ok_or_else(|| Impossible("there is no authority".to_owned()))?;
        let member = desired.member(machine).ok_or_else(|| Impossible(format!("{machine} is not in the file")))?;
        let profile = member.profile(purpose);
        Ok(CertificateFacts {
            fingerprint: format!("{machine}-{}-{}", purpose.name(), self.now),
            not_before: self.now,
            not_after: later(self.now, profile.validity_ms).min(authority.not_after),
            names: profile.all_names(),
            subject: profile.common_name.clone(),
            issuer_key: authority.key.clone(),
        })
    }

    fn start(
        &mut self,
        desired: &Cluster,
        name: &Name,
        version: crate::spec::EtcdVersion,
        data: StartData,
        warm_up: u32,
    ) -> Result<(), Impossible> {
        let ids = Ids::of(desired);
        let born = ids.members.get(name).copied();
        let machine = self.claimed(name)?;
        if !machine.installed.contains(&version) || machine.config.is_none() || machine.certificates.len() < 2 {
            return Err(Impossible(format!("{name} lacks a binary, a configuration or a certificate")));
        }
        if !machine.ports_taken.is_empty() {
            return Err(Impossible(format!("a port of {name} is taken")));
        }
        match (data, &machine.data) {
            (StartData::Empty, Data::Empty) => {
                let member = born.ok_or_else(|| Impossible(format!("{name} is not in the file")))?;
                machine.data = Data::Present { member, cluster: ids.cluster };
            }
            (StartData::Of(wanted), Data::Present { cluster, .. }) if wanted == *cluster => {}
            _ => return Err(Impossible(format!("the data of {name} is not as expected"))),
        }
        let config = machine.config.clone();
        machine.process =
            Process { state: ServiceState::Running, config, version: Some(version), restarts: 0, warm_up };
        self.agreed.entry(ids.cluster).or_insert_with(|| Agreed::new(ids.list(desired)));
        Ok(())
    }

    fn agree(&mut self, change: impl FnOnce(&mut Agreed)) -> Result<(), Impossible> {
        let id = self.agreed.keys().copied().find(|id| self.has_quorum(*id));
        match id.and_then(|id| self.agreed.get_mut(&id)) {
            Some(agreed) => {
                change(agreed);
                Ok(())
            }
            None => Err(Impossible("no quorum".to_owned())),
        }
    }
}

fn power_on(machine: &mut MachineModel) {
    machine.power = Power::Running;
    machine.agent_up = true;
    // The agent starts what ran before: etcd comes back with its machine.
    if machine.process.config.is_some() && machine.process.state == ServiceState::Stopped && machine.had_data {
        machine.process.state = ServiceState::Backoff;
    }
}

fn later(now: Timestamp, ms: u64) -> Timestamp {
    let span = SignedDuration::from_millis(i64::try_from(ms).unwrap_or(i64::MAX));
    now.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// As in etcd, ids follow from the first members and the token: the same file forms the same cluster.
struct Ids {
    cluster: ClusterId,
    members: BTreeMap<Name, MemberId>,
}

impl Ids {
    fn of(desired: &Cluster) -> Self {
        let hash = |text: &str| {
            let digest = render::digest(text);
            u64::from_str_radix(&digest[..16], 16).unwrap_or(1)
        };
        let members: BTreeMap<Name, MemberId> =
            desired.members.iter().map(|m| (m.name.clone(), MemberId(hash(&m.peer_url())))).collect();
        let all: String = members.values().map(|id| format!("{id}")).collect();
        Self { cluster: ClusterId(hash(&all)), members }
    }

    fn list(&self, desired: &Cluster) -> Vec<ListedMember> {
        desired
            .members
            .iter()
            .filter_map(|m| {
                let id = *self.members.get(&m.name)?;
                Some(ListedMember { id, name: m.name.to_string(), peer_urls: vec![m.peer_url()], learner: false })
            })
            .collect()
    }
}
