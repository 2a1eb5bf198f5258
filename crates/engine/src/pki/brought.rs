//! A certificate that the user brings → whether it can be an authority.

use jiff::Timestamp;

use super::{PkiError, facts, pem};

/// Checks that the first certificate is a CA that may sign now.
pub(super) fn check(certificate_pem: &str, now: Timestamp) -> Result<(), PkiError> {
    let certificates = pem::certificates(certificate_pem)?;
    let own = facts::parse(&certificates[0])?;
    let facts = facts::of_der(&certificates[0])?;
    if !facts.is_ca {
        return Err(PkiError::NotAnAuthority { subject: facts.subject });
    }
    let usage = own.key_usage().map_err(|error| PkiError::Certificate { detail: error.to_string() })?;
    // No keyUsage at all means that every use is allowed (RFC 5280, 4.2.1.3).
    if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
        return Err(PkiError::MayNotSign { subject: facts.subject });
    }
    if now >= facts.not_after {
        return Err(PkiError::AuthorityEnded { subject: facts.subject, at: facts.not_after });
    }
    if now < facts.not_before {
        return Err(PkiError::AuthorityNotYet { subject: facts.subject, at: facts.not_before });
    }
    Ok(())
}
