//! PostgreSQL's data, certificates and Patroni's file; what the caller expects → whether Patroni may start.
//!
//! Patroni makes a new cluster where it finds no data and etcd knows none: a node that lost its data is not started again
//! by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use raftsman_core::render::patroni::{self, ETCD_CA, REST_TLS, SERVER_TLS};
use serde::{Deserialize, Serialize};

use crate::access::certs::{CertsError, Store};
use crate::files::FileError;
use crate::postgres::data::{self, Data};
use crate::postgres::{config, running};
use crate::root::Root;

/// Why Patroni may not start.
#[derive(Debug, thiserror::Error)]
pub enum PostgresPrestartError {
    /// Not there yet.
    #[error("{0} has no certificate: request and store one first")]
    NoCertificate(&'static str),
    /// Not there yet.
    #[error("Patroni has no CA certificates to check members of etcd by: configure it first")]
    NoEtcdTrust,
    /// The data is not what the caller expects.
    #[error("PostgreSQL's data is not as expected: expected {expected}, but {found}")]
    OtherData {
        /// What was said.
        expected: String,
        /// What there is.
        found: Data,
    },
    /// A certificate cannot be read.
    #[error(transparent)]
    Certificate(#[from] CertsError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What the data directory must hold before a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing, and Patroni makes a new cluster, or copies the data of this one.
    Empty {
        /// Whose data is copied; none where this node makes the cluster.
        copied: Option<u64>,
    },
    /// The data of a cluster with this system identifier.
    System(u64),
}

impl Expected {
    fn words(self) -> String {
        match self {
            Self::Empty { copied: None } => "none, to make a new cluster".to_owned(),
            Self::Empty { copied: Some(system) } => {
                format!("none, to copy that with the system identifier {system}")
            }
            Self::System(system) => format!("data with the system identifier {system}"),
        }
    }
}

/// What the record says of Patroni's last start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Started {
    /// The configuration that Patroni has taken up, as it was sent.
    pub taken_up: String,
    /// The members of etcd that it was started with.
    pub hosts: BTreeSet<SocketAddr>,
    /// What came with the secrets that Patroni has taken up.
    pub secrets: String,
    /// Whose data it ran on.
    pub system: Option<u64>,
    /// The fingerprints of the certificates that the processes have read, by their directory.
    pub presented: BTreeMap<String, String>,
}

impl Started {
    /// Records what Patroni reads when it starts.
    pub fn note_files(&mut self, root: &Root) -> Result<(), PostgresPrestartError> {
        self.taken_up = config::sent(root)?.unwrap_or_default();
        self.hosts = patroni::hosts(&self.taken_up);
        self.secrets = config::stamp(root)?.unwrap_or_default();
        self.note_certificate(root, REST_TLS)?;
        // One that outlived its Patroni goes on with what it has read.
        if running::postmaster(root).is_none() {
            self.note_certificate(root, SERVER_TLS)?;
        }
        Ok(())
    }

    /// Records what Patroni has taken up by a reload.
    pub fn note_reload(&mut self, root: &Root) -> Result<(), PostgresPrestartError> {
        self.taken_up = config::sent(root)?.unwrap_or_default();
        self.secrets = config::stamp(root)?.unwrap_or_default();
        self.note_certificate(root, REST_TLS)?;
        self.note_certificate(root, SERVER_TLS)
    }

    fn note_certificate(&mut self, root: &Root, dir: &str) -> Result<(), PostgresPrestartError> {
        let fingerprint = Store::new(root.path().join(dir)).fingerprint()?;
        self.presented.extend(fingerprint.map(|fingerprint| (dir.to_owned(), fingerprint)));
        Ok(())
    }

