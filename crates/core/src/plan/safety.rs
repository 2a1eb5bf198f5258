//! Every step, whoever thought of it → what it costs, or why it must not be done.
//!
//! The one place where safety is judged: the planner passes every wave through `gate`, and whoever carries a step out
//! calls `judge` again, on a fresh look at the world, just before.

#![warn(clippy::wildcard_enum_match_arm)]

mod users;

use super::{Draft, Pause, Plan, Waiting, auth, preflight, recovery, restore, trust, upkeep, versions};
use crate::action::{
    Action, AuthAction, Changes, Company, EtcdAction, MachineAction, MemberAction, PkiAction, PreflightAction,
    RecoveryAction, RestoreAction, StartData, UpkeepAction, UserAction, VersionAction,
};
use crate::desired::Cluster;
use crate::observed::{
    Agent, AgentReport, Agreement, Alarm, Data, EtcdFacts, Fact, ListedMember, MemberId, MemberObserved, Observed,
    Power, Problem, Purpose, Root, ServiceState, Tolerance, View, quorum, size,
};
use crate::spec::{AuthMode, EtcdVersion, Name, Shape};

/// What a step costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// What the cluster can lose before.
    pub before: Tolerance,
    /// What it can lose meanwhile.
    pub during: Tolerance,
    /// How long no write is acknowledged.
    pub pause: Pause,
}

/// Why a step must not be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It would take the cluster below a majority.
    #[error("{healthy} of {of} members are healthy: quorum would be lost")]
    WouldLoseQuorum {
        /// Healthy members.
        healthy: usize,
        /// Of so many.
        of: usize,
    },
    /// It needs a majority, and there is none.
    #[error("the cluster has no quorum")]
    NoQuorum,
    /// It takes something away, or changes who has a say, and must be the only step of its wave.
    #[error("it changes the cluster and is not alone in its wave")]
    NotAlone,
    /// What it rests on was not seen.
    #[error("{0} was not seen")]
    NotSeen(&'static str),
    /// What it rests on is otherwise.
    #[error("{0}")]
    Otherwise(String),
}

