//! The file's secrets for machines → the files for one machine, and whether it has them.

use std::io;
use std::path::PathBuf;

use aws_lc_rs::hmac;
use jiff::Timestamp;
use prost::Message as _;
use raftsman_api::v1::{ReportReply, SetBackupsRequest};
use raftsman_core::desired::Capabilities;
use raftsman_core::observed::{Delivery, TrustDomain};
use raftsman_core::render::delivery::{self, Delivered};
use raftsman_core::render::fluent_bit::{self, Referred};
use raftsman_core::spec::{AuthMode, Logs, Name, Secret};
use secrecy::{ExposeSecret as _, SecretString};

use crate::backup;
use crate::fleet::Fleet;
use crate::secrets::{self, SecretError};
use crate::stack::StackHandle;
use crate::store::{Lock, StoreError};

/// The name of the HMAC key in the state for the marks that agents keep of delivered files. Without the key a mark is
/// of no use for guessing passwords.
const KEY: &str = "delivery";

/// Why the files for a machine cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// A secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A certificate.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What is in it.
    #[error(transparent)]
    Contents(#[from] delivery::DeliveryError),
    /// Where backups go.
    #[error(transparent)]
    Backup(#[from] backup::BackupError),
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The files that a machine should have, where raftsman made it.
#[derive(Debug)]
pub struct Payload {
    /// The files.
    pub files: Vec<Delivered>,
    /// The mark of them; empty where there are none.
    pub stamp: String,
}

impl Payload {
    /// For this machine, read from where the file says.
    pub async fn pack(cluster: &StackHandle, lock: &Lock, machine: &Name) -> Result<Self, DeliveryError> {
        let key = cluster.fleet.secrets.get_or_put(lock, KEY, secrets::random_token()?).await?;
        let files = files(cluster, machine)?;
        Ok(Self { stamp: stamp(&key, &parts(&files)), files })
    }
}

/// The settings that the cluster's machines make backups with, with their mark.
pub async fn backup_settings(cluster: &StackHandle, lock: &Lock) -> Result<SetBackupsRequest, DeliveryError> {
    let fleet = &cluster.fleet;
    let key = fleet.secrets.get_or_put(lock, KEY, secrets::random_token()?).await?;
    if cluster.desired.etcd.backups.is_some() {
        backup::make_signing_key(fleet, lock).await?;
    }
    Ok(match backup::settings(cluster).await? {
        Some(settings) => SetBackupsRequest { stamp: stamp(&key, &described(cluster, &settings)?), ..settings },
        None => SetBackupsRequest::default(),
    })
}

/// Whether a machine whose agent reports this has the files of the file.
pub async fn has_files(cluster: &StackHandle, machine: &Name, reported: &ReportReply) -> Delivery {
    let has_all = async {
        let files = files(cluster, machine)?;
        // Most fleets have nothing to deliver: this avoids reading the key at every observation.
        Ok(match files.is_empty() {
            true => reported.delivery_stamp.is_empty(),
            // Without a key nothing was ever delivered.
            false => key(cluster).await?.is_some_and(|key| stamp(&key, &parts(&files)) == reported.delivery_stamp),
        })
    };
    compared(has_all.await)
}

/// Whether a machine whose agent reports this has the backup settings of the file.
pub async fn has_backup_settings(cluster: &StackHandle, reported: &ReportReply, now: Timestamp) -> Delivery {
    compared(knows_of_backups(cluster, reported, now).await)
}

fn compared(same: Result<bool, DeliveryError>) -> Delivery {
    match same {
        Ok(true) => Delivery::Current,
        Ok(false) => Delivery::Outdated,
        Err(error) => Delivery::Unknown(error.to_string()),
    }
}

/// The key of all deliveries of the fleet.
async fn key(cluster: &StackHandle) -> Result<Option<SecretString>, StoreError> {
    cluster.fleet.secrets.get(KEY).await
}

async fn knows_of_backups(
    cluster: &StackHandle,
    reported: &ReportReply,
    now: Timestamp,
) -> Result<bool, DeliveryError> {
    if cluster.ledger().etcd.cluster.is_none() && cluster.desired.etcd.backups.is_some() {
        // The cluster does not exist yet: there is no member to back up, and no credentials for it.
        return Ok(false);
    }
    let settings = match backup::settings(cluster).await {
        // The key is made when machines get the schedule.
        Err(backup::BackupError::NoSigningKey) => return Ok(false),
        settings => settings?,
    };
    let Some(settings) = settings else { return Ok(reported.backups.is_none()) };
    let Some(reported) = &reported.backups else { return Ok(false) };
    let renew_before = cluster.desired.etcd.members.first().map_or_else(Default::default, |m| m.server.renew_before());
    let ends = reported.certificate_not_after.and_then(|at| Timestamp::from_second(at.seconds).ok());
    let gets_in = match cluster.auth() {
        AuthMode::Password => true,
        AuthMode::Certificate | AuthMode::None => ends.is_some_and(|ends| ends.duration_since(now) > renew_before),
    };
    let described = described(cluster, &settings)?;
    Ok(gets_in && key(cluster).await?.is_some_and(|key| stamp(&key, &described) == reported.stamp))
}

/// Everything that the mark depends on: also the authority that signs the machine's client certificate for etcd.
fn described(cluster: &StackHandle, settings: &SetBackupsRequest) -> Result<Vec<Vec<u8>>, DeliveryError> {
    let signer = cluster.trust(TrustDomain::Clients).map_err(backup::BackupError::from)?.current.key;
    Ok(vec![settings.encode_to_vec(), signer.into_bytes()])
}

fn parts(files: &[Delivered]) -> Vec<Vec<u8>> {
    files.iter().flat_map(|file| [file.what.name().into(), file.contents.clone().into_bytes()]).collect()
}

/// The mark of these parts, where the fleet has made marks before.
pub(crate) async fn known_stamp(cluster: &StackHandle, parts: &[Vec<u8>]) -> Result<Option<String>, StoreError> {
    Ok(key(cluster).await?.map(|key| stamp(&key, parts)))
}

/// The mark of these parts, with a key that is made where there is none.
pub(crate) async fn new_stamp(
    cluster: &StackHandle,
    lock: &Lock,
    parts: &[Vec<u8>],
) -> Result<String, crate::stack::StackError> {
    let key = cluster.fleet.secrets.get_or_put(lock, KEY, secrets::random_token()?).await?;
    Ok(stamp(&key, parts))
}

fn stamp(key: &SecretString, parts: &[Vec<u8>]) -> String {
    if parts.is_empty() {
        return String::new();
    }
    let mut mark = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key.expose_secret().as_bytes()));
    for part in parts {
        mark.update(&(part.len() as u64).to_be_bytes());
        mark.update(part);
    }
    raftsman_api::hex::encode(mark.sign().as_ref())
}

