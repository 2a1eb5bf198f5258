//! the agent's identity, the fleet's CA → accepted connections, the client's identity, the certificate it was shown.

use std::collections::BTreeSet;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{ALPN, Identity, TlsError, provider};
use crate::hex;
use crate::roles::{Role, RoleError};

/// The server's side of TLS. A client must always show a certificate from the fleet's CA, also before the claim. Cheap to
/// clone; all clones share the identity.
#[derive(Clone, Debug)]
pub struct ServerTls {
    clients: Arc<RwLock<Arc<dyn ClientCertVerifier>>>,
    revoked: Arc<RwLock<Arc<BTreeSet<String>>>>,
    shown: Arc<RwLock<Arc<CertifiedKey>>>,
}

/// The client at the other end of a connection, and the certificate that it was shown.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The role in the client's certificate.
    pub role: Result<Role, Arc<RoleError>>,
    /// The server certificate shown on this very connection: a claim's proof is bound to it.
    pub server_certificate: CertificateDer<'static>,
    /// The client's certificate chain, leaf first.
    pub client: Vec<CertificateDer<'static>>,
    /// SHA-256 of the client's public key, hexadecimal: what a revocation names.
    pub client_key: String,
}

impl ServerTls {
    /// A server that shows this identity.
    pub fn new(identity: Identity, fleet_ca: Arc<RootCertStore>) -> Result<Self, TlsError> {
        let shown = Arc::new(RwLock::new(certified(identity)?));
        Ok(Self { clients: Arc::new(RwLock::new(verifier(fleet_ca)?)), revoked: Arc::default(), shown })
    }

    /// Accepts the clients of these CAs from the next connection on, but those whose keys are revoked: they are refused
    /// at once, on connections that are open too.
    pub fn accept_only(&self, fleet_ca: Arc<RootCertStore>, revoked: BTreeSet<String>) -> Result<(), TlsError> {
        let clients = verifier(fleet_ca)?;
        *self.clients.write().unwrap_or_else(PoisonError::into_inner) = clients;
        *self.revoked.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(revoked);
        Ok(())
    }

    /// Whether this client would be accepted now: its connection may be older than a revocation, a change of the CAs or
    /// the end of its certificate.
    pub fn accepts(&self, peer: &Peer) -> bool {
        let [leaf, above @ ..] = peer.client.as_slice() else { return false };
        let clients = Arc::clone(&self.clients.read().unwrap_or_else(PoisonError::into_inner));
        !self.is_revoked(&peer.client_key) && clients.verify_client_cert(leaf, above, UnixTime::now()).is_ok()
    }

    fn is_revoked(&self, key: &str) -> bool {
        self.revoked.read().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    /// Shows another identity from the next connection on.
    pub fn show(&self, identity: Identity) -> Result<(), TlsError> {
        let certified = certified(identity)?;
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = certified;
        Ok(())
    }

    /// Does the handshake on an accepted connection.
    pub async fn accept(&self, tcp: TcpStream) -> io::Result<ServerStream> {
        tcp.set_nodelay(true)?;
        // The configuration is made for each connection, so that it is certain which certificate was shown on it.
        let shown = Arc::clone(&self.shown.read().unwrap_or_else(PoisonError::into_inner));
        let server_certificate = shown.end_entity_cert().map_err(io::Error::other)?.clone().into_owned();
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(Arc::clone(&self.clients.read().unwrap_or_else(PoisonError::into_inner)))
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let stream = TlsAcceptor::from(Arc::new(config)).accept(tcp).await?;
        let client: Vec<_> = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let client_key = client.first().and_then(key_of).unwrap_or_default();
        if client_key.is_empty() || self.is_revoked(&client_key) {
            return Err(io::Error::other(format!("the client's certificate is revoked (key {client_key})")));
        }
        let role = client.first().map_or(Err(RoleError::Missing), Role::of).map_err(Arc::new);
        Ok(ServerStream { stream, peer: Peer { role, server_certificate, client, client_key } })
    }
}

fn verifier(fleet_ca: Arc<RootCertStore>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    WebPkiClientVerifier::builder_with_provider(fleet_ca, provider()).build().map_err(TlsError::ClientVerifier)
}

/// SHA-256 of a certificate's public key, hexadecimal.
pub fn key_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(hex::sha256(parsed.public_key().raw))
}

fn certified(identity: Identity) -> Result<Arc<CertifiedKey>, TlsError> {
    CertifiedKey::from_der(identity.chain, identity.key, &provider())
        .map(Arc::new)
        .map_err(|source| TlsError::Rejected { what: "server certificate or key", source })
}

/// A connection after its handshake; for tonic's `serve_with_incoming`. Handlers find its [`Peer`] in the request's
/// extensions.
#[derive(Debug)]
pub struct ServerStream {
    stream: TlsStream<TcpStream>,
    peer: Peer,
}

impl Connected for ServerStream {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
