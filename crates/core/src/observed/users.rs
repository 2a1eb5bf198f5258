//! etcd's own answers → its users and roles, and what each of them may do.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::spec::{KeySpan, Level};

/// The name of the superuser, and of its role.
pub const ROOT: &str = "root";

/// What a role may do.
///
/// etcd keeps one permission for the same keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Granted>", into = "Vec<Granted>")]
pub struct Role {
    /// How much, by keys.
    pub permissions: BTreeMap<KeySpan, Level>,
}

/// One permission.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Granted {
    /// How much.
    pub level: Level,
    /// Which keys.
    #[serde(flatten)]
    pub keys: KeySpan,
}

impl std::fmt::Display for Granted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.level, self.keys)
    }
}

impl From<Vec<Granted>> for Role {
    fn from(list: Vec<Granted>) -> Self {
        list.into_iter().collect()
    }
}

impl From<Role> for Vec<Granted> {
    fn from(role: Role) -> Self {
        role.permissions.into_iter().map(|(keys, level)| Granted { level, keys }).collect()
    }
}

impl FromIterator<Granted> for Role {
    fn from_iter<I: IntoIterator<Item = Granted>>(list: I) -> Self {
        Self { permissions: list.into_iter().map(|granted| (granted.keys, granted.level)).collect() }
    }
}

/// Every role and user that etcd has, `root` among them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Roles by name.
    pub roles: BTreeMap<String, Role>,
    /// Users by name.
    pub users: BTreeMap<String, User>,
}

/// One user that etcd has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The roles that it has.
    pub roles: BTreeSet<String>,
    /// Its password.
    pub password: Password,
}

/// What is known of a password: etcd reveals none, so that it can only be tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Password {
    /// The user has none.
    None,
    /// It is the one that the file refers to.
    Right,
    /// The user has one, and it is not the one that the file refers to, if it refers to any.
    Other,
    /// It was not tried.
    Untried,
    /// It could not be tried.
    Unknown(String),
}
