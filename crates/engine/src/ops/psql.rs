//! `raftsman psql`: a PostgreSQL cluster → the `psql` of its version, and the socket of its primary on this computer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use raftsman_core::observed::PostgresView;
use raftsman_core::render::patroni::{SUPERUSER, sockets};
use raftsman_core::spec::Provider;

use super::needs::resolved;
use super::switchover::pick;
use super::{OpError, pick_postgres};
use crate::fleet::Fleet;
use crate::observe::Observer;
use crate::stack::StackHandle;

/// How the superuser connects to the primary: on its own machine, without a password.
#[derive(Debug, Clone)]
pub struct Psql {
    /// The program.
    pub program: PathBuf,
    /// The directory of PostgreSQL's socket.
    pub socket: PathBuf,
    /// The role.
    pub user: &'static str,
}

/// Finds the primary; the only PostgreSQL cluster of the file where none is named.
pub async fn psql(fleet: &Arc<Fleet>, name: Option<&str>) -> Result<Psql, OpError> {
    let (name, _) = pick(&fleet.spec, name)?;
    let missing = || OpError::NoSuchPostgres { name: name.to_string(), known: Vec::new() };
    let (stack, cluster) = pick_postgres(fleet, name.as_str()).ok_or_else(missing)?;
    if fleet.spec.machines.provider != Provider::Local {
        return Err(OpError::PsqlElsewhere);
    }
    let observed = Observer::new(Arc::new(StackHandle::open(fleet, stack).await?))?.look().await?;
    let primary = PostgresView::seen(cluster, &observed).and_then(|seen| seen.primary().map(str::to_owned));
    let node = primary.and_then(|primary| cluster.nodes.iter().find(|node| node.patroni_name == primary));
    let node = node.ok_or_else(|| OpError::NoPrimary(cluster.name.clone()))?;
    let machines = resolved(&fleet.context.local_machines(&fleet.spec.machines, fleet.store.dir()));
    let socket = PathBuf::from(sockets(&machines.join(node.name.as_str()).display().to_string()));
    let of_version = PathBuf::from(format!("/usr/lib/postgresql/{}/bin/psql", cluster.version.major));
    let program = if of_version.exists() { of_version } else { Path::new("psql").to_owned() };
    Ok(Psql { program, socket, user: SUPERUSER })
}
