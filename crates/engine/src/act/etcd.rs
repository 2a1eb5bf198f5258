//! etcd on a machine: install, configure, start, restart.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use raftsman_api::v1::install_etcd_request::Part;
use raftsman_api::v1::{
    ClearDataRequest, ConfigureEtcdRequest, DataState, HandshakeRequest, InstallEtcdHead, InstallEtcdRequest,
    PinBinariesRequest, RestartEtcdRequest, StartEtcdRequest, StopEtcdRequest, Target,
};
use raftsman_core::action::{Action, EtcdAction, StartData};
use raftsman_core::desired::ClientAccess;
use raftsman_core::observed::{ClusterId, MemberId};
use raftsman_core::render;
use raftsman_core::spec::{EtcdVersion, Name};

use super::{ActError, Executor};
use crate::artifacts::Artifact;

/// etcd hands its leadership over and closes its files in well under this time.
const STOP_GRACE_SECONDS: u32 = 20;
/// A machine whose etcd was stopped for the machine's removal is gone well within this time.
const RESUME_SECONDS: u32 = 60;
/// The others do not wait for a member that takes longer than this to serve.
const BOOTSTRAP_WAIT: Duration = Duration::from_secs(1);
/// gRPC's messages are limited to 4 MiB.
pub(super) const CHUNK: usize = 1 << 20;

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &EtcdAction) -> Result<(), ActError> {
    match action {
        EtcdAction::InstallEtcd { machine, version } => executor.install_etcd(machine, *version).await,
        EtcdAction::ConfigureEtcd { machine, version, at, digest } => {
            executor.configure_etcd(machine, *version, *at, Some(digest)).await
        }
        EtcdAction::StartEtcd { machine, version, data } => executor.start_etcd(machine, *version, *data).await,
        EtcdAction::RestartEtcd { machine, version, cluster } => {
            executor.restart_etcd(machine, *version, *cluster).await
        }
        EtcdAction::RestartTogether { machines, cluster } => executor.restart_together(machines, *cluster).await,
        EtcdAction::StopEtcd { machine } => executor.stop_etcd(machine).await,
        EtcdAction::ClearData { machine, member } => executor.clear_data(machine, *member).await,
    }
}

