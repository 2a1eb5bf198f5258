//! A cluster's roles and users in the file → what etcd should have.

use std::collections::{BTreeMap, BTreeSet};

use crate::observed::{Granted, Role};
use crate::spec::{EtcdCluster, Secret};

/// Roles and users. Where the file does not speak of them, they are left alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Every role but `root`, by name.
    pub roles: Option<BTreeMap<String, Role>>,
    /// Every user but `root`, by name.
    pub users: Option<BTreeMap<String, User>>,
    /// The names of the roles and users that PostgreSQL clusters have here: they are planned with those, and never surplus.
    pub patroni: BTreeSet<String>,
}

/// One user that should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its roles.
    pub roles: BTreeSet<String>,
    /// Where its password is; none for a user that authenticates by certificate only.
    pub password: Option<Secret>,
}

impl Access {
    /// Whether the file leaves roles and users alone.
    pub fn is_silent(&self) -> bool {
        self.roles.is_none() && self.users.is_none()
    }
}

pub(super) fn resolve(spec: &EtcdCluster) -> Access {
    let roles = spec.roles.as_ref().map(|roles| {
        let role = |permissions: &Vec<crate::spec::Permission>| -> Role {
            let granted = |(level, keys): (_, &crate::spec::Keys)| Granted { level, keys: keys.span() };
            permissions.iter().map(|permission| granted(permission.parts())).collect()
        };
        roles.iter().map(|(name, permissions)| (name.clone(), role(permissions))).collect()
    });
    let users = spec.users.as_ref().map(|users| {
        let user = |user: &crate::spec::User| User {
            roles: user.roles.iter().cloned().collect(),
            password: user.password.clone(),
        };
        users.iter().map(|(name, settings)| (name.clone(), user(settings))).collect()
    });
    Access { roles, users, patroni: BTreeSet::new() }
}