/// Judges one action of a wave.
pub fn judge(desired: &Cluster, observed: &Observed, wave: &[&Action], action: &Action) -> Result<Cost, Refusal> {
    let view = View::of(observed);
    let before = view.tolerance();
    let unharmed = Cost { before, during: before, pause: Pause::None };
    let class = action.class();
    let in_company = match class.company {
        Company::Any => true,
        Company::OneLoss => decided_for_all(observed) || losses(wave) <= 1,
        Company::Alike => wave
            .iter()
            .map(|other| other.class())
            .all(|other| other.company == Company::Alike && other.changes == class.changes),
        Company::Alone => wave.len() <= 1,
    };
    if !in_company {
        return Err(Refusal::NotAlone);
    }
    if observed.ledger.adopted.is_some() && class.changes != Changes::Users {
        return Err(Refusal::Otherwise("others run this cluster".into()));
    }
    if observed.ledger.recovery.is_some() {
        let cost = Cost { before, during: Tolerance::NoQuorum, pause: Pause::NotServing };
        return recovery::judge(observed, action).map(|()| cost);
    }
    if let Some(restoration) = &observed.ledger.restoration
        && let Some(judged) = restore::judge(observed, restoration, action)
    {
        return judged.map(|()| Cost { before, during: Tolerance::NoQuorum, pause: Pause::NotServing });
    }
    match action {
        Action::Recovery(RecoveryAction::RestoreData { .. })
        | Action::Restore(RestoreAction::RestoreBackup { .. })
        | Action::Restore(RestoreAction::CompareRestored { .. })
        | Action::Etcd(EtcdAction::StartEtcd { data: StartData::Alone(_), .. }) => {
            Err(Refusal::Otherwise("nobody decided to build the cluster anew".into()))
        }
        Action::Pki(PkiAction::MakeAuthorities)
        | Action::Pki(PkiAction::NextAuthority { .. })
        | Action::Pki(PkiAction::RetireAuthority { unused: true, .. }) => Ok(unharmed),
        Action::Pki(PkiAction::SwitchAuthority { side })
        | Action::Pki(PkiAction::RetireAuthority { side, unused: false })
        | Action::Pki(PkiAction::ForgetAuthority { side }) => {
            trust::judge(desired, observed, *side, action).map(|()| unharmed).map_err(Refusal::Otherwise)
        }
        Action::Pki(PkiAction::StoreTrust { machine, purpose }) => {
            report(observed, machine)?;
            trust::covers(observed, &view, purpose.side()).map_err(|other| {
                Refusal::Otherwise(format!("{other} still shows a certificate of an authority that it would not trust"))
            })?;
            Ok(unharmed)
        }
        Action::Pki(PkiAction::IssueCertificate { machine, purpose, .. }) => {
            sign(desired, observed, &view, machine, *purpose).map(|()| unharmed)
        }
        Action::Preflight(PreflightAction::Measure) => {
            let (ready, needed) = preflight::answering(desired, observed);
            if ready.len() < needed { Err(Refusal::Otherwise("too few agents answer".into())) } else { Ok(unharmed) }
        }
        Action::Machine(MachineAction::CreateMachine { machine }) => {
            let member = member(observed, machine)?;
            if !member.machine.is_absent() {
                return Err(Refusal::NotSeen("that the machine is absent"));
            }
            if observed.ledger.started.contains_key(machine) && !outside(observed, &view, machine) {
                return Err(Refusal::Otherwise("etcd ran on a machine of this name: its data is not there".into()));
            }
            Ok(unharmed)
        }
        Action::Machine(MachineAction::StartMachine { machine }) => match member(observed, machine)?.machine.seen() {
            Some(seen) if seen.power == Power::Stopped => Ok(unharmed),
            Some(_) => Err(Refusal::Otherwise("the machine runs".into())),
            None => Err(Refusal::NotSeen("the machine")),
        },
        Action::Machine(MachineAction::Enroll { machine }) => match &member(observed, machine)?.agent {
            Fact::Seen { value: Agent::Unclaimed, .. } => Ok(unharmed),
            Fact::Seen { value: Agent::Claimed(_), .. } | Fact::Absent { .. } | Fact::Unreachable { .. } => {
                Err(Refusal::NotSeen("a new agent"))
            }
        },
        Action::Etcd(EtcdAction::InstallEtcd { machine, .. })
        | Action::Etcd(EtcdAction::ConfigureEtcd { machine, .. })
        | Action::Machine(MachineAction::SetFirewall { machine, .. })
        | Action::Machine(MachineAction::SetAccess { machine, .. })
        | Action::Machine(MachineAction::RenewAgent { machine })
        | Action::Machine(MachineAction::Deliver { machine }) => report(observed, machine).map(|_| unharmed),
        Action::Etcd(EtcdAction::StartEtcd { machine, data, version }) => {
            start(observed, &view, machine, *data)?;
            if auth::opens_too_early(desired, observed, machine, *version, report(observed, machine)?) {
                return Err(Refusal::Otherwise("it would accept clients before auth is on".into()));
            }
            versions::judge(desired, observed, &view, machine, *version)?;
            let pause = if before == Tolerance::NoQuorum { Pause::NotServing } else { Pause::None };
            Ok(Cost { pause, ..unharmed })
        }
        Action::Etcd(EtcdAction::RestartEtcd { machine, cluster, version }) => {
            versions::judge(desired, observed, &view, machine, *version)?;
            let report = report(observed, machine)?;
            if member(observed, machine)?.problem == Some(Problem::Unclear) {
                return Err(Refusal::NotSeen("what answers at its address"));
            }
            if !matches!(report.etcd.data, Data::Present { cluster: found, .. } if found == *cluster) {
                return Err(Refusal::Otherwise("its data is not that of the cluster".into()));
            }
            trust::stays_in_touch(observed, &view, machine)
                .map_err(|other| Refusal::Otherwise(format!("{machine} and {other} would not trust each other")))?;
            restart(desired, observed, &view, machine)
        }
        Action::Etcd(EtcdAction::RestartTogether { machines, cluster }) => {
            for (machine, version) in machines {
                versions::judge(desired, observed, &view, machine, *version)?;
                if !matches!(report(observed, machine)?.etcd.data, Data::Present { cluster: c, .. } if c == *cluster) {
                    return Err(Refusal::Otherwise("its data is not that of the cluster".into()));
                }
            }
            if trust::locked_out(desired, observed, &view, observed.at()) {
                return Ok(Cost { before, during: Tolerance::NoQuorum, pause: Pause::NotServing });
            }
            match auth::to_be_opened(desired, observed) {
                // To clients it does not serve yet.
                Some(closed) if machines.keys().all(|machine| closed.contains(machine)) => {
                    let not_yet = Tolerance::NoQuorum;
                    Ok(Cost { before: not_yet, during: not_yet, pause: Pause::NotServing })
                }
                Some(_) | None => Err(Refusal::Otherwise("members are restarted one at a time".into())),
            }
        }
        Action::Etcd(EtcdAction::StopEtcd { machine }) => {
            member(observed, machine)?.report().ok_or(Refusal::NotSeen("the agent's report"))?;
            no_member(observed, &view, machine).map(|()| unharmed)
        }
        Action::Etcd(EtcdAction::ClearData { machine, member: owner }) => {
            no_member(observed, &view, machine)?;
            data_of(observed, machine, *owner).map(|()| unharmed)
        }
        Action::Machine(MachineAction::DeleteMachine { machine }) => {
            let seen = member(observed, machine)?;
            seen.machine.seen().ok_or(Refusal::NotSeen("the machine"))?;
            no_member(observed, &view, machine)?;
            if seen.report().is_some_and(|report| report.etcd.service.state != ServiceState::Stopped) {
                return Err(Refusal::Otherwise("etcd runs on it".into()));
            }
            Ok(unharmed)
        }
        Action::Machine(MachineAction::RebuildMachine { machine }) => {
            let seen = member(observed, machine)?.machine.seen().ok_or(Refusal::NotSeen("the machine"))?;
            if !seen.shape.as_ref().is_some_and(Shape::keeps_data) {
                return Err(Refusal::Otherwise("its data would be lost with it".into()));
            }
            report(observed, machine)?;
            restart(desired, observed, &view, machine)
        }
        Action::Machine(MachineAction::MoveMachine { machine, .. }) => report(observed, machine).map(|_| unharmed),
        Action::Member(MemberAction::AddLearner { machine, .. }) => {
            Membership::of(observed, &view)?.add_learner(machine)
        }
        Action::Member(MemberAction::PromoteMember { member, .. }) => Membership::of(observed, &view)?.promote(*member),
        Action::Member(MemberAction::RemoveMember { member, .. }) => Membership::of(observed, &view)?.remove(*member),
        Action::Member(MemberAction::UpdateMember { machine, member, version, .. }) => {
            Membership::of(observed, &view)?.update(desired, machine, *member, *version)
        }
        Action::Member(MemberAction::MoveLeader { machine, member }) => {
            Membership::of(observed, &view)?.move_leader(machine, *member)
        }
        Action::Upkeep(UpkeepAction::Compact { revision }) => compact(&view, *revision).map(|()| unharmed),
        Action::Upkeep(UpkeepAction::Defragment { machine }) => defragment(observed, &view, machine),
        Action::Upkeep(UpkeepAction::DisarmAlarm { alarm }) => {
            disarm(desired, observed, &view, *alarm).map(|()| unharmed)
        }
        Action::Version(VersionAction::TakeSnapshot { .. })
        | Action::Version(VersionAction::EnableDowngrade { .. })
        | Action::Version(VersionAction::CancelDowngrade)
        | Action::Auth(AuthAction::CreateRoot)
        | Action::Auth(AuthAction::ChangeRootPassword)
        | Action::Auth(AuthAction::EnableAuth)
        | Action::Auth(AuthAction::DisableAuth)
            if !view.has_quorum() =>
        {
            Err(Refusal::NoQuorum)
        }
        Action::Version(VersionAction::EnableDowngrade { version }) => {
            versions::judge_downgrade(desired, observed, &view, *version).map(|()| unharmed)
        }
        Action::Restore(RestoreAction::PrepareRestore)
            if observed.ledger.cluster.is_some() || !view.clusters.is_empty() =>
        {
            Err(Refusal::Otherwise("the cluster is there already".into()))
        }
        Action::Restore(RestoreAction::PrepareRestore) => Ok(unharmed),
        Action::Auth(AuthAction::CreateRoot)
        | Action::Version(VersionAction::TakeSnapshot { .. })
        | Action::Version(VersionAction::CancelDowngrade) => Ok(unharmed),
        Action::Auth(AuthAction::DisableAuth) if desired.auth == AuthMode::None => Ok(unharmed),
        Action::Auth(AuthAction::DisableAuth) => Err(Refusal::Otherwise("the file wants auth".into())),
        Action::Auth(AuthAction::ChangeRootPassword) => {
            let outdated = desired.auth == AuthMode::Password
                && view.answering.values().any(|e| e.root == Root::Outdated && e.auth == Some(true));
            if outdated { Ok(unharmed) } else { Err(Refusal::NotSeen("that `root` has another password")) }
        }
        Action::Auth(AuthAction::EnableAuth) => {
            let ready = view.answering.values().any(|e| e.root == Root::Ready);
            if ready { Ok(unharmed) } else { Err(Refusal::NotSeen("the superuser `root` with its role")) }
        }
        Action::User(UserAction::SetRole { role, set, revoke }) => {
            users::set_role(desired, users::seen(&view, role)?, role, set, revoke).map(|()| unharmed)
        }
        Action::User(UserAction::DeleteRole { role }) => {
            users::delete_role(desired, users::seen(&view, role)?, role).map(|()| unharmed)
        }
        Action::User(UserAction::SetUser { user, account, grant, revoke }) => {
            let seen = users::seen(&view, user)?;
            users::set_user(desired, seen, user, *account, grant, revoke).map(|()| unharmed)
        }
        Action::User(UserAction::DeleteUser { user }) => {
            users::seen(&view, user)?;
            users::delete_user(desired, user).map(|()| unharmed)
        }
    }
}

