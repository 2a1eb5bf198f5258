//! A cluster whose majority is lost → what is left of it, what would be lost, and the steps that build it anew.
//!
//! Nothing here happens by itself: an operator has to approve it, which the ledger remembers. The survivor is started
//! alone, so that etcd itself applies all that its log holds. Then it is stopped, so that no client writes in between,
//! its data is put away, and a new cluster of one member is made from it. Its revisions start above every revision that
//! a client saw, so that watchers notice. Then it grows like any other cluster.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::report::Report;
use super::{Draft, Reason, Step, Waiting};
use crate::action::{Action, EtcdAction, MachineAction, RecoveryAction, StartData};
use crate::desired::{ClientAccess, Stack};
use crate::observed::{
    Agent, AgentReport, ClusterId, Data, EtcdFacts, Fact, Ledger, MachineObserved, MemberId, Mode, Observed, Power,
    Recovery, ServiceState, View, quorum,
};
use crate::spec::{EtcdVersion, Name};

/// What is left of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remains {
    /// Every member that was.
    pub members: Vec<Remnant>,
    /// The survivor that loses least, or the one that was asked for; or why nothing can be done.
    pub outcome: Result<Proposal, Unclear>,
}

/// What is left of one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remnant {
    /// Its name.
    pub name: Name,
    /// Its state.
    pub state: State,
}

/// The state of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// Its data is there.
    Survivor {
        /// Its last revision: what it answers with, or what is in its database, where that can be read.
        revision: Option<i64>,
        /// Whether that is final: what is committed in its log has been applied.
        exact: bool,
        /// Its term.
        term: u64,
        /// The last entry of its log that it knows to be committed: etcd keeps nothing beyond it.
        index: u64,
        /// Entries that its log holds beyond that; not known of one that answers.
        beyond: Option<u64>,
    },
    /// Its data is gone for good.
    Lost {
        /// How.
        how: String,
    },
    /// Its state is not known: it may run, and may hold more than all others.
    Unknown {
        /// Why not.
        why: String,
    },
}

/// The cluster that a recovery would make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The member that the new cluster is built from.
    pub survivor: Name,
    /// The cluster that lost its majority.
    pub of: ClusterId,
    /// The last revision that stays, where it is known.
    pub revision: Option<i64>,
    /// Whether no later one stays.
    pub exact: bool,
    /// Whether another survivor has more data.
    pub behind: Option<Name>,
    /// At least so many revisions are lost: the state saw a later one.
    pub at_least_lost: i64,
}

/// Why nothing is proposed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "unclear", rename_all = "snake_case")]
pub enum Unclear {
    /// The cluster works.
    HasQuorum,
    /// It never formed.
    NeverFormed,
    /// Enough members have their data.
    MajorityLeft {
        /// So many.
        survivors: usize,
        /// Of so many.
        of: usize,
    },
    /// Members whose state is not known.
    Unknown {
        /// Which.
        members: Vec<Name>,
    },
    /// No member has data.
    NoDataLeft,
    /// The one that was asked for has no data.
    NoSurvivor {
        /// Which.
        member: Name,
    },
    /// It is not known how much data a survivor has.
    Unreadable {
        /// Which.
        member: Name,
    },
    /// It is adopted read-only.
    Adopted,
    /// All members get the data of a backup: what any of them still has is not used.
    Restoring,
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HasQuorum => f.write_str("the cluster has its majority: there is nothing to recover"),
            Self::NeverFormed => f.write_str("the cluster never formed: `raftsman apply` makes it"),
            Self::MajorityLeft { survivors, of } => write!(
                f,
                "{survivors} of {of} members have their data, which is a majority: nothing has to be lost; \
                 `raftsman apply` brings them up"
            ),
            Self::Unknown { members } => {
                let names: Vec<&str> = members.iter().map(Name::as_str).collect();
                write!(
                    f,
                    "it is not known whether {} still has its data: bring it back (`raftsman apply` starts machines \
                     that are stopped), or confirm that it is gone for good with `--lost {}`",
                    names.join(", "),
                    names.join(" --lost ")
                )
            }
            Self::NoDataLeft => f.write_str(
                "no member has its data: only a backup can bring it back (`raftsman \
                restore`)",
            ),
            Self::NoSurvivor { member } => write!(f, "`{member}` has no data to recover from"),
            Self::Unreadable { member } => {
                write!(f, "how far the data of `{member}` reaches cannot be read: name the survivor with `--from`")
            }
            Self::Adopted => f.write_str("this cluster is adopted read-only"),
            Self::Restoring => f.write_str(
                "a restore is under way, which replaces the data of all members: `raftsman apply` continues it, \
                 `raftsman restore` takes another backup",
            ),
        }
    }
}

