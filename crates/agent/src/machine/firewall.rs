//! rules → which sources may reach which ports of this machine, at once and after a boot.

use std::path::Path;

use raftsman_core::render::{digest, nftables, units};

use crate::files::{self, FileError};
use crate::supervisor::launch::Launcher;
use crate::supervisor::systemd::SystemdError;

/// Why the rules were not changed.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// The machine has no firewall of raftsman's.
    #[error("this machine has no firewall of raftsman's: it was not made by raftsman, or with `firewall: false`")]
    None,
    /// The rules are not those that were meant.
    #[error("the rules have the SHA-256 {found}, not {wanted}")]
    OtherRules {
        /// What came.
        found: String,
        /// What was announced.
        wanted: String,
    },
    /// They could not be loaded.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The digest of the rules that are there.
pub fn rules() -> Result<Option<String>, FileError> {
    Ok(files::read(Path::new(nftables::PATH))?.map(|rules| digest(&rules)))
}

/// Loads other rules. If they cannot be loaded, the ones before stay in force.
pub async fn set(launcher: &Launcher, rules: &str, wanted: &str) -> Result<(), FirewallError> {
    let found = digest(rules);
    if found != wanted {
        return Err(FirewallError::OtherRules { found, wanted: wanted.to_owned() });
    }
    let path = Path::new(nftables::PATH);
    let (Launcher::Unit(systemd), Some(before)) = (launcher, files::read(path)?) else {
        return Err(FirewallError::None);
    };
    files::write(path, rules.as_bytes(), 0o600)?;
    if let Err(error) = systemd.reload_unit(units::FIREWALL.name).await {
        files::write(path, before.as_bytes(), 0o600)?;
        return Err(error.into());
    }
    Ok(())
}
