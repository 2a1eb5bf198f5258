//! `raftsman status`: the world → the status of every cluster and member.

mod balancer;
mod postgres;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use raftsman_core::backup::{Drill, Health, health, last_drill};
use raftsman_core::desired::{Member, Stack};
use raftsman_core::model::forecast;
use raftsman_core::observed::{
    AccessProbe, AgentReport, Alarm, BackupState, CertificateFacts, ClusterId, Filling, Observed, Purpose, Tolerance,
    TrustDomain, View, Zones,
};
use raftsman_core::plan::{Drift, Waiting, drift, plan};
use raftsman_core::spec::{EtcdVersion, Name};
use serde::Serialize;

pub use balancer::{BackendStatus, BalancerStatus, InstanceStatus};
pub use postgres::{NodeStatus, PostgresStatus, SwitchoverStatus, postgres};

use super::{OpError, Surroundings, for_each_stack, surroundings};
use crate::fleet::Fleet;
use crate::machines::SilentConnection;
use crate::observe::Observer;

/// The status of a fleet.
#[derive(Debug, Clone, Serialize)]
pub struct FleetStatus {
    /// Its name.
    pub fleet: Name,
    /// Its clusters.
    pub clusters: Vec<ClusterStatus>,
    /// Machines of the fleet that the file does not name.
    pub unnamed_machines: Vec<String>,
    /// Connections of the provider that do not answer.
    pub provider_unreachable: Vec<SilentConnection>,
}

/// The status of a cluster.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterStatus {
    /// Its name.
    pub cluster: Name,
    /// etcd's id of it.
    pub id: Option<ClusterId>,
    /// Whether it is converged: no step and nothing to wait for.
    pub settled: bool,
    /// What it can lose.
    pub tolerance: Tolerance,
    /// Its zones, and how many of them it can lose, where zones are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zones: Option<Zones>,
    /// The leader's name.
    pub leader: Option<Name>,
    /// Whether auth is enabled.
    pub auth: Option<bool>,
    /// Alarms that etcd raised.
    pub alarms: Vec<Alarm>,
    /// What fills the database, while its quota is used up.
    pub filling: Option<Filling>,
    /// Its members.
    pub members: Vec<MemberStatus>,
    /// Machines that the provider is still to assign an address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_address: Vec<Name>,
    /// The balancers in front of it.
    pub balancers: Vec<BalancerStatus>,
    /// The PostgreSQL clusters that stand on it.
    pub postgres: Vec<PostgresStatus>,
    /// Steps that `apply` would take, from the first to the last: as many as `plan` shows.
    pub pending: usize,
    /// What is wrong or waited for.
    pub waiting: Vec<WaitingStatus>,
    /// Roles and users that differ from the file.
    pub drift: Vec<Drift>,
    /// The member's certificate that expires first.
    pub first_expiry: Option<Expiry>,
    /// The authority in use that expires first.
    pub first_ca_expiry: Option<Expiry>,
    /// The status of scheduled backups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backups: Option<Health>,
    /// The last drill of a backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drill: Option<Drill>,
    /// Sides whose old authority is still trusted, so that clients can get new certificates.
    pub old_ca_trusted: Vec<TrustDomain>,
}

/// A problem or something that is waited for, as text.
#[derive(Debug, Clone, Serialize)]
pub struct WaitingStatus {
    /// In words.
    pub message: String,
    /// What to do.
    pub next: String,
    /// As data.
    #[serde(flatten)]
    pub waiting: Waiting,
}

/// The expiry of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Expiry {
    /// When.
    pub at: Timestamp,
    /// What: `peer` or `server`, or an authority's side; of PostgreSQL `server` or `rest`, or `postgres` for the authority.
    pub what: &'static str,
    /// The member or node that it belongs to, if any.
    pub member: Option<Name>,
    /// Whether it is due for renewal.
    pub due: bool,
}

/// The status of a member.
#[derive(Debug, Clone, Serialize)]
pub struct MemberStatus {
    /// Its name.
    pub name: Name,
    /// Its address.
    pub address: std::net::IpAddr,
    /// In one word: `leader`, `follower`, `unhealthy`, `starting`, `silent`, `denied`, `unclear`, `stopped`,
    /// `unreachable`, `missing`.
    pub state: &'static str,
    /// What prevents it from being healthy, if anything.
    pub problem: Option<String>,
    /// The version that runs.
    pub version: Option<EtcdVersion>,
    /// Size of the database.
    pub db_size: Option<i64>,
    /// Of that, in use.
    pub db_in_use: Option<i64>,
    /// Its revision.
    pub revision: Option<i64>,
    /// The process.
    pub pid: Option<u32>,
    /// How often it ended by itself.
    pub restarts: Option<u32>,
    /// The result of the access probe: whether unauthenticated clients are denied.
    pub probe: Option<AccessProbe>,
    /// Its certificates.
    pub certificates: BTreeMap<Purpose, CertificateFacts>,
    /// Its machine's agent.
    pub agent: Option<AgentStatus>,
}

