//! `raftsman env`: a cluster → the environment with which `etcdctl` connects to it.

mod postgres;

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use raftsman_core::desired::Balancer;
use raftsman_core::spec::AuthMode;
use secrecy::ExposeSecret;
use serde::Serialize;

pub use postgres::{PostgresSettings, of_postgres};

use super::cert::{Existing, IssueRequest};
use super::{OpError, cert, pick_cluster};
use crate::fleet::Fleet;

/// What `etcdctl` needs.
#[derive(Debug, Clone, Serialize)]
pub struct Settings {
    /// Where the members are, or the balancer in front of them.
    pub endpoints: Vec<String>,
    /// Their CA.
    pub ca: PathBuf,
    /// A certificate to show.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// A user to log in as.
    pub user: Option<String>,
    /// A file with that user's password.
    pub password_file: Option<PathBuf>,
}

/// The validity of the certificate for `etcdctl`.
const VALIDITY: Duration = Duration::from_secs(24 * 3600);

/// Writes the needed files below the state, and returns their paths. With a balancer the members are reached through it.
pub async fn env(fleet: &Arc<Fleet>, cluster: Option<&str>, via: Option<&str>) -> Result<Settings, OpError> {
    let balancer = via.map(|name| pick_balancer(fleet, cluster, name)).transpose()?;
    let at = pick_cluster(fleet, cluster.or(balancer.map(|balancer| balancer.cluster.as_str()))).await?;
    let name = at.desired.name.as_str();
    let dir = clients_dir(fleet, name)?;
    let endpoints = match (balancer, at.ledger().etcd.adopted()) {
        (Some(balancer), _) => balancer.endpoints().into_iter().map(|at| format!("https://{at}")).collect(),
        (None, Some(adopted)) => adopted.clients.values().cloned().collect(),
        (None, None) => at.desired.etcd.members.iter().map(|m| m.client_url()).collect(),
    };
    // Also with passwords: `etcdctl` needs the CA, and the certificate does no harm.
    let request = IssueRequest { name: "root", dir: &dir, validity: Some(VALIDITY), existing: Existing::Replace };
    let issued = cert::issue(fleet, Some(name), request).await?;
    Ok(match at.auth() {
        AuthMode::Certificate | AuthMode::None => Settings {
            endpoints,
            ca: issued.ca,
            certificate: Some(issued.certificate),
            key: Some(issued.key),
            user: None,
            password_file: None,
        },
        AuthMode::Password => {
            let file = dir.join("root.password");
            if let Some(password) = at.root_password().await? {
                crate::store::write_file(&file, password.expose_secret().as_bytes(), 0o600)?;
            }
            Settings {
                endpoints,
                ca: issued.ca,
                certificate: None,
                key: None,
                user: Some("root".to_owned()),
                password_file: Some(file),
            }
        }
    })
}

/// The balancer of this name, in front of this cluster where one is named.
fn pick_balancer<'a>(fleet: &'a Fleet, cluster: Option<&str>, name: &str) -> Result<&'a Balancer, OpError> {
    let all = || fleet.desired.stacks.iter().flat_map(|cluster| &cluster.balancers);
    let Some(balancer) = all().find(|balancer| balancer.name.as_str() == name) else {
        let (name, known) = (name.to_owned(), all().map(|balancer| balancer.name.to_string()).collect::<Vec<_>>());
        return Err(if known.is_empty() {
            OpError::NoBalancers(name)
        } else {
            OpError::NoSuchBalancer { name, known }
        });
    };
    match cluster {
        Some(asked) if asked != balancer.before().as_str() => Err(OpError::BalancerElsewhere {
            balancer: name.to_owned(),
            cluster: balancer.before().clone(),
            asked: asked.to_owned(),
        }),
        _ => Ok(balancer),
    }
}

/// Where the state has files for the clients of a cluster: for their owner only.
fn clients_dir(fleet: &Fleet, cluster: &str) -> Result<PathBuf, OpError> {
    let state = std::path::absolute(fleet.store.dir());
    let state = state.map_err(|source| OpError::File { action: "find", path: fleet.store.dir().to_owned(), source })?;
    let clients = state.join("clients");
    private(&clients)?;
    private(&clients.join(cluster))?;
    Ok(clients.join(cluster))
}

/// A directory for its owner only, whatever the umask, also where it existed before.
fn private(dir: &Path) -> Result<(), OpError> {
    let failed = |action| move |source| OpError::File { action, path: dir.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("make"))?;
    fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed("change the mode of"))
}