/// Whether a restore or a recovery was decided upon: all members lose their data, and that was said.
fn decided_for_all(observed: &Observed) -> bool {
    observed.ledger.recovery.is_some() || observed.ledger.restoration.is_some()
}

/// How many steps of a wave take something of a machine away for good.
fn losses(wave: &[&Action]) -> usize {
    wave.iter().filter(|action| action.class().company == Company::OneLoss).count()
}

/// Whether the data on a machine is that of this member; without one, whether it is no member's.
pub(super) fn data_of(observed: &Observed, machine: &Name, owner: Option<MemberId>) -> Result<(), Refusal> {
    let report = member(observed, machine)?.report().ok_or(Refusal::NotSeen("the agent's report"))?;
    if report.etcd.service.state != ServiceState::Stopped {
        return Err(Refusal::Otherwise("etcd runs on it".into()));
    }
    let found = match report.etcd.data {
        Data::Present { member, .. } => Some(member),
        Data::Empty | Data::Unreadable { .. } => None,
    };
    if found == owner { Ok(()) } else { Err(Refusal::Otherwise("its data is another member's".into())) }
}

fn member<'a>(observed: &'a Observed, machine: &Name) -> Result<&'a MemberObserved, Refusal> {
    observed.members.get(machine).ok_or(Refusal::NotSeen("the machine"))
}

