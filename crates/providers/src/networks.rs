//! a fleet → a loopback network of its own on this computer, so that two fleets do not conflict.
//!
//! The registry is a directory with a file for each network in use, created exclusively: the process that creates the
//! file has the network. Loopback networks need no privilege and no set-up; those that are not requested by name are
//! `127.0.x.0/24`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use raftsman_core::desired::LoopbackNetwork;
use serde::{Deserialize, Serialize};

use crate::files::{FileError, failed};

/// The ports that a fleet uses on each address: agent, etcd's clients, etcd's peers.
const PORTS: [u16; 3] = [2378, 2379, 2380];
/// The addresses that are checked before a network is claimed.
const LOOKED_AT: std::ops::RangeInclusive<u8> = 1..=9;

/// Why a fleet got no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Another fleet has it.
    #[error("the network {network} belongs to the fleet {fleet_id} in {}: name another, or delete that fleet", state_dir.display())]
    Taken {
        /// The network.
        network: LoopbackNetwork,
        /// Its owner.
        fleet_id: String,
        /// Where its owner keeps its state.
        state_dir: PathBuf,
    },
    /// Something listens in it.
    #[error("something listens on {address}:{port}: name another network, or stop it")]
    Busy {
        /// The address.
        address: Ipv4Addr,
        /// The port.
        port: u16,
    },
    /// All are in use.
    #[error("no local network is free: delete fleets that are not needed any more; {} lists them", registry.display())]
    None {
        /// The registry.
        registry: PathBuf,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

#[derive(Serialize, Deserialize)]
struct Entry {
    fleet_id: String,
    state_dir: PathBuf,
}

/// The networks that one user has in use on this computer.
#[derive(Clone, Debug)]
pub struct Networks {
    registry: PathBuf,
}

impl Networks {
    /// The registry in this directory, which need not exist.
    pub fn new(registry: PathBuf) -> Self {
        Self { registry }
    }

    /// The fleet's network: the one it has, else the wanted one, else a free one. The same fleet tends to get the same
    /// network again.
    pub fn claim(
        &self,
        fleet_id: &str,
        state_dir: &Path,
        wanted: Option<LoopbackNetwork>,
    ) -> Result<LoopbackNetwork, NetworkError> {
        let _turn = self.turn()?;
        if let Some(own) = self.of(fleet_id)?
            && wanted.is_none_or(|wanted| wanted == own)
        {
            return Ok(own);
        }
        if let Some(wanted) = wanted {
            self.take(wanted, fleet_id, state_dir)?;
            return Ok(wanted);
        }
        let first = hash(fleet_id) % 255;
        for step in 0..255 {
            // 127.0.0.0/24 is shared by all programs of the computer.
            let Ok(third) = u8::try_from((first + step) % 255 + 1) else { continue };
            let network = LoopbackNetwork::new(0, third);
            match self.take(network, fleet_id, state_dir) {
                Ok(()) => return Ok(network),
                Err(NetworkError::Taken { .. } | NetworkError::Busy { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(NetworkError::None { registry: self.registry.clone() })
    }

    /// The network that the fleet has.
    pub fn of(&self, fleet_id: &str) -> Result<Option<LoopbackNetwork>, NetworkError> {
        Ok(self.entries()?.into_iter().find(|(_, entry)| entry.fleet_id == fleet_id).map(|(network, _)| network))
    }

    /// Releases the fleet's networks; succeeds when it has none.
    pub fn release(&self, fleet_id: &str) -> Result<(), NetworkError> {
        if !self.registry.exists() {
            return Ok(());
        }
        let _turn = self.turn()?;
        for (network, entry) in self.entries()? {
            if entry.fleet_id == fleet_id {
                remove(&self.path(network))?;
            }
        }
        // Only removes it when it is empty.
        let _ = fs::remove_dir(&self.registry);
        Ok(())
    }

    /// One change at a time: an entry that was found stale must still be so when it is removed.
    fn turn(&self) -> Result<File, NetworkError> {
        let registry = &self.registry;
        loop {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(registry)
                .map_err(failed("make the directory", registry))?;
            let turn = match File::open(registry) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(failed("open", registry))?,
            };
            turn.lock().map_err(failed("lock", registry))?;
            // The previous holder of the lock may have removed the directory.
            let locked = turn.metadata().map_err(failed("look at", registry))?.ino();
            if fs::metadata(registry).is_ok_and(|found| found.ino() == locked) {
                return Ok(turn);
            }
        }
    }

    fn take(&self, network: LoopbackNetwork, fleet_id: &str, state_dir: &Path) -> Result<(), NetworkError> {
        self.vacant(network)?;
        // Its fleet is gone and did not release it.
        if self.entry(network)?.is_some() {
            remove(&self.path(network))?;
        }
        self.enter(network, &Entry { fleet_id: fleet_id.to_owned(), state_dir: state_dir.to_path_buf() })
    }

    /// Whether a new fleet could claim this network. Nothing is changed.
    pub fn vacant(&self, network: LoopbackNetwork) -> Result<(), NetworkError> {
        if let Some(Entry { fleet_id, state_dir }) = self.entry(network)?
            && state_dir.exists()
        {
            return Err(NetworkError::Taken { network, fleet_id, state_dir });
        }
        match busy(network) {
            Some((address, port)) => Err(NetworkError::Busy { address, port }),
            None => Ok(()),
        }
    }

    /// Complete and exclusive: the entry is written aside and linked to its name, which fails when the name exists.
    fn enter(&self, network: LoopbackNetwork, entry: &Entry) -> Result<(), NetworkError> {
        let registry = &self.registry;
        let path = self.path(network);
        let aside =
            registry.join(format!(".{}-{}-{:?}", name(network), std::process::id(), std::thread::current().id()));
        let text = serde_json::to_vec_pretty(entry).map_err(|error| failed("write", &path)(error.into()))?;
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&aside)
            .and_then(|mut file| file.write_all(&text))
            .map_err(failed("write", &aside));
        let linked = written.map(|()| fs::hard_link(&aside, &path));
        let _ = fs::remove_file(&aside);
        match linked? {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Another fleet claimed it first.
                let found = self.entry(network)?;
                let (fleet_id, state_dir) = found.map(|entry| (entry.fleet_id, entry.state_dir)).unwrap_or_default();
                Err(NetworkError::Taken { network, fleet_id, state_dir })
            }
            linked => Ok(linked.map_err(failed("make", &path))?),
        }
    }

    fn path(&self, network: LoopbackNetwork) -> PathBuf {
        self.registry.join(name(network))
    }

    fn entry(&self, network: LoopbackNetwork) -> Result<Option<Entry>, NetworkError> {
        let path = self.path(network);
        match fs::read_to_string(&path) {
            Ok(text) => {
                Ok(serde_json::from_str(&text).map(Some).map_err(|error| failed("understand", &path)(error.into()))?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error).into()),
        }
    }

    fn entries(&self) -> Result<Vec<(LoopbackNetwork, Entry)>, NetworkError> {
        let names = match fs::read_dir(&self.registry) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed("list", &self.registry))?,
        };
        let mut found = Vec::new();
        for name in names.flatten() {
            let network = name.file_name().to_str().and_then(|name| format!("{name}.0/24").parse().ok());
            if let Some(network) = network
                && let Some(entry) = self.entry(network)?
            {
                found.push((network, entry));
            }
        }
        found.sort_by_key(|(network, _)| *network);
        Ok(found)
    }
}

