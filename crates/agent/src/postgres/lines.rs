//! Patroni's file as raftsman writes it → what is wrong with it as a whole, where it listens, its secrets.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use raftsman_core::render::patroni::{Line, PgSecret, hosts, lines, value};
use secrecy::SecretString;

/// What every file has, by section and key. A file without one of these lines would have Patroni serve REST without TLS or
/// password, or log in to etcd without TLS; PostgreSQL would accept clients by its own rules.
const NEEDED: [(&str, &str); 33] = [
    ("", "scope"),
    ("", "namespace"),
    ("", "name"),
    ("restapi", "listen"),
    ("restapi", "connect_address"),
    ("restapi", "certfile"),
    ("restapi", "keyfile"),
    ("restapi", "cafile"),
    ("restapi", "verify_client"),
    ("restapi/authentication", "username"),
    ("restapi/authentication", "password"),
    ("ctl", "cacert"),
    ("ctl", "certfile"),
    ("ctl", "keyfile"),
    ("etcd3", "protocol"),
    ("etcd3", "cacert"),
    ("etcd3", "username"),
    ("etcd3", "password"),
    ("postgresql", "listen"),
    ("postgresql", "connect_address"),
    ("postgresql", "use_unix_socket"),
    ("postgresql", "data_dir"),
    ("postgresql", "bin_dir"),
    ("postgresql", "pgpass"),
    ("postgresql/authentication/superuser", "username"),
    ("postgresql/authentication/replication", "password"),
    ("postgresql/authentication/replication", "sslmode"),
    ("postgresql/authentication/rewind", "password"),
    ("postgresql/authentication/rewind", "sslmode"),
    ("postgresql/parameters", "unix_socket_directories"),
    ("postgresql/parameters", "ssl"),
    ("postgresql/parameters", "ssl_cert_file"),
    ("postgresql/parameters", "password_encryption"),
];

/// The rule of `pg_hba.conf` that ends every file's.
const LAST_RULE: &str = "host all all all reject";

/// Why a file is none that raftsman writes, though each of its lines is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// A key or a section for the second time: Patroni would take the last one.
    Twice {
        /// The line's number.
        line: usize,
    },
    /// A line that every file has.
    Missing(String),
    /// A device that is no watchdog: Patroni opens it, and writes to it when it closes it, whatever it is.
    Device {
        /// The line's number.
        line: usize,
    },
    /// An address that is not the machine's.
    OtherAddress {
        /// The line's number.
        line: usize,
    },
}

/// What is wrong with a file as a whole, on a machine with this address.
pub fn flaw(text: &str, address: std::net::IpAddr) -> Option<Flaw> {
    let lines = lines(text);
    let mut known = BTreeSet::new();
    for line in &lines {
        let Some(key) = line.key else { continue };
        if !known.insert((line.section.as_str(), key)) {
            return Some(Flaw::Twice { line: line.number });
        }
        if (line.section.as_str(), key) == ("watchdog", "device") && !is_watchdog(&line.text()) {
            return Some(Flaw::Device { line: line.number });
        }
        let own = || line.text().parse::<SocketAddr>().is_ok_and(|found| found.ip() == address);
        if matches!(line.section.as_str(), "restapi" | "postgresql")
            && matches!(key, "listen" | "connect_address")
            && !own()
        {
            return Some(Flaw::OtherAddress { line: line.number });
        }
    }
    if let Some((section, key)) = NEEDED.iter().find(|needed| !known.contains(*needed)) {
        return Some(Flaw::Missing(if section.is_empty() { (*key).to_owned() } else { format!("{section}/{key}") }));
    }
    let rules = |line: &&Line<'_>| line.section == "postgresql/pg_hba";
    if lines.iter().rfind(rules).is_none_or(|last| last.text() != LAST_RULE) {
        return Some(Flaw::Missing("postgresql/pg_hba".to_owned()));
    }
    hosts(text).is_empty().then(|| Flaw::Missing("etcd3/hosts".to_owned()))
}

/// `/dev/watchdog`, or one with a number.
fn is_watchdog(device: &str) -> bool {
    device.strip_prefix("/dev/watchdog").is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()))
}

/// The addresses that Patroni and PostgreSQL listen on.
pub fn listeners(text: &str) -> Vec<SocketAddr> {
    let found = ["restapi", "postgresql"].map(|section| value(text, section, "listen")?.parse().ok());
    found.into_iter().flatten().collect()
}

/// The address that PostgreSQL listens on.
pub fn server(text: &str) -> Option<SocketAddr> {
    value(text, "postgresql", "listen")?.parse().ok()
}

/// A secret of a file that is filled in.
pub fn secret(text: &str, secret: PgSecret) -> Option<SecretString> {
    let section = match secret {
        PgSecret::Dcs => "etcd3",
        PgSecret::Rest => "restapi/authentication",
        PgSecret::Replicator => "postgresql/authentication/replication",
        PgSecret::Rewind => "postgresql/authentication/rewind",
    };
    value(text, section, "password").map(SecretString::from)
}
