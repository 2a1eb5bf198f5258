//! `raftsman adopt`: a running cluster → a file that describes it, a state that records it, and findings about it.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use raftsman_api::tls::Identity;
use raftsman_core::adopt::{self, Finding, Found, Weight, draft, findings};
use raftsman_core::observed::{Adopted, EtcdLedger, Ledger, Mode, TrustDomain};
use raftsman_core::spec::{self, Name, Reading, Secret};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde_json::json;

use super::init::write_file;
use super::{OpError, lock_info};
use crate::adopt::{LookError, Way, look};
use crate::authorities::bring_in;
use crate::fleet::{Context, Fleet};
use crate::journal::Journal;
use crate::pki::{Authority, AuthorityKind};
use crate::stack::adopted_name;
use crate::store::{Protection, Store, Version};

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Choices {
    /// URLs of members.
    pub endpoints: Vec<String>,
    /// The authority of the members' certificates.
    pub ca: PathBuf,
    /// A certificate to show, and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// A file with the password of `root`.
    pub password: Option<PathBuf>,
    /// The key of that authority.
    pub ca_key: Option<PathBuf>,
    /// The authority of the peers' certificates, and its key.
    pub peers: Option<(PathBuf, PathBuf)>,
    /// The fleet's name.
    pub fleet: Name,
    /// The cluster's name.
    pub cluster: Name,
}

/// Why a cluster cannot be adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The file exists already.
    #[error("{} is there already: it stays as it is; name another with --output", .0.display())]
    FileExists(PathBuf),
    /// The state exists already.
    #[error("there is a state in {} already: adopt into another directory", .0.display())]
    StateExists(PathBuf),
    /// It cannot be observed.
    #[error(transparent)]
    Look(#[from] LookError),
    /// A member's name that is not valid in the file.
    #[error(
        "the member `{0}` has a name that raftsman's file does not allow: a name is 1 to 63 lower-case letters, digits \
         and hyphens; start it again with another `--name`, which etcd allows at any time"
    )]
    Name(String),
}

/// The result of an adoption.
#[derive(Debug, Serialize)]
pub struct Adoption {
    /// The file that was written.
    pub file: PathBuf,
    /// Whether there is a state now, so that `plan` and `status` work.
    pub state: bool,
    /// What was observed.
    pub found: Found,
    /// Findings about it, the worst first.
    pub findings: Vec<Finding>,
}

/// Observes, writes the file and makes the state. Nothing in the cluster itself is changed.
pub async fn adopt(choices: &Choices, context: &Context) -> Result<Adoption, OpError> {
    let now = Timestamp::now();
    if context.file.exists() {
        return Err(AdoptError::FileExists(context.file.clone()).into());
    }
    let way = way(choices)?;
    check_keys(choices, &way, now)?;
    let found = Box::pin(look(&way, now)).await.map_err(AdoptError::from)?;
    for member in &found.members {
        Name::parse(&member.listed.name).map_err(|_| AdoptError::Name(member.listed.name.clone()))?;
    }
    let drafted = draft(&found, &words(choices));
    let reading = spec::read(&drafted.text);
    let mut all = findings(&found);
    all.extend(drafted.left_out);
    all.extend(of_file(&reading));
    all.sort_by_key(|finding| finding.weight);
    let state = match &reading.spec {
        Some(spec) => {
            let dir = context.state_dir(spec);
            if dir.exists() {
                return Err(AdoptError::StateExists(dir).into());
            }
            let store = Fleet::create(spec, context, Protection::IdentityFile, now).await?;
            remember(&store, choices, context, &way, &found).await?;
            true
        }
        None => false,
    };
    write_file(&context.file, &drafted.text)?;
    Ok(Adoption { file: context.file.clone(), state, found, findings: all })
}

fn read(path: &Path) -> Result<String, OpError> {
    std::fs::read_to_string(path).map_err(|source| OpError::File { action: "read", path: path.to_owned(), source })
}

fn secret(path: &Path) -> Result<SecretString, OpError> {
    let absolute = absolute(path);
    crate::secrets::resolve(&Secret::File(absolute), Path::new("/"))
        .map_err(|error| OpError::Stack(crate::stack::StackError::Secret(error)))
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}

fn way(choices: &Choices) -> Result<Way, OpError> {
    let ca_pem = read(&choices.ca)?;
    crate::pki::describe(&ca_pem)?;
    let identity = match &choices.certificate {
        Some((chain, key)) => Some(Identity::from_pem(&read(chain)?, secret(key)?.expose_secret())?),
        None => None,
    };
    Ok(Way {
        endpoints: choices.endpoints.clone(),
        ca_pem,
        identity,
        password: choices.password.as_deref().map(secret).transpose()?,
    })
}

