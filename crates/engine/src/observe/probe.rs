//! A member's address → whether it rejects a client without credentials, plaintext, and a foreign authority's client.

use std::net::{IpAddr, SocketAddr};

use raftsman_core::desired::CLIENT_PORT;
use raftsman_core::observed::{AccessProbe, ProbeOutcome};
use raftsman_etcd::{CALL_TIMEOUT, Credentials, bounded, dial};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stack::ClusterCredentials;

pub(super) async fn try_all(address: IpAddr, credentials: &ClusterCredentials) -> AccessProbe {
    let foreign = async {
        match handshake_succeeds(address, &credentials.foreign).await {
            Ok(true) => as_client(address, &credentials.foreign).await,
            Ok(false) => ProbeOutcome::Denied,
            Err(error) => ProbeOutcome::Untested(error.to_string()),
        }
    };
    let (anonymous, plaintext, foreign) =
        tokio::join!(as_client(address, &credentials.anonymous), plaintext(address), foreign);
    AccessProbe { anonymous, plaintext, foreign }
}

/// Whether the server accepts our certificate. With TLS 1.3 it verifies it only after our side of the handshake is
/// done: it either answers our first frame, or sends an alert instead.
async fn handshake_succeeds(address: IpAddr, credentials: &Credentials) -> std::io::Result<bool> {
    const HTTP2_GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let tried = async {
        let tcp = TcpStream::connect(SocketAddr::new(address, CLIENT_PORT)).await?;
        let Ok(mut stream) = credentials.http2_connector().connect(address.into(), tcp).await else { return Ok(false) };
        if stream.write_all(HTTP2_GREETING).await.is_err() {
            return Ok(false);
        }
        Ok(matches!(stream.read(&mut [0; 1]).await, Ok(1)))
    };
    tokio::time::timeout(CALL_TIMEOUT, tried).await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}

/// Tries to read as this client.
async fn as_client(address: IpAddr, credentials: &Credentials) -> ProbeOutcome {
    let tried = async {
        let mut client = dial(address, credentials).await?;
        bounded(async { Ok(client.get("raftsman/unauthenticated", None).await?) }).await
    };
    match tried.await {
        Ok(_) => ProbeOutcome::Accepted,
        // Rejected in the handshake, or rejected by auth: access is denied either way.
        Err(error) if error.turned_away() || error.unauthenticated() => ProbeOutcome::Denied,
        Err(error) => ProbeOutcome::Untested(error.to_string()),
    }
}

/// Tries to speak HTTP without TLS: Go's TLS server answers with a line that says what it expected.
async fn plaintext(address: IpAddr) -> ProbeOutcome {
    let tried = async {
        let mut stream = TcpStream::connect(SocketAddr::new(address, CLIENT_PORT)).await?;
        stream.write_all(b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        (&mut stream).take(256).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match tokio::time::timeout(CALL_TIMEOUT, tried).await {
        Ok(Ok(answer)) if answer.starts_with(b"HTTP/1.1 2") || answer.starts_with(b"HTTP/1.0 2") => {
            ProbeOutcome::Accepted
        }
        Ok(Ok(_)) => ProbeOutcome::Denied,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionReset => ProbeOutcome::Denied,
        Ok(Err(error)) => ProbeOutcome::Untested(error.to_string()),
        Err(_) => ProbeOutcome::Untested("no answer to a plaintext request".to_owned()),
    }
}
