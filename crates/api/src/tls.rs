//! keys and certificates → the mutual TLS between workstation and agent: version 1.3 only, HTTP/2 only.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

mod client;
mod server;

pub use client::{ClientTls, ConnectError, Connected, Service, connect};
pub use server::{Peer, ServerStream, ServerTls, key_of};

/// The application protocol that both sides insist on.
const ALPN: &[u8] = b"h2";

/// The DNS name that an agent's certificate bears: which machine of which fleet it is. It needs no DNS server.
pub fn machine_name(machine: &str, fleet_id: &str) -> String {
    format!("{machine}.{fleet_id}.raftsman")
}

/// Why keys or certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Not PEM, or not what was expected in it.
    #[error("the {what} cannot be parsed as PEM")]
    Pem {
        /// What was read.
        what: &'static str,
        /// Why.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// A PEM text without a certificate.
    #[error("the {what} holds no certificate")]
    Empty {
        /// What was read.
        what: &'static str,
    },
    /// The TLS library does not accept them.
    #[error("the {what} cannot be used")]
    Rejected {
        /// What was given.
        what: &'static str,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The fleet's CA cannot check client certificates.
    #[error("the fleet's CA certificate cannot be used to check clients")]
    ClientVerifier(#[source] rustls::server::VerifierBuilderError),
    /// A name that cannot stand in a certificate.
    #[error("`{name}` cannot stand in a certificate: the machine's name and the fleet's id must be DNS labels")]
    Name {
        /// The name.
        name: String,
    },
}

/// A certificate chain, leaf first, and its private key.
pub struct Identity {
    /// Leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's key.
    pub key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads both from PEM text.
    pub fn from_pem(chain_pem: &str, key_pem: &str) -> Result<Self, TlsError> {
        let chain = certificates(chain_pem, "certificate chain")?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
            .map_err(|source| TlsError::Pem { what: "private key", source })?;
        Ok(Self { chain, key })
    }
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("certificates", &self.chain.len()).finish_non_exhaustive()
    }
}

/// All certificates in a PEM text; at least one. `what` names the text in errors.
pub fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| TlsError::Pem { what, source })?;
    if found.is_empty() { Err(TlsError::Empty { what }) } else { Ok(found) }
}

/// The one crypto provider, passed explicitly so that no process-wide default is needed.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// The roots that a PEM text of CA certificates makes.
pub fn roots(ca_pem: &str) -> Result<Arc<RootCertStore>, TlsError> {
    const WHAT: &str = "fleet's CA certificate";
    let mut store = RootCertStore::empty();
    for certificate in certificates(ca_pem, WHAT)? {
        store.add(certificate).map_err(|source| TlsError::Rejected { what: WHAT, source })?;
    }
    Ok(Arc::new(store))
}
