//! a program of a Debian package → whether it is installed, and which version.
//!
//! Debian's package manager checks, installs and updates it: no admin pins it, and no call installs it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::timeout;

use crate::supervisor::confine;
use crate::supervisor::systemd::Owner;

/// It prints a line and ends.
const VERSION_LIMIT: Duration = Duration::from_secs(1);

/// Stands for a version that was not found out.
pub const UNKNOWN: &str = "unknown";

/// A Debian package with a program that is supervised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: &'static str,
    /// The path of the program.
    pub program: &'static str,
}

/// What tells one file from the next at the same path: device, number, size, and time of change.
type Stamp = (u64, u64, u64, i64, i64);

/// Versions by program: a report must not run it each time.
static VERSIONS: Mutex<BTreeMap<PathBuf, (Stamp, String)>> = Mutex::new(BTreeMap::new());

impl Package {
    /// Whether its program is there.
    pub fn is_installed(self) -> bool {
        Path::new(self.program).is_file()
    }

    /// The version that is installed; none where the package is not.
    pub async fn version(self, user: Option<Owner>) -> Option<String> {
        version_of(Path::new(self.program), "-v", user).await
    }
}

/// The version of the program at this path, which prints it when it is run with this argument; none where there is none.
pub async fn version_of(program: &Path, argument: &str, user: Option<Owner>) -> Option<String> {
    let found = fs::metadata(program).ok().filter(fs::Metadata::is_file)?;
    let stamp = (found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec());
    let known = || VERSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, version)) = known().get(program).filter(|(of, _)| *of == stamp) {
        return Some(version.clone());
    }
    let mut command = confine::command(program, Path::new("/"), user);
    let said = match timeout(VERSION_LIMIT, command.arg(argument).output()).await {
        Ok(Ok(output)) => [output.stdout, output.stderr].concat(),
        Ok(Err(error)) => {
            tracing::warn!(%error, "{} cannot be run", program.display());
            Vec::new()
        }
        Err(_) => Vec::new(),
    };
    let Some(version) = version_in(&String::from_utf8_lossy(&said)) else { return Some(UNKNOWN.to_owned()) };
    known().insert(program.to_path_buf(), (stamp, version.clone()));
    Some(version)
}

/// `HAProxy version 2.6.12-1+deb12u4 2026/10/17`, `Keepalived v2.2.7 (01/16,2022)`, `postgres (PostgreSQL) 15.18`.
fn version_in(said: &str) -> Option<String> {
    let words = said.lines().next()?.split_ascii_whitespace().map(|word| word.trim_start_matches('v'));
    words.into_iter().find(|word| word.starts_with(|first: char| first.is_ascii_digit())).map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_programs_print() {
        let haproxy = "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/\nStatus: long-term\n";
        assert_eq!(version_in(haproxy).as_deref(), Some("2.6.12-1+deb12u4"));
        assert_eq!(version_in("Keepalived v2.2.7 (01/16,2022)\n\n").as_deref(), Some("2.2.7"));
        assert_eq!(version_in("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n").as_deref(), Some("15.18"));
        assert_eq!(version_in("usage\n"), None);
    }
}
