//! A step of authorities, certificates or trust, on the simulated world → what is signed and stored then.

#![warn(clippy::wildcard_enum_match_arm)]

use std::net::IpAddr;

use super::World;
use super::effects::{Impossible, later};
use crate::action::PkiAction;
use crate::desired::{LeafProfile, Stack};
use crate::observed::{AuthorityRecord, CertificateFacts, Purpose, Trust, TrustDomain};
use crate::spec::Name;

pub(super) fn act(world: &mut World, desired: &Stack, action: &PkiAction) -> Result<(), Impossible> {
    let now = world.now;
    match action {
        PkiAction::MakeAuthorities => {
            for side in TrustDomain::ALL {
                if world.ledger.etcd.trust(side).is_none() {
                    world.ledger.etcd.take_in(side, world.authority(desired, side));
                }
            }
        }
        PkiAction::AddAuthority { side } => world.ledger.etcd.take_in(*side, world.authority(desired, *side)),
        PkiAction::ActivateAuthority { side } => world.trust_mut(*side)?.switch(now),
        PkiAction::DistrustAuthority { side, unused } => world.trust_mut(*side)?.retire(*unused),
        PkiAction::DeleteAuthority { side } => world.trust_mut(*side)?.forget(),
        PkiAction::StoreTrust { machine, purpose } => {
            let digest = world.store_trust(purpose.side())?;
            let stored = world.claimed(machine)?.certificates.get_mut(purpose);
            stored.ok_or_else(|| Impossible(format!("{machine} has no certificate yet")))?.trust = Some(digest);
        }
        PkiAction::IssueCertificate { machine, purpose, also } => {
            let certificate = world.certificate(desired, machine, *purpose, *also)?;
            world.store_trust(purpose.side())?;
            world.claimed(machine)?.certificates.insert(*purpose, certificate);
        }
    }
    Ok(())
}

impl World {
    pub(super) fn certificate(
        &self,
        desired: &Stack,
        machine: &Name,
        purpose: Purpose,
        also: Option<IpAddr>,
    ) -> Result<CertificateFacts, Impossible> {
        let trust = self.ledger.etcd.trust(purpose.side());
        let trust = trust.ok_or_else(|| Impossible("there is no authority".to_owned()))?;
        let member = desired.etcd.member(machine).ok_or_else(|| Impossible(format!("{machine} is not in the file")))?;
        let profile = member.profile(purpose).with(also);
        let authority = trust.signer(purpose.side(), profile.renew_before(), self.now);
        Ok(self.signed(machine, purpose.name(), &profile, trust, authority))
    }

    /// What an authority signs for a machine now.
    pub(super) fn signed(
        &self,
        machine: &Name,
        purpose: &str,
        profile: &LeafProfile,
        trust: &Trust,
        authority: &AuthorityRecord,
    ) -> CertificateFacts {
        CertificateFacts {
            fingerprint: format!("{machine}-{purpose}-{}", self.now),
            not_before: self.now,
            not_after: later(self.now, profile.validity_ms).min(authority.not_after),
            names: profile.all_names(),
            subject: profile.common_name.clone(),
            issuer_key: authority.key.clone(),
            trust: Some(trust.digest()),
        }
    }
}
