//! A change of roles or users → what the cluster has agreed upon then, as etcd would, or why etcd would refuse.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::BTreeSet;

use super::effects::Impossible;
use crate::action::{
    Account, Action, AuthAction, EtcdAction, MachineAction, MemberAction, PkiAction, PreflightAction, RecoveryAction,
    RestoreAction, UpkeepAction, UserAction, VersionAction,
};
use crate::desired::Cluster;
use crate::observed::{Access, Fact, Observed, Password, ROOT, Role, User};

/// There is a superuser, with its role.
pub(super) fn create_root(access: &mut Access) {
    access.roles.entry(ROOT.to_owned()).or_default();
    let root = User { roles: BTreeSet::from([ROOT.to_owned()]), password: Password::Untried };
    access.users.entry(ROOT.to_owned()).or_insert(root);
}

/// Roles and users as apply leaves them.
pub(super) fn settled(desired: &Cluster) -> Access {
    let roles = desired.access.roles.clone().unwrap_or_default();
    let password = |wanted: &Option<_>| if wanted.is_some() { Password::Right } else { Password::None };
    let users = desired.access.users.iter().flatten();
    let users = users
        .map(|(name, user)| (name.clone(), User { roles: user.roles.clone(), password: password(&user.password) }));
    let mut access = Access { roles, users: users.collect() };
    create_root(&mut access);
    access
}

/// Does it to a cluster that others run: nothing else can be done there.
pub(super) fn change_watched(watched: &mut Observed, desired: &Cluster, action: &Action) -> Result<(), Impossible> {
    for member in watched.members.values_mut() {
        if let Fact::Seen { value, .. } = &mut member.etcd
            && let Some(Ok(access)) = &mut value.access
        {
            return change(access, desired, action);
        }
    }
    Err(Impossible("nobody who runs it can be asked".to_owned()))
}

/// Does it.
pub(super) fn change(access: &mut Access, desired: &Cluster, action: &Action) -> Result<(), Impossible> {
    let refused = |why: &str| Err(Impossible(why.to_owned()));
    match action {
        Action::User(UserAction::SetRole { role, set, revoke }) => {
            let Role { permissions } = access.roles.entry(role.clone()).or_default();
            permissions.extend(set.iter().map(|granted| (granted.keys.clone(), granted.level)));
            permissions.retain(|keys, _| !revoke.contains(keys));
        }
        Action::User(UserAction::DeleteRole { role }) => {
            if role == ROOT {
                return refused("etcd does not remove the role root while auth is on");
            }
            access.roles.remove(role);
            access.users.values_mut().for_each(|user| {
                user.roles.remove(role);
            });
        }
        Action::User(UserAction::SetUser { user, account, grant, revoke }) => {
            if let Some(role) = grant.iter().find(|role| !access.roles.contains_key(*role)) {
                return refused(&format!("there is no role {role}"));
            }
            let wanted = desired.access.users.iter().flatten().find(|(name, _)| *name == user);
            let password = match wanted.is_some_and(|(_, wanted)| wanted.password.is_some()) {
                true => Password::Right,
                false => Password::None,
            };
            let fresh = || User { roles: BTreeSet::new(), password: password.clone() };
            let user = match account {
                Account::Make => access.users.entry(user.clone()).or_insert_with(fresh),
                Account::Remake => access.users.entry(user.clone()).insert_entry(fresh()).into_mut(),
                Account::Keep | Account::Password => match access.users.get_mut(user) {
                    Some(user) => user,
                    None => return refused(&format!("there is no user {user}")),
                },
            };
            // etcd says yes to a password for a user that was made without one, and forgets it.
            if *account == Account::Password && user.password != Password::None {
                user.password = password;
            }
            user.roles.extend(grant.iter().cloned());
            user.roles.retain(|role| !revoke.contains(role));
        }
        Action::User(UserAction::DeleteUser { user }) => {
            if user == ROOT {
                return refused("etcd does not remove root while auth is on");
            }
            access.users.remove(user);
        }
        // They change no role and no user.
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
        | Action::Restore(RestoreAction::CompareRestored { .. })
        | Action::Machine(MachineAction::DeleteMachine { .. })
        | Action::Machine(MachineAction::RebuildMachine { .. })
        | Action::Machine(MachineAction::MoveMachine { .. })
        | Action::Member(MemberAction::AddLearner { .. })
        | Action::Member(MemberAction::PromoteMember { .. })
        | Action::Member(MemberAction::RemoveMember { .. })
        | Action::Member(MemberAction::UpdateMember { .. })
        | Action::Member(MemberAction::MoveLeader { .. })
        | Action::Upkeep(UpkeepAction::Compact { .. })
        | Action::Upkeep(UpkeepAction::Defragment { .. })
        | Action::Upkeep(UpkeepAction::DisarmAlarm { .. })
        | Action::Version(VersionAction::TakeSnapshot { .. })
        | Action::Version(VersionAction::EnableDowngrade { .. })
        | Action::Version(VersionAction::CancelDowngrade)
        | Action::Auth(AuthAction::CreateRoot)
        | Action::Auth(AuthAction::ChangeRootPassword)
        | Action::Auth(AuthAction::EnableAuth)
        | Action::Auth(AuthAction::DisableAuth) => {}
    }
    Ok(())
}
