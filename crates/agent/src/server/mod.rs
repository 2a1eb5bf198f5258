//! a call → admitted by role and fence, then passed to the module of its topic.

use std::sync::Arc;
use std::time::Duration;

use raftsman_api::roles::Role;
use raftsman_api::v1::agent_server::Agent as AgentService;
use raftsman_api::v1::{self, Purpose};
use raftsman_api::v1::{
    install_etcd_request, install_program_request, rehearse_request, restore_data_request, upgrade_agent_request,
};
use raftsman_core::render::delivery::{Deliverable, Delivered};
use tokio::sync::Mutex;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::Agent;
use crate::access::certs::Store;
use crate::access::{Access, AccessError};
use crate::backup::{self, BackupError, Order};
use crate::balancer;
use crate::etcd::data;
use crate::etcd::handshake;
use crate::etcd::restore::{Restore, RestoreError};
use crate::etcd::restore_test::Room;
use crate::machine::delivery::{self, DeliveryError};
use crate::machine::firewall::{self, FirewallError};
use crate::machine::install;
use crate::machine::measure;
use crate::machine::upgrade::{self, Staging, UpgradeError};
use crate::postgres::{self as node, NodePurpose};
use crate::report;
use crate::root::Root;
use crate::server::programs::{Piece, grace};
use crate::server::streams::{serve_backup, serve_restore_test, wire};
use crate::status::Coded;
use crate::supervisor::binaries::{Binary, BinaryError, Wanted};
use crate::supervisor::launch::{LaunchError, Launcher};
use crate::supervisor::pins;
use crate::supervisor::program::Program;
use crate::supervisor::service::ServiceError;

mod postgres;
mod programs;
mod streams;
mod turn;

use turn::{Turn, finish};

/// A stream of bytes that stalls for longer than this ends: it blocks every other change.
const CHUNK_LIMIT: Duration = Duration::from_secs(30);
const MOST_LINES: usize = 1000;

/// The agent as a gRPC service.
#[derive(Clone, Debug)]
pub struct Server {
    agent: Arc<Agent>,
    changes: Arc<Mutex<()>>,
    logins: Arc<Mutex<()>>,
    catalog_reads: Arc<Mutex<()>>,
}

impl Server {
    /// Serves this agent.
    pub fn new(agent: Arc<Agent>) -> Self {
        Self { agent, changes: Arc::default(), logins: Arc::default(), catalog_reads: Arc::default() }
    }
}

/// How many lines of a log a call gets.
fn most_lines(wanted: u32) -> usize {
    usize::try_from(wanted).unwrap_or(MOST_LINES).min(MOST_LINES)
}

fn purpose(number: i32) -> Result<Purpose, Status> {
    match Purpose::try_from(number) {
        Ok(purpose) if purpose != Purpose::Unspecified => Ok(purpose),
        _ => Err(Status::invalid_argument(
            "the purpose must be agent, etcd peer, etcd server, etcd client, PostgreSQL, Patroni or balancer",
        )),
    }
}

/// Where keys and certificates of a purpose are; none for the agent's own.
fn store_of(agent: &Agent, purpose: Purpose) -> Option<Store> {
    let node = |of| node::store(&agent.root, &agent.launcher, of);
    match purpose {
        Purpose::EtcdPeer => Some(Store::new(agent.root.peer_tls())),
        Purpose::EtcdServer => Some(Store::new(agent.root.server_tls())),
        Purpose::EtcdClient => Some(Store::new(agent.root.client_tls())),
        Purpose::Postgres => Some(node(NodePurpose::Server)),
        Purpose::Patroni => Some(node(NodePurpose::Rest)),
        Purpose::Balancer => Some(balancer::store(&agent.root)),
        Purpose::Agent | Purpose::Unspecified => None,
    }
}

#[tonic::async_trait]
impl AgentService for Server {
    async fn claim(&self, request: Request<v1::ClaimRequest>) -> Result<Response<v1::ClaimReply>, Status> {
        let server = self.allow(&request, Role::Operator)?.server_certificate.clone();
        let turn = Arc::clone(&self.changes).lock_owned().await;
        let nonce = request.into_inner().nonce;
        self.change(turn, move |agent| agent.claim.prove(&nonce, &server)).await
    }