fn report<'a>(observed: &'a Observed, machine: &Name) -> Result<&'a AgentReport, Refusal> {
    let report = member(observed, machine)?.report().ok_or(Refusal::NotSeen("the agent's report"))?;
    match observed.ledger.started.get(machine) {
        Some(incarnation) if *incarnation != report.incarnation && !outside(observed, &View::of(observed), machine) => {
            Err(Refusal::Otherwise("this is another machine than the one that etcd was started on".into()))
        }
        Some(_) | None => Ok(report),
    }
}

/// Nobody gets a certificate that others would not accept in the place of one that they do.
fn sign(
    desired: &Cluster,
    observed: &Observed,
    view: &View<'_>,
    machine: &Name,
    purpose: Purpose,
) -> Result<(), Refusal> {
    let (report, now) = (report(observed, machine)?, observed.at());
    let (Some(member), Some(authorities)) = (desired.member(machine), observed.ledger.trust(purpose.side())) else {
        return Err(Refusal::NotSeen("an authority to sign it"));
    };
    let signer = authorities.signer(purpose.side(), member.profile(purpose).renew_before(), now);
    let seen = report.etcd.certificates.get(&purpose);
    if seen.is_some_and(|seen| authorities.accepts(seen, now) && seen.issuer_key != signer.key) {
        trust::accepted(observed, view, purpose.side(), &signer.key, machine)
            .map_err(|other| Refusal::Otherwise(format!("{other} does not trust the authority that would sign it")))?;
    }
    Ok(())
}

