//! What may be written after `cert`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::duration;

#[derive(Debug, Subcommand)]
pub(crate) enum Cert {
    /// List certificates: kind, holder, expiry, next renewal.
    List {
        /// Only these clusters.
        #[arg(value_name = "CLUSTER")]
        clusters: Vec<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Rotate a CA, while the cluster serves.
    Rotate(Rotate),
    /// Revoke a client certificate for agents.
    #[command(after_help = "\
For certificates of `raftsman cert issue --agent-role`. etcd checks no revocation list: for a certificate of a user of
etcd, remove the user from the file, or rotate the clients CA (`raftsman cert rotate clients`).

Examples:
  raftsman cert revoke certs/monitoring.crt
  raftsman cert revoke 5f70…                  the SHA-256 of its public key, where the file is lost: see `raftsman journal`")]
    Revoke(Revoke),
    /// Issue a client certificate for a user of etcd, or for a client of the agents.
    #[command(after_help = "\
Examples:
  raftsman cert issue alice --out certs/               writes alice.crt, alice.key, ca.crt
  raftsman cert issue monitoring --agent-role reader   for agents: monitoring.crt, monitoring.key, fleet-ca.crt")]
    Issue {
        /// The user's name in etcd; it becomes the certificate's common name.
        user: String,
        /// For agents instead of etcd: the role of its holder there.
        #[arg(long, value_enum, value_name = "ROLE", conflicts_with = "cluster")]
        agent_role: Option<AgentRole>,
        /// Which cluster; may be left out when there is only one.
        #[arg(long)]
        cluster: Option<String>,
        /// The directory for the files.
        #[arg(long, default_value = ".", value_name = "DIRECTORY")]
        out: PathBuf,
        /// How long it is valid: 90d by default, 1d for root.
        #[arg(long, value_name = "TIME", value_parser = duration)]
        validity: Option<Duration>,
        /// Replace files that are there already.
        #[arg(long)]
        force: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    /// A certificate file, or the SHA-256 of its public key.
    pub(crate) certificate: String,
    /// Print what happens as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Give up when there was no progress for this long.
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
}

/// What the holder of a certificate may ask of agents.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum AgentRole {
    /// Reports, logs and metrics.
    Reader,
    /// What an apply does, but neither binaries nor certificates.
    Operator,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Phases: the new CA is added and trusted by every member beside the old one; it is activated and signs; the old one is
distrusted; it is deleted. Members are restarted one at a time, and TLS handshakes on every link prove each phase. For
clients it stops while both are trusted: give them new certificates (`raftsman cert issue`), then finish.

Examples:
  raftsman cert rotate peers              all phases
  raftsman cert rotate clients            up to where clients need new certificates
  raftsman cert rotate clients --finish   the old CA is distrusted and deleted
  raftsman cert rotate clients --now      a key has leaked: all phases at once, certificates of the old CA are denied
  raftsman cert rotate fleet              agents and operators: all phases, over all clusters; etcd is not touched")]
pub(crate) struct Rotate {
    /// Which CA.
    #[arg(value_enum)]
    pub(crate) side: RotateSide,
    /// Which cluster; may be left out when there is only one.
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// All clients have new certificates: distrust and delete the old CA.
    #[arg(long)]
    pub(crate) finish: bool,
    /// Emergency: wait neither for clients nor for members that cannot be reached.
    #[arg(long)]
    pub(crate) now: bool,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print what happens as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Give up when there was no progress for this long.
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RotateSide {
    /// The CA of the certificates between members.
    Peers,
    /// The CA of the certificates between clients and members.
    Clients,
    /// The CA of the certificates between agents and operators, of all clusters of the file.
    Fleet,
}
