//! The state's memory of a cluster → what no look at the world can tell.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::etcd::{Alarm, ClusterId, ListedMember, MemberId, Problem};
use super::{AuthorityRecord, Data, Observed, Preflight, Side, Trust, View};
use crate::action::{
    Action, AuthAction, EtcdAction, MachineAction, MemberAction, PkiAction, PreflightAction, RecoveryAction,
    RestoreAction, StartData, UpkeepAction, UserAction, VersionAction,
};
use crate::backup::history::begin;
use crate::backup::{Drill, FullName, History, Manifest};
use crate::desired::Cluster;
use crate::spec::{AuthMode, EtcdVersion, Name};
use crate::versions::{Line, REQUESTS_OF_TODAY};

/// A learner's progress is written down no more often than this.
const PROGRESS: SignedDuration = SignedDuration::from_secs(5);

/// What the state remembers of one cluster.
///
/// Every entry is written before the act that it speaks of, so that a crash in between is seen as 'may have happened'.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// The cluster's id, once it formed. A cluster never gets a second one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Every member that is, or whose machine still is, and where other members reach it.
    pub members: BTreeMap<Name, String>,
    /// The members that the cluster was first started with: each of them is born by this list.
    pub founders: BTreeMap<Name, String>,
    /// Whether the members are others by now than the founders.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reshaped: bool,
    /// For each member that etcd was started on: the incarnation of its machine then.
    pub started: BTreeMap<Name, String>,
    /// How clients proved who they are when the cluster was first started: its superuser is made for this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthMode>,
    /// The cluster in which auth was last seen on. Before that, in another cluster or in none, members accept no client
    /// but raftsman where the file wants auth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secured: Option<ClusterId>,
    /// The authorities of the peers' certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<Trust>,
    /// The authorities of the clients' certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<Trust>,
    /// The highest revision ever seen: a restore must bump above it.
    pub last_revision: i64,
    /// Members that somebody wants replaced: the name, and the member of that name that it is about.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub replace: BTreeMap<Name, MemberId>,
    /// Since when each member that is not healthy has not been, as far as anybody looked.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub down_since: BTreeMap<Name, Timestamp>,
    /// How far the learner is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learner: Option<LearnerRecord>,
    /// Set while others run the cluster: raftsman watches its members, and has no machine of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adopted: Option<Adopted>,
    /// Learners that did not get on and were taken out again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub evicted: BTreeMap<Name, Timestamp>,
    /// While the quota is used up: the compaction that is to make room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<SpaceRecord>,
    /// The last snapshot that was taken before a change of versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotRecord>,
    /// What was measured last, and the heartbeat and election time-outs that follow from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preflight: Option<Preflight>,
    /// Set when the cluster was seen with members from before [`REQUESTS_OF_TODAY`], until all are beyond it: the
    /// members whose logs begin after the last request of those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_renewed: Option<BTreeSet<MemberId>>,
    /// Set while the cluster is built anew around one that survived, because somebody decided so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// The last backup that was restored into a throwaway etcd, to see whether it can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drill: Option<Drill>,
    /// Set while a backup takes the place of all data, because somebody decided so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restoration: Option<Restoration>,
    /// The histories of the cluster's data before and after restores and recoveries, the oldest first; empty before the
    /// first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub histories: Vec<History>,
}

/// A backup that takes the place of all data of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restoration {
    /// The full backup that it comes from.
    pub backup: FullName,
    /// The history that it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<ClusterId>,
    /// What was verified when it was decided: machines that read the store themselves are held to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Box<Manifest>>,
    /// The last revision in it.
    pub revision: i64,
    /// How many keys there are then.
    pub keys: u64,
    /// When it was decided.
    pub since: Timestamp,
    /// Clusters whose data it takes the place of.
    pub old: BTreeSet<ClusterId>,
    /// The members to be, and where they reach each other.
    pub members: BTreeMap<Name, String>,
    /// The version whose tool restores it, and that runs first.
    pub version: EtcdVersion,
    /// The one snapshot that all members are restored from.
    pub source: SnapshotSource,
    /// SHA-256 of it.
    pub sha256: String,
    /// Revisions begin so far above the last one in it: above all that anybody ever saw.
    pub bump: u64,
    /// Whether all members were seen to hold the same, before anybody else could see them.
    #[serde(default)]
    pub agreed: bool,
}

/// Where a snapshot is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotSource {
    /// In this file, in the state's directory of snapshots.
    File(String),
    /// It is the full backup itself, among those of this cluster (`CLUSTER`, or `FLEET/CLUSTER`; the cluster's own without
    /// one): machines read it from the store.
    Store(Option<String>),
}

