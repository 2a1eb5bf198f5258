//! What may be written after `cert`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::duration;

#[derive(Debug, Subcommand)]
pub(crate) enum Cert {
    /// List certificates: what, whose, until when, next renewal.
    List {
        /// Only these clusters.
        #[arg(value_name = "CLUSTER")]
        clusters: Vec<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Change a certificate authority, while the cluster serves.
    Rotate(Rotate),
    /// Have agents refuse a client certificate of theirs from now on.
    #[command(after_help = "\
It is for certificates of `raftsman cert issue --agent-role`. etcd checks no revocation list: remove the user from the file,
or change the clients CA (`raftsman cert rotate clients`).

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
        /// For agents instead of etcd: what its holder may do there.
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
The next CA is made, trusted by every member beside the old one, then signs, then the old one is trusted no more.
Members are restarted one at a time; handshakes on every link prove each phase. For clients it stops while both are
trusted: give them new certificates (`raftsman cert issue`), then finish.

Examples:
  raftsman cert rotate peers              all phases
  raftsman cert rotate clients            up to where clients need new certificates
  raftsman cert rotate clients --finish   the old CA is trusted no more
  raftsman cert rotate clients --now      a key has leaked: all phases, clients of the old CA are turned away
  raftsman cert rotate fleet              agents and operators: all phases, over all clusters; etcd is not touched")]
pub(crate) struct Rotate {
    /// Whose authority.
    #[arg(value_enum)]
    pub(crate) side: RotateSide,
    /// Which cluster; may be left out when there is only one.
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// All clients have new certificates: the old authority can go.
    #[arg(long)]
    pub(crate) finish: bool,
    /// An emergency: do not wait for clients, nor for members that cannot be reached.
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
    /// What members show each other.
    Peers,
    /// What clients show, and what members show to clients.
    Clients,
    /// What agents and operators show each other, of all clusters of the file.
    Fleet,
}
