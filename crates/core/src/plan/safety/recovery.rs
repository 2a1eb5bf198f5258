//! A step of a recovery, or any step while the cluster is recovered → what it costs, or why it must not be done.

use super::{Case, Cost, Refusal, not_decided, otherwise};
use crate::action::{Action, EtcdAction, MachineAction, RecoveryAction, StartData};
use crate::observed::{AgentReport, Data, Recovery, ServiceState};
use crate::spec::Name;

/// No recovery has been approved.
pub(super) fn judge(action: &RecoveryAction) -> Result<Cost, Refusal> {
    match action {
        RecoveryAction::RestoreData { .. } => Err(not_decided()),
    }
}

/// Whether a step may be done during a recovery: no member's data is put away before the survivor was seen to serve
/// alone.
pub(super) fn meanwhile(case: &Case<'_>, recovery: &Recovery, action: &Action) -> Result<(), Refusal> {
    let observed = case.observed;
    let survives = |machine: &Name| *machine == recovery.survivor;
    let reported = |machine| observed.report(machine);
    let building = || Err(otherwise("the cluster is being recovered"));
    match action {
        Action::Machine(MachineAction::StartMachine { .. }) => Ok(()),
        Action::Etcd(action) => match action {
            // The recovery was approved for all of them: the cluster continues with the survivor's data.
            EtcdAction::StopEtcd { machine } => {
                reported(machine).map(drop).ok_or(Refusal::NotSeen("the agent's report"))
            }
            EtcdAction::ConfigureEtcd { machine, .. } if survives(machine) => Ok(()),
            EtcdAction::StartEtcd { machine, data: StartData::Alone(of), .. }
                if survives(machine) && *of == recovery.of =>
            {
                let runs = |report: &AgentReport| report.etcd.service.state != ServiceState::Stopped;
                let others_run = observed.reports().any(|(name, report)| !survives(name) && runs(report));
                if others_run { Err(otherwise("another member runs")) } else { Ok(()) }
            }
            EtcdAction::ClearData { machine, member } if recovery.settled => case.data_of(machine, *member),
            EtcdAction::ClearData { .. } => Err(Refusal::NotSeen("that the survivor runs alone")),
            EtcdAction::InstallEtcd { .. }
            | EtcdAction::ConfigureEtcd { .. }
            | EtcdAction::StartEtcd { .. }
            | EtcdAction::RestartEtcd { .. }
            | EtcdAction::RestartTogether { .. } => building(),
        },
        Action::Recovery(RecoveryAction::RestoreData { machine, .. })
            if survives(machine) && recovery.member.is_some() =>
        {
            match reported(machine).map(|report| &report.etcd.data) {
                Some(Data::Empty) => Ok(()),
                Some(Data::Present { .. } | Data::Unreadable { .. }) => Err(otherwise("there is data already")),
                None => Err(Refusal::NotSeen("the agent's report")),
            }
        }
        Action::Machine(_)
        | Action::Agent(_)
        | Action::Pki(_)
        | Action::Preflight(_)
        | Action::Member(_)
        | Action::Maintenance(_)
        | Action::Version(_)
        | Action::Backup(_)
        | Action::Balancer(_)
        | Action::Postgres(_)
        | Action::Auth(_)
        | Action::User(_)
        | Action::Restore(_)
        | Action::Recovery(_) => building(),
    }
}
