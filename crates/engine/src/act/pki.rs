//! Certificates: authorities in the state, leaves on machines. Keys are made where they are used.

use std::net::IpAddr;

use jiff::Timestamp;
use raftsman_api::v1::{self, RequestCertificateRequest, StoreCertificateRequest};
use raftsman_core::observed::Purpose;
use raftsman_core::spec::Name;

use super::{ActError, Hands};
use crate::cluster::signers_profile;
use crate::observe::LinkError;
use crate::pki::AuthorityKind;

impl Hands<'_> {
    pub(super) fn make_authorities(self, now: Timestamp) -> Result<(), ActError> {
        let cluster = self.cluster();
        cluster.make_authority(AuthorityKind::EtcdPeers, now)?;
        cluster.make_authority(AuthorityKind::EtcdClients, now)?;
        Ok(())
    }

    pub(super) async fn issue_certificate(
        self,
        machine: &Name,
        purpose: Purpose,
        also: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<(), ActError> {
        let member = self.member(machine)?;
        let (kind, wire) = match purpose {
            Purpose::Peer => (AuthorityKind::EtcdPeers, v1::Purpose::EtcdPeer),
            Purpose::Server => (AuthorityKind::EtcdClients, v1::Purpose::EtcdServer),
        };
        let authority = self.cluster().authority(kind, now)?;
        let mut client = self.agent(machine).await?;
        let request = RequestCertificateRequest { purpose: wire.into() };
        let csr = client.request_certificate(self.stamped(request)).await.map_err(LinkError::from)?.into_inner();
        let chain_pem = authority.sign_csr(&csr.csr_der, &signers_profile(&member.profile(purpose).with(also)), now)?;
        let trust_pem = authority.certificate_pem().to_owned();
        let request = StoreCertificateRequest { purpose: wire.into(), chain_pem, trust_pem };
        client.store_certificate(self.stamped(request)).await?;
        Ok(())
    }
}
