//! The section `machines.incus` → which Incus server makes the machines, and of what.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where Incus's own socket is, when the file names no server.
pub const INCUS_SOCKET: &str = "/var/lib/incus/unix.socket";

/// An Incus server, and what machines there are made of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Incus {
    /// The server: the path of its socket, or `https://host:8443`. The socket of this computer's server by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// With https: the client certificate, which the server trusts: a file, relative to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// With https: the key of the client certificate: a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// With https: the server's own certificate, which it must show: a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_certificate: Option<String>,
    /// The project that machines belong to. The server's default by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Profiles that machines begin with. `default` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Vec<String>>,
    /// The network that machines are connected to, each with its address: one that the server manages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The storage pool of system disks and data disks. As the profiles say by default; data disks need one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// What a machine is.
    #[serde(rename = "type")]
    pub kind: IncusKind,
    /// Network ACLs of the server's that hold for the machines, besides their own firewall.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acls: Vec<String>,
    /// Where the server is a cluster: the servers in it that machines are spread over. All of them by default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
}

impl Incus {
    /// The server, as the file says or by default.
    pub fn server(&self) -> &str {
        self.server.as_deref().unwrap_or(INCUS_SOCKET)
    }

    /// The host and the port of a server that is reached by network, the port as far as it is one; nothing where it is
    /// reached by its socket.
    pub fn remote(&self) -> Option<(&str, Option<u16>)> {
        let place = self.server().strip_prefix("https://")?.trim_end_matches('/');
        let (host, port) = place.rsplit_once(':').unwrap_or((place, "8443"));
        Some((host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()))
    }
}

/// What a machine on Incus is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IncusKind {
    /// A system container: starts in seconds, shares the server's kernel.
    #[default]
    Container,
    /// A virtual machine. Its image must have raftsman's agent in it.
    VirtualMachine,
}
