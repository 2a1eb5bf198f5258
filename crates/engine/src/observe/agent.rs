//! A machine's address → what its agent reports, or what answers there instead.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use raftsman_api::claim;
use raftsman_api::deadline::Deadlined;
use raftsman_api::tls::{ClientTls, ConnectError, Connected, TlsError, connect, key_of};
use raftsman_api::v1::agent_client::AgentClient;
use raftsman_api::v1::{self, ClaimReply, ClaimRequest, ReportRequest};
use raftsman_core::backup::Drill;
use raftsman_core::observed::{
    Agent, AgentProgram, AgentReport, BackupState, CertificateFacts, ClusterId, Data, Delivery, Disk, EtcdOnMachine,
    Fact, FailedUpgrade, LogEnd, MemberId, PortTaken, Purpose, Service, ServiceState,
};
use raftsman_core::spec::{EtcdVersion, Name};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tonic::transport::Channel;

use super::{limits, postgres};
use crate::fleet::Fleet;
use crate::stack::StackHandle;
use crate::tokens::{KeptToken, TokenError};

/// The connection to one machine's agent.
#[derive(Debug)]
pub struct AgentLink {
    machine: Name,
    address: IpAddr,
    claimed: ClientTls,
    /// Revoked keys: certificates for them are rejected whatever their issuer.
    revoked: BTreeSet<String>,
    open: Mutex<Option<Channel>>,
}

/// The calls that an agent knows, each with its limit.
pub type AgentCalls = AgentClient<Deadlined>;

/// Why a call to an agent failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No connection.
    #[error("{}", crate::error_chain(.0))]
    Connect(#[from] ConnectError),
    /// The agent returned an error.
    #[error("{}", .0.message())]
    Status(#[from] tonic::Status),
    /// The stack has no such machine.
    #[error("there is no machine `{0}`")]
    NoMachine(Name),
    /// It was asked to leave its machine, and still runs.
    #[error("the agent of {machine} was asked to leave and still listens after {} s", after.as_secs())]
    StillThere {
        /// Which.
        machine: Name,
        /// After this time.
        after: Duration,
    },
    /// The agent does not hold the join token of this machine.
    #[error(transparent)]
    Claim(#[from] claim::ClaimError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The state.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// Its certificate is on the list.
    #[error("the agent's certificate of {machine} is revoked: replace the machine (`raftsman replace {machine}`)")]
    Revoked {
        /// Which.
        machine: Name,
    },
    /// The join token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A task ended abnormally: a bug of ours.
    #[error("a task of raftsman ended abnormally, which is a bug: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// The state has no token for this machine.
    #[error(
        "{machine} awaits a join token that the state does not have: it was made for another fleet, or by another state; delete the machine and apply again"
    )]
    NoToken {
        /// Which.
        machine: Name,
    },
    /// The join token of this machine has expired, by this computer's clock.
    #[error(
        "the join token of {machine} ended at {until}: run `raftsman join {machine}` again where a host is enrolled manually, `raftsman apply` elsewhere"
    )]
    DeadToken {
        /// Which.
        machine: Name,
        /// When.
        until: Timestamp,
    },
    /// The agent sent an invalid report.
    #[error("the agent of {machine} sent an invalid report: {what}; are agent and raftsman of the same version?")]
    Nonsense {
        /// Which.
        machine: Name,
        /// What.
        what: String,
    },
}

impl LinkError {
    /// Whether a new agent waited for longer than its token is valid: it cannot be claimed any more.
    pub fn is_too_late(&self) -> bool {
        match self {
            Self::Status(status) => status.code() == tonic::Code::DeadlineExceeded,
            Self::DeadToken { .. } => true,
            _ => false,
        }
    }
}

/// A new agent that proved its token, and the connection that it proved it on.
#[derive(Debug)]
pub struct Proven {
    /// For `FinishClaim`.
    pub client: AgentCalls,
    /// What it wants signed.
    pub reply: ClaimReply,
}

impl AgentLink {
    /// The way to the agent of this machine.
    pub fn new(fleet: &Fleet, machine: &Name, address: IpAddr) -> Result<Self, TlsError> {
        let claimed =
            ClientTls::claimed(&fleet.operator(Timestamp::now()), &fleet.trust_pem, machine.as_str(), fleet.id())?;
        let revoked = fleet.access.revoked.clone();
        Ok(Self { machine: machine.clone(), address, claimed, revoked, open: Mutex::new(None) })
    }

