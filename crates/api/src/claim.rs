//! join token, nonce, server certificate, signing request → the proof that a new machine is the one that was created.
//!
//! The proof is bound to the server certificate of the very TLS connection on which it is asked for. A man in
//! the middle shows another certificate, so that a relayed proof does not fit what the workstation saw.

use std::fmt;

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::{digest, hmac, rand};
use rustls_pki_types::CertificateDer;

use crate::hex;

const CONTEXT: &[u8] = b"raftsman claim v1";
const TOKEN_BYTES: usize = 32;
const NONCE_BYTES: usize = 32;
/// The shortest nonce that an agent answers.
pub const MIN_NONCE_BYTES: usize = 16;

/// Why a claim cannot be made or verified.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ClaimError {
    /// The proof does not fit.
    #[error(
        "the machine could not prove that it holds the join token over this connection: something else answers at its \
         address, or a man in the middle; check the address, or delete the machine and create it again"
    )]
    WrongProof,
    /// The text is no token.
    #[error("the join token is not hexadecimal text of at least 16 bytes")]
    MalformedToken,
    /// The system's random number generator failed.
    #[error("the system's random number generator failed")]
    NoRandomness,
}

impl From<Unspecified> for ClaimError {
    fn from(_: Unspecified) -> Self {
        Self::NoRandomness
    }
}

/// The single-use secret in a machine's boot data. Its debug form shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken(Vec<u8>);

impl JoinToken {
    /// A fresh random token.
    pub fn generate() -> Result<Self, ClaimError> {
        let mut bytes = vec![0; TOKEN_BYTES];
        rand::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The token that hexadecimal text stands for.
    pub fn from_hex(text: &str) -> Result<Self, ClaimError> {
        hex::decode(text.trim()).filter(|bytes| bytes.len() >= 16).map(Self).ok_or(ClaimError::MalformedToken)
    }

    /// The token as text, for boot data and the sealed state only.
    pub fn to_hex(&self) -> String {
        hex::encode(&self.0)
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinToken(…)")
    }
}

/// A fresh nonce for `ClaimRequest`.
pub fn nonce() -> Result<Vec<u8>, ClaimError> {
    let mut bytes = vec![0; NONCE_BYTES];
    rand::fill(&mut bytes)?;
    Ok(bytes)
}

/// The agent's side: the proof for this connection.
pub fn prove(token: &JoinToken, nonce: &[u8], server: &CertificateDer<'_>, csr_der: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &token.0);
    hmac::sign(&key, &message(nonce, server, csr_der)).as_ref().to_vec()
}

/// The workstation's side: whether the proof fits the certificate that was seen on this connection. Takes the same time
/// whatever the proof is.
pub fn verify(
    token: &JoinToken,
    nonce: &[u8],
    server: &CertificateDer<'_>,
    csr_der: &[u8],
    proof: &[u8],
) -> Result<(), ClaimError> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &token.0);
    hmac::verify(&key, &message(nonce, server, csr_der), proof).map_err(|_| ClaimError::WrongProof)
}

fn message(nonce: &[u8], server: &CertificateDer<'_>, csr_der: &[u8]) -> Vec<u8> {
    let mut message = CONTEXT.to_vec();
    message.extend_from_slice(nonce);
    message.extend_from_slice(digest::digest(&digest::SHA256, server).as_ref());
    message.extend_from_slice(digest::digest(&digest::SHA256, csr_der).as_ref());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_fits_only_its_inputs() {
        let token = JoinToken::generate().expect("token");
        let nonce = nonce().expect("nonce");
        let server = CertificateDer::from(b"server".to_vec());
        let proof = prove(&token, &nonce, &server, b"csr");
        assert_eq!(verify(&token, &nonce, &server, b"csr", &proof), Ok(()));

        let wrong = Err(ClaimError::WrongProof);
        let other_token = JoinToken::generate().expect("token");
        assert_eq!(verify(&other_token, &nonce, &server, b"csr", &proof), wrong);
        assert_eq!(verify(&token, b"another nonce!!!", &server, b"csr", &proof), wrong);
        let other_server = CertificateDer::from(b"middle".to_vec());
        assert_eq!(verify(&token, &nonce, &other_server, b"csr", &proof), wrong);
        assert_eq!(verify(&token, &nonce, &server, b"other csr", &proof), wrong);
        assert_eq!(verify(&token, &nonce, &server, b"csr", &proof[1..]), wrong);
        assert_eq!(verify(&token, &nonce, &server, b"csr", b""), wrong);
    }

    #[test]
    fn token_as_text() {
        let token = JoinToken::generate().expect("token");
        assert_eq!(JoinToken::from_hex(&token.to_hex()).as_ref(), Ok(&token));
        assert_eq!(JoinToken::from_hex("abcd"), Err(ClaimError::MalformedToken));
        assert!(!format!("{token:?}").contains(&token.to_hex()));
    }
}
