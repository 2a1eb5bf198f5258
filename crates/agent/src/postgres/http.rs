//! an address, TLS, a request → its answer, within a time and a size.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// What is read of an answer.
const MOST_BYTES: usize = 1 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The request was not sent.
    #[error("{address}: {reason}")]
    NotSent {
        /// Where.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
    /// It was sent, or may have been, and is not answered.
    #[error("{address}: {reason}")]
    NoAnswer {
        /// Where.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
}

/// A request without its address.
pub struct Ask<'a> {
    /// Such as `GET`.
    pub method: &'a str,
    /// Such as `/patroni`.
    pub path: &'a str,
    /// The value of `Authorization`; none where it is empty.
    pub authorization: &'a str,
    /// In JSON.
    pub body: String,
}

/// Sends a request on a connection of its own; returns the status code, and what was answered.
pub async fn ask(
    tls: Arc<ClientConfig>,
    address: SocketAddr,
    ask: Ask<'_>,
    limit: Duration,
) -> Result<(u16, String), HttpError> {
    let not_sent = |reason: String| HttpError::NotSent { address, reason };
    let no_answer = |reason: String| HttpError::NoAnswer { address, reason };
    let begun = tokio::time::Instant::now();
    let connect = async {
        let tcp = TcpStream::connect(address).await.map_err(|error| not_sent(format!("cannot connect: {error}")))?;
        let stream = TlsConnector::from(tls).connect(address.ip().into(), tcp).await;
        let stream = stream.map_err(|error| not_sent(format!("the TLS handshake failed: {error}")))?;
        let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        shaken.map_err(|error| not_sent(error.to_string()))
    };
    let late = || format!("no answer within {} s", limit.as_secs());
    let (mut sender, connection) = timeout(limit, connect).await.unwrap_or_else(|_| Err(not_sent(late())))?;
    let connection = Aborted(tokio::spawn(async move {
        // Its end shows at the request.
        let _ = connection.await;
    }));
    let mut request = Request::builder()
        .method(ask.method)
        .uri(ask.path)
        .header("host", address.to_string())
        .header("connection", "close")
        .header("content-type", "application/json");
    if !ask.authorization.is_empty() {
        request = request.header("authorization", ask.authorization);
    }
    let request = request.body(Full::new(Bytes::from(ask.body))).map_err(|error| not_sent(error.to_string()))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| no_answer(error.to_string()))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|error| no_answer(format!("its answer was cut off: {error}")))?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    let left = limit.saturating_sub(begun.elapsed());
    let answered = timeout(left, answer).await.unwrap_or_else(|_| Err(no_answer(late())));
    drop(connection);
    answered
}

/// A task that ends with its owner.
struct Aborted(tokio::task::JoinHandle<()>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}