/// Given keys must be those of the authorities. The check comes first, so that a mistake shows before the state is
/// made.
fn check_keys(choices: &Choices, way: &Way, now: Timestamp) -> Result<(), OpError> {
    if let Some(key) = &choices.ca_key {
        Authority::brought(AuthorityKind::EtcdClients, &way.ca_pem, &secret(key)?, now)?;
    }
    if let Some((certificate, key)) = &choices.peers {
        Authority::brought(AuthorityKind::EtcdPeers, &read(certificate)?, &secret(key)?, now)?;
    }
    Ok(())
}

/// What the file should refer to, as absolute paths.
fn words(choices: &Choices) -> adopt::Choices {
    adopt::Choices {
        fleet: choices.fleet.clone(),
        cluster: choices.cluster.clone(),
        root_password: choices.password.as_deref().map(absolute),
        clients: choices.ca_key.as_deref().map(|key| (absolute(&choices.ca), absolute(key))),
        peers: choices.peers.as_ref().map(|(certificate, key)| (absolute(certificate), absolute(key))),
    }
}

/// Findings of `check` about the file hold for the cluster.
fn of_file(reading: &Reading) -> Vec<Finding> {
    let finding = |diagnostic: &spec::Diagnostic| Finding {
        weight: if diagnostic.is_error() { Weight::Problem } else { Weight::Warning },
        code: diagnostic.code,
        member: None,
        message: diagnostic.message.clone(),
        next: diagnostic.help.clone().unwrap_or_else(|| "see `raftsman check`".to_owned()),
    };
    reading.diagnostics.iter().map(finding).collect()
}

/// Writes to the state what no observation can tell.
async fn remember(
    store: &Store,
    choices: &Choices,
    context: &Context,
    way: &Way,
    found: &Found,
) -> Result<(), OpError> {
    let lock = store.lock(lock_info(context, "adopt")).await?;
    let secrets = store.unlock(context.identity_source()).await?;
    // The ledger comes first, still empty: keys without a ledger would mean that the cluster lost it.
    let cluster = choices.cluster.as_str();
    let version = store.put_cluster(&lock, cluster, &Version::none(), &Ledger::default()).await?;
    let name = adopted_name(&choices.cluster);
    store.put_certificate(&lock, &format!("{name}-ca"), &way.ca_pem).await?;
    if let Some((chain, key)) = &choices.certificate {
        secrets.put(&lock, &name, &secret(key)?).await?;
        store.put_certificate(&lock, &name, &read(chain)?).await?;
    }
    let named = || found.members.iter().filter_map(|m| Some((Name::parse(&m.listed.name).ok()?, m)));
    let peers = named().filter_map(|(name, m)| Some((name, m.listed.peer_urls.first()?.clone())));
    let (ca_key, peers_key) = (&choices.ca_key, choices.peers.as_ref());
    let ca_key = ca_key.as_deref().map(secret).transpose()?;
    let clients =
        bring_in(store, &secrets, &lock, &choices.cluster, TrustDomain::Clients, (&way.ca_pem, ca_key.as_ref()))
            .await?;
    let peers_trust = match peers_key {
        Some((certificate, key)) => {
            let (certificate, key) = (read(certificate)?, secret(key)?);
            Some(
                bring_in(store, &secrets, &lock, &choices.cluster, TrustDomain::Peers, (&certificate, Some(&key)))
                    .await?,
            )
        }
        None => None,
    };
    let revision = |m: &adopt::Member| m.status.as_ref().ok().map(|status| status.revision);
    let etcd = EtcdLedger {
        cluster: Some(found.cluster),
        members: peers.collect(),
        auth: Some(found.mode),
        peers: peers_trust,
        clients: Some(clients),
        last_revision: found.members.iter().filter_map(revision).max().unwrap_or(0),
        mode: Mode::Adopted(Adopted { clients: named().map(|(name, m)| (name, m.endpoint.clone())).collect() }),
        ..EtcdLedger::default()
    };
    let ledger = Ledger { etcd, ..Ledger::default() };
    store.put_cluster(&lock, cluster, &version, &ledger).await?;
    let journal = Journal::new(store, context, &lock);
    let members: Vec<&str> = found.members.iter().map(|m| m.listed.name.as_str()).collect();
    journal.note(Some(&choices.cluster), "adopted", json!({ "id": found.cluster, "members": members })).await?;
    Ok(())
}
