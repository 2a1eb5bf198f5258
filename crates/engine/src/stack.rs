//! One stack of a fleet → its credentials and its ledger in the state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use raftsman_api::tls::Identity as TlsIdentity;
use raftsman_core::desired::{AGENT_PORT, ClientAccess, DesireError, LeafProfile, Stack, Usage, address_of};
use raftsman_core::observed::{Ledger, TrustDomain};
use raftsman_core::spec::{self, AuthMode, Name};
use raftsman_etcd::{Credentials, Endpoint, EtcdError};
use secrecy::{ExposeSecret, SecretString};

use crate::fleet::{Fleet, OWN_VALIDITY};
use crate::pki::{self, Authority, AuthorityKind, PkiError, Usages};
use crate::secrets::SecretError;
use crate::store::{Lock, StoreError, Version};

/// Why a stack's keys or ledger cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
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
    /// One key for two purposes.
    #[error(
        "the {kind} CA of `{cluster}` has the same key as its {with} CA: each would sign for the other, so that a client \
         certificate would open the peer port; bring two authorities with keys of their own, or let raftsman make one"
    )]
    SharedAuthority {
        /// Which cluster.
        cluster: Name,
        /// Which authority.
        kind: AuthorityKind,
        /// Which other one has its key.
        with: AuthorityKind,
    },
    /// It has no authorities yet.
    #[error("cluster `{0}` was never applied, so that it has no certificates yet: run `raftsman apply` first")]
    NotApplied(Name),
    /// The cluster is adopted, and its authority's key was not given.
    #[error(
        "raftsman does not have the key of the {kind} CA of `{cluster}`, because the cluster is adopted: bring it, \
         with `ca:` in the file, or have the certificate signed where the key is"
    )]
    ForeignAuthority {
        /// Which cluster.
        cluster: Name,
        /// Which authority.
        kind: AuthorityKind,
    },
    /// The provider cannot say whether the cluster has machines, and the state has no ledger of it.
    #[error(
        "cluster `{cluster}` has no ledger yet, and the provider cannot be asked whether its machine `{machine}` exists: \
         {error}; nothing was made: see that the provider answers, then run the command again"
    )]
    MachineUnknown {
        /// Which cluster.
        cluster: Name,
        /// Which machine.
        machine: Name,
        /// Why the provider cannot be asked.
        error: String,
    },
    /// The state has lost what `adopt` put there.
    #[error(
        "the credentials with which `{0}` was adopted are not in the state: bring the state's directory back from a copy"
    )]
    NotAdopted(Name),
    /// Another CA than the cluster was made with.
    #[error(
        "the file brings another CA for the PostgreSQL cluster `{0}` than it was made with, and this version does not change \
         it: bring the earlier one"
    )]
    PostgresCaChanged(Name),
    /// The state knows of an authority that it does not hold.
    #[error("the key of the {0} authority is not in the state: bring the state's directory back from a copy")]
    AuthorityMissing(AuthorityKind),
}

/// A handle on one stack.
#[derive(Debug)]
pub struct StackHandle {
    /// The fleet that it belongs to.
    pub fleet: Arc<Fleet>,
    /// The desired state.
    pub desired: Stack,
    memory: Arc<Mutex<Memory>>,
    /// Held by the task that writes the ledger: what it writes follows from what it read.
    writing: Arc<tokio::sync::Mutex<()>>,
    /// What the file refers to as the password of `root`, read once: the password that is set is the one that is kept,
    /// even when the source changes meanwhile.
    root_password: OnceLock<SecretString>,
}

/// What is remembered of a stack, and the version of the ledger that it was read from.
#[derive(Debug, Clone)]
struct Memory {
    ledger: Ledger,
    version: Version,
}

impl StackHandle {
    /// Opens one stack of the fleet.
    pub async fn open(fleet: &Arc<Fleet>, desired: &Stack) -> Result<Self, StackError> {
        let memory = match fleet.store.get_cluster(desired.name.as_str()).await? {
            Some(kept) => Memory { ledger: kept.value, version: kept.version },
            None => {
                if let Some(trace) = fleet.trace_of(&desired.name).await? {
                    return Err(StoreError::LedgerMissing { cluster: desired.name.to_string(), trace }.into());
                }
                Memory { ledger: Ledger::default(), version: Version::none() }
            }
        };
        Ok(Self::with(fleet, desired, memory))
    }