impl Restoration {
    /// Whether this data is what it takes the place of.
    pub fn replaces(&self, data: &Data) -> bool {
        match data {
            Data::Empty => false,
            Data::Unreadable { .. } => true,
            Data::Present { cluster, .. } => self.old.contains(cluster),
        }
    }
}

/// A cluster that lost its majority for good, and the member around which it is built anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// Whose data the new cluster has.
    pub survivor: Name,
    /// The cluster that lost its majority.
    pub of: ClusterId,
    /// When it was decided.
    pub since: Timestamp,
    /// Whether the survivor was told to forget the others.
    pub alone: bool,
    /// Whether it was seen to serve alone since: all that is committed in its log has been applied.
    pub settled: bool,
    /// Which member it was, once its data is put away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberId>,
}

/// A snapshot of all data, taken before a change of versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// The version that was about to come.
    pub before: EtcdVersion,
    /// The version that wrote it.
    pub from: EtcdVersion,
    /// It holds at least this revision.
    pub revision: i64,
    /// When it was taken.
    pub at: Timestamp,
    /// Its file in the state's directory of snapshots.
    pub file: String,
}

/// A compaction that is to make room.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceRecord {
    /// Everything before this revision goes.
    pub revision: i64,
    /// Whether it ended on every member: compacting goes on behind the call, so that a run that was killed in between
    /// does not know.
    pub done: bool,
    /// Whose files were rewritten since: what those say is in use is true.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub rewritten: BTreeSet<Name>,
}

/// A cluster that others run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// Where clients reach each member: others may have given it another port than raftsman would.
    pub clients: BTreeMap<Name, String>,
}

/// How far a learner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnerRecord {
    /// Which.
    pub member: MemberId,
    /// The last index of its log.
    pub index: u64,
    /// Since when it has not got on.
    pub since: Timestamp,
}

impl Ledger {
    /// The authorities of this side, once there are any.
    pub fn trust(&self, side: Side) -> Option<&Trust> {
        match side {
            Side::Peers => self.peers.as_ref(),
            Side::Clients => self.clients.as_ref(),
        }
    }

    /// The place of this side's authorities.
    pub fn trust_mut(&mut self, side: Side) -> &mut Option<Trust> {
        match side {
            Side::Peers => &mut self.peers,
            Side::Clients => &mut self.clients,
        }
    }

    /// Takes an authority in: the first of its side, or the next. Before etcd was ever started there is nobody who trusts
    /// the one before.
    pub fn take_in(&mut self, side: Side, record: AuthorityRecord) {
        let nobody = self.started.is_empty() && self.cluster.is_none();
        match self.trust_mut(side) {
            Some(trust) if !nobody => trust.take_in(record),
            place => *place = Some(Trust::new(record)),
        }
    }