/// A member may be born once; afterwards it comes back with its data or not at all.
fn start(observed: &Observed, view: &View<'_>, machine: &Name, data: StartData) -> Result<(), Refusal> {
    let etcd = &report(observed, machine)?.etcd;
    if etcd.service.state != ServiceState::Stopped {
        return Err(Refusal::Otherwise("etcd runs already".into()));
    }
    match (data, &etcd.data) {
        (StartData::Empty | StartData::Joining(_), Data::Empty) if etcd.had_data => {
            Err(Refusal::Otherwise("the member had data, and the directory is empty".into()))
        }
        (StartData::Empty, Data::Empty) if observed.ledger.reshaped => {
            Err(Refusal::Otherwise("the cluster's members are not those that it was first started with".into()))
        }
        (StartData::Empty, Data::Empty) => Ok(()),
        (StartData::Joining(_), Data::Empty) if view.listed.is_none() => Err(Refusal::NoQuorum),
        (StartData::Joining(_), Data::Empty) if outside(observed, view, machine) => {
            Err(Refusal::Otherwise("the cluster does not list it".into()))
        }
        (StartData::Joining(_), Data::Empty) => Ok(()),
        (StartData::Of(wanted), Data::Present { cluster, .. }) if wanted == *cluster => match observed.ledger.cluster {
            Some(known) if known != wanted => Err(Refusal::Otherwise(format!("the cluster is {known}, not {wanted}"))),
            Some(_) | None => Ok(()),
        },
        (StartData::Empty | StartData::Joining(_), Data::Present { .. } | Data::Unreadable { .. })
        | (StartData::Of(_), Data::Empty | Data::Present { .. } | Data::Unreadable { .. })
        | (StartData::Alone(_), Data::Empty | Data::Present { .. } | Data::Unreadable { .. }) => {
            Err(Refusal::Otherwise("the data directory is not as expected".into()))
        }
    }
}

/// Whether a majority says that this name is no member.
fn outside(observed: &Observed, view: &View<'_>, machine: &Name) -> bool {
    let known = |m: &ListedMember| observed.ledger.name_of(m).as_ref() == Some(machine);
    view.has_quorum() && view.listed.is_some_and(|list| !list.iter().any(known))
}

fn no_member(observed: &Observed, view: &View<'_>, machine: &Name) -> Result<(), Refusal> {
    if outside(observed, view, machine) { Ok(()) } else { Err(Refusal::NotSeen("that it is no member any more")) }
}

/// A majority's list of members, for changes of it: one at a time, on a cluster whose other voters are healthy.
struct Membership<'a> {
    observed: &'a Observed,
    view: &'a View<'a>,
    list: &'a [ListedMember],
    unharmed: Cost,
}

impl<'a> Membership<'a> {
    fn of(observed: &'a Observed, view: &'a View<'a>) -> Result<Self, Refusal> {
        let list = view.listed.filter(|_| view.has_quorum()).ok_or(Refusal::NoQuorum)?;
        let before = view.tolerance();
        Ok(Self { observed, view, list, unharmed: Cost { before, during: before, pause: Pause::None } })
    }

