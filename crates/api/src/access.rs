//! the CAs that agents trust, the keys that are revoked → a digest by which raftsman and agent compare them.

use std::collections::BTreeSet;

use crate::hex;

/// SHA-256 of both, hexadecimal.
pub fn access_digest(trust_pem: &str, revoked: &BTreeSet<String>) -> String {
    let keys: Vec<&str> = revoked.iter().map(String::as_str).collect();
    hex::sha256(format!("{}\n{trust_pem}", keys.join(",")).as_bytes())
}
