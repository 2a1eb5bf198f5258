//! A healthy member of etcd → what Patroni of each PostgreSQL cluster keeps there; nodes → what their agents report, and
//! whether they can log in to etcd.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use etcd_client::{Client, GetOptions};
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use raftsman_api::v1;
use raftsman_core::desired::{CLIENT_PORT, Postgres};
use raftsman_core::observed::{
    Delivery, EtcdLogins, Fact, NodeFacts, NodePurpose, Observed, PatroniFile, PatroniKeys, PgData, PostgresObserved,
    PostgresOnMachine, SystemId, View,
};
use raftsman_core::plan::logins_to_try;
use raftsman_core::render::patroni;
use raftsman_core::spec::{Name, PatroniVersion, PostgresVersion};
use raftsman_etcd::{EtcdError, bounded};

use super::{Observer, agent};
use crate::stack::{ClusterCredentials, StackHandle};

/// Logins that succeeded are not tried again within this time, though a step still waits for something else.
const LOGIN_LASTS: SignedDuration = SignedDuration::from_secs(10);
/// One that failed is tried again after this time.
const LOGIN_RETRY: SignedDuration = SignedDuration::from_secs(1);

/// Logins that were tried, and with which file and CA certificates.
#[derive(Debug, Clone)]
pub(super) struct Tried {
    file: Option<PatroniFile>,
    trust: Option<String>,
    logins: EtcdLogins,
}

impl Tried {
    /// Whether they tell of the node as it is now.
    fn holds(&self, node: &PostgresOnMachine, last_step: Option<Timestamp>, now: Timestamp) -> bool {
        let lasts = match self.logins.members.values().all(Result::is_ok) {
            true => LOGIN_LASTS,
            false => LOGIN_RETRY,
        };
        let same = self.file == node.written && self.trust == node.trust && node.secrets.is_current();
        same && now.duration_since(self.logins.at) < lasts && last_step.is_none_or(|step| self.logins.at > step)
    }
}

impl Observer {
    /// Reads Patroni's keys through one healthy member. Raftsman never writes them.
    pub(super) async fn look_for_patroni(
        &self,
        observed: &Observed,
        credentials: Option<&ClusterCredentials>,
        now: Timestamp,
    ) -> BTreeMap<Name, PostgresObserved> {
        let clusters = &self.cluster.desired.postgres;
        if clusters.is_empty() {
            return BTreeMap::new();
        }
        let client = match credentials {
            Some(credentials) => self.patronis_member(observed, credentials).await,
            None => Err("etcd cannot be asked yet".to_owned()),
        };
        let read = clusters.iter().map(|cluster| {
            let client = client.clone();
            async move {
                let keys = match client {
                    Ok(client) => read(client, cluster).await,
                    Err(error) => Err(error),
                };
                let keys = match keys {
                    Ok(value) => Fact::Seen { value, at: now },
                    Err(error) => Fact::Unreachable { error, since: now },
                };
                (cluster.name.clone(), PostgresObserved::of_keys(keys))
            }
        });
        join_all(read).await.into_iter().collect()
    }

    async fn patronis_member(&self, observed: &Observed, credentials: &ClusterCredentials) -> Result<Client, String> {
        let healthy = View::of(observed).healthy.into_iter().min().cloned();
        let link =
            healthy.and_then(|name| self.etcd(&name)).ok_or_else(|| "no member of etcd is healthy".to_owned())?;
        link.client(credentials).await.map_err(|error| error.to_string())
    }

