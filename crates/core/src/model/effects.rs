//! An action on the simulated world → its predicted effect, or why it is impossible.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};

use super::{Agreed, MachineModel, Process, Stored, World, users};
use crate::action::{
    Action, AuthAction, EtcdAction, MachineAction, MemberAction, PkiAction, PreflightAction, RecoveryAction,
    RestoreAction, StartData, UpkeepAction, UserAction, VersionAction,
};
use crate::backup::FullName;
use crate::desired::Cluster;
use crate::observed::{
    Access, CertificateFacts, ClusterId, Data, Delivery, Door, Doors, ListedMember, MemberId, Power, Purpose, Root,
    ServiceState, Side, SnapshotRecord,
};
use crate::plan::restore;
use crate::render;
use crate::spec::{AuthMode, EtcdVersion, Name, Shape};
use crate::versions::Line;

/// The world refused: the machine was not as the action needs it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("impossible: {0}")]
pub struct Impossible(pub String);

impl Agreed {
    fn new(members: Vec<ListedMember>) -> Self {
        let doors = Doors { anonymous: Door::Shut, plaintext: Door::Shut, foreign: Door::Shut };
        Self {
            members,
            root: Root::Missing,
            auth: false,
            formed: false,
            alarms: Vec::new(),
            doors,
            stored: Stored::new(),
            access: Access::default(),
            line: None,
            downgrade: None,
            old_requests: false,
        }
    }
}

