//! the agent's identity, the fleet's CA → accepted connections that say who the client is and what it was shown.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::{ALPN, Identity, TlsError, provider};
use crate::roles::{Role, RoleError};

/// The server's side of TLS. A client must always show a certificate from the fleet's CA, also before the claim. Cheap to
/// clone; all clones share the identity.
#[derive(Clone, Debug)]
pub struct ServerTls {
    clients: Arc<dyn ClientCertVerifier>,
    shown: Arc<RwLock<Arc<CertifiedKey>>>,
}

/// Who is at the other end of a connection, and what they were shown.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The role in the client's certificate.
    pub role: Result<Role, Arc<RoleError>>,
    /// The server certificate shown on this very connection: a claim's proof is bound to it.
    pub server_certificate: CertificateDer<'static>,
}

impl ServerTls {
    /// A server that shows this identity.
    pub fn new(identity: Identity, fleet_ca: Arc<RootCertStore>) -> Result<Self, TlsError> {
        let clients = WebPkiClientVerifier::builder_with_provider(fleet_ca, provider())
            .build()
            .map_err(TlsError::ClientVerifier)?;
        Ok(Self { clients, shown: Arc::new(RwLock::new(certified(identity)?)) })
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
            .with_client_cert_verifier(Arc::clone(&self.clients))
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let stream = TlsAcceptor::from(Arc::new(config)).accept(tcp).await?;
        let client = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let role = client.map_or(Err(RoleError::Missing), Role::of).map_err(Arc::new);
        Ok(ServerStream { stream, peer: Peer { role, server_certificate } })
    }
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