    fn entry(&self, id: MemberId) -> Result<&'a ListedMember, Refusal> {
        self.list.iter().find(|m| m.id == id).ok_or(Refusal::NotSeen("the member in the cluster's list"))
    }

    fn healthy(&self, id: MemberId) -> bool {
        self.view.healthy.iter().any(|n| self.view.answering.get(n).is_some_and(|e| e.member == id))
    }

    fn voters_healthy_beside(&self, beside: Option<MemberId>) -> bool {
        let voters = self.list.iter().filter(|m| !m.learner);
        voters.into_iter().all(|m| Some(m.id) == beside || self.healthy(m.id))
    }

    fn costs_quorum(&self) -> Refusal {
        Refusal::WouldLoseQuorum { healthy: self.view.healthy.len(), of: self.view.voters }
    }

    /// While etcd says that data is corrupt, only what mends it is done.
    fn sound_unless(&self, mends: bool) -> Result<(), Refusal> {
        if self.view.corrupt() && !mends { Err(corrupt()) } else { Ok(()) }
    }

    fn add_learner(&self, machine: &Name) -> Result<Cost, Refusal> {
        self.sound_unless(false)?;
        if self.list.iter().any(|m| m.learner) {
            return Err(Refusal::Otherwise("another learner is on its way".into()));
        }
        if !self.voters_healthy_beside(None) {
            return Err(self.costs_quorum());
        }
        no_member(self.observed, self.view, machine).map(|()| self.unharmed)
    }

    fn promote(&self, member: MemberId) -> Result<Cost, Refusal> {
        self.sound_unless(false)?;
        if !self.entry(member)?.learner {
            return Err(Refusal::Otherwise("it has a vote already".into()));
        }
        if !self.voters_healthy_beside(None) {
            return Err(self.costs_quorum());
        }
        let after = Tolerance::of(self.view.healthy.len() + 1, self.view.voters + 1);
        Ok(Cost { during: after, ..self.unharmed })
    }

    fn remove(&self, member: MemberId) -> Result<Cost, Refusal> {
        let (observed, view) = (self.observed, self.view);
        // It is known to differ from a majority, or without it all agree.
        let differs = |name: &Name| matches!(&observed.agreement(view), Agreement::Differ(them) if them.contains(name));
        let name = self.list.iter().find(|m| m.id == member).and_then(|m| observed.ledger.name_of(m));
        let damaged = name.as_ref().is_some_and(|name| differs(name) || observed.rest_agrees(view, name));
        self.sound_unless(damaged)?;
        if self.entry(member)?.learner {
            return Ok(self.unharmed);
        }
        let was_healthy = self.healthy(member);
        let during = Tolerance::of(view.healthy.len() - usize::from(was_healthy), view.voters - 1);
        let others_ill = was_healthy && !self.voters_healthy_beside(Some(member));
        if during == Tolerance::NoQuorum || view.voters == 1 || others_ill {
            return Err(self.costs_quorum());
        }
        let mut stay = observed.voters(view).unwrap_or_default();
        stay.retain(|other| Some(other) != name.as_ref());
        if !damaged && observed.upkeep.hashes.as_ref().is_some_and(|hashes| hashes.conflict(&stay)) {
            return Err(Refusal::Otherwise("the members that stay differ in their data".into()));
        }
        let leader = view.leader.and_then(|name| view.answering.get(name)).map(|e| e.member);
        if leader.is_none_or(|leader| leader == member) {
            return Err(Refusal::Otherwise("it leads, or nobody does: leadership has to go first".into()));
        }
        Ok(Cost { during, ..self.unharmed })
    }

    fn update(
        &self,
        desired: &Cluster,
        machine: &Name,
        member: MemberId,
        version: EtcdVersion,
    ) -> Result<Cost, Refusal> {
        self.sound_unless(false)?;
        self.entry(member)?;
        versions::judge(desired, self.observed, self.view, machine, version)?;
        restart(desired, self.observed, self.view, machine)
    }

    fn move_leader(&self, machine: &Name, member: MemberId) -> Result<Cost, Refusal> {
        let (observed, view) = (self.observed, self.view);
        // Leadership goes from one that differs to one of the majority.
        self.sound_unless(upkeep::trusted_heir(view, &observed.agreement(view), machine))?;
        if !self.healthy(member) || self.entry(member)?.learner {
            return Err(Refusal::NotSeen("the heir in good health"));
        }
        let heir = observed.ledger.name_of(self.entry(member)?);
        if heir.is_some_and(|name| !trust::may_lead(observed, view, &name)) {
            return Err(Refusal::Otherwise("others could not follow it while the peers CA changes".into()));
        }
        Ok(Cost { pause: Pause::LEADER_MOVED, ..self.unharmed })
    }
}

fn corrupt() -> Refusal {
    Refusal::Otherwise("etcd says that a member's data is corrupt".into())
}

/// Before these versions a member could be corrupted when it was defragmented while a snapshot came in.
fn defragments_safely(version: EtcdVersion) -> bool {
    match version.minor_line() {
        (3, 5) => version >= EtcdVersion::new(3, 5, 23),
        (3, 6) => version >= EtcdVersion::new(3, 6, 5),
        line => line > (3, 6),
    }
}

