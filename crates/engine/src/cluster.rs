//! One cluster of a fleet → its credentials and its memory in the state.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use raftsman_api::tls::Identity as TlsIdentity;
use raftsman_core::desired::{AGENT_PORT, Cluster, LeafProfile, Usage, address_of};
use raftsman_core::observed::{Ledger, Side};
use raftsman_core::spec::{self, AuthMode, Name};
use raftsman_etcd::{Credentials, Endpoint, EtcdError};
use secrecy::{ExposeSecret, SecretString};

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
    /// It has no authorities yet.
    #[error("cluster `{0}` was never applied, so that it has no certificates yet: run `raftsman apply` first")]
    NotApplied(Name),
    /// Others run the cluster, and its authority's key was not brought.
    #[error(
        "the key of the {kind} authority of `{cluster}` is not raftsman's, because others set the cluster up: bring it, \
         with `ca:` in the file, or have the certificate signed where the key is"
    )]
    ForeignAuthority {
        /// Which cluster.
        cluster: Name,
        /// Which authority.
        kind: AuthorityKind,
    },
    /// The state has lost what `adopt` put there.
    #[error(
        "the credentials with which `{0}` was adopted are not in the state: bring the state's directory back from a copy"
    )]
    NotAdopted(Name),
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

    /// Where a member with this address listens for clients: others may have chosen another port.
    pub fn endpoint(&self, name: &Name, address: IpAddr) -> Endpoint {
        let adopted = self.ledger().adopted;
        let url = adopted.as_ref().and_then(|adopted| adopted.clients.get(name));
        url.and_then(|url| crate::adopt::endpoint(url).ok()).unwrap_or_else(|| Endpoint::from(address))
    }

    /// Where the agent of a machine with this address listens.
    pub fn agent_at(address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, AGENT_PORT)
    }

    /// Whether all that the file refers to, and that carrying it out will need, is there and good.
    pub fn check_references(&self, now: Timestamp) -> Result<(), ClusterError> {
        self.check_authorities(now)?;
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

    /// Who we are to a cluster that others run: what `adopt` was given.
    fn adopted_credentials(&self) -> Result<ClusterCredentials, ClusterError> {
        let name = adopted_name(&self.desired.name);
        let missing = || ClusterError::NotAdopted(self.desired.name.clone());
        let ca = self.fleet.store.get_certificate(&format!("{name}-ca"))?.ok_or_else(missing)?;
        let identity = match (self.fleet.store.get_certificate(&name)?, self.fleet.secrets.get(&name)?) {
            (Some(chain), Some(key)) => Some(TlsIdentity::from_pem(&chain, key.expose_secret())?),
            _ => None,
        };
        let root = Credentials::new(&ca, identity.as_ref(), self.root_password()?)?;
        let nobody = Credentials::new(&ca, None, None)?;
        Ok(ClusterCredentials { root, foreign: nobody.clone(), vouched: BTreeMap::new(), nameless: false, nobody })
    }

    /// Who we are to this cluster's etcd: `root`, nobody, and somebody whom a foreign authority vouches for.
    pub fn credentials(&self, now: Timestamp) -> Result<ClusterCredentials, ClusterError> {
        if self.ledger().adopted.is_some() {
            return self.adopted_credentials();
        }
        let trust = self.trust(Side::Clients)?;
        let (authority, ca) = (self.kept(Side::Clients, &trust.current)?, &trust.bundle());
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
        let peers = self.trust(Side::Peers)?;
        let mut vouched = BTreeMap::new();
        for (side, trust) in [(Side::Peers, &peers), (Side::Clients, &trust)] {
            // Who is known beside the one that signs is tried before the authority changes.
            for record in trust.known().into_iter().filter(|a| trust.rotates() && a.not_after > now) {
                // Without a name or an address in it, etcd does not ask where it comes from.
                let identity = client(&self.kept(side, record)?, "")?;
                vouched.insert((side, record.key.clone()), Credentials::new(&trust.bundle(), Some(&identity), None)?);
            }
        }
        let nameless = self.desired.auth == AuthMode::None;
        Ok(match self.auth() {
            AuthMode::Certificate | AuthMode::None => ClusterCredentials {
                root: Credentials::new(ca, Some(&client(&authority, "root")?), None)?,
                nobody: Credentials::new(ca, Some(&client(&authority, "")?), None)?,
                foreign: Credentials::new(ca, Some(&by_foreigner), None)?,
                vouched,
                nameless,
            },
            AuthMode::Password => ClusterCredentials {
                root: Credentials::new(ca, None, self.root_password()?)?,
                nobody: Credentials::new(ca, None, None)?,
                foreign: Credentials::new(ca, Some(&by_foreigner), None)?,
                vouched,
                nameless,
            },
        })
    }
}

/// Under this name the state keeps what was given to `adopt`.
pub fn adopted_name(cluster: &Name) -> String {
    format!("{cluster}-adopted")
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
    /// While an authority changes: a client without a name for each that is known, by its key.
    pub vouched: BTreeMap<(Side, String), Credentials>,
    /// Whether clients of ours need no name: the file wants no auth.
    pub nameless: bool,
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
