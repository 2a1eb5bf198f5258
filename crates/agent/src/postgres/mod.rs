//! Patroni and PostgreSQL on this machine: Patroni's file, log and REST interface → what the supervisor and the report need.

use raftsman_api::v1;
use raftsman_api::{hex, v1::Purpose};
use raftsman_core::render::patroni::{self, DIR, ETCD_CA, REST_TLS, SERVER_TLS};
use std::path::{Path, PathBuf};
use tokio::runtime::Handle;

use crate::access::certs::Store;
use crate::files;
use crate::postgres::prestart::Started;
use crate::report::ReportError;
use crate::root::Root;
use crate::status::describe;
use crate::supervisor::launch::Launcher;
use crate::supervisor::packages;

pub mod catalog;
pub mod config;
pub mod data;
pub mod http;
pub mod lines;
pub mod login;
pub mod prestart;
pub mod rest;
pub mod running;

/// The bytes that must be free before Patroni starts: a new cluster has some 40 MB, and a segment of its log 16.
pub const LEAST_FREE: u64 = 128 << 20;

/// The last message in Patroni's log about why it ended.
pub fn fatal(log: &[String]) -> Option<String> {
    // A token is not for reports.
    let log: Vec<&String> = log.iter().filter(|line| !line.contains("auth token")).collect();
    let gist = |line: &&String| {
        ["CRITICAL: ", "FATAL: ", "ERROR: "].iter().find_map(|level| Some(line.split_once(level)?.1.to_owned()))
    };
    // What Python writes of an exception that ended it begins with the exception's name.
    let exception = |line: &&&String| {
        line.split_once(": ").is_some_and(|(name, _)| {
            !name.contains(' ') && (name.ends_with("Error") || name.ends_with("Exception") || name == "SystemExit")
        })
    };
    log.iter().rev().find(exception).map(|line| (*line).clone()).or_else(|| log.iter().rev().find_map(gist))
}

/// The store of one of a node's certificates. PostgreSQL refuses a key of its own that a group may read; where it has a user
/// of its own, keys are root's, and its group reads them.
pub fn store(root: &Root, launcher: &Launcher, purpose: NodePurpose) -> Store {
    let store = Store::new(root.path().join(purpose.dir()));
    match launcher {
        Launcher::Unit(_) => store,
        Launcher::Child => store.private(),
    }
}

/// What a node's certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePurpose {
    /// PostgreSQL.
    Server,
    /// Patroni's REST interface.
    Rest,
}

impl NodePurpose {
    fn dir(self) -> &'static str {
        match self {
            Self::Server => SERVER_TLS,
            Self::Rest => REST_TLS,
        }
    }
}

/// What is reported of Patroni and PostgreSQL; none where the machine has neither a file nor data. On a thread that may
/// block: Patroni is asked only while it runs, and for no longer than two seconds.
pub fn report(
    root: &Root,
    launcher: &Launcher,
    started: &Started,
    runs: bool,
) -> Result<Option<v1::PostgresReport>, ReportError> {
    let sent = config::sent(root)?;
    let data = data::look(&data::dir(root));
    let mut certificates = Vec::new();
    for (purpose, of) in [(Purpose::Postgres, NodePurpose::Server), (Purpose::Patroni, NodePurpose::Rest)] {
        certificates.extend(store(root, launcher, of).describe(purpose, "")?);
    }
    if sent.is_none() && data == data::Data::Empty && started.system.is_none() && certificates.is_empty() {
        return Ok(None);
    }
    let (answer, problem) = if runs { answer(root) } else { Default::default() };
    let had_data = started.system.is_some() || matches!(data, data::Data::Present { .. });
    let trust = files::read(&root.path().join(ETCD_CA))?;
    let presented =
        [(Purpose::Postgres, SERVER_TLS), (Purpose::Patroni, REST_TLS)].into_iter().filter_map(|(of, dir)| {
            let fingerprint = started.presented.get(dir).filter(|_| runs)?.clone();
            Some(v1::PresentedCertificate { purpose: of.into(), fingerprint })
        });
    Ok(Some(v1::PostgresReport {
        presented: presented.collect(),
        installed: sent.as_deref().and_then(|sent| installed(root, launcher, sent)).unwrap_or_default(),
        running_config: if runs { started.taken_up.clone() } else { String::new() },
        running_secrets_stamp: if runs { started.secrets.clone() } else { String::new() },
        started_with: if runs { started.hosts.iter().map(ToString::to_string).collect() } else { Vec::new() },
        etcd_trust_digest: trust.map(|pem| hex::sha256(pem.as_bytes())).unwrap_or_default(),
        secrets_stamp: config::stamp(root)?.unwrap_or_default(),
        certificates,
        data: Some(data.wire()),
        had_data,
        answer,
        problem,
    }))
}

fn answer(root: &Root) -> (String, String) {
    let asked = rest::Rest::open(root).and_then(|rest| Handle::current().block_on(rest.facts()));
    match asked {
        Ok(answer) => (answer, String::new()),
        Err(error) => (String::new(), describe(&error)),
    }
}

/// PostgreSQL's version where Patroni's file says that it is.
fn installed(root: &Root, launcher: &Launcher, sent: &str) -> Option<String> {
    let directory = patroni::value(sent, "postgresql", "bin_dir")?;
    let directory = directory.replace("{root}", &root.path().display().to_string());
    let program: PathBuf = Path::new(&directory).join("postgres");
    Handle::current().block_on(packages::version_of(&program, "--version", launcher.unprivileged()))
}

/// All of a node's, below the root.
pub fn dir(root: &Root) -> PathBuf {
    root.path().join(DIR)
}
