//! Machines: create, start, enroll into the fleet.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use raftsman_api::tls::machine_name;
use raftsman_api::v1::{
    DeliverRequest, DeliveredFile, FinishClaimRequest, Purpose, ReportRequest, SetAccessRequest, SetFirewallRequest,
};
use raftsman_core::action::MachineAction;
use raftsman_core::boot::Boot;
use raftsman_core::desired::{AGENT_PORT, AGENT_VALIDITY, Config, Stack};
use raftsman_core::observed::Ledger;
use raftsman_core::render::delivery::Delivered;
use raftsman_core::spec::{Name, Provider};
use raftsman_providers::{Artifact, MachineOrder};

use super::pki::swap;
use super::{ActError, Executor};
use crate::delivery::Payload;
use crate::fleet::Fleet;
use crate::pki::{LeafProfile, Usages};
use crate::store::Lock;
use crate::tokens::{JOIN_WINDOW, KeptToken, token_name};

/// The boot data of a new machine. Its token is in the state before the machine is made, so a killed run finds it
/// again.
pub async fn boot(
    fleet: &Fleet,
    lock: &Lock,
    machine: &Name,
    address: IpAddr,
    now: Timestamp,
) -> Result<Boot, ActError> {
    // No other computer reaches a machine on this one, and the operator may continue an interrupted apply a week later.
    let until = (fleet.spec.machines.provider != Provider::Local).then(|| now + JOIN_WINDOW);
    let kept = KeptToken::of_new_machine(&fleet.secrets, lock, machine, until, now).await?;
    Ok(boot_data(fleet, machine, address, &kept))
}

/// The boot data of a machine that joins with this token.
pub fn boot_data(fleet: &Fleet, machine: &Name, address: IpAddr, kept: &KeptToken) -> Boot {
    Boot {
        fleet_id: fleet.id().to_owned(),
        fleet: fleet.spec.fleet.to_string(),
        machine: machine.to_string(),
        address,
        agent_port: AGENT_PORT,
        fleet_ca_pem: fleet.trust_pem.clone(),
        join_token: Some(kept.token.to_hex()),
        join_deadline: kept.until,
    }
}

/// What is written in the certificate of a machine's agent.
fn agent_profile(fleet: &Fleet, machine: &Name, address: IpAddr) -> LeafProfile {
    LeafProfile {
        common_name: machine.to_string(),
        organization: None,
        dns_names: vec![machine_name(machine.as_str(), fleet.id())],
        addresses: vec![address],
        usages: Usages::Server,
        validity: AGENT_VALIDITY.unsigned_abs(),
    }
}

/// The packages of what runs on this machine, beside those that every machine has.
fn packages(desired: &Stack, machine: &Name) -> Vec<String> {
    let instance = desired.instance(machine).into_iter().flat_map(|(_, instance)| instance.packages());
    let node = desired.node(machine).into_iter().flat_map(|(cluster, _)| cluster.packages());
    instance.map(str::to_owned).chain(node).collect()
}

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &MachineAction, now: Timestamp) -> Result<(), ActError> {
    match action {
        MachineAction::AssignAddress { machine } => executor.assign_address(machine).await,
        MachineAction::CreateMachine { machine } => executor.create_machine(machine, now).await,
        MachineAction::StartMachine { machine } => executor.start_machine(machine, now).await,
        MachineAction::Enroll { machine } => executor.enroll(machine, now).await,
        MachineAction::SetFirewall { machine, .. } => executor.set_firewall(machine).await,
        MachineAction::SetAccess { machine, .. } => executor.set_access(machine).await,
        MachineAction::RenewAgent { machine } => executor.renew_agent(machine, now).await,
        MachineAction::Deliver { machine } => executor.deliver(machine).await,
        MachineAction::MoveMachine { machine, address } => executor.move_machine(machine, *address).await,
        MachineAction::RebuildMachine { machine } => executor.rebuild_machine(machine).await,
        MachineAction::DeleteMachine { machine } => executor.delete_machine(machine).await,
    }
}

