//! All that may be done to authorities, certificates and trust, and what each means for safety.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Changes, Class, Company, Subject};
use crate::observed::{Purpose, TrustDomain};
use crate::spec::Name;

/// One action on authorities, certificates or trust. Journals of earlier versions have the names that are aliases here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum PkiAction {
    /// Make, or add, the cluster's certificate authorities.
    MakeAuthorities,
    /// Make, or add, the authority that is to sign next. No member trusts it yet.
    #[serde(alias = "next_authority")]
    AddAuthority {
        /// Whose.
        side: TrustDomain,
    },
    /// Activate the next authority: from now on it signs.
    #[serde(alias = "switch_authority")]
    ActivateAuthority {
        /// Whose.
        side: TrustDomain,
    },
    /// Distrust the old authorities.
    #[serde(alias = "retire_authority")]
    DistrustAuthority {
        /// Whose.
        side: TrustDomain,
        /// Distrust the next authority, which is not wanted any more, instead of the old ones.
        unused: bool,
    },
    /// Delete the old authorities with their keys: no member accepts their certificates any more.
    #[serde(alias = "forget_authority")]
    DeleteAuthority {
        /// Whose.
        side: TrustDomain,
    },
    /// Put the certificates of all authorities that are to be trusted beside a certificate. etcd reads them when it
    /// starts.
    StoreTrust {
        /// Where.
        machine: Name,
        /// Beside which.
        purpose: Purpose,
    },
    /// Have a key made on the machine, and sign a certificate for it.
    IssueCertificate {
        /// Where.
        machine: Name,
        /// What for.
        purpose: Purpose,
        /// An address that is to be in it beside those of the file: where the member still is.
        also: Option<IpAddr>,
    },
}

impl PkiAction {
    /// What it means for safety.
    pub fn class(&self) -> Class {
        match self {
            // Without effect on what runs, or made again by the same action.
            Self::StoreTrust { .. } | Self::IssueCertificate { .. } => Class::of(Changes::Machine),
            Self::MakeAuthorities
            | Self::AddAuthority { .. }
            // It has signed nothing, and another one can be made.
            | Self::DistrustAuthority { unused: true, .. } => Class::of(Changes::Trust),
            Self::ActivateAuthority { .. } | Self::DistrustAuthority { unused: false, .. } => {
                Class::of(Changes::Trust).beside(Company::Alike)
            }
            // Its key is deleted.
            Self::DeleteAuthority { .. } => Class::of(Changes::Trust).irreversible().beside(Company::Alike),
        }
    }

    pub(super) fn done_to(&self) -> Subject<'_> {
        match self {
            Self::MakeAuthorities
            | Self::AddAuthority { .. }
            | Self::ActivateAuthority { .. }
            | Self::DistrustAuthority { .. }
            | Self::DeleteAuthority { .. } => Subject::Cluster,
            Self::StoreTrust { machine, .. } | Self::IssueCertificate { machine, .. } => Subject::Machine(machine),
        }
    }

    /// The verb, as plans show it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::MakeAuthorities => "make authorities",
            Self::AddAuthority { side: TrustDomain::Peers } => "add peers CA",
            Self::AddAuthority { side: TrustDomain::Clients } => "add clients CA",
            Self::ActivateAuthority { side: TrustDomain::Peers } => "activate peers CA",
            Self::ActivateAuthority { side: TrustDomain::Clients } => "activate clients CA",
            Self::DistrustAuthority { side: TrustDomain::Peers, .. } => "distrust peers CA",
            Self::DistrustAuthority { side: TrustDomain::Clients, .. } => "distrust clients CA",
            Self::DeleteAuthority { side: TrustDomain::Peers } => "delete peers CA",
            Self::DeleteAuthority { side: TrustDomain::Clients } => "delete clients CA",
            Self::StoreTrust { purpose: Purpose::Peer, .. } => "store peer trust",
            Self::StoreTrust { purpose: Purpose::Server, .. } => "store server trust",
            Self::IssueCertificate { purpose: Purpose::Peer, .. } => "sign peer cert",
            Self::IssueCertificate { purpose: Purpose::Server, .. } => "sign server cert",
        }
    }
}