/// Which agent runs on a machine.
#[derive(Debug, Clone, Serialize)]
pub struct AgentStatus {
    /// Its version.
    pub version: String,
    /// SHA-256 of its program, where it is known.
    pub sha256: Option<String>,
    /// Whether that is the program that this raftsman ships, where both are known.
    pub shipped: Option<bool>,
}

impl FleetStatus {
    /// Whether every cluster is converged.
    pub fn settled(&self) -> bool {
        self.clusters.iter().all(|c| c.settled) && self.provider_unreachable.is_empty()
    }
}

/// Observes everything.
pub async fn status(fleet: &Arc<Fleet>, only: &[Name]) -> Result<FleetStatus, OpError> {
    let clusters = for_each_stack(fleet, only, |cluster| async move {
        let observed = Observer::new(Arc::clone(&cluster))?.look().await?;
        let now = Timestamp::now();
        let next = plan(&cluster.desired, &observed, now);
        let view = View::of(&observed);
        let members: Vec<MemberStatus> =
            cluster.desired.etcd.members.iter().map(|m| member(&cluster.desired, &observed, &view, m)).collect();
        let access = view.answering.values().find_map(|e| e.access.as_ref()).and_then(|access| access.as_ref().ok());
        let drift = access.map(|seen| drift(&cluster.desired.etcd.access, seen)).unwrap_or_default();
        let state = observed.reports().filter_map(|(name, report)| Some((name, report.backups.as_ref()?)));
        let state: BTreeMap<Name, BackupState> = state.map(|(name, state)| (name.clone(), state.clone())).collect();
        let drills = last_drill(&state).into_iter().chain(&observed.ledger.etcd.drill);
        let backups = cluster.fleet.spec.backups.as_ref().and_then(|settings| health(settings, &state, now));
        Ok(ClusterStatus {
            id: observed.ledger.etcd.cluster.or_else(|| view.clusters.keys().next().copied()),
            settled: next.is_done() && backups.as_ref().is_none_or(|backups| backups.problems.is_empty()),
            backups,
            drill: drills.max_by_key(|drill| drill.at).cloned(),
            tolerance: view.tolerance(),
            zones: Zones::of(&cluster.desired, &observed, &view),
            leader: view.leader.cloned(),
            auth: view.answering.values().find_map(|e| e.auth),
            alarms: [Alarm::NoSpace, Alarm::Corrupt].into_iter().filter(|alarm| view.alarmed(*alarm)).collect(),
            filling: observed.etcd.maintenance.filling.clone(),
            first_expiry: first_leaf(&cluster.desired, &members, now),
            first_ca_expiry: first_authority(&cluster.desired, &observed, now),
            old_ca_trusted: TrustDomain::ALL.into_iter().filter(|side| awaits(&observed, *side, now)).collect(),
            drift,
            pending: forecast(&cluster.desired, &observed, now).steps().count(),
            waiting: next
                .waiting
                .into_iter()
                .map(|w| WaitingStatus { message: w.to_string(), next: w.next(), waiting: w })
                .collect(),
            balancers: balancer::balancers(&cluster.desired, &observed),
            postgres: postgres(&cluster.desired, &observed, now),
            without_address: cluster.desired.unplaced_machines().map(|machine| machine.name.clone()).collect(),
            cluster: cluster.desired.name.clone(),
            members,
        })
    });
    // Concurrently: a provider that does not answer costs its time limit once.
    let (clusters, around) = tokio::join!(clusters, surroundings(fleet));
    let Surroundings { unnamed: unnamed_machines, silent: provider_unreachable } = around?;
    Ok(FleetStatus { clusters: clusters?, unnamed_machines, provider_unreachable, fleet: fleet.spec.fleet.clone() })
}

