//! the fleet's CAs, the keys that are revoked → which clients this agent accepts, kept over restarts.

use std::collections::BTreeSet;

use raftsman_api::access_digest;
use raftsman_api::tls::{self, TlsError};
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError};
use crate::root::Root;

pub mod accept;
pub mod certs;
pub mod claim;
pub mod fence;

/// Why other clients are not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The CAs cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A key that is none.
    #[error("`{0}` is not a SHA-256 in hexadecimal: nothing was changed")]
    Key(String),
    /// No client could connect any more to undo it.
    #[error("your own certificate would not be accepted any more: nothing was changed")]
    LockedOut,
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file holds something else.
    #[error("agent/access.json is malformed")]
    Malformed(#[source] serde_json::Error),
}

/// The access settings that an agent received after its first start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// The CAs that clients, and the agent's own certificate, are checked against.
    pub trust_pem: String,
    /// SHA-256 of public keys.
    pub revoked: BTreeSet<String>,
}

impl Access {
    /// Parses and checks the settings.
    pub fn new(trust_pem: String, revoked: Vec<String>) -> Result<Self, AccessError> {
        tls::roots(&trust_pem)?;
        let key = |key: String| match key.len() == 64 && raftsman_api::hex::decode(&key).is_some() {
            true => Ok(key.to_ascii_lowercase()),
            false => Err(AccessError::Key(key)),
        };
        Ok(Self { trust_pem, revoked: revoked.into_iter().map(key).collect::<Result<_, _>>()? })
    }

    /// The last settings; `None` where none were received since the first start.
    pub fn read(root: &Root) -> Result<Option<Self>, AccessError> {
        let text = files::read(&root.access())?;
        text.map(|text| serde_json::from_str(&text).map_err(AccessError::Malformed)).transpose()
    }

    /// Keeps it.
    pub fn write(&self, root: &Root) -> Result<(), AccessError> {
        let text = serde_json::to_vec_pretty(self).map_err(AccessError::Malformed)?;
        Ok(files::write(&root.access(), &text, 0o600)?)
    }

    /// What the report says of it.
    pub fn digest(&self) -> String {
        access_digest(&self.trust_pem, &self.revoked)
    }
}