impl World {
    /// Does it. Processes that it starts need `warm_up` looks before they answer.
    pub fn act(&mut self, desired: &Cluster, action: &Action, warm_up: u32) -> Result<(), Impossible> {
        let now = self.now;
        let observed = self.observe(desired);
        self.ledger.ahead(desired, &observed, action, now);
        if let Some(watched) = &mut self.watched {
            return users::change_watched(watched, desired, action);
        }
        match action {
            Action::Pki(PkiAction::MakeAuthorities) => {
                for side in Side::ALL {
                    if self.ledger.trust(side).is_none() {
                        self.ledger.take_in(side, self.authority(desired, side));
                    }
                }
            }
            Action::Pki(PkiAction::NextAuthority { side }) => {
                self.ledger.take_in(*side, self.authority(desired, *side))
            }
            Action::Pki(PkiAction::SwitchAuthority { side }) => self.trust_mut(*side)?.switch(now),
            Action::Pki(PkiAction::RetireAuthority { side, unused }) => self.trust_mut(*side)?.retire(*unused),
            Action::Pki(PkiAction::ForgetAuthority { side }) => self.trust_mut(*side)?.forget(),
            Action::Pki(PkiAction::StoreTrust { machine, purpose }) => {
                let digest = self.store_trust(purpose.side())?;
                let stored = self.claimed(machine)?.certificates.get_mut(purpose);
                stored.ok_or_else(|| Impossible(format!("{machine} has no certificate yet")))?.trust = Some(digest);
            }
            Action::Machine(MachineAction::CreateMachine { machine }) => {
                self.made += 1;
                let firewall = desired.first_firewall(&self.ledger).map(|rules| rules.digest);
                let incarnation = format!("made-{}", self.made);
                let member = desired.member(machine);
                let address = member.ok_or_else(|| Impossible(format!("{machine} is not in the file")))?.address;
                let new = self.machines.entry(machine.clone()).or_insert_with(MachineModel::none);
                if !new.exists {
                    let ports_taken = std::mem::take(&mut new.ports_taken);
                    let made = MachineModel { exists: true, incarnation, address, ports_taken, ..MachineModel::none() };
                    *new =
                        MachineModel { firewall, shape: desired.shape.clone(), delivery: undelivered(desired), ..made };
                }
                power_on(new);
            }
            Action::Machine(MachineAction::StartMachine { machine }) => {
                let started = self.existing(machine)?;
                // One of which there is nothing but its data disk is made anew around it.
                if started.shape.is_none() && desired.shape.is_some() {
                    started.delivery = undelivered(desired);
                    started.shape.clone_from(&desired.shape);
                }
                power_on(started);
            }
            Action::Machine(MachineAction::Enroll { machine }) => self.with_agent(machine)?.claimed = true,
            Action::Preflight(PreflightAction::Measure) => self.measure(desired)?,
            Action::Etcd(EtcdAction::InstallEtcd { machine, version }) => {
                self.claimed(machine)?.installed.insert(*version);
            }
            Action::Pki(PkiAction::IssueCertificate { machine, purpose, also }) => {
                let certificate = self.certificate(desired, machine, *purpose, *also)?;
                self.store_trust(purpose.side())?;
                self.claimed(machine)?.certificates.insert(*purpose, certificate);
            }
            Action::Etcd(EtcdAction::ConfigureEtcd { machine, digest, at, .. }) => {
                let address = at.or_else(|| desired.member(machine).map(|m| m.address));
                let configured = self.claimed(machine)?;
                configured.config = Some(digest.clone());
                configured.config_address = address;
                configured.quota = i64::try_from(desired.settings.quota.bytes()).unwrap_or(i64::MAX);
            }
            Action::Machine(MachineAction::SetFirewall { machine, digest }) => {
                self.claimed(machine)?.firewall = Some(digest.clone())
            }
            Action::Machine(MachineAction::SetAccess { machine, digest }) => {
                self.claimed(machine)?.access = Some(digest.clone())
            }
            Action::Machine(MachineAction::RenewAgent { machine }) => {
                let (now, agents) = (self.now, &desired.agents);
                let renewed = self.claimed(machine)?;
                if let Some(certificate) = &mut renewed.agent_certificate {
                    certificate.not_before = now;
                    certificate.not_after = agents.renewed_until(now);
                    certificate.issuer_key = agents.signer.clone().unwrap_or_else(|| certificate.issuer_key.clone());
                }
            }
            Action::Machine(MachineAction::Deliver { machine }) => self.claimed(machine)?.delivery = Delivery::Current,
            Action::Etcd(EtcdAction::StartEtcd { machine, version, data }) => {
                if matches!(data, StartData::Alone(_)) {
                    self.remembered(desired);
                }
                self.start(machine, *version, *data, warm_up)?;
            }
            Action::Etcd(EtcdAction::RestartEtcd { machine, version, cluster }) => {
                self.stop(machine, Some(*cluster))?;
                self.start(machine, *version, StartData::Of(*cluster), warm_up)?;
            }
            Action::Etcd(EtcdAction::RestartTogether { machines, cluster }) => {
                for machine in machines.keys() {
                    self.stop(machine, Some(*cluster))?;
                }
                for (machine, version) in machines {
                    self.start(machine, *version, StartData::Of(*cluster), warm_up)?;
                }
            }
            Action::Etcd(EtcdAction::StopEtcd { machine }) => self.stop(machine, None)?,
            Action::Etcd(EtcdAction::ClearData { machine, .. }) => {
                let cleared = self.claimed(machine)?;
                if cleared.process.state != ServiceState::Stopped {
                    return Err(Impossible(format!("etcd runs on {machine}")));
                }
                cleared.data = Data::Empty;
                cleared.had_data = false;
                (cleared.db_size, cleared.corrupt) = (0, false);
                cleared.last_version = None;
                cleared.process = Process::none();
            }
            Action::Recovery(RecoveryAction::RestoreData { machine, .. }) => self.restore(machine)?,
            Action::Restore(RestoreAction::PrepareRestore) => {
                let backup = FullName::new(self.now, 0);
                let restoration = restore::untried(desired, &self.observe(desired), backup, 0, self.now);
                restore::decide(&mut self.ledger, restoration);
            }
            Action::Restore(RestoreAction::RestoreBackup { machine, .. }) => self.restore_backup(machine)?,
            Action::Restore(RestoreAction::CompareRestored { machines }) => {
                let version =
                    self.ledger.restoration.as_ref().map_or(desired.version, |restoration| restoration.version);
                for machine in machines {
                    self.stop(machine, None)?;
                    let Data::Present { cluster, .. } = self.claimed(machine)?.data else {
                        return Err(Impossible(format!("{machine} was not restored")));
                    };
                    let pace = desired.pace(&self.ledger).unwrap_or_default();
                    let access = desired.client_access(&self.ledger);
                    let config = desired.member(machine).map(|m| desired.config(m, version, pace, access));
                    self.claimed(machine)?.config = config.map(|config| config.digest.clone());
                    self.start(machine, version, StartData::Of(cluster), warm_up)?;
                    // Machines that make backups by themselves are told of the history that begins.
                    self.claimed(machine)?.delivery = undelivered(desired);
                }
            }
            Action::Machine(MachineAction::RebuildMachine { machine }) => {
                let cluster = self.existing(machine)?.cluster();
                self.stop(machine, cluster)?;
                let rebuilt = self.existing(machine)?;
                if !rebuilt.shape.as_ref().is_some_and(Shape::keeps_data) {
                    *rebuilt = MachineModel::none();
                }
                (rebuilt.power, rebuilt.agent_up, rebuilt.shape) = (Power::Stopped, false, None);
            }
            Action::Machine(MachineAction::DeleteMachine { machine }) => {
                *self.existing(machine)? = MachineModel::none()
            }
            Action::Machine(MachineAction::MoveMachine { machine, address }) => {
                self.existing(machine)?.address = *address
            }
            Action::Member(MemberAction::AddLearner { peer_url, .. }) => {
                self.made += 1;
                let id = MemberId(hash(&format!("{peer_url} {}", self.made)));
                let url = peer_url.clone();
                let mut refused = None;
                self.agree(|agreed| {
                    if agreed.members.iter().any(|m| m.learner || m.peer_urls.contains(&url)) {
                        refused = Some("a learner is there already, or one of this address");
                        return;
                    }
                    let (name, peer_urls) = (String::new(), vec![url]);
                    agreed.members.push(ListedMember { id, name, peer_urls, learner: true });
                })?;
                refused.map_or(Ok(()), |why| Err(Impossible(why.to_owned())))?;
            }
            Action::Member(MemberAction::PromoteMember { machine, member }) => {
                if !self.machines.get(machine).is_some_and(|m| m.answers() && m.member() == Some(*member)) {
                    return Err(Impossible("the learner is not in sync with the leader".to_owned()));
                }
                self.agree(|agreed| {
                    agreed.members.iter_mut().filter(|m| m.id == *member).for_each(|m| m.learner = false)
                })?;
            }
            Action::Member(MemberAction::RemoveMember { member, .. }) => {
                self.agree(|agreed| agreed.members.retain(|m| m.id != *member))?;
                if self.leads == Some(*member) {
                    self.leads = None;
                }
            }
            Action::Member(MemberAction::UpdateMember { machine, member, peer_url, version, cluster }) => {
                let url = vec![peer_url.clone()];
                self.agree(|agreed| {
                    agreed.members.iter_mut().filter(|m| m.id == *member).for_each(|m| m.peer_urls.clone_from(&url));
                })?;
                self.stop(machine, Some(*cluster))?;
                let member = desired.member(machine);
                let pace = desired.pace(&self.ledger).unwrap_or_default();
                let access = desired.client_access(&self.ledger);
                let digest = member.map(|m| desired.config(m, *version, pace, access).digest.clone());
                let address = member.map(|m| m.address);
                let moved = self.claimed(machine)?;
                moved.config = digest;
                moved.config_address = address;
                self.start(machine, *version, StartData::Of(*cluster), warm_up)?;
            }
            Action::Member(MemberAction::MoveLeader { member, .. }) => self.leads = Some(*member),
            Action::Upkeep(UpkeepAction::Compact { revision }) => self.compact(*revision)?,
            Action::Upkeep(UpkeepAction::Defragment { machine }) => self.defragment(machine)?,
            Action::Upkeep(UpkeepAction::DisarmAlarm { alarm }) => self.disarm(*alarm)?,
            Action::Version(VersionAction::TakeSnapshot { version }) => {
                let leader = self.agreed.keys().find_map(|id| self.leader(*id)).ok_or_else(no_quorum)?;
                let from = self.machines.values().find(|m| m.member() == Some(leader)).and_then(|m| m.process.version);
                let (before, from) = (*version, from.unwrap_or(desired.version));
                let file = format!("{}-{}-{from}.db", desired.name, 1);
                self.ledger.snapshot = Some(SnapshotRecord { before, from, revision: 1, at: now, file });
            }
            Action::Version(VersionAction::EnableDowngrade { version }) => {
                let target = Line::of(*version);
                let mut refused = false;
                self.agree(|agreed| {
                    // etcd knows no other than the line below the one that it has agreed upon.
                    refused = agreed.line != Some(target.above());
                    if !refused {
                        agreed.downgrade = Some(target);
                    }
                })?;
                if refused {
                    return Err(Impossible("invalid downgrade target version".to_owned()));
                }
            }
            Action::Version(VersionAction::CancelDowngrade) => self.agree(|agreed| agreed.downgrade = None)?,
            Action::Auth(AuthAction::CreateRoot) => self.agree(|agreed| {
                agreed.root = Root::Ready;
                users::create_root(&mut agreed.access);
            })?,
            Action::Auth(AuthAction::ChangeRootPassword) => self.agree(|agreed| agreed.root = Root::Ready)?,
            Action::Auth(AuthAction::EnableAuth) => {
                let mut without_root = false;
                self.agree(|agreed| {
                    without_root = agreed.root != Root::Ready;
                    agreed.auth |= !without_root;
                })?;
                if without_root {
                    return Err(Impossible("there is no root user".to_owned()));
                }
            }
            Action::Auth(AuthAction::DisableAuth) => self.agree(|agreed| agreed.auth = false)?,
            Action::User(UserAction::SetRole { .. })
            | Action::User(UserAction::DeleteRole { .. })
            | Action::User(UserAction::SetUser { .. })
            | Action::User(UserAction::DeleteUser { .. }) => {
                let mut outcome = Ok(());
                self.agree(|agreed| outcome = users::change(&mut agreed.access, desired, action))?;
                outcome?;
            }
        }
        self.ledger.after(action);
        Ok(())
    }

