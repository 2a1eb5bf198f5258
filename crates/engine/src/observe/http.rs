//! An address and a path → the body of a TLS server's answer, for what etcd serves over HTTP only.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use raftsman_etcd::{CALL_TIMEOUT, Credentials, Endpoint};

/// Far more than any answer that we ask for.
const LARGEST: u64 = 8 << 20;

pub(crate) async fn get(to: &Endpoint, credentials: &Credentials, path: &str) -> io::Result<Vec<u8>> {
    let asked = async {
        let tcp = TcpStream::connect(to.at).await?;
        let mut stream = credentials.connector().connect(to.name.clone(), tcp).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", to.at);
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // Servers may close without TLS's close_notify: the body shows whether something is missing.
        match stream.take(LARGEST).read_to_end(&mut answer).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
        Ok(answer)
    };
    let answer = tokio::time::timeout(CALL_TIMEOUT, asked).await.map_err(|_| io::ErrorKind::TimedOut)??;
    body(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn body(answer: &[u8]) -> Option<Vec<u8>> {
    let good = answer.starts_with(b"HTTP/1.0 200") || answer.starts_with(b"HTTP/1.1 200");
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    good.then(|| answer[at + 4..].to_vec())
}