impl Executor<'_> {
    /// The address is in the state before a machine is made with it.
    async fn assign_address(self, machine: &Name) -> Result<(), ActError> {
        let cluster = self.cluster();
        let fleet = &cluster.fleet;
        let wanted = cluster.desired.machine(machine).ok_or_else(|| ActError::NoSuchMachine(machine.clone()))?;
        // One at a time: what is assigned to one machine is taken for the next, also of another cluster.
        let mut taken = fleet.addresses.lock().await;
        let taken = match &mut *taken {
            Some(taken) => taken,
            unread @ None => unread.insert(fleet.addresses_in_use().await?),
        };
        let zone = wanted.place.zone.as_ref();
        let address = fleet.provider.assign(machine.as_str(), zone, &wanted.settings, taken).await?;
        taken.insert(address);
        let recorded = |ledger: &mut Ledger| ledger.machines.addresses.extend([(machine.clone(), address)]);
        Ok(cluster.remember(self.lock, recorded).await?)
    }

    async fn create_machine(self, machine: &Name, now: Timestamp) -> Result<(), ActError> {
        let cluster = self.cluster();
        let fleet = &cluster.fleet;
        let (address, source) = (self.address(machine)?, &cluster.desired.etcd.source);
        let mut artifacts = Vec::new();
        // No etcd runs on a machine that a balancer has to itself.
        if cluster.desired.etcd.member(machine).is_some() {
            fleet.artifacts.fetch(source, cluster.desired.etcd.version).await?;
            let etcd = fleet.artifacts.found(source, cluster.desired.etcd.version, fleet.context.base()).await?;
            artifacts.push(Artifact { version: etcd.version.to_string(), path: etcd.path });
        }
        // An operator may have installed its agent manually: the agent proves that with its token.
        let joined = fleet.spec.machines.provider == Provider::Hosts
            && fleet.secrets.get(&token_name(machine)).await?.is_some()
            && self.link(machine)?.prove(fleet).await.is_ok();
        let order = MachineOrder {
            name: machine.to_string(),
            address,
            agent_port: AGENT_PORT,
            cluster: cluster.desired.name.to_string(),
            members: cluster.desired.etcd.neighbours(&cluster.ledger()).into_iter().collect(),
            boot: boot(fleet, self.lock, machine, address, now).await?,
            zone: cluster.desired.machine(machine).and_then(|machine| machine.place.zone.clone()),
            machines: cluster.desired.machine(machine).map(|machine| Arc::clone(&machine.settings)),
            artifacts,
            packages: packages(&cluster.desired, machine),
            joined,
        };
        fleet.provider.create(&order).await?;
        Ok(())
    }

    async fn start_machine(self, machine: &Name, now: Timestamp) -> Result<(), ActError> {
        self.link(machine)?.hang_up().await;
        let provider = &self.cluster().fleet.provider;
        // A killed run may have left it incomplete: ordering it again completes it.
        if provider.machine(machine.as_str()).await?.is_some_and(|found| !found.finished) {
            return self.create_machine(machine, now).await;
        }
        Ok(provider.start(machine.as_str()).await?)
    }

    async fn delete_machine(self, machine: &Name) -> Result<(), ActError> {
        if let Ok(link) = self.link(machine) {
            link.hang_up().await;
        }
        let seen = self.observer.machine_id(machine);
        Ok(self.cluster().fleet.give_back(self.lock, machine.as_str(), seen.as_deref()).await?)
    }

    /// Stops etcd first: a leader transfers its leadership, and no write is in flight.
    async fn rebuild_machine(self, machine: &Name) -> Result<(), ActError> {
        let seen = self.observer.machine_id(machine);
        self.cluster().fleet.provider.is_the_same(machine.as_str(), seen.as_deref()).await?;
        if self.observer.etcd(machine).is_some() {
            self.pause_etcd(machine).await?;
        }
        self.link(machine)?.hang_up().await;
        Ok(self.cluster().fleet.provider.dismantle(machine.as_str(), seen.as_deref()).await?)
    }

    async fn move_machine(self, machine: &Name, address: IpAddr) -> Result<(), ActError> {
        self.link(machine)?.hang_up().await;
        Ok(self.cluster().fleet.provider.readdress(machine.as_str(), address).await?)
    }

    async fn set_firewall(self, machine: &Name) -> Result<(), ActError> {
        let cluster = self.cluster();
        let Some(Config { text, digest }) = cluster.desired.firewall(machine, &cluster.ledger()) else { return Ok(()) };
        let request = SetFirewallRequest { rules: text, digest };
        self.agent(machine).await?.set_firewall(self.stamped(request)).await?;
        Ok(())
    }

    async fn deliver(self, machine: &Name) -> Result<(), ActError> {
        let cluster = self.cluster();
        let Payload { files, stamp } = Payload::pack(cluster, self.lock, machine).await.map_err(Box::new)?;
        let mut agent = self.agent(machine).await?;
        let had = agent.report(ReportRequest { into_data: false }).await?.into_inner();
        if had.delivery_stamp != stamp {
            let file = |file: Delivered| DeliveredFile { name: file.what.name().to_owned(), contents: file.contents };
            let request = DeliverRequest { files: files.into_iter().map(file).collect(), stamp };
            agent.deliver(self.stamped(request)).await?;
        }
        Ok(())
    }

    async fn set_access(self, machine: &Name) -> Result<(), ActError> {
        let fleet = &self.cluster().fleet;
        let request = SetAccessRequest {
            trust_pem: fleet.trust_pem.clone(),
            revoked: fleet.access.revoked.iter().cloned().collect(),
        };
        self.agent(machine).await?.set_access(self.stamped(request)).await?;
        Ok(())
    }

    async fn renew_agent(self, machine: &Name, now: Timestamp) -> Result<(), ActError> {
        let fleet = &self.cluster().fleet;
        let profile = agent_profile(fleet, machine, self.address(machine)?);
        let sign = |csr: &[u8]| fleet.authority.sign_csr(csr, &profile, now);
        swap(self.agent(machine).await?, self.generation(), Purpose::Agent, String::new(), sign).await?;
        // The next connection sees the new certificate.
        self.link(machine)?.hang_up().await;
        Ok(())
    }

    async fn enroll(self, machine: &Name, now: Timestamp) -> Result<(), ActError> {
        let fleet = &self.cluster().fleet;
        let address = self.address(machine)?;
        let link = self.link(machine)?;
        let mut proven = match link.prove(fleet).await {
            // It gets new boot data, and waits for a claim again.
            Err(late) if late.is_too_late() => {
                self.create_machine(machine, now).await?;
                link.prove(fleet).await?
            }
            proven => proven?,
        };
        let profile = agent_profile(fleet, machine, address);
        let chain_pem = fleet.authority.sign_csr(&proven.reply.csr_der, &profile, now)?;
        proven.client.finish_claim(FinishClaimRequest { chain_pem }).await?;
        link.hang_up().await;
        fleet.secrets.delete(self.lock, &token_name(machine)).await?;
        Ok(())
    }
}
