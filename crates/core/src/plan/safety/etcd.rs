//! A step on etcd where it runs → what it costs, or why it must not be done.

use std::collections::BTreeMap;

use super::{Case, Cost, Refusal, corrupt, not_decided, otherwise};
use crate::action::{EtcdAction, StartData};
use crate::observed::{ClusterId, Data, MemberId, Problem, ServiceState, Tolerance};
use crate::plan::situation::{emergency, left_behind, opens_too_early, to_be_opened};
use crate::plan::{Pause, trust};
use crate::spec::{EtcdVersion, Name};

pub(super) fn judge(case: &Case<'_>, action: &EtcdAction) -> Result<Cost, Refusal> {
    let unharmed = case.unharmed;
    match action {
        EtcdAction::InstallEtcd { machine, .. } | EtcdAction::ConfigureEtcd { machine, .. } => {
            case.report(machine).map(|_| unharmed)
        }
        EtcdAction::StartEtcd { data: StartData::Alone(_), .. } => Err(not_decided()),
        EtcdAction::StartEtcd { machine, data, version } => {
            start(case, machine, *data)?;
            if opens_too_early(case.desired, case.observed, machine, *version, case.report(machine)?) {
                return Err(otherwise("it would accept clients before auth is on"));
            }
            case.may_run(machine, *version)?;
            let pause = if unharmed.before == Tolerance::NoQuorum { Pause::NotServing } else { Pause::None };
            Ok(Cost { pause, ..unharmed })
        }
        EtcdAction::RestartEtcd { machine, cluster, version } => {
            case.may_run(machine, *version)?;
            case.report(machine)?;
            if case.observed.etcd.members.get(machine).and_then(|member| member.problem) == Some(Problem::Unclear) {
                return Err(Refusal::NotSeen("what answers at its address"));
            }
            has_data_of(case, machine, *cluster)?;
            trust::stays_in_touch(case.observed, case.view, machine)
                .map_err(|other| Refusal::Otherwise(format!("{machine} and {other} would not trust each other")))?;
            case.restart(machine)
        }
        EtcdAction::RestartTogether { machines, cluster } => restart_together(case, machines, *cluster),
        EtcdAction::StopEtcd { machine } => {
            case.any_report(machine)?;
            case.no_member(machine).map(|()| unharmed)
        }
        EtcdAction::ClearData { machine, member } => {
            case.no_member(machine)?;
            case.data_of(machine, *member).map(|()| unharmed)
        }
    }
}

/// A member is bootstrapped once; afterwards it restarts with its data or not at all.
fn start(case: &Case<'_>, machine: &Name, data: StartData) -> Result<(), Refusal> {
    let ledger = &case.observed.ledger;
    let etcd = &case.report(machine)?.etcd;
    if etcd.service.state != ServiceState::Stopped {
        return Err(otherwise("etcd runs already"));
    }
    match (data, &etcd.data) {
        (StartData::Empty | StartData::Joining(_), Data::Empty) if etcd.had_data => {
            Err(otherwise("the member had data, and the directory is empty"))
        }
        (StartData::Empty, Data::Empty) if ledger.etcd.reshaped => {
            Err(otherwise("the cluster's members are not those that it was first started with"))
        }
        (StartData::Empty, Data::Empty) => Ok(()),
        (StartData::Joining(_), Data::Empty) if case.view.listed.is_none() => Err(Refusal::NoQuorum),
        (StartData::Joining(_), Data::Empty) if case.outside(machine) => Err(otherwise("the cluster does not list it")),
        (StartData::Joining(_), Data::Empty) => Ok(()),
        (StartData::Of(wanted), Data::Present { cluster, .. }) if wanted == *cluster => match ledger.etcd.cluster {
            Some(known) if known != wanted => Err(Refusal::Otherwise(format!("the cluster is {known}, not {wanted}"))),
            Some(_) | None => Ok(()),
        },
        (StartData::Empty | StartData::Joining(_), Data::Present { .. } | Data::Unreadable { .. })
        | (StartData::Of(_), Data::Empty | Data::Present { .. } | Data::Unreadable { .. })
        | (StartData::Alone(_), Data::Empty | Data::Present { .. } | Data::Unreadable { .. }) => {
            Err(otherwise("the data directory is not as expected"))
        }
    }
}