/// Looks at what is left. The operator names the members that are gone for good, and may name the survivor.
pub fn survey(desired: &Stack, observed: &Observed, lost: &[Name], from: Option<&Name>) -> Remains {
    let ledger = &observed.ledger;
    let view = View::of(observed);
    let members: Vec<Remnant> = ledger.etcd.members.keys().map(|name| remnant(observed, name, lost)).collect();
    let outcome = match ledger.etcd.cluster {
        _ if ledger.etcd.adopted().is_some() => Err(Unclear::Adopted),
        _ if ledger.etcd.restoration().is_some() => Err(Unclear::Restoring),
        _ if view.has_quorum() => Err(Unclear::HasQuorum),
        None => Err(Unclear::NeverFormed),
        Some(cluster) => propose(desired, observed, cluster, &members, from),
    };
    Remains { members, outcome }
}

fn propose(
    desired: &Stack,
    observed: &Observed,
    of: ClusterId,
    members: &[Remnant],
    from: Option<&Name>,
) -> Result<Proposal, Unclear> {
    let survivors: Vec<Survivor<'_>> = members.iter().filter_map(Survivor::of).collect();
    let unknown = members.iter().filter(|m| matches!(m.state, State::Unknown { .. }));
    let unknown: Vec<Name> = unknown.map(|m| m.name.clone()).collect();
    if survivors.len() >= quorum(members.len()) {
        return Err(Unclear::MajorityLeft { survivors: survivors.len(), of: members.len() });
    }
    if !unknown.is_empty() {
        return Err(Unclear::Unknown { members: unknown });
    }
    // A member that is not in the file has no place in the new cluster.
    let mut candidates = survivors.iter().filter(|s| desired.etcd.member(s.name).is_some());
    let best = candidates.clone().max_by_key(|s| (s.index, std::cmp::Reverse(s.name))).ok_or(Unclear::NoDataLeft)?;
    let chosen = match from {
        None => match survivors.iter().find(|s| s.index == 0) {
            Some(unread) => return Err(Unclear::Unreadable { member: unread.name.clone() }),
            None => best,
        },
        Some(from) => {
            candidates.find(|s| s.name == from).ok_or_else(|| Unclear::NoSurvivor { member: from.clone() })?
        }
    };
    Ok(Proposal {
        survivor: chosen.name.clone(),
        of,
        revision: chosen.revision,
        exact: chosen.exact,
        behind: (chosen.index < best.index).then(|| best.name.clone()),
        at_least_lost: chosen.revision.map_or(0, |revision| (observed.ledger.etcd.last_revision - revision).max(0)),
    })
}

struct Survivor<'a> {
    name: &'a Name,
    revision: Option<i64>,
    exact: bool,
    index: u64,
}

impl<'a> Survivor<'a> {
    fn of(member: &'a Remnant) -> Option<Self> {
        match member.state {
            State::Survivor { revision, exact, index, .. } => Some(Self { name: &member.name, revision, exact, index }),
            State::Lost { .. } | State::Unknown { .. } => None,
        }
    }
}

fn remnant(observed: &Observed, name: &Name, lost: &[Name]) -> Remnant {
    let said = |state| if lost.contains(name) { State::Lost { how: "given up".to_owned() } } else { state };
    let state = match observed.machines.get(name) {
        None => said(State::Unknown { why: "it was not looked at".to_owned() }),
        Some(seen) => match state(observed, name, seen) {
            unknown @ State::Unknown { .. } => said(unknown),
            known => known,
        },
    };
    Remnant { name: name.clone(), state }
}