    /// Has nodes log in to etcd anew, where the next step depends on it.
    pub(super) async fn test_logins(&self, observed: &mut Observed, now: Timestamp) {
        let desired = &self.cluster.desired;
        if desired.postgres.is_empty() {
            return;
        }
        let mut tried = self.logins.lock().await;
        let last_step = observed.ledger.etcd.last_step;
        tried.retain(|(_, machine), tried| {
            node(observed, machine).is_some_and(|node| tried.holds(node, last_step, now))
        });
        add(observed, &tried);
        let missing = logins_to_try(desired, observed, now).into_iter();
        let missing =
            missing.flat_map(|(cluster, machines)| machines.into_iter().map(move |name| (cluster.clone(), name)));
        let missing: Vec<(Name, Name)> = missing.filter(|one| !tried.contains_key(one)).collect();
        let members = self.cluster.places().into_iter();
        let members: BTreeMap<_, _> = members.map(|(name, at)| (SocketAddr::new(at, CLIENT_PORT), name)).collect();
        let found = join_all(missing.into_iter().map(|of| async {
            let logins = self.log_in(&of.1, &members).await?;
            Some((of, logins))
        }));
        for (of, logins) in found.await.into_iter().flatten() {
            let Some(node) = node(observed, &of.1) else { continue };
            let (file, trust) = (node.written.clone(), node.trust.clone());
            tried.insert(of, Tried { file, trust, logins });
        }
        add(observed, &tried);
    }

    /// Nothing where the agent cannot be asked: the plan says so by itself.
    async fn log_in(&self, machine: &Name, members: &BTreeMap<SocketAddr, Name>) -> Option<EtcdLogins> {
        let mut agent = self.agent(machine)?.client().await.ok()?;
        let at = Timestamp::now();
        let reply = agent.log_in_to_etcd(v1::LogInToEtcdRequest {}).await.ok()?.into_inner();
        let (_, user) = self.cluster.patronis_user(&reply.user)?;
        let outcome = |login: v1::EtcdLogin| {
            let member = members.get(&login.host.parse().ok()?)?.clone();
            Some((member, if login.error.is_empty() { Ok(()) } else { Err(login.error) }))
        };
        Some(EtcdLogins { at, user, members: reply.logins.into_iter().filter_map(outcome).collect() })
    }
}

fn node<'a>(observed: &'a Observed, machine: &Name) -> Option<&'a PostgresOnMachine> {
    observed.report(machine)?.postgres.as_ref()
}

fn add(observed: &mut Observed, tried: &BTreeMap<(Name, Name), Tried>) {
    for ((cluster, machine), tried) in tried {
        if let Some(seen) = observed.postgres.get_mut(cluster) {
            seen.logins.insert(machine.clone(), tried.logins.clone());
        }
    }
}

async fn read(mut client: Client, cluster: &Postgres) -> Result<PatroniKeys, String> {
    let all = GetOptions::new().with_prefix();
    let range = async { Ok::<_, EtcdError>(client.get(cluster.prefix.as_str(), Some(all)).await?) };
    let found = bounded(range).await.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let keys: Vec<(String, String, i64)> =
        found.kvs().iter().map(|kv| (text(kv.key()), text(kv.value()), kv.mod_revision())).collect();
    let keys = keys.iter().map(|(key, value, revision)| (key.as_str(), value.as_str(), *revision));
    PatroniKeys::read(&cluster.prefix, keys).map_err(|error| error.to_string())
}

/// What an agent reports of Patroni and PostgreSQL; nothing where it knows neither.
pub(super) struct Reported {
    program: v1::ProgramReport,
    /// Empty where the machine has neither a file nor data.
    node: v1::PostgresReport,
    /// What the machine's clock is ahead of ours.
    ahead: SignedDuration,
}

impl Reported {
    /// The part of the report that is about them.
    pub(super) fn of(reply: &v1::ReportReply, sent: Timestamp) -> Option<Self> {
        let program = reply.programs.iter().find(|report| report.program() == v1::Program::Patroni)?.clone();
        let their_clock = reply.now.and_then(|now| Timestamp::new(now.seconds, now.nanos).ok()).unwrap_or(sent);
        let node = reply.postgres.clone().unwrap_or_default();
        Some(Self { program, node, ahead: their_clock.duration_since(sent) })
    }

    /// Whether the machine has the secrets of the file that is written there, as this stack would send them.
    pub(super) async fn has_secrets(&self, stack: &StackHandle) -> Delivery {
        // Without a file there are none, and the plan has one written.
        let user = patroni::value(&self.program.config, "etcd3", "username");
        match user.and_then(|user| stack.patronis_user(&user).map(|(cluster, slot)| (cluster.clone(), slot))) {
            Some((cluster, slot)) => stack.has_patroni_secrets(&cluster, slot, &self.node.secrets_stamp).await,
            None => Delivery::Current,
        }
    }

