//! One cluster of a fleet → its authorities, its credentials and its memory in the state.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use raftsman_api::tls::Identity as TlsIdentity;
use raftsman_core::desired::{AGENT_PORT, Cluster, LeafProfile, Usage, address_of};
use raftsman_core::observed::{AuthorityRecord, Ledger};
use raftsman_core::spec::{self, AuthMode, Name};
use secrecy::{ExposeSecret, SecretString};

use crate::etcd::{Credentials, EtcdError};
use crate::fleet::Fleet;
use crate::pki::{self, Authority, AuthorityKind, PkiError, Usages};
use crate::secrets::SecretError;
use crate::store::StoreError;

/// How long the certificate is valid with which this run speaks to etcd.
const ROOT_VALIDITY: Duration = Duration::from_secs(24 * 3600);

/// Why a cluster's keys or memory cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A certificate or key.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A secret that the file refers to.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Connections to etcd.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// Certificates for TLS.
    #[error(transparent)]
    Tls(#[from] raftsman_api::tls::TlsError),
    /// A file that the file refers to.
    #[error(
        "{path}, which the file names as a CA certificate, cannot be read: {source}; correct its path in the file, or put it there"
    )]
    CaFile {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The cluster trusts another authority than the file names.
    #[error(
        "{cluster}: the {kind} CA that the file names is not the one that the cluster trusts (their keys differ); bring \
         the old one back: rotating an authority is not in this version yet"
    )]
    OtherAuthority {
        /// Which cluster.
        cluster: Name,
        /// Which authority.
        kind: AuthorityKind,
    },
    /// It has no authorities yet.
    #[error("cluster `{0}` was never applied, so that it has no certificates yet: run `raftsman apply` first")]
    NotApplied(Name),
    /// The state knows of an authority that it does not hold.
    #[error("the key of the {0} authority is not in the state: bring the state's directory back from a copy")]
    AuthorityMissing(AuthorityKind),
}

/// One cluster at hand.
#[derive(Debug)]
pub struct ClusterAt {
    /// The fleet that it belongs to.
    pub fleet: Arc<Fleet>,
    /// What should be.
    pub desired: Cluster,
    /// What is remembered. Written through to the state.
    ledger: Mutex<Ledger>,
}

impl ClusterAt {
    /// Opens one cluster of the fleet.
    pub fn open(fleet: &Arc<Fleet>, desired: &Cluster) -> Result<Self, ClusterError> {
        let ledger = fleet.store.get_cluster(desired.name.as_str())?.unwrap_or_default();
        Ok(Self { fleet: Arc::clone(fleet), desired: desired.clone(), ledger: Mutex::new(ledger) })
    }

    /// What is remembered.
    pub fn ledger(&self) -> Ledger {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes what is remembered, on the disk before anything is done that rests on it.
    pub fn remember(&self, change: impl FnOnce(&mut Ledger)) -> Result<(), StoreError> {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = ledger.clone();
        change(&mut changed);
        if changed != *ledger {
            self.fleet.store.put_cluster(self.desired.name.as_str(), &changed)?;
            *ledger = changed;
        }
        Ok(())
    }

    /// Every member that is or should be, and where it is: those on the move at their old place.
    pub fn places(&self) -> BTreeMap<Name, IpAddr> {
        let ledger = self.ledger();
        let mut places: BTreeMap<Name, IpAddr> =
            self.desired.members.iter().map(|m| (m.name.clone(), m.address)).collect();
        places.extend(ledger.members.iter().filter_map(|(name, url)| Some((name.clone(), address_of(url)?))));
        places
    }

    /// Where the agent of a machine with this address listens.
    pub fn agent_at(address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, AGENT_PORT)
    }

    fn authority_name(&self, kind: AuthorityKind) -> String {
        let what = if kind == AuthorityKind::EtcdPeers { "peers" } else { "clients" };
        format!("{}-{what}", self.desired.name)
    }

    fn authority_spec(&self, kind: AuthorityKind) -> &spec::Authority {
        match kind {
            AuthorityKind::EtcdPeers => &self.desired.authorities.peers,
            AuthorityKind::EtcdClients | AuthorityKind::Fleet => &self.desired.authorities.clients,
        }
    }

