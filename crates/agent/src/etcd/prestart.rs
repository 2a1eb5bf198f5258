//! etcd's data, certificates and configuration; what the caller expects → whether etcd may start, and its configuration
//! file for this start.
//!
//! A member that lost its data has also lost its vote and its log, and could vote twice: it is never started again
//! as the same member.

use serde::{Deserialize, Serialize};

use crate::access::certs::{CertsError, Store};
use crate::etcd::bootstrap::{self, BootstrapError, Start};
use crate::etcd::wal::{self, Data, Ids};
use crate::postgres::prestart::PostgresPrestartError;
use crate::root::Root;

/// Why etcd may not start.
#[derive(Debug, thiserror::Error)]
pub enum PrestartError {
    /// Not there yet.
    #[error("etcd has no {0} certificate: request and store one first")]
    NoCertificate(&'static str),
    /// The data is not what the caller expects.
    #[error("etcd's data is not as expected: {0}")]
    OtherData(String),
    /// It runs with the other members.
    #[error("etcd is running: stop it before it is started alone")]
    NotAlone,
    /// The configuration does not say which cluster it joins, or says it twice.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// etcd's certificates are at fault.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// Patroni's needs are not met.
    #[error(transparent)]
    Postgres(#[from] PostgresPrestartError),
}

/// What the data directory must hold before a start, and how etcd starts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing.
    Empty {
        /// The lines of etcd's configuration that say which cluster it bootstraps or joins; none when the configuration
        /// or an earlier try says so.
        bootstrap: String,
    },
    /// A member's data.
    Cluster {
        /// Of this cluster.
        id: u64,
        /// `force-new-cluster`: drop all other members and continue as the only one, for this one start.
        alone: bool,
    },
}

/// The digests of the trust bundles; empty where there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trust {
    /// Towards other members.
    pub peer: String,
    /// Towards clients.
    pub server: String,
}

impl Trust {
    /// The trust on disk.
    fn read(root: &Root) -> Result<Self, CertsError> {
        let digest = |dir| Store::new(dir).trust_digest().map(Option::unwrap_or_default);
        Ok(Self { peer: digest(root.peer_tls())?, server: digest(root.server_tls())? })
    }
}

/// What the record says of etcd's last start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Started {
    /// The trust that etcd read at the last start: a later one is on disk only.
    pub trust: Trust,
    /// Whether the last start had `force-new-cluster`.
    pub alone: bool,
    /// The ids of the data that it ran on: a member that lost its data must not come back as the same member.
    pub ids: Option<Ids>,
}

impl Started {
    /// Records the trust that etcd reads when it starts.
    pub fn note_files(&mut self, root: &Root) -> Result<(), PrestartError> {
        self.trust = Trust::read(root)?;
        Ok(())
    }

    /// Records the ids of the data that it writes, once there is some; returns whether there was.
    pub fn learn(&mut self, root: &Root) -> bool {
        match wal::look(&root.data()) {
            Data::Present(ids) => {
                self.ids = Some(ids);
                true
            }
            Data::Empty | Data::Unreadable(_) => false,
        }
    }
}

/// How etcd is restarted as it was.
#[derive(Debug)]
pub struct Resume {
    has_data: bool,
}

/// Whether etcd may start on the data: returns its configuration file for this start, and the record of the start.
pub fn check(root: &Root, config: &str, expected: &Expected) -> Result<(String, Started), PrestartError> {
    for (purpose, dir) in [("peer", root.peer_tls()), ("server", root.server_tls())] {
        Store::new(dir).current_dir().ok_or(PrestartError::NoCertificate(purpose))?;
    }
    let (start, alone, ids) = match (wal::look(&root.data()), expected) {
        (Data::Empty, Expected::Empty { bootstrap }) => (Start::Bootstrap(bootstrap), false, None),
        (Data::Present(ids), Expected::Cluster { id, alone }) if ids.cluster == *id => {
            (Start::Data { alone: *alone }, *alone, Some(ids))
        }
        (found, expected) => {
            let expected = match expected {
                Expected::Empty { .. } => "no data".to_owned(),
                Expected::Cluster { id, .. } => format!("data of the cluster {id:x}"),
            };
            return Err(PrestartError::OtherData(format!("expected {expected}, but {found}")));
        }
    };
    let config = bootstrap::prepared(config, start)?;
    Ok((config, Started { trust: Trust::default(), alone, ids }))
}

/// Whether a running etcd is what this start asks for.
pub fn fits(expected: &Expected, running: &Started) -> Result<(), PrestartError> {
    match expected {
        Expected::Cluster { alone: true, .. } if !running.alone => Err(PrestartError::NotAlone),
        Expected::Cluster { .. } | Expected::Empty { .. } => Ok(()),
    }
}

/// Whether etcd may be restarted on the data that it had; otherwise why not.
pub fn resume(root: &Root, started: &Started) -> Result<Resume, String> {
    let data = wal::look(&root.data());
    let Some(known) = started.ids else {
        return Ok(Resume { has_data: matches!(data, Data::Present(_)) });
    };
    match data {
        Data::Present(ids) if ids == known => Ok(Resume { has_data: true }),
        Data::Present(_) => Err("its data directory belongs to another member now".to_owned()),
        Data::Empty => Err("its data is gone".to_owned()),
        Data::Unreadable(problem) => Err(problem),
    }
}

/// etcd's configuration file for that start. Once there is data the bootstrap is over, and a member with
/// `force-new-cluster` dropped the others at its first start.
pub fn resumed(started: &mut Started, resume: &Resume, config: &str) -> Result<String, PrestartError> {
    if !resume.has_data {
        return Ok(config.to_owned());
    }
    let config = bootstrap::prepared(config, Start::Data { alone: false })?;
    started.alone = false;
    Ok(config)
}
