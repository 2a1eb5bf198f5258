//! An action → what it deletes for good, in words.

#![warn(clippy::wildcard_enum_match_arm)]

use crate::action::{Action, MachineAction, MaintenanceAction, PkiAction, UserAction};
use crate::observed::TrustDomain;

/// What is gone for good once the action is done, such as `user alice`; nothing where all can be restored.
///
/// Data that is cleared or replaced by a backup is put aside on its machine, and so is not among them.
pub fn deletion(action: &Action) -> Option<String> {
    match action {
        Action::Machine(action) => match action {
            MachineAction::DeleteMachine { machine } => Some(format!("machine {machine}")),
            MachineAction::AssignAddress { .. }
            | MachineAction::CreateMachine { .. }
            | MachineAction::StartMachine { .. }
            | MachineAction::Enroll { .. }
            | MachineAction::SetFirewall { .. }
            | MachineAction::SetAccess { .. }
            | MachineAction::RenewAgent { .. }
            | MachineAction::Deliver { .. }
            | MachineAction::MoveMachine { .. }
            | MachineAction::RebuildMachine { .. } => None,
        },
        Action::Pki(action) => match action {
            PkiAction::DeleteAuthority { side: TrustDomain::Peers } => Some("old peers CA".to_owned()),
            PkiAction::DeleteAuthority { side: TrustDomain::Clients } => Some("old clients CA".to_owned()),
            PkiAction::MakeAuthorities
            | PkiAction::AddAuthority { .. }
            | PkiAction::ActivateAuthority { .. }
            | PkiAction::DistrustAuthority { .. }
            | PkiAction::StoreTrust { .. }
            | PkiAction::IssueCertificate { .. } => None,
        },
        Action::Maintenance(action) => match action {
            MaintenanceAction::Compact { revision } => Some(format!("history before revision {revision}")),
            MaintenanceAction::Defragment { .. } | MaintenanceAction::DisarmAlarm { .. } => None,
        },
        Action::User(action) => match action {
            UserAction::DeleteRole { role } => Some(format!("role {role}")),
            UserAction::DeleteUser { user } => Some(format!("user {user}")),
            UserAction::SetRole { .. } | UserAction::SetUser { .. } => None,
        },
        Action::Agent(_)
        | Action::Preflight(_)
        | Action::Etcd(_)
        | Action::Member(_)
        | Action::Version(_)
        | Action::Backup(_)
        | Action::Balancer(_)
        | Action::Postgres(_)
        | Action::Auth(_)
        | Action::Restore(_)
        | Action::Recovery(_) => None,
    }
}
