//! a call → admitted by role and fence, then handed to the topic that it is about.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use raftsman_api::fence;
use raftsman_api::roles::Role;
use raftsman_api::tls::Peer;
use raftsman_api::v1::agent_server::Agent as AgentService;
use raftsman_api::v1::take_backup_reply::What;
use raftsman_api::v1::{self, Purpose};
use raftsman_api::v1::{install_etcd_request, rehearse_request, restore_data_request};
use raftsman_backup::full::Moved;
use raftsman_core::backup::{Hashed, Lines};
use raftsman_core::render::delivery::{Deliverable, Delivered};
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::Agent;
use crate::access::certs::Store;
use crate::access::{Access, AccessError};
use crate::backup::{self, BackupError, Order, Stored};
use crate::etcd::data;
use crate::etcd::handshake;
use crate::etcd::prestart;
use crate::etcd::restore::{Restore, RestoreError};
use crate::etcd::restore_test::{RestoreTest, RestoreTestError, Room};
use crate::machine::delivery::{self, DeliveryError};
use crate::machine::firewall::{self, FirewallError};
use crate::machine::install;
use crate::machine::measure;
use crate::report;
use crate::root::Root;
use crate::status::{Coded, describe};
use crate::supervisor::binaries::{self, Binary, BinaryError, Download, Wanted};
use crate::supervisor::config::{self, ConfigError};
use crate::supervisor::launch::{LaunchError, Launcher};
use crate::supervisor::pins;
use crate::supervisor::program::{Expected, Program};
use crate::supervisor::service::ServiceError;

/// A stream of bytes that stands still longer than this ends; it holds up every other change.
const CHUNK_LIMIT: Duration = Duration::from_secs(30);
/// How often somebody who watches a backup is told.
const TELL: Duration = Duration::from_millis(500);
const USUAL_GRACE: u32 = 10;
const LONGEST_GRACE: u32 = 600;
const MOST_LINES: usize = 1000;

/// The agent as a gRPC service.
#[derive(Clone, Debug)]
pub struct Server {
    agent: Arc<Agent>,
    changes: Arc<Mutex<()>>,
}

/// Held while a change goes on: there is one at a time.
type Turn = OwnedMutexGuard<()>;

impl Server {
    /// Serves this agent.
    pub fn new(agent: Arc<Agent>) -> Self {
        Self { agent, changes: Arc::default() }
    }

    /// The role check for every call.
    fn allow<'r, T>(&self, request: &'r Request<T>, needed: Role) -> Result<&'r Peer, Status> {
        let peer = request
            .extensions()
            .get::<Peer>()
            .ok_or_else(|| Status::unauthenticated("the connection has no client certificate"))?;
        if !self.agent.claim.tls().accepts(peer) {
            return Err(Status::unauthenticated(
                "the client certificate is revoked, has ended, or its CA is not trusted any more",
            ));
        }
        match &peer.role {
            Ok(role) if *role >= needed => Ok(peer),
            Ok(role) => Err(Status::permission_denied(format!(
                "this call needs the role {needed}, the client certificate has the role {role}"
            ))),
            Err(error) => Err(Status::permission_denied(format!("this call needs the role {needed}: {error}"))),
        }
    }

    /// The role, claim and fence checks for every change, and its turn.
    async fn admit<T>(&self, request: &Request<T>) -> Result<Turn, Status> {
        self.admit_as(request, Role::Operator).await
    }

    /// The same, for a change that needs this role.
    async fn admit_as<T>(&self, request: &Request<T>, needed: Role) -> Result<Turn, Status> {
        let generation = self.fenced_as(request, needed)?;
        let turn = Arc::clone(&self.changes).lock_owned().await;
        // Checked when its turn has come: an operator that took over while this call waited goes first.
        self.pass(generation).await?;
        Ok(turn)
    }

    /// The role and claim checks for every call that bears a generation, and that generation.
    fn fenced<T>(&self, request: &Request<T>) -> Result<u64, Status> {
        self.fenced_as(request, Role::Operator)
    }

    fn fenced_as<T>(&self, request: &Request<T>, needed: Role) -> Result<u64, Status> {
        self.allow(request, needed)?;
        let generation = fence::read(request)?;
        if !self.agent.claim.is_claimed() {
            return Err(Status::failed_precondition("this machine is not claimed yet: claim it first"));
        }
        Ok(generation)
    }

    /// Obeys this generation, which is on the disk first.
    async fn pass(&self, generation: u64) -> Result<(), Status> {
        let agent = Arc::clone(&self.agent);
        finish(spawn_blocking(move || agent.fence.pass(generation))).await.map(Response::into_inner)
    }

    /// Runs a change to its end, even when the caller goes away in the middle.
    async fn change<R, E>(
        &self,
        turn: Turn,
        work: impl FnOnce(&Agent) -> Result<R, E> + Send + 'static,
    ) -> Result<Response<R>, Status>
    where
        R: Send + 'static,
        E: Coded + Send + 'static,
    {
        let agent = Arc::clone(&self.agent);
        finish(spawn_blocking(move || {
            let _turn = turn;
            work(&agent)
        }))
        .await
    }
}

