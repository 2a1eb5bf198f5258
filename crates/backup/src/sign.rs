//! A manifest → signed with the key of the cluster that it is of; a manifest from a store → verified, or refused.
//!
//! Every cluster has an Ed25519 key of its own, derived from a secret of the fleet's state. Its machines have the private
//! key, because they make backups; readers need the public one. Write access to the store gives neither.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use raftsman_api::hex;
use raftsman_core::backup::{Coding, Signable, Signature, Unverified};
use raftsman_core::spec::Name;

const PREFIX: &str = "ed25519:";
const SEED: usize = 32;

/// Why something is not signed, or its signature not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// No signature at all.
    #[error(
        "{what} is not signed: it is not taken for a backup; where it was made before backups were signed, and no \
         attacker can write to the store, give `--trust-unsigned`"
    )]
    Unsigned {
        /// What.
        what: String,
    },
    /// Signed with a key that is not trusted.
    #[error(
        "{what} is signed with {key}, which is not the key of this cluster: where it is the key of the fleet that made \
         it (`raftsman backup key` there), trust it, with `trust:` under `backups:` in the file or with `--trust`"
    )]
    OtherKey {
        /// What.
        what: String,
        /// The key.
        key: String,
    },
    /// The signature does not fit.
    #[error("the signature of {what} does not fit: it was changed or forged, and is not taken for a backup")]
    Forged {
        /// What.
        what: String,
    },
    /// In the clear where all is encrypted.
    #[error(
        "{what} is not encrypted, although the file has `encrypt_to`: where it was made before, restore it with \
         `--trust-unsigned`"
    )]
    Plain {
        /// What.
        what: String,
    },
    /// An invalid key.
    #[error("this is no key for signing backups: run `raftsman apply`, which sends it anew")]
    Key,
    /// It cannot be written.
    #[error("it cannot be written: {0}")]
    Text(#[from] serde_json::Error),
}

/// What verifies the backups of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey([u8; SEED]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", hex::encode(&self.0))
    }
}

impl FromStr for PublicKey {
    type Err = SignError;

    fn from_str(text: &str) -> Result<Self, SignError> {
        let bytes = text.strip_prefix(PREFIX).and_then(hex::decode);
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or(SignError::Key)
    }
}

/// The seed of a cluster's key. It follows from the fleet's secret, so that a cluster's machines cannot sign for another.
pub fn seed(secret: &[u8], fleet_id: &str, cluster: &Name) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hmac::sign(&key, format!("raftsman backup signing key\n{fleet_id}\n{cluster}").as_bytes()).as_ref().to_vec()
}

/// What signs the backups of a cluster.
pub struct Signer {
    pair: Ed25519KeyPair,
    key: PublicKey,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({})", self.key)
    }
}

impl Signer {
    /// With the key of this seed.
    pub fn new(seed: &[u8]) -> Result<Self, SignError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| SignError::Key)?;
        let key = pair.public_key().as_ref().try_into().map(PublicKey).map_err(|_| SignError::Key)?;
        Ok(Self { pair, key })
    }

    /// What verifies it.
    pub fn public(&self) -> PublicKey {
        self.key.clone()
    }

    /// The text of a manifest or a record, signed.
    pub fn text<T: Signable>(&self, thing: &T) -> Result<String, SignError> {
        let signature = hex::encode(self.pair.sign(&thing.message()?).as_ref());
        Ok(thing.text(Some(Signature { key: self.key.to_string(), signature }))?)
    }
}

/// Which backups are accepted.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// Those that are signed with one of these.
    pub keys: Vec<PublicKey>,
    /// And those that are not, or with another key, or in the clear: because an operator said so.
    pub unsigned: bool,
    /// Only those that are encrypted.
    pub encrypted: bool,
}

impl Trust {
    /// In this key, and in nothing else.
    pub fn in_key(key: PublicKey) -> Self {
        Self { keys: vec![key], ..Self::default() }
    }

