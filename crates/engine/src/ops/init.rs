//! `raftsman init`: a few choices → a file to start from, and the state beside it.

use std::path::Path;

use jiff::Timestamp;
use raftsman_core::spec::{self, EtcdVersion};

use super::OpError;
use crate::fleet::{Context, Fleet};
use crate::store::{Protection, Store};

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
}

/// The text of a new file.
pub fn file(choices: &Choices) -> String {
    let Choices { fleet, members, version, source } = choices;
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
         {source}"
    )
}

/// Writes the file, never over one that is there.
pub fn write_file(path: &Path, text: &str) -> Result<(), OpError> {
    use std::io::Write as _;
    let failed = |source| OpError::File { action: "write", path: path.to_owned(), source };
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

/// Makes the state for the file.
pub async fn make_state(text: &str, context: &Context, protection: Protection) -> Result<Option<Store>, OpError> {
    let Some(spec) = spec::read(text).spec else { return Ok(None) };
    Ok(Some(Fleet::create(&spec, context, protection, Timestamp::now()).await?))
}