    /// A cluster whose ledger is lost, with a draft that is not written to the state: for observations only.
    pub(crate) fn draft(fleet: &Arc<Fleet>, desired: &Stack, ledger: Ledger) -> Self {
        Self::with(fleet, desired, Memory { ledger, version: Version::draft() })
    }

    fn with(fleet: &Arc<Fleet>, desired: &Stack, memory: Memory) -> Self {
        let (memory, writing) = (Arc::new(Mutex::new(memory)), Arc::default());
        Self { fleet: Arc::clone(fleet), desired: desired.clone(), memory, writing, root_password: OnceLock::new() }
    }

    /// The same cluster with the addresses that its ledger has by now, and the same ledger; nothing where all of them
    /// are known here.
    pub fn placed(&self) -> Result<Option<Self>, DesireError> {
        let Some(desired) = self.desired.placed_by(&self.ledger())? else { return Ok(None) };
        let (memory, writing) = (Arc::clone(&self.memory), Arc::clone(&self.writing));
        let (fleet, root_password) = (Arc::clone(&self.fleet), self.root_password.clone());
        Ok(Some(Self { fleet, desired, memory, writing, root_password }))
    }

    /// The ledger, as it is now.
    pub fn ledger(&self) -> Ledger {
        self.memory().ledger.clone()
    }

    /// Whether there is a ledger: before the first change there is none.
    pub fn has_ledger(&self) -> bool {
        self.memory().version != Version::none()
    }

    /// The version of the ledger; 0 where there is none.
    pub fn version(&self) -> u64 {
        self.memory().version.number()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the ledger where there is none yet: before anything is made for the cluster, so that a resource without a
    /// ledger later proves that the ledger was lost.
    pub async fn begin(&self, lock: &Lock) -> Result<(), StoreError> {
        let _writing = self.writing.lock().await;
        let Memory { ledger, version } = self.memory().clone();
        if version == Version::none() {
            // Checked again under the lock: a ledger may have been made and lost since.
            if let Some(trace) = self.fleet.trace_of(&self.desired.name).await? {
                return Err(StoreError::LedgerMissing { cluster: self.desired.name.to_string(), trace });
            }
            self.write(lock, &version, ledger).await?;
        }
        Ok(())
    }

    /// Changes the ledger, in the state before any action that depends on it. A ledger that another process has
    /// replaced since it was read is not overwritten.
    pub async fn remember(&self, lock: &Lock, change: impl FnOnce(&mut Ledger)) -> Result<(), StoreError> {
        let _writing = self.writing.lock().await;
        let Memory { ledger, version } = self.memory().clone();
        let mut changed = ledger.clone();
        change(&mut changed);
        if changed != ledger {
            self.write(lock, &version, changed).await?;
        }
        Ok(())
    }

    async fn write(&self, lock: &Lock, before: &Version, ledger: Ledger) -> Result<(), StoreError> {
        let version = self.fleet.store.put_cluster(lock, self.desired.name.as_str(), before, &ledger).await?;
        *self.memory() = Memory { ledger, version };
        Ok(())
    }

    /// Refuses to continue from a copy of the ledger that is not the newest.
    pub async fn compare(&self, lock: &Lock) -> Result<(), StoreError> {
        let version = self.memory().version.clone();
        self.fleet.store.compare_cluster(lock, self.desired.name.as_str(), &version).await
    }

    /// Every current or desired member and its address: members that move are at their old one.
    pub fn places(&self) -> BTreeMap<Name, IpAddr> {
        let ledger = self.ledger();
        let mut places: BTreeMap<Name, IpAddr> =
            self.desired.etcd.members.iter().map(|m| (m.name.clone(), m.address)).collect();
        places.extend(ledger.etcd.members.iter().filter_map(|(name, url)| Some((name.clone(), address_of(url)?))));
        places
    }

    /// Every current or desired machine and its address: those of members, of PostgreSQL's nodes, and those that balancers
    /// have to themselves.
    pub fn machines(&self) -> BTreeMap<Name, IpAddr> {
        let (mut machines, ledger) = (self.places(), self.ledger());
        for (_, instance) in self.desired.instances() {
            machines.entry(instance.name.clone()).or_insert(instance.address);
        }
        for (_, node) in self.desired.nodes() {
            machines.entry(node.name.clone()).or_insert(node.address);
        }
        for (name, address) in ledger.machines.instances {
            machines.entry(name).or_insert(address);
        }
        machines
    }

    /// Where a member with this address serves clients: an adopted cluster may use another port.
    pub fn endpoint(&self, name: &Name, address: IpAddr) -> Endpoint {
        let ledger = self.ledger();
        let url = ledger.etcd.adopted().and_then(|adopted| adopted.clients.get(name));
        url.and_then(|url| crate::adopt::endpoint(url).ok()).unwrap_or_else(|| Endpoint::from(address))
    }

    /// Where the agent of a machine with this address listens.
    pub fn agent_at(address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, AGENT_PORT)
    }

