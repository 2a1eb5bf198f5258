//! A step of a restore, or any step while a backup is restored → what it costs, or why it must not be done.

use super::{Case, Cost, Refusal, not_decided, otherwise};
use crate::action::{Action, EtcdAction, MachineAction, PkiAction, RestoreAction};
use crate::observed::{Data, Restoration, ServiceState};
use crate::plan::restore::found;
use crate::spec::Name;

/// No restore has been approved.
pub(super) fn judge(case: &Case<'_>, action: &RestoreAction) -> Result<Cost, Refusal> {
    match action {
        RestoreAction::PrepareRestore
            if case.observed.ledger.etcd.cluster.is_some() || !case.view.clusters.is_empty() =>
        {
            Err(otherwise("the cluster is there already"))
        }
        RestoreAction::PrepareRestore => Ok(case.unharmed),
        RestoreAction::RestoreBackup { .. } | RestoreAction::CompareRestored { .. } => Err(not_decided()),
    }
}

/// Whether a step may be done while a backup is restored; nothing where it is judged as always.
pub(super) fn meanwhile(case: &Case<'_>, restoration: &Restoration, action: &Action) -> Option<Result<(), Refusal>> {
    let report = |machine: &Name| case.observed.report(machine);
    let reports = || case.observed.reports().map(|(_, report)| report);
    let refuse = |text: &str| Some(Err(otherwise(text)));
    let unseen = || Some(Err(Refusal::NotSeen("the agent's report")));
    let serves = || {
        reports()
            .any(|report| restoration.replaces(&report.etcd.data) && report.etcd.service.state != ServiceState::Stopped)
    };
    let (serving, restoring) = ("a member still serves old data", "a backup is being restored");
    match action {
        Action::Preflight(_) | Action::Agent(_) => None,
        Action::Backup(_) | Action::Balancer(_) | Action::Postgres(_) => refuse(restoring),
        Action::Machine(action) => match action {
            MachineAction::CreateMachine { .. }
            | MachineAction::StartMachine { .. }
            | MachineAction::DeleteMachine { .. }
            | MachineAction::MoveMachine { .. }
            | MachineAction::Enroll { .. }
            | MachineAction::SetFirewall { .. }
            | MachineAction::SetAccess { .. }
            | MachineAction::RenewAgent { .. } => None,
            MachineAction::AssignAddress { .. }
            | MachineAction::Deliver { .. }
            | MachineAction::RebuildMachine { .. } => refuse(restoring),
        },
        Action::Pki(action) => match action {
            PkiAction::MakeAuthorities | PkiAction::IssueCertificate { .. } | PkiAction::StoreTrust { .. } => None,
            PkiAction::AddAuthority { .. }
            | PkiAction::ActivateAuthority { .. }
            | PkiAction::DistrustAuthority { .. }
            | PkiAction::DeleteAuthority { .. } => refuse(restoring),
        },
        Action::Etcd(action) => match action {
            EtcdAction::InstallEtcd { .. } | EtcdAction::ConfigureEtcd { .. } => None,
            // The restore was approved for all of them: a backup replaces all data.
            EtcdAction::StopEtcd { machine } => report(machine).map_or_else(unseen, |_| Some(Ok(()))),
            EtcdAction::ClearData { .. } if serves() => refuse(serving),
            EtcdAction::ClearData { machine, member } => match report(machine) {
                Some(report) if restoration.replaces(&report.etcd.data) => Some(case.data_of(machine, *member)),
                Some(_) => refuse("its data is not what the backup takes the place of"),
                None => unseen(),
            },
            EtcdAction::StartEtcd { .. } | EtcdAction::RestartEtcd { .. } | EtcdAction::RestartTogether { .. } => {
                refuse(restoring)
            }
        },
        Action::Restore(action) => match action {
            RestoreAction::RestoreBackup { .. } if serves() => refuse(serving),
            RestoreAction::RestoreBackup { machine, .. } if restoration.members.contains_key(machine) => {
                match report(machine) {
                    Some(report) if report.etcd.data == Data::Empty => Some(Ok(())),
                    Some(_) => refuse("there is data already"),
                    None => unseen(),
                }
            }
            RestoreAction::CompareRestored { machines } => {
                let found = found(case.observed, restoration);
                let all = found.values().next().is_some_and(|names| names.len() == machines.len());
                if found.len() == 1 && all { Some(Ok(())) } else { refuse("not every member has the backup") }
            }
            RestoreAction::PrepareRestore | RestoreAction::RestoreBackup { .. } => refuse(restoring),
        },
        Action::Member(_)
        | Action::Maintenance(_)
        | Action::Version(_)
        | Action::Auth(_)
        | Action::User(_)
        | Action::Recovery(_) => refuse(restoring),
    }
}