fn state(observed: &Observed, name: &Name, seen: &MachineObserved) -> State {
    let lost = |how: &str| State::Lost { how: how.to_owned() };
    let unknown = |why: &str| State::Unknown { why: why.to_owned() };
    match &seen.machine {
        Fact::Absent { .. } => return lost("its machine is gone"),
        Fact::Unreachable { error, .. } => return unknown(error),
        Fact::Seen { value, .. } if value.power == Power::Stopped => return unknown("its machine is stopped"),
        Fact::Seen { .. } => {}
    }
    let report = match &seen.agent {
        Fact::Seen { value: Agent::Claimed(report), .. } => report,
        Fact::Seen { value: Agent::Unclaimed, .. } => return lost("its machine is a new one"),
        Fact::Unreachable { error, .. } => return unknown(error),
        Fact::Absent { .. } => return unknown("its machine runs without an agent"),
    };
    if observed.ledger.etcd.started.get(name).is_some_and(|incarnation| *incarnation != report.incarnation) {
        return lost("its machine is a new one");
    }
    match &report.etcd.data {
        Data::Empty => lost("its data is gone"),
        Data::Unreadable { problem } => State::Lost { how: format!("its data cannot be read: {problem}") },
        Data::Present { cluster, .. } if Some(*cluster) != observed.ledger.etcd.cluster => {
            State::Lost { how: format!("it has the data of another cluster, {cluster}") }
        }
        Data::Present { .. } => known(observed.answer(name), report),
    }
}

fn known(answer: Option<&EtcdFacts>, report: &AgentReport) -> State {
    match (answer, report.etcd.log) {
        (Some(etcd), _) => State::Survivor {
            revision: Some(etcd.revision),
            exact: true,
            term: etcd.raft_term,
            index: etcd.raft_index,
            beyond: None,
        },
        (None, Some(log)) => State::Survivor {
            revision: log.revision,
            exact: log.revision.is_some() && log.applied >= log.commit,
            term: log.term,
            index: log.commit,
            beyond: Some(log.index.saturating_sub(log.commit)),
        },
        (None, None) => State::Unknown { why: "its etcd runs and does not answer".to_owned() },
    }
}

/// Records that the operator approved the proposal: the cluster is built anew, and the lost members are given up with
/// whatever answers in their place.
pub fn decide(ledger: &mut Ledger, remains: &Remains, now: Timestamp) {
    let Ok(Proposal { survivor, of, .. }) = &remains.outcome else { return };
    let survivor = survivor.clone();
    let recovery = Recovery { survivor, of: *of, since: now, alone: false, settled: false, member: None };
    ledger.etcd.mode = Mode::Recovering(recovery);
    let lost = remains.members.iter().filter(|m| matches!(m.state, State::Lost { .. }));
    ledger.etcd.replace.extend(lost.map(|m| (m.name.clone(), MemberId(0))));
}