async fn finish<R, E: Coded>(task: JoinHandle<Result<R, E>>) -> Result<Response<R>, Status> {
    match task.await {
        Ok(Ok(reply)) => Ok(Response::new(reply)),
        Ok(Err(error)) => {
            let status = error.status();
            tracing::warn!(code = ?status.code(), error = status.message(), "call refused or failed");
            Err(status)
        }
        Err(error) => Err(Status::internal(format!("the agent failed: {}", describe(&error)))),
    }
}

/// How long etcd may take to end, as a call says.
fn grace(seconds: u32) -> Duration {
    let seconds = if seconds == 0 { USUAL_GRACE } else { seconds.min(LONGEST_GRACE) };
    Duration::from_secs(seconds.into())
}

/// How many lines of a log a call gets.
fn most_lines(wanted: u32) -> usize {
    usize::try_from(wanted).unwrap_or(MOST_LINES).min(MOST_LINES)
}

fn purpose(number: i32) -> Result<Purpose, Status> {
    match Purpose::try_from(number) {
        Ok(purpose) if purpose != Purpose::Unspecified => Ok(purpose),
        _ => Err(Status::invalid_argument("the purpose must be agent, etcd peer, etcd server or etcd client")),
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
        finish(spawn_blocking(move || report::report(&agent, into_data))).await
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
        let turn = self.admit(&request).await?;
        let mut parts = request.into_inner();
        let head = match next(&mut parts, |message| message.part).await? {
            Some(install_etcd_request::Part::Head(head)) => head,
            _ => return Err(no_head()),
        };
        let wanted = Binary::new(&head.program)
            .and_then(|binary| Wanted::new(binary, &head.version, &head.sha256))
            .map_err(|error| error.status())?;
        pins::check(&self.agent.root, &wanted).map_err(|error| error.status())?;
        let version = head.version;
        let reply = |bytes_needed| Ok(Response::new(v1::InstallEtcdReply { bytes_needed }));

        let (agent, local) = (Arc::clone(&self.agent), wanted.clone());
        let there = finish(spawn_blocking(move || {
            binaries::clean(&agent.root, local.binary().program());
            Ok::<_, BinaryError>(local.is_installed(&agent.root)? || local.install_artifact(&agent.root)?)
        }))
        .await?
        .into_inner();
        if there {
            tracing::info!(version, program = head.program, "etcd installed");
            return reply(false);
        }
        let Some(mut part) = next(&mut parts, |message| message.part).await? else { return reply(true) };

        let root = self.agent.root.clone();
        let mut download = finish(spawn_blocking(move || Download::begin(&root, wanted))).await?.into_inner();
        loop {
            let install_etcd_request::Part::Chunk(bytes) = part else { return Err(second_head()) };
            download = finish(spawn_blocking(move || download.write(&bytes).map(|()| download))).await?.into_inner();
            match next(&mut parts, |message| message.part).await? {
                Some(more) => part = more,
                None => break,
            }
        }
        self.change(turn, move |agent| {
            download.finish(&agent.root)?;
            tracing::info!(version, program = head.program, "etcd installed from the bytes that were sent");
            Ok::<_, BinaryError>(v1::InstallEtcdReply { bytes_needed: false })
        })
        .await
    }

    async fn request_certificate(
        &self,
        request: Request<v1::RequestCertificateRequest>,
    ) -> Result<Response<v1::RequestCertificateReply>, Status> {
        let turn = self.admit(&request).await?;
        let purpose = purpose(request.into_inner().purpose)?;
        self.change(turn, move |agent| {
            let csr_der = match purpose {
                Purpose::EtcdPeer => Store::new(agent.root.peer_tls()).request()?,
                Purpose::EtcdServer => Store::new(agent.root.server_tls()).request()?,
                Purpose::EtcdClient => Store::new(agent.root.client_tls()).request()?,
                Purpose::Agent | Purpose::Unspecified => agent.claim.request()?,
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
            match purpose {
                Purpose::EtcdPeer => Store::new(agent.root.peer_tls()).store(&chain_pem, Some(&trust_pem))?,
                Purpose::EtcdServer => Store::new(agent.root.server_tls()).store(&chain_pem, Some(&trust_pem))?,
                Purpose::EtcdClient => Store::new(agent.root.client_tls()).store(&chain_pem, Some(&trust_pem))?,
                Purpose::Agent | Purpose::Unspecified => agent.claim.renew(&chain_pem)?,
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
        self.change(turn, move |agent| {
            config::write(&agent.root, Program::Etcd, &config, &digest)?;
            tracing::info!(digest, "etcd configured");
            Ok::<_, ConfigError>(v1::ConfigureEtcdReply {})
        })
        .await
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
        let (told, replies) = mpsc::channel(1);
        let agent = Arc::clone(&self.agent);
        self.agent.background.spawn(async move {
            let _alone = alone;
            serve_backup(&agent, order, &told).await;
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
        let (told, replies) = mpsc::channel(4);
        let agent = Arc::clone(&self.agent);
        self.agent.background.spawn(async move {
            let served = tokio::select! {
                served = serve_restore_test(&agent, &head, parts, &told) => served,
                full = room.ends() => Err(full.status()),
                () = told.closed() => Err(Status::cancelled("nobody listens any more")),
            };
            if let Err(status) = served {
                tracing::warn!(error = status.message(), "a restore test failed");
                let _ = told.send(Err(status)).await;
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
        // Where to, and with which keys: whoever says that has all data, and would go on having it once it is revoked.
        let turn = self.admit_as(&request, Role::Admin).await?;
        let told = request.into_inner();
        self.change(turn, move |agent| {
            let by_itself = told.order.is_some();
            agent.backup_scheduler.set(&agent.root, told)?;
            tracing::info!(by_itself, "told how to make backups");
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
        let alone = request.force_new_cluster;
        let expected = match (request.expected_data(), request.expected_cluster_id) {
            (v1::DataState::Empty, _) if alone => {
                return Err(Status::invalid_argument(
                    "force_new_cluster goes with data that is there: there is nothing to go on with",
                ));
            }
            (v1::DataState::Empty, _) => prestart::Expected::Empty { bootstrap: request.birth },
            (v1::DataState::Present, id) if id != 0 => prestart::Expected::Cluster { id, alone },
            (v1::DataState::Present, _) => {
                return Err(Status::invalid_argument("say which cluster the data must belong to: expected_cluster_id"));
            }
            _ => return Err(Status::invalid_argument("say what data is expected: empty or present")),
        };
        let service = self.agent.supervisor.of(Program::Etcd).clone();
        finish(tokio::spawn(async move {
            let _turn = turn;
            service.start(request.version, Expected::Etcd(expected)).await.map(|pid| v1::StartEtcdReply { pid })
        }))
        .await
    }

    async fn restart_etcd(
        &self,
        request: Request<v1::RestartEtcdRequest>,
    ) -> Result<Response<v1::RestartEtcdReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::RestartEtcdRequest { version, expected_cluster_id, grace_seconds } = request.into_inner();
        if expected_cluster_id == 0 {
            return Err(Status::invalid_argument("say which cluster the data must belong to: expected_cluster_id"));
        }
        let service = self.agent.supervisor.of(Program::Etcd).clone();
        finish(tokio::spawn(async move {
            let _turn = turn;
            let expected = prestart::Expected::Cluster { id: expected_cluster_id, alone: false };
            let restarted = service.restart(version, Expected::Etcd(expected), grace(grace_seconds)).await;
            restarted.map(|pid| v1::RestartEtcdReply { pid })
        }))
        .await
    }

    async fn stop_etcd(&self, request: Request<v1::StopEtcdRequest>) -> Result<Response<v1::StopEtcdReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::StopEtcdRequest { grace_seconds, resume_after_seconds } = request.into_inner();
        let resume = Some(resume_after_seconds).filter(|seconds| *seconds > 0);
        let resume = resume.map(|seconds| Duration::from_secs(seconds.into()));
        let service = self.agent.supervisor.of(Program::Etcd).clone();
        finish(tokio::spawn(async move {
            let _turn = turn;
            service.stop(grace(grace_seconds), resume).await.map(|()| v1::StopEtcdReply {})
        }))
        .await
    }

    async fn store_trust(
        &self,
        request: Request<v1::StoreTrustRequest>,
    ) -> Result<Response<v1::StoreTrustReply>, Status> {
        let turn = self.admit(&request).await?;
        let v1::StoreTrustRequest { purpose: number, trust_pem } = request.into_inner();
        let purpose = purpose(number)?;
        let store = match purpose {
            Purpose::EtcdPeer => Store::new(self.agent.root.peer_tls()),
            Purpose::EtcdServer => Store::new(self.agent.root.server_tls()),
            Purpose::EtcdClient => Store::new(self.agent.root.client_tls()),
            Purpose::Agent | Purpose::Unspecified => {
                return Err(Status::invalid_argument("the agent trusts the fleet's CA of its boot data and no other"));
            }
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
        let results = handshake::shake(store, request.into_inner().targets).await.map_err(|error| error.status())?;
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
        let service = self.agent.supervisor.of(Program::Etcd).clone();
        finish(tokio::spawn(async move {
            let _turn = turn;
            // Before anything is removed: an agent that is asked to leave does not start it again.
            service.stop(grace(0), None).await?;
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
}

/// Makes a backup, and tells how far it is and how it ended to whoever still listens.
async fn serve_backup(agent: &Agent, order: Order, told: &Sender<Result<v1::TakeBackupReply, Status>>) {
    let moved = Moved::default();
    let reply = |what| Ok(v1::TakeBackupReply { what: Some(what) });
    let mut taking = pin!(backup::take(agent, &order, &moved));
    let mut tick = tokio::time::interval(TELL);
    let taken = loop {
        tokio::select! {
            taken = &mut taking => break taken,
            _ = tick.tick() => {
                // Nobody needs to listen, or to keep up.
                let _ = told.try_send(reply(What::Moved(moved_so_far(&moved))));
            }
        }
    };
    let text = taken.and_then(|manifest| {
        tracing::info!(backup = %manifest.about.name, bytes = manifest.object.bytes, "backup made");
        serde_json::to_string(&manifest).map_err(|error| BackupError::Full(error.into()))
    });
    let last = text.map(What::Manifest).map_or_else(
        |error| {
            let status = error.status();
            tracing::warn!(error = status.message(), "backup failed");
            Err(status)
        },
        reply,
    );
    let _ = told.send(last).await;
}

/// Goes on as long as somebody listens.
async fn serve_restore_test(
    agent: &Agent,
    head: &v1::RehearseHead,
    mut parts: Streaming<v1::RehearseRequest>,
    told: &Sender<Result<v1::RehearseReply, Status>>,
) -> Result<(), Status> {
    use v1::rehearse_reply::What;
    let coded = |error: RestoreTestError| error.status();
    let tell = async |what| {
        let sent = told.send(Ok(v1::RehearseReply { what: Some(what) })).await;
        sent.map_err(|_| Status::cancelled("nobody listens any more"))
    };
    let mut coming = RestoreTest::begin(agent, &head.version).await.map_err(coded)?;
    let from = head.from.as_ref().map(Stored::new).transpose().map_err(|error| coded(error.into()))?;
    if let Some(from) = &from {
        let moved = Moved::default();
        let mut fetching = pin!(coming.fetch(from, &moved));
        let mut tick = tokio::time::interval(TELL);
        loop {
            tokio::select! {
                fetched = &mut fetching => break fetched.map_err(coded)?,
                _ = tick.tick() => tell(What::Moved(moved_so_far(&moved))).await?,
            }
        }
    }
    let first = loop {
        match next(&mut parts, |message| message.part).await? {
            Some(_) if from.is_some() => return Err(Status::invalid_argument("it is read from the store")),
            Some(rehearse_request::Part::Snapshot(bytes)) => coming.write(&bytes).await.map_err(coded)?,
            Some(rehearse_request::Part::Head(_)) => return Err(second_head()),
            Some(rehearse_request::Part::Changes(lines)) => break Some(lines),
            None => break None,
        }
    };
    let mut running = coming.start(agent).await.map_err(coded)?;
    tell(What::Revision(running.revision().await.map_err(coded)?)).await?;
    let base = match head.hash_at {
        0 => None,
        revision => Some(wire(running.hashed(revision).await.map_err(coded)?)),
    };
    if let Some(from) = &from {
        running.replay_from(from).await.map_err(coded)?;
    }
    let mut lines = first;
    let mut rest: Vec<u8> = Vec::new();
    while let Some(bytes) = lines {
        rest.extend(bytes);
        let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let changes = Lines::read(&rest[..whole]).map_err(|error| Status::invalid_argument(error.to_string()))?;
        rest.drain(..whole);
        running.replay(&changes, head.upto).await.map_err(coded)?;
        tell(What::Revision(running.revision().await.map_err(coded)?)).await?;
        lines = match next(&mut parts, |message| message.part).await? {
            Some(rehearse_request::Part::Changes(lines)) => Some(lines),
            Some(_) => return Err(Status::invalid_argument("only changes may follow changes")),
            None => None,
        };
    }
    if !rest.is_empty() {
        return Err(Status::invalid_argument("the last change is not whole"));
    }
    let (revision, keys) = running.ended(head.upto).await.map_err(coded)?;
    tell(What::Rehearsed(v1::Rehearsed { base, revision, keys })).await?;
    if head.snapshot {
        let unavailable = |error: raftsman_etcd::EtcdError| Status::unavailable(error.to_string());
        let snapshot = running.client().snapshot().await.map_err(|error| unavailable(error.into()))?;
        let mut pieces = pin!(backup::pieces(snapshot));
        while let Some(piece) = pieces.next().await {
            tell(What::Snapshot(piece.map_err(unavailable)?.to_vec())).await?;
        }
    }
    Ok(())
}

fn moved_so_far(moved: &Moved) -> v1::Moved {
    v1::Moved { received: moved.received(), stored: moved.stored(), checked: moved.checked() }
}

fn wire(contents: Hashed) -> v1::Contents {
    let Hashed { hash, compacted, keys } = contents;
    v1::Contents { hash, compacted, keys }
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
