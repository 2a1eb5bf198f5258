//! Machines: make, start, take into the fleet.

use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use raftsman_api::claim::JoinToken;
use raftsman_api::tls::machine_name;
use raftsman_api::v1::{DeliverRequest, DeliveredFile, FinishClaimRequest, ReportRequest, SetFirewallRequest};
use raftsman_core::boot::Boot;
use raftsman_core::desired::{AGENT_PORT, Config};
use raftsman_core::render::delivery::Delivered;
use raftsman_core::spec::{AuthMode, Name, Provider};
use raftsman_providers::{Artifact, MachineOrder};
use secrecy::{ExposeSecret, SecretString};

use super::pki::certify_client;
use super::{ActError, Hands};
use crate::delivery::Parcel;
use crate::fleet::Fleet;
use crate::observe::token_name;
use crate::pki::{LeafProfile, Usages};

/// How long a new machine waits to be taken into the fleet; later it refuses for ever.
const JOIN_WINDOW: SignedDuration = SignedDuration::from_hours(1);
/// How long an agent's own certificate is valid.
const AGENT_VALIDITY: std::time::Duration = std::time::Duration::from_secs(3650 * 24 * 3600);

/// What a new machine is told. Its token is in the state before the machine is made: a killed run finds it again.
pub fn boot(fleet: &Fleet, machine: &Name, address: IpAddr, now: Timestamp) -> Result<Boot, ActError> {
    let name = token_name(machine);
    let token = match fleet.secrets.get(&name)? {
        Some(token) => token,
        None => {
            let token = SecretString::from(JoinToken::generate()?.to_hex());
            fleet.secrets.put(&name, &token)?;
            token
        }
    };
    Ok(Boot {
        fleet_id: fleet.id().to_owned(),
        fleet: fleet.spec.fleet.to_string(),
        machine: machine.to_string(),
        address,
        agent_port: AGENT_PORT,
        fleet_ca_pem: fleet.authority.certificate_pem().to_owned(),
        join_token: Some(token.expose_secret().to_owned()),
        // Nobody else can reach a machine on this computer, and an interrupted apply may be taken up next week.
        join_deadline: (fleet.spec.machines.provider != Provider::Local).then(|| now + JOIN_WINDOW),
    })
}

impl Hands<'_> {
    pub(super) async fn create_machine(self, machine: &Name, now: Timestamp) -> Result<(), ActError> {
        let cluster = self.cluster();
        let fleet = &cluster.fleet;
        let member = self.member(machine)?;
        let source = &cluster.desired.source;
        fleet.artifacts.fetch(source, cluster.desired.version).await?;
        let etcd = fleet.artifacts.locate(source, cluster.desired.version, fleet.setting.base())?;
        // A person may have installed its agent: it proves that.
        let joined = fleet.spec.machines.provider == Provider::Hosts
            && fleet.secrets.get(&token_name(machine))?.is_some()
            && self.links(machine)?.agent.prove(fleet).await.is_ok();
        let order = MachineOrder {
            name: machine.to_string(),
            address: member.address,
            agent_port: AGENT_PORT,
            cluster: cluster.desired.name.to_string(),
            members: cluster.desired.neighbours(&cluster.ledger()).into_iter().collect(),
            boot: boot(fleet, machine, member.address, now)?,
            artifacts: vec![Artifact { version: etcd.version.to_string(), path: etcd.path }],
            joined,
        };
        fleet.provider.create(&order).await?;
        Ok(())
    }

    pub(super) async fn start_machine(self, machine: &Name, now: Timestamp) -> Result<(), ActError> {
        self.links(machine)?.agent.hang_up().await;
        let provider = &self.cluster().fleet.provider;
        // A killed run may have left it half made: then it is ordered again, which completes it.
        if provider.machine(machine.as_str()).await?.is_some_and(|found| !found.finished) {
            return self.create_machine(machine, now).await;
        }
        Ok(provider.start(machine.as_str()).await?)
    }

    pub(super) async fn delete_machine(self, machine: &Name) -> Result<(), ActError> {
        if let Ok(links) = self.links(machine) {
            links.agent.hang_up().await;
        }
        Ok(self.cluster().fleet.give_back(machine.as_str(), self.generation).await?)
    }

    /// etcd ends well first: a leader hands over, and nothing of its data is in flight.
    pub(super) async fn rebuild_machine(self, machine: &Name) -> Result<(), ActError> {
        self.stop_etcd(machine).await?;
        self.links(machine)?.agent.hang_up().await;
        Ok(self.cluster().fleet.provider.dismantle(machine.as_str()).await?)
    }

    pub(super) async fn move_machine(self, machine: &Name, address: IpAddr) -> Result<(), ActError> {
        self.links(machine)?.agent.hang_up().await;
        Ok(self.cluster().fleet.provider.readdress(machine.as_str(), address).await?)
    }

    pub(super) async fn set_firewall(self, machine: &Name) -> Result<(), ActError> {
        let cluster = self.cluster();
        let Some(Config { text, digest }) = cluster.desired.firewall(&cluster.ledger()) else { return Ok(()) };
        let request = SetFirewallRequest { rules: text, digest };
        self.agent(machine).await?.set_firewall(self.stamped(request)).await?;
        Ok(())
    }

    pub(super) async fn deliver(self, machine: &Name) -> Result<(), ActError> {
        let cluster = self.cluster();
        let Parcel { files, stamp, backups } = Parcel::pack(cluster, machine).map_err(Box::new)?;
        let mut agent = self.agent(machine).await?;
        let had = agent.report(ReportRequest { into_data: false }).await?.into_inner();
        if had.delivery_stamp != stamp {
            let file = |file: Delivered| DeliveredFile { name: file.what.name().to_owned(), contents: file.contents };
            let request = DeliverRequest { files: files.into_iter().map(file).collect(), stamp };
            agent.deliver(self.stamped(request)).await?;
        }
        if backups.order.is_some() && cluster.auth() != AuthMode::Password {
            certify_client(cluster, &self.links(machine)?.agent, self.generation).await?;
        }
        if backups.drill_every_ms > 0 {
            self.install_tool(machine, cluster.desired.version).await?;
        }
        if backups.order.is_some() || had.backups.is_some() {
            agent.set_backups(self.stamped(backups)).await?;
        }
        Ok(())
    }

    pub(super) async fn enroll(self, machine: &Name, now: Timestamp) -> Result<(), ActError> {
        let fleet = &self.cluster().fleet;
        let member = self.member(machine)?;
        let links = self.links(machine)?;
        let mut proven = match links.agent.prove(fleet).await {
            // It gets new boot data, and waits anew.
            Err(late) if late.is_too_late() => {
                self.create_machine(machine, now).await?;
                links.agent.prove(fleet).await?
            }
            proven => proven?,
        };
        let profile = LeafProfile {
            common_name: machine.to_string(),
            organization: None,
            dns_names: vec![machine_name(machine.as_str(), fleet.id())],
            addresses: vec![member.address],
            usages: Usages::Server,
            validity: AGENT_VALIDITY,
        };
        let chain_pem = fleet.authority.sign_csr(&proven.reply.csr_der, &profile, now)?;
        proven.client.finish_claim(FinishClaimRequest { chain_pem }).await?;
        links.agent.hang_up().await;
        fleet.secrets.delete(&token_name(machine))?;
        Ok(())
    }
}
