//! A cluster's certificate authorities, as the ledger records them → their keys, from the state or newly added.
//!
//! Each is kept under a number of its own. The ledger records it last, so that what a crash leaves behind is not
//! referenced: the next authority overwrites it, or a sweep removes it.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use raftsman_core::observed::{AuthorityRecord, Origin, Purpose, Trust, TrustDomain};
use raftsman_core::spec::{self, Name};
use secrecy::SecretString;

use crate::pki::{self, Authority, AuthorityKind};
use crate::stack::{StackError, StackHandle};
use crate::store::{Lock, Secrets, Store, StoreError};

/// No chain of certificates is larger.
const LARGEST_CERTIFICATE: u64 = 1 << 20;

impl From<TrustDomain> for AuthorityKind {
    fn from(side: TrustDomain) -> Self {
        match side {
            TrustDomain::Peers => Self::EtcdPeers,
            TrustDomain::Clients => Self::EtcdClients,
        }
    }
}

/// The name under which the state keeps an authority.
fn place(cluster: &Name, side: TrustDomain, number: u32) -> String {
    match number {
        0 | 1 => format!("{cluster}-{side}"),
        _ => format!("{cluster}-{side}-{number}"),
    }
}

/// The number of the authority that is kept under this name, if one of this side is.
fn number_of(name: &str, cluster: &Name, side: TrustDomain) -> Option<u32> {
    match name.strip_prefix(cluster.as_str())?.strip_prefix('-')?.strip_prefix(side.name())? {
        "" => Some(1),
        rest => rest.strip_prefix('-')?.parse().ok().filter(|number| *number > 1),
    }
}

/// Removes every authority of a cluster from the state, except those with these numbers.
pub(crate) async fn sweep(
    store: &Store,
    secrets: &Secrets,
    lock: &Lock,
    cluster: &Name,
    keep: impl Fn(TrustDomain, u32) -> bool,
) -> Result<(), StoreError> {
    for side in TrustDomain::ALL {
        let goes = |name: &String| number_of(name, cluster, side).is_some_and(|number| !keep(side, number));
        // The certificate first: it says that the key exists.
        for name in store.certificates().await?.into_iter().filter(goes) {
            store.delete_certificate(lock, &name).await?;
        }
        for name in secrets.names().await?.into_iter().filter(goes) {
            secrets.delete(lock, &name).await?;
        }
    }
    Ok(())
}

