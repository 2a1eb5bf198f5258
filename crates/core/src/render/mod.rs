//! Desired → the text of files, and their digests.

pub mod changes;
pub mod chrony;
pub mod cloud_init;
pub mod delivery;
pub mod etcd;
pub mod first_boot;
pub mod fluent_bit;
pub mod haproxy;
pub mod keepalived;
pub mod nftables;
pub mod patroni;
pub mod systemd;
pub mod units;
pub mod yaml;

use sha2::{Digest, Sha256};

/// SHA-256 of a text, in hexadecimal.
pub fn digest(text: &str) -> String {
    use std::fmt::Write as _;
    Sha256::digest(text.as_bytes()).iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