    /// What was read, once its signature is verified.
    pub fn verify<T: Signable>(&self, what: impl Fn() -> String, read: Unverified<T>) -> Result<T, SignError> {
        read.verified(|thing, signed| {
            let Some(signed) = signed else {
                return if self.unsigned { Ok(()) } else { Err(SignError::Unsigned { what: what() }) };
            };
            let Some(key) = self.keys.iter().find(|key| key.to_string() == signed.key) else {
                let key = signed.key.chars().take(80).collect();
                return if self.unsigned { Ok(()) } else { Err(SignError::OtherKey { what: what(), key }) };
            };
            let forged = || SignError::Forged { what: what() };
            let signature = hex::decode(&signed.signature).ok_or_else(forged)?;
            UnparsedPublicKey::new(&ED25519, key.0).verify(&thing.message()?, &signature).map_err(|_| forged())
        })
    }

    /// Refuses what is in the clear where everything is to be encrypted.
    pub fn coding(&self, what: impl Fn() -> String, coding: Coding) -> Result<(), SignError> {
        match self.encrypted && !coding.age && !self.unsigned {
            true => Err(SignError::Plain { what: what() }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use raftsman_core::backup::{Drill, FullName};
    use raftsman_core::spec::EtcdVersion;

    use super::*;

    fn drill() -> Drill {
        Drill {
            format: Drill::FORMAT,
            backup: FullName::new(jiff::Timestamp::UNIX_EPOCH, 7),
            at: jiff::Timestamp::UNIX_EPOCH,
            machine: Name::fixed("main-1"),
            version: EtcdVersion::default(),
            batches: 0,
            revision: 7,
            keys: 1,
            took_ms: 1,
            behind: None,
            behind_ms: None,
        }
    }

    #[test]
    fn a_change_of_any_bit_is_found() {
        let ours = Signer::new(&seed(b"a secret of the fleet", "f", &Name::fixed("main"))).unwrap();
        let (trust, text) = (Trust::in_key(ours.public()), ours.text(&drill()).unwrap());
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let accepted = Drill::read(&bytes).is_ok_and(|read| trust.verify(|| "it".to_owned(), read).is_ok());
            assert!(!accepted, "bit {} of byte {}: {}", bit % 8, bit / 8, String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn only_what_the_key_has_signed_is_accepted() {
        let of = |cluster| Signer::new(&seed(b"a secret of the fleet", "f", &Name::fixed(cluster))).unwrap();
        let (ours, other) = (of("main"), of("other"));
        assert_ne!(ours.public(), other.public());
        assert_eq!(ours.public().to_string().parse::<PublicKey>().unwrap(), ours.public());
        let trust = Trust::in_key(ours.public());
        let verify = |trust: &Trust, text: &str| {
            trust.verify(|| "it".to_owned(), Drill::read(text.as_bytes()).unwrap()).map(drop)
        };
        let text = ours.text(&drill()).unwrap();
        verify(&trust, &text).unwrap();
        let unsigned = drill().text(None).unwrap();
        assert!(matches!(verify(&trust, &unsigned), Err(SignError::Unsigned { .. })));
        let theirs = other.text(&drill()).unwrap();
        assert!(matches!(verify(&trust, &theirs), Err(SignError::OtherKey { .. })));
        // The signature of one thing under another, and another's signature under our key.
        let signature = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["signed"].clone();
        let progress = Drill { keys: 2, ..drill() }.text(serde_json::from_value(signature(&text)).unwrap()).unwrap();
        assert!(matches!(verify(&trust, &progress), Err(SignError::Forged { .. })));
        let named = theirs.replace(&other.public().to_string(), &ours.public().to_string());
        assert!(matches!(verify(&trust, &named), Err(SignError::Forged { .. })));
        // With `unsigned`, a wrong signature of our key is still rejected.
        let anything = Trust { unsigned: true, ..trust };
        verify(&anything, &unsigned).unwrap();
        verify(&anything, &theirs).unwrap();
        assert!(matches!(verify(&anything, &progress), Err(SignError::Forged { .. })));
    }
}
