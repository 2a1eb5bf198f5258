//! Certificates: authorities in the state, leaves and trust on machines. Keys are made where they are used.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use raftsman_api::fence;
use raftsman_api::v1::{self, RequestCertificateRequest, StoreCertificateRequest, StoreTrustRequest};
use raftsman_core::action::PkiAction;
use raftsman_core::desired::ClientAccess;
use raftsman_core::observed::{Purpose, TrustDomain};
use raftsman_core::spec::Name;
use tonic::Request;

use super::{ActError, Executor};
use crate::observe::{AgentCalls, AgentLink, LinkError};
use crate::pki::{LeafProfile, PkiError, Usages};
use crate::stack::{StackHandle, signers_profile};

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &PkiAction, now: Timestamp) -> Result<(), ActError> {
    match action {
        PkiAction::MakeAuthorities => executor.make_authorities(now).await,
        PkiAction::AddAuthority { side } => Ok(executor.cluster().next_authority(executor.lock, *side, now).await?),
        PkiAction::ActivateAuthority { side } => {
            Ok(executor.cluster().change_trust(executor.lock, *side, |trust| trust.switch(now)).await?)
        }
        PkiAction::DistrustAuthority { side, unused } => {
            Ok(executor.cluster().change_trust(executor.lock, *side, |trust| trust.retire(*unused)).await?)
        }
        PkiAction::DeleteAuthority { side } => executor.forget_authority(*side).await,
        PkiAction::StoreTrust { machine, purpose } => executor.store_trust(machine, *purpose).await,
        PkiAction::IssueCertificate { machine, purpose, also } => {
            executor.issue_certificate(machine, *purpose, *also, now).await
        }
    }
}

impl Executor<'_> {
    async fn make_authorities(self, now: Timestamp) -> Result<(), ActError> {
        for side in TrustDomain::ALL {
            self.cluster().first_authority(self.lock, side, now).await?;
        }
        self.cluster().make_root_password(self.lock).await?;
        Ok(())
    }

    async fn forget_authority(self, side: TrustDomain) -> Result<(), ActError> {
        // The ledger first: keys that it does not record belong to no authority, and the sweep removes them.
        self.cluster().change_trust(self.lock, side, |trust| trust.forget()).await?;
        self.cluster().sweep_authorities(self.lock).await?;
        Ok(())
    }

    async fn issue_certificate(
        self,
        machine: &Name,
        purpose: Purpose,
        also: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<(), ActError> {
        let profile = self.member(machine)?.profile(purpose);
        let authority = self.cluster().signer(purpose, profile.renew_before(), now).await?;
        let trust_pem = self.cluster().trust(purpose.side())?.bundle();
        let sign = |csr: &[u8]| authority.sign_csr(csr, &signers_profile(&profile.with(also)), now);
        swap(self.agent(machine).await?, self.generation(), wire(purpose), trust_pem, sign).await
    }

    async fn store_trust(self, machine: &Name, purpose: Purpose) -> Result<(), ActError> {
        let trust_pem = self.cluster().trust(purpose.side())?.bundle();
        let request = StoreTrustRequest { purpose: wire(purpose).into(), trust_pem };
        self.agent(machine).await?.store_trust(self.stamped(request)).await?;
        Ok(())
    }
}

/// Gives a machine a certificate that etcd authenticates as `root`, valid for as long as members' certificates. It is
/// signed by the clients' authority, or for a member that is closed to clients.
pub(crate) async fn certify_client(
    cluster: &StackHandle,
    agent: &AgentLink,
    generation: u64,
    access: ClientAccess,
) -> Result<(), ActError> {
    let now = Timestamp::now();
    let trust = cluster.trust(TrustDomain::Clients)?;
    let authority = match access {
        ClientAccess::Open => cluster.kept(TrustDomain::Clients, &trust.current).await?,
        ClientAccess::Closed => cluster.authority(TrustDomain::Peers).await?,
    };
    let validity_ms = cluster.desired.etcd.members.first().map_or(0, |member| member.server.validity_ms);
    let profile = LeafProfile {
        common_name: "root".to_owned(),
        organization: Some(cluster.desired.etcd.organization.clone()),
        dns_names: Vec::new(),
        addresses: Vec::new(),
        usages: Usages::Client,
        validity: Duration::from_millis(validity_ms),
    };
    let sign = |csr: &[u8]| authority.sign_csr(csr, &profile, now);
    swap(agent.client().await?, generation, v1::Purpose::EtcdClient, trust.bundle(), sign).await
}

/// Has a machine make a key, and swaps in the certificate for it. The key never leaves it.
pub(super) async fn swap(
    mut client: AgentCalls,
    generation: u64,
    purpose: v1::Purpose,
    trust_pem: String,
    sign: impl FnOnce(&[u8]) -> Result<String, PkiError>,
) -> Result<(), ActError> {
    let purpose = purpose.into();
    let request = fence::stamp(Request::new(RequestCertificateRequest { purpose }), generation);
    let csr = client.request_certificate(request).await.map_err(LinkError::from)?.into_inner();
    let chain_pem = sign(&csr.csr_der)?;
    let request = fence::stamp(Request::new(StoreCertificateRequest { purpose, chain_pem, trust_pem }), generation);
    client.store_certificate(request).await?;
    Ok(())
}

fn wire(purpose: Purpose) -> v1::Purpose {
    match purpose {
        Purpose::Peer => v1::Purpose::EtcdPeer,
        Purpose::Server => v1::Purpose::EtcdServer,
    }
}
