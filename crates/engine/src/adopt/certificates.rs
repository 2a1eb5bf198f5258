//! A port that speaks TLS → the certificate that it shows, whatever its issuer.

use std::sync::{Arc, Mutex, PoisonError};

use raftsman_api::tls::{Identity, provider};
use raftsman_core::adopt::Certificate;
use raftsman_etcd::{CALL_TIMEOUT, Credentials, Endpoint};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::pki;

/// Records the server's certificate and accepts any: no request goes over such a connection.
#[derive(Debug, Default)]
struct Witness(Mutex<Option<CertificateDer<'static>>>);

impl ServerCertVerifier for Witness {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(end_entity.clone().into_owned());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// The certificate that is shown there.
pub(super) async fn seen(to: Option<&Endpoint>, identity: Option<&Identity>) -> Result<Certificate, String> {
    let to = to.ok_or("it has no address that can be connected to")?;
    let witness = Arc::new(Witness::default());
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?.dangerous();
    let builder = builder.with_custom_certificate_verifier(Arc::<Witness>::clone(&witness));
    let config = match identity.cloned() {
        Some(Identity { chain, key }) => {
            builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
        }
        None => builder.with_no_client_auth(),
    };
    let handshake = async {
        let tcp = TcpStream::connect(to.at).await?;
        TlsConnector::from(Arc::new(config)).connect(to.name.clone(), tcp).await
    };
    let outcome = tokio::time::timeout(CALL_TIMEOUT, handshake).await;
    // A server that rejects our handshake has shown its certificate before.
    let shown = witness.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (shown, outcome) {
        (Some(der), _) => pki::purposes(&der).map_err(|error| error.to_string()),
        (None, Ok(Err(error))) => Err(error.to_string()),
        (None, Ok(Ok(_))) => Err("it showed none".to_owned()),
        (None, Err(_)) => Err("no answer".to_owned()),
    }
}

/// Whether this authority signed the certificate that is shown there; nothing when that is unknown.
pub(super) async fn trusted(to: &Endpoint, ca_pem: &str) -> Option<bool> {
    let credentials = Credentials::new(ca_pem, None, None).ok()?;
    let handshake = async {
        let tcp = TcpStream::connect(to.at).await?;
        credentials.connector().connect(to.name.clone(), tcp).await
    };
    match tokio::time::timeout(CALL_TIMEOUT, handshake).await.ok()? {
        Ok(_) => Some(true),
        Err(error) => match error.to_string() {
            // The name is checked only after the signature was found valid.
            text if text.contains("NotValidForName") || text.contains("not valid for name") => Some(true),
            text if text.contains("UnknownIssuer") || text.contains("BadSignature") => Some(false),
            _ => None,
        },
    }
}
