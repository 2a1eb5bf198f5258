//! A change of roles or users → whether it follows the file, and takes no access away that a user should have.

use super::{Case, Cost, Refusal, otherwise};
use crate::action::{Account, UserAction};
use crate::desired::{self, Stack};
use crate::observed::{Access, Granted, ROOT, View};
use crate::plan::users::{account, lacking, looked, newest};
use crate::spec::KeySpan;

pub(super) fn judge(case: &Case<'_>, action: &UserAction) -> Result<Cost, Refusal> {
    let (desired, view) = (case.desired, case.view);
    // The interlock has judged what concerns Patroni.
    if desired.etcd.access.patroni.contains(action.name()) {
        return seen(view, action.name()).map(|_| case.unharmed);
    }
    let judged = match action {
        UserAction::SetRole { role, set, revoke } => set_role(desired, seen(view, role)?, role, set, revoke),
        UserAction::DeleteRole { role } => delete_role(desired, seen(view, role)?, role),
        UserAction::SetUser { user, account, grant, revoke } => {
            set_user(desired, seen(view, user)?, user, *account, grant, revoke)
        }
        UserAction::DeleteUser { user } => {
            seen(view, user)?;
            delete_user(desired, user)
        }
    };
    judged.map(|()| case.unharmed)
}

/// The users and roles that a majority has, where a change of this one may be judged by them.
fn seen<'a>(view: &View<'a>, subject: &str) -> Result<&'a Access, Refusal> {
    if !view.has_quorum() {
        return Err(Refusal::NoQuorum);
    }
    if newest(view).and_then(|e| e.auth) != Some(true) {
        return Err(Refusal::NotSeen("that auth is on"));
    }
    let seen = looked(view).and_then(|access| access.as_ref().ok()).ok_or(Refusal::NotSeen("what users there are"))?;
    if subject == ROOT { Err(otherwise("`root` is left alone")) } else { Ok(seen) }
}

/// Judges a change of a role.
fn set_role(desired: &Stack, seen: &Access, role: &str, set: &[Granted], revoke: &[KeySpan]) -> Result<(), Refusal> {
    let roles = desired.etcd.access.roles.as_ref();
    let wanted = roles.and_then(|roles| roles.get(role)).ok_or_else(|| otherwise("it is not in the file"))?;
    let has = seen.roles.get(role);
    let has = |keys| has.and_then(|has| has.permissions.get(keys));
    for granted in set {
        let wanted = wanted.permissions.get(&granted.keys);
        if !wanted.is_some_and(|wanted| granted.level.covers(*wanted)) {
            return Err(otherwise("it would not be what the file says"));
        }
    }
    if revoke.iter().any(|keys| wanted.permissions.contains_key(keys)) {
        return Err(otherwise("the file gives what it would take"));
    }
    let lowers = set.iter().any(|granted| has(&granted.keys).is_some_and(|has| !granted.level.covers(*has)));
    if lowers || !revoke.is_empty() { all_have_theirs(&desired.etcd.access, seen) } else { Ok(()) }
}

/// Judges the deletion of a role.
fn delete_role(desired: &Stack, seen: &Access, role: &str) -> Result<(), Refusal> {
    not_in_file(desired.etcd.access.roles.as_ref().map(|roles| roles.contains_key(role)))?;
    all_have_theirs(&desired.etcd.access, seen)
}

/// Judges a change of a user.
fn set_user(
    desired: &Stack,
    seen: &Access,
    user: &str,
    becomes: Account,
    grant: &[String],
    revoke: &[String],
) -> Result<(), Refusal> {
    let users = desired.etcd.access.users.as_ref();
    let wanted = users.and_then(|users| users.get(user)).ok_or_else(|| otherwise("it is not in the file"))?;
    if grant.iter().any(|role| !wanted.roles.contains(role)) {
        return Err(otherwise("the file does not give what it would get"));
    }
    if revoke.iter().any(|role| wanted.roles.contains(role)) {
        return Err(otherwise("the file gives what it would take"));
    }
    if grant.iter().any(|role| role != ROOT && !seen.roles.contains_key(role)) {
        return Err(otherwise("a role that it would get does not exist yet"));
    }
    let needed = account(wanted, seen.users.get(user));
    let all = || wanted.roles.iter().all(|role| grant.contains(role));
    if becomes == Account::Remake && (needed != Ok(Account::Remake) || !all()) {
        return Err(otherwise("it would be recreated without need, or without its roles"));
    }
    if becomes == Account::Password && needed != Ok(Account::Password) {
        return Err(otherwise("its password is not another than that of the file"));
    }
    if revoke.is_empty() { Ok(()) } else { roles_have_theirs(&desired.etcd.access, seen) }
}

/// Judges the deletion of a user.
fn delete_user(desired: &Stack, user: &str) -> Result<(), Refusal> {
    not_in_file(desired.etcd.access.users.as_ref().map(|users| users.contains_key(user)))
}

/// Only what the file speaks of and does not have is removed.
fn not_in_file(in_file: Option<bool>) -> Result<(), Refusal> {
    match in_file {
        None => Err(otherwise("the file leaves it alone")),
        Some(true) => Err(otherwise("it is in the file")),
        Some(false) => Ok(()),
    }
}

fn roles_have_theirs(wanted: &desired::Access, seen: &Access) -> Result<(), Refusal> {
    let mut roles = wanted.roles.iter().flatten();
    match roles.find(|(name, role)| seen.roles.get(*name).is_none_or(|has| !lacking(role, Some(has)).is_empty())) {
        Some((name, _)) => Err(Refusal::Otherwise(format!("role `{name}` still lacks a permission"))),
        None => Ok(()),
    }
}

/// Before anything is taken from a role, every role and every user must have what the file gives it.
fn all_have_theirs(wanted: &desired::Access, seen: &Access) -> Result<(), Refusal> {
    roles_have_theirs(wanted, seen)?;
    let mut users = wanted.users.iter().flatten();
    match users.find(|(name, user)| seen.users.get(*name).is_none_or(|has| !user.roles.is_subset(&has.roles))) {
        Some((name, _)) => Err(Refusal::Otherwise(format!("user `{name}` still lacks a role"))),
        None => Ok(()),
    }
}