    /// Records whose data it writes, once there is some; returns whether there was.
    pub fn learn(&mut self, root: &Root) -> bool {
        match data::look(&data::dir(root)) {
            Data::Present { system, .. } => {
                self.system = Some(system);
                true
            }
            Data::Empty | Data::Unreadable(_) => false,
        }
    }
}

/// Whether Patroni may start on the data; returns the record of the start.
pub fn check(root: &Root, expected: Expected) -> Result<Started, PostgresPrestartError> {
    for (name, dir) in [("PostgreSQL", SERVER_TLS), ("Patroni's REST interface", REST_TLS)] {
        let store = Store::new(root.path().join(dir));
        store.current_dir().ok_or(PostgresPrestartError::NoCertificate(name))?;
    }
    if !root.path().join(ETCD_CA).is_file() {
        return Err(PostgresPrestartError::NoEtcdTrust);
    }
    let system = match (data::look(&data::dir(root)), expected) {
        (Data::Empty, Expected::Empty { .. }) => None,
        (Data::Present { system, .. }, Expected::System(wanted)) if system == wanted => Some(system),
        (found, expected) => {
            return Err(PostgresPrestartError::OtherData { expected: expected.words(), found });
        }
    };
    Ok(Started { system, ..Started::default() })
}

/// Whether a running Patroni is what this start asks for.
pub fn fits(expected: Expected, running: &Started) -> Result<(), PostgresPrestartError> {
    match (expected, running.system) {
        (Expected::System(wanted), Some(system)) if wanted != system => Err(PostgresPrestartError::OtherData {
            expected: expected.words(),
            found: Data::Present { system, timeline: 0, position: 0 },
        }),
        (Expected::System(_) | Expected::Empty { .. }, _) => Ok(()),
    }
}

/// Whether Patroni may be started again on the data that it had; otherwise why not.
pub fn resume(root: &Root, started: &Started) -> Result<(), String> {
    let Some(known) = started.system else { return Ok(()) };
    match data::look(&data::dir(root)) {
        Data::Present { system, .. } if system == known => Ok(()),
        Data::Present { system, .. } => {
            Err(format!("its data had the system identifier {known}, and has {system} now"))
        }
        Data::Empty => Err("its data is gone".to_owned()),
        Data::Unreadable(problem) => Err(problem),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn data(root: &Root, system: u64) {
        let mut bytes = [0; 8192];
        bytes[..8].copy_from_slice(&system.to_ne_bytes());
        bytes[8..12].copy_from_slice(&1300_u32.to_ne_bytes());
        bytes[48..52].copy_from_slice(&1_u32.to_ne_bytes());
        let dir = data::dir(root).join("global");
        fs::create_dir_all(&dir).expect("dir");
        fs::write(dir.join("pg_control"), bytes).expect("write");
    }

    #[test]
    fn only_on_the_data_that_is_expected() {
        let (_dir, root) = Root::scratch();
        let empty = Expected::Empty { copied: None };
        assert_eq!(
            check(&root, empty).expect_err("refused").to_string(),
            "PostgreSQL has no certificate: request and store one first"
        );
        for dir in [SERVER_TLS, REST_TLS] {
            let current = root.path().join(dir).join("current");
            fs::create_dir_all(&current).expect("dir");
            fs::write(current.join("tls.crt"), "").expect("write");
        }
        assert!(matches!(check(&root, empty), Err(PostgresPrestartError::NoEtcdTrust)));
        fs::write(root.path().join(ETCD_CA), "").expect("write");
        check(&root, empty).expect("a new cluster");
        check(&root, Expected::Empty { copied: Some(7) }).expect("a copy");
        assert_eq!(
            check(&root, Expected::System(7)).expect_err("refused").to_string(),
            "PostgreSQL's data is not as expected: expected data with the system identifier 7, but there is none"
        );
        data(&root, 8);
        assert_eq!(
            check(&root, Expected::System(7)).expect_err("refused").to_string(),
            "PostgreSQL's data is not as expected: expected data with the system identifier 7, but there is data with the \
             system identifier 8"
        );
        check(&root, empty).expect_err("there is data");
        check(&root, Expected::Empty { copied: Some(8) }).expect_err("there is data");
        let mut started = check(&root, Expected::System(8)).expect("its own");
        assert_eq!(started.system, Some(8));
        fits(Expected::System(7), &started).expect_err("another's");
        resume(&root, &started).expect("as it was");
        started.system = Some(7);
        assert!(resume(&root, &started).expect_err("another's").contains("identifier 7, and has 8 now"));
        fs::remove_dir_all(data::dir(&root)).expect("removed");
        assert_eq!(resume(&root, &started).expect_err("lost"), "its data is gone");
        started.system = None;
        resume(&root, &started).expect("it was never there");
    }
}
