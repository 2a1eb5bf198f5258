//! Roles and users that should be, roles and users that are → what differs, and the steps that correct it.
//!
//! First every role gets what it lacks, then every user, and only then is anything taken away: no user loses access
//! meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::report::{Because, Report};
use super::{Draft, Reason, Step, Waiting};
use crate::action::{Account, Action, UserAction};
use crate::desired;
use crate::observed::{Access, EtcdFacts, Granted, Password, ROOT, Role, User, View};
use crate::spec::{KeySpan, Level};

/// One role or user that is not as the file says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Whether it is a role or a user: `role` or `user`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// What differs.
    pub reason: Reason,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`: {}", self.kind, self.name, self.reason)
    }
}

/// Everything that differs, roles before users.
pub fn drift(wanted: &desired::Access, seen: &Access) -> Vec<Drift> {
    let mut found = Vec::new();
    let mut push = |kind: &str, name: &str, reason: Reason| {
        found.push(Drift { kind: kind.to_owned(), name: name.to_owned(), reason });
    };
    for (name, role) in wanted.roles.iter().flatten() {
        let has = seen.roles.get(name);
        let (lacking, excess) = (lacking(role, has), has.map(|has| excess(role, has)).unwrap_or_default());
        if has.is_none() || !lacking.is_empty() || !excess.is_empty() {
            push(
                "role",
                name,
                Reason::Access { missing: has.is_none(), lacks: words(role, &lacking), has: excess.words },
            );
        }
    }
    for name in surplus(wanted, wanted.roles.as_ref(), &seen.roles) {
        push("role", name, Reason::NotInFile);
    }
    for (name, user) in wanted.users.iter().flatten() {
        if let Some((_, reason)) = change(name, user, seen.users.get(name)) {
            push("user", name, reason);
        }
    }
    for name in surplus(wanted, wanted.users.as_ref(), &seen.users) {
        push("user", name, Reason::NotInFile);
    }
    found
}

/// Plans what the file says of roles and users, once no client gets in without credentials.
pub(super) fn manage(draft: &mut Draft<'_>) -> Report {
    let wanted = &draft.desired.etcd.access;
    if wanted.is_silent() {
        return Report::Left(Because::NotAsked);
    }
    if newest(&draft.view).and_then(|e| e.auth) != Some(true) {
        return Report::Left(Because::NoAuth);
    }
    let seen = match looked(&draft.view) {
        Some(Ok(seen)) => seen,
        other => {
            let error = other.and_then(|o| o.as_ref().err()).map_or("not looked at yet", |error| error);
            draft.wait(Waiting::UsersUnknown { error: error.to_owned() });
            return Report::Looked;
        }
    };
    for (name, user) in wanted.users.iter().flatten() {
        if let Some(error) = seen.users.get(name).and_then(|has| account(user, Some(has)).err()) {
            draft.wait(Waiting::PasswordUnknown { user: name.clone(), error });
        }
    }
    for phase in [give_to_roles, change_users, take_from_roles] {
        let steps = phase(wanted, seen);
        if !steps.is_empty() {
            draft.steps.extend(steps);
            return Report::Looked;
        }
    }
    Report::Looked
}

/// Where the file does not manage users, no user beside `root` may have become a superuser, for example while the
/// cluster was bootstrapped. An adopted cluster has its own superusers.
pub(super) fn superusers(draft: &mut Draft<'_>) -> Report {
    // What the file does not name is removed with the others then.
    if draft.desired.etcd.access.users.is_some() {
        return Report::Looked;
    }
    let Some(Ok(seen)) = looked(&draft.view) else { return Report::Looked };
    let superuser = |(name, user): (&String, &User)| {
        (name != ROOT && user.roles.contains(ROOT)).then(|| Waiting::UnknownSuperuser { user: name.clone() })
    };
    let found: Vec<Waiting> = seen.users.iter().filter_map(superuser).collect();
    draft.waiting.extend(found);
    Report::Looked
}

/// The healthy member that is furthest ahead has the newest state of what the cluster has agreed upon.
pub(super) fn newest<'a>(view: &View<'a>) -> Option<&'a EtcdFacts> {
    let healthy = view.healthy.iter().filter_map(|name| view.answering.get(name).copied());
    healthy.max_by_key(|e| (e.raft_term, e.raft_index))
}

/// What was seen of roles and users: one healthy member is asked.
pub(super) fn looked<'a>(view: &View<'a>) -> Option<&'a Result<Access, String>> {
    view.healthy.iter().filter_map(|name| view.answering.get(name).copied()).find_map(|e| e.access.as_ref())
}

/// Permissions that a role lacks, each as it must be set: together with what it may do with the same keys already.
pub(super) fn lacking(wanted: &Role, has: Option<&Role>) -> Vec<Granted> {
    let granted = |keys: &KeySpan| has.and_then(|has| has.permissions.get(keys)).copied();
    let lacks = |(keys, level): (&KeySpan, &Level)| match granted(keys) {
        Some(has) if has.covers(*level) => None,
        Some(has) => Some(Granted { level: level.with(has), keys: keys.clone() }),
        None => Some(Granted { level: *level, keys: keys.clone() }),
    };
    wanted.permissions.iter().filter_map(lacks).collect()
}

/// The file's words for what is lacking.
fn words(wanted: &Role, lacking: &[Granted]) -> Vec<String> {
    let said = |granted: &Granted| {
        let level = wanted.permissions.get(&granted.keys)?;
        Some(format!("{level} {}", granted.keys))
    };
    lacking.iter().filter_map(said).collect()
}

/// What a role may do beyond the file.
#[derive(Default)]
pub(super) struct Excess {
    /// More than it should with keys of the file: what is left of it.
    pub(super) lower: Vec<Granted>,
    /// Something with keys that are not in the file.
    pub(super) revoke: Vec<KeySpan>,
    words: Vec<String>,
}

impl Excess {
    fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

/// What a role may do beyond the file.
pub(super) fn excess(wanted: &Role, has: &Role) -> Excess {
    let mut excess = Excess::default();
    for (keys, level) in &has.permissions {
        match wanted.permissions.get(keys) {
            None => {
                excess.words.push(format!("{level} {keys}"));
                excess.revoke.push(keys.clone());
            }
            Some(wanted) if wanted.covers(*level) => {}
            Some(wanted) => {
                excess.words.push(format!("{level} {keys}, not {wanted}"));
                excess.lower.push(Granted { level: *wanted, keys: keys.clone() });
            }
        }
    }
    excess
}

/// Names that are there and not in the file. `root` is never one of them, nor are those of PostgreSQL clusters.
fn surplus<'a, W, S>(
    access: &desired::Access,
    wanted: Option<&BTreeMap<String, W>>,
    seen: &'a BTreeMap<String, S>,
) -> Vec<&'a String> {
    let Some(wanted) = wanted else { return Vec::new() };
    let kept = |name: &str| name == ROOT || access.patroni.contains(name);
    seen.keys().filter(|name| !wanted.contains_key(*name) && !kept(name)).collect()
}

fn give_to_roles(wanted: &desired::Access, seen: &Access) -> Vec<Step> {
    let give = |(name, role): (&String, &Role)| {
        let has = seen.roles.get(name);
        let set = lacking(role, has);
        if has.is_some() && set.is_empty() {
            return None;
        }
        let reason = Reason::Access { missing: has.is_none(), lacks: words(role, &set), has: Vec::new() };
        Some(Step::new(UserAction::SetRole { role: name.clone(), set, revoke: Vec::new() }, reason))
    };
    wanted.roles.iter().flatten().filter_map(give).collect()
}

fn change_users(wanted: &desired::Access, seen: &Access) -> Vec<Step> {
    let changed = wanted.users.iter().flatten().filter_map(|(name, user)| change(name, user, seen.users.get(name)));
    let mut steps: Vec<Step> = changed.map(|(action, reason)| Step::new(action, reason)).collect();
    for name in surplus(wanted, wanted.users.as_ref(), &seen.users) {
        steps.push(Step::new(UserAction::DeleteUser { user: name.clone() }, Reason::NotInFile));
    }
    steps
}

fn take_from_roles(wanted: &desired::Access, seen: &Access) -> Vec<Step> {
    let take = |(name, role): (&String, &Role)| {
        let Excess { lower, revoke, words } = excess(role, seen.roles.get(name)?);
        if words.is_empty() {
            return None;
        }
        let reason = Reason::Access { missing: false, lacks: Vec::new(), has: words };
        Some(Step::new(UserAction::SetRole { role: name.clone(), set: lower, revoke }, reason))
    };
    let mut steps: Vec<Step> = wanted.roles.iter().flatten().filter_map(take).collect();
    for name in surplus(wanted, wanted.roles.as_ref(), &seen.roles) {
        steps.push(Step::new(UserAction::DeleteRole { role: name.clone() }, Reason::NotInFile));
    }
    steps
}

/// What to do with a user, or why that is not known.
pub(super) fn account(wanted: &desired::User, has: Option<&User>) -> Result<Account, String> {
    let Some(has) = has else { return Ok(Account::Make) };
    match (wanted.password.is_some(), &has.password) {
        (true, Password::Right) | (false, Password::None) => Ok(Account::Keep),
        (true, Password::Other) => Ok(Account::Password),
        (true, Password::None) | (false, Password::Right | Password::Other) => Ok(Account::Remake),
        (_, Password::Untried) => Err("it was not tried".to_owned()),
        (_, Password::Unknown(error)) => Err(error.clone()),
    }
}

/// The step that makes a user what it should be; nothing when it is.
fn change(name: &str, wanted: &desired::User, has: Option<&User>) -> Option<(Action, Reason)> {
    let none = BTreeSet::new();
    let roles = has.map_or(&none, |has| &has.roles);
    let account = account(wanted, has).unwrap_or(Account::Keep);
    let lacking: Vec<String> = wanted.roles.difference(roles).cloned().collect();
    let excess: Vec<String> = roles.difference(&wanted.roles).cloned().collect();
    let named = |roles: &[String]| roles.iter().map(|role| format!("role {role}")).collect::<Vec<_>>();
    let (mut lacks, mut too_much) = (named(&lacking), named(&excess));
    match account {
        Account::Keep if lacking.is_empty() && excess.is_empty() => return None,
        Account::Keep | Account::Make => {}
        Account::Password => lacks.push("the password of the file".to_owned()),
        Account::Remake if wanted.password.is_some() => lacks.push("a password (recreated)".to_owned()),
        Account::Remake => too_much.push("a password (recreated)".to_owned()),
    }
    // A user that is made anew begins without roles.
    let (grant, revoke) = match account {
        Account::Remake => (wanted.roles.iter().cloned().collect(), Vec::new()),
        Account::Keep | Account::Make | Account::Password => (lacking, excess),
    };
    let reason = Reason::Access { missing: has.is_none(), lacks, has: too_much };
    Some((Action::User(UserAction::SetUser { user: name.to_owned(), account, grant, revoke }), reason))
}
