//! a client certificate → the role of its holder.

use std::fmt;

use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// What the holder of a client certificate may do. A greater role may do all that a lesser one may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// May read.
    Reader,
    /// May carry out what the fleet's file says.
    Operator,
    /// May do everything.
    Admin,
}

/// Why a certificate gives no role.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RoleError {
    /// The bytes are no certificate.
    #[error("the client certificate cannot be parsed")]
    Malformed,
    /// No organisation, or one that is not ours.
    #[error("the client certificate names no raftsman role: its subject needs O=raftsman:reader, operator or admin")]
    Missing,
    /// More than one organisation: the role would be ambiguous.
    #[error("the client certificate names more than one organisation: its subject must have exactly one")]
    Ambiguous,
}

impl Role {
    /// The subject's organisation (O) that carries this role.
    pub fn organization(self) -> &'static str {
        match self {
            Self::Reader => "raftsman:reader",
            Self::Operator => "raftsman:operator",
            Self::Admin => "raftsman:admin",
        }
    }

    /// The role that a client certificate's subject names.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, RoleError> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| RoleError::Malformed)?;
        let mut organizations = parsed.subject().iter_organization();
        let only = organizations.next().ok_or(RoleError::Missing)?;
        if organizations.next().is_some() {
            return Err(RoleError::Ambiguous);
        }
        let name = only.as_str().map_err(|_| RoleError::Missing)?;
        [Self::Reader, Self::Operator, Self::Admin]
            .into_iter()
            .find(|role| role.organization() == name)
            .ok_or(RoleError::Missing)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reader => "reader",
            Self::Operator => "operator",
            Self::Admin => "admin",
        })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(organization: Option<&str>) -> CertificateDer<'static> {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::default();
        if let Some(name) = organization {
            params.distinguished_name.push(DnType::OrganizationName, name);
        }
        params.self_signed(&key).expect("certificate").der().clone()
    }

    #[test]
    fn roles_are_read_and_ordered() {
        for role in [Role::Reader, Role::Operator, Role::Admin] {
            assert_eq!(Role::of(&certificate(Some(role.organization()))), Ok(role));
        }
        assert!(Role::Admin > Role::Operator && Role::Operator > Role::Reader);
    }

    #[test]
    fn other_subjects_have_no_role() {
        assert_eq!(Role::of(&certificate(None)), Err(RoleError::Missing));
        assert_eq!(Role::of(&certificate(Some("raftsman:root"))), Err(RoleError::Missing));
        assert_eq!(Role::of(&CertificateDer::from(vec![1, 2, 3])), Err(RoleError::Malformed));
    }
}
