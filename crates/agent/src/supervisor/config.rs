//! a configuration as it was sent ↔ a program's configuration file, with its digest.

use std::net::IpAddr;

use raftsman_api::hex;

use crate::files::{self, FileError};
use crate::postgres;
use crate::root::Root;
use crate::supervisor::program::Program;

/// Begins the first line of a configuration file. A comment in every program's format so far.
const DIGEST_COMMENT: &str = "# raftsman: config ";

/// Why a program was not configured.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A configuration other than was promised.
    #[error("the configuration's SHA-256 is {found}, the call says {expected}: nothing was written")]
    OtherConfig {
        /// What was promised.
        expected: String,
        /// What came.
        found: String,
    },
    /// Its file has secrets.
    #[error("{0}'s file has secrets, and is written by the call that brings them: ConfigurePatroni")]
    HasSecrets(Program),
    /// Only the machine could know it.
    #[error(
        "no interface of this machine has a route to its own address {0}: name the interface in the file \
         (`vrrp: {{ interface: … }}`)"
    )]
    NoInterface(IpAddr),
    /// A line that raftsman does not write. Where the language of the file runs programs, no caller may use it.
    #[error("line {line} of {program}'s configuration is none that raftsman writes: nothing was written")]
    Foreign {
        /// Which program.
        program: Program,
        /// Which line.
        line: usize,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Writes a program's configuration. Its digest is in the file's first line, so that both always match. The section
/// that the last start added stays.
pub fn write(root: &Root, program: Program, address: IpAddr, config: &str, expected: &str) -> Result<(), ConfigError> {
    if program == Program::Patroni {
        return Err(ConfigError::HasSecrets(program));
    }
    let found = hex::sha256(config.as_bytes());
    if found != expected.to_ascii_lowercase() {
        return Err(ConfigError::OtherConfig { expected: expected.to_owned(), found });
    }
    if let Some(line) = program.foreign_line(config) {
        return Err(ConfigError::Foreign { program, line });
    }
    let placed = program.placed(config, address).ok_or(ConfigError::NoInterface(address))?;
    let rooted = placed.replace("{root}", &root.path().display().to_string());
    let text = format!("{DIGEST_COMMENT}{found}\n{rooted}");
    let old = files::read(&program.files(root).config())?.unwrap_or_default();
    Ok(write_file(root, program, &program.reconfigured(&text, &old))?)
}

/// A program's configuration file as it is, with the digest of the text as sent.
pub fn read(root: &Root, program: Program) -> Result<Option<(String, String)>, FileError> {
    if program == Program::Patroni {
        // Its file has secrets: what is read is the text as it was sent.
        let sent = postgres::config::sent(root)?;
        return Ok(sent.map(|text| (raftsman_core::render::patroni::digest(&text), text)));
    }
    let Some(text) = files::read(&program.files(root).config())? else { return Ok(None) };
    let digest = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix(DIGEST_COMMENT))
        // A file that the agent did not write: a digest that no plan expects.
        .map_or_else(|| hex::sha256(program.configured(&text).as_bytes()), ToOwned::to_owned);
    Ok(Some((digest, text)))
}

/// The text that [`write()`] was given, out of the file that it wrote.
pub fn as_sent(root: &Root, program: Program, text: &str) -> String {
    if program == Program::Patroni {
        return text.to_owned();
    }
    let configured = program.configured(text);
    let configured = match configured.split_once('\n') {
        Some((first, rest)) if first.starts_with(DIGEST_COMMENT) => rest,
        _ => configured,
    };
    configured.replace(&root.path().display().to_string(), "{root}")
}

/// Replaces a program's configuration file. Not Patroni's, which is written with its secrets only: `postgres::config`.
pub fn write_file(root: &Root, program: Program, text: &str) -> Result<(), FileError> {
    match program {
        Program::Etcd | Program::Haproxy | Program::Keepalived => {
            files::write(&program.files(root).config(), text.as_bytes(), files::FOR_PROGRAM)
        }
        Program::Patroni => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_keeps_its_digest() {
        let (_dir, root) = Root::scratch();
        assert!(read(&root, Program::Etcd).expect("read").is_none());
        let address = IpAddr::from([127, 0, 0, 1]);
        let config = "data-dir: {root}/etcd/data\n";
        assert!(write(&root, Program::Etcd, address, config, "00").is_err());
        write(&root, Program::Etcd, address, config, &hex::sha256(config.as_bytes())).expect("write");
        let (digest, text) = read(&root, Program::Etcd).expect("read").expect("some");
        assert_eq!(digest, hex::sha256(config.as_bytes()));
        assert!(text.contains(&format!("data-dir: {}/etcd/data\n", root.path().display())));
        assert_eq!(as_sent(&root, Program::Etcd, &text), config);
        assert_eq!(as_sent(&root, Program::Etcd, "name: of-another-program\n"), "name: of-another-program\n");
    }
}
