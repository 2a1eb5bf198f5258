//! the first connection of a new machine → proof of the token, then the agent's own certificate.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use raftsman_api::claim::{self, JoinToken, MIN_NONCE_BYTES};
use raftsman_api::tls::{self, Identity, Peer, ServerTls, TlsError};
use raftsman_api::v1;
use raftsman_core::boot::Boot;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};

use crate::access::certs::{self, CertsError, Store};
use crate::access::{Access, AccessError};
use crate::machine::boot::{self, BootError};
use crate::root::Root;

/// Why a machine is not claimed, or its certificate not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// It has an owner.
    #[error("already claimed by fleet {fleet} ({fleet_id})")]
    Claimed {
        /// The owner's name.
        fleet: String,
        /// The owner's id.
        fleet_id: String,
    },
    /// It was not claimed in time.
    #[error("the time to claim this machine ended at {deadline}: delete the machine and create it again")]
    TooLate {
        /// The deadline in the boot data.
        deadline: Timestamp,
    },
    /// The token is gone, but there is no certificate.
    #[error("this machine has no join token any more: delete the machine and create it again")]
    NoToken,
    /// A nonce too short to be fresh.
    #[error("the nonce must have at least {MIN_NONCE_BYTES} bytes")]
    ShortNonce,
    /// The access settings are invalid.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The boot data is at fault.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// A token that cannot be used.
    #[error("the boot data's join token cannot be used")]
    Token(#[from] claim::ClaimError),
    /// Keys or certificates are at fault.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// TLS does not accept them.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The certificate would lock every client out.
    #[error(
        "the agent's certificate must come from the fleet's CA, be valid now by this machine's clock, and name {name}"
    )]
    Unfit {
        /// The name it must bear.
        name: String,
        /// Why it does not fit.
        #[source]
        source: rustls::Error,
    },
    /// The self-signed certificate could not be made.
    #[error("the agent's first certificate could not be made")]
    SelfSigned(#[source] rcgen::Error),
}

/// The fleet that this machine belongs to, and the certificate that it shows.
#[derive(Debug)]
pub struct Claim {
    root: Root,
    boot: Mutex<Boot>,
    store: Store,
    trust: Mutex<Trusted>,
    tls: ServerTls,
    incarnation: String,
}

/// The CAs of the fleet, as this agent received them last.
#[derive(Clone, Debug)]
struct Trusted {
    pem: String,
    roots: Arc<RootCertStore>,
    /// What the report says of it; none where it is what the boot data says.
    digest: Option<String>,
}

impl Claim {
    /// The claim as the disk records it: a certificate means that it is claimed.
    pub fn open(root: &Root, mut boot: Boot, incarnation: String) -> Result<Self, ClaimError> {
        let store = Store::new(root.agent_tls());
        let access = Access::read(root)?;
        let pem = access.as_ref().map_or_else(|| boot.fleet_ca_pem.clone(), |access| access.trust_pem.clone());
        let roots = tls::roots(&pem)?;
        let identity = match store.identity()? {
            Some(identity) => {
                if boot.join_token.is_some() {
                    // The agent died between storing the certificate and deleting the token.
                    boot::forget_token(&mut boot, root)?;
                }
                identity
            }
            None => self_signed(&pending(&store)?, &boot.machine)?,
        };
        let tls = ServerTls::new(identity, Arc::clone(&roots))?;
        if let Some(access) = &access {
            tls.accept_only(Arc::clone(&roots), access.revoked.clone())?;
        }
        let trust = Mutex::new(Trusted { pem, roots, digest: access.map(|access| access.digest()) });
        Ok(Self { root: root.clone(), boot: Mutex::new(boot), store, trust, tls, incarnation })
    }

    /// What connections are accepted with.
    pub fn tls(&self) -> &ServerTls {
        &self.tls
    }

    /// The machine's incarnation.
    pub fn incarnation(&self) -> &str {
        &self.incarnation
    }