    /// Whether everything that the file refers to, and that an apply will need, exists and is valid.
    pub async fn check_references(&self, now: Timestamp) -> Result<(), StackError> {
        self.check_authorities(now).await?;
        if let (AuthMode::Password, Some(reference)) = (self.desired.etcd.auth, &self.desired.etcd.root_password) {
            crate::secrets::resolve(reference, self.fleet.context.base())?;
        }
        for user in self.desired.etcd.access.users.iter().flat_map(|users| users.keys()) {
            self.user_password(user)?;
        }
        self.check_postgres_references(now).await
    }

    /// The password that the file refers to for this user.
    pub fn user_password(&self, user: &str) -> Result<Option<SecretString>, StackError> {
        let user = self.desired.etcd.access.users.as_ref().and_then(|users| users.get(user));
        let reference = user.and_then(|user| user.password.as_ref());
        Ok(reference.map(|reference| crate::secrets::resolve(reference, self.fleet.context.base())).transpose()?)
    }

    /// How clients authenticate: as the cluster was created, whatever the file says now.
    pub fn auth(&self) -> AuthMode {
        self.ledger().etcd.auth.unwrap_or(self.desired.etcd.auth)
    }

    /// The password of `root`: the one that the file refers to, or the one that was made with the authorities.
    pub async fn root_password(&self) -> Result<Option<SecretString>, StackError> {
        if self.auth() != AuthMode::Password {
            return Ok(None);
        }
        if let Some(reference) = &self.desired.etcd.root_password {
            if let Some(password) = self.root_password.get() {
                return Ok(Some(password.clone()));
            }
            let password = crate::secrets::resolve(reference, self.fleet.context.base())?;
            return Ok(Some(self.root_password.get_or_init(|| password).clone()));
        }
        Ok(self.fleet.secrets.get(&root_password_name(&self.desired.name)).await?)
    }

    /// Makes the password of `root` where clients log in with passwords, the file refers to none and there is none yet.
    pub async fn make_root_password(&self, lock: &Lock) -> Result<(), StackError> {
        if self.auth() == AuthMode::Password && self.root_password().await?.is_none() {
            let password = crate::secrets::random_password()?;
            self.fleet.secrets.put(lock, &root_password_name(&self.desired.name), &password).await?;
        }
        Ok(())
    }

    /// Passwords that `root` may have where it does not have the one of the file, the likeliest first: the last one in
    /// force, one that a killed run was about to set, and earlier ones, which an old backup brings back.
    async fn passwords_before(&self) -> Result<Vec<SecretString>, StackError> {
        if self.auth() != AuthMode::Password {
            return Ok(Vec::new());
        }
        let (now, secrets) = (self.root_password().await?, &self.fleet.secrets);
        let kept = secrets.get(&root_password_name(&self.desired.name)).await?;
        let mut before: Vec<SecretString> = kept.into_iter().chain(self.earlier_passwords().await?).collect();
        before.retain(|one| now.as_ref().is_none_or(|now| now.expose_secret() != one.expose_secret()));
        Ok(before)
    }