/// What every voter of the list says of itself; nothing unless all are healthy.
fn voters<'a>(view: &View<'a>, list: &[ListedMember]) -> Option<Vec<&'a EtcdFacts>> {
    let facts = |m: &ListedMember| {
        view.healthy.iter().filter_map(|n| view.answering.get(n)).find(|e| e.member == m.id).copied()
    };
    list.iter().filter(|m| !m.learner).map(facts).collect()
}

fn compact(view: &View<'_>, revision: i64) -> Result<(), Refusal> {
    view.listed.filter(|_| view.has_quorum()).ok_or(Refusal::NoQuorum)?;
    if view.corrupt() {
        return Err(corrupt());
    }
    let newest = view.healthy.iter().filter_map(|n| view.answering.get(n)).map(|e| e.revision).max();
    if newest.is_none_or(|newest| revision > newest) { Err(Refusal::NotSeen("that revision")) } else { Ok(()) }
}

fn defragment(observed: &Observed, view: &View<'_>, machine: &Name) -> Result<Cost, Refusal> {
    let list = view.listed.filter(|_| view.has_quorum()).ok_or(Refusal::NoQuorum)?;
    if view.corrupt() {
        return Err(corrupt());
    }
    let before = view.tolerance();
    let etcd = view.answering.get(machine).ok_or(Refusal::NotSeen("the member's etcd"))?;
    let voters = voters(view, list).filter(|voters| voters.iter().any(|e| e.member == etcd.member));
    voters.ok_or(Refusal::WouldLoseQuorum { healthy: view.healthy.len(), of: view.voters })?;
    if list.iter().any(|m| m.learner) && !defragments_safely(etcd.version) {
        let version = etcd.version;
        let why = format!("a learner is on its way, and with it etcd {version} may corrupt its data");
        return Err(Refusal::Otherwise(why));
    }
    if view.leader == Some(machine) && view.voters > 1 {
        return Err(Refusal::Otherwise("it leads: leadership has to go first".into()));
    }
    room_for_new_file(observed, machine, etcd)?;
    // Its raft goes on: it answers nobody, and votes. Only where it is all there is does everybody wait.
    let during = if view.voters > 1 { view.tolerance_without(machine).max(Tolerance::CanLose(0)) } else { before };
    let pause = if view.voters > 1 { Pause::None } else { Pause::while_defragmenting(etcd.db_in_use) };
    Ok(Cost { before, during, pause })
}

fn disarm(desired: &Cluster, observed: &Observed, view: &View<'_>, alarm: Alarm) -> Result<(), Refusal> {
    let list = view.listed.filter(|_| view.has_quorum()).ok_or(Refusal::NoQuorum)?;
    match alarm {
        Alarm::Corrupt => match observed.agreement(view) {
            Agreement::All => Ok(()),
            Agreement::Differ(_) | Agreement::Unclear => Err(Refusal::NotSeen("that all members hold the same")),
        },
        Alarm::NoSpace => {
            let file = i64::try_from(desired.settings.quota.bytes()).unwrap_or(i64::MAX);
            let room = |e: &&EtcdFacts| upkeep::has_room(e, e.quota.unwrap_or(file));
            match voters(view, list) {
                Some(voters) if voters.iter().all(room) => Ok(()),
                Some(_) => Err(Refusal::Otherwise("a member's database is still near its quota".into())),
                None => Err(Refusal::NotSeen("every member's size")),
            }
        }
    }
}

/// A database is rewritten into a new file beside the old one.
pub(super) fn room_for_new_file(observed: &Observed, machine: &Name, etcd: &EtcdFacts) -> Result<(), Refusal> {
    let needed = etcd.db_in_use.unsigned_abs();
    match member(observed, machine)?.report().map(|r| r.disk.free) {
        Some(free) if free < needed => {
            let (free, needed) = (size(free), size(needed));
            Err(Refusal::Otherwise(format!("its disk has {free} free, and the new file takes {needed}")))
        }
        Some(_) | None => Ok(()),
    }
}

