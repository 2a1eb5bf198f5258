//! The boot data of a new machine: which machine of which fleet it is, and how it can prove that.
//!
//! Nothing in it is a lasting secret: the token is single-use, and invalid once the machine was claimed.

use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Written by the provider that makes the machine, read by its agent.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The fleet's id, which never changes.
    pub fleet_id: String,
    /// The fleet's name, for operators.
    pub fleet: String,
    /// The machine's name.
    pub machine: String,
    /// The machine's address; etcd listens on it.
    pub address: IpAddr,
    /// The agent's port.
    pub agent_port: u16,
    /// The CA that operators and this agent are signed by, PEM.
    pub fleet_ca_pem: String,
    /// The join token, hexadecimal; gone once the machine was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_token: Option<String>,
    /// After this moment the machine cannot be claimed any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_deadline: Option<Timestamp>,
}

impl fmt::Debug for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Boot").field("machine", &self.machine).field("fleet_id", &self.fleet_id).finish_non_exhaustive()
    }
}
