//! A member's address and credentials → a connection to its etcd, or exactly why not.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, StatusResponse};
use futures::future::{BoxFuture, select_ok};
use raftsman_api::deadline::{Deadlined, Limit};
use raftsman_api::tls::{ClientTls, ConnectError, Identity, connect, provider, roots};
use raftsman_core::desired::CLIENT_PORT;
use raftsman_core::observed::{ClusterId, MemberId};
use raftsman_core::spec::EtcdVersion;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, SignatureScheme};
use rustls_pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tonic::codegen::http::{HeaderValue, Request};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt};

/// How long a member may take to answer one call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// A database of the greatest size that etcd suggests is compacted and rewritten in less, also on a slow disk.
pub const REWRITE: Duration = Duration::from_secs(1800);
/// The limit on the channel fires first: its error names the member and the call.
const SLACK: Duration = Duration::from_millis(500);

/// A key that no client writes: a linearizable read of it proves that there is a quorum, and returns the revision.
pub const PROBE_KEY: &str = "raftsman/probe";

/// etcd's superuser.
const ROOT: &str = "root";
/// The header that etcd looks for a client's token in.
const TOKEN: &str = "token";

/// Why there is no connection to a member.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No connection.
    #[error("no connection to etcd: {}", chain(.0))]
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
    /// etcd sent an invalid answer.
    #[error("etcd's answer is not understood: {0}")]
    Unclear(String),
    /// No answer in time.
    #[error("no answer from etcd within {} s", .0.as_secs())]
    Timeout(Duration),
}

impl EtcdError {
    /// Whether nothing listens there.
    pub fn refused(&self) -> bool {
        matches!(self, Self::Connect(ConnectError::Refused { .. }))
    }

    /// Whether etcd rejected the call as unauthenticated.
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

    /// Whether the TLS handshake failed because the server did not accept our certificate.
    pub fn turned_away(&self) -> bool {
        match self {
            Self::Connect(ConnectError::Untrusted { .. }) => true,
            Self::Call(etcd_client::Error::GRpcStatus(status)) => {
                causes(status).any(|cause| cause.to_string().contains("received fatal alert"))
            }
            _ => false,
        }
    }

    /// Whether etcd accepts connections and does not answer in time.
    pub fn silent(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Connect(ConnectError::Timeout { .. }))
    }

    /// Whether etcd does not accept the password.
    pub fn denied(&self) -> bool {
        matches!(self, Self::Call(etcd_client::Error::GRpcStatus(status))
            if status.message().contains("authentication failed"))
    }

    /// Whether a new token is needed: the member that issued it was restarted, or users were changed since.
    pub fn token_lost(&self) -> bool {
        let lost = ["invalid auth token", "user name is empty", "revision of auth store is old"];
        matches!(self, Self::Call(etcd_client::Error::GRpcStatus(status))
            if lost.iter().any(|text| status.message().contains(text)))
    }

    /// Whether etcd refuses because the member is a learner: it answers serializable reads and its status, no more.
    pub fn learner(&self) -> bool {
        matches!(self, Self::Call(etcd_client::Error::GRpcStatus(status))
            if status.message().contains("not supported for learner"))
    }

    /// Whether etcd says that its members have not been connected for long enough, or a learner is not close enough yet.
    pub fn too_early(&self) -> bool {
        matches!(self, Self::Call(etcd_client::Error::GRpcStatus(status))
            if status.message().contains("unhealthy cluster") || status.message().contains("in sync with leader"))
    }

    /// Whether etcd says that this revision is compacted.
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

/// All of them in one line.
fn chain(error: &ConnectError) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn explain(error: &etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) => status.message().to_owned(),
        other => other.to_string(),
    }
}