    async fn finish_claim(
        &self,
        request: Request<v1::FinishClaimRequest>,
    ) -> Result<Response<v1::FinishClaimReply>, Status> {
        self.allow(&request, Role::Operator)?;
        let turn = Arc::clone(&self.changes).lock_owned().await;
        let chain_pem = request.into_inner().chain_pem;
        self.change(turn, move |agent| {
            agent.claim.finish(&chain_pem)?;
            tracing::info!("claimed");
            Ok::<_, crate::access::claim::ClaimError>(v1::FinishClaimReply {})
        })
        .await
    }

    async fn report(&self, request: Request<v1::ReportRequest>) -> Result<Response<v1::ReportReply>, Status> {
        self.allow(&request, Role::Reader)?;
        let (agent, into_data) = (Arc::clone(&self.agent), request.into_inner().into_data);
        finish(spawn_blocking(move || {
            let mut report = report::report(&agent, into_data)?;
            // A client's report shows that a program on trial serves.
            if agent.upgrade.is_on_trial() {
                agent.upgrade.confirm(&agent.root)?;
                report.agent_program = Some(agent.upgrade.report(&agent.root));
            }
            Ok::<_, report::ReportError>(report)
        }))
        .await
    }

    async fn upgrade_agent(
        &self,
        request: Request<Streaming<v1::UpgradeAgentRequest>>,
    ) -> Result<Response<v1::UpgradeAgentReply>, Status> {
        let turn = self.admit_as(&request, Role::Admin).await?;
        let mut parts = request.into_inner();
        let head = match next(&mut parts, |message| message.part).await? {
            Some(upgrade_agent_request::Part::Head(head)) => head,
            _ => return Err(no_head()),
        };
        if self.agent.upgrade.is_on_trial() {
            return Err(UpgradeError::OnTrial.status());
        }
        let agent = Arc::clone(&self.agent);
        let begun = finish(spawn_blocking(move || {
            let unchanged = agent.upgrade.own_digest() == Some(head.sha256.to_ascii_lowercase().as_str());
            if unchanged { Ok::<_, UpgradeError>(None) } else { Staging::begin(&agent.root, &head).map(Some) }
        }));
        let Some(mut staging) = begun.await?.into_inner() else {
            return Ok(Response::new(v1::UpgradeAgentReply { unchanged: true }));
        };
        while let Some(part) = next(&mut parts, |message| message.part).await? {
            let upgrade_agent_request::Part::Chunk(bytes) = part else { return Err(second_head()) };
            staging = finish(spawn_blocking(move || staging.write(&bytes).map(|()| staging))).await?.into_inner();
        }
        let root = self.agent.root.clone();
        let program = finish(spawn_blocking(move || staging.finish(&root))).await?.into_inner();
        upgrade::probe(&self.agent.root, &program).await.map_err(|error| error.status())?;
        self.agent.upgrade.order(program, turn);
        Ok(Response::new(v1::UpgradeAgentReply { unchanged: false }))
    }

    async fn pin_binaries(
        &self,
        request: Request<v1::PinBinariesRequest>,
    ) -> Result<Response<v1::PinBinariesReply>, Status> {
        let turn = self.admit_as(&request, Role::Admin).await?;
        let binaries = request.into_inner().binaries;
        self.change(turn, move |agent| {
            let wanted = |it: v1::InstallEtcdHead| Wanted::new(Binary::new(&it.program)?, &it.version, &it.sha256);
            let wanted = binaries.into_iter().map(wanted).collect::<Result<Vec<_>, _>>()?;
            pins::pin(&agent.root, &wanted)?;
            tracing::info!(binaries = wanted.len(), "pinned what may be run");
            Ok::<_, BinaryError>(v1::PinBinariesReply {})
        })
        .await
    }

