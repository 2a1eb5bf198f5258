//! PEM text → DER certificates and private keys, with a message for every form that is not accepted.

use rcgen::KeyPair;
use rustls_pki_types::PrivatePkcs8KeyDer;
use secrecy::{ExposeSecret, SecretString};
use x509_parser::pem::Pem;
use zeroize::Zeroizing;

use super::PkiError;

/// The certificates in a text, at least one.
pub(super) fn certificates(text: &str) -> Result<Vec<Vec<u8>>, PkiError> {
    let mut found = Vec::new();
    for block in Pem::iter_from_buffer(text.as_bytes()) {
        let block = block.map_err(|error| PkiError::Certificate { detail: error.to_string() })?;
        if block.label == "CERTIFICATE" {
            found.push(block.contents);
        }
    }
    if found.is_empty() { Err(PkiError::NoCertificate) } else { Ok(found) }
}

/// The one private key in a text.
pub(super) fn private_key(text: &SecretString) -> Result<KeyPair, PkiError> {
    // The old forms carry their encryption in a header, which the parser does not know.
    if text.expose_secret().contains("Proc-Type: 4,ENCRYPTED") {
        return Err(PkiError::KeyEncrypted);
    }
    for block in Pem::iter_from_buffer(text.expose_secret().as_bytes()) {
        let Ok(block) = block else { return Err(PkiError::NoKey) };
        let label = block.label;
        let der = Zeroizing::new(block.contents);
        match label.as_str() {
            "PRIVATE KEY" => {
                return KeyPair::try_from(&PrivatePkcs8KeyDer::from(der.as_slice()))
                    .map_err(|source| PkiError::Key { source });
            }
            "ENCRYPTED PRIVATE KEY" => return Err(PkiError::KeyEncrypted),
            "RSA PRIVATE KEY" => {
                return Err(PkiError::KeyForm { form: "PKCS#1 (RSA PRIVATE KEY)", command: CONVERT });
            }
            "EC PRIVATE KEY" => return Err(PkiError::KeyForm { form: "SEC1 (EC PRIVATE KEY)", command: CONVERT }),
            "OPENSSH PRIVATE KEY" => {
                return Err(PkiError::KeyForm {
                    form: "OpenSSH",
                    command: "ssh-keygen -p -m PKCS8 -N '' -f <a copy of the key>",
                });
            }
            // `openssl ecparam -genkey` writes the curve before the key.
            "EC PARAMETERS" => {}
            other => return Err(PkiError::NotAKey { found: other.to_lowercase() }),
        }
    }
    Err(PkiError::NoKey)
}

const CONVERT: &str = "(umask 077; openssl pkcs8 -topk8 -nocrypt -in <key> -out <new key>)";

/// A DER certificate as PEM.
pub(super) fn encode_certificate(der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    // 48 bytes are 64 characters, the width that openssl writes.
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let bits = (0..3).fold(0_u32, |bits, index| bits << 8 | u32::from(group.get(index).copied().unwrap_or(0)));
            for index in 0..4 {
                let digit = (bits >> (18 - 6 * index) & 63) as usize;
                text.push(if index > group.len() { '=' } else { char::from(ALPHABET[digit]) });
            }
        }
        text.push('\n');
    }
    text + "-----END CERTIFICATE-----\n"
}