    /// The address of the machine.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// A connection to the agent of ours; an open one is used again.
    pub async fn client(&self) -> Result<AgentCalls, LinkError> {
        self.client_within(Duration::MAX).await
    }

    /// The same for a run that ends after this time.
    pub async fn client_within(&self, most: Duration) -> Result<AgentCalls, LinkError> {
        let mut open = self.open.lock().await;
        if let Some(channel) = open.as_ref() {
            return Ok(self.calls(channel.clone(), most));
        }
        let Connected { channel, server_certificate } =
            connect(StackHandle::agent_at(self.address), &self.claimed).await?;
        if key_of(&server_certificate).is_none_or(|key| self.revoked.contains(&key)) {
            return Err(LinkError::Revoked { machine: self.machine.clone() });
        }
        *open = Some(channel.clone());
        Ok(self.calls(channel, most))
    }

    fn calls(&self, channel: Channel, most: Duration) -> AgentCalls {
        let server = format!("the agent of {}", self.machine);
        AgentClient::new(Deadlined::new(channel, &server, limits::of_agent).at_most(most))
    }

    /// Forgets the connection: the next call makes a new one.
    pub async fn hang_up(&self) {
        *self.open.lock().await = None;
    }

    pub(super) async fn look(&self, cluster: &Arc<StackHandle>, into_data: bool, now: Timestamp) -> Fact<Agent> {
        let fleet = &cluster.fleet;
        match self.report(cluster, into_data).await {
            Ok(report) => Fact::Seen { value: Agent::Claimed(Box::new(report)), at: now },
            Err(LinkError::Connect(error @ ConnectError::Untrusted { .. })) => {
                // Not an agent of this fleet: perhaps a new one, which can prove its join token.
                match self.prove(fleet).await {
                    Ok(_) => Fact::Seen { value: Agent::Unclaimed, at: now },
                    // Ordered again when it is enrolled.
                    Err(late) if late.is_too_late() => Fact::Seen { value: Agent::Unclaimed, at: now },
                    Err(LinkError::NoToken { .. } | LinkError::Connect(_)) => {
                        Fact::Unreachable { error: crate::error_chain(&error), since: now }
                    }
                    Err(other) => Fact::Unreachable { error: other.to_string(), since: now },
                }
            }
            Err(error) => {
                self.hang_up().await;
                Fact::Unreachable { error: error.to_string(), since: now }
            }
        }
    }

    /// Has a new agent prove its token.
    pub async fn prove(&self, fleet: &Fleet) -> Result<Proven, LinkError> {
        let kept = KeptToken::get(&fleet.secrets, &self.machine).await?;
        let kept = kept.ok_or_else(|| LinkError::NoToken { machine: self.machine.clone() })?;
        if let Some(until) = kept.until.filter(|_| !kept.is_alive(Timestamp::now())) {
            return Err(LinkError::DeadToken { machine: self.machine.clone(), until });
        }
        let token = kept.token;
        let tls = ClientTls::unclaimed(&fleet.operator(Timestamp::now()), self.machine.as_str(), fleet.id())?;
        let connected = connect(StackHandle::agent_at(self.address), &tls).await?;
        let mut client = self.calls(connected.channel, Duration::MAX);
        let nonce = claim::nonce()?;
        let request = ClaimRequest { nonce: nonce.clone() };
        let reply = client.claim(request).await?.into_inner();
        claim::verify(&token, &nonce, &connected.server_certificate, &reply.csr_der, &reply.proof)?;
        Ok(Proven { client, reply })
    }

