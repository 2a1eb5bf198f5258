//! A step on etcd where it runs, on the simulated world → its process and its data then.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::BTreeSet;

use super::effects::{Ids, Impossible};
use super::{Agreed, Process, World};
use crate::action::{EtcdAction, StartData};
use crate::desired::Stack;
use crate::observed::{ClusterId, Data, ListedMember, MemberId, ServiceState};
use crate::spec::{EtcdVersion, Name};

pub(super) fn act(world: &mut World, desired: &Stack, action: &EtcdAction, warm_up: u32) -> Result<(), Impossible> {
    match action {
        EtcdAction::InstallEtcd { machine, version } => {
            world.claimed(machine)?.installed.insert(*version);
        }
        EtcdAction::ConfigureEtcd { machine, version, digest, at, .. } => {
            let address = at.or_else(|| desired.etcd.member(machine).map(|m| m.address));
            world.note_closed(desired, machine, *version, address);
            let configured = world.claimed(machine)?;
            configured.config = Some(digest.clone());
            configured.config_address = address;
            configured.quota = i64::try_from(desired.etcd.settings.quota.bytes()).unwrap_or(i64::MAX);
        }
        EtcdAction::StartEtcd { machine, version, data } => {
            if matches!(data, StartData::Alone(_)) {
                world.remembered(desired);
            }
            world.start(machine, *version, *data, warm_up)?;
        }
        EtcdAction::RestartEtcd { machine, version, cluster } => {
            world.stop(machine, Some(*cluster))?;
            world.start(machine, *version, StartData::Of(*cluster), warm_up)?;
        }
        EtcdAction::RestartTogether { machines, cluster } => {
            for machine in machines.keys() {
                world.stop(machine, Some(*cluster))?;
            }
            for (machine, version) in machines {
                world.start(machine, *version, StartData::Of(*cluster), warm_up)?;
            }
        }
        EtcdAction::StopEtcd { machine } => world.stop(machine, None)?,
        EtcdAction::ClearData { machine, .. } => {
            let cleared = world.claimed(machine)?;
            if cleared.process.state != ServiceState::Stopped {
                return Err(Impossible(format!("etcd runs on {machine}")));
            }
            cleared.data = Data::Empty;
            cleared.had_data = false;
            (cleared.db_size, cleared.corrupt) = (0, false);
            cleared.last_version = None;
            cleared.process = Process::none();
        }
    }
    Ok(())
}

impl World {
    /// etcd transfers leadership before it stops, and a restart does not bring it back.
    pub(super) fn stop(&mut self, machine: &Name, cluster: Option<ClusterId>) -> Result<(), Impossible> {
        let stopped = self.claimed(machine)?;
        stopped.process = Process::none();
        let stopped = stopped.member();
        self.drop_connections_to(machine);
        if self.leads == stopped {
            self.leads = cluster.and_then(|id| self.voters_answering(id).next());
        }
        Ok(())
    }

    pub(super) fn start(
        &mut self,
        name: &Name,
        version: EtcdVersion,
        data: StartData,
        warm_up: u32,
    ) -> Result<(), Impossible> {
        let founders = self.ledger.etcd.founders.clone();
        let ids = Ids::of(&founders);
        let started = ids.members.get(name).copied();
        let joined = match data {
            StartData::Joining(cluster) => self.agreed.get(&cluster).and_then(|agreed| {
                let this = |m: &&ListedMember| self.ledger.etcd.name_of(m).as_ref() == Some(name);
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
                let member = started.ok_or_else(|| Impossible(format!("{name} is not in the file")))?;
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
            let peer_urls = self.ledger.etcd.members.get(name).cloned().into_iter().collect();
            let id = this.unwrap_or(MemberId(0));
            let alone = ListedMember { id, name: name.to_string(), peer_urls, learner: false };
            self.agreed.get_mut(&cluster).into_iter().for_each(|agreed| agreed.members = vec![alone.clone()]);
        }
        if data == StartData::Empty {
            self.agreed.entry(ids.cluster).or_insert_with(|| Agreed::new(ids.list(&founders)));
        }
        Ok(())
    }
}