fn first_leaf(desired: &Stack, members: &[MemberStatus], now: Timestamp) -> Option<Expiry> {
    let of_member = |m: &MemberStatus| {
        let profile = desired.etcd.member(&m.name).cloned();
        let name = m.name.clone();
        let expiry = move |(purpose, facts): (&Purpose, &CertificateFacts)| {
            let renew_before = profile.as_ref().map(|m| m.profile(*purpose).renew_before());
            let due = renew_before.is_some_and(|before| facts.not_after.duration_since(now) <= before);
            Expiry { at: facts.not_after, what: purpose.name(), member: Some(name.clone()), due }
        };
        m.certificates.iter().map(expiry).collect::<Vec<_>>()
    };
    members.iter().flat_map(of_member).min()
}

fn first_authority(desired: &Stack, observed: &Observed, now: Timestamp) -> Option<Expiry> {
    let expiry = |side: TrustDomain| {
        let trust = observed.ledger.etcd.trust(side)?;
        let at = trust.next.as_ref().unwrap_or(&trust.current).not_after;
        let due = at.duration_since(now) < desired.etcd.renew_authority_before();
        Some(Expiry { at, what: side.name(), member: None, due })
    };
    TrustDomain::ALL.into_iter().filter_map(expiry).min()
}

/// Whether the rotation waits for clients.
fn awaits(observed: &Observed, side: TrustDomain, now: Timestamp) -> bool {
    observed.ledger.etcd.trust(side).is_some_and(|t| !t.old.is_empty() && !t.finishes(side, now))
}

impl AgentStatus {
    pub(super) fn of(desired: &Stack, report: &AgentReport) -> Self {
        let sha256 = report.program.as_ref().and_then(|program| program.digest.clone());
        let shipped = desired.agents.shipped.as_ref().zip(sha256.as_ref()).map(|(ours, theirs)| ours.digest == *theirs);
        Self { version: report.version.clone(), sha256, shipped }
    }
}

fn member(desired: &Stack, observed: &Observed, view: &View<'_>, of: &Member) -> MemberStatus {
    let (name, address) = (&of.name, of.address);
    use raftsman_core::observed::{Fact, Power, Problem, ServiceState};
    let seen = observed.machines.get(name).zip(observed.etcd.members.get(name));
    let (report, etcd) = (observed.report(name), observed.answer(name));
    let error = |fact: &Fact<_>| match fact {
        Fact::Unreachable { error, .. } => Some(error.clone()),
        _ => None,
    };
    let service = report.map(|r| &r.etcd.service);
    let (state, problem) = match (seen, etcd) {
        (_, Some(e)) if !e.healthy() => ("unhealthy", e.read_error.clone()),
        (_, Some(_)) if view.leader == Some(name) => ("leader", None),
        (_, Some(e)) if e.learner => ("learner", None),
        (_, Some(_)) => ("follower", None),
        (None, None) => ("missing", None),
        (Some((machine, member)), None) => match (&machine.machine, service.map(|s| s.state)) {
            (Fact::Unreachable { error, .. }, _) => ("unreachable", Some(error.clone())),
            (Fact::Absent { .. }, _) => ("missing", None),
            (Fact::Seen { value, .. }, _) if value.power == Power::Stopped => {
                ("stopped", Some("the machine does not run".to_owned()))
            }
            (_, Some(ServiceState::Stopped)) => ("stopped", None),
            (_, Some(ServiceState::Backoff)) => ("crashing", service.and_then(|s| s.last_exit.clone())),
            (_, Some(ServiceState::Running)) => match member.problem {
                None => ("starting", error(&member.etcd)),
                Some(Problem::Silent) => ("silent", error(&member.etcd)),
                Some(Problem::Denied) => ("denied", error(&member.etcd)),
                Some(Problem::Unclear) => ("unclear", error(&member.etcd)),
            },
            (_, None) => match &machine.agent {
                Fact::Unreachable { error, .. } => ("unreachable", Some(error.clone())),
                _ => ("new", None),
            },
        },
    };
    MemberStatus {
        name: name.clone(),
        address,
        state,
        problem,
        version: etcd.map(|e| e.version),
        db_size: etcd.map(|e| e.db_size),
        db_in_use: etcd.map(|e| e.db_in_use),
        revision: etcd.map(|e| e.revision),
        pid: service.and_then(|s| s.pid),
        restarts: service.map(|s| s.restarts),
        probe: etcd.and_then(|e| e.probe.clone()),
        certificates: report.map(|r| r.etcd.certificates.clone()).unwrap_or_default(),
        agent: report.map(|r| AgentStatus::of(desired, r)),
    }
}
