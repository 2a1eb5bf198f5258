//! A CA, a certificate, an address → connections to PostgreSQL and to Patroni's REST interface, over TLS.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use raftsman_api::tls::Identity;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What clients of PostgreSQL and of REST trust and show.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Trusts this CA.
    pub(super) fn trusting(ca_pem: &str) -> Self {
        let roots = raftsman_api::tls::roots(ca_pem).expect("a CA");
        let config = ClientConfig::builder_with_provider(raftsman_api::tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3");
        Self(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
    }

    /// Trusts this CA, and shows this certificate where a server asks for one.
    pub(super) fn new(ca_pem: &str, identity: Identity) -> Self {
        let roots = raftsman_api::tls::roots(ca_pem).expect("a CA");
        let config = ClientConfig::builder_with_provider(raftsman_api::tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots)
            .with_client_auth_cert(identity.chain, identity.key)
            .expect("a certificate and its key");
        Self(Arc::new(config))
    }
}

/// A request to the REST interface at this address: the status code, and what it answered.
pub(super) async fn rest(
    tls: &Tls,
    address: IpAddr,
    (user, password): (&str, &str),
    (method, path, body): (&str, &str, String),
    limit: Duration,
) -> io::Result<(u16, String)> {
    let call = async {
        let socket = TcpStream::connect(SocketAddr::new(address, super::bare::REST_PORT)).await?;
        let stream = TlsConnector::from(Arc::clone(&tls.0)).connect(ServerName::from(address), socket).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let connection = tokio::spawn(connection);
        let login = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", address.to_string())
            .header("authorization", format!("Basic {login}"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(io::Error::other)?;
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        connection.abort();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl MakeTlsConnect<tokio_postgres::Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = To;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<To> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(To { tls: self.clone(), name })
    }
}

/// A handshake with a server of this name.
pub(super) struct To {
    tls: Tls,
    name: ServerName<'static>,
}

impl TlsConnect<tokio_postgres::Socket> for To {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: tokio_postgres::Socket) -> Self::Future {
        Box::pin(async move { TlsConnector::from(self.tls.0).connect(self.name, socket).await.map(Encrypted) })
    }
}

/// PostgreSQL's protocol over rustls.
pub(super) struct Encrypted(TlsStream<tokio_postgres::Socket>);

impl tokio_postgres::tls::TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        // The server's certificate is checked against the CA and the address.
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