    /// What it means, with whether its secrets are current.
    pub(super) fn understand(self, stack: &StackHandle, secrets: Delivery) -> Result<PostgresOnMachine, String> {
        let Self { program, node, ahead } = self;
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let version = |text: &str| PatroniVersion::parse(text).map_err(|error| error.to_string());
        let mut patroni = BTreeMap::new();
        for installed in program.installed {
            patroni.insert(version(&installed.version)?, installed.sha256);
        }
        let mut certificates = BTreeMap::new();
        for wire in node.certificates {
            if let Some(purpose) = purpose(wire.purpose()) {
                certificates.insert(purpose, agent::certificate(wire)?.1);
            }
        }
        let presented = node.presented.into_iter();
        let presented = presented.filter_map(|wire| Some((purpose(wire.purpose())?, wire.fingerprint))).collect();
        let host = |text: &String| text.parse().map_err(|_| format!("`{text}` is no address"));
        Ok(PostgresOnMachine {
            patroni,
            running_patroni: given(program.running_version).map(|text| version(&text)).transpose()?,
            // A version that raftsman cannot read, such as that of a beta, is none that it runs.
            installed: PostgresVersion::parse(&node.installed).ok(),
            written: file(stack, &program.config),
            taken_up: file(stack, &node.running_config),
            started_with: node.started_with.iter().map(host).collect::<Result<_, String>>()?,
            trust: given(node.etcd_trust_digest),
            secrets,
            // A record of an agent before this one does not say it.
            other_secrets: !node.running_secrets_stamp.is_empty() && node.running_secrets_stamp != node.secrets_stamp,
            certificates,
            presented,
            service: agent::process(program.service.ok_or("nothing about Patroni's process")?)?,
            data: data(node.data)?,
            had_data: node.had_data,
            ports_taken: agent::ports_taken(program.ports_taken),
            node: match given(node.answer) {
                Some(answer) => facts(&answer, ahead),
                None => Err(given(node.problem).unwrap_or_else(|| "it does not run".to_owned())),
            },
        })
    }
}

fn facts(answer: &str, ahead: SignedDuration) -> Result<NodeFacts, String> {
    let mut facts = NodeFacts::read(answer).map_err(|error| error.to_string())?;
    if facts.dcs_seen != Timestamp::UNIX_EPOCH {
        facts.dcs_seen = facts.dcs_seen.checked_sub(ahead).unwrap_or(facts.dcs_seen);
    }
    Ok(facts)
}

fn data(wire: Option<v1::PostgresData>) -> Result<PgData, String> {
    let Some(wire) = wire else { return Ok(PgData::Empty) };
    Ok(match wire.state() {
        v1::DataState::Empty => PgData::Empty,
        v1::DataState::Present => {
            PgData::Present { system: SystemId(wire.system_id), timeline: wire.timeline, position: wire.position }
        }
        v1::DataState::Unreadable => PgData::Unreadable { problem: wire.problem },
        v1::DataState::Unspecified => return Err("an unknown state of PostgreSQL's data".to_owned()),
    })
}

/// Nothing where it has a user of etcd that none of this stack's clusters has.
fn file(stack: &StackHandle, text: &str) -> Option<PatroniFile> {
    let (_, user) = stack.patronis_user(&patroni::value(text, "etcd3", "username")?)?;
    Some(PatroniFile { digest: patroni::digest(text), user, hosts: patroni::hosts(text) })
}

fn purpose(wire: v1::Purpose) -> Option<NodePurpose> {
    match wire {
        v1::Purpose::Postgres => Some(NodePurpose::Server),
        v1::Purpose::Patroni => Some(NodePurpose::Rest),
        v1::Purpose::EtcdPeer
        | v1::Purpose::EtcdServer
        | v1::Purpose::EtcdClient
        | v1::Purpose::Agent
        | v1::Purpose::Balancer
        | v1::Purpose::Unspecified => None,
    }
}
