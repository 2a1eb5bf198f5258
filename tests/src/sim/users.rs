//! Roles and users in simulated lives → drift that operators cause by hand, and what must hold for all users.

use std::collections::BTreeSet;

use raftsman_core::action::{Action, UserAction};
use raftsman_core::desired::Stack;
use raftsman_core::observed::{Access, Granted, Password, ROOT, Role, User};
use raftsman_core::spec::{KeySpan, Keys, Level};

use crate::dice::Dice;

/// Files to change between. Permissions move between roles and users, so that the order of steps matters.
pub(super) const FILES: [[&str; 2]; 3] = [
    [
        "roles: { reader: [{ read: { prefix: /a/ } }], writer: [{ readwrite: { prefix: /a/ } }, { write: { key: /n } }] }",
        "users: { app: { roles: [writer] }, metrics: { roles: [reader] } }",
    ],
    [
        "roles: { reader: [{ read: { prefix: /a/ } }, { write: { key: /n } }], owner: [{ readwrite: { prefix: /a/ } }] }",
        "users: { app: { roles: [owner, reader] }, web: { roles: [reader], password: { file: web.password } } }",
    ],
    [
        "roles: { writer: [{ read: { prefix: /a/ } }], owner: [{ write: { prefix: /a/ } }, { write: { key: /n } }] }",
        "users: { app: { roles: [owner, writer], password: { file: app.password } }, metrics: { roles: [writer] } }",
    ],
];

/// An operator changes roles and users by hand. Returns whether there was anything to change.
pub(super) fn tamper(dice: &mut Dice, access: &mut Access) -> bool {
    let names = |all: Vec<&String>| all.into_iter().filter(|n| *n != ROOT).cloned().collect::<Vec<String>>();
    let (users, roles) = (names(access.users.keys().collect()), names(access.roles.keys().collect()));
    let (Some(user), Some(role)) = (dice.pick(&users).cloned(), dice.pick(&roles).cloned()) else { return false };
    let (Some(account), Some(it)) = (access.users.get_mut(&user), access.roles.get_mut(&role)) else { return false };
    let level = *dice.pick(&[Level::Read, Level::Write, Level::Readwrite]).unwrap_or(&Level::Read);
    match dice.below(9) {
        0 => drop(access.users.remove(&user)),
        1 => {
            let mallory = User { roles: BTreeSet::from([role]), password: Password::Untried };
            access.users.insert("mallory".to_owned(), mallory);
        }
        2 => drop(account.roles.pop_first()),
        3 => {
            account.roles.insert(role);
        }
        4 => {
            access.roles.remove(&role);
            access.users.values_mut().for_each(|user| user.roles.retain(|has| *has != role));
        }
        5 => drop(it.permissions.pop_first()),
        6 => it.permissions.values_mut().for_each(|has| *has = level),
        7 => drop(it.permissions.insert(Keys::Prefix("/b/".to_owned()).span(), level)),
        _ => account.password = if dice.one_in(2) { Password::Other } else { Password::None },
    }
    true
}

/// Whether an action changes `root`, which no plan may do.
pub(super) fn touches_root(action: &Action) -> bool {
    match action {
        Action::User(UserAction::SetRole { role, .. }) | Action::User(UserAction::DeleteRole { role }) => role == ROOT,
        Action::User(UserAction::SetUser { user, .. }) | Action::User(UserAction::DeleteUser { user }) => user == ROOT,
        _ => false,
    }
}

/// A user that had a permission that the file grants, and has it no longer.
pub(super) fn robbed(desired: &Stack, before: &Access, after: &Access) -> Option<String> {
    let (roles, users) = (desired.etcd.access.roles.as_ref()?, desired.etcd.access.users.as_ref()?);
    let keys: BTreeSet<Vec<u8>> =
        roles.values().flat_map(|role| role.permissions.keys()).map(|k| k.key.clone()).collect();
    for (name, user) in users {
        let should: Vec<&Role> = user.roles.iter().filter_map(|role| roles.get(role)).collect();
        let could = |access: &Access, key: &[u8], level| {
            let roles = access.users.get(name).into_iter().flat_map(|user| &user.roles);
            allows(roles.filter_map(|role| access.roles.get(role)), key, level)
        };
        for key in &keys {
            for level in [Level::Read, Level::Write] {
                if allows(should.iter().copied(), key, level) && could(before, key, level) && !could(after, key, level)
                {
                    return Some(format!("{name} can no longer {level} {}", String::from_utf8_lossy(key)));
                }
            }
        }
    }
    None
}

fn allows<'a>(roles: impl Iterator<Item = &'a Role>, key: &[u8], level: Level) -> bool {
    let mut all = roles.flat_map(|role| role.permissions.iter());
    all.any(|(keys, has): (&KeySpan, &Level)| keys.contains(key) && has.covers(level))
}

/// What is not as the file says, seen with other eyes than the planner's.
pub(super) fn differs(desired: &Stack, access: &Access) -> Option<String> {
    let others = |names: Vec<&String>| names.into_iter().filter(|name| *name != ROOT).cloned().collect::<BTreeSet<_>>();
    if let Some(roles) = &desired.etcd.access.roles {
        if others(roles.keys().collect()) != others(access.roles.keys().collect()) {
            return Some("other roles than in the file".to_owned());
        }
        let list = |role: &Role| -> Vec<Granted> { role.clone().into() };
        if let Some((name, _)) = roles.iter().find(|(name, role)| list(role) != list(&access.roles[*name])) {
            return Some(format!("the role {name} may do something else"));
        }
    }
    if let Some(users) = &desired.etcd.access.users {
        if others(users.keys().collect()) != others(access.users.keys().collect()) {
            return Some("other users than in the file".to_owned());
        }
        for (name, user) in users {
            let has = &access.users[name];
            let password = if user.password.is_some() { Password::Right } else { Password::None };
            if has.roles != user.roles || has.password != password {
                return Some(format!("the user {name} is not as in the file"));
            }
        }
    }
    None
}
