//! `raftsman env` of a PostgreSQL cluster → the environment with which programs of libpq connect to its primary.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use raftsman_core::desired::POSTGRES_PORT;
use serde::Serialize;

use super::super::{OpError, pick_postgres};
use super::clients_dir;
use crate::fleet::Fleet;
use crate::stack::{StackError, StackHandle};

/// What programs of libpq need besides a role, its password and a database.
#[derive(Debug, Clone, Serialize)]
pub struct PostgresSettings {
    /// Its nodes: the one that takes writes is used.
    pub hosts: Vec<IpAddr>,
    /// Their port.
    pub port: u16,
    /// A file with the CA that their certificates are checked by.
    pub ca: PathBuf,
}

/// Writes the CA below the state, and returns where it is; nothing where no PostgreSQL cluster has this name.
pub async fn of_postgres(fleet: &Arc<Fleet>, name: &str) -> Result<Option<PostgresSettings>, OpError> {
    let Some((stack, cluster)) = pick_postgres(fleet, name) else { return Ok(None) };
    let handle = StackHandle::open(fleet, stack).await?;
    let trust = handle.ledger().of_postgres(&cluster.name).trust.clone();
    let trust = trust.ok_or_else(|| StackError::NotApplied(cluster.name.clone()))?;
    let ca = clients_dir(fleet, name)?.join("postgres-ca.crt");
    crate::store::write_file(&ca, trust.bundle().as_bytes(), 0o600)?;
    let hosts = cluster.nodes.iter().map(|node| node.address).collect();
    Ok(Some(PostgresSettings { hosts, port: POSTGRES_PORT, ca }))
}