    async fn earlier_passwords(&self) -> Result<Vec<SecretString>, StackError> {
        let kept = self.fleet.secrets.get(&earlier_passwords_name(&self.desired.name)).await?;
        let words = kept.map(|text| serde_json::from_str::<Vec<String>>(text.expose_secret()).unwrap_or_default());
        Ok(words.unwrap_or_default().into_iter().map(SecretString::from).collect())
    }

    /// Keeps a password that may be, or may have been, in force.
    async fn keep_earlier_password(&self, lock: &Lock, password: &SecretString) -> Result<(), StackError> {
        let mut words = vec![password.expose_secret().to_owned()];
        words.extend(self.earlier_passwords().await?.iter().map(|one| one.expose_secret().to_owned()));
        let mut seen = BTreeSet::new();
        words.retain(|word| seen.insert(word.clone()));
        words.truncate(EARLIER_PASSWORDS);
        let text = SecretString::from(serde_json::to_string(&words).unwrap_or_default());
        Ok(self.fleet.secrets.put(lock, &earlier_passwords_name(&self.desired.name), &text).await?)
    }

    /// Records a password before it is set: a run that is killed in between leaves no unrecorded password in force.
    pub async fn announce_root_password(&self, lock: &Lock) -> Result<(), StackError> {
        match self.root_password().await? {
            Some(password) => self.keep_earlier_password(lock, &password).await,
            None => Ok(()),
        }
    }

    /// Keeps the password that is in force, so that another one can take its place once the file refers to it.
    pub async fn keep_root_password(&self, lock: &Lock) -> Result<(), StackError> {
        if let (Some(password), Some(_)) = (self.root_password().await?, &self.desired.etcd.root_password) {
            let name = root_password_name(&self.desired.name);
            let kept = self.fleet.secrets.get(&name).await?;
            if kept.as_ref().is_some_and(|kept| kept.expose_secret() == password.expose_secret()) {
                return Ok(());
            }
            if let Some(before) = kept {
                self.keep_earlier_password(lock, &before).await?;
            }
            self.fleet.secrets.put(lock, &name, &password).await?;
        }
        Ok(())
    }

    /// The credentials of an adopted cluster: those that `adopt` was given.
    async fn adopted_credentials(&self) -> Result<ClusterCredentials, StackError> {
        let name = adopted_name(&self.desired.name);
        let missing = || StackError::NotAdopted(self.desired.name.clone());
        let ca = self.fleet.store.get_certificate(&format!("{name}-ca")).await?.ok_or_else(missing)?;
        let identity = match (self.fleet.store.get_certificate(&name).await?, self.fleet.secrets.get(&name).await?) {
            (Some(chain), Some(key)) => Some(TlsIdentity::from_pem(&chain, key.expose_secret())?),
            _ => None,
        };
        let root = Credentials::new(&ca, identity.as_ref(), self.root_password().await?)?;
        let anonymous = Credentials::new(&ca, None, None)?;
        Ok(ClusterCredentials {
            root,
            root_before: Vec::new(),
            foreign: anonymous.clone(),
            vouched: BTreeMap::new(),
            nameless: false,
            anonymous,
        })
    }