    /// What a crash must not make us forget about an action, written down before it is done.
    pub fn ahead(&mut self, desired: &Cluster, observed: &Observed, action: &Action, now: Timestamp) {
        match action {
            Action::Etcd(EtcdAction::StartEtcd { data: StartData::Alone(_), .. }) => {
                self.reshaped = true;
                self.recovery.iter_mut().for_each(|recovery| recovery.alone = true);
            }
            Action::Etcd(EtcdAction::StartEtcd { machine, .. }) => {
                if self.founders.is_empty() {
                    self.founders = desired.members.iter().map(|m| (m.name.clone(), m.peer_url())).collect();
                    self.members.extend(self.founders.clone());
                    self.auth = Some(desired.auth);
                }
                if let Some(report) = observed.members.get(machine).and_then(|m| m.report()) {
                    self.started.insert(machine.clone(), report.incarnation.clone());
                }
            }
            Action::Etcd(EtcdAction::ClearData { machine, member }) => {
                let recovery = self.recovery.iter_mut().filter(|recovery| recovery.survivor == *machine);
                recovery.for_each(|recovery| recovery.member = *member);
            }
            Action::Auth(AuthAction::EnableAuth) | Action::Auth(AuthAction::DisableAuth) => {
                self.auth = Some(desired.auth)
            }
            Action::Machine(MachineAction::CreateMachine { machine }) if self.cluster.is_some() => {
                if let Some(member) = desired.member(machine) {
                    self.members.entry(machine.clone()).or_insert_with(|| member.peer_url());
                }
            }
            Action::Member(MemberAction::AddLearner { machine, peer_url }) => {
                self.reshaped = true;
                self.members.insert(machine.clone(), peer_url.clone());
                self.evicted.remove(machine);
            }
            Action::Member(MemberAction::UpdateMember { .. }) => self.reshaped = true,
            Action::Member(MemberAction::RemoveMember { member, .. }) => {
                self.reshaped = true;
                let listed = View::of(observed).listed.unwrap_or_default().iter().find(|m| m.id == *member);
                let learner = listed.filter(|m| m.learner).and_then(|m| self.name_of(m));
                self.evicted.extend(learner.filter(|name| desired.member(name).is_some()).map(|name| (name, now)));
            }
            Action::Upkeep(UpkeepAction::Compact { revision }) if View::of(observed).alarmed(Alarm::NoSpace) => {
                self.space = Some(SpaceRecord { revision: *revision, done: false, rewritten: BTreeSet::new() });
            }
            // A look at the world tells whether it was done, or what carries it out writes it down.
            Action::Pki(PkiAction::MakeAuthorities)
            | Action::Pki(PkiAction::NextAuthority { .. })
            | Action::Pki(PkiAction::SwitchAuthority { .. })
            | Action::Pki(PkiAction::RetireAuthority { .. })
            | Action::Pki(PkiAction::ForgetAuthority { .. })
            | Action::Pki(PkiAction::StoreTrust { .. })
            | Action::Machine(MachineAction::CreateMachine { .. })
            | Action::Machine(MachineAction::StartMachine { .. })
            | Action::Machine(MachineAction::Enroll { .. })
            | Action::Preflight(PreflightAction::Measure)
            | Action::Etcd(EtcdAction::InstallEtcd { .. })
            | Action::Pki(PkiAction::IssueCertificate { .. })
            | Action::Etcd(EtcdAction::ConfigureEtcd { .. })
            | Action::Machine(MachineAction::SetFirewall { .. })
            | Action::Machine(MachineAction::SetAccess { .. })
            | Action::Machine(MachineAction::RenewAgent { .. })
            | Action::Machine(MachineAction::Deliver { .. })
            | Action::Etcd(EtcdAction::RestartEtcd { .. })
            | Action::Etcd(EtcdAction::RestartTogether { .. })
            | Action::Etcd(EtcdAction::StopEtcd { .. })
            | Action::Recovery(RecoveryAction::RestoreData { .. })
            | Action::Restore(RestoreAction::PrepareRestore)
            | Action::Restore(RestoreAction::RestoreBackup { .. })
            | Action::Restore(RestoreAction::CompareRestored { .. })
            | Action::Machine(MachineAction::DeleteMachine { .. })
            | Action::Machine(MachineAction::RebuildMachine { .. })
            | Action::Machine(MachineAction::MoveMachine { .. })
            | Action::Member(MemberAction::PromoteMember { .. })
            | Action::Member(MemberAction::MoveLeader { .. })
            | Action::Upkeep(UpkeepAction::Compact { .. })
            | Action::Upkeep(UpkeepAction::Defragment { .. })
            | Action::Upkeep(UpkeepAction::DisarmAlarm { .. })
            | Action::Version(VersionAction::TakeSnapshot { .. })
            | Action::Version(VersionAction::EnableDowngrade { .. })
            | Action::Version(VersionAction::CancelDowngrade)
            | Action::Auth(AuthAction::CreateRoot)
            | Action::Auth(AuthAction::ChangeRootPassword)
            | Action::User(UserAction::SetRole { .. })
            | Action::User(UserAction::DeleteRole { .. })
            | Action::User(UserAction::SetUser { .. })
            | Action::User(UserAction::DeleteUser { .. }) => {}
        }
    }