    async fn set_access(&self, request: Request<v1::SetAccessRequest>) -> Result<Response<v1::SetAccessReply>, Status> {
        let turn = self.admit_as(&request, Role::Admin).await?;
        let caller = self.allow(&request, Role::Admin)?.clone();
        let v1::SetAccessRequest { trust_pem, revoked } = request.into_inner();
        self.change(turn, move |agent| {
            let access = Access::new(trust_pem, revoked)?;
            agent.claim.set_access(&access, &caller)?;
            tracing::info!(revoked = access.revoked.len(), "other clients are accepted");
            Ok::<_, AccessError>(v1::SetAccessReply {})
        })
        .await
    }

    async fn install_etcd(
        &self,
        request: Request<Streaming<v1::InstallEtcdRequest>>,
    ) -> Result<Response<v1::InstallEtcdReply>, Status> {
        use install_etcd_request::Part;
        let turn = self.admit(&request).await?;
        let mut parts = request.into_inner();
        let Some(Part::Head(head)) = next(&mut parts, |message| message.part).await? else { return Err(no_head()) };
        let wanted = Binary::new(&head.program)
            .and_then(|binary| Wanted::new(binary, &head.version, &head.sha256))
            .map_err(|error| error.status())?;
        let piece = |message: v1::InstallEtcdRequest| {
            message.part.map(|part| match part {
                Part::Head(_) => Piece::Head,
                Part::Chunk(bytes) => Piece::Chunk(bytes),
            })
        };
        let bytes_needed = self.install(turn, parts, wanted, piece).await?;
        Ok(Response::new(v1::InstallEtcdReply { bytes_needed }))
    }

    async fn request_certificate(
        &self,
        request: Request<v1::RequestCertificateRequest>,
    ) -> Result<Response<v1::RequestCertificateReply>, Status> {
        let turn = self.admit(&request).await?;
        let purpose = purpose(request.into_inner().purpose)?;
        self.change(turn, move |agent| {
            let csr_der = match store_of(agent, purpose) {
                Some(store) => store.request()?,
                None => agent.claim.request()?,
            };
            Ok::<_, crate::access::claim::ClaimError>(v1::RequestCertificateReply { csr_der })
        })
        .await
    }

