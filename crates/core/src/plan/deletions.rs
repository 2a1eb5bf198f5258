//! An action → what it deletes for good, in words.

use crate::action::Action;
use crate::observed::Side;

/// What is gone for good once the action is done, such as `user alice`; nothing where all can be had back.
///
/// Data that is cleared or replaced by a backup is put aside on its machine, and so is not among them.
pub fn deletion(action: &Action) -> Option<String> {
    match action {
        Action::DeleteMachine { machine } => Some(format!("machine {machine}")),
        Action::DeleteRole { role } => Some(format!("role {role}")),
        Action::DeleteUser { user } => Some(format!("user {user}")),
        Action::ForgetAuthority { side: Side::Peers } => Some("old peers CA".to_owned()),
        Action::ForgetAuthority { side: Side::Clients } => Some("old clients CA".to_owned()),
        Action::Compact { revision } => Some(format!("history before revision {revision}")),
        Action::MakeAuthorities
        | Action::NextAuthority { .. }
        | Action::SwitchAuthority { .. }
        | Action::RetireAuthority { .. }
        | Action::StoreTrust { .. }
        | Action::CreateMachine { .. }
        | Action::StartMachine { .. }
        | Action::Enroll { .. }
        | Action::Measure
        | Action::InstallEtcd { .. }
        | Action::IssueCertificate { .. }
        | Action::ConfigureEtcd { .. }
        | Action::SetFirewall { .. }
        | Action::SetAccess { .. }
        | Action::RenewAgent { .. }
        | Action::Deliver { .. }
        | Action::StartEtcd { .. }
        | Action::RestartEtcd { .. }
        | Action::RestartTogether { .. }
        | Action::StopEtcd { .. }
        | Action::ClearData { .. }
        | Action::RestoreData { .. }
        | Action::PrepareRestore
        | Action::RestoreBackup { .. }
        | Action::CompareRestored { .. }
        | Action::RebuildMachine { .. }
        | Action::MoveMachine { .. }
        | Action::AddLearner { .. }
        | Action::PromoteMember { .. }
        | Action::RemoveMember { .. }
        | Action::UpdateMember { .. }
        | Action::MoveLeader { .. }
        | Action::Defragment { .. }
        | Action::DisarmAlarm { .. }
        | Action::TakeSnapshot { .. }
        | Action::EnableDowngrade { .. }
        | Action::CancelDowngrade
        | Action::CreateRoot
        | Action::ChangeRootPassword
        | Action::EnableAuth
        | Action::DisableAuth
        | Action::SetRole { .. }
        | Action::SetUser { .. } => None,
    }
}