    /// What is known once an action was done.
    pub fn after(&mut self, action: &Action) {
        match action {
            Action::Upkeep(UpkeepAction::Compact { revision }) => {
                self.space.iter_mut().for_each(|space| space.done |= space.revision == *revision);
            }
            Action::Upkeep(UpkeepAction::Defragment { machine }) => self.space.iter_mut().for_each(|space| {
                space.rewritten.insert(machine.clone());
            }),
            Action::Restore(RestoreAction::CompareRestored { .. }) => {
                self.restoration.iter_mut().for_each(|it| it.agreed = true)
            }
            // The next look shows it.
            Action::Pki(PkiAction::MakeAuthorities)
            | Action::Pki(PkiAction::NextAuthority { .. })
            | Action::Pki(PkiAction::SwitchAuthority { .. })
            | Action::Pki(PkiAction::RetireAuthority { .. })
            | Action::Pki(PkiAction::ForgetAuthority { .. })
            | Action::Pki(PkiAction::StoreTrust { .. })
            | Action::Machine(MachineAction::CreateMachine { .. })
            | Action::Machine(MachineAction::StartMachine { .. })
            | Action::Machine(MachineAction::Enroll { .. })
            | Action::Preflight(PreflightAction::Measure)
            | Action::Etcd(EtcdAction::InstallEtcd { .. })
            | Action::Pki(PkiAction::IssueCertificate { .. })
            | Action::Etcd(EtcdAction::ConfigureEtcd { .. })
            | Action::Machine(MachineAction::SetFirewall { .. })
            | Action::Machine(MachineAction::SetAccess { .. })
            | Action::Machine(MachineAction::RenewAgent { .. })
            | Action::Machine(MachineAction::Deliver { .. })
            | Action::Etcd(EtcdAction::StartEtcd { .. })
            | Action::Etcd(EtcdAction::RestartEtcd { .. })
            | Action::Etcd(EtcdAction::RestartTogether { .. })
            | Action::Etcd(EtcdAction::StopEtcd { .. })
            | Action::Etcd(EtcdAction::ClearData { .. })
            | Action::Recovery(RecoveryAction::RestoreData { .. })
            | Action::Restore(RestoreAction::PrepareRestore)
            | Action::Restore(RestoreAction::RestoreBackup { .. })
            | Action::Machine(MachineAction::DeleteMachine { .. })
            | Action::Machine(MachineAction::RebuildMachine { .. })
            | Action::Machine(MachineAction::MoveMachine { .. })
            | Action::Member(MemberAction::AddLearner { .. })
            | Action::Member(MemberAction::PromoteMember { .. })
            | Action::Member(MemberAction::RemoveMember { .. })
            | Action::Member(MemberAction::UpdateMember { .. })
            | Action::Member(MemberAction::MoveLeader { .. })
            | Action::Upkeep(UpkeepAction::DisarmAlarm { .. })
            | Action::Version(VersionAction::TakeSnapshot { .. })
            | Action::Version(VersionAction::EnableDowngrade { .. })
            | Action::Version(VersionAction::CancelDowngrade)
            | Action::Auth(AuthAction::CreateRoot)
            | Action::Auth(AuthAction::ChangeRootPassword)
            | Action::Auth(AuthAction::EnableAuth)
            | Action::Auth(AuthAction::DisableAuth)
            | Action::User(UserAction::SetRole { .. })
            | Action::User(UserAction::DeleteRole { .. })
            | Action::User(UserAction::SetUser { .. })
            | Action::User(UserAction::DeleteUser { .. }) => {}
        }
    }

    /// Takes in what a look at the world showed and a later one may not show.
    pub fn learn(&mut self, desired: &Cluster, observed: &Observed, now: Timestamp) {
        self.rebuilt(observed, now);
        self.restored(observed, now);
        let view = View::of(observed);
        let (Some(list), 1) = (view.listed, view.clusters.len()) else { return };
        if !view.has_quorum() {
            return;
        }
        self.cluster = self.cluster.or_else(|| view.clusters.keys().next().copied());
        // What one member has applied is committed: no other member forgets it.
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
        // Who is no member any more has no past that could be in the way.
        self.started.retain(|name, _| listed.contains_key(name));
        let adopted = self.adopted.is_some();
        self.members.retain(|name, _| {
            let gone = || adopted || observed.members.get(name).is_none_or(|m| m.machine.is_absent());
            listed.contains_key(name) || desired.member(name).is_some() || !gone()
        });
        let voter = |name: &Name| listed.get(name).is_some_and(|m| !m.learner);
        // One whose answer is refused or makes no sense is up, whatever else is wrong with it.
        let answers = |name: &Name| {
            let problem = observed.members.get(name).and_then(|seen| seen.problem);
            matches!(problem, Some(Problem::Denied | Problem::Unclear))
        };
        let down = |name: &Name| voter(name) && !view.healthy.contains(name) && !answers(name);
        self.down_since.retain(|name, _| down(name));
        for name in listed.keys().filter(|name| down(name)) {
            self.down_since.entry(name.clone()).or_insert(now);
        }
        // The mark is about the member that was: its successor has nothing to do with it.
        self.replace.retain(|name, member| {
            listed.get(name).is_none_or(|m| m.id == *member || m.learner || !view.healthy.contains(name))
        });
        if !view.alarmed(Alarm::NoSpace) {
            self.space = None;
        }
        self.learn_requests(list, &view);
        self.follow(list, &view, now);
    }

