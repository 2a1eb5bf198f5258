//! What the file says of secrets on machines → the files for one machine, and whether it has them.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::hmac;
use raftsman_core::desired::Capabilities;
use raftsman_core::observed::Delivery;
use raftsman_core::render::delivery::{self, Delivered};
use raftsman_core::render::fluent_bit::{self, Referred};
use raftsman_core::spec::{Logs, Name, Secret};
use secrecy::{ExposeSecret as _, SecretString};

use crate::fleet::Fleet;
use crate::secrets::{self, SecretError};
use crate::store::StoreError;

/// The key of the marks that agents keep of what they were given, as the state names it. Nobody who sees a mark can try
/// passwords against it.
const KEY: &str = "delivery";
static MAKING: Mutex<()> = Mutex::new(());

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
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a machine is to be given, and the mark of it.
#[derive(Debug)]
pub struct Parcel {
    /// The files.
    pub files: Vec<Delivered>,
    /// Empty where there are none.
    pub stamp: String,
}

impl Parcel {
    /// For this machine, read from where the file says.
    pub fn pack(fleet: &Fleet, machine: &Name) -> Result<Self, DeliveryError> {
        // Machines are given theirs at the same time, and the key is made once.
        let making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let key = match fleet.secrets.get(KEY)? {
            Some(key) => key,
            None => {
                let key = secrets::random_token()?;
                fleet.secrets.put(KEY, &key)?;
                key
            }
        };
        drop(making);
        let files = files(fleet, machine)?;
        Ok(Self { stamp: stamp(&key, &files), files })
    }
}

/// Whether a machine whose agent shows this mark has what it should.
pub fn compare(fleet: &Fleet, machine: &Name, shown: &str) -> Delivery {
    let compare = || -> Result<Delivery, DeliveryError> {
        let files = files(fleet, machine)?;
        // Most fleets have nothing to deliver: the state is not asked for a key at every look.
        let current = match files.is_empty() {
            true => shown.is_empty(),
            // Without a key nothing was ever delivered.
            false => fleet.secrets.get(KEY)?.is_some_and(|key| stamp(&key, &files) == shown),
        };
        Ok(if current { Delivery::Current } else { Delivery::Outdated })
    };
    compare().unwrap_or_else(|error| Delivery::Unknown(error.to_string()))
}

fn stamp(key: &SecretString, files: &[Delivered]) -> String {
    if files.is_empty() {
        return String::new();
    }
    let mut mark = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key.expose_secret().as_bytes()));
    for Delivered { what, contents } in files {
        for part in [what.name(), contents] {
            mark.update(&(part.len() as u64).to_be_bytes());
            mark.update(part.as_bytes());
        }
    }
    raftsman_api::hex::encode(mark.sign().as_ref())
}

fn files(fleet: &Fleet, machine: &Name) -> Result<Vec<Delivered>, DeliveryError> {
    let machines = &fleet.spec.machines;
    if !Capabilities::of(machines.provider).boots {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    if let Some(admin) = &machines.admin
        && let Some(password) = &admin.console_password
    {
        let password = secrets::resolve(password, fleet.setting.base())?;
        files.push(delivery::console_password(&admin.user, password.expose_secret())?);
    }
    if let Some(logs) = &machines.logs {
        files.extend(log_files(fleet, machine, logs, machines.node_exporter == Some(true))?);
    }
    Ok(files)
}

fn log_files(fleet: &Fleet, machine: &Name, logs: &Logs, exporter: bool) -> Result<Vec<Delivered>, DeliveryError> {
    let base = fleet.setting.base();
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
