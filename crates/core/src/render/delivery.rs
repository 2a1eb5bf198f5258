//! Secrets and what goes with them → files that a running agent gets over mutual TLS, and what each takes effect by.
//!
//! The list is closed: an agent writes these files, and no other, for any client.

use std::fmt;

use super::units;
use crate::spec::Name;

/// The agent's mark of what it was given. Beside the files, not with etcd's data: a machine that is rebuilt around its
/// data disk has none of them.
pub const STAMP: &str = "/etc/raftsman/delivered";
/// fluent-bit's unit, as its package names it.
pub const FLUENT_BIT: &str = "fluent-bit.service";

/// A file that can be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deliverable {
    /// The console's password, for the unit that sets it. The unit removes the file right after.
    ConsolePassword,
    /// The CA of the receiver of logs.
    LogForwardCa,
    /// Variables for fluent-bit.
    LogSecrets,
    /// The CA of the etcd that holds fluent-bit's configuration.
    LogDynamicCa,
    /// A client's certificate for it.
    LogDynamicCertificate,
    /// Its key.
    LogDynamicKey,
    /// Where that etcd is.
    LogDynamic,
    /// fluent-bit's configuration: it makes the others take effect, and is delivered after all that it refers to.
    LogConfig,
}

/// How a delivered file takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakesEffect {
    /// By a file that is delivered after it.
    Nothing,
    /// This unit is run, to its end.
    Run(&'static str),
    /// This unit is restarted.
    Restart(&'static str),
}

impl Deliverable {
    /// All of them, in the order in which they are delivered.
    pub const ALL: [Self; 8] = [
        Self::ConsolePassword,
        Self::LogForwardCa,
        Self::LogSecrets,
        Self::LogDynamicCa,
        Self::LogDynamicCertificate,
        Self::LogDynamicKey,
        Self::LogDynamic,
        Self::LogConfig,
    ];

    /// What it is called between raftsman and its agents.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConsolePassword => "console-password",
            Self::LogForwardCa => "log-forward-ca",
            Self::LogSecrets => "log-secrets",
            Self::LogDynamicCa => "log-dynamic-ca",
            Self::LogDynamicCertificate => "log-dynamic-certificate",
            Self::LogDynamicKey => "log-dynamic-key",
            Self::LogDynamic => "log-dynamic",
            Self::LogConfig => "log-config",
        }
    }

    /// The one of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Where it is on the machine; only root can read it.
    pub fn path(self) -> &'static str {
        match self {
            Self::ConsolePassword => "/etc/raftsman/console-password",
            Self::LogForwardCa => "/etc/raftsman/logs/forward-ca.crt",
            Self::LogSecrets => "/etc/raftsman/logs/secrets.env",
            Self::LogDynamicCa => "/etc/raftsman/logs/dynamic-ca.crt",
            Self::LogDynamicCertificate => "/etc/raftsman/logs/dynamic.crt",
            Self::LogDynamicKey => "/etc/raftsman/logs/dynamic.key",
            Self::LogDynamic => "/etc/raftsman/logs/dynamic.json",
            Self::LogConfig => "/etc/raftsman/logs/fluent-bit.conf",
        }
    }

    /// What the agent asks systemd for once it is in its place.
    pub fn then(self) -> TakesEffect {
        match self {
            Self::ConsolePassword => TakesEffect::Run(units::CONSOLE.name),
            Self::LogConfig => TakesEffect::Restart(FLUENT_BIT),
            Self::LogForwardCa
            | Self::LogSecrets
            | Self::LogDynamicCa
            | Self::LogDynamicCertificate
            | Self::LogDynamicKey
            | Self::LogDynamic => TakesEffect::Nothing,
        }
    }
}

/// A file to be delivered to a machine.
#[derive(Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Which.
    pub what: Deliverable,
    /// What is in it.
    pub contents: String,
}

impl fmt::Debug for Delivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is in it may be secret.
        f.debug_struct("Delivered").field("what", &self.what).finish_non_exhaustive()
    }
}

/// Why a file cannot be delivered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// A secret of more than one line.
    #[error("{what} holds a control character, such as a line break: make it one line of text")]
    ControlCharacter {
        /// Which secret.
        what: &'static str,
    },
    /// A secret or file that the file refers to was not handed in.
    #[error("{what} is missing: it is referred to by `{key}`")]
    Missing {
        /// Which secret.
        what: &'static str,
        /// The key of the file.
        key: &'static str,
    },
}

/// A text of one line.
pub(super) fn one_line<'t>(text: &'t str, what: &'static str) -> Result<&'t str, DeliveryError> {
    match text.contains(|c: char| c.is_control()) {
        true => Err(DeliveryError::ControlCharacter { what }),
        false => Ok(text),
    }
}

/// The administrator's password at the console.
pub fn console_password(user: &Name, password: &str) -> Result<Delivered, DeliveryError> {
    let password = one_line(password, "the console's password")?;
    Ok(Delivered { what: Deliverable::ConsolePassword, contents: format!("{user}:{password}\n") })
}