fn files(cluster: &StackHandle, machine: &Name) -> Result<Vec<Delivered>, DeliveryError> {
    let fleet = &cluster.fleet;
    // A machine that is not in the file any more only gets the fleet-wide settings.
    let machines = cluster.desired.machine(machine).map_or(&fleet.spec.machines, |machine| &machine.settings);
    if !Capabilities::of(machines.provider).boots {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    if let Some(admin) = &machines.admin
        && let Some(password) = &admin.console_password
    {
        let password = secrets::resolve(password, fleet.context.base())?;
        files.push(delivery::console_password(&admin.user, password.expose_secret())?);
    }
    if let Some(logs) = &machines.logs {
        files.extend(log_files(fleet, machine, logs, machines.node_exporter == Some(true))?);
    }
    Ok(files)
}

fn log_files(fleet: &Fleet, machine: &Name, logs: &Logs, exporter: bool) -> Result<Vec<Delivered>, DeliveryError> {
    let base = fleet.context.base();
    let read = |path: Option<&String>| -> Result<Option<String>, DeliveryError> {
        let Some(path) = path.map(|path| base.join(path)) else { return Ok(None) };
        let text = std::fs::read_to_string(&path);
        text.map(Some).map_err(|source| DeliveryError::Read { path, source })
    };
    let secret = |reference: Option<&Secret>| reference.map(|secret| secrets::resolve(secret, base)).transpose();
    let (forward, dynamic) = (logs.forward.as_ref(), logs.dynamic.as_ref());
    let forward_ca = read(forward.map(|forward| &forward.ca_cert))?;
    let shared_key = secret(forward.map(|forward| &forward.shared_key))?;
    let dynamic_ca = read(dynamic.map(|dynamic| &dynamic.ca_cert))?;
    let dynamic_certificate = read(dynamic.and_then(|dynamic| dynamic.certificate.as_ref()))?;
    let dynamic_key = secret(dynamic.and_then(|dynamic| dynamic.key.as_ref()))?;
    let dynamic_password = secret(dynamic.and_then(|dynamic| dynamic.password.as_ref()))?;
    let referred = Referred {
        forward_ca: forward_ca.as_deref(),
        shared_key: shared_key.as_ref().map(|key| key.expose_secret()),
        dynamic_ca: dynamic_ca.as_deref(),
        dynamic_certificate: dynamic_certificate.as_deref(),
        dynamic_key: dynamic_key.as_ref().map(|key| key.expose_secret()),
        dynamic_password: dynamic_password.as_ref().map(|password| password.expose_secret()),
    };
    Ok(fluent_bit::delivered(machine.as_str(), logs, exporter, &referred)?)
}
