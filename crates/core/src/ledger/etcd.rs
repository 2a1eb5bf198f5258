//! A step on etcd where it runs, members that are seen → what is remembered of the cluster.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{LearnerRecord, Mode, SnapshotRecord, SpaceRecord};
use crate::action::{EtcdAction, StartData};
use crate::backup::history::begin;
use crate::backup::{Drill, History};
use crate::desired::Stack;
use crate::observed::{
    Alarm, AuthorityRecord, ClusterId, ListedMember, MemberId, Observed, Preflight, Problem, Trust, TrustDomain, View,
};
use crate::spec::{AuthMode, Name};

/// What is remembered of an etcd cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdLedger {
    /// Whether raftsman runs it or has adopted it read-only, and whether all of it is built anew.
    pub mode: Mode,
    /// The cluster's id, once it formed. A cluster never gets a second one.
    pub cluster: Option<ClusterId>,
    /// Every member that is, or whose machine still is, and where other members reach it.
    pub members: BTreeMap<Name, String>,
    /// The members that the cluster was first started with: each of them is bootstrapped with this list.
    pub founders: BTreeMap<Name, String>,
    /// Whether the members differ from the founders by now.
    pub reshaped: bool,
    /// For each member that etcd was started on: the incarnation of its machine then.
    pub started: BTreeMap<Name, String>,
    /// How clients authenticated when the cluster was first started: its superuser is made for this.
    pub auth: Option<AuthMode>,
    /// The cluster in which auth was last seen on. Before that, in another cluster or in none, members accept no client
    /// but raftsman where the file wants auth.
    pub secured: Option<ClusterId>,
    /// The authorities of the peers' certificates.
    pub peers: Option<Trust>,
    /// The authorities of the clients' certificates.
    pub clients: Option<Trust>,
    /// The highest revision ever seen: a restore must bump above it.
    pub last_revision: i64,
    /// Members that an operator wants replaced: the name, and the id of the member that had it then.
    pub replace: BTreeMap<Name, MemberId>,
    /// Since when each member that is not healthy has not been, as far as raftsman observed it.
    pub down_since: BTreeMap<Name, Timestamp>,
    /// How far the learner is.
    pub learner: Option<LearnerRecord>,
    /// Learners that made no progress and were removed again.
    pub evicted: BTreeMap<Name, Timestamp>,
    /// While the quota is used up: the compaction that is to make room.
    pub space: Option<SpaceRecord>,
    /// The last snapshot that was taken before a change of versions.
    pub snapshot: Option<SnapshotRecord>,
    /// What was measured last, and the heartbeat and election time-outs that follow from it.
    pub preflight: Option<Preflight>,
    /// Set when the cluster was seen with members from before [`REQUESTS_OF_TODAY`](crate::versions::REQUESTS_OF_TODAY), until all are beyond it: the
    /// members whose logs begin after the last request of those.
    pub log_renewed: Option<BTreeSet<MemberId>>,
    /// The last backup that was restored into a temporary etcd, as a drill.
    pub drill: Option<Drill>,
    /// The histories of the cluster's data before and after restores and recoveries, the oldest first; empty before the
    /// first of them.
    pub histories: Vec<History>,
    /// Where PostgreSQL stands on it: when the last step ended that took something of it away, or changed it.
    pub last_step: Option<Timestamp>,
    /// Where PostgreSQL stands on it: since when each of its voters has been one, as far as raftsman observed it.
    pub voters_since: BTreeMap<MemberId, Timestamp>,
}

impl EtcdLedger {
    /// The authorities of this side, once there are any.
    pub fn trust(&self, side: TrustDomain) -> Option<&Trust> {
        match side {
            TrustDomain::Peers => self.peers.as_ref(),
            TrustDomain::Clients => self.clients.as_ref(),
        }
    }

    /// The place of this side's authorities.
    pub fn trust_mut(&mut self, side: TrustDomain) -> &mut Option<Trust> {
        match side {
            TrustDomain::Peers => &mut self.peers,
            TrustDomain::Clients => &mut self.clients,
        }
    }

    /// Adds an authority: the first of its side, or the next. Before etcd was ever started no member trusts the
    /// previous one, so that the new one replaces it at once.
    pub fn take_in(&mut self, side: TrustDomain, record: AuthorityRecord) {
        let unused = self.started.is_empty() && self.cluster.is_none();
        match self.trust_mut(side) {
            Some(trust) if !unused => trust.take_in(record),
            place => *place = Some(Trust::new(record)),
        }
    }

