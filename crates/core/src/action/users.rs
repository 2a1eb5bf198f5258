//! All that may be done to roles and users, and what each means for safety.

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Subject};
use crate::observed::Granted;
use crate::spec::KeySpan;

/// One change of roles or users.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum UserAction {
    /// Make a role where there is none, and change what it may do.
    SetRole {
        /// Which.
        role: String,
        /// What it may do from now on, in place of what it may do with the same keys.
        set: Vec<Granted>,
        /// What it may do no more.
        revoke: Vec<KeySpan>,
    },
    /// Remove a role, also from every user that has it.
    DeleteRole {
        /// Which.
        role: String,
    },
    /// Make a user where there is none, or change its password and its roles.
    SetUser {
        /// Which.
        user: String,
        /// What becomes of the user itself. The password is the one that the file refers to.
        account: Account,
        /// Roles that it gets, before it loses any.
        grant: Vec<String>,
        /// Roles that it loses.
        revoke: Vec<String>,
    },
    /// Remove a user: it cannot authenticate any more.
    DeleteUser {
        /// Which.
        user: String,
    },
}

/// What becomes of a user, its roles apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Account {
    /// Nothing.
    Keep,
    /// It is made.
    Make,
    /// It gets another password.
    Password,
    /// It is removed and made again, with all its roles: etcd neither gives a password to a user that was made without
    /// one, nor takes one away.
    Remake,
}

impl Account {
    /// Whether a user that exists has another password afterwards.
    pub fn replaces_password(self) -> bool {
        match self {
            Self::Keep | Self::Make => false,
            Self::Password | Self::Remake => true,
        }
    }
}

impl UserAction {
    /// The role or user that it is about.
    pub fn name(&self) -> &str {
        match self {
            Self::SetRole { role: name, .. }
            | Self::DeleteRole { role: name }
            | Self::SetUser { user: name, .. }
            | Self::DeleteUser { user: name } => name,
        }
    }

    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            Self::SetRole { .. } | Self::SetUser { account: Account::Keep | Account::Make, .. } => {
                Class::of(Changes::Users)
            }
            // The previous password is lost, and so are the grants of a user or role that is deleted.
            Self::SetUser { account: Account::Password | Account::Remake, .. }
            | Self::DeleteUser { .. }
            | Self::DeleteRole { .. } => Class::of(Changes::Users).irreversible(),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::SetRole { role, .. } | Self::DeleteRole { role } => Subject::Named(role),
            Self::SetUser { user, .. } | Self::DeleteUser { user } => Subject::Named(user),
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::SetRole { .. } => "set role",
            Self::DeleteRole { .. } => "delete role",
            Self::SetUser { .. } => "set user",
            Self::DeleteUser { .. } => "delete user",
        }
    }
}