fn has_data_of(case: &Case<'_>, machine: &Name, cluster: ClusterId) -> Result<(), Refusal> {
    match case.report(machine)?.etcd.data {
        Data::Present { cluster: found, .. } if found == cluster => Ok(()),
        Data::Empty | Data::Present { .. } | Data::Unreadable { .. } => {
            Err(otherwise("its data is not that of the cluster"))
        }
    }
}

fn restart_together(
    case: &Case<'_>,
    machines: &BTreeMap<Name, EtcdVersion>,
    cluster: ClusterId,
) -> Result<Cost, Refusal> {
    let Case { desired, observed, view, .. } = case;
    for (machine, version) in machines {
        case.may_run(machine, *version)?;
        has_data_of(case, machine, cluster)?;
    }
    if trust::locked_out(desired, observed, view, observed.at()) {
        return Ok(case.not_serving());
    }
    match to_be_opened(desired, observed) {
        // It does not serve clients yet.
        Some(closed) if machines.keys().all(|machine| closed.contains(machine)) => {
            Ok(Cost { before: Tolerance::NoQuorum, ..case.not_serving() })
        }
        Some(_) | None => Err(otherwise("members are restarted one at a time")),
    }
}

impl Case<'_> {
    /// Whether the data on a machine is that of this member; without one, whether it is no member's.
    pub(super) fn data_of(&self, machine: &Name, owner: Option<MemberId>) -> Result<(), Refusal> {
        let report = self.any_report(machine)?;
        if report.etcd.service.state != ServiceState::Stopped {
            return Err(otherwise("etcd runs on it"));
        }
        let found = match report.etcd.data {
            Data::Present { member, .. } => Some(member),
            Data::Empty | Data::Unreadable { .. } => None,
        };
        if found == owner { Ok(()) } else { Err(otherwise("its data is another member's")) }
    }

    /// What it costs to have this member down for a moment.
    pub(in crate::plan) fn restart(&self, machine: &Name) -> Result<Cost, Refusal> {
        let Case { desired, observed, view, .. } = self;
        if view.corrupt() {
            return Err(corrupt());
        }
        // A member that could make no new connection is healthy by those that it has, and one of them may be to the
        // member that stops.
        let left = left_behind(observed, view);
        let in_touch = |name: &Name| view.healthy.contains(name) && !left.contains(name);
        let others = view.healthy.iter().filter(|name| **name != machine && in_touch(name)).count();
        let (before, during) = (view.tolerance(), Tolerance::of(others, view.voters));
        // A member that was not seen healthy may still be the one that makes the majority: only the others count.
        let others_suffice = during != Tolerance::NoQuorum;
        let was_healthy = in_touch(machine);
        // Members that the file adds have no vote yet.
        let voter = |name: &Name| view.listed.is_none_or(|l| l.iter().any(|m| !m.learner && m.name == name.as_str()));
        let others = desired.etcd.members.iter().map(|m| &m.name).filter(|name| *name != machine && voter(name));
        // In an emergency no restart waits for those that are left behind.
        let ignored = |name: &Name| emergency(observed) && left.contains(name);
        let others_healthy = others.into_iter().all(|name| view.healthy.contains(name) || ignored(name));
        if !others_suffice || (was_healthy && !others_healthy) {
            return Err(self.costs_quorum());
        }
        let pause = if view.leader == Some(machine) { Pause::LEADER_STOPPED } else { Pause::None };
        Ok(Cost { before, during, pause, copies: None })
    }
}