    /// Remembers what a look at the world showed, as the engine does.
    pub fn remember(&mut self, desired: &Cluster) {
        let observed = self.observe(desired);
        self.ledger.learn(desired, &observed, self.now);
    }

    /// etcd hands its leadership over before it goes, and does not get it back by coming back.
    fn stop(&mut self, machine: &Name, cluster: Option<ClusterId>) -> Result<(), Impossible> {
        let stopped = self.claimed(machine)?;
        stopped.process = Process::none();
        let stopped = stopped.member();
        if self.leads == stopped {
            self.leads = cluster.and_then(|id| self.voters_answering(id).next());
        }
        Ok(())
    }

    /// The data of a member that etcd was once started on.
    pub(super) fn born(&self, desired: &Cluster, name: &Name, cluster: Option<ClusterId>) -> Data {
        let ids = Ids::of(&self.founders(desired));
        let listed = cluster.and_then(|id| self.agreed.get(&id)).into_iter().flat_map(|agreed| &agreed.members);
        let listed = listed.into_iter().find(|m| m.name == name.as_str()).map(|m| m.id);
        let member = listed.or_else(|| ids.members.get(name).copied());
        Data::Present { member: member.unwrap_or(MemberId(0)), cluster: cluster.unwrap_or(ids.cluster) }
    }

