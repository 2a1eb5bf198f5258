//! The state's record of fleet authorities and revocations → the signer for agents, and the certificates they accept.
//!
//! A fleet begins with one authority, which machines get with their boot data, and no record. A rotation or a
//! revocation writes one; from then on a step of the plan sends its content to agents.

use std::collections::BTreeSet;

use jiff::Timestamp;
use raftsman_api::access_digest;
use raftsman_core::desired::Agents;
use raftsman_core::spec::KeyAlgorithm;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use crate::fleet::FleetError;
use crate::pki::{Authority, AuthorityKind};
use crate::store::{Lock, Secrets, Store};

/// The name of the record, and of the first authority.
const RECORD: &str = "fleet-access";
const FIRST: &str = "fleet";
/// How long a fleet's authority is valid.
const VALIDITY: std::time::Duration = std::time::Duration::from_secs(3650 * 24 * 3600);

/// The authority that signs for agents, and the certificates that agents accept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetAccess {
    /// The number of the authority that signs; the first is 1.
    pub signer: u32,
    /// The one that signs next, once every agent trusts it.
    #[serde(default)]
    pub next: Option<u32>,
    /// The one that signed before: trusted until no certificate that it signed is in use.
    #[serde(default)]
    pub old: Option<u32>,
    /// SHA-256 of the public keys of certificates that are revoked.
    #[serde(default)]
    pub revoked: BTreeSet<String>,
}

impl Default for FleetAccess {
    fn default() -> Self {
        Self { signer: 1, next: None, old: None, revoked: BTreeSet::new() }
    }
}

/// Where a rotation of the fleet's authority is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// There is none.
    Settled,
    /// Every agent gets the next one to trust.
    Trusting,
    /// It signs, and every agent gets a certificate of it.
    Signing,
    /// Only it is trusted; agents are updated.
    Distrusting,
}

impl FleetAccess {
    /// What the state says.
    pub async fn read(secrets: &Secrets) -> Result<Self, FleetError> {
        match secrets.get(RECORD).await? {
            None => Ok(Self::default()),
            Some(text) => serde_json::from_str(text.expose_secret()).map_err(FleetError::Access),
        }
    }

    /// Keeps it.
    pub async fn write(&self, secrets: &Secrets, lock: &Lock) -> Result<(), FleetError> {
        let text = serde_json::to_string(self).map_err(FleetError::Access)?;
        Ok(secrets.put(lock, RECORD, &SecretString::from(text)).await?)
    }

    /// Where a rotation is.
    pub fn phase(&self) -> Phase {
        match (self.next, self.old) {
            (Some(_), _) => Phase::Trusting,
            (None, Some(_)) => Phase::Signing,
            (None, None) => Phase::Settled,
        }
    }

    /// The numbers of all authorities that agents trust, in an order that does not depend on the signer.
    fn trusted(&self) -> BTreeSet<u32> {
        [Some(self.signer), self.next, self.old].into_iter().flatten().collect()
    }

    /// The certificates against which agents and raftsman verify each other.
    pub async fn trust_pem(&self, store: &Store) -> Result<String, FleetError> {
        let mut bundle = String::new();
        for number in self.trusted() {
            let pem = store.get_certificate(&place(number)).await?;
            bundle += &pem.ok_or_else(|| incomplete(store, "certificate of a fleet's authority"))?;
        }
        Ok(bundle)
    }

    /// The authority that signs.
    pub async fn authority(&self, store: &Store, secrets: &Secrets) -> Result<Authority, FleetError> {
        let name = place(self.signer);
        let certificate = store.get_certificate(&name).await?;
        let certificate = certificate.ok_or_else(|| incomplete(store, "certificate of the fleet's authority"))?;
        let key = secrets.get(&name).await?.ok_or_else(|| incomplete(store, "key of the fleet's authority"))?;
        Ok(Authority::load(AuthorityKind::Fleet, &certificate, &key)?)
    }

    /// What the planner needs to know.
    pub fn desired(&self, trust_pem: &str, authority: &Authority) -> Agents {
        // Until the first change, machines have it from their boot data.
        let described = *self != Self::default();
        Agents {
            access: described.then(|| access_digest(trust_pem, &self.revoked)),
            signer: Some(authority.facts().public_key_sha256.clone()),
            signer_until: Some(authority.facts().not_after),
            shipped: None,
        }
    }

    /// Makes the authority that signs next.
    pub async fn begin(
        &mut self,
        store: &Store,
        secrets: &Secrets,
        lock: &Lock,
        now: Timestamp,
    ) -> Result<(), FleetError> {
        let number = self.signer + 1;
        let fleet = store.fleet();
        let name: String = format!("{} fleet CA {number}", fleet.name).chars().take(64).collect();
        let made =
            Authority::make(AuthorityKind::Fleet, &name, Some(&fleet.name), KeyAlgorithm::EcdsaP256, now, VALIDITY)?;
        secrets.put(lock, &place(number), &made.key_pem()).await?;
        store.put_certificate(lock, &place(number), made.certificate_pem()).await?;
        // Last: what a crash leaves before this is overwritten by the next try.
        self.next = Some(number);
        self.write(secrets, lock).await
    }

    /// Every agent trusts the next one: it signs from now on.
    pub async fn activate(&mut self, secrets: &Secrets, lock: &Lock) -> Result<(), FleetError> {
        if let Some(next) = self.next.take() {
            self.old = Some(std::mem::replace(&mut self.signer, next));
        }
        self.write(secrets, lock).await
    }

    /// No certificate of the old one is in use: it is not trusted any more, and its key is deleted.
    pub async fn distrust(&mut self, store: &Store, secrets: &Secrets, lock: &Lock) -> Result<(), FleetError> {
        let old = self.old.take();
        self.write(secrets, lock).await?;
        if let Some(old) = old {
            secrets.delete(lock, &place(old)).await?;
            store.delete_certificate(lock, &place(old)).await?;
        }
        Ok(())
    }
}

/// The name under which the state keeps an authority.
pub fn place(number: u32) -> String {
    match number {
        0 | 1 => FIRST.to_owned(),
        _ => format!("{FIRST}-{number}"),
    }
}

/// Whether an authority of the fleet is kept under this name.
pub fn is_place(name: &str) -> bool {
    let number = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    name == FIRST || name.strip_prefix(FIRST).and_then(|rest| rest.strip_prefix('-')).is_some_and(number)
}

fn incomplete(store: &Store, what: &'static str) -> FleetError {
    FleetError::Incomplete { dir: store.dir().to_owned(), what }
}
