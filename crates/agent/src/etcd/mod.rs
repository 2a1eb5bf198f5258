//! etcd's configuration and log → what the supervisor needs: the addresses that it listens on, why it ended.

use std::net::{IpAddr, SocketAddr};

pub mod bootstrap;
pub mod data;
pub mod db;
pub mod handshake;
pub mod prestart;
pub mod restore;
pub mod restore_test;
pub mod wal;

/// Where etcd's clients reach it.
pub const CLIENT: u16 = 2379;
/// Where other members reach it.
pub const PEER: u16 = 2380;

/// The bytes that must be free before etcd starts: it allocates a segment of its write-ahead log, 64 MB, ahead.
pub const LEAST_FREE: u64 = 64 << 20;

/// The addresses that etcd's configuration listens on; the usual two on the machine's address when it names none.
pub fn listeners(config: &str, address: IpAddr) -> Vec<SocketAddr> {
    const KEYS: [&str; 4] =
        ["listen-client-urls:", "listen-client-http-urls:", "listen-peer-urls:", "listen-metrics-urls:"];
    let mut found: Vec<SocketAddr> = config
        .lines()
        .filter_map(|line| KEYS.iter().find_map(|key| line.strip_prefix(key)))
        .flat_map(|urls| urls.split(','))
        .filter_map(|url| url.trim_matches([' ', '"', '\'']).split_once("://"))
        .filter_map(|(_, rest)| rest.trim_end_matches('/').parse().ok())
        .collect();
    if found.is_empty() {
        found = [CLIENT, PEER].map(|port| SocketAddr::new(address, port)).to_vec();
    }
    found.sort();
    found.dedup();
    found
}

/// The last message in etcd's log about why it ended.
pub fn fatal(log: &[String]) -> Option<String> {
    let is_fatal = |line: &&String| {
        line.contains(r#""level":"fatal""#) || line.contains(r#""level":"panic""#) || line.starts_with("panic:")
    };
    log.iter().rev().find(is_fatal).map(|line| gist(line))
}

/// The message of a line of etcd's log, without its time, caller and stack.
fn gist(line: &str) -> String {
    let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else { return line.to_owned() };
    let text = |key: &str| line.get(key).and_then(|value| value.as_str()).unwrap_or_default();
    let parts = [text("msg"), text("error")];
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_from_the_configuration() {
        let config = "name: a\nlisten-client-urls: \"https://127.0.0.1:2379,https://127.77.0.9:2379\"\n\
                      listen-peer-urls: https://127.77.0.9:2380\nadvertise-client-urls: https://127.77.0.9:9999\n";
        let addresses = listeners(config, "127.77.0.9".parse().expect("address"));
        let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["127.0.0.1:2379", "127.77.0.9:2379", "127.77.0.9:2380"]);
        assert_eq!(listeners("", "127.77.0.9".parse().expect("address")).len(), 2);
    }
}