    /// The agent's report.
    async fn report(&self, cluster: &Arc<StackHandle>, into_data: bool) -> Result<AgentReport, LinkError> {
        let mut client = self.client().await?;
        let sent = Timestamp::now();
        let reply = client.report(ReportRequest { into_data }).await?.into_inner();
        let nonsense = |what: String| LinkError::Nonsense { machine: self.machine.clone(), what };
        // Reads what the file refers to, and hashes it: off the runtime's own threads.
        let postgres = postgres::Reported::of(&reply, sent);
        let (stack, machine, runtime) = (Arc::clone(cluster), self.machine.clone(), Handle::current());
        let compared = tokio::task::spawn_blocking(move || {
            let cluster = &stack;
            let (delivery, backup_settings, secrets) = runtime.block_on(async {
                let files = crate::delivery::has_files(cluster, &machine, &reply).await;
                // A machine that a balancer has to itself makes no backups.
                let settings = match cluster.places().contains_key(&machine) {
                    true => crate::delivery::has_backup_settings(cluster, &reply, sent).await,
                    false => Delivery::Current,
                };
                let secrets = match &postgres {
                    Some(reported) => reported.has_secrets(cluster).await,
                    None => Delivery::Current,
                };
                (files, settings, secrets)
            });
            (reply, delivery, backup_settings, postgres, secrets)
        });
        let (reply, delivery, backup_settings, postgres, secrets) = compared.await?;
        let report = understand(reply, sent).map_err(&nonsense)?;
        let postgres = postgres.map(|reported| reported.understand(cluster, secrets)).transpose().map_err(&nonsense)?;
        Ok(AgentReport { delivery, backup_settings, postgres, ..report })
    }
}

fn understand(reply: v1::ReportReply, sent: Timestamp) -> Result<AgentReport, String> {
    let etcd = reply.etcd.ok_or("nothing about etcd")?;
    let their_clock = reply.now.map(timestamp).ok_or("no clock")??;
    let disk = reply.disk.ok_or("nothing about the disk")?;
    Ok(AgentReport {
        postgres: None,
        machine: Name::parse(&reply.machine).map_err(|e| e.to_string())?,
        incarnation: reply.incarnation,
        version: reply.agent_version,
        generation: reply.generation,
        clock_offset_ms: i64::try_from(their_clock.duration_since(sent).as_millis()).unwrap_or(i64::MAX),
        certificate: reply.agent_certificate.map(certificate).transpose()?.map(|(_, c)| c),
        disk: Disk { free: disk.free_bytes, total: disk.total_bytes },
        firewall: Some(reply.firewall_digest).filter(|digest| !digest.is_empty()),
        delivery: Delivery::Current,
        backup_settings: Delivery::Current,
        access: Some(reply.access_digest).filter(|digest| !digest.is_empty()),
        backups: reply.backups.map(state).transpose()?,
        program: reply.agent_program.map(program).transpose()?,
        balancer: super::balancer::understand(&reply.programs, reply.balancer)?,
        etcd: understand_etcd(etcd)?,
    })
}

fn program(wire: v1::AgentProgram) -> Result<AgentProgram, String> {
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    let failed = |failed: v1::FailedUpgrade| {
        let at = failed.at.map(timestamp).transpose()?;
        let v1::FailedUpgrade { sha256: digest, version, reason, retriable, .. } = failed;
        Ok::<_, String>(FailedUpgrade { digest, version, reason, at, retriable })
    };
    Ok(AgentProgram {
        digest: given(wire.sha256),
        failed: wire.failed.map(failed).transpose()?,
        problem: given(wire.problem),
    })
}

fn state(wire: v1::BackupsReport) -> Result<BackupState, String> {
    let since = wire.problem_since.map(timestamp).transpose()?;
    let drill_since = wire.drill_problem_since.map(timestamp).transpose()?;
    Ok(BackupState {
        keeps: wire.keeps,
        store_read: wire.store_read,
        full: Some(wire.full).filter(|name| !name.is_empty()).and_then(|name| name.parse().ok()),
        covered: wire.covered.map(timestamp).transpose()?,
        held: wire.held.map(timestamp).transpose()?,
        problem: since.map(|since| (wire.problem, since)),
        // A result in the format of a newer raftsman is ignored: it is no reason to fail.
        drill: serde_json::from_str::<Drill>(&wire.drill).ok(),
        drill_problem: drill_since.map(|since| (wire.drill_problem, since)),
        unverified: wire.unverified,
    })
}