/// The client certificate and password with which raftsman authenticates to etcd.
#[derive(Clone)]
pub struct Credentials {
    tls: Arc<ClientConfig>,
    password: Option<SecretString>,
    /// Members that can be asked for a token where the one that is dialled is a learner.
    members: Arc<[Endpoint]>,
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
        Ok(Self { tls: Arc::new(tls), password, members: Arc::default() })
    }

    /// The same for a cluster that may still be closed to clients: a listener that asks for a certificate of the peers' CA
    /// is shown this one. `closed` decides where a listener's CAs have the same name.
    pub fn with_bootstrap(
        &self,
        identity: Option<&Identity>,
        bootstrap: &Identity,
        closed: bool,
    ) -> Result<Self, EtcdError> {
        let own = identity.map(Certificate::new).transpose()?;
        let certificates = Certificates { own, bootstrap: Certificate::new(bootstrap)?, closed };
        let mut tls = (*self.tls).clone();
        tls.client_auth_cert_resolver = Arc::new(certificates);
        Ok(Self { tls: Arc::new(tls), ..self.clone() })
    }

    /// The same without the password.
    #[must_use]
    pub fn without_password(&self) -> Self {
        Self { tls: Arc::clone(&self.tls), password: None, members: Arc::clone(&self.members) }
    }

    /// The same for a cluster with these members: a learner does not authenticate, and takes the token of a voter.
    #[must_use]
    pub fn with_members(&self, members: impl IntoIterator<Item = Endpoint>) -> Self {
        Self { members: members.into_iter().collect(), ..self.clone() }
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

/// A certificate to be shown, and the name of the authority that signed it.
#[derive(Debug)]
struct Certificate {
    certified: Arc<CertifiedKey>,
    issuer: Vec<u8>,
}

impl Certificate {
    fn new(identity: &Identity) -> Result<Self, EtcdError> {
        let certified = CertifiedKey::from_der(identity.chain.clone(), identity.key.clone_key(), &provider())?;
        let leaf = certified.end_entity_cert()?;
        let parsed = x509_parser::parse_x509_certificate(leaf)
            .map_err(|_| EtcdError::Rustls(rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding)))?;
        Ok(Self { issuer: parsed.1.issuer().as_raw().to_vec(), certified: Arc::new(certified) })
    }
}

/// The certificate that a listener asks for: it names the CAs that it accepts.
#[derive(Debug)]
struct Certificates {
    own: Option<Certificate>,
    bootstrap: Certificate,
    closed: bool,
}

impl ResolvesClientCert for Certificates {
    fn resolve(&self, authorities: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let named = |certificate: &&Certificate| authorities.contains(&certificate.issuer.as_slice());
        let (own, bootstrap) = (self.own.as_ref(), Some(&self.bootstrap));
        let [first, second] = if self.closed { [bootstrap, own] } else { [own, bootstrap] };
        let chosen = first.filter(named).or_else(|| second.filter(named)).or(own);
        chosen.map(|certificate| Arc::clone(&certificate.certified))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Where a member listens for clients, and the name that its certificate must contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Where.
    pub at: SocketAddr,
    /// The name in the server's certificate.
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

/// Connects to one member, and to that member only. With a password in the credentials it authenticates as `root`: at that
/// member, or where it is a learner, which does not authenticate, at another one, whose token is valid everywhere.
pub fn dial(to: impl Into<Endpoint>, credentials: &Credentials) -> BoxFuture<'_, Result<Client, EtcdError>> {
    let to = to.into();
    Box::pin(async move {
        let channel = custom(connection(&to, credentials).await?);
        let Some(password) = &credentials.password else { return client(channel, None).await };
        let user = ConnectOptions::new().with_user(ROOT, password.expose_secret());
        match client(channel, Some(user)).await {
            Err(refused) if refused.learner() => {
                let token = token_of_a_voter(&to, credentials, password).await.ok_or(refused)?;
                client(bearing(connection(&to, credentials).await?, token), None).await
            }
            outcome => outcome,
        }
    })
}

/// A connection on which calls that change something have a limit.
async fn connection(to: &Endpoint, credentials: &Credentials) -> Result<Deadlined, EtcdError> {
    let tls = ClientTls::etcd((*credentials.tls).clone(), to.name.clone()).with_timeout(CALL_TIMEOUT);
    let channel = connect(to.at, &tls).await?.channel;
    Ok(Deadlined::new(channel, &format!("etcd at {}", to.at), limit))
}

fn custom(connection: Deadlined) -> Channel {
    Channel::Custom(BoxCloneSyncService::new(ServiceExt::<Request<Body>>::map_err(connection, BoxError::from)))
}

async fn client(channel: Channel, options: Option<ConnectOptions>) -> Result<Client, EtcdError> {
    bounded(async { Ok(Client::from_channel(channel, options).await?) }).await
}

/// All other members are asked at the same time: one that hangs must not keep the rest waiting.
async fn token_of_a_voter(
    learner: &Endpoint,
    credentials: &Credentials,
    password: &SecretString,
) -> Option<HeaderValue> {
    let others = credentials.members.iter().filter(|other| *other != learner);
    let asked = others.map(|other| {
        Box::pin(async move {
            let mut auth = client(custom(connection(other, credentials).await?), None).await?.auth_client();
            let word = password.expose_secret().to_owned();
            bounded(async move { Ok(auth.authenticate(ROOT.to_owned(), word).await?.token().to_owned()) }).await
        })
    });
    let asked: Vec<_> = asked.collect();
    if asked.is_empty() {
        return None;
    }
    let (token, _) = select_ok(asked).await.ok()?;
    let mut token = HeaderValue::from_str(&token).ok()?;
    token.set_sensitive(true);
    Some(token)
}

/// A connection on which every call has this token.
fn bearing(connection: Deadlined, token: HeaderValue) -> Channel {
    let bearing = ServiceExt::<Request<Body>>::map_err(connection, BoxError::from);
    let bearing = bearing.map_request(move |mut request: Request<Body>| {
        request.headers_mut().insert(TOKEN, token.clone());
        request
    });
    Channel::Custom(BoxCloneSyncService::new(bearing))
}

/// How long a call that changes something may take. Calls that read are limited where they are made: some of them
/// last.
fn limit(call: &str) -> Limit {
    let answer = match call {
        "Put"
        | "DeleteRange"
        | "MemberAdd"
        | "MemberRemove"
        | "MemberUpdate"
        | "MemberPromote"
        | "MoveLeader"
        | "Alarm"
        | "Downgrade"
        | "AuthEnable"
        | "AuthDisable"
        | "UserAdd"
        | "UserDelete"
        | "UserChangePassword"
        | "UserGrantRole"
        | "UserRevokeRole"
        | "RoleAdd"
        | "RoleDelete"
        | "RoleGrantPermission"
        | "RoleRevokePermission" => Some(CALL_TIMEOUT),
        "Defragment" | "Compact" => Some(REWRITE),
        _ => None,
    };
    Limit { answer, silence: None, prompt: false }
}

/// What a member says of itself in its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its id.
    pub member: MemberId,
    /// Its revision.
    pub revision: i64,
    /// Its version.
    pub version: EtcdVersion,
}

