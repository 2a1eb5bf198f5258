//! A certificate → its content, in plain types.

use std::net::{Ipv4Addr, Ipv6Addr};

use jiff::Timestamp;
use raftsman_api::hex;
use raftsman_core::adopt::Certificate;
use serde::{Deserialize, Serialize};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{ExtendedKeyUsage, GeneralName};
use x509_parser::prelude::FromDer;

use super::{PkiError, pem};

/// What is written in a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateFacts {
    /// The subject, as a distinguished name.
    pub subject: String,
    /// The issuer, as a distinguished name.
    pub issuer: String,
    /// Its serial number, in hexadecimal digits.
    pub serial: String,
    /// SHA-256 of the whole certificate, in hexadecimal digits.
    pub fingerprint: String,
    /// When it begins.
    pub not_before: Timestamp,
    /// When it ends.
    pub not_after: Timestamp,
    /// The DNS names and addresses it is valid for.
    pub names: Vec<String>,
    /// Whether it is a CA.
    pub is_ca: bool,
    /// SHA-256 of its public key info, in hexadecimal digits: the same as long as the key is the same.
    pub public_key_sha256: String,
}

/// Describes the first certificate in a PEM text.
pub fn describe(text: &str) -> Result<CertificateFacts, PkiError> {
    of_der(&pem::certificates(text)?[0])
}

/// The relevant content of a certificate that a foreign server shows.
pub fn purposes(der: &[u8]) -> Result<Certificate, PkiError> {
    let facts = of_der(der)?;
    let certificate = parse(der)?;
    let usage =
        certificate.extended_key_usage().map_err(|error| PkiError::Certificate { detail: error.to_string() })?;
    // None at all means that every use is allowed.
    let may = |which: fn(&ExtendedKeyUsage<'_>) -> bool| usage.as_ref().is_none_or(|u| u.value.any || which(u.value));
    Ok(Certificate {
        subject: facts.subject,
        issuer: facts.issuer,
        names: facts.names,
        not_after: facts.not_after,
        server_auth: may(|usage| usage.server_auth),
        client_auth: may(|usage| usage.client_auth),
    })
}

pub(super) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, PkiError> {
    let (rest, certificate) =
        X509Certificate::from_der(der).map_err(|error| PkiError::Certificate { detail: error.to_string() })?;
    if rest.is_empty() {
        Ok(certificate)
    } else {
        Err(PkiError::Certificate { detail: format!("{} bytes too many", rest.len()) })
    }
}

pub(super) fn of_der(der: &[u8]) -> Result<CertificateFacts, PkiError> {
    let certificate = parse(der)?;
    let validity = certificate.validity();
    let mut names = Vec::new();
    let alternative =
        certificate.subject_alternative_name().map_err(|error| PkiError::Certificate { detail: error.to_string() })?;
    for name in alternative.iter().flat_map(|extension| &extension.value.general_names) {
        match name {
            GeneralName::DNSName(name) => names.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => names.push(address(bytes)),
            GeneralName::URI(uri) => names.push((*uri).to_owned()),
            other => names.push(other.to_string()),
        }
    }
    Ok(CertificateFacts {
        subject: certificate.subject().to_string(),
        issuer: certificate.issuer().to_string(),
        serial: hex::encode(certificate.raw_serial()),
        fingerprint: sha256_hex(der),
        not_before: timestamp(validity.not_before.timestamp())?,
        not_after: timestamp(validity.not_after.timestamp())?,
        names,
        is_ca: certificate.is_ca(),
        public_key_sha256: sha256_hex(certificate.public_key().raw),
    })
}

pub(super) fn raw_issuer(der: &[u8]) -> Result<Vec<u8>, PkiError> {
    Ok(parse(der)?.issuer().as_raw().to_vec())
}

pub(super) fn raw_subject(der: &[u8]) -> Result<Vec<u8>, PkiError> {
    Ok(parse(der)?.subject().as_raw().to_vec())
}

pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    hex::sha256(bytes)
}

fn address(bytes: &[u8]) -> String {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        Ipv4Addr::from(octets).to_string()
    } else if let Ok(octets) = <[u8; 16]>::try_from(bytes) {
        Ipv6Addr::from(octets).to_string()
    } else {
        hex::encode(bytes)
    }
}

/// RFC 5280's "never", the last second of year 9999, is a day more than [`Timestamp`] holds: it is cut.
fn timestamp(second: i64) -> Result<Timestamp, PkiError> {
    Timestamp::from_second(second.min(Timestamp::MAX.as_second()))
        .map_err(|error| PkiError::Certificate { detail: error.to_string() })
}
