//! A step on a PostgreSQL cluster or on the etcd beneath, nodes that are seen → what is remembered of them.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Ledger;
use crate::action::{Action, EtcdAction, MachineAction, MaintenanceAction, PkiAction, PostgresAction, VersionAction};
use crate::desired::{Postgres, Stack, UserSlot};
use crate::observed::{
    ClusterId, Observed, PatroniKeys, PostgresView, Purpose, ROOT, SystemId, Trust, TrustDomain, View,
};
use crate::spec::{AuthMode, Name};

/// What is remembered of a PostgreSQL cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PostgresLedger {
    /// Whose data it has, once its first node made it. A cluster never gets a second one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<SystemId>,
    /// For each node that Patroni was started on: the incarnation of its machine then.
    pub started: BTreeMap<Name, String>,
    /// The user of etcd that Patroni should log in as.
    pub user: UserSlot,
    /// When raftsman last changed Patroni's settings: a node that has not read them since does not tell what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings_set: Option<Timestamp>,
    /// The highest revision of the key that names the synchronous standbys, and the etcd cluster that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncRecord>,
    /// A switchover that was asked for and whose end was not seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switchover: Option<SwitchoverRecord>,
    /// Its certificate authority, once there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<Trust>,
}

/// How new the key is that names the synchronous standbys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncRecord {
    /// The etcd cluster.
    pub cluster: ClusterId,
    /// Its revision at which the key was last written.
    pub revision: i64,
}

/// A switchover that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchoverRecord {
    /// The primary then.
    pub from: Name,
    /// The standby that was to follow it.
    pub to: Name,
    /// When.
    pub begun: Timestamp,
}

/// Of a cluster that nothing is remembered of.
static UNKNOWN: PostgresLedger = PostgresLedger {
    system: None,
    started: BTreeMap::new(),
    user: UserSlot::A,
    settings_set: None,
    sync: None,
    switchover: None,
    trust: None,
};

impl PostgresLedger {
    /// Whether Patroni's keys are older than those that were seen before: the etcd beneath was built anew.
    pub fn is_rolled_back(&self, etcd: Option<ClusterId>, keys: &PatroniKeys) -> bool {
        self.sync.is_some_and(|known| Some(known.cluster) != etcd || keys.sync.revision < known.revision)
    }
}

impl Ledger {
    /// What is remembered of this PostgreSQL cluster.
    pub fn of_postgres(&self, cluster: &Name) -> &PostgresLedger {
        self.postgres.get(cluster).unwrap_or(&UNKNOWN)
    }

    /// When etcd was last touched, where PostgreSQL stands on it: at the beginning of a step, in case its end is not seen.
    pub(super) fn note_step(&mut self, desired: &Stack, action: &Action, now: Timestamp) {
        if !desired.postgres.is_empty() && touches_etcd(desired, action) {
            self.etcd.last_step = Some(now);
        }
    }
}

/// Whether a client of etcd might notice it.
fn touches_etcd(desired: &Stack, action: &Action) -> bool {
    match action {
        Action::Machine(
            MachineAction::RebuildMachine { machine }
            | MachineAction::MoveMachine { machine, .. }
            | MachineAction::DeleteMachine { machine },
        ) => desired.node(machine).is_none() && desired.instance(machine).is_none(),
        Action::Pki(
            PkiAction::ActivateAuthority { side }
            | PkiAction::DistrustAuthority { side, .. }
            | PkiAction::DeleteAuthority { side },
        ) => *side == TrustDomain::Clients,
        Action::Pki(PkiAction::IssueCertificate { purpose, .. }) => *purpose == Purpose::Server,
        Action::Etcd(
            EtcdAction::StartEtcd { .. }
            | EtcdAction::RestartEtcd { .. }
            | EtcdAction::RestartTogether { .. }
            | EtcdAction::StopEtcd { .. },
        )
        | Action::Member(_)
        | Action::Auth(_)
        | Action::Maintenance(MaintenanceAction::Defragment { .. })
        | Action::Version(VersionAction::EnableDowngrade { .. } | VersionAction::CancelDowngrade)
        | Action::Restore(_)
        | Action::Recovery(_) => true,
        Action::Etcd(
            EtcdAction::InstallEtcd { .. } | EtcdAction::ConfigureEtcd { .. } | EtcdAction::ClearData { .. },
        )
        | Action::Pki(PkiAction::MakeAuthorities | PkiAction::AddAuthority { .. } | PkiAction::StoreTrust { .. })
        | Action::Machine(
            MachineAction::AssignAddress { .. }
            | MachineAction::CreateMachine { .. }
            | MachineAction::StartMachine { .. }
            | MachineAction::Enroll { .. }
            | MachineAction::SetFirewall { .. }
            | MachineAction::SetAccess { .. }
            | MachineAction::RenewAgent { .. }
            | MachineAction::Deliver { .. },
        )
        | Action::Maintenance(MaintenanceAction::Compact { .. } | MaintenanceAction::DisarmAlarm { .. })
        | Action::Version(VersionAction::TakeSnapshot { .. })
        | Action::Agent(_)
        | Action::Preflight(_)
        | Action::Backup(_)
        | Action::Balancer(_)
        | Action::Postgres(_)
        | Action::User(_) => false,
    }
}