fn understand_etcd(etcd: v1::EtcdReport) -> Result<EtcdOnMachine, String> {
    let service = etcd.service.ok_or("nothing about the service")?;
    let data = etcd.data.ok_or("nothing about the data")?;
    let version = |text: &str| EtcdVersion::parse(text).map_err(|e| e.to_string());
    let given = |text: String| Some(text).filter(|t| !t.is_empty());
    let mut installed = BTreeMap::new();
    for one in etcd.installed {
        installed.insert(version(&one.version)?, one.sha256);
    }
    let mut certificates = BTreeMap::new();
    for one in etcd.certificates {
        if let (Some(purpose), facts) = certificate(one)? {
            certificates.insert(purpose, facts);
        }
    }
    let running_trust =
        etcd.running_trust.into_iter().filter_map(|t| Some((purpose(t.purpose())?, t.digest))).collect();
    let log = Some(LogEnd {
        term: data.last_term,
        index: data.last_index,
        commit: data.commit_index,
        revision: i64::try_from(data.revision).ok().filter(|revision| *revision > 0),
        applied: data.applied_index,
    });
    let log = log.filter(|log| log.index > 0);
    let data = match data.state() {
        v1::DataState::Empty => Data::Empty,
        v1::DataState::Present => {
            Data::Present { member: MemberId(data.member_id), cluster: ClusterId(data.cluster_id) }
        }
        v1::DataState::Unreadable => Data::Unreadable { problem: data.problem },
        v1::DataState::Unspecified => return Err("an unknown state of the data".to_owned()),
    };
    Ok(EtcdOnMachine {
        installed,
        config_text: given(etcd.config.clone()),
        // The file already holds the configuration of the next start: of the running one only the digest is known.
        running_config_text: given(etcd.config).filter(|_| etcd.config_digest == etcd.running_config_digest),
        config: given(etcd.config_digest),
        running_config: given(etcd.running_config_digest),
        running_version: given(etcd.running_version).map(|v| version(&v)).transpose()?,
        last_version: given(etcd.current_version).map(|v| version(&v)).transpose()?,
        running_trust,
        certificates,
        service: process(service)?,
        data,
        ports_taken: ports_taken(etcd.ports_taken),
        had_data: etcd.had_data,
        log,
    })
}

/// A supervised process.
pub(super) fn process(wire: v1::Service) -> Result<Service, String> {
    let state = match wire.state() {
        v1::ServiceState::Stopped => ServiceState::Stopped,
        v1::ServiceState::Running => ServiceState::Running,
        v1::ServiceState::Backoff => ServiceState::Backoff,
        v1::ServiceState::Unspecified => return Err("an unknown state of the service".to_owned()),
    };
    Ok(Service {
        state,
        pid: Some(wire.pid).filter(|pid| *pid != 0),
        since: wire.since.map(timestamp).transpose()?,
        restarts: wire.restarts,
        last_exit: Some(wire.last_exit).filter(|text| !text.is_empty()),
    })
}

/// Ports that other processes hold.
pub(super) fn ports_taken(wire: Vec<v1::PortTaken>) -> Vec<PortTaken> {
    wire.into_iter().map(|p| PortTaken { port: u16::try_from(p.port).unwrap_or(0), holder: p.holder }).collect()
}

pub(super) fn certificate(wire: v1::Certificate) -> Result<(Option<Purpose>, CertificateFacts), String> {
    let purpose = purpose(wire.purpose());
    let facts = CertificateFacts {
        fingerprint: wire.fingerprint,
        not_before: wire.not_before.map(timestamp).ok_or("a certificate without a beginning")??,
        not_after: wire.not_after.map(timestamp).ok_or("a certificate without an end")??,
        names: wire.names,
        subject: wire.subject,
        issuer_key: wire.issuer_key,
        trust: Some(wire.trust_digest).filter(|digest| !digest.is_empty()),
    };
    Ok((purpose, facts))
}

fn purpose(wire: v1::Purpose) -> Option<Purpose> {
    match wire {
        v1::Purpose::EtcdPeer => Some(Purpose::Peer),
        v1::Purpose::EtcdServer => Some(Purpose::Server),
        v1::Purpose::Agent
        | v1::Purpose::EtcdClient
        | v1::Purpose::Postgres
        | v1::Purpose::Patroni
        | v1::Purpose::Balancer
        | v1::Purpose::Unspecified => None,
    }
}

fn timestamp(wire: prost_types::Timestamp) -> Result<Timestamp, String> {
    Timestamp::new(wire.seconds, wire.nanos).map_err(|e| e.to_string())
}