    /// Makes the authority, or takes in the one that was brought, and remembers it. Once it is there, it stays.
    pub fn make_authority(&self, kind: AuthorityKind, now: Timestamp) -> Result<(), ClusterError> {
        let authority = match self.authority_spec(kind) {
            spec::Authority::Brought(brought) => self.brought(kind, brought, now)?,
            spec::Authority::Made => match self.made(kind)? {
                Some(made) => made,
                None => self.make(kind, now)?,
            },
        };
        let facts = authority.facts();
        let record = AuthorityRecord { key: facts.public_key_sha256.clone(), not_after: facts.not_after };
        self.remember(|ledger| match kind {
            AuthorityKind::EtcdPeers => ledger.peers = Some(record),
            AuthorityKind::EtcdClients | AuthorityKind::Fleet => ledger.clients = Some(record),
        })?;
        Ok(())
    }

    /// The authority that signs for this cluster.
    pub fn authority(&self, kind: AuthorityKind, now: Timestamp) -> Result<Authority, ClusterError> {
        let found = match self.authority_spec(kind) {
            spec::Authority::Brought(brought) => Some(self.brought(kind, brought, now)?),
            spec::Authority::Made => self.made(kind)?,
        };
        let ledger = self.ledger();
        let trusted = match kind {
            AuthorityKind::EtcdPeers => ledger.peers,
            AuthorityKind::EtcdClients | AuthorityKind::Fleet => ledger.clients,
        };
        match (found, trusted) {
            (None, None) => Err(ClusterError::NotApplied(self.desired.name.clone())),
            // The one that was brought once is not kept in the state.
            (None, Some(_)) if self.fleet.secrets.get(&self.authority_name(kind))?.is_some() => {
                Err(ClusterError::AuthorityMissing(kind))
            }
            (Some(found), trusted) if trusted.as_ref().is_none_or(|t| t.key == found.facts().public_key_sha256) => {
                Ok(found)
            }
            _ => Err(ClusterError::OtherAuthority { cluster: self.desired.name.clone(), kind }),
        }
    }

    /// Whether all that the file refers to, and that carrying it out will need, is there and good.
    pub fn check_references(&self, now: Timestamp) -> Result<(), ClusterError> {
        let ledger = self.ledger();
        for (kind, trusted) in [(AuthorityKind::EtcdPeers, ledger.peers), (AuthorityKind::EtcdClients, ledger.clients)]
        {
            match self.authority_spec(kind) {
                spec::Authority::Brought(_) => drop(self.authority(kind, now)?),
                spec::Authority::Made if trusted.is_some() => drop(self.authority(kind, now)?),
                spec::Authority::Made => {}
            }
        }
        if let (AuthMode::Password, Some(reference)) = (self.desired.auth, &self.desired.root_password) {
            crate::secrets::resolve(reference, self.fleet.setting.base())?;
        }
        for user in self.desired.access.users.iter().flat_map(|users| users.keys()) {
            self.user_password(user)?;
        }
        Ok(())
    }

    /// The password that the file refers to for this user.
    pub fn user_password(&self, user: &str) -> Result<Option<SecretString>, ClusterError> {
        let user = self.desired.access.users.as_ref().and_then(|users| users.get(user));
        let reference = user.and_then(|user| user.password.as_ref());
        Ok(reference.map(|reference| crate::secrets::resolve(reference, self.fleet.setting.base())).transpose()?)
    }

    fn brought(
        &self,
        kind: AuthorityKind,
        brought: &spec::BroughtAuthority,
        now: Timestamp,
    ) -> Result<Authority, ClusterError> {
        let base = self.fleet.setting.base();
        let certificate = std::fs::read_to_string(base.join(&brought.certificate))
            .map_err(|source| ClusterError::CaFile { path: brought.certificate.clone(), source })?;
        let key = crate::secrets::resolve(&brought.key, base)?;
        Ok(Authority::brought(kind, &certificate, &key, now)?)
    }

    fn made(&self, kind: AuthorityKind) -> Result<Option<Authority>, ClusterError> {
        let name = self.authority_name(kind);
        let Some(certificate) = self.fleet.store.get_certificate(&name)? else { return Ok(None) };
        let key = self.fleet.secrets.get(&name)?.ok_or(ClusterError::AuthorityMissing(kind))?;
        Ok(Some(Authority::load(kind, &certificate, &key)?))
    }