    async fn store_certificate(
        &self,
        request: Request<v1::StoreCertificateRequest>,
    ) -> Result<Response<v1::StoreCertificateReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::StoreCertificateRequest { purpose: number, chain_pem, trust_pem } = request.into_inner();
        let purpose = purpose(number)?;
        self.change(turn, move |agent| {
            match store_of(agent, purpose) {
                Some(store) => store.store(&chain_pem, Some(&trust_pem))?,
                None => agent.claim.renew(&chain_pem)?,
            }
            tracing::info!(purpose = purpose.as_str_name(), "certificate stored");
            Ok::<_, crate::access::claim::ClaimError>(v1::StoreCertificateReply {})
        })
        .await
    }

    async fn configure_etcd(
        &self,
        request: Request<v1::ConfigureEtcdRequest>,
    ) -> Result<Response<v1::ConfigureEtcdReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::ConfigureEtcdRequest { config, digest } = request.into_inner();
        self.configure(turn, Program::Etcd, config, digest).await?;
        Ok(Response::new(v1::ConfigureEtcdReply {}))
    }

    async fn set_firewall(
        &self,
        request: Request<v1::SetFirewallRequest>,
    ) -> Result<Response<v1::SetFirewallReply>, Status> {
        let turn = self.admit_as(&request, Role::Admin).await?;
        let v1::SetFirewallRequest { rules, digest } = request.into_inner();
        let launcher = self.agent.launcher.clone();
        finish(tokio::spawn(async move {
            let _turn = turn;
            firewall::set(&launcher, &rules, &digest).await?;
            tracing::info!(digest, "other rules of the firewall hold");
            Ok::<_, FirewallError>(v1::SetFirewallReply {})
        }))
        .await
    }

    async fn deliver(&self, request: Request<v1::DeliverRequest>) -> Result<Response<v1::DeliverReply>, Status> {
        let turn = self.admit_as(&request, Role::Admin).await?;
        let v1::DeliverRequest { files, stamp } = request.into_inner();
        let launcher = self.agent.launcher.clone();
        finish(tokio::spawn(async move {
            let _turn = turn;
            let known = |file: v1::DeliveredFile| match Deliverable::parse(&file.name) {
                Some(what) => Ok(Delivered { what, contents: file.contents }),
                None => Err(DeliveryError::Unknown(file.name)),
            };
            let files = files.into_iter().map(known).collect::<Result<Vec<_>, _>>()?;
            delivery::take(&launcher, &files, &stamp).await?;
            tracing::info!(files = files.len(), "what was delivered is in its place");
            Ok::<_, DeliveryError>(v1::DeliverReply {})
        }))
        .await
    }

    type TakeBackupStream = ReceiverStream<Result<v1::TakeBackupReply, Status>>;

    async fn take_backup(
        &self,
        request: Request<v1::TakeBackupRequest>,
    ) -> Result<Response<Self::TakeBackupStream>, Status> {
        self.allow(&request, Role::Operator)?;
        let order = Order::new(request.into_inner()).map_err(|error| error.status())?;
        let busy = |_| BackupError::Busy.status();
        let alone = Arc::clone(&self.agent.backup_scheduler.making).try_lock_owned().map_err(busy)?;
        let (request, replies) = mpsc::channel(1);
        let agent = Arc::clone(&self.agent);
        self.agent.background.spawn(async move {
            let _alone = alone;
            serve_backup(&agent, order, &request).await;
        });
        Ok(Response::new(ReceiverStream::new(replies)))
    }

    type RehearseStream = ReceiverStream<Result<v1::RehearseReply, Status>>;

    async fn rehearse(
        &self,
        request: Request<Streaming<v1::RehearseRequest>>,
    ) -> Result<Response<Self::RehearseStream>, Status> {
        self.allow(&request, Role::Operator)?;
        let mut parts = request.into_inner();
        let head = match next(&mut parts, |message| message.part).await? {
            Some(rehearse_request::Part::Head(head)) => head,
            _ => return Err(no_head()),
        };
        let room = Room::of(&self.agent);
        room.holds(head.bytes).map_err(|error| error.status())?;
        let (request, replies) = mpsc::channel(4);
        let agent = Arc::clone(&self.agent);
        self.agent.background.spawn(async move {
            let served = tokio::select! {
                served = serve_restore_test(&agent, &head, parts, &request) => served,
                full = room.ends() => Err(full.status()),
                () = request.closed() => Err(Status::cancelled("the caller went away")),
            };
            if let Err(status) = served {
                tracing::warn!(error = status.message(), "a restore test failed");
                let _ = request.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(replies)))
    }

    async fn compare(&self, request: Request<v1::CompareRequest>) -> Result<Response<v1::CompareReply>, Status> {
        self.allow(&request, Role::Operator)?;
        let port = u16::try_from(request.into_inner().port).map_err(|_| Status::invalid_argument("no such port"))?;
        let (contents, revision) = backup::contents(&self.agent, port).await.map_err(|error| error.status())?;
        Ok(Response::new(v1::CompareReply { contents: Some(wire(contents)), revision }))
    }

    async fn set_backups(
        &self,
        request: Request<v1::SetBackupsRequest>,
    ) -> Result<Response<v1::SetBackupsReply>, Status> {
        // The settings name the store and the keys. A client that sets them gets all data, and would keep getting it
        // after its certificate is revoked: so this takes an admin.
        let turn = self.admit_as(&request, Role::Admin).await?;
        let request = request.into_inner();
        self.change(turn, move |agent| {
            let by_itself = request.order.is_some();
            agent.backup_scheduler.set(&agent.root, request)?;
            tracing::info!(by_itself, "backup settings received");
            Ok::<_, BackupError>(v1::SetBackupsReply {})
        })
        .await
    }

    async fn pass_fence(&self, request: Request<v1::PassFenceRequest>) -> Result<Response<v1::PassFenceReply>, Status> {
        let generation = self.fenced(&request)?;
        self.pass(generation).await?;
        Ok(Response::new(v1::PassFenceReply {}))
    }

    async fn start_etcd(&self, request: Request<v1::StartEtcdRequest>) -> Result<Response<v1::StartEtcdReply>, Status> {
        let turn = self.admit(&request).await?;
        let request = request.into_inner();
        let expected = programs::etcd_expected(v1::EtcdExpected {
            data: request.expected_data,
            cluster_id: request.expected_cluster_id,
            bootstrap: request.bootstrap,
            force_new_cluster: request.force_new_cluster,
        })?;
        let pid = self.start(turn, request.version, expected).await?;
        Ok(Response::new(v1::StartEtcdReply { pid }))
    }

    async fn restart_etcd(
        &self,
        request: Request<v1::RestartEtcdRequest>,
    ) -> Result<Response<v1::RestartEtcdReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::RestartEtcdRequest { version, expected_cluster_id, grace_seconds } = request.into_inner();
        let expected = programs::etcd_expected(v1::EtcdExpected {
            data: v1::DataState::Present.into(),
            cluster_id: expected_cluster_id,
            ..v1::EtcdExpected::default()
        })?;
        let pid = self.restart(turn, version, expected, grace(grace_seconds)).await?;
        Ok(Response::new(v1::RestartEtcdReply { pid }))
    }

    async fn stop_etcd(&self, request: Request<v1::StopEtcdRequest>) -> Result<Response<v1::StopEtcdReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::StopEtcdRequest { grace_seconds, resume_after_seconds } = request.into_inner();
        self.stop(turn, Program::Etcd, grace(grace_seconds), resume_after_seconds).await?;
        Ok(Response::new(v1::StopEtcdReply {}))
    }

    async fn store_trust(
        &self,
        request: Request<v1::StoreTrustRequest>,
    ) -> Result<Response<v1::StoreTrustReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::StoreTrustRequest { purpose: number, trust_pem } = request.into_inner();
        let purpose = purpose(number)?;
        let Some(store) = store_of(&self.agent, purpose) else {
            return Err(Status::invalid_argument("the agent trusts the fleet's CA of its boot data and no other"));
        };
        self.change(turn, move |_| {
            store.store_trust(&trust_pem)?;
            tracing::info!(purpose = purpose.as_str_name(), "trust stored");
            Ok::<_, crate::access::certs::CertsError>(v1::StoreTrustReply {})
        })
        .await
    }

    async fn handshake(&self, request: Request<v1::HandshakeRequest>) -> Result<Response<v1::HandshakeReply>, Status> {
        self.allow(&request, Role::Reader)?;
        let store = Store::new(self.agent.root.peer_tls());
        let results = handshake::test(store, request.into_inner().targets).await.map_err(|error| error.status())?;
        Ok(Response::new(v1::HandshakeReply { results }))
    }

    async fn measure(&self, request: Request<v1::MeasureRequest>) -> Result<Response<v1::MeasureReply>, Status> {
        let turn = self.admit(&request).await?;
        let targets = request.into_inner().targets;
        let (root, port) = (self.agent.root.clone(), self.agent.claim.boot().agent_port);
        finish(tokio::spawn(async move {
            let _turn = turn;
            measure::measure(root, port, targets).await
        }))
        .await
    }

    async fn clear_data(&self, request: Request<v1::ClearDataRequest>) -> Result<Response<v1::ClearDataReply>, Status> {
        let turn = self.admit(&request).await?;
        let member = request.into_inner().expected_member_id;
        let service = self.agent.supervisor.of(Program::Etcd).clone();
        finish(tokio::spawn(async move {
            let _turn = turn;
            let clear = move |root: &Root| {
                data::put_away(root, member)?;
                tracing::info!(member = format!("{member:x}"), "etcd's data put away");
                Ok(())
            };
            service.clear(clear).await.map(|()| v1::ClearDataReply {})
        }))
        .await
    }

    async fn restore_data(
        &self,
        request: Request<Streaming<v1::RestoreDataRequest>>,
    ) -> Result<Response<v1::RestoreDataReply>, Status> {
        let turn = self.admit(&request).await?;
        let mut parts = request.into_inner();
        let head = match next(&mut parts, |message| message.part).await? {
            Some(restore_data_request::Part::Head(head)) => head,
            _ => return Err(no_head()),
        };
        let ahead = head.how() == v1::RestoreHow::Prepare;
        let agent = Arc::clone(&self.agent);
        let mut restore = finish(spawn_blocking(move || Restore::begin(&agent, head))).await?.into_inner();
        while let Some(part) = next(&mut parts, |message| message.part).await? {
            let restore_data_request::Part::Chunk(bytes) = part else { return Err(second_head()) };
            restore = finish(spawn_blocking(move || restore.write(&bytes).map(|()| restore))).await?.into_inner();
        }
        let root = self.agent.root.clone();
        let finishing = async move {
            let _turn = turn;
            let ids = restore.finish(&root).await?;
            tracing::info!(member = format!("{:x}", ids.member), "etcd's data restored from a snapshot");
            Ok::<_, RestoreError>(v1::RestoreDataReply { member_id: ids.member, cluster_id: ids.cluster })
        };
        // The member still serves while its next data is made.
        finish(if ahead { self.agent.background.spawn(finishing) } else { tokio::spawn(finishing) }).await
    }

    async fn leave(&self, request: Request<v1::LeaveRequest>) -> Result<Response<v1::LeaveReply>, Status> {
        let turn = self.admit(&request).await?;
        let Launcher::Unit(systemd) = self.agent.launcher.clone() else {
            return Err(Status::failed_precondition("this agent was not installed: delete its machine instead"));
        };
        let supervisor = self.agent.supervisor.clone();
        finish(tokio::spawn(async move {
            let _turn = turn;
            // Before anything is removed: an agent that is leaving does not start them again.
            for program in Program::ALL.into_iter().rev() {
                supervisor.of(program).stop(grace(0), None).await?;
            }
            tracing::info!("leaves this machine");
            install::leave(&systemd).await.map_err(LaunchError::from)?;
            Ok::<_, ServiceError>(v1::LeaveReply {})
        }))
        .await
    }

    async fn logs(&self, request: Request<v1::LogsRequest>) -> Result<Response<v1::LogsReply>, Status> {
        self.allow(&request, Role::Reader)?;
        let request = request.into_inner();
        let Agent { root, launcher, .. } = &*self.agent;
        let most = most_lines(request.lines);
        let lines = match request.log() {
            v1::LogOf::Etcd => launcher.log(root, Program::Etcd, most).await,
            v1::LogOf::Agent => launcher.agent_log(root, most).await,
            v1::LogOf::Unspecified => return Err(Status::invalid_argument("say which log: etcd or agent")),
        };
        Ok(Response::new(v1::LogsReply { lines: lines.map_err(|error| error.status())? }))
    }

    async fn install_program(
        &self,
        request: Request<Streaming<v1::InstallProgramRequest>>,
    ) -> Result<Response<v1::InstallProgramReply>, Status> {
        use install_program_request::Part;
        let turn = self.admit(&request).await?;
        let mut parts = request.into_inner();
        let Some(Part::Head(head)) = next(&mut parts, |message| message.part).await? else { return Err(no_head()) };
        let wanted = programs::wanted(&head)?;
        let piece = |message: v1::InstallProgramRequest| {
            message.part.map(|part| match part {
                Part::Head(_) => Piece::Head,
                Part::Chunk(bytes) => Piece::Chunk(bytes),
            })
        };
        let bytes_needed = self.install(turn, parts, wanted, piece).await?;
        Ok(Response::new(v1::InstallProgramReply { bytes_needed }))
    }

    async fn configure_program(
        &self,
        request: Request<v1::ConfigureProgramRequest>,
    ) -> Result<Response<v1::ConfigureProgramReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::ConfigureProgramRequest { program, config, digest } = request.into_inner();
        self.configure(turn, programs::named(program)?, config, digest).await?;
        Ok(Response::new(v1::ConfigureProgramReply {}))
    }

    async fn start_program(
        &self,
        request: Request<v1::StartProgramRequest>,
    ) -> Result<Response<v1::StartProgramReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::StartProgramRequest { program, version, expected } = request.into_inner();
        let expected = programs::start_expected(programs::named(program)?, &version, expected)?;
        let pid = self.start(turn, version, expected).await?;
        Ok(Response::new(v1::StartProgramReply { pid }))
    }

    async fn restart_program(
        &self,
        request: Request<v1::RestartProgramRequest>,
    ) -> Result<Response<v1::RestartProgramReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::RestartProgramRequest { program, version, expected, grace_seconds } = request.into_inner();
        let expected = programs::restart_expected(programs::named(program)?, &version, expected)?;
        let pid = self.restart(turn, version, expected, grace(grace_seconds)).await?;
        Ok(Response::new(v1::RestartProgramReply { pid }))
    }

    async fn reload_program(
        &self,
        request: Request<v1::ReloadProgramRequest>,
    ) -> Result<Response<v1::ReloadProgramReply>, Status> {
        let turn = self.admit(&request).await?;
        self.reload(turn, programs::named(request.into_inner().program)?).await?;
        Ok(Response::new(v1::ReloadProgramReply {}))
    }

    async fn set_server(&self, request: Request<v1::SetServerRequest>) -> Result<Response<v1::SetServerReply>, Status> {
        let turn = self.admit(&request).await?;
        let (member, admin) = programs::server(&request.into_inner())?;
        self.set_balanced(turn, member, admin).await?;
        Ok(Response::new(v1::SetServerReply {}))
    }

    async fn configure_patroni(
        &self,
        request: Request<v1::ConfigurePatroniRequest>,
    ) -> Result<Response<v1::ConfigurePatroniReply>, Status> {
        // Patroni takes settings that run programs out of etcd, and from clients with its REST password. A client that
        // chooses that etcd or that password runs programs of its own: so this takes an admin.
        let turn = self.admit_as(&request, Role::Admin).await?;
        self.configure_node(turn, request.into_inner()).await
    }

    async fn log_in_to_etcd(
        &self,
        request: Request<v1::LogInToEtcdRequest>,
    ) -> Result<Response<v1::LogInToEtcdReply>, Status> {
        self.allow(&request, Role::Reader)?;
        self.log_in().await
    }

    async fn restart_postgres(
        &self,
        request: Request<v1::RestartPostgresRequest>,
    ) -> Result<Response<v1::RestartPostgresReply>, Status> {
        let turn = self.admit(&request).await?;
        self.restart_postgres_as(turn, request.into_inner().role()).await?;
        Ok(Response::new(v1::RestartPostgresReply {}))
    }

    async fn reinitialize_node(
        &self,
        request: Request<v1::ReinitializeNodeRequest>,
    ) -> Result<Response<v1::ReinitializeNodeReply>, Status> {
        let turn = self.admit(&request).await?;
        self.reinitialize(turn, request.into_inner().system_id).await?;
        Ok(Response::new(v1::ReinitializeNodeReply {}))
    }

    async fn switch_over(
        &self,
        request: Request<v1::SwitchOverRequest>,
    ) -> Result<Response<v1::SwitchOverReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::SwitchOverRequest { from, to } = request.into_inner();
        self.switch(turn, from, to).await.map(Response::new)
    }

    async fn set_patroni(
        &self,
        request: Request<v1::SetPatroniRequest>,
    ) -> Result<Response<v1::SetPatroniReply>, Status> {
        let turn = self.admit(&request).await?;
        self.set(turn, request.into_inner().settings).await?;
        Ok(Response::new(v1::SetPatroniReply {}))
    }

    async fn read_catalog(
        &self,
        request: Request<v1::ReadCatalogRequest>,
    ) -> Result<Response<v1::ReadCatalogReply>, Status> {
        self.allow(&request, Role::Reader)?;
        let admin = self.allow(&request, Role::Admin).is_ok();
        self.catalog(&request.into_inner().extensions_of, admin).await.map(Response::new)
    }

    async fn set_postgres_role(
        &self,
        request: Request<v1::SetPostgresRoleRequest>,
    ) -> Result<Response<v1::SetPostgresRoleReply>, Status> {
        // Who chooses a role's password reads and writes what the role does.
        let turn = self.admit_as(&request, Role::Admin).await?;
        let v1::SetPostgresRoleRequest { settings, verifier } = request.into_inner();
        let settings = settings.ok_or_else(|| Status::invalid_argument("say which role: settings"))?;
        let what = format!("the role {} was set", settings.name);
        self.in_catalog(turn, what, move |catalog| async move { catalog.set_role(settings, verifier).await }).await?;
        Ok(Response::new(v1::SetPostgresRoleReply {}))
    }

    async fn set_node_password(
        &self,
        request: Request<v1::SetNodePasswordRequest>,
    ) -> Result<Response<v1::SetNodePasswordReply>, Status> {
        let turn = self.admit_as(&request, Role::Admin).await?;
        let v1::SetNodePasswordRequest { role, verifier } = request.into_inner();
        let what = format!("{role} has another password");
        self.in_catalog(turn, what, move |catalog| async move { catalog.set_node_password(&role, &verifier).await })
            .await?;
        Ok(Response::new(v1::SetNodePasswordReply {}))
    }

    async fn drop_postgres_role(
        &self,
        request: Request<v1::DropPostgresRoleRequest>,
    ) -> Result<Response<v1::DropPostgresRoleReply>, Status> {
        let turn = self.admit_as(&request, Role::Admin).await?;
        let v1::DropPostgresRoleRequest { name } = request.into_inner();
        let what = format!("the role {name} was removed, or its login");
        self.in_catalog(turn, what, move |catalog| async move { catalog.drop_role(&name).await }).await?;
        Ok(Response::new(v1::DropPostgresRoleReply {}))
    }

    async fn set_database(
        &self,
        request: Request<v1::SetDatabaseRequest>,
    ) -> Result<Response<v1::SetDatabaseReply>, Status> {
        let turn = self.admit_as(&request, Role::Admin).await?;
        let wanted = request.into_inner().database;
        let wanted = wanted.ok_or_else(|| Status::invalid_argument("say which database: database"))?;
        let what = format!("the database {} was set", wanted.name);
        self.in_catalog(turn, what, move |catalog| async move { catalog.set_database(&wanted).await }).await?;
        Ok(Response::new(v1::SetDatabaseReply {}))
    }

    async fn stop_program(
        &self,
        request: Request<v1::StopProgramRequest>,
    ) -> Result<Response<v1::StopProgramReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::StopProgramRequest { program, grace_seconds, resume_after_seconds } = request.into_inner();
        self.stop(turn, programs::named(program)?, grace(grace_seconds), resume_after_seconds).await?;
        Ok(Response::new(v1::StopProgramReply {}))
    }

    async fn program_logs(
        &self,
        request: Request<v1::ProgramLogsRequest>,
    ) -> Result<Response<v1::ProgramLogsReply>, Status> {
        self.allow(&request, Role::Reader)?;
        let v1::ProgramLogsRequest { program, lines } = request.into_inner();
        let Agent { root, launcher, .. } = &*self.agent;
        let lines = launcher.log(root, programs::named(program)?, most_lines(lines)).await;
        Ok(Response::new(v1::ProgramLogsReply { lines: lines.map_err(|error| error.status())? }))
    }
}

fn no_head() -> Status {
    Status::invalid_argument("the first message must be the head")
}

fn second_head() -> Status {
    Status::invalid_argument("only chunks may follow the head")
}

/// The next part of a stream; `None` at its end.
async fn next<M, P>(parts: &mut Streaming<M>, part: impl FnOnce(M) -> Option<P>) -> Result<Option<P>, Status> {
    let message = timeout(CHUNK_LIMIT, parts.message())
        .await
        .map_err(|_| Status::deadline_exceeded("the bytes stopped coming: nothing was done with them"))??;
    match message {
        None => Ok(None),
        Some(message) => part(message).map(Some).ok_or_else(|| Status::invalid_argument("a message without a part")),
    }
}
