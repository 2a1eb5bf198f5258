//! A key algorithm, a CA, a signing request → certificates, and their content.
//!
//! Nothing here reads the clock: callers pass the time.

mod brought;
mod error;
mod facts;
mod pem;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use raftsman_core::spec::KeyAlgorithm;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, RsaKeySize, SanType, SerialNumber,
};
use secrecy::SecretString;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use zeroize::Zeroize;

pub use error::PkiError;
pub use facts::{CertificateFacts, describe, purposes};

/// The validity of a certificate begins this long before its signature, for machines whose clock is behind.
const BACKDATED: Duration = Duration::from_secs(5 * 60);

/// The end of year 9999, as far as [`Timestamp`] can tell it: no certificate can be written that ends later.
const LAST_SECOND: i64 = 253_402_207_200;

/// The longest common name or organization that X.509 has room for.
const LONGEST_NAME: usize = 64;

/// What an authority signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AuthorityKind {
    /// Agents and operators: one a fleet.
    Fleet,
    /// For connections between members: one per cluster.
    EtcdPeers,
    /// For clients, and for members' server certificates: one per cluster.
    EtcdClients,
    /// For PostgreSQL and Patroni's REST interface: one per PostgreSQL cluster.
    Postgres,
}

impl fmt::Display for AuthorityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fleet => "fleet",
            Self::EtcdPeers => "etcd peers",
            Self::EtcdClients => "etcd clients",
            Self::Postgres => "PostgreSQL",
        })
    }
}

/// What a certificate may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usages {
    /// To be connected to.
    Server,
    /// To connect.
    Client,
    /// Both, as peers do.
    Both,
}

/// The content of a leaf certificate. Nothing of it comes from the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafProfile {
    /// The common name; empty for none.
    pub common_name: String,
    /// The organization.
    pub organization: Option<String>,
    /// DNS names.
    pub dns_names: Vec<String>,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
    /// What it may be used for.
    pub usages: Usages,
    /// How long it is valid; never longer than the authority.
    pub validity: Duration,
}

/// A certificate authority: a certificate and its key.
pub struct Authority {
    kind: AuthorityKind,
    certificate_pem: String,
    /// The authority's certificates that are not roots: a leaf is shown together with them.
    chain_pem: String,
    facts: CertificateFacts,
    issuer: Issuer<'static, Key>,
}

