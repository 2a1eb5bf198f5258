//! A member's address and credentials → a connection to its etcd, or exactly why not.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use futures::future::BoxFuture;
use raftsman_api::tls::{ClientTls, ConnectError, Identity, connect, provider, roots};
use raftsman_core::desired::CLIENT_PORT;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use tokio_rustls::TlsConnector;

/// How long a member may take to answer one call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// A key that nobody writes: reading it through a majority proves that there is one, and shows how far the data is.
pub const PROBE_KEY: &str = "raftsman/probe";

/// Why there is no connection to a member.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No connection.
    #[error("no connection to etcd: {0}")]
    Connect(#[from] ConnectError),
    /// The credentials cannot be used for TLS.
    #[error(transparent)]
    Tls(#[from] raftsman_api::tls::TlsError),
    /// rustls refuses the configuration.
    #[error("the client certificate cannot be used: {0}")]
    Rustls(#[from] rustls::Error),
    /// etcd answered with an error.
    #[error("{}", explain(.0))]
    Call(#[from] etcd_client::Error),
    /// No answer in time.
    #[error("no answer from etcd within {} s", .0.as_secs())]
    Timeout(Duration),
}

impl EtcdError {
    /// Whether nothing listens there.
    pub fn refused(&self) -> bool {
        matches!(self, Self::Connect(ConnectError::Refused { .. }))
    }

    /// Whether etcd says that it does not know who is asking.
    pub fn unauthenticated(&self) -> bool {
        match self {
            Self::Call(etcd_client::Error::GRpcStatus(status)) => {
                let text = status.message();
                text.contains("user name is empty")
                    || text.contains("invalid auth token")
                    || text.contains("permission denied")
                    || status.code() == tonic::Code::Unauthenticated
            }
            _ => false,
        }
    }

    /// Whether TLS itself turned us away: the server did not accept our certificate.
    pub fn turned_away(&self) -> bool {
        match self {
            Self::Connect(ConnectError::Untrusted { .. }) => true,
            Self::Call(etcd_client::Error::GRpcStatus(status)) => {
                causes(status).any(|cause| cause.to_string().contains("received fatal alert"))
            }
            _ => false,
        }
    }

    /// Whether the token has to be fetched anew: it died with the member that gave it.
    pub fn token_lost(&self) -> bool {
        matches!(self, Self::Call(etcd_client::Error::GRpcStatus(status))
            if status.message().contains("invalid auth token") || status.message().contains("user name is empty"))
    }

    /// Whether etcd says that its members have not been connected for long enough, or a learner is not close enough yet.
    pub fn too_early(&self) -> bool {
        matches!(self, Self::Call(etcd_client::Error::GRpcStatus(status))
            if status.message().contains("unhealthy cluster") || status.message().contains("in sync with leader"))
    }

    /// Whether etcd says that this revision was dropped already.
    pub fn compacted(&self) -> bool {
        matches!(self, Self::Call(etcd_client::Error::GRpcStatus(status))
            if status.message().contains("revision has been compacted"))
    }

    /// Whether etcd says that this exists already.
    pub fn already_there(&self) -> bool {
        matches!(self, Self::Call(etcd_client::Error::GRpcStatus(status))
            if status.message().contains("already exists") || status.message().contains("already enabled"))
    }
}

/// An error, and all that caused it.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'e (dyn Error + 'static)| (*error).source())
}

fn explain(error: &etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) => status.message().to_owned(),
        other => other.to_string(),
    }
}

/// Who we are to etcd.
#[derive(Clone)]
pub struct Credentials {
    tls: Arc<ClientConfig>,
    password: Option<SecretString>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("password", &self.password.is_some()).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Trusts this CA, and shows this certificate if there is one.
    pub fn new(ca_pem: &str, identity: Option<&Identity>, password: Option<SecretString>) -> Result<Self, EtcdError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots(ca_pem)?);
        let tls = match identity {
            Some(identity) => builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())?,
            None => builder.with_no_client_auth(),
        };
        Ok(Self { tls: Arc::new(tls), password })
    }

    /// The same without the password.
    #[must_use]
    pub fn without_password(&self) -> Self {
        Self { tls: Arc::clone(&self.tls), password: None }
    }

    /// For a bare handshake.
    pub fn connector(&self) -> TlsConnector {
        TlsConnector::from(Arc::clone(&self.tls))
    }

    /// For a handshake with an HTTP/2 server.
    pub fn http2_connector(&self) -> TlsConnector {
        let mut config = (*self.tls).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsConnector::from(Arc::new(config))
    }
}

/// Where a member listens for clients, and whom its certificate must name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Where.
    pub at: SocketAddr,
    /// Who.
    pub name: ServerName<'static>,
}

impl Endpoint {
    /// A place whose certificate must have this name; nothing when it is none.
    pub fn named(at: SocketAddr, host: &str) -> Option<Self> {
        ServerName::try_from(host.to_owned()).ok().map(|name| Self { at, name })
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(at: SocketAddr) -> Self {
        Self { at, name: ServerName::from(at.ip()) }
    }
}

impl From<IpAddr> for Endpoint {
    fn from(address: IpAddr) -> Self {
        SocketAddr::new(address, CLIENT_PORT).into()
    }
}

/// Connects to one member, and to that member only. With a password in the credentials it logs in as `root`.
pub async fn dial(to: impl Into<Endpoint>, credentials: &Credentials) -> Result<Client, EtcdError> {
    let Endpoint { at, name } = to.into();
    let tls = ClientTls::custom((*credentials.tls).clone(), name).with_timeout(CALL_TIMEOUT);
    let connected = connect(at, &tls).await?;
    let options =
        credentials.password.as_ref().map(|password| ConnectOptions::new().with_user("root", password.expose_secret()));
    bounded(async { Ok(Client::from_channel(etcd_client::Channel::Tonic(connected.channel), options).await?) }).await
}

/// Puts a limit on the time that a call to etcd may take.
///
/// What it hands back is small: calls to etcd are large, and everybody who waits for one would be.
pub fn bounded<'a, T: 'a>(
    call: impl Future<Output = Result<T, EtcdError>> + Send + 'a,
) -> BoxFuture<'a, Result<T, EtcdError>> {
    within(CALL_TIMEOUT, call)
}

/// The same for a call that may take longer than others.
pub fn within<'a, T: 'a>(
    limit: Duration,
    call: impl Future<Output = Result<T, EtcdError>> + Send + 'a,
) -> BoxFuture<'a, Result<T, EtcdError>> {
    Box::pin(async move { tokio::time::timeout(limit, call).await.unwrap_or(Err(EtcdError::Timeout(limit))) })
}
