//! `agent/boot.json` → which machine of which fleet this is.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError};
use crate::root::Root;

/// What the machine was ordered to be. Written by whoever made the machine.
#[derive(Clone, Serialize, Deserialize)]
pub struct Boot {
    /// The fleet's id, the same for ever.
    pub fleet_id: String,
    /// The fleet's name, for people.
    pub fleet: String,
    /// The machine's name.
    pub machine: String,
    /// The machine's address; etcd listens on it.
    pub address: IpAddr,
    /// The agent's port.
    pub agent_port: u16,
    /// The CA that clients and this agent are signed by.
    pub fleet_ca_pem: String,
    /// Hexadecimal; gone once the machine was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_token: Option<String>,
    /// After this moment the machine cannot be claimed any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_deadline: Option<Timestamp>,
}

/// Why the boot data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// There is none.
    #[error("{path} is missing: the machine was not ordered by raftsman, or its provider did not finish")]
    Missing {
        /// Where it should be.
        path: String,
    },
    /// It cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is not what it should be.
    #[error("{path} is malformed: delete the machine and create it again")]
    Malformed {
        /// Where it is.
        path: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

impl Boot {
    /// Reads the boot data.
    pub fn read(root: &Root) -> Result<Self, BootError> {
        let path = root.boot();
        let shown = || path.display().to_string();
        let text = files::read(&path)?.ok_or_else(|| BootError::Missing { path: shown() })?;
        serde_json::from_str(&text).map_err(|source| BootError::Malformed { path: shown(), source })
    }

    /// Destroys the join token, here and on disk.
    pub fn forget_token(&mut self, root: &Root) -> Result<(), BootError> {
        self.join_token = None;
        let text = serde_json::to_vec_pretty(self)
            .map_err(|source| BootError::Malformed { path: root.boot().display().to_string(), source })?;
        Ok(files::write(&root.boot(), &text, 0o600)?)
    }
}