/// The key, wiped when it is dropped.
struct Key(KeyPair);

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl rcgen::PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl rcgen::SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.0.sign(message)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("kind", &self.kind).field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new self-signed authority that is valid from `now` (backdated a little) for `validity`.
    pub fn make(
        kind: AuthorityKind,
        common_name: &str,
        organization: Option<&str>,
        algorithm: KeyAlgorithm,
        now: Timestamp,
        validity: Duration,
    ) -> Result<Self, PkiError> {
        let key = make_key(algorithm)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(common_name, organization)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(random_serial()?);
        set_validity(&mut params, second_before(now, BACKDATED), second_after(now, validity));
        let certificate = params.self_signed(&key.0).map_err(|source| PkiError::Make { what: "a CA", source })?;
        Self::assemble(kind, certificate.pem(), key)
    }

    /// Loads an authority that the user brings, after a check that it fits its purpose.
    ///
    /// `certificate_pem` may hold the certificates above it too, its own one first.
    pub fn brought(
        kind: AuthorityKind,
        certificate_pem: &str,
        key_pem: &SecretString,
        now: Timestamp,
    ) -> Result<Self, PkiError> {
        let authority = Self::load(kind, certificate_pem, key_pem)?;
        brought::check(&authority.certificate_pem, now)?;
        authority.check_issuer_name(now)?;
        Ok(authority)
    }

    /// Loads an authority from the state. Unlike [`Authority::brought`] it may have expired: signing with it fails
    /// then, and its certificate can still be shown.
    pub fn load(kind: AuthorityKind, certificate_pem: &str, key_pem: &SecretString) -> Result<Self, PkiError> {
        let key = Key(pem::private_key(key_pem)?);
        Self::assemble(kind, certificate_pem.to_owned(), key)
    }

    fn assemble(kind: AuthorityKind, certificate_pem: String, key: Key) -> Result<Self, PkiError> {
        let certificates = pem::certificates(&certificate_pem)?;
        let own = &certificates[0];
        let facts = facts::of_der(own)?;
        let key_info = rcgen::PublicKeyData::subject_public_key_info(&key);
        if facts::sha256_hex(&key_info) != facts.public_key_sha256 {
            return Err(PkiError::KeyDoesNotMatch { subject: facts.subject });
        }
        let mut chain_pem = String::new();
        for der in &certificates {
            let above = facts::of_der(der)?;
            if above.subject != above.issuer {
                chain_pem.push_str(&pem::encode_certificate(der));
            }
        }
        let issuer = Issuer::from_ca_cert_der(&own.as_slice().into(), key)
            .map_err(|source| PkiError::Make { what: "the issuer", source })?;
        Ok(Self { kind, certificate_pem, chain_pem, facts, issuer })
    }

    /// What it signs.
    pub fn kind(&self) -> AuthorityKind {
        self.kind
    }

    /// Its certificate, and those above it if they were brought: the trust anchors for the other side.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Its key (PKCS#8), to be kept encrypted.
    pub fn key_pem(&self) -> SecretString {
        SecretString::from(self.issuer.key().0.serialize_pem())
    }

    /// What is written in its certificate.
    pub fn facts(&self) -> &CertificateFacts {
        &self.facts
    }

    /// Signs what `profile` says for the public key of a signing request: nothing else is taken from the request.
    ///
    /// Gives the certificate, followed by those between it and the root.
    pub fn sign_csr(&self, csr_der: &[u8], profile: &LeafProfile, now: Timestamp) -> Result<String, PkiError> {
        let (rest, csr) = X509CertificationRequest::from_der(csr_der).map_err(|_| PkiError::RequestUnreadable)?;
        if !rest.is_empty() {
            return Err(PkiError::RequestUnreadable);
        }
        // The request is signed by the key that it contains, which proves that the sender holds it.
        csr.verify_signature().map_err(|_| PkiError::RequestSignature)?;
        let info = &csr.certification_request_info.subject_pki;
        if let Ok(PublicKey::RSA(rsa)) = info.parsed()
            && rsa.key_size() < 2048
        {
            return Err(PkiError::RequestKeyTooShort { bits: rsa.key_size() });
        }
        let key = rcgen::SubjectPublicKeyInfo::from_der(info.raw).map_err(|source| PkiError::RequestKey { source })?;
        self.sign(&key, profile, now)
    }

    /// Makes a key and a client certificate, for an operator or for a user of etcd.
    ///
    /// `common_name` may be empty: etcd then sees no user in the certificate.
    pub fn issue_client(
        &self,
        common_name: &str,
        organization: Option<&str>,
        validity: Duration,
        now: Timestamp,
    ) -> Result<(String, SecretString), PkiError> {
        let key = make_key(KeyAlgorithm::EcdsaP256)?;
        let profile = LeafProfile {
            common_name: common_name.to_owned(),
            organization: organization.map(str::to_owned),
            dns_names: Vec::new(),
            addresses: Vec::new(),
            usages: Usages::Client,
            validity,
        };
        let chain = self.sign(&key, &profile, now)?;
        Ok((chain, SecretString::from(key.0.serialize_pem())))
    }

    fn sign(&self, key: &impl rcgen::PublicKeyData, profile: &LeafProfile, now: Timestamp) -> Result<String, PkiError> {
        if now >= self.facts.not_after {
            return Err(PkiError::AuthorityEnded { subject: self.facts.subject.clone(), at: self.facts.not_after });
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(&profile.common_name, profile.organization.as_deref())?;
        for name in &profile.dns_names {
            params.subject_alt_names.push(dns_name(name)?);
        }
        params.subject_alt_names.extend(profile.addresses.iter().copied().map(SanType::IpAddress));
        if profile.common_name.is_empty() && profile.organization.is_none() && params.subject_alt_names.is_empty() {
            return Err(PkiError::Nameless);
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match profile.usages {
            Usages::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usages::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Usages::Both => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(random_serial()?);
        // Some clients reject a leaf whose validity exceeds that of its authority, and others accept it.
        let begin = second_before(now, BACKDATED).max(self.facts.not_before.as_second());
        let end = second_after(now, profile.validity).min(self.facts.not_after.as_second());
        set_validity(&mut params, begin, end);
        let leaf =
            params.signed_by(key, &self.issuer).map_err(|source| PkiError::Make { what: "a certificate", source })?;
        Ok(leaf.pem() + &self.chain_pem)
    }

    /// The signer cannot copy a name with two parts of one kind (`DC=example, DC=org`) into what it signs, and no
    /// client could build the chain from the leaf to the authority: it is rejected when it is brought.
    fn check_issuer_name(&self, now: Timestamp) -> Result<(), PkiError> {
        let key = make_key(KeyAlgorithm::EcdsaP256)?;
        let profile = LeafProfile {
            common_name: "probe".to_owned(),
            organization: None,
            dns_names: Vec::new(),
            addresses: Vec::new(),
            usages: Usages::Client,
            validity: BACKDATED,
        };
        let leaf = pem::certificates(&self.sign(&key, &profile, now)?)?;
        let own = pem::certificates(&self.certificate_pem)?;
        if facts::raw_issuer(&leaf[0])? == facts::raw_subject(&own[0])? {
            Ok(())
        } else {
            Err(PkiError::SubjectNotCarried { subject: self.facts.subject.clone() })
        }
    }
}

/// The certificates in a PEM text, and nothing else that is in it.
pub fn certificates_only(text: &str) -> Result<String, PkiError> {
    Ok(pem::certificates(text)?.iter().map(|der| pem::encode_certificate(der)).collect())
}

fn make_key(algorithm: KeyAlgorithm) -> Result<Key, PkiError> {
    match algorithm {
        KeyAlgorithm::EcdsaP256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
        KeyAlgorithm::EcdsaP384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
        KeyAlgorithm::Rsa2048 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048),
        KeyAlgorithm::Rsa4096 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_4096),
    }
    .map(Key)
    .map_err(|source| PkiError::Make { what: "a key", source })
}