    /// The credentials for this cluster's etcd: `root`, a client without a user, and a client of a foreign authority.
    pub async fn credentials(&self, now: Timestamp) -> Result<ClusterCredentials, StackError> {
        if self.ledger().etcd.adopted().is_some() {
            return self.adopted_credentials().await;
        }
        let trust = self.trust(TrustDomain::Clients)?;
        let (authority, ca) = (self.kept(TrustDomain::Clients, &trust.current).await?, &trust.bundle());
        let client = |authority: &Authority, user: &str| -> Result<TlsIdentity, StackError> {
            let (chain, key) =
                authority.issue_client(user, Some(&self.desired.etcd.organization), OWN_VALIDITY, now)?;
            Ok(TlsIdentity::from_pem(&chain, key.expose_secret())?)
        };
        let foreign = Authority::make(
            AuthorityKind::EtcdClients,
            "a foreign authority",
            None,
            spec::KeyAlgorithm::EcdsaP256,
            now,
            OWN_VALIDITY,
        )?;
        let by_foreigner = client(&foreign, "root")?;
        let peers = self.trust(TrustDomain::Peers)?;
        let mut vouched = BTreeMap::new();
        for (side, trust) in [(TrustDomain::Peers, &peers), (TrustDomain::Clients, &trust)] {
            // A client of every authority that the ledger knows: its handshake is tested before the signer changes.
            for record in trust.known().into_iter().filter(|a| trust.rotates() && a.not_after > now) {
                // Without a name or an address in the certificate, etcd does not check the client's address.
                let identity = client(&self.kept(side, record).await?, "")?;
                vouched.insert((side, record.key.clone()), Credentials::new(&trust.bundle(), Some(&identity), None)?);
            }
        }
        let nameless = self.desired.etcd.auth == AuthMode::None;
        let password = self.root_password().await?;
        let shown = |user: &str| match self.auth() {
            AuthMode::Certificate | AuthMode::None => client(&authority, user).map(Some),
            AuthMode::Password => Ok(None),
        };
        // Until auth is on, members may accept no other certificates than those of the peers' CA.
        let closed = self.desired.etcd.client_access(&self.ledger()) == ClientAccess::Closed;
        let bootstrap = match peers.current.not_after > now {
            true => Some(self.kept(TrustDomain::Peers, &peers.current).await?),
            false => None,
        };
        let credentials = |user: &str, password: Option<SecretString>| -> Result<Credentials, StackError> {
            let identity = shown(user)?;
            let credentials = Credentials::new(ca, identity.as_ref(), password)?;
            Ok(match &bootstrap {
                Some(peers) => credentials.with_bootstrap(identity.as_ref(), &client(peers, user)?, closed)?,
                None => credentials,
            })
        };
        Ok(ClusterCredentials {
            root: credentials("root", password)?,
            root_before: self
                .passwords_before()
                .await?
                .into_iter()
                .map(|password| credentials("root", Some(password)))
                .collect::<Result<_, _>>()?,
            anonymous: credentials("", None)?,
            foreign: Credentials::new(ca, Some(&by_foreigner), None)?,
            vouched,
            nameless,
        })
    }
}

/// Under this name the state keeps the password of `root`.
pub(crate) fn root_password_name(cluster: &Name) -> String {
    format!("{cluster}-root-password")
}

/// Under this name the state keeps passwords that `root` had before, or may have.
pub(crate) fn earlier_passwords_name(cluster: &Name) -> String {
    format!("{cluster}-root-passwords-before")
}

/// How many earlier passwords are kept.
const EARLIER_PASSWORDS: usize = 8;

/// Under this name the state keeps what was given to `adopt`.
pub fn adopted_name(cluster: &Name) -> String {
    format!("{cluster}-adopted")
}

/// The identities with which raftsman connects to a cluster's etcd.
#[derive(Debug, Clone)]
pub struct ClusterCredentials {
    /// The superuser.
    pub root: Credentials,
    /// The superuser with passwords that it may have instead of that one.
    pub root_before: Vec<Credentials>,
    /// A client of ours without a user name.
    pub anonymous: Credentials,
    /// A client with a certificate that a foreign authority signed.
    pub foreign: Credentials,
    /// During a rotation: a client without a user name for each known authority, by its key.
    pub vouched: BTreeMap<(TrustDomain, String), Credentials>,
    /// Whether our clients need no user: the file disables auth.
    pub nameless: bool,
}

/// The planner's certificate profile as the signer's type.
pub fn signers_profile(profile: &LeafProfile) -> pki::LeafProfile {
    pki::LeafProfile {
        common_name: profile.common_name.clone(),
        organization: Some(profile.organization.clone()),
        dns_names: profile.names.clone(),
        addresses: profile.addresses.clone(),
        usages: match profile.usage {
            Usage::Server => Usages::Server,
            Usage::ServerAndClient => Usages::Both,
            Usage::Client => Usages::Client,
        },
        validity: Duration::from_millis(profile.validity_ms),
    }
}
