//! files with secrets → in their places on this machine, and loaded by the services that read them.

use std::path::Path;

use raftsman_core::render::delivery::{Deliverable, Delivered, STAMP, TakesEffect};

use crate::files::{self, FileError};
use crate::supervisor::launch::Launcher;
use crate::supervisor::systemd::{Systemd, SystemdError};

/// Why a delivery failed.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// Raftsman did not make the machine.
    #[error("this machine was not made by raftsman: nothing is delivered to it")]
    NotOurs,
    /// Not one of the files that agents write.
    #[error("this agent knows no file `{0}`: is raftsman newer than the agent?")]
    Unknown(String),
    /// No service on this machine reads it.
    #[error(
        "{unit} is not installed on this machine: the files for it are in place, and take effect once it is installed; \
         add it to the image, then apply again"
    )]
    NoReader {
        /// The unit that should read it.
        unit: &'static str,
    },
    /// A service did not load it.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The stamp of the last delivery that succeeded.
pub fn stamp() -> Result<Option<String>, FileError> {
    files::read(Path::new(STAMP))
}

/// Writes files to their places, removes the other files that agents know, and has the services load them.
pub async fn take(launcher: &Launcher, files: &[Delivered], stamp: &str) -> Result<(), DeliveryError> {
    let Launcher::Unit(systemd) = launcher else { return Err(DeliveryError::NotOurs) };
    if !Path::new(STAMP).parent().is_some_and(Path::is_dir) {
        return Err(DeliveryError::NotOurs);
    }
    // From here until the end the machine has neither the old nor the new files completely.
    files::remove(Path::new(STAMP))?;
    for what in Deliverable::ALL {
        let path = Path::new(what.path());
        match files.iter().find(|file| file.what == what) {
            Some(file) => {
                if let Some(dir) = path.parent() {
                    files::make_dir(dir, 0o700)?;
                }
                files::write(path, file.contents.as_bytes(), 0o600)?;
                take_up(systemd, what.then()).await?;
            }
            None if files::remove(path)? => {
                if let TakesEffect::Restart(unit) = what.then() {
                    systemd.stop(unit).await?;
                }
            }
            None => {}
        }
    }
    Ok(files::write(Path::new(STAMP), stamp.as_bytes(), 0o600)?)
}

async fn take_up(systemd: &Systemd, then: TakesEffect) -> Result<(), DeliveryError> {
    match then {
        TakesEffect::Nothing => Ok(()),
        TakesEffect::Run(unit) => Ok(systemd.run(unit).await?),
        TakesEffect::Restart(unit) if !systemd.restart(unit).await? => Err(DeliveryError::NoReader { unit }),
        TakesEffect::Restart(_) => Ok(()),
    }
}