    /// What a cluster that formed once has agreed upon, where nobody can be asked: what apply sees to before it ends.
    pub(super) fn remembered(&mut self, desired: &Cluster) {
        let Some(cluster) = self.ledger.cluster else { return };
        let founders = self.founders(desired);
        self.agreed.entry(cluster).or_insert_with(|| Agreed {
            root: Root::Ready,
            auth: desired.auth != AuthMode::None,
            formed: true,
            access: users::settled(desired),
            ..Agreed::new(Ids::of(&founders).list(&founders))
        });
    }

    /// Those that the cluster was first started with, or will be.
    fn founders(&self, desired: &Cluster) -> BTreeMap<Name, String> {
        if self.ledger.founders.is_empty() {
            return desired.members.iter().map(|m| (m.name.clone(), m.peer_url())).collect();
        }
        self.ledger.founders.clone()
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
        also: Option<IpAddr>,
    ) -> Result<CertificateFacts, Impossible> {
        let trust = self.ledger.trust(purpose.side());
        let trust = trust.ok_or_else(|| Impossible("there is no authority".to_owned()))?;
        let member = desired.member(machine).ok_or_else(|| Impossible(format!("{machine} is not in the file")))?;
        let profile = member.profile(purpose).with(also);
        let authority = trust.signer(purpose.side(), profile.renew_before(), self.now);
        Ok(CertificateFacts {
            fingerprint: format!("{machine}-{}-{}", purpose.name(), self.now),
            not_before: self.now,
            not_after: later(self.now, profile.validity_ms).min(authority.not_after),
            names: profile.all_names(),
            subject: profile.common_name.clone(),
            issuer_key: authority.key.clone(),
            trust: Some(trust.digest()),
        })
    }