    /// Whose log may still hold requests of an older line. A member that has followed the cluster down to the older line
    /// has written a snapshot of its log then (etcd does so for nothing else), and one of the line beyond has read it all.
    fn learn_requests(&mut self, list: &[ListedMember], view: &View<'_>) {
        let answers = || view.answering.values().filter(|e| list.iter().any(|m| m.id == e.member));
        if answers().any(|e| Line::of(e.version) < REQUESTS_OF_TODAY) {
            self.log_renewed = Some(BTreeSet::new());
            return;
        }
        let Some(renewed) = &mut self.log_renewed else { return };
        let older = Some(REQUESTS_OF_TODAY.below());
        for etcd in answers() {
            let down = etcd.downgrade.map(Line::of) == older && etcd.storage_version.map(Line::of) == older;
            if down || Line::of(etcd.version) > REQUESTS_OF_TODAY {
                renewed.insert(etcd.member);
            }
        }
        renewed.retain(|id| list.iter().any(|m| m.id == *id));
        let beyond = |id| answers().any(|e| e.member == id && Line::of(e.version) > REQUESTS_OF_TODAY);
        if list.iter().all(|m| beyond(m.id)) {
            self.log_renewed = None;
        }
    }

    /// Once the survivor has the data of a cluster of its own, that one is ours, and nobody else is in it.
    fn rebuilt(&mut self, observed: &Observed, now: Timestamp) {
        let Some(recovery) = &mut self.recovery else { return };
        recovery.settled |= recovery.alone && View::of(observed).is_alone(&recovery.survivor);
        let found = observed.members.get(&recovery.survivor).and_then(|m| m.cluster_on_disk());
        let Some(cluster) = found.filter(|found| *found != recovery.of) else { return };
        let (survivor, parent) = (recovery.survivor.clone(), recovery.of);
        self.begin_history(cluster, Some(parent), None, now);
        self.cluster = Some(cluster);
        self.reshaped = true;
        self.members.retain(|name, _| *name == survivor);
        self.started.retain(|name, _| *name == survivor);
        self.down_since.clear();
        self.evicted.clear();
        (self.learner, self.space, self.recovery) = (None, None, None);
        // Its log begins anew.
        self.log_renewed = None;
    }

    /// Once all members have the same of a backup, they are the cluster.
    fn restored(&mut self, observed: &Observed, now: Timestamp) {
        let Some(restoration) = self.restoration.clone().filter(|restoration| restoration.agreed) else { return };
        let report = |name: &Name| observed.members.get(name).and_then(|member| member.report());
        let Some(cluster) = restoration.members.keys().find_map(|name| match report(name)?.etcd.data {
            Data::Present { cluster, .. } => Some(cluster).filter(|found| !restoration.old.contains(found)),
            Data::Empty | Data::Unreadable { .. } => None,
        }) else {
            return;
        };
        self.begin_history(cluster, restoration.history, Some(restoration.revision), now);
        self.cluster = Some(cluster);
        self.members.clone_from(&restoration.members);
        self.founders.clone_from(&restoration.members);
        let incarnation = |name: &Name| Some((name.clone(), report(name)?.incarnation.clone()));
        self.started = restoration.members.keys().filter_map(incarnation).collect();
        self.reshaped = false;
        self.down_since.clear();
        self.evicted.clear();
        self.replace.clear();
        (self.learner, self.space, self.log_renewed, self.restoration) = (None, None, None, None);
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

    /// What is written from now on is another history than what was.
    fn begin_history(&mut self, id: ClusterId, parent: Option<ClusterId>, revision: Option<i64>, now: Timestamp) {
        let mut histories = self.lineage();
        begin(&mut histories, History { id, parent, revision, began: Some(now) });
        self.histories = histories;
    }

    fn follow(&mut self, list: &[ListedMember], view: &View<'_>, now: Timestamp) {
        let Some(learner) = list.iter().find(|m| m.learner) else {
            self.learner = None;
            return;
        };
        let index = view.answering.values().find(|e| e.member == learner.id).map_or(0, |e| e.raft_index);
        match &mut self.learner {
            Some(known) if known.member == learner.id => {
                if index > known.index && now.duration_since(known.since) > PROGRESS {
                    *known = LearnerRecord { member: learner.id, index, since: now };
                }
            }
            other => *other = Some(LearnerRecord { member: learner.id, index, since: now }),
        }
    }

    /// The name of a listed member: its own, or the one under which it was added when it never started.
    pub fn name_of(&self, member: &ListedMember) -> Option<Name> {
        if !member.name.is_empty() {
            return Name::parse(&member.name).ok();
        }
        self.members.iter().find(|(_, url)| member.peer_urls.contains(url)).map(|(name, _)| name.clone())
    }
}
