//! `raftsman init`: a few choices → a file to start from, and the state beside it.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use jiff::Timestamp;
use raftsman_core::spec::{self, EtcdVersion, PatroniVersion};
use raftsman_core::versions::patroni;
use secrecy::ExposeSecret as _;

use super::OpError;
use crate::artifacts::Artifacts;
use crate::fleet::{Context, Fleet};
use crate::secrets::random_password;
use crate::stack::StackError;
use crate::store::{Protection, Store};

/// Beside a new file with PostgreSQL: the password of the role `app`.
pub const PASSWORD_FILE: &str = "app.password";

/// What the new file should say.
#[derive(Debug, Clone)]
pub struct Choices {
    /// The fleet's name.
    pub fleet: String,
    /// How many members.
    pub members: u32,
    /// The version of etcd; the default's when not known.
    pub version: Option<EtcdVersion>,
    /// Lines for `source:`, when the binary is not on the PATH.
    pub source: Option<String>,
    /// The major version of PostgreSQL, where there is to be a cluster of it.
    pub postgres: Option<u32>,
}

/// The text of a new file.
pub fn file(choices: &Choices) -> String {
    let Choices { fleet, members, version, source, postgres } = choices;
    let version = version.unwrap_or_default();
    let source = source.as_ref().map(|s| format!("    source: {s}\n")).unwrap_or_default();
    format!(
        "# Everything else has a default; every key is in docs/reference/file.md.\n\
         # For an editor that completes it: `raftsman schema > raftsman.schema.json`.\n\
         fleet: {fleet}\n\
         machines:\n  \
           provider: local\n\
         etcd:\n  \
           main:\n    \
             members: {members}\n    \
             version: {version}\n\
         {source}{}",
        postgres.map(with_postgres).unwrap_or_default()
    )
}

/// Further lines of the cluster `main`, and three nodes of PostgreSQL on it.
fn with_postgres(major: u32) -> String {
    format!(
        "    # Patroni logs in to etcd by a password.\n    \
             auth: {{ mode: password }}\n\
         postgres:\n  \
           app:\n    \
             etcd: main\n    \
             nodes: 3\n    \
             version: {major}\n    \
             # The application's login, by the password in that file, and its database.\n    \
             roles: {{ app: {{ password: {{ file: {PASSWORD_FILE} }} }} }}\n    \
             databases: {{ app: {{ owner: app }} }}\n    \
             # Which clients may connect, always over TLS and with a password.\n    \
             access:\n      \
               - {{ databases: [app], users: [app], from: [127.0.0.0/8] }}\n"
    )
}

/// The newest major version of PostgreSQL among Debian's packages on this computer that raftsman runs.
pub fn installed_postgres() -> Option<u32> {
    let there = |major: &u32| Path::new(&format!("/usr/lib/postgresql/{major}/bin/postgres")).is_file();
    patroni::POSTGRES.rev().find(there)
}

/// What Patroni's bundle of the default version lacks; nothing where it is as it should be.
pub fn lacks_bundle(text: &str, context: &Context) -> Option<String> {
    let spec = spec::read(text).spec?;
    let artifacts = Artifacts::new(context.state_dir(&spec).join("artifacts"), context.examined.clone());
    let checked = artifacts.check_bundle(None, PatroniVersion::default(), context.base(), &context.agent);
    checked.err().map(|error| error.to_string())
}

/// Writes the file, never over one that is there.
pub fn write_file(path: &Path, text: &str) -> Result<(), OpError> {
    write_new(OpenOptions::new(), path, text).map_err(failed_at(path))
}

/// Makes a password, for this user only, where the file is not there yet; whether it was made.
pub fn make_password(path: &Path) -> Result<bool, OpError> {
    let password = random_password().map_err(StackError::from)?;
    let mut options = OpenOptions::new();
    options.mode(0o600);
    match write_new(options, path, password.expose_secret()) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        written => written.map(|()| true).map_err(failed_at(path)),
    }
}

fn write_new(mut options: OpenOptions, path: &Path, text: &str) -> io::Result<()> {
    options.write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

fn failed_at(path: &Path) -> impl FnOnce(io::Error) -> OpError {
    |source| OpError::File { action: "write", path: path.to_owned(), source }
}

/// Makes the state for the file.
pub async fn make_state(text: &str, context: &Context, protection: Protection) -> Result<Option<Store>, OpError> {
    let Some(spec) = spec::read(text).spec else { return Ok(None) };
    Ok(Some(Fleet::create(&spec, context, protection, Timestamp::now()).await?))
}
