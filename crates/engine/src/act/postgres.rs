//! A step on a node of a PostgreSQL cluster → Patroni and its PostgreSQL, through the node's agent.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use jiff::Timestamp;
use raftsman_api::v1::install_program_request::Part;
use raftsman_api::v1::restart_program_request::Expected as RestartExpected;
use raftsman_api::v1::start_program_request::Expected as StartExpected;
use raftsman_api::v1::{
    self, ConfigurePatroniRequest, DataState, InstallEtcdHead, InstallProgramHead, InstallProgramRequest,
    PatroniSetting, PinBinariesRequest, PostgresExpected, PostgresRole, Program, ReinitializeNodeRequest,
    ReloadProgramRequest, RestartPostgresRequest, RestartProgramRequest, SetPatroniRequest, StartProgramRequest,
    StopProgramRequest, SwitchOverRequest,
};
use raftsman_core::action::{PgStart, PostgresAction};
use raftsman_core::desired::{Node, Postgres, UserSlot};
use raftsman_core::observed::{NodePurpose, NodeRole, SystemId, TrustDomain};
use raftsman_core::spec::{Name, PatroniVersion};
use secrecy::ExposeSecret as _;

use super::etcd::CHUNK;
use super::pki::swap;
use super::{ActError, Executor};
use crate::stack::signers_profile;

/// PostgreSQL writes its memory to the disk before it ends. It is killed after that, and recovers from its log.
const STOP_GRACE_SECONDS: u32 = 300;
/// What agents call the bundle among their pinned binaries.
const BUNDLE: &str = "patroni";

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &PostgresAction, now: Timestamp) -> Result<(), ActError> {
    match action {
        PostgresAction::MakePostgresCa { cluster } => {
            let cluster = executor.postgres(cluster)?;
            Ok(executor.cluster().make_postgres_authority(executor.lock, cluster, now).await?)
        }
        PostgresAction::IssueNodeCertificate { machine, purpose } => {
            executor.issue_node_certificate(machine, *purpose, now).await
        }
        PostgresAction::InstallPatroni { machine, version } => executor.install_patroni(machine, *version).await,
        PostgresAction::ConfigurePatroni { machine, user, hosts, digest, trust } => {
            executor.configure_patroni(machine, *user, hosts, (digest, trust)).await
        }
        PostgresAction::StartPatroni { machine, data } => executor.start_patroni(machine, *data).await,
        PostgresAction::ReloadPatroni { machine } => {
            let request = ReloadProgramRequest { program: Program::Patroni.into() };
            executor.agent(machine).await?.reload_program(executor.stamped(request)).await?;
            Ok(())
        }
        PostgresAction::RestartPatroni { machine, version } => executor.restart_patroni(machine, *version).await,
        PostgresAction::RestartPostgres { machine, role } => {
            let request = RestartPostgresRequest { role: wire_role(*role).into() };
            executor.agent(machine).await?.restart_postgres(executor.stamped(request)).await?;
            Ok(())
        }
        PostgresAction::ReinitializeNode { machine, system: SystemId(system_id) } => {
            let request = ReinitializeNodeRequest { system_id: *system_id };
            executor.agent(machine).await?.reinitialize_node(executor.stamped(request)).await?;
            Ok(())
        }
        PostgresAction::StopPatroni { machine } => {
            let request = StopProgramRequest {
                program: Program::Patroni.into(),
                grace_seconds: STOP_GRACE_SECONDS,
                resume_after_seconds: 0,
            };
            executor.agent(machine).await?.stop_program(executor.stamped(request)).await?;
            Ok(())
        }
        PostgresAction::Switchover { cluster, from, to } => executor.switch_over(cluster, from, to).await,
        PostgresAction::SetPatroni { cluster, set } => executor.set_patroni(cluster, set).await,
        PostgresAction::SetPostgresRole { cluster, role, account } => {
            executor.set_postgres_role(cluster, role, *account).await
        }
        PostgresAction::SetNodePassword { cluster, role } => executor.set_node_password(cluster, role).await,
        PostgresAction::DropPostgresRole { cluster, role } => executor.drop_postgres_role(cluster, role).await,
        PostgresAction::SetDatabase { cluster, database } => executor.set_database(cluster, database).await,
    }
}

