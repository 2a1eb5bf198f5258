//! All that may be done to auth and its superuser, and what each means for safety.

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Subject};

/// One action on auth.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum AuthAction {
    /// Make the superuser `root`, with the role `root`.
    CreateRoot,
    /// Give `root` the password that the file refers to, in place of the one that the state knows of.
    ChangeRootPassword,
    /// Turn auth on: from now on no client gets in without credentials.
    EnableAuth,
    /// Turn auth off: every client with a certificate of the clients' authority may do everything.
    DisableAuth,
}

impl AuthAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            Self::CreateRoot | Self::EnableAuth => Class::of(Changes::Auth),
            // The previous password is lost; what clients read and write without auth cannot be undone.
            Self::ChangeRootPassword | Self::DisableAuth => Class::of(Changes::Auth).irreversible(),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::CreateRoot | Self::ChangeRootPassword | Self::EnableAuth | Self::DisableAuth => Subject::Cluster,
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::CreateRoot => "create root",
            Self::ChangeRootPassword => "change root password",
            Self::EnableAuth => "enable auth",
            Self::DisableAuth => "disable auth",
        }
    }
}
