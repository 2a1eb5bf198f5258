//! PostgreSQL's data directory → whose data it holds, and how far it goes, out of `global/pg_control`.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use raftsman_api::v1;
use raftsman_core::render::patroni::DATA;

use crate::root::Root;

/// The versions of `pg_control` that are known: of PostgreSQL 13 to 16, 17, and 18. In all of them the fields that are read
/// are at the same places.
const VERSIONS: [u32; 3] = [1300, 1700, 1800];
/// PostgreSQL keeps the file's content below the size of a sector, so that it is written at once.
const READ: usize = 152;

/// What a data directory holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Nothing, or it is not there.
    Empty,
    /// A cluster's data.
    Present {
        /// The identifier that `initdb` gave it.
        system: u64,
        /// The timeline of the last checkpoint, or the one that recovery must reach.
        timeline: u32,
        /// The last checkpoint, or where recovery must end, whichever is later.
        position: u64,
    },
    /// Something else.
    Unreadable(String),
}

impl std::fmt::Display for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("there is none"),
            Self::Present { system, .. } => write!(f, "there is data with the system identifier {system}"),
            Self::Unreadable(problem) => f.write_str(problem),
        }
    }
}

impl Data {
    /// For the report.
    pub fn wire(self) -> v1::PostgresData {
        let empty = v1::PostgresData::default();
        match self {
            Self::Empty => v1::PostgresData { state: v1::DataState::Empty.into(), ..empty },
            Self::Present { system, timeline, position } => v1::PostgresData {
                state: v1::DataState::Present.into(),
                system_id: system,
                timeline,
                position,
                ..empty
            },
            Self::Unreadable(problem) => v1::PostgresData { state: v1::DataState::Unreadable.into(), problem, ..empty },
        }
    }
}

/// PostgreSQL's data directory on a machine.
pub fn dir(root: &Root) -> PathBuf {
    root.path().join(DATA)
}

/// What is in a data directory.
pub fn look(dir: &Path) -> Data {
    match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Data::Empty,
        Err(error) => return Data::Unreadable(format!("{} cannot be listed: {error}", dir.display())),
        Ok(mut entries) => {
            if entries.next().is_none() {
                return Data::Empty;
            }
        }
    }
    let control = dir.join("global/pg_control");
    let mut bytes = [0; READ];
    match File::open(&control).and_then(|mut file| file.read_exact(&mut bytes)) {
        Ok(()) => parse(&bytes),
        Err(error) => Data::Unreadable(format!("{} holds files, but no cluster's: {error}", control.display())),
    }
}

/// The fields of `ControlFileData` that come first: the system identifier, the file's version, the location of the last
/// checkpoint, its timeline, and where recovery must reach at least, with the timeline of that.
fn parse(bytes: &[u8; READ]) -> Data {
    let word = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).map_or(0, u32::from_ne_bytes);
    let long = |at: usize| <[u8; 8]>::try_from(&bytes[at..at + 8]).map_or(0, u64::from_ne_bytes);
    let (system, version) = (long(0), word(8));
    if !VERSIONS.contains(&version) {
        return Data::Unreadable(format!("pg_control has the version {version}, which this agent does not know"));
    }
    let (checkpoint, recovery) = ((long(32), word(48)), (long(136), word(144)));
    let (position, timeline) = if recovery.0 > checkpoint.0 { recovery } else { checkpoint };
    if system == 0 || timeline == 0 {
        return Data::Unreadable("pg_control is incomplete".to_owned());
    }
    Data::Present { system, timeline, position }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_empty_present_or_unreadable() {
        let dir = tempfile::tempdir().expect("dir");
        assert_eq!(look(&dir.path().join("none")), Data::Empty);
        assert_eq!(look(dir.path()), Data::Empty);
        fs::create_dir(dir.path().join("global")).expect("dir");
        assert!(matches!(look(dir.path()), Data::Unreadable(_)));
        let control = dir.path().join("global/pg_control");
        fs::write(&control, [0; 8192]).expect("write");
        assert!(matches!(look(dir.path()), Data::Unreadable(_)));
        let mut bytes = [0; 8192];
        bytes[..8].copy_from_slice(&7_u64.to_ne_bytes());
        bytes[8..12].copy_from_slice(&1300_u32.to_ne_bytes());
        bytes[32..40].copy_from_slice(&0x0300_0028_u64.to_ne_bytes());
        bytes[48..52].copy_from_slice(&2_u32.to_ne_bytes());
        fs::write(&control, bytes).expect("write");
        assert_eq!(look(dir.path()), Data::Present { system: 7, timeline: 2, position: 0x0300_0028 });
        bytes[136..144].copy_from_slice(&0x0400_0000_u64.to_ne_bytes());
        bytes[144..148].copy_from_slice(&3_u32.to_ne_bytes());
        fs::write(&control, bytes).expect("write");
        assert_eq!(look(dir.path()), Data::Present { system: 7, timeline: 3, position: 0x0400_0000 });
        bytes[8..12].copy_from_slice(&1900_u32.to_ne_bytes());
        fs::write(&control, bytes).expect("write");
        assert!(matches!(look(dir.path()), Data::Unreadable(_)));
    }
}