pub(super) fn restart(
    desired: &Cluster,
    observed: &Observed,
    view: &View<'_>,
    machine: &Name,
) -> Result<Cost, Refusal> {
    if view.corrupt() {
        return Err(Refusal::Otherwise("etcd says that a member's data is corrupt".into()));
    }
    // Who could not shake hands anew is healthy by what it is connected with, and that may be the one that goes.
    let left = trust::left_behind(observed, view);
    let in_touch = |name: &Name| view.healthy.contains(name) && !left.contains(name);
    let others = view.healthy.iter().filter(|name| **name != machine && in_touch(name)).count();
    let (before, during) = (view.tolerance(), Tolerance::of(others, view.voters));
    // A member that was not seen healthy may still be the one that makes the majority: only the others count.
    let others_suffice = during != Tolerance::NoQuorum;
    let was_healthy = in_touch(machine);
    // Members that the file adds have no say yet.
    let voter = |name: &Name| view.listed.is_none_or(|l| l.iter().any(|m| !m.learner && m.name == name.as_str()));
    let others = desired.members.iter().map(|m| &m.name).filter(|name| *name != machine && voter(name));
    // In an emergency nobody waits for those who are left behind.
    let ignored = |name: &Name| trust::emergency(observed) && left.contains(name);
    let others_healthy = others.into_iter().all(|name| view.healthy.contains(name) || ignored(name));
    if !others_suffice || (was_healthy && !others_healthy) {
        return Err(Refusal::WouldLoseQuorum { healthy: view.healthy.len(), of: view.voters });
    }
    let pause = if view.leader == Some(machine) { Pause::LEADER_STOPPED } else { Pause::None };
    Ok(Cost { before, during, pause })
}

/// The draft's steps, each judged; what must not be done becomes something to wait for.
pub(super) fn gate(mut draft: Draft<'_>) -> Plan {
    one_loss_a_wave(&mut draft);
    let Draft { desired, observed, view, steps, mut waiting, .. } = draft;
    let wave: Vec<&Action> = steps.iter().map(|s| &s.action).collect();
    let verdicts: Vec<Result<Cost, Refusal>> = wave.iter().map(|a| judge(desired, observed, &wave, a)).collect();
    let coming_up: Vec<Name> = wave.iter().flat_map(|action| action.brings_up()).cloned().collect();
    let after = match wave.as_slice() {
        [Action::Member(MemberAction::PromoteMember { .. }) | Action::Member(MemberAction::RemoveMember { .. })] => {
            None
        }
        // They are started one after the other.
        [Action::Restore(RestoreAction::CompareRestored { machines })] => {
            let spare = machines.len().saturating_sub(quorum(machines.len()));
            Some(Tolerance::CanLose(u32::try_from(spare).unwrap_or(0)))
        }
        _ if observed.ledger.restoration.is_some() => None,
        _ => Some(view.tolerance_with(&coming_up)),
    };
    let mut kept = Vec::with_capacity(steps.len());
    for (mut step, verdict) in steps.into_iter().zip(verdicts) {
        match verdict {
            Ok(cost) => {
                step.before = cost.before;
                step.during = cost.during;
                step.after = after.unwrap_or(cost.during);
                step.pause = cost.pause;
                kept.push(step);
            }
            Err(refusal) => waiting.push(refused(&step.action, refusal)),
        }
    }
    Plan { steps: kept, waiting }
}

/// What takes something of a machine away for good is done one at a time, unless it was decided for all of them.
fn one_loss_a_wave(draft: &mut Draft<'_>) {
    if decided_for_all(draft.observed) {
        return;
    }
    let mut losses = 0;
    let Draft { steps, waiting, .. } = draft;
    steps.retain(|step| {
        losses += usize::from(step.action.class().company == Company::OneLoss);
        let turn = losses <= 1 || step.action.class().company != Company::OneLoss;
        if let (false, Some(machine)) = (turn, step.action.machine()) {
            waiting.push(Waiting::Turn { machine: machine.clone(), verb: step.action.verb().to_owned() });
        }
        turn
    });
}

/// A refused action as something to wait for.
pub fn refused(action: &Action, refusal: Refusal) -> Waiting {
    let verb = action.verb().to_owned();
    match (refusal, action.machine()) {
        (Refusal::WouldLoseQuorum { healthy, of }, Some(machine)) => {
            Waiting::WouldLoseQuorum { verb, machine: machine.clone(), healthy, of }
        }
        (refusal, machine) => Waiting::Unsafe { verb, machine: machine.cloned(), refusal: refusal.to_string() },
    }
}