/// The numbers of the authorities that the state keeps of this side of a cluster, in order.
pub(crate) async fn kept_numbers(store: &Store, cluster: &Name, side: TrustDomain) -> Result<Vec<u32>, StoreError> {
    let mut numbers: Vec<u32> =
        store.certificates().await?.iter().filter_map(|name| number_of(name, cluster, side)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The authority of this side as the state keeps it, where it keeps exactly one: with several a rotation was under way,
/// and only the ledger knows which of them members trust.
pub(crate) async fn only_kept(
    store: &Store,
    cluster: &Name,
    side: TrustDomain,
) -> Result<Result<Option<Trust>, usize>, StackError> {
    let numbers = kept_numbers(store, cluster, side).await?;
    let number = match numbers.as_slice() {
        [] => return Ok(Ok(None)),
        [only] => *only,
        several => return Ok(Err(several.len())),
    };
    let Some(pem) = store.get_certificate(&place(cluster, side, number)).await? else { return Ok(Ok(None)) };
    let made = record(&pki::describe(&pem)?, &pem, number, Origin::Made);
    let mut trust = Trust::new(made);
    trust.numbered = trust.numbered.max(number);
    Ok(Ok(Some(trust)))
}

impl StackHandle {
    /// Makes the first authority, or adds the one that the file brings. It is made only once.
    pub async fn first_authority(&self, lock: &Lock, side: TrustDomain, now: Timestamp) -> Result<(), StackError> {
        if self.ledger().etcd.trust(side).is_some() {
            return Ok(());
        }
        let record = self.obtain(lock, side, 1, now).await?;
        Ok(self.remember(lock, |ledger| ledger.etcd.take_in(side, record)).await?)
    }

    /// Makes the next authority, or adds the one that the file brings.
    pub async fn next_authority(&self, lock: &Lock, side: TrustDomain, now: Timestamp) -> Result<(), StackError> {
        let number = self.trust(side)?.numbered + 1;
        let record = self.obtain(lock, side, number, now).await?;
        Ok(self.remember(lock, |ledger| ledger.etcd.take_in(side, record)).await?)
    }

    /// Changes the ledger's record of one side's authorities.
    pub async fn change_trust(
        &self,
        lock: &Lock,
        side: TrustDomain,
        change: impl FnOnce(&mut Trust),
    ) -> Result<(), StoreError> {
        self.remember(lock, |ledger| {
            if let Some(trust) = ledger.etcd.trust_mut(side) {
                change(trust);
            }
        })
        .await
    }

    async fn obtain(
        &self,
        lock: &Lock,
        side: TrustDomain,
        number: u32,
        now: Timestamp,
    ) -> Result<AuthorityRecord, StackError> {
        let (authority, origin) = match self.desired.etcd.authority(side) {
            spec::Authority::Brought(brought) => (self.brought(side, brought, now)?, Origin::Brought),
            spec::Authority::Made => (self.made(side, number, now)?, Origin::Made),
        };
        let place = place(&self.desired.name, side, number);
        self.fleet.secrets.put(lock, &place, &authority.key_pem()).await?;
        self.fleet.store.put_certificate(lock, &place, authority.certificate_pem()).await?;
        Ok(record(&authority.facts().clone(), authority.certificate_pem(), number, origin))
    }

    fn made(&self, side: TrustDomain, number: u32, now: Timestamp) -> Result<Authority, StackError> {
        let (desired, kind) = (&self.desired, AuthorityKind::from(side));
        // For people to distinguish them; etcd identifies an authority by its key.
        let which = if number > 1 { format!(" {number}") } else { String::new() };
        let room = 64 - which.len();
        let name: String = format!("{} {kind} CA", desired.name).chars().take(room).collect::<String>() + &which;
        let validity = Duration::from_millis(desired.etcd.ca_validity_ms);
        Ok(Authority::make(kind, &name, Some(&desired.etcd.organization), desired.etcd.algorithm, now, validity)?)
    }

    fn brought(
        &self,
        side: TrustDomain,
        reference: &spec::BroughtAuthority,
        now: Timestamp,
    ) -> Result<Authority, StackError> {
        let authority = brought(side, reference, self.fleet.context.base(), now)?;
        self.check_not_shared(side, &authority.facts().public_key_sha256)?;
        Ok(authority)
    }

    /// Whether this key signs for another side of the cluster, or for agents. Two files can hold one key, so that
    /// `check` may not have seen it; over clusters it compares the keys of all files that it can read.
    fn check_not_shared(&self, side: TrustDomain, key: &str) -> Result<(), StackError> {
        let shared = |with| StackError::SharedAuthority { cluster: self.desired.name.clone(), kind: side.into(), with };
        if self.fleet.authority.facts().public_key_sha256 == key {
            return Err(shared(AuthorityKind::Fleet));
        }
        for other in TrustDomain::ALL.into_iter().filter(|other| *other != side) {
            let known =
                self.ledger().etcd.trust(other).is_some_and(|trust| trust.known().iter().any(|it| it.key == key));
            let brought = match self.desired.etcd.authority(other) {
                spec::Authority::Brought(brought) => {
                    pki::describe(&self.brought_certificate(brought)?)?.public_key_sha256 == key
                }
                spec::Authority::Made => false,
            };
            if known || brought {
                return Err(shared(other.into()));
            }
        }
        Ok(())
    }

    /// Whether this key, which is to sign for PostgreSQL, signs for agents or for etcd already.
    pub(crate) fn check_not_etcds(&self, key: &str) -> Result<(), StackError> {
        let shared = |with| {
            let (cluster, kind) = (self.desired.name.clone(), AuthorityKind::Postgres);
            Err(StackError::SharedAuthority { cluster, kind, with })
        };
        if self.fleet.authority.facts().public_key_sha256 == key {
            return shared(AuthorityKind::Fleet);
        }
        let ledger = self.ledger();
        let has = |side: &TrustDomain| {
            ledger.etcd.trust(*side).is_some_and(|trust| trust.known().iter().any(|it| it.key == key))
        };
        TrustDomain::ALL.into_iter().find(has).map_or(Ok(()), |side| shared(side.into()))
    }

    fn brought_certificate(&self, reference: &spec::BroughtAuthority) -> Result<String, StackError> {
        brought_certificate(reference, self.fleet.context.base())
    }

    /// The authorities that the file brings, as they are found where it says.
    pub fn brought_authorities(&self) -> Result<BTreeMap<TrustDomain, AuthorityRecord>, StackError> {
        let mut found = BTreeMap::new();
        for side in TrustDomain::ALL {
            if let spec::Authority::Brought(brought) = self.desired.etcd.authority(side) {
                let pem = self.brought_certificate(brought)?;
                found.insert(side, record(&pki::describe(&pem)?, &pem, 0, Origin::Brought));
            }
        }
        Ok(found)
    }

    /// Whether all that is needed to sign exists, and the authorities that the file brings can be added.
    pub(crate) async fn check_authorities(&self, now: Timestamp) -> Result<(), StackError> {
        let ledger = self.ledger();
        for side in TrustDomain::ALL {
            let trust = ledger.etcd.trust(side);
            if let spec::Authority::Brought(brought) = self.desired.etcd.authority(side) {
                let newest = trust.map(|t| t.next.as_ref().unwrap_or(&t.current));
                let found = self.brought_certificate(brought)?;
                if newest.is_none_or(|newest| newest.certificate != found) {
                    self.brought(side, brought, now)?;
                }
            }
            // The authority of an adopted cluster is not raftsman's.
            if let Some(trust) = trust.filter(|_| ledger.etcd.adopted().is_none()) {
                self.kept(side, &trust.current).await?;
            }
        }
        Ok(())
    }

    /// What is remembered of this side's authorities.
    pub fn trust(&self, side: TrustDomain) -> Result<Trust, StackError> {
        let trust = self.ledger().etcd.trust(side).cloned();
        trust.ok_or_else(|| StackError::NotApplied(self.desired.name.clone()))
    }

    /// The authority of this record, with its key.
    pub async fn kept(&self, side: TrustDomain, record: &AuthorityRecord) -> Result<Authority, StackError> {
        let place = place(&self.desired.name, side, record.number);
        let missing = || match self.ledger().etcd.adopted() {
            Some(_) => StackError::ForeignAuthority { cluster: self.desired.name.clone(), kind: side.into() },
            None => StackError::AuthorityMissing(side.into()),
        };
        let key = self.fleet.secrets.get(&place).await?.ok_or_else(missing)?;
        Ok(Authority::load(side.into(), &record.certificate, &key)?)
    }

    /// The authority that signs for this side.
    pub async fn authority(&self, side: TrustDomain) -> Result<Authority, StackError> {
        self.kept(side, &self.trust(side)?.current).await
    }

    /// The authority that signs a member's certificate for this purpose.
    pub async fn signer(
        &self,
        purpose: Purpose,
        renew_before: jiff::SignedDuration,
        now: Timestamp,
    ) -> Result<Authority, StackError> {
        let trust = self.trust(purpose.side())?;
        self.kept(purpose.side(), trust.signer(purpose.side(), renew_before, now)).await
    }

    /// Takes out of the state what it keeps of authorities that the ledger does not know.
    pub async fn sweep_authorities(&self, lock: &Lock) -> Result<(), StoreError> {
        let ledger = self.ledger();
        let known = |side, number| {
            ledger.etcd.trust(side).is_some_and(|trust| trust.known().iter().any(|record| record.number == number))
        };
        sweep(&self.fleet.store, &self.fleet.secrets, lock, &self.desired.name, known).await
    }
}

/// An identifier of the public key in a certificate file; none where it cannot be read, which is reported when it is
/// needed.
pub fn public_key(certificate: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(certificate).ok()?.take(LARGEST_CERTIFICATE).read_to_string(&mut text).ok()?;
    Some(pki::describe(&pki::certificates_only(&text).ok()?).ok()?.public_key_sha256)
}

/// The authority that the file brings, with its key.
pub(crate) fn brought(
    side: TrustDomain,
    reference: &spec::BroughtAuthority,
    base: &Path,
    now: Timestamp,
) -> Result<Authority, StackError> {
    let certificate = brought_certificate(reference, base)?;
    let key = crate::secrets::resolve(&reference.key, base)?;
    Ok(Authority::brought(side.into(), &certificate, &key, now)?)
}

pub(crate) fn brought_certificate(reference: &spec::BroughtAuthority, base: &Path) -> Result<String, StackError> {
    let text = std::fs::read_to_string(base.join(&reference.certificate));
    let text = text.map_err(|source| StackError::CaFile { path: reference.certificate.clone(), source })?;
    // Text around the certificates does not make it another authority.
    Ok(pki::certificates_only(&text)?)
}

/// Adds an authority to the state that signed outside of raftsman so far, with its key where that is given.
pub(crate) async fn bring_in(
    store: &Store,
    secrets: &Secrets,
    lock: &Lock,
    cluster: &Name,
    side: TrustDomain,
    (certificate, key): (&str, Option<&SecretString>),
) -> Result<Trust, StackError> {
    let pem = pki::certificates_only(certificate)?;
    if let Some(key) = key {
        secrets.put(lock, &place(cluster, side, 1), key).await?;
        store.put_certificate(lock, &place(cluster, side, 1), &pem).await?;
    }
    Ok(Trust::new(record(&pki::describe(&pem)?, &pem, 1, Origin::Brought)))
}

pub(crate) fn record(facts: &pki::CertificateFacts, pem: &str, number: u32, origin: Origin) -> AuthorityRecord {
    AuthorityRecord {
        number,
        key: facts.public_key_sha256.clone(),
        not_after: facts.not_after,
        origin,
        certificate: pem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_one_cluster_are_no_others() {
        let name = |text: &str| Name::parse(text).expect("a name");
        for number in [1, 2, 17] {
            let kept = place(&name("a"), TrustDomain::Peers, number);
            assert_eq!(number_of(&kept, &name("a"), TrustDomain::Peers), Some(number));
            assert_eq!(number_of(&kept, &name("a"), TrustDomain::Clients), None);
            assert_eq!(number_of(&kept, &name("a-peers"), TrustDomain::Peers), None);
        }
        assert_eq!(number_of(&place(&name("a-peers"), TrustDomain::Peers, 2), &name("a"), TrustDomain::Peers), None);
        assert_eq!(number_of("a-peers-1", &name("a"), TrustDomain::Peers), None);
        assert_eq!(number_of("a-root-password", &name("a"), TrustDomain::Peers), None);
    }
}
