//! A change of roles or users → what the cluster has agreed upon then, as etcd would, or why etcd would refuse.

#![warn(clippy::wildcard_enum_match_arm)]

use std::collections::BTreeSet;

use super::World;
use super::effects::Impossible;
use crate::action::{Account, Action, UserAction};
use crate::desired::Stack;
use crate::observed::{Access, Fact, Ledger, Observed, Password, ROOT, Role, User};

pub(super) fn act(world: &mut World, desired: &Stack, action: &UserAction) -> Result<(), Impossible> {
    let mut outcome = Ok(());
    world.agree(|agreed| outcome = change(&mut agreed.access, desired, action))?;
    outcome
}

/// The superuser, with its role.
pub(super) fn create_root(access: &mut Access) {
    access.roles.entry(ROOT.to_owned()).or_default();
    let root = User { roles: BTreeSet::from([ROOT.to_owned()]), password: Password::Untried };
    access.users.entry(ROOT.to_owned()).or_insert(root);
}

/// Roles and users as apply leaves them.
pub(super) fn settled(desired: &Stack, ledger: &Ledger) -> Access {
    let roles = desired.etcd.access.roles.clone().unwrap_or_default();
    let password = |wanted: &Option<_>| if wanted.is_some() { Password::Right } else { Password::None };
    let users = desired.etcd.access.users.iter().flatten();
    let users = users
        .map(|(name, user)| (name.clone(), User { roles: user.roles.clone(), password: password(&user.password) }));
    let mut access = Access { roles, users: users.collect() };
    for cluster in &desired.postgres {
        let (role, permissions) = cluster.etcd_role();
        let slot = ledger.postgres.get(&cluster.name).map(|ledger| ledger.user).unwrap_or_default();
        let user = User { roles: BTreeSet::from([role.clone()]), password: Password::Right };
        access.roles.insert(role, permissions);
        access.users.insert(cluster.etcd_user(slot), user);
    }
    create_root(&mut access);
    access
}

/// Applies it to an adopted cluster: nothing else can be changed there.
pub(super) fn change_watched(watched: &mut Observed, desired: &Stack, action: &Action) -> Result<(), Impossible> {
    for member in watched.etcd.members.values_mut() {
        if let Fact::Seen { value, .. } = &mut member.etcd
            && let Some(Ok(access)) = &mut value.access
        {
            return match action {
                Action::User(action) => change(access, desired, action),
                Action::Machine(_)
                | Action::Agent(_)
                | Action::Pki(_)
                | Action::Preflight(_)
                | Action::Etcd(_)
                | Action::Member(_)
                | Action::Maintenance(_)
                | Action::Version(_)
                | Action::Backup(_)
                | Action::Balancer(_)
                | Action::Postgres(_)
                | Action::Auth(_)
                | Action::Restore(_)
                | Action::Recovery(_) => Ok(()),
            };
        }
    }
    Err(Impossible("no client can reach it".to_owned()))
}

/// Applies it.
fn change(access: &mut Access, desired: &Stack, action: &UserAction) -> Result<(), Impossible> {
    let refused = |why: &str| Err(Impossible(why.to_owned()));
    match action {
        UserAction::SetRole { role, set, revoke } => {
            let Role { permissions } = access.roles.entry(role.clone()).or_default();
            permissions.extend(set.iter().map(|granted| (granted.keys.clone(), granted.level)));
            permissions.retain(|keys, _| !revoke.contains(keys));
        }
        UserAction::DeleteRole { role } => {
            if role == ROOT {
                return refused("etcd does not remove the role root while auth is on");
            }
            access.roles.remove(role);
            access.users.values_mut().for_each(|user| {
                user.roles.remove(role);
            });
        }
        UserAction::SetUser { user, account, grant, revoke } => {
            if let Some(role) = grant.iter().find(|role| !access.roles.contains_key(*role)) {
                return refused(&format!("there is no role {role}"));
            }
            let wanted = desired.etcd.access.users.iter().flatten().find(|(name, _)| *name == user);
            let patronis = desired.etcd.access.patroni.contains(user);
            let password = match patronis || wanted.is_some_and(|(_, wanted)| wanted.password.is_some()) {
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
                // Patroni's files have the one from before.
                user.password = if patronis { Password::Other } else { password };
            }
            user.roles.extend(grant.iter().cloned());
            user.roles.retain(|role| !revoke.contains(role));
        }
        UserAction::DeleteUser { user } => {
            if user == ROOT {
                return refused("etcd does not remove root while auth is on");
            }
            access.users.remove(user);
        }
    }
    Ok(())
}