    fn start(&mut self, name: &Name, version: EtcdVersion, data: StartData, warm_up: u32) -> Result<(), Impossible> {
        let founders = self.ledger.founders.clone();
        let ids = Ids::of(&founders);
        let born = ids.members.get(name).copied();
        let joined = match data {
            StartData::Joining(cluster) => self.agreed.get(&cluster).and_then(|agreed| {
                let this = |m: &&ListedMember| self.ledger.name_of(m).as_ref() == Some(name);
                agreed.members.iter().find(this).map(|m| m.id)
            }),
            StartData::Empty | StartData::Of(_) | StartData::Alone(_) => None,
        };
        let ends = |(id, agreed): (&ClusterId, &Agreed)| (!agreed.starts(Some(version))).then_some(*id);
        let ends: BTreeSet<ClusterId> = self.agreed.iter().filter_map(ends).collect();
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
            (StartData::Joining(cluster), Data::Empty) => {
                let member = joined.ok_or_else(|| Impossible(format!("the cluster does not list {name}")))?;
                machine.data = Data::Present { member, cluster };
            }
            (StartData::Of(wanted) | StartData::Alone(wanted), Data::Present { cluster, .. }) if wanted == *cluster => {
            }
            (StartData::Empty | StartData::Joining(_), Data::Present { .. } | Data::Unreadable { .. })
            | (StartData::Of(_) | StartData::Alone(_), Data::Empty | Data::Present { .. } | Data::Unreadable { .. }) => {
                return Err(Impossible(format!("the data of {name} is not as expected")));
            }
        }
        let this = machine.member();
        let config = machine.config.clone();
        let (address, quota, trust) = (machine.config_address, machine.quota, machine.trust_on_disk());
        let starts = machine.cluster().is_none_or(|id| !ends.contains(&id));
        let (state, restarts) = if starts { (ServiceState::Running, 0) } else { (ServiceState::Backoff, 1) };
        machine.last_version = Some(version);
        let version = Some(version);
        machine.process =
            Process { state, config, version, restarts, warm_up, address, quota, trust, ..Process::none() };
        if let StartData::Alone(cluster) = data {
            let peer_urls = self.ledger.members.get(name).cloned().into_iter().collect();
            let id = this.unwrap_or(MemberId(0));
            let alone = ListedMember { id, name: name.to_string(), peer_urls, learner: false };
            self.agreed.get_mut(&cluster).into_iter().for_each(|agreed| agreed.members = vec![alone.clone()]);
        }
        if data == StartData::Empty {
            self.agreed.entry(ids.cluster).or_insert_with(|| Agreed::new(ids.list(&founders)));
        }
        Ok(())
    }

    /// A cluster of one, of what the last that had this machine for its member knew.
    fn restore(&mut self, name: &Name) -> Result<(), Impossible> {
        let recovery = self.ledger.recovery.clone().ok_or_else(|| Impossible("nothing to restore".to_owned()))?;
        recovery.member.ok_or_else(|| Impossible("nothing was put away".to_owned()))?;
        self.made += 1;
        let cluster = ClusterId(hash(&format!("{} {}", recovery.of, self.made)));
        let peer_urls: Vec<String> = self.ledger.members.get(name).cloned().into_iter().collect();
        let member = MemberId(hash(&format!("{peer_urls:?} {cluster}")));
        let machine = self.claimed(name)?;
        if machine.data != Data::Empty || machine.process.state != ServiceState::Stopped {
            return Err(Impossible(format!("the data of {name} is not as expected")));
        }
        machine.data = Data::Present { member, cluster };
        machine.had_data = true;
        let mut agreed = self.agreed.get(&recovery.of).cloned().ok_or_else(no_quorum)?;
        agreed.members = vec![ListedMember { id: member, name: name.to_string(), peer_urls, learner: false }];
        self.agreed.insert(cluster, agreed);
        self.agreed.remove(&recovery.of);
        Ok(())
    }

    fn restore_backup(&mut self, name: &Name) -> Result<(), Impossible> {
        let restoration = self.ledger.restoration.clone().ok_or_else(|| Impossible("nothing to restore".to_owned()))?;
        let mut ids = Ids::of(&restoration.members);
        ids.cluster = ClusterId(hash(&format!("{} {}", ids.cluster, restoration.since)));
        let list = ids.list(&restoration.members);
        let machine = self.claimed(name)?;
        if machine.data != Data::Empty || machine.process.state != ServiceState::Stopped {
            return Err(Impossible(format!("the data of {name} is not as expected")));
        }
        let member = list.iter().find(|member| member.name == name.as_str()).map(|member| member.id);
        let member = member.ok_or_else(|| Impossible(format!("{name} is no member of what is restored")))?;
        machine.data = Data::Present { member, cluster: ids.cluster };
        machine.had_data = true;
        // What it had agreed upon is in the backup.
        let before = restoration.old.iter().find_map(|old| self.agreed.get(old)).cloned();
        let before = before.unwrap_or_else(|| Agreed::new(Vec::new()));
        self.agreed.entry(ids.cluster).or_insert_with(|| Agreed { members: list, ..before });
        Ok(())
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

fn no_quorum() -> Impossible {
    Impossible("no quorum".to_owned())
}

/// A new machine was given nothing yet.
fn undelivered(desired: &Cluster) -> Delivery {
    if desired.delivers { Delivery::Outdated } else { Delivery::Current }
}

fn power_on(machine: &mut MachineModel) {
    machine.power = Power::Running;
    machine.agent_up = true;
    // The agent starts what ran before: etcd comes back with its machine.
    if machine.process.config.is_some() && machine.process.state == ServiceState::Stopped && machine.had_data {
        machine.process.state = ServiceState::Backoff;
    }
}

pub(super) fn later(now: Timestamp, ms: u64) -> Timestamp {
    let span = SignedDuration::from_millis(i64::try_from(ms).unwrap_or(i64::MAX));
    now.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// As in etcd, ids follow from the first members and the token: the same file forms the same cluster.
struct Ids {
    cluster: ClusterId,
    members: BTreeMap<Name, MemberId>,
}

impl Ids {
    fn of(founders: &BTreeMap<Name, String>) -> Self {
        let members: BTreeMap<Name, MemberId> =
            founders.iter().map(|(name, url)| (name.clone(), MemberId(hash(url)))).collect();
        let all: String = members.values().map(|id| format!("{id}")).collect();
        Self { cluster: ClusterId(hash(&all)), members }
    }

    fn list(&self, founders: &BTreeMap<Name, String>) -> Vec<ListedMember> {
        let entry = |(name, url): (&Name, &String)| {
            let id = *self.members.get(name)?;
            Some(ListedMember { id, name: name.to_string(), peer_urls: vec![url.clone()], learner: false })
        };
        founders.iter().filter_map(entry).collect()
    }
}

fn hash(text: &str) -> u64 {
    u64::from_str_radix(&render::digest(text)[..16], 16).unwrap_or(1)
}
