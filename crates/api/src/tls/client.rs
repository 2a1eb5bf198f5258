//! address, identity, the server name to expect → a channel to the agent there, or at once the reason why not.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::AsyncBufReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{ALPN, Identity, TlsError, machine_name, provider, roots};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The client's side of TLS: the certificate that it presents, and the server certificate that it expects.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    timeout: Duration,
    service: Service,
}

/// What listens at an address, so that an error names the service that was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// An agent, on port 2378. It sends its HTTP/2 settings as soon as it has accepted the client.
    Agent,
    /// etcd, on port 2379. It waits for the client to begin.
    Etcd,
}

impl Service {
    fn refused(self) -> &'static str {
        match self {
            Self::Agent => "no agent listens there; start the machine, or look at its agent.log",
            Self::Etcd => "etcd does not listen there; `raftsman logs` shows why",
        }
    }

    fn untrusted(self, expected: &str) -> String {
        match self {
            Self::Agent => format!("not the agent of {expected}, or it does not accept our certificate"),
            Self::Etcd => {
                format!(
                    "the TLS handshake with etcd failed: expected a server certificate for {expected} of the clients CA"
                )
            }
        }
    }
}

/// A channel to an agent, and the certificate that the agent showed.
#[derive(Clone, Debug)]
pub struct Connected {
    /// For `AgentClient::new`.
    pub channel: Channel,
    /// The server's leaf certificate on this connection: what a claim's proof must be bound to.
    pub server_certificate: CertificateDer<'static>,
}

/// Why there is no connection to an agent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing listens there.
    #[error("{address}: connection refused: {}", service.refused())]
    Refused {
        /// What should listen.
        service: Service,
        /// Where.
        address: SocketAddr,
    },
    /// No answer in time.
    #[error("{address}: no answer within {} s: the machine is off, or the network drops the packets", timeout.as_secs_f32())]
    Timeout {
        /// Where.
        address: SocketAddr,
        /// How long it was waited for.
        timeout: Duration,
    },
    /// The network failed otherwise.
    #[error("{address}: cannot connect")]
    Network {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A server listens, but it is not the expected service, or it rejects our certificate.
    #[error("{address}: {}", service.untrusted(expected))]
    Untrusted {
        /// What was expected.
        service: Service,
        /// Where.
        address: SocketAddr,
        /// The server name that was expected there.
        expected: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The HTTP/2 layer failed.
    #[error("{address}: the connection broke while it was set up")]
    Transport {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: tonic::transport::Error,
    },
}

impl ClientTls {
    /// For an agent that belongs to the fleet: its certificate must come from the fleet's CA and name the machine.
    pub fn claimed(identity: &Identity, fleet_ca_pem: &str, machine: &str, fleet_id: &str) -> Result<Self, TlsError> {
        let verifier = WebPkiServerVerifier::builder_with_provider(roots(fleet_ca_pem)?, provider())
            .build()
            .map_err(TlsError::ClientVerifier)?;
        Self::new(identity, Arc::new(Ended { verifier }), machine, fleet_id)
    }

    /// For an agent that was never claimed: any certificate will do, and the claim's proof decides. Ask nothing but
    /// `Claim` and `FinishClaim` over such a channel.
    pub fn unclaimed(identity: &Identity, machine: &str, fleet_id: &str) -> Result<Self, TlsError> {
        let verifier = Arc::new(FirstSeen { provider: provider(), seen: Mutex::new(None) });
        Self::new(identity, verifier, machine, fleet_id)
    }

    /// For etcd: what to trust and which name to expect is all in the arguments.
    pub fn etcd(mut config: ClientConfig, name: ServerName<'static>) -> Self {
        config.alpn_protocols = vec![ALPN.to_vec()];
        Self { config: Arc::new(config), name, timeout: CONNECT_TIMEOUT, service: Service::Etcd }
    }

    /// The same with another limit on the time for connecting (3 s by default).
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn new(
        identity: &Identity,
        verifier: Arc<dyn ServerCertVerifier>,
        machine: &str,
        fleet_id: &str,
    ) -> Result<Self, TlsError> {
        let name = machine_name(machine, fleet_id);
        let server_name = ServerName::try_from(name.clone()).map_err(|_| TlsError::Name { name })?;
        let Identity { chain, key } = identity.clone();
        let what = "client certificate or key";
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|source| TlsError::Rejected { what, source })?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(chain, key)
            .map_err(|source| TlsError::Rejected { what, source })?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session shows no certificate, and the claim is bound to the certificate.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self { config: Arc::new(config), name: server_name, timeout: CONNECT_TIMEOUT, service: Service::Agent })
    }
}

