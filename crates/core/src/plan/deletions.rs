//! An action → what it deletes for good, in words.

use crate::action::{
    Action, AuthAction, EtcdAction, MachineAction, MemberAction, PkiAction, PreflightAction, RecoveryAction,
    RestoreAction, UpkeepAction, UserAction, VersionAction,
};
use crate::observed::Side;

/// What is gone for good once the action is done, such as `user alice`; nothing where all can be had back.
///
/// Data that is cleared or replaced by a backup is put aside on its machine, and so is not among them.
pub fn deletion(action: &Action) -> Option<String> {
    match action {
        Action::Machine(MachineAction::DeleteMachine { machine }) => Some(format!("machine {machine}")),
        Action::User(UserAction::DeleteRole { role }) => Some(format!("role {role}")),
        Action::User(UserAction::DeleteUser { user }) => Some(format!("user {user}")),
        Action::Pki(PkiAction::ForgetAuthority { side: Side::Peers }) => Some("old peers CA".to_owned()),
        Action::Pki(PkiAction::ForgetAuthority { side: Side::Clients }) => Some("old clients CA".to_owned()),
        Action::Upkeep(UpkeepAction::Compact { revision }) => Some(format!("history before revision {revision}")),
        Action::Pki(PkiAction::MakeAuthorities)
        | Action::Pki(PkiAction::NextAuthority { .. })
        | Action::Pki(PkiAction::SwitchAuthority { .. })
        | Action::Pki(PkiAction::RetireAuthority { .. })
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
        | Action::Restore(RestoreAction::CompareRestored { .. })
        | Action::Machine(MachineAction::RebuildMachine { .. })
        | Action::Machine(MachineAction::MoveMachine { .. })
        | Action::Member(MemberAction::AddLearner { .. })
        | Action::Member(MemberAction::PromoteMember { .. })
        | Action::Member(MemberAction::RemoveMember { .. })
        | Action::Member(MemberAction::UpdateMember { .. })
        | Action::Member(MemberAction::MoveLeader { .. })
        | Action::Upkeep(UpkeepAction::Defragment { .. })
        | Action::Upkeep(UpkeepAction::DisarmAlarm { .. })
        | Action::Version(VersionAction::TakeSnapshot { .. })
        | Action::Version(VersionAction::EnableDowngrade { .. })
        | Action::Version(VersionAction::CancelDowngrade)
        | Action::Auth(AuthAction::CreateRoot)
        | Action::Auth(AuthAction::ChangeRootPassword)
        | Action::Auth(AuthAction::EnableAuth)
        | Action::Auth(AuthAction::DisableAuth)
        | Action::User(UserAction::SetRole { .. })
        | Action::User(UserAction::SetUser { .. }) => None,
    }
}