    /// Records what an observation showed and a later one may not show.
    pub(super) fn learn(&mut self, desired: &Stack, observed: &Observed, now: Timestamp) {
        self.rebuilt(observed, now);
        self.restored(observed, now);
        let view = View::of(observed);
        let (Some(list), 1) = (view.listed, view.clusters.len()) else { return };
        if !view.has_quorum() {
            return;
        }
        self.cluster = self.cluster.or_else(|| view.clusters.keys().next().copied());
        // What one member has applied is committed: no other member loses it.
        if view.answering.values().any(|etcd| etcd.auth == Some(true) && Some(etcd.cluster) == self.cluster) {
            self.secured = self.cluster;
        }
        for member in list {
            if let (Ok(name), Some(url)) = (Name::parse(&member.name), member.peer_urls.first()) {
                self.members.insert(name, url.clone());
            }
        }
        let listed: BTreeMap<Name, &ListedMember> =
            list.iter().filter_map(|m| self.name_of(m).map(|name| (name, m))).collect();
        // A name that is no longer a member has no data that its next start must find.
        self.started.retain(|name, _| listed.contains_key(name));
        let adopted = self.adopted().is_some();
        self.members.retain(|name, _| {
            let gone = || adopted || observed.machines.get(name).is_none_or(|m| m.machine.is_absent());
            listed.contains_key(name) || desired.etcd.member(name).is_some() || !gone()
        });
        let voter = |name: &Name| listed.get(name).is_some_and(|m| !m.learner);
        // A member that denies our credentials or sends an invalid answer is up, whatever else is wrong with it.
        let answers = |name: &Name| {
            let problem = observed.etcd.members.get(name).and_then(|member| member.problem);
            matches!(problem, Some(Problem::Denied | Problem::Unclear))
        };
        let down = |name: &Name| voter(name) && !view.healthy.contains(name) && !answers(name);
        self.down_since.retain(|name, _| down(name));
        for name in listed.keys().filter(|name| down(name)) {
            self.down_since.entry(name.clone()).or_insert(now);
        }
        // The mark is for the member with this id, not for its successor of the same name.
        self.replace.retain(|name, member| {
            listed.get(name).is_none_or(|m| m.id == *member || m.learner || !view.healthy.contains(name))
        });
        if !view.alarmed(Alarm::NoSpace) {
            self.space = None;
        }
        self.learn_requests(list, &view);
        self.follow(list, &view, now);
    }

    /// The histories that lead to the data of now, the oldest first.
    pub fn lineage(&self) -> Vec<History> {
        let mut histories = self.histories.clone();
        if let Some(cluster) = self.cluster
            && histories.last().map(|history| history.id) != Some(cluster)
        {
            begin(&mut histories, History::first(cluster));
        }
        histories
    }

    /// Begins another history: what is written from now on does not continue the previous one.
    pub(super) fn begin_history(
        &mut self,
        id: ClusterId,
        parent: Option<ClusterId>,
        revision: Option<i64>,
        now: Timestamp,
    ) {
        let mut histories = self.lineage();
        begin(&mut histories, History { id, parent, revision, began: Some(now) });
        self.histories = histories;
    }

    /// The name of a listed member: its own, or the one under which it was added when it never started.
    pub fn name_of(&self, member: &ListedMember) -> Option<Name> {
        if !member.name.is_empty() {
            return Name::parse(&member.name).ok();
        }
        self.members.iter().find(|(_, url)| member.peer_urls.contains(url)).map(|(name, _)| name.clone())
    }
}

pub(super) fn ahead(ledger: &mut EtcdLedger, desired: &Stack, observed: &Observed, action: &EtcdAction) {
    match action {
        EtcdAction::StartEtcd { data: StartData::Alone(_), .. } => {
            ledger.reshaped = true;
            if let Some(recovery) = ledger.recovery_mut() {
                recovery.alone = true;
            }
        }
        EtcdAction::StartEtcd { machine, .. } => {
            if ledger.founders.is_empty() {
                ledger.founders = desired.etcd.members.iter().map(|m| (m.name.clone(), m.peer_url())).collect();
                ledger.members.extend(ledger.founders.clone());
                ledger.auth = Some(desired.etcd.auth);
            }
            if let Some(report) = observed.report(machine) {
                ledger.started.insert(machine.clone(), report.incarnation.clone());
            }
        }
        EtcdAction::ClearData { machine, member } => {
            if let Some(recovery) = ledger.recovery_mut().filter(|recovery| recovery.survivor == *machine) {
                recovery.member = *member;
            }
        }
        // The next observation tells whether it was done.
        EtcdAction::InstallEtcd { .. }
        | EtcdAction::ConfigureEtcd { .. }
        | EtcdAction::RestartEtcd { .. }
        | EtcdAction::RestartTogether { .. }
        | EtcdAction::StopEtcd { .. } => {}
    }
}