pub(super) fn ahead(
    ledger: &mut Ledger,
    desired: &Stack,
    observed: &Observed,
    action: &PostgresAction,
    now: Timestamp,
) {
    match action {
        PostgresAction::StartPatroni { machine, .. } => {
            let Some((cluster, _)) = desired.node(machine) else { return };
            let Some(report) = observed.report(machine) else { return };
            let known = ledger.postgres.entry(cluster.name.clone()).or_default();
            known.started.insert(machine.clone(), report.incarnation.clone());
        }
        PostgresAction::Switchover { cluster, from, to } => {
            let (from, to) = (from.clone(), to.clone());
            let known = ledger.postgres.entry(cluster.clone()).or_default();
            known.switchover = Some(SwitchoverRecord { from, to, begun: now });
        }
        PostgresAction::SetPatroni { .. } => after(ledger, action, now),
        // The next observation tells whether it was done.
        PostgresAction::MakePostgresCa { .. }
        | PostgresAction::IssueNodeCertificate { .. }
        | PostgresAction::InstallPatroni { .. }
        | PostgresAction::ConfigurePatroni { .. }
        | PostgresAction::ReloadPatroni { .. }
        | PostgresAction::RestartPatroni { .. }
        | PostgresAction::RestartPostgres { .. }
        | PostgresAction::ReinitializeNode { .. }
        | PostgresAction::StopPatroni { .. }
        | PostgresAction::SetPostgresRole { .. }
        | PostgresAction::SetNodePassword { .. }
        | PostgresAction::DropPostgresRole { .. }
        | PostgresAction::SetDatabase { .. } => {}
    }
}

pub(super) fn after(ledger: &mut Ledger, action: &PostgresAction, now: Timestamp) {
    if let PostgresAction::SetPatroni { cluster, .. } = action {
        ledger.postgres.entry(cluster.clone()).or_default().settings_set = Some(now);
    }
}

pub(super) fn learn(ledger: &mut Ledger, desired: &Stack, observed: &Observed, now: Timestamp) {
    if desired.postgres.is_empty() {
        return;
    }
    let view = View::of(observed);
    if let Some(list) = view.listed.filter(|_| view.has_quorum()) {
        let voters = || list.iter().filter(|member| !member.learner).map(|member| member.id);
        ledger.etcd.voters_since.retain(|id, _| voters().any(|voter| voter == *id));
        for id in voters() {
            ledger.etcd.voters_since.entry(id).or_insert(now);
        }
    }
    // Where no client but raftsman and Patroni can log in, no operator has to say that all clients have the new CA.
    if let Some(trust) = ledger.etcd.clients.as_mut().filter(|trust| !trust.old.is_empty())
        && all_clients_are_ours(desired, observed)
    {
        trust.finish = true;
    }
    let etcd = ledger.etcd.cluster;
    for cluster in &desired.postgres {
        let known = ledger.postgres.entry(cluster.name.clone()).or_default();
        let gone = |name: &Name| observed.machines.get(name).is_none_or(|seen| seen.machine.is_absent());
        known.started.retain(|name, _| cluster.node(name).is_some() || !gone(name));
        let Some(seen) = PostgresView::seen(cluster, observed) else { continue };
        learn_keys(known, cluster, &seen, etcd, now);
    }
}

/// Whether etcd has passwords, and users for nothing but raftsman and Patroni.
fn all_clients_are_ours(desired: &Stack, observed: &Observed) -> bool {
    let access = observed.answers().find_map(|(_, etcd)| etcd.access.as_ref()?.as_ref().ok());
    let ours = |user: &String| user == ROOT || desired.etcd.access.patroni.contains(user);
    desired.etcd.auth == AuthMode::Password && access.is_some_and(|access| access.users.keys().all(ours))
}

fn learn_keys(
    known: &mut PostgresLedger,
    cluster: &Postgres,
    seen: &PostgresView<'_>,
    etcd: Option<ClusterId>,
    now: Timestamp,
) {
    let keys = seen.keys();
    // Another one would be a second cluster under the same name.
    known.system = known.system.or(keys.system);
    let lasts = |record: &SwitchoverRecord| {
        let patience = i64::from(cluster.section.patroni.ttl + 2 * cluster.section.patroni.loop_wait.max(10));
        let new = now.duration_since(record.begun).as_secs() < patience;
        let done = cluster.node(&record.to).is_some_and(|node| seen.primary() == Some(node.patroni_name.as_str()));
        let given_up = !keys.failover && !new && seen.primary().is_some();
        !done && !given_up
    };
    known.switchover = known.switchover.take().filter(lasts);
    // Keys of an etcd that was built anew are trusted once a primary has written them again.
    if known.is_rolled_back(etcd, keys) && (seen.primary().is_none() || keys.sync.leader.as_deref() != seen.primary()) {
        return;
    }
    let record = |cluster: ClusterId| SyncRecord { cluster, revision: keys.sync.revision };
    known.sync = etcd.map(record).filter(|_| keys.system.is_some()).or(known.sync);
}
