//! The state's memory of a cluster → what no observation can tell.

#![warn(clippy::wildcard_enum_match_arm)]

mod auth;
mod etcd;
mod machines;
mod maintenance;
mod members;
mod mode;
mod rebuild;
mod recovery;
mod restore;
mod stored;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use maintenance::SpaceRecord;
pub use members::LearnerRecord;
pub use mode::{Adopted, Mode};
pub use rebuild::RebuildError;
pub use recovery::Recovery;
pub use restore::{Restoration, SnapshotSource};
pub use versions::SnapshotRecord;

use stored::Stored;

use crate::action::Action;
use crate::backup::history::begin;
use crate::backup::{Drill, History};
use crate::desired::{Stack, address_of};
use crate::observed::{
    Alarm, AuthorityRecord, ClusterId, ListedMember, MemberId, Observed, Preflight, Problem, Trust, TrustDomain, View,
};
use crate::spec::{AuthMode, Name};

/// What the state remembers of one cluster.
///
/// Every entry is written before the action that it records, so that a crash in between reads as 'may have happened'.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Ledger {
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
    /// The machines that balancers have to themselves, made or about to be made, and where they are.
    pub instances: BTreeMap<Name, IpAddr>,
    /// The addresses that the provider assigned, of machines made or still to be made.
    pub addresses: BTreeMap<Name, IpAddr>,
    /// The zone of each member's machine, where the file has zones: a changed file moves none of them.
    pub zones: BTreeMap<Name, Name>,
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
}

impl Ledger {
    /// Where its machines are, or will be made: members and instances where they are known at, the others where their
    /// provider assigned it.
    pub fn places(&self) -> BTreeMap<Name, IpAddr> {
        let mut places = self.addresses.clone();
        places.extend(self.instances.iter().map(|(name, address)| (name.clone(), *address)));
        places.extend(self.members.iter().filter_map(|(name, url)| Some((name.clone(), address_of(url)?))));
        places
    }

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

    /// Records, before an action is done, what must survive a crash during it.
    pub fn ahead(&mut self, desired: &Stack, observed: &Observed, action: &Action, now: Timestamp) {
        match action {
            Action::Machine(action) => machines::ahead(self, desired, action),
            Action::Etcd(action) => etcd::ahead(self, desired, observed, action),
            Action::Member(action) => members::ahead(self, desired, observed, action, now),
            Action::Maintenance(action) => maintenance::ahead(self, observed, action),
            Action::Auth(action) => auth::ahead(self, desired, action),
            // The next observation tells whether it was done, or the code that executes it records it.
            Action::Pki(_)
            | Action::Agent(_)
            | Action::Preflight(_)
            | Action::Version(_)
            | Action::Backup(_)
            | Action::Balancer(_)
            | Action::User(_)
            | Action::Restore(_)
            | Action::Recovery(_) => {}
        }
    }

    /// What is known once an action was done.
    pub fn after(&mut self, action: &Action) {
        match action {
            Action::Maintenance(action) => maintenance::after(self, action),
            Action::Restore(action) => restore::after(self, action),
            // The next observation shows it.
            Action::Machine(_)
            | Action::Agent(_)
            | Action::Pki(_)
            | Action::Preflight(_)
            | Action::Etcd(_)
            | Action::Member(_)
            | Action::Version(_)
            | Action::Backup(_)
            | Action::Balancer(_)
            | Action::Auth(_)
            | Action::User(_)
            | Action::Recovery(_) => {}
        }
    }

    /// Records what an observation showed and a later one may not show.
    pub fn learn(&mut self, desired: &Stack, observed: &Observed, now: Timestamp) {
        self.place(desired, observed);
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
        self.forget_places(desired);
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
    fn begin_history(&mut self, id: ClusterId, parent: Option<ClusterId>, revision: Option<i64>, now: Timestamp) {
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
