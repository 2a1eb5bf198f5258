//! A URL and a SHA-256 → the archive in the cache, downloaded once.

use std::fs::{self, DirBuilder, Permissions};
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, Uri, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use raftsman_api::tls::provider;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use rustls_pki_types::pem::PemObject as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::ArtifactError;

/// The wait for the next bytes of a server ends after this time.
const SILENCE: Duration = Duration::from_secs(30);
/// No release of etcd is near this size; a larger answer is rejected.
const LARGEST: u64 = 1024 * 1024 * 1024;
/// Releases are often a redirect away from where they are published.
const REDIRECTS: usize = 5;
/// Where Linux distributions keep the authorities that they trust.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why there is no archive.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// Not a URL, or not one that is safe to follow.
    #[error("it leads to {0}, which is no https URL")]
    Insecure(String),
    /// No connection.
    #[error("no connection to {0}: {1}")]
    Connect(String, std::io::Error),
    /// HTTP itself.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The server answered with an error status.
    #[error("the server answers {0}")]
    Status(hyper::StatusCode),
    /// Too many redirects.
    #[error("it leads from one place to the next, more than {REDIRECTS} times")]
    Redirects,
    /// The server stopped sending.
    #[error("the server sent nothing for {} s", SILENCE.as_secs())]
    Silent,
    /// The answer is too large.
    #[error("it is larger than 1 GiB")]
    Large,
    /// The system has no trusted authorities.
    #[error("this system has no list of authorities to trust; install ca-certificates, or name one in SSL_CERT_FILE")]
    NoAuthorities,
    /// The list of authorities cannot be used.
    #[error("the system's list of authorities cannot be used: {0}")]
    Authorities(String),
}

/// Where the archive with this SHA-256 is, or will be.
pub(super) fn place(sha256: &str, cache_dir: &Path) -> PathBuf {
    cache_dir.join(format!("{}.tar.gz", sha256.trim().to_ascii_lowercase()))
}

/// Downloads the archive, unless it is there. What has another SHA-256 does not get into the cache.
pub(super) async fn fetch(url: &str, sha256: &str, cache_dir: &Path) -> Result<(), ArtifactError> {
    let target = place(sha256, cache_dir);
    if target.exists() {
        return Ok(());
    }
    let failed = |source| ArtifactError::Unwritable { path: target.clone(), source };
    let refused = |source| ArtifactError::Download { url: url.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(cache_dir).map_err(failed)?;
    let mut file = tempfile::Builder::new()
        .prefix(".tmp-")
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(cache_dir)
        .map_err(failed)?;
    let mut answer = Box::pin(follow(url)).await.map_err(refused)?.into_body();
    let mut context = Context::new(&SHA256);
    let mut bytes = 0;
    loop {
        let frame = tokio::time::timeout(SILENCE, answer.frame()).await;
        let Some(frame) = frame.map_err(|_| refused(DownloadError::Silent))? else { break };
        let frame = frame.map_err(|error| refused(error.into()))?;
        let Some(data) = frame.data_ref() else { continue };
        bytes += data.len() as u64;
        if bytes > LARGEST {
            return Err(refused(DownloadError::Large));
        }
        context.update(data);
        file.write_all(data).map_err(failed)?;
    }
    let found = raftsman_api::hex::encode(context.finish().as_ref());
    let wanted = sha256.trim().to_ascii_lowercase();
    if found != wanted {
        return Err(ArtifactError::OtherDownload { url: url.to_owned(), found, wanted });
    }
    file.as_file().sync_all().map_err(failed)?;
    file.persist(&target).map_err(|error| failed(error.error))?;
    fs::File::open(cache_dir).and_then(|dir| dir.sync_all()).map_err(failed)
}

async fn follow(url: &str) -> Result<Response<Incoming>, DownloadError> {
    let mut place = url.to_owned();
    for _ in 0..=REDIRECTS {
        let answer =
            tokio::time::timeout(SILENCE, Box::pin(get(&place))).await.map_err(|_| DownloadError::Silent)??;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let next = answer.headers().get(header::LOCATION).and_then(|place| place.to_str().ok());
        match next.filter(|_| answer.status().is_redirection()) {
            // A path of the same server.
            Some(path) if path.starts_with('/') => {
                let origin = place.find("://").and_then(|at| place[at + 3..].find('/').map(|end| at + 3 + end));
                place.truncate(origin.unwrap_or(place.len()));
                place.push_str(path);
            }
            Some(next) => next.clone_into(&mut place),
            None => return Err(DownloadError::Status(answer.status())),
        }
    }
    Err(DownloadError::Redirects)
}

async fn get(url: &str) -> Result<Response<Incoming>, DownloadError> {
    let insecure = || DownloadError::Insecure(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| insecure())?;
    let host = uri.host().ok_or_else(insecure)?;
    let bare = host.trim_matches(['[', ']']);
    let here = bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let secure = match uri.scheme_str() {
        Some("https") => true,
        Some("http") if here => false,
        _ => return Err(insecure()),
    };
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let failed = |error| DownloadError::Connect(host.to_owned(), error);
    let tcp = TcpStream::connect((bare, port)).await.map_err(failed)?;
    if !secure {
        return ask(tcp, &uri, host).await;
    }
    let name = ServerName::try_from(bare.to_owned()).map_err(|_| insecure())?;
    let tls = TlsConnector::from(Arc::new(trusting_the_system()?)).connect(name, tcp).await.map_err(failed)?;
    ask(tls, &uri, host).await
}

async fn ask<S>(stream: S, uri: &Uri, host: &str) -> Result<Response<Incoming>, DownloadError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The connection ends with the body, which also reports its errors.
    tokio::spawn(async move { drop(connection.await) });
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.port_u16().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let request = Request::get(path)
        .header(header::HOST, host)
        .header(header::USER_AGENT, concat!("raftsman/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new());
    let request = request.map_err(|_| DownloadError::Insecure(uri.to_string()))?;
    Ok(sender.send_request(request).await?)
}

fn trusting_the_system() -> Result<ClientConfig, DownloadError> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let found = named.into_iter().chain(BUNDLES.map(PathBuf::from)).find_map(|path| fs::read(path).ok());
    let bundle = found.ok_or(DownloadError::NoAuthorities)?;
    let mut roots = RootCertStore::empty();
    let certificates = rustls_pki_types::CertificateDer::pem_slice_iter(&bundle);
    // Bundles hold certificates that are too old to parse; the others are used.
    let (good, _) = roots.add_parsable_certificates(certificates.filter_map(Result::ok));
    if good == 0 {
        return Err(DownloadError::NoAuthorities);
    }
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| DownloadError::Authorities(error.to_string()))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