/// Connects to the agent, and fails at once when it cannot: no hidden retries. When the connection breaks later, the
/// next call on the channel connects once more and fails at once if that fails.
pub async fn connect(address: SocketAddr, tls: &ClientTls) -> Result<Connected, ConnectError> {
    let (server_certificate, stream) = dial(address, tls).await?;
    let first = Arc::new(Mutex::new(Some(stream)));
    let tls = tls.clone();
    let connector = tower::service_fn(move |_| {
        let kept = first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let tls = tls.clone();
        async move {
            match kept {
                Some(stream) => Ok(TokioIo::new(stream)),
                None => dial(address, &tls).await.map(|(_, stream)| TokioIo::new(stream)),
            }
        }
    });
    // The address selects the server and its certificate authenticates it: tonic needs this name, nothing uses it.
    let channel = Endpoint::from_static("http://agent.raftsman")
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .connect_with_connector(connector)
        .await
        .map_err(|source| ConnectError::Transport { address, source })?;
    Ok(Connected { channel, server_certificate })
}

async fn dial(
    address: SocketAddr,
    tls: &ClientTls,
) -> Result<(CertificateDer<'static>, TlsStream<TcpStream>), ConnectError> {
    let limit = tls.timeout;
    timeout(limit, handshake(address, tls)).await.unwrap_or(Err(ConnectError::Timeout { address, timeout: limit }))
}

async fn handshake(
    address: SocketAddr,
    tls: &ClientTls,
) -> Result<(CertificateDer<'static>, TlsStream<TcpStream>), ConnectError> {
    let service = tls.service;
    let network = |source: io::Error| match source.kind() {
        io::ErrorKind::ConnectionRefused => ConnectError::Refused { service, address },
        _ => ConnectError::Network { address, source },
    };
    let untrusted =
        |source| ConnectError::Untrusted { service, address, expected: tls.name.to_str().into_owned(), source };
    let tcp = TcpStream::connect(address).await.map_err(network)?;
    tcp.set_nodelay(true).map_err(network)?;
    let mut stream =
        TlsConnector::from(Arc::clone(&tls.config)).connect(tls.name.clone(), tcp).await.map_err(untrusted)?;
    // In TLS 1.3 the server verifies our certificate after our side of the handshake is done. It sends its HTTP/2
    // settings once it has accepted us: waiting for them shows a rejection here and not in some later call.
    if service == Service::Agent && stream.fill_buf().await.map_err(untrusted)?.is_empty() {
        return Err(untrusted(io::ErrorKind::UnexpectedEof.into()));
    }
    let (_, connection) = stream.get_ref();
    if connection.alpn_protocol() != Some(ALPN) {
        return Err(untrusted(io::Error::other("the server does not speak HTTP/2")));
    }
    let certificate = connection
        .peer_certificates()
        .and_then(<[_]>::first)
        .map(|certificate| certificate.clone().into_owned())
        .ok_or_else(|| untrusted(io::Error::other("the server showed no certificate")))?;
    Ok((certificate, stream))
}

/// How long after its expiry an agent's certificate is still accepted, to renew it.
const GRACE: Duration = Duration::from_secs(180 * 24 * 3600);

/// Accepts an agent's certificate of the fleet's CA for a while after its expiry: otherwise no operator could reach the
/// agent to renew it. All else is checked as of its last moment; the key never left the machine.
#[derive(Debug)]
struct Ended {
    verifier: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Ended {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let end = X509Certificate::from_der(end_entity).ok().map(|(_, leaf)| leaf.validity().not_after.timestamp());
        let end = end.and_then(|end| u64::try_from(end).ok()).unwrap_or(u64::MAX);
        let late = now.as_secs().saturating_sub(end);
        let at = match late > 0 && late < GRACE.as_secs() {
            true => UnixTime::since_unix_epoch(Duration::from_secs(end)),
            false => now,
        };
        self.verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, at)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Accepts whichever certificate comes first and from then on only that one, so that what was proved on the first
/// connection holds on a later one. That the server holds the certificate's key is checked as always.
#[derive(Debug)]
struct FirstSeen {
    provider: Arc<CryptoProvider>,
    seen: Mutex<Option<CertificateDer<'static>>>,
}

impl ServerCertVerifier for FirstSeen {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let first = seen.get_or_insert_with(|| end_entity.clone().into_owned());
        if first.as_ref() == end_entity.as_ref() {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