/// The next steps of a cluster that is built anew.
pub(super) fn rebuild(draft: &mut Draft<'_>) -> Report {
    let ledger = &draft.observed.ledger;
    let Some(recovery) = ledger.etcd.recovery() else { return Report::Looked };
    let Recovery { survivor, of, alone, settled, member: away, .. } = recovery;
    let reason = || Reason::Recovery { survivor: survivor.clone() };
    let others: Vec<(&Name, &AgentReport)> = draft.observed.reports().filter(|(name, _)| *name != survivor).collect();
    // No other member may serve beside the survivor.
    for (name, report) in &others {
        if report.etcd.service.state != ServiceState::Stopped {
            draft.steps.push(Step::new(EtcdAction::StopEtcd { machine: (*name).clone() }, reason()));
        }
    }
    if !draft.steps.is_empty() {
        return Report::Looked;
    }
    // A member that was not given up and that cannot be reached may still serve.
    let silent = draft.observed.member_machines().filter(|(name, seen)| {
        let given_up = ledger.etcd.replace.contains_key(*name) || !ledger.etcd.members.contains_key(*name);
        *name != survivor && !given_up && seen.report().is_none() && !seen.machine.is_absent()
    });
    let silent: Vec<Name> = silent.map(|(name, _)| name.clone()).collect();
    if !silent.is_empty() {
        silent.iter().for_each(|name| {
            let _ = reached(draft, name);
        });
        return Report::Looked;
    }
    let Some(report) = reached(draft, survivor) else { return Report::Looked };
    // Once the survivor has applied all that is committed in its log, the data of the others is put away.
    for (name, report) in others.iter().filter(|_| *settled) {
        if let Data::Present { member, cluster } = report.etcd.data
            && cluster == *of
        {
            let action = EtcdAction::ClearData { machine: (*name).clone(), member: Some(member) };
            draft.steps.push(Step::new(action, reason()));
        }
    }
    if !draft.steps.is_empty() {
        return Report::Looked;
    }
    let machine = survivor.clone();
    let stopped = report.etcd.service.state == ServiceState::Stopped;
    let version = report.etcd.used_with().unwrap_or(draft.desired.etcd.version);
    let stop = || Action::Etcd(EtcdAction::StopEtcd { machine: survivor.clone() });
    // The survivor may have missed that auth was turned on: it accepts no clients before that is clear.
    let closed = closed(draft, survivor, version).filter(|digest| report.etcd.config.as_ref() != Some(digest));
    let action = match report.etcd.data {
        Data::Present { .. } if !settled && stopped && closed.is_some() => {
            let digest = closed.unwrap_or_default();
            Action::Etcd(EtcdAction::ConfigureEtcd { machine, version, at: None, digest })
        }
        Data::Present { cluster, .. } if !settled && stopped => {
            Action::Etcd(EtcdAction::StartEtcd { machine, version, data: StartData::Alone(cluster) })
        }
        Data::Present { .. } if !settled && *alone => {
            let error = "it is about to be started alone".to_owned();
            draft.wait(Waiting::EtcdStarting { machine, error });
            return Report::Looked;
        }
        Data::Present { .. } if !stopped => stop(),
        Data::Present { member, .. } => Action::Etcd(EtcdAction::ClearData { machine, member: Some(member) }),
        Data::Empty if away.is_some() => Action::Recovery(RecoveryAction::RestoreData { machine, version }),
        Data::Empty => {
            draft.wait(Waiting::DataLost { machine });
            return Report::Looked;
        }
        Data::Unreadable { ref problem } => {
            draft.wait(Waiting::DataUnreadable { machine, problem: problem.clone() });
            return Report::Looked;
        }
    };
    draft.steps.push(Step::new(action, reason()));
    Report::Looked
}

/// The digest of the survivor's configuration, where it is to be closed to clients.
fn closed(draft: &Draft<'_>, survivor: &Name, version: EtcdVersion) -> Option<String> {
    let (desired, ledger) = (draft.desired, &draft.observed.ledger);
    let (member, timers) = (desired.etcd.member(survivor)?, desired.etcd.timers(ledger)?);
    let access = desired.etcd.client_access(ledger);
    let config = (access == ClientAccess::Closed).then(|| desired.etcd.config(member, version, timers, access));
    config.map(|config| config.digest.clone())
}

/// The report of a survivor's agent, or what is waited for.
fn reached<'a>(draft: &mut Draft<'a>, name: &Name) -> Option<&'a AgentReport> {
    let seen = draft.observed.machines.get(name)?;
    if let Some(report) = seen.report() {
        return Some(report);
    }
    let machine = name.clone();
    match (&seen.machine, &seen.agent) {
        (Fact::Seen { value, .. }, _) if value.power == Power::Stopped => {
            draft.steps.push(Step::new(MachineAction::StartMachine { machine }, Reason::NotRunning));
        }
        (Fact::Absent { .. }, _) => draft.wait(Waiting::MachineLost { machine }),
        (_, Fact::Unreachable { error, since }) => {
            draft.wait(Waiting::AgentUnreachable { machine, error: error.clone(), since: *since });
        }
        (_, agent) => {
            let error = "its agent does not answer".to_owned();
            draft.wait(Waiting::AgentUnreachable { machine, error, since: agent.at() });
        }
    }
    None
}