    /// The boot data of the machine.
    pub fn boot(&self) -> Boot {
        self.boot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the machine belongs to a fleet permanently.
    pub fn is_claimed(&self) -> bool {
        self.store.current_dir().is_some()
    }

    /// Proves the token on the connection that showed `server`.
    pub fn prove(&self, nonce: &[u8], server: &CertificateDer<'_>) -> Result<v1::ClaimReply, ClaimError> {
        if nonce.len() < MIN_NONCE_BYTES {
            return Err(ClaimError::ShortNonce);
        }
        let mut boot = self.boot.lock().unwrap_or_else(PoisonError::into_inner);
        let token = self.token(&mut boot)?;
        let csr_der = certs::signing_request(&pending(&self.store)?)?;
        Ok(v1::ClaimReply {
            proof: claim::prove(&token, nonce, server, &csr_der),
            csr_der,
            machine: boot.machine.clone(),
            incarnation: self.incarnation.clone(),
        })
    }

    /// Ends the claim: from now on the token is invalid and the machine has an owner.
    pub fn finish(&self, chain_pem: &str) -> Result<(), ClaimError> {
        let mut boot = self.boot.lock().unwrap_or_else(PoisonError::into_inner);
        self.token(&mut boot)?;
        self.check(&boot, chain_pem)?;
        self.store.store(chain_pem, None)?;
        boot::forget_token(&mut boot, &self.root)?;
        self.show()
    }

    /// Renewal: makes a new key.
    pub fn request(&self) -> Result<Vec<u8>, ClaimError> {
        Ok(self.store.request()?)
    }

    /// Renewal: swaps in the new key and its certificate, for new connections.
    pub fn renew(&self, chain_pem: &str) -> Result<(), ClaimError> {
        let boot = self.boot.lock().unwrap_or_else(PoisonError::into_inner);
        self.check(&boot, chain_pem)?;
        self.store.store(chain_pem, None)?;
        self.show()
    }

    /// The agent's certificate, for the report.
    pub fn describe(&self) -> Result<Option<v1::Certificate>, CertsError> {
        self.store.describe(v1::Purpose::Agent, &self.trusted().pem)
    }

    /// Digest of the accepted clients, for the report; none where the boot data defines them.
    pub fn access_digest(&self) -> Option<String> {
        self.trusted().digest
    }

    /// Changes which clients are accepted: `caller` must be among them.
    pub fn set_access(&self, access: &Access, caller: &Peer) -> Result<(), AccessError> {
        let roots = tls::roots(&access.trust_pem)?;
        let accepts = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), tls::provider())
            .build()
            .map_err(TlsError::ClientVerifier)?;
        let [leaf, above @ ..] = caller.client.as_slice() else { return Err(AccessError::LockedOut) };
        let accepted = accepts.verify_client_cert(leaf, above, UnixTime::now()).is_ok();
        if !accepted || access.revoked.contains(&caller.client_key) {
            return Err(AccessError::LockedOut);
        }
        let mut trust = self.trust.lock().unwrap_or_else(PoisonError::into_inner);
        access.write(&self.root)?;
        self.tls.accept_only(Arc::clone(&roots), access.revoked.clone())?;
        *trust = Trusted { pem: access.trust_pem.clone(), roots, digest: Some(access.digest()) };
        Ok(())
    }

    fn trusted(&self) -> Trusted {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn token(&self, boot: &mut Boot) -> Result<JoinToken, ClaimError> {
        if self.is_claimed() {
            return Err(ClaimError::Claimed { fleet: boot.fleet.clone(), fleet_id: boot.fleet_id.clone() });
        }
        let token = boot.join_token.clone();
        if let Some(deadline) = boot.join_deadline
            && Timestamp::now() > deadline
        {
            if token.is_some() {
                // Permanently, also when the clock is set back later.
                boot::forget_token(boot, &self.root)?;
            }
            return Err(ClaimError::TooLate { deadline });
        }
        Ok(JoinToken::from_hex(&token.ok_or(ClaimError::NoToken)?)?)
    }

    fn check(&self, boot: &Boot, chain_pem: &str) -> Result<(), ClaimError> {
        let chain = tls::certificates(chain_pem, "agent's certificate chain").map_err(CertsError::Sent)?;
        let name = tls::machine_name(&boot.machine, &boot.fleet_id);
        let server_name = ServerName::try_from(name.clone()).map_err(|_| TlsError::Name { name: name.clone() })?;
        WebPkiServerVerifier::builder_with_provider(self.trusted().roots, tls::provider())
            .build()
            .map_err(TlsError::ClientVerifier)?
            .verify_server_cert(&chain[0], &chain[1..], &server_name, &[], UnixTime::now())
            .map(drop)
            .map_err(|source| ClaimError::Unfit { name, source })
    }

    fn show(&self) -> Result<(), ClaimError> {
        if let Some(identity) = self.store.identity()? {
            self.tls.show(identity)?;
        }
        Ok(())
    }
}

/// The key that the claim is about; made once, so that a restart during a claim does not change it.
fn pending(store: &Store) -> Result<KeyPair, CertsError> {
    if let Some(key) = store.pending()? {
        return Ok(key);
    }
    store.request()?;
    store.pending()?.ok_or(CertsError::NothingPending)
}

fn self_signed(key: &KeyPair, machine: &str) -> Result<Identity, ClaimError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("{machine} (unclaimed)"));
    let certificate = params.self_signed(key).map_err(ClaimError::SelfSigned)?;
    Ok(Identity { chain: vec![certificate.der().clone()], key: PrivatePkcs8KeyDer::from(key.serialize_der()).into() })
}