    fn make(&self, kind: AuthorityKind, now: Timestamp) -> Result<Authority, ClusterError> {
        let desired = &self.desired;
        let name: String = format!("{} {kind} CA", desired.name).chars().take(64).collect();
        let validity = Duration::from_millis(desired.ca_validity_ms);
        let made = Authority::make(kind, &name, Some(&desired.organization), desired.algorithm, now, validity)?;
        let place = self.authority_name(kind);
        // The certificate last: it says that the key is there.
        self.fleet.secrets.put(&place, &made.key_pem())?;
        self.fleet.store.put_certificate(&place, made.certificate_pem())?;
        Ok(made)
    }

    /// How clients log in: as the cluster was made, whatever the file says by now.
    pub fn auth(&self) -> AuthMode {
        self.ledger().auth.unwrap_or(self.desired.auth)
    }

    /// The password of `root`: the one that the file refers to, or one that is made once and kept.
    pub fn root_password(&self) -> Result<Option<SecretString>, ClusterError> {
        if self.auth() != AuthMode::Password {
            return Ok(None);
        }
        if let Some(reference) = &self.desired.root_password {
            return Ok(Some(crate::secrets::resolve(reference, self.fleet.setting.base())?));
        }
        let name = format!("{}-root-password", self.desired.name);
        if let Some(password) = self.fleet.secrets.get(&name)? {
            return Ok(Some(password));
        }
        let password = crate::secrets::random_password()?;
        self.fleet.secrets.put(&name, &password)?;
        Ok(Some(password))
    }

    /// Who we are to this cluster's etcd: `root`, nobody, and somebody whom a foreign authority vouches for.
    pub fn credentials(&self, now: Timestamp) -> Result<ClusterCredentials, ClusterError> {
        let authority = self.authority(AuthorityKind::EtcdClients, now)?;
        let ca = authority.certificate_pem();
        let client = |authority: &Authority, user: &str| -> Result<TlsIdentity, ClusterError> {
            let (chain, key) = authority.issue_client(user, Some(&self.desired.organization), ROOT_VALIDITY, now)?;
            Ok(TlsIdentity::from_pem(&chain, key.expose_secret())?)
        };
        let foreign = Authority::make(
            AuthorityKind::EtcdClients,
            "a foreign authority",
            None,
            spec::KeyAlgorithm::EcdsaP256,
            now,
            ROOT_VALIDITY,
        )?;
        let by_foreigner = client(&foreign, "root")?;
        // Without a name or an address in it, etcd does not ask where it comes from.
        let peers = self.authority(AuthorityKind::EtcdPeers, now)?;
        let peer = Credentials::new(peers.certificate_pem(), Some(&client(&peers, "")?), None)?;
        Ok(match self.auth() {
            AuthMode::Certificate => ClusterCredentials {
                root: Credentials::new(ca, Some(&client(&authority, "root")?), None)?,
                nobody: Credentials::new(ca, Some(&client(&authority, "")?), None)?,
                foreign: Credentials::new(ca, Some(&by_foreigner), None)?,
                peer,
            },
            AuthMode::Password => ClusterCredentials {
                root: Credentials::new(ca, None, self.root_password()?)?,
                nobody: Credentials::new(ca, None, None)?,
                foreign: Credentials::new(ca, Some(&by_foreigner), None)?,
                peer,
            },
        })
    }
}

/// Who one can be to a cluster's etcd.
#[derive(Debug, Clone)]
pub struct ClusterCredentials {
    /// The superuser.
    pub root: Credentials,
    /// A client of ours without a name.
    pub nobody: Credentials,
    /// A client with a certificate that a foreign authority signed.
    pub foreign: Credentials,
    /// Somebody whom the other members would listen to: only ever used to see whether they serve.
    pub peer: Credentials,
}

/// What the planner wants in a certificate, in the signer's words.
pub fn signers_profile(profile: &LeafProfile) -> pki::LeafProfile {
    pki::LeafProfile {
        common_name: profile.common_name.clone(),
        organization: Some(profile.organization.clone()),
        dns_names: profile.names.clone(),
        addresses: profile.addresses.clone(),
        usages: match profile.usage {
            Usage::Server => Usages::Server,
            Usage::ServerAndClient => Usages::Both,
        },
        validity: Duration::from_millis(profile.validity_ms),
    }
}
