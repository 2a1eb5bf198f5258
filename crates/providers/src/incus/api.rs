//! A request → Incus's answer, over its socket or over TLS with pinned certificates on both sides.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::{IncusError, IncusSettings};
use crate::files::failed;

/// The wait for a silent server ends after this time.
const SILENCE: Duration = Duration::from_secs(30);
/// How long one request for an operation's result waits at the server.
const WAIT: u64 = 10;
/// Unpacking an image on a slow disk takes minutes.
const OPERATION_LIMIT: Duration = Duration::from_secs(600);
/// How long another client's operation on the same machine is waited for.
const BUSY_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
/// How often a read is retried when its answer is lost. Only reads: before a change is repeated, its effect is checked.
/// A silent server is not asked again.
const TRIES: u32 = 3;

/// Where a server is, and how to connect to it.
#[derive(Clone)]
pub(super) struct Server {
    place: Place,
    /// As people know it.
    pub(super) name: String,
    project: Option<String>,
}

#[derive(Clone)]
enum Place {
    Socket(PathBuf),
    Network { host: String, port: u16, tls: TlsConnector },
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a request carries.
enum Body {
    Nothing,
    Json(Value),
    Put(Content),
}

/// What is put into a machine.
#[derive(Clone)]
pub(super) enum Content {
    File {
        mode: u32,
        bytes: Bytes,
    },
    /// A symbolic link to this path.
    Link(String),
    Directory,
}

impl Server {
    pub(super) fn new(settings: &IncusSettings) -> Result<Self, IncusError> {
        let incus = settings.machines.incus.clone().unwrap_or_default();
        let name = incus.server().to_owned();
        let place = match incus.remote() {
            None => Place::Socket(name.clone().into()),
            Some((host, port)) => {
                let port = port.ok_or_else(|| IncusError::Address(name.clone()))?;
                Place::Network { host: host.to_owned(), port, tls: connector(settings)? }
            }
        };
        Ok(Self { place, name, project: incus.project })
    }

