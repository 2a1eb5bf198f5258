//! Certificates: authorities in the state, leaves and trust on machines. Keys are made where they are used.

use std::net::IpAddr;

use jiff::Timestamp;
use raftsman_api::v1::{self, RequestCertificateRequest, StoreCertificateRequest, StoreTrustRequest};
use raftsman_core::observed::{Purpose, Side};
use raftsman_core::spec::Name;

use super::{ActError, Hands};
use crate::cluster::signers_profile;
use crate::observe::LinkError;

impl Hands<'_> {
    pub(super) fn make_authorities(self, now: Timestamp) -> Result<(), ActError> {
        for side in Side::ALL {
            self.cluster().first_authority(side, now)?;
        }
        Ok(())
    }

    pub(super) fn forget_authority(self, side: Side) -> Result<(), ActError> {
        // The ledger first: keys that it does not know are nobody's.
        self.cluster().change_trust(side, |trust| trust.forget())?;
        self.cluster().sweep_authorities()?;
        Ok(())
    }

    pub(super) async fn issue_certificate(
        self,
        machine: &Name,
        purpose: Purpose,
        also: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<(), ActError> {
        let profile = self.member(machine)?.profile(purpose);
        let authority = self.cluster().signer(purpose, profile.renew_before(), now)?;
        let mut client = self.agent(machine).await?;
        let request = RequestCertificateRequest { purpose: wire(purpose).into() };
        let csr = client.request_certificate(self.stamped(request)).await.map_err(LinkError::from)?.into_inner();
        let chain_pem = authority.sign_csr(&csr.csr_der, &signers_profile(&profile.with(also)), now)?;
        let trust_pem = self.cluster().trust(purpose.side())?.bundle();
        let request = StoreCertificateRequest { purpose: wire(purpose).into(), chain_pem, trust_pem };
        client.store_certificate(self.stamped(request)).await?;
        Ok(())
    }

    pub(super) async fn store_trust(self, machine: &Name, purpose: Purpose) -> Result<(), ActError> {
        let trust_pem = self.cluster().trust(purpose.side())?.bundle();
        let request = StoreTrustRequest { purpose: wire(purpose).into(), trust_pem };
        self.agent(machine).await?.store_trust(self.stamped(request)).await?;
        Ok(())
    }
}

fn wire(purpose: Purpose) -> v1::Purpose {
    match purpose {
        Purpose::Peer => v1::Purpose::EtcdPeer,
        Purpose::Server => v1::Purpose::EtcdServer,
    }
}