/// `127.0.42` for `127.0.42.0/24`.
fn name(network: LoopbackNetwork) -> String {
    let [first, second, third, _] = network.address(0).octets();
    format!("{first}.{second}.{third}")
}

fn remove(path: &Path) -> Result<(), NetworkError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error).into()),
        _ => Ok(()),
    }
}

/// FNV-1a: the same on every computer and in every version.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn busy(network: LoopbackNetwork) -> Option<(Ipv4Addr, u16)> {
    LOOKED_AT
        .flat_map(|host| PORTS.map(|port| (network.address(host), port)))
        .find(|(address, port)| taken((*address).into(), *port))
}

/// Whether a process listens on this port of an address of this computer.
pub fn taken(address: IpAddr, port: u16) -> bool {
    TcpListener::bind((address, port)).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn networks() -> (tempfile::TempDir, Networks) {
        let dir = tempfile::tempdir().expect("dir");
        let networks = Networks::new(dir.path().join("networks"));
        (dir, networks)
    }

    #[test]
    fn a_fleet_keeps_its_network() {
        let (dir, networks) = networks();
        let one = networks.claim("one", dir.path(), None).expect("claim");
        assert_eq!(networks.claim("one", dir.path(), None).expect("again"), one);
        assert_eq!(networks.of("one").expect("look"), Some(one));
        let taken = networks.claim("two", dir.path(), Some(one));
        assert!(matches!(taken, Err(NetworkError::Taken { .. })), "{taken:?}");
        networks.release("one").expect("release");
        networks.release("one").expect("twice");
        assert!(!dir.path().join("networks").exists());
    }

    #[test]
    fn networks_never_collide() {
        let (dir, networks) = networks();
        let found: Vec<LoopbackNetwork> = std::thread::scope(|scope| {
            let claims: Vec<_> = (0..32)
                .map(|number| {
                    let (networks, dir) = (networks.clone(), dir.path());
                    // Two threads for each fleet's hash neighbourhood make them collide.
                    scope.spawn(move || networks.claim(&format!("fleet-{number}"), dir, None).expect("claim"))
                })
                .collect();
            claims.into_iter().map(|claim| claim.join().expect("thread")).collect()
        });
        assert_eq!(found.iter().collect::<HashSet<_>>().len(), found.len());
    }

    #[test]
    fn a_dead_fleets_network_is_free() {
        let (dir, networks) = networks();
        let network = LoopbackNetwork::new(0, 201);
        networks.claim("dead", &dir.path().join("gone"), Some(network)).expect("claim");
        networks.claim("living", dir.path(), Some(network)).expect("claim");
        assert_eq!(networks.of("dead").expect("look"), None);
    }

    #[test]
    fn a_listener_is_in_the_way() {
        let (dir, networks) = networks();
        let network = LoopbackNetwork::new(0, 202);
        let _listener = TcpListener::bind((network.address(3), 2380)).expect("bind");
        let busy = networks.claim("one", dir.path(), Some(network));
        assert!(matches!(busy, Err(NetworkError::Busy { port: 2380, .. })), "{busy:?}");
    }
}