    /// The object; `None` when there is none.
    pub(super) async fn get(&self, path: &str) -> Result<Option<Value>, IncusError> {
        let mut tries = 1;
        loop {
            match self.ask(Method::GET, path, Body::Nothing).await {
                Ok(reply) => return Ok(Some(reply["metadata"].clone())),
                Err(IncusError::Refused { code: 404, .. }) => return Ok(None),
                Err(IncusError::Connection { source, .. })
                    if tries < TRIES && source.kind() != io::ErrorKind::TimedOut =>
                {
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Changes something, and waits until it is done.
    pub(super) async fn change(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(), IncusError> {
        let begun = Instant::now();
        loop {
            let body = body.map_or(Body::Nothing, |body| Body::Json(body.clone()));
            let done = match self.ask(method.clone(), path, body).await {
                Ok(reply) => self.wait(&reply).await,
                Err(error) => Err(error),
            };
            match done {
                // Waits for an operation of another client, or of our own request with a lost reply, to end.
                Err(error) if error.is_busy() && begun.elapsed() < BUSY_LIMIT => sleep(POLL).await,
                done => return done,
            }
        }
    }

    /// Puts a file into a machine, with its directory.
    pub(super) async fn put(&self, instance: &str, path: &str, content: Content) -> Result<(), IncusError> {
        let parent = Path::new(path).parent().map(Path::to_string_lossy).unwrap_or_default();
        let at = |path: &str| format!("/1.0/instances/{instance}/files?path={path}");
        let begun = Instant::now();
        loop {
            let put = async {
                self.ask(Method::POST, &at(&parent), Body::Put(Content::Directory)).await?;
                self.ask(Method::POST, &at(path), Body::Put(content.clone())).await
            };
            match put.await {
                Err(error) if error.is_busy() && begun.elapsed() < BUSY_LIMIT => sleep(POLL).await,
                put => return put.map(|_| ()),
            }
        }
    }

    async fn wait(&self, reply: &Value) -> Result<(), IncusError> {
        let Some(operation) = reply["operation"].as_str().filter(|operation| !operation.is_empty()) else {
            return Ok(());
        };
        let begun = Instant::now();
        let path = format!("{operation}/wait?timeout={WAIT}");
        while begun.elapsed() < OPERATION_LIMIT {
            let asked = match self.get(&path).await {
                // It is not over yet.
                Err(IncusError::Refused { words, .. }) if words.contains("deadline exceeded") => continue,
                asked => asked?,
            };
            // The server does not know the operation any more, so it is over: the caller checks its effect.
            let Some(found) = asked else { return Ok(()) };
            match found["status_code"].as_u64() {
                Some(100..=199) => {}
                Some(200) => return Ok(()),
                _ => {
                    let words = found["err"].as_str().unwrap_or_default().to_owned();
                    let what = found["description"].as_str().unwrap_or("the operation").to_owned();
                    return Err(IncusError::Refused { what, code: 400, words });
                }
            }
        }
        Err(IncusError::Slow { server: self.name.clone() })
    }

    async fn ask(&self, method: Method, path: &str, body: Body) -> Result<Value, IncusError> {
        let lost = |source| IncusError::Connection { server: self.name.clone(), source };
        let asked = timeout(SILENCE, self.exchange(method.clone(), path, body)).await;
        let reply = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(lost)?;
        match reply["error_code"].as_u64().filter(|code| *code != 0) {
            None => Ok(reply),
            Some(code) => {
                let words = reply["error"].as_str().unwrap_or_default().to_owned();
                match code {
                    401 | 403 => Err(IncusError::Untrusted { server: self.name.clone(), words }),
                    _ => Err(IncusError::Refused { what: format!("{method} {path}"), code, words }),
                }
            }
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: Body) -> io::Result<Value> {
        let join = if path.contains('?') { '&' } else { '?' };
        let project = self.project.as_ref().filter(|_| path.starts_with("/1.0/"));
        let uri = project.map_or_else(|| path.to_owned(), |project| format!("{path}{join}project={project}"));
        let mut request = Request::builder().method(method).uri(uri).header("Host", "incus");
        let bytes = match body {
            Body::Nothing => Bytes::new(),
            Body::Json(value) => {
                request = request.header("Content-Type", "application/json");
                value.to_string().into()
            }
            Body::Put(content) => {
                let (kind, mode, bytes) = match content {
                    Content::File { mode, bytes } => ("file", mode, bytes),
                    Content::Link(target) => ("symlink", 0o777, target.into()),
                    Content::Directory => ("directory", 0o755, Bytes::new()),
                };
                request = request.header("Content-Type", "application/octet-stream").header("X-Incus-type", kind);
                request = request.header("X-Incus-uid", "0").header("X-Incus-gid", "0");
                request = request.header("X-Incus-mode", format!("{mode:04o}"));
                bytes
            }
        };
        let request = request.body(Full::new(bytes)).map_err(io::Error::other)?;
        match &self.place {
            Place::Socket(path) => send(UnixStream::connect(path).await?, request).await,
            Place::Network { host, port, tls } => {
                let tcp = TcpStream::connect((host.as_str(), *port)).await?;
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                send(tls.connect(name, tcp).await?, request).await
            }
        }
    }
}

async fn send<S>(stream: S, request: Request<Full<Bytes>>) -> io::Result<Value>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let body = answer.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        serde_json::from_slice(&body).map_err(io::Error::other)
    };
    // The connection ends with its one answer.
    tokio::select! {
        answer = answer => answer,
        Err(error) = connection => Err(io::Error::other(error)),
    }
}

fn connector(settings: &IncusSettings) -> Result<TlsConnector, IncusError> {
    let IncusSettings { certificate, key, server_certificate, .. } = settings;
    let (Some(certificate), Some(key), Some(server)) = (certificate, key, server_certificate) else {
        return Err(IncusError::NoCertificate);
    };
    let read = |path: &PathBuf| std::fs::read(path).map_err(failed("read", path));
    let unreadable = |path: &PathBuf| IncusError::Unreadable(path.clone());
    let pem = |path: &PathBuf| {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
        found.ok().filter(|found| !found.is_empty()).ok_or_else(|| unreadable(path))
    };
    let shown = pem(server)?.swap_remove(0);
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| unreadable(key))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let pinned = Pinned { shown, provider: Arc::clone(&provider) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(IncusError::Tls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pinned))
        .with_client_auth_cert(pem(certificate)?, private)
        .map_err(IncusError::Tls)?;
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The server is authenticated by its certificate alone: Incus signs its own, and its names cannot be verified.
#[derive(Debug)]
struct Pinned {
    shown: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *end_entity == self.shown {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