impl Executor<'_> {
    pub(super) fn postgres(&self, cluster: &Name) -> Result<&Postgres, ActError> {
        self.cluster().desired.postgres(cluster).ok_or_else(|| ActError::NoSuchPostgres(cluster.clone()))
    }

    fn node(&self, machine: &Name) -> Result<(&Postgres, &Node), ActError> {
        self.cluster().desired.node(machine).ok_or_else(|| ActError::NoSuchNode(machine.clone()))
    }

    /// The name that Patroni has for the node on this machine: one that is not in the file any more has its machine's.
    fn patroni_name(&self, machine: &Name) -> String {
        let node = self.cluster().desired.node(machine);
        node.map_or_else(|| machine.to_string(), |(_, node)| node.patroni_name.clone())
    }

    /// Whose data the cluster has, as it was seen.
    fn system(&self, cluster: &Postgres) -> u64 {
        self.cluster().ledger().of_postgres(&cluster.name).system.map_or(0, |SystemId(system)| system)
    }

    async fn issue_node_certificate(
        self,
        machine: &Name,
        purpose: NodePurpose,
        now: Timestamp,
    ) -> Result<(), ActError> {
        let (cluster, node) = self.node(machine)?;
        let (authority, trust) = self.cluster().postgres_authority(&cluster.name).await?;
        let profile = signers_profile(node.profile(purpose));
        let sign = |csr: &[u8]| authority.sign_csr(csr, &profile, now);
        let purpose = match purpose {
            NodePurpose::Server => v1::Purpose::Postgres,
            NodePurpose::Rest => v1::Purpose::Patroni,
        };
        swap(self.agent(machine).await?, self.generation(), purpose, trust.bundle(), sign).await
    }

    async fn install_patroni(self, machine: &Name, version: PatroniVersion) -> Result<(), ActError> {
        let (cluster, _) = self.node(machine)?;
        let fleet = &self.cluster().fleet;
        let source = cluster.section.patroni.source.as_ref();
        let bundle = fleet.artifacts.bundle(source, version, fleet.context.base(), &fleet.context.agent).await?;
        let mut client = self.agent(machine).await?;
        let pin =
            InstallEtcdHead { version: version.to_string(), sha256: bundle.sha256.clone(), program: BUNDLE.to_owned() };
        client.pin_binaries(self.stamped(PinBinariesRequest { binaries: vec![pin] })).await?;
        let head = InstallProgramHead {
            program: Program::Patroni.into(),
            version: version.to_string(),
            sha256: bundle.sha256,
            binary: String::new(),
        };
        let head = InstallProgramRequest { part: Some(Part::Head(head)) };
        // Images carry it already.
        let asked = client.install_program(self.stamped(futures::stream::iter([head.clone()]))).await?;
        if asked.into_inner().bytes_needed {
            let chunk = |chunk: &[u8]| InstallProgramRequest { part: Some(Part::Chunk(chunk.to_vec())) };
            let chunks: Vec<InstallProgramRequest> = bundle.bytes.chunks(CHUNK).map(chunk).collect();
            let parts = futures::stream::iter(std::iter::once(head).chain(chunks));
            client.install_program(self.stamped(parts)).await?;
        }
        Ok(())
    }

    async fn configure_patroni(
        self,
        machine: &Name,
        user: UserSlot,
        hosts: &BTreeSet<SocketAddr>,
        (digest, trust): (&str, &str),
    ) -> Result<(), ActError> {
        let (cluster, node) = self.node(machine)?;
        let config = cluster.patroni_file(node, hosts, user);
        let etcd = self.cluster().trust(TrustDomain::Clients)?;
        if config.digest != digest || etcd.digest() != trust {
            return Err(ActError::OtherPatroniFile(machine.clone()));
        }
        let secrets = self.cluster().make_patroni_secrets(self.lock, cluster, user).await?;
        let stamp = self.cluster().patroni_stamp(self.lock, &secrets).await?;
        let secrets =
            secrets.iter().map(|(secret, value)| (secret.name().to_owned(), value.expose_secret().to_owned()));
        let request = ConfigurePatroniRequest {
            config: config.text,
            digest: config.digest,
            secrets: secrets.collect::<HashMap<String, String>>(),
            etcd_trust_pem: etcd.bundle(),
            stamp,
        };
        self.agent(machine).await?.configure_patroni(self.stamped(request)).await?;
        Ok(())
    }

    async fn start_patroni(self, machine: &Name, data: PgStart) -> Result<(), ActError> {
        let (cluster, _) = self.node(machine)?;
        let (data, system_id) = match data {
            PgStart::Bootstrap | PgStart::Beside => (DataState::Empty, 0),
            PgStart::Join(SystemId(system)) => (DataState::Empty, system),
            PgStart::Own(SystemId(system)) => (DataState::Present, system),
        };
        let request = StartProgramRequest {
            program: Program::Patroni.into(),
            version: cluster.patroni.to_string(),
            expected: Some(StartExpected::Postgres(PostgresExpected { data: data.into(), system_id })),
        };
        self.agent(machine).await?.start_program(self.stamped(request)).await?;
        Ok(())
    }

    async fn restart_patroni(self, machine: &Name, version: PatroniVersion) -> Result<(), ActError> {
        let (cluster, _) = self.node(machine)?;
        let expected = PostgresExpected { data: DataState::Present.into(), system_id: self.system(cluster) };
        let request = RestartProgramRequest {
            program: Program::Patroni.into(),
            version: version.to_string(),
            grace_seconds: STOP_GRACE_SECONDS,
            expected: Some(RestartExpected::Postgres(expected)),
        };
        self.agent(machine).await?.restart_program(self.stamped(request)).await?;
        Ok(())
    }

    /// An end that Patroni did not tell is seen by the next observations: the ledger has what was asked for.
    async fn switch_over(self, cluster: &Name, from: &Name, to: &Name) -> Result<(), ActError> {
        self.postgres(cluster)?;
        let request = SwitchOverRequest { from: self.patroni_name(from), to: self.patroni_name(to) };
        self.agent(from).await?.switch_over(self.stamped(request)).await?;
        Ok(())
    }

    /// Any node's Patroni changes them in etcd; the first that can is asked.
    async fn set_patroni(self, cluster: &Name, set: &BTreeMap<String, Option<String>>) -> Result<(), ActError> {
        let setting = |(path, json): (&String, &Option<String>)| PatroniSetting {
            path: path.clone(),
            json: json.clone().unwrap_or_default(),
        };
        let settings: Vec<PatroniSetting> = set.iter().map(setting).collect();
        let mut failed = None;
        for node in &self.postgres(cluster)?.nodes {
            let request = SetPatroniRequest { settings: settings.clone() };
            let asked = async { Ok(self.agent(&node.name).await?.set_patroni(self.stamped(request)).await.map(drop)?) };
            match asked.await {
                Ok(()) => return Ok(()),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| ActError::NoSuchPostgres(cluster.clone())))
    }
}

fn wire_role(role: NodeRole) -> PostgresRole {
    match role {
        NodeRole::Primary | NodeRole::StandbyLeader => PostgresRole::Primary,
        NodeRole::Replica | NodeRole::Uninitialized => PostgresRole::Replica,
    }
}
