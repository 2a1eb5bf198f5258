//! this machine's own peer certificate, key and trust; other members → the result of a TLS handshake with each of them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use raftsman_api::tls;
use raftsman_api::v1;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::access::certs::{CertsError, Store};
use crate::etcd::PEER;

const LIMIT: Duration = Duration::from_secs(3);

/// Why no handshake was tested.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// This machine has no peer certificate.
    #[error("etcd has no peer certificate to test TLS handshakes with: request and store one first")]
    NoCertificate,
    /// It cannot be read.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// It cannot be used.
    #[error("etcd's peer certificate, key or trust cannot be used: request a new one")]
    Unusable(#[source] rustls::Error),
    /// The task was cancelled.
    #[error("reading etcd's peer certificate was interrupted")]
    Broken(#[from] JoinError),
}

/// Tests handshakes with all of them at the same time, as etcd itself would make them.
pub async fn test(store: Store, targets: Vec<v1::Target>) -> Result<Vec<v1::HandshakeResult>, HandshakeError> {
    let config = spawn_blocking(move || config(&store)).await??;
    let connector = TlsConnector::from(Arc::new(config));
    let asked: Vec<(String, JoinHandle<Result<(), String>>)> = targets
        .into_iter()
        .map(|v1::Target { name, address }| (name, tokio::spawn(ask(connector.clone(), address))))
        .collect();
    let mut results = Vec::with_capacity(asked.len());
    for (name, answer) in asked {
        let error = match answer.await {
            Ok(answered) => answered.err().unwrap_or_default(),
            Err(error) => format!("the agent failed: {error}"),
        };
        results.push(v1::HandshakeResult { name, error });
    }
    Ok(results)
}

fn config(store: &Store) -> Result<ClientConfig, HandshakeError> {
    let (identity, trust) = store.credentials()?.ok_or(HandshakeError::NoCertificate)?;
    let mut roots = RootCertStore::empty();
    for certificate in tls::certificates(&trust, "trust bundle").map_err(CertsError::Sent)? {
        roots.add(certificate).map_err(HandshakeError::Unusable)?;
    }
    ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(HandshakeError::Unusable)?
        .with_root_certificates(roots)
        .with_client_auth_cert(identity.chain, identity.key)
        .map_err(HandshakeError::Unusable)
}

async fn ask(connector: TlsConnector, address: String) -> Result<(), String> {
    let ip: IpAddr = address.parse().map_err(|_| format!("`{address}` is not an address"))?;
    let socket = SocketAddr::new(ip, PEER);
    timeout(LIMIT, talk(connector, socket))
        .await
        .unwrap_or_else(|_| Err(format!("{socket}: no answer within {} s", LIMIT.as_secs())))
}

async fn talk(connector: TlsConnector, socket: SocketAddr) -> Result<(), String> {
    let tcp = TcpStream::connect(socket).await.map_err(|error| format!("{socket}: cannot connect: {error}"))?;
    let mut stream = connector
        .connect(socket.ip().into(), tcp)
        .await
        .map_err(|error| format!("{socket}: the handshake failed: {error}"))?;
    // In TLS 1.3 the server verifies our certificate after our side of the handshake is done, and etcd checks the
    // source address even later. A server that answers a request has accepted us, whatever the answer is.
    let refused = |error: io::Error| format!("{socket}: it rejected our certificate: {error}");
    let question = format!("GET /version HTTP/1.1\r\nHost: {socket}\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes()).await.map_err(refused)?;
    let mut answer = [0_u8; 5];
    stream.read_exact(&mut answer).await.map_err(refused)?;
    if &answer == b"HTTP/" { Ok(()) } else { Err(format!("{socket}: what answers there is no etcd")) }
}