impl Answered {
    /// Reads it; what a member does not say is an error, never a default.
    pub fn read(status: &StatusResponse) -> Result<Self, EtcdError> {
        let header = status.header().map(|header| (header.cluster_id(), header.member_id(), header.revision()));
        Self::of(status.version(), header)
    }

    fn of(version: &str, header: Option<(u64, u64, i64)>) -> Result<Self, EtcdError> {
        let (cluster, member, revision) = header
            .filter(|(cluster, member, _)| *cluster != 0 && *member != 0)
            .ok_or_else(|| EtcdError::Unclear("it does not say which member of which cluster it is".to_owned()))?;
        let version = EtcdVersion::parse(version)
            .map_err(|_| EtcdError::Unclear(format!("it says that its version is `{version}`")))?;
        Ok(Self { cluster: ClusterId(cluster), member: MemberId(member), revision, version })
    }
}

/// Puts a limit on the time that a call to etcd may take.
///
/// Boxed: calls to etcd are large futures, and every future that awaits one would be as large.
pub fn bounded<'a, T: 'a>(
    call: impl Future<Output = Result<T, EtcdError>> + Send + 'a,
) -> BoxFuture<'a, Result<T, EtcdError>> {
    within(CALL_TIMEOUT + SLACK, call)
}

/// The same for a call that may take longer than others.
pub fn within<'a, T: 'a>(
    limit: Duration,
    call: impl Future<Output = Result<T, EtcdError>> + Send + 'a,
) -> BoxFuture<'a, Result<T, EtcdError>> {
    Box::pin(async move { tokio::time::timeout(limit, call).await.unwrap_or(Err(EtcdError::Timeout(limit))) })
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    fn credentials() -> Credentials {
        let made = rcgen::generate_simple_self_signed(vec!["ca".to_owned()]).unwrap();
        Credentials::new(&made.cert.pem(), None, None).unwrap()
    }

    async fn error_at(at: SocketAddr) -> String {
        dial(at, &credentials()).await.map(|_| ()).unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_refused_connection_names_etcd() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let expected = format!(
            "no connection to etcd: {at}: connection refused: etcd does not listen there; `raftsman logs` shows why"
        );
        assert_eq!(error_at(at).await, expected);
    }

    #[tokio::test]
    async fn a_failed_handshake_names_etcd_and_the_cause() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").await.unwrap();
        });
        let error = error_at(at).await;
        let described = format!(
            "no connection to etcd: {at}: the TLS handshake with etcd failed: expected a server certificate for 127.0.0.1 \
             of the clients CA: received corrupt message of type InvalidContentType"
        );
        assert_eq!(error, described);
    }

    #[test]
    fn what_a_member_does_not_say_is_no_default() {
        let whole = Answered::of("3.6.15", Some((7, 8, 9))).expect("an answer");
        assert_eq!((whole.cluster, whole.member, whole.revision), (ClusterId(7), MemberId(8), 9));
        for (version, header) in
            [("3.6.15", None), ("3.6.15", Some((0, 8, 9))), ("", Some((7, 8, 9))), ("not yet", Some((7, 8, 9)))]
        {
            let unclear = Answered::of(version, header).expect_err("no answer");
            assert!(matches!(unclear, EtcdError::Unclear(_)), "{version:?} {header:?}: {unclear}");
        }
    }
}
