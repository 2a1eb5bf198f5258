//! `raftsman env` of a PostgreSQL cluster → the environment with which programs of libpq connect to its primary.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use raftsman_core::desired::{Behind, POSTGRES_PORT};
use serde::Serialize;

use super::super::{OpError, pick_postgres};
use super::{clients_dir, pick_balancer};
use crate::fleet::Fleet;
use crate::stack::{StackError, StackHandle};

/// What programs of libpq need besides a role, its password and a database.
#[derive(Debug, Clone, Serialize)]
pub struct PostgresSettings {
    /// Its nodes, of which the one that takes writes is used; or the instances of the balancer in front of it.
    pub hosts: Vec<IpAddr>,
    /// Their port.
    pub port: u16,
    /// The port of the balancer that leads to standbys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas_port: Option<u16>,
    /// A file with the CA that their certificates are checked by.
    pub ca: PathBuf,
}

/// Writes the CA below the state, and returns where it is. With a balancer the nodes are reached through it. Nothing where
/// no PostgreSQL cluster has this name, and none is behind this balancer.
pub async fn of_postgres(
    fleet: &Arc<Fleet>,
    name: Option<&str>,
    via: Option<&str>,
) -> Result<Option<PostgresSettings>, OpError> {
    // In front of which cluster a balancer is decides where none is named.
    let balancer = via.map(|via| pick_balancer(fleet, name, via)).transpose()?;
    let behind = balancer.and_then(|balancer| match &balancer.behind {
        Behind::Nodes(cluster) => Some(cluster.as_str()),
        Behind::Members => None,
    });
    let name = if balancer.is_some() { behind } else { name };
    let Some((stack, cluster)) = name.and_then(|name| pick_postgres(fleet, name)) else { return Ok(None) };
    let name = cluster.name.as_str();
    let handle = StackHandle::open(fleet, stack).await?;
    let trust = handle.ledger().of_postgres(&cluster.name).trust.clone();
    let trust = trust.ok_or_else(|| StackError::NotApplied(cluster.name.clone()))?;
    let ca = clients_dir(fleet, name)?.join("postgres-ca.crt");
    crate::store::write_file(&ca, trust.bundle().as_bytes(), 0o600)?;
    Ok(Some(match balancer {
        None => {
            let hosts = cluster.nodes.iter().map(|node| node.address).collect();
            PostgresSettings { hosts, port: POSTGRES_PORT, replicas_port: None, ca }
        }
        Some(balancer) => {
            let hosts = balancer.endpoints().iter().map(SocketAddr::ip).collect();
            PostgresSettings { hosts, port: balancer.port, replicas_port: balancer.replicas_port, ca }
        }
    }))
}