fn subject(common_name: &str, organization: Option<&str>) -> Result<DistinguishedName, PkiError> {
    let mut name = DistinguishedName::new();
    for (kind, value) in
        [(DnType::OrganizationName, organization.unwrap_or_default()), (DnType::CommonName, common_name)]
    {
        if value.chars().count() > LONGEST_NAME {
            return Err(PkiError::NameTooLong { name: value.to_owned() });
        }
        if !value.is_empty() {
            name.push(kind, value);
        }
    }
    Ok(name)
}

fn dns_name(name: &str) -> Result<SanType, PkiError> {
    let host = name.strip_prefix("*.").unwrap_or(name);
    let good = !host.is_empty()
        && name.len() <= 253
        && host.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        });
    let refused = || PkiError::DnsName { name: name.to_owned() };
    if !good {
        return Err(refused());
    }
    Ok(SanType::DnsName(name.try_into().map_err(|_| refused())?))
}

/// 128 random bits, positive, and never so small that the encoding gets shorter.
fn random_serial() -> Result<SerialNumber, PkiError> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| PkiError::Random)?;
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn second_before(time: Timestamp, by: Duration) -> i64 {
    time.as_second().saturating_sub_unsigned(by.as_secs()).max(0)
}

fn second_after(time: Timestamp, by: Duration) -> i64 {
    time.as_second().saturating_add_unsigned(by.as_secs()).clamp(0, LAST_SECOND)
}

/// Both are within 1970 to 9999 by construction, so that the additions cannot overflow.
fn set_validity(params: &mut CertificateParams, begin: i64, end: i64) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(begin.unsigned_abs());
    params.not_after = epoch + Duration::from_secs(end.unsigned_abs());
}