impl Executor<'_> {
    async fn install_etcd(self, machine: &Name, version: EtcdVersion) -> Result<(), ActError> {
        let cluster = self.cluster();
        let fleet = &cluster.fleet;
        fleet.artifacts.fetch(&cluster.desired.etcd.source, version).await?;
        let artifact = fleet.artifacts.found(&cluster.desired.etcd.source, version, fleet.context.base()).await?;
        self.install(machine, &artifact, "").await
    }

    /// Puts a program on the machine, unless it is there.
    pub(super) async fn install(self, machine: &Name, artifact: &Artifact, program: &str) -> Result<(), ActError> {
        let (version, sha256) = (artifact.version.to_string(), artifact.sha256.clone());
        let head = InstallEtcdHead { version, sha256, program: program.to_owned() };
        let mut client = self.agent(machine).await?;
        // From now on the agent installs and runs these bytes and no others under this name.
        let pins = PinBinariesRequest { binaries: vec![head.clone()] };
        client.pin_binaries(self.stamped(pins)).await?;
        let head = InstallEtcdRequest { part: Some(Part::Head(head)) };
        // Most machines carry the binary already: only where one does not are 25 MB sent.
        let asked = client.install_etcd(self.stamped(futures::stream::iter([head.clone()]))).await?;
        if asked.into_inner().bytes_needed {
            let bytes = tokio::fs::read(&artifact.path).await;
            let bytes = bytes.map_err(|source| ActError::Read { path: artifact.path.clone(), source })?;
            let chunks: Vec<InstallEtcdRequest> = bytes
                .chunks(CHUNK)
                .map(|chunk| InstallEtcdRequest { part: Some(Part::Chunk(chunk.to_vec())) })
                .collect();
            let parts = futures::stream::iter(std::iter::once(head).chain(chunks));
            client.install_etcd(self.stamped(parts)).await?;
        }
        Ok(())
    }

    /// Writes the configuration that was planned; without a digest, the one for the clients that the cluster accepts now.
    pub(super) async fn configure_etcd(
        self,
        machine: &Name,
        version: EtcdVersion,
        at: Option<IpAddr>,
        digest: Option<&String>,
    ) -> Result<(), ActError> {
        let member = self.member(machine)?;
        let desired = &self.cluster().desired;
        let ledger = self.cluster().ledger();
        let timers = desired.etcd.timers(&ledger).ok_or(ActError::NotMeasured)?;
        let address = at.unwrap_or(member.address);
        let config = |access| desired.etcd.config_at(member, version, address, timers, access).into_owned();
        let config = match digest {
            None => config(desired.etcd.client_access(&ledger)),
            // One that joins is open from the start, before the others are.
            Some(digest) => {
                let mut planned = [ClientAccess::Open, ClientAccess::Closed].into_iter().map(config);
                let planned = planned.find(|config| config.digest == *digest);
                planned.ok_or_else(|| ActError::OtherConfiguration(machine.clone()))?
            }
        };
        let request = ConfigureEtcdRequest { config: config.text, digest: config.digest };
        self.agent(machine).await?.configure_etcd(self.stamped(request)).await?;
        Ok(())
    }

    pub(super) async fn start_etcd(
        self,
        machine: &Name,
        version: EtcdVersion,
        data: StartData,
    ) -> Result<(), ActError> {
        let force_new_cluster = matches!(data, StartData::Alone(_));
        let (expected_data, expected_cluster_id, bootstrap) = match data {
            StartData::Empty => (DataState::Empty, 0, self.first_bootstrap()),
            StartData::Joining(_) => (DataState::Empty, 0, self.late_bootstrap(machine).await?),
            StartData::Of(ClusterId(id)) | StartData::Alone(ClusterId(id)) => (DataState::Present, id, String::new()),
        };
        let request = StartEtcdRequest {
            version: version.to_string(),
            expected_data: expected_data.into(),
            expected_cluster_id,
            bootstrap,
            force_new_cluster,
        };
        self.agent(machine).await?.start_etcd(self.stamped(request)).await?;
        Ok(())
    }

    pub(super) async fn restart_etcd(
        self,
        machine: &Name,
        version: EtcdVersion,
        cluster: ClusterId,
    ) -> Result<(), ActError> {
        // One order: its agent starts etcd again even if this command ends in between.
        let request = RestartEtcdRequest {
            version: version.to_string(),
            expected_cluster_id: cluster.0,
            grace_seconds: STOP_GRACE_SECONDS,
        };
        self.agent(machine).await?.restart_etcd(self.stamped(request)).await?;
        Ok(())
    }

    /// One right after the other, whether or not there is a majority meanwhile.
    async fn restart_together(
        self,
        machines: &BTreeMap<Name, EtcdVersion>,
        cluster: ClusterId,
    ) -> Result<(), ActError> {
        // A leader that stops together with all others waits seven seconds for a successor. A member that starts asks
        // the others whether they hold the same data, and waits as long for one that listens and does not serve yet.
        for (machine, version) in machines {
            self.restart_etcd(machine, *version, cluster).await?;
            // Correctness does not depend on it: it only saves time.
            let _ = tokio::time::timeout(BOOTSTRAP_WAIT, self.answers_members(machine)).await;
        }
        Ok(())
    }

    /// `initial-cluster` of the members that bootstrap the cluster.
    fn first_bootstrap(self) -> String {
        let ledger = self.cluster().ledger();
        let founders = ledger.etcd.founders.iter().map(|(name, url)| (name.as_str(), url.as_str()));
        render::etcd::bootstrap(founders, &self.cluster().desired.etcd.token, false)
    }

    /// `initial-cluster` of a member that joins: every member that the cluster lists, and the new one under its future
    /// name.
    async fn late_bootstrap(self, machine: &Name) -> Result<String, ActError> {
        let ledger = self.cluster().ledger();
        let list = self.member_list(Timestamp::now()).await?;
        let named = list.iter().filter_map(|m| Some((ledger.etcd.name_of(m)?, m.peer_urls.first()?)));
        let named: Vec<(Name, &String)> = named.collect();
        if !named.iter().any(|(name, _)| name == machine) {
            return Err(ActError::NotListed(machine.clone()));
        }
        let all = named.iter().map(|(name, url)| (name.as_str(), url.as_str()));
        Ok(render::etcd::bootstrap(all, &self.cluster().desired.etcd.token, true))
    }

    pub(super) async fn stop_etcd(self, machine: &Name) -> Result<(), ActError> {
        let request = StopEtcdRequest { grace_seconds: STOP_GRACE_SECONDS, resume_after_seconds: 0 };
        self.agent(machine).await?.stop_etcd(self.stamped(request)).await?;
        Ok(())
    }

    /// Stops etcd on a machine that is about to be removed. Its agent starts etcd again if the machine is still there
    /// after a while, because this command may have ended in between.
    pub(super) async fn pause_etcd(self, machine: &Name) -> Result<(), ActError> {
        let request = StopEtcdRequest { grace_seconds: STOP_GRACE_SECONDS, resume_after_seconds: RESUME_SECONDS };
        self.agent(machine).await?.stop_etcd(self.stamped(request)).await?;
        Ok(())
    }

    async fn clear_data(self, machine: &Name, member: Option<MemberId>) -> Result<(), ActError> {
        let request = ClearDataRequest { expected_member_id: member.map_or(0, |id| id.0) };
        self.agent(machine).await?.clear_data(self.stamped(request)).await?;
        Ok(())
    }

    /// Waits until the member that was just started answers the one that starts next, or until a limit. The follower's
    /// machine asks, because a firewall may block other sources.
    pub async fn await_peer_service(self, started: &Action, follower: &Action) {
        let Some(member) = started.machine().and_then(|name| self.member(name).ok()) else { return };
        let Some(follower) = follower.machine() else { return };
        let target = Target { name: member.name.to_string(), address: member.address.to_string() };
        let served = async {
            let Ok(mut agent) = self.agent(follower).await else { return };
            let request = HandshakeRequest { targets: vec![target] };
            while let Ok(reply) = agent.handshake(request.clone()).await {
                if reply.into_inner().results.iter().all(|result| result.error.is_empty()) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // Correctness does not depend on it: it only saves time.
        let _ = tokio::time::timeout(BOOTSTRAP_WAIT, served).await;
    }
}
